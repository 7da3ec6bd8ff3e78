//! Messages as they arrive, as server-sent events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use weir_ingest::{SampleDrop, TapBlock, TappedPacket, metric_fault};
use weir_origin::OriginExplanation;
use weir_protocol::{Message, ParseOptions, parse_line};

use super::columns::{SeenRequest, SeenSeries};
use super::message::{
    MessageFilter, MessageOutcome, ParsedLine, TailMessage, lines, refusal, samples_apart, shown,
};
use super::{Next, TAILS, Tapped, Taps, clock_offset};
use crate::streams::{self, Permit, PieceSender, Pieces};
use weir_status::counters::TapCounter;

/// Maximum messages shown per second.
pub const RATE_MAX: u64 = 100;

/// Bytes of packets examined per second: a few thousand messages, a hundredth of a core.
const LOOK_BYTES: u64 = 1 << 20;

/// Maximum events that wait for the reader. A slower reader is disconnected.
const EVENTS_MAX: usize = 64;

const SECOND: Duration = Duration::from_secs(1);

/// Number of remembered senders, and the time each is remembered.
const SENDERS_MAX: usize = 1024;
const SENDER_SECONDS: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TailRequest {
    pub wanted: MessageFilter,
    /// Messages a second.
    pub rate: u64,
}

/// The share of messages shown in the last second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Messages received.
    pub messages: u64,
    /// Of these, the random sample that was examined.
    pub looked_at: u64,
    /// Of these, the ones that match the filter.
    pub matched: u64,
    pub shown: u64,
    /// Estimated share of the matching messages that was shown.
    pub share: f64,
}

impl Share {
    fn finished(mut self) -> Share {
        let part = |of: u64, all: u64| if all == 0 { 1.0 } else { of as f64 / all as f64 };
        // A message that waits for its sender is seen before it is counted.
        self.messages = self.messages.max(self.looked_at);
        self.share = part(self.looked_at, self.messages) * part(self.shown, self.matched);
        self
    }
}

/// Starts a stream. It ends when its reader disconnects or is too slow.
pub fn start(taps: &Arc<Taps>, request: TailRequest, permit: Permit) -> std::io::Result<Pieces> {
    let (events, reader) = streams::pieces(EVENTS_MAX);
    let tapped = taps.open(Some(LOOK_BYTES), taps.room / 2 / TAILS, permit);
    let tail = Tail {
        random: 0x9e37_79b9_7f4a_7c15 ^ clock_offset() as u64 | 1,
        tapped,
        request,
        events,
        out: Vec::new(),
        now: Share::default(),
        matched_before: 0,
        senders: HashMap::new(),
    };
    std::thread::Builder::new()
        .name("tail".into())
        .spawn(move || tail.run())?;
    Ok(reader)
}

struct Tail {
    tapped: Tapped,
    request: TailRequest,
    events: PieceSender,
    /// Events not sent yet.
    out: Vec<u8>,
    /// Numbers of the current second.
    now: Share,
    /// Matching messages in the previous second.
    matched_before: u64,
    random: u64,
    /// By process, with the time of the look-up.
    senders: HashMap<i32, (Instant, OriginExplanation)>,
}

impl Tail {
    fn run(mut self) {
        if !self.tapped.begin() {
            return;
        }
        // Tells a reader that the stream has begun.
        self.out.extend_from_slice(b": weir\n\n");
        let mut second = Instant::now() + SECOND;
        while self.send() {
            match self.tapped.next(second) {
                Next::Block(kept) => {
                    self.take(&kept.block);
                    if let Some(request) = &kept.request {
                        self.take_columns(request);
                    }
                }
                Next::Time => {}
                Next::Ended => return self.events.finish(),
            }
            if Instant::now() >= second {
                second = Instant::now() + SECOND;
                self.report_share();
            }
        }
    }

    /// Returns false if the reader has disconnected or is too slow.
    fn send(&mut self) -> bool {
        if self.out.is_empty() {
            return !self.events.is_closed();
        }
        let sent = self.events.try_send(Bytes::from(std::mem::take(&mut self.out)));
        if let Err(mpsc::error::TrySendError::Full(_)) = sent {
            self.tapped.taps.count(TapCounter::ReadersDropped, 1);
        }
        sent.is_ok()
    }

    fn report_share(&mut self) {
        self.matched_before = self.now.matched;
        let share = std::mem::take(&mut self.now).finished();
        self.event("share", &share);
    }

    fn event(&mut self, name: &str, data: &impl Serialize) {
        self.out
            .extend_from_slice(format!("event: {name}\ndata: ").as_bytes());
        // Serializing cannot fail: maps have string keys, and Serialize is derived.
        let _ = serde_json::to_writer(&mut self.out, data);
        self.out.extend_from_slice(b"\n\n");
    }

    fn take(&mut self, block: &TapBlock) {
        let offset = clock_offset();
        self.now.messages += block.messages;
        let taps = self.tapped.taps.clone();
        for (packet, bytes) in block.iter() {
            let Some(listener) = taps.listeners.get(usize::from(packet.listener)) else {
                continue;
            };
            let unix = i128::from(packet.received) + offset;
            let time = unix as f64 / 1e9;
            let seconds = (unix / 1_000_000_000) as i64;
            let bytes = samples_apart(bytes, &listener.reading);
            let mut messages = lines(&bytes, packet.truncated, &listener.reading.parse).peekable();
            let mut first = true;
            while let Some(line) = messages.next() {
                let alone = std::mem::replace(&mut first, false) && messages.peek().is_none();
                self.now.looked_at += 1;
                if self.request.wanted.wants(&line) && self.chosen() {
                    let mut seen = self.seen(&taps, packet, &line, seconds, alone);
                    seen.time = (time * 1e6).round() / 1e6;
                    self.event("message", &seen);
                }
            }
        }
    }

    fn take_columns(&mut self, request: &SeenRequest) {
        let taps = self.tapped.taps.clone();
        let time = (i128::from(request.received) + clock_offset()) as f64 / 1e9;
        let time = (time * 1e6).round() / 1e6;
        // One that could not be read is shown as a whole.
        if request.series.is_empty()
            && let Some((verdict, reason)) = &request.refused
        {
            self.now.looked_at += 1;
            let is_rejected = *verdict == MessageOutcome::Rejected;
            if self.request.wanted.wants_named(&request.what, "", is_rejected) && self.chosen() {
                let mut seen = self.of_columns(&taps, request, &request.what);
                (seen.time, seen.verdict, seen.reason) = (time, *verdict, Some(reason.clone()));
                self.event("message", &seen);
            }
        }
        for series in &request.series {
            self.now.looked_at += 1;
            let is_rejected = matches!(series.fault, Some((MessageOutcome::Rejected, _)));
            if !self
                .request
                .wanted
                .wants_named(&series.name, &series.tags, is_rejected)
                || !self.chosen()
            {
                continue;
            }
            let mut seen = self.of_columns(&taps, request, &series.line);
            seen.time = time;
            if let Some((verdict, reason)) = self.verdict_of_columns(&taps, request, series) {
                (seen.verdict, seen.reason) = (verdict, Some(reason));
            }
            self.event("message", &seen);
        }
    }

    fn of_columns(&mut self, taps: &Taps, request: &SeenRequest, line: &str) -> TailMessage {
        let pid = Some(request.pid).filter(|pid| *pid > 0);
        let sender = pid.map(|pid| self.sender(taps, pid)).unwrap_or_default();
        TailMessage {
            listener: taps.listeners[request.listener].address.clone(),
            pid,
            address: request.address.map(|address| address.to_canonical().to_string()),
            container: sender.container,
            line: shown(line.as_bytes()),
            bytes: line.len(),
            ..TailMessage::default()
        }
    }

    /// Why a series is not added. `None`: it is.
    fn verdict_of_columns(
        &mut self,
        taps: &Taps,
        request: &SeenRequest,
        series: &SeenSeries,
    ) -> Option<(MessageOutcome, String)> {
        if let Some(refused) = &request.refused {
            return Some(refused.clone());
        }
        if let Some((verdict, reason)) = series.fault {
            return Some((verdict, reason.to_owned()));
        }
        let sender = match request.pid {
            pid if pid > 0 => self.sender(taps, pid),
            _ => OriginExplanation::default(),
        };
        let options = ParseOptions {
            origin_client: true,
            ..ParseOptions::default()
        };
        let listener = &taps.listeners[request.listener];
        if let Ok(message) = parse_line(series.message.as_bytes(), &options)
            && let Some(rule) = taps.knowledge.dropped(&message, &sender, listener)
        {
            return Some((MessageOutcome::Dropped, rule));
        }
        // Of several series, the affected one is unknown.
        let is_limited = request.all == 1 && request.limited > 0;
        is_limited.then(|| (MessageOutcome::Limited, "context_limit".to_owned()))
    }

    /// Whether a matching message is shown; a random choice if there are many.
    fn chosen(&mut self) -> bool {
        self.now.matched += 1;
        let rate = self.request.rate;
        if self.now.shown >= rate || self.random_below(self.matched_before.max(1)) >= rate {
            return false;
        }
        self.now.shown += 1;
        true
    }

    fn random_below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }

    fn seen(
        &mut self,
        taps: &Taps,
        packet: &TappedPacket,
        line: &ParsedLine<'_>,
        now: i64,
        alone: bool,
    ) -> TailMessage {
        let listener = &taps.listeners[usize::from(packet.listener)];
        let pid = packet.sender.map(|sender| sender.pid).filter(|pid| *pid > 0);
        let sender = pid.map(|pid| self.sender(taps, pid)).unwrap_or_default();
        let mut seen = TailMessage {
            listener: listener.address.clone(),
            pid,
            address: packet.source.map(|source| {
                std::net::SocketAddr::new(source.ip().to_canonical(), source.port()).to_string()
            }),
            container: sender.container.clone(),
            line: shown(line.bytes),
            bytes: line.bytes.len(),
            ..TailMessage::default()
        };
        let because = |reason: &str| Some(reason.to_owned());
        if let Some(reason) = refusal(&packet.outcome) {
            (seen.verdict, seen.reason) = (MessageOutcome::Refused, because(reason));
        } else if let Some((reason, bad)) = line.bad(&listener.reading.parse) {
            (seen.verdict, seen.reason) = (MessageOutcome::Rejected, because(reason));
            seen.bad = Some(bad);
        } else if let Ok(Message::Metric(metric)) = &line.parsed
            && let Some(fault) = metric_fault(metric, now)
        {
            // Before the rules: its worker looks for these first.
            (seen.verdict, seen.reason) = (MessageOutcome::Dropped, because(fault.as_str()));
        } else if let Ok(message) = &line.parsed
            && let Some(rule) = taps.knowledge.dropped(message, &sender, listener)
        {
            (seen.verdict, seen.reason) = (MessageOutcome::Dropped, Some(rule));
        } else if alone && packet.outcome.limited > 0 {
            // With several messages in a packet, the affected one is unknown.
            (seen.verdict, seen.reason) = (MessageOutcome::Limited, because("context_limit"));
        } else if alone && packet.outcome.not_queued > 0 {
            (seen.verdict, seen.reason) = (MessageOutcome::Dropped, because(SampleDrop::QueueFull.as_str()));
        }
        seen
    }

    fn sender(&mut self, taps: &Taps, pid: i32) -> OriginExplanation {
        let now = Instant::now();
        if let Some((at, sender)) = self.senders.get(&pid)
            && now < *at + SENDER_SECONDS
        {
            return sender.clone();
        }
        if self.senders.len() >= SENDERS_MAX {
            self.senders.clear();
        }
        let sender = taps.knowledge.sender(pid);
        self.senders.insert(pid, (now, sender.clone()));
        sender
    }
}
