//! Secrets in files, and the permissions of configuration files.

use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use weir_config::SecretError;

/// Maximum size of a secret file.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// A file and its stamp when it was read. Another stamp means another content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretFile {
    pub path: PathBuf,
    pub stamp: Stamp,
}

/// `None`: the file was missing.
pub type Stamp = Option<(u64, u64, u64, i64, i64, i64, i64)>;

/// The current stamp of a file. Follows links, because Kubernetes changes secrets by replacing a link.
pub fn stamp(path: &Path) -> Stamp {
    std::fs::metadata(path).ok().map(|found| stamp_of(&found))
}

fn stamp_of(found: &Metadata) -> (u64, u64, u64, i64, i64, i64, i64) {
    let times = (
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    );
    (
        found.dev(),
        found.ino(),
        found.len(),
        times.0,
        times.1,
        times.2,
        times.3,
    )
}

pub type Stamped = (String, (u64, u64, u64, i64, i64, i64, i64));

/// Reads one key or token, and the stamp of its file.
pub fn read_secret(path: &Path) -> Result<Stamped, SecretError> {
    let unreadable = |error| SecretError::Unreadable {
        path: path.to_owned(),
        error,
    };
    let wrong = |wrong| SecretError::Wrong {
        path: path.to_owned(),
        wrong,
    };
    // Opening a pipe would block, so check first.
    let found = std::fs::metadata(path).map_err(unreadable)?;
    if !found.is_file() || found.len() > SECRET_BYTES_MAX {
        return Err(wrong("is not a file of at most 64 KiB"));
    }
    let file = File::open(path).map_err(unreadable)?;
    // Taken before the content, so that a concurrent write shows as another stamp.
    let stamp = stamp_of(&file.metadata().map_err(unreadable)?);
    let mut bytes = Vec::new();
    let read = file.take(SECRET_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("is not UTF-8 text"))?;
    let secret = text.trim();
    if secret.is_empty() {
        return Err(wrong("is empty; it must hold a key or token"));
    }
    if secret.contains(char::is_control) {
        return Err(wrong(
            "has more than one line, or a control character; it must hold one key or token",
        ));
    }
    Ok((secret.to_owned(), stamp))
}

/// Excessive permissions of a file, one sentence each.
pub fn permissions(path: &Path, is_secret: bool) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(file) = std::fs::metadata(path) else {
        return found;
    };
    let shown = path.display();
    let mode = file.mode();
    if mode & 0o002 != 0 {
        found.push(format!("{shown} can be written by everybody; chmod o-w"));
    } else if mode & 0o020 != 0 {
        found.push(format!("{shown} can be written by its group; chmod g-w"));
    }
    if is_secret && mode & 0o004 != 0 {
        found.push(format!(
            "{shown} holds a secret and can be read by everybody; chmod o-r"
        ));
    }
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return found,
    };
    // Without the sticky bit, a user who may write to a directory can replace files in it.
    if let Ok(directory) = std::fs::metadata(parent)
        && directory.mode() & 0o1002 == 0o002
    {
        found.push(format!(
            "{shown} can be replaced by everybody: its directory can be written; chmod o-w"
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secrets_are_one_line_of_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let read = |path: &Path| read_secret(path).map(|(secret, _)| secret);
        assert_eq!(read(&path("one", b" first\n")).unwrap(), "first");
        for (name, content, why) in [
            ("empty", &b"\n"[..], "is empty"),
            ("lines", b"secret-a\nsecret-b\n", "more than one line"),
            ("bytes", b"secret\xff", "not UTF-8 text"),
        ] {
            let error = read(&path(name, content)).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
        let error = read(directory.path()).unwrap_err().to_string();
        assert!(error.contains("is not a file"), "{error}");
        assert!(read(&directory.path().join("none")).is_err());
    }

    #[test]
    fn rights_of_other_users_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        std::fs::write(&path, "key").unwrap();
        let check = |mode: u32, is_secret: bool, expected: &[&str]| {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let found = permissions(&path, is_secret);
            assert_eq!(found.len(), expected.len(), "{mode:o}: {found:?}");
            assert!(
                found
                    .iter()
                    .zip(expected)
                    .all(|(found, part)| found.contains(part)),
                "{found:?}"
            );
        };
        check(0o600, true, &[]);
        check(0o640, true, &[]);
        check(0o644, false, &[]);
        check(0o644, true, &["read by everybody"]);
        check(0o660, true, &["written by its group"]);
        check(0o666, true, &["written by everybody", "read by everybody"]);
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
        check(0o600, true, &["replaced by everybody"]);
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        check(0o600, true, &[]);
    }
}
