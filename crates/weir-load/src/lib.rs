//! Load with a known truth: payload profiles, senders, a null receiver and the oracle.
//!
//! The crate never knows which target it loads, and shares no code with any agent's parser, so that a fault in one
//! cannot hide in the other.

pub mod manifest;
