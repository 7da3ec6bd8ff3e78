//! Results of other programs' benchmarks, judged. The fixtures are written by hand in the formats of these programs.

use super::support::{PROGRAM, output};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

fn micro(from: &str, old: &[&str], new: &[&str], flags: &[&str]) -> (i32, String) {
    let mut command = Command::new(PROGRAM);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/detector/micro"));
    command.args(["micro", "--from", from, "--baseline"]).args(old);
    command.arg("--comparison").args(new).args(flags);
    output(command)
}

/// The words of the row of a benchmark and unit.
fn row<'a>(text: &'a str, benchmark: &str, unit: &str) -> Vec<&'a str> {
    let rows = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut found = rows.filter(|words| words.len() > 2 && words[0] == benchmark && words[1] == unit);
    found
        .next()
        .unwrap_or_else(|| panic!("no row {benchmark} {unit} in: {text}"))
}

#[test]
fn results_of_go_are_judged() {
    let (code, text) = micro("go", &["go-old.txt"], &["go-new.txt"], &[]);
    assert_eq!(code, 1, "{text}");
    let cart = "example.org/shop.BenchmarkCart/items=10-2";
    let time = row(&text, cart, "ns/op");
    let change: f64 = time[4].parse().unwrap();
    assert!(
        (change - 15.0).abs() < 0.05 && time.contains(&"6") && time.ends_with(&["regression"]),
        "{time:?}"
    );
    assert!(row(&text, cart, "allocs/op").ends_with(&["regression"]), "{text}");
    assert!(row(&text, cart, "B/op").ends_with(&["equivalent"]), "{text}");
    assert!(
        row(&text, "example.org/shop.BenchmarkPrice-2", "ns/op").ends_with(&["equivalent"]),
        "{text}"
    );
    // One process is one run, whatever its -count; taking its lines for runs must be asked for.
    let (_, text) = micro("go", &["go-old.txt"], &["go-new.txt"], &["--lines-as-runs"]);
    assert!(row(&text, cart, "ns/op").contains(&"12"), "{text}");
    let (code, text) = micro("hyperfine", &["go-old.txt"], &["go-new.txt"], &[]);
    assert!(code == 2 && text.contains("go-old.txt"), "{code}: {text}");
}

#[test]
fn results_of_hyperfine_are_judged() {
    let (code, text) = micro(
        "hyperfine",
        &["hyperfine-old.json"],
        &["hyperfine-new.json"],
        &["--json"],
    );
    assert_eq!(code, 0, "{text}");
    let lines: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&lines[0]["verdict"], &lines[0]["pairs"], &lines[0]["unit"]),
        (&"improvement".into(), &10.into(), &"s".into()),
        "{text}"
    );
    assert!(
        (lines[0]["delta"].as_f64().unwrap() + 10.0).abs() < 0.01,
        "{text}"
    );
}

#[test]
fn results_of_criterion_are_judged_with_one_folder_per_run() {
    // Criterion keeps the samples of a benchmark in a folder of its own; the fixture has one object per run.
    let dir = tempfile::tempdir().unwrap();
    let samples: BTreeMap<String, Vec<serde_json::Value>> =
        serde_json::from_str(include_str!("micro/criterion.json")).unwrap();
    let folder = |side: &str, run: usize| dir.path().join(side).join(run.to_string());
    for (side, runs) in &samples {
        for (run, sample) in runs.iter().enumerate() {
            let folder = folder(side, run).join("parse/new");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("sample.json"), sample.to_string()).unwrap();
        }
    }
    let run = |folders: usize| {
        let of = |side: &str| {
            (0..folders)
                .map(|i| folder(side, i).display().to_string())
                .collect::<Vec<_>>()
        };
        let (old, new) = (of("old"), of("new"));
        let [old, new] = [&old, &new].map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
        micro("criterion", &old, &new, &[])
    };
    let (code, text) = run(5);
    let parse = row(&text, "parse", "ns");
    assert!(
        code == 0 && parse.contains(&"+0.50") && parse.ends_with(&["equivalent"]),
        "{code}: {text}"
    );
    let (code, text) = run(1);
    assert!(
        code == 3 && text.contains("fewer than two pairs: run both programs again, in turn"),
        "{code}: {text}"
    );
}
