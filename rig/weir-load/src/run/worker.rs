//! One sending thread.

use super::report::Tally;
use super::{Framing, Lateness, Options, Progress, RunError, SentStream};
use crate::manifest::Marker;
use crate::profile::Transport;
use crate::requests::{PostResult, Requests};
use crate::schedule::Schedule;
use crate::source::{Load, PacketSource, SPARE};
use crate::sys::{BATCH, SendBatch, Span};
use crate::target::{Socket, Target};
use crate::units::RateUnit;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use weir_rig_base::{clock, socket};

/// Without an answer within this time the target counts as dead.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// Time after the end of a schedule in which a late sender may still send due packets.
const CATCH_UP: Duration = Duration::from_millis(100);

/// State of one sending thread.
pub struct Worker<'a> {
    pub load: &'a Load,
    pub options: &'a Options,
    pub connections: Vec<Connection>,
    pub schedule: Schedule,
    pub quantum: Duration,
    pub skip: bool,
    pub framing: Framing,
    pub gso: bool,
    pub progress: Arc<Progress>,
    pub stop: Arc<AtomicBool>,
    pub batch: SendBatch,
    pub buffer: Vec<u8>,
    pub spans: Vec<Span>,
    pub dues: Vec<Duration>,
    pub lateness: Lateness,
    pub tally: Tally,
    pub count: u64,
    pub markers: Vec<Marker>,
    pub sends_markers: bool,
}

pub struct Connection {
    pub socket: Socket,
    pub requests: Option<Box<dyn Requests>>,
    pub source: Box<dyn PacketSource>,
    pub sent: SentStream,
}

/// Result of a batch.
enum Outcome {
    Done,
    /// Time is up; the rest of the batch was not sent.
    Over,
}

fn run_delay() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let field = text.split_whitespace().nth(1).and_then(|f| f.parse().ok());
    Duration::from_nanos(field.unwrap_or(0))
}

impl Worker<'_> {
    fn units(&self, span: &Span) -> f64 {
        match self.schedule.unit {
            RateUnit::Messages => f64::from(span.messages),
            RateUnit::Packets => 1.0,
            RateUnit::Bytes => span.len as f64,
        }
    }

    /// Composes due packets for one connection, at most a batch.
    fn fill(&mut self, which: usize, now: Duration, next_due: &mut Duration, most: usize) {
        self.spans.clear();
        self.dues.clear();
        let source = &mut self.connections[which].source;
        let room = source.room() + 4 + SPARE;
        let all_out = self.schedule.is_all_out();
        let mut at = 0;
        while self.spans.len() < most
            && at + room <= self.buffer.len()
            && *next_due <= now
            && self.tally.messages + self.tally.refused_messages < self.count
        {
            let lead = if self.framing == Framing::Length { 4 } else { 0 };
            let packet = source.packet(&mut self.buffer[at + lead..]);
            let mut len = packet.len;
            match self.framing {
                Framing::Length => {
                    self.buffer[at..at + 4].copy_from_slice(&(packet.len as u32).to_le_bytes());
                    len += 4;
                }
                Framing::Newline => {
                    self.buffer[at + len] = b'\n';
                    len += 1;
                }
                Framing::None => {}
            }
            let span = Span {
                off: at,
                len,
                messages: packet.messages,
            };
            at += len;
            self.spans.push(span);
            // Counts messages when they are composed, so that a count is met exactly at a packet's end.
            self.tally.messages += u64::from(packet.messages);
            if !all_out {
                self.dues.push(*next_due);
                let units = match self.schedule.unit {
                    RateUnit::Messages => f64::from(packet.messages),
                    RateUnit::Packets => 1.0,
                    RateUnit::Bytes => packet.len as f64,
                };
                self.tally.units_due += units;
                *next_due = self.schedule.due(self.tally.units_due, units);
            }
            if let Some(handicap) = self.options.handicap {
                std::thread::sleep(handicap);
            }
        }
    }

    /// Waits until the target accepts more, at most until the end. Returns the time waited.
    fn wait(&mut self, which: usize, most: Duration) -> Result<Duration, RunError> {
        let before = Instant::now();
        socket::wait_writable(self.connections[which].socket.as_fd(), most).map_err(RunError::Io)?;
        let waited = before.elapsed();
        self.tally.blocked += waited;
        self.tally.system_calls += 1;
        Ok(waited)
    }

    fn target_error(&self, error: io::Error) -> RunError {
        let target = &self.options.target;
        match error.raw_os_error() {
            Some(libc::EMSGSIZE) => RunError::Usage(format!(
                "{target}: a packet of up to {} bytes is larger than the transport carries",
                self.load.packet_max()
            )),
            // A missing UDP target is noticed only now. A Unix socket that was removed causes one of several errors, depending on what the
            // sender was doing.
            Some(libc::ECONNREFUSED | libc::ENOENT) => {
                RunError::Target(format!("{target}: nothing listens there, or not any more"))
            }
            Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN)
                if matches!(target, Target::Unixgram(_)) =>
            {
                RunError::Target(format!("{target}: nothing listens there, or not any more"))
            }
            None if error.kind() == io::ErrorKind::ConnectionReset => {
                RunError::Target(format!("{target}: the target closed the connection"))
            }
            Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) => {
                RunError::Target(format!("{target}: the target closed the connection"))
            }
            _ => RunError::Target(format!("{target}: {error}")),
        }
    }

    /// Sends the batch on one connection. Records abandoned packets.
    fn send(&mut self, which: usize, start: Instant, end: Duration) -> Result<Outcome, RunError> {
        let first = self.connections[which].sent.composed;
        self.connections[which].sent.composed += self.spans.len() as u64;
        let mut done = 0;
        // Bytes of the current packet already written, on streams.
        let mut partial = 0;
        let mut waited = Duration::ZERO;
        while done < self.spans.len() {
            let spans = &self.spans[done..];
            self.tally.system_calls += 1;
            let result = if self.framing == Framing::None && self.load.transport.is_datagram() {
                let socket = self.connections[which].socket.as_fd();
                if self.gso {
                    self.batch.send_glued(socket, &self.buffer, spans)
                } else {
                    self.batch.send(socket, &self.buffer, spans)
                }
            } else {
                let last = spans[spans.len() - 1];
                let bytes = &self.buffer[spans[0].off + partial..last.off + last.len];
                self.connections[which].socket.write(bytes).map(|written| {
                    let mut left = partial + written;
                    let mut whole = 0;
                    while whole < spans.len() && left >= spans[whole].len {
                        left -= spans[whole].len;
                        whole += 1;
                    }
                    partial = left;
                    whole
                })
            };
            match result {
                Ok(sent) => {
                    self.account(done, sent, start);
                    done += sent;
                    waited = Duration::ZERO;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A kernel or device without segmentation offload fails with the first of them.
                Err(error)
                    if self.gso
                        && matches!(
                            error.raw_os_error(),
                            Some(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT)
                        ) =>
                {
                    self.gso = false;
                }
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock
                        || error.raw_os_error() == Some(libc::ENOBUFS) =>
                {
                    if self.skip && waited >= self.quantum && partial == 0 {
                        let span = self.spans[done];
                        self.tally.refused_packets += 1;
                        self.tally.refused_messages += u64::from(span.messages);
                        self.tally.messages -= u64::from(span.messages);
                        self.progress
                            .refused_packets
                            .store(self.tally.refused_packets, Relaxed);
                        self.connections[which].sent.skip(first + done as u64);
                        done += 1;
                        waited = Duration::ZERO;
                        continue;
                    }
                    let now = start.elapsed();
                    // A partly written packet gets a second to be completed, so that a stream ends at a boundary. Packets that were due in
                    // time get a moment too.
                    let grace = if partial > 0 {
                        Duration::from_secs(1)
                    } else if !self.schedule.is_all_out() {
                        CATCH_UP
                    } else {
                        Duration::ZERO
                    };
                    if now >= end.saturating_add(grace) || self.stop.load(Relaxed) {
                        self.abandon(which, first, done);
                        return Ok(Outcome::Over);
                    }
                    let patience = if self.skip {
                        self.quantum.saturating_sub(waited).max(Duration::from_micros(50))
                    } else {
                        Duration::from_millis(50)
                    };
                    let until_end = end.saturating_add(grace) - now;
                    waited += self.wait(which, patience.min(until_end))?;
                    self.progress
                        .blocked_ns
                        .store(self.tally.blocked.as_nanos() as u64, Relaxed);
                }
                Err(error) => {
                    self.abandon(which, first, done);
                    return Err(self.target_error(error));
                }
            }
        }
        Ok(Outcome::Done)
    }

    /// Posts the batch (one packet) and waits for the answer. Overload answers count as refused. Rejections end the run: a target that
    /// rejects its load measures nothing.
    fn send_requests(&mut self, which: usize, start: Instant) -> Result<Outcome, RunError> {
        let first = self.connections[which].sent.composed;
        self.connections[which].sent.composed += self.spans.len() as u64;
        for done in 0..self.spans.len() {
            let span = self.spans[done];
            let connection = &mut self.connections[which];
            let requests = connection.requests.as_mut().expect("a connection of requests");
            let before = Instant::now();
            let body = &self.buffer[span.off..span.off + span.len];
            let answer = requests.post(body, span.messages, ANSWER_PATIENCE);
            self.tally.blocked += before.elapsed();
            self.tally.system_calls += 2;
            self.progress
                .blocked_ns
                .store(self.tally.blocked.as_nanos() as u64, Relaxed);
            match answer {
                Ok(PostResult::Taken) => self.account(done, 1, start),
                Ok(PostResult::Busy) => {
                    self.tally.refused_packets += 1;
                    self.tally.refused_messages += u64::from(span.messages);
                    self.tally.messages -= u64::from(span.messages);
                    self.progress
                        .refused_packets
                        .store(self.tally.refused_packets, Relaxed);
                    connection.sent.skip(first + done as u64);
                }
                Ok(PostResult::Rejected(why)) => {
                    self.abandon(which, first, done);
                    return Err(RunError::Target(format!(
                        "{}: answered {why} to a {} request",
                        self.options.target,
                        self.load.profile.payload.name()
                    )));
                }
                Err(error) => {
                    self.abandon(which, first, done);
                    return Err(self.target_error(error));
                }
            }
        }
        Ok(Outcome::Done)
    }

    /// Counts packets `done..done + sent` of the batch as sent.
    fn account(&mut self, done: usize, sent: usize, start: Instant) {
        let framing = match self.framing {
            Framing::Length => 4,
            Framing::Newline => 1,
            Framing::None => 0,
        };
        let mut bytes = 0;
        for index in done..done + sent {
            let mut span = self.spans[index];
            span.len -= framing;
            bytes += span.len as u64;
            self.tally.units_sent += self.units(&span);
        }
        if !self.dues.is_empty() {
            let now = start.elapsed();
            for due in &self.dues[done..done + sent] {
                let late = now.saturating_sub(*due);
                // A packet sent at the end of its quantum is on time.
                self.lateness.add(late, 1);
                if late > 2 * self.quantum {
                    self.tally.late_packets += 1;
                }
            }
        }
        self.tally.packets += sent as u64;
        self.tally.bytes += bytes;
        self.progress.packets.store(self.tally.packets, Relaxed);
        self.progress.messages.store(self.tally.messages, Relaxed);
        self.progress.bytes.store(self.tally.bytes, Relaxed);
        self.progress.late_packets.store(self.tally.late_packets, Relaxed);
    }

    /// Takes back packets that were composed and never sent.
    fn abandon(&mut self, which: usize, first: u64, done: usize) {
        for index in done..self.spans.len() {
            self.tally.messages -= u64::from(self.spans[index].messages);
            self.connections[which].sent.skip(first + index as u64);
        }
    }

    fn marker(&mut self) {
        let seq = self.markers.len() as u64 + 1;
        let text = format!("weir.load.marker:{seq}|g");
        let mut framed = Vec::with_capacity(text.len() + 4);
        if self.framing == Framing::Length {
            framed.extend_from_slice(&(text.len() as u32).to_le_bytes());
        }
        framed.extend_from_slice(text.as_bytes());
        if self.framing == Framing::Newline {
            framed.push(b'\n');
        }
        let sent_unix_ns = clock::unix_ns();
        // A marker without room is skipped; a stream never accepts half of so few bytes.
        if let Ok(written) = self.connections[0].socket.write(&framed)
            && written == framed.len()
        {
            self.markers.push(Marker { seq, sent_unix_ns });
        }
    }

    fn spent_since(&mut self, before: &clock::Usage) {
        let after = clock::usage_of_thread();
        self.tally.cpu_user += after.user.saturating_sub(before.user);
        self.tally.cpu_system += after.system.saturating_sub(before.system);
    }

    /// Sends every context once, as fast as the target takes them.
    pub fn first_pass(&mut self, start: Instant) -> Result<(), RunError> {
        let before = clock::usage_of_thread();
        let schedule = self.schedule.replace_all_out();
        let skip = std::mem::replace(&mut self.skip, false);
        let mut due = Duration::ZERO;
        for which in 0..self.connections.len() {
            while self.connections[which].source.is_first_pass() && !self.stop.load(Relaxed) {
                self.fill(which, Duration::ZERO, &mut due, BATCH);
                if self.spans.is_empty() {
                    // The count is reached.
                    break;
                }
                self.send(which, start, Duration::MAX)?;
            }
        }
        self.schedule = schedule;
        self.skip = skip;
        self.tally.units_sent = 0.0;
        self.tally.blocked = Duration::ZERO;
        self.spent_since(&before);
        Ok(())
    }

    pub fn run(&mut self, start: Instant, end: Duration) -> Result<(), RunError> {
        let before = clock::usage_of_thread();
        let delay = run_delay();
        let mut next_due = Duration::ZERO;
        if !self.schedule.is_all_out() {
            next_due = self.schedule.due(0.0, 0.0);
        }
        let connections = self.connections.len();
        // A schedule covers all connections; small batches keep them all busy.
        let most = if self.load.transport == Transport::Http {
            1
        } else {
            (BATCH / connections).clamp(1, BATCH)
        };
        let mut which = 0;
        let mut next_marker = Duration::ZERO;
        let all_out = self.schedule.is_all_out();
        let result = loop {
            let mut now = start.elapsed();
            if self.stop.load(Relaxed) {
                break Ok(());
            }
            if now >= end {
                // Sends everything that was due before the end, so that equal seeds give equal bytes however late the last turn is.
                if all_out || next_due >= end || now >= end.saturating_add(CATCH_UP) {
                    break Ok(());
                }
                now = end - Duration::from_nanos(1);
            }
            if let Some(every) = self.options.markers
                && self.sends_markers
                && now >= next_marker
            {
                self.marker();
                next_marker += every;
            }
            if self.tally.messages + self.tally.refused_messages >= self.count {
                break Ok(());
            }
            if next_due > now {
                // The end of the quantum of the next packet, so that packets due in it are sent together.
                let quanta = next_due.as_nanos() / self.quantum.as_nanos() + 1;
                let mut wake = Duration::from_nanos_u128(quanta * self.quantum.as_nanos());
                if self.options.markers.is_some() && self.sends_markers {
                    wake = wake.min(next_marker);
                }
                // A requested stop is noticed within this time.
                wake = wake.min(end).min(now + Duration::from_millis(100));
                clock::sleep_until(start, wake);
                continue;
            }
            self.fill(which, now, &mut next_due, most);
            let sent = if self.connections[which].requests.is_some() {
                self.send_requests(which, start)
            } else {
                self.send(which, start, end)
            };
            match sent {
                Ok(Outcome::Done) => {}
                Ok(Outcome::Over) => break Ok(()),
                Err(error) => break Err(error),
            }
            which = (which + 1) % connections;
        };
        self.tally.elapsed = start.elapsed();
        self.spent_since(&before);
        self.tally.run_delay = run_delay().saturating_sub(delay);
        result
    }
}
