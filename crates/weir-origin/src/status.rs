//! The status of origin detection.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Numbers only grow, except for those documented as current.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OriginStatus {
    /// Look-ups of processes by result: `container`, `no_container`, and the errors `process_gone`, `process_denied`,
    /// `process_unreadable`.
    pub processes: BTreeMap<String, u64>,
    /// Processes whose number was reused by another process.
    pub processes_reused: u64,
    /// Processes that moved to another container.
    pub processes_moved: u64,
    /// Processes remembered now.
    pub processes_known: u64,
    /// Origins now in use by a worker.
    pub origins_live: u64,
    /// Of these, origins unknown to every source.
    pub origins_unknown: u64,
    /// Origins asked for, by result: `known`, `unknown`, `malformed`.
    pub origins: BTreeMap<String, u64>,
    /// Answers that changed an earlier one.
    pub origins_changed: u64,
    /// Walks through the cgroups in search of an inode.
    pub cgroup_walks: u64,
    pub sources: Vec<SourceStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceStatus {
    pub name: String,
    /// Path or address of the source.
    pub place: String,
    /// Whether the last attempt succeeded.
    pub healthy: bool,
    /// Entities reported, including those of the last minutes.
    pub entities: u64,
    pub updates: u64,
    pub failures: u64,
    /// Cleared by the next success.
    pub last_error: Option<String>,
}

/// The derivation of one origin's tags.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OriginExplanation {
    pub pid: Option<i32>,
    /// The facts about the process, in words.
    pub process: Option<String>,
    pub container: Option<String>,
    /// Absent without `allowed_origins`, or if no process was named.
    #[serde(default)]
    pub access: Option<AccessExplanation>,
    pub tags: Vec<String>,
    pub steps: Vec<OriginStep>,
}

/// Whether this process may send.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AccessExplanation {
    pub allowed: bool,
    pub why: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OriginStep {
    /// The method of the search for an origin, found or not: `socket`, `local_data`, `external_data`, `entity_id`, `cardinality`, `surroundings`;
    /// `allowed_origins` if a process would have to be named for an answer.
    pub means: String,
    pub what: String,
    pub added: Vec<String>,
}
