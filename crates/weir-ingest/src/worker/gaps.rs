//! For how long a worker did not receive.

/// A turn that exceeds its wait by this much was not receiving meanwhile: a turn's own work is a mebibyte at most.
const LATE_NS: u64 = 100_000_000;

/// The longest time between two receive turns while packets were waiting or a flush was running, or by which a turn lasted
/// longer than it should.
#[derive(Default)]
pub(super) struct Gaps {
    busy_since_ns: Option<u64>,
    longest_ns: u64,
}

impl Gaps {
    pub(super) fn turn_begins(&mut self, now: u64) {
        if let Some(since) = self.busy_since_ns.take() {
            self.longest_ns = self.longest_ns.max(now - since);
        }
    }

    /// Called at the end of a turn with the wait `timeout_ns`.
    pub(super) fn turn_ended(&mut self, began: u64, now: u64, timeout_ns: u64) {
        let late_ns = (now - began).saturating_sub(timeout_ns);
        if late_ns >= LATE_NS {
            self.longest_ns = self.longest_ns.max(late_ns);
        }
    }

    /// Until the next turn begins, something waits.
    pub(super) fn busy(&mut self, now: u64) {
        self.busy_since_ns = Some(now);
    }

    pub(super) fn longest_ns(&self) -> u64 {
        self.longest_ns
    }
}
