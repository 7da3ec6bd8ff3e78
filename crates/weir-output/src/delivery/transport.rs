//! The interface of transports, which send request bodies.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::books::{Class, Items};
use super::{Clock, Landed};

/// A future that a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Delivered,
    /// Delivered, except for this many points, events or checks, which the backend refused permanently.
    Partly {
        rejected: u32,
        error: String,
    },
    /// Try again, not before `after` if the backend said so.
    Retry {
        error: String,
        after: Option<Duration>,
    },
    /// The receiver refuses the key or token. The payload waits for another one.
    Denied {
        error: String,
    },
    /// The content was refused, perhaps because of one series of many: the rest is tried without it.
    Invalid {
        error: String,
    },
    /// Trying again would change nothing.
    Rejected {
        error: String,
    },
}

impl Outcome {
    /// Names the place that gave it.
    pub fn at(mut self, place: &str) -> Self {
        match &mut self {
            Outcome::Delivered => {}
            Outcome::Partly { error, .. }
            | Outcome::Retry { error, .. }
            | Outcome::Denied { error }
            | Outcome::Invalid { error }
            | Outcome::Rejected { error } => error.insert_str(0, &format!("{place}: ")),
        }
        self
    }
}

/// The content of a payload, series by series.
pub trait Parts: Send + Sync + 'static {
    /// Calls `keep` for every series in order, with its identity and its display name. Returns a body like the payload's with the selected
    /// ones; `None` if the payload cannot be read.
    fn pick(&self, keep: &mut Keep<'_>) -> Option<Vec<u8>>;
}

/// See [`Parts::pick`].
pub type Keep<'a> = dyn FnMut(u128, &dyn Fn() -> String) -> bool + 'a;

/// Sends payloads to one endpoint. Messages it returns are shown: no secrets in them.
pub trait Transport: Send + Sync + 'static {
    /// One attempt. Delivery ends it after the timeout, and limits how many run at once.
    fn send(&self, payload: Payload) -> BoxFuture<'_, Outcome>;

    /// [`Transport::send`] that marks the payload when its delivery begins and once it is delivered: for transports that write on another
    /// thread, which do it there, around the write.
    fn send_and_mark(&self, payload: Payload, landed: Landed) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            landed.begin();
            let outcome = self.send(payload).await;
            if outcome == Outcome::Delivered {
                landed.mark();
            }
            outcome
        })
    }

    /// The time for which a payload waits after it was created, unless the output ends or is handed over. Outputs use it to spread the load
    /// of many agents over time.
    fn delay(&self, _payload: &Payload) -> Duration {
        Duration::ZERO
    }

    /// Divides a payload that was refused as [`Outcome::Invalid`] into series. `None`: it cannot be divided.
    fn parts(&self, _payload: &Payload) -> Option<Box<dyn Parts>> {
        None
    }

    /// Runs beside delivery until the output ends, for instance to check a key now and then.
    fn background(&self, _clock: Clock) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Opens files again, as after a request of `logrotate`. Does not wait.
    fn reopen(&self) {}

    /// Closes what only one output may have open; another one takes it over. May touch the disk.
    fn release(&self) {}

    /// Closes it for now. May touch the disk.
    fn rest(&self) {}

    /// More for the status, by name.
    fn details(&self) -> BTreeMap<&'static str, String> {
        BTreeMap::new()
    }
}

/// One place that every payload of the output goes to.
pub struct Endpoint {
    /// Shown in status and logs: no secrets.
    pub label: String,
    /// Name of its directory in the disk queue: stable, unique in the output, no secrets.
    pub directory: String,
    /// The common prefix of the directories for other keys, `-` follows; `None` if there are no keys.
    pub family: Option<String>,
    pub transport: Arc<dyn Transport>,
}

/// A body with what its transport and the books need to know. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Ascending in order of creation within an endpoint's queue.
    pub id: u64,
    /// The kind of request, as the output's own number, which stays valid on disk: endpoint path, content type, encoding.
    pub route: u16,
    pub class: Class,
    /// Points, events or checks inside.
    pub count: u32,
    /// Unix seconds.
    pub created: i64,
    pub body: Bytes,
}

impl Payload {
    /// Identifies a payload of the output, across restarts and on disk. Two identical payloads made in one second have the same digest.
    pub fn digest(&self) -> u128 {
        let seed = (self.created as u64) << 16 | u64::from(self.route);
        xxhash_rust::xxh3::xxh3_128_with_seed(&self.body, seed)
    }

    pub fn items(&self) -> Items {
        Items::of(self.class, u64::from(self.count))
    }
}
