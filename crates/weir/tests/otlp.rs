//! The real agent exports OTLP to a real Prometheus and a real collector.

use crate::support::receivers as support;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::*;

/// An agent with this output alone, and buckets of a second.
fn agent(directory: &Path, settings: &str) -> Agent {
    let path = directory.join("weir.yaml");
    let text = format!("outputs:\n  prometheus: {{enabled: false}}\n  otlp:\n{settings}");
    std::fs::write(&path, text).unwrap();
    Agent::start(&["--bucket-width", "1s", "--config", path.to_str().unwrap()], &[])
}

/// A Prometheus with its OTLP receiver on, and settings that send it cumulative points.
fn prometheus_3() -> (Prometheus, String) {
    let mut prometheus = Prometheus::start_program(
        &built_prometheus_3(),
        &[],
        &["--web.enable-otlp-receiver", "--enable-feature=native-histograms"],
    );
    prometheus.expect("vector(1)", &[("", 1.0)]);
    let settings = format!(
        "    url: http://{}/api/v1/otlp\n    temporality: cumulative\n    resource_attributes: {{service.name: shop}}\n",
        prometheus.address
    );
    (prometheus, settings)
}

/// Cumulative points into a Prometheus with its OTLP receiver on.
#[test]
#[ignore = "nightly: builds Prometheus 3"]
fn a_real_prometheus() {
    a_series_that_it_refuses();
    let (mut prometheus, settings) = prometheus_3();
    let directory = tempfile::tempdir().unwrap();
    let latencies: Vec<f64> = (0..1000).map(|step| 0.1 * 1.003f64.powi(step)).collect();
    let mut total = 0.0;
    for round in 1..=2 {
        let agent = agent(directory.path(), &settings);
        agent.send(
            "requests:3|c|#path:/a\nrequests:1|c|@0.1|#path:/a\ntemperature:21|g\nusers:x|s\nusers:y|s",
        );
        for part in latencies.chunks(50) {
            let values: Vec<String> = part.iter().map(|value| format!("{value:e}")).collect();
            agent.send(format!("latency:{}|d", values.join(":")));
        }
        prometheus.expect("sum(requests_total{path=\"/a\",job=\"shop\"})", &[("", 13.0)]);
        agent.send("requests:4|c|#path:/a");
        prometheus.expect("sum(requests_total{path=\"/a\"})", &[("", 17.0)]);
        prometheus.expect("sum(temperature)", &[("", 21.0)]);
        prometheus.expect("sum(users)", &[("", 2.0)]);
        prometheus.expect("histogram_count(sum(latency))", &[("", 1000.0)]);
        prometheus.expect_near("histogram_sum(sum(latency))", latencies.iter().sum(), 1e-9);
        for quantile in [0.1, 0.5, 0.9, 0.99] {
            let exact = latencies[(quantile * 999.0) as usize];
            prometheus.expect_near(
                &format!("histogram_quantile({quantile}, sum(latency))"),
                exact,
                0.03,
            );
        }
        total += 17.0;
        // At the end every series ends.
        agent.finish();
        prometheus.expect("requests_total", &[]);
        prometheus.expect("latency", &[]);
        let found = prometheus.samples("requests_total[10m]").unwrap();
        let samples: Vec<f64> = found
            .into_values()
            .flatten()
            .map(|(_, value)| value.parse().unwrap())
            .collect();
        let falls = samples.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert_eq!(falls, round - 1, "{samples:?}");
    }
    assert_eq!(total, 34.0);
    let metrics = prometheus.own_metrics();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let value = line.rsplit_once(' ').unwrap().1;
        if line.starts_with("prometheus_http_requests_total") && line.contains("otlp") {
            assert!(line.contains("code=\"20") || value == "0", "{line}");
        }
        if line.starts_with("prometheus_tsdb_out_of_order_samples_total") {
            assert_eq!(value, "0", "{line}");
        }
    }
}

/// It answers 500 to a whole request for a label name without an ASCII letter or digit. That series is left out, in every bucket
/// in which it comes again, and the others arrive.
fn a_series_that_it_refuses() {
    let (mut prometheus, settings) = prometheus_3();
    let directory = tempfile::tempdir().unwrap();
    let agent = agent(directory.path(), &settings);
    agent.send("poison:1|c|#日本:x\nfine:1|c\nfine:1|c|#other:series");
    prometheus.expect("sum(fine_total)", &[("", 2.0)]);
    for total in 3..6 {
        agent.send("fine:1|c");
        prometheus.expect("sum(fine_total)", &[("", f64::from(total))]);
    }
    prometheus.expect("count(poison_total)", &[]);
    let output = until("the series is refused and named", || {
        let output = agent.output("otlp");
        let rejected = output["points"]["dropped"]["rejected"].as_u64().unwrap_or(0);
        (rejected > 1).then_some(output.clone()).ok_or(output.to_string())
    });
    let text = output.to_string();
    assert!(
        text.contains("poison") && text.contains("series that the receiver refuses"),
        "{text}"
    );
    agent.finish();
}

/// Both protocols and temporalities into a collector that writes what it got into a file.
#[test]
#[ignore = "nightly: builds an OpenTelemetry collector"]
fn a_real_collector() {
    let program = built("receivers/collector", ".", &[]);
    for (protocol, temporality) in [
        ("http", "delta"),
        ("http", "cumulative"),
        ("grpc", "delta"),
        ("grpc", "cumulative"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let address = free_address();
        let written = directory.path().join("written.jsonl");
        let config = directory.path().join("collector.yaml");
        std::fs::write(
            &config,
            format!(
                "receivers: {{otlp: {{protocols: {{{protocol}: {{endpoint: '{address}'}}}}}}}}\nexporters: {{file: {{path: {}}}}}\nservice:\n  telemetry: {{metrics: {{level: none}}}}\n  pipelines: {{metrics: {{receivers: [otlp], exporters: [file]}}}}\n",
                written.display()
            ),
        )
        .unwrap();
        let child = Command::new(&program)
            .arg(format!("--config=file:{}", config.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let _killed = Killed(child);
        until("the collector listens", || {
            TcpStream::connect(&address)
                .map(drop)
                .map_err(|error| error.to_string())
        });
        let settings =
            format!("    url: http://{address}\n    protocol: {protocol}\n    temporality: {temporality}\n");
        let agent = agent(directory.path(), &settings);
        agent.send("requests:3|c|#path:/a,bare\nheat:21|g\nusers:x|s\nsize:1:2:0:-4|d\ntime:5:6|ms");
        agent.finish();
        let names = ["heat", "requests", "size", "time", "users"];
        until(&format!("{protocol}, {temporality}"), || {
            let text = std::fs::read_to_string(&written).map_err(|error| error.to_string())?;
            let found = metrics(&text);
            if names.iter().all(|name| found.contains_key(*name)) {
                let number = u8::from(temporality == "cumulative") + 1;
                let requests = &found["requests"]["sum"];
                assert_eq!(requests["aggregationTemporality"], number, "{requests}");
                assert_eq!(requests["isMonotonic"], true);
                let point = &requests["dataPoints"][0];
                assert_eq!(point["asDouble"], 3.0);
                assert_eq!(point["attributes"].as_array().unwrap().len(), 2);
                let size = &found["size"]["exponentialHistogram"]["dataPoints"][0];
                assert_eq!(size["count"], "4", "{size}");
                // Go writes whole numbers without a point.
                assert_eq!(size["sum"].as_f64(), Some(-1.0), "{size}");
                assert_eq!(size["zeroCount"], "1");
                return Ok(());
            }
            Err(text)
        });
    }
}

/// The first time that each metric was written.
fn metrics(text: &str) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let Ok(request) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        for resource in request["resourceMetrics"].as_array().unwrap() {
            for scope in resource["scopeMetrics"].as_array().unwrap() {
                for metric in scope["metrics"].as_array().unwrap() {
                    let name = metric["name"].as_str().unwrap().to_owned();
                    found.entry(name).or_insert_with(|| metric.clone());
                }
            }
        }
    }
    found
}
