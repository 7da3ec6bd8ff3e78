//! The state of outputs that the next process continues, and what a kill would cost each of them.

use std::collections::BTreeMap;
use std::io;

use weir_output::delivery::OutputState;

use super::outputs::{Output, Outputs, Running};
use crate::state::PutSums;
use crate::state::tally::OutputKind;

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
