//! The rules that contexts are resolved with, and what they did.

use std::collections::HashMap;
use std::sync::Arc;

use weir_rules::{Applied, RuleId};

use crate::rules::Rules;
use crate::trials::Trials;

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

pub(crate) struct RulesInForce {
    rules: Arc<Rules>,
    /// By rule number, the list of filtered names last.
    counts: Vec<RuleCounts>,
    /// Time spent on finding the rules that match.
    matching_ns: u64,
    /// What rules in a dry run would do.
    pub trials: Trials,
}

impl RulesInForce {
    pub fn new(rules: Rules) -> Self {
        RulesInForce {
            counts: vec![RuleCounts::default(); rules.set().infos().len()],
            rules: Arc::new(rules),
            matching_ns: 0,
            trials: Trials::default(),
        }
    }

    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// Takes other rules. The counts of rules that stay, by stage and name, go on. False: they are the same rules.
    pub fn replace(&mut self, rules: Rules) -> bool {
        if rules == *self.rules {
            return false;
        }
        let (before, after) = (self.rules.set(), rules.set());
        self.trials = Trials::default();
        if !Arc::ptr_eq(before, after) {
            let known: HashMap<_, _> = before
                .infos()
                .iter()
                .zip(&self.counts)
                .map(|(info, counts)| ((info.stage.as_str(), info.name.as_str()), *counts))
                .collect();
            let counts = after.infos().iter().map(|info| {
                let key = (info.stage.as_str(), info.name.as_str());
                known.get(&key).copied().unwrap_or_default()
            });
            self.counts = counts.collect();
        }
        self.rules = Arc::new(rules);
        true
    }

    /// By rule number, and the nanoseconds spent on finding those that match.
    pub fn counts(&self) -> (&[RuleCounts], u64) {
        (&self.counts, self.matching_ns)
    }

    pub fn count_applied(&mut self, applied: &Applied) {
        self.matching_ns += applied.matching_ns;
        for &(rule, nanoseconds) in &applied.hits {
            if let Some(counts) = self.counts.get_mut(rule.0 as usize) {
                counts.hits += 1;
                counts.nanoseconds += nanoseconds;
            }
        }
    }

    pub fn count_dropped(&mut self, rule: Option<RuleId>, samples: u64) {
        if let Some(counts) = rule.and_then(|rule| self.counts.get_mut(rule.0 as usize)) {
            counts.samples_dropped += samples;
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<RuleCounts>() + self.trials.heap_bytes()
    }
}
