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
#[test]
fn the_first_scrape_includes_earlier_samples() {
    for outputs in ["", "outputs:\n  prometheus: {}\n"] {
        let mut agent = Agent::start(&format!("bucket_width: 1s\n{outputs}"), &[]);
        let admin = agent.wait_for("admin on http://");
        // One datagram is in one bucket.
        agent.send(&("early:1|c\n".repeat(5) + "early.size:1:2:3|d\n"));
        until("the flush", || books(&admin)["delivered"].as_u64() >= Some(2));
        let first = page(&admin);
        for line in ["\nearly_total 5\n", "\nearly_size_count 3\n"] {
            assert!(first.contains(line), "{line:?}: {first}");
        }
        let books = books(&admin);
        assert_eq!(books["produced"], books["delivered"], "{books}");
        agent.stop();
    }
}

/// Two datagrams made a counter NaN for good, and negative ones made it fall: a strict reader refuses such a page.
#[test]
fn a_counter_never_falls_and_never_overflows() {
    let mut agent = Agent::start("bucket_width: 1s\n", &[]);
    let admin = agent.wait_for("admin on http://");
    let mut flushed = 0;
    let mut points = |messages: &str| {
        agent.send(messages);
        flushed += 1;
        until("the flush", || {
            let books = books(&admin);
            books["produced"].as_u64() >= Some(flushed)
        });
    };
    for value in ["1e308", "1e308", "-1e308", "-1e308", "-2", "1"] {
        points(&format!("c:{value}|c\n"));
    }
    let text = page(&admin);
    assert!(text.contains("\nc_total 1e308\n"), "{text}");
    let books = books(&admin);
    let dropped = &books["dropped"];
    assert_eq!(
        (&dropped["not_finite"], &dropped["negative_counter"]),
        (&1.into(), &3.into()),
        "{books}"
    );
    agent.stop();
}
