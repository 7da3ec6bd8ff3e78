//! Runs the pairs of a plan in sequence, decides about further attempts, and stores each pair.

use super::attempts::{ATTEMPTS, PairAttempts, PairTally, Round, Silence, explanation};
use super::progress::Progress;
use super::rig::Rig;
use super::{DetectError, Options, Prepared};
use crate::detect::capture;
use crate::detect::experiment::CountedBy;
use crate::detect::process::POLL;
use crate::detect::record::{self, ARMS, PairRecord};
use crate::detect::replicate::{self, Abort, ArmBarrier, Replicate};
use crate::detect::targets::ArmProgram;
use crate::detect::values::Measured;
use crate::detect::{analysis, procfs, report};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use weir_regress::plan::{Order, PlannedPair};
use weir_rig_base::{clock, signal};

/// An adaptive run has seen enough when the interval is this narrow (percent, half width).
const NARROW: f64 = 1.5;
/// Maximum CPU use of everything else on the machine when a pair begins, as a share of a core.
const CALM: f64 = 0.05;

/// Number and directory of a replicate; or why the run must stop, and what to remove.
type Outcome = Result<(usize, PathBuf), (Abort, Option<PathBuf>)>;

pub(super) struct Runner<'a> {
    o: &'a Options,
    prepared: &'a [Prepared],
    rig: Rig<'a>,
    folder: PathBuf,
    /// The pairs that are run confirm regressions.
    confirms: bool,
    /// By experiment, purpose and pair.
    pairs: BTreeMap<(String, bool, usize), PairAttempts>,
    /// By experiment and purpose.
    tallies: BTreeMap<(String, bool), PairTally>,
    silence: Silence,
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
            confirms: false,
            pairs: BTreeMap::new(),
            tallies: BTreeMap::new(),
            silence: Silence::new(Instant::now()),
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
                let key = (p.name.clone(), pair.confirms, pair.pair);
                let attempts = self.pairs.entry(key).or_default();
                attempts.add(&arms);
                attempts.earlier = attempts.attempts;
            }
        }
        for ((name, confirms, _), attempts) in &self.pairs {
            let tally = self.tallies.entry((name.clone(), *confirms)).or_default();
            tally.add(*attempts, false);
            tally.forget_the_row();
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

    /// Measures these experiments a second time, from another seed.
    pub fn confirm(&mut self, names: &[String], schedule: &[Vec<PlannedPair>]) -> Result<(), Abort> {
        self.confirms = true;
        let again: Vec<&Prepared> = self.prepared.iter().filter(|p| names.contains(&p.name)).collect();
        for p in &again {
            let what = format!(
                "{}: a regression on a busy machine; measuring it a second time",
                p.name
            );
            self.progress.print_line(&what);
            self.progress.total += 2 * p.info.confirming_pairs(self.o.rows);
        }
        let is_wanted = |planned: &PlannedPair| names.contains(&self.prepared[planned.experiment].name);
        let schedule: Vec<PlannedPair> = schedule
            .iter()
            .flatten()
            .filter(|p| is_wanted(p))
            .copied()
            .collect();
        self.all(&[schedule])
    }

    fn attempts_of(&self, planned: &PlannedPair) -> PairAttempts {
        let name = self.prepared[planned.experiment].name.clone();
        let key = (name, self.confirms, planned.pair);
        self.pairs.get(&key).copied().unwrap_or_default()
    }

    /// Whether this pair needs another attempt, unless the interval is narrow enough (an adaptive run). Significance never stops a run:
    /// looking until it appears would make it appear.
    fn is_wanted(&self, planned: &PlannedPair, round: Round) -> bool {
        let info = &self.prepared[planned.experiment].info;
        let attempts = self.attempts_of(planned);
        let (pairs_min, pairs_max) = self.planned_pairs(planned);
        let tally = self.tally(planned);
        let replaced = tally.replaced(pairs_max);
        let in_plan = info.unsupported.is_none() && planned.pair < pairs_max + replaced;
        if !in_plan || tally.is_hopeless(pairs_max) || attempts.is_over(round) {
            return false;
        }
        if round == Round::Again {
            // The last round is for failed pairs and what replaces them, not for pairs that an adaptive run did not need.
            return attempts.attempts > 0 || planned.pair >= pairs_max;
        }
        planned.pair < pairs_min + replaced || pairs_max == pairs_min || !self.is_narrow(&info.name)
    }

    /// The least and the largest number of pairs, without replacements.
    fn planned_pairs(&self, planned: &PlannedPair) -> (usize, usize) {
        let info = &self.prepared[planned.experiment].info;
        match self.confirms {
            true => [info.confirming_pairs(self.o.rows); 2].into(),
            false => (info.pairs_min, info.pairs_max),
        }
    }

    fn tally(&self, planned: &PlannedPair) -> PairTally {
        let key = (self.prepared[planned.experiment].name.clone(), self.confirms);
        self.tallies.get(&key).copied().unwrap_or_default()
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
                break;
            }
            if attempt + 1 < attempts_max {
                self.progress.total += 2;
            }
        }
        self.conclude(planned);
        Ok(())
    }

    /// Counts a pair that is over, and says what follows from one that failed.
    fn conclude(&mut self, planned: &PlannedPair) {
        let (name, pair) = (&self.prepared[planned.experiment].name, self.attempts_of(planned));
        let (_, planned_pairs) = self.planned_pairs(planned);
        let tally = self.tallies.entry((name.clone(), self.confirms)).or_default();
        tally.add(pair, self.silence.is_long(Instant::now()));
        if !pair.has_failed() {
            return;
        }
        let failed = format!("{name} pair {}: failed in {ATTEMPTS} attempts", planned.pair + 1);
        let what = if tally.is_hopeless(planned_pairs) {
            format!("{failed}; {name} is given up")
        } else {
            self.progress.total += 2;
            format!("{failed}; another pair replaces it")
        };
        self.progress.print_line(&what);
    }

    /// Runs both arms and stores the results. Returns true if the pair is valid.
    fn attempt(&mut self, planned: &PlannedPair, attempt: usize) -> Result<bool, Abort> {
        let p = &self.prepared[planned.experiment];
        let numbers = self.arms_of(planned)?;
        let record = PairRecord {
            experiment: p.name.clone(),
            pair: planned.pair,
            confirms: self.confirms,
            attempt,
            order: planned.order.name().to_owned(),
            seed: format!("{:016x}", planned.payload_seed),
            baseline: numbers[0],
            comparison: numbers[1],
        };
        self.store(&record)?;
        // Over one span for both, which each run alone did not know.
        let results = record::measure_pair(&self.folder, &p.info, &record);
        for (arm, result) in results.iter().enumerate() {
            let replicate = record::replicate_folder(&self.folder, &p.name, ARMS[arm], numbers[arm]);
            replicate::store_verdict(&replicate, result)?;
        }
        let key = (p.name.clone(), self.confirms, planned.pair);
        let attempts = self.pairs.entry(key).or_default();
        attempts.add(&results);
        let valid = attempts.valid;
        let line = pair_line(p, planned, attempt, &results, valid);
        self.progress.print_line(&line);
        if valid {
            self.silence.end(Instant::now());
        } else {
            let is_disturbed = results.iter().any(|m| !m.disturbed.is_empty());
            self.explain_silence(&p.name, &reasons(&results), is_disturbed);
        }
        Ok(valid)
    }

    /// Says why there is no valid pair, after a while without one.
    fn explain_silence(&mut self, name: &str, reasons: &[String], is_disturbed: bool) {
        let Some(time) = self.silence.is_too_long(Instant::now()) else {
            return;
        };
        let busiest = if is_disturbed {
            procfs::busiest(LOOK)
        } else {
            Vec::new()
        };
        let why = explanation(reasons, is_disturbed, &busiest, self.o.wanted.accept_busy);
        let time = report::show_duration(time);
        self.progress
            .print_line(&format!("{name}: no valid pair for {time}: {why}"));
    }

    /// Numbers of the runs of both arms, or none: half a pair is no evidence.
    fn arms_of(&mut self, planned: &PlannedPair) -> Result<[usize; 2], Abort> {
        let mut numbers = [0; 2];
        let mut folders = Vec::new();
        let mut aborted = None;
        for (arm, outcome) in self.both(planned) {
            match outcome {
                Ok((number, folder)) => {
                    numbers[arm] = number;
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
            None => Ok(numbers),
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
            Ok(_) => Ok((number, folder)),
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
    fn wait_for_idle_machine(&mut self, name: &str) -> Result<(), Abort> {
        // A count by valgrind is the same on a busy machine.
        let is_counted =
            |p: &Prepared| p.name == name && p.arms[0].measure.instructions == CountedBy::Valgrind;
        if self.o.wanted.accept_busy || self.prepared.iter().any(is_counted) {
            return Ok(());
        }
        let deadline = Instant::now() + self.o.wanted.calm_wait;
        while let Some(share) = used_by_others()?.filter(|share| *share >= CALM) {
            let used = format!("{:.0} % of a core in use", 100.0 * share);
            self.explain_silence(name, &[format!("waiting for a quiet machine, {used}")], true);
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

/// For this long the use of the CPU is observed.
const LOOK: Duration = Duration::from_millis(500);

/// CPU use of everything but this program over half a second, as a share of a core; `None` if it is invisible.
fn used_by_others() -> Result<Option<f64>, Abort> {
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
    let why = reasons(results).join("; ");
    format!("{head}, attempt {}: discarded: {why}", attempt + 1)
}

fn reasons(results: &[Measured; 2]) -> Vec<String> {
    let reasons = ARMS.iter().zip(results).flat_map(|(arm, m)| {
        let why = m.invalid.iter().chain(&m.disturbed);
        why.map(move |reason| format!("{arm}: {reason}"))
    });
    reasons.collect()
}
