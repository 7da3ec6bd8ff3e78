//! Sending recorded packets again, at their own pace, another, or none.

use crate::profile::Transport;
use crate::recorded::Recorded;
use crate::run::{Framing, RunError, udp_drops};
use crate::sys::{BATCH, SendBatch, Span};
use crate::target::Target;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use weir_rig_base::{clock, socket};

/// How to replay.
#[derive(Clone, Debug)]
pub struct Options {
    pub target: Target,
    /// 1 as recorded, 2 twice as fast; nothing: as fast as the target takes.
    pub speed: Option<f64>,
    pub rounds: u32,
    pub framing: Option<Framing>,
}

/// What was sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    pub packets: u64,
    pub bytes: u64,
    pub elapsed: Duration,
    pub blocked: Duration,
    /// How late the latest packet was.
    pub latest: Duration,
    /// Packets the kernel dropped at the target's UDP socket meanwhile, where it can be seen.
    pub kernel_drops: Option<u64>,
}

/// Sends all packets.
pub fn replay(packets: &[Recorded], options: &Options) -> Result<Replayed, RunError> {
    let target = &options.target;
    let transport = target.transport();
    if transport == Transport::Http {
        return Err(RunError::Usage(format!(
            "{target}: packets are replayed over sockets, not requests"
        )));
    }
    let framing = options.framing.unwrap_or(match transport {
        Transport::Udp | Transport::Unixgram => Framing::None,
        _ => Framing::Length,
    });
    if (framing == Framing::None) != transport.is_datagram() {
        return Err(RunError::Usage(format!(
            "framing: {} {}",
            transport.name(),
            if transport.is_datagram() {
                "takes none"
            } else {
                "needs length or newline"
            }
        )));
    }
    let socket = target
        .connect()
        .map_err(|error| RunError::Target(format!("{target}: cannot connect: {error}")))?;
    let drops = || match target {
        Target::Udp(address) => udp_drops(address.port()),
        _ => None,
    };
    let drops_before = drops();
    let mut done = Replayed::default();
    let mut batch = SendBatch::new();
    let start = Instant::now();
    let length = packets.last().map_or(Duration::ZERO, |p| p.at);
    for round in 0..options.rounds {
        let mut next = 0;
        while next < packets.len() {
            let mut end = next + 1;
            if let Some(speed) = options.speed {
                let due = |packet: &Recorded| (length * round + packet.at).div_f64(speed);
                clock::sleep_until(start, due(&packets[next]));
                let now = start.elapsed();
                done.latest = done.latest.max(now.saturating_sub(due(&packets[next])));
                while end < packets.len() && end - next < BATCH && due(&packets[end]) <= now {
                    end += 1;
                }
            } else {
                end = (next + BATCH).min(packets.len());
            }
            let mut buffer = Vec::new();
            let mut spans = Vec::new();
            for packet in &packets[next..end] {
                let off = buffer.len();
                if framing == Framing::Length {
                    buffer.extend_from_slice(&(packet.bytes.len() as u32).to_le_bytes());
                }
                buffer.extend_from_slice(&packet.bytes);
                if framing == Framing::Newline && !packet.bytes.ends_with(b"\n") {
                    buffer.push(b'\n');
                }
                spans.push(Span {
                    off,
                    len: buffer.len() - off,
                    messages: 0,
                });
                done.bytes += packet.bytes.len() as u64;
            }
            let mut sent = 0;
            let whole = if framing == Framing::None {
                spans.len()
            } else {
                buffer.len()
            };
            while sent < whole {
                let result = if framing == Framing::None {
                    batch.send(socket.as_fd(), &buffer, &spans[sent..])
                } else {
                    socket.write(&buffer[sent..])
                };
                match result {
                    Ok(more) => sent += more,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        let before = Instant::now();
                        socket::wait_writable(socket.as_fd(), Duration::from_millis(100))
                            .map_err(RunError::Io)?;
                        done.blocked += before.elapsed();
                    }
                    Err(error) => return Err(RunError::Target(format!("{target}: {error}"))),
                }
            }
            done.packets += (end - next) as u64;
            next = end;
        }
    }
    done.elapsed = start.elapsed();
    done.kernel_drops = drops_before
        .zip(drops())
        .map(|(before, after)| after.saturating_sub(before));
    Ok(done)
}
