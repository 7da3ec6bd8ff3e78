//! The short cut: metrics whose bytes were seen before, looked up and added without being parsed.

use weir_context::{AliasKey, ContextId, Lookup, OriginId, compiled_for_levels};
use weir_protocol::{FastMetric, Kind, parse_fast};

use super::{Ingest, Received};
use crate::counts::IngestCounter;
use crate::counts::SampleDrop;

/// Lines looked up together. Enough to have several loads from memory on their way, few enough to stay in the first-level
/// cache with their values.
pub(super) const GROUP_LINES: usize = 32;

/// Aliases from which on a look-up is worth preparing: below, keys, targets and state fit the second-level cache.
const PREFETCH_ALIASES_MIN: usize = 4096;

/// A line that is read and not looked up yet.
pub(super) struct Pending {
    /// Its place in the packet.
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) terminated: bool,
    pub(super) fast: Option<FastMetric>,
    /// Start of its numbers.
    pub(super) first_value: u32,
    pub(super) hash: u64,
}

/// Start of the next line in a packet, and the number of lines before it.
#[derive(Default)]
pub(super) struct LineCursor {
    pub(super) start: usize,
    pub(super) number: usize,
}

/// The counts of a group, to be added to its listener's.
#[derive(Default)]
struct Tally {
    messages: u64,
    samples: u64,
    /// Samples that a rule drops.
    filtered: u64,
    rate_errors: u64,
}

#[inline]
pub(super) fn alias_key<'a>(line: &'a [u8], fast: &FastMetric, sender: OriginId) -> AliasKey<'a> {
    AliasKey {
        head: AliasKey::head(fast.kind, sender),
        name: &line[..fast.name_end as usize],
        tail: &line[fast.tail as usize..],
    }
}

/// The tags of a tail that is nothing but a tag section, or nothing at all.
fn only_tags(tail: &[u8]) -> Option<&[u8]> {
    if tail.is_empty() {
        return Some(tail);
    }
    let tags = tail.strip_prefix(b"|#")?;
    memchr::memchr(b'|', tags).is_none().then_some(tags)
}

impl Ingest {
    /// The lines of a packet that has been counted.
    pub(super) fn lines(&mut self, packet: Received<'_>) {
        let listener = &self.settings.listeners[packet.listener];
        self.sender = self.sender.read(listener.names);
        self.scratch.gauge_deltas = listener.gauge_deltas;
        if !self.relays.all.is_empty() {
            self.relay_lines(&packet);
            if self.relays.only {
                return;
            }
        }
        self.lines_aggregated(&packet);
    }

    compiled_for_levels! {
        fn lines_aggregated(&mut self: Ingest, packet: &Received<'_>);
        level: self.settings.secret.level();
        body: lines_inlined
    }

    #[inline(always)]
    fn lines_inlined(&mut self, packet: &Received<'_>) {
        let mut values = std::mem::take(&mut self.scratch.values);
        self.scratch.scan.scan(packet.bytes);
        let mut tally = Tally::default();
        // In small tables everything is in the cache anyway.
        if self.contexts.aliases() > PREFETCH_ALIASES_MIN {
            self.lines_grouped(packet, &mut values, &mut tally);
        } else {
            self.lines_sequential(packet, &mut values, &mut tally);
        }
        self.scratch.values = values;
        let counts = &mut self.counts[packet.listener];
        counts[IngestCounter::Messages] += tally.messages;
        counts[IngestCounter::Metrics] += tally.messages;
        counts[IngestCounter::Samples] += tally.samples + tally.filtered;
        counts[IngestCounter::SamplesAggregated] += tally.samples;
        counts.samples_dropped[SampleDrop::Filtered] += tally.filtered;
        counts[IngestCounter::RateErrors] += tally.rate_errors;
    }

    /// One line after the other, each read before the one in front of it is looked up: while the look-up waits for its memory
    /// the processor has something to read, and the slot of the next look-up is on its way.
    #[inline(always)]
    fn lines_sequential(&mut self, packet: &Received<'_>, values: &mut Vec<f64>, tally: &mut Tally) {
        let mut place = LineCursor::default();
        let mut next = self.next_line(packet, &mut place, values);
        while let Some(pending) = next {
            next = self.next_line(packet, &mut place, values);
            if let Some(next) = &next {
                self.contexts.prefetch_alias(next.hash);
            }
            self.add_line(packet, &pending, values, tally);
        }
        values.clear();
    }

    /// Lines in groups, in steps that each ask for the memory the next one needs.
    #[inline(always)]
    fn lines_grouped(&mut self, packet: &Received<'_>, values: &mut Vec<f64>, tally: &mut Tally) {
        let mut group = std::mem::take(&mut self.scratch.group);
        let mut place = LineCursor::default();
        loop {
            while group.len() < GROUP_LINES
                && let Some(pending) = self.next_line(packet, &mut place, values)
            {
                self.contexts.prefetch_alias(pending.hash);
                group.push(pending);
            }
            if group.is_empty() {
                break;
            }
            self.prefetch_group(&group);
            for pending in &group {
                self.add_line(packet, pending, values, tally);
            }
            group.clear();
            values.clear();
        }
        self.scratch.group = group;
    }

    /// Reads the line at `place`, or behind it where that is empty, up to what identifies it; appends its numbers to `values`.
    #[inline(always)]
    pub(super) fn next_line(
        &self,
        packet: &Received<'_>,
        place: &mut LineCursor,
        values: &mut Vec<f64>,
    ) -> Option<Pending> {
        let options = &self.settings.listeners[packet.listener].parse;
        loop {
            let from = place.start;
            if from >= packet.bytes.len() {
                return None;
            }
            let newline = self.scratch.scan.newline(place.number);
            *place = LineCursor {
                start: newline + 1,
                number: place.number + 1,
            };
            let terminated = newline < packet.bytes.len();
            let line = &packet.bytes[from..newline];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let first_value = values.len() as u32;
            let whole = terminated || !(packet.truncated || options.eol_required);
            let fast = if whole {
                let colon = self.scratch.scan.colon(from);
                parse_fast(
                    line,
                    colon - from,
                    self.scratch.scan.colon_window(colon + 1),
                    values,
                )
            } else {
                None
            };
            let hash = match &fast {
                Some(fast) => self.contexts.alias_hash(&alias_key(line, fast, self.sender)),
                None => {
                    values.truncate(first_value as usize);
                    0
                }
            };
            return Some(Pending {
                start: from as u32,
                len: line.len() as u32,
                terminated,
                fast,
                first_value,
                hash,
            });
        }
    }

    /// Asks for the memory that taking a group will touch: that of the look-ups, and that of the probable contexts' state.
    #[inline(always)]
    fn prefetch_group(&mut self, group: &[Pending]) {
        let mut contexts = [None; GROUP_LINES];
        let hashes = group.iter().map(|pending| pending.hash);
        self.contexts.prefetch_contexts(hashes, &mut contexts);
        let found = group.iter().zip(contexts).filter_map(|(pending, id)| {
            let fast = pending.fast.as_ref()?;
            Some((fast.kind, id?))
        });
        self.aggregator.prefetch_states::<GROUP_LINES>(found);
    }

    /// Looks a line up and adds its values.
    #[inline(always)]
    fn add_line(&mut self, packet: &Received<'_>, pending: &Pending, values: &[f64], tally: &mut Tally) {
        let line = &packet.bytes[pending.start as usize..][..pending.len as usize];
        let Some(fast) = &pending.fast else {
            self.line(packet, line, pending.terminated);
            return;
        };
        let key = alias_key(line, fast, self.sender);
        let numbers = &values[pending.first_value as usize..][..fast.count as usize];
        let now = self.aggregator.now();
        match self.contexts.resolve_alias(pending.hash, &key, now) {
            Some(Lookup::Context(id, _)) if self.add_fast(fast, line, id, numbers, packet.received) => {
                tally.messages += 1;
                tally.samples += u64::from(fast.count.max(1));
                tally.rate_errors += u64::from(fast.rate_error);
            }
            // A filtered metric needs no second parse. Set members are checked by the slow path.
            Some(Lookup::Filtered(_, rule)) if fast.kind != Kind::Set => {
                let samples = u64::from(fast.count.max(1));
                tally.messages += 1;
                tally.filtered += samples;
                tally.rate_errors += u64::from(fast.rate_error);
                self.contexts.count_dropped(rule, samples);
            }
            Some(_) => {
                self.line(packet, line, pending.terminated);
            }
            None => self.alias_miss(packet, line, pending, &key, numbers),
        }
    }

    /// Adds the values of a metric whose context is known. False: it has to take the simple way.
    #[inline(always)]
    fn add_fast(
        &mut self,
        fast: &FastMetric,
        line: &[u8],
        id: ContextId,
        numbers: &[f64],
        received: u64,
    ) -> bool {
        match fast.kind {
            Kind::Counter => {
                for &value in numbers {
                    self.aggregator.counter(id, value * fast.weight);
                }
            }
            Kind::Distribution => self.aggregator.distribution_values(id, numbers, fast.weight),
            Kind::Gauge => {
                if self.scratch.gauge_deltas {
                    return false;
                }
                for &value in numbers {
                    self.aggregator.gauge(id, value, received);
                }
            }
            Kind::Histogram | Kind::Timing => {
                if self.copies_histograms {
                    return false;
                }
                for &value in numbers {
                    self.aggregator.histogram(fast.kind, id, value, fast.weight);
                }
            }
            Kind::Set => {
                // The one text that differs from message to message, and so the one to check each time.
                let member = &line[fast.name_end as usize + 1..fast.value_end as usize];
                if std::str::from_utf8(member).is_err() {
                    return false;
                }
                self.aggregator.set(id, member);
            }
        }
        true
    }

    /// A metric that no alias knows: by its known parts if it has only such, else the simple way; and an alias for the next
    /// time.
    #[inline(never)]
    fn alias_miss(
        &mut self,
        packet: &Received<'_>,
        line: &[u8],
        pending: &Pending,
        key: &AliasKey<'_>,
        numbers: &[f64],
    ) {
        if let Some(fast) = &pending.fast
            && let Some(tags) = only_tags(key.tail)
            && let Some(Lookup::Context(id, raw_match)) =
                self.contexts
                    .find(fast.kind, key.name, tags, self.sender, self.aggregator.now())
            && self.add_fast(fast, line, id, numbers, packet.received)
        {
            let counts = &mut self.counts[packet.listener];
            let samples = u64::from(fast.count.max(1));
            counts[IngestCounter::Messages] += 1;
            counts[IngestCounter::Metrics] += 1;
            counts[IngestCounter::Samples] += samples;
            counts[IngestCounter::SamplesAggregated] += samples;
            counts[IngestCounter::RateErrors] += u64::from(fast.rate_error);
            self.contexts.remember_alias(pending.hash, key, raw_match);
            return;
        }
        let raw_match = self.line(packet, line, pending.terminated);
        // A tail with a rate or a timestamp says something else in each message.
        let varies = key
            .tail
            .split(|&byte| byte == b'|')
            .any(|section| matches!(section.first(), Some(b'@' | b'T')));
        if let Some(raw_match) = raw_match
            && !varies
        {
            self.contexts.remember_alias(pending.hash, key, raw_match);
        }
    }
}
