//! Packets to buckets. [`fast`] and [`simple`] are the two ways that a line can take.

use weir_aggregate::{Aggregator, AggregatorSettings, Batch};
use weir_context::{ContextLimits, Contexts, HashSecret, NameReading, OriginId, Rules};
use weir_protocol::{ParseOptions, Scan};

use crate::counts::IngestCounter;
use crate::counts::IngestCounts;
use crate::gate::Gate;
use crate::hand_over::HandOver;
use crate::numbers::{ClientNumbers, NumberLink, RequestNumber, Verdict};
use crate::sampler::Sampler;

mod columns;
mod fast;
mod origins;
mod pass_through;
mod relayed;
mod resumed;
mod sampled;
mod simple;

pub(crate) use columns::{ColumnRun, ColumnStart};
use fast::{GROUPED_FROM, Group, LateMember, STEPS};
use pass_through::PassThrough;
pub(crate) use pass_through::latest_timestamp;
pub use pass_through::metric_fault;
use relayed::Relays;

/// Settings of one worker besides its sockets.
#[derive(Clone, Debug)]
pub struct IngestSettings {
    pub worker: u16,
    pub aggregator: AggregatorSettings,
    pub rules: Rules,
    pub limits: ContextLimits,
    pub secret: HashSecret,
    /// By listener number.
    pub listeners: Vec<ListenerSettings>,
}

/// Settings for reading the messages of one listener.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListenerSettings {
    /// Options of the parser.
    pub parse: ParseOptions,
    /// Plain StatsD's reading of a signed gauge: a change to its last value.
    pub gauge_deltas: bool,
    /// A line may have several samples after one name.
    pub sample_lists: bool,
    /// Tags in names.
    pub names: NameReading,
    /// Columns arrive here instead of messages.
    pub takes_columns: bool,
    /// Columns: seconds that a point may be older than the open bucket and is added to it all the same. `None`: no point is added.
    pub merge_within: Option<u32>,
}

impl From<ParseOptions> for ListenerSettings {
    fn from(parse: ParseOptions) -> Self {
        ListenerSettings {
            parse,
            ..ListenerSettings::default()
        }
    }
}

/// In eighths of the memory for contexts and their state: from here on histograms are folded and sets estimated early, and from the second
/// value on every body is kept small.
const FOLD_FROM_EIGHTHS: usize = 2;
const SQUEEZE_FROM_EIGHTHS: usize = 3;

/// Aliases are trimmed when bodies have grown by one part in this many.
const RECOUNT_PARTS: usize = 32;

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

/// Longest wait of a message for its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitLimit {
    /// Until it has waited long enough.
    Timeout,
    /// Its bucket ends: messages that need not wait proceed.
    BucketEnd,
    /// Nothing waits any longer.
    NoWait,
}

/// One example of input that was refused, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadInput {
    pub listener: usize,
    pub class: &'static str,
    /// The beginning of the line, made printable.
    pub example: String,
}

/// Packets to buckets: everything a worker does between its sockets and the hand-over, without either.
pub struct Ingest {
    settings: IngestSettings,
    contexts: Contexts,
    aggregator: Aggregator,
    hand_over: HandOver,
    gate: Gate,
    /// The origin of the process that sent the packet at hand.
    sender: OriginId,
    scratch: PacketScratch,
    relays: Relays,
    pass_through: PassThrough,
    copies_histograms: bool,
    counts: Vec<IngestCounts>,
    examples: Examples,
    sampler: Sampler,
    /// Size of bodies at which aliases must shrink.
    recount_at: usize,
    /// Unix seconds.
    now: i64,
}

/// Settings for the current packet, and scratch memory that is reused from packet to packet.
struct PacketScratch {
    /// As its listener says.
    gauge_deltas: bool,
    scan: Scan,
    groups: [Group; STEPS],
    /// Aliases from which on look-ups are made in groups.
    grouped_from: usize,
    values: Vec<f64>,
    late_members: Vec<LateMember>,
}

/// Input that was refused, for the log.
#[derive(Default)]
struct Examples {
    kept: Option<BadInput>,
    /// Whether one is wanted; the owner rations them.
    wanted: bool,
}

impl Ingest {
    /// `now`: Unix seconds.
    pub fn new(settings: IngestSettings, now: i64) -> Self {
        let mut contexts = Contexts::new(settings.secret, settings.rules.clone(), settings.limits);
        contexts.partition_by(settings.aggregator.partitioning);
        Ingest {
            contexts,
            aggregator: aggregator(&settings, now),
            hand_over: HandOver::default(),
            gate: Gate::new(),
            sender: OriginId::NONE,
            scratch: PacketScratch {
                gauge_deltas: false,
                scan: Scan::new(),
                groups: Default::default(),
                grouped_from: GROUPED_FROM,
                values: Vec::new(),
                late_members: Vec::new(),
            },
            relays: Relays::default(),
            pass_through: PassThrough::default(),
            copies_histograms: settings.rules.copies_histograms(),
            counts: vec![IngestCounts::default(); settings.listeners.len()],
            examples: Examples {
                kept: None,
                wanted: true,
            },
            sampler: Sampler::new(),
            recount_at: 0,
            now,
            settings,
        }
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

    /// From how many aliases on look-ups are made in groups. The result does not depend on it, only the time.
    pub fn group_from(&mut self, aliases: usize) {
        self.scratch.grouped_from = aliases;
    }

    /// Replaces the rules. Contexts, their state and open buckets stay; raw contexts are resolved again as
    /// [`Contexts::sweep_stale`] finds them.
    pub fn set_rules(&mut self, rules: Rules) {
        self.copies_histograms = rules.copies_histograms();
        self.pass_through.forget_rules();
        self.contexts.set_rules(rules);
    }

    /// Aliases get what contexts and state leave. Known contexts may fill their state without any new one coming, so this is looked
    /// at when it has grown, and once a second.
    #[cold]
    pub fn keep_within_memory(&mut self) {
        self.contexts.set_state_bytes(self.aggregator.expected_bytes());
        self.contexts.count_bytes();
        let step = self.settings.limits.bytes_max / RECOUNT_PARTS;
        self.recount_at = self.aggregator.body_bytes().saturating_add(step);
    }

    /// The numbers of clients' requests: how many clients are known at most, and where numbers are kept in case of a kill.
    pub fn keep_numbers(&mut self, clients_max: usize, link: Option<NumberLink>) {
        self.gate.numbers.limit(clients_max);
        self.gate.numbers.set_link(link);
    }

    /// Whether a request with this number was added, or cannot be.
    pub fn has_number(&self, number: &RequestNumber) -> bool {
        self.gate.numbers.verdict(number) != Verdict::Yes
    }

    pub(crate) fn numbers(&self) -> &ClientNumbers {
        &self.gate.numbers
    }

    pub(crate) fn numbers_mut(&mut self) -> &mut ClientNumbers {
        &mut self.gate.numbers
    }

    /// Counts by listener.
    pub fn counts(&self) -> &[IngestCounts] {
        &self.counts
    }

    /// The example that was kept since the last call, if any.
    pub fn take_bad_input(&mut self) -> Option<BadInput> {
        self.examples.kept.take()
    }

    /// Allows the next refused line to be kept as an example.
    pub fn want_example(&mut self) {
        self.examples.wanted = true;
    }

    /// Sets the time in Unix seconds. Returns false if a bucket should close while the previous one is not handed over.
    #[must_use]
    pub fn advance(&mut self, now: i64) -> bool {
        if !self.gate.parking.is_empty() && now >= self.aggregator.open_bucket_end() {
            // They came in time for this bucket.
            self.feed_parked(0, WaitLimit::BucketEnd);
        }
        self.now = self.now.max(now);
        self.aggregator.advance(now)
    }

    /// The clock was set back to `now`, in Unix seconds; see [`Aggregator::set_back`].
    #[must_use]
    pub fn set_back(&mut self, now: i64) -> bool {
        // They came in time for this bucket.
        self.feed_parked(0, WaitLimit::BucketEnd);
        let done = self.aggregator.set_back(now);
        if done {
            self.now = now;
        }
        done
    }

    /// Closes the open bucket before its time, for shutdown.
    #[must_use]
    pub fn close_now(&mut self) -> bool {
        self.feed_parked(0, WaitLimit::NoWait);
        self.aggregator.close_now()
    }

    pub fn is_draining(&self) -> bool {
        self.aggregator.is_draining()
    }

    /// Contexts that have expired since the start.
    pub fn contexts_expired(&self) -> u64 {
        self.hand_over.contexts_expired()
    }

    /// Hands over the next part of the closed bucket, looking at up to `contexts_max` contexts.
    pub fn drain(&mut self, contexts_max: usize) -> Option<Batch> {
        self.hand_over
            .proceed(&mut self.contexts, &mut self.aggregator, contexts_max)
    }

    /// Processes one packet.
    pub fn packet(&mut self, packet: Received<'_>) {
        self.packets(&[packet]);
    }

    /// Processes the packets of one receive call, all of one listener.
    ///
    /// The simple version: parse each line, look its context up, add its values. This one has a fast path for metrics whose bytes were seen
    /// before. All other lines take the simple path, in order.
    pub fn packets(&mut self, packets: &[Received<'_>]) {
        let Some(first) = packets.first() else { return };
        let counts = &mut self.counts[first.listener];
        counts[IngestCounter::Packets] += packets.len() as u64;
        let before = counts[IngestCounter::Messages];
        self.lines(packets);
        if self.aggregator.body_bytes() >= self.recount_at {
            self.keep_within_memory();
        }
        if self
            .sampler
            .wants(self.counts[first.listener][IngestCounter::Messages] - before)
        {
            for packet in packets {
                // The last one that was scanned is another.
                if packets.len() > 1 {
                    self.scratch.scan.scan(packet.bytes);
                }
                self.sample_messages(packet);
            }
        }
    }
}

fn aggregator(settings: &IngestSettings, now: i64) -> Aggregator {
    let mut aggregator = Aggregator::new(settings.aggregator.clone(), settings.worker, now);
    let eighth = settings.limits.bytes_max / 8;
    aggregator.set_bytes_max(eighth * FOLD_FROM_EIGHTHS, eighth * SQUEEZE_FROM_EIGHTHS);
    aggregator
}
