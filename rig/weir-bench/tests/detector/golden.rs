//! Reports from a fixed set of captures, byte for byte. The captures are written here by hand-made arithmetic and not by
//! the program's own writer. `UPDATE_GOLDEN=1` rewrites the expected files; read the difference before committing it.

use super::support::{PROGRAM, output};
use serde_json::json;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A small repeating wobble, the same everywhere: no library function whose last bit may differ between machines.
fn wobble(i: usize) -> f64 {
    [0.0, 1.0, -1.0, 0.5, -0.5, 0.25, -0.75][i % 7]
}

struct Made<'a> {
    name: &'a str,
    goal: &'a str,
    better: &'a str,
    erratic: bool,
    unsupported: Option<&'a str>,
    udp: bool,
    /// CPU ns per message of both arms, and their wobble as a share.
    cost: [f64; 2],
    spread: [f64; 2],
    delivered: [f64; 2],
    sink: bool,
    check: Option<f64>,
}

const MESSAGES: f64 = 30_000.0;

fn write_replicate(folder: &Path, m: &Made, arm: usize, n: usize) {
    fs::create_dir_all(folder).unwrap();
    let arm_name = ["baseline", "comparison"][arm];
    let mut text = json!({"v": 1, "run": "fixed", "exp": m.name, "arm": arm_name, "rep": n, "pair": n, "order": "BC", "seed": "7", "bin_sha256": "aa",
        "started_unix_ns": 0})
    .to_string();
    text.push('\n');
    // Both arms share the machine's drift of the pair; the wobble is each arm's own.
    let drift = 1.0 + 0.01 * wobble(n * 3);
    let cost = m.cost[arm] * drift * (1.0 + m.spread[arm] * wobble(n + 2 * arm));
    for s in 0..=8_u64 {
        let phase = if s < 2 {
            "warmup"
        } else if s <= 7 {
            "measure"
        } else {
            "drain"
        };
        let t = s * 1_000_000_000;
        let mut line = |src: &str, name: &str, kind: &str, v: f64| {
            let _ = writeln!(
                text,
                "{}",
                json!({"t": t, "ph": phase, "m": name, "k": kind, "v": v, "l": {"src": src}})
            );
        };
        line("target", "cpu_ns", "counter", (cost * 5_000.0 * s as f64).round());
        line(
            "target",
            "rss_bytes",
            "gauge",
            20e6 + 1e6 * arm as f64 + 1000.0 * s as f64,
        );
        line("target", "hwm_bytes", "gauge", 22e6);
        line("target", "ctx_voluntary", "counter", 100.0 * s as f64);
        line(
            "target",
            "udp_drops",
            "counter",
            if m.udp {
                (MESSAGES - m.delivered[arm]) / 10.0 * s as f64 / 8.0
            } else {
                0.0
            },
        );
        line("generator", "sent_messages", "counter", 5_000.0 * s as f64);
        line("generator", "sent_bytes", "counter", 500_000.0 * s as f64);
        line("host", "foreign_cpu_ns", "counter", 1e6 * s as f64);
        line("host", "steal_ns", "counter", 0.0);
    }
    fs::write(folder.join("capture.jsonl"), text).unwrap();
    let events = "{\"t\":1000000,\"event\":\"exec\"}\n{\"t\":26000000,\"event\":\"ready\"}\n";
    fs::write(folder.join("events.jsonl"), events).unwrap();
    let manifest = json!({"totals": {"messages": MESSAGES, "packets": MESSAGES / 10.0, "bytes": MESSAGES * 100.0}, "digest": format!("d{n:015x}"),
        "sending": {"elapsed_s": 6.0, "scheduled": MESSAGES, "achieved": MESSAGES, "blocked_s": 0.0, "verdict": "on-schedule",
        "markers": [{"seq": 1, "sent_unix_ns": 0}, {"seq": 2, "sent_unix_ns": 100_000_000}]}});
    fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
    if !m.sink {
        return;
    }
    let late = 40_000_000 + 1_000_000 * n as u64;
    let sink = json!({"delivered_messages": m.delivered[arm], "received_bytes": 60_000,
        "markers": [{"seq": 1, "received_unix_ns": late}, {"seq": 2, "received_unix_ns": 100_000_000 + late}]});
    fs::write(folder.join("sink.json"), sink.to_string()).unwrap();
}

fn write_run(root: &Path) {
    let base = Made {
        name: "",
        goal: "cpu_per_message",
        better: "down",
        erratic: false,
        unsupported: None,
        udp: false,
        cost: [200.0, 200.0],
        spread: [0.004, 0.004],
        delivered: [MESSAGES, MESSAGES],
        sink: true,
        check: None,
    };
    let made = [
        Made {
            name: "slower",
            cost: [200.0, 224.0],
            check: Some(21e6),
            ..base
        },
        Made {
            name: "faster",
            cost: [200.0, 150.0],
            ..base
        },
        Made { name: "same", ..base },
        Made {
            name: "noisy",
            spread: [0.05, 0.05],
            cost: [200.0, 207.0],
            ..base
        },
        Made {
            name: "wild",
            spread: [0.01, 0.4],
            erratic: true,
            ..base
        },
        Made {
            name: "fixed-rate",
            goal: "ingress_throughput",
            better: "up",
            ..base
        },
        Made {
            name: "overload",
            goal: "loss",
            udp: true,
            delivered: [24_000.0, 21_000.0],
            ..base
        },
        Made {
            name: "bypassed",
            delivered: [MESSAGES, 0.0],
            ..base
        },
        // The comparison refuses everything, and nothing counts what the programs take.
        Made {
            name: "refused",
            cost: [200.0, 4.0],
            sink: false,
            ..base
        },
        Made {
            name: "unsupported",
            unsupported: Some("peer does not support events"),
            ..base
        },
    ];
    let mut experiments = Vec::new();
    let mut pairs = String::new();
    for m in &made {
        let checks = m.check.map_or(
            json!([]),
            |u| json!([{"name": "memory", "series": "rss_bytes", "stat": "max", "upper": u, "lower": null}]),
        );
        let rules = json!({"min_target_share": if m.udp || !m.sink { None } else { Some(0.99) }, "generator_headroom": 1.5, "overload": m.udp, "idle": false,
            "max_steal": 0.02, "max_foreign_cpu": 0.03, "udp": m.udp, "all_out": false, "together": false, "checks": checks});
        experiments.push(json!({"name": m.name, "description": format!("made to be {}", m.name), "goal": m.goal, "better": m.better, "erratic": m.erratic,
            "pairs_min": 7, "pairs_max": 7, "warmup_s": 2.0, "duration_s": 5.0, "unsupported": m.unsupported, "left_out": [],
            "rules": {"baseline": rules, "comparison": rules}}));
        if m.unsupported.is_some() {
            continue;
        }
        for n in 0..7 {
            for arm in 0..2 {
                let folder = root
                    .join(m.name)
                    .join(["baseline", "comparison"][arm])
                    .join(format!("{n:02}"));
                write_replicate(&folder, m, arm, n);
            }
            let order = if n % 3 == 0 { "CB" } else { "BC" };
            let _ = writeln!(
                pairs,
                "{}",
                json!({"experiment": m.name, "pair": n, "attempt": 0, "order": order, "seed": "7", "baseline": n, "comparison": n})
            );
        }
    }
    fs::write(root.join("pairs.jsonl"), pairs).unwrap();
    let arm = |spec: &str, sha: &str| {
        json!({"spec": spec, "target": "weir", "bin": "weir", "sha256": sha.repeat(16), "build_id": "", "size": 1, "version": "weir 0.1.0",
            "commit": "", "dirty": false, "build_profile": "release"})
    };
    let run = json!({"version": 1, "id": "20261121T120000-0007", "kind": "compare", "created_unix": 1_795_262_400, "seed": "0x7", "preset": "thorough",
        "argv": ["weir-bench", "compare", "--baseline", "bin:old", "--comparison", "bin:new", "--suite", "all of it"],
        "host": {"cpu": "Example CPU", "cpus": "2", "kernel": "6.1"}, "target_cpus": "0", "pinning": "split",
        "baseline": arm("bin:old", "00aa"), "comparison": arm("bin:new", "00bb"), "experiments": experiments, "effect": 0.05, "confidence": 0.9,
        "folder_of_experiments": "experiments",
        "calibration": {"rows": 60, "excluded": 7, "flagged": 0, "low": 2, "high": 11, "state": "accepted", "created_unix": 1_795_262_000}});
    fs::write(root.join("run.json"), run.to_string()).unwrap();
}

#[test]
fn reports_equal_the_golden_files() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/detector/golden");
    for (format, file) in [
        ("md", "report.md"),
        ("json", "report.json"),
        ("term", "report.txt"),
        ("html", "report.html"),
        ("junit", "junit.xml"),
        ("prometheus", "metrics.prom"),
        ("dogstatsd", "metrics.statsd"),
    ] {
        let mut command = Command::new(PROGRAM);
        command.arg("report").arg(dir.path()).args(["--format", format]);
        let result = command.output().unwrap();
        assert!(
            result.status.success(),
            "{}",
            String::from_utf8_lossy(&result.stderr)
        );
        let got = String::from_utf8(result.stdout).unwrap();
        let path = golden.join(file);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &got).unwrap();
            continue;
        }
        let want = fs::read_to_string(&path).unwrap();
        if got != want {
            let line = got
                .lines()
                .zip(want.lines())
                .position(|(g, w)| g != w)
                .unwrap_or(0);
            panic!(
                "{file} differs at line {}:\n got {}\nwant {}",
                line + 1,
                got.lines().nth(line).unwrap_or("(end)"),
                want.lines().nth(line).unwrap_or("(end)")
            );
        }
    }
    // `report` from report.json alone prints the same page as from the captures.
    let (_, from_json) = {
        let file = dir.path().join("alone.json");
        fs::write(&file, fs::read_to_string(golden.join("report.json")).unwrap()).unwrap();
        let mut command = Command::new(PROGRAM);
        command.arg("report").arg(&file).args(["--format", "md"]);
        output(command)
    };
    assert_eq!(
        from_json.trim_end(),
        fs::read_to_string(golden.join("report.md")).unwrap().trim_end()
    );
    // With the sign turned where less is better, the order of rows too; only pages for readers have it.
    let signed = |format: &str| {
        let mut command = Command::new(PROGRAM);
        command
            .arg("report")
            .arg(dir.path())
            .args(["--format", format, "--positive", "better"]);
        output(command)
    };
    let (_, page) = signed("md");
    let at = |row: &str| {
        page.find(row)
            .unwrap_or_else(|| panic!("{row} is missing: {page}"))
    };
    let better = "| ✅ | faster | cpu per message | +25.00 | [+24.80, +25.20] | >99.99% | 7 |";
    let worse = "| ❌ | slower | cpu per message | -12.00 | [-12.29, -11.71] | >99.99% | 7 |";
    assert!(at(better) < at(worse));
    at("| ❌ | overload | loss | -10.000 pp | [-10.000 pp, -10.000 pp] |");
    at("| ❌ | overload | ingress throughput | 391 KiB/s | 342 KiB/s | -12.50 | [-12.50, -12.50] |");
    at("positive values that the comparison is");
    assert_eq!(signed("json").0, 2);
    // The invalid row decides the exit code.
    let mut command = Command::new(PROGRAM);
    command.arg("analyze").arg(dir.path());
    assert_eq!(output(command).0, 3);
}

#[test]
fn the_markdown_stays_below_the_limit_of_forges() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/detector/golden");
    assert!(fs::read_to_string(golden.join("report.md")).unwrap().len() < 60_000);
}
