//! A report as metrics: one exposition for Prometheus, or one DogStatsD message per value.

use crate::detect::analysis::{Report, Row};
use std::fmt::Write as _;

/// A value with its labels.
struct Metric {
    name: &'static str,
    labels: Vec<(&'static str, String)>,
    value: f64,
}

/// The names, with their meaning.
const HELP: [(&str, &str); 6] = [
    (
        "weir_bench_value",
        "Mean of a goal over the valid pairs of a run: ns, bytes, seconds, shares or numbers per second.",
    ),
    (
        "weir_bench_change",
        "Change of the comparison against the baseline: a ratio, 0.05 is 5 percent; of loss, a difference.",
    ),
    (
        "weir_bench_change_low",
        "Lower end of the interval of the change.",
    ),
    (
        "weir_bench_change_high",
        "Upper end of the interval of the change.",
    ),
    (
        "weir_bench_worse",
        "1 if the change is a regression, otherwise 0.",
    ),
    ("weir_bench_pairs", "Valid pairs of a run."),
];

fn metrics(report: &Report) -> Vec<Metric> {
    let mut all = Vec::new();
    for row in report.rows.iter().chain(&report.dimensions) {
        add(&mut all, report, row);
    }
    // An exposition has all values of a name together.
    let rank = |m: &Metric| HELP.iter().position(|(name, _)| *name == m.name);
    all.sort_by_key(rank);
    all
}

fn add(all: &mut Vec<Metric>, report: &Report, row: &Row) {
    let of_row = vec![
        ("experiment", row.experiment.clone()),
        ("goal", row.goal.key().to_owned()),
    ];
    let arms = [
        ("baseline", &row.baseline, &report.run.baseline),
        ("comparison", &row.comparison, &report.run.comparison),
    ];
    for (name, arm, program) in arms {
        let Some(value) = arm.mean else { continue };
        let mut labels = of_row.clone();
        labels.extend([
            ("arm", name.to_owned()),
            ("target", program.target.clone()),
            ("commit", program.commit.chars().take(12).collect()),
        ]);
        labels.retain(|(_, text)| !text.is_empty());
        all.push(Metric {
            name: "weir_bench_value",
            labels,
            value,
        });
    }
    if let Some(change) = &row.change {
        let unit = if change.scale == "percent" { 0.01 } else { 1.0 };
        let values = [
            ("weir_bench_change", change.delta * unit),
            ("weir_bench_change_low", change.low * unit),
            ("weir_bench_change_high", change.high * unit),
        ];
        all.extend(values.map(|(name, value)| Metric {
            name,
            labels: of_row.clone(),
            value,
        }));
    }
    let is_worse = row.verdict == "regression" && !row.declared_erratic;
    for (name, value) in [
        ("weir_bench_worse", f64::from(u8::from(is_worse))),
        ("weir_bench_pairs", row.pairs as f64),
    ] {
        all.push(Metric {
            name,
            labels: of_row.clone(),
            value,
        });
    }
}

/// For the file that node_exporter reads, or for a push gateway.
pub fn prometheus(report: &Report) -> String {
    let mut out = String::new();
    let mut last = "";
    for metric in metrics(report) {
        if metric.name != last {
            last = metric.name;
            let help = HELP
                .iter()
                .find(|(name, _)| *name == last)
                .map_or("", |(_, help)| help);
            let _ = writeln!(out, "# HELP {last} {help}\n# TYPE {last} gauge");
        }
        let escape = |text: &str| {
            text.replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n")
        };
        let labels: Vec<String> = metric
            .labels
            .iter()
            .map(|(name, text)| format!("{name}=\"{}\"", escape(text)))
            .collect();
        let _ = writeln!(out, "{last}{{{}}} {}", labels.join(","), metric.value);
    }
    out
}

/// For any agent, with `weir send` or netcat.
pub fn dogstatsd(report: &Report) -> String {
    let mut out = String::new();
    for metric in metrics(report) {
        let name = metric.name.replacen("weir_bench_", "weir_bench.", 1);
        let tags: Vec<String> = metric
            .labels
            .iter()
            .map(|(name, text)| format!("{name}:{}", text.replace([',', '|', '\n'], "_")))
            .collect();
        let _ = writeln!(out, "{name}:{}|g|#{}", metric.value, tags.join(","));
    }
    out
}
