//! Columns in the tail, in captures and in explanations.

use serde_json::Value;
use weir_columns::{Encoder, MetricType};

use crate::capture::Capturing;
use crate::columns::{address, now, post, row};
use crate::support::{Agent, run, status, until};
use crate::tail::Events;

const CONFIG: &str = "bucket_width: LONG\nworkers: 1\nhttp: 127.0.0.1:0\ncontexts_max: 2\nrules:\n  - name: noise\n    match: noisy.*\n    drop: true\n";

/// One series of each fate: counted, dropped by a rule, of a time that cannot be, and with a name that no metric has.
fn body(timestamp: i64) -> Vec<u8> {
    let mut encoder = Encoder::new(1);
    for (metric, name, timestamp, value) in [
        (MetricType::Count, "page.views", timestamp, 5.0),
        (MetricType::Count, "noisy.x", timestamp, 1.0),
        (MetricType::Gauge, "page.level", timestamp + 1_000_000, 7.5),
        (MetricType::Rate, "page.rate", timestamp, 0.5),
        (MetricType::Count, "page:bad", timestamp, 1.0),
    ] {
        let row = row(&mut encoder, metric, name);
        encoder.row(&row, &[(timestamp, value)]);
    }
    encoder.sort();
    encoder.to_payload()
}

/// Line, verdict and reason of a message.
fn seen(message: &Value) -> (&str, &str, &str) {
    let text = |key: &str| message[key].as_str().unwrap_or_default();
    (text("line"), text("verdict"), text("reason"))
}

#[test]
fn columns_are_in_the_tail_in_captures_and_in_explanations() {
    let agent = Agent::start(CONFIG, &[]);
    // An explanation changes nothing.
    columns_are_explained(&agent);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("all.dog");
    let capturing = Capturing::start(&agent.admin, &file, &["--for", "10m", "--bytes", "4KiB"]);
    assert_eq!(post(&address(&agent), "/series", &[], &body(now())).0, 200);
    the_tail_shows_columns_with_their_sender_and_their_fate(&agent);
    let packet = format!("packet:1|c|#{}", "x".repeat(1000));
    until("the capture is full", || {
        agent.send(&packet);
        status(&agent.admin)["taps"]["streams"] == 0
    });
    let said = capturing.end();
    assert!(
        said.contains("requests with columns; a capture has packets alone"),
        "{said}"
    );
    agent.stop();
}

fn the_tail_shows_columns_with_their_sender_and_their_fate(agent: &Agent) {
    let admin = &agent.admin;
    let http = address(agent);
    let (mut all, mut rejected) = (Events::open(admin, ""), Events::open(admin, "?verdict=rejected"));
    let mut matching = Events::open(admin, "?match=page.*&where=a:1");
    let at = now();
    let number = [
        "x-weir-client: 0123456789abcdef0123456789abcdef",
        "x-weir-sequence: 1",
        "x-weir-oldest: 1",
    ];
    let (code, answer) = post(&http, "/series", &number, &body(at));
    assert_eq!(code, 200, "{answer}");

    let message = all.message();
    assert_eq!(
        seen(&message),
        ("series 5 page:bad", "rejected", "series_bad_name")
    );
    assert_eq!(message["listener"], format!("http://{http}"));
    assert_eq!(message["address"], "127.0.0.1");
    let message = all.message();
    assert_eq!(
        seen(&message),
        (&format!("page.views:5@{at}|count|#a:1")[..], "accepted", "")
    );
    let message = all.message();
    assert_eq!(seen(&message).1, "dropped");
    assert!(seen(&message).2.contains("noise"), "{message}");
    let message = all.message();
    let late = at + 1_000_000;
    assert_eq!(
        seen(&message),
        (
            &format!("page.level:7.5@{late}|gauge|#a:1")[..],
            "dropped",
            "future_timestamp"
        )
    );
    let message = all.message();
    let line = format!("page.rate:0.5@{at}|rate of 10 s|#a:1");
    assert_eq!(seen(&message), (&line[..], "accepted", ""));
    assert!(seen(&matching.message()).0.starts_with("page.views:"));
    assert!(seen(&matching.message()).0.starts_with("page.level:"));

    // A repetition is shown as that.
    let (code, answer) = post(&http, "/series", &number, &body(at));
    assert_eq!(code, 200, "{answer}");
    assert_eq!(
        seen(&all.message()),
        ("series 5 page:bad", "refused", "duplicate")
    );

    // A body that cannot be read has no series.
    let (code, _) = post(&http, "/series", &[], b"\x1a\x09x");
    assert_eq!(code, 400);
    assert_eq!(seen(&rejected.message()).0, "series 5 page:bad");
    assert_eq!(seen(&rejected.message()).0, "series 5 page:bad");
    let message = rejected.message();
    let (line, verdict, reason) = seen(&message);
    assert_eq!((line, verdict), ("POST /series, 3 bytes", "rejected"));
    assert!(reason.contains("begins no field"), "{message}");

    // There are as many contexts as may be.
    let mut limited = Events::open(admin, "?match=page.three");
    let mut encoder = Encoder::new(1);
    let row = row(&mut encoder, MetricType::Count, "page.three");
    encoder.row(&row, &[(now(), 1.0)]);
    encoder.sort();
    let (code, answer) = post(&http, "/series", &[], &encoder.to_payload());
    assert_eq!(code, 200, "{answer}");
    let message = limited.message();
    assert_eq!((seen(&message).1, seen(&message).2), ("limited", "context_limit"));
}

fn columns_are_explained(agent: &Agent) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("body");
    let admin = &agent.admin;
    let at = now();
    let explain = |body: &[u8], more: &[&str]| {
        std::fs::write(&file, body).unwrap();
        let arguments = ["explain", "--columns", file.to_str().unwrap(), "--admin", admin];
        run(&[&arguments[..], more].concat(), &[])
    };
    let ran = explain(&zstd::encode_all(&body(at)[..], 3).unwrap(), &[]);
    let page = &ran.stdout;
    assert_eq!(ran.code, 1, "{page} {}", ran.stderr);
    for part in [
        "POST /series: 4 series with 4 points; 1 series is dropped",
        "series 5 \"page:bad\": series_bad_name",
        &format!("page.views:5@{at}|count|#a:1"),
        "timestamp: it is added to the open bucket: it is ",
        "page.views (counter) on",
        "no context: it is dropped",
        "a point of it is dropped: future_timestamp",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let ran = explain(&body(at), &["--json"]);
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(json["dropped"][0]["reason"], "series_bad_name");
    assert_eq!(json["explained"][0]["context"]["name"], "page.views");
    assert_eq!(json["explained"][2]["point_dropped"], "future_timestamp");
    let ran = explain(b"\x1a\x09x", &[]);
    assert!(
        ran.stdout.contains("rejected: byte 0 begins no field"),
        "{}",
        ran.stdout
    );
    assert_eq!(ran.code, 1);
}
