//! Nanoseconds per message from packet to bucket, without sockets: where the time beyond the kernel's goes.
//!
//! `cargo bench -p weir-ingest -- [CONTEXTS] [MESSAGES] [ROUNDS] [permute|dist] [noalias] [rules=N] [origin]`. Prints a line per round; compare rounds of one run only.

use std::fmt::Write;
use std::time::{Duration, Instant};

use weir_aggregate::AggregatorSettings;
use weir_context::{Admission, ContextLimits, HashSecret, OriginQuestion, RuleSet, RuleSettings, Rules};
use weir_ingest::IngestCounter;
use weir_ingest::{Hurry, Ingest, IngestSettings, OriginAnswer, ProcessFound, Received};
use weir_protocol::ParseOptions;
use weir_rules::{Definitions, Effect, Kinds, Pattern, Rule, ValueAction, ValueRule};

struct Random(u64);

impl Random {
    fn next(&mut self, bound: usize) -> usize {
        // SplitMix64; the high bits of the product are uniform enough for load.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * bound as u128) >> 64) as usize
    }
}

struct Context {
    name: String,
    kind: &'static str,
    tags: Vec<String>,
}

fn contexts(count: usize, dist: bool, random: &mut Random) -> Vec<Context> {
    let kinds: Vec<&str> = [("c", 208), ("g", 66), ("d", 72), ("s", 9), ("h", 1)]
        .iter()
        .flat_map(|&(kind, weight)| std::iter::repeat_n(kind, weight))
        .collect();
    // Lengths differ as they do in real traffic: what branches on them must not look better than it is.
    let words: Vec<String> = (0..64).map(|_| word(random, 3, 12)).collect();
    let values: Vec<String> = (0..count / 3 + 17).map(|_| word(random, 3, 10)).collect();
    (0..count)
        .map(|i| Context {
            name: (0..2 + random.next(3)).fold(format!("m{i}"), |name, _| {
                format!("{name}.{}", words[random.next(words.len())])
            }),
            kind: if dist {
                "d"
            } else {
                kinds[random.next(kinds.len())]
            },
            tags: (0..7)
                .map(|t| {
                    format!(
                        "{}:{}",
                        words[(i + t * 9) % words.len()],
                        values[random.next(values.len())]
                    )
                })
                .collect(),
        })
        .collect()
}

fn word(random: &mut Random, least: usize, most: usize) -> String {
    let length = least + random.next(most - least + 1);
    (0..length)
        .map(|_| char::from(b'a' + random.next(26) as u8))
        .collect()
}

fn packets(
    contexts: &[Context],
    messages: usize,
    permute: bool,
    dist: bool,
    random: &mut Random,
) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut packet = String::new();
    for _ in 0..messages {
        let context = &contexts[random.next(contexts.len())];
        let mut line = String::new();
        let _ = match context.kind {
            "s" => write!(line, "{}:user-{}|s", context.name, random.next(500)),
            "d" if dist => {
                line.push_str(&context.name);
                for _ in 0..=random.next(8) {
                    let _ = write!(line, ":{}.{}", random.next(1000), random.next(10));
                }
                write!(line, "|d")
            }
            "d" => write!(
                line,
                "{}:{}.{}|d",
                context.name,
                random.next(1000),
                random.next(100)
            ),
            kind if random.next(3) == 0 => {
                write!(
                    line,
                    "{}:{}.{}|{kind}",
                    context.name,
                    random.next(10_000),
                    random.next(1000)
                )
            }
            kind => write!(line, "{}:{}|{kind}", context.name, random.next(10_000)),
        };
        if random.next(10) == 0 && context.kind != "g" {
            line.push_str("|@0.5");
        }
        let mut order: Vec<usize> = (0..7).collect();
        if permute {
            for at in (1..7).rev() {
                order.swap(at, random.next(at + 1));
            }
        }
        for (at, tag) in order.iter().enumerate() {
            line.push_str(if at == 0 { "|#" } else { "," });
            line.push_str(&context.tags[*tag]);
        }
        if packet.len() + line.len() + 1 > 8192 {
            packets.push(std::mem::take(&mut packet).into_bytes());
        }
        packet.push_str(&line);
        packet.push('\n');
    }
    packets.push(packet.into_bytes());
    packets
}

/// So many rules, a tenth of the first thousand of them expressions, each of which matches names of its own. They leave every
/// metric as it is, so that the work that remains is the same whatever their number.
fn rules(count: usize) -> Rules {
    let rule = |at: usize| Rule {
        name: format!("rule {at}"),
        pattern: if at % 10 == 9 && at < 1000 {
            Pattern::Regex(format!("m{at}\\.[^.]+\\..*"))
        } else {
            Pattern::Wildcard(format!("m{at}.*.*"))
        },
        kinds: Kinds::ALL,
        effect: Effect {
            values: vec![ValueRule {
                tag: "tag_0".into(),
                only: vec![],
                action: ValueAction::Keep,
            }],
            ..Effect::default()
        },
        last: false,
        dry_run: false,
    };
    let definitions = Definitions {
        profiles: vec![],
        rules: (0..count).map(rule).collect(),
        ..Definitions::default()
    };
    let set = RuleSet::new(definitions, &[], weir_rules::RuleLimits::default()).expect("they are valid");
    Rules::new(RuleSettings {
        set: std::sync::Arc::new(set),
        ..RuleSettings::default()
    })
}

/// Processes of one container that take turns with every packet, as with `origin`.
const SENDERS: i32 = 4;

/// Lets the worker know its senders and the tags of their container.
fn tell_senders(ingest: &mut Ingest) {
    ingest.enable_origins(false);
    for pid in 1..=SENDERS {
        let nothing = Received {
            bytes: b"",
            listener: 0,
            truncated: false,
            received: 1,
        };
        ingest.packet_from(nothing, pid);
        let found = ProcessFound::Container("bench".into());
        ingest.answer(OriginAnswer::Process { pid, found });
    }
    for question in ingest.contexts_mut().take_origin_questions() {
        if let OriginQuestion::Tags { ticket, .. } = question {
            let tags = ["image_name:shop", "kube_namespace:shop", "service:cart"];
            ingest.answer(OriginAnswer::Tags {
                ticket,
                tags: tags.map(Box::from).into(),
                settled: true,
                admission: Admission::Undecided,
            });
        }
    }
    ingest.feed_parked(1, Hurry::None);
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let number = |at: usize, default: usize| {
        arguments
            .get(at)
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let (context_count, message_count) = (number(0, 1000), number(1, 1_000_000));
    let rounds = number(2, 6) as u64;
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let (permute, dist) = (has("permute"), has("dist"));
    let rule_count = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix("rules=")?.parse().ok())
        .unwrap_or(0);
    let mut random = Random(42);
    let contexts = contexts(context_count, dist, &mut random);
    let packets = packets(&contexts, message_count, permute, dist, &mut random);
    let bytes: usize = packets.iter().map(Vec::len).sum();
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: rules(rule_count),
        limits: ContextLimits {
            alias_bytes_max: if has("noalias") { 0 } else { usize::MAX },
            ..ContextLimits::default()
        },
        secret: HashSecret::from_random(1, 2),
        gauge_deltas: false,
        listeners: vec![ParseOptions::default()],
    };
    let mut slot = Vec::new();
    let mut now = 1_700_000_000;
    let mut ingest = Ingest::new(settings, now);
    let (by_sender, mut sender) = (has("origin"), 0);
    if by_sender {
        tell_senders(&mut ingest);
    }
    println!(
        "{context_count} contexts, {message_count} messages of {} bytes",
        bytes / message_count
    );
    for round in 0..rounds {
        let mut spent = Duration::ZERO;
        for packet in &packets {
            // As the kernel leaves it: just written, and so in the cache.
            slot.clear();
            slot.extend_from_slice(packet);
            let start = Instant::now();
            let packet = Received {
                bytes: &slot,
                listener: 0,
                truncated: false,
                received: 1,
            };
            if by_sender {
                sender = sender % SENDERS + 1;
                ingest.packet_from(packet, sender);
            } else {
                ingest.packet(packet);
            }
            spent += start.elapsed();
        }
        let packets_ns = spent.as_nanos() as f64 / message_count as f64;
        let start = Instant::now();
        now += 10;
        assert!(ingest.advance(now));
        let mut rows = 0;
        while ingest.is_draining() {
            rows += ingest.drain(usize::MAX).map_or(0, |batch| batch.len());
        }
        let flush_ms = start.elapsed().as_secs_f64() * 1e3;
        let aliases = ingest.contexts().aliases();
        println!(
            "round {round}: {packets_ns:.1} ns per message, flush of {rows} rows {flush_ms:.1} ms, {aliases} aliases"
        );
        assert_eq!(
            ingest.counts()[0][IngestCounter::Messages],
            message_count as u64 * (round + 1)
        );
        assert!(ingest.counts()[0].balance());
    }
    let (counts, matching_ns) = ingest.contexts().rule_counts();
    let hits: u64 = counts.iter().map(|rule| rule.hits).sum();
    assert!(hits > 0 || rule_count == 0, "no rule applied");
    if rule_count > 0 {
        let spent: u64 = counts.iter().map(|rule| rule.nanoseconds).sum();
        println!(
            "{rule_count} rules applied {hits} times; per context {} ns to find them, {} ns to apply them",
            matching_ns / context_count as u64,
            spent / context_count as u64
        );
    }
}
