//! The origin of a process on a Unix socket, by process id. A packet of a known process costs a comparison with the previous one, or a
//! look-up; another thread makes all system calls.

use crate::counts::SenderCounter;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use weir_counters::Counts;

use weir_context::OriginId;

/// Processes that one worker distinguishes. Packets of further ones have no sender, and are counted.
const PROCESSES_MAX: usize = 16_384;

/// Ticks without a packet after which a process is forgotten.
const IDLE_TICKS: u8 = 60;

/// Ticks after which a process that is sending is looked at again: its number may belong to another one by now.
const RECHECK_TICKS: u64 = 2;

/// Process ids are the kernel's to choose, so one multiplication is enough to spread them.
#[derive(Default)]
struct PidHasher(u64);

impl Hasher for PidHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn write_i32(&mut self, pid: i32) {
        let product = u128::from(pid as u64) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

/// The identity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessIdentity {
    /// One of a container's, by its origin.
    Container(OriginId),
    /// One of no container's.
    NoContainer,
    /// It could not be found out.
    Unknown,
}

impl ProcessIdentity {
    pub fn origin(self) -> OriginId {
        match self {
            ProcessIdentity::Container(origin) => origin,
            ProcessIdentity::NoContainer | ProcessIdentity::Unknown => OriginId::NONE,
        }
    }
}

#[derive(Clone, Copy)]
struct Process {
    /// `None` before the first look-up.
    identity: Option<ProcessIdentity>,
    seen: bool,
    idle_ticks: u8,
}

/// Facts about a packet's sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderLookup {
    Known(ProcessIdentity),
    /// It is being looked up.
    Pending,
}

pub struct Senders {
    processes: HashMap<i32, Process, BuildHasherDefault<PidHasher>>,
    /// The sender of the last packet; pid 0 means unknown.
    last: (i32, ProcessIdentity),
    new: Vec<i32>,
    recheck: Vec<i32>,
    ticks: u64,
    counts: Counts<SenderCounter>,
}

impl Senders {
    pub fn new() -> Self {
        Senders {
            processes: HashMap::default(),
            last: (0, ProcessIdentity::Unknown),
            new: Vec::new(),
            recheck: Vec::new(),
            ticks: 0,
            counts: Counts::default(),
        }
    }

    pub fn counts(&self) -> Counts<SenderCounter> {
        let mut counts = self.counts;
        counts[SenderCounter::Live] = self.processes.len() as u64;
        counts
    }

    #[inline]
    pub fn find(&mut self, pid: i32) -> SenderLookup {
        if pid == self.last.0 {
            return SenderLookup::Known(self.last.1);
        }
        self.look_up(pid)
    }

    fn look_up(&mut self, pid: i32) -> SenderLookup {
        let Some(process) = self.processes.get_mut(&pid) else {
            if self.processes.len() >= PROCESSES_MAX {
                self.counts[SenderCounter::PacketsUntracked] += 1;
                return SenderLookup::Known(ProcessIdentity::Unknown);
            }
            let process = Process {
                identity: None,
                seen: true,
                idle_ticks: 0,
            };
            self.processes.insert(pid, process);
            self.new.push(pid);
            self.counts[SenderCounter::Asked] += 1;
            return SenderLookup::Pending;
        };
        process.seen = true;
        match process.identity {
            Some(identity) => {
                self.last = (pid, identity);
                SenderLookup::Known(identity)
            }
            None => SenderLookup::Pending,
        }
    }

    /// Takes the facts found about a process. Returns the origin it had before, which the caller held.
    pub fn set(&mut self, pid: i32, identity: ProcessIdentity) -> OriginId {
        self.last = (0, ProcessIdentity::Unknown);
        match self.processes.get_mut(&pid) {
            Some(process) => process
                .identity
                .replace(identity)
                .map_or(OriginId::NONE, ProcessIdentity::origin),
            // Forgotten in the meantime.
            None => identity.origin(),
        }
    }

    /// Packets of this process wait no longer: until a look-up, it is unknown.
    pub fn abandon(&mut self, pid: i32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.identity.get_or_insert(ProcessIdentity::Unknown);
        }
    }

    /// The processes to look up, and those to look at again.
    pub fn take_questions(&mut self) -> (Vec<i32>, Vec<i32>) {
        (std::mem::take(&mut self.new), std::mem::take(&mut self.recheck))
    }

    pub fn has_questions(&self) -> bool {
        !self.new.is_empty() || !self.recheck.is_empty()
    }

    /// Once a second. Calls `forget` with the origin of each process that has been quiet.
    pub fn tick(&mut self, mut forget: impl FnMut(OriginId)) {
        self.ticks += 1;
        if !self.ticks.is_multiple_of(RECHECK_TICKS) {
            return;
        }
        self.last = (0, ProcessIdentity::Unknown);
        let recheck = &mut self.recheck;
        recheck.clear();
        self.processes.retain(|&pid, process| {
            if std::mem::take(&mut process.seen) {
                process.idle_ticks = 0;
                if process.identity.is_some() {
                    recheck.push(pid);
                }
                return true;
            }
            process.idle_ticks += RECHECK_TICKS as u8;
            let stays = process.idle_ticks < IDLE_TICKS;
            if !stays {
                forget(process.identity.map_or(OriginId::NONE, ProcessIdentity::origin));
            }
            stays
        });
        if self.processes.capacity() > 256 && self.processes.len() < self.processes.capacity() / 4 {
            self.processes.shrink_to(self.processes.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_looked_up_once_and_rechecked_while_it_sends() {
        let mut senders = Senders::new();
        assert_eq!(senders.find(7), SenderLookup::Pending);
        assert_eq!(senders.find(7), SenderLookup::Pending);
        assert_eq!(senders.take_questions(), (vec![7], vec![]));
        assert_eq!(senders.set(7, ProcessIdentity::NoContainer), OriginId::NONE);
        assert_eq!(senders.find(7), SenderLookup::Known(ProcessIdentity::NoContainer));
        for _ in 0..RECHECK_TICKS {
            senders.tick(|_| {});
        }
        assert_eq!(senders.take_questions(), (vec![], vec![7]));
        for _ in 0..=u64::from(IDLE_TICKS) {
            senders.tick(|_| {});
        }
        assert_eq!(senders.counts()[SenderCounter::Live], 0);
        assert_eq!(senders.find(7), SenderLookup::Pending, "asked for again");
    }

    #[test]
    fn a_full_table_counts_untracked_packets() {
        let mut senders = Senders::new();
        for pid in 1..=PROCESSES_MAX as i32 {
            senders.find(pid);
        }
        assert_eq!(
            senders.find(1 << 20),
            SenderLookup::Known(ProcessIdentity::Unknown)
        );
        assert_eq!(senders.counts[SenderCounter::PacketsUntracked], 1);
    }
}
