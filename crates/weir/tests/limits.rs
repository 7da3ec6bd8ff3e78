//! Limits on contexts and who uses how much, with the real binary: a flood takes its share, everybody else loses nothing,
//! and the status names the sender.

use crate::support;
use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;

use serde_json::Value;
use support::{Agent, get, json, until, weir};

#[test]
fn a_flood_is_limited_to_its_share_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dsd.socket");
    let config = format!(
        "bucket_width: 1s\nworkers: 1\ncontexts_max: 2000\ntag_values_alert: 500\nuds: [{}]\noutputs:\n  stdout: {{}}\n  prometheus: {{}}\n",
        path.display()
    );
    let mut agent = Agent::start(&config, &[]);
    let admin = agent.wait_for("admin on http://");
    // A Unix socket pushes back: nothing is lost on the way.
    let socket = UnixDatagram::unbound().unwrap();
    socket.connect(&path).unwrap();
    let send = |line: String| {
        socket.send(line.as_bytes()).unwrap();
    };
    let mut sent = 0;
    let mut flood = |count: u64| {
        for _ in 0..count {
            send(format!("flood:1|c|#env:prod,id:{sent}"));
            sent += 1;
        }
    };
    flood(6000);
    let rounds = 5;
    for _ in 0..rounds {
        for number in 0..200 {
            send(format!("hot.{}:2|c|#n:{number}", number % 3));
        }
        flood(500);
    }
    let mut status = Value::Null;
    until("the offender is in the status", || {
        // It repeats, so that any bucket shown has some.
        flood(20);
        status = json(&admin, "/api/v1/status");
        status["limits"]["limited"][0]["metric"] == "flood" && status["limits"]["tag_keys"][0]["key"] == "id"
    });
    let limited = &status["limits"]["limited"][0];
    assert_eq!(
        (&limited["reason"], &limited["tag_key"]),
        (&"metric_share".into(), &"id".into())
    );
    assert!(
        status["limits"]["tag_keys"][0]["values"].as_u64() > Some(500),
        "{status}"
    );
    let (_, page) = weir(&["status", "--admin", &admin]);
    for part in [
        "limited in the last bucket",
        "flood",
        "metric_share",
        "ALERT: tag key \"id\" has 1,",
        "The books balance",
    ] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
    let (ok, page) = weir(&["top", "--admin", &admin]);
    for part in ["metric, by samples", "flood", "id", "unknown"] {
        assert!(ok && page.contains(part), "{part:?} is not in\n{page}");
    }
    assert!(
        status["memory"]["parts"]["summaries"].as_u64() > Some(0),
        "{status}"
    );
    let (_, metrics) = get(&admin, "/metrics");
    assert!(
        metrics.contains("weir_tag_key_values_alert{key=\"id\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("weir_context_limit_samples_total{reason=\"metric_share\"}"),
        "{metrics}"
    );
    let total = sent;
    let (stdout, log) = agent.stop();
    assert!(log.contains("metric \"flood\": "), "{log}");
    assert!(
        log.contains("exceeded the limit metric_share; its tag \"id\" has about"),
        "{log}"
    );
    assert!(log.contains("tag key \"id\": "), "{log}");

    let mut sums: BTreeMap<(String, String), f64> = BTreeMap::new();
    for line in stdout.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let key = (
            row["metric"].as_str().unwrap().to_owned(),
            row["tags"].to_string(),
        );
        *sums.entry(key).or_default() += row["value"].as_f64().unwrap() * row["interval"].as_f64().unwrap();
    }
    let hot: Vec<f64> = sums
        .iter()
        .filter(|((name, _), _)| name.starts_with("hot."))
        .map(|(_, sum)| *sum)
        .collect();
    assert_eq!(hot, vec![2.0 * f64::from(rounds); 200]);
    let of_flood = sums.iter().filter(|((name, _), _)| name == "flood");
    let flood: f64 = of_flood.map(|(_, sum)| sum).sum();
    assert_eq!(flood, total as f64);
    let overflow = sums[&("flood".to_owned(), "[\"weir_overflow:true\"]".to_owned())];
    assert!(overflow >= total as f64 - 1601.0, "{overflow} of {total}");
}
