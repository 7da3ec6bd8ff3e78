//! Cost of mapping one new name with many mappings. `cargo bench -p weir-rules`.
//!
//! The first shape is that of statsd_exporter's benchmarks, so that the results can be compared: patterns of one part each and a capture,
//! of which the last matches.

use std::borrow::Cow;
use std::time::Instant;

use weir_protocol::Kind;
use weir_rules::{
    Applied, Definitions, Kinds, Mapping, Pattern, Profile, RuleLimits, RuleSet, Scratch, Subject, Untraced,
};

fn mapping(pattern: Pattern) -> Mapping {
    Mapping {
        pattern,
        kinds: Kinds::ALL,
        name: "mapped.${1}".into(),
        tags: vec![("first".into(), "$1".into())],
        same_tags: weir_rules::SameTags::default(),
        delta_expiry: None,
        drop: false,
        dry_run: false,
    }
}

fn run(title: &str, patterns: Vec<Pattern>, names: &[String]) {
    let count = patterns.len();
    let profile = Profile {
        name: "bench".into(),
        prefix: "*".into(),
        mappings: patterns.into_iter().map(mapping).collect(),
    };
    let definitions = Definitions {
        profiles: vec![profile],
        rules: vec![],
        ..Definitions::default()
    };
    let start = Instant::now();
    let set = RuleSet::new(definitions, &[], RuleLimits::default()).expect("they are valid");
    let compile = start.elapsed();
    let (mut scratch, mut applied) = (Scratch::default(), Applied::default());
    let mut best = f64::MAX;
    let mut first = 0.0;
    for round in 0..10 {
        let start = Instant::now();
        let mut mapped = 0;
        for name in names {
            let mut subject = Subject {
                kind: Kind::Counter,
                name: Cow::Borrowed(name),
                host: None,
                tags: Vec::new(),
                suffix_mask: 0,
                delta_expiry: None,
                tag_styles: None,
            };
            applied.clear();
            set.map(&mut subject, None, &mut scratch, &mut applied, &mut Untraced);
            mapped += usize::from(subject.name.starts_with("mapped."));
        }
        assert_eq!(mapped, names.len());
        let spent = start.elapsed().as_nanos() as f64 / names.len() as f64;
        if round == 0 {
            first = spent;
        }
        best = best.min(spent);
    }
    println!(
        "{title}: {count} mappings, {} KiB, compiled in {:.1} ms; {best:.0} ns per name, {first:.0} ns in the first round",
        set.heap_bytes() / 1024,
        compile.as_secs_f64() * 1e3
    );
}

fn main() {
    let glob = |text: String| Pattern::Wildcard(text);
    for count in [10, 100, 1000, 10_000] {
        let patterns = (0..count).map(|n| glob(format!("metric{n}.*"))).collect();
        run("globs", patterns, &[format!("metric{}.a", count - 1)]);
    }
    let names: Vec<String> = (0..1000)
        .map(|n| format!("service{}.host{n}.requests.get", n % 100))
        .collect();
    for count in [100, 1000, 10_000] {
        let patterns = (0..count).map(|n| {
            glob(format!(
                "service{}.*.{}.*",
                n % 100,
                if n < 100 {
                    "requests".to_owned()
                } else {
                    format!("x{n}")
                }
            ))
        });
        run("globs with backtracking elsewhere", patterns.collect(), &names);
    }
    for count in [10, 100, 1000] {
        let patterns = (0..count)
            .map(|n| Pattern::Regex(format!("metric{n}\\.([^.]*)")))
            .collect();
        run("expressions", patterns, &[format!("metric{}.a", count - 1)]);
    }
    let patterns = (0..1000)
        .map(|n| glob(format!("other{n}.*")))
        .chain((0..100).map(|n| Pattern::Regex(format!("service{n}\\.(\\w+)\\.requests\\.(\\w+)"))));
    run("1000 globs and 100 expressions", patterns.collect(), &names);
}
