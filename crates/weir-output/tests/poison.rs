//! A receiver that refuses whole requests for the sake of one series: the series is found, named and left out, and everything
//! else arrives.

use crate::support;

use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::Value as Json;
use support::wire::{Samples, influx_lines, otlp_numbers};
use support::*;
use weir_aggregate::Expansion;
use weir_output::OutputCounter;
use weir_output::delivery::{Clock, Delivery, OutputStatus, Reason};
use weir_output::settings::{Compression, SeriesFormat, SketchesFormat, Start};

/// Everything that this process logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn has(request: &Request, text: &str) -> bool {
    let plain = request.plain();
    plain.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Refuses every payload with one of these texts in it.
async fn squeamish(status: u16, texts: &'static [&'static str]) -> Intake {
    Intake::start(move |request| {
        if request.method == "POST" && texts.iter().any(|text| has(request, text)) {
            return Reply::Full(status, vec![], "label name is not valid");
        }
        taken()
    })
    .await
}

/// A thousand gauges, and the series that nobody likes.
fn messages(round: i64, poison: &str) -> String {
    let gauges = |range: std::ops::Range<i64>| -> String {
        range.map(|i| format!("g{i}:{round}.5|g|#k:v{i}\n")).collect()
    };
    gauges(0..600) + poison + &gauges(600..1000)
}

async fn deliver(output: &Delivery, name: &str, round: i64, messages: &str) -> OutputStatus {
    let before = output.status().received.points;
    let batches = batches_at(BUCKET + round * 10, messages);
    batches.iter().for_each(|batch| output.submit(batch));
    wait(output, name, |status| {
        status.received.points > before && idle(status)
    })
    .await
}

/// Received gauges, read with the protocol's own decoder if there is one.
fn arrived(name: &str, requests: &[Request], gauge: &str) -> Vec<f64> {
    let bodies = requests.iter().map(Request::plain);
    let numbers = |body: Vec<u8>| {
        let mut samples = Samples::new();
        match name {
            "influx" => influx_lines(&body, gauge, &mut samples),
            _ => otlp_numbers(&body, gauge, &mut samples),
        }
        samples.into_iter().map(|(_, value)| value).collect::<Vec<f64>>()
    };
    match name {
        "datadog" => values(&decode(requests), "metric", gauge, "points"),
        "remote_write 1.0" => values(&decode_remote_write(1, bodies), "labels", gauge, "samples"),
        "remote_write 2.0" => values(&decode_remote_write(2, bodies), "labels", gauge, "samples"),
        _ => bodies.flat_map(numbers).collect(),
    }
}

fn values(decoded: &[Json], key: &str, gauge: &str, samples: &str) -> Vec<f64> {
    let is_gauge = |series: &&Json| match &series[key] {
        Json::String(name) => name == gauge,
        labels => labels.as_array().unwrap().contains(&Json::from(gauge)),
    };
    let all = decoded
        .iter()
        .flat_map(|payload| payload["series"].as_array().into_iter().flatten());
    let found = all
        .filter(is_gauge)
        .flat_map(|series| series[samples].as_array().unwrap().clone());
    found.map(|sample| sample["value"].as_f64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_series_costs_itself_alone() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).expect("one test of this file listens");
    for (name, status) in OVER_HTTP
        .into_iter()
        .map(|name| (name, 400))
        .chain([("otlp delta", 500), ("otlp cumulative", 500)])
    {
        let intake = squeamish(status, &["poison"]).await;
        let output = start_output(name, &intake.url(), delivery(), &environment(Clock::system()));
        let first = deliver(&output, name, 0, &messages(0, "poison:1|g|#日本:x\n")).await;
        let endpoint = &first.endpoints[0];
        assert!(first.balances(), "{name}: {first:#?}");
        assert_eq!(
            (
                endpoint.delivered.points,
                endpoint.dropped[&Reason::Rejected].points,
                endpoint.counts[OutputCounter::RefusedSeries]
            ),
            (1000, 1, 1),
            "{name}: {first:#?}"
        );
        // The whole, then one half or the other at ten levels, both at the worst.
        let found_after = intake.requests().len();
        assert!(found_after <= 22, "{name}: {found_after} requests");
        // It comes again: refused once with all the others, left out after that.
        let second = deliver(&output, name, 1, &messages(1, "poison:2|g|#日本:x\n")).await;
        let endpoint = &second.endpoints[0];
        assert_eq!(
            (
                endpoint.delivered.points,
                endpoint.dropped[&Reason::Rejected].points,
                endpoint.counts[OutputCounter::RefusedSeries]
            ),
            (2000, 2, 1),
            "{name}: {second:#?}"
        );
        assert_eq!(intake.requests().len(), found_after + 2, "{name}");
        let error = &endpoint.last_error.as_ref().unwrap().message;
        // Remote write has a rule of its own for names of labels.
        let tag = if name.starts_with("remote_write") {
            "_="
        } else {
            "日本"
        };
        assert!(error.contains("poison") && error.contains(tag), "{name}: {error}");
        assert!(second.healthy && second.balances(), "{name}: {second:#?}");
        // Each value arrived as it was, and once.
        let accepted: Vec<Request> = intake
            .requests()
            .into_iter()
            .filter(|request| !has(request, "poison"))
            .collect();
        for gauge in ["g0", "g499", "g500", "g999"] {
            assert_eq!(arrived(name, &accepted, gauge), [0.5, 1.5], "{name}: {gauge}");
        }
        output.shutdown(DEADLINE).await;
    }
    let log = log.text();
    for output in OVER_HTTP {
        let of = |line: &&str| line.contains(&format!("output={output:?}")) && line.contains("WARN");
        let lines: Vec<&str> = log.lines().filter(of).collect();
        assert!(
            lines.iter().any(|line| line.contains("poison")),
            "{output}: {log}"
        );
    }
}

/// Each kind of payload that the Datadog intake is sent, in each form: bad ones are left out, and as many as there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_datadog_payload() {
    let forms = [
        (SeriesFormat::V2, Compression::Zstd),
        (SeriesFormat::V2Json, Compression::Gzip),
        (SeriesFormat::V1, Compression::Zlib),
        (SeriesFormat::V2, Compression::None),
        (SeriesFormat::V3, Compression::Zstd),
        (SeriesFormat::V3, Compression::Gzip),
    ];
    for (format, compression) in forms {
        let intake = squeamish(400, &["poison"]).await;
        let mut settings = datadog(&intake.url());
        (settings.form.series_format, settings.form.compression) = (format, compression);
        if format == SeriesFormat::V3 {
            settings.form.sketches_format = SketchesFormat::V3;
        }
        let around = environment(Clock::system());
        let output = settings
            .start("datadog", &Arc::new(Expansion::default()), &around)
            .unwrap();
        let lines: String = (0..30)
            .map(|i| {
                let name = if i % 13 == 5 { "poison" } else { "fine" };
                format!(
                    "{name}.g{i}:1|g|#a:\"{{[,\nfine.d{i}:1:2|d|#b:{name}\n_e{{5,{}}}:title|{name}\n_sc|{name}{i}|0|#c:]\n",
                    name.len()
                )
            })
            .collect();
        batches(&lines).iter().for_each(|batch| output.submit(batch));
        let what = format!("{format:?}, {compression:?}");
        let all = |status: &OutputStatus| {
            let received = status.received;
            (received.points, received.events, received.checks) == (60, 30, 30) && idle(status)
        };
        let status = wait(&output, &what, all).await;
        let endpoint = &status.endpoints[0];
        let rejected = endpoint.dropped[&Reason::Rejected];
        let (taken, refused) = (
            endpoint.delivered,
            (rejected.points, rejected.events, rejected.checks),
        );
        assert_eq!(refused, (4, 2, 2), "{what}: {status:#?}");
        assert_eq!((taken.points, taken.events, taken.checks), (56, 28, 28), "{what}");
        // Two gauges, two distributions, two checks, and the same event twice.
        assert_eq!(endpoint.counts[OutputCounter::RefusedSeries], 7, "{what}");
        for request in intake.requests() {
            if request.header("content-type") == "application/json" {
                request.json();
            }
        }
        output.shutdown(DEADLINE).await;
    }
}

/// A receiver that takes nothing at all is not asked a thousand times why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_search_is_bounded() {
    for name in OVER_HTTP {
        // Everything is refused, then the half of it, then all is well.
        let intake = squeamish(400, &["g1"]).await;
        let refuse_all = Intake::start(|request| match request.method.as_str() {
            "POST" => Reply::Full(400, vec![], "no"),
            _ => taken(),
        })
        .await;
        let output = start_output(name, &refuse_all.url(), delivery(), &environment(Clock::system()));
        let first = deliver(&output, name, 0, &messages(0, "")).await;
        assert_eq!(
            first.endpoints[0].dropped[&Reason::Rejected],
            first.received,
            "{name}"
        );
        let once = refuse_all.requests().len();
        assert!(once <= 14, "{name}: {once} requests");
        let second = deliver(&output, name, 1, &messages(1, "")).await;
        assert!(second.balances(), "{name}: {second:#?}");
        // It is not about series: a second search would find out the same.
        assert_eq!(refuse_all.requests().len(), once + 1, "{name}");
        output.shutdown(DEADLINE).await;

        // A hundred and eleven of a thousand: found a few at a time, and the rest of the request is dropped and counted.
        let output = start_output(name, &intake.url(), delivery(), &environment(Clock::system()));
        let status = deliver(&output, name, 0, &messages(0, "")).await;
        let endpoint = &status.endpoints[0];
        let rejected = endpoint.dropped[&Reason::Rejected].points;
        assert!(
            status.balances() && rejected > 100 && endpoint.delivered.points > 0,
            "{name}: {status:#?}"
        );
        assert!(
            intake.requests().len() <= 90,
            "{name}: {} requests",
            intake.requests().len()
        );
        output.shutdown(DEADLINE).await;
    }
}
