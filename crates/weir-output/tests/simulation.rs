//! Simulates the delivery of one output from a seed: what it is given, what its receivers answer, how time passes, steps of the wall clock,
//! stops, kills, reloads and hand-overs come in an order that the seed chooses. All of it runs on one thread, and every
//! step is waited for.
//!
//! After each step the books balance, and whatever leaves was said to leave before. In the end every point has arrived, or was refused,
//! dropped with a reason, or at risk when a process was killed; and no point arrived twice whose answer the output had.
//!
//! A schedule that fails is replayed with a log of its steps: `WEIR_DELIVERY_SEED=N`. `WEIR_DELIVERY_SCHEDULES=N` runs more of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use weir_aggregate::{Batch, BatchSource, Bucket, TimestampedSample, TimestampedValue};
use weir_output::delivery::{
    AtRisk, BoxFuture, Class, Clock, Counter, Delivery, Draft, Driver, Encode, Encoded, Endpoint, Items,
    Order, Outcome, OutputEnvironment, OutputStatus, Payload, Reason, SafeSamples, SavedQueue, SavedStates,
    Transport,
};
use weir_output::settings::DeliverySettings;
use weir_protocol::Kind;

use crate::support::{BUCKET, delivery, environment};

const SCHEDULES: u64 = 150;
const STEPS: u64 = 120;
const NAME: &str = "output";

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // The constants of SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that has no answer yet.
struct UnderWay {
    points: Vec<u64>,
    answer: oneshot::Sender<Outcome>,
}

/// The truth about one receiver, which outlives processes.
#[derive(Default)]
struct Receiver {
    under_way: Vec<UnderWay>,
    /// Arrivals of each point.
    arrived: BTreeMap<u64, u32>,
    /// Of these, arrivals that the output did not learn of: it may send the point again.
    unanswered: BTreeMap<u64, u32>,
    refused: BTreeSet<u64>,
    /// Faults that a request has shown.
    faults: Vec<String>,
}

impl Receiver {
    fn accept(&mut self, points: &[u64], is_answered: bool) {
        for point in points {
            *self.arrived.entry(*point).or_default() += 1;
            *self.unanswered.entry(*point).or_default() += u32::from(!is_answered);
        }
    }
}

/// A process's words about the samples that a kill would cost.
#[derive(Default)]
struct Told {
    begun: AtomicBool,
    leaves: AtomicU64,
    safe: AtomicU64,
}

impl AtRisk for Told {
    fn begins(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    fn leaves(&self, _: &str, samples: u64) {
        self.leaves.fetch_max(samples, Ordering::Relaxed);
    }

    fn is_safe(&self, _: &str, samples: u64) {
        self.safe.fetch_max(samples, Ordering::Relaxed);
    }
}

/// Sends to a receiver. `first`: the first point of this process.
struct Sends {
    receiver: Arc<Mutex<Receiver>>,
    told: Arc<Told>,
    first: u64,
    delay: Duration,
}

impl Transport for Sends {
    fn delay(&self, _: &Payload) -> Duration {
        self.delay
    }

    fn send(&self, payload: Payload) -> BoxFuture<'_, Outcome> {
        let text = std::str::from_utf8(&payload.body).expect("numbers");
        let points: Vec<u64> = text.lines().map(|line| line.parse().expect("a number")).collect();
        let (answer, told) = oneshot::channel();
        {
            let mut receiver = lock(&self.receiver);
            let may_leave = self.told.leaves.load(Ordering::Relaxed);
            let own = points.iter().filter(|point| **point >= self.first);
            let early = own
                .map(|point| point - self.first + 1)
                .filter(|sample| *sample > may_leave);
            if let Some(sample) = early.max() {
                let fault = format!("sample {sample} leaves, and only {may_leave} were said to");
                receiver.faults.push(fault);
            }
            if !self.told.begun.load(Ordering::Relaxed) {
                receiver
                    .faults
                    .push("a request leaves before it was said that one does".into());
            }
            receiver.under_way.push(UnderWay { points, answer });
        }
        Box::pin(async move {
            match told.await {
                Ok(outcome) => outcome,
                Err(_) => std::future::pending().await,
            }
        })
    }
}

/// Writes the numbers of points on lines, so many in a payload.
struct Lines {
    open: Vec<String>,
    rows_max: usize,
}

impl Lines {
    fn end(&mut self, out: &mut Encoded) {
        if !self.open.is_empty() {
            let rows = std::mem::take(&mut self.open);
            out.payloads.push(Draft {
                route: 0,
                class: Class::Points,
                count: rows.len() as u32,
                body: rows.join("\n").into_bytes(),
            });
        }
    }
}

impl Encode for Lines {
    fn counter(&self) -> Counter {
        Box::new(|batch| Items::of(Class::Points, batch.len() as u64))
    }

    fn encode(&mut self, batch: &Batch, out: &mut Encoded) {
        for series in batch.series() {
            self.open.push(series.name().to_owned());
            if self.open.len() >= self.rows_max {
                self.end(out);
            }
        }
    }

    fn finish(&mut self, out: &mut Encoded) {
        self.end(out);
    }

    fn open(&self) -> Items {
        Items::of(Class::Points, self.open.len() as u64)
    }
}

/// Settings of all processes of a schedule.
#[derive(Clone, Debug)]
struct Plan {
    endpoints: usize,
    order: Order,
    concurrency: usize,
    rows_max: usize,
    on_disk: bool,
    /// Bytes of payloads in memory: much, or so little that the oldest are dropped.
    memory: u64,
    /// Of each payload, from its creation on.
    delay: Duration,
}

/// Something that takes time, beside which other things happen.
enum Busy {
    /// The process stops.
    Stop(JoinHandle<()>),
    /// A new output takes over from the old one.
    Reload(JoinHandle<()>, Arc<Delivery>),
    /// Another process is to take over.
    HandOver(JoinHandle<Option<(Vec<SavedQueue>, OutputStatus)>>),
}

impl Busy {
    fn is_done(&self) -> bool {
        match self {
            Busy::Stop(task) | Busy::Reload(task, _) => task.is_finished(),
            Busy::HandOver(task) => task.is_finished(),
        }
    }

    fn abort(&self) {
        match self {
            Busy::Stop(task) | Busy::Reload(task, _) => task.abort(),
            Busy::HandOver(task) => task.abort(),
        }
    }
}

struct Schedule {
    random: Random,
    plan: Plan,
    directory: tempfile::TempDir,
    clock: Clock,
    driver: Driver,
    /// Seconds by which the wall clock is wrong.
    ahead: i64,
    receivers: Vec<Arc<Mutex<Receiver>>>,
    told: Arc<Told>,
    output: Option<Arc<Delivery>>,
    busy: Option<Busy>,
    /// Points made so far, which are numbered, and those before this process.
    points: u64,
    first: u64,
    /// Points that each receiver may lack: dropped with a reason, and at risk when a process was killed.
    dropped: Vec<u64>,
    at_risk: Vec<u64>,
    /// Dropped before this process.
    dropped_before: Vec<u64>,
    /// Books that have ended, by endpoint: drops that were counted.
    saved: Vec<SavedQueue>,
    counts: BTreeMap<&'static str, u64>,
    is_verbose: bool,
}

macro_rules! say {
    ($schedule:expr, $($what:tt)*) => {
        if $schedule.is_verbose {
            eprintln!("{:>8} ms  {}", $schedule.clock.now().as_millis(), format!($($what)*));
        }
    };
}

/// Everything that can happen without time or answers has.
async fn quiet() {
    // The runtime's own time does not pass while a task or the disk has work.
    tokio::time::sleep(Duration::from_millis(1)).await;
}

impl Schedule {
    fn new(seed: u64, is_verbose: bool) -> Schedule {
        let mut random = Random(seed);
        let plan = Plan {
            endpoints: random.one_of(&[1, 1, 2]),
            order: random.one_of(&[Order::NewestFirst, Order::TimeOrder]),
            concurrency: random.one_of(&[1, 2, 4]),
            rows_max: random.one_of(&[1, 3, 10]),
            on_disk: random.one_in(2),
            memory: random.one_of(&[1 << 20, 1 << 20, 200]),
            delay: Duration::from_millis(random.one_of(&[0, 0, 3500])),
        };
        let (clock, driver) = Clock::simulated(BUCKET, Arc::new(|| true));
        let schedule = Schedule {
            // In memory where that can be had: schedules synchronise files thousands of times.
            directory: tempfile::tempdir_in("/dev/shm")
                .or_else(|_| tempfile::tempdir())
                .expect("a directory"),
            clock,
            driver,
            ahead: 0,
            receivers: (0..plan.endpoints).map(|_| Arc::default()).collect(),
            told: Arc::default(),
            output: None,
            busy: None,
            points: 0,
            first: 0,
            dropped: vec![0; plan.endpoints],
            at_risk: vec![0; plan.endpoints],
            dropped_before: vec![0; plan.endpoints],
            saved: Vec::new(),
            counts: BTreeMap::new(),
            is_verbose,
            plan,
            random,
        };
        say!(schedule, "{:?}", schedule.plan);
        schedule
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn settings(&self) -> DeliverySettings {
        let mut settings = delivery();
        settings.concurrency = match self.plan.order {
            Order::NewestFirst => self.plan.concurrency,
            Order::TimeOrder => 1,
        };
        settings.timeout = Duration::from_secs(5);
        settings.backoff_max = Duration::from_secs(2);
        if self.plan.on_disk {
            settings.disk_path = self.directory.path().join("queue").display().to_string();
            settings.disk_bytes_max = 1 << 30;
            settings.disk_age_max = Duration::from_secs(1 << 20);
        }
        settings
    }

    fn begin(&self, replaces: Option<&Arc<Delivery>>, saved: Vec<SavedQueue>) -> Arc<Delivery> {
        let queues = BTreeMap::from([(NAME.to_owned(), saved)]);
        let around = OutputEnvironment {
            memory_bytes_max: self.plan.memory,
            saved: Arc::new(SavedStates::default().with_queues(queues)),
            safe: SafeSamples::new(self.told.clone()),
            replaces: replaces.cloned(),
            ..environment(self.clock.clone())
        };
        let endpoint = |(at, receiver): (usize, &Arc<Mutex<Receiver>>)| Endpoint {
            label: format!("receiver {at}"),
            directory: format!("place-{at}"),
            family: None,
            transport: Arc::new(Sends {
                receiver: receiver.clone(),
                told: self.told.clone(),
                first: self.first,
                delay: self.plan.delay,
            }),
        };
        let endpoints = self.receivers.iter().enumerate().map(endpoint).collect();
        let encoder = Box::new(Lines {
            open: Vec::new(),
            rows_max: self.plan.rows_max,
        });
        let started = Delivery::start(
            NAME,
            &self.settings(),
            self.plan.order,
            encoder,
            endpoints,
            &around,
        );
        Arc::new(started.expect("an output"))
    }

    /// A new process begins.
    fn start(&mut self) {
        self.told = Arc::default();
        self.first = self.points;
        self.dropped_before.clone_from(&self.dropped);
        let saved = std::mem::take(&mut self.saved);
        let output = self.begin(None, saved);
        say!(
            self,
            "a process starts, with {:?}",
            output.status().endpoints[0].restored
        );
        self.output = Some(output);
        self.count("starts");
    }

    /// Points of a bucket, or of a part of one.
    fn submit(&mut self) {
        let Some(output) = self.output.clone() else { return };
        let (rows, last) = (self.random.below(8), !self.random.one_in(4));
        let start = BUCKET + self.clock.now().as_secs() as i64;
        let bucket = Bucket {
            start,
            timestamp: start,
            width: 1,
        };
        let mut batch = Batch::new(BatchSource::default(), bucket, "host".into());
        for _ in 0..rows {
            let name = self.points.to_string();
            self.points += 1;
            let sample = TimestampedSample {
                kind: Kind::Gauge,
                name: &name,
                host: None,
                tags: &[],
                timestamp: start,
            };
            batch.push_timestamped(&sample, TimestampedValue::Number(1.0));
        }
        (batch.partitions, batch.last) = (0..1, last);
        batch.samples_until = self.points - self.first;
        say!(self, "{rows} points, up to {}, last {last}", self.points);
        output.submit(&Arc::new(batch));
    }

    /// Requests that the output has given up, which the receiver may have read all the same.
    fn forget_closed(&mut self) {
        for receiver in &self.receivers {
            let mut receiver = lock(receiver);
            let closed: Vec<UnderWay> = receiver
                .under_way
                .extract_if(.., |request| request.answer.is_closed())
                .collect();
            for request in closed {
                if self.random.one_in(2) {
                    receiver.accept(&request.points, false);
                }
            }
        }
    }

    /// A receiver answers one of its requests, or none.
    fn answer(&mut self, only_good: bool) {
        let at = self.random.below(self.receivers.len() as u64) as usize;
        let receiver = self.receivers[at].clone();
        let mut receiver = lock(&receiver);
        if receiver.under_way.is_empty() {
            return;
        }
        let which = self.random.below(receiver.under_way.len() as u64) as usize;
        let UnderWay { points, answer } = receiver.under_way.swap_remove(which);
        let error = String::from("no");
        let outcome = match self.random.below(if only_good { 4 } else { 8 }) {
            0..4 => {
                receiver.accept(&points, true);
                Outcome::Delivered
            }
            4 => {
                // It was read, and the answer is lost.
                receiver.accept(&points, false);
                Outcome::Retry { error, after: None }
            }
            5 => Outcome::Retry {
                error,
                after: self.random.one_in(2).then_some(Duration::from_secs(3)),
            },
            6 => Outcome::Denied { error },
            _ => {
                receiver.refused.extend(&points);
                Outcome::Rejected { error }
            }
        };
        say!(self, "receiver {at} answers {outcome:?} to {points:?}");
        let _ = answer.send(outcome);
    }

    /// The books of a process that ends count for good.
    fn close_books(&mut self, status: &OutputStatus) {
        assert!(status.balances(), "{status:?}");
        for (at, endpoint) in status.endpoints.iter().enumerate() {
            let dropped = endpoint
                .dropped
                .iter()
                .filter(|(reason, _)| **reason != Reason::Rejected);
            self.dropped[at] += dropped.map(|(_, items)| items.points).sum::<u64>();
        }
    }

    /// The process dies. Returns what it had on disk, for each endpoint.
    async fn kill(&mut self) {
        let Some(output) = self.output.take() else { return };
        let old = self.busy.take().and_then(|busy| {
            busy.abort();
            match busy {
                Busy::Reload(_, old) => Some(old),
                _ => None,
            }
        });
        let is_reload = old.is_some();
        let safe = self.told.safe.load(Ordering::Relaxed);
        let unsafe_samples = (self.points - self.first).saturating_sub(safe);
        let mut on_disk = Vec::new();
        for output in [Some(output), old].into_iter().flatten() {
            self.close_books(&output.status());
            for (at, endpoint) in output.status().endpoints.iter().enumerate() {
                let pending = endpoint.pending;
                let at_risk = pending.at_risk().points;
                self.at_risk[at] += at_risk;
                on_disk.push(pending.total().points - at_risk);
                if !is_reload {
                    // Payloads of the previous process wait beside those of this one.
                    let earlier = endpoint.restored.points + endpoint.earlier.points;
                    assert!(
                        at_risk <= unsafe_samples + earlier,
                        "{at_risk} points at risk, {unsafe_samples} said to be"
                    );
                }
            }
        }
        if !self.plan.on_disk {
            self.check_safe(safe);
        }
        say!(
            self,
            "a kill: {:?} at risk so far, {on_disk:?} on disk",
            self.at_risk
        );
        quiet().await;
        self.forget_closed();
        self.count("kills");
        self.start();
        if !is_reload {
            let found = self.output.as_ref().expect("it has started").status();
            let found: Vec<u64> = found.endpoints.iter().map(|of| of.restored.points).collect();
            assert_eq!(found, on_disk, "what was on disk");
        }
    }

    /// Of the points that were said to be safe, none is missing that was not dropped with a reason, whatever order they arrived in.
    fn check_safe(&self, safe: u64) {
        for (at, receiver) in self.receivers.iter().enumerate() {
            let receiver = lock(receiver);
            let is_missing =
                |point: &u64| !receiver.arrived.contains_key(point) && !receiver.refused.contains(point);
            let missing = (self.first..self.first + safe).filter(is_missing).count() as u64;
            let dropped = self.dropped[at] - self.dropped_before[at];
            assert!(
                missing <= dropped,
                "receiver {at}: {missing} of {safe} points that are safe are missing, {dropped} were dropped"
            );
        }
    }

    fn stop(&mut self) {
        let Some(output) = self.output.clone() else { return };
        let patience = Duration::from_secs(self.random.below(8));
        say!(self, "a stop within {patience:?}");
        self.count("stops");
        self.busy = Some(Busy::Stop(tokio::spawn(async move {
            let is_settled = output.settle(patience).await;
            output.finish(is_settled, patience).await;
        })));
    }

    fn reload(&mut self) {
        let Some(old) = self.output.clone() else { return };
        say!(self, "a reload");
        self.count("reloads");
        let new = self.begin(Some(&old), Vec::new());
        self.output = Some(new.clone());
        let (before, grace) = (old.clone(), Duration::from_secs(self.random.below(5)));
        let task = tokio::spawn(async move {
            new.take_over(&before).await;
            before.shutdown(grace).await;
        });
        self.busy = Some(Busy::Reload(task, old));
    }

    fn hand_over(&mut self) {
        let Some(output) = self.output.clone() else { return };
        let patience = Duration::from_secs(self.random.below(4));
        say!(self, "a hand-over, waits for requests up to {patience:?}");
        self.count("hand-overs");
        self.busy = Some(Busy::HandOver(tokio::spawn(async move {
            output.pause(patience).await;
            let (_, queues) = output.save().await.ok()?;
            let status = output.status();
            output.close_files().await;
            Some((queues, status))
        })));
    }

    /// Continues after something that took time, once it has ended.
    async fn conclude(&mut self) {
        let Some(busy) = self.busy.take_if(|busy| busy.is_done()) else {
            return;
        };
        let Some(output) = self.output.clone() else { return };
        match busy {
            Busy::Stop(task) => {
                task.await.expect("a stop");
                self.close_books(&output.status());
                for (at, endpoint) in output.status().endpoints.iter().enumerate() {
                    let waiting = endpoint.pending;
                    assert_eq!(waiting.at_risk(), Items::default(), "endpoint {at}: {waiting:?}");
                }
                say!(self, "it has stopped: {:?} dropped so far", self.dropped);
                self.output = None;
                drop(output);
                quiet().await;
                self.forget_closed();
                self.start();
            }
            Busy::Reload(task, old) => {
                task.await.expect("a reload");
                say!(self, "the new output has taken over");
                self.close_books(&old.status());
            }
            Busy::HandOver(task) => {
                let Some((queues, status)) = task.await.expect("a hand-over") else {
                    say!(self, "the encoder was too slow");
                    return output.resume();
                };
                if self.random.one_in(3) {
                    say!(self, "the other process fails");
                    output.open_files().await;
                    output.resume();
                } else {
                    say!(self, "the other process takes over");
                    self.close_books(&status);
                    self.saved = queues;
                    self.output = None;
                    drop(output);
                    quiet().await;
                    self.forget_closed();
                    self.start();
                }
            }
        }
    }

    /// The wall clock becomes wrong by this many seconds, or right.
    fn step_clock(&mut self, ahead: i64) {
        say!(self, "the clock is ahead by {ahead} s");
        self.driver.step(ahead - self.ahead);
        self.ahead = ahead;
        self.count("steps of the clock");
    }

    async fn step(&mut self) {
        let is_busy = self.busy.is_some();
        match self.random.below(100) {
            0..25 if !is_busy || matches!(self.busy, Some(Busy::Reload(..))) => self.submit(),
            25..70 => self.answer(false),
            70 => {
                let ahead = self.random.one_of(&[0, 3600, -3600]);
                self.step_clock(ahead);
            }
            71..92 => {
                let by = self.random.one_of(&[1, 20, 100, 500, 2000, 6000]);
                self.driver.advance(Duration::from_millis(by));
            }
            92..94 if self.random.one_in(2) => self.kill().await,
            94..96 if !is_busy => self.stop(),
            96..98 if !is_busy => self.reload(),
            98.. if !is_busy => self.hand_over(),
            _ => {}
        }
        quiet().await;
        self.forget_closed();
        self.conclude().await;
        self.check_step();
    }

    fn check_step(&self) {
        for (at, receiver) in self.receivers.iter().enumerate() {
            let receiver = lock(receiver);
            assert_eq!(receiver.faults, Vec::<String>::new(), "receiver {at}");
            if self.plan.order == Order::TimeOrder {
                let open = receiver
                    .under_way
                    .iter()
                    .filter(|request| !request.answer.is_closed());
                assert!(open.count() <= 1, "receiver {at} has several requests at a time");
            }
        }
        if let Some(output) = &self.output
            && self.busy.is_none()
        {
            let status = output.status();
            assert!(status.balances(), "{status:?}");
        }
    }

    /// Receivers take everything, and time passes, until nothing waits.
    async fn heal(&mut self) {
        say!(self, "all receivers are well");
        self.step_clock(0);
        for _ in 0..4000 {
            self.answer(true);
            self.driver.advance(Duration::from_millis(300));
            quiet().await;
            self.forget_closed();
            self.conclude().await;
            let Some(output) = &self.output else { continue };
            let endpoints = output.status().endpoints;
            if self.busy.is_none() && endpoints.iter().all(|of| of.pending.total().is_zero()) {
                return;
            }
        }
        panic!(
            "something is never delivered: {:?}",
            self.output.as_ref().map(|of| of.status())
        );
    }

    fn check_end(&mut self) {
        let output = self.output.take().expect("it runs");
        self.close_books(&output.status());
        for (at, receiver) in self.receivers.iter().enumerate() {
            let receiver = lock(receiver);
            for (point, times) in &receiver.arrived {
                let may = 1 + receiver.unanswered.get(point).copied().unwrap_or(0);
                assert!(
                    *times <= may,
                    "receiver {at}: point {point} came {times} times, {may} are explained"
                );
            }
            let missing = (0..self.points)
                .filter(|point| !receiver.arrived.contains_key(point) && !receiver.refused.contains(point))
                .count() as u64;
            let explained = self.dropped[at] + self.at_risk[at];
            assert!(
                missing <= explained,
                "receiver {at} lacks {missing} points; {} were dropped with a reason and {} at risk in kills",
                self.dropped[at],
                self.at_risk[at]
            );
        }
    }

    async fn run(&mut self) {
        self.start();
        for _ in 0..STEPS {
            self.step().await;
        }
        self.heal().await;
        self.check_end();
    }
}

/// Runs a schedule. `Err`: the text of its panic.
fn run(seed: u64, is_verbose: bool) -> Result<BTreeMap<&'static str, u64>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let mut schedule = Schedule::new(seed, is_verbose);
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(schedule.run())));
    match ran {
        Ok(()) => Ok(schedule.counts),
        Err(panic) => Err(match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"?").to_string(),
        }),
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    let number = value.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable}={value}: a number is wanted")))
}

#[test]
fn every_schedule_delivers_or_explains_each_point() {
    if let Some(seed) = number("WEIR_DELIVERY_SEED") {
        run(seed, true).unwrap_or_else(|reason| panic!("seed {seed}: {reason}"));
        return;
    }
    let mut counts = BTreeMap::new();
    for seed in 0..number("WEIR_DELIVERY_SCHEDULES").unwrap_or(SCHEDULES) {
        let found = run(seed, false).unwrap_or_else(|_| {
            eprintln!("this schedule fails: WEIR_DELIVERY_SEED={seed}");
            match run(seed, true) {
                Err(reason) => panic!("seed {seed}: {reason}"),
                Ok(_) => panic!("seed {seed} does not fail again"),
            }
        });
        for (what, times) in found {
            *counts.entry(what).or_insert(0) += times;
        }
    }
    println!("{counts:?}");
    for what in ["kills", "stops", "reloads", "hand-overs"] {
        assert!(
            counts.get(what).is_some_and(|times| *times > 0),
            "no {what}: {counts:?}"
        );
    }
}
