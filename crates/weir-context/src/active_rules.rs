//! The active rules and their counts.

use std::collections::HashMap;
use std::sync::Arc;

use weir_rules::{Applied, RuleId};

use crate::rules::Rules;
use crate::trials::Trials;

/// The effect of one rule. Numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Contexts that the rule was applied to, plus distinct samples with a timestamp of their own.
    pub hits: u64,
    /// Time spent in the rule, without the search for matching rules.
    pub nanoseconds: u64,
    /// Samples it dropped.
    pub samples_dropped: u64,
}

pub(crate) struct ActiveRules {
    rules: Arc<Rules>,
    /// By rule number, the list of filtered names last.
    counts: Vec<RuleCounts>,
    /// Time spent on the search for matching rules.
    matching_ns: u64,
    /// The effect that rules in a dry run would have.
    pub trials: Trials,
}

impl ActiveRules {
    pub fn new(rules: Rules) -> Self {
        ActiveRules {
            counts: vec![RuleCounts::default(); rules.set().infos().len()],
            rules: Arc::new(rules),
            matching_ns: 0,
            trials: Trials::default(),
        }
    }

    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// Replaces the rules. A rule with the same stage and name keeps its counts. Returns false if the rules are the same.
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

    /// Counts by rule number, and the nanoseconds of the search for matching rules.
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
