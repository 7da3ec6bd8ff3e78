//! The decoder against its vectors, its page and random bytes.

mod properties;
mod vectors;
