//! The built-in null receiver: receives packets and discards them, unlimited or at a set pace.

use crate::profile::Transport;
use crate::sys::{self, CountBatch};
use crate::target::Target;
use std::io::{self, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_rig_base::address::SocketFile;
use weir_rig_base::{clock, process, socket};

/// A receiver on a loopback port or a socket file.
pub struct Null {
    target: Target,
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    _file: Option<SocketFile>,
}

#[derive(Debug, Default)]
struct Counts {
    packets: AtomicU64,
    bytes: AtomicU64,
}

/// The pace of a throttled receiver.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub packets_per_second: f64,
}

/// Options of a receiver.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullOptions {
    /// Processor its threads are pinned to.
    pub cpu: Option<usize>,
    /// Maximum pace. `None`: unlimited.
    pub pace: Option<Pace>,
    /// Poll for datagrams for a while before sleeping: a busy sender then never has to wake the receiver, which would cost it as much as
    /// sending. Only for a receiver with its own processor.
    pub spin: bool,
}

struct Pacer {
    pace: Option<Pace>,
    start: Option<Instant>,
    taken: f64,
}

impl Pacer {
    fn new(pace: Option<Pace>) -> Pacer {
        Pacer {
            pace,
            start: None,
            taken: 0.0,
        }
    }

    /// Waits until packets may be received, and returns how many.
    fn allow(&mut self) -> usize {
        let Some(pace) = self.pace else {
            return usize::MAX;
        };
        // The clock starts with the first packet.
        let Some(start) = self.start else {
            return 1;
        };
        let due = Duration::from_secs_f64(self.taken / pace.packets_per_second);
        clock::sleep_until(start, due);
        let allowed = start.elapsed().as_secs_f64() * pace.packets_per_second - self.taken;
        (allowed as usize).max(1)
    }

    fn took(&mut self, packets: usize) {
        self.start.get_or_insert_with(Instant::now);
        self.taken += packets as f64;
    }
}

impl Null {
    /// Opens a receiver for a transport. Creates socket files in `folder`.
    pub fn open(transport: Transport, folder: &Path, how: NullOptions) -> io::Result<Null> {
        let counts = Arc::new(Counts::default());
        let stop = Arc::new(AtomicBool::new(false));
        let timeout = Some(Duration::from_millis(50));
        let mut file = None;
        let mut threads = Vec::new();
        let target = match transport {
            Transport::Udp => {
                let socket = UdpSocket::bind(("127.0.0.1", 0))?;
                socket::set_receive_buffer(socket.as_fd(), 8 << 20)?;
                socket.set_read_timeout(timeout)?;
                let target = Target::Udp(socket.local_addr()?);
                threads.push(datagrams(socket, &counts, &stop, how));
                target
            }
            Transport::Unixgram => {
                let path = folder.join(format!("null-{}.sock", std::process::id()));
                let socket = UnixDatagram::bind(&path)?;
                socket.set_read_timeout(timeout)?;
                file = Some(SocketFile(path.clone()));
                threads.push(datagrams(socket, &counts, &stop, how));
                Target::Unixgram(path)
            }
            Transport::Unix => {
                let path = folder.join(format!("null-{}.sock", std::process::id()));
                let listener = UnixListener::bind(&path)?;
                listener.set_nonblocking(true)?;
                file = Some(SocketFile(path.clone()));
                let accept = move || {
                    listener.accept().and_then(|(stream, _)| {
                        stream.set_nonblocking(false)?;
                        stream.set_read_timeout(timeout)?;
                        Ok(stream)
                    })
                };
                threads.push(streams(accept, &counts, &stop, how, swallow));
                Target::Unix(path)
            }
            Transport::Tcp | Transport::Http => {
                let listener = TcpListener::bind(("127.0.0.1", 0))?;
                let address = listener.local_addr()?;
                listener.set_nonblocking(true)?;
                let accept = move || {
                    listener.accept().and_then(|(stream, _)| {
                        stream.set_nonblocking(false)?;
                        stream.set_read_timeout(timeout)?;
                        stream.set_nodelay(true)?;
                        Ok(stream)
                    })
                };
                if transport == Transport::Tcp {
                    threads.push(streams(accept, &counts, &stop, how, swallow));
                    Target::Tcp(address)
                } else {
                    threads.push(streams(accept, &counts, &stop, how, answer));
                    Target::Http {
                        address,
                        host: address.to_string(),
                        path: "/".into(),
                    }
                }
            }
        };
        Ok(Null {
            target,
            counts,
            stop,
            threads,
            _file: file,
        })
    }

    pub fn target(&self) -> Target {
        self.target.clone()
    }

    /// Packets received so far; on streams, reads.
    pub fn packets(&self) -> u64 {
        self.counts.packets.load(Relaxed)
    }

    pub fn bytes(&self) -> u64 {
        self.counts.bytes.load(Relaxed)
    }
}

impl Drop for Null {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn datagrams<S: AsFd + Send + 'static>(
    socket: S,
    counts: &Arc<Counts>,
    stop: &Arc<AtomicBool>,
    how: NullOptions,
) -> JoinHandle<()> {
    let (counts, stop) = (counts.clone(), stop.clone());
    std::thread::spawn(move || {
        if let Some(cpu) = how.cpu {
            let _ = process::pin(&[cpu]);
        }
        clock::precise_timers();
        let mut batch = CountBatch::new(sys::BATCH);
        let mut pacer = Pacer::new(how.pace);
        let mut looks = 0;
        while !stop.load(Relaxed) {
            let most = pacer.allow();
            let wait = !how.spin || looks >= LOOKS;
            // After a timeout the loop checks whether it should stop.
            let Ok((packets, bytes)) = batch.receive(socket.as_fd(), most, wait) else {
                if !wait {
                    looks += 1;
                    pause();
                }
                continue;
            };
            looks = 0;
            pacer.took(packets);
            counts.packets.fetch_add(packets as u64, Relaxed);
            counts.bytes.fetch_add(bytes as u64, Relaxed);
        }
    })
}

/// About as long as sending a packet takes. A receiver that polls without pause would hold the socket's lock when the sender needs it.
fn pause() {
    for _ in 0..PAUSES {
        std::hint::spin_loop();
    }
}

const PAUSES: u32 = 64;

/// Empty polls before a receiver sleeps: longer than a sender needs to compose the packets of a system call. To the scheduler a receiver
/// that never sleeps is a busy program, which has to wait when others want the processor.
const LOOKS: u32 = 100;

fn streams<S: Send + 'static>(
    accept: impl Fn() -> io::Result<S> + Send + 'static,
    counts: &Arc<Counts>,
    stop: &Arc<AtomicBool>,
    how: NullOptions,
    serve: fn(S, &Counts, &AtomicBool, Option<Pace>),
) -> JoinHandle<()> {
    let (counts, stop) = (counts.clone(), stop.clone());
    std::thread::spawn(move || {
        let mut served: Vec<JoinHandle<()>> = Vec::new();
        while !stop.load(Relaxed) {
            match accept() {
                Ok(stream) => {
                    let (counts, stop) = (counts.clone(), stop.clone());
                    served.push(std::thread::spawn(move || {
                        if let Some(cpu) = how.cpu {
                            let _ = process::pin(&[cpu]);
                        }
                        serve(stream, &counts, &stop, how.pace);
                    }));
                }
                // No thread waits here: poll again soon. New connections come once per run.
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        for thread in served {
            let _ = thread.join();
        }
    })
}

/// Reads and discards. With a pace, 8 KiB per read.
fn swallow<S: Read>(mut stream: S, counts: &Counts, stop: &AtomicBool, pace: Option<Pace>) {
    let mut buffer = vec![0u8; if pace.is_some() { 8192 } else { 256 << 10 }];
    let mut pacer = Pacer::new(pace);
    while !stop.load(Relaxed) {
        pacer.allow();
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => {
                pacer.took(1);
                counts.packets.fetch_add(1, Relaxed);
                counts.bytes.fetch_add(read as u64, Relaxed);
            }
            Err(_) => continue,
        }
    }
}

/// Answers every HTTP request with 202 and no body.
fn answer<S: Read + Write>(mut stream: S, counts: &Counts, stop: &AtomicBool, pace: Option<Pace>) {
    let mut buffer = vec![0u8; 256 << 10];
    let mut held: Vec<u8> = Vec::new();
    let mut pacer = Pacer::new(pace);
    let mut body_left = 0usize;
    while !stop.load(Relaxed) {
        let read = match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => read,
            Err(_) => continue,
        };
        let mut bytes = &buffer[..read];
        loop {
            if body_left > 0 {
                let part = body_left.min(bytes.len());
                body_left -= part;
                bytes = &bytes[part..];
                counts.bytes.fetch_add(part as u64, Relaxed);
                if body_left > 0 {
                    break;
                }
                pacer.allow();
                pacer.took(1);
                counts.packets.fetch_add(1, Relaxed);
                let reply = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";
                if stream.write_all(reply).is_err() {
                    return;
                }
            }
            if bytes.is_empty() {
                break;
            }
            held.extend_from_slice(bytes);
            let Some(end) = held.windows(4).position(|w| w == b"\r\n\r\n") else {
                break;
            };
            let head = String::from_utf8_lossy(&held[..end]).to_ascii_lowercase();
            body_left = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"))
                .and_then(|value| value.trim().parse().ok())
                .unwrap_or(0);
            let body = held.split_off(end + 4);
            held.clear();
            let consumed = bytes.len() - body.len();
            bytes = &bytes[consumed..];
            if body_left == 0 {
                counts.packets.fetch_add(1, Relaxed);
                let reply = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";
                if stream.write_all(reply).is_err() {
                    return;
                }
            }
        }
    }
}
