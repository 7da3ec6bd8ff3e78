//! Each kind of loss is named by every surface that gets the status, and what is no loss by none.

use std::collections::BTreeMap;

use weir_counters::Significance;

use super::*;
use crate::examples::all_lost;
use crate::series::{declared, own_series};
use crate::status::{OutputStatus, PointBooks};

/// The declared losses: all counters with a problem, without those that repeat others.
fn declared_losses() -> Vec<&'static CounterInfo> {
    let repeats = told_by();
    let is_listed = |info: &CounterInfo| {
        let is_problem = matches!(info.significance, Significance::Problem(_));
        is_problem
            && (info.series.kind == NumberKind::Counter
                || TABLES.iter().copied().flatten().any(|of| of == info))
    };
    let mut seen = Vec::new();
    let all = declared().into_iter().map(|of| of.info).filter(|info| {
        let is_new = !seen.contains(&(info.series.name, info.series.label));
        seen.push((info.series.name, info.series.label));
        is_new || info.series.path.starts_with("outputs.{kind}")
    });
    let all = all.filter(|info| is_listed(info) && !repeats.iter().any(|(repeat, _)| repeat == info));
    all.collect()
}

#[test]
fn every_loss_is_listed_once_with_number_place_and_remedy() {
    let status = all_lost();
    let list = losses(&status);
    for info in declared_losses() {
        let series = info.series;
        let of: Vec<&Loss> = list
            .iter()
            .filter(|loss| {
                loss.series == series.name && [info.meaning(), info.help()].contains(&loss.meaning)
            })
            .collect();
        assert!(!of.is_empty(), "{info:?} is not in the list");
        for loss in of {
            assert!(
                loss.count >= 1.0 && loss.remedy.starts_with(info.advice()),
                "{loss:?}"
            );
            let has_place = series.path.starts_with("listeners") || series.path.starts_with("outputs");
            assert!(!has_place || !loss.place.is_empty(), "{loss:?}");
        }
    }
    for (at, one) in list.iter().enumerate() {
        let again = list[at + 1..]
            .iter()
            .find(|other| other.series == one.series && other.labels == one.labels);
        assert_eq!(again, None);
    }
    // The list names series and labels as the books have them, by which the page finds their rates.
    let series = own_series(&status);
    for loss in &list {
        assert!(
            series
                .iter()
                .any(|series| series.name == loss.series && series.labels == loss.labels),
            "{loss:?}"
        );
    }
}

#[test]
fn points_that_an_output_dropped_come_with_its_last_error() {
    let mut status = Status::default();
    status.outputs.push(OutputStatus {
        name: "graphite".to_owned(),
        last_error: Some("connection refused by 127.0.0.1:2003".to_owned()),
        points: PointBooks {
            produced: 9,
            dropped: BTreeMap::from([("queue_full".to_owned(), 9), ("filtered".to_owned(), 3)]),
            ..PointBooks::default()
        },
        ..OutputStatus::default()
    });
    let list = losses(&status);
    assert_eq!(list.len(), 1, "what a rule drops is no loss: {list:?}");
    assert_eq!((list[0].place.as_str(), list[0].count), ("graphite", 9.0));
    assert!(list[0].remedy.contains("`disk_path`"), "{list:?}");
    assert!(
        list[0]
            .remedy
            .ends_with("Last error: connection refused by 127.0.0.1:2003."),
        "{list:?}"
    );
}

#[test]
fn caches_that_turn_over_lose_nothing() {
    use weir_aggregate::AggregateCounter::HistogramsFolded;
    use weir_context::AliasCounter::Evicted;
    let mut status = Status::default();
    let mut evicted = weir_counters::Counts::default();
    evicted[Evicted] = 3239;
    status.add(None, &evicted);
    let mut folded = weir_counters::Counts::default();
    folded[HistogramsFolded] = 2;
    status.add(None, &folded);
    status.memory.shares.push(crate::status::MemoryShare {
        name: "contexts".to_owned(),
        events: BTreeMap::from([
            ("aliases_evicted".to_owned(), 3239),
            ("histograms_folded".to_owned(), 2),
        ]),
        ..Default::default()
    });
    assert_eq!(losses(&status), []);
}

#[test]
fn a_loss_that_a_limit_names_is_not_listed_a_second_time() {
    use weir_context::LimitReason;
    let mut status = Status::default();
    status.listeners.push(crate::status::ListenerStatus {
        address: "udp://127.0.0.1:8125".to_owned(),
        ..Default::default()
    });
    let mut overflowed = weir_counters::Counts::default();
    overflowed[IngestCounter::SamplesOverflowed] = 5;
    status.add(Some(0), &overflowed);
    assert_eq!(losses(&status).len(), 1, "the limit is not known yet");
    let mut limited = weir_counters::Counts::default();
    limited[LimitReason::Metric] = 5;
    status.add(None, &limited);
    let list = losses(&status);
    assert_eq!(list.len(), 1, "{list:?}");
    assert_eq!(list[0].series, "weir_context_limit_samples_total");
    status.add(Some(0), &overflowed);
    assert_eq!(losses(&status).len(), 2, "more is lost than the limit says");
}

#[test]
fn remedies_do_not_send_people_in_circles() {
    for info in declared_losses() {
        // The numbers of a fleet are only in `weir merge status`, which has the names.
        let is_of_fleet = info.series.path.starts_with("fleet");
        let remedy = info.advice();
        assert!(
            is_of_fleet || !remedy.contains("`weir status`"),
            "{}: {remedy}",
            info.series.name
        );
    }
}
