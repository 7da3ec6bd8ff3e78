//! Addresses as every command writes them: `udp://host:port`, `tcp://host:port`, `unixgram:///path`, `unix:///path`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where a receiver listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Udp(SocketAddr),
    Tcp(SocketAddr),
    /// Unix datagram socket.
    Unixgram(PathBuf),
    /// Unix stream socket; packets carry a four-byte little-endian length in front.
    Unix(PathBuf),
}

const ALLOWED: &str = "udp://host:port, tcp://host:port, unixgram:///path or unix:///path";

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| format!("address {text:?} has no scheme; allowed: {ALLOWED}"))?;
        match scheme {
            "udp" => Ok(Address::Udp(socket_addr(text, rest)?)),
            "tcp" => Ok(Address::Tcp(socket_addr(text, rest)?)),
            "unixgram" => Ok(Address::Unixgram(absolute(text, rest)?)),
            "unix" => Ok(Address::Unix(absolute(text, rest)?)),
            _ => Err(format!(
                "address {text:?} has the unknown scheme {scheme:?}; allowed: {ALLOWED}"
            )),
        }
    }
}

fn socket_addr(text: &str, rest: &str) -> Result<SocketAddr, String> {
    rest.to_socket_addrs()
        .map_err(|error| format!("address {text:?}: {error}; allowed: host:port, port 0 picks a free one"))?
        .next()
        .ok_or_else(|| format!("address {text:?} resolves to nothing"))
}

fn absolute(text: &str, rest: &str) -> Result<PathBuf, String> {
    // The kernel's limit on sun_path, less the terminating zero.
    const PATH_BYTES_MAX: usize = 107;
    let path = Path::new(rest);
    if !path.is_absolute() {
        return Err(format!(
            "address {text:?}: the path must be absolute (three slashes)"
        ));
    }
    if rest.len() > PATH_BYTES_MAX {
        return Err(format!(
            "address {text:?}: the path is {} bytes long, a socket's path may have {PATH_BYTES_MAX}",
            rest.len()
        ));
    }
    Ok(path.to_owned())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Udp(addr) => write!(f, "udp://{addr}"),
            Address::Tcp(addr) => write!(f, "tcp://{addr}"),
            Address::Unixgram(path) => write!(f, "unixgram://{}", path.display()),
            Address::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// Removes a socket file that nobody serves any more; refuses anything else that is in the way.
pub fn clear_stale_socket(path: &Path) -> std::io::Result<()> {
    use std::io::{Error, ErrorKind};
    use std::os::unix::fs::FileTypeExt;
    use std::os::unix::net::{UnixDatagram, UnixStream};
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !metadata.file_type().is_socket() {
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            format!("{} exists and is not a socket", path.display()),
        ));
    }
    let refused = |result: std::io::Result<()>| matches!(result, Err(error) if error.kind() == ErrorKind::ConnectionRefused);
    let nobody = refused(UnixStream::connect(path).map(drop))
        || refused(UnixDatagram::unbound().and_then(|socket| socket.connect(path)));
    if !nobody {
        return Err(Error::new(
            ErrorKind::AddrInUse,
            format!("another process serves {}", path.display()),
        ));
    }
    std::fs::remove_file(path)
}

/// Removes the socket file of a Unix address when the receiver ends.
#[derive(Debug)]
pub struct SocketFile(pub Option<PathBuf>);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Parses `250ms`, `10s`, `2m`; a number alone is refused because its unit would be a guess.
pub fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    let allowed = "allowed: a number followed by ms, s or m, for example 500ms";
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .ok_or_else(|| format!("duration {text:?} has no unit; {allowed}"))?;
    let (number, unit) = text.split_at(split);
    let number: f64 = number
        .parse()
        .map_err(|_| format!("duration {text:?} has no number; {allowed}"))?;
    let seconds = match unit {
        "ms" => number / 1e3,
        "s" => number,
        "m" => number * 60.0,
        _ => {
            return Err(format!(
                "duration {text:?} has the unknown unit {unit:?}; {allowed}"
            ));
        }
    };
    std::time::Duration::try_from_secs_f64(seconds).map_err(|error| format!("duration {text:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_text_and_bad_ones_say_what_is_allowed() {
        for text in [
            "udp://127.0.0.1:0",
            "tcp://[::1]:8125",
            "unixgram:///run/a.sock",
            "unix:///run/a.sock",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for (text, hint) in [
            ("127.0.0.1:8125", "no scheme"),
            ("http://127.0.0.1:1", "unknown scheme"),
            ("udp://127.0.0.1", "host:port"),
            ("unixgram://run/a.sock", "absolute"),
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
        let long = format!("unix:///{}", "x".repeat(200));
        assert!(long.parse::<Address>().unwrap_err().contains("107"));
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("1.5s").unwrap().as_millis(), 1500);
        assert_eq!(parse_duration("250ms").unwrap().as_millis(), 250);
        for text in ["10", "s", "1h", "-1s", ""] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn stale_socket_goes_and_a_live_one_or_a_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(std::os::unix::net::UnixDatagram::bind(&path).unwrap());
        clear_stale_socket(&path).unwrap();
        assert!(!path.exists());
        let _live = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        assert_eq!(
            clear_stale_socket(&path).unwrap_err().kind(),
            std::io::ErrorKind::AddrInUse
        );
        let file = dir.path().join("f");
        std::fs::write(&file, "x").unwrap();
        assert_eq!(
            clear_stale_socket(&file).unwrap_err().kind(),
            std::io::ErrorKind::AlreadyExists
        );
    }
}
