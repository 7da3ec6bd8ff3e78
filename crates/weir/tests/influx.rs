//! The real agent writes InfluxDB's line protocol to real receivers: InfluxDB 1 over HTTP and UDP, and VictoriaMetrics in the API of
//! both versions; the configurations of the page.

use crate::support;
use crate::support::receivers;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use receivers::{Killed, free_address};
use support::influxdb::InfluxDb;
use support::{Agent, configurations, names_every_setting, until};

const PAGE: &str = include_str!("../../../docs/outputs/influx.md");
const MESSAGES: &str = "page.views:1|c|@0.5|#env:prod\npage.views:3|c|#env:test\nqueue:7|g|#host:db1\nusers:ada|s\nusers:bob|s\nload.time:4:1:3:2|ms|#k:/a b\n\
    bytes:100:200:300|d\n_sc|page|0\n_e{1,1}:a|b\nodd, =name:5|g|#odd key:C:\\dir\\file,q:\"x\"\n";

struct VictoriaMetrics {
    _killed: Killed,
    _directory: tempfile::TempDir,
    address: String,
}

impl VictoriaMetrics {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = free_address();
        let child = Command::new("victoria-metrics")
            .arg(format!("-storageDataPath={}", directory.path().display()))
            .arg(format!("-httpListenAddr={address}"))
            .args(["-search.latencyOffset=0s", "-influxSkipSingleField"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("victoria-metrics is installed (scripts/install-test-deps.sh)");
        let receiver = Self {
            _killed: Killed(child),
            _directory: directory,
            address,
        };
        until("it answers", || receiver.get("/health").is_some());
        receiver
    }

    fn get(&self, path: &str) -> Option<String> {
        let (head, body) = receivers::get(&self.address, path, "*/*")?;
        head.contains(" 200 ").then(|| String::from_utf8(body).unwrap())
    }

    /// Every series with the sum of its points: name and labels, as a query language would write them.
    fn series(&self) -> BTreeMap<String, f64> {
        let path = "/api/v1/export?match[]=%7B__name__!%3D%22%22%7D";
        let body = self.get(path).unwrap_or_default();
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

/// Runs an agent with this configuration, and compares what the receiver has of it.
fn run(series: impl Fn() -> BTreeMap<String, f64>, config: &str, more: &str) {
    let agent = Agent::start(config, &[]);
    agent.send(MESSAGES);
    let (_, log) = agent.stop();
    assert!(!log.contains("cannot deliver"), "{log}");
    let expected = expected(more);
    let mut found = BTreeMap::new();
    until(&format!("every series of {config}"), || {
        found = series();
        found.retain(|name, _| !name.contains("_percentile"));
        found.len() >= expected.len()
    });
    assert_eq!(found, expected, "{config}");
}

#[test]
fn victoria_metrics_takes_the_first_version() {
    let receiver = VictoriaMetrics::start();
    let config = configurations(PAGE)[0].replace("127.0.0.1:8086", &receiver.address);
    run(|| receiver.series(), &config, "db=weir,");
}

#[test]
fn victoria_metrics_takes_the_second_version() {
    let receiver = VictoriaMetrics::start();
    let config = configurations(PAGE)[1];
    names_every_setting(config, "influx");
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().display().to_string();
    std::fs::write(directory.path().join("influx-token"), "secret\n").unwrap();
    let config = config
        .replace("127.0.0.1:8086", &receiver.address)
        .replace("/etc/weir", &at)
        .replace("/var/lib/weir", &at);
    // It has no buckets.
    run(|| receiver.series(), &config, "");
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

#[test]
fn influxdb_takes_lines_over_http_and_over_udp() {
    let server = InfluxDb::start();
    server.create("weir");
    let config = configurations(PAGE)[0].replace("127.0.0.1:8086", &server.address);
    run(|| sums(&server, "weir"), &config, "");
    let config = format!("outputs: {{influx: {{url: 'udp://{}'}}}}\n", server.udp);
    run(|| sums(&server, "udp"), &config, "");
}

/// InfluxDB answers 404 until there is the database, and weir keeps what it has meanwhile.
#[test]
fn points_for_a_database_that_is_created_later_wait_for_it() {
    let server = InfluxDb::start();
    let address = &server.address;
    let mut agent = Agent::start(
        &format!(
            "bucket_width: 1s\ncounter_expiry: 0\noutputs: {{influx: {{url: 'http://{address}', database: later, host: none, delivery: {{backoff_max: 100ms}}}}}}\n"
        ),
        &[],
    );
    agent.send("a:1|c\n");
    agent.wait_for("database not found");
    server.create("later");
    until("it has arrived", || {
        sums(&server, "later") == BTreeMap::from([("a{metric_type=counter}".into(), 1.0)])
    });
    agent.stop();
}
