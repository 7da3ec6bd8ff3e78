//! A running `weir run` with a configuration file, for tests that look at what its outputs give.

// Each test file uses a part of it.
#![allow(dead_code)]

pub mod influxdb;
pub mod log;
pub mod manager;
pub mod place;
pub mod ports;
pub mod preload;
pub mod receivers;
pub mod senders;
pub mod terminal;
pub mod tls;

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_config::{Setting, SettingType};
use weir_output::settings::OUTPUT_TYPES;

use log::Log;

/// However slow the machine: what takes longer is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The YAML examples of a page, in order.
pub fn configurations(page: &str) -> Vec<&str> {
    let blocks = page.split("```yaml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap()).collect()
}

/// "Full" is just that.
pub fn names_every_setting(text: &str, output: &str) {
    fn check(text: &str, settings: &[Setting]) {
        for setting in settings {
            assert!(
                text.contains(&format!(" {}:", setting.key)),
                "{} is missing",
                setting.key
            );
            if let SettingType::Record(fields) = setting.kind {
                check(text, fields);
            }
        }
    }
    let found = OUTPUT_TYPES.iter().find(|kind| kind.name == output).unwrap();
    check(text, found.settings);
}

/// The admin server's answer: status code and body.
pub fn get(admin: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(admin).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    (code, body.to_owned())
}

pub fn json(admin: &str, path: &str) -> Value {
    let (code, body) = get(admin, path);
    assert_eq!(code, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

pub fn status(admin: &str) -> Value {
    json(admin, "/api/v1/status")
}

/// Runs the program to its end: whether that was a good one, and what it said, standard output first.
pub fn weir(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments)
        .env_clear()
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

/// Polls, for events without a notification.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The program in a directory, copied by another process: a file that this one has open for writing cannot be run by what a test
/// beside it forks meanwhile.
pub fn copied_into(directory: &std::path::Path) -> std::path::PathBuf {
    let program = directory.join("weir");
    let mut copy = Command::new("cp");
    copy.arg(env!("CARGO_BIN_EXE_weir")).arg(&program);
    assert!(copy.status().unwrap().success());
    program
}

pub struct Agent {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    log: Log,
    address: String,
    directory: tempfile::TempDir,
}

impl Agent {
    /// Starts with this configuration, UDP on a port of the kernel's choice, and waits until it listens.
    pub fn start(config: &str, environment: &[(&str, &str)]) -> Agent {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.env_clear().envs(environment.iter().copied());
        Self::spawn(command, directory, config)
    }

    /// As [`Agent::start`], behind a command of the shell such as `ulimit`.
    pub fn start_after(command: &str, config: &str) -> Agent {
        let mut shell = Command::new("sh");
        let script = format!("{command} && exec \"$0\" \"$@\"");
        shell
            .args(["-c", &script, env!("CARGO_BIN_EXE_weir")])
            .env_clear();
        Self::spawn(shell, tempfile::tempdir().unwrap(), config)
    }

    /// As another user, from a directory that it can read.
    pub fn start_as(user: u32, config: &str) -> Agent {
        use std::os::unix::fs::PermissionsExt as _;
        use std::os::unix::process::CommandExt as _;
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new(copied_into(directory.path()));
        command.env_clear().uid(user).gid(user);
        Self::spawn(command, directory, config)
    }

    /// As [`Agent::start`], by a command that runs the program in its own way.
    pub fn start_by(command: Command, config: &str) -> Agent {
        Self::spawn(command, tempfile::tempdir().unwrap(), config)
    }

    fn spawn(mut command: Command, directory: tempfile::TempDir, config: &str) -> Agent {
        let path = directory.path().join("weir.yaml");
        std::fs::write(&path, config).unwrap();
        // The caller's settings come first.
        let admin = command.get_envs().any(|(name, _)| name == "WEIR_ADMIN");
        if !admin {
            command.env("WEIR_ADMIN", "127.0.0.1:0");
        }
        let mut child = command
            .args(["run", "--udp", "127.0.0.1:0", "--hostname", "here", "--config"])
            .arg(&path)
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
            address: String::new(),
            directory,
        };
        let address = agent.wait_for("listening on udp://");
        // Behind it may be a remark.
        agent.address = address.split(',').next().unwrap_or_default().to_owned();
        agent
    }

    /// Waits for a log line with this text and returns what follows it.
    pub fn wait_for(&mut self, text: &str) -> String {
        self.log.wait_for(text)
    }

    /// Another configuration, for a reload.
    pub fn rewrite(&self, config: &str) {
        std::fs::write(self.directory.path().join("weir.yaml"), config).unwrap();
    }

    /// Where its configuration is.
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Of UDP, as host and port.
    #[allow(dead_code)]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// One datagram.
    pub fn send(&self, messages: &str) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(messages.as_bytes(), &self.address).unwrap();
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Its exit status, once it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Ends it by SIGTERM, which delivers what was sent, and returns what it wrote on standard output and in its log.
    pub fn stop(self) -> (String, String) {
        self.signal("-TERM");
        let (status, stdout, log) = self.end();
        assert!(status.success(), "{status}:\n{log}");
        (stdout, log)
    }

    /// Waits for its end: how it ended, what it wrote on standard output and in its log.
    pub fn end(mut self) -> (ExitStatus, String, String) {
        let status = self.child.wait().unwrap();
        let log = self.log.until_it_ends();
        assert!(!log.contains("do not balance"), "{log}");
        (status, self.stdout.take().unwrap().join().unwrap(), log)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
