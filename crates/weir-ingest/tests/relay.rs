//! Lines on their way through the worker: which, in which order, at what cost.
#![allow(
    clippy::disallowed_types,
    reason = "the test looks at what a worker has handed over"
)]

use std::sync::{Arc, Mutex};

use weir_aggregate::AggregatorSettings;
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::IngestCounter;
use weir_ingest::{
    BLOCK_BYTES, Ingest, IngestSettings, Received, Relay, RelayBlock, RelayQueue, RelaySettings, RelayTarget,
};
use weir_protocol::{ParseOptions, Routes, SharedRoutes, route_slot};

use std::cell::Cell;

use crate::ALLOCATIONS;

/// A sender that keeps blocks until it is asked to return their buffers.
#[derive(Clone, Default)]
struct Sender(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    blocks: Vec<RelayBlock>,
    buffers: Vec<Vec<u8>>,
}

impl Sender {
    fn new(buffers: usize) -> Self {
        let state = State {
            blocks: Vec::with_capacity(1000),
            buffers: (0..buffers).map(|_| Vec::with_capacity(BLOCK_BYTES)).collect(),
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// The lines, and what was dropped: no buffer, too long, unmatched.
    fn take(&self) -> (Vec<String>, [u64; 3]) {
        let mut state = self.0.lock().unwrap();
        let (mut lines, mut dropped) = (Vec::new(), [0; 3]);
        for block in std::mem::take(&mut state.blocks) {
            let text = String::from_utf8(block.lines).unwrap();
            assert!(text.is_empty() || text.ends_with('\n'));
            assert_eq!(text.lines().count() as u64, block.messages);
            lines.extend(text.lines().map(str::to_owned));
            for (sum, part) in dropped
                .iter_mut()
                .zip([block.no_buffer, block.too_long, block.unmatched])
            {
                *sum += part;
            }
        }
        (lines, dropped)
    }

    /// As a quick sender does: buffers return, and nobody looks at them.
    fn recycle(&self) {
        let mut state = self.0.lock().unwrap();
        while let Some(mut block) = state.blocks.pop() {
            block.lines.clear();
            state.buffers.push(block.lines);
        }
    }
}

impl RelayQueue for Sender {
    fn push(&mut self, block: RelayBlock) -> Result<(), RelayBlock> {
        self.0.lock().unwrap().blocks.push(block);
        Ok(())
    }

    fn buffer(&mut self) -> Option<Vec<u8>> {
        self.0.lock().unwrap().buffers.pop()
    }
}

fn relay(senders: &[Sender], prefixes: &[&str], line_bytes_max: usize) -> Relay {
    let names: Vec<String> = (0..senders.len()).map(|i| format!("udp://{i}:1")).collect();
    let target = |sender: &Sender| RelayTarget {
        queue: Box::new(sender.clone()),
        line_bytes_max,
    };
    Relay::new(RelaySettings {
        prefixes: prefixes.iter().map(|prefix| (*prefix).to_owned()).collect(),
        targets: senders.iter().map(target).collect(),
        routes: Arc::new(SharedRoutes::new(Routes::new(&names, &vec![true; names.len()]))),
        linger_ns: 100,
    })
}

fn ingest(relay: Relay, only: bool) -> Ingest {
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: Rules::default(),
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(1, 2),
        listeners: vec![ParseOptions::default().into()],
    };
    let mut ingest = Ingest::new(settings, 1_700_000_000);
    ingest.enable_relays(vec![relay], only);
    ingest
}

fn packet(ingest: &mut Ingest, bytes: &[u8], truncated: bool) {
    ingest.packet(Received {
        bytes,
        listener: 0,
        truncated,
        received: 1,
    });
}

const MESSAGES: &str = "page.views:1|c|@0.5|#env:prod,b:1\nqueue:7|g|#b\nusers:ada|s\nload:1:2:3|ms|T1700000000\n_sc|page|0|#x:y\n_e{1,1}:a|b\nbytes:1|d|c:ci-1\r\n";

#[test]
fn valid_lines_are_relayed_as_received_and_invalid_ones_are_not() {
    for only in [false, true] {
        let sender = Sender::new(8);
        let mut ingest = ingest(relay(std::slice::from_ref(&sender), &[], 1000), only);
        // The first sight and the ones that are remembered take different ways.
        for _ in 0..3 {
            packet(
                &mut ingest,
                format!("{MESSAGES}broken\nalso:broken|c\n\nname:1|zz\n").as_bytes(),
                false,
            );
        }
        packet(
            &mut ingest,
            b"page.views:1|c|@0.5|#env:prod,b:1\npage.views:12",
            true,
        );
        ingest.relays_mut()[0].hand_over();
        let (lines, dropped) = sender.take();
        let expected: Vec<&str> = MESSAGES.lines().collect();
        assert_eq!(
            lines,
            [&expected[..], &expected, &expected, &expected[..1]].concat()
        );
        assert_eq!(dropped, [0, 0, 0]);
        let counts = ingest.counts()[0];
        assert!(counts.balance(), "{counts:?}");
        assert_eq!(
            (
                counts[IngestCounter::Messages],
                counts.accepted(),
                counts.rejected_total()
            ),
            (32, 22, 10)
        );
        assert_eq!(counts[IngestCounter::RejectedTruncated], 1);
        assert_eq!(counts[IngestCounter::Samples] > 0, !only, "{counts:?}");
    }
}

#[test]
fn prefixes_choose_and_long_lines_are_counted() {
    let sender = Sender::new(8);
    let mut ingest = ingest(relay(std::slice::from_ref(&sender), &["page.", "pa"], 60), true);
    for _ in 0..2 {
        packet(&mut ingest, MESSAGES.as_bytes(), false);
        packet(
            &mut ingest,
            format!("page.long:1|c|#{}\n", "x".repeat(60)).as_bytes(),
            false,
        );
    }
    ingest.relays_mut()[0].hand_over();
    let (lines, dropped) = sender.take();
    assert_eq!(
        lines,
        ["page.views:1|c|@0.5|#env:prod,b:1", "_sc|page|0|#x:y"].repeat(2)
    );
    assert_eq!(dropped, [0, 2, 10]);
}

#[test]
fn a_sender_that_holds_every_buffer_loses_only_its_own_lines() {
    let (quick, stuck) = (Sender::new(4), Sender::new(4));
    let senders = [quick.clone(), stuck.clone()];
    let mut ingest = ingest(relay(&senders, &[], 1000), true);
    let routes = Routes::new(&["udp://0:1".into(), "udp://1:1".into()], &[true; 2]);
    let mut expected = [0; 2];
    let mut received = 0;
    for round in 0..1000 {
        let lines: Vec<String> = (0..100)
            .map(|i| format!("metric.{i}:{round}|c|#some:tag,another:one"))
            .collect();
        for line in &lines {
            expected[routes.target(route_slot(line.as_bytes()))] += 1;
        }
        packet(&mut ingest, (lines.join("\n") + "\n").as_bytes(), false);
        let mut state = quick.0.lock().unwrap();
        received += state.blocks.iter().map(|block| block.messages).sum::<u64>();
        for block in std::mem::take(&mut state.blocks) {
            state.buffers.push(Vec::with_capacity(block.lines.capacity()));
        }
    }
    ingest.relays_mut()[0].finish();
    let (lines, dropped) = quick.take();
    assert_eq!((received + lines.len() as u64, dropped), (expected[0], [0, 0, 0]));
    let (lines, [no_buffer, ..]) = stuck.take();
    assert!(no_buffer > 1000 && !lines.is_empty());
    assert_eq!(
        lines.len() as u64 + no_buffer,
        expected[1],
        "every line is in a block or counted"
    );
}

#[test]
fn known_lines_cost_no_allocation() {
    for only in [false, true] {
        let senders = [Sender::new(8), Sender::new(8), Sender::new(8)];
        let mut ingest = ingest(relay(&senders, &[], 1000), only);
        let text: String = (0..300)
            .map(|i| {
                format!(
                    "metric.{i}:{}|{}|#env:prod,i:{i}\n",
                    i % 7,
                    ["c", "g", "d"][i % 3]
                )
            })
            .collect();
        // Sketches and weights grow for a while.
        for _ in 0..4200 {
            packet(&mut ingest, text.as_bytes(), false);
            senders.iter().for_each(Sender::recycle);
        }
        let before = ALLOCATIONS.with(Cell::get);
        for _ in 0..100 {
            packet(&mut ingest, text.as_bytes(), false);
            senders.iter().for_each(Sender::recycle);
        }
        // Blocks that are handed over may cost some; lines do not.
        let allocations = ALLOCATIONS.with(Cell::get) - before;
        assert!(
            allocations * 1000 <= 100 * 300,
            "only: {only}: {allocations} allocations for 30,000 lines"
        );
    }
}
