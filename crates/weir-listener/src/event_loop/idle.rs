//! Ends connections that are idle, or evicted for others.

use super::listener::Listener;
use super::peers::Peer;
use super::{EventLoop, Monotonic, Turn};
use crate::sys;
use crate::{ListenerCounter, LoopCounter};

/// A connection on which no whole packet has come for this long is ended. A client that sends so seldom loses nothing by it
/// but the time to connect again: its next write fails instead of being lost. Peers that disappeared are noticed
/// by this sooner than by the keep-alive of TCP, which waits for two hours.
const IDLE_NANOS: u64 = 3600 * 1_000_000_000;
/// If all places are taken, a newcomer evicts a connection after this much idle time. Clients flush every ten seconds or sooner.
const IDLE_WHEN_FULL_NANOS: u64 = 60 * 1_000_000_000;
/// Interval of the check of all connections.
const LOOK_NANOS: u64 = 60 * 1_000_000_000;

/// When connections are looked at next.
#[derive(Default)]
pub(super) struct IdleCheck {
    next: u64,
}

impl IdleCheck {
    fn is_time(&mut self, now: Monotonic) -> bool {
        let is_time = now.0 >= self.next;
        if is_time {
            self.next = now.0 + LOOK_NANOS;
        }
        is_time
    }
}

impl Listener {
    /// Whether a full listener may evict the connection whose last data came then. Counts the eviction.
    fn may_evict(&mut self, last_data: u64, now: u64) -> bool {
        self.none_idle_until = last_data + IDLE_WHEN_FULL_NANOS;
        let is_idle = now.saturating_sub(last_data) >= IDLE_WHEN_FULL_NANOS;
        self.counters[ListenerCounter::ConnectionsClosedIdle] += u64::from(is_idle);
        is_idle
    }
}

impl EventLoop {
    /// Ends connections that have been idle for an hour. Call it now and then; it looks once a minute.
    pub fn end_idle(&mut self, now: Monotonic) {
        if !self.idle.is_time(now) {
            return;
        }
        for slot in self.descriptors.places() {
            if let Some(connection) = self.descriptors.connection(slot)
                && now.0.saturating_sub(connection.last_data) >= IDLE_NANOS
            {
                let counters = &mut self.listeners.get_mut(connection.listener).counters;
                counters[ListenerCounter::ConnectionsClosedIdle] += 1;
                self.end_early(slot);
            }
        }
    }

    /// Ends a connection of a listener whose places are all taken, if that is fair: one of the peer that has most, or one
    /// that is idle. True if there is a place now.
    pub(super) fn evict_one(&mut self, number: u32, newcomer: Peer) -> bool {
        let now = sys::monotonic_nanos();
        if let Some(eviction_group) = self.listeners.get(number).peers.eviction_group(newcomer)
            && let Some((slot, _)) = self.longest_idle(number, |peer| eviction_group.includes(peer))
        {
            let counters = &mut self.listeners.get_mut(number).counters;
            counters[ListenerCounter::ConnectionsClosedCrowded] += 1;
            self.end_early(slot);
            return true;
        }
        if now < self.listeners.get(number).none_idle_until {
            return false;
        }
        let Some((slot, last_data)) = self.longest_idle(number, |_| true) else {
            return false;
        };
        let evict = self.listeners.get_mut(number).may_evict(last_data, now);
        if evict {
            self.end_early(slot);
        }
        evict
    }

    /// Among a listener's connections of these peers the one that has been silent longest, and the time of its last data.
    fn longest_idle(&self, number: u32, of: impl Fn(Peer) -> bool) -> Option<(u32, u64)> {
        let connections = self.descriptors.connections();
        let candidates = connections
            .filter(|(_, connection)| connection.listener == number && of(connection.peer))
            .map(|(slot, connection)| (slot, connection.last_data));
        candidates.min_by_key(|(_, last_data)| *last_data)
    }

    fn end_early(&mut self, slot: u32) {
        if let Some(connection) = self.descriptors.connection(slot)
            && self.listeners.get(connection.listener).is_tcp()
        {
            self.counters[LoopCounter::SystemCalls] += 1;
            connection.reset_on_close();
        }
        // Not in order, so the frame in hand is counted as cut and nothing is handed over.
        self.close_connection(slot, false, &mut Turn::default(), &mut |_| {});
    }
}
