//! The running outputs: start, reload, end.

use std::future::Future;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use weir_aggregate::{Batch, Bucket, Expansion};
use weir_ingest::{Command, RelayChange, RelayLink, RelayLinks, WorkerHandle};
use weir_output::StartError;
use weir_output::delivery::{AgentIdentity, Clock, Delivery, OutputEnvironment, SafeSamples, SavedStates};
use weir_output::relay::Relay;
use weir_output::settings::{OutputConfig, OutputSettings};

use crate::channel::StopSignal;
use crate::scrape::ScrapeOutput;
use crate::{delivery, explain, relay};
use weir_agent::bucket_marks::BucketMark;
use weir_agent::budget::{Budget, Share};
use weir_agent::clients::Clients;
use weir_agent::history::HistoryFeed;
use weir_agent::pipeline::Consumers;
use weir_agent::state::{Tally, TransferWriter};
use weir_status::explain::ExplainedOutput;
use weir_status::series::own_series;
use weir_status::status::{OutputStatus, Status};
use weir_system::config::Config;
use weir_system::failure::Failure;

/// Time that a reload waits for the end of the current hand-over of a bucket.
const BUCKET_PATIENCE: Duration = Duration::from_secs(10);

/// Time that any flush may wait for outputs.
const FLUSH_WAIT_LEAST: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub enum Output {
    Scrape(ScrapeOutput),
    /// Delivers batches; with the name of its type.
    Delivered(&'static str, Arc<Delivery>),
    Relay(Arc<Relay>),
}

#[derive(Clone)]
pub(super) struct Running {
    pub(super) config: OutputConfig,
    pub output: Output,
}

pub(super) type List = Arc<Vec<Running>>;

struct Active {
    list: List,
    /// Version of the list, also of the pipeline's copy.
    number: u64,
    fed: u64,
}

/// Shared by pipeline, status and reloads.
pub struct Outputs {
    /// Their runtime.
    pub(super) handle: Handle,
    environment: OutputEnvironment,
    expansion: Arc<Expansion>,
    pub(super) budget: Budget,
    /// Is told what outputs will not lose.
    pub(super) tally: Option<Arc<Tally>>,
    workers: usize,
    /// Time that a flush may wait for outputs. It has to end before the next bucket does, or workers would wait too.
    pub(super) flush_wait: Mutex<Duration>,
    pub(super) grace: Duration,
    active: Mutex<Active>,
    fed: Condvar,
    pub(super) replaced: Mutex<Replaced>,
}

/// Outputs that a reload replaced or removed.
#[derive(Default)]
pub(super) struct Replaced {
    /// Outputs without successor that still deliver payloads.
    pub ending: Vec<Output>,
    /// New outputs, each with its predecessor.
    pub successors: Vec<(Arc<Delivery>, Arc<Delivery>)>,
    /// The books of ended outputs.
    ended: OutputStatus,
}

/// An output that cannot be started, and why.
#[derive(Debug, thiserror::Error)]
#[error("output {output}: {error}")]
struct OutputStartError {
    output: String,
    #[source]
    error: StartError,
}

/// A new list, not active yet.
pub struct Prepared {
    list: Vec<Running>,
    /// A new output and its predecessor.
    taking_over: Vec<(Arc<Delivery>, Arc<Delivery>)>,
    going: Vec<Output>,
}

impl Outputs {
    /// Starts all outputs. `expansion`: the series of a histogram.
    pub fn start(
        config: &Config,
        budget: &Budget,
        expansion: &Expansion,
        handle: Handle,
        saved: Arc<SavedStates>,
        agent: AgentIdentity,
        tally: Option<Arc<Tally>>,
    ) -> Result<Arc<Outputs>, Failure> {
        let told = tally.clone();
        let outputs = Arc::new(Outputs {
            handle,
            environment: OutputEnvironment {
                clock: Clock::system(),
                // Until the memory is divided.
                memory_bytes_max: budget.of_one(Share::Queues, config.outputs.len()),
                state_bytes_max: budget.of_one(Share::Cumulative, config.outputs.len()),
                host_tags: config.names.all_tags().into(),
                saved,
                safe: told.map_or_else(SafeSamples::default, |tally| SafeSamples::new(tally)),
                state_path: config.running.state_path.clone(),
                agent,
                hostname: config.names.hostname.as_str().into(),
                replaces: None,
            },
            expansion: Arc::new(expansion.clone()),
            budget: budget.clone(),
            tally,
            workers: config.resources.workers,
            flush_wait: Mutex::new(flush_wait(config)),
            grace: config.running.grace_period,
            active: Mutex::new(Active {
                list: List::default(),
                number: 0,
                fed: 0,
            }),
            fed: Condvar::new(),
            replaced: Mutex::default(),
        });
        let mut list = Vec::new();
        for wanted in &config.outputs {
            let output = outputs
                .start_one(wanted, &config.outputs, None)
                .map_err(|error| Failure::runtime(error.to_string()))?;
            list.push(Running {
                config: wanted.clone(),
                output,
            });
        }
        warn_of_idle(&list);
        outputs.divide(&list);
        outputs.register(&list);
        outputs.divide_on_request(&list);
        lock(&outputs.active).list = Arc::new(list);
        Ok(outputs)
    }

    fn start_one(
        &self,
        wanted: &OutputConfig,
        all: &[OutputConfig],
        replaces: Option<Arc<Delivery>>,
    ) -> Result<Output, OutputStartError> {
        let _entered = self.handle.enter();
        let name = &wanted.name;
        Ok(match &wanted.settings {
            OutputSettings::Prometheus(settings) => {
                let bytes_max = self.environment.state_bytes_max as usize;
                let weights = self.expansion.weights();
                let scrape = ScrapeOutput::new(name, settings.clone(), weights, bytes_max);
                scrape.restore(&self.environment.saved);
                Output::Scrape(scrape)
            }
            OutputSettings::Delivered(settings) => {
                let around = OutputEnvironment {
                    replaces,
                    memory_bytes_max: self.budget.of_one(Share::Queues, with_queues(all)),
                    ..self.environment.clone()
                };
                let delivery =
                    settings
                        .start(name, &self.expansion, &around)
                        .map_err(|error| OutputStartError {
                            output: name.clone(),
                            error,
                        })?;
                Output::Delivered(wanted.output_type, Arc::new(delivery))
            }
            OutputSettings::Relay(settings) => {
                let memory = self.budget.of_one(Share::Queues, with_queues(all));
                Output::Relay(relay::start(name, settings, self.workers, memory))
            }
        })
    }

    pub(super) fn list(&self) -> List {
        lock(&self.active).list.clone()
    }

    /// One worker's links to all relays, for its start.
    pub fn relay_links(&self, worker: usize) -> RelayLinks {
        let list = self.list();
        RelayLinks {
            relays: relays(&list).map(|relay| relay::link(relay, worker)).collect(),
            only: relays(&list).any(|relay| relay.settings().only),
        }
    }

    /// Starts new and changed outputs beside the running ones. `None` if nothing changes.
    pub fn prepare(&self, config: &Config) -> Result<Option<Prepared>, Vec<String>> {
        let current = self.list();
        let same = current.iter().map(|running| &running.config).eq(&config.outputs);
        if same {
            return Ok(None);
        }
        let mut prepared = Prepared {
            list: Vec::new(),
            taking_over: Vec::new(),
            going: Vec::new(),
        };
        let mut errors = Vec::new();
        for wanted in &config.outputs {
            if let Some(kept) = current.iter().find(|running| running.config == *wanted) {
                prepared.list.push(kept.clone());
                continue;
            }
            let old = predecessor(wanted, &current, &config.outputs);
            let replaces = old.and_then(Running::delivery);
            match self.start_one(wanted, &config.outputs, replaces.clone()) {
                Ok(output) => {
                    if let (Output::Delivered(_, new), Some(old)) = (&output, replaces) {
                        prepared.taking_over.push((new.clone(), old));
                    }
                    let output = match (old.map(|old| &old.output), output) {
                        (Some(Output::Scrape(old)), Output::Scrape(new)) => Output::Scrape(new.or_keep(old)),
                        (_, output) => output,
                    };
                    prepared.list.push(Running {
                        config: wanted.clone(),
                        output,
                    });
                }
                Err(error) => errors.push(error.to_string()),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        // A scrape has nothing to deliver at its end.
        let goes = |running: &&Running| {
            !config.outputs.contains(&running.config) && !matches!(running.output, Output::Scrape(_))
        };
        let going = current.iter().filter(goes);
        prepared.going = going.map(|running| running.output.clone()).collect();
        Ok(Some(prepared))
    }

    /// Activates a list between two buckets; a replaced output's queue moves to the new one. Waits for this: not for async tasks.
    pub fn apply(self: &Arc<Self>, prepared: Prepared, workers: &[WorkerHandle]) {
        let Prepared {
            list,
            taking_over,
            going,
        } = prepared;
        warn_of_idle(&list);
        let list = Arc::new(list);
        self.change_relays(&list, workers);
        for running in list.iter() {
            if let (Output::Scrape(scrape), OutputSettings::Prometheus(settings)) =
                (&running.output, &running.config.settings)
            {
                scrape.set_expiry(settings.expiry);
            }
        }
        {
            let mut replaced = lock(&self.replaced);
            replaced.ending.extend(going.iter().cloned());
            replaced.successors.clone_from(&taking_over);
        }
        self.divide(&list);
        self.register(&list);
        self.divide_on_request(&list);
        let mut active = lock(&self.active);
        active.list = list;
        active.number += 1;
        let is_behind = |active: &mut Active| active.fed < active.number;
        drop(self.fed.wait_timeout_while(active, BUCKET_PATIENCE, is_behind));
        for (new, old) in taking_over {
            self.handle.block_on(new.take_over(&old));
        }
        lock(&self.replaced).successors.clear();
        for output in going {
            let outputs = self.clone();
            self.handle.spawn(async move { outputs.retire(output).await });
        }
    }

    fn change_relays(&self, list: &List, workers: &[WorkerHandle]) {
        let current = self.list();
        if relays(&current)
            .map(Arc::as_ptr)
            .eq(relays(list).map(Arc::as_ptr))
        {
            return;
        }
        for (number, worker) in workers.iter().enumerate() {
            let link = |relay: &Arc<Relay>| match relays(&current).position(|known| Arc::ptr_eq(known, relay))
            {
                Some(at) => RelayLink::Kept(at),
                None => RelayLink::New(relay::link(relay, number)),
            };
            worker.send(Command::Relays(RelayChange {
                relays: relays(list).map(link).collect(),
                only: relays(list).any(|relay| relay.settings().only),
            }));
        }
    }

    /// Ends an output that was replaced or removed; its books are kept.
    async fn retire(&self, output: Output) {
        output.shutdown(self.grace).await;
        let mut replaced = lock(&self.replaced);
        replaced.ending.retain(|other| !other.is(&output));
        for status in output.status() {
            replaced.ended.add(&status.closed());
        }
    }

    pub(super) fn all(&self) -> Vec<Output> {
        let list = self.list();
        let active = list.iter().map(|running| running.output.clone());
        active
            .chain(lock(&self.replaced).ending.iter().cloned())
            .collect()
    }

    /// The running outputs, each with its name and the name of its type.
    pub fn each(&self) -> Vec<(String, &'static str, Output)> {
        let list = self.list();
        let each = list.iter().map(|running| {
            let config = &running.config;
            (config.name.clone(), config.output_type, running.output.clone())
        });
        each.collect()
    }

    /// Makes outputs that write files reopen them.
    pub fn reopen(&self) {
        for running in self.list().iter() {
            if let Output::Delivered(_, delivery) = &running.output {
                delivery.reopen();
            }
        }
    }

    /// Called when the next process continues the sums: no output sends its last markers.
    pub fn keep_state(&self) {
        for running in self.list().iter() {
            if let Output::Delivered(_, delivery) = &running.output {
                delivery.keep_state();
            }
        }
    }

    /// Starts no further request, and waits for open ones, at most `patience` and until a stop.
    pub fn pause(&self, patience: Duration, stop: &StopSignal) {
        let held = |delivery: Arc<Delivery>, stop: StopSignal| async move {
            stop.limit(delivery.pause(patience)).await;
        };
        self.each_delivery(|delivery| held(delivery, stop.clone()));
    }

    pub fn resume(&self) {
        self.deliveries().for_each(|delivery| delivery.resume());
    }

    /// Closes files that only one process can have open.
    pub fn close_files(&self) {
        self.each_delivery(|delivery| async move { delivery.close_files().await });
    }

    pub fn open_files(&self) {
        self.each_delivery(|delivery| async move { delivery.open_files().await });
    }

    pub(super) fn deliveries(&self) -> impl Iterator<Item = Arc<Delivery>> {
        self.all().into_iter().filter_map(|output| match output {
            Output::Delivered(_, delivery) => Some(delivery),
            _ => None,
        })
    }

    fn each_delivery<F: Future<Output = ()> + Send + 'static>(&self, work: impl Fn(Arc<Delivery>) -> F) {
        self.handle.block_on(async {
            let mut all = JoinSet::new();
            self.deliveries()
                .for_each(|delivery| drop(all.spawn(work(delivery))));
            while all.join_next().await.is_some() {}
        });
    }

    /// During a hold: the cumulative state of each output, and its payloads that are only in memory, by name. Relays get `patience` to send
    /// their lines, and end with a stop.
    pub fn save(
        &self,
        transfer: &mut TransferWriter,
        patience: Duration,
        stop: &StopSignal,
    ) -> io::Result<()> {
        for Running { config, output } in self.list().iter() {
            let name = &config.name;
            match output {
                Output::Scrape(scrape) => transfer.output(name, &scrape.save())?,
                Output::Delivered(_, delivery) => {
                    let (state, queue) = self.handle.block_on(delivery.save())?;
                    if let Some(state) = state {
                        transfer.output(name, &state)?;
                    }
                    transfer.queues(name, &queue)?;
                }
                Output::Relay(relay) => self.handle.block_on(stop.limit(relay::settle(relay, patience))),
            }
        }
        Ok(())
    }

    pub fn scrape(&self) -> Option<ScrapeOutput> {
        self.list().iter().find_map(|running| match &running.output {
            Output::Scrape(scrape) => Some(scrape.clone()),
            _ => None,
        })
    }

    /// The series that each output makes of a bucket.
    pub fn preview(&self, bucket: &Batch) -> Vec<ExplainedOutput> {
        explain::series(
            self.list().iter().map(|running| &running.config),
            bucket,
            &self.expansion,
        )
    }

    /// Adds the outputs and their memory.
    pub fn report(&self, status: &mut Status) {
        let list = self.list();
        let outputs = || list.iter().map(|running| &running.output);
        status.outputs.extend(outputs().flat_map(Output::status));
        let queued: u64 = outputs().map(Output::queued_bytes).sum();
        let replaced = lock(&self.replaced);
        status.outputs.extend(replaced.report());
        let ending: u64 = replaced.ending.iter().map(Output::queued_bytes).sum();
        let deliveries = || list.iter().filter_map(Running::delivery);
        let inboxes: u64 = deliveries().map(|delivery| delivery.inbox_bytes()).sum();
        let states: u64 = deliveries().map(|delivery| delivery.state_bytes()).sum();
        for (part, bytes) in [
            ("queues", queued + ending),
            ("batches", inboxes),
            ("cumulative", states),
        ] {
            *status.memory.parts.entry(part.into()).or_default() += bytes;
        }
    }
}

impl Running {
    pub fn delivery(&self) -> Option<Arc<Delivery>> {
        match &self.output {
            Output::Delivered(_, delivery) => Some(delivery.clone()),
            _ => None,
        }
    }
}

impl Output {
    fn is(&self, other: &Output) -> bool {
        match (self, other) {
            (Output::Delivered(_, one), Output::Delivered(_, other)) => Arc::ptr_eq(one, other),
            (Output::Relay(one), Output::Relay(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    pub fn take(&self, batch: &Arc<Batch>) {
        match self {
            Output::Scrape(scrape) => scrape.take(batch),
            Output::Delivered(_, delivery) => delivery.submit(batch),
            Output::Relay(_) => {}
        }
    }

    pub(super) async fn settle(&self, patience: Duration) -> bool {
        match self {
            Output::Scrape(_) => true,
            Output::Delivered(_, delivery) => delivery.settle(patience).await,
            Output::Relay(relay) => relay::settle(relay, patience).await,
        }
    }

    /// Ends after the last flush, which an output that is not settled does not deliver.
    pub(super) async fn finish(&self, is_settled: bool, patience: Duration) {
        match self {
            Output::Scrape(_) => {}
            Output::Delivered(_, delivery) => delivery.finish(is_settled, patience).await,
            Output::Relay(relay) if is_settled => relay::finish(relay, patience).await,
            Output::Relay(relay) => relay.shutdown(Duration::ZERO).await,
        }
    }

    async fn shutdown(&self, grace: Duration) {
        match self {
            Output::Scrape(_) => {}
            Output::Delivered(_, delivery) => delivery.shutdown(grace).await,
            Output::Relay(relay) => relay.shutdown(grace).await,
        }
    }

    /// The scrape reports itself.
    fn status(&self) -> Vec<OutputStatus> {
        match self {
            Output::Scrape(_) => Vec::new(),
            Output::Delivered(output_type, delivery) => delivery::status(output_type, delivery),
            Output::Relay(relay) => relay::status(relay),
        }
    }

    pub fn queued_bytes(&self) -> u64 {
        match self {
            Output::Scrape(_) => 0,
            Output::Delivered(_, delivery) => delivery::queued_bytes(delivery),
            Output::Relay(relay) => relay::queued_bytes(relay),
        }
    }
}

impl Replaced {
    /// One entry for all of them; none if there is nothing to report.
    fn report(&self) -> Option<OutputStatus> {
        let mut sum = self.ended.clone();
        for status in self.ending.iter().flat_map(Output::status) {
            let waiting = status.waiting();
            if waiting > 0 {
                sum.notes.push(format!("{}: {waiting} to deliver", status.name));
            }
            sum.add(&status);
        }
        sum.name = "replaced outputs".into();
        sum.output_type = "replaced".into();
        sum.healthy = true;
        sum.has_produced().then_some(sum)
    }
}

/// Receives flushed batches from the pipeline.
pub struct Feed {
    outputs: Arc<Outputs>,
    list: List,
    history: Option<HistoryFeed>,
    clients: Arc<Clients>,
}

impl Feed {
    pub fn new(outputs: Arc<Outputs>, history: Option<HistoryFeed>, clients: Arc<Clients>) -> Feed {
        let list = outputs.list();
        Feed {
            outputs,
            list,
            history,
            clients,
        }
    }

    /// Size of merged batches.
    pub fn batch_bytes(&self) -> usize {
        self.outputs.budget.batch_bytes()
    }
}

impl Consumers for Feed {
    /// Switches to a list that a reload has activated.
    fn renew(&mut self) {
        let mut active = lock(&self.outputs.active);
        if active.fed < active.number {
            active.fed = active.number;
            self.list = active.list.clone();
            self.outputs.fed.notify_all();
        }
    }

    /// The books need the outputs' counters between two buckets.
    fn begin(&mut self, bucket: Bucket) {
        if let Some(history) = &self.history {
            let mut status = Status::default();
            self.outputs.report(&mut status);
            if let Some(scrape) = self.outputs.scrape() {
                scrape.report(&mut status);
            }
            history.mark(BucketMark::before(bucket, own_series(&status)));
        }
    }

    /// An output drops and counts batches it cannot queue.
    fn take(&mut self, batch: &Arc<Batch>) {
        self.list.iter().for_each(|running| running.output.take(batch));
        if batch.last {
            // An output above its part may have delivered the excess by now.
            self.outputs.divide(&self.list);
        }
        if let Some(history) = &self.history {
            history.take(batch);
        }
        self.clients.take(batch);
    }
}

/// Half a bucket. With short buckets more, because a machine may be busy for a moment.
fn flush_wait(config: &Config) -> Duration {
    let half = Duration::from_secs(config.aggregation.bucket_seconds()) / 2;
    half.max(FLUSH_WAIT_LEAST)
}

/// The output that a changed one replaces: the one with its name, or, if one of a type was removed and one added, that one.
fn predecessor<'a>(
    wanted: &OutputConfig,
    current: &'a [Running],
    all: &[OutputConfig],
) -> Option<&'a Running> {
    let of_type = |config: &&OutputConfig| config.output_type == wanted.output_type;
    let known = |config: &OutputConfig| current.iter().find(|running| running.config.name == config.name);
    if let Some(old) = known(wanted) {
        return Some(old).filter(|old| of_type(&&old.config));
    }
    let has_gone = |running: &&Running| {
        of_type(&&running.config) && !all.iter().any(|config| config.name == running.config.name)
    };
    let mut gone = current.iter().filter(has_gone);
    let new = all
        .iter()
        .filter(of_type)
        .filter(|config| known(config).is_none());
    match (gone.next(), gone.next(), new.count()) {
        (Some(old), None, 1) => Some(old),
        _ => None,
    }
}

/// Number of outputs with a queue.
fn with_queues(all: &[OutputConfig]) -> usize {
    let has_queue = |wanted: &&OutputConfig| !matches!(wanted.settings, OutputSettings::Prometheus(_));
    all.iter().filter(has_queue).count()
}

pub(super) fn relays(list: &[Running]) -> impl Iterator<Item = &Arc<Relay>> {
    list.iter().filter_map(|running| match &running.output {
        Output::Relay(relay) => Some(relay),
        _ => None,
    })
}

/// Warns about a relay that takes all messages and leaves none for other outputs.
fn warn_of_idle(list: &[Running]) {
    let idle = list.iter().find_map(Running::delivery);
    if let (Some(relay), Some(idle)) = (relays(list).find(|relay| relay.settings().only), idle) {
        let (relay, output) = (relay.name(), idle.name());
        tracing::warn!(
            "with outputs.{relay}.only nothing is aggregated; outputs such as {output} get no data"
        );
    }
}

/// A poisoned lock is harmless: the data is consistent after every statement.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
