//! Delivery by the real agent to a double of an intake.

pub mod intake;
mod key_files;
mod killed;
mod names;
pub mod receiver;
mod reload;
mod secret_backend;
mod standard_output;
mod stop;
