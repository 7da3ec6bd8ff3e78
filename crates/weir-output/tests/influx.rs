//! The InfluxDB output: lines as the protocol's owners read them, names and escaping, requests, answers and datagrams.

use crate::support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use support::*;
use tokio::net::UdpSocket;
use weir_aggregate::Expansion;
use weir_output::OutputCounter;
use weir_output::delivery::{Clock, Delivery, OutputStatus, Reason};
use weir_output::graphite::{Aggregate, Host};
use weir_output::influx::{InfluxCompression, InfluxSettings, LineSettings, LineWriter, Precision};
use weir_output::settings::{Secret, Start};

const MESSAGES: &str = "page.views:1|c|@0.5|#env:prod,role:a/b\nqueue.size:-1.5|g|#host:db1\nusers:x|s\nusers:y|s\nt:1:2:3:4|ms|#bare,empty:,k:1,k:2\n_sc|c|0\n_e{1,1}:a|b\n";

fn start(settings: &InfluxSettings) -> Delivery {
    settings
        .start(
            "influx",
            &Arc::new(Expansion::default()),
            &environment(Clock::system()),
        )
        .unwrap()
}

/// Delivers one bucket, and returns the requests.
async fn deliver(settings: InfluxSettings, messages: &str) -> (Vec<Request>, OutputStatus) {
    let intake = Intake::start(|_| Reply::Status(204)).await;
    let url = intake.url() + &settings.url;
    let output = start(&InfluxSettings { url, ..settings });
    batches(messages).iter().for_each(|batch| output.submit(batch));
    output.shutdown(DEADLINE).await;
    let status = output.status();
    assert!(status.balances() && idle(&status), "{status:#?}");
    (intake.requests(), status)
}

fn lines(requests: &[Request]) -> Vec<String> {
    let text = |request: &Request| String::from_utf8(request.plain()).unwrap();
    let mut lines: Vec<String> = requests
        .iter()
        .flat_map(|request| text(request).lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    lines.sort();
    lines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_decoded_by_the_official_parser() {
    let (requests, status) = deliver(influx(""), MESSAGES).await;
    assert_eq!(
        lines(&requests),
        [
            "page.views,env=prod,host=agent-host,metric_type=counter,role=a/b value=2 1700000000000000000",
            "queue.size,host=db1,metric_type=gauge value=-1.5 1700000000000000000",
            "t,bare=true,host=agent-host,k=1\\,2,metric_type=timing count=4,lower=1,upper=4,mean=2.5,sum=10,50_percentile=2,95_percentile=4 1700000000000000000",
            "users,host=agent-host,metric_type=set value=2 1700000000000000000",
        ]
    );
    let dropped = status.endpoints[0].dropped[&Reason::Unsupported];
    assert_eq!((dropped.points, dropped.events, dropped.checks), (0, 1, 1));
    assert_eq!(status.endpoints[0].delivered.points, 4);
    let decoded = decode_influx(requests.iter().map(Request::plain));
    let mut decoded: Vec<&Json> = decoded
        .iter()
        .flat_map(|points| points.as_array().unwrap())
        .collect();
    decoded.sort_by_key(|point| point["measurement"].as_str().unwrap());
    assert_eq!(
        decoded[2],
        &json!({
            "measurement": "t",
            "tags": {"bare": "true", "host": "agent-host", "k": "1,2", "metric_type": "timing"},
            "fields": {"count": 4, "lower": 1, "upper": 4, "mean": 2.5, "sum": 10, "50_percentile": 2, "95_percentile": 4},
            "time": 1_700_000_000_000_000_000i64,
        })
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_forms_of_lines() {
    let form = LineSettings {
        host: Host::None,
        metric_type: false,
        integers: true,
        aggregates: vec![Aggregate::Count, Aggregate::Count],
        percentiles: vec![0.999],
        precision: Precision::Seconds,
    };
    let plain = InfluxSettings {
        form: form.clone(),
        compression: InfluxCompression::None,
        ..influx("")
    };
    let messages = "a:1|c|@0.3\nu:x|s\nd:5|d\nh:1.5|h|@0.5";
    let (requests, _) = deliver(plain, messages).await;
    assert_eq!(
        lines(&requests),
        [
            "a value=3i 1700000000",
            "d count=1i,99.9_percentile=5 1700000000",
            "h count=2i,99.9_percentile=1.5 1700000000",
            "u value=1i 1700000000",
        ]
    );
    assert!(
        requests
            .iter()
            .all(|request| request.header("content-encoding").is_empty())
    );
    decode_influx(requests.iter().map(Request::plain));
    // No field at all: no line, and nothing that counts as lost.
    let none = InfluxSettings {
        form: LineSettings {
            aggregates: Vec::new(),
            percentiles: Vec::new(),
            ..form
        },
        ..influx("")
    };
    let (requests, status) = deliver(none, messages).await;
    assert_eq!(lines(&requests).len(), 2);
    assert_eq!(status.received.points, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_both_versions() {
    let first = InfluxSettings {
        url: "/db/".into(),
        database: "metrics & more".into(),
        retention_policy: "week".into(),
        token: Secret::new("user:password"),
        ..influx("")
    };
    let (requests, _) = deliver(first, "a:1|c").await;
    assert_eq!(requests[0].method, "POST");
    assert_eq!(
        requests[0].path,
        "/db/write?db=metrics+%26+more&rp=week&precision=ns"
    );
    assert_eq!(requests[0].header("authorization"), "Token user:password");
    assert_eq!(requests[0].header("content-encoding"), "gzip");
    let second = InfluxSettings {
        bucket: "b".into(),
        organization: "o".into(),
        form: LineSettings {
            precision: Precision::Milliseconds,
            ..influx_lines()
        },
        ..influx("")
    };
    let (requests, _) = deliver(second, "a:1|c").await;
    assert_eq!(requests[0].path, "/api/v2/write?org=o&bucket=b&precision=ms");
    let (requests, _) = deliver(influx(""), "a:1|c").await;
    assert_eq!(requests[0].path, "/write?precision=ns");
}

/// A payload that an earlier configuration left on disk names the unit that its times are in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_on_disk_keep_their_precision() {
    let directory = tempfile::tempdir().unwrap();
    let (intake, reachable) = Intake::that_can_be_away(false).await;
    let with = |precision| {
        let mut settings = influx(&intake.url());
        settings.delivery.disk_path = directory.path().display().to_string();
        settings.delivery.disk_bytes_max = 64 << 20;
        settings.form.precision = precision;
        settings
    };
    let output = start(&with(Precision::Seconds));
    batches("a:1|c").iter().for_each(|batch| output.submit(batch));
    all_is_encoded(&output).await;
    output.shutdown(Duration::ZERO).await;
    assert_eq!(output.status().endpoints[0].pending.disk.points, 1);
    drop(output);
    reachable.store(true, std::sync::atomic::Ordering::SeqCst);
    let tried = intake.requests().len();
    let output = start(&with(Precision::Nanoseconds));
    wait(&output, "delivered", |status| {
        idle(status) && status.endpoints[0].delivered.points == 1
    })
    .await;
    let request = &intake.requests()[tried];
    assert!(request.path.ends_with("precision=s"), "{}", request.path);
    assert!(
        String::from_utf8(request.plain())
            .unwrap()
            .ends_with(" 1700000000\n")
    );
    output.shutdown(DEADLINE).await;
}

/// InfluxDB writes what it can of a request and says how much it could not; the rest is not sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partial_write_counts_what_was_dropped() {
    for (status, body) in [
        (
            400,
            r#"{"error":"partial write: field type conflict: input field \"value\" on measurement \"a\" is type float, already exists as type integer dropped=2"}"#,
        ),
        (
            422,
            r#"{"code":"unprocessable entity","message":"failure writing points to database: partial write: points beyond retention policy dropped=2"}"#,
        ),
    ] {
        let intake = Intake::start(move |_| Reply::Full(status, vec![], body)).await;
        let output = start(&influx(&intake.url()));
        batches("a:1|c\nb:1|c\nc:1|c\n")
            .iter()
            .for_each(|batch| output.submit(batch));
        let status = wait(&output, "answered", |status| {
            status.received.points == 3 && idle(status)
        })
        .await;
        let endpoint = &status.endpoints[0];
        assert_eq!(
            (
                endpoint.delivered.points,
                endpoint.dropped[&Reason::Rejected].points
            ),
            (1, 2),
            "{status:#?}"
        );
        assert!(status.healthy && status.balances(), "{status:#?}");
        assert_eq!(
            (intake.requests().len(), endpoint.counts[OutputCounter::Retries]),
            (1, 0)
        );
        output.shutdown(DEADLINE).await;
    }
}

/// A database that is not there yet: everything waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_database_is_waited_for() {
    let mut answers = 0;
    let intake = Intake::start(move |_| {
        answers += 1;
        match answers {
            1..3 => Reply::Full(404, vec![], r#"{"error":"database not found: \"weir\""}"#),
            _ => Reply::Status(204),
        }
    })
    .await;
    let output = start(&influx(&intake.url()));
    batches("a:1|c\n").iter().for_each(|batch| output.submit(batch));
    let status = wait(&output, "delivered", |status| {
        status.endpoints[0].delivered.points == 1
    })
    .await;
    assert!(
        status.balances() && status.endpoints[0].dropped.is_empty(),
        "{status:#?}"
    );
    output.shutdown(DEADLINE).await;
}

/// Series that differ in what the protocol cannot say: the one that needed no change has the name, the others a tag more, and the
/// status says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn series_of_one_name() {
    let messages = "a\u{7}b:1|c\na_b:2|c\nx:1|c|#k:\nx:2|c\nx:3|g\n";
    let intake = Intake::start(|_| Reply::Status(204)).await;
    let output = start(&influx(&intake.url()));
    // The order is settled after one bucket in which all of them were seen.
    for bucket in [0, 10] {
        let batches = batches_at(BUCKET + bucket, messages);
        batches.iter().for_each(|batch| output.submit(batch));
    }
    output.shutdown(DEADLINE).await;
    let (requests, status) = (intake.requests(), output.status());
    assert!(status.balances() && idle(&status), "{status:#?}");
    let mut lines = lines(&requests);
    assert_eq!(lines.len(), 10, "{lines:#?}");
    lines.retain(|line| line.ends_with(" 1700000010000000000"));
    for plain in [
        "a_b,host=agent-host,metric_type=counter value=2 ",
        "x,host=agent-host,metric_type=counter value=2 ",
        "x,host=agent-host,metric_type=gauge value=3 ",
    ] {
        assert!(
            lines.iter().any(|line| line.starts_with(plain)),
            "{plain}: {lines:#?}"
        );
    }
    let distinct = lines.iter().filter(|line| line.contains(",weir_series=")).count();
    assert_eq!(distinct, 2, "{lines:#?}");
    let told = &status.endpoints[0].details["renamed"];
    assert!(told.starts_with("2 lines of the last flush"), "{told}");
    decode_influx(requests.iter().map(Request::plain));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_are_not_finite_and_lines_that_are_too_long_are_counted() {
    let huge = "k".repeat(40_000);
    let messages = format!(
        "inf:1e308|c\ninf:1e308|c\n{huge}:1|g|#a:{}\nfine:1|c\n",
        "v".repeat(20_000)
    );
    let (requests, status) = deliver(influx(""), &messages).await;
    assert_eq!(lines(&requests).len(), 2, "{:?}", status.endpoints[0].dropped);
    assert_eq!(status.endpoints[0].dropped[&Reason::NotFinite].points, 1);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let output = start(&influx(&format!("udp://{}", socket.local_addr().unwrap())));
    batches(&messages).iter().for_each(|batch| output.submit(batch));
    output.shutdown(DEADLINE).await;
    let status = output.status();
    assert_eq!(
        status.endpoints[0].dropped[&Reason::TooLarge].points,
        1,
        "{status:#?}"
    );
    assert!(status.balances());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_that_fits_no_integer_is_dropped_and_counted() {
    let whole = InfluxSettings {
        form: LineSettings {
            host: Host::None,
            metric_type: false,
            integers: true,
            aggregates: vec![Aggregate::Count],
            percentiles: vec![],
            precision: Precision::Seconds,
        },
        compression: InfluxCompression::None,
        ..influx("")
    };
    let messages =
        "over:1e19|c\nunder:-1e19|c\nedge:9223372036854775808|c\nfits:9223372036854774784|c\nlevel:1e19|g\n";
    let (requests, status) = deliver(whole, messages).await;
    assert_eq!(
        lines(&requests),
        [
            "fits value=9223372036854774784i 1700000000",
            "level value=1e19 1700000000",
        ]
    );
    let dropped = &status.endpoints[0].dropped;
    assert_eq!(dropped[&Reason::NotFinite].points, 3, "{dropped:?}");
    assert!(status.balances());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_of_whole_lines() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let output = start(&InfluxSettings {
        datagram_bytes_max: 256,
        ..influx(&format!("udp://{}", socket.local_addr().unwrap()))
    });
    let messages: String = (0..40)
        .map(|i| format!("page.{i:02}:{i}|g|#env:prod\n"))
        .collect();
    batches(&messages).iter().for_each(|batch| output.submit(batch));
    output.shutdown(DEADLINE).await;
    let status = output.status();
    assert!(
        status.balances() && status.endpoints[0].delivered.points == 40,
        "{status:#?}"
    );
    let (mut found, mut buffer) = (Vec::new(), [0; 65536]);
    while found.len() < 40 {
        let received = tokio::time::timeout(DEADLINE, socket.recv(&mut buffer));
        let length = received.await.expect("all of them arrive").unwrap();
        assert!(length <= 256);
        let text = std::str::from_utf8(&buffer[..length]).unwrap();
        assert!(text.ends_with('\n'));
        found.extend(text.lines().map(str::to_owned));
    }
    found.sort();
    let expected: Vec<String> = (0..40)
        .map(|i| {
            format!("page.{i:02},env=prod,host=agent-host,metric_type=gauge value={i} 1700000000000000000")
        })
        .collect();
    assert_eq!(found, expected);
}

/// The protocol read in the plainest way: a backslash before a comma, a space or an equals sign takes its meaning away.
fn naive(line: &str) -> (String, BTreeMap<String, String>) {
    let mut parts = vec![String::new()];
    let mut marks = String::new();
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        let last = parts.last_mut().unwrap();
        match c {
            '\\' if matches!(rest.peek(), Some(',' | ' ' | '=')) => last.push(rest.next().unwrap()),
            ' ' => break,
            '=' if marks.is_empty() => last.push('='),
            ',' | '=' => {
                marks.push(c);
                parts.push(String::new());
            }
            c => last.push(c),
        }
    }
    let pairs = marks.len() / 2;
    assert_eq!(marks, ",=".repeat(pairs), "{line:?}");
    let measurement = parts.remove(0);
    let tags: BTreeMap<String, String> = parts
        .chunks(2)
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect();
    assert_eq!(tags.len(), pairs, "no key twice: {line:?}");
    (measurement, tags)
}

/// Bytes lost on the way: control characters, and backslashes that parsers read differently.
fn without_what_is_lost(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let is_lost = c.is_control()
            || c == '\\'
                && rest
                    .peek()
                    .is_none_or(|next| next.is_control() || "\\,= \"".contains(*next));
        kept.push(if is_lost { '_' } else { c });
    }
    kept
}

const SEED_TEXT: &str = "[a-c_,= \\\\\"#\u{7}\u{85}é日.-]{1,8}";

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_name_and_tags_read_back(name in SEED_TEXT, tags in proptest::collection::btree_map("[a-c,= \\\\\"\u{7}é]{1,4}", SEED_TEXT, 0..5)) {
        // Characters that DogStatsD cannot carry in a name or a tag.
        let clean = |text: &str| text.replace([':', '|', '\n', '#'], "h").replace(',', "=");
        let name = clean(&name);
        let section: Vec<String> = tags.iter().map(|(key, value)| format!("{}:{}", clean(key), clean(value))).collect();
        let message = format!("{name}:1|c|#{}\n", section.join(","));
        let batches = batches(&message);
        let mut writer = LineWriter::new(LineSettings { host: Host::None, ..influx_lines() });
        let mut line = Vec::new();
        for series in batches.iter().flat_map(|batch| batch.series()) {
            writer.push(&series, &mut line).unwrap();
            let text = std::str::from_utf8(&line).unwrap();
            prop_assert!(text.ends_with(" value=1 1700000000000000000\n") && text.lines().count() == 1, "{text:?}");
            let (measurement, found) = naive(text);
            prop_assert_eq!(measurement, without_what_is_lost(series.name()));
            let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for tag in series.tags() {
                let (key, value) = tag.split_once(':').unwrap();
                expected.entry(without_what_is_lost(key)).or_default().push(value.to_owned());
            }
            let mut expected: BTreeMap<String, String> = expected
                .into_iter()
                .map(|(key, mut values)| {
                    values.sort();
                    (key, values.iter().map(|value| without_what_is_lost(value)).collect::<Vec<_>>().join(","))
                })
                .collect();
            expected.insert("metric_type".into(), "counter".into());
            prop_assert_eq!(found, expected);
        }
    }
}

/// Checked with the protocol owners' own parsers: they refuse nothing and agree.
#[test]
fn hostile_names() {
    let names = [
        "a b", "a=b", "a\\", "\\ a", "\"q\"", "a\\\\b", "é日", "a\u{7}b", "C:\\dir",
    ];
    let message = |(at, name): (usize, &&str)| {
        let name = name.replace(':', ";");
        format!("{name}:{at}|g|#{name}:{name},{name},k:{name}\n")
    };
    let messages: String = names.iter().enumerate().map(message).collect();
    let mut writer = LineWriter::new(influx_lines());
    let mut text = Vec::new();
    for batch in batches(&messages) {
        for series in batch.series() {
            writer.push(&series, &mut text).unwrap();
        }
    }
    let decoded = decode_influx([text]);
    assert_eq!(decoded[0].as_array().unwrap().len(), names.len(), "{decoded:#?}");
}
