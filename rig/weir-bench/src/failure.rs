//! Why a command failed, and its exit code for scripts.

use std::process::ExitCode;

/// A failed command. The message has the error, its place, and the allowed values.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The run itself went wrong: exit code 1.
    #[error("{0}")]
    Runtime(String),
    /// Invalid flags, profile or file: exit code 2 (clap uses the same).
    #[error("{0}")]
    Usage(String),
    /// The target is missing, refused the connection, or died during the run: exit code 3.
    #[error("{0}")]
    Target(String),
}

impl Failure {
    pub fn usage(why: impl ToString) -> Failure {
        Failure::Usage(why.to_string())
    }

    pub fn runtime(why: impl ToString) -> Failure {
        Failure::Runtime(why.to_string())
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Runtime(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Target(_) => 3,
        })
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::runtime(error)
    }
}
