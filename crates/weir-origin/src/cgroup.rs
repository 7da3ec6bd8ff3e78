//! Finds the container of a process: reads `/proc` and the directories of control groups.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum directories per walk, and maximum depth.
const DIRECTORIES_MAX: usize = 50_000;
const DEPTH_MAX: usize = 16;

/// The files read here are never longer.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Why a process could not be identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessError {
    /// It had ended.
    Gone,
    /// The kernel denied access.
    Denied,
    /// The kernel's answer could not be parsed.
    Unreadable,
}

impl ProcessError {
    pub fn as_str(self) -> &'static str {
        match self {
            ProcessError::Gone => "process_gone",
            ProcessError::Denied => "process_denied",
            ProcessError::Unreadable => "process_unreadable",
        }
    }

    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => ProcessError::Gone,
            io::ErrorKind::PermissionDenied => ProcessError::Denied,
            // The error of reading a file of a process that has just ended.
            _ if error.raw_os_error() == Some(3) => ProcessError::Gone,
            _ => ProcessError::Unreadable,
        }
    }
}

/// A process at the time of the look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Start time in ticks after boot. Together with the id it identifies the process.
    pub started: u64,
    pub container: Option<Arc<str>>,
}

/// A `/proc` directory: the host's, or one mounted elsewhere.
#[derive(Clone, Debug)]
pub struct Proc {
    root: PathBuf,
}

impl Proc {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Proc { root: root.into() }
    }

    fn read(&self, pid: i32, file: &str) -> Result<String, ProcessError> {
        let path = self.root.join(pid.to_string()).join(file);
        let file = std::fs::File::open(path).map_err(|error| ProcessError::of(&error))?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX)
            .read_to_end(&mut bytes)
            .map_err(|error| ProcessError::of(&error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Start time of a process.
    pub fn started(&self, pid: i32) -> Result<u64, ProcessError> {
        start_time(&self.read(pid, "stat")?).ok_or(ProcessError::Unreadable)
    }

    /// Start time and container of a process.
    pub fn look_up(&self, pid: i32) -> Result<ProcessFacts, ProcessError> {
        let started = self.started(pid)?;
        let groups = self.read(pid, "cgroup")?;
        // The number may have been reused between the two reads.
        if self.started(pid)? != started {
            return Err(ProcessError::Gone);
        }
        Ok(ProcessFacts {
            started,
            container: container_of_groups(&groups).map(Arc::from),
        })
    }
}

/// Field 22 of `stat`. The name in field 2 may contain anything, so the last closing bracket ends it.
pub(crate) fn start_time(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The container in the lines of a `cgroup` file. Version 2 has one line, version 1 one per hierarchy. If they disagree, the unified
/// hierarchy counts, then memory, then the first.
pub fn container_of_groups(groups: &str) -> Option<&str> {
    let mut found: Option<(u8, &str)> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let Some(container) = container_of_path(path) else {
            continue;
        };
        let rank = match controllers {
            "" => 0,
            list if list.split(',').any(|name| name == "memory") => 1,
            _ => 2,
        };
        if found.is_none_or(|(best, _)| rank < best) {
            found = Some((rank, container));
        }
    }
    found.map(|(_, container)| container)
}

/// The innermost container in the path of a control group.
pub fn container_of_path(path: &str) -> Option<&str> {
    path.rsplit('/').find_map(container_of_directory)
}

/// The container id in a directory's name: plain, or in a runtime's form (`docker-<id>.scope`, `cri-containerd-<id>.scope`, `libpod-<id>`,
/// `libpod-<id>.scope`, `crio-<id>.scope`). Directories of a runtime's helper processes are not containers.
pub fn container_of_directory(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    if name.contains("conmon") {
        return None;
    }
    if let Some(id) = name.get(name.len().wrapping_sub(64)..)
        && is_hex(id)
        && (name.len() == 64 || matches!(name.as_bytes()[name.len() - 65], b'-' | b':' | b'_'))
    {
        return Some(id);
    }
    // Tasks of ECS on Fargate, and garden containers.
    (is_task(name) || is_garden(name)).then_some(name)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_task(name: &str) -> bool {
    name.split_once('-').is_some_and(|(task, number)| {
        task.len() == 32
            && is_hex(task)
            && (1..=20).contains(&number.len())
            && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn is_garden(name: &str) -> bool {
    let lengths = [8, 4, 4, 4, 4];
    let parts: Vec<&str> = name.split('-').take(6).collect();
    parts.len() == lengths.len()
        && parts
            .iter()
            .zip(lengths)
            .all(|(part, length)| part.len() == length && is_hex(part))
}

/// Whether a text has the form of a container id. Other texts are never looked up.
pub fn is_container_id(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && !text.starts_with('.')
}

/// Finds a container by the inode of its control group.
#[derive(Debug)]
pub struct Inodes {
    roots: Vec<PathBuf>,
    known: HashMap<u64, Arc<str>>,
    next_walk: Instant,
    pub walks: u64,
}

impl Inodes {
    /// `root`: the mount point of control groups of all versions.
    pub fn new(root: &Path) -> Self {
        // Version 2 alone; version 1, where clients use the memory hierarchy; both together.
        let roots = ["memory", "unified"].map(|name| root.join(name));
        let mut roots: Vec<PathBuf> = roots.into_iter().filter(|path| path.is_dir()).collect();
        if roots.is_empty() {
            roots.push(root.to_owned());
        }
        Inodes {
            roots,
            known: HashMap::new(),
            next_walk: Instant::now(),
            walks: 0,
        }
    }

    /// The container of an inode. `Err`: unknown until a walk at this time.
    pub fn find(&mut self, inode: u64, now: Instant) -> Result<Option<Arc<str>>, Instant> {
        if let Some(container) = self.known.get(&inode) {
            return Ok(Some(container.clone()));
        }
        if now < self.next_walk {
            return Err(self.next_walk);
        }
        self.walk();
        // Limits walks to a twentieth of the time, so that invented inodes cannot keep the disk busy.
        self.next_walk = now + Duration::from_secs(1).max(now.elapsed() * 20);
        Ok(self.known.get(&inode).cloned())
    }

    fn walk(&mut self) {
        self.walks += 1;
        let mut known = HashMap::new();
        let mut left = DIRECTORIES_MAX;
        let mut waiting: Vec<(PathBuf, usize, Option<Arc<str>>)> =
            self.roots.iter().map(|root| (root.clone(), 0, None)).collect();
        while let Some((path, depth, within)) = waiting.pop() {
            let Ok(entries) = std::fs::read_dir(&path) else {
                continue;
            };
            for entry in entries.flatten() {
                if left == 0 || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                left -= 1;
                let name = entry.file_name();
                let own = name.to_str().and_then(container_of_directory).map(Arc::from);
                let container = own.or_else(|| within.clone());
                if let Some(container) = &container
                    && let Ok(data) = entry.metadata()
                {
                    known.insert(data.ino(), container.clone());
                }
                if depth < DEPTH_MAX {
                    waiting.push((entry.path(), depth + 1, container));
                }
            }
        }
        self.known = known;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "8fca07c69572406d285eeefa634159daf60d9bda1badc81ffa38a0c449fc7985";
    const OTHER: &str = "0000000000000000000000000000000000000000000000000000000000000001";

    #[test]
    fn every_runtimes_directory_is_understood() {
        for path in [
            format!("/docker/{ID}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!("/kubepods/burstable/pod1234/{ID}"),
            format!("/kubepods.slice/kubepods-pod12.slice/cri-containerd-{ID}.scope"),
            format!("/kubepods.slice/crio-{ID}.scope"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/libpod_parent/libpod-{ID}"),
            format!("/docker/{OTHER}/kubelet/kubepods/pod1/{ID}"),
            format!("/../docker-{ID}.scope"),
            format!("/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}"),
        ] {
            assert_eq!(container_of_path(&path), Some(ID), "{path}");
        }
        assert_eq!(
            container_of_path("/ecs/task/34dc0b5e626f2c5c4c5170e34b10e765-1234567890"),
            Some("34dc0b5e626f2c5c4c5170e34b10e765-1234567890")
        );
        assert_eq!(
            container_of_path("/garden/6f265890-5165-7fab-6b52-18d1"),
            Some("6f265890-5165-7fab-6b52-18d1")
        );
        for path in [
            "/".to_owned(),
            "/user.slice/user-1000.slice/session-1.scope".to_owned(),
            format!("/machine.slice/libpod-conmon-{ID}.scope"),
            format!("/a{ID}"),
            format!("/{}", ID.to_uppercase()),
            "/é".repeat(40),
        ] {
            assert_eq!(container_of_path(&path), None, "{path}");
        }
    }

    #[test]
    fn lines_of_both_versions_are_read() {
        let groups = format!("5:pids:/docker/{OTHER}\n4:memory:/docker/{ID}\n0::/\n");
        assert_eq!(container_of_groups(&groups), Some(ID));
        let groups = format!("4:memory:/docker/{OTHER}\n0::/docker/{ID}\n");
        assert_eq!(container_of_groups(&groups), Some(ID));
        assert_eq!(container_of_groups("nonsense\n:::\n0::"), None);
    }

    #[test]
    fn a_process_whose_name_is_a_trap_has_its_start_time() {
        let stat = "12 (a) b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21\n";
        assert_eq!(start_time(stat), Some(4242));
        assert_eq!(start_time("12 (a"), None);
        let own = Proc::new("/proc").look_up(std::process::id() as i32).unwrap();
        assert!(own.started > 0);
        assert_eq!(
            Proc::new("/nowhere").look_up(1),
            Err(ProcessError::Gone),
            "what is not there has ended"
        );
    }

    #[test]
    fn misleading_ids_are_not_container_ids() {
        assert!(is_container_id(ID));
        for text in ["", "../x", "a/b", "a b", "a%2f", &"a".repeat(129), "é", ".."] {
            assert!(!is_container_id(text), "{text}");
        }
    }
}
