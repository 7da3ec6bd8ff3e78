//! Clocks and CPU times, in nanoseconds or as durations.

use crate::sys;
pub use crate::sys::{Usage, usage_of_process, usage_of_thread};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::{Duration, Instant};

fn nanos(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The monotonic clock.
pub fn monotonic_ns() -> u64 {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// The wall clock, since 1970.
pub fn unix_ns() -> u64 {
    nanos(clock_gettime(ClockId::Realtime))
}

/// CPU time of this process.
pub fn own_cpu_ns() -> u64 {
    nanos(clock_gettime(ClockId::ProcessCPUTime))
}

/// CPU time of the calling thread.
pub fn thread_cpu_ns() -> u64 {
    nanos(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time of a process, including its ended threads. `None` if it has ended.
pub fn cpu_time_ns(pid: i32) -> Option<u64> {
    sys::process_clock(pid)
}

/// Clock ticks per second in `/proc`.
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

/// Civil date and time of a second since 1970: year, month, day, hour, minute, second.
pub fn civil(second: u64) -> (u64, u64, u64, u64, u64, u64) {
    let days = second / 86_400;
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let rest = second % 86_400;
    (year, month, day, rest / 3600, rest / 60 % 60, rest % 60)
}

/// Sleeps until a time after `start`, without the drift of relative sleeps.
pub fn sleep_until(start: Instant, deadline: Duration) {
    std::thread::sleep(deadline.saturating_sub(start.elapsed()));
}

/// Makes timers of the calling thread fire on time instead of up to 50 us late.
pub fn precise_timers() {
    // If the kernel refuses, the timers stay as they are.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1_000));
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
        let usage = usage_of_process();
        assert!(
            usage.user + usage.system >= Duration::from_millis(20),
            "{usage:?}"
        );
    }
}
