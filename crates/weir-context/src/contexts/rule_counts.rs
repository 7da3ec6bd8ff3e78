//! The effects of active rules and of rules in a dry run.

use weir_rules::{Applied, RuleId};

use super::{Contexts, RawMatch};
use crate::active_rules::RuleCounts;
use crate::trials::TrialReport;

impl Contexts {
    /// Counts by rule number, and the nanoseconds of the search for matching rules.
    pub fn rule_counts(&self) -> (&[RuleCounts], u64) {
        self.rules.counts()
    }

    /// The effect that rules in a dry run would have had.
    pub fn trial_reports(&self) -> Vec<TrialReport> {
        self.rules.trials.reports()
    }

    pub fn count_applied(&mut self, applied: &Applied) {
        self.rules.count_applied(applied);
    }

    /// Counts samples that a rule drops.
    pub fn count_dropped(&mut self, rule: Option<RuleId>, samples: u64) {
        self.rules.count_dropped(rule, samples);
    }

    /// Counts samples of a context that a rule in a dry run would change.
    pub fn count_trial(&mut self, raw_match: RawMatch, samples: u64) {
        self.rules.trials.count(raw_match.raw.slot, samples);
    }
}
