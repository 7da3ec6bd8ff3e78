//! `weir-bench history` on a file.

use super::support::{PROGRAM, output};
use std::fs;
use std::process::Command;

#[test]
fn a_worse_level_fails_until_somebody_acknowledges_it() {
    let dir = tempfile::tempdir().unwrap();
    let lines = (0..16).map(|i| {
        let value = if i < 8 { 100.0 } else { 120.0 } + f64::from(i % 3);
        // A file of an earlier version, whose lines are all headlines.
        format!(
            r#"{{"created_unix":{i},"run":"r{i}","experiment":"case","goal":"cpu_per_message","target":"mine","commit":"c{i:02}","sha256":"","value":{value},"pairs":7,"host":"h","preset":"quick"}}"#
        ) + "\n"
    });
    fs::write(dir.path().join("history.jsonl"), lines.collect::<String>()).unwrap();
    let history = |flags: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command
            .current_dir(dir.path())
            .args(["history", "history.jsonl"])
            .args(flags);
        output(command)
    };
    let (code, text) = history(&["--fail", "--html", "page.html"]);
    assert!(
        code == 1 && text.contains("between c07 and c08"),
        "{code}: {text}"
    );
    assert!(
        fs::read_to_string(dir.path().join("page.html"))
            .unwrap()
            .contains("<svg")
    );
    let (code, text) = history(&["--mark", "c99", "--note", "nothing there"]);
    assert!(
        code == 2 && text.contains("no result at \"c99\""),
        "{code}: {text}"
    );
    // A note alone acknowledges nothing.
    assert_eq!(history(&["--fail", "--mark", "c08", "--note", "a slow day"]).0, 1);
    let (code, text) = history(&[
        "--fail",
        "--mark",
        "c08",
        "--note",
        "more checks, wanted",
        "--acknowledge",
    ]);
    assert!(
        code == 0 && text.contains("acknowledged: more checks, wanted"),
        "{code}: {text}"
    );
    assert_eq!(history(&["--fail"]).0, 0);
    let (_, csv) = history(&["--csv"]);
    assert_eq!(
        csv.lines().filter(|line| line.contains(",case,mine,")).count(),
        16,
        "{csv}"
    );
}
