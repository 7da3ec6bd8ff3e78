//! Samples per metric and origin: counting them and the summary.

use weir_protocol::{Kind, Metric};

use super::{Contexts, Lookup};
use crate::alias::AliasKey;
use crate::origins::{OriginId, OriginKey};
use crate::strings::StringId;
use crate::usage::{MetricUsage, UsageSummary};

impl Contexts {
    /// The name after rules, if a context has it.
    fn resolved_name(&mut self, metric: &Metric<'_>, sender: OriginId, now: u32) -> Option<StringId> {
        if metric.origin.is_empty() {
            let (name, tags) = (metric.name.as_bytes(), metric.tags.raw().as_bytes());
            let raw = self.find(metric.kind, name, tags, sender);
            if let Some(Lookup::Context(id, _) | Lookup::DryRun(id, _)) =
                raw.and_then(|raw| self.resolve_raw(raw, now))
            {
                return Some(self.resolved.get(metric.kind, id).identity.name);
            }
        }
        let rules = self.rules.rules().clone();
        let mut resolved = std::mem::take(&mut self.scratch.resolved);
        let mut subject = rules.subject(metric.kind, metric.name, metric.tags.iter());
        subject.tag_styles = sender.tag_styles();
        let passes = rules.apply(&mut subject, &mut resolved).passes;
        let name = self.interner.strings.find(subject.name.as_bytes(), &self.secret);
        drop(subject);
        self.scratch.resolved = resolved;
        name.filter(|_| passes)
    }

    /// Counts samples of a sampled message. `samples` includes the messages that were skipped.
    pub fn record_samples(&mut self, metric: &Metric<'_>, sender: OriginId, samples: u64, now: u32) {
        if let Some(name) = self.resolved_name(metric, sender, now) {
            self.add_samples(name, samples);
        }
        let key = OriginKey::of_message(metric.origin, metric.tags.iter());
        let origin = self.origins.acquire(&key, sender, &self.secret, now);
        self.origins.add_samples(origin, samples);
        self.origins.release(origin);
    }

    /// [`Contexts::record_samples`] for a message that has an alias, without reading its tags. Returns false if it has none.
    pub fn record_known_samples(&mut self, hash: u64, key: &AliasKey<'_>, samples: u64, now: u32) -> bool {
        let found = self.aliases.find(hash, key);
        let (raw_match, context) = match found.and_then(|raw| self.resolve_raw(raw, now)) {
            Some(Lookup::Context(id, raw_match) | Lookup::DryRun(id, raw_match)) => (raw_match, Some(id)),
            Some(Lookup::Filtered(raw_match, _)) => (raw_match, None),
            _ => return false,
        };
        let raw = self.raw.get(raw_match.raw.slot);
        let (kind, origin) = (Kind::ALL[usize::from(raw.kind)], raw.origin);
        if let Some(id) = context {
            self.add_samples(self.resolved.get(kind, id).identity.name, samples);
        }
        self.origins.add_samples(origin, samples);
        true
    }

    fn add_samples(&mut self, name: StringId, samples: u64) {
        let hash = self.interner.strings.hash(name);
        self.usage.names.add_samples(name, hash, samples);
    }

    /// Visits up to `max` names for the next summary. Returns the summary once all were visited, and resets its counts.
    pub fn summarise(&mut self, max: usize) -> Option<UsageSummary> {
        let walked = self.usage.names.walk(max)?;
        let metrics = walked.into_iter().map(|(entry, samples)| MetricUsage {
            name: self.interner.strings.get(entry.name).into(),
            contexts: u64::from(entry.contexts),
            samples,
        });
        let metrics = metrics.collect();
        let keys = self.interner.strings.tag_keys();
        let (limited, limited_others) = self.usage.offenders.take();
        Some(UsageSummary {
            contexts: self.resolved.len() as u64,
            metrics,
            metrics_live: self.usage.names.len() as u64,
            tag_keys: keys.top(),
            tag_keys_live: keys.len() as u64,
            tag_values_untracked: keys.untracked(),
            origins: self.origins.top(),
            origins_live: self.origins.len() as u64,
            limited,
            limited_others,
        })
    }
}
