//! Mapper profiles, tag filters and rules: their tables, and the definitions that follow from what was written.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use weir_output::settings::{Kind, Setting, setting};
use weir_protocol::Kind as MetricKind;
use weir_rules::{
    Definitions, Effect, Fault, HistogramChoice, HostRule, Kinds, Mapping, Pattern, Profile, Rule,
    RuleLimits, RuleSet, TagFilter, ValueAction, ValueRule, lint,
};

use super::types::{HistogramAggregate, is_percentile, percentile};

const KINDS: &[&str] = &["counter", "gauge", "set", "histogram", "timing", "distribution"];

const TYPES: Setting = setting("types", Kind::List(&Kind::Choice(KINDS)), "[]");
const DRY_RUN: Setting = setting("dry_run", Kind::Bool, "false");

const MAPPING: &[Setting] = &[
    setting("match", Kind::Text, "''"),
    setting("match_type", Kind::Choice(&["wildcard", "regex"]), "wildcard"),
    setting("name", Kind::Text, "''"),
    setting("tags", Kind::Map(&Kind::Text), "{}"),
    TYPES,
    setting("action", Kind::Choice(&["map", "drop"]), "map"),
    DRY_RUN,
];

const PROFILE: &[Setting] = &[
    setting("name", Kind::Text, "''"),
    setting("prefix", Kind::Text, "''"),
    setting("mappings", Kind::List(&Kind::Record(MAPPING)), "[]"),
];

pub const PROFILES: Kind = Kind::List(&Kind::Record(PROFILE));

const TAG_FILTER: &[Setting] = &[
    setting("metric_name", Kind::Text, "''"),
    setting("action", Kind::Choice(&["exclude", "include"]), "exclude"),
    setting("tags", Kind::List(&Kind::Text), "[]"),
    DRY_RUN,
];

pub const TAG_FILTERS: Kind = Kind::List(&Kind::Record(TAG_FILTER));

const VALUE: &[Setting] = &[
    setting("tag", Kind::Text, "''"),
    setting("only", Kind::List(&Kind::Text), "[]"),
    setting(
        "action",
        Kind::Choice(&["keep", "drop", "hash", "truncate", "bucket", "allow"]),
        "keep",
    ),
    setting("length", Kind::Integer { min: 0, max: 65_536 }, "0"),
    setting("salt", Kind::Secret, "''"),
    setting(
        "bounds",
        Kind::List(&Kind::Number {
            min: f64::MIN,
            max: f64::MAX,
        }),
        "[]",
    ),
    setting(
        "buckets",
        Kind::Integer {
            min: 0,
            max: 1_000_000,
        },
        "0",
    ),
    setting("values", Kind::List(&Kind::Text), "[]"),
    setting("patterns", Kind::List(&Kind::Text), "[]"),
    setting("replacement", Kind::Text, "''"),
];

const HOST: Kind = Kind::Checked {
    allowed: "keep, agent, none, name:HOST or tag:KEY",
    check: |text| host(text).is_some(),
};

const RULE: &[Setting] = &[
    setting("name", Kind::Text, "''"),
    setting("match", Kind::Text, "''"),
    setting(
        "match_type",
        Kind::Choice(&["wildcard", "exact", "prefix", "regex"]),
        "wildcard",
    ),
    TYPES,
    setting("drop", Kind::Bool, "false"),
    setting("exclude_tags", Kind::List(&Kind::Text), "[]"),
    setting("include_tags", Kind::List(&Kind::Text), "[]"),
    setting("values", Kind::List(&Kind::Record(VALUE)), "[]"),
    setting("host", HOST, "keep"),
    setting("add_tags", Kind::List(&Kind::Text), "[]"),
    setting(
        "aggregates",
        Kind::List(&Kind::Choice(&[
            "default", "max", "min", "median", "avg", "sum", "count",
        ])),
        "[default]",
    ),
    setting(
        "percentiles",
        Kind::List(&Kind::Checked {
            allowed: "a number from 0 to 1 such as 0.95, or default",
            check: |text| text == "default" || is_percentile(text),
        }),
        "[default]",
    ),
    setting("last", Kind::Bool, "false"),
    DRY_RUN,
];

pub const RULES: Kind = Kind::List(&Kind::Record(RULE));

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MatchType {
    Wildcard,
    Exact,
    Prefix,
    Regex,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawProfile {
    name: String,
    prefix: String,
    mappings: Vec<RawMapping>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMapping {
    r#match: String,
    match_type: MatchType,
    name: String,
    tags: BTreeMap<String, String>,
    types: Vec<String>,
    action: String,
    dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawTagFilter {
    metric_name: String,
    action: String,
    tags: Vec<String>,
    dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawRule {
    name: String,
    r#match: String,
    match_type: MatchType,
    types: Vec<String>,
    drop: bool,
    exclude_tags: Vec<String>,
    include_tags: Vec<String>,
    values: Vec<RawValue>,
    host: String,
    add_tags: Vec<String>,
    aggregates: Vec<String>,
    percentiles: Vec<String>,
    last: bool,
    dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawValue {
    tag: String,
    only: Vec<String>,
    action: String,
    length: usize,
    salt: String,
    bounds: Vec<f64>,
    buckets: u32,
    values: Vec<String>,
    patterns: Vec<String>,
    replacement: String,
}

/// The three settings together.
pub(super) struct RawRules<'a> {
    pub profiles: &'a [RawProfile],
    pub tag_filters: &'a [RawTagFilter],
    pub rules: &'a [RawRule],
    /// Of all histograms, without any rule.
    pub percentiles: &'a [u8],
    /// With its final dot.
    pub namespace: &'a str,
    pub is_filtered: &'a dyn Fn(&str) -> bool,
}

/// Rules ready for use, and what is to be said about them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleConfig {
    pub set: Arc<RuleSet>,
    /// Percentiles that some rule chooses; whole percents, sorted, without repetition.
    pub percentiles: Vec<u8>,
}

/// Problems are by key, such as `rules[2].match`; notes are sentences.
pub(super) fn resolve(raw: &RawRules<'_>) -> (Result<RuleConfig, Vec<Fault>>, Vec<String>) {
    let mut faults = Vec::new();
    let definitions = Definitions {
        profiles: raw.profiles.iter().map(profile).collect(),
        rules: rules(raw, &mut faults),
    };
    let mut percentiles: Vec<u8> = raw
        .rules
        .iter()
        .flat_map(|rule| rule.percentiles.iter().filter_map(|text| percentile(text)))
        .collect();
    percentiles.sort_unstable();
    percentiles.dedup();
    let suffixes = histogram_suffixes(raw.percentiles, &percentiles);
    if suffixes.len() > SUFFIXES_MAX {
        faults.push(Fault {
            path: "rules".into(),
            message: format!(
                "histogram_percentiles and the percentiles of rules are {} different ones together; at most {} are allowed",
                suffixes.len() - AGGREGATES.len(),
                SUFFIXES_MAX - AGGREGATES.len()
            ),
        });
    }
    let filters = raw.tag_filters.len();
    match RuleSet::new(definitions, &suffixes, RuleLimits::default()) {
        Ok(set) if faults.is_empty() => {
            let notes = lint::lint(&set, raw.namespace, raw.is_filtered)
                .into_iter()
                .map(|finding| format!("{}: {}", written(&finding.path, filters), finding.message))
                .collect();
            let set = Arc::new(set);
            (Ok(RuleConfig { set, percentiles }), notes)
        }
        Ok(_) => (Err(faults), Vec::new()),
        Err(more) => {
            faults.extend(more.into_iter().map(|fault| Fault {
                path: written(&fault.path, filters),
                message: fault.message,
            }));
            (Err(faults), Vec::new())
        }
    }
}

/// Tag filters are the first rules of the set; this finds the key under which a rule was written.
fn written(path: &str, filters: usize) -> String {
    let number = path
        .strip_prefix("rules[")
        .and_then(|rest| rest.split_once(']'))
        .and_then(|(number, rest)| Some((number.parse::<usize>().ok()?, rest)));
    match number {
        Some((number, rest)) if number < filters => {
            format!(
                "metric_tag_filterlist[{number}]{}",
                rest.replace(".match", ".metric_name")
            )
        }
        Some((number, rest)) => format!("rules[{}]{rest}", number - filters),
        None => path.to_owned(),
    }
}

/// Suffixes a histogram can have: a bit for each.
pub const SUFFIXES_MAX: usize = 32;

const AGGREGATES: [HistogramAggregate; 6] = [
    HistogramAggregate::Max,
    HistogramAggregate::Min,
    HistogramAggregate::Median,
    HistogramAggregate::Avg,
    HistogramAggregate::Sum,
    HistogramAggregate::Count,
];

/// Percentiles that get a bit where there is room, so that a reload can ask for them.
const COMMON_PERCENTILES: [u8; 12] = [50, 75, 80, 85, 90, 95, 98, 99, 25, 10, 5, 100];

/// Percentiles with a bit: those that are configured, those of rules, common ones.
pub fn all_percentiles(configured: &[u8], of_rules: &[u8]) -> Vec<u8> {
    let mut all: Vec<u8> = configured.iter().chain(of_rules).copied().collect();
    all.sort_unstable();
    all.dedup();
    for percentile in COMMON_PERCENTILES {
        if all.len() < SUFFIXES_MAX - AGGREGATES.len() && !all.contains(&percentile) {
            all.push(percentile);
        }
    }
    all
}

fn histogram_suffixes(configured: &[u8], of_rules: &[u8]) -> Vec<String> {
    let aggregates = AGGREGATES
        .iter()
        .map(|aggregate| format!(".{}", aggregate.as_str()));
    let percentiles = all_percentiles(configured, of_rules);
    aggregates
        .chain(percentiles.iter().map(|percent| format!(".{percent}percentile")))
        .collect()
}

fn kinds(names: &[String]) -> Kinds {
    if names.is_empty() {
        return Kinds::ALL;
    }
    let all = [
        MetricKind::Counter,
        MetricKind::Gauge,
        MetricKind::Set,
        MetricKind::Histogram,
        MetricKind::Timing,
        MetricKind::Distribution,
    ];
    let listed = KINDS.iter().zip(all);
    Kinds::of(
        listed
            .filter(|(name, _)| names.iter().any(|listed| listed == *name))
            .map(|(_, kind)| kind),
    )
}

fn pattern(text: &str, match_type: MatchType) -> Pattern {
    match match_type {
        _ if text.is_empty() => Pattern::Any,
        MatchType::Wildcard => Pattern::Wildcard(text.to_owned()),
        MatchType::Exact => Pattern::Exact(text.to_owned()),
        MatchType::Prefix => Pattern::Prefix(text.to_owned()),
        MatchType::Regex => Pattern::Regex(text.to_owned()),
    }
}

fn profile(raw: &RawProfile) -> Profile {
    Profile {
        name: raw.name.clone(),
        prefix: raw.prefix.clone(),
        mappings: raw
            .mappings
            .iter()
            .map(|mapping| Mapping {
                pattern: pattern(&mapping.r#match, mapping.match_type),
                kinds: kinds(&mapping.types),
                name: mapping.name.clone(),
                tags: mapping.tags.clone().into_iter().collect(),
                drop: mapping.action == "drop",
                dry_run: mapping.dry_run,
            })
            .collect(),
    }
}

fn rules(raw: &RawRules<'_>, faults: &mut Vec<Fault>) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for (at, filter) in raw.tag_filters.iter().enumerate() {
        if filter.metric_name.is_empty() {
            faults.push(Fault {
                path: format!("metric_tag_filterlist[{at}].metric_name"),
                message: "is missing; must be the name of a metric".into(),
            });
        }
        let same = raw.tag_filters[..at]
            .iter()
            .any(|earlier| earlier.metric_name == filter.metric_name);
        let name = format!("metric_tag_filterlist: {}", filter.metric_name);
        rules.push(Rule {
            // Two filters of one metric are allowed, and both apply.
            name: if same { format!("{name} [{at}]") } else { name },
            pattern: Pattern::Exact(filter.metric_name.clone()),
            kinds: Kinds::ALL,
            effect: Effect {
                tags: match filter.action.as_str() {
                    "include" => TagFilter::Include(filter.tags.clone()),
                    _ => TagFilter::Exclude(filter.tags.clone()),
                },
                ..Effect::default()
            },
            last: false,
            dry_run: filter.dry_run,
        });
    }
    for (at, raw) in raw.rules.iter().enumerate() {
        let mut fault = |field: &str, message: &str| {
            faults.push(Fault {
                path: format!("rules[{at}]{field}"),
                message: message.to_owned(),
            });
        };
        if !raw.exclude_tags.is_empty() && !raw.include_tags.is_empty() {
            fault(
                ".include_tags",
                "stands beside exclude_tags; one of the two is allowed",
            );
        }
        for tag in &raw.add_tags {
            if tag.is_empty() || tag.contains([',', '|', '\n']) {
                fault(
                    ".add_tags",
                    "has a tag that is empty or holds a comma, a bar or a line end, which no tag can",
                );
            }
        }
        let tags = if !raw.include_tags.is_empty() {
            TagFilter::Include(raw.include_tags.clone())
        } else if !raw.exclude_tags.is_empty() {
            TagFilter::Exclude(raw.exclude_tags.clone())
        } else {
            TagFilter::All
        };
        let mut values = Vec::new();
        for (number, value) in raw.values.iter().enumerate() {
            if value.tag.is_empty() {
                fault(
                    &format!(".values[{number}].tag"),
                    "is missing; must be the key of a tag, or * for all",
                );
            }
            match value_action(value) {
                Ok(action) => values.push(ValueRule {
                    tag: value.tag.clone(),
                    only: value.only.clone(),
                    action,
                }),
                Err((field, message)) => fault(&format!(".values[{number}].{field}"), message),
            }
        }
        let effect = Effect {
            drop: raw.drop,
            tags,
            values,
            host: host(&raw.host).unwrap_or_default(),
            add_tags: raw.add_tags.clone(),
            histogram: HistogramChoice {
                aggregates: chosen(&raw.aggregates, |name| format!(".{name}")),
                percentiles: chosen(&raw.percentiles, |text| {
                    format!(".{}percentile", percentile(text).unwrap_or_default())
                }),
            },
        };
        if effect == Effect::default() && raw.values.is_empty() && !raw.last {
            let message = "does nothing; must have one of drop, exclude_tags, include_tags, values, host, add_tags, aggregates, percentiles, last";
            fault("", message);
        }
        if effect.drop
            && (Effect {
                drop: false,
                ..effect.clone()
            }) != Effect::default()
        {
            fault(
                ".drop",
                "stands beside other effects, which a dropped metric cannot have",
            );
        }
        rules.push(Rule {
            name: raw.name.clone(),
            pattern: pattern(&raw.r#match, raw.match_type),
            kinds: kinds(&raw.types),
            effect,
            last: raw.last,
            dry_run: raw.dry_run,
        });
    }
    rules
}

/// `None` where the list is the default one.
fn chosen(texts: &[String], suffix: impl Fn(&str) -> String) -> Option<Vec<String>> {
    (!texts.iter().any(|text| text == "default")).then(|| texts.iter().map(|text| suffix(text)).collect())
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

fn value_action(raw: &RawValue) -> Result<ValueAction, (&'static str, &'static str)> {
    Ok(match raw.action.as_str() {
        "drop" => ValueAction::Drop,
        "hash" if raw.length > 64 => return Err(("length", "must be from 1 to 64 digits, or 0 for 8")),
        "hash" => ValueAction::Hash {
            salt: raw.salt.clone(),
            digits: if raw.length == 0 { 8 } else { raw.length },
        },
        "truncate" if raw.length == 0 => {
            return Err((
                "length",
                "is missing; truncate needs the number of characters to keep",
            ));
        }
        "truncate" => ValueAction::Truncate {
            characters: raw.length,
        },
        "bucket" => match (raw.bounds.is_empty(), raw.buckets) {
            (true, 0) => {
                return Err((
                    "bounds",
                    "is missing; bucket needs bounds of numbers, or a number of buckets",
                ));
            }
            (true, count) => ValueAction::Shards { count },
            (false, 0) => ValueAction::Ranges {
                bounds: raw.bounds.clone(),
            },
            (false, _) => return Err(("buckets", "stands beside bounds; one of the two is allowed")),
        },
        "allow" if raw.values.is_empty() && raw.patterns.is_empty() => {
            return Err(("values", "is missing; allow needs values or patterns"));
        }
        "allow" if raw.replacement.contains([',', '|', '\n']) => {
            return Err((
                "replacement",
                "holds a comma, a bar or a line end, which no tag can",
            ));
        }
        "allow" => ValueAction::Allow {
            values: raw.values.clone(),
            patterns: raw.patterns.clone(),
            replacement: (!raw.replacement.is_empty()).then(|| raw.replacement.clone()),
        },
        _ => ValueAction::Keep,
    })
}
