//! The `weir_` series: every counter by its declaration, and lists of the status by the tables below.

use std::collections::{BTreeMap, BTreeSet};

use weir_counters::{Counter as _, CounterInfo, NumberKind};
use weir_origin::OriginStatus;
use weir_output::delivery::Reason;
use weir_output::prometheus::OwnSeries;
use weir_output::relay::RelayLoss;

use super::clients::ClientRow;
use super::counters::TABLES;
use super::fleet::FleetStatus;
use super::status::{Number, Numbers, OutputStatus, RuleStatus, RulesStatus, Status};
use super::tables::*;

/// Maximum rules with series.
const RULE_SERIES_MAX: usize = 200;

/// Maximum agents of a fleet with series.
const AGENT_SERIES_MAX: usize = 100;

/// One series in the documentation.
pub struct Declared {
    pub labels: Vec<&'static str>,
    pub info: &'static CounterInfo,
}

/// All declarations, grouped by series.
pub fn declared() -> Vec<Declared> {
    let mut all: Vec<Declared> = Vec::new();
    let own = TABLES.iter().copied().flatten().map(|info| Declared {
        labels: owner_labels(info.series.path)
            .iter()
            .copied()
            .chain(info.series.label.map(|(name, _)| name))
            .collect(),
        info,
    });
    all.extend(own);
    fn rows<T>(table: &'static Table<T>) -> impl Iterator<Item = Declared> {
        table.shown.iter().map(|shown| Declared {
            labels: table.labels.to_vec(),
            info: &shown.info,
        })
    }
    all.extend(rows(&PROGRAM).chain(rows(&START)));
    all.extend(rows(&MEMORY).chain(rows(&MEMORY_PARTS)));
    all.extend(rows(&SHARES).chain(rows(&SHARE_EVENTS)));
    all.extend(rows(&LIMITED).chain(rows(&RATES)));
    all.extend(rows(&REFUSED).chain(rows(&TAG_KEYS)));
    all.extend(rows(&CLIENTS));
    all.extend(rows(&RELOADS).chain(rows(&RELOAD)));
    all.extend(rows(&STATE));
    all.extend(rows(&UNDELIVERED));
    all.extend(rows(&RULES).chain(rows(&RULE)));
    all.extend(rows(&OUTPUTS).chain(rows(&BOOKS)));
    all.extend(rows(&RESOLVER).chain(rows(&PROCESSES)));
    all.extend(rows(&ORIGINS).chain(rows(&SOURCES)));
    all.extend(rows(&FLEET_PARTITIONS).chain(rows(&FLEET_AGENTS)));
    all.extend(rows(&FLEET_SENT));
    all
}

/// The labels that identify an entry of a list.
fn owner_labels(path: &str) -> &'static [&'static str] {
    match path.split('.').next() {
        Some("listeners") => &["listener"],
        Some("outputs") if path.contains('{') => &["kind", "output"],
        Some("outputs") => &["output"],
        _ => &[],
    }
}

type Labels = Vec<(&'static str, String)>;

/// The entries that have the numbers at a path, with their labels.
fn owners<'a>(status: &'a Status, path: &str) -> Vec<(Labels, &'a Numbers)> {
    match path.split('.').next() {
        Some("listeners") => {
            let listeners = status.listeners.iter();
            listeners
                .map(|of| (vec![("listener", of.address.clone())], &of.numbers))
                .collect()
        }
        Some("outputs") => {
            let outputs = status.outputs.iter();
            outputs
                .map(|of| (vec![("output", of.name.clone())], &of.numbers))
                .collect()
        }
        Some("origin") => {
            let origin = status.origin.iter();
            origin.map(|of| (vec![], &of.numbers)).collect()
        }
        Some("fleet") => {
            let fleet = status.fleet.iter();
            fleet.map(|of| (vec![], &of.numbers)).collect()
        }
        Some("limits") => vec![(vec![], &status.limits.numbers)],
        Some("clients") => vec![(vec![], &status.clients.numbers)],
        _ => vec![(vec![], &status.numbers)],
    }
}

/// The `weir_` series, grouped by name.
pub fn own_series(status: &Status) -> Vec<OwnSeries> {
    collect(status).into_iter().map(|(_, series)| series).collect()
}

/// The same, each with its declaration.
pub fn collect(status: &Status) -> Vec<(&'static CounterInfo, OwnSeries)> {
    let mut all = Collected(Vec::new());
    all.each(&PROGRAM, [(vec![status.process.version.clone()], status)]);
    all.each(&START, [(vec![], status)]);
    let mut seen = BTreeSet::new();
    let counters = TABLES.iter().copied().flatten();
    for info in counters.filter(|info| seen.insert(info.series.name)) {
        all.counter(info, status);
    }
    all.each(&MEMORY, [(vec![], &status.memory)]);
    all.each(&MEMORY_PARTS, by_name(&status.memory.parts));
    let shares = status.memory.shares.iter();
    all.each(
        &SHARES,
        shares.clone().map(|share| (vec![share.name.clone()], share)),
    );
    let events = shares.flat_map(|share| {
        let events = share.events.iter();
        events.map(|(event, number)| (vec![event.clone(), share.name.clone()], number))
    });
    all.each(&SHARE_EVENTS, events);
    let limits = &status.limits;
    let limited = limits.limited.iter();
    all.each(
        &LIMITED,
        limited.map(|row| (vec![row.metric.clone(), row.reason.clone()], row)),
    );
    all.each(
        &RATES,
        limits.rates.iter().map(|row| (vec![row.source.clone()], row)),
    );
    let refused = limits.senders_refused.iter();
    all.each(
        &REFUSED,
        refused.map(|row| (vec![row.reason.clone(), row.source.clone()], row)),
    );
    all.each(
        &TAG_KEYS,
        limits.tag_keys.iter().map(|row| (vec![row.key.clone()], row)),
    );
    all.each(&CLIENTS, status.clients.losers().map(|row| (labels_of(row), row)));
    let reload = &status.reload;
    let reloads = [
        ("failed", (reload.failed, reload.last_failed)),
        ("successful", (reload.successful, reload.last_successful)),
    ];
    all.each(
        &RELOADS,
        reloads
            .iter()
            .map(|(result, reloads)| (vec![result.to_string()], reloads)),
    );
    all.each(&RELOAD, [(vec![], reload)]);
    all.each(&STATE, [(vec![], &status.state)]);
    for (series, by_output) in [
        (&UNDELIVERED, &status.state.killed.samples_undelivered),
        (&UNCERTAIN, &status.state.killed.samples_uncertain),
    ] {
        let rows = by_output.iter();
        all.each(
            series,
            rows.map(|(output, samples)| (vec![output.clone()], samples)),
        );
    }
    all.each(&RULES, [(vec![], &status.rules)]);
    let busiest = busiest(&status.rules);
    all.each(
        &RULE,
        busiest
            .iter()
            .map(|rule| (vec![rule.name.clone(), rule.stage.clone()], *rule)),
    );
    all.outputs(&status.outputs);
    if let Some(origin) = &status.origin {
        all.resolver(&origin.resolver);
    }
    if let Some(fleet) = &status.fleet {
        all.fleet(fleet);
    }
    all.0
}

/// In the order of the table's labels.
fn labels_of(row: &ClientRow) -> Vec<String> {
    let ClientRow {
        client,
        origin,
        transport,
        version,
        ..
    } = row;
    [client, origin, transport, version].map(String::clone).to_vec()
}

fn by_name(numbers: &BTreeMap<String, u64>) -> impl Iterator<Item = (Vec<String>, &u64)> + Clone {
    numbers.iter().map(|(name, number)| (vec![name.clone()], number))
}

/// Of ten thousand rules, the busy ones matter.
pub fn busiest(rules: &RulesStatus) -> Vec<&RuleStatus> {
    let mut busiest: Vec<&RuleStatus> = rules.active.iter().collect();
    busiest.sort_by_key(|rule| std::cmp::Reverse((rule.trial.is_some(), rule.hits)));
    busiest.truncate(RULE_SERIES_MAX);
    let mut shown = BTreeSet::new();
    busiest.retain(|rule| shown.insert((rule.name.as_str(), rule.stage.as_str())));
    busiest
}

struct Collected(Vec<(&'static CounterInfo, OwnSeries)>);

impl Collected {
    fn push(&mut self, info: &'static CounterInfo, mut labels: Labels, value: f64) {
        labels.sort_unstable();
        let series = OwnSeries {
            name: info.series.name,
            help: info.help(),
            is_counter: info.series.kind == NumberKind::Counter,
            labels,
            value,
        };
        self.0.push((info, series));
    }

    /// The numbers of a declaration, for each entry and each value of its label.
    fn counter(&mut self, info: &'static CounterInfo, status: &Status) {
        for (labels, numbers) in owners(status, info.series.path) {
            match (numbers.shown(info), info.series.label) {
                (Some(Number::Group(group)), Some((name, _))) => {
                    for (value, number) in group.iter() {
                        let labels = [labels.clone(), vec![(name, value.to_owned())]].concat();
                        self.push(of_label(info, value), labels, number.as_f64());
                    }
                }
                (Some(number), None) => self.push(info, labels, number.as_f64()),
                _ => {}
            }
        }
    }

    /// The series of a table, for each entry of a list.
    fn each<'a, T: 'static>(
        &mut self,
        table: &'static Table<T>,
        list: impl IntoIterator<Item = (Vec<String>, &'a T)> + Clone,
    ) {
        for shown in table.shown {
            for (values, of) in list.clone() {
                if let Some(value) = (shown.read)(of) {
                    let labels = table.labels.iter().copied().zip(values).collect();
                    self.push(&shown.info, labels, value);
                }
            }
        }
    }

    fn outputs(&mut self, outputs: &[OutputStatus]) {
        self.each(
            &OUTPUTS,
            outputs.iter().map(|output| (vec![output.name.clone()], output)),
        );
        let books = outputs.iter().flat_map(|output| {
            let books = output.books().into_iter();
            books.map(|(unit, books)| (vec![kind_of(unit).to_owned(), output.name.clone()], books))
        });
        self.each(&BOOKS, books.clone());
        for (of, books) in books {
            for (reason, count) in &books.dropped {
                let labels = vec![
                    ("kind", of[0].clone()),
                    ("output", of[1].clone()),
                    ("reason", reason.clone()),
                ];
                let info = match of[0].as_str() {
                    "message" => RelayLoss::INFO.iter().find(|info| info.as_str() == reason),
                    _ => None,
                };
                let info = info.unwrap_or_else(|| of_label(Reason::InboxFull.info(), reason));
                self.push(info, labels, *count as f64);
            }
        }
    }

    fn fleet(&mut self, fleet: &FleetStatus) {
        let partitions = fleet.partitions.iter();
        self.each(
            &FLEET_PARTITIONS,
            partitions.map(|row| (vec![row.partition.to_string()], row)),
        );
        let remarkable = fleet.agents.iter().filter(|agent| agent.is_remarkable());
        self.each(
            &FLEET_AGENTS,
            remarkable
                .take(AGENT_SERIES_MAX)
                .map(|row| (vec![row.agent.clone(), row.host.clone()], row)),
        );
        let sent = fleet.sent.iter();
        self.each(&FLEET_SENT, sent.map(|row| (vec![row.output.clone()], row)));
    }

    fn resolver(&mut self, resolver: &OriginStatus) {
        self.each(&RESOLVER, [(vec![], resolver)]);
        self.each(&PROCESSES, by_name(&resolver.processes));
        self.each(&ORIGINS, by_name(&resolver.origins));
        let sources = resolver.sources.iter();
        self.each(
            &SOURCES,
            sources.map(|source| (vec![source.place.clone(), source.name.clone()], source)),
        );
    }
}

/// The declaration of one value of a series' label.
fn of_label(info: &'static CounterInfo, value: &str) -> &'static CounterInfo {
    let mut all = TABLES.iter().copied().flatten();
    let is_it = |of: &&CounterInfo| of.series.name == info.series.name && of.as_str() == value;
    all.find(is_it).unwrap_or(info)
}

/// Turns `points` into `point`.
fn kind_of(unit: &'static str) -> &'static str {
    unit.trim_end_matches('s')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::everything;
    use weir_counters::{Counter, Counts};

    #[test]
    fn own_series_have_valid_names_and_come_grouped() {
        let mut seen: Vec<&str> = Vec::new();
        for series in own_series(&everything()) {
            assert!(series.name.starts_with("weir_"), "{series:?}");
            assert_eq!(series.is_counter, series.name.ends_with("_total"), "{series:?}");
            assert!(series.labels.is_sorted(), "{series:?}");
            if seen.last() != Some(&series.name) {
                assert!(
                    !seen.contains(&series.name),
                    "{} is not in one piece",
                    series.name
                );
                seen.push(series.name);
            }
        }
    }

    #[test]
    fn every_counter_is_a_series_and_a_field() {
        let status = everything();
        let series = own_series(&status);
        let text = serde_json::to_string(&status).unwrap();
        let read: Status = serde_json::from_str(&text).unwrap();
        let numbers = TABLES.iter().copied().flatten();
        for info in numbers.filter(|info| !info.series.path.contains('{')) {
            let named = |series: &&OwnSeries| {
                let label = info.series.label;
                series.name == info.series.name
                    && label.is_none_or(|(name, value)| series.labels.contains(&(name, value.to_owned())))
            };
            let shown = series.iter().find(named);
            assert!(shown.is_some_and(|series| series.value > 0.0), "{info:?}");
            let (_, numbers) = owners(&read, info.series.path)[0].clone();
            assert!(numbers.value(info) > 0.0, "{info:?} is not in {text}");
        }
    }

    #[test]
    fn one_declaration_for_one_series() {
        for (at, one) in declared().iter().enumerate() {
            for other in &declared()[at + 1..] {
                if one.info.series.name == other.info.series.name {
                    let same = |of: &Declared| {
                        let series = of.info.series;
                        (
                            series.path,
                            series.unit,
                            series.kind,
                            of.info.help(),
                            of.labels.clone(),
                        )
                    };
                    assert_eq!(same(one), same(other));
                    assert_ne!(one.info.doc, other.info.doc);
                }
            }
        }
    }

    #[test]
    fn counts_of_several_workers_become_one_number() {
        use weir_ingest::WorkerCounter::{ClockSetBack, HandOverWaits, LongestGapNs};
        let mut status = Status::default();
        for worker in 1..=2 {
            let mut counts = Counts::default();
            counts[HandOverWaits] = worker;
            counts[ClockSetBack] = worker;
            counts[LongestGapNs] = worker * 500_000_000;
            status.add(None, &counts);
        }
        assert_eq!((status.of(HandOverWaits), status.of(ClockSetBack)), (3, 2));
        assert_eq!(status.numbers.value(LongestGapNs.info()), 1.0);
    }
}
