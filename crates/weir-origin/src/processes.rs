//! Remembers looked-up processes for a minute.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_ingest::ProcessContainer;

use crate::cgroup::{Proc, ProcessError, ProcessFacts};

/// Validity of an answer; after it the control group is read again.
const TTL: Duration = Duration::from_secs(60);

/// Maximum processes. Beyond it the oldest look-ups are removed.
const PROCESSES_MAX: usize = 65_536;

/// Result of a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessLookUp {
    Container(Arc<str>),
    NoContainer,
    Failed(ProcessError),
}

impl ProcessLookUp {
    pub fn container(&self) -> Option<Arc<str>> {
        match self {
            ProcessLookUp::Container(id) => Some(id.clone()),
            _ => None,
        }
    }

    /// The result in the form for workers.
    pub fn found(&self) -> ProcessContainer {
        match self {
            ProcessLookUp::Container(id) => ProcessContainer::Container(Box::from(&**id)),
            ProcessLookUp::NoContainer => ProcessContainer::NoContainer,
            ProcessLookUp::Failed(_) => ProcessContainer::Unknown,
        }
    }

    pub fn as_str(&self) -> &'static str {
        match self {
            ProcessLookUp::Container(_) => "container",
            ProcessLookUp::NoContainer => "no_container",
            ProcessLookUp::Failed(error) => error.as_str(),
        }
    }
}

impl fmt::Display for ProcessLookUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessLookUp::Container(id) => write!(f, "its control group is that of container {id}"),
            ProcessLookUp::NoContainer => f.write_str("its control group does not belong to a container"),
            ProcessLookUp::Failed(ProcessError::Gone) => {
                f.write_str("the process does not exist, or has ended")
            }
            ProcessLookUp::Failed(ProcessError::Denied) => {
                f.write_str("the kernel denies weir access to this process")
            }
            ProcessLookUp::Failed(ProcessError::Unreadable) => {
                f.write_str("the kernel's answer about this process is invalid")
            }
        }
    }
}

/// Differences of a process from the earlier look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its number now belongs to another process.
    pub reused: bool,
    pub container: Option<Arc<str>>,
}

struct CachedProcess {
    facts: ProcessFacts,
    at: Instant,
}

pub struct Processes {
    proc: Proc,
    known: HashMap<i32, CachedProcess>,
}

impl Processes {
    pub fn new(proc: Proc) -> Self {
        Processes {
            proc,
            known: HashMap::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// The container of a process. For one that has just ended, the remembered result.
    pub fn look_up(&mut self, pid: i32, now: Instant) -> ProcessLookUp {
        match self.proc.look_up(pid) {
            Ok(facts) => {
                let container = facts.container.clone();
                if self.known.len() < PROCESSES_MAX || self.known.contains_key(&pid) {
                    self.known.insert(pid, CachedProcess { facts, at: now });
                }
                container.map_or(ProcessLookUp::NoContainer, ProcessLookUp::Container)
            }
            Err(ProcessError::Gone) => match self.known.get(&pid) {
                Some(known) if now - known.at < TTL => {
                    let container = known.facts.container.clone();
                    container.map_or(ProcessLookUp::NoContainer, ProcessLookUp::Container)
                }
                _ => ProcessLookUp::Failed(ProcessError::Gone),
            },
            Err(error) => ProcessLookUp::Failed(error),
        }
    }

    /// Checks a process that continues to send. Its start time shows a reused number, which costs one read. Its control group is read again
    /// once a minute.
    pub fn recheck(&mut self, pid: i32, now: Instant) -> Option<Change> {
        let before = match self.known.get_mut(&pid) {
            Some(known) => {
                match self.proc.started(pid) {
                    Ok(started) if started != known.facts.started => {}
                    Ok(_) if now - known.at >= TTL => {}
                    // The same process, or one that has ended while its messages are still arriving.
                    _ => return None,
                }
                Some(known.facts.clone())
            }
            None => None,
        };
        let facts = self.proc.look_up(pid).ok()?;
        let container = facts.container.clone();
        let reused = before
            .as_ref()
            .is_some_and(|before| before.started != facts.started);
        let changed = before.is_none_or(|before| reused || before.container != container);
        self.known.insert(pid, CachedProcess { facts, at: now });
        changed.then_some(Change { reused, container })
    }

    /// Removes processes without a recent look-up.
    pub fn expire(&mut self, now: Instant) {
        if self.known.len() > PROCESSES_MAX / 2 {
            self.known.retain(|_, known| now - known.at < TTL);
        } else {
            self.known.retain(|_, known| now - known.at < 4 * TTL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const ID: &str = "8fca07c69572406d285eeefa634159daf60d9bda1badc81ffa38a0c449fc7985";
    const OTHER: &str = "00000000000000000000000000000000000000000000000000000000000000aa";

    fn process(root: &Path, pid: i32, started: u64, container: &str) {
        let directory = root.join(pid.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        let stat = format!("{pid} (sh) S{} {started} 0 0", " 0".repeat(18));
        std::fs::write(directory.join("stat"), stat).unwrap();
        std::fs::write(directory.join("cgroup"), format!("0::/docker/{container}\n")).unwrap();
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let root = tempfile::tempdir().unwrap();
        let mut processes = Processes::new(Proc::new(root.path()));
        let now = Instant::now();
        process(root.path(), 7, 100, ID);
        assert_eq!(processes.look_up(7, now).container().as_deref(), Some(ID));
        assert_eq!(processes.recheck(7, now), None);
        process(root.path(), 7, 200, OTHER);
        let change = processes.recheck(7, now).expect("it changed");
        assert!(change.reused);
        assert_eq!(change.container.as_deref(), Some(OTHER));
        assert_eq!(processes.recheck(7, now), None, "told once");
    }

    #[test]
    fn a_process_that_moves_is_found_within_a_minute_and_one_that_ends_keeps_its_container() {
        let root = tempfile::tempdir().unwrap();
        let mut processes = Processes::new(Proc::new(root.path()));
        let now = Instant::now();
        process(root.path(), 7, 100, ID);
        processes.look_up(7, now);
        process(root.path(), 7, 100, OTHER);
        assert_eq!(
            processes.recheck(7, now),
            None,
            "the control group is not read yet"
        );
        let change = processes.recheck(7, now + TTL).expect("it changed");
        assert!(!change.reused);
        assert_eq!(change.container.as_deref(), Some(OTHER));
        std::fs::remove_dir_all(root.path().join("7")).unwrap();
        assert_eq!(processes.recheck(7, now + TTL), None);
        assert_eq!(
            processes.look_up(7, now + TTL).container().as_deref(),
            Some(OTHER)
        );
        assert_eq!(
            processes.look_up(7, now + 3 * TTL),
            ProcessLookUp::Failed(ProcessError::Gone)
        );
    }
}
