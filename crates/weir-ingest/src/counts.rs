//! Counters of a worker.

use std::ops::{Index, IndexMut};

use weir_counters::Significance::{Normal, Problem};
use weir_counters::books::{MESSAGES_REJECTED, PACKETS_DROPPED, SAMPLES_DROPPED};
use weir_counters::{Counts, SeriesSpec, counters};
use weir_protocol::ErrorClass;

const MESSAGES_ACCEPTED: SeriesSpec = SeriesSpec::counter(
    "weir_messages_accepted_total",
    "listeners.books.messages.accepted",
    "messages",
)
.help("Messages accepted: metrics, events and service checks.");

const NOT_HANDED_OVER: SeriesSpec = SeriesSpec::counter(
    "weir_passed_on_dropped_total",
    "listeners.passed_on_dropped",
    "messages",
)
.help("Accepted events and service checks that were dropped on the way to the outputs because a queue was full, by kind.");

const LINES_SLOW: SeriesSpec = SeriesSpec::counter("weir_lines_slow_total", "listeners.lines_slow", "lines")
    .help("Lines that took longer than one look-up of their bytes, by reason.");

const fn samples(name: &'static str, path: &'static str) -> SeriesSpec {
    SeriesSpec::counter(name, path, "samples")
}

counters! {
    /// Counters of the packets, messages and samples of one listener. Units are never mixed.
    pub enum IngestCounter {
        /// Packets parsed.
        Packets = SeriesSpec::counter("weir_packets_parsed_total", "listeners.books.packets.parsed", "packets"),
            Normal("It rises with the packets received.");
        /// Packets that wait until their sender is known. They count as received after that.
        PacketsWaiting = SeriesSpec::gauge("weir_packets_waiting", "listeners.packets_waiting", "packets"),
            Normal("Processes are being looked up; none waits for more than a second.");
        /// Packets of origins above their rate limit.
        PacketsRateLimited = PACKETS_DROPPED.because("origin_rate_limited"),
            Problem("Raise `rate_limit_per_origin`, or slow down the sender.");
        /// Messages received: lines that are not empty.
        Messages = SeriesSpec::counter("weir_messages_received_total", "listeners.books.messages.received", "messages"),
            Normal("It rises as long as clients send.");
        /// Metrics.
        Metrics = MESSAGES_ACCEPTED, Normal("It rises as long as clients send.");
        /// Events.
        Events = MESSAGES_ACCEPTED, Normal("It rises as long as clients send.");
        /// Service checks.
        Checks = MESSAGES_ACCEPTED, Normal("It rises as long as clients send.");
        /// The last line of a datagram that the socket cut: a cut value can look like a valid one.
        RejectedTruncated = MESSAGES_REJECTED.because("truncated"),
            Problem("weir takes packets of up to 64 KiB: let the client send smaller ones (`WithMaxBytesPerPayload` in Go, `buffer_max_payload_size` of dogstatsd-ruby).");
        /// Accepted messages whose sample rate was unusable and counted as 1.
        RateErrors = SeriesSpec::counter("weir_sample_rate_faults_total", "listeners.sample_rate_faults", "messages"),
            Problem("A client sends rates of 0, below 0 or above 1: `weir tail` shows its lines; correct the rate behind `@`.");
        /// Metrics with sections that stand for nothing, each when it is new: a line like an earlier one is not looked at again.
        UnknownSections = SeriesSpec::counter("weir_unknown_sections_total", "listeners.unknown_sections", "messages"),
            Problem("A client sends a bar in a tag, which ends the tag, or a newer protocol: `weir explain` shows the text that is ignored.");
        /// Samples that change a gauge without a known value; they count as changes to zero.
        GaugeDeltasWithoutBase = SeriesSpec::counter("weir_gauge_deltas_without_base_total", "listeners.gauge_deltas_without_base", "samples"),
            Problem("A client sends `+` or `-` before a value, or more than `context_expiry` or `delta_expiry` after it: these gauges may be wrong.");
        /// Samples received.
        Samples = samples("weir_samples_received_total", "listeners.books.samples.received"),
            Normal("It rises as long as clients send.");
        /// Samples aggregated.
        SamplesAggregated = samples("weir_samples_aggregated_total", "listeners.books.samples.aggregated"),
            Normal("It rises with the samples received.");
        /// Samples of refused contexts, kept in one series per name.
        SamplesOverflowed = samples("weir_samples_overflowed_total", "listeners.books.samples.overflowed"),
            Problem("Sums stay correct, tags are lost. Raise `memory` or `contexts_max`, or drop the tag with the most values by a rule: list 3 of `weir top`, or Cardinality on the page, has the tags.");
        /// Samples passed on without aggregation, with the timestamp of their sender.
        SamplesTimestamped = samples("weir_samples_timestamped_total", "listeners.books.samples.timestamped"),
            Normal("Clients send timestamps.");
        /// Events that were dropped because the queue was full.
        EventsDropped = NOT_HANDED_OVER.by("kind", "event"),
            Problem("More events arrive per second than weir passes on: `weir tail` shows who sends them.");
        /// Service checks that were dropped because the queue was full.
        ChecksDropped = NOT_HANDED_OVER.by("kind", "check"),
            Problem("More service checks arrive per second than weir passes on: `weir tail` shows who sends them.");
        /// Events and service checks with a timestamp that is negative or more than a day ahead. They have the time of their arrival.
        TimestampsIgnored = SeriesSpec::counter("weir_timestamps_ignored_total", "listeners.timestamps_ignored", "messages"),
            Problem("`weir tail` shows the lines, with their senders: write seconds behind `d:`, or correct the sender's clock.");
    }
}

counters! {
    /// Why a sample that was understood is in no bucket.
    pub enum SampleDrop {
        /// NaN or infinite.
        NonFinite = SAMPLES_DROPPED.because("non_finite"),
            Problem("A client divides by zero: `weir tail` shows the lines as dropped, with their senders.");
        /// A rule drops its metric.
        Filtered = SAMPLES_DROPPED.because("filtered"),
            Normal("Rules work as configured; `weir_rule_samples_dropped_total` names them.");
        /// A gauge or set in a new context for which there is no memory.
        NoMemory = SAMPLES_DROPPED.because("no_memory"),
            Problem("Raise `memory`, or drop the tag with the most values by a rule.");
        /// A gauge or set in a new context beyond a limit on contexts, or beyond its metric's or origin's share.
        ContextLimit = SAMPLES_DROPPED.because("context_limit"),
            Problem("Raise `contexts_max`, or drop the tag with the most values by a rule.");
        /// A timestamp on a kind other than counter and gauge.
        UnsupportedTimestampedType = SAMPLES_DROPPED.because("unsupported_timestamped_type"),
            Problem("A client sends timestamps with histograms, sets or distributions, which cannot be passed on: `weir tail` shows the lines as dropped, with their senders; leave `T` out.");
        /// A timestamp of a column that is zero or negative.
        BadTimestamp = SAMPLES_DROPPED.because("bad_timestamp"),
            Problem("A client sends columns without timestamps, or has no clock: `weir tail` shows them as dropped, with their sender.");
        /// A timestamp more than a day ahead.
        FutureTimestamp = SAMPLES_DROPPED.because("future_timestamp"),
            Problem("`weir tail` shows the lines as dropped, with their senders: write seconds behind `T`, or correct the sender's clock.");
        /// A timestamped sample while too many waited for the outputs.
        QueueFull = SAMPLES_DROPPED.because("queue_full"),
            Problem("More samples with a timestamp arrive than weir merges and encodes: give it more CPU (`cpu`), or let clients send less.");
    }
}

counters! {
    /// Counters of the columns of one listener.
    pub enum ColumnCounter {
        /// Payloads applied.
        Payloads = SeriesSpec::counter("weir_columns_payloads_total", "listeners.columns.payloads", "payloads"),
            Normal("It rises as long as clients send columns.");
        /// Points in them.
        Points = SeriesSpec::counter("weir_columns_points_total", "listeners.columns.points", "points"),
            Normal("It rises as long as clients send columns.");
        /// Points added to the open bucket.
        PointsMerged = SeriesSpec::counter("weir_columns_points_merged_total", "listeners.columns.points_merged", "points"),
            Normal("It rises with the points.");
        /// Points that came too late for the open bucket, or that a listener does not merge: passed on with their own timestamp.
        PointsPassedOn = SeriesSpec::counter("weir_columns_points_passed_on_total", "listeners.columns.points_passed_on", "points"),
            Normal("Clients send what they could not send before, or `merge` is off.");
        /// Payloads that had to wait for the look-up of their sender.
        PayloadsWaited = SeriesSpec::counter("weir_columns_payloads_waited_total", "listeners.columns.payloads_waited", "payloads"),
            Normal("New containers send.");
    }
}

counters! {
    /// Counters of clients that number their requests.
    pub enum NumberCounter {
        /// Clients whose numbers are known.
        Clients = SeriesSpec::gauge("weir_columns_clients", "columns.clients", "clients"),
            Normal("It follows the processes that send columns: each is remembered for an hour after its last request.");
        /// Clients forgotten because they sent nothing for an hour.
        ClientsExpired = SeriesSpec::counter("weir_columns_clients_expired_total", "columns.clients_expired", "clients"),
            Normal("Processes that sent columns have ended.");
        /// Clients forgotten within an hour because too many were known.
        ClientsEvicted = SeriesSpec::counter("weir_columns_clients_evicted_total", "columns.clients_evicted", "clients"),
            Normal("Many short processes send columns. If one that was forgotten repeats a request, it is added twice: give weir more `memory`.");
        /// Clients that came with a number above 1 and were not known.
        ClientsUnknown = SeriesSpec::counter("weir_columns_clients_unknown_total", "columns.clients_unknown", "clients"),
            Normal("Clients have outlived an agent without saved state, or were silent for an hour. What they repeat may be added twice.");
        /// Numbers that a client left out: it gave up their requests, or they were refused.
        GivenUp = SeriesSpec::counter("weir_columns_requests_given_up_total", "columns.requests_given_up", "requests"),
            Problem("Clients gave requests up, or weir refused them: `weir tail --rejected` shows refused ones with the reason. If there are none, weir did not answer for longer than the client keeps windows.");
    }
}

const SERIES_REJECTED: SeriesSpec = MESSAGES_REJECTED;

counters! {
    /// Why a series of columns was dropped, while the rest of its payload was kept.
    pub enum SeriesRejection {
        /// A name that is empty, too long, or has a colon, bar or line end.
        BadName = SERIES_REJECTED.because("series_bad_name"),
            Problem("A client sends columns with names that no message can have: `weir tail --rejected` shows them, with their sender.");
        /// More or longer tags than a series may have.
        TooManyTags = SERIES_REJECTED.because("series_too_many_tags"),
            Problem("A client sends columns with more than 1,024 tags, or more than 32 KiB of them, in one series: `weir tail --rejected` shows it, with its sender.");
        /// A rate without an interval.
        BadInterval = SERIES_REJECTED.because("series_bad_interval"),
            Problem("A client sends rates without the seconds that they cover: `weir tail --rejected` shows them, with their sender.");
        /// A sketch whose bins and count disagree.
        BadSketch = SERIES_REJECTED.because("series_bad_sketch"),
            Problem("A client makes sketches that are not those of the agent: `weir tail --rejected` shows its address; replace its version.");
    }
}

counters! {
    /// Why a line took longer than one look-up of its bytes.
    pub enum SlowLine {
        /// A metric whose name and tags are new.
        NewContext = LINES_SLOW.because("new_context"),
            Normal("It rises with `weir_contexts_created_total`.");
        /// A metric whose context is known, in bytes that are not in the cache, such as tags in another order.
        NewBytes = LINES_SLOW.because("new_bytes"),
            Normal("If it rises as fast as messages, clients write the same tags in new orders each time, or the cache lacks memory: see `weir_aliases_refused_total`.");
        /// As `new_bytes`, with a tag that has a meaning of its own, such as `host:`.
        SpecialTag = LINES_SLOW.because("special_tag"),
            Normal("If it rises as fast as messages, clients write the same tags in new orders each time.");
        /// As `new_bytes`, with sections besides tags, such as `c:`.
        Extension = LINES_SLOW.because("extension"),
            Normal("If it rises as fast as messages, a section differs in each of them.");
        /// A rate or an ignored timestamp behind the tags, which is in no cache because it differs from message to message.
        LateSection = LINES_SLOW.because("late_section"),
            Normal("A client writes `@` behind `#`: in front of the tags it costs less.");
        /// A metric with a timestamp, which is not aggregated.
        Timestamp = LINES_SLOW.because("timestamp"),
            Normal("It rises with `weir_samples_timestamped_total`.");
        /// A value or rate that is not a finite number, or no value between two colons.
        Number = LINES_SLOW.because("number"),
            Normal("A client sends NaN or infinities beside finite values, or empty values.");
        /// A signed gauge at a listener where it is a change.
        GaugeDelta = LINES_SLOW.because("gauge_delta"),
            Normal("It rises with changes of gauges.");
        /// A histogram with a copy as a distribution.
        CopiedHistogram = LINES_SLOW.because("copied_histogram"),
            Normal("It rises with histograms while `histogram_copy_to_distribution` is on.");
        /// A metric that a rule in a dry run would change.
        DryRun = LINES_SLOW.because("dry_run"),
            Normal("It rises with the metrics that the rule matches.");
        /// A set that a rule drops.
        FilteredSet = LINES_SLOW.because("filtered_set"),
            Normal("It rises with the sets that the rule matches.");
        /// A metric for whose context, or for its bytes, a limit leaves no room.
        Limit = LINES_SLOW.because("limit"),
            Normal("`weir_context_limit_samples_total` names the limit; these messages cost more CPU than others.");
        /// Several samples behind one name, at a listener that takes them.
        SampleList = LINES_SLOW.because("sample_list"),
            Normal("It rises with such lines while `sample_lists` is on.");
        /// An event or a service check.
        NoMetric = LINES_SLOW.because("no_metric"),
            Normal("It rises with events and service checks.");
        /// A line that is not valid.
        Rejected = LINES_SLOW.because("rejected"),
            Normal("`weir_messages_rejected_total` has the reason.");
    }
}

counters! {
    /// Why a packet of an identified sender was refused.
    pub enum RefusalReason {
        /// Its origin is not in `allowed_origins`.
        NotAllowed = PACKETS_DROPPED.because("origin_not_allowed"),
            Problem("Add the origin to `allowed_origins`, or stop the sender.");
        /// Its origin is unknown, and `unknown` is not in `allowed_origins`.
        Unknown = PACKETS_DROPPED.because("origin_unknown"),
            Problem("Add `unknown` to `allowed_origins`, or let `weir explain --pid` say why the origin of this process is unknown.");
    }
}

counters! {
    /// Counters of a worker besides those of packets.
    pub enum WorkerCounter {
        /// Batches that waited because the pipeline had not accepted the previous ones.
        HandOverWaits = SeriesSpec::counter("weir_hand_over_waits_total", "flush.hand_over_waits", "batches"),
            Normal("Nothing is lost: they wait while merging and encoding catch up. If `weir_buckets_joined_total` rises too, give weir more CPU.");
        /// Times a checkpoint waited because the disk had not accepted the previous part.
        CheckpointWaits = SeriesSpec::counter("weir_checkpoint_waits_total", "checkpoints.waits", "times"),
            Normal("A kill loses more than the last second: give `state_path` a faster disk.");
        /// Times the kernel's tables and its sockets disagreed about drops.
        DropDisagreements = SeriesSpec::counter("weir_drop_disagreements_total", "drop_disagreements", "comparisons"),
            Problem("The number of kernel drops is not reliable: report it as a bug, with the output of `weir status --json`.");
        /// Seconds that timestamps are ahead of a wall clock that was set back.
        ClockAheadMs = SeriesSpec::gauge("weir_clock_ahead_seconds", "clock.ahead_seconds", "seconds").per_unit(1000).highest(),
            Normal("It falls as the wall clock catches up. If it does not, check the time service.");
        /// Times timestamps went back because the wall clock was set back by more than three buckets.
        ClockSetBack = SeriesSpec::counter("weir_clock_set_back_total", "clock.set_back", "times").highest(),
            Problem("The clock was wrong before, and points already sent have wrong timestamps: let `chronyd` or `systemd-timesyncd` keep the clock right.");
        /// The longest time that a worker did not receive: because of a flush, or because the process was stopped.
        LongestGapNs = SeriesSpec::gauge("weir_receive_gap_seconds", "flush.longest_gap_seconds", "seconds").per_unit(1_000_000_000).highest(),
            Normal("Above 5 ms senders may have waited, or the kernel dropped packets: give weir a dedicated CPU.");
    }
}

counters! {
    /// Counters of sending processes.
    pub enum SenderCounter {
        /// Processes that sent in the last minute.
        Live = SeriesSpec::gauge("weir_origin_processes_live", "origin.processes", "processes"),
            Normal("It follows the clients.");
        /// Processes whose container was looked up.
        Asked = SeriesSpec::counter("weir_origin_processes_asked_total", "origin.processes_asked", "processes"),
            Normal("New processes send.");
        /// Packets of processes beyond the maximum number.
        PacketsUntracked = SeriesSpec::counter("weir_origin_packets_untracked_total", "origin.packets_untracked", "packets"),
            Problem("More than 16,384 processes send to one worker in a minute, and packets of further ones have no origin: raise `workers`, and give groups of clients sockets of their own (`uds`).");
    }
}

counters! {
    /// Counters of packets and messages that wait for their origin.
    pub enum ParkingCounter {
        /// Packets and messages that wait for their origin.
        Waiting = SeriesSpec::gauge("weir_origin_waiting", "origin.waiting", "packets and messages"),
            Normal("New containers send.");
        /// Packets and messages that waited for their origin.
        Parked = SeriesSpec::counter("weir_origin_waited_total", "origin.waited", "packets and messages"),
            Normal("New containers send.");
        /// Packets and messages that waited a second, or to the end of their bucket, without an answer about their origin.
        GaveUp = SeriesSpec::counter("weir_origin_waited_in_vain_total", "origin.waited_in_vain", "packets and messages"),
            Problem("A tag source is slow: `weir doctor --config FILE` tests each; meanwhile the messages have no tags of their origin.");
        /// Packets and messages that proceeded without their origin because too many waited.
        NoRoom = SeriesSpec::counter("weir_origin_no_room_to_wait_total", "origin.no_room_to_wait", "packets and messages"),
            Problem("New containers send more than weir can queue; their later messages get the tags. If it keeps rising, a tag source is slow: `weir doctor --config FILE` tests each.");
    }
}

/// All counters of one listener at one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IngestCounts {
    pub counts: Counts<IngestCounter>,
    pub packets_refused: Counts<RefusalReason>,
    pub rejected: Counts<ErrorClass>,
    pub samples_dropped: Counts<SampleDrop>,
    pub lines_slow: Counts<SlowLine>,
    pub series_rejected: Counts<SeriesRejection>,
    pub columns: Counts<ColumnCounter>,
}

impl Index<IngestCounter> for IngestCounts {
    type Output = u64;

    #[inline(always)]
    fn index(&self, counter: IngestCounter) -> &u64 {
        &self.counts[counter]
    }
}

impl IndexMut<IngestCounter> for IngestCounts {
    #[inline(always)]
    fn index_mut(&mut self, counter: IngestCounter) -> &mut u64 {
        &mut self.counts[counter]
    }
}

impl IngestCounts {
    pub fn accepted(&self) -> u64 {
        self[IngestCounter::Metrics] + self[IngestCounter::Events] + self[IngestCounter::Checks]
    }

    pub fn rejected_total(&self) -> u64 {
        self.rejected.sum() + self.series_rejected.sum() + self[IngestCounter::RejectedTruncated]
    }

    pub fn dropped_total(&self) -> u64 {
        self.samples_dropped.sum()
    }

    /// Samples without a context of their own, because of a limit on contexts or memory.
    pub fn limited(&self) -> u64 {
        self[IngestCounter::SamplesOverflowed]
            + self.samples_dropped[SampleDrop::NoMemory]
            + self.samples_dropped[SampleDrop::ContextLimit]
    }

    /// Messages and samples are all accounted for.
    pub fn balance(&self) -> bool {
        let samples = self[IngestCounter::SamplesAggregated]
            + self[IngestCounter::SamplesOverflowed]
            + self[IngestCounter::SamplesTimestamped];
        self[IngestCounter::Messages] == self.accepted() + self.rejected_total()
            && self[IngestCounter::Samples] == samples + self.dropped_total()
    }
}
