//! A load of columns: what its requests say, and what an agent makes of them.

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use weir_columns::MetricType;
use weir_columns::payload::Payload;
use weir_load::manifest::{ContextTruth, Manifest};
use weir_load::profile::{Profile, Transport};
use weir_load::run::{self, Options, Report, RunError};
use weir_load::source::Load;
use weir_load::target::Target;
use weir_load::truth::{self, Detail};

const BENCH: &str = env!("CARGO_BIN_EXE_weir-bench");

/// However slow the machine: what takes longer is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// Few series, so that each has many values; fractions and weights too.
const SHAPE: &str = "contexts: 40, types: {count: 1, gauge: 1, distribution: 1}, value: {float_p: 0.3}";

/// A request as it arrived.
struct Seen {
    path: String,
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Seen {
    fn number(&self, field: &str) -> u64 {
        self.fields[field].parse().unwrap()
    }
}

/// The bytes of one request, and what they say. `None`: the sender has gone.
fn read_request(stream: &mut impl Read) -> Option<(Vec<u8>, Seen)> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes.clone()).unwrap();
    let mut lines = head.lines();
    let path = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let fields: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut body = vec![0; fields["content-length"].parse().unwrap()];
    stream.read_exact(&mut body).ok()?;
    bytes.extend_from_slice(&body);
    Some((bytes, Seen { path, fields, body }))
}

/// Answers the n-th request by the n-th of these, and all later ones by the last; an empty answer is none.
fn answering(answers: &'static [&'static str]) -> (Target, Receiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, seen) = channel();
    std::thread::spawn(move || {
        let mut answers = answers.iter().peekable();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // The first connection of a run only looks whether somebody is there.
            let Some((_, request)) = read_request(&mut stream) else {
                continue;
            };
            let answer = *answers.peek().unwrap();
            if answers.len() > 1 {
                answers.next();
            }
            // Before the answer, after which the run may end.
            if sender.send(request).is_err() {
                return;
            }
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    let target = Target::Http {
        address,
        host: address.to_string(),
        path: "/".into(),
    };
    (target, seen)
}

const TAKEN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const REPETITION: &str = "HTTP/1.1 200 OK\r\nx-weir-duplicate: 1\r\nContent-Length: 0\r\n\r\n";
const LATER: &str = "HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 4\r\n\r\nlate";
const INVALID: &str = "HTTP/1.1 400 Bad Request\r\nContent-Length: 11\r\n\r\nnot columns";

fn load(more: &str) -> Load {
    let profile = Profile::from_yaml(&format!("{{{SHAPE}, {more}}}")).unwrap();
    Load::prepare("test", &profile, Transport::Http, 7).unwrap()
}

fn manifest(load: &Load, report: &Report) -> Manifest {
    let detail = Detail {
        contexts: true,
        bins: true,
        windows: true,
        ..Detail::default()
    };
    truth::manifest(load, "x", report, &detail)
}

#[test]
fn a_request_is_repeated_with_its_number_until_it_is_acknowledged() {
    let (target, seen) = answering(&["", LATER, "HTTP/1.1 200", REPETITION, TAKEN]);
    let load = load("throttle: all_out, window: 1h");
    let options = Options {
        count: Some(2000),
        ..Options::new(target)
    };
    let (report, error) = run::run(&load, &options).unwrap();
    assert!(error.is_none(), "{error:?}");
    let seen: Vec<Seen> = seen.try_iter().collect();
    let columns = report.columns.as_ref().unwrap();
    assert_eq!(
        (columns.requests, columns.sent_again, columns.duplicates),
        (2, 3, 1),
        "{columns:?}"
    );
    assert_eq!((columns.unanswered, columns.busy), (2, 1), "{columns:?}");
    let paths: Vec<&str> = seen.iter().map(|request| request.path.as_str()).collect();
    assert_eq!(paths, ["/series", "/series", "/series", "/series", "/sketches"]);
    for request in &seen {
        let number = if request.path == "/series" { 1 } else { 2 };
        assert_eq!(request.number("x-weir-sequence"), number);
        assert_eq!(request.number("x-weir-oldest"), number, "one at a time");
        assert_eq!(request.fields["x-weir-client"], columns.clients[0].id);
        assert_eq!(request.fields["x-weir-client"].len(), 32);
    }
    assert!(
        seen[..4].iter().all(|request| request.body == seen[0].body),
        "a repetition has the same body"
    );
    let manifest = manifest(&load, &report);
    assert_eq!(manifest.totals.packets, 2);
    assert_eq!(
        manifest.totals.bytes,
        (seen[0].body.len() + seen[4].body.len()) as u64
    );
    assert_eq!(manifest.totals.messages, report.messages);
    assert!(report.messages >= 2000);
}

/// The series of requests: sum or last value, and the bins of a sketch.
type Said = BTreeMap<(String, Vec<String>, char), (f64, BTreeMap<i32, u64>)>;

fn said(requests: &[Seen], client: &str, start: i64) -> Said {
    let mut said = Said::new();
    for request in requests
        .iter()
        .filter(|request| request.fields["x-weir-client"] == client)
    {
        let payload = Payload::read(&request.body).unwrap();
        for series in payload.series() {
            let [point] = series.points() else {
                panic!("one point")
            };
            let kind = match series.metric() {
                MetricType::Count => 'c',
                MetricType::Gauge => 'g',
                _ => 'd',
            };
            assert_eq!(series.interval(), 1);
            assert_eq!(request.path == "/sketches", kind == 'd');
            let (timestamp, value, bins) = match kind {
                'd' => {
                    let (sketch, bins) = series.sketch(point);
                    (sketch.timestamp, sketch.sum, bins.iter().copied().collect())
                }
                _ => (point.timestamp, point.value, BTreeMap::new()),
            };
            if timestamp == start {
                let mut tags: Vec<String> = series.tags().into_iter().map(str::to_owned).collect();
                tags.sort_unstable();
                let key = (series.name().to_owned(), tags, kind);
                assert!(said.insert(key, (value, bins)).is_none(), "each series once");
            }
        }
    }
    said
}

#[test]
fn requests_say_what_the_manifest_says_about_each_window() {
    let (target, seen) = answering(&[TAKEN]);
    let load = load("rate: 4000 msg/s, window: 1s");
    let options = Options {
        duration: Some(Duration::from_millis(1500)),
        ..Options::new(target)
    };
    let (report, error) = run::run(&load, &options).unwrap();
    assert!(error.is_none(), "{error:?}");
    let seen: Vec<Seen> = seen.try_iter().collect();
    let manifest = manifest(&load, &report);
    let windows = manifest.windows.as_ref().unwrap();
    assert!(windows.len() >= 2, "the run crosses the end of a second");
    let client = &report.columns.as_ref().unwrap().clients[0];
    let mut messages = 0;
    for (start, rows) in windows {
        let said = said(&seen, &client.id, *start);
        assert_eq!(said.len(), rows.len());
        for row in rows {
            let kind = row.kind.chars().next().unwrap();
            let (value, bins) = &said[&(row.name.clone(), row.tags.clone(), kind)];
            let wanted = if kind == 'g' {
                row.last[0]
            } else {
                row.weighted_sum
            };
            assert_eq!(*value, wanted.to_f64(), "{row:?}");
            assert_eq!(bins, row.bins.as_ref().unwrap_or(&BTreeMap::new()), "{row:?}");
            messages += row.messages;
        }
    }
    assert_eq!(messages, report.messages);
    let of_all = |rows: &[ContextTruth]| rows.iter().map(|row| row.weight).sum::<u64>();
    assert_eq!(
        windows.values().map(|rows| of_all(rows)).sum::<u64>(),
        of_all(manifest.contexts.as_ref().unwrap())
    );
    // Numbers without a gap, over the windows.
    let numbers: Vec<u64> = seen
        .iter()
        .map(|request| request.number("x-weir-sequence"))
        .collect();
    assert_eq!(numbers, (1..=seen.len() as u64).collect::<Vec<_>>());
}

#[test]
fn a_window_that_is_not_acknowledged_ends_the_run_and_is_not_in_the_truth() {
    let (target, _seen) = answering(&[TAKEN, TAKEN, TAKEN, INVALID]);
    let load = load("rate: 4000 msg/s, window: 1s");
    let options = Options {
        duration: Some(Duration::from_secs(20)),
        ..Options::new(target)
    };
    let (report, error) = run::run(&load, &options).unwrap();
    assert!(
        matches!(&error, Some(RunError::Target(text)) if text.contains("400 not columns")),
        "{error:?}"
    );
    let windows = &report.columns.as_ref().unwrap().clients[0].windows;
    let (last, before) = windows.split_last().unwrap();
    assert!(!last.acknowledged && last.messages > 0, "{windows:?}");
    assert!(before.iter().all(|window| window.acknowledged), "{windows:?}");
    let acknowledged: u64 = before.iter().map(|window| window.messages).sum();
    let manifest = manifest(&load, &report);
    assert!(acknowledged > 0, "{windows:?}");
    assert_eq!(manifest.totals.messages, acknowledged);
    assert_eq!(report.messages, acknowledged);
    let rows: u64 = manifest.contexts.iter().flatten().map(|row| row.messages).sum();
    assert_eq!(rows, acknowledged);
}

/// A process that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Killed {
    fn terminate(&self) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").arg(id).status().unwrap().success());
    }
}

/// An agent with the Datadog output, and the sink that it sends to.
struct Chain {
    directory: TempDir,
    sink: Killed,
    sink_output: BufReader<std::process::ChildStdout>,
    agent: Killed,
    /// Where the agent takes columns.
    http: Option<String>,
}

/// The agent of the same build. `cargo build --workspace` makes it, and so does any run of its tests.
fn weir() -> PathBuf {
    let weir = Path::new(BENCH).with_file_name("weir");
    assert!(
        weir.is_file(),
        "{} is missing: build the workspace",
        weir.display()
    );
    weir
}

impl Chain {
    /// `DIR` in the configuration stands for the directory.
    fn start(config: &str, sink_flags: &[&str], manifests: &[&str]) -> Chain {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let mut sink = Command::new(BENCH);
        sink.args([
            "sink",
            "--listen",
            "datadog=127.0.0.1:0",
            "--ignore-prefix",
            "datadog.",
        ])
        .args(sink_flags);
        for manifest in manifests {
            sink.args(["--oracle", &path(manifest)]);
        }
        let mut sink = Killed(sink.stdout(Stdio::piped()).spawn().unwrap());
        let mut sink_output = BufReader::new(sink.0.stdout.take().unwrap());
        let intake = json_line(&mut sink_output)["address"]
            .as_str()
            .unwrap()
            .to_owned();
        assert_eq!(json_line(&mut sink_output)["ready"], true);
        let config = config.replace("DIR", directory.path().to_str().unwrap());
        std::fs::write(
            path("weir.yaml"),
            format!("bucket_width: 1s\ngrace_period: 60s\nadmin: 127.0.0.1:0\n{config}"),
        )
        .unwrap();
        let agent = Command::new(weir())
            .env_clear()
            .envs([("DD_API_KEY", "0".repeat(32)), ("DD_DD_URL", intake)])
            .args(["run", "--config", &path("weir.yaml")])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut agent = Killed(agent.unwrap());
        let mut log = BufReader::new(agent.0.stderr.take().unwrap()).lines();
        let mut http = None;
        loop {
            let line = log.next().expect("the agent starts").unwrap();
            if let Some((_, address)) = line.split_once("listening on http://") {
                http = Some(address.split(' ').next().unwrap().to_owned());
            }
            if line.contains("admin on http://") {
                break;
            }
        }
        // Its log goes on, and must not fill the pipe.
        std::thread::spawn(move || log.for_each(drop));
        Chain {
            directory,
            sink,
            sink_output,
            agent,
            http,
        }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    /// The command of a load for a few windows.
    fn load(&self, more: &str, to: &str, manifest: &str) -> Command {
        let profile = self.path(&format!("{manifest}.yaml"));
        std::fs::write(
            &profile,
            format!("{{{SHAPE}, rate: 4000 msg/s, window: 1s, {more}}}"),
        )
        .unwrap();
        let mut command = Command::new(BENCH);
        command
            .args([
                "load",
                "run",
                &profile,
                "--to",
                to,
                "--duration",
                "2500ms",
                "--contexts",
                "--bins",
            ])
            .args(["--manifest", &self.path(manifest)])
            .stdout(Stdio::piped());
        command
    }

    /// The verdict of the sink, once the agent has delivered all.
    fn verdict(mut self) -> Value {
        self.agent.terminate();
        assert!(self.agent.0.wait().unwrap().success());
        self.sink.terminate();
        let result = json_line(&mut self.sink_output)["result"].clone();
        self.sink.0.wait().unwrap();
        assert_eq!(result["refused"], 0, "{result}");
        result["oracle"]["datadog"].clone()
    }
}

fn json_line(out: &mut impl BufRead) -> Value {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

/// The line that a load prints.
fn report(mut command: Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Between a load and an agent: passes requests on, and keeps back every third answer.
fn forgetful(agent: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut answered = 0;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let Some((bytes, _)) = read_request(&mut stream) else {
                continue;
            };
            let mut onward = TcpStream::connect(&agent).unwrap();
            onward.write_all(&bytes).unwrap();
            let mut answer = Vec::new();
            onward.read_to_end(&mut answer).unwrap();
            answered += 1;
            if answered % 3 != 0 {
                let _ = stream.write_all(&answer);
            }
        }
    });
    address
}

#[test]
fn an_agent_that_is_asked_again_delivers_the_truth() {
    let chain = Chain::start("udp: []\nhttp: [127.0.0.1:0]\n", &[], &["manifest"]);
    let to = forgetful(chain.http.clone().unwrap());
    let report = report(chain.load("connections: 3", &to, "manifest"));
    let columns = &report["columns"];
    assert!(columns["requests"].as_u64() >= Some(3 * 2 * 3), "{columns}");
    assert!(columns["duplicates"].as_u64() > Some(0), "{columns}");
    assert!(
        columns["duplicates"].as_u64() <= columns["unanswered"].as_u64(),
        "{columns}"
    );
    let verdict = chain.verdict();
    assert_eq!(
        (&verdict["equal"], &verdict["contexts"]),
        (&true.into(), &40.into()),
        "{verdict}"
    );
}

#[test]
fn columns_and_datagrams_of_the_same_series_are_the_sum_of_both_truths() {
    let config = "udp: []\nuds: [DIR/socket]\nhttp: [127.0.0.1:0]\n";
    let chain = Chain::start(config, &[], &["columns", "datagrams"]);
    let http = format!("http://{}", chain.http.as_ref().unwrap());
    let socket = format!("unixgram://{}", chain.path("socket"));
    let columns = chain.load("connections: 2", &http, "columns").spawn().unwrap();
    report(chain.load("connections: 2", &socket, "datagrams"));
    let columns = columns.wait_with_output().unwrap();
    assert!(columns.status.success(), "{columns:?}");
    let verdict = chain.verdict();
    assert_eq!(verdict["equal"], true, "{verdict}");
}

#[test]
fn windows_that_keep_their_time_are_the_truth_one_by_one() {
    let config = "udp: []\nhttp_uds: [DIR/http]\nper_listener: [{listener: http_uds, merge: false}]\n";
    let chain = Chain::start(config, &["--oracle-windows"], &["manifest"]);
    until("the socket takes connections", || {
        UnixStream::connect(chain.path("http")).is_ok()
    });
    let to = format!("http+unix://{}", chain.path("http"));
    let mut load = chain.load("connections: 2", &to, "manifest");
    load.arg("--windows");
    report(load);
    let verdict = chain.verdict();
    assert_eq!(verdict["equal"], true, "{verdict}");
    assert!(verdict["windows"].as_u64() >= Some(3), "{verdict}");
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
