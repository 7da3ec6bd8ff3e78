//! The panels of the dashboards for Grafana, asked of a real Prometheus beside real agents.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::receivers::{Prometheus, free_address};
use crate::support::{Agent, until};
use weir_status::{dashboard, overview};

/// A panel's title, its queries, and whether it says what emptiness means.
struct Panel {
    title: String,
    queries: Vec<String>,
    may_be_empty: bool,
}

fn panels(dashboard: &str) -> Vec<Panel> {
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let top = dashboard["panels"].as_array().unwrap();
    let inside = top
        .iter()
        .flat_map(|panel| panel["panels"].as_array().into_iter().flatten());
    let with_queries = top.iter().chain(inside).filter(|panel| panel["type"] != "row");
    let asked = |query: &str| {
        query
            .replace("$job", ".*")
            .replace("$instance", ".*")
            .replace("$__rate_interval", "10s")
            .replace("$__range", "1m")
    };
    with_queries
        .map(|panel| Panel {
            title: panel["title"].as_str().unwrap().to_owned(),
            queries: panel["targets"]
                .as_array()
                .unwrap()
                .iter()
                .map(|target| asked(target["expr"].as_str().unwrap()))
                .collect(),
            may_be_empty: panel["fieldConfig"]["defaults"]["noValue"].is_string(),
        })
        .collect()
}

/// Queries of the dashboard without an answer, by panel.
fn empty(prometheus: &mut Prometheus, panels: &[Panel]) -> BTreeSet<String> {
    let mut empty = BTreeSet::new();
    for panel in panels {
        for query in &panel.queries {
            let found = prometheus.query(query);
            let found = found.unwrap_or_else(|error| panic!("{}: {query}: {error}", panel.title));
            if found.is_empty() {
                empty.insert(panel.title.clone());
            }
        }
    }
    empty
}

#[test]
fn dashboards_show_zero_where_nothing_happened_and_the_overview_every_panel_with_load() {
    let start = |config: &str| {
        let mut agent = Agent::start(&format!("bucket_width: 1s\nworkers: 1\n{config}"), &[]);
        let admin = agent.wait_for("admin on http://");
        (agent, admin)
    };
    let (_idle, admin_of_idle) = start("");
    let (busy, admin_of_busy) = start("outputs:\n  graphite: {address: 'tcp://127.0.0.1:1'}\n");
    let prometheus = |admin: &str| {
        let config = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\nscrape_configs:\n  - job_name: weir\n    honor_labels: true\n    \
             static_configs:\n      - targets: ['{admin}']\n"
        );
        let mut prometheus =
            Prometheus::start_configured(Path::new("prometheus"), &free_address(), &config, &[]);
        // A rate needs two values.
        until("two scrapes", || {
            let twice = prometheus.query("count_over_time(weir_flushes_total[1m]) > 2");
            twice.is_ok_and(|found| !found.is_empty())
        });
        prometheus
    };
    let (overview, series) = (panels(&overview::json()), panels(&dashboard::json()));

    let mut of_idle = prometheus(&admin_of_idle);
    let titles = |panels: &[Panel], only_explained: bool| -> BTreeSet<String> {
        let panels = panels
            .iter()
            .filter(|panel| panel.may_be_empty || !only_explained);
        panels.map(|panel| panel.title.clone()).collect()
    };
    for dashboard in [&overview, &series] {
        let found = empty(&mut of_idle, dashboard);
        let explained = titles(dashboard, true);
        assert!(found.is_subset(&explained), "{:?}", found.difference(&explained));
    }

    let mut of_busy = prometheus(&admin_of_busy);
    let telemetry = "#client:go,client_version:5.5.0,client_transport:udp";
    let mut left = titles(&overview, false);
    until("every panel has shown something", || {
        busy.send(&format!(
            "page.views:1|c\nno metric\ndatadog.dogstatsd.client.packets_sent:9|c|{telemetry}\ndatadog.dogstatsd.client.packets_dropped:1|c|{telemetry}"
        ));
        let found = empty(&mut of_busy, &overview);
        left.retain(|title| found.contains(title));
        match left.is_empty() {
            true => Ok(()),
            false => Err(format!("{left:?}")),
        }
    });
    let found = empty(&mut of_busy, &series);
    let explained = titles(&series, true);
    assert!(found.is_subset(&explained), "{:?}", found.difference(&explained));
}

/// Buckets of ten seconds and a scrape every fifteen: between two scrapes lies one bucket, or two.
#[test]
fn a_flat_load_is_a_flat_line_in_the_panels_of_outputs() {
    let steps = |each: u64| -> String {
        let values = (0..80).map(|scrape| (scrape * 15 / 10 * each + 1_700_000_000).to_string());
        values.collect::<Vec<_>>().join(" ")
    };
    let of_outputs: Vec<(String, String)> = [overview::json(), dashboard::json()]
        .iter()
        .flat_map(|dashboard| panels(dashboard))
        .flat_map(|panel| {
            panel
                .queries
                .into_iter()
                .map(move |query| (panel.title.clone(), query))
        })
        .filter(|(_, query)| query.contains("rate(weir_output_delivered_total"))
        .map(|(title, query)| (title, query.replace("[10s]", "[50s]")))
        .collect();
    assert_eq!(of_outputs.len(), 2, "{of_outputs:?}");
    let mut test = format!(
        "evaluation_interval: 15s\ntests:\n  - interval: 15s\n    input_series:\n      \
         - {{series: 'weir_output_delivered_total{{job=\"weir\",instance=\"a\",output=\"file\",kind=\"point\"}}', values: '{}'}}\n      \
         - {{series: 'weir_last_flush_timestamp_seconds{{job=\"weir\",instance=\"a\"}}', values: '{}'}}\n    promql_expr_test:\n",
        steps(33_910),
        steps(10),
    );
    let plain = "sum(rate(weir_output_delivered_total[50s]))";
    let mut expect = |query: &str, is_flat: bool| {
        let all = format!("(max({query}))[15m:15s]");
        let ratio = format!("max_over_time({all}) / min_over_time({all})");
        let expected = if is_flat { "< bool 1.02" } else { "> bool 1.1" };
        test += &format!(
            "      - expr: >-\n          {ratio} {expected}\n        eval_time: 18m\n        exp_samples: [{{labels: '{{}}', value: 1}}]\n"
        );
    };
    expect(plain, false);
    for (_, query) in &of_outputs {
        expect(query, true);
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("flat.yaml");
    std::fs::write(&file, test).unwrap();
    let output = Command::new("promtool")
        .args(["test", "rules"])
        .arg(&file)
        .output();
    let output = output.expect("prometheus is installed (scripts/install-test-deps.sh)");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}
