//! Frequent mistakes of users, and the messages for them.

use super::support::{Library, output};
use std::fs;
use std::process::{Command, Stdio};

fn refused(extra: &str, flags: &[&str], code: i32, say: &str) {
    let library = Library::new(extra);
    let (got, text) = output(library.compare(flags));
    assert_eq!(got, code, "{text}");
    assert!(text.contains(say), "expected {say:?} in: {text}");
    library.assert_clean();
    assert!(!library.path("results").exists(), "something was run");
}

#[test]
fn usage_and_configuration_errors_are_code_2_and_run_nothing() {
    refused(
        "goal: speed\n",
        &[],
        2,
        "experiment.yaml:2: goal: \"speed\" is not allowed",
    );
    refused(
        "measure: {replicate: 3}\n",
        &[],
        2,
        "did you mean \"replicates\"?",
    );
    refused("", &["--preset", "fast"], 2, "there is no preset \"fast\"");
    refused("", &["--pairs", "1"], 2, "--pairs");
    refused("", &["--set", "measure.duration"], 2, "write key=value");
    refused("", &["--suite", "all"], 2, "there is no suite");
    refused("target: {cpus: [999]}\n", &[], 2, "CPU 999 is not available");
    refused(
        "arms_override: {comparison: {load.0.command: [true]}}\n",
        &[],
        2,
        "different loads",
    );
    let library = Library::new("");
    let command = library.command(&[
        "compare",
        "--baseline",
        "bin:/nowhere/a",
        "--comparison",
        "bin:/bin/true",
        "--library",
        "experiments",
        "case",
    ]);
    let (code, text) = output(command);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("bin:/nowhere/a"), "{text}");
    let (code, text) = output(library.command(&["report", "nothing-here"]));
    assert_eq!(code, 2, "{text}");
}

#[test]
fn a_machine_without_calibration_is_refused_when_one_is_required() {
    refused("", &["--require-calibration"], 5, "no accepted calibration");
}

#[test]
fn pairs_together_and_in_turn_are_calibrated_apart() {
    let library = Library::new("");
    fs::create_dir(library.path("experiments/cases/lost")).unwrap();
    fs::write(
        library.path("experiments/cases/lost/experiment.yaml"),
        "extends: practice\ngoal: loss\n",
    )
    .unwrap();
    let (code, text) = output(library.aa(&["case", "lost"]));
    assert_eq!(code, 2, "{text}");
    assert!(
        text.contains("the arms of case run concurrently, those of lost sequentially"),
        "{text}"
    );
    assert!(!library.path("results").exists(), "something was run");
}

#[test]
fn results_that_cannot_be_stored_are_code_3() {
    let library = Library::new("");
    fs::write(library.path("results"), "a file, no folder").unwrap();
    let (code, text) = output(library.compare(&["--accept-busy"]));
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("cannot store results"), "{text}");
}

/// A separate file system that fills up during the run. Needs a mount namespace, which some machines forbid.
#[test]
#[ignore = "nightly: a run of several seconds on a file system of its own; in the gate: results_that_cannot_be_stored_are_code_3"]
fn a_full_disk_ends_the_run_with_code_3_and_nothing_left() {
    let allowed = Command::new("unshare")
        .args(["-rm", "true"])
        .stderr(Stdio::null())
        .status();
    if !allowed.is_ok_and(|s| s.success()) {
        eprintln!("skipped: no mount namespaces here");
        return;
    }
    let library = Library::new("");
    fs::create_dir(library.path("results")).unwrap();
    let bench = library.compare(&["--accept-busy", "--seed", "3"]);
    let words: Vec<String> = std::iter::once(bench.get_program())
        .chain(bench.get_args())
        .map(|w| format!("'{}'", w.to_string_lossy()))
        .collect();
    let script = format!(
        "mount -t tmpfs -o size=220m none results || exit 77\n\
         {} & bench=$!\n\
         n=0; while [ ! -s results/*/pairs.jsonl ] && [ $n -lt 1200 ]; do sleep 0.05; n=$((n+1)); done\n\
         dd if=/dev/zero of=results/fill bs=4k 2>/dev/null\n\
         wait $bench; echo code=$?\n",
        words.join(" ")
    );
    let mut command = Command::new("unshare");
    command
        .args(["-rm", "sh", "-c", &script])
        .current_dir(library.dir.path())
        .env("TMPDIR", library.path("tmp"));
    command.stdin(Stdio::null());
    let (code, text) = output(command);
    if code == 77 {
        eprintln!("skipped: no mounts here");
        return;
    }
    assert!(text.contains("code=3"), "{text}");
    library.assert_clean();
}

#[test]
fn show_lists_and_resolves() {
    let library = Library::new("measure: {duration: 7s}\n");
    let (code, text) = output(library.command(&["show", "--library", "experiments"]));
    assert!(
        code == 0 && text.contains("case") && text.contains("practice"),
        "{text}"
    );
    let (code, text) = output(library.command(&["show", "case", "--library", "experiments"]));
    assert!(
        code == 0 && text.contains("duration: 7s") && text.contains("warmup: 200ms"),
        "{text}"
    );
    let (code, text) = output(library.command(&["show", "cse", "--library", "experiments"]));
    assert!(code == 2 && text.contains("did you mean \"case\"?"), "{text}");
}

#[test]
fn doctor_runs_anywhere() {
    let library = Library::new("");
    let (code, text) = output(library.command(&["doctor", "--cache", "cache"]));
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("CPU clock of processes") && text.contains("calibration"),
        "{text}"
    );
}
