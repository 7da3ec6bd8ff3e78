//! Divides memory among the outputs, also when a reload adds or removes some.

use std::sync::Arc;

use weir_output::delivery::Delivery;

use super::outputs::{Output, Outputs, Running, lock, relays};
use super::scrape::ScrapeOutput;
use crate::budget::{self, Share};

/// A large payload.
const NEXT_PAYLOAD: u64 = 1 << 20;

/// An output with cumulative state.
enum Sums {
    Scrape(ScrapeOutput),
    Delivered(Arc<Delivery>),
}

impl Outputs {
    /// Gives every running output its part of each share: equal parts, except that none loses data. Also called at the end of every bucket,
    /// because an output above its part shrinks by delivering.
    pub(super) fn divide(&self, list: &[Running]) {
        self.divide_queues(list);
        self.divide_sums(list);
        let deliveries: Vec<_> = list.iter().filter_map(Running::delivery).collect();
        // The other half is for batches between workers and outputs.
        let each = self.budget.of_one(Share::Batches, 2 * deliveries.len());
        deliveries.iter().for_each(|delivery| delivery.limit_inbox(each));
    }

    fn divide_queues(&self, list: &[Running]) {
        let deliveries: Vec<_> = list.iter().filter_map(Running::delivery).collect();
        let replaced = lock(&self.replaced);
        let claim = |delivery: &Arc<Delivery>| {
            let successor = replaced
                .successors
                .iter()
                .find(|(successor, _)| Arc::ptr_eq(successor, delivery));
            let before = successor.map_or(0, |(_, before)| claim(before));
            claim(delivery) + before
        };
        let is_inherited = |output: &&Output| match output {
            Output::Delivered(_, old) => replaced
                .successors
                .iter()
                .any(|(_, before)| Arc::ptr_eq(before, old)),
            _ => false,
        };
        let ending = replaced.ending.iter().filter(|output| !is_inherited(output));
        let ending: u64 = ending.map(Output::queued_bytes).sum();
        let buffers: u64 = relays(list).map(|relay| relay.buffers_bytes()).sum();
        let left = self.budget.share(Share::Queues).saturating_sub(ending + buffers);
        let held: Vec<u64> = deliveries.iter().map(claim).collect();
        for (delivery, bytes) in deliveries.iter().zip(budget::divide(left, &held)) {
            delivery.limit_queues(bytes);
        }
    }

    fn divide_sums(&self, list: &[Running]) {
        let sums: Vec<Sums> = list
            .iter()
            .filter_map(|running| Sums::of(&running.output))
            .collect();
        let replaced = lock(&self.replaced);
        let held = |sums: &Sums| {
            let before = replaced
                .successors
                .iter()
                .find(|(successor, _)| sums.is(successor));
            sums.bytes()
                .max(before.map_or(0, |(_, before)| before.state_bytes()))
        };
        let held: Vec<u64> = sums.iter().map(held).collect();
        for (sums, bytes) in sums
            .iter()
            .zip(budget::divide(self.budget.share(Share::Cumulative), &held))
        {
            sums.limit(bytes);
        }
    }
}

/// The minimum of an output's queue limit if its part is smaller: its current data and room for the next, so that the oldest is not dropped
/// at once. It only decreases.
fn claim(delivery: &Arc<Delivery>) -> u64 {
    match delivery.queued_bytes() {
        0 => 0,
        held => delivery.queue_limit().min(held + NEXT_PAYLOAD),
    }
}

impl Sums {
    fn of(output: &Output) -> Option<Sums> {
        match output {
            Output::Scrape(scrape) => Some(Sums::Scrape(scrape.clone())),
            Output::Delivered(_, delivery) if delivery.keeps_state() => {
                Some(Sums::Delivered(delivery.clone()))
            }
            _ => None,
        }
    }

    fn is(&self, other: &Arc<Delivery>) -> bool {
        matches!(self, Sums::Delivered(delivery) if Arc::ptr_eq(delivery, other))
    }

    fn bytes(&self) -> u64 {
        match self {
            Sums::Scrape(scrape) => scrape.bytes(),
            Sums::Delivered(delivery) => delivery.state_bytes(),
        }
    }

    fn limit(&self, bytes_max: u64) {
        match self {
            Sums::Scrape(scrape) => scrape.limit(bytes_max),
            Sums::Delivered(delivery) => delivery.limit_state(bytes_max),
        }
    }
}
