//! The history of a process: whatever the pipeline gave it is in it once, or counted, also across hand-overs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use weir_admin::history::{HistoryKind, Recent};
use weir_admin::streams::Streams;
use weir_aggregate::Batch;
use weir_history::{Function, History, Query, QueryError};
use weir_ingest::Readings;
use weir_output::prometheus::OwnSeries;

use super::Random;
use super::receivers::rows;
use crate::book_times::Sample;
use crate::history::{HistoryFeed, HistoryKeeper, feed};

/// Enough for all points of a schedule.
const BYTES_MAX: usize = 8 << 20;

/// The content of a history, as another process gets it.
#[derive(Clone, Default)]
pub struct Given {
    parts: Vec<(HistoryKind, Vec<u8>)>,
    /// Sums of the points by metric. `None`: not known, since parts of it were lost before.
    points: Option<BTreeMap<String, u64>>,
}

pub struct ProcessHistory {
    recent: Arc<Recent>,
    feed: HistoryFeed,
    keeper: HistoryKeeper,
    /// Parts that the previous process has sent and this one has not added. Batches wait meanwhile.
    arriving: VecDeque<(HistoryKind, Vec<u8>)>,
    is_adopting: bool,
    /// Rows that it was given.
    rows: u64,
    /// Sums of the points that it must have, by metric; `None` as in [`Given`].
    points: Option<BTreeMap<String, u64>>,
    /// The books with which it began. `None`: it has those of another process, too.
    first: Option<Vec<OwnSeries>>,
    /// Number of samples of the books.
    samples: u64,
}

impl ProcessHistory {
    /// `before`: of the process that this one takes over from, which may die while it sends that.
    pub fn start(before: Option<&Given>, books: Vec<OwnSeries>, now: Readings, random: &mut Random) -> Self {
        let recent = Arc::new(Recent::new(BYTES_MAX, Streams::default()));
        // Room for one batch, or for many.
        let bytes_max = random.one_of(&[1, 10_000, 1 << 20]);
        let (feed, inbox) = feed(&recent, bytes_max, Duration::ZERO);
        let first = sample(books.clone(), 0, now);
        let mut history = ProcessHistory {
            keeper: HistoryKeeper::new(recent.clone(), inbox, first),
            recent,
            feed,
            arriving: VecDeque::new(),
            is_adopting: before.is_some(),
            rows: 0,
            points: Some(BTreeMap::new()),
            first: before.is_none().then_some(books),
            samples: 0,
        };
        if let Some(before) = before {
            history.arriving = before.parts.iter().cloned().collect();
            history.points = before.points.clone();
            if random.one_in(4) {
                let kept = random.below(before.parts.len() as u64 + 1) as usize;
                history.arriving.truncate(kept);
                history.points = None;
            }
        }
        history
    }

    pub fn take(&mut self, batch: &Arc<Batch>) {
        let lost = self.lost();
        self.feed.take(batch);
        self.rows += batch.len() as u64;
        if self.lost() != lost {
            return;
        }
        if let Some(points) = &mut self.points
            && !batch.partitions.is_empty()
        {
            for (_, name, samples) in rows(batch) {
                *points.entry(name).or_default() += samples;
            }
        }
    }

    fn lost(&self) -> u64 {
        self.recent.points_lost()
    }

    /// Its thread does something. False: there is nothing to do.
    pub fn step(&mut self) -> bool {
        if self.is_adopting {
            match self.arriving.pop_front() {
                Some((of, bytes)) => {
                    let part = postcard::from_bytes(&bytes).expect("a part");
                    self.recent.adopt(of, part).expect("a sound part");
                }
                None => {
                    self.recent.adopted();
                    self.is_adopting = false;
                }
            }
            return true;
        }
        self.keeper.take_batch(Duration::ZERO).unwrap_or(false)
    }

    /// The workers have reported.
    pub fn keep_books(&mut self, books: impl FnOnce() -> Vec<OwnSeries>, now: Readings) {
        if self.is_adopting {
            return;
        }
        self.samples += 1;
        let report = self.samples;
        self.keeper
            .keep_books(report, unix_ns(now), || sample(books(), report, now));
    }

    /// For another process, which gets what is in it by now.
    pub fn give(&mut self) -> Given {
        while self.step() {}
        let mut parts = Vec::new();
        let given = self.recent.give(Duration::ZERO, |of, part| {
            parts.push((
                of,
                postcard::to_extend(part, Vec::new()).map_err(std::io::Error::other)?,
            ));
            Ok(())
        });
        given.expect("a history in memory");
        Given {
            parts,
            points: self.points.clone(),
        }
    }

    /// Compares it with what it was given.
    pub fn check(&mut self) {
        while self.step() {}
        let held = self.recent.points().figures();
        assert_eq!(
            held.taken + self.lost(),
            self.rows,
            "the history was given {} rows, has taken {} and lost {}",
            self.rows,
            held.taken,
            self.lost()
        );
        assert_eq!((held.refused, held.evicted), (0, 0), "the history has room");
        for (name, samples) in self.points.iter().flatten() {
            let found = sum(&self.recent.points(), name);
            assert_eq!(found, *samples as f64, "{name} in the history");
        }
    }

    /// The books, after all that was counted is older than they are.
    pub fn check_books(&mut self, books: &[OwnSeries]) {
        let Some(first) = &self.first else { return };
        let counted = |series: &&OwnSeries| series.is_counter && series.value > 0.0;
        for series in books.iter().filter(counted) {
            let named = |of: &&OwnSeries| of.name == series.name;
            let total = |of: &[OwnSeries]| of.iter().filter(named).map(|of| of.value).sum::<f64>();
            let found = sum(&self.recent.books(), series.name);
            let rise = total(books) - total(first);
            assert_eq!(found, rise, "the history shows a rise of {}", series.name);
        }
    }
}

fn unix_ns(now: Readings) -> u64 {
    u64::try_from(now.wall_ms).unwrap_or(0) * 1_000_000
}

fn sample(series: Vec<OwnSeries>, report: u64, now: Readings) -> Sample {
    Sample {
        series,
        report,
        reported_ns: unix_ns(now),
        read_ns: unix_ns(now),
    }
}

/// The total of a counter over all time.
fn sum(history: &History, name: &str) -> f64 {
    let query = Query {
        metric: name.to_owned(),
        function: Some(Function::Sum),
        ..Query::default()
    };
    let found = match history.query(&query) {
        Err(QueryError::Unknown(_)) => None,
        found => Some(found.expect("an answer")),
    };
    let groups = found.iter().flat_map(|found| &found.groups);
    groups.flat_map(|group| &group.values).flatten().sum()
}
