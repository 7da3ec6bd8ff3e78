//! The queue of one endpoint: in memory up to a budget, on disk beyond it and across restarts, and payloads in flight.
//!
//! With a disk queue every payload is written before its first attempt, so a kill loses no queued payload. Memory is then a cache of the
//! newest ones.

use std::collections::{HashMap, VecDeque};
use std::io;

use super::books::{Class, Dropped, Items, Reason, add_dropped};
use super::disk::{DiskQueue, Evicted, Next, RecordId};
use super::transport::Payload;

/// Order of payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// New data before retried data, the newest of the retried first: for backends that take points in any order.
    NewestFirst,
    /// Strictly in order of creation, one at a time: for backends that refuse a point older than the last.
    TimeOrder,
}

/// Before all points that the output was given: payloads of the output that it has replaced.
const OLDER: i64 = -1;

#[derive(Clone, Debug)]
struct QueuedPayload {
    payload: Payload,
    /// See [`Queue::push`].
    before: Option<i64>,
    record: Option<RecordId>,
}

/// Sizes by place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSizes {
    pub memory: Items,
    pub in_flight: Items,
    pub disk: Items,
    /// Payloads in memory and in flight that are nowhere else: the end of the process would lose them.
    pub unsaved: Items,
    /// Of these, those that nobody has tried to deliver. They are the newest.
    pub untried: Items,
    /// Bytes of the bodies in memory, including those in flight.
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    /// When the oldest of them was created, Unix seconds.
    pub oldest: Option<i64>,
}

/// Payloads of points that are nowhere but in memory, each by the number of points before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PointsAtRisk {
    /// The least of those that wait.
    waiting: Option<i64>,
    /// Under way, by id.
    in_flight: Vec<(u64, i64)>,
}

impl PointsAtRisk {
    /// The points before all of them; `None`: there are none. `landed`: a payload under way that has arrived.
    pub fn before(&self, landed: Option<u64>) -> Option<i64> {
        let in_flight = self.in_flight.iter().filter(|(id, _)| Some(*id) != landed);
        in_flight.map(|(_, before)| *before).chain(self.waiting).min()
    }
}

impl QueueSizes {
    pub fn total(&self) -> Items {
        self.memory + self.in_flight + self.disk
    }
}

/// The queue of one endpoint. Touches the disk when it has one: not for async tasks then.
#[derive(Debug)]
pub struct Queue {
    order: Order,
    memory_max: u64,
    memory_bytes: u64,
    memory: Items,
    /// In memory or under way, and not on disk.
    unsaved: Items,
    fresh: VecDeque<QueuedPayload>,
    /// Ascending by id.
    retried: VecDeque<QueuedPayload>,
    in_flight: HashMap<u64, QueuedPayload>,
    disk: Option<DiskQueue>,
    /// Records of payloads that were finished while the place on disk was given away.
    finished_meanwhile: Vec<RecordId>,
    /// Why payloads are not written to disk at present.
    disk_error: Option<String>,
    next_id: u64,
    dropped: Dropped,
}

impl Queue {
    /// `memory_max` bounds the bodies in memory; a single payload is always kept.
    pub fn new(order: Order, memory_max: u64, disk: Option<DiskQueue>) -> Self {
        Self {
            order,
            memory_max,
            memory_bytes: 0,
            memory: Items::default(),
            unsaved: Items::default(),
            fresh: VecDeque::new(),
            retried: VecDeque::new(),
            in_flight: HashMap::new(),
            disk,
            finished_meanwhile: Vec::new(),
            disk_error: None,
            next_id: 1,
            dropped: Dropped::new(),
        }
    }

    /// Payloads beyond the new budget go, the oldest first.
    pub fn set_memory_max(&mut self, bytes: u64) {
        self.memory_max = bytes;
        self.make_room();
    }

    /// Queues a payload, on disk too if there is one. Makes room by dropping the oldest. `before`: its points come after this many others of
    /// the output; `None`: they are of a process before this one.
    pub fn push(&mut self, mut payload: Payload, before: Option<i64>) {
        payload.id = self.next_id;
        self.next_id += 1;
        self.memory_bytes += payload.body.len() as u64;
        self.memory += payload.items();
        self.unsaved += payload.items();
        let record = None;
        self.fresh.push_back(QueuedPayload {
            payload,
            before,
            record,
        });
        self.write_down();
        self.make_room();
    }

    /// Writes payloads that are only in memory to disk, oldest first: a full disk may have room again.
    pub fn write_down(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        if self.unsaved.is_zero() {
            return;
        }
        let entries = self
            .in_flight
            .values_mut()
            .chain(&mut self.retried)
            .chain(&mut self.fresh);
        let mut waiting: Vec<&mut QueuedPayload> = entries.filter(|entry| entry.record.is_none()).collect();
        waiting.sort_unstable_by_key(|entry| entry.payload.id);
        let mut evicted = Evicted::default();
        for entry in waiting {
            match disk.append(&entry.payload, &mut evicted) {
                Ok(id) => {
                    entry.record = Some(id);
                    self.unsaved -= entry.payload.items();
                }
                Err(error) => {
                    let is_too_large = error.kind() == io::ErrorKind::FileTooLarge;
                    self.disk_error = Some(error.to_string());
                    if !is_too_large {
                        break;
                    }
                }
            }
        }
        add_dropped(&mut self.dropped, Reason::QueueFull, evicted.full);
        add_dropped(&mut self.dropped, Reason::TooOld, evicted.old);
        self.forget_disk_error();
    }

    /// Once nothing waits in memory alone, what kept it there is over.
    fn forget_disk_error(&mut self) {
        if self.unsaved.is_zero() {
            self.disk_error = None;
        }
    }

    /// Payloads in memory beyond the budget go: to disk where they are written down, else for good.
    fn make_room(&mut self) {
        while self.memory_bytes > self.memory_max && self.fresh.len() + self.retried.len() > 1 {
            let oldest = if self.retried.is_empty() {
                self.fresh.pop_front()
            } else {
                self.retried.pop_front()
            };
            let Some(entry) = oldest else { return };
            self.memory -= entry.payload.items();
            self.release(&entry);
            let on_disk = entry
                .record
                .is_some_and(|id| self.disk.as_mut().is_none_or(|disk| disk.chill(id)));
            if !on_disk {
                add_dropped(&mut self.dropped, Reason::QueueFull, entry.payload.items());
            }
        }
    }

    /// The payload leaves memory.
    fn release(&mut self, entry: &QueuedPayload) {
        self.memory_bytes -= entry.payload.body.len() as u64;
        if entry.record.is_none() {
            self.unsaved -= entry.payload.items();
        }
    }

    /// The next payload to attempt; it is under way until one of the three answers comes. `now` in Unix seconds.
    pub fn next(&mut self, now: i64) -> Option<Payload> {
        // Payloads in flight cannot be dropped to make room for others: more than memory allows is not begun, except for one.
        let under_way: u64 = self
            .in_flight
            .values()
            .map(|entry| entry.payload.body.len() as u64)
            .sum();
        if !self.in_flight.is_empty() && under_way >= self.memory_max {
            return None;
        }
        let entry = match self.order {
            Order::NewestFirst => match self.fresh.pop_front().or_else(|| self.retried.pop_back()) {
                Some(entry) => self.take(entry),
                None => self.next_from_disk(true, now)?,
            },
            Order::TimeOrder => {
                if !self.in_flight.is_empty() {
                    return None;
                }
                // Payloads only on disk are older than those in memory, except for failed ones.
                match self.retried.pop_front() {
                    Some(entry) => self.take(entry),
                    None => match self.next_from_disk(false, now) {
                        Some(entry) => entry,
                        None => {
                            let entry = self.fresh.pop_front()?;
                            self.take(entry)
                        }
                    },
                }
            }
        };
        let payload = entry.payload.clone();
        self.in_flight.insert(payload.id, entry);
        Some(payload)
    }

    fn take(&mut self, entry: QueuedPayload) -> QueuedPayload {
        self.memory -= entry.payload.items();
        entry
    }

    fn next_from_disk(&mut self, newest_first: bool, now: i64) -> Option<QueuedPayload> {
        let disk = self.disk.as_mut()?;
        loop {
            match disk.next(newest_first, now) {
                Next::Payload(id, mut payload) => {
                    payload.id = self.next_id;
                    self.next_id += 1;
                    self.memory_bytes += payload.body.len() as u64;
                    return Some(QueuedPayload {
                        payload,
                        before: None,
                        record: Some(id),
                    });
                }
                Next::Corrupt(items) => add_dropped(&mut self.dropped, Reason::Corrupt, items),
                Next::TooOld(items) => add_dropped(&mut self.dropped, Reason::TooOld, items),
                Next::Empty => return None,
            }
        }
    }

    /// The payload arrived. Returns its items.
    pub fn delivered(&mut self, id: u64) -> Items {
        self.finish(id)
    }

    /// The payload arrived, and the backend refused this many items. Returns the accepted ones.
    pub fn delivered_partly(&mut self, id: u64, rejected: u32) -> Items {
        let Some(payload) = self.in_flight.get(&id).map(|entry| entry.payload.clone()) else {
            return Items::default();
        };
        self.finish(id);
        let rejected = rejected.min(payload.count);
        let refused = Items::of(payload.class, u64::from(rejected));
        add_dropped(&mut self.dropped, Reason::Rejected, refused);
        Items::of(payload.class, u64::from(payload.count - rejected))
    }

    /// The backend refused the payload for good.
    pub fn rejected(&mut self, id: u64) {
        let items = self.finish(id);
        add_dropped(&mut self.dropped, Reason::Rejected, items);
    }

    fn finish(&mut self, id: u64) -> Items {
        let Some(entry) = self.in_flight.remove(&id) else {
            return Items::default();
        };
        self.release(&entry);
        self.forget_disk_error();
        match (&mut self.disk, entry.record) {
            (Some(disk), Some(record)) => {
                if let Err(error) = disk.acknowledge(record) {
                    // The record may be sent again by a later process, which the backend's own rule makes harmless.
                    self.disk_error = Some(error.to_string());
                }
            }
            (None, Some(record)) => self.finished_meanwhile.push(record),
            (_, None) => {}
        }
        entry.payload.items()
    }

    /// The attempt failed and is to be repeated.
    pub fn failed(&mut self, id: u64) {
        let Some(entry) = self.in_flight.remove(&id) else {
            return;
        };
        self.memory += entry.payload.items();
        let at = self.retried.partition_point(|other| other.payload.id < id);
        self.retried.insert(at, entry);
        self.make_room();
    }

    /// Ends the queue's life in this process: payloads only in memory are lost, the rest waits on disk.
    pub fn close(&mut self) {
        self.write_down();
        let in_flight = self.in_flight.drain().map(|(_, entry)| entry);
        let entries: Vec<QueuedPayload> = self
            .retried
            .drain(..)
            .chain(self.fresh.drain(..))
            .chain(in_flight)
            .collect();
        (self.memory_bytes, self.memory, self.unsaved) = (0, Items::default(), Items::default());
        for entry in entries {
            let on_disk = entry
                .record
                .is_some_and(|id| self.disk.as_mut().is_none_or(|disk| disk.chill(id)));
            if !on_disk {
                add_dropped(&mut self.dropped, Reason::Shutdown, entry.payload.items());
            }
        }
        self.sync();
    }

    /// Writes what could not be written before, and puts all of it on the medium.
    pub fn sync(&mut self) {
        self.write_down();
        if let Some(Err(error)) = self.disk.as_mut().map(DiskQueue::sync) {
            self.disk_error = Some(error.to_string());
        }
    }

    /// Payloads that are not on disk, oldest first.
    pub fn unsaved(&self) -> impl Iterator<Item = &Payload> {
        let entries = self.in_flight.values().chain(&self.retried).chain(&self.fresh);
        let unsaved = entries.filter(|entry| entry.record.is_none());
        let mut payloads: Vec<&Payload> = unsaved.map(|entry| &entry.payload).collect();
        payloads.sort_unstable_by_key(|payload| payload.id);
        payloads.into_iter()
    }

    /// Writes down what it can and gives the place on disk away, with all that lies there: that is in memory no longer, except for what is in
    /// flight.
    pub fn take_disk(&mut self) -> Option<DiskQueue> {
        self.sync();
        let disk = self.disk.take()?;
        let is_here = |entry: &QueuedPayload| entry.record.is_none();
        self.fresh.retain(is_here);
        self.retried.retain(is_here);
        let left = self.fresh.iter().chain(&self.retried);
        self.memory = left.clone().map(|entry| entry.payload.items()).sum();
        let in_memory = left.chain(self.in_flight.values());
        self.memory_bytes = in_memory.map(|entry| entry.payload.body.len() as u64).sum();
        Some(disk)
    }

    /// The same place on disk, opened again after [`Queue::take_disk`]. What was in flight meanwhile is there too: it is not to be sent a
    /// second time.
    pub fn put_disk(&mut self, mut disk: DiskQueue) {
        for id in std::mem::take(&mut self.finished_meanwhile) {
            if let Err(error) = disk.acknowledge(id) {
                self.disk_error = Some(error.to_string());
            }
        }
        let here = self.in_flight.values().chain(&self.retried).chain(&self.fresh);
        here.filter_map(|entry| entry.record).for_each(|id| disk.warm(id));
        self.disk = Some(disk);
    }

    /// Payloads in flight wait again: their sender has ended.
    pub fn requeue(&mut self) {
        let ids: Vec<u64> = self.in_flight.keys().copied().collect();
        ids.into_iter().for_each(|id| self.failed(id));
    }

    /// Begins with the whole queue of another, its place on disk included, under this one's limits; what was pushed here already
    /// comes after it.
    pub fn continue_with(&mut self, mut before: Queue, disk_max: u64, age_max: i64) {
        before.memory_max = self.memory_max;
        if let Some(disk) = &mut before.disk {
            disk.set_limits(disk_max, age_max);
        }
        let own = std::mem::replace(self, before);
        self.merge_dropped(&own.dropped);
        // Points of the other output are older than all of this one's.
        let queued = self.fresh.iter_mut().chain(&mut self.retried);
        queued
            .chain(self.in_flight.values_mut())
            .for_each(|entry| entry.before = Some(OLDER));
        own.fresh
            .into_iter()
            .for_each(|entry| self.push(entry.payload, entry.before));
    }

    /// Takes payloads from another queue, to be delivered before those pushed here, as far as there is room. Returns those that stay on the
    /// other queue's disk.
    pub fn pour(&mut self, mut before: Queue, now: i64) -> Items {
        let own = std::mem::take(&mut self.fresh);
        for entry in &own {
            self.memory -= entry.payload.items();
            self.release(entry);
        }
        while before.holds_memory() || self.disk.is_some() || self.memory_bytes < self.memory_max {
            let Some(payload) = before.next(now) else { break };
            let id = payload.id;
            self.push(payload, Some(OLDER));
            before.delivered(id);
        }
        before.close();
        self.merge_dropped(&before.dropped);
        for entry in own {
            self.memory_bytes += entry.payload.body.len() as u64;
            self.memory += entry.payload.items();
            if entry.record.is_none() {
                self.unsaved += entry.payload.items();
            }
            self.fresh.push_back(entry);
        }
        self.make_room();
        before.sizes().disk
    }

    fn holds_memory(&self) -> bool {
        !self.fresh.is_empty() || !self.retried.is_empty()
    }

    /// Losses that happened before the payloads came here.
    pub fn merge_dropped(&mut self, dropped: &Dropped) {
        for (reason, items) in dropped {
            add_dropped(&mut self.dropped, *reason, *items);
        }
    }

    /// The points that a kill would cost.
    pub fn at_risk(&self) -> PointsAtRisk {
        // With a queue on disk nearly always.
        if self.unsaved.is_zero() {
            return PointsAtRisk::default();
        }
        let before = |entry: &QueuedPayload| {
            let is_at_risk = entry.record.is_none() && entry.payload.class == Class::Points;
            is_at_risk.then_some(entry.before).flatten()
        };
        // Both queues ascend.
        let waiting = [
            self.fresh.iter().find_map(before),
            self.retried.iter().find_map(before),
        ];
        let in_flight = self.in_flight.values();
        PointsAtRisk {
            waiting: waiting.into_iter().flatten().min(),
            in_flight: in_flight
                .filter_map(|entry| Some((entry.payload.id, before(entry)?)))
                .collect(),
        }
    }

    pub fn sizes(&self) -> QueueSizes {
        let entries = self
            .fresh
            .front()
            .into_iter()
            .chain(self.retried.front())
            .chain(self.in_flight.values());
        let oldest = entries.map(|entry| entry.payload.created).min();
        let disk = self.disk.as_ref();
        let oldest_cold = disk.and_then(DiskQueue::oldest_cold);
        QueueSizes {
            memory: self.memory,
            in_flight: self.in_flight.values().map(|entry| entry.payload.items()).sum(),
            unsaved: self.unsaved,
            untried: self
                .fresh
                .iter()
                .filter(|entry| entry.record.is_none())
                .map(|entry| entry.payload.items())
                .sum(),
            disk: disk.map(DiskQueue::cold).unwrap_or_default(),
            memory_bytes: self.memory_bytes,
            disk_bytes: disk.map_or(0, DiskQueue::bytes),
            oldest: oldest.into_iter().chain(oldest_cold).min(),
        }
    }

    pub fn dropped(&self) -> &Dropped {
        &self.dropped
    }

    pub fn disk_error(&self) -> Option<&str> {
        self.disk_error.as_deref()
    }

    pub fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Bytes in memory: bodies and the disk queue's index.
    pub fn heap_bytes(&self) -> usize {
        self.memory_bytes as usize + self.disk.as_ref().map_or(0, DiskQueue::heap_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const NOW: i64 = 1_700_000_000;

    fn payload(n: u32, size: usize) -> Payload {
        Payload {
            id: 0,
            route: 0,
            class: Class::Points,
            count: n,
            created: NOW + i64::from(n),
            body: vec![n as u8; size].into(),
        }
    }

    fn disk(path: &Path, bytes_max: u64) -> Option<DiskQueue> {
        Some(DiskQueue::open(path, bytes_max, 0).unwrap().0)
    }

    fn drain(queue: &mut Queue) -> Vec<u32> {
        std::iter::from_fn(|| {
            let payload = queue.next(NOW)?;
            queue.delivered(payload.id);
            Some(payload.count)
        })
        .collect()
    }

    fn points(items: Items) -> u64 {
        items.points
    }

    /// Another process was to take over the place on disk, and has failed. Answers to requests that were under way came meanwhile, or come now.
    #[test]
    fn what_was_in_flight_while_the_disk_was_away_is_not_sent_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut queue = Queue::new(Order::NewestFirst, 1 << 20, disk(directory.path(), 1 << 20));
        (1..=4).for_each(|n| queue.push(payload(n, 10), Some(0)));
        let under_way: Vec<Payload> = (0..3).map(|_| queue.next(NOW).unwrap()).collect();
        drop(queue.take_disk());
        queue.delivered(under_way[0].id);
        queue.failed(under_way[1].id);
        queue.put_disk(disk(directory.path(), 1 << 20).unwrap());
        assert_eq!(points(queue.sizes().total()), 2 + 3 + 4);
        queue.delivered(under_way[2].id);
        assert_eq!(drain(&mut queue), [2, 4]);
        assert_eq!(queue.sizes(), QueueSizes::default());
    }

    #[test]
    fn new_data_goes_before_retried_data() {
        let mut queue = Queue::new(Order::NewestFirst, 1 << 20, None);
        (1..=3).for_each(|n| queue.push(payload(n, 10), Some(0)));
        for _ in 0..3 {
            let first = queue.next(NOW).unwrap();
            queue.failed(first.id);
            queue.push(payload(first.count + 10, 10), Some(0));
        }
        assert_eq!(drain(&mut queue), [11, 12, 13, 3, 2, 1]);
    }

    #[test]
    fn time_order_repeats_the_head_and_sends_one_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let mut queue = Queue::new(Order::TimeOrder, 25, disk(directory.path(), 1 << 20));
        (1..=6).for_each(|n| queue.push(payload(n, 10), Some(0)));
        let head = queue.next(NOW).unwrap();
        assert_eq!(head.count, 1);
        assert!(queue.next(NOW).is_none());
        queue.failed(head.id);
        queue.push(payload(7, 10), Some(0));
        assert_eq!(drain(&mut queue), [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn without_disk_the_oldest_is_dropped_and_counted() {
        let mut queue = Queue::new(Order::NewestFirst, 45, None);
        (1..=3).for_each(|n| queue.push(payload(n, 10), Some(0)));
        let under_way = queue.next(NOW).unwrap();
        (4..=7).for_each(|n| queue.push(payload(n, 10), Some(0)));
        assert!(queue.sizes().memory_bytes <= 45);
        assert_eq!(queue.dropped()[&Reason::QueueFull].points, 2 + 3 + 4);
        assert_eq!(points(queue.sizes().total()), 1 + 5 + 6 + 7);
        queue.failed(under_way.id);
        assert_eq!(drain(&mut queue), [5, 6, 7, 1]);
        assert_eq!(queue.sizes(), QueueSizes::default());
    }

    #[test]
    fn with_disk_memory_is_bounded_and_nothing_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let mut queue = Queue::new(Order::NewestFirst, 45, disk(directory.path(), 1 << 20));
        (1..=20).for_each(|n| queue.push(payload(n, 10), Some(0)));
        let sizes = queue.sizes();
        assert!(sizes.memory_bytes <= 45);
        assert_eq!(
            (points(sizes.memory), points(sizes.disk), sizes.oldest),
            (17 + 18 + 19 + 20, 136, Some(NOW + 1))
        );
        assert!(queue.dropped().is_empty());
        assert_eq!(drain(&mut queue)[..6], [17, 18, 19, 20, 16, 15]);
    }

    #[test]
    fn queued_payloads_survive_the_process_and_delivered_ones_do_not_return() {
        let directory = tempfile::tempdir().unwrap();
        let mut queue = Queue::new(Order::NewestFirst, 1 << 20, disk(directory.path(), 1 << 20));
        (1..=6).for_each(|n| queue.push(payload(n, 10), Some(0)));
        let (one, two, three) = (
            queue.next(NOW).unwrap(),
            queue.next(NOW).unwrap(),
            queue.next(NOW).unwrap(),
        );
        queue.delivered(one.id);
        queue.failed(two.id);
        queue.rejected(three.id);
        // Dropped without a shutdown, as by a kill.
        drop(queue);
        let mut queue = Queue::new(Order::NewestFirst, 1 << 20, disk(directory.path(), 1 << 20));
        assert_eq!(drain(&mut queue), [6, 5, 4, 2]);
    }

    /// An end would lose exactly the payloads that are only in memory, with and without a disk queue.
    #[test]
    fn unsaved_payloads_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        for on_disk in [false, true] {
            let disk = if on_disk {
                disk(directory.path(), 1 << 20)
            } else {
                None
            };
            let mut queue = Queue::new(Order::NewestFirst, 1 << 20, disk);
            (1..=4).for_each(|n| queue.push(payload(n, 10), Some(0)));
            let (one, two) = (queue.next(NOW).unwrap(), queue.next(NOW).unwrap());
            queue.delivered(one.id);
            queue.failed(two.id);
            let expected = if on_disk { 0 } else { 2 + 3 + 4 };
            assert_eq!(points(queue.sizes().unsaved), expected, "on disk: {on_disk}");
            queue.close();
            assert_eq!(points(queue.sizes().unsaved), 0);
        }
    }

    #[test]
    fn closing_loses_only_payloads_that_are_not_on_disk() {
        let directory = tempfile::tempdir().unwrap();
        let mut queue = Queue::new(Order::NewestFirst, 1 << 20, disk(directory.path(), 4096));
        queue.push(payload(1, 10), Some(0));
        queue.push(payload(2, 5000), Some(0));
        assert!(queue.disk_error().unwrap().contains("larger than the disk queue"));
        queue.next(NOW).unwrap();
        queue.close();
        assert_eq!(queue.dropped()[&Reason::Shutdown].points, 2);
        assert_eq!((points(queue.sizes().disk), queue.sizes().memory_bytes), (1, 0));
    }
}
