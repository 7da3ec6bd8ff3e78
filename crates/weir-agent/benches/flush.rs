//! CPU of a flush by its steps: the worker closes a bucket, the scrape output adds it to its sums, the history keeps it.
//!
//! `cargo bench -p weir-agent --bench flush -- [CONTEXTS] [FLUSHES]`: nanoseconds per row, medians over flushes, of one thread and without the
//! hand-over between threads. Ten messages per context and bucket, as `cargo bench -p weir-ingest` has them. The scrape output has its default settings.

#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::time::Instant;

// The agent's allocator.
use weir_aggregate::{AggregatorSettings, Batch, Weights};
use weir_context::{ContextLimits, HashSecret, Partitioning, Rules};
use weir_history::History;
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_output::prometheus::Scrape;
use weir_output::settings::PrometheusSettings;
use weir_protocol::ParseOptions;
use weir_system as _;

#[path = "../../weir-ingest/benches/ingest/figures.rs"]
mod figures;
#[path = "../../weir-ingest/benches/ingest/workload.rs"]
mod workload;

use figures::{arguments, median, number};

/// Contexts of one slice of a flush, as a worker hands them over between two receive turns.
const SLICE_CONTEXTS: usize = 256;

const HISTORY_BYTES: usize = 1 << 30;

fn main() {
    let arguments = arguments();
    let contexts = number(&arguments, 0, 100_000);
    let flushes = number(&arguments, 1, 9);
    let mut random = workload::Random(42);
    let of_load = workload::contexts(contexts, 7, false, &mut random);
    let packets = workload::packets(&of_load, 10 * contexts, workload::Shape::default(), &mut random);
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings {
            partitioning: Partitioning::Id,
            ..AggregatorSettings::default()
        },
        rules: Rules::default(),
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(1, 2),
        listeners: vec![ParseOptions::default().into()],
    };
    let mut now = 1_700_000_000;
    let mut ingest = Ingest::new(settings, now);
    let scrape = Scrape::new(PrometheusSettings::default(), Weights::Exact, usize::MAX);
    let mut history = History::new(HISTORY_BYTES);
    let mut spent: [Vec<f64>; 3] = Default::default();
    for flush in 0..=flushes {
        for packet in &packets {
            ingest.packets(&[Received {
                bytes: packet,
                listener: 0,
                truncated: false,
                received: 1,
            }]);
        }
        now += 10;
        assert!(ingest.advance(now));
        let (mut rows, mut of_flush) = (0, [0u128; 3]);
        let mut timed = |step: usize, work: &mut dyn FnMut()| {
            let start = Instant::now();
            work();
            of_flush[step] += start.elapsed().as_nanos();
        };
        while ingest.is_draining() {
            let mut made: Option<Batch> = None;
            timed(0, &mut || made = ingest.drain(SLICE_CONTEXTS));
            let Some(batch) = made else { continue };
            rows += batch.len();
            timed(1, &mut || scrape.take(&batch, flush as u32 * 10));
            timed(2, &mut || history.take(&batch));
        }
        // The first one makes the series.
        if flush > 0 {
            for (all, of_flush) in spent.iter_mut().zip(of_flush) {
                all.push(of_flush as f64 / rows as f64);
            }
        }
    }
    let [worker, scrape, history] = spent.each_mut().map(|all| median(all));
    println!(
        "{contexts} contexts: worker {worker:.0}, scrape {scrape:.0}, history {history:.0} ns per row of a flush"
    );
}
