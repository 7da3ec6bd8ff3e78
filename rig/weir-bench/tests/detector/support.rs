//! A library of experiments in a fresh folder, and the program run on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_weir-bench");

/// The practice experiment with short times; `{extra}` lines are appended.
const EXPERIMENT: &str = r#"
description: practice
goal: cpu_per_message
target:
  command: ["{bench}", practice, target, --listen, "unixgram://{work}/p.sock", --forward, "{sink.0}", --cost, "5000"]
  ready: {timeout: 10s, all_of: [{unix_socket: "{work}/p.sock"}]}
  flush: 1s
  flushes_at_stop: true
load:
  - command: ["{bench}", practice, load, --to, "unixgram://{work}/p.sock", --rate, "20000", --duration-ms, "{duration_ms}",
      --seed, "{seed}", --manifest, "{manifest}", --capture, "{capture}"]
sinks:
  - command: ["{bench}", practice, sink, --listen, "tcp://{sink.0}", --report, "{report}"]
    listen: "127.0.0.1:{port:sink}"
measure: {replicates: 2, warmup: 200ms, duration: 1s, sample_period: 100ms, smaps_period: 500ms, drain: 200ms}
valid: {min_target_share: 0.999}
"#;

pub struct Library {
    pub dir: tempfile::TempDir,
}

impl Library {
    /// `extra` is YAML laid over the practice experiment.
    pub fn new(extra: &str) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("detector-test")
            .tempdir()
            .unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("experiments/templates/practice.yaml", EXPERIMENT);
        write(
            "experiments/cases/case/experiment.yaml",
            &format!("extends: practice\n{extra}"),
        );
        fs::create_dir(dir.path().join("tmp")).unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `weir-bench compare` of the practice target with itself, with further flags.
    pub fn compare(&self, flags: &[&str]) -> Command {
        let mut c = self.command(&[
            "compare",
            "--baseline",
            "bin:/bin/true",
            "--comparison",
            "bin:/bin/true",
            "--as",
            "none",
        ]);
        c.args([
            "--library",
            "experiments",
            "--results",
            "results",
            "--cache",
            "cache",
        ])
        .args(flags)
        .arg("case");
        c
    }

    /// `weir-bench aa` of the practice target, with further flags and cases.
    pub fn aa(&self, arguments: &[&str]) -> Command {
        let mut c = self.command(&["aa", "--target", "bin:/bin/true", "--as", "none"]);
        c.args(["--library", "experiments"]).args(arguments);
        c
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(PROGRAM);
        c.args(args)
            .current_dir(self.dir.path())
            .env("TMPDIR", self.path("tmp"))
            .stdin(Stdio::null());
        c
    }

    /// The folder of the only run.
    pub fn run_folder(&self) -> PathBuf {
        let mut folders: Vec<PathBuf> = fs::read_dir(self.path("results"))
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        assert_eq!(folders.len(), 1, "{folders:?}");
        folders.remove(0)
    }

    pub fn report(&self) -> serde_json::Value {
        let text = fs::read_to_string(self.run_folder().join("report.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// No process that mentions this library's folder, no work folder, is left.
    pub fn assert_clean(&self) {
        let mine = self.dir.path().display().to_string();
        let left: Vec<String> = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|e| fs::read(e.path().join("cmdline")).ok())
            .map(|c| String::from_utf8_lossy(&c).replace('\0', " "))
            .filter(|c| c.contains(&mine))
            .collect();
        assert!(left.is_empty(), "still running: {left:?}");
        let work: Vec<PathBuf> = fs::read_dir(self.path("tmp"))
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        assert!(work.is_empty(), "left behind: {work:?}");
    }
}

pub fn output(mut command: Command) -> (i32, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = format!(
        "{}\n{}",
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr)
    );
    (status.code().unwrap_or(-1), text)
}

/// Waits for a condition, at most two minutes.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A child that is ended with the test, whatever the test does.
pub struct Guard(pub Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |t| t.lines().count())
}
