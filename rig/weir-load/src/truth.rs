//! The oracle: replays the stream for the sent packets and sums up the expected totals of an agent.

use crate::columns::sketch;
use crate::compose::{Composer, DrawnMessage, FAULTS, Observer, filler_name, instance, serial_member};
use crate::manifest::{
    ColumnWindow, ColumnsSent, ContextTruth, Decimal, Distinct, Manifest, Sending, Totals, TypeTotals,
    VERSION,
};
use crate::model::{DISTRIBUTION, GAUGE, KINDS, Model, SET};
use crate::profile::{Churn, Transport, ValueKind};
use crate::run::{Report, SentStream};
use crate::source::Load;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Marks a set member that is the number of its packet.
const SERIAL: u64 = 1 << 63;

/// The totals of one context in one generation.
#[derive(Clone, Debug, Default)]
struct Row {
    messages: u64,
    samples: u64,
    weight: u64,
    sum: Decimal,
    weighted_sum: Decimal,
    min: Option<Decimal>,
    max: Option<Decimal>,
    last: Vec<(u32, Decimal)>,
    /// Of distributions, if they are wanted.
    bins: BTreeMap<i32, u64>,
    /// Entries of the model, or the numbers themselves if values are numbered; with `SERIAL`, the number of a packet.
    members: BTreeSet<u64>,
}

/// The message, as it was drawn.
#[derive(Clone, Copy)]
struct Drawn {
    kind: u8,
    entry: u32,
    sequence: u64,
    serial: u64,
}

impl Row {
    fn add(&mut self, model: &Model, drawn: Drawn, connection: u32, with_bins: bool) {
        let Drawn {
            kind,
            entry,
            sequence,
            serial,
        } = drawn;
        let mut e = model.entries[kind as usize][entry as usize];
        if serial > 0 && kind != SET {
            e = model.numbered_entry(kind, entry, serial);
        }
        if sequence > 0 {
            let value = Decimal::from_int(sequence as i64);
            (e.sum, e.min, e.max, e.last) = (value, value, value, value);
        }
        self.messages += 1;
        self.samples += u64::from(e.samples);
        self.weight += u64::from(e.samples) * u64::from(e.weight);
        if kind == SET {
            self.members.insert(match (sequence, serial) {
                (0, 0) => u64::from(entry),
                (0, serial) => SERIAL | serial,
                (sequence, _) => sequence,
            });
            return;
        }
        self.sum.micros += e.sum.micros;
        self.weighted_sum.micros += e.sum.micros * i128::from(e.weight);
        self.min = Some(self.min.map_or(e.min, |m| m.min(e.min)));
        self.max = Some(self.max.map_or(e.max, |m| m.max(e.max)));
        if kind == GAUGE {
            match self.last.last_mut() {
                Some((from, last)) if *from == connection => *last = e.last,
                _ => self.last.push((connection, e.last)),
            }
        }
        if kind == DISTRIBUTION && with_bins {
            for value in model.drawn_values(kind, entry, sequence, serial) {
                *self.bins.entry(sketch::key(value.to_f64())).or_default() += u64::from(e.weight);
            }
        }
    }
}

/// A context that occurs once.
struct Fresh {
    number: u64,
    context: u32,
    entry: u32,
    generation: u32,
    sequence: u64,
    serial: u64,
}

/// Sums up one replay.
struct Books<'m> {
    model: &'m Model,
    /// Per context, generation 0.
    rows: Vec<Row>,
    /// Other generations, by context and generation.
    later: HashMap<(u32, u32), Row>,
    /// Contexts that occur once, kept only for the table.
    fresh: Vec<Fresh>,
    fresh_count: u64,
    detail: Detail,
    types: [TypeTotals; 6],
    metrics: u64,
    events: Vec<u64>,
    checks: Vec<u64>,
    faults: Vec<u64>,
    /// Fillers by their number of extra bytes.
    fillers: BTreeMap<u32, u64>,
    connection: u32,
    /// Contexts that had a message, fresh ones by their template. Selects names and tags.
    seen: Vec<bool>,
}

impl Observer for Books<'_> {
    fn saw(&mut self, drawn: DrawnMessage) {
        match drawn {
            DrawnMessage::Event(number) => self.events[number as usize] += 1,
            DrawnMessage::Check(number) => self.checks[number as usize] += 1,
            DrawnMessage::Malformed(fault) => self.faults[fault as usize] += 1,
            DrawnMessage::Filler(extra) => {
                self.metrics += 1;
                let counters = &mut self.types[0];
                counters.messages += 1;
                counters.samples += 1;
                counters.weight += 1;
                *self.fillers.entry(extra).or_default() += 1;
            }
            DrawnMessage::Metric {
                context,
                entry,
                generation,
                fresh,
                stamped: _,
                sequence,
                serial,
            } => {
                let kind = self.model.contexts[context as usize].kind;
                let e = &self.model.entries[kind as usize][entry as usize];
                self.metrics += 1;
                let totals = &mut self.types[kind as usize];
                totals.messages += 1;
                totals.samples += u64::from(e.samples);
                totals.weight += u64::from(e.samples) * u64::from(e.weight);
                self.seen[context as usize] = true;
                if fresh > 0 {
                    self.fresh_count += 1;
                    if self.detail.contexts {
                        self.fresh.push(Fresh {
                            number: fresh,
                            context,
                            entry,
                            generation,
                            sequence,
                            serial,
                        });
                    }
                    return;
                }
                let row = if generation == 0 {
                    &mut self.rows[context as usize]
                } else {
                    self.later.entry((context, generation)).or_default()
                };
                let drawn = Drawn {
                    kind,
                    entry,
                    sequence,
                    serial,
                };
                row.add(self.model, drawn, self.connection, self.detail.bins);
            }
        }
    }
}

/// Adds one packet to the digest.
pub fn digest_packet(digest: u64, packet: &[u8]) -> u64 {
    xxh3_64_with_seed(packet, digest)
}

/// Digest of the first packets of every connection, in order.
pub fn digest(load: &Load, packets: u64) -> String {
    let sent: Vec<SentStream> = (0..load.profile.connections)
        .map(|connection| SentStream {
            connection,
            composed: packets,
            skipped: Vec::new(),
            cycle: None,
        })
        .collect();
    replay(load, &sent, &Detail::default()).digest
}

/// Optional parts of the truth.
#[derive(Clone, Copy, Debug, Default)]
pub struct Detail {
    /// One row per context, events and checks by name.
    pub contexts: bool,
    /// Count packets that equal an earlier one, by hash. Takes eight bytes of memory per packet.
    pub repeats: bool,
    /// The bins of distributions in their rows.
    pub bins: bool,
    /// The rows of each window too, of a load of columns.
    pub windows: bool,
}

/// Number of repeated hashes.
fn repeated(mut hashes: Vec<u64>) -> u64 {
    let all = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    (all - hashes.len()) as u64
}

/// Replays the sent packets.
pub fn replay(load: &Load, sent: &[SentStream], detail: &Detail) -> Manifest {
    replay_with(load, sent, detail, None)
}

fn replay_with(load: &Load, sent: &[SentStream], detail: &Detail, columns: Option<&ColumnsSent>) -> Manifest {
    match &load.model {
        Some(model) => replay_model(load, model, sent, detail, columns),
        None => replay_records(load, sent, detail),
    }
}

fn empty(load: &Load, totals: Totals, distinct: Distinct, digest: u64) -> Manifest {
    Manifest {
        version: VERSION,
        profile: load.name.clone(),
        seed: load.seed,
        payload: load.profile.payload.name().into(),
        totals,
        distinct,
        digest: format!("xxh3:{digest:016x}"),
        ..Manifest::default()
    }
}

/// Visits the sent packets of a stream. `restart` returns the stream from its start.
fn each_packet(
    sent: &SentStream,
    mut next: impl FnMut(u64, bool) -> (usize, u32),
    mut sent_one: impl FnMut(usize, u32),
) {
    let mut skips = sent.skipped.iter().peekable();
    for index in 0..sent.composed {
        while skips.next_if(|(_, end)| *end <= index).is_some() {}
        let skipped = skips.peek().is_some_and(|(start, _)| *start <= index);
        let (len, messages) = next(index, skipped);
        if !skipped {
            sent_one(len, messages);
        }
    }
}

impl<'m> Books<'m> {
    fn new(model: &'m Model, detail: &Detail) -> Books<'m> {
        let count = model.contexts.len();
        Books {
            model,
            rows: vec![Row::default(); count],
            later: HashMap::new(),
            fresh: Vec::new(),
            fresh_count: 0,
            detail: *detail,
            types: [TypeTotals::default(); 6],
            metrics: 0,
            events: vec![0; model.events.len()],
            checks: vec![0; model.checks.len()],
            faults: vec![0; FAULTS.len()],
            fillers: BTreeMap::new(),
            connection: 0,
            seen: vec![false; count],
        }
    }
}

/// The windows of a connection.
fn windows_of<'c>(columns: &'c ColumnsSent, stream: &SentStream) -> &'c [ColumnWindow] {
    let clients = columns.clients.iter();
    clients
        .filter(|client| client.connection == stream.connection)
        .map(|client| client.windows.as_slice())
        .next()
        .unwrap_or_default()
}

/// Type, name and tags of a context.
type Identity = (String, String, Vec<String>);

/// The rows of each window. The rows of one window in several connections are one.
fn window_tables(
    load: &Load,
    model: &std::sync::Arc<Model>,
    sent: &[SentStream],
    detail: &Detail,
    columns: &ColumnsSent,
) -> BTreeMap<i64, Vec<ContextTruth>> {
    let mut tables: BTreeMap<i64, BTreeMap<Identity, ContextTruth>> = BTreeMap::new();
    for stream in sent {
        let mut composer = Composer::new(model, stream.connection, load.profile.connections);
        let mut buffer = vec![0u8; composer.packet_room()];
        let mut next = 0;
        for window in windows_of(columns, stream) {
            let mut books = Books::new(model, detail);
            while next < window.packets.1 {
                if next >= window.packets.0 && window.acknowledged {
                    composer.packet_with(&mut buffer, &mut books);
                } else {
                    composer.packet(&mut buffer);
                }
                next += 1;
            }
            let table = tables.entry(window.start).or_default();
            for row in self::table(&books) {
                let key = (row.kind.clone(), row.name.clone(), row.tags.clone());
                match table.get_mut(&key) {
                    None => drop(table.insert(key, row)),
                    Some(known) => known.merge(&row),
                }
            }
        }
    }
    tables
        .into_iter()
        .map(|(start, rows)| (start, rows.into_values().collect()))
        .collect()
}

fn replay_model(
    load: &Load,
    model: &std::sync::Arc<Model>,
    sent: &[SentStream],
    detail: &Detail,
    columns: Option<&ColumnsSent>,
) -> Manifest {
    let mut books = Books::new(model, detail);
    let mut totals = Totals::default();
    let mut digest = 0;
    let mut hashes = Vec::new();
    for stream in sent {
        books.connection = stream.connection;
        let fresh = || Composer::new(model, stream.connection, load.profile.connections);
        let mut composer = fresh();
        let mut buffer = vec![0u8; composer.packet_room()];
        let cell = std::cell::RefCell::new((&mut buffer, &mut books));
        each_packet(
            stream,
            |index, skipped| {
                if stream.cycle.is_some_and(|cycle| index % cycle == 0) {
                    composer = fresh();
                }
                let mut cell = cell.borrow_mut();
                let (buffer, books) = &mut *cell;
                let packet = if skipped {
                    composer.packet(buffer)
                } else {
                    composer.packet_with(buffer, *books)
                };
                (packet.len, packet.messages)
            },
            |len, messages| {
                let cell = cell.borrow();
                digest = digest_packet(digest, &cell.0[..len]);
                if detail.repeats {
                    hashes.push(xxh3_64(&cell.0[..len]));
                }
                totals.packets += 1;
                totals.bytes += len as u64;
                totals.messages += u64::from(messages);
            },
        );
    }
    totals.repeated_packets = detail.repeats.then(|| repeated(hashes));
    totals.metrics = books.metrics;
    totals.events = books.events.iter().sum();
    totals.service_checks = books.checks.iter().sum();
    totals.types = KINDS
        .iter()
        .zip(&books.types)
        .filter(|(_, t)| t.messages > 0)
        .map(|(name, t)| (name.to_string(), *t))
        .collect();
    totals.malformed = FAULTS
        .iter()
        .zip(&books.faults)
        .filter(|(_, count)| **count > 0)
        .map(|((name, _), count)| (name.to_string(), *count))
        .collect();
    let distinct = distinct(&books);
    let mut manifest = empty(load, totals, distinct, digest);
    if detail.contexts {
        manifest.contexts = Some(table(&books));
        manifest.windows = columns
            .filter(|_| detail.windows)
            .map(|columns| window_tables(load, model, sent, detail, columns));
        manifest.events = Some(notices(model.events.iter().map(|n| &n.key).zip(&books.events)));
        manifest.checks = Some(notices(model.checks.iter().map(|n| &n.key).zip(&books.checks)));
    }
    manifest
}

fn notices<'a>(pairs: impl Iterator<Item = (&'a String, &'a u64)>) -> BTreeMap<String, u64> {
    let mut map = BTreeMap::new();
    for (key, count) in pairs.filter(|(_, count)| **count > 0) {
        *map.entry(key.clone()).or_insert(0) += *count;
    }
    map
}

fn group(model: &Model) -> Option<u64> {
    match model.profile.churn {
        Churn::None => None,
        Churn::Trickle { group, .. } | Churn::Deploy { group, .. } => Some(group),
    }
}

fn distinct(books: &Books<'_>) -> Distinct {
    let model = books.model;
    let group = group(model);
    let mut names = HashSet::new();
    let mut tags: HashSet<u32> = HashSet::new();
    let mut lists = HashSet::new();
    let mut instances = HashSet::new();
    let mut contexts = books.fresh_count;
    for (index, context) in model.contexts.iter().enumerate() {
        if books.seen[index] {
            names.insert(context.name_id);
            tags.extend(model.list(context.list));
        }
    }
    let first = books
        .rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.messages > 0)
        .map(|(index, _)| (index as u32, 0));
    for (index, generation) in first.chain(books.later.keys().copied()) {
        contexts += 1;
        let context = &model.contexts[index as usize];
        let tag = group.map(|size| instance(model.seed, u64::from(index) / size, generation));
        instances.extend(tag);
        lists.insert((context.list, tag, context.suffix));
    }
    // The container is not a tag, so lists that differ only in it are one.
    let lists: HashSet<(u32, Option<u64>)> = lists.into_iter().map(|(l, t, _)| (l, t)).collect();
    let fillers = books.fillers.len() as u64;
    contexts += fillers;
    // Fillers have no tags. Other messages may share the empty list.
    let bare = lists
        .iter()
        .any(|(list, tag)| tag.is_none() && model.list(*list).is_empty());
    Distinct {
        names: names.len() as u64 + fillers,
        tags: tags.len() as u64 + instances.len() as u64 + books.fresh_count,
        tag_lists: lists.len() as u64 + books.fresh_count + u64::from(fillers > 0 && !bare),
        contexts,
    }
}

fn table(books: &Books<'_>) -> Vec<ContextTruth> {
    let model = books.model;
    let truth = |index: u32, generation: u32, fresh: u64, row: &Row| {
        let context = &model.contexts[index as usize];
        let mut members: Vec<String> = row
            .members
            .iter()
            .map(|member| match model.profile.value.kind {
                ValueKind::Sequence => member.to_string(),
                _ if member & SERIAL > 0 => serial_member(member ^ SERIAL),
                _ => {
                    let text = model.text(model.entries[SET as usize][*member as usize].text);
                    text.split('|').next().unwrap_or("").to_string()
                }
            })
            .collect();
        members.sort_unstable();
        ContextTruth {
            name: model.name(context).to_string(),
            kind: KINDS[context.kind as usize].to_string(),
            tags: model.tags_of(index, generation, fresh),
            container_id: model.containers[context.suffix as usize].clone(),
            messages: row.messages,
            samples: row.samples,
            weight: row.weight,
            sum: row.sum,
            weighted_sum: row.weighted_sum,
            min: row.min,
            max: row.max,
            last: row.last.iter().map(|(_, value)| *value).collect(),
            members,
            bins: (books.detail.bins && context.kind == DISTRIBUTION).then(|| row.bins.clone()),
        }
    };
    let mut rows: Vec<ContextTruth> = books
        .rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.messages > 0)
        .map(|(index, row)| truth(index as u32, 0, 0, row))
        .collect();
    rows.extend(
        books
            .later
            .iter()
            .map(|((index, generation), row)| truth(*index, *generation, 0, row)),
    );
    rows.extend(books.fresh.iter().map(|fresh| {
        let mut row = Row::default();
        let kind = model.contexts[fresh.context as usize].kind;
        let drawn = Drawn {
            kind,
            entry: fresh.entry,
            sequence: fresh.sequence,
            serial: fresh.serial,
        };
        row.add(model, drawn, 0, books.detail.bins);
        truth(fresh.context, fresh.generation, fresh.number, &row)
    }));
    rows.extend(books.fillers.iter().map(|(extra, count)| {
        let sum = Decimal::from_int(*count as i64);
        ContextTruth {
            name: filler_name(*extra),
            kind: KINDS[0].to_string(),
            messages: *count,
            samples: *count,
            weight: *count,
            sum,
            weighted_sum: sum,
            min: Some(Decimal::from_int(1)),
            max: Some(Decimal::from_int(1)),
            ..ContextTruth::default()
        }
    }));
    rows.sort_unstable_by(|a, b| {
        (&a.kind, &a.name, &a.tags, &a.container_id).cmp(&(&b.kind, &b.name, &b.tags, &b.container_id))
    });
    rows
}

fn replay_records(load: &Load, sent: &[SentStream], detail: &Detail) -> Manifest {
    let mut totals = Totals::default();
    let mut digest = 0;
    let mut hashes = Vec::new();
    for stream in sent {
        let mut source = load.composed(stream.connection);
        let mut buffer = vec![0u8; source.room()];
        let cell = std::cell::RefCell::new(&mut buffer);
        each_packet(
            stream,
            |index, _| {
                if stream.cycle.is_some_and(|cycle| index % cycle == 0) {
                    source = load.composed(stream.connection);
                }
                let packet = source.packet(&mut cell.borrow_mut());
                (packet.len, packet.messages)
            },
            |len, messages| {
                let cell = cell.borrow();
                digest = digest_packet(digest, &cell[..len]);
                if detail.repeats {
                    hashes.push(xxh3_64(&cell[..len]));
                }
                totals.packets += 1;
                totals.bytes += len as u64;
                totals.messages += u64::from(messages);
                totals.records += u64::from(messages);
            },
        );
    }
    totals.repeated_packets = detail.repeats.then(|| repeated(hashes));
    empty(load, totals, Distinct::default(), digest)
}

/// The manifest of a run.
pub fn manifest(load: &Load, target: &str, report: &Report, detail: &Detail) -> Manifest {
    let mut manifest = replay_with(load, &report.sent, detail, report.columns.as_ref());
    if let Some(columns) = &report.columns {
        // The target got requests; the digest is that of the messages in them.
        manifest.totals.packets = report.packets;
        manifest.totals.bytes = report.bytes;
        manifest.columns = Some(columns.clone());
    }
    // Requests that the target did not take are not among those sent.
    let is_answered = load.transport == Transport::Http && !load.is_columns();
    manifest.totals.acknowledged = is_answered.then_some(report.messages);
    manifest.target = Some(target.to_string());
    manifest.started_unix_ns = report.started_unix_ns;
    manifest.sending = Sending {
        elapsed_s: report.elapsed.as_secs_f64(),
        first_pass_s: report.first_pass.as_secs_f64(),
        unit: report.unit.map_or("", |unit| unit.name()).into(),
        scheduled: report.scheduled,
        achieved: report.achieved,
        late_fraction: if report.packets > 0 {
            report.late_packets as f64 / report.packets as f64
        } else {
            0.0
        },
        lateness_p99_s: report.lateness_p99_s,
        blocked_s: report.blocked.as_secs_f64(),
        refused_packets: report.refused_packets,
        refused_messages: report.refused_messages,
        cpu_user_s: report.cpu_user.as_secs_f64(),
        cpu_system_s: report.cpu_system.as_secs_f64(),
        run_delay_s: report.run_delay.as_secs_f64(),
        verdict: report.verdict().name().into(),
        markers: report.markers.clone(),
    };
    manifest
}
