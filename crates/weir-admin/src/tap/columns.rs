//! Requests with columns, for readers of streams. The control plane gives each when it is answered; without a reader that costs two loads.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use weir_columns::decode::{Decoded, Points, Series};
use weir_columns::wire::MetricType;
use weir_ingest::{PacketSampler, SeriesRejection, point_fault};
use weir_listener::Monotonic;

use super::message::MessageOutcome;
use super::{HeldBlock, Room, unix_seconds};
use weir_status::bad_bytes::text;

/// Series of one request that are copied; of more, a random choice.
const SERIES_MAX: usize = 256;

/// Points shown of a series.
const POINTS_SHOWN: usize = 8;

/// Characters shown of a name that no metric has.
const NAME_SHOWN: usize = 256;

/// Memory for what is copied from one request.
const TEXT_MAX: usize = 256 << 10;

/// Readers of requests.
#[derive(Default)]
pub struct ColumnTaps {
    /// Tails, counted where they are looked for often.
    tails: AtomicUsize,
    captures: AtomicUsize,
    readers: Mutex<Readers>,
}

#[derive(Default)]
struct Readers {
    tails: Vec<TailReader>,
    captures: Vec<Weak<AtomicU64>>,
}

/// A tail. Its channel ends with the workers, which have the sender.
struct TailReader {
    room: Arc<Room>,
    sender: Weak<SyncSender<HeldBlock>>,
    /// It sees about as many bytes as it asked for, as of packets.
    sampler: PacketSampler,
}

/// As long as it exists, requests are copied for a tail, or counted for a capture.
pub struct ColumnTap {
    taps: Arc<ColumnTaps>,
    room: Option<Arc<Room>>,
    /// Requests since it exists, for a capture, which does not hold them.
    pub requests: Arc<AtomicU64>,
}

impl ColumnTaps {
    /// Copies requests into a stream.
    pub(super) fn tail(
        self: &Arc<Self>,
        room: Arc<Room>,
        sender: Weak<SyncSender<HeldBlock>>,
        bytes_per_second: u64,
    ) -> ColumnTap {
        let mut readers = self.readers();
        readers.tails.push(TailReader {
            room: room.clone(),
            sender,
            sampler: PacketSampler::new(bytes_per_second, Monotonic::now().0),
        });
        self.tails.store(readers.tails.len(), Ordering::Release);
        ColumnTap {
            taps: self.clone(),
            room: Some(room),
            requests: Arc::default(),
        }
    }

    /// Counts requests.
    pub(super) fn capture(self: &Arc<Self>) -> ColumnTap {
        let requests = Arc::default();
        let mut readers = self.readers();
        readers.captures.push(Arc::downgrade(&requests));
        self.captures.store(readers.captures.len(), Ordering::Release);
        ColumnTap {
            taps: self.clone(),
            room: None,
            requests,
        }
    }

    /// A request that begins. `None`: nobody looks, or others are shown.
    pub fn begin(&self, listener: usize, bytes: usize) -> Option<SeenRequest> {
        if self.captures.load(Ordering::Acquire) > 0 {
            for requests in &self.readers().captures {
                if let Some(requests) = requests.upgrade() {
                    requests.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        if self.tails.load(Ordering::Acquire) == 0 {
            return None;
        }
        let received = Monotonic::now().0;
        let bytes = bytes.clamp(256, TEXT_MAX);
        let mut readers = self.readers();
        // Each decides about every request.
        let wants = readers.tails.iter_mut().filter_map(|tail| {
            let is_chosen = tail.sampler.wants(bytes, received);
            is_chosen.then(|| tail.room.clone())
        });
        let tails: Vec<Arc<Room>> = wants.collect();
        // It fits into the smallest room beside another one.
        let room = tails.iter().map(|room| room.max / 2).min()?;
        Some(SeenRequest {
            listener,
            received,
            bytes_max: (room as usize).min(TEXT_MAX),
            chosen_for: ChosenFor(tails),
            ..SeenRequest::default()
        })
    }

    /// Gives a request to the tails that it was chosen for. One without room does not get it.
    pub fn give(&self, mut request: SeenRequest) {
        let ChosenFor(tails) = std::mem::take(&mut request.chosen_for);
        let request = Arc::new(request);
        for tail in &self.readers().tails {
            let is_chosen = tails.iter().any(|room| Arc::ptr_eq(room, &tail.room));
            if let Some(sender) = tail.sender.upgrade().filter(|_| is_chosen) {
                tail.room.push_request(&sender, request.clone());
            }
        }
    }

    fn readers(&self) -> std::sync::MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ColumnTap {
    fn drop(&mut self) {
        let mut readers = self.taps.readers();
        match &self.room {
            Some(room) => readers.tails.retain(|tail| !Arc::ptr_eq(&tail.room, room)),
            None => readers
                .captures
                .retain(|requests| !std::ptr::eq(requests.as_ptr(), Arc::as_ptr(&self.requests))),
        }
        self.taps.tails.store(readers.tails.len(), Ordering::Release);
        self.taps
            .captures
            .store(readers.captures.len(), Ordering::Release);
    }
}

/// A request and its fate.
#[derive(Debug, Default)]
pub struct SeenRequest {
    pub listener: usize,
    /// Monotonic nanoseconds.
    pub received: u64,
    pub pid: i32,
    pub address: Option<IpAddr>,
    /// Method, path and size.
    pub what: String,
    /// It was not added, for this reason.
    pub refused: Option<(MessageOutcome, String)>,
    /// Samples that met a limit.
    pub limited: u64,
    /// Series that were read.
    pub all: usize,
    /// Of these, the ones that can be shown.
    pub series: Vec<SeenSeries>,
    /// Memory for them.
    pub bytes_max: usize,
    pub chosen_for: ChosenFor,
}

/// The tails that a request is for, by their rooms.
#[derive(Debug, Default)]
pub struct ChosenFor(Vec<Arc<Room>>);

/// A series of a request.
#[derive(Debug)]
pub struct SeenSeries {
    pub name: String,
    /// Joined by commas.
    pub tags: String,
    /// For users.
    pub line: String,
    /// A message of the same name, type, tags and sender; empty if there is none.
    pub message: String,
    /// Why it, or one of its points, is not added whatever the rules say.
    pub fault: Option<(MessageOutcome, &'static str)>,
}

impl SeenRequest {
    /// Copies series.
    pub fn read(&mut self, columns: &Decoded) {
        self.all = columns.len() + columns.dropped_series().len();
        let now = unix_seconds();
        for dropped in columns.dropped_series() {
            // It may be dropped for its length.
            let name: String = dropped.name.chars().take(NAME_SHOWN).collect();
            self.series.push(SeenSeries {
                line: format!("series {} {}", dropped.place, text(name.as_bytes())),
                name,
                tags: String::new(),
                message: String::new(),
                fault: Some((
                    MessageOutcome::Rejected,
                    SeriesRejection::from(dropped.fault).as_str(),
                )),
            });
        }
        let shown = columns.len().min(SERIES_MAX);
        let first = self.received as usize % shown.max(1);
        let mut chosen = Vec::new();
        let mut bytes = self.heap_bytes();
        for step in 0..shown {
            // One out of each part, at random. If the room ends early, it does so at any of them.
            let place = (first + step) % shown;
            let part = (columns.len() * place / shown)..(columns.len() * (place + 1) / shown);
            let at = part.start + (self.received as usize).wrapping_mul(place | 1) % part.len().max(1);
            let series = columns.series(at);
            let seen = SeenSeries {
                name: series.name.to_owned(),
                tags: series.tags.to_owned(),
                line: line(&series),
                message: message(&series, ""),
                fault: fault(&series, now),
            };
            bytes += seen.bytes();
            if bytes > self.bytes_max {
                break;
            }
            chosen.push((at, seen));
        }
        chosen.sort_by_key(|(at, _)| *at);
        self.series.reserve_exact(chosen.len());
        self.series.extend(chosen.into_iter().map(|(_, seen)| seen));
    }

    pub fn heap_bytes(&self) -> usize {
        self.series.iter().map(SeenSeries::bytes).sum::<usize>() + self.what.capacity()
    }
}

impl SeenSeries {
    fn bytes(&self) -> usize {
        let texts = [&self.name, &self.tags, &self.line, &self.message];
        size_of::<SeenSeries>() + texts.into_iter().map(String::capacity).sum::<usize>()
    }
}

/// A message of the same name, type and tags, with these sections, which has the context of the series. It has the first timestamp.
pub fn message(series: &Series<'_>, sections: &str) -> String {
    let letter = match series.kind {
        MetricType::Count | MetricType::Rate => 'c',
        MetricType::Gauge => 'g',
        MetricType::Sketch => 'd',
    };
    let tags = if series.tags.is_empty() { "" } else { "|#" };
    let first = match series.points {
        Points::Numbers(points) => points.first().map(|point| point.timestamp),
        Points::Sketches(points) => points.first().map(|point| point.timestamp),
    };
    let timestamp = first.filter(|seconds| *seconds > 0);
    let timestamp = timestamp.map_or_else(String::new, |seconds| format!("|T{seconds}"));
    format!(
        "{}:0|{letter}{timestamp}{tags}{}{sections}",
        series.name, series.tags
    )
}

/// A series on one line: `NAME:VALUE@SECONDS,...|TYPE|#TAGS`.
pub fn line(series: &Series<'_>) -> String {
    let mut line = format!("{}:", series.name);
    let separator = |at: usize| if at == 0 { "" } else { "," };
    match series.points {
        Points::Numbers(points) => {
            for (at, point) in points.iter().take(POINTS_SHOWN).enumerate() {
                let _ = write!(line, "{}{}@{}", separator(at), point.value, point.timestamp);
            }
        }
        Points::Sketches(points) => {
            for (at, point) in points.iter().take(POINTS_SHOWN).enumerate() {
                let _ = write!(
                    line,
                    "{}[count={} sum={} min={} max={}]@{}",
                    separator(at),
                    point.count,
                    point.sum,
                    point.min,
                    point.max,
                    point.timestamp
                );
            }
        }
    }
    if series.points.len() > POINTS_SHOWN {
        let _ = write!(line, ",and {} more", series.points.len() - POINTS_SHOWN);
    }
    let _ = match series.kind {
        MetricType::Count => write!(line, "|count"),
        MetricType::Rate => write!(line, "|rate of {} s", series.interval),
        MetricType::Gauge => write!(line, "|gauge"),
        MetricType::Sketch => write!(line, "|sketch"),
    };
    if !series.tags.is_empty() {
        let _ = write!(line, "|#{}", series.tags);
    }
    line
}

/// The first error among the points that are shown, at this time in Unix seconds.
pub fn fault(series: &Series<'_>, now: i64) -> Option<(MessageOutcome, &'static str)> {
    let reason = match series.points {
        Points::Numbers(points) => points
            .iter()
            .take(POINTS_SHOWN)
            .find_map(|point| point_fault(point.timestamp, point.value.is_finite(), now)),
        Points::Sketches(points) => points
            .iter()
            .take(POINTS_SHOWN)
            .find_map(|point| point_fault(point.timestamp, true, now)),
    };
    reason.map(|reason| (MessageOutcome::Dropped, reason.as_str()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use weir_columns::decode::{Endpoint, Limits};
    use weir_columns::{Encoder, Row, TagSet};

    use super::*;

    /// Series with these numbers of points.
    fn columns(points: &[i64]) -> Decoded {
        let mut encoder = Encoder::new(1);
        for (at, count) in points.iter().enumerate() {
            let row = Row {
                name: encoder.name(&[&format!("n{at}")]),
                tags: encoder.tag_set(TagSet::default(), ["a:1", "b"].into_iter()),
                ..Row::new(MetricType::Gauge)
            };
            let points: Vec<(i64, f64)> = (1..=*count).map(|second| (second, 0.5)).collect();
            encoder.row(&row, &points);
        }
        encoder.sort();
        Decoded::read(encoder.to_payload(), Endpoint::Series, &Limits::default()).unwrap()
    }

    #[test]
    fn a_request_costs_nothing_without_a_reader_and_room_with_one() {
        let taps = Arc::new(ColumnTaps::default());
        assert!(taps.begin(0, 100).is_none());
        let (sender, blocks) = sync_channel(4);
        let sender = Arc::new(sender);
        let room = |max| {
            Arc::new(Room {
                max,
                held: AtomicU64::new(0),
                of_all: Arc::default(),
            })
        };
        let (large, small) = (room(1 << 20), room(0));
        let tails = [&large, &small].map(|room| taps.tail(room.clone(), Arc::downgrade(&sender), 1 << 20));
        assert!(taps.begin(3, 100).is_some_and(|request| request.bytes_max == 0));
        let mut request = SeenRequest {
            listener: 3,
            bytes_max: TEXT_MAX,
            chosen_for: ChosenFor(vec![large.clone(), small.clone()]),
            ..SeenRequest::default()
        };
        request.read(&columns(&[1, 1]));
        taps.give(request);
        let held = blocks.recv().unwrap();
        let request = held.request.as_ref().unwrap();
        assert_eq!((request.listener, request.all, request.series.len()), (3, 2, 2));
        assert_eq!(large.held.load(Ordering::Relaxed), request.heap_bytes() as u64);
        drop(held);
        assert_eq!(large.held.load(Ordering::Relaxed), 0);
        assert!(blocks.try_recv().is_err(), "there is no room in the other");
        // The channel ends with the workers, although requests still arrive.
        drop(sender);
        taps.give(taps.begin(3, 100).unwrap());
        assert!(blocks.recv().is_err());
        drop(tails);
        assert!(taps.begin(0, 100).is_none());
    }

    /// The rate of the first reader once held for all of them.
    #[test]
    fn each_tail_has_its_own_share_of_the_requests() {
        let taps = Arc::new(ColumnTaps::default());
        let room = || {
            Arc::new(Room {
                max: 1 << 20,
                held: AtomicU64::new(0),
                of_all: Arc::default(),
            })
        };
        let (rooms, channel) = ([room(), room()], || sync_channel(1 << 12));
        let channels = [channel(), channel()].map(|(sender, blocks)| (Arc::new(sender), blocks));
        // The first of them may see almost nothing.
        let _tails: Vec<ColumnTap> = [1, 1 << 30]
            .into_iter()
            .zip(rooms.iter().zip(&channels))
            .map(|(rate, (room, (sender, _)))| taps.tail(room.clone(), Arc::downgrade(sender), rate))
            .collect();
        for _ in 0..1000 {
            if let Some(request) = taps.begin(0, 1 << 10) {
                taps.give(request);
            }
        }
        let seen = channels.each_ref().map(|(_, blocks)| blocks.try_iter().count());
        assert_eq!(seen[1], 1000);
        assert!(seen[0] < 100, "{seen:?}");
    }

    #[test]
    fn a_capture_counts_requests() {
        let taps = Arc::new(ColumnTaps::default());
        let capture = taps.capture();
        assert!(taps.begin(0, 100).is_none() && taps.begin(0, 100).is_none());
        let requests = capture.requests.clone();
        drop(capture);
        assert!(taps.begin(0, 100).is_none());
        assert_eq!(requests.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_long_series_is_cut_and_of_many_series_some_are_chosen() {
        let decoded = columns(&[2, 10]);
        assert_eq!(line(&decoded.series(0)), "n0:0.5@1,0.5@2|gauge|#a:1,b");
        assert_eq!(message(&decoded.series(0), "|c:x"), "n0:0|g|T1|#a:1,b|c:x");
        let cut = line(&decoded.series(1));
        assert!(cut.ends_with("0.5@7,0.5@8,and 2 more|gauge|#a:1,b"), "{cut}");
        let mut request = SeenRequest {
            bytes_max: TEXT_MAX,
            ..SeenRequest::default()
        };
        request.read(&columns(&[1; 3 * SERIES_MAX + 1]));
        assert_eq!(request.series.len(), SERIES_MAX);
        let names: std::collections::BTreeSet<&str> =
            request.series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names.len(), SERIES_MAX, "each once");
        let mut request = SeenRequest {
            bytes_max: 10_000,
            ..SeenRequest::default()
        };
        request.read(&columns(&[1; SERIES_MAX]));
        assert!(request.heap_bytes() <= 10_000 && request.series.len() > 10);
    }
}
