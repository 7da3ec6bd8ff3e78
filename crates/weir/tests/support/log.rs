//! The log of a running agent, in whatever order its threads write it.

use std::io::{BufRead as _, BufReader};
use std::process::ChildStderr;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// However slow the machine: what takes longer is broken.
const PATIENCE: Duration = Duration::from_secs(60);

struct Line {
    text: String,
    /// Some wait was for this one.
    met: bool,
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
        let deadline = Instant::now() + PATIENCE;
        let mut looked_at = 0;
        loop {
            for line in &mut self.lines[looked_at..] {
                if line.met {
                    continue;
                }
                if let Some((_, rest)) = line.text.split_once(text) {
                    line.met = true;
                    return rest.to_owned();
                }
            }
            looked_at = self.lines.len();
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
