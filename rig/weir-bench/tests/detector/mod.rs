//! The detector as a program: real processes, real sockets, the practice target whose truth is known.

mod bad_input;
mod golden;
mod history;
mod micro;
mod observed;
mod runs;
mod strangers;
mod support;
