//! Loading, resolving and checking before a run.

use super::{DetectError, Options};
use crate::detect::experiment::{CountedBy, Experiment, Load, Sink};
use crate::detect::goal::Goal;
use crate::detect::layer::{Layered, List};
use crate::detect::library::{self, Case, Library};
use crate::detect::record::{ARMS, ArmRules, ExperimentInfo};
use crate::detect::rig::{TARGET_BOOKS, TARGET_LINES, TARGET_RESULT, TARGET_STDOUT};
use crate::detect::targets::{self, ArmProgram, Targets};
use crate::detect::values::Rules;
use std::path::Path;
use weir_regress::Direction;
use weir_rig_base::process;

/// Maximum steal time, as a share of a core.
const STEAL: f64 = 0.02;
/// The same for concurrent arms, which lose it equally: the ratios of pairs below this limit vary by 4 to 8 %, against 3 to 7 % for
/// undisturbed pairs; above it, by 4 to 9 % (rig/docs/benchmarking.md).
const STEAL_TOGETHER: f64 = 0.1;

pub struct Prepared {
    pub name: String,
    pub case: Case,
    pub arms: [Experiment; 2],
    pub info: ExperimentInfo,
}

/// Loads, resolves and checks everything that needs no run.
pub fn prepare(o: &Options) -> Result<(Vec<Prepared>, [ArmProgram; 2]), DetectError> {
    let library = o.wanted.library()?;
    let mut patterns = o.wanted.experiments.clone();
    if let Some(suite) = &o.wanted.suite {
        patterns.extend(library.suite(suite)?);
    }
    if patterns.is_empty() {
        let what = "name at least one experiment or --suite; `weir-bench show` lists them";
        return Err(DetectError::config(what));
    }
    let preset = library.preset(&o.wanted.preset)?;
    let cases = library.select(&patterns)?;
    let arms = programs(o, &library)?;
    let prepared = cases.into_iter().map(|mut case| {
        case.layer.override_with(preset.clone());
        prepare_case(case, &arms, o)
    });
    Ok((prepared.collect::<Result<_, _>>()?, arms))
}

fn programs(o: &Options, library: &Library) -> Result<[ArmProgram; 2], DetectError> {
    let targets = Targets::of(library, o.wanted.targets.as_deref())?;
    let program = |arm: usize| -> Result<ArmProgram, DetectError> {
        let mut program = targets::arm(&o.specs[arm], &o.wanted.like, &targets, &o.wanted.cache())?;
        program.info.args.clone_from(&o.args[arm]);
        if program.running.is_some() && !o.args[arm].is_empty() {
            let flag = format!("--{}-args", ARMS[arm]);
            let what = format!("{flag}: {} runs already, with its own arguments", o.specs[arm]);
            return Err(DetectError::Config(what));
        }
        Ok(program)
    };
    let arms = [program(0)?, program(1)?];
    let [b, c] = [&arms[0], &arms[1]].map(|arm| arm.info.build_profile.as_str());
    if !o.wanted.allow_profile_mismatch && !b.is_empty() && !c.is_empty() && b != c {
        return Err(DetectError::Config(format!(
            "the arms are builds of different profiles ({b} and {c}); --allow-profile-mismatch compares them anyway"
        )));
    }
    Ok(arms)
}

fn prepare_case(mut case: Case, arms: &[ArmProgram; 2], o: &Options) -> Result<Prepared, DetectError> {
    for setting in &o.wanted.set {
        case.set(setting)?;
    }
    let needs = case.layer.needs.get().cloned().unwrap_or_default();
    let mut unsupported = targets::lacking(&needs, [&arms[0], &arms[1]]);
    let mut resolved = Vec::new();
    for (arm, name) in arms.iter().zip(ARMS) {
        match resolve(&case, arm, name) {
            Ok(e) => resolved.push(e),
            // A target without the experiment's transport cannot run it; every other error is a mistake in a file.
            Err(e) if e.0.contains("listens on none of") => {
                unsupported.get_or_insert(format!("{}: {}", arm.info.target, e.0));
            }
            Err(e) => return Err(e.into()),
        }
    }
    let (arms, notes) = match <[Experiment; 2]>::try_from(resolved) {
        Ok(mut resolved) => {
            for (e, arm) in resolved.iter_mut().zip(arms) {
                apply_flags(e, o);
                if let Some(running) = &arm.running {
                    running.take_over(&mut e.target);
                    check_running(&case.name, e)?;
                }
                check_cpus(&case.name, e)?;
                check_files(&case.name, e)?;
            }
            let pid = |arm: &ArmProgram| arm.running.as_ref().map(|running| running.pid);
            if pid(&arms[0]).is_some() && pid(&arms[0]) == pid(&arms[1]) {
                // Each arm would count the work of both loads.
                resolved.iter_mut().for_each(|e| e.together = false);
            }
            check_same_load(&case.name, &resolved)?;
            let notes = notes(&resolved, arms);
            (resolved, notes)
        }
        Err(_) => {
            // The row still appears in the report, so it needs a description.
            let mut placeholder = case.clone();
            placeholder.layer.load = List::default();
            let e = resolve(&placeholder, &arms[0], ARMS[0])?;
            ([e.clone(), e], Vec::new())
        }
    };
    Ok(Prepared {
        name: case.name.clone(),
        info: info(&case.name, &arms, unsupported, notes, o),
        case,
        arms,
    })
}

fn resolve(case: &Case, arm: &ArmProgram, name: &str) -> crate::detect::layer::Result<Experiment> {
    let mut overlay = arm.overlay.clone();
    overlay.names.push(name.to_owned());
    let mut experiment = library::resolve(case, &overlay)?;
    experiment.target.command.extend_from_slice(&arm.info.args);
    Ok(experiment)
}

fn apply_flags(e: &mut Experiment, o: &Options) {
    if let Some(pairs) = o.wanted.pairs {
        e.measure.replicates = pairs;
        e.measure.replicates_max = pairs;
    }
    if o.wanted.unpinned {
        e.target.cpus = None;
    }
}

/// Refuses settings that only the starter of a program can see or make.
fn check_running(name: &str, e: &Experiment) -> Result<(), DetectError> {
    let output =
        |s: &&Sink| [TARGET_STDOUT, TARGET_LINES, TARGET_RESULT, TARGET_BOOKS].contains(&s.kind.as_str());
    let what = if let Some(sink) = e.sinks.iter().find(output) {
        format!(
            "sinks: {} needs the output of a program that weir-bench started; a program that runs already has target-counter, its \
             own counters, or a sink that it delivers to",
            sink.kind
        )
    } else if e.goal == Goal::Startup {
        "goal: the start of a program that runs already cannot be measured".to_owned()
    } else if e.target.memory_limit.is_some() {
        "target.memory_limit: cannot be set for a program that runs already; `checks` can watch its memory"
            .to_owned()
    } else {
        return Ok(());
    };
    Err(DetectError::Config(format!("experiment {name}: {what}")))
}

/// Refuses a missing file before the first attempt to send it.
fn check_files(name: &str, e: &Experiment) -> Result<(), DetectError> {
    let files = e.load.iter().filter_map(|load| match load {
        Load::Profile { flag, profile, .. } if *flag == "--file" => Some(profile),
        _ => None,
    });
    let mut missing = files.filter(|file| !file.starts_with('{') && !Path::new(file).is_file());
    match missing.next() {
        None => Ok(()),
        Some(file) => Err(DetectError::Config(format!(
            "experiment {name}: load.file: {file}: no such file"
        ))),
    }
}

fn check_cpus(name: &str, e: &Experiment) -> Result<(), DetectError> {
    let allowed = process::allowed_cpus();
    let of_loads = e.load.iter().filter_map(Load::cpus).flatten();
    let mut wanted = e.target.cpus.iter().flatten().chain(of_loads);
    match wanted.find(|cpu| !allowed.contains(cpu)) {
        None => Ok(()),
        Some(cpu) => Err(DetectError::Config(format!(
            "experiment {name}: CPU {cpu} is not available here (there are {allowed:?}); --unpinned runs without affinity"
        ))),
    }
}

fn check_same_load(name: &str, [b, c]: &[Experiment; 2]) -> Result<(), DetectError> {
    let same_payload = b
        .load
        .iter()
        .map(Load::payload)
        .eq(c.load.iter().map(Load::payload));
    let times = |e: &Experiment| {
        (
            e.measure.duration,
            e.measure.warmup,
            e.measure.messages,
            e.together,
        )
    };
    if same_payload && times(b) == times(c) {
        return Ok(());
    }
    Err(DetectError::Config(format!(
        "experiment {name}: the arms would get different loads; an override may change the destination of a load, not its content"
    )))
}

/// Notes about how the arms were run, for readers of the result.
fn notes(resolved: &[Experiment; 2], arms: &[ArmProgram; 2]) -> Vec<String> {
    let mut notes = Vec::new();
    let scheme = |e: &Experiment| match e.load.first()? {
        Load::Profile { to, .. } => Some(to.split("://").next().unwrap_or_default().to_owned()),
        Load::Command { .. } => None,
    };
    if let [Some(b), Some(c)] = [scheme(&resolved[0]), scheme(&resolved[1])]
        && b != c
    {
        let [of_b, of_c] = [&arms[0].info.target, &arms[1].info.target];
        notes.push(format!("different transports: {of_b} over {b}, {of_c} over {c}"));
    }
    if resolved[0].together {
        notes.push("the arms of a pair ran concurrently".to_owned());
    }
    if arms.iter().any(|arm| arm.running.is_some()) {
        notes.push("a program ran before and after: work for others than this load counts too".to_owned());
    }
    notes
}

fn info(
    name: &str,
    arms: &[Experiment; 2],
    unsupported: Option<String>,
    left_out: Vec<String>,
    o: &Options,
) -> ExperimentInfo {
    let e = &arms[0];
    let in_rows = o
        .rows
        .map(|rows| rows * o.wanted.pairs.unwrap_or(e.measure.replicates));
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
        pairs_min: in_rows.unwrap_or(e.measure.replicates),
        pairs_max: in_rows.unwrap_or(e.measure.replicates_max),
        warmup_s: e.measure.warmup.as_secs_f64(),
        duration_s: e.measure.duration.as_secs_f64(),
        unsupported,
        left_out,
        budget: e.budget,
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
    // Other programs do not change how many instructions valgrind counts.
    let any = match e.measure.instructions {
        CountedBy::Valgrind => f64::MAX,
        CountedBy::Counters => 0.0,
    };
    let usual_steal = if e.together { STEAL_TOGETHER } else { STEAL };
    Rules {
        min_target_share: e.valid.min_target_share,
        generator_headroom: e.valid.generator_headroom,
        overload: e.valid.overload,
        idle: e.valid.idle,
        max_steal: e.valid.max_steal.unwrap_or(usual_steal).max(any),
        max_foreign_cpu: e.valid.max_foreign_cpu.max(any),
        busy_accepted: o.wanted.accept_busy,
        udp: to.is_some_and(|t| t.contains("udp://")),
        all_out: e.load.iter().any(Load::all_out),
        together: e.together,
        checks: e.checks.clone(),
    }
}
