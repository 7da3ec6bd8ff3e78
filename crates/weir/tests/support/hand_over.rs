//! The messages of a hand-over, for tests that speak for one of the processes or choose when one of them ends.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::PATIENCE;

pub const PROTOCOL: u32 = 3;

pub const HELLO: u8 = 1;
pub const GREETING: u8 = 2;
pub const REFUSED: u8 = 3;
pub const SOCKETS: u8 = 4;
pub const ADMIN: u8 = 5;
pub const SOCKETS_END: u8 = 6;
pub const BEGIN: u8 = 7;
pub const AGAIN: u8 = 8;
pub const STATE: u8 = 10;
pub const END: u8 = 11;
pub const COMMIT: u8 = 12;
pub const GO: u8 = 13;
pub const RUNNING: u8 = 14;

/// The socket in a state directory.
pub fn socket(state: &str) -> PathBuf {
    Path::new(state).join("hand-over")
}

/// The number of sockets with this path: the listening one, and each connection to it, accepted or not.
pub fn sockets_at(path: &Path) -> usize {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let path = path.to_str().unwrap();
    table.lines().filter(|line| line.ends_with(path)).count()
}

/// A message with its descriptors.
pub struct Message {
    pub tag: u8,
    pub body: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// One end of a connection.
pub struct Peer {
    stream: UnixStream,
}

impl Peer {
    /// In the place of a new process.
    pub fn connect(state: &str) -> Peer {
        Peer::new(UnixStream::connect(socket(state)).unwrap())
    }

    pub fn new(stream: UnixStream) -> Peer {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Peer { stream }
    }

    pub fn say(&mut self, tag: u8, body: &str) {
        let head = [&[tag][..], &(body.len() as u64).to_le_bytes()].concat();
        self.stream.write_all(&[&head, body.as_bytes()].concat()).unwrap();
    }

    /// The first bytes of a message.
    pub fn say_some(&mut self, tag: u8) {
        self.stream.write_all(&[tag, 0, 0]).unwrap();
    }

    pub fn hello(&mut self, protocol: u32, state: u8) {
        self.say(
            HELLO,
            &format!(
                "{{\"weir\": \"9.9\", \"protocol\": {protocol}, \"state\": {state}, \"asks\": \"take_over\"}}"
            ),
        );
    }

    /// Reads up to a message, and returns what it says.
    pub fn until(&mut self, wanted: u8) -> String {
        loop {
            let message = self.receive().unwrap();
            if message.tag == wanted {
                return String::from_utf8_lossy(&message.body).into_owned();
            }
        }
    }

    /// The next message; `None` if the other end is closed.
    pub fn receive(&mut self) -> Option<Message> {
        let mut head = [0; 9];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut head)];
        let received =
            rustix::net::recvmsg(&self.stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        if received.bytes == 0 {
            return None;
        }
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(some) => Some(some),
            _ => None,
        });
        let descriptors = descriptors.flatten().collect();
        self.stream.read_exact(&mut head[received.bytes..]).unwrap();
        let [tag, length @ ..] = head;
        let mut body = vec![0; u64::from_le_bytes(length) as usize];
        self.stream.read_exact(&mut body).unwrap();
        Some(Message {
            tag,
            body,
            descriptors,
        })
    }

    pub fn send(&mut self, message: &Message) {
        let mut head = [message.tag; 9];
        head[1..].copy_from_slice(&(message.body.len() as u64).to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = message.descriptors.iter().map(|fd| fd.as_fd()).collect();
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        }
        let sent = rustix::net::sendmsg(
            &self.stream,
            &[IoSlice::new(&head)],
            &mut control,
            SendFlags::NOSIGNAL,
        );
        assert_eq!(sent.unwrap(), head.len());
        self.stream.write_all(&message.body).unwrap();
    }
}

/// Takes the place of the running process's socket.
pub struct Between {
    listener: UnixListener,
    path: PathBuf,
    real: PathBuf,
}

/// A connection of a new process, and the one to the running process.
pub struct Link {
    pub new: Peer,
    pub old: Peer,
}

impl Between {
    pub fn processes(state: &str) -> Between {
        let path = socket(state);
        let real = path.with_extension("real");
        std::fs::rename(&path, &real).unwrap();
        Between {
            listener: UnixListener::bind(&path).unwrap(),
            path,
            real,
        }
    }

    /// Waits for a new process. Others find the running process again.
    pub fn accept(self) -> Link {
        let (new, _) = self.listener.accept().unwrap();
        std::fs::rename(&self.real, &self.path).unwrap();
        Link {
            new: Peer::new(new),
            old: Peer::new(UnixStream::connect(&self.path).unwrap()),
        }
    }
}

impl Link {
    /// Passes messages on, up to the first with this tag, which is returned.
    pub fn pass_until(&mut self, tag: u8) -> Message {
        loop {
            let mut polled = [
                PollFd::new(&self.new.stream, PollFlags::IN),
                PollFd::new(&self.old.stream, PollFlags::IN),
            ];
            rustix::event::poll(&mut polled, None).unwrap();
            let is_new = !polled[0].revents().is_empty();
            let (from, to) = match is_new {
                true => (&mut self.new, &mut self.old),
                false => (&mut self.old, &mut self.new),
            };
            let message = from.receive().expect("a message, not an end");
            if message.tag == tag {
                return message;
            }
            to.send(&message);
        }
    }
}
