//! Experiments on disk: defaults, templates, cases, matrices, and what each target changes.

use super::goal::Goal;
use super::node::{self, ConfigError, Node, Reader, Result, Value, invalid, suggestion};
use super::units;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_regress::Direction;

/// One experiment for one arm, everything resolved except what only a run knows (`{work}`, `{port:...}`).
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    pub description: String,
    pub goal: Goal,
    pub direction: Direction,
    /// Run and print, but never fail a build.
    pub erratic: bool,
    /// What the payload needs of a target: transports, message types.
    pub needs: Vec<String>,
    pub target: Target,
    pub load: Vec<Load>,
    pub sinks: Vec<Sink>,
    pub measure: Measure,
    /// Both arms of a pair run at the same time, on the same core: whatever the machine does then happens to both.
    pub together: bool,
    pub checks: Vec<Check>,
    pub valid: Valid,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Files written into the work directory before the start, path to content.
    pub files: BTreeMap<String, String>,
    pub stop_signal: i32,
    pub stop_grace: Duration,
    pub cpus: Option<Vec<usize>>,
    pub memory_limit: Option<u64>,
    pub ready_timeout: Duration,
    /// All of these must hold; an empty list means "as soon as it runs".
    pub ready: Vec<Ready>,
    pub telemetry: Vec<Telemetry>,
    /// Where it listens, by transport; addresses as everywhere (`udp://...`, `unixgram://...`).
    pub listen: BTreeMap<String, String>,
    pub supports: Vec<String>,
    /// How often it hands on what it aggregated.
    pub flush: Duration,
    /// It delivers what it holds when told to stop, so no waiting for the last flush is needed.
    pub flushes_at_stop: bool,
    /// Go targets: base of `/debug/pprof/`. Ours have it too.
    pub pprof: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Ready {
    UnixSocket(String),
    UdpPort(String),
    TcpPort(String),
    Http(String),
    LogLine(String),
    File(String),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    pub kind: TelemetryKind,
    pub address: String,
    /// Canonical counter name to the target's own name.
    pub map: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TelemetryKind {
    Prometheus,
    Expvar,
    /// The text protocol on a TCP port that the original StatsD and its relatives answer (`counters`, `stats`).
    StatsdAdmin,
}

/// Canonical telemetry counters.
pub const CANONICAL: [&str; 4] = ["received_packets", "received_bytes", "parsed_messages", "dropped"];

#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// `weir-bench load run`.
    Profile {
        profile: String,
        /// Extra flags, passed on as they are.
        args: Vec<String>,
        to: String,
        cpus: Option<Vec<usize>>,
        /// The profile sends as much as the target takes; otherwise it follows a schedule.
        all_out: bool,
    },
    /// Any program. It must write a manifest to `{manifest}` before it exits.
    Command {
        command: Vec<String>,
        cpus: Option<Vec<usize>>,
        all_out: bool,
    },
}

impl Load {
    /// The load sends as much as the target takes.
    pub fn all_out(&self) -> bool {
        match self {
            Load::Profile { all_out, .. } | Load::Command { all_out, .. } => *all_out,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sink {
    /// A kind of `weir-bench sink`, or `command`.
    pub kind: String,
    pub listen: String,
    pub args: Vec<String>,
    pub verify: bool,
    pub command: Vec<String>,
    pub cpus: Option<Vec<usize>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Measure {
    /// Pairs.
    pub replicates: usize,
    /// Adaptive runs go on up to this many pairs; equal to `replicates` when not adaptive.
    pub replicates_max: usize,
    pub warmup: Duration,
    pub duration: Duration,
    pub sample_period: Duration,
    pub smaps_period: Duration,
    /// Both arms of a pair at the same time; `None` leaves it to goal and load.
    pub together: Option<bool>,
    /// `None`: two flush intervals and two seconds, or less for a target that flushes when stopped.
    pub drain: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    pub name: String,
    pub series: String,
    pub stat: Stat,
    pub upper: Option<f64>,
    pub lower: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stat {
    Max,
    Min,
    Mean,
    Last,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Valid {
    /// Delivered / sent; `None` for experiments without a countable delivery.
    pub min_target_share: Option<f64>,
    pub generator_headroom: f64,
    /// Deliberate overload: loss is the subject, so the share is not judged, but the target must have worked.
    pub overload: bool,
    /// No load at all (idle): nothing to deliver.
    pub idle: bool,
    /// `None`: what is usual for arms together or in turn.
    pub max_steal: Option<f64>,
    pub max_foreign_cpu: f64,
}

/// A case after inheritance and matrix expansion, before any target.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: String,
    pub tree: Node,
    /// Files beside `experiment.yaml` that are copied into the work directory.
    pub files: Option<PathBuf>,
}

/// The `experiments` folder.
#[derive(Debug)]
pub struct Library {
    root: PathBuf,
    defaults: Node,
    templates: BTreeMap<String, Node>,
}

impl Library {
    pub fn open(root: &Path) -> Result<Self> {
        if !root.join("cases").is_dir() {
            return Err(ConfigError(format!(
                "{}: no folder \"cases\" in it; give the experiments folder with --experiments",
                root.display()
            )));
        }
        let defaults_file = root.join("defaults.yaml");
        let defaults = if defaults_file.is_file() {
            Node::read(&defaults_file)?
        } else {
            Node::empty_map()
        };
        let mut templates = BTreeMap::new();
        for path in yaml_files(&root.join("templates"))? {
            let name = stem(&path);
            templates.insert(name, Node::read(&path)?);
        }
        Ok(Self {
            root: root.to_owned(),
            defaults,
            templates,
        })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Every case, matrices expanded, sorted by name.
    pub fn cases(&self) -> Result<Vec<Case>> {
        let folder = self.root.join("cases");
        let mut cases = Vec::new();
        for entry in read_dir(&folder)? {
            let file = entry.join("experiment.yaml");
            if !file.is_file() {
                return Err(ConfigError(format!("{}: missing", file.display())));
            }
            cases.extend(self.expand(&stem(&entry), Node::read(&file)?, &entry)?);
        }
        cases.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = cases.windows(2).find(|w| w[0].name == w[1].name) {
            return Err(ConfigError(format!(
                "two experiments are called {:?}",
                pair[0].name
            )));
        }
        Ok(cases)
    }

    /// Cases that match any of the patterns (names or globs), in order of name.
    pub fn select(&self, patterns: &[String]) -> Result<Vec<Case>> {
        let all = self.cases()?;
        let names: Vec<&str> = all.iter().map(|c| c.name.as_str()).collect();
        for pattern in patterns {
            if !names.iter().any(|n| glob(pattern, n)) {
                return Err(ConfigError(format!(
                    "there is no experiment {pattern:?} in {}{}; `weir-bench show` lists them",
                    self.root.display(),
                    suggestion(pattern, &names)
                )));
            }
        }
        Ok(all
            .into_iter()
            .filter(|c| patterns.iter().any(|p| glob(p, &c.name)))
            .collect())
    }

    /// The patterns of a suite.
    pub fn suite(&self, name: &str) -> Result<Vec<String>> {
        let folder = self.root.join("suites");
        let file = folder.join(format!("{name}.yaml"));
        if !file.is_file() {
            let names: Vec<String> = yaml_files(&folder)?.iter().map(|p| stem(p)).collect();
            return Err(ConfigError(format!(
                "there is no suite {name:?}; there are: {}",
                if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                }
            )));
        }
        let node = Node::read(&file)?;
        let mut r = Reader::new(&node, "")?;
        r.take("description");
        let patterns = node::list(r.required("experiments")?, "experiments", node::text)?;
        r.finish()?;
        Ok(patterns)
    }

    pub fn suites(&self) -> Result<Vec<String>> {
        Ok(yaml_files(&self.root.join("suites"))?
            .iter()
            .map(|p| stem(p))
            .collect())
    }

    fn expand(&self, folder_name: &str, mut own: Node, folder: &Path) -> Result<Vec<Case>> {
        let matrix = own.remove("matrix");
        let name = own.remove("name");
        let mut tree = self.defaults.clone();
        tree.merge(&self.inherit(own, &mut Vec::new())?);
        let files = Some(folder.join("target")).filter(|p| p.is_dir());
        let Some(matrix) = matrix else {
            let name = match &name {
                Some(n) => node::text(n, "name")?,
                None => folder_name.to_owned(),
            };
            return Ok(vec![Case { name, tree, files }]);
        };
        let Value::Map(axes) = &matrix.value else {
            return Err(node::wrong_kind(&matrix, "matrix", "a map of lists"));
        };
        let name = name.ok_or_else(|| {
            invalid(
                &matrix,
                "matrix",
                "a matrix needs `name`, for example \"case-{matrix.rate}\"",
            )
        })?;
        let pattern = node::text(&name, "name")?;
        let mut combinations: Vec<Vec<(&str, Node)>> = vec![Vec::new()];
        for (axis, values) in axes {
            let Value::List(values) = &values.value else {
                return Err(node::wrong_kind(values, &format!("matrix.{axis}"), "a list"));
            };
            if !pattern.contains(&format!("{{matrix.{axis}}}")) {
                return Err(invalid(
                    &name,
                    "name",
                    format!("it must contain {{matrix.{axis}}}, or names would repeat"),
                ));
            }
            combinations = combinations
                .iter()
                .flat_map(|c| {
                    values
                        .iter()
                        .map(|v| [c.clone(), vec![(axis.as_str(), v.clone())]].concat())
                })
                .collect();
        }
        combinations
            .into_iter()
            .map(|choice| {
                let mut tree = tree.clone();
                tree.map_texts(&mut |t| fill_matrix(t, &choice))?;
                let name = fill_matrix(&pattern, &choice)?
                    .map(|n| node::text(&n, "name"))
                    .transpose()?
                    .unwrap_or_else(|| pattern.clone());
                Ok(Case {
                    name,
                    tree,
                    files: files.clone(),
                })
            })
            .collect()
    }

    /// Lays `own` on the template it extends, and that on its own.
    fn inherit(&self, mut own: Node, chain: &mut Vec<String>) -> Result<Node> {
        let Some(extends) = own.remove("extends") else {
            return Ok(own);
        };
        let name = node::text(&extends, "extends")?;
        let Some(template) = self.templates.get(&name) else {
            let names: Vec<&str> = self.templates.keys().map(String::as_str).collect();
            return Err(invalid(
                &extends,
                "extends",
                format!(
                    "there is no template {name:?}{}; there are: {}",
                    suggestion(&name, &names),
                    names.join(", ")
                ),
            ));
        };
        if chain.contains(&name) {
            return Err(invalid(
                &extends,
                "extends",
                format!("{} -> {name} is a circle", chain.join(" -> ")),
            ));
        }
        chain.push(name);
        let mut base = self.inherit(template.clone(), chain)?;
        base.merge(&own);
        Ok(base)
    }
}

/// `{matrix.x}` alone becomes the value itself (a number stays one); inside longer text it becomes text.
fn fill_matrix(text: &str, choice: &[(&str, Node)]) -> Result<Option<Node>> {
    if !text.contains("{matrix.") {
        return Ok(None);
    }
    if let Some((_, node)) = choice
        .iter()
        .find(|(axis, _)| text == format!("{{matrix.{axis}}}"))
    {
        return Ok(Some(node.clone()));
    }
    let mut out = text.to_owned();
    for (axis, node) in choice {
        out = out.replace(
            &format!("{{matrix.{axis}}}"),
            &node::text(node, &format!("matrix.{axis}"))?,
        );
    }
    if out.contains("{matrix.") {
        return Err(ConfigError(format!("{text:?}: no such matrix axis")));
    }
    Ok(Some(Node::text(&out)))
}

/// `*` matches any run of characters; everything else matches itself.
pub fn glob(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name
            .strip_prefix(head)
            .is_some_and(|rest| (0..=rest.len()).any(|i| rest.is_char_boundary(i) && glob(tail, &rest[i..]))),
    }
}

fn read_dir(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .map_err(|e| ConfigError(format!("{}: {e}", folder.display())))?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.is_dir())
        .collect();
    paths.sort();
    Ok(paths)
}

fn yaml_files(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .map_err(|e| ConfigError(format!("{}: {e}", folder.display())))?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "yaml"))
        .collect();
    paths.sort();
    Ok(paths)
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .map(|s| s.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// What a target from `targets.yaml` (or a plain binary) brings to an experiment.
#[derive(Debug, Clone)]
pub struct Overlay {
    /// The name under which `arms_override` finds it, besides `baseline` and `comparison`.
    pub names: Vec<String>,
    /// Laid over the experiment's `target:`.
    pub target: Node,
    /// Replaces the experiment's `sinks:` when present.
    pub sinks: Option<Node>,
}

/// The case as one arm runs it.
pub fn resolve(case: &Case, overlay: &Overlay) -> Result<Experiment> {
    let tree = resolved_tree(case, overlay)?;
    read_experiment(&tree).map_err(|e| ConfigError(format!("experiment {}: {e}", case.name)))
}

pub fn resolved_tree(case: &Case, overlay: &Overlay) -> Result<Node> {
    let mut tree = case.tree.clone();
    let overrides = tree.remove("arms_override");
    let mut target = tree.get("target").cloned().unwrap_or_else(Node::empty_map);
    target.merge(&overlay.target);
    tree.set("target", target);
    if let Some(sinks) = &overlay.sinks {
        tree.set("sinks", sinks.clone());
    }
    if let Some(overrides) = overrides {
        let Value::Map(arms) = &overrides.value else {
            return Err(node::wrong_kind(&overrides, "arms_override", "a map of arms"));
        };
        for (arm, changes) in arms {
            if !overlay.names.contains(arm) {
                continue;
            }
            let Value::Map(changes) = &changes.value else {
                return Err(node::wrong_kind(
                    changes,
                    &format!("arms_override.{arm}"),
                    "a map of paths",
                ));
            };
            for (path, value) in changes {
                tree.set_path(path, value.clone())?;
            }
        }
    }
    Ok(tree)
}

fn read_experiment(tree: &Node) -> Result<Experiment> {
    let mut r = Reader::new(tree, "")?;
    let description = r.or("description", String::new(), node::text)?;
    let goal_node = r.required("goal")?;
    let goal = word(goal_node, "goal", &Goal::keys(), Goal::from_key)?;
    let direction = r.or("better", goal.direction(), |n, p| {
        word(n, p, &["up", "down", "undeclared"], |w| match w {
            "up" => Some(Direction::HigherIsBetter),
            "down" => Some(Direction::LowerIsBetter),
            "undeclared" => Some(Direction::Undeclared),
            _ => None,
        })
    })?;
    let erratic = r.or("erratic", false, node::boolean)?;
    let needs = r.list("needs", node::text)?;
    let target = read_target(r.required("target")?)?;
    let load = r.list("load", |n, p| read_load(n, p, &target))?;
    let sinks = r.list("sinks", read_sink)?;
    let measure = match r.take("measure") {
        Some(n) => read_measure(n)?,
        None => read_measure(&Node::empty_map())?,
    };
    let checks = r.list("checks", read_check)?;
    let valid = match r.take("valid") {
        Some(n) => read_valid(n)?,
        None => read_valid(&Node::empty_map())?,
    };
    let together = match measure.together {
        Some(true) if !goal.survives_company() => {
            return Err(invalid(
                goal_node,
                "measure.together",
                format!(
                    "arms that run at the same time cannot be compared by {}; by CPU time or memory they can",
                    goal.key()
                ),
            ));
        }
        Some(wanted) => wanted,
        None => goal.survives_company() && !valid.overload && !load.iter().any(Load::all_out),
    };
    // Read for every target of the case, so it is known here although `resolved_tree` has used it up.
    r.take("arms_override");
    r.finish()?;
    Ok(Experiment {
        description,
        goal,
        direction,
        erratic,
        needs,
        target,
        load,
        sinks,
        measure,
        together,
        checks,
        valid,
    })
}

fn word<T>(node: &Node, path: &str, allowed: &[&str], read: impl Fn(&str) -> Option<T>) -> Result<T> {
    let text = node::text(node, path)?;
    read(&text).ok_or_else(|| {
        invalid(
            node,
            path,
            format!(
                "{text:?} is not allowed{}; allowed: {}",
                suggestion(&text, allowed),
                allowed.join(", ")
            ),
        )
    })
}

fn cpus(node: &Node, path: &str) -> Result<Vec<usize>> {
    let list = node::list(node, path, node::count)?;
    if list.is_empty() {
        return Err(invalid(
            node,
            path,
            "an empty list pins to nothing; leave the key out to run unpinned",
        ));
    }
    Ok(list)
}

fn text_map(node: &Node, path: &str) -> Result<BTreeMap<String, String>> {
    match &node.value {
        Value::Map(items) => items
            .iter()
            .map(|(k, n)| Ok((k.clone(), node::text(n, &node::join(path, k))?)))
            .collect(),
        _ => Err(node::wrong_kind(node, path, "a map")),
    }
}

fn read_target(tree: &Node) -> Result<Target> {
    let mut r = Reader::new(tree, "target")?;
    let command = node::list(r.required("command")?, "target.command", node::text)?;
    if command.is_empty() {
        return Err(invalid(tree, "target.command", "empty"));
    }
    let env = r.or("env", BTreeMap::new(), text_map)?;
    let files = r.or("files", BTreeMap::new(), text_map)?;
    for path in files.keys() {
        if path.starts_with('/') || path.split('/').any(|p| p == "..") {
            return Err(invalid(
                tree,
                "target.files",
                format!("{path:?} leaves the work directory"),
            ));
        }
    }
    let (mut stop_signal, mut stop_grace) = (libc::SIGTERM, Duration::from_secs(10));
    if let Some(n) = r.take("stop") {
        let mut s = Reader::new(n, "target.stop")?;
        let signals = [
            ("TERM", libc::SIGTERM),
            ("INT", libc::SIGINT),
            ("KILL", libc::SIGKILL),
            ("QUIT", libc::SIGQUIT),
            ("HUP", libc::SIGHUP),
        ];
        stop_signal = s.or("signal", stop_signal, |n, p| {
            word(n, p, &signals.map(|s| s.0), |w| {
                signals.iter().find(|s| s.0 == w).map(|s| s.1)
            })
        })?;
        stop_grace = s.or("grace", stop_grace, units::duration)?;
        s.finish()?;
    }
    let pinned = r.optional("cpus", cpus)?;
    let memory_limit = r.optional("memory_limit", units::bytes)?;
    let (mut ready_timeout, mut ready) = (Duration::from_secs(30), Vec::new());
    if let Some(n) = r.take("ready") {
        let mut s = Reader::new(n, "target.ready")?;
        ready_timeout = s.or("timeout", ready_timeout, units::duration)?;
        ready = s.list("all_of", read_ready)?;
        s.finish()?;
    }
    let telemetry = r.list("telemetry", read_telemetry)?;
    let listen = r.or("listen", BTreeMap::new(), text_map)?;
    let supports = r.list("supports", node::text)?;
    let flush = r.or("flush", Duration::from_secs(10), units::duration)?;
    let flushes_at_stop = r.or("flushes_at_stop", false, node::boolean)?;
    let pprof = r.optional("pprof", node::text)?;
    r.finish()?;
    Ok(Target {
        command,
        env,
        files,
        stop_signal,
        stop_grace,
        cpus: pinned,
        memory_limit,
        ready_timeout,
        ready,
        telemetry,
        listen,
        supports,
        flush,
        flushes_at_stop,
        pprof,
    })
}

fn read_ready(tree: &Node, path: &str) -> Result<Ready> {
    let mut r = Reader::new(tree, path)?;
    let found = [
        r.optional("unix_socket", node::text)?.map(Ready::UnixSocket),
        r.optional("udp_port", node::text)?.map(Ready::UdpPort),
        r.optional("tcp_port", node::text)?.map(Ready::TcpPort),
        r.optional("http", node::text)?.map(Ready::Http),
        r.optional("log_line", node::text)?.map(Ready::LogLine),
        r.optional("file", node::text)?.map(Ready::File),
    ];
    r.finish()?;
    let mut found = found.into_iter().flatten();
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        _ => Err(invalid(
            tree,
            path,
            "exactly one of unix_socket, udp_port, tcp_port, http, log_line, file in each entry",
        )),
    }
}

fn read_telemetry(tree: &Node, path: &str) -> Result<Telemetry> {
    let mut r = Reader::new(tree, path)?;
    let found = [
        (TelemetryKind::Prometheus, r.optional("prometheus", node::text)?),
        (TelemetryKind::Expvar, r.optional("expvar", node::text)?),
        (
            TelemetryKind::StatsdAdmin,
            r.optional("statsd_admin", node::text)?,
        ),
    ];
    let map = r.or("map", BTreeMap::new(), text_map)?;
    r.finish()?;
    for key in map.keys() {
        if !CANONICAL.contains(&key.as_str()) {
            return Err(invalid(
                tree,
                &node::join(path, "map"),
                format!(
                    "{key:?} is not a counter{}; allowed: {}",
                    suggestion(key, &CANONICAL),
                    CANONICAL.join(", ")
                ),
            ));
        }
    }
    let mut found = found
        .into_iter()
        .filter_map(|(kind, address)| address.map(|a| (kind, a)));
    match (found.next(), found.next()) {
        (Some((kind, address)), None) => Ok(Telemetry { kind, address, map }),
        _ => Err(invalid(
            tree,
            path,
            "exactly one of prometheus, expvar, statsd_admin in each entry",
        )),
    }
}

fn read_load(tree: &Node, path: &str, target: &Target) -> Result<Load> {
    let mut r = Reader::new(tree, path)?;
    let profile = r.optional("profile", node::text)?;
    let command = r.list("command", node::text)?;
    let args = r.list("args", node::text)?;
    let pinned = r.optional("cpus", cpus)?;
    let all_out = r.or("all_out", false, node::boolean)?;
    let to = r
        .take("to")
        .map(|n| destination(n, &node::join(path, "to"), target))
        .transpose()?;
    r.finish()?;
    match (profile, command.is_empty(), to) {
        (Some(profile), true, Some(to)) => Ok(Load::Profile {
            profile,
            args,
            to,
            cpus: pinned,
            all_out,
        }),
        (None, false, None) => Ok(Load::Command {
            command,
            cpus: pinned,
            all_out,
        }),
        _ => Err(invalid(tree, path, "either `profile` with `to`, or `command`")),
    }
}

/// An address, or the first transport of a list on which the target listens.
fn destination(tree: &Node, path: &str, target: &Target) -> Result<String> {
    if let Value::Text(text) = &tree.value {
        return Ok(text.clone());
    }
    let mut r = Reader::new(tree, path)?;
    let wanted = node::list(r.required("listen")?, &node::join(path, "listen"), node::text)?;
    r.finish()?;
    wanted
        .iter()
        .find_map(|w| target.listen.get(w))
        .cloned()
        .ok_or_else(|| {
            invalid(
                tree,
                path,
                format!(
                    "the target listens on none of {} (it has: {})",
                    wanted.join(", "),
                    if target.listen.is_empty() {
                        "nothing".to_owned()
                    } else {
                        target.listen.keys().cloned().collect::<Vec<_>>().join(", ")
                    }
                ),
            )
        })
}

fn read_sink(tree: &Node, path: &str) -> Result<Sink> {
    let mut r = Reader::new(tree, path)?;
    let command = r.list("command", node::text)?;
    let kind = r.or("kind", "command".to_owned(), node::text)?;
    let listen = r.or("listen", String::new(), node::text)?;
    let args = r.list("args", node::text)?;
    let verify = r.or("verify", false, node::boolean)?;
    let pinned = r.optional("cpus", cpus)?;
    r.finish()?;
    if (kind == "command") == command.is_empty() {
        return Err(invalid(
            tree,
            path,
            "either `kind` of a built-in sink, or `command`",
        ));
    }
    Ok(Sink {
        kind,
        listen,
        args,
        verify,
        command,
        cpus: pinned,
    })
}

fn read_measure(tree: &Node) -> Result<Measure> {
    let mut r = Reader::new(tree, "measure")?;
    let replicates = r.or("replicates", 7, node::count)?;
    let replicates_max = r.or("replicates_max", replicates, node::count)?;
    let warmup = r.or("warmup", Duration::from_secs(10), units::duration)?;
    let duration = r.or("duration", Duration::from_secs(30), units::duration)?;
    let sample_period = r.or("sample_period", Duration::from_secs(1), units::duration)?;
    let smaps_period = r.or("smaps_period", Duration::from_secs(5), units::duration)?;
    let drain = r.optional("drain", units::duration)?;
    let together = r.or("together", None, |n, p| match &n.value {
        Value::Bool(wanted) => Ok(Some(*wanted)),
        Value::Text(word) if word == "auto" => Ok(None),
        _ => Err(node::wrong_kind(n, p, "auto, true or false")),
    })?;
    r.finish()?;
    if replicates_max < replicates {
        return Err(invalid(tree, "measure.replicates_max", "below replicates"));
    }
    if duration < Duration::from_secs(1) || sample_period < Duration::from_millis(50) {
        return Err(invalid(
            tree,
            "measure",
            "duration must be at least 1s and sample_period at least 50ms",
        ));
    }
    Ok(Measure {
        replicates,
        replicates_max,
        warmup,
        duration,
        sample_period,
        smaps_period,
        together,
        drain,
    })
}

fn read_check(tree: &Node, path: &str) -> Result<Check> {
    let mut r = Reader::new(tree, path)?;
    let name = node::text(r.required("name")?, &node::join(path, "name"))?;
    let series_node = r.required("series")?;
    let known = super::values::check_series();
    let series = word(series_node, &node::join(path, "series"), &known, |w| {
        known.contains(&w).then(|| w.to_owned())
    })?;
    let stat = r.or("stat", Stat::Max, |n, p| {
        word(n, p, &["max", "min", "mean", "last"], |w| match w {
            "max" => Some(Stat::Max),
            "min" => Some(Stat::Min),
            "mean" => Some(Stat::Mean),
            "last" => Some(Stat::Last),
            _ => None,
        })
    })?;
    let upper = r.optional("upper", units::limit)?;
    let lower = r.optional("lower", units::limit)?;
    r.finish()?;
    if upper.is_none() && lower.is_none() {
        return Err(invalid(tree, path, "a check needs `upper`, `lower` or both"));
    }
    Ok(Check {
        name,
        series,
        stat,
        upper,
        lower,
    })
}

fn read_valid(tree: &Node) -> Result<Valid> {
    let mut r = Reader::new(tree, "valid")?;
    let share = |n: &Node, p: &str| {
        node::number(n, p).and_then(|v| {
            if (0.0..=1.0).contains(&v) {
                Ok(v)
            } else {
                Err(invalid(n, p, "a share between 0 and 1"))
            }
        })
    };
    let valid = Valid {
        min_target_share: r.optional("min_target_share", share)?,
        generator_headroom: r.or("generator_headroom", 1.5, node::number)?,
        overload: r.or("overload", false, node::boolean)?,
        idle: r.or("idle", false, node::boolean)?,
        max_steal: r.optional("max_steal", share)?,
        max_foreign_cpu: r.or("max_foreign_cpu", 0.03, share)?,
    };
    r.finish()?;
    Ok(valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(files: &[(&str, &str)]) -> (tempfile::TempDir, Library) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let library = Library::open(dir.path()).unwrap();
        (dir, library)
    }

    fn overlay(names: &[&str], yaml: &str) -> Overlay {
        Overlay {
            names: names.iter().map(|n| (*n).to_owned()).collect(),
            target: Node::parse(yaml, "targets.yaml").unwrap(),
            sinks: None,
        }
    }

    const BASE: &str = "goal: cpu\nmeasure: {replicates: 5, duration: 20s}\ntarget: {stop: {grace: 3s}}\n";

    #[test]
    fn defaults_templates_cases_and_targets_in_that_order() {
        let (_dir, library) = library(&[
            ("defaults.yaml", BASE),
            (
                "templates/dsd.yaml",
                "extends: root\nmeasure: {duration: 30s}\nload: [{profile: p, to: {listen: [unix_datagram, udp]}}]\n",
            ),
            (
                "templates/root.yaml",
                "description: from root\nmeasure: {warmup: 1s, duration: 99s}\n",
            ),
            (
                "cases/one/experiment.yaml",
                "extends: dsd\ngoal: memory\nmeasure: {warmup: null}\narms_override: {peer: {goal: cpu_per_message, load.0.to: 'udp://x:1'}}\n",
            ),
        ]);
        let case = &library.cases().unwrap()[0];
        assert_eq!(case.name, "one");
        let weir = overlay(
            &["weir"],
            "command: ['{bin}']\nlisten: {unix_datagram: 'unixgram://{work}/d.sock'}\n",
        );
        let e = resolve(case, &weir).unwrap();
        assert_eq!(
            (e.goal, e.measure.replicates, e.measure.duration.as_secs()),
            (Goal::Memory, 5, 30)
        );
        assert_eq!(
            e.measure.warmup.as_secs(),
            10,
            "null falls back to the built-in default"
        );
        assert_eq!(e.description, "from root");
        assert_eq!(e.target.stop_grace.as_secs(), 3);
        assert!(matches!(&e.load[0], Load::Profile { to, .. } if to == "unixgram://{work}/d.sock"));
        let peer = overlay(&["peer"], "command: [p]\nlisten: {udp: 'udp://127.0.0.1:1'}\n");
        let e = resolve(case, &peer).unwrap();
        assert_eq!(e.goal, Goal::CpuPerMessage);
        assert!(matches!(&e.load[0], Load::Profile { to, .. } if to == "udp://x:1"));
    }

    #[test]
    fn a_matrix_becomes_named_cases() {
        let (_dir, library) = library(&[
            ("defaults.yaml", BASE),
            (
                "cases/grid/experiment.yaml",
                "name: 'g-{matrix.rate}-{matrix.n}'\nmatrix: {rate: [8MiB, 64MiB], n: [1, 2]}\nmeasure: {replicates: '{matrix.n}'}\nload: [{profile: 'p-{matrix.rate}', to: 'udp://h:1'}]\n",
            ),
        ]);
        let cases = library.cases().unwrap();
        let names: Vec<&str> = cases.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["g-64MiB-1", "g-64MiB-2", "g-8MiB-1", "g-8MiB-2"]);
        let e = resolve(&cases[3], &overlay(&[], "command: [x]\n")).unwrap();
        assert_eq!(e.measure.replicates, 2);
        assert!(matches!(&e.load[0], Load::Profile { profile, .. } if profile == "p-8MiB"));
        assert_eq!(library.select(&["g-8*".to_owned()]).unwrap().len(), 2);
        assert!(library.select(&["h".to_owned()]).is_err());
    }

    #[test]
    fn wrong_files_say_what_where_and_what_is_allowed() {
        let broken = |yaml: &str| {
            let (_dir, library) = library(&[("defaults.yaml", BASE), ("cases/one/experiment.yaml", yaml)]);
            let error = library
                .cases()
                .and_then(|c| resolve(&c[0], &overlay(&[], "command: [x]\n")))
                .unwrap_err();
            error.0
        };
        let error = broken("\ngoal: cpu_per_mesage\n");
        assert!(
            error.contains("experiment.yaml:2: goal: \"cpu_per_mesage\"")
                && error.contains("did you mean \"cpu_per_message\""),
            "{error}"
        );
        let error = broken("measure:\n  duraton: 3s\n");
        assert!(
            error.contains("experiment.yaml:2: measure.duraton: unknown key; did you mean \"duration\"?"),
            "{error}"
        );
        let error = broken("checks: [{name: a, series: pss_byte, upper: 1MiB}]\n");
        assert!(error.contains("did you mean \"pss_bytes\""), "{error}");
        let error = broken("goal: max_rate\nmeasure: {together: true}\n");
        assert!(
            error.contains("experiment.yaml:1: measure.together") && error.contains("max_rate"),
            "{error}"
        );
        assert!(broken("checks: [{name: a, series: pss_bytes}]\n").contains("needs `upper`"));
        assert!(broken("extends: nothing\n").contains("no template"));
        assert!(broken("measure: {warmup: 10}\n").contains("a duration such as 10s"));
        assert!(
            broken("load: [{profile: p, to: {listen: [udp]}}]\n")
                .contains("listens on none of udp (it has: nothing)")
        );
        assert!(broken("matrix: {a: [1]}\n").contains("needs `name`"));
        assert!(broken("target: {files: {../x: y}}\n").contains("leaves the work directory"));
        assert!(broken("target: [\n").contains("experiment.yaml"));
    }

    #[test]
    fn arms_run_together_where_goal_and_load_allow_it() {
        let together = |case: &str| {
            let (_dir, library) = library(&[(
                "cases/one/experiment.yaml",
                &format!("target: {{command: [x]}}\n{case}"),
            )]);
            let cases = library.cases().unwrap();
            resolve(&cases[0], &overlay(&[], "{}\n")).unwrap().together
        };
        let load = |how: &str| format!("load: [{{profile: p, to: 'udp://x:1'{how}}}]\n");
        assert!(together(&format!("goal: cpu_per_message\n{}", load(""))));
        assert!(together(&format!(
            "goal: memory\nmeasure: {{together: auto}}\n{}",
            load("")
        )));
        assert!(!together(&format!(
            "goal: memory\nmeasure: {{together: false}}\n{}",
            load("")
        )));
        assert!(!together(&format!("goal: loss\n{}", load(""))));
        assert!(!together(&format!("goal: startup\n{}", load(""))));
        let all_out = load(", all_out: true");
        assert!(!together(&format!("goal: cpu_per_message\n{all_out}")));
        assert!(together(&format!(
            "goal: cpu_per_message\nmeasure: {{together: true}}\n{all_out}"
        )));
        assert!(!together(&format!(
            "goal: cpu\nvalid: {{overload: true}}\n{}",
            load("")
        )));
    }

    #[test]
    fn templates_in_a_circle_are_refused() {
        let (_dir, library) = library(&[
            ("templates/a.yaml", "extends: b\n"),
            ("templates/b.yaml", "extends: a\n"),
            ("cases/one/experiment.yaml", "extends: a\n"),
        ]);
        assert!(library.cases().unwrap_err().0.contains("circle"));
    }

    #[test]
    fn globs() {
        assert!(glob("a*c", "abc") && glob("*", "x") && glob("a*b*", "axbz") && glob("abc", "abc"));
        assert!(!glob("a*c", "abd") && !glob("ab", "abc"));
    }
}
