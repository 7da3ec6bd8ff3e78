//! A disk in memory. It kills its process at a chosen operation, fills up, refuses, flips bits, and at a power failure loses what was not
//! synchronised.
//!
//! A kill and a power failure differ: after a kill the kernel still has everything that was written. `turmoil-fs` has one kind of end, no
//! memory that is mapped to a file, no end within a write or between two words, and no reserved room.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Random;
use crate::state::is_of_weir;
use weir_system::disk::{Disk, Sink, Source, Words};

/// The panic that ends a process.
pub struct Killed;

#[derive(Clone, Default)]
struct Inode {
    bytes: Vec<u8>,
    /// Content that a power failure leaves.
    durable: Option<Vec<u8>>,
    reserved: usize,
}

type File = Arc<Mutex<Inode>>;

/// Shared by all handles of one machine.
struct Machine {
    names: BTreeMap<String, File>,
    /// Names that a power failure leaves.
    durable: BTreeMap<String, File>,
    capacity: usize,
    /// Writes fail, one in this many; 0: none.
    refuses: u64,
    /// Writes that have failed.
    failures: u64,
    random: Random,
    /// The number of the newest process.
    newest: u64,
    /// The processes that may use it: one, or two during a hand-over.
    alive: Vec<u64>,
    /// Operations until it is killed.
    until_kill: Option<u64>,
    /// Of all processes.
    operations: u64,
}

/// The machine's disk, from outside.
#[derive(Clone)]
pub struct World(Arc<Mutex<Machine>>);

/// The disk as one process has it.
#[derive(Clone)]
pub struct ProcessDisk {
    world: World,
    process: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub fn new(seed: u64) -> World {
        World(Arc::new(Mutex::new(Machine {
            names: BTreeMap::new(),
            durable: BTreeMap::new(),
            capacity: usize::MAX,
            refuses: 0,
            failures: 0,
            random: Random::new(seed),
            newest: 0,
            alive: Vec::new(),
            until_kill: None,
            operations: 0,
        })))
    }

    /// A copy that nothing connects with this one.
    pub fn copy(&self) -> World {
        let machine = lock(&self.0);
        let copied = |names: &BTreeMap<String, File>| {
            let copy =
                |(name, file): (&String, &File)| (name.clone(), Arc::new(Mutex::new(lock(file).clone())));
            names.iter().map(copy).collect()
        };
        World(Arc::new(Mutex::new(Machine {
            names: copied(&machine.names),
            durable: copied(&machine.durable),
            random: machine.random.clone(),
            alive: Vec::new(),
            until_kill: None,
            ..*machine
        })))
    }

    /// The disk for a new process. The one before has ended.
    pub fn process(&self) -> ProcessDisk {
        self.end_process();
        self.further_process()
    }

    /// The disk for a process beside the one that runs.
    pub fn further_process(&self) -> ProcessDisk {
        let mut machine = lock(&self.0);
        machine.newest += 1;
        let process = machine.newest;
        machine.alive.push(process);
        ProcessDisk {
            world: self.clone(),
            process,
        }
    }

    /// All processes end: none of their handles can do anything.
    pub fn end_process(&self) {
        let mut machine = lock(&self.0);
        machine.alive.clear();
        machine.until_kill = None;
    }

    /// Kills a process at this operation from now on.
    pub fn kill_after(&self, operations: u64) {
        lock(&self.0).until_kill = Some(operations);
    }

    /// Lets a process do something whose end by a kill would change nothing.
    pub fn without_kill(&self, act: impl FnOnce()) {
        let until_kill = lock(&self.0).until_kill.take();
        act();
        lock(&self.0).until_kill = until_kill;
    }

    pub fn operations(&self) -> u64 {
        lock(&self.0).operations
    }

    pub fn failures(&self) -> u64 {
        lock(&self.0).failures
    }

    /// `room`: bytes that are left.
    pub fn fill(&self, room: usize) {
        let mut machine = lock(&self.0);
        machine.capacity = machine.used() + room;
    }

    pub fn refuse(&self, one_in: u64) {
        lock(&self.0).refuses = one_in;
    }

    pub fn refuses(&self) -> bool {
        lock(&self.0).refuses > 0
    }

    pub fn repair(&self) {
        let mut machine = lock(&self.0);
        (machine.capacity, machine.refuses) = (usize::MAX, 0);
    }

    /// Loses what was not synchronised, or a part of it. Each name and each file by itself.
    pub fn power_failure(&self) {
        let mut machine = lock(&self.0);
        let Machine {
            names,
            durable,
            random,
            ..
        } = &mut *machine;
        let mut left = BTreeMap::new();
        let all: Vec<String> = names.keys().chain(durable.keys()).cloned().collect();
        for name in all {
            let file = match random.one_in(2) {
                true => names.get(&name),
                false => durable.get(&name),
            };
            if let Some(file) = file {
                left.insert(name, file.clone());
            }
        }
        for file in left.values() {
            let mut inode = lock(file);
            let durable = inode.durable.clone();
            match random.below(3) {
                0 => {}
                1 => inode.bytes = durable.unwrap_or_default(),
                _ => {
                    let from = random.below(inode.bytes.len() as u64 + 1) as usize;
                    match random.one_in(2) {
                        true => inode.bytes.truncate(from),
                        false => inode.bytes[from..].fill(0),
                    }
                }
            }
            inode.durable = Some(inode.bytes.clone());
            inode.reserved = 0;
        }
        machine.durable.clone_from(&left);
        machine.names = left;
    }

    pub fn has(&self, is_wanted: impl Fn(&str) -> bool) -> bool {
        lock(&self.0).names.keys().any(|name| is_wanted(name))
    }

    /// Changes the content of a file. False: there is none.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let machine = lock(&self.0);
        let file = machine.names.get(name);
        file.is_some_and(|file| {
            change(&mut lock(file).bytes);
            true
        })
    }
}

impl Machine {
    fn used(&self) -> usize {
        let bytes = |file: &File| {
            let inode = lock(file);
            inode.bytes.len().max(inode.reserved)
        };
        self.names.values().map(bytes).sum()
    }
}

fn ended() -> io::Error {
    io::Error::other("the process has ended")
}

impl ProcessDisk {
    /// This process ends, and no other.
    pub fn end(&self) {
        let mut machine = lock(&self.world.0);
        machine.alive.retain(|process| *process != self.process);
    }

    /// See [`World::without_kill`].
    pub fn without_kill(&self, act: impl FnOnce()) {
        self.world.without_kill(act);
    }

    pub fn is_alive(&self) -> bool {
        lock(&self.world.0).alive.contains(&self.process)
    }

    /// Before each operation. `Err`: the handle is that of a process that has ended.
    fn begin(&self) -> io::Result<MutexGuard<'_, Machine>> {
        let mut machine = lock(&self.world.0);
        if !machine.alive.contains(&self.process) {
            return Err(ended());
        }
        if machine.until_kill == Some(0) {
            machine.alive.retain(|process| *process != self.process);
            machine.until_kill = None;
            drop(machine);
            resume_unwind(Box::new(Killed));
        }
        machine.until_kill = machine.until_kill.map(|left| left - 1);
        machine.operations += 1;
        Ok(machine)
    }

    /// The same for an operation that a disk may refuse.
    fn begin_write(&self) -> io::Result<MutexGuard<'_, Machine>> {
        let mut machine = self.begin()?;
        let refuses = machine.refuses;
        if machine.random.one_in(refuses) {
            machine.failures += 1;
            return Err(io::Error::other("the disk refuses"));
        }
        Ok(machine)
    }

    fn new_file(&self, name: &str) -> io::Result<File> {
        assert!(is_of_weir(name), "a start would trust `{name}` of any user");
        let mut machine = self.begin_write()?;
        let file = File::default();
        machine.names.insert(name.to_owned(), file.clone());
        Ok(file)
    }
}

impl Disk for ProcessDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Source>> {
        let machine = self.begin()?;
        let file = machine.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let bytes = lock(file).bytes.clone();
        Ok(Arc::new(Opened(bytes)))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Sink>> {
        Ok(Box::new(Writing {
            file: self.new_file(name)?,
            disk: self.clone(),
        }))
    }

    fn map(&self, name: &str, words: usize) -> io::Result<Words> {
        let file = self.new_file(name)?;
        let mut writing = Writing {
            file: file.clone(),
            disk: self.clone(),
        };
        writing.write_all(&vec![0; words * size_of::<u64>()])?;
        let disk = self.clone();
        Ok(Words::Simulated(Box::new(move |at, value| {
            // A process that has ended stores nothing, and notices nothing.
            if let Ok(_machine) = disk.begin() {
                let at = at * size_of::<u64>();
                lock(&file).bytes[at..at + size_of::<u64>()].copy_from_slice(&value.to_le_bytes());
            }
        })))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut machine = self.begin_write()?;
        let file = machine.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        machine.names.insert(to.to_owned(), file);
        Ok(())
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let mut machine = self.begin_write()?;
        let file = machine.names.get(from).ok_or(io::ErrorKind::NotFound)?.clone();
        machine.names.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut machine = self.begin()?;
        let removed = machine.names.remove(name);
        removed.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.begin()?.names.keys().cloned().collect())
    }

    fn sync(&self) -> io::Result<()> {
        let mut machine = self.begin_write()?;
        machine.durable = machine.names.clone();
        Ok(())
    }
}

/// The bytes of a file at the moment at which it was opened.
struct Opened(Vec<u8>);

impl Source for Opened {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let rest = self.0.get(at as usize..).unwrap_or_default();
        let read = rest.len().min(buffer.len());
        buffer[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }
}

struct Writing {
    disk: ProcessDisk,
    file: File,
}

impl Write for Writing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_last = lock(&self.disk.world.0).until_kill == Some(0);
        if is_last {
            // The kill comes within the write.
            let mut machine = lock(&self.disk.world.0);
            if machine.alive.contains(&self.disk.process) {
                let written = machine.random.below(bytes.len() as u64 + 1) as usize;
                lock(&self.file).bytes.extend_from_slice(&bytes[..written]);
            }
        }
        let mut machine = self.disk.begin_write()?;
        let used = machine.used();
        let mut inode = lock(&self.file);
        let grows = (inode.bytes.len() + bytes.len()).saturating_sub(inode.bytes.len().max(inode.reserved));
        let room = machine.capacity.saturating_sub(used);
        if grows > room {
            drop(inode);
            machine.failures += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        inode.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Writing {
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let machine = self.disk.begin_write()?;
        let used = machine.used();
        if used.saturating_add(bytes as usize) > machine.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        lock(&self.file).reserved = bytes as usize;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let _machine = self.disk.begin_write()?;
        let mut inode = lock(&self.file);
        inode.reserved = 0;
        inode.durable = Some(inode.bytes.clone());
        Ok(())
    }
}
