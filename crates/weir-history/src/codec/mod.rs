//! Encodings of points: columns of numbers ([`scalar`]) and sketches ([`sketch`]), both exact.

mod bits;
mod decimal;
pub mod scalar;
pub mod sketch;
