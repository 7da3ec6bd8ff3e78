//! Real agents before real brokers of Apache Kafka: faults of the brokers, what `weir doctor` says of them, and more partitions by a
//! command.

use crate::support;
use std::collections::BTreeMap;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;
use support::ports::Refusing;
use support::preload::{OTHER_CLOCK, preloaded};
use support::{Agent, status, until, weir};
use weir_broker::Broker;
use weir_log::{Brokers, KafkaLog, unix_milliseconds};
use weir_merge::{BucketResult, Ledger, Log as _, Owner, Plan, Settings};
use weir_state::State;

fn brokers(address: String, topic: &str) -> Brokers {
    Brokers {
        addresses: vec![address],
        topic: topic.to_owned(),
        group: format!("{topic}-merge"),
        partitions: 2,
        ..Brokers::default()
    }
}

/// An agent with an output to brokers, and one to a file beside it.
struct Published {
    directory: tempfile::TempDir,
    broker: Broker,
    sent: u64,
}

impl Published {
    fn start(&self) -> (Agent, String) {
        let directory = self.directory.path().display();
        let config = format!(
            "bucket_width: 1s\nstate_path: {directory}/state\noutputs:\n  prometheus: {{enabled: false}}\n  file: {{path: {directory}/points.json}}\n  \
             kafka:\n    brokers: ['{}']\n    topic: faults\n    partitions: 2\n    delivery: {{timeout: 2s, backoff_max: 64ms, disk_path: {directory}/queue}}\n",
            self.broker.address()
        );
        let mut agent = Agent::start(&config, &[]);
        let admin = agent.wait_for("admin on http://");
        (agent, admin)
    }

    /// Some samples, and waits until the other output has them: no fault of the brokers holds it up.
    fn send(&mut self, agent: &Agent) {
        for _ in 0..10 {
            agent.send("c:1|c");
        }
        self.sent += 10;
        until("the file has what was sent", || self.in_file() == self.sent);
    }

    fn in_file(&self) -> u64 {
        let text = std::fs::read_to_string(self.directory.path().join("points.json")).unwrap_or_default();
        let points = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let points = points.filter(|point| point["metric"] == "c");
        points
            .map(|point| (point["value"].as_f64().unwrap() * point["interval"].as_f64().unwrap()) as u64)
            .sum()
    }

    /// All results of the fleet: the sum of the counter, and the books.
    fn merged(&self) -> (f64, Ledger) {
        let log = KafkaLog::open(&brokers(self.broker.address(), "faults")).unwrap();
        let settings = Settings {
            grace: 3,
            ..Settings::default()
        };
        let mut owner = Owner::new(log, settings);
        let (mut from, mut sum, mut ledger) = (BTreeMap::new(), 0.0, Ledger::default());
        until("everything is merged", || {
            owner.turn().unwrap();
            for partition in 0..2 {
                let from = from.entry(partition).or_default();
                for (number, bytes) in owner.log().results(partition, *from, 1 << 20).unwrap() {
                    *from = number + 1;
                    sum += counted(&bytes);
                }
            }
            ledger = Ledger::default();
            owner.merges().for_each(|(_, merge)| ledger += merge.ledger());
            sum >= self.sent as f64 && ledger.open == 0
        });
        (sum, ledger)
    }
}

fn counted(result: &[u8]) -> f64 {
    let (_, record) = BucketResult::decode(result).unwrap();
    let sums = record.series().filter(|series| series.name == "c");
    let sums = sums.map(|series| match series.state {
        State::Counter(sum) => sum.to_f64(),
        other => panic!("{other:?}"),
    });
    sums.sum()
}

fn kafka(admin: &str) -> Value {
    let outputs = status(admin)["outputs"].as_array().cloned().unwrap_or_default();
    let found = outputs.into_iter().find(|output| output["name"] == "kafka");
    found.expect("the output")
}

fn until_it_fails(admin: &str) {
    until("the output fails and holds what it has", || {
        let output = kafka(admin);
        output["healthy"] == false && output["points"]["pending"].as_u64() > Some(0)
    });
}

/// Of what the output has been given by now: idle counters give it points with each bucket, so that there need not be an instant without
/// pending ones.
fn until_delivered(admin: &str) {
    let given = kafka(admin)["points"]["produced"].as_u64().unwrap();
    until("everything is delivered", || {
        let output = kafka(admin);
        let is_delivered = output["healthy"] == true && output["points"]["delivered"].as_u64() >= Some(given);
        is_delivered.then_some(()).ok_or_else(|| output.to_string())
    });
}

/// The faults of the other outputs: the broker is dead, hangs, comes back, and the agent restarts meanwhile.
#[test]
fn no_fault_of_a_broker_loses_or_doubles_anything_or_delays_another_output() {
    let mut published = Published {
        directory: tempfile::tempdir().unwrap(),
        broker: Broker::start(),
        sent: 0,
    };
    let (agent, admin) = published.start();
    until("the number of partitions is known", || {
        kafka(&admin)["notes"].to_string().contains("partitions: 2")
    });
    published.send(&agent);
    until_delivered(&admin);

    published.broker.kill();
    published.send(&agent);
    until_it_fails(&admin);
    published.broker.restart();
    until_delivered(&admin);

    published.broker.signal(Signal::STOP);
    published.send(&agent);
    until_it_fails(&admin);
    published.broker.signal(Signal::CONT);
    until_delivered(&admin);

    published.broker.kill();
    published.send(&agent);
    until_it_fails(&admin);
    agent.stop();
    // It knows the number of partitions from its file.
    let (agent, admin) = published.start();
    published.send(&agent);
    until_it_fails(&admin);
    published.broker.restart();
    until_delivered(&admin);
    published.send(&agent);
    until_delivered(&admin);
    agent.stop();

    let (sum, ledger) = published.merged();
    assert_eq!(sum, published.sent as f64, "{ledger:?}");
    assert_eq!(
        (ledger.difference(), ledger.missing, ledger.lost),
        (0, 0, 0),
        "{ledger:?}"
    );
    assert_eq!(ledger.quarantined, 0);
}

/// The doctor's findings about the output `kafka`: significance, finding and remedy.
fn doctor(directory: &Path, connection: &str) -> (String, String, String) {
    doctor_in(directory, connection, &[])
}

fn doctor_in(directory: &Path, connection: &str, environment: &[(&str, &str)]) -> (String, String, String) {
    let config = directory.join("weir.yaml");
    let text = format!(
        "udp: ['127.0.0.1:0']\nadmin: off\noutputs:\n  prometheus: {{enabled: false}}\n  kafka: {{{connection}}}\n"
    );
    std::fs::write(&config, text).unwrap();
    let arguments = ["doctor", "--json", "--config", config.to_str().unwrap()];
    let text = support::run(&arguments, environment).stdout;
    let findings: Vec<Value> = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let of_brokers = |finding: &&Value| finding["check"] == "endpoint";
    let found = findings
        .iter()
        .find(of_brokers)
        .unwrap_or_else(|| panic!("{text}"));
    let part = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    (part("verdict"), part("found"), part("remedy"))
}

#[test]
fn commands_name_what_keeps_an_agent_from_its_brokers_and_add_partitions() {
    let directory = tempfile::tempdir().unwrap();
    let closed = Refusing::new();
    let of_closed = format!("brokers: ['{}']", closed.address);
    let (verdict, found, remedy) = doctor(directory.path(), &of_closed);
    assert_eq!(verdict, "error", "{found}");
    assert!(found.contains("Connection refused"), "{found}");
    assert!(remedy.contains("check the address"), "{remedy}");

    // A client waits as long as it means to, although the clock has stepped.
    let offset = directory.path().join("offset");
    std::fs::write(&offset, "3600").unwrap();
    let library = preloaded(directory.path(), OTHER_CLOCK);
    let environment = [
        ("LD_PRELOAD", library.as_str()),
        ("CLOCK_OFFSET", offset.to_str().unwrap()),
    ];
    let (_, found, _) = doctor_in(directory.path(), &of_closed, &environment);
    assert!(found.contains("Connection refused"), "{found}");

    let address = weir_broker::shared();
    let examined = format!("brokers: ['{address}'], topic: examined");
    let (verdict, found, remedy) = doctor(directory.path(), &examined);
    assert_eq!(
        (verdict.as_str(), found.as_str()),
        ("warning", "1 broker; there is no topic examined")
    );
    assert!(remedy.contains("may create topics"), "{remedy}");
    KafkaLog::open(&brokers(address, "examined"))
        .unwrap()
        .plan()
        .unwrap();
    let (verdict, found, _) = doctor(directory.path(), &examined);
    assert_eq!(
        (verdict.as_str(), found.as_str()),
        ("fine", "1 broker; 2 partitions in topic examined")
    );

    let (verdict, found, remedy) = doctor(directory.path(), &format!("{examined}, tls: {{enabled: true}}"));
    assert_eq!(verdict, "error", "{found}");
    assert!(remedy.contains("`tls.enabled`"), "{found}: {remedy}");

    let config = directory.path().join("merge.yaml");
    let text = format!(
        "log: {{brokers: ['{}'], topic: grown, partitions: 2}}\n",
        weir_broker::shared()
    );
    std::fs::write(&config, text).unwrap();
    let partitions = |arguments: &[&str]| {
        let all = ["merge", "partitions", "--config", config.to_str().unwrap()];
        weir(&[&all[..], arguments].concat())
    };
    assert_eq!(partitions(&[]), (true, "2 partitions\n".to_owned()));
    let before = unix_milliseconds() / 1000;
    let (is_done, text) = partitions(&["5", "--after", "10m"]);
    assert!(
        is_done && text.starts_with("2 partitions\n5 from the bucket that begins at"),
        "{text}"
    );
    let mut log = KafkaLog::open(&brokers(weir_broker::shared(), "grown")).unwrap();
    let (plan, mut expected) = (log.plan().unwrap(), Plan::new(2));
    let (from, count) = plan.steps().next().unwrap();
    assert!(
        count == 5 && (before + 600..before + 660).contains(&from),
        "{from} {count}"
    );
    expected.announce(from, 5);
    assert_eq!(plan, expected);
    until("the topic has them", || log.append(4, 1, b"x").is_ok());
    let (is_done, text) = partitions(&["5"]);
    assert!(!is_done && text.contains("there are or will be 5"), "{text}");
}
