//! Next to a real statsd_exporter, built through the module proxy: its own mapping files and the same traffic to both, every series
//! compared. What differs is named in docs/migrate/statsd_exporter.md.

use crate::support::receivers;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::support::said;
use receivers::{Killed, free_address, get, go_installed, until};

const MODULE: &str = "github.com/prometheus/statsd_exporter";
const VERSION: &str = "v0.31.0";

/// The program and its sources. `None` only where there is no Go toolchain.
struct Peer {
    program: PathBuf,
    sources: PathBuf,
}

impl Peer {
    fn built() -> Option<Peer> {
        let program = go_installed(&format!("{MODULE}@{VERSION}"), &[])?;
        let downloaded = Command::new("go")
            .args(["mod", "download", "-json", &format!("{MODULE}@{VERSION}")])
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .output()
            .unwrap();
        let said: serde_json::Value = serde_json::from_slice(&downloaded.stdout).unwrap();
        Some(Peer {
            program,
            sources: said["Dir"].as_str().unwrap().into(),
        })
    }

    fn takes(&self, mapping: &Path) -> bool {
        let checked = Command::new(&self.program)
            .arg("--check-config")
            .arg(format!("--statsd.mapping-config={}", mapping.display()))
            .stderr(Stdio::null())
            .status();
        checked.unwrap().success()
    }

    /// Mapping files of its example, its README and the cases of its tests.
    fn mappings(&self) -> Vec<(String, String)> {
        let read = |path: &str| std::fs::read_to_string(self.sources.join(path)).unwrap();
        let mut found = vec![("config.example.yml".to_owned(), read("config.example.yml"))];
        for (at, block) in read("README.md").split("```yaml\n").skip(1).enumerate() {
            let text = block.split("```").next().unwrap();
            found.push((format!("README block {}", at + 1), text.to_owned()));
        }
        for (at, case) in read("pkg/mapper/mapper_test.go")
            .split("config: `")
            .skip(1)
            .enumerate()
        {
            let text = case.split('`').next().unwrap();
            found.push((format!("mapper_test case {}", at + 1), text.replace('\t', "    ")));
        }
        found
    }
}

/// Both programs with one mapping.
struct Pair {
    children: RefCell<[Killed; 2]>,
    sockets: [(UdpSocket, String); 2],
    pages: [String; 2],
    /// Number of times the last line has been sent.
    markers: Cell<f64>,
    /// Clients send to weir alone, and weir passes on what comes.
    is_relayed: bool,
    directory: tempfile::TempDir,
}

impl Pair {
    fn start(peer: &Peer, mapping: &str) -> Option<Pair> {
        Self::start_as(peer, mapping, false)
    }

    fn start_as(peer: &Peer, mapping: &str, is_relayed: bool) -> Option<Pair> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("mapping.yml");
        std::fs::write(&file, mapping).unwrap();
        if !peer.takes(&file) {
            return None;
        }
        let (udp, web) = (free_address(), free_address());
        let theirs = Command::new(&peer.program)
            .arg(format!("--statsd.mapping-config={}", file.display()))
            .arg(format!("--statsd.listen-udp={udp}"))
            .args(["--statsd.listen-tcp="])
            .arg(format!("--web.listen-address={web}"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (our_udp, admin) = (free_address(), free_address());
        let flags = [
            format!("--statsd.listen-udp={our_udp}"),
            "--statsd.listen-tcp=".to_owned(),
            format!("--web.listen-address={admin}"),
        ];
        let mut command = vec!["convert", "statsd-exporter", file.to_str().unwrap()];
        let mut converted = if is_relayed {
            // As the page has it: weir takes the address that the flags name.
            command.push("--");
            command.extend(flags.iter().map(String::as_str));
            beside(&said(&command), &udp)
        } else {
            said(&command)
        };
        if !is_relayed {
            let _ = write!(converted, "udp: ['{our_udp}']\nadmin: '{admin}'\n");
        }
        let config = directory.path().join("weir.yaml");
        std::fs::write(&config, converted).unwrap();
        let ours = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["run", "--config", config.to_str().unwrap()])
            .args(["--bucket-width", "1s", "--hostname", "h"])
            .env_clear()
            .stderr(File::create(directory.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let pair = Pair {
            children: RefCell::new([Killed(theirs), Killed(ours)]),
            sockets: [udp, our_udp].map(|address| (UdpSocket::bind("127.0.0.1:0").unwrap(), address)),
            pages: [web, admin],
            markers: Cell::new(0.0),
            is_relayed,
            directory,
        };
        for page in &pair.pages {
            until("a page", || {
                get(page, "/metrics", "*/*").map(drop).ok_or("no page".into())
            });
        }
        Some(pair)
    }

    fn send(&self, line: &str) {
        for (socket, address) in &self.sockets[usize::from(self.is_relayed)..] {
            socket.send_to(line.as_bytes(), address).unwrap();
        }
    }

    fn shown(&self) -> [Exposition; 2] {
        [0, 1].map(|at| {
            let Some((_, body)) = get(&self.pages[at], "/metrics", "text/plain") else {
                let ended = self.children.borrow_mut()[at].0.try_wait();
                let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap();
                panic!("no page of program {at}, which ended as {ended:?}; the log of weir:\n{log}");
            };
            Exposition::read(&String::from_utf8(body).unwrap())
        })
    }

    /// Sends the lines, and waits until both show the same of all of them but for what is `allowed`, or long enough for both to show
    /// what they will.
    fn differences(&self, lines: &[String], allowed: fn(&str) -> bool) -> Vec<String> {
        for line in lines {
            self.send(line);
        }
        // Both keep the order: what shows this one shows the others too. Where it is mapped to another name, time has to do.
        self.send(&format!("{MARKER}:1|c"));
        self.markers.set(self.markers.get() + 1.0);
        let start = Instant::now();
        loop {
            let [theirs, ours] = self.shown();
            let taken = theirs
                .own
                .get("statsd_exporter_lines_total")
                .copied()
                .unwrap_or(0.0);
            let marked = |page: &Exposition| page.series.get(MARKER) == Some(&self.markers.get());
            let is_complete = marked(&theirs) && marked(&ours) || start.elapsed() > Duration::from_secs(5);
            let mut found = theirs.differences(&ours);
            found.retain(|line| !allowed(line));
            if found.is_empty() && is_complete && taken as usize > lines.len() {
                return found;
            }
            // Several buckets.
            if start.elapsed() > Duration::from_secs(20) {
                assert!(taken as usize > lines.len(), "statsd_exporter has lost lines");
                return found;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The converted configuration with what the page adds for both side by side.
fn beside(converted: &str, udp: &str) -> String {
    let page = include_str!("../../../docs/migrate/statsd_exporter.md");
    assert!(page.contains("add `relay:` below its `outputs:`"));
    let block = page
        .split("```yaml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let relay: Vec<&str> = block.lines().skip_while(|line| line.trim() != "relay:").collect();
    let relay: String = relay
        .iter()
        .filter(|line| !line.trim().is_empty())
        .map(|line| line.strip_prefix("   ").unwrap().replace("127.0.0.1:9135", udp) + "\n")
        .collect();
    assert!(relay.contains(udp), "{relay}");
    assert_eq!(converted.matches("outputs:\n").count(), 1, "{converted}");
    converted.replace("outputs:\n", &format!("outputs:\n{relay}"))
}

/// Sent last.
const MARKER: &str = "zz_marker";

/// Content of a page.
#[derive(Debug, Default)]
struct Exposition {
    series: BTreeMap<String, f64>,
    types: BTreeMap<String, String>,
    helps: BTreeMap<String, String>,
    /// Of the program itself.
    own: BTreeMap<String, f64>,
}

impl Exposition {
    fn read(text: &str) -> Exposition {
        let mut found = Exposition::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                found.types.insert(name.to_owned(), kind.to_owned());
            } else if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
                found.helps.insert(name.to_owned(), help.to_owned());
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let value: f64 = value.parse().unwrap();
                let into = if is_own(series) {
                    &mut found.own
                } else {
                    &mut found.series
                };
                into.insert(normal(series), value);
            }
        }
        found.types.retain(|name, _| !is_own(name));
        found.helps.retain(|name, _| !is_own(name));
        found
    }

    fn differences(&self, ours: &Exposition) -> Vec<String> {
        let mut found = Vec::new();
        for (series, value) in &self.series {
            match ours.series.get(series) {
                None => found.push(format!("{series} {value} is missing")),
                Some(own) if !equal(*own, *value) => found.push(format!("{series} is {own}, there {value}")),
                Some(_) => {}
            }
        }
        for series in ours
            .series
            .keys()
            .filter(|series| !self.series.contains_key(*series))
        {
            found.push(format!("{series} is not there"));
        }
        for (name, kind) in &self.types {
            if ours.types.get(name) != Some(kind) {
                found.push(format!("{name} is {:?}, there {kind}", ours.types.get(name)));
            }
        }
        for (name, help) in &self.helps {
            let is_own = !help.starts_with("Metric autogenerated");
            if is_own && ours.helps.get(name) != Some(help) {
                found.push(format!(
                    "help of {name} is {:?}, there {help:?}",
                    ours.helps.get(name)
                ));
            }
        }
        found
    }
}

fn is_own(name: &str) -> bool {
    [
        "statsd_exporter_",
        "statsd_metric_mapper_",
        "go_",
        "process_",
        "promhttp_",
        "weir_",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}

fn equal(one: f64, other: f64) -> bool {
    one == other || one.is_nan() && other.is_nan() || (one - other).abs() <= 1e-9 * one.abs().max(other.abs())
}

/// Labels in order, and the bounds and quantiles as numbers.
fn normal(series: &str) -> String {
    let Some((name, mut rest)) = series.split_once('{') else {
        return series.to_owned();
    };
    let mut labels = Vec::new();
    while let Some((key, after)) = rest.split_once("=\"") {
        let mut escaped = false;
        let end = after.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let (value, after) = after.split_at(end.unwrap());
        let key = key.trim_start_matches(',');
        match value.parse::<f64>() {
            Ok(number) if key == "le" || key == "quantile" => labels.push(format!("{key}={number}")),
            // Prometheus does not tell an empty one from none.
            _ if value.is_empty() => {}
            _ => labels.push(format!("{key}={value}")),
        }
        rest = &after[1..];
    }
    if labels.is_empty() {
        return name.to_owned();
    }
    labels.sort();
    format!("{name}{{{}}}", labels.join(","))
}

/// Two names for each pattern, with one kind: there, a name has one type.
fn lines_for(mapping: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for (at, part) in mapping.split("match:").skip(1).enumerate() {
        let pattern = part.lines().next().unwrap().trim().trim_matches(['"', '\'']);
        if !pattern
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-*".contains(c))
        {
            continue;
        }
        let observes = [
            "observer_type",
            "timer_type",
            "histogram",
            "summary",
            "timing",
            "buckets",
            "quantiles",
        ];
        let kind = if let Some((_, kind)) = part.split_once("match_metric_type:") {
            match kind.split_whitespace().next().unwrap() {
                "counter" => "c",
                "gauge" => "g",
                _ => "ms",
            }
        } else if observes.iter().any(|word| part.contains(word)) {
            "ms"
        } else {
            "c"
        };
        for token in ["one", "two"] {
            lines.push(format!("{}:{}|{kind}", pattern.replace('*', token), 7 + at));
        }
    }
    lines
}

/// For every mapping: names that none, some or expressions match, of every kind.
fn common() -> Vec<String> {
    let lines = [
        "plain.counter:5|c",
        "plain.counter:2.5|c",
        "a-b.c/d:1|c",
        "sampled.count:3|c|@0.1",
        "9lives:1|c",
        "plain.gauge:5|g",
        "plain.gauge:-2|g",
        "plain.gauge:+10|g",
        "falls.gauge:-3|g",
        "test.web-server.foo.bar:1|c",
        "test.timing.web.ubuntu.ok:250|ms",
        "foo_product.signup.facebook.failure:1|c",
        "plain.timer:320|ms",
        "plain.histogram:0.25|h",
        "sampled.timer:100|ms|@0.25",
        "influx.count,host=a,zone=b:1|c",
        "librato.count#host=a:1|c",
        "signalfx.count[host=a]:1|c",
        "signalfx[host=b].tail:2|c",
        "dogtags.hits:4|c|#host:a,zone:b",
        "dogtags.level:1.5|g|#z:1,a:2",
        "dogtags.time:40|ms|#host:a",
        "packed.time:40:40:40|ms|#host:a",
        "old.jobs.etl.x:1|c",
        "hyphen.a--status.200.count2:1|g",
        "test.alpha.beta.counter:2|c",
        "web.exec--http.status.404.count:1|c",
        "my.statsd_counter:1|c",
        "third.timer:100|ms|@0.3",
        "spread.distribution:0.25|d",
        "unmapped.total:1|c",
        "merge.x.y-z:1|c|#aa:1",
        "merge.x.y_z:2|c|#aa:1",
        "merge.a-b:1|g",
        "merge.a_b:2|g",
        "merge.t.a/b:10|ms",
        "merge.t.a_b:20|ms",
        "merge.api.latency:10|ms",
        "merge.api.latency:0.02|h",
        "merge.api.latency:0.03|d",
        "list.count:1|c:2|c",
        "list.time:320|ms:200|ms|@0.1",
        "list.level:32|g:+10|g:-10|g",
        "hashed.hits:1|c|#xx:1,#yy:2",
        "blank.hits:1|c|#env:prod, ",
    ];
    lines.map(str::to_owned).into()
}

/// Differences that the page names, each as what tells it in a line of the comparison and what the page says of it.
const NAMED: &[(&str, &str)] = &[
    ("hyphen_a_", "`--`"),
    ("web_exec_", "`--`"),
    ("third_timer_sum", "fraction"),
    ("spread_distribution{quantile", "are sketches"),
    ("merge_t_a_b{quantile", "Quantiles of summaries"),
    ("merge_api_latency{quantile", "Quantiles of summaries"),
];

/// Options of mappings whose names are templates, a name with and without labels, and what only one of Go and Rust reads as it is meant.
const TEMPLATES: &str = r#"mappings:
- match: "*.elapsed_ms"
  name: "${1}_seconds"
  scale: 0.001
- match: "*.elapsed_s"
  name: "${1}_seconds"
- match: "executor.open.*"
  name: executor_open
  labels: {executor: $1}
- match: "hist.*"
  match_metric_type: observer
  name: "$1"
  observer_type: histogram
  histogram_options:
    buckets: [1, 10]
- match: '^braced\.{x}\.([[a&&-]+)\.(\w+)$'
  match_type: regex
  name: braced
  labels: {sign: $1, word: $2}
- match: "late.*"
  name: "${1}_late"
  help: "of this mapping"
"#;

/// Lines for it, beside those of every mapping.
const FOR_TEMPLATES: &[&str] = &[
    "job.elapsed_ms:500|c",
    "job.elapsed_s:2|c",
    "x.lag_seconds:5|h",
    "process.uptime_seconds:100|g",
    "executor.open:32|g",
    "executor.open.Local:30|g",
    "hist.depth:5|h",
    "other.depth:5|h",
    "depths:5|h",
    "braced.{x}.&[a.word:3|c",
    "late.shown:1|g",
    "shown.not:1|g",
];

/// A file in the shape of those for a program that sends most metrics twice, once with its parts in the name and once with tags: mapped names
/// are those of other metrics too, a prefix is an expression without anchors, and a glob has a hyphen.
pub const TWICE: &str = r#"mappings:
- match: flow.run.pre-check.*.*
  name: flow_run_pre_check
  labels: {flow_id: $1}
- match: flow.done_(.*)
  match_type: regex
  name: flow_done
  labels: {step: $1}
- match: flow.heartbeat
  match_type: regex
  name: flow_heartbeat
  labels: {type: counter}
- match: flow.step.*.*.duration
  name: flow_task_duration
  labels: {flow_id: $1, task_id: $2}
- match: flow.run.duration.good.*
  name: flow_run_duration
  labels: {flow_id: $1}
- match: flow.pool.open.*
  name: flow_pool_open
  labels: {pool: $1}
- match: flow.executor.open.*
  name: flow_executor_open
  labels: {executor: $1}
"#;

/// Lines for it, beside those of every mapping.
pub const FOR_TWICE: &[&str] = &[
    "flow.executor.open:32|g",
    "flow.executor.open.Local:30|g",
    "flow.executor.open.Remote:12|g",
    "flow.pool.open:128|g|#pool_name:main",
    "flow.pool.open.main:128|g",
    "flow.pool.open.small-pool:3|g",
    "flow.pool.open:3|g|#pool:small-pool",
    "flow.heartbeat:1|c",
    "before.flow.heartbeat.behind:2|c",
    "flow.done_Shell:1|c",
    "flow.done_Mail:2|c",
    "flow.done:3|c|#flow_id:a,task_id:b",
    "flow.done:4|c|#step:Shell",
    "flow.task.duration:1500|ms|#flow_id:etl,task_id:load",
    "flow.task.duration:100|ms|#flow_id:other,task_id:load",
    "flow.step.etl.load.duration:1500|ms",
    "flow.step.etl.extract.duration:250.5|ms",
    "flow.run.duration:61000|ms|#flow_id:etl",
    "flow.run.duration.good.etl:60000|ms",
    "flow.run.duration.good:60500|ms|#flow_id:etl",
    "flow.run.pre-check.etl.x:3|ms",
    "flow.run.pre-check.etl:4|ms",
    "flow.run.pre-check:5|ms|#flow_id:etl",
    "flow.run_pre_check:6|ms|#flow_id:etl",
    "flow.triggers:3|g",
    "flow.triggers.host-1.example:3|g",
    "flow.triggers:3|g|#hostname:host-1",
    "flow.created_Shell:1|c",
    "flow.created-Shell:2|c",
];

/// Whether a line is about a name with weir's digest behind it, which names of several kinds get.
fn has_digest(difference: &str) -> bool {
    let name = difference.split(['{', ' ']).next().unwrap_or_default();
    name.split('_')
        .any(|part| part.len() == 8 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn named(difference: &str) -> bool {
    let page = include_str!("../../../docs/migrate/statsd_exporter.md");
    assert!(page.contains("Name conflicts."));
    has_digest(difference)
        || NAMED.iter().any(|(what, said)| {
            assert!(page.contains(said), "the page does not say {said}");
            difference.contains(what)
        })
}

/// Pairs of both programs that run at the same time.
const PAIRS_AT_A_TIME: usize = 8;

/// In the gate: scrape::, and migrate_pages::the_commands_of_each_page_produce_a_configuration_that_weir_accepts.
#[test]
#[ignore = "nightly: builds statsd_exporter"]
fn every_series_of_its_own_mapping_files_is_the_same() {
    let Some(peer) = Peer::built() else { return };
    // Nearly all of the time is spent waiting for buckets, and each pair of programs waits for its own.
    let own =
        [("templates", TEMPLATES), ("twice", TWICE)].map(|(name, text)| (name.to_owned(), text.to_owned()));
    let todo = Mutex::new(own.into_iter().chain(peer.mappings()));
    let done = Mutex::new((0, 0, 0, Vec::new()));
    let compare = || {
        while let Some((name, mapping)) = { todo.lock().unwrap().next() } {
            let Some(pair) = Pair::start(&peer, &mapping) else {
                done.lock().unwrap().2 += 1;
                continue;
            };
            let mut lines = lines_for(&mapping);
            lines.extend(common());
            let own = match &*mapping {
                TEMPLATES => FOR_TEMPLATES,
                TWICE => FOR_TWICE,
                _ => &[],
            };
            lines.extend(own.iter().map(|line| (*line).to_owned()));
            let found = pair.differences(&lines, named);
            let mut done = done.lock().unwrap();
            done.0 += 1;
            done.1 += pair.shown()[0].series.len();
            if !found.is_empty() {
                done.3
                    .push(format!("{name}:\n{mapping}\n  {}\n", found.join("\n  ")));
            }
        }
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..PAIRS_AT_A_TIME).map(|_| scope.spawn(compare)).collect();
        for thread in running {
            thread.join().unwrap();
        }
    });
    let (compared, series, refused, different) = done.into_inner().unwrap();
    assert!(
        compared >= 30,
        "only {compared} mapping files, {refused} are refused there"
    );
    assert!(series >= 1000, "only {series} series were compared");
    assert!(
        different.is_empty(),
        "{} of {compared} differ:\n{}",
        different.len(),
        different.join("\n")
    );
}

/// In the gate: scrape::, migrate_pages::the_commands_of_each_page_produce_a_configuration_that_weir_accepts, and of weir-ingest
/// listeners::an_idle_gauge_begins_again_at_zero_after_the_time_of_its_mapping.
#[test]
#[ignore = "nightly: builds statsd_exporter"]
fn values_over_time_and_through_a_relay_add_up_to_the_same() {
    let Some(peer) = Peer::built() else { return };
    values_between_buckets_and_several_buckets_of_time_add_up_to_the_same(&peer);
    a_gauge_begins_again_at_zero_after_the_ttl_of_its_mapping(&peer);
    statsd_exporter_beside_weir_shows_equal_series(&peer);
}

fn values_between_buckets_and_several_buckets_of_time_add_up_to_the_same(peer: &Peer) {
    let mapping = "defaults:\n  observer_type: histogram\n  histogram_options:\n    buckets: [.01, .1, 1, 10]\nmappings:\n- match: kb.*\n  name: size_bytes\n  scale: 1024\n  \
                   help: Sizes\n  labels: {what: $1}\n  histogram_options:\n    buckets: [1024, 4096]\n- match: quick.*\n  name: quick\n  observer_type: summary\n  labels: {host: mapped}\n\
                   - match: honest.*\n  name: honest\n  honor_labels: true\n  labels: {host: mapped}\n";
    let pair = Pair::start(peer, mapping).unwrap();
    let mut lines = Vec::new();
    for round in 0..3 {
        for value in [1, 9, 10, 11, 99, 100, 5000, 60_000] {
            lines.push(format!("lag:{}|ms", value + round));
            lines.push(format!("kb.{value}:{}|h", value % 5));
        }
        lines.push(format!("quick.a:{round}|ms|#host:x"));
        lines.push("honest.a:1|c|#host:x".to_owned());
        lines.push("honest.b:1|c".to_owned());
        lines.push("level:+4|g".to_owned());
        let found = pair.differences(&lines, |line| line.contains("quantile="));
        assert_eq!(found, [""; 0], "round {round}");
        lines.clear();
    }
}

fn a_gauge_begins_again_at_zero_after_the_ttl_of_its_mapping(peer: &Peer) {
    let mapping = "mappings:\n- match: short.*\n  name: short\n  labels: {of: $1}\n  ttl: 3s\n- match: never.*\n  name: never\n  ttl: 0\n- match: '*.*'\n  name: $2\n  ttl: 1h\n";
    let pair = Pair::start(peer, mapping).unwrap();
    let short = "short{of=a}";
    let values = |name: &str| pair.shown().map(|page| page.series.get(name).copied());
    for line in ["short.a:10|g", "never.a:10|g", "x.long:10|g"] {
        pair.send(line);
    }
    until("both show it", || match values(short) {
        [Some(10.0), Some(10.0)] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    until("both have forgotten it", || match values(short) {
        [None, None] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let mut seen = [None; 2];
    for line in ["short.a:+5|g", "never.a:+5|g", "x.long:+5|g"] {
        pair.send(line);
    }
    until("both show the change alone", || {
        for (seen, now) in seen.iter_mut().zip(values(short)) {
            *seen = seen.or(now);
        }
        match seen {
            [Some(_), Some(_)] => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    assert_eq!(seen, [Some(5.0); 2]);
    for name in ["never", "long"] {
        assert_eq!(values(name), [Some(15.0); 2], "{name}");
    }
}

/// Side by side as the page has it: clients send to weir, weir passes on what comes, and both show the same.
fn statsd_exporter_beside_weir_shows_equal_series(peer: &Peer) {
    let mapping = "mappings:\n- match: jobs.*\n  name: jobs\n  labels: {job: $1}\n";
    let pair = Pair::start_as(peer, mapping, true).unwrap();
    let lines = [
        "jobs.a:1|c",
        "jobs.b:3|c",
        "queue:5|g",
        "queue:-2|g",
        "lag:100|ms",
        "tagged#env=prod:1|c",
    ];
    let found = pair.differences(&lines.map(str::to_owned), |_| false);
    assert_eq!(found, [""; 0]);
}
