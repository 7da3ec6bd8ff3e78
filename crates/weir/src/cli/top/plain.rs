//! Tables of the running agent's usage, for scripts.

use std::fmt::Write as _;

use clap::ArgMatches;
use weir_units::{counted, grouped};

use crate::cli::agent::show;
use crate::cli::status::limited;
use crate::cli::table::{Table, duration, rate, shown};
use weir_status::contexts::{ContextReport, MetricRow};
use weir_system::failure::Failure;

pub fn top(arguments: &ArgMatches) -> Result<(), Failure> {
    let top = arguments.get_one::<u64>("top").copied().unwrap_or(10);
    show(arguments, &format!("/api/v1/contexts?top={top}"), render)
}

fn render(report: &ContextReport) -> String {
    let mut page = String::new();
    let _ = write!(
        page,
        "{} of {}, {}",
        counted(report.contexts_live, "contexts"),
        counted(report.metrics_live, "metrics"),
        counted(report.tag_keys_live, "tag keys")
    );
    let _ = match report.growth_seconds {
        0 => writeln!(page, "; growth shows from the second flush on"),
        seconds => writeln!(page, "; growth covers the last {}", duration(seconds)),
    };
    metrics(&mut page, "metric, by samples", &report.metrics_by_samples);
    metrics(&mut page, "metric, by contexts", &report.metrics_by_contexts);
    let mut table = Table::new(&["tag key", "values", "growth"]);
    for row in &report.tag_keys {
        let key = match row.key.as_str() {
            "" => "(no key)".to_owned(),
            key => shown(key),
        };
        table.row([key, grouped(row.values), growth(row.growth)]);
    }
    table.write(&mut page);
    if report.tag_values_untracked > 0 {
        let _ = writeln!(
            page,
            "and {} of keys that are not distinguished",
            counted(report.tag_values_untracked, "tags")
        );
    }
    let mut table = Table::new(&["origin", "contexts", "samples/s"]);
    for row in &report.origins {
        table.row([
            shown(&row.origin),
            grouped(row.contexts),
            rate(row.samples_per_second),
        ]);
    }
    table.write(&mut page);
    limited(&mut page, &report.limited);
    page
}

fn metrics(page: &mut String, title: &str, rows: &[MetricRow]) {
    let mut table = Table::new(&[title, "samples/s", "contexts", "growth"]);
    for row in rows {
        table.row([
            shown(&row.metric),
            rate(row.samples_per_second),
            grouped(row.contexts),
            growth(row.growth),
        ]);
    }
    table.write(page);
}

fn growth(growth: i64) -> String {
    let amount = grouped(growth.unsigned_abs());
    match growth {
        0 => "0".to_owned(),
        1.. => format!("+{amount}"),
        _ => format!("-{amount}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_status::contexts::{LimitedRow, OriginRow, TagKeyRow};

    #[test]
    fn the_page_shows_every_list_and_no_control_characters() {
        let row = MetricRow {
            metric: "a\u{1b}[2J".to_owned(),
            contexts: 12_345,
            growth: -5,
            samples_per_second: 2.5,
        };
        let report = ContextReport {
            contexts_live: 12_345,
            growth_seconds: 3600,
            metrics_by_samples: vec![row.clone()],
            metrics_by_contexts: vec![row],
            tag_keys: vec![TagKeyRow {
                values: 7,
                growth: 7,
                ..TagKeyRow::default()
            }],
            origins: vec![OriginRow {
                origin: "unknown".to_owned(),
                ..OriginRow::default()
            }],
            limited: vec![LimitedRow {
                metric: "b".to_owned(),
                reason: "metric_share".to_owned(),
                tag_key: "user".to_owned(),
                tag_values: 1000,
                ..LimitedRow::default()
            }],
            ..ContextReport::default()
        };
        let page = render(&report);
        for part in [
            "12,345 contexts",
            "growth covers the last 1h00m",
            "2.5",
            "-5",
            "(no key)",
            "+7",
            "unknown",
            "metric_share",
            "about 1,000 values",
        ] {
            assert!(page.contains(part), "{part:?} is not in\n{page}");
        }
        assert!(!page.contains('\u{1b}'), "{page}");
    }
}
