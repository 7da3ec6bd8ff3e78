//! The numbers that must agree: what was sent, delivered, continued and reported.

use std::collections::BTreeMap;

use super::{MILLISECOND, Schedule};
use crate::life::simulation::clients::CLIENT;
use crate::life::simulation::outputs::SCRAPE;
use crate::life::simulation::process::Process;
use crate::life::simulation::receivers::{Receiver, lock};
use weir_status::status::StateStatus;

/// Numbers that starts have reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reported {
    pub lost: u64,
    pub undelivered: BTreeMap<String, u64>,
    /// Of these, those that may have been delivered.
    pub uncertain: BTreeMap<String, u64>,
}

impl Reported {
    pub fn of(state: &StateStatus) -> Reported {
        Reported {
            lost: state.killed.samples_lost,
            undelivered: state.killed.samples_undelivered.clone(),
            uncertain: state.killed.samples_uncertain.clone(),
        }
    }

    /// The samples of one output.
    pub fn uncertain(&self, name: &str) -> u64 {
        self.uncertain.get(name).copied().unwrap_or(0)
    }

    pub fn for_output(&self, name: &str) -> u64 {
        self.lost + self.undelivered.get(name).copied().unwrap_or(0)
    }
}

impl Schedule {
    /// Right after a start no sample is in transit: each is in the bucket that continues, or accepted, or reported as lost.
    pub(super) fn check_start(&self, process: &Process, restored: u64, reported: &Reported) {
        let sent: u64 = self.sent.values().sum();
        for receiver in &*lock(&self.receivers) {
            let (name, carried) = (&receiver.name, receiver.carried);
            let told = reported.for_output(name) + self.forgotten.for_output(name);
            assert_eq!(
                receiver.samples() + receiver.dropped + told + restored + carried,
                sent + receiver.kept_unsaid,
                "{name}: at a start, delivered {} + dropped {} + reported {told} + continued {restored} + carried {carried} = sent {sent} \
                 + accepted and reported {}",
                receiver.samples(),
                receiver.dropped,
                receiver.kept_unsaid
            );
            self.check_uncertain(receiver, reported);
        }
        let scraped: u64 = process.scraped().values().sum();
        let told = reported.for_output(SCRAPE) + self.forgotten.for_output(SCRAPE);
        assert_eq!(
            scraped + told + restored,
            sent,
            "scrape: at a start, shows {scraped} + reported {told} + continued {restored} = sent {sent}"
        );
    }

    /// Samples that were accepted and reported as lost all the same were reported as uncertain.
    pub(super) fn check_uncertain(&self, receiver: &Receiver, reported: &Reported) {
        let name = &receiver.name;
        let uncertain = reported.uncertain(name) + self.forgotten.uncertain(name);
        assert!(
            receiver.kept_unsaid <= uncertain,
            "{name}: {} accepted and reported, only {uncertain} of them as uncertain",
            receiver.kept_unsaid
        );
    }

    pub(super) fn check(&mut self) {
        let Some(process) = &mut self.process else { return };
        process.check_history(!self.steps_clock);
        let scraped = process.outputs().scraped();
        let reported = Reported::of(&process.books().state);
        let sent: u64 = self.sent.values().sum();
        let receivers = lock(&self.receivers);
        for receiver in &*receivers {
            let name = &receiver.name;
            if !self.lost_power {
                for (series, samples) in &receiver.accepted {
                    // A start without the state has no numbers.
                    if self.inexact.is_some() && series.starts_with(CLIENT) {
                        continue;
                    }
                    let offered = self.offered.get(series).copied().unwrap_or(0);
                    assert!(
                        *samples <= offered,
                        "{name} has {samples} of {series}, {offered} were sent"
                    );
                }
            }
            if self.inexact.is_some() {
                continue;
            }
            let told = reported.for_output(name) + self.forgotten.for_output(name);
            assert_eq!(
                receiver.samples() + receiver.dropped + told,
                sent + receiver.kept_unsaid,
                "{name}: delivered {} + dropped {} + reported {told} = sent {sent} + accepted and reported {}",
                receiver.samples(),
                receiver.dropped,
                receiver.kept_unsaid
            );
            self.check_uncertain(receiver, &reported);
            if !self.steps_clock {
                let twice = receiver.parts.iter().find(|(_, times)| **times > 1);
                assert_eq!(twice, None, "{name} has a bucket twice");
            }
        }
        if self.inexact.is_none() {
            let scraped: u64 = scraped.values().sum();
            let told = reported.for_output(SCRAPE) + self.forgotten.for_output(SCRAPE);
            assert_eq!(
                scraped + told,
                sent,
                "scrape: shows {scraped} + reported {told} = sent {sent}"
            );
        }
        say!(
            self,
            "ends: sent {sent}, {} kills, {} stops, {}",
            self.kills,
            self.stops,
            self.inexact.unwrap_or("exact")
        );
    }
}
