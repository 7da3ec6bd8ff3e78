//! Messages that are looked at for the summary of who uses how much.

use weir_context::UsageSummary;
use weir_protocol::{Kind, Message, Values, parse_line};

use super::fast::{LineCursor, Pending, alias_key};
use super::{Ingest, Received};

impl Ingest {
    /// Looks at those messages of a packet that stand for many others, for the summary. They have been taken already.
    #[inline(never)]
    pub(super) fn sample_messages(&mut self, packet: &Received<'_>) {
        let mut next = 0;
        for number in 0.. {
            // The ends of lines are known since they were scanned.
            let (start, end) = (next, self.scratch.scan.newline(number));
            if start >= packet.bytes.len() {
                return;
            }
            next = end + 1;
            // Most lines are passed by, so their bytes are not touched.
            if end - start <= 1 && matches!(&packet.bytes[start..end], b"" | b"\r") {
                continue;
            }
            let Some(weight) = self.sampler.next() else {
                continue;
            };
            let line = &packet.bytes[start..end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let mut values = std::mem::take(&mut self.scratch.values);
            let mut place = LineCursor {
                start,
                number,
                ..LineCursor::default()
            };
            let pending = self.next_line(packet, &mut place, &mut values);
            values.clear();
            self.scratch.values = values;
            let now = self.aggregator.now();
            if let Some(Pending {
                fast: Some(fast),
                hash,
                ..
            }) = &pending
                // A member may be no text, and then its message was refused.
                && fast.kind != Kind::Set
            {
                let key = alias_key(line, fast, self.sender);
                let samples = u64::from(fast.count.max(1)) * weight;
                if self.contexts.record_known_samples(*hash, &key, samples, now) {
                    continue;
                }
            }
            let options = &self.settings.listeners[packet.listener].parse;
            if let Ok(Message::Metric(metric)) = parse_line(line, options) {
                let values = match metric.values {
                    Values::Numbers(numbers) => numbers.iter().count() as u64,
                    Values::Member(_) => 1,
                };
                self.contexts
                    .record_samples(&metric, self.sender, values * weight, now);
            }
        }
    }

    /// A second has passed.
    pub fn tick_sampler(&mut self) {
        self.sampler.tick();
    }

    /// The next part of a summary of who uses how much, which looks at up to `max` names; the summary when it is complete.
    pub fn summarise(&mut self, max: usize) -> Option<UsageSummary> {
        self.contexts.summarise(max)
    }
}
