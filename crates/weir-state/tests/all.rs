//! State as bytes.

mod merge;
mod stream;
