//! The reports that a Datadog intake expects besides metrics: a heartbeat every 15 seconds, and the host's metadata.
//!
//! Both are made at the end of a flush, so they prove more than a running timer: buckets close, and payloads are made. They are queued,
//! repeated and counted like all other payloads.

use std::time::Duration;

use serde_json::{Value, json};

use crate::delivery::Clock;
use crate::settings::DatadogSettings;

/// Interval at which the agent reports that it runs; longer with wider buckets.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Interval between descriptions of the host.
const METADATA: Duration = Duration::from_secs(1800);

/// The due reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueReports {
    pub heartbeat: bool,
    /// With the first heartbeat.
    pub started: bool,
    pub metadata: bool,
}

pub struct Presence {
    clock: Clock,
    host_tags: Vec<String>,
    /// `None`: switched off.
    heartbeat: Option<Interval>,
    metadata: Option<Interval>,
    has_started: bool,
}

impl Presence {
    pub fn new(settings: &DatadogSettings, clock: Clock, host_tags: Vec<String>) -> Self {
        Presence {
            clock,
            host_tags,
            heartbeat: settings.heartbeat.then(|| Interval::new(HEARTBEAT)),
            metadata: settings.host_metadata.then(|| Interval::new(METADATA)),
            has_started: false,
        }
    }

    /// Asked once at the end of a flush.
    pub fn due(&mut self) -> DueReports {
        let now = self.clock.now();
        let is_due = |every: &mut Option<Interval>| every.as_mut().is_some_and(|every| every.is_due(now));
        let heartbeat = is_due(&mut self.heartbeat);
        DueReports {
            heartbeat,
            started: heartbeat && !std::mem::replace(&mut self.has_started, true),
            metadata: is_due(&mut self.metadata),
        }
    }

    pub fn unix(&self) -> i64 {
        self.clock.unix()
    }

    /// The host as the intake takes it.
    pub fn metadata(&self, hostname: &str) -> Value {
        describe(&Host::of_this_machine(), hostname, &self.host_tags)
    }
}

/// On a grid, so that flushes that come a little late do not add up.
struct Interval {
    interval: Duration,
    next: Option<Duration>,
}

impl Interval {
    fn new(interval: Duration) -> Self {
        Interval { interval, next: None }
    }

    fn is_due(&mut self, now: Duration) -> bool {
        if self.next.is_some_and(|next| now < next) {
            return false;
        }
        let grid = self.next.unwrap_or(now) + self.interval;
        // After a long pause the grid restarts.
        self.next = Some(if grid > now { grid } else { now + self.interval });
        true
    }
}

/// The kernel's facts about the machine; empty if unknown.
#[derive(Debug, Default)]
struct Host {
    name: String,
    kernel: String,
    processor: String,
    cores: usize,
    memory_kb: String,
}

impl Host {
    fn of_this_machine() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let line = |text: &str, key: &str| {
            let found = text.lines().find(|line| line.starts_with(key));
            let value = found.and_then(|line| line.split_once(':'));
            value.map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        Host {
            name: read("/proc/sys/kernel/hostname").trim().to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: line(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_kb: line(&read("/proc/meminfo"), "MemTotal").replace(' ', ""),
        }
    }
}

fn describe(host: &Host, hostname: &str, host_tags: &[String]) -> Value {
    let machine = std::env::consts::ARCH;
    // The intake takes this part as JSON within JSON.
    let inventory = json!({
        "cpu": {"cpu_logical_processors": host.cores.to_string(), "model_name": host.processor},
        "memory": {"total": host.memory_kb},
        "platform": {
            "hostname": host.name, "kernel_name": "Linux", "kernel_release": host.kernel, "machine": machine,
            "os": "GNU/Linux",
        },
    });
    json!({
        "apiKey": "",
        "agentVersion": env!("CARGO_PKG_VERSION"),
        "agent-flavor": "dogstatsd",
        "internalHostname": hostname,
        "os": "linux",
        "systemStats": {
            "cpuCores": host.cores, "machine": machine, "platform": "linux", "processor": host.processor,
        },
        "meta": {
            "hostname": hostname, "agent-hostname": hostname, "socket-hostname": host.name, "host_aliases": [],
        },
        "host-tags": {"system": host_tags},
        "gohai": inventory.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fifteen_seconds_on_average_whatever_the_width_of_buckets() {
        for (width, expected) in [(1, 40), (10, 40), (15, 40), (60, 10)] {
            let mut every = Interval::new(HEARTBEAT);
            let flushes = (0..600)
                .step_by(width)
                .map(|seconds| Duration::from_secs(seconds as u64));
            let due = flushes.filter(|now| every.is_due(*now)).count();
            assert_eq!(due, expected, "buckets of {width} s");
        }
        // Reports missed while the machine slept are not sent later.
        let mut every = Interval::new(HEARTBEAT);
        assert!(every.is_due(Duration::ZERO) && every.is_due(Duration::from_secs(3600)));
        assert!(!every.is_due(Duration::from_secs(3601)));
    }
}
