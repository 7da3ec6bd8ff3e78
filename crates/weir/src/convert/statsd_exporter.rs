//! The mapping file of Prometheus' statsd_exporter.
//!
//! Two rules of that program shape the result: all globs are tried before all expressions, whatever their order, and
//! expressions are not bound to the ends of the name.

use std::fmt::Write as _;

use super::{Converted, Left, Refused, finish, list, map, scalar, top_level};
use weir_config::node::Node;
use weir_config::show_text;

/// Converts the text of a mapping file.
pub fn convert(text: &str) -> Result<Converted, Refused> {
    let entries = top_level(text)?;
    let mut converter = Converter::default();
    for (key, node) in &entries {
        match key.text.as_str() {
            "defaults" => converter.defaults(node),
            "mappings" => {}
            other => converter.leave(key.line, format!("{other}: is not known")),
        }
    }
    for (key, node) in &entries {
        if key.text == "mappings" {
            for mapping in list(node) {
                converter.mapping(mapping);
            }
        }
    }
    Ok(converter.finish())
}

#[derive(Default)]
struct Converter {
    globs: String,
    regexes: String,
    default_is_regex: bool,
    default_ttl: Option<f64>,
    quantiles: Vec<String>,
    left: Vec<Left>,
}

impl Converter {
    fn leave(&mut self, line: usize, message: impl Into<String>) {
        self.left.push(Left {
            line,
            message: message.into(),
        });
    }

    fn defaults(&mut self, node: &Node) {
        for (key, value) in map(node) {
            let text = scalar(value).unwrap_or_default();
            match key.text.as_str() {
                "match_type" => self.default_is_regex = text == "regex",
                "ttl" => match go_seconds(text) {
                    Some(seconds) if seconds > 0.0 => self.default_ttl = Some(seconds),
                    Some(_) => self.leave(key.line, "defaults.ttl: 0 keeps series for ever; weir forgets them after outputs.prometheus.expiry (300s)"),
                    None => self.leave(key.line, format!("defaults.ttl: {text:?} is not a duration")),
                },
                "glob_disable_ordering" if matches!(text, "true" | "yes" | "on") => {
                    let message = "defaults.glob_disable_ordering: mappings apply in their order; put the more specific ones first";
                    self.leave(key.line, message);
                }
                "glob_disable_ordering" => {}
                "quantiles" => self.quantiles(value),
                "summary_options" => {
                    for (option, value) in map(value) {
                        match option.text.as_str() {
                            "quantiles" => self.quantiles(value),
                            other => self.leave(option.line, format!("defaults.summary_options.{other}: summaries are exact per bucket and need no window")),
                        }
                    }
                }
                other => self.leave(key.line, format!("defaults.{other}: {}", why_observer(other))),
            }
        }
    }

    fn quantiles(&mut self, node: &Node) {
        for item in list(node) {
            let quantile = map(item).iter().find(|(key, _)| key.text == "quantile");
            if let Some(text) = quantile.and_then(|(_, node)| scalar(node)) {
                self.quantiles.push(text.to_owned());
            }
        }
    }

    fn mapping(&mut self, node: &Node) {
        let field = |name: &str| map(node).iter().find(|(key, _)| key.text == name);
        let text = |name: &str| field(name).and_then(|(_, node)| scalar(node)).unwrap_or_default();
        let line = node.line;
        let pattern = text("match");
        if pattern.is_empty() {
            self.leave(line, "this mapping has no match");
            return;
        }
        let is_regex = match text("match_type") {
            "" => self.default_is_regex,
            "regex" => true,
            "glob" => false,
            other => {
                self.leave(
                    line,
                    format!("match_type: {other:?} is not known; the mapping is left out"),
                );
                return;
            }
        };
        let drop = match text("action") {
            "" | "map" => false,
            "drop" => true,
            other => {
                self.leave(
                    line,
                    format!("action: {other:?} is not known; the mapping is left out"),
                );
                return;
            }
        };
        let types = match text("match_metric_type") {
            "" => "",
            "counter" => "[counter]",
            "gauge" => "[gauge]",
            "timer" | "observer" | "histogram" | "summary" => "[histogram, timing, distribution]",
            other => {
                self.leave(
                    line,
                    format!("match_metric_type: {other:?} is not known; the mapping is left out"),
                );
                return;
            }
        };
        let mut written = String::new();
        let pattern = if is_regex {
            unbound(pattern)
        } else {
            pattern.to_owned()
        };
        let template = |text: &str| if is_regex { text.to_owned() } else { braced(text) };
        let _ = writeln!(written, "      - match: {}", show_text(&pattern));
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
            if !labels.is_empty() {
                let _ = writeln!(written, "        tags:");
                for (key, value) in labels {
                    let value = template(scalar(value).unwrap_or_default());
                    let _ = writeln!(
                        written,
                        "          {}: {}",
                        show_text(&key.text),
                        show_text(&value)
                    );
                }
            }
        }
        for (key, value) in map(node) {
            let what = match key.text.as_str() {
                "match" | "match_type" | "name" | "labels" | "action" | "match_metric_type" => continue,
                "ttl" => {
                    let seconds = scalar(value).and_then(go_seconds);
                    if seconds.is_some() && seconds == self.default_ttl {
                        continue;
                    }
                    "outputs.prometheus.expiry is one time for all series".to_owned()
                }
                "help" => "weir writes help texts of its own".to_owned(),
                "scale" => "values are not scaled; let the client or the query do it".to_owned(),
                "honor_labels" => {
                    "the tags of the message stay, and those of the mapping are added".to_owned()
                }
                other => why_observer(other).to_owned(),
            };
            self.leave(key.line, format!("{}: {what}", key.text));
        }
        if is_regex {
            self.regexes.push_str(&written);
        } else {
            self.globs.push_str(&written);
        }
    }

    fn finish(self) -> Converted {
        let mut body = String::new();
        if !self.globs.is_empty() || !self.regexes.is_empty() {
            body.push_str("mapper_profiles:\n");
        }
        for (name, mappings) in [
            ("statsd-exporter-glob", self.globs),
            ("statsd-exporter-regex", self.regexes),
        ] {
            if !mappings.is_empty() {
                let _ = write!(
                    body,
                    "  - name: {name}\n    prefix: '*'\n    mappings:\n{mappings}"
                );
            }
        }
        // What that program does without being asked.
        body.push_str("# Signed gauges add to the value that is there.\nstatsd_gauge_deltas: true\noutputs:\n  prometheus:\n");
        body.push_str("    # Timings (ms) are shown in seconds.\n    timings_in_seconds: true\n");
        if let Some(seconds) = self.default_ttl {
            // Whole seconds are what the output counts in.
            let _ = writeln!(body, "    expiry: {}s", seconds.max(1.0).round());
        } else {
            body.push_str("    # Without a ttl series stay for ever there; here they leave after `expiry` (300s) without a sample.\n");
        }
        if !self.quantiles.is_empty() {
            let _ = writeln!(body, "    quantiles: [{}]", self.quantiles.join(", "));
        }
        body.push_str("    # Other than there, names of counters end in _total.\n");
        finish(&body, self.left, "a statsd_exporter mapping")
    }
}

fn why_observer(key: &str) -> &'static str {
    match key {
        "observer_type" | "timer_type" => "outputs.prometheus.histograms chooses one form for all",
        "buckets" | "histogram_options" => "histograms are native and have no fixed buckets",
        "quantiles" | "summary_options" => "outputs.prometheus.quantiles is one list for all",
        _ => "is not known",
    }
}

/// An expression that is searched for anywhere in the name, as one that spans the name.
fn unbound(pattern: &str) -> String {
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

/// In globs `$1x` is group 1 and an x; in the templates of weir, as in Go, it would be the group `1x`.
fn braced(template: &str) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        let (before, after) = rest.split_at(at + 1);
        text.push_str(before);
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            let _ = write!(text, "{{{}}}", &after[..digits]);
        }
        rest = &after[digits..];
    }
    text.push_str(rest);
    text
}

/// Durations as Go writes them: `1m20s`.
fn go_seconds(text: &str) -> Option<f64> {
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
        assert_eq!(braced("$1_total ${2} $"), "${1}_total ${2} $");
        assert_eq!(go_seconds("1m20s"), Some(80.0));
        assert_eq!(go_seconds("0"), Some(0.0));
        assert_eq!(go_seconds("1.5h"), Some(5400.0));
        assert_eq!(go_seconds("x"), None);
        assert_eq!(go_seconds(""), None);
    }

    #[test]
    fn what_is_left_is_listed_by_line() {
        let text = "defaults:\n  ttl: 5m\n  buckets: [1]\nmappings:\n- match: test.*.x\n  name: test_$1_x\n  help: words\n  labels:\n    a: $1b\n\
                    - match: '(\\w+)\\.y'\n  match_type: regex\n  match_metric_type: counter\n  name: y\n  ttl: 1s\n- match: '.'\n  match_type: regex\n  action: drop\n";
        let converted = convert(text).unwrap();
        let lines: Vec<usize> = converted.left.iter().map(|left| left.line).collect();
        assert_eq!(lines, [3, 7, 14], "{:?}", converted.left);
        for part in [
            "match: test.*.x",
            "name: 'test_${1}_x'",
            "a: '${1}b'",
            "types: [counter]",
            "action: drop",
            "expiry: 300s",
            "\n    timings_in_seconds: true\n",
            "\nstatsd_gauge_deltas: true\n",
        ] {
            assert!(converted.yaml.contains(part), "{part}:\n{}", converted.yaml);
        }
    }
}
