//! The real agent writes InfluxDB's line protocol to real receivers: InfluxDB 1 over HTTP and UDP, and VictoriaMetrics in the API of
//! both versions; the configurations of the page.

use std::collections::BTreeMap;

use crate::support::influxdb::InfluxDb;
use crate::support::receivers::VictoriaMetrics;
use crate::support::{Agent, configurations, names_every_setting, until};

const PAGE: &str = include_str!("../../../docs/outputs/influx.md");
const MESSAGES: &str = "page.views:1|c|@0.5|#env:prod\npage.views:3|c|#env:test\nqueue:7|g|#host:db1\nusers:ada|s\nusers:bob|s\nload.time:4:1:3:2|ms|#k:/a b\n\
    bytes:100:200:300|d\n_sc|page|0\n_e{1,1}:a|b\nodd, =name:5|g|#odd key:C:\\dir\\file,q:\"x\"\n";

/// Every series with the sum of its points: name and labels, as a query language would write them.
fn series(receiver: &VictoriaMetrics) -> BTreeMap<String, f64> {
    let path = "/api/v1/export?match[]=%7B__name__!%3D%22%22%7D";
    let body = receiver.get(path).unwrap_or_default();
    let mut found = BTreeMap::new();
    for line in body.lines() {
        let series: serde_json::Value = serde_json::from_str(line).unwrap();
        let labels: BTreeMap<&str, &str> = series["metric"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str().unwrap()))
            .collect();
        let rest: Vec<String> = labels
            .iter()
            .filter(|(key, _)| **key != "__name__")
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let values = series["values"].as_array().unwrap();
        let sum = values.iter().map(|value| value.as_f64().unwrap()).sum();
        found.insert(format!("{}{{{}}}", labels["__name__"], rest.join(",")), sum);
    }
    found
}

/// Expected values of MESSAGES, calculated by hand, with these additional labels.
fn expected(more: &str) -> BTreeMap<String, f64> {
    let timing = |field: &str| format!("load.time_{field}{{{more}host=here,k=/a b,metric_type=timing}}");
    let bytes = |field: &str| format!("bytes_{field}{{{more}host=here,metric_type=distribution}}");
    let mut expected = BTreeMap::from([
        (
            format!("page.views{{{more}env=prod,host=here,metric_type=counter}}"),
            2.0,
        ),
        (
            format!("page.views{{{more}env=test,host=here,metric_type=counter}}"),
            3.0,
        ),
        (format!("queue{{{more}host=db1,metric_type=gauge}}"), 7.0),
        (format!("users{{{more}host=here,metric_type=set}}"), 2.0),
        (
            format!("odd, =name{{{more}host=here,metric_type=gauge,odd key=C:\\dir\\file,q=\"x\"}}"),
            5.0,
        ),
    ]);
    for (field, value) in [
        ("count", 4.0),
        ("lower", 1.0),
        ("upper", 4.0),
        ("mean", 2.5),
        ("sum", 10.0),
    ] {
        expected.insert(timing(field), value);
    }
    for (field, value) in [
        ("count", 3.0),
        ("lower", 100.0),
        ("upper", 300.0),
        ("mean", 200.0),
        ("sum", 600.0),
    ] {
        expected.insert(bytes(field), value);
    }
    expected
}

/// Waits until a receiver has as many series as it should, and compares them.
fn compare(series: impl Fn() -> BTreeMap<String, f64>, expected: &BTreeMap<String, f64>) {
    let mut found = BTreeMap::new();
    until("every series", || {
        found = series();
        found.retain(|name, _| !name.contains("_percentile"));
        found.len() >= expected.len()
    });
    assert_eq!(found, *expected);
}

#[test]
fn victoria_metrics_takes_both_versions_as_the_page_has_them() {
    let receiver = VictoriaMetrics::start();
    let [first, second] = configurations(PAGE)[..] else {
        panic!("two configurations")
    };
    names_every_setting(second, "influx");
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().display().to_string();
    std::fs::write(directory.path().join("influx-token"), "secret\n").unwrap();
    let second = second.replace("outputs:\n  influx:\n", "  second:\n    type: influx\n");
    let config = (first.to_owned() + &second)
        .replace("127.0.0.1:8086", &receiver.address)
        .replace("/etc/weir", &at)
        .replace("/var/lib/weir", &at);
    let agent = Agent::start(&config, &[]);
    agent.send(MESSAGES);
    let (_, log) = agent.stop();
    assert!(!log.contains("cannot deliver"), "{log}");
    // It has no buckets.
    let mut both = expected("db=weir,");
    both.extend(expected(""));
    compare(|| series(&receiver), &both);
}

/// Every field of a database with the sum of its points, named as VictoriaMetrics names them.
fn sums(server: &InfluxDb, database: &str) -> BTreeMap<String, f64> {
    let fields = server.fields(database).into_iter();
    let named = fields.map(|(name, values)| {
        let (series, field) = name.rsplit_once("}.").unwrap();
        let (measurement, tags) = series.split_once('{').unwrap();
        let field = match field {
            "value" => String::new(),
            field => format!("_{field}"),
        };
        let sum = values.iter().map(|value| value.as_f64().unwrap()).sum();
        (format!("{measurement}{field}{{{tags}}}"), sum)
    });
    named.collect()
}

/// InfluxDB answers 404 until there is the database, and weir keeps what it has meanwhile.
#[test]
fn influxdb_takes_lines_over_http_and_udp_and_those_for_a_database_that_is_created_later() {
    let server = InfluxDb::start();
    server.create("weir");
    let address = &server.address;
    let others = format!(
        "  datagrams: {{type: influx, url: 'udp://{}'}}\n  \
         waits: {{type: influx, url: 'http://{address}', database: later, delivery: {{backoff_max: 100ms}}}}\nbucket_width: 1s\n",
        server.udp
    );
    let config = configurations(PAGE)[0].replace("127.0.0.1:8086", address) + &others;
    let mut agent = Agent::start(&config, &[]);
    agent.send(MESSAGES);
    agent.wait_for("database not found");
    server.create("later");
    for database in ["weir", "udp", "later"] {
        compare(|| sums(&server, database), &expected(""));
    }
    agent.stop();
}
