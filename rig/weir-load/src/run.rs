//! Sending: one thread per core given, no allocation, no logging, no runtime. Open loop: what is due is sent, lateness is
//! recorded, the schedule never moves.

use crate::profile::Transport;
use crate::profile::{ProfileError, Sharing, StreamFraming};
use crate::requests::{self, Answer, Requests};
use crate::schedule::Schedule;
use crate::source::{Load, SPARE, Source};
use crate::sys::{BATCH, SendBatch, Span};
use crate::target::{Socket, Target};
use crate::units::RateUnit;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_rig_base::{clock, cpu, socket};

/// What to do when the target takes no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backpressure {
    /// Datagrams on a schedule: wait one quantum, then skip. Everything else: wait.
    #[default]
    Auto,
    Skip,
    Wait,
}

/// How stream bytes are cut into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// A 32-bit little-endian length before each packet.
    Length,
    /// A newline after each packet.
    Newline,
    /// The socket keeps packets apart.
    None,
}

/// How to run a load.
#[derive(Clone, Debug)]
pub struct Options {
    pub target: Target,
    pub duration: Option<Duration>,
    /// Stop with the packet that reaches this many messages.
    pub count: Option<u64>,
    pub threads: u32,
    /// Processors for the threads, in turn.
    pub cpus: Vec<usize>,
    pub quantum: Option<Duration>,
    pub backpressure: Backpressure,
    pub framing: Option<Framing>,
    pub send_buffer: usize,
    /// Send a numbered gauge this often.
    pub markers: Option<Duration>,
    /// Lets a test slow the generator down: time wasted per packet.
    pub handicap: Option<Duration>,
    pub target_buffer: u64,
    pub oversize_ok: bool,
    /// Fail rather than send a packet twice.
    pub no_repeat: bool,
    /// Hand datagrams of one exact size to the kernel glued together (`UDP_SEGMENT`), where it can cut them apart.
    pub gso: bool,
    /// Headers of every HTTP request, as `Name: value`.
    pub headers: Vec<String>,
}

impl Options {
    pub fn new(target: Target) -> Options {
        Options {
            target,
            duration: None,
            count: None,
            threads: 1,
            cpus: Vec::new(),
            quantum: None,
            backpressure: Backpressure::Auto,
            framing: None,
            send_buffer: 4 << 20,
            markers: None,
            handicap: None,
            target_buffer: 65_535,
            oversize_ok: false,
            no_repeat: false,
            gso: false,
            headers: Vec::new(),
        }
    }
}

/// Why a run could not start or had to end.
#[derive(Debug)]
pub enum RunError {
    /// Options or profile cannot be used.
    Usage(String),
    /// The target is missing or went away.
    Target(String),
    Io(io::Error),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Usage(text) | RunError::Target(text) => f.write_str(text),
            RunError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RunError {}

impl From<ProfileError> for RunError {
    fn from(error: ProfileError) -> RunError {
        RunError::Usage(error.0)
    }
}

/// A target that answers no request within this time is taken for dead.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// How long after the end of a schedule a late sender may still send what was due before it.
const CATCH_UP: Duration = Duration::from_millis(100);

/// Counters a running thread shows to others.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Progress {
    pub packets: AtomicU64,
    pub messages: AtomicU64,
    pub bytes: AtomicU64,
    pub refused_packets: AtomicU64,
    pub blocked_ns: AtomicU64,
    pub late_packets: AtomicU64,
}

/// Which packets of a connection's stream were sent: the first `composed`, but for the ranges skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub connection: u32,
    pub composed: u64,
    /// Start and end (excluded), rising.
    pub skipped: Vec<(u64, u64)>,
    /// Packets after which the stream repeats.
    pub cycle: Option<u64>,
}

impl Sent {
    fn skip(&mut self, packet: u64) {
        match self.skipped.last_mut() {
            Some((_, end)) if *end == packet => *end += 1,
            _ => self.skipped.push((packet, packet + 1)),
        }
    }
}

/// Lateness in microseconds, in buckets 1/8 of a power of two wide.
#[derive(Clone, Debug)]
pub struct Lateness {
    buckets: Vec<u64>,
    total: u64,
}

impl Lateness {
    fn new() -> Lateness {
        Lateness {
            buckets: vec![0; 40 * 8],
            total: 0,
        }
    }

    fn add(&mut self, late: Duration, packets: u64) {
        let micros = late.as_micros() as u64 + 1;
        let power = 63 - micros.leading_zeros() as u64;
        let part = ((micros << 3) >> power) & 7;
        let index = ((power * 8 + part) as usize).min(self.buckets.len() - 1);
        self.buckets[index] += packets;
        self.total += packets;
    }

    /// Upper end of the bucket that holds quantile `q`, in seconds.
    pub fn quantile(&self, q: f64) -> f64 {
        let mut left = (self.total as f64 * q).ceil();
        for (index, count) in self.buckets.iter().enumerate() {
            left -= *count as f64;
            if left <= 0.0 && self.total > 0 {
                let (power, part) = (index / 8, index % 8);
                return ((1u64 << power) as f64 * (1.0 + (part + 1) as f64 / 8.0) - 1.0) / 1e6;
            }
        }
        0.0
    }
}

/// What one run did.
#[derive(Clone, Debug)]
pub struct Report {
    pub packets: u64,
    pub messages: u64,
    pub bytes: u64,
    pub elapsed: Duration,
    pub unit: Option<RateUnit>,
    pub scheduled: f64,
    pub achieved: f64,
    pub late_packets: u64,
    pub lateness_p99_s: f64,
    pub blocked: Duration,
    pub refused_packets: u64,
    pub refused_messages: u64,
    pub cpu_user: Duration,
    pub cpu_system: Duration,
    pub run_delay: Duration,
    pub system_calls: u64,
    pub send_buffer: usize,
    pub markers: Vec<crate::manifest::Marker>,
    pub sent: Vec<Sent>,
    pub started_unix_ns: u64,
    pub threads: u32,
    /// Packets the kernel dropped at the target's UDP socket while we sent, where it can be seen.
    pub kernel_drops: Option<u64>,
    /// Datagrams went to the kernel glued together, to the end.
    pub gso: bool,
}

/// Whose fault a shortfall is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    OnSchedule,
    TargetLimited,
    GeneratorLimited,
    HostLimited,
    /// All-out into something that never pushed back and lost nothing.
    Unlimited,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Verdict::OnSchedule => "on-schedule",
            Verdict::TargetLimited => "target-limited",
            Verdict::GeneratorLimited => "generator-limited",
            Verdict::HostLimited => "host-limited",
            Verdict::Unlimited => "unlimited",
        }
    }
}

impl Report {
    /// The split of a shortfall: the target pushed back, the generator was late, or the host gave its core away.
    pub fn verdict(&self) -> Verdict {
        let elapsed = self.elapsed.as_secs_f64() * f64::from(self.threads);
        if elapsed == 0.0 {
            return Verdict::OnSchedule;
        }
        let blocked = self.blocked.as_secs_f64();
        let stolen = self.run_delay.as_secs_f64();
        if self.unit.is_none() {
            if blocked > 0.5 * elapsed || self.kernel_drops.unwrap_or(0) > 0 {
                return Verdict::TargetLimited;
            }
            if stolen > 0.5 * elapsed {
                return Verdict::HostLimited;
            }
            return if blocked == 0.0 && self.kernel_drops == Some(0) {
                Verdict::Unlimited
            } else {
                Verdict::GeneratorLimited
            };
        }
        let missing = 1.0 - self.achieved / self.scheduled.max(1e-9);
        if missing <= 0.01 && self.refused_packets == 0 {
            return Verdict::OnSchedule;
        }
        let missing_time = missing * elapsed;
        if self.refused_packets > 0 || blocked >= 0.5 * missing_time {
            Verdict::TargetLimited
        } else if stolen >= 0.5 * missing_time {
            Verdict::HostLimited
        } else {
            Verdict::GeneratorLimited
        }
    }
}

/// State of one sending thread.
struct Worker<'a> {
    load: &'a Load,
    options: &'a Options,
    connections: Vec<Connection>,
    schedule: Schedule,
    quantum: Duration,
    skip: bool,
    framing: Framing,
    gso: bool,
    progress: Arc<Progress>,
    stop: Arc<AtomicBool>,
    batch: SendBatch,
    buffer: Vec<u8>,
    spans: Vec<Span>,
    dues: Vec<Duration>,
    lateness: Lateness,
    tally: Tally,
    count: u64,
    markers: Vec<crate::manifest::Marker>,
    sends_markers: bool,
}

struct Connection {
    socket: Socket,
    requests: Option<Box<dyn Requests>>,
    source: Box<dyn Source>,
    sent: Sent,
}

#[derive(Clone, Debug, Default)]
struct Tally {
    packets: u64,
    messages: u64,
    bytes: u64,
    late_packets: u64,
    blocked: Duration,
    refused_packets: u64,
    refused_messages: u64,
    system_calls: u64,
    units_due: f64,
    units_sent: f64,
    elapsed: Duration,
    cpu_user: Duration,
    cpu_system: Duration,
    run_delay: Duration,
}

/// How a batch ended.
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

fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos() as u64)
}

/// Drops the kernel counts for UDP sockets bound to a port on this machine.
pub fn udp_drops(port: u16) -> Option<u64> {
    let mut found = None;
    for file in ["/proc/net/udp", "/proc/net/udp6"] {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let bound = fields
                .get(1)
                .and_then(|local| local.rsplit(':').next())
                .and_then(|hex| u16::from_str_radix(hex, 16).ok());
            if bound == Some(port) {
                let drops: u64 = fields.last().and_then(|d| d.parse().ok()).unwrap_or(0);
                found = Some(found.unwrap_or(0) + drops);
            }
        }
    }
    found
}

impl Worker<'_> {
    fn units(&self, span: &Span) -> f64 {
        match self.schedule.unit {
            RateUnit::Messages => f64::from(span.messages),
            RateUnit::Packets => 1.0,
            RateUnit::Bytes => span.len as f64,
        }
    }

    /// Composes what is due, at most a batch, for one connection.
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
            // Messages count as they are composed, so that a count is met exactly at a packet's end.
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

    /// Waits until the target takes more, at most until the end. Returns the time waited.
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
            // A UDP target that was never there is noticed only now. A Unix socket that goes away says so in one of several ways,
            // by where it found the sender.
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

    /// Sends the batch on one connection. Packets given up are recorded with the connection.
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
                // A kernel or device that cannot cut datagrams apart says so with the first of them.
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
                    // A packet cut in the middle is finished for a second, so that a stream ends at a boundary; what was due
                    // in time has a moment, too.
                    let grace = if partial > 0 {
                        Duration::from_secs(1)
                    } else if !self.schedule.is_all_out() {
                        CATCH_UP
                    } else {
                        Duration::ZERO
                    };
                    if now >= end.saturating_add(grace) || self.stop.load(Relaxed) {
                        self.give_up(which, first, done);
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
                    self.give_up(which, first, done);
                    return Err(self.target_error(error));
                }
            }
        }
        Ok(Outcome::Done)
    }

    /// Posts the batch (one packet) and waits for the answer. Answers that ask for less count as refused, rejections end the
    /// run: a target that rejects its load measures nothing.
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
                Ok(Answer::Taken) => self.account(done, 1, start),
                Ok(Answer::Busy) => {
                    self.tally.refused_packets += 1;
                    self.tally.refused_messages += u64::from(span.messages);
                    self.tally.messages -= u64::from(span.messages);
                    self.progress
                        .refused_packets
                        .store(self.tally.refused_packets, Relaxed);
                    connection.sent.skip(first + done as u64);
                }
                Ok(Answer::Rejected(why)) => {
                    self.give_up(which, first, done);
                    return Err(RunError::Target(format!(
                        "{}: answered {why} to a {} request",
                        self.options.target,
                        self.load.profile.payload.name()
                    )));
                }
                Err(error) => {
                    self.give_up(which, first, done);
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
                // Sending at the end of the quantum in which a packet is due is on time.
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

    /// Takes back what was composed and never sent.
    fn give_up(&mut self, which: usize, first: u64, done: usize) {
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
        let sent_unix_ns = unix_now();
        // A marker the target has no room for is left out; a stream never takes half of so few bytes.
        if let Ok(written) = self.connections[0].socket.write(&framed)
            && written == framed.len()
        {
            self.markers.push(crate::manifest::Marker { seq, sent_unix_ns });
        }
    }

    fn run(&mut self, start: Instant, end: Duration) -> Result<(), RunError> {
        let before = clock::usage_of_thread();
        let delay = run_delay();
        let mut next_due = Duration::ZERO;
        if !self.schedule.is_all_out() {
            next_due = self.schedule.due(0.0, 0.0);
        }
        let connections = self.connections.len();
        // A schedule spreads over all connections; small batches keep them all busy.
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
                // What was due before the end is sent, so that the same seed means the same bytes however late the last
                // turn is.
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
                // The end of the quantum in which the next packet is due, so that what is due together goes together.
                let quanta = next_due.as_nanos() / self.quantum.as_nanos() + 1;
                let mut wake = Duration::from_nanos_u128(quanta * self.quantum.as_nanos());
                if self.options.markers.is_some() && self.sends_markers {
                    wake = wake.min(next_marker);
                }
                // A stop asked for is noticed within this time.
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
        let after = clock::usage_of_thread();
        self.tally.cpu_user = after.user.saturating_sub(before.user);
        self.tally.cpu_system = after.system.saturating_sub(before.system);
        self.tally.run_delay = run_delay().saturating_sub(delay);
        result
    }
}

/// A run under way: watch its progress, stop it, wait for its end.
pub struct Running {
    pub progress: Vec<Arc<Progress>>,
    pub stop: Arc<AtomicBool>,
    handle: std::thread::JoinHandle<(Report, Option<RunError>)>,
}

impl Running {
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// The report, and the error that ended the run early if one did.
    pub fn finish(self) -> (Report, Option<RunError>) {
        self.handle.join().expect("the run does not panic")
    }
}

/// Starts a load. Connecting and building happen before this returns; sending starts at once after.
pub fn start(load: &Load, options: &Options) -> Result<Running, RunError> {
    if options.duration.is_none() && options.count.is_none() {
        return Err(RunError::Usage(
            "say when to stop: --duration, --count or both".into(),
        ));
    }
    if options.duration == Some(Duration::ZERO) || options.count == Some(0) {
        return Err(RunError::Usage("duration, count: zero would send nothing".into()));
    }
    for (name, time) in [("quantum", options.quantum), ("markers", options.markers)] {
        if time.is_some_and(|time| time < Duration::from_micros(10)) {
            return Err(RunError::Usage(format!("{name}: must be 10us or longer")));
        }
    }
    let profile = &load.profile;
    let all = profile.connections;
    let http = load.transport == Transport::Http;
    // A request waits for its answer, so every HTTP connection has a thread of its own.
    let threads = if http { all } else { options.threads.clamp(1, all) };
    let asked = load.profile.framing.map(|framing| match framing {
        StreamFraming::Length => Framing::Length,
        StreamFraming::Newline => Framing::Newline,
    });
    let framing = options.framing.or(asked).unwrap_or(match load.transport {
        Transport::Unix => Framing::Length,
        Transport::Tcp if load.profile.payload == crate::profile::Payload::Dogstatsd => Framing::Length,
        Transport::Tcp => Framing::Newline,
        _ => Framing::None,
    });
    if framing != Framing::None && load.transport.is_datagram() {
        return Err(RunError::Usage(format!(
            "framing: {} keeps packets apart by itself; bytes around them would be junk to the target",
            load.transport.name()
        )));
    }
    if framing != Framing::None && http {
        return Err(RunError::Usage("framing: a request is a packet by itself".into()));
    }
    if framing == Framing::None && !load.transport.is_datagram() && !http {
        return Err(RunError::Usage(format!(
            "framing: {} is a stream; choose length or newline",
            load.transport.name()
        )));
    }
    if options.gso
        && (load.transport != Transport::Udp || profile.packet_size_on(load.transport).exact().is_none())
    {
        return Err(RunError::Usage(
            "gso: gluing datagrams together needs udp:// and a profile with `packet_size: {exactly: ...}`"
                .into(),
        ));
    }
    if !options.headers.is_empty() && !http {
        return Err(RunError::Usage(
            "headers: only requests have them, to http:// and grpc://".into(),
        ));
    }
    for header in &options.headers {
        requests::check_header(header).map_err(RunError::Usage)?;
    }
    if matches!(options.target, Target::Grpc { .. }) && crate::grpc::method(profile.payload).is_none() {
        return Err(RunError::Usage(format!(
            "payload {}: grpc:// takes otlp-logs, otlp-metrics and otlp-traces",
            profile.payload.name()
        )));
    }
    let unit = profile.rate_unit();
    let quantum = options.quantum.unwrap_or_else(|| {
        // 1 ms, unless that would be a burst of more packets than a receive buffer of ordinary size holds. Shorter ones cost
        // the sender a fifth more per packet, because it wakes itself and the receiver more often.
        let size = profile.packet_size_on(load.transport).max() as f64;
        let packets = profile.rate.map_or(0.0, |rate| match rate.unit {
            RateUnit::Bytes => rate.per_second / size,
            _ => rate.per_second,
        });
        if packets > 256_000.0 {
            Duration::from_micros(250)
        } else {
            Duration::from_millis(1)
        }
    });
    let skip = match options.backpressure {
        Backpressure::Skip => true,
        Backpressure::Wait => false,
        Backpressure::Auto => load.transport.is_datagram() && unit.is_some(),
    };
    let mut send_buffer = 0;
    let stop = Arc::new(AtomicBool::new(false));
    let mut progress = Vec::new();
    let mut plans = Vec::new();
    for thread in 0..threads {
        let mine: Vec<u32> = (0..all).filter(|c| c % threads == thread).collect();
        let mut connections = Vec::with_capacity(mine.len());
        for &connection in &mine {
            let socket = options
                .target
                .connect()
                .map_err(|error| RunError::Target(format!("{}: cannot connect: {error}", options.target)))?;
            send_buffer =
                socket::set_send_buffer(socket.as_fd(), options.send_buffer).map_err(RunError::Io)?;
            let requests = if http {
                let opened = requests::open(load, &options.target, &socket, &options.headers);
                Some(opened.map_err(|error| RunError::Target(format!("{}: {error}", options.target)))?)
            } else {
                None
            };
            let (source, cycle) = load.source(connection);
            connections.push(Connection {
                socket,
                source,
                requests,
                sent: Sent {
                    connection,
                    composed: 0,
                    skipped: Vec::with_capacity(1024),
                    cycle,
                },
            });
        }
        if !options.oversize_ok {
            load.check_size(options.target_buffer, send_buffer as u64)?;
        }
        if options.no_repeat {
            for connection in &connections {
                check_repeat(load, options, connection)?;
            }
        }
        let schedule = Schedule::new(profile, load.seed, u64::from(thread), mine.len() as u32, all)?;
        let count = match options.count {
            // Shares rounded so that they add up.
            Some(count) => {
                let share = |n: u32| (u128::from(count) * u128::from(n) / u128::from(threads)) as u64;
                share(thread + 1) - share(thread)
            }
            None => u64::MAX,
        };
        let shown = Arc::new(Progress::default());
        progress.push(shown.clone());
        plans.push((connections, schedule, count, shown));
    }
    let options = options.clone();
    let load = load.clone();
    let stop_all = stop.clone();
    let handle = std::thread::spawn(move || {
        run_threads(
            &load,
            &options,
            plans,
            quantum,
            skip,
            framing,
            send_buffer,
            stop_all,
        )
    });
    Ok(Running {
        progress,
        stop,
        handle,
    })
}

fn check_repeat(load: &Load, options: &Options, connection: &Connection) -> Result<(), RunError> {
    let Some(cycle) = connection.sent.cycle else {
        return Ok(());
    };
    let connections = f64::from(load.profile.connections);
    let bytes = load.profile.prebuilt.0 as f64 / connections;
    let (Some(rate), Some(duration)) = (load.profile.rate, options.duration) else {
        return Err(RunError::Usage(
            "no-repeat: a prebuilt load needs a rate and a duration to know that it will not repeat".into(),
        ));
    };
    let units = rate.per_second * duration.as_secs_f64() / connections;
    let fits = match rate.unit {
        RateUnit::Bytes => units <= bytes,
        // At least one message is in each packet.
        RateUnit::Packets | RateUnit::Messages => units <= cycle as f64,
    };
    if fits {
        Ok(())
    } else {
        Err(RunError::Usage(format!(
            "no-repeat: {units:.0} {} in {duration:?} per connection do not fit the prebuilt {} packets ({bytes:.0} bytes); \
             raise `prebuilt`, or use mode composed",
            rate.unit.name(),
            cycle
        )))
    }
}

type Plan = (Vec<Connection>, Schedule, u64, Arc<Progress>);

fn run_threads(
    load: &Load,
    options: &Options,
    plans: Vec<Plan>,
    quantum: Duration,
    skip: bool,
    framing: Framing,
    send_buffer: usize,
    stop: Arc<AtomicBool>,
) -> (Report, Option<RunError>) {
    let threads = plans.len() as u32;
    let end = options.duration.unwrap_or(Duration::MAX);
    let barrier = Barrier::new(plans.len());
    let port = match &options.target {
        Target::Udp(address) => Some(address.port()),
        _ => None,
    };
    let drops_before = port.and_then(udp_drops);
    let started_unix_ns = unix_now();
    let mut error = None;
    let mut total = Tally::default();
    let mut lateness = Lateness::new();
    let mut sent: Vec<Sent> = Vec::new();
    let mut markers = Vec::new();
    let mut scheduled = 0.0;
    let mut gso = options.gso;
    std::thread::scope(|scope| {
        let handles: Vec<_> = plans
            .into_iter()
            .enumerate()
            .map(|(index, (connections, schedule, count, progress))| {
                let stop = stop.clone();
                let barrier = &barrier;
                scope.spawn(move || {
                    let room = connections.iter().map(|c| c.source.room()).max().unwrap_or(0) + 4 + SPARE;
                    // Room for a whole system call of 8 KiB packets. It stays in the second-level cache between composing and
                    // sending; half of it, with half as many packets per call, cost 7 % more per packet.
                    let buffer = (600 << 10).clamp(room, room * BATCH);
                    let mut worker = Worker {
                        load,
                        options,
                        connections,
                        schedule,
                        quantum,
                        skip,
                        framing,
                        gso: options.gso,
                        progress,
                        stop: stop.clone(),
                        batch: SendBatch::new(),
                        buffer: vec![0; buffer],
                        spans: Vec::with_capacity(BATCH),
                        dues: Vec::with_capacity(BATCH),
                        lateness: Lateness::new(),
                        tally: Tally::default(),
                        count,
                        markers: Vec::with_capacity(4096),
                        sends_markers: index == 0,
                    };
                    clock::precise_timers();
                    let mut pinned = Ok(());
                    if !options.cpus.is_empty() {
                        pinned = cpu::pin(&[options.cpus[index % options.cpus.len()]]);
                    }
                    barrier.wait();
                    let result = match pinned {
                        Ok(()) => worker.run(Instant::now(), end),
                        Err(error) => Err(RunError::Usage(format!(
                            "--cpu {}: {error}",
                            options.cpus[index % options.cpus.len()]
                        ))),
                    };
                    if result.is_err() {
                        stop.store(true, Relaxed);
                    }
                    (worker, result)
                })
            })
            .collect();
        for handle in handles {
            let (worker, result) = handle.join().expect("a sender does not panic");
            if let Err(failure) = result {
                error.get_or_insert(failure);
            }
            let tally = worker.tally;
            gso &= worker.gso;
            let asked = tally.elapsed.min(end);
            // A count may end before the time it is scheduled for is over.
            scheduled += if options.count.is_some() {
                worker.schedule.scheduled(asked).min(tally.units_due)
            } else {
                worker.schedule.scheduled(asked)
            };
            total.packets += tally.packets;
            total.messages += tally.messages;
            total.bytes += tally.bytes;
            total.late_packets += tally.late_packets;
            total.blocked += tally.blocked;
            total.refused_packets += tally.refused_packets;
            total.refused_messages += tally.refused_messages;
            total.system_calls += tally.system_calls;
            total.units_sent += tally.units_sent;
            total.cpu_user += tally.cpu_user;
            total.cpu_system += tally.cpu_system;
            total.run_delay += tally.run_delay;
            total.elapsed = total.elapsed.max(tally.elapsed);
            for (mine, theirs) in lateness.buckets.iter_mut().zip(&worker.lateness.buckets) {
                *mine += theirs;
            }
            lateness.total += worker.lateness.total;
            sent.extend(worker.connections.into_iter().map(|c| c.sent));
            markers.extend(worker.markers);
        }
    });
    sent.sort_by_key(|s| s.connection);
    let kernel_drops = match (drops_before, port.and_then(udp_drops)) {
        (Some(before), Some(after)) => Some(after.saturating_sub(before)),
        _ => None,
    };
    let report = Report {
        packets: total.packets,
        messages: total.messages,
        bytes: total.bytes,
        elapsed: total.elapsed,
        unit: load.profile.rate_unit(),
        scheduled,
        achieved: total.units_sent,
        late_packets: total.late_packets,
        lateness_p99_s: lateness.quantile(0.99),
        blocked: total.blocked,
        refused_packets: total.refused_packets,
        refused_messages: total.refused_messages,
        cpu_user: total.cpu_user,
        cpu_system: total.cpu_system,
        run_delay: total.run_delay,
        system_calls: total.system_calls,
        send_buffer,
        markers,
        sent,
        started_unix_ns,
        threads,
        kernel_drops,
        gso,
    };
    (report, error)
}

/// Runs a load to its end.
pub fn run(load: &Load, options: &Options) -> Result<(Report, Option<RunError>), RunError> {
    Ok(start(load, options)?.finish())
}

/// True when connections send different contexts, so that gauges have one last value.
pub fn split(load: &Load) -> bool {
    load.profile.connections == 1 || load.profile.connection_contexts == Sharing::Split
}
