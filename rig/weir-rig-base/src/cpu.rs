//! CPU affinity of threads.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

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
pub fn allowed() -> Vec<usize> {
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
            let first = allowed()[0];
            pin(&[first]).unwrap();
            assert_eq!(allowed(), [first]);
            assert!(pin(&[usize::MAX]).is_err());
        })
        .join()
        .unwrap();
    }
}
