//! The data of a correct agent, and every deviation from it.

use super::*;
use weir_load::manifest::{ContextTruth, Manifest};

fn rules() -> Rules {
    Rules {
        ignore_prefixes: vec!["agent.".into()],
        ignore_tags: vec!["pod".into()],
        tolerance: 1e-9,
    }
}

fn truth(kind: &str, name: &str) -> ContextTruth {
    ContextTruth {
        name: name.into(),
        kind: kind.into(),
        tags: vec!["a:b".into(), "c".into()],
        messages: 2,
        samples: 2,
        weight: 20,
        sum: "3".parse().unwrap(),
        weighted_sum: "30".parse().unwrap(),
        min: Some("1".parse().unwrap()),
        max: Some("2".parse().unwrap()),
        last: vec!["2".parse().unwrap()],
        members: vec!["x".into(), "y".into()],
        ..ContextTruth::default()
    }
}

fn manifest(kinds: &[&str]) -> Manifest {
    Manifest {
        contexts: Some(
            kinds
                .iter()
                .map(|kind| truth(kind, &format!("m.{kind}")))
                .collect(),
        ),
        events: Some(BTreeMap::from([("up".to_owned(), 1)])),
        checks: Some(BTreeMap::from([("db|0".to_owned(), 1)])),
        ..Manifest::default()
    }
}

fn number(metric: &str, kind: PointKind, ts: f64, value: f64) -> Point {
    Point {
        metric: metric.into(),
        kind,
        ts: Some(ts),
        interval: Some(10),
        tags: vec!["c".into(), "a:b".into(), "a:b".into(), "pod:1".into()],
        data: Data::Number { value },
        ..Point::default()
    }
}

fn sketch(metric: &str, cnt: i64, sum: f64, min: f64, max: f64) -> Point {
    Point {
        data: Data::Sketch {
            cnt,
            min,
            max,
            avg: sum / cnt as f64,
            sum,
            k: vec![1],
            n: vec![cnt as u32],
        },
        kind: PointKind::Sketch,
        ..number(metric, PointKind::Sketch, 10.0, 0.0)
    }
}

/// Output of a correct agent for `manifest(&["c", "g", "s", "d", "h"])`, in two buckets.
fn faithful() -> Vec<Point> {
    vec![
        number("m.c", PointKind::Rate, 10.0, 1.0),
        number("m.c", PointKind::Rate, 20.0, 2.0),
        number("m.g", PointKind::Gauge, 20.0, 2.0),
        number("m.g", PointKind::Gauge, 10.0, 1.0),
        number("m.s", PointKind::Gauge, 10.0, 1.0),
        number("m.s", PointKind::Gauge, 20.0, 1.0),
        sketch("m.d", 10, 10.0, 1.0, 1.0),
        sketch("m.d", 10, 20.0, 2.0, 2.0),
        number("m.h.count", PointKind::Rate, 10.0, 1.0),
        number("m.h.count", PointKind::Rate, 20.0, 1.0),
        number("m.h.avg", PointKind::Gauge, 10.0, 1.0),
        number("m.h.avg", PointKind::Gauge, 20.0, 2.0),
        number("m.h.max", PointKind::Gauge, 10.0, 1.0),
        number("m.h.max", PointKind::Gauge, 20.0, 2.0),
        number("m.h.95percentile", PointKind::Gauge, 20.0, 2.0),
        number("agent.self", PointKind::Gauge, 20.0, 1.0),
    ]
}

fn compare(sink: &str, manifest: &Manifest, points: &[Point]) -> Comparison {
    let mut observed = Observed::new(sink);
    for point in points {
        observed.add(&rules(), &Record::Point(point.clone()));
    }
    observed.add(
        &rules(),
        &Record::Event(BTreeMap::from([("msg_title".into(), "up".into())])),
    );
    // The agent's own metrics, which are ignored.
    for name in ["db", "agent.up"] {
        let check = BTreeMap::from([("check".into(), name.into()), ("status".into(), 0.into())]);
        observed.add(&rules(), &Record::Check(check));
    }
    observed.compare(&rules(), manifest, 100).unwrap()
}

#[test]
fn a_faithful_agent_is_equal_and_every_single_change_is_seen() {
    let manifest = manifest(&["c", "g", "s", "d", "h"]);
    let comparison = compare("datadog", &manifest, &faithful());
    assert!(comparison.equal, "{comparison:#?}");
    // Removes, in turn, each point that is not redundant.
    let redundant = ["m.h.avg", "m.h.95percentile", "agent.self"];
    for index in 0..faithful().len() {
        let mut points = faithful();
        let removed = points.remove(index);
        let gauge_that_is_not_last = removed.metric == "m.g" && removed.ts == Some(10.0);
        let not_highest = removed.metric == "m.h.max" && removed.ts == Some(10.0);
        let comparison = compare("datadog", &manifest, &points);
        if gauge_that_is_not_last || not_highest || redundant[1..].contains(&removed.metric.as_str()) {
            assert!(comparison.equal, "{removed:?}: {comparison:#?}");
        } else {
            assert!(!comparison.equal, "{removed:?} was not missed");
        }
    }
    // Changes each number.
    for index in 0..faithful().len() - 1 {
        let mut points = faithful();
        match &mut points[index].data {
            Data::Number { value } => *value += 3.0,
            Data::Sketch { sum, .. } => *sum += 0.001,
            _ => unreachable!(),
        }
        if points[index].metric == "m.h.95percentile"
            || (points[index].metric == "m.g" && points[index].ts == Some(10.0))
        {
            continue;
        }
        let comparison = compare("datadog", &manifest, &points);
        assert!(!comparison.equal, "{:?} was not noticed", points[index]);
    }
}

#[test]
fn contexts_that_were_never_sent_are_differences() {
    let manifest = manifest(&["c"]);
    let points = [
        number("m.c", PointKind::Count, 10.0, 30.0),
        number("other", PointKind::Count, 10.0, 1.0),
    ];
    let comparison = compare("datadog", &manifest, &points);
    assert_eq!(comparison.differences.len(), 1);
    assert_eq!(comparison.differences[0].what, "never sent");
}

#[test]
fn lost_sums_events_and_checks_are_differences() {
    let manifest = manifest(&["c"]);
    let observed = Observed::new("datadog");
    let comparison = observed.compare(&rules(), &manifest, 100).unwrap();
    let what: Vec<&str> = comparison.differences.iter().map(|d| d.what.as_str()).collect();
    assert_eq!(what, ["sum", "events", "checks"]);
    assert!(observed.compare(&rules(), &Manifest::default(), 1).is_err());
}

#[test]
fn a_gauge_and_a_set_of_one_name_are_distinguished_by_value_only() {
    let mut manifest = manifest(&["g"]);
    let mut set = truth("s", "m.g");
    set.members = vec!["x".into()];
    manifest.contexts.as_mut().unwrap().push(set);
    let points = [
        number("m.g", PointKind::Gauge, 10.0, 2.0),
        number("m.g", PointKind::Gauge, 10.0, 1.0),
    ];
    assert!(compare("datadog", &manifest, &points).equal);
    assert!(!compare("datadog", &manifest, &points[..1]).equal);
    assert!(!compare("datadog", &manifest, &points[1..]).equal);
}

#[test]
fn prometheus_names_are_folded_and_the_latest_sum_counts() {
    let manifest = manifest(&["c", "d"]);
    let label = |mut point: Point| {
        point.tags = vec!["a:b".into(), "c:true".into()];
        point.interval = None;
        point
    };
    let distribution = |ts: f64, count: f64, sum: f64| {
        label(Point {
            data: Data::Distribution {
                count,
                sum: Some(sum),
                min: None,
                max: None,
                buckets: Vec::new(),
                quantiles: Vec::new(),
            },
            ..number("m_d", PointKind::CumulativeDistribution, ts, 0.0)
        })
    };
    let points = [
        label(number("m_c_total", PointKind::Cumulative, 20.0, 30.0)),
        label(number("m_c_total", PointKind::Cumulative, 10.0, 10.0)),
        distribution(10.0, 10.0, 10.0),
        distribution(20.0, 20.0, 30.0),
    ];
    let comparison = compare("remote-write", &manifest, &points);
    assert!(comparison.equal, "{comparison:#?}");
    assert!(!compare("remote-write", &manifest, &points[..3]).equal);
}

#[test]
fn repeated_label_keys_are_joined_in_order() {
    let tags = ["k:b", "k:a", "x:y"].map(String::from).to_vec();
    let mut sorted = tags;
    sorted.sort();
    assert_eq!(join_repeated(sorted), ["k:a,b", "x:y"]);
}

#[test]
fn relayed_samples_are_summed_with_their_rate() {
    let manifest = manifest(&["c", "g", "s", "d"]);
    let sample = |metric: &str, statsd_type: &str, value: &str, rate: &str, received_ns| Point {
        metric: metric.into(),
        received_ns,
        kind: PointKind::Sample,
        tags: vec!["a:b".into(), "c".into()],
        data: Data::Sample {
            statsd_type: statsd_type.into(),
            values: vec![value.into()],
            rate: rate.into(),
        },
        ..Point::default()
    };
    let points = [
        sample("m.c", "c", "1", "0.1", 1),
        sample("m.c", "c", "2", "0.1", 2),
        sample("m.g", "g", "1", "", 1),
        sample("m.g", "g", "2", "", 2),
        sample("m.s", "s", "x", "", 1),
        sample("m.s", "s", "y", "", 1),
        sample("m.d", "d", "1", "0.1", 1),
        sample("m.d", "d", "2", "0.1", 2),
    ];
    let comparison = compare("statsd", &manifest, &points);
    assert!(comparison.equal, "{comparison:#?}");
    for lost in 0..points.len() {
        let kept: Vec<Point> = points
            .iter()
            .enumerate()
            .filter(|(i, _)| *i != lost)
            .map(|(_, p)| p.clone())
            .collect();
        assert_eq!(compare("statsd", &manifest, &kept).equal, lost == 2, "{lost}");
    }
}
