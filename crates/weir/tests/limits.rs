//! Limits on contexts and who uses how much, with the real binary: a flood takes its share, everybody else loses nothing,
//! and the status names the sender.

use crate::support;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;

use serde_json::Value;
use support::{Agent, get, json, until, weir};

#[test]
fn top_shows_usage_by_metric_tag_key_and_origin() {
    let mut agent = Agent::start("bucket_width: 1s\nworkers: 1\n", &[]);
    let admin = agent.wait_for("admin on http://");
    let report = |top: u32| json(&admin, &format!("/api/v1/contexts?top={top}"));
    until("the contexts of a are counted", || {
        // In one datagram, so that no look at the contexts comes between: growth is counted from the first.
        let of_a = (0..5).map(|number| format!("a:1|g|#shard:{number},env:prod\n"));
        agent.send(&(of_a.collect::<String>() + &"b:1|c\n".repeat(50)));
        let (code, body) = get(&admin, "/api/v1/contexts");
        if code == 503 {
            assert!(body.contains("no flush yet"), "{body}");
            return false;
        }
        let report = report(10);
        let first = &report["metrics_by_contexts"][0];
        let most = &report["metrics_by_samples"][0];
        (first["metric"].clone(), first["contexts"].as_u64()) == (Value::from("a"), Some(5))
            && most["metric"] == "b"
            && report["growth_seconds"].as_u64() > Some(0)
    });
    let whole = report(256);
    assert_eq!(whole["contexts_live"], 6, "{whole}");
    assert_eq!(
        whole["tag_keys"],
        serde_json::json!([{"key": "shard", "values": 5, "growth": 0}, {"key": "env", "values": 1, "growth": 0}])
    );
    assert_eq!(whole["origins"][0]["origin"], "unknown");
    assert_eq!(report(1)["tag_keys"].as_array().unwrap().len(), 1);
    let (ok, page) = weir(&["top", "--admin", &admin]);
    assert!(ok, "{page}");
    for part in [
        "6 contexts of 2 metrics, 2 tag keys",
        "metric, by samples",
        "shard",
        "unknown",
    ] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
    let (ok, text) = weir(&["top", "--admin", &admin, "--top", "257"]);
    assert!(!ok && text.contains("1..=256"), "{text}");
    let status = json(&admin, "/api/v1/status");
    assert!(
        status["memory"]["parts"]["summaries"].as_u64() > Some(0),
        "{status}"
    );
    agent.stop();
}

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

#[test]
fn wrong_limits_are_refused_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    std::fs::write(&path, "contexts_per_metric_max: many\n").unwrap();
    let (ok, text) = weir(&["check", "--config", path.to_str().unwrap()]);
    assert!(!ok);
    for part in ["weir.yaml", "contexts_per_metric_max", "0"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn only_allowed_networks_are_listened_to() {
    let config = "bucket_width: 1s\nworkers: 1\ntcp: ['127.0.0.1:0']\ntcp_framing: newline\nallowed_networks: [127.0.0.64/26, 10.0.0.0/8]\noutputs:\n  stdout: {}\n";
    let mut agent = Agent::start(config, &[]);
    let tcp = agent.wait_for("listening on tcp://");
    let admin = agent.wait_for("admin on http://");
    let from = |host: &str, port: &str, messages: u32| {
        let socket = std::net::UdpSocket::bind((host, 0)).unwrap();
        for _ in 0..messages {
            socket.send_to(format!("of.{host}:1|c").as_bytes(), port).unwrap();
        }
    };
    let udp = agent.address().to_owned();
    for host in ["127.0.0.1", "127.0.0.70", "127.0.0.2"] {
        from(host, &udp, 10);
    }
    // A connection's source cannot be chosen with the standard library; the one allowed without any list is this.
    let mut allowed = TcpStream::connect(&tcp).unwrap();
    allowed.write_all(b"of.tcp:1|c\n").unwrap();
    until("everything has come", || {
        let status = json(&admin, "/api/v1/status");
        let packets = &status["total"]["packets"];
        // The line over TCP is a packet too.
        packets["dropped"]["source_not_allowed"] == 10 && packets["parsed"] == 21
    });
    let (_, page) = weir(&["status", "--admin", &admin]);
    assert!(
        page.contains("source_not_allowed 10") && page.contains("The books balance"),
        "{page}"
    );
    let (_, metrics) = get(&admin, "/metrics");
    assert!(metrics.contains("reason=\"source_not_allowed\"} 10"), "{metrics}");
    let (stdout, _) = agent.stop();
    for name in ["of.127.0.0.1", "of.127.0.0.70", "of.tcp"] {
        assert!(
            stdout.contains(&format!("\"{name}\"")),
            "{name} is not in {stdout}"
        );
    }
    assert!(!stdout.contains("\"of.127.0.0.2\""), "{stdout}");

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    std::fs::write(&path, "allowed_networks: [10.1.2.3/8]\n").unwrap();
    let (ok, text) = weir(&["check", "--config", path.to_str().unwrap()]);
    assert!(!ok);
    for part in ["weir.yaml", "allowed_networks", "10.1.2.3/8", "10.1.0.0/16"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}
