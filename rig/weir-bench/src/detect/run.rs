//! A whole run: plan, pairs in random order, retries, interruption and resumption.

use super::analysis::{
    self, ArmInfo, ArmRules, CalibrationNote, ExperimentInfo, PairRecord, RUN_VERSION, RunInfo,
};
use super::capture::{self, Header};
use super::experiment::{Experiment, Load, Stat};
use super::layer::{ConfigError, Lay, List};
use super::library::{self, Case, Library};
use super::process::POLL;
use super::procfs;
use super::replicate::{self, Abort, Meeting, Replicate};
use super::report::show_duration;
use super::targets::{self, ArmProgram, Targets};
use super::values::{CheckRule, Measured, Rules};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use weir_regress::Direction;
use weir_regress::plan::{Order, PlannedPair, plan};
use weir_rig_base::{clock, cpu, process, signal};

/// Attempts per pair: the first and two more at once. What the machine disturbed each time gets as many again at the end, since a
/// host that is short of CPU time stays so for minutes, and as many again whenever the run is gone on with.
const ATTEMPTS: usize = 3;
/// What the host may take away of a core.
const STEAL: f64 = 0.02;
/// The same for arms together, which lose it together: the ratios of pairs that lost up to this vary by 4 to 8 % where those of
/// undisturbed pairs do by 3 to 7 %; beyond it, by 4 to 9 % (rig/docs/benchmarking.md).
const STEAL_TOGETHER: f64 = 0.1;
/// An adaptive run has seen enough when the interval is this narrow (percent, half width).
const NARROW: f64 = 1.5;
/// Results need room; a run that cannot store them is refused before it costs anybody an hour.
const FREE_MIN: u64 = 200 << 20;

#[derive(Debug, Clone)]
pub struct Options {
    pub experiments: PathBuf,
    pub targets: PathBuf,
    pub suite: Option<String>,
    pub patterns: Vec<String>,
    pub baseline: String,
    pub comparison: String,
    pub like: String,
    pub preset: String,
    pub pairs: Option<usize>,
    pub rows: Option<usize>,
    pub seed: u64,
    pub results: PathBuf,
    pub cache: PathBuf,
    pub accept_busy: bool,
    pub calm_wait: Duration,
    pub allow_profile_mismatch: bool,
    pub require_calibration: bool,
    pub unpinned: bool,
    pub set: Vec<String>,
    pub resume: Option<PathBuf>,
    pub argv: Vec<String>,
    pub aa: bool,
    pub plan_only: bool,
    pub effect: f64,
    pub confidence: f64,
}

/// Why there is no run, with its exit code.
#[derive(Debug)]
pub enum Refusal {
    /// 2
    Config(String),
    /// 3
    Failed(String),
    /// 5
    Environment(String),
}

impl From<ConfigError> for Refusal {
    fn from(e: ConfigError) -> Self {
        Refusal::Config(e.0)
    }
}

#[derive(Debug)]
pub struct Finished {
    pub folder: PathBuf,
    /// Under which a calibration of this kind is remembered.
    pub calibration_key: String,
    pub interrupted: bool,
    /// Storing failed or the configuration turned out wrong on the way.
    pub aborted: Option<String>,
}

pub struct Prepared {
    pub name: String,
    pub case: Case,
    pub arms: [Experiment; 2],
    pub info: ExperimentInfo,
}

/// Loads, resolves and checks everything that can be checked without running anything.
pub fn prepare(o: &Options) -> Result<(Vec<Prepared>, [ArmProgram; 2]), Refusal> {
    let library = Library::open(&o.experiments)?;
    let targets = if o.targets.is_file() {
        Targets::read(&o.targets)?
    } else {
        Targets::none()
    };
    let mut patterns = o.patterns.clone();
    if let Some(suite) = &o.suite {
        patterns.extend(library.suite(suite)?);
    }
    if patterns.is_empty() {
        return Err(Refusal::Config(
            "name at least one experiment or --suite; `weir-bench show` lists them".to_owned(),
        ));
    }
    let preset = library.preset(&o.preset)?;
    let cases = library.select(&patterns)?;
    let baseline = targets::arm(&o.baseline, &o.like, &targets, &o.cache)?;
    let comparison = targets::arm(&o.comparison, &o.like, &targets, &o.cache)?;
    if !o.allow_profile_mismatch
        && !baseline.info.build_profile.is_empty()
        && !comparison.info.build_profile.is_empty()
        && baseline.info.build_profile != comparison.info.build_profile
    {
        return Err(Refusal::Config(format!(
            "the arms are builds of different profiles ({} and {}); --allow-profile-mismatch compares them all the same",
            baseline.info.build_profile, comparison.info.build_profile
        )));
    }
    let arms = [baseline, comparison];
    let prepared = cases
        .into_iter()
        .map(|mut case| {
            case.layer.lay(preset.clone());
            prepare_case(case, &arms, o)
        })
        .collect::<Result<Vec<_>, Refusal>>()?;
    Ok((prepared, arms))
}

fn prepare_case(mut case: Case, arms: &[ArmProgram; 2], o: &Options) -> Result<Prepared, Refusal> {
    for setting in &o.set {
        case.set(setting)?;
    }
    let needs = case.layer.needs.get().cloned().unwrap_or_default();
    let mut unsupported = targets::lacking(&needs, [&arms[0], &arms[1]]);
    let mut resolved = Vec::new();
    for (arm, name) in arms.iter().zip(["baseline", "comparison"]) {
        let mut overlay = arm.overlay.clone();
        overlay.names.push(name.to_owned());
        match library::resolve(&case, &overlay) {
            Ok(e) => resolved.push(e),
            // A target without the experiment's transport cannot take part; everything else is a mistake in a file.
            Err(e) if e.0.contains("listens on none of") => {
                unsupported.get_or_insert(format!("{}: {}", arm.info.target, e.0));
            }
            Err(e) => return Err(e.into()),
        }
    }
    let Ok([mut b, mut c]) = <[Experiment; 2]>::try_from(resolved) else {
        // The row still appears in the report, so something must be known about it.
        let mut placeholder = case.clone();
        placeholder.layer.load = List::default();
        let mut overlay = arms[0].overlay.clone();
        overlay.names.push("baseline".to_owned());
        let e = library::resolve(&placeholder, &overlay)?;
        let info = info(&case.name, &[e.clone(), e.clone()], unsupported, Vec::new(), o);
        return Ok(Prepared {
            name: case.name.clone(),
            case,
            arms: [e.clone(), e],
            info,
        });
    };
    for e in [&mut b, &mut c] {
        if let Some(pairs) = o.pairs {
            e.measure.replicates = pairs;
            e.measure.replicates_max = pairs;
        }
        if o.unpinned {
            e.target.cpus = None;
        }
        let allowed = cpu::allowed();
        let wanted = e
            .target
            .cpus
            .iter()
            .flatten()
            .chain(e.load.iter().filter_map(load_cpus).flatten());
        if let Some(cpu) = wanted.into_iter().find(|c| !allowed.contains(c)) {
            return Err(Refusal::Config(format!(
                "experiment {}: CPU {cpu} is not available here (there are {allowed:?}); --unpinned runs without affinity",
                case.name
            )));
        }
    }
    let payload = |e: &Experiment| -> Vec<(String, Vec<String>)> {
        e.load
            .iter()
            .map(|l| match l {
                Load::Profile { profile, args, .. } => (profile.clone(), args.clone()),
                Load::Command { command, .. } => (String::new(), command.clone()),
            })
            .collect()
    };
    if payload(&b) != payload(&c)
        || b.measure.duration != c.measure.duration
        || b.measure.warmup != c.measure.warmup
        || b.together != c.together
    {
        return Err(Refusal::Config(format!(
            "experiment {}: the arms would get different loads; an override may change where a load goes, not what it is",
            case.name
        )));
    }
    let mut left_out = Vec::new();
    for (e, arm) in [(&b, &arms[0]), (&c, &arms[1])] {
        if let Some(Load::Profile { to, .. }) = e.load.first() {
            let scheme = to.split("://").next().unwrap_or_default();
            left_out.push((arm.info.target.clone(), scheme.to_owned()));
        }
    }
    let mut notes = Vec::new();
    if left_out.len() == 2 && left_out[0].1 != left_out[1].1 {
        notes.push(format!(
            "different transports: {} over {}, {} over {}",
            left_out[0].0, left_out[0].1, left_out[1].0, left_out[1].1
        ));
    }
    if b.together {
        notes.push("both arms of a pair ran at the same time".to_owned());
    }
    let info = info(&case.name, &[b.clone(), c.clone()], unsupported, notes, o);
    Ok(Prepared {
        name: case.name.clone(),
        case,
        arms: [b, c],
        info,
    })
}

fn load_cpus(load: &Load) -> Option<&Vec<usize>> {
    match load {
        Load::Profile { cpus, .. } | Load::Command { cpus, .. } => cpus.as_ref(),
    }
}

fn info(
    name: &str,
    arms: &[Experiment; 2],
    unsupported: Option<String>,
    left_out: Vec<String>,
    o: &Options,
) -> ExperimentInfo {
    let e = &arms[0];
    ExperimentInfo {
        name: name.to_owned(),
        description: e.description.clone(),
        goal: e.goal,
        better: match e.direction {
            Direction::HigherIsBetter => "up",
            Direction::LowerIsBetter => "down",
            Direction::Undeclared => "undeclared",
        }
        .to_owned(),
        erratic: e.erratic,
        pairs_min: o.rows.map_or(e.measure.replicates, |rows| {
            rows * o.pairs.unwrap_or(e.measure.replicates)
        }),
        pairs_max: o.rows.map_or(e.measure.replicates_max, |rows| {
            rows * o.pairs.unwrap_or(e.measure.replicates)
        }),
        warmup_s: e.measure.warmup.as_secs_f64(),
        duration_s: e.measure.duration.as_secs_f64(),
        unsupported,
        left_out,
        rules: ArmRules {
            baseline: rules(&arms[0], o),
            comparison: rules(&arms[1], o),
        },
    }
}

fn rules(e: &Experiment, o: &Options) -> Rules {
    let to = e.load.iter().find_map(|l| match l {
        Load::Profile { to, .. } => Some(to.as_str()),
        Load::Command { command, .. } => command.iter().find(|a| a.contains("udp://")).map(String::as_str),
    });
    Rules {
        min_target_share: e.valid.min_target_share,
        generator_headroom: e.valid.generator_headroom,
        overload: e.valid.overload,
        idle: e.valid.idle,
        // The user said that the machine may be busy; a limit that nothing reaches keeps the figures in the record.
        max_steal: if o.accept_busy {
            BUSY_ACCEPTED
        } else {
            let usual = if e.together { STEAL_TOGETHER } else { STEAL };
            e.valid.max_steal.unwrap_or(usual)
        },
        max_foreign_cpu: if o.accept_busy {
            BUSY_ACCEPTED
        } else {
            e.valid.max_foreign_cpu
        },
        udp: to.is_some_and(|t| t.contains("udp://")),
        all_out: e.load.iter().any(Load::all_out),
        together: e.together,
        checks: e
            .checks
            .iter()
            .map(|c| CheckRule {
                name: c.name.clone(),
                series: c.series.clone(),
                stat: match c.stat {
                    Stat::Max => "max",
                    Stat::Min => "min",
                    Stat::Mean => "mean",
                    Stat::Last => "last",
                }
                .to_owned(),
                upper: c.upper,
                lower: c.lower,
            })
            .collect(),
    }
}

/// Stands for "no limit" in stored rules.
pub const BUSY_ACCEPTED: f64 = 1e6;

/// Runs (or continues) the plan. Whatever happens after the folder exists, what was measured stays.
pub fn execute(o: &Options) -> Result<Finished, Refusal> {
    let (prepared, arms) = prepare(o)?;
    let ways = ways(&prepared, o.rows.is_some())?;
    let calibration_key = calibration_key(!ways.contains(&false));
    let calibration = weakest(&ways, &o.cache);
    if o.require_calibration && calibration.as_ref().is_none_or(|c| c.state == "failed") {
        return Err(Refusal::Environment(format!(
            "this machine has no accepted calibration{}; make one with `weir-bench aa`",
            calibration
                .map(|c| format!(" ({})", c.sentence()))
                .unwrap_or_default()
        )));
    }
    let rounds_max = prepared.iter().map(|p| p.info.pairs_max).max().unwrap_or(0);
    let schedule = plan(o.seed, prepared.len(), rounds_max);
    if o.plan_only {
        print_plan(&prepared, &schedule, o.seed);
        return Ok(Finished {
            folder: PathBuf::new(),
            calibration_key,
            interrupted: false,
            aborted: None,
        });
    }
    let info = run_info(o, &prepared, &arms, calibration);
    let folder = open_folder(o, &info)?;
    // Children run in folders of their own, so every path they get must be absolute.
    let folder =
        fs::canonicalize(&folder).map_err(|e| Refusal::Failed(format!("{}: {e}", folder.display())))?;
    let mut runner = Runner::new(o, &prepared, &arms, info.id.clone(), folder.clone())?;
    signal::catch_interrupts();
    process::become_subreaper();
    let outcome = runner.all(&schedule);
    let (interrupted, aborted) = match outcome {
        Ok(()) => (false, None),
        Err(Abort::Interrupted) => (true, None),
        Err(other) => (false, Some(other.to_string())),
    };
    Ok(Finished {
        calibration_key,
        folder,
        interrupted,
        aborted,
    })
}

fn print_plan(prepared: &[Prepared], schedule: &[Vec<PlannedPair>], seed: u64) {
    println!("seed {seed:#x}");
    for (i, round) in schedule.iter().enumerate() {
        for p in round {
            let e = &prepared[p.experiment];
            if i < e.info.pairs_max && e.info.unsupported.is_none() {
                println!(
                    "round {i} {} {} payload {:016x}",
                    e.name,
                    p.order.name(),
                    p.payload_seed
                );
            }
        }
    }
}

/// The values of `together` among the experiments that will run. A calibration is of one of the two.
fn ways(prepared: &[Prepared], calibrates: bool) -> Result<Vec<bool>, Refusal> {
    let run = || prepared.iter().filter(|p| p.info.unsupported.is_none());
    let mut ways: Vec<bool> = run().map(|p| p.arms[0].together).collect();
    ways.sort_unstable();
    ways.dedup();
    if calibrates && ways.len() > 1 {
        let names = |together: bool| {
            let names: Vec<&str> = run()
                .filter(|p| p.arms[0].together == together)
                .map(|p| p.name.as_str())
                .collect();
            names.join(", ")
        };
        return Err(Refusal::Config(format!(
            "the arms of {} run together, those of {} one after the other; these are calibrated apart \
             (--set measure.together=false runs none together)",
            names(true),
            names(false)
        )));
    }
    Ok(ways)
}

/// The calibration that says least for a run of these ways: none if one of them has none, a failed one before an accepted one.
fn weakest(ways: &[bool], cache: &Path) -> Option<CalibrationNote> {
    let notes: Option<Vec<CalibrationNote>> = ways
        .iter()
        .map(|together| super::history::stored_calibration(cache, &calibration_key(*together)))
        .collect();
    let notes = notes?;
    let failed = notes.iter().find(|n| n.state == "failed");
    failed.or(notes.first()).cloned()
}

/// What calibration depends on: the machine and whether the arms of a pair run together, not the program.
pub fn calibration_key(together: bool) -> String {
    host_key() + if together { "; arms together" } else { "" }
}

/// The machine as far as it decides how well it measures.
pub fn host_key() -> String {
    let h = procfs::describe_host();
    ["cpu", "cpus", "kernel"]
        .iter()
        .map(|k| h.get(*k).cloned().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("; ")
}

fn run_info(
    o: &Options,
    prepared: &[Prepared],
    arms: &[ArmProgram; 2],
    calibration: Option<CalibrationNote>,
) -> RunInfo {
    let created = clock::unix_ns() / 1_000_000_000;
    let target_cpus = prepared
        .iter()
        .find(|p| p.info.unsupported.is_none())
        .map(|p| match &p.arms[0].target.cpus {
            Some(c) => c.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
            None => "all".to_owned(),
        })
        .unwrap_or_default();
    RunInfo {
        version: RUN_VERSION,
        id: format!("{}-{:04x}", super::report::stamp(created), o.seed & 0xffff),
        kind: if o.aa { "aa" } else { "compare" }.to_owned(),
        created_unix: created,
        argv: o.argv.clone(),
        seed: format!("{:#x}", o.seed),
        preset: o.preset.clone(),
        host: procfs::describe_host(),
        pinning: if target_cpus == "all" { "free" } else { "split" }.to_owned(),
        target_cpus,
        baseline: arms[0].info.clone(),
        comparison: arms[1].info.clone(),
        experiments: prepared.iter().map(|p| p.info.clone()).collect(),
        busy_accepted: o.accept_busy,
        effect: o.effect,
        confidence: o.confidence,
        row_pairs: o.rows.map(|_| {
            o.pairs
                .unwrap_or_else(|| prepared.first().map_or(5, |p| p.arms[0].measure.replicates))
        }),
        calibration,
        folder_of_experiments: o.experiments.display().to_string(),
        working_folder: std::env::current_dir().ok(),
    }
}

fn open_folder(o: &Options, info: &RunInfo) -> Result<PathBuf, Refusal> {
    let store =
        |p: &Path, e: io::Error| Refusal::Failed(format!("cannot store results in {}: {e}", p.display()));
    if let Some(folder) = &o.resume {
        let old = analysis::read_run(folder).map_err(|e| Refusal::Config(e.to_string()))?;
        let same = |a: &ArmInfo, b: &ArmInfo| a.sha256 == b.sha256 && a.spec == b.spec;
        if !same(&old.baseline, &info.baseline) || !same(&old.comparison, &info.comparison) {
            return Err(Refusal::Config(format!(
                "{}: the programs have changed since this run began; begin a new one",
                folder.display()
            )));
        }
        if old.experiments != info.experiments {
            return Err(Refusal::Config(format!(
                "{}: the experiments have changed since this run began; begin a new one",
                folder.display()
            )));
        }
        return Ok(folder.clone());
    }
    fs::create_dir_all(&o.results).map_err(|e| store(&o.results, e))?;
    if let Some(free) = process::free_bytes(&o.results).filter(|f| *f < FREE_MIN) {
        return Err(Refusal::Failed(format!(
            "{} has {} MiB free, a run needs {} MiB",
            o.results.display(),
            free >> 20,
            FREE_MIN >> 20
        )));
    }
    let mut folder = o.results.join(&info.id);
    let mut i = 1;
    while folder.exists() {
        folder = o.results.join(format!("{}-{i}", info.id));
        i += 1;
    }
    fs::create_dir(&folder).map_err(|e| store(&folder, e))?;
    let text = serde_json::to_string_pretty(info).map_err(|e| Refusal::Failed(e.to_string()))?;
    fs::write(folder.join("run.json"), text).map_err(|e| store(&folder, e))?;
    Ok(folder)
}

/// Number and folder of a replicate and what it measured; or why there is nothing to go on with, and what to remove.
type Outcome = Result<(usize, PathBuf, Measured), (Abort, Option<PathBuf>)>;

/// What came of a pair so far.
#[derive(Debug, Clone, Copy, Default)]
struct Tries {
    attempts: usize,
    /// Those of them that were made before the run was gone on with.
    earlier: usize,
    /// Attempts that were invalid for reasons of their own, which waiting does not cure.
    own_fault: usize,
    valid: bool,
}

impl Tries {
    fn add(&mut self, arms: &[Measured; 2]) {
        self.attempts += 1;
        self.own_fault += usize::from(arms.iter().any(|m| !m.invalid.is_empty()));
        self.valid |= arms.iter().all(Measured::is_valid);
    }

    /// How many there may be in all, by the end of a round.
    fn attempts_max(&self, round: Round) -> usize {
        match round {
            Round::First => ATTEMPTS,
            Round::Again => (2 * ATTEMPTS).max(self.earlier + ATTEMPTS),
        }
    }
}

/// Every pair has its turn before any that was disturbed has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    First,
    Again,
}

struct Runner<'a> {
    o: &'a Options,
    prepared: &'a [Prepared],
    arms: &'a [ArmProgram; 2],
    run_id: String,
    folder: PathBuf,
    program: PathBuf,
    rig_cpus: Option<Vec<usize>>,
    /// By experiment and pair.
    tries: BTreeMap<(String, usize), Tries>,
    /// Experiments that cannot succeed: every attempt of a pair was invalid for reasons of its own.
    hopeless: BTreeMap<usize, String>,
    progress: Progress,
}

impl<'a> Runner<'a> {
    fn new(
        o: &'a Options,
        prepared: &'a [Prepared],
        arms: &'a [ArmProgram; 2],
        run_id: String,
        folder: PathBuf,
    ) -> Result<Self, Refusal> {
        let program = std::env::current_exe().map_err(|e| Refusal::Failed(e.to_string()))?;
        let target_cpus: Vec<usize> = prepared
            .iter()
            .flat_map(|p| &p.arms)
            .filter_map(|e| e.target.cpus.clone())
            .flatten()
            .collect();
        let rest: Vec<usize> = cpu::allowed()
            .into_iter()
            .filter(|c| !target_cpus.contains(c))
            .collect();
        // With one CPU there is nothing to split.
        let rig_cpus = (!target_cpus.is_empty() && !rest.is_empty()).then_some(rest);
        let done = analysis::read_pairs(&folder).map_err(|e| Refusal::Failed(e.to_string()))?;
        // A resumed run may hold folders of a pair that was not finished; its numbers must not be taken for another's.
        for p in prepared {
            for arm in ["baseline", "comparison"] {
                let known: Vec<usize> = done
                    .iter()
                    .filter(|r| r.experiment == p.name)
                    .map(|r| {
                        if arm == "baseline" {
                            r.baseline
                        } else {
                            r.comparison
                        }
                    })
                    .collect();
                let arm_folder = analysis::arm_folder(&folder, &p.name, arm);
                for replicate in capture::replicate_folders(&arm_folder).unwrap_or_default() {
                    let number = replicate
                        .file_name()
                        .and_then(|n| n.to_str())
                        .and_then(|n| n.parse().ok());
                    if number.is_some_and(|n| !known.contains(&n)) {
                        let _ = fs::remove_dir_all(replicate);
                    }
                }
            }
        }
        let total = prepared
            .iter()
            .filter(|p| p.info.unsupported.is_none())
            .map(|p| 2 * p.info.pairs_min)
            .sum();
        let mut runner = Self {
            o,
            prepared,
            arms,
            run_id,
            folder,
            program,
            rig_cpus,
            tries: BTreeMap::new(),
            hopeless: BTreeMap::new(),
            progress: Progress::new(total),
        };
        runner.progress.done = 2 * done.len();
        runner.progress.total += 2 * done.iter().filter(|r| r.attempt > 0).count();
        for record in &done {
            if let Some(p) = prepared.iter().find(|p| p.name == record.experiment) {
                let arms = analysis::measure_pair(&runner.folder, &p.info, record);
                let tries = runner.tries.entry((p.name.clone(), record.pair)).or_default();
                tries.add(&arms);
                tries.earlier = tries.attempts;
            }
        }
        Ok(runner)
    }

    fn all(&mut self, schedule: &[Vec<PlannedPair>]) -> Result<(), Abort> {
        if let Some(cpus) = &self.rig_cpus {
            // What this program itself does must not land on the target's core.
            let _ = cpu::pin(cpus);
        }
        for round in [Round::First, Round::Again] {
            for planned in schedule.iter().flatten() {
                let p = &self.prepared[planned.experiment];
                if p.info.unsupported.is_some()
                    || planned.pair >= p.info.pairs_max
                    || self.hopeless.contains_key(&planned.experiment)
                    || self.is_decided(p, planned.pair, round)
                {
                    continue;
                }
                self.pair(planned, round)?;
            }
        }
        self.progress.end();
        Ok(())
    }

    /// This pair needs no more attempts, or the interval is narrow enough (an adaptive run). Significance never
    /// stops a run: looking until it appears would make it appear.
    fn is_decided(&self, p: &Prepared, pair: usize, round: Round) -> bool {
        let key = (p.name.clone(), pair);
        let tries = self.tries.get(&key).copied().unwrap_or_default();
        if tries.valid || tries.attempts >= tries.attempts_max(round) || tries.own_fault >= ATTEMPTS {
            return true;
        }
        if round == Round::Again {
            // The end is for what was tried before, not for pairs that an adaptive run did not need.
            return tries.attempts == 0;
        }
        if pair < p.info.pairs_min || p.info.pairs_max == p.info.pairs_min {
            return false;
        }
        analysis::analyze(&self.folder).is_ok_and(|report| {
            report
                .rows
                .iter()
                .find(|r| r.experiment == p.name)
                .and_then(|r| r.change.as_ref())
                .is_some_and(|c| c.scale == "percent" && (c.high - c.low) / 2.0 < NARROW)
        })
    }

    fn pair(&mut self, planned: &PlannedPair, round: Round) -> Result<(), Abort> {
        let p = &self.prepared[planned.experiment];
        let key = (p.name.clone(), planned.pair);
        let tries = self.tries.get(&key).copied().unwrap_or_default();
        let (before, attempts_max) = (tries.attempts, tries.attempts_max(round));
        if before > 0 {
            // What the plan counted for this pair went into the attempts that failed.
            self.progress.total += 2;
        }
        for attempt in before..attempts_max {
            self.wait_for_calm(&p.name)?;
            let order = match planned.order {
                Order::BaselineFirst => [0, 1],
                Order::ComparisonFirst => [1, 0],
            };
            let mut numbers = [0; 2];
            let mut results: [Measured; 2] = Default::default();
            let mut folders = Vec::new();
            let mut aborted = None;
            for (arm, outcome) in self.both(planned, order) {
                match outcome {
                    Ok((number, folder, measured)) => {
                        numbers[arm] = number;
                        results[arm] = measured;
                        folders.push(folder);
                    }
                    Err((abort, folder)) => {
                        folders.extend(folder);
                        aborted = Some(abort);
                    }
                }
                self.progress.step();
            }
            if let Some(abort) = aborted {
                // Half a pair is no evidence.
                folders.iter().for_each(|f| drop(fs::remove_dir_all(f)));
                return Err(abort);
            }
            let record = PairRecord {
                experiment: p.name.clone(),
                pair: planned.pair,
                attempt,
                order: planned.order.name().to_owned(),
                seed: format!("{:016x}", planned.payload_seed),
                baseline: numbers[0],
                comparison: numbers[1],
            };
            self.store(&record)?;
            let tries = self.tries.entry(key.clone()).or_default();
            tries.add(&results);
            let valid = tries.valid;
            self.progress
                .say(&pair_line(p, planned, attempt, &results, valid));
            if valid {
                return Ok(());
            }
            if attempt + 1 < attempts_max {
                self.progress.total += 2;
            }
        }
        if self.tries[&key].own_fault >= ATTEMPTS {
            // Three honest attempts failed for reasons that waiting does not cure: the other rounds would only repeat it.
            self.hopeless.insert(planned.experiment, p.name.clone());
            self.progress
                .say(&format!("{}: given up after {ATTEMPTS} invalid attempts", p.name));
        }
        Ok(())
    }

    /// Runs the arms of a pair, one after the other or together; stops at the first that aborts.
    fn both(&self, planned: &PlannedPair, order: [usize; 2]) -> Vec<(usize, Outcome)> {
        if self.prepared[planned.experiment].arms[0].together {
            let meeting = &Meeting::default();
            return thread::scope(|scope| {
                order
                    .map(|arm| {
                        (
                            arm,
                            scope.spawn(move || self.replicate(planned, arm, Some(meeting))),
                        )
                    })
                    .into_iter()
                    .map(|(arm, thread)| (arm, thread.join().unwrap_or_else(|panic| resume_unwind(panic))))
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

    fn replicate(&self, planned: &PlannedPair, arm: usize, meeting: Option<&Meeting>) -> Outcome {
        let p = &self.prepared[planned.experiment];
        let arm_name = ["baseline", "comparison"][arm];
        let (number, folder) = replicate::next_folder(&analysis::arm_folder(&self.folder, &p.name, arm_name))
            .map_err(|e| (Abort::Store(e), None))?;
        let rules = if arm == 0 {
            &p.info.rules.baseline
        } else {
            &p.info.rules.comparison
        };
        self.progress
            .show(&format!("{} pair {} {arm_name}", p.name, planned.pair + 1));
        let measured = replicate::run(&Replicate {
            header: Header {
                v: capture::VERSION,
                run: self.run_id.clone(),
                exp: p.name.clone(),
                arm: arm_name.to_owned(),
                rep: number,
                pair: planned.pair,
                order: planned.order.name().to_owned(),
                seed: format!("{:016x}", planned.payload_seed),
                bin_sha256: self.arms[arm].info.sha256.clone(),
                started_unix_ns: 0,
                host: BTreeMap::new(),
            },
            folder: &folder,
            scratch: &std::env::temp_dir(),
            experiment: &p.arms[arm],
            bin: &self.arms[arm].bin,
            files: p.case.files.as_deref(),
            seed: planned.payload_seed,
            padding: if arm == 0 {
                planned.padding.0
            } else {
                planned.padding.1
            },
            program: &self.program,
            rig_cpus: self.rig_cpus.as_deref(),
            rules,
            profile: None,
            meeting,
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

    /// Waits until everything else on the machine uses less than 5 % of a core, for a limited time.
    fn wait_for_calm(&self, name: &str) -> Result<(), Abort> {
        if self.o.accept_busy {
            return Ok(());
        }
        let deadline = Instant::now() + self.o.calm_wait;
        loop {
            let look = Duration::from_millis(500);
            let Some(before) = procfs::machine() else {
                return Ok(());
            };
            let own = clock::own_cpu_ns();
            let began = Instant::now();
            while began.elapsed() < look {
                if signal::interrupted() {
                    return Err(Abort::Interrupted);
                }
                thread::sleep(POLL);
            }
            let Some(after) = procfs::machine() else {
                return Ok(());
            };
            let foreign = after.since(before).busy_ns - (clock::own_cpu_ns() - own) as i64;
            let share = foreign as f64 / began.elapsed().as_nanos() as f64;
            if share < 0.05 {
                return Ok(());
            }
            if Instant::now() > deadline {
                self.progress.say(&format!(
                    "{name}: the machine did not calm down ({:.0} % of a core in use), going on",
                    100.0 * share
                ));
                return Ok(());
            }
            self.progress.show(&format!(
                "waiting for a quiet machine ({:.0} % of a core in use)",
                100.0 * share
            ));
        }
    }
}

fn pair_line(
    p: &Prepared,
    planned: &PlannedPair,
    attempt: usize,
    results: &[Measured; 2],
    valid: bool,
) -> String {
    let head = format!("{} pair {} {}", p.name, planned.pair + 1, planned.order.name());
    if valid {
        let value = |m: &Measured| {
            m.values
                .get(&p.info.goal)
                .map_or("n/a".to_owned(), |v| p.info.goal.unit().show(*v))
        };
        return format!(
            "{head}: {} {} -> {}",
            p.info.goal.title(),
            value(&results[0]),
            value(&results[1])
        );
    }
    let reasons: Vec<String> = ["baseline", "comparison"]
        .iter()
        .zip(results)
        .flat_map(|(arm, m)| {
            m.invalid
                .iter()
                .chain(&m.disturbed)
                .map(move |r| format!("{arm}: {r}"))
        })
        .collect();
    format!(
        "{head}, attempt {}: discarded: {}",
        attempt + 1,
        reasons.join("; ")
    )
}

/// Progress and time left, on a terminal as one line that changes, elsewhere as plain lines.
struct Progress {
    began: Instant,
    total: usize,
    done: usize,
    began_at: Option<usize>,
    terminal: bool,
}

impl Progress {
    fn new(total: usize) -> Self {
        Self {
            began: Instant::now(),
            total,
            done: 0,
            began_at: None,
            terminal: io::stderr().is_terminal(),
        }
    }

    fn step(&mut self) {
        if self.began_at.is_none() {
            self.began_at = Some(self.done);
        }
        self.done += 1;
    }

    fn left(&self) -> String {
        let made = self.done - self.began_at.unwrap_or(self.done);
        if made == 0 {
            return String::new();
        }
        let each = self.began.elapsed() / made as u32;
        format!(
            ", {} left",
            show_duration(each * self.total.saturating_sub(self.done) as u32)
        )
    }

    fn show(&self, what: &str) {
        if self.terminal {
            let done = (100 * self.done).checked_div(self.total).unwrap_or(100).min(100);
            eprint!("\r\x1b[2K{done:3} %{}: {what}", self.left());
            let _ = io::stderr().flush();
        }
    }

    fn say(&self, line: &str) {
        if self.terminal {
            eprintln!("\r\x1b[2K{line}");
        } else {
            eprintln!("[{}/{}{}] {line}", self.done, self.total, self.left());
        }
    }

    fn end(&self) {
        if self.terminal {
            eprint!("\r\x1b[2K");
        }
    }
}
