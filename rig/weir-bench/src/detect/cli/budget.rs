//! `weir-bench budget`: weir's CPU per message against the floor's, for every row of the project's budget.
//!
//! Runs the suite `budget` with the floor as baseline like every comparison; only the table is specific.

use super::{Code, reported, stopped};
use crate::detect::analysis::{Report, Row};
use crate::detect::goal::Goal;
use crate::detect::library::Library;
use crate::detect::record::{Budget, ExperimentInfo};
use crate::detect::run::{self, DetectError, Options, Selection};
use crate::detect::targets;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use weir_regress::describe::quantile;

/// The suite, its row with a rate, and the entry of targets.yaml that starts weir.
const SUITE: &str = "budget";
const PACED: &str = "budget-paced";
const LIKE: &str = "weir-receiving";

/// Measures weir's CPU per message as a multiple of the floor's, row by row, and prints a table.
///
/// Exit code 1 when a run was not valid: a datagram not delivered, books that do not balance, a process that failed. No
/// figure is printed for such a row.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Runs per row, of floor and agent each.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    runs: u32,
    /// Only these rows, repeatable.
    #[arg(long, value_name = "EXPERIMENT")]
    row: Vec<String>,
    /// Messages per run of rows at full speed.
    #[arg(long)]
    messages: Option<u64>,
    /// Messages per run of the paced row.
    #[arg(long)]
    paced_messages: Option<u64>,
    /// The agent's executable [default: beside this program].
    #[arg(long, value_name = "FILE")]
    weir: Option<PathBuf>,
    /// CPU of the receiver.
    #[arg(long, default_value_t = 0)]
    target_cpu: usize,
    /// CPU of the sender.
    #[arg(long, default_value_t = 1)]
    sender_cpu: usize,
    /// Seed of the payload and the order of runs [default: random].
    #[arg(long)]
    seed: Option<u64>,
    /// Folder with the experiments [default: the built-in ones and experiments/ here].
    #[arg(long, value_name = "FOLDER")]
    library: Option<PathBuf>,
    /// Directory of stored runs.
    #[arg(long, default_value = "results", value_name = "FOLDER")]
    results: PathBuf,
    /// Write the summary of every row to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: &Args, argv: &[String]) -> Code {
    measure(args, &options(args, argv)?)
}

/// Resumes an interrupted run.
pub fn resume(args: &Args, argv: &[String], seed: u64, folder: PathBuf) -> Code {
    let options = Options {
        seed,
        resume: Some(folder),
        ..options(args, argv)?
    };
    measure(args, &options)
}

fn options(args: &Args, argv: &[String]) -> Result<Options, DetectError> {
    let weir = match &args.weir {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .map_err(DetectError::failed)?
            .with_file_name("weir"),
    };
    if !weir.is_file() {
        let path = weir.display();
        let what = format!("no agent at {path}; build it, or say where it is with --weir");
        return Err(DetectError::Config(what));
    }
    let comparison = format!("bin:{}", weir.display());
    Options::new(&args.wanted()?, ["target:floor", &comparison], argv)
}

fn measure(args: &Args, options: &Options) -> Code {
    let Some(finished) = run::execute(options)? else {
        return Ok(0);
    };
    let report = reported(&finished)?;
    let rows: Vec<TableLine> = args
        .rows()?
        .iter()
        .filter_map(|name| TableLine::of(&report, name))
        .collect();
    super::out(&table(&report, &rows, args));
    if let Some(path) = &args.json {
        write(path, &report, &rows)?;
    }
    eprintln!("report: {}", finished.folder.join("report.html").display());
    if let Some(code) = stopped(&finished)? {
        return Ok(code);
    }
    Ok(u8::from(rows.iter().any(|line| line.figures.is_none())))
}

impl Args {
    /// The rows asked for, in the order of the suite.
    fn rows(&self) -> Result<Vec<String>, DetectError> {
        let mut rows = Library::open(self.library.as_deref())?.suite(SUITE)?;
        if let Some(unknown) = self.row.iter().find(|row| !rows.contains(row)) {
            let known = rows.join(", ");
            return Err(DetectError::Config(format!("--row {unknown}: known are {known}")));
        }
        rows.retain(|row| self.row.is_empty() || self.row.contains(row));
        Ok(rows)
    }

    fn wanted(&self) -> Result<Selection, DetectError> {
        use clap::FromArgMatches;
        let mut flags = vec![
            "budget".to_owned(),
            "--accept-busy".into(),
            "--allow-profile-mismatch".into(),
        ];
        let mut flag = |name: &str, value: String| flags.extend([format!("--{name}"), value]);
        flag("as", LIKE.to_owned());
        if let Some(library) = &self.library {
            flag("library", library.display().to_string());
        }
        flag("results", self.results.display().to_string());
        flag("pairs", self.runs.to_string());
        flag("set", format!("target.cpus=[{}]", self.target_cpu));
        flag("set", format!("load.0.cpus=[{}]", self.sender_cpu));
        for (name, messages) in [("*", self.messages), (PACED, self.paced_messages)] {
            if let Some(messages) = messages {
                flag("set", format!("{name}:measure.messages={messages}"));
            }
        }
        if let Some(seed) = self.seed {
            flag("seed", seed.to_string());
        }
        flags.extend(self.rows()?);
        let command = <Selection as clap::Args>::augment_args(clap::Command::new("budget"));
        let matches = command.try_get_matches_from(flags).map_err(DetectError::config)?;
        Selection::from_arg_matches(&matches).map_err(DetectError::config)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Spread {
        Spread {
            median: quantile(values, 0.5),
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// A line of the table.
struct TableLine<'a> {
    info: &'a ExperimentInfo,
    budget: Budget,
    figures: Option<Figures>,
    /// Why there are no figures.
    reason: &'a str,
}

/// Both programs, the floor first.
struct Figures {
    ratio: Spread,
    ns_per_message: [Spread; 2],
    messages_per_s: [f64; 2],
}

impl<'a> TableLine<'a> {
    fn of(report: &'a Report, name: &str) -> Option<TableLine<'a>> {
        let info = report.run.experiments.iter().find(|e| e.name == name)?;
        let row = report.rows.iter().find(|r| r.experiment == name)?;
        let rates = |r: &&Row| r.experiment == name && r.goal == Goal::IngressMessages;
        Some(TableLine {
            info,
            budget: info.budget?,
            figures: Figures::of(row, report.dimensions.iter().find(rates)),
            reason: row.reason.as_deref().unwrap_or("not measured"),
        })
    }

    fn text(&self) -> String {
        let about = &self.info.description;
        match &self.figures {
            None => format!("{about:<38} not valid: {}\n", self.reason),
            Some(f) => format!(
                "{about:<38} {:>20} {:>10.1} {:>10.1} {:>10.2}M {:>10.2}M {:>5}x {:>5}x\n",
                format!("{:.2} ({:.2}-{:.2})", f.ratio.median, f.ratio.least, f.ratio.most),
                f.ns_per_message[0].median,
                f.ns_per_message[1].median,
                f.messages_per_s[0] / 1e6,
                f.messages_per_s[1] / 1e6,
                self.budget.must,
                self.budget.should
            ),
        }
    }

    fn json(&self, report: &Report) -> Value {
        let mut line = json!({"profile": self.info.name, "about": self.info.description,
            "must": self.budget.must, "should": self.budget.should});
        match &self.figures {
            None => line["invalid"] = self.reason.into(),
            Some(f) => {
                let [floor, weir] = f.ns_per_message;
                line["ratio"] = json!(f.ratio);
                line["floor_ns_per_message"] = json!(floor);
                line["weir_ns_per_message"] = json!(weir);
                line["floor_messages_per_s"] = json!(f.messages_per_s[0]);
                line["weir_messages_per_s"] = json!(f.messages_per_s[1]);
            }
        }
        let row = report.rows.iter().find(|r| r.experiment == self.info.name);
        line["runs"] = json!(row.map(|r| &r.values));
        line
    }
}

impl Figures {
    fn of(row: &Row, rates: Option<&Row>) -> Option<Figures> {
        if row.values.is_empty() {
            return None;
        }
        let of = |value: fn(&crate::detect::analysis::PairValues) -> f64| {
            let values: Vec<f64> = row.values.iter().map(value).collect();
            Spread::of(&values)
        };
        let rate = |arm: fn(&Row) -> Option<f64>| rates.and_then(arm).unwrap_or(f64::NAN);
        Some(Figures {
            ratio: of(|v| v.comparison / v.baseline),
            ns_per_message: [of(|v| v.baseline), of(|v| v.comparison)],
            messages_per_s: [rate(|r| r.baseline.mean), rate(|r| r.comparison.mean)],
        })
    }
}

fn commit() -> Option<String> {
    let commit = targets::git(&["rev-parse", "--short=12", "HEAD"], None).ok()?;
    let changed = targets::git(&["status", "--porcelain", "--untracked-files=no"], None).ok()?;
    Some(if changed.is_empty() {
        commit
    } else {
        commit + " with changes"
    })
}

fn table(report: &Report, lines: &[TableLine], args: &Args) -> String {
    let mut text = format!("machine {}\n", json!(report.run.host));
    let commit = commit().unwrap_or_else(|| "unknown".to_owned());
    text.push_str(&format!(
        "commit {commit}, seed {}, {} pairs per row\n",
        report.run.seed, args.runs
    ));
    if args.target_cpu == args.sender_cpu {
        let cpu = args.target_cpu;
        text.push_str(&format!(
            "receiver and sender share CPU {cpu}: the ratios are of little use\n"
        ));
    }
    text.push_str(&format!(
        "{:<38} {:>20} {:>10} {:>10} {:>11} {:>11} {:>6} {:>6}\n",
        "workload", "ratio (spread)", "floor ns", "weir ns", "floor msg/s", "weir msg/s", "must", "should"
    ));
    text.extend(lines.iter().map(TableLine::text));
    text
}

fn write(path: &Path, report: &Report, lines: &[TableLine]) -> Result<(), DetectError> {
    let rows: Vec<Value> = lines.iter().map(|line| line.json(report)).collect();
    let summary = json!({"machine": report.run.host, "commit": commit(), "seed": report.run.seed,
        "run": report.run.id, "rows": rows});
    std::fs::write(path, format!("{summary:#}\n")).map_err(|e| DetectError::failed_at(path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_odd_and_even() {
        let spread_of = |values: &[f64]| {
            let spread = Spread::of(values);
            (spread.median, spread.least, spread.most)
        };
        assert_eq!(spread_of(&[3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
        assert_eq!(spread_of(&[4.0, 1.0, 2.0, 3.0]), (2.5, 1.0, 4.0));
    }
}
