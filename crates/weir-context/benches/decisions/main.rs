//! The experiments behind the data structures of this crate. Each prints a Markdown table; `docs/decisions` has the results.
//!
//! `cargo bench -p weir-context --bench decisions -- hash|eviction|growth|sharing [SEED]`. Compare only figures of the same run.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock and prints, and one of the designs compared has locks"
)]

mod eviction;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hashbrown::HashTable;
use weir_context::{
    AliasKey, ContextLimits, Contexts, HashSecret, Level, Lookup, OriginId, RuleSettings, Rules,
};
use weir_protocol::{Kind, Message, ParseOptions, parse_line};

pub struct Random(u64);

impl Random {
    pub fn word(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let seed = arguments
        .get(1)
        .map_or(7, |seed| seed.parse().expect("the seed is a number"));
    println!("seed {seed}");
    match arguments.first().map_or("all", String::as_str) {
        "hash" => hash(seed),
        "eviction" => eviction::compare(seed),
        "growth" => growth(seed),
        "sharing" => sharing(seed),
        _ => {
            hash(seed);
            eviction::compare(seed);
            growth(seed);
            sharing(seed);
        }
    }
}

/// The identity of a message in the alias cache: a name, and a tail of about seven tags.
struct Key {
    name: String,
    tail: String,
}

fn keys(count: usize, random: &mut Random) -> Vec<Key> {
    let mut word = |least: u64, most: u64| -> String {
        let length = least + random.below(most - least + 1);
        (0..length)
            .map(|_| char::from(b'a' + random.below(26) as u8))
            .collect()
    };
    (0..count)
        .map(|at| Key {
            name: format!("{}.{}.{at}", word(3, 10), word(5, 20)),
            tail: (0..7).fold(String::from("|#"), |tail, tag| {
                format!(
                    "{tail}{}{}:{}",
                    if tag > 0 { "," } else { "" },
                    word(3, 9),
                    word(3, 12)
                )
            }),
        })
        .collect()
}

type Hash<'a> = Box<dyn Fn(&Key, u64) -> u64 + 'a>;

fn hashes(seed: u64) -> Vec<(String, Hash<'static>)> {
    let mut hashes: Vec<(String, Hash)> = vec![(
        "XXH3, 64 bits, with a seed".into(),
        Box::new(|key, word| {
            let name = xxhash_rust::xxh3::xxh3_64_with_seed(key.name.as_bytes(), word);
            xxhash_rust::xxh3::xxh3_64_with_seed(key.tail.as_bytes(), name)
        }),
    )];
    for level in Level::available() {
        let secret = HashSecret::from_random(seed, !seed).at_level(level);
        let ours = move |key: &Key, word| secret.pair(key.name.as_bytes(), key.tail.as_bytes(), word);
        hashes.push((format!("ours, {level:?}"), Box::new(ours)));
    }
    let sip = RandomState::new();
    let standard = move |key: &Key, word| {
        let mut hasher = sip.build_hasher();
        hasher.write_u64(word);
        hasher.write(key.name.as_bytes());
        hasher.write(key.tail.as_bytes());
        hasher.finish()
    };
    hashes.push(("SipHash-1-3 (the standard library's)".into(), Box::new(standard)));
    hashes
}

fn nanoseconds(count: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e9 / count as f64
}

/// Time per key relative to the first hash in the same round, with independent keys and with each key depending on the previous one. The
/// hashes take turns, so a disturbance hits all of them.
fn hash(seed: u64) {
    const ROUNDS: usize = 2001;
    let keys = keys(1000, &mut Random(seed));
    let bytes: usize = keys.iter().map(|key| key.name.len() + key.tail.len()).sum();
    println!(
        "\n{} keys of {} bytes on average, all lengths mixed; median of {ROUNDS} rounds, and the middle half of them",
        keys.len(),
        bytes / keys.len()
    );
    let hashes = hashes(seed);
    let mut rounds: Vec<[Vec<f64>; 2]> = vec![[Vec::new(), Vec::new()]; hashes.len()];
    for _ in 0..ROUNDS {
        for ((_, hash), [throughput, latency]) in hashes.iter().zip(&mut rounds) {
            throughput.push(nanoseconds(keys.len(), || {
                for key in &keys {
                    black_box(hash(key, 0));
                }
            }));
            latency.push(nanoseconds(keys.len(), || {
                let mut last = 0;
                for key in &keys {
                    last = hash(key, last & 1);
                }
                black_box(last);
            }));
        }
    }
    println!("| hash | independent | each waits for the one before |\n|---|---|---|");
    for ((what, _), row) in hashes.iter().zip(&rounds) {
        let cells: Vec<String> = row
            .iter()
            .zip(&rounds[0])
            .map(|(own, first)| ratio(own, first))
            .collect();
        println!("| {what} | {} |", cells.join(" | "));
    }
}

/// Median and quartiles of the ratios of the rounds.
fn ratio(own: &[f64], first: &[f64]) -> String {
    let mut ratios: Vec<f64> = own.iter().zip(first).map(|(own, first)| own / first).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |share: usize| ratios[(ratios.len() - 1) * share / 4];
    format!("{:.2} ({:.2} to {:.2})", at(2), at(1), at(3))
}

/// The longest time one insertion takes while a table grows to a million entries.
fn growth(seed: u64) {
    const ENTRIES: usize = 1_000_000;
    println!(
        "\n{ENTRIES} entries of 32 bytes inserted one by one, the longest single insertion of the best of 5 runs"
    );
    println!("| shards | longest ms | bytes at the end | bytes with one entry |\n|---|---|---|---|");
    type Entry = [u64; 4];
    for shards in [1, 16, 64, 256] {
        let mut longest = Duration::MAX;
        let mut bytes = 0;
        for _ in 0..5 {
            let mut random = Random(seed);
            let mut tables: Vec<HashTable<Entry>> = (0..shards).map(|_| HashTable::new()).collect();
            let mut worst = Duration::ZERO;
            for _ in 0..ENTRIES {
                let hash = random.word();
                // The table uses the low bits and the highest seven. Other bits select the shard.
                let table = &mut tables[(hash >> 40) as usize % shards];
                let start = Instant::now();
                table.insert_unique(hash, [hash, 0, 0, 0], |entry| entry[0]);
                worst = worst.max(start.elapsed());
            }
            bytes = tables.iter().map(HashTable::allocation_size).sum();
            longest = longest.min(worst);
        }
        let mut one: HashTable<Entry> = HashTable::new();
        one.insert_unique(1, [1, 0, 0, 0], |entry| entry[0]);
        println!(
            "| {shards} | {:.2} | {bytes} | {} |",
            longest.as_secs_f64() * 1e3,
            one.allocation_size()
        );
    }
}

/// Look-ups of known messages from several threads: each with its own tables, or all in shared tables of which a look-up locks a 64th.
fn sharing(seed: u64) {
    const CONTEXTS: usize = 10_000;
    const LOOK_UPS: usize = 2_000_000;
    const SHARDS: usize = 64;
    let keys = keys(CONTEXTS, &mut Random(seed));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "\n{CONTEXTS} contexts, {LOOK_UPS} look-ups per thread, {cores} cores; million look-ups a second in all, best of 5"
    );
    println!("| threads | own tables | shared, 64 locks |\n|---|---|---|");
    for threads in [1, 2, 4, 8] {
        let own = best_rate(threads, LOOK_UPS, |thread| {
            let mut contexts = known(keys.iter());
            let keys = &keys;
            let mut random = Random(seed + thread as u64);
            Box::new(move || {
                let key = &keys[random.below(CONTEXTS as u64) as usize];
                assert!(look_up(&mut contexts, key), "a known context is found");
            })
        });
        let shards: Vec<Mutex<Contexts>> = (0..SHARDS)
            .map(|shard| Mutex::new(known(keys.iter().skip(shard).step_by(SHARDS))))
            .collect();
        let shared = best_rate(threads, LOOK_UPS, |thread| {
            let (keys, shards) = (&keys, &shards);
            let mut random = Random(seed + thread as u64);
            Box::new(move || {
                let at = random.below(CONTEXTS as u64) as usize;
                let mut contexts = shards[at % SHARDS].lock().expect("nobody panics");
                assert!(look_up(&mut contexts, &keys[at]), "a known context is found");
            })
        });
        println!("| {threads} | {:.1} | {:.1} |", own / 1e6, shared / 1e6);
    }
}

/// Look-ups a second of all threads together, best of five rounds.
fn best_rate<'a>(
    threads: usize,
    count: usize,
    worker: impl Fn(usize) -> Box<dyn FnMut() + Send + 'a>,
) -> f64 {
    let mut workers: Vec<_> = (0..threads).map(worker).collect();
    (0..5)
        .map(|_| {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for worker in &mut workers {
                    scope.spawn(|| (0..count).for_each(|_| worker()));
                }
            });
            (threads * count) as f64 / start.elapsed().as_secs_f64()
        })
        .fold(0.0, f64::max)
}

fn alias(key: &Key) -> AliasKey<'_> {
    AliasKey {
        head: AliasKey::head(Kind::Counter, OriginId::NONE),
        name: key.name.as_bytes(),
        tail: key.tail.as_bytes(),
    }
}

fn look_up(contexts: &mut Contexts, key: &Key) -> bool {
    let key = alias(key);
    let hash = contexts.alias_hash(&key);
    contexts.find_alias(hash, &key).is_some()
}

/// Tables that know these messages.
fn known<'a>(keys: impl Iterator<Item = &'a Key>) -> Contexts {
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
    let mut lines: HashMap<String, &Key> = HashMap::new();
    for key in keys {
        lines.insert(format!("{}:1|c{}", key.name, key.tail), key);
    }
    for (line, key) in lines {
        let Ok(Message::Metric(metric)) = parse_line(line.as_bytes(), &options) else {
            unreachable!("the line is valid");
        };
        let Lookup::Context(_, raw) = contexts.resolve(&metric, OriginId::NONE, 0) else {
            unreachable!("there is room");
        };
        let key = alias(key);
        contexts.remember_alias(contexts.alias_hash(&key), &key, raw);
    }
    contexts
}
