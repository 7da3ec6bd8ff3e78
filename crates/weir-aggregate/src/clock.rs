/// Turns readings of the wall clock and the monotonic clock into the agent's time.
///
/// It follows the wall clock while that advances. If the wall clock is set back a little, the agent's time follows the monotonic clock
/// until the wall clock has caught up, so that buckets keep closing and no bucket is opened twice. If the wall clock is set back further,
/// the earlier time was wrong: the agent's time is set back too, once.
#[derive(Clone, Copy, Debug)]
pub struct AgentClock {
    now_ms: i64,
    monotonic_ns: u64,
    ahead_max_ms: i64,
}

/// The agent's time after a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockReading {
    /// Not before the previous reading.
    Forward(i64),
    /// The wall clock was set back by more than the bound, and so is the agent's time.
    SetBack(i64),
}

impl AgentClock {
    /// `wall_ms`: milliseconds since the Unix epoch; `monotonic_ns`: any origin; `ahead_max_ms`: maximum lead of the agent's time over the
    /// wall clock.
    pub fn new(wall_ms: i64, monotonic_ns: u64, ahead_max_ms: i64) -> Self {
        AgentClock {
            now_ms: wall_ms,
            monotonic_ns,
            ahead_max_ms,
        }
    }

    /// Takes both readings and returns the agent's time in milliseconds since the Unix epoch.
    pub fn advance(&mut self, wall_ms: i64, monotonic_ns: u64) -> ClockReading {
        let elapsed_ms = (monotonic_ns.saturating_sub(self.monotonic_ns) / 1_000_000) as i64;
        let set_back = self.now_ms.saturating_add(elapsed_ms).saturating_sub(wall_ms) > self.ahead_max_ms;
        if wall_ms >= self.now_ms || set_back {
            self.now_ms = wall_ms;
            self.monotonic_ns = monotonic_ns;
        } else if elapsed_ms > 0 {
            self.now_ms += elapsed_ms;
            // The fraction of a millisecond counts with the next reading.
            self.monotonic_ns += elapsed_ms as u64 * 1_000_000;
        }
        if set_back {
            ClockReading::SetBack(self.now_ms)
        } else {
            ClockReading::Forward(self.now_ms)
        }
    }

    /// Milliseconds by which the agent's time is ahead of this reading of the wall clock.
    pub fn ahead_ms(&self, wall_ms: i64) -> i64 {
        (self.now_ms - wall_ms).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::ClockReading::{Forward, SetBack};
    use super::*;

    #[test]
    fn follows_the_wall_clock_forwards() {
        let mut clock = AgentClock::new(1_000, 0, 30_000);
        assert_eq!(clock.advance(2_000, 1_000_000_000), Forward(2_000));
        assert_eq!(clock.advance(3_600_000, 1_001_000_000), Forward(3_600_000));
    }

    #[test]
    fn continues_monotonically_when_the_wall_clock_is_set_back() {
        let mut clock = AgentClock::new(100_000, 0, 70_000);
        assert_eq!(clock.advance(40_000, 5_000_000_000), Forward(105_000));
        assert_eq!(clock.advance(41_000, 6_000_000_000), Forward(106_000));
        assert_eq!(clock.ahead_ms(41_000), 65_000);
        // Fractions of a millisecond are kept.
        assert_eq!(clock.advance(41_000, 6_000_600_000), Forward(106_000));
        assert_eq!(clock.advance(41_001, 6_001_200_000), Forward(106_001));
        // The wall clock has caught up.
        assert_eq!(clock.advance(200_000, 7_000_000_000), Forward(200_000));
    }

    /// One wrong step forward once moved all later timestamps ahead until a restart.
    #[test]
    fn jumps_back_once_when_the_wall_clock_is_set_back_by_more_than_the_bound() {
        const YEARS: i64 = 315_360_000_000;
        let mut clock = AgentClock::new(100_000, 0, 30_000);
        assert_eq!(
            clock.advance(100_000 + YEARS, 1_000_000_000),
            Forward(100_000 + YEARS)
        );
        assert_eq!(clock.advance(104_000, 4_000_000_000), SetBack(104_000));
        assert_eq!(clock.ahead_ms(104_000), 0);
        assert_eq!(clock.advance(105_000, 5_000_000_000), Forward(105_000));
        // At the bound time continues; one millisecond beyond it is set back.
        assert_eq!(clock.advance(76_000, 6_000_000_000), Forward(106_000));
        assert_eq!(clock.ahead_ms(76_000), 30_000);
        assert_eq!(clock.advance(76_999, 7_000_000_000), SetBack(76_999));
    }
}
