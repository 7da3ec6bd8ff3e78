//! The commands of the detector and their exit codes.

mod bisect;
mod budget;
mod doctor;
mod history;

use super::analysis::{self, Report};
use super::layer::ConfigError;
use super::library::{Library, resolved_layer};
use super::record;
use super::report::Positive;
use super::run::{self, DetectError, Finished, Options, Selection};
use super::targets::Targets;
use super::{history as results, micro, practice, profile, report, smp};
use clap::{Args, Subcommand, ValueEnum};
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Command {
    /// Compare two programs under the same load and report the changes with their intervals.
    Compare(Box<CompareArgs>),
    /// Compare a program with itself, to check the detector's error rate on this machine.
    Aa(Box<AaArgs>),
    /// Find the commit that caused a change between two revisions, by comparing the commits between them with the first.
    Bisect(bisect::Args),
    /// Compare weir with the floor: CPU per message, for each row of the project's budget.
    Budget(budget::Args),
    /// Resume an interrupted run.
    Run(ResumeArgs),
    /// Compare the profiles of two programs (CPU time and memory), in extra runs that no statistic uses.
    Profile(Box<ProfileArgs>),
    /// Recompute everything from the stored captures of a run and rewrite its reports.
    Analyze(AnalyzeArgs),
    /// Print the report of a run.
    Report(ReportArgs),
    /// Print experiments, suites and targets, or one experiment with a target's settings.
    Show(ShowArgs),
    /// Check whether this machine can measure; report missing requirements and their cost.
    Doctor(doctor::Args),
    /// A load, a target and a sink with a known result, to measure the detector itself.
    #[command(subcommand, hide = true)]
    Practice(practice::PracticeProgram),
    /// Find level changes in a history of results; print them, write a page, or keep notes at them.
    History(history::Args),
    /// Judge results of go test -bench, criterion or hyperfine by the statistics of a comparison.
    Micro(micro::Args),
    /// Convert an experiment folder of Datadog's SMP suite.
    ImportSmp(ImportArgs),
}

#[derive(Args, Clone, Default)]
struct Gate {
    /// Count a regression only if it remains after the correction for the number of rows (q < 0.1).
    #[arg(long)]
    strict: bool,
    /// Exit with 6 if a row is inconclusive.
    #[arg(long)]
    fail_inconclusive: bool,
}

impl Gate {
    fn code(&self, report: &Report) -> u8 {
        analysis::exit_code(report, self.strict, self.fail_inconclusive)
    }
}

/// Two programs.
#[derive(Args)]
struct Arms {
    /// `bin:PATH`, `git:REVISION`, `target:NAME`, or a running program: `pid:PID@ADDRESS`, `cgroup:GROUP@ADDRESS`.
    #[arg(long)]
    baseline: String,
    /// `bin:PATH`, `git:REVISION`, `target:NAME`, or a running program: `pid:PID@ADDRESS`, `cgroup:GROUP@ADDRESS`.
    #[arg(long)]
    comparison: String,
    /// Arguments at the end of the baseline's command, quoted as in a shell. Use absolute paths for files: each program runs in its
    /// own folder.
    #[arg(long, value_name = "ARGUMENTS", value_parser = words, allow_hyphen_values = true, default_value = "")]
    baseline_args: Words,
    /// The same for the comparison.
    #[arg(long, value_name = "ARGUMENTS", value_parser = words, allow_hyphen_values = true, default_value = "")]
    comparison_args: Words,
}

impl Arms {
    fn options(&self, wanted: &Selection, argv: &[String]) -> Result<Options, DetectError> {
        Ok(Options {
            args: [&self.baseline_args, &self.comparison_args].map(|words| words.0.clone()),
            ..Options::new(wanted, [&self.baseline, &self.comparison], argv)?
        })
    }
}

/// Arguments in one text.
#[derive(Clone)]
struct Words(Vec<String>);

#[derive(Debug, thiserror::Error)]
#[error("a quote is not closed")]
struct OpenQuote;

fn words(text: &str) -> Result<Words, OpenQuote> {
    shlex::split(text).map(Words).ok_or(OpenQuote)
}

#[derive(Args)]
pub struct CompareArgs {
    #[command(flatten)]
    arms: Arms,
    /// Rows over all experiments; each is a separate comparison with its own pairs.
    #[arg(long)]
    rows: Option<usize>,
    #[command(flatten)]
    wanted: Selection,
    #[command(flatten)]
    gate: Gate,
}

#[derive(Args)]
pub struct AaArgs {
    /// `bin:PATH`, `git:REVISION`, `target:NAME`, or a running program: `pid:PID@ADDRESS`, `cgroup:GROUP@ADDRESS`.
    #[arg(long)]
    target: String,
    /// Rows over all experiments; each is a separate comparison with its own pairs.
    #[arg(long, default_value_t = 60)]
    rows: usize,
    #[command(flatten)]
    wanted: Selection,
    #[command(flatten)]
    gate: Gate,
}

#[derive(Args)]
pub struct ResumeArgs {
    /// Folder of the interrupted run.
    #[arg(long, value_name = "FOLDER")]
    resume: PathBuf,
}

#[derive(Args)]
pub struct ProfileArgs {
    #[command(flatten)]
    arms: Arms,
    /// Extra runs per program.
    #[arg(long, default_value_t = 2)]
    replicates: usize,
    #[command(flatten)]
    wanted: Selection,
}

#[derive(Args)]
pub struct AnalyzeArgs {
    /// Folder of a run.
    folder: PathBuf,
    #[command(flatten)]
    gate: Gate,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Md,
    Json,
    Html,
    Term,
    Junit,
    /// An exposition, for node_exporter or a push gateway.
    Prometheus,
    /// A message per value, for any agent.
    Dogstatsd,
}

#[derive(Args)]
pub struct ReportArgs {
    /// Folder of a run, or a report.json.
    from: PathBuf,
    #[arg(long, value_enum, default_value = "term")]
    format: Format,
    /// Terminal: also show dimensions that did not change.
    #[arg(long)]
    all: bool,
    /// Markdown: the meaning of a positive change.
    #[arg(long, value_enum, default_value = "higher")]
    positive: Positive,
}

#[derive(Args)]
pub struct ShowArgs {
    /// An experiment [default: list everything].
    experiment: Option<String>,
    /// Apply the settings of this target; `none`: those of a case with its own `target.command`.
    #[arg(long = "as", value_name = "TARGET")]
    like: Option<String>,
    /// Folder with cases, templates, suites and presets [default: the built-in ones and experiments/ here].
    #[arg(long, value_name = "FOLDER")]
    library: Option<PathBuf>,
    /// File that describes further programs, like the library's targets.yaml.
    #[arg(long, value_name = "FILE")]
    targets: Option<PathBuf>,
}

#[derive(Args)]
pub struct ImportArgs {
    /// A case folder with experiment.yaml and lading/lading.yaml.
    from: PathBuf,
    /// Output path.
    #[arg(long, default_value = "experiments", value_name = "FOLDER")]
    library: PathBuf,
}

type Code = Result<u8, DetectError>;

/// Runs a command; the code is the process's exit code.
pub fn dispatch(command: Command, argv: Vec<String>) -> ExitCode {
    let code = run_command(command, &argv).unwrap_or_else(|refusal| {
        let (code, text) = match refusal {
            DetectError::Config(text) => (2, text),
            DetectError::Failed(text) => (3, text),
            DetectError::Environment(text) => (5, text),
        };
        eprintln!("weir-bench: {text}");
        code
    });
    ExitCode::from(code)
}

fn run_command(command: Command, argv: &[String]) -> Code {
    match command {
        Command::Compare(_) | Command::Aa(_) => measure(&Measuring::of(command, argv)?),
        Command::Bisect(a) => bisect::run(&a),
        Command::Budget(a) => budget::run(&a, argv),
        Command::Run(a) => resume(&a.resume),
        Command::Profile(a) => print_profile(&a, argv),
        Command::Analyze(a) => analyze(&a),
        Command::Report(a) => print_report(&a),
        Command::Show(a) => show(&a),
        Command::Doctor(a) => doctor::run(&a),
        Command::History(a) => history::run(&a),
        Command::Micro(a) => micro::run(&a),
        Command::Practice(role) => practice::run(role).map_err(DetectError::failed),
        Command::ImportSmp(a) => import_smp(&a),
    }
}

/// A command that measures.
struct Measuring {
    options: Options,
    /// Over all experiments.
    rows: Option<usize>,
    gate: Gate,
}

impl Measuring {
    fn of(command: Command, argv: &[String]) -> Result<Measuring, DetectError> {
        let (options, rows, gate) = match &command {
            Command::Compare(a) => {
                let options = Options {
                    confirms: true,
                    ..a.arms.options(&a.wanted, argv)?
                };
                (options, a.rows, &a.gate)
            }
            Command::Aa(a) => {
                let options = Options {
                    calibrates: true,
                    ..Options::new(&a.wanted, [&a.target; 2], argv)?
                };
                (options, Some(a.rows), &a.gate)
            }
            _ => return Err(DetectError::config("not a comparison")),
        };
        Ok(Measuring {
            options,
            rows,
            gate: gate.clone(),
        })
    }
}

fn measure(m: &Measuring) -> Code {
    let mut options = m.options.clone();
    if let Some(rows) = m.rows {
        // Rows are distributed over the experiments, whose number is known after loading.
        let experiments = run::prepare(&options)?.0.len();
        if rows == 0 || !rows.is_multiple_of(experiments) {
            let what = format!("--rows {rows} must be a multiple of the {experiments} experiments");
            return Err(DetectError::Config(what));
        }
        options.rows = Some(rows / experiments);
    }
    match run::execute(&options)? {
        None => Ok(0),
        Some(finished) => conclude(&finished, &options.wanted, &m.gate),
    }
}

fn resume(folder: &Path) -> Code {
    use clap::Parser;
    let old = record::read_run(folder).map_err(DetectError::config)?;
    let folder = fs::canonicalize(folder).map_err(|e| DetectError::unusable(folder, e))?;
    if let Some(began) = &old.working_folder {
        let gone = |e| DetectError::unusable(&folder, format!("it was begun in {}: {e}", began.display()));
        std::env::set_current_dir(began).map_err(gone)?;
    }
    let cli = crate::Cli::try_parse_from(&old.argv).map_err(|e| DetectError::unusable(&folder, e))?;
    let crate::Command::Detect(command) = cli.command else {
        return Err(DetectError::unusable(&folder, "not a comparison"));
    };
    let seed = record::parse_seed(&old.seed);
    let seed = seed.map_err(|e| DetectError::unusable(&folder, format!("seed: {e}")))?;
    if let Command::Budget(args) = command {
        return budget::resume(&args, &old.argv, seed, folder);
    }
    let mut measuring = Measuring::of(command, &old.argv)?;
    measuring.options.seed = seed;
    measuring.options.resume = Some(folder);
    measure(&measuring)
}

/// Writes and prints the report of a finished run.
fn reported(finished: &Finished) -> Result<Report, DetectError> {
    let folder = &finished.folder;
    let report = analysis::analyze(folder).map_err(DetectError::failed)?;
    let cannot = |e| DetectError::failed_at(folder, format!("cannot write the report: {e}"));
    report::write_all(folder, &report).map_err(cannot)?;
    Ok(report)
}

/// The exit code of a run that ended before its plan was complete.
fn stopped(finished: &Finished) -> Result<Option<u8>, DetectError> {
    if let Some(why) = &finished.aborted {
        return Err(DetectError::Failed(why.clone()));
    }
    if !finished.interrupted {
        return Ok(None);
    }
    let folder = finished.folder.display();
    eprintln!("interrupted; resume with: weir-bench run --resume {folder}");
    Ok(Some(130))
}

fn conclude(finished: &Finished, wanted: &Selection, gate: &Gate) -> Code {
    let report = reported(finished)?;
    out(&report::terminal(&report, io::stdout().is_terminal(), false));
    eprintln!("report: {}", finished.folder.join("report.html").display());
    if let Some(code) = stopped(finished)? {
        return Ok(code);
    }
    if let Some(note) = &report.calibration {
        let cache = wanted.cache();
        let kept = results::store_calibration(&cache, &finished.calibration_key, note)
            .map_err(|e| DetectError::failed_at(&cache, e))?;
        if let Some(kept) = kept {
            eprintln!(
                "the stored calibration has more rows and stays: {}",
                kept.sentence()
            );
        }
    } else if let Some(file) = &wanted.history {
        results::append(file, &report, &run::host_key(&report.run.host))
            .map_err(|e| DetectError::failed_at(file, e))?;
    }
    Ok(gate.code(&report))
}

pub(super) fn out(text: &str) {
    // A closed pipe (`| head`) is not an error worth a message.
    let _ = io::stdout().write_all(text.as_bytes());
}

fn print_profile(a: &ProfileArgs, argv: &[String]) -> Code {
    let options = a.arms.options(&a.wanted, argv)?;
    let (folder, text) = profile::run(&options, a.replicates.max(1))?;
    out(&text);
    eprintln!("written to {}", folder.display());
    Ok(0)
}

fn analyze(a: &AnalyzeArgs) -> Code {
    let report = analysis::analyze(&a.folder).map_err(DetectError::config)?;
    report::write_all(&a.folder, &report).map_err(|e| DetectError::failed_at(&a.folder, e))?;
    out(&report::terminal(&report, io::stdout().is_terminal(), false));
    Ok(a.gate.code(&report))
}

fn print_report(a: &ReportArgs) -> Code {
    if a.positive != Positive::Higher && a.format != Format::Md {
        return Err(DetectError::config(
            "--positive is for --format md; other formats have the sign of the measured value",
        ));
    }
    let (report, folder) = match a.from.is_dir() {
        true => (
            analysis::analyze(&a.from).map_err(DetectError::config)?,
            Some(a.from.as_path()),
        ),
        false => (read_report(&a.from)?, None),
    };
    out(&match a.format {
        Format::Md => report::markdown(&report, a.positive),
        Format::Json => report::json(&report).map_err(DetectError::failed)?,
        Format::Html => report::html(&report, folder),
        Format::Term => report::terminal(&report, io::stdout().is_terminal(), a.all),
        Format::Junit => report::junit(&report),
        Format::Prometheus => report::prometheus(&report),
        Format::Dogstatsd => report::dogstatsd(&report),
    });
    Ok(0)
}

pub(super) fn read_report(path: &Path) -> Result<Report, DetectError> {
    let text = fs::read_to_string(path).map_err(|e| DetectError::unusable(path, e))?;
    let report: Report = serde_json::from_str(&text).map_err(|e| DetectError::unusable(path, e))?;
    if report.schema == analysis::SCHEMA {
        return Ok(report);
    }
    let (found, known) = (&report.schema, analysis::SCHEMA);
    let what = format!("schema {found:?}, this program reads {known:?}");
    Err(DetectError::unusable(path, what))
}

fn show(a: &ShowArgs) -> Code {
    let library = Library::open(a.library.as_deref())?;
    let targets = Targets::of(&library, a.targets.as_deref())?;
    let Some(name) = &a.experiment else {
        out(&listing(&library, &targets)?);
        return Ok(0);
    };
    let found = library.select(std::slice::from_ref(name))?.into_iter().next();
    let case = found.ok_or_else(|| ConfigError(format!("no {name}")))?;
    let layer = match &a.like {
        Some(target) => {
            let overlay = targets.like(target)?.map(|d| d.overlay.clone());
            resolved_layer(&case, &overlay.unwrap_or_default())
        }
        None => case.layer,
    };
    out(&serde_saphyr::to_string(&layer).map_err(|error| ConfigError(error.to_string()))?);
    Ok(0)
}

fn listing(library: &Library, targets: &Targets) -> Result<String, DetectError> {
    let mut text = format!("experiments of {}\n", library.name);
    for case in library.cases()? {
        let description = case.layer.description.text().unwrap_or_default();
        text.push_str(&format!("  {:<44} {description}\n", case.name));
    }
    text.push_str("\nsuites\n");
    for suite in library.suites() {
        let experiments = library.suite(suite)?.join(" ");
        text.push_str(&format!("  {suite:<44} {experiments}\n"));
    }
    text.push_str("\ntargets\n");
    for d in targets.all() {
        let found = d.locate();
        let found = found.map_or("not found here".to_owned(), |p| p.display().to_string());
        text.push_str(&format!("  {:<44} {} ({found})\n", d.name, d.description));
    }
    Ok(text)
}

fn import_smp(a: &ImportArgs) -> Code {
    let (name, notes) = smp::import(&a.from, &a.library)?;
    out(&format!("{name}\n"));
    for note in notes {
        eprintln!("{note}");
    }
    Ok(0)
}
