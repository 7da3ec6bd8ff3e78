//! Who sent a message, and which tags that brings.
//!
//! What this crate never does: block a worker. Workers ask without waiting and are told when something is known; look-ups
//! in `/proc`, HTTP and files are the business of one thread and of tasks beside it.
//!
//! * [`decide`] is where it is decided which origins count and which tags they bring: a pure function, behind workers and
//!   `weir explain` alike.
//! * [`Resolver`] owns what is known: processes, control groups, and what [`sources`] tell.
//! * A [`sources::TagSource`] tells everything it knows whenever that changes, and looks again when something unknown is
//!   asked for.

pub mod cgroup;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod check;
mod decide;
mod entity;
mod processes;
mod resolver;
pub mod sources;
mod status;
mod store;

pub use decide::{Decision, DecisionStep, Facts, Policy, decide};
pub use entity::{Cardinality, Entity, TagSet};
pub use resolver::{AnswerTo, Origins, Resolver, Settings};
pub use status::{AccessExplanation, OriginExplanation, OriginStatus, OriginStep, SourceStatus};
pub use store::{Description, Place};
