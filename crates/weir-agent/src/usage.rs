//! Usage: merges the workers' summaries, compares them with an hour ago, and decides what to log.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_context::{MetricUsage, OriginKey, TagKeyUsage, UsageSummary};

use weir_status::contexts::{ContextReport, LimitedRow, MetricRow, OriginRow, TagKeyRow};
use weir_status::status::LimitStatus;
use weir_system::logging::printable;

/// The age of the counts for growth, and their interval.
const GROWTH_SECONDS: u64 = 3600;
const HISTORY_SECONDS: u64 = 300;

/// Minimum interval of log lines about the same metric.
const MENTION_SECONDS: u64 = 60;

/// Maximum metrics logged within that time.
const MENTIONS_MAX: usize = 16;

/// Maximum tag keys with an alert.
const ALERTS_MAX: usize = 32;

pub struct Settings {
    pub workers: usize,
    pub bucket_seconds: u64,
    /// Number of values of a tag key that raises an alert.
    pub tag_values_alert: Option<u64>,
}

/// The latest summaries.
pub struct Usage {
    settings: Settings,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    as_of: u64,
    workers: Vec<Option<UsageSummary>>,
    history: VecDeque<Past>,
    /// When each metric was last logged.
    mentioned: HashMap<Box<str>, u64>,
    /// Tag keys with too many values.
    alerts: BTreeSet<String>,
}

/// The counts at one time.
#[derive(Default)]
struct Past {
    at: u64,
    contexts: Counted,
    values: Counted,
}

/// Amounts by name, of the largest or of all.
#[derive(Default)]
struct Counted {
    amounts: HashMap<Box<str>, u64>,
    /// Upper bound of the others.
    others: u64,
}

impl Counted {
    fn growth(&self, name: &str, now: u64) -> i64 {
        match self.amounts.get(name) {
            Some(&before) => now as i64 - before as i64,
            None => now.saturating_sub(self.others) as i64,
        }
    }

    fn heap_bytes(&self) -> usize {
        let names: usize = self.amounts.keys().map(|name| name.len() + 8).sum();
        names + self.amounts.capacity() * size_of::<(Box<str>, u64)>()
    }
}

/// The merged usage of all workers.
#[derive(Default)]
struct MergedUsage {
    contexts: u64,
    metrics: BTreeMap<Box<str>, (u64, u64)>,
    metrics_live: u64,
    metrics_others: u64,
    keys: BTreeMap<Box<str>, u64>,
    keys_live: u64,
    keys_others: u64,
    values_untracked: u64,
    origins: BTreeMap<Box<str>, (u64, u64)>,
    origins_live: u64,
    limited: BTreeMap<Box<str>, LimitedRow>,
}

impl MergedUsage {
    fn of(workers: &[Option<UsageSummary>]) -> MergedUsage {
        let mut merged = MergedUsage::default();
        for summary in workers.iter().flatten() {
            merged.contexts += summary.contexts;
            for MetricUsage {
                name,
                contexts,
                samples,
            } in &summary.metrics
            {
                let entry = merged.metrics.entry(name.clone()).or_default();
                *entry = (entry.0 + contexts, entry.1 + samples);
            }
            merged.metrics_live = merged.metrics_live.max(summary.metrics_live);
            if (summary.metrics.len() as u64) < summary.metrics_live {
                // Metrics that are listed only for their samples have fewer contexts than the last one listed for its contexts.
                let mut contexts: Vec<u64> = summary.metrics.iter().map(|usage| usage.contexts).collect();
                contexts.sort_unstable_by(|a, b| b.cmp(a));
                let last = contexts.get(weir_context::SUMMARY_ROWS - 1).or(contexts.last());
                merged.metrics_others += last.copied().unwrap_or(0);
            }
            for TagKeyUsage { key, values } in &summary.tag_keys {
                *merged.keys.entry(key.clone()).or_default() += values;
            }
            merged.keys_live = merged.keys_live.max(summary.tag_keys_live);
            if (summary.tag_keys.len() as u64) < summary.tag_keys_live {
                let least = summary.tag_keys.iter().map(|usage| usage.values).min();
                merged.keys_others += least.unwrap_or(0);
            }
            merged.values_untracked += summary.tag_values_untracked;
            for usage in &summary.origins {
                let entry = merged.origins.entry(usage.origin.clone()).or_default();
                *entry = (entry.0 + usage.contexts, entry.1 + usage.samples);
            }
            merged.origins_live = merged.origins_live.max(summary.origins_live);
            for limited in &summary.limited {
                let row = merged.limited.entry(limited.name.clone()).or_default();
                row.metric = limited.name.to_string();
                row.samples += limited.samples;
                row.reason = limited.reason.as_str().into();
                row.origin = origin_name(&limited.origin);
                if let Some((key, values)) = &limited.tag_key
                    && *values >= row.tag_values
                {
                    (row.tag_key, row.tag_values) = (key.to_string(), *values);
                }
            }
        }
        merged.metrics_live = merged.metrics_live.max(merged.metrics.len() as u64);
        merged.keys_live = merged.keys_live.max(merged.keys.len() as u64);
        merged
    }

    fn past(&self, at: u64) -> Past {
        let contexts = self
            .metrics
            .iter()
            .map(|(name, (contexts, _))| (name.clone(), *contexts));
        Past {
            at,
            contexts: Counted {
                amounts: contexts.collect(),
                others: self.metrics_others,
            },
            values: Counted {
                amounts: self
                    .keys
                    .iter()
                    .map(|(key, values)| (key.clone(), *values))
                    .collect(),
                others: self.keys_others,
            },
        }
    }

    fn limited(self) -> Vec<LimitedRow> {
        let mut limited: Vec<LimitedRow> = self.limited.into_values().collect();
        limited.sort_by_key(|row| std::cmp::Reverse(row.samples));
        limited
    }
}

impl Usage {
    pub fn new(settings: Settings) -> Self {
        let state = State {
            workers: vec![None; settings.workers],
            ..State::default()
        };
        Usage {
            settings,
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the summary of one worker at `now`, in Unix seconds. Returns lines for the log.
    pub fn take(&self, worker: u16, summary: UsageSummary, now: u64) -> Vec<String> {
        let mut state = self.lock();
        let state = &mut *state;
        let mut lines = Vec::new();
        // After the clock was set back, what is ahead of it would stop both until its time comes again.
        state.history.retain(|past| past.at <= now);
        state
            .mentioned
            .retain(|_, at| *at <= now && now - *at < MENTION_SECONDS);
        for limited in &summary.limited {
            if state.mentioned.len() >= MENTIONS_MAX || state.mentioned.contains_key(&limited.name) {
                continue;
            }
            state.mentioned.insert(limited.name.clone(), now);
            let mut line = format!(
                "metric {}: {} samples of new contexts exceeded the limit {}",
                printable(limited.name.as_bytes()),
                limited.samples,
                limited.reason.as_str()
            );
            if let Some((key, values)) = &limited.tag_key {
                let key = printable(key.as_bytes());
                line.push_str(&format!(
                    "; its tag {key} has about {values} different values among them"
                ));
            }
            if !limited.origin.is_empty() {
                line.push_str(&format!(
                    "; origin {}",
                    printable(origin_name(&limited.origin).as_bytes())
                ));
            }
            lines.push(line);
        }
        state.workers[usize::from(worker)] = Some(summary);
        state.as_of = now;
        let merged = MergedUsage::of(&state.workers);
        lines.extend(alerts(&mut state.alerts, &merged, self.settings.tag_values_alert));
        if state
            .history
            .back()
            .is_none_or(|past| now.saturating_sub(past.at) >= HISTORY_SECONDS)
        {
            state.history.push_back(merged.past(now));
            // Keeps one that is old enough.
            while state
                .history
                .get(1)
                .is_some_and(|past| now.saturating_sub(past.at) >= GROWTH_SECONDS)
            {
                state.history.pop_front();
            }
        }
        lines
    }

    /// The first `top` entries of each list.
    pub fn report(&self, top: usize) -> Option<ContextReport> {
        let state = self.lock();
        if state.workers.iter().all(Option::is_none) {
            return None;
        }
        let merged = MergedUsage::of(&state.workers);
        let nothing = Past::default();
        let past = state.history.front().filter(|past| past.at < state.as_of);
        let per_second = |samples: u64| samples as f64 / self.settings.bucket_seconds as f64;
        let base = past.unwrap_or(&nothing);
        let mut metrics: Vec<MetricRow> = merged
            .metrics
            .iter()
            .map(|(name, &(contexts, samples))| MetricRow {
                metric: name.to_string(),
                contexts,
                growth: past.map_or(0, |past| past.contexts.growth(name, contexts)),
                samples_per_second: per_second(samples),
            })
            .collect();
        metrics.sort_by_key(|row| std::cmp::Reverse(row.contexts));
        let metrics_by_contexts = metrics.iter().take(top).cloned().collect();
        metrics.sort_by(|a, b| b.samples_per_second.total_cmp(&a.samples_per_second));
        metrics.retain(|row| row.samples_per_second > 0.0);
        metrics.truncate(top);
        let mut tag_keys: Vec<TagKeyRow> = key_rows(&merged, past).collect();
        tag_keys.truncate(top);
        let mut origins: Vec<OriginRow> = merged
            .origins
            .iter()
            .map(|(text, &(contexts, samples))| OriginRow {
                origin: origin_name(text),
                contexts,
                samples_per_second: per_second(samples),
            })
            .collect();
        origins.sort_by_key(|row| std::cmp::Reverse(row.contexts));
        origins.truncate(top);
        Some(ContextReport {
            as_of: state.as_of,
            contexts_live: merged.contexts,
            growth_seconds: past.map_or(0, |_| state.as_of - base.at),
            metrics_live: merged.metrics_live,
            tag_keys_live: merged.keys_live,
            origins_live: merged.origins_live,
            tag_values_untracked: merged.values_untracked,
            metrics_by_samples: metrics,
            metrics_by_contexts,
            tag_keys,
            origins,
            limited: merged.limited().into_iter().take(top).collect(),
        })
    }

    /// Adds the metrics that met limits in the last bucket.
    pub fn fill(&self, limits: &mut LimitStatus) {
        let state = self.lock();
        let merged = MergedUsage::of(&state.workers);
        let past = state.history.front().filter(|past| past.at < state.as_of);
        limits.tag_keys = key_rows(&merged, past)
            .filter(|row| state.alerts.contains(&row.key))
            .collect();
        limits.limited = merged.limited();
    }

    /// Bytes of summaries and past counts.
    pub fn heap_bytes(&self) -> u64 {
        let state = self.lock();
        let history = state
            .history
            .iter()
            .map(|past| past.contexts.heap_bytes() + past.values.heap_bytes());
        let workers = state.workers.iter().flatten().map(|summary| {
            let names = summary.metrics.iter().map(|usage| &usage.name);
            let keys = summary.tag_keys.iter().map(|usage| &usage.key);
            let origins = summary.origins.iter().map(|usage| &usage.origin);
            names
                .chain(keys)
                .chain(origins)
                .map(|text| text.len() + 40)
                .sum::<usize>()
        });
        (history.sum::<usize>() + workers.sum::<usize>()) as u64
    }
}

/// Most values first.
fn key_rows(merged: &MergedUsage, past: Option<&Past>) -> impl Iterator<Item = TagKeyRow> {
    let mut rows: Vec<TagKeyRow> = merged
        .keys
        .iter()
        .map(|(key, &values)| TagKeyRow {
            key: key.to_string(),
            values,
            growth: past.map_or(0, |past| past.values.growth(key, values)),
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.values));
    rows.into_iter()
}

/// Raises and clears alerts. An alert is cleared when its key has fewer than half of the values that raised it.
fn alerts(alerts: &mut BTreeSet<String>, merged: &MergedUsage, limit: Option<u64>) -> Vec<String> {
    let Some(limit) = limit else { return Vec::new() };
    let mut lines = Vec::new();
    alerts.retain(|key| {
        let values = merged.keys.get(key.as_str()).copied().unwrap_or(0);
        if values >= limit / 2 {
            return true;
        }
        lines.push(format!(
            "tag key {}: back to {values} different values",
            printable(key.as_bytes())
        ));
        false
    });
    for (key, &values) in &merged.keys {
        if values > limit && alerts.len() < ALERTS_MAX && !alerts.contains(&**key) {
            alerts.insert(key.to_string());
            lines.push(format!(
                "tag key {}: {values} different values, more than {limit} (tag_values_alert)",
                printable(key.as_bytes())
            ));
        }
    }
    lines
}

/// Text for users.
pub fn origin_name(text: &str) -> String {
    if text.is_empty() {
        return "unknown".into();
    }
    let key = OriginKey::from_text(text);
    if !key.sender.is_empty() {
        return format!("container {}", key.sender);
    }
    let parts = [
        ("local", key.fields.local),
        ("external", key.fields.external),
        ("entity", key.entity_id),
    ];
    let said = parts
        .into_iter()
        .filter_map(|(what, said)| Some(format!("{what} {}", said?)));
    let said: Vec<String> = said.collect();
    if said.is_empty() {
        "unknown".into()
    } else {
        said.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_context::{LimitReason, LimitedMetric};

    fn usage(alert: Option<u64>) -> Usage {
        Usage::new(Settings {
            workers: 2,
            bucket_seconds: 10,
            tag_values_alert: alert,
        })
    }

    fn summary(metrics: &[(&str, u64, u64)], keys: &[(&str, u64)]) -> UsageSummary {
        UsageSummary {
            contexts: metrics.iter().map(|(_, contexts, _)| contexts).sum(),
            metrics: metrics
                .iter()
                .map(|&(name, contexts, samples)| MetricUsage {
                    name: name.into(),
                    contexts,
                    samples,
                })
                .collect(),
            metrics_live: metrics.len() as u64,
            tag_keys: keys
                .iter()
                .map(|&(key, values)| TagKeyUsage {
                    key: key.into(),
                    values,
                })
                .collect(),
            tag_keys_live: keys.len() as u64,
            ..UsageSummary::default()
        }
    }

    #[test]
    fn workers_are_merged_and_compared_with_an_hour_ago() {
        let usage = usage(None);
        assert_eq!(usage.report(5), None);
        usage.take(0, summary(&[("a", 5, 10), ("b", 1, 400)], &[("k", 3)]), 1000);
        assert_eq!(usage.report(5).unwrap().growth_seconds, 0);
        for at in (1010..1000 + 2 * GROWTH_SECONDS).step_by(10) {
            let grown = 5 + (at - 1000) / 100;
            usage.take(0, summary(&[("a", grown, 10), ("b", 1, 400)], &[("k", 3)]), at);
        }
        let at = 1000 + 2 * GROWTH_SECONDS;
        usage.take(1, summary(&[("a", 100, 0), ("new", 7, 0)], &[("k", 2)]), at);
        let report = usage.report(2).unwrap();
        assert!(
            (GROWTH_SECONDS..GROWTH_SECONDS + HISTORY_SECONDS).contains(&report.growth_seconds),
            "{report:?}"
        );
        assert_eq!(report.metrics_by_contexts.len(), 2);
        let a = &report.metrics_by_contexts[0];
        assert_eq!((a.metric.as_str(), a.contexts), ("a", 76 + 100));
        let then = 5 + (at - report.growth_seconds - 1000) / 100;
        assert_eq!(a.growth, 176 - then as i64);
        let new = &report.metrics_by_contexts[1];
        assert_eq!((new.metric.as_str(), new.growth), ("new", 7));
        let most = &report.metrics_by_samples[0];
        assert_eq!((most.metric.as_str(), most.samples_per_second), ("b", 40.0));
        assert_eq!((report.tag_keys[0].values, report.tag_keys[0].growth), (5, 2));
        assert!(usage.heap_bytes() > 0);
        assert!(usage.lock().history.len() <= 14);
    }

    #[test]
    fn growth_and_mentions_go_on_after_the_clock_was_set_back() {
        let usage = usage(None);
        let take = |contexts, at| {
            let limited = vec![LimitedMetric {
                name: "a".into(),
                reason: LimitReason::Metric,
                samples: 1,
                tag_key: None,
                origin: Box::default(),
            }];
            let summary = UsageSummary {
                limited,
                ..summary(&[("a", contexts, 0)], &[])
            };
            usage.take(0, summary, at).len()
        };
        assert_eq!((take(1, 10_000), take(2, 10_010)), (1, 0));
        // An hour back.
        assert_eq!((take(3, 6_400), take(5, 6_410)), (1, 0));
        let report = usage.report(1).unwrap();
        assert_eq!(
            (report.growth_seconds, report.metrics_by_contexts[0].growth),
            (10, 2)
        );
    }

    #[test]
    fn alerts_are_raised_once_and_end_at_half() {
        let usage = usage(Some(100));
        let take = |values, at| usage.take(0, summary(&[("a", 1, 0)], &[("user", values)]), at);
        assert!(take(100, 10).is_empty());
        assert!(take(101, 20)[0].contains("101 different values"));
        assert!(take(5000, 30).is_empty());
        assert!(take(50, 40).is_empty());
        let mut limits = LimitStatus::default();
        usage.fill(&mut limits);
        assert_eq!(limits.tag_keys[0].values, 50);
        assert!(take(49, 50)[0].contains("back to 49"));
        usage.fill(&mut limits);
        assert!(limits.tag_keys.is_empty());
    }

    #[test]
    fn an_offender_is_named_at_once_and_then_once_a_minute() {
        let usage = usage(None);
        let with = |samples| UsageSummary {
            limited: vec![LimitedMetric {
                name: "a\n".into(),
                reason: LimitReason::Metric,
                samples,
                tag_key: Some(("user".into(), 40)),
                origin: "|||||abc".into(),
            }],
            ..summary(&[("a", 1, 0)], &[])
        };
        let lines = usage.take(0, with(3), 10);
        assert_eq!(lines.len(), 1);
        for part in ["3 samples", "metric_share", "tag \"user\"", "container abc"] {
            assert!(lines[0].contains(part), "{lines:?}");
        }
        assert!(!lines[0].contains('\n'));
        assert!(usage.take(0, with(3), 20).is_empty());
        assert_eq!(usage.take(1, with(4), 70).len(), 1);
        let report = usage.report(9).unwrap();
        assert_eq!((report.limited[0].samples, report.limited[0].tag_values), (7, 40));
        assert_eq!(report.limited[0].origin, "container abc");
    }
}
