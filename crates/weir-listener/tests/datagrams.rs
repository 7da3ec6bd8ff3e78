//! Datagram listeners on real sockets.

use crate::support;

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use support::{Harness, config};
use weir_listener::{Address, BindErrorKind, EventLoop, ListenerConfig, ListenerId, bind, bind_group};
use weir_listener::{ListenerCounter, LoopCounter};

/// A socket that overflows soon, however much this machine gives one by default.
fn small_buffer(address: &str) -> ListenerConfig {
    let mut asked = config(address);
    asked.receive_buffer_bytes = Some(200_000);
    asked
}

#[test]
fn udp_v4_and_v6_and_unix_datagrams_arrive_whole() {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = Harness::new();
    let v4 = harness.listen(&config("udp://127.0.0.1:0"));
    // Some machines have no IPv6.
    let v6 = support::has_address("[::1]:0").then(|| harness.listen(&config("udp://[::1]:0")));
    let path = directory.path().join("dsd.socket");
    let unix = harness.listen(&config(&format!("unixgram://{}", path.display())));

    let largest_udp = vec![b'x'; 65507];
    for (id, bind) in [(Some(v4), "127.0.0.1:0"), (v6, "[::1]:0")] {
        let Some(id) = id else { continue };
        let sender = UdpSocket::bind(bind).unwrap();
        let to = harness.socket_address(id);
        sender.send_to(b"a:1|c", to).unwrap();
        sender.send_to(b"", to).unwrap();
        if id == v4 {
            sender.send_to(&largest_udp, to).unwrap();
        }
    }
    let sender = UnixDatagram::unbound().unwrap();
    sender.send_to(b"b:1|c\nc:2|c", &path).unwrap();
    sender.send_to(&vec![b'y'; 65536], &path).unwrap();

    let expected = if v6.is_some() { 7 } else { 5 };
    harness.run_until(|seen| seen.len() >= expected);
    let of = |id: ListenerId| -> Vec<&[u8]> {
        harness
            .seen
            .iter()
            .filter(|p| p.listener == id)
            .map(|p| p.bytes.as_slice())
            .collect()
    };
    assert_eq!(of(v4), [b"a:1|c".as_slice(), b"", &largest_udp]);
    if let Some(v6) = v6 {
        assert_eq!(of(v6), [b"a:1|c".as_slice(), b""]);
    }
    assert_eq!(of(unix), [b"b:1|c\nc:2|c".as_slice(), &[b'y'; 65536]]);
    assert!(harness.seen.iter().all(|p| !p.truncated && p.origin.is_none()));
    assert_eq!(harness.events.counters(unix)[ListenerCounter::Packets], 2);
    assert_eq!(harness.events.counters(unix)[ListenerCounter::Bytes], 65536 + 11);
    assert!(matches!(harness.address(v4), Address::Udp { port, .. } if port != 0));
}

#[test]
fn drops_of_the_kernel_are_counted_and_agree_with_its_table() {
    let mut harness = Harness::new();
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        if !support::has_address(bind) {
            continue;
        }
        let id = harness.listen(&small_buffer(&format!("udp://{bind}")));
        let to = harness.socket_address(id);
        let sender = UdpSocket::bind(bind).unwrap();
        // Far more than the buffer holds, with nobody reading.
        const SENT: u64 = 3000;
        for _ in 0..SENT {
            sender.send_to(&[b'x'; 1000], to).unwrap();
        }
        support::raw::wait_for_loopback();
        harness.events.refresh_drops().unwrap();
        let dropped = harness.events.counters(id)[ListenerCounter::KernelDropped];
        assert!(dropped > 1000 && dropped < SENT, "{dropped}");
        harness.run_until_loop(|h| {
            let counters = h.events.counters(id);
            counters[ListenerCounter::Packets] + counters[ListenerCounter::KernelDropped] == SENT
        });
        // While others close sockets, the kernel's table can miss one.
        let mut checks = (0..20).map(|_| harness.events.cross_check_drops(id).unwrap());
        let check = checks.find_map(|check| check).unwrap();
        assert!(
            check.agrees() && check.counted == dropped && u64::from(check.table) == dropped,
            "{check:?}"
        );
    }
}

#[test]
fn a_batch_reports_drops() {
    let mut harness = Harness::new();
    let id = harness.listen(&small_buffer("udp://127.0.0.1:0"));
    let to = harness.socket_address(id);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..3000 {
        sender.send_to(&[b'x'; 1000], to).unwrap();
    }
    support::raw::wait_for_loopback();
    harness.run_until_loop(|h| {
        h.events.counters(id)[ListenerCounter::ReceiveCallsEmpty] > 0
            || h.events.loop_counters()[LoopCounter::Polls] > 8
    });
    assert_eq!(
        harness.events.counters(id)[ListenerCounter::KernelDropped],
        0,
        "known only behind a later datagram"
    );
    sender.send_to(b"last", to).unwrap();
    harness.run_until(|seen| seen.last().is_some_and(|p| p.bytes == b"last"));
    let counters = harness.events.counters(id);
    assert_eq!(
        counters[ListenerCounter::Packets] + counters[ListenerCounter::KernelDropped],
        3001
    );
}

#[test]
fn a_datagram_longer_than_a_slot_is_marked_and_counted_and_its_neighbours_are_whole() {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = Harness::new();
    let path = directory.path().join("dsd.socket");
    let id = harness.listen(&config(&format!("unixgram://{}", path.display())));
    let sender = UnixDatagram::unbound().unwrap();
    let long: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
    for bytes in [b"before:1|c".as_slice(), &long, b"after:1|c"] {
        sender.send_to(bytes, &path).unwrap();
    }
    harness.run_until(|seen| seen.len() == 3);
    let truncated: Vec<bool> = harness.seen.iter().map(|p| p.truncated).collect();
    assert_eq!(truncated, [false, true, false]);
    assert_eq!(harness.seen[0].bytes, b"before:1|c");
    assert_eq!(harness.seen[1].bytes, long[..65536]);
    assert_eq!(harness.seen[2].bytes, b"after:1|c");
    let counters = harness.events.counters(id);
    assert_eq!(counters[ListenerCounter::Truncated], 1);
    // As many lines as `a:1|c` and a newline fit into what is not there.
    assert_eq!(
        counters[ListenerCounter::TruncatedLinesMax],
        (100_000 - 65_536 + 1) / 6
    );
}

/// The longest packet once had no effect on datagrams.
#[test]
fn a_datagram_longer_than_the_longest_packet_is_cut() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dsd.socket");
    for address in [
        "udp://127.0.0.1:0".to_owned(),
        format!("unixgram://{}", path.display()),
    ] {
        let mut asked = config(&address);
        asked.max_packet_bytes = 64;
        let mut harness = Harness::new();
        let id = harness.listen(&asked);
        let lines = "a:1|c\n".repeat(20);
        let fits = "b".repeat(64);
        for text in [&lines, &fits] {
            match harness.address(id) {
                Address::UnixDatagram(path) => {
                    UnixDatagram::unbound()
                        .unwrap()
                        .send_to(text.as_bytes(), path)
                        .unwrap();
                }
                _ => {
                    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                    socket
                        .send_to(text.as_bytes(), harness.socket_address(id))
                        .unwrap();
                }
            }
        }
        harness.run_until(|seen| seen.len() == 2);
        assert_eq!(harness.seen[0].bytes, lines.as_bytes()[..64]);
        assert_eq!(harness.seen[1].bytes, fits.as_bytes());
        assert_eq!(
            (harness.seen[0].truncated, harness.seen[1].truncated),
            (true, false)
        );
        let counters = harness.events.counters(id);
        // Ten lines and four bytes of the eleventh fit; nine whole ones do not.
        assert_eq!(
            (
                counters[ListenerCounter::Truncated],
                counters[ListenerCounter::TruncatedLinesMax],
                counters[ListenerCounter::Bytes]
            ),
            (1, 9, 128)
        );
    }
}

#[test]
fn credentials_come_with_each_datagram_when_requested() {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = Harness::new();
    let path = directory.path().join("dsd.socket");
    let mut asked = config(&format!("unixgram://{}", path.display()));
    asked.pass_credentials = true;
    let id = harness.listen(&asked);
    let sender = UnixDatagram::unbound().unwrap();
    sender.send_to(b"mine:1|c", &path).unwrap();
    let child = support::subprocess("datagrams::child_sends_a_datagram")
        .env("WEIR_TEST_PATH", &path)
        .spawn()
        .unwrap();
    let child_pid = child.id();
    assert!(support::wait(child).success());
    harness.run_until(|seen| seen.len() == 2);
    let (uid, gid) = support::raw::user_and_group();
    let origin = |at: usize| harness.seen[at].origin.unwrap();
    assert_eq!(
        (origin(0).pid as u32, origin(0).uid, origin(0).gid),
        (std::process::id(), uid, gid)
    );
    assert_eq!(
        (harness.seen[1].bytes.as_slice(), origin(1).pid as u32),
        (b"child:1|c".as_slice(), child_pid)
    );
    assert_eq!(harness.events.counters(id)[ListenerCounter::OriginErrors], 0);
}

#[test]
#[ignore = "the other process of credentials_come_with_each_datagram_when_requested"]
fn child_sends_a_datagram() {
    let path = std::env::var_os("WEIR_TEST_PATH").unwrap();
    UnixDatagram::unbound()
        .unwrap()
        .send_to(b"child:1|c", path)
        .unwrap();
}

/// A process that may write to the socket must not be able to fill our descriptor table.
#[test]
fn attached_descriptors_are_closed_and_the_packet_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    for pass_credentials in [false, true] {
        let mut harness = Harness::new();
        // The UDP listener makes the ring ask for drop counters at intervals.
        harness.listen(&config("udp://127.0.0.1:0"));
        let path = directory.path().join("dsd.socket");
        let mut asked = config(&format!("unixgram://{}", path.display()));
        asked.pass_credentials = pass_credentials;
        harness.listen(&asked);
        let sender = UnixDatagram::unbound().unwrap();
        sender.connect(&path).unwrap();
        let attached = std::fs::File::open("/dev/zero").unwrap();
        for _ in 0..5 {
            support::raw::send_with_descriptor(sender.as_fd(), b"a:1|c", attached.as_fd());
        }
        harness.run_until(|seen| seen.len() == 5);
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let zeroes = open.flatten().filter(|fd| {
            std::fs::read_link(fd.path()).is_ok_and(|target| target == std::path::Path::new("/dev/zero"))
        });
        assert_eq!(zeroes.count(), 1, "only ours");
        assert!(
            harness
                .seen
                .iter()
                .all(|p| p.origin.is_some() == pass_credentials)
        );
    }
}

#[test]
fn sockets_of_a_group_share_the_port_and_see_every_packet_once() {
    let group = bind_group(&config("udp://127.0.0.1:0"), 3).unwrap();
    let mut harness = Harness::new();
    let mut ids = Vec::new();
    for (at, socket) in group.into_iter().enumerate() {
        ids.push(ListenerId(at as u16));
        harness.events.add(socket, ids[at]).unwrap();
    }
    let to = harness.socket_address(ids[0]);
    assert!(ids.iter().all(|id| harness.socket_address(*id) == to));
    // The kernel chooses a socket by the sender's address, so it takes several senders to reach all.
    for sender in 0..60 {
        UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .send_to(format!("s{sender}:1|c").as_bytes(), to)
            .unwrap();
    }
    harness.run_until(|seen| seen.len() == 60);
    let mut seen: Vec<&[u8]> = harness.seen.iter().map(|p| p.bytes.as_slice()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 60);
    assert!(
        ids.iter()
            .all(|id| harness.events.counters(*id)[ListenerCounter::Packets] > 0),
        "each socket got some"
    );

    let address = harness.address(ids[0]).to_string();
    let error = bind_group(&config(&address), 2).err().unwrap();
    assert!(
        matches!(error.kind, BindErrorKind::PortInUse),
        "a second agent must not take part of it: {error}"
    );
}

/// One wake-up for every few packets, and no call that finds nothing when a batch came back short.
#[test]
fn a_full_socket_is_emptied_with_few_system_calls() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dsd.socket");
    for address in [
        format!("unixgram://{}", path.display()),
        "udp://127.0.0.1:0".to_owned(),
    ] {
        let mut harness = Harness::new();
        let id = harness.listen(&config(&address));
        let unix = UnixDatagram::unbound().unwrap();
        unix.set_nonblocking(true).unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut sent = 0;
        for _ in 0..100 {
            // As many as the kernel queues: by default ten and one on a Unix socket.
            for _ in 0..40 {
                let result = match harness.address(id) {
                    Address::UnixDatagram(path) => unix.send_to(&[b'x'; 8000], path),
                    _ => udp.send_to(&[b'x'; 200], harness.socket_address(id)),
                };
                match result {
                    Ok(_) => sent += 1,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
            harness.run_until(|seen| seen.len() == sent);
        }
        let calls = harness.events.loop_counters()[LoopCounter::SystemCalls];
        assert!(
            calls * 4 <= sent as u64,
            "{address}: {calls} calls for {sent} packets"
        );
    }
}

#[test]
fn batches_of_long_datagrams_are_short() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dsd.socket");
    let mut events = EventLoop::new(64).unwrap();
    let socket = bind(&config(&format!("unixgram://{}", path.display()))).unwrap();
    events.add(socket, ListenerId(0)).unwrap();
    // Queued datagrams count against the sender's buffer, so one sender cannot fill the queue with long ones.
    let senders: Vec<UnixDatagram> = (0..12).map(|_| UnixDatagram::unbound().unwrap()).collect();
    let mut batches = |length: usize| {
        let mut sent = 0;
        for sender in &senders {
            sender.set_nonblocking(true).unwrap();
            sent += usize::from(sender.send_to(&vec![b'x'; length], &path).is_ok());
        }
        assert!(
            sent > 8,
            "the kernel queues ten by default, and only {sent} were taken"
        );
        let mut batches = Vec::new();
        while batches.iter().sum::<usize>() < sent {
            events
                .turn(Some(support::DEADLINE), &mut |batch| batches.push(batch.len()))
                .unwrap();
        }
        batches
    };
    // The first one cannot know.
    batches(65536);
    assert_eq!(batches(65536)[0], 8);
    batches(100);
    assert!(batches(100)[0] > 8);
}

#[test]
fn another_thread_wakes_a_waiting_loop() {
    let mut events = EventLoop::new(4).unwrap();
    let waker = events.waker();
    let other = std::thread::spawn(move || waker.wake());
    let turn = events.turn(Some(support::DEADLINE), &mut |_| {}).unwrap();
    other.join().unwrap();
    assert!(turn.woken && turn.packets == 0);
    // Once is enough, and it does not stick.
    let turn = events.turn(Some(Duration::ZERO), &mut |_| {}).unwrap();
    assert!(!turn.woken);
    let waker = events.waker();
    waker.wake();
    waker.wake();
    assert!(events.turn(Some(support::DEADLINE), &mut |_| {}).unwrap().woken);
    assert!(!events.turn(Some(Duration::ZERO), &mut |_| {}).unwrap().woken);
}

#[test]
fn packets_arrive_after_memory_was_given_back() {
    let mut harness = Harness::new();
    let id = harness.listen(&config("udp://127.0.0.1:0"));
    let to = harness.socket_address(id);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.send_to(b"a:1|c", to).unwrap();
    harness.run_until(|seen| seen.len() == 1);
    harness.events.release_memory();
    sender.send_to(b"b:1|c", to).unwrap();
    harness.run_until(|seen| seen.len() == 2);
    assert_eq!(harness.seen[1].bytes, b"b:1|c");
}
