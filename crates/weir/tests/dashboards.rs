//! The panels of the dashboards for Grafana, asked of a real Prometheus beside real agents.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::support::receivers::{Prometheus, free_address};
use crate::support::{Agent, until};
use weir::admin::{dashboard, overview};

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
fn the_overview_shows_zero_where_nothing_happened_and_every_panel_with_load() {
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
    let titles = |only_explained: bool| -> BTreeSet<String> {
        let panels = overview
            .iter()
            .filter(|panel| panel.may_be_empty || !only_explained);
        panels.map(|panel| panel.title.clone()).collect()
    };
    let explained = titles(true);
    let found = empty(&mut of_idle, &overview);
    assert!(found.is_subset(&explained), "{found:?}");
    empty(&mut of_idle, &series);

    let mut of_busy = prometheus(&admin_of_busy);
    let telemetry = "#client:go,client_version:5.5.0,client_transport:udp";
    let mut left = titles(false);
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
    empty(&mut of_busy, &series);
}
