//! `weir run`: sockets, workers, pipeline, outputs and signals put together.

use std::io::Write;
use std::sync::Arc;

use weir_aggregate::{Aggregate, AggregatorSettings, Expansion, Weights};
use weir_context::{HashSecret, Limits, NameFilter, RuleSettings, Rules};
use weir_ingest::{EndSettings, IngestSettings, WorkerHandle};
use weir_listener::{Address, BoundSocket, Framing, ListenerConfig, ListenerId};
use weir_output::delivery::{Clock, Delivery, Surroundings};
use weir_output::settings::OutputSettings;
use weir_protocol::ParseOptions;

use crate::admin::status::Status;
use crate::config::{self, Config, HistogramAggregate, HistogramWeights, Inputs, Loaded};
use crate::failure::Failure;

mod books;
mod delivery;
mod pipeline;
mod stdout;

use books::BoundListener;
use delivery::DeliverySink;
use pipeline::{BatchSink, Flushed, Pipeline, Shared};
use stdout::{StdoutBooks, StdoutSink};

/// Reports that may wait for the pipeline. A batch is at most a few megabytes; workers hold back when this is full.
const REPORTS_MAX: usize = 16;

/// One part in this many of the memory budget is for payloads that wait, per output over the network.
const QUEUE_SHARE: u64 = 8;

/// Bytes of state and alias that a context needs beside its entry in the tables, for the budget's estimate.
const STATE_BYTES_PER_CONTEXT: usize = 96;

/// Runs until a signal ends it. `inputs` is kept for reloads.
pub fn run(loaded: Loaded, inputs: Inputs) -> Result<(), Failure> {
    let config = loaded.config.clone();
    for note in &loaded.notes {
        say(note);
    }
    let agent = Agent::start(&config)?;
    wait_for_end(&agent, loaded, &inputs)?;
    agent.stop();
    Ok(())
}

/// The running agent.
struct Agent {
    workers: Vec<WorkerHandle>,
    pipeline: std::thread::JoinHandle<()>,
    shared: Arc<Shared>,
    listeners: Vec<BoundListener>,
    stdout_books: Vec<(String, Arc<StdoutBooks>)>,
    /// Outputs over the network with the name of their type, and what they run on.
    deliveries: Vec<(&'static str, Arc<Delivery>)>,
    control: tokio::runtime::Runtime,
    hostname: String,
    memory: u64,
    started_at: u64,
}

impl Agent {
    fn start(config: &Config) -> Result<Agent, Failure> {
        let planned = listeners(config);
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
                say(&format!("{address}: {remedy}"));
            }
            say(&format!("listening on {address}"));
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
        if bound_listeners.is_empty() {
            return Err(Failure::usage(
                "no listener is configured: set udp, uds, uds_stream or tcp",
            ));
        }

        let expansion = expansion(config);
        let rules = rules(config, &expansion);
        let mut sinks: Vec<Box<dyn BatchSink>> = Vec::new();
        let mut stdout_books = Vec::new();
        let mut deliveries = Vec::new();
        let control = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("outputs")
            .enable_all()
            .build()
            .map_err(|error| Failure::runtime(format!("the outputs' runtime cannot be started: {error}")))?;
        let surroundings = Surroundings {
            clock: Clock::system(),
            memory_bytes_max: config.memory / QUEUE_SHARE,
        };
        for output in &config.outputs {
            match &output.settings {
                OutputSettings::Stdout(_) => {
                    let books = Arc::new(StdoutBooks::default());
                    let sink = StdoutSink::start(expansion.clone(), books.clone())
                        .map_err(|error| Failure::runtime(format!("output {}: {error}", output.name)))?;
                    sinks.push(Box::new(sink));
                    stdout_books.push((output.name.clone(), books));
                }
                OutputSettings::Datadog(settings) => {
                    let _entered = control.enter();
                    let delivery = weir_output::datadog::start(
                        &output.name,
                        settings,
                        Arc::new(expansion.clone()),
                        &surroundings,
                    )
                    .map_err(|error| Failure::runtime(format!("output {}: {error}", output.name)))?;
                    let delivery = Arc::new(delivery);
                    sinks.push(Box::new(DeliverySink {
                        delivery: delivery.clone(),
                        runtime: control.handle().clone(),
                        grace: config.grace_period,
                    }));
                    deliveries.push((output.output_type, delivery));
                }
                _ => say(&format!("output {}: not built in yet", output.name)),
            }
        }

        let (reports, inbox) = std::sync::mpsc::sync_channel(REPORTS_MAX);
        let shared = Arc::new(Shared::default());
        let summary = config.flush_summary;
        let addresses: Vec<String> = bound_listeners
            .iter()
            .map(|listener| listener.address.clone())
            .collect();
        let pipeline = Pipeline::new(
            inbox,
            config.workers,
            sinks,
            shared.clone(),
            Box::new(move |bad| {
                let address = &addresses[bad.listener];
                say(&format!(
                    "{address}: refused a message ({}), for example: {}",
                    bad.class, bad.example
                ));
            }),
            Box::new({
                let mut before = Totals::default();
                move |flushed| {
                    let now = Totals::of(flushed);
                    if summary {
                        say(&now.summary(&before, flushed));
                    }
                    before = now;
                }
            }),
        );
        let pipeline = std::thread::Builder::new()
            .name("pipeline".into())
            .spawn(move || pipeline.run())
            .map_err(|error| Failure::runtime(format!("a thread cannot be started: {error}")))?;

        let secret = hash_secret();
        let share = config.memory as usize / config.workers;
        let hostname: Arc<str> = config.names.hostname.as_str().into();
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
                    contexts_max: config
                        .contexts_max
                        .map_or(usize::MAX, |max| max.div_ceil(config.workers)),
                    bytes_per_context: STATE_BYTES_PER_CONTEXT,
                },
                secret,
                gauge_deltas: config.aggregation.gauge_deltas,
                listeners: planned.iter().map(|(_, options)| *options).collect(),
            };
            let end = EndSettings {
                flush_open_bucket: config.aggregation.flush_open_buckets,
            };
            let handle = weir_ingest::spawn(settings, sockets, share / 16, end, reports.clone())
                .map_err(|error| Failure::runtime(format!("ingest worker {worker}: {error}")))?;
            workers.push(handle);
        }
        Ok(Agent {
            workers,
            pipeline,
            shared,
            listeners: bound_listeners,
            stdout_books,
            deliveries,
            control,
            hostname: config.names.hostname.clone(),
            memory: config.memory,
            started_at: unix_now(),
        })
    }

    /// The books as they stand.
    fn status(&self) -> Status {
        let state = self.shared.lock().clone();
        let running = state.workers.iter().flatten().count();
        let mut status = Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            hostname: self.hostname.clone(),
            started: self.started_at,
            not_ready: (running < self.workers.len()).then(|| "not every worker has reported yet".into()),
            outputs: self
                .stdout_books
                .iter()
                .map(|(name, books)| books.status(name))
                .chain(
                    self.deliveries
                        .iter()
                        .flat_map(|(output_type, delivery)| delivery::status(output_type, delivery)),
                )
                .collect(),
            ..Status::default()
        };
        status.memory.budget = self.memory;
        books::fill(&mut status, &self.listeners, &state);
        status
    }

    /// Reads what the kernel holds, flushes, delivers.
    fn stop(mut self) {
        for worker in &self.workers {
            worker.stop();
        }
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                say("an ingest worker has panicked; its open bucket is lost");
            }
        }
        let _ = std::mem::replace(&mut self.pipeline, std::thread::spawn(|| {})).join();
        let status = self.status();
        for imbalance in status.imbalances() {
            say(&format!("the books do not balance: {imbalance}"));
        }
        // Not dropped in the ordinary way: that would wait for look-ups of names that never get an answer.
        self.control.shutdown_background();
    }
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
                totals.rejected += listener.ingest.rejected_total();
                totals.dropped += listener.ingest.dropped_total();
            }
        }
        totals
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
fn listeners(config: &Config) -> Vec<(ListenerConfig, ParseOptions)> {
    let settings = &config.listeners;
    let mut planned = Vec::new();
    let mut plan = |address: Address, framing: Option<Framing>, eol_required: bool| {
        let mut listener = ListenerConfig::new(address);
        listener.framing = framing.unwrap_or(listener.framing);
        listener.receive_buffer_bytes = settings.receive_buffer.map(|bytes| bytes as usize);
        listener.max_packet_bytes = settings.packet_bytes_max;
        listener.socket_mode = settings.socket_mode;
        listener.socket_owner = settings.socket_ownership.uid;
        listener.socket_group = settings.socket_ownership.gid;
        listener.pass_credentials = config.origin.detection;
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
        );
    }
    for path in &settings.uds {
        plan(
            Address::UnixDatagram(path.clone()),
            None,
            settings.eol_required.uds,
        );
    }
    for path in &settings.uds_stream {
        plan(Address::UnixStream(path.clone()), None, settings.eol_required.uds);
    }
    for address in &settings.tcp {
        plan(
            Address::Tcp {
                host: address.ip().to_string(),
                port: address.port(),
            },
            Some(framing),
            false,
        );
    }
    planned
}

fn expansion(config: &Config) -> Expansion {
    let settings = &config.aggregation;
    let mut aggregates: Vec<Aggregate> = settings
        .histogram_aggregates
        .iter()
        .map(|aggregate| match aggregate {
            HistogramAggregate::Max => Aggregate::Max,
            HistogramAggregate::Min => Aggregate::Min,
            HistogramAggregate::Median => Aggregate::Median,
            HistogramAggregate::Avg => Aggregate::Average,
            HistogramAggregate::Sum => Aggregate::Sum,
            HistogramAggregate::Count => Aggregate::Count,
        })
        .collect();
    aggregates.extend(
        settings
            .histogram_percentiles
            .iter()
            .map(|&percent| Aggregate::Percentile(percent)),
    );
    let weights = match settings.histogram_weights {
        HistogramWeights::Exact => Weights::Exact,
        HistogramWeights::Agent => Weights::Agent,
    };
    Expansion::new(&aggregates, weights)
}

fn rules(config: &Config, expansion: &Expansion) -> Rules {
    let names = &config.names;
    Rules::new(RuleSettings {
        namespace: names.namespace.clone(),
        namespace_exceptions: Some(names.namespace_blocklist.clone()),
        filter: NameFilter::new(names.filterlist.clone(), names.filterlist_match_prefix),
        extra_tags: names.tags.clone(),
        hostname: names.hostname.clone(),
        histogram_suffixes: expansion.suffixes().map(str::to_string).collect(),
        copy_to_distribution: config.aggregation.histogram_copy_prefix.clone(),
        max_tag_bytes: names.max_tag_length,
    })
}

/// A secret from the operating system's randomness, by way of the standard library's hash keys.
fn hash_secret() -> HashSecret {
    use std::hash::{BuildHasher, RandomState};
    let word = || RandomState::new().hash_one(0u64);
    HashSecret::from_random(word(), word())
}

fn unix_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// One line for a person. A standard error that is full or closed must not end the agent.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "weir: {text}");
}

fn wait_for_end(agent: &Agent, _loaded: Loaded, _inputs: &Inputs) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::runtime(format!("signals cannot be received: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let _ = agent;
        Ok(())
    })
}
