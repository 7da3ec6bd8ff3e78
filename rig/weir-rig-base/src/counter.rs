//! Counters of the processor: instructions that programs execute in user space.

use crate::sys;
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

/// Kind and number of an event of linux/perf_event.h.
type Event = (u32, u64);
const INSTRUCTIONS: Event = (0, 1);

/// Threads may start while the counters are opened.
const TRIES: usize = 20;

/// Why instructions are not counted.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    #[error(
        "this machine does not show its counters of instructions; most virtual machines do not, and a host can (for KVM, the option pmu)"
    )]
    NoCounter,
    #[error(
        "the kernel refuses to count instructions: kernel.perf_event_paranoid is {level}, and 2 or less is needed; in a container, \
         perf_event_open must be allowed; for another user's program, CAP_PERFMON is needed"
    )]
    Refused { level: String },
    #[error("instructions cannot be counted: {0}")]
    Other(io::Error),
}

impl CounterError {
    fn of(error: io::Error) -> CounterError {
        match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV) => CounterError::NoCounter,
            Some(Errno::ACCESS | Errno::PERM | Errno::NOSYS) => {
                let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
                CounterError::Refused {
                    level: level.trim().to_owned(),
                }
            }
            _ => CounterError::Other(error),
        }
    }
}

/// A running count of some processes and of everything that they start.
#[derive(Debug)]
pub struct Counter(Vec<OwnedFd>);

impl Counter {
    /// Counts instructions of these processes in user space from now on.
    pub fn instructions(pids: &[i32]) -> Result<Counter, CounterError> {
        Self::of(INSTRUCTIONS, pids)
    }

    /// Whether this machine counts instructions, for programs of this user.
    pub fn check() -> Result<(), CounterError> {
        Self::instructions(&[std::process::id() as i32]).map(drop)
    }

    fn of(event: Event, pids: &[i32]) -> Result<Counter, CounterError> {
        // A thread that starts meanwhile is counted by the counter of its parent or needs one of its own, and nothing says which.
        for _ in 0..TRIES {
            let before = threads(pids);
            let counter = Self::open(event, &before)?;
            if threads(pids).iter().all(|thread| before.contains(thread)) {
                return Ok(counter);
            }
        }
        Err(CounterError::Other(io::Error::other(
            "threads of the program start faster than counters are opened",
        )))
    }

    fn open(event: Event, threads: &[i32]) -> Result<Counter, CounterError> {
        let mut counters = Vec::new();
        for thread in threads {
            match sys::open_counter(event, *thread) {
                Ok(counter) => counters.push(counter),
                // It has ended.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {}
                Err(error) => return Err(CounterError::of(error)),
            }
        }
        Ok(Counter(counters))
    }

    /// The count so far. If the kernel had to share the counter with other programs, it is extrapolated from the time of its own.
    pub fn read(&self) -> io::Result<f64> {
        self.0.iter().map(read).sum()
    }
}

fn read(counter: &OwnedFd) -> io::Result<f64> {
    let mut bytes = [0; 24];
    rustix::io::read(counter, &mut bytes)?;
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let (count, enabled, running) = (word(0), word(8), word(16));
    Ok(match running {
        0 => 0.0,
        running => count as f64 * (enabled as f64 / running as f64),
    })
}

fn threads(pids: &[i32]) -> Vec<i32> {
    let tasks = pids
        .iter()
        .filter_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).ok());
    tasks
        .flatten()
        .filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};

    /// The kernel's own clock of tasks, which every kernel with counters has.
    const TASK_CLOCK: Event = (1, 1);

    /// Works after it got a line, in a child of its own too, then says so and waits.
    const WORK: &str = "read start; work='i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; eval \"$work\"; sh -c \"$work\"; echo done; read end";

    /// The time that the shell used itself, and the count of it and its child; `None` where the kernel refuses to count.
    fn work_and_count(shell: &mut Child) -> Option<[f64; 2]> {
        let pid = shell.id() as i32;
        let counter = match Counter::of(TASK_CLOCK, &[pid]) {
            Err(CounterError::Refused { .. }) => return None,
            other => other.unwrap(),
        };
        let before = clock::cpu_time_ns(pid).unwrap() as f64;
        shell.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(shell.stdout.as_mut().unwrap());
        out.read_line(&mut line).unwrap();
        let own = clock::cpu_time_ns(pid).unwrap() as f64 - before;
        Some([own, counter.read().unwrap()])
    }

    #[test]
    fn a_counter_covers_a_running_program_and_what_it_starts() {
        let mut shell = Command::new("sh")
            .args(["-c", WORK])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let seen = work_and_count(&mut shell);
        shell.stdin.take();
        shell.wait().unwrap();
        // Its child does the same work, so the count is about twice its own time.
        if let Some([own, counted]) = seen {
            assert!(own > 0.0 && counted > 1.2 * own, "{counted} of {own}");
        }
    }

    #[test]
    fn a_missing_counter_is_explained() {
        let text = |errno: Errno| CounterError::of(errno.into()).to_string();
        assert!(text(Errno::NOENT).contains("virtual machines"));
        assert!(text(Errno::ACCESS).contains("perf_event_paranoid"));
        assert!(text(Errno::IO).contains("cannot be counted"));
        match Counter::check() {
            Ok(()) | Err(CounterError::NoCounter | CounterError::Refused { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
