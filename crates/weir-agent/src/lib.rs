//! The agent as a value that is given its world: the way from the workers' reports to consumers ([`pipeline`]), what survives a process
//! ([`state`], [`life`]), the order of a hand-over ([`hand_over`]), and what is decided besides.
//!
//! Nothing here reads a clock, opens a file or a socket, starts a thread or draws a random number: `weir-process` gives it the world of
//! production, and [`life`] a simulated one. It knows nothing of the meaning of metrics; the crates below do.

// `clippy.toml` names what is denied. Tests may use the real world.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod book_times;
pub mod books;
pub mod bucket_marks;
pub mod budget;
pub mod clients;
pub mod hand_over;
pub mod history;
pub mod ledger;
pub mod life;
pub mod pipeline;
pub mod rates;
pub mod rules;
pub mod state;
pub mod supervision;
pub mod usage;
