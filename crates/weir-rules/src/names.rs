//! Finds which of many patterns match a name, in one pass.
//!
//! Exact names, prefixes and wildcards share one automaton: a tree of their characters in which a star is a state that accepts any
//! character except a dot. All patterns are followed at once. The active states are few, whatever the number of patterns, and each is
//! entered once per character, so there is no backtracking. Regular expressions share a second automaton, whose deterministic form is built
//! on demand within a fixed size.

use regex_automata::{MatchKind, PatternSet, meta};

use crate::pattern::{RegexError, anchored, regex, syntax_of};
use crate::{Pattern, PatternError, RuleLimits};

/// Stands for `*` in the bytes of a pattern. UTF-8 never contains this byte or the next one.
const STAR: u8 = 0xff;

/// Ends a pattern that is a prefix.
const PREFIX: u8 = 0xfe;

const NONE: u32 = u32::MAX;

/// A node of the tree.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Range in `edges`, sorted by byte.
    edges: (u32, u32),
    /// Ranges in `outputs`: patterns that end here, and prefixes that end here.
    ends: (u32, u32),
    prefixes: (u32, u32),
    /// The node of a star that follows.
    star: u32,
    /// This node is a star: it stays active for every byte except a dot.
    is_star: bool,
}

/// Patterns compiled together. A pattern is identified by its index in the slice passed to `new`.
#[derive(Debug)]
pub struct NameMatcher {
    nodes: Vec<Node>,
    edges: Vec<(u8, u32)>,
    outputs: Vec<u32>,
    any: Vec<u32>,
    regexes: Option<meta::Regex>,
    /// Pattern numbers of the expressions in `regexes`.
    regex_numbers: Vec<u32>,
}

/// Buffers of [`NameMatcher::matches`].
#[derive(Debug, Default)]
pub struct MatchScratch {
    here: Vec<u32>,
    next: Vec<u32>,
    /// By node: the step at which it was last entered.
    entered: Vec<u32>,
    step: u32,
    patterns: Option<PatternSet>,
}

impl NameMatcher {
    /// An error comes with the index of the offending pattern, if there is one.
    pub fn new(patterns: &[&Pattern], limits: &RuleLimits) -> Result<Self, (Option<usize>, PatternError)> {
        let bytes: usize = patterns.iter().map(|pattern| pattern.text().len()).sum();
        if bytes > limits.pattern_bytes {
            let message = format!(
                "all patterns together have {bytes} bytes; at most {} are allowed",
                limits.pattern_bytes
            );
            return Err((None, PatternError(message)));
        }
        let mut keys: Vec<(Vec<u8>, u32)> = Vec::new();
        let (mut any, mut regexes, mut regex_numbers) = (Vec::new(), Vec::new(), Vec::new());
        for (number, pattern) in patterns.iter().enumerate() {
            let id = number as u32;
            match pattern {
                Pattern::Any => any.push(id),
                Pattern::Exact(text) => keys.push((text.as_bytes().to_vec(), id)),
                Pattern::Prefix(text) => keys.push(([text.as_bytes(), &[PREFIX]].concat(), id)),
                Pattern::Wildcard(text) => {
                    let key = text.bytes().map(|byte| if byte == b'*' { STAR } else { byte });
                    keys.push((key.collect(), id));
                }
                Pattern::Regex(text) => {
                    regexes.push(anchored(text));
                    regex_numbers.push(id);
                }
            }
        }
        keys.sort_unstable();
        let mut matcher = NameMatcher {
            nodes: Vec::new(),
            edges: Vec::new(),
            outputs: Vec::new(),
            any,
            regexes: None,
            regex_numbers,
        };
        matcher.grow(&keys);
        if !regexes.is_empty() {
            matcher.regexes = Some(together(&regexes, patterns, &matcher.regex_numbers, limits)?);
        }
        Ok(matcher)
    }

    /// Builds the tree from sorted keys, level by level.
    fn grow(&mut self, keys: &[(Vec<u8>, u32)]) {
        self.nodes.push(Node::empty(false));
        let mut open = std::collections::VecDeque::from([(0usize, keys, 0usize)]);
        while let Some((node, mut keys, depth)) = open.pop_front() {
            let ended = keys.iter().take_while(|(key, _)| key.len() == depth).count();
            self.nodes[node].ends = self.output(&keys[..ended]);
            keys = &keys[ended..];
            let edges = self.edges.len() as u32;
            while let Some((key, _)) = keys.first() {
                let byte = key[depth];
                let same = keys.iter().take_while(|(key, _)| key[depth] == byte).count();
                let (of_byte, rest) = keys.split_at(same);
                keys = rest;
                if byte == PREFIX {
                    self.nodes[node].prefixes = self.output(of_byte);
                    continue;
                }
                let child = self.nodes.len();
                self.nodes.push(Node::empty(byte == STAR));
                if byte == STAR {
                    self.nodes[node].star = child as u32;
                } else {
                    self.edges.push((byte, child as u32));
                }
                open.push_back((child, of_byte, depth + 1));
            }
            self.nodes[node].edges = (edges, self.edges.len() as u32);
        }
    }

    fn output(&mut self, keys: &[(Vec<u8>, u32)]) -> (u32, u32) {
        let start = self.outputs.len() as u32;
        self.outputs.extend(keys.iter().map(|(_, id)| id));
        (start, self.outputs.len() as u32)
    }

    /// Writes the indexes of the matching patterns to `found`, in ascending order.
    pub fn matches(&self, name: &str, scratch: &mut MatchScratch, found: &mut Vec<u32>) {
        found.clear();
        found.extend_from_slice(&self.any);
        if !self.outputs.is_empty() {
            self.follow(name, scratch, found);
        }
        if let Some(regexes) = &self.regexes {
            let patterns = scratch.patterns.get_or_insert_with(|| PatternSet::new(0));
            if patterns.capacity() != self.regex_numbers.len() {
                *patterns = PatternSet::new(self.regex_numbers.len());
            }
            patterns.clear();
            regexes.which_overlapping_matches(&regex_automata::Input::new(name), patterns);
            found.extend(
                patterns
                    .iter()
                    .map(|pattern| self.regex_numbers[pattern.as_usize()]),
            );
        }
        if found.len() > 1 {
            found.sort_unstable();
        }
    }

    fn follow(&self, name: &str, scratch: &mut MatchScratch, found: &mut Vec<u32>) {
        if scratch.entered.len() != self.nodes.len() || scratch.step > u32::MAX - name.len() as u32 - 2 {
            scratch.entered.clear();
            scratch.entered.resize(self.nodes.len(), 0);
            scratch.step = 0;
        }
        scratch.step += 1;
        scratch.here.clear();
        self.enter(0, &mut scratch.here, &mut scratch.entered, scratch.step, found);
        for byte in name.bytes() {
            scratch.step += 1;
            scratch.next.clear();
            for &at in &scratch.here {
                let node = &self.nodes[at as usize];
                if node.is_star && byte != b'.' {
                    self.enter(at, &mut scratch.next, &mut scratch.entered, scratch.step, found);
                }
                let edges = &self.edges[node.edges.0 as usize..node.edges.1 as usize];
                if let Some(to) = edge(edges, byte) {
                    self.enter(to, &mut scratch.next, &mut scratch.entered, scratch.step, found);
                }
            }
            if scratch.next.is_empty() {
                return;
            }
            std::mem::swap(&mut scratch.here, &mut scratch.next);
        }
        for &at in &scratch.here {
            found.extend_from_slice(self.listed(self.nodes[at as usize].ends));
        }
    }

    /// Enters a node, and the star after it, because a star may match nothing.
    fn enter(
        &self,
        mut at: u32,
        places: &mut Vec<u32>,
        entered: &mut [u32],
        step: u32,
        found: &mut Vec<u32>,
    ) {
        while entered[at as usize] != step {
            entered[at as usize] = step;
            places.push(at);
            let node = &self.nodes[at as usize];
            // A star is entered again with every byte, but no prefix ends at a star.
            found.extend_from_slice(self.listed(node.prefixes));
            if node.star == NONE {
                return;
            }
            at = node.star;
        }
    }

    fn listed(&self, (start, end): (u32, u32)) -> &[u32] {
        &self.outputs[start as usize..end as usize]
    }

    /// Bytes held, without the cache that the expressions fill while matching.
    pub fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.edges.capacity() * size_of::<(u8, u32)>()
            + (self.outputs.capacity() + self.any.capacity() + self.regex_numbers.capacity()) * 4
            + self.regexes.as_ref().map_or(0, meta::Regex::memory_usage)
    }
}

impl Node {
    fn empty(is_star: bool) -> Self {
        Node {
            edges: (0, 0),
            ends: (0, 0),
            prefixes: (0, 0),
            star: NONE,
            is_star,
        }
    }
}

fn edge(edges: &[(u8, u32)], byte: u8) -> Option<u32> {
    if edges.len() <= 4 {
        return edges.iter().find(|(known, _)| *known == byte).map(|(_, to)| *to);
    }
    let at = edges.binary_search_by_key(&byte, |(known, _)| *known).ok()?;
    Some(edges[at].1)
}

/// All expressions as one automaton that reports every match.
fn together(
    expressions: &[String],
    patterns: &[&Pattern],
    numbers: &[u32],
    limits: &RuleLimits,
) -> Result<meta::Regex, (Option<usize>, PatternError)> {
    for &number in numbers {
        // Each is first compiled separately, so that an error has an index.
        regex(patterns[number as usize].text(), limits).map_err(|error| (Some(number as usize), error))?;
    }
    let config = meta::Config::new()
        .match_kind(MatchKind::All)
        .nfa_size_limit(Some(limits.regex_bytes))
        .hybrid_cache_capacity(limits.regex_bytes)
        .onepass(false)
        .which_captures(regex_automata::nfa::thompson::WhichCaptures::None);
    let built = meta::Builder::new()
        .configure(config)
        .syntax(syntax_of())
        .build_many(expressions);
    built.map_err(|error| {
        let message = format!(
            "all {} regular expressions together: the set {}",
            expressions.len(),
            RegexError::of(&error, limits.regex_bytes)
        );
        (None, PatternError(message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(patterns: &[Pattern], name: &str) -> Vec<u32> {
        let listed: Vec<&Pattern> = patterns.iter().collect();
        let matcher = NameMatcher::new(&listed, &RuleLimits::default()).unwrap();
        let (mut scratch, mut found) = (MatchScratch::default(), Vec::new());
        matcher.matches(name, &mut scratch, &mut found);
        // Again, with used buffers.
        let first = found.clone();
        matcher.matches(name, &mut scratch, &mut found);
        assert_eq!(first, found);
        found
    }

    fn naive(pattern: &Pattern, name: &str) -> bool {
        match pattern {
            Pattern::Any => true,
            Pattern::Exact(text) => name == text,
            Pattern::Prefix(text) => name.starts_with(text.as_str()),
            Pattern::Wildcard(text) => {
                let expression = format!("^{}$", text.replace('.', "\\.").replace('*', "([^.]*)"));
                regex_lite::Regex::new(&expression).unwrap().is_match(name)
            }
            Pattern::Regex(text) => regex_lite::Regex::new(&format!("^{text}$"))
                .unwrap()
                .is_match(name),
        }
    }

    #[test]
    fn every_kind() {
        let patterns = [
            Pattern::Any,
            Pattern::Exact("a.b".into()),
            Pattern::Prefix("a.".into()),
            Pattern::Wildcard("*.b".into()),
            Pattern::Regex("a.*|c".into()),
            Pattern::Wildcard("a.*".into()),
        ];
        assert_eq!(matches(&patterns, "a.b"), [0, 1, 2, 3, 4, 5]);
        assert_eq!(matches(&patterns, "a."), [0, 2, 4, 5]);
        assert_eq!(matches(&patterns, "a.b.c"), [0, 2, 4]);
        assert_eq!(
            matches(&patterns, "xc"),
            [0, 4],
            "an alternation is bound at one end each"
        );
        assert_eq!(matches(&patterns, ""), [0]);
    }

    #[test]
    fn limits_are_errors_that_name_the_limit() {
        let limits = RuleLimits {
            pattern_bytes: 10,
            ..RuleLimits::default()
        };
        let long = Pattern::Exact("abcdefghijk".into());
        let (_, error) = NameMatcher::new(&[&long], &limits).unwrap_err();
        assert!(error.0.contains("at most 10"), "{error}");
        let limits = RuleLimits {
            one_regex_bytes: 10_000,
            ..RuleLimits::default()
        };
        let large = Pattern::Regex("(a{100}){100}".into());
        let (at, error) = NameMatcher::new(&[&long, &large], &limits).unwrap_err();
        assert_eq!(at, Some(1));
        assert!(error.0.contains("10000 bytes"), "{error}");
        let many: Vec<Pattern> = (0..50).map(|n| Pattern::Regex(format!("x{n}\\w+"))).collect();
        let limits = RuleLimits {
            regex_bytes: 100_000,
            ..RuleLimits::default()
        };
        let (at, error) = NameMatcher::new(&many.iter().collect::<Vec<_>>(), &limits).unwrap_err();
        assert_eq!(at, None);
        assert!(error.0.contains("all 50"), "{error}");
    }

    /// The classic input that makes backtracking engines hang.
    #[test]
    fn no_expression_takes_exponential_time() {
        let name = "a".repeat(5000) + "!";
        assert_eq!(
            matches(
                &[Pattern::Regex("(a*)*b".into()), Pattern::Regex("(a|aa)+".into())],
                &name
            ),
            [0u32; 0]
        );
        let stars = Pattern::Wildcard("*a".repeat(200));
        assert_eq!(matches(&[stars], &name), [0u32; 0]);
    }

    fn any_pattern() -> impl Strategy<Value = Pattern> {
        prop_oneof![
            Just(Pattern::Any),
            "[ab.é]{0,4}".prop_map(Pattern::Exact),
            "[ab.é]{0,3}".prop_map(Pattern::Prefix),
            "[ab.]{0,2}(\\*[ab.]{1,2}){0,3}\\*?".prop_map(Pattern::Wildcard),
            "[ab.é]{0,2}(\\([ab]\\|[ab.]\\)[*+?]?){0,2}(\\|a)?".prop_map(Pattern::Regex),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn equals_trying_each(patterns in prop::collection::vec(any_pattern(), 0..12), name in "[ab.é]{0,8}") {
            let expected: Vec<u32> = (0..patterns.len())
                .filter(|&at| naive(&patterns[at], &name))
                .map(|at| at as u32)
                .collect();
            prop_assert_eq!(matches(&patterns, &name), expected);
        }
    }
}
