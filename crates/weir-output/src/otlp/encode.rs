//! Batches into data points that cover a bucket each.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_aggregate::{Batch, Bucket, Histogram, Series, Value, Weights};
use weir_sketch::ExponentialHistogram;

use super::cumulative::Cumulative;
use super::request::{Data, Metric, Request, Shape, Times, attributes};
use super::settings::{OtlpHistograms, OtlpSettings, Temporality};
use crate::delivery::{Class, Clock, Counter, Encode, Encoded, EncoderState, Items, Reason};
use crate::prometheus::{NoState, SavedAt, SavedPartitions};
use crate::sums::{self, Counters};

/// The scale of distributions before there are too many buckets: base 2^(1/32), about 2.2 %.
pub const SCALE: i32 = 5;

/// Facts for the status.
#[derive(Debug, Default)]
pub struct Facts {
    pub series: AtomicU64,
    pub bytes: AtomicU64,
}

pub struct OtlpEncoder {
    request: Request,
    clock: Clock,
    facts: Arc<Facts>,
    weights: Weights,
    histograms: OtlpHistograms,
    quantiles: Vec<f64>,
    buckets_max: usize,
    counters: Counters,
    /// The state behind cumulative points.
    cumulative: Option<Cumulative>,
    lineage: String,
}

impl OtlpEncoder {
    pub fn new(
        settings: &OtlpSettings,
        weights: Weights,
        bytes_max: u64,
        clock: Clock,
        facts: Arc<Facts>,
    ) -> Self {
        let mut quantiles = settings.quantiles.clone();
        quantiles.sort_by(f64::total_cmp);
        quantiles.dedup();
        let cumulative = (settings.temporality == Temporality::Cumulative)
            .then(|| Cumulative::new(settings, &quantiles, weights, bytes_max, clock.clone()));
        OtlpEncoder {
            request: Request::new(
                settings.temporality,
                settings.compression,
                settings.points_per_payload_max,
                settings.resource_attributes.clone().into_iter(),
            ),
            clock,
            facts,
            weights,
            histograms: settings.histograms,
            quantiles,
            buckets_max: settings.buckets_max,
            counters: settings.counters(),
            lineage: cumulative.as_ref().map(|_| lineage(settings)).unwrap_or_default(),
            cumulative,
        }
    }

    /// Writes the rows of a batch, those of a metric together.
    fn encode_delta(&mut self, batch: &Batch, out: &mut Encoded) {
        let of_bucket = self.bucket_times(batch.bucket);
        let mut rows: Vec<(Metric<'_>, Series<'_>)> = batch
            .yielding_series()
            .filter(is_point)
            .map(|series| (self.metric(&series), series))
            .collect();
        rows.sort_by_key(|row| row.0);
        for (metric, series) in rows {
            let mut times = of_bucket;
            if series.is_timestamped() {
                let at = series.timestamp();
                times.start = nanos((at - i64::from(series.interval())) * 1000);
                times.at = nanos(at * 1000);
            }
            if metric.shape == Shape::Gauge {
                times.start = 0;
            }
            self.encode_row(metric, &series, times, out);
        }
    }

    fn encode_row(&mut self, metric: Metric<'_>, series: &Series<'_>, times: Times, out: &mut Encoded) {
        if !is_number(series.value()) {
            return out.dropped(Reason::NotFinite, Class::Points, 1);
        }
        if let Err(reason) = sums::check(series.value(), self.counters) {
            return out.dropped(reason, Class::Points, 1);
        }
        let tags = series.tags();
        let request = &mut self.request;
        let add = |data: Data<'_>| {
            request.add(
                metric,
                |out, field| attributes(out, field, tags),
                times,
                &data,
                1,
                out,
            );
        };
        match series.value() {
            Value::Counter(value) | Value::Gauge(value) => add(Data::Number(value)),
            Value::Set(members) => add(Data::Number(members.cardinality() as f64)),
            Value::Histogram(histogram) if metric.shape == Shape::Summary => {
                let ordered = histogram.ordered();
                let quantile = |&quantile: &f64| (quantile, ordered.quantile(quantile));
                let quantiles: Vec<(f64, f64)> = self.quantiles.iter().map(quantile).collect();
                add(Data::Summary {
                    count: histogram.count(self.weights) as u64,
                    sum: histogram.totals().sum,
                    quantiles: &quantiles,
                });
            }
            Value::Histogram(histogram) => {
                add(Data::Exponential(&of_histogram(histogram, self.buckets_max)));
            }
            Value::Distribution(sketch) => {
                let mut exponential = ExponentialHistogram::from_sketch(sketch, SCALE);
                exponential.limit(self.buckets_max);
                add(Data::Exponential(&exponential));
            }
        }
    }

    fn metric<'a>(&self, series: &Series<'a>) -> Metric<'a> {
        let shape = match series.value() {
            Value::Counter(_) => Shape::Sum(self.counters),
            Value::Gauge(_) | Value::Set(_) => Shape::Gauge,
            Value::Histogram(_) if self.histograms == OtlpHistograms::Summary => Shape::Summary,
            Value::Histogram(_) | Value::Distribution(_) => Shape::Exponential,
        };
        Metric {
            host: series.host(),
            kind: series.kind(),
            name: series.name(),
            shape,
        }
    }

    /// A bucket that is closed early ends now: the next process begins its first one at its own start.
    fn bucket_times(&self, bucket: Bucket) -> Times {
        let (start, end) = (
            bucket.start * 1000,
            (bucket.start + i64::from(bucket.width)) * 1000,
        );
        let now = self.clock.unix_ms();
        let begin = bucket.timestamp * 1000;
        let end = if start <= now && now < end {
            now.max(begin + 1)
        } else {
            end
        };
        Times {
            start: nanos(begin),
            at: nanos(end),
        }
    }

    fn note(&self) {
        if let Some(cumulative) = &self.cumulative {
            let (series, bytes) = cumulative.size();
            self.facts.series.store(series, Ordering::Relaxed);
            self.facts.bytes.store(bytes, Ordering::Relaxed);
        }
    }
}

/// Whether a gauge is finite; [`sums::check`] looks at the others.
pub fn is_number(value: Value<'_>) -> bool {
    !matches!(value, Value::Gauge(value) if !value.is_finite())
}

/// Whether a row becomes a point. A counter that got nothing has added nothing, and of samples with a low rate a bucket may
/// count none.
fn is_point(series: &Series<'_>) -> bool {
    match series.value() {
        Value::Distribution(sketch) => !sketch.is_empty(),
        _ => !series.is_idle(),
    }
}

/// A folded histogram has only its bins left; each stands for its representative.
fn of_histogram(histogram: &Histogram, buckets_max: usize) -> ExponentialHistogram {
    let totals = histogram.totals();
    match histogram.sketch() {
        None => {
            let mut samples: Vec<(f64, f64)> = histogram.samples().collect();
            ExponentialHistogram::from_samples(&mut samples, buckets_max)
        }
        Some(sketch) => {
            let mut exponential = ExponentialHistogram::from_sketch(sketch, SCALE);
            exponential.limit(buckets_max);
            exponential.sum = totals.sum;
            exponential
        }
    }
}

/// Unix milliseconds as OTLP has them.
pub fn nanos(milliseconds: i64) -> u64 {
    u64::try_from(milliseconds).unwrap_or(0).saturating_mul(1_000_000)
}

impl Encode for OtlpEncoder {
    fn counter(&self) -> Counter {
        let is_cumulative = self.cumulative.is_some();
        Box::new(move |batch| {
            let counts = |series: &Series<'_>| is_point(series) || is_cumulative && !series.is_idle();
            Items::of(Class::Points, batch.series().filter(counts).count() as u64)
        })
    }

    fn encode(&mut self, batch: &Batch, out: &mut Encoded) {
        match &mut self.cumulative {
            Some(cumulative) => cumulative.encode(batch, &mut self.request, out),
            None => self.encode_delta(batch, out),
        }
        if batch.last {
            self.request.finish(out);
            self.request.rest();
            self.note();
        }
    }

    fn finish(&mut self, out: &mut Encoded) {
        self.request.finish(out);
    }

    fn open(&self) -> Items {
        let pending = self.cumulative.as_ref().map_or(0, Cumulative::pending);
        self.request.open() + Items::of(Class::Points, pending)
    }

    fn state(&mut self) -> Option<&mut dyn EncoderState> {
        self.cumulative.is_some().then_some(self as &mut dyn EncoderState)
    }
}

impl EncoderState for OtlpEncoder {
    fn end(&mut self, out: &mut Encoded) {
        if let Some(cumulative) = &mut self.cumulative {
            cumulative.end(&mut self.request, out);
        }
    }

    fn lineage(&self) -> String {
        self.lineage.clone()
    }

    fn limit(&mut self, bytes_max: u64) {
        if let Some(cumulative) = &mut self.cumulative {
            cumulative.set_bytes_max(bytes_max);
        }
    }

    fn bytes(&self) -> u64 {
        self.cumulative
            .as_ref()
            .map_or(0, |cumulative| cumulative.size().1)
    }

    fn inherit(&mut self, other: Box<dyn Any>) {
        if let (Some(own), Ok(other)) = (&mut self.cumulative, other.downcast::<Self>())
            && let Some(other) = other.cumulative
        {
            own.inherit(other);
        }
    }

    fn save(&mut self, out: &mut Encoded) -> Vec<u8> {
        match &mut self.cumulative {
            Some(cumulative) => cumulative.save(&mut self.request, out),
            None => Vec::new(),
        }
    }

    fn save_partitions(&mut self) -> SavedPartitions {
        let cumulative = self.cumulative.as_ref();
        cumulative.map(Cumulative::save_partitions).unwrap_or_default()
    }

    fn restore(&mut self, saved: &[u8], of: SavedAt) -> Result<u64, NoState> {
        match &mut self.cumulative {
            Some(cumulative) => cumulative.restore(saved, of),
            None => Err(NoState),
        }
    }
}

/// All settings that change the collector or the kinds of values: if this text changes, series restart.
fn lineage(settings: &OtlpSettings) -> String {
    let OtlpSettings {
        url,
        resource_attributes,
        histograms,
        quantiles,
        buckets_max,
        ..
    } = settings;
    format!(
        "{:?}",
        (url, resource_attributes, histograms, quantiles, buckets_max)
    )
}
