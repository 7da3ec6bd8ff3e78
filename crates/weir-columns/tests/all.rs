//! One program for all tests of this crate.

mod decode;
mod raw;
mod round_trip;
