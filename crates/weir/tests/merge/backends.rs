use std::collections::BTreeMap;

use serde_json::Value;
use weir_protocol::Kind;
use weir_state::{Identity, State};

use crate::delivery::intake::{Answer, Intake};
use crate::merge::fleet::*;
use crate::merge::process::{Merge, config, series};
use crate::support::until;

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Delivers to this address, as JSON.
fn outputs(intake: &Intake, delivery: &str) -> String {
    format!(
        "outputs:\n  prometheus: {{enabled: false}}\n  datadog:\n    api_key: {KEY}\n    url: http://{}\n    series_format: v2_json\n    \
         compression: none\n    heartbeat: false\n    host_metadata: false\n    delivery: {delivery}\n",
        intake.address
    )
}

/// Points of a backend that replaces equal times: value and number of each.
fn points(intake: &Intake) -> BTreeMap<i64, (f64, usize)> {
    let mut points: BTreeMap<i64, (f64, usize)> = BTreeMap::new();
    for body in intake.series.lock().unwrap().iter() {
        let body: Value = serde_json::from_slice(body).unwrap();
        for series in body["series"].as_array().unwrap() {
            let interval = series["interval"].as_f64().unwrap_or(1.0).max(1.0);
            for point in series["points"].as_array().unwrap() {
                let value = point["value"].as_f64().unwrap() * interval;
                let (known, times) = points
                    .entry(point["timestamp"].as_i64().unwrap())
                    .or_insert((value, 0));
                assert_eq!(*known, value, "another value for the same time: {series}");
                *times += 1;
            }
        }
    }
    points
}

/// The merge is killed before the first one, and its connection ends before the second one.
#[test]
fn case_10_points_whose_answer_is_lost_are_equal_when_they_come_again_and_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(&directory.path().join("log"), 1, 100);
    let mut agent = Agent::new(1, 1);
    for bucket in 0..5 {
        let series = vec![counter("requests", &[], 10.0 + bucket as f64)];
        fleet.publish(&mut agent, bucket, series);
    }
    // The second and the third bucket arrive.
    let intake = Intake::start(true, |number| match number {
        2 => Answer::Hang,
        4 => Answer::Close,
        _ => Answer::Accept,
    });
    // However late an answer is, the merge waits for it: each other bucket comes once.
    let text = outputs(&intake, "{timeout: 1h, backoff_max: 1s}");
    let text = config(&fleet.directory, &text);
    let merge = Merge::start(directory.path(), &text);
    until("two came", || intake.series.lock().unwrap().len() == 2);
    until("the first is known to", || {
        merge.fleet()["sent"][0]["buckets"] == 1
    });
    merge.kill();
    let merge = Merge::start(directory.path(), &text);
    merge.until_sent(fleet.bucket(5));
    let expected = (0..).zip([1, 2, 2, 1, 1]);
    let expected = expected.map(|(bucket, times)| (fleet.bucket(bucket), (10.0 + bucket as f64, times)));
    assert_eq!(points(&intake), expected.collect::<BTreeMap<_, _>>());
    let row = &merge.fleet()["sent"][0];
    assert_eq!(row["repeated"], 1);
    assert_eq!(row["repeats_are"], "distributions_added_up");
    assert!(merge.page().contains("distributions_added_up"));
    let again = series(
        &merge.metrics(),
        "weir_fleet_sent_again_buckets_total{output=\"datadog\"}",
    );
    assert_eq!(again, Some(1.0));
}

/// Twenty buckets, which fit or of which the first seven, that are open at once, do not; and three outputs that refuse connections: all that the process has in memory, its program included, is within 1.25 times
/// its budget and 24 MiB.
fn three_dead_outputs_with_a_backlog(
    series: usize,
    fits: bool,
    state: impl Fn(&[&str]) -> (Identity, State),
) {
    let directory = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(&directory.path().join("log"), 4, 100);
    let mut text = "memory: 64MiB\noutputs:\n  prometheus: {enabled: false}\n".to_owned();
    for name in ["one", "two", "three"] {
        text += &format!("  {name}: {{type: graphite, address: 'tcp://127.0.0.1:1'}}\n");
    }
    let buckets = 20;
    let mut agent = Agent::new(1, 1);
    for bucket in 0..buckets {
        let all = (0..series).map(|number| {
            let tags = [
                format!("service:checkout-{}", number % 20),
                format!("endpoint:/api/v1/resource/{number}"),
                format!("region:eu-west-{}", number % 3),
                format!("version:1.2.{}", number % 7),
            ];
            state(&tags.each_ref().map(String::as_str))
        });
        fleet.publish(&mut agent, bucket, all.collect());
    }
    let merge = Merge::start(directory.path(), &config(&fleet.directory, &text));
    // Each is an event of its own: a busy machine takes long for all of them.
    for closed in 1..=4 * buckets {
        until(&format!("{closed} buckets of partitions have closed"), || {
            merge.fleet()["closed_buckets"].as_i64() >= Some(closed)
        });
    }
    until("every output waits", || {
        let sent = merge.fleet()["sent"].as_array().cloned().unwrap_or_default();
        sent.len() == 3 && sent.iter().all(|row| row["waits"] == true)
    });
    let status = merge.status();
    assert_eq!(status["fleet"]["closed_buckets"], 4 * buckets, "{status}");
    assert_eq!(
        status["fleet"]["states"]["merged"],
        buckets * series as i64,
        "{status}"
    );
    assert_eq!(status["fleet"]["overflowed_states"] == 0, fits, "{status}");
    assert!(status["memory"]["used"].as_u64() < status["memory"]["budget"].as_u64());
    let peak = merge.peak_memory();
    println!(
        "{series} series: {:.1} MiB at most",
        peak as f64 / f64::from(1 << 20)
    );
    assert!(peak <= (64 * 5 / 4 + 24) << 20, "{peak} bytes");
    // With the rest of its grace period each output tries in vain.
    merge.kill();
}

/// Ten times as many series as there is room for: the process stays within its budget, beside what it takes without any.
fn a_flood_of_series() {
    let directory = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(&directory.path().join("log"), 1, 100);
    let mut agent = Agent::new(1, 1);
    let outputs = "memory: 64MiB\noutputs: {prometheus: {enabled: false}}\n";
    let idle = Merge::start(directory.path(), &config(&fleet.directory, outputs));
    let before = idle.peak_memory();
    assert!(idle.stop().0.success());
    let (buckets, series) = (10, 60_000);
    for bucket in 0..buckets {
        let all = (0..series).map(|number| counter("requests", &[&format!("user:{number}-{bucket}")], 1.0));
        fleet.publish(&mut agent, bucket, all.collect());
    }
    let merge = Merge::start(directory.path(), &config(&fleet.directory, outputs));
    until("all buckets closed", || {
        merge.fleet()["closed_buckets"] == buckets
    });
    let status = merge.fleet();
    assert_eq!(status["states"]["merged"], buckets * series, "{status}");
    assert!(status["overflowed_states"].as_u64() > Some(1000), "{status}");
    let grown = (merge.peak_memory() - before) >> 20;
    // A quarter more: what the allocator keeps, and a megabyte of the log that is being read.
    assert!(grown < 64 * 5 / 4, "{grown} MiB more than without series");
    assert!(merge.stop().0.success());
}

/// In the gate: `weir-merge` outputs_with_a_backlog_stay_within_their_room, a_flood_of_series_stays_within_the_memory.
#[test]
#[ignore = "nightly: resident memory of a debug build"]
fn case_17_floods_and_backlogs_of_dead_outputs_stay_within_the_memory() {
    a_flood_of_series();
    three_dead_outputs_with_a_backlog(15_000, true, |tags| counter("requests", tags, 1.0));
    for (series, fits) in [(5_000, true), (8_000, false)] {
        three_dead_outputs_with_a_backlog(series, fits, |tags| {
            let tags = tags.iter().copied();
            let identity = Identity::new(Kind::Distribution, "latency", Some(""), None, tags);
            (identity, distribution("latency", (1..=10).map(f64::from)).1)
        });
    }
}
