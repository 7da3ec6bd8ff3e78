//! `weir status`: the running agent's status for users.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Arg, ArgMatches, Command};
use weir_aggregate::AggregateCounter;
use weir_context::ContextCounter;
use weir_counters::Counter as _;
use weir_ingest::{SenderCounter, WorkerCounter};
use weir_listener::ListenerCounter;
use weir_output::OutputCounter;
use weir_units::{counted, grouped};

use super::agent::{self, admin_address, fetch, show};
use super::clients;
use super::style::Style;
use super::switch;
use super::table::{Table, bytes, duration, rate, shown};
use weir_status::contexts::LimitedRow;
use weir_status::counters::{PipelineCounter, SocketCounter};
use weir_status::losses::losses;
use weir_status::series::busiest;
use weir_status::status::{
    LimitStatus, MemoryShare, MemoryStatus, Number, Numbers, OriginReport, OutputStatus, PointBooks, Reasons,
    ReloadStatus, RulesStatus, Status, UNITS, sum_of,
};
use weir_status::{dashboard, metrics_page, overview};
use weir_system::failure::Failure;
use weir_system::logging::printable;
use weir_system::sandbox::SandboxStatus;

pub fn command() -> Command {
    Command::new("status")
        .about("Show the running agent's books: received, lost and delivered data")
        .args(agent::arguments())
        .arg(switch("watch", "Show it again every second"))
        .arg(switch("json", "Print the agent's JSON instead"))
        .arg(
            switch(
                "quiet",
                "For health checks: exit with 0 if the agent is ready, otherwise print why and exit with 1",
            )
            .short('q')
            .conflicts_with_all(["watch", "json"]),
        )
        .arg(
            Arg::new("dashboard")
                .long("dashboard")
                .value_name("WHICH")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("series")
                .value_parser(["series", "overview"])
                .help("Print a Grafana dashboard of weir's own metrics: a panel for each series, or an overview"),
        )
        .arg(switch("documentation", "Print docs/metrics.md instead"))
}

pub fn status(arguments: &ArgMatches) -> Result<(), Failure> {
    if arguments.get_flag("documentation") {
        return super::print(&metrics_page::page());
    }
    if let Some(which) = arguments.get_one::<String>("dashboard") {
        let text = if which == "overview" {
            overview::json()
        } else {
            dashboard::json()
        };
        return super::print(&text);
    }
    if arguments.get_flag("quiet") {
        return fetch(admin_address(arguments)?, "/ready").map(drop);
    }
    let style = Style::of_stdout();
    show(arguments, "/api/v1/status", |status: &Status| {
        render(status, unix_now(), style)
    })
}

pub(super) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The page: first any problems with their remedies.
pub(super) fn render(status: &Status, now: u64, style: Style) -> String {
    let mut page = String::new();
    let state = match &status.not_ready {
        None => style.good("ready"),
        Some(reason) => style.bad(&format!("not ready: {reason}")),
    };
    let up = duration(now.saturating_sub(status.process.started));
    let _ = writeln!(
        page,
        "weir {} on {}, pid {}, up {up}, {state}",
        status.process.version, status.process.hostname, status.process.pid
    );
    if status.fleet.is_none() {
        flush(&mut page, status, now);
    }
    reloads(&mut page, &status.reload, now, style);
    to_look_at(&mut page, status, style);
    match &status.fleet {
        Some(fleet) => {
            super::merge::render(&mut page, fleet, now, style);
            memory(&mut page, &status.memory);
        }
        None => {
            received(&mut page, status, style);
            listeners(&mut page, status, style);
            clients::table(&mut page, &status.clients, now, style);
            state_of_contexts(&mut page, status);
        }
    }
    rules(&mut page, &status.rules);
    limits(&mut page, &status.limits);
    outputs(&mut page, &status.outputs, now, style);
    if let Some(origin) = &status.origin {
        origins(&mut page, origin);
    }
    sandbox(&mut page, &status.sandbox);
    balance(&mut page, status, style);
    page
}

fn balance(page: &mut String, status: &Status, style: Style) {
    let imbalances = status.imbalances();
    if imbalances.is_empty() {
        let _ = writeln!(page, "\n{}", style.good("The books balance."));
        return;
    }
    let _ = writeln!(page, "\n{}", style.bad("THE BOOKS DO NOT BALANCE:"));
    for imbalance in imbalances {
        let _ = writeln!(page, "  {}", style.bad(&imbalance.to_string()));
    }
}

fn flush(page: &mut String, status: &Status, now: u64) {
    match status.of(PipelineCounter::FlushedAt) {
        0 => page.push_str("no flush yet: the numbers below are of packets received so far\n"),
        at => {
            let _ = writeln!(
                page,
                "flush {} was {} ago with {} series; buckets of {} s; the longest gap in receiving was {:.1} ms",
                status.of(AggregateCounter::Buckets),
                duration(now.saturating_sub(at)),
                grouped(status.of(PipelineCounter::FlushSeries)),
                status.of(PipelineCounter::BucketSeconds),
                status.numbers.value(WorkerCounter::LongestGapNs.info()) * 1e3
            );
        }
    }
    let ahead = status.numbers.value(WorkerCounter::ClockAheadMs.info());
    let set_back = status.of(WorkerCounter::ClockSetBack);
    if ahead >= 1.0 || set_back > 0 {
        let _ = writeln!(
            page,
            "the wall clock was set back: timestamps are {ahead:.1} s ahead of it, and went back {}",
            counted(set_back, "times")
        );
    }
}

fn sandbox(page: &mut String, sandbox: &SandboxStatus) {
    let _ = writeln!(page, "\nsandbox: {}", sandbox.summary());
    for missing in &sandbox.missing {
        let _ = writeln!(page, "  not applied: {missing}");
    }
}

/// Differences between the process and its configuration.
fn reloads(page: &mut String, reload: &ReloadStatus, now: u64, style: Style) {
    if let Some(error) = &reload.last_error {
        let age = duration(now.saturating_sub(reload.last_failed));
        let failed = format!("THE LAST RELOAD FAILED {age} ago: {error}");
        let _ = writeln!(page, "{}", style.bad(&failed));
    }
    if !reload.waiting_for_restart.is_empty() {
        let settings = reload.waiting_for_restart.join(", ");
        let _ = writeln!(page, "settings that need a restart: {settings}");
    }
}

fn received(page: &mut String, status: &Status, style: Style) {
    let rates = &status.rates;
    let mut table = Table::new(&["received", "per second", "total", "good", "lost", "because"]).styled(style);
    for (unit, per_second) in UNITS.iter().zip([rates.packets, rates.messages, rates.samples]) {
        let account = status.total(unit);
        table.row_unless(
            sum_of(&account.lost) > 0,
            [
                (*unit).to_owned(),
                rate(per_second),
                grouped(account.received),
                grouped(account.good),
                grouped(sum_of(&account.lost)),
                reasons(&account.lost),
            ],
        );
    }
    table.row([
        "bytes".to_owned(),
        rate(rates.bytes),
        grouped(status.number("total.bytes") as u64),
        String::new(),
        String::new(),
        String::new(),
    ]);
    table.write(page);
}

fn listeners(page: &mut String, status: &Status, style: Style) {
    let mut table = Table::new(&[
        "listener",
        "packets",
        "messages",
        "samples",
        "lost",
        "connections",
        "buffer",
    ])
    .styled(style);
    for listener in &status.listeners {
        let [packets, messages, samples] = UNITS.map(|unit| listener.account(unit));
        let lost = [&packets, &messages, &samples].map(|account| sum_of(&account.lost));
        let is_stream = listener.address.starts_with("unix://") || listener.address.starts_with("tcp://");
        let connections = is_stream.then(|| grouped(listener.numbers.of(ListenerCounter::ConnectionsOpen)));
        table.row_unless(
            lost.iter().any(|lost| *lost > 0),
            [
                listener.address.clone(),
                grouped(packets.received),
                grouped(messages.received),
                grouped(samples.received),
                grouped(lost.iter().sum()),
                connections.unwrap_or_default(),
                receive_buffer(&listener.numbers),
            ],
        );
    }
    table.write(page);
}

fn receive_buffer(numbers: &Numbers) -> String {
    match (
        numbers.of(SocketCounter::ReceiveBuffer),
        numbers.of(SocketCounter::ReceiveBufferWanted),
    ) {
        (0, _) => String::new(),
        (granted, wanted) if granted < wanted => format!("{} of {}", bytes(granted), bytes(wanted)),
        (granted, _) => bytes(granted),
    }
}

/// Losses, refusals and degradations, with remedies.
fn to_look_at(page: &mut String, status: &Status, style: Style) {
    let losses = losses(status);
    if losses.is_empty() {
        let _ = writeln!(
            page,
            "{}",
            style.good("nothing was lost or refused since the start")
        );
        return;
    }
    let title = "LOST, REFUSED OR DEGRADED, since the start";
    let _ = writeln!(page, "\n{}", style.bad(title));
    for loss in losses {
        let lost = format!("{}: {}", loss.what(), counted(loss.count as u64, loss.unit));
        let _ = writeln!(
            page,
            "  {}\n      {}",
            style.bad(&lost),
            style.remedy(&loss.remedy)
        );
    }
}

fn state_of_contexts(page: &mut String, status: &Status) {
    let count = |counter| grouped(status.of(counter));
    let _ = write!(
        page,
        "\ncontexts  {} live, {} created, {} expired",
        count(ContextCounter::Live),
        count(ContextCounter::Created),
        count(ContextCounter::Expired)
    );
    memory(page, &status.memory);
}

fn memory(page: &mut String, memory: &MemoryStatus) {
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

/// From here on a part that is fuller than its share is named.
const FULL_PERCENT: f64 = 50.0;

/// The non-empty shares, each with its use and events.
fn memory_shares(page: &mut String, shares: &[MemoryShare]) {
    for share in shares.iter().filter(|share| share.bytes > 0) {
        let (used, of) = (bytes(share.used), bytes(share.bytes));
        let _ = write!(page, "  {:<15} {used:>10} of {of:>10}", share.name);
        let percent = share.fullest * 100.0;
        if percent >= FULL_PERCENT && percent > share.used as f64 / share.bytes as f64 * 100.0 + 1.0 {
            let _ = write!(page, "  an output has used {percent:.0} % of its part");
        }
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

pub(super) fn rules(page: &mut String, rules: &RulesStatus) {
    if rules.count == 0 && rules.active.is_empty() {
        return;
    }
    let _ = writeln!(
        page,
        "rules     {} active, {} applied or dry run; matching took {}",
        grouped(rules.count),
        grouped(rules.active.len() as u64),
        milliseconds(rules.matching_seconds)
    );
    let mut busiest = busiest(rules);
    busiest.truncate(RULES_SHOWN);
    let mut table = Table::new(&["rule", "stage", "contexts", "time", "samples dropped"]);
    for rule in &busiest {
        table.row([
            rule.name.clone(),
            if rule.trial.is_some() {
                format!("{}, dry run", rule.stage)
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
            "  {} would save {}: {} become {}; samples dropped {}, in other contexts {}{}",
            rule.name,
            counted(saved, "contexts"),
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
            let _ = writeln!(
                page,
                "    {}",
                weir_system::logging::printable(example.as_bytes())
            );
        }
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

fn limits(page: &mut String, limits: &LimitStatus) {
    if let Some(Number::Group(samples)) = limits.numbers.at("samples")
        && sum_of(&samples.reasons()) > 0
    {
        let _ = writeln!(
            page,
            "limits    samples of refused contexts, since the start: {}",
            reasons(&samples.reasons())
        );
    }
    limited(page, &limits.limited);
    let mut table = Table::new(&["exceeds its rate", "packets dropped", "bytes per second"]);
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

/// The metrics with refused contexts.
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
                "tag {}: about {}",
                printable(row.tag_key.as_bytes()),
                counted(values, "values")
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

fn outputs(page: &mut String, outputs: &[OutputStatus], now: u64, style: Style) {
    if outputs.is_empty() {
        page.push_str("\nno output is enabled\n");
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
    ])
    .styled(style);
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
        let is_bad = !output.healthy || sum_of(&books.dropped) > 0;
        table.row_unless(
            is_bad,
            [
                output.name.clone(),
                format!("{state}{since}"),
                grouped(books.produced),
                grouped(books.delivered),
                grouped(books.pending),
                grouped(sum_of(&books.dropped)),
                lag,
                grouped(output.numbers.of(OutputCounter::Bytes)),
            ],
        );
    }
    table.write(page);
    for output in outputs {
        let mut line = |text: String| {
            let _ = writeln!(page, "  {}: {text}", output.name);
        };
        for (kind, books) in output.books() {
            if !books.pending_where.is_empty() {
                line(format!("{kind} pending: {}", reasons(&books.pending_where)));
            }
            if sum_of(&books.dropped) > 0 {
                line(format!("{kind} dropped: {}", reasons(&books.dropped)));
            }
            if kind != "points" && books.produced > 0 {
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
            line(style.bad(&format!("last error: {error}")));
        }
        output.notes.iter().for_each(|note| line(note.clone()));
    }
}

fn origins(page: &mut String, origin: &OriginReport) {
    let resolver = &origin.resolver;
    let _ = write!(
        page,
        "\norigins   {} in use, {} of them known to no source; in the last minute {} sent",
        grouped(resolver.origins_live),
        grouped(resolver.origins_unknown),
        counted(origin.numbers.of(SenderCounter::Live), "processes")
    );
    for (what, counts) in [
        ("processes looked up", &resolver.processes),
        ("origins asked for", &resolver.origins),
    ] {
        if !counts.is_empty() {
            let _ = write!(page, "\n  {what}: {}", reasons(counts));
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

/// Largest first.
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
    use weir_status::examples::all_lost;
    use weir_status::examples::balanced;

    #[test]
    fn the_status_shows_losses_and_whether_the_books_balance() {
        let mut status = balanced();
        status.process.started = 10;
        status.outputs[0].last_error = Some("timed out".to_owned());
        status.outputs[0].since = 40;
        status.numbers.add_at("total.packets.received", 1000);
        status.numbers.add_at("total.packets.parsed", 1000);
        status.listeners[0].numbers.add_at("books.packets.received", 1000);
        status.listeners[0].numbers.add_at("books.packets.parsed", 1000);
        let page = render(&status, 100, Style::default());
        for part in [
            "up 1m30s",
            "1,010",
            "kernel 3",
            "bad_type 1",
            "Samples of refused contexts, kept in one series per name: 5",
            "udp://127.0.0.1:8125: Datagrams the kernel dropped",
            "Give weir a larger `receive_buffer`",
            "failing for 1m00s",
            "datadog: last error: timed out",
            "The books balance.",
        ] {
            assert!(page.contains(part), "{part:?} is not in\n{page}");
        }
        status.numbers.add_at("total.messages.received", 1);
        let page = render(&status, 100, Style::default());
        assert!(page.contains("THE BOOKS DO NOT BALANCE"), "{page}");
        assert!(
            page.contains("messages in total: 21 received, 20 accounted for"),
            "{page}"
        );
    }

    #[test]
    fn every_loss_is_listed_with_its_remedy() {
        let status = all_lost();
        let page = render(&status, 100, Style::default());
        for loss in losses(&status) {
            let line = format!(
                "  {}: {}\n      {}\n",
                loss.what(),
                counted(loss.count as u64, loss.unit),
                loss.remedy
            );
            assert!(page.contains(&line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn losses_come_first_highlighted_and_with_their_remedy() {
        let status = balanced();
        let page = render(&status, 100, Style::default());
        let at = |part: &str| {
            page.find(part)
                .unwrap_or_else(|| panic!("{part:?} is not in\n{page}"))
        };
        assert!(at("LOST, REFUSED") < at("received  "), "{page}");
        assert!(!page.contains('\u{1b}'), "{page}");

        let coloured = render(&status, 100, Style::COLOURED);
        let lost = "\u{1b}[1;31mudp://127.0.0.1:8125: Datagrams the kernel dropped";
        let remedy = "\u{1b}[33mGive weir a larger `receive_buffer`";
        assert!(coloured.contains(lost) && coloured.contains(remedy), "{coloured}");
        // Colours only repeat the words.
        let codes = [
            "\u{1b}[1;31m",
            "\u{1b}[33m",
            "\u{1b}[32m",
            "\u{1b}[1m",
            "\u{1b}[0m",
        ];
        let stripped = codes.iter().fold(coloured, |text, code| text.replace(code, ""));
        assert_eq!(stripped, page);

        let nothing = render(&Status::default(), 100, Style::default());
        assert!(nothing.contains("nothing was lost or refused"), "{nothing}");
    }
}
