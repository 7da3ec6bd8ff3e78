//! Outputs of a process, which deliver as in production, and the truth about what their receivers have accepted.
//!
//! The tasks of an output run on the thread of the simulation when it lets them, until each waits for time or for an answer.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use weir_aggregate::{Batch, Value, Weights};
use weir_ingest::Readings;
use weir_output::delivery::{
    AgentIdentity, AtRisk, BoxFuture, Class, Clock, Counter, Delivery, Draft, Driver, Encode, Encoded,
    Endpoint, Items, Order, Outcome, OutputEnvironment, OutputState, Payload, Reason, SafeSamples,
    SavedQueue, SavedStates, Transport,
};
use weir_output::prometheus::{Format, Scrape, Seconds};
use weir_output::settings::{DeliverySettings, PrometheusSettings, QueueSettings};
use weir_state::AgentId;

use super::Random;
use super::disk::{Killed, ProcessDisk};
use crate::run::pipeline::Consumers;
use crate::state::Tally;
use crate::state::tally::OutputKind;

/// The name of the scrape output.
pub const SCRAPE: &str = "prometheus";

/// Longest time that an output has at a stop, before and after the last flush.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time that passes between two looks at an output that is to deliver everything.
const PAUSE: Duration = Duration::from_millis(400);
/// Enough of them for any wait after failures.
const PAUSES_MAX: usize = 100;

/// The behaviour of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Accepts,
    /// Each payload, for good.
    Refuses,
    /// No answer.
    Hangs,
    /// Each attempt fails at once, and is repeated.
    Away,
}

/// A receiver, which outlives the processes that send to it.
pub struct Receiver {
    pub name: String,
    pub mood: Mood,
    /// Samples by name.
    pub accepted: BTreeMap<String, u64>,
    /// By timestamp and name: how often a part of this bucket came.
    pub parts: BTreeMap<(i64, String), u32>,
    /// Samples that the output dropped and counted.
    pub dropped: u64,
    /// Samples in payloads that a process has from the previous one. A kill drops them, and the books have them among those that waited.
    pub carried: u64,
    /// Accepted samples of which the output had not said so yet when its process was killed: the next start reports them.
    pub accepted_unsaid: u64,
    /// A process has ended its deliveries; its state may not be saved yet.
    pub ending: Option<Ending>,
    /// Its output said something that is not so.
    fault: Option<String>,
    requests: Vec<Request>,
}

/// A request without an answer.
struct Request {
    content: Content,
    /// It comes from a process before the one that sends it.
    is_carried: bool,
    counts: Arc<SampleCounts>,
    disk: ProcessDisk,
    answer: oneshot::Sender<Outcome>,
}

/// Samples of one output of a process.
#[derive(Default)]
struct SampleCounts {
    /// Given to the output, or carried from the previous process.
    taken: AtomicU64,
    /// The receiver has answered for good.
    answered: AtomicU64,
    /// Of these, those of this process of which the output has not said so.
    unsaid: AtomicU64,
    safe: AtomicU64,
}

/// Changes at the end of a process that no start reports as lost.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    dropped: u64,
    said: u64,
}

impl Receiver {
    pub fn new(name: &str) -> Receiver {
        Receiver {
            name: name.to_owned(),
            mood: Mood::Accepts,
            accepted: BTreeMap::new(),
            parts: BTreeMap::new(),
            dropped: 0,
            carried: 0,
            accepted_unsaid: 0,
            ending: None,
            fault: None,
            requests: Vec::new(),
        }
    }

    pub fn samples(&self) -> u64 {
        self.accepted.values().sum()
    }

    /// Answers one of its requests. Those that nobody waits for any more were not read.
    fn answer(&mut self, random: Option<&mut Random>) -> bool {
        let is_open = |request: &Request| request.disk.is_alive() && !request.answer.is_closed();
        self.requests.retain(is_open);
        if self.requests.is_empty() || self.mood == Mood::Hangs {
            return false;
        }
        let at = random.map_or(0, |random| random.below(self.requests.len() as u64));
        let request = self.requests.swap_remove(at as usize);
        let error = "no".to_owned();
        let outcome = match self.mood {
            Mood::Away => Outcome::Retry { error, after: None },
            Mood::Refuses => Outcome::Rejected { error },
            Mood::Accepts | Mood::Hangs => Outcome::Delivered,
        };
        if !matches!(outcome, Outcome::Retry { .. }) {
            let samples = request.content.samples();
            request.counts.answered.fetch_add(samples, Ordering::Relaxed);
            if request.is_carried {
                self.carried -= samples;
            } else {
                request.counts.unsaid.fetch_add(samples, Ordering::Relaxed);
                self.accepted_unsaid += samples;
            }
            if outcome == Outcome::Delivered {
                self.accept(request.content);
            } else {
                self.dropped += samples;
            }
        }
        let _ = request.answer.send(outcome);
        true
    }

    /// Its process has ended, and no start reports what waited: the books have it.
    pub fn end(&mut self) {
        if let Some(ending) = self.ending.take() {
            self.dropped += ending.dropped;
            self.accepted_unsaid -= ending.said;
            self.carried = 0;
        }
    }

    /// Its process was killed.
    pub fn killed(&mut self) {
        self.ending = None;
        self.dropped += std::mem::take(&mut self.carried);
    }

    fn accept(&mut self, content: Content) {
        for (timestamp, name, samples) in content.rows {
            *self.parts.entry((timestamp, name.clone())).or_default() += 1;
            *self.accepted.entry(name).or_default() += samples;
        }
    }
}

/// All receivers, and the runtime of the outputs that send to them.
#[derive(Clone)]
pub struct Receivers {
    all: Arc<Mutex<Vec<Receiver>>>,
    runtime: Arc<Runtime>,
    /// That have begun.
    processes: Arc<AtomicU64>,
}

impl Receivers {
    pub fn new(all: impl Iterator<Item = Receiver>) -> Receivers {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        Receivers {
            all: Arc::new(Mutex::new(all.collect())),
            runtime: Arc::new(runtime.expect("a runtime")),
            processes: Arc::default(),
        }
    }
}

pub fn lock(receivers: &Receivers) -> MutexGuard<'_, Vec<Receiver>> {
    lock_all(&receivers.all)
}

fn lock_all(all: &Mutex<Vec<Receiver>>) -> MutexGuard<'_, Vec<Receiver>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The body of a payload: the number of the process that made it, then timestamp, name and samples on a line each.
struct Content {
    process: u64,
    rows: Vec<(i64, String, u64)>,
}

impl Content {
    fn written(&self) -> Vec<u8> {
        let mut text = format!("{}\n", self.process);
        for (timestamp, name, samples) in &self.rows {
            text.push_str(&format!("{timestamp} {name} {samples}\n"));
        }
        text.into_bytes()
    }

    fn read(body: &[u8]) -> Content {
        let text = std::str::from_utf8(body).expect("text");
        let mut lines = text.lines();
        let row = |line: &str| {
            let mut words = line.split(' ');
            let mut word = || words.next().expect("three words");
            let (timestamp, name) = (word().parse().expect("a time"), word().to_owned());
            (timestamp, name, word().parse().expect("a number"))
        };
        Content {
            process: lines.next().and_then(|line| line.parse().ok()).expect("a number"),
            rows: lines.map(row).collect(),
        }
    }

    fn samples(&self) -> u64 {
        self.rows.iter().map(|(_, _, samples)| samples).sum()
    }
}

/// The rows of a batch, and the samples of each.
fn rows(batch: &Batch) -> impl Iterator<Item = (i64, String, u64)> {
    let series = batch.series().filter(|series| !series.is_idle());
    series.map(|series| match series.value() {
        Value::Counter(sum) => (batch.bucket.timestamp, series.name().to_owned(), sum as u64),
        other => panic!("only counters are sent: {other:?}"),
    })
}

struct Rows {
    process: u64,
    rows_max: usize,
    open: Vec<(i64, String, u64)>,
}

impl Encode for Rows {
    fn counter(&self) -> Counter {
        Box::new(|batch| Items::of(Class::Points, rows(batch).count() as u64))
    }

    fn encode(&mut self, batch: &Batch, out: &mut Encoded) {
        for row in rows(batch) {
            self.open.push(row);
            if self.open.len() >= self.rows_max {
                self.finish(out);
            }
        }
    }

    fn finish(&mut self, out: &mut Encoded) {
        if self.open.is_empty() {
            return;
        }
        let content = Content {
            process: self.process,
            rows: std::mem::take(&mut self.open),
        };
        out.payloads.push(Draft {
            route: 0,
            class: Class::Points,
            count: content.rows.len() as u32,
            body: content.written(),
        });
    }

    fn open(&self) -> Items {
        Items::of(Class::Points, self.open.len() as u64)
    }
}

/// Sends to a receiver, which answers when the schedule lets it.
struct Sends {
    all: Arc<Mutex<Vec<Receiver>>>,
    at: usize,
    process: u64,
    counts: Arc<SampleCounts>,
    disk: ProcessDisk,
}

impl Transport for Sends {
    fn send(&self, payload: Payload) -> BoxFuture<'_, Outcome> {
        let content = Content::read(&payload.body);
        let (answer, answered) = oneshot::channel();
        if !self.disk.is_alive() {
            return Box::pin(std::future::pending());
        }
        lock_all(&self.all)[self.at].requests.push(Request {
            is_carried: content.process != self.process,
            content,
            counts: self.counts.clone(),
            disk: self.disk.clone(),
            answer,
        });
        Box::pin(async move {
            match answered.await {
                Ok(outcome) => outcome,
                Err(_) => std::future::pending().await,
            }
        })
    }
}

/// The tally, and the truth about what it is told.
struct Told {
    all: Arc<Mutex<Vec<Receiver>>>,
    at: usize,
    tally: Option<Arc<Tally>>,
    counts: Arc<SampleCounts>,
    disk: ProcessDisk,
}

impl AtRisk for Told {
    fn begins(&self) {
        if let Some(tally) = &self.tally {
            tally.begins();
        }
    }

    fn leaves(&self, output: &str, samples: u64) {
        if let Some(tally) = &self.tally {
            tally.leaves(output, samples);
        }
    }

    fn is_safe(&self, output: &str, samples: u64) {
        // A kill before this is complete reports as lost what was accepted.
        if let Some(tally) = &self.tally {
            tally.safe(output, OutputKind::Delivers, samples);
        }
        if !self.disk.is_alive() {
            resume_unwind(Box::new(Killed));
        }
        let counts = &self.counts;
        let said = samples - counts.safe.swap(samples, Ordering::Relaxed);
        let unsaid = counts.unsaid.load(Ordering::Relaxed);
        let receiver = &mut lock_all(&self.all)[self.at];
        if said > unsaid {
            receiver.fault = Some(format!(
                "{output}: {said} more samples are safe, its receiver has answered for {unsaid}"
            ));
            return;
        }
        counts.unsaid.store(unsaid - said, Ordering::Relaxed);
        receiver.accepted_unsaid -= said;
    }
}

/// The payloads of one output that wait when another process takes over.
pub struct Waiting {
    queues: Vec<SavedQueue>,
    pub samples: u64,
}

/// One output of a process.
struct Sending {
    delivery: Arc<Delivery>,
    driver: Driver,
    /// Its clock: monotonic nanoseconds, and Unix seconds.
    at: (u64, i64),
    /// Time that has passed on it.
    passed: Duration,
    counts: Arc<SampleCounts>,
}

impl Sending {
    /// Samples that it has not delivered.
    fn left(&self) -> u64 {
        self.counts.taken.load(Ordering::Relaxed) - self.counts.answered.load(Ordering::Relaxed)
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
    disk: ProcessDisk,
    /// Monotonic seconds of the process.
    pub now: Seconds,
    /// A bucket has ended since this was last asked.
    pub has_flushed: bool,
}

fn settings() -> DeliverySettings {
    DeliverySettings {
        queue: QueueSettings {
            timeout: Duration::from_secs(5),
            backoff_max: Duration::from_secs(1),
            disk_path: String::new(),
            disk_bytes_max: 0,
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
    /// Of the previous process.
    pub waiting: &'a [Waiting],
    pub now: Readings,
}

impl Beginning<'_> {
    fn sending(&self, process: u64, at: usize, name: &str) -> Sending {
        let unix = self.now.wall_ms.div_euclid(1000);
        let (clock, driver) = Clock::simulated(unix);
        let counts: Arc<SampleCounts> = Arc::default();
        let mut queues = BTreeMap::new();
        if let Some(waiting) = self.waiting.get(at) {
            counts.taken.store(waiting.samples, Ordering::Relaxed);
            queues.insert(name.to_owned(), waiting.queues.clone());
        }
        let told = Told {
            all: self.receivers.all.clone(),
            at,
            tally: self.tally.clone(),
            counts: counts.clone(),
            disk: self.disk.clone(),
        };
        let around = OutputEnvironment {
            clock,
            memory_bytes_max: 1 << 30,
            state_bytes_max: 0,
            host_tags: Arc::default(),
            saved: Arc::new(SavedStates::default().with_queues(queues)),
            safe: SafeSamples::new(Arc::new(told)),
            state_path: None,
            agent: AgentIdentity {
                id: AgentId([7; 16]),
                epoch: process,
                is_kept: true,
                monotonic_zero: || 0,
            },
            hostname: "host".into(),
            replaces: None,
        };
        let endpoint = Endpoint {
            label: name.to_owned(),
            directory: name.to_owned(),
            family: None,
            transport: Arc::new(Sends {
                all: self.receivers.all.clone(),
                at,
                process,
                counts: counts.clone(),
                disk: self.disk.clone(),
            }),
        };
        let encoder = Box::new(Rows {
            process,
            rows_max: self.rows_max,
            open: Vec::new(),
        });
        let order = Order::NewestFirst;
        let started = Delivery::start(name, &settings(), order, encoder, vec![endpoint], &around);
        Sending {
            delivery: Arc::new(started.expect("an output without files")),
            driver,
            at: (self.now.monotonic, unix),
            passed: Duration::ZERO,
            counts,
        }
    }
}

impl Outputs {
    pub fn start(beginning: &Beginning<'_>) -> Outputs {
        let settings = PrometheusSettings::default();
        let scrape = Arc::new(Scrape::new(settings, Weights::Exact, usize::MAX));
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
            disk: beginning.disk.clone(),
            now: 0,
            has_flushed: false,
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
        panic!("an output does not deliver, though its receiver would answer");
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
            let (is_left, left) = (
                dropped.is_some_and(|items| !items.is_zero()),
                self.sending[at].left(),
            );
            assert_eq!(is_left, left > 0, "{left} samples are left, {status:?}");
        }
        self.end();
        self.sending.iter().all(|sending| sending.left() == 0)
    }

    /// Whatever waits is dropped and counted, once the books have it.
    pub fn end(&self) {
        for (sending, receiver) in self.sending.iter().zip(&mut *lock(&self.receivers)) {
            receiver.ending = Some(Ending {
                dropped: sending.left(),
                said: sending.counts.unsaid.swap(0, Ordering::Relaxed),
            });
        }
    }

    /// The same, where the books have it already.
    pub fn end_now(&self) {
        self.end();
        lock(&self.receivers).iter_mut().for_each(Receiver::end);
    }

    /// Begins no further request, and returns the payloads that another process continues with.
    pub fn hand_over(&mut self) -> Vec<Waiting> {
        let mut waiting = Vec::new();
        self.disk.without_kill(|| {
            for sending in &self.sending {
                let queues = self.receivers.runtime.block_on(async {
                    sending.delivery.pause(Duration::ZERO).await;
                    sending.delivery.save().await.expect("no time passes").1
                });
                let samples = sending.left();
                waiting.push(Waiting { queues, samples });
            }
        });
        waiting
    }

    /// The other process has failed.
    pub fn resume(&mut self) {
        self.sending.iter().for_each(|sending| sending.delivery.resume());
    }

    /// No start reports what was accepted: no kill ended the process.
    pub fn said(&mut self) {
        for (sending, receiver) in self.sending.iter().zip(&mut *lock(&self.receivers)) {
            receiver.accepted_unsaid -= sending.counts.unsaid.swap(0, Ordering::Relaxed);
        }
    }

    pub fn save_counted(&self) -> (OutputState, u64) {
        let (saved, samples) = self.scrape.save_counted(self.now);
        (OutputState::new(&self.scrape.lineage(), saved), samples)
    }

    /// The counters that a scraper sees.
    pub fn scraped(&self) -> BTreeMap<String, u64> {
        let mut rendering = self.scrape.render(Format::Text, false, &[], self.now);
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
        let samples = rows(batch).map(|(_, _, samples)| samples).sum();
        for sending in &self.sending {
            sending.counts.taken.fetch_add(samples, Ordering::Relaxed);
            sending.delivery.submit(batch);
        }
        self.run();
        self.has_flushed |= batch.last;
    }
}
