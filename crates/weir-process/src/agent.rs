//! The running agent: its parts, start, reload and end.

use std::io;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use weir_aggregate::Merger;
use weir_context::Rules;
use weir_ingest::{CheckpointLink, Command, ListenerSettings, PutState, Report, Sources, WorkerHandle};
use weir_listener::ListenerConfig;
use weir_output::delivery::{Clock, SavedStates};

use crate::access::Access;
use crate::channel::{Channel, StopSignal};
use crate::columns::{ColumnListener, ColumnServer, ColumnSocket};
use crate::continuity;
use crate::hand_over_target::TakenOver;
use crate::health::{self, Watch};
use crate::log::{self, LastFlush};
use crate::outputs::{Feed, Outputs};
use crate::signals::{Reloader, Reread};
use crate::view::{AgentFacts, Course, Senders, View};
use crate::{column_listeners, history, listeners, origins, outputs_runtime, taps, workers};
use weir_admin::history::Recent;
use weir_admin::streams::Streams;
use weir_agent::books::{self, BoundListener};
use weir_agent::budget::{Budget, Share};
use weir_agent::clients::Clients;
use weir_agent::hand_over::{self, HandedListener};
use weir_agent::history::{HistoryFeed, HistoryInbox};
use weir_agent::life::{Resumed, StateSaver};
use weir_agent::pipeline::{Pipeline, Shared};
use weir_agent::rules::Fixed;
use weir_agent::state::{PendingState, Tally};
use weir_agent::usage::{self, Usage};
use weir_status::status::HandOverStatus;
use weir_status::status::Reloaded;
use weir_system::config::Config;
use weir_system::failure::Failure;
use weir_system::sandbox::SandboxStatus;

/// Maximum reports that wait for the pipeline. A batch has at most a few megabytes; workers delay flushes when this is full.
const REPORTS_MAX: usize = 16;

/// Result of a reload.
pub(super) struct ReloadResult {
    /// `None`: there was no need for one.
    pub reloaded: Option<Reloaded>,
    pub level: weir_config::LogLevel,
    /// Whether files must be checked periodically.
    pub watches: bool,
}

/// The running agent.
pub(super) struct Agent {
    pub workers: Mutex<Vec<WorkerHandle>>,
    /// The listeners in the form for another process.
    pub sources: Arc<[HandedListener]>,
    /// Set when the process is asked to stop: a hand-over yields.
    pub stop: StopSignal,
    pub watch: Watch,
    fixed: Fixed,
    pipeline: Mutex<Option<JoinHandle<()>>>,
    /// The runtime of outputs.
    runtime: Mutex<Option<Runtime>>,
    pub view: Arc<View>,
    pub state_saver: StateSaver,
    /// Listeners of columns, until they are served.
    column_sockets: Mutex<Vec<(ColumnSocket, ColumnListener)>>,
}

impl Agent {
    pub fn start(
        config: &Config,
        budget: Budget,
        access: Access,
        planned: Vec<(ListenerConfig, ListenerSettings)>,
        mut bound: listeners::Bound,
        sandbox: SandboxStatus,
        mut resumed: Resumed,
        mut taken: Option<TakenOver>,
    ) -> Result<Agent, Failure> {
        let fixed = Fixed::new(config);
        let (rules, runtime) = (rules(&fixed, config)?, outputs_runtime()?);
        let summed_up = resumed.outputs();
        let (life, tally) = continuity::tally(&mut resumed, config, &fixed);
        let outputs = start_outputs(config, &budget, &fixed, &runtime, summed_up.clone(), &resumed)?;
        let (reports, inbox) = std::sync::mpsc::sync_channel(REPORTS_MAX);
        let gathered = Gathered::new(config);
        let streams = Streams::default();
        let recent = recent(&budget, streams.clone());
        let (history_feed, history_batches) = history_feed(recent.as_ref(), &budget, config);
        let outlets = (&outputs, history_feed);
        let (pipeline, runs) = gathered.pipeline(inbox, outlets, config, &access, &bound.listeners, tally)?;
        let files = health::socket_files(&bound.of_workers, planned.iter().map(|(listener, _)| listener));
        let resolver = origins::resolver(config);
        let checkpoints = continuity::checkpoints(&mut resumed, &life, &budget);
        let sources = sources(taken.as_mut(), &planned, &mut bound, checkpoints);
        let workers = workers::Start {
            config,
            budget: &budget,
            listeners: &planned,
            rules: &rules,
            resolver: resolver.as_ref(),
            outputs: &outputs,
            reports,
            agent: resumed.agent(),
            saved: resumed.buckets(&life),
        }
        .workers(sources)?;
        wait_for_workers(taken.as_ref(), &gathered.shared)?;
        let (summary, before) = taken.map(|taken| taken.running(recent.is_some())).unzip();
        let watch = Watch::start(&workers, runs, files, bound.listeners.len())
            .map_err(|error| Failure::thread(&error))?;
        let start_origins = |resolver| origins::start(resolver, &workers, runtime.handle());
        let origins = resolver.map(start_origins).transpose()?;
        let (columns, column_sockets) =
            column_listeners::prepare(&mut bound, &planned, &workers, &budget, resumed.saved_payloads())?;
        let rules = Arc::new(Mutex::new(rules));
        let tap_listeners = listeners::tap_listeners(&planned, &bound.listeners);
        let taps = taps::taps(
            &budget,
            streams,
            &workers,
            tap_listeners.clone(),
            (origins.clone(), rules.clone()),
            columns.as_ref(),
        );
        let (state_saver, state, earlier) = resumed.started(&life, &summed_up);
        let view = Arc::new(View {
            senders: Senders {
                origins,
                usage: gathered.usage,
                clients: gathered.clients,
                access,
            },
            columns,
            tap_listeners,
            rules,
            taps,
            shared: gathered.shared,
            last_flush: gathered.last_flush,
            health: watch.health(),
            listeners: bound.listeners,
            outputs,
            recent: recent.clone(),
            facts: AgentFacts {
                sandbox,
                state,
                failures: state_saver.failures(),
                earlier,
                ..AgentFacts::of(config, workers.len(), budget)
            },
            course: Course::after(summary.map(HandOverStatus::from).unwrap_or_default()),
        });
        start_history(recent.zip(history_batches), &view, before.flatten())?;
        view.course.life.run();
        Ok(Agent {
            workers: Mutex::new(workers),
            sources: bound.sources.into(),
            stop: StopSignal::new().map_err(|error| Failure::runtime(error.to_string()))?,
            watch,
            fixed,
            pipeline: Mutex::new(Some(pipeline)),
            runtime: Mutex::new(Some(runtime)),
            view,
            state_saver,
            column_sockets: Mutex::new(column_sockets),
        })
    }

    /// The listeners of columns, once. For the runtime that serves them.
    pub fn column_servers(&self) -> Result<Vec<ColumnServer>, Failure> {
        let mut sockets = self.column_sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let made = sockets.drain(..).map(|(socket, listener)| {
            let address = listener.address.clone();
            ColumnServer::new(socket, listener)
                .map_err(|error| Failure::runtime(format!("{address} cannot be served: {error}")))
        });
        made.collect()
    }

    /// The workers' progress, readable without their help.
    pub fn progress(&self) -> Vec<Arc<weir_ingest::Progress>> {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().map(WorkerHandle::progress).collect()
    }

    /// Reloads the configuration, or only changed keys and tokens. Blocks.
    pub fn reload(&self, reloader: &Mutex<Reloader>, what: Reread) -> ReloadResult {
        let mut reloader = reloader.lock().unwrap_or_else(PoisonError::into_inner);
        if what == Reread::Everything {
            self.view.outputs.reopen();
        }
        let reloaded = (what == Reread::Everything || reloader.secrets_changed())
            .then(|| reloader.reload_and_log(what, |loaded| self.apply(&loaded.config)));
        *self
            .view
            .course
            .reload
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = reloader.outcome();
        ReloadResult {
            reloaded,
            level: reloader.current().config.running.log_level,
            watches: reloader.has_secret_files(),
        }
    }

    /// Applies everything that a reload may change: outputs, names, tags, filters and rules, allowed senders, keys and certificates.
    /// Contexts, open buckets and open connections stay. `Err`: the errors or the reasons for a restart; then nothing has changed.
    fn apply(&self, config: &Config) -> Result<(), Vec<String>> {
        let rules = self.fixed.rules(config)?;
        let renewal = self.view.senders.access.read_again(config)?;
        let outputs = self.view.outputs.prepare(config)?;
        self.view.senders.access.renew(renewal);
        if let Some(origins) = &self.view.senders.origins {
            // The resolver decides about containers.
            origins.allow(config.listeners.allowed_origins());
        }
        let list = Access::admission_list(config);
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        for worker in workers.iter() {
            worker.send(Command::Admission(list));
        }
        for worker in workers.iter() {
            worker.send(Command::Rules(Box::new(rules.clone())));
        }
        if let Some(outputs) = outputs {
            self.view.outputs.apply(outputs, &workers);
        }
        *self.view.rules.lock().unwrap_or_else(PoisonError::into_inner) = rules;
        Ok(())
    }

    /// Another process takes over: nothing here may end normally.
    pub fn abandon(&self) {
        if let Some(runtime) = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take() {
            runtime.shutdown_background();
        }
    }

    /// Lets outputs deliver while packets still arrive; then reads the kernel's queues, flushes and delivers. Fails if an output lost data.
    /// Does nothing if another process has taken over.
    pub fn stop(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        self.stop.set();
        if self.view.course.life.stop().is_err() {
            self.abandon();
            return Ok(());
        }
        let settled = self.view.outputs.settle(begun.elapsed());
        // Before the socket files are removed; otherwise it would create them again.
        self.watch.end();
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        self.view.shared.expect_last();
        let pending_state = self.state_saver.begin(self.view.shared.contexts());
        let pending_state = pending_state.map(|pending_state| Arc::new(Mutex::new(pending_state)));
        for (worker, number) in workers.iter().zip(0..) {
            match &pending_state {
                Some(pending_state) => worker.stop_and_keep(put_pieces(pending_state, number)),
                None => worker.stop(),
            }
        }
        if pending_state.is_some() {
            self.view.outputs.keep_state();
        }
        let ended: Vec<_> = workers.drain(..).map(WorkerHandle::join).collect();
        if let Some(taps) = &self.view.taps {
            taps.finish();
        }
        let panicked = ended.iter().filter(|ended| ended.is_err()).count();
        let mut pipeline = self.pipeline.lock().unwrap_or_else(PoisonError::into_inner);
        let merged_all = pipeline.take().is_none_or(|pipeline| pipeline.join().is_ok());
        self.view.outputs.finish(settled, begun.elapsed());
        let status = self.view.snapshot();
        for line in log::final_books(&status) {
            tracing::info!("{line}");
        }
        for imbalance in status.imbalances() {
            tracing::error!("the books do not balance: {imbalance}");
        }
        // A normal drop would wait for name look-ups that never return.
        if let Some(runtime) = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take() {
            runtime.shutdown_background();
        }
        let mut lost = books::lost_at_the_end(&self.view.own());
        if let Some(pending_state) = pending_state {
            let saved = self.view.shared.take_last();
            let mut pending_state = pending_state.lock().unwrap_or_else(PoisonError::into_inner);
            let left = self.state_saver.save(
                &mut pending_state,
                &saved,
                self.view.outputs.take_state(),
                status,
                continuity::now_ms(),
            );
            lost.extend(left.err().map(|left| left.to_string()));
        } else {
            self.state_saver.end(false);
        }
        if panicked > 0 {
            lost.push(format!(
                "the unflushed data of {panicked} ingest workers that panicked"
            ));
        }
        if !merged_all {
            lost.push("everything after the thread that merges buckets panicked".into());
        }
        if !lost.is_empty() {
            let lost = lost.join(", ");
            return Err(Failure::runtime(format!(
                "lost at the end, because it was not delivered: {lost}"
            )));
        }
        Ok(())
    }
}

/// The way of a worker's open bucket into the state for the next process.
fn put_pieces(pending_state: &Arc<Mutex<PendingState>>, worker: u16) -> PutState {
    let pending_state = pending_state.clone();
    Box::new(move |piece| {
        let mut pending_state = pending_state.lock().unwrap_or_else(PoisonError::into_inner);
        pending_state.piece(worker, piece);
        Ok(())
    })
}

fn rules(fixed: &Fixed, config: &Config) -> Result<Rules, Failure> {
    let rules = fixed.rules(config);
    rules.map_err(|errors| Failure::usage(errors.join("\n")))
}

/// After a hand-over: the other process ends once this one says that it reads.
fn wait_for_workers(taken: Option<&TakenOver>, shared: &Shared) -> Result<(), Failure> {
    match taken.is_none() || shared.wait_for_workers(hand_over::STEP_MAX) {
        true => Ok(()),
        false => Err(Failure::runtime("--take-over: the workers did not start in time")),
    }
}

fn start_outputs(
    config: &Config,
    budget: &Budget,
    fixed: &Fixed,
    runtime: &Runtime,
    saved: Arc<SavedStates>,
    resumed: &Resumed,
) -> Result<Arc<Outputs>, Failure> {
    let (handle, publisher) = (runtime.handle().clone(), continuity::publisher(resumed)?);
    let tally = resumed.made_tally();
    Outputs::start(config, budget, &fixed.expansion, handle, saved, publisher, tally)
}

/// The way of batches to the history, if there is one.
fn history_feed(
    recent: Option<&Arc<Recent>>,
    budget: &Budget,
    config: &Config,
) -> (Option<HistoryFeed>, Option<HistoryInbox>) {
    let waiting = budget.batches_of_output(config.outputs.len());
    let patience = weir_agent::history::patience(Duration::from_secs(config.aggregation.bucket_seconds()));
    recent
        .map(|recent| weir_agent::history::feed(recent, waiting, patience))
        .unzip()
}

/// `before`: where the history of the previous process comes from.
fn start_history(
    recent: Option<(Arc<Recent>, HistoryInbox)>,
    view: &Arc<View>,
    before: Option<Channel>,
) -> Result<(), Failure> {
    let Some((recent, inbox)) = recent else {
        return Ok(());
    };
    history::start(recent, inbox, view.clone(), before).map_err(|error| Failure::thread(&error))
}

/// The pipeline's results for the status.
struct Gathered {
    shared: Arc<Shared>,
    last_flush: Arc<Mutex<LastFlush>>,
    clients: Arc<Clients>,
    usage: Arc<Usage>,
}

impl Gathered {
    fn new(config: &Config) -> Self {
        Gathered {
            shared: Arc::default(),
            last_flush: Arc::default(),
            clients: Arc::default(),
            usage: Arc::new(Usage::new(usage::Settings {
                workers: config.resources.workers,
                bucket_seconds: config.aggregation.bucket_seconds(),
                tag_values_alert: config.resources.tag_values_alert,
            })),
        }
    }

    fn pipeline(
        &self,
        reports: Receiver<Report>,
        (outputs, history): (&Arc<Outputs>, Option<HistoryFeed>),
        config: &Config,
        access: &Access,
        listeners: &[BoundListener],
        tally: Option<Arc<Tally>>,
    ) -> Result<(JoinHandle<()>, Weak<()>), Failure> {
        let feed = Feed::new(outputs.clone(), history, self.clients.clone());
        let log = log::flushes(
            config,
            access.clone(),
            listeners.to_vec(),
            self.last_flush.clone(),
        );
        let pipeline = Pipeline::new(
            reports,
            Merger::new(config.resources.workers).with_batch_bytes(feed.batch_bytes()),
            feed,
            tally,
            self.shared.clone(),
            log::bad_input(self.shared.clone(), listeners),
            Box::new(log),
            log::usage(self.usage.clone()),
            Clock::system(),
        );
        start_pipeline(pipeline).map_err(|error| Failure::thread(&error))
    }
}

/// Starts its thread. While that runs, the other end is alive.
fn start_pipeline(pipeline: Pipeline<Feed>) -> io::Result<(JoinHandle<()>, Weak<()>)> {
    let running = Arc::new(());
    let runs = Arc::downgrade(&running);
    let thread = std::thread::Builder::new().name("pipeline".into());
    let thread = thread.spawn(move || {
        let _running = running;
        weir_system::sys::let_workers_go_first();
        pipeline.run();
    })?;
    Ok((thread, runs))
}

/// The inputs of each worker, and the destination of its checkpoints.
fn sources(
    taken: Option<&mut TakenOver>,
    planned: &[(ListenerConfig, ListenerSettings)],
    bound: &mut listeners::Bound,
    checkpoints: Vec<CheckpointLink>,
) -> Vec<Sources> {
    let sockets = std::mem::take(&mut bound.of_workers);
    let connections = taken.map(|taken| taken.connections(planned, &sockets));
    let mut connections = connections.unwrap_or_default().into_iter();
    let mut checkpoints = checkpoints.into_iter();
    let of_worker = |sockets| Sources {
        sockets,
        connections: connections.next().unwrap_or_default(),
        checkpoints: checkpoints.next(),
    };
    sockets.into_iter().map(of_worker).collect()
}

/// The last minutes, within their share of the memory.
fn recent(budget: &Budget, streams: Streams) -> Option<Arc<Recent>> {
    let bytes = budget.share(Share::History);
    (bytes > 0).then(|| Arc::new(Recent::new(bytes as usize, streams)))
}
