//! The detector's calls of the rig's other halves: `weir-bench load` and `weir-bench sink` as child processes, with files as the only
//! interface. So their CPU is visible separately, and any other program can replace them.

use super::books;
use super::capture::Phase;
use super::delivered::Points;
use super::experiment::{Load, Sink};
use super::observe::Observation;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Parameters of a load besides its experiment.
#[derive(Debug)]
pub struct LoadParameters<'a> {
    pub program: &'a Path,
    pub seed: u64,
    pub duration: Duration,
    pub messages: Option<usize>,
    pub manifest: &'a Path,
    pub capture: &'a Path,
    /// Write the per-context truth, for verification.
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

pub fn load_argv(load: &Load, call: &LoadParameters) -> Vec<String> {
    let (flag, profile, args, to) = match load {
        Load::Command { command, .. } => return command.clone(),
        Load::Profile {
            flag,
            profile,
            args,
            to,
            ..
        } => (flag, profile, args, to),
    };
    let mut argv = vec![call.program.display().to_string()];
    argv.extend(["load", "run"].map(str::to_owned));
    for (flag, value) in [
        (*flag, profile.clone()),
        ("--to", to.clone()),
        ("--seed", call.seed.to_string()),
        ("--duration", format!("{}ms", call.duration.as_millis())),
        ("--manifest", call.manifest.display().to_string()),
        ("--capture", call.capture.display().to_string()),
    ] {
        argv.extend([flag.to_owned(), value]);
    }
    if let Some(messages) = call.messages {
        argv.extend(["--count".to_owned(), messages.to_string()]);
    }
    if call.contexts {
        argv.push("--contexts".to_owned());
    }
    argv.extend(args.iter().cloned());
    argv
}

/// Points are read from the target's standard output: no process, no socket.
pub const TARGET_STDOUT: &str = "target-stdout";

/// The same; every line that the target prints is a delivered message.
pub const TARGET_LINES: &str = "target-lines";

/// The target's own books, queried while it runs.
pub const TARGET_BOOKS: &str = "target-books";

/// Counters of the target's own exposition, read until the load is counted: `listen` is its URL, `args` are the names.
pub const TARGET_COUNTER: &str = "target-counter";

/// The same, printed as its last line.
pub const TARGET_RESULT: &str = "target-result";

/// The target's exposition, scraped once after the load, or as often as `--scrape-interval` in `args` says.
pub const SCRAPE: &str = "scrape";

/// The command of a sink; `None` if there is nothing to start before the target.
pub fn sink_argv(sink: &Sink, program: &Path, points: &Path, manifest: &Path) -> Option<Vec<String>> {
    match sink.kind.as_str() {
        _ if sink.is_target() => None,
        "command" => Some(sink.command.clone()),
        SCRAPE if sink.args.iter().all(|arg| !arg.starts_with("--scrape-interval")) => None,
        SCRAPE => Some(built_in(
            sink,
            &["--scrape", &sink.listen],
            program,
            points,
            manifest,
        )),
        kind => {
            let listen = format!("{kind}={}", sink.listen);
            Some(built_in(sink, &["--listen", &listen], program, points, manifest))
        }
    }
}

/// The command of one scrape. A scrape is work of the target, which in the window would count as work for the load.
pub fn scrape_argv(sink: &Sink, program: &Path, points: &Path, manifest: &Path) -> Vec<String> {
    let once = ["--scrape", &sink.listen, "--scrape-count", "1"];
    built_in(sink, &once, program, points, manifest)
}

fn built_in(sink: &Sink, words: &[&str], program: &Path, points: &Path, manifest: &Path) -> Vec<String> {
    let mut argv = vec![program.display().to_string(), "sink".to_owned()];
    argv.extend(words.iter().map(|word| (*word).to_owned()));
    argv.extend(["--keep".to_owned(), "0".to_owned()]);
    if !["null", "http", "lines"].contains(&sink.kind.as_str()) {
        argv.extend(["--capture".to_owned(), points.display().to_string()]);
        if sink.verify {
            argv.extend(["--oracle".to_owned(), manifest.display().to_string()]);
        }
    }
    argv.extend(sink.args.iter().cloned());
    argv
}

/// Writes `sink.json` of a built-in sink from its output and capture.
pub fn sink_report(
    sink: &Sink,
    stdout: &Path,
    points: &Path,
    manifest: &Path,
    report: &Path,
) -> io::Result<()> {
    let out = match sink.kind.as_str() {
        // These have written their own reports.
        "command" | TARGET_BOOKS | TARGET_COUNTER => return Ok(()),
        TARGET_RESULT => books::of_result(stdout, manifest)?,
        TARGET_LINES => {
            let (lines, bytes) = count_lines(stdout)?;
            json!({"delivered_messages": lines, "received_bytes": bytes})
        }
        TARGET_STDOUT => {
            let mut out = of_points(sink, stdout, manifest)?;
            out["received_bytes"] = fs::metadata(stdout).map_or(0, |m| m.len()).into();
            out
        }
        _ => {
            let mut out = of_points(sink, points, manifest)?;
            let said = result(stdout)?;
            add_result(&mut out, &said, sink);
            out
        }
    };
    fs::write(report, out.to_string())
}

/// The delivery according to the points.
fn of_points(sink: &Sink, points: &Path, manifest: &Path) -> io::Result<Value> {
    if !points.is_file() {
        return Ok(json!({}));
    }
    let text = fs::read_to_string(manifest).ok();
    let manifest: Option<Value> = text.and_then(|text| serde_json::from_str(&text).ok());
    let flags = sink.args.windows(2).filter(|w| w[0] == "--ignore-tag");
    let ignored: Vec<String> = flags.map(|w| w[1].clone()).collect();
    let folded = sink.kind == SCRAPE || sink.kind == "remote-write";
    Ok(Points::read(points, folded, &ignored)?.report(manifest.as_ref()))
}

/// The result line of a built-in sink.
fn result(stdout: &Path) -> io::Result<Value> {
    let text = fs::read_to_string(stdout).unwrap_or_default();
    let mut lines = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    let missing = || io::Error::other(format!("{}: the sink printed no result", stdout.display()));
    lines
        .find_map(|mut line| Some(line.get_mut("result")?.take()))
        .ok_or_else(missing)
}

fn add_result(out: &mut Value, result: &Value, sink: &Sink) {
    let stats: Vec<&Value> = result["sinks"]
        .as_object()
        .map(|sinks| sinks.values().collect())
        .unwrap_or_default();
    let sum = |of: &dyn Fn(&Value) -> Option<u64>| stats.iter().filter_map(|s| of(s)).sum::<u64>();
    out["received_bytes"] = sum(&|s| s["bytes"].as_u64()).into();
    // A last scrape after the target's end gets no answer.
    let unreachable = match sink.kind.as_str() {
        SCRAPE => sum(&|s| s["rejected"]["502"].as_u64()),
        _ => 0,
    };
    let refused = result["refused"].as_u64().unwrap_or(0);
    out["errors_answered"] = refused.saturating_sub(unreachable).into();
    if let Some(oracle) = result["oracle"].as_object() {
        let differences = oracle.values().filter_map(|c| c["differences_total"].as_u64());
        out["mismatches"] = differences.sum::<u64>().into();
        out["oracle"] = result["oracle"].clone();
    }
    // Log lines, traces and raw bytes have no contexts, so they are only counted.
    let records = sum(&|s| s["logs"].as_u64());
    if out.get("delivered_messages").is_none() && records > 0 {
        out["delivered_messages"] = records.into();
    }
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

/// Readings of the generator, converted from its clock to ours. Its lines have nanoseconds since its first packet.
pub fn generator_readings(capture: &Path, first_packet_t: u64) -> Vec<Observation> {
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
            Some(Observation {
                t: first_packet_t + l["t"].as_u64()?,
                src: "generator",
                name: name.to_owned(),
                counter: l["k"] == "counter",
                v: l["v"].as_f64()?,
            })
        })
        .collect()
}

/// Finds the phase of a time, from the actual times of the run.
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
