//! Requests with a number are added once: repeated, across kills and hand-overs, and with answers that are lost.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_columns::{Encoder, MetricType, SketchPoint};
use weir_sketch::Sketch;

use crate::columns::{next_answer, now, points, row};
use crate::support::place::{Place, replace_by_a_file};
use crate::support::senders::{number, total};
use crate::support::{Agent, PATIENCE, long_bucket, until};

/// A bucket that does not end, two workers, and two listeners of columns.
fn configuration(place: &Place, more: &str) -> String {
    place.configuration(&format!(
        "http_uds: [{}, {}]\nbucket_width: LONG\nworkers: 2\noutputs:\n  stdout: {{enabled: true}}\n{more}",
        place.path("http").display(),
        place.path("other").display()
    ))
}

fn count(name: &str, timestamp: i64, value: f64) -> Vec<u8> {
    let mut encoder = Encoder::new(1);
    let row = row(&mut encoder, MetricType::Count, name);
    encoder.row(&row, &[(timestamp, value)]);
    encoder.sort();
    encoder.to_payload()
}

/// A request with a number, after which the connection stays open.
fn numbered(client: u64, number: u64, oldest: u64, path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nx-weir-client: {client:032x}\r\nx-weir-sequence: {number}\r\n\
         x-weir-oldest: {oldest}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// A count of 1 in the series `c`.
fn one(client: u64, number: u64, oldest: u64) -> Vec<u8> {
    numbered(client, number, oldest, "/series", &count("c", now(), 1.0))
}

fn sent(path: &Path, request: &[u8]) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(path).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).ok()?;
    Some(stream)
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Added,
    Duplicate,
    Other(u16),
    Nothing,
}

fn answer(stream: &mut UnixStream) -> Answer {
    match next_answer(stream) {
        None => Answer::Nothing,
        Some((200, head)) if head.contains("x-weir-duplicate: 1\r\n") => Answer::Duplicate,
        Some((200, _)) => Answer::Added,
        Some((code, _)) => Answer::Other(code),
    }
}

fn ask(path: &Path, request: &[u8]) -> Answer {
    sent(path, request).map_or(Answer::Nothing, |mut stream| answer(&mut stream))
}

/// Repeats a request until it is answered.
fn insist(path: &Path, request: &[u8]) -> Answer {
    until("the request is answered", || match ask(path, request) {
        answer @ (Answer::Added | Answer::Duplicate) => Ok(answer),
        other => Err(format!("{other:?}")),
    })
}

/// The answer of an agent that has the time: while it is busy, it answers that the request is to be sent again.
fn ask_patiently(path: &Path, request: &[u8]) -> Answer {
    until("the agent has the time", || match ask(path, request) {
        Answer::Other(503) => Err("it is busy".to_owned()),
        answer => Ok(answer),
    })
}

fn kill(mut agent: Agent) {
    agent.signal("-KILL");
    until("it has ended", || agent.ended().is_some());
}

fn counter(agent: &Agent, name: &str) -> u64 {
    until("a worker has reported", || {
        let status = agent.status();
        let found = status["columns"][name].as_u64();
        found.ok_or_else(|| status["columns"].to_string())
    })
}

fn duplicates(agent: &Agent) -> u64 {
    let status = agent.status();
    let listeners = status["listeners"].as_array().unwrap().iter();
    listeners
        .filter_map(|listener| listener["http"]["requests"]["duplicate"].as_u64())
        .sum()
}

/// Without a state directory: numbers are known as long as the process lives, and answers wait for nothing.
#[test]
fn numbers_are_added_once_in_any_order_and_at_any_listener() {
    let place = Place::new();
    let agent = Agent::start(&configuration(&place, ""), &[]);
    let (http, other) = (place.path("http"), place.path("other"));
    // Clients with interleaved numbers; those of the first have a hole, which is closed later.
    let mut added = 0;
    for (client, number) in [(1, 1), (2, 1), (1, 3), (2, 2), (3, 1), (1, 2), (3, 2), (1, 4)] {
        let request = one(client, number, 1);
        assert_eq!(ask(&http, &request), Answer::Added, "{client} {number}");
        added += 1;
        for path in [&http, &other] {
            assert_eq!(ask(path, &request), Answer::Duplicate, "{client} {number}");
        }
    }
    // Many under way at once, two of each.
    let requests: Vec<_> = (5..30).map(|number| one(1, number, 5)).collect();
    let twice = [&http, &other].into_iter().flat_map(|path| {
        requests
            .iter()
            .map(|request| sent(path, request).unwrap())
            .collect::<Vec<_>>()
    });
    let answers: Vec<_> = twice.collect::<Vec<_>>().iter_mut().map(answer).collect();
    let of = |wanted: Answer| answers.iter().filter(|answer| **answer == wanted).count();
    assert_eq!((of(Answer::Added), of(Answer::Duplicate)), (25, 25));
    added += 25;
    // Given up, and late.
    assert_eq!(ask(&http, &one(2, 9, 8)), Answer::Added);
    assert_eq!(ask(&http, &one(2, 5, 3)), Answer::Duplicate);
    assert_eq!(ask(&http, &one(2, 200, 9)), Answer::Other(400));
    // Of a client that had sent to another process.
    assert_eq!(ask(&http, &one(4, 4, 4)), Answer::Added);
    // A payload that is refused does not take its number.
    assert_eq!(
        ask(&http, &numbered(5, 1, 1, "/series", b"\xff\xff")),
        Answer::Other(400)
    );
    assert_eq!(ask(&http, &one(5, 1, 1)), Answer::Added);
    added += 3;
    until("the workers report", || counter(&agent, "clients") == 5);
    assert_eq!(counter(&agent, "requests_given_up"), 5, "3 to 7");
    assert_eq!(counter(&agent, "clients_unknown"), 1);
    assert_eq!(duplicates(&agent), 16 + 25 + 1);
    let (stdout, _) = agent.stop();
    assert_eq!((total(&stdout, "c") * long_bucket()).round(), f64::from(added));
}

/// The answer waits until a kill loses nothing of the request. Points that keep their timestamp leave with the bucket, so a checkpoint, a state
/// and a hand-over have them too.
#[test]
fn a_kill_a_stop_and_a_hand_over_know_what_was_added() {
    let place = Place::new();
    let config = configuration(&place, "");
    let http = place.path("http");
    let old = now() - 7200;
    let late = |number| numbered(2, number, number, "/series", &count("late", old, 1.0));
    let mut requests = Vec::new();
    let add = |request: Vec<u8>, requests: &mut Vec<Vec<u8>>| {
        match ask(&http, &request) {
            Answer::Added => {}
            // A checkpoint that is late: the points may be added already.
            Answer::Other(503) => {
                insist(&http, &request);
            }
            other => panic!("{other:?}"),
        }
        requests.push(request);
    };
    let all_are_known = |requests: &[Vec<u8>]| {
        for request in requests {
            assert_eq!(ask_patiently(&http, request), Answer::Duplicate);
        }
    };
    let agent = place.start(&config);
    add(late(1), &mut requests);
    add(one(1, 1, 1), &mut requests);
    kill(agent);
    let agent = place.start(&config);
    all_are_known(&requests);
    add(late(2), &mut requests);
    add(one(1, 2, 2), &mut requests);
    agent.signal("-TERM");
    let (status, _, log) = agent.end();
    assert!(status.success(), "{log}");
    // The numbers are divided among another number of workers.
    let config = config.replace("workers: 2", "workers: 3");
    let agent = place.start(&config);
    all_are_known(&requests);
    // Its answer waits for a checkpoint, or for the process that takes over.
    let third = one(1, 3, 3);
    let mut waits = sent(&http, &third).unwrap();
    let next = place.take_over(&config);
    let (status, _, log) = agent.end();
    assert!(status.success(), "{log}");
    match answer(&mut waits) {
        Answer::Added => assert_eq!(ask_patiently(&http, &third), Answer::Duplicate),
        // It arrived when nothing was added any more, or its checkpoint was late: the sum tells that it counts once.
        Answer::Other(503) | Answer::Nothing => {
            insist(&http, &third);
        }
        other => panic!("{other:?}"),
    }
    requests.push(third);
    all_are_known(&requests);
    // A kill right after the hand-over: the numbers are in what it passed.
    kill(next);
    let agent = place.start(&config);
    all_are_known(&requests);
    replace_by_a_file(&place.path("state"));
    let (stdout, _) = agent.stop();
    assert_eq!((total(&stdout, "c") * long_bucket()).round(), 3.0, "{stdout}");
    let [late] = &points(&stdout, "late")[..] else {
        panic!("{stdout}")
    };
    let count = late["value"].as_f64().unwrap() * late["interval"].as_f64().unwrap();
    assert_eq!((late["ts"].as_i64(), count.round()), (Some(old), 2.0), "{stdout}");
}

/// The truth about what a client has sent.
#[derive(Default)]
struct Truth {
    count: f64,
    samples: u64,
    sum: f64,
    last: f64,
}

/// A client that repeats each request until it is answered, and hears one answer in three.
struct Client {
    answered: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    thread: JoinHandle<Truth>,
}

impl Client {
    fn start(client: u64, paths: [PathBuf; 2], ends: &Arc<AtomicBool>) -> Client {
        let (answered, failed) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (heard, unheard, ends) = (answered.clone(), failed.clone(), ends.clone());
        let thread = std::thread::spawn(move || {
            let (mut truth, mut number, mut attempts) = (Truth::default(), 0, 0_u64);
            while !ends.load(Ordering::Acquire) {
                number += 1;
                let (path, body) = window(client, number, &mut truth);
                let request = numbered(client, number, number, path, &body);
                loop {
                    attempts += 1;
                    let Some(mut stream) = sent(&paths[attempts as usize % 2], &request) else {
                        unheard.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(2));
                        continue;
                    };
                    // The connection breaks when the request may have arrived.
                    if attempts % 3 == client % 3 {
                        continue;
                    }
                    match answer(&mut stream) {
                        Answer::Added | Answer::Duplicate => break,
                        Answer::Other(503) | Answer::Nothing => unheard.fetch_add(1, Ordering::Relaxed),
                        other => panic!("{other:?}"),
                    };
                    std::thread::sleep(Duration::from_millis(2));
                }
                heard.fetch_add(1, Ordering::Relaxed);
            }
            truth
        });
        Client {
            answered,
            failed,
            thread,
        }
    }
}

/// Counts of a sampled counter, samples of a distribution, and the value of a gauge, in turn.
fn window(client: u64, number: u64, truth: &mut Truth) -> (&'static str, Vec<u8>) {
    let mut encoder = Encoder::new(1);
    let path = match number % 3 {
        0 => {
            let row = row(&mut encoder, MetricType::Gauge, &format!("gauge{client}"));
            truth.last = number as f64;
            encoder.row(&row, &[(now(), truth.last)]);
            "/series"
        }
        1 => {
            // One of two samples was taken.
            let row = row(&mut encoder, MetricType::Count, "count");
            let value = 2.0 * (number % 5 + 1) as f64;
            truth.count += value;
            encoder.row(&row, &[(now(), value)]);
            "/series"
        }
        _ => {
            let mut sketch = Sketch::new();
            (1..=number % 7 + 1).for_each(|value| sketch.insert((value * client) as f64, 1));
            truth.samples += sketch.cnt();
            truth.sum += sketch.sum();
            let row = row(&mut encoder, MetricType::Sketch, "dist");
            let point = SketchPoint {
                timestamp: now(),
                sum: sketch.sum(),
                min: sketch.min(),
                max: sketch.max(),
                count: sketch.cnt(),
            };
            let bins = sketch.bins().into_owned().into_iter();
            let bins = bins.map(|bin| (i32::from(bin.k), u64::from(bin.n)));
            encoder.sketches(&row, std::iter::once((point, bins)));
            "/sketches"
        }
    };
    encoder.sort();
    (path, encoder.to_payload())
}

/// In the gate: [`a_kill_a_stop_and_a_hand_over_know_what_was_added`]; `weir-agent`
/// life::simulation::every_schedule_delivers_or_reports_each_sample_once.
#[test]
#[ignore = "nightly: kills at random instants"]
fn many_kills_hand_overs_and_lost_answers_change_no_total() {
    let place = Place::new();
    let config = configuration(&place, "");
    let mut agent = place.start(&config);
    let ends = Arc::new(AtomicBool::new(false));
    let paths = || [place.path("http"), place.path("other")];
    let clients: BTreeMap<u64, Client> = (1..=3)
        .map(|client| (client, Client::start(client, paths(), &ends)))
        .collect();
    let wait_for_more = |what: &str, of: fn(&Client) -> &AtomicU64, more: u64| {
        let now = || clients.values().map(|client| of(client).load(Ordering::Relaxed));
        let before: Vec<u64> = now().collect();
        until(what, || {
            now().zip(&before).all(|(now, before)| now >= before + more)
        });
    };
    let answered: fn(&Client) -> &AtomicU64 = |client| &client.answered;
    let failed: fn(&Client) -> &AtomicU64 = |client| &client.failed;
    for _ in 0..number("WEIR_TEST_KILLS", 20) {
        wait_for_more("each client has answers", answered, 2);
        kill(agent);
        wait_for_more("each client finds no agent", failed, 3);
        agent = place.start(&config);
        wait_for_more("each client has an answer", answered, 1);
        let next = place.take_over(&config);
        let (status, _, log) = agent.end();
        assert!(status.success(), "{log}");
        agent = next;
    }
    wait_for_more("each client has an answer", answered, 1);
    until("a request of which no answer was heard comes again", || {
        duplicates(&agent) > 0
    });
    ends.store(true, Ordering::Release);
    let truths: BTreeMap<u64, Truth> = clients
        .into_iter()
        .map(|(number, client)| (number, client.thread.join().unwrap()))
        .collect();
    replace_by_a_file(&place.path("state"));
    let (stdout, _) = agent.stop();
    let counts: f64 = truths.values().map(|truth| truth.count).sum();
    assert_eq!(
        (total(&stdout, "count") * long_bucket()).round(),
        counts,
        "{stdout}"
    );
    let [dist] = &points(&stdout, "dist")[..] else {
        panic!("{stdout}")
    };
    let samples: u64 = truths.values().map(|truth| truth.samples).sum();
    let sums: f64 = truths.values().map(|truth| truth.sum).sum();
    assert_eq!(dist["cnt"], samples, "{dist}");
    assert_eq!(dist["sum"].as_f64(), Some(sums), "{dist}");
    for (client, truth) in truths {
        let gauge = &points(&stdout, &format!("gauge{client}"))[0];
        assert_eq!(gauge["value"].as_f64(), Some(truth.last), "{gauge}");
    }
}
