//! The few places that speak to the C library and the allocator directly. Everything outside is safe code.
//!
//! The need: there is no other way to configure and question jemalloc, to arm timers on the CPU clocks of the
//! process's threads, to walk a stack inside a signal handler, or to see a closed standard output.
#![allow(unsafe_code)]

pub mod cpu;
pub mod heap;
pub mod stdio;

/// Raises the limit of open descriptors as far as this process may, and returns what it is now. The low one that processes
/// start with is for programs that use `select`.
pub fn raise_descriptor_limit() -> std::io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointers describe `limit`, which outlives the calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let before = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) != 0 {
            limit.rlim_cur = before;
        }
    }
    Ok(limit.rlim_cur)
}

/// A write beyond a file size limit must fail like any other write; by default the signal kills the process.
pub fn ignore_file_size_signal() {
    // SAFETY: installing SIG_IGN runs no code of ours in signal context.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
