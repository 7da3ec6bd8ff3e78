//! One schedule: senders, processes one after another, and what happens to them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use weir_ingest::Readings;
use weir_output::delivery::SavedStates;
use weir_state::AgentId;

use super::clients::{CLIENT, Clients, Request};
use super::disk::{Killed, World};
use super::process::{Plan, Process, directory};
use super::random::Random;
use super::receivers::{Mood, Receiver, Receivers, SCRAPE, lock};
use crate::admin::status::StateStatus;
use crate::life::Resumed;

/// Simulated time of a schedule.
const LENGTH: u64 = 60_000_000_000;
const MILLISECOND: u64 = 1_000_000;

/// Numbers that starts have reported.
#[derive(Clone, Debug, Default, PartialEq)]
struct Reported {
    lost: u64,
    undelivered: BTreeMap<String, u64>,
    /// Of these, those that may have been delivered.
    uncertain: BTreeMap<String, u64>,
}

impl Reported {
    fn of(state: &StateStatus) -> Reported {
        Reported {
            lost: state.samples_lost,
            undelivered: state.samples_undelivered.clone(),
            uncertain: state.samples_uncertain.clone(),
        }
    }

    /// The samples of one output.
    fn uncertain(&self, name: &str) -> u64 {
        self.uncertain.get(name).copied().unwrap_or(0)
    }

    fn for_output(&self, name: &str) -> u64 {
        self.lost + self.undelivered.get(name).copied().unwrap_or(0)
    }
}

/// A file that was damaged after a kill, and what a start would find without the damage.
struct Damage {
    what: &'static str,
    restored: u64,
    own_lost: u64,
    reported: Reported,
}

pub struct Schedule {
    random: Random,
    plan: Plan,
    disk: World,
    receivers: Receivers,
    process: Option<Process>,
    monotonic: u64,
    wall_offset: i64,
    /// Samples by name, as senders know them; without those of a turn that a kill interrupted.
    sent: BTreeMap<String, u64>,
    /// With those.
    offered: BTreeMap<String, u64>,
    clients: Clients,
    /// A request that is being added.
    adding: Option<Request>,
    /// Reports that were in books which were damaged.
    forgotten: Reported,
    damage: Option<Damage>,
    was_killed: bool,
    is_disk_full: bool,
    is_disk_troubled: bool,
    steps_clock: bool,
    /// The reason why numbers are only bounds from here on.
    inexact: Option<&'static str>,
    lost_power: bool,
    /// The counters at the last scrape, and what was reported by then.
    scraped: Option<(u64, u64)>,
    /// Samples in buckets that continue, of starts since then: a scrape may have shown a bucket that had ended and has not left yet.
    continued: u64,
    pub kills: u64,
    pub stops: u64,
    is_verbose: bool,
}

macro_rules! say {
    ($schedule:expr, $($what:tt)*) => {
        if $schedule.is_verbose {
            eprintln!("{:>7} ms  {}", $schedule.monotonic / MILLISECOND - 1000, format!($($what)*));
        }
    };
}

impl Schedule {
    pub fn new(seed: u64, is_verbose: bool) -> Schedule {
        let mut random = Random::new(seed);
        let plan = Plan {
            workers: 1 + random.below(3) as usize,
            width: random.one_of(&[1, 1, 2, 3, 5, 10]),
            rows_of_payload: 1 + random.below(4) as usize,
            batch_bytes: random.one_of(&[1, 4096, 1 << 20]),
            agent: AgentId([7; 16]),
        };
        let outputs = 1 + random.below(3) as usize;
        let receivers = ["first", "second", "third"][..outputs]
            .iter()
            .map(|name| Receiver::new(name));
        let schedule = Schedule {
            disk: World::new(random.next()),
            receivers: Arc::new(Mutex::new(receivers.collect())),
            process: None,
            monotonic: 1000 * MILLISECOND,
            wall_offset: 1_700_000_000_000 + random.below(20_000) as i64,
            sent: BTreeMap::new(),
            offered: BTreeMap::new(),
            clients: Clients::new(&mut random),
            adding: None,
            forgotten: Reported::default(),
            damage: None,
            was_killed: false,
            is_disk_full: false,
            is_disk_troubled: false,
            steps_clock: random.one_in(4),
            inexact: None,
            lost_power: false,
            scraped: None,
            continued: 0,
            kills: 0,
            stops: 0,
            is_verbose,
            plan,
            random,
        };
        say!(schedule, "{:?}, {outputs} outputs", schedule.plan);
        schedule
    }

    fn now(&self) -> Readings {
        Readings {
            wall_ms: self.wall_offset + (self.monotonic / MILLISECOND) as i64,
            monotonic: self.monotonic,
        }
    }

    pub fn run(&mut self) {
        let end = self.monotonic + LENGTH;
        // Some schedules have no trouble but kills, some are calm for long.
        let kills = self.random.one_of(&[0, 5, 20, 60]);
        let troubles = self.random.one_of(&[0, 0, 100, 400]);
        while self.monotonic < end {
            self.pass_time();
            if self.process.is_none() {
                if self.random.one_in(3) {
                    self.start();
                }
                continue;
            }
            self.work();
            if self.random.one_in(kills) {
                self.arrange_kill();
            }
            if self.random.one_in(troubles) {
                self.trouble();
            }
            if self.random.one_in(150) {
                self.stop();
            }
        }
        self.heal();
        self.check();
    }

    fn pass_time(&mut self) {
        let milliseconds = match self.random.below(10) {
            0..5 => self.random.below(20),
            5..9 => self.random.below(300),
            _ => self.random.below(1500),
        };
        self.monotonic += milliseconds * MILLISECOND + self.random.below(MILLISECOND);
        if self.steps_clock && self.random.one_in(60) {
            let by = self
                .random
                .one_of(&[-40_000, -5_000, -1_500, -300, 300, 1_500, 20_000]);
            say!(self, "the wall clock steps by {by} ms");
            self.wall_offset += by;
        }
    }

    /// Lets the process do something. It may be killed meanwhile.
    fn act<T>(&mut self, act: impl FnOnce(&mut Process, &mut Random) -> T) -> Option<T> {
        let process = self.process.as_mut()?;
        let random = &mut self.random;
        match catch_unwind(AssertUnwindSafe(|| act(process, random))) {
            Ok(result) => Some(result),
            Err(panic) if panic.is::<Killed>() => {
                self.end_by_kill();
                None
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    fn end_by_kill(&mut self) {
        self.disk.end_process();
        self.clients.process_ended();
        let adding = self.adding.take();
        self.kills += 1;
        self.was_killed = true;
        let Some(process) = self.process.take() else {
            say!(self, "killed while it starts or stops");
            return;
        };
        let uncounted = process.uncounted();
        say!(
            self,
            "killed after {} operations, {uncounted} samples in the turn",
            self.disk.operations()
        );
        if uncounted > 0 {
            // All samples of a turn have one name.
            let name = match &adding {
                Some(request) => request.series.clone(),
                None => name(uncounted),
            };
            if let Some(request) = &adding {
                self.clients.added_nothing(request);
            }
            *self.sent.entry(name).or_default() -= uncounted;
        }
        if process.has_no_tally() {
            self.inexact = self.inexact.or(Some("a process without a tally was killed"));
        }
    }

    fn work(&mut self) {
        for _ in 0..1 + self.random.below(3) {
            if self.process.is_none() {
                return;
            }
            let now = self.now();
            match self.random.below(15) {
                12.. => self.request(false),
                0..5 => self.send(),
                5 | 6 => {
                    let most = self.random.below(4);
                    self.act(|process, _| (0..most).all(|_| process.merge(now)));
                }
                7 | 8 => {
                    let most = self.random.below(6);
                    self.act(|process, _| (0..most).all(|_| process.write()));
                }
                9 => {
                    self.act(|process, random| process.outputs().step(random));
                }
                10 => {
                    self.act(|process, _| process.keep(now));
                }
                _ => self.scrape(),
            };
        }
    }

    fn send(&mut self) {
        let (now, worker) = (self.now(), self.random.below(self.plan.workers as u64) as usize);
        let samples = match self.random.below(4) {
            0 => 0,
            1 => 1,
            2 => 1 + self.random.below(4),
            _ => 1 + self.random.below(30),
        };
        if samples > 0 {
            *self.sent.entry(name(samples)).or_default() += samples;
            *self.offered.entry(name(samples)).or_default() += samples;
        }
        say!(self, "worker {worker} receives {samples}");
        let lines = vec![format!("{}:1|c", name(samples)); samples as usize];
        self.act(|process, _| process.turn(worker, &lines, now));
    }

    /// A client sends a request, and others have answers.
    fn request(&mut self, ends: bool) {
        let (now, workers) = (self.now(), self.plan.workers);
        let Some(process) = &self.process else { return };
        self.clients
            .answers(workers, &mut self.random, |worker, payload| {
                process.is_saved(worker, payload)
            });
        let Some(request) = self.clients.request(workers, &mut self.random, ends) else {
            return;
        };
        let Some(adds) = process.would_add(&request) else {
            return;
        };
        *self.offered.entry(request.series.clone()).or_default() = 1;
        if adds {
            *self.sent.entry(request.series.clone()).or_default() += 1;
            self.clients.adds(&request);
        }
        say!(self, "{} arrives, is added: {adds}", request.series);
        self.adding = adds.then(|| request.clone());
        let fate = self.act(|process, _| process.columns(&request, adds, now));
        self.adding = None;
        if let Some(Some(fate)) = fate
            && self.clients.fate(&request, fate)
        {
            say!(self, "{} was never added", request.series);
            // Its client believes that it was.
            *self.sent.entry(request.series).or_default() += 1;
        }
    }

    fn scrape(&mut self) {
        let found = self.act(|process, _| {
            let scraped: u64 = process.outputs().scraped().values().sum();
            (scraped, Reported::of(&process.books().state))
        });
        let Some((scraped, reported)) = found else { return };
        let reported = reported.for_output(SCRAPE) + self.forgotten.for_output(SCRAPE);
        if let Some((before, reported_before)) = self.scraped
            && self.inexact.is_none()
        {
            let may_lack = reported.saturating_sub(reported_before) + std::mem::take(&mut self.continued);
            assert!(
                scraped + may_lack >= before,
                "counters of the scrape go from {before} to {scraped}, and {may_lack} are reported or continue"
            );
        }
        self.scraped = Some((scraped, reported));
    }

    fn arrange_kill(&mut self) {
        let bound = self.random.one_of(&[1, 3, 10, 40, 200, 1000]);
        let after = self.random.below(bound);
        self.disk.kill_after(after);
    }

    fn trouble(&mut self) {
        match self.random.below(12) {
            0..5 => {
                let at = self.random.below(lock(&self.receivers).len() as u64) as usize;
                let mood = self.random.one_of(&[
                    Mood::Accepts,
                    Mood::Accepts,
                    Mood::Refuses,
                    Mood::Hangs,
                    Mood::Away,
                ]);
                lock(&self.receivers)[at].mood = mood;
                say!(self, "output {at}: {mood:?}");
            }
            5 | 6 => {
                self.disk.fill();
                (self.is_disk_full, self.is_disk_troubled) = (true, true);
                say!(self, "the disk is full");
                if self.random.one_in(3) {
                    self.stop();
                }
            }
            7 => {
                self.disk.refuse(1 + self.random.clone().below(4));
                self.is_disk_troubled = true;
                say!(self, "the disk refuses");
            }
            8..11 => self.repair(),
            _ if self.random.one_in(4) => {
                say!(self, "a power failure");
                self.process = None;
                self.disk.end_process();
                self.clients.process_ended();
                self.disk.power_failure();
                self.inexact = Some("a power failure");
                self.lost_power = true;
            }
            _ => {}
        }
    }

    fn repair(&mut self) {
        self.disk.repair();
        (self.is_disk_full, self.is_disk_troubled) = (false, false);
        say!(self, "the disk is repaired");
    }

    fn start(&mut self) {
        let is_damaged =
            self.was_killed && self.inexact.is_none() && self.random.one_in(4) && self.do_damage();
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
            own.kills,
            own.samples_lost,
            own.samples_undelivered,
            books.samples_lost,
            books.samples_undelivered
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
            assert_eq!(own.samples_lost, damage.own_lost, "with damaged {what}");
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

    /// Right after a start nothing is on its way: whatever was sent is in the bucket that continues, or accepted, or reported.
    fn check_start(&self, process: &Process, restored: u64, reported: &Reported) {
        let sent: u64 = self.sent.values().sum();
        for receiver in &*lock(&self.receivers) {
            let name = &receiver.name;
            let told = reported.for_output(name) + self.forgotten.for_output(name);
            assert_eq!(
                receiver.samples() + receiver.dropped + told + restored,
                sent + receiver.accepted_unsaid,
                "{name}: at a start, delivered {} + dropped {} + reported {told} + continued {restored} = sent {sent} + accepted and \
                 reported {}",
                receiver.samples(),
                receiver.dropped,
                receiver.accepted_unsaid
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
    fn check_uncertain(&self, receiver: &Receiver, reported: &Reported) {
        let name = &receiver.name;
        let uncertain = reported.uncertain(name) + self.forgotten.uncertain(name);
        assert!(
            receiver.accepted_unsaid <= uncertain,
            "{name}: {} accepted and reported, only {uncertain} of them as uncertain",
            receiver.accepted_unsaid
        );
    }

    /// Damages a small file, and finds out what a start would continue without that.
    fn do_damage(&mut self) -> bool {
        let copy = self.disk.copy();
        let settings = self.plan.life();
        let Ok(clean) = directory(&copy.process(), &self.plan, self.now()) else {
            return false;
        };
        let resumed = Resumed::look(clean, &settings, self.now().wall_ms);
        let (_, own, earlier) = resumed.started(&settings, &SavedStates::default());
        let mut all = crate::admin::status::Status {
            state: own.clone(),
            ..Default::default()
        };
        if let Some(earlier) = earlier {
            all.add_earlier(&earlier);
        }
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
            own_lost: own.samples_lost,
            reported: Reported::of(&all.state),
        });
        true
    }

    fn stop(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        let delivers_before = self.random.one_in(2);
        let now = self.now();
        let was_full = self.is_disk_full;
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

    /// Ends all trouble, and lets everything be delivered that was received.
    fn heal(&mut self) {
        say!(self, "all trouble ends");
        self.repair();
        lock(&self.receivers)
            .iter_mut()
            .for_each(|of| of.mood = Mood::Accepts);
        self.disk.kill_after(u64::MAX);
        let (mut quiet, width) = (0, self.plan.width);
        for _ in 0..600 {
            self.monotonic += 250 * MILLISECOND;
            if self.process.is_none() {
                self.start();
                continue;
            }
            let now = self.now();
            let workers = self.plan.workers;
            let is_empty = self.act(|process, _| {
                for worker in 0..workers {
                    process.turn(worker, &[], now);
                    // The rest of a flush.
                    process.turn(worker, &[], now);
                }
                while process.write() {}
                while process.merge(now) {}
                process.keep(now);
                process.outputs().deliver() && process.books().state.samples_open == 0
            });
            for _ in 0..8 {
                self.request(true);
            }
            let is_empty = is_empty.map(|is_empty| is_empty && self.clients.are_answered());
            quiet = if is_empty == Some(true) { quiet + 1 } else { 0 };
            // Buckets that have ended are on their way, and may wait until a worker that never had them ends its next one.
            if quiet == 8 + 8 * width {
                return;
            }
        }
        panic!("something is never delivered");
    }

    fn check(&mut self) {
        let Some(process) = &mut self.process else { return };
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
                sent + receiver.accepted_unsaid,
                "{name}: delivered {} + dropped {} + reported {told} = sent {sent} + accepted and reported {}",
                receiver.samples(),
                receiver.dropped,
                receiver.accepted_unsaid
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

    /// Samples that a receiver has, and that were reported as lost: a kill came between its answer and the note of that.
    pub fn accepted_unsaid(&self) -> u64 {
        lock(&self.receivers).iter().map(|of| of.accepted_unsaid).sum()
    }

    /// Requests that were added before, and that were added again because a kill had lost their points.
    pub fn repeated(&self) -> (u64, u64) {
        (self.clients.duplicates, self.clients.again)
    }

    pub fn is_exact(&self) -> bool {
        self.inexact.is_none()
    }
}

/// The metric of a turn with so many samples.
fn name(samples: u64) -> String {
    format!("c{}", samples % 4)
}
