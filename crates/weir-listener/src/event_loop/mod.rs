//! One worker's sockets: waiting, receiving, accepting, draining.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::bind::MAX_PACKET_BYTES_LIMIT;
use crate::framing::Entries;
use crate::guard;
use crate::kernel_table::{self, WrappingCounter};
use crate::partial::PartialPool;
use crate::socket_file::SocketFile;
use crate::sys::{self, Ancillary, DatagramRing, Entry, Epoll, Mapping};
use crate::tls::TLS_SESSION_BYTES;
use crate::{Address, BoundSocket, ListenerConfig, ListenerCounters, ListenerId, LoopCounters};
use crate::{ListenerCounter, LoopCounter};

mod accept;
mod batch;
mod datagrams;
mod idle;
mod peers;
mod replace;
mod streams;

use accept::open_reserve;
pub use batch::{Batch, Monotonic, Packet, Packets};
use datagrams::{DOZE_NANOS, Doze};
use idle::IdleLook;
use peers::Peers;
use streams::{Connection, DRAIN_SILENCE_NANOS, is_tcp};

/// Bytes asked for with one call on a stream.
const STREAM_READ_BYTES: usize = 64 * 1024;
/// Where they are put: behind room for the longest partial frame, aligned to a page.
const STREAM_READ_START: usize = MAX_PACKET_BYTES_LIMIT + 4096;
/// Packets' bytes after which a turn ends although there is more.
const TURN_BYTES: usize = 1024 * 1024;
/// While some descriptors are busy, the others are looked at after this many bytes or receive calls.
const POLL_BYTES: usize = 256 * 1024;
const POLL_SERVICES: u32 = 16;
/// How long a descriptor is left alone after an error that would otherwise come back at once.
const PAUSE_NANOS: u64 = 100_000_000;
/// How long a drain waits for packets on their way if the kernel cannot be asked to wait for them.
const DRAIN_SETTLE_NANOS: u64 = 20_000_000;
/// How long a drain reads TCP connections, whether their peers are silent or not.
const DRAIN_CONNECTIONS_NANOS: u64 = 1_000_000_000;
const EVENTS_PER_POLL: usize = 128;
const WAKER_TOKEN: u64 = u64::MAX;

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
    /// Who its connections belong to.
    peers: Peers,
    /// No connection can be idle for long enough to give way before this time.
    none_idle_until: u64,
    counters: ListenerCounters,
}

impl Listener {
    fn note_drops(&mut self, now: u32) {
        let counter = match self.phase {
            Phase::Open => &mut self.counters[ListenerCounter::KernelDropped],
            Phase::Draining | Phase::Closed => &mut self.counters[ListenerCounter::RefusedDraining],
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
    idle: IdleLook,
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
            idle: IdleLook::default(),
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
            peers: Peers::default(),
            none_idle_until: 0,
            counters: ListenerCounters::default(),
        });
        self.doze.allowed = self.allow_doze();
        Ok(())
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
            listener.read_drops(&mut self.counters[LoopCounter::SystemCalls])?;
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
        self.counters[LoopCounter::SystemCalls] += 1;
        let socket = sys::socket_drops(fd.as_fd())?;
        listener.note_drops(socket);
        let counted = listener.counters[ListenerCounter::KernelDropped]
            + listener.counters[ListenerCounter::RefusedDraining];
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
        self.counters[LoopCounter::SystemCalls] += 2;
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
        self.counters[LoopCounter::Turns] += 1;
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
            self.counters[LoopCounter::Dozes] += 1;
            self.counters[LoopCounter::SystemCalls] += 1;
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
    /// or is silent for a tenth of a second, for one second at most; what comes later is never acknowledged, and the
    /// connection is reset, so that its peer knows at once.
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
            self.counters[LoopCounter::SystemCalls] += 1;
            if stopped.is_err() {
                listener.counters[ListenerCounter::ReceiveOther] += 1;
            }
            // What the kernel dropped until now it dropped for its own reasons.
            let _ = listener.read_drops(&mut self.counters[LoopCounter::SystemCalls]);
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
                    self.counters[LoopCounter::SystemCalls] += 1;
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
        self.counters[LoopCounter::SystemCalls] += 1;
        if sys::wait_for_running_receivers().is_err() {
            self.drain_settled_at = sys::monotonic_nanos() + DRAIN_SETTLE_NANOS;
        }
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
        self.counters[LoopCounter::Polls] += 1;
        self.counters[LoopCounter::SystemCalls] += 1;
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
        self.counters[LoopCounter::Wakeups] += 1;
        self.counters[LoopCounter::SystemCalls] += 1;
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
        self.counters[LoopCounter::SystemCalls] += 1;
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
        let _ = listener.read_drops(&mut self.counters[LoopCounter::SystemCalls]);
        self.counters[LoopCounter::SystemCalls] += 1;
        listener.fd = None;
        listener.file = None;
        if listener.paused_until.take().is_some() {
            self.paused -= 1;
        }
        if listener.counters[ListenerCounter::ConnectionsOpen] == 0 {
            listener.phase = Phase::Closed;
        }
        let slot = listener.slot;
        self.free_slot(slot);
    }
}
