//! The same tables for a terminal.

use super::{confidence, delta, goal_title, interval, limit_text, mde, series_value, value, verdict_title};
use crate::detect::analysis::Report;
use std::fmt::Write as _;

pub fn terminal(r: &Report, colour: bool, all: bool) -> String {
    let mut o = String::new();
    let paint = |text: String, perf: &str| {
        let code = match perf {
            "better" => "32",
            "worse" => "31",
            "none" => "2",
            _ => "33",
        };
        if colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text
        }
    };
    let _ = writeln!(o, "baseline    {}", r.run.baseline.title());
    let _ = writeln!(o, "comparison  {}", r.run.comparison.title());
    let _ = writeln!(
        o,
        "pairs       {} done, {} discarded",
        r.pairs_done, r.pairs_discarded
    );
    for (reason, n) in &r.discarded {
        let _ = writeln!(o, "            {n} x {reason}");
    }
    if r.run.busy_accepted {
        let _ = writeln!(
            o,
            "machine     allowed to be busy: intervals are wider than on a quiet one"
        );
    }
    if let Some(c) = r.calibration.as_ref().or(r.run.calibration.as_ref()) {
        let _ = writeln!(o, "calibration {}", c.sentence());
    }
    o.push('\n');
    let mut rows = vec![
        [
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
        ]
        .map(str::to_owned),
    ];
    let mut perf = vec![String::new()];
    for row in &r.rows {
        let (d, i, c, m) = match &row.change {
            Some(c) => (delta(row, c), interval(row, c), confidence(c), mde(row, c)),
            None => Default::default(),
        };
        let mut verdict = verdict_title(row);
        if let Some(reason) = &row.reason {
            let _ = write!(verdict, ": {reason}");
        }
        rows.push([
            row.experiment.clone(),
            goal_title(row),
            value(row, row.baseline.mean),
            value(row, row.comparison.mean),
            d,
            i,
            c,
            row.pairs.to_string(),
            m,
            verdict,
        ]);
        perf.push(row.perf.clone());
    }
    columns(
        &mut o,
        &rows,
        |i, line| if i == 0 { line } else { paint(line, &perf[i]) },
    );
    if !r.checks.is_empty() {
        o.push('\n');
        let mut rows = vec![["check", "arm", "passed", "worst", "limit"].map(str::to_owned)];
        let mut perf = vec![""];
        for c in &r.checks {
            rows.push([
                format!("{} {}", c.experiment, c.check),
                c.arm.clone(),
                format!("{}/{}", c.passed, c.of),
                c.worst.map_or("n/a".to_owned(), |v| series_value(&c.series, v)),
                limit_text(c),
            ]);
            perf.push(if c.ok() { "none" } else { "worse" });
        }
        columns(
            &mut o,
            &rows,
            |i, line| if i == 0 { line } else { paint(line, perf[i]) },
        );
    }
    let shown: Vec<_> = r
        .dimensions
        .iter()
        .filter(|d| all || ["regression", "improvement", "changed"].contains(&d.verdict.as_str()))
        .collect();
    if !shown.is_empty() {
        let _ = writeln!(o, "\nother dimensions{}", if all { "" } else { " that changed" });
        let mut rows = vec![
            [
                "experiment",
                "dimension",
                "baseline",
                "comparison",
                "Δ %",
                "CI",
                "q",
            ]
            .map(str::to_owned),
        ];
        let mut perf = vec![String::new()];
        for row in shown {
            let (d, i, q) = match &row.change {
                Some(c) => (delta(row, c), interval(row, c), format!("{:.3}", c.q)),
                None => Default::default(),
            };
            rows.push([
                row.experiment.clone(),
                row.goal.title().to_owned(),
                value(row, row.baseline.mean),
                value(row, row.comparison.mean),
                d,
                i,
                q,
            ]);
            perf.push(row.perf.clone());
        }
        columns(
            &mut o,
            &rows,
            |i, line| if i == 0 { line } else { paint(line, &perf[i]) },
        );
    }
    for note in &r.notes {
        let _ = writeln!(o, "note: {note}");
    }
    o
}

fn columns<const N: usize>(o: &mut String, rows: &[[String; N]], paint: impl Fn(usize, String) -> String) {
    let width = |c: usize| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for (i, row) in rows.iter().enumerate() {
        let line: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(c, cell)| format!("{cell}{}", " ".repeat(widths[c] - cell.chars().count())))
            .collect();
        let _ = writeln!(o, "{}", paint(i, line.join("  ").trim_end().to_owned()));
    }
}
