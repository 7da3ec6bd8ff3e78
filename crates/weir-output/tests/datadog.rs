//! Payloads as a Datadog intake receives them, read by third-party decoders.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use support::*;
use weir_aggregate::{Batch, Expansion};
use weir_output::datadog::{self, DatadogEncoder, RequestKind, route};
use weir_output::delivery::{Clock, Encode, Encoded, Items, Reason};
use weir_output::settings::{Compression, DatadogSettings, SeriesFormat};

/// Delivers the agent's output for the messages and returns the received payloads.
async fn deliver(messages: &str, change: impl FnOnce(&mut DatadogSettings)) -> Vec<Request> {
    let intake = Intake::start(|_| Reply::Status(202)).await;
    let mut settings = datadog(&intake.url());
    change(&mut settings);
    let output = datadog::start(
        "datadog",
        &settings,
        Arc::new(Expansion::default()),
        &environment(Clock::system()),
    )
    .unwrap();
    batches(messages).iter().for_each(|batch| output.submit(batch));
    output.shutdown(DEADLINE).await;
    let status = output.status();
    assert!(status.balances() && status.healthy, "{status:?}");
    assert_eq!(status.endpoints[0].delivered, status.received, "{status:?}");
    intake.requests()
}

fn of<'a>(requests: &'a [Request], path: &str) -> Vec<&'a Request> {
    requests.iter().filter(|request| request.path == path).collect()
}

/// Series by name and tags as agent-payload understands them.
fn series(requests: &[Request]) -> BTreeMap<String, Json> {
    let decoded = decode(
        &requests
            .iter()
            .filter(|r| r.path == "/api/v2/series")
            .cloned()
            .collect::<Vec<_>>(),
    );
    let all = decoded
        .iter()
        .flat_map(|payload| payload["series"].as_array().unwrap().clone());
    let mut by_name = BTreeMap::new();
    for one in all {
        let name = one["metric"].as_str().unwrap().to_owned();
        assert!(
            by_name.insert(name, one).is_none(),
            "every name once in these tests"
        );
    }
    by_name
}

/// Go prints whole floating-point numbers as integers.
fn plain(json: &Json) -> Json {
    match json {
        Json::Number(number) => json!(number.as_f64()),
        Json::Array(all) => all.iter().map(plain).collect(),
        Json::Object(all) => all
            .iter()
            .map(|(key, value)| (key.clone(), plain(value)))
            .collect(),
        other => other.clone(),
    }
}

const EXAMPLE: &str = "a:1|c\na:2|c|@0.5\ng:3|g\ng:4|g\nu:x|s\nu:y|s\nu:x|s\nh:1:2:3:4|h\nd:1:1:10|d\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worked_example_by_the_official_schema() {
    let requests = deliver(EXAMPLE, |_| {}).await;
    assert_eq!(requests.len(), 2);
    for request in &requests {
        assert_eq!(request.method, "POST");
        let headers = [
            "dd-api-key",
            "content-type",
            "content-encoding",
            "user-agent",
            "dd-agent-version",
        ]
        .map(|name| request.header(name));
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            headers,
            [
                KEY,
                "application/x-protobuf",
                "zstd",
                &format!("weir/{version}"),
                version
            ]
        );
        assert!(!request.header("dd-agent-payload").is_empty());
        assert!(!request.headers.contains_key("allow-arbitrary-tag-value"));
    }
    let series = series(&requests);
    let expected: [(&str, i64, f64); 8] = [
        ("a", 2, 0.5),
        ("g", 3, 4.0),
        ("u", 3, 2.0),
        ("h.max", 3, 4.0),
        ("h.median", 3, 2.0),
        ("h.avg", 3, 2.5),
        ("h.count", 2, 0.4),
        ("h.95percentile", 3, 4.0),
    ];
    assert_eq!(series.len(), expected.len());
    for (name, kind, value) in expected {
        let one = &series[name];
        let origin = json!({"origin": {"origin_product": 10, "origin_category": 10}});
        let whole = json!({
            "metric": name, "type": kind, "interval": 10, "metadata": origin,
            "resources": [{"type": "host", "name": "agent-host"}],
            "points": [{"value": value, "timestamp": BUCKET}],
        });
        assert_eq!(plain(one), plain(&whole));
    }
    let sketches = decode(
        &of(&requests, "/api/beta/sketches")
            .into_iter()
            .cloned()
            .collect::<Vec<_>>(),
    );
    let sketch = &sketches[0]["sketches"][0];
    assert_eq!(
        (&sketch["metric"], &sketch["host"]),
        (&json!("d"), &json!("agent-host"))
    );
    let points = json!([{"ts": BUCKET, "cnt": 3, "min": 1.0, "max": 10.0, "avg": 4.0, "sum": 12.0, "k": [1338, 1487], "n": [2, 1]}]);
    assert_eq!(plain(&sketch["dogsketches"]), plain(&points));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_devices_and_resources() {
    let messages = "a:1|c|#device:sda,x:y\nb:1|g|#dd.internal.resource:pod:p1,z\nc:1|g|#host:other,a:b,a:c,a:b\ne:1|g|#host:\n\
        f:1|g|#device:sda,device:sdb\nd:-1|d|#device:sda\nt:3|c|T1700000005|#k:v\nw:1|g|#dd.internal.resource:odd,z\n\
        v:1|g|#dd.internal.resource:,z\nx:1|g|#dd.internal.resource:a:,dd.internal.resource::b,z\ny:1|g|#device:,x:y\nz:1|g|#device:sda,device:\n";
    let requests = deliver(messages, |_| {}).await;
    let series = series(&requests);
    let host = |name: &str| json!({"type": "host", "name": name});
    let check = |name: &str, resources: Json, tags: Json| {
        assert_eq!(series[name]["resources"], resources, "{name}");
        assert_eq!(
            series[name].get("tags").cloned().unwrap_or(json!([])),
            tags,
            "{name}"
        );
    };
    check(
        "a",
        json!([host("agent-host"), {"type": "device", "name": "sda"}]),
        json!(["x:y"]),
    );
    check(
        "b",
        json!([host("agent-host"), {"type": "pod", "name": "p1"}]),
        json!(["z"]),
    );
    check("c", json!([host("other")]), json!(["a:b", "a:c"]));
    check("e", json!([{"type": "host"}]), json!([]));
    check(
        "f",
        json!([host("agent-host"), {"type": "device", "name": "sdb"}]),
        json!([]),
    );
    // Internal tags that name no resource are dropped, because the backend must not get them; a device without a name is none.
    for name in ["v", "w", "x"] {
        check(name, json!([host("agent-host")]), json!(["z"]));
    }
    check("y", json!([host("agent-host")]), json!(["x:y"]));
    check(
        "z",
        json!([host("agent-host"), {"type": "device", "name": "sda"}]),
        json!([]),
    );
    assert_eq!(
        series["t"]["points"],
        json!([{"value": 0.3, "timestamp": 1_700_000_005}])
    );
    assert_eq!(series["t"]["metadata"], json!({"origin": {"origin_product": 10}}));
    let sketches = decode(
        &of(&requests, "/api/beta/sketches")
            .into_iter()
            .cloned()
            .collect::<Vec<_>>(),
    );
    assert_eq!(sketches[0]["sketches"][0]["tags"], json!(["device:sda"]));
    assert_eq!(sketches[0]["sketches"][0]["dogsketches"][0]["k"], json!([-1338]));
    // With the switch off the tag is a tag like any other.
    let requests = deliver("a:1|c|#device:sda,x:y\n", |settings| {
        settings.device_resource = false
    })
    .await;
    let series = self::series(&requests);
    assert_eq!(
        (&series["a"]["tags"], &series["a"]["resources"]),
        (&json!(["device:sda", "x:y"]), &json!([host("agent-host")]))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn integrations_over_jmx_have_their_number() {
    let names = ["kafka", "tomcat", "activemq", "of_our_own"];
    let lines = names.map(|name| format!("{name}:1|g|#dd.internal.jmx_check_name:{name}\n"));
    let series = series(&deliver(&lines.concat(), |_| {}).await);
    for (name, service) in names.into_iter().zip([90, 163, 12, 9]) {
        let origin = json!({"origin_product": 10, "origin_category": 11, "origin_service": service});
        assert_eq!(series[name]["metadata"]["origin"], origin, "{name}");
    }
}

/// A device or a resource without a name was sent in every format.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_without_a_name_in_json_either() {
    let messages = "a:1|g|#device:,dd.internal.resource:bad,k:v\n";
    for format in [SeriesFormat::V2Json, SeriesFormat::V1] {
        let requests = deliver(messages, |settings| settings.form.series_format = format).await;
        let one = requests[0].json()["series"][0].clone();
        assert_eq!(
            (&one["tags"], one.get("device")),
            (&json!(["k:v"]), None),
            "{one}"
        );
        assert!(!one.to_string().contains("device"), "{one}");
        assert_eq!(one.get("source_type_name"), None, "{one}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn series_as_json() {
    let messages = "a\"b:1|c|#device:sda,k:v\\,dd.internal.resource:pod:p1\ng:2.5|g\n";
    let requests = deliver(messages, |settings| {
        settings.form.series_format = SeriesFormat::V2Json;
        settings.form.compression = Compression::Gzip;
        settings.arbitrary_tag_values = true;
    })
    .await;
    assert_eq!(
        (requests[0].path.as_str(), requests[0].header("content-type")),
        ("/api/v2/series", "application/json")
    );
    assert_eq!(
        (
            requests[0].header("content-encoding"),
            requests[0].header("allow-arbitrary-tag-value")
        ),
        ("gzip", "true")
    );
    let by_name = |json: Json| -> BTreeMap<String, Json> {
        json["series"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (one["metric"].as_str().unwrap().to_owned(), one.clone()))
            .collect()
    };
    let host = json!({"type": "host", "name": "agent-host"});
    let series = by_name(requests[0].json());
    let expected = json!({"metric": "a\"b", "type": 2, "interval": 10, "points": [{"timestamp": BUCKET, "value": 0.1}],
        "resources": [host, {"type": "device", "name": "sda"}, {"type": "pod", "name": "p1"}], "tags": ["k:v\\"]});
    assert_eq!(series["a\"b"], expected);
    assert_eq!(series["g"]["type"], json!(3));

    let requests = deliver(messages, |settings| {
        settings.form.series_format = SeriesFormat::V1;
        settings.form.compression = Compression::None;
    })
    .await;
    assert_eq!(
        (requests[0].path.as_str(), requests[0].header("content-encoding")),
        ("/api/v1/series", "")
    );
    let series = by_name(requests[0].json());
    let expected = json!({"metric": "a\"b", "points": [[BUCKET, 0.1]], "tags": ["k:v\\"], "host": "agent-host", "device": "sda",
        "type": "rate", "interval": 10});
    assert_eq!(series["a\"b"], expected);
    assert_eq!(
        (&series["g"]["type"], &series["g"]["points"]),
        (&json!("gauge"), &json!([[BUCKET, 2.5]]))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_and_events() {
    let messages = "_sc|db.up|2|d:1700000001|h:other|#k:v|m:no answer\n_sc|disk|0\n\
        _e{5,4}:title|text|d:1700000002|h:web|k:group|p:low|s:nagios|t:error|#k:v,b\n_e{1,1}:a|b\n_e{1,1}:c|d\n";
    let requests = deliver(messages, |settings| settings.form.compression = Compression::Zlib).await;
    assert!(
        requests
            .iter()
            .all(|request| request.header("content-type") == "application/json"
                && request.header("content-encoding") == "deflate")
    );
    let checks = of(&requests, "/api/v1/check_run")[0].json();
    assert_eq!(checks.as_array().unwrap().len(), 2);
    let expected = json!({"check": "db.up", "host_name": "other", "timestamp": 1_700_000_001, "status": 2, "message": "no answer", "tags": ["k:v"]});
    assert_eq!(checks[0], expected);
    let expected = json!({"check": "disk", "host_name": "agent-host", "timestamp": checks[1]["timestamp"], "status": 0, "message": "", "tags": []});
    assert_eq!(checks[1], expected);
    let events = of(&requests, "/intake/");
    let groups: BTreeMap<String, Json> = events
        .iter()
        .flat_map(|request| {
            let body = request.json();
            assert_eq!(
                (&body["apiKey"], &body["internalHostname"]),
                (&json!(""), &json!("agent-host"))
            );
            body["events"].as_object().unwrap().clone()
        })
        .collect();
    assert_eq!(groups.keys().collect::<Vec<_>>(), ["api", "nagios"]);
    assert_eq!(groups["api"].as_array().unwrap().len(), 2);
    assert_eq!(groups["api"][0]["host"], json!("agent-host"));
    let expected = json!({"msg_title": "title", "msg_text": "text", "timestamp": 1_700_000_002, "priority": "low", "host": "web",
        "alert_type": "error", "aggregation_key": "group", "source_type_name": "nagios", "tags": groups["nagios"][0]["tags"]});
    assert_eq!(groups["nagios"][0], expected);
    let tags: BTreeSet<&str> = groups["nagios"][0]["tags"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tag| tag.as_str().unwrap())
        .collect();
    assert_eq!(tags, BTreeSet::from(["k:v", "b"]));
}

/// Monitors on "the agent is up" went to No Data, and hosts had neither metadata nor host tags.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeat_and_host_metadata_are_sent() {
    for (heartbeat, host_metadata) in [(true, true), (true, false), (false, true)] {
        let intake = Intake::start(|_| Reply::Status(202)).await;
        let (clock, driver) = Clock::driven(BUCKET);
        let mut settings = datadog(&intake.url());
        (settings.heartbeat, settings.host_metadata) = (heartbeat, host_metadata);
        let expansion = Arc::new(Expansion::default());
        let output = datadog::start("datadog", &settings, expansion, &environment(clock)).unwrap();
        // Half an hour of flushes, and one more.
        for flush in 0..=180 {
            if flush > 0 {
                driver.advance(Duration::from_secs(10));
            }
            let batches = batches_at(BUCKET + flush * 10, "tick:1|c\n");
            batches.iter().for_each(|batch| output.submit(batch));
            // Of three flushes within 30 seconds two are due; the first also says that the agent started.
            let beats = (0..=flush).filter(|flush| flush % 3 != 1).count() as u64 + 1;
            let points = flush as u64 + 1 + if heartbeat { beats } else { 0 };
            let checks = if heartbeat { beats - 1 } else { 0 };
            let events = if host_metadata { 1 + flush as u64 / 180 } else { 0 };
            // All of it: time must not pass while a request is under way.
            wait(&output, "delivered", |status| {
                let delivered = status.endpoints[0].delivered;
                (delivered.points, delivered.events, delivered.checks) == (points, events, checks)
            })
            .await;
        }
        output.shutdown(DEADLINE).await;
        let status = output.status();
        assert!(status.balances(), "{status:#?}");
        assert_eq!(status.endpoints[0].delivered, status.received, "{status:?}");
        let requests = intake.requests();

        let posts = of(&requests, "/api/v2/series")
            .into_iter()
            .cloned()
            .collect::<Vec<_>>();
        let series: Vec<Json> = decode(&posts)
            .iter()
            .flat_map(|payload| payload["series"].as_array().unwrap().clone())
            .collect();
        let named =
            |name: &str| -> Vec<&Json> { series.iter().filter(|one| one["metric"] == name).collect() };
        let running = named("datadog.dogstatsd.running");
        let checks: Vec<Json> = of(&requests, "/api/v1/check_run")
            .iter()
            .flat_map(|request| request.json().as_array().unwrap().clone())
            .collect();
        let expected = if heartbeat { 121 } else { 0 };
        assert_eq!((running.len(), checks.len()), (expected, expected));
        assert_eq!(named("datadog.dogstatsd.started").len(), usize::from(heartbeat));
        if heartbeat {
            let version = concat!("version:", env!("CARGO_PKG_VERSION"));
            assert_eq!(running[0]["points"], json!([{"value": 1, "timestamp": BUCKET}]));
            assert_eq!(
                (&running[0]["type"], &running[0]["tags"]),
                (&json!(3), &json!([version]))
            );
            assert_eq!(
                running[0]["resources"],
                json!([{"type": "host", "name": "agent-host"}])
            );
            assert_eq!(named("datadog.dogstatsd.started")[0]["type"], json!(1));
            let up = json!({"check": "datadog.dogstatsd.up", "host_name": "agent-host", "timestamp": BUCKET,
                "status": 0, "message": "", "tags": []});
            assert_eq!(checks[0], up);
            assert_eq!(checks[1]["timestamp"], json!(BUCKET + 20));
        }

        let hosts: Vec<Json> = of(&requests, "/intake/")
            .iter()
            .map(|request| request.json())
            .collect();
        assert_eq!(
            hosts.len(),
            if host_metadata { 2 } else { 0 },
            "at the start and after half an hour"
        );
        for host in &hosts {
            assert_eq!(host["host-tags"], json!({"system": ["env:test", "team:a"]}));
            let names = (
                &host["internalHostname"],
                &host["meta"]["hostname"],
                &host["apiKey"],
            );
            assert_eq!(names, (&json!("agent-host"), &json!("agent-host"), &json!("")));
            let inventory: Json = serde_json::from_str(host["gohai"].as_str().unwrap()).unwrap();
            assert_eq!(inventory["platform"]["kernel_name"], "Linux");
        }
    }
}

fn encode(batches: &[Arc<Batch>], settings: &DatadogSettings) -> Encoded {
    let mut encoder = DatadogEncoder::new(settings, Arc::new(Expansion::default()));
    let mut out = Encoded::default();
    let count = encoder.counter();
    let mut items = Items::default();
    for batch in batches {
        items += count(batch);
        encoder.encode(batch, &mut out);
    }
    encoder.finish(&mut out);
    assert!(encoder.open().is_zero());
    let encoded: Items = out
        .payloads
        .iter()
        .map(|payload| Items::of(payload.class, u64::from(payload.count)))
        .sum();
    let dropped: Items = out.dropped.values().copied().sum();
    assert_eq!(
        encoded + dropped,
        items,
        "everything is in a payload or dropped for a reason"
    );
    out
}

fn distinct(n: usize, line: impl Fn(usize) -> String) -> Vec<Arc<Batch>> {
    batches(&(0..n).map(line).collect::<String>())
}

#[test]
fn ten_thousand_and_one_points_are_two_payloads() {
    let batches = distinct(10_001, |i| format!("metric:{i}|g|#i:{i}\n"));
    let out = encode(&batches, &datadog(""));
    let counts: Vec<u32> = out.payloads.iter().map(|payload| payload.count).collect();
    assert_eq!(counts, [10_000, 1]);
    assert!(
        out.payloads
            .iter()
            .all(|payload| payload.route == route(RequestKind::SeriesV2, Compression::Zstd))
    );
}

#[test]
fn payloads_stay_within_every_limit_of_their_endpoint() {
    // Long tags: the uncompressed limit of 5 MiB comes before the 10 000 points.
    let long = "x".repeat(190);
    let batches = distinct(9_000, |i| {
        format!("metric:{i}|g|#a:{long}{i},b:{long},c:{long}{i},d:{long}\n")
    });
    let out = encode(&batches, &datadog(""));
    let sizes: Vec<usize> = out
        .payloads
        .iter()
        .map(|payload| zstd::decode_all(&payload.body[..]).unwrap().len())
        .collect();
    assert_eq!(sizes.len(), 2, "{sizes:?}");
    assert!(
        sizes.iter().all(|size| *size <= 5_242_880) && sizes[0] > 5_200_000,
        "{sizes:?}"
    );
    // Incompressible content: the compressed limit of 512 000 bytes applies.
    let mut state = 1u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        format!("{:016x}", state ^ (state >> 31))
    };
    let messages: String = (0..9_900)
        .map(|_| {
            format!(
                "m{}:1|g|#{}:{}{}{}{}{},{}\n",
                noise(),
                noise(),
                noise(),
                noise(),
                noise(),
                noise(),
                noise(),
                noise()
            )
        })
        .collect();
    for compression in [
        Compression::Zstd,
        Compression::Zlib,
        Compression::Gzip,
        Compression::None,
    ] {
        let mut settings = datadog("");
        settings.form.compression = compression;
        let out = encode(&self::batches(&messages), &settings);
        let sizes: Vec<usize> = out.payloads.iter().map(|payload| payload.body.len()).collect();
        let (_, full) = sizes.split_last().unwrap();
        assert!(
            sizes.len() > 1 && sizes.iter().all(|size| *size <= 512_000),
            "{compression:?} {sizes:?}"
        );
        assert!(
            full.iter().all(|size| *size > 470_000),
            "{compression:?} {sizes:?}"
        );
    }
}

#[test]
fn values_that_no_backend_accepts_are_counted_not_sent() {
    let mut batch = Batch::clone(&batches("good:1|g\n")[0]);
    for value in [f64::NAN, f64::INFINITY] {
        let sample = weir_aggregate::TimestampedSample {
            kind: weir_protocol::Kind::Gauge,
            name: "bad",
            host: None,
            tags: &[],
            timestamp: BUCKET,
        };
        batch.push_timestamped(&sample, weir_aggregate::TimestampedValue::Number(value));
    }
    let out = encode(&[Arc::new(batch)], &datadog(""));
    assert_eq!(out.dropped[&Reason::NotFinite].points, 2);
    assert_eq!(out.payloads.iter().map(|payload| payload.count).sum::<u32>(), 1);
}

#[test]
fn one_series_byte_by_byte() {
    let mut settings = datadog("");
    settings.form.compression = Compression::None;
    let out = encode(&batches("a:5|c|#k:v\n"), &settings);
    let host = b"\x0a\x12\x0a\x04host\x12\x0aagent-host";
    let point = b"\x22\x0f\x09\x00\x00\x00\x00\x00\x00\xe0\x3f\x10\x80\xe2\xcf\xaa\x06";
    let rest = b"\x28\x02\x40\x0a\x4a\x06\x0a\x04\x20\x0a\x28\x0a";
    let body = [host, &b"\x12\x01a\x1a\x03k:v"[..], point, rest].concat();
    assert_eq!(
        out.payloads[0].body,
        [&[0x0a, body.len() as u8][..], &body].concat()
    );
    // A sketch with a negative key: -1338 is 2675 zigzagged.
    let out = encode(&batches("d:-1|d\n"), &settings);
    let k = b"\x3a\x02\xf3\x14\x42\x01\x01";
    assert!(out.payloads[0].body.windows(k.len()).any(|window| window == k));
    assert!(
        out.payloads[0].body.ends_with(&[0x12, 0]),
        "the payload's empty metadata"
    );
}

/// The other three, and what a host that is empty looks like.
#[test]
fn a_sketch_a_check_and_an_event_byte_by_byte() {
    let mut settings = datadog("");
    settings.form.compression = Compression::None;
    let body = |messages: &str| {
        let out = encode(&batches(messages), &settings);
        assert_eq!(out.payloads.len(), 1);
        out.payloads[0].body.clone()
    };
    let double = |value: f64| value.to_le_bytes().to_vec();
    // Two samples of -1: key -1338, zigzagged 2675; ten: key 1487, zigzagged 2974.
    let point = [
        &b"\x08\x80\xe2\xcf\xaa\x06\x10\x03"[..],
        &[&[0x19][..], &double(-1.0), &[0x21], &double(10.0)].concat(),
        &[&[0x29][..], &double(8.0 / 3.0), &[0x31], &double(8.0)].concat(),
        b"\x3a\x04\xf3\x14\x9e\x17\x42\x02\x02\x01",
    ]
    .concat();
    let sketch = [
        &b"\x0a\x01d\x12\x0aagent-host\x22\x03k:v\x3a"[..],
        &[point.len() as u8],
        &point,
        b"\x42\x06\x0a\x04\x20\x0a\x28\x0a",
    ]
    .concat();
    assert_eq!(
        body("d:-1:-1:10|d|#k:v\n"),
        [&[0x0a, sketch.len() as u8][..], &sketch, &[0x12, 0]].concat()
    );
    assert_eq!(
        String::from_utf8(body("_sc|db|1|d:1700000001|h:x|#k:v|m:slow\n")).unwrap(),
        r#"[{"check":"db","host_name":"x","timestamp":1700000001,"status":1,"message":"slow","tags":["k:v"]}]"#
    );
    assert_eq!(
        String::from_utf8(body("_e{1,2}:a|bc|d:1700000002|h:x|#k:v\n")).unwrap(),
        r#"{"apiKey":"","events":{"api":[{"msg_title":"a","msg_text":"bc","timestamp":1700000002,"priority":"normal","host":"x","alert_type":"info","tags":["k:v"]}]},"internalHostname":"agent-host"}"#
    );
    // An empty host is a resource without a name, and tags that come twice come once.
    let host = b"\x0a\x06\x0a\x04host\x12\x01e\x1a\x03k:v";
    let series = body("e:1|g|#host:,k:v,k:v\n");
    assert_eq!(&series[2..2 + host.len()], host, "{}", series.escape_ascii());
    let tags = series
        .windows(5)
        .filter(|window| *window == b"\x1a\x03k:v")
        .count();
    assert_eq!(tags, 1);
}

/// Decoded by agent-payload and compared with what was sent: every context once, with its value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_contexts_arrive_exactly() {
    let n = 25_000;
    let messages: String = (0..n)
        .map(|i| format!("m{}:{i}|g|#i:{i},env:test\n", i % 97))
        .collect();
    let requests = deliver(&messages, |_| {}).await;
    assert!(requests.len() >= 3);
    let mut seen: BTreeMap<String, f64> = BTreeMap::new();
    for payload in decode(&requests) {
        for one in payload["series"].as_array().unwrap() {
            let tags: Vec<&str> = one["tags"]
                .as_array()
                .unwrap()
                .iter()
                .map(|tag| tag.as_str().unwrap())
                .collect();
            let value = one["points"][0]
                .get("value")
                .map_or(0.0, |value| value.as_f64().unwrap());
            assert!(
                seen.insert(
                    format!("{}|{}", one["metric"].as_str().unwrap(), tags.join(",")),
                    value
                )
                .is_none()
            );
        }
    }
    let expected: BTreeMap<String, f64> = (0..n)
        .map(|i| (format!("m{}|env:test,i:{i}", i % 97), f64::from(i)))
        .collect();
    assert!(seen == expected, "{} of {n} contexts", seen.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_that_no_flush_ends_is_sent_after_a_moment() {
    let intake = Intake::start(|_| Reply::Status(202)).await;
    let (clock, driver) = Clock::driven(BUCKET);
    let output = datadog::start(
        "datadog",
        &datadog(&intake.url()),
        Arc::new(Expansion::default()),
        &environment(clock),
    )
    .unwrap();
    let passed_on = &batches("_sc|disk|0\n")[0];
    assert!(!passed_on.last);
    output.submit(passed_on);
    output
        .wait_for(|status| status.endpoints[0].pending.open_payloads.checks == 1)
        .await;
    assert!(intake.requests().is_empty());
    // The timer starts once the batch is encoded; moving on until it fires needs no guess about when that was.
    let sent = intake.wait(1);
    tokio::pin!(sent);
    loop {
        driver.advance(Duration::from_secs(1));
        tokio::select! {
            requests = &mut sent => break assert_eq!(requests[0].path, "/api/v1/check_run"),
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
    }
    output.shutdown(DEADLINE).await;
}
