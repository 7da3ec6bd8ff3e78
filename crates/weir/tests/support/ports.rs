//! Addresses for programs that must be told where to listen, and addresses where nobody does.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::net::{AddressFamily, SocketType};

/// A free address for TCP and UDP, on a loopback address of its own.
///
/// The kernel hands out a free port of 127.0.0.1 again before the program listens on it: to another test, or to any connection. The
/// program then does not come up, and its test talks to a stranger. Nobody else asks for a port of this address.
pub fn free_address() -> String {
    static GIVEN: AtomicU8 = AtomicU8::new(0);
    let own = 1 + GIVEN.fetch_add(1, Ordering::Relaxed) % 254;
    let process = std::process::id();
    let (high, low) = (1 + process % 254, process / 254 % 256);
    let free = TcpListener::bind(format!("127.{high}.{low}.{own}:0")).unwrap();
    free.local_addr().unwrap().to_string()
}

/// A port of TCP that refuses connections until this process listens on it: bound all the time, so that nobody else gets it.
pub struct Refusing {
    socket: OwnedFd,
    pub address: SocketAddr,
}

impl Refusing {
    pub fn new() -> Refusing {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        let address = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
        Refusing { socket, address }
    }

    /// Somebody is there from now on.
    pub fn listen(self) -> TcpListener {
        rustix::net::listen(&self.socket, 128).unwrap();
        self.socket.into()
    }
}
