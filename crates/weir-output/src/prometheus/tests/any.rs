//! Any input, read strictly.

use proptest::prelude::*;

use super::*;

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[ab][._-]?[ab]?([._](total|sum|count|bucket|created))?",
        1 => "(up|weir|weir[._]contexts|scrape[._]samples[._]scraped|[0-9]x|__name__)",
        1 => "[^|:\n]{1,6}",
    ]
}

fn tag() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[kl][._-]?(:[xy]?)?",
        1 => "(quantile|le|__name__|_+|host|0|instance)(:[a\"\\\\\n\r\u{0}]{0,3})?",
        1 => "[^|,\n]{1,5}",
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    (0usize..Kind::COUNT).prop_map(|at| Kind::ALL[at])
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(0.0),
        Just(f64::MAX),
        Just(-1e-300),
        Just(f64::INFINITY),
        -1e6f64..1e6,
        (0u32..100).prop_map(f64::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// For any input, a strict reader accepts each format, no series appears twice, and all three agree.
    #[test]
    fn every_exposition_is_valid(
        rows in prop::collection::vec(
            (name(), kind(), prop::option::of("[a\n\"]{0,2}"), prop::collection::vec(tag(), 0..4), number(), 0i64..3),
            1..40,
        ),
    ) {
        let scrape = scrape();
        let mut sum_of_counters = 0.0;
        let mut finite = true;
        for (name, kind, host, tags, value, bucket) in &rows {
            let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
            let owned = match kind {
                Kind::Counter | Kind::Gauge => Owned::Number(*value),
                Kind::Set => Owned::Members(vec![value.to_string()]),
                // Samples that are not finite never reach a bucket.
                _ => Owned::Values(vec![value.clamp(-1e300, 1e300)]),
            };
            if *kind == Kind::Counter && value.is_finite() && *value >= 0.0 {
                sum_of_counters += value;
                finite &= value.abs() < 1e10;
            }
            scrape.add(name, *kind, host.as_deref(), &tags, &owned, 100 + bucket * 10);
        }
        let text = scrape.text(100);
        let series = parse(&text, Format::Text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        let openmetrics = String::from_utf8(scrape.body(Format::OpenMetrics, 100)).unwrap();
        let same = parse(&openmetrics, Format::OpenMetrics)
            .map_err(|error| TestCaseError::fail(format!("{error}\n{openmetrics}")))?;
        prop_assert_eq!(format!("{series:?}"), format!("{same:?}"));
        let protobuf = parse_protobuf(&scrape.body(Format::Protobuf, 100));
        for (name, value) in &protobuf {
            prop_assert!(series[name] == *value || value.is_nan(), "{} {} {}", name, value, series[name]);
        }
        // Nothing got lost on the way.
        let status = scrape.status();
        let refused: u64 = status.counts.dropped.values().sum();
        prop_assert_eq!(status.counts.delivered + refused, rows.len() as u64);
        let counters: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
            .collect();
        let of_counters: Vec<f64> = series
            .iter()
            .filter(|(name, _)| counters.contains(name.split('{').next().unwrap()))
            .map(|(_, value)| *value)
            .collect();
        prop_assert!(of_counters.iter().all(|value| value.is_finite() && *value >= 0.0), "{}", text);
        if finite {
            let never = rows.iter().filter(|row| row.1 == Kind::Counter && !(row.4.is_finite() && row.4 >= 0.0));
            prop_assert_eq!(refused, never.count() as u64);
            let shown: f64 = of_counters.iter().sum();
            prop_assert!((shown - sum_of_counters).abs() <= 1e-6 * (1.0 + rows.len() as f64) * 1e3);
        }
        let kinds: BTreeSet<(&str, Kind)> = rows
            .iter()
            .filter(|row| row.1 != Kind::Counter || (row.4.is_finite() && row.4 >= 0.0))
            .map(|(name, kind, ..)| (name.as_str(), *kind))
            .collect();
        prop_assert_eq!(status.metrics, kinds.len());
        scrape.check_bytes();
    }
}
