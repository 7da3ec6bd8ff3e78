//! The commands of pages (`console` blocks), run in one shell from top to bottom, in a network of their own in which the
//! usual ports are free.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// What a reader types, and what is printed then; `…` stands for anything.
struct Step<'a> {
    command: &'a str,
    expected: Vec<&'a str>,
}

fn steps(page: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step> = Vec::new();
    for block in page.split("```console\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            match line.strip_prefix("$ ") {
                Some(command) => steps.push(Step {
                    command,
                    expected: Vec::new(),
                }),
                None => steps
                    .last_mut()
                    .expect("a command comes first")
                    .expected
                    .push(line),
            }
        }
    }
    steps
}

/// Whether `text` is `pattern`, in which `…` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap()) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Every expected line is printed, in this order.
fn printed(expected: &[&str], text: &str) -> bool {
    let mut lines = text.lines();
    expected
        .iter()
        .all(|pattern| lines.any(|line| matches(pattern, line)))
}

const END_OF_STEP: &str = "--- end of step";

/// For a shell that marks the end of each command, and ends what it started.
fn script(steps: &[Step]) -> String {
    let mut script =
        String::from("ip link set lo up || exit 1\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\nset -m\n");
    for step in steps {
        script += &format!("{}\necho \"{END_OF_STEP}\"\n", step.command);
    }
    script
}

fn execute(page: &str) {
    let isolated = ["--user", "--map-root-user", "--net"];
    let can = Command::new("unshare").args(isolated).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        println!("skipped: this system gives no network namespace to run the page in");
        return;
    }
    let steps = steps(page);
    assert!(!steps.is_empty(), "the page has no command");
    let directory = tempfile::tempdir().unwrap();
    let weir = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
    let script = script(&steps).replace("/tmp/weir-", &format!("{}/", directory.path().display()));
    let mut shell = Command::new("timeout")
        .args(["60", "unshare"])
        .args(isolated)
        .args(["bash", "-s"])
        .current_dir(directory.path())
        .env_clear()
        .env(
            "PATH",
            format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", weir.display()),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let ran = shell.wait_with_output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    let mut outputs = text.split(END_OF_STEP);
    for step in &steps {
        let output = outputs.next().unwrap_or_default();
        assert!(
            printed(&step.expected, output),
            "$ {}\nprinted\n{output}\ninstead of\n{}\n\nall of it:\n{text}",
            step.command,
            step.expected.join("\n")
        );
    }
    assert_eq!(
        text.matches(END_OF_STEP).count(),
        steps.len(),
        "the shell ended early:\n{text}"
    );
}

#[test]
fn tutorial() {
    execute(include_str!("../../../docs/tutorial.md"));
}

#[test]
fn a_pattern_is_compared_in_full() {
    assert!(matches("a…c", "abc") && matches("…", "") && matches("abc", "abc"));
    assert!(!matches("a…c", "ab") && !matches("ab", "abc") && !matches("a…b…c", "acb"));
}
