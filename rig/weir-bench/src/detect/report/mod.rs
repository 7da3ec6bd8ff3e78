//! Printing a report: Markdown, JSON, terminal, HTML, JUnit, metrics.

mod html;
mod junit;
mod markdown;
mod metrics;
pub mod svg;
mod terminal;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use weir_regress::Direction;
use weir_rig_base::clock::civil;

use super::analysis::{Change, CheckRow, Report, Row, UNCONFIRMED, UNPROVEN, by_change, show_change};
use super::capture::{Capture, Phase, Point};

pub use html::{CSS, html};
pub use junit::{escape, junit};
pub use markdown::markdown;
pub use metrics::{dogstatsd, prometheus};
pub use terminal::{Table, terminal};

/// `20261121T093000` from seconds since 1970.
pub fn stamp(unix: u64) -> String {
    let (year, month, day, hour, minute, second) = civil(unix);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}")
}

/// `2026-11-21 09:30 UTC`.
pub fn date(unix: u64) -> String {
    let (year, month, day, hour, minute, _) = civil(unix);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

pub fn mark(row: &Row) -> &'static str {
    match row.perf.as_str() {
        "better" => "✅",
        "worse" => "❌",
        "none" => "➖",
        _ => "❔",
    }
}

/// Rows worth attention.
pub fn is_interesting(row: &Row) -> bool {
    row.is_change() || row.newly_erratic || [UNPROVEN, UNCONFIRMED].contains(&row.verdict.as_str())
}

pub fn goal_title(row: &Row) -> String {
    match row.saturated {
        // The experiment's goal is throughput, but at a fixed rate that is a constant of the generator.
        Some(_) => format!("{} (saturated-goal)", row.goal.title()),
        None => row.goal.title().to_owned(),
    }
}

pub fn verdict_title(row: &Row) -> String {
    let mut text = match row.verdict.as_str() {
        UNPROVEN => "delivery not proven".to_owned(),
        UNCONFIRMED => "regression, not confirmed".to_owned(),
        "regression" if row.confirmation.is_some() => "regression, confirmed".to_owned(),
        verdict if row.unproven => format!("{verdict}, delivery not proven"),
        verdict => verdict.to_owned(),
    };
    if row.newly_erratic && row.verdict != "erratic" {
        text.push_str(", newly erratic");
    } else if row.newly_erratic {
        text = "newly erratic".to_owned();
    }
    if let Some(second) = &row.confirmation {
        let change = second.change.as_ref().map_or(String::new(), |c| {
            format!(" {} {}", delta(row, c), interval(row, c))
        });
        text.push_str(&format!(" (second measurement:{change}, {})", second.verdict));
    }
    if row.disturbed > 0 {
        text.push_str(&format!(
            " (machine busy in {} of {} pairs)",
            row.disturbed, row.pairs
        ));
    }
    if row.declared_erratic {
        text.push_str(" (declared erratic)");
    }
    text
}

/// A row in the form for all formats; missing estimates are empty.
#[derive(Default)]
struct Cells {
    baseline: String,
    comparison: String,
    delta: String,
    interval: String,
    confidence: String,
    q: String,
    mde: String,
    /// With its reason, if any.
    verdict: String,
}

impl Cells {
    fn of(row: &Row) -> Cells {
        let mut verdict = verdict_title(row);
        if let Some(reason) = &row.reason {
            verdict.push_str(&format!(": {reason}"));
        }
        let cells = Cells {
            baseline: value(row, row.baseline.mean),
            comparison: value(row, row.comparison.mean),
            verdict,
            ..Cells::default()
        };
        match &row.change {
            None => cells,
            Some(c) => Cells {
                delta: delta(row, c),
                interval: interval(row, c),
                confidence: confidence(c),
                q: format!("{:.3}", c.q),
                mde: mde(row, c),
                ..cells
            },
        }
    }
}

fn delta(row: &Row, c: &Change) -> String {
    show_change(row.goal.unit(), &c.scale, c.delta)
}

fn interval(row: &Row, c: &Change) -> String {
    let u = row.goal.unit();
    format!(
        "[{}, {}]",
        show_change(u, &c.scale, c.low),
        show_change(u, &c.scale, c.high)
    )
}

fn mde(row: &Row, c: &Change) -> String {
    if c.scale == "percent" {
        format!("{:.2}", c.mde)
    } else {
        show_change(row.goal.unit(), &c.scale, c.mde)
            .trim_start_matches('+')
            .to_owned()
    }
}

/// A number with its sign and two digits.
pub fn signed(v: f64) -> String {
    if v.abs() >= 100.0 {
        format!("{v:+.0}")
    } else {
        format!("{v:+.2}")
    }
}

/// Rounding to 100 % would hide that a p-value is never zero.
fn confidence(c: &Change) -> String {
    if c.confidence > 99.995 {
        ">99.99%".to_owned()
    } else {
        format!("{:.2}%", c.confidence)
    }
}

fn limit_text(c: &CheckRow) -> String {
    let mut parts = Vec::new();
    if let Some(v) = c.upper {
        parts.push(format!("≤ {}", series_value(&c.series, v)));
    }
    if let Some(v) = c.lower {
        parts.push(format!("≥ {}", series_value(&c.series, v)));
    }
    parts.join(", ")
}

fn series_value(series: &str, v: f64) -> String {
    use super::goal::Unit;
    if series.ends_with("_bytes") {
        Unit::Bytes.show(v)
    } else if series.ends_with("_share") {
        Unit::Share.show(v)
    } else if series == "cpu_millicores" {
        Unit::Millicores.show(v)
    } else {
        format!("{v:.0}")
    }
}

fn value(row: &Row, v: Option<f64>) -> String {
    v.map_or("n/a".to_owned(), |v| row.goal.unit().show(v))
}

/// The explanatory texts, shared by all formats.
struct Words {
    confidence: String,
    effect: String,
    accident: String,
    double: String,
}

impl Words {
    fn of(r: &Report) -> Self {
        Self {
            confidence: format!("{:.2}%", 100.0 * r.run.confidence),
            effect: format!("{:.2}%", 100.0 * r.run.effect),
            accident: format!("{:.2}%", 100.0 * (1.0 - r.run.confidence)),
            double: format!("{:.0}%", 160.0 * r.run.effect),
        }
    }
}

/// Writes report.md, report.json, report.html and plots/*.svg into the run's folder.
pub fn write_all(folder: &Path, report: &Report) -> io::Result<()> {
    fs::write(folder.join("report.md"), markdown(report, Positive::Higher))?;
    fs::write(folder.join("report.json"), json(report)?)?;
    fs::write(folder.join("report.html"), html(report, Some(folder)))?;
    let plots = folder.join("plots");
    fs::create_dir_all(&plots)?;
    fs::write(plots.join("forest.svg"), svg::standalone(&svg::forest(report)))?;
    for row in report.rows.iter().filter(|row| row.change.is_some()) {
        let file = format!("{}.svg", file_name(&row.experiment));
        fs::write(plots.join(file), svg::standalone(&svg::pairs(row)))?;
    }
    Ok(())
}

/// A name without characters that are special to a file system.
pub fn file_name(name: &str) -> String {
    name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_', "_")
}

pub fn json(report: &Report) -> io::Result<String> {
    let mut text = serde_json::to_string_pretty(report).map_err(io::Error::other)?;
    text.push('\n');
    Ok(text)
}

/// Traces of one arm: for each run the points (seconds since the window began, value) of a series.
fn traces(folders: &[PathBuf], series: &str, rate: bool) -> Vec<svg::Trace> {
    let captures = folders.iter().filter_map(|folder| Capture::read(folder).ok());
    captures
        .map(|c| trace(c.series("target", series), rate))
        .collect()
}

fn trace(points: &[Point], rate: bool) -> svg::Trace {
    let measured = points.iter().find(|p| p.phase == Phase::Measure);
    let zero = measured.map_or(0.0, Point::seconds);
    if !rate {
        return points
            .iter()
            .map(|p| (p.seconds() - zero, p.v, p.phase))
            .collect();
    }
    let between = |w: &[Point]| {
        let seconds = (w[1].t - w[0].t) as f64 / 1e9;
        (w[1].seconds() - zero, (w[1].v - w[0].v) / seconds, w[1].phase)
    };
    let pairs = points.windows(2).filter(|w| w[1].t > w[0].t);
    pairs.map(between).collect()
}

/// Whole seconds without a unit are unambiguous in our own output.
pub fn show_duration(d: Duration) -> String {
    let s = d.as_secs_f64();
    if s < 1.0 {
        format!("{}ms", d.as_millis())
    } else if s < 120.0 {
        let text = format!("{s:.1}");
        format!("{}s", text.trim_end_matches(".0"))
    } else if s < 7200.0 {
        format!("{:.0}m", s / 60.0)
    } else {
        format!("{}h{:02}m", d.as_secs() / 3600, d.as_secs() % 3600 / 60)
    }
}

/// The sign of a change in reports for readers. Stored reports always have the sign of the measured value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Positive {
    /// The measured value rose.
    Higher,
    /// The comparison is better, as in Datadog's Regression Detector; without a declared direction, the value rose.
    Better,
}

impl Positive {
    /// For the reader of a report.
    pub fn sentence(self) -> &'static str {
        match self {
            Positive::Higher => {
                "Positive values mean that the measured value rose. Whether that is good depends on the goal, so the first column says it"
            }
            Positive::Better => {
                "Negative values mean that the baseline is better, positive values that the comparison is: it is faster, or needs less. \
                 Where less is better, as of CPU time and memory, 3% more is therefore -3%. The first column says the same"
            }
        }
    }

    /// The report in this convention.
    pub fn applied(self, report: &Report) -> Report {
        let mut report = report.clone();
        if self == Positive::Better {
            let run = report.run.clone();
            for row in report.rows.iter_mut().chain(&mut report.dimensions) {
                if run.direction_of(&row.experiment, row.goal) == Direction::LowerIsBetter {
                    turn(row);
                }
            }
            report.rows.sort_by(by_change);
        }
        report
    }
}

fn turn(row: &mut Row) {
    if let Some(change) = &mut row.change {
        (change.low, change.high) = (-change.high, -change.low);
        change.delta = -change.delta;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(stamp(0), "19700101T000000");
        assert_eq!(stamp(951_782_400), "20000229T000000");
        assert_eq!(&stamp(1_700_000_000), "20231114T221320");
    }
}
