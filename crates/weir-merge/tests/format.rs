//! `docs/fleet-records.md`: a program that was written from that page reads what this crate writes, and the page's example is true.

// The crate starts no program; the decoder is one.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use weir_merge::{BucketResult, Merge, Occasion, Plan, Publisher, Settings};
use weir_protocol::Kind;
use weir_sketch::Sketch;
use weir_state::{
    AgentId, Bins, Bounds, Distribution, ExactSum, Extremes, Facts, Gauge, Identity, Members, Record,
    Samples, State, Table,
};

use crate::support::{START, message};

const PAGE: &str = include_str!("../../../docs/fleet-records.md");
const DECODER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/decoders/records.py");

/// The example of the page: its bytes, and their meaning.
fn example() -> [&'static str; 2] {
    let mut blocks = PAGE.split("```text\n").skip(1);
    [(); 2].map(|()| blocks.next().unwrap().split_once("```").unwrap().0)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text that the other program prints of these bytes.
fn decoded(what: &str, bytes: &[u8]) -> String {
    let mut child = Command::new("python3")
        .arg(DECODER)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let line = format!("{what} {}\n", hex(bytes));
    child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{what} {}", hex(bytes));
    String::from_utf8(output.stdout).unwrap()
}

fn sum(sum: &ExactSum) -> String {
    sum.to_f64().to_string()
}

fn bins(bins: &Bins, extremes: Option<Extremes>) -> String {
    let shown: Vec<String> = bins.iter().map(|(key, count)| format!("{key}:{count}")).collect();
    let mut text = format!("bins [{}]", shown.join(" "));
    if let Some(Extremes { min, max }) = extremes {
        write!(text, " from {min} to {max}").unwrap();
    }
    text
}

fn state(state: &State, own: AgentId) -> String {
    match state {
        State::Counter(counter) => sum(counter),
        State::Gauge(gauge) => {
            let Extremes { min, max } = gauge.extremes;
            let by = match gauge.agent == own {
                true => "own".to_owned(),
                false => gauge.agent.to_string(),
            };
            format!(
                "{} received {} by {by} from {min} to {max}",
                gauge.value, gauge.received
            )
        }
        State::Set(Members::Exact(members)) => {
            let members = members
                .iter()
                .map(|member| format!("{:?}", String::from_utf8_lossy(member)));
            format!("members {}", members.collect::<Vec<_>>().join(", "))
        }
        State::Set(Members::Estimate(estimate)) => {
            let registers = estimate.registers();
            let sum: u64 = registers.iter().map(|register| u64::from(*register)).sum();
            format!("{} registers with the sum {sum}", registers.len())
        }
        State::Samples(Samples::Exact(samples)) => {
            let samples = samples
                .iter()
                .map(|(value, weight, times)| format!("{value}*{weight}*{times}"));
            format!("samples {}", samples.collect::<Vec<_>>().join(" "))
        }
        State::Samples(Samples::Folded(folded)) => format!(
            "{} sum {} weight {} whole {}",
            bins(&folded.bins, folded.extremes),
            sum(&folded.sum),
            sum(&folded.weight),
            sum(&folded.whole_weight)
        ),
        State::Distribution(distribution) => format!(
            "{} sum {} rest {}",
            bins(&distribution.bins, distribution.extremes),
            sum(&distribution.sum),
            sum(&distribution.rest)
        ),
    }
}

/// The same text by this crate.
fn shown(record: &Record) -> String {
    let header = &record.header;
    let mut text = match header.host.as_str() {
        "" => format!("version 1, tenant {:?}", header.tenant),
        host => format!("version 2, tenant {:?}, host {host:?}", header.tenant),
    };
    write!(
        text,
        ", agent {}, epoch {}, bucket {} + {}, sequence {}, part {} of {}",
        header.agent,
        header.epoch,
        header.bucket_start,
        header.bucket_width,
        header.sequence,
        header.part,
        header.parts
    )
    .unwrap();
    if let Some(publication) = header.publication {
        let last = u8::from(publication.is_last);
        let (before, partitions) = (publication.states_before, publication.partitions);
        write!(
            text,
            ", states before {before}, partitions {partitions}, last {last}"
        )
        .unwrap();
    }
    text.push('\n');
    for series in record.series() {
        let (facts, of) = (series.facts, state(series.state, header.agent));
        let identity = series.identity();
        let kind = format!("{:?}", identity.kind).to_lowercase();
        let host = match &identity.host {
            None => "own".to_owned(),
            Some(host) => format!("{host:?}"),
        };
        let integration = identity.integration.iter();
        let integration: String = integration
            .map(|integration| format!(" integration {integration:?}"))
            .collect();
        let suffixes = match facts.suffixes {
            u32::MAX => String::new(),
            some => format!(" suffixes {some}"),
        };
        let (seen, tags) = (facts.seen - header.bucket_start, identity.tags.join(", "));
        let name = &identity.name;
        writeln!(
            text,
            "{kind} {name} [{tags}] host {host}{integration} seen {seen}{suffixes}: {of}"
        )
        .unwrap();
    }
    text
}

fn publisher() -> Publisher {
    let mut publisher = Publisher::new("shop", AgentId([7; 16]), START as u64);
    publisher.set_host("web-17");
    publisher.begin(START, 10, &Plan::new(1));
    publisher
}

fn facts(seen: i64) -> Facts {
    Facts {
        seen: START + seen,
        suffixes: u32::MAX,
    }
}

#[test]
fn the_example_of_the_page_is_what_is_written_and_read() {
    let mut publisher = publisher();
    let tags = ["env:prod", "service:checkout"];
    let counter = Identity::new(Kind::Counter, "orders", Some(""), None, tags);
    publisher.add(&counter, facts(3), &State::Counter(ExactSum::from(12.5)));
    let gauge = Identity::new(Kind::Gauge, "queue.depth", None, None, ["env:prod"]);
    let mut depth = Gauge::new(3.0, 1_700_000_001_000_000_000, AgentId([7; 16]));
    depth.merge(&Gauge::new(7.0, 1_700_000_002_000_000_000, AgentId([7; 16])));
    publisher.add(&gauge, facts(2), &State::Gauge(depth));
    let set = Identity::new(Kind::Set, "users", Some(""), None, []);
    let members = Members::exact([b"ann".as_slice(), b"bob"]);
    publisher.add(&set, facts(9), &State::Set(members));
    let record = publisher.close(false).records.remove(0).bytes;
    let found = hex(&record);
    let [bytes, meaning] = example();
    assert_eq!(bytes.split_whitespace().collect::<String>(), found);
    assert_eq!(meaning, decoded("record", &record));
    assert_eq!(meaning, shown(&Record::decode(&record).unwrap()));
}

/// Every form of every state, in a record that is compressed.
#[test]
fn every_form_is_read_by_a_program_from_the_page() {
    let mut publisher = publisher();
    let mut number = 0;
    let mut add = |kind, state: State| {
        number += 1;
        let tags: Vec<String> = (0..number % 4).map(|tag| format!("tag:{tag}")).collect();
        let host = [None, Some(""), Some("other")][number % 3];
        let integration = [None, Some("columns")][number % 2];
        let name = format!("metric.{number}.with.a.long.name");
        let identity = Identity::new(kind, &name, host, integration, tags.iter().map(String::as_str));
        let facts = Facts {
            suffixes: [u32::MAX, 5][number % 2],
            ..facts(number as i64 - 1)
        };
        publisher.add(&identity, facts, &state);
    };
    for value in [0.0, 1.0, -0.1, 1e300, 5e-324, f64::INFINITY, -3e-7] {
        add(Kind::Counter, State::Counter(ExactSum::from(value)));
    }
    let mut wide = ExactSum::from(1e300);
    wide.add(1.0);
    wide.add(-1e300);
    add(Kind::Counter, State::Counter(wide));
    add(Kind::Gauge, State::Gauge(Gauge::new(-0.5, -3, AgentId([9; 16]))));
    let mut members = Members::exact(
        (0..50u8)
            .map(|at| [at % 26 + b'a', at % 10 + b'0'])
            .collect::<Vec<_>>()
            .iter()
            .map(|two| &two[..]),
    );
    add(Kind::Set, State::Set(members.clone()));
    let few = Bounds {
        members: 3,
        member_bytes: usize::MAX,
        samples: 3,
    };
    members.merge(&Members::exact([b"more".as_slice()]), &few);
    add(Kind::Set, State::Set(members));
    let values = [(3.5, 1.0), (3.5, 1.0), (-2.0, 4.0), (0.0, 1.5), (1e9, 1.0)];
    add(Kind::Histogram, State::Samples(Samples::exact(values)));
    let mut folded = Samples::exact(values);
    folded.merge(&Samples::exact([(7.0, 1.0)]), &few);
    add(Kind::Timing, State::Samples(folded));
    let mut sketch = Sketch::new();
    for value in [-40.0, 0.0, 1.0, 1.5, 2e6] {
        sketch.insert(value, 3);
    }
    add(Kind::Distribution, Distribution::new(&sketch, 0.25).into());
    add(Kind::Distribution, Distribution::default().into());
    let record = publisher.close(true).records.remove(0).bytes;
    assert_eq!(record[1] & 1, 1, "it is compressed");
    assert_eq!(
        decoded("record", &record),
        shown(&Record::decode(&record).unwrap())
    );
}

#[test]
fn results_are_read_by_a_program_from_the_page() {
    let mut merge = Merge::new(Settings::default(), 0);
    let mut writer = crate::support::Writer::new(1, 1);
    let mut table = Table::default();
    crate::support::add(&mut table, "c", 2.0);
    for (offset, bucket, at) in [(0, 0, 20), (1, 100, 120), (2, 0, 250)] {
        let bytes = writer.write(START + bucket, &table).remove(0);
        merge.tick((START + at) * 1000);
        merge.add(&message(offset, START + at, &bytes));
    }
    merge.tick((START + 400) * 1000);
    let results = merge.commit().unwrap().results;
    let mut occasions = 0;
    for bytes in results {
        let (result, record) = BucketResult::decode(&bytes).unwrap();
        let occasion = match result.occasion {
            Occasion::Closed { expected, seen } => format!("closed, expected {expected}, seen {seen}"),
            Occasion::Late { through } => {
                occasions += 1;
                format!("late through {through}")
            }
        };
        let expected = format!(
            "tenant {:?}, bucket {} + {}, {occasion}, states {}, part {} of {}\n{}",
            result.tenant,
            result.bucket_start,
            result.bucket_width,
            result.states,
            result.part,
            result.parts,
            shown(&record)
        );
        assert_eq!(decoded("result", &bytes), expected);
    }
    assert_eq!(occasions, 1);
}
