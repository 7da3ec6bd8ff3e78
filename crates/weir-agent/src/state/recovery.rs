//! Combines the files of a killed process: its open bucket, its sums, its books, and what is lost. [`super::tally`] says what counts.

use std::collections::BTreeMap;

use weir_ingest::{AddedNumber, KnownClient, NotedBucket, RequestNumber, WorkerTally};
use weir_state::{Bounds, Table};

use super::checkpoints::{Unusable, WorkerCheckpoint};
use super::content::{Content, Encoded, Meta, OpenBucket};
use super::numbers;
use super::tally::{KilledOutput, KilledTally};
use super::{BOOKS, OldBooks, SUMS, StateDir, StateError, file};
use crate::life::fixes::{self, Rule};
use weir_status::status::Status;
use weir_system::disk;

/// The state of a killed process.
#[derive(Debug)]
pub struct Killed {
    /// With the epoch of the process.
    pub content: Content,
    pub lost: Losses,
    /// Files that could not be used, each with the reason and what takes their place.
    pub damaged: Vec<String>,
}

/// The cost of the kill.
#[derive(Debug)]
pub struct Losses {
    /// Samples that the process had received and that are neither in the bucket nor safe at any output.
    pub samples: u64,
    /// Seconds from the last checkpoint of what is continued to the kill.
    pub seconds: f64,
    /// Of these samples, those of buckets that had ended, and were on their way to the outputs.
    pub of_ended: u64,
    /// By output: more samples that this one has not delivered, or has not in its saved sums.
    pub undelivered: BTreeMap<String, u64>,
    /// By output: of the samples that it lacks by these numbers, those that it may have delivered. Their requests were under way.
    pub uncertain: BTreeMap<String, u64>,
}

/// Reads it. `base`: the `state` in the directory. Changes nothing there.
pub fn recover(
    directory: &StateDir,
    tally: &KilledTally,
    base: Option<Box<Content>>,
    bytes_max: u64,
) -> Killed {
    let base = base.filter(|base| tally.head.is_none_or(|head| head.base == base.meta.epoch));
    let mut damaged = Vec::new();
    if tally.is_damaged {
        damaged.push(
            "the tally is damaged: what it cannot say is taken from the other files, and may be missing in the number of lost samples"
                .to_owned(),
        );
    }
    let mut own = |name, substitute: &str| {
        let found = of_process(name, directory, tally, bytes_max);
        found.unwrap_or_else(|refusal| {
            damaged.push(format!("{name} is not used: {refusal}; {substitute}"));
            None
        })
    };
    let earlier = match base {
        Some(_) => "those of the previous process count instead",
        None => "they start from zero",
    };
    let books = own(BOOKS, &format!("books: {earlier}"));
    let sums = own(SUMS, &format!("sums: {earlier}"));
    let last_seen = books.as_ref().map(|books| books.meta.saved_at_ms);
    let found = Found {
        directory,
        tally,
        bytes_max,
        damaged: &mut damaged,
        last_seen,
    };
    let open = match fixes::lacks(Rule::OtherFilesCount) && !found.damaged.is_empty() {
        true => Open::default(),
        false => found.open_bucket(base.as_deref()),
    };
    // The sums have their own number: they count from the instant that it does.
    let summed = sums.as_ref().map(|sums| &sums.meta.summed);
    // The process did not continue its bucket, of another width, and has not said so in books of its own.
    let is_dropped = books.is_none() && tally.head.is_some_and(|head| head.continued.is_none());
    let dropped = base
        .as_ref()
        .filter(|base| is_dropped && base.meta.bucket.is_some());
    let dropped = dropped.map_or(0, |base| base.meta.samples);
    let lost = Losses::of(tally, summed, books.as_ref(), &open, dropped);
    let at_ms = tally.workers.iter().flatten().map(|turn| turn.at_ms).max();
    let (base_outputs, base_books) = base.map(|base| (base.outputs, base.books)).unzip();
    let outputs = sums.map(|sums| sums.outputs).or(base_outputs);
    let books = killed_books(books.map(|books| books.books).or(base_books).unwrap_or_default());
    Killed {
        content: Content {
            meta: Meta {
                version: books.process.version.clone(),
                agent: directory.agent().0,
                // The epoch of an old version is not known, but this process's is the next.
                epoch: if tally.is_old {
                    directory.epoch() - 1
                } else {
                    tally.epoch
                },
                saved_at_ms: at_ms.or(last_seen).unwrap_or(open.since_ms),
                bucket: open.bucket,
                samples: open.samples,
                histogram_points: open.histogram_points,
                workers: open.workers,
                samples_of: open.samples_of,
                ..Meta::default()
            },
            tables: open.tables,
            encoded: open.encoded,
            timestamped: open.timestamped,
            outputs: outputs.unwrap_or_default(),
            queues: BTreeMap::new(),
            clients: open.clients.into_values().collect(),
            books,
        },
        lost,
        damaged,
    }
}

impl Losses {
    fn of(
        tally: &KilledTally,
        summed: Option<&BTreeMap<String, u64>>,
        books: Option<&Content>,
        open: &Open,
        dropped: u64,
    ) -> Losses {
        let turns = || tally.workers.iter().flatten();
        let safe_at = |output: &KilledOutput| {
            let summed = summed.and_then(|summed| summed.get(&output.name));
            summed.map_or(output.safe, |summed| output.safe.max(*summed))
        };
        // At an output at least; or given to all outputs, if there is none that says so.
        let safe = tally.outputs.iter().map(safe_at).max().unwrap_or(tally.handed);
        let ended: u64 = turns().map(|turn| turn.ended).sum();
        let received = match books {
            // The next best: the samples that were in it when the books were written.
            Some(books) if turns().next().is_none() => books.books.state.samples_open,
            _ => ended + turns().map(|turn| turn.open).sum::<u64>(),
        };
        let samples = received.saturating_sub(safe + open.samples) + dropped;
        let newest = turns().map(|turn| turn.bucket).max();
        let is_ended = open.bucket.is_some_and(|bucket| newest > Some(bucket.start));
        let kept_of_ended = if is_ended { open.samples } else { 0 };
        let since_ms = match open.bucket {
            Some(_) => open.since_ms,
            None => {
                let started_ms = tally.head.map_or(0, |head| head.started_ms);
                newest.map_or(0, |newest| newest * 1000).max(started_ms)
            }
        };
        let at_ms = turns().map(|turn| turn.at_ms).max().unwrap_or(since_ms);
        let lacking = |output: &KilledOutput| {
            let missing = safe.min(ended).saturating_sub(safe_at(output));
            (missing > 0).then(|| (output.name.clone(), missing))
        };
        let uncertain = |output: &KilledOutput| {
            let (delivered, lacks) = (safe_at(output), samples + safe.min(ended));
            let may_be_there = output.left.min(ended).min(lacks).saturating_sub(delivered);
            (may_be_there > 0).then(|| (output.name.clone(), may_be_there))
        };
        Losses {
            samples,
            of_ended: ended.saturating_sub(safe + kept_of_ended).min(samples),
            seconds: (at_ms - since_ms).max(0) as f64 / 1e3,
            undelivered: tally.outputs.iter().filter_map(lacking).collect(),
            uncertain: tally.outputs.iter().filter_map(uncertain).collect(),
        }
    }
}

/// A file of the killed process, not of one before it.
fn of_process(
    name: &str,
    directory: &StateDir,
    tally: &KilledTally,
    bytes_max: u64,
) -> Result<Option<Content>, StateError> {
    match file::read(directory.disk(), name, bytes_max) {
        Err(StateError::NotState) if name == BOOKS && tally.is_old => {
            let bytes = disk::read(directory.disk(), name).unwrap_or_default();
            let old: OldBooks =
                serde_json::from_slice(&bytes).map_err(|error| StateError::Invalid(error.to_string()))?;
            let is_own = old.agent == directory.agent().to_string();
            Ok(is_own.then(|| Content {
                books: Box::new(old.books),
                ..Content::empty(Meta {
                    saved_at_ms: old.at_ms,
                    ..Meta::default()
                })
            }))
        }
        Err(refusal) => Err(refusal),
        Ok(found) => Ok(found.filter(|found| {
            let is_of_process = tally.is_old || found.meta.epoch == tally.epoch;
            found.meta.agent == directory.agent().0 && is_of_process
        })),
    }
}

/// The open bucket, as far as it is known.
#[derive(Default)]
struct Open {
    bucket: Option<OpenBucket>,
    histogram_points: String,
    /// By worker.
    tables: BTreeMap<u16, Table>,
    encoded: Encoded,
    timestamped: BTreeMap<u16, Vec<Vec<u8>>>,
    samples: u64,
    /// See [`Meta::workers`] and [`Meta::samples_of`].
    workers: usize,
    samples_of: BTreeMap<u16, u64>,
    /// The numbers of requests whose points are in it, or are in one that has ended.
    clients: BTreeMap<u128, KnownClient>,
    /// Unix milliseconds of the last checkpoint in it, of the worker with the oldest.
    since_ms: i64,
}

struct Found<'a> {
    directory: &'a StateDir,
    tally: &'a KilledTally,
    bytes_max: u64,
    damaged: &'a mut Vec<String>,
    /// Unix milliseconds of the last books.
    last_seen: Option<i64>,
}

impl Found<'_> {
    fn open_bucket(mut self, base: Option<&Content>) -> Open {
        let tally = self.tally;
        let turns = || tally.workers.iter().flatten();
        // Without the beginning of the tally the files of the process say whether they are complete.
        let files = match tally.is_complete || tally.head.is_none() {
            true => self.files(),
            false => Vec::new(),
        };
        let clients = self.clients(base, &files);
        if !tally.is_complete && files.iter().all(Option::is_none) {
            return Open {
                clients,
                ..self.open_base(base)
            };
        }
        let begins = || files.iter().flatten().map(|file| file.begin.bucket);
        // A clock that is set back brings a bucket again: the file may be of the one that has ended.
        let is_current = |turn: &Option<WorkerTally>, file: &WorkerCheckpoint| {
            let ended = turn.map(|turn| turn.ended).zip(file.begin.ended);
            ended.is_none_or(|(now, then)| now == then)
        };
        let current = || {
            let of_workers = tally.workers.iter().zip(&files);
            of_workers
                .filter_map(|(turn, file)| Some((turn, file.as_ref()?)))
                .filter(|(turn, file)| is_current(turn, file))
                .map(|(_, file)| file.begin.bucket)
        };
        let newest = turns().map(|turn| turn.bucket).max();
        // Where no worker says that it has ended, the time does.
        let is_open = |bucket: OpenBucket| match newest {
            Some(newest) => bucket.start == newest,
            None => self.last_seen.is_none_or(|at| at < bucket.end_ms()),
        };
        // If the newest has no checkpoint yet, that of the bucket before counts, as long as nothing of it may have left.
        let open = current().filter(|bucket| is_open(*bucket)).max();
        let ended = begins().filter(|bucket| !self.has_begun(bucket.start)).max();
        let Some(kept) = open.or(ended) else {
            return Open {
                clients,
                ..Open::default()
            };
        };
        let mut result = Open {
            clients,
            workers: tally.workers.len(),
            ..Open::default()
        };
        for (worker, (turn, file)) in (0..).zip(tally.workers.iter().zip(files)) {
            let is_used = |file: &WorkerCheckpoint| {
                (turn.is_some() || !tally.is_old) && (open.is_none() || is_current(turn, file))
            };
            if let Some(file) = file.filter(|file| is_used(file) && file.begin.bucket.start == kept.start) {
                result.add(worker, file);
            }
        }
        result
    }

    /// The numbers that were added: those in checkpoints, and those noted later whose points may have left the process. The points of all
    /// others died with it, and their clients have no answer.
    fn clients(
        &self,
        base: Option<&Content>,
        files: &[Option<WorkerCheckpoint>],
    ) -> BTreeMap<u128, KnownClient> {
        let mut clients = BTreeMap::new();
        let known = base.iter().flat_map(|base| &base.clients);
        let known = known.chain(files.iter().flatten().flat_map(|file| file.clients.values()));
        for known in known {
            let client = clients.entry(known.client).or_insert(*known);
            client.merge(known);
        }
        let workers = self.tally.workers.len();
        let notes = numbers::read(self.directory.disk(), self.tally.epoch, workers);
        for (worker, notes) in notes.into_iter().enumerate() {
            let file = files.get(worker).and_then(Option::as_ref);
            let saved = file.map_or(0, |file| file.mark.payloads);
            let turn = self.tally.workers.get(worker).copied().flatten();
            let has_left = |note: &AddedNumber| {
                if fixes::lacks(Rule::NotedNumbersCount) {
                    return false;
                }
                if fixes::lacks(Rule::NumbersCountWithTheirPoints) {
                    return true;
                }
                let NotedBucket { start, ended } = note.bucket;
                let is_open = turn.is_some_and(|turn| {
                    turn.bucket == start && ended.is_none_or(|ended| turn.ended == ended)
                });
                self.has_begun(start) && !is_open
            };
            let left = notes.iter().filter(|note| note.payload > saved && has_left(note));
            for note in left {
                let RequestNumber {
                    client,
                    number,
                    oldest,
                } = note.number;
                let new = KnownClient::new(client, oldest);
                let client = clients.entry(client).or_insert(new);
                if !client.has(number) {
                    client.add(number, oldest);
                }
            }
        }
        clients
    }

    /// The bucket that the process began with.
    fn open_base(&self, base: Option<&Content>) -> Open {
        let bucket = base.and_then(|base| base.meta.bucket).map(|bucket| bucket.start);
        let continued = match self.tally.head {
            Some(head) => head.continued,
            None => bucket,
        };
        let mut turns = self.tally.workers.iter().flatten();
        // A clock that is set back can bring the same bucket again, so one that has ended is no open one.
        let is_open =
            |start| !self.has_begun(start) || turns.all(|turn| turn.bucket == start && turn.ended == 0);
        let is_open = continued.is_some_and(is_open) || bucket.is_none();
        let base = base.filter(|_| is_open);
        let since_ms = self.tally.head.map_or(0, |head| head.started_ms);
        Open {
            since_ms,
            ..base.map(Open::of).unwrap_or_default()
        }
    }

    /// An output may have something of this bucket.
    fn has_begun(&self, start: i64) -> bool {
        self.tally.begun.is_some_and(|begun| begun >= start) && !fixes::lacks(Rule::BegunBucketsEnd)
    }

    /// Of each worker.
    fn files(&mut self) -> Vec<Option<WorkerCheckpoint>> {
        let (agent, epoch) = (self.directory.agent(), self.tally.epoch);
        let disk = self.directory.disk();
        let read = |worker| WorkerCheckpoint::read(disk, worker, agent, epoch, self.bytes_max);
        let files = (0..self.tally.workers.len()).map(read).enumerate();
        let usable = |(worker, file)| match file {
            Ok(file) => Some(file),
            Err(Unusable::Missing) => None,
            Err(Unusable::Damaged(reason)) => {
                self.damaged
                    .push(format!("the checkpoint of worker {worker} is not used: {reason}"));
                None
            }
        };
        files.map(usable).collect()
    }
}

impl Open {
    fn of(base: &Content) -> Open {
        Open {
            bucket: base.meta.bucket,
            histogram_points: base.meta.histogram_points.clone(),
            tables: base.tables.clone(),
            encoded: base.encoded.clone(),
            timestamped: base.timestamped.clone(),
            samples: base.meta.samples,
            workers: base.meta.workers,
            samples_of: base.meta.samples_of.clone(),
            ..Open::default()
        }
    }

    fn add(&mut self, worker: u16, file: WorkerCheckpoint) {
        self.since_ms = match self.bucket {
            None => file.mark.at_ms,
            Some(_) => self.since_ms.min(file.mark.at_ms),
        };
        self.bucket = self.bucket.max(Some(file.begin.bucket));
        self.timestamped.insert(worker, file.timestamped());
        self.histogram_points = file.begin.histogram_points;
        self.samples += file.mark.samples;
        self.samples_of.insert(worker, file.mark.samples);
        let mut table = Table::new(Bounds::NONE);
        for (identity, facts, state) in file.series.into_values() {
            table.add(identity, facts, state);
        }
        self.tables.insert(worker, table);
    }
}

/// Points that outputs had in memory are lost.
fn killed_books(mut books: Box<Status>) -> Box<Status> {
    for output in &mut books.outputs {
        *output = output.killed();
    }
    books
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use weir_ingest::WorkerTally;
    use weir_protocol::Kind;
    use weir_state::{AgentId, ExactSum, Facts, Identity, State};

    use weir_system::disk::{Disk, SystemDisk};

    use super::super::StoredAgent;
    use super::super::tally::{Head, OutputKind, Tally};
    use super::*;

    const WIDTH: u32 = 10;

    fn base(directory: &StateDir, samples: u64) -> Content {
        let mut content = Content::empty(Meta {
            agent: directory.agent().0,
            epoch: directory.epoch() - 1,
            bucket: Some(OpenBucket {
                start: 1000,
                timestamp: 1000,
                width: WIDTH,
            }),
            samples,
            ..Meta::default()
        });
        let identity = Identity::new(Kind::Counter, "c", None, None, std::iter::empty());
        let facts = Facts {
            seen: 1001,
            suffixes: 0,
        };
        content
            .table_of(0)
            .add(identity, facts, State::Counter(ExactSum::from(samples as f64)));
        content
    }

    /// A process that began with 40 samples and was killed.
    struct Case {
        _parent: tempfile::TempDir,
        directory: StateDir,
        tally: Arc<Tally>,
        workers: Vec<Box<dyn Fn(WorkerTally) + Send>>,
    }

    fn directory_of(path: &Path) -> StateDir {
        let disk: Arc<dyn Disk> = Arc::new(SystemDisk::of(path));
        let agent = StoredAgent::of(&disk, 1000, None, || Ok(AgentId([7; 16]))).unwrap();
        StateDir::new(path, disk, agent, None)
    }

    impl Case {
        fn new() -> Case {
            let parent = tempfile::tempdir().unwrap();
            let directory = directory_of(parent.path());
            let head = Head {
                agent: directory.agent(),
                epoch: directory.epoch(),
                base: directory.epoch() - 1,
                continued: Some(1000),
                workers: 2,
                started_ms: 1_005_000,
            };
            let tally = Arc::new(Tally::new(directory.shared_disk(), head, &[40]).unwrap());
            tally.publish().unwrap();
            Case {
                workers: (0..2).map(|worker| tally.of_worker(worker)).collect(),
                tally,
                directory,
                _parent: parent,
            }
        }

        fn turn(&self, worker: usize, bucket: i64, open: u64, ended: u64) {
            self.workers[worker](WorkerTally {
                bucket,
                open,
                ended,
                at_ms: 1_006_000,
            });
        }

        /// Samples that are continued, that are lost, and of these those of ended buckets.
        fn after(&self) -> (u64, u64, u64) {
            let killed = self.killed();
            let series: usize = killed.content.tables.values().map(Table::len).sum();
            assert_eq!(series > 0, killed.content.meta.samples > 0);
            (
                killed.content.meta.samples,
                killed.lost.samples,
                killed.lost.of_ended,
            )
        }

        fn killed(&self) -> Killed {
            let directory = &self.directory;
            let before = directory.epoch() - 1;
            let tally = KilledTally::of(directory.disk(), directory.agent(), before).unwrap();
            let killed = recover(directory, &tally, Some(Box::new(base(directory, 40))), u64::MAX);
            assert_eq!(killed.damaged, Vec::<String>::new());
            killed
        }
    }

    /// Whatever a worker has received or ended is either continued, safe or lost.
    #[test]
    fn what_a_process_began_with_counts_until_something_of_it_may_have_left() {
        let case = Case::new();
        assert_eq!(case.after(), (40, 0, 0), "before the first turn");
        case.turn(0, 1000, 43, 0);
        assert_eq!(case.after(), (40, 3, 0), "received, without a checkpoint");
        case.turn(1, 1000, 2, 0);
        assert_eq!(case.after(), (40, 5, 0));
        case.turn(0, 1010, 0, 43);
        assert_eq!(case.after(), (40, 5, 3), "one worker has ended it");
        case.turn(1, 1010, 1, 2);
        case.tally.submits(1000);
        assert_eq!(case.after(), (40, 6, 5), "on its way");
        case.tally.begins();
        assert_eq!(case.after(), (0, 46, 45), "an output may have it");
        case.tally.handed_over(45);
        assert_eq!(case.after(), (0, 1, 0), "no output says what is safe");
        let kinds = [
            ("one", OutputKind::Delivers),
            ("two", OutputKind::Delivers),
            ("sums", OutputKind::AddsUp),
        ];
        case.tally.register(&kinds);
        case.turn(0, 1020, 4, 50);
        assert_eq!(case.after(), (0, 5 + 7, 7));
        case.tally.safe("one", OutputKind::Delivers, 52);
        case.turn(1, 1020, 1, 2);
        assert_eq!(case.after(), (0, 5, 0));
        let lost = case.killed().lost;
        assert_eq!(
            lost.undelivered,
            BTreeMap::from([("two".into(), 7), ("sums".into(), 7)])
        );
        assert_eq!(lost.uncertain, BTreeMap::new());
        // A bucket that has not been handed over as a whole, one that has, and one that was delivered.
        case.tally.leaves("two", u64::MAX);
        assert_eq!(case.killed().lost.uncertain, BTreeMap::from([("two".into(), 7)]));
        case.tally.leaves("two", 50);
        case.tally.leaves("two", 45);
        case.tally.leaves("one", 52);
        assert_eq!(case.killed().lost.uncertain, BTreeMap::from([("two".into(), 5)]));
    }

    #[test]
    fn an_ended_bucket_whose_start_comes_again_is_not_continued() {
        let case = Case::new();
        case.tally.submits(1000);
        case.tally.begins();
        case.turn(0, 1000, 43, 0);
        case.turn(1, 1000, 0, 0);
        assert_eq!(case.after(), (40, 3, 0), "it is open");
        // The clock is set back after its end.
        case.turn(0, 1000, 2, 43);
        assert_eq!(case.after(), (0, 45, 43), "another one is");
    }

    #[test]
    fn a_bucket_that_was_not_continued_is_not_taken_from_the_base() {
        let case = Case::new();
        case.tally.submits(1020);
        case.tally.begins();
        case.turn(0, 1030, 3, 40);
        case.turn(1, 1030, 0, 0);
        assert_eq!(case.after(), (0, 43, 40));
    }

    /// A stop that cannot save the state may write its books: they have what outputs dropped at the end.
    #[test]
    fn what_the_last_books_have_is_not_reported_again() {
        let case = Case::new();
        let outputs = [
            ("away", OutputKind::Delivers),
            ("there", OutputKind::Delivers),
            ("sums", OutputKind::AddsUp),
        ];
        case.tally.register(&outputs);
        (0..2).for_each(|worker| case.turn(worker, 1010, 0, 50));
        case.tally.handed_over(100);
        case.tally.safe("there", OutputKind::Delivers, 100);
        let lacks = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), 100)).collect();
        assert_eq!(case.killed().lost.undelivered, lacks(&["away", "sums"]));
        case.tally.told();
        assert_eq!(case.killed().lost.undelivered, lacks(&["sums"]));
    }
}
