//! The name of a receiver moves to another address, while at its old one nobody listens any more, or somebody who never answers.

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::delivery::intake::request;
use crate::support::{PATIENCE, Starter, until};

const NAME: &str = "receiver.test";
const OLD: &str = "127.0.0.1";
const NEW: &str = "127.0.0.2";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Protocol {
    Http,
    /// Only the beginning of it: that somebody wants to speak it is what is looked for.
    Grpc,
    /// Lines up to the end of the stream.
    Carbon,
    /// A stream without an end.
    Stream,
    Datagrams,
}

/// One receiver at one address.
struct Receiver {
    address: String,
    heard: Arc<AtomicU64>,
    answers: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Receiver {
    /// `None` where the port is taken.
    fn start(protocol: Protocol, host: &str, port: u16) -> Option<Receiver> {
        let mut receiver = Receiver {
            address: String::new(),
            heard: Arc::default(),
            answers: Arc::new(AtomicBool::new(true)),
            ended: Arc::default(),
            connections: Arc::default(),
        };
        let (heard, ended) = (receiver.heard.clone(), receiver.ended.clone());
        if protocol == Protocol::Datagrams {
            let socket = UdpSocket::bind((host, port)).ok()?;
            receiver.address = socket.local_addr().unwrap().to_string();
            std::thread::spawn(move || {
                let mut packet = [0; 65536];
                while let Ok(length) = socket.recv(&mut packet) {
                    heard.fetch_add(length as u64, Ordering::SeqCst);
                    if ended.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
            return Some(receiver);
        }
        let listener = TcpListener::bind((host, port)).ok()?;
        receiver.address = listener.local_addr().unwrap().to_string();
        let (answers, connections) = (receiver.answers.clone(), receiver.connections.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                connections.lock().unwrap().push(stream.try_clone().unwrap());
                let (heard, answers) = (heard.clone(), answers.clone());
                std::thread::spawn(move || serve(protocol, stream, &heard, &answers));
            }
        });
        Some(receiver)
    }

    /// The old and the new one, at one port.
    fn pair(protocol: Protocol) -> (Receiver, Receiver) {
        loop {
            let old = Receiver::start(protocol, OLD, 0).unwrap();
            if let Some(new) = Receiver::start(protocol, NEW, old.port()) {
                return (old, new);
            }
            old.end();
        }
    }

    fn port(&self) -> u16 {
        self.address.rsplit(':').next().unwrap().parse().unwrap()
    }

    fn heard(&self) -> u64 {
        self.heard.load(Ordering::SeqCst)
    }

    /// Nobody listens here any more.
    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        // Waiters are woken, and see that it is over.
        drop(TcpStream::connect(&self.address));
        let _ = UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .send_to(b"", &self.address);
        for connection in self.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn serve(protocol: Protocol, stream: TcpStream, heard: &AtomicU64, answers: &AtomicBool) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let rest = |reader: &mut BufReader<TcpStream>| {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = reader.read(&mut buffer) {
            heard.fetch_add(length as u64, Ordering::SeqCst);
        }
    };
    let keep_open = |reader: &mut BufReader<TcpStream>| {
        let open = reader.get_ref().try_clone().unwrap();
        // Until the test ends, or this end is shut down from outside.
        open.set_read_timeout(Some(PATIENCE)).unwrap();
        while let Ok(1..) = reader.read(&mut [0; 4096]) {}
        std::thread::sleep(PATIENCE);
    };
    if protocol != Protocol::Http {
        rest(&mut reader);
        if !answers.load(Ordering::SeqCst) {
            keep_open(&mut reader);
        }
        return None;
    }
    loop {
        let (_, body) = request(&mut reader)?;
        heard.fetch_add(body.len() as u64, Ordering::SeqCst);
        if !answers.load(Ordering::SeqCst) {
            keep_open(&mut reader);
            return None;
        }
        let answer = "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
        reader.get_mut().write_all(answer.as_bytes()).ok()?;
    }
}

/// A command that becomes the agent, for which `hosts` is the file of that name.
fn with_hosts(hosts: &Path) -> Option<Command> {
    let unshare = ["--user", "--map-root-user", "--mount"];
    let can = Command::new("unshare").args(unshare).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        println!("skipped: this system gives no mount namespace to have a file of hosts in");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(unshare).args(["sh", "-c"]);
    let script = format!(
        "mount --bind '{}' /etc/hosts && exec \"$0\" \"$@\"",
        hosts.display()
    );
    command.arg(script).arg(env!("CARGO_BIN_EXE_weir"));
    Some(command)
}

/// At the old address of each output, the receiver either ends or stays and answers nothing.
#[test]
fn names_that_move_from_addresses_that_refuse_or_do_not_answer_are_followed() {
    use Protocol::*;
    let directory = tempfile::tempdir().unwrap();
    let hosts = directory.path().join("hosts");
    // In place, as the file is mounted.
    let point = |address: &str| std::fs::write(&hosts, format!("{address} {NAME}\n")).unwrap();
    point(OLD);
    let Some(command) = with_hosts(&hosts) else { return };
    let outputs = [
        ("datadog", "datadog", Http),
        ("remote_write", "remote_write", Http),
        ("otlp", "otlp", Http),
        ("grpc", "otlp", Grpc),
        ("graphite", "graphite", Carbon),
        ("graphite_udp", "graphite", Datagrams),
        ("influx", "influx", Http),
        ("influx_udp", "influx", Datagrams),
        ("relay", "relay", Stream),
        ("relay_udp", "relay", Datagrams),
    ];
    let mut text = String::from("bucket_width: 1s\noutputs:\n  prometheus: {enabled: false}\n");
    let mut receivers = Vec::new();
    let both = [true, false].into_iter();
    for (is_dead, (name, output_type, protocol)) in both.flat_map(|is_dead| outputs.map(|of| (is_dead, of))) {
        let name = format!("{name}_{}", if is_dead { "refuses" } else { "is_silent" });
        let (old, new) = Receiver::pair(protocol);
        let at = format!("{NAME}:{}", old.port());
        let delivery = "delivery: {timeout: 500ms, backoff_max: 100ms}";
        let settings = match (output_type, protocol) {
            ("datadog", _) => {
                format!("api_key: 0123456789abcdef0123456789abcdef, url: 'http://{at}', {delivery}")
            }
            ("remote_write", _) => format!("url: 'http://{at}/api/v1/write', {delivery}"),
            ("otlp", Grpc) => format!("url: 'http://{at}', protocol: grpc, {delivery}"),
            ("otlp", _) => format!("url: 'http://{at}', {delivery}"),
            ("influx", Datagrams) => format!("url: 'udp://{at}', {delivery}"),
            ("influx", _) => format!("url: 'http://{at}', {delivery}"),
            ("graphite", Datagrams) => format!("address: 'udp://{at}', {delivery}"),
            ("graphite", _) => format!("address: 'tcp://{at}', {delivery}"),
            (_, Datagrams) => format!("targets: ['udp://{at}'], check_interval: 20ms"),
            _ => format!("targets: ['tcp://{at}'], check_interval: 20ms"),
        };
        text += &format!("  {name}: {{type: {output_type}, {settings}}}\n");
        receivers.push((name, protocol, is_dead, old, new));
    }
    let config = directory.path().join("weir.yaml");
    std::fs::write(&config, text).unwrap();
    let arguments = ["--config", config.to_str().unwrap()];
    let agent = Starter::by(command).socket().arguments(arguments).start();
    let all = |what: &str, of: &dyn Fn(&Receiver, &Receiver, bool) -> bool| {
        until(what, || {
            agent.send("page.views:1|c\nlevel:1|g\n");
            let missing: Vec<&str> = receivers
                .iter()
                // A stream that accepts data is alive, even if the other end loses it.
                .filter(|(_, protocol, is_dead, old, new)| !of(old, new, *protocol == Stream && !is_dead))
                .map(|(name, ..)| name.as_str())
                .collect();
            missing.is_empty().then_some(()).ok_or(format!("{missing:?}"))
        });
    };
    all("all go to the old address", &|old, _, _| old.heard() > 0);
    assert!(receivers.iter().all(|(.., new)| new.heard() == 0));
    for (_, _, is_dead, old, _) in &receivers {
        old.answers.store(false, Ordering::SeqCst);
        if *is_dead {
            old.end();
        }
    }
    point(NEW);
    all("all go to the new address", &|_, new, is_alive| {
        new.heard() > 0 || is_alive
    });
    // These receivers answer nothing over gRPC and confirm nothing to Graphite: that is lost, and said.
    let log = agent.finish_with_a_loss();
    assert!(log.contains("of grpc") && log.contains("of graphite"), "{log}");
}
