//! Gives the results to one output, bucket after bucket. The next bucket follows when the output has delivered the one before; then its
//! position is stored.
//!
//! A slow output delays only its own reading: results wait in the log. The stored position never exceeds the backend's, so after a kill the
//! next process repeats at most one bucket.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use weir_aggregate::{BATCH_BYTES, BATCH_ROWS, Batch, Bucket};
use weir_merge::Log as _;
use weir_output::delivery::{Delivery, OutputState};
use weir_state::{Bounds, Table};

use super::correction_policy::{Correction, CorrectionPolicy};
use super::place::{PositionFile, StoredPosition};
use super::rounds::{LateBucket, Round, Rounds};
use super::shared::{OutputProgress, Shared};
use super::{FleetLog, unix_ms};
use crate::run::outputs::Output;

/// Bytes of results per read.
const READ_BYTES: usize = 1 << 20;

/// Interval of checks whether an output has room or has delivered.
const PACE: Duration = Duration::from_millis(10);

/// Wait before a retry after a failure.
const RETRY: Duration = Duration::from_secs(1);

pub struct Follower {
    pub name: String,
    pub output: Output,
    pub policy: CorrectionPolicy,
    pub log: FleetLog,
    pub rounds: Rounds,
    pub place: PositionFile,
    pub written: StoredPosition,
    /// The points that histograms become.
    pub suffix_mask: u32,
    pub handle: Handle,
    pub sent: Arc<OutputProgress>,
    pub shared: Arc<Shared>,
    /// Time limit of the stop.
    pub grace: Duration,
    pub sequence: u64,
}

impl Follower {
    /// Runs until the process ends or another process sends.
    pub fn run(mut self) {
        if self.place.was_begun() {
            self.sent.repeated.fetch_add(1, Ordering::Relaxed);
        }
        self.report();
        let mut seen = u64::MAX;
        while !self.is_stopping() {
            let commits = self.shared.commits();
            if commits != seen {
                match self.read() {
                    Ok(()) => seen = commits,
                    Err(reason) => {
                        self.shared
                            .failed(&format!("results for {}: {reason}", self.name));
                        self.shared.wait(commits, RETRY);
                        continue;
                    }
                }
            }
            match self.rounds.next() {
                Some(round) => {
                    self.give(round);
                    // Points that were held back may be due now.
                    seen = u64::MAX;
                }
                None if self.shared.wait(seen, RETRY) => {}
                None => seen = u64::MAX,
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.shared.is_stopping() || self.sent.is_stopping()
    }

    fn read(&mut self) -> Result<(), weir_log::Error> {
        let plan = self.log.plan()?;
        self.rounds.follow(plan);
        for partition in self.rounds.partitions() {
            while let Some(from) = self.rounds.wanted(partition) {
                let results = self.log.results(partition, from, READ_BYTES)?;
                if results.is_empty() {
                    break;
                }
                for (number, bytes) in results {
                    if let Err(error) = self.rounds.take(partition, number, &bytes) {
                        self.shared
                            .failed(&format!("result {number} of partition {partition}: {error}"));
                    }
                }
            }
        }
        self.shared.found_damage(self.log.damage());
        Ok(())
    }

    /// Gives a bucket to the output and waits for its delivery; when the process stops, at most until the time limit.
    fn give(&mut self, mut round: Round) {
        if let Err(error) = self.place.begin() {
            self.shared.failed(&format!("state_path: {error}"));
        }
        let late = std::mem::take(&mut round.late);
        let mut table = std::mem::take(&mut round.table);
        late.into_iter().for_each(|late| self.correct(late, &mut table));
        let bucket = bucket(round.start, round.width);
        let has_all = self.submit(bucket, table);
        self.sent.waits.store(true, Ordering::Relaxed);
        let has_arrived = has_all && self.wait_until_safe();
        self.sent.waits.store(false, Ordering::Relaxed);
        if has_arrived {
            self.write_down(round);
        }
    }

    /// Sends the effect of late records with its own time, on top of the next bucket, or not at all, depending on the output.
    fn correct(&mut self, late: LateBucket, next: &mut Table) {
        let mut at_its_time = Table::new(Bounds::NONE);
        for (identity, facts, state) in late.table.into_series() {
            let counted = match self.policy.correction(identity.kind) {
                Correction::InNextBucket => {
                    next.add(identity, facts, state);
                    &self.sent.corrected
                }
                Correction::AtItsTime => {
                    at_its_time.add(identity, facts, state);
                    &self.sent.corrected
                }
                Correction::None => &self.sent.not_corrected,
            };
            counted.fetch_add(1, Ordering::Relaxed);
        }
        if !at_its_time.is_empty() {
            self.submit(bucket(late.start, late.width), at_its_time);
        }
    }

    /// `false`: the process ends first.
    fn submit(&mut self, bucket: Bucket, table: Table) -> bool {
        let batches = batches(bucket, table, self.suffix_mask, &mut self.sequence);
        for batch in batches {
            if !self.wait_for_room(&batch) {
                return false;
            }
            self.output.take(&Arc::new(batch));
        }
        true
    }

    fn wait_for_room(&self, batch: &Batch) -> bool {
        let Output::Delivered(_, delivery) = &self.output else {
            return true;
        };
        let has_room = |delivery: &Delivery| {
            delivery.has_room(batch) && delivery.queued_bytes() <= delivery.queue_limit() / 2
        };
        self.wait_until(|| has_room(delivery))
    }

    fn wait_until_safe(&self) -> bool {
        let Output::Delivered(_, delivery) = &self.output else {
            return true;
        };
        self.wait_until(|| delivery.status().is_safe())
    }

    /// `false`: the process ends first.
    fn wait_until(&self, mut is_so: impl FnMut() -> bool) -> bool {
        let mut deadline = None;
        while !is_so() {
            if self.is_stopping() {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.grace);
                if Instant::now() >= deadline {
                    return false;
                }
            }
            std::thread::sleep(PACE);
        }
        true
    }

    fn write_down(&mut self, round: Round) {
        self.written = StoredPosition {
            at_ms: unix_ms(),
            position: round.position,
            buckets: self.written.buckets + 1,
            sums: self.sums(),
        };
        match self.place.write(&self.written) {
            Ok(()) => self.place.end(),
            Err(error) => self.shared.failed(&format!(
                "the position of {} cannot be saved, so a restart would deliver its results again: {error}",
                self.name
            )),
        }
        self.report();
    }

    /// The output's sums so far.
    fn sums(&self) -> Option<OutputState> {
        match &self.output {
            Output::Scrape(scrape) => Some(scrape.save()),
            Output::Delivered(_, delivery) => self.handle.block_on(delivery.sums()).map(|(sums, _)| sums),
            Output::Relay(_) => None,
        }
    }

    fn report(&self) {
        self.sent.buckets.store(self.written.buckets, Ordering::Relaxed);
        let newest = self.written.position.ends.values().max();
        self.sent
            .newest
            .store(newest.copied().unwrap_or(0), Ordering::Relaxed);
        self.sent.set_position(&self.written.position);
    }
}

fn bucket(start: i64, width: u32) -> Bucket {
    Bucket {
        start,
        timestamp: start,
        width,
    }
}

/// A bucket in the form that outputs take; the last batch ends the flush.
fn batches(bucket: Bucket, table: Table, suffix_mask: u32, sequence: &mut u64) -> Vec<Batch> {
    let mut new = || {
        *sequence += 1;
        Batch::of_fleet(bucket, *sequence)
    };
    let mut all = Vec::new();
    let (mut batch, mut rows) = (new(), 0);
    for (identity, _, state) in table.into_series() {
        if batch.len() >= BATCH_ROWS || batch.bytes() >= BATCH_BYTES {
            all.push(std::mem::replace(&mut batch, new()));
        }
        rows += 1;
        batch.rows_of_bucket = rows;
        batch.push_merged(identity, suffix_mask, state);
    }
    batch.last = true;
    all.push(batch);
    all
}
