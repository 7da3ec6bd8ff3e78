//! Addresses of receivers, and cleanup of Unix socket files.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
pub use weir_units::Address;

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error(transparent)]
    Address(#[from] weir_units::AddressError),
    /// The host has no address.
    #[error("address {text:?}: {error}")]
    Host { text: String, error: io::Error },
}

/// Parses an address and resolves its host, so that a wrong name fails at the command line.
pub fn parse_resolved(text: &str) -> Result<Address, ResolveError> {
    let address: Address = text.parse()?;
    match &address {
        Address::Udp { host, port } | Address::Tcp { host, port } => resolve(host, *port)
            .map(|found| bound(&address, found))
            .map_err(|error| ResolveError::Host {
                text: text.to_owned(),
                error,
            }),
        Address::UnixDatagram(_) | Address::UnixStream(_) => Ok(address),
    }
}

/// The first address of a host; of `localhost` that of IPv4, where agents listen unless they are told otherwise.
pub fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    if let Some([first, _]) = weir_units::loopbacks(host, port) {
        return Ok(first);
    }
    (host, port)
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{host} resolves to nothing")))
}

/// The address of a bound socket: port 0 is replaced by the actual port.
pub fn bound(address: &Address, socket: SocketAddr) -> Address {
    let (host, port) = (socket.ip().to_string(), socket.port());
    match address {
        Address::Tcp { .. } => Address::Tcp { host, port },
        _ => Address::Udp { host, port },
    }
}

/// Removes a stale socket file. Fails if anything else is in the way.
pub fn clear_stale_socket(path: &Path) -> io::Result<()> {
    use std::io::{Error, ErrorKind};
    use std::os::unix::fs::FileTypeExt;
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !metadata.file_type().is_socket() {
        let what = format!("{} exists and is not a socket", path.display());
        return Err(Error::new(ErrorKind::AlreadyExists, what));
    }
    if is_served(path) {
        let what = format!("another process serves {}", path.display());
        return Err(Error::new(ErrorKind::AddrInUse, what));
    }
    std::fs::remove_file(path)
}

fn is_served(path: &Path) -> bool {
    use std::os::unix::net::{UnixDatagram, UnixStream};
    let refused = |result: io::Result<()>| matches!(result, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused);
    !refused(UnixStream::connect(path).map(drop))
        && !refused(UnixDatagram::unbound().and_then(|socket| socket.connect(path)))
}

/// Removes the file of a Unix socket when its receiver ends.
#[derive(Debug)]
pub struct SocketFile(pub PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_resolved_and_bad_addresses_are_errors_with_the_reason() {
        let address = parse_resolved("tcp://localhost:8125").unwrap();
        assert_eq!(address.to_string(), "tcp://127.0.0.1:8125");
        for text in [
            "udp://127.0.0.1:0",
            "tcp://[::1]:8125",
            "unixgram:///run/a.sock",
            "unix:///a",
        ] {
            assert_eq!(parse_resolved(text).unwrap().to_string(), text);
        }
        for text in [
            "127.0.0.1:8125",
            "udp://127.0.0.1",
            "unix://a",
            "udp://no.such.host.invalid:1",
        ] {
            let error = parse_resolved(text).unwrap_err().to_string();
            assert!(error.contains(text), "{text}: {error}");
        }
    }

    #[test]
    fn a_stale_socket_is_removed_and_a_live_one_or_a_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(std::os::unix::net::UnixDatagram::bind(&path).unwrap());
        clear_stale_socket(&path).unwrap();
        assert!(!path.exists());
        let _live = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        let error = clear_stale_socket(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let file = dir.path().join("f");
        std::fs::write(&file, "x").unwrap();
        let error = clear_stale_socket(&file).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    }
}
