//! A helper process that starts the program on disk, for an agent that has dropped the right to run programs.
//!
//! It starts earlier, holds nothing, listens nowhere, and can only start the same program with the same arguments and `--take-over`. It
//! ends with the agent.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use rustix::process::DumpableBehavior;

use weir_system::failure::Failure;

/// The hidden command.
pub const COMMAND: &str = "starter";

/// The flag that makes the program take over.
pub const TAKE_OVER: &str = "--take-over";

const START: u8 = b's';

/// Descriptors and variables that children of the started process must not inherit.
const ONES_OWN: &[&str] = &[
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PIDFDID",
    "WATCHDOG_PID",
];

/// The agent's end.
#[derive(Debug)]
pub struct Starter {
    stream: UnixStream,
    child: Mutex<std::process::Child>,
}

impl Starter {
    /// Call before the agent drops its rights and starts threads.
    pub fn start() -> io::Result<Starter> {
        let (own, others) = UnixStream::pair()?;
        let program = std::env::current_exe()?;
        let mut command = Command::new(&program);
        command
            .arg(COMMAND)
            .arg(&program)
            .args(std::env::args_os().skip(1));
        let child = command.stdin(OwnedFd::from(others)).spawn()?;
        Ok(Starter {
            stream: own,
            child: Mutex::new(child),
        })
    }

    /// Starts the program on disk.
    pub fn go(&self) -> io::Result<()> {
        (&self.stream).write_all(&[START])
    }

    /// Waits until a started process has ended, and returns its status. An error means that the starter has ended.
    pub fn wait(&self) -> io::Result<String> {
        let mut length = [0; 4];
        (&self.stream).read_exact(&mut length)?;
        let mut text = vec![0; u32::from_le_bytes(length).min(4096) as usize];
        (&self.stream).read_exact(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Readable when [`Starter::wait`] has something to return.
impl AsFd for Starter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let mut child = self
            .child
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = child.wait();
    }
}

/// Runs the starter: `arguments` are the program and the agent's arguments.
pub fn run(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::runtime(format!("starter: {error}"));
    // Its environment may have keys. The started program decides for itself.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let program = arguments
        .next()
        .ok_or_else(|| Failure::usage("starter: only weir starts it"))?;
    let arguments: Vec<_> = arguments.filter(|argument| argument != TAKE_OVER).collect();
    let stream = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let stream = UnixStream::from(stream);
    let mut order = [0];
    while (&stream).read(&mut order).is_ok_and(|bytes| bytes > 0) {
        let mut command = Command::new(&program);
        command.args(&arguments).arg(TAKE_OVER).stdin(Stdio::null());
        for name in ONES_OWN {
            command.env_remove(name);
        }
        let reported = stream.try_clone().map_err(failed)?;
        match command.spawn() {
            Ok(mut child) => drop(std::thread::spawn(move || {
                let ended = child.wait().map_or_else(
                    |error| error.to_string(),
                    |status| match (status.code(), status.signal()) {
                        (Some(code), _) => format!("it ended with exit code {code}; its log says why"),
                        (None, signal) => format!("signal {} ended it", signal.unwrap_or(0)),
                    },
                );
                report(&reported, &ended);
            })),
            Err(error) => report(
                &reported,
                &format!("{} cannot be run: {error}", program.display()),
            ),
        }
    }
    Ok(())
}

/// The requester may have ended.
fn report(mut stream: &UnixStream, text: &str) {
    let mut message = (text.len() as u32).to_le_bytes().to_vec();
    message.extend(text.as_bytes());
    let _ = stream.write_all(&message);
}
