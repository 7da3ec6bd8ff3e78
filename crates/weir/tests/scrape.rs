//! The scrape endpoint of the running agent, without a Prometheus.

use crate::support;
use serde_json::Value;
use support::*;

fn page(admin: &str) -> String {
    let (code, text) = get(admin, "/metrics");
    assert_eq!(code, 200, "{text}");
    text
}

/// The books of the output, which are not read from a scrape.
fn books(admin: &str) -> Value {
    let status = status(admin);
    let outputs = status["outputs"].as_array().unwrap();
    let found = outputs.iter().find(|output| output["type"] == "prometheus");
    found.unwrap()["points"].clone()
}

/// Samples before the first scrape used to be in no output and no counter: the endpoint stored nothing until the first request.
///
/// Programs send a metric twice, with its parts in the name and with tags, and mappings give both one name: they are one metric, and add up,
/// as in statsd_exporter (`statsd_exporter::TWICE`, whose values these are).
#[test]
fn the_first_scrape_has_earlier_samples_and_converted_metrics_of_one_name_are_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mapping.yml");
    std::fs::write(&file, crate::statsd_exporter::TWICE).unwrap();
    let config = said(&["convert", "statsd-exporter", file.to_str().unwrap()]) + "bucket_width: 1s\n";
    let agent = Agent::start(&config, &[]);
    let admin = agent.admin.clone();
    // One datagram is in one bucket.
    let early = "\nearly:1|c".repeat(5) + "\nearly.size:1:2:3|d\n";
    agent.send(crate::statsd_exporter::FOR_TWICE.join("\n") + &early);
    until("the flush", || books(&admin)["delivered"].as_u64() > Some(0));
    let text = page(&admin);
    for line in ["\nearly 5\n", "\nearly_size_count 3\n"] {
        assert!(text.contains(line), "{line:?}: {text}");
    }
    let books = books(&admin);
    assert_eq!(books["produced"], books["delivered"], "{books}");
    let mut shown: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("flow_") && !line.contains("quantile="))
        .collect();
    shown.sort_unstable();
    assert_eq!(
        shown,
        [
            "flow_created_Shell 3",
            "flow_done{flow_id=\"a\",task_id=\"b\"} 3",
            "flow_done{step=\"Mail\"} 2",
            "flow_done{step=\"Shell\"} 5",
            "flow_executor_open 32",
            "flow_executor_open{executor=\"Local\"} 30",
            "flow_executor_open{executor=\"Remote\"} 12",
            "flow_heartbeat{type=\"counter\"} 3",
            "flow_pool_open{pool=\"main\"} 128",
            "flow_pool_open{pool=\"small-pool\"} 3",
            "flow_pool_open{pool_name=\"main\"} 128",
            "flow_run_duration_count{flow_id=\"etl\"} 2",
            "flow_run_duration_good_count{flow_id=\"etl\"} 1",
            "flow_run_duration_good_sum{flow_id=\"etl\"} 60.5",
            "flow_run_duration_sum{flow_id=\"etl\"} 121",
            "flow_run_pre_check_count{flow_id=\"etl\"} 3",
            "flow_run_pre_check_etl_count 1",
            "flow_run_pre_check_etl_sum 0.004",
            "flow_run_pre_check_sum{flow_id=\"etl\"} 0.014",
            "flow_task_duration_count{flow_id=\"etl\",task_id=\"extract\"} 1",
            "flow_task_duration_count{flow_id=\"etl\",task_id=\"load\"} 2",
            "flow_task_duration_count{flow_id=\"other\",task_id=\"load\"} 1",
            "flow_task_duration_sum{flow_id=\"etl\",task_id=\"extract\"} 0.2505",
            "flow_task_duration_sum{flow_id=\"etl\",task_id=\"load\"} 3",
            "flow_task_duration_sum{flow_id=\"other\",task_id=\"load\"} 0.1",
            "flow_triggers 3",
            "flow_triggers_host_1_example 3",
            "flow_triggers{hostname=\"host-1\"} 3",
        ]
    );
    agent.stop();
}
