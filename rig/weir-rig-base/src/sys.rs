//! System calls that neither the standard library nor `rustix` wraps. The only module of this crate with `unsafe`.
#![allow(unsafe_code)]

use crate::process;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// The clock of a process's CPU time, in nanoseconds.
pub fn process_clock(pid: i32) -> Option<u64> {
    // Computed from the pid as `clock_getcpuclockid` of the C library does.
    let clock = (!pid << 3) | 2;
    // SAFETY: a zeroed timespec is valid, and the kernel writes only into it.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        (libc::clock_gettime(clock, &mut time) == 0)
            .then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

/// User and system CPU time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub user: Duration,
    pub system: Duration,
}

/// CPU time of this process so far, ended threads included.
pub fn usage_of_process() -> Usage {
    usage(libc::RUSAGE_SELF)
}

/// CPU time of the calling thread so far.
pub fn usage_of_thread() -> Usage {
    usage(libc::RUSAGE_THREAD)
}

fn usage(who: libc::c_int) -> Usage {
    // SAFETY: rusage is plain data, all zeroes is a valid value, and the pointer is valid for the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &mut usage);
        usage
    };
    let duration = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Usage {
        user: duration(usage.ru_utime),
        system: duration(usage.ru_stime),
    }
}

/// Makes the child run in its own session, on the given processors, in a control group if there is one, and die with this process.
pub fn isolate(command: &mut Command, cpus: Option<&[usize]>, cgroup_procs: Option<&Path>) -> io::Result<()> {
    let set = cpus.map(process::set_of);
    let cgroup = cgroup_procs
        .map(|path| CString::new(path.as_os_str().as_encoded_bytes()))
        .transpose()?;
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec the closure only makes system calls; its memory was allocated before.
    unsafe { command.pre_exec(move || enter(parent, set.as_ref(), cgroup.as_deref())) };
    Ok(())
}

fn enter(parent: Pid, cpus: Option<&CpuSet>, cgroup_procs: Option<&CStr>) -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the line above took effect.
    if rustix::process::getppid() != Some(parent) {
        return Err(Errno::SRCH.into());
    }
    if let Some(cpus) = cpus {
        sched_setaffinity(None, cpus)?;
    }
    if let Some(path) = cgroup_procs {
        let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        // Writing 0 moves the writer itself.
        rustix::io::write(&file, b"0")?;
    }
    Ok(())
}

/// Set by the first interrupt. Every wait checks it.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn record_signal(signal: libc::c_int) {
    // A second signal means "now": the default action ends the process, and the kernel ends the target with it (the parent-death signal of
    // `isolate`).
    if INTERRUPTED.swap(true, Ordering::Relaxed) {
        // SAFETY: `signal` and `raise` are async-signal-safe and take plain integers.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP only set a flag.
pub fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler touches atomics and async-signal-safe functions only.
        unsafe { libc::signal(signal, record_signal as *const () as libc::sighandler_t) };
    }
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

fn termination_set() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data initialised by sigemptyset before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        set
    }
}

/// Blocks SIGTERM and SIGINT for `wait_termination`. Call before the first thread starts: threads inherit the mask.
pub fn block_termination() -> io::Result<()> {
    let set = termination_set();
    // SAFETY: both pointers are valid or null for the call.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Waits for SIGTERM or SIGINT. Returns false on timeout.
pub fn wait_termination(timeout: Duration) -> bool {
    let set = termination_set();
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the pointers are valid or null for the call.
    unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &timeout) > 0 }
}

/// Opens a counter of a thread, and of everything that it starts from now on, in user space only.
pub fn open_counter(event: (u32, u64), thread: i32) -> io::Result<OwnedFd> {
    // `struct perf_event_attr` of linux/perf_event.h in its first version, as eight words; the libc crate does not have it.
    const SIZE: u64 = 64;
    const INHERIT: u64 = 1 << 1;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    const TIMES_ENABLED_AND_RUNNING: u64 = 3;
    const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
    let (kind, config) = event;
    let flags = INHERIT | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR;
    let attributes: [u64; 8] = [
        u64::from(kind) | SIZE << 32,
        config,
        0,
        0,
        TIMES_ENABLED_AND_RUNNING,
        flags,
        0,
        0,
    ];
    // SAFETY: the pointer is valid for the call, and its size is in the structure; the other arguments are plain numbers.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            thread,
            -1 as libc::c_int,
            -1 as libc::c_int,
            CLOSE_ON_EXEC,
        )
    };
    let fd = check(fd as libc::c_int)?;
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn switch_on(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the pointer and length describe `on`, valid for the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// Makes the kernel report the number of drops and, on request, the sender with each datagram.
pub fn enable_counters(socket: impl AsFd, credentials: bool) -> io::Result<()> {
    switch_on(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL)?;
    if credentials {
        rustix::net::sockopt::set_socket_passcred(socket, true)?;
    }
    Ok(())
}

/// Datagrams that the kernel dropped at this socket for lack of room, since it was opened.
pub fn drops(socket: impl AsFd) -> io::Result<u64> {
    // SO_MEMINFO and the index of the drop counter in it, from linux/sock_diag.h; the libc crate has neither.
    const SO_MEMINFO: libc::c_int = 55;
    const SK_MEMINFO_DROPS: usize = 8;
    let mut info = [0u32; 9];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: both pointers are valid for the call and `length` says how much room there is.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    check(result)?;
    Ok(u64::from(info[SK_MEMINFO_DROPS]))
}
