//! The panels of the dashboards for Grafana, asked of a real Prometheus beside real agents.

use std::collections::{BTreeMap, BTreeSet};
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

/// A query with the dashboard's variables filled in.
fn asked(query: &str) -> String {
    query
        .replace("$job", ".*")
        .replace("$instance", ".*")
        .replace("$__rate_interval", "10s")
        .replace("$__range", "1m")
}

fn panels(dashboard: &str) -> Vec<Panel> {
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let top = dashboard["panels"].as_array().unwrap();
    let inside = top
        .iter()
        .flat_map(|panel| panel["panels"].as_array().into_iter().flatten());
    let with_queries = top.iter().chain(inside).filter(|panel| panel["type"] != "row");
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

/// Queries of the dashboard without a line in the last minute, by panel. A chart draws numbers only.
fn empty(prometheus: &mut Prometheus, panels: &[Panel]) -> BTreeSet<String> {
    let mut empty = BTreeSet::new();
    for panel in panels {
        for query in &panel.queries {
            let found = prometheus.results(query, Some((60, 1)));
            let found = found.unwrap_or_else(|error| panic!("{}: {query}: {error}", panel.title));
            for line in &found {
                let points = line["values"].as_array().unwrap();
                assert!(
                    points.iter().map(number).all(f64::is_finite),
                    "{}: {line}",
                    panel.title
                );
            }
            if found.is_empty() {
                empty.insert(panel.title.clone());
            }
        }
    }
    empty
}

/// An agent, and a Prometheus that has scraped it more than twice: a rate needs two values.
fn scraped(config: &str) -> (Agent, Prometheus) {
    let mut agent = Agent::start(&format!("bucket_width: 1s\nworkers: 1\n{config}"), &[]);
    let admin = agent.wait_for("admin on http://");
    let config = format!(
        "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\nscrape_configs:\n  - job_name: weir\n    honor_labels: true\n    \
         static_configs:\n      - targets: ['{admin}']\n"
    );
    let mut prometheus = Prometheus::start_configured(Path::new("prometheus"), &free_address(), &config, &[]);
    until("two scrapes", || {
        let twice = prometheus.query("count_over_time(weir_flushes_total[1m]) > 2");
        twice.is_ok_and(|found| !found.is_empty())
    });
    (agent, prometheus)
}

const DEAD_OUTPUT: &str = "outputs:\n  graphite: {address: 'tcp://127.0.0.1:1'}\n";

/// One of each: a metric, an invalid message, and a client's report of what it dropped.
fn send_of_each(agent: &Agent) {
    let telemetry = "#client:go,client_version:5.5.0,client_transport:udp";
    agent.send(&format!(
        "page.views:1|c\nno metric\ndatadog.dogstatsd.client.packets_sent:9|c|{telemetry}\ndatadog.dogstatsd.client.packets_dropped:1|c|{telemetry}"
    ));
}

/// A panel as Grafana shows it, in text.
struct Shown {
    title: String,
    /// A row for each value, line or row of a table; cells by column.
    rows: Vec<BTreeMap<String, String>>,
    /// The columns of numbers.
    numbers: Vec<String>,
    /// Stands there instead of rows.
    without: Option<String>,
}

impl Shown {
    /// The rows, or their replacement, below the title.
    fn text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(|(head, cell)| format!("{head}: {cell}")).collect();
            text += &format!("    {}\n", cells.join(" | "));
        }
        match (&self.without, self.rows.is_empty()) {
            (Some(without), true) => text + &format!("    ({without})\n"),
            (None, true) => text + "    NO DATA\n",
            _ => text,
        }
    }

    /// The cells of a column.
    fn column(&self, head: &str) -> Vec<&str> {
        let cells = self.rows.iter().filter_map(|row| row.get(head));
        cells.map(String::as_str).collect()
    }
}

fn number(result: &Value) -> f64 {
    result[1].as_str().unwrap().parse().unwrap()
}

/// The value in the colour of its threshold.
fn tile(panel: &Value, results: &[Value]) -> Vec<BTreeMap<String, String>> {
    let steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        .as_array()
        .unwrap();
    let row = |result: &Value| {
        let value = number(&result["value"]);
        let mut reached = steps
            .iter()
            .filter(|step| step["value"].as_f64().is_none_or(|from| value >= from));
        let colour = reached.next_back().unwrap()["color"].as_str().unwrap();
        BTreeMap::from([
            ("value".to_owned(), value.to_string()),
            ("colour".to_owned(), colour.to_owned()),
        ])
    };
    results.iter().map(row).collect()
}

/// The last value of each line, under its name in the legend.
fn chart(target: &Value, results: &[Value]) -> Vec<BTreeMap<String, String>> {
    let row = |result: &Value| {
        let mut name = target["legendFormat"].as_str().unwrap().to_owned();
        for (label, value) in result["metric"].as_object().unwrap() {
            name = name.replace(&format!("{{{{{label}}}}}"), value.as_str().unwrap());
        }
        let points = result["values"].as_array().unwrap();
        let last = number(points.last().unwrap());
        BTreeMap::from([(name, format!("{last} after {} points", points.len()))])
    };
    results.iter().map(row).collect()
}

/// A property of a field in the overrides of a panel.
fn property<'a>(panel: &'a Value, field: &str, id: &str) -> Option<&'a Value> {
    let overrides = panel["fieldConfig"]["overrides"].as_array().unwrap();
    let of_field = overrides.iter().filter(|of| of["matcher"]["options"] == *field);
    let mut properties = of_field.flat_map(|of| of["properties"].as_array().unwrap());
    properties
        .find(|property| property["id"] == *id)
        .map(|property| &property["value"])
}

/// Rows with the same labels are one, columns are renamed and values replaced, as the panel's settings say.
fn table(panel: &Value, answers: &[(String, Vec<Value>)]) -> Vec<BTreeMap<String, String>> {
    let value = |field: &str, text: &str| {
        let mapped = property(panel, field, "mappings");
        let to = mapped.and_then(|mapped| mapped[0]["options"][text]["text"].as_str());
        to.unwrap_or(text).to_owned()
    };
    let head = |field: &str| {
        let named = property(panel, field, "displayName").and_then(Value::as_str);
        named.unwrap_or(field).to_owned()
    };
    let excluded = &panel["transformations"][1]["options"]["excludeByName"];
    let mut rows: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for (letter, results) in answers {
        let field = match answers.len() {
            1 => "Value".to_owned(),
            _ => format!("Value #{letter}"),
        };
        for result in results {
            let row = rows.entry(result["metric"].to_string()).or_default();
            for (label, text) in result["metric"].as_object().unwrap() {
                if excluded[label] != true {
                    row.insert(head(label), value(label, text.as_str().unwrap()));
                }
            }
            let number = number(&result["value"]);
            let text = match property(panel, &field, "decimals").and_then(Value::as_u64) {
                Some(places) => format!("{number:.*}", places as usize),
                None => value(&field, &number.to_string()),
            };
            row.insert(head(&field), text);
        }
    }
    rows.into_values().collect()
}

/// The overview as Grafana shows it.
fn shown(prometheus: &mut Prometheus) -> Vec<Shown> {
    let dashboard: Value = serde_json::from_str(&overview::json()).unwrap();
    let mut all = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().unwrap();
        let range = (panel["type"] == "timeseries").then_some((60, 1));
        let answers: Vec<(String, Vec<Value>)> = targets
            .iter()
            .map(|target| {
                let query = asked(target["expr"].as_str().unwrap());
                let results = prometheus.results(&query, range);
                let results = results.unwrap_or_else(|error| panic!("{title}: {query}: {error}"));
                (target["refId"].as_str().unwrap().to_owned(), results)
            })
            .collect();
        let rows = match panel["type"].as_str().unwrap() {
            "stat" => tile(panel, &answers[0].1),
            "timeseries" => chart(&targets[0], &answers[0].1),
            "table" => table(panel, &answers),
            other => panic!("{title} is a {other}"),
        };
        let overrides = panel["fieldConfig"]["overrides"].as_array().unwrap();
        let of_numbers = overrides
            .iter()
            .filter(|of| of["matcher"]["options"].as_str().unwrap().starts_with("Value"));
        all.push(Shown {
            numbers: of_numbers
                .map(|of| of["properties"][0]["value"].as_str().unwrap().to_owned())
                .collect(),
            without: panel["fieldConfig"]["defaults"]["noValue"]
                .as_str()
                .map(str::to_owned),
            title,
            rows,
        });
    }
    all
}

/// The overview while Prometheus reached the agent: a scrape that takes more than a second ends every series until the
/// next one.
fn shown_when_up(prometheus: &mut Prometheus) -> Result<Vec<Shown>, String> {
    let shown = shown(prometheus);
    let up = prometheus.query("min_over_time(up[10s])")?;
    match !up.is_empty() && up.values().all(|up| *up == 1.0) {
        true => Ok(shown),
        false => Err(format!("up: {up:?}")),
    }
}

fn panel<'a>(shown: &'a [Shown], title: &str) -> &'a Shown {
    shown.iter().find(|panel| panel.title.starts_with(title)).unwrap()
}

/// Nothing that Grafana would show as "No data", as an empty cell of a number, or as a placeholder.
fn incomplete(shown: &[Shown]) -> Vec<String> {
    let bad = shown.iter().filter(|panel| {
        let is_empty = panel.rows.is_empty() && panel.without.is_none();
        let is_short = panel
            .numbers
            .iter()
            .any(|head| panel.column(head).len() < panel.rows.len());
        is_empty || is_short || panel.text().contains("{{") || panel.text().contains("Value #")
    });
    bad.map(Shown::text).collect()
}

#[test]
fn the_overview_is_right_without_load_and_with_it_and_no_panel_of_a_series_is_empty_without_a_word() {
    let (_idle, mut of_idle) = scraped("");
    let panels = panels(&dashboard::json());
    let explained = panels.iter().filter(|panel| panel.may_be_empty);
    let explained: BTreeSet<String> = explained.map(|panel| panel.title.clone()).collect();
    let are_explained = |prometheus: &mut Prometheus| {
        let found = empty(prometheus, &panels);
        assert!(found.is_subset(&explained), "{:?}", found.difference(&explained));
    };
    are_explained(&mut of_idle);
    let quiet = until("the overview without load", || shown_when_up(&mut of_idle));
    println!(
        "without load\n{}",
        quiet.iter().map(Shown::text).collect::<String>()
    );
    assert_eq!(incomplete(&quiet), Vec::<String>::new());
    for (title, value, colour) in [
        ("Agents", "1", "blue"),
        ("Samples", "0", "blue"),
        ("Kinds of losses", "0", "green"),
        ("Failing outputs", "0", "green"),
        ("Oldest waiting point", "0", "green"),
    ] {
        let tile = panel(&quiet, title);
        assert_eq!(
            (tile.column("value"), tile.column("colour")),
            (vec![value], vec![colour]),
            "{title}"
        );
    }
    for (title, text) in [
        ("Losses", "nothing was lost"),
        ("Clients", "no client has reported"),
        ("Metrics with", "no metric in the scrape yet"),
    ] {
        let panel = panel(&quiet, title);
        assert_eq!(
            (panel.rows.len(), panel.without.as_deref()),
            (0, Some(text)),
            "{}",
            panel.text()
        );
    }
    for (title, head) in [("Outputs", "dropped"), ("Listeners", "rejected messages")] {
        assert_eq!(panel(&quiet, title).column(head), ["0"], "{title}");
    }

    let (busy, mut of_busy) = scraped(DEAD_OUTPUT);
    let parts = [
        ("Losses", "`weir tail --rejected` shows the lines"),
        ("Losses", "output: graphite"),
        ("Losses", "`weir doctor --config FILE` tests"),
        ("Outputs", "state: ✗ failing"),
        ("Outputs", "state: ✓ healthy"),
        ("Outputs", "output: graphite"),
        ("Clients", "client: go"),
        ("Clients", "version: 5.5.0"),
        ("Metrics with", "page_views_total"),
    ];
    let loaded = until("every panel has its rows, and every tile its number", || {
        send_of_each(&busy);
        let loaded = shown_when_up(&mut of_busy)?;
        let moving = [
            "Samples",
            "Oldest waiting point",
            "Kinds of losses",
            "Failing outputs",
        ];
        let zero = moving
            .into_iter()
            .find(|title| panel(&loaded, title).column("value") == ["0"]);
        let empty = loaded.iter().find(|panel| panel.rows.is_empty());
        let missing = parts
            .iter()
            .find(|(title, part)| !panel(&loaded, title).text().contains(part));
        match (zero, empty, missing) {
            (Some(title), ..) => Err(format!("{title} is zero")),
            (_, Some(panel), _) => Err(panel.text()),
            (.., Some((title, part))) => Err(format!("{part} is not in {}", panel(&loaded, title).text())),
            _ => Ok(loaded),
        }
    });
    println!(
        "with load\n{}",
        loaded.iter().map(Shown::text).collect::<String>()
    );
    assert_eq!(incomplete(&loaded), Vec::<String>::new());
    are_explained(&mut of_busy);
    for title in ["Kinds of losses", "Failing outputs"] {
        assert_eq!(panel(&loaded, title).column("colour"), ["red"], "{title}");
    }
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
