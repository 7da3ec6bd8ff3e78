//! A pseudo-terminal with a program in it, as somebody sees who sits before it.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::PATIENCE;

pub struct Terminal {
    /// Typed input goes in, the program's display comes out.
    keyboard: Option<File>,
    child: Child,
    screen: vt100::Parser,
    /// Everything that the program wrote.
    bytes: Vec<u8>,
}

impl Terminal {
    /// Runs this program as the first of a session whose terminal is a new one.
    pub fn run(
        program: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
        rows: u16,
        columns: u16,
    ) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        resize(&keyboard, rows, columns);
        let name = PathBuf::from(ptsname(&keyboard, Vec::new()).unwrap().into_string().unwrap());
        let open = || {
            let terminal = File::options().read(true).write(true).open(&name).unwrap();
            Stdio::from(terminal)
        };
        // Tests that run under `nohup` would hand its ignored SIGHUP on.
        let child = Command::new("env")
            .args(["--default-signal=HUP", "setsid", "--ctty", program])
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("TERM", "xterm-256color")
            .envs(environment.iter().copied())
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn()
            .expect("setsid of util-linux is needed");
        Self {
            keyboard: Some(File::from(keyboard)),
            child,
            screen: vt100::Parser::new(count(rows), count(columns), 0),
            bytes: Vec::new(),
        }
    }

    /// The binary of this project.
    pub fn weir(arguments: &[&str], environment: &[(&str, &str)], rows: u16, columns: u16) -> Self {
        Self::run(env!("CARGO_BIN_EXE_weir"), arguments, environment, rows, columns)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Types.
    pub fn keys(&mut self, text: &str) {
        let mut keyboard = self.keyboard.as_ref().unwrap();
        keyboard.write_all(text.as_bytes()).unwrap();
    }

    pub fn resize(&mut self, rows: u16, columns: u16) {
        self.screen.screen_mut().set_size(count(rows), count(columns));
        resize(self.keyboard.as_ref().unwrap(), rows, columns);
    }

    /// Visible lines.
    pub fn contents(&self) -> String {
        self.screen.screen().contents()
    }

    pub fn screen(&self) -> &vt100::Screen {
        self.screen.screen()
    }

    /// All that was ever written.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Waits until the screen is as wanted, and returns it.
    pub fn until(&mut self, what: &str, wanted: impl Fn(&vt100::Screen) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        while !wanted(self.screen.screen()) {
            assert!(
                self.take(deadline),
                "{what}: not to be seen in\n{}\n",
                self.contents()
            );
        }
        self.contents()
    }

    pub fn until_shown(&mut self, text: &str) -> String {
        self.until(text, |screen| screen.contents().contains(text))
    }

    /// Takes what the program writes next; whether there was something.
    fn take(&mut self, deadline: Instant) -> bool {
        let keyboard = self.keyboard.as_mut().unwrap();
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap();
        let mut polled = [PollFd::new(keyboard, PollFlags::IN)];
        if poll(&mut polled, Some(&timeout)).unwrap() == 0 {
            return false;
        }
        let mut buffer = [0; 65536];
        // The end of the last program at a terminal is an error here.
        let length = keyboard.read(&mut buffer).unwrap_or(0);
        self.bytes.extend_from_slice(&buffer[..length]);
        self.screen.process(&buffer[..length]);
        length > 0
    }

    /// Closes the terminal, as closing its window does.
    pub fn close(&mut self) {
        self.keyboard = None;
    }

    /// Waits for the end of the program, looking at what it writes until then.
    pub fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                while self.keyboard.is_some() && self.take(Instant::now() + Duration::from_millis(1)) {}
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.contents());
            if self.keyboard.is_none() || !self.take(Instant::now() + Duration::from_millis(20)) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn count(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap()
}

fn resize(terminal: impl std::os::fd::AsFd, rows: u16, columns: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal.as_fd(), size).unwrap();
}
