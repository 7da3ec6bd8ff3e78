//! Bytes and instructions of series as columns (v3) beside the older form (v2):
//! `cargo run --release -p weir-output --example datadog_columns`.
//!
//! Prints the bytes of 100,000 series of each set of rows, in each form and compression. With arguments it only works, so that its
//! instructions can be counted: `datadog_columns ROWS FORM COMPRESSION TIMES` encodes that often. With `dump ROWS FILE` it writes the
//! uncompressed payloads of v2 into a file, each after its length in eight bytes, for other encoders of the same rows.

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::Write;
use std::sync::Arc;

use weir_aggregate::{Batch, Expansion};
use weir_output::datadog::DatadogEncoder;
use weir_output::delivery::{Encode, Encoded};
use weir_output::settings::{Compression, SeriesFormat};

/// Series; of histograms five times as many points.
const CONTEXTS: usize = 100_000;
const ROWS: [&str; 4] = ["pods", "services", "counters", "histograms"];

/// Series in an order without a pattern, as contexts of many senders come.
fn rows(kind: &str) -> Vec<Arc<Batch>> {
    let line = |i: usize| {
        // Each pod has its own tag set, or hundreds of names have the same sets.
        let (name, set) = match kind {
            "pods" => (i % 200, i),
            _ => (i / 500, i % 500),
        };
        let tags = format!(
            "env:production,service:checkout-{},region:eu-west-{},version:1.{}.0,pod:checkout-{:08x},team:payments,endpoint:/api/v1/items/{}",
            set % 50,
            set % 3,
            set % 20,
            random(set) as u32,
            set % 400
        );
        let value = random(i) % 10_007;
        match kind {
            "counters" => format!("application.requests.{name}:{value}|c|#{tags}\n"),
            "histograms" => format!("application.latency.{name}:{value}.25:{i}|h|#{tags}\n"),
            _ => format!("application.load.{name}:{value}|g|#{tags}\n"),
        }
    };
    let contexts = if kind == "histograms" {
        CONTEXTS / 5
    } else {
        CONTEXTS
    };
    let mut order: Vec<usize> = (0..contexts).collect();
    order.sort_by_key(|i| random(i ^ 1 << 40));
    support::batches(&order.into_iter().map(line).collect::<String>())
}

/// A number without a visible pattern, the same in each run.
fn random(of: usize) -> u64 {
    let mut state = (of as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

fn encoder(form: &str, compression: Compression) -> DatadogEncoder {
    let mut settings = support::datadog("");
    settings.form.series_format = if form == "v3" {
        SeriesFormat::V3
    } else {
        SeriesFormat::V2
    };
    settings.form.compression = compression;
    DatadogEncoder::new(&settings, Arc::new(Expansion::default()))
}

fn encode(encoder: &mut DatadogEncoder, batches: &[Arc<Batch>]) -> Encoded {
    let mut out = Encoded::default();
    batches.iter().for_each(|batch| encoder.encode(batch, &mut out));
    encoder.finish(&mut out);
    out
}

fn compression(name: &str) -> Compression {
    match name {
        "zstd" => Compression::Zstd,
        "gzip" => Compression::Gzip,
        _ => Compression::None,
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["dump", kind, path] => {
            let mut file = std::fs::File::create(path).expect("the file can be written");
            for payload in encode(&mut encoder("v2", Compression::None), &rows(kind)).payloads {
                let length = (payload.body.len() as u64).to_le_bytes();
                file.write_all(&length)
                    .and_then(|()| file.write_all(&payload.body))
                    .expect("room on disk");
            }
        }
        [kind, form, how, times] => {
            let (rows, mut encoder) = (rows(kind), encoder(form, compression(how)));
            for _ in 0..times.parse().expect("a number of times") {
                std::hint::black_box(encode(&mut encoder, &rows));
            }
        }
        _ => {
            for kind in ROWS {
                let rows = rows(kind);
                for how in ["none", "zstd", "gzip"] {
                    for form in ["v2", "v3"] {
                        let out = encode(&mut encoder(form, compression(how)), &rows);
                        let bytes: usize = out.payloads.iter().map(|payload| payload.body.len()).sum();
                        let points: u32 = out.payloads.iter().map(|payload| payload.count).sum();
                        println!(
                            "{kind}: {points} points, {form}, {how}: {:.2} bytes per point, {} payloads",
                            bytes as f64 / f64::from(points),
                            out.payloads.len()
                        );
                    }
                }
            }
        }
    }
}
