//! Decides which series may use a name that several want, in protocols whose receivers identify series by it alone.
//!
//! A path belongs to the series with the lowest rank among those that want it. Ranks depend only on the series, so after one bucket in
//! which all of them were seen the outcome is the same in every agent and after every start. Two series never write to one path for the
//! same bucket: the second one gets another name for that bucket, even if it owns the path from then on.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashTable;
use weir_aggregate::Series;
use weir_protocol::Kind;
use weir_units::counted;
use xxhash_rust::xxh3::Xxh3;

use crate::delivery::OutputEnvironment;

/// Seconds without a write after which a path is free.
const EXPIRY: i64 = 600;
/// One part in this many of an output's memory is for telling names apart.
const SHARE: u64 = 4;
/// Bytes of an entry, the table's own and its slack included.
const ENTRY_BYTES: u64 = 2 * (size_of::<Claim>() as u64 + 1);

struct Claim {
    /// Hash of the path. Two paths with one hash count as the same, which costs one of them its name and nothing else.
    path: u64,
    owner: u64,
    /// Bucket of the last line that was written to it.
    written: i64,
    /// Bucket in which the owner before had already written when this one came.
    taken_over: i64,
}

pub struct Claims {
    hasher: RandomState,
    table: HashTable<Claim>,
    entries_max: usize,
    swept: i64,
}

/// The result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimResult {
    Granted,
    Refused,
    /// Granted without a check, for lack of memory for the path.
    Unchecked,
}

/// The part of an output's memory for [`Claims`].
pub fn bytes_max(environment: &OutputEnvironment) -> u64 {
    environment.memory_bytes_max / SHARE
}

impl Claims {
    pub fn new(bytes_max: u64) -> Self {
        Self {
            hasher: RandomState::new(),
            table: HashTable::new(),
            entries_max: (bytes_max / ENTRY_BYTES) as usize,
            swept: i64::MIN,
        }
    }

    pub fn bytes_max(&self) -> u64 {
        self.entries_max as u64 * ENTRY_BYTES
    }

    /// Whether the series with this rank may write to `path` in `bucket`, which is in Unix seconds.
    pub fn claim(&mut self, path: &[u8], rank: u64, bucket: i64) -> ClaimResult {
        let hash = self.hasher.hash_one(path);
        let Some(claim) = self.table.find_mut(hash, |claim| claim.path == hash) else {
            if self.table.len() >= self.entries_max {
                return ClaimResult::Unchecked;
            }
            let claim = Claim {
                path: hash,
                owner: rank,
                written: bucket,
                taken_over: i64::MIN,
            };
            self.table.insert_unique(hash, claim, |claim| claim.path);
            return ClaimResult::Granted;
        };
        if claim.owner != rank {
            let is_free = bucket - claim.written > EXPIRY;
            if rank > claim.owner && !is_free {
                return ClaimResult::Refused;
            }
            claim.owner = rank;
            if claim.written == bucket {
                claim.taken_over = bucket;
            }
        }
        if claim.taken_over == bucket {
            return ClaimResult::Refused;
        }
        claim.written = bucket;
        ClaimResult::Granted
    }

    /// Forgets paths without writes. Cheap unless a minute has passed since the last time.
    pub fn sweep(&mut self, bucket: i64) {
        if bucket >= self.swept.saturating_add(EXPIRY / 10) {
            self.swept = bucket;
            self.table.retain(|claim| bucket - claim.written <= EXPIRY);
            self.table.shrink_to(self.table.len() * 2, |claim| claim.path);
        }
    }
}

/// The order in which series are given a name that several want: names that need no change, then by kind, then by a hash of the
/// series itself that is the same everywhere.
pub fn rank(series: &Series<'_>, changed: bool) -> u64 {
    let kind = match series.kind() {
        Kind::Counter => 0,
        Kind::Gauge => 1,
        Kind::Set => 2,
        Kind::Histogram => 3,
        Kind::Timing => 4,
        Kind::Distribution => 5,
    };
    let mut hash = Xxh3::new();
    let mut part = |text: &str| {
        hash.update(&(text.len() as u32).to_le_bytes());
        hash.update(text.as_bytes());
    };
    part(series.kind().as_str());
    part(series.name());
    part(series.host());
    series.tags().for_each(&mut part);
    u64::from(changed) << 63 | kind << 60 | hash.digest() >> 4
}

/// An encoder's remarks for the status.
pub type Notes = Arc<Mutex<BTreeMap<&'static str, String>>>;

pub fn shown(notes: &Notes) -> BTreeMap<&'static str, String> {
    notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The result of the claims of one flush.
#[derive(Default)]
pub struct Renamed {
    lines: u64,
    pub unchecked: u64,
    example: Option<String>,
}

impl Renamed {
    /// A line of the series has been written under another name.
    pub fn count(&mut self, series: &Series<'_>, name: &str) {
        self.lines += 1;
        if self.example.is_none() {
            let (own, kind) = (series.name(), series.kind().as_str());
            self.example = Some(format!("{own:?} of type {kind} as {name}"));
        }
    }

    /// Reports the renamed series of the ended flush to the status.
    pub fn note(&mut self, notes: &Notes) {
        let Renamed {
            lines,
            unchecked,
            example,
        } = std::mem::take(self);
        let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.clear();
        if let Some(example) = example {
            let text = format!(
                "{} of the last flush under another name, because theirs belongs to another series; {example}",
                counted(lines, "lines")
            );
            notes.insert("renamed", text);
        }
        if unchecked > 0 {
            let text = format!(
                "{} of the last flush, for whose names there is no memory",
                counted(unchecked, "lines")
            );
            notes.insert("not compared", text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_any_order_of_arrival_the_least_rank_owns_the_path_after_one_bucket() {
        for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1], [2, 1, 3]] {
            let mut claims = Claims::new(1 << 20);
            let mut round = |bucket: i64, order: [u64; 3]| -> Vec<u64> {
                let granted = |rank: &u64| claims.claim(b"a.b", *rank, bucket) == ClaimResult::Granted;
                order.into_iter().filter(granted).collect()
            };
            assert_eq!(
                round(10, order),
                [order[0]],
                "one writes in the first bucket: {order:?}"
            );
            for bucket in 1..5 {
                assert_eq!(round(10 + bucket * 10, order), [1], "{order:?}");
                assert_eq!(round(10 + bucket * 10 + 5, [3, 1, 2]), [1]);
            }
        }
    }

    #[test]
    fn a_path_is_free_when_its_owner_expires_and_reclaimed_when_it_returns() {
        let mut claims = Claims::new(1 << 20);
        assert_eq!(claims.claim(b"a", 1, 0), ClaimResult::Granted);
        assert_eq!(claims.claim(b"a", 2, EXPIRY), ClaimResult::Refused);
        assert_eq!(claims.claim(b"a", 2, EXPIRY + 1), ClaimResult::Granted);
        assert_eq!(claims.claim(b"a", 1, EXPIRY + 11), ClaimResult::Granted);
        assert_eq!(claims.claim(b"a", 2, EXPIRY + 11), ClaimResult::Refused);
        claims.sweep(EXPIRY * 3);
        assert_eq!(claims.claim(b"a", 2, EXPIRY * 3), ClaimResult::Granted);
    }

    #[test]
    fn without_memory_nothing_is_refused() {
        let mut claims = Claims::new(ENTRY_BYTES);
        assert_eq!(claims.claim(b"a", 1, 0), ClaimResult::Granted);
        assert_eq!(claims.claim(b"b", 1, 0), ClaimResult::Unchecked);
        assert_eq!(claims.claim(b"a", 2, 0), ClaimResult::Refused);
    }
}
