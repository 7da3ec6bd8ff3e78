//! Gives the results to one output. The next part follows when the output has delivered the one before; then its position is stored in the
//! log.
//!
//! A slow or dead output delays only its own reading: results wait in the log. The stored position never exceeds the backend's, so after a
//! kill the next process repeats at most one bucket of each partition. The sums of an output are stored with its position, by partition, so the
//! next process continues them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use weir_aggregate::{BATCH_ROWS, Batch, Bucket};
use weir_merge::{CorrectionPolicy, Flush, FlushSeries, Follower, StoredSums};
use weir_output::delivery::{Delivery, OutputState, SavedStates};
use weir_output::prometheus::SavedAt;

use super::place::{self, Mark, PartitionSums};
use super::shared::{LOG, OutputProgress, Shared};
use super::{FleetLog, open_for_output, unix_ms};
use weir_agent::budget::Budget;
use weir_agent::life::Resumed;
use weir_agent::rules::Fixed;
use weir_process::continuity;
use weir_process::outputs::{Output, Outputs};
use weir_system::config::Config;
use weir_system::failure::Failure;

/// Interval of checks whether an output has room or has delivered.
const PACE: Duration = Duration::from_millis(10);

/// Interval of hearing of changed partitions while an output is waited for.
const LISTEN: Duration = Duration::from_secs(1);

/// Wait before a retry after a failure, and longest wait for results of other processes.
const RETRY: Duration = Duration::from_secs(1);

/// Widths of a default bucket that an output of sums waits for a partition, beyond the grace period.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts the outputs. Each delivers the partitions that the log assigns to it.
pub fn start(
    config: &Config,
    budget: &Budget,
    directory: PathBuf,
    handle: &Handle,
    shared: &Arc<Shared>,
) -> Result<Vec<JoinHandle<()>>, Failure> {
    let merge = config.merge.as_ref();
    let merge = merge.ok_or_else(|| Failure::runtime("no merge is configured"))?;
    let at = directory.display().to_string();
    place::directory(&directory).map_err(|error| Failure::runtime(format!("{at}: {error}")))?;
    let patience = (merge.grace + PATIENCE).as_millis() as i64;
    let room = budget.results_of_output(config.outputs.len());
    let mut threads = Vec::new();
    for output in &config.outputs {
        let name = output.name.clone();
        let progress = Arc::new(OutputProgress::new(&name));
        shared.add_output(progress.clone());
        let log = open_for_output(config, &name)?;
        let sending = Sending {
            config: Config {
                outputs: vec![output.clone()],
                ..config.clone()
            },
            budget: budget.of_output(&config.outputs),
            handle: handle.clone(),
            follower: Follower::new(log, CorrectionPolicy::default(), patience, room),
            mark: Mark::new(&directory, &name),
            progress,
            shared: shared.clone(),
            started: Instant::now(),
            name,
        };
        let thread = std::thread::Builder::new().name(format!("to {}", output.name));
        let started = thread.spawn(move || sending.run());
        threads.push(started.map_err(|error| Failure::thread(&error))?);
    }
    Ok(threads)
}

/// Waits until every output has finished what it was giving; the next process gives the rest.
pub fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a thread that sends results to an output panicked");
        }
    }
}

/// One output of a merge.
struct Sending {
    name: String,
    /// With this output alone.
    config: Config,
    /// This output's part.
    budget: Budget,
    handle: Handle,
    follower: Follower<FleetLog>,
    mark: Mark,
    progress: Arc<OutputProgress>,
    shared: Arc<Shared>,
    started: Instant,
}

/// The output while this process has partitions of it.
struct Running {
    outputs: Arc<Outputs>,
    output: Output,
    policy: CorrectionPolicy,
    /// The points that histograms become.
    suffix_mask: u32,
    sequence: u64,
    /// Partitions that had come or gone when the output started.
    moved: u64,
}

impl Sending {
    /// Runs until the process ends.
    pub fn run(mut self) {
        if self.mark.was_begun() {
            self.progress.repeated.fetch_add(1, Ordering::Relaxed);
        }
        let mut running = None;
        while !self.shared.is_stopping() {
            let commits = self.shared.commits();
            match self.turn(&mut running) {
                Ok(has_given) => {
                    // Other partitions may go on beside one that waits for a newer program.
                    if self.follower.counts().newer.is_none() {
                        self.shared.succeeded(&self.name);
                    }
                    if has_given {
                        continue;
                    }
                    self.progress.read_all(commits);
                }
                Err(error) => self.failed(&error),
            }
            self.shared.wait(commits, RETRY);
        }
        if let Some(running) = running {
            self.end(running);
        }
    }

    fn failed(&self, error: &weir_log::Error) {
        let reason = format!("results for {}: {error}", self.name);
        self.shared.failed(&self.name, &reason);
    }

    /// `false`: there is nothing to do.
    fn turn(&mut self, running: &mut Option<Running>) -> Result<bool, weir_log::Error> {
        self.follower.listen()?;
        let positions = self.follower.positions();
        // Other processes give the series of lost partitions, and know the sums of new ones.
        let moved = self.follower.counts().moved;
        let is_over = |running: &Running| positions.is_empty() || running.is_over(moved);
        if running.as_ref().is_some_and(is_over)
            && let Some(running) = running.take()
        {
            tracing::info!(
                "output {}: its partitions have changed to {:?}",
                self.name,
                positions.keys()
            );
            self.end(running);
        }
        if positions.is_empty() {
            self.progress.held(0);
            return Ok(false);
        }
        let running = match running {
            Some(running) => running,
            None => match self.start()? {
                Ok(started) => running.insert(started),
                Err(failure) => {
                    self.shared.fail(failure);
                    return Ok(false);
                }
            },
        };
        self.progress.held(positions.len());
        let now = self.started.elapsed().as_millis() as i64;
        let delivery = self.follower.next(now);
        self.shared.found_damage(self.follower.log().damage());
        let counts = self.follower.counts();
        let lacks = counts.deleted + counts.unreadable;
        self.progress.deleted.store(lacks, Ordering::Relaxed);
        self.progress.holds(self.follower.bytes());
        let Some(mut delivery) = delivery? else {
            let newer = counts.newer.map(|(partition, number)| weir_log::Error::Form {
                partition,
                what: "result",
                number,
            });
            return newer.map_or(Ok(false), Err);
        };
        if running.is_over(counts.moved) {
            return Ok(true);
        }
        if let Err(error) = self.mark.begin() {
            self.shared.failed(LOG, &format!("state_path: {error}"));
        }
        self.progress.giving(&delivery);
        self.progress.holds(self.follower.bytes() + delivery.bytes);
        if self.give(running, &mut delivery) {
            self.progress.delivered(&delivery);
            self.mark.end();
            self.store(running, &delivery)?;
        }
        Ok(true)
    }

    /// Starts the output, with the sums that the log has with its positions.
    fn start(&mut self) -> Result<Result<Running, Failure>, weir_log::Error> {
        let moved = self.follower.counts().moved;
        let stored = self.follower.sums()?;
        // From zero, they would replace those of the newer program.
        if let Some(newer) = stored.iter().find(|of| PartitionSums::are_newer(&of.bytes)) {
            return Err(weir_log::Error::Form {
                partition: newer.partition,
                what: "the sums before result",
                number: newer.before,
            });
        }
        Ok(self.start_with(&stored, moved))
    }

    fn start_with(&mut self, stored: &[StoredSums], moved: u64) -> Result<Running, Failure> {
        let saved = self.saved(stored);
        let fixed = Fixed::new(&self.config);
        let agent = continuity::publisher(&Resumed::default())?;
        let outputs = Outputs::start(
            &self.config,
            &self.budget,
            &fixed.expansion,
            self.handle.clone(),
            saved.clone(),
            agent,
            None,
        )?;
        for error in saved.finish() {
            let (output, reason) = (error.output, error.reason);
            tracing::warn!("output {output} starts its sums from zero: {reason}");
        }
        let (_, output_type, output) = outputs
            .each()
            .pop()
            .ok_or_else(|| Failure::runtime(format!("output {}: is not configured", self.name)))?;
        let policy = corrections(output_type, &output);
        self.follower.set_policy(policy);
        if policy.adds_up {
            self.follower.continue_behind(stored);
        }
        self.progress.set_repeats_are(repeats_are(output_type, &policy));
        self.progress.set_outputs(Some(outputs.clone()));
        Ok(Running {
            suffix_mask: fixed.default_mask(&self.config),
            outputs,
            output,
            policy,
            sequence: 0,
            moved,
        })
    }

    /// The sums that a new output continues. It starts those that cannot be read from zero.
    fn saved(&self, stored: &[StoredSums]) -> Arc<SavedStates> {
        let mut partitions = Vec::new();
        for of in stored {
            let found = PartitionSums::decode(&of.bytes).unwrap_or_else(|error| {
                let (output, partition) = (&self.name, of.partition);
                tracing::warn!("output {output} starts the sums of partition {partition} from zero: {error}");
                PartitionSums::default()
            });
            let away = (unix_ms() - found.at_ms).max(0) / 1000;
            let at = SavedAt {
                away: u32::try_from(away).unwrap_or(u32::MAX),
                partition: of.partition,
            };
            partitions.extend(found.sums.map(|sums| (sums, at)));
        }
        Arc::new(SavedStates::of_partitions(&self.name, partitions))
    }

    /// Ends the output: it has the rest of the grace period to deliver.
    fn end(&mut self, running: Running) {
        let grace = self.config.running.grace_period;
        let left = match self.shared.stopping_since() {
            Some(since) => grace.saturating_sub(since.elapsed()),
            None => grace,
        };
        running.outputs.keep_state();
        if let Output::Delivered(_, delivery) = &running.output {
            self.handle.block_on(delivery.shutdown(left));
        }
        self.progress.set_outputs(None);
    }

    /// Gives series to the output and waits for their delivery. `false`: the process ends first, or another one gives them.
    fn give(&mut self, running: &mut Running, delivery: &mut weir_merge::Delivery) -> bool {
        let flushes = std::mem::take(&mut delivery.flushes);
        let last = flushes.len().saturating_sub(1);
        let mut rows = 0;
        for (at, flush) in flushes.into_iter().enumerate() {
            // An output of sums gets a bucket by partitions.
            let ends_bucket = !running.policy.adds_up || at == last;
            let mut batches = Batches::new(flush, self.budget.batch_bytes(), ends_bucket);
            batches.rows = rows;
            while let Some(batch) = batches.next(running) {
                if !self.wait_for(running, |delivery| has_room(delivery, &batch)) {
                    return false;
                }
                running.output.take(&Arc::new(batch));
            }
            rows = if ends_bucket { 0 } else { batches.rows };
            let counts = batches.series.counts();
            delivery.corrected += counts.corrected;
            delivery.not_corrected += counts.not_corrected;
            self.follower.found_unreadable(counts.unreadable);
        }
        self.wait_for(running, |delivery| delivery.status().is_safe())
    }

    fn wait_for(&mut self, running: &Running, is_so: impl Fn(&Delivery) -> bool) -> bool {
        let Output::Delivered(_, delivery) = &running.output else {
            return true;
        };
        if is_so(delivery) {
            return true;
        }
        self.progress.waits.store(true, Ordering::Relaxed);
        let is_so = self.wait_until(running, || is_so(delivery));
        self.progress.waits.store(false, Ordering::Relaxed);
        is_so
    }

    /// `false`: the process ends first, or another one gives the series.
    fn wait_until(&mut self, running: &Running, is_so: impl Fn() -> bool) -> bool {
        let mut heard = Instant::now();
        while !is_so() {
            let grace = self.config.running.grace_period;
            if self
                .shared
                .stopping_since()
                .is_some_and(|since| since.elapsed() >= grace)
            {
                return false;
            }
            if heard.elapsed() >= LISTEN {
                heard = Instant::now();
                if let Err(error) = self.follower.listen() {
                    self.failed(&error);
                }
                if running.is_over(self.follower.counts().moved) {
                    return false;
                }
            }
            std::thread::sleep(PACE);
        }
        true
    }

    /// Stores the positions behind a delivery, and the sums that contain it.
    fn store(&mut self, running: &Running, delivery: &weir_merge::Delivery) -> Result<(), weir_log::Error> {
        if !running.policy.adds_up {
            return self.follower.delivered(delivery);
        }
        match self.sums(running, delivery) {
            Ok(sums) => self.follower.delivered_sums(delivery, sums),
            Err(error) => {
                // The next delivery stores them.
                self.shared
                    .failed(LOG, &format!("the sums of {}: {error}", self.name));
                Ok(())
            }
        }
    }

    fn sums(
        &self,
        running: &Running,
        delivery: &weir_merge::Delivery,
    ) -> std::io::Result<BTreeMap<u32, Vec<u8>>> {
        let sums = match &running.output {
            Output::Scrape(scrape) => Some(scrape.save_partitions()),
            Output::Delivered(_, delivery) => self.handle.block_on(delivery.sums_of_partitions()),
            Output::Relay(_) => None,
        };
        let sums = sums.ok_or_else(|| std::io::Error::other("the output did not give them in time"))?;
        let mut sums: BTreeMap<u32, OutputState> = sums.into_iter().collect();
        let at_ms = unix_ms();
        let partitions = delivery.positions().map(|(partition, ..)| {
            let of = PartitionSums {
                at_ms,
                sums: sums.remove(&partition),
            };
            Ok((partition, of.encode()?))
        });
        partitions.collect()
    }
}

impl Running {
    /// Whether its sums are not those of the partitions that this process has. `moved`: [`weir_merge::FollowerCounts::moved`].
    fn is_over(&self, moved: u64) -> bool {
        self.policy.adds_up && self.moved < moved
    }
}

fn has_room(delivery: &Delivery, batch: &Batch) -> bool {
    delivery.has_room(batch) && delivery.queued_bytes() <= delivery.queue_limit() / 2
}

fn bucket(start: i64, width: u32) -> Bucket {
    Bucket {
        start,
        timestamp: start,
        width,
    }
}

/// A bucket in the form that outputs take; the last batch ends the flush. One batch is made when the one before it was taken.
struct Batches {
    bucket: Bucket,
    partition: u32,
    /// Whether the bucket has no other flush.
    ends_bucket: bool,
    series: FlushSeries,
    batch_bytes: usize,
    rows: u64,
    is_late: bool,
    is_over: bool,
}

impl Batches {
    fn new(flush: Flush, batch_bytes: usize, ends_bucket: bool) -> Self {
        Batches {
            bucket: bucket(flush.start, flush.width),
            partition: flush.partition,
            ends_bucket,
            is_late: flush.is_late(),
            series: flush.into_series(),
            batch_bytes,
            rows: 0,
            is_over: false,
        }
    }

    fn next(&mut self, running: &mut Running) -> Option<Batch> {
        if self.is_over {
            return None;
        }
        let sequence = running.sequence + 1;
        let mut batch = Batch::of_fleet(self.bucket, sequence, self.partition);
        while batch.len() < BATCH_ROWS && batch.bytes() < self.batch_bytes {
            let Some((identity, _, state)) = self.series.next() else {
                batch.last = self.ends_bucket;
                self.is_over = true;
                // Nothing of a correction is for this output.
                if self.is_late && self.rows == 0 || !self.ends_bucket && batch.is_empty() {
                    return None;
                }
                break;
            };
            self.rows += 1;
            batch.push_merged(identity, running.suffix_mask, state);
        }
        batch.rows_of_bucket = self.rows;
        running.sequence = sequence;
        Some(batch)
    }
}

/// The kinds that an output can add to a bucket that it already has.
fn corrections(output_type: &str, output: &Output) -> CorrectionPolicy {
    let adds_up = match output {
        Output::Scrape(_) => true,
        Output::Delivered(_, delivery) => delivery.keeps_state(),
        Output::Relay(_) => false,
    };
    // Files show maximum and percentiles of a histogram, which cannot be added.
    let (counters, distributions, histograms) = match output_type {
        "otlp" => (true, true, true),
        "stdout" | "file" => (true, true, false),
        "datadog" => (false, true, false),
        _ => (false, false, false),
    };
    CorrectionPolicy {
        adds_up,
        counters,
        distributions,
        histograms,
    }
}

/// The backend's handling of a repeated bucket.
fn repeats_are(output_type: &str, policy: &CorrectionPolicy) -> &'static str {
    match output_type {
        _ if policy.adds_up => "replaced",
        "graphite" | "influx" => "replaced",
        "datadog" => "distributions_added_up",
        _ => "added_up",
    }
}
