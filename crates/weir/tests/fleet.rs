//! Agents that publish to the log of a fleet: what is merged is what was sent.

use crate::merge::process::Merge;
use crate::support;
use crate::support::receivers::Prometheus;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use support::place::replace_by_a_file;
use support::{Agent, Starter, configurations, status, until, weir};
use weir_log::{FileLog, unix_milliseconds};
use weir_merge::{BucketResult, Ledger, Log as _, Owner, Settings};
use weir_state::{Record, State};

/// Long after the grace of every bucket, of an hour too.
fn later() -> i64 {
    unix_milliseconds() + 2 * 3_600_000
}

/// Totals of a fleet's log: the sum of the counter `c` by its tags, and the books of all agents.
pub fn merged(log: &Path, partitions: u32) -> (Vec<(String, f64)>, Ledger) {
    let log = FileLog::open(log, partitions, later).unwrap();
    let mut owner = Owner::new(log, Settings::default());
    while owner.turn().unwrap().messages > 0 {}
    let mut ledger = Ledger::default();
    owner.merges().for_each(|(_, merge)| ledger += merge.ledger());
    assert_eq!(ledger.difference(), 0, "{ledger:?}");
    let mut sums: Vec<(String, f64)> = Vec::new();
    for partition in 0..partitions {
        for (_, bytes) in owner.log().results(partition, 0, 1 << 30).unwrap() {
            for series in BucketResult::decode(&bytes).unwrap().1.series() {
                let State::Counter(sum) = series.state else {
                    continue;
                };
                let (name, sum) = (series.name, sum.to_f64());
                let tags = series.tags.collect::<Vec<_>>().join(",");
                if name == "c" {
                    match sums.iter_mut().find(|(known, _)| *known == tags) {
                        Some((_, all)) => *all += sum,
                        None => sums.push((tags, sum)),
                    }
                }
            }
        }
    }
    (sums, ledger)
}

/// Whether a record in the log has series. The output counts a record of an idle agent as a point too, which has none.
pub fn has_series(log: &Path, partitions: u32) -> bool {
    let mut log = FileLog::open(log, partitions, unix_milliseconds).unwrap();
    (0..partitions).any(|partition| {
        let mut messages = log.fetch(partition, 0, 1 << 30).unwrap().messages.into_iter();
        messages.any(|message| !Record::decode(&message.bytes).unwrap().is_empty())
    })
}

fn sum(sums: &[(String, f64)], tags: &str) -> f64 {
    let found = sums.iter().find(|(known, _)| known == tags);
    found.unwrap_or_else(|| panic!("no {tags} in {sums:?}")).1
}

fn open(admin: &str) -> u64 {
    status(admin)["state"]["samples_open"].as_u64().unwrap()
}

/// The configurations on the output's page.
#[test]
fn the_page_is_true() {
    let page = include_str!("../../../docs/outputs/kafka.md");
    let [minimal, full, brokers] = configurations(page)[..] else {
        panic!("three configurations")
    };
    for (text, partitions) in [(minimal, 1), (full, 4)] {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().display().to_string();
        // One bucket, which ends with the agent.
        let starter = Starter::from(&text.replace("/var/lib/weir", &own));
        let agent = starter.arguments(["--bucket-width", "LONG"]).start();
        agent.send("c:2|c\ng:1|g\ns:a|s\nh:1|h\nd:1|d|#pod_name:x\n");
        // Where the open bucket cannot be kept it is published.
        replace_by_a_file(&directory.path().join("state"));
        agent.stop();
        let (sums, ledger) = merged(&directory.path().join("log"), partitions);
        assert_eq!((sum(&sums, ""), ledger.merged), (2.0, 5), "{text}");
    }
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path();
    std::fs::write(own.join("kafka.password"), "swordfish").unwrap();
    let config = own.join("weir.yaml");
    std::fs::write(&config, brokers.replace("/etc/weir", &own.display().to_string())).unwrap();
    let (succeeds, told) = weir(&["check", "--config", config.to_str().unwrap()]);
    assert_eq!(succeeds, cfg!(feature = "kafka"), "{told}");
    assert!(
        succeeds || told.contains("brokers: needs a weir with the Kafka client"),
        "{told}"
    );
    assert!(!told.contains("swordfish"), "{told}");
}

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

/// The number of the bucket, and the seconds since it began.
fn bucket() -> (u64, u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    (now / 10, now % 10)
}

/// Sends lines to each agent until all of them have them in one bucket. Returns how often that was.
fn send_within_a_bucket(agents: &[Agent], lines: &[String]) -> u32 {
    let samples = lines[0].lines().count() as u64;
    let all_have = |samples: u64| agents.iter().all(|agent| open(&agent.admin) == samples);
    for times in 1.. {
        let mut begun = 0;
        until("early in a bucket", || {
            let (number, seconds) = bucket();
            begun = number;
            seconds < 5 && all_have(0)
        });
        // One datagram each.
        for (agent, lines) in agents.iter().zip(lines) {
            agent.send(lines);
        }
        let mut is_one = false;
        until("they have it, or the bucket ends", || {
            let have_it = all_have(samples);
            let is_over = bucket().0 != begun;
            is_one = have_it && !is_over;
            is_one || is_over
        });
        if is_one {
            return times;
        }
    }
    unreachable!()
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
    let times = send_within_a_bucket(&agents, &lines);
    // None of them has three hundred samples; the 297th of all is the 99th percentile.
    prometheus.expect("sum(checkout_latency_count)", &[("", f64::from(300 * times))]);
    prometheus.expect("sum(checkout_latency{quantile=\"0.99\"})", &[("", 297.0)]);
    prometheus.expect(
        "sum(checkout_requests_total)",
        &[("", f64::from(requests * times))],
    );
    prometheus.expect("count(checkout_requests_total)", &[("", 1.0)]);
    prometheus.expect("sum(weir_fleet_agents_seen)", &[("", 3.0)]);
    for agent in agents {
        agent.finish();
    }
}
