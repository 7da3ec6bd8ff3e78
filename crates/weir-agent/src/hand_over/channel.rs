//! Messages with descriptors between two processes, over a Unix stream.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StopSignal;
use weir_status::bad_bytes::text;

/// Descriptors that go with one message; the kernel's limit.
pub const DESCRIPTORS_MAX: usize = 200;

/// Length of a message's header: its tag and the length of its body.
const HEAD: usize = 9;

/// One end. All messages up to a limit share it: a peer that sends or reads a few bytes at a time gains no time.
#[derive(Debug)]
pub struct Channel {
    /// Non-blocking.
    stream: UnixStream,
    /// Maximum size of a body.
    bytes_max: u64,
    /// Held while a message is written: several threads send.
    sending: Mutex<()>,
    limit: Mutex<Limit>,
    /// Ends waiting before the limit.
    stop: Option<StopSignal>,
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    end: Instant,
    /// Time to wait after this process was asked to stop.
    after_stop: Duration,
}

/// A received message.
#[derive(Debug)]
pub struct ChannelMessage {
    pub tag: u8,
    pub body: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// `patience`: the first limit.
    pub fn new(
        stream: UnixStream,
        patience: Duration,
        bytes_max: u64,
        stop: Option<StopSignal>,
    ) -> io::Result<Channel> {
        stream.set_nonblocking(true)?;
        Ok(Channel {
            stream,
            bytes_max,
            sending: Mutex::default(),
            limit: Mutex::new(Limit {
                end: Instant::now() + patience,
                after_stop: Duration::ZERO,
            }),
            stop,
        })
    }

    /// Sets the time limit of all following messages together. A stop ends them at once.
    pub fn set_limit(&self, patience: Duration) {
        self.set_limits(patience, Duration::ZERO);
    }

    /// The same; after a stop, they have at most the time `after_stop`.
    pub fn set_limits(&self, patience: Duration, after_stop: Duration) {
        *self.limit() = Limit {
            end: Instant::now() + patience,
            after_stop,
        };
    }

    fn limit(&self) -> MutexGuard<'_, Limit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The remaining time. `Err` if there is none.
    pub fn left(&self) -> io::Result<Duration> {
        let limit = *self.limit();
        let stopped = self.stop.as_ref().and_then(StopSignal::since);
        let end = stopped.map_or(limit.end, |since| limit.end.min(since + limit.after_stop));
        match end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "it does not answer in time",
            )),
            left => Ok(left),
        }
    }

    /// Waits until the stream can be read or written.
    fn wait(&self, ready: PollFlags) -> io::Result<()> {
        loop {
            let left = Timespec::try_from(self.left()?).map_err(io::Error::other)?;
            let mut polled = vec![PollFd::new(&self.stream, ready)];
            // Once it is set it stays readable, and the limit takes care of it.
            let stop = self.stop.as_ref().filter(|stop| !stop.is_set());
            polled.extend(stop.map(|stop| PollFd::new(stop, PollFlags::IN)));
            match rustix::event::poll(&mut polled, Some(&left)) {
                Ok(_) if !polled[0].revents().is_empty() => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Repeats an operation of the stream until it does something.
    fn until_done<T>(&self, ready: PollFlags, mut operation: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match operation() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(ready)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
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
        self.left()?;
        self.write(tag, body, descriptors)
    }

    /// Sends a last text that fits the socket's buffer, also after the limit. The peer may have ended.
    pub fn send_last(&self, tag: u8, text: &str) {
        let _ = self.write(tag, text.as_bytes(), &[]);
    }

    fn write(&self, tag: u8, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut head = [tag; HEAD];
        head[1..].copy_from_slice(&(body.len() as u64).to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        let _alone = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = self.until_done(PollFlags::OUT, || {
            let head = [IoSlice::new(&head)];
            Ok(rustix::net::sendmsg(
                &self.stream,
                &head,
                &mut control,
                SendFlags::NOSIGNAL,
            )?)
        })?;
        self.write_all(&head[sent..])?;
        self.write_all(body)
    }

    fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.until_done(PollFlags::OUT, || (&self.stream).write(bytes))?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    pub fn send_json(&self, tag: u8, body: &impl Serialize) -> io::Result<()> {
        self.send(tag, &serde_json::to_vec(body).map_err(io::Error::other)?, &[])
    }

    /// The next message.
    pub fn receive(&self) -> io::Result<ChannelMessage> {
        self.left()?;
        let mut head = [0; HEAD];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = self.until_done(PollFlags::IN, || {
            let mut parts = [IoSliceMut::new(&mut head)];
            Ok(rustix::net::recvmsg(
                &self.stream,
                &mut parts,
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )?)
        })?;
        if received.bytes == 0 {
            return Err(ended());
        }
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                descriptors.extend(some);
            }
        }
        self.read_exact(&mut head[received.bytes..])?;
        let [tag, length @ ..] = head;
        let length = u64::from_le_bytes(length);
        if length > self.bytes_max {
            return Err(io::Error::other(format!(
                "a message of {length} bytes; {} are allowed",
                self.bytes_max
            )));
        }
        let mut body = Vec::new();
        let mut stream = (&self.stream).take(length);
        self.until_done(PollFlags::IN, || stream.read_to_end(&mut body))?;
        if body.len() as u64 != length {
            return Err(ended());
        }
        Ok(ChannelMessage {
            tag,
            body,
            descriptors,
        })
    }

    fn read_exact(&self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.until_done(PollFlags::IN, || (&self.stream).read(bytes))? {
                0 => return Err(ended()),
                read => bytes = &mut bytes[read..],
            }
        }
        Ok(())
    }

    /// The next message, which must have this tag.
    pub fn expect(&self, tag: u8) -> io::Result<ChannelMessage> {
        let message = self.receive()?;
        match message.tag {
            found if found == tag => Ok(message),
            _ => Err(message.unexpected()),
        }
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended")
}

/// Whether the other end was closed.
pub fn has_ended(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
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

    /// The error for a message that does not fit, or the reason of a refusal.
    pub fn unexpected(&self) -> io::Error {
        io::Error::other(match self.tag {
            super::REFUSED => text(&self.body),
            tag => format!("unexpected message {tag}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers send their connections at the same time.
    #[test]
    fn messages_of_several_threads_do_not_mix() {
        let (one, other) = UnixStream::pair().unwrap();
        let new = |stream| Channel::new(stream, Duration::from_secs(60), 1 << 20, None).unwrap();
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

    /// A peer that sends a byte at a time, and one that reads none.
    #[test]
    fn a_limit_is_for_all_bytes_of_all_messages() {
        let (one, other) = UnixStream::pair().unwrap();
        let patience = Duration::from_millis(200);
        let channel = Channel::new(one, patience, 1 << 20, None).unwrap();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // It ends when the test closes the other end.
                while (&other).write_all(&[0]).is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let error = loop {
                if let Err(error) = channel.receive() {
                    break error;
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(begun.elapsed() >= patience);
            let error = channel.send(1, &[], &[]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            channel.set_limit(patience);
            let error = channel.send(1, &[0; 1 << 20], &[]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(channel);
        });
    }

    #[test]
    fn a_stop_ends_a_wait() {
        let (one, _other) = UnixStream::pair().unwrap();
        let stop = StopSignal::new().unwrap();
        let hour = Duration::from_secs(3600);
        let channel = Channel::new(one, hour, 1 << 20, Some(stop.clone())).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| channel.receive().unwrap_err());
            stop.set();
            assert_eq!(waiting.join().unwrap().kind(), io::ErrorKind::TimedOut);
        });
        // It has a time of its own to confirm what cannot be undone.
        channel.set_limits(hour, hour);
        assert!(channel.left().unwrap() > hour / 2);
        channel.send(1, b"body", &[]).unwrap();
    }
}
