//! `weir run`: the world of the running agent. It gives `weir-agent` threads, sockets, files, clocks and randomness, and connects workers, pipeline,
//! outputs, signals, the admin server, listeners of columns ([`columns`]), and the other process of a hand-over.
//!
//! It decides as little as possible: what can be decided without the world is in `weir-agent`, where a simulation meets it.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::signals::{Reloader, Request, Reread, SignalRequest, Signals};
use crate::starter::Starter;
use weir_admin::caller::Hosts;
use weir_admin::{AdminServer, Callers, ConnectionLimits};
use weir_agent::budget::Budget;
use weir_agent::life::Resumed;
use weir_agent::state::{PutSums, StateDir};
use weir_system::config::{Config, Inputs, Loaded};
use weir_system::failure::Failure;
use weir_system::logging::Logging;
use weir_system::notify::{Notify, publish_admin};
use weir_system::sandbox;

mod access;
mod agent;
mod channel;
mod column_listeners;
pub mod columns;
pub mod continuity;
mod delivery;
mod division;
mod ending;
mod explain;
mod hand_over_source;
mod hand_over_target;
pub mod health;
mod history;
mod kept;
mod listeners;
mod log;
mod origins;
pub mod outputs;
mod relay;
pub mod reporting;
pub mod scrape;
pub mod signals;
pub mod starter;
mod state_dir;
mod taps;
mod view;
mod workers;

use access::Access;
use agent::Agent;
use hand_over_source::HandOverSource;
use hand_over_target::{Begun, HandOverTarget, Received};

/// Maximum requests for a reload that wait.
const RELOADS_MAX: usize = 4;

pub use hand_over_target::upgrade;

/// Runs until a signal ends it, or another process takes over. `inputs` is kept for reloads. With `take_over` it replaces the process that
/// uses the state directory, if there is one.
pub fn run(loaded: Loaded, inputs: Inputs, take_over: bool) -> Result<(), Failure> {
    let mut logging = Logging::new(loaded.config.running.log_level);
    // Before anything opens a descriptor that could take one of their numbers.
    let passed = kept::PassedSockets::of_environment()?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    for note in &loaded.notes {
        tracing::info!("{note}");
    }
    if let Err(error) = weir_system::sys::break_closed_output() {
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
    mut passed: kept::PassedSockets,
    take_over: bool,
) -> Result<(), Failure> {
    let config = reloader.current().config.clone();
    let (mut target, directory) = match take_over {
        true => begin(&config, &mut passed)?,
        false => (None, None),
    };
    let (mut signals, admin) = runtime.block_on(async {
        let signals = Signals::install()
            .map_err(|error| Failure::runtime(format!("signals cannot be received: {error}")))?;
        let passed = |address| target.as_mut().and_then(|target| target.admin(address));
        let admin = AdminServer::bind(&config.addresses.admin, passed)
            .await
            .map_err(|error| Failure::runtime(error.to_string()))?;
        Ok::<_, Failure>((signals, admin))
    })?;
    publish_admin(admin.as_ref().map(|admin| admin.sockets().first()));
    let notify = Arc::new(Notify::of_environment());
    let mut resumed = match &target {
        Some(_) => Resumed::default(),
        None => continuity::look(&config, directory)?,
    };
    let mut listener = match &target {
        Some(_) => None,
        None => hand_over_source::listen(&config),
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
    let mut taken = None;
    if let Some(target) = target {
        match receive(runtime, &mut signals, target, &config)? {
            None => return Ok(()),
            Some(Received::State(mut state, passed)) => {
                resumed = std::mem::take(&mut state.resumed);
                listener = Some(hand_over_source::own(passed));
                taken = Some(*state);
            }
            Some(Received::Alone(directory)) => {
                resumed = continuity::look(&config, Some(directory))?;
                listener = hand_over_source::listen(&config);
            }
        }
    }
    bound.own();
    bound.count_drops_from(resumed.drops());
    // Outside of the runtime: an agent that fails to start drops its own runtime.
    let agent = Agent::start(&config, budget, access, planned, bound, sandbox, resumed, taken)?;
    let agent = Arc::new(agent);
    let (taken_over, mut handed_over) = tokio::sync::mpsc::channel(1);
    let shared = admin.as_ref().map(AdminServer::share).transpose();
    let source = Arc::new(HandOverSource {
        agent: agent.clone(),
        listener,
        notify: notify.clone(),
        admin: shared.map_err(|error| Failure::runtime(format!("admin: {error}")))?,
        starter,
        asked: Mutex::default(),
        is_awaited: AtomicBool::default(),
        taken_over,
    });
    source.start();
    let upgrade = move || source.upgrade(None);
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

/// Asks the running process to hand over: the connection to it, or the locked directory if there is none. Adds the sockets of a process.
fn begin(
    config: &Config,
    passed: &mut kept::PassedSockets,
) -> Result<(Option<Box<HandOverTarget>>, Option<StateDir>), Failure> {
    Ok(match HandOverTarget::begin(config)? {
        Begun::Target(mut target) => {
            *passed = target.sockets();
            (Some(target), None)
        }
        Begun::Alone(directory, sockets) => {
            passed.extend(sockets);
            (None, Some(directory))
        }
    })
}

/// Waits for the hand-over. `None`: this process was asked to stop.
fn receive(
    runtime: &tokio::runtime::Runtime,
    signals: &mut Signals,
    target: Box<HandOverTarget>,
    config: &Config,
) -> Result<Option<Received>, Failure> {
    let config = config.clone();
    let receiving = runtime.spawn_blocking(move || target.receive(&config));
    runtime.block_on(async {
        tokio::select! {
            received = receiving => match received {
                Ok(received) => received.map(Some),
                Err(panic) => Err(Failure::runtime(format!("--take-over: {panic}"))),
            },
            signal = signals.stop() => {
                tracing::info!("{signal}: this process ends before it took over; the running one continues");
                Ok(None)
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
    let reporting_task = tokio::spawn(reporting::report_agent(
        notify.clone(),
        view.clone(),
        agent.progress(),
    ));
    let (sender, mut reloads) = tokio::sync::mpsc::channel(RELOADS_MAX);
    let _ = view.course.reloads.set(sender);
    if let Some(server) = admin {
        let address = server.sockets().first();
        server.sockets().announce();
        tracing::info!("{}", banner(reloader.current(), address));
        let callers = Callers::new(&reloader.current().config.running);
        tokio::spawn(server.serve(view.clone(), callers, ConnectionLimits::default()));
    }
    if let Some(columns) = &view.columns {
        let hosts = Arc::new(Hosts::new(&reloader.current().config.running.admin_hosts));
        for server in agent.column_servers()? {
            tokio::spawn(server.serve(columns.clone(), hosts.clone()));
        }
    }
    if let Err(error) = weir_system::sys::release_code() {
        tracing::debug!("the memory of the code that ran at the start is not given back: {error}");
    }
    let reloader = Arc::new(Mutex::new(reloader));
    let mut watches = true;
    let signal = loop {
        let (answer, what) = match signals.until_asked(&mut reloads, watches).await {
            SignalRequest::Stop(signal) => break signal,
            SignalRequest::Reload(answer) => (answer, Reread::Everything),
            SignalRequest::Nothing => (None, Reread::Secrets),
            SignalRequest::Upgrade => {
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
    reporting_task.abort();
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

/// Saves after each flush, which changes the sums, and the books every second besides. Logs once if that fails.
async fn keep_books(agent: Arc<Agent>) {
    // The state that the process began with is replaced at once.
    let (mut failed, mut with_sums) = (false, true);
    while agent.state_saver.keeps() {
        let keeping = agent.clone();
        let kept = tokio::task::spawn_blocking(move || {
            let view = &keeping.view;
            let sums = |put: PutSums<'_>| view.outputs.each_sum(put);
            keeping.state_saver.keep(
                with_sums.then_some(sums),
                || view.snapshot(),
                continuity::now_ms(),
            )
        });
        let kept = kept.await;
        if let Ok(Err(error)) = &kept
            && !std::mem::replace(&mut failed, true)
        {
            tracing::warn!(
                "state_path: books and sums cannot be saved, so a kill would go unnoticed: {error}"
            );
        }
        tokio::select! {
            () = agent.view.shared.flushed.notified() => with_sums = true,
            // Sums that were not saved are still to be.
            () = tokio::time::sleep(BOOKS_INTERVAL) => with_sums = !matches!(kept, Ok(Ok(()))),
        }
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
    let version = weir_admin::version::version_and_commit();
    let page = weir_admin::page_url(address);
    format!("weir {version}: {outputs}; {memory} of memory; open {page} to see metrics arrive")
}

/// A program that stops others signals both the process and its group, so two signals arrive together and mean one. A second signal after
/// this time is meant.
const SECOND_STOP_AFTER: Duration = Duration::from_secs(1);

pub async fn second_stop(signals: &mut Signals) -> &'static str {
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

/// One thread: outputs wait more than they work.
pub fn outputs_runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("outputs")
        .on_thread_start(weir_system::sys::let_workers_go_first)
        .enable_all()
        .build()
        .map_err(|error| Failure::runtime(format!("the outputs' runtime cannot be started: {error}")))
}

pub fn unix_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
