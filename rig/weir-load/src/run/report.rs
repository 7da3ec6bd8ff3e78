//! Result of a run, and the cause of a shortfall.

use crate::manifest::{ColumnsSent, Marker};
use crate::units::RateUnit;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Live counters of a running thread.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Progress {
    pub packets: AtomicU64,
    pub messages: AtomicU64,
    pub bytes: AtomicU64,
    pub refused_packets: AtomicU64,
    pub blocked_ns: AtomicU64,
    pub late_packets: AtomicU64,
}

/// The sent packets of a connection's stream: the first `composed`, except for the skipped ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentStream {
    pub connection: u32,
    pub composed: u64,
    /// Start and exclusive end, ascending.
    pub skipped: Vec<(u64, u64)>,
    /// Length of the stream's cycle, in packets.
    pub cycle: Option<u64>,
}

impl SentStream {
    pub(crate) fn skip(&mut self, packet: u64) {
        match self.skipped.last_mut() {
            Some((_, end)) if *end == packet => *end += 1,
            _ => self.skipped.push((packet, packet + 1)),
        }
    }
}

/// Lateness in microseconds, in buckets 1/8 of a power of two wide.
#[derive(Clone, Debug)]
pub struct Lateness {
    buckets: Vec<u64>,
    total: u64,
}

impl Lateness {
    pub(crate) fn new() -> Lateness {
        Lateness {
            buckets: vec![0; 40 * 8],
            total: 0,
        }
    }

    pub(crate) fn add(&mut self, late: Duration, packets: u64) {
        let micros = late.as_micros() as u64 + 1;
        let power = 63 - micros.leading_zeros() as u64;
        let part = ((micros << 3) >> power) & 7;
        let index = ((power * 8 + part) as usize).min(self.buckets.len() - 1);
        self.buckets[index] += packets;
        self.total += packets;
    }

    pub(crate) fn merge(&mut self, other: &Lateness) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.total += other.total;
    }

    /// Upper bound of the bucket with quantile `q`, in seconds.
    pub fn quantile(&self, q: f64) -> f64 {
        let mut left = (self.total as f64 * q).ceil();
        for (index, count) in self.buckets.iter().enumerate() {
            left -= *count as f64;
            if left <= 0.0 && self.total > 0 {
                let (power, part) = (index / 8, index % 8);
                return ((1u64 << power) as f64 * (1.0 + (part + 1) as f64 / 8.0) - 1.0) / 1e6;
            }
        }
        0.0
    }
}

/// Totals of one thread, or of all.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub packets: u64,
    pub messages: u64,
    pub bytes: u64,
    pub late_packets: u64,
    pub blocked: Duration,
    pub refused_packets: u64,
    pub refused_messages: u64,
    pub system_calls: u64,
    pub units_due: f64,
    pub units_sent: f64,
    /// Of the schedule, which begins after the first pass.
    pub elapsed: Duration,
    pub first_pass: Duration,
    pub cpu_user: Duration,
    pub cpu_system: Duration,
    pub run_delay: Duration,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.packets += other.packets;
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.late_packets += other.late_packets;
        self.blocked += other.blocked;
        self.refused_packets += other.refused_packets;
        self.refused_messages += other.refused_messages;
        self.system_calls += other.system_calls;
        self.units_sent += other.units_sent;
        self.cpu_user += other.cpu_user;
        self.cpu_system += other.cpu_system;
        self.run_delay += other.run_delay;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.first_pass = self.first_pass.max(other.first_pass);
    }
}

/// Result of one run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub packets: u64,
    pub messages: u64,
    pub bytes: u64,
    pub elapsed: Duration,
    /// The first part of that, in which every context was sent once and no schedule was kept.
    pub first_pass: Duration,
    pub unit: Option<RateUnit>,
    pub scheduled: f64,
    pub achieved: f64,
    pub late_packets: u64,
    pub lateness_p99_s: f64,
    pub blocked: Duration,
    pub refused_packets: u64,
    pub refused_messages: u64,
    pub cpu_user: Duration,
    pub cpu_system: Duration,
    pub run_delay: Duration,
    pub system_calls: u64,
    pub send_buffer: usize,
    pub markers: Vec<Marker>,
    pub sent: Vec<SentStream>,
    pub started_unix_ns: u64,
    pub threads: u32,
    /// Packets that the kernel dropped at the target's UDP socket during the run, if visible.
    pub kernel_drops: Option<u64>,
    /// Whether segmentation offload was used until the end.
    pub gso: bool,
    /// Windows and requests of a load of columns.
    pub columns: Option<ColumnsSent>,
}

/// The cause of a shortfall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadVerdict {
    OnSchedule,
    TargetLimited,
    GeneratorLimited,
    HostLimited,
    /// All-out into a target that never pushed back and lost nothing.
    Unlimited,
}

impl LoadVerdict {
    pub fn name(self) -> &'static str {
        match self {
            LoadVerdict::OnSchedule => "on-schedule",
            LoadVerdict::TargetLimited => "target-limited",
            LoadVerdict::GeneratorLimited => "generator-limited",
            LoadVerdict::HostLimited => "host-limited",
            LoadVerdict::Unlimited => "unlimited",
        }
    }
}

impl Report {
    pub(crate) fn add(&mut self, tally: &Tally, lateness: &Lateness) {
        self.packets = tally.packets;
        self.messages = tally.messages;
        self.bytes = tally.bytes;
        self.elapsed = tally.first_pass + tally.elapsed;
        self.first_pass = tally.first_pass;
        self.achieved = tally.units_sent;
        self.late_packets = tally.late_packets;
        self.lateness_p99_s = lateness.quantile(0.99);
        self.blocked = tally.blocked;
        self.refused_packets = tally.refused_packets;
        self.refused_messages = tally.refused_messages;
        self.cpu_user = tally.cpu_user;
        self.cpu_system = tally.cpu_system;
        self.run_delay = tally.run_delay;
        self.system_calls = tally.system_calls;
    }

    /// The cause of a shortfall: the target pushed back, the generator was late, or the host took its core away.
    pub fn verdict(&self) -> LoadVerdict {
        let elapsed = (self.elapsed - self.first_pass).as_secs_f64() * f64::from(self.threads);
        if elapsed == 0.0 {
            return LoadVerdict::OnSchedule;
        }
        let blocked = self.blocked.as_secs_f64();
        let stolen = self.run_delay.as_secs_f64();
        if self.unit.is_none() {
            if blocked > 0.5 * elapsed || self.kernel_drops.unwrap_or(0) > 0 {
                return LoadVerdict::TargetLimited;
            }
            if stolen > 0.5 * elapsed {
                return LoadVerdict::HostLimited;
            }
            return if blocked == 0.0 && self.kernel_drops == Some(0) {
                LoadVerdict::Unlimited
            } else {
                LoadVerdict::GeneratorLimited
            };
        }
        let missing = 1.0 - self.achieved / self.scheduled.max(1e-9);
        if missing <= 0.01 && self.refused_packets == 0 {
            return LoadVerdict::OnSchedule;
        }
        let missing_time = missing * elapsed;
        if self.refused_packets > 0 || blocked >= 0.5 * missing_time {
            LoadVerdict::TargetLimited
        } else if stolen >= 0.5 * missing_time {
            LoadVerdict::HostLimited
        } else {
            LoadVerdict::GeneratorLimited
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LoadVerdict::{GeneratorLimited, HostLimited, OnSchedule, TargetLimited, Unlimited};

    const SECOND: Duration = Duration::from_secs(1);

    /// A second in which this share of what was due was sent.
    fn report(achieved: f64) -> Report {
        Report {
            packets: 1000,
            messages: 1000,
            bytes: 1000,
            elapsed: SECOND,
            first_pass: Duration::ZERO,
            unit: Some(RateUnit::Messages),
            scheduled: 1000.0,
            achieved: 1000.0 * achieved,
            late_packets: 0,
            lateness_p99_s: 0.0,
            blocked: Duration::ZERO,
            refused_packets: 0,
            refused_messages: 0,
            cpu_user: SECOND,
            cpu_system: Duration::ZERO,
            run_delay: Duration::ZERO,
            system_calls: 1,
            send_buffer: 0,
            markers: Vec::new(),
            sent: Vec::new(),
            started_unix_ns: 0,
            threads: 1,
            kernel_drops: Some(0),
            gso: false,
            columns: None,
        }
    }

    /// Half of the missing time explains a shortfall; the target comes before the host, and the generator is what is left.
    #[test]
    fn a_shortfall_at_a_rate_has_the_cause_that_took_half_of_the_missing_time() {
        let tenth_missing = |blocked, stolen| Report {
            blocked: SECOND.mul_f64(blocked),
            run_delay: SECOND.mul_f64(stolen),
            ..report(0.9)
        };
        assert_eq!(report(1.0).verdict(), OnSchedule);
        assert_eq!(report(0.991).verdict(), OnSchedule);
        assert_eq!(tenth_missing(0.0501, 0.2).verdict(), TargetLimited);
        assert_eq!(tenth_missing(0.0499, 0.0501).verdict(), HostLimited);
        assert_eq!(tenth_missing(0.0499, 0.0499).verdict(), GeneratorLimited);
        let refused = Report {
            refused_packets: 1,
            ..report(1.0)
        };
        assert_eq!(refused.verdict(), TargetLimited);
    }

    #[test]
    fn an_all_out_load_is_limited_by_what_took_half_of_its_time() {
        let all_out = |blocked, stolen, kernel_drops| Report {
            unit: None,
            blocked: SECOND.mul_f64(blocked),
            run_delay: SECOND.mul_f64(stolen),
            kernel_drops,
            ..report(1.0)
        };
        assert_eq!(all_out(0.51, 0.6, Some(0)).verdict(), TargetLimited);
        assert_eq!(all_out(0.0, 0.6, Some(1)).verdict(), TargetLimited);
        assert_eq!(all_out(0.1, 0.6, Some(0)).verdict(), HostLimited);
        assert_eq!(all_out(0.1, 0.1, Some(0)).verdict(), GeneratorLimited);
        assert_eq!(all_out(0.0, 0.0, Some(0)).verdict(), Unlimited);
        // Without a view of the target's drops nothing says that it took all.
        assert_eq!(all_out(0.0, 0.0, None).verdict(), GeneratorLimited);
    }

    #[test]
    fn lateness_is_found_within_an_eighth() {
        let mut lateness = Lateness::new();
        for micros in [10, 100, 1000, 10_000] {
            lateness.add(Duration::from_micros(micros), 1);
        }
        for (q, micros) in [(0.25, 10.0), (0.5, 100.0), (0.75, 1000.0), (1.0, 10_000.0)] {
            let found = lateness.quantile(q) * 1e6;
            assert!(found >= micros && found <= micros * 1.13 + 1.0, "{q}: {found}");
        }
    }
}
