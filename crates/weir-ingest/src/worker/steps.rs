//! The work of a worker on packets and buckets, as a value that is stepped: no socket, no clock and no thread. The worker drives it from
//! its event loop, and a simulation from a seed.

use std::sync::mpsc::SyncSender;

use weir_state::AgentId;

use super::checkpoint::{CheckpointLink, Checkpoints};
use super::clock::{Clock, Readings};
use super::control::WorkerSettings;
use super::maintenance::{MaintenanceTasks, MemoryRelease};
use super::outbox::Outbox;
use super::report::Report;
use crate::ingest::{Ingest, IngestSettings};
use crate::saved::{Restored, SavedBucket};

/// Aggregates, ends buckets, hands them over, and saves them in case the process is killed.
pub struct Core {
    pub(super) ingest: Ingest,
    pub(super) outbox: Outbox,
    pub(super) clock: Clock,
    pub(super) maintenance: MaintenanceTasks,
    pub(super) release_memory: MemoryRelease,
    pub(super) agent: AgentId,
    pub(super) restored: Restored,
    pub(super) checkpoints: Option<Checkpoints>,
    /// Whether the open bucket is handed over at the end, if no other process continues it.
    pub(super) flush_open_bucket: bool,
}

impl Core {
    /// `prepare`: called before the saved bucket is continued.
    pub fn new(
        settings: IngestSettings,
        around: WorkerSettings,
        reports: SyncSender<Report>,
        checkpoints: Option<CheckpointLink>,
        mut saved: SavedBucket,
        now: Readings,
        prepare: impl FnOnce(&mut Ingest),
    ) -> Core {
        let worker = settings.worker;
        let clock = Clock::new(settings.aggregator.bucket_width, now);
        let mut ingest = Ingest::new(settings, clock.seconds());
        prepare(&mut ingest);
        let mut checkpoints = checkpoints;
        let numbers = checkpoints.as_mut().and_then(|link| link.numbers.take());
        ingest.keep_numbers(around.clients_max, numbers);
        let clients = std::mem::take(&mut saved.clients);
        ingest
            .numbers_mut()
            .restore(clients, now.monotonic / 1_000_000_000);
        let restored = ingest.resume(saved, clock.seconds(), clock.stamp(around.agent));
        Core {
            ingest,
            outbox: Outbox::new(worker, reports, around.batch_bytes_max),
            clock,
            maintenance: MaintenanceTasks::default(),
            release_memory: MemoryRelease::new(around.release_memory),
            agent: around.agent,
            restored,
            checkpoints: checkpoints.map(|link| Checkpoints::new(worker, link)),
            flush_open_bucket: around.flush_open_bucket,
        }
    }

    pub fn worker(&self) -> u16 {
        self.outbox.worker()
    }

    /// For the packets of a turn, before [`Core::turn_ended`].
    pub fn ingest_mut(&mut self) -> &mut Ingest {
        &mut self.ingest
    }

    pub fn ingest(&self) -> &Ingest {
        &self.ingest
    }

    /// Begins a checkpoint: at the start, because until it is written a kill leaves only what the process has begun with; then every
    /// second.
    pub fn begin_checkpoint(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.begin(&self.ingest, self.clock.seconds());
        }
    }

    /// Asks for the next checkpoint.
    pub(super) fn request_checkpoint(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.request();
        }
    }

    /// Begins the checkpoint that was asked for.
    pub(super) fn begin_due_checkpoint(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.begin_if_due(&self.ingest, self.clock.seconds());
        }
    }

    /// Whether a checkpoint is being made, which would have a payload of columns in part.
    pub fn holds_payloads(&self) -> bool {
        let checkpoints = self.checkpoints.as_ref();
        checkpoints.is_some_and(Checkpoints::holds_payloads)
    }

    /// Hands over what passes without aggregation, as far as there is room.
    pub(super) fn pass_all_on(&mut self) {
        while !self.outbox.is_full()
            && let Some(batch) = self.ingest.take_pass_through()
        {
            self.outbox.offer(Box::new(batch));
        }
    }

    /// Writes the next slice of a checkpoint.
    pub fn proceed_with_checkpoint(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            let (stamp, now_ms) = (self.clock.stamp(self.agent), self.clock.milliseconds());
            checkpoints.proceed(&self.ingest, stamp, now_ms);
        }
    }
}
