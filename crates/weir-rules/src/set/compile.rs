//! Compiles rules, or reports every error in them.

use std::collections::HashSet;
use std::sync::OnceLock;

use regex_automata::meta;

use super::{CompiledMapping, RuleInfo, RuleSet, Stage};
use crate::names::NameMatcher;
use crate::pattern::regex;
use crate::values::CompiledValue;
use crate::{
    Definitions, HistogramChoice, Mapping, Pattern, PatternError, Profile, Rule, RuleLimits, Template,
};

/// An error and its place, such as `rules[2].match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    pub path: String,
    pub message: String,
}

/// A set of rules, or all errors.
pub type Compiled = Result<RuleSet, Vec<RuleError>>;

/// The errors found so far.
#[derive(Default)]
struct RuleErrors(Vec<RuleError>);

impl RuleErrors {
    fn add(&mut self, path: String, message: impl Into<String>) {
        let message = message.into();
        self.0.push(RuleError { path, message });
    }
}

impl RuleSet {
    /// Compiles `definitions` or returns every error. `suffixes`: the suffixes of histograms, in the order of their bits.
    pub fn new(definitions: Definitions, suffixes: &[String], limits: RuleLimits) -> Compiled {
        let mut errors = RuleErrors::default();
        let mappings = compile_profiles(&definitions.profiles, &limits, &mut errors);
        let (values, masks) = compile_rules(&definitions.rules, suffixes, &limits, &mut errors);
        if !errors.0.is_empty() {
            return Err(errors.0);
        }
        let places = places(&definitions);
        let infos = infos(&definitions);
        Ok(RuleSet {
            mapper: mapper(&definitions, &places, &limits)?,
            names: names(&definitions, &limits)?,
            has_dry_run: infos.iter().any(|info| info.dry_run),
            suffixes: suffixes.to_vec(),
            definitions,
            limits,
            mappings,
            places,
            values,
            masks,
            infos,
        })
    }
}

fn compile_profiles(
    profiles: &[Profile],
    limits: &RuleLimits,
    errors: &mut RuleErrors,
) -> Vec<CompiledMapping> {
    let mut mappings = Vec::new();
    for (at, profile) in profiles.iter().enumerate() {
        let path = format!("mapper_profiles[{at}]");
        if profile.name.is_empty() {
            errors.add(format!("{path}.name"), "is missing; each profile has a name");
        }
        if profile.prefix.is_empty() {
            let message = "is missing; must be a prefix of names, or * for all";
            errors.add(format!("{path}.prefix"), message);
        }
        for (number, mapping) in profile.mappings.iter().enumerate() {
            match CompiledMapping::new(at, mapping, limits) {
                Ok(compiled) => mappings.push(compiled),
                Err(found) => found.into_iter().for_each(|error| {
                    let path = format!("{path}.mappings[{number}].{}", error.path);
                    errors.add(path, error.message);
                }),
            }
        }
    }
    mappings
}

/// By rule: its actions on values, and the histogram suffix bits to clear and to set.
type CompiledRules = (Vec<Vec<CompiledValue>>, Vec<(u32, u32)>);

fn compile_rules(
    rules: &[Rule],
    suffixes: &[String],
    limits: &RuleLimits,
    errors: &mut RuleErrors,
) -> CompiledRules {
    let (mut values, mut masks) = (Vec::new(), Vec::new());
    let mut names = HashSet::new();
    for (at, rule) in rules.iter().enumerate() {
        let path = format!("rules[{at}]");
        if let Err(PatternError(message)) = rule.pattern.validate(limits) {
            errors.add(format!("{path}.match"), message);
        }
        values.push(compile_values(rule, &path, limits, errors));
        match rule.effect.histogram.mask(suffixes) {
            Ok(mask) => masks.push(mask),
            Err((field, message)) => errors.add(format!("{path}.{field}"), message),
        }
        let is_new = names.insert(rule.name.as_str());
        if rule.name.is_empty() {
            let message = "is missing; each rule has a name, under which it is counted";
            errors.add(format!("{path}.name"), message);
        } else if !is_new {
            let message = format!("{:?} is the name of an earlier rule too", rule.name);
            errors.add(format!("{path}.name"), message);
        }
    }
    (values, masks)
}

fn compile_values(
    rule: &Rule,
    path: &str,
    limits: &RuleLimits,
    errors: &mut RuleErrors,
) -> Vec<CompiledValue> {
    let mut compiled = Vec::new();
    for (number, value) in rule.effect.values.iter().enumerate() {
        match CompiledValue::new(value, limits) {
            Ok(value) => compiled.push(value),
            Err(PatternError(message)) => errors.add(format!("{path}.values[{number}]"), message),
        }
    }
    compiled
}

/// Profile and position in it, by mapping number.
fn places(definitions: &Definitions) -> Vec<(usize, usize)> {
    let profiles = definitions.profiles.iter().enumerate();
    profiles
        .flat_map(|(at, profile)| (0..profile.mappings.len()).map(move |number| (at, number)))
        .collect()
}

fn mapper(
    definitions: &Definitions,
    places: &[(usize, usize)],
    limits: &RuleLimits,
) -> Result<NameMatcher, Vec<RuleError>> {
    let mappings = definitions.profiles.iter().flat_map(|profile| &profile.mappings);
    let patterns: Vec<&Pattern> = mappings.map(|mapping| &mapping.pattern).collect();
    NameMatcher::new(&patterns, limits).map_err(|(at, error)| {
        let path = at.map_or("mapper_profiles".to_owned(), |at| {
            let (profile, number) = places[at];
            format!("mapper_profiles[{profile}].mappings[{number}].match")
        });
        let message = error.0;
        vec![RuleError { path, message }]
    })
}

fn names(definitions: &Definitions, limits: &RuleLimits) -> Result<NameMatcher, Vec<RuleError>> {
    let patterns: Vec<&Pattern> = definitions.rules.iter().map(|rule| &rule.pattern).collect();
    NameMatcher::new(&patterns, limits).map_err(|(at, error)| {
        let path = at.map_or("rules".to_owned(), |at| format!("rules[{at}].match"));
        let message = error.0;
        vec![RuleError { path, message }]
    })
}

/// Ordered by [`super::RuleId`].
fn infos(definitions: &Definitions) -> Vec<RuleInfo> {
    let mut infos = Vec::new();
    for profile in &definitions.profiles {
        infos.extend(profile.mappings.iter().map(|mapping| RuleInfo {
            name: format!("{}: {}", profile.name, mapping.pattern.text()),
            stage: Stage::Mapper,
            dry_run: mapping.dry_run,
        }));
    }
    infos.extend(definitions.rules.iter().map(|rule| RuleInfo {
        name: rule.name.clone(),
        stage: Stage::Rule,
        dry_run: rule.dry_run,
    }));
    infos.push(RuleInfo {
        name: "metric_filterlist".into(),
        stage: Stage::Filterlist,
        dry_run: false,
    });
    infos
}

impl HistogramChoice {
    /// The bits to clear and to set, or the invalid field and the reason.
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

/// The groups that the templates of a mapping can refer to.
struct GroupsOf {
    stars: usize,
    /// Also `None` if the expression is invalid.
    regex: Option<meta::Regex>,
    /// The pattern is valid, so its groups are known.
    known: bool,
}

impl GroupsOf {
    /// Also checks the pattern of the mapping.
    fn new(pattern: &Pattern, limits: &RuleLimits, errors: &mut RuleErrors) -> Self {
        let mut groups = GroupsOf {
            stars: 0,
            regex: None,
            known: true,
        };
        let checked = match pattern {
            Pattern::Any => Err(PatternError("is missing; must be a pattern of names".into())),
            Pattern::Regex(text) => regex(text, limits).map(|regex| groups.regex = Some(regex)),
            pattern => pattern.validate(limits),
        };
        if let Pattern::Wildcard(text) = pattern {
            groups.stars = text.matches('*').count();
        }
        groups.known = !matches!(pattern, Pattern::Regex(_)) || groups.regex.is_some();
        if let Err(PatternError(message)) = checked {
            errors.add("match".into(), message);
        }
        groups
    }

    fn check(&self, field: String, template: &Template, errors: &mut RuleErrors) {
        let absent = template.missing(self.stars, self.regex.as_ref());
        if !absent.is_empty() && self.known {
            let (absent, there) = (absent.join(", "), self.describe());
            let message = format!("refers to {absent}, but the pattern has no such group; {there}");
            errors.add(field, message);
        }
    }

    fn describe(&self) -> String {
        match self
            .regex
            .as_ref()
            .map_or(self.stars, |regex| regex.captures_len() - 1)
        {
            0 => "it has none".into(),
            1 => "it has one, ${1}".into(),
            count => format!("it has {count}, ${{1}} to ${{{count}}}"),
        }
    }
}

impl CompiledMapping {
    /// The paths of errors are relative to the mapping.
    fn new(profile: usize, mapping: &Mapping, limits: &RuleLimits) -> Result<Self, Vec<RuleError>> {
        let mut errors = RuleErrors::default();
        let groups = GroupsOf::new(&mapping.pattern, limits, &mut errors);
        let name = Template::parse(&mapping.name);
        check_name(mapping, &mut errors);
        groups.check("name".into(), &name, &mut errors);
        let mut tags = Vec::new();
        for (key, value) in &mapping.tags {
            let template = Template::parse(value);
            groups.check(format!("tags.{key}"), &template, &mut errors);
            check_tag(key, value, &mut errors);
            tags.push((key.clone(), template));
        }
        if !errors.0.is_empty() {
            return Err(errors.0);
        }
        Ok(CompiledMapping {
            profile,
            name,
            tags,
            regex: OnceLock::new(),
        })
    }
}

fn check_name(mapping: &Mapping, errors: &mut RuleErrors) {
    if mapping.name.is_empty() && !mapping.drop {
        errors.add("name".into(), "is missing; must be the new name");
    }
    if mapping.name.contains([':', '|', '\n']) {
        let message = "has a colon, a bar or a line end, which is not allowed in a metric name";
        errors.add("name".into(), message);
    }
}

fn check_tag(key: &str, value: &str, errors: &mut RuleErrors) {
    let forbidden = [',', '|', '\n'];
    if key.is_empty() || key.contains(forbidden) || value.contains(forbidden) {
        let message = "is empty or has a comma, a bar or a line end, which is not allowed in a tag";
        errors.add(format!("tags.{key}"), message);
    }
}
