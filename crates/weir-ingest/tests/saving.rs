//! The open bucket leaves in pieces: there is no room for a copy of it.

use std::cell::Cell;

use weir_aggregate::{AggregatorSettings, ProcessStamp};
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_protocol::ParseOptions;
use weir_state::AgentId;

use crate::{LIVE, PEAK};

#[test]
fn the_open_bucket_is_saved_without_a_copy() {
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: Rules::default(),
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(1, 2),
        listeners: vec![ParseOptions::default().into()],
    };
    let mut ingest = Ingest::new(settings, 1_700_000_000);
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
    let bytes = std::sync::atomic::AtomicUsize::new(0);
    let saved = ingest.save_encoded(stamp, &|piece| {
        bytes.fetch_add(piece.len(), std::sync::atomic::Ordering::Relaxed);
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
