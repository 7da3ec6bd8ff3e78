//! The keys of experiment files, and their meaning for one arm.

use super::*;
use crate::detect::layer::{ConfigError, Layered, List, Patch, Result, Slot, layer, suggestion};
use crate::detect::values::{Stat, check_series};
use weir_units::UnitError;

layer!(
    /// Content of an experiment's file; defaults, templates, cases and presets all have this type.
    Layer at "" {
        name: Slot<String>,
        matrix: BTreeMap<String, Slot<Vec<String>>>,
        extends: Slot<String>,
        description: Slot<String>,
        goal: Slot<String>,
        better: Slot<String>,
        erratic: Slot<String>,
        needs: Slot<Vec<String>>,
        target: TargetLayer,
        load: List<LoadLayer>,
        sinks: List<SinkLayer>,
        measure: MeasureLayer,
        checks: List<CheckLayer>,
        valid: ValidLayer,
        budget: BudgetLayer,
        arms_override: BTreeMap<String, Patch<Layer>>,
    }
);
layer!(TargetLayer at "target" {
    command: Slot<Vec<String>>,
    env: BTreeMap<String, Slot<String>>,
    files: BTreeMap<String, Slot<String>>,
    stop: StopLayer,
    cpus: Slot<Vec<String>>,
    memory_limit: Slot<String>,
    ready: ReadyLayer,
    telemetry: List<TelemetryLayer>,
    listen: BTreeMap<String, Slot<String>>,
    supports: Slot<Vec<String>>,
    flush: Slot<String>,
    flushes_at_stop: Slot<String>,
    pprof: Slot<String>,
});
layer!(StopLayer at "target.stop" { signal: Slot<String>, grace: Slot<String>, });
layer!(ReadyLayer at "target.ready" { timeout: Slot<String>, all_of: List<ConditionLayer>, });
layer!(ConditionLayer at "target.ready.all_of" {
    unix_socket: Slot<String>,
    udp_port: Slot<String>,
    tcp_port: Slot<String>,
    http: Slot<String>,
    log_line: Slot<String>,
    file: Slot<String>,
});
layer!(TelemetryLayer at "target.telemetry" {
    prometheus: Slot<String>,
    expvar: Slot<String>,
    statsd_admin: Slot<String>,
    map: BTreeMap<String, Slot<String>>,
});
layer!(LoadLayer at "load" {
    profile: Slot<String>,
    file: Slot<String>,
    command: Slot<Vec<String>>,
    args: Slot<Vec<String>>,
    cpus: Slot<Vec<String>>,
    all_out: Slot<String>,
    to: Destination,
});
layer!(SinkLayer at "sinks" {
    kind: Slot<String>,
    command: Slot<Vec<String>>,
    listen: Slot<String>,
    args: Slot<Vec<String>>,
    verify: Slot<String>,
    cpus: Slot<Vec<String>>,
});
layer!(MeasureLayer at "measure" {
    replicates: Slot<String>,
    replicates_max: Slot<String>,
    messages: Slot<String>,
    warmup: Slot<String>,
    duration: Slot<String>,
    sample_period: Slot<String>,
    smaps_period: Slot<String>,
    drain: Slot<String>,
    together: Slot<String>,
    instructions: Slot<String>,
});
layer!(CheckLayer at "checks" {
    name: Slot<String>,
    series: Slot<String>,
    stat: Slot<String>,
    upper: Slot<String>,
    lower: Slot<String>,
});
layer!(BudgetLayer at "budget" { must: Slot<String>, should: Slot<String>, });
layer!(ValidLayer at "valid" {
    min_target_share: Slot<String>,
    generator_headroom: Slot<String>,
    overload: Slot<String>,
    idle: Slot<String>,
    max_steal: Slot<String>,
    max_foreign_cpu: Slot<String>,
});

/// Destination of a load: an address, or the first transport of a list on which the target listens.
#[derive(Debug, Clone, Default, serde::Deserialize, serde::Serialize)]
#[serde(untagged)]
pub enum Destination {
    #[default]
    Missing,
    Address(String),
    Listen(Transports),
}

#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct Transports {
    listen: Vec<String>,
}

impl Layered for Destination {
    fn override_with(&mut self, over: Self) {
        if !over.is_missing() {
            *self = over;
        }
    }

    fn is_missing(&self) -> bool {
        matches!(self, Destination::Missing)
    }
}

impl Destination {
    fn resolve(&self, path: &str, target: &Target) -> Result<Option<String>> {
        let wanted = match self {
            Destination::Missing => return Ok(None),
            Destination::Address(address) => return Ok(Some(address.clone())),
            Destination::Listen(transports) => &transports.listen,
        };
        let found = wanted.iter().find_map(|transport| target.listen.get(transport));
        let has: Vec<&str> = target.listen.keys().map(String::as_str).collect();
        let has = if has.is_empty() {
            "nothing".to_owned()
        } else {
            has.join(", ")
        };
        found.cloned().map(Some).ok_or_else(|| {
            let wanted = wanted.join(", ");
            ConfigError(format!(
                "{path}.to: the target listens on none of {wanted} (it has: {has})"
            ))
        })
    }
}

/// Why a text cannot be the value of a key.
#[derive(Debug, thiserror::Error)]
enum ValueError {
    #[error("{0:?} is neither true nor false")]
    Boolean(String),
    #[error("{0:?} is not a whole number, zero or more")]
    Count(String),
    #[error("{0:?} is not a number")]
    Number(String),
    #[error("{0:?} is not a share between 0 and 1")]
    Share(String),
    #[error("a duration such as 10s was expected: {0}")]
    Duration(UnitError),
    #[error("a size such as 64MiB was expected: {0}")]
    Size(UnitError),
    #[error("{word:?} is not allowed{suggestion}; allowed: {allowed}")]
    Word {
        word: String,
        suggestion: String,
        allowed: String,
    },
}

type Read<T> = std::result::Result<T, ValueError>;

fn boolean(text: &str) -> Read<bool> {
    text.parse().map_err(|_| ValueError::Boolean(text.to_owned()))
}

fn count(text: &str) -> Read<usize> {
    text.parse().map_err(|_| ValueError::Count(text.to_owned()))
}

fn number(text: &str) -> Read<f64> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| ValueError::Number(text.to_owned()))
}

fn share(text: &str) -> Read<f64> {
    let share = number(text)?;
    Some(share)
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| ValueError::Share(text.to_owned()))
}

fn duration(text: &str) -> Read<Duration> {
    weir_units::parse_duration(text).map_err(ValueError::Duration)
}

fn size(text: &str) -> Read<u64> {
    weir_units::parse_size(text).map_err(ValueError::Size)
}

/// A limit of a bounds check: a plain number or a size.
fn limit(text: &str) -> Read<f64> {
    number(text).or_else(|_| size(text).map(|bytes| bytes as f64))
}

fn word<T: Copy>(words: &[(&str, T)]) -> impl Fn(&str) -> Read<T> {
    move |text| {
        let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let found = words.iter().find(|(word, _)| *word == text);
        found
            .map(|(_, value)| *value)
            .ok_or_else(|| not_allowed(text, &allowed))
    }
}

fn not_allowed(word: &str, allowed: &[&str]) -> ValueError {
    ValueError::Word {
        word: word.to_owned(),
        suggestion: suggestion(word, allowed),
        allowed: allowed.join(", "),
    }
}

fn cpus(slot: &Slot<Vec<String>>, path: &str) -> Result<Option<Vec<usize>>> {
    if slot.get().is_some_and(Vec::is_empty) {
        let what = "an empty list pins to nothing; leave the key out to run unpinned";
        return Err(slot.invalid(path, what));
    }
    let cpus = slot
        .get()
        .map(|texts| texts.iter().map(|text| count(text)).collect());
    cpus.transpose().map_err(|what| slot.invalid(path, what))
}

fn list(slot: &Slot<Vec<String>>) -> Vec<String> {
    slot.get().cloned().unwrap_or_default()
}

fn texts(map: &BTreeMap<String, Slot<String>>) -> BTreeMap<String, String> {
    let present = map
        .iter()
        .filter_map(|(key, slot)| Some((key.clone(), slot.text()?)));
    present.collect()
}

/// The single one of several alternative keys.
fn exactly_one<T>(found: impl IntoIterator<Item = Option<T>>) -> Option<T> {
    let mut found = found.into_iter().flatten();
    let one = found.next()?;
    found.next().is_none().then_some(one)
}

impl Layer {
    /// The experiment that results from the layers, for one arm.
    pub fn experiment(&self) -> Result<Experiment> {
        let goal_of = |text: &str| Goal::from_key(text).ok_or_else(|| not_allowed(text, &Goal::keys()));
        self.goal.required("goal")?;
        let goal = self.goal.read("goal", goal_of)?.expect("required above");
        let directions = [
            ("up", Direction::HigherIsBetter),
            ("down", Direction::LowerIsBetter),
            ("undeclared", Direction::Undeclared),
        ];
        let target = self.target.target()?;
        let load = self.load.read("load", |load, path| load.load(path, &target))?;
        let measure = self.measure.measure()?;
        let valid = self.valid.valid()?;
        if measure.instructions == CountedBy::Valgrind && goal != Goal::InstructionsPerMessage {
            let what = "valgrind counts for `goal: instructions_per_message`, and no other";
            return Err(self.measure.instructions.invalid("measure.instructions", what));
        }
        let together = match measure.together {
            Some(true) if !goal.allows_concurrent_arms() => {
                let what = format!(
                    "concurrent arms cannot be compared by {}, only by CPU time or memory",
                    goal.key()
                );
                return Err(self.goal.invalid("measure.together", what));
            }
            Some(wanted) => wanted,
            None => goal.allows_concurrent_arms() && !valid.overload && !load.iter().any(Load::all_out),
        };
        Ok(Experiment {
            description: self.description.text().unwrap_or_default(),
            goal,
            direction: self
                .better
                .read("better", word(&directions))?
                .unwrap_or(goal.direction()),
            erratic: self.erratic.read("erratic", boolean)?.unwrap_or(false),
            needs: list(&self.needs),
            target,
            load,
            sinks: self.sinks.read("sinks", SinkLayer::sink)?,
            measure,
            together,
            checks: self.checks.read("checks", CheckLayer::check)?,
            valid,
            budget: self.budget.budget()?,
        })
    }
}

const SIGNALS: [(&str, i32); 5] = [
    ("TERM", libc::SIGTERM),
    ("INT", libc::SIGINT),
    ("KILL", libc::SIGKILL),
    ("QUIT", libc::SIGQUIT),
    ("HUP", libc::SIGHUP),
];

impl TargetLayer {
    fn target(&self) -> Result<Target> {
        let command = self.command.required("target.command")?;
        if command.is_empty() {
            return Err(self.command.invalid("target.command", "empty"));
        }
        let seconds = |slot: &Slot<String>, path: &str, usual: u64| {
            Ok(slot.read(path, duration)?.unwrap_or(Duration::from_secs(usual)))
        };
        Ok(Target {
            command: command.clone(),
            env: texts(&self.env),
            files: self.files()?,
            stop_signal: self
                .stop
                .signal
                .read("target.stop.signal", word(&SIGNALS))?
                .unwrap_or(libc::SIGTERM),
            stop_grace: seconds(&self.stop.grace, "target.stop.grace", 10)?,
            cpus: cpus(&self.cpus, "target.cpus")?,
            memory_limit: self.memory_limit.read("target.memory_limit", size)?,
            ready_timeout: seconds(&self.ready.timeout, "target.ready.timeout", 30)?,
            ready: self
                .ready
                .all_of
                .read("target.ready.all_of", ConditionLayer::ready)?,
            telemetry: self
                .telemetry
                .read("target.telemetry", TelemetryLayer::telemetry)?,
            listen: texts(&self.listen),
            supports: list(&self.supports),
            flush: seconds(&self.flush, "target.flush", 10)?,
            flushes_at_stop: self
                .flushes_at_stop
                .read("target.flushes_at_stop", boolean)?
                .unwrap_or(false),
            pprof: self.pprof.text(),
            running: None,
        })
    }

    pub fn has_command(&self) -> bool {
        self.command.get().is_some_and(|command| !command.is_empty())
    }

    fn files(&self) -> Result<BTreeMap<String, String>> {
        for (path, slot) in &self.files {
            if path.starts_with('/') || path.split('/').any(|part| part == "..") {
                return Err(slot.invalid("target.files", format!("{path:?} leaves the work directory")));
            }
        }
        Ok(texts(&self.files))
    }
}

impl ConditionLayer {
    fn ready(&self, path: &str) -> Result<Ready> {
        let found = exactly_one([
            self.unix_socket.text().map(Ready::UnixSocket),
            self.udp_port.text().map(Ready::UdpPort),
            self.tcp_port.text().map(Ready::TcpPort),
            self.http.text().map(Ready::Http),
            self.log_line.text().map(Ready::LogLine),
            self.file.text().map(Ready::File),
        ]);
        found.ok_or_else(|| {
            let what = "exactly one of unix_socket, udp_port, tcp_port, http, log_line, file in each entry";
            ConfigError(format!("{path}: {what}"))
        })
    }
}

impl TelemetryLayer {
    fn telemetry(&self, path: &str) -> Result<Telemetry> {
        for (key, slot) in &self.map {
            if !CANONICAL.contains(&key.as_str()) {
                return Err(slot.invalid(&format!("{path}.map"), not_allowed(key, &CANONICAL)));
            }
        }
        let found = exactly_one([
            self.prometheus
                .text()
                .map(|address| (TelemetryKind::Prometheus, address)),
            self.expvar.text().map(|address| (TelemetryKind::Expvar, address)),
            self.statsd_admin
                .text()
                .map(|address| (TelemetryKind::StatsdAdmin, address)),
        ]);
        let (kind, address) = found.ok_or_else(|| {
            ConfigError(format!(
                "{path}: exactly one of prometheus, expvar, statsd_admin in each entry"
            ))
        })?;
        Ok(Telemetry {
            kind,
            address,
            map: texts(&self.map),
        })
    }
}

impl LoadLayer {
    fn load(&self, path: &str, target: &Target) -> Result<Load> {
        let cpus = cpus(&self.cpus, &format!("{path}.cpus"))?;
        let all_out = self
            .all_out
            .read(&format!("{path}.all_out"), boolean)?
            .unwrap_or(false);
        let command = list(&self.command);
        let payload = exactly_one([
            self.profile.text().map(|profile| ("--profile", profile)),
            self.file.text().map(|file| ("--file", absolute(file))),
        ]);
        match (payload, command.is_empty(), self.to.resolve(path, target)?) {
            (Some((flag, profile)), true, Some(to)) => Ok(Load::Profile {
                flag,
                profile,
                args: list(&self.args),
                to,
                cpus,
                all_out,
            }),
            (None, false, None) => Ok(Load::Command {
                command,
                cpus,
                all_out,
            }),
            _ => Err(self
                .profile
                .invalid(path, "either `profile` or `file`, with `to`, or `command`")),
        }
    }
}

/// The generator runs in another folder. A word in braces is replaced later.
fn absolute(file: String) -> String {
    match file.starts_with('{') {
        true => file,
        false => std::path::absolute(&file).map_or(file, |path| path.display().to_string()),
    }
}

impl SinkLayer {
    fn sink(&self, path: &str) -> Result<Sink> {
        let command = list(&self.command);
        let kind = self.kind.text().unwrap_or_else(|| "command".to_owned());
        if (kind == "command") == command.is_empty() {
            return Err(self
                .kind
                .invalid(path, "either `kind` of a built-in sink, or `command`"));
        }
        Ok(Sink {
            kind,
            listen: self.listen.text().unwrap_or_default(),
            args: list(&self.args),
            verify: self
                .verify
                .read(&format!("{path}.verify"), boolean)?
                .unwrap_or(false),
            command,
            cpus: cpus(&self.cpus, &format!("{path}.cpus"))?,
        })
    }
}

const COUNTED_BY: [(&str, CountedBy); 2] = [
    ("counters", CountedBy::Counters),
    ("valgrind", CountedBy::Valgrind),
];

impl MeasureLayer {
    fn measure(&self) -> Result<Measure> {
        let time = |slot: &Slot<String>, path: &str, usual: u64| {
            Ok(slot.read(path, duration)?.unwrap_or(Duration::from_secs(usual)))
        };
        let together = [("auto", None), ("true", Some(true)), ("false", Some(false))];
        let replicates = self.replicates.read("measure.replicates", count)?.unwrap_or(7);
        let measure = Measure {
            replicates,
            replicates_max: self
                .replicates_max
                .read("measure.replicates_max", count)?
                .unwrap_or(replicates),
            messages: self.messages.read("measure.messages", count)?,
            warmup: time(&self.warmup, "measure.warmup", 10)?,
            duration: time(&self.duration, "measure.duration", 30)?,
            sample_period: time(&self.sample_period, "measure.sample_period", 1)?,
            smaps_period: time(&self.smaps_period, "measure.smaps_period", 5)?,
            together: self.together.read("measure.together", word(&together))?.flatten(),
            drain: self.drain.read("measure.drain", duration)?,
            instructions: self
                .instructions
                .read("measure.instructions", word(&COUNTED_BY))?
                .unwrap_or(CountedBy::Counters),
        };
        if measure.replicates_max < replicates {
            return Err(self
                .replicates_max
                .invalid("measure.replicates_max", "below replicates"));
        }
        if measure.duration < Duration::from_secs(1) || measure.sample_period < Duration::from_millis(50) {
            let what = "duration must be at least 1s and sample_period at least 50ms";
            return Err(self.duration.invalid("measure", what));
        }
        Ok(measure)
    }
}

impl CheckLayer {
    fn check(&self, path: &str) -> Result<CheckRule> {
        let at = |key: &str| format!("{path}.{key}");
        let known = check_series();
        let series_of = |text: &str| match known.contains(&text) {
            true => Ok(text.to_owned()),
            false => Err(not_allowed(text, &known)),
        };
        self.series.required(&at("series"))?;
        let stats = [
            ("max", Stat::Max),
            ("min", Stat::Min),
            ("mean", Stat::Mean),
            ("last", Stat::Last),
        ];
        let check = CheckRule {
            name: self.name.required(&at("name"))?.clone(),
            series: self
                .series
                .read(&at("series"), series_of)?
                .expect("required above"),
            stat: self.stat.read(&at("stat"), word(&stats))?.unwrap_or(Stat::Max),
            upper: self.upper.read(&at("upper"), limit)?,
            lower: self.lower.read(&at("lower"), limit)?,
        };
        if check.upper.is_none() && check.lower.is_none() {
            return Err(self.name.invalid(path, "a check needs `upper`, `lower` or both"));
        }
        Ok(check)
    }
}

impl ValidLayer {
    fn valid(&self) -> Result<Valid> {
        Ok(Valid {
            min_target_share: self.min_target_share.read("valid.min_target_share", share)?,
            generator_headroom: self
                .generator_headroom
                .read("valid.generator_headroom", number)?
                .unwrap_or(1.5),
            overload: self.overload.read("valid.overload", boolean)?.unwrap_or(false),
            idle: self.idle.read("valid.idle", boolean)?.unwrap_or(false),
            max_steal: self.max_steal.read("valid.max_steal", share)?,
            max_foreign_cpu: self
                .max_foreign_cpu
                .read("valid.max_foreign_cpu", share)?
                .unwrap_or(0.03),
        })
    }
}

impl BudgetLayer {
    fn budget(&self) -> Result<Option<Budget>> {
        if self.is_missing() {
            return Ok(None);
        }
        let times = |slot: &Slot<String>, path: &str| {
            slot.required(path)?;
            Ok(slot.read(path, number)?.expect("required above"))
        };
        Ok(Some(Budget {
            must: times(&self.must, "budget.must")?,
            should: times(&self.should, "budget.should")?,
        }))
    }
}
