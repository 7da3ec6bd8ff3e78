//! The last minutes, asked of the real binary: they are what went to an output.

use crate::support;
use std::collections::BTreeMap;

use serde_json::Value;
use support::{Agent, json, until};

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
    until("the busiest metric is first", || {
        agent.send("busy:1:2:3:4:5:6:7:8:9|d");
        let list = json(&admin, "/api/v1/metrics?sort=samples");
        let first = &list["metrics"][0];
        first["name"] == "busy" && first["samples_per_second"].as_f64() > Some(0.0)
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
