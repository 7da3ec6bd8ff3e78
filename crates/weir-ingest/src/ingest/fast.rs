//! The short cut: metrics whose bytes were seen before, looked up and added without being parsed.

use std::ops::Range;

use weir_context::{AliasKey, ContextId, Lookup, OriginId, RawId, compiled_for_levels};
use weir_protocol::{FastMetric, Kind, may_be_special, parse_fast};

use super::{Ingest, Received};
use crate::counts::IngestCounter;
use crate::counts::{SampleDrop, SlowLine};

/// Lines that take a step of a look-up together. While they take one, the memory for the next arrives.
const GROUP_LINES: usize = 32;

/// Values from which on a group is full, so that packed values do not make its memory larger than that of one packet.
const GROUP_VALUES: usize = 1024;

/// Steps of a look-up, each of which reads what the one before it prefetched.
pub(super) const STEPS: usize = 5;

/// Aliases from which on look-ups in groups take less time in the agent than one look-up after the other. In process, where nothing else uses
/// the caches, it is three times as many.
pub(super) const GROUPED_FROM: usize = 4096;

/// A line that is read and not looked up yet.
pub(super) struct Pending {
    /// Number of its packet in the batch.
    packet: u32,
    /// Its place in the packet.
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) terminated: bool,
    pub(super) fast: Option<FastMetric>,
    /// Start of its numbers.
    pub(super) first_value: u32,
    pub(super) hash: u64,
}

impl Pending {
    /// The place of its value field in the packet.
    #[inline(always)]
    fn value_field(&self, fast: &FastMetric) -> Range<usize> {
        (self.start + fast.name_end + 1) as usize..(self.start + fast.value_end) as usize
    }
}

/// Start of the next line in a packet, and the number of lines before it.
#[derive(Default)]
pub(super) struct LineCursor {
    /// Number of the packet in its batch.
    pub(super) packet: u32,
    pub(super) start: usize,
    pub(super) number: usize,
}

impl LineCursor {
    fn of_packet(packet: u32) -> Self {
        LineCursor {
            packet,
            ..LineCursor::default()
        }
    }
}

/// Lines between two steps.
#[derive(Default)]
pub(super) struct Group {
    lines: Vec<Pending>,
    values: Vec<f64>,
    /// The raw contexts that the look-ups will probably find.
    found: Vec<(Kind, RawId)>,
    /// Contexts that they will probably find and whose state has a body.
    bodies: Vec<(Kind, ContextId)>,
}

impl Group {
    #[inline(always)]
    fn is_full(&self) -> bool {
        self.lines.len() >= GROUP_LINES || self.values.len() >= GROUP_VALUES
    }
}

/// A member to be added to a set once its place is in the cache: sets can be large, so that most members wait for theirs.
pub(super) struct LateMember {
    id: ContextId,
    hash: u64,
    packet: u32,
    /// Its place in the packet.
    start: u32,
    end: u32,
}

/// The packets of a batch, and the next line in them.
struct BatchReader<'p> {
    packets: &'p [Received<'p>],
    place: LineCursor,
}

/// The counts of a batch, to be added to its listener's.
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

/// Whether a value may be a change: it has a sign, or its exponent has one.
#[inline(never)]
fn has_sign(field: &[u8]) -> bool {
    memchr::memchr2(b'+', b'-', field).is_some()
}

/// Whether a tail has a rate or a timestamp: it is another in each message.
fn varies(tail: &[u8]) -> bool {
    tail.split(|&byte| byte == b'|')
        .any(|section| matches!(section.first(), Some(b'@' | b'T')))
}

/// Why neither an alias nor the tags led to a context that is known.
fn miss_reason(tail: &[u8]) -> SlowLine {
    match only_tags(tail) {
        _ if varies(tail) => SlowLine::LateSection,
        None => SlowLine::Extension,
        Some(tags) if tags.split(|&byte| byte == b',').any(may_be_special) => SlowLine::SpecialTag,
        Some(_) => SlowLine::NewBytes,
    }
}

impl Ingest {
    /// The lines of packets of one listener that have been counted.
    pub(super) fn lines(&mut self, packets: &[Received<'_>]) {
        let Some(first) = packets.first() else { return };
        let listener = &self.settings.listeners[first.listener];
        self.sender = self.sender.read(listener.names);
        self.scratch.gauge_deltas = listener.gauge_deltas;
        if !self.relays.all.is_empty() {
            packets.iter().for_each(|packet| self.relay_lines(packet));
            if self.relays.only {
                return;
            }
        }
        // In small tables everything is in the cache anyway.
        if self.contexts.aliases() >= self.scratch.grouped_from {
            self.lines_grouped(packets);
        } else {
            self.lines_sequential(packets);
        }
    }

    fn count(&mut self, listener: usize, tally: &Tally) {
        let counts = &mut self.counts[listener];
        counts[IngestCounter::Messages] += tally.messages;
        counts[IngestCounter::Metrics] += tally.messages;
        counts[IngestCounter::Samples] += tally.samples + tally.filtered;
        counts[IngestCounter::SamplesAggregated] += tally.samples;
        counts.samples_dropped[SampleDrop::Filtered] += tally.filtered;
        counts[IngestCounter::RateErrors] += tally.rate_errors;
    }

    compiled_for_levels! {
        /// One line after the other, each read before the one in front of it is looked up: while the look-up waits for its memory
        /// the processor has something to read, and the slot of the next look-up is on its way.
        fn lines_sequential(&mut self: Ingest, packets: &[Received<'_>]);
        level: self.settings.secret.level();
        body: lines_sequential_inlined
    }

    compiled_for_levels! {
        /// Lines in groups, in steps that each prefetch the memory of the next one. While a group takes one step, the groups behind it take the
        /// steps before.
        fn lines_grouped(&mut self: Ingest, packets: &[Received<'_>]);
        level: self.settings.secret.level();
        body: lines_grouped_inlined
    }

    #[inline(always)]
    fn lines_sequential_inlined(&mut self, packets: &[Received<'_>]) {
        let mut tally = Tally::default();
        let mut values = std::mem::take(&mut self.scratch.values);
        for (number, packet) in (0..).zip(packets) {
            self.scratch.scan.scan(packet.bytes);
            let mut place = LineCursor::of_packet(number);
            let mut next = self.next_line(packet, &mut place, &mut values);
            while let Some(pending) = next {
                next = self.next_line(packet, &mut place, &mut values);
                if let Some(next) = &next {
                    self.contexts.prefetch_alias(next.hash);
                }
                self.add_line(packets, &pending, &values, &mut tally);
            }
            values.clear();
        }
        self.add_late_members(packets);
        self.scratch.values = values;
        self.count(packets[0].listener, &tally);
    }

    #[inline(always)]
    fn lines_grouped_inlined(&mut self, packets: &[Received<'_>]) {
        let mut tally = Tally::default();
        let mut groups = std::mem::take(&mut self.scratch.groups);
        let mut reader = BatchReader {
            packets,
            place: LineCursor::default(),
        };
        self.scratch.scan.scan(packets[0].bytes);
        let mut under_way = 0;
        for turn in 0.. {
            let [first, second, third, fourth, fifth] =
                std::array::from_fn(|step| (turn + STEPS - step) % STEPS);
            self.read_group(&mut reader, &mut groups[first]);
            under_way += groups[first].lines.len();
            if under_way == 0 {
                break;
            }
            self.prefetch_keys(&mut groups[second]);
            self.prefetch_states(&mut groups[third]);
            self.aggregator.prefetch_bodies(&groups[fourth].bodies);
            let group = &mut groups[fifth];
            self.aggregator.prefetch_samples(&group.bodies);
            for pending in &group.lines {
                self.add_line(packets, pending, &group.values, &mut tally);
            }
            under_way -= group.lines.len();
            group.lines.clear();
            group.values.clear();
            group.bodies.clear();
        }
        self.add_late_members(packets);
        self.scratch.groups = groups;
        self.count(packets[0].listener, &tally);
    }

    /// First step: reads lines, and prefetches the slots of their aliases.
    #[inline(always)]
    fn read_group(&mut self, reader: &mut BatchReader<'_>, group: &mut Group) {
        while let Some(packet) = reader.packets.get(reader.place.packet as usize) {
            while !group.is_full() {
                let Some(pending) = self.next_line(packet, &mut reader.place, &mut group.values) else {
                    break;
                };
                self.contexts.prefetch_alias(pending.hash);
                group.lines.push(pending);
            }
            if group.is_full() {
                return;
            }
            let number = reader.place.packet + 1;
            reader.place = LineCursor::of_packet(number);
            if let Some(next) = reader.packets.get(number as usize) {
                self.scratch.scan.scan(next.bytes);
            }
        }
    }

    /// Second step: prefetches keys and targets.
    #[inline(always)]
    fn prefetch_keys(&self, group: &mut Group) {
        for pending in &group.lines {
            if let Some(raw) = self.contexts.prefetch_key(pending.hash)
                && let Some(fast) = &pending.fast
            {
                group.found.push((fast.kind, raw));
            }
        }
    }

    /// Third step: prefetches the state of the contexts that the look-ups will probably find.
    #[inline(always)]
    fn prefetch_states(&mut self, group: &mut Group) {
        self.aggregator.find_addresses();
        for (kind, raw) in group.found.drain(..) {
            if let Some(id) = self.contexts.probable_context(raw)
                && self.aggregator.prefetch_state(kind, id)
            {
                group.bodies.push((kind, id));
            }
        }
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
            place.start = newline + 1;
            place.number += 1;
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
                parse_fast(line, colon - from, (&self.scratch.scan, from), values)
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
                packet: place.packet,
                start: from as u32,
                len: line.len() as u32,
                terminated,
                fast,
                first_value,
                hash,
            });
        }
    }

    /// Looks a line up and adds its values.
    #[inline(always)]
    fn add_line(&mut self, packets: &[Received<'_>], pending: &Pending, values: &[f64], tally: &mut Tally) {
        let packet = &packets[pending.packet as usize];
        let line = &packet.bytes[pending.start as usize..][..pending.len as usize];
        let Some(fast) = &pending.fast else {
            self.add_late_members(packets);
            self.line(packet, (line, pending.terminated), || SlowLine::Number);
            return;
        };
        let key = alias_key(line, fast, self.sender);
        let numbers = &values[pending.first_value as usize..][..fast.count as usize];
        let raw = self.contexts.find_alias(pending.hash, &key);
        if let Some(id) = raw.and_then(|raw| self.contexts.ordinary_context(raw))
            && self.add_fast(packet, (pending, fast), id, numbers)
        {
            tally.messages += 1;
            tally.samples += u64::from(fast.count.max(1));
            tally.rate_errors += u64::from(fast.rate_error);
            return;
        }
        // The slow path may remove contexts.
        self.add_late_members(packets);
        self.add_rare(packet, line, (pending, fast), raw, numbers, tally);
    }

    /// A line whose alias leads to no ordinary context, or whose kind has to take the simple way.
    #[inline(never)]
    fn add_rare(
        &mut self,
        packet: &Received<'_>,
        line: &[u8],
        (pending, fast): (&Pending, &FastMetric),
        raw: Option<RawId>,
        numbers: &[f64],
        tally: &mut Tally,
    ) {
        let now = self.aggregator.now();
        match raw.and_then(|raw| self.contexts.resolve_raw(raw, now)) {
            // A filtered metric needs no second parse. Set members are checked by the slow path.
            Some(Lookup::Filtered(_, rule)) if fast.kind != Kind::Set => {
                let samples = u64::from(fast.count.max(1));
                tally.messages += 1;
                tally.filtered += samples;
                tally.rate_errors += u64::from(fast.rate_error);
                self.contexts.count_dropped(rule, samples);
            }
            Some(lookup) => {
                let reason = || match (lookup, fast.kind) {
                    (Lookup::DryRun(..), _) => SlowLine::DryRun,
                    (Lookup::Filtered(..), _) => SlowLine::FilteredSet,
                    (_, Kind::Gauge) => SlowLine::GaugeDelta,
                    _ => SlowLine::CopiedHistogram,
                };
                self.line(packet, (line, pending.terminated), reason);
            }
            None => self.alias_miss(packet, line, (pending, fast), numbers),
        }
    }

    /// Adds the values of a metric whose context is known. False: it has to take the simple way.
    #[inline(always)]
    fn add_fast(
        &mut self,
        packet: &Received<'_>,
        (pending, fast): (&Pending, &FastMetric),
        id: ContextId,
        numbers: &[f64],
    ) -> bool {
        match fast.kind {
            Kind::Counter => {
                for &value in numbers {
                    self.aggregator.counter(id, value * fast.weight);
                }
            }
            Kind::Distribution => self.aggregator.distribution_values(id, numbers, fast.weight),
            Kind::Gauge => {
                if self.scratch.gauge_deltas && has_sign(&packet.bytes[pending.value_field(fast)]) {
                    return false;
                }
                for &value in numbers {
                    self.aggregator.gauge(id, value, packet.received);
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
                let field = pending.value_field(fast);
                let member = &packet.bytes[field.clone()];
                if std::str::from_utf8(member).is_err() {
                    return false;
                }
                let hash = self.aggregator.prefetch_member(id, member);
                self.scratch.late_members.push(LateMember {
                    id,
                    hash,
                    packet: pending.packet,
                    start: field.start as u32,
                    end: field.end as u32,
                });
            }
        }
        true
    }

    /// Adds the members that were looked up and not added yet.
    #[inline]
    fn add_late_members(&mut self, packets: &[Received<'_>]) {
        if self.scratch.late_members.is_empty() {
            return;
        }
        for late in self.scratch.late_members.drain(..) {
            let member = &packets[late.packet as usize].bytes[late.start as usize..late.end as usize];
            self.aggregator.set_hashed(late.id, late.hash, member);
        }
    }

    /// A metric that no alias knows: by its known parts if it has only such, else the simple way; and an alias for the next
    /// time.
    fn alias_miss(
        &mut self,
        packet: &Received<'_>,
        line: &[u8],
        (pending, fast): (&Pending, &FastMetric),
        numbers: &[f64],
    ) {
        let key = &alias_key(line, fast, self.sender);
        if let Some(tags) = only_tags(key.tail)
            && let Some(raw) = self.contexts.find(fast.kind, key.name, tags, self.sender)
            && let Some(id) = self.contexts.ordinary_context(raw)
            && self.add_fast(packet, (pending, fast), id, numbers)
        {
            let counts = &mut self.counts[packet.listener];
            let samples = u64::from(fast.count.max(1));
            counts[IngestCounter::Messages] += 1;
            counts[IngestCounter::Metrics] += 1;
            counts[IngestCounter::Samples] += samples;
            counts[IngestCounter::SamplesAggregated] += samples;
            counts[IngestCounter::RateErrors] += u64::from(fast.rate_error);
            counts.lines_slow[SlowLine::NewBytes] += 1;
            self.contexts.remember_alias(pending.hash, key, raw.into());
            return;
        }
        let reason = || miss_reason(key.tail);
        if let Some(raw_match) = self.line(packet, (line, pending.terminated), reason)
            && !varies(key.tail)
        {
            self.contexts.remember_alias(pending.hash, key, raw_match);
        }
    }
}
