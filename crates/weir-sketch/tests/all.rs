//! The vectors that clients with sketches of their own are tested against.

mod vectors;
