//! What rules on trial would have done to the contexts that are alive.

use std::collections::HashMap;

use weir_protocol::Kind;
use weir_rules::{RuleId, Subject};

use crate::context_table::ContextId;
use crate::rules::Trial;

/// Raw contexts that are followed, per worker; about 200 bytes each. More are counted only as being more.
const FOLLOWED_MAX: usize = 50_000;

/// Contexts shown per rule.
const EXAMPLES_MAX: usize = 5;

/// Raw contexts that rules in dry run would change, and their results.
#[derive(Default)]
pub(crate) struct Trials {
    followed: HashMap<u32, Followed>,
    rules: HashMap<RuleId, RuleTrial>,
    not_followed: u64,
}

struct Followed {
    context: (Kind, ContextId),
    /// Rule, and a digest of what the context becomes; `None`: it is dropped.
    outcomes: Box<[(RuleId, Option<u64>)]>,
}

#[derive(Default)]
struct RuleTrial {
    /// Raw contexts by the context they lead to now, and by the one they would lead to.
    now: HashMap<(Kind, ContextId), u32>,
    then: HashMap<u64, u32>,
    /// Samples since the rules are in force.
    samples_dropped: u64,
    samples_changed: u64,
    examples: Vec<String>,
}

/// What one rule on trial would have saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrialReport {
    pub rule: u32,
    /// Live contexts that the rule would change or drop.
    pub contexts_now: u64,
    /// How many would be left of them.
    pub contexts_then: u64,
    /// Samples, since these rules are in force, that would have been dropped, or would have gone elsewhere.
    pub samples_dropped: u64,
    pub samples_changed: u64,
    /// A few of the contexts, with their results.
    pub examples: Vec<String>,
    /// Some contexts are not in these numbers: there were too many to follow.
    pub incomplete: bool,
}

impl Trials {
    /// Takes note of a raw context. False: there is no room.
    pub fn follow(
        &mut self,
        slot: u32,
        context: (Kind, ContextId),
        now: &Subject<'_>,
        trials: &[Trial<'_>],
        digest: impl Fn(&Subject<'_>) -> u64,
    ) -> bool {
        if self.followed.len() >= FOLLOWED_MAX {
            self.not_followed += 1;
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
        self.followed.insert(slot, Followed { context, outcomes });
        true
    }

    /// The raw context is gone, or leads elsewhere.
    pub fn forget(&mut self, slot: u32) {
        if self.followed.is_empty() {
            return;
        }
        let Some(Followed { context, outcomes }) = self.followed.remove(&slot) else {
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
        let Some(followed) = self.followed.get(&slot) else {
            return;
        };
        for (rule, becomes) in &followed.outcomes {
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
                incomplete: self.not_followed > 0,
            })
            .collect();
        reports.sort_by_key(|report| report.rule);
        reports
    }

    /// Bytes held, roughly.
    pub fn heap_bytes(&self) -> usize {
        self.followed.len() * 200
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
