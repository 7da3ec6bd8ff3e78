//! Three real agents with tags of their own, one real merge, and a real Prometheus that scrapes it: one p99 and one exact counter for all of them.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::merge::process::Merge;
use crate::support::receivers::Prometheus;
use crate::support::{Agent, until};

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
    let config = format!(
        "log: {{directory: {}/log, partitions: 2}}\ngrace: 20s\n",
        directory.path().display()
    );
    let merge = Merge::start(directory.path(), &config);
    let mut prometheus = Prometheus::start(&[("fleet", &merge.admin)], &[]);
    prometheus.expect("sum(up)", &[("", 1.0)]);
    let mut requests = 0;
    let lines: Vec<String> = (1..=3)
        .map(|of| {
            let lines = (0..100).map(|round| {
                requests += round * of;
                let (number, hits) = (3 * round + of, round * of);
                format!("checkout.latency:{number}|ms\ncheckout.requests:{hits}|c|#path:/pay\n")
            });
            lines.collect()
        })
        .collect();
    early_in_a_bucket();
    // One datagram each: the rest of the bucket is long for that.
    for (agent, lines) in agents.iter().zip(&lines) {
        agent.send(lines);
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
