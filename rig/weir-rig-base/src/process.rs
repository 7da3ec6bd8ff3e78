//! Signals processes, reaps children, and binds threads to processors.

pub use crate::sys::isolate;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::path::Path;

/// Sends a signal to one process (positive) or a process group (negative). Ignores an ended process.
pub fn kill(pid: i32, signal: i32) {
    let (Some(signal), Some(target)) = (Signal::from_named_raw(signal), Pid::from_raw(pid.abs())) else {
        return;
    };
    let _ = if pid < 0 {
        rustix::process::kill_process_group(target, signal)
    } else {
        rustix::process::kill_process(target, signal)
    };
}

/// Reaps an ended child that we inherited, so that it does not stay as a zombie.
pub fn reap(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else {
        return false;
    };
    matches!(
        rustix::process::waitpid(Some(pid), WaitOptions::NOHANG),
        Ok(Some(_))
    )
}

/// Whether a child has ended. Does not reap it.
pub fn has_ended(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else {
        return false;
    };
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(rustix::process::waitid(WaitId::Pid(pid), look), Ok(Some(_)))
}

/// Makes this process the parent of orphaned descendants, instead of init, so that detached targets can be found and ended.
pub fn become_subreaper() {
    // Any process id enables it. If the kernel refuses, init inherits detached children.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Free bytes of the file system that holds `path`.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(path).ok()?;
    Some(found.f_bavail * found.f_frsize)
}

pub(crate) fn set_of(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    set
}

/// Binds the calling thread, and every thread and process that it starts later, to these processors.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    Ok(sched_setaffinity(None, &set_of(cpus))?)
}

/// The processors the calling thread may use.
pub fn allowed_cpus() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => vec![0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_one_processor() {
        std::thread::spawn(|| {
            let first = allowed_cpus()[0];
            pin(&[first]).unwrap();
            assert_eq!(allowed_cpus(), [first]);
            assert!(pin(&[usize::MAX]).is_err());
        })
        .join()
        .unwrap();
    }
}
