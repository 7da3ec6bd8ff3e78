//! A service manager for tests: it receives the agent's state, keeps descriptors for it, and passes them to the next start.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::{Agent, PATIENCE, Starter};

pub struct Manager {
    directory: tempfile::TempDir,
    socket: UnixDatagram,
    store: Vec<(String, OwnedFd)>,
}

impl Manager {
    pub fn new() -> Manager {
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Manager {
            directory,
            socket,
            store: Vec::new(),
        }
    }

    /// Number of stored descriptors.
    pub fn kept(&self) -> usize {
        self.store.len()
    }

    pub fn path(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Takes one message, and does what it asks for.
    fn take(&mut self) -> String {
        let mut buffer = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let received = rustix::net::recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        let bytes = received.expect("the agent says nothing").bytes;
        let descriptors = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let descriptors: Vec<OwnedFd> = descriptors.collect();
        let text = String::from_utf8(buffer[..bytes].to_vec()).unwrap();
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
        let name = name.unwrap_or("stored").to_owned();
        if text.starts_with("FDSTOREREMOVE=1") {
            self.store.retain(|(known, _)| *known != name);
        } else if text.starts_with("FDSTORE=1") {
            for descriptor in descriptors {
                self.keep(&name, descriptor);
            }
        }
        text
    }

    /// It closes descriptors that it has already, as the real one does.
    fn keep(&mut self, name: &str, descriptor: OwnedFd) {
        let inode = |descriptor: &OwnedFd| {
            let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
            std::fs::read_link(link).unwrap()
        };
        let own = inode(&descriptor);
        if self.store.iter().all(|(_, known)| inode(known) != own) {
            self.store.push((name.to_owned(), descriptor));
        }
    }

    pub fn wait_for(&mut self, beginning: &str) -> String {
        loop {
            let text = self.take();
            if text.starts_with(beginning) {
                return text;
            }
        }
    }

    /// A shell that runs the agent with everything that was kept, as of descriptor 3.
    fn command(&self, environment: &[(&str, &str)]) -> (Command, Vec<OwnedFd>) {
        // Above those that the shell moves them to, and inherited.
        let duplicate = |(_, descriptor): &(String, OwnedFd)| {
            let high = rustix::io::fcntl_dupfd_cloexec(descriptor, 200).unwrap();
            rustix::io::fcntl_setfd(&high, rustix::io::FdFlags::empty()).unwrap();
            high
        };
        let high: Vec<OwnedFd> = self.store.iter().map(duplicate).collect();
        let moves: String = high
            .iter()
            .enumerate()
            .map(|(at, descriptor)| {
                let from = descriptor.as_raw_fd();
                format!("exec {}<&{from} {from}<&-; ", at + 3)
            })
            .collect();
        let names: Vec<&str> = self.store.iter().map(|(name, _)| name.as_str()).collect();
        let script = format!("{moves} export LISTEN_PID=$$; exec \"$0\" \"$@\"");
        let mut bash = Command::new("bash");
        bash.args(["-c", &script, env!("CARGO_BIN_EXE_weir")])
            .env_clear()
            .env("NOTIFY_SOCKET", self.directory.path().join("notify"))
            .env("FDSTORE", "64")
            .env("LISTEN_FDS", high.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            .envs(environment.iter().copied());
        (bash, high)
    }

    /// Starts the agent with what was kept, and waits until it is ready.
    pub fn start(&mut self, config: &str, environment: &[(&str, &str)]) -> Agent {
        let (command, inherited) = self.command(environment);
        let agent = Starter::by(command).config(config).start();
        drop(inherited);
        self.wait_for("READY=1");
        agent
    }
}
