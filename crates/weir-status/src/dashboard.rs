//! A dashboard for Grafana, generated from the declarations: every series has a panel with its meaning.

use serde_json::{Value, json};
use weir_counters::{NumberKind, Significance};

use super::metrics_page::groups;
use super::series::{Declared, declared};

/// Width of Grafana's grid.
const COLUMNS: usize = 24;
/// Width of a panel.
const WIDTH: usize = 8;
const HEIGHT: usize = 7;

/// Selects the agents chosen in the dashboard's variables.
pub(super) const CHOSEN: &str = r#"job=~"$job",instance=~"$instance""#;

/// The text of `dashboard.json`.
pub fn json() -> String {
    let mut text = format!("{:#}", dashboard());
    text.push('\n');
    text
}

fn dashboard() -> Value {
    let all = declared();
    let mut grid = Grid::default();
    let mut panels = vec![grid.row("At a glance", false)];
    for (title, unit, query) in glance() {
        let meaning = "An overview; the rows below have a panel for each series.";
        let panel = panel(title, meaning, unit, &query);
        panels.push(grid.place(panel));
    }
    panels.push(grid.row(
        "Losses, refusals and degradations: these should stay at zero",
        false,
    ));
    for counters in groups(&all).iter().flat_map(|(_, members)| members) {
        if is_problem(counters) {
            panels.push(grid.place(of_series(counters)));
        }
    }
    for (title, members) in groups(&all) {
        let mut row = grid.row(title, true);
        let mut inside = grid.clone();
        let works = members.iter().filter(|counters| {
            counters
                .iter()
                .all(|counter| matches!(counter.info.significance, Significance::Normal(_)))
        });
        row["panels"] = works.map(|counters| inside.place(of_series(counters))).collect();
        panels.push(row);
    }
    json!({
        "title": "weir",
        "uid": "weir",
        "description": "Written by `weir status --dashboard` from the table of weir's own series.",
        "tags": ["weir"],
        "schemaVersion": 39,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": variables() },
        "panels": numbered(panels),
    })
}

/// The overview: title, unit, query.
fn glance() -> [(&'static str, &'static str, String); 6] {
    let rate = |name: &str| {
        or_zero(format!(
            "sum by (instance) (rate({name}{{{CHOSEN}}}[$__rate_interval]))"
        ))
    };
    let share = format!("weir_memory_used_bytes{{{CHOSEN}}} / weir_memory_budget_bytes{{{CHOSEN}}}");
    [
        ("Samples received", "cps", rate("weir_samples_received_total")),
        ("Messages rejected", "cps", rate("weir_messages_rejected_total")),
        ("Packets dropped", "cps", rate("weir_packets_dropped_total")),
        (
            "Items that outputs dropped",
            "cps",
            or_zero(rate_of_buckets("weir_output_dropped_total", "instance")),
        ),
        ("Memory, of the budget", "percentunit", share),
        (
            "Age of the oldest waiting point",
            "s",
            format!("weir_output_lag_seconds{{{CHOSEN}}}"),
        ),
    ]
}

/// The data source, and the agents that are looked at.
pub(super) fn variables() -> [Value; 3] {
    [
        json!({ "name": "datasource", "type": "datasource", "query": "prometheus" }),
        variable("job", "label_values(weir_info, job)"),
        variable("instance", "label_values(weir_info{job=~\"$job\"}, instance)"),
    ]
}

/// A variable with the values of a query.
fn variable(name: &str, query: &str) -> Value {
    json!({
        "name": name,
        "type": "query",
        "datasource": datasource(),
        "query": { "query": query, "refId": "v" },
        "definition": query,
        "refresh": 2,
        "multi": true,
        "includeAll": true,
        "current": { "text": "All", "value": "$__all" },
    })
}

pub(super) fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

/// The panel of one series.
fn of_series(counters: &[&Declared]) -> Value {
    let info = counters[0].info;
    let mut meaning = info.help().to_owned();
    for counter in counters {
        if let Some((label, value)) = info.series.label.and(counter.info.series.label) {
            meaning += &format!("\n\n{label} `{value}`: {}", counter.info.meaning());
        }
        let advice = counter.info.advice();
        if !meaning.ends_with(advice) {
            meaning += &format!("\n\n{advice}");
        }
    }
    let mut panel = panel(
        info.series.name,
        &meaning,
        &unit(info.series.unit, info.series.kind),
        &query(counters),
    );
    if info.series.kind == NumberKind::Gauge && !is_problem(counters) {
        panel["fieldConfig"]["defaults"]["noValue"] =
            json!("not in use: the chosen agents have no such series");
    }
    panel
}

fn is_problem(counters: &[&Declared]) -> bool {
    let mut all = counters.iter();
    all.any(|counter| matches!(counter.info.significance, Significance::Problem(_)))
}

/// Zero for agents without any such series: counters with a reason do not exist before their first increase.
pub(super) fn or_zero(query: String) -> String {
    format!("{query} or on (instance) sum by (instance) (0 * weir_info{{{CHOSEN}}})")
}

/// The rate of what outputs do once per bucket, by these labels: per second of the buckets. A fixed time, as `rate` has it, covers one bucket
/// more or less than another, and a flat load has peaks. What a relay sends does not wait for buckets; a merge has none.
pub(super) fn rate_of_buckets(series: &str, labels: &str) -> String {
    let rate = |chosen: &str| format!("sum by ({labels}) (rate({series}{{{chosen}}}[$__rate_interval]))");
    let of_buckets = rate(&format!("{CHOSEN},kind!=\"message\""));
    let seconds = format!("rate(weir_last_flush_timestamp_seconds{{{CHOSEN}}}[$__rate_interval])");
    format!(
        "{of_buckets} / on (instance) group_left () (max by (instance) ({seconds}) > 0.1 < 2) or {}",
        rate(CHOSEN)
    )
}

fn query(counters: &[&Declared]) -> String {
    let series = counters[0].info.series;
    match series.kind {
        // Grafana's times are milliseconds.
        NumberKind::Gauge if is_time(series.name) => format!("{}{{{CHOSEN}}} * 1000", series.name),
        NumberKind::Gauge if is_problem(counters) => or_zero(format!("{}{{{CHOSEN}}}", series.name)),
        NumberKind::Gauge => format!("{}{{{CHOSEN}}}", series.name),
        NumberKind::Counter => or_zero({
            let mut labels = vec!["instance"];
            labels.extend(&counters[0].labels);
            let name = series.name;
            if name.starts_with("weir_output_") && labels.contains(&"kind") {
                rate_of_buckets(name, &labels.join(", "))
            } else {
                format!(
                    "sum by ({}) (rate({name}{{{CHOSEN}}}[$__rate_interval]))",
                    labels.join(", ")
                )
            }
        }),
    }
}

/// Grafana's name of a unit.
fn unit(unit: &str, kind: NumberKind) -> String {
    match (unit, kind) {
        ("bytes", NumberKind::Counter) => "Bps".to_owned(),
        ("bytes", NumberKind::Gauge) => "bytes".to_owned(),
        ("seconds", NumberKind::Gauge) => "s".to_owned(),
        (_, NumberKind::Counter) => "cps".to_owned(),
        (_, NumberKind::Gauge) => "short".to_owned(),
    }
}

/// Whether the values of a series are moments.
fn is_time(series: &str) -> bool {
    series.ends_with("_timestamp_seconds") || series == "weir_start_time_seconds"
}

fn panel(title: &str, description: &str, unit: &str, query: &str) -> Value {
    let defaults = match is_time(title) {
        true => json!({ "unit": "dateTimeAsIso" }),
        false => json!({ "unit": unit, "min": 0 }),
    };
    json!({
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": datasource(),
        "fieldConfig": { "defaults": defaults, "overrides": [] },
        "options": { "legend": { "displayMode": "list", "placement": "bottom" }, "tooltip": { "mode": "multi" } },
        "targets": [{ "refId": "A", "datasource": datasource(), "expr": query }],
    })
}

/// Lays out panels side by side.
#[derive(Clone, Default)]
pub(super) struct Grid {
    column: usize,
    line: usize,
}

impl Grid {
    fn row(&mut self, title: &str, collapsed: bool) -> Value {
        if self.column > 0 {
            self.line += HEIGHT;
        }
        let place = json!({ "h": 1, "w": COLUMNS, "x": 0, "y": self.line });
        self.column = 0;
        self.line += 1;
        json!({ "type": "row", "title": title, "collapsed": collapsed, "gridPos": place, "panels": [] })
    }

    fn place(&mut self, panel: Value) -> Value {
        self.place_of(panel, WIDTH, HEIGHT)
    }

    /// Panels of one line have the same height and fill it.
    pub(super) fn place_of(&mut self, mut panel: Value, width: usize, height: usize) -> Value {
        panel["gridPos"] = json!({ "h": height, "w": width, "x": self.column, "y": self.line });
        self.column += width;
        if self.column == COLUMNS {
            self.column = 0;
            self.line += height;
        }
        panel
    }
}

/// Each panel needs a unique number, even within rows.
pub(super) fn numbered(mut panels: Vec<Value>) -> Vec<Value> {
    fn number(panels: &mut [Value], next: &mut u64) {
        for panel in panels {
            panel["id"] = json!(*next);
            *next += 1;
            // An index would add the field.
            if let Some(inside) = panel.get_mut("panels").and_then(Value::as_array_mut) {
                number(inside, next);
            }
        }
    }
    number(&mut panels, &mut 1);
    panels
}

/// The parts of a dashboard that Grafana reads: an unknown name has no effect there, without a word.
#[cfg(test)]
pub(super) mod schema {
    use std::collections::BTreeSet;

    use serde_json::Value;

    const UNITS: &[&str] = &[
        "cps",
        "Bps",
        "bytes",
        "s",
        "short",
        "percentunit",
        "locale",
        "dateTimeAsIso",
    ];
    const COLOURS: &[&str] = &["green", "yellow", "red", "blue"];

    fn keys<'a>(value: &'a Value, known: &[&str], place: &str) -> &'a serde_json::Map<String, Value> {
        let fields = value
            .as_object()
            .unwrap_or_else(|| panic!("{place} is no record: {value}"));
        for (key, field) in fields {
            assert!(known.contains(&key.as_str()), "{place}: {key}");
            assert!(!field.is_null(), "{place}: {key} is null");
        }
        fields
    }

    fn one_of(value: &Value, known: &[&str], place: &str) {
        let text = value.as_str().unwrap_or_else(|| panic!("{place}: {value}"));
        assert!(known.contains(&text), "{place}: {text}");
    }

    fn items<'a>(value: &'a Value, place: &str) -> &'a [Value] {
        value
            .as_array()
            .unwrap_or_else(|| panic!("{place} is no list: {value}"))
    }

    pub fn check(dashboard: &Value) {
        let top = [
            "title",
            "uid",
            "description",
            "tags",
            "schemaVersion",
            "editable",
            "graphTooltip",
            "refresh",
            "time",
            "templating",
            "annotations",
            "links",
            "panels",
        ];
        keys(dashboard, &top, "dashboard");
        let list = items(&dashboard["templating"]["list"], "variables");
        let declared: BTreeSet<String> = list
            .iter()
            .map(|variable| variable["name"].as_str().unwrap().to_owned())
            .collect();
        for variable in list {
            one_of(&variable["type"], &["datasource", "query"], "variable");
        }
        for panel in items(&dashboard["panels"], "panels") {
            one(panel, &declared);
        }
    }

    fn one(panel: &Value, declared: &BTreeSet<String>) {
        let title = panel["title"].as_str().unwrap();
        if panel["type"] == "row" {
            keys(
                panel,
                &["id", "type", "title", "gridPos", "collapsed", "panels"],
                title,
            );
            let inside = items(&panel["panels"], title);
            // A row that is open has its panels behind it.
            assert!(panel["collapsed"] == true || inside.is_empty(), "{title}");
            inside.iter().for_each(|panel| one(panel, declared));
            return;
        }
        let known = [
            "id",
            "type",
            "title",
            "gridPos",
            "description",
            "datasource",
            "fieldConfig",
            "options",
            "targets",
            "transformations",
        ];
        keys(panel, &known, title);
        let mut columns: BTreeSet<String> = ["instance", "__name__", "reason", "Value"]
            .map(str::to_owned)
            .into();
        for target in items(&panel["targets"], title) {
            keys(
                target,
                &["refId", "datasource", "expr", "legendFormat", "format", "instant"],
                title,
            );
            assert!(
                columns.insert(format!("Value #{}", target["refId"].as_str().unwrap())),
                "{title}"
            );
            // Only rows of one moment can be joined to a table.
            let is_table = target["format"] == "table" && target["instant"] == true;
            assert_eq!(is_table, panel["type"] == "table", "{title}");
            for name in target["expr"].as_str().unwrap().split('$').skip(1) {
                let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
                let name = &name[..end.unwrap_or(name.len())];
                assert!(
                    declared.contains(name) || ["__rate_interval", "__range"].contains(&name),
                    "{title}: {name}"
                );
            }
        }
        options(panel, title);
        fields(&panel["fieldConfig"], &columns, title);
        let steps = panel
            .get("transformations")
            .map_or(&[][..], |list| items(list, title));
        for step in steps {
            keys(step, &["id", "options"], title);
            one_of(&step["id"], &["merge", "organize"], title);
            keys(&step["options"], &["excludeByName"], title);
        }
    }

    fn options(panel: &Value, title: &str) {
        let options = &panel["options"];
        match panel["type"].as_str().unwrap() {
            "timeseries" => {
                keys(options, &["legend", "tooltip"], title);
                keys(&options["legend"], &["displayMode", "placement"], title);
                one_of(
                    &options["legend"]["displayMode"],
                    &["list", "table", "hidden"],
                    title,
                );
                one_of(&options["legend"]["placement"], &["bottom", "right"], title);
                one_of(&options["tooltip"]["mode"], &["single", "multi", "none"], title);
            }
            "stat" => {
                keys(options, &["colorMode", "graphMode", "reduceOptions"], title);
                one_of(
                    &options["colorMode"],
                    &["none", "value", "background", "background_solid"],
                    title,
                );
                one_of(&options["graphMode"], &["none", "area"], title);
                for calculation in items(&options["reduceOptions"]["calcs"], title) {
                    one_of(calculation, &["last", "lastNotNull", "mean", "max", "min"], title);
                }
            }
            "table" => drop(keys(options, &["showHeader"], title)),
            other => panic!("{title} is a {other}"),
        }
    }

    fn fields(config: &Value, columns: &BTreeSet<String>, title: &str) {
        keys(config, &["defaults", "overrides"], title);
        let defaults = keys(
            &config["defaults"],
            &["unit", "min", "noValue", "thresholds", "custom"],
            title,
        );
        if let Some(unit) = defaults.get("unit") {
            one_of(unit, UNITS, title);
        }
        if let Some(custom) = defaults.get("custom") {
            keys(custom, &["fillOpacity"], title);
        }
        if let Some(thresholds) = defaults.get("thresholds") {
            one_of(&thresholds["mode"], &["absolute", "percentage"], title);
            let steps = items(&thresholds["steps"], title);
            // The first step is the colour below all others.
            assert!(steps[0]["value"].is_null(), "{title}");
            let values: Vec<f64> = steps[1..]
                .iter()
                .map(|step| step["value"].as_f64().unwrap())
                .collect();
            assert!(values.is_sorted(), "{title}: {values:?}");
            steps
                .iter()
                .for_each(|step| one_of(&step["color"], COLOURS, title));
        }
        for of in items(&config["overrides"], title) {
            assert_eq!(of["matcher"]["id"], "byName", "{title}");
            let column = of["matcher"]["options"].as_str().unwrap();
            assert!(columns.contains(column), "{title}: {column}");
            for property in items(&of["properties"], title) {
                let value = &keys(property, &["id", "value"], title)["value"];
                match property["id"].as_str().unwrap() {
                    "displayName" => assert!(value.is_string(), "{title}"),
                    "decimals" => assert!(value.is_u64(), "{title}"),
                    "unit" => one_of(value, UNITS, title),
                    "custom.cellOptions" => {
                        one_of(&value["type"], &["auto", "color-text", "color-background"], title)
                    }
                    "links" => items(value, title).iter().for_each(|link| {
                        keys(link, &["title", "url", "targetBlank"], title);
                    }),
                    "mappings" => items(value, title).iter().for_each(|mapping| {
                        one_of(&mapping["type"], &["value"], title);
                        for (_, to) in mapping["options"].as_object().unwrap() {
                            assert!(keys(to, &["text", "color"], title)["text"].is_string(), "{title}");
                        }
                    }),
                    other => panic!("{title}: {other}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_name_that_grafana_knows() {
        schema::check(&dashboard());
        schema::check(&crate::overview::overview());
    }

    const PATH: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/helm/weir/files/dashboard.json"
    );

    #[test]
    fn the_committed_dashboard_is_current() {
        let committed = std::fs::read_to_string(PATH).unwrap_or_default();
        assert!(
            committed == json(),
            "dashboard.json differs from the code; run: \
             cargo run -- status --dashboard > packaging/helm/weir/files/dashboard.json"
        );
    }

    #[test]
    fn every_series_has_one_panel_and_panels_do_not_share_numbers() {
        let dashboard = dashboard();
        let top = dashboard["panels"].as_array().unwrap();
        let inside = top
            .iter()
            .flat_map(|panel| panel["panels"].as_array().into_iter().flatten());
        let panels: Vec<&Value> = top.iter().chain(inside).collect();
        for declared in declared() {
            let name = declared.info.series.name;
            let shown = panels.iter().filter(|panel| panel["title"] == name).count();
            assert_eq!(shown, 1, "{name}");
        }
        let numbers: std::collections::BTreeSet<u64> =
            panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(numbers.len(), panels.len());
    }

    /// Grafana moves overlapping panels.
    #[test]
    fn panels_that_are_seen_together_do_not_overlap() {
        let dashboard = dashboard();
        let mut taken = std::collections::BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let place = |field: &str| panel["gridPos"][field].as_u64().unwrap();
            for line in place("y")..place("y") + place("h") {
                for column in place("x")..place("x") + place("w") {
                    assert!(taken.insert((line, column)), "{}", panel["title"]);
                }
            }
        }
    }
}
