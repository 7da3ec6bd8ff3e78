//! A log in topics of Apache Kafka: records, results, snapshots, quarantine, and a control topic.
//!
//! Agents write records with an idempotent producer. Owners are members of a group, which assigns the partitions. A commit is one
//! transaction that includes the group's generation, so the brokers refuse commits of owners from an earlier generation. A snapshot
//! includes its offset, so both always belong to the same commit.
//!
//! Each part connects when it is first used: an agent never joins the group.

mod client;
mod control;
mod examine;
mod member;
mod reader;
mod replay;
mod topics;
mod transactions;
mod writer;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::Timestamp;
use weir_merge::{Append, Assignment, Commit, CommitError, Fetched, Log, Message, Plan, Quarantined};

use self::client::LastFailure;
use self::control::{Control, PLAN};
use self::member::Member;
use self::reader::{FetchResult, FetchedMessage, Reader, SENT, ends};
use self::topics::{TopicCreator, Topics};
use self::transactions::{Committer, OFFSET, REASON, TransactionError, name_for_transactions, snapshot_of};
use self::writer::{Outgoing, Writer};
use crate::{Brokers, Error, plan};

/// Maximum age of the known end of a partition: while there is something to read, and while there is not.
const KNOWN_BUSY: Duration = Duration::from_secs(1);
const KNOWN_IDLE: Duration = Duration::from_millis(200);

/// Sleep between two attempts in the loops below.
const STEP: Duration = Duration::from_millis(20);

/// Time for which the client library's queued events are read for a reason. A shorter time may end before the reason's turn.
const EVENTS: Duration = Duration::from_millis(200);

/// The offsets of a partition at a moment.
#[derive(Clone, Copy, Debug)]
struct Ends {
    start: u64,
    end: u64,
    asked: Instant,
}

/// The log. See [`weir_merge::Log`].
pub struct KafkaLog {
    brokers: Brokers,
    topics: Topics,
    last_failure: LastFailure,
    opened: Instant,
    control: Control,
    ends: BTreeMap<(bool, u32), Ends>,
    transactions: String,
    /// Topics known to exist.
    has: KnownTopics,
    writer: Option<Writer>,
    reader: Option<Reader>,
    member: Option<Member>,
    committer: Option<Committer>,
    accepts_sender_timestamps: bool,
    /// The group reads the results, not the records.
    is_of_output: bool,
    has_sums: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KnownTopics {
    Unknown,
    OfAgents,
    All,
}

impl KafkaLog {
    /// The log as this output sees it: a group of its own reads the results, and keeps the output's positions.
    pub fn open_for_output(brokers: &Brokers, output: &str) -> Result<Self, Error> {
        let topics = Topics::of_output(&brokers.topic, &brokers.group, output);
        let transactions = name_for_transactions(&brokers.group);
        let brokers = Brokers {
            group: format!("{}.{output}", brokers.group),
            ..brokers.clone()
        };
        Ok(KafkaLog {
            topics,
            transactions,
            is_of_output: true,
            ..KafkaLog::open(&brokers)?
        })
    }

    /// Checks the settings. Does not connect yet.
    pub fn open(brokers: &Brokers) -> Result<Self, Error> {
        let last_failure = LastFailure::of(brokers);
        // This reads the TLS files, so an error in them is reported now.
        let writer = Writer::open(brokers, &last_failure)?;
        Ok(KafkaLog {
            topics: Topics::of(&brokers.topic, &brokers.group),
            opened: Instant::now(),
            control: Control::default(),
            ends: BTreeMap::new(),
            transactions: name_for_transactions(&brokers.group),
            has: KnownTopics::Unknown,
            writer: Some(writer),
            reader: None,
            member: None,
            committer: None,
            accepts_sender_timestamps: false,
            is_of_output: false,
            has_sums: false,
            brokers: brokers.clone(),
            last_failure,
        })
    }

    /// For brokers of tests that cannot stamp messages.
    #[doc(hidden)]
    pub fn accept_sender_timestamps(&mut self) {
        self.accepts_sender_timestamps = true;
    }

    /// Divides series among this many partitions, beginning with the bucket that starts at `from`, and adds partitions to the topics.
    /// Agents learn of it within a minute.
    pub fn announce(&mut self, from: i64, partitions: u32) -> Result<(), Error> {
        self.plan()?;
        self.has(KnownTopics::All)?;
        self.topic_creator()?.raise(partitions)?;
        self.follow_control()?;
        let text = plan::announced(self.control.text().unwrap_or_default(), from, partitions);
        self.write_plan(&text)
    }

    /// The quarantined records that are kept. Brokers show those of a commit a moment after it has succeeded.
    pub fn quarantined(&mut self, partition: u32) -> Result<Vec<Quarantined>, Error> {
        self.has(KnownTopics::All)?;
        let topic = self.topics.quarantine.clone();
        let reader = reader(&mut self.reader, &self.brokers, &self.last_failure)?;
        let (mut from, end) = reader.ends(&topic, partition)?;
        let mut quarantined = Vec::new();
        while from < end {
            let read = reader.read(&topic, partition, from, 1 << 20, self.brokers.timeout)?;
            if read.messages.is_empty() && !read.is_end {
                return Err(reader.unanswered(&topic, partition));
            }
            from = read.messages.last().map_or(end, |last| last.offset + 1);
            quarantined.extend(read.messages.into_iter().map(quarantined_of));
        }
        reader.stop_reading(&topic, partition)?;
        Ok(quarantined)
    }

    /// Creates missing topics, once.
    fn has(&mut self, has: KnownTopics) -> Result<(), Error> {
        match self.has >= has {
            true => Ok(()),
            false => self.make(has).map_err(|error| self.with_reason(error)),
        }
    }

    /// For reading clients the library does not report why they cannot connect. The writing client gets the reason.
    fn with_reason(&self, error: Error) -> Error {
        match (error, &self.writer) {
            (Error::Kafka { doing, what }, Some(writer))
                if ![client::REASON, client::RIGHT]
                    .iter()
                    .any(|text| what.contains(text)) =>
            {
                writer.client().poll(EVENTS);
                self.last_failure.explain(doing, what)
            }
            (error, _) => error,
        }
    }

    fn topic_creator(&mut self) -> Result<TopicCreator<'_, LastFailure>, Error> {
        let reader = reader(&mut self.reader, &self.brokers, &self.last_failure)?;
        Ok(TopicCreator {
            brokers: &self.brokers,
            topics: &self.topics,
            client: reader.client(),
            last_failure: &self.last_failure,
        })
    }

    fn make(&mut self, has: KnownTopics) -> Result<(), Error> {
        let topic_creator = self.topic_creator()?;
        let partitions = match has {
            KnownTopics::All => topic_creator.for_owners()?,
            _ => topic_creator.for_agents()?,
        };
        if self.has == KnownTopics::Unknown {
            let (reader, control) = (
                self::reader(&mut self.reader, &self.brokers, &self.last_failure)?,
                &mut self.control,
            );
            control.read_to_end(reader, &self.topics.control, self.brokers.timeout)?;
            if control.known().is_none() {
                self.write_plan(&plan::first(partitions))?;
            }
        }
        self.has = has;
        Ok(())
    }

    /// Writes a plan, and waits until it is read. Of two concurrent writes the last one counts.
    fn write_plan(&mut self, text: &str) -> Result<(), Error> {
        let written = self.write_control(PLAN, text.as_bytes())?;
        let until = Instant::now() + self.brokers.timeout;
        while !self.control.has_read(written) {
            if Instant::now() > until {
                let doing = format!("reading topic {}", self.topics.control);
                return Err(self
                    .last_failure
                    .explain(doing, "the written plan cannot be read back"));
            }
            std::thread::sleep(STEP);
            self.follow_control()?;
        }
        Ok(())
    }

    fn follow_control(&mut self) -> Result<(), Error> {
        let reader = reader(&mut self.reader, &self.brokers, &self.last_failure)?;
        self.control
            .read_to_end(reader, &self.topics.control, self.brokers.timeout)
    }

    /// Writes a message, and returns its offset.
    fn write_control(&mut self, key: &[u8], bytes: &[u8]) -> Result<u64, Error> {
        let topic = self.topics.control.clone();
        let message = Outgoing {
            topic: &topic,
            partition: 0,
            key: Some(key),
            bytes,
            headers: &[],
        };
        let writer = self.writer()?;
        let written = writer.write(message);
        written.map_err(|error| writer.explain(&topic, 0, error))
    }

    fn writer(&mut self) -> Result<&mut Writer, Error> {
        if self.writer.as_ref().is_some_and(Writer::is_broken) {
            self.writer = None;
        }
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => Writer::open(&self.brokers, &self.last_failure)?,
        };
        Ok(self.writer.insert(writer))
    }

    fn member(&mut self) -> Result<&mut Member, Error> {
        let member = match self.member.take() {
            Some(member) => member,
            None => {
                self.has(KnownTopics::All)?;
                Member::join(&self.brokers, &self.topics.read, &self.last_failure)?
            }
        };
        Ok(self.member.insert(member))
    }

    /// The offsets of a partition, at most `age` old.
    fn ends(&mut self, is_results: bool, partition: u32, age: Duration) -> Result<Ends, Error> {
        let key = (is_results, partition);
        let known = self.ends.get(&key).copied();
        if let Some(known) = known.filter(|known| known.asked.elapsed() < age) {
            return Ok(known);
        }
        let asked = Instant::now();
        let topic = match is_results {
            true => &self.topics.results,
            false => &self.topics.records,
        };
        let reader = reader(&mut self.reader, &self.brokers, &self.last_failure)?;
        let (start, end) = reader.ends(topic, partition)?;
        let ends = Ends { start, end, asked };
        self.ends.insert(key, ends);
        Ok(ends)
    }

    /// Messages from an offset on. Waits for one if there must be one. In a topic with transactions the last offsets are not messages; then
    /// it waits for the end.
    fn read(
        &mut self,
        is_results: bool,
        partition: u32,
        from: u64,
        bytes_max: usize,
    ) -> Result<(FetchResult, Ends), Error> {
        let mut ends = self.ends(is_results, partition, KNOWN_BUSY)?;
        for age in [KNOWN_IDLE, Duration::ZERO] {
            let is_old = match age.is_zero() {
                true => ends.end < from,
                false => ends.end <= from,
            };
            if is_old {
                ends = self.ends(is_results, partition, age)?;
            }
        }
        let topic = match is_results {
            true => &self.topics.results,
            false => &self.topics.records,
        };
        let doing = || format!("reading partition {partition} of topic {topic}");
        if from > ends.end {
            let end = ends.end;
            let what = format!(
                "it ends at {end}, before the position {from} up to which it was read: the topic was deleted and created again"
            );
            return Err(self.last_failure.explain(doing(), what));
        }
        let wait = match from < ends.end {
            true => self.brokers.timeout,
            false => Duration::ZERO,
        };
        let reader = reader(&mut self.reader, &self.brokers, &self.last_failure)?;
        let read = reader.read(topic, partition, from, bytes_max, wait)?;
        match (read.messages.last(), self.ends.get_mut(&(is_results, partition))) {
            (Some(last), Some(known)) => known.end = known.end.max(last.offset + 1),
            (None, _) if !read.is_end && !wait.is_zero() => {
                let error = self.last_failure.explain(doing(), "nothing came in time");
                return Err(self.with_reason(error));
            }
            _ => {}
        }
        Ok((read, ends))
    }

    fn message(&self, got: FetchedMessage) -> Result<Message, Error> {
        let sent = got.header(SENT).and_then(|sent| sent.try_into().ok());
        let appended = match got.stamp {
            Timestamp::LogAppendTime(stamp) => stamp,
            Timestamp::CreateTime(stamp) if self.accepts_sender_timestamps => stamp,
            _ => {
                let doing = format!("topic {}", self.topics.records);
                let what = "messages carry the time of senders, not of the broker: set message.timestamp.type=LogAppendTime";
                return Err(self.last_failure.explain(doing, what));
            }
        };
        Ok(Message {
            offset: got.offset,
            appended,
            sent: sent.map_or(appended, i64::from_le_bytes),
            bytes: got.bytes,
        })
    }

    /// The end of the snapshots of a partition, once no transaction is open: an ended owner may have left one.
    fn settled_snapshots(&mut self, partition: u32) -> Result<(u64, u64), Error> {
        let timeout = self.brokers.timeout;
        let topic = self.topics.kept.clone();
        let until = Instant::now() + timeout;
        let last_failure = self.last_failure.clone();
        let (_, whole) = ends(self.member()?.client(), &last_failure, timeout, &topic, partition)?;
        loop {
            let reader = reader(&mut self.reader, &self.brokers, &self.last_failure)?;
            let (start, end) = reader.ends(&topic, partition)?;
            if end >= whole {
                return Ok((start, whole));
            }
            if Instant::now() > until {
                let doing = format!("reading partition {partition} of topic {topic}");
                return Err(last_failure.explain(doing, "a transaction of an earlier owner is still open"));
            }
            std::thread::sleep(STEP);
        }
    }

    /// The last message of a snapshot partition, searched backwards from the end.
    fn last_snapshot(&mut self, partition: u32) -> Result<Option<FetchedMessage>, Error> {
        let (start, end) = self.settled_snapshots(partition)?;
        let topic = &self.topics.kept;
        let reader = reader(&mut self.reader, &self.brokers, &self.last_failure)?;
        let mut back = 2;
        let last = loop {
            let from = end.saturating_sub(back).max(start);
            let last = last_from(reader, topic, partition, (from, end), self.brokers.timeout)?;
            if last.is_some() || from == start {
                break last;
            }
            back *= 8;
        };
        reader.stop_reading(topic, partition)?;
        Ok(last)
    }

    /// Whether the topic of this output's sums exists.
    fn has_sums(&mut self) -> Result<bool, Error> {
        if !self.has_sums {
            let topic_creator = self.topic_creator()?;
            self.has_sums = topic_creator.partitions(&topic_creator.topics.kept)?.is_some();
        }
        Ok(self.has_sums)
    }

    fn commit_once(&mut self, partition: u32, commit: &Commit) -> Result<(), TransactionError> {
        let mut committer = match self.committer.take() {
            Some(committer) => committer,
            None => Committer::open(&self.brokers, &self.transactions, &self.last_failure)
                .map_err(TransactionError::Broken)?,
        };
        let member = self.member.as_ref().ok_or(TransactionError::Stale)?;
        let done = committer.commit(&self.topics, partition, member, commit);
        if !matches!(done, Err(TransactionError::Broken(_))) {
            self.committer = Some(committer);
        }
        done
    }

    /// Whether the group has already reported that we lost the partition.
    fn has_lost(&mut self, partition: u32, generation: u64) -> bool {
        self.member.as_mut().is_none_or(|member| {
            member.listen(Duration::ZERO).is_ok() && !member.holds(partition, generation)
        })
    }

    /// Waits until the group has reported our generation. `false`: we lost the partition.
    fn update_generation(&mut self, partition: u32, generation: u64) -> Result<bool, Error> {
        let until = Instant::now() + self.brokers.timeout;
        let Some(member) = &mut self.member else {
            return Ok(false);
        };
        let before = member.proofs();
        loop {
            member.listen(STEP)?;
            if !member.holds(partition, generation) {
                return Ok(false);
            }
            if member.proofs() > before {
                return Ok(true);
            }
            if Instant::now() > until {
                return Err(self
                    .last_failure
                    .explain("committing", "the group does not report the owners of partitions"));
            }
        }
    }
}

/// The reading client.
fn reader<'a>(
    reader: &'a mut Option<Reader>,
    brokers: &Brokers,
    last_failure: &LastFailure,
) -> Result<&'a mut Reader, Error> {
    let open = match reader.take() {
        Some(open) => open,
        None => Reader::open(brokers, last_failure)?,
    };
    Ok(reader.insert(open))
}

/// The last message between two offsets.
fn last_from(
    reader: &mut Reader,
    topic: &str,
    partition: u32,
    (mut from, end): (u64, u64),
    timeout: Duration,
) -> Result<Option<FetchedMessage>, Error> {
    let mut last = None;
    while from < end {
        let read = reader.read(topic, partition, from, 1 << 20, timeout)?;
        if read.messages.is_empty() && !read.is_end {
            // Brokers that do not answer in time are no empty partition: without its snapshot, an owner would merge every record again.
            return Err(reader.unanswered(topic, partition));
        }
        from = read.messages.last().map_or(end, |last| last.offset + 1);
        last = read.messages.into_iter().next_back().or(last);
        if read.is_end {
            break;
        }
    }
    Ok(last)
}

fn quarantined_of(got: FetchedMessage) -> Quarantined {
    let offset = got.header(OFFSET).and_then(|offset| offset.try_into().ok());
    let reason = got.header(REASON).unwrap_or_default();
    Quarantined {
        offset: offset.map_or(0, u64::from_le_bytes),
        reason: String::from_utf8_lossy(reason).into_owned(),
        bytes: got.bytes,
    }
}

impl Log for KafkaLog {
    type Error = Error;

    /// The last known plan, used when the brokers are down.
    fn plan(&mut self) -> Result<Plan, Error> {
        let followed = match self.control.is_fresh() && self.has > KnownTopics::Unknown {
            true => self.control.is_understood(&self.topics.control),
            false => self
                .has(KnownTopics::OfAgents)
                .and_then(|()| self.follow_control()),
        };
        match (self.control.known(), followed) {
            (_, Err(error @ Error::Plan { .. })) => Err(error),
            (Some(plan), _) => Ok(plan.clone()),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Ok(Plan::new(self.brokers.partitions)),
        }
    }

    fn append(&mut self, partition: u32, sent: i64, bytes: &[u8]) -> Result<u64, Error> {
        let record = Append {
            partition,
            sent,
            bytes,
        };
        self.append_all(&[record]).remove(0)
    }

    fn append_all(&mut self, records: &[Append<'_>]) -> Vec<Result<u64, Error>> {
        let may_write = self.has(KnownTopics::OfAgents);
        if let Err(error) = may_write.and_then(|()| self.control.is_understood(&self.topics.control)) {
            let text = error.to_string();
            let failed = |_| Err(self.last_failure.explain("writing", &text));
            return records.iter().map(failed).collect();
        }
        let topic = self.topics.records.clone();
        let sent: Vec<[u8; 8]> = records.iter().map(|record| record.sent.to_le_bytes()).collect();
        let headers: Vec<[(&str, &[u8]); 1]> = sent.iter().map(|sent| [(SENT, &sent[..])]).collect();
        let messages = records.iter().zip(&headers).map(|(record, headers)| Outgoing {
            topic: &topic,
            partition: record.partition,
            key: None,
            bytes: record.bytes,
            headers,
        });
        let messages: Vec<Outgoing<'_>> = messages.collect();
        let writer = match self.writer() {
            Ok(writer) => writer,
            Err(error) => {
                let text = error.to_string();
                return records
                    .iter()
                    .map(|_| Err(self.last_failure.explain("writing", &text)))
                    .collect();
            }
        };
        let written = writer.write_all(&messages).into_iter().zip(records);
        written
            .map(|(written, record)| written.map_err(|error| writer.explain(&topic, record.partition, error)))
            .collect()
    }

    fn assignments(&mut self) -> Result<Vec<Assignment>, Error> {
        let member = self.member()?;
        member.listen(Duration::ZERO)?;
        let news = member.take_assignments();
        for change in &news {
            if let Assignment::Revoked { partition } = change {
                self.ends.remove(&(self.is_of_output, *partition));
                let reader = reader(&mut self.reader, &self.brokers, &self.last_failure)?;
                reader.stop_reading(&self.topics.read, *partition)?;
            }
        }
        Ok(news)
    }

    fn fetch(&mut self, partition: u32, from: u64, bytes_max: usize) -> Result<Fetched, Error> {
        let (read, ends) = self.read(false, partition, from, bytes_max)?;
        let messages = read.messages.into_iter();
        let messages: Vec<Message> = messages
            .map(|got| self.message(got))
            .collect::<Result<_, Error>>()?;
        let next = messages
            .last()
            .map_or(from.max(ends.start), |last| last.offset + 1);
        Ok(Fetched {
            start: ends.start,
            end: ends.end.max(next),
            messages,
            next,
            // Each broker has a clock of its own: only messages tell it.
            now: None,
            monotonic: ends.asked.duration_since(self.opened).as_millis() as i64,
        })
    }

    fn committed(&mut self, partition: u32) -> Result<Option<(Vec<u8>, u64)>, Error> {
        if self.is_of_output && !self.has_sums()? {
            return Ok(None);
        }
        let last = self.last_snapshot(partition)?;
        let form = |number| Error::Form {
            partition,
            what: "snapshot",
            number,
        };
        let snapshot = last.map(|last| snapshot_of(&last.bytes).ok_or(form(last.offset)));
        let snapshot = snapshot.transpose()?;
        // Outputs of sums begin from zero without them, and continue behind them.
        if self.is_of_output {
            return Ok(snapshot);
        }
        // Committed in one transaction with the snapshot: an older snapshot, or none, would merge records again.
        let topic = self.topics.records.clone();
        let merged = self.member()?.noted(&topic, partition)?;
        let restored = snapshot.as_ref().map_or(0, |(_, offset)| *offset);
        if restored < merged {
            let doing = format!("reading partition {partition} of topic {}", self.topics.kept);
            let what = format!("the last snapshot ends at record {restored}, but {merged} are merged");
            return Err(Error::Kafka { doing, what });
        }
        Ok(snapshot)
    }

    fn commit(&mut self, partition: u32, generation: u64, commit: &Commit) -> Result<(), CommitError<Error>> {
        if self.is_of_output && !self.has_sums()? {
            self.topic_creator()?.for_sums()?;
        }
        loop {
            let is_ours = self
                .member
                .as_ref()
                .map(|member| member.holds(partition, generation));
            if is_ours != Some(true) {
                return Err(CommitError::Fenced);
            }
            match self.commit_once(partition, commit) {
                Ok(()) => return Ok(()),
                Err(TransactionError::Aborted(_) | TransactionError::Broken(_))
                    if self.has_lost(partition, generation) =>
                {
                    return Err(CommitError::Fenced);
                }
                Err(TransactionError::Aborted(error) | TransactionError::Broken(error)) => {
                    return Err(error.into());
                }
                // Another member joined or left. If we kept the partition, the new generation will be accepted.
                Err(TransactionError::Stale) => {
                    if !self.update_generation(partition, generation)? {
                        return Err(CommitError::Fenced);
                    }
                }
            }
        }
    }

    fn results(&mut self, partition: u32, from: u64, bytes_max: usize) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        self.has(KnownTopics::All)?;
        let (read, _) = self.read(true, partition, from, bytes_max)?;
        let messages = read.messages.into_iter();
        Ok(messages.map(|got| (got.offset, got.bytes)).collect())
    }

    fn results_start(&mut self, partition: u32) -> Result<u64, Error> {
        self.has(KnownTopics::All)?;
        Ok(self.ends(true, partition, KNOWN_BUSY)?.start)
    }

    fn results_sent(&mut self, partition: u32) -> Result<u64, Error> {
        let topic = self.topics.results.clone();
        self.member()?.noted(&topic, partition)
    }

    fn record_results_sent(
        &mut self,
        partition: u32,
        generation: u64,
        before: u64,
    ) -> Result<(), CommitError<Error>> {
        let until = Instant::now() + self.brokers.timeout;
        loop {
            let member = self.member.as_mut().ok_or(CommitError::Fenced)?;
            if !member.holds(partition, generation) {
                return Err(CommitError::Fenced);
            }
            if member.note(&self.topics.results, partition, before)? {
                return Ok(());
            }
            // Another member joined or left. A partition that we keep is not assigned again: it must not be taken for lost.
            if Instant::now() > until {
                let doing = format!("storing the position of partition {partition}");
                let what = "the group does not report the owners of partitions";
                return Err(self.last_failure.explain(doing, what).into());
            }
            member.listen(STEP)?;
        }
    }
}
