//! Series and sketches as columns: what they say, who gets them, and what happens where nobody takes them.

use crate::support;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value as Json;
use support::*;
use weir_aggregate::{Batch, Expansion};
use weir_output::datadog;
use weir_output::delivery::{Clock, Delivery, OutputStatus};
use weir_output::settings::{Compression, DatadogSettings, EndpointFormat, SeriesFormat, SketchesFormat};

const SERIES: &str = "/api/intake/metrics/v3/series";
const SKETCHES: &str = "/api/intake/metrics/v3/sketches";

fn start(settings: &DatadogSettings) -> Delivery {
    let around = environment(Clock::system());
    datadog::start("datadog", settings, Arc::new(Expansion::default()), &around).unwrap()
}

/// Delivers batches and returns the requests that brought them.
async fn deliver(batches: &[Arc<Batch>], change: impl FnOnce(&mut DatadogSettings)) -> Vec<Request> {
    let intake = Intake::start(|_| Reply::Status(202)).await;
    let mut settings = datadog(&intake.url());
    change(&mut settings);
    let output = start(&settings);
    batches.iter().for_each(|batch| output.submit(batch));
    output.shutdown(DEADLINE).await;
    let status = output.status();
    assert!(status.balances() && status.healthy, "{status:?}");
    assert_eq!(status.endpoints[0].delivered, status.received, "{status:?}");
    intake.requests()
}

/// The series or sketches of payloads, sorted, each with sorted tags, as the definitions of the intake's owner read them.
fn decoded(requests: &[Request], list: &str) -> Vec<Json> {
    let payloads = decode(requests);
    let lists = payloads.iter().filter_map(|payload| payload[list].as_array());
    let mut all: Vec<Json> = lists.flatten().cloned().collect();
    // A set of columns has them in the order of their first use.
    for tags in all.iter_mut().filter_map(|one| one["tags"].as_array_mut()) {
        tags.sort_by_key(Json::to_string);
    }
    all.sort_by_key(Json::to_string);
    all
}

/// Shows the first difference alone.
fn assert_same(found: &[Json], expected: &[Json], what: &str) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected, "{what}");
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

/// Each kind, with what the forms distinguish: origins, devices, resources, hosts, timestamps, and values at the edges of types.
fn everything() -> String {
    let mut lines = String::new();
    for i in 0..300 {
        let tags = format!("#env:test,service:s{},shard:{}", i % 7, i % 31);
        lines += &format!("requests.{}:{}|c|{tags}\n", i % 50, i * 3);
        lines += &format!("load.{}:{}.25|g|{tags},device:sd{}\n", i % 20, i, i % 3);
        lines += &format!("latency.{}:{i}:7:{}|h|{tags}\n", i % 10, i * i);
        lines += &format!("size.{}:{i}:{}.5:-3|d|{tags}\n", i % 10, i * 1000);
    }
    for (i, value) in [
        "0",
        "-0.0",
        "-1",
        "0.1",
        "-0.1",
        "16777217",
        "281474976710655",
        "281474976710656",
        "-281474976710657",
        "9007199254740992",
        "9007199254740991",
        "9007199254740993",
        "1e300",
        "-1e-300",
        "0.5",
        "3.4028235e38",
    ]
    .iter()
    .enumerate()
    {
        lines += &format!("edge.{i}:{value}|g\nedge.d{i}:{value}|d\nedge.c{i}:{value}|c|#k:v\n");
    }
    lines += "unique:a|s\nunique:b|s|#x:y\nhosted:1|g|#host:other,k:v\nhosted:2|g|#host:third\nhosted:3|d|#host:other\n";
    lines += "resourced:1|g|#dd.internal.resource:pod:p1,k:v,device:\nresourced:2|g|#dd.internal.resource:bad,k:w\n";
    lines += "jmx:1|g|#dd.internal.jmx_check_name:kafka\njmx:1|d|#dd.internal.jmx_check_name:custom,a:b\n";
    lines += "past:5|g|T1600000000\npast:6|c|T1600000010\nfuture:7|g|T1900000000|#a:b\n";
    lines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_say_what_the_older_form_says() {
    let batches = batches(&everything());
    let older = deliver(&batches, |_| {}).await;
    let (series, sketches) = (decoded(&older, "series"), decoded(&older, "sketches"));
    assert!(
        series.len() > 1500 && sketches.len() > 300,
        "{} and {}",
        series.len(),
        sketches.len()
    );
    for (compression, encoding) in [
        (Compression::Zstd, "zstd"),
        (Compression::Gzip, "gzip"),
        (Compression::None, ""),
    ] {
        for points in [10_000, 7] {
            let requests = deliver(&batches, |settings| {
                settings.form.compression = compression;
                settings.form.series_format = SeriesFormat::V3;
                settings.form.sketches_format = SketchesFormat::V3;
                settings.form.points_per_payload_max = points;
            })
            .await;
            for request in &requests {
                let expected = ["application/x-protobuf", encoding];
                let headers = ["content-type", "content-encoding"].map(|name| request.header(name));
                assert_eq!(headers, expected);
                assert!(
                    [SERIES, SKETCHES].contains(&request.path.as_str()),
                    "{}",
                    request.path
                );
            }
            assert_same(
                &decoded(&requests, "series"),
                &series,
                &format!("{encoding}, {points} points"),
            );
            assert_same(
                &decoded(&requests, "sketches"),
                &sketches,
                &format!("{encoding}, {points} points"),
            );
        }
    }
}

/// Everything that this process logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn logged() -> Log {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // Under `cargo test` another test of this process may listen already.
    drop(tracing::subscriber::set_global_default(subscriber));
    log
}

/// Settings of an output whose intake is one of Datadog's sites, reached through a proxy that is the intake.
fn of_site(proxy: &Intake) -> DatadogSettings {
    let mut settings = datadog("http://app.datadoghq.com/");
    settings.delivery.proxy = proxy.url();
    settings
}

/// The end of the path: through a proxy it is a whole URL.
fn is_at(request: &Request, path: &str) -> bool {
    request.path.ends_with(path)
}

async fn submit(output: &Delivery, batches: &[Arc<Batch>]) -> OutputStatus {
    let before = output.status().received.points;
    batches.iter().for_each(|batch| output.submit(batch));
    wait(output, "delivered", |status| {
        status.received.points > before && idle(status)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_knows_no_columns_gets_the_older_form() {
    let batches = batches(&everything());
    let expected = decoded(&deliver(&batches, |_| {}).await, "series");
    let log = logged();
    for (status, compression) in [(404, Compression::Zstd), (415, Compression::Gzip)] {
        let refuses = move |request: &Request| match is_at(request, SERIES) {
            true => Reply::Status(status),
            false => taken(),
        };
        let intake = Intake::start(refuses).await;
        let mut settings = of_site(&intake);
        settings.form.compression = compression;
        let output = start(&settings);
        assert_eq!(output.status().endpoints[0].details["series"], "v3");
        for round in 0..3 {
            let earlier = intake.requests().len();
            let told = submit(&output, &batches).await;
            assert!(told.balances() && told.healthy, "{told:#?}");
            assert_eq!(told.endpoints[0].delivered, told.received);
            let requests = &intake.requests()[earlier..];
            let refused = requests.iter().filter(|request| is_at(request, SERIES)).count();
            assert_eq!(refused, usize::from(round == 0), "{status}, round {round}");
            let taken: Vec<Request> = requests
                .iter()
                .filter(|request| is_at(request, "/api/v2/series"))
                .cloned()
                .collect();
            assert_same(
                &decoded(&taken, "series"),
                &expected,
                &format!("{status}, round {round}"),
            );
        }
        let shown = output.status().endpoints[0].details["series"].clone();
        assert!(shown.starts_with("v2"), "{shown}");
        output.shutdown(DEADLINE).await;
        let text = String::from_utf8(std::mem::take(&mut *log.0.lock().unwrap())).unwrap();
        let lines = text
            .lines()
            .filter(|line| line.contains("does not take series as v3"));
        assert_eq!(lines.count(), 1, "{text}");
    }
}

/// Series with long tags that they share are short as columns. In the older form they are several payloads, and what is delivered of them
/// is not sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rewritten_payload_in_several_parts_arrives_once() {
    let tags: Vec<String> = (0..30).map(|i| format!("tag{i}:{}", "x".repeat(40))).collect();
    let tags = tags.join(",");
    let lines: String = (0..6000).map(|i| format!("g{i}:{i}|g|#{tags}\n")).collect();
    let mut seen = 0;
    let script = move |request: &Request| {
        if is_at(request, SERIES) {
            return Reply::Status(404);
        }
        seen += usize::from(is_at(request, "/api/v2/series"));
        // The second part fails at first.
        if seen == 2 { Reply::Status(503) } else { taken() }
    };
    let intake = Intake::start(script).await;
    let output = start(&of_site(&intake));
    let status = submit(&output, &batches(&lines)).await;
    assert!(status.balances() && status.healthy, "{status:#?}");
    assert_eq!(status.endpoints[0].delivered.points, 6000);
    output.shutdown(DEADLINE).await;
    let mut requests = intake.requests();
    requests.retain(|request| is_at(request, "/api/v2/series"));
    let bodies: Vec<&Vec<u8>> = requests.iter().map(|request| &request.body).collect();
    assert_eq!(bodies.len(), 3, "two parts, one of them twice");
    assert!(bodies[1] == bodies[2] && bodies[0] != bodies[1]);
    let keys = [0, 1, 2].map(|at| requests[at].header("idempotency-key"));
    assert!(keys[1] == keys[2] && keys[0] != keys[1], "{keys:?}");
    requests.remove(1);
    assert_eq!(decoded(&requests, "series").len(), 6000);
}

/// Two endpoints: rows are encoded once, and the one without columns gets the same series.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_endpoint_gets_its_form() {
    let first = Intake::start(|_| taken()).await;
    let second = Intake::start(|_| taken()).await;
    let mut settings = datadog(&first.url());
    let keys = vec![weir_output::settings::Secret::new(KEY)];
    settings.additional_endpoints.insert(second.url() + "/", keys);
    settings
        .form
        .series_format_of
        .insert(first.url() + "/", EndpointFormat::V3);
    let output = start(&settings);
    let status = submit(&output, &batches(&everything())).await;
    assert!(status.balances() && status.healthy, "{status:#?}");
    output.shutdown(DEADLINE).await;
    let mut series = Vec::new();
    for (intake, path, other) in [
        (&first, SERIES, "/api/v2/series"),
        (&second, "/api/v2/series", SERIES),
    ] {
        let requests = intake.requests();
        assert!(!requests.iter().any(|request| is_at(request, other)), "{path}");
        assert!(requests.iter().any(|request| is_at(request, path)), "{path}");
        series.push(decoded(&requests, "series"));
    }
    assert!(!series[0].is_empty());
    assert_same(&series[0], &series[1], "both forms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_datadog_gets_columns_unasked() {
    for (site, compression, expected) in [
        (true, Compression::Zstd, SERIES),
        (true, Compression::Gzip, SERIES),
        (true, Compression::Zlib, "/api/v2/series"),
        (true, Compression::None, "/api/v2/series"),
        (false, Compression::Zstd, "/api/v2/series"),
    ] {
        let intake = Intake::start(|_| taken()).await;
        let mut settings = if site {
            of_site(&intake)
        } else {
            datadog(&intake.url())
        };
        settings.form.compression = compression;
        let output = start(&settings);
        submit(&output, &batches("a:1|g\n")).await;
        output.shutdown(DEADLINE).await;
        let requests = intake.requests();
        let at = requests.iter().filter(|request| is_at(request, expected)).count();
        assert_eq!(at, 1, "{site} {compression:?}: {requests:?}");
    }
}

/// A payload on disk keeps its bytes and its form. After a restart with other settings, or before an intake that takes no columns, it
/// arrives in the older form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_on_disk_are_sent_as_they_were() {
    for format in [SeriesFormat::V3, SeriesFormat::V2] {
        let directory = tempfile::tempdir().unwrap();
        let (intake, reachable) = Intake::that_can_be_away(false).await;
        let mut settings = datadog(&intake.url());
        settings.form.series_format = SeriesFormat::V3;
        settings.form.sketches_format = SketchesFormat::V3;
        settings.delivery.disk_path = directory.path().display().to_string();
        settings.delivery.disk_bytes_max = 64 << 20;
        let output = start(&settings);
        batches(&everything())
            .iter()
            .for_each(|batch| output.submit(batch));
        wait(&output, "an attempt", |status| {
            status.endpoints[0].last_error.is_some()
        })
        .await;
        output.shutdown(Duration::from_millis(100)).await;
        let received = output.status().received;
        drop(output);
        // One that was on its way when the first output ended is not among those of the second.
        intake.wait_for_ended_clients().await;
        let attempted = intake.requests();

        reachable.store(true, std::sync::atomic::Ordering::SeqCst);
        settings.form.series_format = format;
        let output = start(&settings);
        let status = wait(&output, "the rest", |status| {
            status.endpoints[0].delivered == received && idle(status)
        })
        .await;
        assert!(status.balances() && status.healthy, "{status:#?}");
        output.shutdown(DEADLINE).await;
        let arrived = &intake.requests()[attempted.len()..];
        let expected = decoded(&deliver(&batches(&everything()), |_| {}).await, "series");
        assert_same(&decoded(arrived, "series"), &expected, &format!("{format:?}"));
        let at = |path: &str| arrived.iter().filter(|request| request.path == path).count();
        match format {
            SeriesFormat::V3 => {
                assert_eq!((at(SERIES) > 0, at("/api/v2/series")), (true, 0));
                let body = |request: &Request| request.body.clone();
                let before: Vec<Vec<u8>> = attempted.iter().map(body).collect();
                let same = arrived.iter().filter(|request| before.contains(&request.body));
                assert!(
                    same.count() >= 1,
                    "what was attempted is sent again, byte for byte"
                );
            }
            _ => assert_eq!((at(SERIES), at("/api/v2/series") > 0), (0, true)),
        }
        assert!(at(SKETCHES) > 0);
    }
}
