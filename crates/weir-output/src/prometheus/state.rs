//! Cumulative state: one entry per series, summed over flushes. A scrape shows it; remote write and cumulative OTLP send it, with
//! additional data of theirs for each metric (`M`) and each series (`S`).
//!
//! Sums and counts stay finite and counters only rise: a value that would violate this is refused with a reason ([`sums`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashTable;
use weir_aggregate::{Batch, Series, Value as Aggregated, Weights};
use weir_context::{ByContext, ContextKey, HashSecret, prefetch, prefetch_value};
use weir_protocol::Kind;

use super::forms::{Form, FormId, Forms, Unit};
use super::names::{self, LabelWriter};
use super::native::{Native, of_sketch};
use crate::delivery::Reason;
use crate::settings::{HistogramStyle, PrometheusSettings};
use crate::sums::{self, Counters};

mod blocks;
mod expiry;
mod place;
mod saved;

pub use blocks::Blocks;
pub use saved::{NoState, SavedAt, SavedPartitions};

/// The minimum size of a native histogram's buckets, even if the state is full.
const NATIVE_BYTES_LEAST: usize = 256;

/// Seconds of a monotonic clock.
pub type Seconds = u32;

/// One metric: a family in Prometheus's terms.
#[derive(Debug)]
pub struct Family<M = (), S = ()> {
    pub name: Box<str>,
    pub kind: Kind,
    /// Its base name, where that is not the one its own name gives.
    pub renamed: Option<Box<str>>,
    /// The form of one of its series. Their style is the same.
    pub form: Arc<Form>,
    pub series: Vec<SeriesState<S>>,
    pub kept: M,
    hash: u64,
}

#[derive(Debug)]
pub struct SeriesState<S = ()> {
    hash: u64,
    /// As in the text formats, without the braces.
    pub labels: Box<str>,
    /// When the last sample came.
    seen: Seconds,
    /// Unix seconds that the last value carried.
    stamp: u32,
    /// Unix seconds of its first value.
    pub created: u32,
    /// The partition of the last row, in a fleet's log.
    partition: u32,
    /// The form of the context that came first.
    pub form: FormId,
    pub kept: S,
    pub value: Value,
}

/// Where a row belongs.
struct Place {
    family: usize,
    at: usize,
    is_new: bool,
    /// The form of its context, if it is not that of its series.
    form: Option<FormId>,
}

/// The result of a row: family and number of its series, or why it was refused.
pub type RowResult = Result<(usize, usize), Reason>;

#[derive(Debug)]
pub enum Value {
    Number(f64),
    Summary(Box<Summary>),
}

#[derive(Debug, Default)]
pub struct Summary {
    /// Sum of the samples' weights, 1 / rate; rounded where it is shown.
    pub weight: f64,
    pub sum: f64,
    /// From the last bucket with samples.
    pub quantiles: Box<[f64]>,
    /// Weights by classic bucket, each without those below it; empty where the style is another one.
    pub classic: Box<[f64]>,
    /// With the style native or classic.
    pub native: Option<Box<Native>>,
}

/// Counts of rows; idle zeros of counters are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub taken: u64,
    pub delivered: u64,
    pub dropped: BTreeMap<Reason, u64>,
    /// Rows that came to a series which another context of the same metric and the same labels has written to in the same
    /// bucket.
    pub merged: u64,
    pub expired: u64,
}

pub struct CumulativeState<M = (), S = ()> {
    pub settings: PrometheusSettings,
    forms: Forms,
    weights: Weights,
    pub bytes_max: usize,
    /// Senders choose the texts of names and labels.
    secret: HashSecret,
    pub counters: Counters,
    pub families: Blocks<Family<M, S>>,
    family_index: HashTable<u32>,
    series_index: HashTable<(u32, u32)>,
    /// Family and number of the series of the contexts that have come. A context's labels never change.
    of_context: ByContext<(u32, u32)>,
    /// Families before this one have their final names; those behind it wait for the next scrape.
    pub named: usize,
    names_are_stale: bool,
    /// A part of a flush has been taken. Names are decided among all of its metrics.
    pub is_within_flush: bool,
    /// See [`Batch::samples_until`]: of the last bucket that is in it as a whole.
    pub samples_until: u64,
    pub renamed: usize,
    /// Renderings under way. While there are any, nothing moves or leaves.
    pub renderings: usize,
    /// Heap behind families and series, without the tables.
    bytes: usize,
    series: usize,
    oldest: Seconds,
    /// Seconds before the clock's zero in which another process added to this.
    past: Seconds,
    pub counts: Counts,
    labels: LabelWriter,
}

/// The facts of a row besides its tags and its value.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub context: Option<ContextKey>,
    pub name: &'a str,
    pub kind: Kind,
    pub host: Option<&'a str>,
    /// Unix seconds.
    pub timestamp: i64,
    pub is_timestamped: bool,
    /// See [`Series::partition`].
    pub partition: u32,
}

impl<'a> Row<'a> {
    pub fn of(series: &Series<'a>) -> Self {
        Row {
            context: series.context(),
            name: series.name(),
            kind: series.kind(),
            host: series.explicit_host(),
            timestamp: series.timestamp(),
            is_timestamped: series.is_timestamped(),
            partition: series.partition(),
        }
    }
}

impl<M: Default, S: Default> CumulativeState<M, S> {
    pub fn new(settings: PrometheusSettings, weights: Weights, bytes_max: usize) -> Self {
        // `check` of the settings refuses what cannot be compiled.
        let forms = Forms::new(&settings.metrics).expect("the entries were checked");
        CumulativeState {
            settings,
            forms,
            weights,
            bytes_max,
            secret: HashSecret::random(),
            counters: Counters::Monotonic,
            families: Blocks::default(),
            family_index: HashTable::new(),
            series_index: HashTable::new(),
            of_context: ByContext::default(),
            named: 0,
            names_are_stale: false,
            is_within_flush: false,
            samples_until: 0,
            renamed: 0,
            renderings: 0,
            bytes: 0,
            series: 0,
            oldest: Seconds::MAX,
            past: 0,
            counts: Counts::default(),
            labels: LabelWriter::default(),
        }
    }

    pub fn take(&mut self, batch: &Batch, now: Seconds) {
        self.for_each_row(batch, |state, series| {
            // The counts have refused points.
            let _ = state.add(&Row::of(&series), series.tags(), series.value(), now);
        });
    }

    /// Calls `each` with every row of a batch that is not an idle zero, after the memory of a few rows was prefetched.
    pub fn for_each_row<'b>(&mut self, batch: &'b Batch, mut each: impl FnMut(&mut Self, Series<'b>)) {
        for group in batch.yielding_groups() {
            let group = group.filter(|series| !series.is_idle());
            self.prefetch(group.clone());
            group.for_each(|series| each(self, series));
        }
    }

    /// Prefetches what [`CumulativeState::add_with`] reads of known contexts, in the order of its steps.
    fn prefetch<'b>(&self, rows: impl Iterator<Item = Series<'b>> + Clone) {
        let contexts = rows.filter_map(|series| series.context());
        contexts
            .clone()
            .for_each(|context| self.of_context.prefetch(context));
        let places = contexts.filter_map(|context| self.of_context.get(context));
        let known = places.map(|(family, at)| &self.families[family as usize].series[at as usize]);
        known.clone().for_each(prefetch_value);
        let summaries = known.filter_map(|series| match &series.value {
            Value::Summary(summary) => Some(&**summary),
            Value::Number(_) => None,
        });
        summaries.clone().for_each(prefetch_value);
        let natives = summaries.filter_map(|summary| {
            prefetch(summary.quantiles.as_ptr().cast());
            summary.native.as_deref()
        });
        natives.clone().for_each(prefetch_value);
        natives.for_each(Native::prefetch);
    }

    pub fn add<'t>(
        &mut self,
        row: &Row<'_>,
        tags: impl Iterator<Item = &'t str> + Clone,
        value: Aggregated<'_>,
        now: Seconds,
    ) -> RowResult {
        let host = row.host.filter(|_| self.settings.host_label);
        self.add_with(row, value, now, |labels, forms| {
            let labelled = tags.clone().filter(|tag| !forms.is_mark(tag));
            labels.write(labelled, host, is_compound(row.kind));
            forms.entry(row.name, row.kind, tags)
        })
    }

    /// Adds a row to the series that its labels name. They are written for a context that is not known yet, and the number of its entry of
    /// `metrics` is returned.
    pub fn add_with(
        &mut self,
        row: &Row<'_>,
        value: Aggregated<'_>,
        now: Seconds,
        describe: impl FnOnce(&mut LabelWriter, &mut Forms) -> Option<u32>,
    ) -> RowResult {
        self.counts.taken += 1;
        let now = now.saturating_add(self.past);
        // Before its series is made: a refused point starts no series.
        let taken = sums::check(value, self.counters)
            .and_then(|()| self.place_row(row, now, describe).ok_or(Reason::Memory))
            .and_then(|place| self.add_at(place, row, value, now));
        match taken {
            Ok(_) => self.counts.delivered += 1,
            Err(reason) => *self.counts.dropped.entry(reason).or_default() += 1,
        }
        taken
    }

    fn add_at(
        &mut self,
        Place {
            family,
            at,
            is_new,
            form: own_form,
        }: Place,
        row: &Row<'_>,
        value: Aggregated<'_>,
        now: Seconds,
    ) -> RowResult {
        let stamp = u32::try_from(row.timestamp.max(0)).unwrap_or(u32::MAX);
        let series = &mut self.families[family].series[at];
        let form = self.forms.get(series.form);
        let unit = own_form.map_or(form.unit, |own| self.forms.get(own).unit);
        if is_new {
            series.created = stamp;
        }
        let row_time = RowTime {
            is_second: !is_new && !row.is_timestamped && series.stamp == stamp,
            is_older: !is_new && row.is_timestamped && stamp < series.stamp,
        };
        let before = series.value.heap_bytes();
        match &mut series.value {
            Value::Number(number) => add_number(number, value, unit, row_time)?,
            Value::Summary(summary) => {
                let samples = Samples {
                    value,
                    unit,
                    weights: self.weights,
                };
                summary.add(samples, form, row_time.is_second)?;
            }
        }
        if !row_time.is_older {
            series.stamp = stamp;
        }
        series.seen = now;
        series.partition = row.partition;
        self.oldest = self.oldest.min(now);
        self.bytes = self.bytes + series.value.heap_bytes() - before;
        self.counts.merged += u64::from(row_time.is_second);
        self.fit(family, at, before);
        Ok((family, at))
    }

    /// When the state is too large, a native histogram that grew halves its resolution, so that the buckets of
    /// existing series are bounded like the series.
    fn fit(&mut self, family: usize, at: usize, before: usize) {
        if self.heap_bytes() <= self.bytes_max {
            return;
        }
        let value = &mut self.families[family].series[at].value;
        let large = value.heap_bytes();
        if let Value::Summary(summary) = value
            && let Some(native) = &mut summary.native
            && large > before
        {
            let as_before = native.heap_bytes().saturating_sub(large - before);
            native.shrink(as_before.max(NATIVE_BYTES_LEAST));
            self.bytes -= large - value.heap_bytes();
        }
    }

    /// Whether the next naming may change names.
    pub fn names_are_stale(&self) -> bool {
        self.names_are_stale
    }

    /// Gives every family its name. While something is being rendered, the names it uses stay, and families without one
    /// have to wait; so they do within a flush.
    pub fn name_families(&mut self) {
        if self.renderings > 0 || self.is_within_flush || !self.names_are_stale {
            return;
        }
        self.names_are_stale = false;
        self.named = self.families.len();
        for family in self.families.iter_mut() {
            if let Some(renamed) = family.renamed.take() {
                self.bytes -= renamed.len();
            }
        }
        self.renamed = 0;
        let mut claimed = Claimed::default();
        // Usually every metric can have the name that it wants, and the order does not matter.
        let all_free = self.families.iter().all(|family| {
            let (base, kind) = family.own_base();
            !names::is_reserved(&base, kind) && claimed.claim(&base, kind)
        });
        if all_free {
            return;
        }
        claimed = Claimed::default();
        let mut order: Vec<u32> = (0..self.families.len() as u32).collect();
        order.sort_unstable_by(|&a, &b| {
            let rank = |at: u32| {
                let family = &self.families[at as usize];
                (names::rank(&family.name, family.kind), family.form.style as u8)
            };
            rank(a).cmp(&rank(b))
        });
        for at in order {
            let family = &mut self.families[at as usize];
            let (base, kind) = family.own_base();
            if !names::is_reserved(&base, kind) && claimed.claim(&base, kind) {
                continue;
            }
            let distinct = (0..)
                .map(|attempt| names::distinct_name(&base, &family.name, family.kind, attempt))
                .find(|name| claimed.claim(name, kind))
                .expect("the attempts do not end");
            self.bytes += distinct.len();
            self.renamed += 1;
            family.renamed = Some(distinct.into());
        }
    }

    pub fn forms(&self) -> &Forms {
        &self.forms
    }

    pub fn weights(&self) -> Weights {
        self.weights
    }

    pub fn series_count(&self) -> usize {
        self.series
    }

    /// Bytes held, slack included.
    pub fn heap_bytes(&self) -> usize {
        self.bytes
            + self.families.heap_bytes()
            + self.family_index.allocation_size()
            + self.series_index.allocation_size()
            + self.of_context.heap_bytes()
    }

    /// The expected value of `bytes`.
    #[cfg(test)]
    pub fn recount(&self) -> usize {
        self.families
            .iter()
            .map(|family| {
                family.name.len()
                    + family.renamed.as_ref().map_or(0, |name| name.len())
                    + family.series.capacity() * size_of::<SeriesState<S>>()
                    + family
                        .series
                        .iter()
                        .map(|series| series.labels.len() + series.value.heap_bytes())
                        .sum::<usize>()
            })
            .sum()
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Names that are taken, by their hashes.
#[derive(Default)]
struct Claimed(HashTable<u64>);

impl Claimed {
    /// Takes all names of a metric, or none of them.
    fn claim(&mut self, base: &str, kind: Kind) -> bool {
        let is_free =
            names::claims(base, kind).all(|hash| self.0.find(hash, |&other| other == hash).is_none());
        if is_free {
            for hash in names::claims(base, kind) {
                self.0.insert_unique(hash, hash, |&hash| hash);
            }
        }
        is_free
    }
}

impl<M, S> Family<M, S> {
    /// The name without what its kind appends.
    pub fn base(&self) -> std::borrow::Cow<'_, str> {
        match &self.renamed {
            Some(name) => (&**name).into(),
            None => self.own_base().0.into(),
        }
    }

    /// Its name without conflicts, and the kind of its names.
    fn own_base(&self) -> (String, Kind) {
        let kind = self.form.named_as(self.kind);
        (names::base_name(&self.name, kind), kind)
    }
}

/// Whether a kind has quantiles, sum and count.
pub fn is_compound(kind: Kind) -> bool {
    matches!(kind, Kind::Histogram | Kind::Timing | Kind::Distribution)
}

pub fn style(settings: &PrometheusSettings, kind: Kind) -> HistogramStyle {
    match kind {
        Kind::Distribution => settings.distributions,
        _ => settings.histograms,
    }
}

impl Value {
    fn heap_bytes(&self) -> usize {
        match self {
            Value::Number(_) => 0,
            Value::Summary(summary) => {
                let native = summary.native.as_ref();
                size_of::<Summary>()
                    + (summary.quantiles.len() + summary.classic.len()) * size_of::<f64>()
                    + native.map_or(0, |native| size_of::<Native>() + native.heap_bytes())
            }
        }
    }
}

/// A row compared with its series.
#[derive(Clone, Copy)]
struct RowTime {
    /// Another context has written to the series in the same bucket.
    is_second: bool,
    /// Its timestamp is before that of the value that is there.
    is_older: bool,
}

fn add_number(number: &mut f64, value: Aggregated<'_>, unit: Unit, row_time: RowTime) -> Result<(), Reason> {
    let new = match value {
        Aggregated::Counter(more) => {
            *number = sums::add(*number, unit.of(more))?;
            return Ok(());
        }
        Aggregated::Gauge(value) => unit.of(value),
        Aggregated::Set(members) => members.cardinality() as f64,
        _ => unreachable!("the kind decides about the value"),
    };
    if row_time.is_older {
        return Err(Reason::OutOfOrder);
    }
    *number = if row_time.is_second { number.max(new) } else { new };
    Ok(())
}

/// The least value of a sketch's bin, which reaches half of its width of 1/64 to each side.
fn least(value: f64) -> f64 {
    const HALF: f64 = 1.0078;
    if value > 0.0 { value / HALF } else { value * HALF }
}

/// The samples of a row, with their unit.
#[derive(Clone, Copy)]
struct Samples<'a> {
    value: Aggregated<'a>,
    unit: Unit,
    weights: Weights,
}

impl Summary {
    fn add(&mut self, samples: Samples<'_>, form: &Form, is_second: bool) -> Result<(), Reason> {
        let Samples { value, unit, weights } = samples;
        let (sum, weight) = match value {
            Aggregated::Histogram(histogram) => {
                let totals = histogram.totals();
                let weight = match weights {
                    Weights::Exact => totals.weight,
                    Weights::Agent => totals.whole_weight,
                };
                (totals.sum, weight)
            }
            Aggregated::Distribution(sketch) => (sketch.sum(), sketch.cnt() as f64),
            _ => unreachable!("the kind decides about the value"),
        };
        let (sum, weight) = (
            sums::add(self.sum, unit.of(sum))?,
            sums::add(self.weight, weight)?,
        );
        (self.sum, self.weight) = (sum, weight);
        self.set_quantiles(samples, form, is_second);
        if form.style == HistogramStyle::Classic {
            self.add_classic(samples, form);
        }
        if form.style != HistogramStyle::Summary {
            let native = self.native.get_or_insert_default();
            match value {
                Aggregated::Histogram(histogram) => native.add_histogram(histogram, unit),
                Aggregated::Distribution(sketch) => native.add_sketch(sketch, unit),
                _ => {}
            }
        }
        Ok(())
    }

    /// Exact samples give exact buckets. A bin of a sketch is counted by the smallest value that it may stand for, so that values equal to
    /// a bound, which round numbers often are, count below it.
    fn add_classic(&mut self, samples: Samples<'_>, form: &Form) {
        let Samples { value, unit, weights } = samples;
        if self.classic.len() != form.buckets.len() {
            self.classic = vec![0.0; form.buckets.len()].into();
        }
        let mut count = |value: f64, weight: f64| {
            let value = unit.of(value);
            let at = form.buckets.partition_point(|bound| *bound < value);
            if let Some(bucket) = self.classic.get_mut(at) {
                *bucket += weight;
            }
        };
        match value {
            Aggregated::Histogram(histogram) => match histogram.sketch() {
                None => histogram.samples().for_each(|(value, weight)| match weights {
                    Weights::Exact => count(value, weight),
                    Weights::Agent => count(value, weight.trunc()),
                }),
                Some(sketch) => of_sketch(sketch).for_each(|(value, n)| count(least(value), n)),
            },
            Aggregated::Distribution(sketch) => {
                of_sketch(sketch).for_each(|(value, n)| count(least(value), n));
            }
            _ => {}
        }
    }

    fn set_quantiles(&mut self, samples: Samples<'_>, form: &Form, is_second: bool) {
        let Samples { value, unit, .. } = samples;
        if form.style == HistogramStyle::Classic {
            return;
        }
        if self.quantiles.len() != form.quantiles.len() {
            self.quantiles = vec![f64::NAN; form.quantiles.len()].into();
        }
        let mut set = |quantile: &dyn Fn(f64) -> f64| {
            for (current, &fraction) in self.quantiles.iter_mut().zip(&form.quantiles) {
                let new = unit.of(quantile(fraction));
                *current = if is_second { current.max(new) } else { new };
            }
        };
        match value {
            Aggregated::Histogram(histogram) => {
                let ordered = histogram.ordered();
                set(&|fraction| ordered.quantile(fraction));
            }
            // With a low rate a bucket may count no sample, and the next one several.
            Aggregated::Distribution(sketch) if !sketch.is_empty() => {
                set(&|fraction| sketch.quantile(fraction));
            }
            _ => {}
        }
    }
}
