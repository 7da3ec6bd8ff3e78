//! The released alert rules, in a real Prometheus beside real agents: each alert is provoked by its cause, and a healthy agent sets none off.

use crate::merge::fleet::{Agent as Publishing, Fleet, WIDTH, counter};
use crate::merge::process::{Merge, config};
use crate::support;
use crate::support::preload;
use crate::support::receivers;
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use preload::{OTHER_CLOCK, preloaded};
use receivers::{Prometheus, free_address};
use support::{Agent, get, until};
use weir_log::FileLog;
use weir_merge::{Commit, Log as _};
use weir_status::series::declared;

const RULES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../packaging/helm/weir/files/alerts.yaml"
);

fn rules() -> String {
    std::fs::read_to_string(RULES).unwrap()
}

/// Of the rules, as they are named.
fn alerts() -> BTreeSet<String> {
    let text = rules();
    let names = text.lines().filter_map(|line| line.split_once("- alert: "));
    names.map(|(_, name)| name.to_owned()).collect()
}

#[test]
fn promtool_takes_the_rules_and_every_series_in_them_exists() {
    let output = Command::new("promtool").args(["check", "rules", RULES]).output();
    let output = output.expect("prometheus is installed (scripts/install-test-deps.sh)");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let known: BTreeSet<&str> = declared()
        .iter()
        .map(|declared| declared.info.series.name)
        .collect();
    let text = rules();
    let mut found = 0;
    for line in text.lines().filter(|line| line.contains("expr:")) {
        let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|word| word.starts_with("weir_")) {
            assert!(known.contains(word), "there is no {word}: {line}");
            found += 1;
        }
    }
    assert!(
        found >= alerts().len(),
        "{found} series in {} alerts",
        alerts().len()
    );
}

/// The alert knows agents by a series that ends with them.
#[test]
fn an_agent_that_is_down_is_reported_until_it_is_up_or_no_target() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("down.yaml");
    let fires = |at: &str, instances: &[&str]| {
        let mut expected =
            format!("      - eval_time: {at}\n        alertname: WeirDown\n        exp_alerts:");
        for instance in instances {
            expected += &format!(
                "\n          - exp_labels: {{job: weir, instance: {instance}, severity: critical}}\n            exp_annotations:\n              \
                 summary: \"weir on {instance} does not answer.\"\n              description: \"Its clients lose their messages or buffer \
                 them. See its log and `weir doctor`.\""
            );
        }
        expected + if instances.is_empty() { " []\n" } else { "\n" }
    };
    let series = |labels: &str, up: &str, info: &str| {
        format!(
            "      - {{series: 'up{{{labels}}}', values: '{up}'}}\n      - {{series: 'weir_info{{{labels}}}', values: '{info}'}}\n"
        )
    };
    let test = [
        format!(
            "rule_files: ['{RULES}']\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n"
        ),
        // Down for twelve hours, down for five hours, gone from the targets after one, never down.
        series("job=\"weir\", instance=\"a\"", "1x10 0x720", "1x10 stale"),
        series(
            "job=\"weir\", instance=\"b\"",
            "1x10 0x299 1x420",
            "1x10 _x299 1x420",
        ),
        series("job=\"weir\", instance=\"c\"", "1x10 0x59 stale", "1x10 stale"),
        series("job=\"weir\", instance=\"d\"", "1x720", "1x720"),
        // Another program.
        "      - {series: 'up{job=\"other\", instance=\"e\"}', values: '0x720'}\n    alert_rule_test:\n"
            .to_owned(),
        fires("12m", &[]),
        fires("30m", &["a", "b", "c"]),
        fires("90m", &["a", "b"]),
        fires("5h", &["a", "b"]),
        fires("6h", &["a"]),
        fires("12h", &["a"]),
    ];
    std::fs::write(&file, test.concat()).unwrap();
    let output = Command::new("promtool")
        .args(["test", "rules"])
        .arg(&file)
        .output();
    let output = output.expect("prometheus is installed (scripts/install-test-deps.sh)");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// The beginning of the names of those that concern merges.
const OF_FLEETS: &str = "WeirFleet";

/// A running agent that Prometheus asks under a job of its own.
struct Asked {
    job: &'static str,
    agent: Agent,
    admin: String,
}

const CONFIG: &str = "bucket_width: 1s\nworkers: 1\n";

fn start(job: &'static str, config: &str, environment: &[(&str, &str)]) -> Asked {
    let mut agent = Agent::start(&format!("{CONFIG}{config}"), environment);
    let admin = agent.wait_for("admin on http://");
    Asked { job, agent, admin }
}

/// A Prometheus with the rules, which do not wait: how long a cause has to last is not tested here.
pub fn prometheus(directory: &Path, asked: &[(&str, &str)]) -> Prometheus {
    let at_once: Vec<String> = rules()
        .lines()
        .filter(|line| !line.trim_start().starts_with("for: "))
        .map(str::to_owned)
        .collect();
    let file = directory.join("rules.yaml");
    std::fs::write(&file, at_once.join("\n")).unwrap();
    let mut config = format!(
        "global: {{ scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }}\nrule_files: ['{}']\nscrape_configs:\n",
        file.display()
    );
    for (job, admin) in asked {
        config += &format!(
            "  - job_name: {job}\n    honor_labels: true\n    static_configs:\n      - targets: ['{admin}']\n"
        );
    }
    Prometheus::start_configured(Path::new("prometheus"), &free_address(), &config, &[])
}

/// A scrape that comes too late makes an agent look dead until the next one.
fn until_the_healthy_one_is_well(prometheus: &mut Prometheus) {
    until("no alert fires for the healthy one", || {
        let found = firing(prometheus, "healthy");
        found.is_empty().then_some(()).ok_or(format!("{found:?}"))
    });
}

pub fn firing(prometheus: &mut Prometheus, job: &str) -> BTreeSet<String> {
    let query = format!("count by (alertname) (ALERTS{{alertstate=\"firing\",job=\"{job}\"}})");
    let found = prometheus.query(&query).unwrap_or_default();
    found
        .keys()
        .map(|labels| labels.trim_start_matches("alertname=").to_owned())
        .collect()
}

/// Fills the share of contexts and keeps it full, until what this returns is dropped.
fn filling(socket: &str) -> mpsc::Sender<()> {
    let to = UnixDatagram::unbound().unwrap();
    to.connect(socket).unwrap();
    let (until_dropped, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let mut sent = 0;
        while ended.recv_timeout(Duration::from_millis(200)) == Err(mpsc::RecvTimeoutError::Timeout) {
            fill(&to, sent);
            sent += FILLED;
        }
    });
    until_dropped
}

/// New names in a round of [`fill`].
const FILLED: usize = 2000;

/// A Unix socket pushes back: each round brings as many contexts, however busy the machine is.
fn fill(to: &UnixDatagram, sent: usize) {
    for new in (sent..sent + FILLED).step_by(40) {
        // Of a name that comes again an alias is made: aliases have the part of the share that new names leave free. New names find no room
        // after some thousands, so the first ones come again in every round: without them the share is three quarters full.
        for from in [new, new, new, new % 4000, new % 2000] {
            let lines: Vec<String> = (from..from + 40)
                .map(|number| format!("full.of.contexts.with.a.long.name.{number}:1|c|#some:tag{number}"))
                .collect();
            to.send(lines.join("\n").as_bytes()).unwrap();
        }
    }
}

/// The texts of an alert for people.
fn descriptions(prometheus: &Prometheus, alert: &str) -> Vec<String> {
    let Some((_, body)) = receivers::get(&prometheus.address, "/api/v1/alerts", "application/json") else {
        return Vec::new();
    };
    let found: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let alerts = found["data"]["alerts"].as_array().cloned().unwrap_or_default();
    let named = alerts.iter().filter(|one| one["labels"]["alertname"] == alert);
    named
        .filter_map(|one| one["annotations"]["description"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn each_alert_is_set_off_by_its_fault_and_none_without_one() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let library = preloaded(directory.path(), OTHER_CLOCK);
    let set_clock = |seconds: i64| {
        std::fs::write(at("new"), seconds.to_string()).unwrap();
        std::fs::rename(at("new"), at("offset")).unwrap();
    };
    set_clock(0);
    let clock = [("LD_PRELOAD", &*library), ("CLOCK_OFFSET", &*at("offset"))];
    let admin_of_killed = free_address();
    let state = format!("state_path: {}\n", at("state"));
    let fixed_admin = [("WEIR_ADMIN", &*admin_of_killed)];

    let healthy = start("healthy", "", &[]);
    let refusing = start("refusing", "allowed_networks: ['10.0.0.0/8']\n", &[]);
    let limited = start("limited", "contexts_max: 5\n", &[]);
    let socket_of_full = at("full.socket");
    let full = start("full", &format!("memory: 8MiB\nuds: {socket_of_full}\n"), &[]);
    let graphite = "outputs:\n  graphite:\n    address: tcp://127.0.0.1:1\n";
    let failing = start("failing", graphite, &[]);
    let turned = start("turned", "sandbox: off\n", &clock);
    let other_state = at("other-state");
    let reloaded = start("reloaded", &format!("state_path: {other_state}\n"), &[]);
    let killed = start("killed", &state, &fixed_admin);
    let gone = start("gone", "", &[]);
    let all = [
        &healthy, &refusing, &limited, &full, &failing, &turned, &reloaded, &killed, &gone,
    ];
    let addresses = all.map(|asked| (asked.job, &*asked.admin));
    let mut prometheus = prometheus(directory.path(), &addresses);
    // A growing value must be read before it grows.
    for asked in all {
        let query = format!(
            "count_over_time(weir_last_flush_timestamp_seconds{{job=\"{}\"}}[1m]) > 1",
            asked.job
        );
        until(&query, || {
            prometheus.query(&query).is_ok_and(|found| !found.is_empty())
        });
    }

    for asked in all {
        asked.agent.send("fine:1|c");
    }
    // 127.0.0.1 may send whatever the list says.
    let stranger = UdpSocket::bind(("127.0.0.2", 0)).unwrap();
    stranger
        .send_to(b"refused:1|c", refusing.agent.address())
        .unwrap();
    limited.agent.send("no metric");
    limited.agent.send("some:1:nan:2|h");
    for number in 0..50 {
        limited.agent.send(&format!("name{number}:1|c"));
    }
    failing.agent.send("much:1e308|c\nmuch:1e308|c\nmuch:1e308|c");
    set_clock(-100_000);
    reloaded.agent.rewrite("nonsense: 1\n");
    reloaded.agent.signal("-HUP");
    std::fs::rename(&other_state, at("gone-state")).unwrap();
    until("its books are kept", || Path::new(&at("state/books")).exists());
    killed.agent.signal("-KILL");
    killed.agent.end();
    let again = start("killed", &state, &fixed_admin);
    gone.agent.stop();

    let mut provoked = BTreeSet::new();
    for (job, names) in [
        ("refusing", &["WeirPacketsDropped"][..]),
        (
            "limited",
            &[
                "WeirMessagesRejected",
                "WeirSamplesDropped",
                "WeirContextsLimited",
            ],
        ),
        ("full", &["WeirMemoryNearBudget"]),
        (
            "failing",
            &["WeirOutputFailing", "WeirOutputBehind", "WeirOutputDropped"],
        ),
        ("turned", &["WeirClockSetBack", "WeirFlushesLate"]),
        ("reloaded", &["WeirReloadFailed", "WeirDiskNotWritten"]),
        ("killed", &["WeirStateLost"]),
        ("gone", &["WeirDown"]),
    ] {
        for name in names {
            // The share is as full as its last second, and a busy machine takes longer for a question to Prometheus.
            let _until_it_fires = (job == full.job).then(|| filling(&socket_of_full));
            until(&format!("{name} fires for {job}"), || {
                let found = firing(&mut prometheus, job);
                found.contains(*name).then_some(()).ok_or(format!("{found:?}"))
            });
            provoked.insert((*name).to_owned());
        }
    }
    let mut expected = alerts();
    expected.retain(|name| !name.starts_with(OF_FLEETS));
    assert_eq!(provoked, expected, "every alert is tried here");
    until_the_healthy_one_is_well(&mut prometheus);
    assert_eq!(get(&again.admin, "/ready").0, 200);
}

/// Agents of which one ends, one shares its id with another, and one loses records; and a record that is none.
pub fn faulty_fleet(directory: &Path) -> Fleet {
    let mut fleet = Fleet::new(directory, 1, 200);
    let (mut one, mut ends, mut copy) = (
        Publishing::new(1, 1),
        Publishing::new(2, 1),
        Publishing::new(1, 1),
    );
    let mut loses = Publishing::new(3, 1);
    for bucket in 0..150 {
        fleet.publish(&mut one, bucket, vec![counter("requests", &[], 1.0)]);
        if bucket == 0 {
            fleet.publish(&mut copy, bucket, vec![counter("others", &[], 2.0)]);
        }
        let records = fleet.records(&mut loses, bucket, vec![counter("requests", &[], 1.0)]);
        if bucket % 2 == 0 {
            fleet.append(bucket, &records);
        }
        if bucket < 147 {
            fleet.publish(&mut ends, bucket, vec![counter("requests", &[], 1.0)]);
        }
    }
    fleet
}

/// Changes a byte in the middle of the only file of a partition's records.
pub fn damage(log: &Path) {
    let files = std::fs::read_dir(log.join("0/records")).unwrap();
    let file = files.map(|file| file.unwrap().path()).max().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 255;
    std::fs::write(file, bytes).unwrap();
}

/// A log whose first results were deleted.
pub fn without_first_results(log: &Path) {
    let mut log_of = FileLog::with_files_of(log, 1, weir_log::unix_milliseconds, 200).unwrap();
    log_of.assignments().unwrap();
    let commit = Commit {
        results: vec![vec![1; 300]],
        snapshot: Vec::new(),
        ..Commit::default()
    };
    for _ in 0..5 {
        log_of.commit(0, 0, &commit).unwrap();
    }
    let files = std::fs::read_dir(log.join("0/commits")).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    std::fs::remove_file(&files[0]).unwrap();
}

pub fn unreadable_snapshot(log: &Path) {
    let mut log = FileLog::open(log, 1, weir_log::unix_milliseconds).unwrap();
    log.assignments().unwrap();
    let commit = Commit {
        snapshot: b"of another version".to_vec(),
        ..Commit::default()
    };
    log.commit(0, 0, &commit).unwrap();
}

/// The address of a server that answers each scrape with these series, as several processes of a merge together would.
fn series(text: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let length = text.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
            );
        }
    });
    address
}

#[test]
fn each_alert_of_a_fleet_is_set_off_by_its_fault_and_none_without_one() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| {
        let place = directory.path().join(name);
        std::fs::create_dir(&place).unwrap();
        place
    };
    let merge = |place: &Path, rest: &str| Merge::start(place, &config(&place.join("log"), rest));
    let to_file = |place: &Path| {
        format!(
            "outputs: {{prometheus: {{enabled: false}}, file: {{path: {}}}}}\n",
            place.join("out").display()
        )
    };

    let of_healthy = place("healthy");
    let mut fleet = Fleet::new(&of_healthy.join("log"), 1, 8);
    let mut agent = Publishing::new(1, 1);
    (0..7).for_each(|bucket| fleet.publish(&mut agent, bucket, vec![counter("requests", &[], 1.0)]));
    let healthy = merge(&of_healthy, &format!("grace: 1s\n{}", to_file(&of_healthy)));

    let of_faulty = place("faulty");
    let mut fleet_of_faulty = faulty_fleet(&of_faulty.join("log"));
    damage(&of_faulty.join("log"));
    let mut poisoned = FileLog::open(&of_faulty.join("log"), 1, weir_log::unix_milliseconds).unwrap();
    poisoned.append(0, 1, b"no record").unwrap();
    let faulty = merge(&of_faulty, &to_file(&of_faulty));

    let of_dead = place("dead");
    faulty_fleet(&of_dead.join("log"));
    let dead = merge(&of_dead, "outputs: {graphite: {address: 'tcp://127.0.0.1:1'}}\n");

    let of_late = place("late");
    without_first_results(&of_late.join("log"));
    let late = merge(&of_late, &to_file(&of_late));

    let of_old = place("old");
    unreadable_snapshot(&of_old.join("log"));
    let old = merge(&of_old, &to_file(&of_old));

    let of_failing = place("failing");
    let failing = merge(&of_failing, &to_file(&of_failing));

    let unread = series(
        "weir_fleet_log_errors_total 0\nweir_fleet_partitions 10\n\
         weir_fleet_sent_partitions{output=\"file\"} 10\nweir_fleet_sent_partitions{output=\"graphite\"} 8\n",
    );

    let addresses = [
        ("healthy", &*healthy.admin),
        ("faulty", &*faulty.admin),
        ("dead", &*dead.admin),
        ("late", &*late.admin),
        ("old", &*old.admin),
        ("failing", &*failing.admin),
        ("unread", &unread),
    ];
    let mut prometheus = prometheus(directory.path(), &addresses);
    for (job, _) in addresses {
        let query = format!("count_over_time(weir_fleet_log_errors_total{{job=\"{job}\"}}[1m]) > 1");
        until(&query, || {
            prometheus.query(&query).is_ok_and(|found| !found.is_empty())
        });
    }
    std::fs::write(of_failing.join("log/plan"), "nonsense").unwrap();
    let mut tardy = Publishing::new(9, 1);
    let records = fleet_of_faulty.records(&mut tardy, 100, vec![counter("requests", &[], 1.0)]);
    fleet_of_faulty.append_at(weir_log::unix_milliseconds(), &records);

    let mut provoked = BTreeSet::new();
    for (job, names) in [
        (
            "faulty",
            &[
                "WeirFleetAgentsMissing",
                "WeirFleetSharedIds",
                "WeirFleetQuarantined",
                "WeirFleetLate",
                "WeirFleetStatesLost",
                "WeirFleetLogDamaged",
            ][..],
        ),
        ("dead", &["WeirFleetOutputBehind"]),
        ("late", &["WeirFleetResultsDeleted"]),
        ("old", &["WeirFleetSnapshotUnreadable"]),
        ("failing", &["WeirFleetLogFailing"]),
        ("unread", &["WeirFleetResultsUnread"]),
    ] {
        for name in names {
            until(&format!("{name} fires for {job}"), || {
                let found = firing(&mut prometheus, job);
                found.contains(*name).then_some(()).ok_or(format!("{found:?}"))
            });
            provoked.insert((*name).to_owned());
        }
    }
    for (alert, host) in [
        ("WeirFleetAgentsMissing", "host2"),
        ("WeirFleetSharedIds", "host1"),
        ("WeirFleetLate", "host9"),
    ] {
        until(&format!("{alert} names {host}"), || {
            let found = descriptions(&prometheus, alert);
            let is_named = found.iter().any(|text| text.contains(host));
            is_named.then_some(()).ok_or(format!("{found:?}"))
        });
    }
    let mut expected = alerts();
    expected.retain(|name| name.starts_with(OF_FLEETS));
    assert_eq!(provoked, expected, "every alert of fleets is tried here");
    // On a slow machine no agent has published for minutes.
    let now = weir_log::unix_milliseconds();
    let bucket = (now / 1000 - fleet.start) / WIDTH - 1;
    let records = fleet.records(&mut agent, bucket, vec![counter("requests", &[], 1.0)]);
    fleet.append_at(now, &records);
    until_the_healthy_one_is_well(&mut prometheus);
}
