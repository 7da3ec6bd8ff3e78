//! The load generator.

mod model;
mod send;
