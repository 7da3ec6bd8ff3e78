//! What happens to a name and its tags between the wire and the aggregate: special tags, namespace, name filter, extra
//! tags. Applied once per raw context, never per sample.

use weir_protocol::{Kind, SpecialTag, special_tag};

use crate::trace::{Trace, Untraced};

/// Name prefixes that the namespace is not put in front of, unless the operator gives a list of their own.
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

/// Names that are dropped: exact ones, or prefixes.
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
            // A prefix that begins with another adds nothing; without it the nearest smaller entry decides.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Put in front of names, with its final dot; empty for none.
    namespace: String,
    namespace_exceptions: Vec<String>,
    pub filter: NameFilter,
    /// Appended to every metric, event and check.
    extra_tags: Vec<String>,
    /// The agent's own hostname.
    hostname: String,
    /// Suffixes that a histogram expands to, tested against the filter with their name. At most 32.
    suffixes: Vec<String>,
    /// With a prefix: every histogram and timing sample also goes into a distribution of that name.
    copy_to_distribution: Option<String>,
    /// Tags longer than this many bytes are cut at a character border.
    max_tag_bytes: Option<usize>,
}

impl Default for Rules {
    fn default() -> Self {
        Rules::new(RuleSettings::default())
    }
}

/// What [`Rules::new`] takes.
#[derive(Clone, Debug, Default)]
pub struct RuleSettings {
    pub namespace: String,
    /// `None` means [`NAMESPACE_EXCEPTIONS`].
    pub namespace_exceptions: Option<Vec<String>>,
    pub filter: NameFilter,
    pub extra_tags: Vec<String>,
    pub hostname: String,
    /// Each begins with its dot: `.max`, `.95percentile`.
    pub histogram_suffixes: Vec<String>,
    pub copy_to_distribution: Option<String>,
    pub max_tag_bytes: Option<usize>,
}

/// What the rules made of a raw context. Borrows from the caller's buffers.
#[derive(Debug, Default)]
pub struct Resolved {
    /// The final name, when the namespace changed it.
    name: String,
    name_changed: bool,
    /// `None`: the agent's own host.
    pub host: Option<String>,
    /// Bit i: the name with the i-th histogram suffix passes the filter.
    pub suffix_mask: u32,
    pub jmx_check: Option<String>,
}

impl Resolved {
    pub fn name<'a>(&'a self, raw: &'a str) -> &'a str {
        if self.name_changed { &self.name } else { raw }
    }
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

    pub fn copies_histograms(&self) -> bool {
        self.copy_to_distribution.is_some()
    }

    /// The name of the distribution that copies a histogram's samples.
    pub fn copied_name(&self, name: &str, kind: Kind) -> Option<String> {
        let prefix = self.copy_to_distribution.as_ref()?;
        matches!(kind, Kind::Histogram | Kind::Timing).then(|| format!("{prefix}{name}"))
    }

    /// Takes special tags out of `tags` and adds the extra ones; `tags` is left sorted and free of duplicates.
    /// Returns false when the metric is filtered out.
    pub fn apply<'a>(
        &'a self,
        raw_name: &str,
        kind: Kind,
        tags: &mut Vec<&'a str>,
        resolved: &mut Resolved,
    ) -> bool {
        self.apply_traced(raw_name, kind, tags, resolved, &mut Untraced)
    }

    /// [`Rules::apply`], telling what each stage did. Every stage goes through here, so that what is explained is what is
    /// done.
    pub fn apply_traced<'a>(
        &'a self,
        raw_name: &str,
        kind: Kind,
        tags: &mut Vec<&'a str>,
        resolved: &mut Resolved,
        trace: &mut impl Trace,
    ) -> bool {
        resolved.host = self.take_special_tags(tags, &mut resolved.jmx_check);
        trace.stage(
            "special_tags",
            || "tags that are instructions are taken out".into(),
            raw_name,
            tags,
        );
        self.finish_tags(tags, raw_name, trace);
        resolved.name_changed = !self.namespace.is_empty()
            && !self
                .namespace_exceptions
                .iter()
                .any(|exception| raw_name.starts_with(exception.as_str()));
        if resolved.name_changed {
            resolved.name.clear();
            resolved.name.push_str(&self.namespace);
            resolved.name.push_str(raw_name);
        }
        let name = if resolved.name_changed {
            &resolved.name
        } else {
            raw_name
        };
        let why = || format!("namespace: {:?} is put in front", self.namespace);
        trace.stage("namespace", why, name, tags);
        resolved.suffix_mask = self.suffix_mask(name, kind);
        let passes = !self.filter.matches(name);
        if !passes {
            trace.dropped("metric_filterlist", || {
                format!("metric_filterlist: it has {name:?}")
            });
        }
        passes
    }

    /// Special tags and extra tags for events and checks. Returns the host: `None` for the agent's own.
    pub fn apply_to_tags<'a>(&'a self, tags: &mut Vec<&'a str>) -> Option<String> {
        self.apply_to_tags_traced(tags, &mut Untraced)
    }

    /// [`Rules::apply_to_tags`], telling what each stage did.
    pub fn apply_to_tags_traced<'a>(
        &'a self,
        tags: &mut Vec<&'a str>,
        trace: &mut impl Trace,
    ) -> Option<String> {
        let host = self.take_special_tags(tags, &mut None);
        trace.stage(
            "special_tags",
            || "tags that are instructions are taken out".into(),
            "",
            tags,
        );
        self.finish_tags(tags, "", trace);
        host
    }

    fn take_special_tags(&self, tags: &mut Vec<&str>, jmx_check: &mut Option<String>) -> Option<String> {
        let mut host = None;
        *jmx_check = None;
        tags.retain(|tag| match special_tag(tag) {
            Some(SpecialTag::Host(name)) => {
                host = Some(name.to_string());
                false
            }
            Some(SpecialTag::JmxCheck(name)) => {
                *jmx_check = Some(name.to_string());
                false
            }
            Some(SpecialTag::EntityId(_) | SpecialTag::Cardinality(_)) => false,
            None => true,
        });
        // A message that names the agent's own host means the same context as one that names none.
        host.filter(|host| *host != self.hostname)
    }

    fn finish_tags<'a>(&'a self, tags: &mut Vec<&'a str>, name: &str, trace: &mut impl Trace) {
        tags.extend(self.extra_tags.iter().map(String::as_str));
        trace.stage("extra_tags", || "tags, extra_tags".into(), name, tags);
        if let Some(limit) = self.max_tag_bytes {
            for tag in tags.iter_mut() {
                *tag = &tag[..tag.floor_char_boundary(limit)];
            }
            let why = || format!("max_tag_length: cut to {limit} bytes");
            trace.stage("max_tag_length", why, name, tags);
        }
        sort_and_dedup(tags);
        trace.stage("duplicates", || "each tag counts once".into(), name, tags);
    }

    fn suffix_mask(&self, name: &str, kind: Kind) -> u32 {
        if self.filter.is_empty() || !matches!(kind, Kind::Histogram | Kind::Timing) {
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

/// Of several special tags of one sort the last stands. Sorting would forget which that was, so the others go before it.
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

/// Sorts by bytes and leaves each tag once. Most tags differ within eight bytes, which compare as one integer.
pub(crate) fn sort_and_dedup(tags: &mut Vec<&str>) {
    tags.sort_unstable_by(|a, b| prefix(a).cmp(&prefix(b)).then_with(|| a.cmp(b)));
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

    #[test]
    fn namespace_spares_its_exceptions() {
        let rules = Rules::new(RuleSettings {
            namespace: "shop".into(),
            ..Default::default()
        });
        let mut resolved = Resolved::default();
        assert!(rules.apply("orders", Kind::Counter, &mut vec![], &mut resolved));
        assert_eq!(resolved.name("orders"), "shop.orders");
        assert!(rules.apply("jvm.heap", Kind::Gauge, &mut vec![], &mut resolved));
        assert_eq!(resolved.name("jvm.heap"), "jvm.heap");
    }

    #[test]
    fn host_tags_are_taken_out_and_the_last_wins() {
        let rules = Rules::new(RuleSettings {
            hostname: "me".into(),
            extra_tags: vec!["e:1".into()],
            ..Default::default()
        });
        let mut resolved = Resolved::default();
        let mut tags = vec!["z:1", "host:a", "host:b", "a:1", "z:1"];
        rules.apply("n", Kind::Counter, &mut tags, &mut resolved);
        assert_eq!(tags, ["a:1", "e:1", "z:1"]);
        assert_eq!(resolved.host.as_deref(), Some("b"));
        rules.apply("n", Kind::Counter, &mut vec!["host:me"], &mut resolved);
        assert_eq!(resolved.host, None);
        rules.apply("n", Kind::Counter, &mut vec!["host:"], &mut resolved);
        assert_eq!(resolved.host.as_deref(), Some(""));
    }

    #[test]
    fn a_trace_tells_what_each_stage_did() {
        let rules = Rules::new(RuleSettings {
            namespace: "shop".into(),
            extra_tags: vec!["e:1".into()],
            filter: NameFilter::new(vec!["shop.n".into()], false),
            ..Default::default()
        });
        let mut tags = vec!["a:1", "host:h", "a:1"];
        let mut recorder = crate::Recorder::new("n", &tags);
        let mut resolved = Resolved::default();
        assert!(!rules.apply_traced("n", Kind::Counter, &mut tags, &mut resolved, &mut recorder));
        let told: Vec<String> = recorder
            .steps()
            .iter()
            .map(|step| {
                let dropped = if step.dropped { " dropped" } else { "" };
                let name = step.renamed_to.as_deref().unwrap_or("-");
                format!(
                    "{} {name} +{:?} -{:?}{dropped}",
                    step.stage, step.added, step.removed
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                r#"special_tags - +[] -["host:h"]"#,
                r#"extra_tags - +["e:1"] -[]"#,
                r#"duplicates - +[] -["a:1"]"#,
                "namespace shop.n +[] -[]",
                "metric_filterlist - +[] -[] dropped",
            ]
        );
    }

    #[test]
    fn filter_sees_expanded_names() {
        let filter = NameFilter::new(vec!["h.max".into(), "gone".into()], false);
        let suffixes = vec![".max".to_string(), ".count".to_string()];
        let rules = Rules::new(RuleSettings {
            filter,
            histogram_suffixes: suffixes,
            ..Default::default()
        });
        let mut resolved = Resolved::default();
        assert!(rules.apply("h", Kind::Histogram, &mut vec![], &mut resolved));
        assert_eq!(resolved.suffix_mask, 0b10);
        assert!(!rules.apply("gone", Kind::Counter, &mut vec![], &mut resolved));
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
