//! The rig as a process.

mod columns;
/// The detector as a program: real processes, real sockets, the practice target whose truth is known.
mod detector {
    mod bad_input;
    mod golden;
    mod history;
    mod micro;
    mod observed;
    mod runs;
    mod strangers;
    mod support;
}
mod floor;
mod load;
mod sink;
