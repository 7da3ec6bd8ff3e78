//! The identity of the agent, across processes.

use std::io::{self, Write as _};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_state::AgentId;

use super::PendingFile;
use weir_system::disk::{self, Disk};

const AGENT: &str = "agent";

/// The machine's id is private: only a digest for this purpose is stored.
const DIGEST_OF: &[u8] = b"weir state directory\n";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredAgent {
    #[serde(with = "id")]
    pub id: AgentId,
    /// Grows with every start. At least the Unix seconds of the start: a restored copy of the directory repeats no earlier epoch.
    pub epoch: u64,
    /// Empty if the machine has no id.
    machine: String,
    /// Of the rest: a damaged file would make this another agent, to which nothing in the directory belongs. Older versions wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    check: Option<u32>,
    /// The file was damaged, and the other files of the directory have said who this is.
    #[serde(skip)]
    pub is_recovered: bool,
}

/// The content of the file of the agent.
enum Known {
    Nothing,
    Agent(StoredAgent),
    Damaged,
}

impl StoredAgent {
    /// The agent of this directory at its next start. On another machine it becomes another agent. `now`: Unix seconds; `machine`: what
    /// distinguishes it from another one with a copy of its disk, if it has that; `new`: the id of an agent that is new.
    pub fn of(
        disk: &Arc<dyn Disk>,
        now: u64,
        machine: Option<&[u8]>,
        new: impl FnOnce() -> io::Result<AgentId>,
    ) -> io::Result<StoredAgent> {
        let machine = fingerprint(machine);
        let (known, is_recovered) = match Self::known(&**disk) {
            Known::Nothing => (None, false),
            Known::Agent(agent) => (
                Some((agent.id, agent.epoch)).filter(|_| agent.is_at(&machine)),
                false,
            ),
            Known::Damaged => {
                let known = super::known_elsewhere(&**disk);
                match &known {
                    Some((id, epoch)) => tracing::warn!(
                        "state_path: the file `{AGENT}` is damaged: the other files there are of agent {id}, whose last start was number {epoch}, so this is that agent"
                    ),
                    None => tracing::warn!(
                        "state_path: the file `{AGENT}` is damaged: this is another agent from now on"
                    ),
                }
                (known, known.is_some())
            }
        };
        let (id, epoch) = match known {
            Some((id, epoch)) => (id, epoch.saturating_add(1).max(now)),
            None => (new()?, now.max(1)),
        };
        let mut agent = StoredAgent {
            id,
            epoch,
            machine,
            check: None,
            is_recovered,
        };
        agent.check = Some(agent.check());
        let bytes = serde_json::to_vec(&agent).map_err(io::Error::other)?;
        let (pending, mut file) = PendingFile::new(disk, AGENT)?;
        let written = file.write_all(&bytes);
        pending.complete(&mut *file, written)?;
        Ok(agent)
    }

    fn known(disk: &dyn Disk) -> Known {
        let Ok(bytes) = disk::read(disk, AGENT) else {
            return Known::Nothing;
        };
        match serde_json::from_slice::<StoredAgent>(&bytes) {
            Ok(agent) if agent.check.is_none_or(|check| check == agent.check()) => Known::Agent(agent),
            _ => Known::Damaged,
        }
    }

    fn check(&self) -> u32 {
        crc32fast::hash(format!("{} {} {}", self.id, self.epoch, self.machine).as_bytes())
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
    use std::path::Path;
    use std::sync::atomic::{AtomicU8, Ordering};

    use weir_system::disk::SystemDisk;

    use super::*;

    fn start(directory: &Path, now: u64) -> StoredAgent {
        static IDS: AtomicU8 = AtomicU8::new(0);
        let disk: Arc<dyn Disk> = Arc::new(SystemDisk::of(directory));
        let unique = || Ok(AgentId([IDS.fetch_add(1, Ordering::Relaxed); 16]));
        StoredAgent::of(&disk, now, None, unique).unwrap()
    }

    #[test]
    fn the_agent_id_is_kept_unless_the_disk_was_copied() {
        let agent = StoredAgent {
            id: AgentId([7; 16]),
            epoch: 3,
            machine: fingerprint(Some(b"one\n")),
            check: None,
            is_recovered: false,
        };
        let bytes = serde_json::to_vec(&agent).unwrap();
        assert_eq!(serde_json::from_slice::<StoredAgent>(&bytes).unwrap(), agent);
        assert!(agent.is_at(&fingerprint(Some(b"one"))) && agent.is_at(&fingerprint(None)));
        assert!(!agent.is_at(&fingerprint(Some(b"other"))));
    }

    /// A snapshot of a machine or a backup has an epoch that was used since.
    #[test]
    fn a_restored_directory_repeats_no_epoch() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(AGENT);
        let start = |now| start(directory.path(), now).epoch;
        assert_eq!(start(1000), 1000);
        let copy = std::fs::read(&path).unwrap();
        assert_eq!(start(1000), 1001, "two starts in one second");
        let last = start(2000);
        std::fs::write(&path, copy).unwrap();
        assert!(start(2001) > last);
        assert_eq!(start(3), 2002, "the clock was set back");
    }

    #[test]
    fn every_start_is_another_epoch() {
        let directory = tempfile::tempdir().unwrap();
        let start = || start(directory.path(), 1000);
        let (first, second) = (start(), start());
        assert!(first.id == second.id && first.epoch < second.epoch);
        std::fs::write(directory.path().join(AGENT), b"{").unwrap();
        assert_ne!(start().id, first.id);
    }
}
