//! Options by metric.

use weir_config::MetricType;

use super::*;
use crate::settings::{FormStyle, MetricForm};

fn form(pattern: &str) -> MetricForm {
    MetricForm {
        pattern: pattern.into(),
        ..MetricForm::default()
    }
}

fn with(metrics: Vec<MetricForm>) -> Arc<Scrape> {
    scrape_with(PrometheusSettings {
        metrics,
        ..settings()
    })
}

#[test]
fn classic_buckets_count_what_is_below_them() {
    let scrape = with(vec![MetricForm {
        style: FormStyle::Classic,
        buckets: vec![10.0, 1.0, 0.25],
        help: "Words".into(),
        ..form("t.*")
    }]);
    let values = Owned::Values(vec![0.25, 0.3, 1.0, 1.5, 11.0]);
    for at in [100, 110] {
        scrape.add("t.x", Kind::Histogram, None, &["a:1"], &values, at);
    }
    scrape.add("other", Kind::Histogram, None, &[], &values, 100);
    let text = scrape.text(111);
    for line in [
        "# HELP t_x Words\n# TYPE t_x histogram\n",
        "t_x_bucket{a=\"1\",le=\"0.25\"} 2\n",
        "t_x_bucket{a=\"1\",le=\"1\"} 6\n",
        "t_x_bucket{a=\"1\",le=\"10\"} 8\n",
        "t_x_bucket{a=\"1\",le=\"+Inf\"} 10\n",
        "t_x_count{a=\"1\"} 10\n",
        "# TYPE other summary\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let found = parse_protobuf(&scrape.body(Format::Protobuf, 111));
    let counted = found.iter().find(|(series, _)| series.starts_with("t_x_count"));
    assert_eq!(counted.map(|(_, count)| *count), Some(10.0), "{found:?}");
    scrape.check_bytes();
}

#[test]
fn values_are_scaled_and_series_have_their_own_expiry() {
    let scrape = with(vec![
        MetricForm {
            scale: 1024.0,
            ..form("kb")
        },
        MetricForm {
            types: vec![MetricType::Gauge],
            expiry: Duration::from_secs(10),
            ..form("")
        },
    ]);
    scrape.counter("kb", &[], 2.0, 100);
    scrape.gauge("level", &[], 1.0, 100);
    scrape.counter("stays", &[], 1.0, 100);
    check(
        &scrape,
        &[("kb_total", 2048.0), ("level", 1.0), ("stays_total", 1.0)],
    );
    let text = scrape.text(110);
    assert!(
        !text.contains("\nlevel ") && text.contains("stays_total 1"),
        "{text}"
    );
}

#[test]
fn counters_may_keep_their_names() {
    let scrape = scrape_with(PrometheusSettings {
        total_suffix: false,
        ..settings()
    });
    scrape.counter("hits", &[], 2.0, 100);
    scrape.counter("seen_total", &[], 3.0, 100);
    let text = scrape.text(100);
    assert!(text.contains("# TYPE hits counter\nhits 2\n"), "{text}");
    assert!(
        text.contains("# TYPE seen_total counter\nseen_total 3\n"),
        "{text}"
    );
    let open = String::from_utf8(scrape.body(Format::OpenMetrics, 100)).unwrap();
    assert!(open.contains("# TYPE hits unknown\nhits 2\n"), "{open}");
    assert!(open.contains("# TYPE seen counter\nseen_total 3\n"), "{open}");
}

#[test]
fn sums_have_their_start_time() {
    let scrape = scrape_with(PrometheusSettings {
        openmetrics_created: true,
        ..settings()
    });
    for at in [100, 110] {
        scrape.counter("hits", &[], 2.0, at);
        scrape.gauge("level", &[], 2.0, at);
        scrape.add("h", Kind::Histogram, None, &[], &Owned::Values(vec![1.0]), at);
    }
    let open = String::from_utf8(scrape.body(Format::OpenMetrics, 111)).unwrap();
    assert!(open.contains("hits_total 4\nhits_created 100\n"), "{open}");
    assert!(open.contains("h_count 2\nh_created 100\n"), "{open}");
    assert!(!open.contains("level_created"), "{open}");
    assert!(!scrape.text(111).contains("_created"));
    // Counter: a timestamp message in field 3, its seconds in field 1.
    let protobuf = scrape.body(Format::Protobuf, 111);
    let timestamp = [0x1a, 2, 8, 100];
    assert!(
        protobuf.windows(4).any(|bytes| bytes == timestamp),
        "{protobuf:x?}"
    );
}

#[test]
fn an_entry_with_a_tag_is_for_the_series_with_that_tag_alone() {
    let scrape = with(vec![
        MetricForm {
            tag: "weir_mapping:1".into(),
            scale: 0.001,
            help: "Seconds".into(),
            expiry: Duration::from_secs(10),
            ..MetricForm::default()
        },
        MetricForm {
            tag: "weir_mapping:2".into(),
            style: FormStyle::Classic,
            buckets: vec![1.0],
            ..MetricForm::default()
        },
    ]);
    let one = Owned::Values(vec![5.0]);
    scrape.add(
        "x_seconds",
        Kind::Histogram,
        None,
        &["weir_mapping:1", "zone:a"],
        &one,
        100,
    );
    scrape.add("x_seconds", Kind::Histogram, None, &["zone:b"], &one, 100);
    scrape.add("lag_seconds", Kind::Histogram, None, &[], &one, 100);
    scrape.add("y", Kind::Timing, None, &["weir_mapping:2"], &one, 100);
    scrape.gauge("level", &["weir_mapping:3"], 1.0, 100);
    let text = scrape.text(105);
    for line in [
        "# HELP x_seconds Seconds\n",
        "x_seconds_sum{zone=\"a\"} 0.005\n",
        "x_seconds_sum{zone=\"b\"} 5\n",
        "lag_seconds_sum 5\n",
        "# TYPE y histogram\ny_bucket{le=\"1\"} 0\n",
        "level{weir_mapping=\"3\"} 1\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let text = scrape.text(110);
    assert!(
        !text.contains("zone=\"a\"") && text.contains("zone=\"b\""),
        "the other series stays: {text}"
    );
    scrape.check_bytes();
}

#[test]
fn one_name_with_two_styles_is_two_metrics() {
    let scrape = with(vec![MetricForm {
        tag: "m:1".into(),
        style: FormStyle::Classic,
        buckets: vec![1.0],
        ..MetricForm::default()
    }]);
    let values = Owned::Values(vec![0.5]);
    scrape.add("t", Kind::Timing, None, &["m:1"], &values, 100);
    scrape.add("t", Kind::Timing, None, &["a:1"], &values, 100);
    let text = scrape.text(100);
    assert!(
        text.contains("# TYPE t summary\n") && text.contains("t_count{a=\"1\"} 1\n"),
        "{text}"
    );
    assert_eq!(text.matches("_bucket{le=\"1\"} 1\n").count(), 1, "{text}");
}

/// As after conversion from statsd_exporter.
fn merging(metrics: Vec<MetricForm>) -> Arc<Scrape> {
    scrape_with(PrometheusSettings {
        metrics,
        merge_names: true,
        timings_in_seconds: true,
        distributions: HistogramStyle::Summary,
        quantiles: Vec::new(),
        ..settings()
    })
}

#[test]
fn metrics_of_one_name_and_type_add_up_where_names_merge() {
    let scrape = merging(Vec::new());
    for at in [100, 110] {
        scrape.counter("x.y-z", &["aa:1"], 1.0, at);
        scrape.counter("x.y_z", &["aa:1"], 2.0, at);
    }
    scrape.gauge("open.slots", &[], 32.0, 100);
    scrape.gauge("open_slots", &["executor:Local"], 30.0, 100);
    scrape.add(
        "open slots",
        Kind::Set,
        None,
        &["executor:None"],
        &Owned::Members(vec!["a".into()]),
        100,
    );
    scrape.add(
        "api.latency",
        Kind::Timing,
        None,
        &[],
        &Owned::Values(vec![10.0]),
        100,
    );
    scrape.add(
        "api.latency",
        Kind::Histogram,
        None,
        &[],
        &Owned::Values(vec![0.02]),
        100,
    );
    scrape.add(
        "api/latency",
        Kind::Distribution,
        None,
        &[],
        &Owned::Values(vec![0.03]),
        100,
    );
    scrape.counter("9", &[], 1.0, 100);
    scrape.counter("_9", &[], 1.0, 100);
    check(
        &scrape,
        &[
            ("x_y_z_total{aa=1}", 6.0),
            ("open_slots", 32.0),
            ("open_slots{executor=Local}", 30.0),
            ("open_slots{executor=None}", 1.0),
            ("api_latency_sum", 0.06),
            ("api_latency_count", 3.0),
            ("_9_total", 2.0),
        ],
    );
    assert_eq!(scrape.status().renamed, 0);
    scrape.check_bytes();
}

#[test]
fn metrics_of_one_name_and_different_types_stay_apart_where_names_merge() {
    let scrape = merging(Vec::new());
    scrape.gauge("a.b", &[], 1.0, 100);
    scrape.gauge("a-b", &["c:1"], 1.0, 100);
    scrape.counter("a_b", &[], 2.0, 100);
    let values = scrape.values(100);
    assert_eq!(values.get("a_b_total"), Some(&2.0), "{values:?}");
    assert_eq!(values.len(), 3, "{values:?}");
    assert_eq!(scrape.status().renamed, 1, "the gauges have one other name");
}

#[test]
fn values_keep_the_factor_of_their_own_mapping_where_names_merge() {
    let of = |tag: &str, scale| MetricForm {
        tag: tag.into(),
        scale,
        ..MetricForm::default()
    };
    let scrape = merging(vec![of("m:1", 0.001), of("m:2", 1.0)]);
    for at in [100, 110] {
        scrape.counter("x.ms", &["m:1"], 500.0, at);
        scrape.counter("x_ms", &["m:2"], 2.0, at);
        scrape.counter("x-ms", &[], 3.0, at);
    }
    check(&scrape, &[("x_ms_total", 11.0)]);
}

#[test]
fn merged_names_and_entries_by_tag_survive_a_restart() {
    let make = || {
        merging(vec![MetricForm {
            tag: "m:1".into(),
            expiry: Duration::from_secs(10),
            ..MetricForm::default()
        }])
    };
    let scrape = make();
    scrape.counter("a.b", &["m:1"], 1.0, 100);
    scrape.counter("a-b", &["c:1"], 2.0, 100);
    scrape.add(
        "t",
        Kind::Timing,
        None,
        &["m:1"],
        &Owned::Values(vec![1000.0]),
        100,
    );
    let next = make();
    assert_eq!(next.restore(&scrape.save(100), SavedAt::default(), 100), Ok(0));
    check(
        &next,
        &[
            ("a_b_total", 1.0),
            ("a_b_total{c=1}", 2.0),
            ("t_sum", 1.0),
            ("t_count", 1.0),
        ],
    );
    next.counter("a_b", &["m:1"], 1.0, 105);
    next.add(
        "t",
        Kind::Timing,
        None,
        &["m:1"],
        &Owned::Values(vec![1000.0]),
        105,
    );
    let values = next.values(109);
    assert_eq!((values["a_b_total"], values["t_sum"]), (2.0, 2.0), "{values:?}");
    next.check_bytes();
}
