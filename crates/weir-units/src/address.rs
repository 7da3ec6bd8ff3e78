//! Addresses, written one way everywhere.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The longest path the kernel takes in a Unix socket address; one byte is for the terminating zero.
pub const UNIX_PATH_BYTES_MAX: usize = 107;

/// Whether a host is `localhost`, in letters of any case and with the dot of a whole name.
pub fn is_localhost(host: &str) -> bool {
    host.strip_suffix('.')
        .unwrap_or(host)
        .eq_ignore_ascii_case("localhost")
}

/// The addresses of `localhost`: a server on this machine may listen on either, whatever the machine's table of hosts says. `None` for
/// another host.
pub fn loopbacks(host: &str, port: u16) -> Option<[SocketAddr; 2]> {
    is_localhost(host).then(|| {
        [
            (Ipv4Addr::LOCALHOST, port).into(),
            (Ipv6Addr::LOCALHOST, port).into(),
        ]
    })
}

/// Address of a listener: `udp://host:port`, `tcp://host:port`, `unixgram:///path` or `unix:///path` (stream). `@name` instead of a path is a
/// socket in the abstract name space of Linux, which has no file.
///
/// Parsing accepts exactly the forms that printing produces: `address.to_string().parse()` gives the same address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Datagrams over IPv4 or IPv6. Port 0 lets the kernel choose.
    Udp {
        /// A name or an IP address, IPv6 without brackets.
        host: String,
        /// The port; 0 lets the kernel choose one.
        port: u16,
    },
    /// A byte stream over IPv4 or IPv6.
    Tcp {
        /// A name or an IP address, IPv6 without brackets.
        host: String,
        /// The port; 0 lets the kernel choose one.
        port: u16,
    },
    /// Datagrams over a Unix socket.
    UnixDatagram(PathBuf),
    /// A byte stream over a Unix socket.
    UnixStream(PathBuf),
}

/// Why a text is not an [`Address`]. The message has the text, the error and the allowed forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError {
    text: String,
    kind: AddressErrorKind,
}

/// The errors that an [`AddressError`] distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressErrorKind {
    /// There is no `://`.
    MissingScheme,
    /// The scheme is none of the four.
    UnknownScheme,
    /// No host before the port.
    MissingHost,
    /// No port, or nothing after the last colon.
    MissingPort,
    /// The port is not a number from 0 to 65535.
    BadPort,
    /// An IPv6 address that is not in brackets, or brackets that do not close around one.
    BadBrackets,
    /// Something that cannot be part of a host.
    BadHost,
    /// The path of a Unix socket does not start with `/`.
    RelativePath,
    /// The path of a Unix socket names a directory.
    DirectoryPath,
    /// The path of a Unix socket is longer than [`UNIX_PATH_BYTES_MAX`].
    PathTooLong,
    /// The path of a Unix socket holds a zero byte.
    ZeroByte,
}

impl AddressError {
    /// The error.
    pub fn kind(&self) -> AddressErrorKind {
        self.kind
    }
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "address {:?}: ", self.text)?;
        match self.kind {
            AddressErrorKind::MissingScheme => write!(
                f,
                "no scheme; write udp://host:port, tcp://host:port, unixgram:///path or unix:///path"
            ),
            AddressErrorKind::UnknownScheme => write!(
                f,
                "unknown scheme; allowed are udp://, tcp://, unixgram:// (datagrams) and unix:// (stream)"
            ),
            AddressErrorKind::MissingHost => {
                write!(
                    f,
                    "no host before the port; 0.0.0.0 or [::] stand for every interface"
                )
            }
            AddressErrorKind::MissingPort => {
                write!(f, "no port; write host:port, for example 127.0.0.1:8125")
            }
            AddressErrorKind::BadPort => write!(f, "the port is not a number from 0 to 65535"),
            AddressErrorKind::BadBrackets => {
                write!(
                    f,
                    "write an IPv6 address in brackets, for example udp://[::1]:8125"
                )
            }
            AddressErrorKind::BadHost => write!(f, "the host may not contain blanks or any of / ? # @"),
            AddressErrorKind::RelativePath => write!(
                f,
                "the path of a Unix socket must be absolute: it starts with a slash, for example unixgram:///run/weir/dsd.socket"
            ),
            AddressErrorKind::DirectoryPath => {
                write!(
                    f,
                    "the path of a Unix socket names a file, it may not end with a slash"
                )
            }
            AddressErrorKind::PathTooLong => write!(
                f,
                "the path of a Unix socket may have {UNIX_PATH_BYTES_MAX} bytes at most, the kernel's limit"
            ),
            AddressErrorKind::ZeroByte => write!(f, "the path holds a zero byte"),
        }
    }
}

impl std::error::Error for AddressError {}

impl Address {
    /// The path of a Unix socket, if this is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Address::UnixDatagram(path) | Address::UnixStream(path) => Some(path),
            Address::Udp { .. } | Address::Tcp { .. } => None,
        }
    }

    /// Whether it is a Unix socket without a file.
    pub fn is_abstract(&self) -> bool {
        self.path().is_some_and(is_abstract)
    }

    /// True for the byte streams, which need a framing.
    pub fn is_stream(&self) -> bool {
        matches!(self, Address::Tcp { .. } | Address::UnixStream(_))
    }

    /// The word for the transport in counters and messages: `udp`, `tcp`, `unixgram` or `unix`.
    pub fn transport(&self) -> &'static str {
        match self {
            Address::Udp { .. } => "udp",
            Address::Tcp { .. } => "tcp",
            Address::UnixDatagram(_) => "unixgram",
            Address::UnixStream(_) => "unix",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Udp { host, port } | Address::Tcp { host, port } => {
                let scheme = self.transport();
                if host.contains(':') {
                    write!(f, "{scheme}://[{host}]:{port}")
                } else {
                    write!(f, "{scheme}://{host}:{port}")
                }
            }
            Address::UnixDatagram(path) | Address::UnixStream(path) => {
                write!(f, "{}://{}", self.transport(), path.display())
            }
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let fail = |kind| AddressError {
            text: text.to_owned(),
            kind,
        };
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| fail(AddressErrorKind::MissingScheme))?;
        match scheme {
            "udp" => host_and_port(rest)
                .map(|(host, port)| Address::Udp { host, port })
                .map_err(fail),
            "tcp" => host_and_port(rest)
                .map(|(host, port)| Address::Tcp { host, port })
                .map_err(fail),
            "unixgram" => socket_path(rest).map(Address::UnixDatagram).map_err(fail),
            "unix" => socket_path(rest).map(Address::UnixStream).map_err(fail),
            _ => Err(fail(AddressErrorKind::UnknownScheme)),
        }
    }
}

/// Whether the path of a Unix socket stands for one without a file.
pub fn is_abstract(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().starts_with(b"@")
}

fn host_and_port(text: &str) -> Result<(String, u16), AddressErrorKind> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(AddressErrorKind::BadBrackets)?;
        // A zone (`%eth0`) is allowed after the address and left to the resolver.
        let plain = host.split('%').next().unwrap_or(host);
        if plain.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(AddressErrorKind::BadBrackets);
        }
        (host, rest.strip_prefix(':').ok_or(AddressErrorKind::MissingPort)?)
    } else {
        let (host, port) = text.rsplit_once(':').ok_or(if text.is_empty() {
            AddressErrorKind::MissingHost
        } else {
            AddressErrorKind::MissingPort
        })?;
        if host.contains([':', '[', ']']) {
            return Err(AddressErrorKind::BadBrackets);
        }
        (host, port)
    };
    if host.is_empty() {
        return Err(AddressErrorKind::MissingHost);
    }
    if host.contains(|c: char| c.is_whitespace() || c.is_control() || "/?#@".contains(c)) {
        return Err(AddressErrorKind::BadHost);
    }
    if port.is_empty() {
        return Err(AddressErrorKind::MissingPort);
    }
    // `u16::from_str` takes a leading plus, which no one else's address parser does.
    if !port.bytes().all(|b| b.is_ascii_digit()) {
        return Err(AddressErrorKind::BadPort);
    }
    Ok((
        host.to_owned(),
        port.parse().map_err(|_| AddressErrorKind::BadPort)?,
    ))
}

fn socket_path(text: &str) -> Result<PathBuf, AddressErrorKind> {
    let is_abstract = text.len() > 1 && text.starts_with('@');
    if !text.starts_with('/') && !is_abstract {
        return Err(AddressErrorKind::RelativePath);
    }
    if text.ends_with('/') && !is_abstract {
        return Err(AddressErrorKind::DirectoryPath);
    }
    if text.contains('\0') {
        return Err(AddressErrorKind::ZeroByte);
    }
    if text.len() > UNIX_PATH_BYTES_MAX {
        return Err(AddressErrorKind::PathTooLong);
    }
    Ok(PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str) {
        let address: Address = text.parse().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(address.to_string(), text);
    }

    #[track_caller]
    fn check_kind(text: &str, kind: AddressErrorKind) {
        let error = text.parse::<Address>().expect_err(text);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().starts_with("address "), "{error}");
    }

    #[test]
    fn what_is_printed_parses_to_the_same() {
        check("udp://127.0.0.1:8125");
        check("udp://[::1]:8125");
        check("udp://[fe80::1%lo]:8125");
        check("udp://localhost:0");
        check("tcp://0.0.0.0:8125");
        check("unixgram://@statsd");
        check("unix://@a/");
        check_kind("unixgram://@", AddressErrorKind::RelativePath);
        check("unixgram:///run/weir/dsd.socket");
        check("unix:///a b");
    }

    #[test]
    fn localhost_is_an_address_of_each_family() {
        let found = loopbacks("LocalHost.", 7)
            .unwrap()
            .map(|address| address.to_string());
        assert_eq!(found, ["127.0.0.1:7", "[::1]:7"]);
        for other in ["", "localhost..", "localhost.example", "127.0.0.1"] {
            assert_eq!(loopbacks(other, 7), None, "{other}");
        }
    }

    #[test]
    fn each_error_has_its_name() {
        check_kind("127.0.0.1:8125", AddressErrorKind::MissingScheme);
        check_kind("", AddressErrorKind::MissingScheme);
        check_kind("unixstream:///x", AddressErrorKind::UnknownScheme);
        check_kind("UDP://localhost:1", AddressErrorKind::UnknownScheme);
        check_kind("udp://", AddressErrorKind::MissingHost);
        check_kind("udp://:8125", AddressErrorKind::MissingHost);
        check_kind("udp://localhost", AddressErrorKind::MissingPort);
        check_kind("udp://localhost:", AddressErrorKind::MissingPort);
        check_kind("udp://[::1]", AddressErrorKind::MissingPort);
        check_kind("udp://localhost:65536", AddressErrorKind::BadPort);
        check_kind("udp://localhost:+1", AddressErrorKind::BadPort);
        check_kind("udp://localhost:-1", AddressErrorKind::BadPort);
        check_kind("udp://::1:8125", AddressErrorKind::BadBrackets);
        check_kind("udp://[localhost]:8125", AddressErrorKind::BadBrackets);
        check_kind("udp://[::1:8125", AddressErrorKind::BadBrackets);
        check_kind("tcp://a b:1", AddressErrorKind::BadHost);
        check_kind("tcp://user@host:1", AddressErrorKind::BadHost);
        check_kind("unixgram://relative", AddressErrorKind::RelativePath);
        check_kind("unixgram://", AddressErrorKind::RelativePath);
        check_kind("unix:///run/", AddressErrorKind::DirectoryPath);
        check_kind("unix:///a\0b", AddressErrorKind::ZeroByte);
        check_kind(
            &format!("unix:///{}", "x".repeat(107)),
            AddressErrorKind::PathTooLong,
        );
        check(&format!("unix:///{}", "x".repeat(106)));
    }
}
