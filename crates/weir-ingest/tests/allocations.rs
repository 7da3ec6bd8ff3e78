//! In the steady state a message costs no allocation: counted, so that it cannot come back unnoticed.

use std::fmt::Write;

use weir_aggregate::AggregatorSettings;
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_protocol::ParseOptions;

use std::cell::Cell;

use crate::ALLOCATIONS;

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
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: Rules::default(),
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(1, 2),
        listeners: vec![ParseOptions::default().into()],
    };
    let mut ingest = Ingest::new(settings, 1_700_000_000);
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
