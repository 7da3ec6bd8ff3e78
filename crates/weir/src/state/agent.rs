//! The identity of the agent, across processes.

use std::io::{self, Write as _};
use std::path::Path;

use ring::rand::SecureRandom as _;
use serde::{Deserialize, Serialize};
use weir_state::AgentId;

use super::PendingFile;

const AGENT: &str = "agent";

/// Distinguishes a machine from another one with a copy of its disk, if the file exists.
const MACHINE_ID: &str = "/etc/machine-id";

/// The machine's id is private: only a digest for this purpose is stored.
const DIGEST_OF: &[u8] = b"weir state directory\n";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredAgent {
    #[serde(with = "id")]
    pub id: AgentId,
    /// Grows with every start.
    pub epoch: u64,
    /// Empty if the machine has no id.
    machine: String,
}

impl StoredAgent {
    /// The agent of this directory at its next start. On another machine it becomes another agent.
    pub fn of(directory: &Path) -> io::Result<StoredAgent> {
        let known = std::fs::read(directory.join(AGENT)).ok();
        let known: Option<StoredAgent> = known.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let machine = fingerprint(std::fs::read(MACHINE_ID).ok().as_deref());
        let agent = match known {
            Some(known) if known.is_at(&machine) => StoredAgent {
                epoch: known.epoch + 1,
                machine,
                ..known
            },
            _ => StoredAgent {
                id: random()?,
                epoch: 1,
                machine,
            },
        };
        let bytes = serde_json::to_vec(&agent).map_err(io::Error::other)?;
        PendingFile::new(directory, AGENT)?.put(|mut to| {
            to.write_all(&bytes)?;
            to.flush()
        })?;
        Ok(agent)
    }

    /// Containers often have no id, and one without an id now may have had one before.
    fn is_at(&self, machine: &str) -> bool {
        self.machine.is_empty() || machine.is_empty() || self.machine == machine
    }
}

fn fingerprint(id: Option<&[u8]>) -> String {
    let id = id.unwrap_or_default().trim_ascii();
    if id.is_empty() {
        return String::new();
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, &[DIGEST_OF, id].concat());
    digest.as_ref()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A unique id.
pub fn random() -> io::Result<AgentId> {
    let mut id = [0; 16];
    ring::rand::SystemRandom::new()
        .fill(&mut id)
        .map_err(|_| io::Error::other("the system provides no random numbers"))?;
    Ok(AgentId(id))
}

/// In hexadecimal digits.
mod id {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};
    use weir_state::AgentId;

    pub fn serialize<S: Serializer>(id: &AgentId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(id)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<AgentId, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = (text.len() == 32 && text.is_ascii()).then(|| u128::from_str_radix(&text, 16).ok());
        let number = digits
            .flatten()
            .ok_or_else(|| D::Error::custom("32 hexadecimal digits"))?;
        Ok(AgentId(number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_id_is_kept_unless_the_disk_was_copied() {
        let agent = StoredAgent {
            id: AgentId([7; 16]),
            epoch: 3,
            machine: fingerprint(Some(b"one\n")),
        };
        let bytes = serde_json::to_vec(&agent).unwrap();
        assert_eq!(serde_json::from_slice::<StoredAgent>(&bytes).unwrap(), agent);
        assert!(agent.is_at(&fingerprint(Some(b"one"))) && agent.is_at(&fingerprint(None)));
        assert!(!agent.is_at(&fingerprint(Some(b"other"))));
    }

    #[test]
    fn every_start_is_another_epoch() {
        let directory = tempfile::tempdir().unwrap();
        let first = StoredAgent::of(directory.path()).unwrap();
        let second = StoredAgent::of(directory.path()).unwrap();
        assert_eq!((first.id, first.epoch + 1), (second.id, second.epoch));
        std::fs::write(directory.path().join(AGENT), b"{").unwrap();
        assert_ne!(StoredAgent::of(directory.path()).unwrap().id, first.id);
    }
}
