/// Turns readings of the wall clock and the monotonic clock into the agent's time, which never runs backwards.
///
/// It follows the wall clock as long as that advances. When the wall clock is set back, time goes on by the monotonic clock,
/// so that buckets keep closing every width and no bucket is opened twice; it meets the wall clock again when that has
/// caught up.
#[derive(Clone, Copy, Debug)]
pub struct AgentClock {
    now_ms: i64,
    monotonic_ns: u64,
}

impl AgentClock {
    /// `wall_ms`: milliseconds since the Unix epoch; `monotonic_ns`: any origin.
    pub fn new(wall_ms: i64, monotonic_ns: u64) -> Self {
        AgentClock {
            now_ms: wall_ms,
            monotonic_ns,
        }
    }

    /// Takes both readings and returns the agent's time in milliseconds since the Unix epoch.
    pub fn advance(&mut self, wall_ms: i64, monotonic_ns: u64) -> i64 {
        let elapsed_ms = (monotonic_ns.saturating_sub(self.monotonic_ns) / 1_000_000) as i64;
        if wall_ms >= self.now_ms {
            self.now_ms = wall_ms;
            self.monotonic_ns = monotonic_ns;
        } else if elapsed_ms > 0 {
            self.now_ms += elapsed_ms;
            // What did not make a whole millisecond counts the next time.
            self.monotonic_ns += elapsed_ms as u64 * 1_000_000;
        }
        self.now_ms
    }

    /// Milliseconds by which the agent's time is ahead of this reading of the wall clock.
    pub fn ahead_ms(&self, wall_ms: i64) -> i64 {
        (self.now_ms - wall_ms).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_wall_clock_forwards() {
        let mut clock = AgentClock::new(1_000, 0);
        assert_eq!(clock.advance(2_000, 1_000_000_000), 2_000);
        assert_eq!(clock.advance(3_600_000, 1_001_000_000), 3_600_000);
    }

    #[test]
    fn goes_on_monotonically_when_the_wall_clock_is_set_back() {
        let mut clock = AgentClock::new(100_000, 0);
        assert_eq!(clock.advance(40_000, 5_000_000_000), 105_000);
        assert_eq!(clock.advance(41_000, 6_000_000_000), 106_000);
        assert_eq!(clock.ahead_ms(41_000), 65_000);
        // A fraction of a millisecond is not lost.
        assert_eq!(clock.advance(41_000, 6_000_600_000), 106_000);
        assert_eq!(clock.advance(41_001, 6_001_200_000), 106_001);
        // The wall clock has caught up.
        assert_eq!(clock.advance(200_000, 7_000_000_000), 200_000);
    }
}
