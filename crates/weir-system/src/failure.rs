//! Why a command failed, and its exit code.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// An external problem: a port in use, a peer that does not answer. Exit code 1.
    Runtime,
    /// An invalid command line or configuration. Exit code 2.
    Usage,
}

impl FailureKind {
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Runtime => 1,
            Self::Usage => 2,
        }
    }
}

/// The message for the user, one line per error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    /// Empty if it was printed already.
    pub message: String,
}

impl Failure {
    pub fn runtime(message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Runtime,
            message: message.into(),
        }
    }

    pub fn thread(error: &std::io::Error) -> Self {
        Self::runtime(format!("a thread cannot be started: {error}"))
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Usage,
            message: message.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<weir_config::Problems> for Failure {
    fn from(problems: weir_config::Problems) -> Self {
        Self::usage(problems.to_string())
    }
}
