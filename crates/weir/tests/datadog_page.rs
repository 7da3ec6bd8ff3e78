//! The configurations of `docs/outputs/datadog.md`, run by the real agent against a double of the intake.

use std::collections::BTreeMap;

use crate::delivery::receiver::{Receiver, Taken};
use crate::support::{Starter, configurations, names_every_setting};

const PAGE: &str = include_str!("../../../docs/outputs/datadog.md");

/// The last request of each key to each path.
type Posted = BTreeMap<(String, String), Taken>;

fn posted(intake: &Receiver) -> Posted {
    let requests = intake.taken().into_iter();
    let of = |taken: Taken| {
        let path = taken.head.split(' ').nth(1).unwrap().to_owned();
        ((taken.header("dd-api-key").unwrap().to_owned(), path), taken)
    };
    requests.map(of).collect()
}

/// Runs the agent until it serves, sends it one message of each kind, ends it, and returns what it wrote on standard error.
fn run(config: Option<&str>, environment: &[(&str, &str)]) -> String {
    run_with(
        b"page.views:1|c\npage.bytes:10|d\n_sc|page|0\n_e{1,1}:a|b\n",
        config,
        environment,
    )
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

const FIRST: &str = "0123456789abcdef0123456789abcdef";

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

#[test]
fn the_minimal_configuration() {
    let intake = Receiver::start(202);
    let log = run(Some(configurations(PAGE)[0]), &[("DD_URL", &intake.url)]);
    let posted = posted(&intake);
    assert_eq!(paths(&posted, FIRST), ALL, "{log}");
    assert!(
        posted
            .values()
            .all(|taken| taken.header("content-encoding") == Some("zstd"))
    );
    assert!(!log.contains(FIRST), "{log}");
}

#[test]
fn the_full_configuration() {
    let (site, other) = (Receiver::start(202), Receiver::start(202));
    let text = configurations(PAGE)[1];
    let moved = text.replace("https://app.datadoghq.com", &other.url);
    assert_ne!(moved, text);
    let log = run(Some(&moved), &[("DD_URL", &site.url)]);
    assert_eq!(paths(&posted(&site), FIRST), ALL, "{log}");
    for key in [
        "fedcba9876543210fedcba9876543210",
        "00112233445566778899aabbccddeeff",
    ] {
        assert_eq!(paths(&posted(&other), key), ALL, "{log}");
        assert!(!log.contains(key), "{log}");
    }
    let posted = posted(&other);
    assert!(
        posted
            .values()
            .all(|taken| taken.header("content-encoding") == Some("gzip"))
    );
    let series = posted
        .iter()
        .find(|((_, path), _)| path == "/api/v2/series")
        .unwrap()
        .1;
    assert_eq!(series.header("content-type"), Some("application/x-protobuf"));
    // "All settings" has all of them.
    names_every_setting(text, "datadog");
}

/// Behind a proxy nothing arrived: the Datadog Agent's variables were passed over in silence.
#[test]
fn variables_for_a_proxy() {
    let expected = ALL.map(|path| format!("http://intake.invalid{path}"));
    for is_of_the_datadog_agent in [false, true] {
        let (proxy, direct) = (Receiver::start(202), Receiver::start(202));
        let through = proxy.url.as_str();
        let variables = match is_of_the_datadog_agent {
            false => vec![("HTTP_PROXY", through), ("NO_PROXY", "127.0.0.1")],
            true => vec![
                ("DD_PROXY_HTTPS", through),
                ("DD_PROXY_HTTP", through),
                ("DD_PROXY_NO_PROXY", "127.0.0.1 other.example"),
            ],
        };
        let run_to = |url: &str| {
            let intake = [("DD_API_KEY", FIRST), ("DD_URL", url)];
            run(None, &[&intake[..], &variables].concat())
        };
        let log = run_to("http://intake.invalid");
        assert_eq!(paths(&posted(&proxy), FIRST), expected, "{log}");
        let log = run_to(&direct.url);
        assert_eq!(paths(&posted(&direct), FIRST), ALL, "{log}");
        assert_eq!(posted(&proxy).len(), expected.len(), "{log}");
    }
}

/// The input of monitors and of the list of hosts, from an agent without other data.
#[test]
fn an_idle_agent_reports_that_it_runs() {
    let config = "outputs:\n  datadog: {heartbeat: false}\n";
    for (config, metadata, expected) in [
        (
            None,
            "true",
            &["/api/v1/check_run", "/api/v2/series", "/intake/"][..],
        ),
        (Some(config), "false", &[]),
    ] {
        let intake = Receiver::start(202);
        let environment = [
            ("DD_API_KEY", FIRST),
            ("DD_URL", &intake.url),
            ("DD_ENABLE_METADATA_COLLECTION", metadata),
        ];
        run_with(b"", config, &environment);
        assert_eq!(paths(&posted(&intake), FIRST), expected);
    }
}
