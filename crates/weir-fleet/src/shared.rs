//! The state that the threads of a merge share, and the status.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_counters::Counter as _;
use weir_log::Damage;
use weir_merge::Delivery;

use weir_admin::NotReady;
use weir_process::outputs::Outputs;
use weir_status::fleet::{FleetCounter, FleetStatus, SentRow};
use weir_system::failure::Failure;

/// Interval of log lines about the same error.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Buckets of an output that are remembered, so that each counts once.
const GIVEN_MAX: usize = 256;

/// The source of errors of the thread that merges. Each output is a source of its own: the success of one does not end the errors of another.
pub const LOG: &str = "";

#[derive(Default)]
pub struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    stopping: AtomicBool,
    /// Asks the owner for a report.
    asked: AtomicBool,
    log_errors: AtomicU64,
}

#[derive(Default)]
struct State {
    commits: u64,
    report: FleetStatus,
    has_begun: bool,
    /// The owner's last turn.
    turned: Option<Instant>,
    /// By the output that reads, or [`LOG`].
    errors: BTreeMap<String, String>,
    errors_logged: BTreeMap<String, (Instant, String)>,
    /// By file.
    damage: BTreeMap<PathBuf, Damage>,
    torn_bytes: u64,
    sent: Vec<Arc<OutputProgress>>,
    failure: Option<Failure>,
    stopping_since: Option<Instant>,
}

/// The progress of an output.
#[derive(Default)]
pub struct OutputProgress {
    pub output: String,
    pub buckets: AtomicU64,
    pub repeated: AtomicU64,
    pub corrected: AtomicU64,
    pub not_corrected: AtomicU64,
    /// Results that this output lacks: the log deleted them before, or they are unreadable.
    pub deleted: AtomicU64,
    pub waits: AtomicBool,
    /// Bytes of results that wait for it in this process.
    results: AtomicU64,
    /// The end of the oldest bucket that is being given; zero for none.
    giving: AtomicI64,
    partitions: AtomicU64,
    /// One more than the commits of this process of which the output has everything.
    read: AtomicU64,
    more: Mutex<OutputState>,
}

#[derive(Default)]
struct OutputState {
    repeats_are: &'static str,
    /// Start and width of the last buckets: other partitions have the same ones.
    given: VecDeque<(i64, u32)>,
    /// While this process has partitions of it.
    outputs: Option<Arc<Outputs>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// The current errors, if any.
    fn error(&self) -> Option<String> {
        let errors: Vec<&str> = self.errors.values().map(String::as_str).collect();
        (!errors.is_empty()).then(|| errors.join("; "))
    }
}

impl Shared {
    pub fn commits(&self) -> u64 {
        lock(&self.state).commits
    }

    /// Announces new results.
    pub fn committed(&self, commits: u64) {
        lock(&self.state).commits += commits;
        self.changed.notify_all();
    }

    /// Waits until the number of commits changes or the process stops, for at most this long. `false`: the time is over.
    pub fn wait(&self, commits: u64, at_most: Duration) -> bool {
        let is_same = |state: &mut State| state.commits == commits && !self.is_stopping();
        let state = lock(&self.state);
        let waited = self.changed.wait_timeout_while(state, at_most, is_same);
        !waited.is_ok_and(|(_, waited)| waited.timed_out())
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        lock(&self.state).stopping_since.get_or_insert_with(Instant::now);
        self.changed.notify_all();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// When the process was asked to stop.
    pub fn stopping_since(&self) -> Option<Instant> {
        self.is_stopping().then(|| lock(&self.state).stopping_since)?
    }

    /// Ends the process: an output cannot be started.
    pub fn fail(&self, failure: Failure) {
        lock(&self.state).failure.get_or_insert(failure);
    }

    pub fn failure(&self) -> Option<Failure> {
        lock(&self.state).failure.take()
    }

    /// Records the end of a turn of the owner.
    pub fn turned(&self) {
        lock(&self.state).turned = Some(Instant::now());
    }

    /// Whether the owner has had a turn within so long, whatever the wall clock did meanwhile.
    pub fn has_turned_within(&self, time: Duration) -> bool {
        lock(&self.state).turned.is_some_and(|at| at.elapsed() < time)
    }

    /// Records that this source can read and write the log.
    pub fn succeeded(&self, source: &str) {
        let mut state = lock(&self.state);
        state.has_begun |= source == LOG;
        if let Some(reason) = state.errors.remove(source) {
            tracing::info!("the log can be read and written again; before: {reason}");
        }
    }

    /// Records a failure that is retried.
    pub fn failed(&self, source: &str, reason: &str) {
        self.log_errors.fetch_add(1, Ordering::Relaxed);
        let mut state = lock(&self.state);
        let logged = state.errors_logged.get(source);
        if logged.is_none_or(|(at, logged)| logged != reason || at.elapsed() >= LOG_INTERVAL) {
            tracing::error!("{reason}");
            let logged = (Instant::now(), reason.to_owned());
            state.errors_logged.insert(source.to_owned(), logged);
        }
        state.errors.insert(source.to_owned(), reason.to_owned());
    }

    /// Records the damage that a reader has found in the log.
    pub fn found_damage(&self, damage: Vec<Damage>) {
        for found in damage {
            let mut state = lock(&self.state);
            let known = state.damage.get(&found.path);
            if known.is_some_and(|known| known.places >= found.places) {
                continue;
            }
            let Damage {
                path,
                at,
                places,
                bytes,
                frames,
            } = &found;
            let path = path.display();
            tracing::error!(
                "{path}: damaged from byte {at}: {bytes} bytes at {places} places are skipped, {frames} records or commits with them"
            );
            state.damage.insert(found.path.clone(), found);
        }
    }

    /// Records the size of incomplete records that were moved aside.
    pub fn found_torn(&self, bytes: u64) {
        let mut state = lock(&self.state);
        if bytes > state.torn_bytes {
            tracing::warn!(
                "{bytes} bytes of incomplete records are in files of their own (*.torn-*): a process ended while it wrote them"
            );
        }
        state.torn_bytes = bytes;
    }

    fn damage_counts(state: &State) -> [(FleetCounter, u64); 3] {
        let sum = |of: fn(&Damage) -> u64| state.damage.values().map(of).sum();
        [
            (FleetCounter::LogDamagedBytes, sum(|damage| damage.bytes)),
            (FleetCounter::LogLostFrames, sum(|damage| damage.frames)),
            (FleetCounter::LogTornBytes, state.torn_bytes),
        ]
    }

    pub fn log_errors(&self) -> u64 {
        self.log_errors.load(Ordering::Relaxed)
    }

    /// The current error, if any.
    pub fn readiness(&self) -> Result<(), NotReady> {
        let state = lock(&self.state);
        match (state.error(), state.has_begun) {
            (Some(error), _) => Err(NotReady::Failed(error)),
            (None, false) => Err(NotReady::Log),
            (None, true) => Ok(()),
        }
    }

    pub fn publish(&self, report: FleetStatus) {
        lock(&self.state).report = report;
    }

    pub fn is_asked(&self) -> bool {
        self.asked.swap(false, Ordering::AcqRel)
    }

    /// The last report about the fleet.
    pub fn report(&self) -> FleetStatus {
        self.asked.store(true, Ordering::Release);
        let state = lock(&self.state);
        let mut report = state.report.clone();
        report.log_error = state.error();
        for (counter, count) in Self::damage_counts(&state) {
            report.numbers.put(counter.info(), count);
        }
        report.sent = state.sent.iter().map(|sent| sent.row(state.commits)).collect();
        report.sends = state.sent.iter().any(|sent| sent.outputs().is_some());
        report
    }

    /// Bytes of results that wait for outputs in this process.
    pub fn bytes_of_results(&self) -> u64 {
        let state = lock(&self.state);
        let bytes = state.sent.iter().map(|sent| sent.results.load(Ordering::Relaxed));
        bytes.sum()
    }

    pub fn add_output(&self, progress: Arc<OutputProgress>) {
        lock(&self.state).sent.push(progress);
    }

    /// The outputs that run in this process.
    pub fn outputs(&self) -> Vec<Arc<Outputs>> {
        let state = lock(&self.state);
        state.sent.iter().filter_map(|sent| sent.outputs()).collect()
    }
}

impl OutputProgress {
    pub fn new(output: &str) -> Self {
        OutputProgress {
            output: output.to_owned(),
            ..OutputProgress::default()
        }
    }

    pub fn set_repeats_are(&self, repeats_are: &'static str) {
        lock(&self.more).repeats_are = repeats_are;
    }

    pub fn set_outputs(&self, outputs: Option<Arc<Outputs>>) {
        lock(&self.more).outputs = outputs;
    }

    fn outputs(&self) -> Option<Arc<Outputs>> {
        lock(&self.more).outputs.clone()
    }

    /// The number of partitions that this process gives to the output.
    pub fn held(&self, partitions: usize) {
        self.partitions.store(partitions as u64, Ordering::Relaxed);
    }

    /// The output has all results of this many commits of this process.
    pub fn read_all(&self, commits: u64) {
        self.read.store(commits + 1, Ordering::Relaxed);
    }

    /// So many bytes of results wait for the output.
    pub fn holds(&self, bytes: usize) {
        self.results.store(bytes as u64, Ordering::Relaxed);
    }

    /// The output is given this, and has none of it yet.
    pub fn giving(&self, delivery: &Delivery) {
        let ends = delivery.buckets.iter();
        let oldest = ends
            .map(|(start, width)| start.saturating_add(i64::from(*width)))
            .min();
        self.giving.store(oldest.unwrap_or_default(), Ordering::Relaxed);
    }

    pub fn delivered(&self, delivery: &Delivery) {
        self.giving.store(0, Ordering::Relaxed);
        self.corrected.fetch_add(delivery.corrected, Ordering::Relaxed);
        self.not_corrected
            .fetch_add(delivery.not_corrected, Ordering::Relaxed);
        let mut more = lock(&self.more);
        for (start, width) in &delivery.buckets {
            if !more.given.contains(&(*start, *width)) {
                more.given.push_back((*start, *width));
                self.buckets.fetch_add(1, Ordering::Relaxed);
            }
        }
        let excess = more.given.len().saturating_sub(GIVEN_MAX);
        more.given.drain(..excess);
    }

    fn row(&self, commits: u64) -> SentRow {
        let number = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let more = lock(&self.more);
        let last = more.given.back();
        let newest = last.map(|(start, width)| start.saturating_add(i64::from(*width)));
        let giving = self.giving.load(Ordering::Relaxed);
        let waits_since = (giving != 0).then_some(giving).or(newest);
        let waits_since = waits_since.filter(|_| number(&self.partitions) > 0);
        SentRow {
            output: self.output.clone(),
            partitions: number(&self.partitions),
            buckets: number(&self.buckets),
            newest,
            lag_seconds: waits_since.map_or(0.0, |end| (super::unix_ms() as f64 / 1e3 - end as f64).max(0.0)),
            is_behind: number(&self.read) <= commits,
            repeated: number(&self.repeated),
            repeats_are: more.repeats_are.to_owned(),
            corrected: number(&self.corrected),
            not_corrected: number(&self.not_corrected),
            deleted: number(&self.deleted),
            waits: self.waits.load(Ordering::Relaxed),
        }
    }
}
