//! The 23 rows of a report that another detector published in October 2023: estimate, 90 % interval, confidence.
//! An estimate and its interval imply a confidence, so the printed one can be recomputed. Rows were printed with two
//! decimals: each printed number stands for everything that rounds to it, and the test asks whether some choice within
//! the rounding gives the printed confidence.

use weir_regress::estimate::implied_confidence;

const ROWS: [(&str, f64, f64, f64, f64); 23] = [
    ("otel_to_otel_logs", 1.30, -0.29, 2.88, 82.15),
    ("file_tree", 0.77, -1.09, 2.63, 50.49),
    ("process_agent_standard_check_with_stats", 0.13, -1.87, 2.13, 8.52),
    ("uds_dogstatsd_to_api", 0.03, -0.13, 0.19, 26.95),
    ("trace_agent_json", 0.02, -0.11, 0.14, 16.48),
    ("uds_dogstatsd_to_api_nodist_1KiB", 0.01, -0.46, 0.48, 3.84),
    ("dogstatsd_string_interner_8MiB_50k", 0.01, -0.03, 0.04, 29.45),
    ("dogstatsd_string_interner_8MiB_100k", 0.01, -0.03, 0.05, 25.25),
    ("dogstatsd_string_interner_8MiB_100", 0.01, -0.12, 0.13, 6.93),
    ("dogstatsd_string_interner_8MiB_10k", 0.00, -0.00, 0.01, 55.24),
    ("dogstatsd_string_interner_64MiB_100", 0.00, -0.14, 0.14, 0.08),
    ("dogstatsd_string_interner_64MiB_1k", -0.00, -0.13, 0.13, 0.60),
    ("dogstatsd_string_interner_128MiB_100", -0.00, -0.14, 0.14, 0.59),
    ("tcp_dd_logs_filter_exclude", -0.00, -0.06, 0.06, 3.60),
    ("dogstatsd_string_interner_128MiB_1k", -0.00, -0.14, 0.14, 2.25),
    ("idle", -0.01, -2.44, 2.42, 0.44),
    ("dogstatsd_string_interner_8MiB_1k", -0.01, -0.11, 0.09, 16.12),
    ("trace_agent_msgpack", -0.01, -0.14, 0.11, 15.03),
    (
        "uds_dogstatsd_to_api_nodist_nomulti_1KiB",
        -0.02,
        -0.51,
        0.48,
        4.19,
    ),
    ("process_agent_standard_check", -0.28, -3.79, 3.24, 10.29),
    ("file_to_blackhole", -0.39, -0.83, 0.05, 85.26),
    ("process_agent_real_time_mode", -0.39, -2.90, 2.11, 20.38),
    ("tcp_syslog_to_blackhole", -0.53, -0.66, -0.40, 100.00),
];

/// Smallest and largest confidence that numbers rounding to the printed ones allow. The estimate is the middle of its
/// interval, which narrows the choice further.
fn allowed(delta: f64, low: f64, high: f64) -> (f64, f64) {
    const HALF: f64 = 0.005;
    let steps = 40;
    let grid = |x: f64| (0..=steps).map(move |i| x - HALF + 2.0 * HALF * f64::from(i) / f64::from(steps));
    let mut range = (f64::INFINITY, f64::NEG_INFINITY);
    for l in grid(low) {
        for h in grid(high) {
            let d = (l + h) / 2.0;
            if (d - delta).abs() > HALF || h <= l {
                continue;
            }
            let c = implied_confidence(d, l, h, 0.90);
            range = (range.0.min(c), range.1.max(c));
        }
    }
    range
}

#[test]
fn printed_confidences_follow_from_printed_intervals() {
    for (name, delta, low, high, printed) in ROWS {
        let (least, most) = allowed(delta, low, high);
        assert!(
            least - 0.005 <= printed && printed <= most + 0.005,
            "{name}: printed {printed}, the interval allows {least:.2} to {most:.2}"
        );
    }
}

#[test]
fn wide_rows_leave_little_room_so_the_check_can_fail() {
    // Where the interval is wide compared with the rounding, the recomputed figure must be close to the printed one;
    // a wrong quantile (95 % instead of 90 %, or one-sided) would miss these by several points.
    for (name, delta, low, high, printed) in ROWS.iter().copied().filter(|r| r.3 - r.2 > 3.0) {
        let (least, most) = allowed(delta, low, high);
        assert!(most - least < 1.0, "{name}: {least} to {most}");
        let wrong = implied_confidence((low + high) / 2.0, low, high, 0.95);
        assert!(
            (wrong - printed).abs() > most - least || printed < 1.0,
            "{name}: a wrong level would pass"
        );
    }
}
