//! Ports for the programs of a run.
//!
//! A program gets its port before it binds it. In between the kernel may give a port of its own range to an outgoing connection, or to a
//! program that binds port 0; so ports come from outside that range, each one once per cycle.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ports below belong to well-known services.
const LOWEST: u16 = 10_000;
/// A narrower range would be reused too soon.
const ENOUGH: usize = 1_000;
/// Keeps processes that were started in sequence apart.
const STRIDE: usize = 97;

static PORTS: LazyLock<Ports> = LazyLock::new(|| {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| outside(&text))
        .unwrap_or(LOWEST..=u16::MAX);
    Ports::new(range, std::process::id() as usize * STRIDE)
});

/// A port of 127.0.0.1 that is free for TCP and UDP now, and that this process has not used recently.
pub fn free() -> Option<u16> {
    PORTS.free()
}

struct Ports {
    range: RangeInclusive<u16>,
    next: AtomicUsize,
}

impl Ports {
    fn new(range: RangeInclusive<u16>, start: usize) -> Self {
        Self {
            range,
            next: AtomicUsize::new(start),
        }
    }

    fn free(&self) -> Option<u16> {
        (0..self.range.len()).find_map(|_| {
            let place = self.next.fetch_add(1, Ordering::Relaxed) % self.range.len();
            let port = self.range.clone().nth(place)?;
            let address = (Ipv4Addr::LOCALHOST, port);
            let _tcp = TcpListener::bind(address).ok()?;
            let _udp = UdpSocket::bind(address).ok()?;
            Some(port)
        })
    }
}

/// Ports outside the kernel's range, given the first and the last of that range.
fn outside(kernel: &str) -> Option<RangeInclusive<u16>> {
    let mut bounds = kernel.split_whitespace().map(str::parse::<u16>);
    let (first, last) = (bounds.next()?.ok()?, bounds.next()?.ok()?);
    let below = LOWEST..=first.saturating_sub(1);
    let above = last.saturating_add(1).max(LOWEST)..=u16::MAX;
    [below, above].into_iter().find(|r| r.len() >= ENOUGH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_not_those_that_the_kernel_hands_out() {
        assert_eq!(outside("32768\t60999\n"), Some(10_000..=32_767));
        assert_eq!(outside("1024 60999"), Some(61_000..=65_535));
        assert_eq!(outside("1024 65535"), None);
        assert_eq!(outside("32768"), None);
    }

    #[test]
    fn taken_ports_are_passed_over_and_none_comes_twice_in_a_row() {
        let held = free().unwrap();
        let _tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, held)).unwrap();
        let only_that = Ports::new(held..=held, 0);
        assert_eq!(only_that.free(), None);

        let held = free().unwrap();
        let _udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, held)).unwrap();
        let only_that = Ports::new(held..=held, 0);
        assert_eq!(only_that.free(), None);

        assert_ne!(free(), free());
    }
}
