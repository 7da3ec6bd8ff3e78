//! The measured values of every run, and which direction is better.

use serde::{Deserialize, Serialize};
use weir_regress::Direction;
use weir_regress::Direction::{HigherIsBetter as Up, LowerIsBetter as Down, Undeclared};

/// One number per run. All of them are computed for every run; an experiment's goal only selects the headline row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    IngressThroughput,
    IngressMessages,
    EgressThroughput,
    Cpu,
    CpuPerMessage,
    LifeCpuPerMessage,
    InstructionsPerMessage,
    Memory,
    MemoryPeak,
    Loss,
    MaxRate,
    LatencyP99,
    Startup,
    ContextSwitches,
    Rss,
    PageFaults,
    ContextsPerSecond,
}

/// Format of a printed value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    BytesPerSecond,
    PerSecond,
    Millicores,
    Nanoseconds,
    Bytes,
    Share,
    Seconds,
    Plain,
}

/// The properties of a goal.
struct About {
    goal: Goal,
    /// The word in experiment files and JSON.
    key: &'static str,
    /// The words in a report.
    title: &'static str,
    unit: Unit,
    direction: Direction,
}

const fn about(
    goal: Goal,
    key: &'static str,
    title: &'static str,
    unit: Unit,
    direction: Direction,
) -> About {
    About {
        goal,
        key,
        title,
        unit,
        direction,
    }
}

#[rustfmt::skip]
const GOALS: [About; 17] = [
    about(Goal::IngressThroughput, "ingress_throughput", "ingress throughput", Unit::BytesPerSecond, Up),
    about(Goal::IngressMessages, "ingress_messages", "ingress messages", Unit::PerSecond, Up),
    // More output can mean more metrics delivered or a wasteful encoding; the experiment says which.
    about(Goal::EgressThroughput, "egress_throughput", "egress throughput", Unit::BytesPerSecond, Undeclared),
    about(Goal::Cpu, "cpu", "cpu", Unit::Millicores, Down),
    about(Goal::CpuPerMessage, "cpu_per_message", "cpu per message", Unit::Nanoseconds, Down),
    about(Goal::LifeCpuPerMessage, "life_cpu_per_message", "cpu per message of the whole life", Unit::Nanoseconds, Down),
    about(Goal::InstructionsPerMessage, "instructions_per_message", "instructions per message", Unit::Plain, Down),
    about(Goal::Memory, "memory", "memory", Unit::Bytes, Down),
    about(Goal::MemoryPeak, "memory_peak", "memory peak", Unit::Bytes, Down),
    about(Goal::Loss, "loss", "loss", Unit::Share, Down),
    about(Goal::MaxRate, "max_rate", "max rate", Unit::PerSecond, Up),
    about(Goal::LatencyP99, "latency_p99", "latency p99", Unit::Seconds, Down),
    about(Goal::Startup, "startup", "startup", Unit::Seconds, Down),
    about(Goal::ContextSwitches, "context_switches", "context switches per 1000 messages", Unit::Plain, Down),
    about(Goal::Rss, "rss", "resident memory", Unit::Bytes, Down),
    about(Goal::PageFaults, "page_faults", "page faults per second", Unit::PerSecond, Down),
    // The load decides how many there are; a target may refuse some.
    about(Goal::ContextsPerSecond, "contexts_per_second", "contexts made per second", Unit::PerSecond, Undeclared),
];

impl Goal {
    /// In the order in which reports list them.
    pub fn all() -> impl Iterator<Item = Goal> {
        GOALS.iter().map(|about| about.goal)
    }

    fn about(self) -> &'static About {
        let found = GOALS.iter().find(|about| about.goal == self);
        found.expect("every goal has a row")
    }

    pub fn key(self) -> &'static str {
        self.about().key
    }

    pub fn title(self) -> &'static str {
        self.about().title
    }

    pub fn direction(self) -> Direction {
        self.about().direction
    }

    pub fn unit(self) -> Unit {
        self.about().unit
    }

    /// Whether two targets that share a core, each with its own load, still show their difference: true for the work of a process, not for
    /// its speed or throughput.
    pub fn allows_concurrent_arms(self) -> bool {
        matches!(
            self,
            Goal::Cpu
                | Goal::CpuPerMessage
                | Goal::LifeCpuPerMessage
                | Goal::InstructionsPerMessage
                | Goal::Memory
                | Goal::MemoryPeak
                | Goal::ContextSwitches
                | Goal::Rss
                | Goal::PageFaults
        )
    }

    /// Compared by difference, because zero is an ordinary value.
    pub fn is_difference(self) -> bool {
        matches!(self, Goal::Loss)
    }

    pub fn keys() -> Vec<&'static str> {
        GOALS.iter().map(|about| about.key).collect()
    }

    pub fn from_key(key: &str) -> Option<Goal> {
        Self::all().find(|goal| goal.key() == key)
    }
}

impl Unit {
    pub fn show(self, v: f64) -> String {
        if !v.is_finite() {
            return "n/a".to_owned();
        }
        match self {
            Unit::BytesPerSecond => format!("{}/s", binary(v)),
            Unit::Bytes => binary(v),
            Unit::PerSecond => format!("{}/s", thousands(v)),
            Unit::Millicores => format!("{} mcores", digits(v)),
            Unit::Nanoseconds => {
                if v.abs() >= 10_000.0 {
                    format!("{} µs", digits(v / 1000.0))
                } else {
                    format!("{} ns", digits(v))
                }
            }
            Unit::Share => format!("{:.3} %", 100.0 * v),
            Unit::Seconds => {
                if v.abs() < 1.0 {
                    format!("{} ms", digits(v * 1000.0))
                } else {
                    format!("{} s", digits(v))
                }
            }
            Unit::Plain => digits(v),
        }
    }
}

/// Three significant digits or all digits before the point.
fn digits(v: f64) -> String {
    let a = v.abs();
    if a >= 100.0 || a == 0.0 {
        format!("{v:.0}")
    } else if a >= 10.0 {
        format!("{v:.1}")
    } else if a >= 1.0 {
        format!("{v:.2}")
    } else {
        format!("{v:.3}")
    }
}

fn binary(v: f64) -> String {
    let a = v.abs();
    for (limit, name) in [(1_073_741_824.0, "GiB"), (1_048_576.0, "MiB"), (1024.0, "KiB")] {
        if a >= limit {
            return format!("{} {name}", digits(v / limit));
        }
    }
    format!("{v:.0} B")
}

fn thousands(v: f64) -> String {
    let a = v.abs();
    if a >= 1e6 {
        format!("{} M", digits(v / 1e6))
    } else if a >= 1e4 {
        format!("{} k", digits(v / 1e3))
    } else {
        digits(v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_serde_writes() {
        for goal in Goal::all() {
            assert_eq!(serde_json::to_value(goal).unwrap(), goal.key());
            assert_eq!(Goal::from_key(goal.key()), Some(goal));
        }
    }

    #[test]
    fn values_read_well() {
        assert_eq!(Unit::Bytes.show(12.0 * 1024.0 * 1024.0), "12.0 MiB");
        assert_eq!(Unit::PerSecond.show(199_800.0), "200 k/s");
        assert_eq!(Unit::Nanoseconds.show(183.4), "183 ns");
        assert_eq!(Unit::Share.show(0.00125), "0.125 %");
        assert_eq!(Unit::Seconds.show(0.0123), "12.3 ms");
    }
}
