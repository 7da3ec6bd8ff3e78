//! Numbered frames in the files of a directory. Each file is named by the number of its first frame.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::Error;

/// Maximum size of a frame: a commit of many large buckets.
pub(crate) const FRAME_BYTES_MAX: usize = 256 << 20;

/// Length and checksum.
const HEAD_BYTES: u64 = 8;

const ENDING: &str = "log";

/// A frame with its number.
pub(crate) type Numbered = (u64, Vec<u8>);

/// The frames of one directory. Several processes may read. During [`Frames::append`] no other process may append.
#[derive(Debug)]
pub(crate) struct Frames {
    directory: PathBuf,
    file_bytes_max: u64,
    /// End of the last read, and end of the last frame: the next call often continues there.
    reading: Option<FramePosition>,
    ending: Option<FramePosition>,
    /// Invalid bytes that were moved to files of their own.
    pub torn_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FramePosition {
    /// Number of the file's first frame.
    file: u64,
    /// Number and position of the next frame.
    next: u64,
    at: u64,
}

/// Contents at a position of a file.
enum FrameRead {
    Frame(Vec<u8>),
    /// The file ends here, or in the middle of an incomplete frame.
    End,
    /// Invalid bytes.
    Broken(&'static str),
}

impl Frames {
    pub fn open(directory: PathBuf, file_bytes_max: u64) -> Result<Self, Error> {
        std::fs::create_dir_all(&directory).map_err(Error::io(&directory))?;
        Ok(Frames {
            directory,
            file_bytes_max,
            reading: None,
            ending: None,
            torn_bytes: 0,
        })
    }

    fn path(&self, file: u64) -> PathBuf {
        self.directory.join(format!("{file:020}.{ENDING}"))
    }

    /// The numbers of the files, ascending.
    fn files(&self) -> Result<Vec<u64>, Error> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(Error::io(&self.directory))? {
            let path = entry.map_err(Error::io(&self.directory))?.path();
            let is_ours = path.extension().is_some_and(|ending| ending == ENDING);
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let number: Option<u64> = stem.and_then(|stem| stem.parse().ok());
            files.extend(number.filter(|_| is_ours));
        }
        files.sort_unstable();
        Ok(files)
    }

    /// The number of the oldest frame.
    pub fn start(&self) -> Result<u64, Error> {
        Ok(self.files()?.first().copied().unwrap_or_default())
    }

    /// Reads numbered frames from a number on: about `bytes_max` bytes, and at least one frame if one exists. Also returns the number to
    /// continue with: the one after the last frame read, or that of the oldest frame if it is later.
    pub fn read(&mut self, from: u64, bytes_max: usize) -> Result<(Vec<Numbered>, u64), Error> {
        let files = self.files()?;
        let from = from.max(files.first().copied().unwrap_or_default());
        let (mut frames, mut bytes, mut next) = (Vec::new(), 0, from);
        for (at, &file) in files.iter().enumerate() {
            let following = files.get(at + 1).copied();
            if following.is_some_and(|following| following <= next) {
                continue;
            }
            let mut place = place_in(self.reading, file, next);
            let (path, mut open) = self.open_file(file)?;
            loop {
                match read_frame(&mut open, place.at).map_err(Error::io(&path))? {
                    FrameRead::Frame(frame) => {
                        place.at += HEAD_BYTES + frame.len() as u64;
                        place.next += 1;
                        if place.next <= next {
                            continue;
                        }
                        bytes += frame.len();
                        frames.push((next, frame));
                        next = place.next;
                    }
                    // The next process that appends repairs the end of the last file.
                    FrameRead::End | FrameRead::Broken(_) if following.is_none() => break,
                    FrameRead::End | FrameRead::Broken(_) if following == Some(place.next) => break,
                    FrameRead::End => return Err(damaged(path, place.at, "it ends too early")),
                    FrameRead::Broken(what) => return Err(damaged(path, place.at, what)),
                }
                if bytes >= bytes_max {
                    break;
                }
            }
            self.reading = Some(place);
            if bytes >= bytes_max {
                break;
            }
        }
        Ok((frames, next))
    }

    fn open_file(&self, file: u64) -> Result<(PathBuf, File), Error> {
        let path = self.path(file);
        let open = File::open(&path).map_err(Error::io(&path))?;
        Ok((path, open))
    }

    /// The number after the last frame.
    pub fn end(&mut self) -> Result<u64, Error> {
        Ok(self.last_place()?.map_or(0, |place| place.next))
    }

    /// The end of the last file.
    fn last_place(&mut self) -> Result<Option<FramePosition>, Error> {
        let Some(&file) = self.files()?.last() else {
            return Ok(None);
        };
        let mut place = place_in(self.ending, file, u64::MAX);
        let (path, mut open) = self.open_file(file)?;
        while let FrameRead::Frame(frame) = read_frame(&mut open, place.at).map_err(Error::io(&path))? {
            place.at += HEAD_BYTES + frame.len() as u64;
            place.next += 1;
        }
        self.ending = Some(place);
        Ok(self.ending)
    }

    /// Appends a frame, syncs it to the disk, and returns its number.
    pub fn append(&mut self, frame: &[u8]) -> Result<u64, Error> {
        if frame.is_empty() || frame.len() > FRAME_BYTES_MAX {
            return Err(Error::TooLarge {
                bytes: frame.len(),
                max: FRAME_BYTES_MAX,
            });
        }
        let mut place = self.last_place()?.unwrap_or(FramePosition {
            file: 0,
            next: 0,
            at: 0,
        });
        if place.at >= self.file_bytes_max {
            place = FramePosition {
                file: place.next,
                next: place.next,
                at: 0,
            };
        }
        let path = self.path(place.file);
        let mut open = OpenOptions::new();
        let mut open = open
            .create(true)
            .append(true)
            .read(true)
            .open(&path)
            .map_err(Error::io(&path))?;
        self.repair(&path, &mut open, place.at)?;
        open.write_all(&framed(frame))
            .and_then(|()| open.sync_data())
            .map_err(Error::io(&path))?;
        let number = place.next;
        place.next += 1;
        place.at += HEAD_BYTES + frame.len() as u64;
        self.ending = Some(place);
        Ok(number)
    }

    /// Moves the bytes after the last frame to a separate file: a process died while writing them.
    fn repair(&mut self, path: &Path, open: &mut File, end: u64) -> Result<(), Error> {
        let len = open.metadata().map_err(Error::io(path))?.len();
        if len <= end {
            return Ok(());
        }
        let aside = path.with_extension(format!("torn-{end}"));
        let mut rest = Vec::new();
        open.seek(SeekFrom::Start(end))
            .and_then(|_| open.read_to_end(&mut rest))
            .and_then(|_| std::fs::write(&aside, &rest))
            .and_then(|()| open.set_len(end))
            .map_err(Error::io(path))?;
        self.torn_bytes += len - end;
        Ok(())
    }

    /// Removes files with only frames below this number. The last file stays.
    pub fn remove_before(&mut self, number: u64) -> Result<(), Error> {
        let files = self.files()?;
        for pair in files.windows(2).filter(|pair| pair[1] <= number) {
            let path = self.path(pair[0]);
            std::fs::remove_file(&path).map_err(Error::io(&path))?;
        }
        Ok(())
    }
}

/// A known position in this file at or before a number, or the beginning of the file.
fn place_in(known: Option<FramePosition>, file: u64, next: u64) -> FramePosition {
    let start = FramePosition {
        file,
        next: file,
        at: 0,
    };
    known
        .filter(|place| place.file == file && place.next <= next)
        .unwrap_or(start)
}

fn damaged(path: PathBuf, at: u64, what: &'static str) -> Error {
    Error::Damaged { path, at, what }
}

fn framed(frame: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frame.len() + HEAD_BYTES as usize);
    bytes.extend((frame.len() as u32).to_le_bytes());
    bytes.extend(crc32fast::hash(frame).to_le_bytes());
    bytes.extend(frame);
    bytes
}

fn read_frame(file: &mut File, at: u64) -> std::io::Result<FrameRead> {
    let left = file.metadata()?.len().saturating_sub(at);
    if left < HEAD_BYTES {
        return Ok(FrameRead::End);
    }
    let mut head = [0; HEAD_BYTES as usize];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut head)?;
    let [len, checksum] =
        [0, 4].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    if len == 0 || len as usize > FRAME_BYTES_MAX {
        return Ok(FrameRead::Broken("no frame has this length"));
    }
    if u64::from(len) > left - HEAD_BYTES {
        return Ok(FrameRead::End);
    }
    let mut frame = vec![0; len as usize];
    file.read_exact(&mut frame)?;
    match crc32fast::hash(&frame) == checksum {
        true => Ok(FrameRead::Frame(frame)),
        false => Ok(FrameRead::Broken("the checksum does not match")),
    }
}
