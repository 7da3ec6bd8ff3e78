//! A flood of contexts on the page of `weir status` and among the agent's own series.

use weir_status::contexts::{LimitedRow, TagKeyRow};
use weir_status::series::own_series;
use weir_status::status::{LimitStatus, Status};

use super::status::render;
use super::style::Style;

#[test]
fn a_limited_metric_and_a_tag_key_with_many_values_are_named() {
    let status = Status {
        limits: LimitStatus {
            limited: vec![LimitedRow {
                metric: "flood".into(),
                reason: "metric_share".into(),
                samples: 500,
                tag_key: "id".into(),
                tag_values: 1234,
                ..LimitedRow::default()
            }],
            tag_keys: vec![TagKeyRow {
                key: "id".into(),
                values: 1601,
                ..TagKeyRow::default()
            }],
            ..LimitStatus::default()
        },
        ..Status::default()
    };
    let page = render(&status, 0, Style::default());
    let lines: Vec<String> = page
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for line in [
        "limited in the last bucket samples limit differs most origin",
        "flood 500 metric_share tag \"id\": about 1,234 values",
        "ALERT: tag key \"id\" has 1,601 different values",
    ] {
        assert!(
            lines.iter().any(|found| found == line),
            "{line} is not in\n{page}"
        );
    }
    let series = own_series(&status);
    let alert = series
        .iter()
        .find(|own| own.name == "weir_tag_key_values_alert")
        .unwrap();
    assert_eq!(alert.value, 1601.0);
    assert_eq!(alert.labels, [("key", "id".into())]);
}
