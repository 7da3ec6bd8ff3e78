//! Views of packets for users: the tail, which shows messages as they arrive, and captures.
//!
//! Workers copy packets for each stream ([`weir_ingest::TapSettings`]); a separate thread per stream does everything else. It ends with its
//! reader, and copying ends with it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weir_counters::Counts;
use weir_ingest::{Command, CommandSender, ListenerSettings, TapBlock, TapSettings};
use weir_listener::Monotonic;
use weir_origin::OriginExplanation;
use weir_protocol::Message;

use crate::streams::{Permit, Streams};
use weir_status::counters::TapCounter;
use weir_status::status::Status;

use columns::{ColumnTap, ColumnTaps, SeenRequest};

pub mod capture;
pub mod columns;
pub mod message;
pub mod tail;

/// Maximum blocks in transit to one stream; its room limits their bytes.
const BLOCKS_MAX: usize = 1024;

/// Blocks that fit in a stream's room.
const BLOCKS_IN_ROOM: u64 = 8;

/// Larger blocks would only arrive later.
const BLOCK_BYTES_MAX: u64 = 64 << 10;

/// Time limit for workers to start copying.
const BEGIN_WITHIN: Duration = Duration::from_secs(5);

/// Time that the agent's end waits for streams.
const END_WITHIN: Duration = Duration::from_secs(1);

/// Tails share one half of the memory for copies, as if there were this many; a capture has the other half.
const TAILS: u64 = 16;

/// Access to senders and rules.
pub trait Knowledge: Send + Sync {
    /// The origin of this process.
    fn sender(&self, pid: i32) -> OriginExplanation;

    /// The reason if a rule drops this message of this sender.
    fn dropped(
        &self,
        message: &Message<'_>,
        sender: &OriginExplanation,
        listener: &TapListener,
    ) -> Option<String>;
}

/// A listener, as readers of its packets need it.
#[derive(Clone, Debug)]
pub struct TapListener {
    pub address: String,
    pub reading: ListenerSettings,
}

/// Opens streams.
pub struct Taps {
    pub workers: Vec<CommandSender>,
    pub listeners: Vec<TapListener>,
    pub knowledge: Box<dyn Knowledge>,
    /// Bytes of copies of all streams.
    pub room: u64,
    pub streams: Streams,
    pub counts: Mutex<Counts<TapCounter>>,
    /// Bytes of copies in transit.
    pub held: Arc<AtomicU64>,
    /// Packets lost by captures for lack of room.
    pub lost: Arc<AtomicU64>,
    /// Only one capture runs at a time, because a second one would take its room.
    pub capturing: Arc<tokio::sync::Semaphore>,
    /// Requests with columns.
    pub columns: Arc<ColumnTaps>,
}

impl Taps {
    /// Adds the counts to a status.
    pub fn report(&self, status: &mut Status) {
        let mut counts = *self.lock();
        counts[TapCounter::PacketsLost] = self.lost.load(Ordering::Relaxed);
        status.add(None, &counts);
        let held = self.held.load(Ordering::Relaxed);
        status.memory.parts.insert("taps".into(), held);
        status.memory.used += held;
    }

    /// After the workers' end: gives the streams a moment to finish.
    pub fn finish(&self) {
        let end = Instant::now() + END_WITHIN;
        while self.lock()[TapCounter::Streams] > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn count(&self, counter: TapCounter, number: u64) {
        self.lock()[counter] += number;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts<TapCounter>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests copies from the workers: about `sample` bytes a second, or everything.
    fn open(self: &Arc<Self>, sample: Option<u64>, room: u64, permits: Vec<Permit>) -> Tapped {
        let (sender, blocks) = sync_channel(BLOCKS_MAX);
        // The workers have the channel: it ends with them.
        let sender = Arc::new(sender);
        let room = Arc::new(Room {
            max: room,
            held: AtomicU64::new(0),
            of_all: self.held.clone(),
        });
        for worker in &self.workers {
            let (sender, room_of_worker) = (sender.clone(), room.clone());
            // A tail always shows a sample, and reports its size.
            let lost = if sample.is_none() {
                self.lost.clone()
            } else {
                Arc::default()
            };
            let mut losses = Losses::new(lost);
            worker.send(Command::Tap(TapSettings {
                sample: sample.map(|bytes| bytes / self.workers.len() as u64),
                block_bytes: (room.max / BLOCKS_IN_ROOM).min(BLOCK_BYTES_MAX) as usize,
                push: Box::new(move |block| losses.note(block, |block| room_of_worker.push(&sender, block))),
            }));
        }
        let columns = match sample {
            Some(bytes) => self.columns.tail(room, Arc::downgrade(&sender), bytes),
            None => self.columns.capture(),
        };
        self.count(TapCounter::Streams, 1);
        let open = OpenStream {
            taps: self.clone(),
            permits,
        };
        Tapped {
            blocks,
            columns,
            open: Arc::new(open),
        }
    }
}

/// The memory for copies in transit to one stream.
#[derive(Debug)]
struct Room {
    max: u64,
    held: AtomicU64,
    of_all: Arc<AtomicU64>,
}

impl Room {
    fn push(
        self: &Arc<Self>,
        sender: &SyncSender<HeldBlock>,
        block: TapBlock,
    ) -> Result<(), Option<TapBlock>> {
        let bytes = block.heap_bytes() as u64;
        if bytes > 0 && self.held.load(Ordering::Relaxed) + bytes > self.max {
            return Err(Some(block));
        }
        self.held.fetch_add(bytes, Ordering::Relaxed);
        self.of_all.fetch_add(bytes, Ordering::Relaxed);
        let kept = HeldBlock {
            block,
            request: None,
            bytes,
            room: self.clone(),
        };
        sender.try_send(kept).map_err(|error| match error {
            TrySendError::Full(mut kept) => Some(std::mem::take(&mut kept.block)),
            TrySendError::Disconnected(_) => None,
        })
    }

    /// Sends a request with columns, if there is room.
    fn push_request(self: &Arc<Self>, sender: &SyncSender<HeldBlock>, request: Arc<SeenRequest>) {
        let bytes = request.heap_bytes() as u64;
        if self.held.load(Ordering::Relaxed) + bytes > self.max {
            return;
        }
        self.held.fetch_add(bytes, Ordering::Relaxed);
        self.of_all.fetch_add(bytes, Ordering::Relaxed);
        let kept = HeldBlock {
            block: TapBlock::default(),
            request: Some(request),
            bytes,
            room: self.clone(),
        };
        // Its reader is behind, or has left.
        drop(sender.try_send(kept));
    }
}

/// Losses of one worker, counted as soon as they are known. A later block reports them again.
struct Losses {
    of_all: Arc<AtomicU64>,
    /// Number of losses of the next block's report that are counted already.
    counted: u64,
}

impl Losses {
    fn new(of_all: Arc<AtomicU64>) -> Losses {
        Losses { of_all, counted: 0 }
    }

    fn note(
        &mut self,
        block: TapBlock,
        push: impl FnOnce(TapBlock) -> Result<(), Option<TapBlock>>,
    ) -> Result<(), Option<TapBlock>> {
        let lost = block.lost;
        let pushed = push(block);
        let lost = match &pushed {
            Err(Some(block)) => lost + block.packets.len() as u64,
            _ => lost,
        };
        self.of_all.fetch_add(lost - self.counted, Ordering::Relaxed);
        // Without a reader the worker has let go of the block, and its next one begins from zero.
        self.counted = match &pushed {
            Err(Some(_)) => lost,
            _ => 0,
        };
        pushed
    }
}

/// A block that occupies room until it is dropped.
struct HeldBlock {
    block: TapBlock,
    /// A request with columns; the block is then empty.
    request: Option<Arc<SeenRequest>>,
    bytes: u64,
    room: Arc<Room>,
}

impl Drop for HeldBlock {
    fn drop(&mut self) {
        self.room.held.fetch_sub(self.bytes, Ordering::Relaxed);
        self.room.of_all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The copies for one stream.
struct Tapped {
    blocks: Receiver<HeldBlock>,
    columns: ColumnTap,
    open: Arc<OpenStream>,
}

/// Held by a stream's thread and by its reader: the agent's end waits until the last piece is read.
struct OpenStream {
    taps: Arc<Taps>,
    permits: Vec<Permit>,
}

impl Tapped {
    /// Waits until every worker copies. Returns false on timeout.
    fn begin(&self) -> bool {
        let end = Instant::now() + BEGIN_WITHIN;
        let mut waiting = self.open.taps.workers.len();
        while waiting > 0 {
            match self.next(end) {
                Next::Block(kept) => waiting -= usize::from(kept.block.begins),
                Next::Time | Next::Ended => return false,
            }
        }
        true
    }

    /// The next block; waits until `end` at most.
    fn next(&self, end: Instant) -> Next {
        match self
            .blocks
            .recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            Ok(kept) => {
                self.open
                    .taps
                    .count(TapCounter::Packets, kept.block.packets.len() as u64);
                Next::Block(kept)
            }
            Err(RecvTimeoutError::Timeout) => Next::Time,
            Err(RecvTimeoutError::Disconnected) => Next::Ended,
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        // Before the count, which says that the next stream can be opened.
        self.permits.clear();
        let mut counts = self.taps.lock();
        counts[TapCounter::Streams] = counts[TapCounter::Streams].saturating_sub(1);
    }
}

enum Next {
    Block(HeldBlock),
    Time,
    /// The workers have ended.
    Ended,
}

/// Unix nanoseconds at the monotonic clock's zero.
fn clock_offset() -> i128 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    unix.as_nanos() as i128 - i128::from(Monotonic::now().0)
}

/// Of the wall clock.
pub fn unix_seconds() -> i64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    unix.as_secs() as i64
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use weir_ingest::{PacketOutcome, TappedPacket};

    use super::*;

    struct Known;

    impl Knowledge for Known {
        fn sender(&self, pid: i32) -> OriginExplanation {
            OriginExplanation {
                container: Some(format!("of {pid}")),
                ..OriginExplanation::default()
            }
        }

        fn dropped(&self, message: &Message<'_>, _: &OriginExplanation, _: &TapListener) -> Option<String> {
            let is_noisy = matches!(message, Message::Metric(metric) if metric.name.starts_with("noisy"));
            is_noisy.then(|| "rule noise".to_owned())
        }
    }

    impl Taps {
        /// Of an agent without workers, with one listener and a rule that drops what is noisy.
        pub fn double() -> Arc<Taps> {
            let parse = weir_protocol::ParseOptions {
                timestamps: true,
                ..weir_protocol::ParseOptions::default()
            };
            Arc::new(Taps {
                workers: Vec::new(),
                listeners: vec![TapListener {
                    address: "udp://127.0.0.1:1".to_owned(),
                    reading: parse.into(),
                }],
                knowledge: Box::new(Known),
                room: 1 << 20,
                streams: Streams::default(),
                counts: Mutex::default(),
                held: Arc::default(),
                lost: Arc::default(),
                capturing: Arc::new(tokio::sync::Semaphore::new(1)),
                columns: Arc::default(),
            })
        }
    }

    fn block(packets: usize, lost: u64) -> TapBlock {
        let packet = TappedPacket {
            listener: 0,
            length: 1,
            received: 0,
            truncated: false,
            sender: None,
            source: None,
            outcome: PacketOutcome::default(),
        };
        TapBlock {
            packets: vec![packet; packets],
            bytes: vec![0; packets],
            lost,
            ..TapBlock::default()
        }
    }

    #[tokio::test]
    async fn a_capture_is_open_until_its_last_piece_is_read() {
        let taps = Taps::double();
        let open = || {
            let permit = taps.streams.open().unwrap();
            capture::start(&taps, capture::CaptureRequest::default(), permit).unwrap()
        };
        let mut reader = open().expect("none is running");
        // Without workers its thread ends at once.
        while poll_fn(|context| reader.poll_next(context)).await.is_some() {}
        assert_eq!(taps.lock()[TapCounter::Streams], 1);
        drop(reader);
        while taps.lock()[TapCounter::Streams] > 0 {
            std::thread::yield_now();
        }
        assert!(open().is_some(), "the next one may begin");
    }

    #[test]
    fn memory_is_reserved_until_a_block_is_dropped_and_losses_are_counted_once() {
        let (sender, blocks) = sync_channel(2);
        let of_all = Arc::new(AtomicU64::new(0));
        let room = Arc::new(Room {
            max: block(3, 0).heap_bytes() as u64,
            held: AtomicU64::new(0),
            of_all: of_all.clone(),
        });
        let lost = Arc::new(AtomicU64::new(0));
        let mut losses = Losses::new(lost.clone());
        let mut push = |block| {
            losses
                .note(block, |block| room.push(&sender, block))
                .map_err(|back| back.is_some())
        };
        assert_eq!(push(block(3, 0)), Ok(()));
        // The worker repeats the number of losses with each block until one is accepted.
        assert_eq!(push(block(2, 0)), Err(true));
        assert_eq!(push(block(1, 2)), Err(true));
        assert_eq!(lost.load(Ordering::Relaxed), 3);
        drop(blocks.recv());
        assert_eq!(of_all.load(Ordering::Relaxed), 0);
        assert_eq!(push(block(1, 3)), Ok(()));
        assert_eq!(push(block(0, 1)), Ok(()));
        assert_eq!(lost.load(Ordering::Relaxed), 4);
        drop(blocks);
        assert_eq!(push(block(1, 0)), Err(false), "no reader is there");
        // More packets come before the worker removes the tap.
        assert_eq!(push(block(0, 2)), Err(false));
        assert_eq!(push(block(0, 1)), Err(false));
        assert_eq!(lost.load(Ordering::Relaxed), 7);
        assert_eq!(of_all.load(Ordering::Relaxed), 0);
    }
}
