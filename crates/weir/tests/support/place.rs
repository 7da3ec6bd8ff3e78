//! Processes that take over from each other.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use super::{Agent, Starter, status, until};

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
        agent.serves();
        agent
    }

    /// A process that asks the one that runs to hand over.
    pub fn begin_to_take_over(&self, config: &str) -> Agent {
        let starter = Starter::from(config).arguments(["--take-over"]);
        let state = [("WEIR_STATE_PATH", &*self.state())];
        starter.environment(&state).before_it_serves().start()
    }

    /// The same, which may wait for the one that runs.
    pub fn ask_to_take_over(&self, config: &str) -> Agent {
        let starter = Starter::from(config).arguments(["--take-over"]);
        let state = [("WEIR_STATE_PATH", &*self.state())];
        starter.environment(&state).before_it_listens().start()
    }

    pub fn configuration(&self, more: &str) -> String {
        format!(
            "counter_expiry: 0\nreceive_buffer: 8MiB\ntcp: 127.0.0.1:0\nuds: {}\nuds_stream: {}\n{more}",
            self.path("datagrams").display(),
            self.path("stream").display()
        )
    }
}

/// Samples of the open bucket that a process has saved for the next one at its end.
pub fn saved(log: &str) -> u64 {
    let line = log.split("state saved for the next process: ").nth(1);
    let number = line.and_then(|line| line.split(" contexts, ").nth(1)?.split(' ').next());
    number
        .unwrap_or_else(|| panic!("no state was saved:\n{log}"))
        .parse()
        .unwrap()
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

/// Waits until all that was sent is in the open bucket or behind it: a line that is rejected comes after it. Over UDP that holds for an
/// agent with one worker.
pub fn wait_for_all(admin: &str, unixgram: &Path, udp: Option<&str>) {
    let rejected = || {
        let rejected = &status(admin)["total"]["messages"]["rejected"]["bad_type"];
        rejected.as_u64().unwrap_or(0)
    };
    let expected = rejected() + 1 + u64::from(udp.is_some());
    let last = b"the.last:1|x";
    UnixDatagram::unbound().unwrap().send_to(last, unixgram).unwrap();
    if let Some(udp) = udp {
        UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .send_to(last, udp)
            .unwrap();
    }
    until("the last lines are read", || rejected() == expected);
}

/// A directory that an agent writes to: from now on it can keep nothing there, whatever it writes meanwhile.
pub fn replace_by_a_file(directory: &Path) {
    until("a file is in its place", || {
        let _ = std::fs::remove_dir_all(directory);
        std::fs::write(directory, "").is_ok()
    });
}
