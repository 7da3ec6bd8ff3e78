//! Starts, with damaged files at times, and stops.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use weir_output::delivery::SavedStates;

use super::checks::Reported;
use super::{MILLISECOND, Schedule};
use crate::life::Resumed;
use crate::life::simulation::disk::Killed;
use crate::life::simulation::process::{Process, directory};
use crate::life::simulation::receivers::{Mood, lock};
use weir_status::status::{StateStatus, Status};

/// A file that was damaged after a kill, and what a start would find without the damage.
pub(super) struct Damage {
    pub what: &'static str,
    pub restored: u64,
    pub own_lost: u64,
    pub reported: Reported,
}

impl Schedule {
    pub(super) fn start(&mut self) {
        let is_damaged =
            self.was_killed && self.inexact.is_none() && self.random.one_in(4) && self.do_damage();
        self.set_back = 0;
        let failures = self.disk.failures();
        let disk = self.disk.process();
        if !is_damaged && self.random.one_in(8) {
            let operations = self.random.below(3000);
            self.disk.kill_after(operations);
        }
        let (plan, receivers, now) = (self.plan.clone(), self.receivers.clone(), self.now());
        let random = &mut self.random;
        let started = catch_unwind(AssertUnwindSafe(|| {
            Process::start(&disk, &plan, &receivers, now, random)
        }));
        if self.disk.failures() != failures {
            self.inexact = self.inexact.or(Some("the disk failed at a start"));
        }
        match started {
            Ok(Ok(process)) => self.started(process),
            Ok(Err(error)) => {
                self.disk.end_process();
                say!(self, "a process cannot start: {error}");
            }
            Err(panic) if panic.is::<Killed>() => self.end_by_kill(),
            Err(panic) => resume_unwind(panic),
        }
    }

    fn started(&mut self, process: Process) {
        let own = process.status().clone();
        let books = process.books().state;
        say!(
            self,
            "starts as {}: continues {}, kills {}, lost {}, undelivered {:?}; so far lost {}, undelivered {:?}",
            own.epoch,
            own.samples_restored,
            own.killed.kills,
            own.killed.samples_lost,
            own.killed.samples_undelivered,
            books.killed.samples_lost,
            books.killed.samples_undelivered
        );
        if books.set_aside > 0 {
            self.inexact = self.inexact.or(Some("state was set aside"));
        }
        if self.inexact.is_none() {
            assert_eq!(own.outputs_reset, 0, "sums were reset without a reason");
        }
        if let Some(damage) = self.damage.take()
            && self.inexact.is_none()
        {
            let what = damage.what;
            assert_eq!(own.samples_restored, damage.restored, "with damaged {what}");
            assert_eq!(own.killed.samples_lost, damage.own_lost, "with damaged {what}");
            // The books of earlier processes are gone with their reports.
            let now = Reported::of(&books);
            self.forgotten.lost += damage.reported.lost - now.lost;
            for (all, before, now) in [
                (
                    &mut self.forgotten.undelivered,
                    damage.reported.undelivered,
                    now.undelivered,
                ),
                (
                    &mut self.forgotten.uncertain,
                    damage.reported.uncertain,
                    now.uncertain,
                ),
            ] {
                for (name, samples) in before {
                    *all.entry(name.clone()).or_default() += samples - now.get(&name).unwrap_or(&0);
                }
            }
        }
        self.was_killed = false;
        self.continued += own.samples_restored;
        if self.inexact.is_none() {
            self.check_start(&process, own.samples_restored, &Reported::of(&books));
        }
        self.process = Some(process);
    }

    /// After a kill: whether what waited in outputs is lost with it, or in the books of a state that was saved before.
    pub(super) fn end_of_outputs(&mut self) {
        let has_ended = lock(&self.receivers).iter().any(|of| of.ending.is_some());
        let is_saved = has_ended && self.next_start().is_some_and(|(own, _)| own.killed.kills == 0);
        self.receivers.killed(is_saved);
    }

    /// The findings of a start now, which does not happen, and those of all starts with it.
    fn next_start(&self) -> Option<(StateStatus, StateStatus)> {
        let copy = self.disk.copy();
        let clean = directory(&copy.process(), &self.plan, self.now()).ok()?;
        let resumed = Resumed::look(clean, &self.plan.life(), self.now().wall_ms);
        let (_, own, earlier) = resumed.started(&self.plan.life(), &SavedStates::default());
        let mut all = Status {
            state: own.clone(),
            ..Status::default()
        };
        if let Some(earlier) = earlier {
            all.add_earlier(&earlier);
        }
        Some((own, all.state))
    }

    /// Damages a small file, and finds out what a start would continue without that.
    fn do_damage(&mut self) -> bool {
        let Some((own, all)) = self.next_start() else {
            return false;
        };
        let cut = self.random.one_in(2);
        let at = self.random.next();
        let change = |bytes: &mut Vec<u8>| match cut {
            true => bytes.truncate(at as usize % (bytes.len() + 1)),
            false => {
                let length = bytes.len().max(1);
                if let Some(byte) = bytes.get_mut(at as usize % length) {
                    *byte ^= 1 << (at >> 60 & 7);
                }
            }
        };
        let what = self.random.one_of(&["books", "agent"]);
        if !self.disk.damage(what, change) {
            return false;
        }
        say!(self, "damages {what}");
        self.damage = Some(Damage {
            what,
            restored: own.samples_restored,
            own_lost: own.killed.samples_lost,
            reported: Reported::of(&all),
        });
        true
    }

    pub(super) fn stop(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        let delivers_before = self.random.one_in(2);
        let now = self.now();
        // A disk that refuses may refuse the state, too.
        let was_full = self.is_disk_full && !self.disk.refuses();
        let accept = lock(&self.receivers).iter().all(|of| of.mood == Mood::Accepts);
        if self.random.one_in(10) {
            let operations = self.random.below(200);
            self.disk.kill_after(operations);
        }
        let has_no_tally = process.has_no_tally();
        let stopped = catch_unwind(AssertUnwindSafe(|| {
            if delivers_before {
                process.outputs().deliver();
            }
            process.stop(now)
        }));
        match stopped {
            Ok(stopped) => {
                // Without them the next start reports what outputs dropped.
                self.receivers.killed(stopped.has_books);
                say!(self, "stops, keeps {}, error {:?}", stopped.keeps, stopped.error);
                self.stops += 1;
                self.disk.end_process();
                self.clients.process_ended();
                if was_full && accept {
                    assert_eq!(
                        stopped.error, None,
                        "a stop loses, though outputs take everything"
                    );
                    assert!(stopped.is_delivered);
                }
                self.was_killed = stopped.error.is_some();
                if stopped.error.is_some() && has_no_tally {
                    self.inexact = self
                        .inexact
                        .or(Some("a process without a tally could not save its state"));
                }
                if !stopped.keeps {
                    self.inexact = self.inexact.or(Some("a stop found no room for sums and books"));
                }
            }
            Err(panic) if panic.is::<Killed>() => {
                self.end_by_kill();
                if self.is_disk_troubled {
                    self.inexact = self.inexact.or(Some("a stop found no room for sums and books"));
                }
                if has_no_tally {
                    self.inexact = self.inexact.or(Some("a process without a tally was killed"));
                }
            }
            Err(panic) => resume_unwind(panic),
        }
    }
}
