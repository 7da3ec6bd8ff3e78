//! Several senders at full speed: nobody is starved, and a drain loses nothing the kernel had accepted.

mod support;

use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use support::config;
use weir_listener::{Address, Batch, EventLoop, Framing, ListenerConfig, ListenerId, bind};

const SENDERS: u64 = 4;

/// A loop that counts instead of remembering.
struct Counter {
    events: EventLoop,
    /// For each listener and sender, the sequence numbers seen: how many, and the highest. Packets carry sender and
    /// number in their first bytes.
    seen: Vec<[Sequence; SENDERS as usize]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sequence {
    count: u64,
    last: u64,
    disordered: bool,
}

fn payload(sender: u64, number: u64, length: usize) -> Vec<u8> {
    let mut bytes = format!("{sender:02}{number:012}").into_bytes();
    bytes.resize(length, b'x');
    bytes
}

impl Counter {
    fn new() -> Self {
        Self {
            events: EventLoop::new(64).unwrap(),
            seen: Vec::new(),
        }
    }

    fn listen(&mut self, config: &ListenerConfig) -> (ListenerId, Address) {
        let id = ListenerId(self.seen.len() as u16);
        let socket = bind(config).unwrap();
        let address = socket.address().clone();
        self.events.add(socket, id).unwrap();
        self.seen.push(Default::default());
        (id, address)
    }

    fn turn(&mut self) -> u64 {
        let seen = &mut self.seen;
        let mut handle = |batch: Batch<'_>| {
            for packet in batch {
                let seen = &mut seen[usize::from(packet.listener.0)];
                let number = |range: std::ops::Range<usize>| -> u64 {
                    std::str::from_utf8(&packet.bytes[range])
                        .unwrap()
                        .parse()
                        .unwrap()
                };
                let sequence = &mut seen[number(0..2) as usize];
                let number = number(2..14);
                sequence.disordered |= sequence.count > 0 && number <= sequence.last;
                sequence.count += 1;
                sequence.last = number;
            }
        };
        self.events
            .turn(Some(Duration::from_millis(5)), &mut handle)
            .unwrap()
            .packets
    }

    #[track_caller]
    fn until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + support::DEADLINE;
        while !done(self) {
            assert!(Instant::now() < deadline, "not in time");
            self.turn();
        }
    }

    fn packets(&self, id: ListenerId) -> u64 {
        self.events.counters(id).packets
    }
}

/// What a sender got rid of.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// Packets the kernel took completely.
    packets: u64,
    /// For streams: bytes the receiving kernel took.
    bytes: u64,
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

/// Sends as fast as it goes until told to stop or until the other side refuses.
fn flood(address: Address, sender: u64, length: usize, stop: Arc<AtomicBool>) -> JoinHandle<Sent> {
    std::thread::spawn(move || {
        let mut sent = Sent { packets: 0, bytes: 0 };
        let going = || !stop.load(Ordering::Relaxed);
        match address {
            Address::Udp { host, port } => {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                while going() {
                    socket
                        .send_to(&payload(sender, sent.packets, length), (host.as_str(), port))
                        .unwrap();
                    sent.packets += 1;
                }
            }
            Address::UnixDatagram(path) => {
                let socket = UnixDatagram::unbound().unwrap();
                socket.connect(path).unwrap();
                while going() && socket.send(&payload(sender, sent.packets, length)).is_ok() {
                    sent.packets += 1;
                }
            }
            Address::UnixStream(path) => {
                let mut stream = UnixStream::connect(path).unwrap();
                stream.set_nonblocking(true).unwrap();
                stream_flood(&mut stream, sender, length, &going, &mut sent);
            }
            Address::Tcp { host, port } => {
                let mut stream = TcpStream::connect((host.as_str(), port)).unwrap();
                stream.set_nonblocking(true).unwrap();
                stream_flood(&mut stream, sender, length, &going, &mut sent);
                // What our kernel took is not what theirs took; only theirs is told apart by acknowledgements.
                sent.bytes -= support::raw::unacknowledged_bytes(stream.as_fd());
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        sent
    })
}

fn stream_flood(
    stream: &mut impl Write,
    sender: u64,
    length: usize,
    going: &impl Fn() -> bool,
    sent: &mut Sent,
) {
    'frames: loop {
        let bytes = frame(&payload(sender, sent.packets, length));
        let mut at = 0;
        while at < bytes.len() {
            if !going() {
                break 'frames;
            }
            match stream.write(&bytes[at..]) {
                Ok(count) => {
                    at += count;
                    sent.bytes += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(_) => break 'frames,
            }
        }
        sent.packets += 1;
    }
}

struct Place {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    Place {
        _directory: directory,
        path,
    }
}

/// Begins the drain while all senders are at full speed, and ends it with them stopped or refused.
fn drain_under_load(config: &ListenerConfig, length: usize) -> (Counter, ListenerId, Vec<Sent>) {
    let mut counter = Counter::new();
    let (id, address) = counter.listen(config);
    let stop = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| flood(address.clone(), sender, length, stop.clone()))
        .collect();
    counter.until(|c| c.packets(id) > 5000 && c.seen[0].iter().all(|sequence| sequence.count > 0));
    counter.events.begin_drain();
    // What is sent now is refused, and must neither be received nor be missing.
    let refused_since = Instant::now();
    while refused_since.elapsed() < Duration::from_millis(30) && senders.iter().any(|s| !s.is_finished()) {
        std::thread::yield_now();
    }
    stop.store(true, Ordering::Relaxed);
    if matches!(address, Address::UnixDatagram(_)) {
        // Senders that wait for room learn that there will be none by our reading.
        counter.until(|c| c.events.drained());
    }
    let sent = senders.into_iter().map(|sender| sender.join().unwrap()).collect();
    counter.until(|c| c.events.drained());
    assert!(counter.seen[0].iter().all(|sequence| !sequence.disordered));
    (counter, id, sent)
}

fn each_contiguous(counter: &Counter) -> Vec<u64> {
    let counts: Vec<u64> = counter.seen[0].iter().map(|sequence| sequence.count).collect();
    for sequence in &counter.seen[0] {
        assert_eq!(sequence.last + 1, sequence.count, "no gaps: {sequence:?}");
    }
    counts
}

#[test]
fn a_drain_loses_no_unix_datagram() {
    let place = place();
    let (counter, _, sent) = drain_under_load(&config(&format!("unixgram://{}", place.path.display())), 2000);
    assert_eq!(
        each_contiguous(&counter),
        sent.iter().map(|s| s.packets).collect::<Vec<_>>()
    );
    assert!(!place.path.exists(), "the path is free for a successor");
}

#[test]
fn a_drain_accounts_for_every_udp_datagram() {
    let (counter, id, sent) = drain_under_load(&config("udp://127.0.0.1:0"), 500);
    let counters = counter.events.counters(id);
    let total: u64 = sent.iter().map(|s| s.packets).sum();
    assert_eq!(
        counters.packets + counters.kernel_dropped + counters.refused_draining,
        total,
        "{counters:?}"
    );
    assert!(
        counters.refused_draining > 0,
        "senders were still at it: {counters:?}"
    );
}

#[test]
fn a_drain_reads_all_of_every_stream() {
    let place = place();
    let unix = config(&format!("unix://{}", place.path.display()));
    for config in [unix, config("tcp://127.0.0.1:0")] {
        let length = 3000;
        let (counter, id, sent) = drain_under_load(&config, length);
        let received = each_contiguous(&counter);
        let counters = counter.events.counters(id);
        let accepted: u64 = sent.iter().map(|s| s.bytes).sum();
        let handed_over = received.iter().sum::<u64>() * (length as u64 + 4);
        assert_eq!(
            handed_over + counters.bytes_discarded,
            accepted,
            "{counters:?} {sent:?}"
        );
        for (received, sent) in received.iter().zip(&sent) {
            assert_eq!(
                *received,
                sent.bytes / (length as u64 + 4),
                "only the frame that was cut is missing"
            );
        }
        assert_eq!((counters.connections_open, counters.partial_bytes), (0, 0));
    }
}

/// Connections that were made but not accepted when the drain began have sent something as well.
#[test]
fn a_drain_reads_connections_it_has_not_accepted_yet() {
    let place = place();
    for address in [
        format!("unix://{}", place.path.display()),
        "tcp://127.0.0.1:0".to_owned(),
    ] {
        let mut counter = Counter::new();
        let mut asked = config(&address);
        asked.framing = Framing::Newline;
        let (id, address) = counter.listen(&asked);
        let line = [payload(1, 7, 20), b"\ncut".to_vec()].concat();
        let mut keep: Vec<Box<dyn Write>> = Vec::new();
        for _ in 0..100 {
            let mut client: Box<dyn Write> = match &address {
                Address::UnixStream(path) => Box::new(UnixStream::connect(path).unwrap()),
                Address::Tcp { host, port } => Box::new(TcpStream::connect((host.as_str(), *port)).unwrap()),
                _ => unreachable!(),
            };
            client.write_all(&line).unwrap();
            keep.push(client);
        }
        counter.events.begin_drain();
        counter.until(|c| c.events.drained());
        let counters = counter.events.counters(id);
        assert_eq!(
            (
                counters.packets,
                counters.frames_cut,
                counters.connections_accepted
            ),
            (100, 100, 100)
        );
        match &address {
            Address::UnixStream(path) => assert!(UnixStream::connect(path).is_err()),
            Address::Tcp { host, port } => assert!(TcpStream::connect((host.as_str(), *port)).is_err()),
            _ => unreachable!(),
        }
    }
}

#[test]
fn an_idle_loop_drains_at_once() {
    let place = place();
    let mut counter = Counter::new();
    assert!(!counter.events.drained());
    counter.listen(&config("udp://127.0.0.1:0"));
    counter.listen(&config("tcp://127.0.0.1:0"));
    counter.listen(&config(&format!("unix://{}", place.path.display())));
    counter.listen(&config(&format!("unixgram://{}2", place.path.display())));
    counter.events.begin_drain();
    counter.until(|c| c.events.drained());
    assert!(counter.events.loop_counters().turns < 10);
}

/// While one sender floods, whatever comes to another descriptor is handed over after a bounded number of the
/// flood's bytes, for every pair of transports.
#[test]
fn a_flood_delays_others_by_a_bounded_number_of_bytes() {
    let places = [place(), place(), place()];
    let address = |transport: &str, place: &Place| match transport {
        "udp" | "tcp" => format!("{transport}://127.0.0.1:0"),
        _ => format!("{transport}://{}", place.path.display()),
    };
    for (flooding, quiet) in [
        ("unixgram", "unixgram"),
        ("unix", "unixgram"),
        ("udp", "unix"),
        ("tcp", "tcp"),
        ("unix", "unix"),
    ] {
        let mut counter = Counter::new();
        let (flooded, flood_address) = counter.listen(&config(&address(flooding, &places[0])));
        let (other, other_address) = counter.listen(&config(&address(quiet, &places[1])));
        let stop = Arc::new(AtomicBool::new(false));
        let senders: Vec<_> = (0..2)
            .map(|sender| flood(flood_address.clone(), sender, 8000, stop.clone()))
            .collect();
        let mut client: Box<dyn FnMut(u64)> = match other_address {
            Address::UnixDatagram(path) => {
                let socket = UnixDatagram::unbound().unwrap();
                socket.connect(path).unwrap();
                socket.set_nonblocking(true).unwrap();
                Box::new(move |number| assert_eq!(socket.send(&payload(3, number, 20)).unwrap(), 20))
            }
            Address::UnixStream(path) => {
                let mut stream = UnixStream::connect(path).unwrap();
                Box::new(move |number| stream.write_all(&frame(&payload(3, number, 20))).unwrap())
            }
            Address::Tcp { host, port } => {
                let mut stream = TcpStream::connect((host, port)).unwrap();
                stream.set_nodelay(true).unwrap();
                Box::new(move |number| stream.write_all(&frame(&payload(3, number, 20))).unwrap())
            }
            Address::Udp { .. } => unreachable!(),
        };
        counter.until(|c| c.packets(flooded) > 100);
        let mut worst = 0;
        for number in 0..300 {
            client(number);
            let before = counter.events.counters(flooded).bytes;
            counter.until(|c| c.packets(other) == number + 1);
            worst = worst.max(counter.events.counters(flooded).bytes - before);
        }
        stop.store(true, Ordering::Relaxed);
        counter.events.begin_drain();
        counter.until(|c| c.events.drained());
        for sender in senders {
            sender.join().unwrap();
        }
        // Two looks at epoll may pass: one that was just over, and the one that finds it.
        assert!(worst <= 1 << 20, "{flooding} delayed {quiet} by {worst} bytes");
        assert_eq!(counter.seen[usize::from(other.0)][3].count, 300);
    }
}

/// The same in real time: a thousand messages per second beside a flood, by a sender that does not wait.
#[test]
fn a_thousand_per_second_lose_nothing_beside_a_flood() {
    let place = place();
    for flooding in [
        format!("unixgram://{}", place.path.display()),
        "udp://127.0.0.1:0".to_owned(),
    ] {
        let mut counter = Counter::new();
        let (_, flood_address) = counter.listen(&config(&flooding));
        let (quiet, quiet_address) = counter.listen(&config("udp://127.0.0.1:0"));
        let Address::Udp { port, .. } = quiet_address else {
            unreachable!()
        };
        let stop = Arc::new(AtomicBool::new(false));
        let senders: Vec<_> = (0..2)
            .map(|sender| flood(flood_address.clone(), sender, 8000, stop.clone()))
            .collect();
        let sent = Arc::new(AtomicU64::new(0));
        let paced = {
            let (stop, sent) = (stop.clone(), sent.clone());
            std::thread::spawn(move || {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                let start = Instant::now();
                for number in 0u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    // The clock is the subject here: one message each millisecond, late ones at once.
                    let due = start + Duration::from_millis(number);
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    socket
                        .send_to(&payload(3, number, 100), ("127.0.0.1", port))
                        .unwrap();
                    sent.store(number + 1, Ordering::Relaxed);
                }
            })
        };
        counter.until(|_| sent.load(Ordering::Relaxed) >= 700);
        stop.store(true, Ordering::Relaxed);
        // Unix senders may wait for room until the drain refuses them.
        while !paced.is_finished() || !senders.iter().all(|sender| sender.is_finished()) {
            counter.turn();
        }
        paced.join().unwrap();
        for sender in senders {
            sender.join().unwrap();
        }
        let sent = sent.load(Ordering::Relaxed);
        counter.until(|c| c.packets(quiet) == sent);
        counter.events.refresh_drops().unwrap();
        assert_eq!(counter.events.counters(quiet).kernel_dropped, 0);
        assert_eq!(counter.seen[usize::from(quiet.0)][3].last + 1, sent);
    }
}
