//! The last minutes, as commands query them: `/api/v1/metrics`, `query` and `books`.

use serde::Deserialize;

/// The answer of `/api/v1/metrics`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Metrics {
    pub total: usize,
    pub metrics: Vec<Metric>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Metric {
    pub name: String,
    pub kind: String,
    pub contexts: u64,
    pub new: u64,
    pub last_seen: i64,
    #[serde(default)]
    pub tag_keys: Vec<String>,
    #[serde(default)]
    pub sparkline: Vec<Option<f64>>,
}

/// The answer of `/api/v1/query`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Points {
    pub metric: String,
    pub kind: String,
    #[serde(rename = "fn")]
    pub function: String,
    pub step: u32,
    pub times: Vec<i64>,
    pub groups: Vec<Group>,
    pub folded: usize,
    pub series: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Group {
    /// Its metric, in a chart of several.
    #[serde(skip)]
    pub of: String,
    pub tags: Vec<(String, Option<String>)>,
    pub other: bool,
    pub values: Vec<Option<f64>>,
}

impl Group {
    /// Its distinguishing tags.
    pub fn title(&self) -> String {
        let of = Some(self.of.clone()).filter(|of| !of.is_empty());
        let other = self.other.then(|| "other".to_owned());
        let tags = self.tags.iter().map(|(key, value)| match value {
            Some(value) => format!("{key}:{value}"),
            None => format!("{key}:(none)"),
        });
        let title = of
            .into_iter()
            .chain(other)
            .chain(tags)
            .collect::<Vec<_>>()
            .join(" ");
        if title.is_empty() { "all".to_owned() } else { title }
    }
}

/// The answer of `/api/v1/books`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Books {
    pub times: Vec<i64>,
    pub series: Vec<BookSeries>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct BookSeries {
    pub name: String,
    pub values: Vec<Option<f64>>,
}

impl Books {
    /// The sum of all series of a name, for example those of several listeners.
    pub fn column(&self, name: &str) -> Vec<Option<f64>> {
        let mut sums = vec![None; self.times.len()];
        for series in self.series.iter().filter(|series| series.name == name) {
            for (sum, value) in sums.iter_mut().zip(&series.values) {
                if let Some(value) = value {
                    *sum = Some(sum.unwrap_or(0.0) + value);
                }
            }
        }
        sums
    }
}

/// The newest value.
pub fn last(values: &[Option<f64>]) -> Option<f64> {
    values.iter().rev().find_map(|value| *value)
}

/// A path with encoded parameters.
pub fn path(path: &str, parameters: &[(&str, &str)]) -> String {
    let mut text = path.to_owned();
    for (at, (name, value)) in parameters.iter().enumerate() {
        text.push(if at == 0 { '?' } else { '&' });
        text.push_str(name);
        text.push('=');
        text.push_str(&encoded(value));
    }
    text
}

fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_several_listeners_are_summed_up_and_gaps_stay() {
        let series = |name: &str, values: &[Option<f64>]| BookSeries {
            name: name.to_owned(),
            values: values.to_vec(),
        };
        let books = Books {
            times: vec![1, 2, 3],
            series: vec![
                series("a", &[Some(1.0), None, None]),
                series("b", &[Some(9.0); 3]),
                series("a", &[Some(2.0), Some(4.0), None]),
            ],
        };
        let column = books.column("a");
        assert_eq!(column, [Some(3.0), Some(4.0), None]);
        assert_eq!(last(&column), Some(4.0));
    }

    #[test]
    fn values_of_parameters_may_hold_anything() {
        let path = path("/api/v1/query", &[("metric", "a b&c"), ("by", "k")]);
        assert_eq!(path, "/api/v1/query?metric=a%20b%26c&by=k");
    }
}
