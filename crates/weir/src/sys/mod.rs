//! The few places that speak to the C library and the allocator directly. Everything outside is safe code.
//!
//! The need: there is no other way to configure and question jemalloc, to arm timers on the CPU clocks of the
//! process's threads, to walk a stack inside a signal handler, to see a closed standard output, to give up new privileges, to
//! take descriptors that a service manager passes, to share a page with a file, or to ask what may be done with a file without doing it.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

pub mod cpu;
pub mod heap;
pub mod shared;
pub mod stdio;

/// Raises the limit of open descriptors as far as this process may, and returns what it is now. The low one that processes
/// start with is for programs that use `select`.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointers describe `limit`, which outlives the calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return Err(io::Error::last_os_error());
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

/// Takes a descriptor that this process was started with; programs that it runs do not get it.
pub fn take_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers alone.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, as the call above has shown, and whoever started this process left it to this function's caller, who
    // takes each number once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// From now on no program that this thread runs gains rights by being run.
pub fn refuse_new_privileges() -> io::Result<()> {
    // SAFETY: takes numbers alone.
    match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What may be done with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum May {
    Read,
    Write,
    /// Read a directory and open what is in it.
    List,
    /// And make and remove what is in it.
    Change,
}

/// Whether this process may, with the capabilities that are effective now.
pub fn may(path: &Path, what: May) -> io::Result<()> {
    let mode = match what {
        May::Read => libc::R_OK,
        May::Write => libc::W_OK,
        May::List => libc::R_OK | libc::X_OK,
        May::Change => libc::R_OK | libc::W_OK | libc::X_OK,
    };
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a C string that outlives the call.
    match unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), mode, libc::AT_EACCESS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
