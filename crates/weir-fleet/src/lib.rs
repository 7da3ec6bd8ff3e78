//! `weir merge`: combines the log, the owner of its partitions, the outputs and signals.

use std::hash::BuildHasher as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_config::LogReader;
use weir_log::Connection;
use weir_merge::{Plan, Settings};
use weir_units::counted;

use weir_admin::{AdminServer, AdminSource as _, Callers, ConnectionLimits};
use weir_agent::budget::Budget;
use weir_process::signals::{Request, Signals};
use weir_process::{outputs_runtime, reporting, second_stop};
use weir_system::config::{Config, Inputs, Loaded};
use weir_system::failure::Failure;
use weir_system::logging::Logging;
use weir_system::notify::{Notify, publish_admin};
use weir_system::sandbox;

mod follower;
mod place;
mod reading;
mod report;
mod shared;
mod view;

use reading::Reading;
use shared::Shared;
use view::View;

/// The log of a merge.
pub type FleetLog = weir_log::AnyLog;

/// Directory of the marks of outputs.
const SENT: &str = "sent";

/// Time limit of one call to brokers.
const LOG_TIMEOUT: Duration = Duration::from_secs(10);

/// The part of the memory of open buckets that records take before they are merged.
const RECORDS_PART: usize = 16;

/// The owner has a turn at least this often; otherwise it is stuck.
const TURN_MAX: Duration = Duration::from_secs(10);

/// Opens the log as this output sees it.
pub fn open_for_output(config: &Config, output: &str) -> Result<FleetLog, Failure> {
    let merge = config.merge.as_ref();
    let merge = merge.ok_or_else(|| Failure::usage("no merge is configured"))?;
    let read_ahead = Budget::new(config).results_of_output(config.outputs.len());
    let log = FleetLog::open_for_output(&member(config, &merge.log, read_ahead), output);
    log.map_err(|error| Failure::runtime(format!("log: {error}")))
}

/// Opens the log that a merge reads.
pub fn open(reader: &LogReader) -> Result<FleetLog, Failure> {
    of_connection(&connection(reader))
}

fn of_connection(connection: &Connection) -> Result<FleetLog, Failure> {
    FleetLog::open(connection).map_err(|error| Failure::runtime(format!("log: {error}")))
}

fn connection(reader: &LogReader) -> Connection {
    weir_output::kafka::connection(&reader.log, &reader.group, LOG_TIMEOUT)
}

/// The connection of this process as a member of the groups. `read_ahead`: bytes.
fn member(config: &Config, reader: &LogReader, read_ahead: usize) -> Connection {
    let mut connection = connection(reader);
    if let Connection::Kafka(brokers) = &mut connection {
        brokers.read_ahead = read_ahead;
        brokers.instance = reader.static_member.then(|| instance(config));
    }
    connection
}

/// The name of a static member: the same after a restart, and another one for each process of a machine.
fn instance(config: &Config) -> String {
    let state_path = config.running.state_path.iter();
    let state_path: Vec<u8> = state_path
        .flat_map(|path| path.as_os_str().as_encoded_bytes().to_vec())
        .collect();
    format!("{}-{:08x}", config.names.hostname, crc32fast::hash(&state_path))
}

fn unix_ms() -> i64 {
    weir_log::unix_milliseconds()
}

/// Runs until a signal stops it.
pub fn run(loaded: Loaded, inputs: &Inputs) -> Result<(), Failure> {
    let mut logging = Logging::new(loaded.config.running.log_level);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    for note in &loaded.notes {
        tracing::info!("{note}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()
        .map_err(|error| Failure::runtime(format!("the control plane cannot be started: {error}")))?;
    let result = control(&runtime, &mut logging, &loaded, inputs);
    runtime.shutdown_background();
    result
}

fn control(
    runtime: &tokio::runtime::Runtime,
    logging: &mut Logging,
    loaded: &Loaded,
    inputs: &Inputs,
) -> Result<(), Failure> {
    let config = &loaded.config;
    let (signals, admin) = runtime.block_on(async {
        let signals = Signals::install()
            .map_err(|error| Failure::runtime(format!("signals cannot be received: {error}")))?;
        let admin = AdminServer::bind(&config.addresses.admin, |_| None)
            .await
            .map_err(|error| Failure::runtime(error.to_string()))?;
        Ok::<_, Failure>((signals, admin))
    })?;
    publish_admin(admin.as_ref().map(|admin| admin.sockets().first()));
    let notify = Arc::new(Notify::of_environment());
    let merge = config
        .merge
        .as_ref()
        .ok_or_else(|| Failure::usage("no merge is configured"))?;
    let budget = Budget::new(config);
    let log = of_connection(&member(config, &merge.log, budget.open_buckets() / RECORDS_PART))?;
    // Runs while this is the only thread, after the last step that needs the dropped rights.
    let sandbox = sandbox::enter(loaded, weir_system::config::file(inputs).as_deref());
    logging
        .write()
        .map_err(|error| Failure::runtime(format!("the log's thread cannot be started: {error}")))?;
    let outputs = outputs_runtime()?;
    let shared = Arc::new(Shared::default());
    let directory = directory_of_sent(config)?;
    let threads = follower::start(config, &budget, directory, outputs.handle(), &shared)?;
    let names = config.outputs.iter().map(|output| output.name.clone()).collect();
    let reading = Reading::new(log, settings(config, &budget), threads, names, shared.clone());
    let view = View::new(shared.clone(), budget, config.names.hostname.clone(), sandbox);
    let served = runtime.block_on(serve(config, admin, signals, notify, Arc::new(view), reading));
    // Not dropped normally: that would wait for unanswered look-ups of names.
    outputs.shutdown_background();
    served
}

/// Marks what outputs are given in the state directory, or beside a log that is a directory, where each process that takes over finds it.
fn directory_of_sent(config: &Config) -> Result<PathBuf, Failure> {
    let of_log = config
        .merge
        .as_ref()
        .and_then(|merge| merge.log.log.directory.as_ref());
    let directory = config.running.state_path.as_ref().or(of_log);
    let directory = directory.map(|directory| directory.join(SENT));
    directory.ok_or_else(|| {
        Failure::usage(
            "state_path: is missing; a merge notes there what outputs are given, unless its log is a directory",
        )
    })
}

fn settings(config: &Config, budget: &Budget) -> Settings {
    let mut settings = Settings {
        plan: Plan::new(1),
        memory: budget.open_buckets(),
        hash_seed: std::hash::RandomState::new().hash_one(0),
        ..Settings::default()
    };
    if let Some(merge) = &config.merge {
        settings.grace = merge.grace.as_secs() as i64;
        settings.max_skew = merge.max_skew.as_secs() as i64;
    }
    settings.threads = closing_threads(config.resources.memory as usize);
    settings
}

/// One per core, as long as together they take no more than a sixteenth of the memory.
fn closing_threads(memory: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    cores.min(memory / 16 / weir_state::THREAD_BYTES).max(1)
}

async fn serve(
    config: &Config,
    admin: Option<AdminServer>,
    mut signals: Signals,
    notify: Arc<Notify>,
    view: Arc<View>,
    reading: Reading,
) -> Result<(), Failure> {
    if let Some(server) = admin {
        let address = server.sockets().first();
        server.sockets().announce();
        tracing::info!("{}", banner(config, address));
        let callers = Callers::new(&config.running);
        tokio::spawn(server.serve(view.clone(), callers, ConnectionLimits::default()));
    }
    let reporting_task = tokio::spawn(report(notify.clone(), view.clone()));
    let mut reading = tokio::task::spawn_blocking(move || reading.run());
    let ended = |ended: Result<Result<(), Failure>, tokio::task::JoinError>| match ended {
        Ok(result) => result,
        Err(error) => Err(Failure::runtime(format!(
            "the thread that merges has ended: {error}"
        ))),
    };
    let signal = tokio::select! {
        result = &mut reading => return ended(result),
        signal = stop_signal(&mut signals, &view) => signal,
    };
    tracing::info!(
        "{signal}: merging and committing everything that has arrived; outputs deliver their queues"
    );
    view.stopping.store(true, Ordering::Release);
    reporting_task.abort();
    notify.stopping();
    view.shared.stop();
    let result = tokio::select! {
        result = &mut reading => ended(result),
        signal = second_stop(&mut signals) => {
            Err(Failure::runtime(format!("{signal} again: stopped at once; the next process delivers the rest")))
        }
    };
    for imbalance in view.snapshot().imbalances() {
        tracing::error!("the books do not balance: {imbalance}");
    }
    result
}

/// Waits until the process has to stop. SIGHUP makes outputs reopen their files.
async fn stop_signal(signals: &mut Signals, view: &View) -> &'static str {
    loop {
        match signals.next().await {
            Request::Stop(name) => return name,
            Request::Reload => {
                view.shared.outputs().iter().for_each(|outputs| outputs.reopen());
                tracing::warn!("SIGHUP: files are reopened; a changed configuration needs a restart");
            }
            Request::Upgrade => {
                tracing::warn!("SIGUSR2: a merge is upgraded by a restart, which loses nothing")
            }
        }
    }
}

/// The log line at the start.
fn banner(config: &Config, address: std::net::SocketAddr) -> String {
    let outputs: Vec<&str> = config.outputs.iter().map(|output| output.name.as_str()).collect();
    let outputs = match outputs.as_slice() {
        [] => "no output".to_owned(),
        names => format!("outputs {}", names.join(", ")),
    };
    let memory = weir_units::show_size(config.resources.memory);
    let version = weir_admin::version::version_and_commit();
    let page = weir_admin::page_url(address);
    format!("weir {version} merges a fleet: {outputs}; {memory} of memory; open {page} to see its state")
}

/// Reports to the service manager while the merge runs.
async fn report(notify: Arc<Notify>, view: Arc<View>) {
    let is_ready = || view.readiness().is_ok();
    let is_alive = || view.shared.has_turned_within(TURN_MAX);
    reporting::report(notify, is_ready, is_alive, || line(&view)).await;
}

/// The state in one line.
fn line(view: &View) -> String {
    use weir_status::fleet::FleetCounter;
    let fleet = view.shared.report();
    let of = |counter| fleet.numbers.of(counter);
    format!(
        "{}, {} of {} seen, {} behind",
        counted(of(FleetCounter::Partitions), "partitions"),
        of(FleetCounter::AgentsSeen),
        counted(of(FleetCounter::AgentsExpected), "agents"),
        counted(of(FleetCounter::LagRecords), "records")
    )
}
