//! The DogStatsD settings of a `datadog.yaml`.

use weir_config::{
    Setting, SettingType, VariableError, adds_up, changes_data, forward_target, handle_in, hide_password,
    in_our_words, is_section, leaves, means_the_same, output_setting, removed_variable, settings, show_text,
    unsupported_keys, unsupported_reason,
};
use weir_output::settings::{OUTPUT_TYPES, OutputType};

use super::draft::Draft;
use super::within::Sought;
use super::{
    API_KEY, Consequence, ConvertError, Converted, Unconverted, block, did_you_mean, finish, list, map,
    scalar, slipped, top_level,
};
use weir_config::node::{Content, Key, Node};

/// The path of the disk queue if the file names none: the Datadog Agent has a default.
const DISK_PATH: &str = "/var/lib/weir/datadog";

/// Converts the text of a `datadog.yaml`.
pub fn convert(text: &str) -> Result<Converted, ConvertError> {
    let sought = Sought {
        name: "the Datadog Agent about metrics",
        parse: &top_level,
        is_own: &|entries| entries.iter().any(|(key, _)| is_about_metrics(&key.text)),
        in_values: false,
    };
    let mut converter = Converter::default();
    for (key, node) in sought.in_document(top_level(text)?)? {
        converter.entry(key, node);
    }
    converter.forward();
    converter.disk();
    Ok(converter.finish())
}

/// Whether a key, or one below it, is about metrics or their delivery.
fn is_about_metrics(key: &str) -> bool {
    let variable = variable_of(key);
    matches!(key, "proxy" | "statsd_forward_host" | "statsd_forward_port")
        || is_section(key)
        || settings().any(|setting| setting.also.contains(&variable.as_str()))
        || output_setting(OUTPUT_TYPES, &variable).is_some()
        || removed_variable(&variable, OUTPUT_TYPES).is_some()
        || unsupported_reason(key).is_some()
}

/// A key of the file and its value.
type Entry = (Key, Node);

#[derive(Default)]
struct Converter {
    /// Settings of the agent itself, in the order of the file.
    own: Vec<(&'static Setting, Entry)>,
    /// Settings of outputs.
    draft: Draft,
    forward_host: Option<Entry>,
    forward_port: Option<Entry>,
    left: Vec<Unconverted>,
}

impl Converter {
    fn entry(&mut self, key: Key, node: Node) {
        match (key.text.as_str(), &node.content) {
            ("proxy", _) => self.proxy(&key, &node),
            ("statsd_forward_host", _) => self.forward_host = Some((key, node)),
            ("statsd_forward_port", _) => self.forward_port = Some((key, node)),
            (section, Content::Map(entries)) if is_section(section) => {
                for (part, node) in entries {
                    self.entry(below(&key, part), node.clone());
                }
            }
            _ => self.setting(&key, &node),
        }
    }

    fn setting(&mut self, key: &Key, node: &Node) {
        let variable = variable_of(&key.text);
        let node = &match in_our_words_too(&variable, node) {
            Ok(node) => node,
            Err(error) => return self.left.push(note(key, error.to_string())),
        };
        if let Some(setting) = settings().find(|setting| setting.also.contains(&variable.as_str())) {
            self.own_setting(setting, key, node);
        } else if let Some(found) = output_setting(OUTPUT_TYPES, &variable) {
            self.output_setting(found, key, node);
        } else if let Some(removed) = removed_variable(&variable, OUTPUT_TYPES) {
            self.left.push(idle(key, removed.why));
        } else if let Some(why) = unsupported_reason(&key.text) {
            match scalar(node) {
                Some(value) if means_the_same(&key.text, value) => {}
                _ if changes_data(&key.text) => self.left.push(note(key, why)),
                _ => self.left.push(idle(key, why)),
            }
        } else {
            self.left.push(unknown(key));
        }
    }

    fn own_setting(&mut self, setting: &'static Setting, key: &Key, node: &Node) {
        if !takes(setting, key, node, &mut self.left) {
            return;
        }
        let known = self.own.iter_mut().find(|(other, _)| other.key == setting.key);
        match known {
            None => self.own.push((setting, (key.clone(), as_list(setting, node)))),
            // Tags of both names add up.
            Some((_, (_, first))) if adds_up(setting.key) => append(first, &as_list(setting, node)),
            // Two names for one setting: the first in the file applies.
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
        let without_keys = (setting.key == "additional_endpoints").then(|| self.keys_in_files(key, node));
        let node = match &without_keys {
            Some(None) => return,
            Some(Some(node)) => node,
            None => node,
        };
        if takes(setting, key, node, &mut self.left) {
            let mut value = String::new();
            let indent = 6 + 2 * path.matches('.').count();
            block(&as_list(setting, node), indent, &mut value);
            self.draft.output(output_type.name, &path, value);
        }
    }

    /// Further intakes without their keys, of which each is to be written into a file; none if all keys are.
    fn keys_in_files(&mut self, key: &Key, node: &Node) -> Option<Node> {
        let list_of = |items: Vec<Node>| Node {
            line: node.line,
            content: Content::List(items),
        };
        let (mut kept, mut files, mut number) = (Vec::new(), Vec::new(), 0);
        for (url, keys) in map(node) {
            let is_handle = |item: &Node| item.texts().iter().all(|text| handle_in(text).is_some());
            let (handles, clear): (Vec<Node>, Vec<Node>) =
                list(keys).iter().cloned().partition(|item| is_handle(item));
            let mut paths = Vec::new();
            for item in clear {
                number += 1;
                let path = format!("/etc/weir/additional-endpoint-{number}.key");
                let message = format!(
                    "the key is a secret, which is not copied; write that of {} into {path}",
                    url.text
                );
                let at = Key {
                    text: key.text.clone(),
                    line: item.line,
                };
                self.left.push(note(&at, message));
                paths.push(Node {
                    line: item.line,
                    content: Content::Scalar {
                        text: path,
                        plain: false,
                    },
                });
            }
            for (list, of) in [(handles, &mut kept), (paths, &mut files)] {
                if !list.is_empty() {
                    of.push((url.clone(), list_of(list)));
                }
            }
        }
        if files.is_empty() {
            return Some(node.clone());
        }
        let map_of = |entries: Vec<Entry>| Node {
            line: node.line,
            content: Content::Map(entries),
        };
        let mut value = String::new();
        block(&map_of(files), 6, &mut value);
        self.draft.output("datadog", "additional_endpoints_file", value);
        (!kept.is_empty()).then(|| map_of(kept))
    }

    /// `http`, `https` and `no_proxy`. weir has one proxy, and reaches the intake over HTTPS.
    fn proxy(&mut self, key: &Key, node: &Node) {
        let mut parts: Vec<&Entry> = map(node).iter().collect();
        parts.sort_by_key(|(part, _)| part.text != "https");
        let mut has_proxy = false;
        for (part, value) in parts {
            let name = below(key, part);
            let variable = variable_of(&name.text);
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
                None => self.left.push(unknown(&name)),
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
                        self.draft.output("relay", "targets", value);
                    }
                    Err(error) => self.left.push(note(&key, error.to_string())),
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

    /// The Datadog Agent uses its disk queue if the size is set, at a default path; weir uses it if the path is set.
    fn disk(&mut self) {
        let path = self.draft.of_output("delivery.disk_path").is_some();
        match self.draft.of_output("delivery.disk_bytes_max") {
            Some(size) if size != "0" && !path => {
                self.draft.set_output("datadog", "delivery.disk_path", DISK_PATH);
            }
            // The Datadog Agent's default is zero.
            None if path => self.draft.set_output("datadog", "delivery.disk_bytes_max", "0"),
            _ => {}
        }
    }

    fn finish(mut self) -> Converted {
        for (setting, (_, node)) in &self.own {
            let mut text = String::new();
            block(node, 2, &mut text);
            self.draft.own(setting.key, text);
        }
        finish(&self.draft.text(), self.left, "datadog.yaml")
    }
}

/// A key that is not in the table of keys about metrics: of another part of that agent, or mistyped.
fn unknown(key: &Key) -> Unconverted {
    let settings = settings().flat_map(|setting| setting.also.iter().copied());
    let of_outputs = OUTPUT_TYPES
        .iter()
        .flat_map(|output_type| leaves(output_type.settings));
    let known: Vec<String> = settings
        .chain(of_outputs.flat_map(|leaf| leaf.also.iter().copied()))
        .filter_map(|variable| variable.strip_prefix("DD_"))
        .map(str::to_ascii_lowercase)
        .chain(unsupported_keys().map(str::to_owned))
        .collect();
    // Few keys of other parts begin so.
    let is_ours = ["dogstatsd_", "statsd_", "histogram_", "forwarder_"]
        .iter()
        .any(|start| key.text.starts_with(start));
    let names = || known.iter().map(String::as_str);
    let hint = match &*key.text {
        _ if is_ours => did_you_mean(&key.text, names()),
        // Of another part, and the only such key that is so like one of these.
        "app_key" => None,
        other => slipped(other, names()),
    };
    match hint {
        Some(hint) => note(key, hint),
        None => Unconverted::new(
            Consequence::Elsewhere,
            key.line,
            format!("{}: is no setting of DogStatsD or of delivery", key.text),
        ),
    }
}

/// The variable of a key.
fn variable_of(key: &str) -> String {
    format!("DD_{}", key.to_ascii_uppercase().replace('.', "_"))
}

fn below(section: &Key, part: &Key) -> Key {
    Key {
        text: format!("{}.{}", section.text, part.text),
        line: part.line,
    }
}

fn in_our_words_too(variable: &str, node: &Node) -> Result<Node, VariableError> {
    let mut node = node.clone();
    if let Content::Scalar { text, .. } = &mut node.content {
        *text = in_our_words(variable, text)?.into_owned();
    }
    Ok(node)
}

fn append(list: &mut Node, more: &Node) {
    if let (Content::List(items), Content::List(more)) = (&mut list.content, &more.content) {
        items.extend(more.iter().cloned());
    }
}

fn note(key: &Key, message: impl Into<String>) -> Unconverted {
    let message = format!("{}: {}", key.text, message.into());
    Unconverted::new(Consequence::ChangesData, key.line, message)
}

/// A note about a key that has no effect here.
fn idle(key: &Key, message: &str) -> Unconverted {
    Unconverted::new(
        Consequence::NoEffect,
        key.line,
        format!("{}: {message}", key.text),
    )
}

/// Whether the setting accepts the value. A rejected value, or a secret, is reported as not converted.
fn takes(setting: &Setting, key: &Key, node: &Node, left: &mut Vec<Unconverted>) -> bool {
    let texts = node.texts();
    let handles = texts.iter().filter(|text| handle_in(text).is_some()).count();
    if handles > 0 && handles == texts.len() {
        // weir asks the same program for them.
        return true;
    }
    if setting.kind.is_secret() && !texts.is_empty() {
        left.push(note(key, API_KEY));
        return false;
    }
    if let Err(refusal) = setting.check(node) {
        let message = format!("{}{}: {}", key.text, refusal.path, refusal.message);
        left.push(Unconverted::new(Consequence::ChangesData, refusal.line, message));
        return false;
    }
    true
}

/// The Datadog Agent accepts one text as a list of words.
fn as_list(setting: &Setting, node: &Node) -> Node {
    let Content::Scalar { text, .. } = &node.content else {
        return node.clone();
    };
    if !matches!(setting.kind, SettingType::List(_)) || node.is_null() {
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
    fn notes_are_sorted_by_what_they_mean() {
        let text = "apm_config:\n  enabled: true\nenable_payloads:\n  series: true\n  service_checks: false\ndogstatsd_prot: 1\ndogstatsd_queue_size: 5\nskip_ssl_validation: false\n\
                    cluster_name: x\nsecret_backend_type: x\nsecret_backend_command: /x\nhostname: ENC[host]\n";
        let converted = convert(text).unwrap();
        let of = |consequence| -> Vec<usize> {
            let of = converted
                .left
                .iter()
                .filter(|left| left.consequence == consequence);
            of.map(|left| left.line).collect()
        };
        assert_eq!(
            of(Consequence::ChangesData),
            [5, 6, 9, 10],
            "{:?}",
            converted.left
        );
        assert_eq!(of(Consequence::NoEffect), [7]);
        assert_eq!(of(Consequence::Elsewhere), [1]);
        assert!(
            converted.left[2]
                .message
                .ends_with("did you mean dogstatsd_port?"),
            "{:?}",
            converted.left
        );
        for part in ["\nsecret_backend_command: /x\n", "\nhostname: 'ENC[host]'\n"] {
            assert!(converted.yaml.contains(part), "{}", converted.yaml);
        }
        let places = [
            "changes your data",
            "line 9: cluster_name",
            "no effect here",
            "another part",
        ]
        .map(|part| converted.yaml.find(part));
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{}",
            converted.yaml
        );
    }

    #[test]
    fn a_slip_in_any_key_is_told() {
        let converted =
            convert("tagz: [a:b]\ndogstatd_port: 1\nstie: x\napp_key: x\nlogs_enabled: true\nenv: prod\n")
                .unwrap();
        let told: Vec<_> = converted
            .left
            .iter()
            .map(|left| (left.consequence, left.line, left.message.as_str()))
            .collect();
        let (changes, elsewhere) = (Consequence::ChangesData, Consequence::Elsewhere);
        assert_eq!(
            told,
            [
                (changes, 1, "tagz: is not known; did you mean tags?"),
                (
                    changes,
                    2,
                    "dogstatd_port: is not known; did you mean dogstatsd_port?"
                ),
                (changes, 3, "stie: is not known; did you mean site?"),
                (elsewhere, 4, "app_key: is no setting of DogStatsD or of delivery"),
                (
                    elsewhere,
                    5,
                    "logs_enabled: is no setting of DogStatsD or of delivery"
                ),
            ]
        );
    }

    #[test]
    fn keys_are_not_copied_and_handles_of_keys_are() {
        let text = "api_key: 'ENC[one]'\nadditional_endpoints:\n  https://b.example: ['ENC[two]']\nsecret_backend_arguments: [a b]\nsecret_backend_timeout: 5\n";
        let converted = convert(text).unwrap();
        assert_eq!(converted.left, []);
        for part in [
            "api_key: 'ENC[one]'",
            "- 'ENC[two]'",
            "- 'a b'",
            "secret_backend_timeout: 5",
        ] {
            assert!(converted.yaml.contains(part), "{part}: {}", converted.yaml);
        }
        let clear = "0123456789abcdef0123456789abcdef";
        let text = format!("additional_endpoints:\n  https://b.example: ['ENC[two]', {clear}]\n");
        let converted = convert(&text).unwrap();
        let path = "/etc/weir/additional-endpoint-1.key";
        let message = format!("write that of https://b.example into {path}");
        let said: Vec<_> = converted
            .left
            .iter()
            .map(|left| (left.line, left.message.contains(&message)))
            .collect();
        assert_eq!(said, [(2, true)], "{:?}", converted.left);
        let result: String = converted.yaml.split_whitespace().collect();
        for part in [
            "additional_endpoints:https://b.example:-'ENC[two]'".to_owned(),
            format!("additional_endpoints_file:https://b.example:-{path}"),
        ] {
            assert!(result.contains(&part), "{part}: {}", converted.yaml);
        }
        assert!(!converted.yaml.contains(clear), "{}", converted.yaml);
    }

    #[test]
    fn removed_settings_are_listed_with_the_reason() {
        let converted = convert("dogstatsd_buffer_size: 8192\nforwarder_backoff_factor: 3\n").unwrap();
        let parts = ["packets may be up to 64KiB long", "each wait is drawn"];
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
    fn proxies_and_forwarding_are_converted() {
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
