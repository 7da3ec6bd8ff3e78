//! Requests to the history, and their answers.

use serde_json::Value;
use weir_aggregate::{AggregatorSettings, Batch, Expansion};
use weir_context::{ContextLimits, HashSecret, RuleSettings, Rules};
use weir_ingest::{Ingest, IngestSettings, ListenerSettings, Received};
use weir_output::delivery::{Encode as _, Encoded};
use weir_output::json_lines::LinesEncoder;
use weir_output::prometheus::OwnSeries;

use super::*;
use crate::streams::Streams;

const START: i64 = 1_700_000_000;

/// Buckets of ten seconds, each with one of these packets.
fn batches(packets: &[&str]) -> Vec<Batch> {
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: Rules::new(RuleSettings::default()),
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(1, 2),
        listeners: vec![ListenerSettings::default()],
    };
    let mut ingest = Ingest::new(settings, START);
    let mut batches = Vec::new();
    for (at, packet) in (1..).zip(packets) {
        ingest.packet(Received {
            bytes: packet.as_bytes(),
            listener: 0,
            truncated: false,
            received: 0,
        });
        assert!(ingest.advance(START + 10 * at));
        let mut of_bucket = Vec::new();
        while ingest.is_draining() {
            of_bucket.extend(ingest.drain(usize::MAX));
        }
        of_bucket.retain(|batch| batch.series().next().is_some());
        let [mut batch] = <[Batch; 1]>::try_from(of_bucket).expect("one with series");
        batch.last = true;
        batches.push(batch);
    }
    batches
}

fn recent(packet: &str) -> Recent {
    let recent = Recent::new(1 << 20, Streams::default());
    batches(&[packet]).iter().for_each(|batch| recent.take(batch));
    recent
}

fn ask(recent: &Recent, path: &str) -> Result<Value, HttpError> {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let request = request(&format!("/api/v1/{path}"), query::Query(query), recent).unwrap()?;
    answer(&request, recent).map(|bytes| serde_json::from_slice(&bytes).unwrap())
}

#[test]
fn invalid_requests_are_refused_with_the_allowed_values() {
    let recent = recent("a:1|g");
    for (path, code, part) in [
        ("query", 400, "metric is missing"),
        ("query?metric=b", 404, "no metric named \"b\""),
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
    ] {
        let refused = ask(&recent, path).unwrap_err();
        assert!(
            refused.0.as_u16() == code && refused.1.contains(part),
            "{path}: {refused:?}"
        );
    }
    let refused = bad("too much").json();
    assert_eq!(refused["error"]["code"], "bad_request");
}

/// Values by metric, tags and time.
type Points = BTreeMap<(String, String, i64), f64>;

/// The points of an output of lines. A counter is per second there, and its sum in a query is not.
fn delivered(batches: &[Batch]) -> Points {
    let mut encoder = LinesEncoder::new(Arc::new(Expansion::default()), 1 << 20);
    let mut encoded = Encoded::default();
    batches
        .iter()
        .for_each(|batch| encoder.encode(batch, &mut encoded));
    let text = encoded.payloads.into_iter().flat_map(|payload| payload.body);
    let lines = String::from_utf8(text.collect()).unwrap();
    let points = lines.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let tags = line["tags"].as_array().unwrap().iter();
        let tags: Vec<&str> = tags.map(|tag| tag.as_str().unwrap()).collect();
        let metric = line["metric"].as_str().unwrap().to_owned();
        let value = match line["type"].as_str() {
            Some("sketch") => line["sum"].as_f64(),
            Some("rate") if !metric.contains('.') => Some(line["value"].as_f64().unwrap() * 10.0),
            _ => line["value"].as_f64(),
        };
        (
            (metric, tags.join(","), line["ts"].as_i64().unwrap()),
            value.unwrap(),
        )
    });
    points.collect()
}

/// The same of the history.
fn held(recent: &Recent) -> Points {
    let mut points = Points::new();
    for (metric, function) in [
        ("views", "&fn=sum"),
        ("latency", "&fn=sum"),
        ("heat", "&fn=avg"),
        ("who", "&fn=avg"),
        ("time.max", ""),
        ("time.median", ""),
        ("time.avg", ""),
        ("time.count", ""),
        ("time.95percentile", ""),
    ] {
        let found = ask(
            recent,
            &format!("query?metric={metric}&by=user,env{function}&step=10s"),
        )
        .unwrap();
        for group in found["groups"].as_array().unwrap() {
            let tags = group["tags"].as_array().unwrap().iter();
            let tags = tags.filter_map(|tag| Some(format!("{}:{}", tag[0].as_str()?, tag[1].as_str()?)));
            let mut tags: Vec<String> = tags.collect();
            tags.sort();
            let values = group["values"].as_array().unwrap();
            for (time, value) in found["times"].as_array().unwrap().iter().zip(values) {
                let key = (metric.to_owned(), tags.join(","), time.as_i64().unwrap());
                points.extend(value.as_f64().map(|value| (key, value)));
            }
        }
    }
    points
}

#[test]
fn queries_return_the_points_of_outputs() {
    let of_user = |round: i32, user| {
        format!(
            "views:{}|c|#env:prod,user:{user}\nlatency:{}.25|d|#user:{user}\ntime:{round}:{round}:3|ms\nheat:{round}.5|g\nwho:{user}|s\n",
            round + 1,
            round * 7,
        )
    };
    let packets: Vec<String> = (0..5)
        .map(|round| of_user(round, "ann") + &of_user(round, "ben"))
        .collect();
    let batches = batches(&packets.iter().map(String::as_str).collect::<Vec<_>>());
    let recent = Recent::new(1 << 20, Streams::default());
    batches.iter().for_each(|batch| recent.take(batch));
    let (held, delivered) = (held(&recent), delivered(&batches));
    assert!(held.keys().eq(delivered.keys()), "{held:?}\n{delivered:?}");
    assert_eq!(held.len(), 5 * (2 + 2 + 1 + 1 + 5));
    for ((key, held), delivered) in held.iter().zip(delivered.values()) {
        // A quantile lies somewhere in its bin of the sketch, which is 1.6 % wide.
        let error = match key.0.ends_with("percentile") || key.0.ends_with("median") {
            true => 0.016 * delivered.abs(),
            false => 1e-12,
        };
        assert!(
            (held - delivered).abs() <= error,
            "{key:?}: {held} instead of {delivered}"
        );
    }
}

#[test]
fn the_list_of_metrics_takes_several_kinds() {
    let recent = recent("few:1|c\nmany:1:2|ms\nmany.d:1:2|d\nuser:a|s\nheat:3|g");
    for (query, expected) in [
        ("kind=counter", vec!["few"]),
        ("kind=histogram,distribution", vec!["many", "many.d"]),
        ("kind=gauge&kind=set", vec!["heat", "user"]),
        ("kind=set&match=heat", vec![]),
    ] {
        let found = ask(&recent, &format!("metrics?{query}")).unwrap();
        let metrics = found["metrics"].as_array().unwrap();
        let names: Vec<&str> = metrics.iter().map(|of| of["name"].as_str().unwrap()).collect();
        assert_eq!(names, expected, "{query}");
        assert_eq!(found["total"], expected.len(), "{query}");
        if !query.contains("match") {
            assert_eq!(found["kinds"]["histogram"], 1, "{found}");
        }
    }
}

async fn next(pieces: &mut Pieces) -> String {
    let piece = std::future::poll_fn(|context| pieces.poll_next(context)).await;
    String::from_utf8(piece.unwrap().unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn a_stream_reports_each_flush_and_the_books_that_changed() {
    let recent = Arc::new(Recent::new(1 << 20, Streams::default()));
    let batches = batches(&["a:7|c", "a:5|c"]);
    recent.take(&batches[0]);
    let open = |query| {
        let live = live_request(query::Query(query), &recent).unwrap();
        self::live(live, recent.clone(), recent.streams().open().unwrap())
    };
    let mut points = open("metric=a&fn=sum&books=-");
    let mut books = open("books=weir_messages_received");
    assert_eq!(next(&mut points).await, ": weir\n\n");
    assert_eq!(next(&mut books).await, ": weir\n\n");
    recent.take(&batches[1]);
    let said = next(&mut points).await;
    assert!(
        said.starts_with("event: points\n") && said.contains("[5.0]"),
        "{said}"
    );
    let said = next(&mut books).await;
    assert_eq!(
        said,
        format!("event: flush\ndata: {{\"bucket\":{}}}\n\n", START + 10)
    );
    let series = |value| {
        vec![OwnSeries {
            name: "weir_messages_received_total",
            help: "",
            is_counter: true,
            labels: Vec::new(),
            value,
        }]
    };
    for (second, before, now) in [(1, 0.0, 3.0), (2, 3.0, 3.0)] {
        recent.take_books(second, &series(now), &series(before));
        let said = next(&mut books).await;
        let has_changed = said.contains("weir_messages_received_total");
        assert!(
            has_changed == (now > before) && said.starts_with("event: books\n"),
            "{said}"
        );
    }
}
