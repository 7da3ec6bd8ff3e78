//! A log in files of one machine. Any number of processes append. One process at a time reads and commits; the next one waits for its end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use weir_merge::{Assignment, Commit, CommitError, Fetched, Log, Message, Plan, Quarantined};

use crate::checked;
use crate::frames::{Damage, FRAME_BYTES_MAX, Frames, Numbered, TornNumbers};
use crate::{Error, plan};

/// Size at which a new file begins.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The first byte of each frame.
const VERSION: u8 = 1;

/// Results of one commit have numbers below this, appended to the number of the commit.
const RESULTS_MAX: u64 = 1 << 20;

/// Files of an output in a partition: its position; its sums, with the position behind them.
const SENT: &str = "sent";
const SUMS: &str = "sums";

/// Longest wait for a lock: another process holds it while it writes.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Sleep between two attempts to take a lock.
const LOCK_STEP: Duration = Duration::from_millis(2);

/// Unix milliseconds.
pub type Clock = fn() -> i64;

/// The clock of the machine.
pub fn unix_milliseconds() -> i64 {
    UNIX_EPOCH.elapsed().map_or(0, |now| now.as_millis() as i64)
}

/// A record in a file.
#[derive(Serialize, Deserialize)]
struct StoredRecord<'a> {
    appended: i64,
    sent: i64,
    bytes: &'a [u8],
}

/// A commit in a file.
#[derive(Serialize, Deserialize)]
struct KeptCommit {
    offset: u64,
    snapshot: Vec<u8>,
    results: Vec<Vec<u8>>,
    quarantined: Vec<(u64, String, Vec<u8>)>,
}

#[derive(Debug)]
struct Partition {
    records: Frames,
    commits: Frames,
    /// The number after the last result that was read, and the commit to continue with.
    results: Option<(u64, u64)>,
    /// Lock file: its holder may append a record.
    appending: PathBuf,
    directory: PathBuf,
}

/// The log. See [`weir_merge::Log`].
#[derive(Debug)]
pub struct FileLog {
    directory: PathBuf,
    clock: Clock,
    opened: Instant,
    file_bytes_max: u64,
    partitions: Vec<Partition>,
    /// `None`: the log as agents and owners see it.
    output: Option<String>,
    /// Lock of the process that has all partitions: of the owner, or of this output.
    owning: Option<File>,
    /// Partitions already reported to their owner.
    reported: usize,
    lock_wait: Duration,
}

impl FileLog {
    /// Opens a directory. Creates it with this many partitions if missing.
    pub fn open(directory: &Path, partitions: u32, clock: Clock) -> Result<Self, Error> {
        FileLog::with_files_of(directory, partitions, clock, FILE_BYTES_MAX)
    }

    /// The same with another file size.
    pub fn with_files_of(
        directory: &Path,
        partitions: u32,
        clock: Clock,
        file_bytes_max: u64,
    ) -> Result<Self, Error> {
        std::fs::create_dir_all(directory).map_err(Error::io(directory))?;
        let _making = lock(&directory.join("plan.lock"), LOCK_WAIT)?;
        if plan::read(directory)?.is_none() {
            // The first partition is made after the plan.
            if directory.join("0").exists() {
                return Err(checked::damaged(&directory.join(plan::FILE), "it is missing"));
            }
            plan::create(directory, partitions)?;
        }
        let mut log = FileLog {
            directory: directory.to_owned(),
            clock,
            opened: Instant::now(),
            file_bytes_max,
            partitions: Vec::new(),
            output: None,
            owning: None,
            reported: 0,
            lock_wait: LOCK_WAIT,
        };
        log.follow_plan()?;
        Ok(log)
    }

    /// The log as this output sees it: results, and the output's own positions.
    pub fn of_output(mut self, output: &str) -> Self {
        self.output = Some(output.to_owned());
        self
    }

    /// Divides series among this many partitions, beginning with the bucket that starts at `from`.
    pub fn announce(&mut self, from: i64, partitions: u32) -> Result<(), Error> {
        let _changing = lock(&self.directory.join("plan.lock"), self.lock_wait)?;
        plan::announce(&self.directory, from, partitions)
    }

    /// Waits at most this long for a lock of another process, instead of 10 s.
    pub fn wait_for_locks(&mut self, wait: Duration) {
        self.lock_wait = wait;
    }

    fn follow_plan(&mut self) -> Result<Plan, Error> {
        let (plan, most) = plan::read(&self.directory)?.unwrap_or((Plan::new(1), 1));
        for number in self.partitions.len()..most as usize {
            let directory = self.directory.join(number.to_string());
            let frames = |of, torn| Frames::open(directory.join(of), self.file_bytes_max, torn);
            self.partitions.push(Partition {
                records: frames("records", TornNumbers::Skipped)?,
                // One process commits. Without its last commit it makes the same results again, with the same numbers.
                commits: frames("commits", TornNumbers::Reused)?,
                results: None,
                appending: directory.join("append.lock"),
                directory,
            });
        }
        Ok(plan)
    }

    fn partition(&mut self, partition: u32) -> Result<&mut Partition, Error> {
        let partitions = self.partitions.len();
        self.partitions
            .get_mut(partition as usize)
            .ok_or(Error::NoPartition {
                partition,
                partitions,
            })
    }

    /// Incomplete frames at the ends of files, which any process has moved aside.
    pub fn torn_bytes(&self) -> Result<u64, Error> {
        let all = self.partitions.iter();
        let mut all = all.flat_map(|partition| [&partition.records, &partition.commits]);
        all.try_fold(0, |sum, frames| Ok(sum + frames.torn_bytes()?))
    }

    /// The damage that this process has found in the files that it read.
    pub fn damage(&self) -> Vec<Damage> {
        let all = self.partitions.iter();
        let all = all.flat_map(|partition| partition.records.damage().chain(partition.commits.damage()));
        all.cloned().collect()
    }

    /// Removes files with only records before the committed offset, and commits whose results all of these outputs have.
    pub fn prune(&mut self, partition: u32, outputs: &[String]) -> Result<(), Error> {
        let committed = self.committed(partition)?;
        let mut sent = None;
        for output in outputs {
            let position = position(&self.partition(partition)?.of_output(output, SENT))?;
            sent = Some(sent.map_or(position, |least: u64| least.min(position)));
        }
        let partition = self.partition(partition)?;
        if let Some((_, offset)) = committed {
            partition.records.remove_before(offset)?;
        }
        partition.commits.remove_before(sent.unwrap_or(0) / RESULTS_MAX)
    }

    /// Files have no index of times: the first result that is kept.
    pub fn results_near(&mut self, partition: u32, _milliseconds: i64) -> Result<u64, Error> {
        self.results_start(partition)
    }

    /// The position of this output.
    pub fn position(&mut self, partition: u32) -> Result<u64, Error> {
        position(&self.position_file(partition)?)
    }

    /// Moves the position of this output back to `before`. Fails while another process has the output.
    pub fn rewind(&mut self, partition: u32, before: u64) -> Result<(), Error> {
        self.assignments()?;
        if self.owning.is_none() {
            let output = self.output.clone().unwrap_or_default();
            return Err(Error::Held { output });
        }
        checked::write(&self.position_file(partition)?, format!("{before}\n"))
    }

    /// The quarantined records of all commits that are kept.
    pub fn quarantined(&mut self, partition: u32) -> Result<Vec<Quarantined>, Error> {
        let (frames, _) = self.partition(partition)?.commits.read(0, usize::MAX)?;
        let mut quarantined = Vec::new();
        for frame in &frames {
            quarantined.extend(kept_commit(partition, frame)?.quarantined);
        }
        let quarantined = quarantined.into_iter();
        Ok(quarantined
            .map(|(offset, reason, bytes)| Quarantined {
                offset,
                reason,
                bytes,
            })
            .collect())
    }
}

impl Log for FileLog {
    type Error = Error;

    fn plan(&mut self) -> Result<Plan, Error> {
        self.follow_plan()
    }

    fn append(&mut self, partition: u32, sent: i64, bytes: &[u8]) -> Result<u64, Error> {
        self.follow_plan()?;
        let appended = (self.clock)();
        let wait = self.lock_wait;
        let partition = self.partition(partition)?;
        let _appending = lock(&partition.appending, wait)?;
        let kept = StoredRecord {
            appended,
            sent,
            bytes,
        };
        partition.records.append(&encoded(&kept)?)
    }

    fn assignments(&mut self) -> Result<Vec<Assignment>, Error> {
        self.follow_plan()?;
        if self.owning.is_none() {
            let path = self.directory.join(match &self.output {
                None => "owner.lock".to_owned(),
                Some(output) => format!("output-{output}.lock"),
            });
            let file = lock_file(&path)?;
            match file.try_lock() {
                Ok(()) => self.owning = Some(file),
                Err(std::fs::TryLockError::WouldBlock) => return Ok(Vec::new()),
                Err(std::fs::TryLockError::Error(error)) => return Err(Error::io(&path)(error)),
            }
        }
        let new = self.reported..self.partitions.len();
        self.reported = new.end;
        let assigned = new.map(|partition| Assignment::Assigned {
            partition: partition as u32,
            generation: 0,
        });
        Ok(assigned.collect())
    }

    fn fetch(&mut self, partition: u32, from: u64, bytes_max: usize) -> Result<Fetched, Error> {
        let now = (self.clock)();
        let monotonic = self.opened.elapsed().as_millis() as i64;
        let records = &mut self.partition(partition)?.records;
        let start = records.start()?;
        let (frames, next) = records.read(from, bytes_max)?;
        let (end, torn) = records.end()?;
        // Torn frames may have been read before they were damaged; their numbers are not used again.
        let end = match from.checked_sub(end + torn) {
            None | Some(0) => end.max(next),
            Some(cut) => {
                records.count_cut(cut)?;
                end
            }
        };
        Ok(Fetched {
            start,
            end,
            messages: frames
                .iter()
                .map(|frame| message(partition, frame))
                .collect::<Result<_, Error>>()?,
            next: next.min(end),
            now: Some(now),
            monotonic,
        })
    }

    fn committed(&mut self, partition: u32) -> Result<Option<(Vec<u8>, u64)>, Error> {
        if let Some(output) = self.output.clone() {
            return sums(&self.partition(partition)?.of_output(&output, SUMS));
        }
        let commits = &mut self.partition(partition)?.commits;
        let Some(last) = commits.last()? else {
            return Ok(None);
        };
        let (frames, _) = commits.read(last, 1)?;
        // Without its snapshot, an owner would merge every record again.
        let frame = frames.first().ok_or(Error::Form {
            partition,
            what: "commit",
            number: last,
        })?;
        let commit = kept_commit(partition, frame)?;
        Ok(Some((commit.snapshot, commit.offset)))
    }

    fn commit(&mut self, partition: u32, generation: u64, commit: &Commit) -> Result<(), CommitError<Error>> {
        // The process with the lock is the only owner until it ends.
        if self.owning.is_none() {
            return Err(CommitError::Fenced);
        }
        if let Some(output) = self.output.clone() {
            let path = self.partition(partition)?.of_output(&output, SUMS);
            let sums = [&commit.offset.to_le_bytes(), &*commit.snapshot].concat();
            checked::write(&path, sums)?;
            return self.record_results_sent(partition, generation, commit.offset);
        }
        let quarantined = commit.quarantined.iter();
        let kept = KeptCommit {
            offset: commit.offset,
            snapshot: commit.snapshot.clone(),
            results: commit.results.clone(),
            quarantined: quarantined
                .map(|one| (one.offset, one.reason.clone(), one.bytes.clone()))
                .collect(),
        };
        let frame = encoded(&kept)?;
        self.partition(partition)?.commits.append(&frame)?;
        Ok(())
    }

    fn results(&mut self, partition: u32, from: u64, bytes_max: usize) -> Result<Vec<Numbered>, Error> {
        let of = self.partition(partition)?;
        // A reader continues with the number after the last result, so that this commit is not read again.
        let known = of.results.filter(|(behind, _)| *behind == from);
        let commit = known.map_or(from / RESULTS_MAX, |(_, commit)| commit);
        let (frames, next) = of.commits.read(commit, bytes_max)?;
        let mut results = Vec::new();
        for frame in &frames {
            let commit = kept_commit(partition, frame)?;
            results.extend((frame.0 * RESULTS_MAX..).zip(commit.results));
        }
        results.retain(|(number, _)| *number >= from);
        let behind = results.last().map_or(from, |(number, _)| number + 1);
        self.partition(partition)?.results = Some((behind, next));
        Ok(results)
    }

    fn results_start(&mut self, partition: u32) -> Result<u64, Error> {
        Ok(self.partition(partition)?.commits.start()? * RESULTS_MAX)
    }

    fn results_sent(&mut self, partition: u32) -> Result<u64, Error> {
        self.position(partition)
    }

    fn record_results_sent(
        &mut self,
        partition: u32,
        _generation: u64,
        before: u64,
    ) -> Result<(), CommitError<Error>> {
        if self.owning.is_none() {
            return Err(CommitError::Fenced);
        }
        checked::write(&self.position_file(partition)?, format!("{before}\n"))?;
        Ok(())
    }
}

impl FileLog {
    fn position_file(&mut self, partition: u32) -> Result<PathBuf, Error> {
        let output = self.output.clone().unwrap_or_default();
        Ok(self.partition(partition)?.of_output(&output, SENT))
    }
}

impl Partition {
    fn of_output(&self, output: &str, what: &str) -> PathBuf {
        self.directory.join(format!("{what}-{output}"))
    }
}

/// The number in a file of an output's position.
fn position(path: &Path) -> Result<u64, Error> {
    let Some(text) = checked::read(path)? else {
        return Ok(0);
    };
    let number = text.trim().parse();
    number.map_err(|_| checked::damaged(path, "it has no number"))
}

/// An output's sums, and the position behind them, which goes before the sums.
fn sums(path: &Path) -> Result<Option<(Vec<u8>, u64)>, Error> {
    let Some(mut bytes) = checked::read_bytes(path)? else {
        return Ok(None);
    };
    let position = bytes.first_chunk().copied().map(u64::from_le_bytes);
    let position = position.ok_or_else(|| checked::damaged(path, "it has no position"))?;
    Ok(Some((bytes.split_off(size_of::<u64>()), position)))
}

fn message(partition: u32, (offset, frame): &Numbered) -> Result<Message, Error> {
    let kept: StoredRecord = kept(partition, "record", *offset, frame)?;
    Ok(Message {
        offset: *offset,
        appended: kept.appended,
        sent: kept.sent,
        bytes: kept.bytes.to_vec(),
    })
}

fn kept_commit(partition: u32, (number, frame): &Numbered) -> Result<KeptCommit, Error> {
    kept(partition, "commit", *number, frame)
}

/// Decodes a frame after its version.
fn kept<'a, T: Deserialize<'a>>(
    partition: u32,
    what: &'static str,
    number: u64,
    frame: &'a [u8],
) -> Result<T, Error> {
    let rest = frame.strip_prefix(&[VERSION]);
    let kept = rest.and_then(|rest| postcard::from_bytes(rest).ok());
    kept.ok_or(Error::Form {
        partition,
        what,
        number,
    })
}

fn encoded(kept: &impl Serialize) -> Result<Vec<u8>, Error> {
    postcard::to_extend(kept, vec![VERSION]).map_err(|_| Error::TooLarge {
        bytes: usize::MAX,
        max: FRAME_BYTES_MAX,
    })
}

fn lock_file(path: &Path) -> Result<File, Error> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    options.open(path).map_err(Error::io(path))
}

/// Waits for the lock, for a bounded time: a stopped process may hold it.
fn lock(path: &Path, wait: Duration) -> Result<File, Error> {
    let file = lock_file(path)?;
    let until = Instant::now() + wait;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::Error(error)) => return Err(Error::io(path)(error)),
            Err(std::fs::TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOCK_STEP),
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(Error::Locked {
                    path: path.to_owned(),
                    seconds: wait.as_secs(),
                });
            }
        }
    }
}
