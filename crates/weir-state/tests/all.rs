//! State as bytes.

mod merge;
mod rows;
mod stream;
