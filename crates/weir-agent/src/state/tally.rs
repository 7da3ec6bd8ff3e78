//! `tally-EPOCH`: which saved data counts, and from when.
//!
//! Every process of an agent has an epoch, greater than those before it. What it saves while it runs carries that number: the open bucket
//! (`open-EPOCH-N`), the sums of outputs (`sums`) and the books (`books`). What all earlier processes have left is one file, `state`, with the
//! number of the last of them. `tally-EPOCH` says which of these count:
//!
//! 1. The tally with the greatest epoch counts, if that is greater than the epoch of `state`. Then its process was killed (or runs).
//!    Without such a tally `state` counts alone: its process ended, or a start has combined in it what a killed one left.
//! 2. `state` counts beside the tally as its *base*: for the books until `books` has the epoch of the tally, for the sums until `sums`
//!    has it, for the bucket until the first checkpoint of every worker is complete (one word of the tally).
//!    A bucket that has ended counts until something of it may leave the process (a word of the tally): then an output may have it.
//! 3. A worker stores what it has received, and the end of a bucket, before it hands over any of it, and an output stores how much
//!    may leave before it does, and that it has left right afterwards. So nothing that has left is continued, and what is neither
//!    continued nor delivered is a difference of numbers that are here; a kill between the two leaves a range.
//!
//! What an earlier process left stops counting at one instant: at the rename that makes the tally of the next one visible, before its
//! workers start; and where it was killed, at the rename that makes `state` visible, before that. Both are atomic, and a kill between any
//! two system calls leaves one or the other.
//!
//! The file is mapped into memory, so that the kernel keeps what was stored after a kill of the process; nothing is synced. A kill may
//! interrupt a store of several words: each record has two places, which are written in turn, with a check word each. The one with the
//! greatest number and a right check word counts.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weir_ingest::WorkerTally;
use weir_output::delivery::AtRisk;
use weir_state::AgentId;

use weir_system::disk::{self, Disk, Words};

/// More than the maximum number of workers.
pub const WORKERS_MAX: usize = 64;

/// Outputs of which is known what a kill costs them; more are possible.
const OUTPUTS_MAX: usize = 32;

/// The first word: the format.
const MAGIC: u64 = u64::from_le_bytes(*b"weirtal1");

/// Magic, epoch, epoch of the base, start of the bucket that is continued from it, workers, agent, start of the process, check.
const HEAD: usize = 9;

/// Set once the checkpoint of every worker was complete.
const COMPLETE: usize = HEAD;

/// Number, four values, check.
const PLACE: usize = 6;
const RECORD: usize = 2 * PLACE;

/// Bytes of an output's name that are kept.
const NAME_BYTES: usize = 64;
const OUTPUT: usize = NAME_BYTES / 8 + RECORD;

const WORKERS: usize = HEAD + 1;
const HANDED: usize = WORKERS + WORKERS_MAX * RECORD;
const BEGUN: usize = HANDED + RECORD;
const OUTPUTS: usize = BEGUN + RECORD;
const WORDS: usize = OUTPUTS + OUTPUTS_MAX * OUTPUT;

const BEGINNING: &str = "tally-";

/// Until it counts.
const UNFINISHED: &str = "tally.new";

/// Of versions before epochs were part of it: bucket, samples, Unix milliseconds, start time of the worker.
const OLD_NAME: &str = "tally";
const OLD_WORDS: usize = 4;

/// Facts that do not change while the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub agent: AgentId,
    pub epoch: u64,
    /// The epoch of `state` that the process continues, 0 without one.
    pub base: u64,
    /// Start of the bucket that it continues from there.
    pub continued: Option<i64>,
    pub workers: usize,
    /// Unix milliseconds.
    pub started_ms: i64,
}

/// The meaning of an output's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// Samples that it has delivered, dropped for a reason or written to disk.
    Delivers = 1,
    /// Samples that are not in its saved sums, but those of another output before it was there. The sums have the number of theirs.
    AddsUp = 2,
}

/// The tally of this process.
pub struct Tally {
    words: Words,
    head: Head,
    disk: Arc<dyn Disk>,
    outputs: Mutex<Vec<OutputPlace>>,
    /// Times it was stored, and samples.
    handed: Mutex<(u64, u64)>,
    /// Start of the newest bucket of which outputs have been given something.
    submitted: AtomicI64,
    /// Times it was stored, and the start of the newest bucket of which something may have left the process.
    begun: Mutex<(u64, i64)>,
}

struct OutputPlace {
    name: [u8; NAME_BYTES],
    kind: OutputKind,
    is_gone: bool,
    /// Times it was stored.
    number: u64,
    samples: u64,
    /// Of the newest bucket of which something may have left.
    left: u64,
}

impl OutputPlace {
    fn is(&self, name: &str, kind: OutputKind) -> bool {
        (self.name, self.kind) == (name_of(name), kind)
    }
}

impl Tally {
    /// Makes the file, which counts from [`Tally::publish`] on. `continued`: the samples of the bucket.
    pub fn new(disk: &Arc<dyn Disk>, head: Head, continued: &[u64]) -> io::Result<Tally> {
        let tally = Tally {
            words: disk.map(UNFINISHED, WORDS)?,
            head,
            disk: disk.clone(),
            outputs: Mutex::default(),
            handed: Mutex::default(),
            submitted: AtomicI64::new(i64::MIN),
            begun: Mutex::new((0, i64::MIN)),
        };
        tally.store_all(0, &words_of(&head));
        if let Some(bucket) = head.continued {
            for worker in 0..head.workers.min(WORKERS_MAX) {
                let turn = WorkerTally {
                    bucket,
                    open: continued.get(worker).copied().unwrap_or(0),
                    ended: 0,
                    at_ms: head.started_ms,
                };
                tally.put(WORKERS + worker * RECORD, 1, values_of(&turn));
            }
        }
        Ok(tally)
    }

    /// From now on the files of earlier processes count only as far as this one says.
    pub fn publish(&self) -> io::Result<()> {
        self.disk.rename(UNFINISHED, &name(self.head.epoch))
    }

    pub fn epoch(&self) -> u64 {
        self.head.epoch
    }

    /// The file that a worker's turns are stored in. The returned function is cheap, and waits for nothing.
    pub fn of_worker(self: &Arc<Self>, worker: usize) -> Box<dyn Fn(WorkerTally) + Send> {
        let (tally, at) = (self.clone(), WORKERS + worker * RECORD);
        // 1 is the number of the one that it began with.
        let number = Cell::new(1);
        Box::new(move |turn| {
            number.set(number.get() + 1);
            tally.put(at, number.get(), values_of(&turn));
        })
    }

    /// Every worker has a complete checkpoint of its own.
    pub fn complete(&self) {
        self.words.store(COMPLETE, MAGIC);
    }

    /// Outputs are about to be given something of the bucket that starts there.
    pub fn submits(&self, bucket: i64) {
        self.submitted.fetch_max(bucket, Ordering::AcqRel);
    }

    /// Something of what they were given may leave the process now: a kill must not deliver it again.
    pub fn begins(&self) {
        let submitted = self.submitted.load(Ordering::Acquire);
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if begun.1 < submitted {
            *begun = (begun.0 + 1, submitted);
            self.put(BEGUN, begun.0, [submitted as u64, 0, 0, 0]);
        }
    }

    /// All outputs have been given the buckets with these samples.
    pub fn handed_over(&self, samples: u64) {
        let mut handed = self.handed.lock().unwrap_or_else(PoisonError::into_inner);
        *handed = (handed.0 + 1, samples);
        self.put(HANDED, handed.0, [samples, 0, 0, 0]);
    }

    /// Samples of buckets that all outputs have been given.
    pub fn handed(&self) -> u64 {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// The outputs of which is told what they will not lose. One that is new begins with what was handed over before; one that was
    /// removed has nothing to lose.
    pub fn register(&self, names: &[(&str, OutputKind)]) {
        let handed = self.handed();
        let mut outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, known) in outputs.iter_mut().enumerate() {
            let is_there = names.iter().any(|(name, kind)| known.is(name, *kind));
            if known.is_gone == is_there {
                known.is_gone = !is_there;
                known.samples = known.samples.max(handed);
                self.put_output(index, known);
            }
        }
        for (name, kind) in names {
            if outputs.len() < OUTPUTS_MAX && !outputs.iter().any(|known| known.is(name, *kind)) {
                let at = OUTPUTS + outputs.len() * OUTPUT;
                let mut output = OutputPlace {
                    name: name_of(name),
                    kind: *kind,
                    is_gone: false,
                    number: 0,
                    samples: handed,
                    left: 0,
                };
                let words: Vec<u64> = output.name.chunks_exact(8).map(word).collect();
                self.store_all(at, &words);
                self.put_output(outputs.len(), &mut output);
                outputs.push(output);
            }
        }
    }

    /// A registered output will not lose these samples.
    pub fn safe(&self, name: &str, kind: OutputKind, samples: u64) {
        let mut outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = outputs
            .iter_mut()
            .enumerate()
            .find(|(_, known)| known.is(name, kind));
        // A reload may have replaced it by one that is behind.
        if let Some((index, output)) = known.filter(|(_, known)| known.samples < samples) {
            output.samples = samples;
            self.put_output(index, output);
        }
    }

    /// The books have what outputs dropped at the end of the process: the next start must not report it, too.
    pub fn told(&self) {
        let handed = self.handed();
        let mut outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, output) in outputs.iter_mut().enumerate() {
            if output.kind == OutputKind::Delivers && output.samples < handed {
                output.samples = handed;
                self.put_output(index, output);
            }
        }
    }

    /// A registered output may deliver something of these samples from now on. `u64::MAX`: of all.
    pub fn leaves(&self, name: &str, samples: u64) {
        let mut outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        let known = outputs
            .iter_mut()
            .enumerate()
            .find(|(_, known)| known.is(name, OutputKind::Delivers));
        // That a bucket has not ended is true only until it has.
        let is_more = |known: &OutputPlace| known.left == u64::MAX || known.left < samples;
        if let Some((index, output)) = known.filter(|(_, known)| is_more(known) && known.left != samples) {
            output.left = samples;
            self.put_output(index, output);
        }
    }

    fn put_output(&self, index: usize, output: &mut OutputPlace) {
        output.number += 1;
        let kind = if output.is_gone { 0 } else { output.kind as u64 };
        let at = OUTPUTS + index * OUTPUT + NAME_BYTES / 8;
        self.put(at, output.number, [output.samples, kind, output.left, 0]);
    }

    fn store_all(&self, at: usize, words: &[u64]) {
        for (offset, word) in words.iter().enumerate() {
            self.words.store(at + offset, *word);
        }
    }

    /// Writes the other place of a record.
    fn put(&self, at: usize, number: u64, values: [u64; 4]) {
        let at = at + (number % 2) as usize * PLACE;
        let [a, b, c, d] = values;
        self.store_all(at, &[number, a, b, c, d, check(&[number, a, b, c, d])]);
    }
}

impl AtRisk for Tally {
    fn begins(&self) {
        Tally::begins(self);
    }

    fn leaves(&self, output: &str, samples: u64) {
        Tally::leaves(self, output, samples);
    }

    fn is_safe(&self, output: &str, samples: u64) {
        self.safe(output, OutputKind::Delivers, samples);
    }
}

/// An output of a killed process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KilledOutput {
    pub name: String,
    pub kind: OutputKind,
    /// [`Tally::safe`].
    pub safe: u64,
    /// [`Tally::leaves`].
    pub left: u64,
}

/// The tally of a killed process, as far as it can be read.
#[derive(Debug)]
pub struct KilledTally {
    pub epoch: u64,
    /// `None`: it is damaged.
    pub head: Option<Head>,
    /// Every worker had a complete checkpoint of its own.
    pub is_complete: bool,
    /// `None`: damaged, or it never had a turn.
    pub workers: Vec<Option<WorkerTally>>,
    pub handed: u64,
    /// Start of the newest bucket of which something may have left the process.
    pub begun: Option<i64>,
    pub outputs: Vec<KilledOutput>,
    /// A part of it is damaged.
    pub is_damaged: bool,
    /// Of a version whose checkpoints have no epochs.
    pub is_old: bool,
}

impl KilledTally {
    /// The tally that counts in a directory whose `state` has the epoch `after`, 0 without one.
    pub fn of(disk: &dyn Disk, agent: AgentId, after: u64) -> Option<KilledTally> {
        let newest = epochs(disk).into_iter().max().filter(|epoch| *epoch > after);
        match newest {
            Some(epoch) => {
                let bytes = disk::read(disk, &name(epoch)).unwrap_or_default();
                let found = Self::parse(epoch, &bytes);
                let is_own = found.head.is_none_or(|head| head.agent == agent);
                is_own.then_some(found)
            }
            None if after == 0 => Self::parse_old(&disk::read(disk, OLD_NAME).ok()?),
            None => None,
        }
    }

    fn parse(epoch: u64, bytes: &[u8]) -> KilledTally {
        let mut words: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
        let mut is_damaged = words.len() != WORDS;
        words.resize(WORDS, 0);
        let head = head_of(&words).filter(|head| head.epoch == epoch);
        is_damaged |= head.is_none();
        let mut workers = Vec::new();
        for worker in 0..head.map_or(WORKERS_MAX, |head| head.workers.min(WORKERS_MAX)) {
            let found = record(&words, WORKERS + worker * RECORD);
            is_damaged |= found.is_err();
            workers.push(
                found
                    .ok()
                    .flatten()
                    .map(|[bucket, open, ended, at_ms]| WorkerTally {
                        bucket: bucket as i64,
                        open,
                        ended,
                        at_ms: at_ms as i64,
                    }),
            );
        }
        let handed = record(&words, HANDED);
        let begun = record(&words, BEGUN);
        is_damaged |= handed.is_err() || begun.is_err();
        // Unknown: whatever has ended may have left.
        let begun = begun.unwrap_or(Some([i64::MAX as u64, 0, 0, 0]));
        let mut outputs = Vec::new();
        for at in (0..OUTPUTS_MAX).map(|index| OUTPUTS + index * OUTPUT) {
            let name: Vec<u8> = words[at..at + NAME_BYTES / 8]
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .take_while(|byte| *byte != 0)
                .collect();
            let name = String::from_utf8_lossy(&name);
            match record(&words, at + NAME_BYTES / 8) {
                Ok(None) => {}
                Ok(Some([safe, kind, left, _])) => {
                    let kinds = [OutputKind::Delivers, OutputKind::AddsUp];
                    let kind = kinds.into_iter().find(|of| *of as u64 == kind);
                    outputs.extend(kind.map(|kind| KilledOutput {
                        name: name.into_owned(),
                        kind,
                        safe,
                        left,
                    }));
                }
                Err(Damaged) => is_damaged = true,
            }
        }
        KilledTally {
            epoch,
            head,
            is_complete: words[COMPLETE] == MAGIC,
            workers,
            handed: handed.ok().flatten().map_or(0, |[samples, ..]| samples),
            begun: begun.map(|[bucket, ..]| bucket as i64),
            outputs,
            is_damaged,
            is_old: false,
        }
    }

    /// For a process that could not write one, or whose tally has been removed.
    pub fn missing(epoch: u64, is_old: bool) -> KilledTally {
        KilledTally {
            epoch,
            head: None,
            is_complete: false,
            workers: vec![None; WORKERS_MAX],
            handed: 0,
            begun: Some(i64::MAX),
            outputs: Vec::new(),
            is_damaged: true,
            is_old,
        }
    }

    fn parse_old(bytes: &[u8]) -> Option<KilledTally> {
        let words: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
        let turn = |of: &[u64]| {
            let turn = WorkerTally {
                bucket: of[0] as i64,
                open: of[1],
                ended: 0,
                at_ms: of[2] as i64,
            };
            (turn.at_ms > 0).then_some(turn)
        };
        let workers: Vec<_> = words.chunks_exact(OLD_WORDS).map(turn).collect();
        workers.iter().any(Option::is_some).then_some(KilledTally {
            epoch: 0,
            head: None,
            is_complete: true,
            workers,
            handed: 0,
            begun: Some(i64::MAX),
            outputs: Vec::new(),
            is_damaged: false,
            is_old: true,
        })
    }
}

/// The heads of all tallies in a directory.
pub fn heads(disk: &dyn Disk) -> impl Iterator<Item = Head> {
    epochs(disk)
        .into_iter()
        .filter_map(|epoch| KilledTally::parse(epoch, &disk::read(disk, &name(epoch)).ok()?).head)
}

/// Removes the tallies of processes that `is_over` says it of.
pub fn forget(disk: &dyn Disk, is_over: impl Fn(u64) -> bool) {
    for epoch in epochs(disk).into_iter().filter(|epoch| is_over(*epoch)) {
        let _ = disk.remove(&name(epoch));
    }
    if is_over(0) {
        let _ = disk.remove(OLD_NAME);
    }
    let _ = disk.remove(UNFINISHED);
}

fn epochs(disk: &dyn Disk) -> Vec<u64> {
    let names = disk.names().unwrap_or_default();
    let epoch = |name: &String| name.strip_prefix(BEGINNING)?.parse().ok();
    names.iter().filter_map(epoch).collect()
}

fn name(epoch: u64) -> String {
    format!("{BEGINNING}{epoch}")
}

struct Damaged;

/// The newer place of a record; `None`: it was never written.
fn record(words: &[u64], at: usize) -> Result<Option<[u64; 4]>, Damaged> {
    let places = words[at..at + RECORD].chunks_exact(PLACE);
    if places.clone().flatten().all(|word| *word == 0) {
        return Ok(None);
    }
    let right = places.filter(|place| place[0] > 0 && check(&place[..PLACE - 1]) == place[PLACE - 1]);
    let newest = right.max_by_key(|place| place[0]).ok_or(Damaged)?;
    Ok(Some([newest[1], newest[2], newest[3], newest[4]]))
}

fn values_of(turn: &WorkerTally) -> [u64; 4] {
    [turn.bucket as u64, turn.open, turn.ended, turn.at_ms as u64]
}

fn words_of(head: &Head) -> [u64; HEAD] {
    let agent = u128::from_be_bytes(head.agent.0);
    let mut words = [
        MAGIC,
        head.epoch,
        head.base,
        head.continued.unwrap_or(i64::MIN) as u64,
        head.workers as u64,
        (agent >> 64) as u64,
        agent as u64,
        head.started_ms as u64,
        0,
    ];
    words[HEAD - 1] = check(&words[..HEAD - 1]);
    words
}

fn head_of(words: &[u64]) -> Option<Head> {
    let words = &words[..HEAD];
    if words[0] != MAGIC || check(&words[..HEAD - 1]) != words[HEAD - 1] {
        return None;
    }
    let agent = u128::from(words[5]) << 64 | u128::from(words[6]);
    Some(Head {
        agent: AgentId(agent.to_be_bytes()),
        epoch: words[1],
        base: words[2],
        continued: Some(words[3] as i64).filter(|start| *start != i64::MIN),
        workers: words[4] as usize,
        started_ms: words[7] as i64,
    })
}

/// Different for words of which one bit differs: against damage, not against forgers.
pub(super) fn check(words: &[u64]) -> u64 {
    let mix = |sum: u64, word: &u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    words.iter().fold(MAGIC, mix)
}

fn name_of(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    let length = name.len().min(NAME_BYTES);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    bytes
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_system::disk::SystemDisk;

    fn head(epoch: u64) -> Head {
        Head {
            agent: AgentId([7; 16]),
            epoch,
            base: 2,
            continued: Some(1000),
            workers: 2,
            started_ms: 5,
        }
    }

    #[test]
    fn the_newest_turn_counts_and_one_that_was_interrupted_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(SystemDisk::of(directory.path()));
        let tally = Arc::new(Tally::new(&disk, head(3), &[40]).unwrap());
        assert!(KilledTally::of(&*disk, AgentId([7; 16]), 0).is_none());
        tally.publish().unwrap();
        let found = KilledTally::of(&*disk, AgentId([7; 16]), 2).unwrap();
        assert_eq!(found.head, Some(head(3)));
        assert_eq!(
            found
                .workers
                .iter()
                .flatten()
                .map(|turn| turn.open)
                .collect::<Vec<_>>(),
            [40, 0]
        );
        assert!(!found.is_damaged && !found.is_complete);
        assert!(
            KilledTally::of(&*disk, AgentId([7; 16]), 3).is_none(),
            "`state` has it"
        );

        let turn = |open| WorkerTally {
            bucket: 1000,
            open,
            ended: 0,
            at_ms: 6,
        };
        let store = tally.of_worker(0);
        (41..50).for_each(|open| store(turn(open)));
        tally.register(&[
            ("one", OutputKind::Delivers),
            ("two", OutputKind::Delivers),
            ("two", OutputKind::AddsUp),
        ]);
        tally.handed_over(30);
        tally.safe("one", OutputKind::Delivers, 20);
        tally.safe("two", OutputKind::Delivers, 25);
        tally.safe("two", OutputKind::Delivers, 24);
        tally.safe("two", OutputKind::AddsUp, 28);
        tally.complete();
        let found = KilledTally::of(&*disk, AgentId([7; 16]), 2).unwrap();
        assert_eq!(found.workers[0], Some(turn(49)));
        assert_eq!((found.is_complete, found.handed), (true, 30));
        assert_eq!(found.begun, None);
        tally.submits(1000);
        tally.begins();
        tally.submits(1010);
        let found = KilledTally::of(&*disk, AgentId([7; 16]), 2).unwrap();
        assert_eq!(found.begun, Some(1000));
        let of = |name: &str, kind, safe, left| KilledOutput {
            name: name.to_owned(),
            kind,
            safe,
            left,
        };
        assert_eq!(found.outputs[2], of("two", OutputKind::AddsUp, 28, 0));

        // Of a bucket that has not ended, and then has; what has left does not come back.
        for left in [22, u64::MAX, 28, 24] {
            tally.leaves("one", left);
        }
        tally.register(&[("one", OutputKind::Delivers), ("three", OutputKind::Delivers)]);
        let found = KilledTally::of(&*disk, AgentId([7; 16]), 2).unwrap();
        let delivers = OutputKind::Delivers;
        assert_eq!(
            found.outputs,
            [of("one", delivers, 20, 28), of("three", delivers, 30, 0)]
        );

        // A kill within a store: some words are new.
        let file = directory.path().join(name(3));
        let mut bytes = std::fs::read(&file).unwrap();
        for place in 0..2 {
            let mut cut = bytes.clone();
            let at = (WORKERS + place * PLACE + 2) * 8;
            cut[at] ^= 1;
            std::fs::write(&file, &cut).unwrap();
            let found = KilledTally::of(&*disk, AgentId([7; 16]), 2).unwrap();
            let open = found.workers[0].unwrap().open;
            assert!(open == 49 || open == 48, "{open}");
            assert!(!found.is_damaged);
        }
        bytes[8] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        let found = KilledTally::of(&*disk, AgentId([7; 16]), 2).unwrap();
        assert!(found.head.is_none() && found.is_damaged);
        assert_eq!(found.workers[0], Some(turn(49)));
    }

    #[test]
    fn every_bit_is_checked() {
        let words = words_of(&head(9));
        for bit in 0..HEAD * 64 {
            let mut words = words;
            words[bit / 64] ^= 1 << (bit % 64);
            assert_eq!(head_of(&words), None, "{bit}");
        }
    }
}
