//! Pure work on several threads. The results are those of one thread, in the same order.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering as Memory};
use std::thread::{Builder, scope};

/// Below this number of entries one thread does all: starting another one costs about as much.
pub(crate) const ALONE: usize = 1 << 14;

/// A thread that helps the one that closes a bucket.
fn builder() -> Builder {
    Builder::new().name("closing".to_owned())
}

/// The results of all jobs, by their numbers. Each thread has a state of its own, as a compressor; the caller is one of them and has `own`.
/// A thread that cannot be started is done without.
pub(crate) fn map<S, T: Send>(
    threads: usize,
    jobs: usize,
    own: &mut S,
    other: impl Fn() -> S + Sync,
    job: impl Fn(&mut S, usize) -> T + Sync,
) -> Vec<T> {
    if threads < 2 || jobs < 2 {
        return (0..jobs).map(|number| job(own, number)).collect();
    }
    let next = AtomicUsize::new(0);
    let work = |state: &mut S| {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Memory::Relaxed);
            if number >= jobs {
                return done;
            }
            done.push((number, job(state, number)));
        }
    };
    let mut all = scope(|scope| {
        let start = |_| {
            let started = builder().spawn_scoped(scope, || work(&mut other()));
            started.ok()
        };
        let others: Vec<_> = (1..threads.min(jobs)).filter_map(start).collect();
        let mut all = work(own);
        for other in others {
            match other.join() {
                Ok(done) => all.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_unstable_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Sorts in place. No two entries are equal, so the result does not depend on the number of threads.
pub(crate) fn sort<T, F>(threads: usize, list: &mut [T], order: &F)
where
    T: Send,
    F: Fn(&T, &T) -> Ordering + Sync,
{
    if threads < 2 || list.len() < ALONE {
        list.sort_unstable_by(order);
        return;
    }
    let lower = threads / 2;
    let middle = list.len() / threads * lower;
    let (before, _, behind) = list.select_nth_unstable_by(middle, order);
    let is_started = scope(|scope| {
        let started = builder().spawn_scoped(scope, move || sort(lower, before, order));
        sort(threads - lower, behind, order);
        started.is_ok()
    });
    if !is_started {
        sort(1, &mut list[..middle], order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_threads_gives_the_order_of_one() {
        let scattered = |number: u32| number.wrapping_mul(0x9e37_79b1);
        for len in [0, 1, ALONE as u32 - 1, 100_000] {
            let mut sorted: Vec<u32> = (0..len).map(scattered).collect();
            sorted.sort_unstable();
            for threads in 1..9 {
                let mut list: Vec<u32> = (0..len).map(scattered).collect();
                sort(threads, &mut list, &u32::cmp);
                assert!(list == sorted, "{len} on {threads}");
                let jobs = len.min(100) as usize;
                let results = map(threads, jobs, &mut (), || (), |(), job| job * 2);
                assert_eq!(results, (0..jobs).map(|job| job * 2).collect::<Vec<_>>());
            }
        }
    }
}
