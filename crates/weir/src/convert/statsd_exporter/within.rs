//! A mapping file within another file: a ConfigMap of Kubernetes, or the values of a chart.

use weir_config::node::{Content, Key, Node};

use super::super::{ConvertError, scalar, top_level};

/// The entries of a mapping file.
type Entries = Vec<(Key, Node)>;

/// The entries of the mapping file itself, wherever in the document it is. An error if there is none, or if there are several.
pub fn mapping_of(entries: Entries) -> Result<Entries, ConvertError> {
    if entries.is_empty() || is_mapping(&entries) {
        return Ok(entries);
    }
    let line = entries[0].0.line;
    let mut found = Vec::new();
    for (key, node) in &entries {
        search(&key.text, node, &mut found);
    }
    let places: Vec<String> = found.iter().map(|(place, _)| place.clone()).collect();
    let wrong = |message| Err(ConvertError { line, message });
    match found.pop() {
        Some((_, inner)) if found.is_empty() => Ok(inner),
        Some(_) => wrong(format!(
            "there are several mapping files in this one, at {}; write the one to convert to a file of its own",
            places.join(", ")
        )),
        None => {
            wrong("has neither mappings nor defaults, so it is no mapping file of statsd_exporter".to_owned())
        }
    }
}

fn is_mapping(entries: &Entries) -> bool {
    entries
        .iter()
        .any(|(key, _)| matches!(key.text.as_str(), "mappings" | "defaults"))
}

/// Looks for mapping files in a node: as a mapping, or as text.
fn search(place: &str, node: &Node, found: &mut Vec<(String, Entries)>) {
    match &node.content {
        Content::Map(entries) if is_mapping(entries) => found.push((place.to_owned(), entries.clone())),
        Content::Map(entries) => {
            for (key, node) in entries {
                search(&format!("{place}.{}", key.text), node, found);
            }
        }
        Content::List(items) => {
            for (at, item) in items.iter().enumerate() {
                search(&format!("{place}[{at}]"), item, found);
            }
        }
        Content::Scalar { .. } => {
            let text = scalar(node).unwrap_or_default();
            if !text.contains("mappings:") && !text.contains("defaults:") {
                return;
            }
            if let Ok(mut entries) = top_level(text)
                && is_mapping(&entries)
            {
                let before = node.line.saturating_sub(1);
                entries.iter_mut().for_each(|(key, inner)| {
                    key.line += before;
                    shift(inner, before);
                });
                found.push((place.to_owned(), entries));
            }
        }
    }
}

/// Adds to the line of everything in a node.
fn shift(node: &mut Node, lines: usize) {
    node.line += lines;
    match &mut node.content {
        Content::Scalar { .. } => {}
        Content::List(items) => items.iter_mut().for_each(|item| shift(item, lines)),
        Content::Map(entries) => entries.iter_mut().for_each(|(key, inner)| {
            key.line += lines;
            shift(inner, lines);
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<(String, usize)>, String> {
        let entries = mapping_of(top_level(text).unwrap()).map_err(|error| error.message)?;
        Ok(entries.into_iter().map(|(key, _)| (key.text, key.line)).collect())
    }

    #[test]
    fn the_mapping_file_is_found_in_a_config_map_and_in_values() {
        let own = |line| Ok(vec![("mappings".to_owned(), line)]);
        assert_eq!(names("mappings: []\n"), own(1));
        assert_eq!(names(""), Ok(Vec::new()));
        let config_map =
            "kind: ConfigMap\ndata:\n  statsd.yaml: |\n    mappings:\n    - match: a\n      name: b\n";
        assert_eq!(names(config_map), own(4));
        assert_eq!(
            names("statsd:\n  mappingConfig:\n    mappings:\n    - match: a\n"),
            own(3)
        );
        assert!(
            names("kind: ConfigMap\ndata: {}\n")
                .unwrap_err()
                .contains("no mapping file")
        );
        let two = "a:\n  mappings: []\nb:\n  mappings: []\n";
        assert!(names(two).unwrap_err().contains("at a, b"));
    }
}
