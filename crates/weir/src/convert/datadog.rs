//! The DogStatsD settings of a `datadog.yaml`.

use std::fmt::Write as _;

use weir_config::{
    Kind, Setting, adds_up, forward_target, gone_variable, hide_password, output_setting, settings, show_text,
};
use weir_output::settings::{OUTPUT_TYPES, OutputType};

use super::{Converted, Left, Refused, block, finish, map, scalar, top_level};
use weir_config::node::{Content, Key, Node};

/// Settings that weir has no use for, and why. A name that ends in `*` stands for all that begin so.
const NOT_NEEDED: &[(&str, &str)] = &[
    (
        "dogstatsd_mapper_cache_size",
        "rules cost known contexts nothing, so there is no cache to size",
    ),
    ("dogstatsd_queue_size", "there is one memory budget, `memory`"),
    (
        "dogstatsd_string_interner_size",
        "there is one memory budget, `memory`",
    ),
    (
        "dogstatsd_packet_buffer_*",
        "there is one memory budget, `memory`",
    ),
    ("dogstatsd_pipeline_*", "`workers` is worked out from the cores"),
    (
        "dogstatsd_workers_count",
        "`workers` is worked out from the cores",
    ),
    (
        "dogstatsd_metrics_stats_enable",
        "`weir status` and /api/v1/status are always on",
    ),
    (
        "metric_tag_filterlist_adp_only",
        "tag filters are always exact, for every type",
    ),
    ("use_dogstatsd", "it is all that weir does"),
];

/// Converts the text of a `datadog.yaml`.
pub fn convert(text: &str) -> Result<Converted, Refused> {
    let mut converter = Converter::default();
    for (key, node) in top_level(text)? {
        match key.text.as_str() {
            "proxy" => converter.proxy(&key, &node),
            "statsd_forward_host" => converter.forward_host = Some((key, node)),
            "statsd_forward_port" => converter.forward_port = Some((key, node)),
            _ => converter.setting(&key, &node),
        }
    }
    converter.forward();
    Ok(converter.finish())
}

/// A key of the other file and its value.
type Entry = (Key, Node);

#[derive(Default)]
struct Converter {
    /// Settings of the agent itself, in the order of the file.
    own: Vec<(&'static Setting, Entry)>,
    /// Settings of outputs: name of the output, path in it, text behind the colon.
    outputs: Vec<(&'static str, String, String)>,
    forward_host: Option<Entry>,
    forward_port: Option<Entry>,
    left: Vec<Left>,
}

impl Converter {
    fn setting(&mut self, key: &Key, node: &Node) {
        let variable = format!("DD_{}", key.text.to_ascii_uppercase());
        if let Some(setting) = settings().find(|setting| setting.also.contains(&variable.as_str())) {
            self.own_setting(setting, key, node);
        } else if let Some(found) = output_setting(OUTPUT_TYPES, &variable) {
            self.output_setting(found, key, node);
        } else if let Some(gone) = gone_variable(&variable, OUTPUT_TYPES) {
            self.left.push(note(key, gone.why));
        } else {
            self.left.push(note(key, why(&key.text)));
        }
    }

    fn own_setting(&mut self, setting: &'static Setting, key: &Key, node: &Node) {
        if !takes(setting, key, node, &mut self.left) {
            return;
        }
        let known = self.own.iter_mut().find(|(other, _)| other.key == setting.key);
        match known {
            None => self.own.push((setting, (key.clone(), as_list(setting, node)))),
            // Tags add up, whichever of the names they have.
            Some((_, (_, first))) if adds_up(setting.key) => append(first, &as_list(setting, node)),
            // Two names for one setting: the one that stands first stays.
            Some(_) => self
                .left
                .push(note(key, format!("says again what {} is", setting.key))),
        }
    }

    fn output_setting(
        &mut self,
        (output_type, path, setting): (&'static OutputType, String, &'static Setting),
        key: &Key,
        node: &Node,
    ) {
        if takes(setting, key, node, &mut self.left) {
            let mut value = String::new();
            let indent = 6 + 2 * path.matches('.').count();
            block(&as_list(setting, node), indent, &mut value);
            self.outputs.push((output_type.name, path, value));
        }
    }

    /// `http`, `https` and `no_proxy`. There is one proxy here, and the intake is reached over HTTPS.
    fn proxy(&mut self, key: &Key, node: &Node) {
        let mut parts: Vec<&Entry> = map(node).iter().collect();
        parts.sort_by_key(|(part, _)| part.text != "https");
        let mut has_proxy = false;
        for (part, value) in parts {
            let name = Key {
                text: format!("proxy.{}", part.text),
                line: part.line,
            };
            let variable = format!("DD_PROXY_{}", part.text.to_ascii_uppercase());
            match output_setting(OUTPUT_TYPES, &variable) {
                _ if value.is_null() => {}
                Some((_, path, _)) if path == "delivery.proxy" && has_proxy => {
                    let message = "outputs.datadog.delivery.proxy is one for all; it has proxy.https";
                    self.left.push(note(&name, message));
                }
                Some(_) if scalar(value).is_some_and(|text| hide_password(text) != text) => {
                    let message =
                        "holds a password, which is not copied; set it in the environment or by hand";
                    self.left.push(note(&name, message));
                }
                Some(found) => {
                    has_proxy |= found.1 == "delivery.proxy";
                    self.output_setting(found, &name, value);
                }
                None => self.left.push(note(&name, "weir has no such setting")),
            }
        }
        if map(node).is_empty() && !node.is_null() {
            self.left
                .push(note(key, "is not a mapping of http, https and no_proxy"));
        }
    }

    /// Both together are the target of a relay.
    fn forward(&mut self) {
        match (self.forward_host.take(), self.forward_port.take()) {
            (Some((key, host)), Some((_, port))) => match (scalar(&host), scalar(&port)) {
                (Some(host), Some(port)) => match forward_target(host, port) {
                    Ok(target) => {
                        let value = format!("\n      - {}\n", show_text(&target));
                        self.outputs.push(("relay", "targets".to_owned(), value));
                    }
                    Err(message) => self.left.push(note(&key, message)),
                },
                _ => self.left.push(note(&key, "is not a host with a port")),
            },
            (Some((key, _)), None) => {
                let message = "forwards nothing without statsd_forward_port";
                self.left.push(note(&key, message));
            }
            (None, Some((key, _))) => {
                let message = "forwards nothing without statsd_forward_host";
                self.left.push(note(&key, message));
            }
            (None, None) => {}
        }
    }

    fn finish(mut self) -> Converted {
        let mut body = String::new();
        for (setting, (_, node)) in &self.own {
            let _ = write!(body, "{}:", setting.key);
            block(node, 2, &mut body);
        }
        self.outputs
            .sort_by_key(|(output, path, _)| (*output, path.contains('.')));
        let (mut output_open, mut record_open) = ("", "");
        for (at, (output, path, value)) in self.outputs.iter().enumerate() {
            if at == 0 {
                body.push_str("outputs:\n");
            }
            if output_open != *output {
                let _ = writeln!(body, "  {output}:");
                (output_open, record_open) = (output, "");
            }
            match path.split_once('.') {
                None => {
                    let _ = write!(body, "    {path}:{value}");
                }
                Some((record, field)) => {
                    if record_open != record {
                        let _ = writeln!(body, "    {record}:");
                        record_open = record;
                    }
                    let _ = write!(body, "      {field}:{value}");
                }
            }
        }
        finish(&body, self.left, "datadog.yaml")
    }
}

fn append(list: &mut Node, more: &Node) {
    if let (Content::List(items), Content::List(more)) = (&mut list.content, &more.content) {
        items.extend(more.iter().cloned());
    }
}

fn note(key: &Key, message: impl Into<String>) -> Left {
    Left {
        line: key.line,
        message: format!("{}: {}", key.text, message.into()),
    }
}

/// Whether the setting takes the value; one that it does not take, or that must not be shown, is left.
fn takes(setting: &Setting, key: &Key, node: &Node, left: &mut Vec<Left>) -> bool {
    if matches!(setting.kind, Kind::Secret) {
        left.push(note(
            key,
            "is a secret, which is not copied; set it in the environment or by hand",
        ));
        return false;
    }
    if let Err(refusal) = setting.check(node) {
        left.push(Left {
            line: refusal.line,
            message: format!("{}{}: {}", key.text, refusal.path, refusal.message),
        });
        return false;
    }
    true
}

/// The other agent takes one text for a list of words.
fn as_list(setting: &Setting, node: &Node) -> Node {
    let Content::Scalar { text, .. } = &node.content else {
        return node.clone();
    };
    if !matches!(setting.kind, Kind::List(_)) || node.is_null() {
        return node.clone();
    }
    let items = text.split_whitespace().map(|text| Node {
        line: node.line,
        content: Content::Scalar {
            text: text.to_owned(),
            plain: false,
        },
    });
    Node {
        line: node.line,
        content: Content::List(items.collect()),
    }
}

fn why(key: &str) -> &'static str {
    for (name, reason) in NOT_NEEDED {
        let matches = match name.strip_suffix('*') {
            Some(prefix) => key.starts_with(prefix),
            None => key == *name,
        };
        if matches {
            return reason;
        }
    }
    if ["dogstatsd", "statsd", "histogram", "metric_", "aggregator"]
        .iter()
        .any(|prefix| key.starts_with(prefix))
    {
        "weir has no such setting"
    } else {
        "is about another part of that agent"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_settings_are_taken_and_the_others_listed() {
        let text = "api_key: 0123456789abcdef0123456789abcdef\nsite: datadoghq.eu\ndogstatsd_port: 9125\ndogstatsd_mapper_profiles:\n  - name: p\n    prefix: 'a.'\n    mappings:\n\
                    \x20     - match: 'a.*'\n        name: a\n        tags:\n          x: $1\nhistogram_percentiles: ['0.99']\napm_config:\n  enabled: true\ndogstatsd_queue_size: 5\n\
                    dogstatsd_expiry_seconds: never\ntags: a:1 b:2\n";
        let converted = convert(text).unwrap();
        let lines: Vec<usize> = converted.left.iter().map(|left| left.line).collect();
        assert_eq!(lines, [1, 13, 15, 16], "{:?}", converted.left);
        for part in [
            "udp:\n  - 9125",
            "site: datadoghq.eu",
            "x: '$1'",
            "histogram_percentiles:\n  - 0.99",
            "- a:1\n  - b:2",
        ] {
            assert!(converted.yaml.contains(part), "{part}:\n{}", converted.yaml);
        }
        assert!(
            !converted.yaml.contains("0123456789abcdef"),
            "a key is not copied"
        );
    }

    #[test]
    fn what_weir_once_had_is_listed_with_the_reason() {
        let converted = convert("dogstatsd_buffer_size: 8192\nforwarder_backoff_factor: 3\n").unwrap();
        let parts = ["packets may be as long as 64KiB", "each wait is drawn"];
        assert_eq!(converted.left.len(), 2, "{:?}", converted.left);
        for (left, part) in converted.left.iter().zip(parts) {
            assert!(left.message.contains(part), "{left:?}");
        }
    }

    #[test]
    fn tags_of_several_names_add_up() {
        for order in [
            "dogstatsd_tags: [a:1]\nextra_tags: b:2 c:3\n",
            "extra_tags: [b:2, c:3]\ndogstatsd_tags: [a:1]\n",
        ] {
            let converted = convert(order).unwrap();
            assert_eq!(converted.left, [], "{order}");
            for tag in ["a:1", "b:2", "c:3"] {
                let line = format!("\n  - {tag}\n");
                assert!(converted.yaml.contains(&line), "{tag}: {}", converted.yaml);
            }
        }
    }

    #[test]
    fn proxies_and_forwarding_go_where_they_belong() {
        let text = "proxy:\n  http: http://a:1\n  https: http://b:2\n  no_proxy: [c, d]\nforwarder_timeout: 30\n\
                    statsd_forward_host: other.example\nstatsd_forward_port: 8126\nsite: datadoghq.eu\n";
        let converted = convert(text).unwrap();
        let lines: Vec<usize> = converted.left.iter().map(|left| left.line).collect();
        assert_eq!(lines, [2], "one proxy for all: {:?}", converted.left);
        let expected = "outputs:\n  datadog:\n    site: datadoghq.eu\n    delivery:\n      proxy: http://b:2\n      no_proxy:\n        \
                        - c\n        - d\n      timeout: 30\n  relay:\n    targets:\n      - udp://other.example:8126\n";
        assert!(converted.yaml.ends_with(expected), "{}", converted.yaml);
        let lone = convert("statsd_forward_host: x\n").unwrap();
        assert!(
            lone.left[0].message.contains("statsd_forward_port"),
            "{:?}",
            lone.left
        );
        let bad = convert("statsd_forward_host: x\nstatsd_forward_port: often\n").unwrap();
        assert!(bad.left[0].message.contains("often"), "{:?}", bad.left);
    }
}
