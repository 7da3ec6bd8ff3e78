//! Bytes per context, by kind, as the ledger counts them: the table in `docs/limits.md` says so, and this test compares.

use std::collections::BTreeMap;
use std::fmt::Write;

use weir_aggregate::AggregatorSettings;
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_protocol::ParseOptions;

/// A third above a power of two: tables that double are neither just full nor just doubled.
const CONTEXTS: usize = 43_000;

const KINDS: [(&str, &str); 6] = [
    ("counter", "c"),
    ("gauge", "g"),
    ("set", "s"),
    ("histogram", "h"),
    ("timing", "ms"),
    ("distribution", "d"),
];

/// The page may say so much more than is measured, and so much less.
const ABOVE: f64 = 1.10;
const BELOW: f64 = 0.97;

fn ingest() -> Ingest {
    Ingest::new(
        IngestSettings {
            worker: 0,
            aggregator: AggregatorSettings::default(),
            rules: Rules::default(),
            limits: ContextLimits::default(),
            secret: HashSecret::from_random(1, 2),
            listeners: vec![ParseOptions::default().into()],
        },
        1_700_000_000,
    )
}

fn held(ingest: &Ingest) -> f64 {
    (ingest.contexts().heap_bytes() + ingest.aggregator().heap_bytes()) as f64
}

/// One message of 150 bytes to each of the first `contexts` contexts: 7 tags, four of them of this context alone.
fn send(ingest: &mut Ingest, kind: &str, contexts: usize, sample: usize) {
    let mut text = String::new();
    for at in 0..contexts {
        text.clear();
        let value = if kind == "s" {
            format!("user-{:07}", sample)
        } else {
            format!("{}", (sample * 37 + at) % 1000 + 1)
        };
        let _ = writeln!(
            text,
            "shop.request.{at:06}:{value}|{kind}|#env:production,region:eu-west-1,service:cart,pod:cart-{at:06},node:n-{at:05},path:/p/{at:05},task:t-{at:06}"
        );
        ingest.packet(Received {
            bytes: text.as_bytes(),
            listener: 0,
            truncated: false,
            received: 1,
        });
    }
}

/// Bytes of a context with one sample.
fn of_context(kind: &str) -> f64 {
    let mut ingest = ingest();
    let before = held(&ingest);
    send(&mut ingest, kind, CONTEXTS, 0);
    assert_eq!(ingest.contexts().len(), CONTEXTS);
    (held(&ingest) - before) / CONTEXTS as f64
}

/// Bytes of each of a thousand further samples that all differ.
fn of_sample(kind: &str) -> f64 {
    const FURTHER: usize = 1000;
    let mut ingest = ingest();
    send(&mut ingest, kind, 10, 0);
    let before = held(&ingest);
    for sample in 1..=FURTHER {
        send(&mut ingest, kind, 10, sample);
    }
    (held(&ingest) - before) / (10 * FURTHER) as f64
}

/// The figures of the page, by what they are of.
fn documented() -> BTreeMap<String, f64> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/limits.md")).unwrap();
    let rows = page.lines().filter_map(|line| {
        let (what, figure) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
        Some((what.to_owned(), figure.parse().ok()?))
    });
    rows.collect()
}

#[test]
fn the_page_has_the_sizes_of_contexts() {
    let measured = KINDS.map(|(name, kind)| (format!("a {name} with one sample"), of_context(kind)));
    let further = [
        ("each further sample of a histogram or timing", "h"),
        ("each further member of a set, of 12 bytes", "s"),
        ("each further sample of a distribution", "d"),
    ];
    let further = further.map(|(name, kind)| (name.to_owned(), of_sample(kind)));
    let documented = documented();
    let mut errors = Vec::new();
    for (what, bytes) in measured.into_iter().chain(further) {
        println!("{what}: {bytes:.1}");
        let page = documented.get(&what).copied().unwrap_or(f64::NAN);
        if !(bytes * BELOW..=(bytes * ABOVE).max(bytes + 1.0)).contains(&page) {
            errors.push(format!(
                "{what}: {bytes:.1} bytes, and docs/limits.md says {page}"
            ));
        }
    }
    assert!(errors.is_empty(), "{errors:#?}");
}
