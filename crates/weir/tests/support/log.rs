//! The log of a running agent, in whatever order its threads write it.

use std::io::{BufRead as _, BufReader};
use std::process::ChildStderr;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::PATIENCE;

struct Line {
    text: String,
    /// Some wait was for this one.
    met: bool,
}

impl Line {
    fn after(&self, text: &str) -> Option<String> {
        self.text.split_once(text).map(|(_, rest)| rest.to_owned())
    }
}

pub struct Log {
    arriving: Receiver<String>,
    lines: Vec<Line>,
}

impl Log {
    pub fn of(stderr: ChildStderr) -> Log {
        let (sender, arriving) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Log {
            arriving,
            lines: Vec::new(),
        }
    }

    /// Waits for a line with this text and returns what follows it there.
    ///
    /// Two threads' lines come in any order, so a line that came before the one of an earlier wait counts too; but every line is met
    /// once only, so that who waits twice waits for two lines.
    pub fn wait_for(&mut self, text: &str) -> String {
        let at = self.position(text, false);
        self.lines[at].met = true;
        self.lines[at].after(text).unwrap()
    }

    /// The same, but the line may have been met, and may be met later.
    pub fn see(&mut self, text: &str) -> String {
        let at = self.position(text, true);
        self.lines[at].after(text).unwrap()
    }

    /// The same of a line that has come already.
    pub fn seen(&self, text: &str) -> Option<String> {
        self.lines.iter().find_map(|line| line.after(text))
    }

    /// Waits for the first line with this text, of all or of those that are not met.
    fn position(&mut self, text: &str, of_all: bool) -> usize {
        let deadline = Instant::now() + PATIENCE;
        let mut at = 0;
        loop {
            while let Some(line) = self.lines.get(at) {
                if (of_all || !line.met) && line.text.contains(text) {
                    return at;
                }
                at += 1;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.arriving.recv_timeout(left) {
                Ok(text) => self.lines.push(Line { text, met: false }),
                Err(error) => panic!("no {text:?} in the log ({error}):\n{}", self.text()),
            }
        }
    }

    /// All lines to the end of the process.
    #[allow(dead_code)]
    pub fn until_it_ends(&mut self) -> String {
        let rest = self.arriving.iter().map(|text| Line { text, met: false });
        self.lines.extend(rest);
        self.text()
    }

    fn text(&self) -> String {
        self.lines.iter().map(|line| line.text.clone() + "\n").collect()
    }
}
