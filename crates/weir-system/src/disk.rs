//! The disk behind the state directory. The agent reaches files only through it, so that a simulation can take its place.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sys::shared::SharedWords;

/// Files are private.
const FILE_MODE: u32 = 0o600;

/// The files of one directory, by name.
pub trait Disk: Send + Sync {
    /// The error for a missing file has the kind `NotFound`.
    fn open(&self, name: &str) -> io::Result<Arc<dyn Source>>;

    /// An empty file, in place of one with that name.
    fn create(&self, name: &str) -> io::Result<Box<dyn Sink>>;

    /// An empty file, in place of one with that name, as so many words of memory. What is stored there survives a kill.
    fn map(&self, name: &str, words: usize) -> io::Result<Words>;

    /// Replaces the file with the new name. A kill leaves the one or the other.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Gives the file a further name, in place of another file with that name.
    fn link(&self, from: &str, to: &str) -> io::Result<()>;

    fn remove(&self, name: &str) -> io::Result<()>;

    fn names(&self) -> io::Result<Vec<String>>;

    /// Afterwards the names survive a power failure.
    fn sync(&self) -> io::Result<()>;
}

/// A file to read.
pub trait Source: Send + Sync {
    fn bytes(&self) -> io::Result<u64>;

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;

    fn read_exact_at(&self, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    buffer = &mut buffer[read..];
                    at += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A file to write, from its beginning.
pub trait Sink: Write + Send {
    /// Takes room on the disk, so that a disk without it is noticed before it is too late to do something else.
    fn reserve(&mut self, bytes: u64) -> io::Result<()>;

    /// Gives back the room behind what was written. Afterwards the content survives a power failure.
    fn sync(&mut self) -> io::Result<()>;
}

/// Words that outlive the process.
pub enum Words {
    Mapped(SharedWords),
    Simulated(Box<dyn Fn(usize, u64) + Send + Sync>),
}

impl Words {
    /// Waits for nothing.
    pub fn store(&self, at: usize, value: u64) {
        match self {
            Words::Mapped(words) => words.store(at, value),
            Words::Simulated(store) => store(at, value),
        }
    }
}

/// A source from its beginning to its end.
pub struct Reading<'a> {
    source: &'a dyn Source,
    at: u64,
}

impl<'a> Reading<'a> {
    pub fn of(source: &'a dyn Source) -> Self {
        Reading { source, at: 0 }
    }
}

impl Read for Reading<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The whole content of a file.
pub fn whole(source: &dyn Source) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    Reading::of(source).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The same, by name.
pub fn read(disk: &dyn Disk, name: &str) -> io::Result<Vec<u8>> {
    whole(&*disk.open(name)?)
}

/// A real directory.
pub struct SystemDisk(PathBuf);

impl SystemDisk {
    pub fn of(directory: &Path) -> SystemDisk {
        SystemDisk(directory.to_owned())
    }

    fn new_file(&self, name: &str) -> io::Result<File> {
        private().create(true).truncate(true).open(self.0.join(name))
    }
}

impl Disk for SystemDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Source>> {
        Ok(Arc::new(File::open(self.0.join(name))?))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Sink>> {
        Ok(Box::new(self.new_file(name)?))
    }

    fn map(&self, name: &str, words: usize) -> io::Result<Words> {
        let mut file = self.new_file(name)?;
        // Allocates the pages on the disk.
        file.write_all(&vec![0; words * size_of::<u64>()])?;
        Ok(Words::Mapped(SharedWords::of(&file, words)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.0.join(from), self.0.join(to))
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let to = self.0.join(to);
        match std::fs::remove_file(&to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::hard_link(self.0.join(from), to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.0.join(name))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.0)?.flatten();
        Ok(entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect())
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

impl Source for File {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, at)
    }

    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, at)
    }
}

impl Sink for File {
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&*self, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            // Some file systems have no such promise.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            reserved => Ok(reserved?),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let written = self.stream_position()?;
        self.set_len(written)?;
        self.sync_all()
    }
}

pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(FILE_MODE);
    options
}
