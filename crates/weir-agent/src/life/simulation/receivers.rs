//! Receivers of outputs, the truth about what they have accepted, and the way of a payload to them.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use weir_aggregate::{Batch, Value};
use weir_output::delivery::{
    AtRisk, BoxFuture, Class, Counter, Draft, Encode, Encoded, Items, Outcome, Payload, Transport,
};

use super::Random;
use super::disk::{Killed, ProcessDisk};
use crate::state::Tally;
use crate::state::tally::OutputKind;

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
    pub(super) fault: Option<String>,
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
pub(super) struct SampleCounts {
    /// Given to the output, or carried from the previous process.
    pub taken: AtomicU64,
    /// The receiver has answered for good.
    pub answered: AtomicU64,
    /// Of these, those of this process of which the output has not said so.
    pub unsaid: AtomicU64,
    safe: AtomicU64,
}

impl SampleCounts {
    /// Not delivered.
    pub fn left(&self) -> u64 {
        self.taken.load(Ordering::Relaxed) - self.answered.load(Ordering::Relaxed)
    }
}

/// Changes at the end of a process that no start reports as lost.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    pub dropped: u64,
    pub said: u64,
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
    pub(super) fn answer(&mut self, random: Option<&mut Random>) -> bool {
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
    pub(super) all: Arc<Mutex<Vec<Receiver>>>,
    pub(super) runtime: Arc<Runtime>,
    /// That have begun.
    pub(super) processes: Arc<AtomicU64>,
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
pub(super) fn rows(batch: &Batch) -> impl Iterator<Item = (i64, String, u64)> {
    let series = batch.series().filter(|series| !series.is_idle());
    series.map(|series| match series.value() {
        Value::Counter(sum) => (batch.bucket.timestamp, series.name().to_owned(), sum as u64),
        other => panic!("only counters are sent: {other:?}"),
    })
}

pub(super) struct Rows {
    pub process: u64,
    pub rows_max: usize,
    pub open: Vec<(i64, String, u64)>,
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
pub(super) struct Sends {
    pub all: Arc<Mutex<Vec<Receiver>>>,
    pub at: usize,
    pub process: u64,
    pub counts: Arc<SampleCounts>,
    pub disk: ProcessDisk,
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
pub(super) struct Told {
    pub all: Arc<Mutex<Vec<Receiver>>>,
    pub at: usize,
    pub tally: Option<Arc<Tally>>,
    pub counts: Arc<SampleCounts>,
    pub disk: ProcessDisk,
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
