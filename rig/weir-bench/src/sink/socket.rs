//! The sinks that are not HTTP: lines and datagrams.

use super::{Reject, Shared, lines};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{TcpListener, UdpSocket, UnixDatagram, UnixListener};
use tokio::sync::watch;
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

impl Socket {
    pub fn takes_datagrams(&self) -> bool {
        matches!(self, Socket::Udp(_) | Socket::Unixgram(..))
    }
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

/// Serves one socket until the runtime ends, one of datagrams until `stop` changes: then it reads what waits there, and returns. Unix
/// streams carry frames with a four-byte length, TCP carries lines.
pub async fn serve(
    shared: Arc<Shared>,
    sink: &'static str,
    content: Content,
    socket: Socket,
    mut stop: watch::Receiver<bool>,
) {
    // The two kinds of sockets have the same methods, and no trait.
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
            if let Ok(socket) = $socket.into_std() {
                while let Ok(bytes) = socket.recv(&mut buffer) {
                    packet(&shared, sink, content, &buffer[..bytes]);
                }
            }
        }};
    }
    match socket {
        Socket::Udp(socket) => datagrams!(socket),
        Socket::Unixgram(socket, _file) => datagrams!(socket),
        Socket::Tcp(listener) => {
            while let Some((stream, _)) = received(sink, listener.accept().await) {
                tokio::spawn(stream_of(Arc::clone(&shared), sink, content, stream, false));
            }
        }
        Socket::Unix(listener, _file) => {
            while let Some((stream, _)) = received(sink, listener.accept().await) {
                tokio::spawn(stream_of(Arc::clone(&shared), sink, content, stream, true));
            }
        }
    }
}

fn received<T>(sink: &str, result: io::Result<T>) -> Option<T> {
    result
        .map_err(|error| eprintln!("weir-bench sink: {sink}: no longer receiving: {error}"))
        .ok()
}

/// Maximum size of a frame or line.
const UNIT_BYTES_MAX: usize = 1 << 20;

async fn stream_of(
    shared: Arc<Shared>,
    sink: &'static str,
    content: Content,
    mut stream: impl AsyncRead + Unpin,
    framed: bool,
) {
    let mut buffer: Vec<u8> = Vec::new();
    let mut rest = vec![0; 65_536];
    loop {
        let read = stream.read(&mut rest).await.unwrap_or(0);
        if read == 0 {
            break;
        }
        buffer.extend_from_slice(&rest[..read]);
        let mut done = 0;
        if framed {
            while let Some((head, after)) = buffer[done..].split_first_chunk::<4>() {
                let length = u32::from_le_bytes(*head) as usize;
                if length > UNIT_BYTES_MAX {
                    let what = format!("a frame of {length} bytes announced, {UNIT_BYTES_MAX} allowed");
                    shared.record_bad(sink, &Reject::new(400, what));
                    return;
                }
                let Some(frame) = after.get(..length) else { break };
                packet(&shared, sink, content, frame);
                done += 4 + length;
            }
        } else if let Some(last) = memchr::memrchr(b'\n', &buffer) {
            packet(&shared, sink, content, &buffer[..last]);
            done = last + 1;
        } else if buffer.len() > UNIT_BYTES_MAX {
            let what = format!("a line of more than {UNIT_BYTES_MAX} bytes");
            shared.record_bad(sink, &Reject::new(400, what));
            return;
        }
        buffer.drain(..done);
    }
    if !buffer.is_empty() {
        if framed {
            shared.record_bad(sink, &Reject::new(400, "a frame cut short"));
        } else {
            packet(&shared, sink, content, &buffer);
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
