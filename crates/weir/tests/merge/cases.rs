use serde_json::Value;

use crate::merge::fleet::*;
use crate::merge::process::{Merge, config, series};
use crate::support::{get, until};

/// Messages of three agents in a bucket, by their numbers.
fn of_agent(agent: &Agent, number: i64, bucket: i64) -> Vec<(weir_state::Identity, weir_state::State)> {
    let user = format!("user{}", (number + bucket) % 5);
    vec![
        counter("requests", &["path:/a"], (number * 10 + bucket) as f64 + 0.1),
        counter("requests", &["path:/b"], 1.0),
        gauge("load", number as f64, agent),
        set("users", &["everywhere", &user]),
        timing("latency", (0..10).map(|step| (number * 100 + step) as f64)),
        distribution("size", (1..=4).map(|step| (step * number) as f64)),
    ]
}

/// Three agents whose buckets are all old enough to close, and the sum of their requests to `/a`.
fn three_agents(fleet: &mut Fleet, buckets: i64) -> (Vec<Agent>, f64) {
    let mut agents: Vec<Agent> = (1..=3).map(|number| Agent::new(number, 1)).collect();
    let mut requests = weir_state::ExactSum::default();
    for bucket in 0..buckets {
        for (number, agent) in (1..).zip(&mut agents) {
            let series = of_agent(agent, number, bucket);
            fleet.publish(agent, bucket, series);
            requests.add((number * 10 + bucket) as f64 + 0.1);
        }
    }
    (agents, requests.to_f64())
}

fn states(fleet: &Value) -> [u64; 7] {
    let of = |name: &str| fleet["states"][name].as_u64().unwrap();
    [
        "published",
        "merged",
        "late",
        "quarantined",
        "open",
        "missing",
        "lost",
    ]
    .map(of)
}

#[test]
fn case_21_generator_results_outputs_and_ledger_agree_and_a_waiting_process_continues() {
    let directory = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(&directory.path().join("log"), 2, 100);
    let (mut agents, requests) = three_agents(&mut fleet, 30);
    let lines = directory.path().join("points.json");
    let outputs = format!("outputs: {{file: {{path: {}}}}}\n", lines.display());
    let merge = Merge::start(directory.path(), &config(&fleet.directory, &outputs));
    merge.until_sent(fleet.bucket(30));
    let metrics = merge.metrics();
    let found = |name: &str| series(&metrics, name).unwrap_or_else(|| panic!("{name}: {metrics}"));
    assert!(
        (found("requests_total{path=\"/a\"}") - requests).abs() < 1e-6,
        "{requests} {metrics}"
    );
    assert_eq!(found("requests_total{path=\"/b\"}"), 90.0);
    assert_eq!(found("latency_count"), 900.0);
    assert_eq!(found("latency_sum"), 30.0 * (6000.0 + 3.0 * 45.0));
    assert_eq!(found("size_count"), 360.0);
    assert_eq!(found("size_sum"), 30.0 * 60.0);
    // The 99th of thirty samples: the largest.
    assert_eq!(found("latency{quantile=\"0.99\"}"), 309.0);
    assert_eq!(found("load"), 3.0);
    assert_eq!(found("weir_fleet_agents_expected"), 3.0);
    assert_eq!(found("weir_fleet_agents_seen"), 3.0);
    assert_eq!(found("weir_fleet_published_states_total"), 3.0 * 30.0 * 6.0);
    assert_eq!(found("weir_fleet_sent_buckets_total{output=\"file\"}"), 30.0);

    let status = merge.fleet();
    assert_eq!(states(&status), [540, 540, 0, 0, 0, 0, 0]);
    assert_eq!(status["agents"].as_array().unwrap().len(), 3);
    let text = std::fs::read_to_string(&lines).unwrap();
    let points: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of_a = points
        .iter()
        .filter(|point| point["metric"] == "requests" && point["tags"][0] == "path:/a");
    let (mut sum, mut times) = (0.0, Vec::new());
    for point in of_a {
        sum += point["value"].as_f64().unwrap() * point["interval"].as_f64().unwrap();
        times.push(point["ts"].as_i64().unwrap());
    }
    assert!((sum - requests).abs() < 1e-6, "{sum} {requests}");
    let buckets: Vec<i64> = (0..30).map(|number| fleet.bucket(number)).collect();
    assert_eq!(times, buckets, "each bucket once, in order, with its own time");
    assert!(
        points.iter().all(|point| point["host"] == ""),
        "a fleet has no host"
    );
    let page = merge.page();
    for part in [
        "The books balance.",
        "3 expected, 3 seen, 0 missing",
        "all agents",
        "540",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }

    let own = directory.path().join("waiting");
    std::fs::create_dir(&own).unwrap();
    let waiting = Merge::start(&own, &config(&fleet.directory, ""));
    until("it is ready, and knows what it holds", || {
        get(&waiting.admin, "/ready").0 == 200 && waiting.fleet()["partitions_held"].is_u64()
    });
    let status = waiting.fleet();
    assert_eq!(
        (&status["sends"], &status["partitions_held"]),
        (&false.into(), &0.into())
    );
    assert_eq!(series(&waiting.metrics(), "weir_fleet_partitions"), Some(0.0));
    let (ended, log) = merge.stop();
    assert!(ended.success(), "{log}");
    // No output had sums before.
    assert!(!log.contains("from zero"), "{log}");
    // Buckets so old close at once for an owner that starts, whichever agents it finds in them.
    until("the other process has read the log", || {
        let fleet = waiting.fleet();
        let rows = fleet["partitions"].as_array().cloned().unwrap_or_default();
        rows.len() == 2 && rows.iter().all(|row| row["lag_records"] == 0)
    });
    for (bucket, more) in [(30, 4.0), (31, 5.0)] {
        for agent in &mut agents {
            fleet.publish(agent, bucket, vec![counter("requests", &["path:/b"], more)]);
        }
    }
    waiting.until_sent(fleet.bucket(32));
    let requests = series(&waiting.metrics(), "requests_total{path=\"/b\"}");
    assert_eq!(requests, Some(90.0 + 3.0 * 9.0));
    let page = waiting.page();
    assert!(page.contains("2 partitions here"), "{page}");
}

/// The results are those of a merge that nothing disturbs.
#[test]
fn case_05_sums_and_results_continue_after_a_kill_and_after_a_stop() {
    let directory = tempfile::tempdir().unwrap();
    // The clock of the log is ahead of the machine's, so it alone decides what closes.
    let mut fleets = ["disturbed", "whole"].map(|name| Fleet::new(&directory.path().join(name), 2, 0));
    fleets[1].start = fleets[0].start;
    for (fleet, ends) in fleets.iter_mut().zip([&[9, 19, 29, 39][..], &[39]]) {
        let mut agents: Vec<Agent> = (1..=3).map(|number| Agent::new(number, 1)).collect();
        for bucket in 0..40 {
            for (number, agent) in (1..).zip(&mut agents) {
                let series = of_agent(agent, number, bucket);
                fleet.publish(agent, bucket, series);
            }
            if !ends.contains(&bucket) {
                continue;
            }
            let merge = Merge::start(directory.path(), &config(&fleet.directory, ""));
            merge.until_sent(fleet.bucket(bucket));
            assert_eq!(merge.fleet()["open_buckets"], 2, "it is in the middle of two");
            let requests = series(&merge.metrics(), "requests_total{path=\"/b\"}");
            assert_eq!(requests, Some(3.0 * bucket as f64), "{ends:?}");
            match bucket {
                19 => assert!(merge.stop().0.success()),
                _ => merge.kill(),
            }
        }
    }
    let [mut disturbed, mut whole] = fleets;
    for partition in 0..2 {
        let (disturbed, whole) = (disturbed.results(partition), whole.results(partition));
        assert_eq!(whole.len(), 39);
        assert!(whole == disturbed, "other bytes in partition {partition}");
    }
}

/// Two agents have one id, the clock of another one is an hour ahead, bytes are no record, and a bit has changed in the log.
#[test]
fn cases_11_13_and_15_what_cannot_be_merged_is_named_and_the_rest_counts() {
    let directory = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(&directory.path().join("log"), 1, 100);
    let (mut one, mut copy) = (Agent::new(1, 5), Agent::new(1, 5).on("copy"));
    let (mut wrong, mut good, mut damaged) = (Agent::new(2, 1), Agent::new(3, 1), Agent::new(4, 1));
    for bucket in 0..8 {
        for (agent, value) in [
            (&mut damaged, 1.0),
            (&mut one, 1.0),
            (&mut copy, 100.0),
            (&mut good, 1.0),
        ] {
            fleet.publish(agent, bucket, vec![counter("requests", &[], value)]);
        }
    }
    let records = fleet.records(&mut wrong, 360, vec![counter("requests", &[], 1.0)]);
    fleet.append(8, &records);
    let mut poison = fleet.records(&mut good, 8, vec![counter("requests", &[], 1.0)]);
    let whole = poison[0].clone();
    poison[0].bytes.truncate(40);
    fleet.append(8, &poison);
    poison[0].bytes = b"GET / HTTP/1.1".to_vec();
    fleet.append(8, &poison);
    fleet.append(8, &[whole]);
    // The first record of the fourth bucket.
    let path = fleet.directory.join("0/records/00000000000000000000.log");
    let mut bytes = std::fs::read(&path).unwrap();
    let frame = (0..3 * 4).fold(0, |at, _| {
        at + 20 + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
    });
    bytes[frame + 30] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let merge = Merge::start(directory.path(), &config(&fleet.directory, ""));
    merge.until_sent(fleet.bucket(9));
    let status = merge.fleet();
    assert_eq!(status["shared_ids"], 1, "{status}");
    let agents = status["agents"].as_array().unwrap().iter();
    let shared = agents.filter(|row| row["shared_id"].as_u64() > Some(0));
    let shared: Vec<&str> = shared.map(|row| row["agent"].as_str().unwrap()).collect();
    assert_eq!(shared, [one.id.to_string()]);
    let mut rows = status["quarantine"].as_array().unwrap().iter();
    let row = rows.find(|row| row["agent"] == wrong.id.to_string()).unwrap();
    let of = |name: &str| row[name].clone();
    assert_eq!(
        (of("host"), of("partition"), of("offset")),
        ("host2".into(), 0.into(), 32.into())
    );
    assert!(
        of("reason").as_str().unwrap().contains("its bucket begins"),
        "{row}"
    );
    let metrics = merge.metrics();
    for (name, value) in [
        ("weir_fleet_quarantined_records_total{reason=\"future\"}", 1.0),
        ("weir_fleet_quarantined_records_total{reason=\"unreadable\"}", 2.0),
        ("weir_fleet_log_lost_frames_total", 1.0),
        ("weir_fleet_missing_states", 1.0),
        // Of two records with one number the first counts.
        ("requests_total", 8.0 + 9.0 + 7.0),
    ] {
        assert_eq!(series(&metrics, name), Some(value), "{name}: {metrics}");
    }
    assert!(series(&metrics, "weir_fleet_log_damaged_bytes_total").unwrap() > 20.0);
    let page = merge.page();
    for part in [
        "two agents have this id",
        &format!("copy, host1 ({})", one.id),
        &wrong.id.to_string(),
        "not a record",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(
        page.contains("fleet.log_lost_frames") || page.contains("were lost with these bytes"),
        "{page}"
    );
    let (_, log) = merge.stop();
    let said = format!("{}: damaged from byte {frame}", path.display());
    assert!(log.contains(&said), "{said}: {log}");
}

/// A number of partitions that is announced while agents publish: each series is in one of them in each bucket, sums go on, and until
/// the announced bucket nothing waits for partitions that have nothing.
#[test]
fn case_14_partitions_are_added_by_a_command() {
    let directory = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(&directory.path().join("log"), 1, 0);
    let mut agents: Vec<Agent> = (1..=2).map(|number| Agent::new(number, 1)).collect();
    let paths: Vec<String> = (0..20).map(|number| format!("path:/{number}")).collect();
    let mut publish = |fleet: &mut Fleet, buckets: std::ops::Range<i64>| {
        for bucket in buckets {
            for agent in &mut agents {
                let series = paths.iter().map(|path| counter("requests", &[path], 1.0));
                fleet.publish(agent, bucket, series.collect());
            }
        }
    };
    publish(&mut fleet, 0..5);
    // The buckets are in the future, so the last one closes when the grace period is over.
    let settings = config(&fleet.directory, "grace: 8s\n");
    let path = directory.path().join("merge.yaml");
    std::fs::write(&path, &settings).unwrap();
    let partitions = |arguments: &[&str]| {
        let all = ["merge", "partitions", "--config", path.to_str().unwrap()];
        crate::support::weir(&[&all[..], arguments].concat())
    };
    assert_eq!(partitions(&[]), (true, "1 partition\n".to_owned()));
    for (arguments, expected) in [
        (&["1"][..], "can only be raised"),
        (&["3", "--after", "10s"][..], "too soon: agents need up to 60 s"),
        (&["3", "--after", "soon"][..], "\"soon\" is not a duration"),
        (&["0"][..], "0 is not in 1..=10000"),
    ] {
        let (is_done, text) = partitions(arguments);
        assert!(!is_done && text.contains(expected), "{text}");
    }
    let (is_done, text) = partitions(&["3"]);
    assert!(is_done, "{text}");
    let from = text
        .split("begins at ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let from: i64 = from
        .and_then(|from| from.parse().ok())
        .unwrap_or_else(|| panic!("{text}"));
    // Further than an output waits for a partition that is behind.
    publish(&mut fleet, 5..60);
    let merge = Merge::start(directory.path(), &settings);
    merge.until_sent(fleet.bucket(60));
    let metrics = merge.metrics();
    for path in &paths {
        let (key, value) = path.split_once(':').unwrap();
        let found = series(&metrics, &format!("requests_total{{{key}=\"{value}\"}}"));
        assert_eq!(found, Some(2.0 * 60.0), "{path}");
    }
    let mut places = std::collections::BTreeMap::new();
    for partition in 0..3 {
        for (closed, record) in fleet.closed(partition) {
            assert!(
                partition == 0 || closed.bucket_start >= from,
                "{} before {from}",
                closed.bucket_start
            );
            for series in record.series() {
                let tags: String = series.tags.collect();
                let earlier = places.insert((closed.bucket_start, tags.clone()), partition);
                assert_eq!(earlier, None, "{tags} is in two partitions");
            }
        }
    }
    assert!(places.values().any(|partition| *partition == 2), "nothing moved");
    let [_, merged, late, quarantined, ..] = states(&merge.fleet());
    assert_eq!((late, quarantined), (0, 0), "{merged}");
}
