//! Every loss, refusal and degradation since the start, in one list for all surfaces: `weir status`, `weir top`, `weir doctor` and the page.
//!
//! A declaration decides whether its number is in the list: [`Problem`]. [`TOLD_BY`] keeps one loss from being listed twice.

use serde::Serialize;
use weir_counters::Significance::Problem;
use weir_counters::{Counter as _, CounterInfo, NumberKind};
use weir_ingest::{IngestCounter, SampleDrop};
use weir_listener::ListenerCounter;
use weir_units::counted;

use super::clients::ClientCounter;
use super::counters::TABLES;
use super::series::{collect, declared};
use super::status::Status;
use weir_system::logging::printable;

/// One entry of the list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// The series with the number, and all its labels.
    pub series: &'static str,
    pub labels: Vec<(&'static str, String)>,
    /// A listener, an output or another place; empty for the whole agent.
    pub place: String,
    pub meaning: &'static str,
    pub count: f64,
    pub unit: &'static str,
    /// A count since the start; otherwise the current value.
    pub is_counter: bool,
    /// The remedy, with the names and errors that the agent knows.
    pub remedy: String,
}

impl Loss {
    /// Place and meaning.
    pub fn what(&self) -> String {
        let meaning = self.meaning.trim_end_matches('.');
        match self.place.as_str() {
            "" => meaning.to_owned(),
            place => format!("{place}: {meaning}"),
        }
    }

    /// The value of a label.
    fn label(&self, name: &str) -> Option<&str> {
        let mut labels = self.labels.iter();
        labels.find_map(|(key, value)| (*key == name).then_some(value.as_str()))
    }
}

/// One answer with both, for the page.
#[derive(Serialize)]
pub struct StatusWithLosses {
    losses: Vec<Loss>,
    #[serde(flatten)]
    status: Status,
}

impl StatusWithLosses {
    pub fn of(status: Status) -> StatusWithLosses {
        StatusWithLosses {
            losses: losses(&status),
            status,
        }
    }
}

/// Numbers that repeat others: left out while those have at least as much, or anything in another unit.
fn told_by() -> [(&'static CounterInfo, Vec<&'static str>); 7] {
    let limit = "weir_context_limit_samples_total";
    [
        (IngestCounter::SamplesOverflowed.info(), vec![limit]),
        (SampleDrop::NoMemory.info(), vec![limit]),
        (SampleDrop::ContextLimit.info(), vec![limit]),
        (
            weir_context::ContextCounter::OverflowSeries.info(),
            vec![limit, IngestCounter::SamplesOverflowed.info().series.name],
        ),
        (
            ClientCounter::PacketsDropped.info(),
            vec![
                ClientCounter::PacketsDroppedQueue.info().series.name,
                ClientCounter::PacketsDroppedWriter.info().series.name,
            ],
        ),
        (
            ListenerCounter::BytesDiscarded.info(),
            vec![ListenerCounter::FramesTooLong.info().series.name],
        ),
        (
            ListenerCounter::Truncated.info(),
            vec![ListenerCounter::TruncatedLinesMax.info().series.name],
        ),
    ]
}

/// The list, in the order of the documentation.
pub fn losses(status: &Status) -> Vec<Loss> {
    let mut all: Vec<(&'static CounterInfo, Loss)> = Vec::new();
    for (info, series) in collect(status) {
        let is_listed = info.series.kind == NumberKind::Counter || is_counted(info);
        let Problem(advice) = info.significance else {
            continue;
        };
        if !is_listed || series.value <= 0.0 {
            continue;
        }
        let mut loss = Loss {
            series: info.series.name,
            place: place(&series.labels),
            // Several counters of one series without a label are one number.
            meaning: match info.series.label {
                None => info.help().trim(),
                Some(_) => info.meaning(),
            },
            count: series.value,
            unit: unit(info, &series.labels),
            is_counter: info.series.kind == NumberKind::Counter,
            remedy: advice.to_owned(),
            labels: series.labels,
        };
        if let Some(known) = known(status, &loss) {
            // Names come from clients.
            let known = match known.chars().any(weir_config::is_invisible) {
                true => printable(known.as_bytes()),
                false => known,
            };
            loss.remedy = format!("{advice} {known}");
        }
        all.push((info, loss));
    }
    let repeats = told_by();
    let is_told = |info: &'static CounterInfo, loss: &Loss| {
        let Some((_, tellers)) = repeats.iter().find(|(repeat, _)| *repeat == info) else {
            return false;
        };
        let told = all.iter().filter(|(_, other)| tellers.contains(&other.series));
        let (mut same, mut is_in_another_unit) = (0.0, false);
        for (teller, other) in told {
            match teller.series.unit == info.series.unit {
                true => same += other.count,
                false => is_in_another_unit = true,
            }
        }
        is_in_another_unit || (same > 0.0 && same >= loss.count)
    };
    all.iter()
        .filter(|(info, loss)| !is_told(info, loss))
        .map(|(_, loss)| loss.clone())
        .collect()
}

/// Gauges that threads count are losses as long as they are not zero. Those of lists are states, which their lists show.
fn is_counted(info: &'static CounterInfo) -> bool {
    TABLES.iter().copied().flatten().any(|known| known == info)
}

/// The declarations of all losses: of counters that share a series, one for each value of its label.
pub fn kinds() -> Vec<&'static CounterInfo> {
    let mut kinds: Vec<&'static CounterInfo> = Vec::new();
    for of in declared() {
        let is_listed = of.info.series.kind == NumberKind::Counter || is_counted(of.info);
        let (name, label) = (of.info.series.name, of.info.series.label);
        let is_known = |kind: &&CounterInfo| {
            kind.series.name == name
                && kind.series.label == label
                && (label.is_none() || kind.doc == of.info.doc)
        };
        if matches!(of.info.significance, Problem(_)) && is_listed && !kinds.iter().any(is_known) {
            kinds.push(of.info);
        }
    }
    kinds
}

/// Whether its number is left out of the list as long as others have the same loss.
pub fn repeats_others(info: &'static CounterInfo) -> bool {
    told_by().iter().any(|(repeat, _)| *repeat == info)
}

/// The unit of the number: of items the label says which.
fn unit(info: &'static CounterInfo, labels: &[(&'static str, String)]) -> &'static str {
    let kind = labels.iter().find(|(name, _)| *name == "kind");
    match (info.series.unit, kind.map(|(_, kind)| kind.as_str())) {
        ("items", Some("point")) => "points",
        ("items", Some("event")) => "events",
        ("items", Some("check")) => "checks",
        ("items", Some("message")) => "messages",
        (unit, _) => unit,
    }
}

/// The label that names a place; a name says more than a kind or a reason.
fn place(labels: &[(&'static str, String)]) -> String {
    let value = |key| {
        labels
            .iter()
            .find_map(|(name, value)| (*name == key).then_some(value))
    };
    let place = ["listener", "output", "source", "rule", "agent", "client"]
        .into_iter()
        .find_map(value);
    place.cloned().unwrap_or_default()
}

/// The names and errors that the status has about a loss.
fn known(status: &Status, loss: &Loss) -> Option<String> {
    let reason = loss.label("reason").unwrap_or_default();
    match loss.series {
        "weir_saved_state_set_aside_total" => {
            let because = status.state.set_aside_because.as_ref()?;
            Some(format!("The reason: {because}."))
        }
        "weir_hand_overs_failed_total" => {
            let because = status.state.hand_over.failed_because.as_ref()?;
            Some(format!("The reason: {because}."))
        }
        "weir_state_writes_failed_total" => {
            let error = status.state.saves.save_error.as_ref()?;
            Some(format!("Last error: {error}."))
        }
        "weir_output_disk_failures_total" => None,
        "weir_context_limit_samples_total" => {
            let row = status.limits.limited.iter().find(|row| row.reason == reason)?;
            let tag = match row.tag_key.as_str() {
                "" => String::new(),
                key => format!(", tag `{key}` with about {}", counted(row.tag_values, "values")),
            };
            Some(format!(
                "Most in the last bucket: metric `{}`{tag}, from {}.",
                row.metric, row.origin
            ))
        }
        "weir_packets_dropped_total" if reason.starts_with("origin_") && reason != "origin_rate_limited" => {
            let row = status
                .limits
                .senders_refused
                .iter()
                .find(|row| row.reason == reason)?;
            Some(format!("Last: {}, process {}.", row.source, row.pid))
        }
        "weir_packets_dropped_total" if reason.ends_with("rate_limited") => {
            let row = status.limits.rates.first()?;
            Some(format!(
                "Most: {}, {} per second.",
                row.source,
                counted(row.bytes_per_second, "bytes")
            ))
        }
        "weir_clients_packets_dropped_total"
        | "weir_clients_packets_dropped_queue_total"
        | "weir_clients_packets_dropped_writer_total" => {
            let row = status.clients.losers().next()?;
            let origin = match row.origin.as_str() {
                "" => String::new(),
                origin => format!(" at {origin}"),
            };
            Some(format!("Most: {} {}{origin}.", row.client, row.version))
        }
        "weir_origin_source_failures_total" => {
            let source = loss.label("source")?;
            let of = status.origin.iter().flat_map(|origin| &origin.resolver.sources);
            let error = of
                .filter(|of| of.name == source)
                .find_map(|of| of.last_error.as_ref())?;
            Some(format!("Last error: {error}."))
        }
        _ => {
            let output = loss.label("output")?;
            let of = status.outputs.iter().find(|of| of.name == output)?;
            let error = of.last_error.as_ref()?;
            Some(format!("Last error: {}.", error.trim_end_matches('.')))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use weir_config::leaves;
    use weir_output::settings::OUTPUT_TYPES;

    use super::*;
    use crate::examples::all_lost;
    use crate::series::own_series;
    use crate::status::{OutputStatus, PointBooks};

    #[test]
    fn every_loss_is_listed_once_with_number_place_and_remedy() {
        let status = all_lost();
        let list = losses(&status);
        for info in kinds().into_iter().filter(|info| !repeats_others(info)) {
            let series = info.series;
            let of_series = || list.iter().filter(|loss| loss.series == series.name);
            let is_it = |loss: &&Loss| [info.meaning(), info.help()].contains(&loss.meaning);
            let mut of: Vec<&Loss> = of_series().filter(is_it).collect();
            if of.is_empty() {
                // Two counters with one label are one number.
                let is_value = |loss: &&Loss| {
                    series
                        .label
                        .is_some_and(|(name, value)| loss.label(name) == Some(value))
                };
                of.extend(of_series().filter(is_value));
            }
            assert!(!of.is_empty(), "{info:?} is not in the list");
            for loss in of {
                assert!(
                    loss.count >= 1.0 && loss.remedy.starts_with(info.advice()),
                    "{loss:?}"
                );
                let has_place = series.path.starts_with("listeners") || series.path.starts_with("outputs");
                assert!(!has_place || !loss.place.is_empty(), "{loss:?}");
            }
        }
        // A remedy leads on: it names another command, or a flag that makes the command look further.
        for loss in &list {
            let leads_back = ["`weir status`", "`weir doctor`"];
            assert!(
                !leads_back.iter().any(|command| loss.remedy.contains(command)),
                "{loss:?}"
            );
        }
        for (at, one) in list.iter().enumerate() {
            let again = list[at + 1..]
                .iter()
                .find(|other| other.series == one.series && other.labels == one.labels);
            assert_eq!(again, None);
        }
        // The list names series and labels as the books have them, by which the page finds their rates.
        let series = own_series(&status);
        for loss in &list {
            assert!(
                series
                    .iter()
                    .any(|series| series.name == loss.series && series.labels == loss.labels),
                "{loss:?}"
            );
        }
    }

    #[test]
    fn points_that_an_output_dropped_come_with_its_last_error() {
        let mut status = Status::default();
        status.outputs.push(OutputStatus {
            name: "graphite".to_owned(),
            last_error: Some("connection refused by 127.0.0.1:2003".to_owned()),
            points: PointBooks {
                produced: 9,
                dropped: BTreeMap::from([("queue_full".to_owned(), 9), ("filtered".to_owned(), 3)]),
                ..PointBooks::default()
            },
            ..OutputStatus::default()
        });
        let list = losses(&status);
        assert_eq!(list.len(), 1, "what a rule drops is no loss: {list:?}");
        assert_eq!(
            (list[0].place.as_str(), list[0].count, list[0].unit),
            ("graphite", 9.0, "points")
        );
        assert!(list[0].remedy.contains("`disk_path`"), "{list:?}");
        assert!(
            list[0]
                .remedy
                .ends_with("Last error: connection refused by 127.0.0.1:2003."),
            "{list:?}"
        );
    }

    #[test]
    fn caches_that_turn_over_lose_nothing() {
        use weir_aggregate::AggregateCounter::HistogramsFolded;
        use weir_context::AliasCounter::Evicted;
        let mut status = Status::default();
        let mut evicted = weir_counters::Counts::default();
        evicted[Evicted] = 3239;
        status.add(None, &evicted);
        let mut folded = weir_counters::Counts::default();
        folded[HistogramsFolded] = 2;
        status.add(None, &folded);
        status.memory.shares.push(crate::status::MemoryShare {
            name: "contexts".to_owned(),
            events: BTreeMap::from([
                ("aliases_evicted".to_owned(), 3239),
                ("histograms_folded".to_owned(), 2),
            ]),
            ..Default::default()
        });
        assert_eq!(losses(&status), []);
    }

    #[test]
    fn a_loss_that_a_limit_names_is_not_listed_a_second_time() {
        use weir_context::LimitReason;
        let mut status = Status::default();
        status.listeners.push(crate::status::ListenerStatus {
            address: "udp://127.0.0.1:8125".to_owned(),
            ..Default::default()
        });
        let mut overflowed = weir_counters::Counts::default();
        overflowed[IngestCounter::SamplesOverflowed] = 5;
        status.add(Some(0), &overflowed);
        assert_eq!(losses(&status).len(), 1, "the limit is not known yet");
        let mut limited = weir_counters::Counts::default();
        limited[LimitReason::Metric] = 5;
        status.add(None, &limited);
        let list = losses(&status);
        assert_eq!(list.len(), 1, "{list:?}");
        assert_eq!(list[0].series, "weir_context_limit_samples_total");
        status.add(Some(0), &overflowed);
        assert_eq!(losses(&status).len(), 2, "more is lost than the limit says");
    }

    #[test]
    fn remedies_do_not_send_people_in_circles() {
        for info in kinds() {
            // The numbers of a fleet are only in `weir merge status`, which has the names.
            let is_of_fleet = info.series.path.starts_with("fleet");
            let remedy = info.advice();
            assert!(
                is_of_fleet || !remedy.contains("`weir status`"),
                "{}: {remedy}",
                info.series.name
            );
        }
    }

    /// Of other programs: settings, options and commands that remedies name.
    const OTHERS: &[&str] = &[
        "LimitNOFILE=",
        "TimeoutStopSec=",
        "terminationGracePeriodSeconds",
        "hostPID: true",
        "retention.ms",
        "application/x-protobuf",
        "net.core.rmem_max",
        "net.unix.max_dgram_qlen",
        "fs.file-max",
        "chronyd",
        "systemd-timesyncd",
        "WithMaxBytesPerPayload",
        "buffer_max_payload_size",
        "WithSenderQueueSize",
        "sender_queue_size",
        "WithChannelModeBufferSize",
        "STATSD_BUFFER_CAPACITY",
    ];
    /// Settings of each output and of each mapping.
    const OF_EACH: &[&str] = &["outputs", "enabled", "delta_expiry"];
    const COMMANDS_OF_OTHERS: &[&str] = &["ss ", "ulimit ", "journalctl ", "nstat "];
    const COMMANDS: &[&str] = &["doctor", "explain", "merge", "status", "tail", "top", "upgrade"];
    /// Parts of a message, of a command and of the API, which are beside what is to be done.
    const PARTS: &[&str] = &[
        "T",
        "d:",
        "@",
        "+",
        "-",
        "e:",
        "/ready",
        "--match",
        "unknown",
        "weir_overflow",
        "missing",
    ];

    /// Whether it can be entered or changed. What looks like it and does not exist sends people astray.
    fn can_be_acted_on(quoted: &str, of: &CounterInfo) -> bool {
        if let Some(command) = quoted.strip_prefix("weir ") {
            let word = command.split(' ').next().unwrap_or_default();
            assert!(COMMANDS.contains(&word), "{}: `{quoted}`", of.series.name);
            return true;
        }
        if OTHERS.contains(&quoted) || COMMANDS_OF_OTHERS.iter().any(|of| quoted.starts_with(of)) {
            return true;
        }
        let key = quoted.split([':', ' ']).next().unwrap_or_default();
        let of_outputs = OUTPUT_TYPES.iter().flat_map(|kind| leaves(kind.settings));
        let of_groups = weir_config::GROUPS
            .iter()
            .flat_map(|group| leaves(group.settings));
        let of_merge = leaves(weir_config::Merge::SETTINGS).into_iter();
        let mut settings = of_groups.chain(of_outputs).chain(of_merge);
        let is_output = |name: &str| OUTPUT_TYPES.iter().any(|kind| kind.name == name);
        let is_setting = settings.any(|leaf| leaf.path.split('.').any(|part| part == key))
            || OF_EACH.contains(&key)
            || key.strip_prefix("outputs.").is_some_and(is_output);
        let is_part = PARTS.contains(&quoted) || quoted.starts_with("weir_") || quoted.starts_with("docs/");
        assert!(
            is_setting || is_part,
            "{}: there is no `{quoted}`",
            of.series.name
        );
        is_setting
    }

    #[test]
    fn every_remedy_names_a_command_or_a_setting_and_only_those_that_exist() {
        for info in kinds().into_iter().filter(|info| !repeats_others(info)) {
            let quoted: Vec<&str> = info.advice().split('`').skip(1).step_by(2).collect();
            let named = quoted
                .iter()
                .filter(|quoted| can_be_acted_on(quoted, info))
                .count();
            assert!(named > 0, "{}: {}", info.series.name, info.advice());
        }
    }
}
