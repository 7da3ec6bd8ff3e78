//! Relay: what waits is lost, nothing is sent twice, and no target sees a line that was cut as if it were whole.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Kills, narrow};
use crate::support::{Agent, PointBooks, until};

const LINES: u64 = 4000;
/// So that every digit that is cut off makes another value.
const BASE: u64 = 1_000_000_000;

/// Makes a round more than kernels hold on the way.
const PADDING: &str = "01234567890123456789012345678901234567890123456789012345678901234567890123456789";

fn line(i: u64) -> String {
    let (name, value) = (i % 100, BASE + i);
    format!("level.{name}:{value}|g|#padding:{PADDING},i:{}", i % LINES)
}

/// Data received by one target, and the number of its open connections.
#[derive(Clone, Default)]
struct Target {
    address: String,
    lines: Arc<Mutex<Vec<String>>>,
    open: Arc<AtomicU64>,
    cut: Arc<AtomicU64>,
}

impl Target {
    fn new(address: String) -> Target {
        Target {
            address,
            ..Target::default()
        }
    }

    fn take(&self, packet: &[u8]) {
        let text = std::str::from_utf8(packet).unwrap();
        assert!(
            text.ends_with('\n'),
            "{}: whole lines, not {text:?}",
            self.address
        );
        self.lines.lock().unwrap().extend(text.lines().map(str::to_owned));
    }

    fn datagrams(self, receive: impl Fn(&mut [u8]) -> std::io::Result<usize> + Send + 'static) {
        std::thread::spawn(move || {
            let mut packet = [0; 65536];
            while let Ok(length) = receive(&mut packet) {
                if length > 0 {
                    self.take(&packet[..length]);
                }
            }
        });
    }

    /// Each connection's packets after their length, the lowest byte first.
    fn frames<S: Read + Send + 'static>(self, streams: impl Iterator<Item = S> + Send + 'static) {
        self.connections(streams, |target, mut stream| {
            let mut length = [0; 4];
            while stream.read_exact(&mut length).is_ok() {
                let mut packet = vec![0; u32::from_le_bytes(length) as usize];
                match stream.read_exact(&mut packet) {
                    Ok(()) => target.take(&packet),
                    Err(_) => return,
                }
            }
        });
    }

    /// Lines alone, read slowly. Only an orderly end says that the last one is whole.
    fn lines<S: Read + Send + 'static>(self, streams: impl Iterator<Item = S> + Send + 'static) {
        self.connections(streams, |target, mut stream| {
            let (mut text, mut buffer) = (Vec::new(), [0; 1024]);
            let complete = loop {
                match stream.read(&mut buffer) {
                    Ok(0) => break true,
                    Ok(length) => text.extend_from_slice(&buffer[..length]),
                    Err(_) => break false,
                }
                std::thread::sleep(Duration::from_millis(2));
            };
            let whole = text
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |at| at + 1);
            if whole < text.len() {
                target.cut.fetch_add(1, Ordering::SeqCst);
                let rest = text[whole..].escape_ascii();
                assert!(!complete, "an orderly end within {rest}");
            }
            if whole > 0 {
                target.take(&text[..whole]);
            }
        });
    }

    fn connections<S: Send + 'static>(
        self,
        streams: impl Iterator<Item = S> + Send + 'static,
        serve: impl Fn(&Target, S) + Clone + Send + 'static,
    ) {
        std::thread::spawn(move || {
            for stream in streams {
                let (target, serve) = (self.clone(), serve.clone());
                target.open.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    serve(&target, stream);
                    target.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
    }
}

/// Streams as they come in; a listener lives as long as its thread.
fn incoming<S>(accept: impl Fn() -> std::io::Result<S>) -> impl Iterator<Item = S> {
    std::iter::from_fn(move || accept().ok())
}

pub(super) fn killed(mut kills: Kills) {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let datagram = UnixDatagram::bind(at("datagram")).unwrap();
    let stream = UnixListener::bind(at("stream")).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = narrow(TcpListener::bind("127.0.0.1:0").unwrap());
    let targets = [
        Target::new(format!("udp://{}", udp.local_addr().unwrap())),
        Target::new(format!("unixgram://{}", at("datagram").display())),
        Target::new(format!("unix://{}", at("stream").display())),
        Target::new(format!("tcp://{}", tcp.local_addr().unwrap())),
    ];
    let alone = Target::new(format!("tcp://{}", slow.local_addr().unwrap()));
    targets[0].clone().datagrams(move |packet| udp.recv(packet));
    targets[1].clone().datagrams(move |packet| datagram.recv(packet));
    let accepted = incoming(move || stream.accept().map(|(stream, _)| stream));
    targets[2].clone().frames(accepted);
    let accepted = incoming(move || tcp.accept().map(|(stream, _)| stream));
    targets[3].clone().frames(accepted);
    let accepted = incoming(move || slow.accept().map(|(stream, _)| stream));
    alone.clone().lines(accepted);

    let list: Vec<&str> = targets.iter().map(|target| target.address.as_str()).collect();
    let config = at("weir.yaml");
    let text = format!(
        "outputs:\n  prometheus: {{enabled: false}}\n  shared: {{type: relay, targets: ['{}'], only: true, linger: 10ms, eject_after: 0}}\n  \
         alone: {{type: relay, targets: ['{}'], tcp_framing: newline, linger: 10ms}}\n",
        list.join("', '"),
        alone.address
    );
    std::fs::write(&config, text).unwrap();
    let messages = |agent: &Agent, target: &Target| {
        let several = format!("shared to {}", target.address);
        let name = if target.address == alone.address {
            "alone"
        } else {
            &several
        };
        PointBooks::read(&agent.output(name)["messages"])
    };
    let ended = || {
        let streams = targets.iter().chain([&alone]);
        let open: u64 = streams.map(|target| target.open.load(Ordering::SeqCst)).sum();
        (open == 0)
            .then_some(())
            .ok_or(format!("{open} connections are open"))
    };
    let mut delivered = [0; 4];
    for round in 0..kills.rounds {
        let agent = Agent::start(&["--config", config.to_str().unwrap()], &[]);
        for target in targets.iter().chain([&alone]) {
            assert_eq!(messages(&agent, target).produced, 0, "books begin at zero");
        }
        for first in (0..LINES).step_by(50) {
            let lines = (first..first + 50).map(|i| line(round * LINES + i) + "\n");
            agent.send(lines.collect::<String>());
        }
        // In most rounds the slow one has a part of it by then.
        until("under way", || match messages(&agent, &alone) {
            books if books.delivered > 0 => Ok(()),
            books => Err(format!("{books:?}")),
        });
        for (target, delivered) in targets.iter().zip(&mut delivered) {
            *delivered += messages(&agent, target).delivered;
        }
        kills.kill(agent);
        until("ended", ended);
    }

    let sent: BTreeSet<String> = (0..kills.rounds * LINES).map(line).collect();
    for (target, delivered) in targets.iter().zip(delivered) {
        let count = || target.lines.lock().unwrap().len() as u64;
        // UDP may lose accepted packets, and its reader sees no end.
        if !target.address.starts_with("udp://") {
            until(&target.address, || {
                (count() >= delivered)
                    .then_some(())
                    .ok_or(format!("{} of {delivered}", count()))
            });
        }
        println!("{}: {} lines, {delivered} for certain", target.address, count());
    }
    let mut all = BTreeSet::new();
    for target in &targets {
        for line in target.lines.lock().unwrap().iter() {
            assert!(sent.contains(line), "{}: {line:?} was never sent", target.address);
            assert!(
                all.insert(line.clone()),
                "{}: {line:?} came twice",
                target.address
            );
        }
    }
    let (lines, mut of_alone) = (alone.lines.lock().unwrap(), BTreeSet::new());
    for line in lines.iter() {
        assert!(sent.contains(line), "{line:?} was never sent");
        assert!(of_alone.insert(line), "{line:?} came twice");
    }
    let cut = alone.cut.load(Ordering::SeqCst);
    println!("lines alone: {} came, {cut} were cut", lines.len());
    assert!(!kills.are_random() || cut > 0, "no kill fell into a line");
}
