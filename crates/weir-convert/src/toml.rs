//! Parses TOML into the same tree as YAML, with line numbers.

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use weir_config::node::{Content, Key, Node};

use super::ConvertError;

/// The top-level table of a document.
pub fn parse(text: &str) -> Result<Vec<(Key, Node)>, ConvertError> {
    let line = |at: usize| 1 + text[..at.min(text.len())].matches('\n').count();
    let table = DeTable::parse(text).map_err(|error| ConvertError {
        line: error.span().map_or(0, |span| line(span.start)),
        message: error.message().to_owned(),
    })?;
    Ok(entries(table.get_ref(), &line))
}

fn entries(table: &DeTable<'_>, line: &impl Fn(usize) -> usize) -> Vec<(Key, Node)> {
    let mut entries: Vec<(usize, Key, Node)> = table
        .iter()
        .map(|(key, value)| {
            let at = key.span().start;
            let (text, line_of_key) = (key.get_ref().to_string(), line(at));
            (
                at,
                Key {
                    text,
                    line: line_of_key,
                },
                node(value, line),
            )
        })
        .collect();
    // The table has its own order.
    entries.sort_by_key(|(at, ..)| *at);
    entries.into_iter().map(|(_, key, node)| (key, node)).collect()
}

fn node(value: &Spanned<DeValue<'_>>, line: &impl Fn(usize) -> usize) -> Node {
    let scalar = |text: String| Content::Scalar { text, plain: false };
    let content = match value.get_ref() {
        DeValue::String(text) => scalar(text.to_string()),
        DeValue::Integer(number) => scalar(number.to_string()),
        DeValue::Float(number) => scalar(number.to_string()),
        DeValue::Boolean(is_true) => scalar(is_true.to_string()),
        DeValue::Datetime(time) => scalar(time.to_string()),
        DeValue::Array(items) => Content::List(items.iter().map(|item| node(item, line)).collect()),
        DeValue::Table(table) => Content::Map(entries(table, line)),
    };
    Node {
        line: line(value.span().start),
        content,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_its_line() {
        let found = parse("a = 1\n\n[b]\nc = ['x', \"y\"]\n[[d.e]]\nf = 1.5\n").unwrap();
        let keys: Vec<(&str, usize)> = found
            .iter()
            .map(|(key, _)| (key.text.as_str(), key.line))
            .collect();
        assert_eq!(keys, [("a", 1), ("b", 3), ("d", 5)]);
        assert_eq!(found[1].1.texts(), ["x", "y"]);
        assert_eq!(found[2].1.texts(), ["1.5"]);
        assert_eq!(parse("a = 1\nb = \n").unwrap_err().line, 2);
    }
}
