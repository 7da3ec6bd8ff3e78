//! What a datagram has to pass before it is handed over, on sockets that ask for anything at all.

use std::net::IpAddr;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::sys::DatagramRing;
use crate::{ListenerConfig, ListenerCounters, Monotonic};

/// Whether datagrams of a socket have to pass anything.
pub fn is_on(config: &ListenerConfig) -> bool {
    needs_sources(config) || config.signed.is_some()
}

/// Whether it has to be known who sent them.
pub fn needs_sources(config: &ListenerConfig) -> bool {
    !config.allow.is_open() || config.rates.is_some()
}

/// Drops and counts what does not pass of the `count` datagrams just received; returns how many are left.
pub fn pass(
    ring: &mut DatagramRing,
    count: usize,
    config: &ListenerConfig,
    now: Monotonic,
    counters: &mut ListenerCounters,
) -> usize {
    let mut rates = config.rates.as_ref().map(|rates| rates.open(now));
    let unix_ms = config.signed.as_ref().map_or(0, |_| unix_ms());
    ring.keep(count, |source: Option<IpAddr>, bytes| -> Option<Range<usize>> {
        // What costs least comes first.
        if !config.allow.is_open() && !source.is_some_and(|source| config.allow.allows(source)) {
            counters.sources_refused += 1;
            return None;
        }
        if let (Some(rates), Some(source)) = (&mut rates, source)
            && !rates.admits(source, bytes.len())
        {
            counters.rate_limited += 1;
            return None;
        }
        let Some(verifier) = &config.signed else {
            return Some(0..bytes.len());
        };
        match verifier.verify(bytes, unix_ms) {
            Ok(part) => Some(part),
            Err(fault) => {
                counters.signatures_refused[fault as usize] += 1;
                None
            }
        }
    })
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
