//! The configurations of `docs/outputs/datadog.md`, run by the real agent against a double of the intake.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::support::Starter;

const PAGE: &str = include_str!("../../../docs/outputs/datadog.md");

/// Method, path and headers (names in lower case) of one request.
type Request = (String, String, BTreeMap<String, String>);

/// Takes everything.
struct Intake {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Intake {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let intake = Intake {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
        };
        let requests = intake.requests.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let requests = requests.clone();
                std::thread::spawn(move || serve(socket, &requests));
            }
        });
        intake
    }

    /// Posted bodies, by key and path.
    fn posted(&self) -> BTreeMap<(String, String), BTreeMap<String, String>> {
        let requests = self.requests.lock().unwrap();
        let posts = requests.iter().filter(|(method, _, _)| method == "POST");
        posts
            .map(|(_, path, headers)| ((headers["dd-api-key"].clone(), path.clone()), headers.clone()))
            .collect()
    }
}

fn serve(socket: TcpStream, requests: &Mutex<Vec<Request>>) {
    let mut reader = BufReader::new(socket);
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.trim().is_empty() {
                break;
            }
            lines.push(line.trim().to_owned());
        }
        let mut first = lines[0].split(' ').map(str::to_owned);
        let (method, path) = (first.next().unwrap(), first.next().unwrap());
        let header = |line: &String| {
            line.split_once(':')
                .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        };
        let headers: BTreeMap<String, String> = lines.iter().skip(1).filter_map(header).collect();
        let length: usize = headers
            .get("content-length")
            .map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        requests.lock().unwrap().push((method, path, headers));
        if reader
            .get_mut()
            .write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}")
            .is_err()
        {
            return;
        }
    }
}

/// Runs the agent until it serves, sends it one message of each kind, ends it, and returns what it wrote on standard error.
fn run(config: Option<&str>, environment: &[(&str, &str)]) -> String {
    run_with(
        b"page.views:1|c\npage.bytes:10|d\n_sc|page|0\n_e{1,1}:a|b\n",
        config,
        environment,
    )
}

/// The same without a message.
fn idle(config: Option<&str>, environment: &[(&str, &str)]) {
    run_with(b"", config, environment);
}

fn run_with(messages: &[u8], config: Option<&str>, environment: &[(&str, &str)]) -> String {
    let starter = Starter::new().environment(environment).configured(&["hostname"]);
    let directory = tempfile::tempdir().unwrap();
    let starter = match config {
        Some(text) => starter.config(&text.replace("/var/lib/weir", &directory.path().display().to_string())),
        None => starter,
    };
    let agent = starter.start();
    if !messages.is_empty() {
        agent.send(messages);
    }
    // The agent reads what the kernel holds before it ends, so there is nothing to wait for.
    agent.stop().1
}

fn configurations() -> Vec<&'static str> {
    let blocks = PAGE.split("```yaml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap()).collect()
}

const FIRST: &str = "0123456789abcdef0123456789abcdef";

fn paths(posted: &BTreeMap<(String, String), BTreeMap<String, String>>, key: &str) -> Vec<String> {
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

#[test]
fn the_minimal_configuration() {
    let intake = Intake::start();
    let log = run(
        Some(configurations()[0]),
        &[("DD_URL", &format!("http://{}", intake.address))],
    );
    let posted = intake.posted();
    assert_eq!(paths(&posted, FIRST), ALL, "{log}");
    assert!(
        posted
            .values()
            .all(|headers| headers["content-encoding"] == "zstd")
    );
    assert!(!log.contains(FIRST), "{log}");
}

#[test]
fn the_full_configuration() {
    let (site, other) = (Intake::start(), Intake::start());
    let text = configurations()[1];
    let moved = text.replace("https://app.datadoghq.com", &format!("http://{}", other.address));
    assert_ne!(moved, text);
    let log = run(Some(&moved), &[("DD_URL", &format!("http://{}", site.address))]);
    assert_eq!(paths(&site.posted(), FIRST), ALL, "{log}");
    for key in [
        "fedcba9876543210fedcba9876543210",
        "00112233445566778899aabbccddeeff",
    ] {
        assert_eq!(paths(&other.posted(), key), ALL, "{log}");
        assert!(!log.contains(key), "{log}");
    }
    let posted = other.posted();
    assert!(
        posted
            .values()
            .all(|headers| headers["content-encoding"] == "gzip")
    );
    let series = posted
        .iter()
        .find(|((_, path), _)| path == "/api/v2/series")
        .unwrap()
        .1;
    assert_eq!(series["content-type"], "application/x-protobuf");
    // "All settings" has all of them.
    let datadog = weir_output::settings::OUTPUT_TYPES
        .iter()
        .find(|kind| kind.name == "datadog")
        .unwrap();
    for setting in datadog
        .settings
        .iter()
        .chain(weir_output::settings::DeliverySettings::SETTINGS)
    {
        assert!(
            text.contains(&format!(" {}:", setting.key)),
            "{} is missing on the page",
            setting.key
        );
    }
}

#[test]
fn the_variables_alone_through_a_proxy() {
    let proxy = Intake::start();
    let through = format!("http://{}", proxy.address);
    let log = run(
        None,
        &[
            ("DD_API_KEY", FIRST),
            ("DD_URL", "http://intake.invalid"),
            ("HTTP_PROXY", &through),
        ],
    );
    let expected = ALL.map(|path| format!("http://intake.invalid{path}"));
    assert_eq!(paths(&proxy.posted(), FIRST), expected, "{log}");
}

/// Behind a proxy nothing arrived: these variables were passed over in silence.
#[test]
fn the_datadog_agents_variables_for_a_proxy() {
    let (proxy, direct) = (Intake::start(), Intake::start());
    let through = format!("http://{}", proxy.address);
    let run_to = |url: &str, except: &str| {
        run(
            None,
            &[
                ("DD_API_KEY", FIRST),
                ("DD_URL", url),
                ("DD_PROXY_HTTPS", &through),
                ("DD_PROXY_HTTP", &through),
                ("DD_PROXY_NO_PROXY", except),
            ],
        )
    };
    let log = run_to("http://intake.invalid", "127.0.0.1 other.example");
    let expected = ALL.map(|path| format!("http://intake.invalid{path}"));
    assert_eq!(paths(&proxy.posted(), FIRST), expected, "{log}");
    let log = run_to(&format!("http://{}", direct.address), "127.0.0.1 other.example");
    assert_eq!(paths(&direct.posted(), FIRST), ALL, "{log}");
    assert_eq!(proxy.posted().len(), expected.len(), "{log}");
}

/// The input of monitors and of the list of hosts, from an agent without other data.
#[test]
fn an_idle_agent_reports_that_it_runs() {
    let intake = Intake::start();
    let url = format!("http://{}", intake.address);
    let silent = [
        ("DD_API_KEY", FIRST),
        ("DD_URL", &url),
        ("DD_ENABLE_METADATA_COLLECTION", "false"),
    ];
    let config = "outputs:\n  datadog: {heartbeat: false}\n";
    for (config, environment, expected) in [
        (
            None,
            &silent[..2],
            &["/api/v1/check_run", "/api/v2/series", "/intake/"][..],
        ),
        (Some(config), &silent[..], &[]),
    ] {
        intake.requests.lock().unwrap().clear();
        idle(config, environment);
        assert_eq!(paths(&intake.posted(), FIRST), expected);
    }
}
