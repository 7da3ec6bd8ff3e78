//! A configuration within another file: a ConfigMap of Kubernetes, or the values of a chart.

use weir_config::node::{Content, Key, Node};

use super::{ConvertError, scalar};

/// The entries of a configuration.
pub type Entries = Vec<(Key, Node)>;

/// Whether entries are those of a program's configuration.
pub type IsOwn<'a> = dyn Fn(&[(Key, Node)]) -> bool + 'a;

/// A configuration that may be within another file.
pub struct Sought<'a> {
    /// The program, in errors.
    pub name: &'static str,
    /// Its form, where it is a text.
    pub parse: &'a dyn Fn(&str) -> Result<Entries, ConvertError>,
    pub is_own: &'a IsOwn<'a>,
    /// Values of a chart may have its entries without making them a text.
    pub in_values: bool,
}

impl Sought<'_> {
    /// The entries of the configuration itself, wherever in the document it is. An error if there is none, or if there are several.
    pub fn in_document(&self, entries: Entries) -> Result<Entries, ConvertError> {
        let Some((first, _)) = entries.first() else {
            return Ok(entries);
        };
        if (self.is_own)(&entries) {
            return Ok(entries);
        }
        let line = first.line;
        let mut found = Vec::new();
        for (key, node) in &entries {
            self.search(&key.text, node, &mut found);
        }
        let places: Vec<String> = found.iter().map(|(place, _)| place.clone()).collect();
        let wrong = |message| Err(ConvertError { line, message });
        match found.pop() {
            Some((_, inner)) if found.is_empty() => Ok(inner),
            Some(_) => wrong(format!(
                "there are several such configurations in this file, at {}; write the one to convert to a file of its own",
                places.join(", ")
            )),
            None => wrong(format!("has no setting of {}", self.name)),
        }
    }

    /// Looks for configurations in a node.
    fn search(&self, place: &str, node: &Node, found: &mut Vec<(String, Entries)>) {
        match &node.content {
            Content::Map(entries) if self.in_values && (self.is_own)(entries) => {
                found.push((place.to_owned(), entries.clone()));
            }
            Content::Map(entries) => {
                for (key, node) in entries {
                    self.search(&format!("{place}.{}", key.text), node, found);
                }
            }
            Content::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.search(&format!("{place}[{at}]"), item, found);
                }
            }
            Content::Scalar { .. } => {
                let Some(text) = scalar(node) else { return };
                if let Ok(mut entries) = (self.parse)(text)
                    && (self.is_own)(&entries)
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
    use super::super::{Converted, datadog, gostatsd, statsd_exporter, telegraf, top_level};
    use super::*;

    type Conversion = fn(&str) -> Result<Converted, ConvertError>;

    fn names(text: &str) -> Result<Vec<(String, usize)>, String> {
        let sought = Sought {
            name: "x",
            parse: &top_level,
            is_own: &|entries| entries.iter().any(|(key, _)| key.text == "mappings"),
            in_values: true,
        };
        let entries = sought
            .in_document(top_level(text).unwrap())
            .map_err(|error| error.message)?;
        Ok(entries.into_iter().map(|(key, _)| (key.text, key.line)).collect())
    }

    #[test]
    fn a_configuration_is_found_in_a_config_map_and_in_values() {
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
        // Values of a chart have keys of their own on top.
        assert_eq!(names("defaults: {a: 1}\nstatsd:\n  mappings: []\n"), own(3));
        assert_eq!(
            names("kind: ConfigMap\ndata: {}\n").unwrap_err(),
            "has no setting of x"
        );
        let two = "a:\n  mappings: []\nb:\n  mappings: []\n";
        assert!(names(two).unwrap_err().contains("at a, b"));
    }

    #[test]
    fn every_converter_reads_a_config_map_and_refuses_the_file_of_another_program() {
        let map = |text: &str| {
            let indented: String = text.lines().map(|line| format!("    {line}\n")).collect();
            format!("apiVersion: v1\nkind: ConfigMap\ndata:\n  file: |\n{indented}")
        };
        let conversions: [(Conversion, &str, &str); 4] = [
            (
                |text| statsd_exporter(text, &[]),
                "mappings:\n- match: seen.*\n  name: seen\n  colour: red\n",
                "name: seen",
            ),
            (datadog, "dogstatsd_port: 9125\ndogstatsd_prot: 1\n", "- 9125"),
            (
                gostatsd,
                "metrics-addr = ':9125'\nignore-host = true\nmetrics-adr = ':1'\n",
                "'*:9125'",
            ),
            (
                |text| telegraf(text, &|_| None),
                "[[inputs.statsd]]\nservice_address = ':9125'\ncolour = 'red'\n",
                "'*:9125'",
            ),
        ];
        for (convert, theirs, ours) in conversions {
            let [plain, within] = [theirs, &map(theirs)].map(|text| convert(text).unwrap());
            assert!(plain.yaml.contains(ours), "{}", plain.yaml);
            let body = |yaml: &str| -> Vec<String> {
                let lines = yaml.lines().filter(|line| !line.starts_with('#'));
                lines.map(str::to_owned).collect()
            };
            assert_eq!(body(&plain.yaml), body(&within.yaml));
            let [plain, within] = [plain, within].map(|converted| converted.left);
            assert_eq!((plain.len(), within.len()), (1, 1), "{within:?}");
            assert_eq!(within[0].line, plain[0].line + 4);
            assert_eq!(within[0].message, plain[0].message);
            let other = convert(&map("other: 1\n")).unwrap_err();
            assert!(other.message.starts_with("has no setting of "), "{other:?}");
        }
    }
}
