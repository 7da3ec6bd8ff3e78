//! Sends recorded packets: at their own pace, at another, or as fast as possible.

use crate::profile::Transport;
use crate::recorded::Recorded;
use crate::run::{Framing, RunError};
use crate::sys::{BATCH, SendBatch, Span};
use crate::target::{Socket, Target};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use weir_rig_base::{clock, socket};

/// Options of a replay.
#[derive(Clone, Debug)]
pub struct Options {
    pub target: Target,
    /// 1: as recorded, 2: twice as fast. `None`: as fast as the target accepts.
    pub speed: Option<f64>,
    pub rounds: u32,
    pub framing: Option<Framing>,
}

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    pub packets: u64,
    pub bytes: u64,
    pub elapsed: Duration,
    pub blocked: Duration,
    /// Maximum lateness.
    pub latest: Duration,
    /// Packets that the kernel dropped at the target's UDP socket meanwhile, if visible.
    pub kernel_drops: Option<u64>,
}

/// Sends all packets.
pub fn replay(packets: &[Recorded], options: &Options) -> Result<Replayed, RunError> {
    let target = &options.target;
    let framing = framing(options)?;
    let socket = target
        .connect()
        .map_err(|error| RunError::Target(format!("{target}: cannot connect: {error}")))?;
    let mut kernel_drops = target.kernel_drops();
    let start = Instant::now();
    let mut replay = Replay {
        packets,
        options,
        framing,
        socket,
        batch: SendBatch::new(),
        start,
        done: Replayed::default(),
    };
    for round in 0..options.rounds {
        let mut next = 0;
        while next < packets.len() {
            let end = replay.due(next, round);
            replay.send(&packets[next..end])?;
            next = end;
        }
    }
    let mut done = replay.done;
    done.elapsed = start.elapsed();
    done.kernel_drops = kernel_drops.until_now();
    Ok(done)
}

fn framing(options: &Options) -> Result<Framing, RunError> {
    let transport = options.target.transport();
    if transport == Transport::Http {
        return Err(RunError::Usage(format!(
            "{}: packets are replayed over sockets, not requests",
            options.target
        )));
    }
    let framing = options.framing.unwrap_or(match transport {
        Transport::Udp | Transport::Unixgram => Framing::None,
        _ => Framing::Length,
    });
    let name = transport.name();
    match (framing == Framing::None, transport.is_datagram()) {
        (false, true) => Err(RunError::Usage(format!("framing: {name} takes none"))),
        (true, false) => Err(RunError::Usage(format!(
            "framing: {name} needs length or newline"
        ))),
        _ => Ok(framing),
    }
}

/// A running replay.
struct Replay<'a> {
    packets: &'a [Recorded],
    options: &'a Options,
    framing: Framing,
    socket: Socket,
    batch: SendBatch,
    start: Instant,
    done: Replayed,
}

impl Replay<'_> {
    /// Waits until the next packet is due. Returns the end of the due packets.
    fn due(&mut self, next: usize, round: u32) -> usize {
        let most = (next + BATCH).min(self.packets.len());
        let Some(speed) = self.options.speed else {
            return most;
        };
        let length = self.packets.last().map_or(Duration::ZERO, |packet| packet.at);
        let due = |at: usize| (length * round + self.packets[at].at).div_f64(speed);
        clock::sleep_until(self.start, due(next));
        let now = self.start.elapsed();
        self.done.latest = self.done.latest.max(now.saturating_sub(due(next)));
        (next + 1..most).find(|&at| due(at) > now).unwrap_or(most)
    }

    fn send(&mut self, packets: &[Recorded]) -> Result<(), RunError> {
        let mut buffer = Vec::new();
        let mut spans = Vec::new();
        for packet in packets {
            let off = buffer.len();
            if self.framing == Framing::Length {
                buffer.extend_from_slice(&(packet.bytes.len() as u32).to_le_bytes());
            }
            buffer.extend_from_slice(&packet.bytes);
            if self.framing == Framing::Newline && !packet.bytes.ends_with(b"\n") {
                buffer.push(b'\n');
            }
            spans.push(Span {
                off,
                len: buffer.len() - off,
                messages: 0,
            });
            self.done.bytes += packet.bytes.len() as u64;
        }
        self.write(&buffer, &spans)?;
        self.done.packets += packets.len() as u64;
        Ok(())
    }

    fn write(&mut self, buffer: &[u8], spans: &[Span]) -> Result<(), RunError> {
        let datagrams = self.framing == Framing::None;
        let whole = if datagrams { spans.len() } else { buffer.len() };
        let mut sent = 0;
        while sent < whole {
            let result = match datagrams {
                true => self.batch.send(self.socket.as_fd(), buffer, &spans[sent..]),
                false => self.socket.write(&buffer[sent..]),
            };
            match result {
                Ok(more) => sent += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let before = Instant::now();
                    socket::wait_writable(self.socket.as_fd(), Duration::from_millis(100))
                        .map_err(RunError::Io)?;
                    self.done.blocked += before.elapsed();
                }
                Err(error) => {
                    let target = &self.options.target;
                    return Err(RunError::Target(format!("{target}: {error}")));
                }
            }
        }
        Ok(())
    }
}
