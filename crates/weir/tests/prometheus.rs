//! A real Prometheus, from the distribution's packages, scrapes the real agent.

use crate::support::receivers as support;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::*;

const PAGE: &str = include_str!("../../../docs/outputs/prometheus.md");

/// Its report about scrapes: each succeeded, except those over their time limit of a second, because the
/// machine was stopped.
fn check_health(prometheus: &mut Prometheus) {
    let failed = "count_over_time(((up == 0) and (scrape_duration_seconds < 0.9))[10m:1s])";
    let failed = prometheus.query(failed).unwrap();
    assert!(failed.is_empty(), "scrapes failed: {failed:?}");
    for (labels, share) in prometheus.query("avg_over_time(up[10m])").unwrap() {
        assert!(share > 0.5, "{share} of the scrapes succeeded: {labels}");
    }
    let (_, metrics) = get(&prometheus.address, "/metrics", "text/plain").unwrap();
    let metrics = String::from_utf8(metrics).unwrap();
    for name in [
        "sample_duplicate_timestamp_total",
        "sample_out_of_order_total",
        "sample_out_of_bounds_total",
        "exceeded_sample_limit_total",
        "exceeded_body_size_limit_total",
        "exemplar_out_of_order_total",
    ] {
        let line = format!("\nprometheus_target_scrapes_{name} 0\n");
        assert!(metrics.contains(&line), "{name} is not 0");
    }
    let (_, targets) = get(&prometheus.address, "/api/v1/targets", "*/*").unwrap();
    let targets: Value = serde_json::from_slice(&targets).unwrap();
    for target in targets["data"]["activeTargets"].as_array().unwrap() {
        let error = target["lastError"].as_str().unwrap();
        assert!(
            error.is_empty() || error.contains("deadline exceeded"),
            "{target}"
        );
    }
}

/// Messages with names and tags that collide in every way, and the sum of the counters among them.
fn hostile(seed: u64) -> (Vec<Vec<u8>>, f64) {
    println!("seed {seed}");
    let mut state = seed | 1;
    let mut pick = |choices: &[&'static str]| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        choices[(state >> 33) as usize % choices.len()]
    };
    let (mut messages, mut sum) = (Vec::new(), 0.0);
    for _ in 0..2000 {
        let name = pick(&[
            "n",
            "9n",
            "ü",
            "weir_",
            "up",
            "__name__",
            "scrape_duration_seconds",
        ])
        .to_owned()
            + pick(&[
                "", ".", "-", "_", ".total", "_total", ".sum", "_count", ".bucket", "_created",
            ])
            + pick(&["", "", "a", ".total"]);
        let kind = pick(&["c", "g", "s", "h", "ms", "d"]);
        let mut tags = vec![];
        for _ in 0..2 {
            tags.push(
                pick(&[
                    "k",
                    "k.",
                    "k-",
                    "__k",
                    "__name__",
                    "quantile",
                    "le",
                    "job",
                    "exported_job",
                    "instance",
                    "host",
                ])
                .to_owned()
                    + pick(&["", ":", ":x", ":\"\\", ":ü\u{0}", ":a=b\r"]),
            );
        }
        if kind == "c" {
            tags.push("oracle:yes".into());
            sum += 3.0;
        }
        messages.push(format!("{name}:3|{kind}|#{}", tags.join(",")).into_bytes());
    }
    (messages, sum)
}

#[test]
fn a_real_prometheus_reads_what_was_sent() {
    let agent = Agent::start(&["--bucket-width", "1s"], &[]);
    let short = Agent::start(
        &["--bucket-width", "1s"],
        &[("WEIR_OUTPUTS_PROMETHEUS_EXPIRY", "10s")],
    );
    let targets = [("weir", agent.admin.as_str()), ("short", short.admin.as_str())];
    let mut native = Prometheus::start(&targets, &["--enable-feature=native-histograms"]);
    let mut openmetrics = Prometheus::start(&targets[..1], &[]);
    // Both scrape before anything is sent.
    native.expect("sum(up)", &[("", 2.0)]);
    openmetrics.expect("sum(up)", &[("", 1.0)]);

    // One datagram is in one bucket.
    agent.send("requests:3|c|#path:/a\nrequests:1|c|@0.1|#path:/a\nrequests:5|c|#path:/b,bare\ntemperature:20|g|#host:web1\ntemperature:21|g|#host:web1\nusers:x|s\nusers:y|s\nusers:x|s");
    let timings: Vec<String> = (1..=100).map(|value| value.to_string()).collect();
    agent.send(format!("render.time:{}|ms|#quantile:q", timings.join(":")));
    // Of a shape whose quantiles are known: 0.001 * 1.01^i.
    let latencies: Vec<f64> = (0..1000).map(|step| 0.001 * 1.01f64.powi(step)).collect();
    for part in latencies.chunks(50) {
        let values: Vec<String> = part.iter().map(|value| format!("{value:e}")).collect();
        agent.send(format!("latency:{}|d|#le:x", values.join(":")));
    }
    agent.send("a_b:1|g\na.b:2|c\na-b:3|c\nt:1|ms\nt.sum:9|g\nup:7|g\nscrape_samples_scraped:7|g\nweir_contexts:5|g\none:1|c\none:2|g\none:3|s\none:4|h\none:5|ms\none:6|d");
    agent.send("stamped:4|c|T1700000000\nstamped:5|c|T1600000000\nstamped.gauge:8|g|T1700000000");
    let (messages, sum) = hostile(20_240_817);
    for message in &messages {
        agent.send(message);
    }
    short.send("fleeting:7|c");

    for prometheus in [&mut native, &mut openmetrics] {
        let weir = |query: &str| query.replace('@', "job=\"weir\"");
        for (query, expected) in [
            (
                "requests_total{@}",
                &[
                    ("__name__=requests_total,path=/a", 13.0),
                    ("__name__=requests_total,bare=true,path=/b", 5.0),
                ][..],
            ),
            ("temperature{@}", &[("__name__=temperature,host=web1", 21.0)]),
            ("users{@}", &[("__name__=users", 2.0)]),
            (
                "render_time_sum{@}",
                &[("__name__=render_time_sum,_quantile=q", 5050.0)],
            ),
            (
                "render_time_count{@}",
                &[("__name__=render_time_count,_quantile=q", 100.0)],
            ),
            (
                "render_time{@,quantile=\"0.95\"}",
                &[("__name__=render_time,_quantile=q,quantile=0.95", 95.0)],
            ),
            ("a_b{@}", &[("__name__=a_b", 1.0)]),
            ("count({@,__name__=~\"a_b_[0-9a-f]{8}_total\"})", &[("", 2.0)]),
            ("sum({@,__name__=~\"a_b_[0-9a-f]{8}_total\"})", &[("", 5.0)]),
            ("t_count{@}", &[("__name__=t_count", 1.0)]),
            ("one_total{@}", &[("__name__=one_total", 1.0)]),
            (
                "count({@,__name__=~\"one_[0-9a-f]{8}\",quantile=\"\"}) >= bool 2",
                &[("", 1.0)],
            ),
            ("stamped_total{@}", &[("__name__=stamped_total", 9.0)]),
            ("stamped_gauge{@}", &[("__name__=stamped_gauge", 8.0)]),
            ("up{@}", &[("__name__=up", 1.0)]),
            ("weir_scrape_renamed_metrics{@} > bool 10", &[("", 1.0)]),
        ] {
            prometheus.expect(&weir(query), expected);
        }
        prometheus.expect(
            &weir("sum({@,__name__=~\".+_total\",oracle=\"yes\"})"),
            &[("", sum)],
        );
    }

    // The native histogram, and the summary where it cannot be one.
    native.expect("histogram_count(latency)", &[("_le=x", 1000.0)]);
    native.expect_near("histogram_sum(latency)", latencies.iter().sum(), 1e-9);
    for quantile in [0.1, 0.5, 0.9, 0.99] {
        let exact = latencies[(quantile * 999.0) as usize];
        native.expect_near(&format!("histogram_quantile({quantile}, latency)"), exact, 0.03);
    }
    openmetrics.expect("latency_count", &[("__name__=latency_count,_le=x", 1000.0)]);
    openmetrics.expect_near("latency_sum", latencies.iter().sum(), 1e-9);

    // More of the same adds up.
    agent.send("requests:4|c|#path:/a\nlatency:1:1|d|#le:x");
    native.expect(
        "requests_total{path=\"/a\"}",
        &[("__name__=requests_total,path=/a", 17.0)],
    );
    native.expect("histogram_count(latency)", &[("_le=x", 1002.0)]);

    // A series that ends, and one that begins again.
    native.expect("fleeting_total", &[]);
    native.expect("max_over_time(fleeting_total[5m])", &[("", 7.0)]);
    short.send("fleeting:3|c");
    native.expect("fleeting_total", &[("__name__=fleeting_total", 3.0)]);

    check_health(&mut native);
    check_health(&mut openmetrics);

    // The text format, read by the tool of the same package. Its advice on names is exit status 3.
    let (head, text) = get(&agent.admin, "/metrics", "text/plain").unwrap();
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(&text).unwrap();
    let output = check.wait_with_output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");

    let (_, status) = get(&agent.admin, "/api/v1/status", "*/*").unwrap();
    let status: Value = serde_json::from_slice(&status).unwrap();
    let output = status["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .find(|output| output["type"] == "prometheus")
        .unwrap();
    assert!(output["points"]["produced"].as_u64().unwrap() > 100, "{output}");
    assert_eq!(
        output["points"]["produced"], output["points"]["delivered"],
        "{output}"
    );
    let notes = output["notes"].to_string();
    assert!(notes.contains("is shown as"), "{notes}");
    assert!(
        status["memory"]["parts"]["scrape"].as_u64().unwrap() > 1000,
        "{status}"
    );
    drop((native, openmetrics));
    agent.finish();
    short.finish();
}

/// The page's job as it stands, and one that does not ask for native histograms: of the first, quantiles are found.
#[test]
#[ignore = "nightly: builds Prometheus 3"]
fn a_current_prometheus_has_native_histograms_when_it_asks_for_them() {
    assert!(PAGE.contains("| 3.8 and later | `scrape_native_histograms: true` in the scrape job"));
    let agent = Agent::start(&["--bucket-width", "1s"], &[]);
    let page = PAGE
        .split("```yaml\n")
        .find(|block| block.starts_with("# prometheus.yml"))
        .unwrap();
    let job = page.split("```").next().unwrap();
    let job = job.replace("127.0.0.1:8127", &agent.admin).replace("15s", "1s");
    let without = job
        .split_once("scrape_configs:\n")
        .unwrap()
        .1
        .replace("job_name: weir", "job_name: without");
    let config = format!("{job}    scrape_native_histograms: true\n{without}");
    let program = built_prometheus_3();
    let mut prometheus = Prometheus::start_configured(&program, &free_address(), &config, &[]);
    prometheus.expect("sum(up)", &[("", 2.0)]);
    let values: Vec<String> = (1..=100).map(|value| value.to_string()).collect();
    agent.send(format!("latency:{}|d", values.join(":")));
    prometheus.expect("histogram_count(latency{job=\"weir\"})", &[("", 100.0)]);
    prometheus.expect_near("histogram_quantile(0.9, latency{job=\"weir\"})", 90.0, 0.03);
    // The other one has the summary instead.
    prometheus.expect("sum(latency_count{job=\"without\"})", &[("", 100.0)]);
    prometheus.expect("histogram_quantile(0.9, latency{job=\"without\"})", &[]);
    check_health(&mut prometheus);
    agent.finish();
}
