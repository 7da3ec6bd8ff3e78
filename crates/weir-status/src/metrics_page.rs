//! The page of metrics, generated from the declarations.

use std::fmt::Write as _;

use weir_counters::NumberKind;

use super::series::{Declared, declared};

const HEAD: &str = "# Metrics of weir itself

<!-- Written by `weir status --documentation`; a test compares this page with the code. -->

Each number is in `/metrics` under its name (if the Prometheus output is on) and in `/api/v1/status` under its field. `weir status` also shows numbers of losses, refusals and degradations that are not zero.

No equation mixes units. A **packet** is one datagram, one frame of a stream, or a run of complete
lines. A **message** is one line of it, a **sample** one value of a metric. Per listener and in total, packets received are
parsed or dropped, messages received are accepted or rejected, and samples received are aggregated, overflowed, passed on
with their timestamp, or dropped. `weir status` checks that these books balance. Counters start at zero with the process, or continue from the previous process with a state directory (`docs/restart.md`).
";

/// Sections of the page: a title, and the prefixes of the fields in it.
const GROUPS: [(&str, &[&str]); 14] = [
    (
        "The process",
        &["version", "started", "panics", "reload", "state", "checkpoints"],
    ),
    ("Listeners", &["listeners", "columns"]),
    ("Clients", &["clients"]),
    ("Event loops", &["event_loop"]),
    ("Contexts", &["contexts", "limits"]),
    (
        "Aggregation and flushes",
        &["rows", "flush", "clock", "drop_disagreements"],
    ),
    ("Memory", &["memory"]),
    ("History", &["history"]),
    ("Tail and captures", &["taps"]),
    ("Rules", &["rules"]),
    ("Origins", &["origin"]),
    ("Outputs", &["outputs", "outputs[]"]),
    ("The exposition", &["scrape"]),
    ("Fleets (`weir merge`)", &["fleet"]),
];

/// The text of `docs/metrics.md`.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    let all = declared();
    for (title, members) in groups(&all) {
        let _ = write!(page, "\n## {title}\n");
        for counters in members {
            series(&mut page, &counters);
        }
    }
    page
}

/// Sections of the page, with their series and counters.
pub fn groups(all: &[Declared]) -> Vec<(&'static str, Vec<Vec<&Declared>>)> {
    let named = |name| {
        let of_name = all.iter().filter(|declared| declared.info.series.name == name);
        of_name.collect::<Vec<_>>()
    };
    let members = |fields: &[&str]| {
        let mut names: Vec<&str> = Vec::new();
        for declared in all.iter().filter(|declared| fields.contains(&part(declared))) {
            if !names.contains(&declared.info.series.name) {
                names.push(declared.info.series.name);
            }
        }
        names.into_iter().map(named).collect()
    };
    GROUPS
        .iter()
        .map(|(title, fields)| (*title, members(fields)))
        .collect()
}

fn part(declared: &Declared) -> &'static str {
    let path = declared.info.series.path;
    path.split(['.', '[']).next().unwrap_or(path)
}

/// One series with the meaning of its counters.
fn series(page: &mut String, counters: &[&Declared]) {
    let first = counters[0];
    let series = first.info.series;
    let kind = match series.kind {
        NumberKind::Counter => "counter",
        NumberKind::Gauge => "gauge",
    };
    let _ = write!(page, "\n### {}\n\n{}\n", series.name, first.info.help());
    let _ = write!(page, "\n* {kind}, {}", series.unit);
    if !first.labels.is_empty() {
        let _ = write!(page, ", by `{}`", first.labels.join("`, `"));
    }
    let path = series
        .path
        .replace("listeners.", "listeners[].")
        .replace("outputs.", "outputs[].");
    let _ = writeln!(page, "; in the status `{path}`");
    if let [only] = counters {
        let _ = writeln!(page, "* When it moves: {}", only.info.advice());
        return;
    }
    let label = series.label.map_or("of", |(name, _)| name);
    let _ = write!(
        page,
        "\n| {label} | meaning | when it moves |\n| --- | --- | --- |\n"
    );
    for counter in counters {
        let value = counter
            .info
            .series
            .label
            .map_or(String::new(), |(_, value)| format!("`{value}`"));
        let meaning = counter.info.meaning().replace('|', "\\|");
        let _ = writeln!(page, "| {value} | {meaning} | {} |", counter.info.advice());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == page(),
            "docs/metrics.md differs from the code; run: cargo run -- status --documentation > docs/metrics.md"
        );
    }

    #[test]
    fn every_series_is_on_the_page_once_with_its_remedy() {
        let page = page();
        for declared in declared() {
            let name = declared.info.series.name;
            assert_eq!(page.matches(&format!("\n### {name}\n")).count(), 1, "{name}");
            assert!(
                !declared.info.meaning().is_empty() && !declared.info.advice().is_empty(),
                "{name}"
            );
        }
    }
}
