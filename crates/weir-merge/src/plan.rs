//! The partition of each series.

use weir_protocol::Kind;
use xxhash_rust::xxh3::Xxh3;

/// The first hashed byte. Another algorithm would use another one.
const WAY: u8 = 1;

/// The partition of an output series: the same wherever it is computed. Includes the kind, because equal names of two kinds are two series.
/// `tags`: sorted by bytes, no duplicates.
pub fn partition_of<'a>(
    tenant: &str,
    kind: Kind,
    name: &str,
    host: &str,
    tags: impl IntoIterator<Item = &'a str>,
    partitions: u32,
) -> u32 {
    let mut hash = Xxh3::new();
    hash.update(&[WAY, kind as u8]);
    let mut text = |text: &str| {
        hash.update(&(text.len() as u32).to_le_bytes());
        hash.update(text.as_bytes());
    };
    text(tenant);
    text(name);
    text(host);
    tags.into_iter().for_each(text);
    (hash.digest() % u64::from(partitions.max(1))) as u32
}

/// The number of partitions for each bucket. A change applies to all agents from an announced bucket on, so that each series of a bucket is
/// in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    first: u32,
    /// Start time and number of partitions, ascending.
    steps: Vec<(i64, u32)>,
}

impl Plan {
    pub fn new(partitions: u32) -> Self {
        Plan {
            first: partitions.max(1),
            steps: Vec::new(),
        }
    }

    /// Changes the number for buckets that start at `from` or later. `from` must be after all earlier changes.
    pub fn announce(&mut self, from: i64, partitions: u32) {
        self.steps.retain(|(earlier, _)| *earlier < from);
        self.steps.push((from, partitions.max(1)));
    }

    /// The announced change: the second from which it applies, and the number of partitions.
    pub fn steps(&self) -> impl Iterator<Item = (i64, u32)> {
        self.steps.iter().copied()
    }

    /// The number for the bucket that starts at this second.
    pub fn at(&self, bucket_start: i64) -> u32 {
        let after = self.steps.partition_point(|(from, _)| *from <= bucket_start);
        match after.checked_sub(1) {
            Some(last) => self.steps[last].1,
            None => self.first,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Agents of all versions must agree. If this test fails, [`WAY`] must change.
    #[test]
    fn a_series_keeps_its_partition() {
        let place = |kind, name, host, tags: &[&str]| {
            partition_of("t", kind, name, host, tags.iter().copied(), 1 << 16)
        };
        let found = [
            place(Kind::Counter, "a", "", &[]),
            place(Kind::Gauge, "a", "", &[]),
            place(Kind::Counter, "a", "h", &["b", "c:d"]),
            place(Kind::Counter, "a", "", &["hb", "c:d"]),
        ];
        assert_eq!(found, [57751, 60326, 38859, 11904]);
    }

    #[test]
    fn numbers_change_at_announced_buckets() {
        let mut plan = Plan::new(4);
        plan.announce(100, 8);
        plan.announce(200, 16);
        let check = |bucket, expected| assert_eq!(plan.at(bucket), expected, "{bucket}");
        check(i64::MIN, 4);
        check(99, 4);
        check(100, 8);
        check(199, 8);
        check(200, 16);
        let mut again = plan.clone();
        again.announce(100, 32);
        assert_eq!(again.at(250), 32);
    }
}
