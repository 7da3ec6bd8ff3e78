//! The run phase: composes packets from the model's pieces, without allocation.
//!
//! A composer is a function of (model, connection): each run gives the same packets, so the oracle can reconstruct the sent packets without
//! watching the run.

mod churn;
mod sizes;
mod text;

pub use text::{
    SERIAL_DIGITS, filler_name, first_value, fresh_tag, instance, instance_tag, numbers_packets, renumbered,
    serial_member,
};

use crate::model::{Context, GAUGE, Model, PAD, Piece, SET};
use crate::profile::{FILLER, Fit, Popularity, Sharing, TagOrder, ValueKind};
use crate::rng::{Alias, Rng};
use crate::units::RateUnit;
use churn::Churning;
use sizes::Sizes;
use std::sync::Arc;
use text::{
    FRESH_DIGITS, INSTANCE_DIGITS, put, put_decimal, put_filler, put_hex, put_serial, put_steps, put_text,
};

/// A packet as composed: its length in bytes and its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    pub len: usize,
    pub messages: u32,
}

/// The properties of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrawnMessage {
    Metric {
        context: u32,
        entry: u32,
        /// Number of replacements of the context; 0 without churn.
        generation: u32,
        /// Above zero for a context that occurs only in this message.
        fresh: u64,
        /// Whether it has a timestamp.
        stamped: bool,
        /// The value if values are numbered; otherwise 0.
        sequence: u64,
        /// Above zero if this message makes its packet distinct: see [`renumbered`].
        serial: u64,
    },
    Event(u32),
    Check(u32),
    Malformed(u32),
    /// Fills a packet up to its exact size: [`FILLER`] with this many bytes more in its name.
    Filler(u32),
}

/// Called for every message in the order of the stream.
pub trait Observer {
    fn saw(&mut self, drawn: DrawnMessage);
}

impl Observer for () {
    #[inline(always)]
    fn saw(&mut self, _drawn: DrawnMessage) {}
}

/// The errors of `malformed_p`: name and text. Every agent known to us rejects the whole line of each.
pub const FAULTS: &[(&str, &str)] = &[
    ("no_pipe", "broken.no_pipe:1"),
    ("no_colon", "broken.no_colon|c"),
    ("no_value", "broken.no_value:|c"),
    ("no_name", ":1|c"),
    ("unknown_type", "broken.unknown_type:1|x"),
    ("bad_number", "broken.bad_number:1_0|c"),
    ("bad_rate", "broken.bad_rate:1|c|@often"),
    ("short_event", "_e{50,50}:short|event"),
    ("bad_status", "_sc|broken.bad_status|9"),
];

const AHEAD: usize = 16;

/// Produces the packets of one connection.
pub struct Composer {
    model: Arc<Model>,
    connection: u64,
    connections: u64,
    schedule: Rng,
    values: Rng,
    extras: Rng,
    sizes: Sizes,
    /// Draws contexts, by the index of `subset` if there is one.
    alias: Option<Alias>,
    subset: Option<Vec<u32>>,
    cyclic_next: u64,
    first_next: usize,
    /// Contexts of the first pass are left, or among those drawn ahead.
    in_first_pass: bool,
    ahead: [u32; AHEAD],
    /// The values drawn with them, if every drawn context becomes a metric.
    ahead_entries: [u32; AHEAD],
    ahead_pos: usize,
    touched: u8,
    kinds: Option<Alias>,
    plain: bool,
    churn: Option<Churning>,
    fresh: u64,
    order: Vec<u32>,
    carry: Vec<u8>,
    carried: Option<(usize, DrawnMessage)>,
    /// Messages of each context so far, when values are numbered.
    sequence: Vec<u64>,
    /// Makes packets distinct by a number: in one message of every packet, or in all if messages may be carried over.
    numbers: Option<Fit>,
    /// Numbers used so far, and whether this packet has one.
    serials: u64,
    numbered: bool,
    notices: u64,
    /// Units sent so far, and units per second: the schedule's time.
    units: f64,
    units_per_second: f64,
    unit: RateUnit,
}

impl Composer {
    /// The stream of one of `connections` connections.
    pub fn new(model: &Arc<Model>, connection: u32, connections: u32) -> Composer {
        let p = &model.profile;
        let index = u64::from(connection);
        let rng = |purpose: &str| Rng::new(model.seed, purpose, index);
        let subset = (p.connection_contexts == Sharing::Split && connections > 1).then(|| {
            (0..model.contexts.len() as u32)
                .filter(|i| i % connections == connection)
                .collect::<Vec<u32>>()
        });
        // A connection without its own contexts (more connections than contexts) draws from all.
        let subset = subset.filter(|s| !s.is_empty());
        let alias = (p.popularity != Popularity::Cyclic).then(|| match &subset {
            Some(subset) => {
                let weights: Vec<f64> = subset.iter().map(|&i| model.weights[i as usize]).collect();
                Alias::new(&weights)
            }
            None => Alias::new(&model.weights),
        });
        let kinds = (p.kinds.event > 0.0 || p.kinds.service_check > 0.0)
            .then(|| Alias::new(&[p.kinds.metric, p.kinds.event, p.kinds.service_check]));
        let churn = Churning::new(model);
        let plain = kinds.is_none()
            && churn.is_none()
            && p.tag_order == TagOrder::Fixed
            && p.flood_p == 0.0
            && p.malformed_p == 0.0
            && p.timestamp.is_none()
            && p.value.kind != ValueKind::Sequence
            && !numbers_packets(&p.value)
            && model.suffixes.len() == 1;
        Composer {
            connection: index,
            connections: u64::from(connections),
            schedule: rng("schedule"),
            values: rng("draws"),
            extras: rng("extras"),
            alias,
            subset,
            cyclic_next: index,
            first_next: connection as usize,
            in_first_pass: p.first_pass,
            ahead: [0; AHEAD],
            ahead_entries: [0; AHEAD],
            ahead_pos: AHEAD,
            touched: 0,
            kinds,
            plain,
            churn,
            fresh: 0,
            order: Vec::with_capacity(64),
            carry: vec![0; model.message_max + PAD],
            carried: None,
            sizes: Sizes::new(p.packet_size_on(model.transport), rng("sizes")),
            sequence: match p.value.kind {
                ValueKind::Sequence => vec![0; model.contexts.len()],
                _ => Vec::new(),
            },
            numbers: numbers_packets(&p.value).then_some(p.fit),
            serials: 0,
            numbered: false,
            notices: 0,
            units: 0.0,
            units_per_second: p.rate.map_or(0.0, |r| r.per_second / f64::from(connections)),
            unit: p.rate_unit().unwrap_or(RateUnit::Messages),
            model: model.clone(),
        }
    }

    /// Whether a context of the first pass may be left.
    pub fn is_first_pass(&self) -> bool {
        self.in_first_pass
    }

    /// Buffer size that `packet` needs.
    pub fn packet_room(&self) -> usize {
        self.sizes.max() as usize + 1 + self.model.message_max + 2 * PAD
    }

    /// Composes the next packet at the start of `out`.
    #[inline]
    pub fn packet(&mut self, out: &mut [u8]) -> Packet {
        self.packet_with(out, &mut ())
    }

    /// Composes the next packet and reports its messages.
    pub fn packet_with<O: Observer>(&mut self, out: &mut [u8], observer: &mut O) -> Packet {
        if self.plain {
            self.fill::<O, true>(out, observer)
        } else {
            self.fill::<O, false>(out, observer)
        }
    }

    /// Two copies of one loop: the one for plain messages keeps what it drew in registers. Passing it through memory, written in small
    /// parts and read in a large one, took half of the time of a message.
    #[inline(always)]
    fn fill<O: Observer, const PLAIN: bool>(&mut self, out: &mut [u8], observer: &mut O) -> Packet {
        let model = self.model.clone();
        let time = self.time();
        if let Some(churn) = &mut self.churn {
            churn.advance(time);
        }
        self.numbered = false;
        let mut limit = self.sizes.draw();
        let exact = self.sizes.exact().is_some();
        let most = match model.profile.messages_per_packet {
            Some(range) => self.sizes.between(range) as u32,
            None => u32::MAX,
        };
        let mut at = 0;
        let mut messages = 0;
        if let Some((len, drawn)) = self.carried.take() {
            out[..len].copy_from_slice(&self.carry[..len]);
            at = len;
            messages = 1;
            observer.saw(drawn);
        }
        let mut rejected = 0;
        while messages < most {
            let start = if messages > 0 {
                out[at] = b'\n';
                at + 1
            } else {
                0
            };
            let (end, drawn) = if PLAIN {
                self.plain_message(&model, out, start)
            } else {
                self.full_message(&model, out, start)
            };
            // A packet of an exact size keeps room for a filler, unless a message ends exactly at its end.
            let fits = end == limit || end + if exact { 1 + FILLER.len() } else { 0 } <= limit;
            if !fits {
                // The first pass owes a message of every context.
                let discard = model.profile.fit == Fit::Discard && !self.in_first_pass;
                if messages > 0 {
                    if !discard {
                        self.carry[..end - start].copy_from_slice(&out[start..end]);
                        self.carried = Some((end - start, drawn));
                    }
                    break;
                }
                rejected += 1;
                if discard && rejected < 1000 {
                    self.numbered = false;
                    // An empty block: try a larger one, as lading does.
                    self.sizes.raise_floor(limit as u64 / 4);
                    limit = self.sizes.draw();
                    continue;
                }
            }
            at = end;
            messages += 1;
            observer.saw(drawn);
            if at > limit || exact && at == limit {
                break;
            }
        }
        if exact && at < limit {
            let extra = limit - at - 1 - FILLER.len();
            out[at] = b'\n';
            at = put_filler(out, at + 1, extra);
            messages += 1;
            observer.saw(DrawnMessage::Filler(extra as u32));
        }
        self.sizes.reset_floor();
        self.units += match self.unit {
            RateUnit::Messages => f64::from(messages),
            RateUnit::Packets => 1.0,
            RateUnit::Bytes => at as f64,
        };
        Packet { len: at, messages }
    }

    /// The schedule's time in seconds.
    fn time(&self) -> f64 {
        if self.units_per_second > 0.0 {
            self.units / self.units_per_second
        } else {
            0.0
        }
    }

    /// Contexts replaced so far.
    pub fn contexts_replaced(&self) -> u64 {
        self.churn.as_ref().map_or(0, Churning::contexts_replaced)
    }

    #[inline(always)]
    fn next_context(&mut self, model: &Model) -> u32 {
        if self.ahead_pos == AHEAD {
            self.draw_ahead(model);
        }
        let context = self.ahead[self.ahead_pos];
        self.ahead_pos += 1;
        context
    }

    /// Draws the next contexts and prefetches their text, so that the cache misses of a large table overlap.
    fn draw_ahead(&mut self, model: &Model) {
        let mut filled = 0;
        while filled < AHEAD && model.profile.first_pass {
            let place = self.first_next;
            let own = match &self.subset {
                Some(subset) => subset.get(place / self.connections as usize).copied(),
                None => (place < model.contexts.len()).then_some(place as u32),
            };
            let Some(context) = own else { break };
            self.first_next += self.connections as usize;
            self.ahead[filled] = context;
            filled += 1;
        }
        self.in_first_pass = filled > 0;
        for slot in filled..AHEAD {
            let index = match &self.alias {
                Some(alias) => alias.draw(&mut self.schedule),
                None => {
                    let size = self.subset.as_ref().map_or(model.contexts.len(), Vec::len) as u64;
                    let index = self.cyclic_next % size;
                    self.cyclic_next += 1;
                    index as u32
                }
            };
            self.ahead[slot] = match &self.subset {
                Some(subset) => subset[index as usize],
                None => index,
            };
        }
        let mut touched = 0;
        for slot in 0..AHEAD {
            let context = &model.contexts[self.ahead[slot] as usize];
            if self.plain {
                let texts = &model.texts[context.kind as usize];
                let entry = self.values.below(texts.len() as u64) as u32;
                self.ahead_entries[slot] = entry;
                touched ^= model.arena[texts[entry as usize].off as usize];
            }
            touched ^= model.arena[context.name.off as usize];
            touched ^= model.arena[context.tail.off as usize];
            touched ^= model.arena[context.tail.off as usize + context.tail.len as usize / 2];
        }
        self.touched = std::hint::black_box(touched);
        self.ahead_pos = 0;
    }

    #[inline(always)]
    fn draw_entry(&mut self, model: &Model, context: &Context) -> u32 {
        let count = model.texts[context.kind as usize].len() as u64;
        self.values.below(count) as u32
    }

    #[inline(always)]
    fn plain_message(&mut self, model: &Model, out: &mut [u8], start: usize) -> (usize, DrawnMessage) {
        let index = self.next_context(model);
        let entry = self.ahead_entries[self.ahead_pos - 1];
        let context = &model.contexts[index as usize];
        let at = put_steps::<64>(out, start, model, context.name);
        let text = model.texts[context.kind as usize][entry as usize];
        let at = put_steps::<32>(out, at, model, text);
        let at = put_steps::<128>(out, at, model, context.tail);
        let drawn = DrawnMessage::Metric {
            context: index,
            entry,
            generation: 0,
            fresh: 0,
            stamped: false,
            sequence: 0,
            serial: 0,
        };
        (at, drawn)
    }

    /// The number for this connection's `count`-th item, distinct from those of all other connections.
    fn serial(&self, count: u64) -> u64 {
        (count - 1) * self.connections + self.connection + 1
    }

    fn full_message(&mut self, model: &Model, out: &mut [u8], start: usize) -> (usize, DrawnMessage) {
        let p = &model.profile;
        if self.extras.chance(p.malformed_p) {
            let fault = self.extras.below(FAULTS.len() as u64) as u32;
            let at = put_text(out, start, FAULTS[fault as usize].1.as_bytes());
            return (at, DrawnMessage::Malformed(fault));
        }
        // An event makes no context: it has the tags of one.
        let only_metrics = p.first_pass_at_once && self.in_first_pass;
        let kind = match &self.kinds {
            Some(kinds) if !only_metrics => kinds.draw(&mut self.extras),
            _ => 0,
        };
        let index = self.next_context(model);
        let context = model.contexts[index as usize];
        if kind > 0 {
            return self.notice(model, out, start, &context, kind == 1);
        }
        let entry = self.draw_entry(model, &context);
        let at = put(out, start, model, context.name);
        let (at, sequence) = self.put_sequence(out, at, index);
        let text = model.texts[context.kind as usize][entry as usize];
        let (at, serial) = self.put_value(model, out, at, text, context.kind);
        let at = self.put_tags(model, out, at, &context);
        let (at, generation, fresh) = self.put_changing_tags(model, out, at, index, context.tail.len > 0);
        let at = put(out, at, model, model.suffixes[context.suffix as usize]);
        let (at, stamped) = self.put_timestamp(model, out, at, context.kind);
        let drawn = DrawnMessage::Metric {
            context: index,
            entry,
            generation,
            fresh,
            stamped,
            sequence,
            serial,
        };
        (at, drawn)
    }

    /// An event or a service check.
    fn notice(
        &mut self,
        model: &Model,
        out: &mut [u8],
        start: usize,
        context: &Context,
        event: bool,
    ) -> (usize, DrawnMessage) {
        let notices = if event { &model.events } else { &model.checks };
        let mut number = self.extras.below(notices.len() as u64) as u32;
        if !event && start == 0 {
            // Every second check has a text with a number. Other checks cannot start a packet.
            number &= !1;
        }
        let notice = &notices[number as usize];
        self.notices += 1;
        let serial = self.serial(self.notices);
        let head = put(out, start, model, notice.head);
        let tail = put(out, head, model, context.tail);
        let at = put(out, tail, model, notice.after);
        if let Some(place) = notice.number {
            put_serial(out, if event { start } else { tail } + place as usize, serial);
            self.numbered = true;
        }
        let at = put(out, at, model, model.suffixes[context.suffix as usize]);
        let drawn = match event {
            true => DrawnMessage::Event(number),
            false => DrawnMessage::Check(number),
        };
        (at, drawn)
    }

    /// The number of the context's message, if values are numbered by context.
    #[inline]
    fn put_sequence(&mut self, out: &mut [u8], at: usize, context: u32) -> (usize, u64) {
        let Some(sent) = self.sequence.get_mut(context as usize) else {
            return (at, 0);
        };
        let sequence = *sent * self.connections + self.connection + 1;
        *sent += 1;
        (put_decimal(out, at, sequence as i64), sequence)
    }

    /// The value, with a number if the packet needs one.
    #[inline]
    fn put_value(
        &mut self,
        model: &Model,
        out: &mut [u8],
        mut at: usize,
        mut text: Piece,
        kind: u8,
    ) -> (usize, u64) {
        let mut serial = 0;
        if let Some(fit) = self.numbers
            && (!self.numbered || fit == Fit::Carry)
        {
            self.numbered = true;
            self.serials += 1;
            serial = self.serial(self.serials);
            let (first, len) = first_value(&model.arena[text.off as usize..(text.off + text.len) as usize]);
            at = if kind == SET {
                out[at] = b'n';
                put_decimal(out, at + 1, serial as i64)
            } else {
                put_decimal(out, at, renumbered(first, serial, &model.profile.value) as i64)
            };
            text.off += len as u32;
            text.len -= len as u32;
        }
        (put(out, at, model, text), serial)
    }

    /// The tag of a context's generation, and that of a fresh context.
    #[inline]
    fn put_changing_tags(
        &mut self,
        model: &Model,
        out: &mut [u8],
        mut at: usize,
        context: u32,
        mut has_tags: bool,
    ) -> (usize, u32, u64) {
        let mut generation = 0;
        if let Some(churn) = &self.churn {
            let group = u64::from(context) / churn.group;
            generation = churn.generation(group);
            let lead: &[u8] = if has_tags { b",instance:" } else { b"|#instance:" };
            at = put_text(out, at, lead);
            at = put_hex(out, at, instance(model.seed, group, generation), INSTANCE_DIGITS);
            has_tags = true;
        }
        let mut fresh = 0;
        if self.extras.chance(model.profile.flood_p) {
            self.fresh += 1;
            fresh = (self.connection + 1) << 36 | self.fresh;
            let lead: &[u8] = if has_tags { b",fresh:" } else { b"|#fresh:" };
            at = put_text(out, at, lead);
            at = put_hex(out, at, fresh, FRESH_DIGITS);
        }
        (at, generation, fresh)
    }

    #[inline]
    fn put_timestamp(&mut self, model: &Model, out: &mut [u8], at: usize, kind: u8) -> (usize, bool) {
        match model.profile.timestamp {
            Some(timestamp) if kind <= GAUGE && self.extras.chance(timestamp.p) => {
                let at = put_text(out, at, b"|T");
                (put_decimal(out, at, timestamp.base + self.time() as i64), true)
            }
            _ => (at, false),
        }
    }

    fn put_tags(&mut self, model: &Model, out: &mut [u8], at: usize, context: &Context) -> usize {
        match model.profile.tag_order {
            TagOrder::Fixed => put_steps::<128>(out, at, model, context.tail),
            TagOrder::Shuffled(p) => {
                if p < 1.0 && !self.extras.chance(p) {
                    return put(out, at, model, context.tail);
                }
                let list = model.list(context.list);
                self.put_shuffled(model, out, at, list)
            }
            TagOrder::Dup(p) => {
                let mut at = put(out, at, model, context.tail);
                for tag in model.list(context.list) {
                    if self.extras.chance(p) {
                        out[at] = b',';
                        at = put(out, at + 1, model, model.tags[*tag as usize]);
                    }
                }
                at
            }
        }
    }

    #[inline]
    fn put_shuffled(&mut self, model: &Model, out: &mut [u8], mut at: usize, list: &[u32]) -> usize {
        if list.is_empty() {
            return at;
        }
        self.order.clear();
        self.order.extend_from_slice(list);
        let order = &mut self.order[..];
        // One random number serves several draws: the upper half picks, the lower half of the product is used next.
        let mut bits = 0u64;
        let mut left = 0;
        for last in (1..order.len()).rev() {
            if left == 0 {
                bits = self.extras.next_u64();
                left = if order.len() <= 64 { 8 } else { 1 };
            }
            let wide = u128::from(bits) * (last as u128 + 1);
            bits = wide as u64;
            left -= 1;
            order.swap(last, (wide >> 64) as usize);
        }
        at = put_text(out, at, b"|#");
        for tag in order {
            at = put(out, at, model, model.tags[*tag as usize]);
            out[at] = b',';
            at += 1;
        }
        at - 1
    }
}

/// Whether values of a type are weighted by a rate: gauges and sets are not.
pub fn weighted(kind: u8) -> bool {
    kind != GAUGE && kind != SET
}
