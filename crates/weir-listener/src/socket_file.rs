//! Socket files: which may be replaced, how they are created, and that only ours is removed.

use std::fs;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::bind::{BindErrorKind, other};
use crate::sys;

/// Identity of a file, regardless of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(found: &fs::Metadata) -> Self {
        FileId {
            device: found.dev(),
            inode: found.ino(),
        }
    }

    /// The file at a path now, without following a link; `None` if there is none or it is inaccessible.
    pub fn at(path: &Path) -> Option<Self> {
        fs::symlink_metadata(path).ok().as_ref().map(FileId::of)
    }
}

/// The file of a socket. Removed when dropped, unless another one has replaced it, or another process keeps the socket.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    id: FileId,
    kept: bool,
}

impl SocketFile {
    /// The file of a kept socket; `None` if it was removed.
    pub fn kept(path: &Path) -> Option<SocketFile> {
        let found = fs::symlink_metadata(path).ok()?;
        found.file_type().is_socket().then(|| SocketFile {
            path: path.to_owned(),
            id: FileId::of(&found),
            kept: true,
        })
    }

    pub fn keep(&mut self) {
        self.kept = true;
    }

    pub fn own(&mut self) {
        self.kept = false;
    }

    pub fn id(&self) -> FileId {
        self.id
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.kept && FileId::at(&self.path) == Some(self.id) {
            // A file that cannot be removed is replaced at the next start, because no one listens on it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket file on which no one listens any more. Anything else that is in the way is an error and is left
/// as it is.
pub fn remove_stale(path: &Path, kind: libc::c_int) -> Result<(), BindErrorKind> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(file_error("stat", path, error)),
            };
        }
    };
    if !found.is_socket() {
        let found = match () {
            () if found.is_symlink() => "a symbolic link",
            () if found.is_dir() => "a directory",
            () if found.is_fifo() => "a named pipe",
            () if found.is_file() => "a regular file",
            () => "a device",
        };
        return Err(BindErrorKind::NotASocket { found });
    }
    if someone_listens(path, kind)? {
        return Err(BindErrorKind::SocketInUse);
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error("remove", path, error)),
        _ => Ok(()),
    }
}

const STICKY: u32 = 0o1000;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Checks that the socket's directory is one, and warns if users other than root and this one may write there:
/// they can replace the socket and receive its packets. With `make_sticky` a directory of root's gets
/// the sticky bit that keeps them from it.
///
/// # Errors
///
/// [`BindErrorKind::OthersMayWrite`] when that would give them rights of root, and nothing keeps them from replacing files of
/// others.
pub fn check_directory(path: &Path, make_sticky: bool) -> Result<Option<String>, BindErrorKind> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    // A path without a slash is in the directory that the process runs in.
    let directory = if directory.as_os_str().is_empty() {
        Path::new(".")
    } else {
        directory
    };
    let found = fs::metadata(directory).map_err(|error| file_error("stat", path, error))?;
    if !found.is_dir() {
        return Err(BindErrorKind::NotADirectory(directory.to_owned()));
    }
    let (mut mode, owner, user) = (found.mode() & 0o7777, found.uid(), sys::effective_user());
    if mode & WRITABLE_BY_OTHERS == 0 && [0, user].contains(&owner) {
        return Ok(None);
    }
    if (user, owner) == (0, 0) && mode & STICKY == 0 && make_sticky {
        mode = set_sticky(directory).map_err(|error| file_error("chmod +t", path, error))?;
    }
    if user == 0 && mode & STICKY == 0 {
        let directory = directory.to_owned();
        return Err(BindErrorKind::OthersMayWrite {
            directory,
            mode,
            owner,
        });
    }
    let what = if mode & STICKY == 0 {
        "replace the socket and receive what is sent to it"
    } else {
        "take the path while weir does not run"
    };
    Ok(Some(format!(
        "other users may write in {} (mode {mode:04o}, owner {owner}): they can {what}; `chmod go-w` it, or choose another \
         directory",
        directory.display()
    )))
}

/// Sets the bit by descriptor and returns the mode bits. A directory that is not root's any more stays as it is.
fn set_sticky(directory: &Path) -> io::Result<u32> {
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECTORY)
        .open(directory)?;
    let found = opened.metadata()?;
    let mode = found.mode() & 0o7777;
    if found.uid() != 0 {
        return Ok(mode);
    }
    opened.set_permissions(fs::Permissions::from_mode(mode | STICKY))?;
    Ok(mode | STICKY)
}

/// Only a refused connection proves that no process has the socket open. Any other error proves nothing.
fn someone_listens(path: &Path, kind: libc::c_int) -> Result<bool, BindErrorKind> {
    let probe = sys::socket(libc::AF_UNIX, kind).map_err(BindErrorKind::Exhausted)?;
    match sys::connect_unix(probe.as_fd(), path) {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::ECONNREFUSED | libc::ENOENT) => Ok(false),
            // Open, but of the other kind; or open, with a full queue.
            Some(libc::EPROTOTYPE | libc::EAGAIN) => Ok(true),
            _ => Err(file_error("connect", path, error)),
        },
    }
}

/// Binds, which creates the file, and gives it its owner, group and mode. At no moment has it more permissions than
/// `mode`.
///
/// Only `bind` is done by path: a user who may write in the directory can put a symbolic link there between two calls,
/// and then a file of another user would change its owner and mode.
pub fn create(
    fd: BorrowedFd<'_>,
    path: &Path,
    mode: u32,
    owner: Option<u32>,
    group: Option<u32>,
) -> Result<SocketFile, BindErrorKind> {
    let mode = mode & 0o777;
    sys::preset_mode(fd, mode).map_err(other("fchmod"))?;
    sys::bind_unix(fd, path).map_err(|error| match error.raw_os_error() {
        // Someone was faster between the check and now.
        Some(libc::EADDRINUSE) => BindErrorKind::SocketInUse,
        _ => file_error("bind", path, error),
    })?;
    let (opened, found) = open_created(path)?;
    // From here on the file is removed again if anything fails.
    let file = SocketFile {
        path: path.to_owned(),
        id: FileId::of(&found),
        kept: false,
    };
    if owner.is_some() || group.is_some() {
        sys::change_owner(opened.as_fd(), owner, group).map_err(|error| file_error("chown", path, error))?;
    }
    let found = opened
        .metadata()
        .map_err(|error| file_error("stat", path, error))?;
    if found.mode() & 0o7777 != mode {
        // The process mask took bits away, or the change of owner did.
        let opened = format!("/proc/self/fd/{}", opened.as_raw_fd());
        fs::set_permissions(opened, fs::Permissions::from_mode(mode))
            .map_err(|error| file_error("chmod", path, error))?;
    }
    Ok(file)
}

/// Opens what `bind` has made without following a link. The path may lead to something else already.
fn open_created(path: &Path) -> Result<(File, fs::Metadata), BindErrorKind> {
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
        .open(path)
        .map_err(|error| file_error("open", path, error))?;
    let found = opened
        .metadata()
        .map_err(|error| file_error("stat", path, error))?;
    if found.file_type().is_socket() && found.uid() == sys::effective_user() && found.nlink() == 1 {
        Ok((opened, found))
    } else {
        Err(BindErrorKind::Replaced)
    }
}

fn file_error(operation: &'static str, path: &Path, error: io::Error) -> BindErrorKind {
    let directory = || path.parent().unwrap_or(Path::new("/")).to_owned();
    match error.raw_os_error() {
        Some(libc::ENOENT) => BindErrorKind::MissingDirectory(directory()),
        Some(libc::ENOTDIR) => BindErrorKind::NotADirectory(directory()),
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => BindErrorKind::PermissionDenied { operation },
        _ => BindErrorKind::Other { operation, error },
    }
}
