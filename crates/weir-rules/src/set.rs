//! Compiled rules and their application.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::time::Instant;

use regex_automata::meta;
use weir_protocol::Kind;

use crate::names::{MatchScratch, NameMatcher};
use crate::pattern::{self, regex};
use crate::template::Groups;
use crate::values::{CompiledValue, TagOutcome};
use crate::{
    Definitions, HostRule, Mapping, Pattern, Rule, RuleLimits, SameTags, TagFilter, TagStyles, Template,
    Trace,
};

mod compile;

pub use compile::{Compiled, RuleError};

/// Number of a mapping or rule in a set. Mappings come first, then rules, then the list of filtered names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u32);

/// The stage at which a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Mapper,
    Filterlist,
    Rule,
}

impl Stage {
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Mapper => "mapper",
            Stage::Filterlist => "filterlist",
            Stage::Rule => "rule",
        }
    }
}

/// The displayed properties of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInfo {
    pub name: String,
    pub stage: Stage,
    pub dry_run: bool,
}

/// One context while rules apply to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject<'t> {
    pub kind: Kind,
    pub name: Cow<'t, str>,
    /// `None`: the agent's own host. Empty: no host.
    pub host: Option<Cow<'t, str>>,
    pub tags: Vec<Cow<'t, str>>,
    /// Bits of the histogram suffixes.
    pub suffix_mask: u32,
    /// Seconds without a sample after which a change of a gauge begins at zero. `None`: never while its context lives.
    pub delta_expiry: Option<NonZeroU32>,
    /// Tag styles of the listener. `None`: those of the definitions.
    pub tag_styles: Option<TagStyles>,
}

/// The rules that applied to one context.
#[derive(Debug, Default)]
pub struct Applied {
    /// Rules that applied, with the nanoseconds that each took after matching.
    pub hits: Vec<(RuleId, u64)>,
    /// Rules in a dry run that would have applied.
    pub dry: Vec<RuleId>,
    pub dropped_by: Option<RuleId>,
    /// Nanoseconds of the search for matching rules.
    pub matching_ns: u64,
}

impl Applied {
    pub fn clear(&mut self) {
        self.hits.clear();
        self.dry.clear();
        self.dropped_by = None;
        self.matching_ns = 0;
    }
}

/// Buffers for matching, one per thread.
#[derive(Debug, Default)]
pub struct Scratch {
    names: MatchScratch,
    found: Vec<u32>,
}

/// The compiled form of a mapping.
#[derive(Debug)]
struct CompiledMapping {
    profile: usize,
    name: Template,
    tags: Vec<(String, Template)>,
    /// Compiled when the mapping first matches; most never do.
    regex: OnceLock<meta::Regex>,
}

/// A set of compiled rules.
#[derive(Debug)]
pub struct RuleSet {
    definitions: Definitions,
    limits: RuleLimits,
    mapper: NameMatcher,
    mappings: Vec<CompiledMapping>,
    /// Profile and position in it, by mapping number.
    places: Vec<(usize, usize)>,
    names: NameMatcher,
    values: Vec<Vec<CompiledValue>>,
    /// By rule: the histogram suffix bits to clear, then those to set.
    masks: Vec<(u32, u32)>,
    suffixes: Vec<String>,
    infos: Vec<RuleInfo>,
    has_dry_run: bool,
}

impl PartialEq for RuleSet {
    fn eq(&self, other: &Self) -> bool {
        self.definitions == other.definitions
            && self.suffixes == other.suffixes
            && self.limits == other.limits
    }
}

impl Default for RuleSet {
    fn default() -> Self {
        RuleSet::new(Definitions::default(), &[], RuleLimits::default()).expect("nothing is nothing wrong")
    }
}

impl RuleSet {
    pub(crate) fn mapper(&self) -> &NameMatcher {
        &self.mapper
    }

    pub(crate) fn matcher(&self) -> &NameMatcher {
        &self.names
    }

    pub fn definitions(&self) -> &Definitions {
        &self.definitions
    }

    /// Number of mappings and rules, without the list of filtered names.
    pub fn len(&self) -> usize {
        self.infos.len() - 1
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn has_dry_run(&self) -> bool {
        self.has_dry_run
    }

    /// Ordered by [`RuleId`]: mappings, rules, the list of filtered names.
    pub fn infos(&self) -> &[RuleInfo] {
        &self.infos
    }

    pub fn info(&self, id: RuleId) -> &RuleInfo {
        &self.infos[id.0 as usize]
    }

    /// The rule that stands for the list of filtered names, which weir-context applies.
    pub fn filterlist(&self) -> RuleId {
        RuleId(self.len() as u32)
    }

    pub fn heap_bytes(&self) -> usize {
        self.mapper.heap_bytes() + self.names.heap_bytes()
    }

    fn mapping(&self, number: usize) -> &Mapping {
        let (profile, place) = self.places[number];
        &self.definitions.profiles[profile].mappings[place]
    }

    /// The first stage, on the name as received. `assume`: a rule in a dry run that is applied as if it were active. Returns false if the
    /// metric is dropped.
    pub fn map(
        &self,
        subject: &mut Subject<'_>,
        assume: Option<RuleId>,
        scratch: &mut Scratch,
        applied: &mut Applied,
        trace: &mut impl Trace,
    ) -> bool {
        let styles = subject.tag_styles.unwrap_or(self.definitions.tag_styles);
        if styles.take_tags(subject) {
            let why = || "tag_styles: tags are taken out of the name".into();
            trace.stage("tag_styles", why, &subject.name, &subject.tags);
        }
        if self.mappings.is_empty() {
            return true;
        }
        let start = Instant::now();
        let Scratch { names, found } = scratch;
        self.mapper.matches(&subject.name, names, found);
        let matched = Instant::now();
        applied.matching_ns += (matched - start).as_nanos() as u64;
        for &number in found.iter() {
            let (mapping, compiled) = (self.mapping(number as usize), &self.mappings[number as usize]);
            let profile = &self.definitions.profiles[compiled.profile];
            let is_for = profile.prefix == "*" || subject.name.starts_with(profile.prefix.as_str());
            if !is_for || !mapping.kinds.contains(subject.kind) {
                continue;
            }
            let id = RuleId(number);
            let name = &self.infos[number as usize].name;
            if mapping.dry_run && assume != Some(id) {
                applied.dry.push(id);
                trace.note("mapper", || {
                    format!("{name}: would apply, but is a dry run (dry_run)")
                });
                continue;
            }
            if mapping.drop {
                applied.dropped_by = Some(id);
                trace.dropped("mapper", || name.clone());
            } else if !self.expand(number as usize, subject) {
                continue;
            } else {
                trace.stage("mapper", || name.clone(), &subject.name, &subject.tags);
            }
            applied.hits.push((id, matched.elapsed().as_nanos() as u64));
            return !mapping.drop;
        }
        true
    }

    /// Sets name and tags by one mapping. Returns false if the mapping yields an empty name and so does not apply.
    fn expand(&self, number: usize, subject: &mut Subject<'_>) -> bool {
        let (mapping, compiled) = (self.mapping(number), &self.mappings[number]);
        let original = std::mem::take(&mut subject.name);
        let mut stars = Vec::new();
        let captures;
        let groups = match &mapping.pattern {
            Pattern::Wildcard(pattern) => {
                let _ = pattern::captures(pattern, &original, &mut stars);
                Groups::Stars(&stars, &original)
            }
            Pattern::Regex(text) => {
                let regex = compiled
                    .regex
                    .get_or_init(|| regex(text, &self.limits).expect("it was compiled before, for a look"));
                let mut found = regex.create_captures();
                regex.captures(&*original, &mut found);
                captures = found;
                Groups::Regex(&captures, &original)
            }
            _ => Groups::None,
        };
        let mut name = String::new();
        compiled.name.expand(groups, &mut name);
        if name.is_empty() {
            subject.name = original;
            return false;
        }
        for (key, value) in &compiled.tags {
            let is_same = |tag: &Cow<'_, str>| {
                tag.strip_prefix(key.as_str())
                    .is_some_and(|rest| rest.starts_with(':'))
            };
            match mapping.same_tags {
                SameTags::Add => {}
                SameTags::Replace => subject.tags.retain(|tag| !is_same(tag)),
                SameTags::Keep if subject.tags.iter().any(is_same) => continue,
                SameTags::Keep => {}
            }
            let mut tag = format!("{key}:");
            value.expand(groups, &mut tag);
            subject.tags.push(Cow::Owned(tag));
        }
        subject.name = Cow::Owned(name);
        subject.delta_expiry = mapping.delta_expiry.or(subject.delta_expiry);
        true
    }

    /// The last stage, on the final name and all tags except the agent's own. Returns false if the metric is dropped.
    pub fn apply(
        &self,
        subject: &mut Subject<'_>,
        assume: Option<RuleId>,
        scratch: &mut Scratch,
        applied: &mut Applied,
        trace: &mut impl Trace,
    ) -> bool {
        if self.definitions.rules.is_empty() {
            return true;
        }
        let start = Instant::now();
        let Scratch { names, found } = scratch;
        self.names.matches(&subject.name, names, found);
        let mut before = Instant::now();
        applied.matching_ns += (before - start).as_nanos() as u64;
        for &number in found.iter() {
            let rule = &self.definitions.rules[number as usize];
            if !rule.kinds.contains(subject.kind) {
                continue;
            }
            let id = RuleId((self.mappings.len() + number as usize) as u32);
            if rule.dry_run && assume != Some(id) {
                applied.dry.push(id);
                trace.note("rules", || {
                    format!("{}: would apply, but is a dry run (dry_run)", rule.name)
                });
                continue;
            }
            let passes = !rule.effect.drop;
            if passes {
                self.effect(number as usize, subject, trace);
            } else {
                applied.dropped_by = Some(id);
                trace.dropped("rules", || rule.name.clone());
            }
            let now = Instant::now();
            applied.hits.push((id, (now - before).as_nanos() as u64));
            before = now;
            if !passes {
                return false;
            }
            if rule.last {
                trace.note("rules", || {
                    format!("{}: later rules do not apply (last)", rule.name)
                });
                break;
            }
        }
        true
    }

    fn effect(&self, number: usize, subject: &mut Subject<'_>, trace: &mut impl Trace) {
        let Rule {
            name: rule, effect, ..
        } = &self.definitions.rules[number];
        if effect.tags != TagFilter::All {
            subject.tags.retain(|tag| effect.tags.keeps(tag));
        }
        if !self.values[number].is_empty() {
            change_values(&self.values[number], &mut subject.tags);
        }
        if change_host(&effect.host, subject) {
            trace.note("rules", || match subject.host.as_deref() {
                None => format!("{rule}: the host is the agent's own"),
                Some("") => format!("{rule}: there is no host"),
                Some(host) => format!("{rule}: the host is {host:?}"),
            });
        }
        for tag in &effect.add_tags {
            subject.tags.push(Cow::Owned(tag.clone()));
        }
        trace.stage("rules", || rule.clone(), &subject.name, &subject.tags);
        let (cleared, set) = self.masks[number];
        if cleared != 0 && matches!(subject.kind, Kind::Histogram | Kind::Timing) {
            subject.suffix_mask = subject.suffix_mask & !cleared | set;
            trace.note("rules", || {
                format!("{rule}: chooses the series of this histogram")
            });
        }
    }
}

fn change_values(actions: &[CompiledValue], tags: &mut Vec<Cow<'_, str>>) {
    tags.retain_mut(|tag| {
        for action in actions {
            match action.apply(tag) {
                TagOutcome::Unchanged => {}
                TagOutcome::Kept => return true,
                TagOutcome::Dropped => return false,
                TagOutcome::Changed(changed) => *tag = changed,
            }
        }
        true
    });
}

/// Returns whether the rule applied to this host.
fn change_host(host: &HostRule, subject: &mut Subject<'_>) -> bool {
    subject.host = match host {
        HostRule::Keep => return false,
        HostRule::Agent => None,
        HostRule::Nothing => Some(Cow::Borrowed("")),
        HostRule::Name(name) => Some(Cow::Owned(name.clone())),
        HostRule::Tag(key) => {
            // The first value by bytes counts, so the order of tags does not matter. All such tags are removed.
            let value = |tag: &str| {
                tag.split_once(':')
                    .filter(|(known, _)| known == key)
                    .map(|(_, value)| value.len())
            };
            let Some((tag, len)) = subject
                .tags
                .iter()
                .filter_map(|tag| Some((tag.clone(), value(tag)?)))
                .min()
            else {
                return false;
            };
            subject.tags.retain(|tag| value(tag).is_none());
            Some(Cow::Owned(tag[tag.len() - len..].to_owned()))
        }
    };
    true
}
