//! Outputs of a process, which deliver as in production.
//!
//! The tasks of an output run on the thread of the simulation when it lets them, until each waits for time or for an answer.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use weir_aggregate::{Batch, Weights};
use weir_ingest::Readings;
use weir_output::delivery::{
    AgentIdentity, Clock, Delivery, Driver, Endpoint, Order, OutputEnvironment, OutputState, Reason,
    SafeSamples, SavedQueue, SavedStates,
};
use weir_output::prometheus::{Format, Scrape, Seconds};
use weir_output::settings::{DeliverySettings, PrometheusSettings, QueueSettings};
use weir_state::AgentId;

use super::Random;
use super::disk::{Killed, ProcessDisk};
use super::history::ProcessHistory;
use super::receivers::{Mood, QUEUE_BYTES, Receivers, Rows, SampleCounts, Sends, Told, lock, rows};
use crate::pipeline::Consumers;
use crate::state::Tally;
use crate::state::tally::OutputKind;

/// The name of the scrape output.
pub const SCRAPE: &str = "prometheus";

/// Time after which a metric without samples leaves a scrape.
const EXPIRY: Duration = Duration::from_secs(5);

/// Longest time that an output has at a stop, before and after the last flush, and one that was replaced.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time that passes between two looks at an output that is to deliver everything.
const PAUSE: Duration = Duration::from_millis(400);
/// Enough of them for any wait after failures.
const PAUSES_MAX: usize = 100;

/// The payloads of one output that wait when another process takes over.
pub struct Waiting {
    queues: Vec<SavedQueue>,
    pub samples: u64,
}

/// A place to which a process delivers, whichever output does.
struct Line {
    name: String,
    receivers: Receivers,
    at: usize,
    process: u64,
    rows_max: usize,
    /// Bytes of payloads in memory.
    memory: u64,
    tally: Option<Arc<Tally>>,
    disk: ProcessDisk,
    counts: Arc<SampleCounts>,
    clock: Clock,
}

impl Line {
    /// Starts an output that has these payloads, or that replaces another.
    fn start(&self, queues: Vec<SavedQueue>, replaces: Option<Arc<Delivery>>) -> Arc<Delivery> {
        let told = Told {
            all: self.receivers.all.clone(),
            at: self.at,
            tally: self.tally.clone(),
            counts: self.counts.clone(),
            disk: self.disk.clone(),
        };
        let queues = BTreeMap::from([(self.name.clone(), queues)]);
        let around = OutputEnvironment {
            clock: self.clock.clone(),
            memory_bytes_max: self.memory,
            state_bytes_max: 0,
            host_tags: Arc::default(),
            saved: Arc::new(SavedStates::default().with_queues(queues)),
            safe: SafeSamples::new(Arc::new(told)),
            state_path: None,
            agent: AgentIdentity {
                id: AgentId([7; 16]),
                epoch: self.process,
                is_kept: true,
                monotonic_zero: || 0,
            },
            hostname: "host".into(),
            replaces,
        };
        let endpoint = Endpoint {
            label: self.name.clone(),
            directory: self.name.clone(),
            family: None,
            transport: Arc::new(Sends {
                all: self.receivers.all.clone(),
                at: self.at,
                process: self.process,
                counts: self.counts.clone(),
                disk: self.disk.clone(),
            }),
        };
        let encoder = Box::new(Rows {
            process: self.process,
            rows_max: self.rows_max,
            open: Vec::new(),
            made: self.receivers.made.clone(),
        });
        let order = Order::NewestFirst;
        let queue = lock(&self.receivers)[self.at].queue.clone();
        let settings = settings(queue.as_deref());
        let started = Delivery::start(&self.name, &settings, order, encoder, vec![endpoint], &around);
        Arc::new(started.expect("nobody else has the files"))
    }
}

/// One output of a process.
struct Sending {
    line: Line,
    delivery: Arc<Delivery>,
    driver: Driver,
    /// Its clock: monotonic nanoseconds, and Unix seconds.
    at: (u64, i64),
    /// Time that has passed on it.
    passed: Duration,
    /// It takes over from the output that it replaces.
    taking_over: JoinSet<()>,
    /// Outputs that were replaced end.
    retiring: JoinSet<()>,
}

impl Sending {
    /// Samples that it has not delivered.
    fn left(&self) -> u64 {
        self.line.counts.left()
    }

    fn pass(&mut self, now: Readings) {
        let (monotonic, unix) = self.at;
        let to = monotonic.max(now.monotonic);
        let before = self.passed;
        self.passed += Duration::from_nanos(to - monotonic);
        self.driver.advance(Duration::from_nanos(to - monotonic));
        let shown = unix + (self.passed.as_secs() - before.as_secs()) as i64;
        let unix = now.wall_ms.div_euclid(1000);
        self.driver.step(unix - shown);
        self.at = (to, unix);
    }
}

/// All that a process gives its merged buckets to.
pub struct Outputs {
    receivers: Receivers,
    sending: Vec<Sending>,
    pub scrape: Arc<Scrape>,
    /// Another one, whose metrics come and go. It keeps nothing at the end of a process.
    pub forgetful: Arc<Scrape>,
    /// From the moment at which the process runs.
    pub history: Option<ProcessHistory>,
    disk: ProcessDisk,
    /// Monotonic seconds of the process.
    pub now: Seconds,
    /// A bucket has ended since this was last asked.
    pub has_flushed: bool,
    /// The outputs have a part of a bucket.
    is_in_bucket: bool,
}

fn settings(queue: Option<&Path>) -> DeliverySettings {
    DeliverySettings {
        queue: QueueSettings {
            timeout: Duration::from_secs(5),
            backoff_max: Duration::from_secs(1),
            disk_path: queue.map(|path| path.display().to_string()).unwrap_or_default(),
            disk_bytes_max: QUEUE_BYTES,
            disk_age_max: Duration::ZERO,
        },
        concurrency: 2,
        ca_file: String::new(),
        proxy: "none".into(),
        no_proxy: Vec::new(),
    }
}

/// The beginning of a process, for its outputs.
pub struct Beginning<'a> {
    pub receivers: &'a Receivers,
    pub disk: &'a ProcessDisk,
    pub saved: &'a SavedStates,
    pub tally: Option<Arc<Tally>>,
    pub rows_max: usize,
    pub memory: u64,
    /// Of the previous process.
    pub waiting: &'a [Waiting],
    pub now: Readings,
}

impl Beginning<'_> {
    fn sending(&self, process: u64, at: usize, name: &str) -> Sending {
        let unix = self.now.wall_ms.div_euclid(1000);
        let disk = self.disk.clone();
        let (clock, driver) = Clock::simulated(unix, Arc::new(move || disk.is_alive()));
        let counts: Arc<SampleCounts> = Arc::default();
        let (on_disk, has_disk) = {
            let receiver = &mut lock(self.receivers)[at];
            receiver.running.push((process, counts.clone()));
            (receiver.on_disk, receiver.queue.is_some())
        };
        let line = Line {
            name: name.to_owned(),
            receivers: self.receivers.clone(),
            at,
            process,
            rows_max: self.rows_max,
            // Payloads on disk need not be in memory.
            memory: if has_disk { self.memory } else { 1 << 30 },
            tally: self.tally.clone(),
            disk: self.disk.clone(),
            counts,
            clock,
        };
        let waiting = self.waiting.get(at);
        let queues = waiting.map(|of| of.queues.clone()).unwrap_or_default();
        let samples = waiting.map_or(on_disk, |of| of.samples);
        line.counts.taken.store(samples, Ordering::Relaxed);
        Sending {
            delivery: line.start(queues, None),
            line,
            driver,
            at: (self.now.monotonic, unix),
            passed: Duration::ZERO,
            taking_over: JoinSet::new(),
            retiring: JoinSet::new(),
        }
    }
}

impl Outputs {
    pub fn start(beginning: &Beginning<'_>) -> Outputs {
        let shows_for = |expiry| {
            let settings = PrometheusSettings {
                expiry,
                ..PrometheusSettings::default()
            };
            Arc::new(Scrape::new(settings, Weights::Exact, usize::MAX))
        };
        // Longer than a schedule whose clock was set back often.
        let scrape = shows_for(Duration::from_secs(86_400));
        let lineage = scrape.lineage();
        beginning
            .saved
            .restore_with(SCRAPE, &lineage, |saved, of| scrape.restore(saved, of, 0));
        let receivers = beginning.receivers;
        let names: Vec<String> = lock(receivers).iter().map(|of| of.name.clone()).collect();
        if let Some(tally) = &beginning.tally {
            let mut named: Vec<_> = names.iter().map(|name| (&**name, OutputKind::Delivers)).collect();
            named.push((SCRAPE, OutputKind::AddsUp));
            tally.register(&named);
        }
        let _runtime = receivers.runtime.enter();
        let process = receivers.processes.fetch_add(1, Ordering::Relaxed);
        let sending = names.iter().enumerate();
        Outputs {
            receivers: receivers.clone(),
            sending: sending
                .map(|(at, name)| beginning.sending(process, at, name))
                .collect(),
            scrape,
            forgetful: shows_for(EXPIRY),
            history: None,
            disk: beginning.disk.clone(),
            now: 0,
            has_flushed: false,
            is_in_bucket: false,
        }
    }

    /// The outputs' tasks run until each waits. A kill may come at any operation.
    fn run(&self) {
        // The runtime's own time does not pass while a task has work.
        let all_wait = async { tokio::time::sleep(Duration::from_millis(1)).await };
        self.receivers.runtime.block_on(all_wait);
        let fault = lock(&self.receivers)
            .iter_mut()
            .find_map(|receiver| receiver.fault.take());
        if let Some(fault) = fault {
            panic!("{fault}");
        }
        if !self.disk.is_alive() {
            resume_unwind(Box::new(Killed));
        }
    }

    fn answer(&self, at: usize, random: Option<&mut Random>) -> bool {
        let has_answered = lock(&self.receivers)[at].answer(random);
        if has_answered {
            self.run();
            lock(&self.receivers)[at].answers_are_read();
        }
        has_answered
    }

    /// Time passes.
    pub fn pass(&mut self, now: Readings) {
        self.sending.iter_mut().for_each(|sending| sending.pass(now));
        self.run();
    }

    fn pause(&mut self) {
        for sending in &mut self.sending {
            sending.passed += PAUSE;
            sending.driver.advance(PAUSE);
        }
        self.run();
    }

    /// A receiver answers a request.
    pub fn step(&mut self, random: &mut Random) {
        let at = random.below(self.sending.len() as u64) as usize;
        self.answer(at, Some(random));
    }

    /// A reload changes the settings of an output: another one replaces it between two buckets, and takes over what it has. False: a bucket
    /// is on its way.
    pub fn reload(&mut self, at: usize) -> bool {
        if self.is_in_bucket {
            return false;
        }
        self.finish_reloads();
        let receivers = self.receivers.clone();
        let entered = receivers.runtime.enter();
        let sending = &mut self.sending[at];
        let new = sending.line.start(Vec::new(), Some(sending.delivery.clone()));
        let old = std::mem::replace(&mut sending.delivery, new.clone());
        let gone = old.clone();
        let (done, taken_over) = oneshot::channel::<()>();
        sending.taking_over.spawn(async move {
            new.take_over(&old).await;
            drop(done);
        });
        sending.retiring.spawn(async move {
            drop(taken_over.await);
            gone.shutdown(PATIENCE).await;
        });
        drop(entered);
        self.run();
        true
    }

    /// Stops, hand-overs and further reloads wait until an output has taken over.
    pub fn finish_reloads(&mut self) {
        for at in 0..self.sending.len() {
            if self.sending[at].taking_over.is_empty() {
                continue;
            }
            let mut taking_over = std::mem::take(&mut self.sending[at].taking_over);
            self.during(
                at,
                async move { while taking_over.join_next().await.is_some() {} },
            );
        }
    }

    /// The outputs deliver what they can. True: nothing waits.
    pub fn deliver(&mut self) -> bool {
        for _ in 0..PAUSES_MAX {
            for at in 0..self.sending.len() {
                while self.answer(at, None) {}
            }
            let answers = |at: usize| matches!(lock(&self.receivers)[at].mood, Mood::Accepts | Mood::Refuses);
            let left = |at: &usize| self.sending[*at].left() > 0;
            let waiting: Vec<usize> = (0..self.sending.len()).filter(left).collect();
            if waiting.is_empty() {
                return true;
            }
            if !waiting.into_iter().any(answers) {
                return false;
            }
            self.pause();
        }
        let left = self.sending.iter().map(|of| (of.left(), of.delivery.status()));
        let left: Vec<_> = left.filter(|(left, _)| *left > 0).collect();
        panic!("an output does not deliver, though its receiver would answer: {left:?}");
    }

    /// Waits for something that an output does at a stop.
    fn during<T: Send + 'static>(&mut self, at: usize, act: impl Future<Output = T> + Send + 'static) -> T {
        let mut task = JoinSet::new();
        task.spawn_on(act, self.receivers.runtime.handle());
        self.run();
        for _ in 0..PAUSES_MAX {
            while self.answer(at, None) {}
            if let Some(done) = task.try_join_next() {
                return done.expect("no panic");
            }
            self.pause();
        }
        panic!("an output does not end in time");
    }

    /// Before the last flush, while packets arrive. Returns which outputs are worth waiting for.
    pub fn settle(&mut self) -> Vec<bool> {
        self.finish_reloads();
        let mut settled = Vec::new();
        for at in 0..self.sending.len() {
            let delivery = self.sending[at].delivery.clone();
            settled.push(self.during(at, async move { delivery.settle(PATIENCE).await }));
        }
        settled
    }

    /// After it. True: everything is delivered.
    pub fn finish(&mut self, settled: &[bool]) -> bool {
        for (at, is_settled) in settled.iter().enumerate() {
            let (delivery, is_settled) = (self.sending[at].delivery.clone(), *is_settled);
            self.during(at, async move { delivery.finish(is_settled, PATIENCE).await });
            let status = self.sending[at].delivery.status();
            assert!(status.balances(), "{status:?}");
            let dropped = status.endpoints[0].dropped.get(&Reason::Shutdown);
            let is_left = dropped.is_some_and(|items| !items.is_zero());
            let left = self.sending[at].left() - lock(&self.receivers)[at].waiting_on_disk();
            assert_eq!(is_left, left > 0, "{left} samples are left, {status:?}");
        }
        self.end();
        lock(&self.receivers)
            .iter()
            .all(|receiver| receiver.ending == Some(0))
    }

    /// Whatever waits in memory alone is dropped and counted, once the books have it.
    pub fn end(&self) {
        for (sending, receiver) in self.sending.iter().zip(&mut *lock(&self.receivers)) {
            receiver.ending = Some(sending.left() - receiver.waiting_on_disk());
        }
    }

    /// The same, where the books have it already.
    pub fn end_now(&self) {
        self.end();
        self.receivers.killed(true);
    }

    /// Begins no further request, and returns the payloads that another process continues with.
    pub fn hand_over(&mut self) -> Vec<Waiting> {
        let mut waiting = Vec::new();
        self.disk.without_kill(|| {
            for sending in &self.sending {
                let queues = self.receivers.to_the_end(async {
                    sending.delivery.pause(Duration::ZERO).await;
                    let saved = sending.delivery.save().await.expect("no time passes");
                    sending.delivery.close_files().await;
                    saved.1
                });
                let samples = sending.left();
                waiting.push(Waiting { queues, samples });
            }
        });
        waiting
    }

    /// The other process has failed.
    pub fn resume(&mut self) {
        // It has no file open any more.
        self.run();
        for at in 0..self.sending.len() {
            let delivery = self.sending[at].delivery.clone();
            // A kill may come at any of its operations, and nothing ends after one.
            self.during(at, async move { delivery.open_files().await });
            self.sending[at].delivery.resume();
        }
        self.run();
    }

    /// No start reports what was accepted: no kill ended the process.
    pub fn said(&mut self) {
        for (sending, receiver) in self.sending.iter().zip(&mut *lock(&self.receivers)) {
            receiver
                .running
                .retain(|(process, _)| *process != sending.line.process);
        }
    }

    pub fn save_counted(&self) -> (OutputState, u64) {
        let (saved, samples) = self.scrape.save_counted(self.now);
        (OutputState::new(&self.scrape.lineage(), saved), samples)
    }

    /// The counters that a scraper sees.
    pub fn scraped(&self) -> BTreeMap<String, u64> {
        let all = self.shown_by(&self.scrape);
        for (name, value) in self.shown_by(&self.forgetful) {
            let most = all.get(&name).copied();
            assert!(
                most.is_some_and(|most| value <= most),
                "a scrape shows {value} for {name}, and one that forgets nothing {most:?}"
            );
        }
        all
    }

    fn shown_by(&self, scrape: &Arc<Scrape>) -> BTreeMap<String, u64> {
        let mut rendering = scrape.render(Format::Text, false, &[], self.now);
        let mut text = Vec::new();
        while let Some(piece) = rendering.next_piece() {
            text.extend_from_slice(&piece);
        }
        let text = String::from_utf8(text).unwrap();
        let counter = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            let name = name.strip_suffix("_total")?;
            Some((name.to_owned(), value.parse::<f64>().ok()? as u64))
        };
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(counter)
            .collect()
    }
}

impl Consumers for Outputs {
    fn renew(&mut self) {}

    fn take(&mut self, batch: &Arc<Batch>) {
        self.scrape.take(batch, self.now);
        self.forgetful.take(batch, self.now);
        if let Some(history) = &mut self.history {
            history.take(batch);
        }
        // The pipeline and a scraper are two threads: a scrape may come between two parts of a bucket.
        if !batch.last {
            self.scraped();
        }
        let samples = rows(batch).map(|(_, _, samples)| samples).sum();
        for sending in &self.sending {
            sending.line.counts.taken.fetch_add(samples, Ordering::Relaxed);
            sending.delivery.submit(batch);
        }
        self.run();
        self.has_flushed |= batch.last;
        self.is_in_bucket = !batch.last;
    }
}
