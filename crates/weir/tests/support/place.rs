//! Processes that take over from each other.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::path::PathBuf;
use std::process::Command;

use super::{Agent, status, until};

/// Where all processes of a test live.
pub struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn state(&self) -> String {
        self.path("state").display().to_string()
    }

    pub fn start(&self, config: &str) -> Agent {
        Agent::start(config, &[("WEIR_STATE_PATH", &self.state())])
    }

    /// The next process, which takes over from the one that runs.
    pub fn take_over(&self, config: &str) -> Agent {
        let mut agent = self.begin_to_take_over(config);
        agent.wait_for("hand-over: took over from weir ");
        agent
    }

    /// A process that asks the one that runs to hand over.
    pub fn begin_to_take_over(&self, config: &str) -> Agent {
        let mut bash = Command::new("bash");
        bash.args(["-c", "exec \"$0\" \"$@\" --take-over", env!("CARGO_BIN_EXE_weir")])
            .env_clear()
            .env("WEIR_STATE_PATH", self.state());
        Agent::start_by(bash, config)
    }

    pub fn configuration(&self, more: &str) -> String {
        format!(
            "counter_expiry: 0\nreceive_buffer: 8MiB\ntcp: 127.0.0.1:0\nuds: {}\nuds_stream: {}\n{more}",
            self.path("datagrams").display(),
            self.path("stream").display()
        )
    }
}

/// Waits until a bucket has ended that was begun after this.
pub fn wait_for_bucket(admin: &str) {
    let flushes = || status(admin)["flush"]["count"].as_u64().unwrap();
    let before = flushes();
    until("a bucket ends", || flushes() > before + 1);
}

pub fn received(admin: &str) -> u64 {
    status(admin)["total"]["samples"]["received"]
        .as_u64()
        .unwrap_or(0)
}
