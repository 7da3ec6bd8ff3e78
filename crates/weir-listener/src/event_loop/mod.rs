//! One worker's sockets: waiting, receiving, accepting, draining.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use crate::LoopCounter;
use crate::sys::{self, DatagramRing};
use crate::{Address, BoundSocket, ListenerCounters, ListenerId, LoopCounters};

mod accept;
mod batch;
mod connection;
mod datagrams;
mod descriptors;
mod drain;
mod encrypted;
mod idle;
mod listener;
mod pass;
mod peers;
mod poller;
mod streams;

use accept::Reserve;
pub use batch::{Monotonic, Packet, PacketBatch, Packets};
use connection::StreamMemory;
use datagrams::{DOZE_NANOS, Doze};
use descriptors::{Descriptor, Descriptors};
use drain::Drain;
use encrypted::Handshakes;
use idle::IdleCheck;
pub use listener::DropCheck;
use listener::{Listener, Listeners, PAUSE_NANOS, Phase, SocketPlace};
pub use pass::{OpenConnection, PassedConnection};
pub use poller::Waker;
use poller::{Event, Poller};

/// Packets' bytes after which a turn ends although there is more.
const TURN_BYTES: usize = 1024 * 1024;

/// The result of a call of [`EventLoop::turn`].
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
    poller: Poller,
    descriptors: Descriptors,
    listeners: Listeners,
    ring: DatagramRing,
    doze: Doze,
    streams: StreamMemory,
    handshakes: Handshakes,
    idle: IdleCheck,
    reserve: Reserve,
    drain: Drain,
    counters: LoopCounters,
}

impl EventLoop {
    /// A loop whose ring has `ring_slots` slots of 64 KiB (at least 1, at most 1024), which cost memory only as far
    /// as they are used.
    ///
    /// # Errors
    ///
    /// When there is no memory or descriptor for it.
    pub fn new(ring_slots: usize) -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            descriptors: Descriptors::new(),
            listeners: Listeners::default(),
            ring: DatagramRing::new(ring_slots.clamp(1, 1024))?,
            doze: Doze::default(),
            streams: StreamMemory::new()?,
            handshakes: Handshakes::default(),
            idle: IdleCheck::default(),
            reserve: Reserve::new(),
            drain: Drain::default(),
            counters: LoopCounters::default(),
        })
    }

    /// Starts receiving from a socket. A listener may have several for UDP: also those of workers that no longer exist.
    ///
    /// # Errors
    ///
    /// If the id is taken, the loop is draining, or epoll refuses the socket.
    pub fn add(&mut self, socket: BoundSocket, id: ListenerId) -> io::Result<()> {
        let is_udp = |address: &Address| matches!(address, Address::Udp { .. });
        let known = self
            .listeners
            .number_of(id)
            .map(|number| self.listeners.get(number));
        let is_taken = known.is_some_and(|known| !is_udp(&known.address) || !is_udp(&socket.address));
        if is_taken || self.drain.is_on() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let place = self.watch(&socket, self.listeners.numbers().end)?;
        let listener = Listener::new(socket, id, place, self.ring.slots());
        self.listeners.add(listener);
        self.doze.allow(&self.listeners);
        Ok(())
    }

    /// Gives the socket of a listener a place, and begins to watch it.
    fn watch(&mut self, socket: &BoundSocket, listener: u32) -> io::Result<SocketPlace> {
        let inode = sys::socket_inode(socket.fd.as_fd())?;
        let slot = self.descriptors.add(if socket.address.is_stream() {
            Descriptor::Acceptor { listener }
        } else {
            Descriptor::Datagrams { listener }
        });
        let token = self.descriptors.token_of(slot);
        if let Err(error) = self.poller.watch(socket.fd.as_fd(), token) {
            self.descriptors.remove(slot);
            return Err(error);
        }
        Ok(SocketPlace { slot, inode })
    }

    /// A handle with which other threads end the waiting.
    pub fn waker(&self) -> Waker {
        self.poller.waker()
    }

    /// The counters of a listener, of all its sockets together.
    ///
    /// # Panics
    ///
    /// If no listener of that id was added.
    pub fn counters(&self, id: ListenerId) -> ListenerCounters {
        assert!(
            self.listeners.number_of(id).is_some(),
            "no listener {id:?} was added"
        );
        let mut sum = ListenerCounters::default();
        let sockets = self.listeners.iter().filter(|listener| listener.id == id);
        sockets.for_each(|socket| sum.add(&socket.counters));
        sum
    }

    /// The counters of the loop.
    pub fn loop_counters(&self) -> &LoopCounters {
        &self.counters
    }

    /// The listeners added so far with the addresses they are bound to, each once.
    pub fn listeners(&self) -> impl Iterator<Item = (ListenerId, &Address)> {
        let firsts = (self.listeners.numbers().zip(self.listeners.iter()))
            .filter(|(number, listener)| self.listeners.number_of(listener.id) == Some(*number));
        firsts.map(|(_, listener)| (listener.id, &listener.address))
    }

    /// For UDP sockets, including closed ones: the number in the kernel's tables, and the last drop counter.
    pub fn drops_seen(&self) -> impl Iterator<Item = (u64, u32)> {
        self.listeners.iter().filter_map(Listener::drops_seen)
    }

    /// Queries the drop counters now. With every batch the kernel reports the number of drops before the batch's first datagram. Later
    /// drops become known with the next datagram, or through this call. Call it before publishing counters.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub fn refresh_drops(&mut self) -> io::Result<()> {
        for listener in self.listeners.iter_mut() {
            listener.read_drops(&mut self.counters[LoopCounter::SystemCalls])?;
        }
        Ok(())
    }

    /// Compares the counted drops of a UDP listener with two independent numbers: the kernel's counter of the socket, and that in its table
    /// (`/proc/net/udp`, `/proc/net/udp6`). `None` for other listeners, after a drain, and when a reading of the table misses the socket, as
    /// it can while others are closed. Of several sockets the first is compared.
    ///
    /// Reads the whole table: for a diagnosis or a test, not for every second.
    ///
    /// # Errors
    ///
    /// If the kernel or its table cannot be read.
    pub fn cross_check_drops(&mut self, id: ListenerId) -> io::Result<Option<DropCheck>> {
        let Some(number) = self.listeners.number_of(id) else {
            return Ok(None);
        };
        let listener = self.listeners.get_mut(number);
        listener.cross_check_drops(&mut self.counters[LoopCounter::SystemCalls])
    }

    /// Bytes that partial frames may hold, memory kept in reserve for them included.
    pub fn partial_budget(&self) -> usize {
        self.streams.pool.budget()
    }

    /// Sets the budget of [`EventLoop::partial_budget`]. When it is used up, the connection that holds most is closed and counted, so that
    /// a peer that sends only beginnings of frames cannot block the others. (If reads were paused instead, such peers could block all.)
    pub fn set_partial_budget(&mut self, bytes: usize) {
        self.streams.pool.set_budget(bytes);
    }

    /// Bytes held for partial frames, memory in reserve included.
    pub fn partial_bytes_held(&self) -> usize {
        self.streams.pool.held()
    }

    /// From now on the kernel is asked where UDP packets come from, for [`PacketBatch::source`], or no longer.
    pub fn report_sources(&mut self, wanted: bool) {
        for listener in self.listeners.iter_mut() {
            let is_internet = matches!(listener.address, Address::Udp { .. });
            listener.intake.report_sources(is_internet, wanted);
        }
    }

    /// Gives the memory of the receive ring and the stream buffer back to the kernel. They grow again on demand.
    pub fn release_memory(&mut self) {
        self.ring.release();
        self.streams.release();
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
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> io::Result<Turn> {
        self.counters[LoopCounter::Turns] += 1;
        let mut turn = Turn::default();
        if self.poller.is_woken() {
            self.take_wake_up(&mut turn);
        }
        self.find_ready(timeout, &mut turn)?;
        if self.listeners.any_paused() {
            self.resume();
        }
        if self.handshakes.any_open() {
            self.end_slow_handshakes(&mut turn, handle);
        }
        for _ in 0..self.descriptors.ready_count() {
            let Some(token) = self.descriptors.next_ready() else {
                break;
            };
            self.serve(token, &mut turn, handle);
            if turn.bytes as usize >= TURN_BYTES {
                break;
            }
        }
        Ok(turn)
    }

    /// Waits, sleeps or looks, whichever it is time for.
    #[inline]
    fn find_ready(&mut self, timeout: Option<Duration>, turn: &mut Turn) -> io::Result<()> {
        if self.doze.take() && self.may_doze(timeout, turn) {
            self.counters[LoopCounter::Dozes] += 1;
            self.counters[LoopCounter::SystemCalls] += 1;
            sys::sleep_nanos(DOZE_NANOS);
            // With one descriptor there is nothing to be asked.
            if self.descriptors.in_use() > 1 {
                self.poll(0, turn)?;
            }
        } else if self.descriptors.ready_count() == 0 {
            self.poll(if turn.woken { 0 } else { self.wait_ms(timeout) }, turn)?;
            if self.drain.is_on() {
                // Sockets that were empty before packets in flight arrived are read again, because epoll would not report them.
                self.descriptors.make_all_ready();
            }
        } else if self.poller.is_due() {
            self.poll(0, turn)?;
        }
        Ok(())
    }

    fn may_doze(&self, timeout: Option<Duration>, turn: &Turn) -> bool {
        self.descriptors.ready_count() == 1
            && !turn.woken
            && !self.drain.is_on()
            && timeout.is_none_or(|timeout| timeout.as_nanos() >= u128::from(DOZE_NANOS))
    }

    /// Stops taking new packets. Packets that the kernel accepted before this call are still received by further turns (until
    /// [`EventLoop::drained`]); the kernel refuses later ones. Senders on Unix sockets see an error; later UDP datagrams are counted in
    /// `refused_draining`. A TCP connection is read until its peer closes it or is silent for a tenth of a second, for one second at most;
    /// later data is never acknowledged, and the connection is reset, so that its peer knows at once.
    ///
    /// A kept socket is read for at most a tenth of a second; later packets wait in it. Its file stays, and so do connections that are not
    /// accepted yet.
    ///
    /// Other socket files are removed, so that a successor can bind at once. Connections that are complete but not yet accepted are
    /// accepted and read. An incomplete frame is counted as cut.
    pub fn begin_drain(&mut self) {
        if self.drain.is_on() {
            return;
        }
        self.drain.begin(sys::monotonic_nanos());
        let mut internet = false;
        for number in self.listeners.numbers() {
            let listener = self.listeners.get_mut(number);
            if listener.stop(&mut self.counters[LoopCounter::SystemCalls]) {
                let leaves = listener.kept && listener.address.is_stream();
                internet |= matches!(listener.address, Address::Udp { .. } | Address::Tcp { .. });
                self.listeners.end_pause(number);
                if leaves {
                    // Connections that wait to be accepted wait for the next process.
                    self.close_listener(number);
                }
            }
        }
        for slot in self.descriptors.places() {
            if let Some(connection) = self.descriptors.connection_mut(slot) {
                let listener = self.listeners.get(connection.listener);
                self.counters[LoopCounter::SystemCalls] += connection.begin_to_end(listener);
            }
        }
        self.descriptors.make_all_ready();
        if internet {
            self.settle();
        }
    }

    /// Waits until packets that the kernel was receiving when a filter was set are where they can be read.
    fn settle(&mut self) {
        self.counters[LoopCounter::SystemCalls] += 1;
        self.drain.settle();
    }

    /// True when everything the kernel had accepted before [`EventLoop::begin_drain`] has been handed over and all
    /// sockets are closed.
    pub fn drained(&self) -> bool {
        let mut listeners = self.listeners.iter();
        self.drain.is_on() && listeners.all(|listener| listener.phase == Phase::Closed)
    }

    fn wait_ms(&self, timeout: Option<Duration>) -> i32 {
        let ms = match timeout {
            None => -1,
            // Rounded up, so that the caller's deadline has passed when the waiting ends.
            Some(timeout) => timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32,
        };
        let most = match (self.drain.is_on(), self.listeners.any_paused()) {
            (true, _) => 1,
            (false, true) => (PAUSE_NANOS / 1_000_000) as i32,
            (false, false) => return ms,
        };
        if ms < 0 { most } else { ms.min(most) }
    }

    fn poll(&mut self, timeout_ms: i32, turn: &mut Turn) -> io::Result<()> {
        self.counters[LoopCounter::Polls] += 1;
        self.counters[LoopCounter::SystemCalls] += 1;
        for event in 0..self.poller.wait(timeout_ms)? {
            match self.poller.event(event) {
                Event::Woken => self.take_wake_up(turn),
                Event::Ready(token) => self.descriptors.make_token_ready(token),
            }
        }
        Ok(())
    }

    #[cold]
    fn take_wake_up(&mut self, turn: &mut Turn) {
        turn.woken = true;
        self.counters[LoopCounter::Wakeups] += 1;
        self.counters[LoopCounter::SystemCalls] += 1;
        self.poller.take_wake_up();
    }

    #[inline]
    fn serve(&mut self, token: u64, turn: &mut Turn, handle: &mut impl FnMut(PacketBatch<'_>)) {
        let before = turn.bytes;
        let next = match self.descriptors.of_token(token) {
            Some(&Descriptor::Datagrams { listener }) => self.receive_datagrams(listener, turn, handle),
            Some(Descriptor::Connection(_)) => self.receive_stream(token as u32, turn, handle),
            Some(&Descriptor::Acceptor { listener }) => self.accept(listener),
            Some(Descriptor::Free) | None => return,
        };
        self.poller.record_service(turn.bytes - before);
        self.descriptors.end_turn(token, next);
    }

    /// Leaves a listener alone for a while, because asking again at once would only fail again.
    #[cold]
    fn pause(&mut self, number: u32) {
        if self.listeners.get(number).is_draining() {
            // Nothing can be waited for any more.
            self.close_listener(number);
        } else if self.listeners.pause(number) {
            self.set_interest(number, false);
        }
    }

    #[cold]
    fn resume(&mut self) {
        let now = sys::monotonic_nanos();
        for number in self.listeners.numbers() {
            if self.listeners.pause_is_over(number, now) {
                self.listeners.end_pause(number);
                self.set_interest(number, true);
            }
        }
    }

    fn set_interest(&mut self, number: u32, readable: bool) {
        let Some(socket) = &self.listeners.get(number).socket else {
            return;
        };
        self.counters[LoopCounter::SystemCalls] += 1;
        // Removed rather than muted, because errors are reported of muted descriptors too. Neither call fails for a
        // descriptor that is open and was in the other state.
        let _ = if readable {
            let token = self.descriptors.token_of(socket.place.slot);
            self.poller.watch(socket.fd.as_fd(), token)
        } else {
            self.poller.forget(socket.fd.as_fd())
        };
    }

    fn close_listener(&mut self, number: u32) {
        if self.listeners.get(number).kept {
            // It stays open elsewhere, and would be reported for as long.
            self.set_interest(number, false);
        }
        let listener = self.listeners.get_mut(number);
        if let Some(slot) = listener.close(&mut self.counters[LoopCounter::SystemCalls]) {
            self.listeners.end_pause(number);
            self.descriptors.remove(slot);
        }
    }

    /// Replaces the socket of a Unix listener whose file was removed. Packets that the old one had accepted are handed over first. Clients
    /// connected to a datagram socket get an error and must reconnect; connections of streams stay.
    ///
    /// # Errors
    ///
    /// If there is no such listener, it is not a Unix socket, the loop is draining, or epoll refuses the socket.
    pub fn replace(
        &mut self,
        id: ListenerId,
        socket: BoundSocket,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> io::Result<()> {
        let number = self.listeners.number_of(id);
        let Some(number) = number.filter(|_| socket.file.is_some() && !self.drain.is_on()) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        self.empty_and_close(number, handle);
        let place = self.watch(&socket, number)?;
        self.listeners.get_mut(number).reopen(socket, place);
        Ok(())
    }

    /// Reads the rest of a Unix socket and closes it at once, as a drain does.
    fn empty_and_close(&mut self, number: u32, handle: &mut impl FnMut(PacketBatch<'_>)) {
        let listener = self.listeners.get_mut(number);
        listener.stop_for_successor(&mut self.counters[LoopCounter::SystemCalls]);
        let is_stream = listener.address.is_stream();
        while self.listeners.get(number).socket.is_some() {
            if is_stream {
                self.accept(number);
            } else {
                self.receive_datagrams(number, &mut Turn::default(), handle);
            }
        }
    }
}
