//! Requests of remote write, read with Prometheus's own definitions, and its reaction to answers.

use crate::support;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;
use support::*;
use weir_aggregate::Expansion;
use weir_output::OutputCounter;
use weir_output::delivery::{Clock, Delivery, Reason};
use weir_output::remote_write::{RemoteWriteSettings, RemoteWriteVersion};
use weir_output::settings::Start;

fn start(settings: &RemoteWriteSettings, clock: Clock) -> Delivery {
    settings
        .start(
            "remote_write",
            &Arc::new(Expansion::default()),
            &environment(clock),
        )
        .unwrap()
}

/// A 2.0 answer that says that everything was written.
fn all_written() -> Reply {
    let header = "x-prometheus-remote-write-samples-written";
    Reply::Full(204, vec![(header, "1000000".into())], "")
}

/// One sample: its time, its value or the count of its histogram, whether it ends the series.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    at: i64,
    value: f64,
    stale: bool,
    start: i64,
}

/// The samples of each series in the order in which they came. Checks what must hold for every request.
fn series(requests: &[Json]) -> BTreeMap<String, Vec<Sample>> {
    let mut all: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
    for request in requests {
        let mut of_request = std::collections::BTreeSet::new();
        for one in request["series"].as_array().unwrap() {
            let labels: Vec<&str> = one["labels"]
                .as_array()
                .unwrap()
                .iter()
                .map(|label| label.as_str().unwrap())
                .collect();
            let pairs: Vec<&[&str]> = labels.chunks(2).collect();
            assert!(pairs.is_sorted_by(|a, b| a[0] < b[0]), "{labels:?}");
            assert!(pairs.iter().all(|pair| !pair[1].is_empty()), "{labels:?}");
            let text: Vec<String> = pairs
                .iter()
                .map(|pair| format!("{}={}", pair[0], pair[1]))
                .collect();
            let text = text.join(",");
            assert!(of_request.insert(text.clone()), "{text} twice in a request");
            let samples = one["samples"].as_array().cloned().unwrap_or_default();
            let histograms = one["histograms"].as_array().cloned().unwrap_or_default();
            assert_eq!(samples.len() + histograms.len(), 1, "{one}");
            let number = |value: &Json, name: &str| value.get(name).and_then(Json::as_i64).unwrap_or(0);
            let sample = match (samples.first(), histograms.first()) {
                (Some(sample), _) => Sample {
                    at: number(sample, "timestamp"),
                    value: sample.get("value").and_then(Json::as_f64).unwrap_or(0.0),
                    stale: false,
                    start: number(sample, "start_timestamp"),
                },
                (_, Some(histogram)) => {
                    let count = &histogram["Count"];
                    Sample {
                        at: number(histogram, "timestamp"),
                        value: count.get("count_int").and_then(Json::as_f64).unwrap_or(0.0),
                        stale: false,
                        start: number(histogram, "start_timestamp"),
                    }
                }
                _ => unreachable!("one of them"),
            };
            let of_series = all.entry(text.clone()).or_default();
            assert!(
                of_series.last().is_none_or(|last| last.at < sample.at),
                "{text}: {of_series:?}, {sample:?}"
            );
            of_series.push(sample);
        }
    }
    all
}

/// Staleness markers are NaNs, which JSON does not have: they are taken out and counted before.
fn without_stale(body: Vec<u8>) -> (Vec<u8>, usize) {
    let marker = 0x7ff0_0000_0000_0002u64.to_le_bytes();
    let mut body = body;
    let mut found = 0;
    let mut at = 0;
    while let Some(next) = body[at..].windows(8).position(|window| window == marker) {
        body[at + next..at + next + 8].copy_from_slice(&(-7f64).to_le_bytes());
        at += next + 8;
        found += 1;
    }
    (body, found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_versions_by_the_official_schema() {
    for version in [RemoteWriteVersion::V1, RemoteWriteVersion::V2] {
        let intake = Intake::start(|_| all_written()).await;
        let (clock, driver) = Clock::driven(BUCKET);
        let mut settings = remote_write(&format!("{}/api/v1/write", intake.url()));
        settings.version = version;
        settings.expiry = Duration::from_secs(25);
        settings.labels = BTreeMap::from([("env".into(), "test".into())]);
        let output = start(&settings, clock);
        for (i, messages) in [
            "views:3|c|#Z:1,env:mine\nheat:-1.5|g\nsize:1:2:3|d\ntime:5|ms\n",
            "views:4|c|#Z:1,env:mine\n",
            "views:4|c|#Z:1,env:mine\nsize:9|d\n",
            "views:1|c|#Z:1,env:mine\n",
        ]
        .into_iter()
        .enumerate()
        {
            driver.advance(Duration::from_secs(10));
            batches_at(BUCKET + i as i64 * 10, messages)
                .iter()
                .for_each(|batch| output.submit(batch));
            wait(&output, "settled", |status| {
                idle(status) && status.endpoints[0].counts[OutputCounter::Payloads] as usize > i
            })
            .await;
        }
        output.shutdown(DEADLINE).await;
        let status = output.status();
        assert!(status.balances() && status.healthy, "{status:#?}");
        let requests = intake.requests();
        let number = version as u8 + 1;
        for request in &requests {
            assert_eq!(
                (request.method.as_str(), request.path.as_str()),
                ("POST", "/api/v1/write")
            );
            assert_eq!(request.header("content-encoding"), "snappy");
            let (kind, told) = match version {
                RemoteWriteVersion::V1 => ("application/x-protobuf", "0.1.0"),
                RemoteWriteVersion::V2 => (
                    "application/x-protobuf;proto=io.prometheus.write.v2.Request",
                    "2.0.0",
                ),
            };
            assert_eq!(request.header("content-type"), kind);
            assert_eq!(request.header("x-prometheus-remote-write-version"), told);
        }
        let mut markers = 0;
        let bodies = requests.iter().map(|request| {
            let (body, found) = without_stale(request.plain());
            markers += found;
            body
        });
        let decoded = decode_remote_write(number, bodies.collect::<Vec<_>>());
        let all = series(&decoded);
        let common = "env=test,instance=agent-host";
        let views = &all["Z=1,__name__=views_total,env=mine,instance=agent-host"];
        let start = if number == 2 { BUCKET * 1000 + 2 } else { 0 };
        let values: Vec<f64> = views.iter().map(|sample| sample.value).collect();
        assert_eq!(values, [0.0, 3.0, 7.0, 11.0, 12.0, -7.0]);
        let times: Vec<i64> = views.iter().map(|sample| sample.at - BUCKET * 1000).collect();
        // It begins with its bucket; values at the ends of buckets; the marker right after the last.
        assert_eq!(times[1..5], [10_000, 20_000, 30_000, 40_000]);
        assert!(
            (0..10).contains(&times[0]) && (40_001..40_010).contains(&times[5]),
            "{times:?}"
        );
        assert!(views[..5].iter().all(|sample| if start == 0 {
            sample.start == 0
        } else {
            sample.start == views[0].at
        }));
        let heat: Vec<f64> = all[&format!("__name__=heat,{common}")]
            .iter()
            .map(|sample| sample.value)
            .collect();
        // Repeated while idle, until it expires.
        assert_eq!(heat, [-1.5, -1.5, -1.5, -1.5, -7.0]);
        let size: Vec<f64> = all[&format!("__name__=size,{common}")]
            .iter()
            .map(|sample| sample.value)
            .collect();
        assert_eq!(size, [0.0, 3.0, 3.0, 4.0, 4.0, 0.0]);
        let count: Vec<f64> = all[&format!("__name__=time_count,{common}")]
            .iter()
            .map(|sample| sample.value)
            .collect();
        assert_eq!(count, [0.0, 1.0, 1.0, 1.0, 1.0, -7.0]);
        assert_eq!(all[&format!("__name__=time,{common},quantile=0.5")][0].value, 5.0);
        // views, heat, size, and three series of the timing.
        assert_eq!(markers, 6);
        match version {
            RemoteWriteVersion::V1 => {
                let described: Vec<&Json> = decoded
                    .iter()
                    .flat_map(|request| request["metadata"].as_array().into_iter().flatten())
                    .collect();
                let of = |name: &str| {
                    described
                        .iter()
                        .find(|one| one["metric_family_name"] == name)
                        .unwrap()
                };
                assert_eq!(
                    (&of("views_total")["type"], &of("views_total")["help"]),
                    (&1.into(), &"Counter views".into())
                );
                assert_eq!(
                    (&of("heat")["type"], &of("size")["type"], &of("time")["type"]),
                    (&2.into(), &3.into(), &5.into())
                );
            }
            RemoteWriteVersion::V2 => {
                let mut types: Vec<(&str, &str)> = decoded
                    .iter()
                    .flat_map(|request| request["series"].as_array().unwrap())
                    .map(|one| (one["type"].as_str().unwrap(), one["help"].as_str().unwrap()))
                    .collect();
                types.sort();
                types.dedup();
                let expected = [
                    ("METRIC_TYPE_COUNTER", "Counter views"),
                    ("METRIC_TYPE_GAUGE", "Gauge heat"),
                    ("METRIC_TYPE_HISTOGRAM", "Distribution size"),
                    ("METRIC_TYPE_SUMMARY", "Timing time"),
                ];
                assert_eq!(types, expected);
            }
        }
    }
}

/// The owner of a name comes and goes: the metric that had it meanwhile ends under one name and starts under the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_change_owners() {
    let intake = Intake::start(|_| Reply::Status(200)).await;
    let (clock, driver) = Clock::driven(BUCKET);
    let mut settings = remote_write(&intake.url());
    settings.expiry = Duration::from_secs(25);
    settings.instance_label = false;
    let output = start(&settings, clock);
    for (i, messages) in [
        "a-b:1|g\n",
        "a-b:2|g\na_b:10|g\n",
        "a-b:3|g\n",
        "a-b:4|g\n",
        "a-b:5|g\n",
        "a-b:6|g\n",
    ]
    .into_iter()
    .enumerate()
    {
        driver.advance(Duration::from_secs(10));
        batches_at(BUCKET + i as i64 * 10, messages)
            .iter()
            .for_each(|batch| output.submit(batch));
        wait(&output, "settled", |status| {
            idle(status) && status.received.points > i as u64
        })
        .await;
    }
    output.shutdown(DEADLINE).await;
    assert!(output.status().balances(), "{:#?}", output.status());
    let bodies: Vec<Vec<u8>> = intake
        .requests()
        .iter()
        .map(|request| without_stale(request.plain()).0)
        .collect();
    let all = series(&decode_remote_write(1, bodies));
    let values = |name: &str| -> Vec<f64> { all[name].iter().map(|sample| sample.value).collect() };
    // One ends, the other has the name, until it expires, and the first takes it again; the last mark is the shutdown's.
    assert_eq!(
        values("__name__=a_b"),
        [1.0, -7.0, 10.0, 10.0, 10.0, 10.0, -7.0, 6.0, -7.0]
    );
    let other: Vec<&String> = all.keys().filter(|name| *name != "__name__=a_b").collect();
    assert_eq!(other.len(), 1, "{other:?}");
    assert_eq!(values(other[0]), [2.0, 3.0, 4.0, 5.0, -7.0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_of_version_2() {
    let written = |samples: u64, histograms: u64, status: u16| {
        let headers = vec![
            ("x-prometheus-remote-write-samples-written", samples.to_string()),
            (
                "x-prometheus-remote-write-histograms-written",
                histograms.to_string(),
            ),
        ];
        Reply::Full(status, headers, "")
    };
    let mut replies = VecDeque::from([
        // Three gauges: all; two of them; all but the last with a refusal; none, nor any when each is tried; no word; no such
        // version; later.
        written(3, 0, 204),
        written(2, 0, 200),
        written(2, 0, 400),
        written(0, 0, 400),
        written(0, 0, 400),
        written(0, 0, 400),
        written(0, 0, 400),
        written(0, 0, 400),
        Reply::Status(204),
        Reply::Status(415),
        Reply::Full(429, vec![("retry-after", "0".into())], ""),
        Reply::Status(500),
        written(3, 0, 204),
    ]);
    let intake = Intake::start(move |_| replies.pop_front().unwrap_or_else(all_written)).await;
    let mut settings = remote_write(&intake.url());
    settings.version = RemoteWriteVersion::V2;
    settings.repeat_idle = false;
    let output = start(&settings, Clock::system());
    for i in 0..7 {
        batches_at(BUCKET + i * 10, "a:1|g\nb:1|g\nc:1|g\n")
            .iter()
            .for_each(|batch| output.submit(batch));
        let status = wait(&output, "settled", |status| {
            idle(status) && status.received.points == (i as u64 + 1) * 3
        })
        .await;
        let error = status.endpoints[0]
            .last_error
            .as_ref()
            .map_or("", |error| error.message.as_str());
        match i {
            1 => assert!(error.contains("did not write 1 samples"), "{error}"),
            4 => assert!(error.contains("does not speak version 2.0"), "{error}"),
            5 => assert!(error.contains("this version"), "{error}"),
            _ => {}
        }
    }
    let status = output.status();
    let endpoint = &status.endpoints[0];
    assert_eq!(
        (
            endpoint.delivered.points,
            endpoint.dropped[&Reason::Rejected].points
        ),
        (3 + 2 + 2 + 3, 1 + 1 + 3 + 3 + 3)
    );
    assert!(status.balances());
    output.shutdown(DEADLINE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gauges_older_than_stored_ones_and_series_beyond_the_memory() {
    let intake = Intake::start(|_| Reply::Status(200)).await;
    let mut around = environment(Clock::system());
    around.state_bytes_max = 20_000;
    let output = remote_write(&intake.url())
        .start("remote_write", &Arc::new(Expansion::default()), &around)
        .unwrap();
    let messages: String = (0..1000).map(|i| format!("many:1|c|#i:{i}\n")).collect();
    let all = format!("old:2|g|T1700000005\nold:1|g|T1600000000\n{messages}");
    batches(&all).iter().for_each(|batch| output.submit(batch));
    let status = wait(&output, "settled", |status| {
        idle(status) && status.received.points >= 1002
    })
    .await;
    assert!(status.balances(), "{status:#?}");
    let dropped = &status.endpoints[0].dropped;
    assert_eq!(dropped[&Reason::OutOfOrder].points, 1);
    assert!(
        (500..1000).contains(&dropped[&Reason::Memory].points),
        "{dropped:?}"
    );
    output.shutdown(DEADLINE).await;
    assert!(output.status().balances());
}

/// A sum that overflowed was infinite for good, and NaN after one of the other sign; counters fell with negative samples.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_only_rise_and_sums_stay_finite() {
    let intake = Intake::start(|_| Reply::Status(200)).await;
    let (clock, driver) = Clock::driven(BUCKET);
    let output = start(&remote_write(&intake.url()), clock);
    for (i, messages) in [
        "never:-1|c\nx:1e308|c\ntime:1e308|ms\n",
        "x:1e308|c\ntime:1e308|ms\n",
        "x:-1e308|c\ntime:2|ms\n",
        "x:-1e308|c\n",
        "x:1|c\n",
    ]
    .into_iter()
    .enumerate()
    {
        driver.advance(Duration::from_secs(10));
        let batches = batches_at(BUCKET + i as i64 * 10, messages);
        batches.iter().for_each(|batch| output.submit(batch));
        wait(&output, "settled", |status| {
            idle(status) && status.endpoints[0].counts[OutputCounter::Payloads] as usize > i
        })
        .await;
    }
    output.shutdown(DEADLINE).await;
    let status = output.status();
    assert!(status.balances(), "{status:#?}");
    let dropped = &status.endpoints[0].dropped;
    assert_eq!(dropped[&Reason::NegativeCounter].points, 3, "{dropped:?}");
    assert_eq!(dropped[&Reason::NotFinite].points, 2, "{dropped:?}");
    let bodies = intake.requests();
    let bodies = bodies.iter().map(|request| without_stale(request.plain()).0);
    let series = series(&decode_remote_write(1, bodies.collect::<Vec<_>>()));
    assert!(series.keys().all(|key| !key.contains("never")), "{series:?}");
    for name in ["x_total", "time_sum"] {
        let samples = series.iter().find(|(key, _)| key.contains(name)).unwrap().1;
        let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
        let (_, before_the_end) = values.split_last().unwrap();
        assert!(
            before_the_end.iter().all(|value| value.is_finite()),
            "{name}: {values:?}"
        );
        assert!(before_the_end.is_sorted(), "{name}: {values:?}");
        assert_eq!(before_the_end.last(), Some(&1e308), "{name}: {values:?}");
    }
}
