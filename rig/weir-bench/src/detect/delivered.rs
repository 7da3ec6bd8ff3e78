//! Finds how much of a load a sink received: counters by their sums with sample rates applied, distributions by their counts, gauges and
//! sets by presence.
//!
//! Points are JSON lines as written by `weir-bench sink --capture` and `weir run --output stdout`.

use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The received data of one series.
#[derive(Debug, Default)]
struct Arrived {
    /// Sum of counts and of rates times their interval.
    total: f64,
    /// Latest value since the start, by host.
    cumulative: BTreeMap<String, f64>,
    /// Values in sketches and histograms.
    values: f64,
    cumulative_values: BTreeMap<String, f64>,
    points: u64,
}

impl Arrived {
    fn sum(&self) -> f64 {
        self.total + self.cumulative.values().sum::<f64>()
    }

    fn count(&self) -> f64 {
        self.values + self.cumulative_values.values().sum::<f64>()
    }
}

/// All points of a run.
#[derive(Debug, Default)]
pub struct Points {
    series: HashMap<String, Arrived>,
    /// Sequence number and arrival of the load's markers, if the arrival is known.
    pub markers: Vec<(u64, u64)>,
    /// Names are in Prometheus's reduced character set.
    folded: bool,
    ignored: Vec<String>,
}

/// The marker gauge of a load.
const MARKER: &str = "weir.load.marker";

impl Points {
    /// `ignored`: keys of tags that the agent adds.
    pub fn read(path: &Path, folded: bool, ignored: &[String]) -> std::io::Result<Self> {
        let mut all = Self {
            folded,
            ignored: ignored.to_vec(),
            ..Self::default()
        };
        for line in BufReader::new(File::open(path)?).lines() {
            // The last line of a program that was ended may be incomplete; lines of other kinds are not points.
            if let Ok(point) = serde_json::from_str::<Value>(&line?) {
                all.add(&point);
            }
        }
        Ok(all)
    }

    fn add(&mut self, point: &Value) {
        let (Some(metric), Some(kind)) = (point["metric"].as_str(), point["type"].as_str()) else {
            return;
        };
        let value = point["value"].as_f64();
        if metric == MARKER || metric == fold(MARKER) {
            if let (Some(seq), Some(at)) = (value, point["received_ns"].as_u64()) {
                self.markers.push((seq as u64, at));
            }
            return;
        }
        let tags: Vec<&str> = point["tags"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let key = self.key(metric, &tags);
        let host = point["host"].as_str().unwrap_or_default().to_owned();
        let interval = point["interval"].as_f64().unwrap_or(1.0);
        let count = point["cnt"].as_f64().or_else(|| point["count"].as_f64());
        let a = self.series.entry(key).or_default();
        a.points += 1;
        match kind {
            "rate" => a.total += value.unwrap_or(0.0) * interval,
            "count" => a.total += value.unwrap_or(0.0),
            "cumulative" => drop(a.cumulative.insert(host, value.unwrap_or(0.0))),
            "sketch" | "distribution" => a.values += count.unwrap_or(0.0),
            "cumulative_distribution" => drop(a.cumulative_values.insert(host, count.unwrap_or(0.0))),
            _ => {}
        }
    }

    fn key(&self, metric: &str, tags: &[&str]) -> String {
        let mut tags: Vec<String> = tags
            .iter()
            .filter(|t| !self.ignored.iter().any(|i| t.split(':').next() == Some(i)))
            .map(|t| match t.split_once(':') {
                Some((k, v)) if self.folded => format!("{}:{v}", fold(k)),
                _ => (*t).to_owned(),
            })
            .collect();
        tags.sort();
        tags.dedup();
        let metric = if self.folded {
            fold(metric)
        } else {
            metric.to_owned()
        };
        format!("{metric}\u{0}{}", tags.join("\u{0}"))
    }

    fn find(&self, metric: &str, suffixes: &[&str], tags: &[&str]) -> Option<&Arrived> {
        suffixes
            .iter()
            .find_map(|s| self.series.get(&self.key(&format!("{metric}{s}"), tags)))
    }

    /// Messages of the manifest that are accounted for. `None` when it has no table of contexts.
    pub fn delivered(&self, manifest: &Value) -> Option<Delivered> {
        let mut out = Delivered::default();
        for context in manifest["contexts"].as_array()? {
            let messages = context["messages"].as_f64().unwrap_or(0.0);
            let name = context["name"].as_str().unwrap_or_default();
            let tags: Vec<&str> = context["tags"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let number = |k: &str| {
                context[k]
                    .as_f64()
                    .or_else(|| context[k].as_str()?.parse().ok())
                    .unwrap_or(0.0)
            };
            let share = match context["type"].as_str().unwrap_or_default() {
                "c" | "m" => {
                    let want = number("weighted_sum");
                    let got = self.find(name, &["", "_total"], &tags).map(Arrived::sum);
                    match got {
                        // Values that cancel out prove only presence.
                        Some(_) if want == 0.0 => 1.0,
                        Some(got) => got / want,
                        None => 0.0,
                    }
                }
                "g" | "s" => f64::from(u8::from(
                    self.find(name, &[""], &tags).is_some_and(|a| a.points > 0),
                )),
                _ => {
                    let want = number("weight");
                    let whole = self
                        .find(name, &["", "_count"], &tags)
                        .map(Arrived::count)
                        .filter(|c| *c > 0.0);
                    // Some agents send a rate under another name, beside a gauge of the count.
                    let counts = [".count", "_count", ".count_ps"];
                    let mut sums = counts
                        .iter()
                        .filter_map(|s| self.find(name, &[s], &tags).map(Arrived::sum));
                    let got = whole.or_else(|| sums.find(|sum| *sum > 0.0));
                    got.map_or(0.0, |g| if want > 0.0 { g / want } else { 1.0 })
                }
            };
            let share = share.max(0.0);
            // Agents round sample rates without an exact reciprocal once per bucket.
            out.messages += messages * if (share - 1.0).abs() < 0.005 { 1.0 } else { share };
            out.of += messages;
            out.contexts += 1;
            out.contexts_off += u64::from((share - 1.0).abs() >= 0.005);
        }
        Some(out)
    }

    /// The part of `sink.json` that follows from the points.
    pub fn report(&self, manifest: Option<&Value>) -> Value {
        let markers: Vec<Value> = self
            .markers
            .iter()
            .map(|(seq, at)| json!({"seq": seq, "received_unix_ns": at}))
            .collect();
        let mut report = json!({"markers": markers, "series": self.series.len()});
        if let Some(d) = manifest.and_then(|m| self.delivered(m)) {
            // Events and checks are not in the table; they count as delivered in the same share as metrics.
            let sent = manifest
                .and_then(|m| m.pointer("/totals/messages"))
                .and_then(Value::as_f64)
                .unwrap_or(d.of);
            let share = if d.of > 0.0 { d.messages / d.of } else { 0.0 };
            report["delivered_messages"] = json!((share * sent).round());
            report["contexts"] = json!(d.contexts);
            report["contexts_off"] = json!(d.contexts_off);
        }
        report
    }
}

/// The delivered part of a manifest.
#[derive(Debug, Default, PartialEq)]
pub struct Delivered {
    pub messages: f64,
    pub of: f64,
    pub contexts: u64,
    /// Contexts whose sums differ from the load's.
    pub contexts_off: u64,
}

fn fold(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c
            } else {
                '_'
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(folded: bool, lines: &[Value]) -> Points {
        let mut p = Points {
            folded,
            ignored: vec!["agent".to_owned()],
            ..Points::default()
        };
        lines.iter().for_each(|l| p.add(l));
        p
    }

    fn manifest() -> Value {
        json!({"totals": {"messages": 100}, "contexts": [
            {"name": "a.b", "type": "c", "tags": ["x:1", "y"], "messages": 40, "weight": 40, "weighted_sum": "80"},
            {"name": "d", "type": "d", "tags": [], "messages": 30, "weight": 60, "weighted_sum": "1"},
            {"name": "h", "type": "h", "tags": [], "messages": 20, "weight": 20, "weighted_sum": "1"},
            {"name": "g", "type": "g", "tags": [], "messages": 10, "weight": 10, "weighted_sum": "1"}]})
    }

    #[test]
    fn everything_is_found_in_the_forms_that_agents_use() {
        let p = points(
            false,
            &[
                json!({"metric": "a.b", "type": "rate", "interval": 10, "value": 3.0, "tags": ["y", "x:1", "agent:z"]}),
                json!({"metric": "a.b", "type": "count", "value": 50.0, "tags": ["x:1", "y"]}),
                json!({"metric": "d", "type": "sketch", "cnt": 60, "tags": []}),
                json!({"metric": "h.count", "type": "rate", "interval": 1, "value": 20.0, "tags": []}),
                json!({"metric": "g", "type": "gauge", "value": 1.0, "tags": []}),
                json!({"metric": "weir.load.marker", "type": "gauge", "value": 7.0, "received_ns": 99, "tags": []}),
            ],
        );
        let d = p.delivered(&manifest()).unwrap();
        assert_eq!(
            d,
            Delivered {
                messages: 100.0,
                of: 100.0,
                contexts: 4,
                contexts_off: 0
            }
        );
        assert_eq!(p.markers, [(7, 99)]);
    }

    #[test]
    fn a_count_may_be_a_gauge_beside_its_rate() {
        let p = points(
            false,
            &[
                json!({"metric": "h.count", "type": "gauge", "interval": 1, "value": 20.0, "tags": []}),
                json!({"metric": "h.count_ps", "type": "rate", "interval": 2, "value": 10.0, "tags": []}),
            ],
        );
        assert_eq!(p.delivered(&manifest()).unwrap().messages, 20.0);
    }

    #[test]
    fn scrapes_are_cumulative_and_folded() {
        let p = points(
            true,
            &[
                json!({"metric": "a_b_total", "type": "cumulative", "value": 20.0, "tags": ["x:1"], "host": ""}),
                json!({"metric": "d", "type": "cumulative_distribution", "count": 30.0, "tags": []}),
                json!({"metric": "d", "type": "cumulative_distribution", "count": 60.0, "tags": []}),
            ],
        );
        let d = p.delivered(&manifest()).unwrap();
        // The tag without a value did not survive, so that counter is missing; so are histogram and gauge.
        assert_eq!((d.messages, d.contexts_off), (30.0, 3));
    }

    #[test]
    fn losses_and_doubles_show() {
        let half = points(
            false,
            &[json!({"metric": "d", "type": "sketch", "cnt": 30, "tags": []})],
        );
        assert_eq!(half.delivered(&manifest()).unwrap().messages, 15.0);
        let double = points(
            false,
            &[json!({"metric": "d", "type": "sketch", "cnt": 120, "tags": []})],
        );
        assert_eq!(double.delivered(&manifest()).unwrap().messages, 60.0);
        assert!(double.delivered(&json!({})).is_none());
        assert_eq!(double.report(Some(&manifest()))["delivered_messages"], 60.0);
    }
}
