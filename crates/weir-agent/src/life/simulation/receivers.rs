//! Receivers of outputs, the truth about what they have accepted, and the way of a payload to them.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use weir_aggregate::{Batch, Value};
use weir_output::delivery::{
    AtRisk, BoxFuture, Class, Counter, DiskQueue, Draft, Encode, Encoded, Items, Next, Outcome, Payload,
    Transport,
};

use super::Random;
use super::disk::{Killed, ProcessDisk};
use crate::state::Tally;
use crate::state::tally::OutputKind;

/// Larger than all payloads of a schedule.
pub(super) const QUEUE_BYTES: u64 = 1 << 30;

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
    /// Samples in payloads that a process has from the previous one. A kill drops those that are not on disk, and the books have them among
    /// those that waited.
    pub carried: u64,
    /// Samples that were accepted, or that wait on disk, of which the output had not said so yet when its process was killed: the next start
    /// reports them.
    pub kept_unsaid: u64,
    /// A process has ended its deliveries; its state may not be saved yet. The samples that it drops.
    pub ending: Option<u64>,
    /// Its output said something that is not so.
    pub(super) fault: Option<String>,
    /// Payloads that it has answered for good.
    answered: BTreeSet<u64>,
    /// Of these, payloads whose process may not have noticed that before it was killed, and their samples: another sends them again.
    unread: BTreeMap<u64, u64>,
    /// Answers that its process is about to notice.
    answers: Vec<(u64, u64)>,
    /// The processes that may deliver: one, or two during a hand-over.
    pub(super) running: Vec<(u64, Arc<SampleCounts>)>,
    /// The place of its output's disk queue, if it has one.
    pub(super) queue: Option<PathBuf>,
    /// Samples that lie there when a process ends.
    pub(super) on_disk: u64,
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
    /// Of these, those of this process.
    own: AtomicU64,
    /// The output has said that they are delivered, or on disk.
    safe: AtomicU64,
}

impl SampleCounts {
    /// Not delivered.
    pub fn left(&self) -> u64 {
        self.taken.load(Ordering::Relaxed) - self.answered.load(Ordering::Relaxed)
    }
}

impl Receiver {
    /// `queue`: a place for its output's disk queue.
    pub fn new(name: &str, queue: Option<PathBuf>) -> Receiver {
        Receiver {
            name: name.to_owned(),
            mood: Mood::Accepts,
            accepted: BTreeMap::new(),
            parts: BTreeMap::new(),
            dropped: 0,
            carried: 0,
            kept_unsaid: 0,
            ending: None,
            fault: None,
            answered: BTreeSet::new(),
            unread: BTreeMap::new(),
            answers: Vec::new(),
            running: Vec::new(),
            queue,
            on_disk: 0,
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
            let (id, samples) = (request.content.id, request.content.samples());
            request.counts.answered.fetch_add(samples, Ordering::Relaxed);
            self.answers.push((id, samples));
            if !self.answered.insert(id) {
                if !self.unread.contains_key(&id) {
                    self.fault = Some(format!(
                        "payload {id} came again, though its output had the answer"
                    ));
                }
            } else {
                match request.is_carried {
                    true => self.carried -= samples,
                    false => drop(request.counts.own.fetch_add(samples, Ordering::Relaxed)),
                }
                match outcome == Outcome::Delivered {
                    true => self.accept(request.content),
                    false => self.dropped += samples,
                }
            }
        }
        let _ = request.answer.send(outcome);
        true
    }

    /// Its output has noticed the answers.
    pub(super) fn answers_are_read(&mut self) {
        for (id, _) in self.answers.drain(..) {
            self.unread.remove(&id);
        }
    }

    /// Samples on disk of which its process has no answer.
    pub(super) fn waiting_on_disk(&self) -> u64 {
        let found = self.queue.as_deref().map(contents).unwrap_or_default();
        let is_answered = |content: &&Content| self.answers.iter().any(|(id, _)| *id == content.id);
        let waiting = found.iter().filter(|content| !is_answered(content));
        waiting.map(Content::samples).sum()
    }

    /// Samples of payloads that were answered, and that wait on disk all the same.
    pub fn unread(&self) -> u64 {
        self.unread.values().sum()
    }

    /// Its process has ended, and no start reports what waited: the books have it.
    pub fn end(&mut self) {
        if let Some(dropped) = self.ending.take() {
            self.dropped += dropped;
            self.running.clear();
            let left = self.left_on_disk();
            self.carried = left.iter().map(|(_, samples)| samples).sum();
        }
    }

    /// Its process was killed.
    pub fn killed(&mut self) {
        self.ending = None;
        let running = std::mem::take(&mut self.running);
        let left = self.left_on_disk();
        let mut own_left = 0;
        let mut carried_left = 0;
        for (process, samples) in left {
            match running.iter().any(|(running, _)| *running == process) {
                true => own_left += samples,
                false => carried_left += samples,
            }
        }
        let sum = |of: fn(&SampleCounts) -> &AtomicU64| -> u64 {
            let counts = running
                .iter()
                .map(|(_, counts)| of(counts).load(Ordering::Relaxed));
            counts.sum()
        };
        let (own, safe) = (sum(|of| &of.own), sum(|of| &of.safe));
        let name = &self.name;
        assert!(
            safe <= own + own_left,
            "{name}: {safe} samples are said to be safe, {own} were answered and {own_left} are on disk"
        );
        self.kept_unsaid += own + own_left - safe;
        self.dropped += self.carried - carried_left;
        self.carried = own_left + carried_left;
    }

    /// After the end of a process: the payloads on disk that were not answered, as the processes that made them and their samples.
    fn left_on_disk(&mut self) -> Vec<(u64, u64)> {
        self.unread.extend(self.answers.drain(..));
        let found = self.queue.as_deref().map(contents).unwrap_or_default();
        self.on_disk = found.iter().map(Content::samples).sum();
        let (again, left): (Vec<Content>, _) = found
            .into_iter()
            .partition(|content| self.answered.contains(&content.id));
        let known = std::mem::take(&mut self.unread);
        for content in again {
            let (id, name) = (content.id, &self.name);
            assert!(
                known.contains_key(&id),
                "{name}: payload {id} is on disk, though its output had the answer"
            );
            self.unread.insert(id, content.samples());
        }
        left.iter()
            .map(|content| (content.process, content.samples()))
            .collect()
    }

    fn accept(&mut self, content: Content) {
        for (timestamp, name, samples) in content.rows {
            *self.parts.entry((timestamp, name.clone())).or_default() += 1;
            *self.accepted.entry(name).or_default() += samples;
        }
    }
}

/// Places for disk queues: in memory where that can be had, as schedules synchronise files thousands of times.
pub struct Queues {
    pub directory: Option<TempDir>,
    are_on_disk: Vec<bool>,
}

impl Queues {
    pub fn new(are_on_disk: Vec<bool>) -> Queues {
        let directory = are_on_disk.contains(&true).then(|| {
            let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
            directory.expect("a directory")
        });
        Queues {
            directory,
            are_on_disk,
        }
    }

    pub fn place(&self, at: usize) -> Option<PathBuf> {
        let directory = self.directory.as_ref().filter(|_| self.are_on_disk[at])?;
        Some(directory.path().join(at.to_string()))
    }
}

/// All receivers, and the runtime of the outputs that send to them.
#[derive(Clone)]
pub struct Receivers {
    pub(super) all: Arc<Mutex<Vec<Receiver>>>,
    pub(super) runtime: Arc<Runtime>,
    /// That have begun.
    pub(super) processes: Arc<AtomicU64>,
    /// See [`Rows`].
    pub(super) made: Arc<AtomicU64>,
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
            made: Arc::default(),
        }
    }

    /// Waits for something that ends without an answer, and without time. The runtime's time passes when nothing else can happen.
    pub(super) fn to_the_end<T>(&self, act: impl Future<Output = T>) -> T {
        let ends = async { tokio::time::timeout(Duration::from_secs(1), act).await };
        self.runtime.block_on(ends).expect("it ends")
    }

    /// The tasks of a process that was killed end, and leave the disk.
    fn forget_ended(&self) {
        self.runtime
            .block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
    }

    /// The process was killed, or `end`: it has saved what it knew.
    pub fn killed(&self, end: bool) {
        self.forget_ended();
        for receiver in &mut *lock(self) {
            match end {
                true => receiver.end(),
                false => receiver.killed(),
            }
        }
    }
}

pub fn lock(receivers: &Receivers) -> MutexGuard<'_, Vec<Receiver>> {
    lock_all(&receivers.all)
}

fn lock_all(all: &Mutex<Vec<Receiver>>) -> MutexGuard<'_, Vec<Receiver>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The payloads in a disk queue that no process has open. A copy is read: nothing there changes.
fn contents(queue: &Path) -> Vec<Content> {
    let mut found = Vec::new();
    for place in std::fs::read_dir(queue).into_iter().flatten().flatten() {
        let files: Vec<_> = std::fs::read_dir(place.path())
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        // Most kills come while nothing waits, and a copy takes long.
        if !files
            .iter()
            .any(|file| file.path().extension() == Some("q".as_ref()))
        {
            continue;
        }
        let copy = tempfile::tempdir_in(queue.parent().expect("a directory above")).expect("a directory");
        for file in files {
            std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("a copy");
        }
        let (mut queue, _) = DiskQueue::open(copy.path(), QUEUE_BYTES, 0).expect("a disk queue");
        while let Next::Payload(_, payload) = queue.next(true, 0) {
            found.push(Content::read(&payload.body));
        }
    }
    found
}

/// The body of a payload: its number and that of the process that made it, then timestamp, name and samples on a line each.
struct Content {
    id: u64,
    process: u64,
    rows: Vec<(i64, String, u64)>,
}

impl Content {
    fn written(&self) -> Vec<u8> {
        let mut text = format!("{} {}\n", self.id, self.process);
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
        let numbers = lines
            .next()
            .and_then(|line| line.split_once(' '))
            .expect("two numbers");
        Content {
            id: numbers.0.parse().expect("a number"),
            process: numbers.1.parse().expect("a number"),
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
    /// Payloads of all processes.
    pub made: Arc<AtomicU64>,
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
            id: self.made.fetch_add(1, Ordering::Relaxed),
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
        self.counts.safe.store(samples, Ordering::Relaxed);
        let own = self.counts.own.load(Ordering::Relaxed);
        let receiver = &mut lock_all(&self.all)[self.at];
        // A kill counts those on disk.
        if samples > own && receiver.queue.is_none() {
            receiver.fault = Some(format!(
                "{output}: {samples} samples are safe, its receiver has answered for {own}"
            ));
        }
    }
}
