//! The data that a follower gives to an output at once.
//!
//! Results wait as they are in the log, and are read series by series while the output takes them. So a large bucket takes little more memory
//! than its compressed records.

use std::collections::{BTreeSet, VecDeque};

use weir_protocol::Kind;
use weir_state::{Bounds, Facts, Identity, RecordSeries, State, Table};

use crate::results::BucketResult;

/// A series with its state.
pub type Series = (Identity, Facts, State);

/// An output's treatment of late records for a bucket that it already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correction {
    /// It shows sums: they rise in the next bucket.
    InNextBucket,
    /// Its receivers add up points of equal times: the difference is sent with the time of its bucket.
    AtItsTime,
    /// Its receivers replace points of equal times: a difference would replace the full value.
    None,
}

/// The additions that an output can make to a bucket that it already has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CorrectionPolicy {
    /// It shows sums since its start.
    pub adds_up: bool,
    /// Kinds that its receivers add up at equal times.
    pub counters: bool,
    pub distributions: bool,
    pub histograms: bool,
}

impl CorrectionPolicy {
    /// Gauges and sets cannot be added to.
    pub fn correction(&self, kind: Kind) -> Correction {
        let can_add = match kind {
            Kind::Counter => self.counters,
            Kind::Distribution => self.distributions,
            Kind::Histogram | Kind::Timing => self.histograms,
            _ => false,
        };
        match (self.adds_up, kind) {
            (true, Kind::Gauge | Kind::Set) => Correction::None,
            (true, _) => Correction::InNextBucket,
            (false, _) if can_add => Correction::AtItsTime,
            (false, _) => Correction::None,
        }
    }
}

/// Series with the time of their bucket. [`Flush::into_series`] has each of them once.
#[derive(Debug)]
pub struct Flush {
    pub start: i64,
    pub width: u32,
    /// For an output of sums, the partition of all of its series.
    pub partition: u32,
    results: VecDeque<BucketResult>,
    late: LateSeries,
    /// Of corrections: the series that the output can take.
    policy: Option<CorrectionPolicy>,
}

/// Late series, which are added to those of a bucket.
#[derive(Debug)]
pub(crate) struct LateSeries {
    table: Table,
    /// Their members cannot be added to those of another bucket: if the bucket has the series too, its set counts.
    sets: Table,
}

/// The next data of the output. [`crate::Follower::delivered`] stores the positions behind it.
#[derive(Debug, Default)]
pub struct Delivery {
    /// In this order. An output of sums gets one of each partition, all for one bucket.
    pub flushes: Vec<Flush>,
    /// Start and width of the closed buckets in it.
    pub buckets: BTreeSet<(i64, u32)>,
    /// Late series in it, and those that this output cannot take. [`FlushSeries`] counts those of corrections.
    pub corrected: u64,
    pub not_corrected: u64,
    /// Bytes of its results and late series, estimated.
    pub bytes: usize,
    /// Partition, generation, and number behind the last result.
    pub(crate) positions: Vec<(u32, u64, u64)>,
}

impl Delivery {
    /// For each partition, its generation and the number behind its last result.
    pub fn positions(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        self.positions.iter().copied()
    }
}

impl Default for LateSeries {
    fn default() -> Self {
        LateSeries {
            table: Table::new(Bounds::NONE),
            sets: Table::new(Bounds::NONE),
        }
    }
}

impl LateSeries {
    pub fn add(&mut self, (identity, facts, state): Series) {
        self.table.add(identity, facts, state);
    }

    /// The newest set counts. `continues`: it is the next part of the last one.
    pub fn put_set(&mut self, (identity, facts, state): Series, continues: bool) {
        if !continues {
            self.sets.remove(&identity);
        }
        self.sets.add(identity, facts, state);
    }

    /// Bytes held, estimated.
    pub fn bytes(&self) -> usize {
        self.table.bytes() + self.sets.bytes()
    }

    /// Adds the late part of a series of the bucket.
    fn complete(&mut self, (identity, facts, state): &mut Series) {
        if let Some((of_late, late)) = self.table.remove(identity) {
            facts.merge(of_late);
            merge(state, &late);
        }
        if identity.kind == Kind::Set {
            self.sets.remove(identity);
        }
    }
}

impl Flush {
    pub(crate) fn new(
        (start, width): (i64, u32),
        results: impl IntoIterator<Item = BucketResult>,
        late: LateSeries,
    ) -> Self {
        Flush {
            start,
            width,
            partition: 0,
            results: results.into_iter().collect(),
            late,
            policy: None,
        }
    }

    pub(crate) fn of_partition(self, partition: u32) -> Self {
        Flush { partition, ..self }
    }

    /// Corrections of one bucket.
    pub(crate) fn late(
        bucket: (i64, u32),
        results: impl IntoIterator<Item = BucketResult>,
        policy: CorrectionPolicy,
    ) -> Self {
        Flush {
            policy: Some(policy),
            ..Flush::new(bucket, results, LateSeries::default())
        }
    }

    /// Whether it has corrections alone. Without a series that the output can take there is nothing to give.
    pub fn is_late(&self) -> bool {
        self.policy.is_some()
    }

    pub fn into_series(self) -> FlushSeries {
        FlushSeries {
            results: self.results,
            reading: None,
            last: None,
            late: self.late,
            policy: self.policy,
            counts: SeriesCounts::default(),
        }
    }
}

/// The series of a flush, each once.
#[derive(Debug)]
pub struct FlushSeries {
    results: VecDeque<BucketResult>,
    reading: Option<ResultSeries>,
    /// A set that one result cannot hold continues in the next one.
    last: Option<Series>,
    /// Given behind the results, unless they have the series too.
    late: LateSeries,
    policy: Option<CorrectionPolicy>,
    counts: SeriesCounts,
}

/// Counts of a flush, as far as it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeriesCounts {
    /// Late series in it, and those that the output cannot take.
    pub corrected: u64,
    pub not_corrected: u64,
    /// Results that could not be read to their end.
    pub unreadable: u64,
}

impl FlushSeries {
    pub fn counts(&self) -> SeriesCounts {
        self.counts
    }

    fn read(&mut self) -> Option<Series> {
        loop {
            if self.reading.is_none() {
                let result = self.results.pop_front()?;
                self.reading = ResultSeries::of(&result);
                self.counts.unreadable += u64::from(self.reading.is_none());
            }
            match self.reading.as_mut().map(ResultSeries::next) {
                Some(Ok(Some(series))) if self.is_wanted(series.0.kind) => return Some(series),
                Some(Ok(Some(_))) => continue,
                Some(Err(_)) => self.counts.unreadable += 1,
                Some(Ok(None)) | None => {}
            }
            self.reading = None;
        }
    }

    fn is_wanted(&mut self, kind: Kind) -> bool {
        let Some(policy) = &self.policy else {
            return true;
        };
        let is_wanted = policy.correction(kind) != Correction::None;
        self.counts.corrected += u64::from(is_wanted);
        self.counts.not_corrected += u64::from(!is_wanted);
        is_wanted
    }
}

impl Iterator for FlushSeries {
    type Item = Series;

    fn next(&mut self) -> Option<Series> {
        while let Some(series) = self.read() {
            match &mut self.last {
                Some((identity, facts, state)) if *identity == series.0 => {
                    facts.merge(series.1);
                    merge(state, &series.2);
                }
                last => {
                    if let Some(mut done) = last.replace(series) {
                        self.late.complete(&mut done);
                        return Some(done);
                    }
                }
            }
        }
        if let Some(mut done) = self.last.take() {
            self.late.complete(&mut done);
            return Some(done);
        }
        self.late.table.pop_first().or_else(|| self.late.sets.pop_first())
    }
}

fn merge(state: &mut State, more: &State) {
    let merged = state.merge(more, &Bounds::NONE);
    debug_assert!(merged, "kinds are part of an identity");
}

/// The series of one result, read one at a time.
#[derive(Debug)]
pub(crate) struct ResultSeries {
    record: RecordSeries,
    /// Series of different tenants stay apart.
    tag: Option<String>,
}

impl ResultSeries {
    /// `None`: it cannot be read.
    pub fn of(result: &BucketResult) -> Option<Self> {
        let tenant = &result.tenant;
        Some(ResultSeries {
            record: result.series().ok()?,
            tag: (!tenant.is_empty()).then(|| format!("tenant:{tenant}")),
        })
    }

    pub fn next(&mut self) -> Result<Option<Series>, weir_state::Error> {
        let Some(series) = self.record.next_series()? else {
            return Ok(None);
        };
        let (facts, state) = (series.facts, series.state.clone());
        let identity = Identity::new(
            series.kind,
            series.name,
            series.host,
            series.integration,
            series.tags.chain(self.tag.as_deref()),
        );
        Ok(Some((identity, facts, state)))
    }

    /// Gives all of them. `false`: the last ones cannot be read.
    pub fn each(mut self, mut give: impl FnMut(Series)) -> bool {
        loop {
            match self.next() {
                Ok(Some(series)) => give(series),
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}
