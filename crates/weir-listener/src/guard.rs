//! Checks of datagrams before they are handed over, on sockets that have any.

use std::net::IpAddr;

use crate::ListenerCounter;
use crate::sys::DatagramRing;
use crate::{ListenerConfig, ListenerCounters, Monotonic};

/// Whether packets and connections have to pass anything, so that it has to be known who sent them.
pub fn is_on(config: &ListenerConfig) -> bool {
    !config.allow.is_open() || config.rates.is_some()
}

/// Drops and counts refused datagrams among the `count` just received; returns the number of the others.
pub fn pass(
    ring: &mut DatagramRing,
    count: usize,
    config: &ListenerConfig,
    now: Monotonic,
    counters: &mut ListenerCounters,
) -> usize {
    let mut rates = config.rates.as_ref().map(|rates| rates.open(now));
    ring.keep(count, |source: Option<IpAddr>, length| -> bool {
        // The cheapest check comes first.
        if !config.allow.is_open() && !source.is_some_and(|source| config.allow.allows(source)) {
            counters[ListenerCounter::SourcesRefused] += 1;
            return false;
        }
        if let (Some(rates), Some(source)) = (&mut rates, source)
            && !rates.admits(source, length)
        {
            counters[ListenerCounter::RateLimited] += 1;
            return false;
        }
        true
    })
}
