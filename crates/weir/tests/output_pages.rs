//! The configurations on the pages of outputs, and variables of the Datadog Agent, run by the real agent beside doubles of receivers.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;

use crate::delivery::receiver::{Receiver, Taken};
use crate::remote_write::promtool_takes;
use crate::support::{PATIENCE, Starter, configurations, names_every_setting};

fn json_lines(text: &str) -> Vec<serde_json::Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Results of one message of each kind, sorted: metric and type, or `event` or `check`.
fn shapes(text: &str) -> Vec<String> {
    let lines = json_lines(text);
    let shapes = lines.iter().map(|line| match line["metric"].as_str() {
        Some(metric) => format!("{metric} {}", line["type"].as_str().unwrap()),
        None => line.as_object().unwrap().keys().next().unwrap().clone(),
    });
    let mut shapes: Vec<String> = shapes.collect();
    shapes.sort();
    shapes
}

const MESSAGES: &str = "page.views:1|c|#env:prod\nqueue:7|g\nusers:ada|s\nload.time:5|ms\npage.bytes:10|d\n_sc|page|0\n_e{1,1}:a|b\n";

const SHAPES: [&str; 11] = [
    "check",
    "event",
    "load.time.95percentile gauge",
    "load.time.avg gauge",
    "load.time.count rate",
    "load.time.max gauge",
    "load.time.median gauge",
    "page.bytes sketch",
    "page.views rate",
    "queue gauge",
    "users gauge",
];

/// With the settings of the agent on the page of standard output.
const OF_SETTINGS: [&str; 2] = ["load.time.99percentile gauge", "load.time.sum gauge"];

/// That ends with the agent.
const ONE_BUCKET: [&str; 2] = ["--bucket-width", "LONG"];

/// Of outputs whose receiver is a double, or which need none.
const PAGES: [(&str, &str); 6] = [
    ("stdout", include_str!("../../../docs/outputs/stdout.md")),
    ("file", include_str!("../../../docs/outputs/file.md")),
    ("datadog", include_str!("../../../docs/outputs/datadog.md")),
    ("otlp", include_str!("../../../docs/outputs/otlp.md")),
    (
        "remote_write",
        include_str!("../../../docs/outputs/remote_write.md"),
    ),
    ("prometheus", include_str!("../../../docs/outputs/prometheus.md")),
];

const RELAY: &str = include_str!("../../../docs/outputs/relay.md");

/// Every page has a minimal configuration and one with all settings.
struct Pages {
    minimal: Vec<&'static str>,
    full: Vec<&'static str>,
}

impl Pages {
    fn read() -> Pages {
        let (mut minimal, mut full) = (Vec::new(), Vec::new());
        for (output, page) in PAGES {
            let blocks = configurations(page).into_iter();
            let is_foreign = |block: &&str| block.starts_with("# prometheus.yml");
            let (foreign, own): (Vec<&str>, Vec<&str>) = blocks.partition(is_foreign);
            foreign.into_iter().for_each(promtool_takes);
            assert_eq!(own.len(), 2, "{output}");
            if !["stdout", "prometheus"].contains(&output) {
                names_every_setting(own[1], output);
            }
            minimal.push(own[0]);
            full.push(own[1]);
        }
        Pages { minimal, full }
    }
}

/// One configuration of all.
fn together(blocks: &[&str]) -> String {
    let parts = blocks
        .iter()
        .map(|block| block.split_once("outputs:\n").unwrap_or((*block, "")));
    let (settings, outputs): (String, String) = parts.unzip();
    format!("{settings}outputs:\n{outputs}")
}

/// The last request of each key to each path.
type Posted = BTreeMap<(String, String), Taken>;

fn path_of(taken: &Taken) -> &str {
    taken.head.split(' ').nth(1).unwrap()
}

fn posted(intake: &Receiver) -> Posted {
    let requests = intake.taken().into_iter();
    let of = |taken: Taken| {
        let key = taken.header("dd-api-key").unwrap().to_owned();
        ((key, path_of(&taken).to_owned()), taken)
    };
    requests.map(of).collect()
}

fn paths(posted: &Posted, key: &str) -> Vec<String> {
    posted
        .keys()
        .filter(|(other, _)| other == key)
        .map(|(_, path)| path.clone())
        .collect()
}

const ALL: [&str; 4] = [
    "/api/beta/sketches",
    "/api/v1/check_run",
    "/api/v2/series",
    "/intake/",
];

/// From an agent without other data: the input of monitors and of the list of hosts.
const IDLE: [&str; 3] = ["/api/v1/check_run", "/api/v2/series", "/intake/"];

const FIRST: &str = "0123456789abcdef0123456789abcdef";

/// Receivers for one agent, and its directory.
struct Receivers {
    site: Receiver,
    other: Receiver,
    backend: Receiver,
    directory: tempfile::TempDir,
}

impl Receivers {
    /// Runs an agent with these blocks until it has delivered one message of each kind; what it wrote on standard output and in its log.
    fn of(blocks: &[&str]) -> (Receivers, String, String) {
        let receivers = Receivers {
            site: Receiver::start(202),
            other: Receiver::start(202),
            backend: Receiver::start(200),
            directory: tempfile::tempdir().unwrap(),
        };
        let at = receivers.directory.path().display().to_string();
        let backend = receivers.backend.url.as_str();
        let config = together(blocks)
            .replace("/var/log/weir", &at)
            .replace("/var/lib/weir", &at)
            .replace("https://app.datadoghq.com", &receivers.other.url)
            .replace("http://127.0.0.1:4318", backend)
            .replace("https://collector.example:4318", backend)
            .replace("https://prometheus.example", backend)
            // The double of a receiver says nothing of what it has taken.
            .replace("version: '2.0'", "version: '1.0'");
        let agent = Starter::from(&config)
            .arguments(ONE_BUCKET)
            .environment(&[("DD_URL", &receivers.site.url)])
            .start();
        agent.send(MESSAGES);
        // The agent reads what the kernel holds before it ends, so there is nothing to wait for.
        let (stdout, log) = agent.stop();
        (receivers, stdout, log)
    }

    /// Paths and tokens that the backend got.
    fn backend(&self) -> Vec<(String, Option<String>)> {
        let taken = self.backend.taken();
        let of = |taken: &Taken| {
            let token = taken.header("authorization").map(str::to_owned);
            (path_of(taken).to_owned(), token)
        };
        let mut found: Vec<_> = taken.iter().map(of).collect();
        found.sort();
        found.dedup();
        found
    }

    fn file(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("metrics.jsonl")).unwrap()
    }
}

#[test]
fn the_configurations_of_the_pages_deliver_one_message_of_each_kind() {
    let pages = Pages::read();
    let relayed = UdpSocket::bind("127.0.0.1:0").unwrap();
    relayed.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = relayed.local_addr().unwrap().to_string();
    let relay = configurations(RELAY)[0].replace("127.0.0.1:9125", &to);
    let (receivers, stdout, log) = Receivers::of(&[&pages.minimal[..], &[relay.as_str()]].concat());
    assert_eq!(shapes(&stdout), SHAPES);
    assert_eq!(shapes(&receivers.file()), SHAPES);
    assert_eq!(
        lines(&relayed, MESSAGES.lines().count()),
        MESSAGES.lines().collect::<Vec<_>>()
    );
    let site = posted(&receivers.site);
    assert_eq!(paths(&site, FIRST), ALL, "{log}");
    let encoding = |posted: &Posted, encoding: &str| {
        let mut taken = posted.values();
        assert!(taken.all(|taken| taken.header("content-encoding") == Some(encoding)));
    };
    encoding(&site, "zstd");
    let without_token = ["/api/v1/write", "/v1/metrics"].map(|path| (path.to_owned(), None::<String>));
    assert_eq!(receivers.backend(), without_token);
    assert!(!log.contains(FIRST), "{log}");

    let (receivers, stdout, log) = Receivers::of(&pages.full);
    let mut expected = [&SHAPES[..], &OF_SETTINGS].concat();
    expected.sort();
    assert_eq!(shapes(&stdout), expected);
    assert_eq!(shapes(&receivers.file()), expected);
    assert_eq!(paths(&posted(&receivers.site), FIRST), ALL, "{log}");
    let other = posted(&receivers.other);
    for key in [
        "fedcba9876543210fedcba9876543210",
        "00112233445566778899aabbccddeeff",
    ] {
        assert_eq!(paths(&other, key), ALL, "{log}");
        assert!(!log.contains(key), "{log}");
    }
    encoding(&other, "gzip");
    let mut of_series = other.iter().filter(|((_, path), _)| path == "/api/v2/series");
    assert!(of_series.all(|(_, taken)| taken.header("content-type") == Some("application/x-protobuf")));
    let token = Some("bearer 0123456789abcdef".to_owned());
    let with_token = ["/api/v1/write", "/v1/metrics"].map(|path| (path.to_owned(), token.clone()));
    assert_eq!(receivers.backend(), with_token);
}

/// Lines of packets that arrive until `count` have.
fn lines(socket: &UdpSocket, count: usize) -> Vec<String> {
    let mut lines = Vec::new();
    while lines.len() < count {
        let mut buffer = [0; 65536];
        let length = socket.recv(&mut buffer).unwrap();
        let text = String::from_utf8_lossy(&buffer[..length]);
        lines.extend(text.lines().map(str::to_owned));
    }
    lines
}

#[test]
fn relay_alone_to_two_targets() {
    let text = configurations(RELAY)[1];
    names_every_setting(text, "relay");
    let directory = tempfile::tempdir().unwrap();
    let first = UdpSocket::bind("127.0.0.1:0").unwrap();
    let second = UnixDatagram::bind(directory.path().join("dsd.socket")).unwrap();
    let text = text
        .replace("127.0.0.1:9125", &first.local_addr().unwrap().to_string())
        .replace("/run/statsd", &directory.path().display().to_string());
    let agent = Starter::from(&format!("{text}  stdout:\n    enabled: true\n"))
        .arguments(ONE_BUCKET)
        .start();
    let sent: Vec<String> = (0..100).map(|i| format!("page.{i}:1|c|#i:{i}")).collect();
    agent.send(&(sent.join("\n") + "\nother:1|c\nbroken\n"));
    let (stdout, log) = agent.stop();
    assert_eq!(stdout, "", "nothing is aggregated");
    assert!(log.contains("nothing is aggregated"), "{log}");
    first.set_nonblocking(true).unwrap();
    second.set_nonblocking(true).unwrap();
    let drain = |packet: &dyn Fn(&mut [u8]) -> std::io::Result<usize>| {
        let mut lines = Vec::new();
        let mut buffer = [0; 65536];
        while let Ok(length) = packet(&mut buffer) {
            lines.extend(
                String::from_utf8_lossy(&buffer[..length])
                    .lines()
                    .map(str::to_owned),
            );
        }
        lines
    };
    let (first, second) = (
        drain(&|buffer| first.recv(buffer)),
        drain(&|buffer| second.recv(buffer)),
    );
    assert!(
        first.len() > 10 && second.len() > 10,
        "{} and {}",
        first.len(),
        second.len()
    );
    let mut all = [first, second].concat();
    let mut sent = sent;
    all.sort();
    sent.sort();
    assert_eq!(all, sent);
}

/// Behind a proxy nothing arrived: the Datadog Agent's variables were passed over in silence. Its others pass on lines besides.
#[test]
fn variables_name_a_proxy_exceptions_from_it_and_a_target_of_lines() {
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    target.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = target.local_addr().unwrap().port().to_string();
    let second = "fedcba9876543210fedcba9876543210";
    for is_of_the_datadog_agent in [false, true] {
        let (proxy, direct) = (Receiver::start(202), Receiver::start(202));
        let through = proxy.url.as_str();
        let endpoints = format!(r#"{{"{}": ["{second}"]}}"#, direct.url);
        let mut variables = vec![
            ("DD_API_KEY", FIRST),
            ("DD_URL", "http://intake.invalid"),
            ("DD_ADDITIONAL_ENDPOINTS", endpoints.as_str()),
            ("DD_STATSD_FORWARD_HOST", "127.0.0.1"),
            ("DD_STATSD_FORWARD_PORT", port.as_str()),
        ];
        variables.extend(match is_of_the_datadog_agent {
            false => vec![("HTTP_PROXY", through), ("NO_PROXY", "127.0.0.1")],
            true => vec![
                ("DD_PROXY_HTTPS", through),
                ("DD_PROXY_HTTP", through),
                ("DD_PROXY_NO_PROXY", "127.0.0.1 other.example"),
            ],
        });
        let agent = Starter::new().environment(&variables).start();
        let expected = match is_of_the_datadog_agent {
            false => &ALL[..],
            true => &IDLE,
        };
        if !is_of_the_datadog_agent {
            agent.send(MESSAGES);
            let sent: Vec<&str> = MESSAGES.lines().collect();
            assert_eq!(lines(&target, sent.len()), sent);
        }
        let (_, log) = agent.stop();
        let proxied = expected.iter().map(|path| format!("http://intake.invalid{path}"));
        let found = posted(&proxy);
        assert_eq!(paths(&found, FIRST), proxied.collect::<Vec<_>>(), "{log}");
        assert_eq!(found.len(), expected.len(), "{log}");
        assert_eq!(paths(&posted(&direct), second), expected, "{log}");
    }
}
