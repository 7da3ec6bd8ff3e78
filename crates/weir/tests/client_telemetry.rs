//! Telemetry of clients, in the form of each client, sent to the real binary: their losses stand beside the agent's own,
//! and their metrics pass unchanged.

use crate::support;
use std::collections::BTreeMap;

use serde_json::Value;
use support::{Agent, get, json, status, until, weir};

const FAMILY: &str = "datadog.dogstatsd.client.";

/// The messages of datadog-go 5.9 in one interval, in its order; the Go client of weir sends the same with its own version.
fn datadog_go(version: &str, queue: u64, writer: u64) -> Vec<String> {
    let tags = format!("env:prod,client:go,client_version:{version},client_transport:udp");
    let dropped = queue + writer;
    let numbers = [
        ("metrics", 700),
        ("events", 1),
        ("service_checks", 2),
        ("metric_dropped_on_receive", 3),
        ("packets_sent", 40),
        ("packets_dropped", dropped),
        ("packets_dropped_queue", queue),
        ("packets_dropped_writer", writer),
        ("bytes_dropped", dropped * 100),
        ("bytes_sent", 4000),
        ("bytes_dropped_queue", queue * 100),
        ("bytes_dropped_writer", writer * 100),
        ("aggregated_context", 50),
    ];
    let line = |(name, number)| format!("{FAMILY}{name}:{number}|c|#{tags}");
    let by_type = |name| format!("{FAMILY}{name}:700|c|#{tags},metrics_type:count");
    let mut lines: Vec<String> = numbers.map(line).to_vec();
    lines.extend(["metrics_by_type", "aggregated_context_by_type"].map(by_type));
    lines
}

/// The messages of dogstatsd-ruby 5; the Ruby client of weir adds `aggregated_context`, and sends the same otherwise.
fn dogstatsd_ruby(version: &str, transport: &str, queue: u64) -> Vec<String> {
    let tags = format!("client:ruby,client_version:{version},client_transport:{transport}");
    let numbers = [
        ("metrics", 300),
        ("events", 0),
        ("service_checks", 0),
        ("bytes_sent", 900),
        ("bytes_dropped", queue * 10),
        ("bytes_dropped_queue", queue * 10),
        ("bytes_dropped_writer", 0),
        ("packets_sent", 9),
        ("packets_dropped", queue),
        ("packets_dropped_queue", queue),
        ("packets_dropped_writer", 0),
    ];
    let line = |(name, number)| format!("{FAMILY}{name}:{number}|c|#{tags}");
    numbers.map(line).to_vec()
}

/// In datagrams of a few lines, as clients send them.
fn send(agent: &Agent, lines: &[String]) {
    lines.chunks(8).for_each(|lines| agent.send(&lines.join("\n")));
}

fn start(config: &str) -> (Agent, String) {
    let mut agent = Agent::start(config, &[]);
    let admin = agent.wait_for("admin on http://");
    (agent, admin)
}

fn row<'a>(status: &'a Value, client: &str, version: &str) -> &'a Value {
    let rows = status["clients"]["seen"].as_array().unwrap();
    let found = rows
        .iter()
        .find(|row| row["client"] == client && row["version"] == version);
    found.unwrap_or_else(|| panic!("no {client} {version} in {status}"))
}

const CONFIG: &str = "bucket_width: 1s\nworkers: 2\ncounter_expiry: 0s\noutputs: {stdout: {enabled: true}}\n";

#[test]
fn drops_of_each_client_are_shown_beside_the_losses_of_the_agent_and_continue_in_the_next_process() {
    let directory = tempfile::tempdir().unwrap();
    let config = format!(
        "{CONFIG}state_path: {}\n",
        directory.path().join("state").display()
    );
    let (agent, admin) = start(&config);
    let ours = "client:ruby,client_version:0.1.0,client_transport:uds,pod_name:web-1,service:shop";
    send(&agent, &datadog_go("5.9.0", 5, 2));
    send(&agent, &datadog_go("5.9.0", 1, 0));
    send(&agent, &dogstatsd_ruby("5.7.1", "udp", 11));
    agent.send(&format!(
        "{FAMILY}packets_dropped_writer:4|c|#{ours}\n{FAMILY}packets_dropped:4|c|#{ours}"
    ));
    agent.send("shop.statsd_instrument.batched_uds_sink.synchronous_sends:6|c");
    // Nobody's: another name of the family, a negative number, another type.
    agent.send(&format!(
        "{FAMILY}packets_lost:1|c\n{FAMILY}packets_dropped:-3|c\n{FAMILY}packets_dropped:9|g"
    ));
    until("everything is reported", || {
        let clients = &status(&admin)["clients"];
        clients["packets_dropped"] == 23
            && clients["synchronous_sends"] == 6
            && clients["metrics"] == 1700
            && clients["aggregated_contexts"] == 100
            && clients["bytes_sent"] == 8900
    });
    let seen = status(&admin);
    let clients = &seen["clients"];
    for (field, number) in [
        ("known", 4),
        ("events", 2),
        ("service_checks", 4),
        ("metrics_dropped_on_receive", 6),
        ("aggregated_contexts", 100),
        ("packets_sent", 89),
        ("bytes_sent", 8900),
        ("packets_dropped_queue", 17),
        ("packets_dropped_writer", 6),
        ("bytes_dropped", 910),
        ("bytes_dropped_queue", 710),
        ("bytes_dropped_writer", 200),
        ("crowded", 0),
    ] {
        assert_eq!(clients[field], number, "{field} in {clients}");
    }
    let go = row(&seen, "go", "5.9.0");
    assert_eq!(
        (&go["transport"], &go["origin"]),
        (&"udp".into(), &"".into()),
        "{go}"
    );
    assert_eq!(
        (&go["packets_dropped"], &go["packets_dropped_queue"]),
        (&8.into(), &6.into()),
        "{go}"
    );
    let ours = row(&seen, "ruby", "0.1.0");
    assert_eq!(
        (&ours["origin"], &ours["packets_dropped_writer"]),
        (&"pod_name:web-1".into(), &4.into())
    );
    let instrument = row(&seen, "statsd-instrument", "");
    assert_eq!(
        (&instrument["transport"], &instrument["synchronous_sends"]),
        (&"uds".into(), &6.into())
    );
    // The largest loss comes first.
    assert_eq!(clients["seen"][0]["version"], "5.7.1", "{clients}");

    let (_, series) = get(&admin, "/metrics");
    for line in [
        "weir_clients_packets_dropped_queue_total 17",
        r#"weir_client_packets_dropped_total{client="go",origin="",transport="udp",version="5.9.0"} 8"#,
        r#"weir_client_packets_dropped_writer_total{client="ruby",origin="pod_name:web-1",transport="uds",version="0.1.0"} 4"#,
    ] {
        assert!(series.contains(line), "{line:?} is not in\n{series}");
    }
    let (good, page) = weir(&["status", "--admin", &admin]);
    assert!(good, "{page}");
    for part in [
        "could not write: 6",
        "queue had no room: 17",
        "Raise its queue",
        "pod_name:web-1",
    ] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
    // Losses on the page are per second, so compare their sum.
    until("the page's books have it", || {
        let path = "/api/v1/books?match=weir_clients_packets_dropped_queue_total";
        let books = json(&admin, path);
        let values = books["series"][0]["values"].as_array();
        values.is_some_and(|values| values.iter().filter_map(Value::as_f64).sum::<f64>() == 17.0)
    });
    let meanings = json(&admin, "/api/v1/meanings");
    let is_sign = |meaning: &Value| {
        meaning["name"] == "weir_clients_packets_dropped_queue_total" && meaning["sign"] == true
    };
    assert!(meanings.as_array().unwrap().iter().any(is_sign), "{meanings}");
    let (stdout, _) = agent.stop();
    let (agent, admin) = start(&config);
    assert_eq!(status(&admin)["clients"]["packets_dropped_queue"], 17);
    send(&agent, &dogstatsd_ruby("5.7.1", "uds", 2));
    until("it is added", || {
        status(&admin)["clients"]["packets_dropped_queue"] == 19
    });
    assert_eq!(row(&status(&admin), "ruby", "5.7.1")["packets_dropped_queue"], 2);
    forwarded(&(stdout + &agent.stop().0));
}

/// The metrics are as if nobody had looked at them.
fn forwarded(stdout: &str) {
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for line in stdout.lines() {
        let point: Value = serde_json::from_str(line).unwrap();
        if let (Some(metric), Some("rate" | "count" | "counter")) =
            (point["metric"].as_str(), point["type"].as_str())
        {
            *sums.entry(metric.to_owned()).or_default() += point["value"].as_f64().unwrap();
        }
    }
    for (name, sum) in [
        ("packets_dropped", 22.0),
        ("packets_lost", 1.0),
        ("packets_dropped_queue", 19.0),
        ("metrics_by_type", 1400.0),
        ("bytes_sent", 9800.0),
    ] {
        assert_eq!(
            sums.get(&format!("{FAMILY}{name}")),
            Some(&sum),
            "{name} in {sums:?}"
        );
    }
}
