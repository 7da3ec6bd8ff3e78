//! Known tags in any order, any number of them, with duplicates: the fast look-up finds what the slow path made, and nothing for sets that
//! differ in one tag.

use std::collections::HashMap;

use proptest::prelude::*;
use weir_context::{
    ContextId, ContextLimits, Contexts, HashSecret, Level, Lookup, OriginId, RuleSettings, Rules,
};
use weir_protocol::{Kind, Message, ParseOptions, parse_line};

fn resolve(contexts: &mut Contexts, section: &str) -> ContextId {
    let options = ParseOptions {
        origin_client: true,
        timestamps: true,
        eol_required: false,
    };
    let line = format!("name:1|c|#{section}");
    let Ok(Message::Metric(metric)) = parse_line(line.as_bytes(), &options) else {
        panic!("{line} is valid");
    };
    match contexts.resolve(&metric, OriginId::NONE, 0) {
        Lookup::Context(id, _) => id,
        other => panic!("{other:?}"),
    }
}

fn find(contexts: &mut Contexts, tags: &[String]) -> [Option<ContextId>; 2] {
    let section = tags.join(",");
    let split: Vec<&[u8]> = tags.iter().map(|tag| tag.as_bytes()).collect();
    [
        contexts.find(Kind::Counter, b"name", section.as_bytes(), OriginId::NONE),
        contexts.find_split(Kind::Counter, b"name", &split, OriginId::NONE),
    ]
    .map(|found| Some(contexts.ordinary_context(found?).expect("no rule is set")))
}

fn canonical(tags: &[String]) -> Vec<String> {
    let mut tags = tags.to_vec();
    tags.sort();
    tags.dedup();
    tags
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]
    #[test]
    fn resolved_metrics_are_found_and_no_others(
        sets in prop::collection::vec(prop::collection::vec(0u16..300, 1..90), 1..6),
        seed in any::<u64>(),
    ) {
        for level in Level::available() {
            let secret = HashSecret::from_random(seed, !seed).at_level(level);
            let mut contexts = Contexts::new(secret, Rules::new(RuleSettings::default()), ContextLimits::default());
            let mut made: HashMap<Vec<String>, ContextId> = HashMap::new();
            let texts: Vec<Vec<String>> = sets
                .iter()
                .map(|set| set.iter().map(|tag| format!("t{tag}:{}", "v".repeat(usize::from(tag % 70)))).collect())
                .collect();
            for tags in &texts {
                let id = resolve(&mut contexts, &tags.join(","));
                prop_assert_eq!(*made.entry(canonical(tags)).or_insert(id), id);
            }
            for tags in &texts {
                let mut variants = vec![tags.clone(), canonical(tags)];
                variants.push(tags.iter().rev().chain(tags).cloned().collect());
                // Sets that differ in one tag: one added, one removed, one replaced, or one duplicated in place of another.
                variants.push(tags.iter().cloned().chain(["t1:v".to_owned()]).collect());
                variants.push(tags[1..].to_vec());
                variants.push(tags[1..].iter().cloned().chain(["t2:vv".to_owned()]).collect());
                let last = tags[tags.len() - 1].clone();
                variants.push(tags[1..].iter().cloned().chain([last]).collect());
                for variant in variants.iter().filter(|variant| !variant.is_empty()) {
                    let expected = made.get(&canonical(variant)).copied();
                    prop_assert_eq!(find(&mut contexts, variant), [expected; 2], "{:?}", variant);
                }
            }
        }
    }
}
