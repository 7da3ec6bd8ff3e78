//! Mappings of one file whose metrics would have the same series. statsd_exporter shows the metric that arrives first and drops the others;
//! weir shows all, with names in a fixed order. The file does not say which metrics arrive, so the conversion reports such mappings.

use crate::{Consequence, Unconverted};
use weir_config::node::Node;

/// The last parts of the names of an observer's series.
const PARTS: [&str; 3] = ["_bucket", "_count", "_sum"];

/// The metrics of a mapping without a template.
pub struct Named {
    pub line: usize,
    /// As Prometheus has it.
    name: String,
    /// The kinds that it takes, empty for all.
    types: &'static str,
    is_histogram: bool,
}

impl Named {
    /// `None` for a name that the metric has a part in.
    pub fn new(node: &Node, name: &str, types: &'static str, is_histogram: bool) -> Option<Self> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        (!name.is_empty() && !name.contains('$')).then(|| Named {
            line: node.line,
            name: name.chars().map(|c| if is_part(c) { c } else { '_' }).collect(),
            types,
            is_histogram,
        })
    }

    fn takes_observers(&self) -> bool {
        self.types.is_empty() || self.types.contains("timing")
    }
}

/// A note for each name that is meant twice, at the later of the mappings.
pub fn notes(named: &[Named]) -> Vec<Unconverted> {
    let mut notes = Vec::new();
    for (at, mapping) in named.iter().enumerate() {
        let name = &mapping.name;
        let others = named.iter().enumerate().filter(|(other, _)| *other != at);
        let of_observer = others.clone().map(|(_, other)| other).find(|other| {
            other.takes_observers()
                && name
                    .strip_prefix(&other.name)
                    .is_some_and(|part| PARTS.contains(&part) && (part != "_bucket" || other.is_histogram))
        });
        if let Some(other) = of_observer {
            let line = other.line;
            notes.push(Unconverted::new(
                Consequence::ChangesData,
                mapping.line,
                format!(
                    "name: {name} is also a series of the timers and histograms that line {line} names {}; if both come, statsd_exporter shows the first alone, and weir both, one of them with a digest in its names",
                    other.name
                ),
            ));
        }
        let of_kind = named[..at].iter().find(|other| {
            other.name == *name
                && !mapping.types.is_empty()
                && !other.types.is_empty()
                && other.types != mapping.types
        });
        if let Some(other) = of_kind {
            notes.push(Unconverted::new(
                Consequence::ChangesData,
                mapping.line,
                format!(
                    "name: line {} gives {name} to metrics of another kind; if both come, statsd_exporter shows the first alone, and weir both, one of them with a digest in its name",
                    other.line
                ),
            ));
        }
    }
    notes
}
