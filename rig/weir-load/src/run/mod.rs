//! Sending: one thread per given core, without allocation, logging or async runtime. Open loop: everything due is sent, lateness is
//! recorded, the schedule never moves.

mod plan;
mod report;
mod worker;

pub(crate) use report::Tally;
pub use report::{Lateness, LoadVerdict, Progress, Report, SentStream};

use crate::manifest::Marker;
use crate::profile::{ProfileError, Sharing};
use crate::requests;
use crate::schedule::Schedule;
use crate::source::{Load, SPARE};
use crate::sys::BATCH;
use crate::target::Target;
use crate::units::RateUnit;
use plan::Plan;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use weir_rig_base::{clock, process, socket};
use worker::{Connection, Worker};

/// Behaviour when the target accepts no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backpressure {
    /// Datagrams on a schedule: wait one quantum, then skip. All others: wait.
    #[default]
    Auto,
    Skip,
    Wait,
}

/// Framing of packets in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// A 32-bit little-endian length before each packet.
    Length,
    /// A newline after each packet.
    Newline,
    /// None: the socket preserves packet boundaries.
    None,
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    pub target: Target,
    pub duration: Option<Duration>,
    /// Stop after the packet that reaches this many messages.
    pub count: Option<u64>,
    pub threads: u32,
    /// Processors for the threads, in turn.
    pub cpus: Vec<usize>,
    pub quantum: Option<Duration>,
    pub backpressure: Backpressure,
    pub framing: Option<Framing>,
    pub send_buffer: usize,
    /// Send a numbered gauge this often.
    pub markers: Option<Duration>,
    /// Slows the generator down in tests: time wasted per packet.
    pub handicap: Option<Duration>,
    pub target_buffer: u64,
    pub oversize_ok: bool,
    /// Fail instead of repeating a packet.
    pub no_repeat: bool,
    /// Hand datagrams of one exact size to the kernel joined (`UDP_SEGMENT`), if it can split them.
    pub gso: bool,
    /// Headers of every HTTP request, as `Name: value`.
    pub headers: Vec<String>,
}

impl Options {
    pub fn new(target: Target) -> Options {
        Options {
            target,
            duration: None,
            count: None,
            threads: 1,
            cpus: Vec::new(),
            quantum: None,
            backpressure: Backpressure::Auto,
            framing: None,
            send_buffer: 4 << 20,
            markers: None,
            handicap: None,
            target_buffer: 65_535,
            oversize_ok: false,
            no_repeat: false,
            gso: false,
            headers: Vec::new(),
        }
    }
}

/// Why a run could not start or ended early.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Invalid options or profile.
    #[error("{0}")]
    Usage(String),
    /// The target is missing or went away.
    #[error("{0}")]
    Target(String),
    #[error(transparent)]
    Io(io::Error),
}

impl From<ProfileError> for RunError {
    fn from(error: ProfileError) -> RunError {
        RunError::Usage(error.0)
    }
}

/// A running load: watch its progress, stop it, wait for its end.
pub struct Running {
    pub progress: Vec<Arc<Progress>>,
    pub stop: Arc<AtomicBool>,
    handle: std::thread::JoinHandle<(Report, Option<RunError>)>,
}

impl Running {
    pub(crate) fn new(
        progress: Vec<Arc<Progress>>,
        stop: Arc<AtomicBool>,
        handle: std::thread::JoinHandle<(Report, Option<RunError>)>,
    ) -> Running {
        Running {
            progress,
            stop,
            handle,
        }
    }

    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// The report, and the error that ended the run early, if any.
    pub fn finish(self) -> (Report, Option<RunError>) {
        self.handle.join().expect("the run does not panic")
    }
}

/// Starts a load. Connects and builds before it returns; sending starts immediately after.
pub fn start(load: &Load, options: &Options) -> Result<Running, RunError> {
    let plan = Plan::of(load, options)?;
    if load.is_columns() {
        return crate::columns::start(load, options);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let shares: Vec<Share> = (0..plan.threads)
        .map(|thread| Share::open(load, options, &plan, thread))
        .collect::<Result<_, _>>()?;
    let progress = shares.iter().map(|share| share.progress.clone()).collect();
    let crew = SendingThreads {
        load: load.clone(),
        options: options.clone(),
        plan,
        stop: stop.clone(),
    };
    let handle = std::thread::spawn(move || crew.run(shares));
    Ok(Running {
        progress,
        stop,
        handle,
    })
}

/// The part of one thread.
struct Share {
    connections: Vec<Connection>,
    schedule: Schedule,
    count: u64,
    progress: Arc<Progress>,
    send_buffer: usize,
}

impl Share {
    fn open(load: &Load, options: &Options, plan: &Plan, thread: u32) -> Result<Share, RunError> {
        let all = load.profile.connections;
        let mut send_buffer = 0;
        let mut connections = Vec::new();
        for number in (0..all).filter(|number| number % plan.threads == thread) {
            let connection = connect(load, options, plan, number)?;
            send_buffer = socket::set_send_buffer(connection.socket.as_fd(), options.send_buffer)
                .map_err(RunError::Io)?;
            connections.push(connection);
        }
        if !options.oversize_ok {
            load.check_size(options.target_buffer, send_buffer as u64)?;
        }
        if options.no_repeat {
            for connection in &connections {
                check_repeat(load, options, connection)?;
            }
        }
        let mine = connections.len() as u32;
        let schedule = Schedule::new(&load.profile, load.seed, u64::from(thread), mine, all)?;
        // Rounded shares with an exact sum.
        let upto = |count: u64, n: u32| (u128::from(count) * u128::from(n) / u128::from(plan.threads)) as u64;
        let count = options
            .count
            .map_or(u64::MAX, |count| upto(count, thread + 1) - upto(count, thread));
        Ok(Share {
            connections,
            schedule,
            count,
            progress: Arc::default(),
            send_buffer,
        })
    }
}

fn connect(load: &Load, options: &Options, plan: &Plan, number: u32) -> Result<Connection, RunError> {
    let target = &options.target;
    let socket = target
        .connect()
        .map_err(|error| RunError::Target(format!("{target}: cannot connect: {error}")))?;
    let requests = plan
        .http
        .then(|| requests::open(load, target, &socket, &options.headers))
        .transpose()
        .map_err(|error| RunError::Target(format!("{target}: {error}")))?;
    let (source, cycle) = load.source(number);
    Ok(Connection {
        socket,
        source,
        requests,
        sent: SentStream {
            connection: number,
            composed: 0,
            skipped: Vec::with_capacity(1024),
            cycle,
        },
    })
}

fn check_repeat(load: &Load, options: &Options, connection: &Connection) -> Result<(), RunError> {
    let Some(cycle) = connection.sent.cycle else {
        return Ok(());
    };
    let connections = f64::from(load.profile.connections);
    let bytes = load.profile.prebuilt.0 as f64 / connections;
    let (Some(rate), Some(duration)) = (load.profile.rate, options.duration) else {
        return Err(RunError::Usage(
            "no-repeat: a prebuilt load needs a rate and a duration to know that it will not repeat".into(),
        ));
    };
    let units = rate.per_second * duration.as_secs_f64() / connections;
    let fits = match rate.unit {
        RateUnit::Bytes => units <= bytes,
        // Every packet has at least one message.
        RateUnit::Packets | RateUnit::Messages => units <= cycle as f64,
    };
    if fits {
        Ok(())
    } else {
        Err(RunError::Usage(format!(
            "no-repeat: {units:.0} {} in {duration:?} per connection do not fit the prebuilt {} packets ({bytes:.0} bytes); \
             raise `prebuilt`, or use mode composed",
            rate.unit.name(),
            cycle
        )))
    }
}

/// All sending threads of a run.
struct SendingThreads {
    load: Load,
    options: Options,
    plan: Plan,
    stop: Arc<AtomicBool>,
}

/// Totals of the threads.
struct Sum {
    tally: Tally,
    lateness: Lateness,
    sent: Vec<SentStream>,
    markers: Vec<Marker>,
    scheduled: f64,
    gso: bool,
}

impl SendingThreads {
    fn run(&self, shares: Vec<Share>) -> (Report, Option<RunError>) {
        let target = &self.options.target;
        let mut kernel_drops = target.kernel_drops();
        let started_unix_ns = clock::unix_ns();
        let send_buffer = shares.last().map_or(0, |share| share.send_buffer);
        let (sum, error) = self.send(shares);
        let kernel_drops = kernel_drops.until_now();
        let report = self.report(sum, send_buffer, started_unix_ns, kernel_drops);
        (report, error)
    }

    fn send(&self, shares: Vec<Share>) -> (Sum, Option<RunError>) {
        let mut sum = Sum {
            tally: Tally::default(),
            lateness: Lateness::new(),
            sent: Vec::new(),
            markers: Vec::new(),
            scheduled: 0.0,
            gso: self.options.gso,
        };
        let mut error = None;
        let barrier = &Barrier::new(shares.len());
        std::thread::scope(|scope| {
            let threads: Vec<_> = shares
                .into_iter()
                .enumerate()
                .map(|(index, share)| scope.spawn(move || self.work(index, share, barrier)))
                .collect();
            for thread in threads {
                let (worker, result) = thread.join().expect("a sender does not panic");
                if let Err(failure) = result {
                    error.get_or_insert(failure);
                }
                self.add(&mut sum, worker);
            }
        });
        sum.sent.sort_by_key(|sent| sent.connection);
        (sum, error)
    }

    /// One thread, from its start to its end.
    fn work(&self, index: usize, share: Share, barrier: &Barrier) -> (Worker<'_>, Result<(), RunError>) {
        let mut worker = self.worker(index, share);
        clock::precise_timers();
        let pinned = match self.options.cpus.as_slice() {
            [] => Ok(()),
            cpus => {
                let which = cpus[index % cpus.len()];
                process::pin(&[which]).map_err(|error| RunError::Usage(format!("--cpu {which}: {error}")))
            }
        };
        barrier.wait();
        let mut ready = pinned;
        if self.load.profile.first_pass_at_once {
            let start = Instant::now();
            ready = ready.and_then(|()| worker.first_pass(start));
            barrier.wait();
            worker.tally.first_pass = start.elapsed();
        }
        let end = self.options.duration.unwrap_or(Duration::MAX);
        let result = ready.and_then(|()| worker.run(Instant::now(), end));
        if result.is_err() {
            self.stop.store(true, Relaxed);
        }
        (worker, result)
    }

    fn worker(&self, index: usize, share: Share) -> Worker<'_> {
        let rooms = share
            .connections
            .iter()
            .map(|connection| connection.source.room());
        let room = rooms.max().unwrap_or(0) + 4 + SPARE;
        // Space for a system call's worth of 8 KiB packets. It stays in the second-level cache between composing and sending. Half of it,
        // with half as many packets per call, cost 7 % more per packet.
        let buffer = (600 << 10).clamp(room, room * BATCH);
        Worker {
            load: &self.load,
            options: &self.options,
            connections: share.connections,
            schedule: share.schedule,
            quantum: self.plan.quantum,
            skip: self.plan.skip,
            framing: self.plan.framing,
            gso: self.options.gso,
            progress: share.progress,
            stop: self.stop.clone(),
            batch: crate::sys::SendBatch::new(),
            buffer: vec![0; buffer],
            spans: Vec::with_capacity(BATCH),
            dues: Vec::with_capacity(BATCH),
            lateness: Lateness::new(),
            tally: Tally::default(),
            count: share.count,
            markers: Vec::with_capacity(4096),
            sends_markers: index == 0,
        }
    }

    fn add(&self, sum: &mut Sum, worker: Worker<'_>) {
        let end = self.options.duration.unwrap_or(Duration::MAX);
        let scheduled = worker.schedule.scheduled(worker.tally.elapsed.min(end));
        // A count may be reached before the end of the schedule.
        sum.scheduled += match self.options.count {
            Some(_) => scheduled.min(worker.tally.units_due),
            None => scheduled,
        };
        sum.gso &= worker.gso;
        sum.tally.add(&worker.tally);
        sum.lateness.merge(&worker.lateness);
        sum.sent
            .extend(worker.connections.into_iter().map(|connection| connection.sent));
        sum.markers.extend(worker.markers);
    }

    fn report(
        &self,
        sum: Sum,
        send_buffer: usize,
        started_unix_ns: u64,
        kernel_drops: Option<u64>,
    ) -> Report {
        let mut report = Report {
            unit: self.load.profile.rate_unit(),
            scheduled: sum.scheduled,
            send_buffer,
            markers: sum.markers,
            sent: sum.sent,
            started_unix_ns,
            threads: self.plan.threads,
            kernel_drops,
            gso: sum.gso,
            ..Report::default()
        };
        report.add(&sum.tally, &sum.lateness);
        report
    }
}

/// Runs a load to its end.
pub fn run(load: &Load, options: &Options) -> Result<(Report, Option<RunError>), RunError> {
    Ok(start(load, options)?.finish())
}

/// Whether connections send different contexts, so that gauges have one last value.
pub fn split(load: &Load) -> bool {
    load.profile.connections == 1 || load.profile.connection_contexts == Sharing::Split
}
