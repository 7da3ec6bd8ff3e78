//! Small text files that are replaced as a whole. The first line has a checksum of the others.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::Error;
use crate::frames::sync_directory;

/// The words before the checksum.
const CHECKSUM: &str = "checksum ";

/// The text without its checksum. `None`: there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<String>, Error> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path)(error)),
    };
    let text = String::from_utf8(bytes).ok();
    let text = text.as_deref().and_then(|text| text.split_once('\n'));
    match text {
        Some((line, text)) if line == first_line(text) => Ok(Some(text.to_owned())),
        _ => Err(damaged(path, "its checksum does not match")),
    }
}

/// Replaces the file atomically.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    let new = path.with_extension("new");
    let bytes = format!("{}\n{text}", first_line(text));
    File::create(&new)
        .and_then(|mut file| {
            file.write_all(bytes.as_bytes())?;
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

fn first_line(text: &str) -> String {
    format!("{CHECKSUM}{:08x}", crc32fast::hash(text.as_bytes()))
}
