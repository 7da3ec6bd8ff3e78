//! The agent about itself: its status with the books, its losses and their remedies, its series, its dashboards, and how it reads one
//! message.
//!
//! It opens no socket and no file: who shows it, fetches it.

pub mod bad_bytes;
pub mod clients;
pub mod contexts;
pub mod counters;
pub mod dashboard;
mod earlier;
#[doc(hidden)]
pub mod examples;
pub mod explain;
pub mod fleet;
pub mod losses;
pub mod metrics_page;
pub mod numbers;
pub mod overview;
pub mod series;
pub mod status;
mod tables;
