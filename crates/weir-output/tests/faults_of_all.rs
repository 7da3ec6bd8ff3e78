//! The same faults for every output over HTTP: none delays another, the books balance at all times, and after an outage everything
//! arrives, in the order of time where that matters, from the disk too.

use crate::support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::wire::{Samples, influx_lines, otlp_numbers, samples_1, samples_2};
use support::*;
use weir_output::OutputCounter;
use weir_output::delivery::{Clock, Delivery, Driver, OutputStatus, Reason};

/// Each output has a request under way that is not answered within an hour. Others of its type deliver before any of these gives up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_output_waits_for_the_answer_to_another() {
    let good = Intake::start(|_| taken()).await;
    let hanging = Intake::start(|_| Reply::Hang).await;
    let mut patient = delivery();
    patient.timeout = Duration::from_secs(3600);
    let around = environment(Clock::system());
    let batches = batches_at(BUCKET, "a:1|c\nb:2|g\nd:3|d\n");
    let start_all = |url: &str| -> Vec<Delivery> {
        OVER_HTTP
            .iter()
            .map(|name| start_output(name, url, patient.clone(), &around))
            .collect()
    };
    let submit = |outputs: &[Delivery]| {
        for output in outputs {
            batches.iter().for_each(|batch| output.submit(batch));
        }
    };
    let waiting = start_all(&hanging.url());
    submit(&waiting);
    hanging.wait(waiting.len()).await;
    let healthy = start_all(&good.url());
    submit(&healthy);
    for output in &healthy {
        let status = wait(output, "a healthy one", |status| {
            status.received.points >= 3 && idle(status)
        })
        .await;
        assert_eq!(status.endpoints[0].delivered, status.received);
    }
    for output in &waiting {
        let status = output.status();
        let endpoint = &status.endpoints[0];
        assert!(
            endpoint.last_error.is_none()
                && endpoint.delivered.points == 0
                && !endpoint.pending.total().is_zero(),
            "{status:#?}"
        );
    }
    for output in waiting.iter().chain(&healthy) {
        output.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_output_delivers_beside_every_fault() {
    let good = Intake::start(|_| taken()).await;
    let hanging = Intake::start(|_| Reply::Hang).await;
    let trickling = Intake::start(|_| Reply::Trickle(b"HTTP/1.1 ")).await;
    let garbling = Intake::start(|_| Reply::Raw(b"\x00\xff garbage \r\n\r\n")).await;
    let closing = Intake::start(|_| Reply::Raw(b"")).await;
    let failing = Intake::start(|_| Reply::Full(503, vec![], "out of\r\ncheese \x1b[31m")).await;
    let busy = Intake::start(|_| Reply::Full(429, vec![("retry-after", "7200".into())], "")).await;
    let (acceptor, _) = tls();
    let unknown = Intake::start_tls(acceptor, |_| taken()).await;
    let faults = [
        ("nothing listens", format!("http://{}", dead_address())),
        ("no such name", "http://receiver.invalid:9".into()),
        ("hangs", hanging.url()),
        ("trickles", trickling.url()),
        ("garbage", garbling.url()),
        ("closes", closing.url()),
        ("fails", failing.url()),
        ("rate-limits", busy.url()),
        ("no TLS", format!("https://{}", good.address)),
        (
            "TLS of nobody we know",
            format!("https://localhost:{}", unknown.address.port()),
        ),
    ];
    let mut hurried = delivery();
    hurried.timeout = Duration::from_millis(300);
    let around = environment(Clock::system());
    let mut outputs = Vec::new();
    for name in OVER_HTTP.into_iter().chain(["otlp grpc"]) {
        for (fault, url) in &faults {
            outputs.push((
                format!("{name}, {fault}"),
                start_output(name, url, hurried.clone(), &around),
            ));
        }
    }
    let healthy: Vec<Delivery> = OVER_HTTP
        .iter()
        .map(|name| start_output(name, &good.url(), delivery(), &around))
        .collect();
    for i in 0..5 {
        let batches = batches_at(BUCKET + i * 10, "a:1|c\nb:2|g\nd:3|d\n");
        let all = outputs.iter().map(|(_, output)| output).chain(&healthy);
        all.for_each(|output| batches.iter().for_each(|batch| output.submit(batch)));
    }
    for output in &healthy {
        let status = wait(output, "a healthy one", |status| {
            status.received.points >= 15 && idle(status)
        })
        .await;
        assert!(status.balances() && status.healthy, "{status:#?}");
        assert_eq!(status.endpoints[0].delivered, status.received);
    }
    for (what, output) in &outputs {
        let status = wait(output, what, |status| {
            status.endpoints[0].last_error.is_some() && status.endpoints[0].pending.inbox.is_zero()
        })
        .await;
        let endpoint = &status.endpoints[0];
        let message = &endpoint.last_error.as_ref().unwrap().message;
        assert!(!message.contains(char::is_control), "{what}: {message}");
        assert!(!endpoint.healthy && status.balances(), "{what}: {status:#?}");
        assert_eq!(endpoint.pending.total(), status.received, "{what}: kept");
    }
    assert!(unknown.requests().is_empty(), "nothing is told to a stranger");
    for (what, output) in &outputs {
        output.shutdown(Duration::ZERO).await;
        let status = output.status();
        assert!(status.balances() && idle(&status), "{what}: {status:#?}");
        let lost = status.endpoints[0].dropped[&Reason::Shutdown];
        assert_eq!(lost, status.received, "{what}: what memory alone held is counted");
    }
}

/// The status line decides: an answer that breaks off, never ends or is none behind it is a delivery like any other, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_accepting_status_counts_whatever_the_body() {
    const WRITTEN: &str = "x-prometheus-remote-write-samples-written: 9\r\n";
    for (head, rest) in [
        ("HTTP/1.1 202 Accepted\r\n", "content-length: 100\r\n\r\n{"),
        ("HTTP/1.1 202 Accepted\r\n", "\r\n"),
        ("HTTP/1.1 200 OK\r\n", "content-length: 6\r\n\r\n<html>"),
        (
            "HTTP/1.1 200 OK\r\n",
            "content-length: 6\r\n\r\n\u{7f}\u{1}\0\0\0\u{7f}",
        ),
    ] {
        let answer: &'static str = format!("{head}{WRITTEN}{rest}").leak();
        for name in OVER_HTTP {
            let intake = Intake::start(move |_| Reply::Raw(answer.as_bytes())).await;
            let output = start_output(name, &intake.url(), delivery(), &environment(Clock::system()));
            batches("a:1|g\n").iter().for_each(|batch| output.submit(batch));
            let status = wait(&output, name, |status| {
                status.received.points == 1 && idle(status)
            })
            .await;
            assert!(
                status.healthy && status.balances(),
                "{name}, {answer:?}: {status:#?}"
            );
            assert_eq!(status.endpoints[0].delivered.points, 1, "{name}, {answer:?}");
            assert_eq!(intake.requests().len(), 1, "{name}, {answer:?}");
            output.shutdown(DEADLINE).await;
        }
    }
}

/// A receiver that sends informational answers as fast as it can and never the real one delays neither another output nor an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn informational_answers_without_end_delay_nothing() {
    let flood = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", flood.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in flood.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let answers = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(10_000);
                while std::io::Write::write_all(&mut stream, &answers).is_ok() {}
            });
        }
    });
    let good = Intake::start(|_| taken()).await;
    // The flood takes a core for as long as a request may last.
    let mut impatient = delivery();
    impatient.timeout = Duration::from_secs(1);
    for name in OVER_HTTP {
        let flooded = start_output(name, &url, impatient.clone(), &environment(Clock::system()));
        let output = start_output(name, &good.url(), delivery(), &environment(Clock::system()));
        for bucket in 0..20 {
            for batch in batches_at(BUCKET + bucket * 10, "a:1|g\n") {
                flooded.submit(&batch);
                output.submit(&batch);
            }
        }
        let status = wait(&output, name, |status| {
            status.received.points >= 20 && idle(status)
        })
        .await;
        assert!(
            status.healthy && status.endpoints[0].dropped.is_empty(),
            "{name}: {status:#?}"
        );
        wait(&flooded, name, |status| !status.endpoints[0].healthy).await;
        let ended = tokio::time::timeout(DEADLINE, flooded.shutdown(Duration::ZERO)).await;
        ended.unwrap_or_else(|_| panic!("{name} does not end"));
        output.shutdown(DEADLINE).await;
    }
}

/// A redirect, a failure of the server, and a status that nobody knows: the next attempt may meet something else, at every output.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_refuses_nothing_is_retried() {
    for name in OVER_HTTP {
        for status in [300, 302, 307, 308, 399, 429, 503, 600, 999] {
            let mut is_first = true;
            let intake = Intake::start(move |request| {
                if request.method == "POST" && std::mem::take(&mut is_first) {
                    return Reply::Full(status, vec![("location", "http://127.0.0.1:1/".into())], "");
                }
                taken()
            })
            .await;
            let output = start_output(name, &intake.url(), delivery(), &environment(Clock::system()));
            batches("a:1|g\n").iter().for_each(|batch| output.submit(batch));
            let ended = wait(&output, name, |status| status.received.points > 0 && idle(status)).await;
            let endpoint = &ended.endpoints[0];
            assert_eq!(endpoint.delivered, ended.received, "{name}, {status}: {ended:#?}");
            assert!(endpoint.dropped.is_empty(), "{name}, {status}: {ended:#?}");
            assert_eq!(
                endpoint.counts[OutputCounter::Retries],
                1,
                "{name}, {status}: {ended:#?}"
            );
            output.shutdown(DEADLINE).await;
        }
    }
}

/// Permanently refused payloads are dropped and counted, and later ones arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_delay_nothing() {
    for name in OVER_HTTP {
        let mut is_first = true;
        let intake = Intake::start(move |request| {
            // Keys are asked about on the side.
            if request.method == "POST" && std::mem::take(&mut is_first) {
                return Reply::Full(413, vec![], "too much");
            }
            // One series is refused whenever it comes.
            if request.method == "POST" && request.plain().windows(2).any(|two| two == b"a1") {
                return Reply::Full(400, vec![], "no");
            }
            taken()
        })
        .await;
        let mut one_by_one = delivery();
        one_by_one.concurrency = 1;
        let output = start_output(name, &intake.url(), one_by_one, &environment(Clock::system()));
        for i in 0..6 {
            let batches = batches_at(BUCKET + i * 10, &format!("a{i}:1|g\n"));
            batches.iter().for_each(|batch| output.submit(batch));
        }
        let status = wait(&output, name, |status| {
            status.received.points >= 6 && idle(status)
        })
        .await;
        assert!(status.balances() && status.healthy, "{name}: {status:#?}");
        let endpoint = &status.endpoints[0];
        let rejected = endpoint.dropped[&Reason::Rejected].points;
        assert_eq!(
            (endpoint.dropped.len(), endpoint.delivered.points + rejected),
            (1, status.received.points),
            "{name}: {status:#?}"
        );
        assert!(
            rejected >= 2 && endpoint.delivered.points >= 4,
            "{name}: {status:#?}"
        );
        assert_eq!(
            (
                endpoint.counts[OutputCounter::Retries],
                endpoint.counts[OutputCounter::RefusedSeries]
            ),
            (0, 1),
            "{name}: {status:#?}"
        );
        output.shutdown(DEADLINE).await;
    }
}

/// A key or token that is refused may be replaced: until then everything is kept, and asked about seldom.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_key_loses_nothing() {
    for (name, refusal) in OVER_HTTP
        .into_iter()
        .flat_map(|name| [(name, 401), (name, 403), (name, 407)])
    {
        let is_valid = std::sync::Arc::new(AtomicBool::new(false));
        let accepts = is_valid.clone();
        let intake = Intake::start(move |_| {
            if accepts.load(Ordering::SeqCst) {
                return taken();
            }
            Reply::Full(refusal, vec![], "who are you")
        })
        .await;
        let (clock, driver) = Clock::driven(BUCKET);
        let mut settings = delivery();
        settings.backoff_max = Duration::from_secs(64);
        let output = start_output(name, &intake.url(), settings, &environment(clock));
        let mut received = 0;
        for i in 0..18 {
            let batches = batches_at(BUCKET + i * 10, &format!("a{i}:1|g\n"));
            batches.iter().for_each(|batch| output.submit(batch));
            let came = |status: &OutputStatus| {
                let pending = status.endpoints[0].pending;
                status.received.points > received && (pending.inbox + pending.open_payloads).is_zero()
            };
            received = wait(&output, name, came).await.received.points;
            settle(&output, &driver, received).await;
        }
        let status = output.status();
        let endpoint = &status.endpoints[0];
        assert!(!status.healthy && status.balances(), "{name}: {status:#?}");
        assert_eq!(
            (endpoint.dropped.len(), endpoint.pending.total()),
            (0, status.received),
            "{name}"
        );
        let error = &endpoint.last_error.as_ref().unwrap().message;
        assert!(
            error.contains(&refusal.to_string()) && error.contains("payloads wait for"),
            "{name}: {error}"
        );
        // Three minutes at 32 to 64 s.
        let attempts = intake.requests().len();
        assert!((3..=7).contains(&attempts), "{name}: {attempts} attempts");
        // A sender with another key need not wait.
        is_valid.store(true, Ordering::SeqCst);
        output.retry_now();
        let status = wait(&output, name, |status| {
            idle(status) && status.received.points >= received
        })
        .await;
        let endpoint = &status.endpoints[0];
        assert_eq!(endpoint.delivered, status.received, "{name}");
        assert!(
            status.healthy && endpoint.last_error.is_none(),
            "{name}: {status:#?}"
        );
        output.shutdown(DEADLINE).await;
    }
}

/// The end of the process does not wait for payloads in a disk queue, whatever is wrong with the backend; the next process delivers it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_does_not_wait_for_payloads_on_disk() {
    for (name, fault) in OVER_HTTP
        .into_iter()
        .flat_map(|name| ["fails", "hangs", "nobody listens", "refuses the key"].map(|fault| (name, fault)))
    {
        let what = format!("{name}, {fault}");
        let is_well = std::sync::Arc::new(AtomicBool::new(false));
        let script = is_well.clone();
        let intake = Intake::start(move |_| match fault {
            _ if script.load(Ordering::SeqCst) => taken(),
            "fails" => Reply::Status(503),
            "hangs" => Reply::Hang,
            "refuses the key" => Reply::Status(403),
            _ => Reply::Raw(b""),
        })
        .await;
        let directory = tempfile::tempdir().unwrap();
        let mut kept = delivery();
        kept.disk_path = directory.path().display().to_string();
        kept.disk_bytes_max = 64 << 20;
        let first = start_output(name, &intake.url(), kept.clone(), &environment(Clock::system()));
        for i in 0..3 {
            let batches = batches_at(BUCKET + i * 10, "a:1|c\nb:2|g\n");
            batches.iter().for_each(|batch| first.submit(batch));
        }
        intake.wait(1).await;
        // An hour would be the wait for the rest.
        let stopped = tokio::time::timeout(DEADLINE, first.shutdown(Duration::from_secs(3600)));
        assert!(stopped.await.is_ok(), "{what}");
        let status = first.status();
        let endpoint = &status.endpoints[0];
        assert!(
            status.balances() && endpoint.dropped.is_empty(),
            "{what}: {status:#?}"
        );
        assert!(
            status.is_safe() && !endpoint.pending.disk.is_zero(),
            "{what}: {status:#?}"
        );
        let left = endpoint.pending.disk;
        drop(first);
        is_well.store(true, Ordering::SeqCst);
        let second = start_output(name, &intake.url(), kept, &environment(Clock::system()));
        let status = wait(&second, &what, idle).await;
        assert_eq!(
            (status.endpoints[0].restored, status.endpoints[0].delivered),
            (left, left),
            "{what}"
        );
        second.shutdown(DEADLINE).await;
    }
}

/// Every attempt to deliver a payload carries the same key, in the next process too, and no two payloads do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_of_one_payload_have_one_key() {
    for name in OVER_HTTP {
        let directory = tempfile::tempdir().unwrap();
        let (intake, reachable) = Intake::that_can_be_away(false).await;
        let mut kept = delivery();
        kept.disk_path = directory.path().display().to_string();
        kept.disk_bytes_max = 64 << 20;
        let first = start_output(name, &intake.url(), kept.clone(), &environment(Clock::system()));
        for i in 0..3 {
            let batches = batches_at(BUCKET + i * 10, "a:1|c\nb:2|g\n");
            batches.iter().for_each(|batch| first.submit(batch));
        }
        wait(&first, name, |status| {
            // All are on disk: a stop without time drops what is not encoded yet.
            status.endpoints[0].counts[OutputCounter::AttemptsFailed] >= 2 && status.is_safe()
        })
        .await;
        first.shutdown(Duration::ZERO).await;
        drop(first);
        reachable.store(true, Ordering::SeqCst);
        let second = start_output(name, &intake.url(), kept, &environment(Clock::system()));
        wait(&second, name, idle).await;
        second.shutdown(DEADLINE).await;
        let mut bodies: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut repeated = 0;
        for request in intake.requests() {
            let key = request.header("idempotency-key").to_owned();
            assert!(
                key.len() == 34 && key.starts_with('"') && key.ends_with('"'),
                "{name}: {key}"
            );
            if let Some(before) = bodies.insert(key, request.body.clone()) {
                assert_eq!(before, request.body, "{name}");
                repeated += 1;
            }
        }
        let mut distinct: Vec<&Vec<u8>> = bodies.values().collect();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), bodies.len(), "{name}: a body has one key");
        assert!(
            bodies.len() >= 3 && repeated >= 1,
            "{name}: {repeated} of {}",
            bodies.len()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_is_honoured() {
    for name in OVER_HTTP {
        let first = AtomicBool::new(true);
        let intake = Intake::start(move |request| {
            if request.method == "POST" && first.swap(false, Ordering::SeqCst) {
                return Reply::Full(429, vec![("retry-after", "100".into())], "slow down");
            }
            taken()
        })
        .await;
        let (clock, driver) = Clock::driven(BUCKET);
        let output = start_output(name, &intake.url(), delivery(), &environment(clock));
        batches("a:1|g\n").iter().for_each(|batch| output.submit(batch));
        let status = wait(&output, name, |status| status.endpoints[0].last_error.is_some()).await;
        assert_eq!(status.endpoints[0].retry_in_seconds, Some(100), "{name}");
        driver.advance(Duration::from_secs(99));
        // A healthy payload would take milliseconds; this asks the same endpoint task twice over.
        let more = batches_at(BUCKET + 10, "a:1|g\n");
        more.iter().for_each(|batch| output.submit(batch));
        wait(&output, name, |status| {
            status.endpoints[0].pending.memory.points == 2
        })
        .await;
        assert_eq!(intake.requests().len(), 1, "{name}");
        driver.advance(Duration::from_secs(1));
        wait(&output, name, |status| status.endpoints[0].delivered.points == 2).await;
        assert_eq!(intake.requests().len(), 3, "{name}");
        output.shutdown(DEADLINE).await;
    }
}

/// HTTPS goes through the proxy end to end: the backend gets everything, the proxy learns a host name and no key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_a_tunnel() {
    for name in OVER_HTTP {
        let (acceptor, certificate) = tls();
        let intake = Intake::start_tls(acceptor, |_| taken()).await;
        let (proxy, asked) = tunnelling_proxy().await;
        let directory = tempfile::tempdir().unwrap();
        let authority = directory.path().join("ca.pem");
        std::fs::write(&authority, certificate).unwrap();
        let host = format!("localhost:{}", intake.address.port());
        let mut settings = delivery();
        settings.ca_file = authority.display().to_string();
        settings.proxy = proxy.replace("http://", "http://user:secret@");
        let around = environment(Clock::system());
        let output = start_output(name, &format!("https://{host}"), settings, &around);
        for i in 0..5 {
            batches_at(BUCKET + i * 10, "a:1|g\nd:1|d\n")
                .iter()
                .for_each(|batch| output.submit(batch));
        }
        let status = wait(&output, name, |status| {
            status.received.points >= 10 && idle(status)
        })
        .await;
        assert!(status.healthy && status.balances(), "{name}: {status:#?}");
        assert_eq!(status.endpoints[0].delivered, status.received, "{name}");
        let requests = intake.requests();
        assert!(requests.len() >= 5, "{name}");
        if name == "datadog" {
            assert!(requests.iter().all(|request| request.header("dd-api-key") == KEY));
            assert_eq!(decode(&requests).len(), 10, "a payload of each sort per bucket");
        }
        let asked = asked.lock().unwrap().clone();
        assert!(!asked.is_empty());
        for head in asked {
            let first = format!("CONNECT {host} HTTP/1.1\r\n");
            assert!(head.starts_with(&first), "{name}: {head}");
            let password = "proxy-authorization: basic dxnlcjpzzwnyzxq=";
            assert!(head.to_lowercase().contains(password), "{name}: {head}");
            assert!(!head.contains(KEY), "{name}: {head}");
        }
        output.shutdown(DEADLINE).await;
        assert!(!format!("{:?}", output.status()).contains("secret"));
    }
}

/// The backend is down for an hour of driven time, in the middle of which the process ends; the next one finds on disk what the
/// first could not deliver.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hours_outage_across_a_restart() {
    const BUCKETS: i64 = 181;
    for name in OVER_HTTP {
        let directory = tempfile::tempdir().unwrap();
        let (intake, reachable) = Intake::that_can_be_away(true).await;
        let mut kept = delivery();
        kept.disk_path = directory.path().display().to_string();
        kept.disk_bytes_max = 64 << 20;
        let mut total = 0;
        let (mut unix, mut restored) = (BUCKET, 0);
        for life in 0..3 {
            let (clock, driver) = Clock::driven(unix);
            let mut around = environment(clock);
            // A queue that memory could not hold.
            around.memory_bytes_max = 4096;
            reachable.store(life == 2, Ordering::SeqCst);
            let output = start_output(name, &intake.url(), kept.clone(), &around);
            assert_eq!(output.status().endpoints[0].restored.points, restored, "{name}");
            for i in 0..BUCKETS {
                total += i;
                step(
                    &output,
                    &driver,
                    unix + i * 10,
                    &format!("a:{i}|c\nb:{i}|g|#k:v\nd:{}|d\n", i + 1),
                )
                .await;
            }
            unix += 10 * BUCKETS + 10;
            if life == 2 {
                let mut seconds = 0;
                while !idle(&output.status()) {
                    driver.advance(Duration::from_secs(1));
                    tokio::task::yield_now().await;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    seconds += 1;
                    assert!(seconds < 60_000, "{name}: {:#?}", output.status());
                }
            }
            output
                .shutdown(if life == 2 { DEADLINE } else { Duration::ZERO })
                .await;
            let status = output.status();
            assert!(status.balances(), "{name}: {status:#?}");
            assert!(status.endpoints[0].dropped.is_empty(), "{name}: {status:#?}");
            restored = status.endpoints[0].pending.disk.points;
            assert_eq!(restored == 0, life == 2, "{name}");
        }
        // Every life's counter is there as a whole.
        let sum = match name {
            "datadog" => {
                let points = decode(&intake.requests()).into_iter();
                let series =
                    points.flat_map(|payload| payload["series"].as_array().cloned().unwrap_or_default());
                let of_a = series.filter(|one| one["metric"] == "a").map(|one| {
                    let point = &one["points"][0];
                    let rate = point.get("value").map_or(0.0, |value| value.as_f64().unwrap());
                    (point["timestamp"].as_i64().unwrap(), 10.0 * rate)
                });
                // A repeated point replaces the stored one.
                of_a.collect::<BTreeMap<i64, f64>>().values().sum()
            }
            "influx" => {
                let mut points = Samples::new();
                for request in intake.requests() {
                    influx_lines(&request.plain(), "a", &mut points);
                }
                // A repeated point replaces the stored one.
                points.into_iter().collect::<BTreeMap<u64, f64>>().values().sum()
            }
            "otlp delta" => of_a(&intake, |body, out| otlp_numbers(body, "a", out))
                .iter()
                .map(|(_, value)| value)
                .sum(),
            "otlp cumulative" => increase(&of_a(&intake, |body, out| otlp_numbers(body, "a", out))),
            "remote_write 1.0" => increase(&of_a(&intake, |body, out| samples_1(body, "a_total", out))),
            _ => increase(&of_a(&intake, |body, out| samples_2(body, "a_total", out))),
        };
        assert!((sum - total as f64).abs() < 1e-6, "{name}: {sum} of {total}");
    }
}

/// One bucket, and as much time.
async fn step(output: &Delivery, driver: &Driver, bucket: i64, messages: &str) {
    driver.advance(Duration::from_secs(10));
    let before = output.status().received.points;
    let batches = batches_at(bucket, messages);
    batches.iter().for_each(|batch| output.submit(batch));
    wait(output, "encoded", |status| {
        let pending = &status.endpoints[0].pending;
        status.received.points > before && pending.inbox.is_zero() && pending.open_payloads.is_zero()
    })
    .await;
}

/// The samples of the counter `a` in the order in which they came.
fn of_a(intake: &Intake, read: impl Fn(&[u8], &mut Samples)) -> Samples {
    let mut samples = Vec::new();
    for request in intake.requests() {
        read(&request.plain(), &mut samples);
    }
    // Unanswered points are sent again; otherwise time never goes back.
    let mut newest = 0;
    let mut once = Vec::new();
    let mut seen: BTreeMap<u64, f64> = BTreeMap::new();
    for (at, value) in samples {
        match seen.insert(at, value) {
            Some(before) => assert_eq!(before.to_bits(), value.to_bits(), "a repeated sample is the same"),
            None => {
                assert!(at > newest, "{at} after {newest}");
                newest = at;
                once.push((at, value));
            }
        }
    }
    once
}

/// A fall is a restart from zero, and so is what is no number.
fn increase(samples: &Samples) -> f64 {
    let (mut before, mut sum) = (0.0, 0.0);
    for &(_, value) in samples {
        let value = if value.is_nan() { 0.0 } else { value };
        sum += if value < before { value } else { value - before };
        before = value;
    }
    sum
}
