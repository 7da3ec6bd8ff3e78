//! Turns the results in the log into rounds for an output: bucket by bucket, all partitions of a bucket together.
//!
//! Outputs that add up write every series once per bucket, so the parts of a bucket in several partitions are sent as one. Other partitions
//! wait for one that is behind, until they are so far ahead that it cannot belong to the same bucket; its data is then added to a later
//! bucket, like late records.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use weir_merge::{BucketResult, Occasion, Plan, ResultError};
use weir_state::{Bounds, Identity, Record, Table};

/// An output's position: the next result of each partition, and for each width the end of the newest bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub next: BTreeMap<u32, u64>,
    pub ends: BTreeMap<u32, i64>,
}

/// A bucket for an output.
#[derive(Debug)]
pub struct Round {
    pub start: i64,
    pub width: u32,
    pub table: Table,
    /// Additions to earlier buckets.
    pub late: Vec<LateBucket>,
    /// The position behind this round.
    pub position: Position,
}

#[derive(Debug)]
pub struct LateBucket {
    pub start: i64,
    pub width: u32,
    pub table: Table,
}

/// A complete result.
struct Piece {
    start: i64,
    width: u32,
    is_correction: bool,
    table: Table,
    /// The number behind its last part.
    after: u64,
}

#[derive(Default)]
struct Partition {
    /// The next number to read.
    read: u64,
    /// The parts of an incomplete result.
    begun: Option<Piece>,
    waiting: VecDeque<Piece>,
}

/// Collects results into rounds.
pub struct Rounds {
    /// Seconds by which other partitions must be ahead of one before they stop waiting for it.
    patience: i64,
    /// Partitions that are announced for a later bucket have nothing of this one.
    plan: Option<Plan>,
    position: Position,
    partitions: BTreeMap<u32, Partition>,
}

impl Rounds {
    pub fn new(grace: i64, partitions: impl Iterator<Item = u32>, position: Position) -> Self {
        let begin = |partition: u32| Partition {
            read: position.next.get(&partition).copied().unwrap_or(0),
            ..Partition::default()
        };
        Rounds {
            patience: grace,
            plan: None,
            partitions: partitions
                .map(|partition| (partition, begin(partition)))
                .collect(),
            position,
        }
    }

    pub fn partitions(&self) -> Vec<u32> {
        self.partitions.keys().copied().collect()
    }

    /// Division of series, as last announced.
    pub fn follow(&mut self, plan: Plan) {
        self.plan = Some(plan);
    }

    /// The next result of a partition to read; `None`: others come first.
    pub fn wanted(&self, partition: u32) -> Option<u64> {
        let of = self.partitions.get(&partition)?;
        let ends = of.waiting.front().zip(of.waiting.back());
        let is_enough = ends.is_some_and(|(front, back)| {
            back.start.saturating_sub(front.start) > self.patience + 4 * i64::from(front.width)
        });
        (!is_enough).then_some(of.read)
    }

    /// Takes the next result of a partition.
    pub fn take(&mut self, partition: u32, number: u64, bytes: &[u8]) -> Result<(), ResultError> {
        let Some(of) = self.partitions.get_mut(&partition) else {
            return Ok(());
        };
        of.read = number + 1;
        let (closed, record) = BucketResult::decode(bytes)?;
        let mut piece = of.begun.take().filter(|_| closed.part > 0).unwrap_or(Piece {
            start: closed.bucket_start,
            width: closed.bucket_width,
            is_correction: matches!(closed.occasion, Occasion::Late { .. }),
            table: Table::new(Bounds::NONE),
            after: 0,
        });
        add_record(&mut piece.table, &closed.tenant, &record);
        piece.after = number + 1;
        match closed.part + 1 == closed.parts {
            true => of.waiting.push_back(piece),
            false => of.begun = Some(piece),
        }
        Ok(())
    }

    /// The next bucket, once all partitions have it.
    pub fn next(&mut self) -> Option<Round> {
        let (start, width) = self.due()?;
        self.is_complete(start, width).then(|| self.give(start, width))
    }

    /// The oldest bucket of all partitions.
    fn due(&self) -> Option<(i64, u32)> {
        let fronts = self.partitions.values().filter_map(Partition::first_bucket);
        fronts.min()
    }

    fn is_complete(&self, start: i64, width: u32) -> bool {
        let newest = self
            .partitions
            .values()
            .flat_map(|of| of.waiting.iter().map(|piece| piece.start))
            .max();
        let has_it = |of: &Partition| {
            let mut buckets = of.waiting.iter().filter(|piece| !piece.is_correction);
            buckets.any(|piece| piece.start >= start)
        };
        let count = self.plan.as_ref().map_or(u32::MAX, |plan| plan.at(start));
        self.partitions.range(..count).all(|(_, of)| has_it(of))
            || newest.is_some_and(|newest| newest - start > self.patience + 2 * i64::from(width))
    }

    fn give(&mut self, start: i64, width: u32) -> Round {
        let end = self.position.ends.get(&width).copied().unwrap_or(i64::MIN);
        let mut table = Table::new(Bounds::NONE);
        let mut late = Vec::new();
        for (partition, of) in &mut self.partitions {
            while let Some(piece) = of.pop_until(start, width) {
                self.position.next.insert(*partition, piece.after);
                if piece.is_correction || piece.start < end {
                    late.push(LateBucket {
                        start: piece.start,
                        width: piece.width,
                        table: piece.table,
                    });
                } else {
                    add_table(&mut table, piece.table);
                }
            }
        }
        let after = start.saturating_add(i64::from(width));
        self.position.ends.insert(width, end.max(after));
        Round {
            start,
            width,
            table,
            late,
            position: self.position.clone(),
        }
    }
}

impl Partition {
    fn first_bucket(&self) -> Option<(i64, u32)> {
        let mut buckets = self.waiting.iter().filter(|piece| !piece.is_correction);
        buckets.next().map(|piece| (piece.start, piece.width))
    }

    /// Takes the pieces of this bucket, and additions to earlier ones that precede it.
    fn pop_until(&mut self, start: i64, width: u32) -> Option<Piece> {
        let front = self.waiting.front()?;
        let is_due = front.is_correction || (front.start, front.width) == (start, width);
        if is_due { self.waiting.pop_front() } else { None }
    }
}

/// Series of different tenants stay apart.
fn add_record(table: &mut Table, tenant: &str, record: &Record) {
    let tag = (!tenant.is_empty()).then(|| format!("tenant:{tenant}"));
    for series in record.series() {
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
        table.add(identity, facts, state);
    }
}

fn add_table(table: &mut Table, other: Table) {
    if table.is_empty() {
        *table = other;
        return;
    }
    for (identity, facts, state) in other.into_series() {
        table.add(identity, facts, state);
    }
}
