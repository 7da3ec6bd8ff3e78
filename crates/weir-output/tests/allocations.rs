//! Encoding is streaming: what it takes from the allocator depends on payloads, not on contexts. Counted, so that it cannot
//! creep.
// A global allocator is unsafe by nature; this one only counts on the way to the system's.
#![allow(unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use weir_aggregate::{Expansion, Weights};
use weir_output::datadog::DatadogEncoder;
use weir_output::delivery::{Encode, Encoded};
use weir_output::prometheus::{Format, Scrape};
use weir_output::settings::PrometheusSettings;

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

/// One test counts at a time.
static COUNTS: Mutex<()> = Mutex::new(());

#[test]
fn encoding_allocates_per_payload_and_holds_one() {
    let _counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
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

/// The limit of a scrape's state holds at every moment, while its tables grow as well, whatever is new: names, or values of a tag. Saving takes
/// one copy of it.
#[test]
fn the_sums_stay_within_their_limit_while_they_grow() {
    const LIMIT: usize = 2 << 20;
    /// Forms, labels and other things that do not grow.
    const BESIDE: usize = 16 << 10;
    let _counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let names = |i: usize| format!("flood.name.{i}:1|c\n");
    let values = |i: usize| format!("flood:1|c|#id:{i},env:prod\n");
    let kinds = |i: usize| format!("flood.{}:1|{}|#id:{i}\n", i % 1000, ["c", "g", "d", "h"][i % 4]);
    for (what, line) in [
        ("names", &names as &dyn Fn(usize) -> String),
        ("values", &values),
        ("kinds", &kinds),
    ] {
        let batches = support::batches(&(0..40_000).map(line).collect::<String>());
        let live = LIVE.load(Ordering::Relaxed);
        PEAK.store(live, Ordering::Relaxed);
        let scrape = Arc::new(Scrape::new(PrometheusSettings::default(), Weights::Exact, LIMIT));
        for batch in &batches {
            scrape.take(batch, 1);
        }
        let (held, counted) = (PEAK.load(Ordering::Relaxed) - live, scrape.heap_bytes());
        let series = scrape.status().series;
        PEAK.store(LIVE.load(Ordering::Relaxed), Ordering::Relaxed);
        let before = LIVE.load(Ordering::Relaxed);
        let saved = scrape.save(1);
        let saving = PEAK.load(Ordering::Relaxed) - before;
        println!(
            "{what}: {series} series, {held} bytes at most, {counted} counted, {} saved",
            saved.len()
        );
        assert!(held <= LIMIT + BESIDE, "{what}: {held} bytes");
        assert!(counted <= LIMIT && counted > LIMIT / 2, "{what}: {counted} bytes");
        assert!(
            saving <= saved.len() + BESIDE,
            "{what}: {saving} bytes for {}",
            saved.len()
        );
        let mut rendering = scrape.render(Format::Text, false, &[], 1);
        assert!(rendering.next_piece().is_some_and(|piece| !piece.is_empty()));
    }
}
