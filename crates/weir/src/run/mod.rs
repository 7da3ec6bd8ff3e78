//! `weir run`: sockets, workers, pipeline, outputs and signals put together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use weir_aggregate::AggregatorSettings;
use weir_context::{HashSecret, Limits, Rules};
use weir_ingest::{Command, IngestSettings, TLS_FAULT, WorkerHandle, WorkerSettings};
use weir_listener::{Address, AllowList, BoundSocket, Framing, ListenerConfig, ListenerId};
use weir_origin::Origins;
use weir_output::delivery::{Clock, Delivery, Surroundings};
use weir_output::relay::Relay;
use weir_output::settings::OutputSettings;
use weir_protocol::{ErrorClass, ParseOptions};

use crate::admin::contexts::ContextReport;
use crate::admin::explain::{ExplainRequest, Explanation};
use crate::admin::status::{Rates, Status};
use crate::admin::{AdminServer, AdminSource, Answer, Exposition, ScrapeRequest};
use crate::config::{self, Config, Inputs, Loaded};
use crate::failure::Failure;
use crate::logging::{BadInput, Logging};
use crate::signals::{ReloadRequest, Reloaded, Reloader, Request, Signals};

mod access;
mod books;
mod delivery;
mod explain;
mod origins;
mod pipeline;
mod relay;
mod rules;
mod scrape;
mod usage;

use access::Access;
use books::BoundListener;
use delivery::DeliverySink;
use pipeline::{BatchSink, Flushed, Pipeline, Shared};
use relay::RelaySink;
use rules::Fixed;
use scrape::ScrapeOutput;
use usage::Usage;

/// Reports that may wait for the pipeline. A batch is at most a few megabytes; workers hold back when this is full.
const REPORTS_MAX: usize = 16;

/// One part in this many of the memory budget is for payloads that wait, per output that delivers batches.
const QUEUE_SHARE: u64 = 8;

/// One part in this many of the memory budget is for what a scrape shows.
const SCRAPE_SHARE: u64 = 4;

/// Bytes of state and alias that a context needs beside its entry in the tables, for the budget's estimate.
const STATE_BYTES_PER_CONTEXT: usize = 96;

/// Requests for a reload that may wait.
const RELOADS_MAX: usize = 4;

/// How often one listener's bad input of one kind is mentioned in the log.
const BAD_INPUT_INTERVAL: Duration = Duration::from_secs(10);

/// Runs until a signal ends it. `inputs` is kept for reloads.
pub fn run(loaded: Loaded, inputs: Inputs) -> Result<(), Failure> {
    let logging = Logging::start(loaded.config.log_level)
        .map_err(|error| Failure::runtime(format!("the log's thread cannot be started: {error}")))?;
    for note in &loaded.notes {
        tracing::info!("{note}");
    }
    // Outputs, admin and signals need little; one thread serves them all and keeps the process small.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(1))
        .build()
        .map_err(|error| Failure::runtime(format!("the control plane cannot be started: {error}")))?;
    let result = control(&runtime, &logging, Reloader::new(inputs, loaded));
    // A task that hangs must not hold up the end.
    runtime.shutdown_background();
    result
}

/// Starts the agent, serves its admin address and its signals, and stops it.
fn control(runtime: &tokio::runtime::Runtime, logging: &Logging, reloader: Reloader) -> Result<(), Failure> {
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
    // Outside of the runtime: an agent that fails to start drops a runtime of its own.
    let agent = Agent::start(&config)?;
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
        tracing::info!("admin on http://{}", server.address());
        tokio::spawn(server.serve(view.clone()));
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
            stopped.map_err(|error| Failure::runtime(format!("the agent could not be stopped: {error}")))
        }
        signal = second_stop(&mut signals) => {
            Err(Failure::runtime(format!("{signal} again: stopped at once, what was not delivered is lost")))
        }
    }
}

/// Whoever asks twice means it.
async fn second_stop(signals: &mut Signals) -> &'static str {
    loop {
        if let Request::Stop(name) = signals.next().await {
            return name;
        }
    }
}

/// The running agent.
struct Agent {
    workers: Vec<WorkerHandle>,
    fixed: Fixed,
    pipeline: std::thread::JoinHandle<()>,
    /// What outputs run on.
    control: tokio::runtime::Runtime,
    view: Arc<View>,
}

/// What can be asked while it runs.
struct View {
    shared: Arc<Shared>,
    /// Of the last flush.
    last_flush: Arc<Mutex<LastFlush>>,
    workers: usize,
    listeners: Vec<BoundListener>,
    /// Outputs that deliver batches, with the name of their type.
    deliveries: Vec<(&'static str, Arc<Delivery>)>,
    relays: Vec<Arc<Relay>>,
    scrape: Option<ScrapeOutput>,
    origins: Option<Origins>,
    usage: Arc<Usage>,
    access: Access,
    /// What messages may contain, and what applies to them, for explanations.
    options: ParseOptions,
    rules: Mutex<Rules>,
    hostname: String,
    memory: u64,
    bucket_seconds: u64,
    started_at: u64,
    stopping: AtomicBool,
    /// Where the admin server asks for a reload.
    reloads: OnceLock<tokio::sync::mpsc::Sender<ReloadRequest>>,
}

#[derive(Clone, Default)]
struct LastFlush {
    rates: Rates,
    series: u64,
}

impl View {
    /// The books as they stand.
    fn snapshot(&self) -> Status {
        let state = self.shared.lock().clone();
        let flush = self
            .last_flush
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut status = Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            hostname: self.hostname.clone(),
            started: self.started_at,
            not_ready: self.readiness().err(),
            rates: flush.rates,
            outputs: self
                .deliveries
                .iter()
                .flat_map(|(output_type, delivery)| delivery::status(output_type, delivery))
                .chain(self.relays.iter().flat_map(|relay| relay::status(relay)))
                .collect(),
            ..Status::default()
        };
        status.memory.budget = self.memory;
        status.flush.bucket_seconds = self.bucket_seconds;
        status.flush.series = flush.series;
        let queued = self
            .deliveries
            .iter()
            .map(|(_, delivery)| delivery::queued_bytes(delivery))
            .chain(self.relays.iter().map(|relay| relay::queued_bytes(relay)));
        status.memory.parts.insert("queues".into(), queued.sum());
        status
            .memory
            .parts
            .insert("summaries".into(), self.usage.heap_bytes());
        for (part, bytes) in self.access.heap_bytes() {
            status.memory.parts.insert(part.into(), bytes);
        }
        books::fill(&mut status, &self.listeners, &state);
        self.usage.fill(&mut status.limits);
        status.limits.rates = self.access.limited(&state);
        status.limits.senders_refused = Access::refused(&state);
        status.origin = self
            .origins
            .as_ref()
            .map(|origins| books::origin(origins.status(), &state));
        if let Some(scrape) = &self.scrape {
            scrape.report(&mut status);
        }
        status
    }
}

impl View {
    /// Lets outputs that write files open them anew.
    fn reopen(&self) {
        for (_, delivery) in &self.deliveries {
            delivery.reopen();
        }
    }
}

impl AdminSource for View {
    fn readiness(&self) -> Result<(), String> {
        if self.stopping.load(Ordering::Acquire) {
            return Err("it is stopping".into());
        }
        let running = self.shared.lock().workers.iter().flatten().count();
        if running < self.workers {
            return Err("not every worker has reported yet".into());
        }
        Ok(())
    }

    fn status(&self) -> Answer<'_, Status> {
        Box::pin(async { self.snapshot() })
    }

    fn reload(&self) -> Answer<'_, Option<Reloaded>> {
        Box::pin(async {
            let (answer, answered) = tokio::sync::oneshot::channel();
            self.reloads.get()?.send(answer).await.ok()?;
            answered.await.ok()
        })
    }

    fn contexts(&self, top: usize) -> Answer<'_, Option<ContextReport>> {
        Box::pin(async move { self.usage.report(top) })
    }

    fn explain(&self, request: ExplainRequest) -> Answer<'_, Explanation> {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (options, origins) = (self.options, self.origins.clone());
        Box::pin(async move {
            // Whoever finds out about origins reads files; nobody else is to wait for that.
            let explained = tokio::task::spawn_blocking(move || {
                explain::explain(&request, &options, &rules, origins.as_ref())
            });
            explained.await.unwrap_or_default()
        })
    }

    fn scrape(&self, request: ScrapeRequest) -> Answer<'_, Option<Exposition>> {
        Box::pin(async move {
            let scrape = self.scrape.as_ref()?;
            Some(scrape.answer(&request, &self.snapshot()))
        })
    }
}

impl Agent {
    fn start(config: &Config) -> Result<Agent, Failure> {
        let access = Access::new(config, unix_ms())?;
        let planned = listeners(config, &access);
        let mut sockets: Vec<Vec<(BoundSocket, ListenerId)>> =
            (0..config.workers).map(|_| Vec::new()).collect();
        let mut bound_listeners: Vec<BoundListener> = Vec::new();
        for (number, (listener, _)) in planned.iter().enumerate() {
            let id = ListenerId(number as u16);
            let spread = matches!(listener.address, Address::Udp { .. }) && config.workers > 1;
            let bound = if spread {
                weir_listener::bind_group(listener, config.workers)
            } else {
                weir_listener::bind(listener).map(|socket| vec![socket])
            }
            .map_err(|error| Failure::runtime(error.to_string()))?;
            let address = bound[0].address().to_string();
            let buffer = bound[0].receive_buffer();
            if let Some(remedy) = buffer.remedy() {
                tracing::warn!("{address}: {remedy}");
            }
            bound_listeners.push(BoundListener {
                address,
                receive_buffer: buffer.granted as u64,
                receive_buffer_wanted: buffer.wanted.unwrap_or(buffer.granted) as u64,
            });
            for (worker, socket) in bound.into_iter().enumerate() {
                // A socket that only one worker reads goes to the workers in turn.
                let worker = if spread { worker } else { number % config.workers };
                sockets[worker].push((socket, id));
            }
        }
        // Once all are there: whoever waits for one of these lines may connect to any of them.
        for ((listener, _), bound) in planned.iter().zip(&bound_listeners) {
            tracing::info!("listening on {}{}", bound.address, Access::remark(listener));
        }
        if bound_listeners.is_empty() {
            return Err(Failure::usage(
                "no listener is configured: set udp, udp_signed, uds, uds_stream or tcp",
            ));
        }

        let fixed = Fixed::new(config);
        let expansion = fixed.expansion.clone();
        let rules = fixed
            .rules(config)
            .map_err(|faults| Failure::usage(faults.join("\n")))?;
        let mut sinks: Vec<Box<dyn BatchSink>> = Vec::new();
        let mut scrape: Option<ScrapeOutput> = None;
        let mut deliveries = Vec::new();
        let mut relays = Vec::new();
        let control = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("outputs")
            .enable_all()
            .build()
            .map_err(|error| Failure::runtime(format!("the outputs' runtime cannot be started: {error}")))?;
        let surroundings = Surroundings {
            clock: Clock::system(),
            memory_bytes_max: config.memory / QUEUE_SHARE,
            state_bytes_max: config.memory / SCRAPE_SHARE,
        };
        for output in &config.outputs {
            match &output.settings {
                OutputSettings::Prometheus(settings) => {
                    let bytes_max = (config.memory / SCRAPE_SHARE) as usize;
                    let output =
                        ScrapeOutput::new(&output.name, settings.clone(), expansion.weights(), bytes_max);
                    sinks.push(Box::new(output.clone()));
                    scrape = Some(output);
                }
                OutputSettings::Delivered(settings) => {
                    let _entered = control.enter();
                    let delivery = settings
                        .start(&output.name, &Arc::new(expansion.clone()), &surroundings)
                        .map_err(|error| Failure::runtime(format!("output {}: {error}", output.name)))?;
                    let delivery = Arc::new(delivery);
                    sinks.push(Box::new(DeliverySink {
                        delivery: delivery.clone(),
                        runtime: control.handle().clone(),
                        grace: config.grace_period,
                    }));
                    deliveries.push((output.output_type, delivery));
                }
                OutputSettings::Relay(settings) => {
                    let _entered = control.enter();
                    let relay = relay::start(
                        &output.name,
                        settings,
                        config.workers,
                        surroundings.memory_bytes_max,
                    );
                    sinks.push(Box::new(RelaySink {
                        relay: relay.clone(),
                        runtime: control.handle().clone(),
                        grace: config.grace_period,
                    }));
                    relays.push(relay);
                }
            }
        }

        if let Some(relay) = relays.iter().find(|relay| relay.settings().only)
            && let Some((_, delivery)) = deliveries.first()
        {
            let (relay, output) = (relay.name(), delivery.name());
            tracing::warn!(
                "with outputs.{relay}.only nothing is aggregated; {output} and the like get nothing"
            );
        }

        let (reports, inbox) = std::sync::mpsc::sync_channel(REPORTS_MAX);
        let shared = Arc::new(Shared::default());
        let last_flush = Arc::new(Mutex::new(LastFlush::default()));
        let usage = Arc::new(Usage::new(usage::Settings {
            workers: config.workers,
            bucket_seconds: config.aggregation.bucket_seconds,
            tag_values_alert: config.tag_values_alert,
        }));
        let (summary, bucket_seconds) = (config.flush_summary, config.aggregation.bucket_seconds);
        let addresses: Vec<String> = bound_listeners
            .iter()
            .map(|listener| listener.address.clone())
            .collect();
        let pipeline = Pipeline::new(
            inbox,
            config.workers,
            sinks,
            shared.clone(),
            Box::new({
                let (shared, mut log) = (shared.clone(), BadInput::new(BAD_INPUT_INTERVAL));
                let mut next_tls_line = Instant::now();
                move |bad| {
                    if bad.class == TLS_FAULT {
                        if Instant::now() >= next_tls_line {
                            next_tls_line = Instant::now() + BAD_INPUT_INTERVAL;
                            let (address, fault) = (&addresses[bad.listener], &bad.example);
                            tracing::warn!("{address}: a connection could not be encrypted: {fault}");
                        }
                        return;
                    }
                    let total = refused(&shared, bad.listener, bad.class);
                    let address = &addresses[bad.listener];
                    if let Some(line) = log.line(address, bad.class, total, &bad.example, Instant::now()) {
                        tracing::warn!("{line}");
                    }
                }
            }),
            Box::new({
                let (mut before, last_flush) = (Totals::default(), last_flush.clone());
                let (access, bound) = (access.clone(), bound_listeners.clone());
                move |flushed| {
                    for line in access.log_lines(&flushed.state, &bound, Instant::now()) {
                        tracing::warn!("{line}");
                    }
                    let now = Totals::of(flushed);
                    let facts = LastFlush {
                        rates: now.rates(&before, bucket_seconds),
                        series: flushed.rows,
                    };
                    *last_flush.lock().unwrap_or_else(PoisonError::into_inner) = facts;
                    if summary {
                        tracing::info!("{}", now.summary(&before, flushed));
                    }
                    before = now;
                }
            }),
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

        let secret = hash_secret();
        let share = config.memory as usize / config.workers;
        let per_worker =
            |max: Option<usize>| max.map_or(usize::MAX, |max: usize| max.div_ceil(config.workers));
        let hostname: Arc<str> = config.names.hostname.as_str().into();
        let resolver = origins::resolver(config);
        let by_number: Vec<&ListenerConfig> = planned.iter().map(|(listener, _)| listener).collect();
        let admission = Access::admission(config, &by_number);
        let mut workers = Vec::new();
        for (worker, sockets) in sockets.into_iter().enumerate() {
            let settings = IngestSettings {
                worker: worker as u16,
                aggregator: AggregatorSettings {
                    bucket_width: config.aggregation.bucket_seconds as u32,
                    counter_expiry: config.aggregation.counter_expiry.as_secs() as u32,
                    context_expiry: config.aggregation.context_expiry.as_secs() as u32,
                    hostname: hostname.clone(),
                },
                rules: rules.clone(),
                limits: Limits {
                    bytes_max: share,
                    contexts_max: per_worker(config.contexts_max),
                    contexts_per_metric_max: per_worker(config.contexts_per_metric_max),
                    contexts_per_origin_max: per_worker(config.contexts_per_origin_max),
                    bytes_per_context: STATE_BYTES_PER_CONTEXT,
                    ..Limits::default()
                },
                secret,
                gauge_deltas: config.aggregation.gauge_deltas,
                listeners: planned.iter().map(|(_, options)| *options).collect(),
            };
            let around = WorkerSettings {
                give_back: crate::sys::heap::give_back,
                flush_open_bucket: config.aggregation.flush_open_buckets,
            };
            let link = resolver.as_ref().map(|resolver| {
                resolver
                    .link(worker as u16)
                    .with_rate(config.listeners.rates.per_origin)
                    .with_admission(admission.clone())
            });
            let relay_links = relay::links(&relays, worker);
            let handle = weir_ingest::spawn(
                settings,
                sockets,
                share / 16,
                around,
                reports.clone(),
                link,
                relay_links,
            )
            .map_err(|error| Failure::runtime(format!("ingest worker {worker}: {error}")))?;
            workers.push(handle);
        }
        let origins = match resolver {
            Some(resolver) => Some(origins::start(resolver, &workers, control.handle())?),
            None => None,
        };
        let view = View {
            origins,
            usage,
            access,
            options: ParseOptions {
                origin_client: config.origin.client,
                timestamps: config.aggregation.timestamps,
                eol_required: false,
            },
            rules: Mutex::new(rules),
            shared,
            last_flush,
            workers: workers.len(),
            listeners: bound_listeners,
            deliveries,
            relays,
            scrape,
            hostname: config.names.hostname.clone(),
            memory: config.memory,
            bucket_seconds,
            started_at: unix_now(),
            stopping: AtomicBool::new(false),
            reloads: OnceLock::new(),
        };
        Ok(Agent {
            workers,
            fixed,
            pipeline,
            control,
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

    /// Reads what the kernel holds, flushes, delivers.
    fn stop(mut self) {
        for worker in &self.workers {
            worker.stop();
        }
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                tracing::error!("an ingest worker has panicked; its open bucket is lost");
            }
        }
        let _ = std::mem::replace(&mut self.pipeline, std::thread::spawn(|| {})).join();
        for imbalance in self.view.snapshot().imbalances() {
            tracing::error!("the books do not balance: {imbalance}");
        }
        // Not dropped in the ordinary way: that would wait for look-ups of names that never get an answer.
        self.control.shutdown_background();
    }
}

/// Messages of one listener that were refused for one reason, as far as workers have reported.
fn refused(shared: &Shared, listener: usize, class: &str) -> u64 {
    let Some(class) = ErrorClass::ALL.into_iter().find(|known| known.as_str() == class) else {
        return 0;
    };
    let state = shared.lock();
    let listeners = state
        .workers
        .iter()
        .flatten()
        .flat_map(|worker| &worker.listeners);
    let of_listener = listeners.filter(|counted| usize::from(counted.listener) == listener);
    of_listener
        .map(|counted| counted.ingest.rejected[class as usize])
        .sum()
}

/// Totals at one flush, for the difference to the one before.
#[derive(Clone, Copy, Default)]
struct Totals {
    packets: u64,
    messages: u64,
    rejected: u64,
    dropped: u64,
    kernel_dropped: u64,
    contexts: u64,
    bytes: u64,
    samples: u64,
}

impl Totals {
    fn of(flushed: &Flushed) -> Totals {
        let mut totals = Totals::default();
        for worker in flushed.state.workers.iter().flatten() {
            totals.contexts += worker.contexts as u64;
            for listener in &worker.listeners {
                totals.packets += listener.socket.packets;
                totals.kernel_dropped += listener.socket.kernel_dropped;
                totals.messages += listener.ingest.messages;
                totals.bytes += listener.socket.bytes;
                totals.samples += listener.ingest.samples;
                totals.rejected += listener.ingest.rejected_total();
                totals.dropped += listener.ingest.dropped_total();
            }
        }
        totals
    }

    /// Per second, over one bucket.
    fn rates(&self, before: &Totals, bucket_seconds: u64) -> Rates {
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / bucket_seconds as f64;
        Rates {
            datagrams: rate(
                self.packets + self.kernel_dropped,
                before.packets + before.kernel_dropped,
            ),
            bytes: rate(self.bytes, before.bytes),
            messages: rate(self.messages, before.messages),
            samples: rate(self.samples, before.samples),
        }
    }

    fn summary(&self, before: &Totals, flushed: &Flushed) -> String {
        let mut text = format!(
            "flushed {} series of {} contexts; since the last: {} messages in {} packets",
            flushed.rows,
            self.contexts,
            self.messages - before.messages,
            self.packets - before.packets
        );
        for (count, what) in [
            (self.rejected - before.rejected, "messages rejected"),
            (self.dropped - before.dropped, "samples dropped"),
            (
                self.kernel_dropped - before.kernel_dropped,
                "datagrams dropped by the kernel",
            ),
        ] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        text
    }
}

/// The listeners in the order of their numbers, each with what its messages may contain.
fn listeners(config: &Config, access: &Access) -> Vec<(ListenerConfig, ParseOptions)> {
    let settings = &config.listeners;
    let mut planned = Vec::new();
    let mut plan = |address: Address, framing: Option<Framing>, eol_required: bool, signed: bool| {
        let mut listener = ListenerConfig::new(address);
        listener.framing = framing.unwrap_or(listener.framing);
        listener.receive_buffer_bytes = settings.receive_buffer.map(|bytes| bytes as usize);
        listener.max_packet_bytes = settings.packet_bytes_max;
        listener.socket_mode = settings.socket_mode;
        listener.socket_owner = settings.socket_ownership.uid;
        listener.socket_group = settings.socket_ownership.gid;
        let is_unix = matches!(
            listener.address,
            Address::UnixDatagram(_) | Address::UnixStream(_)
        );
        listener.pass_credentials = config.origin.detection && is_unix;
        listener.allow = AllowList::new(settings.allowed_networks.clone());
        access.apply(&mut listener, signed);
        let options = ParseOptions {
            origin_client: config.origin.client,
            timestamps: config.aggregation.timestamps,
            eol_required,
        };
        planned.push((listener, options));
    };
    let framing = match settings.tcp_framing {
        config::Framing::Length => Framing::LengthPrefixed,
        config::Framing::Newline => Framing::Newline,
    };
    for address in &settings.udp {
        plan(
            Address::Udp {
                host: address.ip().to_string(),
                port: address.port(),
            },
            None,
            settings.eol_required.udp,
            false,
        );
    }
    for address in settings.signed.iter().flat_map(|signed| &signed.addresses) {
        plan(
            Address::Udp {
                host: address.ip().to_string(),
                port: address.port(),
            },
            None,
            settings.eol_required.udp,
            true,
        );
    }
    for path in &settings.uds {
        plan(
            Address::UnixDatagram(path.clone()),
            None,
            settings.eol_required.uds,
            false,
        );
    }
    for path in &settings.uds_stream {
        plan(
            Address::UnixStream(path.clone()),
            None,
            settings.eol_required.uds,
            false,
        );
    }
    for address in &settings.tcp {
        plan(
            Address::Tcp {
                host: address.ip().to_string(),
                port: address.port(),
            },
            Some(framing),
            false,
            false,
        );
    }
    planned
}

/// A secret from the operating system's randomness, by way of the standard library's hash keys.
fn hash_secret() -> HashSecret {
    use std::hash::{BuildHasher, RandomState};
    let word = || RandomState::new().hash_one(0u64);
    HashSecret::from_random(word(), word())
}

fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

fn unix_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
