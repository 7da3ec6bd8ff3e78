//! `weir status`: what the running agent says about itself, for people.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::table::{Table, bytes, duration, grouped, rate};
use crate::admin::contexts::LimitedRow;
use crate::admin::status::{
    LimitStatus, MemoryShare, OriginReport, OutputStatus, PointBooks, Reasons, ReloadStatus, RuleStatus,
    RulesStatus, Status, sum_of,
};
use crate::config::{self, Flag, Inputs};
use crate::failure::Failure;
use crate::logging::printable;
use crate::sandbox::SandboxStatus;

const TIMEOUT: Duration = Duration::from_secs(5);

/// How often `--watch` asks.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// More than any answer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

pub fn command() -> Command {
    Command::new("status")
        .about("Show what the running agent received, lost and delivered")
        .arg(
            Arg::new("config")
                .long("config")
                .short('c')
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("The agent's configuration file, for its admin address [variable: WEIR_CONFIG]"),
        )
        .arg(
            Arg::new("admin")
                .long("admin")
                .value_name("ADDRESS")
                .help("The agent's admin address [variable: WEIR_ADMIN] [default: 127.0.0.1:8127]"),
        )
        .arg(
            Arg::new("watch")
                .long("watch")
                .action(ArgAction::SetTrue)
                .help("Show it again every second"),
        )
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .help("Print the agent's JSON instead"),
        )
}

pub fn status(arguments: &ArgMatches) -> Result<(), Failure> {
    show(arguments, "/api/v1/status", |status: &Status| {
        render(status, unix_now())
    })
}

/// Shows what the agent answers at `path`, once or every second.
pub fn show<T: serde::de::DeserializeOwned>(
    arguments: &ArgMatches,
    path: &str,
    render: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    let address = admin_address(arguments)?;
    let json = arguments.get_flag("json");
    let watch = arguments.get_flag("watch");
    let redraw = watch && !json && io::stdout().is_terminal();
    loop {
        let body = fetch(address, path);
        let text = match body {
            Ok(body) if json => body,
            Ok(body) => {
                let answer: T = serde_json::from_str(&body).map_err(|error| {
                    Failure::runtime(format!(
                        "what answers at {address} is not this version of weir: {error}"
                    ))
                })?;
                render(&answer)
            }
            // Whoever watches wants to see the agent come back.
            Err(failure) if watch => format!("{failure}\n"),
            Err(failure) => return Err(failure),
        };
        let clear = if redraw { "\x1b[H\x1b[2J" } else { "" };
        let mut stdout = io::stdout().lock();
        let written = stdout
            .write_all(format!("{clear}{text}").as_bytes())
            .and_then(|()| stdout.flush());
        match written {
            // Whoever read has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => {
                return Err(Failure::runtime(format!(
                    "standard output cannot be written: {error}"
                )));
            }
            Ok(()) if !watch => return Ok(()),
            Ok(()) => std::thread::sleep(WATCH_INTERVAL),
        }
    }
}

/// The agent's, as its own configuration says.
pub fn admin_address(arguments: &ArgMatches) -> Result<SocketAddr, Failure> {
    let flags = arguments.get_one::<String>("admin").map(|address| Flag {
        shown: "--admin".to_owned(),
        key: "admin".to_owned(),
        values: vec![address.clone()],
    });
    let file = arguments.get_one::<PathBuf>("config").cloned();
    let inputs = Inputs {
        file,
        environment: config::environment(),
        flags: flags.into_iter().collect(),
        text: None,
        resolve_names: true,
    };
    let loaded = config::load(&inputs)?;
    loaded.config.admin.ok_or_else(|| {
        Failure::usage("admin is off, so there is nobody to ask; --admin names another address")
    })
}

/// One GET, without the machinery of an HTTP client.
pub fn fetch(address: SocketAddr, path: &str) -> Result<String, Failure> {
    let failed = |error: io::Error| {
        let hint = match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                "; is it running? `weir run` starts it, --admin names another address"
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "; it does not answer in time",
            _ => "",
        };
        Failure::runtime(format!("no agent at http://{address}: {error}{hint}"))
    };
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(failed)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    // A peer that hangs up early may have answered; what it said is worth more than that it did not listen.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    stream
        .take(ANSWER_BYTES_MAX)
        .read_to_end(&mut answer)
        .map_err(failed)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.split_whitespace().nth(1).unwrap_or_default();
    if head.starts_with("HTTP/1.") && matches!(code, "400" | "503") {
        let reason = crate::logging::printable(body.trim().as_bytes());
        return Err(Failure::runtime(format!("the agent at {address} says {reason}")));
    }
    if !head.starts_with("HTTP/1.") || code != "200" {
        let first = head.lines().next().unwrap_or_default();
        let shown = crate::logging::printable(first.as_bytes());
        return Err(Failure::runtime(format!(
            "what answers at {address} is not weir's admin server: {shown}"
        )));
    }
    Ok(body.to_owned())
}

fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The whole page.
fn render(status: &Status, now: u64) -> String {
    let mut page = String::new();
    let state = match &status.not_ready {
        None => "ready".to_owned(),
        Some(reason) => format!("not ready: {reason}"),
    };
    let up = duration(now.saturating_sub(status.started));
    let _ = writeln!(
        page,
        "weir {} on {}, pid {}, up {up}, {state}",
        status.version, status.hostname, status.pid
    );
    if status.flush.at == 0 {
        let _ = writeln!(page, "no flush yet: what is below is what has come in so far");
    } else {
        let age = duration(now.saturating_sub(status.flush.at));
        let flush = &status.flush;
        let _ = writeln!(
            page,
            "flush {} was {age} ago with {} series; buckets of {} s; the longest gap in receiving was {:.1} ms",
            flush.count,
            grouped(flush.series),
            flush.bucket_seconds,
            flush.longest_gap_seconds * 1e3
        );
    }
    if status.clock.ahead_seconds >= 1.0 || status.clock.set_back > 0 {
        let _ = writeln!(
            page,
            "the wall clock was set back: timestamps are {:.1} s ahead of it, and went back {} times",
            status.clock.ahead_seconds, status.clock.set_back
        );
    }
    reloads(&mut page, &status.reload, now);
    received(&mut page, status);
    listeners(&mut page, status);
    state_of_contexts(&mut page, status);
    rules(&mut page, &status.rules);
    limits(&mut page, &status.limits);
    outputs(&mut page, &status.outputs, now);
    if let Some(origin) = &status.origin {
        origins(&mut page, origin);
    }
    sandbox(&mut page, &status.sandbox);
    let imbalances = status.imbalances();
    if imbalances.is_empty() {
        page.push_str("\nThe books balance.\n");
    } else {
        page.push_str("\nTHE BOOKS DO NOT BALANCE:\n");
        for imbalance in imbalances {
            let _ = writeln!(page, "  {imbalance}");
        }
    }
    page
}

fn sandbox(page: &mut String, sandbox: &SandboxStatus) {
    let _ = writeln!(page, "\nsandbox: {}", sandbox.summary());
    for missing in &sandbox.missing {
        let _ = writeln!(page, "  not in force: {missing}");
    }
}

/// What keeps the process from being what its configuration says.
fn reloads(page: &mut String, reload: &ReloadStatus, now: u64) {
    if let Some(error) = &reload.last_error {
        let age = duration(now.saturating_sub(reload.last_failed));
        let _ = writeln!(page, "THE LAST RELOAD FAILED {age} ago: {error}");
    }
    if !reload.waiting_for_restart.is_empty() {
        let settings = reload.waiting_for_restart.join(", ");
        let _ = writeln!(page, "settings that wait for a restart: {settings}");
    }
}

fn received(page: &mut String, status: &Status) {
    let (rates, total) = (&status.rates, &status.total);
    let mut table = Table::new(&["received", "per second", "total", "good", "lost", "because"]);
    let datagrams = &total.datagrams;
    table.row([
        "datagrams".to_owned(),
        rate(rates.datagrams),
        grouped(datagrams.received),
        grouped(datagrams.parsed),
        grouped(sum_of(&datagrams.dropped)),
        reasons(&datagrams.dropped),
    ]);
    let messages = &total.messages;
    table.row([
        "messages".to_owned(),
        rate(rates.messages),
        grouped(messages.received),
        grouped(messages.accepted),
        grouped(sum_of(&messages.rejected)),
        reasons(&messages.rejected),
    ]);
    let samples = &total.samples;
    let overflowed = match samples.overflowed {
        0 => String::new(),
        overflowed => format!("{} of the good ones in overflow series", grouped(overflowed)),
    };
    let because = [reasons(&samples.dropped), overflowed]
        .into_iter()
        .filter(|part| !part.is_empty());
    table.row([
        "samples".to_owned(),
        rate(rates.samples),
        grouped(samples.received),
        grouped(samples.aggregated + samples.overflowed + samples.timestamped),
        grouped(sum_of(&samples.dropped)),
        because.collect::<Vec<_>>().join("; "),
    ]);
    table.row([
        "bytes".to_owned(),
        rate(rates.bytes),
        grouped(total.bytes),
        String::new(),
        String::new(),
        String::new(),
    ]);
    table.write(page);
}

fn listeners(page: &mut String, status: &Status) {
    let mut table = Table::new(&[
        "listener",
        "datagrams",
        "messages",
        "samples",
        "lost",
        "connections",
        "buffer",
    ]);
    for listener in &status.listeners {
        let books = &listener.books;
        let lost = sum_of(&books.datagrams.dropped)
            + sum_of(&books.messages.rejected)
            + sum_of(&books.samples.dropped);
        let is_stream = listener.address.starts_with("unix://") || listener.address.starts_with("tcp://");
        let buffer = match (listener.receive_buffer, listener.receive_buffer_wanted) {
            (0, _) => String::new(),
            (granted, wanted) if granted < wanted => format!("{} of {}", bytes(granted), bytes(wanted)),
            (granted, _) => bytes(granted),
        };
        table.row([
            listener.address.clone(),
            grouped(books.datagrams.received),
            grouped(books.messages.received),
            grouped(books.samples.received),
            grouped(lost),
            if is_stream {
                grouped(listener.connections)
            } else {
                String::new()
            },
            buffer,
        ]);
    }
    table.write(page);
    for listener in &status.listeners {
        if listener.socket_files_remade > 0 {
            let _ = writeln!(
                page,
                "{}: the socket file was missing or replaced and made again {} times",
                listener.address, listener.socket_files_remade
            );
        }
        for (count, what) in [
            (
                listener.connections_refused,
                "refused: their senders are not allowed",
            ),
            (
                listener.connections_failed_tls,
                "closed: they could not be encrypted",
            ),
            (
                listener.connections_refused_limit,
                "closed at once: there are as many as there is memory or descriptors for",
            ),
            (
                listener.connections_closed_crowded,
                "closed to make place for a peer that had fewer",
            ),
            (
                listener.connections_closed_idle,
                "closed because nothing had come for long",
            ),
            (
                listener.connections_cut,
                "reset by the stop: their peers were still sending",
            ),
        ] {
            if count > 0 {
                let _ = writeln!(
                    page,
                    "{}: {} connections {what}",
                    listener.address,
                    grouped(count)
                );
            }
        }
    }
}

fn state_of_contexts(page: &mut String, status: &Status) {
    let contexts = &status.contexts;
    let _ = write!(
        page,
        "\ncontexts  {} live, {} created, {} expired",
        grouped(contexts.live),
        grouped(contexts.created),
        grouped(contexts.expired)
    );
    if contexts.overflow_series > 0 {
        let _ = write!(page, ", {} overflow series", grouped(contexts.overflow_series));
    }
    let memory = &status.memory;
    let _ = write!(
        page,
        "\nmemory    {} of {}",
        bytes(memory.used),
        bytes(memory.budget)
    );
    let mut parts: Vec<_> = memory.parts.iter().filter(|(_, size)| **size > 0).collect();
    parts.sort_by_key(|(_, size)| std::cmp::Reverse(**size));
    if !parts.is_empty() {
        let parts: Vec<String> = parts
            .iter()
            .map(|(name, size)| format!("{name} {}", bytes(**size)))
            .collect();
        let _ = write!(page, " ({})", parts.join(", "));
    }
    page.push('\n');
    memory_shares(page, &memory.shares);
}

/// Those that there are, each with how full it is and what that has led to.
fn memory_shares(page: &mut String, shares: &[MemoryShare]) {
    for share in shares.iter().filter(|share| share.bytes > 0) {
        let (used, of) = (bytes(share.used), bytes(share.bytes));
        let _ = write!(page, "  {:<15} {used:>10} of {of:>10}", share.name);
        let met: Vec<String> = share
            .events
            .iter()
            .filter(|(_, number)| **number > 0)
            .map(|(event, number)| format!("{event} {}", grouped(*number)))
            .collect();
        if !met.is_empty() {
            let _ = write!(page, "  {}; when full {}", met.join(", "), share.when_full);
        }
        page.push('\n');
    }
}

/// Rules shown; the JSON has all.
const RULES_SHOWN: usize = 20;

fn rules(page: &mut String, rules: &RulesStatus) {
    if rules.count == 0 && rules.active.is_empty() {
        return;
    }
    let _ = writeln!(
        page,
        "rules     {} in force, {} applied or on trial; finding those that match took {}",
        grouped(rules.count),
        grouped(rules.active.len() as u64),
        milliseconds(rules.matching_seconds)
    );
    let mut busiest: Vec<&RuleStatus> = rules.active.iter().collect();
    busiest.sort_by_key(|rule| std::cmp::Reverse((rule.trial.is_some(), rule.hits)));
    busiest.truncate(RULES_SHOWN);
    let mut table = Table::new(&["rule", "stage", "contexts", "time", "samples dropped"]);
    for rule in &busiest {
        table.row([
            rule.name.clone(),
            if rule.trial.is_some() {
                format!("{}, on trial", rule.stage)
            } else {
                rule.stage.clone()
            },
            grouped(rule.hits),
            milliseconds(rule.seconds),
            grouped(rule.samples_dropped),
        ]);
    }
    table.write(page);
    for (rule, trial) in busiest
        .iter()
        .filter_map(|rule| Some((rule, rule.trial.as_ref()?)))
    {
        let saved = trial.contexts_now.saturating_sub(trial.contexts_then);
        let _ = writeln!(
            page,
            "  {} would save {} contexts: {} would become {}; samples dropped {}, in other contexts {}{}",
            rule.name,
            grouped(saved),
            grouped(trial.contexts_now),
            grouped(trial.contexts_then),
            grouped(trial.samples_dropped),
            grouped(trial.samples_changed),
            if trial.incomplete {
                " (too many contexts to count all)"
            } else {
                ""
            }
        );
        for example in &trial.examples {
            let _ = writeln!(page, "    {}", crate::logging::printable(example.as_bytes()));
        }
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

fn limits(page: &mut String, limits: &LimitStatus) {
    if !limits.samples.is_empty() {
        let _ = writeln!(
            page,
            "limits    samples of contexts that were not made, since the start: {}",
            reasons(&limits.samples)
        );
    }
    limited(page, &limits.limited);
    let mut table = Table::new(&["sends more than it may", "packets dropped", "bytes per second"]);
    for row in &limits.rates {
        table.row([
            shown(&row.source),
            grouped(row.packets),
            grouped(row.bytes_per_second),
        ]);
    }
    table.write(page);
    let mut table = Table::new(&["may not send", "packets dropped", "because", "last process"]);
    for row in &limits.senders_refused {
        table.row([
            shown(&row.source),
            grouped(row.packets),
            row.reason.clone(),
            match row.pid {
                0 => String::new(),
                pid => pid.to_string(),
            },
        ]);
    }
    table.write(page);
    for key in &limits.tag_keys {
        let _ = writeln!(
            page,
            "\nALERT: tag key {} has {} different values",
            printable(key.key.as_bytes()),
            grouped(key.values)
        );
    }
}

/// The metrics whose new contexts met a limit.
pub fn limited(page: &mut String, rows: &[LimitedRow]) {
    let mut table = Table::new(&[
        "limited in the last bucket",
        "samples",
        "limit",
        "differs most",
        "origin",
    ]);
    for row in rows {
        let differs = match row.tag_values {
            0 => String::new(),
            values => format!(
                "tag {}: about {} values",
                printable(row.tag_key.as_bytes()),
                grouped(values)
            ),
        };
        table.row([
            shown(&row.metric),
            grouped(row.samples),
            row.reason.clone(),
            differs,
            shown(&row.origin),
        ]);
    }
    table.write(page);
}

/// A name as it is, unless a terminal would act upon it.
pub fn shown(name: &str) -> String {
    if name.chars().any(config::is_invisible) {
        return printable(name.as_bytes());
    }
    name.to_owned()
}

fn outputs(page: &mut String, outputs: &[OutputStatus], now: u64) {
    if outputs.is_empty() {
        page.push_str("\nno output is on\n");
        return;
    }
    let mut table = Table::new(&[
        "output",
        "state",
        "produced",
        "delivered",
        "pending",
        "dropped",
        "lag",
        "bytes",
    ]);
    for output in outputs {
        let state = if output.healthy { "healthy" } else { "failing" };
        let since = match output.since {
            0 => String::new(),
            since => format!(" for {}", duration(now.saturating_sub(since))),
        };
        let lag = match output.lag_seconds {
            lag if lag > 0.0 => duration(lag as u64),
            _ => String::new(),
        };
        // A relay has messages and no points.
        let books = match output.output_type.as_str() {
            "relay" => &output.messages,
            _ => &output.points,
        };
        table.row([
            output.name.clone(),
            format!("{state}{since}"),
            grouped(books.produced),
            grouped(books.delivered),
            grouped(books.pending),
            grouped(sum_of(&books.dropped)),
            lag,
            grouped(output.bytes),
        ]);
    }
    table.write(page);
    for output in outputs {
        let mut line = |text: String| {
            let _ = writeln!(page, "  {}: {text}", output.name);
        };
        for (kind, books) in [
            ("points", &output.points),
            ("events", &output.events),
            ("checks", &output.checks),
            ("messages", &output.messages),
        ] {
            if !books.pending_where.is_empty() {
                line(format!("{kind} pending: {}", reasons(&books.pending_where)));
            }
            if sum_of(&books.dropped) > 0 {
                line(format!("{kind} dropped: {}", reasons(&books.dropped)));
            }
        }
        for (kind, books) in [
            ("events", &output.events),
            ("checks", &output.checks),
            ("messages", &output.messages),
        ] {
            if books.produced > 0 {
                let PointBooks {
                    produced,
                    delivered,
                    pending,
                    ..
                } = books;
                line(format!(
                    "{kind}: {produced} made, {delivered} delivered, {pending} pending"
                ));
            }
        }
        if let Some(error) = &output.last_error {
            line(format!("last error: {error}"));
        }
        output.notes.iter().for_each(|note| line(note.clone()));
    }
}

fn origins(page: &mut String, origin: &OriginReport) {
    let resolver = &origin.resolver;
    let _ = write!(
        page,
        "\norigins   {} in use, {} of them known to no source; {} processes sent in the last minute",
        grouped(resolver.origins_live),
        grouped(resolver.origins_unknown),
        grouped(origin.processes)
    );
    for (what, counts) in [
        ("processes looked up", &resolver.processes),
        ("origins asked for", &resolver.origins),
    ] {
        if !counts.is_empty() {
            let _ = write!(page, "\n  {what}: {}", reasons(counts));
        }
    }
    for (count, what) in [
        (
            origin.packets_without_process,
            "packets came from processes that cannot be named here: weir needs the host's process namespace (hostPID)",
        ),
        (
            origin.packets_untracked,
            "packets came from processes beyond those that are told apart",
        ),
        (
            origin.waited_in_vain,
            "packets and messages waited a second, or to the end of their bucket, in vain for their origin",
        ),
        (
            origin.no_room_to_wait,
            "packets and messages went on without their origin because too many waited",
        ),
        (
            origin.origins_refused,
            "origins found the table full: their messages count as their sender's",
        ),
        (
            resolver.processes_reused,
            "process numbers went to another process, which was noticed",
        ),
    ] {
        if count > 0 {
            let _ = write!(page, "\n  {} {what}", grouped(count));
        }
    }
    page.push('\n');
    let mut table = Table::new(&["tags from", "state", "known", "updates", "failures", "at"]);
    for source in &resolver.sources {
        let state = match (source.healthy, source.failures) {
            (true, _) => "healthy",
            (false, 0) => "starting",
            (false, _) => "failing",
        };
        table.row([
            source.name.clone(),
            state.to_owned(),
            grouped(source.entities),
            grouped(source.updates),
            grouped(source.failures),
            source.place.clone(),
        ]);
    }
    table.write(page);
    for source in &resolver.sources {
        if let Some(error) = &source.last_error
            && !source.healthy
        {
            let _ = writeln!(page, "  {} at {}: {error}", source.name, source.place);
        }
    }
}

/// The largest first.
fn reasons(reasons: &Reasons) -> String {
    let mut counted: Vec<_> = reasons.iter().filter(|(_, count)| **count > 0).collect();
    counted.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    counted
        .iter()
        .map(|(reason, count)| format!("{reason} {}", grouped(**count)))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::status::{Books, DatagramBooks, ListenerStatus, MessageBooks, SampleBooks};

    #[test]
    fn the_page_says_what_was_lost_and_whether_the_books_balance() {
        let books = Books {
            bytes: 100,
            datagrams: DatagramBooks {
                received: 1010,
                parsed: 1007,
                dropped: [("kernel".to_owned(), 3)].into(),
            },
            messages: MessageBooks {
                received: 20,
                accepted: 19,
                rejected: [("bad_type".to_owned(), 1)].into(),
            },
            samples: SampleBooks {
                received: 30,
                aggregated: 25,
                overflowed: 5,
                timestamped: 0,
                dropped: Reasons::new(),
            },
        };
        let listener = ListenerStatus {
            address: "udp://127.0.0.1:8125".to_owned(),
            books: books.clone(),
            ..Default::default()
        };
        let output = OutputStatus {
            name: "datadog".to_owned(),
            last_error: Some("timed out".to_owned()),
            since: 40,
            ..Default::default()
        };
        let mut status = Status {
            total: books,
            listeners: vec![listener],
            outputs: vec![output],
            started: 10,
            ..Default::default()
        };
        let page = render(&status, 100);
        for part in [
            "up 1m30s",
            "1,010",
            "kernel 3",
            "bad_type 1",
            "5 of the good ones in overflow series",
            "udp://127.0.0.1:8125",
            "failing for 1m00s",
            "datadog: last error: timed out",
            "The books balance.",
        ] {
            assert!(page.contains(part), "{part:?} is not in\n{page}");
        }
        status.total.messages.accepted = 18;
        let page = render(&status, 100);
        assert!(page.contains("THE BOOKS DO NOT BALANCE"), "{page}");
        assert!(
            page.contains("messages in total: 20 came in, 19 are accounted for"),
            "{page}"
        );
    }
}
