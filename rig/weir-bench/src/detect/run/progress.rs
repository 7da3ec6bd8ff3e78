//! Progress and remaining time: on a terminal one changing line, elsewhere plain lines.

use crate::detect::report::show_duration;
use std::io::{self, IsTerminal, Write};
use std::time::Instant;

pub(super) struct Progress {
    began: Instant,
    pub total: usize,
    pub done: usize,
    began_at: Option<usize>,
    terminal: bool,
}

impl Progress {
    pub fn new(total: usize) -> Self {
        Self {
            began: Instant::now(),
            total,
            done: 0,
            began_at: None,
            terminal: io::stderr().is_terminal(),
        }
    }

    pub fn step(&mut self) {
        if self.began_at.is_none() {
            self.began_at = Some(self.done);
        }
        self.done += 1;
    }

    fn left(&self) -> String {
        let made = self.done - self.began_at.unwrap_or(self.done);
        if made == 0 {
            return String::new();
        }
        let each = self.began.elapsed() / made as u32;
        format!(
            ", {} left",
            show_duration(each * self.total.saturating_sub(self.done) as u32)
        )
    }

    pub fn show(&self, what: &str) {
        if self.terminal {
            let done = (100 * self.done).checked_div(self.total).unwrap_or(100).min(100);
            eprint!("\r\x1b[2K{done:3} %{}: {what}", self.left());
            let _ = io::stderr().flush();
        }
    }

    pub fn print_line(&self, line: &str) {
        if self.terminal {
            eprintln!("\r\x1b[2K{line}");
        } else {
            eprintln!("[{}/{}{}] {line}", self.done, self.total, self.left());
        }
    }

    pub fn end(&self) {
        if self.terminal {
            eprint!("\r\x1b[2K");
        }
    }
}
