//! What origin detection says about itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Numbers only grow, unless they say what there is at the moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OriginStatus {
    /// Look-ups of processes by result: `container`, `no_container`, and the errors `process_gone`, `process_denied`,
    /// `process_unreadable`.
    pub processes: BTreeMap<String, u64>,
    /// Processes whose number turned out to belong to another one by now.
    pub processes_reused: u64,
    /// Processes that had moved to another container.
    pub processes_moved: u64,
    /// Processes remembered at the moment.
    pub processes_known: u64,
    /// Origins that some worker wants the tags of at the moment.
    pub origins_live: u64,
    /// Of those, origins that no source knows.
    pub origins_unknown: u64,
    /// Origins that were asked for, by result: `known`, `unknown`, `malformed`.
    pub origins: BTreeMap<String, u64>,
    /// Answers that changed an earlier one.
    pub origins_changed: u64,
    /// Walks through the control groups in search of an inode.
    pub cgroup_walks: u64,
    pub sources: Vec<SourceStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceStatus {
    pub name: String,
    /// Where it gets its knowledge.
    pub place: String,
    /// The last attempt succeeded.
    pub healthy: bool,
    /// Entities it told of, those of the last minutes included.
    pub entities: u64,
    pub updates: u64,
    pub failures: u64,
    /// Until it answers again.
    pub last_error: Option<String>,
}

/// How the tags of one origin came about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OriginExplanation {
    pub pid: Option<i32>,
    /// What was found out about the process, in words.
    pub process: Option<String>,
    pub container: Option<String>,
    /// Absent without `allowed_origins`, or when no process was named.
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
    /// By what an origin was found, or not: `socket`, `local_data`, `external_data`, `entity_id`, `cardinality`,
    /// `surroundings`; `allowed_origins` where that would say something if a process were named.
    pub means: String,
    pub what: String,
    pub added: Vec<String>,
}
