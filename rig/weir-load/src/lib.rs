//! Load with a known truth: payload profiles, senders, a null receiver and the oracle.
//!
//! The crate never knows which target it loads, and shares no code with any agent's parser, so a bug in one cannot hide in the other.

pub mod calibrate;
pub mod collide;
pub mod columns;
pub mod compose;
pub mod files;
pub mod grpc;
pub mod http;
pub mod learn;
pub mod manifest;
pub mod model;
pub mod null;
pub mod own;
pub mod profile;
pub mod profiles;
pub mod recorded;
pub mod records;
pub mod replay;
pub mod requests;
pub mod rng;
pub mod run;
pub mod schedule;
pub mod search;
pub mod source;
pub mod sys;
pub mod target;
pub mod truth;
pub mod units;
pub mod words;
