//! Go's expressions in the syntax of Rust's, with the same meaning.

use std::iter::Peekable;
use std::str::Chars;

/// Go's classes are of ASCII.
fn class(letter: char) -> Option<&'static str> {
    Some(match letter {
        'd' => "0-9",
        'w' => "0-9A-Za-z_",
        's' => r"\t\n\f\r ",
        _ => return None,
    })
}

/// An expression with the same matches. What Go takes as text although it is special here is escaped.
pub fn translated(expression: &str) -> String {
    let mut out = String::new();
    let mut rest = expression.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => escape(&mut rest, false, &mut out),
            '[' => set(&mut rest, &mut out),
            '{' if !is_repetition(rest.clone()) => out.push_str(r"\{"),
            c => out.push(c),
        }
    }
    out
}

/// Translates the escape behind a backslash.
fn escape(rest: &mut Peekable<Chars<'_>>, in_set: bool, out: &mut String) {
    let Some(c) = rest.next() else {
        return out.push('\\');
    };
    match c {
        'Q' => quoted(rest, out),
        // These are places in Rust.
        '<' | '>' => out.push(c),
        'b' | 'B' if !in_set => {
            out.push_str(r"(?-u:\");
            out.push(c);
            out.push(')');
        }
        c => match (class(c), class(c.to_ascii_lowercase())) {
            (Some(members), _) if in_set => out.push_str(members),
            (Some(members), _) => {
                out.push('[');
                out.push_str(members);
                out.push(']');
            }
            (None, Some(members)) => {
                out.push_str("[^");
                out.push_str(members);
                out.push(']');
            }
            (None, None) => {
                out.push('\\');
                out.push(c);
            }
        },
    }
}

/// The text up to `\E`.
fn quoted(rest: &mut Peekable<Chars<'_>>, out: &mut String) {
    let text: String = rest.clone().collect();
    let end = text.find(r"\E").unwrap_or(text.len());
    for c in text[..end].chars() {
        rest.next();
        if c.is_ascii_punctuation() {
            out.push('\\');
        }
        out.push(c);
    }
    // The end itself.
    rest.next();
    rest.next();
}

/// Translates a set behind its opening bracket. Rust's sets have sets within them and operators, `&&`, `--` and `~~`.
fn set(rest: &mut Peekable<Chars<'_>>, out: &mut String) {
    out.push('[');
    if rest.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    if rest.next_if_eq(&']').is_some() {
        out.push_str(r"\]");
    }
    let mut before = None;
    while let Some(c) = rest.next() {
        match c {
            ']' => return out.push(']'),
            '\\' => escape(rest, true, out),
            '[' if rest.peek() == Some(&':') => {
                out.push('[');
                for c in rest.by_ref() {
                    out.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            '[' => out.push_str(r"\["),
            '&' | '-' | '~' if before == Some(c) => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
        before = Some(c);
    }
}

/// Whether `2}`, `2,}` or `2,3}` follows an opening brace. Anything else is text in Go.
fn is_repetition(rest: Peekable<Chars<'_>>) -> bool {
    let text: String = rest.take_while(|c| *c != '}').collect();
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (least, most) = text.split_once(',').unwrap_or((&text, ""));
    !least.is_empty() && is_number(least) && is_number(most)
}

#[cfg(test)]
mod tests {
    use weir_rules::names::{MatchScratch, NameMatcher};
    use weir_rules::{Pattern, RuleLimits};

    use super::*;

    #[test]
    fn expressions_mean_the_same_in_rust() {
        for (go, rust) in [
            (r"a\.b(.*)", r"a\.b(.*)"),
            (r"(\w+)\.\d", r"([0-9A-Za-z_]+)\.[0-9]"),
            (r"[\w.-]+[^\d]", r"[0-9A-Za-z_.-]+[^0-9]"),
            (r"\W[\D]", r"[^0-9A-Za-z_][[^0-9]]"),
            (r"[a&&b]", r"[a&\&b]"),
            (r"[+--]", r"[+-\-]"),
            (r"[[a]", r"[\[a]"),
            (r"[]a]", r"[\]a]"),
            (r"[[:alpha:]_]", r"[[:alpha:]_]"),
            (r"\<a\>", r"<a>"),
            (r"\Qa.b\E.", r"a\.b."),
            (r"\Qa.b", r"a\.b"),
            (r"{bar}", r"\{bar}"),
            (r"a{,3}", r"a\{,3}"),
            (r"a{2}b{2,}c{2,3}", r"a{2}b{2,}c{2,3}"),
            (r"\bx", r"(?-u:\b)x"),
            (r"\", r"\"),
        ] {
            assert_eq!(translated(go), rust, "{go}");
        }
        for (go, text, matches) in [
            (r"^\w+$", "größe", false),
            (r"^\w+$", "groesse", true),
            (r"^[a&&b]+$", "a&b", true),
            (r"^\<$", "<", true),
            (r"^{bar}$", "{bar}", true),
            (r"^[[a]$", "[", true),
            (r"^\Qa+b\E$", "a+b", true),
            (r"^[+--]$", ",", true),
        ] {
            let pattern = Pattern::Regex(translated(go));
            let matcher = NameMatcher::new(&[&pattern], &RuleLimits::default()).unwrap();
            let mut found = Vec::new();
            matcher.matches(text, &mut MatchScratch::default(), &mut found);
            assert_eq!(!found.is_empty(), matches, "{go} {text}");
        }
    }
}
