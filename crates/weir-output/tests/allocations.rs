//! Encoding is streaming: what it takes from the allocator depends on payloads, not on contexts. Counted, so that it cannot
//! creep.
// A global allocator is unsafe by nature; this one only counts on the way to the system's.
#![allow(unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_aggregate::Expansion;
use weir_output::datadog::DatadogEncoder;
use weir_output::delivery::{Encode, Encoded};

struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn encoding_allocates_per_payload_and_holds_one() {
    let contexts = 60_000;
    let line = |i: usize| match i % 3 {
        0 => format!("counter:{i}|c|#env:test,i:{i}\n"),
        1 => format!("gauge:{i}|g|#env:test,i:{i}\n"),
        _ => format!("histogram:1:{i}|h|#env:test,i:{i}\n"),
    };
    let batches = support::batches(&(0..contexts).map(line).collect::<String>());
    let mut encoder = DatadogEncoder::new(&support::datadog(""), Arc::new(Expansion::default()));
    let mut out = Encoded::default();
    // The first round allocates what is kept: compressor and buffers.
    encoder.encode(&batches[0], &mut out);
    encoder.finish(&mut out);
    drop(out);

    let (calls, live) = (CALLS.load(Ordering::Relaxed), LIVE.load(Ordering::Relaxed));
    PEAK.store(live, Ordering::Relaxed);
    let mut points = 0;
    let mut payloads = 0;
    let mut out = Encoded::default();
    for batch in &batches {
        encoder.encode(batch, &mut out);
        // As delivery does: payloads leave after every batch.
        points += out
            .payloads
            .iter()
            .map(|payload| payload.count as usize)
            .sum::<usize>();
        payloads += out.payloads.drain(..).count();
    }
    encoder.finish(&mut out);
    points += out
        .payloads
        .iter()
        .map(|payload| payload.count as usize)
        .sum::<usize>();
    payloads += out.payloads.len();
    let calls = CALLS.load(Ordering::Relaxed) - calls;
    let held = PEAK.load(Ordering::Relaxed) - live;
    assert_eq!(points, contexts / 3 * 2 + contexts / 3 * 5);
    // Sorting the samples of a histogram takes one per histogram; counters and gauges take none.
    let allowed = contexts / 3 + payloads * 10;
    assert!(
        calls <= allowed,
        "{calls} allocations for {points} points in {payloads} payloads, {allowed} allowed"
    );
    assert!(held <= 2 << 20, "{held} bytes held beyond what was there before");
    println!("{calls} allocations, {held} bytes at most, {points} points, {payloads} payloads");
}
