//! Sources of tags. Each reports everything it knows whenever that changes. Only the source waits for its backend; the resolver applies the
//! reports.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::entity::{Cardinality, TagSet};
use crate::resolver::ResolverMessage;
use crate::store::Description;

mod containerd;
mod docker;
mod environment;
mod error;
mod file;
mod http;
mod kubelet;
mod podinfo;

pub use containerd::Containerd;
pub use docker::Docker;
pub use environment::Environment;
pub use error::{CallError, FileError, LabelError, SourceError};
pub use file::{File, parse as parse_file};
#[cfg(feature = "fuzzing")]
pub(crate) use kubelet::described as kubelet_described;
pub use kubelet::{Kubelet, KubeletSettings};
pub use podinfo::PodInfo;

/// A running source. It ends only with the agent.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Something that knows the tags of containers or pods.
pub trait TagSource: Send {
    /// For example `docker`.
    fn name(&self) -> &'static str;

    /// Its path or address, without secrets.
    fn place(&self) -> String;

    /// Whether it may have tags for otherwise unknown senders.
    fn tags_unknown_senders(&self) -> bool {
        false
    }

    /// Reports to `feed` until the agent ends.
    fn run(self: Box<Self>, feed: Feed) -> Work;
}

/// A report of a source.
#[derive(Debug)]
pub enum SourceEvent {
    /// All its current entries.
    Report(Vec<Description>),
    /// It could not look. Its last report stays valid.
    Failed(SourceError),
}

/// The channel for a source's reports.
pub struct Feed {
    source: usize,
    inbox: SyncSender<ResolverMessage>,
    wanted: Arc<Notify>,
}

impl Feed {
    pub(crate) fn new(source: usize, inbox: SyncSender<ResolverMessage>, wanted: Arc<Notify>) -> Self {
        Feed {
            source,
            inbox,
            wanted,
        }
    }

    /// Sends a report. Returns false if the agent no longer listens.
    pub async fn report(&self, event: SourceEvent) -> bool {
        let mut message = ResolverMessage::Source(self.source, event);
        loop {
            match self.inbox.try_send(message) {
                Ok(()) => return true,
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(back)) => message = back,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns when the tags of something unknown are asked for.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }
}

/// A source that polls.
trait PollingSource: Send + 'static {
    fn poll(&mut self) -> impl Future<Output = Result<Vec<Description>, SourceError>> + Send;
}

/// Interval between the polls of a [`PollingSource`].
#[derive(Clone, Copy, Debug)]
struct PollInterval {
    every: Duration,
    /// Minimum interval, however much is asked for.
    not_before: Duration,
}

/// Maximum pause after repeated errors.
const PAUSE_MAX: Duration = Duration::from_secs(30);

async fn poll_repeatedly(mut source: impl PollingSource, rhythm: PollInterval, feed: Feed) {
    let mut failures = 0u32;
    loop {
        let event = match source.poll().await {
            Ok(known) => {
                failures = 0;
                SourceEvent::Report(known)
            }
            Err(error) => {
                failures += 1;
                SourceEvent::Failed(error)
            }
        };
        if !feed.report(event).await {
            return;
        }
        let pause = if failures == 0 {
            rhythm.every
        } else {
            backoff(failures).min(rhythm.every.max(Duration::from_secs(1)))
        };
        tokio::time::sleep(rhythm.not_before.min(pause)).await;
        tokio::select! {
            () = tokio::time::sleep(pause.saturating_sub(rhythm.not_before)) => {}
            () = feed.wanted() => {}
        }
    }
}

fn backoff(failures: u32) -> Duration {
    (Duration::from_millis(500) * 2u32.saturating_pow(failures.min(10))).min(PAUSE_MAX)
}

/// Labels or annotations that become tags: `label=tag`, or `label=+tag` for one with many values.
pub type LabelTags = Arc<[(String, String)]>;

/// Adds the tags for the labels that the operator chose.
fn add_labels<'a>(tags: &mut TagSet, wanted: &LabelTags, label: impl Fn(&str) -> Option<&'a str>) {
    for (name, tag) in wanted.iter() {
        let Some(value) = label(name) else {
            continue;
        };
        match tag.strip_prefix('+') {
            Some(tag) => tags.add(Cardinality::High, tag, value),
            None => tags.add(Cardinality::Low, tag, value),
        }
    }
}

/// Adds `image_name`, `short_image` and `image_tag`. A digest alone gives no tag.
fn add_image(tags: &mut TagSet, image: &str) {
    let Some((name, tag)) = split_image(image) else {
        return;
    };
    let short = name.rsplit('/').next().unwrap_or(name);
    tags.add(Cardinality::Low, "image_name", name);
    tags.add(Cardinality::Low, "short_image", short);
    tags.add(Cardinality::Low, "image_tag", tag);
}

/// Name and tag. Without tag and digest, runtimes use the tag `latest`.
fn split_image(image: &str) -> Option<(&str, &str)> {
    let (image, digest) = match image.split_once('@') {
        Some((image, digest)) => (image, Some(digest)),
        None => (image, None),
    };
    if image.is_empty() || image.starts_with("sha256:") {
        return None;
    }
    // A colon before the last slash belongs to a registry's port.
    let last = image.rfind('/').map_or(0, |at| at + 1);
    Some(match image[last..].split_once(':') {
        Some((short, tag)) => (&image[..last + short.len()], tag),
        None if digest.is_some() => (image, ""),
        None => (image, "latest"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_their_tag() {
        for (image, expected) in [
            ("cart", Some(("cart", "latest"))),
            ("shop/cart:1.2", Some(("shop/cart", "1.2"))),
            ("reg:5000/shop/cart", Some(("reg:5000/shop/cart", "latest"))),
            ("reg:5000/cart:1@sha256:ab", Some(("reg:5000/cart", "1"))),
            ("cart@sha256:ab", Some(("cart", ""))),
            ("sha256:ab", None),
            ("", None),
        ] {
            assert_eq!(split_image(image), expected, "{image}");
        }
    }
}
