//! The tail, asked of the real binary: shows messages with their sender and verdict, and costs nothing without a
//! reader.

use crate::support;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use support::{Agent, get, status, until};

/// A stream of events.
pub struct Events(BufReader<TcpStream>);

impl Events {
    /// Opens a tail and waits until messages are seen.
    pub fn open(admin: &str, query: &str) -> Events {
        let mut events = Events::ask(admin, &format!("/api/v1/tail{query}"), "");
        events.line(": weir");
        events
    }

    fn ask(admin: &str, path: &str, headers: &str) -> Events {
        let mut stream = TcpStream::connect(admin).unwrap();
        stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").unwrap();
        Events(BufReader::new(stream))
    }

    /// The next line with this text.
    fn line(&mut self, text: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.0.read_line(&mut line).unwrap() > 0,
                "it ended before {text:?}"
            );
            if line.contains(text) {
                return line;
            }
        }
    }

    fn next(&mut self, event: &str) -> Value {
        self.line(&format!("event: {event}"));
        let data = self.line("data: ");
        serde_json::from_str(&data["data: ".len()..]).unwrap()
    }

    pub fn message(&mut self) -> Value {
        self.next("message")
    }
}

fn streams(admin: &str) -> u64 {
    status(admin)["taps"]["streams"].as_u64().unwrap()
}

#[test]
fn the_tail_shows_messages_with_their_sender_and_costs_nothing_without_a_reader() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("dsd.socket");
    let config = format!(
        "bucket_width: 1s\nuds: {}\norigin_detection: true\n",
        socket.display()
    );
    let agent = Agent::start(&config, &[]);
    messages_have_their_sender(&agent, &socket);
    until("it has ended", || streams(&agent.admin) == 0);
    the_command_shows_messages_and_their_errors(&agent);
    until("it has ended", || streams(&agent.admin) == 0);
    there_are_sixteen_streams_and_nothing_is_copied_for_disconnected_readers(&agent);
    agent.stop();
}

fn messages_have_their_sender(agent: &Agent, socket: &Path) {
    let admin = &agent.admin;
    let mut events = Events::open(admin, "");
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.send_to(b"page.views:1|c|#user:ann", agent.address()).unwrap();
    let seen = events.message();
    assert_eq!(
        (&seen["line"], &seen["verdict"]),
        (&"page.views:1|c|#user:ann".into(), &"accepted".into())
    );
    assert_eq!(seen["listener"], format!("udp://{}", agent.address()));
    assert_eq!(seen["address"], udp.local_addr().unwrap().to_string());
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!((seen["time"].as_f64().unwrap() - now).abs() < 60.0, "{seen}");
    let unix = UnixDatagram::unbound().unwrap();
    unix.send_to(b"local:1|c", socket).unwrap();
    let seen = events.message();
    assert_eq!(seen["line"], "local:1|c");
    assert_eq!(seen["pid"], std::process::id());
    assert_eq!(seen["listener"], format!("unixgram://{}", socket.display()));
    let share = events.next("share");
    assert_eq!(share["share"], 1.0, "{share}");
}

fn there_are_sixteen_streams_and_nothing_is_copied_for_disconnected_readers(agent: &Agent) {
    let admin = &agent.admin;
    let mut all: Vec<Events> = (0..15).map(|_| Events::open(admin, "")).collect();
    // Streams of all kinds count together.
    let mut live = Events::ask(admin, "/api/v1/live", "");
    live.line("200 OK");
    let (code, body) = get(admin, "/api/v1/tail");
    assert!(
        code == 503 && body.contains("16 streams are open"),
        "{code} {body}"
    );
    agent.send("a:1|c");
    for events in &mut all {
        assert_eq!(events.message()["line"], "a:1|c");
    }
    assert_eq!(streams(admin), 15);
    drop(all);
    until("all have ended", || streams(admin) == 0);
    let received = || status(admin)["total"]["messages"]["received"].as_u64();
    until("the workers know", || {
        let (copied, before) = (status(admin)["taps"]["packets"].as_u64(), received());
        agent.send("b:1|c");
        until("it is counted", || received() > before);
        status(admin)["taps"]["packets"].as_u64() == copied
    });
    assert_eq!(status(admin)["memory"]["parts"]["taps"], 0);
    drop(live);
    let mut again = Events::open(admin, "");
    agent.send("c:1|c");
    assert!(again.message()["line"].is_string());
}

/// `weir tail`, ended when it is dropped.
struct Tail(Child, BufReader<std::process::ChildStdout>);

impl Tail {
    fn start(admin: &str, arguments: &[&str]) -> Tail {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["tail", "--admin", admin])
            .args(arguments)
            .env_clear()
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        until("it is connected", || streams(admin) == 1);
        Tail(child, stdout)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.1.read_line(&mut line).unwrap() > 0, "it has ended");
        line.trim_end().to_owned()
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends until the worker of a new tail has begun.
fn send_until(agent: &Agent, messages: &str, admin: &str) {
    let before = status(admin)["taps"]["packets"].as_u64();
    until("it is seen", || {
        agent.send(messages);
        status(admin)["taps"]["packets"].as_u64() > before
    });
}

fn the_command_shows_messages_and_their_errors(agent: &Agent) {
    let admin = &agent.admin;
    let mut tail = Tail::start(admin, &["page", "--where", "user:ann"]);
    send_until(
        agent,
        "page.views:1|c|#user:ann\npage.views:zwei|c|#user:ann\nother:1|c",
        admin,
    );
    let line = tail.line();
    assert!(
        line.ends_with("page.views:1|c|#user:ann") && line.contains("udp://127.0.0.1:"),
        "{line}"
    );
    let (line, under) = (tail.line(), tail.line());
    assert_eq!(line.find("zwei"), under.find("^^^^ "), "{line}\n{under}");
    assert!(
        under.ends_with("rejected: bad_value, bytes 11 to 14 of 27"),
        "{under}"
    );
    assert!(!line.contains('\u{1b}'), "no colours into a pipe");
    drop(tail);
    until("it has gone", || streams(admin) == 0);

    let mut tail = Tail::start(admin, &["--json", "--rejected"]);
    send_until(agent, "a:1|c\nb", admin);
    loop {
        let event: Value = serde_json::from_str(&tail.line()).unwrap();
        if event["line"].is_string() {
            assert_eq!(
                (event["line"].as_str(), event["reason"].as_str()),
                (Some("b"), Some("no_separator"))
            );
            break;
        }
    }
}
