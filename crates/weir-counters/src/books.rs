//! The lines of the books, which several crates fill: for each unit, the number received and its results.

use crate::SeriesSpec;

pub const PACKETS_RECEIVED: &str = "listeners.books.packets.received";
pub const MESSAGES_RECEIVED: &str = "listeners.books.messages.received";

pub const PACKETS_DROPPED: SeriesSpec = SeriesSpec::counter(
    "weir_packets_dropped_total",
    "listeners.books.packets.dropped",
    "packets",
)
.help("Packets dropped, by reason.");

pub const MESSAGES_REJECTED: SeriesSpec = SeriesSpec::counter(
    "weir_messages_rejected_total",
    "listeners.books.messages.rejected",
    "messages",
)
.help("Messages rejected, by reason.");

pub const SAMPLES_DROPPED: SeriesSpec = SeriesSpec::counter(
    "weir_samples_dropped_total",
    "listeners.books.samples.dropped",
    "samples",
)
.help("Samples dropped, by reason.");
