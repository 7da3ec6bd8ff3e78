//! Helpers of this crate's tests: an event loop that remembers what it received.
#![allow(dead_code)]

pub mod raw;

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use weir_listener::{
    Address, BoundSocket, Credentials, EventLoop, ListenerConfig, ListenerId, PacketBatch, bind,
};

/// No wait in the tests is longer than this.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub fn config(address: &str) -> ListenerConfig {
    ListenerConfig::new(address.parse().unwrap())
}

#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    pub listener: ListenerId,
    pub bytes: Vec<u8>,
    pub truncated: bool,
    pub origin: Option<Credentials>,
}

pub struct Harness {
    pub events: EventLoop,
    pub seen: Vec<Seen>,
    next_id: u16,
}

impl Harness {
    pub fn new() -> Self {
        Self {
            events: EventLoop::new(64).unwrap(),
            seen: Vec::new(),
            next_id: 7,
        }
    }

    pub fn listen(&mut self, config: &ListenerConfig) -> ListenerId {
        let id = ListenerId(self.next_id);
        self.next_id += 1;
        self.events
            .add(bind(config).unwrap_or_else(|e| panic!("{e}")), id)
            .unwrap();
        id
    }

    pub fn address(&self, id: ListenerId) -> Address {
        self.events
            .listeners()
            .find(|(listener, _)| *listener == id)
            .unwrap()
            .1
            .clone()
    }

    pub fn socket_address(&self, id: ListenerId) -> SocketAddr {
        match self.address(id) {
            Address::Udp { host, port } | Address::Tcp { host, port } => {
                (host.as_str(), port).to_socket_addrs().unwrap().next().unwrap()
            }
            other => panic!("{other} has no port"),
        }
    }

    pub fn turn(&mut self) {
        let mut keep = keeping(&mut self.seen);
        self.events
            .turn(Some(Duration::from_millis(20)), &mut keep)
            .unwrap();
    }

    pub fn replace(&mut self, id: ListenerId, socket: BoundSocket) {
        let mut keep = keeping(&mut self.seen);
        self.events.replace(id, socket, &mut keep).unwrap();
    }

    #[track_caller]
    pub fn run_until(&mut self, mut done: impl FnMut(&[Seen]) -> bool) {
        self.run_until_loop(|harness| done(&harness.seen));
    }

    #[track_caller]
    pub fn run_until_loop(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !done(self) {
            assert!(
                Instant::now() < deadline,
                "not within {DEADLINE:?}; {} packets",
                self.seen.len()
            );
            self.turn();
        }
    }

    /// Drains and returns when everything is closed.
    #[track_caller]
    pub fn drain(&mut self) {
        self.events.begin_drain();
        self.run_until_loop(|harness| harness.events.drained());
    }
}

fn keeping(seen: &mut Vec<Seen>) -> impl FnMut(PacketBatch<'_>) {
    |batch| {
        seen.extend(batch.iter().map(|packet| Seen {
            listener: packet.listener,
            bytes: packet.bytes.to_vec(),
            truncated: packet.truncated,
            origin: packet.origin,
        }));
    }
}

/// Whether sockets can be bound to an address here, where machines differ.
pub fn has_address(address: &str) -> bool {
    let found = std::net::UdpSocket::bind(address);
    if let Err(error) = &found {
        println!("left out: {address}: {error}");
    }
    found.is_ok()
}

/// Runs one ignored test of this test binary in a process of its own, for what a process can do only once.
pub fn subprocess(test: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test, "--nocapture", "--test-threads=1"]);
    command
}

/// Waits for a subprocess, and ends it if it takes too long.
#[track_caller]
pub fn wait(mut child: std::process::Child) -> std::process::ExitStatus {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("subprocess not done within {DEADLINE:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Resident memory of this process.
pub fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 4096
}
