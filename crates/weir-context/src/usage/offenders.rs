use weir_sketch::hll::HyperLogLog;

use super::{LimitReason, LimitedMetric};
use crate::hash::HashSecret;

/// Names followed between two summaries.
const OFFENDERS_MAX: usize = 16;

/// Tag keys followed per name.
const KEYS_MAX: usize = 24;

/// Takes 256 bytes a key and estimates to 7 %.
const PRECISION: u8 = 8;

struct Offender {
    name: Box<str>,
    reason: LimitReason,
    samples: u64,
    keys: Vec<(Box<str>, HyperLogLog)>,
    origin: Box<str>,
}

/// Names whose new contexts were refused, and the tags of theirs that differ from message to message. Only refused messages pay for this,
/// and every summary resets it.
#[derive(Default)]
pub(crate) struct Offenders {
    entries: Vec<Offender>,
    others: u64,
}

impl Offenders {
    /// Counts a message with `samples` samples that was refused.
    pub fn count<T: AsRef<str>>(
        &mut self,
        name: &str,
        tags: &[T],
        reason: LimitReason,
        samples: u64,
        origin: &str,
        secret: &HashSecret,
    ) {
        let found = self.entries.iter().position(|entry| *entry.name == *name);
        let at = match found {
            Some(at) => at,
            None if self.entries.len() >= OFFENDERS_MAX => {
                self.others += samples;
                return;
            }
            None => {
                self.entries.push(Offender {
                    name: name.into(),
                    reason,
                    samples: 0,
                    keys: Vec::new(),
                    origin: Box::default(),
                });
                self.entries.len() - 1
            }
        };
        let entry = &mut self.entries[at];
        entry.samples += samples;
        entry.reason = reason;
        if *entry.origin != *origin {
            entry.origin = origin.into();
        }
        for tag in tags {
            let tag = tag.as_ref();
            let key = tag.split_once(':').map_or("", |(key, _)| key);
            let values = match entry.keys.iter().position(|(known, _)| **known == *key) {
                Some(at) => &mut entry.keys[at].1,
                None if entry.keys.len() < KEYS_MAX => {
                    entry.keys.push((key.into(), HyperLogLog::new(PRECISION)));
                    &mut entry.keys.last_mut().expect("just pushed").1
                }
                None => continue,
            };
            values.insert_hash(secret.spread(secret.bytes(tag.as_bytes())));
        }
    }

    /// The names since the last call, and the samples of names that were not followed.
    pub fn take(&mut self) -> (Vec<LimitedMetric>, u64) {
        let limited = std::mem::take(&mut self.entries).into_iter().map(|entry| {
            let keys = entry
                .keys
                .into_iter()
                .map(|(key, values)| (key, values.estimate().round() as u64));
            LimitedMetric {
                name: entry.name,
                reason: entry.reason,
                samples: entry.samples,
                tag_key: keys.max_by_key(|(_, values)| *values),
                origin: entry.origin,
            }
        });
        (limited.collect(), std::mem::take(&mut self.others))
    }

    pub fn heap_bytes(&self) -> usize {
        let of_entry = |entry: &Offender| {
            let keys = entry
                .keys
                .iter()
                .map(|(key, values)| key.len() + values.heap_bytes() + size_of::<(Box<str>, HyperLogLog)>());
            entry.name.len() + entry.origin.len() + keys.sum::<usize>()
        };
        self.entries.capacity() * size_of::<Offender>() + self.entries.iter().map(of_entry).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(
        miri,
        ignore = "too many messages for Miri; the tests beside it run the same code"
    )]
    fn the_varying_tag_is_named_and_names_are_bounded() {
        let (mut offenders, secret) = (Offenders::default(), HashSecret::from_random(3, 4));
        for number in 0..5000 {
            let tags = ["env:prod".to_owned(), format!("user:{number}")];
            offenders.count("a", &tags, LimitReason::Metric, 2, "", &secret);
        }
        for number in 0..20 {
            offenders.count(
                &format!("n{number}"),
                &[""; 0],
                LimitReason::Memory,
                1,
                "",
                &secret,
            );
        }
        let (limited, others) = offenders.take();
        assert_eq!((limited.len(), others), (OFFENDERS_MAX, 5));
        assert_eq!((&*limited[0].name, limited[0].samples), ("a", 10_000));
        let (key, values) = limited[0].tag_key.clone().unwrap();
        assert_eq!(&*key, "user");
        assert!((3750..6250).contains(&values), "{values}");
        assert_eq!(limited[1].tag_key, None);
        assert_eq!(offenders.take(), (Vec::new(), 0));
    }
}
