//! Messages with descriptors between two processes, over a Unix stream.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Descriptors that go with one message; the kernel's limit.
pub const DESCRIPTORS_MAX: usize = 200;

/// Length of a message's header: its tag and the length of its body.
const HEAD: usize = 9;

/// One end. Sending and receiving a message have a time limit.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    /// Maximum size of a body.
    bytes_max: u64,
    /// Held while a message is written: several threads send.
    sending: Mutex<()>,
}

/// A received message.
#[derive(Debug)]
pub struct ChannelMessage {
    pub tag: u8,
    pub body: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

impl Channel {
    pub fn new(stream: UnixStream, patience: Duration, bytes_max: u64) -> io::Result<Channel> {
        let channel = Channel {
            stream,
            bytes_max,
            sending: Mutex::default(),
        };
        channel.set_patience(patience)?;
        Ok(channel)
    }

    /// Sets the time limit of one message.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(patience))?;
        self.stream.set_write_timeout(Some(patience))
    }

    /// The process at the other end.
    pub fn peer(&self) -> io::Result<Peer> {
        let peer = rustix::net::sockopt::socket_peercred(&self.stream)?;
        Ok(Peer {
            pid: peer.pid.as_raw_nonzero().get(),
            user: peer.uid.as_raw(),
        })
    }

    pub fn send(&self, tag: u8, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut head = [tag; HEAD];
        head[1..].copy_from_slice(&(body.len() as u64).to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        let _alone = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = rustix::net::sendmsg(
            &self.stream,
            &[IoSlice::new(&head)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        (&self.stream).write_all(&head[sent..])?;
        (&self.stream).write_all(body)
    }

    pub fn send_json(&self, tag: u8, body: &impl Serialize) -> io::Result<()> {
        self.send(tag, &serde_json::to_vec(body).map_err(io::Error::other)?, &[])
    }

    /// The next message.
    pub fn receive(&self) -> io::Result<ChannelMessage> {
        let mut head = [0; HEAD];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut head)];
        let received = rustix::net::recvmsg(&self.stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if received.bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended"));
        }
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                descriptors.extend(some);
            }
        }
        (&self.stream).read_exact(&mut head[received.bytes..])?;
        let [tag, length @ ..] = head;
        let length = u64::from_le_bytes(length);
        if length > self.bytes_max {
            return Err(io::Error::other(format!(
                "a message of {length} bytes; {} are allowed",
                self.bytes_max
            )));
        }
        let mut body = Vec::new();
        (&self.stream).take(length).read_to_end(&mut body)?;
        if body.len() as u64 != length {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended"));
        }
        Ok(ChannelMessage {
            tag,
            body,
            descriptors,
        })
    }

    /// The next message, which must have this tag.
    pub fn expect(&self, tag: u8) -> io::Result<ChannelMessage> {
        let message = self.receive()?;
        match message.tag {
            super::REFUSED => Err(io::Error::other(
                String::from_utf8_lossy(&message.body).into_owned(),
            )),
            found if found == tag => Ok(message),
            found => Err(io::Error::other(format!("message {found} instead of {tag}"))),
        }
    }
}

/// The process at the other end, from the kernel's credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub pid: i32,
    pub user: u32,
}

impl Peer {
    /// The same user, or root.
    pub fn is_trusted(self) -> bool {
        self.user == 0 || self.user == rustix::process::geteuid().as_raw()
    }
}

impl ChannelMessage {
    pub fn json<T: DeserializeOwned>(&self) -> io::Result<T> {
        serde_json::from_slice(&self.body).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers send their connections at the same time.
    #[test]
    fn messages_of_several_threads_do_not_mix() {
        let (one, other) = UnixStream::pair().unwrap();
        let new = |stream| Channel::new(stream, Duration::from_secs(60), 1 << 20).unwrap();
        let (from, to) = (new(one), new(other));
        std::thread::scope(|scope| {
            for tag in 1..=4u8 {
                let from = &from;
                scope.spawn(move || {
                    for _ in 0..200 {
                        from.send(tag, &[tag; 5000], &[]).unwrap();
                    }
                });
            }
            for _ in 0..800 {
                let message = to.receive().unwrap();
                assert_eq!(message.body, [message.tag; 5000]);
            }
        });
    }
}
