//! Origin detection: the sender of a message, and the tags of that origin.
//!
//! This crate never blocks a worker. Workers ask without waiting and receive answers later. One thread and its tasks read
//! `/proc`, HTTP and files.
//!
//! * [`decide`] decides which origins count and which tags they bring: a pure function, used by workers and by `weir explain`.
//! * [`Resolver`] owns the facts: processes, control groups, and the reports of [`sources`].
//! * A [`sources::TagSource`] reports everything it knows whenever that changes, and looks again when something unknown is asked for.

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
pub use store::{ContainerPlace, Description};
