//! One to four workers in one process, each with its own packets and tables, and the merge of their rows at a flush, which one thread does.
//! Every context reaches every worker: the worst case for the merge.
//!
//! `cargo bench -p weir-ingest --bench workers -- [CONTEXTS] [MESSAGES] [ROUNDS]`. Messages are those of a worker and a round.

use std::fs;
use std::thread;
use std::time::Instant;

use weir_aggregate::{AggregatorSettings, Batch, Merger};
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_protocol::ParseOptions;

#[path = "../ingest/figures.rs"]
mod figures;
#[path = "../ingest/workload.rs"]
mod workload;

use figures::{arguments, median, number};
use workload::{Random, Shape, contexts, packets};

/// The agent's.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const WORKERS_MAX: u16 = 4;

/// Seconds in a bucket.
const BUCKET: i64 = 10;

/// Nanoseconds that this thread was on a CPU: threads that share a CPU do not count each other's time.
fn cpu_ns() -> u64 {
    let times = fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts CPU time");
    let first = times.split(' ').next().and_then(|time| time.parse().ok());
    first.expect("the first field is a number")
}

/// The result of `work` and its CPU time.
fn timed<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let start = cpu_ns();
    let result = work();
    (result, cpu_ns() - start)
}

struct Worker {
    ingest: Ingest,
    packets: Vec<Vec<u8>>,
}

impl Worker {
    fn receive(&mut self) {
        for packet in &self.packets {
            self.ingest.packet(Received {
                bytes: packet,
                listener: 0,
                truncated: false,
                received: 1,
            });
        }
    }

    fn flush(&mut self, now: i64) -> Vec<Batch> {
        assert!(self.ingest.advance(now));
        let mut batches = Vec::new();
        while self.ingest.is_draining() {
            batches.extend(self.ingest.drain(256));
        }
        batches
    }
}

/// Runs `work` on every worker, each in a thread of its own. Returns the results and the CPU time of all.
fn on_each<T: Send>(workers: &mut [Worker], work: impl Fn(&mut Worker) -> T + Sync) -> (Vec<T>, u64) {
    let work = &work;
    let results: Vec<(T, u64)> = thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| scope.spawn(move || timed(|| work(worker))))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no worker panics"))
            .collect()
    });
    let spent = results.iter().map(|(_, spent)| spent).sum();
    (results.into_iter().map(|(result, _)| result).collect(), spent)
}

/// Returns the number of merged rows.
fn merge(batches: Vec<Vec<Batch>>) -> usize {
    let mut merger = Merger::new(batches.len());
    let mut merged = 0;
    let mut queues: Vec<_> = batches.into_iter().map(Vec::into_iter).collect();
    // As they arrive: the workers deliver the same partitions at about the same time.
    loop {
        let next: Vec<Batch> = queues.iter_mut().filter_map(Iterator::next).collect();
        if next.is_empty() {
            assert_eq!((merger.rows_lost(), merger.pending_rows()), (0, 0));
            return merged;
        }
        for batch in next {
            merger.push(batch, |batch| merged += batch.len());
        }
    }
}

fn main() {
    let arguments = arguments();
    let number = |at, default| number(&arguments, at, default);
    let (context_count, message_count, rounds) = (number(0, 10_000), number(1, 300_000), number(2, 7));
    let mut random = Random(42);
    let known = contexts(context_count, 7, false, &mut random);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    println!("{context_count} contexts, {message_count} messages per worker and bucket, {cores} cores\n");
    println!(
        "| workers | million messages/s | CPU, ns per message | flush, ns per row of a worker | merge, ns per row of a worker | share of the merge in all CPU time |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for count in 1..=WORKERS_MAX {
        let mut now = 1_700_000_000;
        let mut workers: Vec<Worker> = (0..count)
            .map(|worker| Worker {
                ingest: Ingest::new(settings(worker), now),
                packets: packets(&known, message_count, Shape::default(), &mut random),
            })
            .collect();
        let mut figures: [Vec<f64>; 5] = Default::default();
        for round in 0..=rounds {
            let start = Instant::now();
            let (_, receiving) = on_each(&mut workers, Worker::receive);
            let elapsed = start.elapsed().as_nanos() as f64;
            now += BUCKET;
            let (batches, flushing) = on_each(&mut workers, |worker| worker.flush(now));
            let rows: usize = batches.iter().flatten().map(Batch::len).sum();
            let (merged, merging) = timed(|| merge(batches));
            assert!(merged <= rows && merged >= rows / usize::from(count));
            // The first round makes the contexts.
            if round > 0 {
                let messages = (message_count * usize::from(count)) as f64;
                let all = (receiving + flushing + merging) as f64;
                let of_round = [
                    1e3 * messages / elapsed,
                    receiving as f64 / messages,
                    flushing as f64 / rows as f64,
                    merging as f64 / rows as f64,
                    100.0 * merging as f64 / all,
                ];
                for (figures, figure) in figures.iter_mut().zip(of_round) {
                    figures.push(figure);
                }
            }
        }
        let [rate, message, flush, merge, share] = figures.each_mut().map(|figures| median(figures));
        println!("| {count} | {rate:.1} | {message:.0} | {flush:.0} | {merge:.0} | {share:.1} % |");
    }
}

fn settings(worker: u16) -> IngestSettings {
    IngestSettings {
        worker,
        aggregator: AggregatorSettings::default(),
        rules: Rules::default(),
        limits: ContextLimits::default(),
        // Workers of one process share it: the same context is in the same partition of each.
        secret: HashSecret::from_random(1, 2),
        listeners: vec![ParseOptions::default().into()],
    }
}
