//! The messages between two processes when one takes over from the other. `docs/restart.md` has the order.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

mod channel;
pub mod starter;

pub use channel::{Channel, DESCRIPTORS_MAX};

/// The socket in the state directory.
pub fn socket_path(directory: &Path) -> PathBuf {
    directory.join("hand-over")
}

/// The version of what is said.
pub const PROTOCOL: u32 = 2;

/// How long one step may take, unless it says otherwise.
pub const STEP_MAX: Duration = Duration::from_secs(10);

/// How long the new process may take to start what can be started beside the old one, and the old one to deliver and collect.
pub const PREPARATION_MAX: Duration = Duration::from_secs(60);

/// Bodies before anything is known of each other.
pub const GREETING_BYTES_MAX: u64 = 64 << 10;

/// From the new process, or a command that asks for one.
pub const HELLO: u8 = 1;
/// From the old process, as all that follow unless they say otherwise.
pub const GREETING: u8 = 2;
/// With the reason.
pub const REFUSED: u8 = 3;
/// The sockets of one listener.
pub const SOCKETS: u8 = 4;
/// The socket of the admin address.
pub const ADMIN: u8 = 5;
/// There are no more sockets.
pub const SOCKETS_END: u8 = 6;
/// From the new process: everything is there that does not need the state.
pub const BEGIN: u8 = 7;
/// The connections of one worker follow, and those that came before do not count any more.
pub const AGAIN: u8 = 8;
/// Open connections.
pub const CONNECTIONS: u8 = 9;
/// With a file that has what a file of state has.
pub const STATE: u8 = 10;
/// With the lock of the directory.
pub const END: u8 = 11;
/// From the new process: it has read all of that.
pub const COMMIT: u8 = 12;
/// The sockets are not read now.
pub const GO: u8 = 13;
/// From the new process: it reads them.
pub const RUNNING: u8 = 14;
/// To the command that asked for a new process: it runs.
pub const DONE: u8 = 15;
/// After RUNNING, if the new process asked for it there: a part of the history of points, and of the books.
pub const POINTS: u8 = 16;
pub const BOOKS: u8 = 17;
/// There is no more of either.
pub const HISTORY_END: u8 = 18;

/// What RUNNING says of a new process that keeps a history.
pub const WANTS_HISTORY: &[u8] = b"history";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub weir: String,
    pub protocol: u32,
    /// The newest version of state that it reads.
    pub state: u8,
    pub asks: Asks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asks {
    TakeOver,
    /// Start the program on disk, and let it take over.
    Upgrade,
}

impl Hello {
    pub fn new(asks: Asks) -> Hello {
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
    pub weir: String,
    pub protocol: u32,
    pub state: u8,
    pub pid: u32,
}

/// The sockets of one listener, which go with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketsOf {
    /// As the configuration writes its address.
    pub address: String,
    /// A service manager's socket unit has opened them.
    pub of_unit: bool,
}

/// One of the connections that go with a message, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionOf {
    /// As the configuration writes the listener's address.
    pub address: String,
    /// Frames have a length; otherwise they are lines.
    pub lengths: bool,
    pub partial: Vec<u8>,
    pub skipping: bool,
}

/// What a hand-over took until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Monotonic nanoseconds at which the first worker stopped reading.
    pub since: u64,
    pub connections: u64,
    /// Over TLS: they end with the old process.
    pub encrypted: u64,
}
