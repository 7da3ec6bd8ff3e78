use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use weir_aggregate::{Histogram, MemberSet, Value, Weights};
use weir_protocol::Kind;
use weir_sketch::Sketch;

use super::state::Row;
use super::{Format, OwnSeries, SavedAt, Scrape};
use crate::delivery::Reason;
use crate::settings::{HistogramStyle, PrometheusSettings};

mod any;
mod contexts;
mod forms;
mod readers;

use readers::{parse, parse_protobuf};

fn settings() -> PrometheusSettings {
    PrometheusSettings {
        expiry: Duration::from_secs(300),
        histograms: HistogramStyle::Summary,
        distributions: HistogramStyle::Native,
        quantiles: vec![0.5, 0.99],
        ..PrometheusSettings::default()
    }
}

fn scrape_with(settings: PrometheusSettings) -> Arc<Scrape> {
    Arc::new(Scrape::new(settings, Weights::Exact, usize::MAX))
}

fn scrape() -> Arc<Scrape> {
    scrape_with(settings())
}

/// One bucket's state of a context.
#[derive(Clone, Debug)]
enum Owned {
    Number(f64),
    Members(Vec<String>),
    Values(Vec<f64>),
}

impl Scrape {
    /// As a flush does it, for a bucket with this timestamp.
    fn add(&self, name: &str, kind: Kind, host: Option<&str>, tags: &[&str], value: &Owned, at: i64) {
        let mut tags = tags.to_vec();
        tags.sort_unstable();
        tags.dedup();
        let row = Row {
            context: None,
            name,
            kind,
            host,
            timestamp: at,
            is_timestamped: false,
            partition: 0,
        };
        let mut state = self.lock();
        let now = at as u32;
        let tags = tags.iter().copied();
        // The counts have refused points.
        let _ = match (kind, value) {
            (Kind::Counter, Owned::Number(value)) => state.add(&row, tags, Value::Counter(*value), now),
            (Kind::Gauge, Owned::Number(value)) => state.add(&row, tags, Value::Gauge(*value), now),
            (Kind::Set, Owned::Members(members)) => {
                let mut set = MemberSet::default();
                members.iter().for_each(|member| {
                    set.insert(member.as_bytes());
                });
                state.add(&row, tags, Value::Set(&set), now)
            }
            (Kind::Histogram | Kind::Timing, Owned::Values(values)) => {
                let mut histogram = Histogram::default();
                values.iter().for_each(|value| {
                    histogram.insert(*value, 1.0);
                });
                state.add(&row, tags, Value::Histogram(&histogram), now)
            }
            (Kind::Distribution, Owned::Values(values)) => {
                let mut sketch = Sketch::new();
                values.iter().for_each(|value| sketch.insert_one(*value));
                state.add(&row, tags, Value::Distribution(&sketch), now)
            }
            other => panic!("{other:?}"),
        };
    }

    fn counter(&self, name: &str, tags: &[&str], value: f64, at: i64) {
        self.add(name, Kind::Counter, None, tags, &Owned::Number(value), at);
    }

    fn gauge(&self, name: &str, tags: &[&str], value: f64, at: i64) {
        self.add(name, Kind::Gauge, None, tags, &Owned::Number(value), at);
    }

    #[track_caller]
    fn check_bytes(&self) {
        let state = self.lock();
        assert_eq!(state.bytes(), state.recount());
    }

    fn body(self: &Arc<Self>, format: Format, now: u32) -> Vec<u8> {
        let mut rendering = self.render(format, false, &[], now);
        std::iter::from_fn(|| rendering.next_piece()).flatten().collect()
    }

    fn text(self: &Arc<Self>, now: u32) -> String {
        String::from_utf8(self.body(Format::Text, now)).unwrap()
    }

    /// Series and values.
    fn values(self: &Arc<Self>, now: u32) -> BTreeMap<String, f64> {
        parse(&self.text(now), Format::Text).unwrap()
    }
}

#[track_caller]
fn check(scrape: &Arc<Scrape>, expected: &[(&str, f64)]) {
    let found = scrape.values(0);
    let expected: BTreeMap<String, f64> = expected
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn the_first_scrape_shows_everything_since_the_start() {
    use weir_aggregate::{Batch, BatchSource, Bucket, TimestampedSample, TimestampedValue};
    let bucket = Bucket {
        start: 100,
        timestamp: 100,
        width: 10,
    };
    let mut batch = Batch::new(BatchSource::default(), bucket, "agent".into());
    for (kind, value) in [(Kind::Counter, 5.0), (Kind::Gauge, 7.0)] {
        let sample = TimestampedSample {
            kind,
            name: "x",
            host: None,
            tags: &[],
            timestamp: 90,
        };
        batch.push_timestamped(&sample, TimestampedValue::Number(value));
    }
    let scrape = scrape();
    scrape.take(&batch, 1);
    scrape.take(&batch, 2);
    let values = Owned::Values(vec![1.0, 2.0]);
    scrape.add("d", Kind::Distribution, None, &[], &values, 100);
    let found = scrape.values(3);
    assert_eq!((found["x_total"], found["d_count"]), (10.0, 2.0));
    let counts = scrape.status().counts;
    assert_eq!((counts.taken, counts.delivered), (5, 5));
    // The first scraper of native histograms, too.
    let native = parse_protobuf(&scrape.body(Format::Protobuf, 3));
    assert_eq!(native["d_count"], 2.0);
}

/// Two datagrams made a scraped counter NaN for good: sums overflowed to infinity, and infinities of both signs to NaN.
#[test]
fn counters_only_rise_and_sums_stay_finite() {
    let scrape = scrape();
    let refused = |reason| scrape.status().counts.dropped.get(&reason).copied().unwrap_or(0);
    for value in [-1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        scrape.counter("never", &[], value, 100);
    }
    assert_eq!(scrape.text(0), "", "what is refused begins no series");
    assert_eq!(
        (refused(Reason::NegativeCounter), refused(Reason::NotFinite)),
        (1, 3)
    );
    for value in [1e308, 1e308, -1e308, -1e308, 0.0, 1.0] {
        scrape.counter("c", &[], value, 100);
    }
    check(&scrape, &[("c_total", 1e308)]);
    assert_eq!(
        (refused(Reason::NegativeCounter), refused(Reason::NotFinite)),
        (3, 4)
    );
    for (name, kind) in [("h", Kind::Histogram), ("d", Kind::Distribution)] {
        for values in [
            vec![1e308],
            vec![1e308],
            vec![1e308, 1e308],
            vec![-1e308],
            vec![-4.0],
        ] {
            scrape.add(name, kind, None, &[], &Owned::Values(values), 100);
        }
    }
    let found = scrape.values(0);
    assert_eq!((found["h_sum"], found["h_count"]), (-4.0, 3.0));
    assert_eq!((found["d_sum"], found["d_count"]), (-4.0, 3.0));
    assert_eq!(refused(Reason::NotFinite), 8);
    let counts = scrape.status().counts;
    assert_eq!(
        counts.taken,
        counts.delivered + counts.dropped.values().sum::<u64>()
    );
}

/// A bucket's count of samples with a tiny rate is beyond every integer.
#[test]
fn counts_of_tiny_rates_do_not_wrap() {
    let scrape = scrape_with(PrometheusSettings {
        histograms: HistogramStyle::Native,
        ..settings()
    });
    let mut histogram = Histogram::default();
    histogram.insert(0.0, 1e300);
    histogram.insert(2.0, 1e300);
    let row = Row {
        context: None,
        name: "h",
        kind: Kind::Histogram,
        host: None,
        timestamp: 100,
        is_timestamped: false,
        partition: 0,
    };
    let mut before = 0.0;
    for _ in 0..3 {
        let tags = std::iter::empty();
        let taken = scrape.lock().add(&row, tags, Value::Histogram(&histogram), 0);
        taken.unwrap();
        let count = parse_protobuf(&scrape.body(Format::Protobuf, 0))["h_count"];
        assert!(count >= before && count > 1e14, "{count} after {before}");
        before = count;
    }
}

#[test]
fn native_histograms_of_a_full_state_trade_resolution_for_memory() {
    let bytes_max = 100_000;
    let scrape = Arc::new(Scrape::new(settings(), Weights::Exact, bytes_max));
    let mut samples = 0.0;
    for round in 0..60 {
        for number in 0..100 {
            let wide = (0..20).map(|step| 1e-8 * 1.9f64.powi(round + 3 * step)).collect();
            let tag = format!("number:{number}");
            scrape.add("d", Kind::Distribution, None, &[&tag], &Owned::Values(wide), 100);
            samples += 20.0;
        }
    }
    let status = scrape.status();
    assert!(status.heap_bytes <= bytes_max + 100 * 512, "{status:?}");
    assert_eq!(status.counts.delivered, 6000, "{status:?}");
    let counts = parse_protobuf(&scrape.body(Format::Protobuf, 0));
    assert_eq!(counts.values().sum::<f64>(), samples);
    scrape.check_bytes();
}

#[test]
fn values_of_every_kind() {
    let scrape = scrape();
    for at in [100, 110] {
        scrape.counter("c", &["a:1"], 2.5, at);
        scrape.gauge("g", &[], at as f64, at);
        let members = Owned::Members(vec!["x".into(), "y".into()]);
        scrape.add("s", Kind::Set, Some("web"), &[], &members, at);
        let values = Owned::Values(
            (1..=100)
                .map(|value| f64::from(value) * at as f64 / 100.0)
                .collect(),
        );
        scrape.add("h", Kind::Timing, Some(""), &["quantile:x"], &values, at);
    }
    check(
        &scrape,
        &[
            ("c_total{a=1}", 5.0),
            ("g", 110.0),
            ("s{host=web}", 2.0),
            ("h{_quantile=x,quantile=0.5}", 55.0),
            ("h{_quantile=x,quantile=0.99}", 108.9),
            ("h_sum{_quantile=x}", 5050.0 * 2.1),
            ("h_count{_quantile=x}", 200.0),
        ],
    );
}

#[test]
fn distributions_are_native_where_they_can_be() {
    let scrape = scrape();
    for at in [100, 110] {
        scrape.add(
            "d",
            Kind::Distribution,
            None,
            &[],
            &Owned::Values(vec![1.0, 2.0, -3.0, 0.0]),
            at,
        );
    }
    let text = scrape.values(0);
    assert_eq!((text["d_count"], text["d_sum"]), (8.0, 0.0));
    assert_eq!(
        parse_protobuf(&scrape.body(Format::Protobuf, 0)),
        [("d_count".to_owned(), 8.0)].into()
    );
}

#[test]
fn timings_in_seconds() {
    let scrape = scrape_with(PrometheusSettings {
        timings_in_seconds: true,
        histograms: HistogramStyle::Native,
        ..settings()
    });
    for (name, kind) in [("ms", Kind::Timing), ("h", Kind::Histogram)] {
        scrape.add(name, kind, None, &[], &Owned::Values(vec![250.0]), 100);
    }
    let values = scrape.values(0);
    assert_eq!((values["ms_sum"], values["ms{quantile=0.5}"]), (0.25, 0.25));
    assert_eq!((values["h_sum"], values["h{quantile=0.5}"]), (250.0, 250.0));
    assert_eq!(parse_protobuf(&scrape.body(Format::Protobuf, 0)).len(), 2);
}

#[test]
fn the_first_in_the_order_keeps_the_name() {
    // The same metrics in another order of arrival have the same names.
    let metrics = [
        ("a.b", Kind::Counter),
        ("a-b", Kind::Counter),
        ("a_b", Kind::Gauge),
        ("a_b_total", Kind::Gauge),
        ("t", Kind::Timing),
        ("t.sum", Kind::Gauge),
        ("up", Kind::Gauge),
        ("weir.contexts", Kind::Counter),
        ("free", Kind::Counter),
        ("free.created", Kind::Counter),
    ];
    let mut seen = BTreeSet::new();
    for turn in 0..metrics.len() {
        let scrape = scrape();
        for at in 0..metrics.len() {
            let (name, kind) = metrics[(at + turn) % metrics.len()];
            let value = if kind == Kind::Timing {
                Owned::Values(vec![1.0])
            } else {
                Owned::Number(1.0)
            };
            scrape.add(name, kind, None, &[], &value, 100);
        }
        let names: Vec<String> = scrape.values(0).into_keys().collect();
        assert_eq!(scrape.status().renamed, 5, "{names:?}");
        seen.insert(names);
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
    let names = seen.pop_first().unwrap();
    // A gauge that Prometheus takes as it is before counters that have to be changed.
    for kept in ["a_b", "a_b_total", "t_count", "free_total", "free_created_total"] {
        assert!(names.iter().any(|name| name == kept), "{kept}: {names:?}");
    }
    assert!(!names.contains(&"up".to_owned()) && !names.contains(&"weir_contexts_total".to_owned()));
}

/// Metrics leave at the end of a flush. A scrape within the next one shows those that had a name before and have stayed.
#[test]
fn a_scrape_within_a_flush_shows_the_named_metrics_that_stay() {
    const METRICS: usize = 5;
    for named in 0..=METRICS {
        for stay in 0..1 << METRICS {
            let scrape = scrape();
            let metric = |number: usize| format!("m{number}");
            (0..named).for_each(|number| scrape.gauge(&metric(number), &[], 1.0, 100));
            assert_eq!(scrape.values(100).len(), named);
            (named..METRICS).for_each(|number| scrape.gauge(&metric(number), &[], 1.0, 100));
            let stays = |number: &usize| stay >> number & 1 == 1;
            (0..METRICS)
                .filter(stays)
                .for_each(|number| scrape.gauge(&metric(number), &[], 1.0, 400));
            {
                let mut state = scrape.lock();
                state.expire(401);
                state.is_within_flush = true;
            }
            scrape.gauge("new", &[], 1.0, 401);
            let shown: Vec<String> = scrape.values(401).into_keys().collect();
            let expected: Vec<String> = (0..named).filter(stays).map(metric).collect();
            assert_eq!(shown, expected, "{named} named, {stay:b} stay");
        }
    }
}

#[test]
fn an_expired_owner_releases_its_name() {
    let scrape = scrape();
    scrape.gauge("a_b", &[], 1.0, 0);
    scrape.gauge("a.b", &[], 2.0, 200);
    let values = scrape.values(200);
    assert_eq!(values["a_b"], 1.0);
    assert_eq!(values.len(), 2);
    let values = scrape.values(300);
    assert_eq!(values, [("a_b".to_owned(), 2.0)].into());
    assert_eq!(scrape.status().renamed, 0);
}

#[test]
fn counters_survive_silence_and_restart_after_expiry() {
    let scrape = scrape();
    scrape.counter("c", &[], 7.0, 0);
    assert_eq!(scrape.values(299)["c_total"], 7.0);
    scrape.counter("c", &[], 1.0, 299);
    assert_eq!(scrape.values(598)["c_total"], 8.0);
    assert!(scrape.values(599).is_empty());
    assert_eq!(scrape.status().metrics, 0);
    scrape.counter("c", &[], 3.0, 700);
    assert_eq!(scrape.values(700)["c_total"], 3.0);
    assert_eq!(scrape.status().counts.expired, 1);
}

#[test]
fn contexts_that_are_equal_in_prometheus_become_one_series() {
    let scrape = scrape();
    for (at, larger) in [(100, 4.0), (110, 6.0)] {
        for (tag, value) in [("k.x:1", larger), ("k-x:1", 3.0)] {
            scrape.counter("c", &[tag], value, at);
            scrape.gauge("g", &[tag, "empty:"], value, at);
            scrape.add(
                "h",
                Kind::Histogram,
                None,
                &[tag],
                &Owned::Values(vec![value]),
                at,
            );
        }
    }
    check(
        &scrape,
        &[
            ("c_total{k_x=1}", 16.0),
            ("g{k_x=1}", 6.0),
            ("h{k_x=1,quantile=0.5}", 6.0),
            ("h{k_x=1,quantile=0.99}", 6.0),
            ("h_sum{k_x=1}", 16.0),
            ("h_count{k_x=1}", 4.0),
        ],
    );
    assert_eq!(scrape.status().counts.merged, 6);
}

#[test]
fn timestamped_gauges_never_go_back() {
    let scrape = scrape();
    let put = |timestamp, value| {
        let row = Row {
            context: None,
            name: "g",
            kind: Kind::Gauge,
            host: None,
            timestamp,
            is_timestamped: true,
            partition: 0,
        };
        // Older values are refused and counted.
        let _ = (scrape.lock()).add(&row, std::iter::empty(), Value::Gauge(value), 5);
    };
    put(1000, 1.0);
    put(2000, 2.0);
    put(1500, 3.0);
    check(&scrape, &[("g", 2.0)]);
    let counts = scrape.status().counts;
    assert_eq!((counts.taken, counts.delivered), (3, 2));
    assert_eq!(counts.dropped, [(Reason::OutOfOrder, 1)].into());
}

#[test]
fn a_full_budget_refuses_new_series_and_keeps_the_others_exact() {
    let scrape = Arc::new(Scrape::new(settings(), Weights::Exact, 20_000));
    for at in [100, 110] {
        for number in 0..1000 {
            scrape.counter("c", &[&format!("number:{number}")], 1.0, at);
        }
    }
    let status = scrape.status();
    assert!(status.heap_bytes <= 20_000, "{status:?}");
    assert!(status.series > 20 && status.series < 500, "{status:?}");
    assert_eq!(status.counts.taken, 2000);
    assert_eq!(status.counts.delivered, 2 * status.series as u64);
    let refused = 2000 - status.counts.delivered;
    assert_eq!(status.counts.dropped, [(Reason::Memory, refused)].into());
    assert!(scrape.values(0).values().all(|value| *value == 2.0));
}

#[test]
fn pieces_of_a_large_exposition_fit_together() {
    let scrape = scrape();
    for number in 0..5000 {
        scrape.counter("requests", &[&format!("number:{number}")], 1.0, 100);
        scrape.add(
            &format!("d{}", number % 7),
            Kind::Distribution,
            None,
            &[&format!("n:{number}")],
            &Owned::Values(vec![1.0, 5.0]),
            100,
        );
    }
    let own = [OwnSeries {
        name: "weir_x_total",
        help: "X.",
        is_counter: true,
        labels: vec![("l", "\"".into())],
        value: 3.0,
    }];
    for format in [Format::Text, Format::OpenMetrics, Format::Protobuf] {
        let mut whole = Vec::new();
        let (mut pieces, mut longest) = (0, 0);
        let mut rendering = scrape.render(format, false, &own, 100);
        while let Some(piece) = rendering.next_piece() {
            longest = longest.max(piece.len());
            whole.extend(piece);
            pieces += 1;
            // A flush in between, with a new series and a new metric that wants a name that is taken.
            if pieces == 2 {
                scrape.counter("requests", &["number:0"], 1.0, 110);
                scrape.counter("requests.", &[], 1.0, 110);
                scrape.gauge("requests_total", &[], 1.0, 110);
                assert_eq!(
                    scrape.text(500).matches("number=\"1\"").count(),
                    1,
                    "nothing expires meanwhile"
                );
            }
        }
        assert!(
            pieces > 3 && longest < 80 * 1024,
            "{pieces} pieces of up to {longest} bytes"
        );
        let series = match format {
            Format::Protobuf => parse_protobuf(&whole),
            _ => parse(std::str::from_utf8(&whole).unwrap(), format).unwrap(),
        };
        assert_eq!(series["weir_x_total{l=\"}"], 3.0);
        assert_eq!(
            series
                .keys()
                .filter(|name| name.starts_with("requests_total{"))
                .count(),
            5000
        );
        assert_eq!(
            series.keys().filter(|name| name.contains("_count{")).count(),
            5000
        );
        drop(rendering);
        let mut rendering = scrape.render(format, true, &own, 100);
        let packed: Vec<u8> = std::iter::from_fn(|| rendering.next_piece()).flatten().collect();
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(packed.as_slice())
            .read_to_end(&mut unpacked)
            .unwrap();
        assert!(unpacked.len() > packed.len() * 3);
    }
    assert_eq!(scrape.lock().renderings, 0);
}

#[test]
fn own_series_are_grouped_and_escaped() {
    let series = |name, is_counter, label: &str| OwnSeries {
        name,
        help: "Help.",
        is_counter,
        labels: vec![("output", label.to_owned())],
        value: 1.5,
    };
    let own = [
        series("weir_a_total", true, "a\"b\\c\nd"),
        series("weir_a_total", true, "x"),
        series("weir_b", false, "x"),
    ];
    let read = |format| {
        let mut rendering = scrape().render(format, false, &own, 0);
        let body: Vec<u8> = std::iter::from_fn(|| rendering.next_piece()).flatten().collect();
        String::from_utf8(body).unwrap()
    };
    let text = read(Format::Text);
    assert!(
        text.starts_with("# HELP weir_a_total Help.\n# TYPE weir_a_total counter\nweir_a_total{output=\"a\\\"b\\\\c\\nd\"} 1.5\n"),
        "{text}"
    );
    let openmetrics = read(Format::OpenMetrics);
    assert!(
        openmetrics.contains("# TYPE weir_a counter\nweir_a_total{"),
        "{openmetrics}"
    );
    let parsed = parse(&text, Format::Text).unwrap();
    assert_eq!(parsed, parse(&openmetrics, Format::OpenMetrics).unwrap());
    assert_eq!(parsed.len(), 3);
}

#[test]
fn memory_is_accounted_to_the_byte_and_released() {
    let scrape = scrape();
    for at in [0, 10] {
        for number in 0..3000 {
            let tag = format!("number:{number}");
            scrape.counter(&format!("c{}", number % 10), &[&tag], 1.0, at);
            scrape.add(
                &format!("d-{}", number % 3),
                Kind::Distribution,
                None,
                &[&tag],
                &Owned::Values(vec![number.into()]),
                at,
            );
            scrape.gauge(&format!("d.{}", number % 3), &[&tag], 1.0, at);
        }
    }
    let _ = scrape.text(10);
    scrape.check_bytes();
    scrape.gauge("stays", &[], 1.0, 20);
    let full = scrape.status().heap_bytes;
    let _ = scrape.text(310);
    scrape.check_bytes();
    let status = scrape.status();
    assert_eq!((status.series, status.metrics), (1, 1));
    assert!(status.heap_bytes < full / 100, "{} of {full}", status.heap_bytes);
}
