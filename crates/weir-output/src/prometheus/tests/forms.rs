//! Options by metric.

use weir_config::{MatchType, MetricType};

use super::*;
use crate::settings::{FormStyle, MetricForm};

fn form(pattern: &str) -> MetricForm {
    MetricForm {
        pattern: pattern.into(),
        match_type: MatchType::Wildcard,
        types: Vec::new(),
        style: FormStyle::Default,
        buckets: Vec::new(),
        quantiles: Vec::new(),
        help: String::new(),
        expiry: Duration::ZERO,
        scale: 1.0,
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
