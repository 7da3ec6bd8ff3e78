//! Hand-overs from one process to another, of which either may be killed at any operation.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::checks::Reported;
use super::{MILLISECOND, Schedule, lock};
use crate::life::simulation::disk::Killed;
use crate::life::simulation::process::{Passed, Process};

/// Runs a step of a process. `None`: it was killed.
fn step<T>(run: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => Some(done),
        Err(panic) if panic.is::<Killed>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

impl Schedule {
    /// Another process takes over from the one that runs, or fails to.
    pub(super) fn hand_over(&mut self) {
        let Some(mut old) = self.process.take() else {
            return;
        };
        if old.has_no_tally() {
            self.process = Some(old);
            return;
        }
        if self.random.one_in(3) {
            let operations = self.random.below(400);
            self.disk.kill_after(operations);
        }
        let now = self.now();
        match step(|| old.freeze(now)) {
            Some(Ok(Some(passed))) => self.take_over(old, &passed),
            Some(Ok(None)) => self.go_on(old, "the workers are in different buckets", false),
            Some(Err(error)) => self.go_on(old, &error.to_string(), false),
            None => {
                self.process = Some(old);
                self.end_by_kill();
            }
        }
    }

    fn take_over(&mut self, mut old: Process, passed: &Passed) {
        let disk = self.disk.further_process();
        let (plan, receivers, now) = (self.plan.clone(), self.receivers.clone(), self.now());
        // The old one's thread for the disk may be behind.
        let (late, later) = (self.random.below(6), self.random.below(4));
        let world = self.disk.clone();
        let (random, clients) = (&mut self.random, &mut self.clients);
        let workers = plan.workers;
        let mut answers = random.clone();
        let mut has_run = false;
        let started = step(|| {
            Process::take_over(&disk, &plan, &receivers, passed, now, random, || {
                for _ in 0..late {
                    old.write();
                }
                has_run = true;
                for (receiver, waiting) in lock(&receivers).iter_mut().zip(&passed.waiting) {
                    receiver.carried = waiting.samples - receiver.unread();
                }
                world.without_kill(|| old.end_after_hand_over(later));
                // Requests that waited are answered now: the new process has all of them.
                clients.answers(workers, &mut answers, |_, _| true);
                clients.process_ended();
            })
        });
        if has_run {
            return match started {
                Some(Ok(new)) => self.taken_over(new),
                Some(Err(error)) => panic!("it runs, and fails: {error}"),
                None => self.end_by_kill(),
            };
        }
        if !old.disk.is_alive() {
            say!(self, "the old process is killed during a hand-over");
            drop(started);
            if self.is_passed(old.status().epoch) {
                old.drop_waiting();
            }
            self.process = Some(old);
            return self.end_by_kill();
        }
        match started {
            Some(Ok(_)) => unreachable!("it has said that it runs"),
            Some(Err(error)) => {
                disk.end();
                self.go_on(old, &error.to_string(), true);
            }
            None => {
                let also_old = self.random.one_in(3);
                let operations = self.random.below(8);
                self.disk.kill_after(if also_old { operations } else { u64::MAX });
                self.go_on(old, "the new process is killed", true);
            }
        }
    }

    fn taken_over(&mut self, new: Process) {
        self.disk.kill_after(u64::MAX);
        self.hand_overs += 1;
        let own = new.status().clone();
        say!(
            self,
            "process {} takes over, with {} samples",
            own.epoch,
            own.samples_restored
        );
        self.continued += own.samples_restored;
        let reported = Reported::of(&new.books().state);
        if self.inexact.is_none() {
            self.check_start(&new, own.samples_restored, &reported);
        }
        self.process = Some(new);
    }

    /// The state that the process of this epoch has passed is what the next start begins with.
    fn is_passed(&self, epoch: u64) -> bool {
        let of_new = |name: &str| {
            let other = name.strip_prefix("tally-").and_then(|other| other.parse().ok());
            other.is_some_and(|other: u64| other > epoch)
        };
        self.disk.has(of_new)
            || (self.disk.has(|name| name == "state") && !self.disk.has(|name| name == "passing"))
    }

    /// The process continues. `has_passed`: the other one had its state.
    fn go_on(&mut self, mut old: Process, why: &str, has_passed: bool) {
        say!(self, "a hand-over fails: {why}");
        self.reclaimed += 1;
        let epoch = old.status().epoch;
        let reclaimed = step(|| old.reclaim());
        if reclaimed.is_none() && has_passed && self.is_passed(epoch) {
            say!(self, "both are killed, and the state that was passed counts");
            old.drop_waiting();
        }
        self.process = Some(old);
        if reclaimed.is_none() {
            self.end_by_kill();
        }
        self.disk.kill_after(u64::MAX);
    }
}
