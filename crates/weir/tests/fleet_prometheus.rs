//! Three real agents with tags of their own, one real merge, and a real Prometheus that scrapes it: one p99 and one exact counter for all of them.

use crate::support::receivers as support;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use support::{Agent, Killed, Prometheus, until};

fn agent(directory: &Path, number: usize) -> Agent {
    let config = directory.join(format!("web{number}.yaml"));
    let text = format!(
        "tags: [instance:web{number}]\nstate_path: {0}/web{number}\noutputs:\n  prometheus: {{enabled: false}}\n  kafka:\n    directory: {0}/log\n    \
         partitions: 2\n    rules: [{{name: no instance, exclude_tags: [instance]}}]\n",
        directory.display()
    );
    std::fs::write(&config, text).unwrap();
    let name = format!("web{number}");
    Agent::start(&["--hostname", &name, "--config", config.to_str().unwrap()], &[])
}

/// The process, and where it answers.
fn merge(directory: &Path) -> (Killed, String) {
    let (config, log) = (directory.join("merge.yaml"), directory.join("merge.log"));
    let text = format!(
        "log: {{directory: {}/log, partitions: 2}}\ngrace: 20s\nadmin: 127.0.0.1:0\n",
        directory.display()
    );
    std::fs::write(&config, text).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .env_clear()
        .args(["merge", "--config"])
        .arg(&config)
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let child = Killed(child);
    let address = until("the merge answers", || {
        let text = std::fs::read_to_string(&log).unwrap();
        let address = text
            .split_once("admin on http://")
            .map(|(_, rest)| rest.to_owned());
        let address = address.and_then(|rest| rest.lines().next().map(str::to_owned));
        address.ok_or(text)
    });
    (child, address)
}

/// Waits for a moment with some seconds before the end of a bucket.
fn early_in_a_bucket() {
    until("early in a bucket", || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let into = now.as_secs() % 10;
        if (0..5).contains(&into) {
            return Ok(());
        }
        Err(format!("{into} s into it"))
    });
}

#[test]
fn three_agents_are_one_series_in_a_real_prometheus() {
    let directory = tempfile::tempdir().unwrap();
    let agents: Vec<Agent> = (1..=3).map(|number| agent(directory.path(), number)).collect();
    let (_merge, address) = merge(directory.path());
    let mut prometheus = Prometheus::start(&[("fleet", &address)], &[]);
    prometheus.expect("sum(up)", &[("", 1.0)]);
    early_in_a_bucket();
    let (mut requests, mut number) = (0, 0);
    for round in 0..100 {
        for (of, agent) in (1..).zip(&agents) {
            number += 1;
            requests += round * of;
            agent.send(format!(
                "checkout.latency:{number}|ms\ncheckout.requests:{}|c|#path:/pay",
                round * of
            ));
        }
    }
    // None of them has three hundred samples; the 297th of all is the 99th percentile.
    prometheus.expect("sum(checkout_latency_count)", &[("", 300.0)]);
    prometheus.expect("sum(checkout_latency{quantile=\"0.99\"})", &[("", 297.0)]);
    prometheus.expect("sum(checkout_requests_total)", &[("", f64::from(requests))]);
    prometheus.expect("count(checkout_requests_total)", &[("", 1.0)]);
    prometheus.expect("sum(weir_fleet_agents_seen)", &[("", 3.0)]);
    for agent in agents {
        agent.finish();
    }
}
