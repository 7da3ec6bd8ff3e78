//! The end of the process for an output: first its queue, while packets still arrive, then the last flush.

use std::time::Duration;

use super::{Delivery, EndpointStatus, Items, OutputStatus, Stage};
use crate::counters::OutputCounter;

/// Longest wait for the last flush of an endpoint that fails, or whose disk queue holds everything.
const MOMENT: Duration = Duration::from_secs(1);

/// Time before the end of that wait at which a last attempt is made.
const LAST_ATTEMPT: Duration = Duration::from_millis(500);

impl Delivery {
    /// Waits until the payloads that the output holds are delivered, dropped or on disk, but at most for `patience`. Payloads that arrive
    /// meanwhile do not count. Returns whether the last flush is worth waiting for: every endpoint has settled, or it accepts payloads.
    pub async fn settle(&self, patience: Duration) -> bool {
        let clock = &self.shared.clock;
        self.shared.hurry();
        let deadline = clock.now() + patience;
        let given = |status: &OutputStatus, endpoint: &EndpointStatus| endpoint.produced(status.received);
        let status = self.status();
        let of_endpoint =
            |endpoint: &EndpointStatus| (given(&status, endpoint), endpoint.counts[OutputCounter::Payloads]);
        let before: Vec<(Items, u64)> = status.endpoints.iter().map(of_endpoint).collect();
        let is_safe = |status: &OutputStatus, endpoint: &EndpointStatus, before: Items| {
            let mut came = given(status, endpoint);
            came -= before;
            endpoint.pending.unsaved.is_within(came)
        };
        let all_safe = |status: &OutputStatus| {
            let mut endpoints = status.endpoints.iter().zip(&before);
            endpoints.all(|(endpoint, (before, _))| is_safe(status, endpoint, *before))
        };
        for until in [deadline.saturating_sub(LAST_ATTEMPT), deadline] {
            self.retry_now();
            tokio::select! {
                biased;
                () = self.wait_for(all_safe) => return true,
                () = clock.sleep_until(until) => {}
            }
        }
        let status = self.status();
        let mut endpoints = status.endpoints.iter().zip(&before);
        endpoints.all(|(endpoint, (before, payloads))| {
            let takes_some = endpoint.healthy && endpoint.counts[OutputCounter::Payloads] > *payloads;
            takes_some || is_safe(&status, endpoint, *before)
        })
    }

    /// Ends after the last flush, within `patience`. Received batches are encoded in any case, which needs no endpoint: a disk queue gets the
    /// payloads, and sums that the next process continues contain them. They are delivered only if the output has settled: an endpoint that
    /// has not accepts nothing.
    pub async fn finish(&self, is_settled: bool, patience: Duration) {
        let shared = &self.shared;
        let deadline = shared.clock.now() + patience;
        shared.advance(Stage::Draining);
        tokio::select! {
            biased;
            () = self.wait_for(|_| shared.stage() >= Stage::Encoded) => {}
            () = shared.clock.sleep_until(deadline) => {}
        }
        if is_settled {
            self.deliver_last(deadline).await;
        }
        self.shutdown(Duration::ZERO).await;
    }

    /// Delivers what is encoded, until `deadline`. An endpoint that fails, or that has everything on disk, gets a moment.
    async fn deliver_last(&self, deadline: Duration) {
        let clock = &self.shared.clock;
        let all = |done: fn(&EndpointStatus) -> bool| {
            self.wait_for(move |status| status.endpoints.iter().all(done))
        };
        let is_idle: fn(&EndpointStatus) -> bool = |endpoint| endpoint.pending.total().is_zero();
        let is_hopeless: fn(&EndpointStatus) -> bool =
            |endpoint| endpoint.pending.unsaved.is_zero() || !endpoint.healthy;
        tokio::select! {
            biased;
            () = all(is_idle) => return,
            () = clock.sleep_until(deadline.min(clock.now() + MOMENT)) => {}
        }
        tokio::select! {
            biased;
            () = all(is_hopeless) => {}
            () = clock.sleep_until(deadline) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Stage;

    /// An output only moves on: see `Shared::advance`.
    #[test]
    fn the_page_of_restarts_has_the_stages() {
        let stages = [
            (Stage::Running, "takes batches, encodes them, sends payloads"),
            (
                Stage::Draining,
                "takes no batch any more; encodes those that wait, ends open payloads",
            ),
            (
                Stage::Encoded,
                "delivers its queues without delay, until they are empty or the time is over",
            ),
            (
                Stage::Stopped,
                "sends nothing; the rest is on disk, passed on, or counted as dropped",
            ),
        ];
        assert!(stages.is_sorted_by(|(one, _), (next, _)| one < next));
        let mut table = "| an output | what it does |\n| --- | --- |\n".to_owned();
        for (stage, what) in stages {
            table += &format!("| {stage:?} | {what} |\n");
        }
        let page = include_str!("../../../../docs/restart.md");
        assert!(page.contains(&table), "docs/restart.md must have:\n{table}");
    }
}
