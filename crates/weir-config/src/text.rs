//! Text for display: without passwords, keys and control characters of terminals.

use std::fmt;

/// A value that must not be shown: its `Debug` and `Display` forms are redacted.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The displayable form: whether it is set, and the last four characters of a long one, so that two keys can be distinguished.
    pub fn redacted(&self) -> String {
        redact(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({:?})", self.redacted())
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted())
    }
}

/// See [`Secret::redacted`].
fn redact(value: &str) -> String {
    let length = value.chars().count();
    match length {
        0 => String::new(),
        1..16 => "****".to_owned(),
        _ => format!("****{}", value.chars().skip(length - 4).collect::<String>()),
    }
}

/// Text as YAML would write it, with any password inside a URL hidden.
pub fn show_text(text: &str) -> String {
    let text = hide_password(text);
    if is_plain(&text) {
        text
    } else if text.chars().all(|c| !is_invisible(c)) {
        format!("'{}'", text.replace('\'', "''"))
    } else {
        escaped(&text)
    }
}

/// Whether YAML takes it for the same text without quotes.
fn is_plain(text: &str) -> bool {
    let allowed = |c: char| c.is_alphanumeric() || "-_./:@%+*~".contains(c);
    !text.is_empty()
        && text.chars().all(allowed)
        && !text.starts_with(['-', '*', '@', '%', ':', '~'])
        && !text.ends_with(':')
}

fn escaped(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if is_invisible(c) && u32::from(c) < 0x10000 => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c if is_invisible(c) => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Characters that a terminal interprets or does not show.
pub fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// `http://user:password@host` with the part before `@` hidden.
pub fn hide_password(text: &str) -> String {
    let Some(start) = text.find("://").map(|at| at + 3) else {
        return text.to_owned();
    };
    let authority = text[start..]
        .find(['/', '?', '#'])
        .map_or(text.len(), |at| start + at);
    match text[start..authority].rfind('@') {
        Some(at) => format!("{}****{}", &text[..start], &text[start + at..]),
        None => text.to_owned(),
    }
}

/// For error messages: bounded, on one line, without passwords and without what looks like a key: people paste
/// keys into the wrong line.
pub fn quote(text: &str) -> String {
    let text = hide_keys(&hide_password(text));
    let short: String = text.chars().take(80).collect();
    let dots = if short.len() < text.len() { "..." } else { "" };
    format!("{short:?}{dots}")
}

/// Words of at least 24 letters and digits, both present, redacted.
fn hide_keys(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric())
            .unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        shown.push_str(&if is_key(word) {
            redact(word)
        } else {
            word.to_owned()
        });
        let next = tail
            .find(|c: char| c.is_ascii_alphanumeric())
            .unwrap_or(tail.len());
        shown.push_str(&tail[..next]);
        rest = &tail[next..];
    }
    shown
}

fn is_key(word: &str) -> bool {
    word.len() >= 24
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// An unknown name, the nearest known one, or all of them.
pub fn unknown_key<'a>(text: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    if let Some(near) = nearest(text, known.clone()) {
        return format!("{} is not a setting; did you mean {near:?}?", quote(text));
    }
    // A setting of a role may be one of the agent too.
    let mut names: Vec<&str> = Vec::new();
    for name in known {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return format!("{} is not a setting; nothing can be set here", quote(text));
    }
    format!("{} is not a setting; known are {}", quote(text), names.join(", "))
}

/// The known name that a typing slip most likely meant.
pub fn nearest<'a>(text: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let text = text.to_ascii_lowercase().replace('-', "_");
    known
        .map(|name| (strsim::jaro_winkler(&text, &name.to_ascii_lowercase()), name))
        .filter(|(score, _)| *score >= 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_known_setting_is_named_once() {
        assert_eq!(
            unknown_key("bucket", ["udp", "uds", "udp"].into_iter()),
            "\"bucket\" is not a setting; known are udp, uds"
        );
    }

    #[test]
    fn secrets_are_never_shown() {
        let secret = Secret::new("0123456789abcdef0123456789abcdef");
        for shown in [format!("{secret:?}"), format!("{secret}")] {
            assert!(shown.contains("****cdef"), "{shown}");
            assert!(!shown.contains("0123"), "{shown}");
        }
        assert_eq!(Secret::new("short").redacted(), "****");
        assert_eq!(Secret::default().redacted(), "");
    }
}
