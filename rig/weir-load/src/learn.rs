//! Derives a profile from recorded traffic. Words are replaced by others of the same length, so that the profile can be shared.

use crate::profile::{
    Fit, MessageShares, Names, PacketSize, Popularity, Profile, ProfileError, TagCount, TagKeys, TagValues,
    Throttle, Types, Value, ValueKind,
};
use crate::recorded::Recorded;
use crate::rng::mix;
use crate::units::{Bytes, Range, Rate, RateUnit};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Maximum entries of lists in a learned profile.
const LIST_MAX: usize = 5000;

/// The profile read from the traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    pub packets: u64,
    pub messages: u64,
    pub metrics: u64,
    /// Lines that are neither metrics, events nor checks.
    pub unread: u64,
    pub contexts: u64,
}

/// Replaces every run of letters or digits by one of the same length and kind, chosen by `salt` and the word.
pub fn anonymise(text: &str, salt: u64) -> String {
    let mut out = String::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let end = bytes[at..]
            .iter()
            .position(|b| !b.is_ascii_alphanumeric())
            .map_or(bytes.len(), |length| at + length);
        if end == at {
            // Separators carry no information; non-ASCII characters might.
            out.push(if bytes[at].is_ascii() {
                char::from(bytes[at])
            } else {
                'x'
            });
            at += 1;
            continue;
        }
        let word = &bytes[at..end];
        let mut hash = word.iter().fold(salt, |hash, byte| mix(hash, u64::from(*byte)));
        for byte in word {
            hash = mix(hash, 1);
            let (first, count) = if byte.is_ascii_digit() {
                (b'0', 10)
            } else if byte.is_ascii_uppercase() {
                (b'A', 26)
            } else {
                (b'a', 26)
            };
            out.push(char::from(first + (hash % count) as u8));
        }
        at = end;
    }
    out
}

#[derive(Default)]
struct Shape {
    contexts: HashMap<(String, String, String), u64>,
    names: HashSet<String>,
    lists: HashSet<String>,
    tags: HashSet<String>,
    keys: HashSet<String>,
    values: HashSet<String>,
    tag_counts: BTreeMap<u64, f64>,
    kinds: [f64; 3],
    types: HashMap<String, f64>,
    packed: Vec<u64>,
    rates: HashMap<u32, u64>,
    sampled: u64,
    rated: u64,
    logs: Vec<f64>,
    fractions: u64,
    numbers: u64,
}

impl Shape {
    fn metric(&mut self, line: &str) -> bool {
        let mut parts = line.split('|');
        let Some((name, values)) = parts.next().and_then(|p| p.split_once(':')) else {
            return false;
        };
        let Some(kind) = parts
            .next()
            .filter(|k| ["c", "g", "ms", "d", "s", "h"].contains(k))
        else {
            return false;
        };
        let (mut tags, mut rate) = ("", None);
        for part in parts {
            if let Some(list) = part.strip_prefix('#') {
                tags = list;
            } else if let Some(text) = part.strip_prefix('@') {
                rate = text.parse::<f64>().ok().filter(|r| *r > 0.0 && *r < 1.0);
            }
        }
        self.names.insert(name.to_string());
        let list: Vec<&str> = tags.split(',').filter(|t| !t.is_empty()).collect();
        // Counted per list, because the model draws lists.
        if self.lists.insert(tags.to_string()) {
            *self.tag_counts.entry(list.len() as u64).or_default() += 1.0;
        }
        for tag in list {
            let (key, value) = tag.split_once(':').unwrap_or((tag, ""));
            self.tags.insert(tag.to_string());
            self.keys.insert(key.to_string());
            if !value.is_empty() {
                self.values.insert(value.to_string());
            }
        }
        *self.types.entry(kind.to_string()).or_default() += 1.0;
        *self
            .contexts
            .entry((name.to_string(), tags.to_string(), kind.to_string()))
            .or_default() += 1;
        if kind != "s" && kind != "g" {
            self.rated += 1;
            if let Some(rate) = rate {
                self.sampled += 1;
                *self.rates.entry((1.0 / rate).round() as u32).or_default() += 1;
            }
        }
        if kind != "s" {
            let numbers: Vec<&str> = values.split(':').collect();
            self.packed.push(numbers.len() as u64);
            for number in numbers {
                if let Ok(value) = number.parse::<f64>() {
                    self.numbers += 1;
                    self.fractions += u64::from(number.contains('.'));
                    if value.abs() >= 1e-6 && value.is_finite() {
                        self.logs.push(value.abs().ln());
                    }
                }
            }
        }
        true
    }
}

/// The texts: anonymised, sorted, deduplicated and shortened.
fn list(texts: &HashSet<String>, salt: u64) -> Vec<String> {
    let mut all: Vec<String> = texts.iter().map(|text| anonymise(text, salt)).collect();
    all.sort_unstable();
    all.dedup();
    all.truncate(LIST_MAX);
    all
}

/// Why no profile can be derived.
#[derive(Debug, thiserror::Error)]
pub enum LearnError {
    #[error("contains no valid metric")]
    NoMetrics,
    #[error(transparent)]
    Profile(ProfileError),
}

/// Derives a profile. `salt` determines the replacement of words.
pub fn learn(packets: &[Recorded], salt: u64) -> Result<(Profile, Learned), LearnError> {
    let mut shape = Shape::default();
    let mut learned = Learned::default();
    let mut sizes = Vec::new();
    let mut counts = Vec::new();
    for packet in packets {
        let lines = shape.packet(&packet.bytes, &mut learned.unread);
        sizes.push(packet.bytes.len() as u64);
        counts.push(lines);
        learned.packets += 1;
        learned.messages += lines;
    }
    learned.metrics = shape.kinds[0] as u64;
    learned.contexts = shape.contexts.len() as u64;
    if learned.metrics == 0 {
        return Err(LearnError::NoMetrics);
    }
    let largest = sizes.iter().copied().max().unwrap_or(1432).max(16);
    let seconds = packets.last().map_or(0.0, |p| p.at.as_secs_f64());
    let profile = Profile {
        about: format!("learned from {} packets", learned.packets),
        packet_size: Some(PacketSize::Fill(Bytes(largest))),
        messages_per_packet: (counts.iter().all(|n| *n <= 1)).then_some(Range::just(1)),
        fit: Fit::Carry,
        rate: (seconds > 0.0).then(|| Rate {
            per_second: (learned.messages as f64 / seconds).max(0.001),
            unit: RateUnit::Messages,
        }),
        throttle: if seconds > 0.0 {
            Throttle::Smooth
        } else {
            Throttle::AllOut
        },
        ..shape.profile(salt)
    };
    profile.validate().map_err(LearnError::Profile)?;
    Ok((profile, learned))
}

/// The lengths of texts, from the shortest to the longest.
fn length(texts: &HashSet<String>, most: u64) -> Range {
    let lengths = texts.iter().map(|text| text.len() as u64);
    Range::new(
        lengths.clone().min().unwrap_or(1).clamp(1, most),
        lengths.max().unwrap_or(1).clamp(1, most),
    )
}

impl Shape {
    /// Reads a packet and returns its number of lines.
    fn packet(&mut self, bytes: &[u8], unread: &mut u64) -> u64 {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = 0;
        for line in text.split('\n').map(|line| line.trim_end_matches('\r')) {
            if line.is_empty() {
                continue;
            }
            lines += 1;
            if line.starts_with("_e{") {
                self.kinds[1] += 1.0;
            } else if line.starts_with("_sc|") {
                self.kinds[2] += 1.0;
            } else if self.metric(line) {
                self.kinds[0] += 1.0;
            } else {
                *unread += 1;
            }
        }
        lines
    }

    /// The profile that fits the messages.
    fn profile(&self, salt: u64) -> Profile {
        let keys = list(&self.keys, salt);
        let values = list(&self.values, salt);
        let tags_seen: f64 = self
            .tag_counts
            .iter()
            .map(|(count, weight)| *count as f64 * weight)
            .sum();
        let several = || self.packed.iter().copied().filter(|n| *n > 1);
        let contexts = self.contexts.len() as u64;
        Profile {
            contexts: Range::just(contexts),
            popularity: Popularity::Weights(self.weights()),
            names: Names::List(list(&self.names, salt)),
            name_len: length(&self.names, 4096),
            tags_per_msg: TagCount::Histogram(self.tag_counts.clone()),
            tag_keys: if keys.is_empty() || tags_seen == 0.0 {
                TagKeys::Words
            } else {
                TagKeys::List(keys)
            },
            tag_values: if values.is_empty() {
                TagValues::Random
            } else {
                TagValues::List(values)
            },
            tag_value_len: length(&self.values, 60_000),
            unique_tag_ratio: self.unique_tags(),
            shared_tagsets: (1.0 - self.lists.len() as f64 / contexts as f64).clamp(0.0, 1.0),
            multivalue_p: several().count() as f64 / self.packed.len().max(1) as f64,
            multivalue_n: Range::new(
                several().min().unwrap_or(2).clamp(1, 4096),
                several().max().unwrap_or(2).clamp(1, 4096),
            ),
            sample_p: self.sampled as f64 / self.rated.max(1) as f64,
            sample_rates: self.sample_rates(),
            value: self.value(),
            kinds: MessageShares {
                metric: self.kinds[0],
                event: self.kinds[1],
                service_check: self.kinds[2],
            },
            types: self.types(),
            ..Profile::default()
        }
    }

    fn weights(&self) -> Vec<f64> {
        let mut weights: Vec<f64> = self.contexts.values().map(|n| *n as f64).collect();
        weights.sort_by(|a, b| b.total_cmp(a));
        weights.truncate(LIST_MAX);
        weights
    }

    fn unique_tags(&self) -> f64 {
        let of_list = |list: &String| list.split(',').filter(|tag| !tag.is_empty()).count() as u64;
        let in_lists: u64 = self.lists.iter().map(of_list).sum();
        (self.tags.len() as f64 / in_lists.max(1) as f64).clamp(0.0, 1.0)
    }

    fn sample_rates(&self) -> Vec<u32> {
        let rates = self.rates.keys().copied();
        let mut rates: Vec<u32> = rates.filter(|n| (1..=1_000_000).contains(n)).collect();
        rates.sort_unstable();
        if rates.is_empty() { vec![1] } else { rates }
    }

    /// Values as a lognormal distribution.
    fn value(&self) -> Value {
        let count = self.logs.len().max(1) as f64;
        let mean = self.logs.iter().sum::<f64>() / count;
        let spread = (self.logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt();
        Value {
            kind: ValueKind::Lognormal {
                median: mean.exp().clamp(1e-3, 1e11),
                sigma: spread.clamp(0.0, 5.0),
            },
            float_p: self.fractions as f64 / self.numbers.max(1) as f64,
            decimals: 3,
            pool: 8192,
        }
    }

    fn types(&self) -> Types {
        let share = |kind: &str| self.types.get(kind).copied().unwrap_or(0.0);
        Types {
            count: share("c"),
            gauge: share("g"),
            timer: share("ms"),
            distribution: share("d"),
            set: share("s"),
            histogram: share("h"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Load;

    #[test]
    fn words_keep_their_length_and_nothing_else() {
        let secret = "acme.PaymentsV2.latency";
        let hidden = anonymise(secret, 9);
        assert_eq!(hidden.len(), secret.len());
        assert_eq!(hidden, anonymise(secret, 9));
        assert_ne!(hidden, anonymise(secret, 10));
        for (one, two) in secret.chars().zip(hidden.chars()) {
            assert_eq!(one.is_ascii_digit(), two.is_ascii_digit());
            assert_eq!(one == '.', two == '.');
        }
        for word in ["acme", "Payments", "latency"] {
            assert!(!hidden.contains(word));
        }
    }

    /// A profile learned from the traffic of another profile produces similar traffic.
    #[test]
    fn a_learned_profile_has_the_shape_it_was_learned_from() {
        // Uniform, because with a few hot contexts the mean depends on their lengths.
        let known = Profile {
            popularity: Popularity::Uniform,
            ..crate::profiles::named("real-web").unwrap()
        };
        let load = Load::prepare("real-web", &known, known.transport, 3).unwrap();
        let (mut source, _) = load.source(0);
        let mut buffer = vec![0u8; source.room()];
        let packets: Vec<Recorded> = (0..3000)
            .map(|index| {
                let packet = source.packet(&mut buffer);
                Recorded {
                    at: std::time::Duration::from_millis(index),
                    bytes: buffer[..packet.len].to_vec(),
                }
            })
            .collect();
        let (profile, learned) = learn(&packets, 1).unwrap();
        assert_eq!(learned.unread, 0);
        assert_eq!(learned.contexts, 3000);
        assert!(
            (profile.multivalue_p - 0.02).abs() < 0.005,
            "{}",
            profile.multivalue_p
        );
        assert!((profile.value.float_p - 0.2).abs() < 0.02);
        let back = Profile::from_yaml(&profile.to_yaml()).unwrap();
        let made = Load::prepare("learned", &back, back.transport, 3).unwrap();
        assert_eq!(made.model.as_ref().unwrap().contexts.len(), 3000);
        let mean = |load: &Load| {
            let (mut source, _) = load.source(0);
            let mut buffer = vec![0u8; source.room()];
            let (mut bytes, mut messages) = (0, 0);
            for _ in 0..2000 {
                let packet = source.packet(&mut buffer);
                bytes += packet.len;
                messages += packet.messages as usize;
            }
            bytes as f64 / messages as f64
        };
        let ratio = mean(&made) / mean(&load);
        assert!((0.8..1.25).contains(&ratio), "{ratio}");
    }

    #[test]
    fn traffic_without_metrics_is_refused() {
        let packets = [Recorded {
            at: std::time::Duration::ZERO,
            bytes: b"hello".to_vec(),
        }];
        assert!(
            learn(&packets, 1)
                .unwrap_err()
                .to_string()
                .contains("no valid metric")
        );
    }
}
