use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_units::Network;

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
