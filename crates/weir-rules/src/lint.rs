//! Warnings about valid rules that are probably mistakes: rules that can never apply, contradict each other, or match everything.
//!
//! Whether one pattern covers another is decided exactly, by walking both automata in parallel. If that takes too long, there is no
//! warning.

use std::collections::{HashMap, HashSet, VecDeque};

use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::util::start;
use regex_automata::{Anchored, MatchKind};

use crate::HistogramChoice;
use crate::names::{MatchScratch, NameMatcher};
use crate::pattern::{anchored, syntax_of};
use crate::{Kinds, Pattern, RuleSet, TagFilter};

/// One warning. `path` is as in [`crate::RuleError`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub path: String,
    pub message: String,
}

/// Maximum states that a walk visits, and maximum walks for all rules.
const PLACES_MAX: usize = 2000;
const WALKS_MAX: usize = 2000;

/// Maximum warnings for a set of rules.
const FINDINGS_MAX: usize = 100;

/// No wildcard contains this character, so in a sample name only a star can match it.
const ANY: &str = "\u{1}";

/// Names so different that a pattern that matches all of them matches everything.
const DIVERSE: [&str; 4] = ["a", "zq.9_x-y.b.c", "A.b", "_"];

/// All warnings. `namespace`: the prefix that names have before the rules apply. `is_filtered`: names that are dropped before.
pub fn lint(set: &RuleSet, namespace: &str, is_filtered: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    let mut linter = Linter {
        findings: Vec::new(),
        scratch: MatchScratch::default(),
        walks: 0,
    };
    linter.mappings(set);
    linter.rules(set, namespace, is_filtered);
    linter.findings.truncate(FINDINGS_MAX);
    linter.findings
}

struct Linter {
    findings: Vec<Finding>,
    scratch: MatchScratch,
    walks: usize,
}

impl Linter {
    fn find(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.findings.push(Finding {
            path: path.into(),
            message: message.into(),
        });
    }

    fn mappings(&mut self, set: &RuleSet) {
        let profiles = &set.definitions().profiles;
        let mut listed = Vec::new();
        for (at, profile) in profiles.iter().enumerate() {
            for (number, mapping) in profile.mappings.iter().enumerate() {
                listed.push((
                    format!("mapper_profiles[{at}].mappings[{number}]"),
                    profile,
                    mapping,
                ));
            }
        }
        let mut names: HashMap<&str, Vec<(usize, Kinds)>> = HashMap::new();
        for (at, (path, profile, mapping)) in listed.iter().enumerate() {
            let samples = self.samples(&mapping.pattern);
            if samples.is_empty() {
                self.find(
                    format!("{path}.match"),
                    format!("{:?} matches no name", mapping.pattern.text()),
                );
                continue;
            }
            if profile.prefix != "*" && !can_begin(&mapping.pattern, &profile.prefix) {
                let message = format!(
                    "{:?} never matches: the profile is for names that begin with {:?}",
                    mapping.pattern.text(),
                    profile.prefix
                );
                self.find(format!("{path}.match"), message);
                continue;
            }
            for earlier in self.covering(set.mapper(), &mapping.pattern, &samples, at) {
                let (earlier_path, earlier_profile, other) = &listed[earlier];
                let is_for = earlier_profile.prefix == "*"
                    || earlier_profile.prefix == profile.prefix
                    || samples
                        .iter()
                        .all(|sample| sample.starts_with(earlier_profile.prefix.as_str()))
                        && can_begin(&mapping.pattern, &earlier_profile.prefix);
                if is_for
                    && !other.dry_run
                    && other.kinds.covers(mapping.kinds)
                    && self.is_covered(&mapping.pattern, &other.pattern)
                {
                    let message = format!(
                        "never applies: {earlier_path} ({:?}) matches the same names first",
                        other.pattern.text()
                    );
                    self.find(path.clone(), message);
                    break;
                }
            }
            let template = crate::Template::parse(&mapping.name);
            if mapping.drop || !template.is_constant() {
                continue;
            }
            if profile.prefix == "*" && is_everything(&samples, &mapping.pattern, self) {
                self.find(
                    path.clone(),
                    format!("gives every metric the same name {:?}", mapping.name),
                );
            }
            let same = names.entry(&mapping.name).or_default();
            if let Some((other, _)) = same.iter().find(|(_, kinds)| !kinds.overlaps(mapping.kinds)) {
                let message = format!(
                    "{:?} is the new name in {} too, for other types: metrics of different types will share it",
                    mapping.name, listed[*other].0
                );
                self.find(format!("{path}.name"), message);
            }
            same.push((at, mapping.kinds));
        }
    }

    fn rules(&mut self, set: &RuleSet, namespace: &str, is_filtered: &dyn Fn(&str) -> bool) {
        let rules = &set.definitions().rules;
        let mut spared = false;
        for (at, rule) in rules.iter().enumerate() {
            let path = format!("rules[{at}]");
            let samples = self.samples(&rule.pattern);
            if samples.is_empty() {
                self.find(
                    format!("{path}.match"),
                    format!("{:?} matches no name", rule.pattern.text()),
                );
                continue;
            }
            if let Pattern::Exact(name) = &rule.pattern
                && is_filtered(name)
            {
                self.find(
                    path.clone(),
                    format!("never applies: metric_filterlist drops {name:?} before"),
                );
            }
            if !namespace.is_empty() && !can_begin(&rule.pattern, namespace) {
                let message = format!(
                    "{:?} only matches names that get no namespace; others begin with {namespace:?} here",
                    rule.pattern.text()
                );
                self.find(format!("{path}.match"), message);
            }
            for earlier in self.covering(set.matcher(), &rule.pattern, &samples, at) {
                let other = &rules[earlier];
                if (other.effect.drop || other.last)
                    && !other.dry_run
                    && other.kinds.covers(rule.kinds)
                    && self.is_covered(&rule.pattern, &other.pattern)
                {
                    let why = if other.effect.drop {
                        "drops its metrics"
                    } else {
                        "is the last for its metrics"
                    };
                    self.find(path.clone(), format!("never applies: {:?} {why}", other.name));
                    break;
                }
            }
            let effect = &rule.effect;
            let of_histograms = Kinds::of([weir_protocol::Kind::Histogram, weir_protocol::Kind::Timing]);
            if effect.histogram != HistogramChoice::default() && !rule.kinds.overlaps(of_histograms) {
                self.find(
                    path.clone(),
                    "chooses series of histograms, but applies to other types only",
                );
            }
            for (number, value) in effect.values.iter().enumerate() {
                let is_gone = match &effect.tags {
                    TagFilter::All => false,
                    TagFilter::Exclude(keys) => keys.contains(&value.tag),
                    TagFilter::Include(keys) => value.tag != "*" && !keys.contains(&value.tag),
                };
                if is_gone {
                    let message = format!("never applies: this rule removes the tag {:?} before", value.tag);
                    self.find(format!("{path}.values[{number}]"), message);
                }
            }
            if is_everything(&samples, &rule.pattern, self) {
                if effect.drop && rule.kinds == Kinds::ALL && !spared {
                    self.find(path.clone(), "drops every metric");
                }
                if let TagFilter::Include(keys) = &effect.tags {
                    let message = format!("removes every tag except {} from every metric", keys.join(", "));
                    self.find(path.clone(), message);
                }
            }
            spared |= rule.last;
        }
    }

    /// Earlier patterns that match all samples. They may cover the pattern.
    fn covering(
        &mut self,
        matcher: &NameMatcher,
        pattern: &Pattern,
        samples: &[String],
        at: usize,
    ) -> Vec<usize> {
        let mut candidates: Option<Vec<u32>> = None;
        let mut found = Vec::new();
        for sample in samples {
            matcher.matches(sample, &mut self.scratch, &mut found);
            candidates = Some(match candidates {
                None => found.clone(),
                Some(before) => before.into_iter().filter(|id| found.contains(id)).collect(),
            });
        }
        let mut earlier: Vec<usize> = candidates
            .unwrap_or_default()
            .into_iter()
            .map(|id| id as usize)
            .filter(|&id| id < at)
            .collect();
        // Only `Any` covers `Any`.
        if *pattern == Pattern::Any {
            earlier.truncate(16);
        }
        earlier
    }

    /// Different names that the pattern matches; empty if it matches none.
    fn samples(&mut self, pattern: &Pattern) -> Vec<String> {
        match pattern {
            Pattern::Any => DIVERSE.map(str::to_owned).to_vec(),
            Pattern::Exact(text) => vec![text.clone()],
            Pattern::Prefix(text) => vec![text.clone(), format!("{text}{ANY}"), format!("{text}.x.y")],
            Pattern::Wildcard(text) => [ANY, "", "a9"].map(|part| text.replace('*', part)).to_vec(),
            Pattern::Regex(text) => {
                self.walks += 1;
                if self.walks > WALKS_MAX {
                    return vec![ANY.to_owned()];
                }
                match Walker::new(&anchored(text)) {
                    // Too large to analyse. No other pattern matches this sample, so there is no warning.
                    None => vec![ANY.to_owned()],
                    Some(mut walker) => walker.samples().unwrap_or_else(|| vec![ANY.to_owned()]),
                }
            }
        }
    }

    /// Whether `other` matches every name that `pattern` matches. It matches the samples of `pattern`.
    fn is_covered(&mut self, pattern: &Pattern, other: &Pattern) -> bool {
        match (pattern, other) {
            (_, Pattern::Any) => true,
            (Pattern::Regex(a), Pattern::Regex(b)) if a == b => true,
            // For a wildcard the sample with the unusual character proves it.
            (
                Pattern::Exact(_) | Pattern::Prefix(_) | Pattern::Wildcard(_),
                Pattern::Exact(_) | Pattern::Prefix(_) | Pattern::Wildcard(_),
            ) => !matches!(
                (pattern, other),
                (Pattern::Prefix(_), Pattern::Wildcard(_) | Pattern::Exact(_))
            ),
            (Pattern::Exact(_), Pattern::Regex(_)) => true,
            _ => {
                self.walks += 1;
                if self.walks > WALKS_MAX {
                    return false;
                }
                let (Some(mut inner), Some(mut outer)) = (Walker::of(pattern), Walker::of(other)) else {
                    return false;
                };
                covers(&mut outer, &mut inner).unwrap_or(false)
            }
        }
    }
}

/// Whether the pattern can match names that begin with `prefix`.
fn can_begin(pattern: &Pattern, prefix: &str) -> bool {
    let (fixed, is_whole) = match pattern {
        Pattern::Any | Pattern::Regex(_) => return true,
        Pattern::Exact(text) => (text.as_str(), true),
        Pattern::Prefix(text) => (text.as_str(), false),
        Pattern::Wildcard(text) => match text.split_once('*') {
            Some((fixed, _)) => (fixed, false),
            None => (text.as_str(), true),
        },
    };
    fixed.starts_with(prefix) || !is_whole && prefix.starts_with(fixed)
}

fn is_everything(samples: &[String], pattern: &Pattern, linter: &mut Linter) -> bool {
    match pattern {
        Pattern::Any => true,
        Pattern::Regex(_) if !samples.is_empty() => {
            let Ok(matcher) = NameMatcher::new(&[pattern], &crate::RuleLimits::default()) else {
                return false;
            };
            let mut found = Vec::new();
            DIVERSE.iter().all(|name| {
                matcher.matches(name, &mut linter.scratch, &mut found);
                !found.is_empty()
            })
        }
        _ => false,
    }
}

/// A pattern's automaton, walked from its start.
struct Walker {
    dfa: DFA,
    cache: Cache,
}

/// A state of an automaton, and whether the walk passed a match. A match stays one, whatever follows.
type Place = (LazyStateID, bool);

impl Walker {
    fn of(pattern: &Pattern) -> Option<Self> {
        let escape = |text: &str| {
            let mut escaped = String::new();
            for c in text.chars() {
                if c == '*' {
                    escaped.push_str("[^.]*");
                } else {
                    if !c.is_alphanumeric() && c.is_ascii() && c != '\u{1}' {
                        escaped.push('\\');
                    }
                    escaped.push(c);
                }
            }
            escaped
        };
        match pattern {
            Pattern::Any => Walker::new("(?s:.*)"),
            Pattern::Exact(text) => Walker::new(&format!("^{}$", escape(&text.replace('*', "\\x2a")))),
            Pattern::Prefix(text) => Walker::new(&format!("^{}", escape(&text.replace('*', "\\x2a")))),
            Pattern::Wildcard(text) => Walker::new(&format!("^{}$", escape(text))),
            Pattern::Regex(text) => Walker::new(&anchored(text)),
        }
    }

    fn new(expression: &str) -> Option<Self> {
        let config = DFA::config()
            .match_kind(MatchKind::All)
            .cache_capacity(4 << 20)
            // Clearing the cache would give old states new meanings.
            .minimum_cache_clear_count(Some(0))
            .unicode_word_boundary(true);
        let dfa = DFA::builder()
            .configure(config)
            .syntax(syntax_of())
            .build(expression)
            .ok()?;
        let cache = dfa.create_cache();
        Some(Walker { dfa, cache })
    }

    fn start(&mut self) -> Option<Place> {
        let config = start::Config::new().anchored(Anchored::No);
        let state = self.dfa.start_state(&mut self.cache, &config).ok()?;
        Some((state, false))
    }

    fn step(&mut self, (state, matched): Place, byte: u8) -> Option<Place> {
        let next = self.dfa.next_state(&mut self.cache, state, byte).ok()?;
        (!next.is_quit()).then_some((next, matched || next.is_match()))
    }

    fn accepts(&mut self, (state, matched): Place) -> Option<bool> {
        let end = self.dfa.next_eoi_state(&mut self.cache, state).ok()?;
        Some(matched || end.is_match())
    }

    fn class(&self, byte: u8) -> u8 {
        self.dfa.byte_classes().get(byte)
    }

    /// The shortest name of early letters, and one of late letters. Empty: there is none. `None`: it takes too long.
    fn samples(&mut self) -> Option<Vec<String>> {
        let mut found = Vec::new();
        let early: Vec<u8> = (b'a'..=b'z').chain(0x21..=0x7e).chain(0..=0xff).collect();
        let late: Vec<u8> = (b'0'..=b'9')
            .rev()
            .chain((0x21..=0x7e).rev())
            .chain(0..=0xff)
            .collect();
        for order in [early, late] {
            let mut classes = HashSet::new();
            let bytes: Vec<u8> = order
                .into_iter()
                .filter(in_names)
                .filter(|&byte| classes.insert(self.class(byte)))
                .collect();
            match self.shortest(&bytes)? {
                Some(name) => found.push(name),
                None => return Some(Vec::new()),
            }
        }
        found.dedup();
        Some(found)
    }

    fn shortest(&mut self, bytes: &[u8]) -> Option<Option<String>> {
        let start = self.start()?;
        let mut seen = HashSet::from([start]);
        let mut open = VecDeque::from([(start, Vec::new())]);
        while let Some((place, name)) = open.pop_front() {
            if !name.is_empty() && self.accepts(place)? {
                return Some(Some(String::from_utf8_lossy(&name).into_owned()));
            }
            for &byte in bytes {
                let next = self.step(place, byte)?;
                if !next.0.is_dead() && seen.insert(next) {
                    if seen.len() > PLACES_MAX {
                        return None;
                    }
                    let mut longer = name.clone();
                    longer.push(byte);
                    open.push_back((next, longer));
                }
            }
        }
        Some(None)
    }
}

/// The bytes that a name can contain. The protocol ends a name at all others.
fn in_names(byte: &u8) -> bool {
    !matches!(byte, b'\n' | b':' | b'|')
}

/// Whether `outer` accepts everything that `inner` accepts. `None`: it takes too long.
fn covers(outer: &mut Walker, inner: &mut Walker) -> Option<bool> {
    let mut classes = HashSet::new();
    let bytes: Vec<u8> = (0..=0xff)
        .filter(in_names)
        .filter(|&byte| classes.insert((outer.class(byte), inner.class(byte))))
        .collect();
    let start = (outer.start()?, inner.start()?);
    let mut seen = HashSet::from([start]);
    let mut open = vec![start];
    while let Some((in_outer, in_inner)) = open.pop() {
        if inner.accepts(in_inner)? && !outer.accepts(in_outer)? {
            return Some(false);
        }
        for &byte in &bytes {
            let next_inner = inner.step(in_inner, byte)?;
            if next_inner.0.is_dead() && !next_inner.1 {
                continue;
            }
            let next = (outer.step(in_outer, byte)?, next_inner);
            if seen.insert(next) {
                if seen.len() > PLACES_MAX {
                    return None;
                }
                open.push(next);
            }
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Definitions, Effect, Mapping, Profile, Rule, RuleLimits};
    use weir_protocol::Kind;

    fn wildcard(text: &str) -> Pattern {
        Pattern::Wildcard(text.into())
    }

    fn regex(text: &str) -> Pattern {
        Pattern::Regex(text.into())
    }

    fn covered(pattern: &Pattern, by: &Pattern) -> bool {
        let mapping = |pattern: &Pattern| Mapping {
            pattern: pattern.clone(),
            kinds: Kinds::ALL,
            name: "n$0".into(),
            tags: vec![],
            same_tags: crate::SameTags::default(),
            delta_expiry: None,
            drop: false,
            dry_run: false,
        };
        let profile = Profile {
            name: "p".into(),
            prefix: "*".into(),
            mappings: vec![mapping(by), mapping(pattern)],
        };
        let definitions = Definitions {
            profiles: vec![profile],
            rules: vec![],
            ..Definitions::default()
        };
        let set = RuleSet::new(definitions, &[], RuleLimits::default()).unwrap();
        let found = lint(&set, "", &|_| false);
        assert!(
            found
                .iter()
                .all(|finding| finding.message.contains("never applies")),
            "{found:?}"
        );
        !found.is_empty()
    }

    #[test]
    fn covering_is_decided() {
        for (pattern, by, expected) in [
            (wildcard("a.*.c"), wildcard("a.*.*"), true),
            (wildcard("a.*.*"), wildcard("a.*.c"), false),
            (wildcard("a.b"), wildcard("a.*"), true),
            (wildcard("a.b*"), wildcard("a.*b*"), true),
            (wildcard("a.*b*"), wildcard("a.b*"), false),
            (wildcard("*"), wildcard("*"), true),
            (wildcard("a.*"), regex("a\\..*"), true),
            (wildcard("a.*"), regex("a\\.."), false),
            (wildcard("a.*"), regex("a\\.[a-z0-9]*"), false),
            (regex("ab+c"), regex("a.*c"), true),
            (regex("a.*c"), regex("ab+c"), false),
            (regex("(foo|bar)\\.x"), regex("[a-z]+\\.x"), true),
            (regex("a\\.[^.]+"), wildcard("a.*"), true),
            (regex("a\\..+"), wildcard("a.*"), false),
            // Each branch of an alternation is anchored at one end: this one matches everything that ends in b.
            (regex("xb"), regex("a|b"), true),
        ] {
            assert_eq!(covered(&pattern, &by), expected, "{pattern:?} by {by:?}");
        }
    }

    fn findings(profiles: Vec<Profile>, rules: Vec<Rule>) -> Vec<String> {
        let set = RuleSet::new(
            Definitions {
                profiles,
                rules,
                ..Definitions::default()
            },
            &[],
            RuleLimits::default(),
        )
        .unwrap();
        lint(&set, "shop.", &|name| name == "gone")
            .into_iter()
            .map(|finding| format!("{}: {}", finding.path, finding.message))
            .collect()
    }

    fn rule(pattern: Pattern, effect: Effect) -> Rule {
        Rule {
            name: format!("{pattern:?} {effect:?}"),
            pattern,
            kinds: Kinds::ALL,
            effect,
            last: false,
            dry_run: false,
        }
    }

    #[test]
    fn each_finding() {
        let drop = || Effect {
            drop: true,
            ..Effect::default()
        };
        let include = Effect {
            tags: TagFilter::Include(vec!["env".into()]),
            ..Effect::default()
        };
        let found = findings(
            vec![],
            vec![
                rule(wildcard("shop.a.*"), drop()),
                rule(Pattern::Exact("shop.a.b".into()), include.clone()),
                rule(Pattern::Exact("gone".into()), include.clone()),
                rule(regex("a^b"), drop()),
                rule(regex(".*"), include.clone()),
                rule(Pattern::Any, drop()),
            ],
        );
        for (path, part) in [
            ("rules[1]:", "never applies"),
            ("rules[2]:", "metric_filterlist"),
            ("rules[2].match:", "namespace"),
            ("rules[3].match:", "matches no name"),
            ("rules[4]:", "removes every tag except env"),
            ("rules[5]:", "drops every metric"),
        ] {
            assert!(
                found
                    .iter()
                    .any(|text| text.starts_with(path) && text.contains(part)),
                "{path} {part}: {found:#?}"
            );
        }
        assert_eq!(found.len(), 6, "{found:#?}");
        let mapping = |pattern, kind, name: &str| Mapping {
            pattern,
            kinds: Kinds::of([kind]),
            name: name.into(),
            tags: vec![],
            same_tags: crate::SameTags::default(),
            delta_expiry: None,
            drop: false,
            dry_run: false,
        };
        let profile = Profile {
            name: "p".into(),
            prefix: "a.".into(),
            mappings: vec![
                mapping(wildcard("b.*"), Kind::Counter, "x"),
                mapping(wildcard("a.*"), Kind::Counter, "x"),
                mapping(wildcard("a.b"), Kind::Gauge, "x"),
            ],
        };
        let all = Profile {
            name: "all".into(),
            prefix: "*".into(),
            mappings: vec![mapping(regex(".+"), Kind::Set, "y")],
        };
        let found = findings(vec![profile, all], vec![]);
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(
            found[0].contains("mappings[0].match") && found[0].contains("begin with \"a.\""),
            "{found:#?}"
        );
        assert!(
            found[1].contains("mappings[2].name") && found[1].contains("different types"),
            "{found:#?}"
        );
        assert!(found[2].contains("gives every metric"), "{found:#?}");
    }
}
