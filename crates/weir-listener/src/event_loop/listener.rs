//! One listener: its socket, its counters and the peers of its connections.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::datagrams::Intake;

use super::peers::{Peer, Peers};
use crate::ListenerCounter;
use crate::kernel_table::{self, WrappingCounter};
use crate::socket_file::SocketFile;
use crate::sys;
use crate::{Address, BoundSocket, ListenerConfig, ListenerCounters, ListenerId};

/// Pause of a descriptor after an error that would otherwise recur at once.
pub(super) const PAUSE_NANOS: u64 = 100_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    Draining,
    Closed,
}

/// Three views of one drop counter, see [`crate::EventLoop::cross_check_drops`]. The kernel's wrap around at 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropCheck {
    /// The final counts of this crate, after a last look at the kernel's.
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

/// An open socket.
pub(super) struct Socket {
    pub(super) fd: OwnedFd,
    pub(super) place: SocketPlace,
}

/// Position of a socket: among the loop's descriptors, and in the kernel's tables.
#[derive(Clone, Copy)]
pub(super) struct SocketPlace {
    pub(super) slot: u32,
    pub(super) inode: u64,
}

pub(super) struct Listener {
    pub(super) id: ListenerId,
    pub(super) phase: Phase,
    pub(super) address: Address,
    pub(super) config: ListenerConfig,
    /// `None` once it is closed.
    pub(super) socket: Option<Socket>,
    /// Held so that the socket file goes when the listener does.
    file: Option<SocketFile>,
    pub(super) intake: Intake,
    /// The socket's inode, also after its end.
    inode: u64,
    /// Another process keeps the socket open beyond this one.
    pub(super) kept: bool,
    drops: WrappingCounter,
    /// Drops that others had counted.
    drops_before: u32,
    paused_until: Option<u64>,
    /// The peers of its connections.
    pub(super) peers: Peers,
    /// Before this time no connection can have been idle long enough to be evicted.
    pub(super) none_idle_until: u64,
    pub(super) counters: ListenerCounters,
}

impl Listener {
    pub(super) fn new(bound: BoundSocket, id: ListenerId, place: SocketPlace, ring_slots: usize) -> Self {
        Self {
            id,
            phase: Phase::Open,
            intake: Intake::new(&bound, ring_slots),
            socket: Some(Socket { fd: bound.fd, place }),
            address: bound.address,
            config: bound.config,
            file: bound.file,
            inode: place.inode,
            kept: bound.kept,
            drops: WrappingCounter::after(bound.drops_before),
            drops_before: bound.drops_before,
            paused_until: None,
            peers: Peers::default(),
            none_idle_until: 0,
            counters: ListenerCounters::default(),
        }
    }

    /// Another socket in the place of the one that was closed.
    pub(super) fn reopen(&mut self, bound: BoundSocket, place: SocketPlace) {
        self.socket = Some(Socket { fd: bound.fd, place });
        (self.file, self.phase, self.kept) = (bound.file, Phase::Open, bound.kept);
    }

    pub(super) fn is_tcp(&self) -> bool {
        matches!(self.address, Address::Tcp { .. })
    }

    pub(super) fn is_draining(&self) -> bool {
        self.phase == Phase::Draining
    }

    /// Records the kernel's drop counter.
    pub(super) fn record_drops(&mut self, now: u32) {
        let counter = match self.phase {
            Phase::Open => &mut self.counters[ListenerCounter::KernelDropped],
            // The buffer was full; nothing refused it.
            Phase::Draining if self.kept => &mut self.counters[ListenerCounter::KernelDropped],
            Phase::Draining | Phase::Closed => &mut self.counters[ListenerCounter::RefusedDraining],
        };
        *counter += self.drops.advance(now);
    }

    /// Asks the kernel for its counter of drops, if it has one for this socket.
    pub(super) fn read_drops(&mut self, system_calls: &mut u64) -> io::Result<()> {
        if let (Address::Udp { .. }, Some(socket)) = (&self.address, &self.socket) {
            *system_calls += 1;
            let now = sys::socket_drops(socket.fd.as_fd())?;
            self.record_drops(now);
        }
        Ok(())
    }

    pub(super) fn cross_check_drops(&mut self, system_calls: &mut u64) -> io::Result<Option<DropCheck>> {
        let (Address::Udp { .. }, Some(socket)) = (&self.address, &self.socket) else {
            return Ok(None);
        };
        let Some(table) = kernel_table::drops_of(socket.place.inode)? else {
            return Ok(None);
        };
        *system_calls += 1;
        let socket = sys::socket_drops(socket.fd.as_fd())?;
        self.record_drops(socket);
        Ok(Some(DropCheck {
            counted: self.counters[ListenerCounter::KernelDropped]
                + self.counters[ListenerCounter::RefusedDraining]
                + u64::from(self.drops_before),
            socket,
            table,
        }))
    }

    /// The socket's number in the kernel's tables, and what its counter of drops said last.
    pub(super) fn drops_seen(&self) -> Option<(u64, u32)> {
        matches!(self.address, Address::Udp { .. }).then(|| (self.inode, self.drops.seen()))
    }

    /// Makes the kernel refuse later packets, unless they can wait for the next process. False if the socket is closed.
    pub(super) fn stop(&mut self, system_calls: &mut u64) -> bool {
        let Some(socket) = &self.socket else { return false };
        let stopped = match self.address {
            _ if self.kept => Ok(()),
            Address::Udp { .. } | Address::Tcp { .. } => sys::attach_drop_all_filter(socket.fd.as_fd()),
            Address::UnixDatagram(_) | Address::UnixStream(_) => sys::shutdown_read(socket.fd.as_fd()),
        };
        *system_calls += 1;
        if stopped.is_err() {
            self.counters[ListenerCounter::ReceiveOther] += 1;
        }
        // The kernel's drops until now have its own reasons.
        let _ = self.read_drops(system_calls);
        self.phase = Phase::Draining;
        self.file = None;
        true
    }

    /// As [`Listener::stop`], of a Unix socket whose file is another's by now.
    pub(super) fn stop_for_successor(&mut self, system_calls: &mut u64) {
        self.phase = Phase::Draining;
        if let Some(socket) = &self.socket {
            *system_calls += 1;
            // An error would mean that it is not open.
            let _ = sys::shutdown_read(socket.fd.as_fd());
        }
    }

    /// Closes the socket; returns its place, which is the caller's to empty. `None` if it was closed before.
    pub(super) fn close(&mut self, system_calls: &mut u64) -> Option<u32> {
        let _ = self.read_drops(system_calls);
        let socket = self.socket.take()?;
        *system_calls += 1;
        self.file = None;
        self.end_if_empty();
        Some(socket.place.slot)
    }

    fn end_if_empty(&mut self) {
        if self.socket.is_none() && self.counters[ListenerCounter::ConnectionsOpen] == 0 {
            self.phase = Phase::Closed;
        }
    }

    pub(super) fn connection_opened(&mut self, peer: Peer) {
        self.counters[ListenerCounter::ConnectionsOpen] += 1;
        self.peers.add(peer);
    }

    pub(super) fn connection_closed(&mut self, peer: Peer) {
        self.peers.remove(peer);
        self.counters[ListenerCounter::ConnectionsOpen] -= 1;
        self.end_if_empty();
    }
}

/// The listeners of a loop, and how many of them are left alone for a while.
#[derive(Default)]
pub(super) struct Listeners {
    all: Vec<Listener>,
    paused: usize,
}

impl Listeners {
    pub(super) fn add(&mut self, listener: Listener) {
        self.all.push(listener);
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Listener> {
        self.all.iter()
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Listener> {
        self.all.iter_mut()
    }

    pub(super) fn numbers(&self) -> std::ops::Range<u32> {
        0..self.all.len() as u32
    }

    pub(super) fn number_of(&self, id: ListenerId) -> Option<u32> {
        self.numbers().find(|number| self.get(*number).id == id)
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> &Listener {
        &self.all[number as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> &mut Listener {
        &mut self.all[number as usize]
    }

    #[inline]
    pub(super) fn any_paused(&self) -> bool {
        self.paused > 0
    }

    /// Leaves a listener alone for a while. True if it was not before.
    pub(super) fn pause(&mut self, number: u32) -> bool {
        let until = sys::monotonic_nanos() + PAUSE_NANOS;
        let begins = self.get_mut(number).paused_until.replace(until).is_none();
        self.paused += usize::from(begins);
        begins
    }

    /// Ends the pause of a listener, if it has one.
    pub(super) fn end_pause(&mut self, number: u32) {
        let ends = self.get_mut(number).paused_until.take().is_some();
        self.paused -= usize::from(ends);
    }

    pub(super) fn pause_is_over(&self, number: u32, now: u64) -> bool {
        self.get(number).paused_until.is_some_and(|until| until <= now)
    }
}
