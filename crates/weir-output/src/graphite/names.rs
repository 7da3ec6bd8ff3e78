//! The rules of carbon and Graphite for names, and replacements for all other characters.
//!
//! A line is split at white space, a tagged name at `;`, and a plain name becomes a file path at its dots. So characters with a meaning
//! there, or in Graphite's queries, are replaced by `_`. Each function returns whether it had to change anything.

use std::borrow::Cow;

use super::{Characters, Tags};
use crate::text_lines::percent;

/// Maximum bytes of a file name, minus carbon's extension (`.wsp`) and the distinction of equal names (`_` and eight digits).
const NODE_BYTES_MAX: usize = 255 - 4 - 9;

/// Appends a metric's name: nodes of letters, digits, `_`, `-` and `:`, with single dots between them. As StatsD does it, nodes have no
/// `:` either.
pub fn push_name(path: &mut String, name: &str, characters: Characters) -> bool {
    let start = path.len();
    let mut changed = false;
    let mut length = 0;
    let mut is_space = false;
    for c in name.chars() {
        let was_space = std::mem::replace(&mut is_space, c.is_ascii_whitespace());
        match c {
            '.' => {
                // An empty node would be the same file as none.
                if length == 0 {
                    changed = true;
                    continue;
                }
                length = 0;
                path.push('.');
            }
            _ if characters == Characters::StatsD => {
                let kept = c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
                changed |= !kept;
                let shown = match c {
                    _ if kept => c,
                    '/' => '-',
                    // All of it at once.
                    _ if is_space && !was_space => '_',
                    _ => continue,
                };
                path.push(shown);
                length += 1;
            }
            _ => {
                let kept = c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':');
                path.push(if kept { c } else { '_' });
                changed |= !kept;
                length += 1;
            }
        }
    }
    if path.len() > start && path.ends_with('.') {
        path.pop();
        changed = true;
    }
    if path.len() == start {
        path.push('_');
        changed = true;
    }
    changed | shorten_nodes(path, start)
}

/// Appends a node made of a tag's key or value.
pub fn push_node(path: &mut String, text: &str) -> bool {
    let start = path.len();
    let mut changed = text.is_empty();
    for c in text.chars() {
        let kept = c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':');
        path.push(if kept { c } else { '_' });
        changed |= !kept;
    }
    if text.is_empty() {
        path.push('_');
    }
    changed | shorten_nodes(path, start)
}

/// The key of a tag; a new text if it had to change. `name` is Graphite's own.
pub fn key(key: &str, form: Tags) -> Cow<'_, str> {
    let mut changed = false;
    let mut text = String::new();
    if form == Tags::Tagged {
        if key == "name" || key.is_empty() {
            text.push('_');
            changed = true;
        }
        for c in key.chars() {
            let refused = c.is_whitespace() || c.is_control() || matches!(c, ';' | '!' | '^' | '=' | '"');
            text.push(if refused { '_' } else { c });
            changed |= refused;
        }
    } else {
        changed = push_node(&mut text, key);
    }
    if changed {
        Cow::Owned(text)
    } else {
        Cow::Borrowed(key)
    }
}

/// Appends the value of a tag, which is not empty.
pub fn push_value(path: &mut String, value: &str) -> bool {
    let mut changed = false;
    for (at, c) in value.chars().enumerate() {
        let refused = c.is_whitespace() || c.is_control() || matches!(c, ';' | '"') || (at == 0 && c == '~');
        path.push(if refused { '_' } else { c });
        changed |= refused;
    }
    changed
}

/// Cuts nodes from `start` on that are too long for a file's name.
fn shorten_nodes(path: &mut String, start: usize) -> bool {
    if path[start..].split('.').all(|node| node.len() <= NODE_BYTES_MAX) {
        return false;
    }
    let nodes: Vec<String> = path[start..]
        .split('.')
        .map(|node| node.chars().take(NODE_BYTES_MAX).collect())
        .collect();
    path.truncate(start);
    path.push_str(&nodes.join("."));
    true
}

/// `p50`, `p99_9`.
pub fn percentile(fraction: f64) -> String {
    format!("p{}", percent(fraction)).replace('.', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(path: &mut String, name: &str) -> bool {
        push_name(path, name, Characters::Replace)
    }

    fn check(push: impl Fn(&mut String, &str) -> bool, text: &str, expected: &str) {
        let mut path = String::from("before");
        let changed = push(&mut path, text);
        assert_eq!(&path["before".len()..], expected, "{text:?}");
        assert_eq!(changed, text != expected, "{text:?}");
    }

    #[test]
    fn names() {
        for (name, expected) in [
            ("page.views", "page.views"),
            ("a-b_c:d.E9", "a-b_c:d.E9"),
            ("a b/c", "a_b_c"),
            ("..a...b..", "a.b"),
            ("...", "_"),
            ("temp é", "temp__"),
            ("x{y=\"z\"}", "x_y__z__"),
            ("a;b=c", "a_b_c"),
        ] {
            check(replaced, name, expected);
        }
        for (name, expected) in [
            ("page.views", "page.views"),
            ("a-b_c.d.E9", "a-b_c.d.E9"),
            ("up and/down", "up_and-down"),
            ("a \t b.c:d", "a_b.cd"),
            ("odd!name.!.x", "oddname.x"),
            ("temp é!", "temp_"),
            ("!!", "_"),
        ] {
            let as_statsd = |path: &mut String, name: &str| push_name(path, name, Characters::StatsD);
            check(as_statsd, name, expected);
        }
        let long = "n".repeat(300);
        check(replaced, &format!("{long}.b"), &format!("{}.b", &long[..242]));
    }

    #[test]
    fn tags() {
        for (text, tagged, node) in [
            ("env", "env", "env"),
            ("name", "_name", "name"),
            ("a=b c.d", "a_b_c.d", "a_b_c_d"),
            ("", "_", "_"),
        ] {
            assert_eq!(
                (key(text, Tags::Tagged), key(text, Tags::Path)),
                (tagged.into(), node.into())
            );
        }
        check(push_value, "/api/v1.2 x", "/api/v1.2_x");
        check(push_value, "~x;y", "_x_y");
        check(push_value, "caf\u{e9}", "caf\u{e9}");
        check(push_value, "a\u{a0}b\u{85}", "a_b_");
        check(push_node, "/api/v1.2", "_api_v1_2");
        check(push_node, "", "_");
    }

    #[test]
    fn percentiles() {
        for (fraction, name) in [
            (0.5, "p50"),
            (0.999, "p99_9"),
            (0.29, "p29"),
            (1.0, "p100"),
            (0.0, "p0"),
            (0.9999, "p99_99"),
        ] {
            assert_eq!(percentile(fraction), name);
        }
    }
}
