//! The same tables for a terminal.

use super::{Cells, goal_title, limit_text, series_value};
use crate::detect::analysis::Report;
use std::fmt::Write as _;

pub fn terminal(r: &Report, colour: bool, all: bool) -> String {
    let mut o = String::new();
    head(&mut o, r);
    rows(&mut o, r, colour);
    checks(&mut o, r, colour);
    dimensions(&mut o, r, colour, all);
    for note in &r.notes {
        let _ = writeln!(o, "note: {note}");
    }
    o
}

fn head(o: &mut String, r: &Report) {
    let mut line = |title: &str, text: String| {
        let _ = writeln!(o, "{title:<12}{text}");
    };
    line("baseline", r.run.baseline.title());
    line("comparison", r.run.comparison.title());
    let pairs = format!("{} done, {} discarded", r.pairs_done, r.pairs_discarded);
    line("pairs", pairs);
    for (reason, n) in &r.discarded {
        line("", format!("{n} x {reason}"));
    }
    if r.run.busy_accepted {
        let text = "allowed to be busy: intervals are wider than on a quiet one";
        line("machine", text.to_owned());
    }
    if let Some(c) = r.calibration.as_ref().or(r.run.calibration.as_ref()) {
        line("calibration", c.sentence());
    }
    o.push('\n');
}

fn rows(o: &mut String, r: &Report, colour: bool) {
    let mut table = Table::new([
        "experiment",
        "goal",
        "baseline",
        "comparison",
        "Δ %",
        "CI",
        "confidence",
        "pairs",
        "MDE",
        "verdict",
    ]);
    for row in &r.rows {
        let cells = Cells::of(row);
        let cells = [
            row.experiment.clone(),
            goal_title(row),
            cells.baseline,
            cells.comparison,
            cells.delta,
            cells.interval,
            cells.confidence,
            row.pairs.to_string(),
            cells.mde,
            cells.verdict,
        ];
        table.row(cells, &row.perf);
    }
    table.write(o, colour);
}

fn checks(o: &mut String, r: &Report, colour: bool) {
    if r.checks.is_empty() {
        return;
    }
    o.push('\n');
    let mut table = Table::new(["check", "arm", "passed", "worst", "limit"]);
    for c in &r.checks {
        let cells = [
            format!("{} {}", c.experiment, c.check),
            c.arm.clone(),
            format!("{}/{}", c.passed, c.of),
            c.worst.map_or("n/a".to_owned(), |v| series_value(&c.series, v)),
            limit_text(c),
        ];
        table.row(cells, if c.ok() { "none" } else { "worse" });
    }
    table.write(o, colour);
}

fn dimensions(o: &mut String, r: &Report, colour: bool, all: bool) {
    let dimensions = r.dimensions.iter();
    let shown: Vec<_> = dimensions.filter(|d| all || d.is_change()).collect();
    if shown.is_empty() {
        return;
    }
    let _ = writeln!(o, "\nother dimensions{}", if all { "" } else { " that changed" });
    let mut table = Table::new([
        "experiment",
        "dimension",
        "baseline",
        "comparison",
        "Δ %",
        "CI",
        "q",
    ]);
    for row in shown {
        let cells = Cells::of(row);
        let cells = [
            row.experiment.clone(),
            row.goal.title().to_owned(),
            cells.baseline,
            cells.comparison,
            cells.delta,
            cells.interval,
            cells.q,
        ];
        table.row(cells, &row.perf);
    }
    table.write(o, colour);
}

/// Rows with one width per column, each with its meaning: better, worse, none or unknown.
pub struct Table<const N: usize> {
    head: [String; N],
    rows: Vec<([String; N], String)>,
}

impl<const N: usize> Table<N> {
    pub fn new(head: [&str; N]) -> Self {
        Table {
            head: head.map(str::to_owned),
            rows: Vec::new(),
        }
    }

    pub fn row(&mut self, cells: [String; N], perf: &str) {
        self.rows.push((cells, perf.to_owned()));
    }

    pub fn write(&self, o: &mut String, colour: bool) {
        let all = || {
            [&self.head]
                .into_iter()
                .chain(self.rows.iter().map(|(cells, _)| cells))
        };
        let width = |c: usize| all().map(|cells| cells[c].chars().count()).max().unwrap_or(0);
        let widths: [usize; N] = std::array::from_fn(width);
        let line = |cells: &[String; N]| {
            let padded = cells
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.chars().count())));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let _ = writeln!(o, "{}", line(&self.head));
        for (cells, perf) in &self.rows {
            let text = line(cells);
            let _ = match colour {
                true => writeln!(o, "\x1b[{}m{text}\x1b[0m", code(perf)),
                false => writeln!(o, "{text}"),
            };
        }
    }
}

fn code(perf: &str) -> &'static str {
    match perf {
        "better" => "32",
        "worse" => "31",
        "none" => "2",
        _ => "33",
    }
}
