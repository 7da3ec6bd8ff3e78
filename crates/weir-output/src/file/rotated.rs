//! Rotated files: names, compression, retention.
//!
//! `metrics.jsonl` becomes `metrics.jsonl.20260131T235959Z-0000`, in UTC, and then `….gz` or `….zst`. Names sort in the order of writing
//! even if the clock was set back: a file never gets a name before that of the newest existing one.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::{Compression, FileSettings, Fsync};

/// Appended to a file that is not complete yet. Only a process that died leaves any.
const UNFINISHED: &str = ".tmp";
const STAMP_LENGTH: usize = "20260131T235959Z-0000".len();

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rotated {
    /// Time and number, the part that sorts.
    stamp: String,
    /// Behind the stamp: empty, `.gz`, `.zst`, or with `.tmp`.
    extension: String,
    path: PathBuf,
}

/// The name that the file at `path` gets now. `now` in Unix seconds.
pub fn next_name(path: &Path, now: i64) -> io::Result<PathBuf> {
    let mut stamp = format!("{}-0000", time(now));
    if let Some(newest) = list(path)?.pop()
        && newest.stamp >= stamp
    {
        let (time, number) = newest.stamp.split_at(STAMP_LENGTH - 4);
        let number = number.parse::<u32>().unwrap_or(0) + 1;
        if number > 9999 {
            let error = format!("{} has ten thousand rotated files of one second", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, error));
        }
        stamp = format!("{time}{number:04}");
    }
    Ok(with_suffix(path, &format!(".{stamp}")))
}

/// Compresses rotated files, removes unfinished ones of an earlier process, and then the oldest beyond the limit.
pub fn compress_and_prune(settings: &FileSettings) -> io::Result<()> {
    // While an output replaces another of the same path, both may get here.
    static UNDER_WORK: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let under_work = || UNDER_WORK.lock().unwrap_or_else(PoisonError::into_inner);
    if !under_work().insert(settings.path.clone()) {
        return Ok(());
    }
    let result = compress_all(settings).and(prune(settings));
    under_work().remove(&settings.path);
    result
}

fn compress_all(settings: &FileSettings) -> io::Result<()> {
    let path = Path::new(&settings.path);
    let mut result = Ok(());
    for rotated in list(path)? {
        if rotated.extension.ends_with(UNFINISHED) {
            result = result.and(remove(&rotated.path));
        } else if rotated.extension.is_empty() && settings.compression != Compression::None {
            result = result.and(compress(&rotated.path, settings));
        }
    }
    result
}

/// Removes the oldest files beyond the limit.
pub fn prune(settings: &FileSettings) -> io::Result<()> {
    let (mut files, mut bytes) = (0, 0u64);
    for rotated in list(Path::new(&settings.path))?.into_iter().rev() {
        if rotated.extension.ends_with(UNFINISHED) {
            continue;
        }
        files += 1;
        bytes += std::fs::metadata(&rotated.path).map_or(0, |metadata| metadata.len());
        let too_many = settings.kept_files_max > 0 && files > settings.kept_files_max;
        let too_large = settings.kept_bytes_max > 0 && bytes > settings.kept_bytes_max;
        if too_many || too_large {
            remove(&rotated.path)?;
        }
    }
    Ok(())
}

/// A missing file is not an error.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(named(path, error)),
        _ => Ok(()),
    }
}

/// Writes the compressed file beside the plain one and lets it take its place in one step.
fn compress(path: &Path, settings: &FileSettings) -> io::Result<()> {
    let extension = match settings.compression {
        Compression::Gzip => ".gz",
        Compression::Zstd => ".zst",
        Compression::None => return Ok(()),
    };
    let complete = with_suffix(path, extension);
    let unfinished = with_suffix(&complete, UNFINISHED);
    let written = (|| {
        let mut from = File::open(path)?;
        let to = File::create(&unfinished)?;
        let to = match settings.compression {
            Compression::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(to, flate2::Compression::default());
                copy(&mut from, &mut encoder)?;
                encoder.finish()?
            }
            _ => {
                let mut encoder = zstd::stream::write::Encoder::new(to, 0)?;
                // Lets a reader of the file verify that it is complete.
                encoder.include_checksum(true)?;
                copy(&mut from, &mut encoder)?;
                encoder.finish()?
            }
        };
        if settings.fsync != Fsync::None {
            to.sync_all()?;
        }
        std::fs::rename(&unfinished, &complete)
    })();
    match written {
        Ok(()) => remove(path),
        // Removed meanwhile, because others needed the room.
        Err(error) if error.kind() == io::ErrorKind::NotFound => remove(&unfinished),
        Err(error) => {
            let _ = remove(&unfinished);
            Err(named(&complete, error))
        }
    }
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    io::copy(from, to).map(drop)
}

/// The rotated files of `path`, oldest first.
fn list(path: &Path) -> io::Result<Vec<Rotated>> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|error| named(directory, error))? {
        let entry = entry?;
        let other = entry.file_name();
        let rest = other
            .to_str()
            .and_then(|other| other.strip_prefix(&*name)?.strip_prefix('.'));
        let Some((stamp, extension)) = rest.and_then(|rest| rest.split_at_checked(STAMP_LENGTH)) else {
            continue;
        };
        let known = ["", ".gz", ".zst", ".gz.tmp", ".zst.tmp"].contains(&extension);
        if known && is_stamp(stamp) {
            found.push(Rotated {
                stamp: stamp.to_owned(),
                extension: extension.to_owned(),
                path: entry.path(),
            });
        }
    }
    found.sort();
    Ok(found)
}

/// Files of other programs with similar names must not be touched.
fn is_stamp(text: &str) -> bool {
    let pattern = b"00000000T000000Z-0000";
    text.len() == pattern.len()
        && text.bytes().zip(pattern).all(|(byte, &wanted)| match wanted {
            b'0' => byte.is_ascii_digit(),
            _ => byte == wanted,
        })
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// `20260131T235959Z`.
fn time(unix: i64) -> String {
    let (days, seconds) = (unix.div_euclid(86_400), unix.rem_euclid(86_400));
    // Years begin in March, so that the leap day is the last; 719 468 days lie between year 0 and 1970.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (year + era * 400, month + 3),
        _ => (year + era * 400 + 1, month - 9),
    };
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (unix, text) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (1_700_000_000, "20231114T221320Z"),
            (1_735_689_599, "20241231T235959Z"),
            (1_735_689_600, "20250101T000000Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(time(unix), text);
        }
    }

    #[test]
    fn names_follow_each_other_even_when_the_clock_is_set_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.jsonl");
        let mut names = Vec::new();
        for now in [1_700_000_000, 1_700_000_000, 1_600_000_000, 1_700_000_001] {
            let next = next_name(&path, now).unwrap();
            File::create(&next).unwrap();
            names.push(next.to_str().unwrap().rsplit_once('.').unwrap().1.to_owned());
        }
        assert_eq!(
            names,
            [
                "20231114T221320Z-0000",
                "20231114T221320Z-0001",
                "20231114T221320Z-0002",
                "20231114T221321Z-0000"
            ]
        );
        // A stranger's files are left alone.
        File::create(directory.path().join("m.jsonl.old")).unwrap();
        File::create(directory.path().join("m.jsonl.20231114T221320Z-0000.txt")).unwrap();
        assert_eq!(list(&path).unwrap().len(), 4);
    }
}
