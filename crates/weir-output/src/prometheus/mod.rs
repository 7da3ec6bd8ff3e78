//! The Prometheus scrape endpoint: the sums of merged flushes, rendered for scrapers.
//!
//! A scraper needs cumulative values and a flush has those of one bucket, so this output keeps state from the start, scraped or not: the
//! first scrape shows everything since.
//!
//! With any names, tags and kinds, the exposition is valid: every name belongs to one metric of one kind ([`names`] resolves conflicts),
//! and every series occurs once.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use weir_aggregate::{Batch, Weights};
use weir_protocol::Kind;

use crate::counters::ScrapeCounter;
use crate::preview::{each_once, without_bounds};
use crate::settings::PrometheusSettings;

mod accept;
mod forms;
pub(crate) mod names;
mod native;
mod render;
pub(crate) mod state;

pub use accept::Format;
pub(crate) use forms::Forms;
pub(crate) use native::Native;
pub use state::{Counts, NoState, SavedAt, SavedPartitions, Seconds};

use render::Cursor;
use state::CumulativeState;

/// Bytes of a piece before compression. It takes well below a millisecond to write, and for so long a flush may wait.
const PIECE_BYTES: usize = 64 * 1024;

/// Renamed metrics that the status names.
const EXAMPLES_MAX: usize = 10;

/// A series of the agent itself.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnSeries {
    /// With its `weir_` prefix; counters end in `_total`.
    pub name: &'static str,
    pub help: &'static str,
    pub is_counter: bool,
    /// Names and values, sorted by name.
    pub labels: Vec<(&'static str, String)>,
    pub value: f64,
}

/// The scrape state, shared between the flush that fills it and the scrapes that show it.
pub struct Scrape(Mutex<CumulativeState>);

/// A metric whose name was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    pub name: String,
    pub kind: Kind,
    /// Without the suffix of its kind.
    pub shown_as: String,
}

#[derive(Clone, Debug, Default)]
pub struct ScrapeStatus {
    pub counts: Counts,
    pub metrics: usize,
    pub series: usize,
    pub heap_bytes: usize,
    pub renamed: usize,
    pub renamed_examples: Vec<Renamed>,
}

impl ScrapeStatus {
    pub fn counts(&self) -> weir_counters::Counts<ScrapeCounter> {
        let mut counts = weir_counters::Counts::default();
        counts[ScrapeCounter::Series] = self.series as u64;
        counts[ScrapeCounter::Metrics] = self.metrics as u64;
        counts[ScrapeCounter::Renamed] = self.renamed as u64;
        counts[ScrapeCounter::Merged] = self.counts.merged;
        counts[ScrapeCounter::Expired] = self.counts.expired;
        counts
    }
}

impl Scrape {
    /// `bytes_max`: a new series that would need more is refused.
    pub fn new(settings: PrometheusSettings, weights: Weights, bytes_max: usize) -> Self {
        Scrape(Mutex::new(CumulativeState::new(settings, weights, bytes_max)))
    }

    /// Whether another shows the same of the same series; after how long they leave does not count.
    pub fn shows_as(&self, other: &Scrape) -> bool {
        let settings = |scrape: &Scrape| PrometheusSettings {
            expiry: Duration::ZERO,
            ..scrape.lock().settings.clone()
        };
        settings(self) == settings(other)
    }

    /// The lineage of the state: an output with the same text can continue it.
    pub fn lineage(&self) -> String {
        let state = self.lock();
        let settings = PrometheusSettings {
            expiry: Duration::ZERO,
            ..state.settings.clone()
        };
        format!("{settings:?} {:?}", state.weights())
    }

    /// Every series, for the next process.
    pub fn save(&self, now: Seconds) -> Vec<u8> {
        self.lock().save(now)
    }

    /// The same, with the samples that are in it ([`Batch::samples_until`]).
    pub fn save_counted(&self, now: Seconds) -> (Vec<u8>, u64) {
        let state = self.lock();
        (state.save(now), state.samples_until)
    }

    /// The series of each partition of a fleet's log, for the process that gets it next.
    pub fn save_partitions(&self, now: Seconds) -> SavedPartitions {
        self.lock().save_partitions(now, |_| Vec::new())
    }

    /// Continues the series of another process; see [`CumulativeState::restore`].
    pub fn restore(&self, saved: &[u8], of: SavedAt, now: Seconds) -> Result<u64, NoState> {
        self.lock().restore(saved, of, now)
    }

    pub fn set_expiry(&self, expiry: Duration) {
        self.lock().settings.expiry = expiry;
    }

    /// Existing series stay; a new series that would need more is refused.
    pub fn set_bytes_max(&self, bytes_max: usize) {
        self.lock().bytes_max = bytes_max;
    }

    pub fn bytes_max(&self) -> usize {
        self.lock().bytes_max
    }

    pub fn heap_bytes(&self) -> usize {
        self.lock().heap_bytes()
    }

    /// Adds the rows of a flush. `now` comes from a monotonic clock.
    pub fn take(&self, batch: &Batch, now: Seconds) {
        let mut state = self.lock();
        state.take(batch, now);
        // Data that is not aggregated belongs to no flush.
        state.is_within_flush = !batch.last && (state.is_within_flush || !batch.partitions.is_empty());
        if batch.last {
            state.samples_until = batch.samples_until;
            state.expire(now);
        }
    }

    /// Begins an exposition.
    pub fn render(
        self: &Arc<Self>,
        format: Format,
        gzip: bool,
        own: &[OwnSeries],
        now: Seconds,
    ) -> Rendering {
        let mut first = Vec::new();
        render::own(own, format, &mut first);
        let mut state = self.lock();
        state.expire(now);
        state.name_families();
        state.renderings += 1;
        drop(state);
        Rendering {
            scrape: self.clone(),
            format,
            cursor: Cursor::default(),
            first,
            is_done: false,
            encoder: gzip.then(|| GzEncoder::new(Vec::new(), Compression::fast())),
        }
    }

    pub fn status(&self) -> ScrapeStatus {
        let state = self.lock();
        let renamed = state.families.iter().filter_map(|family| {
            Some(Renamed {
                name: family.name.to_string(),
                kind: family.kind,
                shown_as: family.renamed.as_ref()?.to_string(),
            })
        });
        ScrapeStatus {
            counts: state.counts.clone(),
            metrics: state.families.len(),
            series: state.series_count(),
            heap_bytes: state.heap_bytes(),
            renamed: state.renamed,
            renamed_examples: if state.renamed > 0 {
                renamed.take(EXAMPLES_MAX).collect()
            } else {
                Vec::new()
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, CumulativeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The series that a scrape shows after a batch, as the text format has them.
pub fn preview(settings: &PrometheusSettings, weights: Weights, batch: &Batch) -> Vec<String> {
    let scrape = Arc::new(Scrape::new(settings.clone(), weights, usize::MAX));
    scrape.take(batch, 0);
    let mut rendering = scrape.render(Format::Text, false, &[], 0);
    let text: Vec<u8> = std::iter::from_fn(|| rendering.next_piece()).flatten().collect();
    let text = String::from_utf8_lossy(&text);
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let series = samples.filter_map(|line| Some(without_bounds(line.rsplit_once(' ')?.0)));
    each_once(series.collect())
}

/// Says where a metric comes from; its name in Prometheus may not.
pub(crate) fn help(name: &str, kind: Kind) -> String {
    let kind = match kind {
        Kind::Counter => "Counter",
        Kind::Gauge => "Gauge",
        Kind::Set => "Set",
        Kind::Histogram => "Histogram",
        Kind::Timing => "Timing",
        Kind::Distribution => "Distribution",
    };
    // Readers differ in which control characters end a line.
    let name: String = name
        .chars()
        .map(|character| if character.is_control() { '?' } else { character })
        .collect();
    format!("{kind} {name}")
}

/// An exposition under way.
pub struct Rendering {
    scrape: Arc<Scrape>,
    format: Format,
    cursor: Cursor,
    /// The text before the first metric.
    first: Vec<u8>,
    is_done: bool,
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl Rendering {
    /// The next bytes; `None` at the end. Values may be those of a later flush than in the piece before; names and series
    /// stay what they were.
    pub fn next_piece(&mut self) -> Option<Vec<u8>> {
        loop {
            if self.is_done {
                return None;
            }
            let mut piece = std::mem::take(&mut self.first);
            let is_more = {
                let state = self.scrape.lock();
                render::piece(&state, self.format, &mut self.cursor, PIECE_BYTES, &mut piece)
            };
            if !is_more {
                render::end(self.format, &mut piece);
                self.is_done = true;
            }
            let piece = self.compressed(piece);
            if !piece.is_empty() {
                return Some(piece);
            }
        }
    }

    fn compressed(&mut self, piece: Vec<u8>) -> Vec<u8> {
        let Some(mut encoder) = self.encoder.take() else {
            return piece;
        };
        // Writing into memory does not fail.
        let _ = encoder.write_all(&piece);
        if self.is_done {
            return encoder.finish().unwrap_or_default();
        }
        let ready = std::mem::take(encoder.get_mut());
        self.encoder = Some(encoder);
        ready
    }
}

impl Drop for Rendering {
    fn drop(&mut self) {
        self.scrape.lock().renderings -= 1;
    }
}

#[cfg(test)]
mod tests;
