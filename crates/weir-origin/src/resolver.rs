//! The thread that answers the workers' questions. It owns all facts, so there is no lock. Sources and workers send it messages and never
//! wait for it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use weir_context::{Admission, OriginKey, OriginQuestion, OriginTags, OriginTicket};
use weir_ingest::{LookupRequest, OriginAnswer, OriginLink, ProcessContainer, Question};
use weir_rules::{AllowedOrigins, ListMatch};

use crate::cgroup::{Inodes, Proc};
use crate::decide::{Decision, Facts, Policy, decide};
use crate::entity::{Cardinality, Entity};
use crate::processes::{ProcessLookUp, Processes};
use crate::sources::{Feed, SourceEvent, TagSource};
use crate::status::{AccessExplanation, OriginExplanation, OriginStatus, OriginStep, SourceStatus};
use crate::store::Store;

/// Maximum queued messages.
const INBOX_MAX: usize = 4096;

/// Maximum messages handled before answers are sent.
const ROUND_MAX: usize = 256;

/// Maximum time that an unknown origin stays unsettled while sources are asked.
const UNSETTLED_MAX: Duration = Duration::from_millis(900);

/// Minimum interval of requests to a source to look again. Sources may slow this down further.
const REFRESH_INTERVAL: Duration = Duration::from_millis(200);

const TICK: Duration = Duration::from_secs(1);

/// Settings of origin detection.
#[derive(Clone, Debug)]
pub struct Settings {
    pub policy: Policy,
    pub proc_root: PathBuf,
    pub cgroup_root: PathBuf,
    /// Origins that may send. `None`: all.
    pub allowed: Option<AllowedOrigins>,
}

pub(crate) enum ResolverMessage {
    Lookup(LookupRequest),
    Source(usize, SourceEvent),
    Explain {
        key: Box<str>,
        pid: Option<i32>,
        reply: SyncSender<OriginExplanation>,
    },
    Allow(Option<AllowedOrigins>),
}

/// Delivers a worker's answers. Must not block.
pub type AnswerTo = Box<dyn Fn(Vec<OriginAnswer>) + Send>;

/// A handle of a running resolver. The resolver ends when all handles and all workers' links are dropped.
#[derive(Clone)]
pub struct Origins {
    inbox: SyncSender<ResolverMessage>,
    status: Arc<Mutex<OriginStatus>>,
}

/// A resolver before its start: workers need their links before answers can be sent to them.
pub struct Resolver {
    handle: Origins,
    inbox: Receiver<ResolverMessage>,
    settings: Settings,
    sources: Vec<Box<dyn TagSource>>,
}

impl Resolver {
    pub fn new(settings: Settings, sources: Vec<Box<dyn TagSource>>) -> Self {
        let (sender, inbox) = std::sync::mpsc::sync_channel(INBOX_MAX);
        let status = OriginStatus {
            sources: sources
                .iter()
                .map(|source| SourceStatus {
                    name: source.name().to_owned(),
                    place: source.place(),
                    ..SourceStatus::default()
                })
                .collect(),
            ..OriginStatus::default()
        };
        Resolver {
            handle: Origins {
                inbox: sender,
                status: Arc::new(Mutex::new(status)),
            },
            inbox,
            settings,
            sources,
        }
    }

    /// A worker's channel for questions.
    pub fn link(&self, worker: u16) -> OriginLink {
        let inbox = self.handle.inbox.clone();
        let tags_unknown = self.sources.iter().any(|source| source.tags_unknown_senders());
        OriginLink::new(
            worker,
            tags_unknown,
            Box::new(move |request| {
                inbox
                    .try_send(ResolverMessage::Lookup(request))
                    .map_err(|error| match error {
                        TrySendError::Full(ResolverMessage::Lookup(request)) => Some(request),
                        _ => None,
                    })
            }),
        )
    }

    /// Starts the thread, and the sources on `runtime`. `workers`: destinations of answers, by worker number.
    pub fn start(self, workers: Vec<AnswerTo>, runtime: &tokio::runtime::Handle) -> std::io::Result<Origins> {
        let now = Instant::now();
        let wanted: Vec<Arc<Notify>> = self.sources.iter().map(|_| Arc::new(Notify::new())).collect();
        let mut running = Running {
            store: Store::new(self.sources.len()),
            processes: Processes::new(Proc::new(&self.settings.proc_root)),
            inodes: Inodes::new(&self.settings.cgroup_root),
            policy: self.settings.policy,
            allowed: self.settings.allowed,
            answers: workers.iter().map(|_| Vec::new()).collect(),
            workers,
            origins: HashMap::new(),
            unsettled: HashSet::new(),
            by_ticket: HashMap::new(),
            health: self.sources.iter().map(|_| Health::Starting).collect(),
            wanted: wanted.clone(),
            times: Times {
                refreshed_at: now - REFRESH_INTERVAL,
                retry_at: None,
                next_tick: now + TICK,
            },
            status: self
                .handle
                .status
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            shared: self.handle.status.clone(),
        };
        let inbox = self.inbox;
        std::thread::Builder::new()
            .name("origins".into())
            .spawn(move || running.run(&inbox))?;
        for (number, (source, wanted)) in self.sources.into_iter().zip(wanted).enumerate() {
            let feed = Feed::new(number, self.handle.inbox.clone(), wanted);
            runtime.spawn(source.run(feed));
        }
        Ok(self.handle)
    }
}

impl Origins {
    pub fn status(&self) -> OriginStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the list of allowed origins. Answers about containers follow. Returns false if the resolver has ended.
    pub fn allow(&self, list: Option<AllowedOrigins>) -> bool {
        self.inbox.send(ResolverMessage::Allow(list)).is_ok()
    }

    /// Explains the tags of an origin. Waits up to a second; `None` on timeout.
    pub fn explain(&self, key: &OriginKey<'_>, pid: Option<i32>) -> Option<OriginExplanation> {
        let mut text = String::new();
        key.write(&mut text);
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        let message = ResolverMessage::Explain {
            key: text.into(),
            pid,
            reply,
        };
        self.inbox.try_send(message).ok()?;
        answer.recv_timeout(Duration::from_secs(1)).ok()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    /// No report and no error yet.
    Starting,
    Healthy,
    Failing,
}

/// The verdict about an origin at one moment.
struct Evaluation {
    decision: Decision,
    /// For a sender's own origin: whether it may send.
    admission: Admission,
    /// A source that has not reported yet may change the verdict.
    open: bool,
}

struct Subscription {
    subscribers: Vec<(u16, OriginTicket)>,
    tags: OriginTags,
    admission: Admission,
    entities: Vec<Entity>,
    depends_on_names: bool,
    /// Sources that may still report a missing entity, and the deadline.
    unsettled: Option<(HashSet<usize>, Instant)>,
    unknown: bool,
}

struct Running {
    store: Store,
    processes: Processes,
    inodes: Inodes,
    policy: Policy,
    allowed: Option<AllowedOrigins>,
    workers: Vec<AnswerTo>,
    answers: Vec<Vec<OriginAnswer>>,
    /// By the text of the origin's key.
    origins: HashMap<Arc<str>, Subscription>,
    /// The unsettled ones.
    unsettled: HashSet<Arc<str>>,
    by_ticket: HashMap<(u16, OriginTicket), Arc<str>>,
    health: Vec<Health>,
    wanted: Vec<Arc<Notify>>,
    times: Times,
    status: OriginStatus,
    shared: Arc<Mutex<OriginStatus>>,
}

struct Times {
    refreshed_at: Instant,
    /// When a walk through the control groups may find more.
    retry_at: Option<Instant>,
    next_tick: Instant,
}

/// The facts for one decision.
struct DecisionFacts<'a> {
    store: &'a Store,
    inodes: &'a mut Inodes,
    retry_at: &'a mut Option<Instant>,
}

impl Facts for DecisionFacts<'_> {
    fn tags(&self, entity: &Entity, level: Cardinality) -> Option<Vec<Arc<str>>> {
        self.store.tags(entity, level)
    }

    fn container_of_inode(&mut self, inode: u64) -> Option<Arc<str>> {
        self.inodes.find(inode, Instant::now()).unwrap_or_else(|later| {
            *self.retry_at = Some(self.retry_at.map_or(later, |at| at.min(later)));
            None
        })
    }

    fn container_in_pod(&self, pod: &str, name: &str, init: bool) -> Option<Arc<str>> {
        self.store.container_in_pod(pod, name, init)
    }
}

impl Running {
    fn run(&mut self, inbox: &Receiver<ResolverMessage>) {
        loop {
            let now = Instant::now();
            let wait = self.deadline().saturating_duration_since(now);
            match inbox.recv_timeout(wait) {
                Ok(message) => {
                    self.handle(message);
                    for message in inbox.try_iter().take(ROUND_MAX) {
                        self.handle(message);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.due();
            self.send();
        }
    }

    fn deadline(&self) -> Instant {
        let unsettled = self.unsettled_origins().map(|(_, until)| *until).min();
        [unsettled, self.times.retry_at]
            .into_iter()
            .flatten()
            .fold(self.times.next_tick, Instant::min)
    }

    fn unsettled_origins(&self) -> impl Iterator<Item = &(HashSet<usize>, Instant)> {
        self.unsettled
            .iter()
            .filter_map(|key| self.origins.get(key)?.unsettled.as_ref())
    }

    fn handle(&mut self, message: ResolverMessage) {
        match message {
            ResolverMessage::Lookup(LookupRequest { worker, question }) => match question {
                Question::Processes(pids) => {
                    for pid in pids {
                        self.process(worker, pid);
                    }
                }
                Question::Recheck(pids) => self.recheck(&pids),
                Question::Origins(questions) => {
                    for question in questions {
                        match question {
                            OriginQuestion::Subscribe { ticket, key } => self.subscribe(worker, ticket, &key),
                            OriginQuestion::Unsubscribe { ticket } => self.unsubscribe(worker, ticket),
                        }
                    }
                }
            },
            ResolverMessage::Source(source, event) => self.source(source, event),
            ResolverMessage::Explain { key, pid, reply } => {
                let _ = reply.try_send(self.explain(&key, pid));
            }
            ResolverMessage::Allow(list) => self.allow(list),
        }
    }

    fn process(&mut self, worker: u16, pid: i32) {
        let found = self.processes.look_up(pid, Instant::now());
        count(&mut self.status.processes, found.as_str());
        self.answers[usize::from(worker)].push(OriginAnswer::Process {
            pid,
            found: found.found(),
        });
    }

    fn recheck(&mut self, pids: &[i32]) {
        for &pid in pids {
            let Some(change) = self.processes.recheck(pid, Instant::now()) else {
                continue;
            };
            if change.reused {
                self.status.processes_reused += 1;
            } else {
                self.status.processes_moved += 1;
            }
            // A process may send to sockets of several workers, and only the first worker to ask sees the change.
            for answers in &mut self.answers {
                answers.push(OriginAnswer::Process {
                    pid,
                    found: match &change.container {
                        Some(id) => ProcessContainer::Container(Box::from(&**id)),
                        None => ProcessContainer::NoContainer,
                    },
                });
            }
        }
    }

    fn decide(&mut self, key: &str) -> Decision {
        let mut facts = DecisionFacts {
            store: &self.store,
            inodes: &mut self.inodes,
            retry_at: &mut self.times.retry_at,
        };
        decide(&OriginKey::from_text(key), &self.policy, &mut facts)
    }

    /// The current verdict about an origin, and whether it may improve.
    fn evaluate(&mut self, key: &str) -> Evaluation {
        let mut decision = self.decide(key);
        let mut admission = Admission::Allowed;
        let mut open = decision.missing;
        let parsed = OriginKey::from_text(key);
        if let Some(allowed) = &self.allowed
            && parsed.is_sender_only()
            && !parsed.sender.is_empty()
        {
            let container = Entity::Container(parsed.sender.into());
            let tags = self.store.tags(&container, Cardinality::High);
            admission = match allowed.container(parsed.sender, tags.as_deref()) {
                ListMatch::Entry(_) => Admission::Allowed,
                ListMatch::NoEntry => Admission::NotAllowed,
                ListMatch::TagsUnknown => Admission::Unknown,
            };
            if admission != Admission::Allowed {
                open |= tags.is_none() || self.health.contains(&Health::Starting);
            }
            if !decision.entities.contains(&container) {
                decision.entities.push(container);
            }
        }
        Evaluation {
            decision,
            admission,
            open,
        }
    }

    /// Replaces the list and sends the new verdicts.
    fn allow(&mut self, list: Option<AllowedOrigins>) {
        self.allowed = list;
        let keys: Vec<Arc<str>> = self.origins.keys().cloned().collect();
        for key in keys {
            self.reevaluate(&key);
        }
    }

    fn subscribe(&mut self, worker: u16, ticket: OriginTicket, key: &str) {
        let known = self.origins.get_key_value(key).map(|(key, _)| key.clone());
        let key = known.unwrap_or_else(|| self.add(key));
        self.by_ticket.insert((worker, ticket), key.clone());
        let origin = self.origins.get_mut(&key).expect("just found or added");
        origin.subscribers.push((worker, ticket));
        self.answers[usize::from(worker)].push(OriginAnswer::Tags {
            ticket,
            tags: origin.tags.clone(),
            settled: origin.unsettled.is_none(),
            admission: origin.admission(),
        });
    }

    fn add(&mut self, key: &str) -> Arc<str> {
        let Evaluation {
            decision,
            admission,
            open,
        } = self.evaluate(key);
        let result = if decision.malformed {
            "malformed"
        } else if decision.missing {
            "unknown"
        } else {
            "known"
        };
        count(&mut self.status.origins, result);
        let unsettled = if open { self.refresh_sources() } else { None };
        let key: Arc<str> = key.into();
        if unsettled.is_some() {
            self.unsettled.insert(key.clone());
        }
        let origin = Subscription {
            subscribers: Vec::new(),
            tags: decision.tags.into(),
            admission,
            entities: decision.entities,
            depends_on_names: decision.depends_on_names,
            unsettled,
            unknown: decision.missing,
        };
        self.origins.insert(key.clone(), origin);
        key
    }

    /// Asks sources to look again. Returns those to wait for.
    fn refresh_sources(&mut self) -> Option<(HashSet<usize>, Instant)> {
        let now = Instant::now();
        let may_know: HashSet<usize> = (0..self.health.len())
            .filter(|&source| self.health[source] != Health::Failing)
            .collect();
        if now - self.times.refreshed_at >= REFRESH_INTERVAL {
            self.times.refreshed_at = now;
            for &source in &may_know {
                self.wanted[source].notify_one();
            }
        }
        (!may_know.is_empty()).then_some((may_know, now + UNSETTLED_MAX))
    }

    fn unsubscribe(&mut self, worker: u16, ticket: OriginTicket) {
        let Some(key) = self.by_ticket.remove(&(worker, ticket)) else {
            return;
        };
        if let Some(origin) = self.origins.get_mut(&key) {
            origin
                .subscribers
                .retain(|subscriber| *subscriber != (worker, ticket));
            if origin.subscribers.is_empty() {
                self.unsettled.remove(&key);
                self.origins.remove(&key);
            }
        }
    }

    fn source(&mut self, source: usize, event: SourceEvent) {
        let status = &mut self.status.sources[source];
        let changed = match event {
            SourceEvent::Report(descriptions) => {
                self.health[source] = Health::Healthy;
                status.healthy = true;
                status.last_error = None;
                status.updates += 1;
                self.store.replace(source, descriptions, Instant::now())
            }
            SourceEvent::Failed(error) => {
                if self.health[source] != Health::Failing {
                    tracing::warn!("origins: {} at {}: {error}", status.name, status.place);
                }
                self.health[source] = Health::Failing;
                status.healthy = false;
                status.failures += 1;
                status.last_error = Some(error.to_string());
                HashSet::new()
            }
        };
        for key in &self.unsettled {
            if let Some(origin) = self.origins.get_mut(key)
                && let Some((waiting_for, _)) = &mut origin.unsettled
            {
                waiting_for.remove(&source);
            }
        }
        self.reconsider(&changed, !changed.is_empty());
    }

    /// Decides again about origins that depend on a change, and settles those that no longer wait for a source.
    fn reconsider(&mut self, changed: &HashSet<Entity>, names: bool) {
        let now = Instant::now();
        let affected: Vec<Arc<str>> = self
            .origins
            .iter()
            .filter(|(_, origin)| {
                (names && origin.depends_on_names)
                    || origin.entities.iter().any(|entity| changed.contains(entity))
                    || origin
                        .unsettled
                        .as_ref()
                        .is_some_and(|(waiting_for, until)| waiting_for.is_empty() || now >= *until)
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in affected {
            self.reevaluate(&key);
        }
    }

    /// Decides again about an origin in use, and sends changes to its workers.
    fn reevaluate(&mut self, key: &Arc<str>) {
        let now = Instant::now();
        let Evaluation {
            decision,
            admission,
            open,
        } = self.evaluate(key);
        let origin = self.origins.get_mut(key).expect("it was just there");
        let before = (origin.unsettled.is_some(), origin.admission());
        let waits_on = origin
            .unsettled
            .as_ref()
            .is_some_and(|(waiting_for, until)| !waiting_for.is_empty() && now < *until);
        if !(open && waits_on) {
            origin.unsettled = None;
            self.unsettled.remove(key);
        }
        origin.unknown = decision.missing;
        origin.entities = decision.entities;
        origin.depends_on_names = decision.depends_on_names;
        origin.admission = admission;
        let changed = *origin.tags != *decision.tags;
        if changed {
            origin.tags = decision.tags.into();
            self.status.origins_changed += 1;
        }
        if changed || before != (origin.unsettled.is_some(), origin.admission()) {
            for &(worker, ticket) in &origin.subscribers {
                self.answers[usize::from(worker)].push(OriginAnswer::Tags {
                    ticket,
                    tags: origin.tags.clone(),
                    settled: origin.unsettled.is_none(),
                    admission: origin.admission(),
                });
            }
        }
    }

    fn due(&mut self) {
        let now = Instant::now();
        let names = self.times.retry_at.is_some_and(|at| now >= at);
        if names {
            self.times.retry_at = None;
        }
        let tick = now >= self.times.next_tick;
        let changed = if tick {
            self.times.next_tick = now + TICK;
            self.processes.expire(now);
            self.store.expire(now)
        } else {
            HashSet::new()
        };
        let is_late = self.unsettled_origins().any(|(_, until)| now >= *until);
        if names || !changed.is_empty() || is_late {
            self.reconsider(&changed, names || !changed.is_empty());
        }
        if tick {
            self.publish();
        }
    }

    fn publish(&mut self) {
        self.status.processes_known = self.processes.len() as u64;
        self.status.origins_live = self.origins.len() as u64;
        self.status.origins_unknown = self.origins.values().filter(|origin| origin.unknown).count() as u64;
        self.status.cgroup_walks = self.inodes.walks;
        for (number, source) in self.status.sources.iter_mut().enumerate() {
            source.entities = self.store.len(number) as u64;
        }
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = self.status.clone();
    }

    fn send(&mut self) {
        for (worker, answers) in self.answers.iter_mut().enumerate() {
            if !answers.is_empty() {
                self.workers[worker](std::mem::take(answers));
            }
        }
    }

    fn explain(&mut self, key: &str, pid: Option<i32>) -> OriginExplanation {
        let mut key = OriginKey::from_text(key);
        let found = pid.map(|pid| self.processes.look_up(pid, Instant::now()));
        let container = found.as_ref().and_then(ProcessLookUp::container);
        if let Some(container) = &container {
            key.sender = container;
        }
        let mut text = String::new();
        key.write(&mut text);
        let decision = self.decide(&text);
        let mut steps: Vec<OriginStep> = Vec::new();
        if self.allowed.is_some() && pid.is_none() {
            steps.push(OriginStep {
                means: "allowed_origins".to_owned(),
                what: "it is not applied without a process (--pid)".to_owned(),
                added: Vec::new(),
            });
        }
        steps.extend(decision.steps.into_iter().map(|step| OriginStep {
            means: step.means.to_owned(),
            what: step.what,
            added: step.added.iter().map(ToString::to_string).collect(),
        }));
        OriginExplanation {
            access: found.as_ref().and_then(|found| self.access(found)),
            pid,
            process: found.as_ref().map(ProcessLookUp::to_string),
            container: container.as_deref().map(str::to_owned),
            tags: decision.tags.iter().map(ToString::to_string).collect(),
            steps,
        }
    }
}

impl Running {
    /// Whether a process may send, in words.
    fn access(&self, found: &ProcessLookUp) -> Option<AccessExplanation> {
        let allowed = self.allowed.as_ref()?;
        let word = |allowed, word: &str, who: &str| AccessExplanation {
            allowed,
            why: if allowed {
                format!("{word} is in allowed_origins")
            } else {
                format!("{who}, and {word} is not in allowed_origins")
            },
        };
        let unknown = |who: &str| word(allowed.unknown(), "unknown", who);
        Some(match found {
            ProcessLookUp::NoContainer => {
                word(allowed.no_container(), "no_container", "it is not in a container")
            }
            ProcessLookUp::Failed(_) => unknown("it is unknown"),
            ProcessLookUp::Container(id) => {
                let tags = self.store.tags(&Entity::Container(id.clone()), Cardinality::High);
                match allowed.container(id, tags.as_deref()) {
                    ListMatch::Entry(pattern) => AccessExplanation {
                        allowed: true,
                        why: format!("{pattern} is in allowed_origins"),
                    },
                    ListMatch::NoEntry => AccessExplanation {
                        allowed: false,
                        why: format!(
                            "allowed_origins has neither its id nor any of its tags: {}",
                            tags.unwrap_or_default().join(", ")
                        ),
                    },
                    ListMatch::TagsUnknown => unknown("no source knows its tags"),
                }
            }
        })
    }
}

impl Subscription {
    /// Whether this sender may send, if that is certain.
    fn admission(&self) -> Admission {
        match self.admission {
            Admission::NotAllowed | Admission::Unknown if self.unsettled.is_some() => Admission::Undecided,
            admission => admission,
        }
    }
}

fn count(reasons: &mut BTreeMap<String, u64>, reason: &str) {
    *reasons.entry(reason.to_owned()).or_default() += 1;
}
