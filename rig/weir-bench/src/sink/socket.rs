//! The sinks that are not HTTP: lines and datagrams.

use super::{Reject, Shared, lines};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{TcpListener, UdpSocket, UnixDatagram, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use weir_rig_base::address::{Address, SocketFile, bound, clear_stale_socket};

/// The treatment of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Graphite,
    Statsd,
    /// Lines, recorded unchanged.
    Lines,
    /// Counted only.
    Null,
}

/// A bound socket, not yet served.
pub enum Socket {
    Udp(UdpSocket),
    Tcp(TcpListener),
    Unixgram(UnixDatagram, SocketFile),
    Unix(UnixListener, SocketFile),
}

/// Binds, and returns the address with the actual port.
pub async fn bind(address: &Address) -> io::Result<(Socket, Address)> {
    Ok(match address {
        Address::Udp { host, port } => {
            let socket = UdpSocket::bind((host.as_str(), *port)).await?;
            let bound = bound(address, socket.local_addr()?);
            (Socket::Udp(socket), bound)
        }
        Address::Tcp { host, port } => {
            let listener = TcpListener::bind((host.as_str(), *port)).await?;
            let bound = bound(address, listener.local_addr()?);
            (Socket::Tcp(listener), bound)
        }
        Address::UnixDatagram(path) => {
            clear_stale_socket(path)?;
            let socket = UnixDatagram::bind(path)?;
            let file = SocketFile(path.clone());
            (Socket::Unixgram(socket, file), address.clone())
        }
        Address::UnixStream(path) => {
            clear_stale_socket(path)?;
            let listener = UnixListener::bind(path)?;
            let file = SocketFile(path.clone());
            (Socket::Unix(listener, file), address.clone())
        }
    })
}

/// Time to read what waits at the stop: a sender that never pauses has no last byte.
const DRAIN: Duration = Duration::from_secs(10);

/// Serves one socket until `stop` changes. Then it reads what waits in it, and in its connections, and returns. Unix streams carry frames
/// with a four-byte length, TCP carries lines.
pub async fn serve(
    shared: Arc<Shared>,
    sink: &'static str,
    content: Content,
    socket: Socket,
    mut stop: watch::Receiver<bool>,
) {
    // The kinds of sockets have the same methods, and no trait.
    macro_rules! datagrams {
        ($socket:ident) => {{
            let mut buffer = vec![0; 65_536];
            loop {
                tokio::select! {
                    result = $socket.recv(&mut buffer) => match received(sink, result) {
                        Some(bytes) => packet(&shared, sink, content, &buffer[..bytes]),
                        None => return,
                    },
                    _ = stop.changed() => break,
                }
            }
            // The runtime may not know yet of what waits.
            let end = Instant::now() + DRAIN;
            if let Ok(socket) = $socket.into_std() {
                while let Ok(bytes) = socket.recv(&mut buffer) {
                    packet(&shared, sink, content, &buffer[..bytes]);
                    if Instant::now() >= end {
                        break;
                    }
                }
            }
        }};
    }
    macro_rules! streams {
        ($listener:ident, $framed:literal) => {{
            let units = || Units {
                shared: Arc::clone(&shared),
                sink,
                content,
                framed: $framed,
                buffer: Vec::new(),
            };
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = $listener.accept() => match received(sink, accepted) {
                        Some((mut stream, _)) => {
                            let (mut units, mut stop) = (units(), stop.clone());
                            connections.spawn(async move {
                                if units.read(&mut stream, &mut stop).await && let Ok(stream) = stream.into_std() {
                                    units.drain(stream);
                                }
                            });
                        }
                        None => return,
                    },
                    // Its entry is removed, or the set would grow with every connection.
                    Some(_) = connections.join_next() => {}
                    _ = stop.changed() => break,
                }
            }
            // Connections that wait were made, and written to, before the end.
            if let Ok(listener) = $listener.into_std() {
                while let Ok((stream, _)) = listener.accept() {
                    if stream.set_nonblocking(true).is_ok() {
                        units().drain(stream);
                    }
                }
            }
            connections.join_all().await;
        }};
    }
    match socket {
        Socket::Udp(socket) => datagrams!(socket),
        Socket::Unixgram(socket, _file) => datagrams!(socket),
        Socket::Tcp(listener) => streams!(listener, false),
        Socket::Unix(listener, _file) => streams!(listener, true),
    }
}

fn received<T>(sink: &str, result: io::Result<T>) -> Option<T> {
    result
        .map_err(|error| eprintln!("weir-bench sink: {sink}: no longer receiving: {error}"))
        .ok()
}

/// Maximum size of a frame or line.
const UNIT_BYTES_MAX: usize = 1 << 20;

/// The frames or lines of one connection.
struct Units {
    shared: Arc<Shared>,
    sink: &'static str,
    content: Content,
    framed: bool,
    /// Bytes of units that are not complete.
    buffer: Vec<u8>,
}

impl Units {
    /// Reads until the end of the stream, or until `stop` changes: then it returns true.
    async fn read(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        stop: &mut watch::Receiver<bool>,
    ) -> bool {
        let mut bytes = vec![0; 65_536];
        loop {
            let read = tokio::select! {
                read = stream.read(&mut bytes) => read.unwrap_or(0),
                _ = stop.changed() => return true,
            };
            if read == 0 {
                self.end();
                return false;
            }
            if !self.take(&bytes[..read]) {
                return false;
            }
        }
    }

    /// Reads what waits in a stream that does not block. What is incomplete there, its sender was still writing.
    fn drain(&mut self, mut stream: impl io::Read) {
        let end = Instant::now() + DRAIN;
        let mut bytes = vec![0; 65_536];
        while Instant::now() < end {
            match stream.read(&mut bytes) {
                Ok(0) => return self.end(),
                Ok(read) if self.take(&bytes[..read]) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Takes bytes. Returns false if no unit can begin or end there.
    fn take(&mut self, bytes: &[u8]) -> bool {
        self.buffer.extend_from_slice(bytes);
        let mut done = 0;
        if self.framed {
            while let Some((head, after)) = self.buffer[done..].split_first_chunk::<4>() {
                let length = u32::from_le_bytes(*head) as usize;
                if length > UNIT_BYTES_MAX {
                    let what = format!("a frame of {length} bytes announced, {UNIT_BYTES_MAX} allowed");
                    self.shared.record_bad(self.sink, &Reject::new(400, what));
                    return false;
                }
                let Some(frame) = after.get(..length) else { break };
                packet(&self.shared, self.sink, self.content, frame);
                done += 4 + length;
            }
        } else if let Some(last) = memchr::memrchr(b'\n', &self.buffer) {
            packet(&self.shared, self.sink, self.content, &self.buffer[..last]);
            done = last + 1;
        } else if self.buffer.len() > UNIT_BYTES_MAX {
            let what = format!("a line of more than {UNIT_BYTES_MAX} bytes");
            self.shared.record_bad(self.sink, &Reject::new(400, what));
            return false;
        }
        self.buffer.drain(..done);
        true
    }

    /// The stream has ended.
    fn end(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        if self.framed {
            self.shared
                .record_bad(self.sink, &Reject::new(400, "a frame cut short"));
        } else {
            packet(&self.shared, self.sink, self.content, &self.buffer);
        }
    }
}

fn packet(shared: &Shared, sink: &'static str, content: Content, packet: &[u8]) {
    shared.record_packet(sink, packet.len());
    if content == Content::Null {
        return;
    }
    let mut records = Vec::new();
    for line in packet.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let record = match content {
            Content::Graphite => lines::graphite(line),
            Content::Statsd => lines::statsd(line),
            Content::Lines => Ok(lines::plain(line)),
            Content::Null => continue,
        };
        match record {
            Ok(record) => records.push(record),
            Err(reject) => shared.record_bad(sink, &reject),
        }
    }
    shared.accept(sink, records);
}
