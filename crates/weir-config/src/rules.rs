//! Mapper profiles, tag filters and rules: their tables, and the resulting definitions.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use weir_protocol::Kind as MetricKind;
use weir_rules::{
    Definitions, Effect, HistogramChoice, HostRule, Kinds, Mapping, Pattern, RuleError, RuleLimits, RuleSet,
    TagStyles, ValueAction, ValueRule, lint,
};

use crate::setting::{DURATION_MAX, SettingType};
use crate::types::{HistogramAggregate, Percentile};
use crate::value::Scalar;
use crate::{choices, settings};

settings! {
    pub struct Profile {
        name: String = "''";
        prefix: String = "''";
        mappings: Vec<ProfileMapping> = "[]";
    }
}

settings! {
    pub struct ProfileMapping {
        pattern: String = "''".named("match");
        match_type: MatchType = "wildcard".takes(SettingType::Choice(&["wildcard", "regex"]));
        name: String = "''";
        tags: BTreeMap<String, String> = "{}";
        same_tags: SameTags = "add";
        delta_expiry: Duration = "0s".takes(SettingType::Duration { min: Duration::ZERO, max: DURATION_MAX });
        types: Vec<MetricType> = "[]";
        action: MappingAction = "map";
        dry_run: bool = "false";
    }
}

settings! {
    pub struct TagFilter {
        metric_name: String = "''";
        action: TagFilterAction = "exclude";
        tags: Vec<String> = "[]";
        dry_run: bool = "false";
    }
}

settings! {
    pub struct Rule {
        name: String = "''";
        pattern: String = "''".named("match");
        match_type: MatchType = "wildcard";
        types: Vec<MetricType> = "[]";
        drop: bool = "false";
        exclude_tags: Vec<String> = "[]";
        include_tags: Vec<String> = "[]";
        values: Vec<RuleValue> = "[]";
        host: HostRule = "keep";
        add_tags: Vec<String> = "[]";
        aggregates: Vec<RuleAggregate> = "[default]";
        percentiles: Vec<RulePercentile> = "[default]";
        last: bool = "false";
        dry_run: bool = "false";
    }
}

settings! {
    pub struct RuleValue {
        tag: String = "''";
        only: Vec<String> = "[]";
        action: Action = "keep";
        length: usize = "0".takes(SettingType::Integer { min: 0, max: 65_536 });
        salt: crate::Secret = "''";
        bounds: Vec<f64> = "[]";
        buckets: u32 = "0".takes(SettingType::Integer { min: 0, max: 1_000_000 });
        values: Vec<String> = "[]";
        patterns: Vec<String> = "[]";
        replacement: String = "''";
    }
}

choices! {
    pub enum MatchType {
        Wildcard: "wildcard",
        Exact: "exact",
        Prefix: "prefix",
        Regex: "regex",
    }
}

choices! {
    pub enum MappingAction {
        Map: "map",
        Drop: "drop",
    }
}

choices! {
    /// A message's tags whose keys a mapping also adds.
    pub enum SameTags {
        /// Both are there.
        Add: "add",
        /// The mapping's are there.
        Replace: "replace",
        /// The message's are there.
        Keep: "keep",
    }
}

choices! {
    /// The format of tags.
    pub enum TagStyle {
        /// `name#key=value,key=value`
        Librato: "librato",
        /// `name,key=value,key=value`
        Influx: "influx",
        /// `name[key=value,key=value]`
        SignalFx: "signalfx",
        /// `#key:value` behind the type
        Hashes: "hashes",
    }
}

choices! {
    pub enum TagFilterAction {
        Exclude: "exclude",
        Include: "include",
    }
}

choices! {
    pub enum Action {
        Keep: "keep",
        Drop: "drop",
        Hash: "hash",
        Truncate: "truncate",
        Bucket: "bucket",
        Allow: "allow",
    }
}

choices! {
    pub enum MetricType {
        Counter: "counter",
        Gauge: "gauge",
        Set: "set",
        Histogram: "histogram",
        Timing: "timing",
        Distribution: "distribution",
    }
}

/// One of the aggregates of a rule, or those of histograms without rules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RuleAggregate(Option<HistogramAggregate>);

impl Scalar for RuleAggregate {
    const KIND: SettingType =
        SettingType::Choice(&["default", "max", "min", "median", "avg", "sum", "count"]);

    fn parse(_: &SettingType, text: &str) -> Option<Self> {
        if text.eq_ignore_ascii_case("default") {
            return Some(Self(None));
        }
        HistogramAggregate::parse(&HistogramAggregate::KIND, text).map(|aggregate| Self(Some(aggregate)))
    }
}

/// One of the percentiles of a rule, or those of histograms without rules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RulePercentile(Option<Percentile>);

impl Scalar for RulePercentile {
    const KIND: SettingType = SettingType::Checked {
        allowed: "a number from 0 to 1 such as 0.95, or default",
        check: |text| text == "default" || Percentile::parse(text).is_some(),
    };

    fn parse(_: &SettingType, text: &str) -> Option<Self> {
        match text {
            "default" => Some(Self(None)),
            _ => Percentile::parse(text).map(|percentile| Self(Some(percentile))),
        }
    }
}

impl Scalar for HostRule {
    const KIND: SettingType = SettingType::Checked {
        allowed: "keep, agent, none, name:HOST or tag:KEY",
        check: |text| host(text).is_some(),
    };

    fn parse(_: &SettingType, text: &str) -> Option<Self> {
        host(text)
    }
}

fn host(text: &str) -> Option<HostRule> {
    match text {
        "keep" => Some(HostRule::Keep),
        "agent" => Some(HostRule::Agent),
        "none" => Some(HostRule::Nothing),
        _ => match text.split_once(':')? {
            (_, "") => None,
            ("name", name) => Some(HostRule::Name(name.to_owned())),
            ("tag", key) => Some(HostRule::Tag(key.to_owned())),
            _ => None,
        },
    }
}

/// The settings that rules depend on.
pub(crate) struct RuleSettings<'a> {
    /// Percentiles of all histograms, without rules.
    pub percentiles: &'a [Percentile],
    /// With its final dot.
    pub namespace: &'a str,
    pub is_filtered: &'a dyn Fn(&str) -> bool,
}

/// Rules ready for use, and warnings about them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleConfig {
    pub set: Arc<RuleSet>,
    /// Percentiles that some rule chooses; whole percents, sorted, without repetition.
    pub percentiles: Vec<u8>,
}

/// Problems are by key, such as `rules[2].match`; notes are sentences.
pub(crate) fn resolve(
    written: &crate::table::Rules,
    around: &RuleSettings<'_>,
) -> Result<(RuleConfig, Vec<String>), Vec<RuleError>> {
    let mut errors = Vec::new();
    let filters = written.metric_tag_filterlist.len();
    let definitions = Definitions {
        profiles: written.mapper_profiles.iter().map(profile).collect(),
        rules: rules(written, &mut errors),
        tag_styles: tag_styles(&written.tag_styles),
    };
    let percentiles = percentiles(&written.rules);
    let configured: Vec<u8> = around.percentiles.iter().map(|percentile| percentile.0).collect();
    let suffixes = histogram_suffixes(&configured, &percentiles);
    if suffixes.len() > SUFFIXES_MAX {
        let aggregates = HistogramAggregate::ALL.len();
        let (found, allowed) = (suffixes.len() - aggregates, SUFFIXES_MAX - aggregates);
        add_error(
            &mut errors,
            "rules",
            format!(
                "histogram_percentiles and the percentiles of rules are {found} different ones; at most {allowed} are allowed"
            ),
        );
    }
    let of_set = |more: RuleError| RuleError {
        path: path_as_written(&more.path, filters),
        message: more.message,
    };
    match RuleSet::new(definitions, &suffixes, RuleLimits::default()) {
        Ok(set) if errors.is_empty() => {
            let notes = lint::lint(&set, around.namespace, around.is_filtered)
                .into_iter()
                .map(|finding| format!("{}: {}", path_as_written(&finding.path, filters), finding.message))
                .collect();
            let set = Arc::new(set);
            Ok((RuleConfig { set, percentiles }, notes))
        }
        Ok(_) => Err(errors),
        Err(more) => {
            errors.extend(more.into_iter().map(of_set));
            Err(errors)
        }
    }
}

fn add_error(errors: &mut Vec<RuleError>, path: impl Into<String>, message: impl Into<String>) {
    errors.push(RuleError {
        path: path.into(),
        message: message.into(),
    });
}

/// Tag filters are the first rules of the set; this finds the key under which a rule was written.
fn path_as_written(path: &str, filters: usize) -> String {
    let number = path
        .strip_prefix("rules[")
        .and_then(|rest| rest.split_once(']'))
        .and_then(|(number, rest)| Some((number.parse::<usize>().ok()?, rest)));
    match number {
        Some((number, rest)) if number < filters => {
            let rest = rest.replace(".match", ".metric_name");
            format!("metric_tag_filterlist[{number}]{rest}")
        }
        Some((number, rest)) => format!("rules[{}]{rest}", number - filters),
        None => path.to_owned(),
    }
}

/// Suffixes a histogram can have: a bit for each.
pub const SUFFIXES_MAX: usize = 32;

/// Percentiles that get a bit where there is room, so that a reload can ask for them.
const COMMON_PERCENTILES: [u8; 12] = [50, 75, 80, 85, 90, 95, 98, 99, 25, 10, 5, 100];

/// Percentiles that rules choose.
fn percentiles(rules: &[Rule]) -> Vec<u8> {
    let chosen = rules.iter().flat_map(|rule| &rule.percentiles);
    let mut percentiles: Vec<u8> = chosen.filter_map(|chosen| Some(chosen.0?.0)).collect();
    percentiles.sort_unstable();
    percentiles.dedup();
    percentiles
}

/// Percentiles with a bit: configured ones, those of rules, and common ones.
pub fn all_percentiles(configured: &[u8], of_rules: &[u8]) -> Vec<u8> {
    let mut all: Vec<u8> = configured.iter().chain(of_rules).copied().collect();
    all.sort_unstable();
    all.dedup();
    for percentile in COMMON_PERCENTILES {
        if all.len() < SUFFIXES_MAX - HistogramAggregate::ALL.len() && !all.contains(&percentile) {
            all.push(percentile);
        }
    }
    all
}

fn histogram_suffixes(configured: &[u8], of_rules: &[u8]) -> Vec<String> {
    let aggregates = HistogramAggregate::ALL
        .iter()
        .map(|aggregate| format!(".{}", aggregate.as_str()));
    let percentiles = all_percentiles(configured, of_rules);
    aggregates
        .chain(percentiles.iter().map(|percent| format!(".{percent}percentile")))
        .collect()
}

/// The kinds that a list names; an empty one names all.
pub fn kinds(types: &[MetricType]) -> Kinds {
    if types.is_empty() {
        return Kinds::ALL;
    }
    Kinds::of(types.iter().map(|listed| match listed {
        MetricType::Counter => MetricKind::Counter,
        MetricType::Gauge => MetricKind::Gauge,
        MetricType::Set => MetricKind::Set,
        MetricType::Histogram => MetricKind::Histogram,
        MetricType::Timing => MetricKind::Timing,
        MetricType::Distribution => MetricKind::Distribution,
    }))
}

/// A pattern as rules have it; an empty one matches every name.
pub fn pattern(text: &str, match_type: MatchType) -> Pattern {
    match match_type {
        _ if text.is_empty() => Pattern::Any,
        MatchType::Wildcard => Pattern::Wildcard(text.to_owned()),
        MatchType::Exact => Pattern::Exact(text.to_owned()),
        MatchType::Prefix => Pattern::Prefix(text.to_owned()),
        MatchType::Regex => Pattern::Regex(text.to_owned()),
    }
}

fn tag_styles(written: &[TagStyle]) -> TagStyles {
    let has = |style| written.contains(&style);
    TagStyles {
        librato: has(TagStyle::Librato),
        influx: has(TagStyle::Influx),
        signalfx: has(TagStyle::SignalFx),
        hashes: has(TagStyle::Hashes),
    }
}

fn profile(written: &Profile) -> weir_rules::Profile {
    weir_rules::Profile {
        name: written.name.clone(),
        prefix: written.prefix.clone(),
        mappings: written.mappings.iter().map(mapping).collect(),
    }
}

fn mapping(written: &ProfileMapping) -> Mapping {
    Mapping {
        pattern: pattern(&written.pattern, written.match_type),
        kinds: kinds(&written.types),
        name: written.name.clone(),
        tags: written.tags.clone().into_iter().collect(),
        same_tags: match written.same_tags {
            SameTags::Add => weir_rules::SameTags::Add,
            SameTags::Replace => weir_rules::SameTags::Replace,
            SameTags::Keep => weir_rules::SameTags::Keep,
        },
        delta_expiry: delta_expiry(written.delta_expiry),
        drop: written.action == MappingAction::Drop,
        dry_run: written.dry_run,
    }
}

/// Whole seconds, at least one; zero is none.
pub fn delta_expiry(written: Duration) -> Option<NonZeroU32> {
    let seconds = written.as_nanos().div_ceil(1_000_000_000);
    NonZeroU32::new(u32::try_from(seconds).unwrap_or(u32::MAX))
}

/// Tag filters, then rules.
fn rules(written: &crate::table::Rules, errors: &mut Vec<RuleError>) -> Vec<weir_rules::Rule> {
    let filters = &written.metric_tag_filterlist;
    let mut rules: Vec<_> = (0..filters.len()).map(|at| filter(filters, at, errors)).collect();
    let own = written.rules.iter().enumerate();
    rules.extend(own.map(|(at, written)| rule(written, at, errors)));
    rules
}

fn rule(written: &Rule, at: usize, errors: &mut Vec<RuleError>) -> weir_rules::Rule {
    weir_rules::Rule {
        name: written.name.clone(),
        pattern: pattern(&written.pattern, written.match_type),
        kinds: kinds(&written.types),
        effect: effect(written, &format!("rules[{at}]"), errors),
        last: written.last,
        dry_run: written.dry_run,
    }
}

/// Rules of one output, applied after the agent's rules. Problems are by key, such as `rules[2].match`.
pub fn rules_of_output(written: &[Rule]) -> Result<RuleSet, Vec<RuleError>> {
    let mut errors = Vec::new();
    let own = written.iter().enumerate();
    let rules: Vec<weir_rules::Rule> = own.map(|(at, written)| rule(written, at, &mut errors)).collect();
    for (at, rule) in rules.iter().enumerate() {
        if rule.effect.histogram != HistogramChoice::default() {
            let message = "aggregates and percentiles apply where histograms become points, and this output makes no points";
            add_error(&mut errors, format!("rules[{at}]"), message);
        }
        if rule.dry_run {
            let message = "only the agent's own rules can be a dry run";
            add_error(&mut errors, format!("rules[{at}].dry_run"), message);
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let definitions = Definitions {
        rules,
        ..Definitions::default()
    };
    RuleSet::new(definitions, &[], RuleLimits::default())
}

fn filter(filters: &[TagFilter], at: usize, errors: &mut Vec<RuleError>) -> weir_rules::Rule {
    let filter = &filters[at];
    if filter.metric_name.is_empty() {
        let path = format!("metric_tag_filterlist[{at}].metric_name");
        add_error(errors, path, "is missing; must be the name of a metric");
    }
    let same = filters[..at]
        .iter()
        .any(|earlier| earlier.metric_name == filter.metric_name);
    let name = format!("metric_tag_filterlist: {}", filter.metric_name);
    weir_rules::Rule {
        // Two filters of one metric are allowed, and both apply.
        name: if same { format!("{name} [{at}]") } else { name },
        pattern: Pattern::Exact(filter.metric_name.clone()),
        kinds: Kinds::ALL,
        effect: Effect {
            tags: match filter.action {
                TagFilterAction::Include => weir_rules::TagFilter::Include(filter.tags.clone()),
                TagFilterAction::Exclude => weir_rules::TagFilter::Exclude(filter.tags.clone()),
            },
            ..Effect::default()
        },
        last: false,
        dry_run: filter.dry_run,
    }
}

fn effect(rule: &Rule, path: &str, errors: &mut Vec<RuleError>) -> Effect {
    let effect = Effect {
        drop: rule.drop,
        tags: tags(rule, path, errors),
        values: values(rule, path, errors),
        host: rule.host.clone(),
        add_tags: rule.add_tags.clone(),
        histogram: HistogramChoice {
            aggregates: chosen(&rule.aggregates, |one| Some(format!(".{}", one.0?.as_str()))),
            percentiles: chosen(&rule.percentiles, |one| Some(format!(".{}percentile", one.0?.0))),
        },
    };
    let is_no_tag = |tag: &String| tag.is_empty() || tag.contains([',', '|', '\n']);
    if rule.add_tags.iter().any(is_no_tag) {
        let message =
            "has a tag that is empty or has a comma, a bar or a line end, which is not allowed in a tag";
        add_error(errors, format!("{path}.add_tags"), message);
    }
    if effect == Effect::default() && rule.values.is_empty() && !rule.last {
        let message = "does nothing; must have one of drop, exclude_tags, include_tags, values, host, add_tags, aggregates, percentiles, last";
        add_error(errors, path, message);
    }
    let without_drop = Effect {
        drop: false,
        ..effect.clone()
    };
    if effect.drop && without_drop != Effect::default() {
        let message = "cannot be combined with other effects: a dropped metric has none";
        add_error(errors, format!("{path}.drop"), message);
    }
    effect
}

fn tags(rule: &Rule, path: &str, errors: &mut Vec<RuleError>) -> weir_rules::TagFilter {
    match (rule.include_tags.as_slice(), rule.exclude_tags.as_slice()) {
        ([], []) => weir_rules::TagFilter::All,
        ([], excluded) => weir_rules::TagFilter::Exclude(excluded.to_vec()),
        (included, excluded) => {
            if !excluded.is_empty() {
                let message = "cannot be combined with exclude_tags";
                add_error(errors, format!("{path}.include_tags"), message);
            }
            weir_rules::TagFilter::Include(included.to_vec())
        }
    }
}

fn values(rule: &Rule, path: &str, errors: &mut Vec<RuleError>) -> Vec<ValueRule> {
    let mut values = Vec::new();
    for (number, value) in rule.values.iter().enumerate() {
        let path = format!("{path}.values[{number}]");
        if value.tag.is_empty() {
            add_error(
                errors,
                format!("{path}.tag"),
                "is missing; must be the key of a tag, or * for all",
            );
        }
        match value_action(value) {
            Ok(action) => values.push(ValueRule {
                tag: value.tag.clone(),
                only: value.only.clone(),
                action,
            }),
            Err((field, message)) => add_error(errors, format!("{path}.{field}"), message),
        }
    }
    values
}

/// `None` where the list is the default one.
fn chosen<T>(listed: &[T], suffix: impl Fn(&T) -> Option<String>) -> Option<Vec<String>> {
    listed.iter().map(suffix).collect()
}

fn value_action(value: &RuleValue) -> Result<ValueAction, (&'static str, &'static str)> {
    Ok(match value.action {
        Action::Keep => ValueAction::Keep,
        Action::Drop => ValueAction::Drop,
        Action::Hash if value.length > 64 => {
            return Err(("length", "must be from 1 to 64 digits, or 0 for 8"));
        }
        Action::Hash => ValueAction::Hash {
            salt: value.salt.expose().to_owned(),
            digits: if value.length == 0 { 8 } else { value.length },
        },
        Action::Truncate if value.length == 0 => {
            return Err((
                "length",
                "is missing; truncate needs the number of characters to keep",
            ));
        }
        Action::Truncate => ValueAction::Truncate {
            characters: value.length,
        },
        Action::Bucket => return bucket(value),
        Action::Allow if value.values.is_empty() && value.patterns.is_empty() => {
            return Err(("values", "is missing; allow needs values or patterns"));
        }
        Action::Allow if value.replacement.contains([',', '|', '\n']) => {
            return Err((
                "replacement",
                "has a comma, a bar or a line end, which is not allowed in a tag",
            ));
        }
        Action::Allow => ValueAction::Allow {
            values: value.values.clone(),
            patterns: value.patterns.clone(),
            replacement: (!value.replacement.is_empty()).then(|| value.replacement.clone()),
        },
    })
}

fn bucket(value: &RuleValue) -> Result<ValueAction, (&'static str, &'static str)> {
    match (value.bounds.as_slice(), value.buckets) {
        ([], 0) => Err((
            "bounds",
            "is missing; bucket needs bounds of numbers, or a number of buckets",
        )),
        ([], count) => Ok(ValueAction::Shards { count }),
        (bounds, 0) => Ok(ValueAction::Ranges {
            bounds: bounds.to_vec(),
        }),
        (_, _) => Err(("buckets", "cannot be combined with bounds")),
    }
}
