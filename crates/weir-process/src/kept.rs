//! Sockets that outlive a process: opened by the service manager, or stored there for the next process (see `sd_listen_fds(3)` and
//! `FDSTORE=1` in `sd_notify(3)`).

use std::os::fd::{AsFd as _, OwnedFd};

use weir_ingest::ListenerSettings;
use weir_listener::{Address, BoundSocket, ListenerConfig, PassedSocket};

use crate::listeners;
use weir_agent::hand_over::HandedListener;
use weir_system::failure::Failure;
use weir_system::notify::Notify;

/// The first descriptor from a manager.
const FIRST: i32 = 3;

/// More than any manager passes.
const PASSED_MAX: i32 = 4096;

/// Prefix of the names of sockets that weir stored with the manager.
const OWN_NAME: &str = "weir-";

/// Sockets without a listener yet.
#[derive(Debug, Default)]
pub struct PassedSockets {
    sockets: Vec<NamedSocket>,
}

#[derive(Debug)]
struct NamedSocket {
    name: String,
    socket: PassedSocket,
    from: SocketSource,
}

/// Source of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketSource {
    /// A socket unit of the service manager.
    Unit,
    /// Stored with the service manager by an earlier process.
    Store,
    /// The previous process, which may have it from a unit.
    Process { of_unit: bool },
}

/// The sockets that a listener takes over.
pub struct Adopted {
    pub socket: BoundSocket,
    /// From a socket unit, which the manager keeps anyway.
    pub of_unit: bool,
}

impl Adopted {
    pub fn own(socket: BoundSocket) -> Adopted {
        Adopted {
            socket,
            of_unit: false,
        }
    }
}

impl PassedSockets {
    /// The descriptors that this process was started with. Call once, before anything opens a descriptor that may take one of their
    /// numbers.
    pub fn of_environment() -> Result<PassedSockets, Failure> {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let is_meant = variable("LISTEN_PID") == std::process::id().to_string();
        let count = variable("LISTEN_FDS");
        if !is_meant || count.is_empty() {
            return Ok(PassedSockets::default());
        }
        let number = count
            .parse()
            .ok()
            .filter(|number| (0..=PASSED_MAX).contains(number));
        let number: i32 = number.ok_or_else(|| {
            Failure::usage(format!(
                "LISTEN_FDS: {count:?} is not a number of descriptors from 0 to {PASSED_MAX}"
            ))
        })?;
        let names = variable("LISTEN_FDNAMES");
        let mut names = names.split(':');
        let mut passed = PassedSockets::default();
        for descriptor in FIRST..FIRST + number {
            let name = names.next().unwrap_or_default();
            let taken = weir_system::sys::take_descriptor(descriptor);
            let taken = taken.map_err(|error| {
                Failure::runtime(format!(
                    "descriptor {descriptor}, which LISTEN_FDS says was passed: {error}"
                ))
            })?;
            let from = if name.starts_with(OWN_NAME) {
                SocketSource::Store
            } else {
                SocketSource::Unit
            };
            passed.add(name, taken, from);
        }
        Ok(passed)
    }

    /// Adds a listening socket of another process.
    pub fn add_of_process(&mut self, of: &HandedListener, descriptor: OwnedFd) {
        let from = SocketSource::Process { of_unit: of.of_unit };
        self.add(&stored_name(&of.address), descriptor, from);
    }

    /// Adds the sockets that are not there already.
    pub fn extend(&mut self, more: PassedSockets) {
        for named in more.sockets {
            self.push(named);
        }
    }

    fn push(&mut self, new: NamedSocket) {
        let mut known = self.sockets.iter();
        if known.all(|known| known.socket.inode() != new.socket.inode()) {
            self.sockets.push(new);
        }
    }

    /// Whether another process passed them, which may have to continue with them.
    pub fn are_of_process(&self) -> bool {
        let is_of_process = |named: &NamedSocket| matches!(named.from, SocketSource::Process { .. });
        self.sockets.iter().any(is_of_process)
    }

    /// Closes other descriptors at once; duplicates are dropped.
    fn add(&mut self, name: &str, descriptor: OwnedFd, from: SocketSource) {
        match PassedSocket::new(descriptor) {
            Err(error) => {
                tracing::warn!("the descriptor passed under the name {name:?} is closed: {error}");
            }
            Ok(socket) => self.push(NamedSocket {
                name: name.to_owned(),
                socket,
                from,
            }),
        }
    }

    /// The sockets of a listener, at most `most`.
    pub fn adopt(
        &mut self,
        (listener, reading): (&ListenerConfig, &ListenerSettings),
        most: usize,
    ) -> Result<Vec<Adopted>, Failure> {
        let address = &listener.address;
        let key = key(address, reading);
        self.check_names(listener, key)?;
        let shown = listeners::shown(address, reading);
        let is_at = |named: &NamedSocket| named.is_stored_for(&shown) || named.socket.is_at(address);
        let mut adopted = self.adopt_those(listener, most, is_at)?;
        if adopted.is_empty() {
            adopted = self.adopt_those(listener, most, |named| named.name == key)?;
        }
        Ok(adopted)
    }

    fn adopt_those(
        &mut self,
        listener: &ListenerConfig,
        most: usize,
        fits: impl Fn(&NamedSocket) -> bool,
    ) -> Result<Vec<Adopted>, Failure> {
        let mut adopted = Vec::new();
        let is_wanted = |named: &NamedSocket| named.socket.is_like(&listener.address) && fits(named);
        while adopted.len() < most
            && let Some(at) = self.sockets.iter().position(is_wanted)
        {
            let NamedSocket { socket, from, .. } = self.sockets.remove(at);
            let bound = socket.address().clone();
            match weir_listener::adopt(listener, socket) {
                Ok(mut socket) => {
                    let of_unit =
                        matches!(from, SocketSource::Unit | SocketSource::Process { of_unit: true });
                    if from == (SocketSource::Process { of_unit: false }) {
                        socket.share();
                    }
                    adopted.push(Adopted { socket, of_unit });
                }
                // A stored socket is created again; that of a unit is not ours to replace.
                Err(error) if from == SocketSource::Store => {
                    tracing::warn!(
                        "the socket {bound}, which the service manager kept, cannot be used: {error}"
                    );
                }
                Err(error) => {
                    return Err(Failure::runtime(format!(
                        "passed by the service manager: {error}"
                    )));
                }
            }
        }
        Ok(adopted)
    }

    /// Checks sockets whose names select a listener.
    fn check_names(&self, listener: &ListenerConfig, key: &str) -> Result<(), Failure> {
        let wrong = |named: &&NamedSocket| named.name == key && !named.socket.is_like(&listener.address);
        match self.sockets.iter().find(wrong) {
            None => Ok(()),
            Some(named) => Err(Failure::usage(format!(
                "the service manager passed {} under the name {key}, which cannot receive {}; FileDescriptorName= names the \
                 listener: udp, uds (Unix datagrams), uds_stream, tcp, http or http_uds",
                named.socket.address(),
                listener.address
            ))),
        }
    }

    /// Closes sockets without a listener, and removes them from the manager's store.
    pub fn close_the_rest(self, notify: &Notify) {
        for NamedSocket { name, socket, from } in self.sockets {
            let address = socket.address();
            match from {
                SocketSource::Store => {
                    notify.forget(&name);
                    tracing::warn!(
                        "the socket {address}, which the service manager kept, is closed: no listener is configured for it; the packets in it \
                         are lost"
                    );
                }
                SocketSource::Process { .. } => tracing::warn!(
                    "the socket {address} of the previous process is not used: no listener is configured for it"
                ),
                SocketSource::Unit => tracing::warn!(
                    "the service manager passed the socket {address} (FileDescriptorName={name}), and no listener is configured for \
                     it: it is closed"
                ),
            }
        }
    }
}

impl NamedSocket {
    fn is_stored_for(&self, address: &str) -> bool {
        self.from != SocketSource::Unit && self.name == stored_name(address)
    }
}

/// The setting of a listener, which is used in the names of sockets.
fn key(address: &Address, reading: &ListenerSettings) -> &'static str {
    match address {
        Address::Tcp { .. } if reading.takes_columns => "http",
        Address::UnixStream(_) if reading.takes_columns => "http_uds",
        Address::Udp { .. } => "udp",
        Address::Tcp { .. } => "tcp",
        Address::UnixDatagram(_) => "uds",
        Address::UnixStream(_) => "uds_stream",
    }
}

/// Names must be ASCII without colons.
fn stored_name(address: &str) -> String {
    format!("{OWN_NAME}{:08x}", crc32fast::hash(address.as_bytes()))
}

/// Stores the sockets of a listener with the manager, if it supports that and does not have them anyway.
pub fn keep(notify: &Notify, configured: &str, sockets: &mut [&mut BoundSocket]) {
    if sockets.is_empty() {
        return;
    }
    let descriptors: Vec<_> = sockets.iter().map(|socket| socket.as_fd()).collect();
    let kept = notify.store(&stored_name(configured), &descriptors);
    if let Err(error) = kept {
        tracing::warn!("{configured}: the service manager cannot keep the socket over a restart: {error}");
        return;
    }
    sockets.iter_mut().for_each(|socket| socket.keep());
}
