//! The clients' telemetry, in total and per client.

use serde::{Deserialize, Serialize};
use weir_counters::Significance::{Normal, Problem};
use weir_counters::{Counts, SeriesSpec, counters};

use super::numbers::Numbers;

/// Maximum clients with series.
const SERIES_MAX: usize = 64;

/// The row of clients that found no room.
pub const OTHER: &str = "other";

counters! {
    /// Totals of all clients, as they report them. Numbers that a client does not report are unknown.
    pub enum ClientCounter {
        /// Distinct clients: each combination of program, version, transport and origin is one.
        Known = SeriesSpec::gauge("weir_clients", "clients.known", "clients"),
            Normal("It follows the clients that report about themselves.");
        /// Reported numbers of clients without a row, because there were too many clients; the totals include them.
        Crowded = SeriesSpec::counter("weir_clients_crowded_total", "clients.crowded", "numbers"),
            Normal("`client_version` or `client_transport` has very many values: a sender forges these metrics.");
        /// Metrics that clients accepted, by their own telemetry.
        Metrics = SeriesSpec::counter("weir_clients_metrics_total", "clients.metrics", "metrics"),
            Normal("Clients count calls before sampling and aggregation, so it exceeds the samples received.");
        /// Events that clients accepted, by their own telemetry.
        Events = SeriesSpec::counter("weir_clients_events_total", "clients.events", "events"),
            Normal("It moves with the clients' work.");
        /// Service checks that clients accepted, by their own telemetry.
        ServiceChecks = SeriesSpec::counter("weir_clients_service_checks_total", "clients.service_checks", "service checks"),
            Normal("It moves with the clients' work.");
        /// Contexts that clients flushed, by their own telemetry.
        AggregatedContexts = SeriesSpec::counter("weir_clients_aggregated_contexts_total", "clients.aggregated_contexts", "contexts"),
            Normal("Clients that aggregate report it.");
        /// Packets that clients sent, by their own telemetry.
        PacketsSent = SeriesSpec::counter("weir_clients_packets_sent_total", "clients.packets_sent", "packets"),
            Normal("With `weir_packets_received_total` it shows the loss on the way, if all clients report.");
        /// Bytes in the packets that clients sent.
        BytesSent = SeriesSpec::counter("weir_clients_bytes_sent_total", "clients.bytes_sent", "bytes"),
            Normal("It moves with the clients' work.");
        /// Packets that clients dropped, for any reason, by their own telemetry. They never reached weir.
        PacketsDropped = SeriesSpec::counter("weir_clients_packets_dropped_total", "clients.packets_dropped", "packets"),
            Problem("The client does not say why: raise its queue (`sender_queue_size` of dogstatsd-ruby), or give weir more CPU (`cpu`). Clients that report the reason count the same packets in `weir_clients_packets_dropped_queue_total` or `weir_clients_packets_dropped_writer_total`.");
        /// Of the packets that clients dropped: those for which the client's queue had no room.
        PacketsDroppedQueue = SeriesSpec::counter("weir_clients_packets_dropped_queue_total", "clients.packets_dropped_queue", "packets"),
            Problem("The client made packets faster than it could write them. Raise its queue (`WithSenderQueueSize` in Go, `sender_queue_size` of dogstatsd-ruby, `STATSD_BUFFER_CAPACITY` of statsd-instrument) or let it aggregate. If the kernel drops packets here too, weir is too slow: give it more CPU.");
        /// Of the packets that clients dropped: those that the client could not write.
        PacketsDroppedWriter = SeriesSpec::counter("weir_clients_packets_dropped_writer_total", "clients.packets_dropped_writer", "packets"),
            Problem("weir was not running, or did not read the client's Unix socket in time: raise `net.unix.max_dgram_qlen` and the client's write timeout, or give weir more CPU. A packet larger than the socket accepts is dropped for this reason too.");
        /// Bytes in the packets that clients dropped.
        BytesDropped = SeriesSpec::counter("weir_clients_bytes_dropped_total", "clients.bytes_dropped", "bytes"),
            Normal("It rises with `weir_clients_packets_dropped_total`.");
        /// Of these bytes: those for which the client's queue had no room.
        BytesDroppedQueue = SeriesSpec::counter("weir_clients_bytes_dropped_queue_total", "clients.bytes_dropped_queue", "bytes"),
            Normal("It rises with `weir_clients_packets_dropped_queue_total`.");
        /// Of these bytes: those that the client could not write.
        BytesDroppedWriter = SeriesSpec::counter("weir_clients_bytes_dropped_writer_total", "clients.bytes_dropped_writer", "bytes"),
            Normal("It rises with `weir_clients_packets_dropped_writer_total`.");
        /// Metrics that clients dropped because the channels between their callers and their senders were full.
        MetricsDroppedOnReceive = SeriesSpec::counter("weir_clients_metrics_dropped_on_receive_total", "clients.metrics_dropped_on_receive", "metrics"),
            Problem("Raise `WithChannelModeBufferSize` of the Go client, or use its mutex mode.");
        /// Messages of statsd-instrument that its callers had to send themselves, because its queue was full.
        SynchronousSends = SeriesSpec::counter("weir_clients_synchronous_sends_total", "clients.synchronous_sends", "messages"),
            Problem("Nothing is lost, but requests of the application waited. Raise `STATSD_BUFFER_CAPACITY`.");
    }
}

/// As reported by the clients; empty if none reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientReport {
    /// Totals.
    #[serde(flatten)]
    pub numbers: Numbers,
    /// Clients with a row that this process has seen in the last hour, most drops first.
    pub seen: Vec<ClientRow>,
}

/// One client: all processes with the same identity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientRow {
    /// The client's name, for example `go` or `ruby`; `other` for clients that found no room.
    pub client: String,
    pub version: String,
    pub transport: String,
    /// The tag or host that best identifies its place; empty if unknown.
    pub origin: String,
    /// Unix seconds of the last bucket with a report.
    pub last_seen: u64,
    pub packets_sent: u64,
    pub packets_dropped: u64,
    pub packets_dropped_queue: u64,
    pub packets_dropped_writer: u64,
    pub bytes_dropped: u64,
    pub metrics_dropped_on_receive: u64,
    pub synchronous_sends: u64,
}

impl ClientRow {
    /// Adds the numbers that have a column.
    pub fn with(self, counts: &Counts<ClientCounter>) -> ClientRow {
        ClientRow {
            packets_sent: counts[ClientCounter::PacketsSent],
            packets_dropped: counts[ClientCounter::PacketsDropped],
            packets_dropped_queue: counts[ClientCounter::PacketsDroppedQueue],
            packets_dropped_writer: counts[ClientCounter::PacketsDroppedWriter],
            bytes_dropped: counts[ClientCounter::BytesDropped],
            metrics_dropped_on_receive: counts[ClientCounter::MetricsDroppedOnReceive],
            synchronous_sends: counts[ClientCounter::SynchronousSends],
            ..self
        }
    }

    /// For a client that reports only reasons, their sum.
    pub fn packets_lost(&self) -> u64 {
        let by_reason = self.packets_dropped_queue + self.packets_dropped_writer;
        self.packets_dropped.max(by_reason)
    }

    pub fn has_lost(&self) -> bool {
        self.packets_lost() > 0 || self.metrics_dropped_on_receive > 0
    }
}

impl ClientReport {
    /// Clients with losses, for series. A client keeps its series while it is known, unless there are too many.
    pub fn losers(&self) -> impl Iterator<Item = &ClientRow> + Clone {
        self.seen.iter().filter(|row| row.has_lost()).take(SERIES_MAX)
    }
}
