//! Beside a real standalone DogStatsD, where there is one: both get the same messages of every kind, each delivers to a double of the
//! intake, and everything is compared field by field. What differs is named in docs/migrate/dogstatsd.md.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::receivers::{Killed, free_address};
use crate::support::{Starter, said};

const PAGE: &str = include_str!("../../../docs/migrate/dogstatsd.md");
const KEY: &str = "0123456789abcdef0123456789abcdef";
/// Seconds in a bucket of both.
const BUCKET: u64 = 10;
/// Timestamps of senders are before it, and those of today's buckets behind it.
const LONG_AGO: i64 = 1_710_000_000;
/// DogStatsD flushes every 15 seconds, and what is under way follows.
const LONG_ENOUGH: Duration = Duration::from_secs(120);

/// Delivered things by kind, name and tags, each with all its fields.
type Delivered = BTreeMap<String, Vec<String>>;

/// Path and body.
type Post = (String, Vec<u8>);
/// Messages of one kind: their number, the number of names, the name, its values, its type, and its rates.
type Sent<'a> = (usize, usize, &'a str, &'a [&'a str], &'a str, &'a [&'a str]);

/// Takes everything.
#[derive(Clone)]
struct Intake {
    address: SocketAddr,
    /// Paths and bodies of posts.
    posts: Arc<Mutex<Vec<Post>>>,
}

impl Intake {
    fn start() -> Intake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let intake = Intake {
            address: listener.local_addr().unwrap(),
            posts: Arc::default(),
        };
        let serving = intake.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        intake
    }

    /// Until the client ends the connection.
    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let mut lines = Vec::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
                if line.trim().is_empty() {
                    break;
                }
                lines.push(line.trim().to_owned());
            }
            let header = |name: &str| {
                let mut pairs = lines.iter().filter_map(|line| line.split_once(':'));
                let found = pairs.find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map_or(String::new(), |(_, value)| value.trim().to_owned())
            };
            let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
            reader.read_exact(&mut body).ok()?;
            if let Some(rest) = lines[0].strip_prefix("POST ") {
                let path = rest.split(['?', ' ']).next().unwrap().to_owned();
                let body = plain(&header("content-encoding"), body);
                self.posts.lock().unwrap().push((path, body));
            }
            let answer = "HTTP/1.1 202 Accepted\r\ncontent-length: 14\r\n\r\n{\"valid\":true}";
            reader.get_mut().write_all(answer.as_bytes()).ok()?;
        }
    }

    /// Everything of one bucket, and with timestamps of senders.
    fn delivered(&self, decoder: &Path, bucket: i64) -> Delivered {
        let mut found = Delivered::new();
        let posts = self.posts.lock().unwrap().clone();
        let mut payloads = Vec::new();
        for (path, body) in posts {
            if path.ends_with("/v2/series") {
                payloads.push(("series", body));
            } else if path.ends_with("sketches") {
                payloads.push(("sketches", body));
            } else if path.contains("intake") || path.ends_with("events") {
                events(&serde_json::from_slice(&body).unwrap(), &mut found);
            } else if path.ends_with("check_run") {
                checks(&serde_json::from_slice(&body).unwrap(), &mut found);
            }
        }
        for payload in decoded(decoder, &payloads) {
            series(&payload, bucket, &mut found);
        }
        found.values_mut().for_each(|rows| rows.sort());
        found
    }
}

fn plain(encoding: &str, body: Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    match encoding {
        "" | "identity" => return body,
        "deflate" => flate2::read::ZlibDecoder::new(&body[..]).read_to_end(&mut out),
        "gzip" => flate2::read::MultiGzDecoder::new(&body[..]).read_to_end(&mut out),
        "zstd" => zstd::Decoder::new(&body[..]).unwrap().read_to_end(&mut out),
        other => panic!("content encoding {other}"),
    }
    .unwrap();
    out
}

/// The decoder of weir-output's tests, which has the definitions of the intake's owner.
fn decoder() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weir-output/tests/decoders/datadog");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("decode-beside-dogstatsd");
    let mut build = Command::new("go");
    build
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source);
    assert!(
        build.status().expect("the Go toolchain is needed").success(),
        "it does not build"
    );
    program
}

fn decoded(decoder: &Path, payloads: &[(&str, Vec<u8>)]) -> Vec<Value> {
    let hex = |body: &[u8]| body.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lines: String = payloads
        .iter()
        .map(|(kind, body)| format!("{kind} {}\n", hex(body)))
        .collect();
    let mut child = Command::new(decoder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "the decoder refuses a payload");
    let lines = output.stdout.split(|byte| *byte == b'\n');
    lines
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

/// As exact as sums in another order are.
fn rounded(value: &Value) -> Value {
    match value {
        // A whole one is written in another way than one that rounds to it.
        Value::Number(number) => json!((number.as_f64().unwrap() * 1e9).round() / 1e9),
        Value::Array(items) => items.iter().map(rounded).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (key.clone(), rounded(value)))
            .collect(),
        other => other.clone(),
    }
}

/// Each point is a row of its own, with the fields of its series.
fn series(payload: &Value, bucket: i64, found: &mut Delivered) {
    for (list, points, time) in [
        ("series", "points", "timestamp"),
        ("sketches", "dogsketches", "ts"),
    ] {
        for series in payload[list].as_array().into_iter().flatten() {
            let mut series = series.clone();
            let name = series["metric"].as_str().unwrap().to_owned();
            // The agents' own, and the markers of the test.
            if name.starts_with("datadog.") || name.starts_with("n_o_i_n_d_e_x") || name.contains("marker") {
                continue;
            }
            let mut tags: Vec<String> = texts(&series["tags"]);
            tags.sort();
            let key = format!("{list} {name} {}", tags.join(","));
            series["tags"] = json!(tags);
            let points = series[points].take();
            for point in points.as_array().into_iter().flatten() {
                let at = point[time].as_i64().unwrap_or(0);
                if at == bucket || at < LONG_AGO {
                    let row = json!([rounded(&series), rounded(point)]);
                    found.entry(key.clone()).or_default().push(row.to_string());
                }
            }
        }
    }
}

fn texts(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten();
    texts.map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Without the time of arrival.
fn timeless(fields: &Value) -> Value {
    let mut fields = fields.clone();
    if fields["timestamp"].as_i64() >= Some(LONG_AGO) {
        fields["timestamp"] = json!("arrival");
    }
    if fields["tags"].is_array() {
        let mut tags = texts(&fields["tags"]);
        tags.sort();
        fields["tags"] = json!(tags);
    }
    fields
}

fn events(body: &Value, found: &mut Delivered) {
    for (group, events) in body["events"].as_object().into_iter().flatten() {
        for event in events.as_array().unwrap() {
            let kind = event["event_type"].as_str().unwrap_or_default();
            let key = format!("event {group} {kind} {}", event["msg_title"]);
            found.entry(key).or_default().push(timeless(event).to_string());
        }
    }
}

fn checks(body: &Value, found: &mut Delivered) {
    for check in body.as_array().unwrap() {
        let name = check["check"].as_str().unwrap();
        if !name.starts_with("datadog.") {
            let key = format!("check {name}");
            found.entry(key).or_default().push(timeless(check).to_string());
        }
    }
}

/// Numbers that are the same in every run.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn one_of<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.below(of.len())]
    }

    /// `|#` with up to four tags, or nothing.
    fn tags(&mut self, all: &[&str]) -> String {
        let mut chosen: Vec<&str> = Vec::new();
        for _ in 0..self.below(5) {
            let tag = self.one_of(all);
            if !chosen.contains(&tag) {
                chosen.push(tag);
            }
        }
        match chosen.is_empty() {
            true => String::new(),
            false => format!("|#{}", chosen.join(",")),
        }
    }
}

const TAGS: &[&str] = &[
    "env:prod",
    "env:test",
    "role:web",
    "role:db",
    "zone:a",
    "bare",
    "url:/a/b?c=d",
    "k:v:w",
    "MixedCase:Val",
    "ünï:cödé",
    "host:web1",
    "empty:",
];

/// Tags with a meaning.
const MEANT: &[&str] = &[
    "device:sda",
    "dd.internal.card:low",
    "dd.internal.jmx_check_name:x",
    "dd.internal.entity_id:none",
];

const INVALID: &[&str] = &[
    "bad",
    "x:|c",
    "y:abc|g",
    "z:1|q",
    "w:1|c|@x",
    "_e{5,5}:a|b",
    "_sc|x",
    "n:1",
    "m:1|c|#",
    "u.n:1|c|c:abc",
    "v.n:1|g|c:ci-x|#a:b",
    "p.n:nan|g",
    "q.n:inf|g",
];

/// Settings that change names, tags and series.
const RULES: &str = "statsd_metric_namespace: shop
histogram_aggregates: [max, min, sum, count, avg, median]
histogram_percentiles: ['0.5', '0.95', '0.99']
histogram_copy_to_distribution: true
histogram_copy_to_distribution_prefix: 'dist.'
statsd_metric_blocklist: [shop.blocked.x, shop.blocked.h.count]
dogstatsd_mapper_profiles:
- name: air
  prefix: 'air.'
  mappings:
  - match: 'air.pool.*.open'
    name: 'air.pool.open'
    tags: {pool: '$1'}
";

/// For the rules alone.
const RULED: &[&str] = &[
    "air.pool.p0.open:1|c",
    "air.pool.p0.open:3|g",
    "air.pool.p1.open:4|g",
    "air.pool.p2.open:5|c",
    "air.other:5|c",
    "blocked.x:1|c",
    "blocked.h:1|h",
    "jvm.heap:1|g",
];

/// A thousand messages of every kind.
fn messages(rules: &str) -> Vec<String> {
    let mut draws = Draws(7);
    let known: Vec<&str> = match rules {
        "" => TAGS.to_vec(),
        _ => [TAGS, MEANT].concat(),
    };
    let rates = ["", "", "|@0.5", "|@0.25", "|@1"];
    let mut all = Vec::new();
    let kinds: [Sent; 6] = [
        (170, 17, "c", &["1", "2", "5", "-3", "0.5", "1000"], "c", &rates),
        (
            170,
            17,
            "g",
            &["1", "2.25", "-7", "1e9", "0", "+4", "-4"],
            "g",
            &[""],
        ),
        (
            150,
            9,
            "s",
            &["ada", "bob", "eve", "a-long-member-of-a-set", "1", "ü"],
            "s",
            &[""],
        ),
        (150, 11, "h", &["1", "2", "3.5", "10", "100", "-5"], "h", &rates),
        (150, 11, "t", &["1", "2", "3.5", "10", "100", "250"], "ms", &rates),
        (
            120,
            11,
            "d",
            &["1", "2", "3.5", "10", "100", "0", "-2"],
            "d",
            &rates,
        ),
    ];
    for (number, names, name, values, kind, rates) in kinds {
        for at in 0..number {
            let (value, rate, tags) = (draws.one_of(values), draws.one_of(rates), draws.tags(&known));
            all.push(format!("{name}.n{}:{value}|{kind}{rate}{tags}", at % names));
        }
    }
    for at in 0..20 {
        let (kind, tags) = (draws.one_of(&["c", "h", "d", "ms"]), draws.tags(&known));
        all.push(format!("mv.n{}:1:2:{at}|{kind}{tags}", at % 5));
    }
    for at in 0..10 {
        let (kind, tags) = (draws.one_of(&["c", "g"]), draws.tags(&known));
        all.push(format!(
            "ts.n{}:{at}|{kind}|T{}{tags}",
            at % 5,
            1_700_000_000 + at
        ));
    }
    for at in 0..20 {
        let (title, text) = (format!("title {at}"), format!("text {at}\\nline é"));
        let more = [
            "",
            "|t:warning",
            "|t:error|p:low",
            "|h:web2|k:agg|s:src|d:1700000000",
        ];
        let (more, tags) = (draws.one_of(&more), draws.tags(&known));
        let (of_title, of_text) = (title.len(), text.len());
        all.push(format!("_e{{{of_title},{of_text}}}:{title}|{text}{more}{tags}"));
    }
    for at in 0..20 {
        let more = draws.one_of(&["", "|h:web3|d:1700000001"]);
        let (tags, text) = (draws.tags(&known), draws.one_of(&["", "|m:all fine\\nhere"]));
        all.push(format!("_sc|check.{}|{}{more}{tags}{text}", at % 6, at % 4));
    }
    all.extend((0..20).map(|_| draws.one_of(INVALID).to_owned()));
    if !rules.is_empty() {
        all.extend(RULED.iter().map(|line| (*line).to_owned()));
    }
    all
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn bucket() -> u64 {
    now().as_secs() / BUCKET * BUCKET
}

/// `DOGSTATSD_BIN`, or one in `PATH`. It has no module of its own from which a test could build it.
fn dogstatsd() -> Option<PathBuf> {
    let named = std::env::var_os("DOGSTATSD_BIN").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join("dogstatsd"));
    let found = named.or_else(|| found.into_iter().find(|program| program.is_file()));
    if found.is_none() {
        eprintln!("skipped: there is no dogstatsd in PATH, and DOGSTATSD_BIN names none");
    }
    found
}

/// Until a condition holds, at most [`LONG_ENOUGH`].
fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LONG_ENOUGH, "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The deliveries of both for the same messages in one bucket. `None` if the messages took longer than the bucket.
fn side_by_side(
    program: &Path,
    rules: &str,
    decoder: &Path,
    enough: impl Fn(&[Delivered; 2]) -> bool,
) -> Option<[Delivered; 2]> {
    let directory = tempfile::tempdir().unwrap();
    let intakes = [Intake::start(), Intake::start()];
    let addresses = [free_address(), free_address()];
    let config = |at: usize| {
        let (host, port) = addresses[at].rsplit_once(':').unwrap();
        format!(
            "api_key: {KEY}\ndd_url: http://{}\nhostname: box\nbind_host: {host}\ndogstatsd_port: {port}\ndogstatsd_tags: [team:x]\nenable_metadata_collection: false\n{rules}",
            intakes[at].address
        )
    };
    let (command_port, log) = (free_address(), directory.path().join("log"));
    let theirs = format!(
        "{}log_level: warn\nserializer_compressor_kind: zlib\ncmd_port: {}\ndogstatsd_stats_enable: false\nuse_dogstatsd: true\nlog_file: {}\n",
        config(0),
        command_port.rsplit(':').next().unwrap(),
        log.display()
    );
    std::fs::write(directory.path().join("dogstatsd.yaml"), theirs).unwrap();
    let child = Command::new(program)
        .args(["start", "-c"])
        .arg(directory.path())
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _theirs = Killed(child.unwrap());
    let file = directory.path().join("ours.yaml");
    std::fs::write(&file, config(1)).unwrap();
    let converted = said(&["convert", "datadog", file.to_str().unwrap()]);
    let agent = Starter::from(converted.as_str())
        .configured(&["udp", "hostname"])
        .environment(&[("DD_API_KEY", KEY)])
        .start();
    assert_eq!(agent.address(), addresses[1]);

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // DogStatsD may not listen yet.
    let send = |message: &str| {
        addresses
            .iter()
            .for_each(|to| drop(socket.send_to(message.as_bytes(), to)))
    };
    let has = |intake: &Intake, text: &str| {
        let posts = intake.posts.lock().unwrap();
        posts
            .iter()
            .any(|(_, body)| body.windows(text.len()).any(|part| part == text.as_bytes()))
    };
    wait("both have delivered", || {
        send("marker.first:1|c");
        intakes.iter().all(|intake| has(intake, "marker.first"))
    });
    let next = Duration::from_secs(bucket() + BUCKET) + Duration::from_millis(300);
    std::thread::sleep(next.saturating_sub(now()));
    let start = bucket();
    for message in messages(rules) {
        send(&message);
        // So that neither loses one.
        std::thread::sleep(Duration::from_millis(2));
    }
    let end = now();
    if bucket() != start || end.as_secs() % BUCKET > BUCKET - 3 {
        eprintln!("the messages took longer than a bucket");
        return None;
    }
    let mut both = [Delivered::new(), Delivered::new()];
    let begin = Instant::now();
    while !enough(&both) && begin.elapsed() < LONG_ENOUGH {
        std::thread::sleep(Duration::from_secs(1));
        both = [0, 1].map(|at| intakes[at].delivered(decoder, start as i64));
    }
    agent.stop();
    Some(both)
}

fn differences([theirs, ours]: &[Delivered; 2]) -> Vec<String> {
    let keys: std::collections::BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let differing = keys.into_iter().filter(|key| theirs.get(*key) != ours.get(*key));
    differing
        .map(|key| format!("{key}: there {:?}, in weir {:?}", theirs.get(key), ours.get(key)))
        .collect()
}

fn count(delivered: &Delivered, kind: &str) -> usize {
    let of_kind = delivered.iter().filter(|(key, _)| key.starts_with(kind));
    of_kind.map(|(_, rows)| rows.len()).sum()
}

/// Compares what both deliver; what differs is named as a part of the difference, with what the page says of it, and all of that differs.
fn compare(rules: &str, named: &[(&str, &str)], least: [(&str, usize); 4]) {
    let Some(program) = dogstatsd() else { return };
    named
        .iter()
        .for_each(|(_, said)| assert!(PAGE.contains(said), "the page does not say {said}"));
    let is_named = |line: &String| named.iter().any(|(part, _)| line.contains(part));
    let decoder = decoder();
    let is_whole = |both: &[Delivered; 2]| {
        let found = differences(both);
        let all_named = named
            .iter()
            .all(|(part, _)| found.iter().any(|line| line.contains(part)));
        least.iter().all(|(kind, least)| count(&both[0], kind) >= *least)
            && all_named
            && found.iter().all(is_named)
    };
    let both = (0..3).find_map(|_| side_by_side(&program, rules, &decoder, is_whole));
    let both = both.expect("the messages fit into a bucket");
    let found = differences(&both);
    for (kind, _) in least {
        let of_kind = found.iter().filter(|line| line.starts_with(kind)).count();
        let [theirs, ours] = [0, 1].map(|at| count(&both[at], kind));
        eprintln!("{kind}: DogStatsD {theirs}, weir {ours}, different names {of_kind}");
    }
    let unnamed: Vec<&String> = found.iter().filter(|line| !is_named(line)).take(20).collect();
    assert!(is_whole(&both), "{} differ: {unnamed:#?}", found.len());
}

/// In the gate: migrate_pages::the_commands_of_each_page_produce_a_configuration_that_weir_accepts, agent_keys::, and the tests of outputs.datadog.
#[test]
#[ignore = "nightly: needs a dogstatsd"]
fn dogstatsd_and_weir_deliver_the_same_without_and_with_rules() {
    let named = [
        ("Agent Startup", "`Agent Startup`"),
        ("shop.air.pool.open", "as a counter and as a gauge"),
        ("shop.blocked.h.count", "but not those of its series"),
    ];
    compare(
        "",
        &named[..1],
        [("series", 1500), ("sketches", 90), ("event", 20), ("check", 20)],
    );
    compare(
        RULES,
        &named,
        [("series", 2200), ("sketches", 250), ("event", 20), ("check", 20)],
    );
}
