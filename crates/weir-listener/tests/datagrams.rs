//! Datagram listeners on real sockets.

mod support;

use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;

use support::{Harness, config};
use weir_listener::{Address, ListenerId};

#[test]
fn udp_v4_and_v6_and_unix_datagrams_arrive_whole() {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = Harness::new();
    let v4 = harness.listen(&config("udp://127.0.0.1:0"));
    let v6 = harness.listen(&config("udp://[::1]:0"));
    let path = directory.path().join("dsd.socket");
    let unix = harness.listen(&config(&format!("unixgram://{}", path.display())));

    let largest_udp = vec![b'x'; 65507];
    for (id, bind) in [(v4, "127.0.0.1:0"), (v6, "[::1]:0")] {
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

    harness.run_until(|seen| seen.len() >= 7);
    let of = |id: ListenerId| -> Vec<&[u8]> {
        harness
            .seen
            .iter()
            .filter(|p| p.listener == id)
            .map(|p| p.bytes.as_slice())
            .collect()
    };
    assert_eq!(of(v4), [b"a:1|c".as_slice(), b"", &largest_udp]);
    assert_eq!(of(v6), [b"a:1|c".as_slice(), b""]);
    assert_eq!(of(unix), [b"b:1|c\nc:2|c".as_slice(), &[b'y'; 65536]]);
    assert!(harness.seen.iter().all(|p| !p.truncated && p.origin.is_none()));
    assert_eq!(harness.events.counters(unix).packets, 2);
    assert_eq!(harness.events.counters(unix).bytes, 65536 + 11);
    assert!(matches!(harness.address(v4), Address::Udp { port, .. } if port != 0));
}

#[test]
fn drops_of_the_kernel_are_counted_and_agree_with_its_table() {
    let mut harness = Harness::new();
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        let id = harness.listen(&config(&format!("udp://{bind}")));
        let to = harness.socket_address(id);
        let sender = UdpSocket::bind(bind).unwrap();
        // Far more than the buffer holds, with nobody reading.
        const SENT: u64 = 3000;
        for _ in 0..SENT {
            sender.send_to(&[b'x'; 1000], to).unwrap();
        }
        harness.events.refresh_drops().unwrap();
        let dropped = harness.events.counters(id).kernel_dropped;
        assert!(dropped > 1000 && dropped < SENT, "{dropped}");
        harness.run_until_loop(|h| {
            let counters = h.events.counters(id);
            counters.packets + counters.kernel_dropped == SENT
        });
        let check = harness.events.cross_check_drops(id).unwrap().unwrap();
        assert!(
            check.agrees() && check.counted == dropped && u64::from(check.table) == dropped,
            "{check:?}"
        );
    }
}

#[test]
fn a_batch_tells_of_drops_without_being_asked() {
    let mut harness = Harness::new();
    let id = harness.listen(&config("udp://127.0.0.1:0"));
    let to = harness.socket_address(id);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..3000 {
        sender.send_to(&[b'x'; 1000], to).unwrap();
    }
    harness.run_until_loop(|h| {
        h.events.counters(id).receive_calls_empty > 0 || h.events.loop_counters().polls > 8
    });
    assert_eq!(
        harness.events.counters(id).kernel_dropped,
        0,
        "known only behind a later datagram"
    );
    sender.send_to(b"last", to).unwrap();
    harness.run_until(|seen| seen.last().is_some_and(|p| p.bytes == b"last"));
    let counters = *harness.events.counters(id);
    assert_eq!(counters.packets + counters.kernel_dropped, 3001);
}
