//! Gives the results of a log to one output.
//!
//! The log assigns partitions to an output as it does to owners, and keeps the position of each: everything before it is delivered. So any
//! process continues with any partition, and a dead output delays only itself. A position never goes back.
//!
//! Whether a result is late is a property of its partition, never of the newest bucket that another partition reached. Most outputs get the
//! next bucket of each partition. An output of sums writes every series once per bucket, so it gets a bucket of all partitions at once. It
//! waits for a partition that is behind, for a bounded time; what comes later counts in its next bucket. The log keeps the sums of a partition
//! with its position, so they move with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weir_protocol::Kind;
use weir_state::Identity;

use crate::Plan;
use crate::delivery::{Correction, CorrectionPolicy, Delivery, Flush, LateSeries, ResultSeries};
use crate::log::{Assignment, Commit, CommitError, Log};
use crate::results::{BucketResult, Occasion};

/// Bytes of results that are read at once, and that an output of sums reads ahead of each partition.
const READ_BYTES: usize = 1 << 20;

/// By partition.
type ResultsOfBucket = BTreeMap<u32, Vec<BucketResult>>;

/// One output and its part of the log.
#[derive(Debug)]
pub struct Follower<L> {
    log: L,
    policy: CorrectionPolicy,
    /// Milliseconds for which an output of sums waits for other partitions.
    patience: i64,
    /// Bytes of results that wait, and of late series, above which no more are read than the next bucket of a partition.
    room: usize,
    plan: Option<Plan>,
    held: BTreeMap<u32, HeldResults>,
    /// The partition that is read first: the last one that found no room.
    first: u32,
    /// Partitions whose position was not read yet, with their generation.
    assigned: BTreeMap<u32, u64>,
    /// For each width, the start of the newest bucket given, but for the one under way: if a partition moves meanwhile, that is given again.
    given: BTreeMap<u32, i64>,
    giving: Option<(i64, u32)>,
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
    /// Partition and number of a result that a newer program wrote: the partition waits there for that program.
    pub newer: Option<(u32, u64)>,
    /// Partitions that went to another process, or came from one. Each time an output of sums begins again ([`Follower::sums`]).
    pub moved: u64,
}

/// The sums of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSums {
    pub partition: u32,
    pub bytes: Vec<u8>,
    /// The number behind the last result in them.
    pub before: u64,
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
    /// By partition.
    series: BTreeMap<u32, LateSeries>,
    /// The last set of the last result: a large one continues in the next result.
    last_set: Option<Identity>,
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

    /// Whether the first result is whole: its parts are given together.
    fn has_result(&self) -> bool {
        self.waiting.iter().any(Piece::is_last_part)
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
    /// `log`: as this output sees it. `patience`: milliseconds for which an output of sums waits for a partition that is behind. `room`: bytes
    /// of results that wait, and of late series.
    pub fn new(log: L, policy: CorrectionPolicy, patience: i64, room: usize) -> Self {
        Follower {
            log,
            policy,
            patience,
            room: room.max(1),
            plan: None,
            held: BTreeMap::new(),
            first: 0,
            assigned: BTreeMap::new(),
            given: BTreeMap::new(),
            giving: None,
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

    /// Bytes of results that wait here, and of late series, estimated.
    pub fn bytes(&self) -> usize {
        self.waiting_bytes() + self.late.bytes()
    }

    fn waiting_bytes(&self) -> usize {
        self.held.values().map(|held| held.bytes).sum()
    }

    /// Counts results of a delivery that could not be read to their end.
    pub fn found_unreadable(&mut self, results: u64) {
        self.counts.unreadable += results;
    }

    /// The position of each partition that this process gives to the output.
    pub fn positions(&self) -> BTreeMap<u32, u64> {
        let held = self.held.iter();
        held.map(|(partition, held)| (*partition, held.stored)).collect()
    }

    /// The sums of an output, as the log has them: for each partition that has some, with the number behind the last result in them.
    pub fn sums(&mut self) -> Result<Vec<StoredSums>, L::Error> {
        let mut all = Vec::new();
        for partition in self.held.keys() {
            let found = self.log.committed(*partition)?;
            all.extend(found.map(|(bytes, before)| StoredSums {
                partition: *partition,
                bytes,
                before,
            }));
        }
        Ok(all)
    }

    /// The output begins again with these sums and no others: each partition continues behind them.
    pub fn continue_behind(&mut self, sums: &[StoredSums]) {
        for of in sums {
            if let Some(held) = self.held.get_mut(&of.partition) {
                held.stored = of.before;
            }
        }
        self.restart();
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
            self.counts.moved += 1;
            self.restart();
        }
        Ok(())
    }

    fn revoke(&mut self, partition: u32) {
        self.assigned.remove(&partition);
        if self.held.remove(&partition).is_some() {
            self.counts.moved += 1;
            self.restart();
        }
    }

    /// Continues at the stored positions: what was taken and is not delivered is read again.
    fn restart(&mut self) {
        if self.policy.adds_up {
            self.late = Late::default();
            self.giving = None;
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
        let waiting = self.waiting_bytes();
        self.counts.newer = None;
        let mut reading = Reading {
            log: &mut self.log,
            counts: &mut self.counts,
            ahead: (self.room / self.held.len().max(1)).min(READ_BYTES),
            adds_up: self.policy.adds_up,
            left: self.room.saturating_sub(waiting),
            full_at: None,
            failed: None,
        };
        let first = self.first;
        for (partition, held) in self.held.range_mut(first..) {
            reading.read(*partition, held);
        }
        for (partition, held) in self.held.range_mut(..first) {
            reading.read(*partition, held);
        }
        let Reading { full_at, failed, .. } = reading;
        self.first = full_at.unwrap_or(first);
        failed.map_or(Ok(()), Err)
    }

    /// The next bucket of each partition, and corrections before it.
    fn next_of_each(&mut self) -> Option<Delivery> {
        let mut closed: BTreeMap<(i64, u32), Vec<BucketResult>> = BTreeMap::new();
        let (mut late, mut delivery) = (LateResults::default(), Delivery::default());
        for (partition, held) in &mut self.held {
            let mut bucket = None;
            late.next_partition();
            while let Some(piece) = held.waiting.front() {
                let is_next = bucket.is_some_and(|bucket| piece.is_correction() || bucket != piece.bucket());
                if is_next || !held.has_result() {
                    break;
                }
                let Some(piece) = held.pop() else {
                    break;
                };
                held.taken = piece.after;
                delivery.bytes += piece.bytes;
                if piece.is_correction() {
                    late.add(piece);
                    continue;
                }
                delivery.buckets.insert(piece.bucket());
                bucket = Some(piece.bucket());
                closed.entry(piece.bucket()).or_default().push(piece.result);
            }
            if held.taken > held.stored {
                delivery.positions.push((*partition, held.generation, held.taken));
            }
        }
        let policy = self.policy;
        let late = late.flushes.into_iter().flat_map(|(bucket, flushes)| {
            let flushes = flushes.into_iter();
            flushes.map(move |results| Flush::late(bucket, results, policy))
        });
        let closed = closed
            .into_iter()
            .map(|(bucket, results)| Flush::new(bucket, results, LateSeries::default()));
        delivery.flushes = late.chain(closed).collect();
        (!delivery.positions.is_empty()).then_some(delivery)
    }

    /// The next bucket of all partitions, for an output of sums.
    fn next_bucket(&mut self, now: i64) -> Option<Delivery> {
        self.given
            .extend(self.giving.take().map(|(start, width)| (width, start)));
        self.take_late(None, now);
        let fronts = self.held.values().filter_map(HeldResults::bucket);
        let (start, width) = match fronts.min() {
            Some(bucket) if self.is_complete(bucket, now) => bucket,
            Some(_) => return None,
            None => self.late_bucket(now)?,
        };
        let (mut results, bytes) = (ResultsOfBucket::new(), self.waiting_bytes());
        self.take_late(Some(((start, width), &mut results)), now);
        let mut late = std::mem::take(&mut self.late);
        let bytes = bytes - self.waiting_bytes() + late.bytes();
        self.giving = Some((start, width));
        self.awaited = None;
        let held = self.held.iter().filter(|(_, held)| held.taken > held.stored);
        let flushes = self.held.keys().map(|partition| {
            let results = results.remove(partition).unwrap_or_default();
            let late = late.series.remove(partition).unwrap_or_default();
            Flush::new((start, width), results, late).of_partition(*partition)
        });
        Some(Delivery {
            flushes: flushes.collect(),
            buckets: late.buckets,
            corrected: late.corrected,
            not_corrected: late.not_corrected,
            bytes,
            positions: held
                .map(|(partition, held)| (*partition, held.generation, held.taken))
                .collect(),
        })
    }

    /// Takes what is due: corrections, buckets older than those given, and this bucket.
    fn take_late(&mut self, mut bucket: Option<((i64, u32), &mut ResultsOfBucket)>, now: i64) {
        for (partition, held) in &mut self.held {
            while let Some(front) = held.waiting.front() {
                let (start, width) = front.bucket();
                let given = self.given.get(&width).copied();
                let is_due = bucket.as_ref().is_some_and(|(due, _)| (start, width) == *due);
                let is_behind = given.is_some_and(|given| start <= given) && !held.goes_back();
                let is_old = front.is_correction() || is_behind || held.is_left_ahead();
                if !held.has_result() || !(is_due || is_old) {
                    break;
                }
                let Some(piece) = held.pop() else {
                    break;
                };
                held.take(&piece);
                match &mut bucket {
                    Some((_, results)) if !piece.is_correction() && is_due => {
                        self.late.buckets.insert(piece.bucket());
                        results.entry(*partition).or_default().push(piece.result);
                    }
                    _ => {
                        let is_whole = self.late.take(*partition, &piece, &self.policy, now);
                        self.counts.unreadable += u64::from(!is_whole);
                    }
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
        let is_over = now - since > self.patience || ahead > self.patience || self.is_full();
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

    /// Whether late series take so much memory that they cannot wait.
    fn is_full(&self) -> bool {
        self.late.bytes() > self.room
    }

    /// A bucket for late series, if no other one comes.
    fn late_bucket(&self, now: i64) -> Option<(i64, u32)> {
        let since = self.late.since?;
        let is_over = now - since > self.patience || self.is_full();
        let (start, width) = self.late.bucket.filter(|_| is_over)?;
        let after = self
            .given
            .get(&width)
            .map(|given| given.saturating_add(i64::from(width)));
        Some((after.map_or(start, |after| after.max(start)), width))
    }

    /// Stores the positions behind a delivery. A partition that another process has meanwhile is given again there.
    pub fn delivered(&mut self, delivery: &Delivery) -> Result<(), L::Error> {
        self.store(delivery, |log, partition, generation, before| {
            log.record_results_sent(partition, generation, before)
        })
    }

    /// The same for an output of sums: each position with its partition's sums, which contain the delivery.
    pub fn delivered_sums(
        &mut self,
        delivery: &Delivery,
        mut sums: BTreeMap<u32, Vec<u8>>,
    ) -> Result<(), L::Error> {
        self.store(delivery, |log, partition, generation, before| {
            let commit = Commit {
                snapshot: sums.remove(&partition).unwrap_or_default(),
                offset: before,
                ..Commit::default()
            };
            log.commit(partition, generation, &commit)
        })
    }

    fn store(
        &mut self,
        delivery: &Delivery,
        mut store: impl FnMut(&mut L, u32, u64, u64) -> Result<(), CommitError<L::Error>>,
    ) -> Result<(), L::Error> {
        let mut failed = None;
        for (partition, generation, before) in delivery.positions.iter().copied() {
            let held = self.held.get_mut(&partition);
            let Some(held) = held.filter(|held| held.generation == generation && held.stored < before) else {
                continue;
            };
            match store(&mut self.log, partition, generation, before) {
                Ok(()) => held.store(before),
                Err(CommitError::Fenced) => self.revoke(partition),
                // The next position includes this one.
                Err(CommitError::Log(error)) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// A read of all partitions.
struct Reading<'a, L: Log> {
    log: &'a mut L,
    counts: &'a mut FollowerCounts,
    adds_up: bool,
    /// Bytes that an output of sums reads ahead of each partition, to see whether another one is far behind.
    ahead: usize,
    /// Room for results.
    left: usize,
    /// The first partition without room.
    full_at: Option<u32>,
    /// The first error.
    failed: Option<L::Error>,
}

impl<L: Log> Reading<'_, L> {
    /// Reads until the partition has a result.
    fn read(&mut self, partition: u32, held: &mut HeldResults) {
        while self.wants(held) {
            // An output of sums needs a bucket of every partition.
            if self.left == 0 && held.waiting.is_empty() && !self.adds_up {
                self.full_at.get_or_insert(partition);
                return;
            }
            let before = held.bytes;
            match self.read_one(partition, held) {
                Ok(true) => self.left = self.left.saturating_sub(held.bytes - before),
                Ok(false) => return,
                // It does not stop the others.
                Err(error) => {
                    self.failed.get_or_insert(error);
                    return;
                }
            }
        }
    }

    fn wants(&self, held: &HeldResults) -> bool {
        !held.has_result() || self.adds_up && held.bytes < self.ahead
    }

    /// Reads the next results of a partition. `false`: there are none yet.
    fn read_one(&mut self, partition: u32, held: &mut HeldResults) -> Result<bool, L::Error> {
        let oldest = self.log.results_start(partition)?;
        if oldest > held.read {
            self.counts.deleted += oldest - held.read;
            held.read = oldest;
        }
        let results = self.log.results(partition, held.read, self.ahead)?;
        let has_some = !results.is_empty();
        for (number, bytes) in results {
            let result = BucketResult::read(&bytes);
            if BucketResult::is_newer(&result) {
                self.counts.newer = Some((partition, number));
                return Ok(false);
            }
            held.read = number + 1;
            match result {
                Ok(result) => held.push(Piece {
                    result,
                    after: number + 1,
                    bytes: bytes.len(),
                }),
                Err(_) => self.counts.unreadable += 1,
            }
        }
        Ok(has_some)
    }
}

impl Late {
    fn bytes(&self) -> usize {
        self.series.values().map(LateSeries::bytes).sum()
    }

    /// `false`: its last series cannot be read.
    fn take(&mut self, partition: u32, piece: &Piece, policy: &CorrectionPolicy, now: i64) -> bool {
        self.since.get_or_insert(now);
        self.bucket = self.bucket.max(Some(piece.bucket()));
        let is_correction = piece.is_correction();
        if !is_correction {
            self.buckets.insert(piece.bucket());
        }
        let series = ResultSeries::of(&piece.result);
        let late = self.series.entry(partition).or_default();
        let mut before = self.last_set.take().filter(|_| piece.result.part > 0);
        series.is_some_and(|series| {
            series.each(|series| match policy.correction(series.0.kind) {
                Correction::None if is_correction => self.not_corrected += 1,
                _ if series.0.kind == Kind::Set => {
                    let continues = before.take().is_some_and(|before| before == series.0);
                    self.last_set = Some(series.0.clone());
                    late.put_set(series, continues);
                }
                _ => {
                    before = None;
                    self.corrected += u64::from(is_correction);
                    late.add(series);
                }
            })
        })
    }
}

/// Corrections by bucket. A series comes once in a flush, so another correction of the same bucket in a partition is a flush of its own.
#[derive(Default)]
struct LateResults {
    flushes: BTreeMap<(i64, u32), Vec<Vec<BucketResult>>>,
    /// By bucket and tenant: flushes with corrections of this partition.
    of_partition: BTreeMap<((i64, u32), String), usize>,
}

impl LateResults {
    fn next_partition(&mut self) {
        self.of_partition.clear();
    }

    fn add(&mut self, piece: Piece) {
        let key = (piece.bucket(), piece.result.tenant.clone());
        let number = self.of_partition.entry(key).or_default();
        // The parts of a result stay together.
        *number += usize::from(piece.result.part == 0 || *number == 0);
        let flushes = self.flushes.entry(piece.bucket()).or_default();
        if flushes.len() < *number {
            flushes.resize_with(*number, Vec::new);
        }
        flushes[*number - 1].push(piece.result);
    }
}
