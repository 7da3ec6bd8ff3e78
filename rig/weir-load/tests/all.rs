//! The load generator.

mod model;
mod own;
mod send;
