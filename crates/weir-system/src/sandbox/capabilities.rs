//! Drops all capabilities except those that the configuration needs, which is tested.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};

use super::KeptCapability;
use super::plan::Plan;
use crate::sys::{self, May};

/// Returns the remaining ones.
pub fn drop_unneeded(plan: &Plan) -> Result<Vec<KeptCapability>, CapsError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    if permitted.is_empty() {
        return Ok(Vec::new());
    }
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        caps::clear(None, CapSet::Bounding)?;
    }
    let mut kept = needed(plan);
    kept.retain(|(capability, _)| permitted.contains(capability));
    // File capabilities are needed if a path that is accessible now would not be without them.
    let reachable: Vec<_> = plan.accesses().filter(|(path, may)| can(path, *may)).collect();
    caps::set(None, CapSet::Effective, &set(&kept))?;
    let mut lost = reachable.into_iter().filter(|(path, may)| !can(path, *may));
    if let Some((path, _)) = lost.next() {
        let because = format!("{} is of another user", path.display());
        kept.push((Capability::CAP_DAC_OVERRIDE, because));
    }
    let left = set(&kept);
    caps::set(None, CapSet::Effective, &left)?;
    caps::set(None, CapSet::Permitted, &left)?;
    caps::clear(None, CapSet::Inheritable)?;
    // Linux before 4.3 has none.
    let _ = caps::clear(None, CapSet::Ambient);
    let named = |(capability, because): (Capability, String)| KeptCapability {
        capability: capability.to_string(),
        because,
    };
    Ok(kept.into_iter().map(named).collect())
}

/// Capabilities that the configuration needs regardless of the files.
fn needed(plan: &Plan) -> Vec<(Capability, String)> {
    let mut needed = Vec::new();
    if let Some(mount) = &plan.hidden_processes {
        let because = format!("origin detection: {mount} is mounted with hidepid");
        needed.push((Capability::CAP_SYS_PTRACE, because));
    }
    if plan.socket_ownership {
        for capability in [Capability::CAP_CHOWN, Capability::CAP_FOWNER] {
            needed.push((
                capability,
                "socket_owner or socket_group, when a socket file is created again".to_owned(),
            ));
        }
    }
    needed
}

fn set(kept: &[(Capability, String)]) -> CapsHashSet {
    kept.iter()
        .map(|(capability, _)| *capability)
        .collect::<HashSet<_>>()
}

fn can(path: &Path, may: May) -> bool {
    match sys::may(path, may) {
        Ok(()) => true,
        // The path does not exist, and nothing prevents us from finding that out.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}
