//! Payloads into the log, one at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_log::{AnyLog, Error};
use weir_merge::{Log as _, delay_ms};
use weir_state::AgentId;

use super::plan::Planned;
use crate::delivery::{BoxFuture, Clock, Landed, Outcome, Payload, Transport};

/// Interval between requests for the number of partitions. A change is announced for a later time than this.
const PLAN_INTERVAL: Duration = Duration::from_secs(10);

/// Agents spread their records over the width of a bucket, but over no more seconds than this: a merge waits longer for each.
const SPREAD_MAX: u32 = 10;

/// The route of a payload that any partition may have.
pub(super) const ANY_PARTITION: u16 = u16::MAX;

/// Appends payloads to the log.
pub(super) struct Producer {
    pub log: Arc<Mutex<AnyLog>>,
    pub planned: Arc<Planned>,
    pub clock: Clock,
    /// The agent of the records; `None`: they hold points.
    pub agent: Option<AgentId>,
}

impl Producer {
    /// Works on the log, off the runtime's threads.
    async fn with_log<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut AnyLog) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, PublishError> {
        let log = self.log.clone();
        let work = move || work(&mut log.lock().unwrap_or_else(PoisonError::into_inner));
        match tokio::task::spawn_blocking(work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error @ (Error::TooLarge { .. } | Error::Refused { .. }))) => {
                Err(PublishError::Permanent(error.to_string()))
            }
            Ok(Err(error)) => Err(PublishError::Temporary(error.to_string())),
            Err(error) => Err(PublishError::Temporary(error.to_string())),
        }
    }

    /// The partition of a payload of any.
    fn some_partition(&self, payload: &Payload) -> u32 {
        let partitions = self.planned.known().map_or(1, |plan| plan.at(payload.created));
        (payload.digest() % u128::from(partitions)) as u32
    }
}

/// Why something was not done.
enum PublishError {
    Temporary(String),
    Permanent(String),
}

impl Transport for Producer {
    fn send(&self, payload: Payload) -> BoxFuture<'_, Outcome> {
        self.send_and_mark(payload, Landed::default())
    }

    /// A record is delivered once the log has accepted it. After an error that is unknown, so the record is sent again, with its number.
    fn send_and_mark(&self, payload: Payload, landed: Landed) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let partition = match payload.route {
                ANY_PARTITION => self.some_partition(&payload),
                partition => u32::from(partition),
            };
            let clock = self.clock.clone();
            let appended = self.with_log(move |log| {
                landed.begin();
                let appended = log.append(partition, clock.unix_ms(), &payload.body);
                appended.inspect(|_| landed.mark())
            });
            match appended.await {
                Ok(_) => Outcome::Delivered,
                Err(PublishError::Permanent(error)) => Outcome::Rejected { error },
                Err(PublishError::Temporary(error)) => Outcome::Retry { error, after: None },
            }
        })
    }

    fn delay(&self, _payload: &Payload) -> Duration {
        let width = self.planned.width().min(SPREAD_MAX);
        Duration::from_millis(self.agent.map_or(0, |agent| delay_ms(agent, width)))
    }

    fn background(&self, clock: Clock) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            loop {
                let planned = self.planned.clone();
                let ask = move |log: &mut AnyLog| log.plan().map(|plan| planned.set(plan));
                // Attempts to deliver report errors.
                drop(self.with_log(ask).await);
                clock.sleep_until(clock.now() + PLAN_INTERVAL).await;
            }
        })
    }

    fn details(&self) -> BTreeMap<&'static str, String> {
        let partitions = self
            .planned
            .known()
            .map(|plan| plan.at(self.clock.unix()).to_string());
        let agent = self.agent.map(|agent| ("agent", agent.to_string()));
        let partitions = partitions.map(|partitions| ("partitions", partitions));
        agent.into_iter().chain(partitions).collect()
    }
}
