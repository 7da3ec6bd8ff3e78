//! The messages between two processes when one takes over from the other. `docs/restart.md` has the order.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::watch;

use weir_status::bad_bytes::text;

mod channel;
pub mod starter;

pub use channel::{Channel, DESCRIPTORS_MAX, has_ended};

/// The socket in the state directory.
pub fn socket_path(directory: &Path) -> PathBuf {
    directory.join("hand-over")
}

/// The version of the protocol.
pub const PROTOCOL: u32 = 3;

/// Time limit of a step, with all its messages.
pub const STEP_MAX: Duration = Duration::from_secs(10);

/// Time limit for the new process to start everything that can run beside the old one. The old one may hand over to another process
/// before it answers.
pub const PREPARATION_MAX: Duration = Duration::from_secs(60);

/// Time limit for the old process to send its state, which takes it several steps.
pub const STATE_MAX: Duration = Duration::from_secs(40);

/// Time limit of a request for a new process: it prepares itself and takes over.
pub const UPGRADE_MAX: Duration = Duration::from_secs(120);

/// Maximum size of a body before the versions are known.
pub const GREETING_BYTES_MAX: u64 = 64 << 10;

/// From the new process, or from a command that requests one.
pub const HELLO: u8 = 1;
/// From the old process, like all following messages unless noted otherwise.
pub const GREETING: u8 = 2;
/// With the reason.
pub const REFUSED: u8 = 3;
/// The sockets of one listener.
pub const SOCKETS: u8 = 4;
/// The socket of the admin address.
pub const ADMIN: u8 = 5;
/// End of the sockets.
pub const SOCKETS_END: u8 = 6;
/// From the new process: everything that needs no state is ready.
pub const BEGIN: u8 = 7;
/// The connections of one worker follow, and replace those sent before.
pub const AGAIN: u8 = 8;
/// Open connections.
pub const CONNECTIONS: u8 = 9;
/// With a file in the format of a state file.
pub const STATE: u8 = 10;
/// End of the state, with the lock of the directory and the socket at [`socket_path`].
pub const END: u8 = 11;
/// From the new process: it has read all of it.
pub const COMMIT: u8 = 12;
/// The old process no longer reads the sockets.
pub const GO: u8 = 13;
/// From the new process: it reads the sockets.
pub const RUNNING: u8 = 14;
/// To the command that requested a new process: it runs.
pub const DONE: u8 = 15;
/// After RUNNING, if the new process requested it there: a part of the history of points, and of the books.
pub const POINTS: u8 = 16;
pub const BOOKS: u8 = 17;
/// End of both.
pub const HISTORY_END: u8 = 18;

/// Body of RUNNING from a new process with a history.
pub const WANTS_HISTORY: &[u8] = b"history";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    #[serde(deserialize_with = "visible")]
    pub weir: String,
    pub protocol: u32,
    /// The newest version of state that it can read.
    pub state: u8,
    pub asks: HandOverRequest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandOverRequest {
    TakeOver,
    /// Start the program on disk and let it take over.
    Upgrade,
}

impl Hello {
    pub fn new(asks: HandOverRequest) -> Hello {
        Hello {
            weir: env!("CARGO_PKG_VERSION").into(),
            protocol: PROTOCOL,
            state: crate::state::VERSION,
            asks,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    #[serde(deserialize_with = "visible")]
    pub weir: String,
    pub protocol: u32,
    pub state: u8,
    pub pid: u32,
}

/// Text of the other process as visible characters on one line: it is logged.
fn visible<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let found = String::deserialize(deserializer)?;
    Ok(text(found.as_bytes()))
}

/// One listener; its sockets are attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedListener {
    /// The address as configured.
    pub address: String,
    /// Opened by a service manager's socket unit.
    pub of_unit: bool,
}

/// One of the attached connections, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedConnection {
    /// The listener's address as configured.
    pub address: String,
    /// Length-prefixed frames if true, otherwise lines.
    pub lengths: bool,
    pub partial: Vec<u8>,
    pub skipping: bool,
}

/// Progress of a hand-over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Monotonic nanoseconds at which the first worker stopped reading.
    pub since: u64,
    pub connections: u64,
    /// TLS connections: they end with the old process.
    pub encrypted: u64,
}

/// The stop of this process, which ends its waits for another one. Set once, when it is asked to stop.
#[derive(Clone, Debug)]
pub struct StopSignal(Arc<StopState>);

#[derive(Debug)]
struct StopState {
    since: watch::Sender<Option<Instant>>,
    /// Readable from then on.
    event: OwnedFd,
}

impl StopSignal {
    pub fn new() -> io::Result<StopSignal> {
        Ok(StopSignal(Arc::new(StopState {
            since: watch::Sender::new(None),
            event: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })))
    }

    pub fn set(&self) {
        self.0.since.send_modify(|since| {
            since.get_or_insert_with(Instant::now);
        });
        // It fails only if the counter is full, and then it is readable too.
        let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
    }

    pub fn since(&self) -> Option<Instant> {
        *self.0.since.borrow()
    }

    pub fn is_set(&self) -> bool {
        self.since().is_some()
    }

    /// Completes when `work` does, or this is set.
    pub async fn limit<F: Future>(&self, work: F) {
        let mut since = self.0.since.subscribe();
        tokio::select! {
            _ = work => {}
            _ = since.wait_for(Option::is_some) => {}
        }
    }
}

/// Readable when it is set.
impl AsFd for StopSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
