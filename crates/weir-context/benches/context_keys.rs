//! Cost of a context by its number of tags: one known context looked up repeatedly.
//!
//! `cargo bench -p weir-context --bench context_keys -- [tags=MOST] [count=N] [PART OF A NAME]` prints lines for `benchstat`. Steps:
//!
//! * `hash`: the hash of each tag that is already split, and nothing else: a part of the next step.
//! * `split`: name and tags are already split; hash, duplicates, key, and the final comparison.
//! * `cold`: from the bytes of a name and a tag section by its parts, as for known tags in a new order.
//! * `hot`: from the same bytes through the raw alias, as for a message seen before. Lines of more than 64 KiB have no alias, and no row.
//!
//! each with its tags in one order, in a new random order every time, and with every tag twice. Lines are prepared outside the loop. The last
//! rows are hits of one size, a tag section of 160 bytes, by the number of its tags.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a benchmark reads the clock and prints"
)]

#[path = "../../weir-protocol/benches/parser/harness.rs"]
mod harness;

use std::hint::black_box;

use harness::Harness;
use weir_context::{AliasKey, ContextLimits, Contexts, HashSecret, Lookup, OriginId, RuleSettings, Rules};
use weir_protocol::{Kind, Message, ParseOptions, parse_line};

/// Orders prepared for the shuffled rows: enough that the processor cannot learn their branches, few enough to stay in its cache.
fn orders(tags: usize) -> usize {
    (65536 / tags).clamp(32, 1024)
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        // xorshift64 (Marsaglia 2003).
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

fn main() {
    let harness = Harness::new("weir-context", &["tags"]);
    let most = harness::argument("tags").unwrap_or(4096);
    for order in ["fixed", "shuffled", "duplicated"] {
        let mut tags = 1;
        while tags <= most {
            let of = |step: &str| format!("ContextKey/step={step}/order={order}/tags={tags}");
            measure(&harness, of, &sections(tags, order));
            tags *= 2;
        }
    }
    for tags in [1, 2, 4, 8, 16] {
        let section: Vec<String> = (0..tags)
            .map(|at| format!("{at:x}:{}", "v".repeat(160 / tags - 3)))
            .collect();
        let of = |step: &str| format!("ContextKey/step={step}/order=fixed/bytes=160/tags={tags}");
        measure(&harness, of, &[section.join(",")]);
    }
}

/// The tag sections of the looked-up lines.
fn sections(tags: usize, order: &str) -> Vec<String> {
    let mut names: Vec<String> = (0..tags).map(|at| format!("tag{at}:value{at}")).collect();
    if order == "duplicated" {
        names.extend(names.clone());
    }
    let mut random = Random(0x5eed);
    (0..if order == "shuffled" { orders(tags) } else { 1 })
        .map(|_| {
            if order == "shuffled" {
                for at in (1..names.len()).rev() {
                    names.swap(at, random.below(at + 1));
                }
            }
            names.join(",")
        })
        .collect()
}

fn measure(harness: &Harness, of: impl Fn(&str) -> String, sections: &[String]) {
    let mut contexts = Contexts::new(
        HashSecret::from_random(1, 2),
        Rules::new(RuleSettings::default()),
        ContextLimits::default(),
    );
    let options = ParseOptions {
        origin_client: true,
        timestamps: true,
        eol_required: false,
    };
    let tails: Vec<String> = sections.iter().map(|section| format!("|#{section}")).collect();
    let name = b"metric.name";
    let mut keys = Vec::new();
    for tail in &tails {
        let line = format!("metric.name:1|c{tail}");
        let Ok(Message::Metric(metric)) = parse_line(line.as_bytes(), &options) else {
            unreachable!("the line is valid");
        };
        let Lookup::Context(_, raw) = contexts.resolve(&metric, OriginId::NONE, 0) else {
            unreachable!("there is room");
        };
        let key = AliasKey {
            head: AliasKey::head(Kind::Counter, OriginId::NONE),
            name,
            tail: tail.as_bytes(),
        };
        let hash = contexts.alias_hash(&key);
        // Twice, because only the first alias of a context is admitted at first sight.
        contexts.remember_alias(hash, &key, raw);
        contexts.remember_alias(hash, &key, raw);
        keys.push(key);
    }
    let split: Vec<Vec<&[u8]>> = sections
        .iter()
        .map(|section| section.split(',').map(str::as_bytes).collect())
        .collect();
    let secret = HashSecret::from_random(1, 2);
    harness.run(&of("hash"), 1, |at| {
        let tags = black_box(&split[at % split.len()]);
        black_box(tags.iter().fold(0, |all, tag| all ^ secret.bytes(tag)));
    });
    harness.run(&of("split"), 1, |at| {
        let tags = &split[at % split.len()];
        let found = contexts.find_split(Kind::Counter, name, black_box(tags), OriginId::NONE);
        assert!(black_box(found).is_some(), "a known context is found");
    });
    harness.run(&of("cold"), 1, |at| {
        let tags = sections[at % sections.len()].as_bytes();
        let found = contexts.find(Kind::Counter, name, black_box(tags), OriginId::NONE);
        assert!(black_box(found).is_some(), "a known context is found");
    });
    if tails[0].len() < weir_context::ALIAS_KEY_BYTES_MAX - 64 {
        harness.run(&of("hot"), 1, |at| {
            let key = black_box(&keys[at % keys.len()]);
            let hash = contexts.alias_hash(key);
            assert!(
                black_box(contexts.find_alias(hash, key)).is_some(),
                "a known line is found"
            );
        });
    }
}
