//! Numbered frames in the files of a directory. Each file is named by the number of its first frame.
//!
//! The bytes behind the last whole frame of the last file are *torn*: a process ended while it was writing them, and the next one that
//! appends moves them aside. Other bytes that are no frame are *damaged*: a reader skips and counts them, and continues with the next whole
//! frame. The head of a frame has a checksum that includes the frame's file and position, so nothing else is taken for a frame.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::Error;

/// Maximum size of a frame: a commit of many large buckets.
pub(crate) const FRAME_BYTES_MAX: usize = 256 << 20;

/// Length, number, checksum of the contents, checksum of the head.
const HEAD_BYTES: usize = 20;

/// Bytes that are searched at once for the next frame.
const WINDOW: usize = 64 << 10;

/// Numbers in a file are at most this far apart. Makes the search fast: few positions look like a head.
const NUMBERS_MAX: u64 = 1 << 40;

const ENDING: &str = "log";

/// The ending of a file with torn bytes, before their position.
const TORN: &str = "torn-";

/// A frame with its number.
pub(crate) type Numbered = (u64, Vec<u8>);

/// Damaged bytes of a file, and the frames that were lost with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub path: PathBuf,
    /// Position of the first damaged byte.
    pub at: u64,
    /// Number of damaged places.
    pub places: u64,
    pub bytes: u64,
    pub frames: u64,
}

/// Numbers of torn frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TornNumbers {
    /// The next frame gets the number of the torn one.
    Reused,
    /// A reader may have seen the torn frame before it was damaged, and would take the next frame for it.
    Skipped,
}

/// The frames of one directory. Several processes may read. During [`Frames::append`] no other process may append.
#[derive(Debug)]
pub(crate) struct Frames {
    directory: PathBuf,
    file_bytes_max: u64,
    torn_numbers: TornNumbers,
    /// End of the last read, and end of the last frame: the next call often continues there.
    reading: Option<FramePosition>,
    ending: Option<FramePosition>,
    /// The number of the last frame before `ending`.
    last: Option<u64>,
    damage: BTreeMap<u64, FileDamage>,
    /// A position of a file, and its length: there is no frame between.
    searched: Option<(u64, u64, u64)>,
}

/// The damage of one file, and the end of the last counted place.
#[derive(Debug)]
struct FileDamage {
    sum: Damage,
    counted: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FramePosition {
    /// Number of the file's first frame.
    file: u64,
    /// Number and position of the next frame.
    next: u64,
    at: u64,
    /// Position of the frame before.
    before: u64,
}

/// An open file up to the length that it had. What another process is appending lies behind.
struct OpenFile {
    file: File,
    number: u64,
    path: PathBuf,
    length: u64,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    at: u64,
    number: u64,
    /// Zero: the numbers before this one belong to torn frames.
    length: u32,
    checksum: u32,
}

impl Head {
    fn end(&self) -> u64 {
        self.at + HEAD_BYTES as u64 + u64::from(self.length)
    }
}

impl Frames {
    pub fn open(directory: PathBuf, file_bytes_max: u64, torn_numbers: TornNumbers) -> Result<Self, Error> {
        std::fs::create_dir_all(&directory).map_err(Error::io(&directory))?;
        Ok(Frames {
            directory,
            file_bytes_max,
            torn_numbers,
            reading: None,
            ending: None,
            last: None,
            damage: BTreeMap::new(),
            searched: None,
        })
    }

    fn path(&self, file: u64) -> PathBuf {
        self.directory.join(format!("{file:020}.{ENDING}"))
    }

    /// The numbers of the files, ascending.
    fn files(&self) -> Result<Vec<u64>, Error> {
        let mut files = Vec::new();
        for path in self.paths()? {
            let is_ours = path.extension().is_some_and(|ending| ending == ENDING);
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let number: Option<u64> = stem.and_then(|stem| stem.parse().ok());
            files.extend(number.filter(|_| is_ours));
        }
        files.sort_unstable();
        Ok(files)
    }

    fn paths(&self) -> Result<Vec<PathBuf>, Error> {
        let entries = std::fs::read_dir(&self.directory).map_err(Error::io(&self.directory))?;
        let paths = entries.map(|entry| Ok(entry.map_err(Error::io(&self.directory))?.path()));
        paths.collect()
    }

    /// The number of the oldest frame.
    pub fn start(&self) -> Result<u64, Error> {
        Ok(self.files()?.first().copied().unwrap_or_default())
    }

    /// The damage that this process has found.
    pub fn damage(&self) -> impl Iterator<Item = &Damage> {
        self.damage.values().map(|damage| &damage.sum)
    }

    /// Size of the files with torn bytes, by whichever process they were moved aside.
    pub fn torn_bytes(&self) -> Result<u64, Error> {
        let paths = self.paths()?.into_iter();
        let torn = paths.filter(|path| {
            let ending = path.extension().and_then(|ending| ending.to_str());
            ending.is_some_and(|ending| ending.starts_with(TORN))
        });
        let sizes = torn.map(|path| std::fs::metadata(&path).map_or(0, |facts| facts.len()));
        Ok(sizes.sum())
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
            let open = self.open_file(file)?;
            let mut place = open.place(self.reading, next)?;
            while bytes < bytes_max {
                let Some(frame) = self.next_frame(&open, &mut place)? else {
                    self.finish_file(&open, &mut place, following);
                    break;
                };
                if place.next > next {
                    bytes += frame.len();
                    frames.push((place.next - 1, frame));
                }
            }
            next = next.max(place.next);
            self.reading = Some(place);
            if bytes >= bytes_max {
                break;
            }
        }
        Ok((frames, next))
    }

    fn open_file(&self, number: u64) -> Result<OpenFile, Error> {
        let path = self.path(number);
        let file = File::open(&path).map_err(Error::io(&path))?;
        let length = file.metadata().map_err(Error::io(&path))?.len();
        Ok(OpenFile {
            file,
            number,
            path,
            length,
        })
    }

    /// The next whole frame. Its number is the one before `place.next`.
    fn next_frame(&mut self, open: &OpenFile, place: &mut FramePosition) -> Result<Option<Vec<u8>>, Error> {
        loop {
            let here = (open.number, place.at, open.length);
            let found = match self.searched == Some(here) {
                true => open.frame_at(place.at, place.next),
                false => open.find(place),
            };
            let Some((head, frame)) = found.map_err(Error::io(&open.path))? else {
                self.searched = Some(here);
                return Ok(None);
            };
            if head.at > place.at {
                let lost = match head.length {
                    // The numbers of torn frames: at least one frame is lost with the bytes.
                    0 => 1,
                    _ => (head.number - place.next).max(1),
                };
                self.count(open, place.at, head.at - place.at, lost);
            }
            *place = FramePosition {
                file: open.number,
                next: head.number + 1,
                at: head.end(),
                before: head.at,
            };
            if !frame.is_empty() {
                return Ok(Some(frame));
            }
        }
    }

    /// A file that another one follows ends with a whole frame, whose number is before that of the next file.
    fn finish_file(&mut self, open: &OpenFile, place: &mut FramePosition, following: Option<u64>) {
        let Some(following) = following else { return };
        let (bytes, frames) = (
            open.length.saturating_sub(place.at),
            following.saturating_sub(place.next),
        );
        if bytes > 0 || frames > 0 {
            self.count(open, place.at, bytes, frames);
            (place.at, place.next) = (open.length.max(place.at), following);
        }
    }

    /// Counts a damaged place once, however often it is read.
    fn count(&mut self, open: &OpenFile, at: u64, bytes: u64, frames: u64) {
        let of_file = self.damage.entry(open.number).or_insert_with(|| FileDamage {
            sum: Damage {
                path: open.path.clone(),
                at,
                places: 0,
                bytes: 0,
                frames: 0,
            },
            counted: 0,
        });
        if of_file.sum.places == 0 || at >= of_file.counted && at + bytes > of_file.counted {
            of_file.counted = at + bytes;
            of_file.sum.places += 1;
            of_file.sum.bytes += bytes;
            of_file.sum.frames += frames;
        }
    }

    /// Counts frames that were read before, and that the last file no longer has.
    pub fn count_cut(&mut self, frames: u64) -> Result<(), Error> {
        if let Some(place) = self.last_place()? {
            let open = self.open_file(place.file)?;
            self.count(&open, open.length, 0, frames);
        }
        Ok(())
    }

    /// The number after the last frame, and how many numbers torn frames behind it may have had.
    pub fn end(&mut self) -> Result<(u64, u64), Error> {
        let place = self.last_place()?;
        place.map_or(Ok((0, 0)), |place| Ok((place.next, self.torn(&place)?)))
    }

    /// The number of the last frame.
    pub fn last(&mut self) -> Result<Option<u64>, Error> {
        self.last_place()?;
        Ok(self.last)
    }

    /// The maximum number of frames in the bytes behind the last frame.
    fn torn(&self, end: &FramePosition) -> Result<u64, Error> {
        let open = self.open_file(end.file)?;
        let bytes = open.length.saturating_sub(end.at);
        Ok(bytes.div_ceil(HEAD_BYTES as u64 + 1))
    }

    /// The end of the last file.
    fn last_place(&mut self) -> Result<Option<FramePosition>, Error> {
        let files = self.files()?;
        let Some(&newest) = files.last() else {
            (self.ending, self.last) = (None, None);
            return Ok(None);
        };
        let open = self.open_file(newest)?;
        let mut place = open.place(self.ending, u64::MAX)?;
        if Some(place) != self.ending {
            self.last = None;
        }
        while self.next_frame(&open, &mut place)?.is_some() {
            self.last = Some(place.next - 1);
        }
        self.ending = Some(place);
        // A new file may have no frame yet.
        for pair in files.windows(2).rev() {
            if self.last.is_some() {
                break;
            }
            let open = self.open_file(pair[0])?;
            let mut place = FramePosition::start(pair[0]);
            while self.next_frame(&open, &mut place)?.is_some() {
                self.last = Some(place.next - 1);
            }
            self.finish_file(&open, &mut place, Some(pair[1]));
        }
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
        let mut place = self.last_place()?.unwrap_or(FramePosition::start(0));
        self.repair(&mut place)?;
        if place.at >= self.file_bytes_max {
            place = FramePosition::start(place.next);
        }
        let path = self.path(place.file);
        let is_new = !path.exists();
        let bytes = [&head(place.file, place.at, place.next, frame), frame].concat();
        append_synced(&path, &bytes).map_err(Error::io(&path))?;
        if is_new {
            sync_directory(&self.directory)?;
        }
        let number = place.next;
        place = FramePosition {
            next: number + 1,
            at: place.at + bytes.len() as u64,
            before: place.at,
            ..place
        };
        (self.ending, self.last) = (Some(place), Some(number));
        Ok(number)
    }

    /// Moves the bytes after the last frame to a separate file: a process ended while it was writing them. A head without contents in their
    /// place says that their numbers are skipped.
    fn repair(&mut self, place: &mut FramePosition) -> Result<(), Error> {
        let path = self.path(place.file);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::io(&path)(error)),
        };
        let length = file.metadata().map_err(Error::io(&path))?.len();
        if length <= place.at {
            return Ok(());
        }
        let mut torn = vec![0; (length - place.at) as usize];
        let aside = path.with_extension(format!("{TORN}{}", place.at));
        file.read_exact_at(&mut torn, place.at)
            .and_then(|()| append_synced(&aside, &torn))
            .map_err(Error::io(&path))?;
        sync_directory(&self.directory)?;
        let skipped = match self.torn_numbers {
            TornNumbers::Reused => Vec::new(),
            TornNumbers::Skipped => {
                let last = place.next + self.torn(place)? - 1;
                let skipped = head(place.file, place.at, last, &[]).to_vec();
                place.next = last + 1;
                skipped
            }
        };
        // A process that ends between these two leaves the end of the torn bytes, behind the head.
        let written = file.write_all_at(&skipped, place.at);
        place.at += skipped.len() as u64;
        written
            .and_then(|()| file.set_len(place.at))
            .and_then(|()| file.sync_data())
            .map_err(Error::io(&path))
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

impl FramePosition {
    fn start(file: u64) -> Self {
        FramePosition {
            file,
            next: file,
            at: 0,
            before: 0,
        }
    }
}

impl OpenFile {
    /// A known position at or before a number, or the beginning of the file. If the last frame was damaged after it was read, another
    /// process may have moved it aside and appended in its place: then the position is no longer that of a frame.
    fn place(&self, known: Option<FramePosition>, next: u64) -> Result<FramePosition, Error> {
        let known = known.filter(|place| place.file == self.number && place.next <= next);
        let Some(place) = known.filter(|place| place.at <= self.length && place.at > place.before) else {
            return Ok(FramePosition::start(self.number));
        };
        let mut bytes = [0; HEAD_BYTES];
        self.read(&mut bytes, place.before)
            .map_err(Error::io(&self.path))?;
        let head = parse(self.number, place.before, place.next - 1, &bytes);
        match head.is_some_and(|head| (head.number, head.end()) == (place.next - 1, place.at)) {
            true => Ok(place),
            false => Ok(FramePosition::start(self.number)),
        }
    }

    /// The first whole frame at this position or behind it.
    fn find(&self, place: &FramePosition) -> io::Result<Option<(Head, Vec<u8>)>> {
        let mut from = place.at;
        while let Some(head) = self.find_head(from, place)? {
            if let Some(frame) = self.contents(&head)? {
                return self.first_of(place, head, frame).map(Some);
            }
            // An incomplete frame is torn.
            if head.end() > self.length {
                break;
            }
            from = head.end();
        }
        Ok(None)
    }

    /// Another process may have moved torn bytes aside and appended since the first attempt: then the frame at the position is whole now.
    fn first_of(&self, place: &FramePosition, head: Head, frame: Vec<u8>) -> io::Result<(Head, Vec<u8>)> {
        let now = match head.at > place.at {
            true => self.frame_at(place.at, place.next)?,
            false => None,
        };
        Ok(now.unwrap_or((head, frame)))
    }

    /// The first head at this position or behind it.
    fn find_head(&self, from: u64, place: &FramePosition) -> io::Result<Option<Head>> {
        let (mut window, mut at) = (Vec::new(), from);
        while at + HEAD_BYTES as u64 <= self.length {
            // Nearly always a frame starts where the previous one ends.
            let wanted = if at == from { HEAD_BYTES } else { WINDOW };
            window.resize(wanted.min((self.length - at) as usize), 0);
            self.read(&mut window, at)?;
            let mut heads = window.windows(HEAD_BYTES).zip(at..);
            if let Some(head) = heads.find_map(|(bytes, at)| parse(self.number, at, place.next, bytes)) {
                return Ok(Some(head));
            }
            at += (window.len() - HEAD_BYTES + 1) as u64;
        }
        Ok(None)
    }

    /// The frame at this position, with this number or a later one.
    fn frame_at(&self, at: u64, next: u64) -> io::Result<Option<(Head, Vec<u8>)>> {
        if at + HEAD_BYTES as u64 > self.length {
            return Ok(None);
        }
        let mut bytes = [0; HEAD_BYTES];
        self.read(&mut bytes, at)?;
        let Some(head) = parse(self.number, at, next, &bytes) else {
            return Ok(None);
        };
        Ok(self.contents(&head)?.map(|frame| (head, frame)))
    }

    /// Reads zeros where another process has cut torn bytes off.
    fn read(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        match self.file.read_exact_at(into, at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                into.fill(0);
                Ok(())
            }
            read => read,
        }
    }

    /// `None`: the frame is incomplete or damaged.
    fn contents(&self, head: &Head) -> io::Result<Option<Vec<u8>>> {
        if head.end() > self.length {
            return Ok(None);
        }
        let mut frame = vec![0; head.length as usize];
        self.read(&mut frame, head.at + HEAD_BYTES as u64)?;
        Ok((crc32fast::hash(&frame) == head.checksum).then_some(frame))
    }
}

fn head(file: u64, at: u64, number: u64, frame: &[u8]) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    bytes[..4].copy_from_slice(&(frame.len() as u32).to_le_bytes());
    bytes[4..12].copy_from_slice(&number.to_le_bytes());
    bytes[12..16].copy_from_slice(&crc32fast::hash(frame).to_le_bytes());
    let checksum = checksum(file, at, &bytes[..16]);
    bytes[16..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Includes the place: bytes of another file or position are no head.
fn checksum(file: u64, at: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(bytes);
    hasher.update(&file.to_le_bytes());
    hasher.update(&at.to_le_bytes());
    hasher.finalize()
}

/// A head at this position, with this number or a later one.
fn parse(file: u64, at: u64, next: u64, bytes: &[u8]) -> Option<Head> {
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let number = u64::from_le_bytes(bytes[4..12].try_into().expect("eight bytes"));
    let is_ours = number.checked_sub(next).is_some_and(|after| after < NUMBERS_MAX)
        && u32_at(0) as usize <= FRAME_BYTES_MAX
        && u32_at(16) == checksum(file, at, &bytes[..16]);
    is_ours.then(|| Head {
        at,
        number,
        length: u32_at(0),
        checksum: u32_at(12),
    })
}

fn append_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_data()
}

/// New and renamed files of a directory survive a power failure.
pub(crate) fn sync_directory(directory: &Path) -> Result<(), Error> {
    File::open(directory)
        .and_then(|open| open.sync_all())
        .map_err(Error::io(directory))
}
