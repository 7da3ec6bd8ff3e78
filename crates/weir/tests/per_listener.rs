//! Listeners that read their messages in ways of their own: the rows of the page about the protocol, and what is refused; and the shared
//! vectors.

use crate::support;
use std::io::Write as _;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Agent, status, until, weir};
use weir_protocol::ParseOptions;
use weir_protocol::json::packet_to_json;

const PAGE: &str = include_str!("../../../docs/protocol.md");

/// Rows of the table headed "setting | message | becomes".
fn rows() -> Vec<[String; 3]> {
    let mut inside = false;
    let mut rows = Vec::new();
    for line in PAGE.lines() {
        if !line.starts_with("| `") {
            inside =
                line.starts_with("| setting | message | becomes |") || inside && line.starts_with("| ---");
        } else if inside {
            let cells = line.replace(r"\|", "\0");
            let cell = |at| {
                let cell = cells.split('|').nth(at).unwrap();
                cell.trim().trim_matches('`').replace('\0', "|")
            };
            rows.push([cell(1), cell(2), cell(3)]);
        }
    }
    rows
}

/// Name and tags of each point, and its value, sorted.
fn points(stdout: &str) -> Vec<String> {
    let lines = stdout.lines().map(|line| serde_json::from_str(line).unwrap());
    let shown = lines.map(|line: serde_json::Value| {
        let tags: Vec<&str> = line["tags"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tag| tag.as_str().unwrap())
            .collect();
        format!(
            "{} [{}] {}",
            line["metric"].as_str().unwrap(),
            tags.join(","),
            line["value"]
        )
    });
    let mut shown: Vec<String> = shown.collect();
    shown.sort();
    shown
}

/// One agent with two listeners; `own` says how the Unix socket reads.
fn start(own: &str) -> (Agent, UnixDatagram, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dsd.socket");
    let config = format!(
        "bucket_width: LONG\nuds: [{}]\nper_listener:\n- listener: uds\n  {own}\noutputs: {{stdout: {{enabled: true}}}}\n",
        path.display()
    );
    let agent = Agent::start(&config, &[]);
    let socket = UnixDatagram::unbound().unwrap();
    socket.connect(&path).unwrap();
    (agent, socket, directory)
}

#[test]
fn every_row_of_the_page_holds_for_its_listener_and_no_other() {
    let rows = rows();
    assert_eq!(rows.len(), 7, "{rows:?}");
    for [setting, message, becomes] in rows {
        let (mut agent, socket, _directory) = start(&setting);
        let admin = agent.wait_for("admin on http://");
        let is_of_names = setting.starts_with("tag_styles");
        let lines: Vec<&str> = message.split(' ').collect();
        // More than once: known messages take another way than new ones.
        for _ in 0..3 {
            for line in &lines {
                socket.send(line.as_bytes()).unwrap();
                if is_of_names {
                    agent.send(line);
                }
            }
        }
        let samples = if setting.starts_with("sample_lists") { 2 } else { 1 };
        let sent = lines.len() as u64 * samples * if is_of_names { 6 } else { 3 };
        until("all are received", || {
            status(&admin)["total"]["messages"]["received"] == sent
        });
        let (stdout, _) = agent.stop();
        let found = points(&stdout);
        assert!(found.contains(&becomes), "{setting}, {message}: {found:?}");
        if is_of_names {
            let name = message.split(':').next().unwrap();
            let as_it_is = |point: &String| point.starts_with(&format!("{name} ["));
            assert!(
                found.iter().any(as_it_is),
                "{name} at the other listener: {found:?}"
            );
            assert_eq!(found.len(), 2, "{found:?}");
        }
    }
}

/// Gauges in the same bytes from two listeners: one adds, the other replaces, and a change without a base is counted.
#[test]
fn deltas_of_one_listener() {
    let (mut agent, socket, _directory) = start("gauge_deltas: true");
    let admin = agent.wait_for("admin on http://");
    for line in ["level:10|g", "level:+5|g", "level:-3|g", "unknown:+4|g"] {
        socket.send(line.as_bytes()).unwrap();
    }
    until("the socket's are received", || {
        status(&admin)["total"]["messages"]["received"] == 4
    });
    agent.send("absolute:10|g\nabsolute:+5|g");
    until("all are received", || {
        status(&admin)["total"]["messages"]["received"] == 6
    });
    let said = status(&admin);
    let listeners = said["listeners"].as_array().unwrap();
    let without_base: Vec<u64> = listeners
        .iter()
        .map(|listener| listener["gauge_deltas_without_base"].as_u64().unwrap())
        .collect();
    assert_eq!(without_base, [0, 1], "{said:#}");
    let (ok, text) = weir(&["status", "--admin", &admin]);
    assert!(ok && text.contains("before a value, or more than"), "{text}");
    let (stdout, _) = agent.stop();
    assert_eq!(points(&stdout), ["absolute [] 5", "level [] 12", "unknown [] 4"]);
}

/// Runs `weir explain` for a message.
fn explained(admin: &str, message: &str, more: &[&str]) -> (bool, String) {
    weir(&[&["explain", message, "--admin", admin][..], more].concat())
}

#[test]
fn an_explanation_is_that_of_the_listener_that_it_names() {
    let (mut agent, _socket, directory) = start("gauge_deltas: true\n  tag_styles: [librato]");
    let admin = agent.wait_for("admin on http://");
    let path = format!("unixgram://{}", directory.path().join("dsd.socket").display());
    let udp = format!("udp://{}", agent.address());
    let message = "queue#env=prod:+7|g";
    for name in ["uds", &path] {
        let (ok, text) = explained(&admin, message, &["--listener", name]);
        let all = [
            "\n  queue (gauge)",
            "\n    env:prod",
            "gauge_deltas: the listener adds",
            &path,
            &udp,
        ];
        assert!(ok && all.iter().all(|part| text.contains(part)), "{name}: {text}");
    }
    // Without a name: the first listener, or the first one with a sending process.
    for more in [&[][..], &["--listener", "udp"], &["--listener", &udp]] {
        let (ok, text) = explained(&admin, message, more);
        let is_as_it_is = text.contains("\n  queue#env=prod (gauge)") && !text.contains("gauge_deltas");
        assert!(ok && is_as_it_is && text.contains(&path), "{more:?}: {text}");
    }
    let pid = std::process::id().to_string();
    let (ok, text) = explained(&admin, message, &["--pid", &pid]);
    assert!(ok && text.contains("\n  queue (gauge)"), "{text}");
    let (ok, text) = explained(&admin, message, &["--listener", "tcp"]);
    assert!(
        !ok && text.contains(&format!("allowed are {udp}, {path}")),
        "{text}"
    );
    agent.stop();
}

#[test]
fn an_explanation_says_what_is_ignored_and_what_becomes_of_a_timestamp() {
    let mut agent = Agent::start("", &[]);
    let admin = agent.wait_for("admin on http://");
    for (message, said) in [
        (
            "r.rq:5|g|#cluster:outbound|60051||a.svc",
            "unknown_sections: ignored: |60051|a.svc",
        ),
        ("a:1|c|T1661176132", "in no bucket, and keeps its timestamp"),
        ("a:1|c|T1661176132000", "timestamp: dropped: future_timestamp"),
        (
            "a:1|h|T1661176132",
            "timestamp: dropped: unsupported_timestamped_type",
        ),
        ("_e{1,1}:a|b|d:1661176132000", "timestamp: it is ignored, because"),
        ("_sc|db|0|d:-7", "timestamp: it is ignored, because"),
    ] {
        let (ok, text) = explained(&admin, message, &[]);
        assert!(ok && text.contains(said), "{message}: {text}");
    }
    let (ok, text) = explained(&admin, "_sc|db|0|d:1661176132", &[]);
    assert!(ok && !text.contains("timestamp: "), "{text}");
    agent.stop();
}

#[test]
fn a_transport_selects_its_listeners_if_their_settings_are_equal() {
    let directory = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| directory.path().join(name).display().to_string());
    let config = |listener: &str| {
        format!("uds: ['{one}', '{other}']\nper_listener: [{{listener: '{listener}', gauge_deltas: true}}]\n")
    };
    let mut agent = Agent::start(&config("uds"), &[]);
    let admin = agent.wait_for("admin on http://");
    let (ok, text) = explained(&admin, "level:+7|g", &["--listener", "uds"]);
    assert!(ok && text.contains("gauge_deltas: the listener adds"), "{text}");
    agent.stop();
    let mut agent = Agent::start(&config(&format!("unixgram://{one}")), &[]);
    let admin = agent.wait_for("admin on http://");
    let (ok, text) = explained(&admin, "level:+7|g", &["--listener", "uds"]);
    let said = format!("name one of unixgram://{one}, unixgram://{other}");
    assert!(!ok && text.contains(&said), "{text}");
    let (ok, text) = explained(
        &admin,
        "level:+7|g",
        &["--listener", &format!("unixgram://{other}")],
    );
    assert!(ok && !text.contains("gauge_deltas"), "{text}");
    agent.stop();
}

#[test]
fn a_listener_that_does_not_exist() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    std::fs::write(
        &path,
        "per_listener:\n- listener: udp://127.0.0.1:9125\n  gauge_deltas: true\n",
    )
    .unwrap();
    let (ok, said) = weir(&["check", "--config", path.to_str().unwrap()]);
    assert!(
        !ok && said.contains("per_listener") && said.contains("udp://127.0.0.1:8125"),
        "{said}"
    );
    std::fs::write(&path, "per_listener:\n- listener: udp\n  gauge_deltas: maybe\n").unwrap();
    let (ok, said) = weir(&["check", "--config", path.to_str().unwrap()]);
    assert!(!ok && said.contains("true"), "{said}");
}

/// The parser has a test of its own against the expected results.
#[test]
fn parse_prints_every_vector() {
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/vectors/protocol.jsonl"
    ))
    .unwrap();
    let mut count = 0;
    for line in text.lines() {
        let vector: Value = serde_json::from_str(line).unwrap();
        // Packets that are no text are the parser's own test's affair: they differ in nothing on the way through here.
        let Some(input) = vector["input"].as_str() else {
            continue;
        };
        let switch = |key: &str, default: bool| {
            vector["config"]
                .get(key)
                .map_or(default, |value| value == &Value::Bool(true))
        };
        let options = ParseOptions {
            origin_client: switch("origin_client", true),
            timestamps: switch("timestamps", true),
            eol_required: switch("eol_required", false),
        };
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .arg("parse")
            .arg(format!("--origin-client={}", options.origin_client))
            .arg(format!("--timestamps={}", options.timestamps))
            .arg(format!("--eol-required={}", options.eol_required))
            .arg("-")
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}: a rejected line is an answer, not a failure",
            vector["id"]
        );
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            printed,
            packet_to_json(input.as_bytes(), &options),
            "{}",
            vector["id"]
        );
        count += 1;
    }
    assert!(count > 200, "{count}");
}
