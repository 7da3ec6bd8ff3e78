//! The mapping file of Prometheus' statsd_exporter, and its flags.
//!
//! In statsd_exporter, globs apply before expressions whatever their order, and expressions match anywhere in the name. A mapping also says
//! how its metrics are exposed, and no others: a mapping that does gives its metrics a tag, by which the scrape knows them.

use std::fmt::Write as _;

use super::within::Sought;
use super::{
    ConvertError, Converted, Notes, Unconverted, did_you_mean, finish, is_yes, list, map, scalar, top_level,
};
use weir_config::node::{Key, Node};
use weir_config::show_text;

mod conflicts;
mod expressions;
mod flags;

use conflicts::Named;
use flags::Flags;

/// Converts the text of a mapping file and the arguments of the command line.
pub fn convert(text: &str, flags: &[String]) -> Result<Converted, ConvertError> {
    let sought = Sought {
        name: "statsd_exporter's mapping file",
        parse: &top_level,
        is_own: &is_mapping_file,
        in_values: true,
    };
    let entries = sought.in_document(top_level(text)?)?;
    let mut converter = Converter::default();
    let flags = Flags::read(flags, &mut converter.left);
    for (key, node) in &entries {
        match key.text.as_str() {
            "defaults" => converter.defaults(node),
            "mappings" => {}
            other => {
                let hint = did_you_mean(other, ["defaults", "mappings"].into_iter());
                let why = hint.unwrap_or("is not known".to_owned());
                converter.skip(key.line, format!("{other}: {why}"));
            }
        }
    }
    for (key, node) in &entries {
        if key.text == "mappings" {
            for mapping in list(node) {
                converter.mapping(mapping);
            }
        }
    }
    Ok(converter.finish(&flags))
}

/// A year is as long as any series lives.
const FOR_EVER: &str = "365d";

/// The key of the tag that says which mapping gave a metric its name: `weir_mapping:3`. The scrape does not show it.
const MARK: &str = "weir_mapping";

/// Seconds for which a metric without a sample is kept, because the other program never expires it: a gauge's value, to which deltas add.
const CONTEXTS: f64 = 86_400.0;

/// The keys of a mapping.
const FIELDS: &[&str] = &[
    "match",
    "match_type",
    "match_metric_type",
    "name",
    "labels",
    "honor_labels",
    "action",
    "help",
    "observer_type",
    "timer_type",
    "buckets",
    "quantiles",
    "histogram_options",
    "summary_options",
    "scale",
    "ttl",
];

/// The keys of `defaults`.
const DEFAULTS: &[&str] = &[
    "match_type",
    "ttl",
    "glob_disable_ordering",
    "observer_type",
    "timer_type",
    "buckets",
    "quantiles",
    "histogram_options",
    "summary_options",
];

/// Values of a chart may have `defaults` too.
fn is_mapping_file(entries: &[(Key, Node)]) -> bool {
    entries.iter().any(|(key, node)| match key.text.as_str() {
        "mappings" => true,
        "defaults" => map(node)
            .iter()
            .any(|(key, _)| DEFAULTS.contains(&key.text.as_str())),
        _ => false,
    })
}

#[derive(Default)]
struct Converter {
    globs: Vec<(Vec<bool>, String)>,
    regexes: String,
    default_is_regex: bool,
    /// More specific globs go first, whatever their order.
    by_specificity: bool,
    default_ttl: Option<f64>,
    default_observer: Observer,
    buckets: Vec<String>,
    quantiles: Vec<String>,
    /// The mappings so far.
    mappings: usize,
    /// The exposition of the metrics of mappings with options of their own, by the number of the mapping.
    forms: Vec<(usize, Form)>,
    /// The names that mappings give.
    named: Vec<Named>,
    left: Vec<Unconverted>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Observer {
    #[default]
    Summary,
    Histogram,
}

impl Observer {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "summary" | "" => Some(Observer::Summary),
            "histogram" => Some(Observer::Histogram),
            _ => None,
        }
    }

    fn style(self) -> &'static str {
        match self {
            Observer::Summary => "summary",
            Observer::Histogram => "classic",
        }
    }
}

/// Exposition of the metrics of one mapping, as far as it differs from the default.
#[derive(Clone, Debug, Default, PartialEq)]
struct Form {
    observer: Option<Observer>,
    buckets: Vec<String>,
    quantiles: Vec<String>,
    help: String,
    ttl: Option<f64>,
    scale: String,
}

impl Form {
    /// As an entry for the metrics of the mapping with this number.
    fn write(&self, number: usize, out: &mut String) {
        let _ = writeln!(out, "      - tag: {MARK}:{number}");
        if let Some(observer) = self.observer {
            let _ = writeln!(out, "        style: {}", observer.style());
        }
        for (key, values) in [("buckets", &self.buckets), ("quantiles", &self.quantiles)] {
            if !values.is_empty() {
                let _ = writeln!(out, "        {key}: [{}]", values.join(", "));
            }
        }
        if !self.help.is_empty() {
            let _ = writeln!(out, "        help: {}", show_text(&self.help));
        }
        if let Some(seconds) = self.ttl {
            let _ = writeln!(out, "        expiry: {}", whole_seconds(seconds));
        }
        if !self.scale.is_empty() {
            let _ = writeln!(out, "        scale: {}", self.scale);
        }
    }
}

/// Why a mapping is left out.
#[derive(Debug, thiserror::Error)]
enum MappingError {
    #[error("this mapping has no match")]
    NoMatch,
    #[error("{0}: {1:?} is not known; the mapping is left out")]
    Unknown(&'static str, String),
}

impl Notes for Converter {
    fn left(&mut self) -> &mut Vec<Unconverted> {
        &mut self.left
    }
}

impl Converter {
    fn defaults(&mut self, node: &Node) {
        for (key, value) in map(node) {
            let text = scalar(value).unwrap_or_default();
            match key.text.as_str() {
                "match_type" => self.default_is_regex = text == "regex",
                "ttl" => match go_seconds(text) {
                    Some(seconds) => self.default_ttl = Some(seconds).filter(|seconds| *seconds > 0.0),
                    None => self.skip(key.line, format!("defaults.ttl: {text:?} is not a duration")),
                },
                "glob_disable_ordering" => self.by_specificity = is_yes(text),
                "observer_type" | "timer_type" => match Observer::parse(text) {
                    Some(observer) => self.default_observer = observer,
                    None => self.skip(key.line, format!("defaults.{}: {text:?} is not known", key.text)),
                },
                "buckets" => self.buckets = numbers(value),
                "quantiles" => self.quantiles = quantiles(value),
                "histogram_options" => self.buckets = self.histogram_options("defaults.", value),
                "summary_options" => self.quantiles = self.summary_options("defaults.", value),
                other => {
                    let why =
                        did_you_mean(other, DEFAULTS.iter().copied()).unwrap_or("is not known".to_owned());
                    self.skip(key.line, format!("defaults.{other}: {why}"));
                }
            }
        }
    }

    fn histogram_options(&mut self, place: &str, node: &Node) -> Vec<String> {
        let mut buckets = Vec::new();
        for (option, value) in map(node) {
            match option.text.as_str() {
                "buckets" => buckets = numbers(value),
                other => self.skip_idle(
                    option.line,
                    format!("{place}histogram_options.{other}: native buckets always grow by 2.2 % and get coarser when there are more than 1024 of one sign"),
                ),
            }
        }
        buckets
    }

    fn summary_options(&mut self, place: &str, node: &Node) -> Vec<String> {
        let mut found = Vec::new();
        for (option, value) in map(node) {
            match option.text.as_str() {
                "quantiles" => found = quantiles(value),
                other => self.skip(
                    option.line,
                    format!("{place}summary_options.{other}: quantiles are exact, and of the last bucket (bucket_width) that had samples"),
                ),
            }
        }
        found
    }

    fn mapping(&mut self, node: &Node) {
        let field = |name: &str| map(node).iter().find(|(key, _)| key.text == name);
        let text = |name: &str| field(name).and_then(|(_, node)| scalar(node)).unwrap_or_default();
        let pattern = text("match");
        let choices = self.choices(
            pattern,
            [text("match_type"), text("action"), text("match_metric_type")],
        );
        let (is_regex, drop, types) = match choices {
            Ok(choices) => choices,
            Err(reason) => return self.skip(node.line, reason.to_string()),
        };
        self.mappings += 1;
        let form = self.form(node);
        let mut written = String::new();
        let whole = if is_regex {
            unbound(&expressions::translated(pattern))
        } else {
            pattern.to_owned()
        };
        let stars = pattern.split('.').filter(|part| *part == "*").count();
        let template = |text: &str| {
            if is_regex {
                without_missing(text, pattern)
            } else {
                braced(text, stars)
            }
        };
        let _ = writeln!(written, "      - match: {}", show_text(&whole));
        if is_regex {
            let _ = writeln!(written, "        match_type: regex");
        }
        if !types.is_empty() {
            let _ = writeln!(written, "        types: {types}");
        }
        if drop {
            let _ = writeln!(written, "        action: drop");
        } else {
            let _ = writeln!(written, "        name: {}", show_text(&template(text("name"))));
            let labels = field("labels").map_or(&[][..], |(_, node)| map(node));
            let honor = is_yes(text("honor_labels"));
            let is_histogram = form.observer.unwrap_or(self.default_observer) == Observer::Histogram;
            self.named
                .extend(Named::new(node, text("name"), types, is_histogram));
            let mark = (form != Form::default()).then_some(self.mappings);
            write_labels(labels, mark, honor, template, &mut written);
            // A gauge that comes back after its time begins at zero.
            if let Some(ttl) = form.ttl.filter(|_| matches!(types, "" | "[gauge]")) {
                let _ = writeln!(written, "        delta_expiry: {}", whole_seconds(ttl));
            }
            if let Some(number) = mark {
                self.forms.push((number, form));
            }
        }
        if is_regex {
            self.regexes.push_str(&written);
        } else {
            let stars = pattern.split('.').map(|part| part == "*").collect();
            self.globs.push((stars, written));
        }
    }

    /// Whether it is an expression, whether it drops, and the kinds it is for.
    fn choices(
        &self,
        pattern: &str,
        [match_type, action, kind]: [&str; 3],
    ) -> Result<(bool, bool, &'static str), MappingError> {
        if pattern.is_empty() {
            return Err(MappingError::NoMatch);
        }
        let unknown = |key, text: &str| MappingError::Unknown(key, text.to_owned());
        let is_regex = match match_type {
            "" => self.default_is_regex,
            "regex" => true,
            "glob" => false,
            other => return Err(unknown("match_type", other)),
        };
        let drop = match action {
            "" | "map" => false,
            "drop" => true,
            other => return Err(unknown("action", other)),
        };
        let types = match kind {
            "" => "",
            "counter" => "[counter]",
            "gauge" => "[gauge]",
            "timer" | "observer" | "histogram" | "summary" => "[histogram, timing, distribution]",
            other => return Err(unknown("match_metric_type", other)),
        };
        Ok((is_regex, drop, types))
    }

    /// Exposition of a mapping's metrics.
    fn form(&mut self, node: &Node) -> Form {
        let mut form = Form::default();
        for (key, value) in map(node) {
            let text = scalar(value).unwrap_or_default();
            match key.text.as_str() {
                "match" | "match_type" | "name" | "labels" | "honor_labels" | "action"
                | "match_metric_type" => {}
                "help" => form.help = text.to_owned(),
                "observer_type" | "timer_type" => match Observer::parse(text) {
                    Some(observer) => {
                        form.observer = Some(observer).filter(|own| *own != self.default_observer)
                    }
                    None => self.skip(key.line, format!("{}: {text:?} is not known", key.text)),
                },
                "buckets" => form.buckets = numbers(value),
                "quantiles" => form.quantiles = quantiles(value),
                "histogram_options" => form.buckets = self.histogram_options("", value),
                "summary_options" => form.quantiles = self.summary_options("", value),
                "scale" => match text.parse::<f64>() {
                    Ok(scale) if scale.is_finite() && scale != 0.0 => text.clone_into(&mut form.scale),
                    _ => self.skip(
                        key.line,
                        format!("scale: {text:?} is not a number other than zero"),
                    ),
                },
                "ttl" => match go_seconds(text) {
                    // statsd_exporter's default is zero.
                    Some(seconds) => {
                        form.ttl = Some(seconds).filter(|own| *own > 0.0 && Some(*own) != self.default_ttl);
                    }
                    None => self.skip(key.line, format!("ttl: {text:?} is not a duration")),
                },
                other => {
                    let why =
                        did_you_mean(other, FIELDS.iter().copied()).unwrap_or("is not known".to_owned());
                    self.skip(key.line, format!("{other}: {why}"));
                }
            }
        }
        form
    }

    fn finish(mut self, flags: &Flags) -> Converted {
        let mut body = String::new();
        if self.by_specificity {
            self.globs.sort_by(|one, other| one.0.cmp(&other.0));
        }
        let globs: String = self.globs.iter().map(|(_, written)| written.as_str()).collect();
        if !globs.is_empty() || !self.regexes.is_empty() {
            body.push_str("mapper_profiles:\n");
        }
        for (name, mappings) in [
            ("statsd-exporter-glob", &globs),
            ("statsd-exporter-regex", &self.regexes),
        ] {
            if !mappings.is_empty() {
                let _ = write!(
                    body,
                    "  - name: {name}\n    prefix: '*'\n    mappings:\n{mappings}"
                );
            }
        }
        body.push_str(
            "# Defaults of that program: tags in names, signed gauges that add to the current value,\n",
        );
        body.push_str("# and whole samples for a rate.\n");
        flags.write_reading(&mut body);
        body.push_str("histogram_weights: agent\n");
        let seconds = |ttl: Option<f64>| ttl.map(whole_seconds);
        // weir remembers a gauge as long as it shows it.
        let longest = self
            .forms
            .iter()
            .filter_map(|(_, form)| form.ttl)
            .fold(self.default_ttl.unwrap_or(CONTEXTS), f64::max);
        let _ = writeln!(body, "context_expiry: {}", whole_seconds(longest));
        if let Some(ttl) = seconds(self.default_ttl) {
            let _ = writeln!(body, "statsd_gauge_delta_expiry: {ttl}");
        }
        flags.write(&mut body);
        body.push_str("outputs:\n");
        flags.write_relay(&mut body);
        body.push_str(
            "  prometheus:\n    # Timings (ms) are shown in seconds, and counters under their own names.\n",
        );
        body.push_str("    timings_in_seconds: true\n    total_suffix: false\n");
        body.push_str("    # Metrics of one name and type are one, as there.\n    merge_names: true\n");
        let style = self.default_observer.style();
        let _ = writeln!(body, "    histograms: {style}\n    distributions: {style}");
        let _ = writeln!(
            body,
            "    expiry: {}",
            seconds(self.default_ttl).unwrap_or(FOR_EVER.to_owned())
        );
        if !self.buckets.is_empty() {
            let _ = writeln!(body, "    buckets: [{}]", self.buckets.join(", "));
        }
        if self.quantiles.is_empty() {
            self.quantiles = ["0.5", "0.9", "0.99"].map(str::to_owned).into();
        }
        let _ = writeln!(body, "    quantiles: [{}]", self.quantiles.join(", "));
        self.write_forms(&mut body);
        self.left.extend(conflicts::notes(&self.named));
        finish(&body, self.left, "a statsd_exporter mapping")
    }

    fn write_forms(&self, body: &mut String) {
        if !self.forms.is_empty() {
            body.push_str("    # What mappings say of their own metrics, by the tag that they give them. It is not shown.\n");
            body.push_str("    metrics:\n");
        }
        for (number, form) in &self.forms {
            form.write(*number, body);
        }
    }
}

fn write_labels(
    labels: &[(Key, Node)],
    mark: Option<usize>,
    honor: bool,
    template: impl Fn(&str) -> String,
    out: &mut String,
) {
    if labels.is_empty() && mark.is_none() {
        return;
    }
    // Labels of the message, or those of the mapping.
    let _ = writeln!(
        out,
        "        same_tags: {}",
        if honor { "keep" } else { "replace" }
    );
    let _ = writeln!(out, "        tags:");
    for (key, value) in labels {
        let value = template(scalar(value).unwrap_or_default());
        let _ = writeln!(out, "          {}: {}", show_text(&key.text), show_text(&value));
    }
    if let Some(number) = mark {
        let _ = writeln!(out, "          {MARK}: '{number}'");
    }
}

fn whole_seconds(seconds: f64) -> String {
    format!("{}s", seconds.ceil().max(1.0))
}

fn numbers(node: &Node) -> Vec<String> {
    let texts = list(node).iter().filter_map(scalar);
    // Go also writes numbers such as `.005`.
    texts
        .filter_map(|text| text.parse::<f64>().ok())
        .map(|number| number.to_string())
        .collect()
}

fn quantiles(node: &Node) -> Vec<String> {
    let quantile = |item: &Node| {
        let found = map(item).iter().find(|(key, _)| key.text == "quantile");
        found.and_then(|(_, node)| scalar(node)).map(str::to_owned)
    };
    list(node).iter().filter_map(quantile).collect()
}

/// Turns an expression that matches anywhere in the name into one that spans the name.
pub(super) fn unbound(pattern: &str) -> String {
    let from_start = pattern.starts_with('^') && !pattern.contains('|');
    let to_end = pattern.ends_with('$') && !pattern.ends_with("\\$") && !pattern.contains('|');
    let inner = if from_start { &pattern[1..] } else { pattern };
    let inner = if to_end { &inner[..inner.len() - 1] } else { inner };
    let before = if from_start || inner.starts_with(".*") && !pattern.contains('|') {
        ""
    } else {
        ".*?"
    };
    let after = if to_end || inner.ends_with(".*") && !pattern.contains('|') {
        ""
    } else {
        ".*"
    };
    if pattern.contains('|') {
        return format!(".*?(?:{pattern}).*");
    }
    format!("{before}{inner}{after}")
}

/// The template of a glob. As in statsd_exporter, a reference extends over all word characters, and an invalid one is empty.
fn braced(template: &str, groups: usize) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let inner = after.strip_prefix('{').unwrap_or(after);
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
        let (word, behind) = inner.split_at(inner.find(|c| !is_word(c)).unwrap_or(inner.len()));
        if word.is_empty() {
            text.push('$');
            rest = after;
            continue;
        }
        if word.parse::<usize>().is_ok_and(|group| group <= groups) {
            let _ = write!(text, "${{{word}}}");
        }
        rest = behind.strip_prefix('}').unwrap_or(behind);
    }
    text.push_str(rest);
    text
}

/// Removes references to groups that the expression does not have: they are empty in statsd_exporter.
fn without_missing(template: &str, expression: &str) -> String {
    let (count, names) = groups(expression);
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let (group, length) = match after.strip_prefix('{') {
            Some(inner) => match inner.find('}') {
                Some(end) => (&inner[..end], end + 2),
                None => ("", 0),
            },
            None => {
                let end = after.find(|c| !is_word(c)).unwrap_or(after.len());
                (&after[..end], end)
            }
        };
        let is_there = match group.parse::<usize>() {
            Ok(number) => number <= count,
            Err(_) => group.is_empty() || names.contains(&group),
        };
        if is_there {
            text.push('$');
            text.push_str(&after[..length]);
        }
        rest = &after[length..];
    }
    text.push_str(rest);
    text
}

/// The number of groups that an expression captures, and their names.
fn groups(expression: &str) -> (usize, Vec<&str>) {
    let (mut count, mut names) = (0, Vec::new());
    let (mut escaped, mut in_class) = (false, false);
    for (at, c) in expression.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => {
                let rest = &expression[at + 1..];
                let named = rest.strip_prefix("?P<").or_else(|| rest.strip_prefix("?<"));
                count += usize::from(named.is_some() || !rest.starts_with('?'));
                names.extend(named.and_then(|rest| rest.split('>').next()));
            }
            _ => {}
        }
    }
    (count, names)
}

/// A duration in Go's form: `1m20s`.
pub(super) fn go_seconds(text: &str) -> Option<f64> {
    if text == "0" {
        return Some(0.0);
    }
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let unit_end = rest[end..]
            .find(|c: char| c.is_ascii_digit())
            .map_or(rest.len(), |at| end + at);
        seconds += number
            * match &rest[end..unit_end] {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[unit_end..];
    }
    (!text.is_empty()).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_found_anywhere_in_the_name() {
        for (pattern, expected) in [
            ("a", ".*?a.*"),
            ("^a$", "a"),
            ("^a", "a.*"),
            ("a$", ".*?a"),
            (".*a.*", ".*a.*"),
            ("a\\$", ".*?a\\$.*"),
            ("^a|b$", ".*?(?:^a|b$).*"),
            (".", ".*?..*"),
        ] {
            assert_eq!(unbound(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn templates_and_durations() {
        assert_eq!(braced("${1}_total ${2} $", 2), "${1}_total ${2} $");
        assert_eq!(braced("$1-$2-${3}x$0", 2), "${1}-${2}-x${0}");
        assert_eq!(braced("$1_foo $0$1 $1.", 2), "  ${1}.");
        assert_eq!(
            without_missing("$1 ${2}$3 $1x ${n} ${m}$", "(a)[(](?P<n>b)(?:c)"),
            "$1 ${2}  ${n} $"
        );
        assert_eq!(go_seconds("1m20s"), Some(80.0));
        assert_eq!(go_seconds("0"), Some(0.0));
        assert_eq!(go_seconds("1.5h"), Some(5400.0));
        assert_eq!(go_seconds("x"), None);
        assert_eq!(go_seconds(""), None);
    }

    #[test]
    fn options_of_mappings_apply_to_the_mapped_names() {
        let text = "defaults:\n  ttl: 5m\n  buckets: [1]\nmappings:\n- match: test.*.x\n  name: test_${1}_x\n  help: words\n  labels:\n    a: ${1}b\n\
                    - match: '(\\w+)\\.y'\n  match_type: regex\n  match_metric_type: counter\n  name: y\n  ttl: 1s\n- match: '.'\n  match_type: regex\n  action: drop\n";
        let converted = convert(text, &[]).unwrap();
        assert_eq!(converted.left, []);
        for part in [
            "match: test.*.x",
            "match: '.*?([0-9A-Za-z_]+)\\.y.*'",
            "name: 'test_${1}_x'",
            "a: '${1}b'",
            "types: [counter]",
            "action: drop",
            "expiry: 300s",
            "\n    timings_in_seconds: true\n",
            "\nstatsd_gauge_deltas: true\n",
            "\ntag_styles: [librato, influx, signalfx, hashes]\n",
            "\nstatsd_sample_lists: true\n",
            "\n    total_suffix: false\n",
            "\n    merge_names: true\n",
            "\n    buckets: [1]\n",
            "          a: '${1}b'\n          weir_mapping: '1'\n",
            "- tag: weir_mapping:1\n        help: words\n",
            "        same_tags: replace\n        tags:\n          weir_mapping: '2'\n",
            "- tag: weir_mapping:2\n        expiry: 1s\n",
        ] {
            assert!(converted.yaml.contains(part), "{part}:\n{}", converted.yaml);
        }
    }

    #[test]
    fn a_mapping_without_options_of_its_own_has_no_tag() {
        let text = "defaults:\n  ttl: 5m\nmappings:\n- match: a.*\n  name: $1\n  ttl: 0s\n- match: b.*\n  name: $1\n  ttl: 300s\n\
                    - match: c.*\n  name: $1\n  ttl: 9m\n";
        let converted = convert(text, &[]).unwrap();
        assert_eq!(
            converted.yaml.matches("weir_mapping").count(),
            2,
            "{}",
            converted.yaml
        );
        assert!(
            converted
                .yaml
                .contains("- tag: weir_mapping:3\n        expiry: 540s\n")
        );
    }

    #[test]
    fn gauges_begin_again_at_zero_after_the_ttl_of_their_mapping() {
        let mappings = "mappings:\n- match: a\n  name: a\n  ttl: 1500ms\n- match: b\n  match_metric_type: counter\n  name: b\n  ttl: 3s\n\
                        - match: c\n  name: c\n  ttl: 0s\n- match: d\n  action: drop\n  ttl: 4s\n";
        let converted = convert(mappings, &[]).unwrap();
        assert_eq!(converted.left, []);
        assert_eq!(
            converted.yaml.matches("delta_expiry").count(),
            1,
            "{}",
            converted.yaml
        );
        assert!(converted.yaml.contains("name: a\n        same_tags: replace\n        tags:\n          weir_mapping: '1'\n        delta_expiry: 2s\n"), "{}", converted.yaml);
        // A value is remembered for the longest time, and each gauge has its own.
        let converted = convert(&format!("defaults:\n  ttl: 1s\n{mappings}"), &[]).unwrap();
        for part in [
            "\ncontext_expiry: 3s\n",
            "\nstatsd_gauge_delta_expiry: 1s\n",
            "        delta_expiry: 2s\n",
        ] {
            assert!(converted.yaml.contains(part), "{part}:\n{}", converted.yaml);
        }
    }

    #[test]
    fn settings_without_an_equivalent_are_listed_by_line() {
        let text = "defaults:\n  summary_options:\n    max_age: 1m\n  colour: red\nmappings:\n- match: a.*\n  name: a\n  scale: 2\n- match: b.*\n  name: a\n  scale: 3\n\
                    - match: c\n  name: c\n  histogram_options:\n    native_histogram_max_buckets: 3\n  observer_type: gauge\n";
        let converted = convert(text, &["--statsd.cache-size=5".to_owned()]).unwrap();
        let expected = [
            (0, "--statsd.cache-size: rules cost known contexts nothing"),
            (3, "defaults.summary_options.max_age: quantiles are exact"),
            (4, "defaults.colour: is not known"),
            (
                15,
                "histogram_options.native_histogram_max_buckets: native buckets always grow",
            ),
            (16, "observer_type: \"gauge\" is not known"),
        ];
        assert_eq!(converted.left.len(), expected.len(), "{:?}", converted.left);
        for (left, (line, beginning)) in converted.left.iter().zip(expected) {
            assert!(
                left.line == line && left.message.starts_with(beginning),
                "{line}: {beginning}: {left:?}"
            );
        }
        // One name, and each mapping its own factor.
        for part in [
            "- tag: weir_mapping:1\n        scale: 2\n",
            "- tag: weir_mapping:2\n        scale: 3\n",
        ] {
            assert!(converted.yaml.contains(part), "{part}: {}", converted.yaml);
        }
    }

    #[test]
    fn mappings_that_want_one_name_are_reported() {
        let text = "defaults: {observer_type: histogram}\nmappings:\n\
                    - {match: a.*.time, name: a_time}\n- {match: a.*.time_count, name: a.time_count}\n\
                    - {match: a.*.time_bucket, name: a_time_bucket}\n- {match: a.*.time_max, name: a_time_max}\n\
                    - {match: b.*, name: b, match_metric_type: gauge}\n- {match: c.*, name: b, match_metric_type: counter}\n\
                    - {match: d.*, name: d, match_metric_type: counter}\n- {match: e.*, name: d}\n\
                    - {match: d.*.sum, name: d_sum}\n- {match: f.*, name: $1, observer_type: summary}\n\
                    - {match: g.*, name: g, observer_type: summary}\n- {match: h.*, name: g_bucket}\n";
        let converted = convert(text, &[]).unwrap();
        let notes: Vec<(usize, &str)> = converted
            .left
            .iter()
            .map(|note| (note.line, note.message.split(';').next().unwrap()))
            .collect();
        assert_eq!(
            notes,
            [
                (
                    4,
                    "name: a_time_count is also a series of the timers and histograms that line 3 names a_time"
                ),
                (
                    5,
                    "name: a_time_bucket is also a series of the timers and histograms that line 3 names a_time"
                ),
                (8, "name: line 7 gives b to metrics of another kind"),
                (
                    11,
                    "name: d_sum is also a series of the timers and histograms that line 10 names d"
                ),
            ]
        );
    }

    #[test]
    fn without_ordering_the_more_specific_globs_go_first() {
        let text = "defaults:\n  glob_disable_ordering: true\nmappings:\n- match: a.*.*\n  name: x\n- match: a.*.d\n  name: y\n- match: a.b.*\n  name: z\n";
        let converted = convert(text, &[]).unwrap();
        let places: Vec<_> = ["a.b.*", "a.*.d", "a.*.*"]
            .iter()
            .map(|pattern| converted.yaml.find(pattern).unwrap())
            .collect();
        assert!(places.is_sorted(), "{}", converted.yaml);
    }
}
