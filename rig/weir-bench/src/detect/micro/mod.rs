//! Judges results of other programs' micro-benchmarks by the same statistics as a comparison: one number per run of a process, in pairs.

mod read;

use super::report::Table;
use super::run::DetectError;
use clap::ValueEnum;
use read::{Runs, Series};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use weir_regress::estimate::{paired_difference, paired_log_ratio};
use weir_regress::verdict::benjamini_hochberg;
use weir_regress::verdict::{judge, spread, threshold};
use weir_regress::{Direction, Estimate, Rule, Scale, Verdict, describe};

/// Where the numbers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// Output of `go test -bench`.
    Go,
    /// A folder target/criterion of criterion.
    Criterion,
    /// A file of `hyperfine --export-json`.
    Hyperfine,
}

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The program that wrote the results.
    #[arg(long, value_enum)]
    from: Source,
    /// Results of the baseline, in the order of the runs.
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    baseline: Vec<PathBuf>,
    /// Results of the comparison; the k-th run of each side is a pair.
    #[arg(long, required = true, num_args = 1.., value_name = "PATH")]
    comparison: Vec<PathBuf>,
    /// Go: every line of `-count` is a run, though all are of one process. Intervals are then too narrow.
    #[arg(long)]
    lines_as_runs: bool,
    /// Smallest relevant change, in percent.
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    effect: f64,
    /// Confidence level of the intervals, in percent.
    #[arg(long, default_value_t = 90.0, value_name = "PERCENT")]
    confidence: f64,
    /// Count a regression only if it remains after the correction for the number of rows (q < 0.1).
    #[arg(long)]
    strict: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One benchmark and unit.
#[derive(Debug, Serialize)]
struct Line {
    benchmark: String,
    unit: String,
    baseline: f64,
    comparison: f64,
    pairs: usize,
    verdict: &'static str,
    /// Percent, or in the unit where a value is zero.
    scale: &'static str,
    delta: f64,
    low: f64,
    high: f64,
    p: f64,
    q: f64,
    mde: f64,
}

/// Prints the table; the exit code is 1 after a regression, and 3 without any row.
pub fn run(a: &Args) -> Result<u8, DetectError> {
    if !(0.0..100.0).contains(&a.effect) || !(50.0..100.0).contains(&a.confidence) {
        let what = "--effect is a percentage from 0 to 100, --confidence one from 50 to below 100";
        return Err(DetectError::config(what));
    }
    let rule = Rule {
        effect: a.effect / 100.0,
        confidence: a.confidence / 100.0,
        ..Rule::default()
    };
    let runs = |paths: &[PathBuf]| read::all(a.from, paths, a.lines_as_runs).map_err(DetectError::config);
    let (lines, notes) = compare(&runs(&a.baseline)?, &runs(&a.comparison)?, &rule);
    if a.json {
        let text = serde_json::to_string_pretty(&lines).map_err(DetectError::failed)?;
        super::cli::out(&(text + "\n"));
    } else {
        super::cli::out(&table(&lines));
    }
    notes.iter().for_each(|note| eprintln!("note: {note}"));
    let is_regression = |l: &Line| l.verdict == Verdict::Regression.name() && (!a.strict || l.q < 0.1);
    Ok(match lines.is_empty() {
        true => 3,
        false => u8::from(lines.iter().any(is_regression)),
    })
}

/// A row for every benchmark with two pairs or more, and why others have none.
fn compare(baseline: &Runs, comparison: &Runs, rule: &Rule) -> (Vec<Line>, Vec<String>) {
    let (mut lines, mut notes) = (Vec::new(), Vec::new());
    let names: std::collections::BTreeSet<&Series> = baseline.keys().chain(comparison.keys()).collect();
    for series in names {
        let name = format!("{}, {}", series.benchmark, series.unit);
        let (Some(b), Some(c)) = (baseline.get(series), comparison.get(series)) else {
            let side = if baseline.contains_key(series) {
                "baseline"
            } else {
                "comparison"
            };
            notes.push(format!("{name}: only in the {side}"));
            continue;
        };
        let pairs = b.len().min(c.len());
        if b.len() != c.len() {
            notes.push(format!(
                "{name}: {} runs against {}, so {pairs} pairs",
                b.len(),
                c.len()
            ));
        }
        match line(series, &b[..pairs], &c[..pairs], rule) {
            Ok(line) => lines.push(line),
            Err(why) => notes.push(format!(
                "{name}: {why}: run both programs again, in turn; five pairs are the least that reach 90 % confidence"
            )),
        }
    }
    let mut by_unit: BTreeMap<String, Vec<&mut Line>> = BTreeMap::new();
    for line in &mut lines {
        by_unit.entry(line.unit.clone()).or_default().push(line);
    }
    for family in by_unit.into_values() {
        let p: Vec<f64> = family.iter().map(|line| line.p).collect();
        for (line, q) in family.into_iter().zip(benjamini_hochberg(&p)) {
            line.q = q;
        }
    }
    lines.sort_by(|a, b| b.delta.total_cmp(&a.delta));
    (lines, notes)
}

fn line(series: &Series, b: &[f64], c: &[f64], rule: &Rule) -> Result<Line, weir_regress::EstimateError> {
    // A count of allocations may be zero, and has no ratio then.
    let is_ratio = b.iter().chain(c).all(|v| *v > 0.0);
    let (estimate, spread) = match is_ratio {
        true => (paired_log_ratio(b, c, rule.confidence)?, spread(b, c, rule)),
        false => (paired_difference(b, c, rule.confidence)?, Default::default()),
    };
    let Estimate {
        delta,
        low,
        high,
        p,
        mde,
        ..
    } = estimate;
    let verdict = judge(
        &estimate,
        threshold(&estimate, b, rule),
        &spread,
        direction(&series.unit),
    );
    Ok(Line {
        benchmark: series.benchmark.clone(),
        unit: series.unit.clone(),
        baseline: describe::mean(b),
        comparison: describe::mean(c),
        pairs: b.len(),
        verdict: verdict.name(),
        scale: match estimate.scale {
            Scale::Percent => "percent",
            Scale::Absolute => "absolute",
        },
        delta,
        low,
        high,
        p,
        q: 1.0,
        mde,
    })
}

/// Rates should rise; times, bytes and counts per operation should fall. A unit of the user's own is not judged.
fn direction(unit: &str) -> Direction {
    match unit {
        _ if unit.ends_with("/s") => Direction::HigherIsBetter,
        "s" | "ns" => Direction::LowerIsBetter,
        _ if unit.ends_with("/op") => Direction::LowerIsBetter,
        _ => Direction::Undeclared,
    }
}

fn table(lines: &[Line]) -> String {
    let head = [
        "benchmark",
        "unit",
        "baseline",
        "comparison",
        "Δ %",
        "CI",
        "q",
        "pairs",
        "MDE",
        "verdict",
    ];
    let mut table = Table::new(head);
    for l in lines {
        // A difference has the unit of the row, not percent.
        let unit = if l.scale == "percent" {
            String::new()
        } else {
            format!(" {}", l.unit)
        };
        let perf = match l.verdict {
            "improvement" => "better",
            "regression" => "worse",
            "equivalent" => "none",
            _ => "unknown",
        };
        let cells = [
            l.benchmark.clone(),
            l.unit.clone(),
            number(l.baseline),
            number(l.comparison),
            format!("{:+.2}{unit}", l.delta),
            format!("[{:+.2}, {:+.2}]", l.low, l.high),
            format!("{:.3}", l.q),
            l.pairs.to_string(),
            format!("{:.2}{unit}", l.mde),
            l.verdict.to_owned(),
        ];
        table.row(cells, perf);
    }
    let mut text = String::new();
    table.write(&mut text, false);
    text
}

/// Four significant digits.
fn number(v: f64) -> String {
    let digits = if v == 0.0 {
        0.0
    } else {
        3.0 - v.abs().log10().floor()
    };
    format!("{v:.0$}", digits.clamp(0.0, 9.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(unit: &str, values: &[f64]) -> Runs {
        let series = Series {
            benchmark: "b".to_owned(),
            unit: unit.to_owned(),
        };
        Runs::from([(series, values.to_vec())])
    }

    fn verdict(unit: &str, b: &[f64], c: &[f64]) -> &'static str {
        let (lines, _) = compare(&runs(unit, b), &runs(unit, c), &Rule::default());
        lines[0].verdict
    }

    const CALM: [f64; 6] = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0];

    #[test]
    fn a_change_is_judged_by_the_direction_of_its_unit() {
        let more = CALM.map(|v| v * 1.1 + 0.3);
        assert_eq!(verdict("ns/op", &CALM, &more), "regression");
        assert_eq!(verdict("MB/s", &CALM, &more), "improvement");
        assert_eq!(verdict("lookups", &CALM, &more), "changed");
        assert_eq!(verdict("s", &CALM, &CALM.map(|v| v * 1.01)), "equivalent");
        let wild = [60.0, 160.0, 90.0, 130.0, 70.0, 140.0];
        assert_eq!(verdict("s", &CALM, &wild), "erratic");
    }

    #[test]
    fn counts_that_are_zero_have_differences() {
        assert_eq!(verdict("allocs/op", &[0.0; 5], &[1.0; 5]), "regression");
        assert_eq!(verdict("allocs/op", &[0.0; 5], &[0.0; 5]), "equivalent");
        assert_eq!(verdict("allocs/op", &[2.0; 5], &[0.0; 5]), "improvement");
    }

    #[test]
    fn missing_partners_and_too_few_runs_are_said() {
        let (lines, notes) = compare(&runs("s", &CALM), &runs("s", &CALM[..1]), &Rule::default());
        assert!(lines.is_empty());
        assert!(
            notes[0].contains("6 runs against 1") && notes[1].contains("fewer than two pairs"),
            "{notes:?}"
        );
        let (_, notes) = compare(&runs("s", &CALM), &runs("ns", &CALM), &Rule::default());
        assert_eq!(
            notes,
            ["b, ns: only in the comparison", "b, s: only in the baseline"]
        );
    }

    #[test]
    fn numbers_have_four_digits() {
        for (v, text) in [
            (0.0, "0"),
            (1234.5, "1234"),
            (0.012345, "0.01235"),
            (99.994, "99.99"),
        ] {
            assert_eq!(number(v), text);
        }
    }
}
