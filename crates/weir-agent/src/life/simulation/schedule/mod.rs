//! One schedule: senders, processes one after another, and what happens to them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use weir_ingest::Readings;
use weir_state::AgentId;

use super::Random;
use super::clients::{Clients, Request};
use super::disk::{Killed, World};
use super::outputs::SCRAPE;
use super::process::{Plan, Process};
use super::receivers::{Mood, Queues, Receiver, Receivers, lock};

macro_rules! say {
    ($schedule:expr, $($what:tt)*) => {
        if $schedule.is_verbose {
            eprintln!("{:>7} ms  {}", $schedule.monotonic / MILLISECOND - 1000, format!($($what)*));
        }
    };
}

mod checks;
mod hand_overs;
mod starts;

use checks::Reported;
use starts::Damage;

/// Simulated time of a schedule.
const LENGTH: u64 = 60_000_000_000;
const MILLISECOND: u64 = 1_000_000;

pub struct Schedule {
    random: Random,
    plan: Plan,
    disk: World,
    receivers: Receivers,
    /// Holds their disk queues.
    _queues: Option<tempfile::TempDir>,
    process: Option<Process>,
    monotonic: u64,
    wall_offset: i64,
    /// Milliseconds by which it was set back since the process started. With several workers a bucket that ended before waits until the
    /// clock comes there again.
    set_back: u64,
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
    pub hand_overs: u64,
    pub reloads: u64,
    /// Hand-overs that failed, so that the process went on.
    pub reclaimed: u64,
    is_verbose: bool,
}

impl Schedule {
    pub fn new(seed: u64, is_verbose: bool) -> Schedule {
        let mut random = Random::new(seed);
        let plan = Plan {
            workers: 1 + random.below(3) as usize,
            width: random.one_of(&[1, 1, 2, 3, 5, 10]),
            rows_of_payload: 1 + random.below(4) as usize,
            memory: random.one_of(&[1 << 20, 1 << 20, 100]),
            batch_bytes: random.one_of(&[1, 4096, 1 << 20]),
            agent: AgentId([7; 16]),
        };
        let outputs = 1 + random.below(3) as usize;
        let names = &["first", "second", "third"][..outputs];
        let queues = Queues::new(names.iter().map(|_| random.one_in(3)).collect());
        let receivers = names
            .iter()
            .enumerate()
            .map(|(at, name)| Receiver::new(name, queues.place(at)));
        let schedule = Schedule {
            disk: World::new(random.next()),
            receivers: Receivers::new(receivers),
            _queues: queues.directory,
            process: None,
            monotonic: 1000 * MILLISECOND,
            wall_offset: 1_700_000_000_000 + random.below(20_000) as i64,
            set_back: 0,
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
            hand_overs: 0,
            reloads: 0,
            reclaimed: 0,
            is_verbose,
            plan,
            random,
        };
        let on_disk: Vec<bool> = lock(&schedule.receivers)
            .iter()
            .map(|of| of.queue.is_some())
            .collect();
        say!(schedule, "{:?}, outputs on disk: {on_disk:?}", schedule.plan);
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
            if self.random.one_in(150) {
                self.hand_over();
            }
            if self.random.one_in(100) {
                self.reload();
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
            self.set_back += by.min(0).unsigned_abs();
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
            return self.end_of_outputs();
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
        drop(process);
        self.end_of_outputs();
    }

    fn work(&mut self) {
        for _ in 0..1 + self.random.below(3) {
            if self.process.is_none() {
                return;
            }
            let now = self.now();
            self.act(|process, _| process.supervise(now));
            match self.random.below(16) {
                15 => {
                    let most = self.random.below(4);
                    self.act(|process, _| (0..most).all(|_| process.remember()));
                }
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
                    self.act(|process, random| process.answer(now, random));
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

    fn reload(&mut self) {
        let at = self.random.below(lock(&self.receivers).len() as u64) as usize;
        let now = self.now();
        let is_replaced = self.act(|process, _| {
            process.outputs().pass(now);
            process.outputs().reload(at)
        });
        if is_replaced == Some(true) {
            say!(self, "output {at} has other settings");
            self.reloads += 1;
        }
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
                self.disk.fill(0);
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
                self.receivers.killed(false);
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

    /// Ends all trouble, and lets everything be delivered that was received.
    fn heal(&mut self) {
        say!(self, "all trouble ends");
        self.repair();
        lock(&self.receivers)
            .iter_mut()
            .for_each(|of| of.mood = Mood::Accepts);
        self.disk.kill_after(u64::MAX);
        let mut quiet = 0;
        let turns = 8 + 8 * u64::from(self.plan.width) + self.set_back / 250;
        for _ in 0..600 + turns {
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
                while process.remember() {}
                process.supervise(now);
                process.keep(now);
                process.outputs().deliver() && process.books().state.samples_open == 0
            });
            for _ in 0..8 {
                self.request(true);
            }
            let is_empty = is_empty.map(|is_empty| is_empty && self.clients.are_answered());
            quiet = if is_empty == Some(true) { quiet + 1 } else { 0 };
            // Buckets that have ended are on their way, and may wait until a worker that never had them ends its next one.
            if quiet == turns {
                return;
            }
        }
        panic!("something is never delivered");
    }

    /// Samples that a receiver has or gets, and that were reported as lost: a kill came between its answer, or the write to disk, and the note
    /// of that.
    pub fn kept_unsaid(&self) -> u64 {
        lock(&self.receivers).iter().map(|of| of.kept_unsaid).sum()
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
