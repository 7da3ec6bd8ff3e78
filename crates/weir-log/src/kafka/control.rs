//! The control topic: how series are divided among partitions.

use std::time::{Duration, Instant};

use weir_merge::Plan;

use super::reader::Reader;
use crate::{Error, plan};

/// The key of the plan.
pub(crate) const PLAN: &[u8] = b"plan";

/// Maximum age of the known plan.
const FRESH: Duration = Duration::from_secs(1);

/// The contents of the control topic, as far as it was read.
#[derive(Default)]
pub(crate) struct Control {
    next: u64,
    text: Option<String>,
    plan: Option<Plan>,
    /// A later plan that this program does not understand.
    newer: Option<String>,
    read: Option<Instant>,
}

impl Control {
    /// The last plan that was read.
    pub fn known(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Whether the message at this offset was read.
    pub fn has_read(&self, offset: u64) -> bool {
        self.next > offset
    }

    pub fn is_fresh(&self) -> bool {
        self.read.is_some_and(|read| read.elapsed() < FRESH)
    }

    /// Reads to the end of the topic.
    pub fn read_to_end(&mut self, reader: &mut Reader, topic: &str, timeout: Duration) -> Result<(), Error> {
        // Nothing is fetched between two looks: a fleet has thousands of agents, and one broker has this topic.
        let end = reader.ends(topic, 0)?.1;
        let until = Instant::now() + timeout;
        while self.next < end {
            let left = until.saturating_duration_since(Instant::now());
            let read = reader.read(topic, 0, self.next, 1 << 20, left)?;
            for got in &read.messages {
                self.next = got.offset + 1;
                if got.key == PLAN {
                    self.take(&got.bytes);
                }
            }
            if read.is_end {
                break;
            }
            if read.messages.is_empty() {
                return Err(reader.unanswered(topic, 0));
            }
        }
        reader.stop_reading(topic, 0)?;
        self.read = Some(Instant::now());
        self.is_understood(topic)
    }

    /// Fails while the last plan is one of a newer program: who divides by an earlier one splits series, and who writes the first one again
    /// loses it.
    pub fn is_understood(&self, topic: &str) -> Result<(), Error> {
        let newer = self.newer.as_deref().unwrap_or_default();
        plan::parse(newer, &format!("the plan in topic {topic}")).map(drop)
    }

    fn take(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        match plan::parse(&text, "") {
            Ok(Some((plan, _))) => {
                (self.plan, self.text, self.newer) = (Some(plan), Some(text), None);
            }
            Ok(None) => {}
            Err(_) => self.newer = Some(text),
        }
    }
}
