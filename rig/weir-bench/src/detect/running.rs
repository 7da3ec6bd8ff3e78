//! A measured program: started for one run, or found running and left running.

use super::experiment::{LISTENS, Target, TargetLayer};
use super::layer::{ConfigError, Result, Slot};
use super::process::{self, Process, Stopped};
use super::procfs::{self, Group};
use std::fs;
use std::path::{Path, PathBuf};
use weir_rig_base::clock;

/// Where control groups are: of version 2, then of version 1.
const CGROUPS: [&str; 3] = [
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/cpuacct",
    "/sys/fs/cgroup/memory",
];

/// A program that somebody else started.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    pub group: Group,
    /// Its first process.
    pub pid: i32,
    started_ticks: u64,
    /// The address for the load.
    pub address: String,
}

impl Running {
    /// Finds `PID@ADDRESS` or `GROUP@ADDRESS`.
    pub fn find(kind: &str, rest: &str) -> Result<Running> {
        let bad = |what: String| ConfigError(format!("{kind}:{rest}: {what}"));
        let (which, address) = rest.split_once('@').ok_or_else(|| {
            bad(format!(
                "write {kind}:{rest}@ADDRESS with the address for the load, such as udp://127.0.0.1:8125"
            ))
        })?;
        if transports(address).is_empty() {
            let what = format!(
                "{address:?} is no address for a load; it begins with {}",
                schemes()
            );
            return Err(bad(what));
        }
        let group = match kind {
            "pid" => Group::Tree(which.parse().map_err(|_| bad(format!("{which:?} is not the number of a process")))?),
            _ => Group::Cgroup(cgroup(which).ok_or_else(|| {
                let places = CGROUPS.join(", ");
                bad(format!("there is no control group {which} in {places}; /proc/PID/cgroup of a process names its own"))
            })?),
        };
        let pid = *group
            .living()
            .first()
            .ok_or_else(|| bad("no such process".to_owned()))?;
        let pid = match group {
            Group::Tree(root) => root,
            Group::Cgroup(_) => pid,
        };
        let started_ticks = procfs::stat(pid).map_or(0, |p| p.started_ticks);
        Ok(Running {
            group,
            pid,
            started_ticks,
            address: address.to_owned(),
        })
    }

    /// Its program file, also if another has replaced it since, or if it is in a container.
    pub fn program(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/exe", self.pid))
    }

    /// Its settings in place of those of a case: one address and no others, and nothing to start.
    pub fn settings(&self, spec: &str) -> TargetLayer {
        let served = transports(&self.address);
        let address = |transport: &str| match served.contains(&transport) {
            true => Slot::given(self.address.clone(), spec),
            false => Slot::Null,
        };
        TargetLayer {
            command: Slot::given(vec![spec.to_owned()], spec),
            listen: LISTENS
                .iter()
                .map(|(_, t)| ((*t).to_owned(), address(t)))
                .collect(),
            ..TargetLayer::default()
        }
    }

    /// Makes it the target of an experiment.
    pub fn take_over(&self, target: &mut Target) {
        // It runs where its owner wants it, and goes on after the run.
        target.cpus = None;
        target.flushes_at_stop = false;
        target.running = Some(self.clone());
    }

    fn is_alive(&self) -> bool {
        match &self.group {
            Group::Tree(_) => {
                procfs::stat(self.pid).is_some_and(|p| !p.zombie && p.started_ticks == self.started_ticks)
            }
            group => !group.living().is_empty(),
        }
    }
}

/// The transports of `target.listen` that an address can serve.
fn transports(address: &str) -> Vec<&'static str> {
    let scheme = address.split_once("://").map_or("", |(scheme, _)| scheme);
    let such = LISTENS.iter().filter(|(s, _)| *s == scheme);
    such.map(|(_, transport)| *transport).collect()
}

fn schemes() -> String {
    let mut all: Vec<String> = LISTENS.iter().map(|(scheme, _)| format!("{scheme}://")).collect();
    all.dedup();
    all.join(", ")
}

fn cgroup(path: &str) -> Option<PathBuf> {
    let inside = path.trim_start_matches('/');
    let places = CGROUPS.iter().map(|place| Path::new(place).join(inside));
    std::iter::once(PathBuf::from(path))
        .filter(|path| path.is_absolute())
        .chain(places)
        .find(|folder| folder.join("cgroup.procs").is_file())
}

/// The target of one run.
pub enum Subject {
    Started(Process),
    Running(Running),
}

impl Subject {
    pub fn pid(&self) -> i32 {
        match self {
            Subject::Started(process) => process.pid,
            Subject::Running(running) => running.pid,
        }
    }

    pub fn group(&self) -> Group {
        match self {
            Subject::Started(process) => Group::Tree(process.pid),
            Subject::Running(running) => running.group.clone(),
        }
    }

    /// The way in which it ended, if it has.
    pub fn ended(&mut self) -> Option<String> {
        match self {
            Subject::Started(process) => process.ended().map(process::describe),
            Subject::Running(running) => (!running.is_alive()).then(|| "an unknown status".to_owned()),
        }
    }

    /// CPU time of its life until now.
    pub fn cpu_ns(&self) -> Option<u64> {
        match self {
            Subject::Started(process) => process.cpu_ns(),
            Subject::Running(running) => running.group.living().into_iter().map(clock::cpu_time_ns).sum(),
        }
    }

    /// Stops what was started; returns the event for the record.
    pub fn stop(&mut self, how: &Target) -> (&'static str, String) {
        let Subject::Started(process) = self else {
            return match self.ended() {
                Some(_) => ("invalid", "the target ended during the run".to_owned()),
                None => ("stopped", "left running".to_owned()),
            };
        };
        match process.stop(how.stop_signal, how.stop_grace) {
            Stopped::Asked(status) => ("stopped", process::describe(status)),
            Stopped::Killed => {
                let what = "the target did not stop within its grace period and was killed";
                ("note", what.to_owned())
            }
            Stopped::Earlier(status) => {
                let what = format!("the target ended by itself with {}", process::describe(status));
                ("invalid", what)
            }
        }
    }
}

/// The description of a running program for the list of programs.
pub fn file_name(program: &Path) -> String {
    let link = fs::read_link(program).unwrap_or_else(|_| program.to_owned());
    let name = link.file_name().map(|name| name.to_string_lossy().into_owned());
    // A replaced file has this behind its name.
    name.unwrap_or_default().trim_end_matches(" (deleted)").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_program_is_found_with_what_its_address_can_serve() {
        let me = std::process::id();
        let found = Running::find("pid", &format!("{me}@tcp://127.0.0.1:514")).unwrap();
        assert!(found.is_alive() && found.program().exists());
        assert!(transports(&found.address).contains(&"syslog_tcp"));
        let gone = Running {
            started_ticks: found.started_ticks + 1,
            ..found
        };
        assert!(!gone.is_alive(), "the number belongs to another process now");
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.procs"), format!("{me}\n")).unwrap();
        let group = format!("{}@udp://127.0.0.1:8125", folder.path().display());
        assert_eq!(Running::find("cgroup", &group).unwrap().pid, me as i32);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |kind: &str, rest: &str| Running::find(kind, rest).unwrap_err().0;
        assert!(error("pid", "4711").contains("pid:4711@ADDRESS"));
        assert!(error("pid", "x@udp://127.0.0.1:1").contains("not the number of a process"));
        assert!(error("pid", "999999999@udp://127.0.0.1:1").contains("no such process"));
        assert!(error("pid", "1@8125").contains("unixgram://"));
        assert!(error("cgroup", "nowhere/at/all@udp://127.0.0.1:1").contains("/proc/PID/cgroup"));
    }
}
