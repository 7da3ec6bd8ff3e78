//! What the service manager is told, over the datagram socket that it names in `NOTIFY_SOCKET` (see `sd_notify(3)`).

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use weir_listener::Monotonic;

/// The manager's socket; `None` without a manager.
#[derive(Debug, Default)]
pub struct Notify {
    socket: Option<UnixDatagram>,
    /// How long the manager waits for a sign of life.
    watchdog: Option<Duration>,
    /// Descriptors that the manager keeps for the next process.
    store_max: usize,
}

/// Descriptors that go with one message.
const DESCRIPTORS_MAX: usize = 253;

impl Notify {
    /// Of this process's environment. Before files can no longer be opened. A socket that cannot be reached is named in the log,
    /// and nothing is told.
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

    /// How long the manager waits for [`Notify::alive`]; `None`: it does not.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// How many descriptors the manager keeps for the next process; none, where it does not say (before systemd 254).
    pub fn store_max(&self) -> usize {
        self.store_max
    }

    /// Has the manager keep descriptors for the next process, whatever happens to this one.
    pub fn store(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let Some(socket) = &self.socket else {
            return Err(io::Error::from(io::ErrorKind::NotConnected));
        };
        // Not watched: one that reports an error is still wanted.
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

    /// Has the manager keep no longer what it keeps under this name.
    pub fn forget(&self, name: &str) {
        self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }

    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// The configuration is read again; [`Notify::ready`] follows.
    pub fn reloading(&self) {
        let now_us = Monotonic::now().0 / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// Another process is the service's main one from now on.
    pub fn main_process(&self, pid: i32) {
        self.tell(&format!("MAINPID={pid}"));
    }

    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// One line for people.
    pub fn status(&self, line: &str) {
        self.tell(&format!("STATUS={}", line.replace('\n', " ")));
    }

    pub fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    /// A manager that does not read must not hold the agent up, so what finds no room is not told.
    fn tell(&self, what: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(what.as_bytes())
        {
            tracing::debug!("the service manager could not be notified of {what:?}: {error}");
        }
    }
}

/// A path, or an abstract name behind an `@`.
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

#[cfg(test)]
mod tests {
    use super::*;

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
