//! The README and the pages in docs/. Blocks of `console` are run, a page's in one shell from top to bottom, in a network of its
//! own in which the usual ports are free. Blocks of `yaml` are configurations that `weir check` accepts. Blocks with a marker in
//! front of them belong to another test, or are not executed; `scripts/check-prose.py` knows the same markers.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::PATIENCE;
use weir_config::Role;
use weir_system::config::{self, Inputs};

/// A typed command and its output; `…` matches anything.
struct Step<'a> {
    command: &'a str,
    expected: Vec<&'a str>,
}

/// Whether a line says that another test executes what follows, or why no test does.
fn is_marker(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("<!-- executed by ") || line.starts_with("<!-- not executed: ")
}

/// The lines of each block of a language that this test is to execute. A marker below the title speaks for the whole page.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<Vec<&'a str>> {
    let mut blocks = Vec::new();
    if page.lines().nth(2).is_some_and(is_marker) {
        return blocks;
    }
    let opening = format!("```{language}");
    let mut before = "";
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.trim_start() == opening {
            let block = lines.by_ref().take_while(|line| line.trim_start() != "```");
            let block = block.collect();
            if !is_marker(before) {
                blocks.push(block);
            }
        }
        before = line;
    }
    blocks
}

fn steps(page: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step> = Vec::new();
    for line in blocks(page, "console").concat() {
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

/// Isolation of a page's processes: no other network, and none of them outlives the shell.
const ISOLATED: [&str; 5] = ["--user", "--map-root-user", "--net", "--pid", "--kill-child"];

fn execute(page: &str, steps: &[Step]) {
    let directory = tempfile::tempdir().unwrap();
    let weir = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
    let script = script(steps).replace("/tmp/weir-", &format!("{}/", directory.path().display()));
    // Several of its commands wait.
    let limit = (3 * PATIENCE).as_secs().to_string();
    let mut shell = Command::new("timeout")
        .args([limit.as_str(), "unshare"])
        .args(ISOLATED)
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
    for step in steps {
        let output = outputs.next().unwrap_or_default();
        assert!(
            printed(&step.expected, output),
            "{page}: $ {}\nprinted\n{output}\ninstead of\n{}\n\nall of it:\n{text}",
            step.command,
            step.expected.join("\n")
        );
    }
    assert_eq!(
        text.matches(END_OF_STEP).count(),
        steps.len(),
        "{page}: the shell ended early:\n{text}"
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Name and text of the README and of each page.
fn pages() -> Vec<(String, String)> {
    let mut pages = vec![root().join("README.md")];
    let mut directories = vec![root().join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    let named = pages.into_iter().map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path.display().to_string(), text)
    });
    named.collect()
}

#[test]
fn the_commands_of_every_page_print_the_documented_output() {
    let can = Command::new("unshare").args(ISOLATED).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        println!("skipped: this system gives no network namespace to run the pages in");
        return;
    }
    let pages = pages();
    let with_steps: Vec<(&str, Vec<Step>)> = pages
        .iter()
        .map(|(name, text)| (name.as_str(), steps(text)))
        .filter(|(_, steps)| !steps.is_empty())
        .collect();
    for page in ["README.md", "docs/tutorial.md", "docs/howto/upgrade.md"] {
        assert!(with_steps.iter().any(|(name, _)| name.ends_with(page)), "{page}");
    }
    std::thread::scope(|scope| {
        for (name, steps) in &with_steps {
            scope.spawn(move || execute(name, steps));
        }
    });
}

#[test]
fn every_configuration_on_a_page_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    for secret in ["datadog.key", "token", "influx-token"] {
        std::fs::write(directory.path().join(secret), "0123456789abcdef").unwrap();
    }
    let program = directory.path().join("read-secrets");
    let answer = r#"{"datadog/key":{"value":"0123456789abcdef0123456789abcdef","error":null}}"#;
    std::fs::write(&program, format!("#!/bin/sh\ncat >/dev/null\necho '{answer}'\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut checked = 0;
    for (name, page) in pages() {
        for block in blocks(&page, "yaml") {
            let text = block.join("\n");
            let text = text.replace("/etc/weir", &directory.path().display().to_string());
            let path = directory.path().join("weir.yaml");
            std::fs::write(&path, &text).unwrap();
            let role = match text.starts_with("# merge.yaml") {
                true => Role::Merge,
                false => Role::Agent,
            };
            let inputs = Inputs {
                file: Some(path),
                resolve_names: true,
                run_secret_backend: true,
                role,
                ..Inputs::default()
            };
            config::load(&inputs).unwrap_or_else(|problems| panic!("{name}: {problems}\n{text}"));
            checked += 1;
        }
    }
    assert!(checked > 30, "only {checked} configurations were found");
}

#[test]
fn blocks_with_a_marker_are_left_out() {
    let page = "# A\n\ntext\n```console\n$ a\n```\n<!-- not executed: why -->\n```console\n$ b\n```\n  ```console\n$ c\n  ```\n";
    let commands: Vec<&str> = steps(page).iter().map(|step| step.command).collect();
    assert_eq!(commands, ["a", "c"]);
    assert!(steps(&page.replace("text", "<!-- executed by x.rs -->")).is_empty());
}

#[test]
fn a_pattern_is_compared_in_full() {
    assert!(matches("a…c", "abc") && matches("…", "") && matches("abc", "abc"));
    assert!(!matches("a…c", "ab") && !matches("ab", "abc") && !matches("a…b…c", "acb"));
}
