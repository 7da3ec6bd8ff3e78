//! Reports the process's state to the service manager.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_ingest::Progress;
use weir_listener::Monotonic;

use crate::view::View;
use weir_admin::AdminSource as _;
use weir_status::status::{Status, UNITS, sum_of};
use weir_system::notify::Notify;

/// Interval of the status line.
const STATUS_INTERVAL: Duration = Duration::from_secs(10);

/// Interval of checking readiness.
const READY_INTERVAL: Duration = Duration::from_millis(20);

/// A worker ends a turn at least once a second, with its tick; this is twice as long.
const TURN_MAX: Duration = Duration::from_secs(2);

/// Runs as long as the agent does.
pub async fn report_agent(notify: Arc<Notify>, view: Arc<View>, workers: Vec<Arc<Progress>>) {
    let is_ready = || view.readiness().is_ok();
    report(
        notify,
        is_ready,
        || are_alive(&workers),
        || line(&view.snapshot()),
    )
    .await;
}

/// Reports readiness, then signs of life while the process is alive, and a status line.
pub async fn report(
    notify: Arc<Notify>,
    is_ready: impl Fn() -> bool,
    is_alive: impl Fn() -> bool,
    line: impl Fn() -> String,
) {
    if !notify.is_wanted() {
        return;
    }
    while !is_ready() {
        tokio::time::sleep(READY_INTERVAL).await;
    }
    notify.ready();
    let mut next_status = Instant::now();
    // Twice per watchdog interval, as the manager recommends.
    let every = notify.watchdog().map_or(STATUS_INTERVAL, |watchdog| watchdog / 2);
    loop {
        if notify.watchdog().is_some() && is_alive() {
            notify.alive();
        }
        if Instant::now() >= next_status {
            next_status = Instant::now() + STATUS_INTERVAL;
            notify.status(&line());
        }
        tokio::time::sleep(every.min(STATUS_INTERVAL)).await;
    }
}

/// Whether every worker makes progress: a stuck one does not read its sockets.
fn are_alive(workers: &[Arc<Progress>]) -> bool {
    let now = Monotonic::now();
    let gets_on = |worker: &Arc<Progress>| !worker.has_ended() && worker.since_turn(now) < TURN_MAX;
    workers.iter().all(gets_on)
}

/// The books in one line.
fn line(status: &Status) -> String {
    let lost: u64 = UNITS.iter().map(|unit| sum_of(&status.total(unit).lost)).sum();
    let waiting: u64 = status.outputs.iter().map(|output| output.waiting()).sum();
    let named = |number: u64, unit, what| {
        format!("{number} {} {what}", weir_units::unit_of(number, unit))
            .trim_end()
            .to_owned()
    };
    format!(
        "{}, {lost} packets, messages and samples lost, {}, {}",
        named(status.total("samples").received, "samples", "received"),
        named(status.number("contexts.live") as u64, "contexts", ""),
        named(waiting, "points", "to deliver")
    )
}
