//! Files that are replaced as a whole. The first line has a checksum of the rest.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::Error;
use crate::frames::sync_directory;

/// The words before the checksum.
const CHECKSUM: &str = "checksum ";

/// The text without its checksum. `None`: there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<String>, Error> {
    let text = read_bytes(path)?.map(String::from_utf8).transpose();
    text.map_err(|_| damaged(path, "it is no text"))
}

/// The bytes without their checksum. `None`: there is no such file.
pub(crate) fn read_bytes(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let mut bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path)(error)),
    };
    let length = first_line(&[]).len();
    let parts = bytes.split_at_checked(length);
    if parts.is_none_or(|(line, rest)| line != first_line(rest).as_bytes()) {
        return Err(damaged(path, "its checksum does not match"));
    }
    Ok(Some(bytes.split_off(length)))
}

/// Replaces the file atomically.
pub(crate) fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), Error> {
    let bytes = bytes.as_ref();
    let new = path.with_extension("new");
    File::create(&new)
        .and_then(|mut file| {
            file.write_all(first_line(bytes).as_bytes())?;
            file.write_all(bytes)?;
            file.sync_data()
        })
        .and_then(|()| std::fs::rename(&new, path))
        .map_err(Error::io(path))?;
    path.parent().map_or(Ok(()), sync_directory)
}

pub(crate) fn damaged(path: &Path, what: &'static str) -> Error {
    Error::Damaged {
        path: path.to_owned(),
        what,
    }
}

fn first_line(bytes: &[u8]) -> String {
    format!("{CHECKSUM}{:08x}\n", crc32fast::hash(bytes))
}
