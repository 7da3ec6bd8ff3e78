//! The decoder against its vectors, its page and random bytes.

mod page;
mod properties;
mod vectors;
