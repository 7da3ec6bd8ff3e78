//! Runs the pairs of a plan in sequence, decides about further attempts, and stores each pair.

use super::progress::Progress;
use super::rig::Rig;
use super::{DetectError, Options, Prepared};
use crate::detect::capture;
use crate::detect::process::POLL;
use crate::detect::record::{self, ARMS, PairRecord};
use crate::detect::replicate::{self, Abort, ArmBarrier, Replicate};
use crate::detect::targets::ArmProgram;
use crate::detect::values::Measured;
use crate::detect::{analysis, procfs};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use weir_regress::plan::{Order, PlannedPair};
use weir_rig_base::{clock, signal};

/// Attempts per pair: the first and two more at once. A pair that the machine disturbed each time gets as many again at the end, because a
/// shortage of CPU time lasts for minutes, and as many again whenever the run is resumed.
const ATTEMPTS: usize = 3;
/// An adaptive run has seen enough when the interval is this narrow (percent, half width).
const NARROW: f64 = 1.5;
/// Maximum CPU use of everything else on the machine when a pair begins, as a share of a core.
const CALM: f64 = 0.05;

/// Number, directory and measurement of a replicate; or why the run must stop, and what to remove.
type Outcome = Result<(usize, PathBuf, Measured), (Abort, Option<PathBuf>)>;

/// The state of a pair.
#[derive(Debug, Clone, Copy, Default)]
struct PairAttempts {
    attempts: usize,
    /// Attempts before the run was resumed.
    earlier: usize,
    /// Attempts that were invalid for reasons that waiting does not change.
    invalid: usize,
    valid: bool,
}

impl PairAttempts {
    fn add(&mut self, arms: &[Measured; 2]) {
        self.attempts += 1;
        self.invalid += usize::from(arms.iter().any(|m| !m.invalid.is_empty()));
        self.valid |= arms.iter().all(Measured::is_valid);
    }

    /// Maximum attempts by the end of a round.
    fn attempts_max(&self, round: Round) -> usize {
        match round {
            Round::First => ATTEMPTS,
            Round::Again => (2 * ATTEMPTS).max(self.earlier + ATTEMPTS),
        }
    }

    fn is_over(&self, round: Round) -> bool {
        self.valid || self.attempts >= self.attempts_max(round) || self.invalid >= ATTEMPTS
    }
}

/// Every pair has its turn before a disturbed one gets another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    First,
    Again,
}

pub(super) struct Runner<'a> {
    o: &'a Options,
    prepared: &'a [Prepared],
    rig: Rig<'a>,
    folder: PathBuf,
    /// By experiment and pair.
    pairs: BTreeMap<(String, usize), PairAttempts>,
    /// Experiments that cannot succeed: every attempt of a pair was invalid for its own reasons.
    abandoned: BTreeMap<usize, String>,
    progress: Progress,
}

impl<'a> Runner<'a> {
    pub fn new(
        o: &'a Options,
        prepared: &'a [Prepared],
        arms: &'a [ArmProgram; 2],
        run_id: String,
        folder: PathBuf,
    ) -> Result<Self, DetectError> {
        let done = record::read_pairs(&folder).map_err(DetectError::failed)?;
        for p in prepared {
            remove_unfinished(&folder, &p.name, &done);
        }
        let planned = super::runnable(prepared).map(|p| 2 * p.info.pairs_min);
        let mut runner = Self {
            o,
            prepared,
            rig: Rig::new(prepared, arms, run_id)?,
            folder,
            pairs: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            progress: Progress::new(planned.sum()),
        };
        runner.restore(&done);
        Ok(runner)
    }

    /// Takes over the pairs of an interrupted run.
    fn restore(&mut self, done: &[PairRecord]) {
        self.progress.done = 2 * done.len();
        self.progress.total += 2 * done.iter().filter(|r| r.attempt > 0).count();
        for pair in done {
            if let Some(p) = self.prepared.iter().find(|p| p.name == pair.experiment) {
                let arms = record::measure_pair(&self.folder, &p.info, pair);
                let attempts = self.pairs.entry((p.name.clone(), pair.pair)).or_default();
                attempts.add(&arms);
                attempts.earlier = attempts.attempts;
            }
        }
    }

    pub fn all(&mut self, schedule: &[Vec<PlannedPair>]) -> Result<(), Abort> {
        self.rig.pin();
        for round in [Round::First, Round::Again] {
            for planned in schedule.iter().flatten() {
                if self.is_wanted(planned, round) {
                    self.pair(planned, round)?;
                }
            }
        }
        self.progress.end();
        Ok(())
    }

    fn attempts_of(&self, planned: &PlannedPair) -> PairAttempts {
        let key = (self.prepared[planned.experiment].name.clone(), planned.pair);
        self.pairs.get(&key).copied().unwrap_or_default()
    }

    /// Whether this pair needs another attempt, unless the interval is narrow enough (an adaptive run). Significance never stops a run:
    /// looking until it appears would make it appear.
    fn is_wanted(&self, planned: &PlannedPair, round: Round) -> bool {
        let info = &self.prepared[planned.experiment].info;
        let attempts = self.attempts_of(planned);
        let in_plan = info.unsupported.is_none() && planned.pair < info.pairs_max;
        if !in_plan || self.abandoned.contains_key(&planned.experiment) || attempts.is_over(round) {
            return false;
        }
        if round == Round::Again {
            // The last round is for failed pairs, not for pairs that an adaptive run did not need.
            return attempts.attempts > 0;
        }
        planned.pair < info.pairs_min || info.pairs_max == info.pairs_min || !self.is_narrow(&info.name)
    }

    fn is_narrow(&self, experiment: &str) -> bool {
        let Ok(report) = analysis::analyze(&self.folder) else {
            return false;
        };
        let row = report.rows.iter().find(|r| r.experiment == experiment);
        row.and_then(|r| r.change.as_ref())
            .is_some_and(|c| c.scale == "percent" && (c.high - c.low) / 2.0 < NARROW)
    }

    fn pair(&mut self, planned: &PlannedPair, round: Round) -> Result<(), Abort> {
        let name = &self.prepared[planned.experiment].name;
        let attempts = self.attempts_of(planned);
        let (before, attempts_max) = (attempts.attempts, attempts.attempts_max(round));
        if before > 0 {
            // The planned steps of this pair went into failed attempts.
            self.progress.total += 2;
        }
        for attempt in before..attempts_max {
            self.wait_for_idle_machine(name)?;
            if self.attempt(planned, attempt)? {
                return Ok(());
            }
            if attempt + 1 < attempts_max {
                self.progress.total += 2;
            }
        }
        if self.attempts_of(planned).invalid >= ATTEMPTS {
            // Three attempts failed for reasons that waiting does not change; other rounds would only repeat it.
            self.abandoned.insert(planned.experiment, name.clone());
            let what = format!("{name}: given up after {ATTEMPTS} invalid attempts");
            self.progress.print_line(&what);
        }
        Ok(())
    }

    /// Runs both arms and stores the results. Returns true if the pair is valid.
    fn attempt(&mut self, planned: &PlannedPair, attempt: usize) -> Result<bool, Abort> {
        let p = &self.prepared[planned.experiment];
        let (numbers, results) = self.arms_of(planned)?;
        self.store(&PairRecord {
            experiment: p.name.clone(),
            pair: planned.pair,
            attempt,
            order: planned.order.name().to_owned(),
            seed: format!("{:016x}", planned.payload_seed),
            baseline: numbers[0],
            comparison: numbers[1],
        })?;
        let attempts = self.pairs.entry((p.name.clone(), planned.pair)).or_default();
        attempts.add(&results);
        let valid = attempts.valid;
        let line = pair_line(p, planned, attempt, &results, valid);
        self.progress.print_line(&line);
        Ok(valid)
    }

    /// Numbers and results of both arms, or nothing of either: half a pair is no evidence.
    fn arms_of(&mut self, planned: &PlannedPair) -> Result<([usize; 2], [Measured; 2]), Abort> {
        let mut numbers = [0; 2];
        let mut results: [Measured; 2] = Default::default();
        let mut folders = Vec::new();
        let mut aborted = None;
        for (arm, outcome) in self.both(planned) {
            match outcome {
                Ok((number, folder, measured)) => {
                    (numbers[arm], results[arm]) = (number, measured);
                    folders.push(folder);
                }
                Err((abort, folder)) => {
                    folders.extend(folder);
                    aborted = Some(abort);
                }
            }
            self.progress.step();
        }
        match aborted {
            None => Ok((numbers, results)),
            Some(abort) => {
                folders.iter().for_each(|f| drop(fs::remove_dir_all(f)));
                Err(abort)
            }
        }
    }

    /// Runs the arms of a pair, sequentially or concurrently; stops at the first that aborts.
    fn both(&self, planned: &PlannedPair) -> Vec<(usize, Outcome)> {
        let order = match planned.order {
            Order::BaselineFirst => [0, 1],
            Order::ComparisonFirst => [1, 0],
        };
        if self.prepared[planned.experiment].arms[0].together {
            let barrier = &ArmBarrier::default();
            return thread::scope(|scope| {
                let spawn = |arm| scope.spawn(move || self.replicate(planned, arm, Some(barrier)));
                let threads = order.map(|arm| (arm, spawn(arm)));
                let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                    thread.join().unwrap_or_else(|e| resume_unwind(e))
                };
                threads
                    .into_iter()
                    .map(|(arm, thread)| (arm, join(thread)))
                    .collect()
            });
        }
        let mut outcomes = Vec::new();
        for arm in order {
            outcomes.push((arm, self.replicate(planned, arm, None)));
            if outcomes.last().is_some_and(|(_, outcome)| outcome.is_err()) {
                break;
            }
        }
        outcomes
    }

    fn replicate(&self, planned: &PlannedPair, arm: usize, barrier: Option<&ArmBarrier>) -> Outcome {
        let p = &self.prepared[planned.experiment];
        let (number, folder) = replicate::next_folder(&record::arm_folder(&self.folder, &p.name, ARMS[arm]))
            .map_err(|e| (Abort::Store(e), None))?;
        let what = format!("{} pair {} {}", p.name, planned.pair + 1, ARMS[arm]);
        self.progress.show(&what);
        let measured = replicate::run(&Replicate {
            padding: [planned.padding.0, planned.padding.1][arm],
            barrier,
            ..self.rig.replicate(p, planned, arm, (number, &folder))
        });
        match measured {
            Ok(m) => Ok((number, folder, m)),
            Err(abort) => Err((abort, Some(folder))),
        }
    }

    fn store(&self, record: &PairRecord) -> Result<(), Abort> {
        let mut line = serde_json::to_string(record).map_err(io::Error::other)?;
        line.push('\n');
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join("pairs.jsonl"))?;
        file.write_all(line.as_bytes())?;
        file.sync_data()?;
        Ok(())
    }

    /// Waits, for a limited time, until everything else on the machine uses little CPU.
    fn wait_for_idle_machine(&self, name: &str) -> Result<(), Abort> {
        if self.o.wanted.accept_busy {
            return Ok(());
        }
        let deadline = Instant::now() + self.o.wanted.calm_wait;
        while let Some(share) = used_by_others()?.filter(|share| *share >= CALM) {
            let used = format!("{:.0} % of a core in use", 100.0 * share);
            if Instant::now() > deadline {
                let what = format!("{name}: the machine did not calm down ({used}), continuing");
                self.progress.print_line(&what);
                break;
            }
            self.progress
                .show(&format!("waiting for a quiet machine ({used})"));
        }
        Ok(())
    }
}

/// Removes the directories of an unfinished pair, so that its numbers are not taken for another's.
fn remove_unfinished(run: &Path, experiment: &str, done: &[PairRecord]) {
    for (arm, name) in ARMS.iter().enumerate() {
        let mine = done.iter().filter(|r| r.experiment == experiment);
        let known: Vec<usize> = mine.map(|r| r.replicate(arm)).collect();
        let folders = capture::replicate_folders(&record::arm_folder(run, experiment, name));
        for folder in folders.unwrap_or_default() {
            if capture::replicate_number(&folder).is_some_and(|n| !known.contains(&n)) {
                let _ = fs::remove_dir_all(folder);
            }
        }
    }
}

/// CPU use of everything but this program over half a second, as a share of a core; `None` if it is invisible.
fn used_by_others() -> Result<Option<f64>, Abort> {
    const LOOK: Duration = Duration::from_millis(500);
    let Some(before) = procfs::machine() else {
        return Ok(None);
    };
    let (own, began) = (clock::own_cpu_ns(), Instant::now());
    while began.elapsed() < LOOK {
        if signal::interrupted() {
            return Err(Abort::Interrupted);
        }
        thread::sleep(POLL);
    }
    Ok(procfs::machine().map(|after| {
        let foreign = after.since(before).busy_ns - (clock::own_cpu_ns() - own) as i64;
        foreign as f64 / began.elapsed().as_nanos() as f64
    }))
}

fn pair_line(
    p: &Prepared,
    planned: &PlannedPair,
    attempt: usize,
    results: &[Measured; 2],
    valid: bool,
) -> String {
    let head = format!("{} pair {} {}", p.name, planned.pair + 1, planned.order.name());
    let goal = p.info.goal;
    if valid {
        let show = |m: &Measured| {
            m.values
                .get(&goal)
                .map_or("n/a".to_owned(), |v| goal.unit().show(*v))
        };
        let [b, c] = [show(&results[0]), show(&results[1])];
        return format!("{head}: {} {b} -> {c}", goal.title());
    }
    let reasons = ARMS.iter().zip(results).flat_map(|(arm, m)| {
        let why = m.invalid.iter().chain(&m.disturbed);
        why.map(move |reason| format!("{arm}: {reason}"))
    });
    let reasons: Vec<String> = reasons.collect();
    format!(
        "{head}, attempt {}: discarded: {}",
        attempt + 1,
        reasons.join("; ")
    )
}
