//! A running `weir run`: how it is started, what it says, and its end.

use std::ffi::OsStr;
use std::io::Read;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::thread::JoinHandle;
use std::time::UNIX_EPOCH;

use serde_json::Value;
use tempfile::TempDir;

use super::log::Log;
use super::status;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// A process that ends with the test.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program in a directory, copied by another process: a file that this one has open for writing cannot be run by what a test
/// beside it forks meanwhile.
fn copied_into(directory: &Path) -> PathBuf {
    let program = directory.join("weir");
    let mut copy = Command::new("cp");
    copy.arg(WEIR).arg(&program);
    assert!(copy.status().unwrap().success());
    program
}

/// Seconds of a bucket that does not end in the test. One of an hour would, at the full hour. With these widths, a rate times the width is
/// the count again, up to 4,000.
pub fn long_bucket() -> f64 {
    const WIDTHS: [u64; 11] = [2020, 2040, 2048, 2056, 2064, 2080, 2112, 2176, 2304, 2560, 3072];
    static WIDTH: LazyLock<u64> = LazyLock::new(|| {
        let now = UNIX_EPOCH.elapsed().unwrap().as_secs();
        WIDTHS
            .into_iter()
            .max_by_key(|width| width - now % width)
            .unwrap()
    });
    *WIDTH as f64
}

/// Stands for that, as an argument and in a configuration.
const LONG: &str = "LONG";

/// The configuration with that for `bucket_width: LONG`.
pub fn with_long_buckets(config: &str) -> String {
    config.replace(
        &format!("bucket_width: {LONG}"),
        &format!("bucket_width: {}", long_bucket()),
    )
}

/// An agent that is to be started. The text of a configuration file becomes one, and so do arguments: an agent with arguments is
/// called `agent`, and has a Unix socket of its own to send to, over which nothing gets lost.
pub struct Starter {
    /// The agent, or what becomes it with the arguments behind its own. Without variables that the test does not set.
    command: Command,
    directory: TempDir,
    /// Flags and their values, unless the test sets them.
    defaults: Vec<(&'static str, &'static str)>,
    has_socket: bool,
    stdout: Option<Stdio>,
    serves: bool,
    listens: bool,
}

impl Starter {
    pub fn new() -> Starter {
        let mut command = Command::new(WEIR);
        command.env_clear();
        Self::by(command)
    }

    /// Another program that becomes the agent. Its environment is the caller's to clear.
    pub fn by(mut command: Command) -> Starter {
        command.arg("run");
        Starter {
            command,
            directory: tempfile::tempdir().unwrap(),
            defaults: vec![
                ("udp", "127.0.0.1:0"),
                ("admin", "127.0.0.1:0"),
                ("hostname", "here"),
            ],
            has_socket: false,
            stdout: None,
            serves: true,
            listens: true,
        }
    }

    /// By a shell that executes `exec "$0" "$@"` with more before or behind it.
    pub fn by_shell(script: &str) -> Starter {
        let mut shell = Command::new("sh");
        shell.env_clear().args(["-c", script, WEIR]);
        Self::by(shell)
    }

    /// As another user, from a directory that it can read.
    pub fn by_user(user: u32) -> Starter {
        let mut starter = Self::new();
        let directory = starter.directory.path();
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new(copied_into(directory));
        command.env_clear().uid(user).gid(user).arg("run");
        starter.command = command;
        starter
    }

    /// Its configuration file.
    pub fn config(mut self, text: &str) -> Starter {
        let path = self.directory.path().join("weir.yaml");
        std::fs::write(&path, with_long_buckets(text)).unwrap();
        self.command.arg("--config").arg(path);
        self
    }

    pub fn arguments<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Starter {
        for argument in arguments {
            let flag = argument
                .as_ref()
                .to_str()
                .and_then(|argument| argument.strip_prefix("--"));
            self.defaults.retain(|(name, _)| Some(*name) != flag);
            match argument.as_ref() == LONG {
                true => self.command.arg(long_bucket().to_string()),
                false => self.command.arg(argument),
            };
        }
        self
    }

    pub fn environment(mut self, variables: &[(&str, &str)]) -> Starter {
        self.command.envs(variables.iter().copied());
        self
    }

    /// Leaves some of `udp`, `admin` and `hostname` to the configuration file.
    pub fn configured(mut self, names: &[&str]) -> Starter {
        self.defaults.retain(|(name, _)| !names.contains(name));
        self
    }

    /// A Unix datagram socket, which holds the sender back when it is full. [`Agent::send`] sends to it.
    pub fn socket(mut self) -> Starter {
        self.has_socket = true;
        self
    }

    /// Otherwise [`Agent::end`] returns what it writes there.
    pub fn stdout(mut self, stdout: Stdio) -> Starter {
        self.stdout = Some(stdout);
        self
    }

    /// An agent that another one may keep from serving: only its listeners are waited for.
    pub fn before_it_serves(mut self) -> Starter {
        self.serves = false;
        self
    }

    /// An agent that another one may keep from listening: nothing is waited for.
    pub fn before_it_listens(mut self) -> Starter {
        self.listens = false;
        self.before_it_serves()
    }

    /// Returns when it listens and its admin server answers.
    pub fn start(mut self) -> Agent {
        let path = self.directory.path().join("dsd.socket");
        if self.has_socket {
            self.command.arg("--uds").arg(&path);
        }
        for (name, value) in self.defaults {
            let variable = format!("WEIR_{}", name.to_uppercase());
            if !self.command.get_envs().any(|(known, _)| *known == *variable) {
                self.command.args([&format!("--{name}"), value]);
            }
        }
        let captures = self.stdout.is_none();
        let child = self
            .command
            .stdout(self.stdout.unwrap_or_else(Stdio::piped))
            .stderr(Stdio::piped())
            .spawn();
        let mut child = Killed(child.unwrap());
        let stdout = captures.then(|| {
            let mut stdout = child.0.stdout.take().unwrap();
            std::thread::spawn(move || {
                let mut text = String::new();
                stdout.read_to_string(&mut text).unwrap();
                text
            })
        });
        let mut log = Log::of(child.0.stderr.take().unwrap());
        let admin = match self.serves {
            true => log.see("admin on http://"),
            false => String::new(),
        };
        let address = match (self.serves, self.listens) {
            // All listeners are there before the admin server.
            (true, _) => log.seen("listening on udp://").unwrap_or_default(),
            (false, true) => log.see("listening on udp://"),
            (false, false) => String::new(),
        };
        let socket = self.has_socket.then(|| {
            let socket = UnixDatagram::unbound().unwrap();
            socket.connect(&path).unwrap();
            socket
        });
        Agent {
            child,
            stdout,
            log,
            admin,
            address: without_remark(&address),
            socket,
            directory: self.directory,
        }
    }
}

impl From<&str> for Starter {
    fn from(config: &str) -> Starter {
        Starter::new().config(config)
    }
}

impl From<&&str> for Starter {
    fn from(config: &&str) -> Starter {
        (*config).into()
    }
}

impl From<&String> for Starter {
    fn from(config: &String) -> Starter {
        config.as_str().into()
    }
}

impl From<&[&str]> for Starter {
    fn from(arguments: &[&str]) -> Starter {
        let mut starter = Starter::new().socket();
        starter.defaults[2].1 = "agent";
        starter.arguments(arguments)
    }
}

impl<const N: usize> From<&[&str; N]> for Starter {
    fn from(arguments: &[&str; N]) -> Starter {
        arguments.as_slice().into()
    }
}

/// Ended when dropped.
pub struct Agent {
    pub child: Killed,
    stdout: Option<JoinHandle<String>>,
    log: Log,
    /// Of its admin server, as host and port.
    pub admin: String,
    address: String,
    socket: Option<UnixDatagram>,
    directory: TempDir,
}

impl Agent {
    /// Starts with a configuration or with arguments, UDP on a port of the kernel's choice, and waits until it serves.
    pub fn start(what: impl Into<Starter>, environment: &[(&str, &str)]) -> Agent {
        what.into().environment(environment).start()
    }

    /// As [`Agent::start`], behind a command of the shell such as `ulimit`.
    pub fn start_after(command: &str, config: &str) -> Agent {
        let script = format!("{command} && exec \"$0\" \"$@\"");
        Starter::by_shell(&script).config(config).start()
    }

    /// For one that was started [`Starter::before_it_listens`]: waits until it does.
    pub fn listens(&mut self) {
        self.address = without_remark(&self.log.see("listening on udp://"));
    }

    /// For one that was started [`Starter::before_it_serves`]: waits until it does.
    pub fn serves(&mut self) {
        self.admin = self.log.see("admin on http://");
    }

    /// Waits for a log line with this text and returns what follows it.
    pub fn wait_for(&mut self, text: &str) -> String {
        self.log.wait_for(text)
    }

    /// Another configuration, for a reload.
    pub fn rewrite(&self, config: &str) {
        std::fs::write(self.directory.path().join("weir.yaml"), with_long_buckets(config)).unwrap();
    }

    /// Where its configuration is.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The path of its own Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("dsd.socket")
    }

    /// Of UDP, as host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Of the process.
    pub fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// The JSON of `/api/v1/status`.
    pub fn status(&self) -> Value {
        status(&self.admin)
    }

    /// An output's part of the status, by its name there.
    pub fn output(&self, name: &str) -> Value {
        let status = self.status();
        let outputs = status["outputs"].as_array().unwrap();
        let found = outputs.iter().find(|output| output["name"] == name);
        found
            .unwrap_or_else(|| panic!("{name} is not in {status}"))
            .clone()
    }

    /// An output's books.
    pub fn points(&self, output: &str) -> PointBooks {
        PointBooks::read(&self.output(output)["points"])
    }

    /// One datagram: to its Unix socket if it was started with one, otherwise over UDP.
    pub fn send(&self, messages: impl AsRef<[u8]>) {
        match &self.socket {
            Some(socket) => socket.send(messages.as_ref()),
            None => {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.send_to(messages.as_ref(), &self.address)
            }
        }
        .unwrap();
    }

    /// To the Unix socket, when nobody may be listening.
    pub fn try_send(&self, message: &str) -> std::io::Result<usize> {
        self.socket.as_ref().unwrap().send(message.as_bytes())
    }

    pub fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    /// Its exit status, once it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.0.try_wait().unwrap()
    }

    /// Ends it by SIGTERM, which delivers what was sent, and returns what it wrote on standard output and in its log.
    pub fn stop(self) -> (String, String) {
        self.signal("-TERM");
        let (status, stdout, log) = self.end();
        assert!(status.success(), "{status}:\n{log}");
        (stdout, log)
    }

    /// Ends it by SIGTERM, which delivers what was sent.
    pub fn finish(self) {
        self.stop();
    }

    /// Ends it by SIGTERM while an output cannot deliver what it has: in order, but with the exit code of a failure that names the
    /// loss.
    pub fn finish_with_a_loss(self) -> String {
        self.signal("-TERM");
        self.ended_with_a_loss()
    }

    /// Waits for such an end.
    pub fn ended_with_a_loss(self) -> String {
        let (status, _, log) = self.end();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains("weir: lost at the end"), "{log}");
        log
    }

    /// Waits for its end, which has to be a good one, and returns its log.
    pub fn finished(self) -> String {
        let (status, _, log) = self.end();
        assert!(status.success(), "{status}:\n{log}");
        log
    }

    /// Waits for its end: how it ended, what it wrote on standard output and in its log.
    pub fn end(mut self) -> (ExitStatus, String, String) {
        let status = self.child.0.wait().unwrap();
        let log = self.log.until_it_ends();
        assert!(!log.contains("do not balance"), "{log}");
        let stdout = self.stdout.take().map(|stdout| stdout.join().unwrap());
        (status, stdout.unwrap_or_default(), log)
    }
}

/// An address in the log, behind which may be a remark.
fn without_remark(address: &str) -> String {
    address.split(',').next().unwrap_or_default().to_owned()
}

/// By the `kill` of the shell.
pub fn signal(process: u32, name: &str) {
    let mut kill = Command::new("kill");
    let sent = kill.args([name, &process.to_string()]).status();
    assert!(sent.unwrap().success(), "{name} to {process}");
}

/// An output's books of points, or a relay's of messages.
#[derive(Debug)]
pub struct PointBooks {
    pub produced: u64,
    pub delivered: u64,
    pub pending: u64,
    /// Of these, in batches that are not encoded yet and in payloads that are open.
    pub to_write: u64,
    pub dropped: u64,
}

impl PointBooks {
    pub fn read(books: &Value) -> PointBooks {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let lies = &books["pending_where"];
        PointBooks {
            produced: number(&books["produced"]),
            delivered: number(&books["delivered"]),
            pending: number(&books["pending"]),
            to_write: number(&lies["to_encode"]) + number(&lies["open_payloads"]),
            dropped: books["dropped"].as_object().unwrap().values().map(number).sum(),
        }
    }
}
