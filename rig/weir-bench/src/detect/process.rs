//! Starts and ends programs so that nothing is left behind.

use super::procfs;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weir_rig_base::{clock, process};

/// Interval of polling. Short compared with every duration of an experiment, long compared with the cost of a poll.
pub const POLL: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub struct Start<'a> {
    pub name: &'a str,
    pub argv: &'a [String],
    pub env: &'a BTreeMap<String, String>,
    pub folder: &'a Path,
    pub stdout: PathBuf,
    pub stderr: PathBuf,
    pub cpus: Option<&'a [usize]>,
    pub cgroup: Option<&'a Cgroup>,
}

/// A program started here, alone in its session. Dropping it ends it and everything that it started.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pub pid: i32,
    name: String,
    status: Option<ExitStatus>,
    /// All CPU time that it has used; known after its end.
    life_ns: Option<u64>,
}

impl Process {
    pub fn start(s: &Start) -> io::Result<Self> {
        let (program, args) = s
            .argv
            .split_first()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "empty command"))?;
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(s.folder)
            .stdin(Stdio::null())
            .stdout(File::create(&s.stdout)?)
            .stderr(File::create(&s.stderr)?)
            // The caller's environment differs between machines and shells, so only the variables for finding programs are passed on.
            .env_clear()
            .envs(std::env::vars_os().filter(|(k, _)| k == "PATH" || k == "HOME" || k == "TZ" || k == "LANG"))
            .envs(s.env);
        process::isolate(&mut command, s.cpus, s.cgroup.map(|c| c.procs.as_path()))?;
        let child = command
            .spawn()
            .map_err(|e| io::Error::new(e.kind(), format!("cannot start {program:?}: {e}")))?;
        let pid = child.id() as i32;
        Ok(Self {
            child,
            pid,
            name: s.name.to_owned(),
            status: None,
            life_ns: None,
        })
    }

    /// The exit status once it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() && process::has_ended(self.pid) {
            // Its clock is readable until it is reaped.
            self.life_ns = clock::cpu_time_ns(self.pid);
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// CPU time it has used up to now or up to its end, user and system, all threads.
    pub fn cpu_ns(&self) -> Option<u64> {
        match self.status {
            Some(_) => self.life_ns,
            None => clock::cpu_time_ns(self.pid),
        }
    }

    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            thread::sleep(POLL);
        }
    }

    /// Asks it to stop, and kills it after the grace period. Returns the result for the events.
    pub fn stop(&mut self, signal: i32, grace: Duration) -> Stopped {
        if let Some(status) = self.ended() {
            self.end_tree();
            return Stopped::Earlier(status);
        }
        process::kill(self.pid, signal);
        let status = self.wait(grace);
        self.end_tree();
        match status {
            Some(status) => Stopped::Asked(status),
            None => Stopped::Killed,
        }
    }

    /// Ends every process of the tree, including reparented children.
    fn end_tree(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let members: Vec<procfs::Stat> = procfs::tree(self.pid, &procfs::all_processes())
                .into_iter()
                // Our own dead child is reaped below; its number must not be signalled after that.
                .filter(|p| p.pid != self.pid || self.status.is_none())
                .collect();
            for p in &members {
                if p.zombie && p.ppid == std::process::id() as i32 && p.pid != self.pid {
                    process::reap(p.pid);
                } else if !p.zombie {
                    process::kill(p.pid, libc::SIGKILL);
                }
            }
            let ended = self.ended().is_some();
            if (ended && members.iter().all(|p| p.pid == self.pid)) || Instant::now() >= deadline {
                return;
            }
            thread::sleep(POLL);
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end_tree();
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Stopped {
    /// It ended on request.
    Asked(ExitStatus),
    /// It had ended before the request.
    Earlier(ExitStatus),
    /// It did not end within its grace period.
    Killed,
}

/// `exit code 3` or `signal 11`.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_owned(),
    }
}

/// Why there is no control group.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("no memory cgroup is mounted")]
    NotMounted,
    #[error("{folder}: {error}")]
    Create { folder: PathBuf, error: io::Error },
}

/// A control group that limits the memory of one target; removed when dropped.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
    procs: PathBuf,
}

impl Cgroup {
    const PREFIX: &str = "weir-bench-";

    /// Both versions of the interface are in use. `Err` is the reason if there is none; the caller then watches memory itself.
    pub fn with_memory_limit(bytes: u64) -> Result<Self, CgroupError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let v2 = Path::new("/sys/fs/cgroup");
        let (root, limit) = if v1.join("memory.limit_in_bytes").exists() {
            (v1, "memory.limit_in_bytes")
        } else if v2.join("cgroup.controllers").exists() {
            (v2, "memory.max")
        } else {
            return Err(CgroupError::NotMounted);
        };
        remove_stale(root);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = root.join(format!("{}{}-{number}", Self::PREFIX, std::process::id()));
        let make = || -> io::Result<()> {
            fs::create_dir(&folder)?;
            fs::write(folder.join(limit), bytes.to_string())?;
            // Swapping would hide the limit; not every machine has the file.
            let _ = fs::write(folder.join("memory.swap.max"), "0");
            Ok(())
        };
        match make() {
            Ok(()) => Ok(Self {
                procs: folder.join("cgroup.procs"),
                folder,
            }),
            Err(error) => {
                let _ = fs::remove_dir(&folder);
                Err(CgroupError::Create { folder, error })
            }
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel releases ended members a moment after they were reaped.
        for _ in 0..100 {
            match fs::remove_dir(&self.folder) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => thread::sleep(POLL),
                _ => return,
            }
        }
    }
}

/// Removes groups of runs that were killed before they could clean up.
fn remove_stale(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|n| n.strip_prefix(Cgroup::PREFIX))
            .and_then(|n| n.split('-').next());
        if let Some(pid) = owner.and_then(|p| p.parse::<i32>().ok())
            && procfs::stat(pid).is_none()
        {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str, folder: &Path) -> Process {
        let argv: Vec<String> = ["sh", "-c", script].map(str::to_owned).to_vec();
        Process::start(&Start {
            name: "test",
            argv: &argv,
            env: &BTreeMap::new(),
            folder,
            stdout: folder.join("out"),
            stderr: folder.join("err"),
            cpus: None,
            cgroup: None,
        })
        .unwrap()
    }

    fn wait_for(folder: &Path, file: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match fs::read_to_string(folder.join(file)) {
                Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                _ if Instant::now() > deadline => panic!("{file} was not written"),
                _ => thread::sleep(POLL),
            }
        }
    }

    #[test]
    fn a_stubborn_process_and_its_children_are_ended() {
        let dir = tempfile::tempdir().unwrap();
        let mut p = start(
            "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > child; sleep 600' & echo up > up; wait; sleep 600",
            dir.path(),
        );
        wait_for(dir.path(), "up");
        let child: i32 = wait_for(dir.path(), "child").parse().unwrap();
        assert!(matches!(
            p.stop(libc::SIGTERM, Duration::from_millis(50)),
            Stopped::Killed
        ));
        assert!(procfs::stat(child).is_none_or(|s| s.zombie), "the child survived");
        assert!(procfs::stat(p.pid).is_none_or(|s| s.zombie));
    }

    #[test]
    fn an_ended_process_has_its_status_and_its_orphans_are_ended_too() {
        let dir = tempfile::tempdir().unwrap();
        let mut p = start("sleep 600 & echo $! > orphan; exit 7", dir.path());
        let orphan: i32 = wait_for(dir.path(), "orphan").parse().unwrap();
        assert_eq!(describe(p.wait(Duration::from_secs(20)).unwrap()), "exit code 7");
        assert!(matches!(
            p.stop(libc::SIGTERM, Duration::from_secs(1)),
            Stopped::Earlier(_)
        ));
        assert!(procfs::stat(orphan).is_none_or(|s| s.zombie));
    }

    #[test]
    fn a_missing_program_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let argv = vec!["/nowhere/program".to_owned()];
        let e = Process::start(&Start {
            name: "x",
            argv: &argv,
            env: &BTreeMap::new(),
            folder: dir.path(),
            stdout: dir.path().join("out"),
            stderr: dir.path().join("err"),
            cpus: None,
            cgroup: None,
        })
        .unwrap_err();
        assert!(e.to_string().contains("/nowhere/program"), "{e}");
    }
}
