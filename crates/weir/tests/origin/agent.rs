//! A running agent with a Unix socket, and what comes out of it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::log::Log;

/// However slow the machine: what takes longer is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Polls, for events without a notification.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub struct Agent {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    log: Log,
    admin: String,
    directory: tempfile::TempDir,
}

impl Agent {
    /// Starts with these settings, a bucket that outlasts the test, and waits until it serves.
    pub fn start(arguments: &[&str]) -> Agent {
        Agent::start_with(arguments, &[])
    }

    pub fn start_with(arguments: &[&str], environment: &[(&str, &str)]) -> Agent {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args([
                "run",
                "--udp=0",
                "--output=stdout",
                "--hostname=here",
                "--bucket-width=1h",
            ])
            .arg("--admin=127.0.0.1:0")
            .arg("--uds")
            .arg(directory.path().join("weir.sock"))
            .args(arguments)
            .env_clear()
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let stdout = std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).unwrap();
            text
        });
        let log = Log::of(child.stderr.take().unwrap());
        let mut agent = Agent {
            child,
            stdout: Some(stdout),
            log,
            admin: String::new(),
            directory,
        };
        agent.admin = agent.wait_for("admin on http://");
        agent
    }

    pub fn wait_for(&mut self, text: &str) -> String {
        self.log.wait_for(text)
    }

    /// Lets it read its configuration again, and waits until it says this of it.
    pub fn reload(&mut self, says: &str) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-HUP", &id])
                .status()
                .unwrap()
                .success()
        );
        self.wait_for(says);
    }

    /// A page of its admin server.
    pub fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.admin).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.get("/api/v1/status")).unwrap()
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("weir.sock")
    }

    /// One datagram of this process.
    pub fn send(&self, messages: &str) {
        let socket = UnixDatagram::unbound().unwrap();
        socket.send_to(messages.as_bytes(), self.socket()).unwrap();
    }

    /// Output of a weir command that asks this agent.
    pub fn ask(&self, arguments: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(arguments)
            .args(["--admin", &self.admin])
            .env_clear()
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn explain(&self, line: &str, pid: Option<u32>) -> Value {
        let mut arguments = vec!["explain", "--json", line];
        let pid = pid.map(|pid| pid.to_string());
        if let Some(pid) = &pid {
            arguments.extend(["--pid", pid]);
        }
        serde_json::from_str(&self.ask(&arguments)).unwrap()
    }

    /// The status's section about origins.
    pub fn origin(&self) -> Value {
        let status: Value = serde_json::from_str(&self.ask(&["status", "--json"])).unwrap();
        status["origin"].clone()
    }

    /// Waits until a counter of the first source with this name has reached a value.
    pub fn wait_for_source(&self, name: &str, what: &str, at_least: u64) {
        until(&format!("{name}: {what}"), || {
            let origin = self.origin();
            let sources = origin["resolver"]["sources"].as_array().unwrap().clone();
            sources
                .iter()
                .any(|source| source["name"] == name && source[what].as_u64() >= Some(at_least))
        });
    }

    /// Ends it by SIGTERM and returns what it printed: name and tags of each point, in order.
    pub fn points(mut self) -> Vec<(String, Vec<String>, f64)> {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &id])
                .status()
                .unwrap()
                .success()
        );
        let status = self.child.wait().unwrap();
        let log = self.log.until_it_ends();
        assert!(status.success(), "{status}:\n{log}");
        assert!(!log.contains("do not balance"), "{log}");
        let text = self.stdout.take().unwrap().join().unwrap();
        let mut points: Vec<_> = text
            .lines()
            .map(|line| {
                let point: Value = serde_json::from_str(line).unwrap();
                let tags = point["tags"].as_array().unwrap();
                let tags = tags.iter().map(|tag| tag.as_str().unwrap().to_owned()).collect();
                let value = point["value"].as_f64().unwrap();
                (point["metric"].as_str().unwrap().to_owned(), tags, value)
            })
            .collect();
        points.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        points
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The names and tags of points, as one text each.
pub fn texts(points: &[(String, Vec<String>, f64)]) -> Vec<String> {
    points
        .iter()
        .map(|(name, tags, _)| format!("{name} {}", tags.join(",")))
        .collect()
}

/// A server of somebody else's; ended when dropped, by its own id.
pub struct Server(pub Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether this machine has a program. A test that needs one says so and goes by where it is missing.
pub fn has(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).exists()));
    if !found {
        println!("skipped: {program} is not installed; scripts/install-test-deps.sh installs it");
    }
    found
}

/// A file that describes one container.
pub fn tags_file(directory: &Path, json: &str) -> PathBuf {
    let path = directory.join("tags.json");
    let fresh = directory.join("tags.fresh");
    std::fs::write(&fresh, json).unwrap();
    std::fs::rename(&fresh, &path).unwrap();
    path
}
