//! The commands of the detector and their exit codes.

use super::analysis::{self, Report};
use super::layer::ConfigError;
use super::library::{Library, resolved_layer};
use super::run::{self, Finished, Options, Refusal};
use super::targets::Targets;
use super::{history, procfs, report};
use clap::{Args, Subcommand, ValueEnum};
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_rig_base::{clock, cpu};

#[derive(Subcommand)]
pub enum Command {
    /// Compare two programs under the same load and say what changed, by how much, and how sure that is.
    Compare(Box<CompareArgs>),
    /// Compare a program with itself: does the detector keep its promise on this machine?
    Aa(Box<AaArgs>),
    /// Go on with a run that was interrupted.
    Run(ResumeArgs),
    /// Compare where two programs spend CPU time and memory, in extra runs that no statistic uses.
    Profile(Box<ProfileArgs>),
    /// Recompute everything from the stored captures of a run and rewrite its reports.
    Analyze(AnalyzeArgs),
    /// Print the report of a run.
    Report(ReportArgs),
    /// Print experiments, suites and targets, or one experiment as it resolves for a target.
    Show(ShowArgs),
    /// Can this machine measure? Says what is missing and what it costs.
    Doctor(DoctorArgs),
    /// A load, a target and a sink whose truth is known, to measure the detector itself.
    #[command(subcommand, hide = true)]
    Practice(super::practice::Role),
    /// Level changes in a history of results.
    History(HistoryArgs),
}

#[derive(Args, Clone)]
struct Common {
    /// Names or globs of experiments (`dsd-*`).
    #[arg(value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// Also the experiments of this suite.
    #[arg(long)]
    suite: Option<String>,
    /// Folder with cases, templates, suites and presets.
    #[arg(long, default_value = "experiments", value_name = "FOLDER")]
    library: PathBuf,
    /// File that describes programs; default: targets.yaml in the library.
    #[arg(long, value_name = "FILE")]
    targets: Option<PathBuf>,
    /// Which entry of targets.yaml says how `bin:` and `git:` programs are started; `none` leaves it to the experiment.
    #[arg(long = "as", default_value = "weir", value_name = "TARGET")]
    like: String,
    /// `thorough` as the experiments say, or the name of a file in presets/ such as `quick`.
    #[arg(long, default_value = "thorough")]
    preset: String,
    /// Pairs per experiment instead of what the experiments say; fewer than 5 can never reach 90 % confidence.
    #[arg(long)]
    pairs: Option<usize>,
    /// Seed of order, payloads and padding; drawn and printed when left out. Decimal or 0x...
    #[arg(long, value_parser = parse_seed)]
    seed: Option<u64>,
    /// Where runs are stored.
    #[arg(long, default_value = "results", value_name = "FOLDER")]
    results: PathBuf,
    /// Where builds and calibrations are kept; default: ~/.cache/weir-bench.
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// Measure although other programs use the machine; the report says so.
    #[arg(long)]
    accept_busy: bool,
    /// How long to wait before each pair for other programs to calm down.
    #[arg(long, default_value = "60s", value_parser = weir_units::parse_duration)]
    calm_wait: std::time::Duration,
    /// Compare builds of different profiles.
    #[arg(long)]
    allow_profile_mismatch: bool,
    /// Refuse to run on a machine without an accepted calibration.
    #[arg(long)]
    require_calibration: bool,
    /// Ignore the CPU affinity of the experiments.
    #[arg(long)]
    unpinned: bool,
    /// Change one value of every experiment, for example `--set measure.duration=10s`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print the plan and stop.
    #[arg(long)]
    plan: bool,
    /// Smallest change that matters, in percent.
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    effect: f64,
    /// Level of the intervals, in percent.
    #[arg(long, default_value_t = 90.0, value_name = "PERCENT")]
    confidence: f64,
    /// Also append the results to this file.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    #[command(flatten)]
    gate: Gate,
}

#[derive(Args, Clone, Default)]
struct Gate {
    /// A regression fails only when it also survives the correction for the number of rows (q < 0.1).
    #[arg(long)]
    strict: bool,
    /// Exit with 6 when a row is inconclusive.
    #[arg(long)]
    fail_inconclusive: bool,
}

#[derive(Args)]
pub struct CompareArgs {
    /// `bin:PATH`, `git:REVISION` or `target:NAME`.
    #[arg(long)]
    baseline: String,
    /// `bin:PATH`, `git:REVISION` or `target:NAME`.
    #[arg(long)]
    comparison: String,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
pub struct AaArgs {
    /// `bin:PATH`, `git:REVISION` or `target:NAME`.
    #[arg(long)]
    target: String,
    /// Rows over all experiments; each is a comparison of its own with its own pairs.
    #[arg(long, default_value_t = 60)]
    rows: usize,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
pub struct ResumeArgs {
    /// Folder of the interrupted run.
    #[arg(long, value_name = "FOLDER")]
    resume: PathBuf,
}

#[derive(Args)]
pub struct ProfileArgs {
    /// `bin:PATH`, `git:REVISION` or `target:NAME`.
    #[arg(long)]
    baseline: String,
    /// `bin:PATH`, `git:REVISION` or `target:NAME`.
    #[arg(long)]
    comparison: String,
    /// Extra runs per program.
    #[arg(long, default_value_t = 2)]
    replicates: usize,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
pub struct AnalyzeArgs {
    /// Folder of a run.
    folder: PathBuf,
    #[command(flatten)]
    gate: Gate,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Md,
    Json,
    Html,
    Term,
    Junit,
}

#[derive(Args)]
pub struct ReportArgs {
    /// Folder of a run, or a report.json.
    from: PathBuf,
    #[arg(long, value_enum, default_value = "term")]
    format: Format,
    /// Terminal: all other dimensions too, not only those that changed.
    #[arg(long)]
    all: bool,
}

#[derive(Args)]
pub struct ShowArgs {
    /// An experiment; without one, everything is listed.
    experiment: Option<String>,
    /// Resolve it for this entry of targets.yaml.
    #[arg(long = "as", value_name = "TARGET")]
    like: Option<String>,
    #[arg(long, default_value = "experiments", value_name = "FOLDER")]
    library: PathBuf,
    #[arg(long, value_name = "FILE")]
    targets: Option<PathBuf>,
}

#[derive(Args)]
pub struct DoctorArgs {
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
}

#[derive(Args)]
pub struct HistoryArgs {
    /// A file written with `--history`.
    file: PathBuf,
    /// Print CSV for other tools instead.
    #[arg(long)]
    csv: bool,
    /// Smallest level change that is reported, in percent.
    #[arg(long, default_value_t = 2.0, value_name = "PERCENT")]
    change_min: f64,
}

fn parse_seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a whole number, decimal or 0x...".to_owned())
}

/// Runs a command; the code is the process's exit code.
pub fn dispatch(command: Command, argv: Vec<String>) -> ExitCode {
    let result = match command {
        Command::Compare(a) => options(
            &a.common,
            a.baseline.clone(),
            a.comparison.clone(),
            false,
            None,
            argv,
        )
        .and_then(|o| measure(&o, &a.common)),
        Command::Aa(a) => options(
            &a.common,
            a.target.clone(),
            a.target.clone(),
            true,
            Some(a.rows),
            argv,
        )
        .and_then(|o| measure(&o, &a.common)),
        Command::Run(a) => resume(&a.resume),
        Command::Profile(a) => options(
            &a.common,
            a.baseline.clone(),
            a.comparison.clone(),
            false,
            None,
            argv,
        )
        .and_then(|o| super::profile::run(&o, a.replicates.max(1)))
        .map(|(folder, text)| {
            out(&text);
            eprintln!("written to {}", folder.display());
            0
        }),
        Command::Analyze(a) => analyze(&a),
        Command::Report(a) => print_report(&a),
        Command::Show(a) => show(&a),
        Command::Doctor(a) => doctor(&a),
        Command::History(a) => print_history(&a),
        Command::Practice(role) => super::practice::run(role).map_err(|e| Refusal::Failed(e.to_string())),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(refusal) => {
            let (code, text) = match refusal {
                Refusal::Config(t) => (2, t),
                Refusal::Failed(t) => (3, t),
                Refusal::Environment(t) => (5, t),
            };
            eprintln!("weir-bench: {text}");
            ExitCode::from(code)
        }
    }
}

fn cache_folder(given: &Option<PathBuf>) -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| ".".into()));
    let base = || std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home().join(".cache"), PathBuf::from);
    given.clone().unwrap_or_else(|| base().join("weir-bench"))
}

fn options(
    c: &Common,
    baseline: String,
    comparison: String,
    aa: bool,
    rows: Option<usize>,
    argv: Vec<String>,
) -> Result<Options, Refusal> {
    if !(0.0..100.0).contains(&c.effect) || !(50.0..100.0).contains(&c.confidence) {
        return Err(Refusal::Config(
            "--effect is a percentage from 0 to 100, --confidence one from 50 to below 100".to_owned(),
        ));
    }
    if c.pairs.is_some_and(|p| p < 2) {
        return Err(Refusal::Config(
            "--pairs: at least 2, and 5 for a confidence of 90 %".to_owned(),
        ));
    }
    // Nanoseconds are as good a draw as any; the report prints it.
    let seed = c.seed.unwrap_or_else(|| clock::unix_ns() & 0xffff_ffff);
    Ok(Options {
        targets: c
            .targets
            .clone()
            .unwrap_or_else(|| c.library.join("targets.yaml")),
        experiments: c.library.clone(),
        suite: c.suite.clone(),
        patterns: c.experiments.clone(),
        baseline,
        comparison,
        like: c.like.clone(),
        preset: c.preset.clone(),
        pairs: c.pairs,
        rows,
        seed,
        results: c.results.clone(),
        cache: cache_folder(&c.cache),
        accept_busy: c.accept_busy,
        calm_wait: c.calm_wait,
        allow_profile_mismatch: c.allow_profile_mismatch,
        require_calibration: c.require_calibration,
        unpinned: c.unpinned,
        set: c.set.clone(),
        resume: None,
        argv,
        aa,
        plan_only: c.plan,
        effect: c.effect / 100.0,
        confidence: c.confidence / 100.0,
    })
}

fn measure(o: &Options, c: &Common) -> Result<u8, Refusal> {
    let mut o = o.clone();
    if let Some(rows) = o.rows {
        // Rows are spread over the experiments; the count of experiments is known once they are loaded.
        let experiments = run::prepare(&Options {
            rows: None,
            ..o.clone()
        })?
        .0
        .len();
        if rows == 0 || !rows.is_multiple_of(experiments) {
            return Err(Refusal::Config(format!(
                "--rows {rows} must be a multiple of the {experiments} experiments"
            )));
        }
        o.rows = Some(rows / experiments);
    }
    let finished = run::execute(&o)?;
    if o.plan_only {
        return Ok(0);
    }
    conclude(&finished, &o, &c.gate, c.history.as_deref())
}

fn resume(folder: &Path) -> Result<u8, Refusal> {
    use clap::Parser;
    let old = analysis::read_run(folder).map_err(|e| Refusal::Config(e.to_string()))?;
    let folder =
        &fs::canonicalize(folder).map_err(|e| Refusal::Config(format!("{}: {e}", folder.display())))?;
    if let Some(began) = &old.working_folder {
        std::env::set_current_dir(began).map_err(|e| {
            let (folder, began) = (folder.display(), began.display());
            Refusal::Config(format!("{folder}: it was begun in {began}: {e}"))
        })?;
    }
    let cli = crate::Cli::try_parse_from(&old.argv)
        .map_err(|e| Refusal::Config(format!("{}: {e}", folder.display())))?;
    let (o, c) = match cli.command {
        crate::Command::Detect(Command::Compare(a)) => (
            options(&a.common, a.baseline, a.comparison, false, None, old.argv.clone())?,
            a.common,
        ),
        crate::Command::Detect(Command::Aa(a)) => (
            options(
                &a.common,
                a.target.clone(),
                a.target,
                true,
                Some(a.rows),
                old.argv.clone(),
            )?,
            a.common,
        ),
        _ => return Err(Refusal::Config(format!("{}: not a comparison", folder.display()))),
    };
    let seed =
        parse_seed(&old.seed).map_err(|e| Refusal::Config(format!("{}: seed: {e}", folder.display())))?;
    measure(
        &Options {
            seed,
            resume: Some(folder.to_owned()),
            ..o
        },
        &c,
    )
}

fn conclude(finished: &Finished, o: &Options, gate: &Gate, file: Option<&Path>) -> Result<u8, Refusal> {
    let report = analysis::analyze(&finished.folder).map_err(|e| Refusal::Failed(e.to_string()))?;
    report::write_all(&finished.folder, &report).map_err(|e| {
        Refusal::Failed(format!(
            "{}: cannot write the report: {e}",
            finished.folder.display()
        ))
    })?;
    out(&report::terminal(&report, io::stdout().is_terminal(), false));
    eprintln!("report: {}", finished.folder.join("report.html").display());
    if let Some(why) = &finished.aborted {
        return Err(Refusal::Failed(why.clone()));
    }
    if finished.interrupted {
        eprintln!(
            "interrupted; go on with: weir-bench run --resume {}",
            finished.folder.display()
        );
        return Ok(130);
    }
    if let Some(note) = &report.calibration {
        history::store_calibration(&o.cache, &finished.calibration_key, note)
            .map_err(|e| Refusal::Failed(format!("{}: {e}", o.cache.display())))?;
    } else if let Some(file) = file {
        history::append(file, &report, &run::host_key())
            .map_err(|e| Refusal::Failed(format!("{}: {e}", file.display())))?;
    }
    Ok(analysis::exit_code(&report, gate.strict, gate.fail_inconclusive))
}

fn out(text: &str) {
    // A closed pipe (`| head`) is not an error worth a message.
    let _ = io::stdout().write_all(text.as_bytes());
}

fn analyze(a: &AnalyzeArgs) -> Result<u8, Refusal> {
    let report = analysis::analyze(&a.folder).map_err(|e| Refusal::Config(e.to_string()))?;
    report::write_all(&a.folder, &report)
        .map_err(|e| Refusal::Failed(format!("{}: {e}", a.folder.display())))?;
    out(&report::terminal(&report, io::stdout().is_terminal(), false));
    Ok(analysis::exit_code(
        &report,
        a.gate.strict,
        a.gate.fail_inconclusive,
    ))
}

fn print_report(a: &ReportArgs) -> Result<u8, Refusal> {
    let (report, folder): (Report, Option<&Path>) = if a.from.is_dir() {
        (
            analysis::analyze(&a.from).map_err(|e| Refusal::Config(e.to_string()))?,
            Some(&a.from),
        )
    } else {
        let text = std::fs::read_to_string(&a.from)
            .map_err(|e| Refusal::Config(format!("{}: {e}", a.from.display())))?;
        let report: Report =
            serde_json::from_str(&text).map_err(|e| Refusal::Config(format!("{}: {e}", a.from.display())))?;
        if report.schema != analysis::SCHEMA {
            return Err(Refusal::Config(format!(
                "{}: schema {:?}, this program reads {:?}",
                a.from.display(),
                report.schema,
                analysis::SCHEMA
            )));
        }
        (report, None)
    };
    out(&match a.format {
        Format::Md => report::markdown(&report),
        Format::Json => report::json(&report).map_err(|e| Refusal::Failed(e.to_string()))?,
        Format::Html => report::html(&report, folder),
        Format::Term => report::terminal(&report, io::stdout().is_terminal(), a.all),
        Format::Junit => report::junit(&report),
    });
    Ok(0)
}

fn show(a: &ShowArgs) -> Result<u8, Refusal> {
    let library = Library::open(&a.library)?;
    let targets_file = a
        .targets
        .clone()
        .unwrap_or_else(|| a.library.join("targets.yaml"));
    let targets = if targets_file.is_file() {
        Targets::read(&targets_file)?
    } else {
        Targets::none()
    };
    let cases = library.cases()?;
    let Some(name) = &a.experiment else {
        let mut text = String::from("experiments\n");
        for case in &cases {
            let description = case.layer.description.text().unwrap_or_default();
            text.push_str(&format!("  {:<44} {description}\n", case.name));
        }
        text.push_str("\nsuites\n");
        for suite in library.suites()? {
            text.push_str(&format!("  {suite:<44} {}\n", library.suite(&suite)?.join(" ")));
        }
        text.push_str("\ntargets\n");
        for d in targets.all() {
            let found = d
                .locate()
                .map_or("not found here".to_owned(), |p| p.display().to_string());
            text.push_str(&format!("  {:<44} {} ({found})\n", d.name, d.description));
        }
        out(&text);
        return Ok(0);
    };
    let case = library
        .select(std::slice::from_ref(name))?
        .into_iter()
        .next()
        .ok_or_else(|| ConfigError(format!("no {name}")))?;
    let layer = match &a.like {
        Some(target) => resolved_layer(&case, &targets.get(target)?.overlay),
        None => case.layer,
    };
    out(&serde_saphyr::to_string(&layer).map_err(|error| ConfigError(error.to_string()))?);
    Ok(0)
}

fn print_history(a: &HistoryArgs) -> Result<u8, Refusal> {
    let entries = history::read(&a.file).map_err(Refusal::Config)?;
    if a.csv {
        out(&history::csv(&entries));
    } else {
        let options = weir_regress::change_point::Options {
            change_min: a.change_min / 100.0,
            ..Default::default()
        };
        out(&history::describe(&entries, &options));
    }
    Ok(0)
}

/// Says what this machine can measure. Without a CPU clock of processes it can measure nothing.
fn doctor(a: &DoctorArgs) -> Result<u8, Refusal> {
    let clock = clock::cpu_time_ns(std::process::id() as i32).is_some();
    say_host(clock);
    say_limits();
    say_neighbours();
    for (together, what) in [
        (true, "calibration, arms together"),
        (false, "calibration, arms in turn"),
    ] {
        let note = history::stored_calibration(&cache_folder(&a.cache), &run::calibration_key(together));
        let alone = if together {
            ""
        } else {
            " --set measure.together=false"
        };
        let none = || format!("none: make one with `weir-bench aa{alone}`");
        say(
            note.is_some(),
            what,
            note.as_ref().map_or_else(none, |note| note.sentence()),
        );
    }
    Ok(if clock { 0 } else { 5 })
}

fn say(ok: bool, what: &str, detail: impl std::fmt::Display) {
    let mark = if ok { "ok  " } else { "note" };
    out(&format!("{mark} {what:<28} {detail}\n"));
}

/// The detail, and what follows from it when it is not as it should be.
fn say_with(ok: bool, what: &str, detail: String, otherwise: &str) {
    say(ok, what, detail + if ok { "" } else { otherwise });
}

fn say_host(clock: bool) {
    let host = procfs::describe_host();
    say(
        true,
        "machine",
        format!("{}, Linux {}", host["cpu"], host["kernel"]),
    );
    let cpus = cpu::allowed();
    let alone = ": target and generator share one, results are noisy";
    say_with(cpus.len() >= 2, "CPUs", format!("{cpus:?}"), alone);
    let before = std::time::Instant::now();
    let smaps = procfs::smaps(std::process::id() as i32);
    let micros = before.elapsed().as_secs_f64() * 1e6;
    let detail = match smaps {
        Some(_) => format!("{micros:.0} µs for this small process"),
        None => "not readable: memory is judged by RSS".to_owned(),
    };
    say(smaps.is_some(), "smaps_rollup (PSS)", detail);
    let detail = match clock {
        true => "nanoseconds",
        false => "missing: CPU cannot be measured here",
    };
    say(clock, "CPU clock of processes", detail);
    let pressure = procfs::pressure_ns().is_some();
    say(
        pressure,
        "pressure (PSI)",
        "waiting for a CPU, recorded where the kernel has it",
    );
    let frequency = procfs::frequency_khz().is_some();
    say(frequency, "CPU frequency", "recorded where the machine shows it");
}

fn say_limits() {
    let host = procfs::describe_host();
    let cgroup = super::process::Cgroup::with_memory_limit(64 << 20);
    let detail = match &cgroup {
        Ok(_) => "control group".to_owned(),
        Err(error) => format!("watched instead of limited: {error}"),
    };
    say(cgroup.is_ok(), "memory limit", detail);
    let aslr = &host["aslr"];
    say(
        aslr == "2",
        "address randomisation",
        format!("randomize_va_space is {aslr}"),
    );
    let rmem: u64 = host["rmem_max"].parse().unwrap_or(0);
    let small = ": targets that ask for more get less; sysctl -w net.core.rmem_max=8388608";
    say_with(
        rmem >= 4 << 20,
        "net.core.rmem_max",
        format!("{rmem} bytes"),
        small,
    );
    say(true, "net.unix.max_dgram_qlen", &host["unix_max_dgram_qlen"]);
}

/// Who else uses the machine, over a second.
fn say_neighbours() {
    let (before, start) = (procfs::machine(), std::time::Instant::now());
    std::thread::sleep(std::time::Duration::from_secs(1));
    let (Some(before), Some(after)) = (before, procfs::machine()) else {
        return;
    };
    let elapsed = start.elapsed().as_nanos() as f64;
    let share = after.since(before).busy_ns as f64 / elapsed;
    let busy = ": runs will wait or be discarded; --accept-busy measures all the same";
    let detail = format!("{:.0} % of a core in use now", 100.0 * share);
    say_with(share < 0.05, "other programs", detail, busy);
    let steal = (after.steal_ns - before.steal_ns) as f64 / elapsed;
    let detail = format!("{:.1} % of a core", 100.0 * steal);
    say(steal < 0.02, "stolen by the host", detail);
}
