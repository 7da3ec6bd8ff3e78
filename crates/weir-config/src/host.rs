//! Facts about the machine that the configuration needs. They come from outside: this crate reads nothing itself.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

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
    fn account(&self, name: &str, of: Accounts) -> Result<u32, String>;

    /// The address of a name.
    fn resolve(&self, name: &str, port: u16) -> Result<SocketAddr, String>;

    fn has_ipv6(&self) -> bool;

    /// The content of a key or token file. An error reveals nothing of the content.
    fn secret(&self, path: &Path) -> Result<Secret, String>;

    /// Looks whether the files fit together.
    fn tls(&self, files: &TlsPaths) -> Result<TlsContent, TlsFault>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accounts {
    Users,
    Groups,
}

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
pub struct TlsFault {
    pub path: PathBuf,
    pub message: String,
}
