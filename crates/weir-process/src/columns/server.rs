//! Sockets and connections: HTTP/1.1, and HTTP/2 for clients that begin with it.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};

use super::request::{self, Peer};
use super::{ColumnListener, ColumnSocket, Columns};
use weir_admin::caller::Hosts;
use weir_admin::{Connection, ConnectionLimits, Connections, TimeoutStream};

/// The first bytes of a connection with HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Requests under way on one connection with HTTP/2.
const STREAMS_MAX: u32 = 32;

const LIMITS: ConnectionLimits = ConnectionLimits {
    waiting: 1024,
    requests: 1024,
    requests_per_peer: 1024,
    // Clients keep connections open between two windows.
    head: Duration::from_secs(90),
    write: Duration::from_secs(10),
    connection: Duration::from_secs(24 * 60 * 60),
};

enum Socket {
    Internet(TcpListener),
    Unix(UnixListener),
}

impl Socket {
    async fn accept(&self, has_credentials: bool) -> io::Result<(Stream, Peer)> {
        Ok(match self {
            Socket::Internet(socket) => {
                let (stream, peer) = socket.accept().await?;
                // An answer is one small packet.
                drop(stream.set_nodelay(true));
                let peer = Peer {
                    address: Some(peer.ip()),
                    pid: 0,
                };
                (Stream::Internet(stream), peer)
            }
            Socket::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                let credentials = stream.peer_cred().ok().filter(|_| has_credentials);
                let peer = Peer {
                    address: None,
                    pid: credentials.and_then(|credentials| credentials.pid()).unwrap_or(0),
                };
                (Stream::Unix(stream), peer)
            }
        })
    }
}

/// A bound listener of columns.
pub struct ColumnServer {
    socket: Socket,
    listener: ColumnListener,
    /// Until the end.
    _listening: ColumnSocket,
}

impl ColumnServer {
    /// For the runtime that this is called in.
    pub fn new(listening: ColumnSocket, listener: ColumnListener) -> io::Result<ColumnServer> {
        let bound = listening.bound();
        let descriptor = bound.as_fd().try_clone_to_owned()?;
        let socket = match bound.address().path() {
            None => {
                let socket = std::net::TcpListener::from(descriptor);
                socket.set_nonblocking(true)?;
                Socket::Internet(TcpListener::from_std(socket)?)
            }
            Some(_) => {
                let socket = std::os::unix::net::UnixListener::from(descriptor);
                socket.set_nonblocking(true)?;
                Socket::Unix(UnixListener::from_std(socket)?)
            }
        };
        Ok(ColumnServer {
            socket,
            listener,
            _listening: listening,
        })
    }

    /// Answers until the future is dropped.
    pub async fn serve(self, columns: Arc<Columns>, hosts: Arc<Hosts>) {
        let connections = Connections::new(LIMITS);
        let listener = Arc::new(self.listener);
        loop {
            columns.serving().await;
            let accepted = tokio::select! {
                accepted = self.socket.accept(listener.has_credentials) => accepted,
                () = columns.held() => continue,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, or the peer has left: neither ends the server.
                    tracing::debug!(
                        "{}: a connection could not be accepted: {error}",
                        listener.address
                    );
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            if !listener.allows(peer.address) {
                columns.count(listener.number, super::HttpCounter::Refused, 1);
                continue;
            }
            let address = peer.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
            let connection = connections.admit(address);
            let open = columns.connections.clone();
            let talk = talk(
                stream,
                connection,
                peer,
                columns.clone(),
                listener.clone(),
                hosts.clone(),
            );
            tokio::spawn(async move {
                talk.await;
                drop(open);
            });
            // Many simultaneous connections must not evict each other before any of them was read.
            tokio::task::yield_now().await;
        }
    }
}

/// Serves one connection until it ends or is evicted. When another process has taken over, it ends after the answer in progress.
async fn talk(
    stream: Stream,
    connection: Arc<Connection>,
    peer: Peer,
    columns: Arc<Columns>,
    listener: Arc<ColumnListener>,
    hosts: Arc<Hosts>,
) {
    let address = listener.address.clone();
    let (evicted, all) = (connection.clone(), columns.clone());
    let answer = service_fn(move |request| {
        let (columns, listener, hosts) = (columns.clone(), listener.clone(), hosts.clone());
        let connection = connection.clone();
        async move {
            let _slot = connection.begin();
            Ok::<_, Infallible>(request::answer(&columns, &listener, &hosts, peer, request).await)
        }
    });
    let serve = async {
        let begun = tokio::select! {
            begun = Begun::of(stream, LIMITS.head) => begun?,
            () = all.passed() => return Ok(()),
        };
        let is_second = begun.first == PREFACE;
        let io = TokioIo::new(TimeoutStream::new(begun, evicted.clone()));
        let served: Result<(), hyper::Error> = match is_second {
            true => {
                let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(STREAMS_MAX)
                    .max_header_list_size(16 * 1024)
                    .keep_alive_interval(LIMITS.head)
                    .serve_connection(io, answer);
                let mut served = pin!(served);
                tokio::select! {
                    ended = &mut served => return ended.map_err(io::Error::other),
                    () = all.passed() => served.as_mut().graceful_shutdown(),
                }
                served.await
            }
            false => {
                let served = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(LIMITS.head)
                    .max_buf_size(64 * 1024)
                    .serve_connection(io, answer);
                let mut served = pin!(served);
                tokio::select! {
                    ended = &mut served => return ended.map_err(io::Error::other),
                    () = all.passed() => served.as_mut().graceful_shutdown(),
                }
                served.await
            }
        };
        served.map_err(io::Error::other)
    };
    let ended = tokio::select! {
        ended = tokio::time::timeout(LIMITS.connection, serve) => ended,
        () = evicted.evicted() => return,
    };
    if let Ok(Err(error)) = ended {
        tracing::debug!("{address}: a connection failed: {error}");
    }
}

enum Stream {
    Internet(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

/// A stream whose first bytes have been read, which tell the version of HTTP.
struct Begun {
    stream: Stream,
    /// Up to the length of the preface.
    first: Vec<u8>,
    /// Of these, those that were given on.
    given: usize,
}

impl Begun {
    async fn of(mut stream: Stream, patience: Duration) -> io::Result<Begun> {
        let mut first = Vec::with_capacity(PREFACE.len());
        let reading = async {
            while first.len() < PREFACE.len() && PREFACE.starts_with(&first) {
                let mut rest = (&mut stream).take((PREFACE.len() - first.len()) as u64);
                if rest.read_buf(&mut first).await? == 0 {
                    break;
                }
            }
            Ok::<_, io::Error>(())
        };
        tokio::time::timeout(patience, reading)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(Begun {
            stream,
            first,
            given: 0,
        })
    }
}

impl AsyncRead for Begun {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let given = self.given;
        if given < self.first.len() {
            let some = buffer.remaining().min(self.first.len() - given);
            buffer.put_slice(&self.first[given..given + some]);
            self.given += some;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Begun {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Internet(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Internet(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Internet(stream) => Pin::new(stream).poll_flush(context),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Internet(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
