//! The results of the rules for samples with a timestamp. Such samples have no context, so a small table caches the results; otherwise each
//! sample would cost a walk through the rules.

use std::borrow::Cow;
use std::collections::HashMap;

use weir_aggregate::TimestampedSample;
use weir_context::{Contexts, OriginId, Resolved};
use weir_protocol::Metric;

/// Answers remembered. When there are more, all are forgotten: it never holds more than a few megabytes.
const REMEMBERED_MAX: usize = 4096;

/// Longer keys are not worth remembering.
const KEY_BYTES_MAX: usize = 1024;

/// A metric after the rules.
#[derive(Debug)]
pub(crate) struct ResolvedMetric {
    pub name: Box<str>,
    pub host: Option<Box<str>>,
    pub tags: Box<[Box<str>]>,
    /// Name, host and tags as one text.
    pub identity: Box<str>,
}

#[derive(Debug, Default)]
pub(crate) struct Timestamped {
    known: HashMap<String, ResolvedMetric>,
    key: String,
    /// An answer that is not remembered.
    last: Option<ResolvedMetric>,
}

impl Timestamped {
    /// `tags`: those of the metric and of its origin. `None`: the rule in `resolved` drops it.
    pub fn resolve(
        &mut self,
        metric: &Metric<'_>,
        tags: Vec<Cow<'_, str>>,
        sender: OriginId,
        contexts: &mut Contexts,
        resolved: &mut Resolved,
    ) -> Option<&ResolvedMetric> {
        self.key.clear();
        self.key.push_str(metric.kind.as_str());
        // A capital is at the end of no kind.
        if let Some(styles) = sender.tag_styles() {
            self.key.push(char::from(b'A' + styles.bits() as u8));
        }
        self.key.push('\n');
        self.key.push_str(metric.name);
        for tag in &tags {
            // A line end is in no name and no tag.
            self.key.push('\n');
            self.key.push_str(tag);
        }
        if self.known.contains_key(&self.key) {
            return self.known.get(&self.key);
        }
        let rules = contexts.rules().clone();
        let mut subject = rules.subject(metric.kind, metric.name, std::iter::empty());
        subject.tag_styles = sender.tag_styles();
        subject.tags = tags;
        let verdict = rules.apply(&mut subject, resolved);
        contexts.count_applied(&resolved.applied);
        if !verdict.passes {
            return None;
        }
        let tags: Vec<&str> = subject.tags.iter().map(AsRef::as_ref).collect();
        let sample = TimestampedSample {
            kind: metric.kind,
            name: &subject.name,
            host: subject.host.as_deref(),
            tags: &tags,
            timestamp: 0,
        };
        let identity = sample.identity();
        let known = ResolvedMetric {
            identity: identity.into(),
            name: subject.name.into(),
            host: subject.host.map(Into::into),
            tags: subject.tags.into_iter().map(Into::into).collect(),
        };
        if self.key.len() > KEY_BYTES_MAX {
            return Some(self.last.insert(known));
        }
        if self.known.len() >= REMEMBERED_MAX {
            self.known.clear();
        }
        Some(self.known.entry(self.key.clone()).or_insert(known))
    }
}
