//! The DogStatsD settings of a `datadog.yaml`.

use std::fmt::Write as _;

use weir_output::settings::{Kind, OUTPUT_TYPES, OutputType, Setting};

use super::{Converted, Left, Refused, block, finish, top_level};
use crate::config::node::{Content, Key, Node};
use crate::config::{check_node, entries};

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
    let mut body = String::new();
    let mut outputs: Vec<(&'static str, String)> = Vec::new();
    let mut left = Vec::new();
    let mut written = Vec::new();
    for (key, node) in top_level(text)? {
        let variable = format!("DD_{}", key.text.to_ascii_uppercase());
        if let Some(entry) = entries().find(|entry| entry.second_names.contains(&variable.as_str())) {
            // Two names for one setting: the one that the table prefers stays.
            if written.contains(&entry.setting.key) {
                left.push(note(&key, format!("says again what {} is", entry.setting.key)));
                continue;
            }
            let mut value = String::new();
            if take(&entry.setting, &key, &node, 2, &mut value, &mut left) {
                written.push(entry.setting.key);
                let _ = write!(body, "{}:{value}", entry.setting.key);
            }
        } else if let Some((output_type, path)) = output_setting(&variable) {
            let Some(setting) = output_type.settings.iter().find(|setting| setting.key == path) else {
                left.push(note(
                    &key,
                    format!("belongs to outputs.{}.{path}; set it there", output_type.name),
                ));
                continue;
            };
            let mut value = String::new();
            if take(setting, &key, &node, 6, &mut value, &mut left) {
                outputs.push((output_type.name, format!("    {path}:{value}")));
            }
        } else {
            left.push(note(&key, why(&key.text)));
        }
    }
    outputs.sort_by_key(|(name, _)| *name);
    let mut open = "";
    for (at, (name, line)) in outputs.iter().enumerate() {
        if at == 0 {
            body.push_str("outputs:\n");
        }
        if open != *name {
            let _ = writeln!(body, "  {name}:");
            open = name;
        }
        body.push_str(line);
    }
    Ok(finish(&body, left, "datadog.yaml"))
}

fn note(key: &Key, message: impl Into<String>) -> Left {
    Left {
        line: key.line,
        message: format!("{}: {}", key.text, message.into()),
    }
}

fn output_setting(variable: &str) -> Option<(&'static OutputType, &'static str)> {
    OUTPUT_TYPES.iter().find_map(|output_type| {
        let mut known = output_type.environment.iter();
        let (path, _) = known.find(|(_, names)| names.contains(&variable))?;
        Some((output_type, *path))
    })
}

/// Writes a value that the setting takes; one that it does not take, or that must not be shown, is left.
fn take(
    setting: &Setting,
    key: &Key,
    node: &Node,
    indent: usize,
    out: &mut String,
    left: &mut Vec<Left>,
) -> bool {
    if matches!(setting.kind, Kind::Secret) {
        left.push(note(
            key,
            "is a secret, which is not copied; set it in the environment or by hand",
        ));
        return false;
    }
    if let Err((line, path, message)) = check_node(&setting.kind, node) {
        left.push(Left {
            line,
            message: format!("{}{path}: {message}", key.text),
        });
        return false;
    }
    // The other agent takes one text for a list of words.
    if matches!(setting.kind, Kind::List(_))
        && let Content::Scalar { text, .. } = &node.content
    {
        let items = text.split_whitespace().map(|text| Node {
            line: node.line,
            content: Content::Scalar {
                text: text.to_owned(),
                plain: false,
            },
        });
        let node = Node {
            line: node.line,
            content: Content::List(items.collect()),
        };
        block(&node, indent, out);
    } else {
        block(node, indent, out);
    }
    true
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
}
