//! The state directory of the system: its lock, and who may write in it. Its files decide what is delivered and counted, so only this user
//! and root may.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use ring::rand::{SecureRandom as _, SystemRandom};
use weir_agent::state::{PASSING, StateDir, StoredAgent, is_of_weir};
use weir_state::AgentId;
use weir_system::disk::{Disk, SystemDisk, private};
use weir_system::failure::Failure;

const LOCK: &str = "lock";

/// It is private, as its files are.
const DIRECTORY_MODE: u32 = 0o700;

/// Distinguishes a machine from another one with a copy of its disk, if the file exists.
const MACHINE_ID: &str = "/etc/machine-id";

const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Creates the directory if missing, and locks it for this process. `None` if another process has locked it.
pub fn open(path: &Path) -> Result<Option<StateDir>, Failure> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::runtime(format!("state_path: {}: {what}: {error}", path.display()))
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path)
        .map_err(|error| failed("the directory cannot be made", &error))?;
    let warning = check(path).map_err(|refusal| failed("it is not used", &refusal))?;
    let lock = private()
        .create(true)
        .open(path.join(LOCK))
        .map_err(|error| failed("its files cannot be written", &error))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(failed("it cannot be locked", &error)),
    }
    // A process that waits for the lock comes here often.
    if let Some(warning) = warning {
        tracing::warn!("state_path: {}: {warning}", path.display());
    }
    let agent = next_agent(path)?;
    Ok(Some(taken_over(path, agent, lock.into())))
}

/// The error for a directory that another process has locked.
pub fn in_use(path: &Path) -> Failure {
    let path = path.display();
    Failure::runtime(format!(
        "state_path: {path}: another weir uses it; each needs its own directory, and --take-over replaces the running one"
    ))
}

/// The agent of the directory at its next start.
pub fn next_agent(path: &Path) -> Result<StoredAgent, Failure> {
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk::of(path));
    let now = UNIX_EPOCH.elapsed().map_or(0, |now| now.as_secs());
    let machine = std::fs::read(MACHINE_ID).ok();
    StoredAgent::of(&disk, now, machine.as_deref(), random).map_err(|error| {
        let path = path.display();
        Failure::runtime(format!(
            "state_path: {path}: its files cannot be written: {error}"
        ))
    })
}

/// Continues in the directory of a process that has handed over its lock.
pub fn taken_over(path: &Path, agent: StoredAgent, lock: OwnedFd) -> StateDir {
    StateDir::new(path, Arc::new(SystemDisk::of(path)), agent, Some(lock))
}

/// The file that was begun with [`StateDir::transfer`], once it is complete.
pub fn transferred(directory: &StateDir) -> io::Result<OwnedFd> {
    File::open(directory.path().join(PASSING)).map(OwnedFd::from)
}

/// A unique id.
pub fn random() -> io::Result<AgentId> {
    let mut id = [0; 16];
    SystemRandom::new()
        .fill(&mut id)
        .map_err(|_| io::Error::other("the system provides no random numbers"))?;
    Ok(AgentId(id))
}

#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error(
        "users other than this one (user {user}) and root may replace its files (mode {mode:04o}, owner {owner}): `chmod go-w` it, or \
         choose another directory"
    )]
    OthersMayWrite { mode: u32, owner: u32, user: u32 },
    #[error(
        "{} belongs to user {owner}, and this process is of user {user}: give it to that user, or remove it",
        path.display()
    )]
    FileOfAnother { path: PathBuf, owner: u32, user: u32 },
    #[error(transparent)]
    Unreadable(#[from] io::Error),
}

/// Refuses what the directory of a socket is refused for: as root, a directory in which others may replace files, which would give them
/// rights of root. A process of another user gets a warning. Files of a third user are refused to every process.
pub fn check(directory: &Path) -> Result<Option<AccessError>, AccessError> {
    let user = rustix::process::geteuid().as_raw();
    let is_trusted = |owner: u32| owner == 0 || owner == user;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if !is_of_weir(&name.to_string_lossy()) {
            continue;
        }
        // Not of what a link leads to.
        let owner = match entry.metadata() {
            Ok(found) => found.uid(),
            // A file of the running process, which replaces its files all the time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        if !is_trusted(owner) {
            let path = entry.path();
            return Err(AccessError::FileOfAnother { path, owner, user });
        }
    }
    let found = std::fs::metadata(directory)?;
    let (mode, owner) = (found.mode() & 0o7777, found.uid());
    let is_safe = is_trusted(owner) && mode & WRITABLE_BY_OTHERS == 0;
    if is_safe {
        return Ok(None);
    }
    let refusal = AccessError::OthersMayWrite { mode, owner, user };
    let keeps_others_out = mode & STICKY != 0 && is_trusted(owner);
    match user == 0 && !keeps_others_out {
        true => Err(refusal),
        false => Ok(Some(refusal)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;

    /// A process of root took whatever another user had put there.
    #[test]
    fn a_directory_in_which_others_may_write_is_refused_like_that_of_a_socket() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: not root");
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("state");
        std::fs::create_dir(&directory).unwrap();
        let set_mode =
            |mode| std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).unwrap();
        let refused = || check(&directory).unwrap_err().to_string();
        for mode in [0o777, 0o775, 0o702] {
            set_mode(mode);
            let said = refused();
            assert!(
                said.contains(&format!("mode {mode:04o}")) && said.contains("chmod go-w"),
                "{said}"
            );
        }
        // Nobody can replace files of others in such a directory.
        set_mode(0o1777);
        let warning = check(&directory).unwrap().unwrap().to_string();
        assert!(warning.contains("users other than this one"), "{warning}");
        set_mode(0o755);
        assert!(check(&directory).unwrap().is_none());
        for name in ["agent", "state", "tally-7", "open-0", "numbers-7", "books"] {
            let file = directory.join(name);
            std::fs::write(&file, "").unwrap();
            chown(&file, Some(65534), None).unwrap();
            let said = refused();
            assert!(said.contains(&format!("{name} belongs to user 65534")), "{said}");
            std::fs::remove_file(&file).unwrap();
        }
        // Of others, but not of weir.
        std::fs::write(directory.join("notes"), "").unwrap();
        chown(directory.join("notes"), Some(65534), None).unwrap();
        assert!(check(&directory).unwrap().is_none());
        chown(&directory, Some(65534), None).unwrap();
        assert!(refused().contains("owner 65534"));
    }
}
