//! Rules through the real binary: the page's examples, and a reload over HTTP.

use std::net::UdpSocket;
use std::path::Path;

use serde_json::Value;

use crate::support::{Agent, Starter, get, post, said, until};

const LISTENERS: &str = "udp: ['127.0.0.1:0']\nadmin: 127.0.0.1:0\nbucket_width: LONG\nhostname: here\n";

/// A running agent, a socket to it, and where it answers.
fn start(config: &str) -> (Agent, UdpSocket, String) {
    let starter = Starter::from(&format!("{LISTENERS}{config}"));
    let agent = starter.arguments(["--output", "stdout"]).start();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(agent.address()).unwrap();
    let admin = agent.admin.clone();
    (agent, socket, admin)
}

/// Ends it and returns the series it printed, without time, interval and its own host, sorted.
fn finish(agent: Agent) -> Vec<String> {
    let (text, _) = agent.stop();
    let mut series: Vec<String> = text.lines().map(series).collect();
    series.sort();
    series
}

fn series(line: &str) -> String {
    let mut value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    let object = value.as_object_mut().unwrap();
    // A rate of the page is that of a bucket of ten seconds.
    if object.get("type") == Some(&Value::from("rate"))
        && let Some(interval) = object.get("interval").and_then(Value::as_f64)
    {
        let sum = object["value"].as_f64().unwrap() * interval;
        object.insert("value".into(), ((sum * 1e6).round() / 1e7).into());
    }
    object.remove("ts");
    object.remove("interval");
    if object.get("host") == Some(&Value::from("here")) {
        object.remove("host");
    }
    if let Some(number) = object.get("value").and_then(Value::as_f64) {
        object.insert("value".into(), number.into());
    }
    value.to_string()
}

/// Asks for the status until it satisfies `done`.
fn status_when(admin: &str, done: impl Fn(&Value) -> bool) -> Value {
    until("the status is as expected", || {
        let (_, body) = get(admin, "/api/v1/status");
        let status: Value = serde_json::from_str(&body).unwrap();
        if done(&status) { Ok(status) } else { Err(body) }
    })
}

fn received(status: &Value) -> u64 {
    status["total"]["messages"]["received"].as_u64().unwrap()
}

/// The fenced blocks of a page, in order: what they are, and what is in them.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(kind), None) => open = Some((kind.to_owned(), String::new())),
            (None, Some((_, text))) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

#[test]
fn the_examples_of_the_page_are_true() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules.md");
    let page = std::fs::read_to_string(path).unwrap();
    let mut examples = 0;
    let mut running: Option<(Agent, String)> = None;
    let mut config = String::new();
    for (kind, text) in blocks(&page) {
        match kind.as_str() {
            "yaml" => {
                running = None;
                config = text;
            }
            "messages" => {
                let (agent, socket, admin) = start(&config);
                for line in text.lines() {
                    socket.send(line.as_bytes()).unwrap();
                }
                let count = text.lines().count() as u64;
                status_when(&admin, |status| received(status) == count);
                running = Some((agent, admin));
            }
            "status" => {
                // The agent of the series before has ended: another one, for its status.
                let (agent, socket, admin) = start(&config);
                for id in ["1", "2"] {
                    socket.send(format!("api.get:1|c|#id:{id}").as_bytes()).unwrap();
                }
                status_when(&admin, |status| received(status) == 2);
                let shown = said(&["status", "--admin", &admin]);
                assert!(shown.contains(text.trim()), "{text} is not in\n{shown}");
                drop(agent);
            }
            "series" => {
                let (agent, _) = running.take().expect("messages come before series");
                let mut expected: Vec<String> = text.lines().map(series).collect();

                expected.sort();
                assert_eq!(finish(agent), expected, "{config}");
                examples += 1;
            }
            _ => {}
        }
    }
    assert_eq!(examples, 5);
}

#[test]
fn a_reload_over_http_keeps_what_is_open_and_a_bad_file_changes_nothing() {
    let (agent, socket, admin) = start("rules: [{name: r, match: a.*, exclude_tags: [x]}]\n");
    let send = |text: &str| assert_eq!(socket.send(text.as_bytes()).unwrap(), text.len());
    let rewrite = |config: &str| agent.rewrite(&format!("{LISTENERS}{config}"));
    send("a.b:1|c|#x:1\na.b:1|c|#x:2\nkept:1|c|#x:1");
    status_when(&admin, |status| received(status) == 3);

    rewrite("rules: [{name: r, match: 'a(', match_type: regex, drop: true}]\n");
    let (code, body) = post(&admin, "/api/v1/reload");
    assert_eq!(code, 422, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    let error = answer["errors"][0].as_str().unwrap();
    assert!(
        error.contains("weir.yaml:5: rules[0].match") && error.contains("regular expression"),
        "{error}"
    );
    assert_eq!(get(&admin, "/api/v1/reload").0, 405);

    // A percentile that no histogram of this process has needs a restart, and is refused whole.
    rewrite("rules: [{name: r, percentiles: ['0.33']}]\n");
    let (code, body) = post(&admin, "/api/v1/reload");
    assert!(code == 422 && body.contains("restart"), "{body}");

    rewrite("rules: [{name: r, match: a.*, drop: true}]\n");
    let (code, body) = post(&admin, "/api/v1/reload");
    assert_eq!(code, 200, "{body}");
    assert!(
        body.contains(r#""key":"rules""#) && body.contains(r#""applied":true"#),
        "{body}"
    );
    let mut sent = 0;
    until("the workers take the rules with their next turn", || {
        send("a.b:1|c|#x:1\nkept:1|c|#x:1");
        sent += 1;
        let status = status_when(&admin, |status| received(status) >= 3 + 2 * sent);
        status["total"]["samples"]["dropped"]["filtered"].as_u64() > Some(0)
    });
    let series = finish(agent);
    assert_eq!(series.len(), 2, "{series:?}");
    assert!(
        series[0].contains(r#""metric":"a.b""#),
        "what was open is flushed: {series:?}"
    );
    let kept = serde_json::from_str::<Value>(&series[1]).unwrap();
    assert!(
        (kept["value"].as_f64().unwrap() - (1 + sent) as f64 / 10.0).abs() < 1e-6,
        "{series:?}"
    );
}
