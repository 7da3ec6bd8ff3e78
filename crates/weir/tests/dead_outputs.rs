//! Memory and the end of the process while every name is new and two receivers accept connections and never answer.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::support::{self, Agent, status, until};

const MIB: u64 = 1 << 20;

/// Series that are there from the start, of each kind.
const HOT: usize = 50;

struct Rig {
    agent: Agent,
    admin: String,
    socket: UnixDatagram,
    sent: usize,
    _deaf: TcpListener,
    _directory: tempfile::TempDir,
}

impl Rig {
    fn start(memory: u64, bucket: &str, counter_expiry: &str) -> Rig {
        let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = deaf.local_addr().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let config = format!(
            "memory: {memory}\nworkers: 1\nbucket_width: {bucket}\ncounter_expiry: {counter_expiry}\ngrace_period: 1s\nstate_path: {}\nuds: [{}]\noutputs:\n  prometheus: {{}}\n  \
             file: {{path: {}}}\n  influx: {{url: 'http://{address}/write', delivery: {{timeout: 5s}}}}\n  \
             datadog: {{api_key: 0123456789abcdef0123456789abcdef, url: 'http://{address}', delivery: {{timeout: 5s}}}}\n",
            path("state"),
            path("socket"),
            path("points"),
        );
        let agent = Agent::start(&config, &[]);
        let socket = UnixDatagram::unbound().unwrap();
        socket.connect(directory.path().join("socket")).unwrap();
        Rig {
            admin: agent.admin.clone(),
            agent,
            socket,
            sent: 0,
            _deaf: deaf,
            _directory: directory,
        }
    }

    /// A Unix socket pushes back, so nothing is lost on the way.
    fn send(&self, lines: impl Iterator<Item = String>) {
        let mut packet = String::new();
        for line in lines {
            if packet.len() + line.len() > 8000 {
                self.socket.send(packet.as_bytes()).unwrap();
                packet.clear();
            }
            packet += &line;
            packet.push('\n');
        }
        self.socket.send(packet.as_bytes()).unwrap();
    }

    fn hot(&self) {
        let kinds = ["c", "g", "d", "h"];
        self.send((0..4 * HOT).map(|at| format!("hot.{at}:1|{}|#i:{at}", kinds[at % 4])));
    }

    /// Waits for two flushes: one that is under way may not have all that was sent. A flush of a full budget takes seconds of a
    /// processor, so each is waited for by itself.
    fn flushed(&self) {
        let flushes = || status(&self.admin)["flush"]["count"].as_u64().unwrap();
        let before = flushes();
        until("the flush under way has ended", || flushes() > before);
        until("all of it was flushed", || flushes() >= before + 2);
    }

    /// New names.
    fn flood(&mut self, names: usize) {
        let from = self.sent;
        self.send((from..from + names).map(|name| format!("flood.name.{name}:1|c")));
        self.sent += names;
    }
}

fn share<'a>(status: &'a Value, name: &str) -> &'a Value {
    let shares = status["memory"]["shares"].as_array().unwrap();
    shares.iter().find(|share| share["name"] == name).unwrap()
}

/// Reads something of a process again and again until it cannot be read, and keeps the largest.
struct Most {
    most: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Most {
    fn of(mut read: impl FnMut() -> Option<u64> + Send + 'static) -> Most {
        let (most, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (largest, ends) = (most.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed)
                && let Some(now) = read()
            {
                largest.fetch_max(now, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Most { most, stop, thread }
    }

    fn so_far(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.most.load(Ordering::Relaxed)
    }
}

/// Bytes that the program has allocated, as its allocator counts them. `None`: it has ended.
fn allocated(admin: &str) -> Option<u64> {
    let address = admin.trim_start_matches("http://").trim_end_matches('/');
    let mut connection = TcpStream::connect(address).ok()?;
    let request = format!("GET /debug/vars HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    let body = &answer[answer.find('{')?..=answer.rfind('}')?];
    let body: Value = serde_json::from_str(body).ok()?;
    body["memstats"]["allocated"].as_u64()
}

/// The budget covers what is allocated: at the limits of the shares, during the flush and in the stop, which saves the state.
#[test]
fn allocated_bytes_stay_within_the_budget_beside_dead_outputs() {
    const MEMORY: u64 = 48 * MIB;
    // Without zeros: on a busy machine they are more than it can flush, in each of the buckets of a flush.
    let mut rig = Rig::start(MEMORY, "1s", "0");
    let admin = rig.admin.clone();
    let most = Most::of(move || allocated(&admin));
    until("contexts and sums are at their limits", || {
        rig.hot();
        rig.flood(5000);
        let status = status(&rig.admin);
        for share in status["memory"]["shares"].as_array().unwrap() {
            let (used, bytes) = (share["used"].as_u64().unwrap(), share["bytes"].as_u64().unwrap());
            // Contexts are counted once a packet, and may have grown by one. A part that is not used has no share, but empty tables.
            assert!(used <= bytes + (bytes / 64).max(256), "{share}");
        }
        share(&status, "contexts")["events"]["samples_dropped"].as_u64() > Some(0)
            || share(&status, "contexts")["events"]["samples_overflowed"].as_u64() > Some(0)
    });
    rig.flushed();
    let flushed = most.so_far();
    rig.agent.signal("-TERM");
    let (_, _, log) = rig.agent.end();
    assert!(log.contains("state saved for the next process"), "{log}");
    let stopped = most.end();
    println!(
        "{} names: {} KiB until the stop, {} KiB with it",
        rig.sent,
        flushed >> 10,
        stopped >> 10
    );
    assert!(
        stopped <= MEMORY,
        "{stopped} bytes allocated, {flushed} of them before the stop"
    );
}

/// Kilobytes of resident memory. `None`: the process has ended.
fn resident(id: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// In the gate: [`allocated_bytes_stay_within_the_budget_beside_dead_outputs`].
pub fn new_names_beside_dead_outputs(memory: u64) {
    let mut rig = Rig::start(memory * MIB, "5s", "5m");
    let id = rig.agent.id();
    let most = Most::of(move || resident(id));
    for _ in 0..50 {
        rig.hot();
        rig.flood(10_000);
    }
    rig.flushed();
    let flushed = most.so_far();
    let (_, page) = support::weir(&["status", "--admin", &rig.admin]);
    assert!(page.contains("The books balance"), "{page}");
    rig.agent.signal("-TERM");
    let (_, _, log) = rig.agent.end();
    assert!(log.contains("state saved for the next process"), "{log}");
    let most = most.end();
    println!(
        "{memory} MiB: {} MiB resident at most, {} before the stop",
        most >> 10,
        flushed >> 10
    );
    assert!(
        most <= (memory * 5 / 4 + 24) << 10,
        "{memory} MiB: {most} KiB, {flushed} before the stop"
    );
}
