//! Prints one line per run of a step as `go test -bench -benchmem` does. `benchstat` and `weir-bench micro --from go` read them.
//!
//! A line is the least of nine rounds, because disturbances only add time. Arguments behind `--`: `count=N` lines per benchmark (6), and a part of the
//! names of the benchmarks to run.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(2);

pub struct Harness {
    count: usize,
    only: Option<String>,
    processors: usize,
}

impl Harness {
    /// Prints the head of the results. `names` of arguments that the benchmark reads itself are not parts of names.
    pub fn new(package: &str, names: &[&str]) -> Self {
        let arguments: Vec<String> = std::env::args()
            .skip(1)
            .filter(|argument| !argument.starts_with("--"))
            .collect();
        let only = arguments.iter().find(|argument| {
            let name = argument.split_once('=').map_or("", |(name, _)| name);
            name != "count" && !names.contains(&name)
        });
        println!("goos: {}", std::env::consts::OS);
        println!("goarch: {}", std::env::consts::ARCH);
        println!("pkg: {package}");
        if let Some(model) = processor() {
            println!("cpu: {model}");
        }
        Harness {
            count: argument("count").unwrap_or(6),
            only: only.cloned(),
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        }
    }

    /// Measures `step`, which gets the number of the repetition, and does `operations` of what the name says.
    pub fn run(&self, name: &str, operations: usize, mut step: impl FnMut(usize)) {
        if self.only.as_ref().is_some_and(|only| !name.contains(only)) {
            return;
        }
        let repeats = repeats(&mut step);
        for _ in 0..self.count {
            let before = ALLOCATED.get();
            let least = (0..ROUNDS)
                .map(|_| round(repeats, &mut step))
                .min()
                .unwrap_or_default();
            let after = ALLOCATED.get();
            let done = (ROUNDS * repeats * operations) as u64;
            println!(
                "Benchmark{name}-{}\t{done}\t{:.2} ns/op\t{} B/op\t{} allocs/op",
                self.processors,
                least.as_nanos() as f64 / (repeats * operations) as f64,
                (after.1 - before.1) / done,
                (after.0 - before.0) / done
            );
        }
    }
}

/// The number in an argument `NAME=NUMBER`.
pub fn argument(name: &str) -> Option<usize> {
    std::env::args().find_map(|argument| argument.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(": ")?.1.to_owned())
}

/// Repetitions that take about a round.
fn repeats(step: &mut impl FnMut(usize)) -> usize {
    let mut repeats = 1;
    loop {
        let spent = round(repeats, step);
        if spent >= ROUND {
            return repeats;
        }
        repeats *= 2;
    }
}

fn round(repeats: usize, step: &mut impl FnMut(usize)) -> Duration {
    let start = Instant::now();
    for at in 0..repeats {
        step(at);
    }
    start.elapsed()
}

thread_local! {
    /// Allocations of the thread, and their bytes.
    static ALLOCATED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(bytes: usize) {
    ALLOCATED.with(|allocated| {
        let (allocations, before) = allocated.get();
        allocated.set((allocations + 1, before + bytes as u64));
    });
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's duties are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
