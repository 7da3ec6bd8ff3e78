//! What rules did, and what those in a dry run would do.

use weir_rules::{Applied, RuleId};

use super::{Contexts, Way};
use crate::rules_in_force::RuleCounts;
use crate::trials::TrialReport;

impl Contexts {
    /// What each rule did, by rule number, and the nanoseconds spent on finding those that match.
    pub fn rule_counts(&self) -> (&[RuleCounts], u64) {
        self.rules.counts()
    }

    /// What rules in a dry run would have done.
    pub fn trial_reports(&self) -> Vec<TrialReport> {
        self.rules.trials.reports()
    }

    pub fn count_applied(&mut self, applied: &Applied) {
        self.rules.count_applied(applied);
    }

    /// Samples that a rule drops.
    pub fn count_dropped(&mut self, rule: Option<RuleId>, samples: u64) {
        self.rules.count_dropped(rule, samples);
    }

    /// Samples of a context that a rule in a dry run would do something to.
    pub fn count_trial(&mut self, way: Way, samples: u64) {
        self.rules.trials.count(way.raw.slot, samples);
    }
}
