//! The last minutes for users: points of every series, and the agent's books per second.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use weir_aggregate::Batch;
use weir_counters::Counts;
use weir_history::{History, Part, SeriesColumn, SeriesKey, SeriesKind};
use weir_output::prometheus::OwnSeries;

use crate::streams::Streams;
use weir_status::counters::HistoryCounter;
use weir_status::status::Status;

/// Bytes for the books: an hour of a few hundred series, most of which are constant.
const BOOKS_BYTES_MAX: usize = 4 << 20;
/// The maximum part of the memory for the books.
const BOOKS_SHARE: usize = 4;

/// Shared by the thread that writes it and everything that reads it.
pub struct Recent {
    points: RwLock<History>,
    books: RwLock<History>,
    /// Points that arrived while the thread was behind.
    behind: AtomicU64,
    waiting: Mutex<Waiting>,
    taken: Condvar,
    updates: watch::Sender<HistoryUpdate>,
    streams: Streams,
}

/// Batches on their way to the thread.
#[derive(Default)]
struct Waiting {
    bytes: u64,
    /// The time that the batches of this flush have waited for room together.
    waited: Duration,
}

/// Selects one of the two histories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryKind {
    Points,
    Books,
}

/// The newest data; readers wait for changes of this.
#[derive(Clone, Debug, Default)]
pub struct HistoryUpdate {
    /// Unix seconds of the newest complete bucket.
    pub bucket: i64,
    /// Unix seconds of the newest books.
    pub second: i64,
    /// The books that changed since the second before, for readers that follow them: a query for all books each second would cost
    /// more than the rest of an open page.
    pub changes: Arc<Vec<SeriesColumn>>,
}

impl Recent {
    pub fn new(bytes_max: usize, streams: Streams) -> Self {
        let books = (bytes_max / BOOKS_SHARE).min(BOOKS_BYTES_MAX);
        Recent {
            points: RwLock::new(History::new(bytes_max - books)),
            books: RwLock::new(History::new(books)),
            behind: AtomicU64::new(0),
            waiting: Mutex::default(),
            taken: Condvar::new(),
            updates: watch::Sender::new(HistoryUpdate::default()),
            streams,
        }
    }

    pub fn points(&self) -> RwLockReadGuard<'_, History> {
        self.points.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn books(&self) -> RwLockReadGuard<'_, History> {
        self.books.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn updates(&self) -> watch::Receiver<HistoryUpdate> {
        self.updates.subscribe()
    }

    /// Counters of streams.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Adds the stored and refused points.
    pub fn report(&self, status: &mut Status) {
        let points = self.points().figures();
        let mut counts = Counts::default();
        counts[HistoryCounter::Taken] = points.taken;
        counts[HistoryCounter::Refused] = points.refused;
        counts[HistoryCounter::Behind] = self.behind.load(Ordering::Relaxed);
        counts[HistoryCounter::Late] = points.late;
        counts[HistoryCounter::Points] = points.points as u64;
        counts[HistoryCounter::HeldSeries] = points.series as u64;
        counts[HistoryCounter::Seconds] = (points.to - points.from).max(0) as u64;
        status.add(None, &counts);
        let bytes = (points.bytes + self.books().figures().bytes) as u64;
        let waiting = self.waiting().bytes;
        status.memory.parts.insert("history".into(), bytes);
        *status.memory.parts.entry("batches".into()).or_default() += waiting;
        status.memory.used += bytes + waiting;
    }

    /// Adds a part of a flush.
    pub fn take(&self, batch: &Batch) {
        self.points
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take(batch);
        if batch.last {
            self.updates
                .send_modify(|updates| updates.bucket = batch.bucket.timestamp);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a batch on its way to the thread, or as lost if that would be more than `bytes_max`. One has room in any case. All batches of
    /// a flush together wait up to `patience` for the thread to make room.
    pub fn add_pending(&self, batch: &Batch, bytes_max: u64, patience: Duration) -> bool {
        let bytes = batch.bytes() as u64;
        let is_full = |waiting: &mut Waiting| waiting.bytes > 0 && waiting.bytes + bytes > bytes_max;
        let began = Instant::now();
        let waiting = self.waiting();
        let rest = patience.saturating_sub(waiting.waited);
        let (mut waiting, _) = self
            .taken
            .wait_timeout_while(waiting, rest, is_full)
            .unwrap_or_else(PoisonError::into_inner);
        waiting.waited = match batch.last {
            true => Duration::ZERO,
            false => waiting.waited + began.elapsed(),
        };
        let has_room = !is_full(&mut waiting);
        if has_room {
            waiting.bytes += bytes;
        } else {
            self.count_lost(batch);
        }
        has_room
    }

    /// The thread has processed a batch of these bytes and freed it, or did not get it.
    pub fn remove_pending(&self, bytes: usize) {
        self.waiting().bytes -= bytes as u64;
        self.taken.notify_all();
    }

    /// Points that were not taken, because the thread was behind.
    pub fn points_lost(&self) -> u64 {
        self.behind.load(Ordering::Relaxed)
    }

    pub fn count_lost(&self, batch: &Batch) {
        self.behind.fetch_add(batch.len() as u64, Ordering::Relaxed);
    }

    /// Sends everything to another process, after the thread has taken the queued batches.
    pub fn give(
        &self,
        patience: Duration,
        mut give: impl FnMut(HistoryKind, &Part<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let waiting = self.waiting();
        // Batches that are not taken in time are left out.
        drop(
            self.taken
                .wait_timeout_while(waiting, patience, |waiting| waiting.bytes > 0),
        );
        self.points()
            .parts()
            .try_for_each(|part| give(HistoryKind::Points, &part))?;
        self.books()
            .parts()
            .try_for_each(|part| give(HistoryKind::Books, &part))
    }

    /// Adds a part from another process, before anything else.
    pub fn adopt(&self, of: HistoryKind, part: Part<'_>) -> Result<(), weir_history::AdoptError> {
        self.of(of)
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .adopt(part)
    }

    /// The other process has sent everything.
    pub fn adopted(&self) {
        for of in [HistoryKind::Points, HistoryKind::Books] {
            self.of(of)
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .adopted();
        }
    }

    fn of(&self, of: HistoryKind) -> &RwLock<History> {
        match of {
            HistoryKind::Points => &self.points,
            HistoryKind::Books => &self.books,
        }
    }

    /// Adds the books of one second; counters as their increase.
    pub fn take_books(&self, second: i64, series: &[OwnSeries], before: &[OwnSeries]) {
        let mut books = self.books.write().unwrap_or_else(PoisonError::into_inner);
        books.begin(second, 1);
        let mut changes = Vec::new();
        let mut known = before.iter().peekable();
        for own in series {
            // Both lists usually have the same series in the same order.
            let same = |old: &&OwnSeries| old.name == own.name && old.labels == own.labels;
            // A reason appears with its first loss, so a missing counter was zero.
            let old = known.next_if(same).or_else(|| before.iter().find(same));
            let (kind, value) = if own.is_counter {
                (
                    SeriesKind::Counter,
                    (own.value - old.map_or(0.0, |old| old.value)).max(0.0),
                )
            } else {
                (SeriesKind::Gauge, own.value)
            };
            let tags: Vec<String> = own
                .labels
                .iter()
                .map(|(key, value)| format!("{key}:{value}"))
                .collect();
            let key = SeriesKey {
                context: None,
                hash: books.hash(own.name, tags.iter().map(String::as_str)),
                kind,
                name: own.name,
                suffix: "",
                host: None,
                tags: tags.iter().map(String::as_str),
            };
            books.push(&key, value);
            if old.is_none_or(|old| old.value != own.value) {
                let tags = own.labels.iter();
                changes.push(SeriesColumn {
                    name: own.name.to_owned(),
                    kind,
                    tags: tags
                        .map(|(key, value)| ((*key).to_owned(), value.clone()))
                        .collect(),
                    values: vec![Some(value)],
                });
            }
        }
        books.end();
        drop(books);
        self.updates.send_modify(|updates| {
            updates.second = second;
            updates.changes = Arc::new(changes);
        });
    }
}
