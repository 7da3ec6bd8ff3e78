//! The end of the outputs: first their queues, while packets still arrive, then the last flush.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use weir_output::delivery::OutputState;

use crate::outputs::{Output, Outputs, Running, lock};
use weir_agent::state::PutSums;
use weir_agent::state::tally::OutputKind;

/// Maximum part of the grace period reserved for the last flush.
const LAST_FLUSH_MAX: Duration = Duration::from_secs(2);

/// Outputs without data that the end of the process would lose.
pub struct Settled(Vec<(Output, bool)>);

impl Outputs {
    /// Waits until outputs have delivered their data or stored it on disk, while packets still arrive: for the grace period minus the time
    /// reserved for the last flush. `since`: the time since the stop was requested. Returns which outputs have.
    pub fn settle(&self, since: Duration) -> Settled {
        let begun = Instant::now();
        let patience = (self.grace - self.for_last_flush()).saturating_sub(since);
        let settled = self.handle.block_on(async {
            let mut settling = JoinSet::new();
            for output in self.all() {
                settling.spawn(async move {
                    let is_settled = output.settle(patience).await;
                    (output, is_settled)
                });
            }
            let mut settled = Settled(Vec::new());
            while let Some(Ok(result)) = settling.join_next().await {
                settled.0.push(result);
            }
            settled
        });
        // The last flushes may wait for outputs as long as there is time, each for all of them together.
        let left = self.left(since + begun.elapsed());
        *lock(&self.flush_wait) = left;
        self.divide(&self.list());
        let end = Instant::now() + left;
        self.deliveries().for_each(|delivery| delivery.end_waits(end));
        settled
    }

    /// The rest of the grace period, `since` after the stop was requested.
    fn left(&self, since: Duration) -> Duration {
        self.grace.saturating_sub(since).max(self.for_last_flush())
    }

    fn for_last_flush(&self) -> Duration {
        LAST_FLUSH_MAX.min(self.grace / 4)
    }

    /// Delivers the last flush, `since` after the stop was requested.
    pub fn finish(&self, settled: Settled, since: Duration) {
        let patience = self.left(since);
        self.handle.block_on(async {
            let mut ending = JoinSet::new();
            for (output, is_settled) in settled.0 {
                ending.spawn(async move { output.finish(is_settled, patience).await });
            }
            while ending.join_next().await.is_some() {}
        });
    }
}

// The state of outputs that the next process continues, and what a kill would cost each of them.

impl Outputs {
    /// The tally has a place for each of these outputs.
    pub(super) fn register(&self, list: &[Running]) {
        let Some(tally) = &self.tally else { return };
        let mut named = Vec::new();
        for Running { config, output } in list {
            let kind = match output {
                Output::Delivered(_, delivery) if !delivery.adds_up() => OutputKind::Delivers,
                Output::Delivered(..) | Output::Scrape(_) => OutputKind::AddsUp,
                Output::Relay(_) => continue,
            };
            named.push((config.name.as_str(), kind));
        }
        tally.register(&named);
    }

    /// The current state of each output that the next process continues, one at a time, with its name; and for sums the samples in them.
    pub fn each_sum(&self, put: PutSums<'_>) -> io::Result<()> {
        for Running { config, output } in self.list().iter() {
            let (saved, adds_up) = match output {
                Output::Scrape(scrape) => (Some(scrape.save_counted()), true),
                Output::Delivered(_, delivery) => (self.handle.block_on(delivery.sums()), delivery.adds_up()),
                Output::Relay(_) => (None, false),
            };
            if let Some((saved, samples)) = saved {
                put(&config.name, &saved, adds_up.then_some(samples))?;
            }
        }
        Ok(())
    }

    /// After the end: the cumulative state of each output, by name.
    pub fn take_state(&self) -> BTreeMap<String, OutputState> {
        let list = self.list();
        let saved = list.iter().filter_map(|running| {
            let saved = match &running.output {
                Output::Scrape(scrape) => scrape.save(),
                Output::Delivered(_, delivery) => delivery.take_state()?,
                Output::Relay(_) => return None,
            };
            Some((running.config.name.clone(), saved))
        });
        saved.collect()
    }
}
