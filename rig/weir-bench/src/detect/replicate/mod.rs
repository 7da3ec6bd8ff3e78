//! One run of one arm: a fresh process, directory and sockets; measured, ended, and judged.

mod load;
mod names;
mod ready;
mod sinks;

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::capture::{self, Event, Header};
use super::experiment::{CountedBy, Experiment, Sink};
use super::goal::Goal;
use super::layer::ConfigError;
use super::observe::{Observation, Observer, Plan};
use super::process::{Cgroup, POLL, Process, Start};
use super::rig::{self, Phases};
use super::running::Subject;
use super::values::{self, Measured, Rules};
use super::{procfs, report, valgrind};
use names::Names;
use sinks::Sinks;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use weir_rig_base::counter::Counter;
use weir_rig_base::{clock, signal};

/// Longest wait after the load: for the target to take some of what waits in its sockets, and for one inside valgrind to be idle.
const TAKEN_WAIT: Duration = Duration::from_secs(20);

/// A target is idle if in each of so many series of looks it works at fewer than a quarter of them. CPU time would not tell: on a busy
/// machine a target that works gets little of it.
const QUIET_SERIES: usize = 3;
const LOOKS: usize = 20;

/// Takes extra records while the load runs; returns notes.
pub type Profiler<'a> = &'a (dyn Fn(&Profiled) -> Vec<String> + Sync);

/// A target whose window has begun.
pub struct Profiled<'a> {
    pub pid: i32,
    /// Base address of its profiles, if it has any.
    pub pprof: Option<&'a str>,
    /// Directory of files.
    pub folder: &'a Path,
    pub window: Duration,
}

/// Definition of one run.
pub struct Replicate<'a> {
    pub header: Header,
    /// Directory of its files.
    pub folder: &'a Path,
    pub experiment: &'a Experiment,
    pub bin: &'a Path,
    /// Files of the case, copied into the work directory.
    pub files: Option<&'a Path>,
    pub seed: u64,
    /// Bytes of padding in the environment.
    pub padding: usize,
    /// This program, for its load and sink commands.
    pub program: &'a Path,
    pub rig_cpus: Option<&'a [usize]>,
    pub rules: &'a Rules,
    pub profile: Option<Profiler<'a>>,
    /// Set for a pair with concurrent arms.
    pub barrier: Option<&'a ArmBarrier>,
}

/// An error outside the run: trying again is pointless, or the user wants to stop.
#[derive(Debug, thiserror::Error)]
pub enum Abort {
    #[error("interrupted")]
    Interrupted,
    /// The experiment cannot be run as written.
    #[error(transparent)]
    Config(ConfigError),
    /// Results cannot be stored: disk full, permissions.
    #[error("cannot store results: {0}")]
    Store(#[from] io::Error),
}

/// Why a run has no result: its own error, which is recorded, or a reason to stop everything.
pub enum Problem {
    Invalid(String),
    Abort(Abort),
}

impl From<io::Error> for Problem {
    fn from(e: io::Error) -> Self {
        Problem::Abort(Abort::Store(e))
    }
}

impl From<ConfigError> for Problem {
    fn from(e: ConfigError) -> Self {
        Problem::Abort(Abort::Config(e))
    }
}

fn invalid(what: impl ToString) -> Problem {
    Problem::Invalid(what.to_string())
}

/// `events.jsonl`.
struct Events {
    start_ns: u64,
    file: fs::File,
}

impl Events {
    fn add(&mut self, event: &str, detail: &str) -> io::Result<()> {
        let e = Event {
            t: clock::monotonic_ns() - self.start_ns,
            event: event.to_owned(),
            detail: detail.to_owned(),
        };
        let mut line = serde_json::to_string(&e)?;
        line.push('\n');
        self.file.write_all(line.as_bytes())
    }
}

/// Runs it and stores capture, events, manifest and verdict. A misbehaving target gives an invalid result, not an error.
pub fn run(r: &Replicate) -> Result<Measured, Abort> {
    let _guard = r.barrier.map(BarrierGuard);
    fs::create_dir_all(r.folder)?;
    let start_ns = clock::monotonic_ns();
    let mut header = r.header.clone();
    header.started_unix_ns = clock::unix_ns();
    let file = fs::File::create(r.folder.join("events.jsonl"))?;
    let mut events = Events { start_ns, file };
    // In the usual place for temporary directories, because socket paths must stay below 108 bytes.
    let work = tempfile::Builder::new().prefix("wb").tempdir()?;
    match measured(r, &mut events, work.path()) {
        Ok((seen, phases)) => store(r.folder, &header, &seen, &phases)?,
        Err(Problem::Invalid(why)) => events.add("invalid", &why)?,
        Err(Problem::Abort(abort)) => return Err(abort),
    }
    slim_manifests(r.folder)?;
    let result = values::measure(r.folder, r.rules);
    store_verdict(r.folder, &result)?;
    Ok(result)
}

pub fn store_verdict(folder: &Path, verdict: &Measured) -> io::Result<()> {
    let text = serde_json::to_string_pretty(verdict).map_err(io::Error::other)?;
    fs::write(folder.join("verdict.json"), text)
}

fn store(folder: &Path, header: &Header, seen: &[Observation], phases: &Phases) -> io::Result<()> {
    let mut writer = capture::Writer::create(&folder.join("capture.jsonl.zst"), header)?;
    for s in seen {
        writer.add(s.t, phases.of(s.t), s.src, &s.name, s.counter, s.v)?;
    }
    writer.finish()
}

/// Removes the per-context table of a manifest after the sink was compared with it; otherwise a run of a hundred thousand contexts would
/// store it dozens of times. Profile and seed can reproduce it.
fn slim_manifests(folder: &Path) -> io::Result<()> {
    for i in 0.. {
        let path = rig::numbered(folder, "manifest", i, "json");
        if !path.is_file() {
            break;
        }
        let mut manifest: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        if let Some(map) = manifest.as_object_mut()
            && map.remove("contexts").is_some()
        {
            fs::write(&path, manifest.to_string())?;
        }
    }
    // The sink's report already has the points that a target printed.
    let stdout = folder.join("target.stdout");
    if fs::metadata(&stdout).is_ok_and(|m| m.len() > 1 << 20) {
        fs::write(&stdout, "more than 1 MiB, counted in sink.json and not kept\n")?;
    }
    Ok(())
}

/// One run from its first process to its last.
struct ReplicateRun<'a> {
    r: &'a Replicate<'a>,
    events: &'a mut Events,
    work: &'a Path,
    names: Names,
}

fn measured(r: &Replicate, events: &mut Events, work: &Path) -> Result<(Vec<Observation>, Phases), Problem> {
    let mut names = Names::new(r, work)?;
    names::prepare_folder(r, work, &mut names)?;
    let mut trial = ReplicateRun {
        r,
        events,
        work,
        names,
    };
    // Sinks first: a target may connect to its intake when it starts.
    let mut sinks = Sinks::start(&mut trial)?;
    let cgroup = trial.limit_memory()?;
    let mut target = trial.start_target(cgroup.as_ref())?;
    let observer = trial.observe(&target, cgroup.is_some())?;
    sinks.pids().for_each(|pid| observer.watch("sink", pid));
    if let Subject::Started(_) = target {
        trial.wait_ready(&mut target)?;
    }
    // Its metrics are asked for before and after the load: the work that this costs it would count as work for the load.
    observer.scrape_now();
    sinks.remember(&mut target)?;
    trial.count_instructions(&target, &observer)?;
    let mut seen = trial.lifetime_cpu(&target);
    seen.extend(trial.counted_by_valgrind(&mut target)?);
    trial.wait_at_barrier(1);
    observer.read_now();
    let phases = trial.load(&mut target, &observer)?;
    trial.events.add("load-ended", "")?;
    trial.wait_until_taken(&mut target, &observer)?;
    trial.wait_until_idle(&mut target)?;
    seen.extend(trial.counted_by_valgrind(&mut target)?);
    trial.wait_at_barrier(2);
    trial.drain(&mut target)?;
    sinks.fetch(&mut trial, &mut target)?;
    observer.scrape_now();
    trial.stop(&mut target)?;
    seen.extend(trial.lifetime_cpu(&target));
    seen.extend(trial.end_observation(observer)?);
    sinks.report(&mut trial)?;
    for i in 0..r.experiment.load.len() {
        let file = rig::numbered(work, "load", i, "jsonl");
        seen.extend(rig::generator_readings(&file, phases.load_start));
    }
    Ok((seen, phases))
}

impl ReplicateRun<'_> {
    fn wait_at_barrier(&self, time: usize) {
        if let Some(barrier) = self.r.barrier {
            barrier.wait(time);
        }
    }

    fn now(&self) -> u64 {
        clock::monotonic_ns() - self.events.start_ns
    }

    /// A control group, or a note why there is none.
    fn limit_memory(&mut self) -> Result<Option<Cgroup>, Problem> {
        match self
            .r
            .experiment
            .target
            .memory_limit
            .map(Cgroup::with_memory_limit)
        {
            Some(Err(why)) => {
                let note = format!("memory is watched, not limited: {why}");
                self.events.add("note", &note)?;
                Ok(None)
            }
            Some(Ok(group)) => Ok(Some(group)),
            None => Ok(None),
        }
    }

    fn start_target(&mut self, cgroup: Option<&Cgroup>) -> Result<Subject, Problem> {
        let target = &self.r.experiment.target;
        if let Some(running) = &target.running {
            let mut subject = Subject::Running(running.clone());
            return match subject.ended() {
                Some(_) => Err(invalid("the target does not run any more")),
                None => Ok(subject),
            };
        }
        let mut env = BTreeMap::new();
        for (key, value) in &target.env {
            env.insert(key.clone(), self.names.fill(value)?);
        }
        // Its length shifts the stack of the target; see the plan.
        env.insert("WEIR_BENCH_PADDING".to_owned(), "x".repeat(self.r.padding));
        let mut argv = self.names.fill_all(&target.command)?;
        if self.is_in_valgrind() {
            argv = valgrind::command(argv, self.work);
        }
        self.events.add("exec", &argv.join(" "))?;
        let cpus = target.cpus.as_deref();
        self.start("target", &argv, &env, cpus, cgroup)
            .map(Subject::Started)
    }

    fn is_in_valgrind(&self) -> bool {
        self.r.experiment.measure.instructions == CountedBy::Valgrind
    }

    /// Instructions of the target until now, if it runs inside valgrind.
    fn counted_by_valgrind(&self, target: &mut Subject) -> Result<Option<Observation>, Problem> {
        if !self.is_in_valgrind() {
            return Ok(None);
        }
        watch_target(target)?;
        let v = valgrind::count(&target.group().living(), self.work).map_err(invalid)?;
        Ok(Some(Observation {
            t: self.now(),
            src: "target",
            name: values::VALGRIND_INSTRUCTIONS.to_owned(),
            counter: true,
            v,
        }))
    }

    /// Lets the processor count the target's instructions from now on, if the machine can.
    fn count_instructions(&mut self, target: &Subject, observer: &Observer) -> Result<(), Problem> {
        if self.is_in_valgrind() {
            return Ok(());
        }
        match Counter::instructions(&target.group().living()) {
            Ok(counter) => observer.count(counter),
            Err(why) if self.r.experiment.goal == Goal::InstructionsPerMessage => return Err(invalid(why)),
            Err(_) => {}
        }
        Ok(())
    }

    /// Starts one of the rig's own programs.
    fn start_helper(&self, name: &str, argv: &[String], cpus: Option<&[usize]>) -> Result<Process, Problem> {
        self.start(name, argv, &BTreeMap::new(), cpus.or(self.r.rig_cpus), None)
    }

    fn start(
        &self,
        name: &str,
        argv: &[String],
        env: &BTreeMap<String, String>,
        cpus: Option<&[usize]>,
        cgroup: Option<&Cgroup>,
    ) -> Result<Process, Problem> {
        Process::start(&Start {
            name,
            argv,
            env,
            folder: self.work,
            stdout: self.r.folder.join(format!("{name}.stdout")),
            stderr: self.r.folder.join(format!("{name}.stderr")),
            cpus,
            cgroup,
        })
        .map_err(invalid)
    }

    fn observe(&mut self, target: &Subject, limited: bool) -> Result<Observer, Problem> {
        let e = self.r.experiment;
        let mut telemetry = e.target.telemetry.clone();
        for t in &mut telemetry {
            t.address = self.names.fill(&t.address)?;
        }
        let plan = Plan {
            start_ns: self.events.start_ns,
            period: e.measure.sample_period,
            smaps_period: e.measure.smaps_period,
            telemetry,
            cpus: self.r.rig_cpus.map(<[usize]>::to_vec),
            memory_limit: e.target.memory_limit.filter(|_| !limited),
        };
        Ok(Observer::start(plan, target.group()))
    }

    fn end_observation(&mut self, observer: Observer) -> Result<Vec<Observation>, Problem> {
        let outcome = observer.stop();
        for problem in &outcome.problems {
            self.events.add("note", problem)?;
        }
        if outcome.over_memory {
            let what = "the target exceeded its memory limit and was ended";
            self.events.add("invalid", what)?;
        }
        Ok(outcome.seen)
    }

    /// CPU time of the target's life until now: recorded once when it is ready, once after its end.
    fn lifetime_cpu(&self, target: &Subject) -> Vec<Observation> {
        let seen = target.cpu_ns().map(|ns| Observation {
            t: self.now(),
            src: "target",
            name: "life_cpu_ns".to_owned(),
            counter: true,
            v: ns as f64,
        });
        seen.into_iter().collect()
    }

    /// Waits until nothing that was sent waits in the target's sockets: the end of its work for this load.
    fn wait_until_taken(&self, target: &mut Subject, observer: &Observer) -> Result<(), Problem> {
        let (mut least, mut since) = (u64::MAX, Instant::now());
        loop {
            let waiting = observer.read_now();
            if waiting == 0 {
                return Ok(());
            }
            // On a busy machine it takes long; as long as it goes on, its work counts.
            if waiting < least {
                (least, since) = (waiting, Instant::now());
            }
            if since.elapsed() > TAKEN_WAIT {
                let time = report::show_duration(TAKEN_WAIT);
                return Err(invalid(format!(
                    "{waiting} bytes wait in the target's sockets after the load, and for {time} it took none of them"
                )));
            }
            watch_target(target)?;
            thread::sleep(POLL);
        }
    }

    /// Inside valgrind the target is slow, so what waits inside it or in a Unix socket is much of its work: waits until it is idle.
    fn wait_until_idle(&self, target: &mut Subject) -> Result<(), Problem> {
        let deadline = Instant::now() + TAKEN_WAIT;
        let mut quiet = 0;
        while self.is_in_valgrind() && quiet < QUIET_SERIES {
            let pids = target.group().living();
            let mut worked = 0;
            for _ in 0..LOOKS {
                watch_target(target)?;
                worked += usize::from(pids.iter().any(|pid| procfs::is_working(*pid)));
                thread::sleep(POLL);
            }
            quiet = if worked < LOOKS / 4 { quiet + 1 } else { 0 };
            if Instant::now() > deadline {
                let time = report::show_duration(TAKEN_WAIT);
                return Err(invalid(format!(
                    "the target was not idle {time} after the load: inside valgrind it is too fast for this target"
                )));
            }
        }
        Ok(())
    }

    /// Waits until the last aggregated data has reached the sink.
    fn drain(&self, target: &mut Subject) -> Result<(), Problem> {
        let e = self.r.experiment;
        let wait = e.measure.drain.unwrap_or_else(|| {
            if e.sinks.iter().all(Sink::needs_no_flush) {
                Duration::ZERO
            } else if e.target.flushes_at_stop {
                // It flushes when it stops, so only data in flight needs a moment.
                Duration::from_millis(200)
            } else {
                // The open bucket closes within one interval and is delivered with the flush after that.
                2 * e.target.flush + Duration::from_secs(2)
            }
        });
        watch_for(target, wait)
    }

    fn stop(&mut self, target: &mut Subject) -> Result<(), Problem> {
        self.events.add("stopping", "")?;
        let (event, detail) = target.stop(&self.r.experiment.target);
        Ok(self.events.add(event, &detail)?)
    }
}

fn interrupted() -> Result<(), Problem> {
    match signal::interrupted() {
        true => Err(Problem::Abort(Abort::Interrupted)),
        false => Ok(()),
    }
}

/// Checks the target while waiting for something else.
fn watch_target(target: &mut Subject) -> Result<(), Problem> {
    interrupted()?;
    match target.ended() {
        Some(how) => Err(invalid(format!("the target ended during the run with {how}"))),
        None => Ok(()),
    }
}

fn watch_for(target: &mut Subject, time: Duration) -> Result<(), Problem> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        watch_target(target)?;
        thread::sleep(POLL);
    }
    Ok(())
}

/// The last output of a program, for messages.
fn tail(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    last.map_or_else(String::new, |last| {
        let last: String = last.chars().take(300).collect();
        format!("; its last output: {last}")
    })
}

/// The directory of the next attempt of an arm.
pub fn next_folder(arm: &Path) -> io::Result<(usize, PathBuf)> {
    let folders = capture::replicate_folders(arm)?;
    let last = folders.last().and_then(|p| capture::replicate_number(p));
    let next = last.map_or(0, |n| n + 1);
    Ok((next, arm.join(format!("{next:02}"))))
}

/// Synchronises two concurrent arms: before their load, and before their stop.
#[derive(Debug, Default)]
pub struct ArmBarrier {
    state: Mutex<BarrierState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct BarrierState {
    arrivals: usize,
    /// One of the two has ended, successfully or not; the other continues alone.
    left: bool,
}

impl ArmBarrier {
    fn lock(&self) -> MutexGuard<'_, BarrierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the other arm has arrived too; `time`: first or second meeting.
    fn wait(&self, time: usize) {
        let mut state = self.lock();
        state.arrivals += 1;
        self.changed.notify_all();
        while state.arrivals < 2 * time && !state.left {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// When an arm ends in any way, the other must not wait for it.
struct BarrierGuard<'a>(pub &'a ArmBarrier);

impl Drop for BarrierGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().left = true;
        self.0.changed.notify_all();
    }
}
