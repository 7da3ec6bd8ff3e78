//! Rate limits on sources: token buckets by network and by address.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_units::Network;

use crate::Monotonic;

/// A source that was quiet may send this many seconds' worth at once: clients gather for up to ten.
pub const RATE_BURST_SECONDS: u64 = 10;

/// Each packet counts as this many bytes more than it has, for its own cost.
pub const RATE_PACKET_BYTES: u64 = 64;

/// Addresses with a bucket of their own. Further ones share one.
const ADDRESSES_MAX: usize = 8192;

/// A full table is searched for addresses to forget at most this often.
const SWEEP_NANOS: u64 = 1_000_000_000;

/// The remaining tokens of a source.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    /// Below zero after a packet that was larger than the remaining tokens.
    left: i64,
    /// Nanoseconds up to which `left` is right.
    at: u64,
    /// Packets dropped so far.
    dropped: u64,
}

impl TokenBucket {
    /// A full one.
    pub fn new(bytes_per_second: u64, now: Monotonic) -> Self {
        Self {
            left: full(bytes_per_second),
            at: now.0,
            dropped: 0,
        }
    }

    /// Whether a packet of this length may pass now; it is counted if not. Never an allocation, nor a loop.
    #[inline]
    pub fn admits(&mut self, bytes: usize, bytes_per_second: u64, now: Monotonic) -> bool {
        self.fill(bytes_per_second, now);
        let admitted = self.left > 0;
        if admitted {
            self.left -= (bytes as u64 + RATE_PACKET_BYTES) as i64;
        } else {
            self.dropped += 1;
        }
        admitted
    }

    fn fill(&mut self, bytes_per_second: u64, now: Monotonic) {
        let elapsed = u128::from(now.0.saturating_sub(self.at));
        let gained = elapsed * u128::from(bytes_per_second) / 1_000_000_000;
        if gained == 0 {
            // Fractions of a byte add up.
            return;
        }
        self.at = now.0;
        let max = full(bytes_per_second);
        let gained = i64::try_from(gained).unwrap_or(i64::MAX);
        self.left = self.left.saturating_add(gained).min(max);
    }

    /// Whether nothing would be different if it had never been used.
    pub fn is_full(&mut self, bytes_per_second: u64, now: Monotonic) -> bool {
        self.fill(bytes_per_second, now);
        self.left >= full(bytes_per_second)
    }

    /// Packets dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

fn full(bytes_per_second: u64) -> i64 {
    i64::try_from(bytes_per_second.saturating_mul(RATE_BURST_SECONDS)).unwrap_or(i64::MAX / 4)
}

/// A source that sent more than it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimited {
    /// `network 10.0.0.0/8`, `address 10.1.2.3`.
    pub source: String,
    pub bytes_per_second: u64,
    /// Packets dropped since the start, or since it was last forgotten.
    pub packets: u64,
}

struct OfNetwork {
    network: Network,
    bytes_per_second: u64,
    bucket: TokenBucket,
}

struct Buckets {
    networks: Vec<OfNetwork>,
    addresses: HashMap<IpAddr, TokenBucket>,
    /// Shared by all addresses for which the table had no room.
    others: TokenBucket,
    swept: u64,
}

/// The limits of all internet sockets, which share them: a sender cannot have several times as much by several sockets.
pub struct SourceRates {
    per_address: Option<u64>,
    buckets: Mutex<Buckets>,
}

impl fmt::Debug for SourceRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourceRates({:?} per address)", self.per_address)
    }
}

/// The unit of limiting: a machine can use any number of IPv6 addresses of its network.
fn sender(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address => address,
    }
}

fn is_this_machine(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST
}

impl SourceRates {
    /// Bytes per second for each network in total, and for each address. The smallest network that contains an address counts. 127.0.0.1
    /// and ::1 are not limited.
    pub fn new(networks: Vec<(Network, u64)>, per_address: Option<u64>, now: Monotonic) -> Self {
        let mut networks: Vec<OfNetwork> = networks
            .into_iter()
            .map(|(network, bytes_per_second)| OfNetwork {
                network,
                bytes_per_second,
                bucket: TokenBucket::new(bytes_per_second, now),
            })
            .collect();
        networks.sort_by_key(|of| std::cmp::Reverse(of.network.bits()));
        Self {
            per_address,
            buckets: Mutex::new(Buckets {
                networks,
                addresses: HashMap::new(),
                others: TokenBucket::new(per_address.unwrap_or(0), now),
                swept: now.0,
            }),
        }
    }

    /// For a batch of packets.
    pub fn open(&self, now: Monotonic) -> OpenRates<'_> {
        OpenRates {
            per_address: self.per_address,
            buckets: self.lock(),
            now,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory in use, about.
    pub fn heap_bytes(&self) -> usize {
        self.lock().addresses.capacity() * (size_of::<(IpAddr, TokenBucket)>() + 1)
    }

    /// Sources above their rate, those with most losses first.
    pub fn limited(&self, max: usize) -> Vec<RateLimited> {
        let buckets = self.lock();
        let mut found: Vec<RateLimited> = Vec::new();
        let mut note = |source: String, bytes_per_second, bucket: &TokenBucket| {
            if bucket.dropped > 0 {
                found.push(RateLimited {
                    source,
                    bytes_per_second,
                    packets: bucket.dropped,
                });
            }
        };
        for of in &buckets.networks {
            note(format!("network {}", of.network), of.bytes_per_second, &of.bucket);
        }
        if let Some(rate) = self.per_address {
            for (address, bucket) in &buckets.addresses {
                let suffix = if address.is_ipv6() { "/64" } else { "" };
                note(format!("address {address}{suffix}"), rate, bucket);
            }
            note("other addresses".into(), rate, &buckets.others);
        }
        drop(buckets);
        found.sort_by(|a, b| b.packets.cmp(&a.packets).then_with(|| a.source.cmp(&b.source)));
        found.truncate(max);
        found
    }
}

/// [`SourceRates`], held for a batch of packets that came at one time.
pub struct OpenRates<'a> {
    per_address: Option<u64>,
    buckets: MutexGuard<'a, Buckets>,
    now: Monotonic,
}

impl OpenRates<'_> {
    /// Whether a packet may pass. Packets beyond the limit of their address do not count against the network.
    pub fn admits(&mut self, source: IpAddr, bytes: usize) -> bool {
        if is_this_machine(source) {
            return true;
        }
        let (now, buckets) = (self.now, &mut *self.buckets);
        if let Some(rate) = self.per_address
            && !buckets
                .of_address(sender(source), rate, now)
                .admits(bytes, rate, now)
        {
            return false;
        }
        let of = buckets.networks.iter_mut().find(|of| of.network.contains(source));
        of.is_none_or(|of| of.bucket.admits(bytes, of.bytes_per_second, now))
    }
}

impl Buckets {
    fn of_address(&mut self, address: IpAddr, rate: u64, now: Monotonic) -> &mut TokenBucket {
        if self.addresses.len() >= ADDRESSES_MAX && !self.addresses.contains_key(&address) {
            if now.0.saturating_sub(self.swept) >= SWEEP_NANOS {
                self.swept = now.0;
                // An address with a full bucket equals an unknown one.
                self.addresses.retain(|_, bucket| !bucket.is_full(rate, now));
            }
            if self.addresses.len() >= ADDRESSES_MAX {
                return &mut self.others;
            }
        }
        self.addresses
            .entry(address)
            .or_insert_with(|| TokenBucket::new(rate, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Monotonic {
        Monotonic(1_000_000_000_000 + ms * 1_000_000)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_bucket_admits_its_rate_and_no_more() {
        let rate = 1000;
        let mut bucket = TokenBucket::new(rate, at(0));
        // A hundred a second of 36 bytes count as 100 bytes each: ten of them, and the hundred of the burst.
        let mut admitted = 0;
        for ms in (0..60_000).step_by(10) {
            admitted += u64::from(bucket.admits(36, rate, at(ms)));
        }
        assert!(
            (60 * 10 + 100 - 2..=60 * 10 + 100 + 2).contains(&admitted),
            "{admitted}"
        );
        assert_eq!(bucket.dropped() + admitted, 6000);
        // A long silence fills it, and no more than that.
        let mut burst = 0;
        while bucket.admits(36, rate, at(10_000_000)) {
            burst += 1;
        }
        assert_eq!(burst, 100);
        // One that is longer than all there is passes when there is something, and is paid for afterwards.
        let mut small = TokenBucket::new(1, at(0));
        assert!(small.admits(60_000, 1, at(0)));
        assert!(!small.admits(1, 1, at(50_000_000)));
        assert!(small.admits(1, 1, at(70_000_000)));
    }

    #[test]
    fn networks_and_addresses_are_limited_and_named() {
        let networks = vec![
            ("10.0.0.0/8".parse().unwrap(), 1000),
            ("10.1.0.0/16".parse().unwrap(), 10_000),
        ];
        let rates = SourceRates::new(networks, Some(5_000), at(0));
        let pass = |source: &str| {
            let mut open = rates.open(at(0));
            (0..10_000).filter(|_| open.admits(address(source), 36)).count()
        };
        assert_eq!(pass("10.2.0.1"), 100, "what its network has");
        assert_eq!(pass("10.1.0.1"), 500, "what it has itself");
        assert_eq!(pass("10.1.0.2"), 500, "what the smaller network had left");
        assert_eq!(pass("10.1.0.3"), 0);
        assert_eq!(pass("192.0.2.1"), 500, "no network holds it");
        assert_eq!(pass("2001:db8::1"), 500);
        assert_eq!(pass("2001:db8::2"), 0, "the same machine");
        assert_eq!(pass("127.0.0.1"), 10_000);
        let limited = rates.limited(3);
        assert_eq!(limited.len(), 3);
        assert!(limited[0].packets >= limited[1].packets);
        let all = rates.limited(100);
        let of = |source: &str| {
            all.iter()
                .find(|limited| limited.source == source)
                .map(|l| l.packets)
        };
        assert_eq!(of("network 10.0.0.0/8"), Some(400));
        assert_eq!(of("address 192.0.2.1"), Some(9500));
        assert_eq!(of("address 2001:db8::/64"), Some(19_500));
    }

    #[test]
    fn forged_addresses_fill_no_memory() {
        let rates = SourceRates::new(Vec::new(), Some(1000), at(0));
        let mut open = rates.open(at(0));
        let mut admitted = 0;
        for number in 0..200_000u32 {
            let source = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number));
            admitted += usize::from(open.admits(source, 9_936));
        }
        drop(open);
        assert_eq!(admitted, ADDRESSES_MAX + 1, "one each, and one of all the others");
        assert!(rates.heap_bytes() < 1 << 20, "{}", rates.heap_bytes());
        // When they are quiet they are forgotten.
        let mut open = rates.open(at(11_000));
        assert!(open.admits(address("192.0.2.1"), 1));
        drop(open);
        assert_eq!(rates.lock().addresses.len(), 1);
    }
}
