//! Telegraf's templates: `filter template tags`. The template gives the meaning of each part of a name between dots.

use std::fmt::Write as _;

use weir_config::show_text;

/// One template as a mapping.
#[derive(Debug, PartialEq)]
pub struct Mapping {
    /// For each part of the filter, whether it matches any text. More specific filters apply first.
    stars: Vec<bool>,
    /// An expression that spans the name.
    pattern: String,
    name: String,
    tags: Vec<(String, String)>,
}

/// Why a text is no template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("must be a template, optionally with a filter before it and tags after it")]
    Form,
    #[error("has no part `measurement`")]
    NoMeasurement,
    #[error("has a tag without a value")]
    TagWithoutValue,
    #[error("{0:?} takes the rest of the name, so nothing may follow it")]
    RestNotLast(String),
}

impl Mapping {
    pub fn of(text: &str, separator: &str) -> Result<Mapping, TemplateError> {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let constants = match words.last() {
            Some(last) if words.len() > 1 && last.contains('=') => words.pop(),
            _ => None,
        };
        let (filter, template) = match words[..] {
            [template] => ("", template),
            [filter, template] => (filter, template),
            _ => {
                return Err(TemplateError::Form);
            }
        };
        let filter: Vec<&str> = if filter.is_empty() {
            Vec::new()
        } else {
            filter.split('.').collect()
        };
        let mut parts = Parts::default();
        let template: Vec<&str> = template.split('.').collect();
        for (at, part) in template.iter().enumerate() {
            parts.part(
                part,
                filter.get(at..).unwrap_or_default(),
                at + 1 == template.len(),
            )?;
        }
        // Literal parts of a filter that is longer than its template.
        if !parts.spans {
            for part in filter.iter().skip(template.len()) {
                parts.pattern.push_str(&format!("\\.{}", one(Some(part))));
            }
            parts.pattern.push_str("(?:\\..*)?");
        }
        if parts.measurement.is_empty() {
            return Err(TemplateError::NoMeasurement);
        }
        let mut name = parts.measurement.join(separator);
        for field in &parts.field {
            // weir turns a field into a separate metric.
            let _ = write!(name, "{separator}{field}");
        }
        let mut tags: Vec<(String, String)> = Vec::new();
        for (key, group) in parts.tags {
            match tags.iter_mut().find(|(known, _)| *known == key) {
                Some((_, value)) => {
                    let _ = write!(value, ".{group}");
                }
                None => tags.push((key, group)),
            }
        }
        for constant in constants.into_iter().flat_map(|constants| constants.split(',')) {
            let (key, value) = constant.split_once('=').ok_or(TemplateError::TagWithoutValue)?;
            tags.push((key.to_owned(), value.replace('$', "$$")));
        }
        Ok(Mapping {
            stars: filter.iter().map(|part| *part == "*").collect(),
            pattern: parts.pattern,
            name,
            tags,
        })
    }
}

/// The meaning of a template's parts.
#[derive(Default)]
struct Parts {
    pattern: String,
    groups: usize,
    measurement: Vec<String>,
    field: Vec<String>,
    tags: Vec<(String, String)>,
    /// The last part takes the rest of the name.
    spans: bool,
}

impl Parts {
    /// `filter`: the filter's parts from this one on.
    fn part(&mut self, part: &str, filter: &[&str], is_last: bool) -> Result<(), TemplateError> {
        if !self.pattern.is_empty() {
            self.pattern.push_str("\\.");
        }
        let (what, rest) = match part.strip_suffix('*') {
            Some(what) => (what, true),
            None => (part, false),
        };
        if rest && !is_last {
            return Err(TemplateError::RestNotLast(part.to_owned()));
        }
        self.spans |= rest;
        if what.is_empty() {
            self.pattern.push_str(&one(filter.first().copied()));
            return Ok(());
        }
        let text = match (rest, filter) {
            (false, _) => one(filter.first().copied()),
            (true, []) => ".+".to_owned(),
            (true, filter) => {
                let parts: Vec<String> = filter.iter().map(|part| one(Some(part))).collect();
                format!("{}(?:\\..*)?", parts.join("\\."))
            }
        };
        let _ = write!(self.pattern, "({text})");
        self.groups += 1;
        let group = format!("${{{}}}", self.groups);
        match what {
            "measurement" => self.measurement.push(group),
            "field" => self.field.push(group),
            tag => self.tags.push((tag.to_owned(), group)),
        }
        Ok(())
    }
}

/// The filter's expression for one part of a name.
fn one(filter: Option<&str>) -> String {
    match filter {
        None | Some("*") => "[^.]+".to_owned(),
        Some(text) => {
            let mut escaped = String::new();
            for c in text.chars() {
                match c {
                    '*' => escaped.push_str("[^.]*"),
                    c if c.is_ascii_alphanumeric() || c == '_' => escaped.push(c),
                    c => {
                        escaped.push('\\');
                        escaped.push(c);
                    }
                }
            }
            escaped
        }
    }
}

/// All templates as one profile, those with the more specific filters first.
pub fn profile(mut mappings: Vec<Mapping>) -> String {
    if mappings.is_empty() {
        return String::new();
    }
    // A template without a filter applies to all names that no other template matches.
    mappings.sort_by_key(|mapping| (mapping.stars.is_empty(), mapping.stars.clone()));
    let mut text = "  - name: telegraf\n    prefix: '*'\n    mappings:\n".to_owned();
    for mapping in mappings {
        let _ = writeln!(text, "      - match: {}", show_text(&mapping.pattern));
        let _ = writeln!(
            text,
            "        match_type: regex\n        name: {}",
            show_text(&mapping.name)
        );
        if !mapping.tags.is_empty() {
            text.push_str("        tags:\n");
        }
        for (key, value) in &mapping.tags {
            let _ = writeln!(text, "          {}: {}", show_text(key), show_text(value));
        }
    }
    text
}

/// The most parts of a name that are joined.
const PARTS_MAX: usize = 12;

/// A profile for names that no template is for: their parts are joined by the separator.
pub fn separated(separator: &str) -> String {
    let mut text = "  - name: telegraf-separator\n    prefix: '*'\n    mappings:\n".to_owned();
    for parts in 2..=PARTS_MAX {
        let pattern = vec!["([^.]*)"; parts].join("\\.");
        let groups: Vec<String> = (1..=parts).map(|group| format!("${{{group}}}")).collect();
        let name = groups.join(&separator.replace('$', "$$"));
        let (pattern, name) = (show_text(&pattern), show_text(&name));
        let _ = writeln!(
            text,
            "      - match: {pattern}\n        match_type: regex\n        name: {name}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, pattern: &str, name: &str, tags: &[(&str, &str)]) {
        let mapping = Mapping::of(text, "_").unwrap();
        let tags: Vec<(String, String)> = tags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        assert_eq!(
            (mapping.pattern.as_str(), mapping.name.as_str(), mapping.tags),
            (pattern, name, tags),
            "{text}"
        );
    }

    #[test]
    fn templates_become_expressions() {
        check("measurement*", "(.+)", "${1}", &[]);
        check(
            "cpu.* measurement.host",
            "(cpu)\\.([^.]+)(?:\\..*)?",
            "${1}",
            &[("host", "${2}")],
        );
        check(
            "*.app env.service.resource.measurement*",
            "([^.]+)\\.(app)\\.([^.]+)\\.(.+)",
            "${4}",
            &[("env", "${1}"), ("service", "${2}"), ("resource", "${3}")],
        );
        check(
            "stats.* .host.measurement.field",
            "stats\\.([^.]+)\\.([^.]+)\\.([^.]+)(?:\\..*)?",
            "${2}_${3}",
            &[("host", "${1}")],
        );
        check(
            "measurement.a.a zone=x,y=1",
            "([^.]+)\\.([^.]+)\\.([^.]+)(?:\\..*)?",
            "${1}",
            &[("a", "${2}.${3}"), ("zone", "x"), ("y", "1")],
        );
    }

    #[test]
    fn invalid_templates_are_refused() {
        for text in [
            "",
            "a b c d",
            "host.region",
            "measurement*.host",
            "a* measurement*.x",
        ] {
            assert!(Mapping::of(text, "_").is_err(), "{text}");
        }
    }

    #[test]
    fn the_more_specific_filters_go_first() {
        let of = |text| Mapping::of(text, "_").unwrap();
        let text = profile(vec![
            of("measurement*"),
            of("cpu.* measurement*"),
            of("cpu.load measurement*"),
        ]);
        let places = ["(cpu\\.load(?:", "(cpu\\.[^.]+(?:", "(.+)"].map(|part| text.find(part));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{text}");
    }
}
