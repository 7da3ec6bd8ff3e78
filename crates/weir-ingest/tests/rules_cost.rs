//! The cost of a message of a known context must not depend on the number of rules. Counted by callgrind, which other work
//! on the machine cannot disturb; without it (`scripts/install-test-deps.sh`) the test says so and passes.

use std::process::Command;

use weir_aggregate::AggregatorSettings;
use weir_context::{ContextLimits, HashSecret, RuleSet, RuleSettings, Rules};
use weir_ingest::IngestCounter;
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_protocol::ParseOptions;
use weir_rules::{Definitions, Effect, Kinds, Pattern, Rule, ValueAction, ValueRule};

const MESSAGES_PER_PACKET: usize = 40;

/// The child's numbers of rules and of contexts.
const RULES: &str = "WEIR_TEST_RULES";
const CONTEXTS: &str = "WEIR_TEST_CONTEXTS";

/// So many rules, a tenth of the first thousand of them expressions, each of which matches a name of its own and leaves its
/// metric as it is, so that the work that remains is the same whatever their number.
fn rules(count: usize) -> Rules {
    let rule = |at: usize| Rule {
        name: format!("rule {at}"),
        pattern: if at % 10 == 9 && at < 1000 {
            Pattern::Regex(format!("shop\\.m{at}\\.[^.]+"))
        } else {
            Pattern::Wildcard(format!("shop.m{at}.*"))
        },
        kinds: Kinds::ALL,
        effect: Effect {
            values: vec![ValueRule {
                tag: "node".into(),
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

fn packets(contexts: usize) -> Vec<Vec<u8>> {
    let line = |at: usize| {
        format!(
            "shop.m{at}.requests:{}|{}|#env:prod,service:cart,node:n{},shard:{}\n",
            at % 97,
            ["c", "g", "d"][at % 3],
            at % 50,
            at % 7
        )
    };
    let lines: Vec<String> = (0..contexts).map(line).collect();
    lines
        .chunks(MESSAGES_PER_PACKET)
        .map(|chunk| chunk.concat().into_bytes())
        .collect()
}

/// Its instructions, with those of what it calls, are the ones that count.
#[inline(never)]
fn take_known_messages(ingest: &mut Ingest, packets: &[Vec<u8>]) {
    for bytes in packets {
        ingest.packet(Received {
            bytes,
            listener: 0,
            truncated: false,
            received: 1,
        });
    }
}

#[test]
#[ignore = "the other process of known_messages_cost_the_same_with_any_number_of_rules"]
fn child_takes_messages() {
    let number = |name: &str| std::env::var(name).expect(name).parse().unwrap();
    let (count, contexts): (usize, usize) = (number(RULES), number(CONTEXTS));
    let mut ingest = Ingest::new(
        IngestSettings {
            worker: 0,
            aggregator: AggregatorSettings::default(),
            rules: rules(count),
            limits: ContextLimits::default(),
            secret: HashSecret::from_random(1, 2),
            listeners: vec![ParseOptions::default().into()],
        },
        1_700_000_000,
    );
    let packets = packets(contexts);
    for bytes in &packets {
        ingest.packet(Received {
            bytes,
            listener: 0,
            truncated: false,
            received: 1,
        });
    }
    assert_eq!(ingest.contexts().len(), contexts);
    take_known_messages(&mut ingest, &packets);
    assert_eq!(
        ingest.counts()[0][IngestCounter::SamplesAggregated],
        2 * contexts as u64
    );
    let hits: u64 = ingest
        .contexts()
        .rule_counts()
        .0
        .iter()
        .map(|rule| rule.hits)
        .sum();
    assert_eq!(
        hits,
        count.min(contexts) as u64,
        "each rule is applied to its context, once"
    );
}

fn instructions(rules: usize, contexts: usize) -> f64 {
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--toggle-collect=*take_known_messages*",
        ])
        .arg(std::env::current_exe().unwrap())
        .args([
            "rules_cost::child_takes_messages",
            "--exact",
            "--ignored",
            "--test-threads=1",
        ])
        .env(RULES, rules.to_string())
        .env(CONTEXTS, contexts.to_string())
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    let (_, number) = collected.unwrap_or_else(|| panic!("no count in\n{text}"));
    number.trim().parse::<f64>().unwrap() / contexts as f64
}

#[test]
fn known_messages_cost_the_same_with_any_number_of_rules() {
    costs_are_equal(&[0, 1000], 1000);
}

#[test]
#[ignore = "nightly: minutes of callgrind; in the gate: known_messages_cost_the_same_with_any_number_of_rules"]
fn known_messages_cost_the_same_with_ten_thousand_rules() {
    costs_are_equal(&[0, 10, 1000, 10_000], 10_000);
}

fn costs_are_equal(rules: &[usize], contexts: usize) {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: no valgrind here, nothing was counted");
        return;
    }
    let counted: Vec<(usize, f64)> = rules
        .iter()
        .map(|rules| (*rules, instructions(*rules, contexts)))
        .collect();
    println!("instructions per message by number of rules: {counted:?}");
    let least = counted
        .iter()
        .map(|(_, count)| *count)
        .fold(f64::INFINITY, f64::min);
    let most = counted.iter().map(|(_, count)| *count).fold(0.0, f64::max);
    assert!(least > 100.0, "something was counted: {counted:?}");
    assert!(most <= least * 1.03, "{counted:?}");
}
