//! The service manager: notifications over the datagram socket in `NOTIFY_SOCKET` (see `sd_notify(3)`), and the admin address in the
//! service's runtime directory.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use weir_config::Role;
use weir_listener::Monotonic;

/// The manager's socket; `None` without a manager.
#[derive(Debug, Default)]
pub struct Notify {
    socket: Option<UnixDatagram>,
    /// The manager's timeout for signs of life.
    watchdog: Option<Duration>,
    /// Maximum descriptors that the manager stores for the next process.
    store_max: usize,
}

/// Maximum descriptors in one message.
const DESCRIPTORS_MAX: usize = 253;

impl Notify {
    /// From the environment of this process. Call before the sandbox restricts files. An unreachable socket is logged, and nothing is sent.
    pub fn of_environment() -> Notify {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Notify::default();
        };
        match connect(&name) {
            Ok(socket) => Notify {
                socket: Some(socket),
                watchdog: watchdog(
                    std::env::var("WATCHDOG_USEC").ok().as_deref(),
                    std::env::var("WATCHDOG_PID").ok().as_deref(),
                ),
                store_max: store_max(std::env::var("FDSTORE").ok().as_deref()),
            },
            Err(error) => {
                let name = name.display();
                tracing::warn!(
                    "NOTIFY_SOCKET: {name} cannot be reached, so the service manager gets no notifications: {error}"
                );
                Notify::default()
            }
        }
    }

    pub fn is_wanted(&self) -> bool {
        self.socket.is_some()
    }

    /// The manager's timeout for [`Notify::alive`]; `None` without a watchdog.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Number of descriptors that the manager stores for the next process; zero if unknown (before systemd 254).
    pub fn store_max(&self) -> usize {
        self.store_max
    }

    /// Stores descriptors with the manager for the next process.
    pub fn store(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let Some(socket) = &self.socket else {
            return Err(io::Error::from(io::ErrorKind::NotConnected));
        };
        // Not polled: a descriptor with an error is still wanted.
        let text = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}");
        for some in descriptors.chunks(DESCRIPTORS_MAX) {
            let mut space =
                [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(some)) {
                return Err(io::Error::from(io::ErrorKind::OutOfMemory));
            }
            let text = [io::IoSlice::new(text.as_bytes())];
            rustix::net::sendmsg(socket, &text, &mut control, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// Removes the descriptors with this name from the manager's store.
    pub fn forget(&self, name: &str) {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }

    pub fn ready(&self) {
        self.send("READY=1");
    }

    /// Reports a reload; [`Notify::ready`] follows.
    pub fn reloading(&self) {
        let now_us = Monotonic::now().0 / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// Reports another process as the service's main process.
    pub fn main_process(&self, pid: i32) {
        self.send(&format!("MAINPID={pid}"));
    }

    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Sets the status line.
    pub fn status(&self, line: &str) {
        self.send(&format!("STATUS={}", line.replace('\n', " ")));
    }

    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Never blocks: if the manager does not read, the message is lost.
    fn send(&self, what: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(what.as_bytes())
        {
            tracing::debug!("the service manager could not be notified of {what:?}: {error}");
        }
    }
}

/// A path, or an abstract name after `@`.
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::Error::other("neither a path nor an abstract name")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn store_max(text: Option<&str>) -> usize {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn watchdog(microseconds: Option<&str>, pid: Option<&str>) -> Option<Duration> {
    let is_meant = pid.is_none_or(|pid| pid == std::process::id().to_string());
    let microseconds = microseconds?.parse().ok().filter(|number| *number > 0)?;
    is_meant.then(|| Duration::from_micros(microseconds))
}

/// The file with the admin address, in the runtime directory of a service.
const ADMIN: &str = "admin";

/// The first runtime directory that the manager gave this process.
fn runtime_directory() -> Option<PathBuf> {
    let given = std::env::var_os("RUNTIME_DIRECTORY")?;
    let first = given.as_bytes().split(|byte| *byte == b':').next()?;
    (!first.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(first)))
}

/// Writes the admin address for the commands of every user, who need not be allowed to read the service's configuration and environment.
/// Call before the sandbox restricts files.
pub fn publish_admin(address: Option<std::net::SocketAddr>) {
    let Some(directory) = runtime_directory() else {
        return;
    };
    let path = directory.join(ADMIN);
    let published = match address {
        Some(address) => write_for_all(&directory, &path, &format!("{}\n", on_this_machine(address))),
        None => std::fs::remove_file(&path),
    };
    if let Err(error) = published
        && (address.is_some() || error.kind() != io::ErrorKind::NotFound)
    {
        tracing::warn!(
            "{}: commands do not find the admin address there: {error}",
            path.display()
        );
    }
}

/// Not readable in parts; the service's umask may be for its own user.
fn write_for_all(directory: &Path, path: &Path, text: &str) -> io::Result<()> {
    let new = directory.join("admin.new");
    std::fs::write(&new, text)?;
    std::fs::set_permissions(&new, Permissions::from_mode(0o644))?;
    std::fs::rename(&new, path)
}

/// An address that stands for every interface is none to ask at.
fn on_this_machine(mut address: std::net::SocketAddr) -> std::net::SocketAddr {
    match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// The admin address of this machine's service, if it has written one.
pub fn published_admin(role: Role) -> Option<std::net::SocketAddr> {
    let of_service = match role {
        Role::Agent => "/run/weir",
        Role::Merge => "/run/weir-merge",
    };
    let directory = runtime_directory().unwrap_or_else(|| PathBuf::from(of_service));
    let written = std::fs::read_to_string(directory.join(ADMIN)).ok()?;
    written.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_address_of_every_interface_is_asked_on_this_machine() {
        for (bound, asked) in [
            ("127.0.0.1:9127", "127.0.0.1:9127"),
            ("10.1.2.3:9127", "10.1.2.3:9127"),
            ("0.0.0.0:9127", "127.0.0.1:9127"),
            ("[::]:9127", "[::1]:9127"),
            ("[::1]:9127", "[::1]:9127"),
        ] {
            let address = on_this_machine(bound.parse().unwrap());
            assert_eq!(address.to_string(), asked);
        }
    }

    #[test]
    fn the_watchdog_is_for_the_process_that_it_names() {
        let own = std::process::id().to_string();
        let check = |microseconds, pid, expected| assert_eq!(watchdog(microseconds, pid), expected);
        check(Some("2000000"), None, Some(Duration::from_secs(2)));
        check(Some("2000000"), Some(own.as_str()), Some(Duration::from_secs(2)));
        check(Some("2000000"), Some("1"), None);
        check(Some("0"), None, None);
        check(Some("soon"), None, None);
        check(None, None, None);
    }
}
