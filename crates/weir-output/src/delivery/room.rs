//! An output's part of the memory for waiting payloads: the bytes that it holds, the bytes that it needs, and its limit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{MutexGuard, OnceLock};
use std::time::Instant;

use super::books::{Items, Reason};
use super::queue::Queue;
use super::{Delivery, OutputEnvironment, Shared, lock};

/// An output's part of memory. It changes with the number of outputs.
pub(super) struct MemoryLimits {
    /// Bodies that wait, over all endpoints.
    pub(super) queued: AtomicU64,
    /// Bodies that are about to be queued.
    pub(super) coming: AtomicU64,
    /// The last payloads displaced others.
    pub(super) is_full: AtomicBool,
    /// Asks for a larger `queued`.
    pub(super) ask: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// The encoder's state.
    pub(super) state: AtomicU64,
    /// Batches that wait to be encoded.
    pub(super) inbox: AtomicU64,
    /// Longest wait of the batches of one flush for room there.
    pub(super) wait_nanos: AtomicU64,
    /// No batch waits beyond this moment.
    pub(super) waits_end: OnceLock<Instant>,
}

impl MemoryLimits {
    /// The limits at a start; the inbox has none until the shares are divided.
    pub(super) fn of(environment: &OutputEnvironment) -> Self {
        MemoryLimits {
            queued: environment.memory_bytes_max.into(),
            coming: 0.into(),
            is_full: false.into(),
            ask: OnceLock::new(),
            state: environment.state_bytes_max.into(),
            inbox: u64::MAX.into(),
            wait_nanos: u64::MAX.into(),
            waits_end: OnceLock::new(),
        }
    }
}

impl Delivery {
    /// Limits the bytes of waiting bodies, over all endpoints. If they already take more, the oldest are dropped.
    pub fn limit_queues(&self, bytes_max: u64) {
        let shared = &self.shared;
        shared.limits.queued.store(bytes_max, Ordering::Relaxed);
        let memory_max = shared.memory_max();
        for (index, side) in shared.endpoints.iter().enumerate() {
            // The holder of the lock may be waiting for a disk. Then the next payload makes room.
            let Ok(mut queue) = side.queue.try_lock() else {
                continue;
            };
            queue.set_memory_max(memory_max);
            lock(&shared.books).endpoints[index].copy_from(&queue);
        }
    }

    /// Sets the function that the output calls before it drops anything for lack of memory. It may raise the limit. Only the first such
    /// function counts.
    pub fn ask_for_room(&self, ask: impl Fn() + Send + Sync + 'static) {
        drop(self.shared.limits.ask.set(Box::new(ask)));
    }

    pub fn queue_limit(&self) -> u64 {
        self.shared.limits.queued.load(Ordering::Relaxed)
    }

    /// The used fraction of the part for waiting payloads. It is full if the last payloads displaced others, whatever is left: a payload
    /// needs its room as a whole.
    pub fn queue_fullness(&self) -> f64 {
        let (held, limit) = (self.queued_bytes(), self.queue_limit());
        match self.shared.limits.is_full.load(Ordering::Relaxed) {
            true if held > 0 => 1.0,
            _ if limit == 0 => 0.0,
            _ => held as f64 / limit as f64,
        }
    }

    /// The least that [`Delivery::limit_queues`] can be set to without a loss.
    pub fn queued_bytes(&self) -> u64 {
        match self.shared.held() {
            0 => 0,
            held => self.shared.limit_for(held),
        }
    }

    /// The least limit at which the next payload evicts none.
    pub fn wanted_bytes(&self) -> u64 {
        let shared = &self.shared;
        shared.limit_for(shared.held() + shared.limits.coming.load(Ordering::Relaxed))
    }
}

impl Shared {
    /// Bytes in memory, per endpoint.
    pub(super) fn memory_max(&self) -> u64 {
        let queued = self.limits.queued.load(Ordering::Relaxed);
        queued.saturating_sub(self.encoder.reserved) / self.endpoints.len().max(1) as u64
    }

    /// The limit, over all endpoints, at which each endpoint can hold this many bytes.
    fn limit_for(&self, bytes: u64) -> u64 {
        bytes * self.endpoints.len() as u64 + self.encoder.reserved
    }

    /// Bytes of the fullest queue.
    fn held(&self) -> u64 {
        let books = lock(&self.books);
        let most = books.endpoints.iter().map(|of| of.sizes.memory_bytes).max();
        most.unwrap_or(0)
    }

    /// Asks for more memory, if payloads of these bytes do not fit into the present part.
    pub(super) fn ask_for(&self, bytes: u64) {
        self.limits.coming.store(bytes, Ordering::Relaxed);
        if self.held() + bytes > self.memory_max()
            && let Some(ask) = self.limits.ask.get()
        {
            ask();
        }
    }
}

/// Items that each queue has dropped for lack of room.
pub(super) fn displaced(queues: &[MutexGuard<'_, Queue>]) -> Vec<Option<Items>> {
    let of = |queue: &MutexGuard<'_, Queue>| queue.dropped().get(&Reason::QueueFull).copied();
    queues.iter().map(of).collect()
}
