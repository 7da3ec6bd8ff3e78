//! How the detector calls the other halves of the rig: `weir-bench load` and `weir-bench sink` as child processes, with
//! files as the only interface. Their CPU is then visible on its own, and any other program can take their place.

use super::capture::{Line, Phase};
use super::experiment::{Load, Sink};
use super::observe::Seen;
use std::fs;
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

pub fn sink_argv(sink: &Sink, program: &Path, report: &Path) -> Vec<String> {
    if sink.kind == "command" {
        return sink.command.clone();
    }
    let mut argv = vec![
        program.display().to_string(),
        "sink".to_owned(),
        sink.kind.clone(),
        "--listen".to_owned(),
        sink.listen.clone(),
        "--report".to_owned(),
        report.display().to_string(),
    ];
    argv.extend(sink.args.iter().cloned());
    argv
}

/// Readings of the generator itself, moved from its clock to ours. Its lines carry nanoseconds since its first packet.
pub fn generator_readings(capture: &Path, first_packet_t: u64) -> Vec<Seen> {
    let Ok(text) = fs::read_to_string(capture) else {
        return Vec::new();
    };
    text.lines()
        .filter_map(|l| serde_json::from_str::<Line>(l).ok())
        .map(|l| Seen {
            t: first_packet_t + l.t,
            src: "generator",
            name: l.m,
            counter: l.k == "counter",
            v: l.v,
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
