//! One run of one arm: a fresh process, a fresh folder, fresh sockets; measured, ended, and judged.

use super::capture::{self, Event, Header};
use super::experiment::{Experiment, Load, Ready};
use super::layer::ConfigError;
use super::observe::{Observer, Plan};
use super::process::{self, Cgroup, POLL, Process, Start, Stopped};
use super::rig::{self, LoadCall, Phases};
use super::values::{self, Measured, Rules};
use super::{ports, procfs};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use weir_rig_base::{clock, http, signal};

/// How long a failed load waits for its target to be seen as the cause.
const TARGET_END_WAIT: Duration = Duration::from_secs(2);

/// Takes extra records while the load runs: base address, folder for files, length of the window; returns notes.
pub type Profiler<'a> = &'a (dyn Fn(&str, &Path, Duration) -> Vec<String> + Sync);

/// Everything that defines one run.
pub struct Replicate<'a> {
    pub header: Header,
    /// Where its files go.
    pub folder: &'a Path,
    /// Short-lived folders are made here; socket paths must stay below 108 bytes.
    pub scratch: &'a Path,
    pub experiment: &'a Experiment,
    pub bin: &'a Path,
    /// Files of the case that are copied into the work folder.
    pub files: Option<&'a Path>,
    pub seed: u64,
    /// Bytes of padding in the environment.
    pub padding: usize,
    /// This program, for its load and sink commands.
    pub program: &'a Path,
    pub rig_cpus: Option<&'a [usize]>,
    pub rules: &'a Rules,
    pub profile: Option<Profiler<'a>>,
    /// Of a pair whose arms run at the same time.
    pub meeting: Option<&'a Meeting>,
}

/// Where two arms that run at the same time wait for each other: before their load, and before they are stopped.
#[derive(Debug, Default)]
pub struct Meeting {
    state: Mutex<Met>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Met {
    arrivals: usize,
    /// One of the two has ended, well or not; the other goes on alone.
    left: bool,
}

impl Meeting {
    fn lock(&self) -> MutexGuard<'_, Met> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the other arm is here too, `time` being the first or the second.
    fn wait(&self, time: usize) {
        let mut state = self.lock();
        state.arrivals += 1;
        self.changed.notify_all();
        while state.arrivals < 2 * time && !state.left {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// However an arm ends, the other must not wait for it.
struct Leave<'a>(&'a Meeting);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.lock().left = true;
        self.0.changed.notify_all();
    }
}

/// Something outside the run went wrong; trying again is pointless or the user wants to stop.
#[derive(Debug)]
pub enum Abort {
    Interrupted,
    /// The experiment cannot be run as written.
    Config(ConfigError),
    /// Results cannot be stored: disk full, permissions.
    Store(io::Error),
}

impl From<io::Error> for Abort {
    fn from(e: io::Error) -> Self {
        Abort::Store(e)
    }
}

impl std::fmt::Display for Abort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Abort::Interrupted => f.write_str("interrupted"),
            Abort::Config(e) => e.fmt(f),
            Abort::Store(e) => write!(f, "cannot store results: {e}"),
        }
    }
}

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

/// Runs it and stores capture, events, manifest and verdict. A target that misbehaves gives an invalid result, not an
/// error.
pub fn run(r: &Replicate) -> Result<Measured, Abort> {
    let _leave = r.meeting.map(Leave);
    fs::create_dir_all(r.folder)?;
    let start_ns = clock::monotonic_ns();
    let mut header = r.header.clone();
    header.started_unix_ns = clock::unix_ns();
    let mut events = Events {
        start_ns,
        file: fs::File::create(r.folder.join("events.jsonl"))?,
    };
    let work = tempfile::Builder::new().prefix("wb").tempdir_in(r.scratch)?;
    let outcome = measured(r, start_ns, &mut events, work.path());
    let (seen, phases) = match outcome {
        Ok(done) => done,
        Err(Problem::Invalid(why)) => {
            events.add("invalid", &why)?;
            (Vec::new(), None)
        }
        Err(Problem::Abort(abort)) => return Err(abort),
    };
    if let Some(phases) = phases {
        let mut writer = capture::Writer::create(&r.folder.join("capture.jsonl.zst"), &header)?;
        for s in &seen {
            writer.add(s.t, phases.of(s.t), s.src, &s.name, s.counter, s.v)?;
        }
        writer.finish()?;
    }
    slim_manifests(r.folder)?;
    let result = values::measure(r.folder, r.rules);
    fs::write(
        r.folder.join("verdict.json"),
        serde_json::to_string_pretty(&result).map_err(io::Error::other)?,
    )?;
    Ok(result)
}

/// The per-context table of a manifest has done its work once the sink was compared with it; a run of a hundred
/// thousand contexts would otherwise store it dozens of times. It follows from profile and seed whenever it is needed.
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
    // The points a target printed are in the sink's report by now.
    let stdout = folder.join("target.stdout");
    if fs::metadata(&stdout).is_ok_and(|m| m.len() > 1 << 20) {
        fs::write(&stdout, "more than 1 MiB, counted in sink.json and not kept\n")?;
    }
    Ok(())
}

enum Problem {
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

type Done = (Vec<super::observe::Seen>, Option<Phases>);

fn measured(r: &Replicate, start_ns: u64, events: &mut Events, work: &Path) -> Result<Done, Problem> {
    let e = r.experiment;
    let mut names = Names::new(r, work)?;
    prepare_folder(r, work, &mut names)?;

    // Sinks first: a target may look for its intake when it starts.
    let mut sinks = Vec::new();
    for (i, sink) in e.sinks.iter().enumerate() {
        let report = rig::numbered(r.folder, "sink", i, "json");
        names.set("report", report.display().to_string());
        let mut sink = sink.clone();
        sink.listen = names.fill(&sink.listen)?;
        sink.args = names.fill_all(&sink.args)?;
        sink.command = names.fill_all(&sink.command)?;
        let points = rig::numbered(work, "points", i, "jsonl");
        let manifest = rig::numbered(r.folder, "manifest", 0, "json");
        let process = match rig::sink_argv(&sink, r.program, &points, &manifest) {
            Some(argv) => {
                let cpus = sink.cpus.as_deref().or(r.rig_cpus);
                Some(start_helper(r, work, &format!("sink{i}"), &argv, cpus)?)
            }
            None => None,
        };
        sinks.push((process, sink));
    }
    for (process, sink) in &mut sinks {
        // A scraper waits for the target by itself.
        if let Some(process) = process
            && sink.kind != "scrape"
        {
            wait_for_sink(process, &sink.listen)?;
        }
    }

    let cgroup = match e.target.memory_limit.map(Cgroup::with_memory_limit) {
        Some(Ok(c)) => Some(c),
        Some(Err(why)) => {
            events.add("note", &format!("memory is watched, not limited: {why}"))?;
            None
        }
        None => None,
    };
    let watch_memory = e.target.memory_limit.filter(|_| cgroup.is_none());
    let mut env = BTreeMap::new();
    for (key, value) in &e.target.env {
        env.insert(key.clone(), names.fill(value)?);
    }
    // Its length shifts the stack of the target; see the plan.
    env.insert("WEIR_BENCH_PADDING".to_owned(), "x".repeat(r.padding));
    let argv = names.fill_all(&e.target.command)?;
    events.add("exec", &argv.join(" "))?;
    let mut target = Process::start(&Start {
        name: "target",
        argv: &argv,
        env: &env,
        folder: work,
        stdout: r.folder.join("target.stdout"),
        stderr: r.folder.join("target.stderr"),
        cpus: e.target.cpus.as_deref(),
        cgroup: cgroup.as_ref(),
    })
    .map_err(|e| Problem::Invalid(e.to_string()))?;

    let mut telemetry = e.target.telemetry.clone();
    for t in &mut telemetry {
        t.address = names.fill(&t.address)?;
    }
    let observer = Observer::start(
        Plan {
            start_ns,
            period: e.measure.sample_period,
            smaps_period: e.measure.smaps_period,
            telemetry,
            cpus: r.rig_cpus.map(<[usize]>::to_vec),
            memory_limit: watch_memory,
        },
        target.pid,
    );
    for process in sinks.iter().filter_map(|(p, _)| p.as_ref()) {
        observer.watch("sink", process.pid);
    }

    let ready: Vec<Ready> = e
        .target
        .ready
        .iter()
        .map(|c| names.fill_ready(c))
        .collect::<Result<_, _>>()?;
    wait_ready(&ready, e.target.ready_timeout, &mut target, r.folder)?;
    events.add("ready", "")?;
    if let Some(meeting) = r.meeting {
        meeting.wait(1);
    }

    let phases = load_phase(r, events, work, start_ns, &mut names, &mut target, &observer)?;
    events.add("load-ended", "")?;
    if let Some(meeting) = r.meeting {
        meeting.wait(2);
    }

    drain(e, &mut target)?;
    events.add("stopping", "")?;
    match target.stop(e.target.stop_signal, e.target.stop_grace) {
        Stopped::Asked(status) => events.add("stopped", &process::describe(status))?,
        Stopped::Killed => events.add(
            "note",
            "the target did not stop within its grace period and was killed",
        )?,
        Stopped::Earlier(status) => {
            events.add(
                "invalid",
                &format!("the target ended by itself with {}", process::describe(status)),
            )?;
        }
    }
    let outcome = observer.stop();
    for problem in &outcome.problems {
        events.add("note", problem)?;
    }
    if outcome.over_memory {
        events.add("invalid", "the target exceeded its memory limit and was ended")?;
    }
    for (i, (process, sink)) in sinks.iter_mut().enumerate() {
        let stdout = match process {
            Some(process) => {
                if let Stopped::Killed = process.stop(libc::SIGTERM, Duration::from_secs(20)) {
                    events.add(
                        "invalid",
                        &format!("{} did not report within 20 s", process.name()),
                    )?;
                }
                r.folder.join(format!("{}.stdout", process.name()))
            }
            None => r.folder.join("target.stdout"),
        };
        if sink.kind != "command" {
            let points = rig::numbered(work, "points", i, "jsonl");
            let (manifest, report) = (
                r.folder.join("manifest.json"),
                rig::numbered(r.folder, "sink", i, "json"),
            );
            if let Err(e) = rig::sink_report(sink, &stdout, &points, &manifest, &report) {
                events.add("invalid", &e.to_string())?;
            }
        }
    }
    drop(target);
    drop(cgroup);
    let mut seen = outcome.seen;
    for i in 0..e.load.len() {
        let file = rig::numbered(work, "load", i, "jsonl");
        seen.extend(rig::generator_readings(&file, phases.load_start));
    }
    Ok((seen, Some(phases)))
}

/// Starts the load, waits for it while watching the target, and says when which phase was.
fn load_phase(
    r: &Replicate,
    events: &mut Events,
    work: &Path,
    start_ns: u64,
    names: &mut Names,
    target: &mut Process,
    observer: &Observer,
) -> Result<Phases, Problem> {
    let e = r.experiment;
    let whole = e.measure.warmup + e.measure.duration;
    let mut loads = Vec::new();
    let spawned = clock::monotonic_ns() - start_ns;
    for (i, load) in e.load.iter().enumerate() {
        let manifest = rig::numbered(r.folder, "manifest", i, "json");
        let readings = rig::numbered(work, "load", i, "jsonl");
        names.set("manifest", manifest.display().to_string());
        names.set("capture", readings.display().to_string());
        names.set("duration_ms", whole.as_millis().to_string());
        let mut load = load.clone();
        let cpus = match &mut load {
            Load::Profile {
                profile,
                args,
                to,
                cpus,
                ..
            } => {
                *profile = names.fill(profile)?;
                *args = names.fill_all(args)?;
                *to = names.fill(to)?;
                cpus.clone()
            }
            Load::Command { command, cpus, .. } => {
                *command = names.fill_all(command)?;
                cpus.clone()
            }
        };
        refuse_sink_as_destination(&load, e, names)?;
        let argv = rig::load_argv(
            &load,
            &LoadCall {
                program: r.program,
                seed: r.seed,
                duration: whole,
                manifest: &manifest,
                capture: &readings,
                contexts: e.sinks.iter().any(|s| s.verify)
                    || e.valid.min_target_share.is_some()
                    || e.valid.overload,
            },
        );
        events.add("load", &argv.join(" "))?;
        let process = start_helper(
            r,
            work,
            &format!("load{i}"),
            &argv,
            cpus.as_deref().or(r.rig_cpus),
        )?;
        observer.watch("generator", process.pid);
        loads.push((process, manifest));
    }
    let profile = r.profile.zip(e.target.pprof.as_ref());
    let profiler_notes = thread::scope(|scope| -> Result<Vec<String>, Problem> {
        let job = match profile {
            Some((take, base)) => {
                let base = names.fill(base)?;
                let (folder, warmup, duration) = (r.folder, e.measure.warmup, e.measure.duration);
                Some(scope.spawn(move || {
                    // The profile covers the measured window, so it begins when the warm-up is over.
                    pause(warmup);
                    take(&base, folder, duration)
                }))
            }
            None => None,
        };
        // Building a large payload takes a while before the first packet leaves.
        let deadline = Instant::now() + whole + Duration::from_secs(120);
        if loads.is_empty() {
            let end = Instant::now() + whole;
            while Instant::now() < end {
                watch_target(target)?;
                thread::sleep(POLL);
            }
        }
        for (process, manifest) in &mut loads {
            loop {
                if let Some(status) = process.ended() {
                    if !status.success() {
                        // A target that dies takes the load with it, and the load may be seen to end first.
                        let deadline = Instant::now() + TARGET_END_WAIT;
                        while Instant::now() < deadline {
                            watch_target(target)?;
                            thread::sleep(POLL);
                        }
                        let log = tail(&r.folder.join(format!("{}.stderr", process.name())));
                        return Err(Problem::Invalid(format!(
                            "the load ended with {}{log}",
                            process::describe(status)
                        )));
                    }
                    if !manifest.is_file() {
                        return Err(Problem::Invalid("the load wrote no manifest".to_owned()));
                    }
                    break;
                }
                watch_target(target)?;
                if Instant::now() > deadline {
                    return Err(Problem::Invalid("the load did not end in time".to_owned()));
                }
                thread::sleep(POLL);
            }
        }
        Ok(job.and_then(|j| j.join().ok()).unwrap_or_default())
    })?;
    for note in profiler_notes {
        events.add("note", &note)?;
    }
    let ended = clock::monotonic_ns() - start_ns;
    // The manifest knows when the first packet left; commands that do not say are taken at their start.
    let load_start = loads
        .iter()
        .filter_map(|(_, m)| {
            let m: serde_json::Value = serde_json::from_str(&fs::read_to_string(m).ok()?).ok()?;
            let wall = m.get("started_unix_ns")?.as_u64().filter(|v| *v > 0)?;
            let now = (clock::unix_ns(), clock::monotonic_ns());
            now.1
                .checked_sub(start_ns)?
                .checked_sub(now.0.saturating_sub(wall))
        })
        .min()
        .unwrap_or(spawned)
        .clamp(spawned, ended);
    Ok(Phases {
        load_start,
        measure_start: load_start + e.measure.warmup.as_nanos() as u64,
        measure_end: (load_start + whole.as_nanos() as u64).min(ended),
    })
}

/// A generator aimed at the sink measures the sink. Everything would arrive, so delivery alone cannot show it.
fn refuse_sink_as_destination(load: &Load, e: &Experiment, names: &mut Names) -> Result<(), Problem> {
    let words = match load {
        Load::Profile { to, .. } => std::slice::from_ref(to),
        Load::Command { command, .. } => command.as_slice(),
    };
    for i in 0..e.sinks.len() {
        let sink = names.fill(&format!("{{sink.{i}}}"))?;
        let host = sink.split('/').next().unwrap_or_default();
        let aimed = |w: &String| {
            w.contains("://")
                && w.split_once("://")
                    .is_some_and(|(_, a)| a.split('/').next() == Some(host))
        };
        if !host.is_empty() && words.iter().any(aimed) {
            return Err(Problem::Invalid(format!(
                "the load is aimed at sink {i} ({sink}) and not at the target"
            )));
        }
    }
    Ok(())
}

fn pause(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end && !signal::interrupted() {
        thread::sleep(POLL);
    }
}

fn start_helper(
    r: &Replicate,
    work: &Path,
    name: &str,
    argv: &[String],
    cpus: Option<&[usize]>,
) -> Result<Process, Problem> {
    Process::start(&Start {
        name,
        argv,
        env: &BTreeMap::new(),
        folder: work,
        stdout: r.folder.join(format!("{name}.stdout")),
        stderr: r.folder.join(format!("{name}.stderr")),
        cpus,
        cgroup: None,
    })
    .map_err(|e| Problem::Invalid(e.to_string()))
}

fn watch_target(target: &mut Process) -> Result<(), Problem> {
    if signal::interrupted() {
        return Err(Problem::Abort(Abort::Interrupted));
    }
    match target.ended() {
        Some(status) => Err(Problem::Invalid(format!(
            "the target ended during the run with {}",
            process::describe(status)
        ))),
        None => Ok(()),
    }
}

/// Waits so that what the target aggregated last reaches the sink.
fn drain(e: &Experiment, target: &mut Process) -> Result<(), Problem> {
    let wait = e.measure.drain.unwrap_or_else(|| {
        if e.sinks.is_empty() {
            Duration::ZERO
        } else if e.target.flushes_at_stop {
            // It delivers the open bucket when it stops; only what is on its way needs a moment.
            Duration::from_millis(200)
        } else {
            // The bucket that is open now closes within one interval and leaves with the flush after that.
            2 * e.target.flush + Duration::from_secs(2)
        }
    });
    let end = Instant::now() + wait;
    while Instant::now() < end {
        watch_target(target)?;
        thread::sleep(POLL);
    }
    Ok(())
}

fn wait_for_sink(process: &mut Process, listen: &str) -> Result<(), Problem> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if signal::interrupted() {
            return Err(Problem::Abort(Abort::Interrupted));
        }
        if let Some(status) = process.ended() {
            return Err(Problem::Invalid(format!(
                "{} ended at once with {}",
                process.name(),
                process::describe(status)
            )));
        }
        if listen.is_empty() || is_listening(listen) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Problem::Invalid(format!(
                "{} does not listen on {listen}",
                process.name()
            )));
        }
        thread::sleep(POLL);
    }
}

fn is_listening(address: &str) -> bool {
    if let Some(path) = address
        .strip_prefix("unixgram://")
        .or_else(|| address.strip_prefix("unix://"))
    {
        return Path::new(path).exists();
    }
    if let Some(udp) = address.strip_prefix("udp://") {
        return udp_port_taken(udp);
    }
    TcpStream::connect(address.strip_prefix("tcp://").unwrap_or(address)).is_ok()
}

fn udp_port_taken(address: &str) -> bool {
    let port = address
        .rsplit_once(':')
        .map_or(address, |(_, p)| p)
        .parse::<u16>();
    port.is_ok_and(|port| procfs::udp_rows().iter().any(|r| r.port == port))
}

fn wait_ready(
    conditions: &[Ready],
    limit: Duration,
    target: &mut Process,
    folder: &Path,
) -> Result<(), Problem> {
    let deadline = Instant::now() + limit;
    let mut left: Vec<&Ready> = conditions.iter().collect();
    loop {
        if signal::interrupted() {
            return Err(Problem::Abort(Abort::Interrupted));
        }
        if let Some(status) = target.ended() {
            let log = tail(&folder.join("target.stderr"));
            return Err(Problem::Invalid(format!(
                "the target ended before it was ready, with {}{log}",
                process::describe(status)
            )));
        }
        let mut unmet = Vec::new();
        for condition in left {
            if !is_ready(condition, folder)? {
                unmet.push(condition);
            }
        }
        left = unmet;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let log = tail(&folder.join("target.stderr"));
            return Err(Problem::Invalid(format!(
                "the target was not ready after {}: {:?}{log}",
                super::report::show_duration(limit),
                left[0]
            )));
        }
        thread::sleep(POLL);
    }
}

fn is_ready(condition: &Ready, folder: &Path) -> Result<bool, Problem> {
    Ok(match condition {
        Ready::UnixSocket(path) => Path::new(path).exists(),
        Ready::UdpPort(port) => udp_port_taken(port),
        Ready::TcpPort(port) => {
            let address = if port.contains(':') {
                port.clone()
            } else {
                format!("127.0.0.1:{port}")
            };
            TcpStream::connect(address).is_ok()
        }
        Ready::Http(url) => http::get(url, Duration::from_secs(1)).is_ok_and(|r| r.status < 400),
        Ready::LogLine(pattern) => {
            let regex = regex_lite::Regex::new(pattern).map_err(|e| ConfigError(format!("log_line: {e}")))?;
            ["target.stdout", "target.stderr"]
                .iter()
                .filter_map(|f| fs::read(folder.join(f)).ok())
                .any(|t| String::from_utf8_lossy(&t).lines().any(|l| regex.is_match(l)))
        }
        Ready::File(path) => Path::new(path).exists(),
    })
}

/// The last words of a program, for messages.
fn tail(path: &Path) -> String {
    let text = fs::read(path)
        .map(|t| String::from_utf8_lossy(&t).into_owned())
        .unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    match lines.last() {
        Some(last) => {
            let last: String = last.chars().take(300).collect();
            format!("; it said: {last}")
        }
        None => String::new(),
    }
}

fn prepare_folder(r: &Replicate, work: &Path, names: &mut Names) -> Result<(), Problem> {
    if let Some(from) = r.files {
        copy_filled(from, work, names)?;
    }
    for (path, content) in &r.experiment.target.files {
        let path = work.join(names.fill(path)?);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, names.fill(content)?)?;
    }
    Ok(())
}

fn copy_filled(from: &Path, to: &Path, names: &mut Names) -> Result<(), Problem> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_filled(&entry.path(), &target, names)?;
            continue;
        }
        let bytes = fs::read(entry.path())?;
        match String::from_utf8(bytes) {
            Ok(text) => fs::write(target, names.fill(&text)?)?,
            Err(binary) => fs::write(target, binary.as_bytes())?,
        }
    }
    Ok(())
}

/// What `{...}` stands for in this run.
struct Names {
    fixed: BTreeMap<String, String>,
    ports: BTreeMap<String, u16>,
}

impl Names {
    fn new(r: &Replicate, work: &Path) -> Result<Self, Problem> {
        let mut names = Self {
            fixed: BTreeMap::new(),
            ports: BTreeMap::new(),
        };
        names.set("bin", r.bin.display().to_string());
        names.set("work", work.display().to_string());
        names.set("seed", r.seed.to_string());
        names.set("bench", r.program.display().to_string());
        let flush = r.experiment.target.flush;
        names.set("flush", format!("{}ms", flush.as_millis()));
        names.set("flush_s", flush.as_secs().max(1).to_string());
        // Addresses of sinks are known to the target's configuration.
        for (i, sink) in r.experiment.sinks.iter().enumerate() {
            let address = names.fill(&sink.listen)?;
            let plain = address
                .split_once("://")
                .map_or(address.as_str(), |(_, a)| a)
                .to_owned();
            names.set(&format!("sink.{i}"), plain);
        }
        Ok(names)
    }

    fn set(&mut self, key: &str, value: String) {
        self.fixed.insert(key.to_owned(), value);
    }

    fn fill_all(&mut self, texts: &[String]) -> Result<Vec<String>, ConfigError> {
        texts.iter().map(|t| self.fill(t)).collect()
    }

    fn fill_ready(&mut self, ready: &Ready) -> Result<Ready, ConfigError> {
        Ok(match ready {
            Ready::UnixSocket(t) => Ready::UnixSocket(self.fill(t)?),
            Ready::UdpPort(t) => Ready::UdpPort(self.fill(t)?),
            Ready::TcpPort(t) => Ready::TcpPort(self.fill(t)?),
            Ready::Http(t) => Ready::Http(self.fill(t)?),
            Ready::LogLine(t) => Ready::LogLine(t.clone()),
            Ready::File(t) => Ready::File(self.fill(t)?),
        })
    }

    /// Replaces `{work}`, `{bin}`, `{port:name}` (a free port, the same for the same name) and so on. Other text in
    /// braces stays as it is: configuration files are full of them.
    fn fill(&mut self, text: &str) -> Result<String, ConfigError> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            out.push_str(&rest[..open]);
            rest = &rest[open..];
            let Some(close) = rest.find('}') else { break };
            let key = &rest[1..close];
            if let Some(value) = self.fixed.get(key) {
                out.push_str(value);
            } else if let Some(name) = key.strip_prefix("port:") {
                out.push_str(&self.port(name)?.to_string());
            } else if key.starts_with("sink.") {
                return Err(ConfigError(format!("{{{key}}}: the experiment has no such sink")));
            } else {
                out.push('{');
                rest = &rest[1..];
                continue;
            }
            rest = &rest[close + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn port(&mut self, name: &str) -> Result<u16, ConfigError> {
        if let Some(port) = self.ports.get(name) {
            return Ok(*port);
        }
        let port = ports::free()
            .ok_or_else(|| ConfigError(format!("{{port:{name}}}: no free port on 127.0.0.1")))?;
        self.ports.insert(name.to_owned(), port);
        Ok(port)
    }
}

/// The folder of the next attempt of an arm.
pub fn next_folder(arm: &Path) -> io::Result<(usize, PathBuf)> {
    let last = capture::replicate_folders(arm)?
        .last()
        .and_then(|p| p.file_name()?.to_str()?.parse::<usize>().ok())
        .map_or(0, |n| n + 1);
    Ok((last, arm.join(format!("{last:02}"))))
}
