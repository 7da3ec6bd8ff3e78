//! Checks that only this user and root can write in the state directory: its files decide what is delivered and counted.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Files of weir, by the beginnings of their names.
const NAMES: [&str; 10] = [
    "agent",
    "books",
    "hand-over",
    "lock",
    "numbers-",
    "open-",
    "passing",
    "state",
    "sums",
    "tally",
];

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

/// Whether weir has files with this name, so that it would trust one.
pub fn is_of_weir(name: &str) -> bool {
    NAMES.iter().any(|known| name.starts_with(known))
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
