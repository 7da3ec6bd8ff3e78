//! The `weir_` series: every counter by its declaration, and what the status has in lists by the tables below.

use std::collections::BTreeSet;

use weir_counters::Moves::{Sign, Work};
use weir_counters::{Info, Kind, Moves, Series};
use weir_origin::{OriginStatus, SourceStatus};
use weir_output::prometheus::OwnSeries;

use super::contexts::{LimitedRow, TagKeyRow};
use super::counters::TABLES;
use super::status::{
    MemoryStatus, Number, Numbers, OutputStatus, PointBooks, RateLimitedRow, RefusedSenderRow, ReloadStatus,
    RuleStatus, RulesStatus, Status,
};

/// Rules that have series of their own.
const RULE_SERIES_MAX: usize = 200;

/// A series that is read from a part of the status.
struct Shown<T: 'static> {
    info: Info,
    read: fn(&T) -> Option<f64>,
}

/// Series of a list, with the names of the labels that tell its entries apart.
struct Table<T: 'static> {
    labels: &'static [&'static str],
    shown: &'static [Shown<T>],
}

const fn counter<T>(
    (name, path, unit): (&'static str, &'static str, &'static str),
    doc: &'static str,
    moves: Moves,
    read: fn(&T) -> Option<f64>,
) -> Shown<T> {
    let series = Series::counter(name, path, unit);
    Shown {
        info: Info { series, doc, moves },
        read,
    }
}

const fn gauge<T>(
    (name, path, unit): (&'static str, &'static str, &'static str),
    doc: &'static str,
    moves: Moves,
    read: fn(&T) -> Option<f64>,
) -> Shown<T> {
    let series = Series::gauge(name, path, unit);
    Shown {
        info: Info { series, doc, moves },
        read,
    }
}

fn flag(is: bool) -> Option<f64> {
    Some(f64::from(u8::from(is)))
}

const PROGRAM: Table<Status> = Table {
    labels: &["version"],
    shown: &[gauge(
        ("weir_info", "version", "always 1"),
        "Always 1; the label says what runs.",
        Work("Another version was started."),
        |_| Some(1.0),
    )],
};

const START: Table<Status> = Table {
    labels: &[],
    shown: &[gauge(
        ("weir_start_time_seconds", "started", "seconds"),
        "Unix time of the start.",
        Work("weir was started again."),
        |status| Some(status.started as f64),
    )],
};

const MEMORY: Table<MemoryStatus> = Table {
    labels: &[],
    shown: &[
        gauge(
            ("weir_memory_budget_bytes", "memory.budget", "bytes"),
            "The memory budget.",
            Work("It is `memory`."),
            |memory| Some(memory.budget as f64),
        ),
        gauge(
            ("weir_memory_used_bytes", "memory.used", "bytes"),
            "Memory counted against the budget.",
            Work("Near the budget, new contexts find no room: see `weir_context_limit_samples_total`."),
            |memory| Some(memory.used as f64),
        ),
    ],
};

const MEMORY_PARTS: Table<u64> = Table {
    labels: &["part"],
    shown: &[gauge(
        ("weir_memory_part_bytes", "memory.parts", "bytes"),
        "What the used memory is made of.",
        Work("The largest part says what the memory is for."),
        |bytes| Some(*bytes as f64),
    )],
};

const LIMITED: Table<LimitedRow> = Table {
    labels: &["metric", "reason"],
    shown: &[gauge(
        (
            "weir_context_limit_metric_samples",
            "limits.limited[].samples",
            "samples",
        ),
        "Samples of metrics whose new contexts met a limit in the last bucket; absent when there are none.",
        Sign("Drop the tag that differs most with a rule: `weir status` names it."),
        |row| Some(row.samples as f64),
    )],
};

const RATES: Table<RateLimitedRow> = Table {
    labels: &["source"],
    shown: &[gauge(
        ("weir_rate_limited_packets", "limits.rates[].packets", "packets"),
        "Packets dropped of sources that send more than a rate limit allows; absent when they are quiet.",
        Sign("Raise the limit or calm the sender."),
        |row| Some(row.packets as f64),
    )],
};

const REFUSED: Table<RefusedSenderRow> = Table {
    labels: &["reason", "source"],
    shown: &[gauge(
        (
            "weir_sender_refused_packets",
            "limits.senders_refused[].packets",
            "packets",
        ),
        "Packets dropped of senders that allowed_origins does not let send; absent when they are quiet.",
        Sign("Add the origin to `allowed_origins`, or find out why it sends."),
        |row| Some(row.packets as f64),
    )],
};

const TAG_KEYS: Table<TagKeyRow> = Table {
    labels: &["key"],
    shown: &[gauge(
        ("weir_tag_key_values_alert", "limits.tag_keys[].values", "values"),
        "Different values of tag keys that have more than tag_values_alert; absent when there are none.",
        Sign("Drop the tag with a rule, or raise `tag_values_alert`."),
        |row| Some(row.values as f64),
    )],
};

/// Of reloads with one result: how many there were, and when the last was.
type Reloads = (u64, u64);

const RELOADS: Table<Reloads> = Table {
    labels: &["result"],
    shown: &[
        counter(
            ("weir_config_reloads_total", "reload.{result}", "reloads"),
            "Reloads of the configuration, by result.",
            Work(
                "Somebody changes the configuration, a key or a token; `weir_config_last_reload_failed` tells of failures.",
            ),
            |(count, _)| Some(*count as f64),
        ),
        gauge(
            (
                "weir_config_last_reload_timestamp_seconds",
                "reload.last_{result}",
                "seconds",
            ),
            "Unix time of the last reload of the configuration, by result; 0 before the first.",
            Work("Somebody changes the configuration, a key or a token."),
            |(_, at)| Some(*at as f64),
        ),
    ],
};

const RELOAD: Table<ReloadStatus> = Table {
    labels: &[],
    shown: &[
        gauge(
            ("weir_config_last_reload_failed", "reload.last_error", "flag"),
            "1 when the last reload failed: what is in force is not what the configuration says.",
            Sign("`weir status` says why; `weir check` tries the file."),
            |reload| flag(reload.last_error.is_some()),
        ),
        gauge(
            (
                "weir_config_settings_waiting_for_restart",
                "reload.waiting_for_restart[]",
                "settings",
            ),
            "Settings that have another value in the configuration than in the process.",
            Sign("Start weir again to apply them."),
            |reload| Some(reload.waiting_for_restart.len() as f64),
        ),
    ],
};

const RULES: Table<RulesStatus> = Table {
    labels: &[],
    shown: &[
        gauge(
            ("weir_rules", "rules.count", "rules"),
            "Rules in force.",
            Work("The configuration changed."),
            |rules| Some(rules.count as f64),
        ),
        counter(
            (
                "weir_rule_matching_seconds_total",
                "rules.matching_seconds",
                "seconds",
            ),
            "Time spent on finding out which rules match.",
            Work("It rises with new contexts, and not with messages."),
            |rules| Some(rules.matching_seconds),
        ),
    ],
};

const RULE: Table<RuleStatus> = Table {
    labels: &["rule", "stage"],
    shown: &[
        counter(
            ("weir_rule_hits_total", "rules.active[].hits", "contexts"),
            "Contexts a rule was applied to; the busiest rules only.",
            Work("The rule does what it says."),
            |rule| Some(rule.hits as f64),
        ),
        counter(
            ("weir_rule_seconds_total", "rules.active[].seconds", "seconds"),
            "Time spent on applying a rule.",
            Work("It rises with new contexts, and not with messages."),
            |rule| Some(rule.seconds),
        ),
        counter(
            (
                "weir_rule_samples_dropped_total",
                "rules.active[].samples_dropped",
                "samples",
            ),
            "Samples a rule dropped.",
            Work("The rule does what it says."),
            |rule| Some(rule.samples_dropped as f64),
        ),
        gauge(
            (
                "weir_rule_trial_contexts",
                "rules.active[].trial.contexts_now",
                "contexts",
            ),
            "Live contexts that a rule on trial would change or drop.",
            Work("It follows what clients send."),
            |rule| Some(rule.trial.as_ref()?.contexts_now as f64),
        ),
        gauge(
            (
                "weir_rule_trial_contexts_left",
                "rules.active[].trial.contexts_then",
                "contexts",
            ),
            "How many contexts would be left of those.",
            Work("It follows what clients send."),
            |rule| Some(rule.trial.as_ref()?.contexts_then as f64),
        ),
        counter(
            (
                "weir_rule_trial_samples_dropped_total",
                "rules.active[].trial.samples_dropped",
                "samples",
            ),
            "Samples that a rule on trial would have dropped.",
            Work("It follows what clients send."),
            |rule| Some(rule.trial.as_ref()?.samples_dropped as f64),
        ),
    ],
};

const OUTPUTS: Table<OutputStatus> = Table {
    labels: &["output"],
    shown: &[
        gauge(
            ("weir_output_healthy", "outputs[].healthy", "flag"),
            "1 when the last attempt succeeded.",
            Sign("At 0 `weir status` shows the last error."),
            |output| flag(output.healthy),
        ),
        gauge(
            ("weir_output_lag_seconds", "outputs[].lag_seconds", "seconds"),
            "Age of the oldest pending point.",
            Sign("The backend is away or slow: `weir status` shows the last error."),
            |output| Some(output.lag_seconds),
        ),
        gauge(
            ("weir_output_disk_queue_bytes", "outputs[].disk_bytes", "bytes"),
            "Bytes of the disk queue.",
            Work("It rises while the backend is away."),
            |output| output.disk_bytes.map(|bytes| bytes as f64),
        ),
    ],
};

const BOOKS: Table<PointBooks> = Table {
    labels: &["kind", "output"],
    shown: &[
        counter(
            (
                "weir_output_produced_total",
                "outputs[].{kind}s.produced",
                "items",
            ),
            "Items made for an output, by kind.",
            Work("It rises with each flush. What is produced is delivered, pending or dropped."),
            |books| Some(books.produced as f64),
        ),
        counter(
            (
                "weir_output_delivered_total",
                "outputs[].{kind}s.delivered",
                "items",
            ),
            "Items delivered, by kind.",
            Work("It rises with each flush."),
            |books| Some(books.delivered as f64),
        ),
        gauge(
            ("weir_output_pending", "outputs[].{kind}s.pending", "items"),
            "Items waiting, by kind.",
            Work("It rises while the backend is away."),
            |books| Some(books.pending as f64),
        ),
    ],
};

const RESOLVER: Table<OriginStatus> = Table {
    labels: &[],
    shown: &[
        counter(
            (
                "weir_origin_processes_reused_total",
                "origin.resolver.processes_reused",
                "processes",
            ),
            "Process numbers that went to another process.",
            Work("It was noticed; a few packets before may have had the tags of the other."),
            |resolver| Some(resolver.processes_reused as f64),
        ),
        counter(
            (
                "weir_origin_processes_moved_total",
                "origin.resolver.processes_moved",
                "processes",
            ),
            "Processes that had moved to another container.",
            Work("It was noticed; packets before may have had the tags of the other."),
            |resolver| Some(resolver.processes_moved as f64),
        ),
        gauge(
            (
                "weir_origin_processes_known",
                "origin.resolver.processes_known",
                "processes",
            ),
            "Processes remembered.",
            Work("It follows the clients."),
            |resolver| Some(resolver.processes_known as f64),
        ),
        counter(
            (
                "weir_origin_changes_total",
                "origin.resolver.origins_changed",
                "origins",
            ),
            "Origins whose tags changed.",
            Work("Tags of containers change."),
            |resolver| Some(resolver.origins_changed as f64),
        ),
        gauge(
            ("weir_origins_live", "origin.resolver.origins_live", "origins"),
            "Origins in use.",
            Work("It follows the containers that send."),
            |resolver| Some(resolver.origins_live as f64),
        ),
        gauge(
            (
                "weir_origins_unknown",
                "origin.resolver.origins_unknown",
                "origins",
            ),
            "Origins in use that no source knows.",
            Sign("A source is missing or fails: `weir status` says how each is."),
            |resolver| Some(resolver.origins_unknown as f64),
        ),
        counter(
            (
                "weir_origin_cgroup_walks_total",
                "origin.resolver.cgroup_walks",
                "walks",
            ),
            "Walks through the control groups in search of an inode.",
            Work("Clients name their container by an inode."),
            |resolver| Some(resolver.cgroup_walks as f64),
        ),
    ],
};

const PROCESSES: Table<u64> = Table {
    labels: &["result"],
    shown: &[counter(
        (
            "weir_origin_processes_total",
            "origin.resolver.processes",
            "processes",
        ),
        "Look-ups of processes, by result.",
        Work("`process_denied` and `process_unreadable` say that weir may not look: `docs/origin.md`."),
        |count| Some(*count as f64),
    )],
};

const ORIGINS: Table<u64> = Table {
    labels: &["result"],
    shown: &[counter(
        ("weir_origins_total", "origin.resolver.origins", "origins"),
        "Origins asked for, by result.",
        Work("`unknown` says that no source knows them: `docs/origin.md`."),
        |count| Some(*count as f64),
    )],
};

const SOURCES: Table<SourceStatus> = Table {
    labels: &["place", "source"],
    shown: &[
        gauge(
            (
                "weir_origin_source_healthy",
                "origin.resolver.sources[].healthy",
                "flag",
            ),
            "1 when a source of tags answered last time.",
            Sign("At 0 `weir status` shows its last error."),
            |source| flag(source.healthy),
        ),
        gauge(
            (
                "weir_origin_source_entities",
                "origin.resolver.sources[].entities",
                "containers and pods",
            ),
            "Containers and pods a source knows.",
            Work("It follows the machine."),
            |source| Some(source.entities as f64),
        ),
        counter(
            (
                "weir_origin_source_updates_total",
                "origin.resolver.sources[].updates",
                "answers",
            ),
            "Answers of a source.",
            Work("The source answers."),
            |source| Some(source.updates as f64),
        ),
        counter(
            (
                "weir_origin_source_failures_total",
                "origin.resolver.sources[].failures",
                "attempts",
            ),
            "Failed attempts of a source.",
            Sign("`weir status` shows its last error."),
            |source| Some(source.failures as f64),
        ),
    ],
};

/// One series as the documentation shows it.
pub struct Declared {
    pub labels: Vec<&'static str>,
    pub info: &'static Info,
}

/// Everything that is declared, those of one series together.
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
    all.extend(rows(&LIMITED).chain(rows(&RATES)));
    all.extend(rows(&REFUSED).chain(rows(&TAG_KEYS)));
    all.extend(rows(&RELOADS).chain(rows(&RELOAD)));
    all.extend(rows(&RULES).chain(rows(&RULE)));
    all.extend(rows(&OUTPUTS).chain(rows(&BOOKS)));
    all.extend(rows(&RESOLVER).chain(rows(&PROCESSES)));
    all.extend(rows(&ORIGINS).chain(rows(&SOURCES)));
    all
}

/// Labels of those who have numbers of their own.
fn owner_labels(path: &str) -> &'static [&'static str] {
    match path.split('.').next() {
        Some("listeners") => &["listener"],
        Some("outputs") if path.contains('{') => &["kind", "output"],
        Some("outputs") => &["output"],
        _ => &[],
    }
}

type Labels = Vec<(&'static str, String)>;

/// Those who have the numbers at a path, with their labels.
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
        Some("limits") => vec![(vec![], &status.limits.numbers)],
        _ => vec![(vec![], &status.numbers)],
    }
}

/// The `weir_` series, those of one name together.
pub fn own_series(status: &Status) -> Vec<OwnSeries> {
    let mut all = Collected(Vec::new());
    all.each(&PROGRAM, [(vec![status.version.clone()], status)]);
    all.each(&START, [(vec![], status)]);
    let mut seen = BTreeSet::new();
    let counters = TABLES.iter().copied().flatten();
    for info in counters.filter(|info| seen.insert(info.series.name)) {
        all.counter(info, status);
    }
    all.each(&MEMORY, [(vec![], &status.memory)]);
    all.each(&MEMORY_PARTS, by_name(&status.memory.parts));
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
    all.0
}

fn by_name(
    numbers: &std::collections::BTreeMap<String, u64>,
) -> impl Iterator<Item = (Vec<String>, &u64)> + Clone {
    numbers.iter().map(|(name, number)| (vec![name.clone()], number))
}

/// Whoever has ten thousand rules wants to know of the busy ones.
pub fn busiest(rules: &RulesStatus) -> Vec<&RuleStatus> {
    let mut busiest: Vec<&RuleStatus> = rules.active.iter().collect();
    busiest.sort_by_key(|rule| std::cmp::Reverse((rule.trial.is_some(), rule.hits)));
    busiest.truncate(RULE_SERIES_MAX);
    let mut shown = BTreeSet::new();
    busiest.retain(|rule| shown.insert((rule.name.as_str(), rule.stage.as_str())));
    busiest
}

struct Collected(Vec<OwnSeries>);

impl Collected {
    fn push(&mut self, info: &'static Info, mut labels: Labels, value: f64) {
        labels.sort_unstable();
        self.0.push(OwnSeries {
            name: info.series.name,
            help: info.help(),
            is_counter: info.series.kind == Kind::Counter,
            labels,
            value,
        });
    }

    /// The numbers of a declaration, one for each owner and each value of its label.
    fn counter(&mut self, info: &'static Info, status: &Status) {
        for (labels, numbers) in owners(status, info.series.path) {
            match (numbers.shown(info), info.series.label) {
                (Some(Number::Group(group)), Some((name, _))) => {
                    for (value, number) in group.iter() {
                        let labels = [labels.clone(), vec![(name, value.to_owned())]].concat();
                        self.push(info, labels, number.as_f64());
                    }
                }
                (Some(number), None) => self.push(info, labels, number.as_f64()),
                _ => {}
            }
        }
    }

    /// The series of a table, for each of a list.
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
        let dropped = &<weir_output::delivery::Reason as weir_counters::Counter>::INFO[0];
        for (of, books) in books {
            for (reason, count) in &books.dropped {
                let labels = vec![
                    ("kind", of[0].clone()),
                    ("output", of[1].clone()),
                    ("reason", reason.clone()),
                ];
                self.push(dropped, labels, *count as f64);
            }
        }
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

/// `point` for `points`.
fn kind_of(unit: &'static str) -> &'static str {
    unit.trim_end_matches('s')
}

/// A number that says that something is lost, refused, or not as good as it could be.
pub struct Moved {
    /// A listener or an output; empty for the agent as a whole.
    pub owner: String,
    pub info: &'static Info,
    pub value: f64,
}

/// What a person should look at.
pub fn signs(status: &Status) -> Vec<Moved> {
    let mut seen = BTreeSet::new();
    let mut signs = Vec::new();
    for info in TABLES.iter().copied().flatten() {
        let is_new = seen.insert((info.series.path, info.series.label));
        if !is_new || !matches!(info.moves, Sign(_)) {
            continue;
        }
        for (labels, numbers) in owners(status, info.series.path) {
            let value = numbers.value(info);
            if value > 0.0 {
                let owner = labels.into_iter().next().map(|(_, owner)| owner);
                let owner = owner.unwrap_or_default();
                signs.push(Moved { owner, info, value });
            }
        }
    }
    signs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::status::OriginReport;
    use crate::admin::status::tests::balanced;
    use weir_counters::{Counter, Counts};

    /// Every counter at one, as one worker and one listener would count it.
    fn everything() -> Status {
        let mut status = balanced();
        status.origin = Some(OriginReport::default());
        status.memory.parts.insert("contexts".to_owned(), 1);
        let numbers = TABLES.iter().copied().flatten();
        for info in numbers.filter(|info| !info.series.path.contains('{')) {
            let section = info.series.path.split('.').next().unwrap();
            match section {
                "listeners" => status.listeners[0].numbers.put(info, 1),
                "outputs" => status.outputs[0].numbers.put(info, 1),
                "origin" => status.origin.as_mut().unwrap().numbers.put(info, 1),
                "limits" => status.limits.numbers.put(info, 1),
                _ => status.numbers.put(info, 1),
            }
        }
        status
    }

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
    fn whatever_is_counted_is_a_series_a_field_and_if_it_is_a_sign_a_line() {
        let status = everything();
        let series = own_series(&status);
        let text = serde_json::to_string(&status).unwrap();
        let read: Status = serde_json::from_str(&text).unwrap();
        let lines = signs(&read);
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
            if matches!(info.moves, Sign(_)) {
                let path = info.series.path;
                assert!(
                    lines.iter().any(|moved| moved.info.series.path == path),
                    "{info:?}"
                );
            }
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
