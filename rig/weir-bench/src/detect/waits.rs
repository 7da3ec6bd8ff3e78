//! Time that the threads of a program wait for mutexes, for programs that do not report it.
//!
//! `/proc` shows the system call in which a thread waits. Mutexes of glibc and of Rust's library wait in `futex` for the value 2,
//! "locked, and others wait". Parked threads and condition variables wait for other values; a condition variable may have that one
//! by accident, so a wait counts once it has ended, as the wait for a mutex does.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks. A shorter wait is seen as rarely as it is short, so the sum is right.
const LOOK: Duration = Duration::from_millis(1);
/// Value of a mutex while other threads wait for it.
const CONTENDED: u64 = 2;

/// Looks at the threads of a process until stopped; `None` if the kernel does not show them.
pub fn mutexes(pid: i32, window: Duration) -> Option<Duration> {
    let (began, mut last) = (Instant::now(), Instant::now());
    let (mut waits, mut seen) = (Waits::default(), false);
    while began.elapsed() < window {
        thread::sleep(LOOK);
        let now = Instant::now();
        let step = now - last;
        last = now;
        seen |= waits.look(pid, step);
    }
    seen.then_some(waits.ended)
}

/// The system call of each thread, as the kernel prints it.
fn calls(pid: i32) -> impl Iterator<Item = (u64, String)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    threads.flatten().filter_map(|thread| {
        let call = fs::read_to_string(thread.path().join("syscall")).ok()?;
        Some((thread.file_name().to_str()?.parse().ok()?, call))
    })
}

/// The mutex for which a thread waits: number of the system call, address, operation, expected value.
fn waits_for(call: &str) -> Option<u64> {
    let mut words = call.split(' ');
    let number: i64 = words.next()?.parse().ok()?;
    let mut hexadecimal = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (address, operation, value) = (hexadecimal()?, hexadecimal()? as i32, hexadecimal()?);
    let operation = operation & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    let waits = [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET].contains(&operation);
    (number == libc::SYS_futex && waits && value == CONTENDED).then_some(address)
}

#[derive(Default)]
struct Waits {
    /// By thread: the mutex, and for how long.
    open: HashMap<u64, (u64, Duration)>,
    ended: Duration,
}

impl Waits {
    /// One look at the threads of a process, `step` after the last one; whether the kernel shows any.
    fn look(&mut self, pid: i32, step: Duration) -> bool {
        let mut seen = false;
        for (thread, call) in calls(pid) {
            seen = true;
            self.add(thread, waits_for(&call), step);
        }
        seen
    }

    fn add(&mut self, thread: u64, mutex: Option<u64>, step: Duration) {
        if let Some((same, waited)) = self.open.get_mut(&thread)
            && mutex == Some(*same)
        {
            *waited += step;
            return;
        }
        if let Some((_, waited)) = self.open.remove(&thread) {
            self.ended += waited;
        }
        if let Some(mutex) = mutex {
            self.open.insert(thread, (mutex, step));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, mpsc};

    #[test]
    fn a_wait_counts_once_it_has_ended() {
        let mut waits = Waits::default();
        let ms = Duration::from_millis;
        waits.add(1, Some(16), ms(1));
        waits.add(1, Some(16), ms(2));
        waits.add(2, Some(16), ms(9));
        assert_eq!(waits.ended, ms(0));
        waits.add(1, Some(32), ms(1));
        assert_eq!(waits.ended, ms(3));
        waits.add(1, None, ms(1));
        assert_eq!(waits.ended, ms(4));
    }

    #[test]
    fn only_contended_mutexes_are_waited_for() {
        let futex = libc::SYS_futex;
        let call = |rest: &str| waits_for(&format!("{futex} {rest} 0x0 0x0 0x0 0x7ffe 0x7f00"));
        assert_eq!(call("0x10 0x89 0x2"), Some(16), "Rust");
        assert_eq!(call("0x10 0x80 0x2"), Some(16), "glibc");
        assert_eq!(call("0x10 0x89 0xffffffff"), None, "parked");
        assert_eq!(call("0x10 0x81 0x2"), None, "waking others");
        assert_eq!(waits_for("0 0x10 0x89 0x2"), None, "read");
        assert_eq!(waits_for("running\n"), None);
    }

    /// A thread of this process waits for a mutex that this one holds until two looks have seen it wait.
    #[test]
    fn the_kernel_shows_waiting_threads() {
        let (mutex, step) = (Mutex::new(()), Duration::from_millis(7));
        let address = std::ptr::from_ref(&mutex) as u64;
        let pid = std::process::id() as i32;
        let mut waits = Waits::default();
        if !waits.look(pid, step) {
            eprintln!("skipped: the kernel does not show system calls of threads");
            return;
        }
        let waited = |waits: &Waits| {
            let inside = |open: &u64| (address..address + size_of::<Mutex<()>>() as u64).contains(open);
            waits
                .open
                .values()
                .find(|(open, _)| inside(open))
                .map(|(_, waited)| *waited)
        };
        let began = Instant::now();
        thread::scope(|scope| {
            let (end, ended) = mpsc::channel::<()>();
            let held = mutex.lock().unwrap();
            scope.spawn({
                let mutex = &mutex;
                // The thread stays until it was seen not to wait: one that has ended has no last look.
                move || (drop(mutex.lock().unwrap()), ended.recv())
            });
            while waited(&waits).is_none_or(|waited| waited < 2 * step) {
                assert!(
                    began.elapsed() < Duration::from_secs(60),
                    "the waiter is not seen"
                );
                waits.look(pid, step);
                thread::sleep(LOOK);
            }
            let before = waits.ended;
            drop(held);
            while waited(&waits).is_some() {
                thread::sleep(LOOK);
                waits.look(pid, step);
            }
            assert!(waits.ended >= before + 2 * step, "{:?}", waits.ended);
            drop(end);
        });
    }
}
