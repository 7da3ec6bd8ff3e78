//! Log lines while the agent runs: bad input, and a line per flush.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_context::{ContextCounter, UsageSummary};
use weir_counters::Counts;
use weir_ingest::{IngestCounter, TLS_ERROR, WorkerCounter};
use weir_listener::{ListenerCounter, Monotonic};
use weir_protocol::ErrorClass;

use crate::access::Access;
use crate::unix_now;
use weir_agent::books::BoundListener;
use weir_agent::pipeline::{Flushed, Shared};
use weir_agent::rates::Speed;
use weir_agent::usage::Usage;
use weir_status::status::{Rates, Reasons, Status, sum_of};
use weir_system::config::Config;
use weir_system::logging::BadInput;
use weir_units::counted;

/// Minimum interval of lines about one listener's bad input of one kind.
const BAD_INPUT_INTERVAL: Duration = Duration::from_secs(10);

/// The report of the last flush, for status requests.
#[derive(Clone, Default)]
pub struct LastFlush {
    pub rates: Rates,
}

/// Logs bad input, with an example and a rate limit.
pub fn bad_input(
    shared: Arc<Shared>,
    listeners: &[BoundListener],
) -> Box<dyn FnMut(weir_ingest::BadInput) + Send> {
    let addresses: Vec<String> = listeners
        .iter()
        .map(|listener| listener.address.clone())
        .collect();
    let mut log = BadInput::new(BAD_INPUT_INTERVAL);
    let mut next_tls_line = Instant::now();
    Box::new(move |bad| {
        let address = &addresses[bad.listener];
        if bad.class == TLS_ERROR {
            if Instant::now() >= next_tls_line {
                next_tls_line = Instant::now() + BAD_INPUT_INTERVAL;
                let error = &bad.example;
                tracing::warn!("{address}: a connection could not be encrypted: {error}");
            }
            return;
        }
        let total = refused(&shared, bad.listener, bad.class);
        if let Some(line) = log.line(address, bad.class, total, &bad.example, Instant::now()) {
            tracing::warn!("{line}");
        }
    })
}

/// Takes the usage by metric, tag and origin, and warns of outliers.
pub fn usage(usage: Arc<Usage>) -> Box<dyn FnMut(u16, UsageSummary) + Send> {
    Box::new(move |worker, summary| {
        for line in usage.take(worker, summary, unix_now()) {
            tracing::warn!("{line}");
        }
    })
}

/// Stores the report of a flush, and logs it if configured.
pub fn flushes(
    config: &Config,
    access: Access,
    listeners: Vec<BoundListener>,
    last_flush: Arc<Mutex<LastFlush>>,
) -> Box<dyn FnMut(&Flushed) + Send> {
    let summary = config.running.flush_summary;
    let mut speed = Speed::new(Monotonic::now().0);
    let mut before = Totals::default();
    let mut clock = ClockLog::default();
    Box::new(move |flushed| {
        let workers = flushed.state.workers.iter().flatten();
        for line in clock.lines(workers.map(|worker| &worker.counts)) {
            tracing::warn!("{line}");
        }
        for line in access.log_lines(&flushed.state, &listeners, Instant::now()) {
            tracing::warn!("{line}");
        }
        let now = Totals::of(flushed);
        let facts = LastFlush {
            rates: speed.at(&flushed.state),
        };
        *last_flush.lock().unwrap_or_else(PoisonError::into_inner) = facts;
        if summary && !now.is_as(&before) {
            tracing::info!("{}", now.summary(&before, flushed));
        }
        before = now;
    })
}

/// Logs when the wall clock is set back.
#[derive(Default)]
struct ClockLog {
    is_ahead: bool,
    set_back: u64,
}

impl ClockLog {
    fn lines<'w>(&mut self, workers: impl Iterator<Item = &'w Counts<WorkerCounter>> + Clone) -> Vec<String> {
        let most = |counter: WorkerCounter| workers.clone().map(|counts| counts[counter]).max().unwrap_or(0);
        let ahead = most(WorkerCounter::ClockAheadMs) as f64 / 1e3;
        let set_back = most(WorkerCounter::ClockSetBack);
        let mut lines = Vec::new();
        if set_back > self.set_back {
            lines.push(
                "the wall clock was set back by more than three buckets: timestamps go back with it"
                    .to_owned(),
            );
        }
        if ahead >= 1.0 && !self.is_ahead {
            lines.push(format!(
                "the wall clock was set back: timestamps are {ahead:.1} s ahead of it, until it has caught up"
            ));
        }
        (self.is_ahead, self.set_back) = (ahead >= 1.0, set_back);
        lines
    }
}

/// Totals since the start, in the units of the books, for the end of the log, when the status is no longer available.
pub fn final_books(status: &Status) -> Vec<String> {
    let units = [
        ("packets", "parsed"),
        ("messages", "accepted"),
        ("samples", "aggregated"),
    ];
    let units = units.map(|(unit, what)| {
        let account = status.total(unit);
        let (received, good, lost) = (account.received, account.good, lost(&account.lost));
        format!("{received} {unit} received, {good} {what}{lost}")
    });
    let mut lines = vec![format!("since the start: {}", units.join("; "))];
    for listener in &status.listeners {
        let cut = listener.numbers.of(ListenerCounter::ConnectionsCutDraining);
        if cut > 0 {
            lines.push(format!(
                "{}: reset {} although their peers were still sending",
                listener.address,
                counted(cut, "connections")
            ));
        }
    }
    for output in &status.outputs {
        for (unit, books) in output.books() {
            if books.produced > 0 {
                lines.push(format!(
                    "since the start, {}: {} {unit} produced, {} delivered, {} pending{}",
                    output.name,
                    books.produced,
                    books.delivered,
                    books.pending,
                    lost(&books.dropped)
                ));
            }
        }
    }
    lines
}

/// Losses with their reasons, as the end of a sentence; empty without losses.
fn lost(reasons: &Reasons) -> String {
    let parts: Vec<String> = reasons
        .iter()
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    match sum_of(reasons) {
        0 => String::new(),
        sum => format!(", {sum} lost ({})", parts.join(", ")),
    }
}

/// Messages of one listener refused for one reason, as far as workers have reported.
fn refused(shared: &Shared, listener: usize, class: &str) -> u64 {
    let Some(class) = ErrorClass::ALL.into_iter().find(|known| known.as_str() == class) else {
        return 0;
    };
    let state = shared.lock();
    let listeners = state
        .workers
        .iter()
        .flatten()
        .flat_map(|worker| &worker.listeners);
    let of_listener = listeners.filter(|counted| usize::from(counted.listener) == listener);
    of_listener.map(|counted| counted.ingest.rejected[class]).sum()
}

/// Totals at one flush, for the difference to the previous one.
#[derive(Clone, Copy, Default)]
struct Totals {
    packets: u64,
    messages: u64,
    rejected: u64,
    dropped: u64,
    kernel_dropped: u64,
    contexts: u64,
}

impl Totals {
    fn of(flushed: &Flushed) -> Totals {
        let mut totals = Totals::default();
        for worker in flushed.state.workers.iter().flatten() {
            totals.contexts += worker.contexts.counts[ContextCounter::Live];
            for listener in &worker.listeners {
                totals.packets += listener.socket[ListenerCounter::Packets];
                totals.kernel_dropped += listener.socket[ListenerCounter::KernelDropped];
                totals.messages += listener.ingest[IngestCounter::Messages];
                totals.rejected += listener.ingest.rejected_total();
                totals.dropped += listener.ingest.dropped_total();
            }
        }
        totals
    }

    /// Whether nothing was received since: then there is nothing to log.
    fn is_as(&self, before: &Totals) -> bool {
        (self.packets, self.kernel_dropped, self.messages)
            == (before.packets, before.kernel_dropped, before.messages)
            && (self.rejected, self.dropped) == (before.rejected, before.dropped)
    }

    fn summary(&self, before: &Totals, flushed: &Flushed) -> String {
        let plain = |number: u64, unit| format!("{number} {}", weir_units::unit_of(number, unit));
        let mut text = format!(
            "flushed {} series of {}; since the last: {} in {}",
            flushed.rows,
            plain(self.contexts, "contexts"),
            plain(self.messages - before.messages, "messages"),
            plain(self.packets - before.packets, "packets")
        );
        for (count, what) in [
            (self.rejected - before.rejected, "messages rejected"),
            (self.dropped - before.dropped, "samples dropped"),
            (
                self.kernel_dropped - before.kernel_dropped,
                "datagrams dropped by the kernel",
            ),
        ] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_is_logged_once() {
        let mut log = ClockLog::default();
        let mut lines = |ahead_ms: u64, set_back: u64| {
            let mut counts = Counts::default();
            counts[WorkerCounter::ClockAheadMs] = ahead_ms;
            counts[WorkerCounter::ClockSetBack] = set_back;
            log.lines([&Counts::default(), &counts].into_iter()).concat()
        };
        assert_eq!(lines(999, 0), "");
        assert!(lines(2000, 0).ends_with(" 2.0 s ahead of it, until it has caught up"));
        assert_eq!(lines(1500, 0), "", "it is known");
        assert_eq!(lines(0, 0), "");
        assert!(lines(0, 1).ends_with("timestamps go back with it"));
        assert_eq!(lines(0, 1), "");
    }
}
