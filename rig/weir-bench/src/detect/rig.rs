//! How the detector calls the other halves of the rig: `weir-bench load` and `weir-bench sink` as child processes, with
//! files as the only interface. Their CPU is then visible on its own, and any other program can take their place.

use super::capture::Phase;
use super::delivered::Points;
use super::experiment::{Load, Sink};
use super::observe::Seen;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a load must be told besides its experiment.
#[derive(Debug)]
pub struct LoadCall<'a> {
    pub program: &'a Path,
    pub seed: u64,
    pub duration: Duration,
    pub manifest: &'a Path,
    pub capture: &'a Path,
    /// Whole per-context truth, for verification.
    pub contexts: bool,
}

/// `manifest.json`, `manifest-1.json`, ...
pub fn numbered(folder: &Path, name: &str, i: usize, extension: &str) -> PathBuf {
    folder.join(if i == 0 {
        format!("{name}.{extension}")
    } else {
        format!("{name}-{i}.{extension}")
    })
}

pub fn load_argv(load: &Load, call: &LoadCall) -> Vec<String> {
    match load {
        Load::Command { command, .. } => command.clone(),
        Load::Profile {
            profile, args, to, ..
        } => {
            let mut argv = vec![
                call.program.display().to_string(),
                "load".to_owned(),
                "run".to_owned(),
                "--profile".to_owned(),
                profile.clone(),
                "--to".to_owned(),
                to.clone(),
                "--seed".to_owned(),
                call.seed.to_string(),
                "--duration".to_owned(),
                format!("{}ms", call.duration.as_millis()),
                "--manifest".to_owned(),
                call.manifest.display().to_string(),
                "--capture".to_owned(),
                call.capture.display().to_string(),
            ];
            if call.contexts {
                argv.push("--contexts".to_owned());
            }
            argv.extend(args.iter().cloned());
            argv
        }
    }
}

/// Points are read from what the target itself prints: no process, no socket.
pub const TARGET_STDOUT: &str = "target-stdout";

/// Likewise, where every line that the target prints is a message that it delivers.
pub const TARGET_LINES: &str = "target-lines";

/// The command of a sink; `None` when there is nothing to start.
pub fn sink_argv(sink: &Sink, program: &Path, points: &Path, manifest: &Path) -> Option<Vec<String>> {
    if [TARGET_STDOUT, TARGET_LINES].contains(&sink.kind.as_str()) {
        return None;
    }
    if sink.kind == "command" {
        return Some(sink.command.clone());
    }
    let mut argv = vec![program.display().to_string(), "sink".to_owned()];
    if sink.kind == "scrape" {
        argv.extend(["--scrape".to_owned(), sink.listen.clone()]);
    } else {
        argv.extend(["--listen".to_owned(), format!("{}={}", sink.kind, sink.listen)]);
    }
    argv.extend(["--keep".to_owned(), "0".to_owned()]);
    if sink.kind != "null" && sink.kind != "http" && sink.kind != "lines" {
        argv.extend(["--capture".to_owned(), points.display().to_string()]);
        if sink.verify {
            argv.extend(["--oracle".to_owned(), manifest.display().to_string()]);
        }
    }
    argv.extend(sink.args.iter().cloned());
    Some(argv)
}

/// Writes `sink.json` of a built-in sink from what it printed and captured.
pub fn sink_report(
    sink: &Sink,
    stdout: &Path,
    points: &Path,
    manifest: &Path,
    report: &Path,
) -> io::Result<()> {
    if sink.kind == TARGET_LINES {
        let (lines, bytes) = count_lines(stdout)?;
        let out = json!({"delivered_messages": lines, "received_bytes": bytes});
        return fs::write(report, out.to_string());
    }
    let json = |path: &Path| -> Option<Value> { serde_json::from_str(&fs::read_to_string(path).ok()?).ok() };
    let manifest = json(manifest);
    let ignored: Vec<String> = sink
        .args
        .windows(2)
        .filter(|w| w[0] == "--ignore-tag")
        .map(|w| w[1].clone())
        .collect();
    let source = if sink.kind == TARGET_STDOUT {
        stdout
    } else {
        points
    };
    let mut out = if source.is_file() {
        Points::read(
            source,
            sink.kind == "scrape" || sink.kind == "remote-write",
            &ignored,
        )?
        .report(manifest.as_ref())
    } else {
        json!({})
    };
    if sink.kind == TARGET_STDOUT {
        out["received_bytes"] = fs::metadata(stdout).map_or(0, |m| m.len()).into();
    } else if let Some(result) = fs::read_to_string(stdout)
        .unwrap_or_default()
        .lines()
        .filter_map(|l| serde_json::from_str::<Value>(l).ok())
        .find_map(|v| v.get("result").cloned())
    {
        let stats: Vec<&Value> = result["sinks"]
            .as_object()
            .map(|m| m.values().collect())
            .unwrap_or_default();
        let sum = |key: &str| stats.iter().filter_map(|s| s[key].as_u64()).sum::<u64>();
        out["received_bytes"] = sum("bytes").into();
        // A scraper that finds nobody has answered nobody: it asks a last time when the target is gone already.
        let unreachable = if sink.kind == "scrape" {
            stats.iter().filter_map(|s| s["rejected"]["502"].as_u64()).sum()
        } else {
            0
        };
        out["errors_answered"] = result["refused"]
            .as_u64()
            .unwrap_or(0)
            .saturating_sub(unreachable)
            .into();
        if let Some(oracle) = result["oracle"].as_object() {
            out["mismatches"] = oracle
                .values()
                .filter_map(|c| c["differences_total"].as_u64())
                .sum::<u64>()
                .into();
            out["oracle"] = result["oracle"].clone();
        }
        // Log lines, traces and raw bytes have no contexts: what arrived is counted as it is.
        if out.get("delivered_messages").is_none() {
            let records = sum("logs");
            if records > 0 {
                out["delivered_messages"] = records.into();
            }
        }
    } else {
        return Err(io::Error::other(format!(
            "{}: the sink printed no result",
            stdout.display()
        )));
    }
    fs::write(report, out.to_string())
}

/// Lines and bytes of a file that may be larger than memory.
fn count_lines(path: &Path) -> io::Result<(usize, usize)> {
    let mut file = fs::File::open(path)?;
    let mut buffer = vec![0; 1 << 16];
    let (mut lines, mut bytes) = (0, 0);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok((lines, bytes));
        }
        lines += memchr::memchr_iter(b'\n', &buffer[..read]).count();
        bytes += read;
    }
}

/// Readings of the generator itself, moved from its clock to ours. Its lines carry nanoseconds since its first packet.
pub fn generator_readings(capture: &Path, first_packet_t: u64) -> Vec<Seen> {
    let Ok(text) = fs::read_to_string(capture) else {
        return Vec::new();
    };
    text.lines()
        .filter_map(|l| serde_json::from_str::<Value>(l).ok())
        .filter_map(|l| {
            let name = match l["m"].as_str()? {
                "messages" => "sent_messages",
                "packets" => "sent_packets",
                "bytes" => "sent_bytes",
                other => other,
            };
            Some(Seen {
                t: first_packet_t + l["t"].as_u64()?,
                src: "generator",
                name: name.to_owned(),
                counter: l["k"] == "counter",
                v: l["v"].as_f64()?,
            })
        })
        .collect()
}

/// The phase of a moment, from the times that the run turned out to have.
#[derive(Debug, Clone, Copy)]
pub struct Phases {
    pub load_start: u64,
    pub measure_start: u64,
    pub measure_end: u64,
}

impl Phases {
    pub fn of(&self, t: u64) -> Phase {
        if t < self.load_start {
            Phase::Start
        } else if t < self.measure_start {
            Phase::Warmup
        } else if t <= self.measure_end {
            Phase::Measure
        } else {
            Phase::Drain
        }
    }
}
