//! A fleet through faults, from the senders to the receivers: three agents of two tenants, two merges over a log in files, three outputs.
//! Each fault comes behind an event, and each sample has a tag that names the step in which it was sent. `rig/scripts/soak-fleet.py` does
//! the same over brokers for an hour, at random moments.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use serde_json::{Value, json};

use crate::delivery::intake::{Answer, Intake};
use crate::merge::process::Merge;
use crate::support::place::{replace_by_a_file, wait_for_all};
use crate::support::preload::{OTHER_CLOCK, preloaded};
use crate::support::{Agent, status, until};

const TENANTS: [&str; 3] = ["shop", "bank", "bank"];
const KEY: &str = "0123456789abcdef0123456789abcdef";
const PARTITIONS: u64 = 4;

/// Samples of an agent that is killed in the middle of a bucket.
const AT_RISK: usize = 300;

/// A metric, its agent and its step: what receivers have, with the largest single value.
type Sums = BTreeMap<(String, String, String), (f64, f64)>;

/// The wall clock of all processes of a fleet.
struct Clock {
    directory: PathBuf,
    library: String,
}

impl Clock {
    fn new(directory: &Path) -> Clock {
        let directory = directory.join("clock");
        std::fs::create_dir(&directory).unwrap();
        let clock = Clock {
            library: preloaded(&directory, OTHER_CLOCK),
            directory,
        };
        clock.set(0);
        clock
    }

    /// Seconds that it is ahead of the machine's.
    fn set(&self, ahead: i64) {
        std::fs::write(self.directory.join("new"), ahead.to_string()).unwrap();
        std::fs::rename(self.directory.join("new"), self.directory.join("offset")).unwrap();
    }

    fn environment(&self) -> Environment {
        let offset = self.directory.join("offset").display().to_string();
        vec![
            ("LD_PRELOAD", self.library.clone()),
            ("CLOCK_OFFSET", offset),
            ("WEIR_SANDBOX", "off".to_owned()),
        ]
    }
}

type Environment = Vec<(&'static str, String)>;

fn borrowed<'a>(environment: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    let all = environment.iter();
    all.map(|(name, value)| (*name, value.as_str())).collect()
}

/// One of the three agents. Its state, queue and socket outlive it.
struct Source {
    number: usize,
    directory: PathBuf,
    config: String,
    environment: Environment,
    agent: Option<Agent>,
}

impl Source {
    fn new(number: usize, directory: &Path, log: &Path, environment: &[(&'static str, String)]) -> Source {
        let directory = directory.join(format!("agent{number}"));
        std::fs::create_dir(&directory).unwrap();
        let own = directory.display();
        let config = format!(
            "bucket_width: 2s\nworkers: 1\nuds: {own}/datagrams\ntags: ['a:{number}']\noutputs:\n  prometheus: {{enabled: false}}\n  \
             kafka: {{directory: {}, partitions: {PARTITIONS}, tenant: {}, delivery: {{disk_path: {own}/queue, backoff_max: 100ms}}}}\n",
            log.display(),
            TENANTS[number],
        );
        let mut source = Source {
            number,
            config,
            environment: environment.to_vec(),
            directory,
            agent: None,
        };
        source.start();
        source
    }

    fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("datagrams")
    }

    fn start(&mut self) {
        let state = self.state().display().to_string();
        let mut environment = borrowed(&self.environment);
        environment.push(("WEIR_STATE_PATH", &state));
        self.agent = Some(Agent::start(&self.config, &environment));
    }

    fn status(&self) -> Value {
        status(&self.agent.as_ref().unwrap().admin)
    }

    /// Sends lines, and returns when they are read.
    fn send(&self, lines: &[String]) {
        let socket = UnixDatagram::unbound().unwrap();
        socket.connect(self.socket()).unwrap();
        for some in lines.chunks(20) {
            socket.send(some.join("\n").as_bytes()).unwrap();
        }
        wait_for_all(&self.agent.as_ref().unwrap().admin, &self.socket(), None);
    }

    /// Waits until a bucket has ended, and all before is in the log.
    fn until_published(&self) {
        let flushes = || self.status()["flush"]["count"].as_u64().unwrap();
        let before = flushes();
        until("a bucket ends", || flushes() > before);
        // On its way to the output, it is not produced yet: it is once something more is. An idle agent has records too, and they wait for its
        // time to send.
        let points = |of: &str| self.status()["outputs"][0]["points"][of].as_u64();
        let produced = points("produced");
        until("it has reached the output", || points("produced") > produced);
        let produced = points("produced");
        until("all before it is delivered", || points("delivered") >= produced);
    }

    /// Waits until the agent's time follows a clock that was set back. The bucket that was open then has the time of its beginning, and the
    /// samples of the turn that noticed the step.
    fn until_set_back(&self) {
        until("the agent's time is set back", || {
            self.status()["clock"]["set_back"].as_u64() > Some(0)
        });
        self.until_published();
    }

    /// The next process of a killed one: the samples that it says are lost, and of them those that may have been delivered after all.
    fn killed(&mut self) -> (u64, u64) {
        self.agent.take().unwrap().signal("-KILL");
        self.start();
        let state = self.status()["state"].clone();
        let uncertain = state["samples_uncertain"].as_object();
        let uncertain = uncertain.into_iter().flat_map(|outputs| outputs.values());
        (
            state["samples_lost"].as_u64().unwrap(),
            uncertain.filter_map(Value::as_u64).sum(),
        )
    }
}

/// Receives lines of Graphite: the last value of each series and time.
#[derive(Clone)]
struct Graphite {
    address: SocketAddr,
    points: Arc<Mutex<BTreeMap<(String, String), f64>>>,
}

impl Graphite {
    fn start() -> Graphite {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let graphite = Graphite {
            address: listener.local_addr().unwrap(),
            points: Arc::default(),
        };
        let points = graphite.points.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let points = points.clone();
                std::thread::spawn(move || {
                    for line in BufReader::new(stream).lines().map_while(Result::ok) {
                        let mut parts = line.split(' ').map(str::to_owned);
                        let (path, value, at) = (parts.next(), parts.next(), parts.next());
                        if let (Some(path), Some(value), Some(at)) = (path, value, at) {
                            points.lock().unwrap().insert((path, at), value.parse().unwrap());
                        }
                    }
                });
            }
        });
        graphite
    }

    fn sums(&self) -> Sums {
        let mut sums = Sums::new();
        for ((path, _), value) in self.points.lock().unwrap().iter() {
            let (name, tags) = path.split_once(';').unwrap_or((path, ""));
            let name = if name == "k.c.count" { "k.c" } else { name };
            add(
                &mut sums,
                name,
                tags.split(';').filter_map(|tag| tag.split_once('=')),
                *value,
            );
        }
        sums
    }
}

/// Adds a point of one of the test's series.
fn add<'a>(sums: &mut Sums, name: &str, tags: impl Iterator<Item = (&'a str, &'a str)>, value: f64) {
    let tags: BTreeMap<&str, &str> = tags.collect();
    let (Some(agent), Some(step)) = (tags.get("a"), tags.get("w")) else {
        return;
    };
    assert_eq!(
        tags.get("tenant"),
        Some(&TENANTS[agent.parse::<usize>().unwrap()]),
        "{name} {tags:?}"
    );
    let key = (name.to_owned(), (*agent).to_owned(), (*step).to_owned());
    let (sum, largest) = sums.entry(key).or_insert((0.0, f64::MIN));
    *sum += value;
    *largest = largest.max(value);
}

fn of_json(tags: &Value) -> impl Iterator<Item = (&str, &str)> {
    let tags = tags.as_array().into_iter().flatten();
    tags.filter_map(|tag| tag.as_str()?.split_once(':'))
}

/// The lines of all files. After a kill the next process may write lines of the last bucket again, which are equal.
fn in_files(files: &[PathBuf]) -> Sums {
    let texts = files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap_or_default());
    let texts: Vec<String> = texts.collect();
    let lines: std::collections::BTreeSet<&str> = texts.iter().flat_map(|text| text.lines()).collect();
    let mut sums = Sums::new();
    for line in lines {
        // The last one may be being written.
        let Ok(point) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let name = point["metric"].as_str().unwrap();
        match point["type"].as_str() {
            Some("sketch") => {
                let count = point["cnt"].as_f64().unwrap();
                add(
                    &mut sums,
                    &format!("{name}.count"),
                    of_json(&point["tags"]),
                    count,
                );
            }
            Some("rate") => {
                let count = point["value"].as_f64().unwrap() * point["interval"].as_f64().unwrap_or(1.0);
                add(&mut sums, name, of_json(&point["tags"]), count);
            }
            _ => add(
                &mut sums,
                name,
                of_json(&point["tags"]),
                point["value"].as_f64().unwrap(),
            ),
        }
    }
    sums
}

/// Points of a backend that replaces equal times.
fn at_datadog(intake: &Intake) -> Sums {
    let mut points: BTreeMap<(String, String, i64), (Value, f64)> = BTreeMap::new();
    for body in intake.series.lock().unwrap().iter() {
        let body: Value = serde_json::from_slice(body).unwrap();
        for series in body["series"].as_array().unwrap() {
            let interval = series["interval"].as_f64().unwrap_or(1.0).max(1.0);
            let is_gauge = series["type"] == 3;
            for point in series["points"].as_array().unwrap() {
                let value = point["value"].as_f64().unwrap() * if is_gauge { 1.0 } else { interval };
                let name = series["metric"].as_str().unwrap().to_owned();
                let key = (
                    name,
                    series["tags"].to_string(),
                    point["timestamp"].as_i64().unwrap(),
                );
                points.insert(key, (series["tags"].clone(), value));
            }
        }
    }
    let mut sums = Sums::new();
    for ((name, ..), (tags, value)) in &points {
        add(&mut sums, name, of_json(tags), *value);
    }
    sums
}

struct Fleet {
    directory: tempfile::TempDir,
    sources: Vec<Source>,
    merges: Vec<Option<Merge>>,
    graphite: Graphite,
    datadog: Intake,
    environment: Environment,
    truth: BTreeMap<(String, String, String), f64>,
    /// By agent and step: samples of counters that the agent names as lost, and of them those that may have arrived after all.
    lost: BTreeMap<(String, String), (u64, u64)>,
}

impl Fleet {
    fn start(is_datadog_alive: &Arc<AtomicBool>) -> Fleet {
        Fleet::start_in(tempfile::tempdir().unwrap(), Environment::new(), is_datadog_alive)
    }

    fn start_in(
        directory: tempfile::TempDir,
        environment: Environment,
        is_datadog_alive: &Arc<AtomicBool>,
    ) -> Fleet {
        let is_alive = is_datadog_alive.clone();
        let datadog = Intake::start(true, move |_| match is_alive.load(Ordering::SeqCst) {
            true => Answer::Accept,
            false => Answer::Fail,
        });
        let log = directory.path().join("log");
        let mut fleet = Fleet {
            sources: (0..3)
                .map(|number| Source::new(number, directory.path(), &log, &environment))
                .collect(),
            merges: vec![None, None],
            graphite: Graphite::start(),
            datadog,
            environment,
            truth: BTreeMap::new(),
            lost: BTreeMap::new(),
            directory,
        };
        (0..2).for_each(|number| fleet.start_merge(number));
        fleet
    }

    fn file(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("{number}.json"))
    }

    fn start_merge(&mut self, number: usize) {
        let text = format!(
            "flush_summary: false\nlog: {{directory: {}, partitions: {PARTITIONS}}}\ngrace: 20s\ngrace_period: 5s\noutputs:\n  prometheus: {{enabled: false}}\n  \
             file: {{path: {}}}\n  graphite: {{address: 'tcp://{}'}}\n  datadog:\n    api_key: {KEY}\n    url: http://{}\n    \
             series_format: v2_json\n    compression: none\n    heartbeat: false\n    host_metadata: false\n    \
             delivery: {{backoff_max: 100ms}}\n",
            self.directory.path().join("log").display(),
            self.file(number).display(),
            self.graphite.address,
            self.datadog.address,
        );
        let own = self.directory.path().join(format!("merge{number}"));
        std::fs::create_dir_all(&own).unwrap();
        self.merges[number] = Some(Merge::start_in(&borrowed(&self.environment), &own, &text));
    }

    /// The merge with this value in its status.
    fn the_one(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> usize {
        until(what, || {
            let mut merges = self.merges.iter().flatten();
            merges
                .position(|merge| is_it(&merge.fleet()))
                .ok_or_else(|| "none".to_owned())
        })
    }

    fn kill_merge(&mut self, number: usize) {
        self.merges[number].take().unwrap().kill();
        self.start_merge(number);
    }

    /// Sends the samples of a step to each agent: every kind, and for some steps points of two minutes ago.
    fn step(&mut self, step: usize, has_late: bool) {
        let ago = UNIX_EPOCH.elapsed().unwrap().as_secs() - 120;
        for source in &self.sources {
            let number = source.number;
            let mut lines = Vec::new();
            let mut send = |name: &str, of_truth: &str, value: String, kind: &str, adds: f64| {
                lines.push(format!("{name}:{value}|{kind}|#w:{step}"));
                let key = (of_truth.to_owned(), number.to_string(), step.to_string());
                *self.truth.entry(key).or_default() += adds;
            };
            for value in 1..=10 + number {
                send("k.c", "k.c", value.to_string(), "c", value as f64);
                send("k.d", "k.d.count", value.to_string(), "d", 1.0);
                send("k.t", "k.t.count", value.to_string(), "ms", 1.0);
                send("k.s", "k.s", format!("m{value}"), "s", 1.0);
            }
            send("k.g", "k.g", format!("{}", step + 10), "g", (step + 10) as f64);
            if has_late {
                let value = 1000 * (step + 1) + number;
                lines.push(format!("k.late:{value}|c|T{ago}|#w:{step}"));
                let key = ("k.late".to_owned(), number.to_string(), step.to_string());
                self.truth.insert(key, value as f64);
            }
            source.send(&lines);
        }
    }

    /// Kills an agent in the middle of a bucket: what is lost is what its next process says.
    fn kill_agent(&mut self, number: usize, step: usize) {
        let source = &mut self.sources[number];
        source.until_published();
        let lines: Vec<String> = (0..AT_RISK)
            .map(|at| format!("k.c:1|c|#w:{step},x:{}", at % 50))
            .collect();
        source.send(&lines);
        let told = source.killed();
        let (agent, step) = (number.to_string(), step.to_string());
        self.lost.insert((agent.clone(), step.clone()), told);
        self.truth.insert(("k.c".to_owned(), agent, step), AT_RISK as f64);
    }

    /// Ends all agents. Nothing can be kept, so the bucket is flushed, and each says that it ends.
    fn end_agents(&mut self) {
        for source in &mut self.sources {
            replace_by_a_file(&source.state());
            source.agent.take().unwrap().stop();
        }
    }

    fn until_received(&self) {
        until("every output has what was sent", || {
            self.compare().map_err(|difference| {
                let merges = self.merges.iter().flatten().map(Merge::fleet);
                let running = self.sources.iter().filter(|source| source.agent.is_some());
                let agents: Vec<Value> = running.map(|source| source.status()["outputs"].take()).collect();
                format!(
                    "{difference}; outputs of agents: {agents:?}; merges: {:?}",
                    merges.collect::<Vec<_>>()
                )
            })
        });
    }

    /// Ends the merges once every output has what was sent, and returns the quarantined records by reason.
    fn end(mut self) -> Value {
        self.until_received();
        let owner = self.the_one("a merge has the log", |of| of["partitions_held"] == PARTITIONS);
        let of_owner = self.merges[owner].as_ref().unwrap().fleet();
        for nothing in ["missing", "lost"] {
            assert_eq!(of_owner["states"][nothing], 0, "{of_owner}");
        }
        // Nothing comes a second time while they stop.
        for merge in self.merges.iter_mut() {
            let (ended, log) = merge.take().unwrap().stop();
            assert!(ended.success(), "{log}");
        }
        self.compare().unwrap();
        of_owner["quarantined"].clone()
    }

    /// Compares the truth with what each receiver has.
    fn compare(&self) -> Result<(), String> {
        let files = [0, 1].map(|number| self.file(number));
        let received = [
            ("file", in_files(&files)),
            ("graphite", self.graphite.sums()),
            ("datadog", at_datadog(&self.datadog)),
        ];
        for ((name, agent, step), sent) in &self.truth {
            let lost = self.lost.get(&(agent.clone(), step.clone()));
            let (lost, uncertain) = lost.copied().unwrap_or_default();
            let (least, most) = (sent - lost as f64, sent - lost.saturating_sub(uncertain) as f64);
            for (output, sums) in &received {
                // A difference for an old bucket would replace its full value. Distributions go to another address of Datadog.
                if name == "k.late" && *output != "file" || name == "k.d.count" && *output == "datadog" {
                    continue;
                }
                let found = sums.get(&(name.clone(), agent.clone(), step.clone()));
                let (sum, largest) = found.copied().unwrap_or_default();
                // A step may be in two buckets: members that are in both count twice, and a gauge is in each.
                let is_right = match name.as_str() {
                    "k.g" => largest == *sent,
                    "k.s" => largest <= *sent && *sent <= sum,
                    _ => (least - 1e-6..=most + 1e-6).contains(&sum),
                };
                if !is_right {
                    return Err(format!(
                        "{output}: {name} of agent {agent}, step {step}: {sum}, largest {largest}; {sent} were sent, {lost} are named as lost"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[test]
fn receivers_have_what_was_sent_but_for_what_an_agent_names_as_lost() {
    let is_datadog_alive = Arc::new(AtomicBool::new(true));
    let mut fleet = Fleet::start(&is_datadog_alive);
    fleet.step(0, false);
    let owns = |of: &Value| of["partitions_held"] == PARTITIONS && of["closed_buckets"].as_u64() > Some(0);
    let owner = fleet.the_one("a merge has closed buckets", owns);
    fleet.step(1, false);
    fleet.kill_merge(owner);

    is_datadog_alive.store(false, Ordering::SeqCst);
    fleet.step(2, true);
    fleet.kill_agent(1, 3);
    let waits = |of: &Value| {
        let sent = of["sent"].as_array().into_iter().flatten();
        sent.into_iter()
            .any(|row| row["output"] == "datadog" && row["waits"] == true)
    };
    let sender = fleet.the_one("a merge waits for the dead output", waits);
    let page = fleet.merges[sender].as_ref().unwrap().page();
    assert!(page.contains("waits for the output"), "{page}");
    fleet.step(4, false);
    fleet.kill_merge(sender);

    fleet.sources[2].agent.take().unwrap().stop();
    fleet.sources[2].start();
    fleet.step(5, true);
    is_datadog_alive.store(true, Ordering::SeqCst);
    fleet.step(6, false);
    fleet.end_agents();
    assert_eq!(fleet.end(), json!({}));
}

/// The clock of the machine, so that of agents, log and merges, is an hour ahead for a while. A merge dies before it is right again.
#[test]
fn receivers_have_what_was_sent_while_the_clock_stepped() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::new(directory.path());
    let environment = clock.environment();
    let mut fleet = Fleet::start_in(directory, environment, &Arc::new(AtomicBool::new(true)));
    fleet.step(0, false);
    let owns = |of: &Value| of["partitions_held"] == PARTITIONS && of["closed_buckets"].as_u64() > Some(0);
    let owner = fleet.the_one("a merge has closed buckets", owns);
    fleet.step(1, true);
    // In the middle of a bucket.
    clock.set(3600);
    fleet.step(2, false);
    // An owner that starts reads the step like silence and closes the bucket of the step at once; what comes later for it is late.
    fleet.until_received();
    fleet.kill_merge(owner);
    fleet.step(3, true);
    // A record of the wrong hour that an agent has yet when the clock is right is in the future, and goes to quarantine. Only receivers tell
    // that none has: partitions are sent at different times, and a busy machine is behind.
    fleet.until_received();
    clock.set(0);
    fleet.sources.iter().for_each(Source::until_set_back);
    fleet.step(4, true);
    fleet.sources.iter().for_each(Source::until_published);
    fleet.step(5, false);
    fleet.end_agents();
    let quarantined = fleet.end();
    // An agent has records without samples as well, and a step can come at any moment of one: before it is made, or between its stamp and
    // the log's.
    let mut reasons = quarantined.as_object().unwrap().keys();
    assert!(
        reasons.all(|reason| ["future", "clock"].contains(&&**reason)),
        "{quarantined}"
    );
}
