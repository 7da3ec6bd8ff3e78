//! Load for whoever watches files: log files that grow and rotate, and a tree whose files are renamed.

use crate::rng::Rng;
use crate::source::Load;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Growing log files.
#[derive(Clone, Debug)]
pub struct LogFiles {
    pub folder: PathBuf,
    pub files: u32,
    /// Bytes per second and file; nothing: as fast as the disk.
    pub rate: Option<f64>,
    pub rotate_at: u64,
    /// Rotated files kept: `NAME.1` is the youngest.
    pub keep: u32,
    pub duration: Duration,
    /// Stop after this many bytes per file.
    pub bytes: Option<u64>,
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Written {
    pub files: u32,
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
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn rotated(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// Renames `NAME` to `NAME.1`, `NAME.1` to `NAME.2` and so on; the oldest goes.
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
pub fn write_logs(load: &Load, plan: &LogFiles) -> io::Result<Written> {
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
        });
        sources.push(load.composed(index));
    }
    let room = sources.iter().map(|s| s.room()).max().unwrap_or(0) + 1;
    let mut buffer = vec![0u8; room];
    let mut written = Written {
        files: plan.files,
        ..Written::default()
    };
    let start = Instant::now();
    loop {
        let now = start.elapsed();
        if now >= plan.duration {
            break;
        }
        let mut idle = true;
        for (grown, source) in grown.iter_mut().zip(&mut sources) {
            let due = match plan.rate {
                Some(rate) => (now.as_secs_f64() * rate) as u64,
                None => u64::MAX,
            };
            if grown.total >= due.min(plan.bytes.unwrap_or(u64::MAX)) {
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
            written.bytes += bytes;
            written.lines += u64::from(packet.messages);
        }
        if idle {
            if plan
                .bytes
                .is_some_and(|most| grown.iter().all(|g| g.total >= most))
            {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    written.elapsed = start.elapsed();
    Ok(written)
}

/// A tree of folders and files.
#[derive(Clone, Debug)]
pub struct Tree {
    pub folder: PathBuf,
    pub depth: u32,
    /// Folders per folder.
    pub width: u32,
    /// Files per folder.
    pub files: u32,
    pub file_bytes: u64,
    pub renames_per_second: f64,
    pub duration: Duration,
    pub seed: u64,
}

/// What was done to the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grew {
    pub folders: u64,
    pub files: u64,
    pub renames: u64,
}

fn plant(
    tree: &Tree,
    folder: &Path,
    depth: u32,
    grew: &mut Grew,
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

/// Makes the tree, then renames random files at the rate until the time is over.
pub fn grow_tree(tree: &Tree) -> io::Result<Grew> {
    let mut grew = Grew::default();
    let mut files = Vec::new();
    plant(tree, &tree.folder, tree.depth, &mut grew, &mut files)?;
    let mut rng = Rng::new(tree.seed, "tree", 0);
    let start = Instant::now();
    while start.elapsed() < tree.duration && !files.is_empty() {
        let due = Duration::from_secs_f64(grew.renames as f64 / tree.renames_per_second.max(1e-9));
        let now = start.elapsed();
        if due > now {
            std::thread::sleep((due - now).min(tree.duration.saturating_sub(now)));
            continue;
        }
        let index = rng.below(files.len() as u64) as usize;
        let to = files[index].with_file_name(format!("renamed-{}", grew.renames));
        fs::rename(&files[index], &to)?;
        files[index] = to;
        grew.renames += 1;
    }
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
        assert!(grew.renames > 10, "{grew:?}");
    }
}
