//! A YAML document as a tree with the position of every node.
//!
//! Scalars stay text: the meaning of a text depends on its setting, so `0722`, `no` and `1e3` are not interpreted before the setting is
//! known.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;

use granit_parser::{Event, Marker, Parser, ScalarStyle};

/// The largest configuration file that is read.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// Aliases repeat nodes; this bounds the growth of a small file.
const NODES_MAX: usize = 500_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Counted from 1.
    pub line: usize,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// `plain` distinguishes `~` and an empty value from `"~"` and `""`.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    /// In the order of the file; keys are unique.
    Map(Vec<(Key, Node)>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub text: String,
    pub line: usize,
}

/// An error in the document, and its position.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlError {
    pub line: usize,
    pub message: String,
}

impl Node {
    /// Nothing was written after the key.
    pub fn is_null(&self) -> bool {
        matches!(&self.content, Content::Scalar { text, plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Every text in it.
    pub fn texts(&self) -> Vec<&str> {
        match &self.content {
            Content::Scalar { text, .. } => vec![text],
            Content::List(items) => items.iter().flat_map(Node::texts).collect(),
            Content::Map(entries) => entries.iter().flat_map(|(_, node)| node.texts()).collect(),
        }
    }

    /// Equality ignores quotes and lines.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut texts = Vec::new();
        self.all_texts(&mut texts);
        fingerprint(texts.into_iter())
    }

    fn all_texts<'n>(&'n self, texts: &mut Vec<&'n str>) {
        match &self.content {
            Content::Scalar { text, .. } => texts.push(text),
            Content::List(items) => items.iter().for_each(|item| item.all_texts(texts)),
            Content::Map(entries) => entries.iter().for_each(|(key, node)| {
                texts.push(&key.text);
                node.all_texts(texts);
            }),
        }
    }

    pub fn what(&self) -> &'static str {
        match self.content {
            _ if self.is_null() => "nothing",
            Content::Scalar { .. } => "a single value",
            Content::List(_) => "a list",
            Content::Map(_) => "a mapping",
        }
    }
}

/// Differs if the texts do. Each process has a random key, so it reveals nothing about a secret.
pub(crate) fn fingerprint<'t>(texts: impl Iterator<Item = &'t str>) -> u64 {
    static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    STATE.hash_one(texts.collect::<Vec<_>>())
}

/// The line of a part such as `rules[2].match`, or of the nearest thing around it that was written.
pub fn line_of_part(file: &[(Key, Node)], path: &str) -> Option<usize> {
    let end = path.find(['[', '.']).unwrap_or(path.len());
    let (whole, mut rest) = path.split_at(end);
    let (key, mut node) = file
        .iter()
        .find(|(key, _)| key.text == whole)
        .map(|(key, node)| (key, node))?;
    let mut line = key.line;
    while !rest.is_empty() {
        let next = match (&node.content, rest.strip_prefix('['), rest.strip_prefix('.')) {
            (Content::List(items), Some(inner), _) => {
                let (number, after) = inner.split_once(']')?;
                rest = after;
                number
                    .parse::<usize>()
                    .ok()
                    .and_then(|number| items.get(number))
                    .map(|item| (item.line, item))
            }
            (Content::Map(entries), _, Some(inner)) => {
                let end = inner.find(['[', '.']).unwrap_or(inner.len());
                let (name, after) = inner.split_at(end);
                rest = after;
                entries
                    .iter()
                    .find(|(key, _)| key.text == name)
                    .map(|(key, node)| (key.line, node))
            }
            _ => None,
        };
        let Some((found, inside)) = next else { break };
        (line, node) = (found, inside);
    }
    Some(line)
}

/// Reads one document. `None` when there is nothing in it.
pub fn parse(text: &str) -> Result<Option<Node>, YamlError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(YamlError {
            line: 1,
            message: format!("is larger than {FILE_BYTES_MAX} bytes"),
        });
    }
    let mut builder = Builder {
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        nodes: 0,
        line: 1,
    };
    let mut document = None;
    loop {
        match builder.next()? {
            None | Some((Event::StreamEnd, _)) => return Ok(document),
            Some((Event::DocumentStart(..), _)) if document.is_some() => {
                return Err(builder.error("holds a second document; one is allowed"));
            }
            Some((Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd, _)) => {}
            Some((event, line)) => document = Some(builder.node(event, line)?),
        }
    }
}

struct Builder<'input> {
    events: Parser<'input, granit_parser::StrInput<'input>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    line: usize,
}

impl<'input> Builder<'input> {
    fn error(&self, message: &str) -> YamlError {
        YamlError {
            line: self.line,
            message: message.to_owned(),
        }
    }

    fn next(&mut self) -> Result<Option<(Event<'input>, usize)>, YamlError> {
        match self.events.next_event() {
            None => Ok(None),
            Some(Err(error)) => {
                let line = line_of(error.marker());
                Err(YamlError {
                    line,
                    message: format!("is not valid YAML: {}", error.info()),
                })
            }
            Some(Ok((event, span))) => {
                self.line = line_of(&span.start);
                Ok(Some((event, self.line)))
            }
        }
    }

    /// The parser bounds the depth of nesting, and with it this recursion.
    fn node(&mut self, event: Event<'input>, line: usize) -> Result<Node, YamlError> {
        self.count(1)?;
        let (content, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => (
                Content::Scalar {
                    text: text.into_owned(),
                    plain: style == ScalarStyle::Plain,
                },
                anchor,
            ),
            Event::SequenceStart(_, anchor, _) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        None => return Err(self.error("ends inside a list")),
                        Some((Event::SequenceEnd, _)) => break,
                        Some((event, line)) => items.push(self.node(event, line)?),
                    }
                }
                (Content::List(items), anchor)
            }
            Event::MappingStart(_, anchor, _) => (Content::Map(self.entries()?), anchor),
            Event::Alias(id) => {
                let Some(mut node) = self.anchors.get(&id).cloned() else {
                    return Err(self.error("uses an alias of a value that is not complete yet"));
                };
                self.count(size(&node))?;
                node.line = line;
                return Ok(node);
            }
            _ => return Err(self.error("is not valid YAML")),
        };
        let node = Node { line, content };
        if anchor != 0 {
            self.count(size(&node))?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn entries(&mut self) -> Result<Vec<(Key, Node)>, YamlError> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        let mut seen: HashMap<String, usize> = HashMap::new();
        loop {
            let (event, line) = match self.next()? {
                None => return Err(self.error("ends inside a mapping")),
                Some((Event::MappingEnd, _)) => return Ok(entries),
                Some(found) => found,
            };
            let Content::Scalar { text, .. } = self.node(event, line)?.content else {
                return Err(self.error("has a key that is not a single value"));
            };
            if let Some(first) = seen.insert(text.clone(), line) {
                let message = format!("{text:?} is set twice, first on line {first}");
                return Err(YamlError { line, message });
            }
            let Some((event, value_line)) = self.next()? else {
                return Err(self.error("ends after a key"));
            };
            // An empty value is reported where its key is: its own mark lies on the next line.
            let mut value = self.node(event, value_line)?;
            if value.is_null() {
                value.line = line;
            }
            entries.push((Key { text, line }, value));
        }
    }

    fn count(&mut self, nodes: usize) -> Result<(), YamlError> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > NODES_MAX {
            return Err(self.error("holds too many values"));
        }
        Ok(())
    }
}

fn size(node: &Node) -> usize {
    1 + match &node.content {
        Content::Scalar { .. } => 0,
        Content::List(items) => items.iter().map(size).sum(),
        Content::Map(entries) => entries.iter().map(|(_, value)| size(value)).sum(),
    }
}

fn line_of(marker: &Marker) -> usize {
    marker.line().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(node: &Node) -> &str {
        match &node.content {
            Content::Scalar { text, .. } => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_and_raw_text_survive() {
        let node = parse("# head\na: 0722\nb:\n  - no\n  - 'x'\nc:\n")
            .unwrap()
            .unwrap();
        let Content::Map(entries) = &node.content else {
            panic!()
        };
        assert_eq!((entries[0].0.line, scalar(&entries[0].1)), (2, "0722"));
        let Content::List(items) = &entries[1].1.content else {
            panic!()
        };
        assert_eq!((items[0].line, scalar(&items[0])), (4, "no"));
        assert!(entries[2].1.is_null());
        assert_eq!(entries[2].1.line, 6);
    }

    #[test]
    fn errors_name_their_line() {
        for (text, line, part) in [
            ("a: 1\na: 2\n", 2, "set twice, first on line 1"),
            ("a: 1\n---\nb: 2\n", 2, "second document"),
            ("a: 1\nb: [1, 2\n", 2, "not valid YAML"),
            ("a: 1\n? [x]\n: 2\n", 2, "not a single value"),
            ("a: *nowhere\n", 1, "not valid YAML"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message.contains(part), "{text:?}: {error:?}");
            assert_eq!(error.line, line, "{text:?}: {error:?}");
        }
        assert_eq!(parse("").unwrap(), None);
        assert_eq!(parse("# nothing\n").unwrap(), None);
    }

    #[test]
    fn aliases_repeat_values_but_cannot_explode() {
        let node = parse("a: &t [x, y]\nb: *t\n").unwrap().unwrap();
        let Content::Map(entries) = &node.content else {
            panic!()
        };
        assert!(matches!(&entries[1].1.content, Content::List(items) if items.len() == 2));

        let mut bomb = "l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let items = vec![format!("*l{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("l{level}: &l{level} [{items}]\n"));
        }
        assert!(parse(&bomb).unwrap_err().message.contains("too many values"));
    }
}
