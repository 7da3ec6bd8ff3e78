//! `weir run`: combines sockets, workers, pipeline, outputs and signals.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use weir_ingest::{Command, ListenerSettings, Sources, WorkerHandle};
use weir_listener::ListenerConfig;

use crate::admin::caller::Hosts;
use crate::admin::counters::PipelineCounter;
use crate::admin::status::HandOverStatus;
use crate::admin::{AdminServer, ConnectionLimits};
use crate::budget::{Budget, Share};
use crate::config::{Config, Inputs, Loaded};
use crate::failure::Failure;
use crate::hand_over::starter::Starter;
use crate::hand_over::{self, SocketsOf};
use crate::history::Recent;
use crate::logging::Logging;
use crate::notify::Notify;
use crate::sandbox::{self, SandboxStatus};
use crate::signals::{Asked, Reloaded, Reloader, Request, Reread, Signals};
use crate::streams::Streams;

mod access;
mod books;
mod clients;
mod delivery;
mod division;
mod explain;
mod giving;
mod health;
mod history;
mod kept;
mod ledger;
mod listeners;
mod log;
mod merge;
mod origins;
mod outputs;
mod pipeline;
mod relay;
mod resume;
mod rules;
mod scrape;
mod taking;
mod taps;
mod told;
mod usage;
mod view;
mod workers;

use access::Access;
use clients::Clients;
use giving::Giver;
use health::Watch;
use log::LastFlush;
use outputs::{Feed, Outputs};
use pipeline::{Pipeline, Shared};
use resume::{Keeper, Resumed};
use rules::Fixed;
use taking::{Taken, Taking};
use usage::Usage;
use view::View;

/// Maximum reports that wait for the pipeline. A batch has at most a few megabytes; workers delay flushes when this is full.
const REPORTS_MAX: usize = 16;

/// Maximum requests for a reload that wait.
const RELOADS_MAX: usize = 4;

pub use merge::{open as open_log, run as merge};
pub use taking::upgrade;

/// Runs until a signal ends it, or another process takes over. `inputs` is kept for reloads. With `take_over` it replaces the process that
/// uses the state directory, if there is one.
pub fn run(loaded: Loaded, inputs: Inputs, take_over: bool) -> Result<(), Failure> {
    let mut logging = Logging::new(loaded.config.running.log_level);
    // Before anything opens a descriptor that could take one of their numbers.
    let passed = kept::Passed::of_environment()?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    for note in &loaded.notes {
        tracing::info!("{note}");
    }
    if let Err(error) = crate::sys::stdio::break_closed_output() {
        tracing::warn!("standard output is closed and cannot be replaced: {error}");
    }
    // Admin and signals need little CPU, so this thread serves both. Outputs have a separate runtime.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(1))
        .build()
        .map_err(|error| Failure::runtime(format!("the control plane cannot be started: {error}")))?;
    let result = control(
        &runtime,
        &mut logging,
        Reloader::new(inputs, loaded),
        passed,
        take_over,
    );
    // A task that hangs must not delay the end.
    runtime.shutdown_background();
    result
}

/// Starts the agent, serves its admin address and its signals, and stops it.
fn control(
    runtime: &tokio::runtime::Runtime,
    logging: &mut Logging,
    mut reloader: Reloader,
    mut passed: kept::Passed,
    take_over: bool,
) -> Result<(), Failure> {
    let config = reloader.current().config.clone();
    let mut taking = if take_over { Taking::begin(&config)? } else { None };
    if let Some(taking) = &mut taking {
        passed = taking.sockets();
    }
    let (signals, admin) = runtime.block_on(async {
        let signals = Signals::install()
            .map_err(|error| Failure::runtime(format!("signals cannot be received: {error}")))?;
        let admin = match config.addresses.admin {
            None => None,
            Some(address) => {
                let passed = taking.as_mut().and_then(|taking| taking.admin(address));
                let bound = match passed {
                    Some(listener) => AdminServer::of_process(listener),
                    None => AdminServer::bind(address).await,
                };
                Some(bound.map_err(|error| {
                    let remedy = "--admin sets another address, or off";
                    Failure::runtime(format!("admin: {address} cannot be bound: {error}; {remedy}"))
                })?)
            }
        };
        Ok::<_, Failure>((signals, admin))
    })?;
    let notify = Arc::new(Notify::of_environment());
    let mut resumed = match &taking {
        Some(_) => Resumed::default(),
        None => Resumed::look(&config)?,
    };
    let starter = starter(&config);
    let budget = Budget::new(&config);
    let access = Access::new(&config, &budget)?;
    let planned = listeners::plan(&config, &access);
    let mut bound = listeners::bind(&planned, config.resources.workers, passed, &notify)?;
    // While this is the only thread, and after the last code that needs the dropped rights.
    let sandbox = sandbox::enter(reloader.current(), reloader.file().as_deref());
    reloader.sandboxed(sandbox.clone());
    logging
        .write()
        .map_err(|error| Failure::runtime(format!("the log's thread cannot be started: {error}")))?;
    let mut taken = taking.map(|taking| taking.receive(&config)).transpose()?;
    if let Some(taken) = &mut taken {
        resumed = std::mem::take(&mut taken.resumed);
        bound.own();
    }
    bound.count_drops_from(resumed.drops());
    // Outside of the runtime: an agent that fails to start drops its own runtime.
    let agent = Agent::start(&config, budget, access, planned, bound, sandbox, resumed, taken)?;
    let agent = Arc::new(agent);
    let (taken_over, mut handed_over) = tokio::sync::mpsc::channel(1);
    let shared = admin.as_ref().map(AdminServer::share).transpose();
    let giver = Arc::new(Giver {
        agent: agent.clone(),
        notify: notify.clone(),
        admin: shared.map_err(|error| Failure::runtime(format!("admin: {error}")))?,
        starter,
        asked: Mutex::default(),
        taken_over,
    });
    if let Some(path) = &config.running.state_path
        && let Err(error) = giver.listen(path)
    {
        tracing::warn!(
            "state_path: {}: another process cannot take over: {error}",
            path.display()
        );
    }
    let upgrade = move || giver.upgrade(None);
    let served = serve(agent.clone(), admin, signals, logging, reloader, notify, upgrade);
    runtime.block_on(async {
        tokio::select! {
            served = served => served,
            _ = handed_over.recv() => {
                agent.abandon();
                Ok(())
            }
        }
    })
}

/// The helper that starts the program on disk, if another process can take over.
fn starter(config: &Config) -> Option<Starter> {
    config.running.state_path.as_ref()?;
    let started = Starter::start();
    if let Err(error) = &started {
        tracing::warn!("`weir upgrade` and SIGUSR2 cannot start the program on disk: {error}");
    }
    started.ok()
}

async fn serve(
    agent: Arc<Agent>,
    admin: Option<AdminServer>,
    mut signals: Signals,
    logging: &Logging,
    reloader: Reloader,
    notify: Arc<Notify>,
    upgrade: impl Fn(),
) -> Result<(), Failure> {
    let view = agent.view.clone();
    let keeping = tokio::spawn(keep_books(agent.clone()));
    let telling = tokio::spawn(told::tell_of_agent(
        notify.clone(),
        view.clone(),
        agent.progress(),
    ));
    let (sender, mut reloads) = tokio::sync::mpsc::channel(RELOADS_MAX);
    let _ = view.reloads.set(sender);
    if let Some(server) = admin {
        let address = server.address();
        tracing::info!("admin on http://{address}");
        tracing::info!("{}", banner(reloader.current(), address));
        if !address.ip().to_canonical().is_loopback() {
            tracing::warn!(
                "admin: {address} is not loopback: anyone who reaches it can read metrics, status and profiles, see messages, and trigger a reload"
            );
        }
        let hosts = Hosts::new(&reloader.current().config.running.admin_hosts);
        tokio::spawn(server.serve(view.clone(), hosts, ConnectionLimits::default()));
    }
    let reloader = Arc::new(Mutex::new(reloader));
    let mut watches = true;
    let signal = loop {
        let (answer, what) = match signals.until_asked(&mut reloads, watches).await {
            Asked::Stop(signal) => break signal,
            Asked::Reload(answer) => (answer, Reread::Everything),
            Asked::Nothing => (None, Reread::Secrets),
            Asked::Upgrade => {
                upgrade();
                continue;
            }
        };
        if what == Reread::Everything {
            notify.reloading();
        }
        let (agent, reloader) = (agent.clone(), reloader.clone());
        // A reload reads files and replaces outputs: status requests must not wait for that.
        let reload = tokio::task::spawn_blocking(move || agent.reload(&reloader, what));
        let reloaded = reload.await;
        if what == Reread::Everything {
            notify.ready();
        }
        let Ok(done) = reloaded else {
            tracing::error!("a reload failed: it panicked");
            continue;
        };
        logging.set_level(done.level);
        watches = done.watches;
        if let (Some(answer), Some(reloaded)) = (answer, done.reloaded) {
            // The requester may have left.
            let _ = answer.send(reloaded);
        }
    };
    tracing::info!(
        "{signal}: outputs deliver their queues; then received packets are read, flushed and delivered"
    );
    view.stopping.store(true, Ordering::Release);
    telling.abort();
    keeping.abort();
    notify.stopping();
    let stopped = tokio::task::spawn_blocking(move || agent.stop());
    tokio::select! {
        stopped = stopped => {
            stopped.map_err(|error| Failure::runtime(format!("the agent could not be stopped: {error}")))?
        }
        signal = second_stop(&mut signals) => {
            Err(Failure::runtime(format!("{signal} again: stopped at once, undelivered data is lost")))
        }
    }
}

/// Interval of saving the books in case the process is killed.
const BOOKS_INTERVAL: Duration = Duration::from_secs(1);

/// Logs once if saving fails.
async fn keep_books(agent: Arc<Agent>) {
    let (mut failed, mut flushed_at) = (false, 0);
    while agent.keeper.keeps() {
        let keeping = agent.clone();
        let kept = tokio::task::spawn_blocking(move || {
            // The cumulative state changes with each flush.
            let now = keeping.view.shared.lock().counts[PipelineCounter::FlushedAt];
            if now != flushed_at {
                keeping.keeper.keep_sums(keeping.view.outputs.sums())?;
            }
            keeping.keeper.keep_books(keeping.view.snapshot())?;
            Ok::<_, std::io::Error>(now)
        });
        match kept.await {
            Ok(Ok(now)) => flushed_at = now,
            Ok(Err(error)) if !std::mem::replace(&mut failed, true) => tracing::warn!(
                "state_path: books and sums cannot be saved, so a kill would go unnoticed: {error}"
            ),
            _ => {}
        }
        tokio::time::sleep(BOOKS_INTERVAL).await;
    }
}

/// The program's version and its addresses.
fn banner(loaded: &Loaded, address: SocketAddr) -> String {
    let config = &loaded.config;
    let outputs: Vec<&str> = config.outputs.iter().map(|output| output.name.as_str()).collect();
    let outputs = match outputs.as_slice() {
        [] => "no output".to_owned(),
        names => format!("outputs {}", names.join(", ")),
    };
    let memory = weir_units::show_size(config.resources.memory);
    let version = crate::version::VERSION;
    format!("weir {version}: {outputs}; {memory} of memory; open http://{address}/ to see metrics arrive")
}

/// A program that stops others signals both the process and its group, so two signals arrive together and mean one. A second signal after
/// this time is meant.
const SECOND_STOP_AFTER: Duration = Duration::from_secs(1);

async fn second_stop(signals: &mut Signals) -> &'static str {
    let first = Instant::now();
    loop {
        match signals.next().await {
            Request::Stop(name) if first.elapsed() >= SECOND_STOP_AFTER => return name,
            Request::Stop(name) => {
                tracing::info!(
                    "{name} again within a second: counted as one request; another one stops at once"
                );
            }
            Request::Reload | Request::Upgrade => {}
        }
    }
}

/// Result of a reload.
struct Done {
    /// `None`: there was no need for one.
    reloaded: Option<Reloaded>,
    level: weir_config::LogLevel,
    /// Whether files must be checked periodically.
    watches: bool,
}

/// The running agent.
struct Agent {
    workers: Mutex<Vec<WorkerHandle>>,
    /// The listeners in the form for another process.
    sources: Arc<[SocketsOf]>,
    /// Held while the process ends, or another one takes over.
    leaving: Mutex<()>,
    watch: Watch,
    fixed: Fixed,
    pipeline: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// The runtime of outputs.
    runtime: Mutex<Option<tokio::runtime::Runtime>>,
    view: Arc<View>,
    keeper: Keeper,
}

impl Agent {
    fn start(
        config: &Config,
        budget: Budget,
        access: Access,
        planned: Vec<(ListenerConfig, ListenerSettings)>,
        bound: listeners::Bound,
        sandbox: SandboxStatus,
        mut resumed: Resumed,
        mut taken: Option<Taken>,
    ) -> Result<Agent, Failure> {
        let fixed = Fixed::new(config);
        let rules = fixed
            .rules(config)
            .map_err(|faults| Failure::usage(faults.join("\n")))?;
        let runtime = outputs_runtime()?;
        let summed_up = resumed.outputs();
        let outputs = Arc::new(Outputs::start(
            config,
            &budget,
            &fixed.expansion,
            runtime.handle().clone(),
            summed_up.clone(),
            resumed.publisher().map_err(Failure::runtime)?,
        )?);

        let (reports, inbox) = std::sync::mpsc::sync_channel(REPORTS_MAX);
        let shared = Arc::new(Shared::default());
        let last_flush = Arc::new(Mutex::new(LastFlush::default()));
        let clients = Arc::new(Clients::default());
        let usage = Arc::new(Usage::new(usage::Settings {
            workers: config.resources.workers,
            bucket_seconds: config.aggregation.bucket_seconds(),
            tag_values_alert: config.resources.tag_values_alert,
        }));
        let streams = Streams::default();
        let recent = recent(&budget, streams.clone());
        let (history_feed, history_batches) = recent.as_ref().map(history::feed).unzip();
        let pipeline = Pipeline::new(
            inbox,
            config.resources.workers,
            Feed::new(outputs.clone(), history_feed, clients.clone()),
            shared.clone(),
            log::bad_input(shared.clone(), &bound.listeners),
            log::flushes(
                config,
                access.clone(),
                bound.listeners.clone(),
                last_flush.clone(),
            ),
            Box::new({
                let usage = usage.clone();
                move |worker, summary| {
                    for line in usage.take(worker, summary, unix_now()) {
                        tracing::warn!("{line}");
                    }
                }
            }),
        );
        let running = Arc::new(());
        let pipeline_runs = Arc::downgrade(&running);
        let pipeline = std::thread::Builder::new()
            .name("pipeline".into())
            .spawn(move || {
                let _running = running;
                pipeline.run();
            })
            .map_err(|error| Failure::runtime(format!("a thread cannot be started: {error}")))?;

        let files = health::socket_files(&bound.of_workers, planned.iter().map(|(listener, _)| listener));
        let resolver = origins::resolver(config);
        let connections = taken
            .as_mut()
            .map(|taken| taken.connections(&planned, &bound.of_workers));
        let mut connections = connections.unwrap_or_default().into_iter();
        let mut checkpoints = resumed.checkpoints(&fixed, config.resources.workers).into_iter();
        let sources = bound.of_workers.into_iter().map(|sockets| Sources {
            sockets,
            connections: connections.next().unwrap_or_default(),
            checkpoints: checkpoints.next(),
        });
        let workers = workers::Start {
            config,
            budget: &budget,
            listeners: &planned,
            rules: &rules,
            resolver: resolver.as_ref(),
            outputs: &outputs,
            reports,
            agent: resumed.agent(),
            saved: resumed.buckets(&fixed, config),
        }
        .workers(sources.collect())?;
        if taken.is_some() && !shared.wait_for_workers(hand_over::STEP_MAX) {
            return Err(Failure::runtime("--take-over: the workers did not start in time"));
        }
        let (told, before) = taken.map(|taken| taken.running(recent.is_some())).unzip();
        let watch = Watch::start(&workers, pipeline_runs, files, bound.listeners.len())
            .map_err(|error| Failure::runtime(format!("a thread cannot be started: {error}")))?;
        let origins = match resolver {
            Some(resolver) => Some(origins::start(resolver, &workers, runtime.handle())?),
            None => None,
        };
        let rules = Arc::new(Mutex::new(rules));
        let heard = listeners::heard(&planned, &bound.listeners);
        let taps = taps::taps(
            &budget,
            streams,
            &workers,
            heard.clone(),
            origins.clone(),
            rules.clone(),
        );
        let (keeper, state, earlier) = resumed.started(&fixed, &summed_up);
        let view = View {
            state,
            earlier,
            origins,
            usage,
            clients,
            access,
            sandbox,
            heard,
            rules,
            taps,
            shared,
            last_flush,
            workers: workers.len(),
            health: watch.health(),
            listeners: bound.listeners,
            outputs,
            recent: recent.clone(),
            hostname: config.names.hostname.clone(),
            budget,
            bucket_seconds: config.aggregation.bucket_seconds(),
            started_at: unix_now(),
            stopping: AtomicBool::new(false),
            reloads: OnceLock::new(),
            reload: Mutex::default(),
            hand_over: Mutex::new(told.map(HandOverStatus::from).unwrap_or_default()),
        };
        let view = Arc::new(view);
        if let (Some(recent), Some(batches)) = (recent, history_batches) {
            let expansion = Arc::new(fixed.expansion.clone());
            history::start(recent, batches, expansion, view.clone(), before.flatten())
                .map_err(|error| Failure::runtime(format!("a thread cannot be started: {error}")))?;
        }
        Ok(Agent {
            workers: Mutex::new(workers),
            sources: bound.sources.into(),
            leaving: Mutex::default(),
            watch,
            fixed,
            pipeline: Mutex::new(Some(pipeline)),
            runtime: Mutex::new(Some(runtime)),
            view,
            keeper,
        })
    }

    /// The workers' progress, readable without their help.
    fn progress(&self) -> Vec<Arc<weir_ingest::Progress>> {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().map(WorkerHandle::progress).collect()
    }

    /// Reloads the configuration, or only changed keys and tokens. Blocks.
    fn reload(&self, reloader: &Mutex<Reloader>, what: Reread) -> Done {
        let mut reloader = reloader.lock().unwrap_or_else(PoisonError::into_inner);
        if what == Reread::Everything {
            self.view.outputs.reopen();
        }
        let reloaded = (what == Reread::Everything || reloader.secrets_changed())
            .then(|| reloader.reload_and_log(what, |loaded| self.apply(&loaded.config)));
        *self.view.reload.lock().unwrap_or_else(PoisonError::into_inner) = reloader.outcome();
        Done {
            reloaded,
            level: reloader.current().config.running.log_level,
            watches: reloader.has_secret_files(),
        }
    }

    /// Applies everything that a reload may change: outputs, names, tags, filters and rules, allowed senders, keys and certificates.
    /// Contexts, open buckets and open connections stay. `Err`: the errors or the reasons for a restart; then nothing has changed.
    fn apply(&self, config: &Config) -> Result<(), Vec<String>> {
        let rules = self.fixed.rules(config)?;
        let renewal = self.view.access.read_again(config)?;
        let outputs = self.view.outputs.prepare(config)?;
        self.view.access.renew(renewal);
        if let Some(origins) = &self.view.origins {
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
    fn abandon(&self) {
        if let Some(runtime) = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take() {
            runtime.shutdown_background();
        }
    }

    /// Lets outputs deliver while packets still arrive; then reads the kernel's queues, flushes and delivers. Fails if an output lost data.
    fn stop(&self) -> Result<(), Failure> {
        let _alone = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let settled = self.view.outputs.settle();
        // Before the socket files are removed; otherwise it would create them again.
        self.watch.end();
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let leaving = self.keeper.begin();
        for worker in workers.iter() {
            match leaving {
                Some(_) => worker.stop_and_keep(),
                None => worker.stop(),
            }
        }
        if leaving.is_some() {
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
        if let Some(leaving) = leaving {
            let saved = self.view.shared.forget_saved();
            let left = self
                .keeper
                .leave(leaving, saved, self.view.outputs.take_state(), status);
            lost.extend(left.err());
        }
        self.keeper.end();
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
                "lost at the end, because it could not be delivered: {lost}"
            )));
        }
        Ok(())
    }
}

/// The last minutes, within their share of the memory.
fn recent(budget: &Budget, streams: Streams) -> Option<Arc<Recent>> {
    let bytes = budget.share(Share::History);
    (bytes > 0).then(|| Arc::new(Recent::new(bytes as usize, streams)))
}

/// One thread: outputs wait more than they work.
fn outputs_runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("outputs")
        .enable_all()
        .build()
        .map_err(|error| Failure::runtime(format!("the outputs' runtime cannot be started: {error}")))
}

fn unix_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
