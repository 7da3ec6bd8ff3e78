//! One file that opens anywhere: tables and plots, no script, nothing fetched.

use super::junit::escape;
use super::{
    Words, confidence, date, delta, goal_title, interval, limit_text, mark, mde, series_value, svg, traces,
    value, verdict_title,
};
use crate::detect::analysis::{self, Report, Row};
use crate::detect::goal::Unit;
use std::fmt::Write as _;
use std::path::Path;

const CSS: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:2rem auto;padding:0 1rem;color:#111;background:#fff}\
table{border-collapse:collapse;width:100%;font-size:13px}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #e5e7eb;white-space:nowrap}\
td.wrap{white-space:normal}.scroll{overflow-x:auto}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}h3{font-size:1rem;margin:1.2rem 0 .3rem}\
.worse{background:#fef2f2}.better{background:#f0fdf4}.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(330px,1fr));gap:.6rem}svg{width:100%;height:auto}\
.key span{display:inline-block;width:.8rem;height:.8rem;border-radius:50%;margin:0 .3rem 0 1rem;vertical-align:-1px}dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dt{color:#6b7280}dd{margin:0}\
.warn{background:#fffbeb;border-left:4px solid #b45309;padding:.4rem .8rem}code{background:#f3f4f6;padding:.1rem .3rem}\
@media(prefers-color-scheme:dark){body{background:#111;color:#e5e7eb}th,td{border-color:#374151}.worse{background:#3f1d1d}.better{background:#14321f}.warn{background:#3b2f12}code{background:#1f2937}}";

/// `folder` holds the captures for the traces; without it the page has everything else.
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
            let _ = write!(
                o,
                "<tr class=\"{}\"><td>{}<td>{}<td>{}<td>{}<td>{}/{}<td>{}<td>{}</tr>",
                if c.ok() { "" } else { "worse" },
                if c.ok() { "✅" } else { "❌" },
                escape(&c.experiment),
                escape(&c.check),
                c.arm,
                c.passed,
                c.of,
                escape(&c.worst.map_or("n/a".to_owned(), |v| series_value(&c.series, v))),
                escape(&limit_text(c))
            );
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
    let (d, i, c, q, m) = match &row.change {
        Some(c) => (
            delta(row, c),
            interval(row, c),
            confidence(c),
            format!("{:.3}", c.q),
            mde(row, c),
        ),
        None => Default::default(),
    };
    let mut verdict = verdict_title(row);
    if let Some(reason) = &row.reason {
        let _ = write!(verdict, ": {reason}");
    }
    let _ = write!(
        o,
        "<tr class=\"{}\"><td>{}<td>{}<td>{}<td>{}<td>{}<td>{d}<td>{i}<td>{}<td>{q}<td>{}<td>{m}<td class=\"wrap\">{}</tr>",
        row.perf,
        mark(row),
        escape(&row.experiment),
        escape(&goal_title(row)),
        escape(&value(row, row.baseline.mean)),
        escape(&value(row, row.comparison.mean)),
        escape(&c),
        row.pairs,
        escape(&verdict)
    );
}

fn experiment(o: &mut String, r: &Report, e: &analysis::ExperimentInfo, folder: Option<&Path>) {
    let prefix = format!("{}#", e.name);
    let mine: Vec<&Row> = r
        .rows
        .iter()
        .filter(|row| row.experiment == e.name || row.experiment.starts_with(&prefix))
        .collect();
    let _ = write!(o, "<h3>{}</h3><p>{}</p>", escape(&e.name), escape(&e.description));
    if mine.iter().all(|r| r.change.is_none()) {
        for row in &mine {
            let _ = write!(
                o,
                "<p class=\"warn\">{}: {}</p>",
                escape(&row.verdict),
                escape(row.reason.as_deref().unwrap_or(""))
            );
        }
        return;
    }
    o.push_str("<div class=\"plots\">");
    // An A/A run has one plot per row of that experiment; a comparison has one row.
    for row in mine.iter().filter(|r| !r.values.is_empty()).take(12) {
        o.push_str(&svg::inline(
            &svg::pairs(row),
            "values of every pair in time order",
        ));
    }
    for goal in [
        crate::detect::goal::Goal::Memory,
        crate::detect::goal::Goal::LatencyP99,
    ] {
        if let Some(row) = r
            .dimensions
            .iter()
            .find(|d| d.experiment == e.name && d.goal == goal)
        {
            o.push_str(&svg::inline(&svg::pairs(row), goal.title()));
        }
    }
    if let Some(folder) = folder {
        let records = analysis::read_pairs(folder).unwrap_or_default();
        let last: Vec<_> = records
            .iter()
            .filter(|p| p.experiment == e.name)
            .rev()
            .take(12)
            .collect();
        let numbers =
            |pick: fn(&analysis::PairRecord) -> usize| last.iter().map(|p| pick(p)).collect::<Vec<_>>();
        let (b, c) = (numbers(|p| p.baseline), numbers(|p| p.comparison));
        let of = |series: &str, rate: bool| {
            (
                traces(folder, &e.name, "baseline", &b, series, rate),
                traces(folder, &e.name, "comparison", &c, series, rate),
            )
        };
        let (cb, cc) = of("cpu_ns", true);
        o.push_str(&svg::inline(
            &svg::traces("CPU over the run", &cb, &cc, |v| Unit::Millicores.show(v / 1e6)),
            "CPU over the seconds of each run",
        ));
        let (mb, mc) = of("rss_bytes", false);
        o.push_str(&svg::inline(
            &svg::traces("resident memory over the run", &mb, &mc, |v| Unit::Bytes.show(v)),
            "memory over the seconds of each run",
        ));
        let (lb, lc) = (
            latencies(folder, e, "baseline", &b),
            latencies(folder, e, "comparison", &c),
        );
        if !lb.is_empty() && !lc.is_empty() {
            o.push_str(&svg::inline(
                &svg::ecdf("send-to-sink latency of markers", &lb, &lc, |v| {
                    Unit::Seconds.show(v)
                }),
                "distribution of the latency of markers",
            ));
        }
    }
    o.push_str("</div>");
    let rows: Vec<&Row> = r
        .dimensions
        .iter()
        .filter(|d| d.experiment == e.name || d.experiment.starts_with(&prefix))
        .collect();
    if !rows.is_empty() {
        o.push_str("<details><summary>other dimensions</summary><div class=\"scroll\"><table><thead><tr><th>perf<th>dimension<th>baseline<th>comparison<th>Δ %<th>CI<th>q</tr></thead><tbody>");
        for row in rows {
            let (d, i, q) = match &row.change {
                Some(c) => (delta(row, c), interval(row, c), format!("{:.3}", c.q)),
                None => Default::default(),
            };
            let _ = write!(
                o,
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{d}<td>{i}<td>{q}</tr>",
                mark(row),
                escape(row.goal.title()),
                escape(&value(row, row.baseline.mean)),
                escape(&value(row, row.comparison.mean))
            );
        }
        o.push_str("</tbody></table></div></details>");
    }
    o.push('\n');
}

fn latencies(folder: &Path, e: &analysis::ExperimentInfo, arm: &str, numbers: &[usize]) -> Vec<f64> {
    numbers
        .iter()
        .flat_map(|n| {
            crate::detect::values::latencies(
                &analysis::arm_folder(folder, &e.name, arm).join(format!("{n:02}")),
            )
        })
        .collect()
}
