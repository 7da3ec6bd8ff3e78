//! Why a command failed, and its exit code for scripts.

use std::fmt;
use std::process::ExitCode;

/// A failed command. The message has the error, its place, and the allowed values.
#[derive(Debug)]
#[allow(dead_code)] // Until the commands that need them have landed.
pub enum Failure {
    /// The run itself went wrong: exit code 1.
    Runtime(String),
    /// Invalid flags, profile or file: exit code 2 (clap uses the same).
    Usage(String),
    /// The target is missing, refused the connection, or died during the run: exit code 3.
    Target(String),
}

impl Failure {
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Runtime(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Target(_) => 3,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Runtime(text) | Failure::Usage(text) | Failure::Target(text) => f.write_str(text),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::Runtime(error.to_string())
    }
}
