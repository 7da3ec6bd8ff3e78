//! The cost of encoding for Datadog: `cargo run --release -p weir-output --example datadog_speed`.
//!
//! The reference is the least anybody can do: write the same messages field by field into one buffer, without limits,
//! resources, devices or books, and compress it with the same compressor at the same level. Ratios are of the same run; rounds are
//! interleaved, and the median, smallest and largest ratio of a round are printed.

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use weir_aggregate::{Batch, Expansion, Value};
use weir_output::datadog::DatadogEncoder;
use weir_output::delivery::{Encode, Encoded};
use weir_output::protobuf;

const CONTEXTS: usize = 100_000;
const ROUNDS: usize = 15;

fn main() {
    let line = |i: usize| {
        let tags = format!(
            "env:production,service:checkout-{},region:eu-west-{},version:1.{}.0,pod:checkout-{i:08x},team:payments,endpoint:/api/v1/items/{}",
            i % 50,
            i % 3,
            i % 20,
            i % 400
        );
        format!("application.requests.{}:{}|g|#{tags}\n", i % 200, i * 7 % 10_007)
    };
    let batches = support::batches(&(0..CONTEXTS).map(line).collect::<String>());
    let series: usize = batches.iter().map(|batch| batch.len()).sum();
    assert_eq!(series, CONTEXTS);
    let mut encoder = DatadogEncoder::new(&support::datadog(""), Arc::new(Expansion::default()));
    let mut ratios = Vec::new();
    let mut times = Vec::new();
    let (mut raw, mut compressed, mut payloads) = (0, 0, 0);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut plain = Vec::new();
        for batch in &batches {
            bare(batch, &mut plain);
        }
        // The same bytes in bodies of the same kind: at most what the intake takes.
        let bare_compressed: usize = plain
            .chunks(5_242_880)
            .map(|chunk| black_box(zstd::bulk::compress(chunk, 1).unwrap()).len())
            .sum();
        let middle = Instant::now();
        let mut out = Encoded::default();
        for batch in &batches {
            encoder.encode(batch, &mut out);
        }
        encoder.finish(&mut out);
        let end = Instant::now();
        assert_eq!(
            out.payloads
                .iter()
                .map(|payload| payload.count as usize)
                .sum::<usize>(),
            CONTEXTS
        );
        raw = plain.len();
        compressed = out.payloads.iter().map(|payload| payload.body.len()).sum();
        payloads = out.payloads.len();
        black_box(bare_compressed);
        ratios.push((end - middle).as_secs_f64() / (middle - start).as_secs_f64());
        times.push((end - middle).as_nanos() as f64 / CONTEXTS as f64);
    }
    ratios.sort_by(f64::total_cmp);
    times.sort_by(f64::total_cmp);
    println!(
        "Encoding took {:.2} times as long ({:.2} to {:.2}, {ROUNDS} interleaved rounds), {:.0} ns per series ({:.0} to {:.0}).",
        ratios[ROUNDS / 2],
        ratios[0],
        ratios[ROUNDS - 1],
        times[ROUNDS / 2],
        times[0],
        times[ROUNDS - 1]
    );
    println!(
        "A series of {:.0} bytes takes {:.1} compressed; {payloads} payloads.",
        raw as f64 / CONTEXTS as f64,
        compressed as f64 / CONTEXTS as f64
    );
}

fn bare(batch: &Batch, plain: &mut Vec<u8>) {
    for series in batch.series() {
        let Value::Gauge(value) = series.value() else {
            unreachable!("gauges only")
        };
        protobuf::message(plain, 1, |b| {
            protobuf::message(b, 1, |b| {
                protobuf::string(b, 1, "host");
                protobuf::string(b, 2, series.host());
            });
            protobuf::string(b, 2, series.name());
            series.tags().for_each(|tag| protobuf::string(b, 3, tag));
            protobuf::message(b, 4, |b| {
                protobuf::double(b, 1, value);
                protobuf::integer(b, 2, series.timestamp());
            });
            protobuf::integer(b, 5, 3);
            protobuf::integer(b, 8, 10);
            protobuf::message(b, 9, |b| {
                protobuf::message(b, 1, |b| {
                    protobuf::integer(b, 4, 10);
                    protobuf::integer(b, 5, 10);
                })
            });
        });
    }
}
