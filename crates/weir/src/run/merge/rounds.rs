//! From the results in the log to what an output takes: bucket by bucket, all partitions of a bucket together.
//!
//! Outputs that add up write every series once per bucket, so the parts of a bucket that lie in several partitions go out as one. A
//! partition that is behind is waited for until others are further than any of theirs can be; what it has then comes on top, as what late
//! records add does.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use weir_merge::{Closed, Occasion, Plan, ResultError};
use weir_state::{Bounds, Identity, Record, Table};

/// What an output has: the next result of each partition, and of each width the end of the newest bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub next: BTreeMap<u32, u64>,
    pub ends: BTreeMap<u32, i64>,
}

/// A bucket as an output is to have it.
#[derive(Debug)]
pub struct Round {
    pub start: i64,
    pub width: u32,
    pub table: Table,
    /// What comes on top of buckets that were given before.
    pub late: Vec<Late>,
    /// Behind all of it.
    pub position: Position,
}

#[derive(Debug)]
pub struct Late {
    pub start: i64,
    pub width: u32,
    pub table: Table,
}

/// A result, all parts of it.
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
    /// Where to read on.
    read: u64,
    /// The first parts of a result whose last was not read.
    begun: Option<Piece>,
    waiting: VecDeque<Piece>,
}

/// Collects results, and gives rounds.
pub struct Rounds {
    /// Seconds by which other partitions must be ahead of one that is not waited for any more.
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

    /// How series are divided, as it was last announced.
    pub fn follow(&mut self, plan: Plan) {
        self.plan = Some(plan);
    }

    /// From which result on a partition is to be read; `None`: others have to come first.
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
        let (closed, record) = Closed::decode(bytes)?;
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

    /// The oldest bucket that some partition has.
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
                    late.push(Late {
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

    /// What belongs to this bucket, or on top of earlier ones and before it.
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
