//! The relay to targets of every kind, well-behaved and not.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_output::OutputCounter;
use weir_output::relay::{Block, Port, Relay, RelayLoss, RelaySettings, StreamFraming, TargetStatus};
use weir_protocol::route_slot;

/// Long enough for a loaded machine; reached only by a failure.
const DEADLINE: Duration = Duration::from_secs(60);
const BUFFER_BYTES: usize = 4096;

/// For targets that take everything, if only the machine lets them.
fn patient(targets: Vec<String>) -> RelaySettings {
    RelaySettings {
        timeout: DEADLINE,
        ..settings(targets)
    }
}

fn settings(targets: Vec<String>) -> RelaySettings {
    RelaySettings {
        targets,
        prefixes: Vec::new(),
        only: false,
        linger: Duration::from_millis(1),
        udp_bytes_max: 200,
        uds_bytes_max: 500,
        tcp_framing: StreamFraming::Newline,
        timeout: Duration::from_millis(300),
        eject_after: 2,
        check_interval: Duration::from_millis(50),
        readmit_after: 2,
    }
}

/// A worker's part, without a worker: packs lines as it does.
struct Packer {
    relay: Relay,
    ports: Vec<Port>,
    sent: u64,
    /// By target: lines for which there was no buffer, reported with the next block, as the worker does.
    no_buffer: BTreeMap<usize, u64>,
}

impl Packer {
    fn start(settings: &RelaySettings, memory: u64) -> Self {
        let relay = Relay::start("relay", settings, 1, BUFFER_BYTES, memory);
        let ports = relay.ports(0);
        Self {
            relay,
            ports,
            sent: 0,
            no_buffer: BTreeMap::new(),
        }
    }

    /// Gives each line to its target, in buffers of a few; lines without a buffer are reported with the next.
    fn send(&mut self, lines: &[String]) {
        let routes = self.relay.routes().get();
        let mut of_target: BTreeMap<usize, Vec<&String>> = BTreeMap::new();
        for line in lines {
            of_target
                .entry(routes.target(route_slot(line.as_bytes())))
                .or_default()
                .push(line);
        }
        for (target, lines) in of_target {
            let no_buffer = self.no_buffer.entry(target).or_default();
            for lines in lines.chunks(10) {
                match self.ports[target].buffer() {
                    Some(mut buffer) => {
                        for line in lines {
                            buffer.extend_from_slice(format!("{line}\n").as_bytes());
                        }
                        let count = lines.len() as u64;
                        let block = Block::new(buffer, count, std::mem::take(no_buffer), 0, 0);
                        self.ports[target].push(block).unwrap();
                    }
                    None => *no_buffer += lines.len() as u64,
                }
            }
        }
        self.sent += lines.len() as u64;
    }

    async fn wait(&self, what: &str, done: impl FnMut(&[TargetStatus]) -> bool) -> Vec<TargetStatus> {
        let waited = tokio::time::timeout(DEADLINE, self.relay.wait_for(done)).await;
        let status = self.relay.status();
        assert!(waited.is_ok(), "{what}: {status:#?}");
        self.check(&status);
        status
    }

    fn check(&self, status: &[TargetStatus]) {
        assert!(status.iter().all(TargetStatus::balances), "{status:#?}");
    }

    async fn stop(mut self, grace: Duration) -> Vec<TargetStatus> {
        for (target, no_buffer) in std::mem::take(&mut self.no_buffer) {
            self.ports[target]
                .push(Block::new(Vec::new(), 0, no_buffer, 0, 0))
                .unwrap();
        }
        self.ports.clear();
        self.relay.shutdown(grace).await;
        let status = self.relay.status();
        self.check(&status);
        let rerouted: u64 = status
            .iter()
            .filter_map(|target| target.dropped.get(&RelayLoss::Rerouted))
            .sum();
        let produced: u64 = status.iter().map(|target| target.produced).sum();
        assert_eq!(produced, self.sent + rerouted, "{status:#?}");
        assert!(
            status.iter().all(|target| target.waiting + target.in_flight == 0),
            "{status:#?}"
        );
        status
    }
}

fn lines(round: usize, count: usize) -> Vec<String> {
    (0..count)
        .map(|i| format!("metric.{i}:{round}|c|#env:prod,i:{i}"))
        .collect()
}

fn delivered(status: &[TargetStatus]) -> u64 {
    status.iter().map(|target| target.delivered).sum()
}

/// A hand-over reads the books when no worker runs any more, and each line has to be in them.
#[tokio::test]
async fn lines_are_in_the_books_from_the_push_on() {
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp://{}", target.local_addr().unwrap());
    let mut packer = Packer::start(&patient(vec![address]), 1 << 20);
    packer.send(&lines(0, 30));
    // The target's task has had no turn yet.
    let status = packer.relay.status();
    assert_eq!((status[0].produced, status[0].waiting), (30, 30));
    packer.check(&status);
    // Nor has it had one for counts that travel alone.
    let counts = Block::new(Vec::new(), 0, 5, 7, 11);
    packer.ports[0].push(counts).unwrap();
    packer.sent += 5 + 7;
    let dropped = BTreeMap::from([(RelayLoss::QueueFull, 5), (RelayLoss::TooLong, 7)]);
    let status = packer.relay.status();
    assert_eq!((status[0].produced, status[0].waiting), (42, 30));
    assert_eq!((&status[0].dropped, unmatched(&status)), (&dropped, 11));
    packer.check(&status);
    let status = packer.stop(DEADLINE).await;
    assert_eq!((status[0].produced, delivered(&status)), (42, 30));
    assert_eq!((&status[0].dropped, unmatched(&status)), (&dropped, 11));
}

fn unmatched(status: &[TargetStatus]) -> u64 {
    status[0].counts[OutputCounter::Unmatched]
}

/// Lines received by one target.
type Taken = Arc<Mutex<Vec<String>>>;

fn note(taken: &Taken, packet: &[u8], bytes_max: usize) {
    assert!(
        packet.len() <= bytes_max && packet.ends_with(b"\n"),
        "{}",
        packet.escape_ascii()
    );
    let text = std::str::from_utf8(packet).unwrap();
    taken.lock().unwrap().extend(text.lines().map(str::to_owned));
}

fn udp() -> (String, Taken) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (address, taken) = (
        format!("udp://{}", socket.local_addr().unwrap()),
        Taken::default(),
    );
    let own = taken.clone();
    std::thread::spawn(move || {
        let mut packet = [0; 65536];
        while let Ok(length) = socket.recv(&mut packet) {
            if length > 0 {
                note(&own, &packet[..length], 200);
            }
        }
    });
    (address, taken)
}

fn unix_datagram(path: &Path) -> (String, Taken) {
    let socket = UnixDatagram::bind(path).unwrap();
    let taken = Taken::default();
    let own = taken.clone();
    std::thread::spawn(move || {
        let mut packet = [0; 65536];
        while let Ok(length) = socket.recv(&mut packet) {
            note(&own, &packet[..length], 500);
        }
    });
    (format!("unixgram://{}", path.display()), taken)
}

/// Frames as DogStatsD's streams have them.
fn frames(mut stream: impl Read, taken: &Taken) {
    let mut length = [0; 4];
    while stream.read_exact(&mut length).is_ok() {
        let mut packet = vec![0; u32::from_le_bytes(length) as usize];
        stream.read_exact(&mut packet).unwrap();
        note(taken, &packet, 500);
    }
}

fn unix_stream(path: &Path) -> (String, Taken) {
    let listener = UnixListener::bind(path).unwrap();
    let taken = Taken::default();
    let own = taken.clone();
    std::thread::spawn(move || {
        listener
            .incoming()
            .flatten()
            .for_each(|stream| frames(stream, &own))
    });
    (format!("unix://{}", path.display()), taken)
}

fn tcp(listener: TcpListener) -> (String, Taken) {
    let (address, taken) = (
        format!("tcp://{}", listener.local_addr().unwrap()),
        Taken::default(),
    );
    let own = taken.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let own = own.clone();
            std::thread::spawn(move || {
                let mut text = String::new();
                let mut buffer = [0; 1000];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    text += std::str::from_utf8(&buffer[..n]).unwrap();
                    while let Some(end) = text.find('\n') {
                        own.lock().unwrap().push(text[..end].to_owned());
                        text.drain(..=end);
                    }
                }
            });
        }
    });
    (address, taken)
}

/// The receivers' threads are a little behind the kernel.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + DEADLINE;
    while !done() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_target_gets_whole_lines_and_each_series_has_one() {
    let directory = tempfile::tempdir().unwrap();
    let targets = [
        udp(),
        unix_datagram(&directory.path().join("d")),
        unix_stream(&directory.path().join("s")),
        tcp(TcpListener::bind("127.0.0.1:0").unwrap()),
    ];
    let addresses = targets.iter().map(|(address, _)| address.clone()).collect();
    let mut packer = Packer::start(&patient(addresses), 16 << 20);
    for round in 0..20 {
        packer.send(&lines(round, 100));
        // Slowly enough for a UDP socket's buffer.
        packer
            .wait("delivered", |status| {
                delivered(status) == (round as u64 + 1) * 100
            })
            .await;
    }
    let status = packer.stop(DEADLINE).await;
    assert!(
        status
            .iter()
            .all(|target| target.healthy && target.dropped.is_empty()),
        "{status:#?}"
    );
    let mut homes: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for (at, (_, taken)) in targets.iter().enumerate() {
        until("received", || {
            taken.lock().unwrap().len() as u64 == status[at].delivered
        });
        for line in taken.lock().unwrap().iter() {
            let series = line.split_once(':').unwrap().0.to_owned();
            assert_eq!(*homes.entry(series).or_insert(at), at, "{line}");
            assert!(all.insert(line.clone()), "{line} came twice");
        }
        assert!(status[at].delivered >= 20 * 10, "shares are fair: {status:#?}");
    }
    assert_eq!(all.len(), 2000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tcp_with_lengths() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let taken = Taken::default();
    let own = taken.clone();
    std::thread::spawn(move || {
        listener
            .incoming()
            .flatten()
            .for_each(|stream| frames(stream, &own))
    });
    let form = RelaySettings {
        tcp_framing: StreamFraming::Length,
        ..patient(vec![address])
    };
    let mut packer = Packer::start(&form, 16 << 20);
    packer.send(&lines(0, 300));
    let status = packer.stop(DEADLINE).await;
    assert_eq!(status[0].delivered, 300);
    until("received", || taken.lock().unwrap().len() == 300);
}

/// A target dies: what waits for it and its series go to the others, no line is lost or doubled, and on its return its own series
/// come back to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_target_is_ejected_and_returns() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (
        unix_datagram(&directory.path().join("a")),
        unix_datagram(&directory.path().join("b")),
    );
    let path = directory.path().join("c");
    let addresses = vec![
        first.0.clone(),
        second.0.clone(),
        format!("unixgram://{}", path.display()),
    ];
    let mut packer = Packer::start(&patient(addresses), 16 << 20);
    packer.send(&lines(0, 90));
    let status = packer
        .wait("ejected", |status| status[2].ejected && delivered(status) == 90)
        .await;
    assert!(
        status[2].dropped[&RelayLoss::Rerouted] > 10 && status[2].last_error.is_some(),
        "{status:#?}"
    );
    assert!(status[0].healthy && status[1].healthy);
    packer.send(&lines(1, 90));
    let status = packer
        .wait("delivered by the others", |status| delivered(status) == 180)
        .await;
    assert_eq!(status[2].delivered, 0);
    let before = packer.relay.routes().get();
    // It comes up.
    let third = unix_datagram(&path);
    packer
        .wait("back", |status| status[2].healthy && !status[2].ejected)
        .await;
    let after = packer.relay.routes().get();
    let moved =
        (0..weir_protocol::route::SLOTS as u16).filter(|slot| before.target(*slot) != after.target(*slot));
    assert!(
        moved.clone().all(|slot| after.target(slot) == 2) && moved.count() > 4000,
        "only its own came back"
    );
    packer.send(&lines(2, 90));
    packer
        .wait("delivered by all", |status| delivered(status) == 270)
        .await;
    let status = packer.stop(DEADLINE).await;
    assert!(status[2].delivered > 10, "{status:#?}");
    until("received", || {
        [&first, &second, &third]
            .iter()
            .map(|(_, taken)| taken.lock().unwrap().len())
            .sum::<usize>()
            == 270
    });
    let all: BTreeSet<String> = [first, second, third]
        .iter()
        .flat_map(|(_, taken)| taken.lock().unwrap().clone())
        .collect();
    assert_eq!(all.len(), 270);
}

/// Targets that hang, that nobody listens at, that have no such name, beside a good one: the good one gets its lines at once, the
/// others keep the newest and count the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_delays_another_target() {
    let directory = tempfile::tempdir().unwrap();
    let good = udp();
    // Never read: takes what the kernel holds and no more.
    let hanging = UnixDatagram::bind(directory.path().join("hangs")).unwrap();
    let hanging_stream = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = crate::support::dead_address();
    let addresses = vec![
        good.0.clone(),
        format!("unixgram://{}", directory.path().join("hangs").display()),
        format!("tcp://{}", hanging_stream.local_addr().unwrap()),
        format!("tcp://{dead}"),
        "udp://statsd.invalid:8125".to_owned(),
    ];
    // Without ejection, so that each keeps what is its own; four buffers each.
    let form = RelaySettings {
        eject_after: 0,
        ..settings(addresses)
    };
    let mut packer = Packer::start(&form, 1);
    let of_good = |round: usize| {
        let routes = packer.relay.routes().get();
        lines(round, 500)
            .iter()
            .filter(|line| routes.target(route_slot(line.as_bytes())) == 0)
            .count() as u64
    };
    let share = of_good(0);
    // One buffer at a time is what a port with four of them can always take.
    let mut expected = 0;
    for round in 0..100 {
        for some in lines(round, 500).chunks(50) {
            let routes = packer.relay.routes().get();
            expected += some
                .iter()
                .filter(|line| routes.target(route_slot(line.as_bytes())) == 0)
                .count() as u64;
            packer.send(some);
            packer
                .wait("the good target has its lines", |status| {
                    status[0].delivered == expected
                })
                .await;
        }
    }
    assert_eq!(expected, share * 100);
    let status = packer
        .wait("each has told its fault", |status| {
            [1, 3, 4].iter().all(|at| status[*at].last_error.is_some())
        })
        .await;
    assert!(status[0].dropped.is_empty(), "{status:#?}");
    let error = |at: usize| status[at].last_error.clone().unwrap();
    assert!(error(1).contains("takes nothing"), "{}", error(1));
    assert!(error(3).contains("refused"), "{}", error(3));
    for at in [1, 3, 4] {
        assert!(
            !status[at].healthy
                && status[at].dropped[&RelayLoss::QueueFull] > 0
                && status[at].waiting + status[at].in_flight > 0,
            "{at}: {status:#?}"
        );
    }
    drop(hanging);
    let status = packer.stop(Duration::from_millis(100)).await;
    assert!(status[3].dropped[&RelayLoss::Shutdown] > 0, "{status:#?}");
}

/// A stream breaks in the middle of a packet: whole lines are not repeated, the cut one is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_restarts_gets_the_rest() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let again = listener.try_clone().unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let mut packer = Packer::start(&settings(vec![address]), 16 << 20);
    packer.send(&lines(0, 10));
    let (mut stream, _) = listener.accept().unwrap();
    packer
        .wait("taken by the kernel", |status| status[0].delivered == 10)
        .await;
    let mut text = vec![0; 10];
    stream.read_exact(&mut text).unwrap();
    drop(stream);
    // The relay sees that the connection has ended before it writes into it.
    let (_, taken) = tcp(again);
    packer.send(&lines(1, 10));
    packer.wait("delivered", |status| status[0].delivered == 20).await;
    until("received", || taken.lock().unwrap().len() == 10);
    let status = packer.stop(DEADLINE).await;
    assert!(
        status[0].counts[OutputCounter::AttemptsFailed] >= 1 && status[0].healthy,
        "{status:#?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_longer_than_a_datagram_is_counted_when_it_changes_targets() {
    let directory = tempfile::tempdir().unwrap();
    let good = udp();
    let addresses = vec![
        good.0.clone(),
        format!("unixgram://{}", directory.path().join("none").display()),
    ];
    let mut packer = Packer::start(&settings(addresses), 16 << 20);
    let long = |i: usize| format!("long.{i}:1|c|#{}", "x".repeat(300));
    let routes = packer.relay.routes().get();
    let of_other: Vec<String> = (0..20)
        .map(long)
        .filter(|line| routes.target(route_slot(line.as_bytes())) == 1)
        .collect();
    packer.send(&of_other);
    let count = of_other.len() as u64;
    packer
        .wait("moved and dropped", |status| {
            status[0].dropped.get(&RelayLoss::TooLong) == Some(&count)
        })
        .await;
    let status = packer.stop(DEADLINE).await;
    assert_eq!(status[1].dropped[&RelayLoss::Rerouted], count);
}
