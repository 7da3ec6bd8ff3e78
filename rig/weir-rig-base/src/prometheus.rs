//! A parser of the Prometheus text format, line by line. Sinks interpret the samples.

/// Name and value pairs in the order written.
pub type Labels = Vec<(String, String)>;

/// One line of the text format.
#[derive(Debug, PartialEq)]
pub enum Line<'a> {
    /// `# TYPE name kind`.
    Type {
        name: &'a str,
        kind: &'a str,
    },
    /// Any other comment, or an empty line.
    Comment,
    Sample(Sample<'a>),
}

#[derive(Debug, PartialEq)]
pub struct Sample<'a> {
    pub name: &'a str,
    pub labels: Labels,
    pub value: f64,
    pub ts_ms: Option<i64>,
    /// Name and labels as they were written.
    pub series: &'a str,
}

/// Parses one line.
pub fn line(text: &str) -> Result<Line<'_>, &'static str> {
    if let Some(comment) = text.strip_prefix('#') {
        let mut words = comment.split_whitespace();
        if words.next() != Some("TYPE") {
            return Ok(Line::Comment);
        }
        return match (words.next(), words.next()) {
            (Some(name), Some(kind)) => Ok(Line::Type { name, kind }),
            _ => Err("TYPE without a name and a kind"),
        };
    }
    if text.trim().is_empty() {
        return Ok(Line::Comment);
    }
    sample(text).map(Line::Sample)
}

fn sample(text: &str) -> Result<Sample<'_>, &'static str> {
    let name_end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))
        .ok_or("no value")?;
    let (name, mut rest) = text.split_at(name_end);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err("not a metric name");
    }
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = read_labels(inner, &mut labels)?;
    }
    let series = &text[..text.len() - rest.len()];
    let mut words = rest.split_whitespace();
    let value = words.next().and_then(float).ok_or("no number")?;
    let ts_ms = match words.next() {
        None | Some("#") => None,
        Some(word) => Some(word.parse().map_err(|_| "not a timestamp")?),
    };
    Ok(Sample {
        name,
        labels,
        value,
        ts_ms,
        series,
    })
}

/// Returns the rest after the closing brace.
fn read_labels<'a>(text: &'a str, labels: &mut Labels) -> Result<&'a str, &'static str> {
    let mut rest = text.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Ok(after);
        }
        let (name, after) = rest.split_once('=').ok_or("a label without a value")?;
        let name = name.trim();
        let valid = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !valid {
            return Err("not a label name");
        }
        let after = after.strip_prefix('"').ok_or("a label value without quotes")?;
        let (value, after) = read_quoted(after)?;
        labels.push((name.to_owned(), value));
        rest = after.trim_start();
        rest = rest.strip_prefix(',').map_or(rest, str::trim_start);
    }
}

fn read_quoted(text: &str) -> Result<(String, &str), &'static str> {
    let mut chars = text.chars();
    let mut value = String::new();
    loop {
        match chars.next().ok_or("a label value without an end")? {
            '"' => return Ok((value, chars.as_str())),
            '\\' => value.push(match chars.next() {
                Some('n') => '\n',
                Some(c @ ('\\' | '"')) => c,
                _ => return Err("an unknown escape in a label value"),
            }),
            c => value.push(c),
        }
    }
}

/// Parses a number in the format's notation.
pub fn float(word: &str) -> Option<f64> {
    match word {
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        _ => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_types_and_comments() {
        let Ok(Line::Sample(sample)) = line("a:b_1{x=\"1 2}\\\"\\n\", y=\"\",} +Inf 1700000000") else {
            panic!("a sample")
        };
        assert_eq!(
            (sample.name, sample.value, sample.ts_ms),
            ("a:b_1", f64::INFINITY, Some(1_700_000_000))
        );
        assert_eq!(
            sample.labels,
            [("x".into(), "1 2}\"\n".into()), ("y".into(), String::new())]
        );
        assert_eq!(sample.series, "a:b_1{x=\"1 2}\\\"\\n\", y=\"\",}");
        let Ok(Line::Sample(plain)) = line("b 1e3 # {trace=\"1\"} 1") else {
            panic!("a sample")
        };
        assert_eq!((plain.series, plain.value, plain.ts_ms), ("b", 1000.0, None));
        assert_eq!(
            line("# TYPE a counter"),
            Ok(Line::Type {
                name: "a",
                kind: "counter"
            })
        );
        assert_eq!(line("# HELP a b"), Ok(Line::Comment));
        assert_eq!(line("  "), Ok(Line::Comment));
    }

    #[test]
    fn invalid_lines_are_errors_with_the_reason() {
        for (text, want) in [
            ("a", "no value"),
            ("1a 1", "not a metric name"),
            ("a{x} 1", "a label without a value"),
            ("a{1x=\"\"} 1", "not a label name"),
            ("a{x=1} 1", "a label value without quotes"),
            ("a{x=\"1} 1", "a label value without an end"),
            ("a{x=\"\\t\"} 1", "an unknown escape in a label value"),
            ("a b", "no number"),
            ("a 1 b", "not a timestamp"),
            ("# TYPE a", "TYPE without a name and a kind"),
        ] {
            assert_eq!(line(text), Err(want), "{text}");
        }
    }
}
