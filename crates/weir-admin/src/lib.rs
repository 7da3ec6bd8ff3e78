//! The admin HTTP server: metrics, status, health and profiles.
//!
//! It answers from an [`AdminSource`] and never touches workers or outputs. It binds to loopback by default, refuses requests that a web
//! page of another site may have sent ([`caller`]), limits connections, and closes those that neither send nor read ([`connections`]).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

mod access;
mod api;
pub mod caller;
pub mod capture_file;
mod connections;
pub mod history;
pub mod page;
mod preview;
pub mod profile;
mod query;
mod server;
mod sockets;
pub mod streams;
pub mod tap;
mod taps;
pub mod version;

pub use access::Callers;
pub use connections::{Connection, ConnectionLimits, Connections, TimeoutStream};
#[doc(hidden)]
pub use server::answer_on;
pub use server::{AdminServer, Gate};
pub use sockets::{AdminBindError, AdminSockets, page_url};

use crate::history::Recent;
use crate::streams::Pieces;
use crate::tap::Taps;
use weir_status::contexts::ContextReport;
use weir_status::explain::{ExplainError, ExplainRequest, Explanation};
use weir_status::status::{Reloaded, Status};

/// An answer that may take a while.
pub type ResponseFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why a process is not ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    #[error("it is stopping")]
    Stopping,
    #[error("not every worker has reported yet")]
    Workers,
    #[error("the log has not been read yet")]
    Log,
    /// Something that worked before.
    #[error("{0}")]
    Failed(String),
}

/// The agent's state for the admin server.
pub trait AdminSource: Send + Sync + 'static {
    /// Whether packets are received and outputs are up. `Err`: the reason if not.
    fn readiness(&self) -> Result<(), NotReady>;

    /// A consistent snapshot.
    fn status(&self) -> ResponseFuture<'_, Status>;

    /// Reloads the configuration, as SIGHUP does. `None` during start and end.
    fn reload(&self) -> ResponseFuture<'_, Option<Reloaded>>;

    /// Usage: the first `top` entries of each list. `None` before the first flush.
    fn contexts(&self, _top: usize) -> ResponseFuture<'_, Option<ContextReport>> {
        Box::pin(async { None })
    }

    /// The last minutes. `None` if they are disabled.
    fn recent(&self) -> Option<Arc<Recent>> {
        None
    }

    /// Access to packets. `None` if `admin_payloads` forbids it.
    fn taps(&self) -> Option<Arc<Taps>> {
        None
    }

    /// Explains one message.
    fn explain(&self, _request: ExplainRequest) -> ResponseFuture<'_, Result<Explanation, ExplainError>> {
        Box::pin(async { Err(ExplainError::ReceivesNone) })
    }

    /// The exposition for a scraper. `None` without the Prometheus output.
    fn scrape(&self, _request: ScrapeRequest) -> ResponseFuture<'_, Option<Exposition>> {
        Box::pin(async { None })
    }
}

/// The options of a scrape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrapeRequest {
    /// The `Accept` header, which selects the format.
    pub accept: String,
    /// The scraper takes gzip.
    pub gzip: bool,
}

/// A scrape's answer.
#[derive(Debug)]
pub struct Exposition {
    pub content_type: String,
    /// `gzip` if compressed.
    pub content_encoding: Option<&'static str>,
    /// A large exposition is never in memory as a whole. A scraper that disconnects closes the channel.
    pub body: Pieces,
}
