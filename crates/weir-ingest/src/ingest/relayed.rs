//! Lines for relays.

use weir_protocol::{ErrorClass, Message, SampleList, parse_line};

use super::fast::LineCursor;
use super::{Ingest, Received};
use crate::counts::IngestCounter;
use crate::relay::Relay;

/// Destinations of relayed lines.
#[derive(Default)]
pub(super) struct Relays {
    pub all: Vec<Relay>,
    /// Lines are relayed and nothing else.
    pub only: bool,
}

impl Ingest {
    /// From now on every valid line also goes to these relays; with `only`, nowhere else.
    pub fn enable_relays(&mut self, relays: Vec<Relay>, only: bool) {
        self.relays = Relays { all: relays, only };
    }

    pub fn take_relays(&mut self) -> Vec<Relay> {
        std::mem::take(&mut self.relays.all)
    }

    pub fn relays_mut(&mut self) -> &mut [Relay] {
        &mut self.relays.all
    }

    /// When a relay has something to hand over, in monotonic nanoseconds.
    pub fn relay_deadline(&self) -> Option<u64> {
        self.relays.all.iter().filter_map(Relay::deadline).min()
    }

    /// Passes the valid lines of a packet to the relays. A separate pass, which costs nothing without relays.
    #[inline(never)]
    pub(super) fn relay_lines(&mut self, packet: &Received<'_>) {
        let mut values = std::mem::take(&mut self.scratch.values);
        self.scratch.scan.scan(packet.bytes);
        let eol_required = self.settings.listeners[packet.listener].parse.eol_required;
        let mut place = LineCursor::default();
        while let Some(pending) = self.next_line(packet, &mut place, &mut values) {
            values.clear();
            let line = &packet.bytes[pending.start as usize..][..pending.len as usize];
            let whole = pending.terminated || !(packet.truncated || eol_required);
            self.relay(packet, line, whole, pending.fast.as_ref().map(|_| pending.hash));
        }
        self.scratch.values = values;
    }

    /// Whether a line is read as several samples and one of them is valid.
    #[cold]
    fn is_sample_list(&self, listener: usize, line: &[u8]) -> bool {
        let listener = &self.settings.listeners[listener];
        let list = SampleList::of(line).filter(|_| listener.sample_lists);
        list.is_some_and(|list| {
            list.lines()
                .any(|line| parse_line(&line, &listener.parse).is_ok())
        })
    }

    /// Gives a line to the relays if it is valid. Where lines are relayed and nothing else, this is also where they are counted.
    fn relay(&mut self, packet: &Received<'_>, line: &[u8], whole: bool, hash: Option<u64>) {
        let options = self.settings.listeners[packet.listener].parse;
        let known = hash.is_some_and(|hash| self.relays.all.iter().all(|relay| relay.is_cached(hash)));
        // A line accepted before was valid; only a value that was parsed again can differ.
        let parsed = match (whole, known) {
            (false, _) => Err(ErrorClass::Unterminated),
            (true, true) => Ok(None),
            (true, false) => match parse_line(line, &options) {
                Err(_) if self.is_sample_list(packet.listener, line) => Ok(None),
                parsed => parsed.map(Some),
            },
        };
        if self.relays.only {
            let counts = &mut self.counts[packet.listener];
            counts[IngestCounter::Messages] += 1;
            match &parsed {
                Ok(None | Some(Message::Metric(_))) => counts[IngestCounter::Metrics] += 1,
                Ok(Some(Message::Event(_))) => counts[IngestCounter::Events] += 1,
                Ok(Some(Message::Check(_))) => counts[IngestCounter::Checks] += 1,
                Err(_) if !whole && packet.truncated => {
                    counts[IngestCounter::RejectedTruncated] += 1;
                    self.keep_example(packet.listener, "truncated", line);
                }
                Err(class) => {
                    counts.rejected[*class] += 1;
                    self.keep_example(packet.listener, class.as_str(), line);
                }
            }
        }
        if parsed.is_ok() {
            for relay in &mut self.relays.all {
                relay.take(hash, line, packet.received);
            }
        }
    }
}
