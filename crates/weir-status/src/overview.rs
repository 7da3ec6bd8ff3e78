//! A dashboard for Grafana that people look at: state, traffic, outputs, listeners, clients and losses with their remedies.
//!
//! [`super::dashboard`] beside it has a panel for each series.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weir_counters::{NumberKind, Significance};

use super::dashboard::{CHOSEN, Grid, datasource, numbered, rate_of_buckets, variables};
use super::series::declared;

/// The text of `overview.json`.
pub fn json() -> String {
    let mut text = format!("{:#}", overview());
    text.push('\n');
    text
}

pub(super) fn overview() -> Value {
    let mut grid = Grid::default();
    let mut panels: Vec<Value> = tiles()
        .into_iter()
        .map(|tile| grid.place_of(tile, 4, 4))
        .collect();
    panels.extend(charts().into_iter().map(|chart| grid.place_of(chart, 8, 8)));
    panels.extend(
        tables()
            .into_iter()
            .map(|(table, width, height)| grid.place_of(table, width, height)),
    );
    json!({
        "title": "weir, overview",
        "uid": "weir-overview",
        "description": "Written by `weir status --dashboard=overview`. Click an instance to open its page.",
        "tags": ["weir"],
        "schemaVersion": 39,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": variables() },
        "annotations": { "list": [starts()] },
        "links": [{
            "type": "link", "title": "Every series", "url": "/d/weir", "keepTime": true, "includeVars": true,
        }],
        "panels": numbered(panels),
    })
}

/// Starts of agents, with their version.
fn starts() -> Value {
    json!({
        "name": "Starts",
        "enable": true,
        "iconColor": "blue",
        "datasource": datasource(),
        "expr": format!(
            "weir_start_time_seconds{{{CHOSEN}}} * 1000 * on (job, instance) group_left (version) weir_info{{{CHOSEN}}}"
        ),
        "useValueForTime": true,
        "titleFormat": "{{instance}} started",
        "textFormat": "version {{version}}",
    })
}

/// A number with its thresholds for yellow and red.
fn tiles() -> Vec<Value> {
    let of = |series: &str| format!("{series}{{{CHOSEN}}}");
    let used = format!(
        "{} / {}",
        of("weir_memory_used_bytes"),
        of("weir_memory_budget_bytes")
    );
    let losses = format!("count({{__name__=~\"{}\",{CHOSEN}}} > 0)", loss_names().join("|"));
    let samples = format!(
        "sum(rate({}[$__rate_interval]))",
        of("weir_samples_received_total")
    );
    let failing = format!("count({} == 0)", of("weir_output_healthy"));
    let tile = |title: &str, unit: &str, query: String, thresholds: Option<(f64, f64)>, description: &str| {
        let steps = match thresholds {
            None => json!([{ "color": "blue", "value": null }]),
            Some((high, too_high)) => json!([
                { "color": "green", "value": null },
                { "color": "yellow", "value": high },
                { "color": "red", "value": too_high },
            ]),
        };
        json!({
            "type": "stat",
            "title": title,
            "description": description,
            "datasource": datasource(),
            "fieldConfig": { "defaults": { "unit": unit, "thresholds": { "mode": "absolute", "steps": steps } }, "overrides": [] },
            "options": { "colorMode": "background", "graphMode": "area", "reduceOptions": { "calcs": ["lastNotNull"] } },
            "targets": [target("A", &format!("{query} or vector(0)"), false)],
        })
    };
    vec![
        tile(
            "Agents",
            "short",
            format!("count({})", of("weir_info")),
            None,
            "Agents that Prometheus reaches.",
        ),
        tile("Samples", "cps", samples, None, "Samples received per second."),
        tile(
            "Kinds of losses",
            "short",
            losses,
            Some((1.0, 1.0)),
            "Losses, refusals and degradations since the agents started: the table below names each.",
        ),
        tile(
            "Failing outputs",
            "short",
            failing,
            Some((1.0, 1.0)),
            "Outputs whose last attempt failed.",
        ),
        tile(
            "Oldest waiting point",
            "s",
            format!("max({})", of("weir_output_lag_seconds")),
            Some((30.0, 120.0)),
            "The largest lag of an output.",
        ),
        tile(
            "Memory, of the budget",
            "percentunit",
            format!("max({used})"),
            Some((0.8, 0.95)),
            "The agent that uses most of its budget.",
        ),
    ]
}

fn charts() -> Vec<Value> {
    let rate = |series: &str| format!("sum by (instance) (rate({series}{{{CHOSEN}}}[$__rate_interval]))");
    let zero = format!("0 * weir_info{{{CHOSEN}}}");
    let chart = |title: &str, unit: &str, query: String, description: &str| {
        json!({
            "type": "timeseries",
            "title": title,
            "description": description,
            "datasource": datasource(),
            "fieldConfig": { "defaults": { "unit": unit, "min": 0, "custom": { "fillOpacity": 10 } }, "overrides": [] },
            "options": { "legend": { "displayMode": "list", "placement": "bottom" }, "tooltip": { "mode": "multi" } },
            "targets": [{ "refId": "A", "datasource": datasource(), "expr": query, "legendFormat": "{{instance}}" }],
        })
    };
    // Series with a reason do not exist before their first increase.
    let or_zero = |query: String| format!("{query} or sum by (instance) ({zero})");
    vec![
        chart(
            "Messages received",
            "cps",
            rate("weir_messages_received_total"),
            "Of all listeners.",
        ),
        chart(
            "Messages rejected",
            "cps",
            or_zero(rate("weir_messages_rejected_total")),
            "Invalid messages: `weir tail --rejected` shows them and their senders.",
        ),
        chart(
            "Packets dropped",
            "cps",
            or_zero(rate("weir_packets_dropped_total")),
            "By the kernel, by limits and at the stop.",
        ),
        chart(
            "Contexts",
            "short",
            format!("weir_contexts{{{CHOSEN}}}"),
            "Combinations of name and tags that the agents know.",
        ),
        chart(
            "Time of a flush",
            "s",
            format!("weir_flush_seconds{{{CHOSEN}}}"),
            "More than a bucket is too long: raise `bucket_width`, or see `weir top` for the metrics with the most contexts.",
        ),
        chart(
            "Points that wait",
            "short",
            format!("sum by (instance) (weir_output_pending{{{CHOSEN}}})"),
            "In the queues of all outputs.",
        ),
    ]
}

/// With width and height.
fn tables() -> Vec<(Value, usize, usize)> {
    vec![
        (losses(), 24, 9),
        (outputs(), 24, 8),
        (listeners(), 24, 8),
        (clients(), 12, 8),
        (metrics(), 12, 8),
    ]
}

fn summed(labels: &str, inner: &str) -> String {
    format!("sum by (instance, {labels}) ({inner})")
}

fn gauge(series: &str, label: &str) -> String {
    summed(label, &format!("{series}{{{CHOSEN}}}"))
}

/// A counter's rate, or zero where `base` exists and the counter not yet.
fn per_second(series: &str, label: &str, base: &str) -> String {
    let zero = summed(label, &format!("0 * {base}{{{CHOSEN}}}"));
    let rate = summed(label, &format!("rate({series}{{{CHOSEN}}}[$__rate_interval])"));
    format!("{rate} or {zero}")
}

/// The same of a counter's growth in the time range.
fn in_range(series: &str, label: &str, base: &str) -> String {
    let zero = summed(label, &format!("0 * {base}{{{CHOSEN}}}"));
    let growth = summed(label, &format!("increase({series}{{{CHOSEN}}}[$__range])"));
    format!("{growth} or {zero}")
}

fn outputs() -> Value {
    let (label, healthy) = ("output", "weir_output_healthy");
    let delivered = format!(
        "{} or {}",
        rate_of_buckets("weir_output_delivered_total", "instance, output"),
        summed(label, &format!("0 * {healthy}{{{CHOSEN}}}"))
    );
    let dropped = in_range("weir_output_dropped_total", label, healthy);
    let failed = in_range("weir_output_attempts_failed_total", label, healthy);
    table(
        "Outputs",
        "instance and output; counts are those of the time range.",
        &[
            ("state", STATE, gauge(healthy, label)),
            ("delivered/s", "cps", delivered),
            ("waiting", COUNT, gauge("weir_output_pending", label)),
            ("dropped", COUNT, dropped),
            ("failed attempts", COUNT, failed),
            ("lag", "s", gauge("weir_output_lag_seconds", label)),
        ],
        "no output is configured",
    )
}

fn listeners() -> Value {
    let (label, received) = ("listener", "weir_packets_received_total");
    let bytes = per_second("weir_received_bytes_total", label, received);
    let rejected = in_range("weir_messages_rejected_total", label, received);
    let dropped = in_range("weir_packets_dropped_total", label, received);
    table(
        "Listeners",
        "instance and listener; counts are those of the time range.",
        &[
            ("packets/s", "cps", per_second(received, label, received)),
            ("bytes/s", "Bps", bytes),
            ("rejected messages", COUNT, rejected),
            ("dropped packets", COUNT, dropped),
        ],
        "no listener",
    )
}

fn clients() -> Value {
    let of = |series: &str| gauge(series, "client, version");
    table(
        "Clients that report about themselves",
        "client and version, since the agents started.",
        &[
            ("packets sent", COUNT, of("weir_client_packets_sent_total")),
            ("packets dropped", COUNT, of("weir_client_packets_dropped_total")),
        ],
        "no client has reported",
    )
}

fn metrics() -> Value {
    let names = format!("{{__name__=~\".+\",{CHOSEN},__name__!~\"(weir|process|scrape|go)_.*|up\"}}");
    let most = format!("topk(20, count by (__name__) ({names}))");
    table(
        "Metrics with the most series",
        "As Prometheus stores them from the scrape of the agents.",
        &[("series", COUNT, most)],
        "no metric in the scrape yet",
    )
}

/// Counters of losses, by name.
fn loss_names() -> Vec<&'static str> {
    remedies().into_keys().collect()
}

/// Reason, meaning and remedy.
type Told = (Option<&'static str>, &'static str, &'static str);

/// Names of counters of losses, with the remedies of all their reasons.
fn remedies() -> BTreeMap<&'static str, Vec<Told>> {
    let mut remedies: BTreeMap<&'static str, Vec<Told>> = BTreeMap::new();
    for declared in declared() {
        let info = declared.info;
        if let (Significance::Problem(advice), NumberKind::Counter) = (info.significance, info.series.kind) {
            let reason = info.series.label.map(|(_, value)| value);
            let all = remedies.entry(info.series.name).or_default();
            let told = (reason, info.meaning(), advice);
            if !all.contains(&told) {
                all.push(told);
            }
        }
    }
    remedies
}

/// Texts by the name of a series or a reason.
type Texts = BTreeMap<&'static str, Vec<String>>;

/// A row for each loss since the agents started. The meaning and the remedy stand for the names of series and reasons.
fn losses() -> Value {
    let query = format!("{{__name__=~\"{}\",{CHOSEN}}} > 0", loss_names().join("|"));
    let mut panel = table(
        "Losses, refusals and degradations since the start, with their remedies",
        "Empty is good. Each row is a series of docs/metrics.md.",
        &[("count", COUNT, query)],
        "nothing was lost",
    );
    // Where a series has reasons, those have the remedy. Several counters may be one number, and several series may have one reason.
    let (mut of_names, mut of_reasons): (Texts, Texts) = Default::default();
    for (name, all) in remedies() {
        for (reason, meaning, advice) in all {
            let (texts, key) = match reason {
                None => (&mut of_names, name),
                Some(reason) => (&mut of_reasons, reason),
            };
            let texts = texts.entry(key).or_default();
            let text = format!("{meaning} {advice}");
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
    }
    let mapped = |field: &str, texts: Texts| {
        let options: serde_json::Map<String, Value> = texts
            .into_iter()
            .map(|(key, texts)| {
                (
                    key.to_owned(),
                    json!({ "text": format!("{key}: {}", texts.join(" / ")) }),
                )
            })
            .collect();
        json!({
            "matcher": { "id": "byName", "options": field },
            "properties": [{ "id": "mappings", "value": [{ "type": "value", "options": options }] }],
        })
    };
    let overrides = panel["fieldConfig"]["overrides"].as_array_mut();
    if let Some(list) = overrides {
        list.push(mapped("__name__", of_names));
        list.push(mapped("reason", of_reasons));
    }
    panel
}

/// The unit of whole numbers, with all their digits.
const COUNT: &str = "locale";
/// Of a column whose numbers are 1 and 0.
const STATE: &str = "state";

/// A table with a column for each query; rows with the same labels are joined.
fn table(title: &str, description: &str, columns: &[(&str, &str, String)], empty: &str) -> Value {
    let letters = 'A'..;
    let lettered: Vec<(String, &(&str, &str, String))> = letters.map(String::from).zip(columns).collect();
    let targets: Vec<Value> = lettered
        .iter()
        .map(|(letter, (.., query))| target(letter, query, true))
        .collect();
    let field = |letter: &str| match columns.len() {
        1 => "Value".to_owned(),
        _ => format!("Value #{letter}"),
    };
    let mut overrides: Vec<Value> = lettered
        .iter()
        .map(|(letter, (name, unit, _))| {
            let mut properties = vec![json!({ "id": "displayName", "value": name })];
            properties.extend(match *unit {
                STATE => vec![
                    json!({ "id": "custom.cellOptions", "value": { "type": "color-text" } }),
                    json!({ "id": "mappings", "value": [{ "type": "value", "options": {
                        "0": { "text": "✗ failing", "color": "red" },
                        "1": { "text": "✓ healthy", "color": "green" },
                    } }] }),
                ],
                // An increase is extrapolated, but what it counts is whole.
                COUNT => vec![
                    json!({ "id": "unit", "value": unit }),
                    json!({ "id": "decimals", "value": 0 }),
                ],
                unit => vec![json!({ "id": "unit", "value": unit })],
            });
            json!({ "matcher": { "id": "byName", "options": field(letter) }, "properties": properties })
        })
        .collect();
    overrides.push(json!({
        "matcher": { "id": "byName", "options": "instance" },
        "properties": [{ "id": "links", "value": [{
            "title": "The agent's page", "url": "http://${__value.text}/", "targetBlank": true,
        }] }],
    }));
    json!({
        "type": "table",
        "title": title,
        "description": description,
        "datasource": datasource(),
        "fieldConfig": { "defaults": { "noValue": empty }, "overrides": overrides },
        "options": { "showHeader": true },
        "transformations": [
            { "id": "merge", "options": {} },
            { "id": "organize", "options": { "excludeByName": { "Time": true, "job": true } } },
        ],
        "targets": targets,
    })
}

fn target(letter: &str, query: &str, as_table: bool) -> Value {
    let mut target = json!({ "refId": letter, "datasource": datasource(), "expr": query });
    if as_table {
        target["format"] = json!("table");
        target["instant"] = json!(true);
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/helm/weir/files/overview.json"
    );

    #[test]
    fn the_committed_overview_is_current() {
        let committed = std::fs::read_to_string(PATH).unwrap_or_default();
        assert!(
            committed == json(),
            "overview.json differs from the code; run: \
             cargo run -- status --dashboard=overview > packaging/helm/weir/files/overview.json"
        );
    }

    #[test]
    fn every_loss_has_its_remedy_in_the_table() {
        let text = losses().to_string();
        for declared in declared() {
            let info = declared.info;
            if let (Significance::Problem(_), NumberKind::Counter) = (info.significance, info.series.kind) {
                assert!(text.contains(info.series.name), "{info:?}");
                let remedy = serde_json::to_string(info.advice()).unwrap();
                assert!(text.contains(remedy.trim_matches('"')), "{info:?}");
            }
        }
    }

    #[test]
    fn panels_do_not_overlap_and_have_numbers_of_their_own() {
        let overview = overview();
        let (mut taken, mut numbers) = (
            std::collections::BTreeSet::new(),
            std::collections::BTreeSet::new(),
        );
        for panel in overview["panels"].as_array().unwrap() {
            assert!(numbers.insert(panel["id"].as_u64()), "{}", panel["title"]);
            let place = |field: &str| panel["gridPos"][field].as_u64().unwrap();
            assert!(place("x") + place("w") <= 24, "{}", panel["title"]);
            for line in place("y")..place("y") + place("h") {
                for column in place("x")..place("x") + place("w") {
                    assert!(taken.insert((line, column)), "{}", panel["title"]);
                }
            }
        }
    }
}
