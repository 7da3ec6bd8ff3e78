//! A merge counts its own memory: that count bounds what it takes from the allocator.
// A global allocator is unsafe by nature; this one only counts on the way to the system's.
#![allow(unsafe_code, clippy::disallowed_macros)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use support::results::{ResultsLog, closed};
use support::{START, Writer, add, message};
use weir_merge::{
    BucketResult, CorrectionPolicy, Delivery, Follower, Merge, MergeOutcome, Message, Settings,
};
use weir_state::{BODY_BYTES_MAX, ExactSum, Record, State, THREAD_BYTES, Table};

struct Counting;

thread_local! {
    /// Bytes that this thread has allocated and not freed, and the most there were.
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    LIVE.set(LIVE.get() + bytes);
    PEAK.set(PEAK.get().max(LIVE.get()));
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's duties are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // As if it always moved.
        count(size as i64);
        count(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Series of a bucket, whose names differ from those of all others: more than one record can hold.
const SERIES: u32 = 60_000;
const BUCKETS: i64 = 12;

fn records() -> Vec<Message> {
    let (mut writer, mut messages) = (Writer::new(1, 1), Vec::new());
    for bucket in 0..BUCKETS {
        let mut table = Table::default();
        for number in 0..SERIES {
            add(&mut table, &format!("requests.of.user.{number}.{bucket}"), 1.0);
        }
        for bytes in writer.write(START + bucket * 10, &table) {
            messages.push(message(messages.len() as u64, START + bucket * 10 + 15, &bytes));
        }
    }
    messages
}

/// Many times as many series as there is room for: open buckets, reading, closing and committing together stay within the memory, a quarter
/// more for lists that grow, one record that is read, and one that is written.
#[test]
fn a_flood_of_series_stays_within_the_memory() {
    let memory = 16 << 20;
    let messages = records();
    let mut read = 0;
    for message in &messages {
        let before = LIVE.get();
        PEAK.set(before);
        drop(Record::decode(&message.bytes).unwrap());
        read = read.max(PEAK.get() - before);
    }
    let mut merge = Merge::new(
        Settings {
            memory,
            ..Settings::default()
        },
        0,
    );
    let (before, mut most, mut sums) = (LIVE.get(), 0, ExactSum::default());
    PEAK.set(before);
    let mut commit = |merge: &mut Merge| {
        let commit = merge.commit();
        most = most.max(PEAK.get() - before);
        for bytes in commit.iter().flat_map(|commit| &commit.results) {
            let (_, record) = BucketResult::decode(bytes).unwrap();
            for series in record.series() {
                if let State::Counter(sum) = series.state {
                    sums.merge(sum);
                }
            }
        }
        drop(commit);
        PEAK.set(LIVE.get());
    };
    for message in &messages {
        assert_eq!(merge.add(message), MergeOutcome::Merged);
        commit(&mut merge);
    }
    merge.tick((START + 1000) * 1000);
    commit(&mut merge);
    assert_eq!(sums.to_f64(), f64::from(SERIES) * BUCKETS as f64);
    assert!(
        merge.counts().overflowed_states > u64::from(SERIES),
        "{:?}",
        merge.counts()
    );
    assert!(most > memory as i64 / 2, "{most}: it was never full");
    let bound = memory as i64 * 5 / 4 + read + THREAD_BYTES as i64;
    assert!(most < bound, "{most} of {bound}, of which {read} for reading");
}

/// Results of outputs: of each partition a bucket that no single result can hold, many times.
const PARTITIONS: usize = 4;
const BACKLOG: i64 = 20;

/// The three ways of outputs, each with a part of the memory, and none of them delivers: beside the compressed results of their next bucket
/// they take their room. Then each reads its series, one result at a time.
#[test]
fn outputs_with_a_backlog_stay_within_their_room() {
    let mut table = Table::default();
    for number in 0..SERIES {
        add(&mut table, &format!("requests.of.user.{number}"), 1.0);
    }
    let of_bucket = |bucket: i64| closed(START + bucket * 10, &table);
    let partition: Vec<Vec<u8>> = (0..BACKLOG).flat_map(of_bucket).collect();
    let bucket = partition.iter().map(Vec::len).sum::<usize>() / BACKLOG as usize;
    assert!(partition.len() > BACKLOG as usize, "several results each");
    let policy = |adds_up, counters| CorrectionPolicy {
        adds_up,
        counters,
        ..CorrectionPolicy::default()
    };
    let room = 1 << 20;
    let mut followers = [policy(false, true), policy(false, false), policy(true, false)].map(|policy| {
        let log = ResultsLog::new(vec![partition.clone(); PARTITIONS]);
        Follower::new(log, policy, 80_000, room)
    });
    let before = LIVE.get();
    PEAK.set(before);
    let mut deliveries: Vec<Delivery> = followers
        .iter_mut()
        .map(|follower| follower.next(0).unwrap().expect("a bucket"))
        .collect();
    let next = PARTITIONS * bucket;
    let bound = 3 * (room + next) as i64;
    let held = PEAK.get() - before;
    assert!(
        held < bound,
        "{held} of {bound}, a bucket is {bucket} in each partition"
    );
    for (follower, delivery) in followers.iter().zip(&deliveries) {
        let counted = follower.bytes() + delivery.bytes;
        assert!(counted <= room + next && counted >= bucket, "{counted}");
    }
    for delivery in &mut deliveries {
        let (before, mut sum) = (LIVE.get(), ExactSum::default());
        PEAK.set(before);
        for flush in std::mem::take(&mut delivery.flushes) {
            for (_, _, state) in flush.into_series() {
                if let State::Counter(more) = state {
                    sum.merge(&more);
                }
            }
        }
        let given = delivery.positions().count() * SERIES as usize;
        assert_eq!(sum.to_f64(), given as f64);
        // A body, its compressed bytes, and the places of its texts.
        let (read, bound) = (PEAK.get() - before, 3 * BODY_BYTES_MAX as i64);
        assert!(read < bound, "{read} of {bound}");
    }
}
