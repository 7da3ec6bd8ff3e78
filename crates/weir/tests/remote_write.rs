//! The real agent writes to real receivers: the distribution's Prometheus and VictoriaMetrics, and a newer Prometheus
//! for version 2.0.

use crate::support::preload;
use crate::support::receivers as support;
use std::collections::BTreeMap;
use std::path::Path;

use preload::{OTHER_CLOCK, preloaded};
use serde_json::Value;
use support::*;

const NATIVE: &str = "--enable-feature=native-histograms";

struct Config {
    directory: tempfile::TempDir,
    url: String,
}

impl Config {
    fn new(address: &str) -> Self {
        Config {
            directory: tempfile::tempdir().unwrap(),
            url: format!("http://{address}/api/v1/write"),
        }
    }

    /// An agent that writes there every second.
    fn agent(&self, settings: &str) -> Agent {
        self.agent_in(settings, &[])
    }

    fn agent_in(&self, settings: &str, environment: &[(&str, &str)]) -> Agent {
        let path = self.directory.path().join("weir.yaml");
        let text = format!(
            "outputs:\n  prometheus: {{enabled: false}}\n  remote_write:\n    url: {}\n    labels: {{job: weir}}\n{settings}",
            self.url
        );
        std::fs::write(&path, text).unwrap();
        let arguments = ["--bucket-width", "1s", "--config", path.to_str().unwrap()];
        Agent::start(&arguments, environment)
    }
}

fn receiver(program: &Path) -> Prometheus {
    let mut prometheus =
        Prometheus::start_program(program, &[], &["--web.enable-remote-write-receiver", NATIVE]);
    prometheus.expect("vector(1)", &[("", 1.0)]);
    prometheus
}

/// It refused nothing: no request, no sample.
fn check_health(prometheus: &Prometheus) {
    let metrics = prometheus.own_metrics();
    let mut writes = 0;
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap_or(f64::NAN);
        if name.starts_with("prometheus_http_requests_total") && name.contains("/api/v1/write") && value > 0.0
        {
            assert!(name.contains("code=\"20"), "{line}");
            writes += 1;
        }
        let refusals = [
            "out_of_order",
            "out_of_bound",
            "too_old",
            "duplicate",
            "remote_write_invalid",
        ];
        if name.starts_with("prometheus_")
            && name.contains("_total")
            && refusals.iter().any(|part| name.contains(part))
        {
            assert_eq!(value, 0.0, "{line}");
        }
    }
    assert!(writes > 0, "{metrics}");
}

/// Sum of all increases of a series, where a fall is a restart from zero; each time once, ascending.
fn increase(samples: &[(i64, String)]) -> f64 {
    assert!(samples.is_sorted_by(|a, b| a.0 < b.0), "{samples:?}");
    let values: Vec<f64> = samples.iter().map(|(_, value)| value.parse().unwrap()).collect();
    values
        .windows(2)
        .map(|pair| {
            if pair[1] < pair[0] {
                pair[1]
            } else {
                pair[1] - pair[0]
            }
        })
        .sum()
}

fn series(prometheus: &Prometheus, query: &str) -> Vec<(i64, String)> {
    let found = prometheus.samples(query).unwrap();
    assert_eq!(found.len(), 1, "{query}: {found:?}");
    found.into_values().next().unwrap()
}

/// Values as sent, order kept, nothing refused, across a restart and a kill.
fn real_prometheus(program: &Path, version: &str) {
    let mut prometheus = receiver(program);
    let config = Config::new(&prometheus.address);
    let settings = format!("    version: '{version}'\n    expiry: 20s\n");
    let agent = config.agent(&settings);

    agent.send("requests:3|c|#path:/a\nrequests:1|c|@0.1|#path:/a\nrequests:5|c|#path:/b,bare\ntemperature:20|g|#host:web1\ntemperature:21|g|#host:web1\nusers:x|s\nusers:y|s\nusers:x|s");
    let timings: Vec<String> = (1..=100).map(|value| value.to_string()).collect();
    agent.send(format!("render.time:{}|ms|#quantile:q", timings.join(":")));
    let latencies: Vec<f64> = (0..1000).map(|step| 0.001 * 1.01f64.powi(step)).collect();
    for part in latencies.chunks(50) {
        let values: Vec<String> = part.iter().map(|value| format!("{value:e}")).collect();
        agent.send(format!("latency:{}|d|#le:x", values.join(":")));
    }
    agent.send("a_b:1|g\na.b:2|c\na-b:3|c\nt:1|ms\nt.sum:9|g\nup:7|g\none:1|c\none:2|g\none:3|s\none:4|h\none:5|ms\none:6|d\nd.negative:-1:-2:0:3|d");
    agent.send("Upper:1|c|#Zone:a,_x:b,job:mine,instance:here\nü.ü:1|g|#ü:ü\"\\");
    agent.send("stamped:4|c|T1700000000\nstamped:5|c|T1600000000\nstamped.gauge:8|g|T1700000000");
    agent.send("fleeting:7|g");

    const EVERY: &str = "instance=agent,job=weir";
    for (query, expected) in [
        (
            "requests_total",
            &[
                ("__name__=requests_total,@,path=/a", 13.0),
                ("__name__=requests_total,bare=true,@,path=/b", 5.0),
            ][..],
        ),
        ("temperature", &[("__name__=temperature,host=web1,@", 21.0)]),
        ("users", &[("__name__=users,@", 2.0)]),
        (
            "render_time_sum",
            &[("__name__=render_time_sum,_quantile=q,@", 5050.0)],
        ),
        (
            "render_time_count",
            &[("__name__=render_time_count,_quantile=q,@", 100.0)],
        ),
        (
            "render_time{quantile=\"0.95\"}",
            &[("__name__=render_time,_quantile=q,@,quantile=0.95", 95.0)],
        ),
        ("a_b", &[("__name__=a_b,@", 1.0)]),
        ("count({__name__=~\"a_b_[0-9a-f]{8}_total\"})", &[("", 2.0)]),
        ("sum({__name__=~\"a_b_[0-9a-f]{8}_total\"})", &[("", 5.0)]),
        ("t_count", &[("__name__=t_count,@", 1.0)]),
        ("one_total", &[("__name__=one_total,@", 1.0)]),
        ("stamped_total", &[("__name__=stamped_total,@", 9.0)]),
        ("stamped_gauge", &[("__name__=stamped_gauge,@", 8.0)]),
        (
            "Upper_total",
            &[("Zone=a,__name__=Upper_total,_x=b,instance=here,job=mine", 1.0)],
        ),
        ("___", &[("_=ü\"\\,__name__=___,@", 1.0)]),
        ("fleeting", &[("__name__=fleeting,@", 7.0)]),
    ] {
        let expected: Vec<(String, f64)> = expected
            .iter()
            .map(|(labels, value)| (labels.replace('@', EVERY), *value))
            .collect();
        let expected: Vec<(&str, f64)> = expected
            .iter()
            .map(|(labels, value)| (labels.as_str(), *value))
            .collect();
        prometheus.expect_all(query, &expected);
    }
    prometheus.expect("histogram_count(latency)", &[("_le=x", 1000.0)]);
    prometheus.expect_near("histogram_sum(latency)", latencies.iter().sum(), 1e-9);
    for quantile in [0.1, 0.5, 0.9, 0.99] {
        let exact = latencies[(quantile * 999.0) as usize];
        prometheus.expect_near(&format!("histogram_quantile({quantile}, latency)"), exact, 0.03);
    }
    prometheus.expect("histogram_count(d_negative)", &[("", 4.0)]);
    prometheus.expect("histogram_sum(d_negative)", &[("", 0.0)]);
    prometheus.expect_near("histogram_fraction(-10, -0.5, d_negative)", 0.5, 1e-9);

    // More adds up, in the series and in the histogram. The idle are repeated, bucket after bucket, until they expire.
    agent.send("requests:4|c|#path:/a\nlatency:1:1|d|#le:x");
    prometheus.expect("sum(requests_total{path=\"/a\"})", &[("", 17.0)]);
    prometheus.expect("histogram_count(latency)", &[("_le=x", 1002.0)]);
    prometheus.expect("count_over_time(fleeting[5m]) >= bool 5", &[("", 1.0)]);
    prometheus.expect("fleeting", &[]);
    prometheus.expect("max_over_time(fleeting[5m])", &[("", 7.0)]);

    // At the end every series ends.
    agent.finish();
    for query in ["requests_total", "temperature", "latency", "render_time_count"] {
        prometheus.expect(query, &[]);
    }
    let mut total = 17.0;
    // A restart with more than there was, so that the value alone does not show it; a kill; another restart.
    for (round, more) in [100.0, 50.0, 25.0].into_iter().enumerate() {
        let agent = config.agent(&settings);
        agent.send(format!(
            "requests:{more}|c|#path:/a\nlatency:{more}:{more}|d|#le:x"
        ));
        prometheus.expect("sum(requests_total{path=\"/a\"})", &[("", more)]);
        prometheus.expect("histogram_count(latency)", &[("_le=x", 2.0)]);
        total += more;
        if round == 1 {
            drop(agent);
        } else {
            agent.finish();
        }
    }
    // A restart is seen by every sum of increases, also the first value of the first agent.
    let raw = series(&prometheus, "requests_total{path=\"/a\"}[10m]");
    assert_eq!(increase(&raw), total, "{raw:?}");
    let counts = series(&prometheus, "render_time_count[10m]");
    assert_eq!(increase(&counts), 100.0, "{counts:?}");
    check_health(&prometheus);
}

#[test]
fn version_1_to_a_real_prometheus() {
    real_prometheus(Path::new("prometheus"), "1.0");
}

/// Prometheus 3, built from its sources through the module proxy: several minutes the first time, and gigabytes.
#[test]
#[ignore = "nightly: builds Prometheus 3"]
fn both_versions_to_a_current_prometheus_and_after_an_outage() {
    let program = built_prometheus_3();
    real_prometheus(&program, "2.0");
    real_prometheus(&program, "1.0");
    outages(&program);
}

/// Samples from an agent's disk queue reach a receiver that has newer samples of the agent by then.
/// The agent lives `outage` seconds ago. Returns the books and the log of the one after it, once the receiver has judged everything.
fn after_an_outage(program: &Path, outage: i64, storage: &str) -> (PointBooks, String, Prometheus) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let library = preloaded(directory.path(), OTHER_CLOCK);
    std::fs::write(at("offset"), (-outage).to_string()).unwrap();
    let address = free_address();
    let config = Config::new(&address);
    let settings = format!("    delivery: {{disk_path: {}}}\n", at("queue"));
    let long_ago = [("LD_PRELOAD", &*library), ("CLOCK_OFFSET", &*at("offset"))];
    // The clock reads a file that the sandbox would keep it from.
    let agent = config.agent_in(&format!("{settings}sandbox: off\n"), &long_ago);
    agent.send("held.up:7|c");
    until("it waits", || {
        let books = agent.points("remote_write");
        (books.pending > 0 && books.to_write == 0)
            .then_some(())
            .ok_or(format!("{books:?}"))
    });
    agent.finish();

    let scraping = format!(
        "{storage}scrape_configs:\n  - job_name: itself\n    scrape_interval: 1s\n    static_configs:\n      - targets: ['{address}']\n"
    );
    let receiving = ["--web.enable-remote-write-receiver", NATIVE];
    let mut prometheus = Prometheus::start_configured(program, &address, &scraping, &receiving);
    prometheus.expect("sum(up)", &[("", 1.0)]);
    let agent = config.agent(&settings);
    agent.send("present:1|c");
    prometheus.expect("sum(present_total)", &[("", 1.0)]);
    let books = agent.points("remote_write");
    agent.signal("-TERM");
    (books, agent.finished(), prometheus)
}

/// The sum that a receiver has of what was held up.
fn held_up(prometheus: &mut Prometheus) -> Option<f64> {
    let found = prometheus.query("max(max_over_time(held_up_total[4h]))").unwrap();
    found.into_values().next()
}

fn outages(program: &Path) {
    let page = PAGE
        .split("```yaml\n")
        .find(|block| block.starts_with("# prometheus.yml"))
        .unwrap();
    let cure = page.split("```").next().unwrap();
    assert!(cure.contains("out_of_order_time_window: 12h"), "{cure}");
    // Half of a block is an hour.
    for (outage, storage, arrives) in [(1800, "", true), (7200, "", false), (7200, cure, true)] {
        let (books, said, mut prometheus) = after_an_outage(program, outage, storage);
        let what = format!("{outage} s, {storage:?}: {books:?}\n{said}");
        assert_eq!(held_up(&mut prometheus), arrives.then_some(7.0), "{what}");
        assert_eq!(books.dropped > 0, !arrives, "{what}");
        assert_eq!(
            said.contains("out of bounds") || said.contains("too old sample"),
            !arrives,
            "{what}"
        );
    }
}

/// Remote write is refused after an outage of more than an hour, although the disk queue has everything; what the page says cures
/// that.
#[test]
fn after_an_outage_the_documented_window_accepts_everything() {
    outages(Path::new("prometheus"));
}

/// Waits for these last values of the series of this name.
fn until_last(victoria: &VictoriaMetrics, query: &str, expected: &[(&str, &str)]) {
    let expected: BTreeMap<String, String> = expected
        .iter()
        .map(|(labels, value)| (format!("__name__={query},{labels}"), (*value).to_owned()))
        .collect();
    until(query, || {
        let found = samples(&victoria.address, &format!("{query}[1m]"))?;
        let last: BTreeMap<String, String> = found
            .into_iter()
            .filter_map(|(labels, samples)| Some((labels, samples.last()?.1.clone())))
            .collect();
        match last == expected {
            true => Ok(()),
            false => Err(format!("{last:?} instead of {expected:?}")),
        }
    });
}

/// A Prometheus that has native histograms off refuses them alone, and what to do about it is in the status. VictoriaMetrics 1.79 would pass
/// over them in silence. With the setting, both get quantiles.
#[test]
fn receivers_without_native_histograms_take_the_rest_and_quantiles() {
    let mut prometheus = Prometheus::start(&[], &["--web.enable-remote-write-receiver"]);
    prometheus.expect("vector(1)", &[("", 1.0)]);
    let victoria = VictoriaMetrics::start();
    let config = Config::new(&prometheus.address);
    let more = |name: &str, address: &str| {
        format!(
            "  {name}: {{type: remote_write, url: 'http://{address}/api/v1/write', labels: {{job: {name}}}, distributions: summary}}\n"
        )
    };
    let others = more("summary", &prometheus.address) + &more("victoria", &victoria.address);
    let agent = config.agent(&others);
    agent.send("requests:3|c|#path:/a\nrequests:2|c|#path:/b\ntemperature:21|g\nusers:x|s\nusers:y|s");
    agent.send("latency:1:2:9|d\nrender:5:6|ms");
    let requests = |of_a: f64| [("path=/a", of_a), ("path=/b", 2.0)];
    prometheus.expect("sum by (path) (requests_total{job=\"weir\"})", &requests(3.0));
    let output = until("the refusal is in the status", || {
        let output = agent.output("remote_write");
        let error = output["last_error"].as_str().unwrap_or_default();
        let dropped = output["points"]["dropped"]["rejected"].as_u64();
        let is_it = error.contains("distributions: summary") && dropped >= Some(1);
        is_it.then_some(output.clone()).ok_or(output.to_string())
    });
    assert_eq!(agent.points("summary").dropped, 0, "{output}");
    prometheus.expect("sum(latency_count)", &[("", 3.0)]);
    prometheus.expect("sum(latency_sum)", &[("", 12.0)]);
    prometheus.expect_near("latency{quantile=\"0.99\"}", 9.0, 0.02);
    const EVERY: &str = "instance=agent,job=victoria";
    let expect = |query: &str, value: &str| until_last(&victoria, query, &[(EVERY, value)]);
    let (of_a, of_b) = (format!("{EVERY},path=/a"), format!("{EVERY},path=/b"));
    until_last(&victoria, "requests_total", &[(&of_a, "3"), (&of_b, "2")]);
    expect("temperature", "21");
    expect("users", "2");
    expect("latency_count", "3");
    expect("latency_sum", "12");
    expect("render_sum", "11");
    agent.send("requests:4|c|#path:/a");
    prometheus.expect("sum by (path) (requests_total{job=\"weir\"})", &requests(7.0));
    until_last(&victoria, "requests_total", &[(&of_a, "7"), (&of_b, "2")]);
    agent.finish();
    // Ended: an instant query finds nothing more.
    until("the series end", || {
        let body = victoria
            .get("/api/v1/query?query=temperature")
            .ok_or("no answer")?;
        let answer: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
        let is_empty = answer["data"]["result"].as_array().is_some_and(Vec::is_empty);
        is_empty.then_some(()).ok_or(body)
    });
    let metrics = victoria.get("/metrics").unwrap();
    let errors = metrics
        .lines()
        .find(|line| line.starts_with("vm_http_request_errors_total{path=\"/api/v1/write\""));
    assert!(errors.is_none_or(|line| line.ends_with(" 0")), "{errors:?}");
}

const PAGE: &str = include_str!("../../../docs/outputs/remote_write.md");

pub fn promtool_takes(config: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("prometheus.yml");
    std::fs::write(&path, config).unwrap();
    let output = std::process::Command::new("promtool")
        .args(["check", "config"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
