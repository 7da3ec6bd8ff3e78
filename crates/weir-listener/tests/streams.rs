//! Stream listeners on real sockets.

use crate::support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use support::{Harness, config};
use weir_listener::{Address, Framing, ListenerConfig, ListenerId};
use weir_listener::{ListenerCounter, LoopCounter};

/// Either kind of client.
enum Client {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Client {
    fn connect(harness: &Harness, id: ListenerId) -> Self {
        match harness.address(id) {
            Address::UnixStream(path) => Client::Unix(UnixStream::connect(path).unwrap()),
            _ => {
                let stream = TcpStream::connect(harness.socket_address(id)).unwrap();
                stream.set_nodelay(true).unwrap();
                Client::Tcp(stream)
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        match self {
            Client::Tcp(stream) => stream.write_all(bytes).unwrap(),
            Client::Unix(stream) => stream.write_all(bytes).unwrap(),
        }
    }

    /// Waits until the other side has closed.
    #[track_caller]
    fn expect_closed(&mut self) {
        let result = match self {
            Client::Tcp(stream) => {
                stream.set_read_timeout(Some(support::DEADLINE)).unwrap();
                stream.read(&mut [0])
            }
            Client::Unix(stream) => {
                stream.set_read_timeout(Some(support::DEADLINE)).unwrap();
                stream.read(&mut [0])
            }
        };
        match result {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("not closed: {other:?}"),
        }
    }
}

struct Setup {
    harness: Harness,
    id: ListenerId,
    _directory: tempfile::TempDir,
}

/// One listener for each stream transport with the given framing.
fn each_transport(framing: Framing, change: impl Fn(&mut ListenerConfig)) -> Vec<Setup> {
    [true, false]
        .into_iter()
        .map(|unix| {
            let directory = tempfile::tempdir().unwrap();
            let mut asked = if unix {
                config(&format!(
                    "unix://{}",
                    directory.path().join("stream.socket").display()
                ))
            } else {
                config("tcp://127.0.0.1:0")
            };
            asked.framing = framing;
            change(&mut asked);
            let mut harness = Harness::new();
            let id = harness.listen(&asked);
            Setup {
                harness,
                id,
                _directory: directory,
            }
        })
        .collect()
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

fn packets(harness: &Harness) -> Vec<&[u8]> {
    harness.seen.iter().map(|p| p.bytes.as_slice()).collect()
}

fn lines(harness: &Harness) -> Vec<u8> {
    harness
        .seen
        .iter()
        .flat_map(|p| p.bytes.iter().copied())
        .collect()
}

#[test]
fn frames_whole_cut_and_in_single_bytes() {
    for Setup { mut harness, id, .. } in each_transport(Framing::LengthPrefixed, |_| {}) {
        let mut client = Client::connect(&harness, id);
        client.send(&[frame(b"a:1|c"), frame(b""), frame(&[b'x'; 8192])].concat());
        harness.run_until(|seen| seen.len() == 2);
        let counters = harness.events.counters(id);
        assert_eq!(
            (
                counters[ListenerCounter::FramesEmpty],
                counters[ListenerCounter::PartialBytes]
            ),
            (1, 0)
        );

        for byte in frame(b"slow:1|c") {
            let calls = harness.events.counters(id)[ListenerCounter::ReceiveCalls];
            client.send(&[byte]);
            // Each byte is read by itself.
            harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ReceiveCalls] > calls);
        }
        harness.run_until(|seen| seen.len() == 3);
        assert_eq!(
            packets(&harness),
            [b"a:1|c".as_slice(), &[b'x'; 8192], b"slow:1|c"]
        );

        client.send(&frame(b"never complete")[..10]);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::PartialBytes] == 10);
        drop(client);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsOpen] == 0);
        let counters = harness.events.counters(id);
        assert_eq!(
            (
                counters[ListenerCounter::FramesCut],
                counters[ListenerCounter::BytesDiscarded],
                counters[ListenerCounter::PartialBytes]
            ),
            (1, 10, 0)
        );
        assert_eq!(
            (
                counters[ListenerCounter::Packets],
                counters[ListenerCounter::Bytes]
            ),
            (3, 5 + 8192 + 8)
        );
        assert_eq!(
            harness.events.partial_bytes_held(),
            64,
            "one small piece in reserve"
        );
    }
}

#[test]
fn a_frame_over_the_limit_ends_its_connection_and_no_other() {
    for Setup { mut harness, id, .. } in each_transport(Framing::LengthPrefixed, |c| c.max_packet_bytes = 100)
    {
        let mut good = Client::connect(&harness, id);
        let mut bad = Client::connect(&harness, id);
        bad.send(
            &[
                frame(b"before:1|c"),
                frame(&[b'x'; 100]),
                frame(&[b'y'; 101]),
                frame(b"lost:1|c"),
            ]
            .concat(),
        );
        bad.expect_closed_by(&mut harness);
        good.send(&frame(b"good:1|c"));
        harness.run_until(|seen| seen.len() == 3);
        assert_eq!(
            packets(&harness),
            [b"before:1|c".as_slice(), &[b'x'; 100], b"good:1|c"]
        );
        let counters = harness.events.counters(id);
        assert_eq!(
            (
                counters[ListenerCounter::FramesTooLong],
                counters[ListenerCounter::FramesCut],
                counters[ListenerCounter::ConnectionsOpen]
            ),
            (1, 0, 1)
        );
        assert_eq!(counters[ListenerCounter::BytesDiscarded], 4 + 101 + 4 + 8);
    }
}

impl Client {
    /// As `expect_closed`, with the loop running until it has.
    fn expect_closed_by(&mut self, harness: &mut Harness) {
        let id = harness.events.listeners().next().unwrap().0;
        let open = harness.events.counters(id)[ListenerCounter::ConnectionsOpen];
        let accepted = harness.events.counters(id)[ListenerCounter::ConnectionsAccepted];
        harness.run_until_loop(|h| {
            let counters = h.events.counters(id);
            counters[ListenerCounter::ConnectionsOpen] < open
                || counters[ListenerCounter::ConnectionsAccepted] > accepted
                    && counters[ListenerCounter::FramesTooLong] > 0
        });
        self.expect_closed();
    }
}

#[test]
fn lines_whole_cut_and_in_single_bytes() {
    for Setup { mut harness, id, .. } in each_transport(Framing::Newline, |c| c.max_packet_bytes = 50) {
        let mut client = Client::connect(&harness, id);
        client.send(b"a:1|c\nb:2|c\r\n\nc:3");
        harness.run_until_loop(|h| lines(h) == b"a:1|c\nb:2|c\r\n\n");
        client.send(b"|c\n");
        for byte in b"slow:1|c\n" {
            let calls = harness.events.counters(id)[ListenerCounter::ReceiveCalls];
            client.send(&[*byte]);
            harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ReceiveCalls] > calls);
        }
        harness.run_until_loop(|h| lines(h) == b"a:1|c\nb:2|c\r\n\nc:3|c\nslow:1|c\n");
        // Exactly the limit, then one more, in pieces, then a good one.
        client.send(&[[b'x'; 50].as_slice(), b"\n", &[b'y'; 40]].concat());
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::PartialBytes] == 40);
        client.send(&[b'y'; 1000]);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::FramesTooLong] == 1);
        assert_eq!(
            harness.events.counters(id)[ListenerCounter::PartialBytes],
            0,
            "what is skipped is not kept"
        );
        client.send(b"still the long one\ngood:1|c\nlast:1|c");
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::PartialBytes] == 8);
        drop(client);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsOpen] == 0);
        let expected = [
            b"a:1|c\nb:2|c\r\n\nc:3|c\nslow:1|c\n".as_slice(),
            &[b'x'; 50],
            b"\ngood:1|c\nlast:1|c",
        ];
        assert_eq!(lines(&harness), expected.concat());
        let counters = harness.events.counters(id);
        assert_eq!(
            (
                counters[ListenerCounter::FramesTooLong],
                counters[ListenerCounter::LinesUnterminated],
                counters[ListenerCounter::FramesCut]
            ),
            (1, 1, 0)
        );
        assert_eq!(counters[ListenerCounter::BytesDiscarded], 1040 + 19);
        assert!(harness.seen.iter().all(|p| p.bytes.len() <= 51));
    }
}

/// A process that is killed while it writes leaves a line behind that may mean something else than the whole one.
#[test]
fn the_rest_of_a_reset_connection_is_not_a_line() {
    let mut asked = config("tcp://127.0.0.1:0");
    asked.framing = Framing::Newline;
    let mut harness = Harness::new();
    let id = harness.listen(&asked);
    let mut client = Client::connect(&harness, id);
    client.send(b"good:1|c\ncut:10");
    harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::PartialBytes] == 6);
    let Client::Tcp(stream) = client else {
        unreachable!()
    };
    support::raw::reset_on_close(stream.as_fd());
    drop(stream);
    harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsOpen] == 0);
    assert_eq!(lines(&harness), b"good:1|c\n");
    let counters = harness.events.counters(id);
    assert_eq!(
        (
            counters[ListenerCounter::FramesCut],
            counters[ListenerCounter::ConnectionsFailed],
            counters[ListenerCounter::ReceiveReset]
        ),
        (1, 1, 1)
    );
}

#[test]
fn connections_over_the_limit_are_closed_and_counted() {
    for Setup { mut harness, id, .. } in each_transport(Framing::LengthPrefixed, |c| c.max_connections = 2) {
        let mut first = Client::connect(&harness, id);
        let second = Client::connect(&harness, id);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsOpen] == 2);
        let mut third = Client::connect(&harness, id);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsRefusedLimit] == 1);
        third.expect_closed();
        drop(second);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsOpen] == 1);
        let mut fourth = Client::connect(&harness, id);
        fourth.send(&frame(b"four"));
        first.send(&frame(b"one"));
        harness.run_until(|seen| seen.len() == 2);
        assert_eq!(
            harness.events.counters(id)[ListenerCounter::ConnectionsAccepted],
            4
        );
    }
}

/// One address once could take all places for as long as it liked.
#[test]
fn an_address_with_all_connections_is_evicted_for_others() {
    let mut asked = config("tcp://127.0.0.1:0");
    asked.max_connections = 4;
    let mut harness = Harness::new();
    let id = harness.listen(&asked);
    let to = harness.socket_address(id);
    let connect = |harness: &mut Harness, last: u8, count: u64| {
        let accepted = harness.events.counters(id)[ListenerCounter::ConnectionsAccepted];
        let client = support::raw::connect_from(std::net::Ipv4Addr::new(127, 0, 0, last), to);
        harness
            .run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsAccepted] == accepted + 1);
        let counters = harness.events.counters(id);
        assert_eq!(
            (
                counters[ListenerCounter::ConnectionsOpen],
                counters[ListenerCounter::ConnectionsClosedCrowded]
            ),
            (4.min(accepted + 1), count)
        );
        Client::Tcp(client)
    };
    let mut greedy: Vec<Client> = (0..4).map(|_| connect(&mut harness, 1, 0)).collect();
    // The first of them is in use, so it is the second that goes.
    greedy[0].send(&frame(b"greedy:1|c"));
    harness.run_until(|seen| seen.len() == 1);
    let mut second = connect(&mut harness, 2, 1);
    greedy.remove(1).expect_closed();
    let mut third = connect(&mut harness, 3, 2);
    greedy.remove(1).expect_closed();
    // Two, one and one: nobody else has a better right than a second one of somebody.
    connect(&mut harness, 2, 2).expect_closed();
    connect(&mut harness, 1, 2).expect_closed();
    assert_eq!(
        harness.events.counters(id)[ListenerCounter::ConnectionsRefusedLimit],
        2
    );
    for client in greedy.iter_mut().chain([&mut second, &mut third]) {
        client.send(&frame(b"there:1|c"));
    }
    harness.run_until(|seen| seen.len() == 5);
}

#[test]
fn idle_connections_end_and_those_in_use_stay() {
    const HOUR: u64 = 3600 * 1_000_000_000;
    for Setup { mut harness, id, .. } in each_transport(Framing::LengthPrefixed, |_| {}) {
        let mut idle = Client::connect(&harness, id);
        let mut dribbling = Client::connect(&harness, id);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsOpen] == 2);
        let begun = weir_listener::Monotonic::now().0;
        // A frame that never ends is no sign of life.
        dribbling.send(&frame(b"never")[..6]);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::PartialBytes] == 6);
        let mut used = Client::connect(&harness, id);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsOpen] == 3);
        while weir_listener::Monotonic::now().0 <= begun + 1_000_000 {
            std::thread::yield_now();
        }
        used.send(&frame(b"used:1|c"));
        harness.run_until(|seen| seen.len() == 1);
        harness
            .events
            .end_idle(weir_listener::Monotonic(begun + HOUR / 2));
        assert_eq!(harness.events.counters(id)[ListenerCounter::ConnectionsOpen], 3);
        // Both were accepted before `begun`; the used one was active a millisecond later.
        harness.events.end_idle(weir_listener::Monotonic(begun + HOUR));
        let counters = harness.events.counters(id);
        assert_eq!(
            (
                counters[ListenerCounter::ConnectionsOpen],
                counters[ListenerCounter::ConnectionsClosedIdle],
                counters[ListenerCounter::FramesCut]
            ),
            (1, 2, 1)
        );
        idle.expect_closed();
        dribbling.expect_closed();
        used.send(&frame(b"used:1|c"));
        harness.run_until(|seen| seen.len() == 2);
    }
}

#[test]
fn the_largest_partial_frame_is_dropped_when_the_budget_is_used_up() {
    for Setup { mut harness, id, .. } in each_transport(Framing::LengthPrefixed, |_| {}) {
        harness.events.set_partial_budget(4096 + 1024 + 64);
        let begin = |harness: &mut Harness, bytes: usize| {
            let mut client = Client::connect(harness, id);
            let held = harness.events.counters(id)[ListenerCounter::PartialBytes];
            client.send(&frame(&[b'x'; 8000])[..bytes]);
            harness.run_until_loop(|h| {
                h.events.counters(id)[ListenerCounter::PartialBytes] == held + bytes as u64
            });
            client
        };
        let mut large = begin(&mut harness, 3000);
        let mut middle = begin(&mut harness, 900);
        // Needs 256, of which only 64 are left.
        let mut small = Client::connect(&harness, id);
        small.send(&frame(&[b'z'; 300])[..200]);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsClosedBudget] == 1);
        large.expect_closed();
        assert!(harness.events.partial_bytes_held() <= harness.events.partial_budget());
        // The others are not affected.
        small.send(&[b'z'; 104]);
        middle.send(&[b'x'; 8000 + 4 - 900]);
        harness.run_until(|seen| seen.len() == 2);
        let mut seen: Vec<usize> = packets(&harness).iter().map(|bytes| bytes.len()).collect();
        seen.sort_unstable();
        assert_eq!(seen, [300, 8000]);
        let counters = harness.events.counters(id);
        assert_eq!(
            (
                counters[ListenerCounter::FramesCut],
                counters[ListenerCounter::BytesDiscarded]
            ),
            (1, 3000)
        );

        // With no budget at all, whole frames still pass, and a connection with a partial one is closed.
        harness.events.set_partial_budget(0);
        small.send(&frame(b"whole"));
        harness.run_until(|seen| seen.len() == 3);
        small.send(&[1]);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsClosedBudget] == 2);
        small.expect_closed();
        let counters = harness.events.counters(id);
        assert_eq!(
            (
                counters[ListenerCounter::FramesCut],
                counters[ListenerCounter::BytesDiscarded],
                counters[ListenerCounter::PartialBytes]
            ),
            (2, 3001, 0)
        );
        assert_eq!(harness.events.partial_bytes_held(), 0);
    }
}

#[test]
#[ignore = "nightly: resident memory; in the gate: the_largest_partial_frame_is_dropped_when_the_budget_is_used_up, which counts bytes"]
fn thousands_of_idle_connections_cost_descriptors_and_little_else() {
    // Two for each connection, and some for the other tests of this process.
    let descriptors = support::raw::limit_descriptors(20_000);
    let rounds = (descriptors.saturating_sub(400) / 200).min(20);
    let connections = 100 * rounds as usize;
    assert!(
        rounds > 0,
        "a limit of {descriptors} descriptors is too low for this test"
    );
    let directory = tempfile::tempdir().unwrap();
    let mut harness = Harness::new();
    let id = harness.listen(&config(&format!(
        "unix://{}",
        directory.path().join("s").display()
    )));
    let mut clients = Vec::new();
    let before = support::resident_bytes();
    for round in 1..=rounds {
        clients.extend((0..100).map(|_| Client::connect(&harness, id)));
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsOpen] == round * 100);
    }
    // All send something once, as clients do, and one begins a frame.
    for client in &mut clients {
        client.send(&frame(b"hello:1|c"));
    }
    harness.run_until(|seen| seen.len() == connections);
    clients[77].send(&[9]);
    harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::PartialBytes] == 1);
    let grown = support::resident_bytes().saturating_sub(before);
    assert!(
        grown < connections * 2048,
        "{} bytes per connection",
        grown / connections
    );
    assert!(harness.events.partial_bytes_held() <= 64);
    // They cost no work either: one busy connection among them needs as few calls as alone.
    let calls = harness.events.loop_counters()[LoopCounter::SystemCalls];
    for _ in 0..50 {
        let seen = harness.seen.len();
        clients[50].send(&[frame(b"busy:1|c"), frame(b"busy:1|c")].concat());
        harness.run_until(|s| s.len() == seen + 2);
    }
    let calls = harness.events.loop_counters()[LoopCounter::SystemCalls] - calls;
    assert!(calls <= 50 * 4, "{calls}");
    drop(clients);
    harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsOpen] == 0);
}

#[test]
fn the_connecting_process_is_the_origin() {
    let directory = tempfile::tempdir().unwrap();
    let mut asked = config(&format!("unix://{}", directory.path().join("s").display()));
    asked.pass_credentials = true;
    let mut harness = Harness::new();
    let id = harness.listen(&asked);
    let mut client = Client::connect(&harness, id);
    client.send(&[frame(b"a:1|c"), frame(b"b:1|c")].concat());
    harness.run_until(|seen| seen.len() == 2);
    let (uid, gid) = support::raw::user_and_group();
    for packet in &harness.seen {
        let origin = packet.origin.unwrap();
        assert_eq!(
            (origin.pid as u32, origin.uid, origin.gid),
            (std::process::id(), uid, gid)
        );
    }
}

/// A socket file that somebody takes away is made again by a new socket: what the old one had accepted is kept, and open
/// connections go on.
#[test]
fn replacing_a_socket_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (stream, datagram) = (directory.path().join("stream"), directory.path().join("datagram"));
    let asked = [
        config(&format!("unix://{}", stream.display())),
        config(&format!("unixgram://{}", datagram.display())),
    ];
    let mut harness = Harness::new();
    let ids = asked.each_ref().map(|asked| harness.listen(asked));
    let mut open = Client::connect(&harness, ids[0]);
    harness.run_until_loop(|h| h.events.counters(ids[0])[ListenerCounter::ConnectionsOpen] == 1);
    let old = std::os::unix::net::UnixDatagram::unbound().unwrap();
    old.connect(&datagram).unwrap();
    // These are in the kernel when the sockets are replaced.
    let mut unaccepted = Client::connect(&harness, ids[0]);
    unaccepted.send(&frame(b"unaccepted:1|c"));
    old.send(b"queued:1|c").unwrap();
    for (asked, id) in asked.iter().zip(ids) {
        std::fs::remove_file(asked.address.path().unwrap()).unwrap();
        let socket = weir_listener::bind(asked).unwrap();
        assert!(socket.file_id().is_some());
        harness.replace(id, socket);
    }
    assert!(old.send(b"lost").is_err(), "it has to connect again");
    old.connect(&datagram).unwrap();
    old.send(b"again:1|c").unwrap();
    open.send(&frame(b"open:1|c"));
    let mut new = Client::connect(&harness, ids[0]);
    new.send(&frame(b"new:1|c"));
    harness.run_until(|seen| seen.len() == 5);
    let mut seen: Vec<&[u8]> = packets(&harness);
    seen.sort_unstable();
    let expected: [&[u8]; 5] = [
        b"again:1|c",
        b"new:1|c",
        b"open:1|c",
        b"queued:1|c",
        b"unaccepted:1|c",
    ];
    assert_eq!(seen, expected);
    harness.drain();
    assert!(!stream.exists() && !datagram.exists());
}

#[test]
fn descriptors_used_up() {
    assert!(
        support::wait(
            support::subprocess("streams::child_without_descriptors")
                .spawn()
                .unwrap()
        )
        .success()
    );
}

/// With no descriptor left, connections are refused one by one, the loop does not spin, and the connections there are
/// go on; with descriptors again, so do new ones.
#[test]
#[ignore = "the other process of descriptors_used_up"]
fn child_without_descriptors() {
    for Setup { mut harness, id, .. } in each_transport(Framing::LengthPrefixed, |_| {}) {
        let mut good = Client::connect(&harness, id);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsOpen] == 1);
        // Connected while there are descriptors, to be accepted when there are none.
        let mut refused: Vec<Client> = (0..3).map(|_| Client::connect(&harness, id)).collect();
        let hog = take_all_descriptors();
        harness
            .run_until_loop(|h| h.events.counters(id)[ListenerCounter::ConnectionsRefusedDescriptors] == 3);
        for client in &mut refused {
            client.expect_closed();
        }
        good.send(&frame(b"good:1|c"));
        harness.run_until(|seen| seen.len() == 1);
        let counters = harness.events.counters(id);
        assert_eq!(
            (
                counters[ListenerCounter::AcceptErrors],
                counters[ListenerCounter::AcceptPauses],
                counters[ListenerCounter::ConnectionsOpen]
            ),
            (3, 0, 1)
        );
        let polls = harness.events.loop_counters()[LoopCounter::Polls];
        for _ in 0..3 {
            harness.turn();
        }
        assert!(
            harness.events.loop_counters()[LoopCounter::Polls] - polls <= 3,
            "waits for events"
        );
        drop(hog);
        let mut late = Client::connect(&harness, id);
        late.send(&frame(b"late:1|c"));
        harness.run_until(|seen| seen.len() == 2);
    }
}

fn take_all_descriptors() -> Vec<std::fs::File> {
    support::raw::limit_descriptors(256);
    std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect()
}

/// The reserve is used up too: accepting pauses and resumes by itself.
#[test]
fn descriptors_used_up_for_long() {
    assert!(
        support::wait(
            support::subprocess("streams::child_without_a_reserve")
                .spawn()
                .unwrap()
        )
        .success()
    );
}

#[test]
#[ignore = "the other process of descriptors_used_up_for_long"]
fn child_without_a_reserve() {
    support::raw::limit_descriptors(256);
    for Setup { mut harness, id, .. } in each_transport(Framing::LengthPrefixed, |_| {}) {
        let mut client = Client::connect(&harness, id);
        client.send(&frame(b"patient:1|c"));
        // A limit below what is open: giving up one descriptor does not help.
        support::raw::limit_descriptors(3);
        harness.run_until_loop(|h| h.events.counters(id)[ListenerCounter::AcceptPauses] >= 2);
        let counters = harness.events.counters(id);
        assert!(
            counters[ListenerCounter::AcceptErrors] <= 2 * counters[ListenerCounter::AcceptPauses],
            "{counters:?}"
        );
        let calls = harness.events.loop_counters()[LoopCounter::SystemCalls];
        harness.turn();
        assert!(
            harness.events.loop_counters()[LoopCounter::SystemCalls] - calls < 10,
            "does not spin"
        );
        support::raw::limit_descriptors(256);
        if counters[ListenerCounter::ConnectionsRefusedDescriptors] == 0 {
            harness.run_until(|seen| seen.len() == 1);
        } else {
            client.expect_closed();
        }
        let mut late = Client::connect(&harness, id);
        late.send(&frame(b"late:1|c"));
        harness.run_until(|seen| seen.last().is_some_and(|p| p.bytes == b"late:1|c"));
    }
}
