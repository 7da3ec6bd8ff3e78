//! Gives the results of a log to one output.
//!
//! The log assigns partitions to an output as it does to owners, and keeps the position of each: everything before it is delivered. So any
//! process continues with any partition, and a dead output delays only itself. A position never goes back.
//!
//! Whether a result is late is a property of its partition, never of the newest bucket that another partition reached. Most outputs get the
//! next bucket of each partition. An output of sums writes every series once per bucket, so it gets a bucket of all partitions at once. It
//! waits for a partition that is behind, for a bounded time; what comes later counts in its next bucket.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weir_protocol::Kind;
use weir_state::{Bounds, Facts, Identity, Record, State, Table};

use crate::Plan;
use crate::log::{Assignment, CommitError, Log};
use crate::results::{BucketResult, Occasion};

/// Bytes of results that are read ahead of each partition.
const READ_BYTES: usize = 1 << 20;

/// An output's treatment of late records for a bucket that it already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correction {
    /// It shows sums: they rise in the next bucket.
    InNextBucket,
    /// Its receivers add up points of equal times: the difference is sent with the time of its bucket.
    AtItsTime,
    /// Its receivers replace points of equal times: a difference would replace the full value.
    None,
}

/// The additions that an output can make to a bucket that it already has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CorrectionPolicy {
    /// It shows sums since its start.
    pub adds_up: bool,
    /// Kinds that its receivers add up at equal times.
    pub counters: bool,
    pub distributions: bool,
    pub histograms: bool,
}

impl CorrectionPolicy {
    /// Gauges and sets cannot be added to.
    pub fn correction(&self, kind: Kind) -> Correction {
        let can_add = match kind {
            Kind::Counter => self.counters,
            Kind::Distribution => self.distributions,
            Kind::Histogram | Kind::Timing => self.histograms,
            _ => false,
        };
        match (self.adds_up, kind) {
            (true, Kind::Gauge | Kind::Set) => Correction::None,
            (true, _) => Correction::InNextBucket,
            (false, _) if can_add => Correction::AtItsTime,
            (false, _) => Correction::None,
        }
    }
}

/// Series with the time of their bucket.
#[derive(Debug)]
pub struct Flush {
    pub start: i64,
    pub width: u32,
    pub table: Table,
}

/// The next data of the output. [`Follower::delivered`] stores the positions behind it.
#[derive(Debug, Default)]
pub struct Delivery {
    /// In this order.
    pub flushes: Vec<Flush>,
    /// Start and width of the closed buckets in it.
    pub buckets: BTreeSet<(i64, u32)>,
    /// Late series in it, and those that this output cannot take.
    pub corrected: u64,
    pub not_corrected: u64,
    /// Partition, generation, and number behind the last result.
    positions: Vec<(u32, u64, u64)>,
}

impl Delivery {
    /// For each partition, its generation and the number behind its last result.
    pub fn positions(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        self.positions.iter().copied()
    }
}

/// One output and its part of the log.
#[derive(Debug)]
pub struct Follower<L> {
    log: L,
    policy: CorrectionPolicy,
    /// Milliseconds for which an output of sums waits for other partitions.
    patience: i64,
    plan: Option<Plan>,
    held: BTreeMap<u32, HeldResults>,
    /// Partitions whose position was not read yet, with their generation.
    assigned: BTreeMap<u32, u64>,
    /// For each width, the start of the newest bucket given.
    given: BTreeMap<u32, i64>,
    /// The bucket that other partitions are waited for, and since when.
    awaited: Option<((i64, u32), i64)>,
    late: Late,
    counts: FollowerCounts,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowerCounts {
    /// Results that the log deleted before they were read, at most.
    pub deleted: u64,
    /// Results that cannot be decoded.
    pub unreadable: u64,
    /// Partitions that went to another process.
    pub revoked: u64,
}

#[derive(Debug)]
struct HeldResults {
    generation: u64,
    /// The stored position.
    stored: u64,
    /// The next number to read, and the number behind the last result given or added to [`Late`].
    read: u64,
    taken: u64,
    waiting: VecDeque<Piece>,
    /// Bytes of all that waits.
    bytes: usize,
    /// By tenant and width, the start of the newest bucket taken.
    newest: BTreeMap<(String, u32), i64>,
    /// Whether a bucket waits for it: not once it was waited for in vain.
    is_awaited: bool,
}

/// A result that was read.
#[derive(Debug)]
struct Piece {
    result: BucketResult,
    after: u64,
    bytes: usize,
}

/// Series for the next bucket of an output of sums, although their own was given.
#[derive(Debug, Default)]
struct Late {
    table: Table,
    /// Their members cannot be added to those of another bucket: the newest set counts.
    sets: BTreeMap<Identity, (Facts, State)>,
    bucket: Option<(i64, u32)>,
    since: Option<i64>,
    corrected: u64,
    not_corrected: u64,
    buckets: BTreeSet<(i64, u32)>,
}

impl Piece {
    fn bucket(&self) -> (i64, u32) {
        (self.result.bucket_start, self.result.bucket_width)
    }

    /// Its buckets come in order, unless the clock steps.
    fn stream(&self) -> (String, u32) {
        (self.result.tenant.clone(), self.result.bucket_width)
    }

    fn is_correction(&self) -> bool {
        matches!(self.result.occasion, Occasion::Late { .. })
    }

    fn is_last_part(&self) -> bool {
        self.result.part + 1 >= self.result.parts
    }
}

impl HeldResults {
    fn push(&mut self, piece: Piece) {
        self.bytes += piece.bytes;
        self.waiting.push_back(piece);
    }

    fn pop(&mut self) -> Option<Piece> {
        let piece = self.waiting.pop_front();
        self.bytes -= piece.as_ref().map_or(0, |piece| piece.bytes);
        piece
    }

    fn clear(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
    }

    /// The oldest whole bucket.
    fn bucket(&self) -> Option<(i64, u32)> {
        let mut whole = self.waiting.iter().filter(|piece| piece.is_last_part());
        whole.find(|piece| !piece.is_correction()).map(Piece::bucket)
    }

    fn has_whole(&self, from: i64) -> bool {
        let mut whole = self.waiting.iter().filter(|piece| piece.is_last_part());
        whole.any(|piece| !piece.is_correction() && piece.result.bucket_start >= from)
    }

    fn restart(&mut self) {
        self.clear();
        self.newest.clear();
        (self.read, self.taken) = (self.stored, self.stored);
    }

    fn take(&mut self, piece: &Piece) {
        self.taken = piece.after;
        if !piece.is_correction() {
            self.newest.insert(piece.stream(), piece.result.bucket_start);
        }
    }

    /// Whether the next bucket is earlier than the one before it in this partition: the clock was ahead, and is no longer.
    fn goes_back(&self) -> bool {
        let front = self.waiting.front().filter(|front| !front.is_correction());
        front.is_some_and(|front| {
            let before = self.newest.get(&front.stream());
            before.is_some_and(|before| front.result.bucket_start < *before)
        })
    }

    /// Whether an earlier bucket follows the next one: the clock was ahead when that one closed.
    fn is_left_ahead(&self) -> bool {
        let front = self.waiting.front().filter(|front| !front.is_correction());
        front.is_some_and(|front| {
            let mut later = self.waiting.iter().filter(|later| !later.is_correction());
            later.any(|later| {
                later.result.bucket_start < front.result.bucket_start && later.stream() == front.stream()
            })
        })
    }

    fn store(&mut self, before: u64) {
        self.stored = before;
        (self.read, self.taken) = (self.read.max(before), self.taken.max(before));
        while self.waiting.front().is_some_and(|piece| piece.after <= before) {
            self.pop();
        }
    }
}

impl<L: Log> Follower<L> {
    /// `log`: as this output sees it. `patience`: milliseconds for which an output of sums waits for a partition that is behind.
    pub fn new(log: L, policy: CorrectionPolicy, patience: i64) -> Self {
        Follower {
            log,
            policy,
            patience,
            plan: None,
            held: BTreeMap::new(),
            assigned: BTreeMap::new(),
            given: BTreeMap::new(),
            awaited: None,
            late: Late::default(),
            counts: FollowerCounts::default(),
        }
    }

    /// Called when it is known what the output can add to a bucket, before the first result is taken.
    pub fn set_policy(&mut self, policy: CorrectionPolicy) {
        self.policy = policy;
    }

    pub fn log(&mut self) -> &mut L {
        &mut self.log
    }

    pub fn counts(&self) -> FollowerCounts {
        self.counts
    }

    /// The position of each partition that this process gives to the output.
    pub fn positions(&self) -> BTreeMap<u32, u64> {
        let held = self.held.iter();
        held.map(|(partition, held)| (*partition, held.stored)).collect()
    }

    /// Continues a partition at a later position than the log has: the previous process knew that this was delivered.
    pub fn skip_to(&mut self, partition: u32, before: u64) {
        if let Some(held) = self.held.get_mut(&partition).filter(|held| held.taken < before) {
            (held.read, held.taken) = (before, before);
            held.clear();
        }
    }

    /// Follows changes of the assignment. Call it also while the output is waited for, or the process loses its partitions.
    pub fn listen(&mut self) -> Result<(), L::Error> {
        for assignment in self.log.assignments()? {
            match assignment {
                Assignment::Assigned {
                    partition,
                    generation,
                } => {
                    self.revoke(partition);
                    self.assigned.insert(partition, generation);
                }
                Assignment::Revoked { partition } => self.revoke(partition),
            }
        }
        while let Some((&partition, &generation)) = self.assigned.first_key_value() {
            let stored = self.log.results_sent(partition)?;
            self.assigned.remove(&partition);
            let held = HeldResults {
                generation,
                stored,
                read: stored,
                taken: stored,
                waiting: VecDeque::new(),
                bytes: 0,
                newest: BTreeMap::new(),
                is_awaited: true,
            };
            self.held.insert(partition, held);
        }
        Ok(())
    }

    fn revoke(&mut self, partition: u32) {
        self.assigned.remove(&partition);
        if self.held.remove(&partition).is_some() {
            self.counts.revoked += 1;
            self.restart();
        }
    }

    /// Continues at the stored positions: what was taken and is not delivered is read again.
    fn restart(&mut self) {
        if self.policy.adds_up {
            self.late = Late::default();
            self.held.values_mut().for_each(HeldResults::restart);
        }
    }

    /// The next part of the results, if there is one. `now`: milliseconds of any clock that never goes back.
    pub fn next(&mut self, now: i64) -> Result<Option<Delivery>, L::Error> {
        self.listen()?;
        if self.policy.adds_up {
            self.plan = Some(self.log.plan()?);
        }
        let read = self.read();
        let delivery = match self.policy.adds_up {
            true => self.next_bucket(now),
            false => self.next_of_each(),
        };
        // A partition that cannot be read does not stop the others.
        match delivery {
            Some(delivery) => Ok(Some(delivery)),
            None => read.map(|()| None),
        }
    }

    fn read(&mut self) -> Result<(), L::Error> {
        let mut failed = None;
        for (partition, held) in &mut self.held {
            while held.wants(self.policy.adds_up) {
                match read_one(&mut self.log, *partition, held, &mut self.counts) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        failed = failed.or(Some(error));
                        break;
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The next bucket of each partition, and corrections before it.
    fn next_of_each(&mut self) -> Option<Delivery> {
        let (mut closed, mut late) = (BTreeMap::new(), BTreeMap::new());
        let mut delivery = Delivery::default();
        for (partition, held) in &mut self.held {
            let mut bucket = None;
            while let Some(piece) = held.waiting.front() {
                if bucket.is_some_and(|bucket| piece.is_correction() || bucket != piece.bucket()) {
                    break;
                }
                let Some(piece) = held.pop() else {
                    break;
                };
                held.taken = piece.after;
                let Some(record) = record(&piece, &mut self.counts) else {
                    continue;
                };
                if piece.is_correction() {
                    let table = late
                        .entry(piece.bucket())
                        .or_insert_with(|| Table::new(Bounds::NONE));
                    correct(table, &piece, &record, &self.policy, &mut delivery);
                    continue;
                }
                delivery.buckets.insert(piece.bucket());
                bucket = Some(piece.bucket());
                let table = closed
                    .entry(piece.bucket())
                    .or_insert_with(|| Table::new(Bounds::NONE));
                for (identity, facts, state) in series(&piece.result.tenant, &record) {
                    table.add(identity, facts, state);
                }
            }
            if held.taken > held.stored {
                delivery.positions.push((*partition, held.generation, held.taken));
            }
        }
        let flush = |((start, width), table)| Flush { start, width, table };
        let late = late
            .into_iter()
            .filter(|(_, table): &(_, Table)| !table.is_empty());
        delivery.flushes = late.chain(closed).map(flush).collect();
        (!delivery.positions.is_empty()).then_some(delivery)
    }

    /// The next bucket of all partitions, for an output of sums.
    fn next_bucket(&mut self, now: i64) -> Option<Delivery> {
        self.take_late(None, now);
        let fronts = self.held.values().filter_map(HeldResults::bucket);
        let (start, width) = match fronts.min() {
            Some(bucket) if self.is_complete(bucket, now) => bucket,
            Some(_) => return None,
            None => self.late_bucket(now)?,
        };
        let mut table = Table::new(Bounds::NONE);
        self.take_late(Some(((start, width), &mut table)), now);
        let mut late = std::mem::take(&mut self.late);
        for (identity, facts, state) in late.table.into_series() {
            table.add(identity, facts, state);
        }
        let known: Vec<Identity> = table.iter().map(|(identity, ..)| identity.clone()).collect();
        late.sets
            .retain(|identity, _| known.binary_search(identity).is_err());
        for (identity, (facts, state)) in late.sets {
            table.add(identity, facts, state);
        }
        self.given.insert(width, start);
        self.awaited = None;
        let held = self.held.iter().filter(|(_, held)| held.taken > held.stored);
        Some(Delivery {
            flushes: vec![Flush { start, width, table }],
            buckets: late.buckets,
            corrected: late.corrected,
            not_corrected: late.not_corrected,
            positions: held
                .map(|(partition, held)| (*partition, held.generation, held.taken))
                .collect(),
        })
    }

    /// Takes what is due: corrections, buckets older than those given, and this bucket.
    fn take_late(&mut self, mut bucket: Option<((i64, u32), &mut Table)>, now: i64) {
        for held in self.held.values_mut() {
            while let Some(front) = held.waiting.front() {
                let (start, width) = front.bucket();
                let given = self.given.get(&width).copied();
                let is_due = bucket.as_ref().is_some_and(|(due, _)| (start, width) == *due);
                let is_behind = given.is_some_and(|given| start <= given) && !held.goes_back();
                let is_old = front.is_correction() || is_behind || held.is_left_ahead();
                // The parts of a result stay together.
                let is_whole = held.waiting.iter().any(Piece::is_last_part);
                if !is_whole || !(is_due || is_old) {
                    break;
                }
                let Some(piece) = held.pop() else {
                    break;
                };
                held.take(&piece);
                let Some(record) = record(&piece, &mut self.counts) else {
                    continue;
                };
                match &mut bucket {
                    Some((_, table)) if !piece.is_correction() && is_due => {
                        self.late.buckets.insert(piece.bucket());
                        for (identity, facts, state) in series(&piece.result.tenant, &record) {
                            table.add(identity, facts, state);
                        }
                    }
                    _ => self.late.take(&piece, &record, &self.policy, now),
                }
            }
        }
    }

    /// Whether every partition has this bucket, or is not waited for.
    fn is_complete(&mut self, bucket: (i64, u32), now: i64) -> bool {
        let (start, _) = bucket;
        let count = self.plan.as_ref().map_or(u32::MAX, |plan| plan.at(start));
        let pieces = self.held.values().flat_map(|held| &held.waiting);
        let newest = pieces
            .map(|piece| piece.result.bucket_start)
            .max()
            .unwrap_or(start);
        let since = match self.awaited {
            Some((awaited, since)) if awaited == bucket => since,
            _ => now,
        };
        self.awaited = Some((bucket, since));
        let ahead = newest.saturating_sub(start).saturating_mul(1000);
        let is_over = now - since > self.patience || ahead > self.patience;
        let mut is_complete = true;
        for (_, held) in self.held.range_mut(..count) {
            match held.has_whole(start) {
                true => held.is_awaited = true,
                false if is_over => held.is_awaited = false,
                false => is_complete &= !held.is_awaited,
            }
        }
        is_complete
    }

    /// A bucket for late series, if no other one comes.
    fn late_bucket(&self, now: i64) -> Option<(i64, u32)> {
        self.late.since.filter(|since| now - since > self.patience)?;
        let (start, width) = self.late.bucket?;
        let after = self
            .given
            .get(&width)
            .map(|given| given.saturating_add(i64::from(width)));
        Some((after.map_or(start, |after| after.max(start)), width))
    }

    /// Stores the positions behind a delivery. A partition that another process has meanwhile is given again there.
    pub fn delivered(&mut self, delivery: &Delivery) -> Result<(), L::Error> {
        let mut failed = None;
        for (partition, generation, before) in delivery.positions.iter().copied() {
            let held = self.held.get_mut(&partition);
            let Some(held) = held.filter(|held| held.generation == generation && held.stored < before) else {
                continue;
            };
            match self.log.record_results_sent(partition, generation, before) {
                Ok(()) => held.store(before),
                Err(CommitError::Fenced) => self.revoke(partition),
                // The next position includes this one.
                Err(CommitError::Log(error)) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl HeldResults {
    /// Whether more has to be read: an output of sums looks ahead, to see whether another partition is far behind.
    fn wants(&self, adds_up: bool) -> bool {
        let is_incomplete = self.waiting.back().is_some_and(|piece| !piece.is_last_part());
        match adds_up {
            true => is_incomplete || self.bytes < READ_BYTES,
            false => self.waiting.is_empty(),
        }
    }
}

impl Late {
    fn take(&mut self, piece: &Piece, record: &Record, policy: &CorrectionPolicy, now: i64) {
        self.since.get_or_insert(now);
        self.bucket = self.bucket.max(Some(piece.bucket()));
        let is_correction = piece.is_correction();
        if !is_correction {
            self.buckets.insert(piece.bucket());
        }
        for (identity, facts, state) in series(&piece.result.tenant, record) {
            match policy.correction(identity.kind) {
                Correction::None if is_correction => self.not_corrected += 1,
                _ if identity.kind == Kind::Set => drop(self.sets.insert(identity, (facts, state))),
                _ => {
                    self.corrected += u64::from(is_correction);
                    self.table.add(identity, facts, state);
                }
            }
        }
    }
}

/// Reads the next results of a partition. `false`: there are none yet.
fn read_one<L: Log>(
    log: &mut L,
    partition: u32,
    held: &mut HeldResults,
    counts: &mut FollowerCounts,
) -> Result<bool, L::Error> {
    let oldest = log.results_start(partition)?;
    if oldest > held.read {
        counts.deleted += oldest - held.read;
        held.read = oldest;
    }
    let results = log.results(partition, held.read, READ_BYTES)?;
    let has_some = !results.is_empty();
    for (number, bytes) in results {
        held.read = number + 1;
        match BucketResult::read(&bytes) {
            Ok(result) => held.push(Piece {
                result,
                after: number + 1,
                bytes: bytes.len(),
            }),
            Err(_) => counts.unreadable += 1,
        }
    }
    Ok(has_some)
}

fn record(piece: &Piece, counts: &mut FollowerCounts) -> Option<Record> {
    let record = piece.result.record().ok();
    counts.unreadable += u64::from(record.is_none());
    record
}

/// Adds the late series that an output can take.
fn correct(
    table: &mut Table,
    piece: &Piece,
    record: &Record,
    policy: &CorrectionPolicy,
    delivery: &mut Delivery,
) {
    for (identity, facts, state) in series(&piece.result.tenant, record) {
        match policy.correction(identity.kind) {
            Correction::None => delivery.not_corrected += 1,
            _ => {
                delivery.corrected += 1;
                table.add(identity, facts, state);
            }
        }
    }
}

/// Series of different tenants stay apart.
fn series<'a>(tenant: &str, record: &'a Record) -> impl Iterator<Item = (Identity, Facts, State)> + use<'a> {
    let tag = (!tenant.is_empty()).then(|| format!("tenant:{tenant}"));
    record.series().map(move |series| {
        let (facts, state) = (series.facts, series.state.clone());
        let mut identity = series.identity();
        if let Some(tag) = &tag {
            let tags = identity.tags.iter().map(AsRef::as_ref).chain([tag.as_str()]);
            identity = Identity::new(
                identity.kind,
                &identity.name,
                identity.host.as_deref(),
                identity.integration.as_deref(),
                tags,
            );
        }
        (identity, facts, state)
    })
}
