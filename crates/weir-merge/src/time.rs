//! The log's clock. It may step in either direction, and a step must not outlast the clock that caused it.

/// From this difference on, milliseconds, the clock has stepped: brokers' clocks differ by less, and so do the times of two reads.
const STEP: i64 = 10_000;

/// The log's clock, as far as messages and readings of it tell. All times are milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogTime {
    now: Option<i64>,
    /// The owner's monotonic clock.
    monotonic: i64,
    /// The last moment at which everything in the log had been read, by both clocks.
    current: Option<(i64, i64)>,
    /// Of the newest message since then.
    newest: Option<i64>,
}

impl LogTime {
    /// Unix milliseconds; `None` before the first message.
    pub fn now(&self) -> Option<i64> {
        self.now
    }

    /// The owner's monotonic clock when the next messages were read.
    pub fn hear(&mut self, monotonic: i64) {
        self.monotonic = self.monotonic.max(monotonic);
    }

    /// The latest that the log's clock can be, if it runs as ours.
    fn latest(&self) -> Option<i64> {
        let (now, at) = self.current?;
        Some(now.saturating_add(self.monotonic - at))
    }

    /// Follows the stamp of a message. Returns the step of the clock before it, or zero.
    pub fn message(&mut self, stamp: i64) -> i64 {
        self.newest = Some(self.newest.map_or(stamp, |newest| newest.max(stamp)));
        self.follow(stamp)
    }

    /// All messages in the log have been read. `clock`: the log's clock, if it can be read; otherwise messages and the elapsed time tell it.
    pub fn at_end(&mut self, clock: Option<i64>) -> i64 {
        let elapsed = self.current.map_or(0, |(_, at)| self.monotonic - at);
        let latest = self.latest().or(self.now);
        // A message since the last look was stored after it.
        let told = match (latest, self.newest) {
            (Some(latest), Some(newest)) => Some(latest.clamp(newest, newest.saturating_add(elapsed.max(0)))),
            (latest, _) => latest,
        };
        let Some(clock) = clock.or(told) else { return 0 };
        let step = self.follow(clock);
        self.current = Some((clock, self.monotonic));
        self.newest = None;
        step
    }

    fn follow(&mut self, clock: i64) -> i64 {
        let Some(now) = self.now else {
            self.now = Some(clock);
            return 0;
        };
        let latest = self.latest();
        let step = match latest {
            _ if clock < now.saturating_sub(STEP) => clock.saturating_sub(now),
            Some(latest) if clock > latest.saturating_add(STEP) => clock.saturating_sub(latest),
            _ => 0,
        };
        if step != 0
            && let Some((current, _)) = &mut self.current
        {
            *current = current.saturating_add(step);
        }
        self.now = Some(now.saturating_add(step.min(0)).max(clock));
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_told_from_silence_and_from_a_delay() {
        let mut time = LogTime::default();
        // A backlog: its stamps may be any time apart.
        assert_eq!(time.message(1_000_000), 0);
        assert_eq!(time.message(5_000_000), 0);
        assert_eq!(time.message(4_995_000), 0, "another broker's clock");
        assert_eq!(time.now(), Some(5_000_000));
        assert_eq!(time.at_end(None), 0);
        // An idle minute.
        time.hear(60_000);
        assert_eq!(time.at_end(None), 0);
        assert_eq!(time.now(), Some(5_060_000));
        time.hear(61_000);
        assert_eq!(time.message(5_060_500), 0);
        // An hour ahead, and back.
        time.hear(62_000);
        assert_eq!(time.message(8_662_000), 3_600_000);
        assert_eq!(time.at_end(None), 0);
        assert_eq!(time.now(), Some(8_662_000));
        time.hear(64_000);
        assert_eq!(time.message(5_063_500), -3_598_500);
        time.hear(65_000);
        assert_eq!(time.at_end(None), 0);
        // It was stored one to three seconds ago.
        assert!((5_064_500..=5_066_500).contains(&time.now().unwrap()), "{time:?}");
        // The same by readings of the clock.
        time.hear(66_000);
        assert_eq!(time.at_end(Some(5_066_000)), 0);
        time.hear(67_000);
        assert_eq!(time.at_end(Some(8_667_000)), 3_600_000);
        time.hear(68_000);
        assert_eq!(time.at_end(Some(5_068_000)), -3_599_000);
        assert_eq!(time.now(), Some(5_068_000));
    }

    /// Clocks drift: what messages say counts.
    #[test]
    fn a_drift_of_the_own_clock_does_not_add_up() {
        let mut time = LogTime::default();
        time.message(0);
        time.at_end(None);
        for second in 1..1_000_000_i64 {
            time.hear(second * 1001);
            assert_eq!(time.message(second * 1000 - 1), 0);
            assert_eq!(time.at_end(None), 0);
        }
        assert!(time.now().unwrap() <= 1_000_001_000, "{time:?}");
    }
}
