//! Messages with descriptors between two processes, over a Unix stream.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use weir_agent::hand_over::{HandOverMessage, Side, Silence, WayOut, patience_after_stop};
use weir_status::bad_bytes::text;

/// Descriptors that go with one message; the kernel's limit.
pub const DESCRIPTORS_MAX: usize = 200;

/// Length of a message's header: its number and the length of its body.
const HEAD: usize = 9;

/// One end. All messages up to a limit share it: a peer that sends or reads a few bytes at a time gains no time.
#[derive(Debug)]
pub struct Channel {
    /// Non-blocking.
    stream: UnixStream,
    side: Side,
    /// The last message, of either side.
    last: Mutex<Option<HandOverMessage>>,
    /// Maximum size of a body.
    bytes_max: u64,
    /// Held while a message is written: several threads send.
    sending: Mutex<()>,
    limit: Mutex<Instant>,
    /// Ends waiting before the limit.
    stop: Option<StopSignal>,
}

/// A received message.
#[derive(Debug)]
pub struct ChannelMessage {
    pub is: HandOverMessage,
    pub body: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// `patience`: the first limit.
    pub fn new(
        stream: UnixStream,
        side: Side,
        patience: Duration,
        bytes_max: u64,
        stop: Option<StopSignal>,
    ) -> io::Result<Channel> {
        stream.set_nonblocking(true)?;
        Ok(Channel {
            stream,
            side,
            last: Mutex::default(),
            bytes_max,
            sending: Mutex::default(),
            limit: Mutex::new(Instant::now() + patience),
            stop,
        })
    }

    /// Sets the time limit of all following messages together. After a stop they have at most [`patience_after_stop`].
    pub fn set_limit(&self, patience: Duration) {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + patience;
    }

    fn last(&self) -> Option<HandOverMessage> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way out after an error of this channel.
    pub fn way_out(&self, error: &io::Error) -> WayOut {
        let silence = match error.kind() {
            io::ErrorKind::TimedOut => Silence::TimedOut,
            _ if has_ended(error) => Silence::Ended,
            _ => Silence::Refused,
        };
        WayOut::of(self.side, self.last(), silence)
    }

    /// The remaining time. `Err` if there is none.
    pub fn left(&self) -> io::Result<Duration> {
        let limit = *self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        let stopped = self.stop.as_ref().and_then(StopSignal::since);
        let end = stopped.map_or(limit, |since| limit.min(since + patience_after_stop(self.last())));
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

    /// Notes that this side sends or receives a message. `Err`: it is not its turn.
    fn advance(&self, message: HandOverMessage, from: Side) -> io::Result<()> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !message.may_follow(*last, from) {
            let after = last.map_or(String::new(), |last| format!(" after {last:?}"));
            return Err(io::Error::other(format!("unexpected message {message:?}{after}")));
        }
        *last = Some(message);
        Ok(())
    }

    pub fn send(
        &self,
        message: HandOverMessage,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.left()?;
        self.write(message, body, descriptors)
    }

    /// Sends a last text that fits the socket's buffer, also after the limit. The peer may have ended.
    pub fn send_last(&self, message: HandOverMessage, text: &str) {
        let _ = self.write(message, text.as_bytes(), &[]);
    }

    fn write(&self, message: HandOverMessage, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut head = [message as u8; HEAD];
        head[1..].copy_from_slice(&(body.len() as u64).to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        let _alone = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        self.advance(message, self.side)?;
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

    pub fn send_json(&self, message: HandOverMessage, body: &impl Serialize) -> io::Result<()> {
        self.send(message, &serde_json::to_vec(body).map_err(io::Error::other)?, &[])
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
        let [number, length @ ..] = head;
        let is = HandOverMessage::of(number)
            .ok_or_else(|| io::Error::other(format!("unexpected message {number}")))?;
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
        self.advance(is, self.side.other())?;
        Ok(ChannelMessage {
            is,
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

    /// The next message, which must be this one.
    pub fn expect(&self, wanted: HandOverMessage) -> io::Result<ChannelMessage> {
        let message = self.receive()?;
        match message.is {
            found if found == wanted => Ok(message),
            _ => Err(message.unexpected()),
        }
    }
}

/// The stop of this process, which ends its waits for another one. Set once, when it is asked to stop.
#[derive(Clone, Debug)]
pub struct StopSignal(Arc<StopState>);

#[derive(Debug)]
struct StopState {
    since: watch::Sender<Option<Instant>>,
    /// Readable from then on.
    event: OwnedFd,
}

impl StopSignal {
    pub fn new() -> io::Result<StopSignal> {
        Ok(StopSignal(Arc::new(StopState {
            since: watch::Sender::new(None),
            event: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })))
    }

    pub fn set(&self) {
        self.0.since.send_modify(|since| {
            since.get_or_insert_with(Instant::now);
        });
        // It fails only if the counter is full, and then it is readable too.
        let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
    }

    pub fn since(&self) -> Option<Instant> {
        *self.0.since.borrow()
    }

    pub fn is_set(&self) -> bool {
        self.since().is_some()
    }

    /// Completes when `work` does, or this is set.
    pub async fn limit<F: Future>(&self, work: F) {
        let mut since = self.0.since.subscribe();
        tokio::select! {
            _ = work => {}
            _ = since.wait_for(Option::is_some) => {}
        }
    }
}

/// Readable when it is set.
impl AsFd for StopSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
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
        io::Error::other(match self.is {
            HandOverMessage::Refused => text(&self.body),
            other => format!("unexpected message {other:?}"),
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
        let new = |stream, side| {
            let channel = Channel::new(stream, side, Duration::from_secs(60), 1 << 20, None).unwrap();
            *channel.last.lock().unwrap() = Some(HandOverMessage::Again);
            channel
        };
        let (from, to) = (new(one, Side::Old), new(other, Side::New));
        std::thread::scope(|scope| {
            for thread in 1..=4u8 {
                let from = &from;
                scope.spawn(move || {
                    for _ in 0..200 {
                        from.send(HandOverMessage::Connections, &[thread; 5000], &[])
                            .unwrap();
                    }
                });
            }
            for _ in 0..800 {
                let message = to.receive().unwrap();
                assert_eq!(message.body, [message.body[0]; 5000]);
            }
        });
    }

    /// The last message of either side decides which may follow.
    #[test]
    fn a_message_out_of_turn_is_refused_at_both_ends() {
        let (one, other) = UnixStream::pair().unwrap();
        let new = |stream, side| Channel::new(stream, side, Duration::from_secs(60), 1 << 20, None).unwrap();
        let (old, new) = (new(one, Side::Old), new(other, Side::New));
        let said = |error: io::Error| error.to_string();
        let early = new.send(HandOverMessage::Begin, &[], &[]).unwrap_err();
        assert_eq!(said(early), "unexpected message Begin");
        // Nothing of it was sent.
        new.send(HandOverMessage::Hello, &[], &[]).unwrap();
        old.expect(HandOverMessage::Hello).unwrap();
        let of_the_other = new.send(HandOverMessage::Greeting, &[], &[]).unwrap_err();
        assert_eq!(said(of_the_other), "unexpected message Greeting after Hello");
        let mut forged = [0; HEAD];
        for (number, expected) in [
            (
                HandOverMessage::Commit as u8,
                "unexpected message Commit after Hello",
            ),
            (99, "unexpected message 99"),
        ] {
            forged[0] = number;
            (&new.stream).write_all(&forged).unwrap();
            assert_eq!(said(old.receive().unwrap_err()), expected);
        }
        new.send(HandOverMessage::Refused, b"why", &[]).unwrap();
        let refused = old.expect(HandOverMessage::Begin).unwrap_err();
        assert_eq!(said(refused), "why");
        assert!(old.send(HandOverMessage::Refused, &[], &[]).is_err());
    }

    /// A peer that sends a byte at a time, and one that reads none.
    #[test]
    fn a_limit_is_for_all_bytes_of_all_messages() {
        let (one, other) = UnixStream::pair().unwrap();
        let patience = Duration::from_millis(200);
        let begun = Instant::now();
        let channel = Channel::new(one, Side::Old, patience, 1 << 20, None).unwrap();
        let mut head = [HandOverMessage::Hello as u8; HEAD];
        head[1..].copy_from_slice(&1000u64.to_le_bytes());
        (&other).write_all(&head).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // It ends when the test closes the other end.
                while (&other).write_all(&[0]).is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let error = channel.receive().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(begun.elapsed() >= patience);
            let error = channel.send(HandOverMessage::Refused, &[], &[]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            channel.set_limit(patience);
            let error = channel
                .send(HandOverMessage::Refused, &[0; 1 << 20], &[])
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(channel);
        });
    }

    #[test]
    fn a_stop_ends_a_wait() {
        let (one, _other) = UnixStream::pair().unwrap();
        let stop = StopSignal::new().unwrap();
        let hour = Duration::from_secs(3600);
        let channel = Channel::new(one, Side::New, hour, 1 << 20, Some(stop.clone())).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| channel.receive().unwrap_err());
            stop.set();
            assert_eq!(waiting.join().unwrap().kind(), io::ErrorKind::TimedOut);
        });
        // It has a moment to confirm what cannot be undone, unless this thread had to wait for longer.
        *channel.last.lock().unwrap() = Some(HandOverMessage::Go);
        channel.set_limit(hour);
        let end = stop.since().unwrap() + patience_after_stop(Some(HandOverMessage::Go));
        match channel.left() {
            Ok(left) => assert!(left < hour / 2),
            Err(error) => assert!(Instant::now() >= end, "{error}"),
        }
        if let Err(error) = channel.send(HandOverMessage::Running, b"body", &[]) {
            assert!(Instant::now() >= end, "{error}");
        }
    }
}
