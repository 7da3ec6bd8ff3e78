//! One program for all tests of this crate.

mod round_trip;
