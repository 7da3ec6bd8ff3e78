//! Divides memory among the outputs, also when a reload adds or removes some.

use std::sync::Arc;

use weir_output::delivery::Delivery;

use crate::outputs::{Output, Outputs, Running, lock, relays};
use crate::scrape::ScrapeOutput;
use weir_agent::budget::{self, Need, Share};

/// A large payload.
const NEXT_PAYLOAD: u64 = 1 << 20;

/// An output with cumulative state.
enum Sums {
    Scrape(ScrapeOutput),
    Delivered(Arc<Delivery>),
}

impl Outputs {
    /// Gives every running output its part of each share. Also called at the end of every bucket, because an output above its part shrinks by
    /// delivering.
    pub(super) fn divide(&self, list: &[Running]) {
        self.divide_queues(list);
        self.divide_sums(list);
        let deliveries: Vec<_> = list.iter().filter_map(Running::delivery).collect();
        let each = self.budget.batches_of_output(deliveries.len());
        deliveries.iter().for_each(|delivery| delivery.limit_inbox(each));
        // Not divided: while a flush waits for one of them, the others encode too.
        let each = *lock(&self.flush_wait);
        deliveries.iter().for_each(|delivery| delivery.limit_wait(each));
    }

    /// Lets outputs ask for a larger part of the queues when theirs is full.
    pub(super) fn divide_on_request(self: &Arc<Self>, list: &[Running]) {
        for delivery in list.iter().filter_map(Running::delivery) {
            let outputs = Arc::downgrade(self);
            delivery.ask_for_room(move || {
                if let Some(outputs) = outputs.upgrade() {
                    outputs.divide_queues(&outputs.list());
                }
            });
        }
    }

    /// By need: one that queues nothing has room to begin, and those that queue share the rest.
    fn divide_queues(&self, list: &[Running]) {
        let deliveries: Vec<_> = list.iter().filter_map(Running::delivery).collect();
        let replaced = lock(&self.replaced);
        let need = |delivery: &Arc<Delivery>| {
            let successor = replaced
                .successors
                .iter()
                .find(|(successor, _)| Arc::ptr_eq(successor, delivery));
            let before = successor.map_or(0, |(_, before)| before.queued_bytes());
            let held = delivery.queued_bytes() + before;
            let wanted = delivery.wanted_bytes() + before;
            // Not for the next payload alone, or each would be a request.
            let more = if held > 0 { NEXT_PAYLOAD.max(held / 8) } else { 0 };
            Need {
                held,
                wanted: wanted + more,
            }
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
        let needs: Vec<Need> = deliveries.iter().map(need).collect();
        let mut parts: Vec<_> = deliveries.iter().zip(budget::lend(left, &needs)).collect();
        // Outputs that lose room first, so that together they stay within the share.
        parts.sort_by_key(|(delivery, bytes)| *bytes > delivery.queue_limit());
        parts
            .into_iter()
            .for_each(|(delivery, bytes)| delivery.limit_queues(bytes));
    }

    /// The fullest part of each share that outputs divide, as a fraction of that part.
    pub fn fullest(&self) -> [(Share, f64); 2] {
        let list = self.list();
        let queues = list.iter().filter_map(Running::delivery);
        let queues = queues.map(|delivery| delivery.queue_fullness());
        let sums = list.iter().filter_map(|running| Sums::of(&running.output));
        let sums = sums.map(|sums| sums.fullness());
        [
            (Share::Queues, queues.fold(0.0, f64::max)),
            (Share::Cumulative, sums.fold(0.0, f64::max)),
        ]
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

fn fraction(used: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { used as f64 / of as f64 }
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

    /// The used fraction of its part.
    fn fullness(&self) -> f64 {
        let limit = match self {
            Sums::Scrape(scrape) => scrape.bytes_max(),
            Sums::Delivered(delivery) => delivery.state_limit(),
        };
        fraction(self.bytes(), limit)
    }

    fn limit(&self, bytes_max: u64) {
        match self {
            Sums::Scrape(scrape) => scrape.limit(bytes_max),
            Sums::Delivered(delivery) => delivery.limit_state(bytes_max),
        }
    }
}
