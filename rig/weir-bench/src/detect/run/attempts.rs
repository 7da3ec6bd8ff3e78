//! Decides about further attempts: of one pair, of pairs that replace failed ones, and when to say why nothing succeeds. No clock, no files.

use crate::detect::values::Measured;
use std::time::{Duration, Instant};

/// Attempts per pair: the first and two more at once. A pair that the machine disturbed each time gets as many again at the end, because a
/// shortage of CPU time lasts for minutes, and as many again whenever the run is resumed.
pub const ATTEMPTS: usize = 3;

/// Every pair has its turn before a disturbed one gets another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    First,
    Again,
}

/// The state of a pair.
#[derive(Debug, Clone, Copy, Default)]
pub struct PairAttempts {
    pub attempts: usize,
    /// Attempts before the run was resumed.
    pub earlier: usize,
    /// Attempts that were invalid for reasons that waiting does not change.
    invalid: usize,
    pub valid: bool,
}

impl PairAttempts {
    pub fn add(&mut self, arms: &[Measured; 2]) {
        self.attempts += 1;
        self.invalid += usize::from(arms.iter().any(|m| !m.invalid.is_empty()));
        self.valid |= arms.iter().all(Measured::is_valid);
    }

    /// Maximum attempts by the end of a round.
    pub fn attempts_max(&self, round: Round) -> usize {
        match round {
            Round::First => ATTEMPTS,
            Round::Again => (2 * ATTEMPTS).max(self.earlier + ATTEMPTS),
        }
    }

    /// Waiting changes nothing about this pair.
    pub fn has_failed(&self) -> bool {
        !self.valid && self.invalid >= ATTEMPTS
    }

    pub fn is_over(&self, round: Round) -> bool {
        self.valid || self.attempts >= self.attempts_max(round) || self.has_failed()
    }
}

/// Counts the pairs of one experiment that are over. A failed pair is replaced by one at the end of the plan: one process that died, or one burst
/// of lost datagrams, must not cost the other pairs. But an experiment that cannot succeed must end.
#[derive(Debug, Clone, Copy, Default)]
pub struct PairTally {
    valid: usize,
    failed: usize,
    /// Since the last valid pair.
    failed_in_a_row: usize,
}

impl PairTally {
    /// A pair is over. Pairs of before a resumption do not count as a row: somebody may have mended what failed. `silent`: nothing has
    /// succeeded for so long that the reasons were printed; then the first failed pair is enough.
    pub fn add(&mut self, pair: PairAttempts, silent: bool) {
        if pair.valid {
            self.valid += 1;
            self.failed_in_a_row = 0;
        } else if pair.has_failed() {
            self.failed += 1;
            self.failed_in_a_row += if silent && self.valid == 0 { 2 } else { 1 };
        }
    }

    pub fn forget_the_row(&mut self) {
        self.failed_in_a_row = 0;
    }

    /// Pairs that may be replaced: a quarter of the plan, at least two.
    pub fn replaceable(planned: usize) -> usize {
        (planned / 4).max(2)
    }

    pub fn replaced(&self, planned: usize) -> usize {
        self.failed.min(Self::replaceable(planned))
    }

    pub fn is_hopeless(&self, planned: usize) -> bool {
        let most_in_a_row = if self.valid == 0 { 2 } else { 3 };
        self.failed_in_a_row >= most_in_a_row || self.failed > Self::replaceable(planned)
    }
}

/// A run without a valid pair for this long says why, and again each time as much has passed.
const SILENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Silence {
    /// The last valid pair, or the start.
    last_valid: Instant,
    said: Instant,
}

impl Silence {
    pub fn new(now: Instant) -> Self {
        Self {
            last_valid: now,
            said: now,
        }
    }

    pub fn end(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    pub fn is_long(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_valid) >= SILENCE
    }

    /// The time without a valid pair, if it is time to speak.
    pub fn is_too_long(&mut self, now: Instant) -> Option<Duration> {
        let since = now.saturating_duration_since(self.said.max(self.last_valid));
        (since >= SILENCE).then(|| {
            self.said = now;
            now.saturating_duration_since(self.last_valid)
        })
    }
}

/// Why there is no valid pair, and the flag that accepts it. `busiest`: other programs with their shares of a core.
pub fn explanation(
    reasons: &[String],
    is_disturbed: bool,
    busiest: &[(String, f64)],
    busy_accepted: bool,
) -> String {
    let mut text = reasons.join("; ");
    if !is_disturbed {
        return text;
    }
    let programs = busiest
        .iter()
        .map(|(name, share)| format!("{name} {:.0} %", 100.0 * share));
    let programs: Vec<String> = programs.collect();
    if !programs.is_empty() {
        text.push_str(&format!("; the busiest other programs: {}", programs.join(", ")));
    }
    if !busy_accepted {
        text.push_str(
            "; --accept-busy measures beside them: intervals become wider, and a regression is measured a second time before it counts",
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(invalid: bool, disturbed: bool) -> [Measured; 2] {
        let why = |yes: bool| yes.then(|| "why".to_owned()).into_iter().collect();
        let bad = Measured {
            invalid: why(invalid),
            disturbed: why(disturbed),
            ..Measured::default()
        };
        [Measured::default(), bad]
    }

    /// The pair after these attempts: `v`alid, `i`nvalid, `d`isturbed.
    fn pair(attempts: &str) -> PairAttempts {
        let mut pair = PairAttempts::default();
        for attempt in attempts.chars() {
            pair.add(&measured(attempt == 'i', attempt == 'd'));
        }
        pair
    }

    #[test]
    fn a_disturbed_pair_gets_more_attempts_and_an_invalid_one_does_not() {
        assert!(!pair("ii").is_over(Round::First) && pair("iiv").is_over(Round::First));
        assert!(pair("ddd").is_over(Round::First) && !pair("ddd").is_over(Round::Again));
        assert!(!pair("ddd").has_failed() && pair("dddddd").is_over(Round::Again));
        assert!(pair("iii").is_over(Round::Again) && pair("iii").has_failed());
        assert!(!pair("iiv").has_failed());
    }

    fn tally(pairs: &[&str]) -> PairTally {
        let mut tally = PairTally::default();
        pairs.iter().for_each(|attempts| tally.add(pair(attempts), false));
        tally
    }

    #[test]
    fn one_bad_pair_is_replaced_and_an_experiment_that_cannot_succeed_ends() {
        let one = tally(&["v", "iii", "v"]);
        assert_eq!((one.replaced(14), one.is_hopeless(14)), (1, false));
        // Also the first, before anything succeeded; the second of them ends it.
        assert!(!tally(&["iii"]).is_hopeless(14) && tally(&["iii", "iii"]).is_hopeless(14));
        // A target that needs its whole timeout to fail needs no second pair to show it.
        let mut slow = PairTally::default();
        slow.add(pair("iii"), true);
        assert!(slow.is_hopeless(14));
        assert!(!tally(&["v", "iii", "iii"]).is_hopeless(14));
        assert!(tally(&["v", "iii", "iii", "iii"]).is_hopeless(14));
        // A disturbed pair is neither.
        assert_eq!(tally(&["ddd", "dddddd"]).replaced(14), 0);
    }

    #[test]
    fn replacements_are_bounded() {
        let every_second = |n: usize| tally(&["iii", "v"].repeat(n));
        assert!(!every_second(3).is_hopeless(14));
        assert!(every_second(4).is_hopeless(14));
        assert_eq!(every_second(9).replaced(14), 3);
        assert_eq!(PairTally::replaceable(2), 2);
        let mut resumed = tally(&["v", "iii", "iii", "iii"]);
        resumed.forget_the_row();
        assert!(!resumed.is_hopeless(14) && resumed.is_hopeless(8));
    }

    #[test]
    fn silence_is_explained_after_thirty_seconds_and_again_later() {
        let start = Instant::now();
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut silence = Silence::new(start);
        assert_eq!(silence.is_too_long(after(29)), None);
        assert_eq!(silence.is_too_long(after(31)), Some(Duration::from_secs(31)));
        assert_eq!(silence.is_too_long(after(60)), None);
        assert_eq!(silence.is_too_long(after(61)), Some(Duration::from_secs(61)));
        assert!(silence.is_long(after(61)));
        silence.end(after(70));
        assert!(!silence.is_long(after(99)));
        assert_eq!(silence.is_too_long(after(99)), None);
        assert_eq!(silence.is_too_long(after(100)), Some(Duration::from_secs(30)));
    }

    #[test]
    fn the_explanation_names_what_disturbs_and_the_flag_that_accepts_it() {
        let reasons = ["baseline: other programs used 196.0 % of a core, 3.0 % are allowed".to_owned()];
        let busiest = [("rustc".to_owned(), 1.21), ("ld".to_owned(), 0.7)];
        let text = explanation(&reasons, true, &busiest, false);
        for expected in [
            "used 196.0 %",
            "rustc 121 %, ld 70 %",
            "--accept-busy",
            "a second time",
        ] {
            assert!(text.contains(expected), "{expected} is missing: {text}");
        }
        assert!(!explanation(&reasons, true, &busiest, true).contains("--accept-busy"));
        // Another reason is not the machine's.
        let lost = ["comparison: only 94.00 % of what was sent was delivered".to_owned()];
        assert_eq!(explanation(&lost, false, &busiest, false), lost[0]);
    }
}
