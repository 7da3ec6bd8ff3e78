//! Runs whose outcome is known.

use super::support::{Guard, Library, PROGRAM, lines, output, wait_until};
use std::fs;
use std::process::{Command, Stdio};

fn row(report: &serde_json::Value) -> &serde_json::Value {
    &report["rows"][0]
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: weir-regress simulation::intervals_cover_the_truth"]
fn a_known_slow_down_and_known_memory_are_found() {
    let library = Library::new(
        "measure: {replicates: 5}\narms_override: {comparison: {target.env: {PRACTICE_SLOWDOWN: '100', PRACTICE_RETAIN: '67108864'}}}\n\
         checks: [{name: memory, series: rss_bytes, upper: 32MiB}]\n",
    );
    let (code, text) = output(library.compare(&["--accept-busy"]));
    // The bounds check fails too, and its code has precedence.
    assert_eq!(code, 4, "{text}");
    library.assert_clean();
    let report = library.report();
    let r = row(&report);
    assert_eq!(r["verdict"], "regression", "{r:#}");
    let (low, high) = (
        r["change"]["low"].as_f64().unwrap(),
        r["change"]["high"].as_f64().unwrap(),
    );
    // All of the work doubled, but receiving did not; other programs on the machine disturb the figure.
    assert!(low > 10.0 && high > 50.0, "{r:#}");
    let memory = report["dimensions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|d| d["goal"] == "rss")
        .unwrap();
    assert_eq!(memory["verdict"], "regression", "{memory:#}");
    let check = |arm: &str| {
        report["checks"]
            .as_array()
            .unwrap()
            .iter()
            .find(|c| c["arm"] == arm)
            .unwrap()["passed"]
            .clone()
    };
    assert_eq!((check("baseline"), check("comparison")), (5.into(), 0.into()));
    for file in [
        "report.md",
        "report.html",
        "plots/forest.svg",
        "plots/case.svg",
        "run.json",
    ] {
        assert!(library.run_folder().join(file).is_file(), "{file}");
    }
    let html = fs::read_to_string(library.run_folder().join("report.html")).unwrap();
    assert!(
        !html.contains("http://") || !html.contains("<script"),
        "the page must stand alone"
    );
    // Recomputing from the captures gives the same report, and the same exit code.
    let before = fs::read_to_string(library.run_folder().join("report.json")).unwrap();
    let (code, text) = output(library.command(&["analyze", &library.run_folder().display().to_string()]));
    assert_eq!(code, 4, "{text}");
    assert_eq!(
        fs::read_to_string(library.run_folder().join("report.json")).unwrap(),
        before
    );
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: detect::library::tests::arms_run_together_where_goal_and_load_allow_it"]
fn concurrent_arms_are_distinguished() {
    let library = Library::new(
        "measure: {replicates: 5, together: true}\narms_override: {comparison: {target.env: {PRACTICE_SLOWDOWN: '100'}}}\n",
    );
    let (code, text) = output(library.compare(&["--accept-busy"]));
    assert_eq!(code, 1, "{text}");
    library.assert_clean();
    let report = library.report();
    let r = row(&report);
    assert_eq!(r["verdict"], "regression", "{r:#}");
    assert!(r["change"]["low"].as_f64().unwrap() > 10.0, "{r:#}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("ran concurrently"), "{notes}");
    // Their loads overlap: neither began after the other's had ended.
    let times = |arm: &str| {
        let folder = library.run_folder().join("case").join(arm).join("00");
        let header = fs::read_to_string(folder.join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_str(&header).unwrap();
        manifest["started_unix_ns"].as_u64().unwrap()
    };
    let apart = times("baseline").abs_diff(times("comparison"));
    assert!(apart < 1_000_000_000, "{apart} ns");
}

/// Runs cases of the repository's own library on one of its targets, and returns the report and the library.
fn shipped(target: &str, cases: &[&str]) -> (serde_json::Value, Library) {
    let library = Library::new("");
    let experiments = concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments");
    let targets = format!("{experiments}/targets.yaml");
    let mut command = library.command(&["compare", "--baseline", target, "--comparison", target]);
    command.env("WEIR_BENCH", PROGRAM);
    command.args(["--library", experiments, "--targets", &targets]);
    command.args(["--results", "results", "--cache", "cache", "--accept-busy"]);
    command.args([
        "--preset",
        "quick",
        "--pairs",
        "2",
        "--set",
        "measure.warmup=200ms",
    ]);
    command.args(["--set", "measure.duration=1s", "--set", "measure.drain=500ms"]);
    command.args(cases);
    let (code, text) = output(command);
    // Two pairs show nothing about change. That they are valid is what counts.
    assert!(code == 0 || code == 1, "{code}: {text}");
    let report = library.report();
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["verdict"] != "invalid"), "{text}");
    library.assert_clean();
    (report, library)
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: load::what_the_sink_receives_equals_the_oracle"]
fn shipped_cases_of_logs_and_traces_run() {
    let cases = [
        "tcp-syslog-to-blackhole",
        "tcp-dd-logs-filter-exclude",
        "trace-agent-json",
        "trace-agent-msgpack",
        "otel-to-otel-logs",
    ];
    let (report, _library) = shipped("target:throw-away", &cases);
    assert_eq!(report["rows"].as_array().unwrap().len(), cases.len());
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: load::files_rotate_and_trees_grow"]
fn a_shipped_case_of_files_runs_and_every_line_is_found_again() {
    let (_, library) = shipped("target:tail", &["file-to-blackhole-1MB"]);
    let verdict = library
        .run_folder()
        .join("file-to-blackhole-1MB/baseline/00/verdict.json");
    let verdict: serde_json::Value = serde_json::from_str(&fs::read_to_string(verdict).unwrap()).unwrap();
    let (sent, delivered) = (&verdict["books"]["sent"], &verdict["books"]["delivered"]);
    assert!(sent.as_f64().unwrap() > 10_000.0, "{verdict:#}");
    assert!(
        delivered.as_f64().unwrap() >= 0.99 * sent.as_f64().unwrap(),
        "{verdict:#}"
    );
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: floor::every_datagram_variant_counts_everything"]
fn the_budget_runs_on_the_floor_and_every_message_is_found_again() {
    let (report, library) = shipped("target:floor", &["budget-1k", "budget-paced"]);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!(row["goal"], "life_cpu_per_message");
        assert!(row["baseline"]["mean"].as_f64().unwrap() > 1.0, "{row:#}");
    }
    let folder = library.run_folder().join("budget-1k/comparison/01");
    let json = |file: &str| -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(folder.join(file)).unwrap()).unwrap()
    };
    let (manifest, sink) = (json("manifest.json"), json("sink.json"));
    assert_eq!(sink["mismatches"], 0);
    assert_eq!(sink["delivered_messages"], manifest["totals"]["messages"]);
    assert_eq!(sink["books"]["bytes"], manifest["totals"]["bytes"]);
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: detect::values::tests::udp_throughput_is_what_arrived_and_drops_explain_the_loss"]
fn udp_overload_is_accounted_for() {
    let library = Library::new(
        r#"
goal: ingress_throughput
target:
  command: ["{bench}", practice, target, --listen, "udp://127.0.0.1:{port:udp}", --forward, "{sink.0}", --cost, "40000", --receive-buffer, "65536"]
  ready: {all_of: [{udp_port: "{port:udp}"}]}
load:
  - command: ["{bench}", practice, load, --to, "udp://127.0.0.1:{port:udp}", --rate, "60000", --duration-ms, "{duration_ms}",
      --seed, "{seed}", --manifest, "{manifest}", --capture, "{capture}"]
valid: {overload: true, min_target_share: null}
"#,
    );
    let (code, text) = output(library.compare(&["--accept-busy"]));
    // The loss of an overloaded receiver depends on other programs on its core; two such pairs may look like a regression.
    // This test is about the books.
    assert!(code == 0 || code == 1, "{code}: {text}");
    for arm in ["baseline", "comparison"] {
        for n in ["00", "01"] {
            let verdict = library
                .run_folder()
                .join("case")
                .join(arm)
                .join(n)
                .join("verdict.json");
            let v: serde_json::Value = serde_json::from_str(&fs::read_to_string(verdict).unwrap()).unwrap();
            let (sent, lost) = (
                v["books"]["sent"].as_f64().unwrap(),
                v["books"]["lost"].as_f64().unwrap(),
            );
            assert!(lost > 0.05 * sent, "no overload: {v:#}");
            let unexplained = v["books"]["unexplained"].as_f64().unwrap();
            assert!(
                unexplained.abs() <= 0.001 * sent,
                "{unexplained} of {sent} unexplained: {v:#}"
            );
            let written = sent * 26.0;
            assert!(
                v["values"]["ingress_throughput"].as_f64().unwrap() < written,
                "falls with the loss"
            );
        }
    }
    library.assert_clean();
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: detect::values::tests::a_load_that_bypasses_the_target_is_invalid"]
fn a_load_aimed_past_the_target_is_invalid() {
    let library = Library::new(
        r#"
load:
  - command: ["{bench}", practice, load, --to, "udp://{sink.0}", --rate, "20000", --duration-ms, "{duration_ms}",
      --seed, "{seed}", --manifest, "{manifest}", --capture, "{capture}"]
"#,
    );
    let (code, text) = output(library.compare(&["--accept-busy"]));
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("aimed at sink 0"), "{text}");
    library.assert_clean();
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: detect::books::tests::books_with_a_loss_are_not_valid"]
fn loss_inside_the_target_is_invalid() {
    let library = Library::new(
        "arms_override: {comparison: {target.command: ['{bench}', practice, target, --listen, 'unixgram://{work}/p.sock', --forward, '{sink.0}', --lose-every, '50']}}\n",
    );
    let (code, text) = output(library.compare(&["--accept-busy"]));
    assert_eq!(code, 3, "{text}");
    assert!(
        text.contains("comparison: only 98.00 % of what was sent was delivered"),
        "{text}"
    );
}

#[test]
fn a_target_that_dies_in_the_window_ends_the_run_with_a_reason() {
    for together in [false, true] {
        let library = Library::new(&format!(
            "measure: {{together: {together}}}\narms_override: {{comparison: {{target.command: ['{{bench}}', practice, target, --listen, 'unixgram://{{work}}/p.sock', --forward, '{{sink.0}}', --crash-after, '5000']}}}}\n",
        ));
        let (code, text) = output(library.compare(&["--accept-busy"]));
        assert_eq!(code, 3, "{text}");
        assert!(text.contains("exit code 9"), "{text}");
        library.assert_clean();
    }
}

#[test]
fn a_target_that_never_becomes_ready_ends_the_run_with_a_reason() {
    // With one arm that does, and waits for the other, or none.
    for extra in [
        "",
        "measure: {together: true}\narms_override: {baseline: {target.ready: {timeout: 10s}, target.command: ['{bench}', practice, target, --listen, 'unixgram://{work}/p.sock', --forward, '{sink.0}']}}\n",
    ] {
        let library = Library::new(&format!(
            "target: {{ready: {{timeout: 300ms}}, command: ['{{bench}}', practice, target, --listen, 'unixgram://{{work}}/p.sock', --never-ready]}}\n{extra}",
        ));
        let (code, text) = output(library.compare(&["--accept-busy"]));
        assert_eq!(code, 3, "{text}");
        assert!(text.contains("not ready after 300ms"), "{text}");
        library.assert_clean();
    }
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: detect::values::tests::checks_look_at_the_whole_life"]
fn a_sink_that_fails_during_the_run_makes_it_invalid() {
    let library = Library::new(
        "arms_override: {comparison: {sinks: [{command: ['{bench}', practice, sink, --listen, 'tcp://{sink.0}', --report, '{report}'], listen: '127.0.0.1:{port:sink}'}, {command: [sh, -c, 'echo no page >&2; exit 1']}]}}\n",
    );
    let (code, text) = output(library.compare(&["--accept-busy"]));
    assert_eq!(code, 3, "{text}");
    assert!(
        text.contains("sink1 ended during the run with exit code 1; its last output: no page"),
        "{text}"
    );
    library.assert_clean();
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: detect::process::tests::a_stubborn_process_and_its_children_are_ended"]
fn a_target_over_its_memory_is_ended() {
    let library = Library::new(
        "target: {memory_limit: 48MiB, env: {PRACTICE_RETAIN: '134217728'}, ready: {timeout: 5s}}\n",
    );
    let (code, text) = output(library.compare(&["--accept-busy"]));
    assert_eq!(code, 3, "{text}");
    assert!(
        text.contains("signal 9") || text.contains("memory limit"),
        "{text}"
    );
    library.assert_clean();
}

/// Runs a comparison of a program with itself beside a shell script that the detector did not start, which keeps running.
fn beside(script: &str) -> (Library, Guard) {
    let library = Library::new("");
    let burner = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let burner = Guard(burner);
    let (code, text) = output(library.compare(&["--calm-wait", "0s"]));
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("other programs used"), "{text}");
    let report = library.report();
    assert_eq!(row(&report)["verdict"], "invalid");
    // Three attempts at once, and as many again when all others have had theirs.
    assert_eq!(pairs_tried(&library), [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]);
    assert_eq!(report["pairs_discarded"], 12);
    library.assert_clean();
    (library, burner)
}

/// The numbers of the pairs, in the order of their attempts.
fn pairs_tried(library: &Library) -> Vec<u64> {
    let records = fs::read_to_string(library.run_folder().join("pairs.jsonl")).unwrap();
    let number = |line| serde_json::from_str::<serde_json::Value>(line).unwrap()["pair"].as_u64();
    records.lines().filter_map(number).collect()
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: detect::values::tests::a_busy_machine_causes_another_attempt"]
fn a_busy_machine_discards_pairs_instead_of_flagging_anything() {
    let (library, burner) = beside("while :; do :; done");
    // When the run is resumed, such pairs have three more attempts.
    let folder = library.run_folder().display().to_string();
    let mut resume = library.command(&["run", "--resume", &folder]);
    resume.current_dir("/");
    let (code, text) = output(resume);
    assert_eq!(code, 3, "{text}");
    assert_eq!(pairs_tried(&library)[12..], [0, 0, 0, 1, 1, 1]);
    drop(burner);
    library.assert_clean();
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: weir-regress simulation::disturbed_runs_widen_the_interval_instead_of_raising_alarms"]
fn a_machine_that_is_busy_half_of_the_time_flags_nothing_either() {
    beside("while :; do timeout 0.2 sh -c 'while :; do :; done'; sleep 0.2; done");
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: a_target_that_dies_in_the_window_ends_the_run_with_a_reason"]
fn an_interrupted_run_cleans_up_and_can_be_resumed() {
    let library = Library::new("");
    let mut command = library.compare(&["--accept-busy", "--seed", "7"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = Guard(command.spawn().unwrap());
    // One pair is complete and the next has begun.
    wait_until("the second pair", || {
        fs::read_dir(library.path("results")).is_ok_and(|mut d| d.next().is_some())
            && lines(&library.run_folder().join("pairs.jsonl")) == 1
            && library.run_folder().join("case/baseline/01").is_dir()
    });
    let pid = child.0.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    let status = child.0.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    library.assert_clean();
    let report = library.report();
    assert_eq!(
        (report["pairs_done"].as_u64(), report["incomplete"].as_bool()),
        (Some(1), Some(true))
    );

    let folder = library.run_folder().display().to_string();
    let (code, text) = output(library.command(&["run", "--resume", &folder]));
    assert!(code == 0 || code == 1, "{code}: {text}");
    let report = library.report();
    assert_eq!(
        (report["pairs_done"].as_u64(), report["incomplete"].as_bool()),
        (Some(2), Some(false))
    );
    assert_eq!(lines(&library.run_folder().join("pairs.jsonl")), 2);
    library.assert_clean();
}

#[test]
fn one_seed_gives_one_plan() {
    let (first, second) = (Library::new(""), Library::new(""));
    let plan = |l: &Library| output(l.compare(&["--plan", "--seed", "0xabc"])).1;
    assert_eq!(plan(&first), plan(&second));
    assert!(plan(&first).contains("round 1 case"), "{}", plan(&first));
}

#[test]
#[ignore = "nightly: runs two comparisons; in the gate: weir-load model::golden_digests"]
fn one_seed_gives_one_payload() {
    let digests = |library: &Library| {
        let (code, text) = output(library.compare(&["--accept-busy", "--seed", "0xabc"]));
        assert!(code == 0 || code == 1, "{code}: {text}");
        library.report()["payloads"]["case"].clone()
    };
    let (first, second) = (Library::new(""), Library::new(""));
    let digest = digests(&first);
    assert_eq!(digest, digests(&second));
    assert_eq!(digest.as_array().unwrap().len(), 2);
}

/// The practice experiment with pinned programs and little work, so that two of them and a busy machine fit on one core.
const PINNED: &str = r#"
target:
  cpus: [0]
  command: ["{bench}", practice, target, --listen, "unixgram://{work}/p.sock", --forward, "{sink.0}", --cost, "20000"]
load:
  - command: ["{bench}", practice, load, --to, "unixgram://{work}/p.sock", --rate, "2000", --duration-ms, "{duration_ms}",
      --seed, "{seed}", --manifest, "{manifest}", --capture, "{capture}"]
measure: {warmup: 0ms, drain: 0ms, sample_period: 50ms}
"#;

/// `aa` binds itself to the processors beside the target's; the others do not. All must mean the same machine.
#[test]
fn a_calibration_is_found_by_later_processes() {
    let library = Library::new(PINNED);
    let mut command = library.aa(&["--results", "results", "--cache", "cache"]);
    command.args(["--rows", "2", "--pairs", "2", "--accept-busy", "case"]);
    let (code, text) = output(command);
    assert!(code == 0 || code == 5, "{code}: {text}");
    library.assert_clean();
    let report = library.report();
    assert_eq!(report["calibration"]["rows"], 2);
    let rows = report["rows"].as_array().unwrap().iter();
    let mut names: Vec<&str> = rows.filter_map(|r| r["experiment"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["case#1", "case#2"]);
    let doctor = || output(library.command(&["doctor", "--cache", "cache"])).1;
    let needs =
        |flags: &[&str]| output(library.compare(&[&["--require-calibration", "--plan"], flags].concat()));
    // Two rows are found, and are too few.
    assert!(doctor().contains("of 2 intervals exclude zero"), "{}", doctor());
    let (code, text) = needs(&["--accept-busy"]);
    assert!(
        code == 5 && text.contains("of 2 intervals") && text.contains("30 are needed"),
        "{code}: {text}"
    );
    // An hour later: the same place, sixty rows.
    let file = library.path("cache/calibration.json");
    let mut stored: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let (key, note) = stored.as_object_mut().unwrap().iter_mut().next().unwrap();
    assert!(key.ends_with("; arms together; busy accepted"), "{key}");
    for (field, value) in [
        ("rows", 60),
        ("excluded", 6),
        ("low", 2),
        ("high", 11),
        ("flagged", 0),
    ] {
        note[field] = value.into();
    }
    note["state"] = "accepted".into();
    fs::write(&file, stored.to_string()).unwrap();
    assert!(
        doctor().contains("ok   calibration, concurrent arms, busy machine A/A: 6 of 60"),
        "{}",
        doctor()
    );
    let (code, text) = needs(&["--accept-busy"]);
    assert_eq!(code, 0, "{text}");
    // It is one of a busy machine and of concurrent arms.
    for flags in [&[][..], &["--accept-busy", "--set", "measure.together=false"]] {
        let (code, text) = needs(flags);
        assert!(
            code == 5 && text.contains("no accepted calibration;"),
            "{flags:?} {code}: {text}"
        );
    }
}

/// The comparison takes everything and does nothing with it, like a server that refuses its clients, and nothing counts what it takes.
#[test]
fn a_target_that_refuses_everything_is_no_improvement() {
    let library = Library::new(
        r#"
target:
  command: ["{bench}", practice, target, --listen, "unixgram://{work}/p.sock", --cost, "20000"]
load:
  - command: ["{bench}", practice, load, --to, "unixgram://{work}/p.sock", --rate, "2000", --duration-ms, "{duration_ms}",
      --seed, "{seed}", --manifest, "{manifest}", --capture, "{capture}"]
sinks: null
valid: {min_target_share: null}
measure: {replicates: 3, drain: 0ms, warmup: 0ms, sample_period: 50ms}
arms_override:
  comparison:
    target.command: ["{bench}", floor, --until-idle, 0s, --listen, "unixgram://{work}/p.sock"]
"#,
    );
    let (code, text) = output(library.compare(&["--accept-busy"]));
    assert_eq!(code, 0, "{text}");
    library.assert_clean();
    let report = library.report();
    let r = row(&report);
    let delta = r["change"]["delta"].as_f64().unwrap();
    assert!(
        delta < -50.0 && r["change"]["high"].as_f64().unwrap() < 0.0,
        "{r:#}"
    );
    assert_eq!(
        (&r["verdict"], &r["perf"]),
        (&"unproven".into(), &"unknown".into()),
        "{r:#}"
    );
    assert!(
        text.contains("delivery not proven") && text.contains("no acknowledgement"),
        "{text}"
    );
    for dimension in report["dimensions"].as_array().unwrap() {
        assert_ne!(dimension["verdict"], "improvement", "{dimension:#}");
    }
}

/// The first three starts of the comparison fail.
#[test]
fn a_bad_pair_is_replaced() {
    let library = Library::new(
        r#"
arms_override:
  comparison:
    target.command: [sh, -c, 'echo x >> "$0"; test $(wc -l < "$0") -gt 3 || exit 9; exec "$@"', "STARTS", "{bench}", practice, target,
      --listen, "unixgram://{work}/p.sock", --forward, "{sink.0}"]
measure: {drain: 0ms, sample_period: 50ms}
"#,
    );
    let case = library.path("experiments/cases/case/experiment.yaml");
    let starts = library.path("starts").display().to_string();
    let text = fs::read_to_string(&case).unwrap();
    fs::write(&case, text.replace("STARTS", &starts)).unwrap();
    let (code, text) = output(library.compare(&["--accept-busy"]));
    assert!(code == 0 || code == 1, "{code}: {text}");
    assert!(
        text.contains("case pair 1: failed in 3 attempts; another pair replaces it"),
        "{text}"
    );
    let report = library.report();
    let pairs = row(&report)["values"].as_array().unwrap().iter();
    // A busy machine may have disturbed others, which got more attempts.
    assert_eq!(
        pairs.map(|pair| &pair["pair"]).collect::<Vec<_>>(),
        [1, 2],
        "{text}"
    );
    assert_eq!(
        (&report["pairs_done"], &report["incomplete"]),
        (&2.into(), &false.into()),
        "{text}"
    );
    assert_eq!(pairs_tried(&library)[..3], [0, 0, 0]);
    library.assert_clean();
}

/// A loop beside the run disturbs it, and is accepted. The comparison costs twice as much, which no disturbance explains.
#[test]
fn a_regression_on_a_busy_machine_is_measured_twice() {
    let library = Library::new(&format!(
        "{}\nvalid: {{max_foreign_cpu: 0}}\narms_override: {{comparison: {{target.env: {{PRACTICE_SLOWDOWN: '100'}}}}}}\n",
        PINNED.replace("measure: {", "measure: {replicates: 3, ")
    ));
    let burner = Command::new("sh")
        .args(["-c", "while :; do :; done"])
        .stdin(Stdio::null())
        .spawn();
    let burner = Guard(burner.unwrap());
    let (code, text) = output(library.compare(&["--accept-busy"]));
    drop(burner);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("measuring it a second time"), "{text}");
    let report = library.report();
    let r = row(&report);
    assert_eq!(
        (&r["verdict"], &r["disturbed"], &r["pairs"]),
        (&"regression".into(), &3.into(), &3.into()),
        "{r:#}"
    );
    assert_eq!(
        (&r["confirmation"]["verdict"], &r["confirmation"]["pairs"]),
        (&"regression".into(), &3.into()),
        "{r:#}"
    );
    assert!(
        text.contains("regression, confirmed") && text.contains("(machine busy in 3 of 3 pairs)"),
        "{text}"
    );
    let records = fs::read_to_string(library.run_folder().join("pairs.jsonl")).unwrap();
    let records: Vec<serde_json::Value> = records
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let seeds = |confirms: bool| -> Vec<&str> {
        let of = records
            .iter()
            .filter(|r| r["confirms"].as_bool().unwrap_or(false) == confirms);
        of.map(|r| r["seed"].as_str().unwrap()).collect()
    };
    assert!(seeds(true).len() >= 3 && seeds(true).iter().all(|seed| !seeds(false).contains(seed)));
    library.assert_clean();
}

/// Both programs need more time for the load than the load takes. What waits in their sockets at its end is part of their work.
#[test]
fn a_target_that_is_behind_is_measured_until_its_socket_is_empty() {
    let library = Library::new(
        r#"
target:
  command: ["{bench}", practice, target, --listen, "udp://127.0.0.1:{port:in}", --forward, "{sink.0}", --cost, "1100000"]
  ready: {all_of: [{udp_port: "{port:in}"}]}
load:
  - command: ["{bench}", practice, load, --to, "udp://127.0.0.1:{port:in}", --rate, "1000", --packed, "20", --duration-ms, "{duration_ms}",
      --seed, "{seed}", --manifest, "{manifest}", --capture, "{capture}"]
measure: {warmup: 0ms, duration: 1s, sample_period: 50ms}
"#,
    );
    let (code, text) = output(library.compare(&["--accept-busy"]));
    assert!(code == 0 || code == 1, "{code}: {text}");
    let report = library.report();
    assert!(
        report["notes"].to_string().contains("until nothing waited"),
        "{text}"
    );
    for pair in row(&report)["values"].as_array().unwrap() {
        let costs = ["baseline", "comparison"].map(|arm| pair[arm].as_f64().unwrap());
        // While it runs, it says what the report says.
        let [before, after] = costs.map(|ns| ns / 1e3);
        let line = format!("cpu per message {before:.0} µs -> {after:.0} µs");
        assert!(text.contains(&line), "{line}: {text}");
        for cost in costs {
            // Over the window alone it is less than half. The target overshoots by up to a packet.
            assert!((cost / 1_100_000.0 - 1.0).abs() < 0.05, "{cost} ns: {text}");
        }
    }
    library.assert_clean();
}
