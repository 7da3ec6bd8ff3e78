//! `weir-bench load run`.

use super::common::{FramingArg, ProfileArgs, check_writable, write};
use crate::common::{check_cpus, print_line};
use crate::failure::Failure;
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_load::calibrate;
use weir_load::run::{Backpressure, Options, Progress, Report, Running};
use weir_load::source::Load;
use weir_load::target::Target;
use weir_load::truth::{self, Detail};
use weir_load::units::Bytes;
use weir_rig_base::signal;
use weir_units::parse_duration;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Target address: udp://host:port, unixgram:///path, unix:///path, tcp://host:port, http://host:port/path, http+unix:///path,
    /// grpc://host:port. Metrics are sent to http as columns, each connection as a client with its own windows.
    #[arg(long)]
    to: String,
    /// Stop after this time: 30s, 5m.
    #[arg(long, value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Stop with the packet that reaches this many messages.
    #[arg(long)]
    count: Option<u64>,
    /// Sending threads, which share the connections.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Processors to pin the threads to, in turn.
    #[arg(long, value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Time step of the schedule (default 1ms, 250us at high rates).
    #[arg(long, value_parser = parse_duration)]
    quantum: Option<Duration>,
    /// Action if the target accepts no more. Default: paced datagrams wait one quantum and are then skipped and
    /// counted, everything else waits.
    #[arg(long, value_enum)]
    on_backpressure: Option<OnBackpressure>,
    /// Framing of packets on streams. Default: length on unix:// and for DogStatsD on tcp://, else newline.
    #[arg(long, value_enum)]
    framing: Option<FramingArg>,
    /// Send buffer of each socket.
    #[arg(long, default_value = "4 MiB", value_parser = |text: &str| text.parse::<Bytes>())]
    send_buffer: Bytes,
    /// Receive buffer of the target; larger packets are refused.
    #[arg(long, default_value = "65535", value_parser = |text: &str| text.parse::<Bytes>())]
    target_buffer: Bytes,
    /// Send packets larger than transport or target accept.
    #[arg(long)]
    oversize_ok: bool,
    /// Refuse a prebuilt load that would send a packet twice; at the end compare all packets, which takes eight bytes of
    /// memory each, and fail if one was repeated.
    #[arg(long)]
    no_repeat: bool,
    /// Pass UDP datagrams of one exact size (`packet_size: {exactly: 1432}`) to the kernel as one, if it
    /// can split them (UDP_SEGMENT).
    #[arg(long)]
    gso: bool,
    /// Send this header with every HTTP request: "DD-API-KEY: ..." (repeatable).
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// Send a numbered gauge `weir.load.marker` this often, for end-to-end delay: 100ms.
    #[arg(long, value_parser = parse_duration)]
    markers: Option<Duration>,
    /// Write the manifest of sent messages to this file.
    #[arg(long)]
    manifest: Option<PathBuf>,
    /// Add a row per context to the manifest, with the exact values that an agent must report.
    #[arg(long, requires = "manifest")]
    contexts: bool,
    /// Add the bins of distributions to the rows.
    #[arg(long, requires = "contexts")]
    bins: bool,
    /// Add the rows of each window of a load of columns.
    #[arg(long, requires = "contexts")]
    windows: bool,
    /// Write the generator's progress to this file: one JSON line per counter and second.
    #[arg(long)]
    capture: Option<PathBuf>,
    /// Folder with this machine's calibrations.
    #[arg(long)]
    calibration: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum OnBackpressure {
    Skip,
    Wait,
}

/// The line scripts read.
pub fn summary(name: &str, seed: u64, target: &str, report: &Report) -> serde_json::Value {
    let elapsed = report.elapsed.as_secs_f64();
    let per_second = |value: f64| if elapsed > 0.0 { value / elapsed } else { 0.0 };
    let cpu = (report.cpu_user + report.cpu_system).as_secs_f64();
    json!({
        "profile": name,
        "seed": seed,
        "target": target,
        "packets": report.packets,
        "messages": report.messages,
        "bytes": report.bytes,
        "elapsed_s": elapsed,
        "packets_per_s": per_second(report.packets as f64),
        "messages_per_s": per_second(report.messages as f64),
        "bytes_per_s": per_second(report.bytes as f64),
        "cpu_user_s": report.cpu_user.as_secs_f64(),
        "cpu_system_s": report.cpu_system.as_secs_f64(),
        "cpu_ns_per_message": if report.messages > 0 { cpu * 1e9 / report.messages as f64 } else { 0.0 },
        "run_delay_s": report.run_delay.as_secs_f64(),
        "system_calls": report.system_calls,
        "blocked_s": report.blocked.as_secs_f64(),
        "refused_packets": report.refused_packets,
        "refused_messages": report.refused_messages,
        "kernel_drops": report.kernel_drops,
        "unit": report.unit.map(|u| u.name()),
        "scheduled": report.scheduled,
        "achieved": report.achieved,
        "late_fraction": if report.packets > 0 { report.late_packets as f64 / report.packets as f64 } else { 0.0 },
        "lateness_p99_s": report.lateness_p99_s,
        "send_buffer": report.send_buffer,
        "gso": report.gso,
        "verdict": report.verdict().name(),
    })
}

impl Args {
    fn options(&self, target: Target) -> Options {
        Options {
            duration: self.duration,
            count: self.count,
            threads: self.threads,
            cpus: self.cpu.clone(),
            quantum: self.quantum,
            backpressure: match self.on_backpressure {
                None => Backpressure::Auto,
                Some(OnBackpressure::Skip) => Backpressure::Skip,
                Some(OnBackpressure::Wait) => Backpressure::Wait,
            },
            framing: self.framing.map(Into::into),
            send_buffer: self.send_buffer.0 as usize,
            markers: self.markers,
            target_buffer: self.target_buffer.0,
            oversize_ok: self.oversize_ok,
            no_repeat: self.no_repeat,
            gso: self.gso,
            headers: self.header.clone(),
            ..Options::new(target)
        }
    }
}

/// This machine's highest sending rate, as a multiple of the load's rate, according to its calibration.
fn headroom(args: &Args, load: &Load) -> Option<f64> {
    let store = args
        .calibration
        .clone()
        .or_else(super::calibrate::default_store)?;
    let text = std::fs::read_to_string(calibrate::store(&store, &load.name, load.transport)).ok()?;
    calibrate::headroom(load, &serde_json::from_str(&text).ok()?)
}

/// Interval between progress records. CPU per message needs the number of messages between two readings of the target, which come at other times:
/// the finer, the less has to be taken as even.
const PROGRESS_PERIOD: Duration = Duration::from_millis(50);

/// Writes the progress of a run from its beginning to its end.
fn capture(path: &Path, file: File, load: &Load, running: &Running) -> Result<(), Failure> {
    let named = |error: std::io::Error| Failure::Runtime(format!("{}: {error}", path.display()));
    let mut out = BufWriter::new(file);
    let header = json!({"v": 1, "run": "load", "profile": load.name, "seed": load.seed.to_string()});
    writeln!(out, "{header}").map_err(named)?;
    let start = Instant::now();
    for reading in 0u32.. {
        let deadline = PROGRESS_PERIOD * reading;
        // Short naps, so that the last line comes with the end of the run.
        while !running.is_finished() && start.elapsed() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let sum = |counter: fn(&Progress) -> &AtomicU64| -> u64 {
            running
                .progress
                .iter()
                .map(|progress| counter(progress).load(Ordering::Relaxed))
                .sum()
        };
        let t = start.elapsed().as_nanos() as u64;
        for (name, value) in [
            ("packets", sum(|p| &p.packets)),
            ("messages", sum(|p| &p.messages)),
            ("bytes", sum(|p| &p.bytes)),
            ("refused_packets", sum(|p| &p.refused_packets)),
            ("late_packets", sum(|p| &p.late_packets)),
            ("blocked_ns", sum(|p| &p.blocked_ns)),
        ] {
            let line = json!({"t": t, "ph": "load", "m": name, "k": "counter", "v": value, "l": {"src": "generator"}});
            writeln!(out, "{line}").map_err(named)?;
        }
        if running.is_finished() {
            break;
        }
    }
    out.flush().map_err(named)
}

pub fn run(args: Args) -> Result<(), Failure> {
    let target = Target::parse(&args.to).map_err(Failure::usage)?;
    check_cpus(&args.cpu)?;
    let load = args.profile.load_on(&target)?;
    let options = args.options(target);
    // An unwritable file should fail before the run, not after it.
    if let Some(path) = &args.manifest {
        check_writable("--manifest", path)?;
    }
    let capture_file = match &args.capture {
        Some(path) => Some(
            File::create(path)
                .map_err(|error| Failure::Usage(format!("--capture {}: {error}", path.display())))?,
        ),
        None => None,
    };
    // Before the first thread starts, so that all inherit it.
    signal::block_termination()?;
    let running = weir_load::run::start(&load, &options)?;
    stop_on_termination(&running);
    let captured = match (&args.capture, capture_file) {
        (Some(path), Some(file)) => capture(path, file, &load, &running),
        _ => Ok(()),
    };
    let stopped = running.stop.clone();
    let (report, error) = running.finish();
    let headroom = headroom(&args, &load);
    let verdict = match error {
        // The rate of a load whose target went away is meaningless.
        Some(_) => "aborted",
        None => calibrate::judge(&report, headroom).name(),
    };
    let address = options.target.to_string();
    let mut line = summary(&load.name, load.seed, &address, &report);
    line["verdict"] = verdict.into();
    line["headroom"] = json!(headroom);
    if let Some(columns) = &report.columns {
        line["columns"] = json!({
            "window_s": columns.window_s, "requests": columns.requests, "series": columns.series,
            "sent_again": columns.sent_again, "duplicates": columns.duplicates, "busy": columns.busy,
            "unanswered": columns.unanswered,
        });
    }
    let detail = Detail {
        contexts: args.contexts,
        repeats: args.no_repeat,
        bins: args.bins,
        windows: args.windows,
    };
    let manifest = (args.manifest.is_some() || args.no_repeat).then(|| {
        let mut manifest = truth::manifest(&load, &address, &report, &detail);
        manifest.sending.verdict = verdict.into();
        manifest
    });
    let repeated = manifest.as_ref().and_then(|m| m.totals.repeated_packets);
    line["repeated_packets"] = json!(repeated);
    let written = match (&args.manifest, &manifest) {
        (Some(path), Some(manifest)) => serde_json::to_vec(manifest)
            .map_err(Failure::runtime)
            .and_then(|text| write(path, &text)),
        _ => Ok(()),
    };
    print_line(&line)?;
    let early = if error.is_none() && stopped.load(Ordering::Relaxed) {
        ", stopped by a signal"
    } else {
        ""
    };
    eprintln!(
        "{} messages in {} packets, {:.1} MB in {:.2} s: {:.0} messages/s, {verdict}{early}",
        report.messages,
        report.packets,
        report.bytes as f64 / 1e6,
        report.elapsed.as_secs_f64(),
        report.messages as f64 / report.elapsed.as_secs_f64().max(1e-9),
    );
    written?;
    captured?;
    if let Some(error) = error {
        return Err(error.into());
    }
    match repeated {
        Some(repeated @ 1..) => Err(Failure::Runtime(format!(
            "--no-repeat: {repeated} of {} packets equal an earlier one; larger packets, or `value: {{kind: sequence}}`, \
             never repeat",
            report.packets
        ))),
        _ => Ok(()),
    }
}

/// SIGTERM or SIGINT end the run early; the messages sent until then are reported as usual.
fn stop_on_termination(running: &Running) {
    let stop = running.stop.clone();
    std::thread::spawn(move || {
        while !signal::wait_termination(Duration::from_secs(3600)) {}
        stop.store(true, Ordering::Relaxed);
    });
}
