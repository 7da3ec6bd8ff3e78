use std::borrow::Cow;

use weir_aggregate::{Aggregator, AggregatorSettings, Batch, CheckRecord, EventRecord, TimestampedSample};
use weir_context::{
    Admission, AliasKey, ContextId, Contexts, HashSecret, Level, LimitReason, Limits, Lookup, OriginId,
    OriginKey, OriginTags, RawId, Resolved, Rules, UsageSummary,
};
use weir_protocol::{
    ErrorClass, Event, FastMetric, Kind, Message, Metric, ParseOptions, Scan, ServiceCheck, Tags, Values,
    parse_fast, parse_line, unescape_newlines,
};

use crate::admission::{AdmissionList, AdmissionSettings, Admissions, Admitted, RefusedSender};
use crate::counts::{IngestCounts, Refusal, SampleDrop};
use crate::origin::{OriginAnswer, OriginStats, ProcessFound, ProcessQuestions};
use crate::origin_rates::{LimitedOrigin, OriginRates};
use crate::parking::{Awaited, Parked, Parking, WAIT_NS};
use crate::relay::Relay;
use crate::sampler::Sampler;
use crate::senders::{Identity, Sender, Senders};
use crate::timestamped::Timestamped;

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

/// How long what waits for its origin may go on waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hurry {
    /// Until it has waited long enough.
    None,
    /// Its bucket ends: what need not wait goes on.
    Bucket,
    /// Nothing waits any longer.
    End,
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

/// A line that is read and not looked up yet.
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

/// Where in a packet the next line begins, and how many are before it.
#[derive(Default)]
struct Place {
    start: usize,
    number: usize,
}

/// What a group adds to the counts of its listener.
#[derive(Default)]
struct Tally {
    messages: u64,
    samples: u64,
    /// Samples that a rule drops.
    filtered: u64,
    rate_faults: u64,
}

#[inline]
fn alias_key<'a>(line: &'a [u8], fast: &FastMetric, sender: OriginId) -> AliasKey<'a> {
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
    timestamped: Timestamped,
    scan: Scan,
    group: Vec<Pending>,
    values: Vec<f64>,
    copies_histograms: bool,
    bad_input: Option<BadInput>,
    /// Whether an example is wanted; the owner rations them.
    want_example: bool,
    now: i64,
    /// The origin of the process that sent the packet at hand.
    sender: OriginId,
    /// The origin of senders that nothing is known of; most often none.
    nobody: OriginId,
    senders: Senders,
    admissions: Admissions,
    origin_rates: Option<OriginRates>,
    parking: Parking,
    relays: Vec<Relay>,
    /// Lines are relayed and nothing else.
    relay_only: bool,
    /// Whether a message may wait for its origin's tags: somebody is there to give them, and it has not waited yet.
    may_wait: bool,
    sampler: Sampler,
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
            timestamped: Timestamped::default(),
            scan: Scan::new(),
            group: Vec::with_capacity(GROUP_LINES),
            values: Vec::new(),
            copies_histograms: settings.rules.copies_histograms(),
            bad_input: None,
            want_example: true,
            now,
            sender: OriginId::NONE,
            nobody: OriginId::NONE,
            senders: Senders::new(),
            admissions: Admissions::default(),
            origin_rates: None,
            parking: Parking::default(),
            relays: Vec::new(),
            relay_only: false,
            may_wait: false,
            sampler: Sampler::new(),
            settings,
        }
    }

    /// From now on every valid line is also given to these relays, or with `only` to nobody else.
    pub fn enable_relays(&mut self, relays: Vec<Relay>, only: bool) {
        self.relays = relays;
        self.relay_only = only;
    }

    pub fn relays_mut(&mut self) -> &mut [Relay] {
        &mut self.relays
    }

    /// When a relay has something to hand over, in monotonic nanoseconds.
    pub fn relay_deadline(&self) -> Option<u64> {
        self.relays.iter().filter_map(Relay::deadline).min()
    }

    /// From now on senders and origins are told apart; whoever calls this answers the questions that come of it.
    /// `nobody`: senders that nothing is known of have tags too.
    pub fn enable_origins(&mut self, nobody: bool) {
        self.contexts.enable_origins();
        self.may_wait = true;
        if nobody {
            self.nobody = self.contexts.hold_nobody(self.aggregator.now());
        }
    }

    /// From now on each origin may send so many bytes a second, as far as the kernel says who sent.
    pub fn limit_origins(&mut self, bytes_per_second: u64) {
        self.origin_rates = Some(OriginRates::new(bytes_per_second));
    }

    /// From now on senders at these listeners need to be allowed, where there is a list.
    pub fn limit_senders(&mut self, settings: AdmissionSettings) {
        self.admissions = Admissions::new(settings);
    }

    /// Another list of who may send. What it says of each container comes with answers.
    pub fn set_admission_list(&mut self, list: Option<AdmissionList>) {
        self.admissions.set_list(list);
    }

    /// What counts as the origin of a sender of which this is known.
    fn sender_of(&self, origin: OriginId) -> OriginId {
        if origin.is_none() { self.nobody } else { origin }
    }

    pub fn contexts(&self) -> &Contexts {
        &self.contexts
    }

    pub fn contexts_mut(&mut self) -> &mut Contexts {
        &mut self.contexts
    }

    pub fn aggregator(&self) -> &Aggregator {
        &self.aggregator
    }

    /// Replaces the rules. Contexts, their state and open buckets stay; raw contexts are resolved again as
    /// [`Contexts::sweep_stale`] finds them.
    pub fn set_rules(&mut self, rules: Rules) {
        self.copies_histograms = rules.copies_histograms();
        self.timestamped = Timestamped::default();
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
        if !self.parking.is_empty() && now >= self.aggregator.open_bucket_end() {
            // They came in time for this bucket.
            self.feed_parked(0, Hurry::Bucket);
        }
        self.now = self.now.max(now);
        self.aggregator.advance(now)
    }

    /// Closes the open bucket before its time, for shutdown.
    #[must_use]
    pub fn close_now(&mut self) -> bool {
        self.feed_parked(0, Hurry::End);
        self.aggregator.close_now()
    }

    /// Goes on counting what the state takes; see [`Aggregator::take_census`].
    pub fn take_census(&mut self, states_max: usize) {
        self.aggregator.take_census(states_max);
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

    /// Takes one packet of the process `pid`, as the kernel says; 0 is a process it cannot name.
    pub fn packet_from(&mut self, packet: Received<'_>, pid: i32) {
        self.sender = self.nobody;
        let mut known = None;
        if pid > 0 && self.may_wait {
            match self.senders.find(pid) {
                Sender::Known(identity) => known = Some(identity),
                Sender::Pending if self.parking.has_room(packet.bytes.len()) => {
                    self.park(&packet, packet.bytes, Awaited::Process(pid));
                    return;
                }
                Sender::Pending => {}
            }
        }
        if self.admissions.applies(packet.listener) && !self.admits(&packet, pid, known) {
            return;
        }
        if let Some(identity) = known {
            let origin = identity.origin();
            if let Some(rates) = &mut self.origin_rates
                && !rates.admits(origin, packet.bytes.len(), packet.received)
            {
                self.counts[packet.listener].packets_rate_limited += 1;
                return;
            }
            self.sender = self.sender_of(origin);
        }
        self.packet(packet);
        self.sender = self.nobody;
    }

    /// Whether a packet that has just come may be taken. If not, it waits or is counted as refused.
    fn admits(&mut self, packet: &Received<'_>, pid: i32, known: Option<Identity>) -> bool {
        let identity = known.unwrap_or(Identity::Unknown);
        let contexts = &self.contexts;
        match self.admissions.of(identity, |origin| contexts.admission(origin)) {
            Admitted::Yes => return true,
            Admitted::No(why) => self.refuse(packet, identity, why, pid),
            Admitted::Undecided if self.parking.has_room(packet.bytes.len()) => {
                self.park(packet, packet.bytes, Awaited::Process(pid));
            }
            Admitted::Undecided => {
                self.contexts.settle_admission(identity.origin());
                return self.admits(packet, pid, known);
            }
        }
        false
    }

    fn refuse(&mut self, packet: &Received<'_>, identity: Identity, why: Refusal, pid: i32) {
        self.counts[packet.listener].packets_refused[why as usize] += 1;
        self.admissions.note(identity.origin(), why, pid, packet.received);
    }

    #[cold]
    fn park(&mut self, packet: &Received<'_>, bytes: &[u8], awaited: Awaited) {
        self.parking.push(Parked {
            awaited,
            bytes: bytes.into(),
            listener: packet.listener,
            truncated: packet.truncated && matches!(awaited, Awaited::Process(_)),
            received: packet.received,
        });
    }

    /// When [`Ingest::feed_parked`] has something to do at the latest, in monotonic nanoseconds.
    pub fn parked_deadline(&self) -> Option<u64> {
        self.parking.deadline()
    }

    /// Whole packets of a listener that wait for their sender to be known. They are counted when they go on.
    pub fn packets_waiting(&self, listener: usize) -> u64 {
        self.parking.packets_of(listener)
    }

    /// Goes on with packets and messages whose origin is known by now, and with those that have waited long enough.
    pub fn feed_parked(&mut self, monotonic: u64, hurry: Hurry) {
        if self.parking.is_empty() {
            return;
        }
        for parked in self.parking.take() {
            let waited = hurry == Hurry::End || monotonic >= parked.received + WAIT_NS;
            let hurried = waited || hurry == Hurry::Bucket;
            let packet = Received {
                bytes: &parked.bytes,
                listener: parked.listener,
                truncated: parked.truncated,
                received: parked.received,
            };
            match parked.awaited {
                Awaited::Process(pid) => {
                    // Rather into the next bucket than refused because nobody knew yet.
                    let guarded = self.admissions.applies(parked.listener);
                    let is_late = if guarded { waited } else { hurried };
                    let mut sender = self.senders.find(pid);
                    if sender == Sender::Pending && is_late {
                        self.senders.give_up(pid);
                        self.parking.counts.gave_up += 1;
                        sender = Sender::Known(Identity::Unknown);
                    }
                    let Sender::Known(identity) = sender else {
                        self.parking.put_back(parked);
                        continue;
                    };
                    let origin = identity.origin();
                    if guarded {
                        let contexts = &mut self.contexts;
                        if is_late && !origin.is_none() && contexts.admission(origin) == Admission::Undecided
                        {
                            contexts.settle_admission(origin);
                            self.parking.counts.gave_up += 1;
                        }
                        match self.admissions.of(identity, |origin| contexts.admission(origin)) {
                            Admitted::Yes => {}
                            Admitted::No(why) => {
                                self.refuse(&packet, identity, why, pid);
                                continue;
                            }
                            Admitted::Undecided => {
                                self.parking.put_back(parked);
                                continue;
                            }
                        }
                    }
                    let counts = &mut self.counts[packet.listener];
                    counts.packets += 1;
                    counts.bytes += packet.bytes.len() as u64;
                    self.sender = self.sender_of(origin);
                    self.may_wait = !hurried;
                    self.lines(packet);
                }
                Awaited::Tags { origin, sender } => {
                    if !self.contexts.origin_tags(origin).settled {
                        if !hurried {
                            self.parking.put_back(parked);
                            continue;
                        }
                        self.contexts.settle_origin(origin);
                        self.parking.counts.gave_up += 1;
                    }
                    self.sender = sender;
                    // As a packet of its own, so that its bytes become an alias at once.
                    self.lines(packet);
                    self.contexts.release_origin(origin);
                }
            }
        }
        self.may_wait = true;
        self.sender = self.nobody;
    }

    /// Takes what was found out about a process or an origin.
    pub fn answer(&mut self, answer: OriginAnswer) {
        match answer {
            OriginAnswer::Process { pid, found } => {
                let now = self.aggregator.now();
                let identity = match found {
                    ProcessFound::Container(container) => {
                        let origin = self.contexts.hold_sender(&container, now);
                        // There is no room to tell further ones apart.
                        if origin.is_none() {
                            Identity::Unknown
                        } else {
                            Identity::Container(origin)
                        }
                    }
                    ProcessFound::NoContainer => Identity::NoContainer,
                    ProcessFound::Unknown => Identity::Unknown,
                };
                let before = self.senders.set(pid, identity);
                self.contexts.release_origin(before);
            }
            OriginAnswer::Tags {
                ticket,
                tags,
                settled,
                admission,
            } => self.contexts.answer_origin(ticket, tags, settled, admission),
        }
    }

    pub fn take_process_questions(&mut self) -> ProcessQuestions {
        let (new, again) = self.senders.take_questions();
        ProcessQuestions { new, again }
    }

    pub fn has_origin_questions(&self) -> bool {
        self.senders.has_questions() || self.contexts.has_origin_questions()
    }

    /// Once a second: processes and origins that nothing has come from for a while are forgotten.
    pub fn tick_origins(&mut self, monotonic: u64) {
        let contexts = &mut self.contexts;
        self.senders.tick(|origin| contexts.release_origin(origin));
        if let Some(rates) = &mut self.origin_rates {
            rates.forget_quiet(monotonic);
        }
        self.admissions.forget_quiet(monotonic);
        let now = self.aggregator.now();
        if now.is_multiple_of(10) {
            self.contexts.expire_origins(now);
        }
    }

    /// The origins that have sent more than they may.
    pub fn limited_origins(&self) -> Vec<LimitedOrigin> {
        let name = |origin| self.contexts.origin_text(origin).to_owned();
        let rates = self.origin_rates.as_ref();
        rates.map_or_else(Vec::new, |rates| rates.limited(name))
    }

    /// Who was lately refused.
    pub fn refused_senders(&self) -> Vec<RefusedSender> {
        self.admissions
            .refused(|origin| self.contexts.origin_text(origin).to_owned())
    }

    pub fn origin_stats(&self) -> OriginStats {
        OriginStats {
            origins: self.contexts.origin_counts(),
            origins_live: self.contexts.origins() as u64,
            processes: self.senders.counts,
            processes_live: self.senders.len() as u64,
            parking: self.parking.counts,
            parked_now: self.parking.len() as u64,
            parked_bytes: self.parking.heap_bytes() as u64,
            rate_bytes: (self.origin_rates.as_ref().map_or(0, OriginRates::heap_bytes)
                + self.admissions.heap_bytes()) as u64,
        }
    }

    /// The tags of the origin of a message that has no context of its own.
    fn origin_tags(&mut self, key: &OriginKey<'_>) -> Option<OriginTags> {
        let now = self.aggregator.now();
        let origin = self.contexts.hold_origin(key, self.sender, now);
        let known = self.contexts.origin_tags(origin);
        self.contexts.release_origin(origin);
        known.tags
    }

    /// Lets a message wait if its origin's tags are on their way. True when it waits.
    fn waits_for_tags(&mut self, packet: &Received<'_>, line: &[u8], message: &Message<'_>) -> bool {
        let key = match message {
            Message::Metric(metric) => OriginKey::of_message(metric.origin, metric.tags.iter()),
            Message::Event(event) => OriginKey::of_message(event.origin, event.tags.iter()),
            Message::Check(check) => OriginKey::of_message(check.origin, check.tags.iter()),
        };
        if key.is_sender_only() && self.contexts.origin_tags(self.sender).settled {
            return false;
        }
        let now = self.aggregator.now();
        let origin = self.contexts.hold_origin(&key, self.sender, now);
        let settled = self.contexts.origin_tags(origin).settled;
        if !settled && self.parking.has_room(line.len()) {
            let sender = self.sender;
            let mut terminated = Vec::with_capacity(line.len() + 1);
            terminated.extend_from_slice(line);
            terminated.push(b'\n');
            self.park(packet, &terminated, Awaited::Tags { origin, sender });
            return true;
        }
        if !settled {
            // Whoever sends more than fits while its tags are looked up gets them with a later message.
            self.contexts.settle_origin(origin);
        }
        self.contexts.release_origin(origin);
        false
    }

    /// Takes one packet.
    ///
    /// The simple version is: parse each line, look its context up, add its values. This one takes a short cut for metrics
    /// whose bytes were seen before; whatever does not fit it takes the simple way, in its turn.
    pub fn packet(&mut self, packet: Received<'_>) {
        let counts = &mut self.counts[packet.listener];
        counts.packets += 1;
        counts.bytes += packet.bytes.len() as u64;
        let before = counts.messages;
        self.lines(packet);
        if self.sampler.wants(self.counts[packet.listener].messages - before) {
            self.look_at(&packet);
        }
    }

    /// Looks at those messages of a packet that stand for many others, for the summary. They have been taken already.
    #[inline(never)]
    fn look_at(&mut self, packet: &Received<'_>) {
        let mut next = 0;
        for number in 0.. {
            // Where lines end is known since they were taken.
            let (start, end) = (next, self.scan.newline(number));
            if start >= packet.bytes.len() {
                return;
            }
            next = end + 1;
            let line = &packet.bytes[start..end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let Some(weight) = self.sampler.next() else {
                continue;
            };
            let mut values = std::mem::take(&mut self.values);
            let pending = self.next_line(packet, &mut Place { start, number }, &mut values);
            values.clear();
            self.values = values;
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
                if self.contexts.note_known_samples(*hash, &key, samples, now) {
                    continue;
                }
            }
            let options = &self.settings.listeners[packet.listener];
            if let Ok(Message::Metric(metric)) = parse_line(line, options) {
                let values = match metric.values {
                    Values::Numbers(numbers) => numbers.iter().count() as u64,
                    Values::Member(_) => 1,
                };
                self.contexts
                    .note_samples(&metric, self.sender, values * weight, now);
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

    /// The lines of a packet that has been counted.
    fn lines(&mut self, packet: Received<'_>) {
        if !self.relays.is_empty() {
            self.relay_lines(&packet);
            if self.relay_only {
                return;
            }
        }
        // SAFETY: the level says that the processor has what the function is compiled for.
        #[allow(unsafe_code)]
        match self.settings.secret.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Wide => unsafe { self.lines_wide(&packet) },
            #[cfg(target_arch = "x86_64")]
            Level::Aes => unsafe { self.lines_aes(&packet) },
            _ => self.lines_inlined(&packet),
        }
    }

    /// Gives the valid lines of a packet to the relays: a pass of its own, so that it costs nothing where there is no relay.
    #[inline(never)]
    fn relay_lines(&mut self, packet: &Received<'_>) {
        let mut values = std::mem::take(&mut self.values);
        self.scan.scan(packet.bytes);
        let eol_required = self.settings.listeners[packet.listener].eol_required;
        let mut place = Place::default();
        while let Some(pending) = self.next_line(packet, &mut place, &mut values) {
            values.clear();
            let line = &packet.bytes[pending.start as usize..][..pending.len as usize];
            let whole = pending.terminated || !(packet.truncated || eol_required);
            self.relay(packet, line, whole, pending.fast.as_ref().map(|_| pending.hash));
        }
        self.values = values;
    }

    /// Gives a line to the relays if it is valid. Where lines are relayed and nothing else, this is also where they are counted.
    fn relay(&mut self, packet: &Received<'_>, line: &[u8], whole: bool, hash: Option<u64>) {
        let options = self.settings.listeners[packet.listener];
        let known = hash.is_some_and(|hash| self.relays.iter().all(|relay| relay.knows(hash)));
        // What was taken before was valid, and all that can differ since is a value that was read again.
        let parsed = match (whole, known) {
            (false, _) => Err(ErrorClass::Unterminated),
            (true, true) => Ok(None),
            (true, false) => parse_line(line, &options).map(Some),
        };
        if self.relay_only {
            let counts = &mut self.counts[packet.listener];
            counts.messages += 1;
            match &parsed {
                Ok(None | Some(Message::Metric(_))) => counts.metrics += 1,
                Ok(Some(Message::Event(_))) => counts.events += 1,
                Ok(Some(Message::Check(_))) => counts.checks += 1,
                Err(_) if !whole && packet.truncated => {
                    counts.rejected_truncated += 1;
                    self.keep_example(packet.listener, "truncated", line);
                }
                Err(class) => {
                    counts.rejected[*class as usize] += 1;
                    self.keep_example(packet.listener, class.as_str(), line);
                }
            }
        }
        if parsed.is_ok() {
            for relay in &mut self.relays {
                relay.take(hash, line, packet.received);
            }
        }
    }

    /// [`Ingest::lines`], compiled for [`Level::Wide`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,avx2,bmi1,bmi2,lzcnt,popcnt,aes")]
    fn lines_wide(&mut self, packet: &Received<'_>) {
        self.lines_inlined(packet);
    }

    /// [`Ingest::lines`], compiled for [`Level::Aes`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt,aes")]
    fn lines_aes(&mut self, packet: &Received<'_>) {
        self.lines_inlined(packet);
    }

    #[inline(always)]
    fn lines_inlined(&mut self, packet: &Received<'_>) {
        let mut values = std::mem::take(&mut self.values);
        self.scan.scan(packet.bytes);
        let mut tally = Tally::default();
        // In small tables everything is in the cache anyway.
        if self.contexts.aliases() > PREFETCH_ALIASES_MIN {
            self.lines_ahead(packet, &mut values, &mut tally);
        } else {
            self.lines_in_turn(packet, &mut values, &mut tally);
        }
        self.values = values;
        let counts = &mut self.counts[packet.listener];
        counts.messages += tally.messages;
        counts.metrics += tally.messages;
        counts.samples += tally.samples + tally.filtered;
        counts.samples_aggregated += tally.samples;
        counts.samples_dropped[SampleDrop::Filtered as usize] += tally.filtered;
        counts.rate_faults += tally.rate_faults;
    }

    /// One line after the other, each read before the one in front of it is looked up: while the look-up waits for its memory
    /// the processor has something to read, and the slot of the next look-up is on its way.
    #[inline(always)]
    fn lines_in_turn(&mut self, packet: &Received<'_>, values: &mut Vec<f64>, tally: &mut Tally) {
        let mut place = Place::default();
        let mut next = self.next_line(packet, &mut place, values);
        while let Some(pending) = next {
            next = self.next_line(packet, &mut place, values);
            if let Some(next) = &next {
                self.contexts.prefetch_alias(next.hash);
            }
            self.take(packet, &pending, values, tally);
        }
        values.clear();
    }

    /// Lines in groups, in steps that each ask for the memory the next one needs.
    #[inline(always)]
    fn lines_ahead(&mut self, packet: &Received<'_>, values: &mut Vec<f64>, tally: &mut Tally) {
        self.aggregator.find_places();
        let mut group = std::mem::take(&mut self.group);
        let mut place = Place::default();
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
            self.look_ahead(&group);
            for pending in &group {
                self.take(packet, pending, values, tally);
            }
            group.clear();
            values.clear();
        }
        self.group = group;
    }

    /// Reads the line at `place`, or behind it where that is empty, up to what identifies it; appends its numbers to `values`.
    #[inline(always)]
    fn next_line(&self, packet: &Received<'_>, place: &mut Place, values: &mut Vec<f64>) -> Option<Pending> {
        let options = &self.settings.listeners[packet.listener];
        loop {
            let from = place.start;
            if from >= packet.bytes.len() {
                return None;
            }
            let newline = self.scan.newline(place.number);
            *place = Place {
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
                let colon = self.scan.colon(from);
                parse_fast(line, colon - from, self.scan.colon_window(colon + 1), values)
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

    /// Asks for the memory that looking up a group will touch, one step of the look-up after the other.
    #[inline(always)]
    fn look_ahead(&self, group: &[Pending]) {
        let mut raws = [None; GROUP_LINES];
        for (pending, raw) in group.iter().zip(&mut raws) {
            *raw = self.contexts.prefetch_target(pending.hash);
        }
        // Counters and gauges are done with the first step; of the others there are few.
        let mut deep = [(Kind::Counter, ContextId(0)); GROUP_LINES];
        let mut deep_count = 0;
        for (pending, raw) in group.iter().zip(&raws) {
            if let (Some(fast), Some(raw)) = (&pending.fast, raw)
                && let Some(id) = self.contexts.probable_context(*raw)
            {
                self.aggregator.prefetch_state(fast.kind, id);
                deep[deep_count] = (fast.kind, id);
                deep_count += usize::from(!matches!(fast.kind, Kind::Counter | Kind::Gauge));
            }
        }
        for &(kind, id) in &deep[..deep_count] {
            self.aggregator.prefetch_body(kind, id);
        }
        for &(kind, id) in &deep[..deep_count] {
            self.aggregator.prefetch_sample(kind, id);
        }
    }

    /// Looks a line up and adds its values.
    #[inline(always)]
    fn take(&mut self, packet: &Received<'_>, pending: &Pending, values: &[f64], tally: &mut Tally) {
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
                tally.rate_faults += u64::from(fast.rate_fault);
            }
            // What a rule drops has no business being parsed again; a member's text is checked the simple way.
            Some(Lookup::Filtered(raw)) if fast.kind != Kind::Set => {
                let samples = u64::from(fast.count.max(1));
                tally.messages += 1;
                tally.filtered += samples;
                tally.rate_faults += u64::from(fast.rate_fault);
                self.contexts.count_dropped(raw, samples);
            }
            Some(_) => {
                self.line(packet, line, pending.terminated);
            }
            None => self.unknown(packet, line, pending, &key, numbers),
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
    #[inline(never)]
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
                    .find(fast.kind, key.name, tags, self.sender, self.aggregator.now())
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
    #[inline(never)]
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
        if self.may_wait
            && let Ok(message) = &parsed
            && self.waits_for_tags(packet, line, message)
        {
            // It is counted when it goes on.
            self.counts[packet.listener].messages -= 1;
            return None;
        }
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
        match self.contexts.resolve(metric, self.sender, self.aggregator.now()) {
            Lookup::Context(id, raw) => {
                let samples = self.aggregate(metric, id, packet.received);
                self.counts[packet.listener].samples += samples;
                self.counts[packet.listener].samples_aggregated += samples;
                return Some(raw);
            }
            Lookup::Unremembered(id) => {
                let samples = self.aggregate(metric, id, packet.received);
                self.counts[packet.listener].samples += samples;
                self.counts[packet.listener].samples_aggregated += samples;
            }
            Lookup::Overflow(id) => {
                let samples = self.aggregate(metric, id, packet.received);
                self.counts[packet.listener].samples += samples;
                self.counts[packet.listener].samples_overflowed += samples;
            }
            Lookup::OnTrial(id, raw) => {
                let samples = self.aggregate(metric, id, packet.received);
                self.counts[packet.listener].samples += samples;
                self.counts[packet.listener].samples_aggregated += samples;
                self.contexts.count_trial(raw, samples);
                return Some(raw);
            }
            Lookup::Filtered(raw) => {
                let samples = self.drop_samples(metric, packet.listener, SampleDrop::Filtered);
                self.contexts.count_dropped(raw, samples);
                return Some(raw);
            }
            Lookup::Refused => {
                let reason = match self.contexts.refused_by() {
                    LimitReason::Memory => SampleDrop::NoMemory,
                    _ => SampleDrop::ContextLimit,
                };
                self.drop_samples(metric, packet.listener, reason);
            }
        }
        None
    }

    fn drop_samples(&mut self, metric: &Metric<'_>, listener: usize, reason: SampleDrop) -> u64 {
        let samples = match metric.values {
            Values::Numbers(numbers) => numbers.iter().count() as u64,
            Values::Member(_) => 1,
        };
        self.counts[listener].samples += samples;
        self.counts[listener].samples_dropped[reason as usize] += samples;
        samples
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
        let origin_tags = self.origin_tags(&OriginKey::of_message(metric.origin, metric.tags.iter()));
        let tags = with_origin(metric.tags, &origin_tags);
        let (contexts, resolved) = (&mut self.contexts, &mut self.resolved);
        let Some(known) = self.timestamped.resolve(metric, tags, contexts, resolved) else {
            let rule = self.resolved.applied.dropped_by;
            let samples = self.drop_samples(metric, listener, SampleDrop::Filtered);
            self.contexts.count_dropped_by(rule, samples);
            return;
        };
        let tags: Vec<&str> = known.tags.iter().map(|tag| &**tag).collect();
        let passing = passing(&mut self.passing, &mut self.passing_sequence, &self.aggregator);
        let mut samples = 0;
        for value in numbers.iter() {
            passing.push_timestamped(&TimestampedSample {
                kind: metric.kind,
                name: &known.name,
                host: known.host.as_deref(),
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
        let origin_tags = self.origin_tags(&OriginKey::of_message(event.origin, event.tags.iter()));
        let mut tags = with_origin(event.tags, &origin_tags);
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
        let origin_tags = self.origin_tags(&OriginKey::of_message(check.origin, check.tags.iter()));
        let mut tags = with_origin(check.tags, &origin_tags);
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

/// The tags of a message and those of its origin.
fn with_origin<'a>(tags: Tags<'a>, origin: &'a Option<OriginTags>) -> Vec<Cow<'a, str>> {
    let origin = origin.iter().flat_map(|tags| tags.iter().map(AsRef::as_ref));
    tags.iter().chain(origin).map(Cow::Borrowed).collect()
}

/// The batch that collects what passes without aggregation.
fn passing<'a>(slot: &'a mut Option<Batch>, sequence: &mut u64, aggregator: &Aggregator) -> &'a mut Batch {
    slot.get_or_insert_with(|| {
        *sequence += 1;
        aggregator.passing_batch(*sequence)
    })
}
