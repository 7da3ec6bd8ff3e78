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
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::process::DumpableBehavior;

use weir_system::failure::Failure;

/// The hidden command.
pub const COMMAND: &str = "starter";

/// The flag that makes the program take over.
pub const TAKE_OVER: &str = "--take-over";

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
    /// The number of the process that was started last. An order is this number, and the report of its end begins with it.
    started: AtomicU8,
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
            started: AtomicU8::new(0),
        })
    }

    /// Starts the program on disk.
    pub fn go(&self) -> io::Result<()> {
        let number = self.started.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        (&self.stream).write_all(&[number])
    }

    /// Waits until a started process has ended, and returns its status. `None`: it was not the one that was started last, which may be about to
    /// take over. An error means that the starter has ended.
    pub fn wait(&self) -> io::Result<Option<String>> {
        let (mut number, mut length) = ([0], [0; 4]);
        (&self.stream).read_exact(&mut number)?;
        (&self.stream).read_exact(&mut length)?;
        let mut text = vec![0; u32::from_le_bytes(length).min(4096) as usize];
        (&self.stream).read_exact(&mut text)?;
        let is_last = number == [self.started.load(Ordering::Acquire)];
        Ok(is_last.then(|| String::from_utf8_lossy(&text).into_owned()))
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
                report(&reported, order, &ended);
            })),
            Err(error) => report(
                &reported,
                order,
                &format!("{} cannot be run: {error}", program.display()),
            ),
        }
    }
    Ok(())
}

/// The requester may have ended.
fn report(mut stream: &UnixStream, [number]: [u8; 1], text: &str) {
    let mut message = vec![number];
    message.extend((text.len() as u32).to_le_bytes());
    message.extend(text.as_bytes());
    let _ = stream.write_all(&message);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process of a failed upgrade may end when the next upgrade has begun.
    #[test]
    fn the_end_of_an_earlier_process_is_not_that_of_the_last_one() {
        let (own, others) = UnixStream::pair().unwrap();
        let starter = Starter {
            stream: own,
            child: Mutex::new(Command::new("true").spawn().unwrap()),
            started: AtomicU8::new(u8::MAX - 1),
        };
        let order = || {
            starter.go().unwrap();
            let mut order = [0];
            (&others).read_exact(&mut order).unwrap();
            order
        };
        let first = order();
        report(&others, first, "first");
        assert_eq!(starter.wait().unwrap().as_deref(), Some("first"));
        let second = order();
        report(&others, first, "first, again");
        report(&others, second, "second");
        assert_eq!(starter.wait().unwrap(), None);
        assert_eq!(starter.wait().unwrap().as_deref(), Some("second"));
        drop(others);
        assert!(starter.wait().is_err());
    }
}
