//! The examples of docs/api.md, asked of the real agent.

use crate::support;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use serde_json::Value;
use support::{Agent, get, json, until};

const PAGE: &str = include_str!("../../../docs/api.md");

/// Contents of fences of this kind, in order.
fn blocks(kind: &str) -> impl Iterator<Item = &'static str> {
    let opening = format!("```{kind}\n");
    let parts: Vec<&str> = PAGE.split(opening.as_str()).skip(1).collect();
    parts.into_iter().map(|part| part.split("```").next().unwrap())
}

/// Path and parameters of `curl 'http://127.0.0.1:8127/...'`, those of `--data-urlencode` included.
fn path(command: &str) -> String {
    let mut quoted = command.split('\'').skip(1).step_by(2);
    let url = quoted.next().expect("a URL in quotes");
    let mut path = url.strip_prefix("http://127.0.0.1:8127").unwrap().to_owned();
    for parameter in quoted {
        let (name, value) = parameter.split_once('=').unwrap();
        let value: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let sign = if path.contains('?') { '&' } else { '?' };
        path.push_str(&format!("{sign}{name}={value}"));
    }
    path
}

/// The parts that do not depend on the time of the request: times are removed, and values of several steps are summed.
fn timeless(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let is_time = |name: &str| {
                matches!(
                    name,
                    "held_from" | "held_to" | "first_seen" | "last_seen" | "times"
                )
            };
            let fields = fields.into_iter().filter(|(name, _)| !is_time(name));
            Value::Object(
                fields
                    .map(|(name, value)| match (name.as_str(), &value) {
                        ("values" | "sparkline", Value::Array(values))
                            if !values.iter().any(Value::is_object) =>
                        {
                            let sum: f64 = values.iter().filter_map(Value::as_f64).sum();
                            (name, Value::from(sum))
                        }
                        _ => (name, timeless(value)),
                    })
                    .collect(),
            )
        }
        Value::Array(values) => Value::Array(values.into_iter().map(timeless).collect()),
        other => other,
    }
}

#[test]
fn the_page_is_true() {
    let agent = Agent::start("bucket_width: 1s\nworkers: 1\n", &[]);
    examples_are_true(&agent);
    the_example_of_a_tail_is_true(&agent);
    paths_answer(&agent);
}

fn examples_are_true(agent: &Agent) {
    let admin = &agent.admin;
    let messages = blocks("messages").next().expect("what is sent");
    agent.send(messages);
    until("all of it is held", || {
        json(admin, "/api/v1/metrics?details=0")["total"] == 2
    });
    let mut asked = 0;
    for example in blocks("console").filter(|example| !example.starts_with(STREAM)) {
        let (command, expected) = example.split_once('\n').unwrap();
        let path = path(command.strip_prefix("$ curl ").expect(command));
        let expected: Value =
            serde_json::from_str(expected).unwrap_or_else(|error| panic!("{command}: {error}"));
        let expected = timeless(expected);
        // Books of a second come with the next one.
        until(command, || {
            let (code, body) = get(admin, &path);
            let body = body.replace(agent.address(), "127.0.0.1:8125");
            let found = timeless(serde_json::from_str(&body).unwrap());
            let is_expected = (code == 200, &found) == (expected.get("error").is_none(), &expected);
            is_expected.then_some(()).ok_or(format!("{code}\n{body}"))
        });
        asked += 1;
    }
    assert!(asked >= 8, "{asked} examples");
}

/// Start of an example of a stream.
const STREAM: &str = "$ curl -N ";

/// Events of a stream: name and data, without what differs each time.
fn events(text: impl Iterator<Item = String>) -> impl Iterator<Item = (String, Value)> {
    let mut name = String::new();
    text.filter_map(move |line| {
        if let Some(event) = line.strip_prefix("event: ") {
            event.clone_into(&mut name);
        }
        let mut data: Value = serde_json::from_str(line.strip_prefix("data: ")?).unwrap();
        let fields = data.as_object_mut().unwrap();
        fields.retain(|field, _| !["time", "address", "listener"].contains(&field.as_str()));
        Some((name.clone(), data))
    })
}

fn the_example_of_a_tail_is_true(agent: &Agent) {
    let example = blocks("console").find(|example| example.starts_with(STREAM));
    let (command, expected) = example.unwrap().split_once('\n').unwrap();
    let mut stream = TcpStream::connect(&agent.admin).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    write!(stream, "GET {} HTTP/1.0\r\n\r\n", path(command)).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == ": weir"), "the stream begins");
    let expected: Vec<_> = events(expected.lines().map(str::to_owned)).collect();
    let sent: Vec<&str> = expected
        .iter()
        .filter_map(|(_, data)| data["line"].as_str())
        .collect();
    assert_eq!(sent.len(), 2);
    agent.send(&sent.join("\n"));
    let mut found = events(lines).skip_while(|(_, data)| data["messages"] == 0);
    for event in expected {
        assert_eq!(found.next(), Some(event));
    }
}

/// Every path of the table is there.
fn paths_answer(agent: &Agent) {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `/api/v1/"));
    let mut paths = 0;
    for row in rows {
        let path = row.split(['`', '?']).next().unwrap();
        paths += 1;
        if ["live", "tail", "capture"].contains(&path) {
            continue;
        }
        let (code, body) = get(&agent.admin, &format!("/api/v1/{path}"));
        // The message names the missing file.
        assert!(
            code == 200 || code == 400 && body.contains("is missing"),
            "{path}: {code} {body}"
        );
    }
    assert!(paths >= 9, "{paths} paths");
}
