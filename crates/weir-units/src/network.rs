//! Networks, written as an address and the length of its prefix.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses, such as `10.1.0.0/16` or `fd00::/8`; one address is a range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// Why a text is no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkError {
    Address,
    Bits {
        max: u8,
    },
    /// Bits are set beyond the prefix, so the intended network is unclear.
    Beyond {
        network: Network,
    },
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetworkError::Address => f.write_str("not an address or network such as 10.1.0.0/16 or fd00::/8"),
            NetworkError::Bits { max } => write!(f, "the prefix must be a whole number from 0 to {max}"),
            NetworkError::Beyond { network } => {
                write!(
                    f,
                    "the address has bits beyond the prefix; did you mean {network}?"
                )
            }
        }
    }
}

impl std::error::Error for NetworkError {}

impl Network {
    /// Length of the prefix.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether it contains an address. An IPv4 address mapped to IPv6 counts as the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => masked_v4(own, self.bits) == masked_v4(other, self.bits),
            (IpAddr::V6(own), IpAddr::V6(other)) => masked_v6(own, self.bits) == masked_v6(other, self.bits),
            _ => false,
        }
    }
}

fn masked_v4(address: Ipv4Addr, bits: u8) -> u32 {
    address.to_bits() & u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)
}

fn masked_v6(address: Ipv6Addr, bits: u8) -> u128 {
    address.to_bits() & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Address)?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let bits = match prefix {
            None => max,
            Some(prefix) => prefix
                .parse()
                .ok()
                .filter(|bits| *bits <= max && prefix.bytes().all(|byte| byte.is_ascii_digit()))
                .ok_or(NetworkError::Bits { max })?,
        };
        let network = match address {
            IpAddr::V4(own) => IpAddr::V4(Ipv4Addr::from_bits(masked_v4(own, bits))),
            IpAddr::V6(own) => IpAddr::V6(Ipv6Addr::from_bits(masked_v6(own, bits))),
        };
        let network = Network {
            address: network,
            bits,
        };
        if network.address != address {
            return Err(NetworkError::Beyond { network });
        }
        Ok(network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn networks_hold_their_addresses() {
        for (text, inside, outside) in [
            ("10.1.0.0/16", "10.1.255.3", "10.2.0.0"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
            ("0.0.0.0/0", "8.8.8.8", "::2"),
            ("fd00::/8", "fd12:3::1", "fe80::1"),
            ("::/0", "fe80::1", "10.0.0.1"),
            ("10.0.0.0/8", "::ffff:10.9.8.7", "::ffff:11.0.0.1"),
        ] {
            let network = network(text);
            assert!(network.contains(inside.parse().unwrap()), "{text} and {inside}");
            assert!(
                !network.contains(outside.parse().unwrap()),
                "{text} and {outside}"
            );
        }
        assert_eq!(network("192.0.2.7").to_string(), "192.0.2.7/32");
    }

    #[test]
    fn invalid_networks_are_refused_with_the_reason() {
        for (text, part) in [
            ("", "not an address"),
            ("lan", "not an address"),
            ("10.0.0.0/33", "0 to 32"),
            ("10.0.0.0/", "0 to 32"),
            ("10.0.0.0/+8", "0 to 32"),
            ("fd00::/129", "0 to 128"),
            ("10.1.2.3/8", "did you mean 10.0.0.0/8?"),
        ] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
