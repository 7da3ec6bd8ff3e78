//! A self-contained HTML file: tables and plots, without scripts or external resources.

use super::junit::escape;
use super::{Cells, Words, date, goal_title, limit_text, mark, series_value, svg, traces};
use crate::detect::analysis::{CheckRow, Report, Row};
use crate::detect::goal::{Goal, Unit};
use crate::detect::record::{self, ARMS, ExperimentInfo, PairRecord};
use crate::detect::values;
use std::fmt::Write as _;
use std::path::Path;

pub const CSS: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:2rem auto;padding:0 1rem;color:#111;background:#fff}\
table{border-collapse:collapse;width:100%;font-size:13px}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #e5e7eb;white-space:nowrap}\
td.wrap{white-space:normal}.scroll{overflow-x:auto}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}h3{font-size:1rem;margin:1.2rem 0 .3rem}\
.worse{background:#fef2f2}.better{background:#f0fdf4}.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(330px,1fr));gap:.6rem}svg{width:100%;height:auto}\
.key span{display:inline-block;width:.8rem;height:.8rem;border-radius:50%;margin:0 .3rem 0 1rem;vertical-align:-1px}dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dt{color:#6b7280}dd{margin:0}\
.warn{background:#fffbeb;border-left:4px solid #b45309;padding:.4rem .8rem}code{background:#f3f4f6;padding:.1rem .3rem}\
@media(prefers-color-scheme:dark){body{background:#111;color:#e5e7eb}th,td{border-color:#374151}.worse{background:#3f1d1d}.better{background:#14321f}.warn{background:#3b2f12}code{background:#1f2937}}";

/// `folder` has the captures for the traces; without it the page contains everything else.
pub fn html(r: &Report, folder: Option<&Path>) -> String {
    let mut o = String::new();
    let title = if r.run.kind == "aa" {
        "Regression Detector Calibration (A/A)"
    } else {
        "Regression Detector Results"
    };
    let _ = write!(
        o,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>{title} {id}</title><style>{CSS}</style></head><body>\n<h1>{title}</h1>\n",
        id = escape(&r.run.id)
    );
    facts(&mut o, r);
    let w = Words::of(r);
    let _ = write!(
        o,
        "<h2>All changes</h2><p>Dots are estimates, lines their {} intervals; inside the grey band (±{}) a change does not matter. Positive means that the value went up.</p>{}",
        w.confidence,
        w.effect,
        svg::inline(&svg::forest(r), "changes of all experiments with their intervals")
    );
    o.push_str("<div class=\"scroll\"><table><thead><tr><th>perf<th>experiment<th>goal<th>baseline<th>comparison<th>Δ mean %<th>Δ mean % CI<th>confidence<th>q<th>pairs<th>MDE<th>verdict</tr></thead><tbody>");
    for row in &r.rows {
        row_html(&mut o, row);
    }
    o.push_str("</tbody></table></div>\n");
    if !r.checks.is_empty() {
        o.push_str("<h2>Bounds checks</h2><div class=\"scroll\"><table><thead><tr><th>perf<th>experiment<th>check<th>arm<th>replicates passed<th>worst<th>limit</tr></thead><tbody>");
        for c in &r.checks {
            check_html(&mut o, c);
        }
        o.push_str("</tbody></table></div>\n");
    }
    o.push_str("<h2>Experiments</h2><p class=\"key\"><span style=\"background:#6b7280\"></span>baseline<span style=\"background:#2563eb\"></span>comparison. Dots that move together from pair to pair are drift of the machine; lines that all lean one way are a change.</p>\n");
    for e in &r.run.experiments {
        experiment(&mut o, r, e, folder);
    }
    let _ = writeln!(
        o,
        "<h2>Reproduction</h2><p><code>{}</code>, seed <code>{}</code></p></body></html>",
        escape(&r.run.argv.join(" ")),
        escape(&r.run.seed)
    );
    o
}

fn check_html(o: &mut String, c: &CheckRow) {
    let (class, mark) = if c.ok() { ("", "✅") } else { ("worse", "❌") };
    let worst = c.worst.map_or("n/a".to_owned(), |v| series_value(&c.series, v));
    let _ = write!(
        o,
        "<tr class=\"{class}\"><td>{mark}<td>{}<td>{}<td>{}<td>{}/{}<td>{}<td>{}</tr>",
        escape(&c.experiment),
        escape(&c.check),
        c.arm,
        c.passed,
        c.of,
        escape(&worst),
        escape(&limit_text(c))
    );
}

fn facts(o: &mut String, r: &Report) {
    let host = |k: &str| r.run.host.get(k).cloned().unwrap_or_default();
    let mut rows = vec![
        ("run", r.run.id.clone()),
        ("baseline", r.run.baseline.title()),
        ("comparison", r.run.comparison.title()),
        (
            "target CPUs",
            format!("{} ({})", r.run.target_cpus, r.run.pinning),
        ),
        (
            "machine",
            format!("{}, {} CPUs, Linux {}", host("cpu"), host("cpus"), host("kernel")),
        ),
        (
            "date",
            format!("{}, preset {}", date(r.run.created_unix), r.run.preset),
        ),
        (
            "pairs",
            format!("{} done, {} discarded", r.pairs_done, r.pairs_discarded),
        ),
    ];
    if let Some(c) = r.calibration.as_ref().or(r.run.calibration.as_ref()) {
        rows.push(("calibration", c.sentence()));
    }
    o.push_str("<dl>");
    for (k, v) in rows {
        let _ = write!(o, "<dt>{k}<dd>{}", escape(&v));
    }
    o.push_str("</dl>\n");
    if r.run.busy_accepted {
        o.push_str("<p class=\"warn\">The machine was allowed to be busy: intervals are wider than on a quiet one, and absolute values are not those of a quiet one.</p>");
    }
    if r.incomplete {
        o.push_str("<p class=\"warn\">This run ended before its plan did.</p>");
    }
    for (reason, n) in &r.discarded {
        let _ = write!(o, "<p class=\"warn\">discarded {n}: {}</p>", escape(reason));
    }
    for note in &r.notes {
        let _ = write!(o, "<p class=\"warn\">{}</p>", escape(note));
    }
}

fn row_html(o: &mut String, row: &Row) {
    let cells = Cells::of(row);
    let _ = write!(
        o,
        "<tr class=\"{}\"><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td class=\"wrap\">{}</tr>",
        row.perf,
        mark(row),
        escape(&row.experiment),
        escape(&goal_title(row)),
        escape(&cells.baseline),
        escape(&cells.comparison),
        cells.delta,
        cells.interval,
        escape(&cells.confidence),
        cells.q,
        row.pairs,
        cells.mde,
        escape(&cells.verdict)
    );
}

/// An A/A run has one plot per row of an experiment; a comparison has one row. More than this are not useful.
const PLOTS_MAX: usize = 12;

fn experiment(o: &mut String, r: &Report, e: &ExperimentInfo, folder: Option<&Path>) {
    let prefix = format!("{}#", e.name);
    let is_mine = |row: &&Row| row.experiment == e.name || row.experiment.starts_with(&prefix);
    let mine: Vec<&Row> = r.rows.iter().filter(is_mine).collect();
    let _ = write!(o, "<h3>{}</h3><p>{}</p>", escape(&e.name), escape(&e.description));
    if mine.iter().all(|r| r.change.is_none()) {
        for row in &mine {
            let reason = escape(row.reason.as_deref().unwrap_or(""));
            let _ = write!(o, "<p class=\"warn\">{}: {reason}</p>", escape(&row.verdict));
        }
        return;
    }
    o.push_str("<div class=\"plots\">");
    for row in mine.iter().filter(|r| !r.values.is_empty()).take(PLOTS_MAX) {
        let label = "values of every pair in time order";
        o.push_str(&svg::inline(&svg::pairs(row), label));
    }
    for goal in [Goal::Memory, Goal::LatencyP99] {
        let mut rows = r.dimensions.iter();
        if let Some(row) = rows.find(|d| d.experiment == e.name && d.goal == goal) {
            o.push_str(&svg::inline(&svg::pairs(row), goal.title()));
        }
    }
    if let Some(folder) = folder {
        over_time(o, e, folder);
    }
    o.push_str("</div>");
    dimensions(o, r.dimensions.iter().filter(is_mine));
    o.push('\n');
}

/// Plots of the last runs over time.
fn over_time(o: &mut String, e: &ExperimentInfo, folder: &Path) {
    let records = record::read_pairs(folder).unwrap_or_default();
    let mine = records.iter().filter(|p| p.experiment == e.name);
    let last: Vec<_> = mine.rev().take(PLOTS_MAX).collect();
    let folders = [0, 1].map(|arm| {
        let number = |p: &&PairRecord| p.replicate(arm);
        let folder = |n| record::replicate_folder(folder, &e.name, ARMS[arm], n);
        last.iter().map(number).map(folder).collect::<Vec<_>>()
    });
    let [b, c] = [0, 1].map(|arm| traces(&folders[arm], "cpu_ns", true));
    let cpu = svg::traces("CPU over the run", &b, &c, |v| Unit::Millicores.show(v / 1e6));
    o.push_str(&svg::inline(&cpu, "CPU over the seconds of each run"));
    let [b, c] = [0, 1].map(|arm| traces(&folders[arm], "rss_bytes", false));
    let memory = svg::traces("resident memory over the run", &b, &c, |v| Unit::Bytes.show(v));
    o.push_str(&svg::inline(&memory, "memory over the seconds of each run"));
    let [b, c] = folders.map(|of_arm| {
        of_arm
            .iter()
            .flat_map(|f| values::latencies(f))
            .collect::<Vec<_>>()
    });
    if !b.is_empty() && !c.is_empty() {
        let latency = svg::ecdf("send-to-sink latency of markers", &b, &c, |v| {
            Unit::Seconds.show(v)
        });
        o.push_str(&svg::inline(&latency, "distribution of the latency of markers"));
    }
}

fn dimensions<'a>(o: &mut String, rows: impl Iterator<Item = &'a Row>) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    o.push_str("<details><summary>other dimensions</summary><div class=\"scroll\"><table><thead><tr><th>perf<th>dimension<th>baseline<th>comparison<th>Δ %<th>CI<th>q</tr></thead><tbody>");
    for row in rows {
        let cells = Cells::of(row);
        let _ = write!(
            o,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            mark(row),
            escape(row.goal.title()),
            escape(&cells.baseline),
            escape(&cells.comparison),
            cells.delta,
            cells.interval,
            cells.q
        );
    }
    o.push_str("</tbody></table></div></details>");
}
