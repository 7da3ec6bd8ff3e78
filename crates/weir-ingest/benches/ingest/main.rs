//! Nanoseconds per message from packet to bucket, without sockets: where the time beyond the kernel's goes.
//!
//! `cargo bench -p weir-ingest -- [CONTEXTS] [MESSAGES] [ROUNDS] [permute|dist] [noalias] [rules=N] [origin] [tags=N]
//! [values=short|floats|integers|exponents|interner]`; the last also has the contexts of the string interner's experiments. Prints a line per round and, behind the first, medians over packets and over slices of flushes; compare runs that took turns only.

use std::time::{Duration, Instant};

use weir_aggregate::AggregatorSettings;
use weir_context::{Admission, ContextLimits, HashSecret, OriginQuestion, RuleSet, RuleSettings, Rules};
use weir_ingest::IngestCounter;
use weir_ingest::{Ingest, IngestSettings, OriginAnswer, ProcessContainer, Received, WaitLimit};
use weir_protocol::ParseOptions;
use weir_rules::{Definitions, Effect, Kinds, Pattern, Rule, ValueAction, ValueRule};

mod figures;
mod workload;

use figures::{arguments, median, number};
use workload::{Random, Shape, Values, contexts, interner_contexts, packets};

/// The agent's.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

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
fn distinguish_senders(ingest: &mut Ingest) {
    ingest.enable_origins(false);
    for pid in 1..=SENDERS {
        let nothing = Received {
            bytes: b"",
            listener: 0,
            truncated: false,
            received: 1,
        };
        ingest.packet_from(nothing, pid);
        let found = ProcessContainer::Container("bench".into());
        ingest.answer(OriginAnswer::Process { pid, found });
    }
    for question in ingest.contexts_mut().take_origin_questions() {
        if let OriginQuestion::Subscribe { ticket, .. } = question {
            let tags = ["image_name:shop", "kube_namespace:shop", "service:cart"];
            ingest.answer(OriginAnswer::Tags {
                ticket,
                tags: tags.map(Box::from).into(),
                settled: true,
                admission: Admission::Undecided,
            });
        }
    }
    ingest.feed_parked(1, WaitLimit::Timeout);
}

/// Packets of a receive call: as many as the kernel queues on a Unix socket.
const PACKETS_TOGETHER: usize = 10;

/// Contexts of one slice of a flush, as a worker hands them over between two receive turns.
const SLICE_CONTEXTS: usize = 256;

/// Of fewer slices most would not be full; the flush as a whole counts as one then.
const SLICES_MIN: usize = 16;

fn main() {
    let arguments = arguments();
    let number = |at, default| number(&arguments, at, default);
    let (context_count, message_count) = (number(0, 1000), number(1, 1_000_000));
    let rounds = number(2, 6) as u64;
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let values = arguments
        .iter()
        .find_map(|argument| argument.strip_prefix("values="));
    let shape = Shape {
        permute: has("permute"),
        dist: has("dist"),
        values: values.map_or(Values::Mixed, |name| {
            Values::from_name(name).expect("values that exist")
        }),
    };
    let named = |name: &str| {
        let mut values = arguments
            .iter()
            .filter_map(|argument| argument.strip_prefix(name));
        values.next().and_then(|value| value.parse().ok())
    };
    let rule_count = named("rules=").unwrap_or(0);
    let tag_count = named("tags=").unwrap_or(7);
    let mut random = Random(42);
    let contexts = match shape.values {
        Values::Interner => interner_contexts(context_count, &mut random),
        _ => contexts(context_count, tag_count, shape.dist, &mut random),
    };
    let packets = packets(&contexts, message_count, shape, &mut random);
    let bytes: usize = packets.iter().map(Vec::len).sum();
    let message_bytes = bytes as f64 / message_count as f64;
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: rules(rule_count),
        limits: ContextLimits {
            alias_bytes_max: if has("noalias") { 0 } else { usize::MAX },
            ..ContextLimits::default()
        },
        secret: HashSecret::from_random(1, 2),
        listeners: vec![ParseOptions::default().into()],
    };
    let mut slots: [Vec<u8>; PACKETS_TOGETHER] = Default::default();
    let mut now = 1_700_000_000;
    let mut ingest = Ingest::new(settings, now);
    let (by_sender, mut sender) = (has("origin"), 0);
    if by_sender {
        distinguish_senders(&mut ingest);
    }
    println!(
        "{context_count} contexts, {message_count} messages of {} bytes",
        bytes / message_count
    );
    let mut held = 0;
    let mut of_packets = Vec::new();
    let mut of_slices = Vec::new();
    for round in 0..rounds {
        let (mut spent, mut longest) = (Duration::ZERO, Duration::ZERO);
        for batch in packets.chunks(PACKETS_TOGETHER) {
            // As the kernel leaves them: just written, and so in the cache.
            for (slot, packet) in slots.iter_mut().zip(batch) {
                slot.clear();
                slot.extend_from_slice(packet);
            }
            let received = slots.each_ref().map(|slot| Received {
                bytes: slot,
                listener: 0,
                truncated: false,
                received: 1,
            });
            let received = &received[..batch.len()];
            let start = Instant::now();
            if by_sender {
                for packet in received {
                    sender = sender % SENDERS + 1;
                    ingest.packet_from(*packet, sender);
                }
            } else {
                ingest.packets(received);
            }
            let took = start.elapsed();
            spent += took;
            longest = longest.max(took);
            if round > 0 {
                // By its length, which is known, and not by its messages: they differ little.
                let bytes: usize = batch.iter().map(Vec::len).sum();
                of_packets.push(took.as_nanos() as f64 * message_bytes / bytes as f64);
            }
        }
        held = ingest.contexts().heap_bytes() + ingest.aggregator().heap_bytes();
        let packets_ns = spent.as_nanos() as f64 / message_count as f64;
        let start = Instant::now();
        now += 10;
        assert!(ingest.advance(now));
        let mut rows = 0;
        while ingest.is_draining() {
            let slice = Instant::now();
            rows += ingest.drain(SLICE_CONTEXTS).map_or(0, |batch| batch.len());
            if round > 0 && context_count >= SLICES_MIN * SLICE_CONTEXTS {
                of_slices.push(slice.elapsed().as_nanos() as f64 / SLICE_CONTEXTS as f64);
            }
        }
        if round > 0 && context_count < SLICES_MIN * SLICE_CONTEXTS {
            of_slices.push(start.elapsed().as_nanos() as f64 / rows as f64);
        }
        let flush_ms = start.elapsed().as_secs_f64() * 1e3;
        let aliases = ingest.contexts().aliases();
        println!(
            "round {round}: {packets_ns:.1} ns per message, longest packet {:.2} ms, flush of {rows} rows {flush_ms:.1} ms, {aliases} aliases",
            longest.as_secs_f64() * 1e3
        );
        assert_eq!(
            ingest.counts()[0][IngestCounter::Messages],
            message_count as u64 * (round + 1)
        );
        assert!(ingest.counts()[0].balance());
    }
    if rounds > 1 {
        println!(
            "median packet {:.1} ns per message, median slice {:.0} ns per context, {} bytes per context",
            median(&mut of_packets),
            median(&mut of_slices),
            held / ingest.contexts().len().max(1)
        );
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
