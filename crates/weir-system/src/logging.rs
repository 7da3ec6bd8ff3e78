//! Logs: lines on standard error, written by a separate thread.
//!
//! Callers pass the line on and continue: a stopped terminal, a full disk or a closed pipe costs only log lines, which are counted.
//! Standard output is for the outputs.

use std::backtrace::BacktraceStatus;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::reload;

use weir_config::LogLevel;

/// Maximum lines that wait for the writer.
const LINES_MAX: usize = 256;

/// Longer lines are cut.
const LINE_BYTES_MAX: usize = 4096;

static LOST: AtomicU64 = AtomicU64::new(0);

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Lines that could not be written.
pub fn lines_lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Threads and tasks of this process that have panicked.
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Counts and logs panics from now on: whatever ends by one, an operator sees it.
fn count_panics() {
    std::panic::set_hook(Box::new(|panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        // Quoted, because it may contain what somebody sent.
        let message = panic.payload_as_str().unwrap_or_default();
        let backtrace = match std::backtrace::Backtrace::capture() {
            backtrace if backtrace.status() == BacktraceStatus::Captured => format!("\n{backtrace}"),
            _ => String::new(),
        };
        let said = format!("a defect of weir: thread {name:?} panicked at {place}: {message:?}{backtrace}");
        // By another thread: whatever failed in this one, such as its clock, may fail again, and a panic in here ends the process.
        let logger = tracing::dispatcher::get_default(Clone::clone);
        let log = move || tracing::dispatcher::with_default(&logger, || tracing::error!("{said}"));
        if let Ok(logging) = std::thread::Builder::new().name("panic".into()).spawn(log) {
            let _ = logging.join();
        }
    }));
}

enum LogEntry {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// Logging of the process; keep it until the end, for [`Logging::flush`].
pub struct Logging {
    level: reload::Handle<LevelFilter, tracing_subscriber::Registry>,
    queue: SyncSender<LogEntry>,
    /// Set until the writing thread starts.
    lines: Option<Receiver<LogEntry>>,
}

impl Logging {
    /// Sets up logging for the process. Works once; a second call changes nothing. Lines wait until [`Logging::write`].
    pub fn new(level: LogLevel) -> Self {
        let (queue, lines) = mpsc::sync_channel(LINES_MAX);
        let writer = LineWriter { queue: queue.clone() };
        let (filter, handle) = reload::Layer::new(filter_of(level));
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(writer)
            .with_ansi(io::stderr().is_terminal())
            .with_target(false)
            // Its internal errors would be printed with a macro that panics if standard error is closed.
            .log_internal_errors(false);
        use tracing_subscriber::layer::SubscriberExt as _;
        use tracing_subscriber::util::SubscriberInitExt as _;
        let _ = tracing_subscriber::registry().with(filter).with(layer).try_init();
        count_panics();
        Self {
            level: handle,
            queue,
            lines: Some(lines),
        }
    }

    /// Starts the writing thread.
    pub fn write(&mut self) -> io::Result<()> {
        self.lines
            .take()
            .map_or(Ok(()), |lines| start_writer(lines, io::stderr()))
    }

    pub fn set_level(&self, level: LogLevel) {
        let _ = self.level.modify(|filter| *filter = filter_of(level));
    }

    /// Waits until earlier lines are written, for a limited time.
    pub fn flush(&self) {
        let (done, written) = mpsc::sync_channel(1);
        if self.queue.try_send(LogEntry::Flush(done)).is_ok() {
            let _ = written.recv_timeout(Duration::from_secs(1));
        }
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        // Also writes the lines of an agent that failed to start.
        if self.write().is_ok() {
            self.flush();
        }
    }
}

fn filter_of(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

fn start_writer(lines: Receiver<LogEntry>, target: impl Write + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new()
        .name("log".to_owned())
        .stack_size(128 * 1024)
        .spawn(|| write_lines(lines, target))
        .map(drop)
}

fn write_lines(lines: Receiver<LogEntry>, mut target: impl Write) {
    let mut reported = 0;
    for entry in lines {
        match entry {
            LogEntry::Line(line) => {
                let lost = lines_lost();
                if lost > reported && writeln!(target, "({} log lines were lost)", lost - reported).is_ok() {
                    reported = lost;
                }
                if target.write_all(&line).is_err() {
                    LOST.fetch_add(1, Ordering::Relaxed);
                }
            }
            LogEntry::Flush(done) => {
                let _ = target.flush();
                let _ = done.try_send(());
            }
        }
    }
}

/// Takes complete lines and never waits.
#[derive(Clone)]
struct LineWriter {
    queue: SyncSender<LogEntry>,
}

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.queue.try_send(LogEntry::Line(one_line(line)))
        {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An event with its line breaks escaped: an error may quote text from elsewhere, which must not look like another event.
fn one_line(event: &[u8]) -> Vec<u8> {
    let text = event.strip_suffix(b"\n").unwrap_or(event);
    let (text, end) = match text.split_at_checked(LINE_BYTES_MAX) {
        Some((cut, rest)) if !rest.is_empty() => (cut, &b"...\n"[..]),
        _ => (text, &b"\n"[..]),
    };
    let mut line = Vec::with_capacity(text.len() + end.len());
    for byte in text {
        match byte {
            b'\n' => line.extend(b"\\n"),
            b'\r' => line.extend(b"\\r"),
            byte => line.push(*byte),
        }
    }
    line.extend(end);
    line
}

impl<'a> MakeWriter<'a> for LineWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Log lines about refused messages: for each listener and reason at most one per interval, with one example. Otherwise senders of bad
/// input could flood the log.
#[derive(Debug)]
pub struct BadInput {
    interval: Duration,
    seen: HashMap<(String, String), LineLimit>,
}

#[derive(Debug)]
struct LineLimit {
    /// When a line may be logged again.
    next: Instant,
    /// The total at the last line.
    reported: u64,
}

/// Maximum pairs of listener and reason.
const PAIRS_MAX: usize = 1024;

/// Bytes of an example.
const EXAMPLE_BYTES_MAX: usize = 120;

impl BadInput {
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            seen: HashMap::new(),
        }
    }

    /// The line to log now, if one is due. `total` counts all such messages so far; `example` is printable.
    pub fn line(
        &mut self,
        listener: &str,
        reason: &str,
        total: u64,
        example: &str,
        now: Instant,
    ) -> Option<String> {
        let key = (listener.to_owned(), reason.to_owned());
        if self.seen.len() >= PAIRS_MAX && !self.seen.contains_key(&key) {
            self.seen.retain(|_, seen| seen.next > now);
            if self.seen.len() >= PAIRS_MAX {
                return None;
            }
        }
        let seen = self.seen.entry(key).or_insert(LineLimit {
            next: now,
            reported: 0,
        });
        if now < seen.next {
            return None;
        }
        // The example may arrive before the count that includes it.
        let count = match total.saturating_sub(seen.reported) {
            0 | 1 => "a message".to_owned(),
            new => format!("{new} messages"),
        };
        seen.reported = total.max(seen.reported);
        seen.next = now + self.interval;
        Some(format!(
            "{listener}: refused {count} ({reason}), for example {example}"
        ))
    }
}

/// Foreign input as one line of visible characters, quoted and truncated.
pub fn printable(input: &[u8]) -> String {
    let cut = &input[..input.len().min(EXAMPLE_BYTES_MAX)];
    let mut text = String::from("\"");
    for chunk in cut.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => text.extend(['\\', c]),
                // Characters that a terminal interprets or does not show.
                c if weir_config::is_invisible(c) => {
                    text.extend(c.escape_default());
                }
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text.push('"');
    if cut.len() < input.len() {
        let _ = write!(text, " and {} bytes more", input.len() - cut.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_input_is_logged_once_per_interval_with_its_count() {
        let mut log = BadInput::new(Duration::from_secs(10));
        let start = Instant::now();
        let mut at = |seconds, reason: &str, total| {
            log.line(
                "udp://h:1",
                reason,
                total,
                "\"a:b|c\"",
                start + Duration::from_secs(seconds),
            )
        };
        let first = at(0, "bad_value", 0).unwrap();
        assert_eq!(
            first,
            "udp://h:1: refused a message (bad_value), for example \"a:b|c\""
        );
        assert_eq!(at(1, "bad_value", 5), None);
        let other = at(1, "bad_type", 2).unwrap();
        assert_eq!(
            other,
            "udp://h:1: refused 2 messages (bad_type), for example \"a:b|c\""
        );
        assert_eq!(at(9, "bad_value", 10), None);
        let again = at(10, "bad_value", 11).unwrap();
        assert_eq!(
            again,
            "udp://h:1: refused 11 messages (bad_value), for example \"a:b|c\""
        );
        assert!(at(20, "bad_value", 15).unwrap().contains("refused 4 messages"));
    }

    #[test]
    fn listeners_and_reasons_are_bounded() {
        let mut log = BadInput::new(Duration::from_secs(10));
        let now = Instant::now();
        for number in 0..5000 {
            log.line(&number.to_string(), "bad_value", 1, "", now);
        }
        assert!(log.seen.len() <= PAIRS_MAX);
        assert!(
            log.line("another", "bad_value", 1, "", now + Duration::from_secs(20))
                .is_some()
        );
    }

    #[test]
    fn examples_are_one_harmless_line() {
        assert_eq!(
            printable(b"a\nb\x1b[31m\xff\"\\"),
            "\"a\\nb\\u{1b}[31m\\xff\\\"\\\\\""
        );
        assert_eq!(printable("é\u{202e}".as_bytes()), "\"é\\u{202e}\"");
        let long = printable(&[b'x'; 1000]);
        assert!(long.ends_with("\" and 880 bytes more"), "{long}");
    }

    #[test]
    fn an_event_is_one_line() {
        let (queue, lines) = mpsc::sync_channel(LINES_MAX);
        let mut writer = LineWriter { queue };
        let mut written = |event: &str| {
            writer.write_all(event.as_bytes()).unwrap();
            match lines.try_recv().unwrap() {
                LogEntry::Line(line) => String::from_utf8(line).unwrap(),
                LogEntry::Flush(_) => unreachable!(),
            }
        };
        assert_eq!(written("plain\n"), "plain\n");
        assert_eq!(written("a\nERROR b\r\n\n"), "a\\nERROR b\\r\\n\n");
        let whole = "x".repeat(LINE_BYTES_MAX) + "\n";
        assert_eq!(written(&whole), whole);
        let long = written(&("x".repeat(LINE_BYTES_MAX + 1) + "\n"));
        assert_eq!(long, "x".repeat(LINE_BYTES_MAX) + "...\n");
    }

    /// Accepts nothing until it is released, like a pipe with a stopped reader.
    struct Stuck(Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_panic_is_counted_and_logged_once_on_one_line() {
        let hook = std::panic::take_hook();
        count_panics();
        let (queue, lines) = mpsc::sync_channel(LINES_MAX);
        let subscriber = tracing_subscriber::fmt()
            .with_writer(LineWriter { queue })
            .with_ansi(false)
            .finish();
        let before = panics();
        let dies = || tracing::subscriber::with_default(subscriber, || panic!("as\nintended"));
        let thread = std::thread::Builder::new().name("mill".into()).spawn(dies);
        let ended = thread.unwrap().join();
        std::panic::set_hook(hook);
        assert!(ended.is_err());
        assert_eq!(panics(), before + 1);
        let logged = lines.try_iter().map(|entry| match entry {
            LogEntry::Line(line) => String::from_utf8(line).unwrap(),
            LogEntry::Flush(_) => unreachable!("nothing flushes"),
        });
        let logged: Vec<String> = logged.collect();
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(
            logged[0].contains("thread \"mill\" panicked at crates/weir-system/src/logging.rs:"),
            "{logged:?}"
        );
        assert!(logged[0].contains(r#": "as\nintended""#), "{logged:?}");
    }

    #[test]
    fn a_stuck_writer_costs_lines_and_nothing_else() {
        let (release, gate) = mpsc::channel();
        let (queue, lines) = mpsc::sync_channel(LINES_MAX);
        let mut writer = LineWriter { queue };
        start_writer(lines, Stuck(gate)).unwrap();
        let before = lines_lost();
        for _ in 0..LINES_MAX + 100 {
            writer.write_all(b"line\n").unwrap();
        }
        assert!(lines_lost() - before >= 99);
        drop(release);
    }
}
