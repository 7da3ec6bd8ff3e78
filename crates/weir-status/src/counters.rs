//! Counters outside of workers, and the list of all counter tables.

use weir_aggregate::AggregateCounter;
use weir_context::{AliasCounter, ContextCounter, LimitReason, OriginCounter};
use weir_counters::Significance::{Normal, Problem};
use weir_counters::{Counter, CounterInfo, SeriesSpec, counters};
use weir_ingest::{
    ColumnCounter, IngestCounter, NumberCounter, ParkingCounter, RefusalReason, SampleDrop, SenderCounter,
    SeriesRejection, SlowLine, WorkerCounter,
};
use weir_listener::{ListenerCounter, LoopCounter};
use weir_output::delivery::Reason;
use weir_output::relay::RelayLoss;
use weir_output::{OutputCounter, ScrapeCounter};
use weir_protocol::ErrorClass;

use super::clients::ClientCounter;
use super::fleet::FleetCounter;

counters! {
    /// The agent's facts about its listeners.
    pub enum SocketCounter {
        /// Number of times the socket file was missing or replaced, and was created again.
        FilesRemade = SeriesSpec::counter("weir_socket_files_remade_total", "listeners.socket_files_remade", "times"),
            Problem("A program removes socket files, and clients have to reconnect each time: put them into a directory that only weir writes to (`uds`, `uds_stream`).");
        /// Size of the receive buffer that the kernel granted, in bytes; 0 for sockets without one.
        ReceiveBuffer = SeriesSpec::gauge("weir_receive_buffer_bytes", "listeners.receive_buffer", "bytes"),
            Normal("If it is below the requested size, raise `net.core.rmem_max`.");
        /// Size of the receive buffer that weir requested, in bytes.
        ReceiveBufferWanted = SeriesSpec::gauge("weir_receive_buffer_wanted_bytes", "listeners.receive_buffer_wanted", "bytes"),
            Normal("It follows `receive_buffer`.");
        /// Sockets opened by the service manager or the previous process and taken over by this process.
        Passed = SeriesSpec::gauge("weir_sockets_passed", "listeners.sockets_passed", "sockets"),
            Normal("With socket activation or a descriptor store it is the number of the listener's sockets.");
    }
}

const REQUESTS: SeriesSpec =
    SeriesSpec::counter("weir_http_requests_total", "listeners.http.requests", "requests")
        .help("Requests with columns, by result.");

counters! {
    /// Counters of the requests of one listener of columns.
    pub enum HttpCounter {
        /// Requests whose columns were added.
        Added = REQUESTS.by("result", "added"),
            Normal("It rises as long as clients send columns.");
        /// Requests with a number that had been added before: they were not added again.
        Duplicate = REQUESTS.by("result", "duplicate"),
            Normal("Clients send again what was not answered in time.");
        /// Requests answered before their points were saved, because checkpoints cannot be written.
        Unsaved = SeriesSpec::counter("weir_http_requests_unsaved_total", "listeners.http.unsaved", "requests"),
            Problem("`state_path` cannot be written: a kill loses requests that were answered. The log has the error.");
        /// Requests that were no valid payload, with status 400.
        Invalid = REQUESTS.by("result", "invalid"),
            Problem("A client sends payloads that cannot be read: `weir tail --rejected` shows its address and the reason.");
        /// Requests beyond the limits of size, with status 413.
        TooLarge = REQUESTS.by("result", "too_large"),
            Problem("A client sends more at once than fits: let it send smaller payloads, or give weir more `memory`.");
        /// Requests in a format or compression that is not understood, with status 415.
        Unsupported = REQUESTS.by("result", "unsupported"),
            Problem("A client uses a compression besides zstd, gzip and deflate, or another format than `application/x-protobuf`: `weir tail --rejected` shows its address.");
        /// Requests of senders that may not send, and of web pages.
        Refused = REQUESTS.by("result", "refused"),
            Problem("`allowed_networks` or `allowed_origins` does not have the sender, or a web page tried to send.");
        /// Requests that came while too many were under way, or above the rate of their sender, with status 503: clients send them again.
        Busy = REQUESTS.by("result", "busy"),
            Problem("Clients send more than weir takes: give it more `memory`, or raise the limit on the sender's rate.");
        /// Requests that ended before their payload was complete, and requests for something else.
        Other = REQUESTS.by("result", "other"),
            Normal("Connections break, and programs look for other things.");
        /// Bytes of the payloads as they were sent.
        Bytes = SeriesSpec::counter("weir_http_received_bytes_total", "listeners.http.bytes", "bytes"),
            Normal("It rises as long as clients send columns.");
        /// Payloads that are being read, decoded or added.
        UnderWay = SeriesSpec::gauge("weir_http_requests_under_way", "listeners.http.under_way", "requests"),
            Normal("It is small; when the memory for them is used up, further ones are refused.");
    }
}

counters! {
    /// The program itself.
    pub enum ProgramCounter {
        /// Threads and tasks of weir that ended by a panic, which is a defect of weir. An answer that such a task produces is cut off.
        Panics = SeriesSpec::counter("weir_panics_total", "panics", "panics"),
            Problem("Report the line that the log has about it, with the output of `weir status --json`. If outputs or receiving have stopped, `/ready` says so; restart weir.");
    }
}

counters! {
    /// The path of closed buckets from the workers to the outputs. Rows that workers hand over are received or lost.
    pub enum PipelineCounter {
        /// Rows that arrived from the workers.
        RowsReceived = SeriesSpec::counter("weir_rows_received_total", "rows.received", "rows"),
            Normal("It rises with each flush.");
        /// Rows that a worker announced and that never arrived.
        RowsLost = SeriesSpec::counter("weir_rows_lost_total", "rows.lost", "rows"),
            Problem("A worker ended in the middle of a flush: restart weir, and report the line that the log has about it, with the output of `weir status --json`.");
        /// Rows that wait for other workers to deliver their part of the bucket.
        RowsWaiting = SeriesSpec::gauge("weir_rows_waiting", "rows.waiting", "rows"),
            Normal("It is zero between flushes, unless a worker is stuck.");
        /// Rows after the merge of all workers.
        RowsMerged = SeriesSpec::counter("weir_rows_merged_total", "rows.merged", "rows"),
            Normal("It rises with each flush by its series.");
        /// Unix time of the last flush that was handed over; 0 before the first.
        FlushedAt = SeriesSpec::gauge("weir_last_flush_timestamp_seconds", "flush.at", "seconds"),
            Normal("It rises by the width of a bucket; if it does not, a worker is stuck.");
        /// Duration of the last flush.
        FlushNs = SeriesSpec::gauge("weir_flush_seconds", "flush.seconds", "seconds").per_unit(1_000_000_000),
            Normal("It follows the contexts. Workers keep receiving during it.");
        /// Series of the last flush.
        FlushSeries = SeriesSpec::gauge("weir_flush_series", "flush.series", "series"),
            Normal("It follows the contexts.");
        /// Width of a bucket.
        BucketSeconds = SeriesSpec::gauge("weir_bucket_seconds", "flush.bucket_seconds", "seconds"),
            Normal("It is `bucket_width`.");
    }
}

counters! {
    /// The last minutes, stored for users.
    pub enum HistoryCounter {
        /// Points received by the history.
        Taken = SeriesSpec::counter("weir_history_points_total", "history.taken", "points"),
            Normal("It rises with each flush.");
        /// Points of new series that were not stored, for lack of memory.
        Refused = SeriesSpec::counter("weir_history_points_refused_total", "history.refused", "points"),
            Problem("The page does not show these series; outputs are not affected. Raise `memory` or `history` to store more.");
        /// Points that were not stored, because the storing thread was behind.
        Behind = SeriesSpec::counter("weir_history_points_behind_total", "history.behind", "points"),
            Problem("The page has gaps; outputs are not affected. Give weir more CPU (`cpu`) or `memory`, or switch the history off (`history: 0`).");
        /// Points that were not stored, because their timestamp was too old.
        Late = SeriesSpec::counter("weir_history_points_late_total", "history.late", "points"),
            Normal("Senders use old timestamps; the page does not show these points.");
        /// Points stored.
        Points = SeriesSpec::gauge("weir_history_points", "history.points", "points"),
            Normal("It stops growing when the memory is full: then new ones replace the oldest.");
        /// Series stored.
        HeldSeries = SeriesSpec::gauge("weir_history_series", "history.series", "series"),
            Normal("It follows the contexts.");
        /// Seconds from the oldest to the newest stored bucket.
        Seconds = SeriesSpec::gauge("weir_history_seconds", "history.seconds", "seconds"),
            Normal("The page looks back this far.");
    }
}

counters! {
    /// Counters of the tail and captures.
    pub enum TapCounter {
        /// Open tails and captures.
        Streams = SeriesSpec::gauge("weir_tap_streams", "taps.streams", "streams"),
            Normal("A user reads the tail or captures packets.");
        /// Packets copied for tails and captures.
        Packets = SeriesSpec::counter("weir_tap_packets_total", "taps.packets", "packets"),
            Normal("It rises while a tail or capture runs.");
        /// Packets that a capture lost because its queue was full. Ingest is not affected.
        PacketsLost = SeriesSpec::counter("weir_tap_packets_lost_total", "taps.packets_lost", "packets"),
            Problem("A capture has gaps, because its disk or network is slower than the traffic: capture less (`--match`), write to a faster disk, or give weir more `memory`. Ingest is not affected.");
        /// Tails that ended because their reader was too slow.
        ReadersDropped = SeriesSpec::counter("weir_tap_readers_dropped_total", "taps.readers_dropped", "streams"),
            Normal("A terminal or browser was stopped; it may open another tail.");
    }
}

/// A table in status, series and documentation.
pub trait Listed: Counter {}

macro_rules! tables {
    ($($table:ty),+ $(,)?) => {
        $(impl Listed for $table {})+

        /// All tables.
        pub const TABLES: &[&[CounterInfo]] = &[$(<$table as Counter>::INFO),+];
    };
}

tables![
    ProgramCounter,
    ClientCounter,
    ListenerCounter,
    IngestCounter,
    RefusalReason,
    ErrorClass,
    SampleDrop,
    SlowLine,
    SeriesRejection,
    ColumnCounter,
    NumberCounter,
    HttpCounter,
    SocketCounter,
    LoopCounter,
    ContextCounter,
    AliasCounter,
    LimitReason,
    AggregateCounter,
    PipelineCounter,
    HistoryCounter,
    TapCounter,
    FleetCounter,
    WorkerCounter,
    SenderCounter,
    ParkingCounter,
    OriginCounter,
    OutputCounter,
    Reason,
    RelayLoss,
    ScrapeCounter,
];
