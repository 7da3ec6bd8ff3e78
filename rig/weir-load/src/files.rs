//! Load for programs that watch files: log files that grow and rotate, and a directory tree with renamed files.

use crate::rng::Rng;
use crate::source::Load;
use crate::truth::digest_packet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Least time after the end in which due bytes are still written.
const CATCH_UP: Duration = Duration::from_secs(10);

/// Growing log files.
#[derive(Clone, Debug)]
pub struct LogFiles {
    pub folder: PathBuf,
    pub files: u32,
    /// Bytes per second and file. Everything due is written, so that two runs write the same. `None`: as fast as the disk until the end of
    /// the time.
    pub rate: Option<f64>,
    pub rotate_at: u64,
    /// Rotated files to keep: `NAME.1` is the youngest.
    pub keep: u32,
    pub duration: Duration,
    /// Stop after this many bytes per file.
    pub bytes: Option<u64>,
}

/// Result of writing.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenFiles {
    pub files: u32,
    pub began: SystemTime,
    /// Bytes that were due; `None` without a rate.
    pub scheduled: Option<u64>,
    /// Digest of all lines, file by file.
    pub digest: u64,
    pub bytes: u64,
    pub lines: u64,
    pub rotations: u64,
    pub elapsed: Duration,
}

struct Grown {
    path: PathBuf,
    file: File,
    size: u64,
    total: u64,
    digest: u64,
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn rotated(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// Renames `NAME` to `NAME.1`, `NAME.1` to `NAME.2` and so on, and deletes the oldest.
fn rotate(path: &Path, keep: u32) -> io::Result<()> {
    if keep == 0 {
        return fs::remove_file(path);
    }
    for number in (1..keep).rev() {
        let from = rotated(path, number);
        if from.exists() {
            fs::rename(from, rotated(path, number + 1))?;
        }
    }
    fs::rename(path, rotated(path, 1))
}

/// Writes the lines of a load to files until the time is over.
pub fn write_logs(load: &Load, plan: &LogFiles) -> io::Result<WrittenFiles> {
    fs::create_dir_all(&plan.folder)?;
    let mut grown = Vec::new();
    let mut sources = Vec::new();
    for index in 0..plan.files {
        let path = plan.folder.join(format!("load-{index}.log"));
        let file = open(&path)?;
        let size = file.metadata()?.len();
        grown.push(Grown {
            path,
            file,
            size,
            total: 0,
            digest: 0,
        });
        sources.push(load.composed(index));
    }
    let room = sources.iter().map(|s| s.room()).max().unwrap_or(0) + 1;
    let mut buffer = vec![0u8; room];
    let due_in_all = plan.rate.map(|rate| (rate * plan.duration.as_secs_f64()) as u64);
    let most = due_in_all.into_iter().chain(plan.bytes).min();
    // Limits the time on a disk that cannot keep up. A pause of the machine is made up for, in a short run too.
    let end = match due_in_all {
        Some(_) => plan.duration + plan.duration.max(CATCH_UP),
        None => plan.duration,
    };
    let mut written = WrittenFiles {
        files: plan.files,
        began: SystemTime::now(),
        scheduled: due_in_all.map(|bytes| bytes * u64::from(plan.files)),
        digest: 0,
        bytes: 0,
        lines: 0,
        rotations: 0,
        elapsed: Duration::ZERO,
    };
    let start = Instant::now();
    loop {
        let now = start.elapsed();
        if now >= end {
            break;
        }
        let mut idle = true;
        for (grown, source) in grown.iter_mut().zip(&mut sources) {
            let due = match plan.rate {
                Some(rate) => (now.as_secs_f64() * rate) as u64,
                None => u64::MAX,
            };
            if grown.total >= due.min(most.unwrap_or(u64::MAX)) {
                continue;
            }
            idle = false;
            let packet = source.packet(&mut buffer);
            buffer[packet.len] = b'\n';
            let bytes = packet.len as u64 + 1;
            if grown.size > 0 && grown.size + bytes > plan.rotate_at {
                rotate(&grown.path, plan.keep)?;
                grown.file = open(&grown.path)?;
                grown.size = 0;
                written.rotations += 1;
            }
            grown.file.write_all(&buffer[..packet.len + 1])?;
            grown.size += bytes;
            grown.total += bytes;
            grown.digest = digest_packet(grown.digest, &buffer[..packet.len + 1]);
            written.bytes += bytes;
            written.lines += u64::from(packet.messages);
        }
        if idle {
            if most.is_some_and(|most| grown.iter().all(|g| g.total >= most)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    written.elapsed = start.elapsed();
    written.digest = grown
        .iter()
        .fold(0, |all, g| digest_packet(all, &g.digest.to_le_bytes()));
    Ok(written)
}

/// A tree of directories and files.
#[derive(Clone, Debug)]
pub struct Tree {
    pub folder: PathBuf,
    pub depth: u32,
    /// Directories per directory.
    pub width: u32,
    /// Files per directory.
    pub files: u32,
    pub file_bytes: u64,
    pub renames_per_second: f64,
    pub duration: Duration,
    pub seed: u64,
}

/// Result of changing the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeResult {
    pub folders: u64,
    pub files: u64,
    pub renames: u64,
    /// Time of the first rename, with the complete tree.
    pub began: SystemTime,
    pub elapsed: Duration,
    /// Digest of the renamed paths, in order.
    pub digest: u64,
}

fn plant(
    tree: &Tree,
    folder: &Path,
    depth: u32,
    grew: &mut TreeResult,
    files: &mut Vec<PathBuf>,
) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    grew.folders += 1;
    let content = vec![b'.'; tree.file_bytes as usize];
    for number in 0..tree.files {
        let path = folder.join(format!("file-{number}"));
        fs::write(&path, &content)?;
        files.push(path);
        grew.files += 1;
    }
    if depth > 1 {
        for number in 0..tree.width {
            plant(
                tree,
                &folder.join(format!("folder-{number}")),
                depth - 1,
                grew,
                files,
            )?;
        }
    }
    Ok(())
}

/// Makes the tree, then renames random files at the rate, as many as are due in the time.
pub fn grow_tree(tree: &Tree) -> io::Result<TreeResult> {
    let mut grew = TreeResult {
        folders: 0,
        files: 0,
        renames: 0,
        began: SystemTime::UNIX_EPOCH,
        elapsed: Duration::ZERO,
        digest: 0,
    };
    let mut files = Vec::new();
    plant(tree, &tree.folder, tree.depth, &mut grew, &mut files)?;
    let mut rng = Rng::new(tree.seed, "tree", 0);
    grew.began = SystemTime::now();
    let start = Instant::now();
    let all = if files.is_empty() {
        0
    } else {
        (tree.renames_per_second * tree.duration.as_secs_f64()) as u64
    };
    while grew.renames < all {
        let due = Duration::from_secs_f64(grew.renames as f64 / tree.renames_per_second);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
        let index = rng.below(files.len() as u64) as usize;
        let to = files[index].with_file_name(format!("renamed-{}", grew.renames));
        fs::rename(&files[index], &to)?;
        files[index] = to;
        grew.digest = digest_packet(grew.digest, &(index as u64).to_le_bytes());
        grew.renames += 1;
    }
    std::thread::sleep(tree.duration.saturating_sub(start.elapsed()));
    grew.elapsed = start.elapsed();
    Ok(grew)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles;

    #[test]
    fn log_files_rotate_at_their_size_and_keep_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let profile = profiles::named("json-logs").unwrap();
        let load = Load::prepare("json-logs", &profile, profile.transport, 1).unwrap();
        let plan = LogFiles {
            folder: folder.path().join("logs"),
            files: 2,
            rate: None,
            rotate_at: 50_000,
            keep: 2,
            duration: Duration::from_secs(30),
            bytes: Some(300_000),
        };
        let written = write_logs(&load, &plan).unwrap();
        assert!(written.bytes >= 600_000 && written.rotations >= 10, "{written:?}");
        let mut names: Vec<String> = fs::read_dir(&plan.folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "load-0.log",
                "load-0.log.1",
                "load-0.log.2",
                "load-1.log",
                "load-1.log.1",
                "load-1.log.2"
            ]
        );
        for name in names {
            let text = fs::read_to_string(plan.folder.join(&name)).unwrap();
            assert!(text.len() <= 50_000 && text.ends_with('\n'), "{name}");
            for line in text.lines() {
                serde_json::from_str::<serde_json::Value>(line).unwrap();
            }
        }
    }

    #[test]
    fn two_runs_at_a_rate_write_the_same() {
        let profile = profiles::named("apache-logs").unwrap();
        let load = Load::prepare("apache-logs", &profile, profile.transport, 1).unwrap();
        let write = || {
            let folder = tempfile::tempdir().unwrap();
            let plan = LogFiles {
                folder: folder.path().to_owned(),
                files: 2,
                rate: Some(500_000.0),
                rotate_at: 40_000,
                keep: 100,
                duration: Duration::from_millis(200),
                bytes: None,
            };
            let written = write_logs(&load, &plan).unwrap();
            let on_disk: u64 = fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| entry.unwrap().metadata().unwrap().len())
                .sum();
            assert_eq!(written.bytes, on_disk);
            assert_eq!(written.scheduled, Some(200_000));
            assert!((200_000..210_000).contains(&written.bytes), "{written:?}");
            (written.bytes, written.lines, written.digest)
        };
        assert_eq!(write(), write());
    }

    #[test]
    fn a_tree_has_its_files_and_they_are_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let grew = grow_tree(&Tree {
            folder: folder.path().join("tree"),
            depth: 3,
            width: 2,
            files: 4,
            file_bytes: 10,
            renames_per_second: 1000.0,
            duration: Duration::from_millis(200),
            seed: 1,
        })
        .unwrap();
        assert_eq!((grew.folders, grew.files), (7, 28));
        assert_eq!(grew.renames, 200);
    }
}
