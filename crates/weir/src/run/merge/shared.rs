//! The state that the threads of a merge share, and the status.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_counters::Counter as _;
use weir_log::Damage;

use super::rounds::Position;
use crate::admin::NotReady;
use crate::admin::fleet::{FleetCounter, FleetStatus, SentRow};
use crate::run::outputs::Outputs;

/// Interval of log lines about the same error.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    stopping: AtomicBool,
    /// Unix milliseconds of the owner's last turn.
    pub turned_at: AtomicI64,
    /// Asks the owner for a report.
    asked: AtomicBool,
    log_errors: AtomicU64,
}

#[derive(Default)]
struct State {
    commits: u64,
    report: FleetStatus,
    has_begun: bool,
    error: Option<String>,
    error_logged: Option<(Instant, String)>,
    /// By file.
    damage: BTreeMap<PathBuf, Damage>,
    torn_bytes: u64,
    sending: Option<Sending>,
}

/// The outputs while this process sends.
#[derive(Clone)]
pub struct Sending {
    pub outputs: Arc<Outputs>,
    pub sent: Vec<Arc<OutputProgress>>,
}

/// The progress of an output.
#[derive(Default)]
pub struct OutputProgress {
    pub output: String,
    pub repeats_are: &'static str,
    pub buckets: AtomicU64,
    /// The end of the newest bucket, Unix seconds; zero: none yet.
    pub newest: AtomicI64,
    pub repeated: AtomicU64,
    pub corrected: AtomicU64,
    pub not_corrected: AtomicU64,
    pub waits: AtomicBool,
    position: Mutex<Position>,
    stopping: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        let _state = lock(&self.state);
        self.changed.notify_all();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Records that the log can be read and written.
    pub fn succeeded(&self) {
        let mut state = lock(&self.state);
        state.has_begun = true;
        if state.error.take().is_some() {
            tracing::info!("the log can be read and written again");
        }
    }

    /// Records a failure that is retried.
    pub fn failed(&self, reason: &str) {
        self.log_errors.fetch_add(1, Ordering::Relaxed);
        let mut state = lock(&self.state);
        let is_new = state
            .error_logged
            .as_ref()
            .is_none_or(|(at, logged)| logged != reason || at.elapsed() >= LOG_INTERVAL);
        if is_new {
            tracing::error!("{reason}");
            state.error_logged = Some((Instant::now(), reason.to_owned()));
        }
        state.error = Some(reason.to_owned());
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
        match (&state.error, state.has_begun) {
            (Some(error), _) => Err(NotReady::Failed(error.clone())),
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
        report.sends = state.sending.is_some();
        report.log_error.clone_from(&state.error);
        for (counter, count) in Self::damage_counts(&state) {
            report.numbers.put(counter.info(), count);
        }
        let sent = state.sending.iter().flat_map(|sending| &sending.sent);
        report.sent = sent.map(|sent| sent.row()).collect();
        report
    }

    pub fn sending(&self) -> Option<Sending> {
        lock(&self.state).sending.clone()
    }

    pub fn set_sending(&self, sending: Option<Sending>) {
        lock(&self.state).sending = sending;
    }
}

impl OutputProgress {
    pub fn new(output: &str, repeats_are: &'static str) -> Self {
        OutputProgress {
            output: output.to_owned(),
            repeats_are,
            ..OutputProgress::default()
        }
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub fn set_position(&self, position: &Position) {
        lock(&self.position).clone_from(position);
    }

    pub fn partitions(&self) -> Vec<u32> {
        lock(&self.position).next.keys().copied().collect()
    }

    /// The next result of a partition.
    pub fn next(&self, partition: u32) -> u64 {
        lock(&self.position).next.get(&partition).copied().unwrap_or(0)
    }

    fn row(&self) -> SentRow {
        let number = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let newest = self.newest.load(Ordering::Relaxed);
        let newest = (newest != 0).then_some(newest);
        SentRow {
            output: self.output.clone(),
            buckets: number(&self.buckets),
            newest,
            lag_seconds: newest.map_or(0.0, |end| (super::unix_ms() as f64 / 1e3 - end as f64).max(0.0)),
            repeated: number(&self.repeated),
            repeats_are: self.repeats_are.to_owned(),
            corrected: number(&self.corrected),
            not_corrected: number(&self.not_corrected),
            waits: self.waits.load(Ordering::Relaxed),
        }
    }
}
