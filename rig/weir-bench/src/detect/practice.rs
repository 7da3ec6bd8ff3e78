//! A load, a target and a sink with known behaviour: the target spends as much CPU time per message as configured, and loses messages or dies on
//! request. They measure the detector itself.

use super::capture::{CaptureLine, Labels, Phase};
use clap::{Args, Subcommand};
use std::fs;
use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use weir_rig_base::{clock, signal, socket};

#[derive(Subcommand)]
pub enum PracticeProgram {
    /// Receive lines, spend a known CPU time on each, report the count to a practice sink.
    Target(TargetArgs),
    /// Send numbered lines at a fixed rate and write a manifest.
    Load(LoadArgs),
    /// Add up the targets' counts.
    Sink(SinkArgs),
}

#[derive(Args)]
pub struct TargetArgs {
    /// udp://host:port or unixgram:///path
    #[arg(long)]
    listen: String,
    /// tcp://host:port of a practice sink.
    #[arg(long)]
    forward: Option<String>,
    /// CPU time per message in nanoseconds, receiving included. A target that needs more by itself ends with an error.
    #[arg(long, default_value_t = 5000.0)]
    cost: f64,
    /// Percent to spend in addition; PRACTICE_SLOWDOWN overrides it.
    #[arg(long, default_value_t = 0.0)]
    slowdown: f64,
    /// Execute so many rounds of a loop per message in place of spending a CPU time: a known number of instructions.
    #[arg(long, conflicts_with = "cost")]
    rounds: Option<u64>,
    /// Bytes to keep for the whole life; PRACTICE_RETAIN overrides it.
    #[arg(long, default_value_t = 8 << 20)]
    retain: usize,
    /// Discard every n-th message uncounted.
    #[arg(long)]
    lose_every: Option<u64>,
    /// End with exit code 9 after this many messages.
    #[arg(long)]
    crash_after: Option<u64>,
    /// Never open the socket.
    #[arg(long)]
    never_ready: bool,
    /// Receive buffer of the socket in bytes, to provoke kernel drops.
    #[arg(long)]
    receive_buffer: Option<usize>,
}

#[derive(Args)]
pub struct LoadArgs {
    #[arg(long)]
    to: String,
    #[arg(long, default_value_t = 20_000.0)]
    rate: f64,
    #[arg(long)]
    duration_ms: u64,
    /// Messages per packet.
    #[arg(long, default_value_t = 10)]
    packed: u64,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[arg(long)]
    manifest: PathBuf,
    #[arg(long)]
    capture: Option<PathBuf>,
}

#[derive(Args)]
pub struct SinkArgs {
    /// tcp://host:port for counts of practice targets; lines on the same UDP port are counted as delivered, too.
    #[arg(long)]
    listen: String,
    #[arg(long)]
    report: PathBuf,
}

pub fn run(role: PracticeProgram) -> io::Result<u8> {
    match role {
        PracticeProgram::Target(a) => target(&a),
        PracticeProgram::Load(a) => load(&a).map(|()| 0),
        PracticeProgram::Sink(a) => sink(&a).map(|()| 0),
    }
}

enum Receiver {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

impl Receiver {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Udp(s) => s.recv(buffer),
            Self::Unix(s) => s.recv(buffer),
        }
    }
}

fn variable(name: &str, default: f64) -> f64 {
    std::env::var(name)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

fn target(a: &TargetArgs) -> io::Result<u8> {
    signal::catch_interrupts();
    let retain = variable("PRACTICE_RETAIN", a.retain as f64) as usize;
    // Written, not only reserved, so that it is resident.
    let kept: Vec<u8> = (0..retain).map(|i| i as u8).collect();
    if a.never_ready {
        while !signal::interrupted() {
            thread::sleep(Duration::from_millis(20));
        }
        return Ok(0);
    }
    let mut forward = match &a.forward {
        Some(address) => Some(TcpStream::connect(plain(address))?),
        None => None,
    };
    // A known number of instructions has few of waking up.
    let wait = Some(Duration::from_millis(if a.rounds.is_some() { 1000 } else { 20 }));
    let socket = if let Some(path) = a.listen.strip_prefix("unixgram://") {
        let s = UnixDatagram::bind(path)?;
        s.set_read_timeout(wait)?;
        Receiver::Unix(s)
    } else {
        let s = UdpSocket::bind(plain(&a.listen))?;
        s.set_read_timeout(wait)?;
        if let Some(bytes) = a.receive_buffer {
            socket::set_receive_buffer(&s, bytes)?;
        }
        Receiver::Udp(s)
    };
    let mut buffer = vec![0; 65_536];
    let (mut seen, mut counted) = (0_u64, 0_u64);
    let mut reported = Instant::now();
    let slow_down = variable("PRACTICE_SLOWDOWN", a.slowdown);
    let cost = KnownCost::new(a.cost, slow_down);
    let rounds = a
        .rounds
        .map(|rounds| (rounds as f64 * (1.0 + slow_down / 100.0)) as u64);
    loop {
        match socket.receive(&mut buffer) {
            Ok(n) => {
                for _ in buffer[..n].split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
                    seen += 1;
                    spend(rounds.unwrap_or(0));
                    if a.crash_after.is_some_and(|n| seen >= n) {
                        eprintln!("practice: ending after {seen} messages as requested");
                        return Ok(9);
                    }
                    if a.lose_every.is_none_or(|n| !seen.is_multiple_of(n)) {
                        counted += 1;
                    }
                }
                if rounds.is_none() {
                    cost.spend_for(seen);
                }
            }
            // A stop was requested, and nothing is waiting.
            Err(_) if signal::interrupted() => break,
            Err(_) => {}
        }
        if reported.elapsed() > Duration::from_millis(100) {
            reported = Instant::now();
            if let Some(s) = &mut forward {
                writeln!(s, "{counted}")?;
            }
        }
    }
    if let Some(s) = &mut forward {
        writeln!(s, "{counted}")?;
    }
    black_box(kept);
    match rounds {
        Some(_) => Ok(0),
        None => cost.check(seen).map(|()| 0),
    }
}

/// A CPU time per message that is the same in every run: the target fills up what it used itself, receiving and waking up included.
/// A percentage of its own time would not be a known slow-down: a slower target finds the next packet waiting more often, sleeps less
/// often, and uses less time of its own.
struct KnownCost {
    per_message: f64,
    /// The CPU clock before the first message.
    started_at: u64,
}

impl KnownCost {
    fn new(per_message: f64, slow_down_percent: f64) -> KnownCost {
        KnownCost {
            per_message: per_message * (1.0 + slow_down_percent / 100.0),
            started_at: clock::own_cpu_ns(),
        }
    }

    /// Nanoseconds; below zero where more was spent than `messages` may cost.
    fn left(&self, messages: u64) -> f64 {
        messages as f64 * self.per_message - (clock::own_cpu_ns() - self.started_at) as f64
    }

    /// The next call spends less by the time that this one spends too much.
    fn spend_for(&self, messages: u64) {
        loop {
            let left = self.left(messages);
            if left <= 0.0 {
                return;
            }
            // A round takes more than a nanosecond.
            spend((left / 4.0) as u64 + 50);
        }
    }

    fn check(&self, messages: u64) -> io::Result<()> {
        let excess = -self.left(messages) / (messages as f64 * self.per_message);
        if messages >= 1000 && excess > 0.01 {
            let percent = 100.0 * excess;
            return Err(io::Error::other(format!(
                "the target itself used {percent:.1} % more than {} ns per message: raise --cost",
                self.per_message
            )));
        }
        Ok(())
    }
}

/// Hands one packet to the kernel.
type Send = Box<dyn Fn(&[u8]) -> io::Result<usize>>;

/// A chain of dependent steps that no compiler shortens.
fn spend(rounds: u64) {
    let mut x = rounds;
    for _ in 0..rounds {
        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

fn plain(address: &str) -> &str {
    address.split_once("://").map_or(address, |(_, a)| a)
}

/// Destination of the load.
fn sender(to: &str) -> io::Result<Send> {
    if let Some(path) = to.strip_prefix("unixgram://") {
        let s = UnixDatagram::unbound()?;
        s.connect(path)?;
        return Ok(Box::new(move |b| s.send(b)));
    }
    let s = UdpSocket::bind("127.0.0.1:0")?;
    s.connect(plain(to))?;
    Ok(Box::new(move |b| s.send(b)))
}

/// Messages that a load has sent so far.
struct Sent {
    began: Instant,
    packets: u64,
    refused: u64,
    bytes: u64,
    blocked: Duration,
    digest: u64,
}

/// A send that takes longer was not accepted at once.
const AT_ONCE: Duration = Duration::from_micros(500);
const READ_PERIOD: Duration = Duration::from_millis(20);

fn load(a: &LoadArgs) -> io::Result<()> {
    signal::catch_interrupts();
    let send = sender(&a.to)?;
    let mut readings = a.capture.as_ref().map(fs::File::create).transpose()?;
    let started_unix_ns = clock::unix_ns();
    let mut sent = Sent {
        began: Instant::now(),
        packets: 0,
        refused: 0,
        bytes: 0,
        blocked: Duration::ZERO,
        digest: 0xcbf2_9ce4_8422_2325_u64 ^ a.seed,
    };
    let whole = Duration::from_millis(a.duration_ms);
    let mut next_reading = Duration::ZERO;
    // The same seed gives the same bytes, so the number of packets must not depend on the timing of the last turn.
    let packets_in = |time: Duration| (time.as_secs_f64() * a.rate / a.packed as f64) as u64;
    let total = packets_in(whole);
    let mut read_if_due = |sent: &Sent, is_last: bool| {
        let now = sent.began.elapsed();
        match &mut readings {
            Some(file) if now >= next_reading || is_last => {
                next_reading = now + READ_PERIOD;
                sent.read(a, file)
            }
            _ => Ok(()),
        }
    };
    while sent.packets + sent.refused < total && !signal::interrupted() {
        // A load that was held up sends what is due at once: one reading before that and one after it.
        read_if_due(&sent, false)?;
        let due = packets_in(sent.began.elapsed()).min(total);
        while sent.packets + sent.refused < due {
            sent.packet(a, &send)?;
        }
        read_if_due(&sent, false)?;
        thread::sleep(Duration::from_millis(1));
    }
    read_if_due(&sent, true)?;
    let (scheduled, achieved) = ((total * a.packed) as f64, (sent.packets * a.packed) as f64);
    let verdict = if achieved >= 0.99 * scheduled {
        "on-schedule"
    } else if sent.blocked > whole / 100 {
        "target-limited"
    } else {
        ""
    };
    let manifest = serde_json::json!({
        "version": 1,
        "started_unix_ns": started_unix_ns,
        "totals": {"messages": sent.packets * a.packed, "packets": sent.packets, "bytes": sent.bytes},
        "digest": format!("{:016x}", sent.digest),
        "sending": {
            "elapsed_s": sent.began.elapsed().as_secs_f64(),
            "scheduled": scheduled,
            "achieved": achieved,
            "refused_messages": sent.refused * a.packed,
            "blocked_s": sent.blocked.as_secs_f64(),
            "verdict": verdict,
        },
    });
    fs::write(&a.manifest, manifest.to_string())
}

impl Sent {
    fn packet(&mut self, a: &LoadArgs, send: &Send) -> io::Result<()> {
        let (value, seed) = (self.packets % 1000, a.seed % 97);
        let lines = (0..a.packed).map(|i| format!("practice.{}:{value}|c|#seed:{seed}\n", i % 10));
        let packet: String = lines.collect();
        let before = Instant::now();
        match send(packet.as_bytes()) {
            Ok(n) => {
                self.packets += 1;
                self.bytes += n as u64;
                let mix = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
                self.digest = packet.bytes().fold(self.digest, mix);
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused || e.kind() == io::ErrorKind::NotFound => {
                return Err(e);
            }
            Err(_) => self.refused += 1,
        }
        let took = before.elapsed();
        if took > AT_ONCE {
            self.blocked += took;
        }
        Ok(())
    }

    fn read(&self, a: &LoadArgs, file: &mut fs::File) -> io::Result<()> {
        for (name, v) in [
            ("sent_messages", self.packets * a.packed),
            ("sent_packets", self.packets),
            ("sent_bytes", self.bytes),
        ] {
            let line = CaptureLine {
                t: self.began.elapsed().as_nanos() as u64,
                ph: Phase::Measure,
                m: name.to_owned(),
                k: "counter".to_owned(),
                v: v as f64,
                l: Labels {
                    src: "generator".to_owned(),
                },
            };
            writeln!(file, "{}", serde_json::to_string(&line)?)?;
        }
        Ok(())
    }
}

/// The newest message counts that connected targets reported.
#[derive(Default)]
struct ReportedCounts {
    counts: Vec<u64>,
    connected: usize,
}

/// Time that a stopping sink waits for the last reports of ended targets, which only need to be read.
const LAST_WORDS: Duration = Duration::from_secs(2);

fn sink(a: &SinkArgs) -> io::Result<()> {
    signal::catch_interrupts();
    let listener = TcpListener::bind(plain(&a.listen))?;
    let udp = UdpSocket::bind(plain(&a.listen))?;
    udp.set_read_timeout(Some(Duration::from_millis(20)))?;
    let shared: Arc<(Mutex<ReportedCounts>, Condvar)> = Arc::default();
    let of_streams = shared.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shared = of_streams.clone();
            let mut told = lock(&shared.0);
            let slot = told.counts.len();
            told.counts.push(0);
            told.connected += 1;
            drop(told);
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if let Ok(n) = line.trim().parse() {
                        lock(&shared.0).counts[slot] = n;
                    }
                }
                lock(&shared.0).connected -= 1;
                shared.1.notify_all();
            });
        }
    });
    let mut buffer = vec![0; 65_536];
    let (mut stray, mut bytes) = (0, 0);
    while !signal::interrupted() {
        if let Ok(n) = udp.recv(&mut buffer) {
            stray += buffer[..n]
                .split(|b| *b == b'\n')
                .filter(|l| !l.is_empty())
                .count() as u64;
            bytes += n as u64;
        }
    }
    let told = shared
        .1
        .wait_timeout_while(lock(&shared.0), LAST_WORDS, |told| told.connected > 0);
    let (told, _) = told.unwrap_or_else(PoisonError::into_inner);
    let delivered = told.counts.iter().sum::<u64>() + stray;
    let report =
        serde_json::json!({"delivered_messages": delivered, "received_bytes": bytes + 8 * delivered});
    fs::write(&a.report, report.to_string())
}

fn lock(told: &Mutex<ReportedCounts>) -> MutexGuard<'_, ReportedCounts> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}
