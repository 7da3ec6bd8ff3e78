//! A running `weir merge`.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use serde_json::Value;

use crate::support::log::Log;
use crate::support::{self, Killed, signal};

pub struct Merge {
    child: Killed,
    log: Log,
    pub admin: String,
}

/// A configuration for the log in this directory.
pub fn config(log: &Path, rest: &str) -> String {
    format!(
        "log: {{directory: {}}}\nflush_summary: false\n{rest}",
        log.display()
    )
}

impl Merge {
    pub fn start(directory: &Path, config: &str) -> Merge {
        Merge::start_in(&[], directory, config)
    }

    /// With these variables.
    pub fn start_in(environment: &[(&str, &str)], directory: &Path, config: &str) -> Merge {
        let path = directory.join("merge.yaml");
        std::fs::write(&path, config).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .env_clear()
            .env("WEIR_ADMIN", "127.0.0.1:0")
            .envs(environment.iter().copied())
            .args(["merge", "--config"])
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Killed(child);
        let mut log = Log::of(child.0.stderr.take().unwrap());
        let admin = log.wait_for("admin on http://");
        Merge { child, log, admin }
    }

    pub fn status(&self) -> Value {
        support::status(&self.admin)
    }

    pub fn fleet(&self) -> Value {
        self.status()["fleet"].clone()
    }

    pub fn metrics(&self) -> String {
        support::get(&self.admin, "/metrics").1
    }

    /// The most memory that it has had, bytes.
    pub fn peak_memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.0.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kibibytes << 10
    }

    /// Output of `weir merge status`.
    pub fn page(&self) -> String {
        let (ended_well, text) = support::weir(&["merge", "status", "--admin", &self.admin]);
        assert!(ended_well, "{text}");
        text
    }

    /// Waits until every bucket before this second has closed, and has reached every output.
    pub fn until_sent(&self, end: i64) {
        support::until("every output has every bucket", || {
            let fleet = self.fleet();
            let rows = |name: &str| fleet[name].as_array().cloned().unwrap_or_default();
            let (partitions, sent) = (rows("partitions"), rows("sent"));
            let has_closed = |row: &Value| match row["closed_before"].as_i64() {
                Some(closed) => closed >= end,
                None => row["open_buckets"] == 0 && row["lag_records"] == 0,
            };
            let has_all = |row: &Value| row["is_behind"] == false && row["partitions"].as_u64() > Some(0);
            let has_some = partitions.iter().any(|row| row["closed_before"].is_i64()) && !sent.is_empty();
            has_some && partitions.iter().all(has_closed) && sent.iter().all(has_all)
        });
    }

    /// The rest of the line of its log that has this text.
    pub fn says(&mut self, text: &str) -> String {
        self.log.see(text)
    }

    pub fn kill(self) {
        drop(self.child);
    }

    /// Ends it by SIGTERM: how it ended, and its log.
    pub fn stop(mut self) -> (ExitStatus, String) {
        signal(self.child.0.id(), "-TERM");
        let status = self.child.0.wait().unwrap();
        let log = self.log.until_it_ends();
        assert!(!log.contains("do not balance"), "{log}");
        (status, log)
    }
}

/// The value of a series in an exposition.
pub fn series(metrics: &str, name: &str) -> Option<f64> {
    let rest = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    metrics.lines().find_map(rest)
}
