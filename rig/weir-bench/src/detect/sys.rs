//! System calls that the standard library does not wrap: affinity, CPU clocks of other processes, signals, process
//! groups. This is the only module of the detector with `unsafe` code; each call is a plain wrapper.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Set by the first interrupt; everything that waits looks at it.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note_signal(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::Relaxed);
    // A second signal means "now": the default action ends the process, and the kernel ends the target with it
    // (PR_SET_PDEATHSIG).
    if INTERRUPTED.swap(true, Ordering::Relaxed) {
        // SAFETY: `signal` and `raise` are async-signal-safe and take plain integers.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP only set a flag.
pub fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler touches atomics and async-signal-safe functions only.
        unsafe { libc::signal(signal, note_signal as *const () as libc::sighandler_t) };
    }
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Children of targets that detach become ours instead of init's, so that they can be found and ended.
pub fn become_subreaper() {
    // SAFETY: takes plain integers and changes a flag of this process.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// Wall clock, nanoseconds since 1970.
pub fn unix_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME).unwrap_or(0)
}

fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    // SAFETY: a zeroed timespec is valid, and the kernel writes only into it.
    unsafe {
        let mut t: libc::timespec = std::mem::zeroed();
        (libc::clock_gettime(clock, &mut t) == 0)
            .then_some(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
    }
}

/// CPU time that a process has used with all its threads, the ended ones included, in nanoseconds. `None` when it is gone.
pub fn cpu_time_ns(pid: i32) -> Option<u64> {
    // The clock id of a process follows from its pid; `clock_getcpuclockid` of the C library computes the same.
    clock_ns((!pid << 3) | 2)
}

/// CPU time of this process.
pub fn own_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

/// CPU time of the calling thread.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

pub fn ticks_per_second() -> u64 {
    // SAFETY: takes a plain integer.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64
}

/// Sends a signal to one process (positive) or a process group (negative). An ended process is no error.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: takes plain integers; the callers pass only processes that they started.
    unsafe { libc::kill(pid, signal) };
}

/// Collects ended children that were handed to us, so that they do not stay as zombies.
pub fn reap(pid: i32) -> bool {
    // SAFETY: a null status pointer is allowed.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) == pid }
}

/// Pins the calling thread (and what it starts later) to the given CPUs.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    let set = cpu_set(cpus);
    // SAFETY: the set is fully initialised and its size is given.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// CPUs this process may use.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: a zeroed set is valid; the kernel writes at most its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return vec![0];
        }
        set
    };
    // SAFETY: indices stay below the size of the set.
    (0..libc::CPU_SETSIZE as usize)
        .filter(|i| unsafe { libc::CPU_ISSET(*i, &set) })
        .collect()
}

fn cpu_set(cpus: &[usize]) -> libc::cpu_set_t {
    // SAFETY: a zeroed set is valid, and CPU_SET is bounds-checked by the filter.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for cpu in cpus.iter().filter(|c| **c < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(*cpu, &mut set);
        }
        set
    }
}

/// Arranges that the child runs in its own session, on the given CPUs, inside a cgroup if there is one, and dies when
/// this process dies.
pub fn isolate(command: &mut Command, cpus: Option<&[usize]>, cgroup_procs: Option<&Path>) -> io::Result<()> {
    let set = cpus.map(cpu_set);
    let cgroup = match cgroup_procs {
        Some(path) => Some(CString::new(path.as_os_str().as_encoded_bytes()).map_err(io::Error::other)?),
        None => None,
    };
    let parent = std::process::id() as i32;
    // SAFETY: between fork and exec the closure makes system calls only; what it needs was allocated before.
    unsafe {
        command.pre_exec(move || {
            if libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            // The parent may have died before the line above took effect.
            if libc::getppid() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            if let Some(set) = &set
                && libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) != 0
            {
                return Err(io::Error::last_os_error());
            }
            if let Some(path) = &cgroup {
                let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                if fd < 0 {
                    return Err(io::Error::last_os_error());
                }
                // Writing 0 moves the writer itself.
                let written = libc::write(fd, c"0".as_ptr().cast(), 1);
                libc::close(fd);
                if written != 1 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    Ok(())
}

/// Sets SO_RCVBUF; the kernel doubles it and enforces its own bounds.
pub fn set_receive_buffer(socket: &std::net::UdpSocket, bytes: usize) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let value = bytes as libc::c_int;
    // SAFETY: the descriptor is open, and the kernel reads one integer of the given size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Free bytes of the file system that holds `path`.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_encoded_bytes()).ok()?;
    // SAFETY: the path is terminated, and the kernel writes only into the zeroed struct.
    unsafe {
        let mut s: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &mut s) == 0).then(|| s.f_bavail * s.f_frsize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_clock_of_a_process_counts_threads_that_ended() {
        let before = cpu_time_ns(std::process::id() as i32).unwrap();
        std::thread::spawn(|| {
            let start = thread_cpu_ns();
            while thread_cpu_ns() - start < 20_000_000 {}
        })
        .join()
        .unwrap();
        let after = cpu_time_ns(std::process::id() as i32).unwrap();
        assert!(after - before >= 20_000_000, "{}", after - before);
        assert_eq!(cpu_time_ns(i32::MAX / 16), None);
    }
}
