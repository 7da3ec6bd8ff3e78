//! The effect that rules in a dry run would have on the live contexts.

use std::collections::HashMap;

use weir_protocol::Kind;
use weir_rules::{RuleId, Subject};

use crate::context_table::ContextId;
use crate::rules::Trial;

/// Raw contexts followed per worker, at about 200 bytes each. Further ones only set a flag.
const TRACKED_MAX: usize = 50_000;

/// Contexts shown per rule.
const EXAMPLES_MAX: usize = 5;

/// Raw contexts that rules in a dry run would change, with the results.
#[derive(Default)]
pub(crate) struct Trials {
    tracked: HashMap<u32, TrackedContext>,
    rules: HashMap<RuleId, RuleTrial>,
    untracked: u64,
}

struct TrackedContext {
    context: (Kind, ContextId),
    /// The rule, and a digest of the context it would produce. `None`: the rule would drop it.
    outcomes: Box<[(RuleId, Option<u64>)]>,
}

#[derive(Default)]
struct RuleTrial {
    /// Number of raw contexts by the context they lead to now, and by the one they would lead to.
    now: HashMap<(Kind, ContextId), u32>,
    then: HashMap<u64, u32>,
    /// Samples since the rules became active.
    samples_dropped: u64,
    samples_changed: u64,
    examples: Vec<String>,
}

/// The effect of one rule in a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrialReport {
    pub rule: u32,
    /// Live contexts that the rule would change or drop.
    pub contexts_now: u64,
    /// Contexts that would remain of these.
    pub contexts_then: u64,
    /// Samples that would have been dropped or moved since the rules became active.
    pub samples_dropped: u64,
    pub samples_changed: u64,
    /// Some of the contexts, with their results.
    pub examples: Vec<String>,
    /// True if these numbers miss contexts because there were too many to follow.
    pub incomplete: bool,
}

impl Trials {
    /// Follows a raw context. Returns false if there is no room.
    pub fn track(
        &mut self,
        slot: u32,
        context: (Kind, ContextId),
        now: &Subject<'_>,
        trials: &[Trial<'_>],
        digest: impl Fn(&Subject<'_>) -> u64,
    ) -> bool {
        if self.tracked.len() >= TRACKED_MAX {
            self.untracked += 1;
            return false;
        }
        let mut outcomes = Vec::with_capacity(trials.len());
        for trial in trials {
            let rule = self.rules.entry(trial.rule).or_default();
            *rule.now.entry(context).or_default() += 1;
            let becomes = trial.becomes.as_ref().map(&digest);
            if let Some(becomes) = becomes {
                *rule.then.entry(becomes).or_default() += 1;
            }
            if rule.examples.len() < EXAMPLES_MAX {
                let then = trial.becomes.as_ref().map_or("dropped".to_owned(), shown);
                let example = format!("{} -> {then}", shown(now));
                if !rule.examples.contains(&example) {
                    rule.examples.push(example);
                }
            }
            outcomes.push((trial.rule, becomes));
        }
        let outcomes = outcomes.into();
        self.tracked.insert(slot, TrackedContext { context, outcomes });
        true
    }

    /// Stops following a raw context that was removed or leads elsewhere.
    pub fn forget(&mut self, slot: u32) {
        if self.tracked.is_empty() {
            return;
        }
        let Some(TrackedContext { context, outcomes }) = self.tracked.remove(&slot) else {
            return;
        };
        for (rule, becomes) in outcomes {
            let Some(rule) = self.rules.get_mut(&rule) else {
                continue;
            };
            release(&mut rule.now, context);
            if let Some(becomes) = becomes {
                release(&mut rule.then, becomes);
            }
        }
    }

    pub fn count(&mut self, slot: u32, samples: u64) {
        let Some(tracked) = self.tracked.get(&slot) else {
            return;
        };
        for (rule, becomes) in &tracked.outcomes {
            let Some(rule) = self.rules.get_mut(rule) else {
                continue;
            };
            match becomes {
                None => rule.samples_dropped += samples,
                Some(_) => rule.samples_changed += samples,
            }
        }
    }

    pub fn reports(&self) -> Vec<TrialReport> {
        let mut reports: Vec<TrialReport> = self
            .rules
            .iter()
            .map(|(rule, trial)| TrialReport {
                rule: rule.0,
                contexts_now: trial.now.len() as u64,
                contexts_then: trial.then.len() as u64,
                samples_dropped: trial.samples_dropped,
                samples_changed: trial.samples_changed,
                examples: trial.examples.clone(),
                incomplete: self.untracked > 0,
            })
            .collect();
        reports.sort_by_key(|report| report.rule);
        reports
    }

    /// Bytes held, estimated.
    pub fn heap_bytes(&self) -> usize {
        self.tracked.len() * 200
    }
}

fn release<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u32>, key: K) {
    if let std::collections::hash_map::Entry::Occupied(mut entry) = counts.entry(key) {
        *entry.get_mut() -= 1;
        if *entry.get() == 0 {
            entry.remove();
        }
    }
}

fn shown(subject: &Subject<'_>) -> String {
    let mut text = subject.name.to_string();
    if !subject.tags.is_empty() {
        text.push_str(&format!(" {{{}}}", subject.tags.join(",")));
    }
    if let Some(host) = &subject.host {
        text.push_str(&format!(" on {host:?}"));
    }
    text
}
