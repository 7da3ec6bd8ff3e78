//! Cumulative points: a state like that of the scrape endpoint, under the names and tags as they were sent.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_aggregate::{Batch, Weights};
use weir_protocol::Kind;

use super::encode::{self, nanos};
use super::request::{Data, Metric, Request, Shape, Times, attributes};
use super::settings::{OtlpHistograms, OtlpSettings};
use crate::delivery::{Class, Clock, Encoded, Items, Reason};
use crate::prometheus::state::{CumulativeState, Family, Row, Seconds, Value};
use crate::prometheus::{Native, NoState, SavedAt, SavedPartitions};
use crate::settings::{HistogramStyle, PrometheusSettings};
use crate::sums::Counters;
use crate::timeline::Timeline;

/// Beside each series.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct SeriesData {
    /// When its values began, Unix milliseconds; zero until it is written.
    start: i64,
    /// Rows since it was last written.
    #[serde(skip)]
    rows: u32,
}

type OneSeries = crate::prometheus::state::SeriesState<SeriesData>;

pub struct Cumulative {
    state: CumulativeState<(), SeriesData>,
    clock: Clock,
    timeline: Timeline,
    quantiles: Vec<f64>,
    histograms: OtlpHistograms,
    buckets_max: usize,
    pending: u64,
}

impl Cumulative {
    pub fn new(
        settings: &OtlpSettings,
        quantiles: &[f64],
        weights: Weights,
        bytes_max: u64,
        clock: Clock,
    ) -> Self {
        let is_summary = settings.histograms == OtlpHistograms::Summary;
        let of_state = PrometheusSettings {
            expiry: settings.expiry,
            histograms: if is_summary {
                HistogramStyle::Summary
            } else {
                HistogramStyle::Native
            },
            distributions: HistogramStyle::Native,
            quantiles: if is_summary {
                quantiles.to_vec()
            } else {
                Vec::new()
            },
            host_label: false,
            ..PrometheusSettings::default()
        };
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let mut state = CumulativeState::new(of_state, weights, bytes_max);
        state.counters = settings.counters();
        Cumulative {
            state,
            timeline: Timeline::new(clock.clone()),
            clock,
            quantiles: quantiles.to_vec(),
            histograms: settings.histograms,
            buckets_max: settings.buckets_max,
            pending: 0,
        }
    }

    /// Continues the state of another whose settings differ only in the expiry.
    pub fn inherit(&mut self, other: Cumulative) {
        let expiry = self.state.settings.expiry;
        *self = other;
        self.state.settings.expiry = expiry;
    }

    /// Rows that no point has been written for.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Series and bytes.
    pub fn size(&self) -> (u64, u64) {
        (self.state.series_count() as u64, self.state.heap_bytes() as u64)
    }

    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        self.state.bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
    }

    fn now(&self) -> Seconds {
        Seconds::try_from(self.clock.now().as_secs()).unwrap_or(Seconds::MAX)
    }

    pub fn encode(&mut self, batch: &Batch, request: &mut Request, out: &mut Encoded) {
        let now = self.now();
        self.state.for_each_row(batch, |state, series| {
            if !encode::is_number(series.value()) {
                return out.dropped(Reason::NotFinite, Class::Points, 1);
            }
            let row = Row {
                host: None,
                ..Row::of(&series)
            };
            let taken = state.add_with(&row, series.value(), now, |labels, _| {
                let key = labels.empty_text();
                push(key, series.host());
                series.tags().for_each(|tag| push(key, tag));
                None
            });
            match taken {
                Ok((family, at)) => {
                    state.families[family].series[at].kept.rows += 1;
                    self.pending += 1;
                }
                Err(reason) => out.dropped(reason, Class::Points, 1),
            }
        });
        if batch.last {
            // A series is written in the bucket after its last sample at the earliest.
            let least = Duration::from_secs(2 * u64::from(batch.bucket.width));
            self.state.settings.expiry = self.state.settings.expiry.max(least);
            let moments = self.timeline.bucket(batch.bucket);
            self.values(moments.begin, moments.at, request, out);
            self.expire(request, out);
        }
    }

    /// Writes the rows after the last bucket, and returns every series for the next process.
    pub fn save(&mut self, request: &mut Request, out: &mut Encoded) -> Vec<u8> {
        self.values_pending(request, out);
        self.state.save_behind(self.now(), self.timeline.head())
    }

    /// The series of each partition of a fleet's log.
    pub fn save_partitions(&self) -> SavedPartitions {
        self.state.save_partitions(self.now(), self.timeline.head())
    }

    /// Continues the series of another process. Returns how many do not fit.
    pub fn restore(&mut self, saved: &[u8], of: SavedAt) -> Result<u64, NoState> {
        let state = self.timeline.resume_behind(saved)?;
        let now = self.now();
        self.state.restore(&state, of, now)
    }

    fn values_pending(&mut self, request: &mut Request, out: &mut Encoded) {
        if self.pending > 0 {
            let moments = self.timeline.now();
            self.values(moments.begin, moments.at, request, out);
        }
    }

    /// Writes the rows after the last bucket, and ends every series.
    pub fn end(&mut self, request: &mut Request, out: &mut Encoded) {
        self.values_pending(request, out);
        let at = self.timeline.after();
        let points = self.points();
        for (metric, series) in self.ordered() {
            points.ended(metric, series, at, request, out);
        }
        request.finish(out);
    }

    fn values(&mut self, begin: i64, at: i64, request: &mut Request, out: &mut Encoded) {
        for family in self.state.families.iter_mut() {
            for series in &mut family.series {
                // One that began while the clock was ahead would begin after its own points.
                if series.kept.start == 0 || series.kept.start > at {
                    series.kept.start = begin;
                }
            }
        }
        let points = self.points();
        for (metric, series) in self.ordered() {
            if series.kept.rows == 0 {
                out.made += Items::of(Class::Points, 1);
            }
            points.value(metric, series, at, request, out);
        }
        request.finish(out);
        for family in self.state.families.iter_mut() {
            for series in &mut family.series {
                self.pending -= u64::from(std::mem::take(&mut series.kept.rows));
            }
        }
    }

    fn expire(&mut self, request: &mut Request, out: &mut Encoded) {
        let now = self.now();
        let points = self.points();
        let (histograms, counters) = (self.histograms, self.state.counters);
        let timeline = &mut self.timeline;
        let mut at = None;
        self.state.expire_with(now, |family, series| {
            let at = *at.get_or_insert_with(|| timeline.after());
            let metric = metric_of(family, series, histograms, counters);
            points.ended(metric, series, at, request, out);
        });
        request.finish(out);
    }

    /// All series, those of a metric of a host together.
    fn ordered(&self) -> Vec<(Metric<'_>, &OneSeries)> {
        let (histograms, counters) = (self.histograms, self.state.counters);
        let mut all: Vec<(Metric<'_>, &OneSeries)> = (self.state.families.iter())
            .flat_map(|family| {
                let metric = move |series| (metric_of(family, series, histograms, counters), series);
                family.series.iter().map(metric)
            })
            .collect();
        all.sort_by_key(|one| one.0);
        all
    }

    fn points(&self) -> Points {
        Points {
            quantiles: self.quantiles.clone(),
            buckets_max: self.buckets_max,
            nothing: Native::default(),
        }
    }
}

fn metric_of<'a>(
    family: &'a Family<(), SeriesData>,
    series: &'a OneSeries,
    histograms: OtlpHistograms,
    counters: Counters,
) -> Metric<'a> {
    let shape = match family.kind {
        Kind::Counter => Shape::Sum(counters),
        Kind::Gauge | Kind::Set => Shape::Gauge,
        Kind::Histogram | Kind::Timing if histograms == OtlpHistograms::Summary => Shape::Summary,
        Kind::Histogram | Kind::Timing | Kind::Distribution => Shape::Exponential,
    };
    Metric {
        host: Texts(&series.labels).next().unwrap_or_default(),
        kind: family.kind,
        name: &family.name,
        shape,
    }
}

/// Encoding of points.
struct Points {
    quantiles: Vec<f64>,
    buckets_max: usize,
    nothing: Native,
}

impl Points {
    fn value(
        &self,
        metric: Metric<'_>,
        series: &OneSeries,
        at: i64,
        request: &mut Request,
        out: &mut Encoded,
    ) {
        let start = if metric.shape == Shape::Gauge {
            0
        } else {
            nanos(series.kept.start)
        };
        let times = Times { start, at: nanos(at) };
        let mut tags = Texts(&series.labels);
        tags.next();
        let count = series.kept.rows.max(1);
        let mut add = |data: Data<'_>| {
            request.add(
                metric,
                |out, field| attributes(out, field, tags),
                times,
                &data,
                count,
                out,
            );
        };
        match &series.value {
            Value::Number(value) => add(Data::Number(*value)),
            Value::Summary(summary) if metric.shape == Shape::Summary => {
                let quantiles = self
                    .quantiles
                    .iter()
                    .copied()
                    .zip(summary.quantiles.iter().copied());
                add(Data::Summary {
                    count: summary.weight.round() as u64,
                    sum: summary.sum,
                    quantiles: &quantiles.collect::<Vec<_>>(),
                });
            }
            Value::Summary(summary) => {
                let native = summary.native.as_deref().unwrap_or(&self.nothing);
                let mut exponential = native.exponential();
                exponential.limit(self.buckets_max);
                add(Data::Exponential(&exponential));
            }
        }
    }

    fn ended(
        &self,
        metric: Metric<'_>,
        series: &OneSeries,
        at: i64,
        request: &mut Request,
        out: &mut Encoded,
    ) {
        if series.kept.start == 0 {
            return;
        }
        let start = if metric.shape == Shape::Gauge {
            0
        } else {
            nanos(series.kept.start)
        };
        let times = Times { start, at: nanos(at) };
        let mut tags = Texts(&series.labels);
        tags.next();
        out.made += Items::of(Class::Points, 1);
        request.add(
            metric,
            |out, field| attributes(out, field, tags),
            times,
            &Data::Ended,
            1,
            out,
        );
    }
}

/// Appends a text with its length before it, so that no text can look like two.
fn push(key: &mut String, text: &str) {
    key.push_str(itoa::Buffer::new().format(text.len()));
    key.push(':');
    key.push_str(text);
}

/// The texts of a key.
#[derive(Clone, Copy)]
struct Texts<'a>(&'a str);

impl<'a> Iterator for Texts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let (length, rest) = self.0.split_once(':')?;
        let (text, rest) = rest.split_at_checked(length.parse().ok()?)?;
        self.0 = rest;
        Some(text)
    }
}
