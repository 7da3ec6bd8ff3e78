//! Sockets of the four kinds, as a target's task uses them.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, UnixDatagram, UnixStream};
use weir_listener::Address;

use super::{Block, RelaySettings, StreamFraming};
use crate::datagrams::next_end;

/// How long a machine has to say that nobody listens at a port.
const REFUSAL_WAIT: Duration = Duration::from_millis(250);

/// What one attempt achieved before it ended, well or not.
#[derive(Debug, Default)]
pub struct Sent {
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

impl Connection {
    pub async fn open(address: &Address) -> io::Result<Self> {
        match address {
            Address::Udp { host, port } => {
                let mut last = io::Error::other("the name has no address");
                for address in tokio::net::lookup_host((host.as_str(), *port)).await? {
                    let local = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                    let socket = UdpSocket::bind(local).await?;
                    match socket.connect(address).await {
                        Ok(()) => return Ok(Self::Udp(socket)),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Address::UnixDatagram(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                Ok(Self::UnixDatagram(socket))
            }
            Address::UnixStream(path) => UnixStream::connect(path).await.map(Self::Unix),
        }
    }

    /// Whether somebody is there, as far as that can be found out without saying anything.
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

    /// Sends what is left of a block. What was sent is noted in the block and in `sent` before an error is returned.
    pub async fn send(
        &mut self,
        block: &mut Block,
        settings: &RelaySettings,
        sent: &mut Sent,
    ) -> io::Result<()> {
        self.still_open()?;
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
                // Of a target that took longer ones, when it was ejected.
                sent.too_long += messages;
                block.done += length;
                continue;
            }
            let written = match tokio::time::timeout(settings.timeout, self.packet(packet, settings)).await {
                Ok(written) => written,
                Err(_) => Written::broken(0, io::Error::new(io::ErrorKind::TimedOut, "takes nothing")),
            };
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

    async fn packet(&mut self, packet: &[u8], settings: &RelaySettings) -> Written {
        let datagram = |result: io::Result<usize>| match result {
            Ok(_) => Written::whole(packet),
            Err(error) => Written::broken(0, error),
        };
        match self {
            Self::Udp(socket) => datagram(socket.send(packet).await),
            Self::UnixDatagram(socket) => datagram(socket.send(packet).await),
            Self::Tcp(stream) => match settings.tcp_framing {
                StreamFraming::Length => frame(stream, packet).await,
                StreamFraming::Newline => lines(stream, packet, settings.timeout).await,
            },
            Self::Unix(stream) => frame(stream, packet).await,
        }
    }
}

const EMSGSIZE: i32 = 90;

/// How much of a packet needs no repetition.
struct Written {
    bytes: usize,
    error: Option<io::Error>,
}

impl Written {
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

/// A cut frame is thrown away by its reader, so it counts as a whole or not at all.
async fn frame(stream: &mut (impl AsyncWriteExt + Unpin), packet: &[u8]) -> Written {
    let mut frame = Vec::with_capacity(packet.len() + 4);
    frame.extend_from_slice(&(packet.len() as u32).to_le_bytes());
    frame.extend_from_slice(packet);
    match stream.write_all(&frame).await {
        Ok(()) => Written::whole(packet),
        Err(error) => Written::broken(0, error),
    }
}

/// Of lines, those count that were written whole; the one that was cut is repeated on the next connection.
async fn lines(stream: &mut TcpStream, packet: &[u8], timeout: Duration) -> Written {
    let mut at = 0;
    while at < packet.len() {
        let error = match tokio::time::timeout(timeout, stream.write(&packet[at..])).await {
            Ok(Ok(0)) => io::ErrorKind::WriteZero.into(),
            Ok(Ok(written)) => {
                at += written;
                continue;
            }
            Ok(Err(error)) => error,
            Err(_) => io::Error::new(io::ErrorKind::TimedOut, "takes nothing"),
        };
        let whole = packet[..at]
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        return Written::broken(whole, error);
    }
    Written::whole(packet)
}
