//! Records that are not merged: the reasons, and how they come back.

use weir_state::{AgentId, Record};

use crate::log::Quarantined;
use crate::merge::Settings;
use crate::plan::Plan;
use crate::publisher::{Published, Publisher};

/// The beginning of the reason of records that no owner could read.
const UNREADABLE: &str = "not a record";

/// Why a record was not merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuarantineReason {
    #[error("not a record: {0}")]
    Unreadable(weir_state::Error),
    #[error("a record that was not published for a fleet")]
    Unpublished,
    #[error("divided among {found} partitions; for its bucket {expected} were announced")]
    Partitions { found: u32, expected: u32 },
    #[error("the agent's clock is {seconds} s ahead of the log's (negative: behind)")]
    Clock { seconds: i64 },
    #[error("its bucket begins {seconds} s after its arrival")]
    Future { seconds: i64 },
    #[error("older than the remembered history of its agent")]
    TooOld,
    #[error("another record of this agent has its number: two agents have one id")]
    SharedId,
    #[error("more agents than are allowed")]
    TooManyAgents,
    #[error("more tenants and bucket widths than are allowed")]
    TooManyStreams,
}

impl QuarantineReason {
    /// Names of all reasons, in the order of [`Counts::quarantined`].
    pub const NAMES: [&str; 9] = [
        "unreadable",
        "unpublished",
        "partitions",
        "clock",
        "future",
        "too_old",
        "shared_id",
        "too_many_agents",
        "too_many_streams",
    ];

    pub(crate) fn index(self) -> usize {
        match self {
            QuarantineReason::Unreadable(_) => 0,
            QuarantineReason::Unpublished => 1,
            QuarantineReason::Partitions { .. } => 2,
            QuarantineReason::Clock { .. } => 3,
            QuarantineReason::Future { .. } => 4,
            QuarantineReason::TooOld => 5,
            QuarantineReason::SharedId => 6,
            QuarantineReason::TooManyAgents => 7,
            QuarantineReason::TooManyStreams => 8,
        }
    }
}

/// A quarantined record. The commit has its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantinedRecord {
    pub offset: u64,
    /// `None`: unknown.
    pub agent: Option<AgentId>,
    /// Its host; empty: unknown.
    pub host: String,
    pub reason: QuarantineReason,
}

/// Why a quarantined record cannot be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPutBack {
    #[error("{0}")]
    Unreadable(weir_state::Error),
    #[error("it was not published for a fleet")]
    Unpublished,
    #[error("its bucket begins in {seconds} s: wait for it")]
    Future { seconds: i64 },
    #[error("its bucket is more than a day old, and owners would refuse it again")]
    TooOld,
    #[error("it has no series")]
    Empty,
}

/// The records that bring a quarantined one back, for the bucket that it is of. `now`: Unix seconds.
///
/// Owners know the number of a refused record, so its series go under an id that follows from its bytes: put back twice, the second
/// record is a repeat. A record that no owner could read keeps its own id and number, because its agent may send it again.
pub fn put_back(
    partition: u32,
    quarantined: &Quarantined,
    plan: &Plan,
    now: i64,
) -> Result<Vec<Published>, NotPutBack> {
    let record = Record::decode(&quarantined.bytes).map_err(NotPutBack::Unreadable)?;
    let header = &record.header;
    if header.publication.is_none() {
        return Err(NotPutBack::Unpublished);
    }
    if quarantined.reason.starts_with(UNREADABLE) {
        return Ok(vec![Published {
            partition,
            bytes: quarantined.bytes.clone(),
            rows: record.len() as u64,
        }]);
    }
    let seconds = header.bucket_start.saturating_sub(now);
    match seconds {
        _ if record.is_empty() => return Err(NotPutBack::Empty),
        1.. => return Err(NotPutBack::Future { seconds }),
        _ if seconds < -Settings::default().horizon => return Err(NotPutBack::TooOld),
        _ => {}
    }
    let id = AgentId(xxhash_rust::xxh3::xxh3_128(&quarantined.bytes).to_be_bytes());
    let mut publisher = Publisher::new(&header.tenant, id, 1);
    publisher.set_host(&header.host);
    publisher.begin(header.bucket_start, header.bucket_width, plan);
    for series in record.series() {
        let (facts, state) = (series.facts, series.state);
        publisher.add(&series.identity(), facts, state);
    }
    // The last one of its agent, so nobody waits for more.
    let records = publisher.close(true).records;
    Ok(records.into_iter().filter(|record| record.rows > 0).collect())
}
