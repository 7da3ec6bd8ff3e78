//! A log of either kind.

use weir_merge::{Append, Assignment, Commit, CommitError, Fetched, Log, Plan, Quarantined};

use crate::file::{FileLog, unix_milliseconds};
#[cfg(feature = "kafka")]
use crate::kafka::KafkaLog;
use crate::{Connection, Damage, Error};

/// A log in files or on Apache Kafka.
pub enum AnyLog {
    File(FileLog),
    #[cfg(feature = "kafka")]
    Kafka(Box<KafkaLog>),
}

/// Forwards a call to the log.
macro_rules! on {
    ($log:expr, $of:ident => $call:expr) => {
        match $log {
            AnyLog::File($of) => $call,
            #[cfg(feature = "kafka")]
            AnyLog::Kafka($of) => $call,
        }
    };
}

impl AnyLog {
    /// Opens a log. The brokers may be down: each call reports that.
    pub fn open(connection: &Connection) -> Result<AnyLog, Error> {
        match connection {
            Connection::Directory { path, partitions } => {
                FileLog::open(path, *partitions, unix_milliseconds).map(AnyLog::File)
            }
            #[cfg(feature = "kafka")]
            Connection::Kafka(brokers) => KafkaLog::open(brokers).map(|log| AnyLog::Kafka(Box::new(log))),
            #[cfg(not(feature = "kafka"))]
            Connection::Kafka(_) => Err(Error::NoKafka),
        }
    }

    /// Opens a log as this output sees it: with results, and with assignments and positions of its own.
    pub fn open_for_output(connection: &Connection, output: &str) -> Result<AnyLog, Error> {
        match connection {
            Connection::Directory { path, partitions } => FileLog::open(path, *partitions, unix_milliseconds)
                .map(|log| AnyLog::File(log.of_output(output))),
            #[cfg(feature = "kafka")]
            Connection::Kafka(brokers) => {
                KafkaLog::open_for_output(brokers, output).map(|log| AnyLog::Kafka(Box::new(log)))
            }
            #[cfg(not(feature = "kafka"))]
            Connection::Kafka(_) => Err(Error::NoKafka),
        }
    }

    /// Divides series among this many partitions, beginning with the bucket that starts at `from`.
    pub fn announce(&mut self, from: i64, partitions: u32) -> Result<(), Error> {
        on!(self, log => log.announce(from, partitions))
    }

    /// The quarantined records that are kept.
    pub fn quarantined(&mut self, partition: u32) -> Result<Vec<Quarantined>, Error> {
        on!(self, log => log.quarantined(partition))
    }

    /// A number not above that of the first result that was written at this Unix millisecond or later.
    pub fn results_near(&mut self, partition: u32, milliseconds: i64) -> Result<u64, Error> {
        on!(self, log => log.results_near(partition, milliseconds))
    }

    /// The position of this output.
    pub fn position(&mut self, partition: u32) -> Result<u64, Error> {
        on!(self, log => log.position(partition))
    }

    /// Moves the position of this output back to `before`. Fails while another process has the output.
    pub fn rewind(&mut self, partition: u32, before: u64) -> Result<(), Error> {
        on!(self, log => log.rewind(partition, before))
    }

    /// The damage that this handle has found in files of the log.
    pub fn damage(&self) -> Vec<Damage> {
        match self {
            AnyLog::File(log) => log.damage(),
            // Brokers check and repair their files.
            #[cfg(feature = "kafka")]
            AnyLog::Kafka(_) => Vec::new(),
        }
    }

    /// Size of incomplete frames at the ends of files, which any process has moved aside.
    pub fn torn_bytes(&self) -> Result<u64, Error> {
        match self {
            AnyLog::File(log) => log.torn_bytes(),
            #[cfg(feature = "kafka")]
            AnyLog::Kafka(_) => Ok(0),
        }
    }

    /// Removes committed records, and results that all of these outputs have, if the log does not do so itself.
    pub fn prune(&mut self, partition: u32, outputs: &[String]) -> Result<(), Error> {
        match self {
            AnyLog::File(log) => log.prune(partition, outputs),
            #[cfg(feature = "kafka")]
            AnyLog::Kafka(_) => Ok(()),
        }
    }
}

impl Log for AnyLog {
    type Error = Error;

    fn plan(&mut self) -> Result<Plan, Error> {
        on!(self, log => log.plan())
    }

    fn append(&mut self, partition: u32, sent: i64, bytes: &[u8]) -> Result<u64, Error> {
        on!(self, log => log.append(partition, sent, bytes))
    }

    fn append_all(&mut self, records: &[Append<'_>]) -> Vec<Result<u64, Error>> {
        on!(self, log => log.append_all(records))
    }

    fn assignments(&mut self) -> Result<Vec<Assignment>, Error> {
        on!(self, log => log.assignments())
    }

    fn fetch(&mut self, partition: u32, from: u64, bytes_max: usize) -> Result<Fetched, Error> {
        on!(self, log => log.fetch(partition, from, bytes_max))
    }

    fn committed(&mut self, partition: u32) -> Result<Option<(Vec<u8>, u64)>, Error> {
        on!(self, log => log.committed(partition))
    }

    fn commit(&mut self, partition: u32, generation: u64, commit: &Commit) -> Result<(), CommitError<Error>> {
        on!(self, log => log.commit(partition, generation, commit))
    }

    fn results(&mut self, partition: u32, from: u64, bytes_max: usize) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        on!(self, log => log.results(partition, from, bytes_max))
    }

    fn results_start(&mut self, partition: u32) -> Result<u64, Error> {
        on!(self, log => log.results_start(partition))
    }

    fn results_sent(&mut self, partition: u32) -> Result<u64, Error> {
        on!(self, log => log.results_sent(partition))
    }

    fn record_results_sent(
        &mut self,
        partition: u32,
        generation: u64,
        before: u64,
    ) -> Result<(), CommitError<Error>> {
        on!(self, log => log.record_results_sent(partition, generation, before))
    }
}
