//! Batches into lines of carbon's plain-text protocol.

use std::borrow::Cow;

use weir_aggregate::{Batch, Series, Value};
use weir_protocol::Kind;

use super::timers::Timers;
use super::{Characters, CounterForm, GraphiteSettings, Tags, names};
use crate::claims::{ClaimResult, Claims, Notes, Renamed, rank};
use crate::delivery::{Class, Counter, Draft, Encode, Encoded, Items, Reason};
use crate::text_lines::{Aggregate, Host, Part, Summary, push_integer, push_value};

/// Bytes in one payload: large, as each is a connection over TCP.
const PAYLOAD_BYTES: usize = 1 << 20;
/// The longest name; carbon closes the connection at a line of 16 KiB.
const PATH_BYTES_MAX: usize = 4096;

pub struct GraphiteEncoder {
    tags: Tags,
    characters: Characters,
    host: Host,
    /// By kind, each with a dot at its end, or empty.
    prefixes: [String; Kind::COUNT],
    counters: Vec<CounterLine>,
    /// The values written for a histogram, with their suffixes.
    parts: Vec<(Part, String)>,
    /// StatsD's values, in place of `parts`.
    timers: Option<Timers>,
    line_bytes_max: usize,
    claims: Claims,
    names: Names,
    text: Vec<u8>,
    count: u32,
    renamed: Renamed,
    notes: Notes,
}

/// One line of a counter.
struct CounterLine {
    prefix: String,
    suffix: &'static str,
    is_rate: bool,
}

/// The parts of one series' path; the suffix of a value goes between or behind them.
#[derive(Default)]
struct Names {
    /// With the prefix.
    base: String,
    /// Bytes of the prefix.
    prefix_length: usize,
    /// `;key=value`, sorted, or `.key.value`.
    tags: String,
    path: String,
}

impl GraphiteEncoder {
    /// `claims_bytes_max` bounds the memory for telling paths apart.
    pub fn new(settings: &GraphiteSettings, claims_bytes_max: u64, notes: Notes) -> Self {
        let percentile_suffix = |fraction| format!(".{}", names::percentile(fraction));
        let parts = Part::list(
            &settings.aggregates,
            &settings.percentiles,
            aggregate_suffix,
            percentile_suffix,
        );
        let mut counters = settings.counters.clone();
        counters.dedup();
        let is_udp = settings.address.starts_with("udp:");
        Self {
            tags: settings.tags,
            characters: settings.characters,
            host: settings.host,
            prefixes: Kind::ALL.map(|kind| prefix(settings, kind)),
            counters: counters
                .iter()
                .map(|form| counter_line(settings, *form))
                .collect(),
            parts,
            timers: Timers::new(&settings.timers, &settings.percentiles),
            line_bytes_max: if is_udp {
                settings.datagram_bytes_max
            } else {
                usize::MAX
            },
            claims: Claims::new(claims_bytes_max),
            names: Names::default(),
            text: Vec::new(),
            count: 0,
            renamed: Renamed::default(),
            notes,
        }
    }

    fn series(&mut self, series: &Series<'_>, bucket: i64, out: &mut Encoded) {
        let mut names = std::mem::take(&mut self.names);
        let prefix = &self.prefixes[series.kind() as usize];
        let changed = names.fill(series, prefix, (self.tags, self.characters), self.host);
        let rank = rank(series, changed);
        let mut line = |this: &mut Self, suffix: &str, value: f64| {
            this.line(&mut names, series, suffix, value, rank, bucket, out);
        };
        match series.value() {
            Value::Counter(sum) => {
                let rate = sum / f64::from(series.interval().max(1));
                let counters = std::mem::take(&mut self.counters);
                for form in &counters {
                    names.set_prefix(&form.prefix);
                    let value = if form.is_rate { rate } else { sum };
                    self.line(&mut names, series, form.suffix, value, rank, bucket, out);
                }
                self.counters = counters;
            }
            Value::Gauge(value) => line(self, "", value),
            Value::Set(set) => line(self, "", set.cardinality() as f64),
            Value::Distribution(sketch) if sketch.is_empty() => {}
            value @ (Value::Histogram(_) | Value::Distribution(_)) if self.timers.is_some() => {
                let timers = self.timers.take();
                let interval = f64::from(series.interval().max(1));
                if let Some(timers) = &timers {
                    timers.each(value, interval, |suffix, value| line(self, suffix, value));
                }
                self.timers = timers;
            }
            Value::Histogram(histogram) => self.summary(&Summary::of_histogram(histogram), &mut line),
            Value::Distribution(sketch) => self.summary(&Summary::Sketch(sketch), &mut line),
        }
        self.names = names;
    }

    fn summary(&mut self, summary: &Summary<'_>, line: &mut dyn FnMut(&mut Self, &str, f64)) {
        let parts = std::mem::take(&mut self.parts);
        for (part, suffix) in &parts {
            line(self, suffix, summary.get(*part));
        }
        self.parts = parts;
    }

    fn line(
        &mut self,
        names: &mut Names,
        series: &Series<'_>,
        suffix: &str,
        value: f64,
        rank: u64,
        bucket: i64,
        out: &mut Encoded,
    ) {
        if !value.is_finite() {
            return out.dropped(Reason::NotFinite, Class::Points, 1);
        }
        names.compose("", suffix, self.tags);
        match self.claims.claim(names.path.as_bytes(), rank, bucket) {
            ClaimResult::Granted => {}
            ClaimResult::Unchecked => self.renamed.unchecked += 1,
            ClaimResult::Refused => {
                names.compose(&format!("_{:08x}", rank as u32), suffix, self.tags);
                self.renamed.count(series, &names.path);
            }
        }
        let before = self.text.len();
        self.text.extend_from_slice(names.path.as_bytes());
        self.text.push(b' ');
        push_value(&mut self.text, value);
        self.text.push(b' ');
        push_integer(&mut self.text, series.timestamp());
        self.text.push(b'\n');
        if names.path.len() > PATH_BYTES_MAX || self.text.len() - before > self.line_bytes_max {
            self.text.truncate(before);
            return out.dropped(Reason::TooLarge, Class::Points, 1);
        }
        if self.text.len() > PAYLOAD_BYTES {
            let rest = self.text.split_off(before);
            self.end_payload(out);
            self.text = rest;
        }
        self.count += 1;
    }

    fn end_payload(&mut self, out: &mut Encoded) {
        if self.count > 0 {
            out.payloads.push(Draft {
                route: 0,
                class: Class::Points,
                count: std::mem::take(&mut self.count),
                body: std::mem::take(&mut self.text),
            });
        }
    }
}

/// In front of the names of this kind.
fn prefix(settings: &GraphiteSettings, kind: Kind) -> String {
    let of_kind = settings.kind_prefixes.get(kind.as_str()).map(String::as_str);
    dotted([settings.prefix.as_str(), of_kind.unwrap_or_default()])
}

/// The parts that are not empty, each with a dot behind it.
fn dotted(parts: [&str; 2]) -> String {
    let parts = parts.iter().filter(|part| !part.is_empty());
    parts.map(|part| format!("{part}.")).collect()
}

fn counter_line(settings: &GraphiteSettings, form: CounterForm) -> CounterLine {
    let own = &settings.prefix;
    let (prefix, suffix, is_rate) = match form {
        CounterForm::Count => (prefix(settings, Kind::Counter), ".count", false),
        CounterForm::Rate => (prefix(settings, Kind::Counter), ".rate", true),
        CounterForm::LegacyCount if own.is_empty() => ("counts.".to_owned(), "", false),
        CounterForm::LegacyCount => (format!("{own}_counts."), "", false),
        CounterForm::LegacyRate => (dotted([own, ""]), "", true),
    };
    CounterLine {
        prefix,
        suffix,
        is_rate,
    }
}

fn aggregate_suffix(aggregate: Aggregate) -> &'static str {
    match aggregate {
        Aggregate::Count => ".count",
        Aggregate::Min => ".min",
        Aggregate::Max => ".max",
        Aggregate::Avg => ".avg",
        Aggregate::Sum => ".sum",
    }
}

impl Names {
    /// Takes the names of a series. Returns whether any part had to be changed.
    fn fill(
        &mut self,
        series: &Series<'_>,
        prefix: &str,
        (form, characters): (Tags, Characters),
        host: Host,
    ) -> bool {
        self.base.clear();
        self.base.push_str(prefix);
        self.prefix_length = prefix.len();
        self.tags.clear();
        let mut changed = names::push_name(&mut self.base, series.name(), characters);
        let host = host.of(series);
        if form == Tags::None {
            return changed || host.is_some() || series.tags().len() > 0;
        }
        let tags = series
            .tags()
            .map(|tag| tag.split_once(':').unwrap_or((tag, "true")));
        let mut tags: Vec<(Cow<'_, str>, &str)> = tags
            .chain(host.map(|host| ("host", host)))
            .map(|(key, value)| (names::key(key, form), value))
            .collect();
        // As carbon sorts them; of tags with one key it would keep the last alone.
        tags.sort_unstable();
        let mut last_key = None;
        for (key, value) in &tags {
            changed |= matches!(key, Cow::Owned(_)) || value.is_empty();
            if value.is_empty() {
                continue;
            }
            let again = last_key == Some(key);
            last_key = Some(key);
            match form {
                Tags::Tagged if again => self.tags.push(','),
                Tags::Tagged => {
                    self.tags.push(';');
                    self.tags.push_str(key);
                    self.tags.push('=');
                }
                _ => {
                    if !again {
                        self.tags.push('.');
                        self.tags.push_str(key);
                    }
                    self.tags.push('.');
                }
            }
            changed |= match form {
                Tags::Tagged => names::push_value(&mut self.tags, value),
                _ => names::push_node(&mut self.tags, value),
            };
        }
        changed
    }

    /// Another prefix for the same name.
    fn set_prefix(&mut self, prefix: &str) {
        if self.base[..self.prefix_length] != *prefix {
            self.base.replace_range(..self.prefix_length, prefix);
            self.prefix_length = prefix.len();
        }
    }

    /// Puts the path of one value together.
    fn compose(&mut self, distinction: &str, suffix: &str, form: Tags) {
        let Self { base, tags, path, .. } = self;
        path.clear();
        // The suffix comes last: Graphite chooses by the end of a name how it aggregates old points.
        let parts = match form {
            Tags::Tagged => [base.as_str(), distinction, suffix, tags.as_str()],
            Tags::Path | Tags::None => [base.as_str(), tags.as_str(), distinction, suffix],
        };
        parts.iter().for_each(|part| path.push_str(part));
    }
}

impl Encode for GraphiteEncoder {
    fn counter(&self) -> Counter {
        let parts = self.timers.as_ref().map_or(self.parts.len(), Timers::len) as u64;
        let counters = self.counters.len() as u64;
        let lines = move |series: Series<'_>| match series.value() {
            Value::Counter(_) => counters,
            Value::Gauge(_) | Value::Set(_) => 1,
            Value::Distribution(sketch) if sketch.is_empty() => 0,
            Value::Histogram(_) | Value::Distribution(_) => parts,
        };
        Box::new(move |batch| Items::of_batch(batch, batch.series().map(lines).sum()))
    }

    fn reserved_bytes(&self) -> u64 {
        self.claims.bytes_max()
    }

    fn encode(&mut self, batch: &Batch, out: &mut Encoded) {
        let bucket = batch.bucket.timestamp;
        for series in batch.yielding_series() {
            self.series(&series, bucket, out);
        }
        out.points_only(batch);
        if batch.last {
            self.claims.sweep(bucket);
            self.renamed.note(&self.notes);
        }
    }

    fn finish(&mut self, out: &mut Encoded) {
        self.end_payload(out);
    }

    fn open(&self) -> Items {
        Items::of(Class::Points, u64::from(self.count))
    }
}
