//! The maximum rate of this machine: the same profile, all-out, into the built-in null receiver.

use crate::null::{Null, NullOptions};
use crate::profile::{Throttle, Transport};
use crate::run::{self, LoadVerdict, Options, Report, RunError};
use crate::source::Load;
use crate::units::RateUnit;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_rig_base::clock;

/// A result, stored per host, kernel, profile and transport.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeneratorCalibration {
    pub profile: String,
    pub transport: String,
    pub host: String,
    pub kernel: String,
    pub packets_per_s: f64,
    pub messages_per_s: f64,
    pub bytes_per_s: f64,
    /// CPU time of the sender per packet.
    pub cpu_ns_per_packet: f64,
    /// Share of its core that the sender used; the rest is waiting for the receiver.
    pub cpu_share: f64,
    /// Share of the time in which the null receiver accepted no more.
    pub blocked_share: f64,
    /// CPU time of composing alone, without sending.
    pub compose_ns_per_message: f64,
    pub compose_bytes_per_s: f64,
    /// Share of sent packets that the null receiver got (UDP may lose some).
    pub received_share: f64,
    pub system_calls_per_packet: f64,
    /// Whether segmentation offload was used.
    #[serde(default)]
    pub gso: bool,
}

impl GeneratorCalibration {
    pub fn per_second(&self, unit: RateUnit) -> f64 {
        match unit {
            RateUnit::Messages => self.messages_per_s,
            RateUnit::Packets => self.packets_per_s,
            RateUnit::Bytes => self.bytes_per_s,
        }
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_string()
}

/// Name and kernel of this machine.
pub fn host() -> (String, String) {
    (
        read("/proc/sys/kernel/hostname"),
        read("/proc/sys/kernel/osrelease"),
    )
}

/// Place of a result: one file per profile and transport, in a directory per host and kernel.
pub fn store(folder: &Path, profile: &str, transport: Transport) -> PathBuf {
    let (host, kernel) = host();
    let plain = |text: &str| -> String {
        text.chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || "-._@".contains(c) {
                    c
                } else {
                    '_'
                }
            })
            .collect()
    };
    folder.join(plain(&format!("{host}-{kernel}"))).join(format!(
        "{}-{}.json",
        plain(profile),
        transport.name()
    ))
}

/// Composes for a while without sending. Returns nanoseconds of CPU time per message, and bytes per second.
fn compose_alone(load: &Load, time: Duration) -> (f64, f64) {
    let (mut source, _) = load.source(0);
    let mut buffer = vec![0u8; source.room()];
    let (mut messages, mut bytes) = (0u64, 0u64);
    let own = || {
        let usage = clock::usage_of_thread();
        usage.user + usage.system
    };
    let before = own();
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..64 {
            let packet = source.packet(&mut buffer);
            messages += u64::from(packet.messages);
            bytes += packet.len as u64;
        }
    }
    // CPU time instead of wall time, because others may share the core.
    let spent = (own() - before).as_secs_f64().max(1e-9);
    (spent * 1e9 / messages as f64, bytes as f64 / spent)
}

/// Waits for the rest in the socket. Returns the share of the sent packets that the receiver counted.
fn received_share(load: &Load, report: &Report, null: &Null) -> Result<f64, RunError> {
    let lossy = load.transport == Transport::Udp;
    // A stream has no packets, but frames.
    let packets_wanted = match load.transport {
        Transport::Unix | Transport::Tcp => 0,
        _ => report.packets,
    };
    // Lost packets never arrive; on lossless transports the receiver may have to wait for a processor.
    let deadline = Instant::now() + Duration::from_millis(if lossy { 300 } else { 10_000 });
    while (null.packets() < packets_wanted || null.bytes() < report.bytes) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (packets, bytes) = (null.packets(), null.bytes());
    let exact = packets_wanted > 0;
    if lossy || (packets == packets_wanted && bytes == report.bytes) || (!exact && bytes >= report.bytes) {
        let (got, wanted) = if exact {
            (packets, packets_wanted)
        } else {
            (bytes, report.bytes)
        };
        return Ok((got as f64 / wanted.max(1) as f64).min(1.0));
    }
    Err(RunError::Io(std::io::Error::other(format!(
        "the null receiver counted {packets} packets and {bytes} bytes of {} and {}: the calibration is invalid",
        report.packets, report.bytes
    ))))
}

/// Runs the calibration. `cpus` are the sender's and the receiver's processors.
pub fn calibrate(
    load: &Load,
    folder: &Path,
    time: Duration,
    cpus: Option<(usize, usize)>,
    gso: bool,
) -> Result<(GeneratorCalibration, Report), RunError> {
    if load.is_columns() {
        return Err(RunError::Usage(
            "columns: a client sends at the end of its windows, however fast it is; calibrate another transport".into(),
        ));
    }
    let mut load = load.clone();
    load.profile.throttle = Throttle::AllOut;
    let (compose_ns, compose_bytes) = compose_alone(&load, time / 10);
    let how = NullOptions {
        cpu: cpus.map(|c| c.1),
        pace: None,
        // With two processors, the receiver gets a separate one.
        spin: cpus.is_some_and(|(sender, receiver)| sender != receiver),
    };
    let null = Null::open(load.transport, folder, how).map_err(RunError::Io)?;
    let mut options = Options::new(null.target());
    options.duration = Some(time);
    options.oversize_ok = true;
    options.gso = gso;
    options.cpus = cpus.map(|c| vec![c.0]).unwrap_or_default();
    let (report, error) = run::run(&load, &options)?;
    if let Some(error) = error {
        return Err(error);
    }
    let received_share = received_share(&load, &report, &null)?;
    let elapsed = report.elapsed.as_secs_f64();
    let cpu = (report.cpu_user + report.cpu_system).as_secs_f64();
    let (host, kernel) = host();
    let calibration = GeneratorCalibration {
        profile: load.name.clone(),
        transport: load.transport.name().into(),
        host,
        kernel,
        packets_per_s: report.packets as f64 / elapsed,
        messages_per_s: report.messages as f64 / elapsed,
        bytes_per_s: report.bytes as f64 / elapsed,
        cpu_ns_per_packet: cpu * 1e9 / report.packets.max(1) as f64,
        cpu_share: cpu / elapsed,
        blocked_share: report.blocked.as_secs_f64() / elapsed / f64::from(report.threads),
        compose_ns_per_message: compose_ns,
        compose_bytes_per_s: compose_bytes,
        received_share,
        system_calls_per_packet: report.system_calls as f64 / report.packets.max(1) as f64,
        gso: report.gso,
    };
    Ok((calibration, report))
}

/// The limit for a fair paced run: at most two thirds of this machine's maximum. `None` if that is unknown.
pub fn headroom(load: &Load, calibration: &GeneratorCalibration) -> Option<f64> {
    let rate = load.profile.rate?;
    load.profile.rate_unit()?;
    Some(calibration.per_second(rate.unit) / rate.per_second)
}

/// The verdict of a run given its calibration: with too little headroom a shortfall is the generator's, and an all-out UDP run without loss
/// says nothing about the target.
pub fn judge(report: &Report, headroom: Option<f64>) -> LoadVerdict {
    let verdict = report.verdict();
    match headroom {
        Some(headroom) if headroom < 1.5 => LoadVerdict::GeneratorLimited,
        _ => verdict,
    }
}
