//! The peers of a listener's connections: one peer may use all connections only as long as no other peer wants one.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};

use crate::Credentials;

/// The peer that a place is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Address(IpAddr),
    /// Over a Unix socket.
    User(u32),
    Unknown,
}

/// The peer: the owner, and over a Unix socket the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    owner: Owner,
    process: i32,
}

impl Peer {
    /// For an IPv6 address the first half counts, because the owner of one address has the whole network.
    pub(super) fn of_address(address: IpAddr) -> Self {
        let owner = match address.to_canonical() {
            IpAddr::V6(v6) => {
                let network = v6.to_bits() & u128::from(u64::MAX) << 64;
                Owner::Address(Ipv6Addr::from_bits(network).into())
            }
            v4 => Owner::Address(v4),
        };
        Peer { owner, process: 0 }
    }

    pub(super) fn of_credentials(credentials: Option<Credentials>) -> Self {
        credentials.map_or(Peer::UNKNOWN, |credentials| Peer {
            owner: Owner::User(credentials.uid),
            process: credentials.pid,
        })
    }

    pub(super) const UNKNOWN: Peer = Peer {
        owner: Owner::Unknown,
        process: 0,
    };
}

/// Peers one of whose connections is to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionGroup {
    Owner(Owner),
    Peer(Peer),
}

impl EvictionGroup {
    pub(super) fn includes(self, peer: Peer) -> bool {
        match self {
            EvictionGroup::Owner(owner) => owner == peer.owner,
            EvictionGroup::Peer(other) => other == peer,
        }
    }
}

/// Number of connections per peer.
#[derive(Debug, Default)]
pub(super) struct Peers {
    owners: HashMap<Owner, u32>,
    peers: HashMap<Peer, u32>,
}

impl Peers {
    pub(super) fn add(&mut self, peer: Peer) {
        *self.owners.entry(peer.owner).or_default() += 1;
        *self.peers.entry(peer).or_default() += 1;
    }

    pub(super) fn remove(&mut self, peer: Peer) {
        decrement(&mut self.owners, peer.owner);
        decrement(&mut self.peers, peer);
    }

    /// The peer that must give up a connection because it has many more than the newcomer: a user first, or, because all processes of a
    /// machine may belong to one user, a process.
    pub(super) fn eviction_group(&self, newcomer: Peer) -> Option<EvictionGroup> {
        largest(&self.owners, newcomer.owner)
            .map(EvictionGroup::Owner)
            .or_else(|| largest(&self.peers, newcomer).map(EvictionGroup::Peer))
    }
}

fn decrement<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

/// The peer with the most, if that is at least two more than the newcomer has: with one more, the two would evict each other endlessly.
fn largest<K: Copy + Eq + Hash>(counts: &HashMap<K, u32>, newcomer: K) -> Option<K> {
    let own = counts.get(&newcomer).copied().unwrap_or(0);
    let (key, most) = counts.iter().max_by_key(|(_, count)| **count)?;
    (*most >= own + 2).then_some(*key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix(uid: u32, pid: i32) -> Peer {
        Peer::of_credentials(Some(Credentials { pid, uid, gid: 0 }))
    }

    #[test]
    fn the_peer_with_most_connections_is_evicted() {
        let mut peers = Peers::default();
        for _ in 0..5 {
            peers.add(unix(1, 10));
        }
        peers.add(unix(2, 20));
        peers.add(unix(2, 21));
        assert_eq!(
            peers.eviction_group(unix(3, 30)),
            Some(EvictionGroup::Owner(Owner::User(1)))
        );
        // Among its own user's processes the one that has most.
        assert_eq!(
            peers.eviction_group(unix(1, 11)),
            Some(EvictionGroup::Peer(unix(1, 10)))
        );
        assert_eq!(peers.eviction_group(unix(1, 10)), None);
        for _ in 0..4 {
            peers.remove(unix(1, 10));
        }
        assert_eq!(
            peers.eviction_group(unix(1, 10)),
            None,
            "one more is not worth it"
        );
        peers.remove(unix(1, 10));
        assert_eq!((peers.owners.len(), peers.peers.len()), (1, 2));
    }

    #[test]
    fn an_ipv6_network_is_one_owner() {
        let of = |text: &str| Peer::of_address(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:127.0.0.1"), of("127.0.0.1"));
        assert_ne!(of("127.0.0.1"), of("127.0.0.2"));
    }
}
