//! The log that a merge reads and writes.

use crate::Plan;

/// A record in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub offset: u64,
    /// When the log stored it, by the log's clock, in Unix milliseconds.
    pub appended: i64,
    /// When the agent last tried to send it, by the agent's clock.
    pub sent: i64,
    pub bytes: Vec<u8>,
}

/// A record to append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append<'a> {
    pub partition: u32,
    /// The current time of the agent's clock, in Unix milliseconds.
    pub sent: i64,
    pub bytes: &'a [u8],
}

/// A change of an owner's partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// The owner has the partition under this generation, which fences earlier owners.
    Assigned {
        partition: u32,
        generation: u64,
    },
    Revoked {
        partition: u32,
    },
}

/// Messages of one partition. They may be unordered and repeated, but none below `next` is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// The oldest offset in the log.
    pub start: u64,
    pub messages: Vec<Message>,
    /// The offset to continue with.
    pub next: u64,
    /// The offset of the next message to be appended. Before the offset that was asked for: the log has lost messages.
    pub end: u64,
    /// The log's clock, if it can be read without a message.
    pub now: Option<i64>,
    /// Milliseconds of a clock that never steps, as of this read.
    pub monotonic: i64,
}

/// A quarantined record and the reason, for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    pub offset: u64,
    pub reason: String,
    pub bytes: Vec<u8>,
}

/// A commit: all of it becomes visible at once, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Encoded [`crate::BucketResult`], in order.
    pub results: Vec<Vec<u8>>,
    pub quarantined: Vec<Quarantined>,
    /// Replaces the previous snapshot.
    pub snapshot: Vec<u8>,
    /// Start position of the next owner.
    pub offset: u64,
}

/// Why a commit failed or may have failed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError<E: std::error::Error + 'static> {
    /// The caller has not this generation of the partition any more: it forgets the partition until it is assigned again. A log that refuses
    /// for another reason, such as a group that is changing, tries again or returns an error.
    #[error("another owner has the partition")]
    Fenced,
    #[error(transparent)]
    Log(#[from] E),
}

/// A partitioned log of records and of their results, as agents, an owner or an output see it: owners and each output have their own
/// assignments.
pub trait Log {
    type Error: std::error::Error + 'static;

    /// Division of series among partitions.
    fn plan(&mut self) -> Result<Plan, Self::Error>;

    /// Appends a record to a partition and returns its offset. After an error the record may or may not be in the log.
    fn append(&mut self, partition: u32, sent: i64, bytes: &[u8]) -> Result<u64, Self::Error>;

    /// Appends several records, in order per partition, and returns the result of each. A log with batches overrides this.
    fn append_all(&mut self, records: &[Append<'_>]) -> Vec<Result<u64, Self::Error>> {
        let records = records.iter();
        records
            .map(|record| self.append(record.partition, record.sent, record.bytes))
            .collect()
    }

    /// Changes since the last call. An owner that does not call this for minutes may lose its partitions.
    fn assignments(&mut self) -> Result<Vec<Assignment>, Self::Error>;

    /// Messages from an offset on: about `bytes_max` at most, and at least one if one exists.
    fn fetch(&mut self, partition: u32, from: u64, bytes_max: usize) -> Result<Fetched, Self::Error>;

    /// Snapshot and offset of the last commit. For an output of sums: its sums, and its position behind them.
    fn committed(&mut self, partition: u32) -> Result<Option<(Vec<u8>, u64)>, Self::Error>;

    /// Commits in one transaction, unless a later generation owns the partition. An output of sums commits these as the snapshot, and as the
    /// offset its position. A log of files may keep the sums alone of a commit that fails.
    fn commit(
        &mut self,
        partition: u32,
        generation: u64,
        commit: &Commit,
    ) -> Result<(), CommitError<Self::Error>>;

    /// Numbered results of commits from a number on, about `bytes_max` at most.
    fn results(
        &mut self,
        partition: u32,
        from: u64,
        bytes_max: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, Self::Error>;

    /// The number of the oldest result.
    fn results_start(&mut self, partition: u32) -> Result<u64, Self::Error>;

    /// An output's position: the number behind the last result that it has.
    fn results_sent(&mut self, partition: u32) -> Result<u64, Self::Error>;

    /// Stores an output's position, unless a later generation has the partition.
    fn record_results_sent(
        &mut self,
        partition: u32,
        generation: u64,
        before: u64,
    ) -> Result<(), CommitError<Self::Error>>;
}
