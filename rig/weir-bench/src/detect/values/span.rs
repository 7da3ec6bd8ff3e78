//! The span over which CPU time and messages are counted: at both ends nothing may wait in the target's sockets.
//!
//! A target with a large receive buffer on a busy machine takes what was sent in a window after its end. Over the window alone, its work
//! seems to be a fraction of what it is, and a slower target seems to do the same work.

use super::{Run, Span};
use crate::detect::capture::{Phase, Point};

/// Bytes that may wait at an end of the window, as a share of what was sent in it. The kernel counts its own overhead with them, so fewer
/// wait.
const WAITING_MAX: f64 = 0.01;

/// From this share of its CPU time on, a note says that the target worked after its sockets were empty.
const LATE_NOTABLE: f64 = 0.25;

impl Run<'_> {
    /// The readings at both ends of the span.
    pub fn span_ends(&self, name: &str) -> Option<(Point, Point)> {
        match self.span {
            Span::Window => self.capture.ends("target", name),
            Span::Load => {
                let points = self.capture.series("target", name);
                let first = points.iter().rfind(|p| p.phase == Phase::Start)?;
                let emptied = self.emptied()?;
                let last = points.iter().find(|p| p.t >= emptied)?;
                Some((*first, *last))
            }
        }
    }

    /// Whether more waited at an end of the window than is negligible.
    pub fn is_behind(&self) -> bool {
        // Valgrind is read when nothing waits.
        let is_of_window = !self.rules.idle && self.counted_by_valgrind().is_none();
        let ends = self.capture.ends("target", "cpu_ns");
        let Some((first, last)) = ends.filter(|_| is_of_window) else {
            return false;
        };
        let sent = self
            .capture
            .increase("generator", "sent_bytes")
            .map(|(bytes, _)| bytes);
        let most = WAITING_MAX * sent.unwrap_or(self.sent.bytes);
        [first.t, last.t].into_iter().any(|t| self.waiting(t) > most)
    }

    /// Bytes in the target's receive queues. They are read shortly before the CPU time.
    fn waiting(&self, t: u64) -> f64 {
        let of = |name| {
            let points = self.capture.series("target", name);
            points.iter().rfind(|p| p.t <= t).map_or(0.0, |p| p.v)
        };
        of("udp_rx_queue_bytes") + of("tcp_rx_queue_bytes")
    }

    /// The first reading after the load with nothing in the queues.
    fn emptied(&self) -> Option<u64> {
        let queues = self.capture.series("target", "udp_rx_queue_bytes").iter();
        let mut after = queues.filter(|p| p.phase == Phase::Drain);
        after.find(|p| self.waiting(p.t) == 0.0).map(|p| p.t)
    }

    pub fn notes(&self) -> Vec<String> {
        if self.counted_by_valgrind().is_some() {
            let what =
                "valgrind counted the instructions, from before the load until the target was idle after it";
            return vec![what.to_owned()];
        }
        let mut notes = Vec::new();
        if self.span == Span::Load {
            notes.push(
                "work waited in a target's sockets at an end of the window, so CPU time counts from the first packet until nothing waited"
                    .to_owned(),
            );
        }
        if let Some(share) = self.late_share().filter(|share| *share > LATE_NOTABLE) {
            notes.push(format!(
                "{:.0} % of the target's CPU time came after its sockets were empty: flushes, or work that waited inside it; \
                 life_cpu_per_message counts it",
                100.0 * share
            ));
        }
        notes
    }

    /// The share of its CPU time, from ready to the end, that the target used after its sockets were empty.
    fn late_share(&self) -> Option<f64> {
        let life = self.capture.series("target", "life_cpu_ns");
        let [ready, end] = life else { return None };
        let emptied = self.emptied()?;
        let cpu = self
            .capture
            .series("target", "cpu_ns")
            .iter()
            .find(|p| p.t >= emptied)?;
        let whole = end.v - ready.v;
        (whole > 0.0).then(|| (end.v - cpu.v) / whole)
    }
}
