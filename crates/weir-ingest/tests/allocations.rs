//! In the steady state a message costs no allocation, and the open bucket leaves in pieces: counted, so that neither changes unnoticed.

use std::cell::Cell;
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_aggregate::{AggregatorSettings, ProcessStamp};
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_protocol::ParseOptions;
use weir_state::AgentId;

use crate::{ALLOCATIONS, LIVE, PEAK};

fn ingest() -> Ingest {
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: Rules::default(),
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(1, 2),
        listeners: vec![ParseOptions::default().into()],
    };
    Ingest::new(settings, 1_700_000_000)
}

/// 50 contexts of each kind; `order` turns their tags around.
fn packet(order: usize) -> Vec<u8> {
    let mut text = String::new();
    let tags = ["env:prod", "service:web", "az:1"];
    for kind in ["c", "g", "d", "ms", "s", "h"] {
        for number in 0..50 {
            let value = number % 7;
            let [a, b, c] = [0, 1, 2].map(|at| tags[(at + order) % 3]);
            let rate = if number % 5 == 0 && kind != "s" {
                "|@0.5"
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "metric.{kind}.{number}:{value}|{kind}{rate}|#{a},{b},{c},n:{number}"
            );
        }
    }
    text.into_bytes()
}

#[test]
fn a_known_message_allocates_nothing() {
    let mut ingest = ingest();
    let known = packet(0);
    // The first sight makes contexts; histograms keep samples and double their room until the bound of 4096.
    for _ in 0..4200 {
        ingest.packet(Received {
            bytes: &known,
            listener: 0,
            truncated: false,
            received: 1,
        });
    }
    let before = ALLOCATIONS.with(Cell::get);
    for _ in 0..100 {
        ingest.packet(Received {
            bytes: &known,
            listener: 0,
            truncated: false,
            received: 1,
        });
    }
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0, "by messages seen before");

    // The same tags in another order: found by their parts, once held back by the doorkeeper, once admitted.
    let turned = packet(1);
    for _ in 0..2 {
        ingest.packet(Received {
            bytes: &turned,
            listener: 0,
            truncated: false,
            received: 1,
        });
    }
    let before = ALLOCATIONS.with(Cell::get);
    for _ in 0..100 {
        ingest.packet(Received {
            bytes: &turned,
            listener: 0,
            truncated: false,
            received: 1,
        });
    }
    assert_eq!(
        ALLOCATIONS.with(Cell::get) - before,
        0,
        "by another order of the same tags"
    );
    assert!(ingest.counts()[0].balance());
}

/// There is no room for a copy of it.
#[test]
fn the_open_bucket_is_saved_without_a_copy() {
    let mut ingest = ingest();
    for number in 0..40_000 {
        let kind = ["c", "g", "d", "h", "s"][number % 5];
        ingest.packet(Received {
            bytes: format!("saved.{number}:1|{kind}|#env:prod,n:{number}").as_bytes(),
            listener: 0,
            truncated: false,
            received: 1,
        });
    }
    let stamp = ProcessStamp {
        monotonic_zero: 0,
        agent: AgentId::default(),
    };
    let before = LIVE.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let bytes = AtomicUsize::new(0);
    let saved = ingest.save_encoded(stamp, &|piece| {
        bytes.fetch_add(piece.len(), Ordering::Relaxed);
        Ok(())
    });
    // A second thread does half of it, in the same way.
    let held = PEAK.with(Cell::get) - before;
    assert_eq!(saved.unwrap().contexts, 40_000);
    let bytes = bytes.into_inner();
    println!("{bytes} bytes in pieces, {held} at most in memory");
    assert!(bytes > 1 << 20, "{bytes}");
    assert!(held < 256 << 10, "{held} bytes");
}
