//! `manifest.json`: exact counts of a run's messages, so that a sink can verify the delivery of an agent.
//!
//! The truth is not collected while sending: the byte stream is a function of profile, seed and connection, so it is replayed afterwards
//! for the packets that were sent. Counting costs the run nothing.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The version of the manifest format; readers refuse others.
pub const VERSION: u32 = 1;

/// An exact decimal number with six fractional digits.
///
/// Sums of values times weights stay exact where `f64` would round. In JSON it is a string (`"12.5"`), because most JSON parsers read
/// numbers as `f64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Decimal {
    /// The number in millionths.
    pub micros: i128,
}

impl Decimal {
    pub const ZERO: Decimal = Decimal { micros: 0 };

    pub fn from_int(value: i64) -> Decimal {
        Decimal {
            micros: i128::from(value) * 1_000_000,
        }
    }

    /// The nearest `f64`.
    pub fn to_f64(self) -> f64 {
        // Adding integer part and fraction would round twice; parsing the text rounds once.
        self.to_string()
            .parse()
            .expect("a decimal number is a float's text")
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.micros.unsigned_abs();
        let sign = if self.micros < 0 { "-" } else { "" };
        let whole = magnitude / 1_000_000;
        let rest = magnitude % 1_000_000;
        if rest == 0 {
            return write!(f, "{sign}{whole}");
        }
        let fraction = format!("{rest:06}");
        write!(f, "{sign}{whole}.{}", fraction.trim_end_matches('0'))
    }
}

/// The text is not a plain decimal number with at most six fractional digits.
#[derive(Debug, PartialEq, Eq)]
pub struct NotDecimal;

impl fmt::Display for NotDecimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a decimal number with at most six fractional digits")
    }
}

impl FromStr for Decimal {
    type Err = NotDecimal;

    fn from_str(text: &str) -> Result<Decimal, NotDecimal> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let plain = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !plain(whole) || !plain(fraction) || fraction.len() > 6 {
            return Err(NotDecimal);
        }
        let whole: i128 = whole.parse().map_err(|_| NotDecimal)?;
        let fraction: i128 = format!("{fraction:0<6}").parse().map_err(|_| NotDecimal)?;
        let micros = whole
            .checked_mul(1_000_000)
            .and_then(|m| m.checked_add(fraction))
            .ok_or(NotDecimal)?;
        Ok(Decimal {
            micros: if negative { -micros } else { micros },
        })
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Decimal, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|error| de::Error::custom(format!("{text:?} is {error}")))
    }
}

/// The messages of one run and how sending went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub version: u32,
    /// The profile's name, or the path of its file.
    pub profile: String,
    pub seed: u64,
    /// `dogstatsd`, `statsd`, `syslog5424`, ...
    pub payload: String,
    /// The target's address as given (`unixgram:///path`), or empty for a dump.
    pub target: Option<String>,
    /// Wall clock of the first packet, nanoseconds since 1970; 0 for a dump.
    #[serde(default)]
    pub started_unix_ns: u64,
    pub totals: Totals,
    pub distinct: Distinct,
    /// Digest of the sent packets, in order, connection by connection. Equal profile, seed and packet counts give equal digests on every
    /// machine.
    pub digest: String,
    pub sending: Sending,
    /// Windows and requests, of a load of columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<ColumnsSent>,
    /// One row per context, on request (`--contexts`). Sorted by type, name, tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contexts: Option<Vec<ContextTruth>>,
    /// The same by the second at which the window of the messages began: of a load of columns, on request (`--windows`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<BTreeMap<i64, Vec<ContextTruth>>>,
    /// Events by title, on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<BTreeMap<String, u64>>,
    /// Service checks by `name|status`, on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<BTreeMap<String, u64>>,
}

/// Counts of sent messages. Latency markers are counted only in `Sending::markers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Datagrams, length-prefixed frames, or requests.
    pub packets: u64,
    /// Payload bytes, framing excluded.
    pub bytes: u64,
    /// Lines or records of any kind, including malformed ones.
    pub messages: u64,
    pub metrics: u64,
    pub events: u64,
    pub service_checks: u64,
    /// Records of payloads without metrics, events or checks: log lines, spans.
    #[serde(default)]
    pub records: u64,
    /// Metric messages and values by type, under the wire's names (`c`, `g`, `ms`, `d`, `s`, `h`).
    pub types: BTreeMap<String, TypeTotals>,
    /// Messages malformed on purpose, by the name of the error.
    #[serde(default)]
    pub malformed: BTreeMap<String, u64>,
    /// Messages in requests that the target answered with success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<u64>,
    /// Packets equal to an earlier one; counted on request (`--no-repeat`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated_packets: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypeTotals {
    pub messages: u64,
    /// Values: a packed message has several.
    pub samples: u64,
    /// Sum of the values' weights `1 / rate`.
    pub weight: u64,
}

/// Number of distinct strings in the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distinct {
    pub names: u64,
    pub tags: u64,
    /// Tag lists as sets: order and repetition are ignored.
    pub tag_lists: u64,
    /// Name, tag set and type.
    pub contexts: u64,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// Result of sending. Times are in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sending {
    pub elapsed_s: f64,
    /// The first part of it, in which every context was sent once and no schedule was kept (`first_pass_at_once`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub first_pass_s: f64,
    /// The unit of `scheduled` and `achieved`: `messages`, `packets` or `bytes`; empty when sending all-out.
    pub unit: String,
    /// Units due by the end of the run; 0 when sending all-out.
    pub scheduled: f64,
    /// Units handed to the kernel.
    pub achieved: f64,
    /// Share of packets sent more than one quantum after they were due.
    pub late_fraction: f64,
    pub lateness_p99_s: f64,
    /// Time in which the target accepted no more.
    pub blocked_s: f64,
    /// Packets abandoned because the target accepted no more (`--on-backpressure skip`).
    pub refused_packets: u64,
    pub refused_messages: u64,
    pub cpu_user_s: f64,
    pub cpu_system_s: f64,
    /// Time in which the sending threads were runnable but another process or the host had their core.
    pub run_delay_s: f64,
    /// `on-schedule`, `target-limited`, `generator-limited`, `host-limited`, `unlimited` for an all-out run into a target that never pushed
    /// back, or `aborted` if the target went away.
    pub verdict: String,
    /// Latency markers sent, with the wall clock of each.
    #[serde(default)]
    pub markers: Vec<Marker>,
}

/// One `weir.load.marker:SEQ|g` and its send time, nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Marker {
    pub seq: u64,
    pub sent_unix_ns: u64,
}

/// A load of columns. Requests and series are those acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnsSent {
    /// Seconds of a window.
    pub window_s: u64,
    pub requests: u64,
    pub series: u64,
    /// Transmissions after the first of a request.
    pub sent_again: u64,
    /// Acknowledged as a repetition of what had been added before.
    pub duplicates: u64,
    /// Transmissions that the target refused for now (408, 429, 5xx).
    pub busy: u64,
    /// Transmissions without an answer.
    pub unanswered: u64,
    pub clients: Vec<ColumnClient>,
}

impl ColumnsSent {
    pub(crate) fn add(&mut self, client: ColumnClient) {
        self.requests += client.requests;
        self.series += client.series;
        self.sent_again += client.sent_again;
        self.duplicates += client.duplicates;
        self.busy += client.busy;
        self.unanswered += client.unanswered;
        self.clients.push(client);
    }
}

/// One client of a load of columns; the counts as in [`ColumnsSent`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnClient {
    pub connection: u32,
    /// Its `x-weir-client`.
    pub id: String,
    pub requests: u64,
    pub series: u64,
    pub sent_again: u64,
    pub duplicates: u64,
    pub busy: u64,
    pub unanswered: u64,
    /// Only windows with messages.
    pub windows: Vec<ColumnWindow>,
}

/// One window of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnWindow {
    /// Seconds since 1970.
    pub start: i64,
    /// The first packet of the client's stream of messages, and the first of the next window.
    pub packets: (u64, u64),
    pub messages: u64,
    /// Points, one for each series.
    pub series: u64,
    /// The number of the first request, and how many there are.
    pub first_request: u64,
    pub requests: u64,
    /// Whether all of its requests are. If not, nobody knows how much of it was added, and its messages are not in the totals.
    pub acknowledged: bool,
}

/// The expected totals of one context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextTruth {
    pub name: String,
    /// The wire's name of the type: `c`, `g`, `ms`, `d`, `s`, `h`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Sorted, each once.
    pub tags: Vec<String>,
    /// The container id sent with it, if any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    pub messages: u64,
    /// Values, each counted once.
    pub samples: u64,
    /// Sum of the values' weights `1 / rate`: the expected `.count` of a histogram or distribution.
    pub weight: u64,
    /// Sum of the values as written.
    pub sum: Decimal,
    /// Sum of value times `1 / rate`: the expected counter.
    pub weighted_sum: Decimal,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Decimal>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Decimal>,
    /// Gauges: the last value of each connection that sent this context. With one connection it must be the agent's last value; with
    /// several, one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last: Vec<Decimal>,
    /// Sets: the distinct members, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<String>,
    /// Distributions, on request (`--bins`): the bins of the sketch with all values, each with its count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bins: Option<BTreeMap<i32, u64>>,
}

impl ContextTruth {
    /// Adds the truth of the same context from elsewhere.
    pub fn merge(&mut self, other: &ContextTruth) {
        self.messages += other.messages;
        self.samples += other.samples;
        self.weight += other.weight;
        self.sum.micros += other.sum.micros;
        self.weighted_sum.micros += other.weighted_sum.micros;
        self.min = self.min.into_iter().chain(other.min).min();
        self.max = self.max.into_iter().chain(other.max).max();
        self.last.extend_from_slice(&other.last);
        self.members.extend_from_slice(&other.members);
        self.members.sort();
        self.members.dedup();
        self.bins = match (self.bins.take(), &other.bins) {
            (Some(mut bins), Some(others)) => {
                for (key, count) in others {
                    *bins.entry(*key).or_default() += count;
                }
                Some(bins)
            }
            // The bins of a part are not those of the whole.
            _ => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_survive_text_and_other_texts_are_refused() {
        for text in ["0", "1", "-1", "0.5", "-0.000001", "92233720368547758070.25"] {
            let value: Decimal = text.parse().unwrap();
            assert_eq!(value.to_string(), text);
        }
        for text in ["", "-", ".5", "1e3", "1.2345678", "+1", "1 "] {
            assert_eq!(text.parse::<Decimal>(), Err(NotDecimal), "{text:?}");
        }
        for (text, value) in [("12.5", 12.5), ("1.235", 1.235), ("-0.000001", -0.000001)] {
            assert_eq!(text.parse::<Decimal>().unwrap().to_f64(), value);
        }
    }

    #[test]
    fn manifest_survives_json_and_refuses_unknown_keys() {
        let manifest = Manifest {
            version: VERSION,
            contexts: Some(vec![ContextTruth {
                name: "a".into(),
                kind: "g".into(),
                last: vec!["1.5".parse().unwrap()],
                ..ContextTruth::default()
            }]),
            ..Manifest::default()
        };
        let text = serde_json::to_string(&manifest).unwrap();
        assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), manifest);
        let wrong = text.replacen("\"seed\"", "\"sead\"", 1);
        assert!(serde_json::from_str::<Manifest>(&wrong).is_err());
    }
}
