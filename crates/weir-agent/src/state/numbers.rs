//! `numbers-EPOCH`: the numbers of clients' requests that a process has added lately, in case it is killed.
//!
//! A checkpoint has the numbers of the payloads in it, so what is continued and what is known as added is one thing. This file has those
//! that no checkpoint has yet. One of them counts if its points may have left the process all the same: its bucket has ended, and an output
//! may have begun to send it (a word of the tally says that before a byte leaves). Otherwise its points died with the process, and the
//! client, which got no answer, sends them again.
//!
//! As the tally, the file is mapped into memory and not synced. A worker stores a number when all points of the payload are in the
//! bucket, and a bucket does not end before that.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::watch;
use weir_ingest::{AddedNumber, NotedBucket, NumberLink, RequestNumber};

use super::tally::check;
use weir_system::disk::{self, Disk, Words};

/// Numbers of a worker that may wait for a checkpoint: as many as it may add in a second or two.
const NOTES: usize = 1024;

/// Payload, client (two words), number, oldest, bucket, samples in ended buckets, check.
const NOTE: usize = 8;

/// In versions before, a note did not have the samples.
const OLD_NOTE: usize = NOTE - 1;

const WORKER: usize = NOTES * NOTE;

/// The beginning of the names of all these files.
pub const BEGINNING: &str = "numbers-";

fn name(epoch: u64) -> String {
    format!("{BEGINNING}{epoch}")
}

/// The file of this process.
pub struct NumberNotes {
    words: Words,
}

impl NumberNotes {
    pub fn new(disk: &dyn Disk, epoch: u64, workers: usize) -> io::Result<NumberNotes> {
        let words = disk.map(&name(epoch), workers * WORKER)?;
        Ok(NumberNotes { words })
    }

    fn store(&self, worker: usize, added: &AddedNumber) {
        let RequestNumber {
            client,
            number,
            oldest,
        } = added.number;
        let at = worker * WORKER + (added.payload % NOTES as u64) as usize * NOTE;
        let mut words = [
            added.payload,
            (client >> 64) as u64,
            client as u64,
            number,
            oldest,
            added.bucket.start as u64,
            added.bucket.ended.unwrap_or(0),
            0,
        ];
        words[NOTE - 1] = check(&words[..NOTE - 1]);
        // A kill between two of them leaves a note whose check is wrong: that of a payload that has left nowhere.
        for (offset, word) in words.into_iter().enumerate() {
            self.words.store(at + offset, word);
        }
    }

    /// The way of a worker to it.
    pub fn link(self: &Arc<Self>, worker: usize, saved: &SavedPayloads) -> NumberLink {
        let notes = self.clone();
        NumberLink {
            note: Box::new(move |added| notes.store(worker, added)),
            notes_max: NOTES as u64,
            saved: saved.workers[worker].clone(),
            is_failing: saved.is_failing.clone(),
        }
    }
}

/// The notes of each of `workers` of a killed process; empty if it had none.
pub fn read(disk: &dyn Disk, epoch: u64, workers: usize) -> Vec<Vec<AddedNumber>> {
    let bytes = disk::read(disk, &name(epoch)).unwrap_or_default();
    let words: Vec<u64> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes))
        .collect();
    let size = match words.len() == workers * NOTES * OLD_NOTE {
        true => OLD_NOTE,
        false => NOTE,
    };
    let worker = |words: &[u64]| {
        let mut notes: Vec<AddedNumber> = words.chunks_exact(size).filter_map(note).collect();
        notes.sort_unstable_by_key(|note| note.payload);
        notes
    };
    words.chunks_exact(NOTES * size).map(worker).collect()
}

fn note(words: &[u64]) -> Option<AddedNumber> {
    let (last, words) = words.split_last()?;
    let is_whole = words[0] > 0 && *last == check(words);
    is_whole.then(|| AddedNumber {
        payload: words[0],
        number: RequestNumber {
            client: u128::from(words[1]) << 64 | u128::from(words[2]),
            number: words[3],
            oldest: words[4],
        },
        bucket: NotedBucket {
            start: words[5] as i64,
            ended: words.get(6).copied(),
        },
    })
}

/// Removes those of processes that `is_over` says it of.
pub fn forget(disk: &dyn Disk, is_over: impl Fn(u64) -> bool) {
    for name in disk.names().unwrap_or_default() {
        let epoch = name.strip_prefix(BEGINNING).and_then(|epoch| epoch.parse().ok());
        if epoch.is_some_and(&is_over) {
            let _ = disk.remove(&name);
        }
    }
}

/// The payloads that a kill does not lose any more: by worker, those up to this one are in a checkpoint that counts.
#[derive(Clone)]
pub struct SavedPayloads {
    workers: Arc<[Arc<AtomicU64>]>,
    is_failing: Arc<AtomicBool>,
    changed: watch::Sender<()>,
}

impl Default for SavedPayloads {
    fn default() -> Self {
        SavedPayloads::new(0, Arc::default())
    }
}

impl SavedPayloads {
    /// `is_failing`: the last checkpoint could not be written.
    pub fn new(workers: usize, is_failing: Arc<AtomicBool>) -> SavedPayloads {
        SavedPayloads {
            workers: (0..workers).map(|_| Arc::default()).collect(),
            is_failing,
            changed: watch::Sender::new(()),
        }
    }

    /// A checkpoint that counts has the payloads of a worker up to this one.
    pub fn set(&self, worker: usize, payload: u64) {
        if let Some(saved) = self.workers.get(worker) {
            saved.fetch_max(payload, Ordering::AcqRel);
        }
        self.changed.send_replace(());
    }

    /// `is_failing` has changed.
    pub fn changed(&self) {
        self.changed.send_replace(());
    }

    pub fn has(&self, worker: usize, payload: u64) -> bool {
        let saved = self.workers.get(worker);
        saved.is_none_or(|saved| saved.load(Ordering::Acquire) >= payload)
    }

    /// Waits until it is saved. False: checkpoints cannot be written.
    pub async fn wait(&self, worker: usize, payload: u64) -> bool {
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if self.has(worker, payload) {
                return true;
            }
            if self.is_failing.load(Ordering::Acquire) || changed.changed().await.is_err() {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_system::disk::SystemDisk;

    fn added(payload: u64) -> AddedNumber {
        AddedNumber {
            payload,
            number: RequestNumber {
                client: 5 << 64 | u128::from(payload),
                number: payload + 1,
                oldest: payload,
            },
            bucket: NotedBucket {
                start: -1000 + payload as i64,
                ended: Some(3 * payload),
            },
        }
    }

    #[test]
    fn the_last_notes_of_each_worker_are_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let disk = SystemDisk::of(directory.path());
        assert!(read(&disk, 3, 2).is_empty());
        let notes = Arc::new(NumberNotes::new(&disk, 3, 2).unwrap());
        let saved = SavedPayloads::new(2, Arc::default());
        let (first, second) = (notes.link(0, &saved), notes.link(1, &saved));
        assert_eq!(read(&disk, 3, 2), vec![Vec::new(); 2]);
        let all = NOTES as u64 + 5;
        (1..=all).for_each(|payload| (first.note)(&added(payload)));
        (second.note)(&added(1));
        let found = read(&disk, 3, 2);
        assert_eq!(found, [(6..=all).map(added).collect(), vec![added(1)]]);
        forget(&disk, |epoch| epoch == 3);
        assert!(read(&disk, 3, 2).is_empty());
    }

    /// A kill may come between any two words of a note.
    #[test]
    fn a_note_that_is_half_stored_is_not_read() {
        for whole in 1..NOTE {
            let directory = tempfile::tempdir().unwrap();
            let disk = SystemDisk::of(directory.path());
            let notes = Arc::new(NumberNotes::new(&disk, 1, 1).unwrap());
            notes.store(0, &added(1));
            let bytes = disk::read(&disk, &name(1)).unwrap();
            let of_later = NumberNotes::new(&disk, 2, 1).unwrap();
            of_later.store(0, &added(1 + NOTES as u64));
            for word in whole + NOTE..2 * NOTE {
                let at = word * 8;
                let old = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                of_later.words.store(word, old);
            }
            assert_eq!(read(&disk, 2, 1)[0], [], "{whole}");
        }
    }

    /// A process of a version before this one may have been killed.
    #[test]
    fn notes_without_ended_samples_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let disk = SystemDisk::of(directory.path());
        let words = disk.map(&name(4), 2 * NOTES * OLD_NOTE).unwrap();
        let mut note = [7, 0, 9, 8, 7, 1000, 0];
        note[OLD_NOTE - 1] = check(&note[..OLD_NOTE - 1]);
        let at = (NOTES + 7) * OLD_NOTE;
        (at..).zip(note).for_each(|(at, word)| words.store(at, word));
        let found = read(&disk, 4, 2);
        let bucket = NotedBucket {
            start: 1000,
            ended: None,
        };
        assert_eq!(
            found[1].iter().map(|note| note.bucket).collect::<Vec<_>>(),
            [bucket]
        );
        assert_eq!((found[0].len(), found[1][0].number.number), (0, 8));
    }

    #[tokio::test]
    async fn a_payload_waits_for_its_checkpoint_or_for_its_failure() {
        let failing = Arc::new(AtomicBool::new(false));
        let saved = SavedPayloads::new(1, failing.clone());
        saved.set(0, 4);
        assert!(saved.wait(0, 4).await);
        let other = saved.clone();
        let waits = tokio::spawn(async move { (other.wait(0, 6).await, other.wait(0, 7).await) });
        tokio::task::yield_now().await;
        saved.set(0, 5);
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        saved.set(0, 6);
        tokio::task::yield_now().await;
        failing.store(true, Ordering::Release);
        saved.changed();
        assert_eq!(waits.await.unwrap(), (true, false));
        // Without a state directory nothing is waited for.
        assert!(SavedPayloads::default().wait(3, 9).await);
    }
}
