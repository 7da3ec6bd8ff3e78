//! Counters of outputs besides their books.

use weir_counters::Significance::{Normal, Problem};
use weir_counters::{SeriesSpec, counters};

/// Everything lost on the way to a backend.
pub(crate) const DROPPED: SeriesSpec =
    SeriesSpec::counter("weir_output_dropped_total", "outputs.{kind}s.dropped", "items")
        .help("Items dropped, by kind and reason.");

counters! {
    /// Counters of an endpoint beside points, events, checks and messages.
    pub enum OutputCounter {
        /// Payload bytes delivered.
        Bytes = SeriesSpec::counter("weir_output_bytes_total", "outputs.bytes", "bytes"),
            Normal("It rises with each flush.");
        /// Payloads delivered.
        Payloads = SeriesSpec::counter("weir_output_payloads_total", "outputs.payloads", "payloads"),
            Normal("It rises with each flush.");
        /// Attempts that failed.
        AttemptsFailed = SeriesSpec::counter("weir_output_attempts_failed_total", "outputs.attempts_failed", "attempts"),
            Problem("Nothing is lost while the queue has room. `weir doctor --config FILE` tests the connection to the receiver.");
        /// Failed attempts whose payload is retried.
        Retries = SeriesSpec::counter("weir_output_retries_total", "outputs.retries", "attempts"),
            Normal("Nothing is lost while the queue has room: see `weir_output_lag_seconds`.");
        /// Series that the receiver refuses, left out of its payloads.
        RefusedSeries = SeriesSpec::gauge("weir_output_refused_series", "outputs.refused_series", "series"),
            Problem("The log names them with the receiver's reason: correct the client that sends them, or drop them by `rules`.");
        /// Bytes of the disk queue that were damaged at the start and are lost.
        DiskDamagedBytes = SeriesSpec::counter("weir_output_disk_damaged_bytes_total", "outputs.disk_damaged_bytes", "bytes"),
            Problem("The disk or its file system lost data: test it, or set `disk_path` to another.");
        /// Times that the disk queue could not be written: payloads wait in memory alone until it can.
        DiskFailures = SeriesSpec::counter("weir_output_disk_failures_total", "outputs.disk_failures", "times"),
            Problem("Make room on the disk of `disk_path`, or correct its rights: weir writes what waits with the next payload. Until then the end of the process can lose it.");
        /// Messages that a relay's `prefixes` leave out.
        Unmatched = SeriesSpec::counter("weir_output_unmatched_total", "outputs.unmatched", "messages"),
            Normal("The relay applies its `prefixes`.");
    }
}

counters! {
    /// Numbers of the exposition of `/metrics`.
    pub enum ScrapeCounter {
        /// Contexts in the exposition.
        Series = SeriesSpec::gauge("weir_scrape_series", "scrape.series", "series"),
            Normal("It follows the contexts.");
        /// Metrics in the exposition.
        Metrics = SeriesSpec::gauge("weir_scrape_metrics", "scrape.metrics", "metrics"),
            Normal("It follows the contexts.");
        /// Metrics whose name belongs to another metric, to Prometheus or to weir.
        Renamed = SeriesSpec::gauge("weir_scrape_renamed_metrics", "scrape.renamed_metrics", "metrics"),
            Problem("Rename one of each pair, for example by `rules`; the output's notes name them.");
        /// Points merged into the series of another context with the same labels.
        Merged = SeriesSpec::counter("weir_scrape_merged_points_total", "scrape.merged_points", "points"),
            Problem("Names or tags differ only in characters that Prometheus does not allow: rename one by `rules`.");
        /// Series that left the exposition for lack of samples.
        Expired = SeriesSpec::counter("weir_scrape_expired_series_total", "scrape.expired_series", "series"),
            Normal("Contexts come and go.");
    }
}
