//! Batches into cumulative samples.
//!
//! Rows add up in a state like that of the scrape endpoint. When a bucket is complete, every series is written once with what it
//! then stands at: as if it was scraped at the end of each bucket. Each request has at most one sample of a series, so that a
//! request which is repeated after an unclear answer changes nothing.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_aggregate::{Batch, Weights};
use weir_protocol::Kind;

use super::request::{Metadata, Request, STALE, Sample, Times};
use super::settings::RemoteWriteSettings;
use crate::delivery::{Class, Clock, Counter, Encode, Encoded, EncoderState, Items};
use crate::prometheus::names::{for_each_label, unescape};
use crate::prometheus::state::{
    Blocks, CumulativeState, Family, Row, Seconds, SeriesState, Value, is_compound, style,
};
use crate::prometheus::{Native, NoState, SavedAt, SavedPartitions, help};
use crate::settings::{HistogramStyle, PrometheusSettings};
use crate::timeline::{SampleTimes, Timeline};

/// Interval at which version 1.0 repeats the description of a metric.
const METADATA_SECONDS: Seconds = 60;

/// Prometheus's names of the kinds, with their numbers in both versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Counter = 1,
    Gauge = 2,
    Histogram = 3,
    Summary = 5,
}

/// Beside each metric.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MetricData {
    is_written: bool,
    /// By this process's clock; another process describes it again.
    #[serde(skip)]
    described: Option<Seconds>,
}

/// Beside each series.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SeriesData {
    /// When its current values began, Unix milliseconds; zero until it is written.
    start: i64,
    /// Rows since it was last written.
    #[serde(skip)]
    rows: u32,
}

type Metric = Family<MetricData, SeriesData>;
type OneSeries = SeriesState<SeriesData>;

/// Facts for the status.
#[derive(Debug, Default)]
pub struct Facts {
    pub series: AtomicU64,
    pub renamed: AtomicU64,
    pub merged: AtomicU64,
    pub bytes: AtomicU64,
}

pub struct RemoteWriteEncoder {
    state: CumulativeState<MetricData, SeriesData>,
    request: Request,
    clock: Clock,
    facts: Arc<Facts>,
    repeat_idle: bool,
    zero_samples: bool,
    instance_label: bool,
    labels: Labels,
    quantiles: Vec<String>,
    timeline: Timeline,
    lineage: String,
    /// Rows that no sample has been written for.
    pending: u64,
}

impl RemoteWriteEncoder {
    pub fn new(
        settings: &RemoteWriteSettings,
        weights: Weights,
        bytes_max: u64,
        clock: Clock,
        facts: Arc<Facts>,
    ) -> Self {
        let as_scrape = settings.as_scrape();
        let quantiles = as_scrape.quantiles.iter().map(|q| format!("{q:?}")).collect();
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let state = CumulativeState::new(as_scrape, weights, bytes_max);
        RemoteWriteEncoder {
            state,
            request: Request::new(settings.version, settings.samples_per_payload_max),
            timeline: Timeline::new(clock.clone()),
            lineage: lineage(settings),
            clock,
            facts,
            repeat_idle: settings.repeat_idle,
            zero_samples: settings.zero_samples,
            instance_label: settings.instance_label,
            labels: Labels::new(settings.labels.clone().into_iter().collect()),
            quantiles,
            pending: 0,
        }
    }

    fn now(&self) -> Seconds {
        Seconds::try_from(self.clock.now().as_secs()).unwrap_or(Seconds::MAX)
    }

    fn take(&mut self, batch: &Batch, out: &mut Encoded) {
        if self.instance_label {
            self.instance_label = false;
            self.labels.add_if_free("instance", &batch.hostname);
        }
        let now = self.now();
        self.state.for_each_row(batch, |state, series| {
            let row = Row::of(&series);
            match state.add(&row, series.tags(), series.value(), now) {
                Ok((family, at)) => {
                    state.families[family].series[at].kept.rows += 1;
                    self.pending += 1;
                }
                Err(reason) => out.dropped(reason, Class::Points, 1),
            }
        });
    }

    /// Writes the rows after the last bucket.
    fn flush_pending(&mut self, out: &mut Encoded) {
        if self.pending > 0 {
            let moments = self.timeline.now();
            self.flush(moments, out);
        }
    }

    /// Writes what every series stands at: within a flush those of renamed series end first, then new series begin, then come
    /// the values, then expired series end.
    fn flush(&mut self, moments: SampleTimes, out: &mut Encoded) {
        self.rename(moments.before, out);
        self.begin(moments.begin, out);
        self.values(moments.at, out);
        self.expire(out);
        self.request.rest();
        let facts = &self.facts;
        for (fact, value) in [
            (&facts.series, self.state.series_count() as u64),
            (&facts.renamed, self.state.renamed as u64),
            (&facts.merged, self.state.counts.merged),
            (&facts.bytes, self.state.heap_bytes() as u64),
        ] {
            fact.store(value, Ordering::Relaxed);
        }
    }

    /// Gives metrics their names. Series whose name has changed end under the old one, and begin again.
    fn rename(&mut self, at: i64, out: &mut Encoded) {
        if !self.state.names_are_stale() {
            return;
        }
        let before: Vec<Option<Box<str>>> = self
            .state
            .families
            .iter()
            .map(|family| family.renamed.clone())
            .collect();
        self.state.name_families();
        let mut writer = self.writer();
        for (family, before) in writer.families.iter_mut().zip(before) {
            if !family.kept.is_written || before == family.renamed {
                continue;
            }
            let after = std::mem::replace(&mut family.renamed, before);
            let texts = Texts::of(family, writer.out.styles);
            for series in &family.series {
                writer.out.stale(&texts, series, at, out);
            }
            family.renamed = after;
            family.kept = MetricData::default();
            family.series.iter_mut().for_each(|series| series.kept.start = 0);
        }
        self.request.finish(out);
    }

    /// Begins the series that are new.
    fn begin(&mut self, at: i64, out: &mut Encoded) {
        let zero_samples = self.zero_samples;
        let zero = Native::default();
        let mut writer = self.writer();
        for family in writer.families.iter_mut() {
            let mut texts = None;
            let mut all = std::mem::take(&mut family.series);
            for series in all.iter_mut().filter(|series| series.kept.start == 0) {
                series.kept.start = at;
                if zero_samples && is_cumulative(family.kind) {
                    let texts = texts.get_or_insert_with(|| Texts::of(family, writer.out.styles));
                    writer.out.write(texts, series, at, SeriesForm::Zero(&zero));
                    writer.out.made(out);
                }
            }
            family.series = all;
        }
        self.request.finish(out);
    }

    fn values(&mut self, at: i64, out: &mut Encoded) {
        let now = self.now();
        let repeat_idle = self.repeat_idle;
        let mut written = 0;
        let mut writer = self.writer();
        // Native histograms have separate requests: a receiver without them accepts the rest.
        for are_native in [false, true] {
            for family in writer.families.iter_mut() {
                if writer.out.styles.is_native(family.kind) != are_native {
                    continue;
                }
                let is_due = |series: &OneSeries| repeat_idle || series.kept.rows > 0;
                if !family.series.iter().any(is_due) {
                    continue;
                }
                let texts = Texts::of(family, writer.out.styles);
                family.kept.is_written = true;
                let described = family.kept.described;
                if described.is_none_or(|at| now.saturating_sub(at) >= METADATA_SECONDS) {
                    family.kept.described = Some(now);
                    writer.out.request.metadata(&texts.metadata());
                }
                for series in &mut family.series {
                    let rows = std::mem::take(&mut series.kept.rows);
                    if rows == 0 && !repeat_idle {
                        continue;
                    }
                    writer.out.write(&texts, series, at, SeriesForm::Value);
                    if rows == 0 {
                        writer.out.made(out);
                    } else {
                        written += u64::from(rows);
                        writer.out.request.counts_as(rows, out);
                    }
                }
            }
            writer.out.request.finish(out);
        }
        self.pending -= written;
    }

    /// Ends the series that got no sample for too long.
    fn expire(&mut self, out: &mut Encoded) {
        let now = self.now();
        let mut writer = Output {
            request: &mut self.request,
            labels: &self.labels,
            quantiles: &self.quantiles,
            styles: Styles::of(&self.state.settings),
            scratch: String::new(),
        };
        let (timeline, mut at) = (&mut self.timeline, None);
        self.state.expire_with(now, |family, series| {
            let at = *at.get_or_insert_with(|| timeline.after());
            let texts = Texts::of(family, writer.styles);
            writer.stale(&texts, series, at, out);
        });
        self.request.finish(out);
    }

    fn writer(&mut self) -> Writer<'_> {
        let styles = Styles::of(&self.state.settings);
        Writer {
            families: &mut self.state.families,
            out: Output {
                request: &mut self.request,
                labels: &self.labels,
                quantiles: &self.quantiles,
                styles,
                scratch: String::new(),
            },
        }
    }
}

impl Encode for RemoteWriteEncoder {
    fn counter(&self) -> Counter {
        Box::new(|batch| {
            let rows = batch.series().filter(|series| !series.is_idle()).count();
            Items::of(Class::Points, rows as u64)
        })
    }

    fn encode(&mut self, batch: &Batch, out: &mut Encoded) {
        self.take(batch, out);
        if batch.last {
            // A series is written in the bucket after its last sample at the earliest.
            let least = Duration::from_secs(2 * u64::from(batch.bucket.width));
            self.state.settings.expiry = self.state.settings.expiry.max(least);
            let moments = self.timeline.bucket(batch.bucket);
            self.flush(moments, out);
        }
    }

    fn finish(&mut self, out: &mut Encoded) {
        self.request.finish(out);
    }

    fn open(&self) -> Items {
        self.request.open() + Items::of(Class::Points, self.pending)
    }

    fn state(&mut self) -> Option<&mut dyn EncoderState> {
        Some(self)
    }
}

impl EncoderState for RemoteWriteEncoder {
    /// Writes the rows after the last bucket, and ends every series.
    fn end(&mut self, out: &mut Encoded) {
        self.flush_pending(out);
        let at = self.timeline.after();
        let writer = self.writer();
        let mut output = writer.out;
        for family in writer.families.iter() {
            let texts = Texts::of(family, output.styles);
            for series in &family.series {
                output.stale(&texts, series, at, out);
            }
        }
        self.request.finish(out);
    }

    fn lineage(&self) -> String {
        self.lineage.clone()
    }

    fn limit(&mut self, bytes_max: u64) {
        self.state.bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
    }

    fn bytes(&self) -> u64 {
        self.state.heap_bytes() as u64
    }

    fn inherit(&mut self, other: Box<dyn Any>) {
        if let Ok(other) = other.downcast::<Self>() {
            let expiry = std::mem::replace(&mut self.state, other.state).settings.expiry;
            self.state.settings.expiry = expiry;
            self.timeline = other.timeline;
            self.labels = other.labels;
            self.instance_label = other.instance_label;
            self.pending = other.pending;
        }
    }

    fn save(&mut self, out: &mut Encoded) -> Vec<u8> {
        self.flush_pending(out);
        self.state.save_behind(self.now(), self.timeline.head())
    }

    fn save_partitions(&mut self) -> SavedPartitions {
        self.state.save_partitions(self.now(), self.timeline.head())
    }

    fn restore(&mut self, saved: &[u8], of: SavedAt) -> Result<u64, NoState> {
        let state = self.timeline.resume_behind(saved)?;
        let now = self.now();
        self.state.restore(&state, of, now)
    }
}

/// All settings that change the receiver, names or kinds of values: if this text changes, series restart.
fn lineage(settings: &RemoteWriteSettings) -> String {
    let of_series = PrometheusSettings {
        expiry: Duration::ZERO,
        ..settings.as_scrape()
    };
    format!(
        "{:?}",
        (
            &settings.url,
            of_series,
            &settings.labels,
            settings.instance_label
        )
    )
}

/// The written parts of a series.
#[derive(Clone, Copy)]
enum SeriesForm<'a> {
    Value,
    /// Its start.
    Zero(&'a Native),
    Stale,
}

struct Writer<'a> {
    families: &'a mut Blocks<Metric>,
    out: Output<'a>,
}

/// Encoding of histograms and distributions.
#[derive(Clone, Copy)]
struct Styles {
    histograms: HistogramStyle,
    distributions: HistogramStyle,
}

impl Styles {
    fn of(settings: &crate::settings::PrometheusSettings) -> Self {
        Styles {
            histograms: style(settings, Kind::Histogram),
            distributions: style(settings, Kind::Distribution),
        }
    }

    fn is_native(self, kind: Kind) -> bool {
        let style = match kind {
            Kind::Distribution => self.distributions,
            Kind::Histogram | Kind::Timing => self.histograms,
            Kind::Counter | Kind::Gauge | Kind::Set => return false,
        };
        style == HistogramStyle::Native
    }
}

struct Output<'a> {
    request: &'a mut Request,
    labels: &'a Labels,
    quantiles: &'a [String],
    styles: Styles,
    scratch: String,
}

impl Output<'_> {
    /// A point that no batch brought.
    fn made(&mut self, out: &mut Encoded) {
        out.made += Items::of(Class::Points, 1);
        self.request.counts_as(1, out);
    }

    fn stale(&mut self, texts: &Texts, series: &OneSeries, at: i64, out: &mut Encoded) {
        if series.kept.start != 0 {
            self.write(texts, series, at, SeriesForm::Stale);
            self.made(out);
        }
    }

    /// All samples of one series of ours, each of which is a series to Prometheus.
    fn write(&mut self, texts: &Texts, series: &OneSeries, at: i64, shown: SeriesForm<'_>) {
        let start = match shown {
            SeriesForm::Stale => 0,
            _ if texts.kind == Type::Gauge => 0,
            _ => series.kept.start,
        };
        let (times, instant) = (Times { at, start }, Times { at, start: 0 });
        let number = |value: f64| match shown {
            SeriesForm::Value => Sample::Number(value),
            SeriesForm::Zero(_) => Sample::Number(0.0),
            SeriesForm::Stale => Sample::Number(STALE),
        };
        let (request, labels, scratch) = (&mut *self.request, self.labels, &mut self.scratch);
        let mut add = |name: &str, quantile: Option<&str>, sample, times| {
            request.add(
                |each| labels.merge(name, quantile, &series.labels, scratch, each),
                sample,
                times,
                &texts.metadata(),
            );
        };
        match &series.value {
            Value::Number(value) => add(&texts.name, None, number(*value), times),
            Value::Summary(summary) if texts.kind == Type::Histogram => {
                let sample = match (shown, &summary.native) {
                    (SeriesForm::Stale, _) => Sample::StaleHistogram,
                    (SeriesForm::Zero(zero), _) => Sample::Histogram(zero),
                    (SeriesForm::Value, Some(native)) => Sample::Histogram(native),
                    (SeriesForm::Value, None) => return,
                };
                add(&texts.name, None, sample, times);
            }
            Value::Summary(summary) => {
                if !matches!(shown, SeriesForm::Zero(_)) {
                    for (quantile, value) in self.quantiles.iter().zip(&summary.quantiles) {
                        add(&texts.name, Some(quantile), number(*value), instant);
                    }
                }
                add(&texts.sum, None, number(summary.sum), times);
                add(&texts.count, None, number(summary.weight.round()), times);
            }
        }
    }
}

/// The names of a metric's samples.
struct Texts {
    kind: Type,
    name: String,
    sum: String,
    count: String,
    help: String,
}

impl Texts {
    fn of(family: &Metric, styles: Styles) -> Self {
        let base = family.base();
        let kind = match family.kind {
            Kind::Counter => Type::Counter,
            Kind::Gauge | Kind::Set => Type::Gauge,
            kind if styles.is_native(kind) => Type::Histogram,
            _ => Type::Summary,
        };
        let with = |suffix: &str| format!("{base}{suffix}");
        let of_summary = |suffix: &str| {
            if kind == Type::Summary {
                with(suffix)
            } else {
                String::new()
            }
        };
        Texts {
            kind,
            name: with(if kind == Type::Counter { "_total" } else { "" }),
            sum: of_summary("_sum"),
            count: of_summary("_count"),
            help: help(&family.name, family.kind),
        }
    }

    fn metadata(&self) -> Metadata<'_> {
        Metadata {
            kind: self.kind,
            name: &self.name,
            help: &self.help,
        }
    }
}

fn is_cumulative(kind: Kind) -> bool {
    kind == Kind::Counter || is_compound(kind)
}

/// The labels that every series gets, sorted by name.
struct Labels(Vec<(String, String)>);

impl Labels {
    fn new(mut labels: Vec<(String, String)>) -> Self {
        labels.sort();
        Labels(labels)
    }

    fn add_if_free(&mut self, name: &str, value: &str) {
        let at = self.0.partition_point(|(other, _)| other.as_str() < name);
        if !value.is_empty() && self.0.get(at).is_none_or(|(other, _)| other != name) {
            self.0.insert(at, (name.to_owned(), value.to_owned()));
        }
    }

    /// Shows all labels of a sample in the order of their names. A series' own label goes before one that every series gets.
    fn merge(
        &self,
        metric: &str,
        quantile: Option<&str>,
        own: &str,
        scratch: &mut String,
        each: &mut dyn FnMut(&str, &str),
    ) {
        let mut common = self
            .0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .peekable();
        let mut metric = Some(("__name__", metric));
        let mut quantile = quantile.map(|quantile| ("quantile", quantile));
        // The least of the three that is before `name`.
        let mut next_before = |name: Option<&str>| {
            let heads = [metric, quantile, common.peek().copied()];
            let (at, least) = heads
                .iter()
                .enumerate()
                .filter_map(|(at, head)| head.map(|head| (at, head)))
                .min_by_key(|(_, head)| head.0)?;
            if name.is_some_and(|name| least.0 > name) {
                return None;
            }
            match at {
                0 => metric = None,
                1 => quantile = None,
                _ => drop(common.next()),
            }
            Some(least)
        };
        for_each_label(own, |name, value| {
            while let Some((other, value)) = next_before(Some(name)) {
                if other != name {
                    each(other, value);
                }
            }
            each(name, unescape(value, scratch));
        });
        while let Some((name, value)) = next_before(None) {
            each(name, value);
        }
    }
}
