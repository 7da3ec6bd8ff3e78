//! The same faults for every output over HTTP: none delays another, the books balance at all times, and after an outage everything
//! arrives, in the order of time where that matters, from the disk too.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::*;
use weir_aggregate::Expansion;
use weir_output::delivery::{Clock, Delivery, Driver, OutputStatus, Reason, Surroundings};
use weir_output::otlp::{Protocol, Temporality};
use weir_output::protobuf::{Content, for_each_field};
use weir_output::remote_write::RemoteWriteVersion;
use weir_output::settings::{DeliverySettings, Start};

const ALL: [&str; 5] = [
    "datadog",
    "remote_write 1.0",
    "remote_write 2.0",
    "otlp delta",
    "otlp cumulative",
];

fn settings(name: &str, url: &str, delivery: DeliverySettings) -> Box<dyn Start> {
    match name {
        "datadog" => {
            let mut settings = datadog(url);
            settings.delivery = delivery;
            Box::new(settings)
        }
        "otlp delta" | "otlp cumulative" | "otlp grpc" => {
            let mut settings = otlp(url);
            settings.delivery = delivery;
            if name == "otlp cumulative" {
                settings.temporality = Temporality::Cumulative;
            }
            if name == "otlp grpc" {
                settings.protocol = Protocol::Grpc;
            }
            Box::new(settings)
        }
        _ => {
            let mut settings = remote_write(url);
            settings.delivery = delivery;
            if name == "remote_write 2.0" {
                settings.version = RemoteWriteVersion::V2;
            }
            Box::new(settings)
        }
    }
}

fn start(name: &str, url: &str, delivery: DeliverySettings, around: &Surroundings) -> Delivery {
    settings(name, url, delivery)
        .start(name, &Arc::new(Expansion::default()), around)
        .unwrap()
}

/// What every kind of backend takes for a success.
fn taken() -> Reply {
    let header = "x-prometheus-remote-write-samples-written";
    Reply::Full(202, vec![(header, "1000000".into())], "")
}

async fn wait(output: &Delivery, what: &str, done: impl FnMut(&OutputStatus) -> bool) -> OutputStatus {
    let waited = tokio::time::timeout(DEADLINE, output.wait_for(done)).await;
    assert!(waited.is_ok(), "{what}: {:#?}", output.status());
    output.status()
}

fn idle(status: &OutputStatus) -> bool {
    status
        .endpoints
        .iter()
        .all(|endpoint| endpoint.pending.total().is_zero())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_delays_another_output() {
    let good = Intake::start(|_| taken()).await;
    let hanging = Intake::start(|_| Reply::Hang).await;
    let trickling = Intake::start(|_| Reply::Trickle(b"HTTP/1.1 ")).await;
    let garbling = Intake::start(|_| Reply::Raw(b"\x00\xff garbage \r\n\r\n")).await;
    let closing = Intake::start(|_| Reply::Raw(b"")).await;
    let failing = Intake::start(|_| Reply::Full(503, vec![], "out of\r\ncheese \x1b[31m")).await;
    let busy = Intake::start(|_| Reply::Full(429, vec![("retry-after", "7200".into())], "")).await;
    let faults = [
        ("nothing listens", format!("http://{}", dead_address())),
        ("no such name", "http://receiver.invalid:9".into()),
        ("hangs", hanging.url()),
        ("trickles", trickling.url()),
        ("garbage", garbling.url()),
        ("closes", closing.url()),
        ("fails", failing.url()),
        ("rate-limits", busy.url()),
    ];
    let mut hurried = delivery();
    hurried.timeout = Duration::from_millis(300);
    let around = surroundings(Clock::system());
    let mut outputs = Vec::new();
    for name in ALL.into_iter().chain(["otlp grpc"]) {
        for (fault, url) in &faults {
            outputs.push((
                format!("{name}, {fault}"),
                start(name, url, hurried.clone(), &around),
            ));
        }
    }
    let healthy: Vec<Delivery> = ALL
        .iter()
        .map(|name| start(name, &good.url(), delivery(), &around))
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
    for (what, output) in &outputs {
        output.shutdown(Duration::ZERO).await;
        let status = output.status();
        assert!(status.balances() && idle(&status), "{what}: {status:#?}");
        let lost = status.endpoints[0].dropped[&Reason::Shutdown];
        assert_eq!(lost, status.received, "{what}: what memory alone held is counted");
    }
}

/// The backend is away for a while, the process ends meanwhile, and the next one finds on disk what the first could not deliver.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_across_a_restart() {
    for name in ALL {
        let directory = tempfile::tempdir().unwrap();
        let reachable = Arc::new(AtomicBool::new(true));
        let script = reachable.clone();
        let intake = Intake::start(move |_| {
            if script.load(Ordering::SeqCst) {
                taken()
            } else {
                Reply::Raw(b"")
            }
        })
        .await;
        let mut kept = delivery();
        kept.disk_path = directory.path().display().to_string();
        kept.disk_bytes_max = 64 << 20;
        let mut total = 0;
        let (mut unix, mut restored) = (BUCKET, 0);
        for life in 0..3 {
            let (clock, driver) = Clock::driven(unix);
            let mut around = surroundings(clock);
            // A queue that memory could not hold.
            around.memory_bytes_max = 4096;
            reachable.store(life == 2, Ordering::SeqCst);
            let output = start(name, &intake.url(), kept.clone(), &around);
            assert_eq!(output.status().endpoints[0].restored.points, restored, "{name}");
            for i in 0..30 {
                total += i;
                step(
                    &output,
                    &driver,
                    unix + i * 10,
                    &format!("a:{i}|c\nb:{i}|g|#k:v\nd:{}|d\n", i + 1),
                )
                .await;
            }
            unix += 310;
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
                // What comes again replaces what was there.
                of_a.collect::<BTreeMap<i64, f64>>().values().sum()
            }
            "otlp delta" => of_a(&intake, otlp_sums).iter().map(|(_, value)| value).sum(),
            "otlp cumulative" => increase(&of_a(&intake, otlp_sums)),
            "remote_write 1.0" => increase(&of_a(&intake, samples_1)),
            _ => increase(&of_a(&intake, samples_2)),
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

type Samples = Vec<(u64, f64)>;

/// The samples of the counter `a` in the order in which they came.
fn of_a(intake: &Intake, read: impl Fn(&[u8], &mut Samples)) -> Samples {
    let mut samples = Vec::new();
    for request in intake.requests() {
        read(&request.plain(), &mut samples);
    }
    // What was answered with silence comes again; time never goes back otherwise.
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

fn fields(bytes: &[u8], wanted: u32) -> Vec<&[u8]> {
    let mut found = Vec::new();
    for_each_field(bytes, |field, content| {
        if let (true, Content::Bytes(bytes)) = (field == wanted, content) {
            found.push(bytes);
        }
        Some(())
    })
    .expect("a message");
    found
}

fn number(bytes: &[u8], wanted: u32) -> u64 {
    let mut found = 0;
    for_each_field(bytes, |field, content| {
        if let (true, Content::Integer(number)) = (field == wanted, content) {
            found = number;
        }
        Some(())
    })
    .expect("a message");
    found
}

fn samples_1(body: &[u8], out: &mut Samples) {
    for series in fields(body, 1) {
        if fields(series, 1)
            .iter()
            .any(|label| fields(label, 2) == [b"a_total"])
        {
            out.extend(
                fields(series, 2)
                    .iter()
                    .map(|s| (number(s, 2), f64::from_bits(number(s, 1)))),
            );
        }
    }
}

fn samples_2(body: &[u8], out: &mut Samples) {
    let symbols = fields(body, 4);
    let a = symbols.iter().position(|symbol| *symbol == b"a_total");
    for series in fields(body, 5) {
        // Few symbols: each reference is one byte.
        let refs = fields(series, 1)[0];
        if refs.iter().any(|at| Some(usize::from(*at)) == a) {
            out.extend(
                fields(series, 2)
                    .iter()
                    .map(|s| (number(s, 2), f64::from_bits(number(s, 1)))),
            );
        }
    }
}

fn otlp_sums(body: &[u8], out: &mut Samples) {
    for resource in fields(body, 1) {
        for scope in fields(resource, 2) {
            for metric in fields(scope, 2)
                .into_iter()
                .filter(|metric| fields(metric, 1) == [b"a"])
            {
                for point in fields(fields(metric, 7)[0], 1) {
                    let value = match number(point, 8) {
                        0 => f64::from_bits(number(point, 4)),
                        _ => f64::NAN,
                    };
                    out.push((number(point, 3), value));
                }
            }
        }
    }
}
