//! Why an output cannot be started.

use std::io;

use weir_units::{Address, AddressError};

use crate::http::{ClientError, HeaderError};

/// Why an output cannot be started. The text names the setting or the path.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("path: {0}")]
    Path(#[source] io::Error),
    #[error("address: {0}")]
    Address(#[from] AddressError),
    #[error("address: {0} is neither TCP nor UDP")]
    NoInternetAddress(Address),
    #[error("the log cannot be opened: {0}")]
    Log(#[from] weir_log::Error),
    #[error("format: the defaults of lines cannot be read, which is a bug in weir")]
    Lines,
    /// The disk queue cannot be opened.
    #[error(transparent)]
    Queue(#[from] io::Error),
}
