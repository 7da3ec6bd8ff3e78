//! Health checks: workers make progress, socket files exist, the process gets CPU time.

#![allow(
    clippy::disallowed_methods,
    reason = "a thread watches the others by real time"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use weir_counters::Counts;
use weir_ingest::{Command, CommandSender, Progress, WorkerCounter, WorkerHandle};
use weir_listener::{BindError, BoundSocket, FileId, ListenerConfig, ListenerId, Monotonic};

use weir_status::counters::{ProgramCounter, SocketCounter};
use weir_status::status::Status;

/// Interval of checking that the process gets CPU time.
const PULSE: Duration = Duration::from_millis(100);

/// A pulse later than this means that the process or the machine was stopped.
const PAUSE: Duration = Duration::from_millis(100);

/// Pulses between two checks of workers and files.
const PULSES_PER_LOOK: u32 = 10;

/// A worker ends a turn every second, even without input. One that has not for this long is stuck.
const STALL: Duration = Duration::from_secs(5);

/// Read by the admin server and updated by a separate thread: a stuck thread cannot report itself.
#[derive(Default)]
pub struct Health {
    /// Current problems, one sentence each.
    errors: Mutex<Vec<String>>,
    longest_pause_ns: AtomicU64,
    /// Number of times each listener's socket file was created again, by listener number.
    remade: Vec<AtomicU64>,
    ended: AtomicBool,
}

/// The socket file of a listener, before its worker starts.
pub struct SocketFile {
    worker: usize,
    id: ListenerId,
    file: FileId,
    config: ListenerConfig,
}

/// The socket files of bound sockets. `configs` is in the order of listener numbers.
pub fn socket_files<'a>(
    of_workers: &[Vec<(BoundSocket, ListenerId)>],
    configs: impl Iterator<Item = &'a ListenerConfig> + Clone,
) -> Vec<SocketFile> {
    let sockets = of_workers
        .iter()
        .enumerate()
        .flat_map(|(worker, sockets)| sockets.iter().map(move |socket| (worker, socket)));
    let file = |(worker, (socket, id)): (usize, &(BoundSocket, ListenerId))| {
        Some(SocketFile {
            worker,
            id: *id,
            file: socket.file_id()?,
            config: configs.clone().nth(usize::from(id.0))?.clone(),
        })
    };
    sockets.filter_map(file).collect()
}

/// The checking thread.
pub struct Watch {
    health: Arc<Health>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Watch {
    pub fn start(
        workers: &[WorkerHandle],
        pipeline: Weak<()>,
        files: Vec<SocketFile>,
        listeners: usize,
    ) -> std::io::Result<Watch> {
        let health = Arc::new(Health {
            remade: (0..listeners).map(|_| AtomicU64::new(0)).collect(),
            ..Health::default()
        });
        let check = HealthCheck {
            health: health.clone(),
            workers: workers.iter().map(WorkerHandle::progress).collect(),
            commands: workers.iter().map(WorkerHandle::commands).collect(),
            pipeline,
            files,
        };
        let started = Instant::now();
        let thread = std::thread::Builder::new()
            .name("watch".into())
            .spawn(move || check.run(started))?;
        Ok(Watch {
            health,
            thread: Mutex::new(Some(thread)),
        })
    }

    pub fn health(&self) -> Arc<Health> {
        self.health.clone()
    }

    /// Stops the checks, because workers and socket files will end.
    pub fn end(&self) {
        self.health.ended.store(true, Ordering::Release);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            // A panic there would be a bug that does not affect the end.
            let _ = thread.join();
        }
    }
}

impl Health {
    /// The first problem.
    pub fn error(&self) -> Option<String> {
        self.lock().first().cloned()
    }

    pub fn fill(&self, status: &mut Status) {
        let mut counts = Counts::default();
        counts[WorkerCounter::LongestGapNs] = self.longest_pause_ns.load(Ordering::Relaxed);
        status.add(None, &counts);
        for (listener, remade) in self.remade.iter().enumerate() {
            let mut socket = Counts::default();
            socket[SocketCounter::FilesRemade] = remade.load(Ordering::Relaxed);
            status.add(Some(listener), &socket);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the current problems, and logs changes.
    fn report(&self, found: Vec<String>) {
        let mut errors = self.lock();
        for error in found.iter().filter(|error| !errors.contains(error)) {
            tracing::error!("not ready: {error}");
        }
        if found.is_empty() && !errors.is_empty() {
            tracing::info!("ready again");
        }
        *errors = found;
    }

    /// Records that the process was stopped.
    fn paused(&self, pause: Duration) {
        if pause >= PAUSE {
            self.longest_pause_ns
                .fetch_max(pause.as_nanos() as u64, Ordering::Relaxed);
        }
        if pause >= Duration::from_secs(1) {
            let seconds = pause.as_secs_f64();
            tracing::warn!(
                "the process did not run for {seconds:.1} s: it was stopped, or the machine was busy or suspended"
            );
        }
    }
}

/// Adds what happened to the program itself.
pub fn fill_program(status: &mut Status) {
    let mut counts = Counts::default();
    counts[ProgramCounter::Panics] = weir_system::logging::panics();
    status.add(None, &counts);
}

struct HealthCheck {
    health: Arc<Health>,
    workers: Vec<Arc<Progress>>,
    commands: Vec<CommandSender>,
    /// Held by the pipeline thread while it runs.
    pipeline: Weak<()>,
    files: Vec<SocketFile>,
}

impl HealthCheck {
    /// `before`: when the thread was started, which may be long before it runs.
    fn run(mut self, mut before: Instant) {
        let mut pulses = 0;
        while !self.health.ended.load(Ordering::Acquire) {
            std::thread::park_timeout(PULSE);
            let now = Instant::now();
            self.health.paused((now - before).saturating_sub(PULSE));
            before = now;
            pulses += 1;
            if pulses % PULSES_PER_LOOK == 0 && !self.health.ended.load(Ordering::Acquire) {
                let errors = self.check(Monotonic::now());
                self.health.report(errors);
            }
        }
    }

    fn check(&mut self, now: Monotonic) -> Vec<String> {
        let workers = self.workers.iter().enumerate();
        let mut errors: Vec<String> = workers
            .filter_map(|(number, worker)| worker_error(number, worker, now))
            .collect();
        if self.pipeline.strong_count() == 0 {
            errors.push("the thread that merges buckets has ended: outputs get no data; restart weir".into());
        }
        // The sockets of an ended worker are not read.
        let workers = &self.workers;
        let read = |file: &&mut SocketFile| !workers[file.worker].has_ended();
        for file in self.files.iter_mut().filter(read) {
            match file.check() {
                Ok(None) => {}
                Ok(Some(socket)) => {
                    self.health.remade[usize::from(file.id.0)].fetch_add(1, Ordering::Relaxed);
                    self.commands[file.worker].send(Command::Socket(file.id, Box::new(socket)));
                }
                Err(error) => errors.push(error.to_string()),
            }
        }
        errors
    }
}

fn worker_error(number: usize, worker: &Progress, now: Monotonic) -> Option<String> {
    if worker.has_ended() {
        return Some(format!(
            "ingest worker {number} has ended: its sockets are not read; restart weir"
        ));
    }
    (worker.since_turn(now) >= STALL).then(|| {
        let seconds = STALL.as_secs();
        format!("ingest worker {number} is stuck: it has not received for {seconds} s")
    })
}

/// A socket file cannot be created again.
#[derive(Debug, thiserror::Error)]
#[error("the socket file of {address} {what} and cannot be created again: {error}")]
struct SocketFileError {
    address: String,
    what: &'static str,
    #[source]
    error: BindError,
}

impl SocketFile {
    /// Creates the socket again if its file is missing. `Err`: why this failed.
    fn check(&mut self) -> Result<Option<BoundSocket>, SocketFileError> {
        let Some(path) = self.config.address.path() else {
            return Ok(None);
        };
        let found = FileId::at(path);
        if found == Some(self.file) {
            return Ok(None);
        }
        let what = if found.is_none() {
            "is missing"
        } else {
            "was replaced"
        };
        let address = &self.config.address;
        let socket = weir_listener::bind(&self.config).map_err(|error| SocketFileError {
            address: address.to_string(),
            what,
            error,
        })?;
        if let Some(file) = socket.file_id() {
            self.file = file;
        }
        tracing::warn!(
            "the socket file of {address} {what}: weir created it again, and clients have to reconnect"
        );
        Ok(Some(socket))
    }
}
