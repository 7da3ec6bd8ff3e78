use std::io;
use std::path::{Path, PathBuf};

/// Why a log could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{}: {what}", path.display())]
    Damaged { path: PathBuf, what: &'static str },
    #[error("{}: another process has held this lock for {seconds} s", path.display())]
    Locked { path: PathBuf, seconds: u64 },
    #[error(
        "{place}: line {line}: {what}; a newer weir may have written it; here \"partitions N\" and then any number of \"from SECONDS partitions N\" are allowed"
    )]
    Plan {
        place: String,
        line: usize,
        what: &'static str,
    },
    #[error(
        "partition {partition}: {what} {number} does not have this program's format; a newer weir reads it"
    )]
    Form {
        partition: u32,
        what: &'static str,
        number: u64,
    },
    #[error("no partition {partition}: there are {partitions}")]
    NoPartition { partition: u32, partitions: usize },
    #[error("a record of {bytes} bytes; at most {max} are allowed")]
    TooLarge { bytes: usize, max: usize },
    #[error(
        "this program was built without the Kafka client: install the package `weir-kafka`, or use a directory as the log"
    )]
    NoKafka,
    #[error(
        "output {output}: a process delivers to it: stop every merge of this log, and wait for the session timeout"
    )]
    Held { output: String },
    /// The brokers refuse the record permanently: a retry changes nothing.
    #[error("{doing}: {what}")]
    Refused { doing: String, what: String },
    /// The brokers refused a request.
    #[error("{doing}: {what}")]
    Kafka { doing: String, what: String },
}

impl Error {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |error| Error::Io {
            path: path.to_owned(),
            error,
        }
    }
}
