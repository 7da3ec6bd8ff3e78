//! Measures insertion: `cargo run --release -p weir-sketch --example sketch_speed`.
//!
//! Prints ratios within this run, the median of 15 interleaved rounds with the smallest and largest. Each round
//! handles the same million values, and the resulting bins of all ways are compared.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a benchmark reads the clock and prints"
)]

use std::hint::black_box;
use std::time::Instant;
use weir_sketch::{Sketch, key, key_by_logarithm};

const ROUNDS: usize = 15;
const VALUES: usize = 1_000_000;

fn main() {
    // Latencies of three decades, log-uniform, from a fixed generator: seed 1.
    let mut state = 1u64;
    let values: Vec<f64> = (0..VALUES)
        .map(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            10f64.powf((state >> 11) as f64 / (1u64 << 53) as f64 * 3.0)
        })
        .collect();

    println!("{VALUES} values, {ROUNDS} interleaved rounds; ratio of medians (smallest..largest of a round)");
    compare(
        "key by logarithm / key by table",
        || {
            values
                .iter()
                .map(|v| i64::from(key_by_logarithm(*v)))
                .sum::<i64>()
        },
        || values.iter().map(|v| i64::from(key(*v))).sum::<i64>(),
    );
    compare(
        "sorted buffer of 512, logarithm / this sketch, one busy sketch",
        || {
            let mut plain = Plain::default();
            values.iter().for_each(|v| plain.insert(*v));
            plain.fold();
            black_box(plain.sum);
            digest(plain.bins.iter().map(|(k, n)| (*k, *n)))
        },
        || {
            let mut sketch = Sketch::new();
            values.iter().for_each(|v| sketch.insert_one(*v));
            sketch.seal();
            black_box(sketch.sum());
            digest(sketch.bins().iter().map(|b| (b.k, b.n)))
        },
    );
    let contexts = 10_000;
    compare(
        "sorted buffer of 512, logarithm / this sketch, 10000 contexts of 100 values",
        || {
            let mut all: Vec<Plain> = (0..contexts).map(|_| Plain::default()).collect();
            values
                .iter()
                .enumerate()
                .for_each(|(i, v)| all[i % contexts].insert(*v));
            all.iter_mut().for_each(Plain::fold);
            all.iter()
                .map(|p| digest(p.bins.iter().map(|(k, n)| (*k, *n))))
                .fold(0, i64::wrapping_add)
        },
        || {
            let mut all: Vec<Sketch> = (0..contexts).map(|_| Sketch::new()).collect();
            values
                .iter()
                .enumerate()
                .for_each(|(i, v)| all[i % contexts].insert_one(*v));
            all.iter_mut().for_each(Sketch::seal);
            all.iter()
                .map(|s| digest(s.bins().iter().map(|b| (b.k, b.n))))
                .fold(0, i64::wrapping_add)
        },
    );
    for samples in [1, 5, 20, 200, 10_000] {
        let mut sketch = Sketch::new();
        values[..samples].iter().for_each(|v| sketch.insert_one(*v));
        println!(
            "{samples} samples: {} bytes on the heap, {} in place",
            sketch.heap_bytes(),
            size_of::<Sketch>()
        );
    }
}

fn digest(bins: impl Iterator<Item = (i16, u32)>) -> i64 {
    bins.fold(0, |sum, (k, n)| {
        i64::wrapping_add(sum, i64::from(k) * 31 + i64::from(n)).rotate_left(1)
    })
}

fn compare(what: &str, mut plain: impl FnMut() -> i64, mut ours: impl FnMut() -> i64) {
    let mut ratios = Vec::new();
    let mut nanoseconds = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let a = black_box(plain());
        let middle = Instant::now();
        let b = black_box(ours());
        let end = Instant::now();
        assert_eq!(a, b, "both ways must agree");
        ratios.push((middle - start).as_secs_f64() / (end - middle).as_secs_f64());
        nanoseconds.push((end - middle).as_nanos() as f64 / VALUES as f64);
    }
    ratios.sort_by(f64::total_cmp);
    nanoseconds.sort_by(f64::total_cmp);
    let last = ROUNDS - 1;
    println!(
        "{what}: {:.2} ({:.2}..{:.2}); {:.1} ns per value",
        ratios[ROUNDS / 2],
        ratios[0],
        ratios[last],
        nanoseconds[ROUNDS / 2]
    );
}

/// The textbook way: keys by logarithm wait in a buffer of 512, which is sorted and merged into a fresh list.
#[derive(Default)]
struct Plain {
    pending: Vec<i16>,
    bins: Vec<(i16, u32)>,
    sum: f64,
}

impl Plain {
    fn insert(&mut self, v: f64) {
        self.sum += v;
        self.pending.push(key_by_logarithm(v));
        if self.pending.len() == 512 {
            self.fold();
        }
    }

    fn fold(&mut self) {
        self.pending.sort_unstable();
        let mut merged = Vec::with_capacity(self.bins.len() + 64);
        let mut old = std::mem::take(&mut self.bins).into_iter().peekable();
        for k in self.pending.drain(..) {
            while let Some(bin) = old.next_if(|b| b.0 <= k) {
                merged.push(bin);
            }
            match merged.last_mut() {
                Some((last, n)) if *last == k => *n += 1,
                _ => merged.push((k, 1)),
            }
        }
        merged.extend(old);
        self.bins = merged;
    }
}
