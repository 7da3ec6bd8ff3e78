//! One client: it collects messages as the schedule says, and sends a window when it ends. A request has a number, and is sent again with it
//! until the target has answered, so that the target can add it once.

use super::window::{Request, Window};
use crate::compose::Composer;
use crate::http::connection;
use crate::manifest::{ColumnClient, ColumnWindow};
use crate::run::{Lateness, Options, Progress, RunError, SentStream, Tally};
use crate::schedule::Schedule;
use crate::source::Load;
use crate::target::Target;
use crate::units::RateUnit;
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use weir_rig_base::clock;

/// Without an answer within this time the target counts as dead.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same after the run was stopped.
const PATIENCE_AT_STOP: Duration = Duration::from_secs(5);
/// A request that takes longer is sent again: an agent answers within about a second.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// The first pause before a repetition, and the longest, if the target names none.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Messages are composed in the course of a window, not all at its end.
const STEP_MAX: Duration = Duration::from_millis(500);
const STEPS_OF_A_WINDOW: u32 = 20;
/// Packets between two looks at the clock, without a schedule.
const PACKETS_AT_ONCE: usize = 32;

pub(super) struct Client<'a> {
    load: &'a Load,
    options: &'a Options,
    stop: &'a AtomicBool,
    progress: Arc<Progress>,
    pub schedule: Schedule,
    source: Composer,
    pub sent: SentStream,
    /// Messages that it may send, and has composed.
    count: u64,
    composed: u64,
    /// Header lines that all requests have.
    head: String,
    /// Of the last request.
    number: u64,
    pub books: ColumnClient,
    pub tally: Tally,
    pub lateness: Lateness,
    buffer: Vec<u8>,
    window: Window,
    /// The first packet of the open window, and its units so far.
    first_packet: u64,
    units: f64,
}

/// The fate of one transmission.
enum Answer {
    Taken {
        again: bool,
    },
    /// Not now, or unknown; perhaps with the time to wait.
    Later(String, Option<Duration>),
    Refused(String),
}

/// 128 random bits. With those of an earlier run, the target would take the requests of this one for repetitions.
fn random_name() -> io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut name = String::new();
    for byte in bytes {
        let _ = write!(name, "{byte:02x}");
    }
    Ok(name)
}

impl<'a> Client<'a> {
    pub fn new(
        load: &'a Load,
        options: &'a Options,
        stop: &'a AtomicBool,
        number: u32,
        progress: Arc<Progress>,
    ) -> Result<Client<'a>, RunError> {
        let model = load.model.as_ref().expect("a load of metrics");
        let all = load.profile.connections;
        let id = random_name().map_err(RunError::Io)?;
        let host = match &options.target {
            Target::Http { host, .. } => host.as_str(),
            _ => "localhost",
        };
        let mut head = format!(
            "Host: {host}\r\nUser-Agent: weir-load\r\nContent-Type: application/x-protobuf\r\nConnection: close\r\n\
             x-weir-client: {id}\r\n"
        );
        for header in &options.headers {
            head.push_str(header);
            head.push_str("\r\n");
        }
        // Rounded shares with an exact sum.
        let upto = |count: u64, n: u32| (u128::from(count) * u128::from(n) / u128::from(all)) as u64;
        let source = Composer::new(model, number, all);
        Ok(Client {
            load,
            options,
            stop,
            progress,
            schedule: Schedule::new(&load.profile, load.seed, u64::from(number), 1, all)?,
            buffer: vec![0; source.packet_room()],
            source,
            sent: SentStream {
                connection: number,
                ..SentStream::default()
            },
            count: options
                .count
                .map_or(u64::MAX, |count| upto(count, number + 1) - upto(count, number)),
            composed: 0,
            head,
            number: 0,
            books: ColumnClient {
                connection: number,
                id,
                ..ColumnClient::default()
            },
            tally: Tally::default(),
            lateness: Lateness::new(),
            window: Window::new(model),
            first_packet: 0,
            units: 0.0,
        })
    }

    /// Sends what is due until the end. Windows are those of the wall clock; the last one ends with the run.
    pub fn run(&mut self, start: Instant, end: Duration) -> Result<(), RunError> {
        let before = clock::usage_of_thread();
        let result = self.windows(start, end);
        self.tally.elapsed = start.elapsed();
        let after = clock::usage_of_thread();
        self.tally.cpu_user = after.user.saturating_sub(before.user);
        self.tally.cpu_system = after.system.saturating_sub(before.system);
        result
    }

    fn windows(&mut self, start: Instant, end: Duration) -> Result<(), RunError> {
        let origin = clock::unix_ns().saturating_sub(start.elapsed().as_nanos() as u64);
        let width = self.load.profile.window.0;
        let width_ns = width.as_nanos() as u64;
        let step = (width / STEPS_OF_A_WINDOW).min(STEP_MAX);
        let all_out = self.schedule.is_all_out();
        let mut begins = origin / width_ns * width_ns;
        let mut next_due = match all_out {
            true => Duration::ZERO,
            false => self.schedule.due(0.0, 0.0),
        };
        loop {
            let boundary = Duration::from_nanos(begins + width_ns - origin).min(end);
            let now = start.elapsed();
            let is_stopped = self.stop.load(Relaxed);
            self.compose(&mut next_due, now.min(boundary));
            let is_over = boundary == end && now >= end || self.composed >= self.count;
            if now >= boundary || is_over || is_stopped {
                let ended = Ended {
                    start: (begins / 1_000_000_000) as i64,
                    width: width.as_secs(),
                    at: boundary.min(now),
                };
                self.send(&ended, start)?;
                if is_over || is_stopped {
                    return Ok(());
                }
                begins += width_ns;
            } else if !all_out {
                clock::sleep_until(start, boundary.min(now + step));
            }
        }
    }

    /// Composes what is due before a time; without a schedule, a few packets.
    fn compose(&mut self, next_due: &mut Duration, until: Duration) {
        let all_out = self.schedule.is_all_out();
        let mut packets = 0;
        while *next_due < until && self.composed < self.count && !(all_out && packets == PACKETS_AT_ONCE) {
            let packet = self.source.packet_with(&mut self.buffer, &mut self.window);
            packets += 1;
            self.sent.composed += 1;
            self.composed += u64::from(packet.messages);
            let units = match self.schedule.unit {
                RateUnit::Messages => f64::from(packet.messages),
                RateUnit::Packets => 1.0,
                RateUnit::Bytes => packet.len as f64,
            };
            self.units += units;
            if !all_out {
                self.tally.units_due += units;
                *next_due = self.schedule.due(self.tally.units_due, units);
            }
        }
    }

    /// Sends the window that has ended.
    fn send(&mut self, ended: &Ended, start: Instant) -> Result<(), RunError> {
        let model = self.load.model.as_ref().expect("a load of metrics");
        let window = std::mem::replace(&mut self.window, Window::new(model));
        let packets = (self.first_packet, self.sent.composed);
        let units = std::mem::take(&mut self.units);
        self.first_packet = self.sent.composed;
        if window.messages == 0 {
            return Ok(());
        }
        let messages = window.messages;
        let requests = window.requests(ended.start, ended.width);
        let mut of = ColumnWindow {
            start: ended.start,
            packets,
            messages,
            series: requests.iter().map(|request| request.series).sum(),
            first_request: self.number + 1,
            requests: requests.len() as u64,
            acknowledged: true,
        };
        let mut result = Ok(());
        for request in &requests {
            let late = start.elapsed().saturating_sub(ended.at);
            self.lateness.add(late, 1);
            self.tally.late_packets += u64::from(late > self.load.profile.window.0 / 10);
            result = self.deliver(request);
            if result.is_err() {
                of.acknowledged = false;
                break;
            }
        }
        if of.acknowledged {
            self.tally.messages += messages;
            self.tally.units_sent += units;
            self.progress.messages.store(self.tally.messages, Relaxed);
        } else {
            // Nobody knows how much of it was added.
            (packets.0..packets.1).for_each(|packet| self.sent.skip(packet));
        }
        self.books.windows.push(of);
        result
    }

    /// Sends a request until it is answered.
    fn deliver(&mut self, request: &Request) -> Result<(), RunError> {
        self.number += 1;
        let begun = Instant::now();
        let mut give_up = begun + PATIENCE;
        let mut pause = PAUSE;
        loop {
            let answer = self.transmit(request);
            match answer {
                Answer::Taken { again } => {
                    self.books.requests += 1;
                    self.books.series += request.series;
                    self.books.duplicates += u64::from(again);
                    self.tally.packets += 1;
                    self.tally.bytes += request.body.len() as u64;
                    self.tally.blocked += begun.elapsed();
                    self.progress.packets.store(self.tally.packets, Relaxed);
                    self.progress.bytes.store(self.tally.bytes, Relaxed);
                    let blocked = self.tally.blocked.as_nanos() as u64;
                    self.progress.blocked_ns.store(blocked, Relaxed);
                    return Ok(());
                }
                Answer::Refused(why) => {
                    let target = &self.options.target;
                    return Err(RunError::Target(format!(
                        "{target}: answered {why} to a request with columns"
                    )));
                }
                Answer::Later(why, wanted) => {
                    if self.stop.load(Relaxed) {
                        give_up = give_up.min(begun + PATIENCE_AT_STOP);
                    }
                    if Instant::now() >= give_up {
                        return Err(RunError::Target(format!(
                            "{}: request {} was not acknowledged within {:?}: {why}",
                            self.options.target,
                            self.number,
                            begun.elapsed()
                        )));
                    }
                    std::thread::sleep(wanted.unwrap_or(pause).min(PAUSE_MAX));
                    pause = (pause * 2).min(PAUSE_MAX);
                    self.books.sent_again += 1;
                }
            }
        }
    }

    /// Sends a request once, on a connection of its own as our clients do.
    fn transmit(&mut self, request: &Request) -> Answer {
        let target = &self.options.target;
        let base = match target {
            Target::Http { path, .. } => path.trim_end_matches('/'),
            _ => "",
        };
        // One request at a time, so it is also the oldest.
        let head = format!(
            "POST {base}{} HTTP/1.1\r\n{}x-weir-sequence: {}\r\nx-weir-oldest: {}\r\nContent-Length: {}\r\n\r\n",
            request.path,
            self.head,
            self.number,
            self.number,
            request.body.len()
        );
        let response = target
            .connect()
            .and_then(|socket| connection(&socket))
            .and_then(|mut connection| {
                connection.exchange(&head, &request.body, Instant::now() + ANSWER_TIME)
            });
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                self.books.unanswered += 1;
                return Answer::Later(error.to_string(), None);
            }
        };
        let status = response.status;
        let text = String::from_utf8_lossy(&response.body);
        let why = format!("{status} {}", text.lines().next().unwrap_or_default());
        match status {
            200..=299 => Answer::Taken {
                again: response.header("x-weir-duplicate").is_some(),
            },
            408 | 429 | 500..=599 => {
                self.books.busy += 1;
                let seconds = response.header("retry-after").and_then(|text| text.parse().ok());
                Answer::Later(why, seconds.map(Duration::from_secs))
            }
            _ => Answer::Refused(why),
        }
    }
}

/// A window whose time is over.
struct Ended {
    /// Seconds since 1970, and its length.
    start: i64,
    width: u64,
    /// From the start of the run.
    at: Duration,
}
