//! Sockets that another process has opened: the service manager, or the previous process.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use rustix::net::{SocketAddrUnix, SocketType, sockopt};

use crate::bind::{self, BindErrorKind, other};
use crate::socket_file::SocketFile;
use crate::{Address, BindError, BoundSocket, ListenerConfig, sys};

/// A socket passed to this process, and its type.
#[derive(Debug)]
pub struct PassedSocket {
    fd: OwnedFd,
    address: Address,
    inode: u64,
}

impl PassedSocket {
    /// # Errors
    ///
    /// If it is not a socket, or of a kind without a listener.
    pub fn new(fd: OwnedFd) -> io::Result<PassedSocket> {
        let kind = sockopt::socket_type(&fd)?;
        let name = rustix::net::getsockname(&fd)?;
        let address = if let Ok(unix) = SocketAddrUnix::try_from(name.clone()) {
            unix_address(&unix, kind)
        } else {
            let name = SocketAddr::try_from(name)?;
            let (host, port) = (name.ip().to_string(), name.port());
            match kind {
                SocketType::DGRAM => Some(Address::Udp { host, port }),
                SocketType::STREAM => Some(Address::Tcp { host, port }),
                _ => None,
            }
        };
        let address = address.ok_or_else(|| io::Error::other("not a socket that weir can listen on"))?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        let inode = sys::socket_inode(fd.as_fd())?;
        Ok(PassedSocket { fd, address, inode })
    }

    /// Its bound address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The socket's number in the kernel's tables: the same for all descriptors of it.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether a listener with this address would be bound to the same place.
    pub fn is_at(&self, wanted: &Address) -> bool {
        match (wanted, &self.address) {
            (
                Address::Udp { host, port },
                Address::Udp {
                    host: own,
                    port: bound,
                },
            )
            | (
                Address::Tcp { host, port },
                Address::Tcp {
                    host: own,
                    port: bound,
                },
            ) => {
                port == bound && bind::resolve(host, *port).is_ok_and(|found| found.ip().to_string() == *own)
            }
            (wanted, own) => wanted == own,
        }
    }

    /// Whether it is of the kind that this address asks for.
    pub fn is_like(&self, wanted: &Address) -> bool {
        std::mem::discriminant(wanted) == std::mem::discriminant(&self.address)
    }
}

impl AsFd for PassedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn unix_address(name: &SocketAddrUnix, kind: SocketType) -> Option<Address> {
    let path = match (name.path(), name.abstract_name()) {
        (Some(path), _) => path.to_bytes().to_vec(),
        (None, Some(name)) => [b"@", name].concat(),
        (None, None) => return None,
    };
    let path = PathBuf::from(OsStr::from_bytes(&path));
    match kind {
        SocketType::DGRAM => Some(Address::UnixDatagram(path)),
        SocketType::STREAM => Some(Address::UnixStream(path)),
        _ => None,
    }
}

/// Listens on a socket that was passed, in place of [`crate::bind`]. Another process keeps it beyond this one: its file stays, and
/// later packets wait in it after a drain.
///
/// # Errors
///
/// As [`crate::bind`]; and if the file of a Unix socket was removed, so clients cannot reach it.
pub fn adopt(config: &ListenerConfig, passed: PassedSocket) -> Result<BoundSocket, BindError> {
    let fail = |kind| BindError {
        address: config.address.clone(),
        kind,
    };
    bind::check(config).map_err(fail)?;
    adopt_socket(config, passed).map_err(fail)
}

fn adopt_socket(config: &ListenerConfig, passed: PassedSocket) -> Result<BoundSocket, BindErrorKind> {
    let PassedSocket { fd, address, .. } = passed;
    set_options(fd.as_fd(), &address, config)?;
    let file = match address.path() {
        None => None,
        Some(_) if address.is_abstract() => None,
        Some(path) => Some(SocketFile::kept(path).ok_or_else(|| BindErrorKind::Other {
            operation: "using the socket that was passed",
            error: io::Error::other("its file was removed, so clients cannot reach it"),
        })?),
    };
    let buffer_bytes = config.receive_buffer_bytes.filter(|_| address.path().is_none());
    let buffer = bind::set_receive_buffer(fd.as_fd(), buffer_bytes)?;
    let drops_before = match address {
        Address::Udp { .. } => sys::socket_drops(fd.as_fd()).map_err(other("SO_MEMINFO"))?,
        _ => 0,
    };
    Ok(BoundSocket {
        fd,
        address: shown(config, address),
        config: config.clone(),
        buffer,
        file,
        warning: None,
        kept: true,
        shared: false,
        drops_before,
    })
}

fn set_options(fd: BorrowedFd<'_>, address: &Address, config: &ListenerConfig) -> Result<(), BindErrorKind> {
    let set = |level, name, operation| sys::set_option(fd, level, name, 1).map_err(other(operation));
    match address {
        Address::Udp { .. } => set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, "SO_RXQ_OVFL")?,
        Address::Tcp { .. } => set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE")?,
        Address::UnixDatagram(_) if config.pass_credentials => {
            set(libc::SOL_SOCKET, libc::SO_PASSCRED, "SO_PASSCRED")?;
        }
        _ => {}
    }
    if address.is_stream() {
        // For a socket that listens already, this sets the length of the queue.
        sys::listen(fd, bind::backlog(config)).map_err(other("listen"))?;
    }
    Ok(())
}

/// As the configuration writes it, where that is the same place: books go by it.
fn shown(config: &ListenerConfig, bound: Address) -> Address {
    let mut wanted = config.address.clone();
    match (&mut wanted, &bound) {
        (Address::Udp { host, port }, Address::Udp { host: own, port: at })
        | (Address::Tcp { host, port }, Address::Tcp { host: own, port: at }) => {
            *port = *at;
            if bind::resolve(host, *at).is_ok_and(|found| found.ip().to_string() == *own) {
                return wanted;
            }
            bound
        }
        _ => bound,
    }
}
