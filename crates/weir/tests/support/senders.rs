//! Senders over all transports at once, that stop for nothing.

use std::io::Write as _;
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::until;

/// A number from the environment, for the long runs.
pub fn number(variable: &str, short: usize) -> usize {
    let long = std::env::var(variable).ok();
    long.and_then(|long| long.parse().ok()).unwrap_or(short)
}

/// Messages of a packet.
static MESSAGES: LazyLock<usize> = LazyLock::new(|| number("WEIR_TEST_MESSAGES", 10));

static PACKET: LazyLock<String> = LazyLock::new(|| "c:1|c\n".repeat(*MESSAGES));

/// Data of a receiver, over all processes.
pub fn total(stdout: &str, metric: &str) -> f64 {
    points(stdout, metric)
        .map(|point| point["value"].as_f64().unwrap())
        .sum()
}

/// For a metric with one series.
pub fn assert_one_point_per_bucket(stdout: &str, metric: &str) {
    let times = points(stdout, metric).map(|point| point["ts"].as_i64().unwrap());
    let times: Vec<i64> = times.collect();
    assert!(times.is_sorted_by(|one, next| one < next), "{times:?}");
}

fn points(stdout: &str, metric: &str) -> impl Iterator<Item = Value> {
    let points = stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    points.filter(move |point| point["metric"] == metric)
}

/// One thread for each.
pub struct Senders {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
    sent: Arc<AtomicU64>,
}

impl Senders {
    /// With a pause between two packets of one sender.
    pub fn start(senders: Vec<Box<dyn FnMut() + Send>>, pause: Duration) -> Senders {
        let (ended, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = senders.into_iter().map(|mut send| {
            let (ended, sent) = (ended.clone(), sent.clone());
            std::thread::spawn(move || {
                let mut own = 0;
                while !ended.load(Ordering::Acquire) {
                    send();
                    own += *MESSAGES as u64;
                    sent.fetch_add(*MESSAGES as u64, Ordering::Relaxed);
                    std::thread::sleep(pause);
                }
                own
            })
        });
        Senders {
            threads: threads.collect(),
            ended,
            sent,
        }
    }

    pub fn wait_for_more(&self) {
        let before = self.sent.load(Ordering::Relaxed);
        until("more is sent", || {
            self.sent.load(Ordering::Relaxed) > before + 50 * *MESSAGES as u64
        });
    }

    pub fn end(self) -> u64 {
        self.ended.store(true, Ordering::Release);
        self.threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    }
}

pub fn framed() -> Vec<u8> {
    [&(PACKET.len() as u32).to_le_bytes()[..], PACKET.as_bytes()].concat()
}

pub fn over_udp(address: &str) -> Box<dyn FnMut() + Send> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    Box::new(move || assert_eq!(socket.send(PACKET.as_bytes()).unwrap(), PACKET.len()))
}

/// Connected all the time: the socket's inode is the same after a restart.
pub fn over_unixgram(path: &Path) -> Box<dyn FnMut() + Send> {
    let socket = UnixDatagram::unbound().unwrap();
    socket.connect(path).unwrap();
    Box::new(move || assert_eq!(socket.send(PACKET.as_bytes()).unwrap(), PACKET.len()))
}

/// One connection for as long as it lasts; what a write could not send goes over the next one.
pub fn over_unix(path: PathBuf) -> Box<dyn FnMut() + Send> {
    let mut stream = UnixStream::connect(&path).unwrap();
    Box::new(move || {
        while stream.write_all(&framed()).is_err() {
            stream = UnixStream::connect(&path).unwrap();
        }
    })
}

/// A connection for each packet: those that nobody has accepted wait for the next process.
pub fn over_tcp(address: String) -> Box<dyn FnMut() + Send> {
    Box::new(move || {
        TcpStream::connect(&address)
            .unwrap()
            .write_all(&framed())
            .unwrap()
    })
}

/// One connection for all of it, each frame in two writes: no write may fail.
pub fn in_halves(mut stream: impl std::io::Write + Send + 'static) -> Box<dyn FnMut() + Send> {
    let mut cut = 0;
    Box::new(move || {
        let frame = framed();
        cut = (cut + 7) % frame.len();
        stream.write_all(&frame[..cut]).unwrap();
        stream.flush().unwrap();
        stream.write_all(&frame[cut..]).unwrap();
    })
}
