//! What a merge needs of a log.

use crate::Plan;

/// A record in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub offset: u64,
    /// When the log took it, by the log's clock: Unix milliseconds.
    pub appended: i64,
    /// When its agent sent it, by the agent's clock. Not before: what waited in a queue carries the time of its last attempt.
    pub sent: i64,
    pub bytes: Vec<u8>,
}

/// A record that is to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append<'a> {
    pub partition: u32,
    /// When its agent sends it, by the agent's clock: Unix milliseconds.
    pub sent: i64,
    pub bytes: &'a [u8],
}

/// A change of what an owner has to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// It owns the partition under this generation, which fences earlier owners.
    Assigned {
        partition: u32,
        generation: u64,
    },
    Revoked {
        partition: u32,
    },
}

/// Messages of one partition. They may be in any order and come twice, but none below `next` is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// The oldest offset that the log still has.
    pub start: u64,
    pub messages: Vec<Message>,
    /// Where to read on.
    pub next: u64,
    /// Where the next message will be.
    pub end: u64,
    /// The log's clock.
    pub now: i64,
}

/// A record that was not merged, and why, for an operator to look into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    pub offset: u64,
    pub reason: String,
    pub bytes: Vec<u8>,
}

/// What becomes visible at once, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Encoded [`crate::Closed`], in order.
    pub results: Vec<Vec<u8>>,
    pub quarantined: Vec<Quarantined>,
    /// Takes the place of the one before.
    pub snapshot: Vec<u8>,
    /// Where the next owner begins to read.
    pub offset: u64,
}

/// Why a commit did not happen, or may not have.
#[derive(Debug, thiserror::Error)]
pub enum CommitError<E: std::error::Error + 'static> {
    #[error("another owner has the partition")]
    Fenced,
    #[error(transparent)]
    Log(#[from] E),
}

/// A partitioned log of records, and of what became of them.
pub trait Log {
    type Error: std::error::Error + 'static;

    /// How series are divided among partitions.
    fn plan(&mut self) -> Result<Plan, Self::Error>;

    /// Adds a record to a partition and returns its offset. After an error it may be in the log or not.
    fn append(&mut self, partition: u32, sent: i64, bytes: &[u8]) -> Result<u64, Self::Error>;

    /// Adds several, those of one partition in their order, and returns what became of each. A log that takes many at a time
    /// does so here.
    fn append_all(&mut self, records: &[Append<'_>]) -> Vec<Result<u64, Self::Error>> {
        let records = records.iter();
        records
            .map(|record| self.append(record.partition, record.sent, record.bytes))
            .collect()
    }

    /// What changed since the last call. An owner that does not ask for minutes may lose its partitions.
    fn assignments(&mut self) -> Result<Vec<Assignment>, Self::Error>;

    /// Messages from an offset on, at most about `bytes_max`, and at least one where there is one.
    fn fetch(&mut self, partition: u32, from: u64, bytes_max: usize) -> Result<Fetched, Self::Error>;

    /// The snapshot and the offset of the last commit.
    fn committed(&mut self, partition: u32) -> Result<Option<(Vec<u8>, u64)>, Self::Error>;

    /// In one transaction, unless a later generation owns the partition.
    fn commit(
        &mut self,
        partition: u32,
        generation: u64,
        commit: &Commit,
    ) -> Result<(), CommitError<Self::Error>>;

    /// Results of commits from a number on, with their numbers, at most about `bytes_max`.
    fn results(
        &mut self,
        partition: u32,
        from: u64,
        bytes_max: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, Self::Error>;

    /// The number from which on results were not sent to where they go, as the last owner that sent them noted it.
    fn results_sent(&mut self, partition: u32) -> Result<u64, Self::Error>;

    /// Notes that results before this number were sent, unless a later generation owns the partition.
    fn note_results_sent(
        &mut self,
        partition: u32,
        generation: u64,
        before: u64,
    ) -> Result<(), CommitError<Self::Error>>;
}
