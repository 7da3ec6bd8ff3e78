//! The Prometheus endpoint for the pipeline, the admin server and the status.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_aggregate::{Batch, Weights};
use weir_output::delivery::{OutputState, SavedStates};
use weir_output::prometheus::{Format, Scrape, ScrapeStatus, Seconds};
use weir_output::settings::PrometheusSettings;
use weir_units::counted;

use weir_admin::streams;
use weir_admin::{Exposition, ScrapeRequest};
use weir_status::series::own_series;
use weir_status::status::{OutputStatus, PointBooks, Status};

/// Maximum pieces that wait for a scraper.
const PIECES_MAX: usize = 2;

/// Nothing expires during rendering; a slower reader is disconnected.
const READER_TIMEOUT: Duration = Duration::from_secs(60);

/// The endpoint and its name in the configuration.
#[derive(Clone)]
pub struct ScrapeOutput {
    name: String,
    scrape: Arc<Scrape>,
    /// Expiry uses a clock that is never set.
    started: Instant,
}

impl ScrapeOutput {
    pub fn new(name: &str, settings: PrometheusSettings, weights: Weights, bytes_max: usize) -> Self {
        ScrapeOutput {
            name: name.to_owned(),
            scrape: Arc::new(Scrape::new(settings, weights, bytes_max)),
            started: Instant::now(),
        }
    }

    /// Every series, for the next process.
    pub fn save(&self) -> OutputState {
        OutputState::new(&self.scrape.lineage(), self.scrape.save(self.now()))
    }

    /// The same, with the samples in it.
    pub fn save_counted(&self) -> (OutputState, u64) {
        let (saved, samples) = self.scrape.save_counted(self.now());
        (OutputState::new(&self.scrape.lineage(), saved), samples)
    }

    /// The series of each partition of a fleet's log, for the process that gets it next.
    pub fn save_partitions(&self) -> Vec<(u32, OutputState)> {
        let lineage = self.scrape.lineage();
        let partitions = self.scrape.save_partitions(self.now()).into_iter();
        let state = |(partition, bytes)| (partition, OutputState::new(&lineage, bytes));
        partitions.map(state).collect()
    }

    /// Continues the exposition of the previous process.
    pub fn restore(&self, states: &SavedStates) {
        states.restore_with(&self.name, &self.scrape.lineage(), |saved, of| {
            self.scrape.restore(saved, of, self.now())
        });
    }

    /// The old endpoint with its state, if only the expiry differs.
    pub fn or_keep(self, old: &ScrapeOutput) -> ScrapeOutput {
        if !self.scrape.shows_as(&old.scrape) {
            return self;
        }
        ScrapeOutput {
            name: self.name,
            ..old.clone()
        }
    }

    /// Sets the memory limit of its state.
    pub fn limit(&self, bytes_max: u64) {
        self.scrape
            .set_bytes_max(usize::try_from(bytes_max).unwrap_or(usize::MAX));
    }

    pub fn bytes_max(&self) -> u64 {
        self.scrape.bytes_max() as u64
    }

    /// The size of its state.
    pub fn bytes(&self) -> u64 {
        self.scrape.heap_bytes() as u64
    }

    pub fn set_expiry(&self, expiry: Duration) {
        self.scrape.set_expiry(expiry);
    }

    pub fn take(&self, batch: &Arc<Batch>) {
        self.scrape.take(batch, self.now());
    }

    fn now(&self) -> Seconds {
        Seconds::try_from(self.started.elapsed().as_secs()).unwrap_or(Seconds::MAX)
    }

    /// Adds this output's books, notes and memory.
    pub fn report(&self, status: &mut Status) {
        let found = self.scrape.status();
        let counts = &found.counts;
        let points = PointBooks {
            produced: counts.taken,
            delivered: counts.delivered,
            pending: 0,
            pending_where: Default::default(),
            dropped: counts
                .dropped
                .iter()
                .map(|(reason, rows)| (reason.as_str().to_owned(), *rows))
                .collect(),
        };
        status.outputs.push(OutputStatus {
            name: self.name.clone(),
            output_type: "prometheus".into(),
            healthy: true,
            since: status.process.started,
            points,
            notes: notes(&found),
            ..Default::default()
        });
        status.add(None, &found.counts());
        let bytes = found.heap_bytes as u64;
        status.memory.parts.insert("scrape".into(), bytes);
        status.memory.used += bytes;
    }

    /// Answers a scraper.
    pub fn answer(&self, request: &ScrapeRequest, status: &Status) -> Exposition {
        let format = Format::of_accept(&request.accept);
        let own = own_series(status);
        let mut rendering = self.scrape.render(format, request.gzip, &own, self.now());
        let (sender, pieces) = streams::pieces(PIECES_MAX);
        tokio::spawn(async move {
            let deadline = tokio::time::Instant::now() + READER_TIMEOUT;
            while let Some(piece) = rendering.next_piece() {
                let sent = tokio::time::timeout_at(deadline, sender.send(Bytes::from(piece))).await;
                // The scraper has left, or is too slow.
                if !matches!(sent, Ok(Ok(()))) {
                    return;
                }
            }
            sender.finish();
        });
        Exposition {
            content_type: format.content_type().into(),
            content_encoding: request.gzip.then_some("gzip"),
            body: pieces,
        }
    }
}

/// Remarks for the status.
fn notes(found: &ScrapeStatus) -> Vec<String> {
    let mut notes = vec![format!(
        "{} of {}",
        counted(found.series as u64, "series"),
        counted(found.metrics as u64, "metrics")
    )];
    if found.renamed > 0 {
        notes.push(format!(
            "metrics under another name, because theirs is taken by another metric, Prometheus or weir: {}",
            found.renamed
        ));
    }
    for renamed in &found.renamed_examples {
        notes.push(format!(
            "{:?} of type {} is shown as {}",
            renamed.name,
            renamed.kind.as_str(),
            renamed.shown_as
        ));
    }
    if found.counts.merged > 0 {
        notes.push(format!(
            "points merged into the series of another context with the same labels: {}",
            found.counts.merged
        ));
    }
    notes
}
