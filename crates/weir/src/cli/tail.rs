//! `weir tail`: messages as they arrive.

use std::fmt::Write as _;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use clap::{Arg, ArgMatches, Command, value_parser};
use weir_units::grouped;

use super::agent::{self, admin_address};
use super::stream::{self, Body};
use super::switch;
use weir_admin::tap::message::{MessageOutcome, TailMessage};
use weir_admin::tap::tail::{RATE_MAX, Share};
use weir_status::bad_bytes::BadBytes;
use weir_system::failure::Failure;

/// The agent sends something every second.
const QUIET_MAX: Duration = Duration::from_secs(10);

/// Interval at which the share of shown messages is printed.
const SHARE_INTERVAL: Duration = Duration::from_secs(5);

/// Characters shown around the error.
const AROUND: usize = 60;

pub fn command() -> Command {
    Command::new("tail")
        .about("Show messages as they arrive, and whether weir accepts them")
        .after_help(
            "At high rates a random sample is shown; its share is printed on standard error.\n\
             Example: weir tail 'page.*' --where env:prod",
        )
        .arg(
            Arg::new("match")
                .value_name("MATCH")
                .help("A part of the name, or a pattern with * and ?"),
        )
        .arg(stream::where_argument())
        .args(agent::arguments())
        .arg(
            Arg::new("rate")
                .long("rate")
                .value_name("NUMBER")
                .value_parser(value_parser!(u64).range(1..=RATE_MAX))
                .default_value("100")
                .help("The maximum messages to show per second"),
        )
        .arg(switch("rejected", "Only rejected messages"))
        .arg(switch("json", "Print the agent's events as JSON lines"))
}

pub fn tail(arguments: &ArgMatches) -> Result<(), Failure> {
    let address = admin_address(arguments)?;
    let text = |id: &str| arguments.get_one::<String>(id).cloned().unwrap_or_default();
    let mut pairs = vec![("match", text("match"))];
    let tags = arguments.get_many::<String>("where").into_iter().flatten();
    pairs.extend(tags.map(|tag| ("where", tag.clone())));
    pairs.push((
        "rate",
        arguments
            .get_one::<u64>("rate")
            .copied()
            .unwrap_or(RATE_MAX)
            .to_string(),
    ));
    if arguments.get_flag("rejected") {
        pairs.push(("verdict", "rejected".to_owned()));
    }
    let path = format!("/api/v1/tail?{}", stream::query(&pairs));
    let mut shows = MessagePrinter {
        json: arguments.get_flag("json"),
        colour: io::stdout().is_terminal(),
        share_printed: None,
    };
    loop {
        let body = Body::open(address, &path, QUIET_MAX)?;
        if shows.all(body).map_err(|error| ended(address, &error))? {
            return Ok(());
        }
    }
}

fn ended(address: std::net::SocketAddr, error: &io::Error) -> Failure {
    Failure::runtime(format!("the agent at {address} stopped sending: {error}"))
}

struct MessagePrinter {
    json: bool,
    colour: bool,
    /// When the share of shown messages was last printed.
    share_printed: Option<Instant>,
}

impl MessagePrinter {
    /// Prints until the stream ends. Returns true if the reader of our output has closed it.
    fn all(&mut self, mut body: Body) -> io::Result<bool> {
        let (mut line, mut event) = (String::new(), String::new());
        let mut begun = false;
        loop {
            line.clear();
            match body.read_line(&mut line) {
                // The agent ends streams after a while, and cuts one that is not read. One that ends at once is not from an agent.
                Ok(0) if begun => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if begun && stream::is_cut(&error) => return Ok(false),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
            if let Some(name) = line.strip_prefix("event: ") {
                name.trim_end().clone_into(&mut event);
            } else if let Some(data) = line.strip_prefix("data: ") {
                begun = true;
                if self.event(&event, data.trim_end())? {
                    return Ok(true);
                }
            }
        }
    }

    fn event(&mut self, name: &str, data: &str) -> io::Result<bool> {
        if self.json {
            return print(&format!("{data}\n"));
        }
        match name {
            "message" => print(&message(&serde_json::from_str(data)?, self.colour)),
            "share" => {
                self.share(&serde_json::from_str(data)?);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    fn share(&mut self, share: &Share) {
        let late = self
            .share_printed
            .is_none_or(|share_printed| share_printed.elapsed() >= SHARE_INTERVAL);
        if share.share < 1.0 && late {
            self.share_printed = Some(Instant::now());
            eprintln!(
                "# {} of {} matching messages shown ({} arrived in this second)",
                grouped(share.shown),
                grouped(share.matched),
                grouped(share.messages)
            );
        }
    }
}

/// Returns true if the reader of our output has closed it.
fn print(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(true),
        written => written.map(|()| false),
    }
}

const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";
const DIM: &str = "\x1b[2m";
const MARK: &str = "\x1b[1;7;31m";
const OFF: &str = "\x1b[0m";

/// One message, with its error on a second line.
fn message(seen: &TailMessage, colour: bool) -> String {
    let paint = |code: &str, text: &str| {
        if colour {
            format!("{code}{text}{OFF}")
        } else {
            text.to_owned()
        }
    };
    let mut head = format!("{} {} ", clock(seen.time), sender(seen));
    let indent = head.chars().count();
    head = paint(DIM, &head);
    let code = if seen.verdict == MessageOutcome::Rejected {
        RED
    } else {
        YELLOW
    };
    match (&seen.bad, seen.verdict) {
        (Some(bad), _) => {
            let (before, after) = (last(&bad.before), first(&bad.after));
            let at = indent + before.chars().count();
            let marked = paint(MARK, &bad.bytes);
            let mut text = format!("{head}{before}{marked}{after}\n");
            let under = "^".repeat(bad.bytes.chars().count().max(1));
            let _ = writeln!(
                text,
                "{:at$}{}",
                "",
                paint(code, &format!("{under} {}", why(seen, bad)))
            );
            text
        }
        (None, MessageOutcome::Accepted) => format!("{head}{}\n", seen.line),
        (None, verdict) => {
            let reason = seen.reason.as_deref().unwrap_or_default();
            let note = format!("{}: {reason}", verdict.as_str());
            format!("{head}{}\n{:indent$}{}\n", seen.line, "", paint(code, &note))
        }
    }
}

fn why(seen: &TailMessage, bad: &BadBytes) -> String {
    let reason = seen.reason.as_deref().unwrap_or_default();
    format!("rejected: {reason}, {} of {}", bad.place(), seen.bytes)
}

fn sender(seen: &TailMessage) -> String {
    let listener = seen.listener.as_str();
    let from = match (&seen.address, seen.pid, &seen.container) {
        (_, Some(pid), Some(container)) => {
            let short: String = container.chars().take(12).collect();
            format!("pid {pid} of {short}")
        }
        (_, Some(pid), None) => format!("pid {pid}"),
        (Some(address), None, _) => address.clone(),
        (None, None, _) => return listener.to_owned(),
    };
    format!("{listener} < {from}")
}

fn last(text: &str) -> String {
    let length = text.chars().count();
    if length <= AROUND {
        return text.to_owned();
    }
    let end: String = text.chars().skip(length - AROUND).collect();
    format!("...{end}")
}

fn first(text: &str) -> String {
    if text.chars().count() <= AROUND {
        return text.to_owned();
    }
    let begin: String = text.chars().take(AROUND).collect();
    format!("{begin}...")
}

/// The time of the day, UTC.
fn clock(time: f64) -> String {
    let milliseconds = (time * 1e3) as u64 % 86_400_000;
    let seconds = milliseconds / 1000;
    format!(
        "{:02}:{:02}:{:02}.{:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        milliseconds % 1000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected() -> TailMessage {
        TailMessage {
            time: 1_795_392_741.25,
            listener: "udp://127.0.0.1:8125".to_owned(),
            address: Some("127.0.0.1:40000".to_owned()),
            line: "a:zwei|c".to_owned(),
            bytes: 8,
            verdict: MessageOutcome::Rejected,
            reason: Some("bad_value".to_owned()),
            bad: Some(BadBytes {
                offset: 2,
                length: 4,
                before: "a:".to_owned(),
                bytes: "zwei".to_owned(),
                after: "|c".to_owned(),
            }),
            ..TailMessage::default()
        }
    }

    #[test]
    fn the_error_is_shown_below_its_bytes() {
        let text = message(&rejected(), false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "00:12:21.250Z udp://127.0.0.1:8125 < 127.0.0.1:40000 a:zwei|c"
        );
        assert_eq!(lines[0].find("zwei"), lines[1].find("^^^^ "));
        assert!(
            lines[1].ends_with("^^^^ rejected: bad_value, bytes 2 to 5 of 8"),
            "{text}"
        );
        assert!(message(&rejected(), true).contains("\x1b[1;7;31mzwei\x1b[0m|c"));
    }

    #[test]
    fn other_outcomes_have_their_reason() {
        let seen = TailMessage {
            verdict: MessageOutcome::Dropped,
            reason: Some("rule: noisy".to_owned()),
            bad: None,
            pid: Some(7),
            container: Some("0123456789abcdef".to_owned()),
            ..rejected()
        };
        let text = message(&seen, false);
        assert!(text.contains("< pid 7 of 0123456789ab a:zwei|c\n"), "{text}");
        assert!(text.trim_end().ends_with("  dropped: rule: noisy"), "{text}");
    }
}
