//! Connections that end before their peers want it: those that are idle, and those that give way to others.

use std::os::fd::AsFd;

use super::peers::Peer;
use super::streams::is_tcp;
use super::{EventLoop, Kind, Monotonic, Turn};
use crate::sys;
use crate::{ListenerCounter, LoopCounter};

/// A connection on which no whole packet has come for this long is ended. A client that sends so seldom loses nothing by it
/// but the time to connect again: its next write fails instead of being lost. Peers that are gone without a word are noticed
/// by this sooner than by the keep-alive of TCP, which waits for two hours.
const IDLE_NANOS: u64 = 3600 * 1_000_000_000;
/// Where all places are taken, a connection gives way to a newcomer after this long already. Clients flush every ten seconds
/// or sooner.
const IDLE_WHEN_FULL_NANOS: u64 = 60 * 1_000_000_000;
/// How often all connections are looked at.
const LOOK_NANOS: u64 = 60 * 1_000_000_000;

/// When connections are looked at next.
#[derive(Default)]
pub(super) struct IdleLook {
    next: u64,
}

impl EventLoop {
    /// Ends connections that have been idle for an hour. Call it now and then; it looks once a minute.
    pub fn end_idle(&mut self, now: Monotonic) {
        if now.0 < self.idle.next {
            return;
        }
        self.idle.next = now.0 + LOOK_NANOS;
        for slot in 0..self.slots.len() as u32 {
            if let Kind::Connection(connection) = &self.slots[slot as usize].kind
                && now.0.saturating_sub(connection.heard) >= IDLE_NANOS
            {
                let counters = &mut self.listeners[connection.listener as usize].counters;
                counters[ListenerCounter::ConnectionsClosedIdle] += 1;
                self.end_early(slot);
            }
        }
    }

    /// Ends a connection of a listener whose places are all taken, if that is fair: one of the peer that has most, or one
    /// that is idle. True if there is a place now.
    pub(super) fn make_place(&mut self, listener: u32, newcomer: Peer) -> bool {
        let now = sys::monotonic_nanos();
        if let Some(crowd) = self.listeners[listener as usize].peers.crowd(newcomer)
            && let Some((slot, _)) = self.longest_idle(listener, |peer| crowd.includes(peer))
        {
            let counters = &mut self.listeners[listener as usize].counters;
            counters[ListenerCounter::ConnectionsClosedCrowded] += 1;
            self.end_early(slot);
            return true;
        }
        if now < self.listeners[listener as usize].none_idle_until {
            return false;
        }
        let Some((slot, heard)) = self.longest_idle(listener, |_| true) else {
            return false;
        };
        self.listeners[listener as usize].none_idle_until = heard + IDLE_WHEN_FULL_NANOS;
        if now.saturating_sub(heard) < IDLE_WHEN_FULL_NANOS {
            return false;
        }
        let counters = &mut self.listeners[listener as usize].counters;
        counters[ListenerCounter::ConnectionsClosedIdle] += 1;
        self.end_early(slot);
        true
    }

    /// Among a listener's connections of these peers the one of which nothing was heard for longest, and when that was.
    fn longest_idle(&self, listener: u32, of: impl Fn(Peer) -> bool) -> Option<(u32, u64)> {
        let connections =
            self.slots
                .iter()
                .enumerate()
                .filter_map(|(slot, candidate)| match &candidate.kind {
                    Kind::Connection(connection)
                        if connection.listener == listener && of(connection.peer) =>
                    {
                        Some((slot as u32, connection.heard))
                    }
                    _ => None,
                });
        connections.min_by_key(|(_, heard)| *heard)
    }

    /// Over TCP by a reset: after an end in order the peer's next write would be taken by its own kernel and lost.
    fn end_early(&mut self, slot: u32) {
        if let Kind::Connection(connection) = &self.slots[slot as usize].kind
            && is_tcp(connection, &self.listeners)
        {
            self.counters[LoopCounter::SystemCalls] += 1;
            // An error means that the connection is gone already.
            let _ = sys::reset_on_close(connection.fd.as_fd());
        }
        // Not in order, so the frame in hand is counted as cut and nothing is handed over.
        self.close_connection(slot, false, &mut Turn::default(), &mut |_| {});
    }
}
