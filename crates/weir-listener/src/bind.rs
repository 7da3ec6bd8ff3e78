//! From a configuration to a bound socket, with every error named.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use crate::socket_file::{self, FileId, SocketFile};
use crate::{Address, AllowList, SourceRates, TlsServer, sys};

/// Division of bytes into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// A datagram is a packet. For `udp` and `unixgram`.
    Datagram,
    /// A packet follows its length, four bytes, little-endian. For `tcp` and `unix`.
    LengthPrefixed,
    /// Lines end with a newline; a packet is a run of complete lines. For `tcp` and `unix`.
    Newline,
}

/// Other sockets that may be bound to the port of an internet socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortSharing {
    /// Lets several sockets share one address, the kernel spreading senders over them. See [`bind_group`], which sets it.
    pub reuse_port: bool,
    /// `[::]` leaves IPv4 to another listener, which has `0.0.0.0`. Without effect on other addresses.
    pub ipv6_only: bool,
}

/// The address of a listener and its options.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// Address to listen on.
    pub address: Address,
    /// Framing. Must suit the address.
    pub framing: Framing,
    /// Bytes the kernel should be able to hold for this socket (for each connection, on TCP); `None` leaves the
    /// system's default. More than `net.core.rmem_max` needs the privilege CAP_NET_ADMIN; see [`ReceiveBuffer`].
    /// Without effect on Unix sockets, where the kernel charges queued datagrams to the sender's buffer.
    pub receive_buffer_bytes: Option<usize>,
    /// The longest packet, 1 to 65536. A longer datagram is cut; a stream that announces a longer frame is closed, and a
    /// longer line is skipped.
    pub max_packet_bytes: usize,
    /// The other sockets on the same port. Without effect on Unix sockets.
    pub sharing: PortSharing,
    /// Addresses that may send; packets and connections of others are dropped and counted. Internet sockets only.
    pub allow: AllowList,
    /// Rates of addresses and networks; packets above them are dropped and counted. Internet sockets only.
    pub rates: Option<Arc<SourceRates>>,
    /// Connections have to be encrypted. TCP only.
    pub tls: Option<Arc<TlsServer>>,
    /// Asks the kernel who sent each packet. Unix sockets only; an internet socket cannot know.
    pub pass_credentials: bool,
    /// Permission bits of the socket file. Senders need the write bit.
    pub socket_mode: u32,
    /// Owner of the socket file as a number; `None` leaves it to the process. [`user_id`] finds it by name.
    pub socket_owner: Option<u32>,
    /// Group of the socket file as a number; `None` leaves it to the process. [`group_id`] finds it by name.
    pub socket_group: Option<u32>,
    /// A directory of root's in which others may write gets the sticky bit, instead of being refused to a process of root.
    pub sticky_directory: bool,
    /// Connections open at the same time. For a further one a connection of the peer that has most is closed, or one that
    /// is idle, or else it is closed itself; all of it is counted. Streams only.
    pub max_connections: usize,
    /// Connections the kernel completes before we accept them. Streams only; capped by `net.core.somaxconn`.
    pub backlog: u32,
}

/// Write permission for all users, which senders under other users need, and listing for no other user.
pub const SOCKET_MODE_DEFAULT: u32 = 0o722;

impl ListenerConfig {
    /// Defaults for an address: datagrams of any length up to 64 KiB, length-prefixed frames of at most 8192 bytes on
    /// streams, socket files of mode 0722, 8192 connections.
    pub fn new(address: Address) -> Self {
        let (framing, max_packet_bytes) = if address.is_stream() {
            (Framing::LengthPrefixed, 8192)
        } else {
            (Framing::Datagram, MAX_PACKET_BYTES_LIMIT)
        };
        Self {
            address,
            framing,
            receive_buffer_bytes: None,
            max_packet_bytes,
            sharing: PortSharing::default(),
            allow: AllowList::default(),
            rates: None,
            tls: None,
            pass_credentials: false,
            socket_mode: SOCKET_MODE_DEFAULT,
            socket_owner: None,
            socket_group: None,
            sticky_directory: false,
            max_connections: 8192,
            backlog: 1024,
        }
    }
}

/// The numeric id of a user by name, or of a number written out.
pub fn user_id(name: &str) -> io::Result<Option<u32>> {
    name.parse()
        .map_or_else(|_| sys::lookup_id(name, false), |id| Ok(Some(id)))
}

/// The numeric id of a group by name, or of a number written out.
pub fn group_id(name: &str) -> io::Result<Option<u32>> {
    name.parse()
        .map_or_else(|_| sys::lookup_id(name, true), |id| Ok(Some(id)))
}

/// Why a listener could not be set up. The message says what, where, and what to do about it.
#[derive(Debug)]
pub struct BindError {
    /// The address that was to be bound.
    pub address: Address,
    /// The error.
    pub kind: BindErrorKind,
}

/// The errors that a [`BindError`] distinguishes.
#[derive(Debug)]
pub enum BindErrorKind {
    /// The framing does not suit the address.
    FramingMismatch(Framing),
    /// `max_packet_bytes` is not in 1 to 65536.
    MaxPacketBytes(usize),
    /// The name has no address.
    HostNotFound(io::Error),
    /// Another process has the port.
    PortInUse,
    /// The address belongs to none of this machine's interfaces.
    NotLocal,
    /// The port, file or directory may not be used by this user.
    PermissionDenied {
        /// The operation: `bind`, `chown`, ...
        operation: &'static str,
    },
    /// The directory of the socket file does not exist.
    MissingDirectory(PathBuf),
    /// Something on the way to the socket file is not a directory.
    NotADirectory(PathBuf),
    /// There is a file where the socket should be, and it is not a socket. It is left alone.
    NotASocket {
        /// `a regular file`, `a directory`, ...
        found: &'static str,
    },
    /// Another process is listening on the socket file.
    SocketInUse,
    /// Users other than root may write in the directory of the socket file, and this process is root.
    OthersMayWrite {
        /// The directory.
        directory: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// Its owner.
        owner: u32,
    },
    /// Something else was put in the place of the socket file as soon as it was there. It is left alone.
    Replaced,
    /// This system has no IPv6 (or no Unix sockets).
    Unsupported,
    /// No descriptors or memory for a socket.
    Exhausted(io::Error),
    /// Anything else the kernel said.
    Other {
        /// The failed operation.
        operation: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}: ", self.address)?;
        self.kind.describe(&self.address, f)
    }
}

fn port_in_use(address: &Address, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let table = if matches!(address, Address::Udp { .. }) {
        "-ulpn"
    } else {
        "-tlpn"
    };
    write!(
        f,
        "the port is in use by another process; stop it (`ss {table}` shows it) or choose another port"
    )
}

fn permission_denied(address: &Address, operation: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(path) = address.path() else {
        return f.write_str(
            "permission denied; ports below 1024 need the privilege CAP_NET_BIND_SERVICE, or choose a higher port",
        );
    };
    let more = if operation == "chown" {
        ", and to set an owner or group it is not in, the privilege CAP_CHOWN"
    } else {
        ""
    };
    let directory = path.parent().unwrap_or(path).display();
    write!(
        f,
        "permission denied ({operation}); this user needs write permission in {directory}{more}"
    )
}

impl BindErrorKind {
    fn describe(&self, address: &Address, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindErrorKind::PortInUse => port_in_use(address, f),
            BindErrorKind::PermissionDenied { operation } => permission_denied(address, operation, f),
            BindErrorKind::FramingMismatch(framing) => {
                let (given, kind, allowed) = match framing {
                    Framing::Datagram => ("datagram", "a stream", "length or newline"),
                    Framing::LengthPrefixed => ("length", "a datagram socket", "datagram"),
                    Framing::Newline => ("newline", "a datagram socket", "datagram"),
                };
                write!(f, "framing {given} does not fit {kind}; use {allowed}")
            }
            BindErrorKind::MaxPacketBytes(n) => write!(
                f,
                "the longest packet is {n} bytes; allowed are 1 to {MAX_PACKET_BYTES_LIMIT}"
            ),
            BindErrorKind::HostNotFound(error) => write!(
                f,
                "the host has no address ({error}); write an IP address or check the name"
            ),
            BindErrorKind::MissingDirectory(directory) => {
                let directory = directory.display();
                write!(
                    f,
                    "the directory {directory} does not exist; create it (`mkdir -p {directory}`) or change the path"
                )
            }
            BindErrorKind::NotADirectory(path) => {
                write!(f, "{} is not a directory; change the path", path.display())
            }
            BindErrorKind::NotASocket { found } => write!(
                f,
                "the path is {found}, not a socket, and is left alone; remove it yourself or change the path"
            ),
            BindErrorKind::OthersMayWrite {
                directory,
                mode,
                owner,
            } => write!(
                f,
                "users other than root may write in {0} (mode {mode:04o}, owner {owner}) and could replace the socket of a \
                 process of root; `chown root {0}` and `chmod go-w {0}` (or `chmod +t {0}`, which keeps them from replacing \
                 files of others; with `socket_directory_sticky: true` weir does that for a directory that root owns, such as an \
                 emptyDir of Kubernetes), run weir as another user, or choose another directory",
                directory.display()
            ),
            BindErrorKind::Exhausted(error) => write!(
                f,
                "no resources for a socket ({error}); raise the descriptor limit (`ulimit -n`)"
            ),
            BindErrorKind::Other { operation, error } => write!(f, "{operation} failed: {error}"),
            BindErrorKind::NotLocal => f.write_str(
                "no interface of this machine has this address; use one of its own (`ip address` shows them), or \
                 0.0.0.0 or [::] for all",
            ),
            BindErrorKind::SocketInUse => f.write_str(
                "another process is listening on this socket; stop it (`ss -xlp` shows it) or change the path",
            ),
            BindErrorKind::Replaced => f.write_str(
                "the socket file was replaced as soon as it was made; check who may write in its directory",
            ),
            BindErrorKind::Unsupported => f.write_str(
                "the system does not support this kind of address; is IPv6 disabled?",
            ),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            BindErrorKind::HostNotFound(error)
            | BindErrorKind::Exhausted(error)
            | BindErrorKind::Other { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// The upper end of `max_packet_bytes`.
pub const MAX_PACKET_BYTES_LIMIT: usize = 65536;

/// The requested and the granted receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveBuffer {
    /// Bytes asked for; `None` if the system's default was left.
    pub wanted: Option<usize>,
    /// Bytes granted, in the unit of the request. (The kernel reserves twice as much, for its own overhead.)
    pub granted: usize,
}

impl ReceiveBuffer {
    /// The remedy for a size below the requested one; `None` if it was granted.
    pub fn remedy(&self) -> Option<String> {
        let wanted = self.wanted.filter(|wanted| *wanted > self.granted)?;
        Some(format!(
            "receive buffer: wanted {wanted} bytes, the kernel granted {}; run `sysctl -w net.core.rmem_max={wanted}` \
             (and put net.core.rmem_max={wanted} into /etc/sysctl.d/ to keep it), or give the process CAP_NET_ADMIN",
            self.granted
        ))
    }
}

/// A socket that is bound but not read from yet. Give it to [`crate::EventLoop::add`].
///
/// Dropping it closes the socket and removes its socket file.
pub struct BoundSocket {
    pub(crate) fd: OwnedFd,
    pub(crate) address: Address,
    pub(crate) config: ListenerConfig,
    pub(crate) buffer: ReceiveBuffer,
    pub(crate) file: Option<SocketFile>,
    pub(crate) warning: Option<String>,
    /// Another process keeps it open beyond this one.
    pub(crate) kept: bool,
    /// It belongs to another process, which ends once this one runs.
    pub(crate) shared: bool,
    /// The value of its drop counter at the last count.
    pub(crate) drops_before: u32,
}

impl BoundSocket {
    /// The socket's file, if it has one.
    pub fn file_id(&self) -> Option<FileId> {
        self.file.as_ref().map(SocketFile::id)
    }

    /// From now on another process keeps it open too, for the next process: its file stays, and later packets wait in it after a drain.
    pub fn keep(&mut self) {
        (self.kept, self.shared) = (true, false);
        if let Some(file) = &mut self.file {
            file.keep();
        }
    }

    /// Another process has it until [`BoundSocket::own`].
    pub fn share(&mut self) {
        self.shared = true;
    }

    /// A shared one that no other process keeps belongs to this process alone from now on: it ends with it.
    pub fn own(&mut self) {
        if std::mem::take(&mut self.shared) {
            self.kept = false;
            if let Some(file) = &mut self.file {
                file.own();
            }
        }
    }

    /// Sets the last drop counters of another process that has read the sockets, by socket number in the kernel's tables.
    pub fn count_drops_from(&mut self, drops: &[(u64, u32)]) {
        let inode = sys::socket_inode(self.fd.as_fd()).ok();
        if let Some((_, before)) = drops.iter().find(|(known, _)| Some(*known) == inode) {
            self.drops_before = *before;
        }
    }

    /// A warning about the directory of the socket file.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The address as bound: the one asked for, with the port the kernel chose if that was 0.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The result of `receive_buffer_bytes`.
    pub fn receive_buffer(&self) -> ReceiveBuffer {
        self.buffer
    }

    /// Datagrams the kernel queues on this socket before senders have to wait; Unix datagram sockets only. A short
    /// queue costs nothing in throughput here, but senders that do not wait lose datagrams that do not fit.
    pub fn datagram_queue(&self) -> Option<usize> {
        if !matches!(self.address, Address::UnixDatagram(_)) {
            return None;
        }
        std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen")
            .ok()?
            .trim()
            .parse()
            .ok()
    }
}

impl AsFd for BoundSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Binds one socket.
pub fn bind(config: &ListenerConfig) -> Result<BoundSocket, BindError> {
    bind_socket(config).map_err(|kind| BindError {
        address: config.address.clone(),
        kind,
    })
}

/// Binds `count` sockets that share one internet address, one for each worker. For port 0 the kernel chooses a port, which all use.
///
/// The address is first bound exclusively for a moment: sockets that share a port share it with every process of the same user, so without
/// this a second agent would silently receive some of the traffic instead of failing.
///
/// # Errors
///
/// As [`bind`]. A Unix address with a `count` above 1 is a [`BindErrorKind::Unsupported`].
pub fn bind_group(config: &ListenerConfig, count: usize) -> Result<Vec<BoundSocket>, BindError> {
    let fail = |kind| BindError {
        address: config.address.clone(),
        kind,
    };
    let mut config = config.clone();
    let (Address::Udp { port, .. } | Address::Tcp { port, .. }) = config.address else {
        return match count {
            0 => Ok(Vec::new()),
            1 => Ok(vec![bind(&config)?]),
            _ => Err(fail(BindErrorKind::Unsupported)),
        };
    };
    config.sharing.reuse_port = false;
    if count == 1 {
        return Ok(vec![bind(&config)?]);
    }
    if port != 0 {
        drop(bind(&config)?);
    }
    config.sharing.reuse_port = true;
    let mut group: Vec<BoundSocket> = Vec::with_capacity(count);
    for _ in 0..count {
        if let Some(first) = group.first() {
            config.address = first.address.clone();
        }
        group.push(bind(&config)?);
    }
    Ok(group)
}

/// Binds `count` more sockets that share the internet address of one that was passed; none if that one is not shared.
///
/// # Errors
///
/// As [`bind`].
pub fn bind_beside(
    config: &ListenerConfig,
    first: &BoundSocket,
    count: usize,
) -> Result<Vec<BoundSocket>, BindError> {
    let shares = sys::get_option(first.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT).is_ok_and(|on| on != 0);
    let mut config = config.clone();
    config.address = first.address.clone();
    config.sharing.reuse_port = true;
    (0..if shares { count } else { 0 })
        .map(|_| bind(&config))
        .collect()
}

/// Whether the settings suit each other.
pub(crate) fn check(config: &ListenerConfig) -> Result<(), BindErrorKind> {
    let datagrams = !config.address.is_stream();
    if datagrams != (config.framing == Framing::Datagram) {
        return Err(BindErrorKind::FramingMismatch(config.framing));
    }
    if config.max_packet_bytes == 0 || config.max_packet_bytes > MAX_PACKET_BYTES_LIMIT {
        return Err(BindErrorKind::MaxPacketBytes(config.max_packet_bytes));
    }
    Ok(())
}

fn bind_socket(config: &ListenerConfig) -> Result<BoundSocket, BindErrorKind> {
    check(config)?;
    let datagrams = !config.address.is_stream();
    let kind = if datagrams {
        libc::SOCK_DGRAM
    } else {
        libc::SOCK_STREAM
    };
    match &config.address {
        Address::Udp { host, port } | Address::Tcp { host, port } => {
            let address = resolve(host, *port)?;
            let (fd, buffer) = bind_internet(config, &address, kind)?;
            let mut bound = config.address.clone();
            if let Address::Udp { port, .. } | Address::Tcp { port, .. } = &mut bound {
                *port = sys::local_port(fd.as_fd()).map_err(other("getsockname"))?;
            }
            Ok(BoundSocket {
                fd,
                address: bound,
                config: config.clone(),
                buffer,
                file: None,
                warning: None,
                kept: false,
                shared: false,
                drops_before: 0,
            })
        }
        Address::UnixDatagram(path) | Address::UnixStream(path) => {
            let is_abstract = config.address.is_abstract();
            let warning = if is_abstract {
                None
            } else {
                let warning = socket_file::check_directory(path, config.sticky_directory)?;
                socket_file::remove_stale(path, kind)?;
                warning
            };
            let fd = new_socket(libc::AF_UNIX, kind)?;
            let buffer = set_receive_buffer(fd.as_fd(), None)?;
            // Before binding, so that no datagram can be queued without its credentials.
            if datagrams && config.pass_credentials {
                sys::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, 1)
                    .map_err(other("SO_PASSCRED"))?;
            }
            let file = if is_abstract {
                sys::bind_unix(fd.as_fd(), path).map_err(|error| match error.raw_os_error() {
                    Some(libc::EADDRINUSE) => BindErrorKind::SocketInUse,
                    _ => BindErrorKind::Other {
                        operation: "bind",
                        error,
                    },
                })?;
                None
            } else {
                let file = socket_file::create(
                    fd.as_fd(),
                    path,
                    config.socket_mode,
                    config.socket_owner,
                    config.socket_group,
                )?;
                Some(file)
            };
            if !datagrams {
                sys::listen(fd.as_fd(), backlog(config)).map_err(other("listen"))?;
            }
            let address = config.address.clone();
            Ok(BoundSocket {
                fd,
                address,
                config: config.clone(),
                buffer,
                file,
                warning,
                kept: false,
                shared: false,
                drops_before: 0,
            })
        }
    }
}

pub(crate) fn backlog(config: &ListenerConfig) -> libc::c_int {
    config.backlog.clamp(1, i32::MAX as u32) as libc::c_int
}

pub(crate) fn resolve(host: &str, port: u16) -> Result<SocketAddr, BindErrorKind> {
    let addresses: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(BindErrorKind::HostNotFound)?
        .collect();
    // Clients that use `localhost` try IPv4 first, or only that.
    let chosen = addresses
        .iter()
        .find(|address| address.is_ipv4())
        .or(addresses.first());
    chosen
        .copied()
        .ok_or_else(|| BindErrorKind::HostNotFound(io::Error::from(io::ErrorKind::NotFound)))
}

fn bind_internet(
    config: &ListenerConfig,
    address: &SocketAddr,
    kind: libc::c_int,
) -> Result<(OwnedFd, ReceiveBuffer), BindErrorKind> {
    let domain = if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let fd = new_socket(domain, kind)?;
    let set = |level, name, value, operation| {
        sys::set_option(fd.as_fd(), level, name, value).map_err(other(operation))
    };
    if kind == libc::SOCK_STREAM {
        // Connections of a former process linger after it; they do not prevent a start.
        set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1, "SO_REUSEADDR")?;
        // Inherited by connections, so that a peer that vanished does not keep its place.
        set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1, "SO_KEEPALIVE")?;
    }
    if config.sharing.reuse_port {
        set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1, "SO_REUSEPORT")?;
    }
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        // `[::]` means every interface, for senders over IPv4 too, regardless of the system's default.
        let only = config.sharing.ipv6_only.into();
        set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only, "IPV6_V6ONLY")?;
    }
    if kind == libc::SOCK_DGRAM {
        set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1, "SO_RXQ_OVFL")?;
    }
    // Before binding and listening: connections inherit it, and the TCP window is chosen by it.
    let buffer = set_receive_buffer(fd.as_fd(), config.receive_buffer_bytes)?;
    sys::bind_inet(fd.as_fd(), address).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => BindErrorKind::PortInUse,
        Some(libc::EADDRNOTAVAIL) => BindErrorKind::NotLocal,
        Some(libc::EACCES | libc::EPERM) => BindErrorKind::PermissionDenied { operation: "bind" },
        _ => BindErrorKind::Other {
            operation: "bind",
            error,
        },
    })?;
    if kind == libc::SOCK_STREAM {
        sys::listen(fd.as_fd(), backlog(config)).map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) => BindErrorKind::PortInUse,
            _ => BindErrorKind::Other {
                operation: "listen",
                error,
            },
        })?;
    }
    Ok((fd, buffer))
}

fn new_socket(domain: libc::c_int, kind: libc::c_int) -> Result<OwnedFd, BindErrorKind> {
    sys::socket(domain, kind).map_err(|error| match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT) => BindErrorKind::Unsupported,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => BindErrorKind::Exhausted(error),
        _ => BindErrorKind::Other {
            operation: "socket",
            error,
        },
    })
}

pub(crate) fn set_receive_buffer(
    fd: BorrowedFd<'_>,
    wanted: Option<usize>,
) -> Result<ReceiveBuffer, BindErrorKind> {
    let granted = || {
        let doubled = sys::get_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).map_err(other("SO_RCVBUF"))?;
        Ok(doubled as usize / 2)
    };
    if let Some(bytes) = wanted {
        // The kernel doubles the number in 32 bits.
        let request = bytes.min(i32::MAX as usize / 2) as libc::c_int;
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, request).map_err(other("SO_RCVBUF"))?;
        if granted()? < bytes {
            // Succeeds for privileged processes only; otherwise the granted size shows it.
            let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, request);
        }
    }
    Ok(ReceiveBuffer {
        wanted,
        granted: granted()?,
    })
}

pub(crate) fn other(operation: &'static str) -> impl Fn(io::Error) -> BindErrorKind {
    move |error| BindErrorKind::Other { operation, error }
}
