//! Delivery by the real agent to a double of an intake.

#[path = "../support/receivers.rs"]
mod support;

mod damaged;
mod flush_memory;
mod intake;
mod killed;
mod names;
mod standard_output;
mod stop;
