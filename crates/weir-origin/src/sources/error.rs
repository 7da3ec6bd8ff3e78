//! Errors of sources.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use rustls::pki_types::pem;

/// Why a source could not look. Wherever this is shown, the source's name and place are shown too.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("{}", innermost(.0))]
    Http(#[source] reqwest::Error),
    #[error("it does not answer")]
    NoAnswer,
    #[error("its answer was truncated")]
    AnswerStopped,
    #[error("it answers {0}")]
    Status(reqwest::StatusCode),
    #[error("its answer is longer than {0} bytes")]
    AnswerTooLong(usize),
    /// An invalid answer, and the reason.
    #[error("{what} cannot be read: {error}")]
    Json {
        what: String,
        #[source]
        error: serde_json::Error,
    },
    #[error("{method}: {error}")]
    Call { method: String, error: CallError },
    #[error("an event has no end")]
    EventTooLong,
    #[error("it answers {0} to a request for events")]
    EventStatus(reqwest::StatusCode),
    #[error("it closed the stream of events")]
    EventsEnded,
    /// The file at the source's place cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("it is longer than {0} bytes")]
    TooLong(u64),
    #[error("the directory does not exist")]
    NoDirectory,
    /// The file at the source's place is invalid. The text has line and column.
    #[error(transparent)]
    Content(#[from] serde_json::Error),
    #[error("labels: line {line}: {error}")]
    Label { line: usize, error: LabelError },
    /// A file that the source needs.
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: FileError },
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

impl SourceError {
    pub(super) fn json(what: impl Into<String>, error: serde_json::Error) -> Self {
        SourceError::Json {
            what: what.into(),
            error,
        }
    }
}

/// Result of a gRPC call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("gRPC status {status:?} {message}")]
    Status {
        status: reqwest::header::HeaderValue,
        message: String,
    },
    #[error("it answers without a message")]
    Empty,
    #[error("its answer is truncated or compressed")]
    Cut,
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
}

#[derive(Debug, thiserror::Error)]
pub enum LabelError {
    #[error("no '='")]
    NoValue,
    #[error(transparent)]
    Value(#[from] serde_json::Error),
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("too long")]
    TooLong,
    #[error("too long for a token")]
    LongToken,
    #[error(transparent)]
    Pem(#[from] pem::Error),
    #[error("no certificate in it")]
    NoCertificate,
    #[error("no private key in it: {0}")]
    NoKey(#[source] pem::Error),
    /// TLS rejected its contents.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

impl FileError {
    /// The same error with the path.
    pub fn of(self, path: impl Into<PathBuf>) -> SourceError {
        SourceError::File {
            path: path.into(),
            error: self,
        }
    }
}

/// Leaves out the URL.
impl From<reqwest::Error> for SourceError {
    fn from(error: reqwest::Error) -> Self {
        SourceError::Http(error.without_url())
    }
}

/// The innermost reason, which is the informative one.
fn innermost(error: &reqwest::Error) -> String {
    let mut reason: &dyn Error = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    reason.to_string()
}
