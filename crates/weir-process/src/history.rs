//! The thread of the history, and its way from one process to the next.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_admin::history::{HistoryKind, Recent};
use weir_agent::book_times::Sample;
use weir_agent::hand_over::{self, HandOverMessage};
use weir_agent::history::{HistoryInbox, HistoryKeeper};
use weir_listener::Monotonic;
use weir_status::series::own_series;
use weir_system::process;

use crate::channel::Channel;
use crate::view::View;

/// Time between two looks whether workers have reported.
const LOOK: Duration = Duration::from_millis(250);

/// Starts the thread, which ends with the pipeline. `before`: the previous process, which sends its history.
pub fn start(
    recent: Arc<Recent>,
    inbox: HistoryInbox,
    view: Arc<View>,
    before: Option<Channel>,
) -> io::Result<()> {
    // Before clients know that the agent is ready: the thread can be late, and the books would miss what the first sample has.
    let keeper = HistoryKeeper::new(recent.clone(), inbox, sample(&view));
    std::thread::Builder::new()
        .name("history".into())
        .spawn(move || {
            weir_system::sys::let_workers_go_first();
            if let Some(before) = before {
                adopt(&recent, &before);
            }
            keep(keeper, &view);
        })
        .map(drop)
}

fn keep(mut keeper: HistoryKeeper, view: &View) {
    loop {
        keeper.keep_books(view.shared.reported_ns(), unix_ns(), || sample(view));
        let now = Duration::from_nanos(unix_ns());
        let next_look = LOOK - Duration::from_nanos((now.as_nanos() % LOOK.as_nanos()) as u64);
        if keeper.take_batch(next_look).is_err() {
            return;
        }
    }
}

/// All series, with the times of their numbers.
fn sample(view: &View) -> Sample {
    loop {
        let report = view.shared.reported_ns();
        let mut series = own_series(&view.snapshot());
        series.extend(process::series());
        // A report in between has changed a part of the numbers.
        if view.shared.reported_ns() == report {
            let read_ns = unix_ns();
            let ago = Monotonic::now().0.saturating_sub(report);
            return Sample {
                series,
                report,
                reported_ns: read_ns.saturating_sub(ago),
                read_ns,
            };
        }
    }
}

fn unix_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos() as u64
}

/// Sends everything to the next process.
pub fn give(recent: &Recent, channel: &Channel) -> io::Result<()> {
    recent.give(hand_over::STEP_MAX, |of, part| {
        let message = match of {
            HistoryKind::Points => HandOverMessage::Points,
            HistoryKind::Books => HandOverMessage::Books,
        };
        let bytes = postcard::to_extend(part, Vec::new()).map_err(io::Error::other)?;
        channel.send(message, &bytes, &[])
    })?;
    channel.send(HandOverMessage::HistoryEnd, &[], &[])
}

/// Receives what [`give`] sends. Batches wait meanwhile.
fn adopt(recent: &Recent, channel: &Channel) {
    let adopted = take_parts(recent, channel);
    recent.adopted();
    match adopted {
        Ok(()) => tracing::info!(
            "hand-over: the history continues with {} points",
            recent.points().figures().points
        ),
        Err(error) => tracing::warn!("hand-over: the history was received in part: {error}"),
    }
}

fn take_parts(recent: &Recent, channel: &Channel) -> io::Result<()> {
    loop {
        let message = channel.receive()?;
        let of = match message.is {
            HandOverMessage::Points => HistoryKind::Points,
            HandOverMessage::Books => HistoryKind::Books,
            HandOverMessage::HistoryEnd => return Ok(()),
            _ => return Err(message.unexpected()),
        };
        let part = postcard::from_bytes(&message.body).map_err(io::Error::other)?;
        recent.adopt(of, part).map_err(io::Error::other)?;
    }
}
