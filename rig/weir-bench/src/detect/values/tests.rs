//! Judges synthetic runs.

use super::*;
use crate::detect::capture::{Header, VERSION, Writer};

pub fn rules() -> Rules {
    Rules {
        min_target_share: Some(0.99),
        generator_headroom: 1.5,
        overload: false,
        idle: false,
        max_steal: 0.02,
        max_foreign_cpu: 0.03,
        busy_accepted: false,
        udp: false,
        all_out: false,
        together: false,
        checks: Vec::new(),
    }
}

struct Fake {
    cpu_per_second: f64,
    delivered: f64,
    foreign: f64,
    scheduled: f64,
    verdict: &'static str,
    udp_drops: f64,
    /// Readings of the target's parsed count: time in seconds, and value.
    parsed: &'static [(u64, f64)],
    has_sink: bool,
    acknowledged: Option<f64>,
}

const GOOD: Fake = Fake {
    cpu_per_second: 2e8,
    delivered: 40_000.0,
    foreign: 0.0,
    scheduled: 40_000.0,
    verdict: "on-schedule",
    udp_drops: 0.0,
    parsed: &[],
    has_sink: true,
    acknowledged: None,
};

fn header() -> Header {
    Header {
        v: VERSION,
        run: "r".into(),
        exp: "e".into(),
        arm: "baseline".into(),
        rep: 0,
        pair: 0,
        order: "BC".into(),
        seed: "1".into(),
        bin_sha256: String::new(),
        started_unix_ns: 0,
        host: BTreeMap::new(),
    }
}

fn run(fake: &Fake, rules: &Rules) -> Measured {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("baseline").join("00");
    std::fs::create_dir_all(&dir).unwrap();
    let mut w = Writer::create(&dir.join("capture.jsonl.zst"), &header()).unwrap();
    for i in 0..=40_u64 {
        let (t, s) = (i * 1_000_000_000, i as f64);
        let phase = if i < 10 { Phase::Warmup } else { Phase::Measure };
        w.add(t, phase, "target", "cpu_ns", true, s * fake.cpu_per_second)
            .unwrap();
        w.add(t, phase, "target", "instructions", true, s * 3e6).unwrap();
        w.add(t, phase, "target", "rss_bytes", false, 1e6 + 1e4 * s)
            .unwrap();
        w.add(t, phase, "target", "udp_drops", true, fake.udp_drops * s / 40.0)
            .unwrap();
        w.add(t, phase, "generator", "sent_messages", true, s * 1000.0)
            .unwrap();
        w.add(t, phase, "generator", "sent_bytes", true, s * 150_000.0)
            .unwrap();
        w.add(t, phase, "host", "foreign_cpu_ns", true, s * fake.foreign * 1e9)
            .unwrap();
    }
    for (second, said) in fake.parsed {
        let t = second * 1_000_000_000;
        w.add(t, Phase::Measure, "telemetry", "parsed_messages", true, *said)
            .unwrap();
    }
    for (t, made) in [(0, 7.0), (40_000_000_000, 407.0)] {
        w.add(t, Phase::Measure, "telemetry", "created_contexts", true, made)
            .unwrap();
    }
    w.finish().unwrap();
    let manifest = serde_json::json!({
        "totals": {"messages": 40_000, "packets": 4_000, "bytes": 6_000_000, "acknowledged": fake.acknowledged},
        "digest": "d", "sending": {"elapsed_s": 40.0, "scheduled": fake.scheduled, "achieved": 40_000, "blocked_s": 0.0,
        "verdict": fake.verdict, "markers": [{"seq": 1, "sent_unix_ns": 1_000}, {"seq": 2, "sent_unix_ns": 2_000}]}});
    std::fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    let sink = serde_json::json!({"delivered_messages": fake.delivered, "received_bytes": 80_000, "markers": [
        {"seq": 1, "received_unix_ns": 1_000_001_000_u64}, {"seq": 2, "received_unix_ns": 1_000_002_000_u64}]});
    if fake.has_sink {
        std::fs::write(dir.join("sink.json"), sink.to_string()).unwrap();
    }
    measure(&dir, rules)
}

#[test]
fn numbers_of_a_good_run() {
    let m = run(&GOOD, &rules());
    assert!(m.is_valid(), "{m:?}");
    let v = |g: Goal| m.values[&g];
    assert!((v(Goal::Cpu) - 200.0).abs() < 1e-9);
    assert!((v(Goal::CpuPerMessage) - 2e5).abs() < 1e-6);
    assert!((v(Goal::InstructionsPerMessage) - 3000.0).abs() < 1e-6);
    assert!((v(Goal::IngressThroughput) - 150_000.0).abs() < 1e-6);
    assert!((v(Goal::IngressMessages) - 1000.0).abs() < 1e-9);
    assert!((v(Goal::EgressThroughput) - 2000.0).abs() < 1e-9);
    assert!((v(Goal::LatencyP99) - 1.0).abs() < 1e-9);
    assert_eq!(v(Goal::Loss), 0.0);
    assert!((v(Goal::ContextsPerSecond) - 10.0).abs() < 1e-9);
    // Memory without PSS falls back to RSS, averaged over the window only.
    assert!((v(Goal::Memory) - (1e6 + 1e4 * 25.0)).abs() < 1e-6);
}

/// A host that takes the core away for the second half of each second holds messages and CPU time up alike. Readings of generator and
/// target at different times in the second made that a change of cost: a target that was 10 % slower was found to be 8 %.
#[test]
fn cost_is_of_the_messages_of_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("baseline").join("00");
    std::fs::create_dir_all(&dir).unwrap();
    let mut w = Writer::create(&dir.join("capture.jsonl.zst"), &header()).unwrap();
    // 1000 messages in the first half of each second, none in the second.
    let sent = |ms: u64| (ms / 1000 * 1000 + (ms % 1000).min(500) * 2) as f64;
    for ms in (0..=4000).step_by(50) {
        let phase = if ms < 1000 { Phase::Warmup } else { Phase::Measure };
        let t = ms * 1_000_000;
        w.add(t, phase, "generator", "sent_messages", true, sent(ms))
            .unwrap();
        if ms % 300 == 0 {
            w.add(t, phase, "target", "cpu_ns", true, sent(ms) * 500.0)
                .unwrap();
        }
    }
    w.finish().unwrap();
    let manifest = serde_json::json!({"totals": {"messages": 4000, "packets": 400}, "digest": "d",
        "sending": {"elapsed_s": 4.0, "scheduled": 4000, "achieved": 4000, "verdict": "on-schedule"}});
    std::fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    std::fs::write(dir.join("sink.json"), "{\"delivered_messages\": 4000}").unwrap();
    let cost = measure(&dir, &rules()).values[&Goal::CpuPerMessage];
    assert!((cost - 500.0).abs() < 0.5, "{cost}");
}

/// A run of 5 seconds, 1000 messages of 100 bytes each second, 500 ns each, by a target that has taken so many seconds' worth of them at the end of each
/// half second. Its queue holds the rest.
fn taken(root: &Path, arm: &str, seconds: [f64; 14]) -> PathBuf {
    let dir = root.join(arm).join("00");
    std::fs::create_dir_all(&dir).unwrap();
    let header = Header {
        arm: arm.into(),
        ..header()
    };
    let mut w = Writer::create(&dir.join("capture.jsonl.zst"), &header).unwrap();
    for (half, taken) in std::iter::once(0.0).chain(seconds).enumerate() {
        let sent = (half as f64 / 2.0 - 0.5).clamp(0.0, 5.0);
        let phase = match half {
            0 | 1 => Phase::Start,
            2 => Phase::Warmup,
            3..=11 => Phase::Measure,
            _ => Phase::Drain,
        };
        let t = half as u64 * 500_000_000;
        let mut add = |src: &str, name: &str, v: f64| w.add(t, phase, src, name, true, v).unwrap();
        add("target", "cpu_ns", taken * 1000.0 * 500.0);
        add("target", "udp_rx_queue_bytes", (sent - taken) * 1000.0 * 100.0);
        add("generator", "sent_messages", sent * 1000.0);
        add("generator", "sent_bytes", sent * 100_000.0);
    }
    w.finish().unwrap();
    let manifest = serde_json::json!({"totals": {"messages": 5000, "packets": 500, "bytes": 500_000}, "digest": "d",
        "sending": {"elapsed_s": 5.0, "scheduled": 5000, "achieved": 5000, "verdict": "on-schedule"}});
    std::fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    std::fs::write(dir.join("sink.json"), "{\"delivered_messages\": 5000}").unwrap();
    dir
}

/// Takes everything at once.
const PROMPT: [f64; 14] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.0, 5.0, 5.0,
];
/// Gets no time in the window's second half, and takes the rest after it.
const HELD_UP: [f64; 14] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 2.5, 2.5, 2.5, 2.5, 2.5, 3.5, 4.5, 5.0,
];

#[test]
fn a_run_that_the_rig_could_not_observe_gets_another_attempt() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("baseline").join("00");
    std::fs::create_dir_all(&dir).unwrap();
    let mut w = Writer::create(&dir.join("capture.jsonl.zst"), &header()).unwrap();
    w.add(1, Phase::Measure, "target", "cpu_ns", true, 1.0).unwrap();
    w.finish().unwrap();
    let m = measure(&dir, &rules());
    assert!(
        m.invalid.is_empty() && m.disturbed[0].contains("fewer than two observations"),
        "{m:?}"
    );
}

#[test]
fn work_after_the_window_counts() {
    let root = tempfile::tempdir().unwrap();
    let prompt = taken(root.path(), "baseline", PROMPT);
    let held_up = taken(root.path(), "comparison", HELD_UP);
    let rules = rules();
    let cost = |m: &Measured| m.values[&Goal::CpuPerMessage];
    let is_true = |m: &Measured| (cost(m) - 500.0).abs() < 0.5 && (m.values[&Goal::Cpu] - 0.5).abs() < 0.001;
    // Alone, over its window, the second seems to cost half.
    let alone = measure(&held_up, &rules);
    assert!(alone.is_behind && cost(&alone) < 300.0, "{alone:?}");
    let alone = measure(&prompt, &rules);
    assert!(
        !alone.is_behind && is_true(&alone) && alone.notes.is_empty(),
        "{alone:?}"
    );
    // Both arms are measured alike.
    let arms = measure_arms(&[prompt.clone(), held_up], [&rules; 2]);
    assert!(arms.iter().all(|m| m.is_valid() && is_true(m)), "{arms:?}");
    assert!(
        arms.iter()
            .all(|m| m.notes.iter().any(|note| note.contains("until nothing waited"))),
        "{arms:?}"
    );
    let arms = measure_arms(&[prompt.clone(), prompt], [&rules; 2]);
    assert!(arms.iter().all(|m| is_true(m) && m.notes.is_empty()), "{arms:?}");
}

fn invalid(fake: Fake, rules: &Rules, why: &str) {
    let m = run(&fake, rules);
    assert!(
        m.invalid.iter().any(|r| r.contains(why)),
        "expected {why:?} in {:?}",
        m.invalid
    );
}

#[test]
fn a_load_that_bypasses_the_target_is_invalid() {
    // The generator aims at the sink: everything arrives, but the target used no CPU. Or nothing arrives at the sink.
    invalid(
        Fake {
            cpu_per_second: 0.0,
            ..GOOD
        },
        &rules(),
        "used no CPU",
    );
    invalid(
        Fake {
            delivered: 0.0,
            ..GOOD
        },
        &rules(),
        "does not cross the target",
    );
    invalid(
        Fake {
            delivered: 80_000.0,
            ..GOOD
        },
        &rules(),
        "something else writes to the sink",
    );
}

#[test]
fn acceptance_is_proven_by_a_sink_or_by_acknowledgements() {
    let free = Rules {
        min_target_share: None,
        ..rules()
    };
    let without = Fake {
        has_sink: false,
        ..GOOD
    };
    let m = run(&without, &free);
    assert!(
        m.is_valid() && m.unproven.is_some_and(|why| why.contains("no sink")),
        "nothing was counted"
    );
    invalid(without, &rules(), "nothing counted what was delivered");
    let answered = |acknowledged| Fake {
        has_sink: false,
        acknowledged: Some(acknowledged),
        ..GOOD
    };
    let m = run(&answered(40_000.0), &rules());
    assert!(m.is_valid() && m.unproven.is_none(), "{m:?}");
    assert_eq!(m.books.delivered, Some(40_000.0));
    invalid(
        answered(0.0),
        &rules(),
        "only 0.00 % of what was sent was delivered",
    );
    // The case does not say how much must arrive, and little did.
    let little = |delivered| Fake { delivered, ..GOOD };
    let why = |m: Measured| m.unproven.unwrap_or_default();
    assert!(why(run(&little(12_000.0), &free)).contains("30.0 % of what was sent"));
    assert_eq!(why(run(&little(39_500.0), &free)), "");
    let overload = Rules {
        overload: true,
        ..free
    };
    assert_eq!(why(run(&little(12_000.0), &overload)), "");
}

#[test]
fn a_target_that_reports_a_low_count_is_believed() {
    let saw_little = "the target's own parsed_messages rose by 1000 while 40000 were sent";
    let parsed = |parsed| Fake { parsed, ..GOOD };
    invalid(parsed(&[(0, 0.0), (40, 1_000.0)]), &rules(), saw_little);
    // Not if the first reading came late or the last early: the target received the rest before and after.
    for readings in [
        &[(38, 38_000.0), (40, 39_000.0)],
        &[(0, 0.0), (2, 1_000.0)],
        &[(0, 0.0), (40, 39_000.0)],
    ] {
        let m = run(&parsed(readings), &rules());
        assert!(m.is_valid(), "{readings:?}: {:?}", m.invalid);
    }
}

#[test]
fn a_generator_that_cannot_follow_its_schedule_is_invalid() {
    invalid(
        Fake {
            verdict: "generator-limited",
            ..GOOD
        },
        &rules(),
        "generator-limited",
    );
    invalid(
        Fake {
            scheduled: 50_000.0,
            ..GOOD
        },
        &rules(),
        "80.0 % of its schedule",
    );
    let m = run(
        &Fake {
            scheduled: 50_000.0,
            verdict: "target-limited",
            ..GOOD
        },
        &rules(),
    );
    assert!(
        m.is_valid(),
        "a target that pushes back explains the shortfall: {m:?}"
    );
}

#[test]
fn a_busy_machine_causes_another_attempt() {
    let m = run(&Fake { foreign: 0.2, ..GOOD }, &rules());
    assert!(
        m.invalid.is_empty() && m.disturbed[0].contains("20.0 % of a core"),
        "{m:?}"
    );
    assert!(!m.is_valid() && m.accepted.is_empty(), "{m:?}");
    let accepting = Rules {
        busy_accepted: true,
        ..rules()
    };
    let m = run(&Fake { foreign: 0.2, ..GOOD }, &accepting);
    assert!(
        m.is_valid() && m.accepted[0].contains("20.0 % of a core"),
        "{m:?}"
    );
}

#[test]
fn udp_throughput_is_what_arrived_and_drops_explain_the_loss() {
    let overload = Rules {
        udp: true,
        overload: true,
        min_target_share: None,
        ..rules()
    };
    let m = run(
        &Fake {
            delivered: 30_000.0,
            udp_drops: 1000.0,
            ..GOOD
        },
        &overload,
    );
    assert!(m.is_valid(), "{m:?}");
    assert!((m.values[&Goal::IngressThroughput] - 112_500.0).abs() < 1e-6);
    assert!((m.values[&Goal::Loss] - 0.25).abs() < 1e-12);
    assert_eq!(m.books.unexplained, Some(0.0));
}

#[test]
fn checks_look_at_the_whole_life() {
    let limit = |series: &str, stat: &str, upper: f64| CheckRule {
        name: "c".into(),
        series: series.into(),
        stat: serde_json::from_value(stat.into()).unwrap(),
        upper: Some(upper),
        lower: None,
    };
    let rules = Rules {
        checks: vec![
            limit("rss_bytes", "max", 1.4e6),
            limit("rss_bytes", "max", 1.39e6),
            limit("cpu_millicores", "mean", 200.5),
            limit("lost_messages", "last", 0.0),
            limit("pss_bytes", "max", 1e9),
        ],
        ..rules()
    };
    let passed: Vec<bool> = run(&GOOD, &rules).checks.iter().map(|c| c.passed).collect();
    assert_eq!(
        passed,
        [true, false, true, true, false],
        "a series nobody recorded does not pass"
    );
}
