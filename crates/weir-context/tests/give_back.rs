//! Bursts of contexts that never return: their memory is freed, and no stale id leads to a context that took their place.

use std::collections::HashMap;

use weir_context::{
    AliasKey, ContextId, ContextLimits, Contexts, HashSecret, Lookup, OriginId, PARTITIONS, RawMatch,
    RuleSettings, Rules,
};
use weir_protocol::{Kind, Message, ParseOptions, parse_line};

const BURST: usize = 20_000;

fn contexts() -> Contexts {
    Contexts::new(
        HashSecret::from_random(5, 6),
        Rules::new(RuleSettings::default()),
        ContextLimits::default(),
    )
}

struct Text {
    name: String,
    tail: String,
}

fn text(burst: usize, number: usize) -> Text {
    Text {
        name: format!("burst{burst}.metric{number}"),
        tail: format!("|#env:prod,burst:{burst},number:{number}"),
    }
}

fn alias(text: &Text) -> AliasKey<'_> {
    AliasKey {
        head: AliasKey::head(Kind::Counter, OriginId::NONE),
        name: text.name.as_bytes(),
        tail: text.tail.as_bytes(),
    }
}

fn make(contexts: &mut Contexts, text: &Text) -> (ContextId, RawMatch) {
    let options = ParseOptions {
        origin_client: true,
        timestamps: true,
        eol_required: false,
    };
    let line = format!("{}:1|c{}", text.name, text.tail);
    let Ok(Message::Metric(metric)) = parse_line(line.as_bytes(), &options) else {
        unreachable!("the line is valid");
    };
    let Lookup::Context(id, raw) = contexts.resolve(&metric, OriginId::NONE, 0) else {
        panic!("there is room");
    };
    let key = alias(text);
    contexts.remember_alias(contexts.alias_hash(&key), &key, raw);
    (id, raw)
}

fn look_up(contexts: &mut Contexts, text: &Text) -> Option<ContextId> {
    let key = alias(text);
    let raw = contexts.find_alias(contexts.alias_hash(&key), &key)?;
    match contexts.resolve_raw(raw, 0) {
        Some(Lookup::Context(id, _)) => Some(id),
        Some(other) => panic!("{other:?}"),
        None => None,
    }
}

/// Removes every context except those that `keep` selects.
fn remove(contexts: &mut Contexts, keep: impl Fn(ContextId) -> bool) {
    for partition in 0..PARTITIONS {
        let mut position = 0;
        while let Some(live) = contexts.live(partition).get(position) {
            if keep(live.id()) {
                position += 1;
            } else {
                contexts.remove(partition, position);
            }
        }
    }
}

#[test]
fn memory_of_a_burst_is_freed() {
    let mut contexts = contexts();
    let idle = contexts.heap_bytes();
    for number in 0..BURST {
        make(&mut contexts, &text(0, number));
    }
    let full = contexts.heap_bytes();
    remove(&mut contexts, |_| false);
    contexts.compact();
    // Three flushes sweep the aliases away.
    for _ in 0..4 * PARTITIONS {
        contexts.sweep_aliases();
    }
    let after = contexts.heap_bytes();
    assert!(full > idle + BURST * 200, "{idle} {full}");
    assert!(
        after < idle + full / 50,
        "{idle} before, {full} with the burst, {after} after"
    );
}

#[test]
fn aliases_of_a_burst_do_not_resolve_to_the_next() {
    let mut contexts = contexts();
    let mut known: HashMap<usize, ContextId> = HashMap::new();
    for burst in 0..4 {
        let mut made = HashMap::new();
        for number in 0..BURST {
            let text = text(burst, number);
            let (id, _) = make(&mut contexts, &text);
            made.insert(number, id);
        }
        for number in 0..BURST {
            assert_eq!(look_up(&mut contexts, &text(burst, number)), Some(made[&number]));
            // No sweep has run: the aliases of earlier bursts exist, their contexts do not.
            for earlier in 0..burst {
                let found = look_up(&mut contexts, &text(earlier, number));
                let kept = (earlier == 0).then(|| known.get(&number).copied()).flatten();
                assert_eq!(found, kept, "burst {earlier}, number {number}");
            }
        }
        if burst == 0 {
            known.extend(
                made.iter()
                    .filter(|&(&number, _)| number < 10)
                    .map(|(&number, &id)| (number, id)),
            );
        }
        // Some contexts of the first burst stay.
        let kept: Vec<ContextId> = known.values().copied().collect();
        remove(&mut contexts, |id| kept.contains(&id));
        contexts.compact();
        for (&number, &id) in &known {
            assert_eq!(look_up(&mut contexts, &text(0, number)), Some(id));
        }
    }
}
