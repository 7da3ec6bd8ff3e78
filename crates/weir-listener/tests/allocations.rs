//! No allocation per packet once things have settled.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{Duration, Instant};

use support::config;
use weir_listener::ListenerCounter;
use weir_listener::{Address, EventLoop, Framing, ListenerId, bind};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// A global allocator cannot be written without `unsafe`; this one only counts.
#[allow(unsafe_code)]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: by the contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: by the contract of this function.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: by the contract of this function.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Sends some packets by one way and returns how many.
type Send = Box<dyn FnMut() -> u64>;

fn framed(newline: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for length in [1000, 30, 8000, 1, 4000] {
        if newline {
            bytes.extend(std::iter::repeat_n(b'x', length));
            bytes.push(b'\n');
        } else {
            bytes.extend((length as u32).to_le_bytes());
            bytes.extend(std::iter::repeat_n(b'x', length));
        }
    }
    bytes
}

/// Bytes of a first, long frame that are sent at a time: so that memory of each size has been in use on all streams at
/// the same time when counting begins.
const FIRST_PIECES: [usize; 6] = [20, 100, 500, 2000, 5000, 8100];

/// Sends a stream in pieces that do not respect its frames.
fn pieces(mut stream: impl Write + 'static, newline: bool) -> Send {
    let mut first = vec![b'y'; 8100];
    if newline {
        first[8099] = b'\n';
    } else {
        first[..4].copy_from_slice(&8096u32.to_le_bytes());
    }
    let mut sent = 0;
    let mut first_pieces = FIRST_PIECES.into_iter();
    let bytes = framed(newline);
    let mut at = 0;
    Box::new(move || {
        if let Some(end) = first_pieces.next() {
            stream.write_all(&first[sent..end]).unwrap();
            sent = end;
            return 0;
        }
        let end = (at + 3333).min(bytes.len());
        stream.write_all(&bytes[at..end]).unwrap();
        at = end % bytes.len();
        0
    })
}

#[test]
fn packets_are_received_without_allocations() {
    let directory = tempfile::tempdir().unwrap();
    let mut events = EventLoop::new(64).unwrap();
    let mut senders: Vec<Send> = Vec::new();
    for (id, address) in ["udp", "unixgram", "unixgram", "unix", "unix", "tcp"]
        .into_iter()
        .enumerate()
    {
        let path = directory.path().join(id.to_string());
        let mut asked = match address {
            "udp" | "tcp" => config(&format!("{address}://127.0.0.1:0")),
            _ => config(&format!("{address}://{}", path.display())),
        };
        asked.pass_credentials = id == 2 || id == 3;
        if id == 4 {
            asked.framing = Framing::Newline;
        }
        let socket = bind(&asked).unwrap();
        let port = match socket.address() {
            Address::Udp { port, .. } | Address::Tcp { port, .. } => *port,
            _ => 0,
        };
        events.add(socket, ListenerId(id as u16)).unwrap();
        senders.push(match address {
            "udp" => {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                Box::new(move || {
                    for _ in 0..5 {
                        socket.send_to(&[b'x'; 500], ("127.0.0.1", port)).unwrap();
                    }
                    5
                })
            }
            "unixgram" => {
                let socket = UnixDatagram::unbound().unwrap();
                socket.connect(&path).unwrap();
                Box::new(move || {
                    for _ in 0..5 {
                        socket.send(&[b'x'; 8000]).unwrap();
                    }
                    5
                })
            }
            "unix" => pieces(UnixStream::connect(&path).unwrap(), id == 4),
            _ => pieces(TcpStream::connect(("127.0.0.1", port)).unwrap(), false),
        });
    }

    let mut received = 0;
    let mut round = |events: &mut EventLoop, counted: &mut u64| {
        let sent: u64 = senders.iter_mut().map(|send| send()).sum();
        let datagrams = |events: &EventLoop| {
            (0..3)
                .map(|id| events.counters(ListenerId(id))[ListenerCounter::Packets])
                .sum::<u64>()
        };
        let expected = datagrams(events) + sent;
        let deadline = Instant::now() + support::DEADLINE;
        while datagrams(events) < expected {
            assert!(Instant::now() < deadline);
            let before = ALLOCATIONS.get();
            let turn = events.turn(Some(Duration::from_millis(20)), &mut |batch| {
                for packet in batch {
                    received += packet.bytes.len() as u64;
                }
            });
            *counted += ALLOCATIONS.get() - before;
            turn.unwrap();
        }
    };
    let mut settling = 0;
    for held in FIRST_PIECES {
        round(&mut events, &mut settling);
        let deadline = Instant::now() + support::DEADLINE;
        let arrived = |events: &EventLoop, id| {
            let counters = events.counters(ListenerId(id));
            counters[ListenerCounter::PartialBytes] == held as u64 || counters[ListenerCounter::Packets] > 0
        };
        while !(3..6).all(|id| arrived(&events, id)) {
            assert!(Instant::now() < deadline);
            events.turn(Some(Duration::from_millis(20)), &mut |_| {}).unwrap();
        }
    }
    for _ in 0..100 {
        round(&mut events, &mut settling);
    }
    assert!(
        settling > 0,
        "accepting connections allocates, so the counter works"
    );
    let before: u64 = (0..6)
        .map(|id| events.counters(ListenerId(id))[ListenerCounter::Packets])
        .sum();
    let mut allocations = 0;
    for _ in 0..400 {
        round(&mut events, &mut allocations);
    }
    let packets = (0..6)
        .map(|id| events.counters(ListenerId(id))[ListenerCounter::Packets])
        .sum::<u64>()
        - before;
    assert!(packets > 6000 && received > 0, "{packets}");
    assert!(
        (3..6).all(|id| events.counters(ListenerId(id))[ListenerCounter::Packets] > 200),
        "streams took part"
    );
    assert_eq!(allocations, 0, "for {packets} packets");
}
