//! Delivery by the real agent to a double of an intake.

#[path = "../support/receivers.rs"]
mod support;

mod damaged;
mod intake;
mod key_files;
mod killed;
mod names;
mod receiver;
mod reload;
mod standard_output;
mod stop;
mod stop_receiving;
