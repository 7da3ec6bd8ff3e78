use weir_aggregate::{Aggregator, AggregatorSettings, Batch, CheckRecord, EventRecord, TimestampedSample};
use weir_context::{
    AliasKey, ContextId, Contexts, HashSecret, Limits, Lookup, RawId, Resolved, Rules, prefetch,
};
use weir_protocol::{
    ErrorClass, Event, FastMetric, Kind, Message, Metric, ParseOptions, Scan, ServiceCheck, Values,
    parse_fast, parse_line, unescape_newlines,
};

use crate::counts::{IngestCounts, SampleDrop};

/// What one worker needs to know besides its sockets.
#[derive(Clone, Debug)]
pub struct IngestSettings {
    pub worker: u16,
    pub aggregator: AggregatorSettings,
    pub rules: Rules,
    pub limits: Limits,
    pub secret: HashSecret,
    /// Plain StatsD's reading of a signed gauge: a change to its last value.
    pub gauge_deltas: bool,
    /// What each listener's messages may contain, by listener number.
    pub listeners: Vec<ParseOptions>,
}

/// A packet as this crate needs it.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    pub bytes: &'a [u8],
    /// Index in `IngestSettings::listeners`.
    pub listener: usize,
    /// The socket cut the packet: its last line is not to be trusted.
    pub truncated: bool,
    /// Monotonic nanoseconds of the receive call.
    pub received: u64,
}

/// One example of input that was refused, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadInput {
    pub listener: usize,
    pub class: &'static str,
    /// The beginning of the line, made printable.
    pub example: String,
}

/// Events, checks and timestamped samples are handed over when this many wait, or with the next tick.
const PASSED_ON_MAX: usize = 2048;

/// Batches of passed-on messages that may wait for the hand-over; beyond them events and checks are dropped and counted.
const OUTBOX_MAX: usize = 64;

/// Lines looked up together. Enough to have several loads from memory on their way, few enough to stay in the first-level
/// cache with their values.
const GROUP_LINES: usize = 32;

/// Aliases from which on a look-up is worth preparing: below, keys, targets and state fit the second-level cache.
const PREFETCH_ALIASES_MIN: usize = 4096;

/// A line of the current group.
struct Pending {
    /// Its place in the packet.
    start: u32,
    len: u32,
    terminated: bool,
    fast: Option<FastMetric>,
    /// Where its numbers begin.
    first_value: u32,
    hash: u64,
}

/// What a group adds to the counts of its listener.
#[derive(Default)]
struct Tally {
    messages: u64,
    samples: u64,
    rate_faults: u64,
}

#[inline]
fn alias_key<'a>(line: &'a [u8], fast: &FastMetric) -> AliasKey<'a> {
    AliasKey {
        kind: fast.kind as u8,
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
    (!tags.contains(&b'|')).then_some(tags)
}

/// Packets to buckets: everything a worker does between its sockets and the hand-over, without either.
pub struct Ingest {
    settings: IngestSettings,
    contexts: Contexts,
    aggregator: Aggregator,
    counts: Vec<IngestCounts>,
    /// Timestamped samples, events and checks on their way.
    passing: Option<Batch>,
    passing_sequence: u64,
    outbox: std::collections::VecDeque<Batch>,
    resolved: Resolved,
    scan: Scan,
    group: Vec<Pending>,
    values: Vec<f64>,
    copies_histograms: bool,
    bad_input: Option<BadInput>,
    /// Whether an example is wanted; the owner rations them.
    want_example: bool,
    now: i64,
}

impl Ingest {
    /// `now`: Unix seconds.
    pub fn new(settings: IngestSettings, now: i64) -> Self {
        Ingest {
            contexts: Contexts::new(settings.secret, settings.rules.clone(), settings.limits),
            aggregator: Aggregator::new(settings.aggregator.clone(), settings.worker, now),
            counts: vec![IngestCounts::default(); settings.listeners.len()],
            passing: None,
            passing_sequence: 0,
            outbox: Default::default(),
            resolved: Resolved::default(),
            scan: Scan::new(),
            group: Vec::with_capacity(GROUP_LINES),
            values: Vec::new(),
            copies_histograms: settings.rules.copies_histograms(),
            bad_input: None,
            want_example: true,
            now,
            settings,
        }
    }

    pub fn contexts(&self) -> &Contexts {
        &self.contexts
    }

    pub fn aggregator(&self) -> &Aggregator {
        &self.aggregator
    }

    /// Replaces the rules. Contexts, their state and open buckets stay; raw contexts are resolved again.
    pub fn set_rules(&mut self, rules: Rules) {
        self.copies_histograms = rules.copies_histograms();
        self.contexts.set_rules(rules);
    }

    /// Counts by listener.
    pub fn counts(&self) -> &[IngestCounts] {
        &self.counts
    }

    /// The example that was kept since the last call, if any.
    pub fn take_bad_input(&mut self) -> Option<BadInput> {
        self.bad_input.take()
    }

    /// Allows the next refused line to be kept as an example.
    pub fn want_example(&mut self) {
        self.want_example = true;
    }

    /// Takes the time in Unix seconds. Returns false when a bucket ought to close and the one before is not handed over.
    #[must_use]
    pub fn advance(&mut self, now: i64) -> bool {
        self.now = self.now.max(now);
        self.aggregator.advance(now)
    }

    /// Closes the open bucket before its time, for shutdown.
    #[must_use]
    pub fn close_now(&mut self) -> bool {
        self.aggregator.close_now()
    }

    pub fn is_draining(&self) -> bool {
        self.aggregator.is_draining()
    }

    /// Hands over the next part of the closed bucket, looking at up to `contexts_max` contexts.
    pub fn drain(&mut self, contexts_max: usize) -> Option<Batch> {
        self.aggregator.drain(&mut self.contexts, contexts_max)
    }

    /// Hands over what passes without aggregation. Called at least once a second.
    pub fn take_passed_on(&mut self) -> Option<Batch> {
        self.outbox.pop_front().or_else(|| self.passing.take())
    }

    /// Takes one packet.
    ///
    /// The simple version is: parse each line, look its context up, add its values. This one does so for groups of lines
    /// at a time, in steps that each ask for the memory the next one needs, and takes a short cut for metrics whose bytes
    /// were seen before; whatever does not fit the short cut takes the simple way, in its turn.
    pub fn packet(&mut self, packet: Received<'_>) {
        let options = self.settings.listeners[packet.listener];
        let counts = &mut self.counts[packet.listener];
        counts.packets += 1;
        counts.bytes += packet.bytes.len() as u64;
        let mut group = std::mem::take(&mut self.group);
        let mut values = std::mem::take(&mut self.values);
        self.scan.scan(packet.bytes);
        // In small tables everything is in the cache anyway.
        let ahead = self.contexts.aliases() > PREFETCH_ALIASES_MIN;
        let mut start = 0;
        while start < packet.bytes.len() {
            let newline = self.scan.newline(start);
            let terminated = newline < packet.bytes.len();
            let line = &packet.bytes[start..newline];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let from = start;
            start = newline + 1;
            if line.is_empty() {
                continue;
            }
            let first_value = values.len() as u32;
            let whole = terminated || !(packet.truncated || options.eol_required);
            let fast = if whole {
                parse_fast(line, self.scan.colon(from) - from, &mut values)
            } else {
                None
            };
            let mut hash = 0;
            match &fast {
                Some(fast) => {
                    hash = self.contexts.alias_hash(&alias_key(line, fast));
                    if ahead {
                        self.contexts.prefetch_alias(hash);
                    }
                }
                None => values.truncate(first_value as usize),
            }
            group.push(Pending {
                start: from as u32,
                len: line.len() as u32,
                terminated,
                fast,
                first_value,
                hash,
            });
            if group.len() == GROUP_LINES {
                self.group(&packet, &group, &values, ahead);
                group.clear();
                values.clear();
            }
        }
        self.group(&packet, &group, &values, ahead);
        group.clear();
        values.clear();
        self.group = group;
        self.values = values;
    }

    /// Asks for the memory that looking up a group will touch, one step of the look-up after the other.
    fn look_ahead(&self, group: &[Pending]) {
        let mut raws = [None; GROUP_LINES];
        for (pending, raw) in group.iter().zip(&mut raws) {
            *raw = self.contexts.prefetch_target(pending.hash);
        }
        for (pending, raw) in group.iter().zip(&raws) {
            if let (Some(fast), Some(raw)) = (&pending.fast, raw)
                && let Some(id) = self.contexts.probable_context(*raw)
            {
                prefetch(self.aggregator.state_address(fast.kind, id));
            }
        }
    }

    fn group(&mut self, packet: &Received<'_>, group: &[Pending], values: &[f64], ahead: bool) {
        if ahead {
            self.look_ahead(group);
        }
        let mut tally = Tally::default();
        let now = self.aggregator.now();
        for pending in group {
            let line = &packet.bytes[pending.start as usize..][..pending.len as usize];
            let Some(fast) = &pending.fast else {
                self.line(packet, line, pending.terminated);
                continue;
            };
            let key = alias_key(line, fast);
            let numbers = &values[pending.first_value as usize..][..fast.count as usize];
            match self.contexts.resolve_alias(pending.hash, &key, now) {
                Some(Lookup::Context(id, _)) if self.add_fast(fast, line, id, numbers, packet.received) => {
                    tally.messages += 1;
                    tally.samples += u64::from(fast.count.max(1));
                    tally.rate_faults += u64::from(fast.rate_fault);
                }
                Some(_) => {
                    self.line(packet, line, pending.terminated);
                }
                None => self.unknown(packet, line, pending, &key, numbers),
            }
        }
        let counts = &mut self.counts[packet.listener];
        counts.messages += tally.messages;
        counts.metrics += tally.messages;
        counts.samples += tally.samples;
        counts.samples_aggregated += tally.samples;
        counts.rate_faults += tally.rate_faults;
    }

    /// Adds the values of a metric whose context is known. False: it has to take the simple way.
    #[inline]
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
            Kind::Distribution => {
                for &value in numbers {
                    self.aggregator.distribution(id, value, fast.weight);
                }
            }
            Kind::Gauge => {
                if self.settings.gauge_deltas {
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
    fn unknown(
        &mut self,
        packet: &Received<'_>,
        line: &[u8],
        pending: &Pending,
        key: &AliasKey<'_>,
        numbers: &[f64],
    ) {
        if let Some(fast) = &pending.fast
            && let Some(tags) = only_tags(key.tail)
            && let Some(Lookup::Context(id, raw)) =
                self.contexts
                    .find(fast.kind, key.name, tags, self.aggregator.now())
            && self.add_fast(fast, line, id, numbers, packet.received)
        {
            let counts = &mut self.counts[packet.listener];
            let samples = u64::from(fast.count.max(1));
            counts.messages += 1;
            counts.metrics += 1;
            counts.samples += samples;
            counts.samples_aggregated += samples;
            counts.rate_faults += u64::from(fast.rate_fault);
            self.contexts.remember_alias(pending.hash, key, raw);
            return;
        }
        let raw = self.line(packet, line, pending.terminated);
        // A tail with a rate or a timestamp says something else in each message.
        let varies = key
            .tail
            .split(|&byte| byte == b'|')
            .any(|section| matches!(section.first(), Some(b'@' | b'T')));
        if let Some(raw) = raw
            && !varies
        {
            self.contexts.remember_alias(pending.hash, key, raw);
        }
    }

    /// The simple way for one line. Returns the raw context, where there is one.
    fn line(&mut self, packet: &Received<'_>, line: &[u8], terminated: bool) -> Option<RawId> {
        let options = self.settings.listeners[packet.listener];
        self.counts[packet.listener].messages += 1;
        if !terminated && packet.truncated {
            self.counts[packet.listener].rejected_truncated += 1;
            self.keep_example(packet.listener, "truncated", line);
            return None;
        }
        let parsed = if !terminated && options.eol_required {
            Err(ErrorClass::Unterminated)
        } else {
            parse_line(line, &options)
        };
        match parsed {
            Ok(Message::Metric(metric)) => return self.metric(&metric, packet),
            Ok(Message::Event(event)) => self.event(&event, packet.listener),
            Ok(Message::Check(check)) => self.check(&check, packet.listener),
            Err(class) => {
                self.counts[packet.listener].rejected[class as usize] += 1;
                self.keep_example(packet.listener, class.as_str(), line);
            }
        }
        None
    }

    #[cold]
    fn keep_example(&mut self, listener: usize, class: &'static str, line: &[u8]) {
        if !self.want_example {
            return;
        }
        self.want_example = false;
        let shown = &line[..line.len().min(120)];
        let mut example = shown.escape_ascii().to_string();
        if shown.len() < line.len() {
            example.push_str("...");
        }
        self.bad_input = Some(BadInput {
            listener,
            class,
            example,
        });
    }

    fn metric(&mut self, metric: &Metric<'_>, packet: &Received<'_>) -> Option<RawId> {
        let counts = &mut self.counts[packet.listener];
        counts.metrics += 1;
        counts.rate_faults += u64::from(metric.rate_fault.is_some());
        if let Values::Numbers(numbers) = metric.values {
            let non_finite = u64::from(numbers.non_finite);
            counts.samples += non_finite;
            counts.samples_dropped[SampleDrop::NonFinite as usize] += non_finite;
        }
        if metric.timestamp.is_some() {
            self.timestamped(metric, packet.listener);
            return None;
        }
        match self.contexts.resolve(metric, "", self.aggregator.now()) {
            Lookup::Context(id, raw) => {
                let samples = self.aggregate(metric, id, packet.received);
                self.counts[packet.listener].samples += samples;
                self.counts[packet.listener].samples_aggregated += samples;
                return Some(raw);
            }
            Lookup::Overflow(id) => {
                let samples = self.aggregate(metric, id, packet.received);
                self.counts[packet.listener].samples += samples;
                self.counts[packet.listener].samples_overflowed += samples;
            }
            Lookup::Filtered(raw) => {
                self.drop_samples(metric, packet.listener, SampleDrop::Filtered);
                return Some(raw);
            }
            Lookup::Refused => self.drop_samples(metric, packet.listener, SampleDrop::NoMemory),
        }
        None
    }

    fn drop_samples(&mut self, metric: &Metric<'_>, listener: usize, reason: SampleDrop) {
        let samples = match metric.values {
            Values::Numbers(numbers) => numbers.iter().count() as u64,
            Values::Member(_) => 1,
        };
        self.counts[listener].samples += samples;
        self.counts[listener].samples_dropped[reason as usize] += samples;
    }

    /// Adds the values of one metric to the state of its context. Returns how many there were.
    fn aggregate(&mut self, metric: &Metric<'_>, id: ContextId, received: u64) -> u64 {
        let numbers = match metric.values {
            Values::Member(member) => {
                self.aggregator.set(id, member.as_bytes());
                return 1;
            }
            Values::Numbers(numbers) => numbers,
        };
        let weight = 1.0 / metric.rate;
        let mut samples = 0;
        match metric.kind {
            Kind::Counter => {
                for value in numbers.iter() {
                    self.aggregator.counter(id, value * weight);
                    samples += 1;
                }
            }
            Kind::Gauge if self.settings.gauge_deltas => {
                for (value, signed) in numbers.iter_signed() {
                    let base = if signed {
                        self.aggregator.last_gauge(id).unwrap_or(0.0)
                    } else {
                        0.0
                    };
                    self.aggregator.gauge(id, base + value, received);
                    samples += 1;
                }
            }
            Kind::Gauge => {
                for value in numbers.iter() {
                    self.aggregator.gauge(id, value, received);
                    samples += 1;
                }
            }
            Kind::Histogram | Kind::Timing => {
                let copy_to = self.contexts.get(metric.kind, id).copy_to();
                for value in numbers.iter() {
                    self.aggregator.histogram(metric.kind, id, value, weight);
                    if let Some(copy) = copy_to {
                        self.aggregator.copied_distribution(copy, value, weight);
                    }
                    samples += 1;
                }
            }
            Kind::Distribution => {
                for value in numbers.iter() {
                    self.aggregator.distribution(id, value, weight);
                    samples += 1;
                }
            }
            Kind::Set => unreachable!("a set has a member, not numbers"),
        }
        samples
    }

    /// Passes a timestamped sample on: no bucket, no rate, no zeros, and no place in the tables either.
    fn timestamped(&mut self, metric: &Metric<'_>, listener: usize) {
        let (Values::Numbers(numbers), Kind::Counter | Kind::Gauge) = (metric.values, metric.kind) else {
            self.drop_samples(metric, listener, SampleDrop::UnsupportedTimestampedType);
            return;
        };
        let timestamp = metric.timestamp.expect("the caller looked");
        let mut tags: Vec<&str> = metric.tags.iter().collect();
        let rules = self.contexts.rules();
        if !rules.apply(metric.name, metric.kind, &mut tags, &mut self.resolved) {
            self.drop_samples(metric, listener, SampleDrop::Filtered);
            return;
        }
        let passing = passing(&mut self.passing, &mut self.passing_sequence, &self.aggregator);
        let mut samples = 0;
        for value in numbers.iter() {
            passing.push_timestamped(&TimestampedSample {
                kind: metric.kind,
                name: self.resolved.name(metric.name),
                host: self.resolved.host.as_deref(),
                tags: &tags,
                timestamp,
                value,
            });
            samples += 1;
        }
        self.counts[listener].samples += samples;
        self.counts[listener].samples_timestamped += samples;
        self.cut_passing();
    }

    /// A full batch waits in the outbox. Timestamped samples are never dropped here: their memory is bounded by what the
    /// sockets deliver between two turns.
    fn cut_passing(&mut self) {
        let full = |batch: &Batch| batch.len() + batch.events.len() + batch.checks.len() >= PASSED_ON_MAX;
        if self.passing.as_ref().is_some_and(full) {
            self.outbox.extend(self.passing.take());
        }
    }

    fn event(&mut self, event: &Event<'_>, listener: usize) {
        self.counts[listener].events += 1;
        if self.outbox.len() >= OUTBOX_MAX {
            self.counts[listener].events_dropped += 1;
            return;
        }
        let mut tags: Vec<&str> = event.tags.iter().collect();
        let tag_host = self.contexts.rules().apply_to_tags(&mut tags);
        let record = EventRecord {
            title: unescape_newlines(event.title).into_owned(),
            text: unescape_newlines(event.text).into_owned(),
            timestamp: event
                .timestamp
                .filter(|&seconds| seconds != 0)
                .unwrap_or(self.now),
            host: if event.host.is_empty() {
                tag_host
            } else {
                Some(event.host.to_string())
            },
            aggregation_key: event.aggregation_key.to_string(),
            source_type: event.source_type.to_string(),
            priority: event.priority,
            alert_type: event.alert_type,
            tags: tags.iter().map(ToString::to_string).collect(),
        };
        passing(&mut self.passing, &mut self.passing_sequence, &self.aggregator)
            .events
            .push(record);
        self.cut_passing();
    }

    fn check(&mut self, check: &ServiceCheck<'_>, listener: usize) {
        self.counts[listener].checks += 1;
        if self.outbox.len() >= OUTBOX_MAX {
            self.counts[listener].checks_dropped += 1;
            return;
        }
        let mut tags: Vec<&str> = check.tags.iter().collect();
        let tag_host = self.contexts.rules().apply_to_tags(&mut tags);
        let record = CheckRecord {
            name: check.name.to_string(),
            status: check.status,
            timestamp: check
                .timestamp
                .filter(|&seconds| seconds != 0)
                .unwrap_or(self.now),
            host: if check.host.is_empty() {
                tag_host
            } else {
                Some(check.host.to_string())
            },
            message: check.message.to_string(),
            tags: tags.iter().map(ToString::to_string).collect(),
        };
        passing(&mut self.passing, &mut self.passing_sequence, &self.aggregator)
            .checks
            .push(record);
        self.cut_passing();
    }
}

/// The batch that collects what passes without aggregation.
fn passing<'a>(slot: &'a mut Option<Batch>, sequence: &mut u64, aggregator: &Aggregator) -> &'a mut Batch {
    slot.get_or_insert_with(|| {
        *sequence += 1;
        aggregator.passing_batch(*sequence)
    })
}
