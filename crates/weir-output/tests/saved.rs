//! An output whose process ends, and the output of the next process that continues its sums, as a receiver sees them.

use crate::support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::*;
use weir_aggregate::{Batch, Bucket, Expansion, Weights};
use weir_output::delivery::{Clock, Delivery, OutputEnvironment, OutputState, SavedStates};
use weir_output::otlp::{OtlpSettings, Temporality};
use weir_output::prometheus::{Format, SavedAt, Scrape};
use weir_output::remote_write::{RemoteWriteSettings, RemoteWriteVersion};
use weir_output::settings::{HistogramStyle, PrometheusSettings, Start};
use weir_protocol::Kind;
use weir_state::{ExactSum, Identity, State};

const FIRST: &str = "a:5|c\ng:1|g\nd:1:2:300|d\nh:4:5|h|@0.5\nm:7|ms\ns:x|s\nother.name:1|c\nother-name:2|c";
const SECOND: &str = "a:3|c\nd:4|d\nh:9|h\nnew:1|c\nother-name:2|c";

fn start(settings: &dyn Start, around: &OutputEnvironment) -> Delivery {
    let started = settings.start("output", &Arc::new(Expansion::default()), around);
    started.unwrap()
}

async fn submit(output: &Delivery, bucket: i64, messages: &str) {
    batches_at(BUCKET + 10 * bucket, messages)
        .iter()
        .for_each(|batch| output.submit(batch));
    let all = output.wait_for(|status| idle(status) && status.received.points > 0);
    tokio::time::timeout(DEADLINE, all)
        .await
        .expect("everything delivered");
}

async fn left_by(output: Delivery) -> Option<OutputState> {
    output.keep_state();
    output.shutdown(Duration::ZERO).await;
    assert!(output.status().balances());
    output.take_state()
}

fn with(saved: OutputState, clock: &Clock) -> OutputEnvironment {
    let saved = BTreeMap::from([("output".to_owned(), saved)]);
    OutputEnvironment {
        saved: Arc::new(SavedStates::new(saved, Duration::from_secs(3))),
        ..environment(clock.clone())
    }
}

/// The requests of two buckets, between which the process ends or does not.
async fn requests(settings: impl Fn(&str) -> Box<dyn Start>, ends: bool) -> Vec<Vec<u8>> {
    let intake = Intake::start(|_| taken()).await;
    let settings = settings(&intake.url());
    let (clock, _driver) = Clock::driven(BUCKET + 5);
    let mut output = start(settings.as_ref(), &environment(clock.clone()));
    submit(&output, 0, FIRST).await;
    if ends {
        let around = with(left_by(output).await.unwrap(), &clock);
        output = start(settings.as_ref(), &around);
        assert_eq!(around.saved.finish(), []);
    }
    submit(&output, 1, SECOND).await;
    let bodies = intake.requests().iter().map(Request::plain).collect();
    output.shutdown(DEADLINE).await;
    bodies
}

async fn check(settings: impl Fn(&str) -> Box<dyn Start>) {
    let unbroken = requests(&settings, false).await;
    assert!(unbroken.len() >= 2);
    assert_eq!(requests(&settings, true).await, unbroken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_write_continues_without_a_gap() {
    check(|url| {
        Box::new(RemoteWriteSettings {
            version: RemoteWriteVersion::V2,
            ..remote_write(url)
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cumulative_otlp_continues_without_a_gap() {
    check(|url| {
        Box::new(OtlpSettings {
            temporality: Temporality::Cumulative,
            ..otlp(url)
        })
    })
    .await;
}

/// The last bucket of an output whose backend accepts nothing is lost, but not from the sums that the next process continues.
async fn check_without_patience(settings: impl Fn(&str) -> Box<dyn Start>) {
    let unbroken = requests(&settings, false).await;
    let (intake, reachable) = Intake::that_can_be_away(false).await;
    let settings = settings(&intake.url());
    let (clock, _driver) = Clock::driven(BUCKET + 5);
    let first = start(settings.as_ref(), &environment(clock.clone()));
    // On one thread: the end begins before the encoder does.
    batches_at(BUCKET, FIRST)
        .iter()
        .for_each(|batch| first.submit(batch));
    first.keep_state();
    first.finish(false, DEADLINE).await;
    assert!(first.status().balances());
    let around = with(first.take_state().unwrap(), &clock);
    reachable.store(true, Ordering::SeqCst);
    let second = start(settings.as_ref(), &around);
    let seen = intake.requests().len();
    submit(&second, 1, SECOND).await;
    let bodies: Vec<_> = intake.requests()[seen..].iter().map(Request::plain).collect();
    assert!(!bodies.is_empty() && unbroken.ends_with(&bodies));
    second.shutdown(DEADLINE).await;
}

#[tokio::test]
async fn sums_contain_the_last_bucket_of_an_output_that_accepts_nothing() {
    check_without_patience(|url| {
        Box::new(RemoteWriteSettings {
            version: RemoteWriteVersion::V2,
            ..remote_write(url)
        })
    })
    .await;
    check_without_patience(|url| {
        Box::new(OtlpSettings {
            temporality: Temporality::Cumulative,
            ..otlp(url)
        })
    })
    .await;
}

/// Sums for one receiver are not used for another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_settings_start_again_and_report_it() {
    let intake = Intake::start(|_| taken()).await;
    let (clock, _driver) = Clock::driven(BUCKET + 5);
    let settings = |name: &str| RemoteWriteSettings {
        labels: BTreeMap::from([("cluster".to_owned(), name.to_owned())]),
        ..remote_write(&intake.url())
    };
    let first = start(&settings("one"), &environment(clock.clone()));
    submit(&first, 0, FIRST).await;
    let saved = left_by(first).await.unwrap();
    let check = |saved: OutputState, name: &str, reason: &str| {
        let around = with(saved, &clock);
        let second = start(&settings(name), &around);
        let errors = around.saved.finish();
        assert!(
            errors.len() == 1 && errors[0].reason.contains(reason),
            "{errors:?}"
        );
        second
    };
    check(saved.clone(), "other", "its settings changed")
        .shutdown(Duration::ZERO)
        .await;
    let gone = SavedStates::new(BTreeMap::from([("gone".to_owned(), saved)]), Duration::ZERO);
    assert!(gone.finish()[0].reason.contains("the output no longer exists"));
}

fn scrape() -> Arc<Scrape> {
    Arc::new(Scrape::new(
        PrometheusSettings {
            expiry: Duration::from_secs(3600),
            histograms: HistogramStyle::Summary,
            distributions: HistogramStyle::Native,
            quantiles: vec![0.5, 0.99],
            timings_in_seconds: true,
            host_label: true,
            ..PrometheusSettings::default()
        },
        Weights::Exact,
        usize::MAX,
    ))
}

fn saved_before(away: u32) -> SavedAt {
    SavedAt { away, partition: 0 }
}

fn shown(scrape: &Arc<Scrape>, now: u32) -> String {
    let mut rendering = scrape.render(Format::of_accept(""), false, &[], now);
    let mut text = Vec::new();
    while let Some(piece) = rendering.next_piece() {
        text.extend(piece);
    }
    String::from_utf8(text).unwrap()
}

fn take(scrape: &Scrape, bucket: i64, messages: &str, now: u32) {
    batches_at(BUCKET + 10 * bucket, messages)
        .iter()
        .for_each(|batch| scrape.take(batch, now));
}

#[test]
fn a_scrape_shows_the_same_after_a_restart() {
    let unbroken = scrape();
    take(&unbroken, 0, FIRST, 100);
    let before = shown(&unbroken, 100);
    let next = scrape();
    assert_eq!(next.lineage(), unbroken.lineage());
    // Another process has another clock.
    assert_eq!(next.restore(&unbroken.save(100), saved_before(5), 0), Ok(0));
    assert_eq!(shown(&next, 0), before);
    take(&unbroken, 1, SECOND, 110);
    take(&next, 1, SECOND, 5);
    assert_eq!(shown(&next, 5), shown(&unbroken, 110));
}

/// A batch of a fleet with counters of one partition, by name.
fn of_fleet(partition: u32, start: i64, counters: &[(&str, f64)]) -> Batch {
    let bucket = Bucket {
        start,
        timestamp: start,
        width: 10,
    };
    let mut batch = Batch::of_fleet(bucket, 1, partition);
    for (name, value) in counters {
        let identity = Identity::new(Kind::Counter, name, Some(""), None, []);
        batch.push_merged(identity, u32::MAX, State::Counter(ExactSum::from(*value)));
    }
    batch.last = true;
    batch
}

/// The partitions of a fleet go to two processes, and then to a third one.
#[test]
fn sums_move_with_their_partitions() {
    let first = scrape();
    first.take(&of_fleet(3, BUCKET, &[("of.three", 5.0), ("moves", 1.0)]), 100);
    first.take(&of_fleet(7, BUCKET, &[("of.seven", 2.0)]), 100);
    let parts = first.save_partitions(105);
    assert_eq!(parts.iter().map(|part| part.0).collect::<Vec<_>>(), [3, 7]);
    let next = |parts: &[(u32, Vec<u8>)]| {
        let next = scrape();
        for (partition, bytes) in parts {
            let at = SavedAt {
                away: 5,
                partition: *partition,
            };
            assert_eq!(next.restore(bytes, at, 0), Ok(0));
        }
        next
    };
    let (three, seven) = (next(&parts[..1]), next(&parts[1..]));
    three.take(&of_fleet(3, BUCKET + 10, &[("of.three", 1.0)]), 5);
    // It has moved to an added partition.
    seven.take(
        &of_fleet(7, BUCKET + 20, &[("of.seven", 1.0), ("moves", 4.0)]),
        15,
    );
    assert_eq!(value(&three, "of_three_total"), Some(6.0));
    assert_eq!(value(&seven, "of_three_total"), None);
    let parts = [three.save_partitions(20), seven.save_partitions(30)].concat();
    for parts in [parts.clone(), parts.into_iter().rev().collect()] {
        let both = next(&parts);
        let values = ["of_three_total", "of_seven_total", "moves_total"].map(|name| value(&both, name));
        assert_eq!(values, [Some(6.0), Some(3.0), Some(4.0)]);
        let again = both.save_partitions(5);
        assert_eq!(again.iter().map(|part| part.0).collect::<Vec<_>>(), [3, 7]);
        assert_eq!(value(&next(&again[1..]), "moves_total"), Some(4.0));
    }
}

fn value(scrape: &Arc<Scrape>, name: &str) -> Option<f64> {
    let text = shown(scrape, 6);
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value.parse().unwrap())
}

/// Series leave when they would have left.
#[test]
fn expiry_continues_over_a_restart() {
    let first = scrape();
    let expiry = Duration::from_secs(60);
    first.set_expiry(expiry);
    take(&first, 0, "old:1|c", 100);
    take(&first, 1, "young:1|c", 140);
    let next = scrape();
    next.set_expiry(expiry);
    next.restore(&first.save(145), saved_before(10), 0).unwrap();
    assert!(shown(&next, 4).contains("old_total"));
    let later = shown(&next, 5);
    assert!(
        !later.contains("old_total") && later.contains("young_total"),
        "{later}"
    );
}

#[test]
fn invalid_state_gives_an_empty_scrape() {
    let first = scrape();
    take(&first, 0, FIRST, 100);
    let saved = first.save(100);
    let mut refused = 0;
    for at in 0..saved.len() {
        let mut damaged = saved.clone();
        damaged[at] ^= 0x55;
        for bytes in [&damaged[..], &saved[..at]] {
            let next = scrape();
            if next.restore(bytes, saved_before(0), 0).is_err() {
                refused += 1;
                assert_eq!(next.status().series, 0);
            }
            // Any result must be a valid start.
            take(&next, 1, SECOND, 10);
            shown(&next, 10);
        }
    }
    assert!(refused > saved.len());
}
