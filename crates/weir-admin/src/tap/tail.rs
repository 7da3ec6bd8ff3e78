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
    let (tail, reader) = Tail::new(taps, request, permit);
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
    fn new(taps: &Arc<Taps>, request: TailRequest, permit: Permit) -> (Tail, Pieces) {
        let (events, mut reader) = streams::pieces(EVENTS_MAX);
        let tapped = taps.open(Some(LOOK_BYTES), taps.room / 2 / TAILS, vec![permit]);
        reader.hold(tapped.open.clone());
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
        (tail, reader)
    }

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
            self.tapped.open.taps.count(TapCounter::ReadersDropped, 1);
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
        let taps = self.tapped.open.taps.clone();
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
        let taps = self.tapped.open.taps.clone();
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use serde_json::{Value, json};
    use weir_ingest::{PacketOutcome, RefusalReason};
    use weir_listener::Credentials;

    use super::*;

    fn tail(wanted: MessageFilter, rate: u64) -> (Tail, Pieces) {
        let taps = Taps::double();
        let permit = taps.streams.open().unwrap();
        Tail::new(&taps, TailRequest { wanted, rate }, permit)
    }

    fn packet(bytes: &[u8], outcome: PacketOutcome) -> (TappedPacket, &[u8]) {
        let packet = TappedPacket {
            listener: 0,
            length: bytes.len() as u32,
            received: 0,
            truncated: false,
            sender: None,
            source: None,
            outcome,
        };
        (packet, bytes)
    }

    fn block(packets: &[(TappedPacket, &[u8])], messages: u64) -> TapBlock {
        TapBlock {
            packets: packets.iter().map(|(packet, _)| packet.clone()).collect(),
            bytes: packets.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect(),
            messages,
            ..TapBlock::default()
        }
    }

    /// Data of the events of this name that were made.
    fn made(tail: &Tail, name: &str) -> Vec<Value> {
        let text = std::str::from_utf8(&tail.out).unwrap();
        let events = text.split("\n\n").filter_map(|event| {
            let data = event.strip_prefix(&format!("event: {name}\ndata: "))?;
            Some(serde_json::from_str(data).unwrap())
        });
        events.collect()
    }

    /// Line, verdict and reason of each message.
    fn verdicts(tail: &Tail) -> Vec<[String; 3]> {
        let messages = made(tail, "message").into_iter();
        let parts = messages.map(|of| {
            ["line", "verdict", "reason"].map(|key| of[key].as_str().unwrap_or_default().to_owned())
        });
        parts.collect()
    }

    #[test]
    fn messages_have_their_sender_and_their_result() {
        let accepted = PacketOutcome::default();
        let lines = b"page.views:1|c|#user:ann\nnoisy.x:1|c\npage.views:one\xff|c\n";
        let (mut over_udp, lines) = packet(lines, accepted);
        over_udp.source = Some(SocketAddr::from(([127, 0, 0, 1], 9)));
        let (mut local, of_local) = packet(b"local:1|c", accepted);
        local.sender = Some(Credentials {
            pid: 7,
            uid: 0,
            gid: 0,
        });
        let limited = PacketOutcome {
            limited: 1,
            ..accepted
        };
        let with = |outcome| packet(b"a:1|c", outcome);
        let all = block(
            &[
                (over_udp, lines),
                (local, of_local),
                with(limited),
                packet(b"one:1|c\ntwo:1|c", limited),
                with(PacketOutcome {
                    not_queued: 1,
                    ..accepted
                }),
                with(PacketOutcome {
                    rate_limited: true,
                    ..accepted
                }),
                with(PacketOutcome {
                    refused: Some(RefusalReason::NotAllowed),
                    ..accepted
                }),
            ],
            10,
        );
        let (mut tail, _reader) = self::tail(MessageFilter::default(), RATE_MAX);
        tail.take(&all);
        let expected = [
            ["page.views:1|c|#user:ann", "accepted", ""],
            ["noisy.x:1|c", "dropped", "rule noise"],
            ["page.views:one\\xff|c", "rejected", "bad_value"],
            ["local:1|c", "accepted", ""],
            ["a:1|c", "limited", "context_limit"],
            ["one:1|c", "accepted", ""],
            ["two:1|c", "accepted", ""],
            ["a:1|c", "dropped", SampleDrop::QueueFull.as_str()],
            ["a:1|c", "refused", "origin_rate_limited"],
            ["a:1|c", "refused", "origin_not_allowed"],
        ];
        assert_eq!(verdicts(&tail), expected.map(|parts| parts.map(str::to_owned)));
        let messages = made(&tail, "message");
        assert_eq!(messages[0]["listener"], "udp://127.0.0.1:1");
        assert_eq!(messages[0]["address"], "127.0.0.1:9");
        assert_eq!(messages[2]["bad"]["offset"], 11);
        assert_eq!(messages[3]["pid"], 7);
        assert_eq!(messages[3]["container"], "of 7");

        let rejected = MessageFilter {
            rejected_only: true,
            ..MessageFilter::default()
        };
        let (mut tail, _reader) = self::tail(rejected, RATE_MAX);
        tail.take(&all);
        assert_eq!(made(&tail, "message").len(), 1);
    }

    /// A tail says of samples that no bucket takes what their worker says.
    #[test]
    fn samples_that_are_dropped_for_their_time_or_value_are_shown_as_that() {
        const DAY: i64 = 24 * 60 * 60;
        // Packets are received when the monotonic clock begins.
        let now = (clock_offset() / 1_000_000_000) as i64;
        let cases = [
            (format!("far:1|c|T{}", now * 1000), "future_timestamp"),
            (format!("ahead:1|g|T{}", now + DAY + 3600), "future_timestamp"),
            (format!("soon:1|g|T{}", now + DAY - 3600), ""),
            ("old:1|c|T1".to_owned(), ""),
            (format!("set:x|s|T{now}"), "unsupported_timestamped_type"),
            (
                format!("dist:1|d|T{}", now * 1000),
                "unsupported_timestamped_type",
            ),
            ("packed:1:nan:2|g".to_owned(), "non_finite"),
        ];
        let lines: Vec<&str> = cases.iter().map(|(line, _)| line.as_str()).collect();
        let (mut tail, _reader) = tail(MessageFilter::default(), RATE_MAX);
        tail.take(&block(
            &[packet(lines.join("\n").as_bytes(), PacketOutcome::default())],
            7,
        ));
        let expected = cases.map(|(line, reason)| {
            let verdict = if reason.is_empty() { "accepted" } else { "dropped" };
            [line, verdict.to_owned(), reason.to_owned()]
        });
        assert_eq!(verdicts(&tail), expected);
    }

    #[test]
    fn of_many_messages_some_are_shown_with_their_share() {
        let (mut tail, _reader) = tail(MessageFilter::default(), 20);
        let lines: String = (0..100).map(|at| format!("many.{at}:1|c\n")).collect();
        // As many again were not looked at.
        tail.take(&block(&[packet(lines.as_bytes(), PacketOutcome::default())], 200));
        tail.report_share();
        assert_eq!(made(&tail, "message").len(), 20);
        let expected = json!({"messages": 200, "looked_at": 100, "matched": 100, "shown": 20, "share": 0.1});
        assert_eq!(made(&tail, "share"), [expected]);
    }

    #[test]
    fn a_reader_that_is_stuck_or_gone_ends_its_stream() {
        let (mut tail, reader) = tail(MessageFilter::default(), 1);
        let taps = tail.tapped.open.taps.clone();
        let mut send = || {
            tail.out.push(b'x');
            tail.send()
        };
        assert!((0..EVENTS_MAX).all(|_| send()));
        assert!(!send(), "no more events may wait");
        assert_eq!(taps.lock()[TapCounter::ReadersDropped], 1);
        drop(reader);
        assert!(!send());
        assert!(!tail.send(), "nothing is to be sent");
        assert_eq!(taps.lock()[TapCounter::ReadersDropped], 1);
        drop(tail);
        assert_eq!(taps.lock()[TapCounter::Streams], 0);
    }
}
