//! One process of the agent: real workers, pipeline, checkpoints and recovery, stepped on one thread.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_aggregate::{AggregatorSettings, Merger};
use weir_context::{ContextCounter, ContextLimits, HashSecret, Partitioning, Rules};
use weir_ingest::{
    CheckpointLink, ColumnFate, ColumnPayload, Core, IngestSettings, ListenerSettings, ProgressGuard,
    Readings, Received, Report, SavedBucket, WorkerSettings, WorkerTally,
};
use weir_listener::Monotonic;
use weir_output::delivery::Clock;
use weir_output::prometheus::OwnSeries;
use weir_protocol::ParseOptions;
use weir_state::AgentId;

use super::Random;
use super::clients::{Request, payload};
use super::disk::ProcessDisk;
use super::history::{Given, ProcessHistory};
use super::outputs::{Beginning, Outputs, SCRAPE, Waiting};
use super::receivers::Receivers;
use crate::life::fixes::{Rule, lacks};
use crate::life::{LifeSettings, Resumed, StateSaver};
use crate::pipeline::{Pipeline, Shared};
use crate::state::checkpoints::CheckpointWriter;
use crate::state::{PutSums, SavedPayloads, StateDir, StoredAgent};
use crate::supervision::{Health, PULSE, Supervisor};
use weir_status::counters::PipelineCounter;
use weir_status::status::{StateStatus, Status};
use weir_system::disk::Disk;

/// Reports that may wait for the pipeline. More than ever do: nothing waits for room in a simulation.
const REPORTS_MAX: usize = 1024;

/// As in production.
const CHECKPOINT_BYTES: usize = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// Common to all processes of a schedule.
#[derive(Clone, Debug)]
pub struct Plan {
    pub workers: usize,
    pub width: u32,
    pub rows_of_payload: usize,
    /// Bytes of payloads that an output with a disk queue has in memory.
    pub memory: u64,
    pub batch_bytes: usize,
    pub agent: AgentId,
}

impl Plan {
    pub fn life(&self) -> LifeSettings {
        LifeSettings {
            workers: self.workers,
            bucket_width: self.width,
            expiry: Duration::from_secs(3600),
            memory: 1 << 30,
            histogram_points: "max".into(),
            suffixes: 1,
            takes_columns: true,
        }
    }
}

/// A worker, and the moment of its next tick.
struct Worker {
    core: Core,
    next_tick: u64,
    /// Samples of the turn in progress, which the tally does not have yet.
    uncounted: Arc<AtomicU64>,
    progress: ProgressGuard,
    /// The end of its last turn.
    turned: u64,
}

pub struct Process {
    pub disk: ProcessDisk,
    workers: Vec<Worker>,
    reports: SyncSender<Report>,
    pipeline: Pipeline<Outputs>,
    shared: Arc<Shared>,
    writer: Option<CheckpointWriter>,
    saver: StateSaver,
    status: StateStatus,
    saved_payloads: SavedPayloads,
    /// Messages.
    received: u64,
    health: Arc<Health>,
    supervisor: Supervisor,
    supervised: u64,
    /// As a pipeline does while it runs.
    _runs: Arc<()>,
    /// With those of earlier processes.
    books: Status,
    started: u64,
    next_books: u64,
    with_sums: bool,
}

/// Everything that a process has given to the next one, besides the file.
#[derive(Default)]
pub struct Passed {
    pub waiting: Vec<Waiting>,
    history: Option<Given>,
}

/// The end of a stop.
pub struct Stopped {
    /// A file for the state was begun.
    pub keeps: bool,
    /// The books were written, in it or for themselves.
    pub has_books: bool,
    /// It could not be written.
    pub error: Option<String>,
    /// All outputs have delivered everything.
    pub is_delivered: bool,
}

/// The agent of the directory at its next start.
pub fn directory(disk: &ProcessDisk, plan: &Plan, now: Readings) -> std::io::Result<StateDir> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let seconds = (now.wall_ms / 1000).max(0) as u64;
    let agent = StoredAgent::of(&disk, seconds, None, || Ok(plan.agent))?;
    Ok(StateDir::new(Path::new("simulated"), disk, agent, None))
}

impl Process {
    /// As [`crate::run`] starts an agent.
    pub fn start(
        disk: &ProcessDisk,
        plan: &Plan,
        receivers: &Receivers,
        now: Readings,
        random: &mut Random,
    ) -> std::io::Result<Process> {
        let directory = directory(disk, plan, now)?;
        let resumed = Resumed::look(directory, &plan.life(), now.wall_ms);
        let nothing = Passed::default();
        Ok(Self::run(
            disk,
            plan,
            receivers,
            resumed,
            &nothing,
            now,
            random,
            || {},
        ))
    }

    /// As an agent takes over from one that runs and has stopped reading. `runs`: called once this one reads.
    pub fn take_over(
        disk: &ProcessDisk,
        plan: &Plan,
        receivers: &Receivers,
        passed: &Passed,
        now: Readings,
        random: &mut Random,
        runs: impl FnOnce(),
    ) -> std::io::Result<Process> {
        let directory = directory(disk, plan, now)?;
        let state = directory.passing()?;
        let resumed = Resumed::passed(directory, state, &plan.life(), now.wall_ms);
        let resumed = resumed.map_err(std::io::Error::other)?;
        Ok(Self::run(
            disk, plan, receivers, resumed, passed, now, random, runs,
        ))
    }

    fn run(
        disk: &ProcessDisk,
        plan: &Plan,
        receivers: &Receivers,
        mut resumed: Resumed,
        passed: &Passed,
        now: Readings,
        random: &mut Random,
        runs: impl FnOnce(),
    ) -> Process {
        let settings = plan.life();
        let saved = resumed.outputs();
        let tally = resumed.tally(plan.workers, now.wall_ms);
        let outputs = Outputs::start(&Beginning {
            receivers,
            disk,
            saved: &saved,
            tally: tally.clone(),
            rows_max: plan.rows_of_payload,
            memory: plan.memory,
            waiting: &passed.waiting,
            now,
        });
        let (reports, inbox) = sync_channel(REPORTS_MAX);
        let shared: Arc<Shared> = Arc::default();
        let merger = Merger::new(plan.workers).with_batch_bytes(plan.batch_bytes);
        let mut pipeline = Pipeline::new(
            inbox,
            merger,
            outputs,
            tally,
            shared.clone(),
            Box::new(|_| {}),
            Box::new(|_| {}),
            Box::new(|_, _| {}),
            Clock::driven(0).0,
        );
        let mut writer = None;
        let links = resumed.checkpoints(&settings, CHECKPOINT_BYTES, |it| {
            writer = Some(it);
            Ok(())
        });
        let mut links = links.into_iter();
        let buckets = resumed.buckets(&settings).into_iter().enumerate();
        let agent = resumed.agent();
        let mut workers: Vec<Worker> = buckets
            .map(|(number, saved)| worker(number, plan, agent, links.next(), saved, &reports, now))
            .collect();
        let saved_payloads = resumed.saved_payloads();
        for worker in &mut workers {
            worker.core.begin();
            // Threads begin when they get a processor: one may be ahead.
            if random.one_in(2) {
                worker.core.begin_checkpoint();
                worker.turn(&[], now);
            }
        }
        runs();
        let (saver, status, earlier) = resumed.started(&settings, &saved);
        let mut books = Status {
            state: status.clone(),
            ..Status::default()
        };
        if let Some(earlier) = &earlier {
            books.add_earlier(earlier);
        }
        for worker in &mut workers {
            worker.core.begin_checkpoint();
        }
        let history = ProcessHistory::start(passed.history.as_ref(), series(0, &shared), now, random);
        pipeline.consumers().history = Some(history);
        let (health, runs): (Arc<Health>, Arc<()>) = Default::default();
        let progress = workers.iter().map(|worker| worker.progress.progress()).collect();
        let begun = Monotonic(now.monotonic);
        Process {
            supervisor: Supervisor::new(health.clone(), progress, Arc::downgrade(&runs), begun),
            supervised: now.monotonic,
            received: 0,
            health,
            _runs: runs,
            disk: disk.clone(),
            workers,
            reports,
            pipeline,
            shared,
            writer,
            saver,
            status,
            saved_payloads,
            books,
            started: now.monotonic,
            next_books: now.monotonic,
            with_sums: true,
        }
    }

    /// The findings of this start, without the reports of earlier ones.
    pub fn status(&self) -> &StateStatus {
        &self.status
    }

    /// The books, with those of earlier processes.
    pub fn books(&self) -> Status {
        let mut books = self.books.clone();
        let open = self
            .workers
            .iter()
            .map(|worker| worker.core.ingest().aggregator().open_samples());
        books.state.samples_open = open.sum();
        books
    }

    /// Samples that a worker has read in a turn that a kill interrupted.
    pub fn uncounted(&self) -> u64 {
        self.workers
            .iter()
            .map(|worker| worker.uncounted.load(Ordering::Relaxed))
            .sum()
    }

    /// Nothing says what a kill costs.
    pub fn has_no_tally(&self) -> bool {
        self.writer.is_none()
    }

    pub fn turn(&mut self, worker: usize, lines: &[String], now: Readings) {
        self.received += lines.len() as u64;
        self.workers[worker].turn(lines, now);
    }

    /// Whether a request would be added now. `None`: it has to wait.
    pub fn would_add(&self, request: &Request) -> Option<bool> {
        let core = &self.workers[request.worker].core;
        (!core.holds_payloads()).then(|| !core.ingest().has_number(&request.number))
    }

    /// A request arrives. `adds`: as [`Process::would_add`] says.
    pub fn columns(&mut self, request: &Request, adds: bool, now: Readings) -> Option<ColumnFate> {
        self.workers[request.worker].columns(request, adds, now)
    }

    /// A checkpoint has the payloads of a worker up to this one.
    pub fn is_saved(&self, worker: usize, payload: u64) -> bool {
        self.saved_payloads.has(worker, payload)
    }

    /// The pipeline takes a report.
    pub fn merge(&mut self, now: Readings) -> bool {
        let seconds = ((now.monotonic - self.started) / SECOND) as u32;
        self.pipeline.consumers().now = seconds;
        self.pipeline.step()
    }

    /// The history's thread does something.
    pub fn remember(&mut self) -> bool {
        self.history().step()
    }

    fn history(&mut self) -> &mut ProcessHistory {
        self.outputs().history.as_mut().expect("it runs")
    }

    /// The history has what it was given. `with_books`: they have been kept since the last change, and no clock was set.
    pub fn check_history(&mut self, with_books: bool) {
        let books = with_books.then(|| series(self.received, &self.shared));
        let history = self.history();
        history.check();
        if let Some(books) = books {
            history.check_books(&books);
        }
    }

    /// The watching thread looks, if it is time. It says of exactly those workers that they are stuck that have not turned for five seconds.
    pub fn supervise(&mut self, now: Readings) {
        if now.monotonic < self.supervised + PULSE.as_nanos() as u64 {
            return;
        }
        self.supervised = now.monotonic;
        let Some(found) = self.supervisor.pulse(Monotonic(now.monotonic)) else {
            return;
        };
        let is_stuck = |worker: &&Worker| now.monotonic - worker.turned >= 5 * SECOND;
        let stuck = self.workers.iter().filter(is_stuck).count();
        assert_eq!(found.len(), stuck, "{found:?}");
        self.health.report(found);
        assert_eq!(self.health.error().is_some(), stuck > 0);
    }

    /// A part of a checkpoint is written.
    pub fn write(&mut self) -> bool {
        self.writer.as_mut().is_some_and(CheckpointWriter::step)
    }

    pub fn scraped(&self) -> std::collections::BTreeMap<String, u64> {
        self.pipeline.look().scraped()
    }

    /// A receiver answers.
    pub fn answer(&mut self, now: Readings, random: &mut Random) {
        self.outputs().pass(now);
        self.outputs().step(random);
    }

    pub fn outputs(&mut self) -> &mut Outputs {
        self.pipeline.consumers()
    }

    /// Books and sums, if it is time.
    pub fn keep(&mut self, now: Readings) {
        let has_flushed = std::mem::take(&mut self.outputs().has_flushed);
        if !has_flushed && now.monotonic < self.next_books {
            return;
        }
        self.with_sums |= has_flushed;
        self.next_books = now.monotonic + SECOND;
        let books = self.books();
        let series = series(self.received, &self.shared);
        self.history().keep_books(|| series, now);
        let outputs = self.pipeline.consumers();
        let sums = |put: PutSums<'_>| {
            let (saved, samples) = outputs.save_counted();
            put(SCRAPE, &saved, Some(samples))
        };
        let kept = self
            .saver
            .keep(self.with_sums.then_some(sums), || books, now.wall_ms);
        self.with_sums = kept.is_err();
    }

    /// As an agent stops reading, and gives its state to another process. `None`: workers are in different buckets.
    pub fn freeze(&mut self, now: Readings) -> std::io::Result<Option<Passed>> {
        if !self.saver.is_independent() {
            return Err(std::io::Error::other("its own files are not whole yet"));
        }
        self.outputs().finish_reloads();
        self.shared.expect_last();
        let transfer = Mutex::new(self.saver.transfer()?);
        for worker in &mut self.workers {
            worker.core.turn_ended(now);
            worker.core.advance();
            worker.core.hand_over_all();
            let number = worker.core.worker();
            let put = |piece: &[u8]| {
                let mut transfer = transfer.lock().unwrap_or_else(PoisonError::into_inner);
                transfer.piece(number, piece)
            };
            if !worker.core.keep(&put, std::iter::empty()) {
                return Err(std::io::Error::other("a worker could not return its state"));
            }
        }
        while self.merge(now) {}
        let buckets = self.shared.take_last();
        let first = buckets.first().and_then(|saved| saved.bucket);
        if buckets.iter().any(|saved| saved.bucket != first) {
            return Ok(None);
        }
        let mut transfer = transfer.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (sums, _) = self.outputs().save_counted();
        transfer.output(SCRAPE, &sums)?;
        let books = self.books();
        self.saver
            .finish_transfer(&mut transfer, &buckets, &books, now.wall_ms)?;
        Ok(Some(Passed {
            waiting: self.outputs().hand_over(),
            history: Some(self.history().give()),
        }))
    }

    /// The other process has failed, and this one continues.
    pub fn reclaim(&mut self) {
        self.saver.reclaim();
        self.outputs().resume();
    }

    /// Payloads that wait are lost, and only the books that were passed have them.
    pub fn drop_waiting(&mut self) {
        self.outputs().end_now();
    }

    /// The other process runs, and this one ends. Its threads may do this and that yet.
    pub fn end_after_hand_over(&mut self, writes: u64) {
        self.saver.keep_for_next();
        for _ in 0..writes {
            self.write();
        }
        self.outputs().said();
        self.disk.end();
    }

    /// As [`crate::run`] stops an agent.
    pub fn stop(mut self, now: Readings) -> Stopped {
        let settled = self.outputs().settle();
        self.shared.expect_last();
        let contexts = |worker: &Worker| worker.core.ingest().contexts().counts()[ContextCounter::Live];
        let begun = self.saver.begin(self.workers.iter().map(contexts).sum());
        let pending = begun.map(Mutex::new);
        let keeps = pending.is_some();
        for worker in &mut self.workers {
            worker.core.turn_ended(now);
            worker.core.advance();
            worker.core.hand_over_all();
            let number = worker.core.worker();
            let is_kept = pending.as_ref().is_some_and(|pending| {
                let put = |piece: &[u8]| {
                    let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
                    pending.piece(number, piece);
                    Ok(())
                };
                worker.core.keep(&put, std::iter::empty())
            });
            if !is_kept {
                worker.core.flush_open_bucket();
            }
        }
        let books = self.books();
        for number in 0..self.workers.len() {
            let _ = self.reports.send(Report::Done(number as u16));
        }
        // Their ways to the writer end.
        self.workers.clear();
        while self.merge(now) {}
        self.pipeline.finish();
        self.check_history(false);
        while self.write() {}
        let is_delivered = self.outputs().finish(&settled);
        let mut has_books = true;
        let error = match pending {
            Some(mut pending) => {
                let pending = pending.get_mut().unwrap_or_else(PoisonError::into_inner);
                let (saved, _) = self.outputs().save_counted();
                let sums = [(SCRAPE.to_owned(), saved)].into();
                let buckets = self.shared.take_last();
                let left = self.saver.save(pending, &buckets, sums, books, now.wall_ms);
                has_books = left.as_ref().err().is_none_or(|left| left.has_books);
                left.err().map(|error| error.to_string())
            }
            None => {
                self.saver.end(false);
                None
            }
        };
        Stopped {
            keeps,
            has_books,
            error,
            is_delivered,
        }
    }
}

fn worker(
    number: usize,
    plan: &Plan,
    agent: AgentId,
    link: Option<CheckpointLink>,
    saved: SavedBucket,
    reports: &SyncSender<Report>,
    now: Readings,
) -> Worker {
    let options = ParseOptions {
        origin_client: false,
        timestamps: false,
        eol_required: false,
    };
    let settings = IngestSettings {
        worker: number as u16,
        aggregator: AggregatorSettings {
            bucket_width: plan.width,
            counter_expiry: 0,
            context_expiry: 600,
            partitioning: match plan.workers {
                1 => Partitioning::Id,
                _ => Partitioning::Hash,
            },
            ..AggregatorSettings::default()
        },
        rules: Rules::default(),
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(1, 2),
        listeners: vec![ListenerSettings {
            merge_within: Some(20),
            ..ListenerSettings::from(options)
        }],
    };
    let around = WorkerSettings {
        release_memory: || {},
        flush_open_bucket: true,
        agent,
        batch_bytes_max: plan.batch_bytes,
        clients_max: 100,
    };
    let uncounted: Arc<AtomicU64> = Arc::default();
    let link = link.map(|link| counting(link, uncounted.clone()));
    let core = Core::new(settings, around, reports.clone(), link, saved, now, |_| {});
    Worker {
        core,
        next_tick: now.monotonic + SECOND,
        uncounted,
        progress: ended_turn(now),
        turned: now.monotonic,
    }
}

/// Counters of the books, of which one rises at any moment and one with buckets.
fn series(received: u64, shared: &Shared) -> Vec<OwnSeries> {
    let merged = shared.lock().counts[PipelineCounter::RowsMerged];
    let named = [
        ("weir_messages_received_total", received),
        ("weir_rows_merged_total", merged),
    ];
    let series = named.map(|(name, value)| OwnSeries {
        name,
        help: "",
        is_counter: true,
        labels: Vec::new(),
        value: value as f64,
    });
    series.to_vec()
}

fn ended_turn(now: Readings) -> ProgressGuard {
    let progress = ProgressGuard::new();
    progress.end_turn(now.monotonic);
    progress
}

/// Notes what the tally has. Without the rule that ends are stored first, it learns of an end with the next samples.
fn counting(link: CheckpointLink, uncounted: Arc<AtomicU64>) -> CheckpointLink {
    let store = link.tally;
    let last = Cell::new(None::<WorkerTally>);
    CheckpointLink {
        tally: Box::new(move |turn| {
            let has_ended = last.get().is_some_and(|last| last.bucket != turn.bucket);
            if !(lacks(Rule::EndsAreStoredFirst) && has_ended && turn.open == 0) {
                last.set(Some(turn));
                store(turn);
            }
            uncounted.store(0, Ordering::Relaxed);
        }),
        ..link
    }
}

impl Worker {
    fn columns(&mut self, request: &Request, adds: bool, now: Readings) -> Option<ColumnFate> {
        let core = &mut self.core;
        let (tell, told) = channel();
        self.uncounted.store(u64::from(adds), Ordering::Relaxed);
        let bucket = core.ingest().aggregator().open_bucket();
        core.ingest_mut().columns(ColumnPayload {
            columns: payload(&request.series, request.own_timestamp.unwrap_or(bucket.start)),
            listener: 0,
            pid: 0,
            local_data: None,
            external_data: None,
            number: Some(request.number),
            bytes: 1,
            received: now.monotonic,
            done: Box::new(move |fate| tell.send(fate).expect("the simulation waits")),
        });
        core.turn_ended(now);
        core.advance();
        self.uncounted.store(0, Ordering::Relaxed);
        told.try_recv().ok()
    }

    fn turn(&mut self, lines: &[String], now: Readings) {
        self.uncounted.store(lines.len() as u64, Ordering::Relaxed);
        let packets: Vec<Received<'_>> = lines
            .iter()
            .map(|line| Received {
                bytes: line.as_bytes(),
                listener: 0,
                truncated: false,
                received: now.monotonic,
            })
            .collect();
        let core = &mut self.core;
        core.ingest_mut().packets(&packets);
        core.turn_ended(now);
        core.advance();
        self.uncounted.store(0, Ordering::Relaxed);
        if let Some(batch) = core.next_batch() {
            core.offer(batch);
        }
        core.pass_on();
        core.summarise();
        self.progress.end_turn(now.monotonic);
        self.turned = now.monotonic;
        if now.monotonic >= self.next_tick {
            self.next_tick = now.monotonic + SECOND;
            core.ingest_mut().keep_within_memory();
            core.begin_checkpoint();
        }
        core.proceed_with_checkpoint();
    }
}
