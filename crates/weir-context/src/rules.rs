//! The path of a name and its tags from the wire to the aggregate: mapper, special tags, namespace, name filter, rules, extra tags. Applied
//! once per raw context, never per sample.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;

use weir_protocol::{Kind, SpecialTag, special_tag};
use weir_rules::{Applied, RuleId, RuleSet, Scratch, Subject, Trace, Untraced};

/// Names with these prefixes get no namespace, unless the operator gives another list.
pub const NAMESPACE_EXCEPTIONS: [&str; 21] = [
    "datadog.agent",
    "datadog.dogstatsd",
    "datadog.process",
    "datadog.trace_agent",
    "datadog.tracer",
    "activemq",
    "activemq_58",
    "airflow",
    "cassandra",
    "confluent",
    "hazelcast",
    "hive",
    "ignite",
    "jboss",
    "jvm",
    "kafka",
    "presto",
    "sidekiq",
    "solr",
    "tomcat",
    "runtime",
];

/// Names to drop: exact names or prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameFilter {
    names: Vec<String>,
    match_prefix: bool,
}

impl NameFilter {
    pub fn new(mut names: Vec<String>, match_prefix: bool) -> Self {
        names.sort_unstable();
        names.dedup();
        if match_prefix {
            // A prefix of another prefix makes the longer one superfluous. Without it the nearest smaller entry decides.
            names.dedup_by(|later, earlier| later.starts_with(earlier.as_str()));
        }
        NameFilter { names, match_prefix }
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether a metric of this name is dropped.
    pub fn matches(&self, name: &str) -> bool {
        let at = self.names.partition_point(|entry| entry.as_str() <= name);
        let Some(candidate) = at.checked_sub(1).map(|at| &self.names[at]) else {
            return false;
        };
        if self.match_prefix {
            name.starts_with(candidate.as_str())
        } else {
            name == candidate
        }
    }
}

/// The rules of one configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Mapper and rules, shared by every worker.
    set: Arc<RuleSet>,
    /// Prefix of names, with its final dot. Empty for none.
    namespace: String,
    namespace_exceptions: Vec<String>,
    pub filter: NameFilter,
    /// Appended to every metric, event and check.
    extra_tags: Vec<String>,
    /// The agent's own hostname.
    hostname: String,
    /// Suffixes of a histogram's series, checked by the filter with the name. At most 32.
    suffixes: Vec<String>,
    /// Bits of the suffixes that a histogram has if no rule names it.
    suffix_mask: u32,
    delta_expiry: Option<NonZeroU32>,
    /// With a prefix: every histogram and timing sample also goes into a distribution with that prefix.
    copy_to_distribution: Option<String>,
    /// Longer tags are cut to this many bytes, at a character boundary.
    max_tag_bytes: Option<usize>,
}

impl Default for Rules {
    fn default() -> Self {
        Rules::new(RuleSettings::default())
    }
}

/// Arguments of [`Rules::new`].
#[derive(Clone, Debug, Default)]
pub struct RuleSettings {
    /// Mapper and rules.
    pub set: Arc<RuleSet>,
    pub namespace: String,
    /// `None` means [`NAMESPACE_EXCEPTIONS`].
    pub namespace_exceptions: Option<Vec<String>>,
    pub filter: NameFilter,
    pub extra_tags: Vec<String>,
    pub hostname: String,
    /// Each begins with its dot: `.max`, `.95percentile`.
    pub histogram_suffixes: Vec<String>,
    /// Bits of the suffixes that a histogram has if no rule names it. `None` means all.
    pub suffix_mask: Option<u32>,
    /// Seconds without a sample after which a change of a gauge begins at zero, unless its mapping says another time.
    pub delta_expiry: Option<NonZeroU32>,
    pub copy_to_distribution: Option<String>,
    pub max_tag_bytes: Option<usize>,
}

/// Results of the rules besides the context itself, and their buffers. Reused.
#[derive(Debug, Default)]
pub struct Resolved {
    pub jmx_check: Option<String>,
    /// The applied rules.
    pub applied: Applied,
    scratch: Scratch,
}

/// The decision of the rules about a context.
#[derive(Debug)]
pub struct RulesOutcome<'a> {
    /// True if no rule drops the metric.
    pub passes: bool,
    /// Results of rules in a dry run that differ from the actual one.
    pub trials: Vec<Trial<'a>>,
}

/// The effect that one rule in a dry run would have had on a context.
#[derive(Debug)]
pub struct Trial<'a> {
    pub rule: RuleId,
    /// `None`: the rule would have dropped it.
    pub becomes: Option<Subject<'a>>,
}

impl Rules {
    pub fn new(settings: RuleSettings) -> Self {
        let mut namespace = settings.namespace;
        if !namespace.is_empty() && !namespace.ends_with('.') {
            namespace.push('.');
        }
        let exceptions = settings
            .namespace_exceptions
            .unwrap_or_else(|| NAMESPACE_EXCEPTIONS.iter().map(ToString::to_string).collect());
        assert!(
            settings.histogram_suffixes.len() <= 32,
            "a suffix mask has 32 bits"
        );
        Rules {
            set: settings.set,
            namespace,
            namespace_exceptions: exceptions,
            filter: settings.filter,
            extra_tags: settings
                .extra_tags
                .into_iter()
                .filter(|tag| !tag.is_empty())
                .collect(),
            hostname: settings.hostname,
            suffixes: settings.histogram_suffixes,
            suffix_mask: settings.suffix_mask.unwrap_or(u32::MAX),
            delta_expiry: settings.delta_expiry,
            copy_to_distribution: settings.copy_to_distribution,
            max_tag_bytes: settings.max_tag_bytes,
        }
    }

    pub fn hostname(&self) -> &str {
        &self.hostname
    }

    pub fn extra_tags(&self) -> &[String] {
        &self.extra_tags
    }

    /// Mapper and rules.
    pub fn set(&self) -> &Arc<RuleSet> {
        &self.set
    }

    pub fn copies_histograms(&self) -> bool {
        self.copy_to_distribution.is_some()
    }

    /// The name of the distribution that gets a copy of a histogram's samples.
    pub fn copied_name(&self, name: &str, kind: Kind) -> Option<String> {
        let prefix = self.copy_to_distribution.as_ref()?;
        matches!(kind, Kind::Histogram | Kind::Timing).then(|| format!("{prefix}{name}"))
    }

    /// A metric in the form that the rules take.
    pub fn subject<'a>(&self, kind: Kind, name: &'a str, tags: impl Iterator<Item = &'a str>) -> Subject<'a> {
        Subject {
            kind,
            name: Cow::Borrowed(name),
            host: None,
            tags: tags.map(Cow::Borrowed).collect(),
            suffix_mask: self.suffix_mask,
            delta_expiry: self.delta_expiry,
            tag_styles: None,
        }
    }

    /// Applies every rule to `subject`, whose tags are then sorted and free of duplicates. Rules in a dry run work on copies.
    pub fn apply<'a>(&'a self, subject: &mut Subject<'a>, resolved: &mut Resolved) -> RulesOutcome<'a> {
        let before = self.set.has_dry_run().then(|| subject.clone());
        resolved.applied.clear();
        let passes = self.run(subject, None, resolved, &mut Untraced);
        let mut trials = Vec::new();
        if let Some(before) = before.filter(|_| passes && !resolved.applied.dry.is_empty()) {
            let mut other = Resolved {
                scratch: std::mem::take(&mut resolved.scratch),
                ..Resolved::default()
            };
            for &rule in &resolved.applied.dry {
                let mut trial = before.clone();
                other.applied.clear();
                let stays = self.run(&mut trial, Some(rule), &mut other, &mut Untraced);
                let becomes = stays.then_some(trial);
                if becomes.as_ref() != Some(&*subject) {
                    trials.push(Trial { rule, becomes });
                }
            }
            resolved.scratch = other.scratch;
        }
        RulesOutcome { passes, trials }
    }

    /// [`Rules::apply`] without dry runs; reports the effect of each stage. Returns false if the metric is dropped.
    pub fn apply_traced<'a>(
        &'a self,
        subject: &mut Subject<'a>,
        resolved: &mut Resolved,
        trace: &mut impl Trace,
    ) -> bool {
        resolved.applied.clear();
        self.run(subject, None, resolved, trace)
    }

    /// The stages in order. `weir explain` calls this function too, so the explanation cannot differ from the effect. `assume` is a rule in
    /// a dry run that is applied as if it were active.
    fn run<'a>(
        &'a self,
        subject: &mut Subject<'a>,
        assume: Option<RuleId>,
        resolved: &mut Resolved,
        trace: &mut impl Trace,
    ) -> bool {
        let Resolved {
            jmx_check,
            applied,
            scratch,
        } = resolved;
        if !self.set.map(subject, assume, scratch, applied, trace) {
            return false;
        }
        subject.host = self.take_special_tags(&mut subject.tags, jmx_check);
        let why = || "tags that are instructions are taken out".into();
        trace.stage("special_tags", why, &subject.name, &subject.tags);
        if !self.namespace.is_empty() && !self.is_exception(&subject.name) {
            subject.name.to_mut().insert_str(0, &self.namespace);
            let why = || format!("namespace: {:?} is put in front", self.namespace);
            trace.stage("namespace", why, &subject.name, &subject.tags);
        }
        if self.filter.matches(&subject.name) {
            let filterlist = self.set.filterlist();
            applied.dropped_by = Some(filterlist);
            applied.hits.push((filterlist, 0));
            let why = || format!("metric_filterlist: it has {:?}", subject.name);
            trace.dropped("metric_filterlist", why);
            return false;
        }
        if !self.set.apply(subject, assume, scratch, applied, trace) {
            return false;
        }
        // A message that names the agent's own host has the same context as one without a host.
        if subject.host.as_deref() == Some(self.hostname.as_str()) {
            subject.host = None;
        }
        if matches!(subject.kind, Kind::Histogram | Kind::Timing) {
            subject.suffix_mask &= self.passing_suffixes(&subject.name);
        } else {
            subject.suffix_mask = u32::MAX;
        }
        self.finish_tags(&mut subject.tags, &subject.name, trace);
        true
    }

    fn is_exception(&self, name: &str) -> bool {
        let mut exceptions = self.namespace_exceptions.iter();
        exceptions.any(|exception| name.starts_with(exception.as_str()))
    }

    /// Special tags and extra tags for events and checks. Returns the host: `None` for the agent's own.
    pub fn apply_to_tags<'a>(&'a self, tags: &mut Vec<Cow<'a, str>>) -> Option<String> {
        self.apply_to_tags_traced(tags, &mut Untraced)
    }

    /// [`Rules::apply_to_tags`]; reports the effect of each stage.
    pub fn apply_to_tags_traced<'a>(
        &'a self,
        tags: &mut Vec<Cow<'a, str>>,
        trace: &mut impl Trace,
    ) -> Option<String> {
        let host = self.take_special_tags(tags, &mut None);
        let why = || "tags that are instructions are taken out".into();
        trace.stage("special_tags", why, "", tags);
        self.finish_tags(tags, "", trace);
        host.filter(|host| *host != self.hostname).map(Cow::into_owned)
    }

    fn take_special_tags<'a>(
        &self,
        tags: &mut Vec<Cow<'a, str>>,
        jmx_check: &mut Option<String>,
    ) -> Option<Cow<'a, str>> {
        let mut host = None;
        *jmx_check = None;
        tags.retain(|tag| match special_tag(tag) {
            Some(SpecialTag::Host(name)) => {
                host = Some(Cow::Owned(name.to_string()));
                false
            }
            Some(SpecialTag::JmxCheck(name)) => {
                *jmx_check = Some(name.to_string());
                false
            }
            Some(SpecialTag::EntityId(_) | SpecialTag::Cardinality(_)) => false,
            None => true,
        });
        host
    }

    fn finish_tags<'a>(&'a self, tags: &mut Vec<Cow<'a, str>>, name: &str, trace: &mut impl Trace) {
        tags.extend(self.extra_tags.iter().map(|tag| Cow::Borrowed(tag.as_str())));
        trace.stage("extra_tags", || "tags, extra_tags".into(), name, tags);
        if let Some(limit) = self.max_tag_bytes {
            for tag in tags.iter_mut() {
                let end = tag.floor_char_boundary(limit);
                match tag {
                    Cow::Borrowed(tag) => *tag = &tag[..end],
                    Cow::Owned(tag) => tag.truncate(end),
                }
            }
            let why = || format!("max_tag_length: cut to {limit} bytes");
            trace.stage("max_tag_length", why, name, tags);
        }
        sort_and_dedup(tags);
        trace.stage("duplicates", || "each tag counts once".into(), name, tags);
    }

    /// Bits of the suffixes that the filter admits.
    fn passing_suffixes(&self, name: &str) -> u32 {
        if self.filter.is_empty() {
            return u32::MAX;
        }
        let mut expanded = String::from(name);
        let mut mask = 0;
        for (bit, suffix) in self.suffixes.iter().enumerate() {
            expanded.truncate(name.len());
            expanded.push_str(suffix);
            mask |= u32::from(!self.filter.matches(&expanded)) << bit;
        }
        mask
    }
}

/// The last of several special tags of one sort counts. Sorting would lose their order, so the others are removed first.
pub(crate) fn keep_last_special(tags: &mut Vec<&str>) {
    let mut sorts_seen = 0u8;
    for at in (0..tags.len()).rev() {
        let Some(special) = special_tag(tags[at]) else {
            continue;
        };
        let sort = match special {
            SpecialTag::Host(_) => 1,
            SpecialTag::EntityId(_) => 2,
            SpecialTag::Cardinality(_) => 4,
            SpecialTag::JmxCheck(_) => 8,
        };
        if sorts_seen & sort != 0 {
            tags.remove(at);
        }
        sorts_seen |= sort;
    }
}

/// Sorts by bytes and removes duplicates. Most tags differ within eight bytes, which compare as one integer.
pub(crate) fn sort_and_dedup<T: AsRef<str> + PartialEq>(tags: &mut Vec<T>) {
    let order = |a: &T, b: &T| {
        let (a, b) = (a.as_ref(), b.as_ref());
        prefix(a).cmp(&prefix(b)).then_with(|| a.cmp(b))
    };
    if tags.is_sorted_by(|a, b| order(a, b).is_lt()) {
        return;
    }
    tags.sort_unstable_by(order);
    tags.dedup();
}

fn prefix(tag: &str) -> u64 {
    let mut bytes = [0u8; 8];
    let length = tag.len().min(8);
    bytes[..length].copy_from_slice(&tag.as_bytes()[..length]);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The resolved metric: name, host and tags. `None` if it is dropped.
    fn apply(
        rules: &Rules,
        kind: Kind,
        name: &str,
        tags: &[&str],
    ) -> Option<(String, Option<String>, Vec<String>, u32)> {
        let mut subject = rules.subject(kind, name, tags.iter().copied());
        let verdict = rules.apply(&mut subject, &mut Resolved::default());
        verdict.passes.then(|| {
            let tags = subject.tags.iter().map(ToString::to_string).collect();
            (
                subject.name.into(),
                subject.host.map(Cow::into_owned),
                tags,
                subject.suffix_mask,
            )
        })
    }

    #[test]
    fn the_namespace_skips_its_exceptions() {
        let rules = Rules::new(RuleSettings {
            namespace: "shop".into(),
            ..Default::default()
        });
        assert_eq!(
            apply(&rules, Kind::Counter, "orders", &[]).unwrap().0,
            "shop.orders"
        );
        assert_eq!(apply(&rules, Kind::Gauge, "jvm.heap", &[]).unwrap().0, "jvm.heap");
    }

    #[test]
    fn host_tags_are_removed_and_the_last_one_wins() {
        let rules = Rules::new(RuleSettings {
            hostname: "me".into(),
            extra_tags: vec!["e:1".into()],
            ..Default::default()
        });
        let of = |tags: &[&str]| apply(&rules, Kind::Counter, "n", tags).unwrap();
        let (_, host, tags, _) = of(&["z:1", "host:a", "host:b", "a:1", "z:1"]);
        assert_eq!(tags, ["a:1", "e:1", "z:1"]);
        assert_eq!(host.as_deref(), Some("b"));
        assert_eq!(of(&["host:me"]).1, None);
        assert_eq!(of(&["host:"]).1.as_deref(), Some(""));
    }

    #[test]
    fn filter_sees_expanded_names() {
        let filter = NameFilter::new(vec!["h.max".into(), "gone".into()], false);
        let suffixes = vec![".max".to_string(), ".count".to_string()];
        let rules = Rules::new(RuleSettings {
            filter,
            histogram_suffixes: suffixes,
            suffix_mask: Some(0b11),
            ..Default::default()
        });
        assert_eq!(apply(&rules, Kind::Histogram, "h", &[]).unwrap().3, 0b10);
        assert_eq!(apply(&rules, Kind::Counter, "gone", &[]), None);
    }

    proptest! {
        #[test]
        fn filter_equals_a_plain_search(
            names in prop::collection::vec("[ab.]{0,4}", 0..8), name in "[ab.]{0,6}", match_prefix: bool,
        ) {
            let expected = names.iter().any(|entry| {
                if match_prefix { name.starts_with(entry.as_str()) } else { name == *entry }
            });
            prop_assert_eq!(NameFilter::new(names, match_prefix).matches(&name), expected);
        }

        #[test]
        fn sorting_equals_a_tree(tags in prop::collection::vec("[a-c:é]{0,10}", 0..12)) {
            let mut sorted: Vec<&str> = tags.iter().map(String::as_str).collect();
            sort_and_dedup(&mut sorted);
            let tree: std::collections::BTreeSet<&str> = tags.iter().map(String::as_str).collect();
            prop_assert_eq!(sorted, tree.into_iter().collect::<Vec<_>>());
        }
    }
}
