//! Rules as they are written, and the same compiled.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::Instant;

use regex_automata::meta;
use weir_protocol::Kind;

use crate::names::{MatchScratch, NameMatcher};
use crate::pattern::regex;
use crate::template::Groups;
use crate::values::{CompiledValue, Outcome};
use crate::{Limits, Pattern, PatternError, Template, Trace, ValueRule, glob};

/// Everything an operator wrote.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Definitions {
    pub profiles: Vec<Profile>,
    /// In the order they apply in.
    pub rules: Vec<Rule>,
}

/// Mappings for names with a common prefix. Of all profiles the first mapping that matches is applied, and no other.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub name: String,
    /// `*`: every name.
    pub prefix: String,
    pub mappings: Vec<Mapping>,
}

/// A new name, and tags, for names as they arrive.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapping {
    pub pattern: Pattern,
    pub kinds: Kinds,
    /// A template; not used when the metric is dropped.
    pub name: String,
    /// Keys and templates of their values.
    pub tags: Vec<(String, String)>,
    pub drop: bool,
    pub dry_run: bool,
}

/// What happens to metrics whose final name matches.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub name: String,
    pub pattern: Pattern,
    pub kinds: Kinds,
    pub effect: Effect,
    /// No later rule sees a metric that this one matched.
    pub last: bool,
    pub dry_run: bool,
}

/// In this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effect {
    pub drop: bool,
    pub tags: TagFilter,
    pub values: Vec<ValueRule>,
    pub host: HostRule,
    pub add_tags: Vec<String>,
    pub histogram: HistogramChoice,
}

/// Which series histograms and timings become, by suffix: `.max`, `.95percentile`. `None`: those that all have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramChoice {
    pub aggregates: Option<Vec<String>>,
    pub percentiles: Option<Vec<String>>,
}

/// Tags by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TagFilter {
    #[default]
    All,
    Exclude(Vec<String>),
    Include(Vec<String>),
}

/// Which host a metric gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostRule {
    #[default]
    Keep,
    /// The agent's own.
    Agent,
    /// None at all.
    Nothing,
    Name(String),
    /// The value of a tag, the first by bytes if there are several; they are taken out. Without the tag the host stays.
    Tag(String),
}

/// A set of metric kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Default for Kinds {
    fn default() -> Self {
        Kinds::ALL
    }
}

impl Kinds {
    pub const ALL: Kinds = Kinds((1 << Kind::COUNT) - 1);

    pub fn of(kinds: impl IntoIterator<Item = Kind>) -> Self {
        Kinds(kinds.into_iter().fold(0, |bits, kind| bits | 1 << kind as u8))
    }

    pub fn contains(self, kind: Kind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }

    pub fn covers(self, other: Kinds) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn overlaps(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }
}

/// A mapping or a rule of one set. Mappings come first, then rules, then the list of filtered names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u32);

/// Where in the way of a name a rule stands.
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

/// What is shown of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInfo {
    pub name: String,
    pub stage: Stage,
    pub dry_run: bool,
}

/// What is wrong with which part, such as `rules[2].match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub path: String,
    pub message: String,
}

/// One context on its way through the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject<'t> {
    pub kind: Kind,
    pub name: Cow<'t, str>,
    /// `None`: the agent's own. Empty: none at all.
    pub host: Option<Cow<'t, str>>,
    pub tags: Vec<Cow<'t, str>>,
    /// Bits of the histogram suffixes.
    pub suffix_mask: u32,
}

/// What applying a set to one context involved.
#[derive(Debug, Default)]
pub struct Applied {
    /// Rules that applied, with the nanoseconds each took beside the matching.
    pub hits: Vec<(RuleId, u64)>,
    /// Rules on trial that would have applied.
    pub dry: Vec<RuleId>,
    pub dropped_by: Option<RuleId>,
    /// Nanoseconds of finding the rules that match.
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
    /// Made when the expression first matches: most never do.
    regex: OnceLock<meta::Regex>,
}

/// Rules, compiled.
#[derive(Debug)]
pub struct RuleSet {
    definitions: Definitions,
    limits: Limits,
    mapper: NameMatcher,
    mappings: Vec<CompiledMapping>,
    /// Profile and place in it, by mapping number.
    places: Vec<(usize, usize)>,
    names: NameMatcher,
    values: Vec<Vec<CompiledValue>>,
    /// By rule: bits of the histogram suffixes that are cleared, then those that are set.
    masks: Vec<(u32, u32)>,
    suffixes: Vec<String>,
    infos: Vec<RuleInfo>,
    has_dry_run: bool,
}

/// A set that nothing is wrong with.
pub type Compiled = Result<RuleSet, Vec<Fault>>;

impl PartialEq for RuleSet {
    fn eq(&self, other: &Self) -> bool {
        self.definitions == other.definitions
            && self.suffixes == other.suffixes
            && self.limits == other.limits
    }
}

impl Default for RuleSet {
    fn default() -> Self {
        RuleSet::new(Definitions::default(), &[], Limits::default()).expect("nothing is nothing wrong")
    }
}

impl RuleSet {
    /// Compiles `definitions`, or says everything that is wrong with them. `suffixes`: those of histograms, in the order of
    /// their bits.
    pub fn new(definitions: Definitions, suffixes: &[String], limits: Limits) -> Compiled {
        let mut faults = Vec::new();
        let mut fault = |path: String, message: String| faults.push(Fault { path, message });
        let (mut mappings, mut places) = (Vec::new(), Vec::new());
        for (at, profile) in definitions.profiles.iter().enumerate() {
            let path = format!("mapper_profiles[{at}]");
            if profile.name.is_empty() {
                fault(
                    format!("{path}.name"),
                    "is missing; each profile has a name".into(),
                );
            }
            if profile.prefix.is_empty() {
                fault(
                    format!("{path}.prefix"),
                    "is missing; must be how names begin, or * for all".into(),
                );
            }
            for (number, mapping) in profile.mappings.iter().enumerate() {
                places.push((at, number));
                let path = format!("{path}.mappings[{number}]");
                match CompiledMapping::new(at, mapping, &limits) {
                    Ok(compiled) => mappings.push(compiled),
                    Err(found) => found
                        .into_iter()
                        .for_each(|(field, message)| fault(format!("{path}.{field}"), message)),
                }
            }
        }
        let (mut values, mut masks) = (Vec::new(), Vec::new());
        let mut names_seen = std::collections::HashSet::new();
        for (at, rule) in definitions.rules.iter().enumerate() {
            let path = format!("rules[{at}]");
            if let Err(PatternError(message)) = rule.pattern.validate(&limits) {
                fault(format!("{path}.match"), message);
            }
            let mut compiled = Vec::new();
            for (number, value) in rule.effect.values.iter().enumerate() {
                match CompiledValue::new(value, &limits) {
                    Ok(value) => compiled.push(value),
                    Err(PatternError(message)) => fault(format!("{path}.values[{number}]"), message),
                }
            }
            values.push(compiled);
            match rule.effect.histogram.mask(suffixes) {
                Ok(mask) => masks.push(mask),
                Err((field, message)) => fault(format!("{path}.{field}"), message),
            }
            let is_new = names_seen.insert(rule.name.as_str());
            if rule.name.is_empty() {
                fault(
                    format!("{path}.name"),
                    "is missing; each rule has a name, under which it is counted".into(),
                );
            } else if !is_new {
                fault(
                    format!("{path}.name"),
                    format!("{:?} is the name of an earlier rule too", rule.name),
                );
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let listed: Vec<&Pattern> = places
            .iter()
            .map(|&(profile, number)| &definitions.profiles[profile].mappings[number].pattern)
            .collect();
        let mapper = NameMatcher::new(&listed, &limits).map_err(|(at, error)| {
            let path = at.map_or("mapper_profiles".to_owned(), |at| {
                let (profile, number) = places[at];
                format!("mapper_profiles[{profile}].mappings[{number}].match")
            });
            vec![Fault {
                path,
                message: error.0,
            }]
        })?;
        let listed: Vec<&Pattern> = definitions.rules.iter().map(|rule| &rule.pattern).collect();
        let names = NameMatcher::new(&listed, &limits).map_err(|(at, error)| {
            let path = at.map_or("rules".to_owned(), |at| format!("rules[{at}].match"));
            vec![Fault {
                path,
                message: error.0,
            }]
        })?;
        let mut infos: Vec<RuleInfo> = places
            .iter()
            .map(|&(profile, number)| {
                let profile = &definitions.profiles[profile];
                let mapping = &profile.mappings[number];
                RuleInfo {
                    name: format!("{}: {}", profile.name, mapping.pattern.text()),
                    stage: Stage::Mapper,
                    dry_run: mapping.dry_run,
                }
            })
            .collect();
        infos.extend(definitions.rules.iter().map(|rule| RuleInfo {
            name: rule.name.clone(),
            stage: Stage::Rule,
            dry_run: rule.dry_run,
        }));
        let has_dry_run = infos.iter().any(|info| info.dry_run);
        infos.push(RuleInfo {
            name: "metric_filterlist".into(),
            stage: Stage::Filterlist,
            dry_run: false,
        });
        Ok(RuleSet {
            definitions,
            limits,
            mapper,
            mappings,
            places,
            names,
            values,
            masks,
            suffixes: suffixes.to_vec(),
            infos,
            has_dry_run,
        })
    }

    pub(crate) fn mapper(&self) -> &NameMatcher {
        &self.mapper
    }

    pub(crate) fn matcher(&self) -> &NameMatcher {
        &self.names
    }

    pub fn definitions(&self) -> &Definitions {
        &self.definitions
    }

    /// Mappings and rules, without the list of filtered names.
    pub fn len(&self) -> usize {
        self.infos.len() - 1
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn has_dry_run(&self) -> bool {
        self.has_dry_run
    }

    /// By [`RuleId`]: mappings, rules, the list of filtered names.
    pub fn infos(&self) -> &[RuleInfo] {
        &self.infos
    }

    pub fn info(&self, id: RuleId) -> &RuleInfo {
        &self.infos[id.0 as usize]
    }

    /// The rule that stands for the list of filtered names, which others apply.
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

    /// First stage, on the name as it arrived. `assume`: a rule on trial that is to be applied all the same. False: the
    /// metric is dropped.
    pub fn map(
        &self,
        subject: &mut Subject<'_>,
        assume: Option<RuleId>,
        scratch: &mut Scratch,
        applied: &mut Applied,
        trace: &mut impl Trace,
    ) -> bool {
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
                    format!("{name}: would apply, but is on trial (dry_run)")
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

    /// New name and tags by one mapping. False: it yields no name, and does not apply.
    fn expand(&self, number: usize, subject: &mut Subject<'_>) -> bool {
        let (mapping, compiled) = (self.mapping(number), &self.mappings[number]);
        let original = std::mem::take(&mut subject.name);
        let mut stars = Vec::new();
        let captures;
        let groups = match &mapping.pattern {
            Pattern::Wildcard(pattern) => {
                let _ = glob::captures(pattern, &original, &mut stars);
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
            let mut tag = format!("{key}:");
            value.expand(groups, &mut tag);
            subject.tags.push(Cow::Owned(tag));
        }
        subject.name = Cow::Owned(name);
        true
    }

    /// Last stage, on the final name and all tags but the agent's own. False: the metric is dropped.
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
                    format!("{}: would apply, but is on trial (dry_run)", rule.name)
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
                Outcome::Unchanged => {}
                Outcome::Kept => return true,
                Outcome::Dropped => return false,
                Outcome::Changed(changed) => *tag = changed,
            }
        }
        true
    });
}

/// Returns whether the rule was about this host.
fn change_host(host: &HostRule, subject: &mut Subject<'_>) -> bool {
    subject.host = match host {
        HostRule::Keep => return false,
        HostRule::Agent => None,
        HostRule::Nothing => Some(Cow::Borrowed("")),
        HostRule::Name(name) => Some(Cow::Owned(name.clone())),
        HostRule::Tag(key) => {
            // Of several the first by bytes, so that their order in the message does not matter; all go.
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

impl HistogramChoice {
    /// Bits to clear and to set; or the field at fault and why.
    fn mask(&self, suffixes: &[String]) -> Result<(u32, u32), (&'static str, String)> {
        let (mut cleared, mut set) = (0, 0);
        for (field, chosen, is_percentile) in [
            ("aggregates", &self.aggregates, false),
            ("percentiles", &self.percentiles, true),
        ] {
            let Some(chosen) = chosen else { continue };
            for (bit, suffix) in suffixes.iter().enumerate() {
                if suffix.ends_with("percentile") == is_percentile {
                    cleared |= 1 << bit;
                }
            }
            for suffix in chosen {
                let Some(bit) = suffixes.iter().position(|known| known == suffix) else {
                    let name = suffix.trim_start_matches('.');
                    let message = format!(
                        "{name} is not among the series that histograms were given at the start; a restart adds it"
                    );
                    return Err((field, message));
                };
                set |= 1 << bit;
            }
        }
        Ok((cleared, set))
    }
}

impl TagFilter {
    fn keeps(&self, tag: &str) -> bool {
        let key = tag.split_once(':').map_or(tag, |(key, _)| key);
        match self {
            TagFilter::All => true,
            TagFilter::Exclude(keys) => !keys.iter().any(|excluded| excluded == key),
            TagFilter::Include(keys) => keys.iter().any(|included| included == key),
        }
    }
}

impl CompiledMapping {
    /// Errors come with the field they are about.
    fn new(profile: usize, mapping: &Mapping, limits: &Limits) -> Result<Self, Vec<(String, String)>> {
        let mut faults = Vec::new();
        let mut regex_of = None;
        match &mapping.pattern {
            Pattern::Any => faults.push(("match".into(), "is missing; must be a pattern of names".into())),
            Pattern::Regex(text) => match regex(text, limits) {
                Ok(regex) => regex_of = Some(regex),
                Err(error) => faults.push(("match".into(), error.0)),
            },
            pattern => {
                if let Err(error) = pattern.validate(limits) {
                    faults.push(("match".into(), error.0));
                }
            }
        }
        let forbidden = |text: &str| text.contains([':', '|', '\n']);
        if mapping.name.is_empty() && !mapping.drop {
            faults.push(("name".into(), "is missing; must be the new name".into()));
        }
        if forbidden(&mapping.name) {
            faults.push((
                "name".into(),
                "holds a colon, a bar or a line end, which no metric name can".into(),
            ));
        }
        let stars = match &mapping.pattern {
            Pattern::Wildcard(text) => text.matches('*').count(),
            _ => 0,
        };
        let name = Template::parse(&mapping.name);
        let mut tags = Vec::new();
        let missing = |template: &Template| {
            let absent = template.missing(stars, regex_of.as_ref());
            (!absent.is_empty() && faults_free(&mapping.pattern, regex_of.as_ref())).then(|| {
                format!(
                    "refers to {}, which the pattern has no group for; {}",
                    absent.join(", "),
                    groups(stars, regex_of.as_ref())
                )
            })
        };
        let mut found = Vec::new();
        found.extend(missing(&name).map(|message| ("name".to_owned(), message)));
        for (key, value) in &mapping.tags {
            let template = Template::parse(value);
            found.extend(missing(&template).map(|message| (format!("tags.{key}"), message)));
            if key.is_empty() || key.contains([',', '|', '\n']) || value.contains([',', '|', '\n']) {
                found.push((
                    format!("tags.{key}"),
                    "is empty or holds a comma, a bar or a line end, which no tag can".into(),
                ));
            }
            tags.push((key.clone(), template));
        }
        faults.extend(found);
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(CompiledMapping {
            profile,
            name,
            tags,
            regex: OnceLock::new(),
        })
    }
}

/// Whether the pattern was understood, so that its groups are known.
fn faults_free(pattern: &Pattern, regex: Option<&meta::Regex>) -> bool {
    !matches!(pattern, Pattern::Regex(_)) || regex.is_some()
}

fn groups(stars: usize, regex: Option<&meta::Regex>) -> String {
    match regex.map_or(stars, |regex| regex.captures_len() - 1) {
        0 => "it has none".into(),
        1 => "it has one, ${1}".into(),
        count => format!("it has {count}, ${{1}} to ${{{count}}}"),
    }
}
