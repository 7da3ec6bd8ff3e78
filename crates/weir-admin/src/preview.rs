//! The effect of rules, computed on the series of the last minutes only.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use serde::Serialize;
use weir_config::node::{self, Content};
use weir_context::{Resolved, RuleSettings, Rules};
use weir_history::{Labels, SeriesKind};
use weir_protocol::Kind as MetricKind;
use weir_rules::Subject;

use super::query::bad;
use super::server::HttpError;
use crate::history::Recent;
use weir_system::config;

pub const PATH: &str = "/api/v1/try";

/// Considers series that have sent within this many seconds.
const SECONDS: i64 = 300;
/// Maximum time for which the history is locked.
const TIME_MAX: Duration = Duration::from_millis(200);
/// Series between two checks of the clock.
const SLICE: usize = 256;
const EXAMPLES_MAX: usize = 5;

#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Preview {
    /// Series of the last five minutes.
    series_now: usize,
    /// Series that would remain.
    series_then: usize,
    /// Series that a rule would change or drop.
    changed: usize,
    dropped: usize,
    examples: Vec<Example>,
    /// True if the time was too short for all series. The numbers cover those that were checked.
    incomplete: bool,
}

#[derive(Debug, PartialEq, Serialize)]
struct Example {
    from: String,
    /// `None`: the rule would drop it.
    to: Option<String>,
}

/// Applies the rules to the stored series. Locks the history for at most [`TIME_MAX`].
pub fn answer(text: &str, recent: &Recent) -> Result<Preview, HttpError> {
    let rules = rules(text)?;
    let points = recent.points();
    let since = points.newest().map_or(0, |(time, _)| time) - SECONDS;
    let mut run = PreviewRun::new(&rules);
    let begun = Instant::now();
    let saw_all = points.each_series(since, |kind, name, labels| {
        run.series(kind, name, labels);
        !run.preview.series_now.is_multiple_of(SLICE) || begun.elapsed() < TIME_MAX
    });
    run.preview.examples.sort_by(|a, b| a.from.cmp(&b.from));
    Ok(Preview {
        series_then: run.left.len(),
        incomplete: !saw_all,
        ..run.preview
    })
}

/// Parses only rules: other settings, for example a file name, have no effect here.
fn rules(text: &str) -> Result<Rules, HttpError> {
    let node = node::parse(text).map_err(|error| bad(format!("line {}: {}", error.line, error.message)))?;
    match node.map(|node| node.content) {
        Some(Content::Map(keys)) if keys.iter().all(|(key, _)| key.text == "rules") => {}
        _ => {
            return Err(bad("rules must be a YAML document with the single key rules"));
        }
    }
    let loaded = config::load_content(text.as_bytes()).map_err(|problems| bad(problems.to_string()))?;
    Ok(Rules::new(RuleSettings {
        set: loaded.config.rules.set,
        ..RuleSettings::default()
    }))
}

/// The result of one series.
enum Outcome<'t> {
    Same,
    Dropped,
    Other(Subject<'t>),
}

struct PreviewRun<'t> {
    rules: &'t Rules,
    resolved: Resolved,
    /// Hashes of the remaining series. Among a million, two equal ones are less likely than a bit flip.
    left: HashSet<u64>,
    hashes: RandomState,
    preview: Preview,
}

impl<'t> PreviewRun<'t> {
    fn new(rules: &'t Rules) -> Self {
        Self {
            rules,
            resolved: Resolved::default(),
            left: HashSet::new(),
            hashes: RandomState::new(),
            preview: Preview::default(),
        }
    }

    fn series(&mut self, kind: SeriesKind, name: &'t str, labels: Labels<'t>) {
        self.preview.series_now += 1;
        let mut tags: Vec<&str> = labels.tags().collect();
        let host = labels.host();
        match self.outcome(kind, name, &mut tags) {
            Outcome::Same => self.add_remaining(kind, name, host, &tags),
            Outcome::Dropped => {
                self.preview.changed += 1;
                self.preview.dropped += 1;
                self.example(name, &tags, None);
            }
            Outcome::Other(subject) => {
                self.preview.changed += 1;
                let left: Vec<&str> = subject.tags.iter().map(AsRef::as_ref).collect();
                self.add_remaining(kind, &subject.name, subject.host.as_deref().or(host), &left);
                self.example(name, &tags, Some((&subject.name, &left)));
            }
        }
    }

    /// Sorts the tags.
    fn outcome(&mut self, kind: SeriesKind, name: &'t str, tags: &mut Vec<&'t str>) -> Outcome<'t> {
        tags.sort_unstable();
        tags.dedup();
        let kind = match kind {
            SeriesKind::Counter => MetricKind::Counter,
            SeriesKind::Gauge => MetricKind::Gauge,
            SeriesKind::Set => MetricKind::Set,
            SeriesKind::Distribution => MetricKind::Distribution,
            SeriesKind::Histogram => MetricKind::Histogram,
            SeriesKind::Rate => return Outcome::Same,
        };
        self.apply(kind, name, tags)
    }

    /// `tags` are sorted.
    fn apply(&mut self, kind: MetricKind, name: &'t str, tags: &[&'t str]) -> Outcome<'t> {
        let mut subject = self.rules.subject(kind, name, tags.iter().copied());
        let outcome = self.rules.apply(&mut subject, &mut self.resolved);
        // A rule marked as a dry run is applied too.
        let becomes = match outcome.trials.into_iter().next() {
            Some(trial) => trial.becomes,
            None => outcome.passes.then_some(subject),
        };
        match becomes {
            None => Outcome::Dropped,
            Some(subject) if is_same(&subject, name, tags) => Outcome::Same,
            Some(subject) => Outcome::Other(subject),
        }
    }

    fn add_remaining(&mut self, kind: SeriesKind, name: &str, host: Option<&str>, tags: &[&str]) {
        let hash = self.hashes.hash_one((kind, name, host, tags));
        self.left.insert(hash);
    }

    fn example(&mut self, name: &str, tags: &[&str], to: Option<(&str, &[&str])>) {
        if self.preview.examples.len() < EXAMPLES_MAX {
            self.preview.examples.push(Example {
                from: shown(name, tags),
                to: to.map(|(name, tags)| shown(name, tags)),
            });
        }
    }
}

fn is_same(subject: &Subject<'_>, name: &str, tags: &[&str]) -> bool {
    subject.name == name
        && subject.host.is_none()
        && subject.tags.iter().map(Cow::as_ref).eq(tags.iter().copied())
}

fn shown(name: &str, tags: &[&str]) -> String {
    format!("{name}{{{}}}", tags.join(","))
}
