//! Checks of datagrams before they are handed over, on sockets that have any.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_units::Network;

use crate::sys::DatagramRing;
use crate::{ListenerConfig, ListenerCounter, ListenerCounters, Monotonic};

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

/// Allowed senders to an internet address. Without networks all; with some, only they, and this machine as 127.0.0.1 or
/// ::1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList {
    networks: Vec<Network>,
}

impl AllowList {
    pub fn new(networks: Vec<Network>) -> Self {
        AllowList { networks }
    }

    /// Whether all addresses may send.
    pub fn is_open(&self) -> bool {
        self.networks.is_empty()
    }

    pub fn allows(&self, address: IpAddr) -> bool {
        self.is_open()
            || [
                IpAddr::from(Ipv4Addr::LOCALHOST),
                IpAddr::from(Ipv6Addr::LOCALHOST),
            ]
            .contains(&address.to_canonical())
            || self.networks.iter().any(|network| network.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn an_allow_list_is_open_when_empty_and_always_to_this_machine() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(AllowList::default().allows(address("8.8.8.8")));
        let list = AllowList::new(vec![network("10.0.0.0/8"), network("fd00::/8")]);
        for allowed in ["10.1.1.1", "fd00::1", "127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(list.allows(address(allowed)), "{allowed}");
        }
        for refused in ["11.1.1.1", "fe80::1", "::ffff:192.0.2.1", "127.0.0.2"] {
            assert!(!list.allows(address(refused)), "{refused}");
        }
    }
}
