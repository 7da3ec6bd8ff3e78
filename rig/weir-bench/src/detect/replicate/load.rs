//! The loads of one run: started when the target is ready, and waited for while the target is watched.

use super::{Problem, Profiled, ReplicateRun, invalid, tail, watch_for, watch_target};
use crate::detect::experiment::Load;
use crate::detect::observe::Observer;
use crate::detect::process::{self, POLL, Process};
use crate::detect::rig::{self, LoadParameters, Phases};
use crate::detect::running::Subject;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use weir_rig_base::{clock, signal};

/// After a load failed, how long to wait for the end of its target as the possible cause.
const TARGET_END_WAIT: Duration = Duration::from_secs(2);
/// Building a large payload takes a while before the first packet leaves.
const BUILD_WAIT: Duration = Duration::from_secs(120);

/// A running load.
struct Running {
    process: Process,
    manifest: PathBuf,
}

impl ReplicateRun<'_> {
    /// Starts the loads, waits for them while watching the target, and returns the times of the phases.
    pub fn load(&mut self, target: &mut Subject, observer: &Observer) -> Result<Phases, Problem> {
        let e = self.r.experiment;
        let spawned = self.now();
        let mut loads = Vec::new();
        for (i, load) in e.load.iter().enumerate() {
            let running = self.start_load(i, load)?;
            observer.watch("generator", running.process.pid);
            loads.push(running);
        }
        for note in self.supervise(&mut loads, target)? {
            self.events.add("note", &note)?;
        }
        let ended = self.now();
        // The manifest has the time of the first packet; for commands without it, their start counts. Warm-up and window begin when every
        // context was sent, if the load sends them first.
        let first_packets = loads.iter().filter_map(|load| self.first_packet(&load.manifest));
        let load_start = first_packets.min().unwrap_or(spawned).clamp(spawned, ended);
        let first_passes = loads.iter().map(|load| first_pass(&load.manifest));
        let paced = load_start + first_passes.max().unwrap_or(0);
        Ok(Phases {
            load_start,
            measure_start: paced + e.measure.warmup.as_nanos() as u64,
            measure_end: (paced + self.whole().as_nanos() as u64).min(ended),
        })
    }

    /// Warm-up and window together.
    fn whole(&self) -> Duration {
        let measure = &self.r.experiment.measure;
        measure.warmup + measure.duration
    }

    fn start_load(&mut self, i: usize, load: &Load) -> Result<Running, Problem> {
        let e = self.r.experiment;
        let whole = self.whole();
        let manifest = rig::numbered(self.r.folder, "manifest", i, "json");
        let readings = rig::numbered(self.work, "load", i, "jsonl");
        self.names.set("manifest", manifest.display().to_string());
        self.names.set("capture", readings.display().to_string());
        self.names.set("duration_ms", whole.as_millis().to_string());
        let load = self.filled(load)?;
        self.refuse_sink_as_destination(&load)?;
        let call = LoadParameters {
            program: self.r.program,
            seed: self.r.seed,
            duration: whole,
            messages: e.measure.messages,
            manifest: &manifest,
            capture: &readings,
            contexts: e.needs_contexts(),
        };
        let argv = rig::load_argv(&load, &call);
        self.events.add("load", &argv.join(" "))?;
        let cpus = load.cpus().map(Vec::as_slice);
        let process = self.start_helper(&format!("load{i}"), &argv, cpus)?;
        Ok(Running { process, manifest })
    }

    /// The load with its words in braces replaced.
    fn filled(&mut self, load: &Load) -> Result<Load, Problem> {
        let mut load = load.clone();
        match &mut load {
            Load::Profile {
                profile, args, to, ..
            } => {
                *profile = self.names.fill(profile)?;
                *args = self.names.fill_all(args)?;
                *to = self.names.fill(to)?;
            }
            Load::Command { command, .. } => *command = self.names.fill_all(command)?,
        }
        Ok(load)
    }

    /// Refuses a generator that is aimed at the sink: everything would arrive, so delivery alone cannot show the mistake.
    fn refuse_sink_as_destination(&mut self, load: &Load) -> Result<(), Problem> {
        let words = match load {
            Load::Profile { to, .. } => std::slice::from_ref(to),
            Load::Command { command, .. } => command.as_slice(),
        };
        let hosts = words.iter().filter_map(|word| host(word.split_once("://")?.1));
        for i in 0..self.r.experiment.sinks.len() {
            let sink = self.names.fill(&format!("{{sink.{i}}}"))?;
            if host(&sink).is_some_and(|sink| hosts.clone().any(|host| host == sink)) {
                let what = format!("the load is aimed at sink {i} ({sink}) and not at the target");
                return Err(invalid(what));
            }
        }
        Ok(())
    }

    /// Waits for the loads, and takes profiles meanwhile if requested. Returns the profiler's notes.
    fn supervise(&mut self, loads: &mut [Running], target: &mut Subject) -> Result<Vec<String>, Problem> {
        let (folder, measure, pid) = (self.r.folder, &self.r.experiment.measure, target.pid());
        let pprof = self.r.experiment.target.pprof.as_ref();
        let pprof = pprof.map(|base| self.names.fill(base)).transpose()?;
        let pprof = pprof.as_deref();
        thread::scope(|scope| {
            let job = self.r.profile.map(|take| {
                scope.spawn(move || {
                    // The profile covers the measured window, so it begins after the warm-up.
                    pause(measure.warmup);
                    take(&Profiled {
                        pid,
                        pprof,
                        folder,
                        window: measure.duration,
                    })
                })
            });
            self.wait_for(loads, target)?;
            Ok(job.and_then(|j| j.join().ok()).unwrap_or_default())
        })
    }

    fn wait_for(&self, loads: &mut [Running], target: &mut Subject) -> Result<(), Problem> {
        if loads.is_empty() {
            return watch_for(target, self.whole());
        }
        let deadline = Instant::now() + self.whole() + BUILD_WAIT;
        for load in loads {
            while !self.has_ended(load, target)? {
                watch_target(target)?;
                if Instant::now() > deadline {
                    return Err(invalid("the load did not end in time"));
                }
                thread::sleep(POLL);
            }
        }
        Ok(())
    }

    /// Whether a load has ended successfully.
    fn has_ended(&self, load: &mut Running, target: &mut Subject) -> Result<bool, Problem> {
        let Some(status) = load.process.ended() else {
            return Ok(false);
        };
        if !status.success() {
            // A dying target ends the load too, and the load's end may be seen first.
            watch_for(target, TARGET_END_WAIT)?;
            let log = tail(&self.r.folder.join(format!("{}.stderr", load.process.name())));
            let what = format!("the load ended with {}{log}", process::describe(status));
            return Err(invalid(what));
        }
        check_manifest(&load.manifest).map_err(|why| invalid(format!("{}: {why}", load.process.name())))?;
        Ok(true)
    }

    /// Time of a load's first packet, on the clock of this run.
    fn first_packet(&self, manifest: &Path) -> Option<u64> {
        let text = fs::read_to_string(manifest).ok()?;
        let manifest: serde_json::Value = serde_json::from_str(&text).ok()?;
        let wall = manifest.get("started_unix_ns")?.as_u64().filter(|v| *v > 0)?;
        let ago = clock::unix_ns().saturating_sub(wall);
        self.now().checked_sub(ago)
    }
}

/// Why a load cannot be judged by its manifest.
#[derive(Debug, PartialEq, thiserror::Error)]
enum ManifestError {
    #[error("it wrote no manifest; a load by command gets the path of the file as {{manifest}}")]
    Missing,
    #[error("its manifest is no JSON: {0}")]
    Json(String),
    #[error("its manifest has no number totals.messages, the messages that it sent")]
    Messages,
}

/// Nanoseconds in which a load sent every context, before its schedule began.
fn first_pass(manifest: &Path) -> u64 {
    let seconds = fs::read_to_string(manifest).ok().and_then(|text| {
        let manifest: serde_json::Value = serde_json::from_str(&text).ok()?;
        manifest.pointer("/sending/first_pass_s")?.as_f64()
    });
    seconds.map_or(0, |seconds| (seconds * 1e9) as u64)
}

fn check_manifest(path: &Path) -> Result<(), ManifestError> {
    let text = fs::read_to_string(path).map_err(|_| ManifestError::Missing)?;
    let manifest: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| ManifestError::Json(e.to_string()))?;
    let sent = manifest.pointer("/totals/messages");
    let is_number =
        |v: &serde_json::Value| v.is_number() || v.as_str().is_some_and(|s| s.parse::<f64>().is_ok());
    match sent.is_some_and(is_number) {
        true => Ok(()),
        false => Err(ManifestError::Messages),
    }
}

/// Host and port after a scheme.
fn host(address: &str) -> Option<&str> {
    address.split('/').next().filter(|host| !host.is_empty())
}

fn pause(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end && !signal::interrupted() {
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_without_its_one_required_number_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let checked = |text: &str| {
            let path = dir.path().join("manifest.json");
            fs::write(&path, text).unwrap();
            check_manifest(&path).map_err(|e| e.to_string())
        };
        assert_eq!(checked(r#"{"totals": {"messages": 7}}"#), Ok(()));
        assert_eq!(checked(r#"{"totals": {"messages": "7"}}"#), Ok(()));
        assert!(
            checked(r#"{"messages": 7}"#)
                .unwrap_err()
                .contains("totals.messages")
        );
        assert!(checked("{").unwrap_err().contains("no JSON"));
        let missing = check_manifest(&dir.path().join("nothing"));
        assert!(missing.unwrap_err().to_string().contains("as {manifest}"));
    }
}
