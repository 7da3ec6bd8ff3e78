//! Composing does not allocate, as a counting allocator shows.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use weir_load::profiles;
use weir_load::source::Load;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded to the system's allocator; the counter is a thread-local cell without drop.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's duties are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's duties are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn composing_allocates_nothing() {
    for name in [
        "budget-1k",
        "budget-permute",
        "real-web",
        "churn-slow",
        "flood-plus-hot",
        "interner-8MiB-100",
        "malformed-1pct",
        "tag-dup",
    ] {
        let profile = profiles::named(name).unwrap();
        let load = Load::prepare(name, &profile, profile.transport, 1).unwrap();
        let (mut source, _) = load.source(0);
        let mut buffer = vec![0u8; source.room()];
        source.packet(&mut buffer);
        let before = COUNT.with(Cell::get);
        let mut messages = 0;
        for _ in 0..2000 {
            messages += source.packet(&mut buffer).messages;
        }
        assert!(messages > 1000, "{name}");
        assert_eq!(COUNT.with(Cell::get) - before, 0, "{name}");
    }
}
