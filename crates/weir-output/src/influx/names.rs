//! The rules of the line protocol for measurement, tag keys and tag values, and the replacements for all other characters.
//!
//! A line ends at a line feed, its parts at spaces, commas and equals signs; a backslash escapes these, and is literal otherwise. Parsers
//! disagree about backslashes that follow each other or end a part, so there are none. Each function returns whether something was lost.

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::Chars;

/// Keys that InfluxDB refuses or has a use for.
const RESERVED: [&str; 3] = ["time", "_field", "_measurement"];

/// Appends a measurement.
pub fn push_measurement(line: &mut String, name: &str) -> bool {
    let start = line.len();
    let mut changed = push(line, name, false);
    // A line that begins with it is a comment.
    if line[start..].starts_with('#') {
        line.replace_range(start..=start, "_");
        changed = true;
    }
    changed
}

/// Appends a key or a value, which is not empty.
pub fn push_tag(line: &mut String, text: &str) -> bool {
    push(line, text, true)
}

fn push(line: &mut String, text: &str, with_equals: bool) -> bool {
    let mut changed = false;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let is_kept = !c.is_control() && (c != '\\' || is_literal(&mut rest));
        if matches!(c, ',' | ' ') || c == '=' && with_equals {
            line.push('\\');
        }
        line.push(if is_kept { c } else { '_' });
        changed |= !is_kept;
    }
    changed
}

/// Whether the backslash in front of these is one to every parser.
fn is_literal(rest: &mut Peekable<Chars<'_>>) -> bool {
    !matches!(rest.peek(), None | Some('\\' | ',' | '=' | ' ' | '"'))
        && !rest.peek().is_some_and(|c| c.is_control())
}

/// The key of a tag as it stands in the line, and whether something was lost. `own` are those that the line has beside the series' tags.
pub fn key<'a>(key: &'a str, own: &[&str]) -> (Cow<'a, str>, bool) {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b',' | b'=' | b'\\');
    let (mut text, mut changed) = (Cow::Borrowed(key), false);
    if !key.bytes().all(is_plain) {
        let mut escaped = String::new();
        changed = push_tag(&mut escaped, key);
        text = Cow::Owned(escaped);
    }
    if text.is_empty() || RESERVED.contains(&&*text) || own.contains(&&*text) {
        text.to_mut().insert(0, '_');
        changed = true;
    }
    (text, changed)
}

/// Ends of a line's measurement and tags.
pub fn series_end(line: &[u8]) -> Option<usize> {
    let is_end = |at: &usize| line[*at] == b' ' && (*at == 0 || line[at - 1] != b'\\');
    (0..line.len()).find(is_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(push: fn(&mut String, &str) -> bool, text: &str, expected: &str, lossy: bool) {
        let mut line = String::from("before");
        let changed = push(&mut line, text);
        assert_eq!((&line["before".len()..], changed), (expected, lossy), "{text:?}");
    }

    #[test]
    fn measurements() {
        for (name, expected, lossy) in [
            ("page.views", "page.views", false),
            ("a b,c=d", "a\\ b\\,c=d", false),
            ("#a#b", "_a#b", true),
            ("a\nb", "a_b", true),
            ("café \"q\"", "café\\ \"q\"", false),
        ] {
            check(push_measurement, name, expected, lossy);
        }
    }

    #[test]
    fn tags() {
        for (text, expected, lossy) in [
            ("a=b c,d", "a\\=b\\ c\\,d", false),
            ("C:\\dir\\file", "C:\\dir\\file", false),
            ("ends\\", "ends_", true),
            ("a\\ b", "a_\\ b", true),
            ("a\\\\b", "a_\\b", true),
            ("tab\there", "tab_here", true),
        ] {
            check(push_tag, text, expected, lossy);
        }
    }

    #[test]
    fn keys() {
        for (text, expected, lossy) in [
            ("env", "env", false),
            ("a b=c", "a\\ b\\=c", false),
            ("time", "_time", true),
            ("_field", "__field", true),
            ("", "_", true),
            ("o\nn", "_o_n", true),
        ] {
            assert_eq!(key(text, &["o_n"]), (expected.into(), lossy));
        }
    }

    #[test]
    fn the_end_of_a_series() {
        assert_eq!(series_end(b"a\\ b,k=v\\ w value=1 2"), Some(11));
        assert_eq!(series_end(b"nothing"), None);
    }
}
