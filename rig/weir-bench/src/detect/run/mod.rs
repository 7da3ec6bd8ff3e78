//! A complete run: plan, pairs in random order, retries, interruption and resumption.

mod attempts;
mod prepare;
mod progress;
mod rig;
mod runner;

pub use prepare::{Prepared, prepare};
pub use rig::Rig;

use super::experiment::CountedBy;
use super::goal::Goal;
use super::layer::ConfigError;
use super::library::Library;
use super::record::{self, ArmInfo, CalibrationNote, RUN_VERSION, RunInfo};
use super::replicate::Abort;
use super::targets::{ArmProgram, USUAL_TARGET};
use super::{analysis, procfs, valgrind};
use crate::common;
use attempts::PairTally;
use runner::Runner;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_regress::plan::{PlannedPair, plan};
use weir_rig_base::counter::Counter;
use weir_rig_base::{clock, process, signal};

/// Minimum free space: a run that cannot store its results is refused before it costs an hour.
const FREE_MIN: u64 = 200 << 20;

/// Selection and settings of a run, shared by all measuring commands.
#[derive(clap::Args, Debug, Clone)]
pub struct Selection {
    /// Names or globs of experiments (`dsd-*`).
    #[arg(value_name = "EXPERIMENT")]
    pub experiments: Vec<String>,
    /// Also the experiments of this suite.
    #[arg(long)]
    pub suite: Option<String>,
    /// Folder with cases, templates, suites and presets [default: the built-in ones and experiments/ here].
    #[arg(long, value_name = "FOLDER")]
    pub library: Option<PathBuf>,
    /// File that describes further programs, like the library's targets.yaml.
    #[arg(long, value_name = "FILE")]
    pub targets: Option<PathBuf>,
    /// Target whose entry starts `bin:` and `git:` programs; `none`: the experiment's `target.command`.
    #[arg(long = "as", default_value = USUAL_TARGET, value_name = "TARGET")]
    pub like: String,
    /// `thorough` (the experiments' settings), or a preset of the library such as `quick`.
    #[arg(long, default_value = "thorough")]
    pub preset: String,
    /// Pairs per experiment instead of the experiments' number; fewer than 5 can never reach 90 % confidence.
    #[arg(long)]
    pub pairs: Option<usize>,
    /// Seed of order, payloads and padding, decimal or 0x... [default: random, printed].
    #[arg(long, value_parser = record::parse_seed)]
    pub seed: Option<u64>,
    /// Directory of stored runs.
    #[arg(long, default_value = "results", value_name = "FOLDER")]
    pub results: PathBuf,
    /// Directory of builds and calibrations; default: ~/.cache/weir-bench.
    #[arg(long, value_name = "FOLDER")]
    pub cache: Option<PathBuf>,
    /// Measure even if other programs use the machine; the report notes it.
    #[arg(long)]
    pub accept_busy: bool,
    /// Longest wait before each pair for other programs to become idle.
    #[arg(long, default_value = "60s", value_parser = weir_units::parse_duration)]
    pub calm_wait: Duration,
    /// Compare builds of different profiles.
    #[arg(long)]
    pub allow_profile_mismatch: bool,
    /// Refuse to run on a machine without an accepted calibration.
    #[arg(long)]
    pub require_calibration: bool,
    /// Ignore the CPU affinity of the experiments.
    #[arg(long)]
    pub unpinned: bool,
    /// Change one value of every experiment, for example `--set measure.duration=10s`, or of some: `--set 'dsd-*:...'`.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print the plan and stop.
    #[arg(long)]
    pub plan: bool,
    /// Smallest relevant change, in percent.
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    pub effect: f64,
    /// Confidence level of the intervals, in percent.
    #[arg(long, default_value_t = 90.0, value_name = "PERCENT")]
    pub confidence: f64,
    /// Append the results to this file too.
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
}

impl Selection {
    pub fn cache(&self) -> PathBuf {
        self.cache.clone().unwrap_or_else(default_cache)
    }

    pub fn library(&self) -> Result<Library, ConfigError> {
        Library::open(self.library.as_deref())
    }

    fn check(&self) -> Result<(), DetectError> {
        if !(0.0..100.0).contains(&self.effect) || !(50.0..100.0).contains(&self.confidence) {
            let what = "--effect is a percentage from 0 to 100, --confidence one from 50 to below 100";
            return Err(DetectError::config(what));
        }
        if self.pairs.is_some_and(|pairs| pairs < 2) {
            return Err(DetectError::config(
                "--pairs: at least 2, and 5 for a confidence of 90 %",
            ));
        }
        Ok(())
    }
}

/// Default directory of builds and calibrations.
pub fn default_cache() -> PathBuf {
    common::cache().unwrap_or_else(|| Path::new(".").join(".cache").join("weir-bench"))
}

/// One run.
#[derive(Debug, Clone)]
pub struct Options {
    pub wanted: Selection,
    /// Each arm, as `bin:PATH`, `git:REVISION`, `target:NAME`, `pid:PID@ADDRESS` or `cgroup:GROUP@ADDRESS`.
    pub specs: [String; 2],
    /// Exit status of each arm's command.
    pub args: [Vec<String>; 2],
    /// A program against itself, to judge the detector.
    pub calibrates: bool,
    /// Rows per experiment, each a comparison of its own.
    pub rows: Option<usize>,
    /// A regression that was found beside accepted disturbances is measured a second time.
    pub confirms: bool,
    pub seed: u64,
    /// Folder of a run that is resumed.
    pub resume: Option<PathBuf>,
    pub argv: Vec<String>,
}

impl Options {
    pub fn new(wanted: &Selection, specs: [&str; 2], argv: &[String]) -> Result<Options, DetectError> {
        wanted.check()?;
        Ok(Options {
            // Nanoseconds are random enough; the report prints the seed.
            seed: wanted.seed.unwrap_or_else(|| clock::unix_ns() & 0xffff_ffff),
            wanted: wanted.clone(),
            specs: specs.map(str::to_owned),
            args: Default::default(),
            calibrates: false,
            rows: None,
            confirms: false,
            resume: None,
            argv: argv.to_vec(),
        })
    }
}

/// Why there is no run, with its exit code.
#[derive(Debug)]
pub enum DetectError {
    /// 2
    Config(String),
    /// 3
    Failed(String),
    /// 5
    Environment(String),
}

impl DetectError {
    pub fn config(why: impl ToString) -> DetectError {
        DetectError::Config(why.to_string())
    }

    pub fn failed(why: impl ToString) -> DetectError {
        DetectError::Failed(why.to_string())
    }

    /// An error about an invalid file.
    pub fn unusable(path: &Path, why: impl std::fmt::Display) -> DetectError {
        DetectError::Config(format!("{}: {why}", path.display()))
    }

    /// An error of a file operation.
    pub fn failed_at(path: &Path, why: impl std::fmt::Display) -> DetectError {
        DetectError::Failed(format!("{}: {why}", path.display()))
    }
}

impl From<ConfigError> for DetectError {
    fn from(e: ConfigError) -> Self {
        DetectError::Config(e.0)
    }
}

#[derive(Debug)]
pub struct Finished {
    pub folder: PathBuf,
    /// The key of the calibration for this kind of run.
    pub calibration_key: String,
    pub interrupted: bool,
    /// Storing failed, or the configuration turned out to be invalid.
    pub aborted: Option<String>,
}

/// Runs or continues the plan. `None` if it was only printed. After the directory exists, measurements are never lost.
pub fn execute(o: &Options) -> Result<Option<Finished>, DetectError> {
    let (prepared, arms) = prepare(o)?;
    hint_at_own_commands(&prepared, &o.wanted.like, &o.specs);
    check_counters(&prepared)?;
    let modes = modes(&prepared, o.calibrates)?;
    let host = procfs::describe_host();
    let calibration = weakest(&modes, &o.wanted, &host);
    if o.wanted.require_calibration {
        require(calibration.as_ref(), &o.wanted)?;
    }
    let rounds_max = prepared.iter().map(|p| p.info.pairs_max).max().unwrap_or(0);
    let rounds = rounds_max + PairTally::replaceable(rounds_max);
    let schedule = plan(o.seed, prepared.len(), rounds);
    if o.wanted.plan {
        print_plan(&prepared, &schedule, o.seed);
        return Ok(None);
    }
    let library = o.wanted.library()?.name;
    let info = run_info(o, &prepared, &arms, calibration, library, host);
    let key = calibration_key(&info.host, !modes.contains(&false), info.busy_accepted);
    let folder = open_folder(o, &info)?;
    // Children run in other directories, so every path that they get must be absolute.
    let folder = fs::canonicalize(&folder).map_err(|e| DetectError::failed_at(&folder, e))?;
    let mut runner = Runner::new(o, &prepared, &arms, info.id, folder.clone())?;
    signal::catch_interrupts();
    process::become_subreaper();
    let mut outcome = runner.all(&schedule);
    if o.confirms && outcome.is_ok() {
        let doubtful = unconfirmed(&folder)?;
        if !doubtful.is_empty() {
            outcome = runner.confirm(&doubtful, &plan(o.seed ^ SECOND, prepared.len(), rounds));
        }
    }
    let (interrupted, aborted) = match outcome {
        Ok(()) => (false, None),
        Err(Abort::Interrupted) => (true, None),
        Err(other) => (false, Some(other.to_string())),
    };
    Ok(Some(Finished {
        calibration_key: key,
        folder,
        interrupted,
        aborted,
    }))
}

/// Warns if a target replaces the command of a case: a case that has one is meant to run it.
fn hint_at_own_commands(prepared: &[Prepared], like: &str, specs: &[String; 2]) {
    if like != USUAL_TARGET || !specs.iter().any(|spec| spec.starts_with("bin:")) {
        return;
    }
    for p in prepared.iter().filter(|p| p.case.layer.target.has_command()) {
        eprintln!(
            "{}: its target.command is not used, because `bin:` programs start like the target {like}; --as none uses it",
            p.name
        );
    }
}

/// Refuses a goal that this machine cannot measure.
fn check_counters(prepared: &[Prepared]) -> Result<(), DetectError> {
    for p in runnable(prepared).filter(|p| p.info.goal == Goal::InstructionsPerMessage) {
        let by = p.arms[0].measure.instructions;
        let refused = match by {
            CountedBy::Valgrind if p.arms.iter().any(|arm| arm.target.running.is_some()) => {
                Err("a program that runs already is not inside valgrind".to_owned())
            }
            CountedBy::Valgrind => valgrind::check().map_err(|missing| missing.to_string()),
            CountedBy::Counters => Counter::check().map_err(|why| {
                format!(
                    "{why}; --set measure.instructions=valgrind counts without them, \
                     --set goal=cpu_per_message measures CPU time"
                )
            }),
        };
        refused.map_err(|why| DetectError::Environment(format!("{}: {why}", p.name)))?;
    }
    Ok(())
}

/// Changes the seed of a run into that of its confirmation.
const SECOND: u64 = 0x9e37_79b9_7f4a_7c15;

/// Experiments with a regression that lacks its confirmation.
fn unconfirmed(folder: &Path) -> Result<Vec<String>, DetectError> {
    let report = analysis::analyze(folder).map_err(DetectError::failed)?;
    let rows = report
        .rows
        .iter()
        .filter(|row| row.verdict == analysis::UNCONFIRMED);
    let mut names: Vec<String> = rows.map(|row| row.name().to_owned()).collect();
    names.dedup();
    Ok(names)
}

fn require(calibration: Option<&CalibrationNote>, wanted: &Selection) -> Result<(), DetectError> {
    if calibration.is_some_and(CalibrationNote::is_usable) {
        return Ok(());
    }
    let found = calibration.map_or_else(String::new, |c| format!(" ({})", c.sentence()));
    let flag = if wanted.accept_busy { " --accept-busy" } else { "" };
    Err(DetectError::Environment(format!(
        "this machine has no accepted calibration{found}; make one with `weir-bench aa{flag}`"
    )))
}

fn print_plan(prepared: &[Prepared], schedule: &[Vec<PlannedPair>], seed: u64) {
    println!("seed {seed:#x}");
    for (i, round) in schedule.iter().enumerate() {
        for p in round {
            let e = &prepared[p.experiment];
            if i < e.info.pairs_max && e.info.unsupported.is_none() {
                let order = p.order.name();
                println!("round {i} {} {order} payload {:016x}", e.name, p.payload_seed);
            }
        }
    }
}

/// Experiments that both targets support.
pub fn runnable(prepared: &[Prepared]) -> impl Iterator<Item = &Prepared> {
    prepared.iter().filter(|p| p.info.unsupported.is_none())
}

/// The values of `together` among the experiments that will run. A calibration covers one of the two.
fn modes(prepared: &[Prepared], calibrates: bool) -> Result<Vec<bool>, DetectError> {
    let mut modes: Vec<bool> = runnable(prepared).map(|p| p.arms[0].together).collect();
    modes.sort_unstable();
    modes.dedup();
    if !calibrates || modes.len() < 2 {
        return Ok(modes);
    }
    let names = |together: bool| {
        let such = runnable(prepared).filter(|p| p.arms[0].together == together);
        such.map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    Err(DetectError::Config(format!(
        "the arms of {} run concurrently, those of {} sequentially; the two are calibrated separately \
         (--set measure.together=false runs all sequentially)",
        names(true),
        names(false)
    )))
}

/// The weakest calibration for these modes: none if one is missing, one that is of no use before an accepted one.
fn weakest(modes: &[bool], wanted: &Selection, host: &BTreeMap<String, String>) -> Option<CalibrationNote> {
    let stored = |together: &bool| {
        let key = calibration_key(host, *together, wanted.accept_busy);
        super::history::stored_calibration(&wanted.cache(), &key)
    };
    let notes: Vec<CalibrationNote> = modes.iter().map(stored).collect::<Option<_>>()?;
    let weak = notes.iter().find(|n| !n.is_usable());
    weak.or(notes.first()).cloned()
}

/// A calibration depends on the machine, on whether the arms are concurrent, and on whether disturbed pairs count; not on the program.
pub fn calibration_key(host: &BTreeMap<String, String>, together: bool, busy_accepted: bool) -> String {
    let mut key = host_key(host);
    for (word, applies) in [("arms together", together), ("busy accepted", busy_accepted)] {
        if applies {
            key.push_str("; ");
            key.push_str(word);
        }
    }
    key
}

/// The properties of the machine that affect measurements, from a description that was made before this program bound itself to some
/// of the processors: later it sees fewer.
pub fn host_key(host: &BTreeMap<String, String>) -> String {
    ["cpu", "cpus", "kernel"]
        .map(|key| host.get(key).cloned().unwrap_or_default())
        .join("; ")
}

fn run_info(
    o: &Options,
    prepared: &[Prepared],
    arms: &[ArmProgram; 2],
    calibration: Option<CalibrationNote>,
    library: String,
    host: BTreeMap<String, String>,
) -> RunInfo {
    let created = clock::unix_ns() / 1_000_000_000;
    let target_cpus = runnable(prepared).next().map(|p| match &p.arms[0].target.cpus {
        Some(cpus) => cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
        None => "all".to_owned(),
    });
    let target_cpus = target_cpus.unwrap_or_default();
    let usual_pairs = prepared.first().map_or(5, |p| p.arms[0].measure.replicates);
    RunInfo {
        version: RUN_VERSION,
        id: format!("{}-{:04x}", super::report::stamp(created), o.seed & 0xffff),
        kind: if o.calibrates { "aa" } else { "compare" }.to_owned(),
        created_unix: created,
        argv: o.argv.clone(),
        seed: format!("{:#x}", o.seed),
        preset: o.wanted.preset.clone(),
        host,
        pinning: if target_cpus == "all" { "free" } else { "split" }.to_owned(),
        target_cpus,
        baseline: arms[0].info.clone(),
        comparison: arms[1].info.clone(),
        experiments: prepared.iter().map(|p| p.info.clone()).collect(),
        busy_accepted: o.wanted.accept_busy,
        effect: o.wanted.effect / 100.0,
        confidence: o.wanted.confidence / 100.0,
        row_pairs: o.rows.map(|_| o.wanted.pairs.unwrap_or(usual_pairs)),
        calibration,
        folder_of_experiments: library,
        working_folder: std::env::current_dir().ok(),
    }
}

fn open_folder(o: &Options, info: &RunInfo) -> Result<PathBuf, DetectError> {
    match &o.resume {
        Some(folder) => check_unchanged(folder, info).map(|()| folder.clone()),
        None => new_folder(&o.wanted.results, info),
    }
}

/// Refuses to resume with other programs or settings: half a run of each is no evidence.
fn check_unchanged(folder: &Path, info: &RunInfo) -> Result<(), DetectError> {
    let old = record::read_run(folder).map_err(DetectError::config)?;
    let same = |a: &ArmInfo, b: &ArmInfo| (&a.sha256, &a.spec, &a.args) == (&b.sha256, &b.spec, &b.args);
    let what = if !same(&old.baseline, &info.baseline) || !same(&old.comparison, &info.comparison) {
        "programs"
    } else if old.experiments != info.experiments {
        "experiments"
    } else {
        return Ok(());
    };
    let why = format!("the {what} have changed since this run began; begin a new one");
    Err(DetectError::unusable(folder, why))
}

fn new_folder(results: &Path, info: &RunInfo) -> Result<PathBuf, DetectError> {
    let store = |e: std::io::Error| {
        DetectError::Failed(format!("cannot store results in {}: {e}", results.display()))
    };
    fs::create_dir_all(results).map_err(store)?;
    if let Some(free) = process::free_bytes(results).filter(|f| *f < FREE_MIN) {
        let why = format!("{} MiB free, a run needs {} MiB", free >> 20, FREE_MIN >> 20);
        return Err(DetectError::failed_at(results, why));
    }
    let names = (0..).map(|i| match i {
        0 => info.id.clone(),
        i => format!("{}-{i}", info.id),
    });
    let mut folders = names.map(|name| results.join(name));
    let folder = folders.find(|folder| !folder.exists()).expect("endless");
    let text = serde_json::to_string_pretty(info).map_err(DetectError::failed)?;
    fs::create_dir(&folder)
        .and_then(|()| fs::write(folder.join("run.json"), text))
        .map_err(store)?;
    Ok(folder)
}
