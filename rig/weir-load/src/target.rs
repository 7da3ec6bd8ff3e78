//! Addresses of targets and the sockets to them.

use crate::grpc;
use crate::profile::{Payload, ProfileError, Transport};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use weir_rig_base::address::{Address, resolve};
use weir_rig_base::http::{Url, UrlError};
use weir_rig_base::udp::UdpPort;
use weir_units::AddressError;

/// Datagrams that the kernel drops at a UDP target on this machine.
pub struct KernelDrops {
    port: Option<UdpPort>,
    before: Option<u64>,
}

impl KernelDrops {
    /// Since the start. `None` if that cannot be seen.
    pub fn until_now(&mut self) -> Option<u64> {
        let now = self.port.as_mut()?.drops()?;
        Some(now.saturating_sub(self.before?))
    }
}

/// Destination of the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Udp(SocketAddr),
    Unixgram(PathBuf),
    Unix(PathBuf),
    Tcp(SocketAddr),
    Http {
        address: SocketAddr,
        host: String,
        path: String,
    },
    /// HTTP over a Unix stream socket.
    HttpUnix(PathBuf),
    /// HTTP/2 without TLS. The payload selects the method.
    Grpc {
        address: SocketAddr,
        host: String,
    },
}

/// Why a text is not a [`Target`].
#[derive(Debug, thiserror::Error)]
#[error("{text:?}: {error}; {ALLOWED}")]
pub struct TargetError {
    text: String,
    error: PartError,
}

/// The error in a part of the text.
#[derive(Debug, thiserror::Error)]
enum PartError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error(transparent)]
    Resolve(#[from] io::Error),
}

const ALLOWED: &str = "allowed are udp://host:port, tcp://host:port, unixgram:///path, unix:///path, http://host:port/path, \
    http+unix:///path and grpc://host:port";

const HTTP_UNIX: &str = "http+unix://";

impl Target {
    /// `udp://host:port`, `tcp://host:port`, `unixgram:///path`, `unix:///path`, `http://host:port/path`, `http+unix:///path`
    /// or `grpc://host:port`.
    pub fn parse(text: &str) -> Result<Target, TargetError> {
        Self::parts(text).map_err(|error| TargetError {
            text: text.to_owned(),
            error,
        })
    }

    fn parts(text: &str) -> Result<Target, PartError> {
        if let Some(authority) = text.strip_prefix("grpc://") {
            let Address::Tcp { host, port } = format!("tcp://{authority}").parse()? else {
                unreachable!("parsed as tcp")
            };
            return Ok(Target::Grpc {
                address: resolve(&host, port)?,
                host: authority.to_owned(),
            });
        }
        if let Some(path) = text.strip_prefix(HTTP_UNIX) {
            let Address::UnixStream(path) = format!("unix://{path}").parse()? else {
                unreachable!("parsed as unix")
            };
            return Ok(Target::HttpUnix(path));
        }
        if text.starts_with("http://") {
            let url: Url = text.parse()?;
            return Ok(Target::Http {
                address: url.resolve()?,
                path: url.path_or("/").to_owned(),
                host: url.authority,
            });
        }
        match text.parse()? {
            Address::Udp { host, port } => Ok(Target::Udp(resolve(&host, port)?)),
            Address::Tcp { host, port } => Ok(Target::Tcp(resolve(&host, port)?)),
            Address::UnixDatagram(path) => Ok(Target::Unixgram(path)),
            Address::UnixStream(path) => Ok(Target::Unix(path)),
        }
    }

    pub fn transport(&self) -> Transport {
        match self {
            Target::Udp(_) => Transport::Udp,
            Target::Unixgram(_) => Transport::Unixgram,
            Target::Unix(_) => Transport::Unix,
            Target::Tcp(_) => Transport::Tcp,
            Target::Http { .. } | Target::HttpUnix(_) | Target::Grpc { .. } => Transport::Http,
        }
    }

    /// Whether a target of this scheme can take a payload that its transport carries.
    pub fn takes(&self, payload: Payload) -> Result<(), ProfileError> {
        match self {
            Target::Grpc { .. } if grpc::method(payload).is_none() => Err(ProfileError(format!(
                "payload {}: grpc:// takes otlp-logs, otlp-metrics and otlp-traces",
                payload.name()
            ))),
            _ => Ok(()),
        }
    }

    /// Counts from now on.
    pub fn kernel_drops(&self) -> KernelDrops {
        let mut port = match self {
            Target::Udp(address) => Some(UdpPort::new(address.port())),
            _ => None,
        };
        let before = port.as_mut().and_then(UdpPort::drops);
        KernelDrops { port, before }
    }

    /// Connects a socket and makes it non-blocking.
    pub fn connect(&self) -> io::Result<Socket> {
        let socket = match self {
            Target::Udp(address) => {
                let local: SocketAddr = if address.is_ipv4() {
                    ([0, 0, 0, 0], 0).into()
                } else {
                    ([0u16; 8], 0).into()
                };
                let socket = UdpSocket::bind(local)?;
                socket.connect(address)?;
                socket.set_nonblocking(true)?;
                Socket::Udp(socket)
            }
            Target::Unixgram(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                socket.set_nonblocking(true)?;
                Socket::Unixgram(socket)
            }
            Target::Unix(path) | Target::HttpUnix(path) => {
                let socket = UnixStream::connect(path)?;
                socket.set_nonblocking(true)?;
                Socket::Unix(socket)
            }
            Target::Tcp(address) | Target::Http { address, .. } | Target::Grpc { address, .. } => {
                let socket = TcpStream::connect_timeout(address, std::time::Duration::from_secs(5))?;
                socket.set_nodelay(true)?;
                socket.set_nonblocking(true)?;
                Socket::Tcp(socket)
            }
        };
        Ok(socket)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Udp(address) => write!(f, "udp://{address}"),
            Target::Unixgram(path) => write!(f, "unixgram://{}", path.display()),
            Target::Unix(path) => write!(f, "unix://{}", path.display()),
            Target::Tcp(address) => write!(f, "tcp://{address}"),
            Target::Http { host, path, .. } => write!(f, "http://{host}{path}"),
            Target::HttpUnix(path) => write!(f, "{HTTP_UNIX}{}", path.display()),
            Target::Grpc { host, .. } => write!(f, "grpc://{host}"),
        }
    }
}

/// A connected, non-blocking socket.
#[derive(Debug)]
pub enum Socket {
    Udp(UdpSocket),
    Unixgram(UnixDatagram),
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Writes as much to a stream as it accepts.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        use std::io::Write;
        match self {
            Socket::Unix(stream) => (&mut &*stream).write(bytes),
            Socket::Tcp(stream) => (&mut &*stream).write(bytes),
            Socket::Udp(socket) => socket.send(bytes),
            Socket::Unixgram(socket) => socket.send(bytes),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Udp(socket) => socket.as_fd(),
            Socket::Unixgram(socket) => socket.as_fd(),
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_one_way() {
        for text in [
            "udp://127.0.0.1:8125",
            "tcp://127.0.0.1:1",
            "unixgram:///run/a.sock",
            "unix:///b",
            "http://127.0.0.1:80/v1/logs",
            "http+unix:///run/http.sock",
            "grpc://127.0.0.1:4317",
        ] {
            assert_eq!(Target::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "8125",
            "udp://nonsense",
            "grpc://127.0.0.1:1/path",
            "unix://relative",
            "http+unix://relative",
            "ftp://x:1",
            "",
        ] {
            assert!(Target::parse(text).is_err(), "{text}");
        }
    }
}
