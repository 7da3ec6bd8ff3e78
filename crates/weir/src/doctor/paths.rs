//! Checks access to the files and directories in the configuration.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use weir_config::{PathUse, ShownValue, ValueSource};

use super::{CheckInput, Finding};
use weir_system::config::Loaded;
use weir_system::sandbox::plan::named_paths;
use weir_system::sys::{self, May};

/// Minimum free space for state and queues.
const FREE_BYTES_MIN: u64 = 64 << 20;

/// Whether the state can survive a restart.
pub fn state_directory(input: &CheckInput<'_>) -> Vec<Finding> {
    let check = "state_directory";
    let of_agent = input.status.as_ref().map(|status| status.state.path.as_deref());
    let configured = input.loaded.config.running.state_path.as_deref();
    if let (Some(None), Some(path)) = (of_agent, configured) {
        let found = format!("the running agent has none; here it is {}", path.display());
        let remedy = "restart the agent with this configuration, or name its file with --config";
        return vec![Finding::warning(check, "state_path", found).remedy(remedy)];
    }
    // The agent's own counts.
    let Some(path) = of_agent.flatten().map(Path::new).or(configured) else {
        let found = "not set: a restart splits the open bucket and restarts sums from zero";
        let remedy = "set `state_path` to a directory, such as /var/lib/weir (docs/restart.md)";
        return vec![Finding::warning(check, "state_path", found).remedy(remedy)];
    };
    vec![directory(check, path, &User::of(input))]
}

/// Every other path in a setting.
pub fn named(input: &CheckInput<'_>, file: Option<PathBuf>) -> Vec<Finding> {
    let user = User::of(input);
    let state = input.loaded.config.running.state_path.as_deref();
    let listeners = &input.loaded.config.listeners;
    let sockets: BTreeSet<&Path> = listeners
        .uds
        .iter()
        .chain(&listeners.uds_stream)
        .chain(&listeners.http_uds)
        .map(|path| &**path)
        .collect();
    let mut seen = BTreeSet::new();
    let mut named = named_paths(input.loaded);
    named.extend(file.map(|file| (file, PathUse::Read)));
    // A missing path that is a default is unused.
    let is_set = |path: &Path| path.exists() || !is_default(input.loaded, path);
    named
        .into_iter()
        .filter(|(path, _)| is_set(path))
        .filter(|(path, _)| Some(path.as_path()) != state && !sockets.contains(path.as_path()))
        .filter(|(path, _)| seen.insert(path.clone()))
        .filter_map(|(path, used)| used_path(&path, used, &user))
        .collect()
}

/// Whether a path is the default of a setting.
fn is_default(loaded: &Loaded, path: &Path) -> bool {
    let text = path.display().to_string();
    let of_path = |shown: &&ShownValue| shown.value.trim_matches(['\'', '"']) == text;
    let mut settings = loaded.shown.iter().filter(of_path).peekable();
    settings.peek().is_some() && settings.all(|shown| shown.source == ValueSource::Default)
}

fn used_path(path: &Path, used: PathUse, user: &User) -> Option<Finding> {
    let check = "file";
    match used {
        PathUse::WriteBeneath => Some(directory(check, path, user)),
        PathUse::WriteBeside => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            Some(directory(check, parent.unwrap_or(Path::new(".")), user))
        }
        PathUse::Itself | PathUse::Read => Some(judged(check, path, May::Read, user)),
        PathUse::ReadBeneath => Some(judged(check, path, May::List, user)),
        // Outputs and sources of tags test these themselves.
        PathUse::Connect => None,
    }
}

/// A directory for writing. weir creates a missing one.
fn directory(check: &'static str, path: &Path, user: &User) -> Finding {
    let there = path
        .ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or(Path::new("."));
    if there.is_file() {
        let found = format!("{} is a file and no directory", there.display());
        return Finding::error(check, path.display().to_string(), found)
            .remedy("remove it, or name another directory");
    }
    let mut finding = judged(check, there, May::Change, user);
    finding.subject = path.display().to_string();
    if finding.verdict != super::Severity::Fine {
        return finding;
    }
    if there != path {
        finding.found = format!("it does not exist yet; weir can create it in {}", there.display());
    }
    match free_bytes(there) {
        Ok(free) if free < FREE_BYTES_MIN => {
            let found = format!("only {} left on its disk", weir_units::counted(free, "bytes"));
            Finding::warning(check, finding.subject, found).remedy("make room on the disk")
        }
        _ => finding,
    }
}

fn free_bytes(path: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(path)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

fn judged(check: &'static str, path: &Path, what: May, user: &User) -> Finding {
    let subject = path.display().to_string();
    let wanted = match what {
        May::Read => "read",
        May::Write => "write",
        May::List => "list its entries",
        May::Change => "write in it",
    };
    match user.may(path, what) {
        Ok(()) => Finding::fine(check, subject, format!("{user} may {wanted}")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Finding::error(check, subject, "it does not exist")
                .remedy("make it, or correct its name in the configuration")
        }
        Err(error) => Finding::error(check, subject, format!("{user} may not {wanted}: {error}")).remedy(
            format!("give it to {user} with chown or chmod, and let {user} enter the directories above"),
        ),
    }
}

/// The user that the agent runs as, or would run as.
struct User {
    /// `None`: the user who runs the doctor.
    other: Option<(u32, Vec<u32>)>,
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.other {
            Some((uid, _)) => write!(f, "user {uid}, which the agent runs as,"),
            None => f.write_str("this user"),
        }
    }
}

impl User {
    fn of(input: &CheckInput<'_>) -> Self {
        let own = rustix::process::geteuid().as_raw();
        let running = input
            .status
            .as_ref()
            .and_then(|status| ids_of(status.process.pid));
        User {
            other: running.filter(|(uid, _)| *uid != own),
        }
    }

    fn may(&self, path: &Path, what: May) -> io::Result<()> {
        match &self.other {
            Some((uid, groups)) => may_as(path, what, *uid, groups),
            None => sys::may(path, what),
        }
    }
}

/// User and groups of a process, from `/proc`.
fn ids_of(pid: u32) -> Option<(u32, Vec<u32>)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = |name: &str| -> Option<Vec<u32>> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(
            line.split_whitespace()
                .filter_map(|number| number.parse().ok())
                .collect(),
        )
    };
    // Real, effective, saved, of the file system.
    let uid = *numbers("Uid:")?.get(1)?;
    let mut groups = numbers("Groups:")?;
    groups.extend(numbers("Gid:")?.get(1));
    Some((uid, groups))
}

/// Checks owner, group and mode of the file and of the directories above it. Ignores access control lists.
fn may_as(path: &Path, what: May, uid: u32, groups: &[u32]) -> io::Result<()> {
    if uid == 0 {
        return sys::may(path, what);
    }
    let path = path.canonicalize()?;
    let needed = match what {
        May::Read => 0o4,
        May::Write => 0o2,
        May::List => 0o5,
        May::Change => 0o7,
    };
    let above = path.ancestors().skip(1).map(|directory| (directory, 0o1));
    for (path, needed) in std::iter::once((path.as_path(), needed)).chain(above) {
        let metadata = path.metadata()?;
        let shift = match metadata.uid() == uid {
            true => 6,
            false if groups.contains(&metadata.gid()) => 3,
            false => 0,
        };
        if metadata.mode() >> shift & needed != needed {
            let why = format!(
                "{} has owner {} and mode {:03o}",
                path.display(),
                metadata.uid(),
                metadata.mode() & 0o777
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn modes_decide_the_rights_of_other_users() {
        let directory = tempfile::tempdir().unwrap();
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap()
        };
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let owner = file.metadata().unwrap().uid();
        let group = file.metadata().unwrap().gid();
        let (stranger, none) = (owner + 4711, &[][..]);
        set(directory.path(), 0o755);
        set(&file, 0o640);
        assert!(may_as(&file, May::Read, stranger, &[group]).is_ok());
        assert!(may_as(&file, May::Write, stranger, &[group]).is_err());
        let refused = may_as(&file, May::Read, stranger, none).unwrap_err();
        assert!(refused.to_string().contains("mode 640"), "{refused}");
        set(&file, 0o644);
        assert!(may_as(&file, May::Read, stranger, none).is_ok());
        set(directory.path(), 0o700);
        let refused = may_as(&file, May::Read, stranger, none).unwrap_err();
        assert!(refused.to_string().contains("mode 700"), "{refused}");
        assert_eq!(
            may_as(&directory.path().join("none"), May::Read, stranger, none)
                .unwrap_err()
                .kind(),
            io::ErrorKind::NotFound
        );
    }
}
