//! Sockets of the four kinds, as a target's task uses them.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net;
use std::path::Path;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, UnixDatagram, UnixStream};
use weir_units::Address;

use super::{Block, RelaySettings, StreamFraming};
use crate::datagrams::next_end;
use crate::names::{connect_tcp, connect_udp};
use crate::tcp::reset_on_close;

/// Time a machine may take to refuse a port.
const REFUSAL_WAIT: Duration = Duration::from_millis(250);

/// The progress of one attempt before it ended, with success or not.
#[derive(Debug, Default)]
pub struct SentCounts {
    pub messages: u64,
    pub bytes: u64,
    pub packets: u64,
    pub too_long: u64,
}

pub enum Connection {
    Udp(UdpSocket),
    UnixDatagram(UnixDatagram),
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The name of a Unix socket without a file.
fn abstract_name(path: &Path) -> Option<&[u8]> {
    path.as_os_str().as_bytes().strip_prefix(b"@")
}

impl Connection {
    pub async fn open(address: &Address) -> io::Result<Self> {
        match address {
            Address::Udp { host, port } => {
                let mut found = connect_udp(host, *port).await?;
                Ok(Self::Udp(found.swap_remove(0)))
            }
            Address::Tcp { host, port } => {
                let stream = connect_tcp(host, *port).await?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Address::UnixDatagram(path) => {
                let socket = net::UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                match abstract_name(path) {
                    Some(name) => socket.connect_addr(&net::SocketAddr::from_abstract_name(name)?)?,
                    None => socket.connect(path)?,
                }
                UnixDatagram::from_std(socket).map(Self::UnixDatagram)
            }
            Address::UnixStream(path) => match abstract_name(path) {
                // Tokio takes a leading zero byte for such a name.
                Some(name) => {
                    let path = [b"\0", name].concat();
                    UnixStream::connect(OsStr::from_bytes(&path))
                        .await
                        .map(Self::Unix)
                }
                None => UnixStream::connect(path).await.map(Self::Unix),
            },
        }
    }

    /// Whether the server answers, as far as an empty probe can show.
    pub async fn check(&self) -> io::Result<()> {
        match self {
            Self::Udp(socket) => {
                // An empty packet says nothing to any server; to an empty port it provokes a refusal.
                socket.send(&[]).await?;
                match tokio::time::timeout(REFUSAL_WAIT, socket.recv(&mut [0; 1])).await {
                    Ok(Err(error)) => Err(error),
                    _ => Ok(()),
                }
            }
            Self::UnixDatagram(_) => Ok(()),
            Self::Tcp(_) | Self::Unix(_) => self.still_open(),
        }
    }

    /// Whether a missing target would not be noticed.
    pub fn is_silent(&self) -> bool {
        matches!(self, Self::Udp(_))
    }

    /// A stream whose other end has closed takes one more write without complaint, and loses it.
    fn still_open(&self) -> io::Result<()> {
        let mut byte = [0; 64];
        let read = match self {
            Self::Tcp(stream) => stream.try_read(&mut byte),
            Self::Unix(stream) => stream.try_read(&mut byte),
            Self::Udp(_) | Self::UnixDatagram(_) => return Ok(()),
        };
        match read {
            Ok(0) => Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "closed by the target",
            )),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends the rest of a block. Sent bytes are noted in the block and in `sent` before an error is returned.
    pub async fn send(
        &mut self,
        block: &mut Block,
        settings: &RelaySettings,
        sent: &mut SentCounts,
    ) -> io::Result<()> {
        self.still_open()?;
        // A line may be half written at this point; frames and datagrams are sent completely or not at all.
        if let Some(stream) = self.lines(settings) {
            reset_on_close(stream, true)?;
        }
        self.packets(block, settings, sent).await?;
        match self.lines(settings) {
            Some(stream) => reset_on_close(stream, false),
            None => Ok(()),
        }
    }

    /// The stream of a connection that carries lines alone.
    fn lines(&self, settings: &RelaySettings) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) if settings.tcp_framing == StreamFraming::Newline => Some(stream),
            _ => None,
        }
    }

    async fn packets(
        &mut self,
        block: &mut Block,
        settings: &RelaySettings,
        sent: &mut SentCounts,
    ) -> io::Result<()> {
        let bytes_max = match self {
            Self::Udp(_) => settings.udp_bytes_max,
            _ => settings.uds_bytes_max,
        };
        while block.done < block.lines.len() {
            let rest = &block.lines[block.done..];
            let packet = &rest[..next_end(rest, bytes_max)];
            let messages = packet.iter().filter(|byte| **byte == b'\n').count() as u64;
            let length = packet.len();
            if length > bytes_max {
                // Messages for a target that accepted longer ones, when it was ejected.
                sent.too_long += messages;
                block.done += length;
                continue;
            }
            let written = self.packet(packet, settings).await;
            if written.bytes > 0 {
                let whole = &packet[..written.bytes];
                sent.messages += whole.iter().filter(|byte| **byte == b'\n').count() as u64;
                sent.bytes += written.bytes as u64;
                sent.packets += 1;
                block.done += written.bytes;
            }
            match written.error {
                None => {}
                // The path takes less than was thought.
                Some(error) if error.raw_os_error() == Some(EMSGSIZE) => {
                    sent.too_long += messages;
                    block.done += length;
                }
                Some(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn packet(&mut self, packet: &[u8], settings: &RelaySettings) -> PacketProgress {
        // Lines know how far they have come when the time is up.
        if let (Self::Tcp(stream), StreamFraming::Newline) = (&mut *self, settings.tcp_framing) {
            return lines(stream, packet, settings.timeout).await;
        }
        let whole = async {
            match self {
                Self::Udp(socket) => socket.send(packet).await.map(drop),
                Self::UnixDatagram(socket) => socket.send(packet).await.map(drop),
                Self::Tcp(stream) => frame(stream, packet).await,
                Self::Unix(stream) => frame(stream, packet).await,
            }
        };
        match tokio::time::timeout(settings.timeout, whole).await {
            Ok(Ok(())) => PacketProgress::whole(packet),
            Ok(Err(error)) => PacketProgress::broken(0, error),
            Err(_) => PacketProgress::broken(0, takes_nothing()),
        }
    }
}

const EMSGSIZE: i32 = 90;

/// Bytes of a packet that need not be repeated.
struct PacketProgress {
    bytes: usize,
    error: Option<io::Error>,
}

impl PacketProgress {
    fn whole(packet: &[u8]) -> Self {
        Self {
            bytes: packet.len(),
            error: None,
        }
    }

    fn broken(bytes: usize, error: io::Error) -> Self {
        Self {
            bytes,
            error: Some(error),
        }
    }
}

fn takes_nothing() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "takes nothing")
}

/// A cut frame is thrown away by its reader, so it counts as a whole or not at all.
async fn frame(stream: &mut (impl AsyncWriteExt + Unpin), packet: &[u8]) -> io::Result<()> {
    let mut frame = Vec::with_capacity(packet.len() + 4);
    frame.extend_from_slice(&(packet.len() as u32).to_le_bytes());
    frame.extend_from_slice(packet);
    stream.write_all(&frame).await
}

/// Complete lines count as sent; a line that was cut is repeated on the next connection.
async fn lines(stream: &mut TcpStream, packet: &[u8], timeout: Duration) -> PacketProgress {
    let mut at = 0;
    while at < packet.len() {
        let error = match tokio::time::timeout(timeout, stream.write(&packet[at..])).await {
            Ok(Ok(0)) => io::ErrorKind::WriteZero.into(),
            Ok(Ok(written)) => {
                at += written;
                continue;
            }
            Ok(Err(error)) => error,
            Err(_) => takes_nothing(),
        };
        let whole = packet[..at]
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        return PacketProgress::broken(whole, error);
    }
    PacketProgress::whole(packet)
}
