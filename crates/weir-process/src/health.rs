//! The thread that watches the others, and the files of sockets.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use weir_agent::supervision::{Health, PULSE, Supervisor};
use weir_counters::Counts;
use weir_ingest::{Command, CommandSender, Progress, WorkerHandle};
use weir_listener::{BindError, BoundSocket, FileId, ListenerConfig, ListenerId, Monotonic};
use weir_status::counters::ProgramCounter;
use weir_status::status::Status;

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
        let health = Arc::new(Health::new(listeners));
        let progress: Vec<_> = workers.iter().map(WorkerHandle::progress).collect();
        let check = HealthCheck {
            health: health.clone(),
            supervisor: Supervisor::new(health.clone(), progress.clone(), pipeline, Monotonic::now()),
            workers: progress,
            commands: workers.iter().map(WorkerHandle::commands).collect(),
            files,
        };
        let thread = std::thread::Builder::new()
            .name("watch".into())
            .spawn(move || check.run())?;
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
        self.health.end();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            // A panic there would be a bug that does not affect the end.
            let _ = thread.join();
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
    supervisor: Supervisor,
    workers: Vec<Arc<Progress>>,
    commands: Vec<CommandSender>,
    files: Vec<SocketFile>,
}

impl HealthCheck {
    fn run(mut self) {
        while !self.health.has_ended() {
            std::thread::park_timeout(PULSE);
            if let Some(mut errors) = self.supervisor.pulse(Monotonic::now()) {
                self.check_files(&mut errors);
                self.health.report(errors);
            }
        }
    }

    fn check_files(&mut self, errors: &mut Vec<String>) {
        // The sockets of an ended worker are not read.
        let workers = &self.workers;
        let read = |file: &&mut SocketFile| !workers[file.worker].has_ended();
        for file in self.files.iter_mut().filter(read) {
            match file.check() {
                Ok(None) => {}
                Ok(Some(socket)) => {
                    self.health.remade(usize::from(file.id.0));
                    self.commands[file.worker].send(Command::Socket(file.id, Box::new(socket)));
                }
                Err(error) => errors.push(error.to_string()),
            }
        }
    }
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
