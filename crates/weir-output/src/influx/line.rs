//! One series as one line: `measurement,tag=value field=1,field=2 time`.

use std::borrow::Cow;

use weir_aggregate::{Series, Value};
use weir_config::{SettingType, choices, settings};

use super::names;
use crate::delivery::Reason;
use crate::text_lines::{Aggregate, Host, Part, Summary, percent, push_integer, push_value};

/// The tag with the kind of a metric.
pub const KIND_KEY: &str = "metric_type";
/// The tag that distinguishes series with otherwise equal lines.
pub const DISTINCTION_KEY: &str = "weir_series";
/// The longest measurement with its tags that InfluxDB takes.
const SERIES_BYTES_MAX: usize = 65_535;

settings! {
    /// The form of lines.
    pub struct LineSettings {
        host: Host = "all"
            .effect("The series that get the tag `host`: all of them, series whose messages name one (`host:web1`), or none.")
            .change("if you run a single agent. With several, series without their host overwrite each other.");
        metric_type: bool = "true"
            .effect("Adds the tag `metric_type`: `counter`, `gauge`, `set`, `histogram`, `timing` or `distribution`, as Telegraf's statsd input does. It distinguishes metrics with one name and several kinds.")
            .change("if your names have one kind each.");
        integers: bool = "false"
            .effect("Writes counters, sets and the field `count` as integers (`5i`), as Telegraf does; fractions from a sample rate are rounded. A field keeps its type in InfluxDB, so use another database or measurement after a change.")
            .change("if you write to measurements that Telegraf has filled.");
        aggregates: Vec<Aggregate> = "[count, min, max, avg, sum]"
            .effect("Fields of histograms, timings and distributions, besides percentiles: `count`, `lower`, `upper`, `mean` and `sum`.")
            .zero("With an empty list only percentiles.")
            .change("if you want fewer fields.");
        percentiles: Vec<f64> = "[0.5, 0.95, 0.99]"
            .takes(SettingType::List(&SettingType::Number { min: 0.0, max: 1.0 }))
            .effect("Percentiles of histograms, timings and distributions: 0.5 is the field `50_percentile`, 0.999 is `99.9_percentile`.")
            .zero("With an empty list none.")
            .change("if your dashboards need another one.");
        precision: Precision = "ns"
            .effect("The unit of times. Over HTTP each request names it. Over UDP set the same unit at the receiver; all receivers use nanoseconds by default.")
            .change("if your receiver is set to another unit.");
    }
}

choices! {
    /// The unit of times. The numbers are in disk queues.
    pub enum Precision {
        Nanoseconds = 0: "ns",
        Milliseconds = 1: "ms",
        Seconds = 2: "s",
    }
}

impl Precision {
    fn per_second(self) -> i64 {
        match self {
            Precision::Nanoseconds => 1_000_000_000,
            Precision::Milliseconds => 1_000,
            Precision::Seconds => 1,
        }
    }
}

/// Whether there is a line for a series: there is one unless it has no value, or none of its values is asked for.
pub fn has_line(series: &Series<'_>, has_parts: bool) -> bool {
    match series.value() {
        Value::Counter(_) | Value::Gauge(_) | Value::Set(_) => true,
        Value::Histogram(_) => has_parts,
        Value::Distribution(sketch) => has_parts && !sketch.is_empty(),
    }
}

/// Measurement and tags of a line, and the names of its fields.
pub fn series_of(line: &str) -> Option<String> {
    let bytes = line.as_bytes();
    let end = (0..bytes.len()).find(|&at| bytes[at] == b' ' && (at == 0 || bytes[at - 1] != b'\\'))?;
    let fields = line[end + 1..].split(' ').next()?.split(',');
    let names: Vec<&str> = fields
        .filter_map(|field| Some(field.split_once('=')?.0))
        .collect();
    Some(format!("{} {}", &line[..end], names.join(",")))
}

/// Turns series into lines.
pub struct LineWriter {
    settings: LineSettings,
    /// The fields of a histogram, timing or distribution.
    parts: Vec<(Part, String)>,
    /// Measurement and tags of the series at hand.
    key: String,
}

impl LineWriter {
    pub fn new(settings: LineSettings) -> Self {
        let parts = Part::list(
            &settings.aggregates,
            &settings.percentiles,
            aggregate_field,
            |fraction| format!("{}_percentile", percent(fraction)),
        );
        Self {
            settings,
            parts,
            key: String::new(),
        }
    }

    /// Whether a histogram, timing or distribution has any field.
    pub(super) fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Appends the line of a series, with its line feed, if it has one. Fails, and leaves `out` unchanged, if the line is invalid.
    pub fn push(&mut self, series: &Series<'_>, out: &mut Vec<u8>) -> Result<(), Reason> {
        self.set_series(series);
        self.push_line(series, out)
    }

    /// Takes measurement and tags of a series. Returns whether something of them was lost, so that another series may have the same.
    pub(super) fn set_series(&mut self, series: &Series<'_>) -> bool {
        self.key.clear();
        let changed = names::push_measurement(&mut self.key, series.name());
        changed | self.push_tags(series)
    }

    /// Measurement and tags as they are in the line.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Adds a tag that no other series has.
    pub(super) fn distinguish(&mut self, number: u32) {
        self.key += &format!(",{DISTINCTION_KEY}={number:08x}");
    }

    fn push_tags(&mut self, series: &Series<'_>) -> bool {
        let own: &[&str] = match self.settings.metric_type {
            true => &[DISTINCTION_KEY, KIND_KEY],
            false => &[DISTINCTION_KEY],
        };
        let of_series = series
            .tags()
            .map(|tag| tag.split_once(':').unwrap_or((tag, "true")))
            .chain(self.settings.host.of(series).map(|host| ("host", host)));
        let mut changed = false;
        let mut tags: Vec<(Cow<'_, str>, &str)> = Vec::with_capacity(series.tags().len() + 2);
        for (key, value) in of_series {
            let (key, is_lossy) = names::key(key, own);
            changed |= is_lossy || value.is_empty();
            tags.push((key, value));
        }
        let kind = (Cow::Borrowed(KIND_KEY), series.kind().as_str());
        tags.extend(self.settings.metric_type.then_some(kind));
        // As InfluxDB sorts them; a key that comes twice it refuses.
        tags.sort_unstable();
        let mut last = None;
        for (key, value) in tags.iter().filter(|(_, value)| !value.is_empty()) {
            if last == Some(key) {
                self.key.push_str("\\,");
            } else {
                self.key.push(',');
                self.key.push_str(key);
                self.key.push('=');
            }
            last = Some(key);
            changed |= names::push_tag(&mut self.key, value);
        }
        changed
    }

    /// Appends the line of the series that was taken last.
    pub(super) fn push_line(&self, series: &Series<'_>, out: &mut Vec<u8>) -> Result<(), Reason> {
        if !has_line(series, self.has_parts()) {
            return Ok(());
        }
        if self.key.len() > SERIES_BYTES_MAX {
            return Err(Reason::TooLarge);
        }
        let before = out.len();
        out.extend_from_slice(self.key.as_bytes());
        if !self.push_fields(series, out) {
            out.truncate(before);
            return Err(Reason::NotFinite);
        }
        out.push(b' ');
        push_integer(
            out,
            series
                .timestamp()
                .saturating_mul(self.settings.precision.per_second()),
        );
        out.push(b'\n');
        Ok(())
    }

    /// False: a value is not finite, or does not fit the integer that it has to be.
    fn push_fields(&self, series: &Series<'_>, out: &mut Vec<u8>) -> bool {
        let is_integer = self.settings.integers;
        match series.value() {
            Value::Counter(sum) => push_field(out, b' ', "value", sum, is_integer),
            Value::Gauge(value) => push_field(out, b' ', "value", value, false),
            Value::Set(set) => push_field(out, b' ', "value", set.cardinality() as f64, is_integer),
            Value::Histogram(histogram) => self.push_parts(&Summary::of_histogram(histogram), out),
            Value::Distribution(sketch) => self.push_parts(&Summary::Sketch(sketch), out),
        }
    }

    fn push_parts(&self, summary: &Summary<'_>, out: &mut Vec<u8>) -> bool {
        let mut separator = b' ';
        self.parts.iter().all(|(part, name)| {
            let is_integer = self.settings.integers && matches!(part, Part::Aggregate(Aggregate::Count));
            push_field(
                out,
                std::mem::replace(&mut separator, b','),
                name,
                summary.get(*part),
                is_integer,
            )
        })
    }
}

fn push_field(out: &mut Vec<u8>, separator: u8, name: &str, value: f64, is_integer: bool) -> bool {
    out.push(separator);
    out.extend_from_slice(name.as_bytes());
    out.push(b'=');
    if is_integer {
        // The number would become another one.
        let limit = -(i64::MIN as f64);
        if !(-limit..limit).contains(&value.round()) {
            return false;
        }
        push_integer(out, value.round() as i64);
        out.push(b'i');
    } else if value.is_finite() {
        push_value(out, value);
    }
    value.is_finite()
}

/// As Telegraf calls them.
fn aggregate_field(aggregate: Aggregate) -> &'static str {
    match aggregate {
        Aggregate::Count => "count",
        Aggregate::Min => "lower",
        Aggregate::Max => "upper",
        Aggregate::Avg => "mean",
        Aggregate::Sum => "sum",
    }
}
