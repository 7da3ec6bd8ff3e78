//! One worker's sockets: waiting, receiving, accepting, draining.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::bind::MAX_PACKET_BYTES_LIMIT;
use crate::framing::{End, Entries, Fed, Framer, FramingCounts};
use crate::guard;
use crate::kernel_table::{self, WrappingCounter};
use crate::partial::PartialPool;
use crate::socket_file::SocketFile;
use crate::sys::{self, Ancillary, DatagramRing, Entry, Epoll, Mapping};
use crate::tls::{TLS_READ_BYTES, TLS_SESSION_BYTES, TlsSession};
use crate::{
    Address, BoundSocket, Credentials, ListenerConfig, ListenerCounters, ListenerId, LoopCounters,
    SourceRates,
};

/// Bytes asked for with one call on a stream.
const STREAM_READ_BYTES: usize = 64 * 1024;
/// Where they are put: behind room for the longest partial frame, aligned to a page.
const STREAM_READ_START: usize = MAX_PACKET_BYTES_LIMIT + 4096;
/// Packets' bytes after which a turn ends although there is more.
const TURN_BYTES: usize = 1024 * 1024;
/// A batch is kept near this size by asking for fewer datagrams where they are long: 64 of 64 KiB each would keep the
/// worker from everything else for milliseconds, and push the batch's own beginning out of the cache.
const BATCH_BYTES: u64 = 512 * 1024;
const BATCH_PACKETS_MIN: u64 = 8;
/// While some descriptors are busy, the others are looked at after this many bytes or receive calls.
const POLL_BYTES: usize = 256 * 1024;
const POLL_SERVICES: u32 = 16;
/// A batch that came back short emptied its socket. If it was at least this long the next call follows without
/// asking epoll first, because more will have come while the batch was handled.
const EAGER_PACKETS: usize = 4;
const EAGER_BYTES: usize = 16 * 1024;
/// Connections accepted before others get their turn.
const ACCEPTS_PER_TURN: usize = 64;
/// How long a descriptor is left alone after an error that would otherwise come back at once.
const PAUSE_NANOS: u64 = 100_000_000;
/// How long a drain waits for packets on their way if the kernel cannot be asked to wait for them.
const DRAIN_SETTLE_NANOS: u64 = 20_000_000;
/// Bytes that a TCP peer has written may still lie in its own kernel, waiting for room in ours: whoever wrote them takes them
/// for sent. A drain therefore reads a connection until its peer has closed it or has been silent for this long, ...
const DRAIN_SILENCE_NANOS: u64 = 100_000_000;
/// ... and no longer than this in all.
const DRAIN_CONNECTIONS_NANOS: u64 = 1_000_000_000;
/// Sleeping until the first packet comes costs a wake-up for every packet or two when packets come one by one but
/// fast. After this many such wake-ups in a row, each less than `DOZE_GAP_NANOS` after the one before, the loop
/// sleeps for `DOZE_NANOS` without looking and takes what has come then, as long as that is at least
/// `DOZE_PACKETS` (a timer costs about as much as three wake-ups by packets). Only for UDP: its receive buffer holds
/// what a fast sender can send in that time if packets are at most `DOZE_PACKET_BYTES` long, while the queue of a Unix
/// datagram socket holds ten packets, and a sender that does not wait would lose the eleventh.
const DOZE_AFTER_WAKES: u32 = 8;
const DOZE_GAP_NANOS: u64 = 50_000;
const DOZE_NANOS: u64 = 100_000;
const DOZE_PACKETS: usize = 4;
const DOZE_PACKET_BYTES: u64 = 1500;
const DOZE_BUFFER_BYTES: usize = 100_000;
/// How often connections are looked at that are not encrypted yet.
const HANDSHAKE_LOOK_NANOS: u64 = 1_000_000_000;
const EVENTS_PER_POLL: usize = 128;
const WAKER_TOKEN: u64 = u64::MAX;

/// A point in time on the monotonic clock, in nanoseconds. Comparable within one boot of one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// Reads the clock.
    pub fn now() -> Self {
        Self(sys::monotonic_nanos())
    }
}

/// One packet: a datagram, a stream frame, or a run of complete lines of a stream (newlines included).
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// What was received. Never more than [`crate::DATAGRAM_BYTES_MAX`].
    pub bytes: &'a [u8],
    /// Which listener received it.
    pub listener: ListenerId,
    /// The end is missing, because the datagram did not fit.
    pub truncated: bool,
    /// Who sent it, if asked for and known. On stream sockets: who connected.
    pub origin: Option<Credentials>,
    /// When its batch was received.
    pub received: Monotonic,
}

/// Packets received together from one descriptor: a non-empty list, lent for the duration of the call.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    memory: &'a [u8],
    entries: &'a [Entry],
    listener: ListenerId,
    received: Monotonic,
    /// The same for all packets of a connection.
    origin: Option<Credentials>,
}

impl<'a> Batch<'a> {
    /// How many packets.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Never true for a batch that was handed over.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Which listener received them.
    pub fn listener(&self) -> ListenerId {
        self.listener
    }

    /// When they were received. The clock is read once for all.
    pub fn received(&self) -> Monotonic {
        self.received
    }

    /// One packet by its position, so that a later one can be looked at while an earlier one is handled.
    pub fn get(&self, index: usize) -> Option<Packet<'a>> {
        self.entries.get(index).map(|entry| self.packet(entry))
    }

    /// The packets in the order in which they were received.
    pub fn iter(&self) -> Packets<'a> {
        Packets {
            batch: *self,
            entries: self.entries.iter(),
        }
    }

    #[inline]
    fn packet(&self, entry: &Entry) -> Packet<'a> {
        Packet {
            bytes: &self.memory[entry.start as usize..][..entry.length as usize],
            listener: self.listener,
            truncated: entry.truncated,
            origin: entry.origin.or(self.origin),
            received: self.received,
        }
    }
}

/// Iterates over the packets of a [`Batch`].
pub struct Packets<'a> {
    batch: Batch<'a>,
    entries: std::slice::Iter<'a, Entry>,
}

impl<'a> Iterator for Packets<'a> {
    type Item = Packet<'a>;

    #[inline]
    fn next(&mut self) -> Option<Packet<'a>> {
        self.entries.next().map(|entry| self.batch.packet(entry))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

impl ExactSizeIterator for Packets<'_> {}

impl<'a> IntoIterator for Batch<'a> {
    type Item = Packet<'a>;
    type IntoIter = Packets<'a>;
    fn into_iter(self) -> Packets<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &Batch<'a> {
    type Item = Packet<'a>;
    type IntoIter = Packets<'a>;
    fn into_iter(self) -> Packets<'a> {
        self.iter()
    }
}

/// What a call of [`EventLoop::turn`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Packets handed over.
    pub packets: u64,
    /// Bytes read, those of streams that were not (yet) packets included: a peer cannot get more than its share of a
    /// turn by sending nonsense.
    pub bytes: u64,
    /// A [`Waker`] asked for attention.
    pub woken: bool,
}

/// Makes a waiting (or the next) [`EventLoop::turn`] return with `woken` set. For other threads.
#[derive(Clone)]
pub struct Waker(Arc<Wake>);

struct Wake {
    /// Set before the descriptor is written, so that a busy loop sees it without a system call.
    asked: AtomicBool,
    counter: File,
}

impl Waker {
    /// Wakes the loop. Several calls before it looks count as one.
    pub fn wake(&self) {
        if !self.0.asked.swap(true, Ordering::AcqRel) {
            // The counter cannot overflow, since it is written at most once per reading.
            let _ = (&self.0.counter).write(&1u64.to_ne_bytes());
        }
    }
}

/// Three views of one drop counter, see [`EventLoop::cross_check_drops`]. The kernel's wrap around at 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropCheck {
    /// What this crate has counted, the kernel asked a last time.
    pub counted: u64,
    /// The socket's counter at that time.
    pub socket: u32,
    /// The table's counter, read shortly before.
    pub table: u32,
}

impl DropCheck {
    /// True if the books agree: nothing was counted that the kernel does not know of, nor the other way round, and
    /// the table is not ahead of the socket.
    pub fn agrees(&self) -> bool {
        self.counted as u32 == self.socket && self.socket.wrapping_sub(self.table) as i32 >= 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    Draining,
    Closed,
}

struct Listener {
    id: ListenerId,
    phase: Phase,
    address: Address,
    config: ListenerConfig,
    fd: Option<OwnedFd>,
    /// Held so that the socket file goes when the listener does.
    file: Option<SocketFile>,
    inode: u64,
    buffer_bytes: usize,
    slot: u32,
    /// Datagrams to ask for, by the length of those of the last batch.
    batch_limit: usize,
    ancillary: Ancillary,
    /// Datagrams have to pass something before they are handed over.
    guarded: bool,
    drops: WrappingCounter,
    paused_until: Option<u64>,
    counters: ListenerCounters,
}

impl Listener {
    fn note_drops(&mut self, now: u32) {
        let counter = match self.phase {
            Phase::Open => &mut self.counters.kernel_dropped,
            Phase::Draining | Phase::Closed => &mut self.counters.refused_draining,
        };
        *counter += self.drops.advance(now);
    }

    fn read_drops(&mut self, system_calls: &mut u64) -> io::Result<()> {
        if let (Address::Udp { .. }, Some(fd)) = (&self.address, &self.fd) {
            *system_calls += 1;
            let now = sys::socket_drops(fd.as_fd())?;
            self.note_drops(now);
        }
        Ok(())
    }
}

struct Connection {
    fd: OwnedFd,
    listener: u32,
    origin: Option<Credentials>,
    /// Who it is from, where that limits how much it may send.
    source: Option<IpAddr>,
    tls: Option<TlsSession>,
    framer: Framer,
    /// While draining, for a TCP connection whose peer may have more: when its silence has lasted long enough.
    awaited_until: Option<u64>,
}

enum Kind {
    Free,
    Datagram { listener: u32 },
    Acceptor { listener: u32 },
    Connection(Connection),
}

struct Slot {
    /// Goes up when the slot is freed, so that tokens of its former owner lead nowhere.
    generation: u32,
    /// Whether a token of this slot is in the ready queue.
    ready: bool,
    kind: Kind,
}

/// What to do with a descriptor after it had its turn.
enum Next {
    /// It probably has more: serve it again without asking.
    Again,
    /// It is empty: wait until epoll reports it.
    Wait,
}

/// One worker's sockets. Owned by one thread, driven by [`EventLoop::turn`].
///
/// * **Order.** Descriptors that have something are served round-robin: one receive call each (at most the slots of
///   the ring, or 64 KiB of a stream), then the next. A flood on one therefore delays the others by one call per
///   round, and never starves them.
/// * **Calls.** A descriptor that was full or nearly so is asked again without epoll in between; epoll is asked when
///   no descriptor is left, or now and then so that others are noticed.
/// * **Waiting.** While UDP packets come one by one but fast, and no Unix datagram socket is here to suffer from it,
///   the loop sleeps a tenth of a millisecond at a time instead of being woken by each. Nothing else is delayed by
///   more than that.
/// * **Memory.** Datagrams share one ring, streams one buffer. A connection has memory of its own only between the
///   beginning and the end of a frame, within the budget of [`EventLoop::set_partial_budget`].
pub struct EventLoop {
    epoll: Epoll,
    wake: Arc<Wake>,
    ring: DatagramRing,
    stream_memory: Mapping,
    entries: Entries,
    pool: PartialPool,
    /// Entries of a batch that may pass, where some may not.
    passing: Vec<Entry>,
    /// Ciphertext, once there was some.
    tls_memory: Vec<u8>,
    /// Connections that are not encrypted yet.
    handshakes: usize,
    /// When they are looked at next.
    handshakes_looked_at: u64,
    /// Why the last connection that should be was not.
    tls_fault: Option<(ListenerId, String)>,
    listeners: Vec<Listener>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    ready: VecDeque<u64>,
    /// Given up to accept (and refuse) a connection when there is no other descriptor left.
    reserve: Option<OwnedFd>,
    paused: usize,
    draining: bool,
    drain_settled_at: u64,
    /// When TCP connections are read no longer, whether their peers are silent or not.
    drain_connections_until: u64,
    bytes_since_poll: usize,
    services_since_poll: u32,
    doze: Doze,
    counters: LoopCounters,
}

/// Whether to sleep without looking, see [`DOZE_AFTER_WAKES`].
#[derive(Default)]
struct Doze {
    /// No listener of this loop would suffer.
    allowed: bool,
    /// Wake-ups in a row that came fast and brought little.
    fast_wakes: u32,
    last_batch: u64,
    /// Sleep before the next turn.
    now: bool,
}

impl Doze {
    /// Learns from a batch of UDP datagrams. True if the loop shall doze before it receives again.
    fn learn(&mut self, count: usize, bytes: u64, received: u64) -> bool {
        let small = bytes <= DOZE_PACKET_BYTES * count as u64;
        let dozing = self.fast_wakes >= DOZE_AFTER_WAKES;
        let keep = if dozing {
            count >= DOZE_PACKETS
        } else {
            received.wrapping_sub(self.last_batch) < DOZE_GAP_NANOS
        };
        self.last_batch = received;
        self.fast_wakes = if keep && small { self.fast_wakes + 1 } else { 0 };
        self.now = self.fast_wakes >= DOZE_AFTER_WAKES;
        self.now
    }
}

fn token(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

/// What a connection may hold in partial frames unless [`EventLoop::set_partial_budget`] says otherwise.
const PARTIAL_BUDGET_DEFAULT: usize = 16 * 1024 * 1024;

impl EventLoop {
    /// A loop whose ring has `ring_slots` slots of 64 KiB (at least 1, at most 1024), which cost memory only as far
    /// as they are used.
    ///
    /// # Errors
    ///
    /// When there is no memory or descriptor for it.
    pub fn new(ring_slots: usize) -> io::Result<Self> {
        let epoll = Epoll::new(EVENTS_PER_POLL)?;
        let counter = sys::event_counter()?;
        epoll.add(counter.as_fd(), WAKER_TOKEN)?;
        Ok(Self {
            epoll,
            wake: Arc::new(Wake {
                asked: AtomicBool::new(false),
                counter: File::from(counter),
            }),
            ring: DatagramRing::new(ring_slots.clamp(1, 1024))?,
            stream_memory: Mapping::new(STREAM_READ_START + STREAM_READ_BYTES)?,
            entries: Entries::new(),
            pool: PartialPool::new(PARTIAL_BUDGET_DEFAULT),
            passing: Vec::new(),
            tls_memory: Vec::new(),
            handshakes: 0,
            handshakes_looked_at: 0,
            tls_fault: None,
            listeners: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::with_capacity(EVENTS_PER_POLL),
            reserve: open_reserve(),
            paused: 0,
            draining: false,
            drain_settled_at: 0,
            drain_connections_until: 0,
            bytes_since_poll: 0,
            services_since_poll: 0,
            doze: Doze::default(),
            counters: LoopCounters::default(),
        })
    }

    /// Starts receiving from a socket.
    ///
    /// # Errors
    ///
    /// If the id is taken, the loop is draining, or epoll refuses the socket.
    pub fn add(&mut self, socket: BoundSocket, id: ListenerId) -> io::Result<()> {
        if self.listeners.iter().any(|listener| listener.id == id) || self.draining {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let index = self.listeners.len() as u32;
        let stream = socket.address.is_stream();
        let kind = if stream {
            Kind::Acceptor { listener: index }
        } else {
            Kind::Datagram { listener: index }
        };
        let ancillary = match socket.address {
            Address::Udp { .. } => Ancillary::Drops,
            Address::UnixDatagram(_) if socket.config.pass_credentials => Ancillary::Credentials,
            _ => Ancillary::None,
        };
        let guarded = matches!(socket.address, Address::Udp { .. }) && guard::is_on(&socket.config);
        let inode = sys::socket_inode(socket.fd.as_fd())?;
        let slot = self.take_slot(kind);
        if let Err(error) = self.epoll.add(socket.fd.as_fd(), self.token_of(slot)) {
            self.free_slot(slot);
            return Err(error);
        }
        self.listeners.push(Listener {
            id,
            phase: Phase::Open,
            address: socket.address,
            config: socket.config,
            fd: Some(socket.fd),
            file: socket.file,
            inode,
            buffer_bytes: socket.buffer.granted,
            slot,
            batch_limit: self.ring.slots(),
            ancillary,
            guarded,
            drops: WrappingCounter::default(),
            paused_until: None,
            counters: ListenerCounters::default(),
        });
        self.doze.allowed = self.allow_doze();
        Ok(())
    }

    /// Whether dozing is harmless to every listener there is.
    fn allow_doze(&self) -> bool {
        self.listeners
            .iter()
            .filter(|listener| listener.fd.is_some())
            .all(|listener| match listener.address {
                Address::Udp { .. } => listener.buffer_bytes >= DOZE_BUFFER_BYTES,
                Address::UnixDatagram(_) => false,
                Address::Tcp { .. } | Address::UnixStream(_) => true,
            })
    }

    /// A handle with which other threads end the waiting.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.wake))
    }

    /// The counters of a listener.
    ///
    /// # Panics
    ///
    /// If no listener of that id was added.
    pub fn counters(&self, id: ListenerId) -> &ListenerCounters {
        match self.listeners.iter().find(|listener| listener.id == id) {
            Some(listener) => &listener.counters,
            None => panic!("no listener {id:?} was added"),
        }
    }

    /// The counters of the loop.
    pub fn loop_counters(&self) -> &LoopCounters {
        &self.counters
    }

    /// The listeners added so far with the addresses they are bound to.
    pub fn listeners(&self) -> impl Iterator<Item = (ListenerId, &Address)> {
        self.listeners
            .iter()
            .map(|listener| (listener.id, &listener.address))
    }

    /// Asks the kernel for the drop counters now. With every batch the kernel tells how many were dropped before the
    /// batch's first datagram; drops behind the last datagram become known with the next one, or by this. Call it
    /// before publishing counters.
    ///
    /// # Errors
    ///
    /// As the kernel gives them.
    pub fn refresh_drops(&mut self) -> io::Result<()> {
        for listener in &mut self.listeners {
            listener.read_drops(&mut self.counters.system_calls)?;
        }
        Ok(())
    }

    /// Compares the drops counted for a UDP listener with two witnesses: what the kernel says of the socket, and what
    /// its table (`/proc/net/udp`, `/proc/net/udp6`) says. `None` for other listeners and after a drain.
    ///
    /// Reads the whole table: for a diagnosis or a test, not for every second.
    ///
    /// # Errors
    ///
    /// When the kernel or its table cannot be read.
    pub fn cross_check_drops(&mut self, id: ListenerId) -> io::Result<Option<DropCheck>> {
        let Some(listener) = self.listeners.iter_mut().find(|listener| listener.id == id) else {
            return Ok(None);
        };
        let (Address::Udp { .. }, Some(fd)) = (&listener.address, &listener.fd) else {
            return Ok(None);
        };
        let Some(table) = kernel_table::drops_of(listener.inode)? else {
            return Ok(None);
        };
        self.counters.system_calls += 1;
        let socket = sys::socket_drops(fd.as_fd())?;
        listener.note_drops(socket);
        let counted = listener.counters.kernel_dropped + listener.counters.refused_draining;
        Ok(Some(DropCheck {
            counted,
            socket,
            table,
        }))
    }

    /// Why the last connection that should have been encrypted was not, since the last call.
    pub fn take_tls_fault(&mut self) -> Option<(ListenerId, String)> {
        self.tls_fault.take()
    }

    /// Bytes that partial frames may hold, memory kept in reserve for them included.
    pub fn partial_budget(&self) -> usize {
        self.pool.budget()
    }

    /// Sets the budget of [`EventLoop::partial_budget`]. When it is used up, the connection that holds most is closed
    /// and counted, so that a peer that sends beginnings only cannot stop the others. (Pausing reads instead would
    /// let such peers stop everybody.)
    pub fn set_partial_budget(&mut self, bytes: usize) {
        self.pool.set_budget(bytes);
    }

    /// Bytes held for partial frames, memory in reserve included.
    pub fn partial_bytes_held(&self) -> usize {
        self.pool.held()
    }

    /// Bytes set aside for encrypted connections: for each that is open what it takes at most, and the buffer that they share.
    pub fn tls_bytes_held(&self) -> usize {
        let encrypted = self
            .slots
            .iter()
            .filter(|slot| matches!(&slot.kind, Kind::Connection(connection) if connection.tls.is_some()));
        encrypted.count() * TLS_SESSION_BYTES + self.tls_memory.capacity()
    }

    /// Gives the memory of the receive ring and the stream buffer back to the kernel. They grow again on demand.
    pub fn release_memory(&mut self) {
        self.ring.release();
        self.stream_memory.release();
        self.counters.system_calls += 2;
    }

    /// Waits at most `timeout` (`None`: until something happens), receives in batches and calls `handle` with each.
    /// Returns after a bounded amount of work, about a mebibyte, so that the worker can do what it does periodically.
    ///
    /// # Errors
    ///
    /// Only if waiting itself fails. Errors of single descriptors are counted with their listener.
    pub fn turn(
        &mut self,
        timeout: Option<Duration>,
        handle: &mut impl FnMut(Batch<'_>),
    ) -> io::Result<Turn> {
        self.counters.turns += 1;
        let mut turn = Turn::default();
        if self.wake.asked.load(Ordering::Relaxed) {
            self.take_wake_up(&mut turn);
        }
        let doze = std::mem::take(&mut self.doze.now)
            && self.ready.len() == 1
            && !turn.woken
            && !self.draining
            && timeout.is_none_or(|timeout| timeout.as_nanos() >= u128::from(DOZE_NANOS));
        if doze {
            self.counters.dozes += 1;
            self.counters.system_calls += 1;
            sys::sleep_nanos(DOZE_NANOS);
            // With one descriptor there is nothing to be asked.
            if self.slots.len() - self.free.len() > 1 {
                self.poll(0, &mut turn)?;
            }
        } else if self.draining && self.ready.is_empty() {
            // What was empty before packets on their way had settled is asked once more, and epoll would not report
            // it again.
            self.poll(self.wait_ms(timeout), &mut turn)?;
            for index in 0..self.slots.len() as u32 {
                if !matches!(self.slots[index as usize].kind, Kind::Free) {
                    self.make_ready(index);
                }
            }
        } else if self.ready.is_empty() {
            self.poll(if turn.woken { 0 } else { self.wait_ms(timeout) }, &mut turn)?;
        } else if self.bytes_since_poll >= POLL_BYTES || self.services_since_poll >= POLL_SERVICES {
            self.poll(0, &mut turn)?;
        }
        if self.paused > 0 {
            self.resume();
        }
        if self.handshakes > 0 {
            self.end_slow_handshakes(&mut turn, handle);
        }
        for _ in 0..self.ready.len() {
            let Some(token) = self.ready.pop_front() else {
                break;
            };
            self.serve(token, &mut turn, handle);
            if turn.bytes as usize >= TURN_BYTES {
                break;
            }
        }
        Ok(turn)
    }

    /// Stops taking new packets: what the kernel has accepted before this call is still received by further turns
    /// (until [`EventLoop::drained`]), what comes later is refused by the kernel. Senders on Unix sockets see an
    /// error; UDP datagrams that come later are in `refused_draining`. A TCP connection is read until its peer closes it
    /// or is silent for a tenth of a second, for one second at most; what comes later is never acknowledged.
    ///
    /// Socket files are removed, so that a successor can bind at once. Connections that are complete but not yet
    /// accepted are accepted and read. A frame of which only the beginning had come is counted as cut.
    pub fn begin_drain(&mut self) {
        if self.draining {
            return;
        }
        self.draining = true;
        let now = sys::monotonic_nanos();
        self.drain_connections_until = now + DRAIN_CONNECTIONS_NANOS;
        let mut internet = false;
        for index in 0..self.listeners.len() {
            let listener = &mut self.listeners[index];
            let Some(fd) = &listener.fd else { continue };
            let stopped = match listener.address {
                Address::Udp { .. } | Address::Tcp { .. } => {
                    internet = true;
                    sys::attach_drop_all_filter(fd.as_fd())
                }
                Address::UnixDatagram(_) | Address::UnixStream(_) => sys::shutdown_read(fd.as_fd()),
            };
            self.counters.system_calls += 1;
            if stopped.is_err() {
                listener.counters.receive_errors.other += 1;
            }
            // What the kernel dropped until now it dropped for its own reasons.
            let _ = listener.read_drops(&mut self.counters.system_calls);
            listener.phase = Phase::Draining;
            listener.file = None;
            if listener.paused_until.take().is_some() {
                self.paused -= 1;
            }
            let slot = listener.slot;
            self.make_ready(slot);
        }
        for index in 0..self.slots.len() as u32 {
            if let Kind::Connection(connection) = &mut self.slots[index as usize].kind {
                if is_tcp(connection, &self.listeners) {
                    connection.awaited_until = Some(now + DRAIN_SILENCE_NANOS);
                } else {
                    self.counters.system_calls += 1;
                    // An error means that the connection is gone, which reading will tell.
                    let _ = sys::shutdown_read(connection.fd.as_fd());
                }
                self.make_ready(index);
            }
        }
        if internet {
            self.settle();
        }
    }

    /// Waits until packets that the kernel was receiving when a filter was set are where they can be read.
    fn settle(&mut self) {
        self.counters.system_calls += 1;
        if sys::wait_for_running_receivers().is_err() {
            self.drain_settled_at = sys::monotonic_nanos() + DRAIN_SETTLE_NANOS;
        }
    }

    /// Makes the kernel refuse more bytes of a TCP connection; what it has taken can still be read.
    #[cold]
    fn stop_awaiting(&mut self, slot: u32) -> Next {
        if let Kind::Connection(connection) = &mut self.slots[slot as usize].kind {
            connection.awaited_until = None;
            self.counters.system_calls += 1;
            // An error means that the connection is gone, which reading will tell.
            let _ = sys::attach_drop_all_filter(connection.fd.as_fd());
            self.settle();
        }
        Next::Again
    }

    /// True when everything the kernel had accepted before [`EventLoop::begin_drain`] has been handed over and all
    /// sockets are closed.
    pub fn drained(&self) -> bool {
        self.draining
            && self
                .listeners
                .iter()
                .all(|listener| listener.phase == Phase::Closed)
    }

    fn wait_ms(&self, timeout: Option<Duration>) -> i32 {
        let mut ms = match timeout {
            None => -1,
            // Rounded up, so that the caller's deadline has passed when the waiting ends.
            Some(timeout) => timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32,
        };
        if self.paused > 0 || self.draining {
            let most = if self.draining {
                1
            } else {
                (PAUSE_NANOS / 1_000_000) as i32
            };
            ms = if ms < 0 { most } else { ms.min(most) };
        }
        ms
    }

    fn poll(&mut self, timeout_ms: i32, turn: &mut Turn) -> io::Result<()> {
        self.counters.polls += 1;
        self.counters.system_calls += 1;
        self.bytes_since_poll = 0;
        self.services_since_poll = 0;
        let count = match self.epoll.wait(timeout_ms) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        };
        for event in 0..count {
            let token = self.epoll.token(event);
            if token == WAKER_TOKEN {
                self.take_wake_up(turn);
                continue;
            }
            let Some(slot) = self.slots.get_mut(token as u32 as usize) else {
                continue;
            };
            if slot.generation == (token >> 32) as u32 && !slot.ready {
                slot.ready = true;
                self.ready.push_back(token);
            }
        }
        Ok(())
    }

    #[cold]
    fn take_wake_up(&mut self, turn: &mut Turn) {
        turn.woken = true;
        self.counters.wakeups += 1;
        self.counters.system_calls += 1;
        // Nothing to read if the other thread has set the flag and not yet written: then the next wait ends at once,
        // which is harmless.
        let _ = (&self.wake.counter).read(&mut [0; 8]);
        // Swapped rather than stored, so that what the other thread wrote before it woke us is seen after this.
        self.wake.asked.swap(false, Ordering::AcqRel);
    }

    fn take_slot(&mut self, kind: Kind) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.slots[index as usize].kind = kind;
                index
            }
            None => {
                self.slots.push(Slot {
                    generation: 0,
                    ready: false,
                    kind,
                });
                // So that no packet's turn has to grow the queue.
                self.ready
                    .reserve(self.slots.len().saturating_sub(self.ready.len()));
                (self.slots.len() - 1) as u32
            }
        }
    }

    fn free_slot(&mut self, index: u32) -> Kind {
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.ready = false;
        self.free.push(index);
        std::mem::replace(&mut slot.kind, Kind::Free)
    }

    fn token_of(&self, index: u32) -> u64 {
        token(index, self.slots[index as usize].generation)
    }

    fn make_ready(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if !slot.ready {
            slot.ready = true;
            self.ready.push_back(token(index, slot.generation));
        }
    }

    #[inline]
    fn serve(&mut self, token: u64, turn: &mut Turn, handle: &mut impl FnMut(Batch<'_>)) {
        let index = token as u32;
        let slot = &mut self.slots[index as usize];
        if slot.generation != (token >> 32) as u32 {
            return;
        }
        let before = turn.bytes;
        let next = match slot.kind {
            Kind::Datagram { listener } => self.receive_datagrams(listener, turn, handle),
            Kind::Connection(_) => self.receive_stream(index, turn, handle),
            Kind::Acceptor { listener } => self.accept(listener),
            Kind::Free => return,
        };
        self.services_since_poll += 1;
        self.bytes_since_poll += (turn.bytes - before) as usize;
        // The slot may have been freed by what happened, and even be someone else's by now.
        let slot = &mut self.slots[index as usize];
        if slot.generation == (token >> 32) as u32 {
            match next {
                Next::Again => self.ready.push_back(token),
                Next::Wait => slot.ready = false,
            }
        }
    }

    fn receive_datagrams(&mut self, index: u32, turn: &mut Turn, handle: &mut impl FnMut(Batch<'_>)) -> Next {
        let listener = &mut self.listeners[index as usize];
        let Some(fd) = &listener.fd else { return Next::Wait };
        let (slots, limit) = (self.ring.slots(), listener.batch_limit);
        self.counters.system_calls += 1;
        listener.counters.receive_calls += 1;
        let received = if listener.guarded && guard::needs_sources(&listener.config) {
            self.ring
                .receive_with_sources(fd.as_fd(), limit, listener.ancillary)
        } else {
            self.ring.receive(fd.as_fd(), limit, listener.ancillary)
        };
        let (received_count, drops) = match received {
            Ok(received) => received,
            Err(error) => return self.datagrams_failed(index, &error),
        };
        if received_count == 0 {
            return Next::Wait;
        }
        let received = Monotonic::now();
        if let Some(drops) = drops {
            listener.note_drops(drops);
        }
        let count = if listener.guarded {
            guard::pass(
                &mut self.ring,
                received_count,
                &listener.config,
                received,
                &mut listener.counters,
            )
        } else {
            received_count
        };
        let (memory, entries) = self.ring.parts_mut();
        let entries = &mut entries[..count];
        let counters = &mut listener.counters;
        let mut bytes = 0;
        for entry in entries.iter_mut() {
            bytes += u64::from(entry.length);
            if entry.truncated {
                counters.truncated += 1;
            }
            if listener.ancillary == Ancillary::Credentials
                && entry.origin.is_none_or(|origin| origin.pid <= 0)
            {
                counters.origin_errors += 1;
                entry.origin = None;
            }
        }
        counters.packets += count as u64;
        counters.bytes += bytes;
        turn.packets += count as u64;
        turn.bytes += bytes;
        if count > 0 {
            let fitting = (BATCH_BYTES * count as u64 / bytes.max(1)).max(BATCH_PACKETS_MIN);
            listener.batch_limit = slots.min(fitting as usize);
            handle(Batch {
                memory,
                entries,
                listener: listener.id,
                received,
                origin: None,
            });
        }
        let count = received_count;
        if self.doze.allowed && count < limit / 2 && self.doze.learn(count, bytes, received.0) {
            return Next::Again;
        }
        if count >= EAGER_PACKETS.min(limit) || listener.phase == Phase::Draining {
            Next::Again
        } else {
            Next::Wait
        }
    }

    #[cold]
    fn datagrams_failed(&mut self, index: u32, error: &io::Error) -> Next {
        let listener = &mut self.listeners[index as usize];
        match error.raw_os_error() {
            Some(libc::EAGAIN) => {
                listener.counters.receive_calls_empty += 1;
                if listener.phase == Phase::Draining {
                    if sys::monotonic_nanos() < self.drain_settled_at {
                        // Asked again at the next turn, which waits a millisecond at most.
                        return Next::Wait;
                    }
                    self.close_listener(index);
                }
                return Next::Wait;
            }
            Some(libc::EINTR) => {
                listener.counters.receive_errors.interrupted += 1;
                return Next::Again;
            }
            Some(libc::ENOMEM | libc::ENOBUFS) => listener.counters.receive_errors.no_memory += 1,
            // Left over from a datagram we are said to have sent; the next call works.
            Some(libc::ECONNREFUSED | libc::ECONNRESET) => {
                listener.counters.receive_errors.reset += 1;
                return Next::Again;
            }
            _ => listener.counters.receive_errors.other += 1,
        }
        self.pause(index);
        Next::Wait
    }

    /// Leaves a listener alone for a while, because asking again at once would only fail again.
    #[cold]
    fn pause(&mut self, index: u32) {
        let listener = &mut self.listeners[index as usize];
        if listener.phase == Phase::Draining {
            // Nothing can be waited for any more.
            self.close_listener(index);
            return;
        }
        if listener
            .paused_until
            .replace(sys::monotonic_nanos() + PAUSE_NANOS)
            .is_none()
        {
            self.paused += 1;
            self.set_interest(index, false);
        }
    }

    #[cold]
    fn resume(&mut self) {
        let now = sys::monotonic_nanos();
        for index in 0..self.listeners.len() {
            let listener = &mut self.listeners[index];
            if listener.paused_until.is_some_and(|until| until <= now) {
                listener.paused_until = None;
                self.paused -= 1;
                self.set_interest(index as u32, true);
            }
        }
    }

    fn set_interest(&mut self, index: u32, readable: bool) {
        let listener = &self.listeners[index as usize];
        let Some(fd) = &listener.fd else { return };
        self.counters.system_calls += 1;
        // Removed rather than muted, because errors are reported of muted descriptors too. Neither call fails for a
        // descriptor that is open and was in the other state.
        let _ = if readable {
            self.epoll.add(fd.as_fd(), self.token_of(listener.slot))
        } else {
            self.epoll.remove(fd.as_fd())
        };
    }

    fn close_listener(&mut self, index: u32) {
        let listener = &mut self.listeners[index as usize];
        if listener.fd.is_none() {
            return;
        }
        let _ = listener.read_drops(&mut self.counters.system_calls);
        self.counters.system_calls += 1;
        listener.fd = None;
        listener.file = None;
        if listener.paused_until.take().is_some() {
            self.paused -= 1;
        }
        if listener.counters.connections_open == 0 {
            listener.phase = Phase::Closed;
        }
        let slot = listener.slot;
        self.free_slot(slot);
    }

    fn receive_stream(&mut self, slot: u32, turn: &mut Turn, handle: &mut impl FnMut(Batch<'_>)) -> Next {
        let Kind::Connection(connection) = &mut self.slots[slot as usize].kind else {
            return Next::Wait;
        };
        if connection.tls.is_some() {
            return self.receive_tls(slot, turn, handle);
        }
        let listener = &mut self.listeners[connection.listener as usize];
        self.counters.system_calls += 1;
        listener.counters.receive_calls += 1;
        let end = STREAM_READ_START + STREAM_READ_BYTES;
        let count = match sys::receive(
            connection.fd.as_fd(),
            &mut self.stream_memory[STREAM_READ_START..end],
        ) {
            Ok(0) => {
                // While draining it was us who ended the stream, unless its peer was still awaited.
                let orderly = listener.phase == Phase::Open || connection.awaited_until.is_some();
                self.close_connection(slot, orderly, turn, handle);
                return Next::Wait;
            }
            Ok(count) => count,
            Err(error) => return self.stream_failed(slot, &error, turn, handle),
        };
        turn.bytes += count as u64;
        if !self.feed(slot, count, turn, handle) {
            return Next::Wait;
        }
        self.after_reading(slot, count >= EAGER_BYTES)
    }

    /// What to do with a connection that has just been read. A peer that had something may have more.
    fn after_reading(&mut self, slot: u32, eager: bool) -> Next {
        if !self.draining {
            return if eager { Next::Again } else { Next::Wait };
        }
        let until = self.drain_connections_until;
        if let Kind::Connection(connection) = &mut self.slots[slot as usize].kind
            && let Some(awaited_until) = &mut connection.awaited_until
        {
            let now = sys::monotonic_nanos();
            *awaited_until = now + DRAIN_SILENCE_NANOS;
            if now >= until {
                return self.stop_awaiting(slot);
            }
        }
        Next::Again
    }

    /// Finds packets in the first `count` bytes of the stream buffer. False if the connection had to be closed.
    fn feed(&mut self, slot: u32, count: usize, turn: &mut Turn, handle: &mut impl FnMut(Batch<'_>)) -> bool {
        let Kind::Connection(connection) = &mut self.slots[slot as usize].kind else {
            return false;
        };
        let listener = &mut self.listeners[connection.listener as usize];
        let before = connection.framer.partial_bytes() as u64;
        let mut counts = FramingCounts::default();
        let mut delivery = Delivery {
            id: listener.id,
            origin: connection.origin,
            received: Monotonic::now(),
            limits: connection.source.zip(listener.config.rates.as_deref()),
            passing: &mut self.passing,
            dropped: Dropped::default(),
        };
        let fed = connection.framer.feed(
            &mut self.stream_memory,
            STREAM_READ_START,
            STREAM_READ_START + count,
            &mut self.pool,
            &mut self.entries,
            &mut counts,
            |memory, entries| delivery.deliver(memory, entries, handle),
        );
        let dropped = delivery.dropped;
        let counters = &mut listener.counters;
        add_counts(counters, turn, &counts, dropped);
        counters.partial_bytes += connection.framer.partial_bytes() as u64;
        counters.partial_bytes -= before;
        match fed {
            Fed::All => true,
            Fed::NoRoom(rest) => {
                let end = STREAM_READ_START + count;
                self.make_room(slot, end - rest, end, turn, handle)
            }
            Fed::TooLong => {
                self.close_connection(slot, false, turn, handle);
                false
            }
        }
    }

    /// [`EventLoop::receive_stream`] of an encrypted connection.
    fn receive_tls(&mut self, slot: u32, turn: &mut Turn, handle: &mut impl FnMut(Batch<'_>)) -> Next {
        let Kind::Connection(connection) = &mut self.slots[slot as usize].kind else {
            return Next::Wait;
        };
        let listener = &mut self.listeners[connection.listener as usize];
        self.counters.system_calls += 1;
        listener.counters.receive_calls += 1;
        self.tls_memory.resize(TLS_READ_BYTES, 0);
        let count = match sys::receive(connection.fd.as_fd(), &mut self.tls_memory) {
            // Without a word of farewell: the end may be missing.
            Ok(0) => {
                self.close_connection(slot, false, turn, handle);
                return Next::Wait;
            }
            Ok(count) => count,
            Err(error) => return self.stream_failed(slot, &error, turn, handle),
        };
        turn.bytes += count as u64;
        let mut taken = 0;
        while taken < count {
            let Kind::Connection(connection) = &mut self.slots[slot as usize].kind else {
                return Next::Wait;
            };
            let Some(tls) = &mut connection.tls else {
                return Next::Wait;
            };
            let was_handshaking = tls.is_handshaking();
            let result = tls.take(&self.tls_memory[taken..count]);
            // An error's reason is for the peer to know too.
            let answered = tls.answer(connection.fd.as_fd(), &mut self.counters.system_calls);
            if was_handshaking && !tls.is_handshaking() {
                self.handshakes -= 1;
            }
            match (result, answered) {
                (Ok(0), _) => {
                    self.tls_failed(slot, "it sends more than TLS allows at once".into(), turn, handle);
                    return Next::Wait;
                }
                (Ok(more), Ok(())) => taken += more,
                (Err(fault), _) => {
                    self.tls_failed(slot, fault, turn, handle);
                    return Next::Wait;
                }
                (_, Err(error)) => {
                    self.tls_failed(slot, format!("it takes no answer: {error}"), turn, handle);
                    return Next::Wait;
                }
            }
            let end = STREAM_READ_START + STREAM_READ_BYTES;
            loop {
                let Kind::Connection(connection) = &mut self.slots[slot as usize].kind else {
                    return Next::Wait;
                };
                let Some(tls) = &mut connection.tls else {
                    return Next::Wait;
                };
                let plain = tls.plain(&mut self.stream_memory[STREAM_READ_START..end]);
                if plain == 0 {
                    if tls.ended {
                        self.close_connection(slot, true, turn, handle);
                        return Next::Wait;
                    }
                    break;
                }
                if !self.feed(slot, plain, turn, handle) {
                    return Next::Wait;
                }
            }
        }
        self.after_reading(slot, count == TLS_READ_BYTES)
    }

    /// Closes a connection that is not, or no longer, properly encrypted.
    #[cold]
    fn tls_failed(&mut self, slot: u32, fault: String, turn: &mut Turn, handle: &mut impl FnMut(Batch<'_>)) {
        if let Kind::Connection(connection) = &self.slots[slot as usize].kind {
            let listener = &mut self.listeners[connection.listener as usize];
            self.tls_fault = Some((listener.id, fault));
            // One that is still handshaking is counted where it is closed, whoever closes it.
            if connection.tls.as_ref().is_some_and(|tls| !tls.is_handshaking()) {
                listener.counters.connections_failed_tls += 1;
            }
        }
        self.close_connection(slot, false, turn, handle);
    }

    /// Closes connections that have had long enough to say how they are to be encrypted.
    fn end_slow_handshakes(&mut self, turn: &mut Turn, handle: &mut impl FnMut(Batch<'_>)) {
        let now = sys::monotonic_nanos();
        if now < self.handshakes_looked_at {
            return;
        }
        self.handshakes_looked_at = now + HANDSHAKE_LOOK_NANOS;
        for slot in 0..self.slots.len() as u32 {
            if let Kind::Connection(connection) = &self.slots[slot as usize].kind
                && let Some(tls) = &connection.tls
                && tls.is_handshaking()
                && (now >= tls.deadline || self.draining)
            {
                self.tls_failed(slot, "no handshake within ten seconds".into(), turn, handle);
            }
        }
    }

    /// Closes the connections that hold most until the bytes in `start..end` of the stream buffer fit. False if this
    /// connection was one of them.
    #[cold]
    fn make_room(
        &mut self,
        slot: u32,
        start: usize,
        end: usize,
        turn: &mut Turn,
        handle: &mut impl FnMut(Batch<'_>),
    ) -> bool {
        loop {
            let mut largest = (slot, end - start);
            for (index, candidate) in self.slots.iter().enumerate() {
                if let Kind::Connection(connection) = &candidate.kind {
                    let own = if index as u32 == slot { end - start } else { 0 };
                    let holds = connection.framer.partial_bytes() + own;
                    if holds > largest.1 {
                        largest = (index as u32, holds);
                    }
                }
            }
            if let Kind::Connection(connection) = &self.slots[largest.0 as usize].kind {
                let counters = &mut self.listeners[connection.listener as usize].counters;
                counters.connections_closed_budget += 1;
                if largest.0 == slot {
                    counters.bytes_discarded += (end - start) as u64;
                    if connection.framer.partial_bytes() == 0 {
                        counters.frames_cut += 1;
                    }
                }
            }
            self.close_connection(largest.0, false, turn, handle);
            if largest.0 == slot {
                return false;
            }
            let Kind::Connection(connection) = &mut self.slots[slot as usize].kind else {
                return false;
            };
            if connection
                .framer
                .keep(&self.stream_memory[start..end], &mut self.pool)
                .is_ok()
            {
                let counters = &mut self.listeners[connection.listener as usize].counters;
                counters.partial_bytes += (end - start) as u64;
                return true;
            }
        }
    }

    #[cold]
    fn stream_failed(
        &mut self,
        slot: u32,
        error: &io::Error,
        turn: &mut Turn,
        handle: &mut impl FnMut(Batch<'_>),
    ) -> Next {
        let Kind::Connection(connection) = &self.slots[slot as usize].kind else {
            return Next::Wait;
        };
        let counters = &mut self.listeners[connection.listener as usize].counters;
        match error.raw_os_error() {
            Some(libc::EAGAIN) => {
                counters.receive_calls_empty += 1;
                if self.draining {
                    let now = sys::monotonic_nanos();
                    match connection.awaited_until {
                        Some(until) if now >= until.min(self.drain_connections_until) => {
                            return self.stop_awaiting(slot);
                        }
                        Some(_) => {}
                        None if now >= self.drain_settled_at => {
                            self.close_connection(slot, false, turn, handle);
                        }
                        None => {}
                    }
                }
                return Next::Wait;
            }
            Some(libc::EINTR) => {
                counters.receive_errors.interrupted += 1;
                return Next::Again;
            }
            Some(libc::ENOMEM | libc::ENOBUFS) => {
                // Asked again when epoll says so; the data stays in the kernel.
                counters.receive_errors.no_memory += 1;
                if !self.draining {
                    return Next::Wait;
                }
            }
            Some(libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT) => counters.receive_errors.reset += 1,
            _ => counters.receive_errors.other += 1,
        }
        counters.connections_failed += 1;
        self.close_connection(slot, false, turn, handle);
        Next::Wait
    }

    fn close_connection(
        &mut self,
        slot: u32,
        orderly: bool,
        turn: &mut Turn,
        handle: &mut impl FnMut(Batch<'_>),
    ) {
        let Kind::Connection(mut connection) = self.free_slot(slot) else {
            return;
        };
        let listener = &mut self.listeners[connection.listener as usize];
        if connection.tls.as_ref().is_some_and(TlsSession::is_handshaking) {
            self.handshakes -= 1;
            listener.counters.connections_failed_tls += 1;
        }
        listener.counters.partial_bytes -= connection.framer.partial_bytes() as u64;
        let mut counts = FramingCounts::default();
        let mut delivery = Delivery {
            id: listener.id,
            origin: connection.origin,
            received: Monotonic::now(),
            limits: connection.source.zip(listener.config.rates.as_deref()),
            passing: &mut self.passing,
            dropped: Dropped::default(),
        };
        let end = connection
            .framer
            .finish(orderly, &mut self.pool, &mut counts, |memory, entries| {
                delivery.deliver(memory, entries, handle);
            });
        let dropped = delivery.dropped;
        add_counts(&mut listener.counters, turn, &counts, dropped);
        match end {
            End::Clean => {}
            End::Unterminated => listener.counters.lines_unterminated += 1,
            End::Cut => listener.counters.frames_cut += 1,
        }
        self.counters.system_calls += 1;
        drop(connection);
        listener.counters.connections_open -= 1;
        if listener.counters.connections_open == 0 && listener.fd.is_none() {
            listener.phase = Phase::Closed;
        }
    }

    fn accept(&mut self, index: u32) -> Next {
        for _ in 0..ACCEPTS_PER_TURN {
            let listener = &mut self.listeners[index as usize];
            let Some(fd) = &listener.fd else { return Next::Wait };
            self.counters.system_calls += 1;
            match sys::accept(fd.as_fd()) {
                Ok(connection) => self.accepted(index, connection),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        return self.no_more_connections(index);
                    }
                    // A Unix socket that was shut and is empty says so this way.
                    Some(libc::EINVAL) if listener.phase == Phase::Draining => {
                        self.close_listener(index);
                        return Next::Wait;
                    }
                    Some(libc::EINTR) => {}
                    Some(libc::EMFILE | libc::ENFILE) => match self.refuse_one(index) {
                        Refusal::Refused => {}
                        // The kernel looks for a descriptor before it looks for a connection.
                        Refusal::NoConnection => return self.no_more_connections(index),
                        Refusal::Failed => {
                            self.listeners[index as usize].counters.accept_pauses += 1;
                            self.pause(index);
                            return Next::Wait;
                        }
                    },
                    Some(libc::ENOMEM | libc::ENOBUFS) => {
                        listener.counters.accept_errors += 1;
                        listener.counters.accept_pauses += 1;
                        self.pause(index);
                        return Next::Wait;
                    }
                    // The connection is gone again (or the network below it is); the next one may be fine.
                    _ => listener.counters.accept_errors += 1,
                },
            }
        }
        Next::Again
    }

    fn no_more_connections(&mut self, index: u32) -> Next {
        if self.listeners[index as usize].phase == Phase::Draining
            && sys::monotonic_nanos() >= self.drain_settled_at
        {
            self.close_listener(index);
        }
        Next::Wait
    }

    fn accepted(&mut self, index: u32, fd: OwnedFd) {
        let listener = &mut self.listeners[index as usize];
        listener.counters.connections_accepted += 1;
        if listener.counters.connections_open >= listener.config.max_connections as u64 {
            listener.counters.connections_refused_limit += 1;
            self.counters.system_calls += 1;
            return;
        }
        let is_internet = matches!(listener.address, Address::Tcp { .. });
        let mut source = None;
        if is_internet && guard::needs_sources(&listener.config) {
            self.counters.system_calls += 1;
            source = sys::peer_address(fd.as_fd()).ok();
            // One whose peer is gone already has no address.
            if source.is_none_or(|peer| !listener.config.allow.allows(peer)) {
                listener.counters.connections_refused_source += 1;
                self.counters.system_calls += 1;
                return;
            }
        }
        let mut tls = None;
        if is_internet && let Some(server) = &listener.config.tls {
            match TlsSession::new(server, sys::monotonic_nanos()) {
                Ok(session) => tls = Some(session),
                Err(fault) => {
                    listener.counters.connections_failed_tls += 1;
                    self.tls_fault = Some((listener.id, fault));
                    self.counters.system_calls += 1;
                    return;
                }
            }
        }
        let mut origin = None;
        if listener.config.pass_credentials && matches!(listener.address, Address::UnixStream(_)) {
            self.counters.system_calls += 1;
            origin = sys::peer_credentials(fd.as_fd())
                .ok()
                .filter(|origin| origin.pid > 0);
            if origin.is_none() {
                listener.counters.origin_errors += 1;
            }
        }
        let framer = Framer::new(listener.config.framing, listener.config.max_packet_bytes);
        let mut connection = Connection {
            fd,
            listener: index,
            origin,
            source: source.filter(|_| listener.config.rates.is_some()),
            tls,
            framer,
            awaited_until: None,
        };
        self.handshakes += usize::from(connection.tls.is_some());
        if self.draining {
            if is_tcp(&connection, &self.listeners) {
                connection.awaited_until = Some(sys::monotonic_nanos() + DRAIN_SILENCE_NANOS);
            } else {
                self.counters.system_calls += 1;
                // An error means that the connection is gone, which reading will tell.
                let _ = sys::shutdown_read(connection.fd.as_fd());
            }
        }
        let slot = self.take_slot(Kind::Connection(connection));
        let token = self.token_of(slot);
        let Kind::Connection(connection) = &self.slots[slot as usize].kind else {
            return;
        };
        self.counters.system_calls += 1;
        if self.epoll.add(connection.fd.as_fd(), token).is_err() {
            // The system's limit of watched descriptors is reached, which is one more kind of having none left.
            self.listeners[index as usize]
                .counters
                .connections_refused_descriptors += 1;
            if let Kind::Connection(connection) = self.free_slot(slot) {
                self.handshakes -= usize::from(connection.tls.is_some());
            }
            return;
        }
        self.listeners[index as usize].counters.connections_open += 1;
        // Most connections are made to send something at once.
        self.make_ready(slot);
    }

    /// With no descriptor left, gives up the reserve to accept one connection and close it: otherwise it would stay in
    /// the queue, the peer waiting for nothing and epoll reporting it for ever.
    #[cold]
    fn refuse_one(&mut self, index: u32) -> Refusal {
        let listener = &mut self.listeners[index as usize];
        let Some(fd) = &listener.fd else {
            return Refusal::NoConnection;
        };
        self.counters.system_calls += 4;
        self.reserve = None;
        let refused = sys::accept(fd.as_fd()).map(drop);
        self.reserve = open_reserve();
        match refused {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Refusal::NoConnection,
            Err(_) => {
                listener.counters.accept_errors += 1;
                return Refusal::Failed;
            }
            Ok(()) => {}
        }
        listener.counters.accept_errors += 1;
        listener.counters.connections_accepted += 1;
        listener.counters.connections_refused_descriptors += 1;
        if self.reserve.is_some() {
            Refusal::Refused
        } else {
            Refusal::Failed
        }
    }
}

/// What [`EventLoop::refuse_one`] achieved.
enum Refusal {
    /// One connection is gone, and the next can be refused as well.
    Refused,
    /// There was none.
    NoConnection,
    /// There is no reserve any more.
    Failed,
}

fn open_reserve() -> Option<OwnedFd> {
    File::open("/dev/null").ok().map(OwnedFd::from)
}

fn is_tcp(connection: &Connection, listeners: &[Listener]) -> bool {
    matches!(
        listeners[connection.listener as usize].address,
        Address::Tcp { .. }
    )
}

/// Hands over packets of one connection, those that it may still send.
struct Delivery<'a> {
    id: ListenerId,
    origin: Option<Credentials>,
    received: Monotonic,
    limits: Option<(IpAddr, &'a SourceRates)>,
    passing: &'a mut Vec<Entry>,
    dropped: Dropped,
}

/// Packets that were found and not handed over.
#[derive(Clone, Copy, Default)]
struct Dropped {
    packets: u64,
    bytes: u64,
}

impl Delivery<'_> {
    #[inline]
    fn deliver(&mut self, memory: &[u8], entries: &[Entry], handle: &mut impl FnMut(Batch<'_>)) {
        let batch = Batch {
            memory,
            entries,
            listener: self.id,
            received: self.received,
            origin: self.origin,
        };
        let Some((source, rates)) = self.limits else {
            handle(batch);
            return;
        };
        let entries = self.admitted(entries, source, rates);
        if !entries.is_empty() {
            handle(Batch { entries, ..batch });
        }
    }

    fn admitted(&mut self, entries: &[Entry], source: IpAddr, rates: &SourceRates) -> &[Entry] {
        let mut open = rates.open(self.received);
        self.passing.clear();
        for entry in entries {
            if open.admits(source, entry.length as usize) {
                self.passing.push(*entry);
            } else {
                self.dropped.packets += 1;
                self.dropped.bytes += u64::from(entry.length);
            }
        }
        self.passing
    }
}

fn add_counts(counters: &mut ListenerCounters, turn: &mut Turn, counts: &FramingCounts, dropped: Dropped) {
    counters.packets += counts.packets - dropped.packets;
    counters.bytes += counts.bytes - dropped.bytes;
    counters.rate_limited += dropped.packets;
    counters.frames_too_long += counts.too_long;
    counters.frames_empty += counts.empty;
    counters.bytes_discarded += counts.discarded_bytes;
    turn.packets += counts.packets - dropped.packets;
}
