//! Three real agents with tags of their own, one real merge, and a real Prometheus that scrapes it: one p99 and one exact counter for all of them.

use std::path::Path;

use crate::merge::process::Merge;
use crate::support::Agent;
use crate::support::place::replace_by_a_file;
use crate::support::receivers::Prometheus;

fn agent(directory: &Path, number: usize) -> Agent {
    let config = directory.join(format!("web{number}.yaml"));
    let text = format!(
        "bucket_width: 1h\ntags: [instance:web{number}]\nstate_path: {0}/web{number}\noutputs:\n  prometheus: {{enabled: false}}\n  kafka:\n    directory: {0}/log\n    \
         partitions: 2\n    rules: [{{name: no instance, exclude_tags: [instance]}}]\n",
        directory.display()
    );
    std::fs::write(&config, text).unwrap();
    let name = format!("web{number}");
    Agent::start(&["--hostname", &name, "--config", config.to_str().unwrap()], &[])
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
    for (number, agent) in (1..).zip(agents) {
        // Nothing can be kept, so the bucket is flushed.
        replace_by_a_file(&directory.path().join(format!("web{number}")));
        agent.finish();
    }
    // None of them has three hundred samples; the 297th of all is the 99th percentile.
    prometheus.expect("sum(checkout_latency_count)", &[("", 300.0)]);
    prometheus.expect("sum(checkout_latency{quantile=\"0.99\"})", &[("", 297.0)]);
    prometheus.expect("sum(checkout_requests_total)", &[("", f64::from(requests))]);
    prometheus.expect("count(checkout_requests_total)", &[("", 1.0)]);
    prometheus.expect("sum(weir_fleet_agents_seen)", &[("", 3.0)]);
}
