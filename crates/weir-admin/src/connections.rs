//! Limits on admin connections and their duration.
//!
//! A connection waits until it has sent the head of a request, and again after the answer. The number of waiting connections is limited: a
//! further one evicts the oldest of the peer with the most of them, so connections that are silent or slow never keep out a new one. An
//! expensive request takes one of a few slots, of which one peer gets only a part. Health needs no slot: it is answered as soon as its
//! request is read.

use std::collections::{BTreeMap, HashMap};
use std::future::Future as _;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

use crate::profile;

/// Limits of connections, requests and time.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Waiting connections.
    pub waiting: usize,
    /// Open requests, except to health.
    pub requests: usize,
    /// The maximum for one peer: an IPv4 address, or a /64 of IPv6.
    pub requests_per_peer: usize,
    /// Timeout for the head of a request, from the start of the connection or the end of the last answer.
    pub head: Duration,
    /// Timeout for the peer to accept any part of an answer.
    pub write: Duration,
    /// Maximum duration of a connection.
    pub connection: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            waiting: 64,
            requests: 32,
            requests_per_peer: 16,
            head: Duration::from_secs(5),
            write: Duration::from_secs(10),
            // Leaves time for the longest profile.
            connection: Duration::from_secs(profile::SECONDS_MAX + 300),
        }
    }
}

/// All connections of the server.
#[derive(Clone)]
pub struct Connections {
    held: Arc<Mutex<OpenConnections>>,
    pub limits: ConnectionLimits,
}

#[derive(Default)]
struct OpenConnections {
    next: u64,
    /// Ordered by age: numbers increase.
    waiting: BTreeMap<u64, WaitingConnection>,
    requests: usize,
    requests_of: HashMap<IpAddr, usize>,
}

struct WaitingConnection {
    peer: IpAddr,
    evicted: Arc<Notify>,
}

impl Connections {
    pub fn new(limits: ConnectionLimits) -> Self {
        let held = Arc::default();
        Self { held, limits }
    }

    /// Open requests, except those to health and streams.
    pub fn requests(&self) -> usize {
        lock(&self.held).requests
    }

    /// Admits a connection, evicting another one if necessary.
    pub fn admit(&self, address: IpAddr) -> Arc<Connection> {
        let mut held = lock(&self.held);
        if held.waiting.len() >= self.limits.waiting {
            held.evict_one();
        }
        held.next += 1;
        let connection = Connection {
            id: held.next,
            peer: peer(address),
            evicted: Arc::default(),
            has_slot: AtomicBool::new(false),
            is_answered: AtomicBool::new(false),
            all: self.clone(),
        };
        connection.wait(&mut held);
        Arc::new(connection)
    }
}

impl OpenConnections {
    /// Evicts the oldest connection of the peer with the most.
    fn evict_one(&mut self) {
        let mut by_peer: HashMap<IpAddr, (usize, u64)> = HashMap::new();
        for (id, waiting) in &self.waiting {
            by_peer.entry(waiting.peer).or_insert((0, *id)).0 += 1;
        }
        let oldest_first = |(number, id): &(usize, u64)| (*number, std::cmp::Reverse(*id));
        let Some((_, id)) = by_peer.into_values().max_by_key(oldest_first) else {
            return;
        };
        if let Some(waiting) = self.waiting.remove(&id) {
            waiting.evicted.notify_one();
        }
    }
}

/// One connection. It waits, has a slot, or was evicted.
pub struct Connection {
    id: u64,
    peer: IpAddr,
    evicted: Arc<Notify>,
    has_slot: AtomicBool,
    /// The answer was written completely.
    is_answered: AtomicBool,
    all: Connections,
}

/// Why a request gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooManyRequests {
    #[error("{requests} requests of {peer} are under way")]
    OfPeer { requests: usize, peer: IpAddr },
    #[error("{requests} requests are under way")]
    OfAll { requests: usize },
}

impl Connection {
    /// Completes when the connection is evicted.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Takes a slot for a request, held until the guard is dropped and the answer was sent.
    pub fn begin(self: &Arc<Self>) -> Result<Slot, TooManyRequests> {
        let limits = &self.all.limits;
        let mut held = lock(&self.all.held);
        if !self.has_slot.load(Ordering::Relaxed) {
            let of_peer = held.requests_of.get(&self.peer).copied().unwrap_or(0);
            if of_peer >= limits.requests_per_peer {
                let (requests, peer) = (of_peer, self.peer);
                return Err(TooManyRequests::OfPeer { requests, peer });
            }
            if held.requests >= limits.requests {
                let requests = held.requests;
                return Err(TooManyRequests::OfAll { requests });
            }
            held.requests += 1;
            *held.requests_of.entry(self.peer).or_default() += 1;
            held.waiting.remove(&self.id);
            self.has_slot.store(true, Ordering::Relaxed);
        }
        self.is_answered.store(false, Ordering::Relaxed);
        Ok(Slot(self.clone()))
    }

    /// Called when everything written was passed to the kernel.
    fn flushed(&self) {
        if self.is_answered.swap(false, Ordering::Relaxed) {
            let mut held = lock(&self.all.held);
            self.release_slot(&mut held);
            self.wait(&mut held);
        }
    }

    fn wait(&self, held: &mut OpenConnections) {
        let waiting = WaitingConnection {
            peer: self.peer,
            evicted: self.evicted.clone(),
        };
        held.waiting.insert(self.id, waiting);
    }

    fn release_slot(&self, held: &mut OpenConnections) {
        if !self.has_slot.swap(false, Ordering::Relaxed) {
            return;
        }
        held.requests -= 1;
        if let Some(of_peer) = held.requests_of.get_mut(&self.peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                held.requests_of.remove(&self.peer);
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut held = lock(&self.all.held);
        self.release_slot(&mut held);
        held.waiting.remove(&self.id);
    }
}

/// Held while the answer is produced.
pub struct Slot(Arc<Connection>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.is_answered.store(true, Ordering::Relaxed);
    }
}

fn lock(held: &Mutex<OpenConnections>) -> MutexGuard<'_, OpenConnections> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The peer of an address. The owner of one IPv6 address has its whole /64.
fn peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}

/// A stream that fails if its peer accepts nothing for too long, and notifies the connection after a flush.
pub struct TimeoutStream<S> {
    stream: S,
    connection: Arc<Connection>,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> TimeoutStream<S> {
    pub fn new(stream: S, connection: Arc<Connection>) -> Self {
        Self {
            stream,
            connection,
            stalled: None,
        }
    }

    pub fn into_inner(self) -> S {
        self.stream
    }

    fn unless_stalled<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.connection.all.limits.write;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        stalled.as_mut().poll(context).map(|()| {
            let message = format!("the peer has taken nothing of the answer for {limit:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.unless_stalled(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.unless_stalled(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.connection.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections() -> Connections {
        Connections::new(ConnectionLimits {
            waiting: 3,
            requests: 3,
            requests_per_peer: 2,
            ..ConnectionLimits::default()
        })
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn waiting(connections: &Connections) -> Vec<u64> {
        lock(&connections.held).waiting.keys().copied().collect()
    }

    #[test]
    fn a_connection_beyond_the_limit_evicts_the_oldest_of_the_peer_with_most() {
        let all = connections();
        let (a, b) = (address("10.0.0.1"), address("10.0.0.2"));
        let admitted: Vec<_> = [a, b, b, a].map(|address| all.admit(address)).into();
        assert_eq!(waiting(&all), [1, 3, 4], "the elder one of b");
        let fifth = all.admit(b);
        assert_eq!(waiting(&all), [3, 4, 5], "the elder one of a");
        drop((admitted, fifth));
        assert_eq!(waiting(&all), [0u64; 0]);
    }

    #[test]
    fn slots_are_limited_in_total_and_per_peer_and_freed_when_the_response_is_sent() {
        let all = connections();
        let peers = ["10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3"];
        let peers = peers.map(|text| all.admit(address(text)));
        assert_eq!(waiting(&all).len(), 3);
        let first = peers[0].begin().unwrap();
        let _second = peers[1].begin().unwrap();
        assert!(
            peers[2]
                .begin()
                .is_err_and(|reason| reason.to_string().contains("2 requests of 10.0.0.1"))
        );
        let _third = peers[3].begin().unwrap();
        assert!(
            peers[4]
                .begin()
                .is_err_and(|reason| reason.to_string().starts_with("3 requests are"))
        );
        drop(first);
        assert!(peers[4].begin().is_err(), "the answer is not with the kernel yet");
        peers[0].flushed();
        let again = peers[4].begin().unwrap();
        // The next request of the same connection, before the last answer was sent.
        drop(again);
        let _pipelined = peers[4].begin().unwrap();
        peers[4].flushed();
        assert_eq!(lock(&all.held).requests, 3);
        drop((_second, _third, _pipelined, peers));
        let held = lock(&all.held);
        assert!(held.requests == 0 && held.requests_of.is_empty() && held.waiting.is_empty());
    }

    #[test]
    fn all_addresses_of_a_network_of_ipv6_are_one_peer() {
        assert_eq!(peer(address("2001:db8::1")), peer(address("2001:db8::ffff:2")));
        assert_ne!(peer(address("2001:db8::1")), peer(address("2001:db8:0:1::1")));
        assert_eq!(peer(address("::ffff:10.0.0.1")), address("10.0.0.1"));
        assert_eq!(peer(address("::1")), address("::1"));
    }
}
