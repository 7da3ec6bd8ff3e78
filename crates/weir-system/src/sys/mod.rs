//! The few places that speak to the C library and the allocator directly. Everything outside is safe code.
//!
//! The need: there is no other way to configure and question jemalloc, to arm timers on the CPU clocks of the
//! process's threads, to walk a stack inside a signal handler, to see a closed standard output, to give up new privileges, to
//! take descriptors that a service manager passes, to share a page with a file, to ask what may be done with a file without doing
//! it, whether the clock is synchronised or how a signal is handled, to keep a static C library from loading the system's, to tell
//! its unwinder where the program is, or to give back the memory of code that ran.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

pub mod cpu;
pub mod heap;
pub mod shared;
#[cfg(all(target_env = "gnu", target_arch = "x86_64", target_feature = "crt-static"))]
mod unwinding;

/// Raises the limit of open descriptors to the maximum and returns it. The low default exists for programs that use `select`.
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

/// Added to the niceness of the threads behind the workers. A flush makes several of them busy at once, and the kernel takes a core from each
/// for whole ticks.
const NICENESS: i32 = 5;

/// Lets the workers go first where the calling thread and they want one core: flushes can wait, packets cannot.
pub fn let_workers_go_first() {
    // A unit may forbid it. Then they compete as equals.
    let _ = rustix::process::nice(NICENESS);
}

/// Makes a write beyond a file size limit fail like any other write; by default the signal kills the process.
pub fn ignore_file_size_signal() {
    // SAFETY: installing SIG_IGN runs no code of ours in signal context.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// A static C library would load the modules in `/etc/nsswitch.conf`, which are built for the system's own library, and crash if the
/// versions differ. Files and DNS are built in and sufficient for weir's hosts, users and groups.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
pub fn look_names_up_without_modules() {
    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const libc::c_char, service: *const libc::c_char)
        -> libc::c_int;
    }
    for (database, services) in [
        (c"hosts", c"files dns"),
        (c"passwd", c"files"),
        (c"group", c"files"),
    ] {
        // SAFETY: both are C strings of static life, which the function copies from; there is no second thread yet.
        unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
    }
}

/// The system's library needs no change.
#[cfg(not(all(target_env = "gnu", target_feature = "crt-static")))]
pub fn look_names_up_without_modules() {}

/// Whether the parent process wants this one to outlive its terminal, as `nohup` does.
pub fn ignores_hangup() -> bool {
    // SAFETY: all zeros are a valid value of this C struct, and a null pointer for the new action changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGHUP, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Takes ownership of a descriptor that the process was started with. Child processes do not inherit it.
pub fn take_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers alone.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, as the call above has shown, and the parent process passed it for the caller of this function, who takes each
    // number once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// From now on programs that this thread runs cannot gain rights.
pub fn refuse_new_privileges() -> io::Result<()> {
    // SAFETY: takes numbers alone.
    match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes the program's code out of the process's resident memory. A start runs megabytes of code that never run again. What runs again is
/// mapped from the page cache with its first use.
pub fn release_code() -> io::Result<()> {
    let (start, length) = code();
    // SAFETY: these pages are mapped from the file and never written, so dropping them changes nothing that a program can read.
    if unsafe { libc::madvise(start.cast_mut().cast(), length, libc::MADV_DONTNEED) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // The linker may leave a page between two segments unmapped. All others are released.
        error if error.raw_os_error() == Some(libc::ENOMEM) => Ok(()),
        error => Err(error),
    }
}

/// The first byte of the program in memory, and the length up to the end of its code.
fn code() -> (*const u8, usize) {
    unsafe extern "C" {
        // The linker defines both.
        static __executable_start: u8;
        static etext: u8;
    }
    let start = &raw const __executable_start;
    (start, (&raw const etext).addr() - start.addr())
}

/// Whether the wall clock is synchronised, according to the kernel.
pub fn clock_is_synchronised() -> io::Result<bool> {
    // SAFETY: all zeros are a valid value of this record of plain numbers and only query the state; it outlives the call.
    let state = unsafe {
        let mut question: libc::timex = std::mem::zeroed();
        libc::adjtimex(&raw mut question)
    };
    match state {
        -1 => Err(io::Error::last_os_error()),
        state => Ok(state != libc::TIME_ERROR),
    }
}

/// An access to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum May {
    Read,
    Write,
    /// Read a directory and open its files.
    List,
    /// And create and remove files in it.
    Change,
}

/// Whether this process has the access, with its current effective capabilities.
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

/// Whether standard output was closed before the process started.
static OUTPUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// The standard library puts `/dev/null` where a standard stream is closed, before `main`: to know it, the program has to look
/// earlier.
// SAFETY: the loader calls each function of this section once, before `main`, in C's convention. This one makes a system call and
// stores a flag; it needs nothing that is set up later.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: asks about a descriptor by its number, whether it is open or not.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    OUTPUT_WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

/// Makes writes to a standard output that was closed at the start fail like writes to a pipe without reader: their data is lost.
pub fn break_closed_output() -> io::Result<()> {
    if !OUTPUT_WAS_CLOSED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let (_, writer) = io::pipe()?;
    // SAFETY: both numbers are of open descriptors, and nothing owns the second's old file: the standard library refers to it by number.
    match unsafe { libc::dup2(writer.as_raw_fd(), libc::STDOUT_FILENO) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// Pages of files in this process's memory, in KiB.
    fn file_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssFile:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn released_code_leaves_memory_and_runs_again() {
        let (start, length) = code();
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        // A page between two segments may be mapped to nothing.
        let is_read = |at: &usize| {
            let place = (start.addr() + at) as u64;
            memory.read_exact_at(&mut [0], place).is_ok()
        };
        let pages = (0..length).step_by(4096).filter(is_read).count() as u64;
        assert!(pages * 4096 > length as u64 / 10 * 9, "{pages} of {length} bytes");
        let before = file_kib();
        assert!(before >= pages * 4, "{before} KiB of {pages} pages");
        release_code().unwrap();
        // Other tests run and map their code again meanwhile.
        let after = file_kib();
        assert!(after < before / 2, "{before} KiB, then {after}");
    }
}
