//! The few places that speak to the C library and the allocator directly. Everything outside is safe code.
//!
//! The need: there is no other way to configure and question jemalloc, to arm timers on the CPU clocks of the
//! process's threads, to walk a stack inside a signal handler, or to see a closed standard output.
#![allow(unsafe_code)]

pub mod cpu;
pub mod heap;
pub mod stdio;

/// A write beyond a file size limit must fail like any other write; by default the signal kills the process.
pub fn ignore_file_size_signal() {
    // SAFETY: installing SIG_IGN runs no code of ours in signal context.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
