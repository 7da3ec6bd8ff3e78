//! Datadog, with a disk queue: what was written down arrives all the same, and the totals, after the backend's own rule that a
//! context and a second are one point, are exact.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::Kills;
use crate::delivery::intake::{Answer, Intake};
use crate::support::{Agent, PointBooks, until};

/// Half of them counters, half gauges.
const CONTEXTS: u64 = 4000;

#[test]
fn killed_once_while_it_delivers() {
    killed(Kills::at_events(1));
}

/// In the gate: [`killed_once_while_it_delivers`].
#[test]
#[ignore = "nightly: kills at random instants"]
fn killed_while_it_delivers() {
    killed(Kills::at_random(8));
}

fn killed(mut kills: Kills) {
    let recovered = Arc::new(AtomicBool::new(false));
    let script = recovered.clone();
    let intake = Intake::start(true, move |number| match number % 7 {
        _ if script.load(Ordering::SeqCst) => Answer::Accept,
        1 => Answer::Fail,
        3 => Answer::Break,
        5 => Answer::Hang,
        _ => Answer::Accept,
    });
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("weir.yaml");
    // Small payloads, so that a flush is many of them and a kill falls between some; one request at a time, so that it takes a while.
    let text = format!(
        "bucket_width: 1s\ncounter_expiry: 0\noutputs:\n  prometheus: {{enabled: false}}\n  datadog:\n    api_key: 0123456789abcdef0123456789abcdef\n    \
         url: http://{}\n    series_format: v2_json\n    compression: none\n    heartbeat: false\n    host_metadata: false\n    points_per_payload_max: 100\n    delivery:\n      \
         disk_path: {}\n      timeout: 50ms\n      backoff_max: 80ms\n      concurrency: 1\n",
        intake.address,
        directory.path().join("queue").display()
    );
    std::fs::write(&config, text).unwrap();
    let start = || Agent::start(&["--config", config.to_str().unwrap()], &[]);

    let mut left = Vec::new();
    for round in 0..kills.rounds {
        let agent = start();
        let found = books(&agent);
        for first in (0..CONTEXTS).step_by(50) {
            let message = |i: u64| match i % 2 {
                0 => format!("hits:1|c|#i:{i}\n"),
                _ => format!("level:{}|g|#i:{i}\n", round * CONTEXTS + i),
            };
            agent.send((first..first + 50).map(message).collect::<String>());
        }
        // Every context has one point in one bucket of this process, and a point that waits has been written down first.
        let queued = until("flushed and written down", || {
            let books = books(&agent);
            let is_there = books.produced == found.produced + CONTEXTS && books.to_write == 0;
            let shown = format!("{books:?}, {found:?} at first");
            is_there.then_some(books).ok_or(shown)
        });
        assert_eq!(queued.dropped, 0);
        // More, of which nobody knows how far it will get.
        agent.send(
            (0..200)
                .map(|i| format!("noise:1|c|#i:{i},round:{round}\n"))
                .collect::<String>(),
        );
        left.push(books(&agent).pending);
        kills.kill(agent);
    }
    assert!(
        !kills.are_random() || left.iter().any(|left| *left > 0),
        "killed while points waited: {left:?}"
    );

    recovered.store(true, Ordering::SeqCst);
    let agent = start();
    until("everything delivered", || match books(&agent) {
        books if books.pending == 0 && books.dropped == 0 => Ok(()),
        books => Err(format!("{books:?}")),
    });
    agent.finish();

    // A context and a second are one point.
    let mut points: BTreeMap<(String, String, i64), f64> = BTreeMap::new();
    let bodies = intake.series.lock().unwrap();
    for body in bodies.iter() {
        let body: Value = serde_json::from_slice(body).expect("every body is whole");
        for series in body["series"].as_array().unwrap() {
            let point = &series["points"][0];
            let value = point["value"].as_f64().unwrap();
            let name = series["metric"].as_str().unwrap().to_owned();
            let at = (
                name,
                series["tags"].to_string(),
                point["timestamp"].as_i64().unwrap(),
            );
            let before = points.insert(at, value);
            assert!(
                before.is_none_or(|before| before == value),
                "a repeated point has the value it had"
            );
        }
    }
    let mut of_context: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for ((name, tags, _), value) in points {
        of_context.entry((name, tags)).or_default().push(value);
    }
    let mut total = 0.0;
    for i in 0..CONTEXTS {
        let name = ["hits", "level"][(i % 2) as usize];
        let mut values = of_context
            .remove(&(name.to_owned(), format!("[\"i:{i}\"]")))
            .unwrap_or_default();
        values.sort_by(f64::total_cmp);
        let expected: Vec<f64> = match i % 2 {
            0 => vec![1.0; kills.rounds as usize],
            _ => (0..kills.rounds)
                .map(|round| (round * CONTEXTS + i) as f64)
                .collect(),
        };
        assert_eq!(values, expected, "{name} {i}");
        total += if name == "hits" { values.iter().sum() } else { 0.0 };
    }
    assert_eq!(total, (kills.rounds * CONTEXTS / 2) as f64);
    for ((name, _), values) in of_context {
        assert_eq!((name.as_str(), values), ("noise", vec![1.0]));
    }
    println!(
        "{} requests, points that waited at each kill: {left:?}",
        bodies.len()
    );
}

fn books(agent: &Agent) -> PointBooks {
    agent.points("datadog")
}
