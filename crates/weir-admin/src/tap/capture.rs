//! Captures packets as they arrive.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_ingest::{TapBlock, TappedPacket};

use super::message::{MessageFilter, lines, samples_apart};
use super::{Next, TapListener, Tapped, Taps, clock_offset};
use crate::capture_file::{
    CaptureState, Captured, Entity, EntityId, credentials, header, write_packet, write_state,
};
use crate::streams::{self, Permit, PieceSender, Pieces};

/// Maximum duration of a capture.
pub const SECONDS_MAX: u64 = 600;

/// Default size limit.
pub const BYTES_DEFAULT: u64 = 1 << 30;

/// Maximum pieces that wait for the reader, and their size.
const PIECES_MAX: usize = 4;
const PIECE_BYTES: usize = 64 << 10;

/// Maximum senders recorded in a capture.
const SENDERS_MAX: usize = 4096;

/// Maximum time without output.
const LINGER: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureRequest {
    /// Only packets with a matching message.
    pub wanted: MessageFilter,
    pub duration: Duration,
    /// Size limit.
    pub bytes_max: u64,
}

/// Starts a capture, unless one is running. It ends after its time, or when its reader disconnects.
pub fn start(taps: &Arc<Taps>, request: CaptureRequest, permit: Permit) -> std::io::Result<Option<Pieces>> {
    let Ok(only) = taps.capturing.clone().try_acquire_owned() else {
        return Ok(None);
    };
    let (pieces, mut reader) = streams::pieces(PIECES_MAX);
    let tapped = taps.open(None, taps.room / 2, vec![permit, only]);
    reader.hold(tapped.open.clone());
    let capture = Capture {
        tapped,
        request,
        pieces,
        out: header().to_vec(),
        bytes: 0,
        state: CaptureState::default(),
    };
    std::thread::Builder::new()
        .name("capture".into())
        .spawn(move || capture.run())?;
    Ok(Some(reader))
}

struct Capture {
    tapped: Tapped,
    request: CaptureRequest,
    pieces: PieceSender,
    /// Bytes not sent yet.
    out: Vec<u8>,
    /// Bytes sent.
    bytes: u64,
    state: CaptureState,
}

impl Capture {
    fn run(mut self) {
        if !self.tapped.begin() {
            return;
        }
        let end = Instant::now() + self.request.duration;
        // The header shows the reader that the capture has begun.
        while self.forward() {
            let now = Instant::now();
            if now >= end {
                break;
            }
            match self.tapped.next(end.min(now + LINGER)) {
                Next::Block(kept) => self.take(&kept.block),
                Next::Time => {}
                Next::Ended => {
                    self.state.ended_early = "the agent ended".to_owned();
                    break;
                }
            }
            if self.bytes + self.out.len() as u64 >= self.request.bytes_max {
                self.state.ended_early = format!("it has {} bytes", self.request.bytes_max);
                break;
            }
        }
        self.name_senders();
        self.state.requests = self.tapped.columns.requests.load(Ordering::Relaxed);
        write_state(&self.state, &mut self.out);
        if self.forward() {
            self.pieces.finish();
        }
    }

    /// Waits for the reader; packets without room are lost to the capture meanwhile. Returns false if the reader has disconnected.
    fn forward(&mut self) -> bool {
        if self.out.is_empty() {
            return !self.pieces.is_closed();
        }
        let piece = std::mem::take(&mut self.out);
        self.bytes += piece.len() as u64;
        self.pieces.blocking_send(Bytes::from(piece)).is_ok()
    }

    fn take(&mut self, block: &TapBlock) {
        self.state.lost += block.lost;
        let offset = clock_offset();
        let taps = self.tapped.open.taps.clone();
        for (packet, bytes) in block.iter() {
            let Some(listener) = taps.listeners.get(usize::from(packet.listener)) else {
                continue;
            };
            if !self.wants(packet, bytes, listener) {
                continue;
            }
            self.state.packets += 1;
            let captured = captured(packet, bytes, listener, offset);
            if self.state.processes.len() < SENDERS_MAX && captured.pid > 0 {
                self.state.processes.entry(captured.pid).or_default();
            }
            write_packet(&captured, &mut self.out);
            if self.out.len() >= PIECE_BYTES && !self.forward() {
                return;
            }
        }
    }

    fn wants(&self, packet: &TappedPacket, bytes: &[u8], listener: &TapListener) -> bool {
        let wanted = &self.request.wanted;
        wanted.everything()
            || lines(
                &samples_apart(bytes, &listener.reading),
                packet.truncated,
                &listener.reading.parse,
            )
            .any(|line| wanted.wants(&line))
    }

    /// Records the containers of processes, as far as they are known.
    fn name_senders(&mut self) {
        for (pid, entity) in &mut self.state.processes {
            let sender = self.tapped.open.taps.knowledge.sender(*pid);
            let Some(container) = sender.container else {
                continue;
            };
            *entity = format!("container_id://{container}");
            let described = Entity {
                id: Some(EntityId {
                    prefix: "container_id".to_owned(),
                    uid: container,
                }),
                low_cardinality_tags: sender.tags,
                ..Entity::default()
            };
            self.state.entities.insert(entity.clone(), described);
        }
        self.state.processes.retain(|_, entity| !entity.is_empty());
    }
}

fn captured(packet: &TappedPacket, bytes: &[u8], listener: &TapListener, offset: i128) -> Captured {
    let ancillary = packet
        .sender
        .map(|sender| credentials(sender.pid, sender.uid, sender.gid))
        .unwrap_or_default();
    Captured {
        timestamp: (i128::from(packet.received) + offset) as i64,
        payload_size: bytes.len() as i32,
        payload: bytes.to_vec(),
        pid: packet.sender.map_or(0, |sender| sender.pid),
        ancillary_size: ancillary.len() as i32,
        ancillary,
        listener: listener.address.clone(),
        source: packet.source.map(|source| source.to_string()).unwrap_or_default(),
    }
}
