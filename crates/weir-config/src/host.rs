//! Facts about the machine that the configuration needs. They come from outside: this crate reads nothing itself.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::secrets::{SecretAnswers, SecretBackend};
use crate::text::Secret;

/// The machine that a configuration is for.
pub trait Host {
    /// Its name.
    fn name(&self) -> String;

    /// Bytes of memory that there are, and what limits them.
    fn memory(&self) -> (u64, &'static str);

    /// Cores that the machine and its control group allow.
    fn cores(&self) -> f64;

    fn exists(&self, path: &Path) -> bool;

    /// The id of a user or group.
    fn account(&self, name: &str, of: Accounts) -> Result<u32, HostError>;

    /// The address of a name.
    fn resolve(&self, name: &str, port: u16) -> Result<SocketAddr, HostError>;

    fn has_ipv6(&self) -> bool;

    /// Whether the address ::1 can be bound.
    fn has_ipv6_loopback(&self) -> bool;

    /// The content of a key or token file. An error reveals nothing of the content.
    fn secret(&self, path: &Path) -> Result<Secret, SecretError>;

    /// The secrets that handles stand for. `None`: this machine asks no program, and handles stay.
    fn secrets(
        &self,
        _backend: &SecretBackend,
        _handles: &BTreeSet<String>,
    ) -> Result<Option<SecretAnswers>, SecretBackendError> {
        Ok(None)
    }

    /// Looks whether the files fit together.
    fn tls(&self, files: &TlsPaths) -> Result<TlsContent, TlsFileError>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accounts {
    Users,
    Groups,
}

/// Why the machine has no answer.
#[derive(Debug, Error)]
pub enum HostError {
    #[error("{file} cannot be read: {error}")]
    Accounts {
        file: &'static str,
        #[source]
        error: io::Error,
    },
    #[error("{name:?} is not in {file}; write a name from there, or a number")]
    NoAccount { name: String, file: &'static str },
    #[error("host {0:?} is not a number, and names are not resolved here")]
    NamesNotResolved(String),
    #[error("host {name:?} cannot be resolved: {error}")]
    NotResolved {
        name: String,
        #[source]
        error: io::Error,
    },
    #[error("host {0:?} has no address")]
    NoAddress(String),
}

/// Why a secret file cannot be used. The message never contains the secret.
#[derive(Debug, Error)]
pub enum SecretError {
    #[error("{}: {error}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{}: {wrong}", path.display())]
    Wrong { path: PathBuf, wrong: &'static str },
    #[error("the setting without _file is set too; only one of them can be")]
    SetTwice,
    #[error("{0:?} is set without a file too; only one of them can be")]
    EntrySetTwice(String),
}

/// Why the program that knows secrets gave none. The message never contains a secret.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct SecretBackendError(pub String);

/// Files of a TLS listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPaths {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_ca: Option<PathBuf>,
}

/// The part of the files that may be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsContent {
    pub certificate: String,
    pub client_ca: Option<String>,
}

/// Errors by file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFileError {
    pub path: PathBuf,
    pub message: String,
}
