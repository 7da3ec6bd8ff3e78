//! Addresses for programs that must be told where to listen.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// A free address for TCP and UDP, on a loopback address of its own.
///
/// The kernel hands out a free port of 127.0.0.1 again before the program listens on it: to another test, or to any connection. The
/// program then does not come up, and its test talks to a stranger. Nobody else asks for a port of this address.
pub fn free_address() -> String {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let [high, low] = GIVEN.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    // Numbers of processes that run at the same time differ in their last bits.
    let process = 1 + std::process::id() % 254;
    // 127.x.0.0 is no address of a host.
    let free = TcpListener::bind(format!("127.{process}.{high}.{}:0", low.max(1))).unwrap();
    free.local_addr().unwrap().to_string()
}
