//! The last minutes, asked of the real binary: they are what went to an output, and nobody else's page reads them.

use crate::support;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;

use serde_json::Value;
use support::{Agent, get, json, until};

/// Values by metric, tags and time.
type Points = BTreeMap<(String, String, i64), f64>;

/// Data on standard output. Rates are per second, which equals counts for buckets of a second.
fn delivered(stdout: &str) -> Points {
    let lines = stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let points = lines.filter(|line| line["metric"].is_string()).map(|line| {
        let metric = line["metric"].as_str().unwrap().to_owned();
        let tags: Vec<&str> = line["tags"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tag| tag.as_str().unwrap())
            .collect();
        let value = match line["type"].as_str() {
            Some("sketch") => line["sum"].as_f64(),
            _ => line["value"].as_f64(),
        };
        (
            (metric, tags.join(","), line["ts"].as_i64().unwrap()),
            value.unwrap(),
        )
    });
    points.collect()
}

/// The same of the history. Aggregates of histograms answer under the names that outputs give them.
fn held(admin: &str) -> Points {
    let mut points = Points::new();
    let metrics = json(admin, "/api/v1/metrics?limit=1000&details=0");
    for metric in metrics["metrics"].as_array().unwrap() {
        let name = metric["name"].as_str().unwrap();
        match metric["kind"].as_str() {
            Some("counter" | "distribution") => add_points(admin, name, "&fn=sum", &mut points),
            Some("histogram") => {
                for suffix in ["max", "median", "avg", "count", "95percentile"] {
                    add_points(admin, &format!("{name}.{suffix}"), "", &mut points);
                }
            }
            _ => add_points(admin, name, "&fn=avg", &mut points),
        }
    }
    points
}

fn add_points(admin: &str, name: &str, function: &str, points: &mut Points) {
    let answer = json(
        admin,
        &format!("/api/v1/query?metric={name}&by=user,env{function}&step=1s"),
    );
    for group in answer["groups"].as_array().unwrap() {
        let tags = group["tags"].as_array().unwrap().iter();
        let mut tags: Vec<String> = tags
            .filter(|tag| tag[1].is_string())
            .map(|tag| format!("{}:{}", tag[0].as_str().unwrap(), tag[1].as_str().unwrap()))
            .collect();
        tags.sort();
        let values = group["values"].as_array().unwrap().iter();
        for (time, value) in answer["times"].as_array().unwrap().iter().zip(values) {
            if let Some(value) = value.as_f64() {
                let key = (name.to_owned(), tags.join(","), time.as_i64().unwrap());
                points.insert(key, value);
            }
        }
    }
}

#[test]
fn queries_return_the_points_of_outputs() {
    let config = "bucket_width: 1s\nworkers: 2\ncounter_expiry: 0s\noutputs: {stdout: {enabled: true}}\n";
    let mut agent = Agent::start(config, &[]);
    let admin = agent.wait_for("admin on http://");
    for round in 0..5 {
        let seen = json(&admin, "/api/v1/metrics?match=page.views&details=0")["held_to"].as_i64();
        for user in ["ann", "ben"] {
            agent.send(&format!(
                "page.views:{}|c|#env:prod,user:{user}\nlatency:{}.25|d|#user:{user}\ntime:{round}:{round}:3|ms\ntemperature:{round}.5|g\nwho:{user}|s",
                round + 1,
                round * 7,
            ));
        }
        until("the bucket is kept", || {
            json(&admin, "/api/v1/metrics?match=page.views&details=0")["held_to"].as_i64() > seen
        });
    }
    until("all of it is kept", || {
        let answer = json(&admin, "/api/v1/query?metric=page.views&fn=sum");
        let values = answer["groups"][0]["values"].as_array().unwrap();
        values.iter().filter_map(Value::as_f64).sum::<f64>() == 30.0
    });
    let held = held(&admin);
    let status = json(&admin, "/api/v1/status");
    assert_eq!(status["history"]["refused"], 0, "{status}");
    assert!(
        status["memory"]["parts"]["history"].as_u64() > Some(0),
        "{status}"
    );
    let (stdout, _) = agent.stop();
    let delivered = delivered(&stdout);
    assert!(held.len() > 30, "{held:?}");
    for (key, value) in &held {
        let of_output = delivered.get(key).copied().unwrap_or(f64::NAN);
        // A quantile lies somewhere in its bin of the sketch, which is 1.6 % wide.
        let error = match key.0.ends_with("percentile") || key.0.ends_with("median") {
            true => 0.016 * of_output.abs(),
            false => 0.0,
        };
        assert!(
            (of_output - value).abs() <= error,
            "{key:?}: {value} instead of {of_output}"
        );
    }
    let last = held.keys().map(|key| key.2).max();
    let missing: Vec<_> = delivered
        .keys()
        .filter(|key| Some(key.2) <= last && !held.contains_key(key))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn invalid_queries_are_refused_with_the_allowed_values() {
    let mut agent = Agent::start("bucket_width: 1s\n", &[]);
    let admin = agent.wait_for("admin on http://");
    agent.send("a:1|g\n");
    until("it is kept", || get(&admin, "/api/v1/query?metric=a").0 == 200);
    for (path, code, part) in [
        ("query", 400, "metric is missing"),
        ("query?metric=b", 404, "no metric named \\\"b\\\""),
        ("query?metric=a&fn=p99", 400, "p99 is not available for a gauge"),
        ("query?metric=a&fn=mode", 400, "p and a percentage such as p99.9"),
        ("query?metric=a&kind=x", 400, "none of counter, rate, gauge"),
        ("query?metric=a&step=1d2", 400, "step must be a duration"),
        ("query?metric=a&from=yesterday", 400, "such as -15m"),
        ("query?metric=a&from=0&step=1", 400, "at most 4096 steps"),
        ("metrics?limit=0", 400, "from 1 to 10000"),
        ("metrics?sort=size", 400, "name, contexts, growth, seen, samples"),
        ("metrics?kind=timer", 400, "none of counter, rate, gauge"),
        ("metrics?match=%ff", 400, "not percent-encoded UTF-8"),
        ("tags?metric=b", 404, "no metric named"),
        ("nothing", 404, "not found"),
    ] {
        let (found, body) = get(&admin, &format!("/api/v1/{path}"));
        assert_eq!(found, code, "{path}: {body}");
        assert!(body.contains(part), "{path}: {body}");
        let parsed: Value = serde_json::from_str(&body).unwrap();
        assert!(parsed["error"]["code"].is_string(), "{body}");
    }
    agent.stop();
}

#[test]
fn the_list_of_metrics_takes_kinds_and_is_ordered_by_samples() {
    let mut agent = Agent::start("bucket_width: 1s\n", &[]);
    let admin = agent.wait_for("admin on http://");
    let names = |query: &str| {
        let answer = json(&admin, &format!("/api/v1/metrics?{query}"));
        let metrics = answer["metrics"].as_array().unwrap().clone();
        let names = metrics
            .iter()
            .map(|metric| metric["name"].as_str().unwrap().to_owned());
        assert_eq!(
            answer["total"].as_u64().unwrap() as usize,
            metrics.len(),
            "{answer}"
        );
        (names.collect::<Vec<_>>(), answer)
    };
    until("the busiest metric is first", || {
        agent.send("few:1|c\nmany:1:2:3:4:5:6:7|ms\nmany.d:1:2|d\nuser:a|s\nheat:3|g\n");
        names("sort=samples").0.first().map(String::as_str) == Some("many")
    });
    let (_, all) = names("sort=samples");
    assert!(
        all["metrics"][0]["samples_per_second"].as_f64().unwrap() > 0.0,
        "{all}"
    );
    for (query, expected) in [
        ("kind=counter", vec!["few"]),
        ("kind=histogram,distribution", vec!["many", "many.d"]),
        ("kind=gauge&kind=set", vec!["heat", "user"]),
        ("kind=set&match=heat", vec![]),
    ] {
        let (found, answer) = names(query);
        assert_eq!(found, expected, "{query}");
        if !query.contains("match") {
            assert_eq!(answer["kinds"], all["kinds"], "{query}");
        }
    }
    assert_eq!(all["kinds"]["histogram"], 1);
    agent.stop();
}

#[test]
fn without_a_memory_share_there_is_no_history() {
    let mut agent = Agent::start("bucket_width: 1s\nhistory: 0\n", &[]);
    let admin = agent.wait_for("admin on http://");
    let (code, body) = get(&admin, "/api/v1/metrics");
    assert!(code == 404 && body.contains("set `history`"), "{body}");
    agent.stop();
}

/// Lines of a stream of events, until one holds the text.
fn read_until(stream: &mut impl BufRead, text: &str) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(
            stream.read_line(&mut line).unwrap() > 0,
            "the stream ended before {text:?}"
        );
        if line.contains(text) {
            return line;
        }
    }
}

#[test]
fn a_stream_reports_each_flush_and_there_are_at_most_sixteen() {
    let mut agent = Agent::start("bucket_width: 1s\n", &[]);
    let admin = agent.wait_for("admin on http://");
    let open = |query: &str| {
        let mut stream = TcpStream::connect(&admin).unwrap();
        stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
        write!(
            stream,
            "GET /api/v1/live{query} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        .unwrap();
        BufReader::new(stream)
    };
    agent.send("a:7|c\n");
    until("it is kept", || get(&admin, "/api/v1/query?metric=a").0 == 200);
    let mut live = open("?metric=a&fn=sum&books=process_resident");
    read_until(&mut live, "200 OK");
    read_until(&mut live, "event: books");
    assert!(read_until(&mut live, "data:").contains("process_resident_memory_bytes"));
    let mut changes = open("?books=weir_messages_received");
    read_until(&mut changes, "200 OK");
    agent.send("a:5|c\n");
    read_until(&mut live, "[5.0]");
    read_until(&mut changes, "weir_messages_received_total");
    read_until(&mut changes, "\"series\":[]");
    // The first two are among them.
    let mut others: Vec<_> = (0..14).map(|_| open("")).collect();
    others
        .iter_mut()
        .for_each(|other| drop(read_until(other, "200 OK")));
    let mut refused = open("");
    read_until(&mut refused, "503");
    assert!(read_until(&mut refused, "error").contains("16 streams are open"));
    drop(others);
    until("a place is free again", || {
        let mut again = open("");
        let mut line = String::new();
        again.read_line(&mut line).unwrap();
        line.contains("200")
    });
    agent.stop();
}

#[test]
fn the_page_is_for_browsers_and_the_index_for_terminals() {
    let mut agent = Agent::start("bucket_width: 1s\n", &[]);
    let admin = agent.wait_for("admin on http://");
    let ask = |head: &str| {
        let mut stream = TcpStream::connect(&admin).unwrap();
        write!(stream, "GET / HTTP/1.0\r\n{head}\r\n").unwrap();
        std::io::read_to_string(stream).unwrap()
    };
    assert!(ask("").contains("/api/v1/query"));
    let page = ask("Accept: text/html,*/*\r\n");
    assert!(page.contains("<!doctype html>"), "{page}");
    assert!(
        page.to_lowercase()
            .contains("content-security-policy: default-src 'none'"),
        "{page}"
    );
    for head in [
        "Host: evil.example\r\n",
        "Host: evil.example:8127\r\nAccept: text/html\r\n",
    ] {
        let answer = ask(head);
        assert!(!answer.contains("200 OK"), "{answer}");
    }
    agent.stop();
}
