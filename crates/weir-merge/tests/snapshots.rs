//! Saved state of earlier programs.

use crate::support::{START, WIDTH, Writer, agent, decoded, message, sum};
use weir_merge::{Ledger, Merge, MergeOutcome, Occasion, Settings};

/// Integers of variable length: seven bits in each byte, the lowest first.
#[derive(Default)]
struct Encoder(Vec<u8>);

impl Encoder {
    fn number(&mut self, mut number: u64) {
        while number > 127 {
            self.0.push(number as u8 | 128);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn numbers(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.number(*number));
    }

    /// Times are signed: the lowest bit is the sign.
    fn time(&mut self, time: i64) {
        self.number((time << 1 ^ time >> 63) as u64);
    }

    fn times(&mut self, times: &[i64]) {
        times.iter().for_each(|time| self.time(*time));
    }

    fn some_time(&mut self, time: i64) {
        self.number(1);
        self.time(time);
    }
}

/// A snapshot of version 1: an agent's three records with two states each were merged, and their buckets are closed.
fn version_1() -> Vec<u8> {
    let last = START + 20;
    let mut bytes = Encoder(vec![1]);
    // The next offset, the log's time, and when the agents are known.
    bytes.number(3);
    bytes.time((START + 90) * 1000);
    bytes.some_time((START + 60) * 1000);
    // Records merged, late and repeated; quarantined, by reason; closed buckets and the rest; the ledger of forgotten agents.
    bytes.numbers(&[3, 0, 0]);
    bytes.numbers(&[0; 9]);
    bytes.numbers(&[3, 0, 0, 0, 0]);
    bytes.numbers(&[0; 7]);
    // One agent with epoch 1, whose records are one range from number 0 to number 2, and none is abandoned.
    bytes.number(1);
    bytes.0.extend(agent(1).0);
    bytes.numbers(&[1, 1, 1]);
    bytes.numbers(&[0, 0]);
    bytes.time(START);
    bytes.numbers(&[2, 6]);
    bytes.time(last);
    bytes.numbers(&[0, 0, 0]);
    bytes.time(START);
    // The first epoch, the ledger of earlier ones, and its states: late, merged, quarantined; repeats and contradictions.
    bytes.number(0);
    bytes.numbers(&[0; 7]);
    bytes.numbers(&[0, 6, 0, 0, 0]);
    // One stream without a tenant: its width, the end of its closed buckets, and its agent.
    bytes.numbers(&[1, 0, u64::from(WIDTH)]);
    bytes.some_time(last + 10);
    bytes.number(1);
    bytes.0.extend(agent(1).0);
    bytes.times(&[START, last, last]);
    bytes.number(0);
    bytes.0
}

#[test]
fn a_snapshot_of_version_1_is_continued() {
    let mut merge = Merge::restore(Settings::default(), &version_1(), 3).unwrap();
    let saved = Ledger {
        published: 6,
        merged: 6,
        ..Ledger::default()
    };
    assert_eq!(merge.ledgers()[&agent(1)], saved);
    assert_eq!((merge.counts().merged, merge.counts().closed_buckets), (3, 3));
    assert_eq!(merge.streams()[0].closed_before, Some(START + 30));

    let (mut one, mut other) = (Writer::new(1, 1), Writer::new(2, 1));
    let known = one.one(START);
    one.one(START + 10);
    one.one(START + 20);
    let mut offset = 2;
    let mut add = |merge: &mut Merge, bytes: &[u8]| {
        offset += 1;
        merge.add(&message(offset, START + 100, bytes))
    };
    assert_eq!(add(&mut merge, &known), MergeOutcome::Repeat);
    assert_eq!(add(&mut merge, &other.one(START + 20)), MergeOutcome::Late);
    assert_eq!(add(&mut merge, &other.one(START + 30)), MergeOutcome::Merged);
    assert_eq!(add(&mut merge, &one.one(START + 30)), MergeOutcome::Merged);
    merge.tick((START + 111) * 1000);

    let commit = merge.commit().unwrap();
    let results = decoded(&commit.results);
    let found: Vec<_> = results
        .iter()
        .map(|(result, record)| {
            (
                result.bucket_start - START,
                result.occasion,
                sum("count", [record]),
            )
        })
        .collect();
    let closed = Occasion::Closed { expected: 2, seen: 2 };
    let late = Occasion::Late { through: 4 };
    assert_eq!(found, [(30, closed, 2.0), (20, late, 1.0)]);

    let again = Merge::restore(Settings::default(), &commit.snapshot, commit.offset).unwrap();
    assert_eq!(commit.snapshot[0], 3);
    assert_eq!(again.hosts(agent(1)), ["host1".into()]);
    assert_eq!(again.ledger(), merge.ledger());
    assert_eq!((again.ledger().merged, again.ledger().late), (10, 2));
}
