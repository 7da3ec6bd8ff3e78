//! Cost of a context by its number of tags: one known context looked up repeatedly, in nanoseconds per look-up.
//!
//! `cargo bench -p weir-context --bench context_keys -- [TAGS_MAX]`. Three rows for each number of tags:
//!
//! * `split`: name and tags are already split; hash, duplicates, key, and the final comparison.
//! * `cold`: from the bytes of a name and a tag section by its parts, as for known tags in a new order.
//! * `hot`: from the same bytes through the raw alias, as for a message seen before.
//!
//! each with its tags in one order, in a new random order every time, and with every tag twice. Lines are prepared outside the loop. The
//! result is the minimum of nine rounds, because disturbances only add time.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a benchmark reads the clock and prints"
)]

use std::hint::black_box;
use std::time::Instant;

use weir_context::{AliasKey, ContextLimits, Contexts, HashSecret, Lookup, OriginId, RuleSettings, Rules};
use weir_protocol::{Kind, Message, ParseOptions, parse_line};

/// Orders prepared for the shuffled rows: enough that the processor cannot learn their branches, few enough to stay in its cache.
fn orders(tags: usize) -> usize {
    (65536 / tags).clamp(32, 1024)
}

const ROUNDS: usize = 9;

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
    let most = std::env::args()
        .skip(1)
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(2048);
    println!("nanoseconds per look-up; ratio: to the row with half as many tags");
    println!("| tags | order | split | ratio | cold | ratio | hot | ratio |");
    println!("|---|---|---|---|---|---|---|---|");
    for order in ["fixed", "shuffled", "duplicated"] {
        let mut before: Option<[f64; 3]> = None;
        let mut tags = 1;
        while tags <= most {
            let row = measure(tags, order);
            let ratio =
                |at: usize| before.map_or(String::new(), |before| format!("{:.2}", row[at] / before[at]));
            println!(
                "| {tags} | {order} | {:.1} | {} | {:.1} | {} | {:.1} | {} |",
                row[0],
                ratio(0),
                row[1],
                ratio(1),
                row[2],
                ratio(2)
            );
            before = Some(row);
            tags *= 2;
        }
    }
    println!("\nhot, a tag section of 160 bytes, by the number of its tags: nanoseconds");
    for tags in [1, 2, 4, 8, 16] {
        let section: Vec<String> = (0..tags)
            .map(|at| format!("{at:x}:{}", "v".repeat(160 / tags - 3)))
            .collect();
        println!("{tags}: {:.1}", measure_sections(tags, &[section.join(",")])[2]);
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

fn measure(tags: usize, order: &str) -> [f64; 3] {
    measure_sections(tags, &sections(tags, order))
}

fn measure_sections(tags: usize, sections: &[String]) -> [f64; 3] {
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
    // About two milliseconds a round at ten nanoseconds a tag.
    let repeats = (200_000 / tags).max(64).next_multiple_of(sections.len());
    let split = least(repeats, |at| {
        let tags = &split[at % split.len()];
        contexts
            .find_split(Kind::Counter, name, tags, OriginId::NONE)
            .is_some()
    });
    let cold = least(repeats, |at| {
        let tags = sections[at % sections.len()].as_bytes();
        contexts.find(Kind::Counter, name, tags, OriginId::NONE).is_some()
    });
    let hot = if tails[0].len() < weir_context::ALIAS_KEY_BYTES_MAX - 64 {
        least(repeats, |at| {
            let key = &keys[at % keys.len()];
            let hash = contexts.alias_hash(key);
            contexts.find_alias(hash, key).is_some()
        })
    } else {
        // Longer lines have no alias: they take the path of the previous row.
        f64::NAN
    };
    [split, cold, hot]
}

fn least(repeats: usize, mut look_up: impl FnMut(usize) -> bool) -> f64 {
    (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for at in 0..repeats {
                assert!(black_box(look_up(black_box(at))), "a known context is found");
            }
            start.elapsed().as_secs_f64() * 1e9 / repeats as f64
        })
        .fold(f64::INFINITY, f64::min)
}
