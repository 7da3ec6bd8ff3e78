//! What rules did, and what those on trial would do.

use std::collections::HashMap;
use std::sync::Arc;

use weir_rules::{Applied, RuleId};

use super::{Contexts, NO_RAW, RawId};
use crate::rules::Rules;
use crate::trials::{TrialReport, Trials};

/// What one rule did. Numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Contexts it was applied to, and different samples that carried a timestamp of their own.
    pub hits: u64,
    /// Time that took, beside finding the rules that match.
    pub nanoseconds: u64,
    /// Samples it dropped.
    pub samples_dropped: u64,
}

impl Contexts {
    /// What each rule did, by rule number, and the nanoseconds spent on finding those that match.
    pub fn rule_counts(&self) -> (&[RuleCounts], u64) {
        (&self.rule_counts, self.matching_ns)
    }

    /// What rules on trial would have done.
    pub fn trial_reports(&self) -> Vec<TrialReport> {
        self.trials.reports()
    }

    pub fn count_applied(&mut self, applied: &Applied) {
        self.matching_ns += applied.matching_ns;
        for &(rule, nanoseconds) in &applied.hits {
            if let Some(counts) = self.rule_counts.get_mut(rule.0 as usize) {
                counts.hits += 1;
                counts.nanoseconds += nanoseconds;
            }
        }
    }

    /// Samples of a metric that [`Lookup::Filtered`] was the answer for.
    pub fn count_dropped(&mut self, raw: RawId, samples: u64) {
        let rule = if raw == NO_RAW {
            self.scratch.resolved.applied.dropped_by
        } else {
            Some(RuleId(self.raw[raw.slot as usize].next))
        };
        self.count_dropped_by(rule, samples);
    }

    /// Samples that a rule drops.
    pub fn count_dropped_by(&mut self, rule: Option<RuleId>, samples: u64) {
        if let Some(counts) = rule.and_then(|rule| self.rule_counts.get_mut(rule.0 as usize)) {
            counts.samples_dropped += samples;
        }
    }

    /// Samples of a context that a rule on trial would do something to.
    pub fn count_trial(&mut self, raw: RawId, samples: u64) {
        self.trials.count(raw.slot, samples);
    }

    /// Makes room for the counts of new rules; those of rules that stay, by stage and name, go on.
    pub(super) fn carry_counts(&mut self, rules: &Rules) {
        let (before, after) = (self.rules.set(), rules.set());
        self.trials = Trials::default();
        if Arc::ptr_eq(before, after) {
            return;
        }
        let known: HashMap<_, _> = before
            .infos()
            .iter()
            .zip(&self.rule_counts)
            .map(|(info, counts)| ((info.stage.as_str(), info.name.as_str()), *counts))
            .collect();
        let counts = after.infos().iter().map(|info| {
            let key = (info.stage.as_str(), info.name.as_str());
            known.get(&key).copied().unwrap_or_default()
        });
        self.rule_counts = counts.collect();
    }
}
