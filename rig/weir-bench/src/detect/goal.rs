//! What is measured in every run, and which way is better.

use serde::{Deserialize, Serialize};
use weir_regress::Direction;

/// One number per run. All of them are computed for every run; an experiment's goal only selects the headline row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    IngressThroughput,
    IngressMessages,
    EgressThroughput,
    Cpu,
    CpuPerMessage,
    Memory,
    MemoryPeak,
    Loss,
    MaxRate,
    LatencyP99,
    Startup,
    ContextSwitches,
    Rss,
    PageFaults,
}

/// How a value is printed.
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

impl Goal {
    pub const ALL: [Goal; 14] = [
        Goal::IngressThroughput,
        Goal::IngressMessages,
        Goal::EgressThroughput,
        Goal::Cpu,
        Goal::CpuPerMessage,
        Goal::Memory,
        Goal::MemoryPeak,
        Goal::Loss,
        Goal::MaxRate,
        Goal::LatencyP99,
        Goal::Startup,
        Goal::ContextSwitches,
        Goal::Rss,
        Goal::PageFaults,
    ];

    /// The word in experiment files and JSON.
    pub fn key(self) -> &'static str {
        match self {
            Goal::IngressThroughput => "ingress_throughput",
            Goal::IngressMessages => "ingress_messages",
            Goal::EgressThroughput => "egress_throughput",
            Goal::Cpu => "cpu",
            Goal::CpuPerMessage => "cpu_per_message",
            Goal::Memory => "memory",
            Goal::MemoryPeak => "memory_peak",
            Goal::Loss => "loss",
            Goal::MaxRate => "max_rate",
            Goal::LatencyP99 => "latency_p99",
            Goal::Startup => "startup",
            Goal::ContextSwitches => "context_switches",
            Goal::Rss => "rss",
            Goal::PageFaults => "page_faults",
        }
    }

    /// The words in a report.
    pub fn title(self) -> &'static str {
        match self {
            Goal::IngressThroughput => "ingress throughput",
            Goal::IngressMessages => "ingress messages",
            Goal::EgressThroughput => "egress throughput",
            Goal::Cpu => "cpu",
            Goal::CpuPerMessage => "cpu per message",
            Goal::Memory => "memory",
            Goal::MemoryPeak => "memory peak",
            Goal::Loss => "loss",
            Goal::MaxRate => "max rate",
            Goal::LatencyP99 => "latency p99",
            Goal::Startup => "startup",
            Goal::ContextSwitches => "context switches per 1000 messages",
            Goal::Rss => "resident memory",
            Goal::PageFaults => "page faults per second",
        }
    }

    pub fn direction(self) -> Direction {
        match self {
            Goal::IngressThroughput | Goal::IngressMessages | Goal::MaxRate => Direction::HigherIsBetter,
            // More output can mean more metrics delivered or a wasteful encoding; the experiment says which.
            Goal::EgressThroughput => Direction::Undeclared,
            _ => Direction::LowerIsBetter,
        }
    }

    pub fn unit(self) -> Unit {
        match self {
            Goal::IngressThroughput | Goal::EgressThroughput => Unit::BytesPerSecond,
            Goal::IngressMessages | Goal::MaxRate | Goal::PageFaults => Unit::PerSecond,
            Goal::Cpu => Unit::Millicores,
            Goal::CpuPerMessage => Unit::Nanoseconds,
            Goal::Memory | Goal::MemoryPeak | Goal::Rss => Unit::Bytes,
            Goal::Loss => Unit::Share,
            Goal::LatencyP99 | Goal::Startup => Unit::Seconds,
            Goal::ContextSwitches => Unit::Plain,
        }
    }

    /// Whether two targets that share a core, each with its own load, still show their difference: what a process does counts,
    /// not how soon or how much of it gets done.
    pub fn survives_company(self) -> bool {
        matches!(
            self,
            Goal::Cpu
                | Goal::CpuPerMessage
                | Goal::Memory
                | Goal::MemoryPeak
                | Goal::ContextSwitches
                | Goal::Rss
                | Goal::PageFaults
        )
    }

    /// Compared by difference because zero is an ordinary value.
    pub fn is_difference(self) -> bool {
        matches!(self, Goal::Loss)
    }

    pub fn keys() -> Vec<&'static str> {
        Self::ALL.iter().map(|g| g.key()).collect()
    }

    pub fn from_key(key: &str) -> Option<Goal> {
        Self::ALL.into_iter().find(|g| g.key() == key)
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
        for goal in Goal::ALL {
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
