//! The observer: one thread that reads the kernel's and the target's counters at a fixed period while a run lasts.

use super::experiment::Telemetry;
use super::procfs::{self, Group};
use super::telemetry;
use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use weir_rig_base::counter::Counter;
use weir_rig_base::udp::{Row, SocketReader};
use weir_rig_base::{clock, process};

#[derive(Debug, Clone)]
pub struct Plan {
    /// CLOCK_MONOTONIC of `t = 0`.
    pub start_ns: u64,
    pub period: Duration,
    pub smaps_period: Duration,
    pub telemetry: Vec<Telemetry>,
    pub cpus: Option<Vec<usize>>,
    /// Without a cgroup, the observer ends a target that exceeds its memory.
    pub memory_limit: Option<u64>,
}

/// One observed value. Phases are added after the run, when its times are known.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    pub t: u64,
    pub src: &'static str,
    pub name: String,
    pub counter: bool,
    pub v: f64,
}

#[derive(Debug)]
enum Message {
    Watch(&'static str, i32),
    Count(Counter),
    Read(Sender<u64>),
    Scrape(Sender<()>),
    Stop,
}

#[derive(Debug)]
pub struct Observer {
    to: Sender<Message>,
    thread: JoinHandle<Observations>,
}

#[derive(Debug, Default)]
pub struct Observations {
    pub seen: Vec<Observation>,
    pub problems: Vec<String>,
    /// The target exceeded its memory limit and was ended.
    pub over_memory: bool,
}

impl Observer {
    /// Starts with the target alone.
    pub fn start(plan: Plan, target: Group) -> Self {
        let (to, from) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut state = State::new(plan, target);
            if let Some(cpus) = &state.plan.cpus {
                // A CPU that does not exist was refused when the experiment was checked.
                let _ = process::pin(cpus);
            }
            let mut next = Instant::now();
            loop {
                state.tick();
                next += state.plan.period;
                // After a stall the missed readings stay missing: interpolated ones would look like measurements.
                let now = Instant::now();
                while next < now {
                    next += state.plan.period;
                }
                loop {
                    match from.recv_timeout(next.saturating_duration_since(Instant::now())) {
                        Ok(Message::Watch(src, pid)) => state.watched.push(Watched { src, pid, last: 0 }),
                        Ok(Message::Count(counter)) => state.counter = Some(counter),
                        Ok(Message::Read(done)) => {
                            state.read();
                            let _ = done.send(state.waiting);
                        }
                        Ok(Message::Scrape(done)) => {
                            state.scrape();
                            let _ = done.send(());
                        }
                        Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => {
                            state.tick();
                            return state.end();
                        }
                        Err(RecvTimeoutError::Timeout) => break,
                    }
                }
            }
        });
        Self { to, thread }
    }

    /// Also observes this process, as `generator` or `sink`.
    pub fn watch(&self, src: &'static str, pid: i32) {
        let _ = self.to.send(Message::Watch(src, pid));
    }

    /// Also records this count of the target's instructions.
    pub fn count(&self, counter: Counter) {
        let _ = self.to.send(Message::Count(counter));
    }

    /// Takes a reading now, and returns the bytes that wait in the target's sockets. Unix sockets do not count: they hold a few datagrams, then
    /// the sender waits.
    pub fn read_now(&self) -> u64 {
        self.answer(Message::Read).unwrap_or(0)
    }

    /// Asks the target for its metrics, and returns when it has answered. That is work of the target, so it belongs outside the window.
    pub fn scrape_now(&self) {
        self.answer(Message::Scrape);
    }

    /// `None`: the observer has failed, which its end reports.
    fn answer<T>(&self, message: fn(Sender<T>) -> Message) -> Option<T> {
        let (done, taken) = mpsc::channel();
        self.to.send(message(done)).ok()?;
        taken.recv().ok()
    }

    /// Takes a last reading and returns everything.
    pub fn stop(self) -> Observations {
        let _ = self.to.send(Message::Stop);
        self.thread.join().unwrap_or_else(|_| Observations {
            problems: vec!["the observer failed".to_owned()],
            ..Observations::default()
        })
    }
}

struct Watched {
    src: &'static str,
    pid: i32,
    last: u64,
}

/// The last values of each process of the target, so that sums do not fall when one ends.
#[derive(Default, Clone, Copy)]
struct Totals {
    cpu_ns: u64,
    run_delay: u64,
    voluntary: u64,
    involuntary: u64,
    minflt: u64,
    majflt: u64,
    user: u64,
    system: u64,
}

/// State of one source of telemetry.
#[derive(Debug, Default, Clone)]
struct Scrape {
    answered: bool,
    failure: Option<String>,
}

struct State {
    plan: Plan,
    target: Group,
    counter: Option<Counter>,
    watched: Vec<Watched>,
    processes: BTreeMap<i32, Totals>,
    sockets: SocketReader,
    /// Bytes in the target's receive queues at the last reading.
    waiting: u64,
    /// Drops per socket, kept after the socket was closed.
    drops: BTreeMap<u64, u64>,
    hwm: u64,
    smaps_due: u64,
    scrapes: Vec<Scrape>,
    machine_start: Option<procfs::Machine>,
    out: Observations,
}

impl State {
    fn new(plan: Plan, target: Group) -> Self {
        let n = plan.telemetry.len();
        Self {
            plan,
            target,
            counter: None,
            watched: Vec::new(),
            processes: BTreeMap::new(),
            sockets: SocketReader::default(),
            waiting: 0,
            drops: BTreeMap::new(),
            hwm: 0,
            smaps_due: 0,
            scrapes: vec![Scrape::default(); n],
            machine_start: procfs::machine(),
            out: Observations::default(),
        }
    }

    fn tick(&mut self) {
        let t = self.read();
        let own = clock::thread_cpu_ns();
        self.put(t, "observer", "cpu_ns", true, own as f64);
    }

    /// Reads the kernel's counters; returns the time.
    fn read(&mut self) -> u64 {
        let all = procfs::all_processes();
        let members = self.target.members(&all);
        let alive: Vec<&procfs::Stat> = members.iter().filter(|p| !p.zombie).collect();
        // Before the CPU clock: the time of what is no longer in a queue is then in the same reading, however long this thread is held up.
        self.read_sockets(&alive);
        // The CPU clock is what most goals are made of, so its time must be the sample's time. To list the processes of a busy machine
        // takes tens of milliseconds, some percents of a short window.
        let t = clock::monotonic_ns() - self.plan.start_ns;
        for p in &alive {
            let totals = self.processes.entry(p.pid).or_default();
            totals.cpu_ns = clock::cpu_time_ns(p.pid).unwrap_or(totals.cpu_ns);
            totals.minflt = p.minflt;
            totals.majflt = p.majflt;
            totals.user = p.user_ticks;
            totals.system = p.system_ticks;
        }
        if let Some(Ok(count)) = self.counter.as_ref().map(Counter::read) {
            self.put(t, "target", "instructions", true, count);
        }
        for w in &mut self.watched {
            w.last = clock::cpu_time_ns(w.pid).unwrap_or(w.last);
        }
        let machine = procfs::machine();
        let rig = procfs::tree(std::process::id() as i32, &all);
        let ours = rig.iter().chain(&members).map(|p| p.pid).collect();
        let foreign = procfs::foreign_ticks(&all, &ours);
        let mut gauges = Gauges::default();
        let smaps = t >= self.smaps_due && !alive.is_empty();
        if smaps {
            self.smaps_due = t + self.plan.smaps_period.as_nanos() as u64;
        }
        for p in &alive {
            let totals = self.processes.entry(p.pid).or_default();
            if let Some((voluntary, involuntary, delay)) = procfs::threads(p.pid) {
                // The counts of ended threads disappear; the sum must not fall.
                totals.voluntary = totals.voluntary.max(voluntary);
                totals.involuntary = totals.involuntary.max(involuntary);
                totals.run_delay = totals.run_delay.max(delay);
            }
            gauges.threads += p.threads;
            if let Some(m) = procfs::memory(p.pid) {
                gauges.rss += m.rss;
                gauges.anon += m.anon;
                gauges.file += m.file;
                gauges.hwm += m.hwm;
                gauges.memory = true;
            }
            if smaps && let Some((pss, dirty)) = procfs::smaps(p.pid) {
                *gauges.pss.get_or_insert(0) += pss;
                gauges.dirty += dirty;
            }
        }
        self.hwm = self.hwm.max(gauges.hwm).max(gauges.rss);
        self.record(t, &gauges);
        self.record_machine(t, machine, foreign);
        if let Some(limit) = self.plan.memory_limit
            && gauges.rss > limit
            && !self.out.over_memory
        {
            self.out.over_memory = true;
            for p in &alive {
                process::kill(p.pid, libc::SIGKILL);
            }
        }
        t
    }

    fn read_sockets(&mut self, alive: &[&procfs::Stat]) {
        let Some(first) = alive.first() else {
            self.waiting = 0;
            return;
        };
        let t = clock::monotonic_ns() - self.plan.start_ns;
        let (mut fds, mut open) = (0, Vec::new());
        for (descriptors, sockets) in alive.iter().filter_map(|p| procfs::descriptors(p.pid)) {
            fds += descriptors;
            open.extend(sockets);
        }
        self.sockets.keep(&open);
        let found = self.sockets.read(first.pid, |row| open.contains(&row.inode));
        self.drops
            .extend(found.udp.iter().map(|row| (row.inode, row.drops)));
        let queued = |rows: &[Row]| rows.iter().map(|row| row.rx_queue).sum::<u64>();
        let (udp, tcp) = (queued(&found.udp), queued(&found.tcp));
        self.waiting = udp + tcp;
        let gauges = [
            ("fds", fds),
            ("udp_rx_queue_bytes", udp),
            ("tcp_rx_queue_bytes", tcp),
        ];
        for (name, v) in gauges {
            self.put(t, "target", name, false, v as f64);
        }
    }

    fn record(&mut self, t: u64, g: &Gauges) {
        let sum = |f: fn(&Totals) -> u64| self.processes.values().map(f).sum::<u64>() as f64;
        let counters = [
            ("cpu_ns", sum(|p| p.cpu_ns)),
            ("run_delay_ns", sum(|p| p.run_delay)),
            ("user_ticks", sum(|p| p.user)),
            ("system_ticks", sum(|p| p.system)),
            ("minflt", sum(|p| p.minflt)),
            ("majflt", sum(|p| p.majflt)),
            ("ctx_voluntary", sum(|p| p.voluntary)),
            ("ctx_involuntary", sum(|p| p.involuntary)),
            ("udp_drops", self.drops.values().sum::<u64>() as f64),
        ];
        for (name, v) in counters {
            self.put(t, "target", name, true, v);
        }
        if g.memory {
            let gauges = [
                ("threads", g.threads),
                ("rss_bytes", g.rss),
                ("rss_anon_bytes", g.anon),
                ("rss_file_bytes", g.file),
                ("hwm_bytes", self.hwm),
            ];
            for (name, v) in gauges {
                self.put(t, "target", name, false, v as f64);
            }
        }
        if let Some(pss) = g.pss {
            self.put(t, "target", "pss_bytes", false, pss as f64);
            self.put(t, "target", "private_dirty_bytes", false, g.dirty as f64);
        }
        let mut by_source: BTreeMap<&'static str, u64> = BTreeMap::new();
        for w in &self.watched {
            *by_source.entry(w.src).or_default() += w.last;
        }
        for (src, v) in by_source {
            self.put(t, src, "cpu_ns", true, v as f64);
        }
    }

    fn record_machine(&mut self, t: u64, machine: Option<procfs::Machine>, foreign_ticks: Option<u64>) {
        if let (Some(start), Some(now)) = (self.machine_start, machine) {
            let ours = self.processes.values().map(|p| p.cpu_ns).sum::<u64>()
                + self.watched.iter().map(|w| w.last).sum::<u64>()
                + clock::own_cpu_ns();
            let went_by = now.since(start);
            // Time that belongs neither to others nor to us is interrupts, unless other processes are invisible.
            let foreign = match foreign_ticks {
                Some(ticks) => (ticks * (1_000_000_000 / clock::ticks_per_second())) as f64,
                None => went_by.busy_ns as f64 - ours as f64,
            };
            self.put(t, "host", "foreign_cpu_ns", true, foreign);
            self.put(t, "host", "steal_ns", true, went_by.steal_ns as f64);
        }
        if let Some(ns) = procfs::pressure_ns() {
            self.put(t, "host", "psi_some_ns", true, ns as f64);
        }
        if let Some(load) = procfs::load_average() {
            self.put(t, "host", "load_average", false, load);
        }
        if let Some(khz) = procfs::frequency_khz() {
            self.put(t, "host", "frequency_khz", false, khz);
        }
    }

    fn scrape(&mut self) {
        let t = clock::monotonic_ns() - self.plan.start_ns;
        for i in 0..self.plan.telemetry.len() {
            let source = self.plan.telemetry[i].clone();
            match telemetry::scrape(&source, Duration::from_secs(2)) {
                Ok(scrape) => {
                    self.scrapes[i].answered = true;
                    let canonical = telemetry::canonical(&source, &scrape);
                    for (name, v) in &canonical {
                        self.put(t, "telemetry", name, true, *v);
                    }
                    for (name, v) in scrape {
                        self.put(t, "telemetry", &format!("target/{name}"), false, v);
                    }
                }
                Err(e) => {
                    let failure = &mut self.scrapes[i].failure;
                    failure.get_or_insert_with(|| format!("{}: {e}", source.address));
                }
            }
        }
    }

    /// A source that never answered is noted.
    fn end(mut self) -> Observations {
        let silent = self.scrapes.into_iter().filter(|s| !s.answered);
        self.out.problems.extend(silent.filter_map(|s| s.failure));
        self.out
    }

    fn put(&mut self, t: u64, src: &'static str, name: &str, counter: bool, v: f64) {
        self.out.seen.push(Observation {
            t,
            src,
            name: name.to_owned(),
            counter,
            v,
        });
    }
}

#[derive(Default)]
struct Gauges {
    memory: bool,
    threads: u64,
    rss: u64,
    anon: u64,
    file: u64,
    hwm: u64,
    pss: Option<u64>,
    dirty: u64,
}
