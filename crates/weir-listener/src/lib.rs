//! Sockets, batched receive, origin credentials, stream framing.
//!
//! This crate never parses a message and never drops without counting. One thread owns an [`EventLoop`] with all it
//! holds; while packets flow there is no lock, no atomic read-modify-write and no allocation per packet (accepting a
//! connection may allocate).
//!
//! ```no_run
//! use weir_listener::{EventLoop, ListenerConfig, ListenerId, bind};
//!
//! let config = ListenerConfig::new("unixgram:///run/weir/dsd.socket".parse()?);
//! let socket = bind(&config)?;
//! if let Some(remedy) = socket.receive_buffer().remedy() {
//!     eprintln!("{remedy}");
//! }
//! let mut events = EventLoop::new(64)?;
//! events.add(socket, ListenerId(0))?;
//! loop {
//!     let turn = events.turn(None, &mut |batch| {
//!         for packet in batch {
//!             println!("{} bytes", packet.bytes.len());
//!         }
//!     })?;
//!     if turn.woken {
//!         break;
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod bind;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod check;
mod counters;
mod event_loop;
mod framing;
mod kernel_table;
mod partial;
mod socket_file;
mod sys;

pub use address::{Address, AddressError, AddressFault, UNIX_PATH_BYTES_MAX};
pub use bind::{
    BindError, BindFault, BoundSocket, Framing, ListenerConfig, MAX_PACKET_BYTES_LIMIT, ReceiveBuffer,
    SOCKET_MODE_DEFAULT, bind, bind_group, group_id, user_id,
};
pub use counters::{ListenerCounters, LoopCounters, ReceiveErrors};
pub use event_loop::{Batch, DropCheck, EventLoop, Monotonic, Packet, Packets, Turn, Waker};

/// The longest datagram received whole. Nothing longer fits UDP; a Unix datagram can be longer and is then truncated,
/// marked and counted.
pub const DATAGRAM_BYTES_MAX: usize = 65536;

/// The number a listener is known by, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u16);

/// Who sent a packet, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credentials {
    /// Process id, in the namespace of this process.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}
