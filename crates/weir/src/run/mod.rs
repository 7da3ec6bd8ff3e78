//! `weir run`: sockets, workers, pipeline, outputs and signals put together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use weir_ingest::{Command, WorkerHandle};
use weir_listener::ListenerConfig;
use weir_protocol::ParseOptions;

use crate::admin::caller::Hosts;
use crate::admin::{AdminServer, Limits};
use crate::config::{Config, Inputs, Loaded};
use crate::failure::Failure;
use crate::logging::Logging;
use crate::sandbox::{self, SandboxStatus};
use crate::signals::{Reloader, Request, Signals};

mod access;
mod books;
mod delivery;
mod explain;
mod health;
mod listeners;
mod log;
mod origins;
mod outputs;
mod pipeline;
mod relay;
mod rules;
mod scrape;
mod usage;
mod view;
mod workers;

use access::Access;
use health::Watch;
use log::LastFlush;
use outputs::Outputs;
use pipeline::{Pipeline, Shared};
use rules::Fixed;
use usage::Usage;
use view::View;

/// Reports that may wait for the pipeline. A batch is at most a few megabytes; workers hold back when this is full.
const REPORTS_MAX: usize = 16;

/// Requests for a reload that may wait.
const RELOADS_MAX: usize = 4;

/// Runs until a signal ends it. `inputs` is kept for reloads.
pub fn run(loaded: Loaded, inputs: Inputs) -> Result<(), Failure> {
    let mut logging = Logging::new(loaded.config.log_level);
    for note in &loaded.notes {
        tracing::info!("{note}");
    }
    if let Err(error) = crate::sys::stdio::break_closed_output() {
        tracing::warn!("standard output is closed, and what is written there cannot be refused: {error}");
    }
    // Admin and signals need little: this thread serves both. Outputs have a runtime of their own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(1))
        .build()
        .map_err(|error| Failure::runtime(format!("the control plane cannot be started: {error}")))?;
    let result = control(&runtime, &mut logging, Reloader::new(inputs, loaded));
    // A task that hangs must not hold up the end.
    runtime.shutdown_background();
    result
}

/// Starts the agent, serves its admin address and its signals, and stops it.
fn control(
    runtime: &tokio::runtime::Runtime,
    logging: &mut Logging,
    mut reloader: Reloader,
) -> Result<(), Failure> {
    let config = reloader.current().config.clone();
    let (signals, admin) = runtime.block_on(async {
        let signals = Signals::install()
            .map_err(|error| Failure::runtime(format!("signals cannot be received: {error}")))?;
        let admin = match config.admin {
            None => None,
            Some(address) => Some(AdminServer::bind(address).await.map_err(|error| {
                let remedy = "--admin sets another address, or off";
                Failure::runtime(format!("admin: {address} cannot be bound: {error}; {remedy}"))
            })?),
        };
        Ok::<_, Failure>((signals, admin))
    })?;
    let access = Access::new(&config)?;
    let planned = listeners::plan(&config, &access);
    let bound = listeners::bind(&planned, config.workers)?;
    // While this is the only thread, and after the last thing that needs what it gives up.
    let sandbox = sandbox::enter(reloader.current(), reloader.file().as_deref());
    reloader.sandboxed(sandbox.clone());
    logging
        .write()
        .map_err(|error| Failure::runtime(format!("the log's thread cannot be started: {error}")))?;
    // Outside of the runtime: an agent that fails to start drops a runtime of its own.
    let agent = Agent::start(&config, access, planned, bound, sandbox)?;
    runtime.block_on(serve(agent, admin, signals, logging, reloader))
}

async fn serve(
    agent: Agent,
    admin: Option<AdminServer>,
    mut signals: Signals,
    logging: &Logging,
    mut reloader: Reloader,
) -> Result<(), Failure> {
    let view = agent.view.clone();
    let (sender, mut reloads) = tokio::sync::mpsc::channel(RELOADS_MAX);
    let _ = view.reloads.set(sender);
    if let Some(server) = admin {
        let address = server.address();
        tracing::info!("admin on http://{address}");
        if !address.ip().to_canonical().is_loopback() {
            tracing::warn!(
                "admin: {address} is not loopback: whoever reaches it can read metrics, status and profiles, and ask for a reload"
            );
        }
        let hosts = Hosts::new(&reloader.current().config.admin_hosts);
        tokio::spawn(server.serve(view.clone(), hosts, Limits::default()));
    }
    let signal = signals
        .until_stop(
            &mut reloader,
            &mut reloads,
            |loaded| {
                agent.apply(&loaded.config)?;
                logging.set_level(loaded.config.log_level);
                Ok(())
            },
            || view.reopen(),
        )
        .await;
    tracing::info!("{signal}: no new packets; what has arrived is read, flushed and delivered");
    view.stopping.store(true, Ordering::Release);
    let stopped = tokio::task::spawn_blocking(move || agent.stop());
    tokio::select! {
        stopped = stopped => {
            stopped.map_err(|error| Failure::runtime(format!("the agent could not be stopped: {error}")))?
        }
        signal = second_stop(&mut signals) => {
            Err(Failure::runtime(format!("{signal} again: stopped at once, what was not delivered is lost")))
        }
    }
}

/// Programs that stop others send the signal to the process and to its group, so two come at once and mean one. Whoever
/// asks again after this long means it.
const SECOND_STOP_AFTER: Duration = Duration::from_secs(1);

async fn second_stop(signals: &mut Signals) -> &'static str {
    let first = Instant::now();
    loop {
        match signals.next().await {
            Request::Stop(name) if first.elapsed() >= SECOND_STOP_AFTER => return name,
            Request::Stop(name) => {
                tracing::info!(
                    "{name} again within a second: taken as one request; another one stops at once"
                );
            }
            Request::Reload => {}
        }
    }
}

/// The running agent.
struct Agent {
    workers: Vec<WorkerHandle>,
    watch: Watch,
    fixed: Fixed,
    pipeline: std::thread::JoinHandle<()>,
    /// What outputs run on.
    outputs: tokio::runtime::Runtime,
    view: Arc<View>,
}

impl Agent {
    fn start(
        config: &Config,
        access: Access,
        planned: Vec<(ListenerConfig, ParseOptions)>,
        bound: listeners::Bound,
        sandbox: SandboxStatus,
    ) -> Result<Agent, Failure> {
        let fixed = Fixed::new(config);
        let rules = fixed
            .rules(config)
            .map_err(|faults| Failure::usage(faults.join("\n")))?;
        let outputs = Outputs::start(config, &fixed.expansion)?;

        let (reports, inbox) = std::sync::mpsc::sync_channel(REPORTS_MAX);
        let shared = Arc::new(Shared::default());
        let last_flush = Arc::new(Mutex::new(LastFlush::default()));
        let usage = Arc::new(Usage::new(usage::Settings {
            workers: config.workers,
            bucket_seconds: config.aggregation.bucket_seconds,
            tag_values_alert: config.tag_values_alert,
        }));
        let pipeline = Pipeline::new(
            inbox,
            config.workers,
            outputs.sinks,
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
        let pipeline = std::thread::Builder::new()
            .name("pipeline".into())
            .spawn(move || pipeline.run())
            .map_err(|error| Failure::runtime(format!("a thread cannot be started: {error}")))?;

        let files = health::socket_files(&bound.of_workers, planned.iter().map(|(listener, _)| listener));
        let resolver = origins::resolver(config);
        let workers = workers::Start {
            config,
            listeners: &planned,
            rules: &rules,
            resolver: resolver.as_ref(),
            relays: &outputs.relays,
            reports,
        }
        .workers(bound.of_workers)?;
        let watch = Watch::start(&workers, files, bound.listeners.len())
            .map_err(|error| Failure::runtime(format!("a thread cannot be started: {error}")))?;
        let origins = match resolver {
            Some(resolver) => Some(origins::start(resolver, &workers, outputs.runtime.handle())?),
            None => None,
        };
        let view = View {
            origins,
            usage,
            access,
            sandbox,
            options: ParseOptions {
                origin_client: config.origin.client,
                timestamps: config.aggregation.timestamps,
                eol_required: false,
            },
            rules: Mutex::new(rules),
            shared,
            last_flush,
            workers: workers.len(),
            health: watch.health(),
            listeners: bound.listeners,
            deliveries: outputs.deliveries,
            relays: outputs.relays,
            scrape: outputs.scrape,
            hostname: config.names.hostname.clone(),
            memory: config.memory,
            bucket_seconds: config.aggregation.bucket_seconds,
            started_at: unix_now(),
            stopping: AtomicBool::new(false),
            reloads: OnceLock::new(),
        };
        Ok(Agent {
            workers,
            watch,
            fixed,
            pipeline,
            outputs: outputs.runtime,
            view: Arc::new(view),
        })
    }

    /// Takes what a reload may change: names, tags, filters and rules, who may send, keys and certificates. Contexts, open
    /// buckets and open connections stay. An error is what is wrong, or why a restart is needed; then nothing has changed.
    fn apply(&self, config: &Config) -> Result<(), Vec<String>> {
        let rules = self.fixed.rules(config)?;
        let renewal = self.view.access.read_again(config)?;
        self.view.access.renew(renewal);
        if let Some(origins) = &self.view.origins {
            // What is said of containers comes from there.
            origins.allow(config.listeners.allowed_origins.clone());
        }
        let list = Access::admission_list(config);
        for worker in &self.workers {
            worker.send(Command::Admission(list));
        }
        for worker in &self.workers {
            worker.send(Command::Rules(Box::new(rules.clone())));
        }
        *self.view.rules.lock().unwrap_or_else(PoisonError::into_inner) = rules;
        Ok(())
    }

    /// Reads what the kernel holds, flushes, delivers. An output that lost something by the end is a failure.
    fn stop(mut self) -> Result<(), Failure> {
        self.watch.end();
        for worker in &self.workers {
            worker.stop();
        }
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                tracing::error!("an ingest worker has panicked; its open bucket is lost");
            }
        }
        let _ = std::mem::replace(&mut self.pipeline, std::thread::spawn(|| {})).join();
        let status = self.view.snapshot();
        for line in log::final_books(&status) {
            tracing::info!("{line}");
        }
        for imbalance in status.imbalances() {
            tracing::error!("the books do not balance: {imbalance}");
        }
        // Not dropped in the ordinary way: that would wait for look-ups of names that never get an answer.
        self.outputs.shutdown_background();
        let lost = books::lost_at_the_end(&status);
        if !lost.is_empty() {
            let lost = lost.join(", ");
            return Err(Failure::runtime(format!(
                "lost at the end, as it could not be delivered: {lost}"
            )));
        }
        Ok(())
    }
}

fn unix_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
