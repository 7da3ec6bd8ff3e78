//! Backends that misbehave in every way there is, and what the operator sees of it.

use crate::support;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::*;
use weir_aggregate::Expansion;
use weir_output::OutputCounter;
use weir_output::datadog;
use weir_output::delivery::{Clock, Delivery, Reason};
use weir_output::settings::{DatadogSettings, Secret};

fn start(name: &str, settings: &DatadogSettings, clock: Clock) -> Delivery {
    datadog::start(
        name,
        settings,
        Arc::new(Expansion::default()),
        &environment(clock),
    )
    .unwrap()
}

/// One output for each fault beside a healthy one: the healthy one delivers everything, the others name their fault and keep
/// everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_output_delivers_beside_every_fault() {
    let good = Intake::start(|_| Reply::Status(202)).await;
    let plain = Intake::start(|_| Reply::Status(202)).await;
    let hanging = Intake::start(|_| Reply::Hang).await;
    let trickling = Intake::start(|_| Reply::Trickle(b"HTTP/1.1 ")).await;
    let garbling = Intake::start(|_| Reply::Raw(b"\x00\xff garbage \r\n\r\n")).await;
    let closing = Intake::start(|_| Reply::Raw(b"")).await;
    let moved =
        Intake::start(|_| Reply::Full(302, vec![("location", "http://127.0.0.1:1/".into())], "")).await;
    let broken = Intake::start(|_| Reply::Full(500, vec![], "out of\r\ncheese \x1b[31m")).await;
    let busy = Intake::start(|_| Reply::Full(429, vec![("retry-after", "7200".into())], "")).await;
    let faults: [(&str, String, &str); 10] = [
        ("nothing listens", format!("http://{}", dead_address()), "onnect"),
        // A machine whose name server is out of reach does not learn that there is none.
        (
            "no such name",
            "http://intake.invalid:9".into(),
            "dns|no answer within 0.3 s",
        ),
        ("no TLS", format!("https://{}", plain.address), "(Connect)"),
        ("hangs", hanging.url(), "no answer within 0.3 s"),
        ("trickles", trickling.url(), "no answer within 0.3 s|HTTP"),
        ("garbage", garbling.url(), "HTTP"),
        ("closes", closing.url(), "clos|complete"),
        ("redirects", moved.url(), "302 redirects"),
        ("fails", broken.url(), "500 failed: out of cheese [31m"),
        ("rate-limits", busy.url(), "429 asks to slow down"),
    ];
    let batches = batches("a:1|c\nb:2|g\nd:3|d\n");
    let mut settings = datadog("");
    settings.delivery.timeout = Duration::from_millis(300);
    let outputs: Vec<Delivery> = faults
        .iter()
        .map(|(name, url, _)| {
            let mut settings = DatadogSettings {
                url: url.clone(),
                ..settings.clone()
            };
            if *name == "rate-limits" {
                // No other request may run out of time after the answer: that would be the last error for an hour.
                settings.delivery.concurrency = 1;
            }
            start(name, &settings, Clock::system())
        })
        .collect();
    let healthy = start("healthy", &datadog(&good.url()), Clock::system());
    for _ in 0..20 {
        outputs
            .iter()
            .chain([&healthy])
            .for_each(|output| batches.iter().for_each(|batch| output.submit(batch)));
    }
    let status = wait(&healthy, "the healthy output delivers", |status| {
        status.received.points == 60 && idle(status)
    })
    .await;
    assert_eq!(status.endpoints[0].delivered.points, 60);
    for (output, (name, _, error)) in outputs.iter().zip(&faults) {
        let status = wait_for_fault(output, name, error, 60).await;
        let message = &status.endpoints[0].last_error.as_ref().unwrap().message;
        assert!(!message.contains(char::is_control), "{name}: {message}");
    }
    // A server that asks for two hours is asked again after one.
    let waits = outputs.last().unwrap().status().endpoints[0]
        .retry_in_seconds
        .unwrap();
    assert!((3500..=3600).contains(&waits), "{waits}");
    for output in outputs.iter().chain([&healthy]) {
        output.shutdown(Duration::ZERO).await;
        let status = output.status();
        assert!(status.balances() && idle(&status), "{status:#?}");
        let lost = status.endpoints[0]
            .dropped
            .get(&Reason::Shutdown)
            .map_or(0, |items| items.points);
        assert_eq!(
            lost + status.endpoints[0].delivered.points,
            60,
            "what memory alone held is counted"
        );
    }
    assert!(
        moved
            .requests()
            .iter()
            .all(|request| request.header("dd-api-key") == KEY),
        "and the redirect was not followed"
    );
}

/// The status line decides: an answer that breaks off or never ends after it is a delivery like any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_accepting_status_counts_whatever_the_body() {
    for raw in [
        &b"HTTP/1.1 202 Accepted\r\ncontent-length: 100\r\n\r\n{"[..],
        b"HTTP/1.1 202 Accepted\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>",
    ] {
        let intake = Intake::start(move |_| Reply::Raw(raw)).await;
        let output = start("lies", &datadog(&intake.url()), Clock::system());
        batches("a:1|c\n").iter().for_each(|batch| output.submit(batch));
        let status = wait(&output, "accepted", |status| {
            status.received.points == 1 && idle(status)
        })
        .await;
        assert!(status.healthy && status.endpoints[0].delivered.points == 1);
        assert_eq!(intake.requests().len(), 1);
        output.shutdown(DEADLINE).await;
    }
}

/// 413 and 400 are dropped and counted, 503, 404 and 401 come again; nothing else is lost, and what is dropped is no retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_dropped_and_failures_repeated() {
    let answers = [413, 503, 202, 404, 400, 202, 401, 202];
    let count = AtomicUsize::new(0);
    let intake = Intake::start(move |request| {
        if request.method == "GET" {
            return Reply::Status(200);
        }
        Reply::Status(
            answers
                .get(count.fetch_add(1, Ordering::SeqCst))
                .copied()
                .unwrap_or(202),
        )
    })
    .await;
    let mut settings = datadog(&intake.url());
    settings.delivery.concurrency = 1;
    let output = start("datadog", &settings, Clock::system());
    for i in 0..6 {
        batches_at(BUCKET + i * 10, "a:1|c\n")
            .iter()
            .for_each(|batch| output.submit(batch));
    }
    let status = wait(&output, "all settled", |status| {
        status.received.points == 6 && idle(status)
    })
    .await;
    let endpoint = &status.endpoints[0];
    assert_eq!(
        (
            endpoint.delivered.points,
            endpoint.dropped[&Reason::Rejected].points,
            endpoint.counts[OutputCounter::AttemptsFailed],
            endpoint.counts[OutputCounter::Retries]
        ),
        (4, 2, 5, 3)
    );
    assert!(status.balances() && status.healthy);
    assert_eq!(endpoint.last_error, None, "all is well again");
    output.shutdown(DEADLINE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_keys_one_is_revoked() {
    let log = Log::install();
    let revoked = "ffffffffffffffffffffffffffff0bad";
    let intake = Intake::start(move |request| {
        Reply::Status(if request.header("dd-api-key") == revoked {
            403
        } else {
            202
        })
    })
    .await;
    let mut settings = datadog(&intake.url());
    settings.additional_endpoints =
        BTreeMap::from([(intake.url(), vec![Secret::new(revoked), Secret::new(KEY)])]);
    let output = start("datadog", &settings, Clock::system());
    for i in 0..5 {
        batches_at(BUCKET + i * 10, "a:1|c\nd:1|d\n")
            .iter()
            .for_each(|batch| output.submit(batch));
    }
    let status = wait(&output, "all settled", |status| {
        status.received.points == 10
            && status.endpoints[0].pending.total().is_zero()
            && status.endpoints[1].last_error.is_some()
            && status
                .endpoints
                .iter()
                .all(|endpoint| endpoint.details["key"] != "not confirmed yet")
    })
    .await;
    assert_eq!(status.endpoints.len(), 2, "a pair of URL and key counts once");
    let (good, bad) = (&status.endpoints[0], &status.endpoints[1]);
    assert_eq!(
        (good.delivered.points, good.healthy, good.details["key"].as_str()),
        (10, true, "valid")
    );
    // Its payloads wait for another key.
    assert!(bad.dropped.is_empty(), "{bad:?}");
    assert_eq!(
        (
            bad.pending.total().points,
            bad.healthy,
            bad.details["key"].as_str()
        ),
        (10, false, "not valid")
    );
    assert!(
        bad.last_error.as_ref().unwrap().message.contains("403"),
        "{bad:?}"
    );
    assert!(status.balances() && !status.healthy);
    output.shutdown(Duration::ZERO).await;
    let logged = log.text();
    assert!(logged.contains("API key is not valid"), "{logged}");
    for text in [
        format!("{status:?}"),
        serde_json::to_string(&status).unwrap(),
        format!("{settings:?}"),
        logged,
    ] {
        assert!(
            !text.contains(&KEY[..28]) && !text.contains(&revoked[..28]),
            "{text}"
        );
    }
}

/// Everything logged in this process, at every level.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn install() -> Self {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("one test of this file listens");
        log
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// At the end of the process a wait is cut short: what can be delivered by then is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_does_not_wait_out_a_backoff() {
    let first = AtomicBool::new(true);
    let intake = Intake::start(move |request| {
        let fails = request.method == "POST" && first.swap(false, Ordering::SeqCst);
        Reply::Status(if fails { 503 } else { 202 })
    })
    .await;
    let mut settings = datadog(&intake.url());
    settings.delivery.backoff_max = Duration::from_secs(3600);
    let output = start("datadog", &settings, Clock::system());
    batches("a:1|c\n").iter().for_each(|batch| output.submit(batch));
    wait(&output, "the failure", |status| {
        status.endpoints[0].retry_in_seconds.is_some()
    })
    .await;
    output.shutdown(DEADLINE).await;
    assert_eq!(output.status().endpoints[0].delivered.points, 1);
}

/// The network is down for an hour of driven time while a flush closes every ten seconds; afterwards nothing is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hour_without_network() {
    for on_disk in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (intake, reachable) = Intake::that_can_be_away(true).await;
        let (clock, driver) = Clock::driven(BUCKET);
        let mut settings = datadog(&intake.url());
        settings.delivery.backoff_max = Duration::from_secs(64);
        let mut around = environment(clock);
        if on_disk {
            settings.delivery.disk_path = directory.path().display().to_string();
            settings.delivery.disk_bytes_max = 64 << 20;
            // A queue that memory could not hold.
            around.memory_bytes_max = 4096;
        }
        let output = datadog::start("datadog", &settings, Arc::new(Expansion::default()), &around).unwrap();
        let buckets = 400;
        let outage = 20..380;
        let mut attempts_during = 0;
        for i in 0..buckets {
            reachable.store(!outage.contains(&i), Ordering::SeqCst);
            let before = intake.requests().len();
            let bucket = BUCKET + i * 10;
            batches_at(bucket, &format!("a:{i}|c\nb:{i}|g|#k:v\nd:{}|d\n", i + 1))
                .iter()
                .for_each(|batch| output.submit(batch));
            let received = (i as u64 + 1) * 3;
            settle(&output, &driver, received).await;
            if outage.contains(&i) {
                attempts_during += intake.requests().len() - before;
            }
        }
        // An hour at 32 to 64 s between attempts; hammering would be thousands.
        assert!(
            (50..250).contains(&attempts_during),
            "{attempts_during} attempts in an hour"
        );
        let total = buckets as u64 * 3;
        while output.status().endpoints[0].delivered.points < total {
            settle(&output, &driver, total).await;
        }
        let status = output.status();
        assert!(
            status.balances() && idle(&status) && status.healthy,
            "{status:#?}"
        );
        assert!(status.endpoints[0].dropped.is_empty());
        // The backend's rule: a context and a second hold one value, the last to arrive.
        let mut held: HashMap<(String, i64), f64> = HashMap::new();
        for payload in decode(&intake.requests()) {
            for one in payload["series"].as_array().into_iter().flatten() {
                let value = one["points"][0]
                    .get("value")
                    .map_or(0.0, |value| value.as_f64().unwrap());
                held.insert(
                    (
                        one["metric"].as_str().unwrap().into(),
                        one["points"][0]["timestamp"].as_i64().unwrap(),
                    ),
                    value,
                );
            }
            for one in payload["sketches"].as_array().into_iter().flatten() {
                held.insert(
                    (
                        one["metric"].as_str().unwrap().into(),
                        one["dogsketches"][0]["ts"].as_i64().unwrap(),
                    ),
                    one["dogsketches"][0]["sum"].as_f64().unwrap(),
                );
            }
        }
        assert_eq!(held.len() as u64, total);
        for i in 0..buckets {
            let at = |name: &str| held[&(name.to_owned(), BUCKET + i * 10)];
            assert_eq!(
                (at("a"), at("b"), at("d")),
                (i as f64 / 10.0, i as f64, i as f64 + 1.0)
            );
        }
        output.shutdown(DEADLINE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_a_private_authority() {
    let (acceptor, certificate) = tls();
    let intake = Intake::start_tls(acceptor, |_| Reply::Status(202)).await;
    let url = format!("https://localhost:{}", intake.address.port());
    let directory = tempfile::tempdir().unwrap();
    let authority = directory.path().join("ca.pem");
    std::fs::write(&authority, certificate).unwrap();

    let distrusting = start("system's roots", &datadog(&url), Clock::system());
    let mut settings = datadog(&url);
    settings.delivery.ca_file = authority.display().to_string();
    let trusting = start("own authority", &settings, Clock::system());
    for output in [&distrusting, &trusting] {
        batches("a:1|c\n").iter().for_each(|batch| output.submit(batch));
    }
    wait(&trusting, "delivered", |status| {
        status.endpoints[0].delivered.points == 1
    })
    .await;
    let status = wait(&distrusting, "refused", |status| {
        status.endpoints[0].last_error.is_some()
    })
    .await;
    let message = &status.endpoints[0].last_error.as_ref().unwrap().message;
    assert!(message.contains("certificate"), "{message}");
    trusting.shutdown(DEADLINE).await;
    distrusting.shutdown(Duration::ZERO).await;

    std::fs::write(&authority, "no certificate").unwrap();
    for path in [authority.display().to_string(), "/does/not/exist.pem".into()] {
        settings.delivery.ca_file = path.clone();
        let error = datadog::start(
            "x",
            &settings,
            Arc::new(Expansion::default()),
            &environment(Clock::system()),
        )
        .err()
        .unwrap()
        .to_string();
        assert!(
            error.contains("delivery.ca_file") && error.contains(&path) && error.contains("PEM"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_a_proxy() {
    // To a proxy, a request for plain HTTP is sent with the whole URL.
    let proxy = Intake::start(|_| Reply::Status(202)).await;
    let mut settings = datadog("http://intake.invalid/base/");
    settings.delivery.proxy = proxy.url();
    let output = start("datadog", &settings, Clock::system());
    batches("a:1|c\n").iter().for_each(|batch| output.submit(batch));
    let requests = proxy.wait(1).await;
    assert_eq!(requests[0].path, "http://intake.invalid/base/api/v2/series");
    output.shutdown(DEADLINE).await;
    // For HTTPS the proxy is asked for a tunnel and sees no key.
    let tunnel = Intake::start(|request| {
        assert!(!request.headers.contains_key("dd-api-key"));
        Reply::Status(407)
    })
    .await;
    let mut settings = datadog("https://intake.invalid");
    settings.delivery.proxy = tunnel.url();
    let output = start("datadog", &settings, Clock::system());
    batches("a:1|c\n").iter().for_each(|batch| output.submit(batch));
    let requests = tunnel.wait(1).await;
    assert_eq!(
        (requests[0].method.as_str(), requests[0].path.as_str()),
        ("CONNECT", "intake.invalid:443")
    );
    output.shutdown(Duration::ZERO).await;
}

#[test]
fn settings_that_cannot_work_are_refused_with_a_reason() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let check = |change: &dyn Fn(&mut DatadogSettings), part: &str| {
        let mut settings = datadog("http://127.0.0.1:1");
        change(&mut settings);
        let error = datadog::start(
            "x",
            &settings,
            Arc::new(Expansion::default()),
            &environment(Clock::system()),
        )
        .err()
        .unwrap()
        .to_string();
        assert!(error.contains(part) && !error.contains(KEY), "{error}");
    };
    check(
        &|settings| settings.delivery.proxy = ":// no".into(),
        "delivery.proxy",
    );
    check(
        &|settings| settings.api_key = Secret::new(format!("{KEY}\n\u{1}x")),
        "api_key",
    );
    check(
        &|settings| {
            settings.delivery.disk_path = "/dev/null/queue".into();
            settings.delivery.disk_bytes_max = 1 << 20;
        },
        "/dev/null/queue",
    );
}
