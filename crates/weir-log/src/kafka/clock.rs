//! The brokers' clock, derived from their timestamps.

use std::time::{Duration, Instant};

/// Minimum time that a sample counts. Clocks drift by about 50 us per second.
const WINDOW: Duration = Duration::from_secs(300);

/// The brokers' time, or slightly less, because the transit time of messages is unknown.
#[derive(Debug)]
pub(crate) struct BrokerClock {
    started: Instant,
    /// Minimum lead of our clock over a timestamp, in this window and in the previous one, in milliseconds.
    least: Option<i64>,
    least_before: Option<i64>,
    window_began: Duration,
}

impl BrokerClock {
    pub fn new() -> Self {
        BrokerClock {
            started: Instant::now(),
            least: None,
            least_before: None,
            window_began: Duration::ZERO,
        }
    }

    /// Records a broker's timestamp in Unix milliseconds that has just arrived.
    pub fn saw(&mut self, stamp: i64) {
        self.saw_at(self.started.elapsed(), stamp);
    }

    /// Unix milliseconds. `None`: no timestamp is recent enough.
    pub fn now(&mut self) -> Option<i64> {
        self.now_at(self.started.elapsed())
    }

    fn saw_at(&mut self, own: Duration, stamp: i64) {
        self.turn(own);
        let ahead = own.as_millis() as i64 - stamp;
        self.least = Some(self.least.map_or(ahead, |least| least.min(ahead)));
    }

    fn now_at(&mut self, own: Duration) -> Option<i64> {
        self.turn(own);
        let least = self.least.into_iter().chain(self.least_before).min()?;
        Some(own.as_millis() as i64 - least)
    }

    fn turn(&mut self, own: Duration) {
        let windows = (own - self.window_began).as_millis() / WINDOW.as_millis();
        if windows == 0 {
            return;
        }
        self.least_before = self.least.take().filter(|_| windows == 1);
        self.window_began = own;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_delay_of_ten_minutes_counts() {
        let mut clock = BrokerClock::new();
        let seconds = Duration::from_secs;
        assert_eq!(clock.now_at(seconds(1)), None);
        // Timestamps read an hour late, then 20 ms, then 7 ms.
        for (own, stamp, now) in [
            (1_000, 5_000_000, 5_000_000),
            (2_000, 8_600_980, 8_600_980),
            (3_000, 8_601_993, 8_601_993),
            (4_000, 8_600_000, 8_602_993),
        ] {
            let own = Duration::from_millis(own);
            clock.saw_at(own, stamp);
            assert_eq!(clock.now_at(own), Some(now));
        }
        assert_eq!(clock.now_at(seconds(304)), Some(8_902_993));
        // Our clock was set back by 100 ms: old samples expire.
        clock.saw_at(seconds(305), 8_904_093);
        assert_eq!(clock.now_at(seconds(305)), Some(8_904_093));
        assert_eq!(clock.now_at(seconds(650)), Some(9_249_093));
        assert_eq!(clock.now_at(seconds(2000)), None);
    }
}
