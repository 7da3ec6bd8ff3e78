//! Sockets, batched receive, origin credentials, stream framing.
//!
//! This crate never parses a message and never drops without counting. One thread owns an [`EventLoop`] with all it
//! holds; while packets flow there is no lock, no atomic read-modify-write and no allocation per packet (accepting a
//! connection may allocate).
//!
//! # Shape
//!
//! * [`bind`] and [`bind_group`] turn a [`ListenerConfig`] into sockets, with every error named, before any thread
//!   is started. [`EventLoop::add`] hands a socket to the thread that will own it.
//! * [`EventLoop::turn`] hands over a [`PacketBatch`], not a packet: the receiver sees what came with one system call, so it
//!   can look at the next packet ([`PacketBatch::get`]) while it handles this one, and do once what is the same for all
//!   (the clock, the listener). A batch is a view of the receive memory; building it copies nothing.
//! * On streams a packet is a frame, or as many complete lines as `max_packet_bytes` holds. Lines are found from the
//!   end of that window backwards, so framing costs a few bytes' search per packet and not another pass.
//! * [`EventLoop::begin_drain`] ends everything; packets that the kernel had accepted before still come with further turns.
//!   It asks the kernel to refuse later packets instead of reading until none comes, which under load never happens.
//!
//! # What the receiver has to do
//!
//! * Call [`EventLoop::refresh_drops`] before it publishes counters, and now and then
//!   [`EventLoop::cross_check_drops`].
//! * Print [`ReceiveBuffer::remedy`] if there is one.
//! * Set [`EventLoop::set_partial_budget`] from its memory budget, and call [`EventLoop::release_memory`] when a
//!   listener has become quiet.
//!
//! # Cost
//!
//! With a receiver that is the bottleneck (8 KiB Unix datagrams, 5 µs of work each) a packet takes 0.11 system calls
//! and the same processor time as with a bare `recvmmsg` loop doing the same work (ratio 0.99, 0.97 to 0.99). One small UDP
//! packet every 10 µs costs 0.5 to 0.6 of that loop, because packets are let gather; by Unix datagram 1.14, 1.03 to
//! 1.14.
//! Streams of 64 KiB reads: 1.05 to 1.09 with long frames or lines, 1.2 with frames of 150 bytes. (Ratios of
//! processor time per packet or byte of the receiving thread, pinned to one core, the sender on the other; median
//! and quartiles of 3 to 7 alternating runs of 0.7 s on two cores of a virtual machine shared with other work.)
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

mod adopt;
mod bind;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod check;
mod counters;
mod event_loop;
mod framing;
mod guard;
mod kernel_table;
mod partial;
mod rate;
mod socket_file;
mod sys;
mod tls;

pub use adopt::{PassedSocket, adopt};
pub use bind::{
    BindError, BindErrorKind, BoundSocket, Framing, ListenerConfig, MAX_PACKET_BYTES_LIMIT, PortSharing,
    ReceiveBuffer, SOCKET_MODE_DEFAULT, bind, bind_beside, bind_group, group_id, user_id,
};
pub use counters::{ListenerCounter, ListenerCounters, LoopCounter, LoopCounters};
pub use event_loop::{
    DropCheck, EventLoop, Monotonic, OpenConnection, Packet, PacketBatch, Packets, PassedConnection, Turn,
    Waker,
};
pub use guard::AllowList;
pub use rate::{OpenRates, RATE_BURST_SECONDS, RATE_PACKET_BYTES, RateLimited, SourceRates, TokenBucket};
pub use socket_file::FileId;
pub use tls::{TLS_SESSION_BYTES, TlsError, TlsFileError, TlsFiles, TlsServer};
pub use weir_units::{Address, AddressError, AddressErrorKind, UNIX_PATH_BYTES_MAX};

/// The longest datagram received whole. Nothing longer fits UDP; a Unix datagram can be longer and is then truncated,
/// marked and counted, as one longer than `max_packet_bytes` is.
pub const DATAGRAM_BYTES_MAX: usize = 65536;

/// The number a listener is known by, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u16);

/// The sender of a packet, according to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credentials {
    /// Process id, in the namespace of this process.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}
