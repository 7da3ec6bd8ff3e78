//! Limits the number of open event streams.

use std::sync::Arc;

use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Of all kinds together.
const STREAMS_MAX: usize = 16;

/// Held while a stream is open.
pub type Permit = OwnedSemaphorePermit;

/// There are as many as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{STREAMS_MAX} streams are open; close one")]
pub struct TooManyStreams;

#[derive(Clone, Debug)]
pub struct Streams(Arc<Semaphore>);

impl Default for Streams {
    fn default() -> Self {
        Streams(Arc::new(Semaphore::new(STREAMS_MAX)))
    }
}

impl Streams {
    /// Permission for one more stream, or the reason for refusing it.
    pub fn open(&self) -> Result<Permit, TooManyStreams> {
        let permit = self.0.clone().try_acquire_owned();
        permit.map_err(|_| TooManyStreams)
    }
}
