//! Packet sizes and tag counts, which have several notations. Parsed by hand, because serde's untagged enums lose the reason of an error:
//! `8 Kb` must be reported as ambiguous.

use super::{PacketSize, TagCount};
use crate::units::{Bytes, Range};
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeMap;
use std::fmt;

/// A map key that may be a word or a number.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a word or a number")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Key, E> {
                Ok(Key(text.to_owned()))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Key, E> {
                Ok(Key(number.to_string()))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Key, E> {
                Ok(Key(number.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for PacketSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PacketSize, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = PacketSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a size (8 KiB), a list of sizes, {min: 128, max: 8 KiB}, {exactly: 1432}, or sizes and their \
                     weights ({512: 3, 8192: 1})",
                )
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<PacketSize, E> {
                text.parse().map(PacketSize::Fill).map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<PacketSize, E> {
                Ok(PacketSize::Fill(Bytes(bytes)))
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<PacketSize, E> {
                self.visit_str(&bytes.to_string())
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<PacketSize, A::Error> {
                let mut sizes = Vec::new();
                while let Some(size) = seq.next_element()? {
                    sizes.push(size);
                }
                Ok(PacketSize::OneOf(sizes))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<PacketSize, A::Error> {
                let (mut min, mut max, mut exactly) = (None, None, None);
                let mut weights = BTreeMap::new();
                while let Some(Key(key)) = map.next_key()? {
                    match key.as_str() {
                        "min" => min = Some(map.next_value()?),
                        "max" => max = Some(map.next_value()?),
                        "exactly" => exactly = Some(map.next_value()?),
                        other => {
                            let size: Bytes = other.parse().map_err(|error| {
                                de::Error::custom(format!(
                                    "packet_size: {other:?} is neither min, max, exactly nor a size: {error}"
                                ))
                            })?;
                            weights.insert(size.0, map.next_value()?);
                        }
                    }
                }
                match (min, max, exactly, weights.is_empty()) {
                    (Some(min), Some(max), None, true) => Ok(PacketSize::Between { min, max }),
                    (None, None, Some(exactly), true) => Ok(PacketSize::Exactly { exactly }),
                    (None, None, None, false) => Ok(PacketSize::Histogram(weights)),
                    _ => Err(de::Error::custom(
                        "packet_size: give min and max, or exactly, or sizes with weights",
                    )),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for TagCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TagCount, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = TagCount;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a number of tags (7), a range (\"2..50\"), or numbers and their weights ({0: 1, 8: 3})",
                )
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<TagCount, E> {
                text.parse().map(TagCount::Range).map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, count: u64) -> Result<TagCount, E> {
                Ok(TagCount::Range(Range::just(count)))
            }
            fn visit_i64<E: de::Error>(self, count: i64) -> Result<TagCount, E> {
                self.visit_str(&count.to_string())
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<TagCount, A::Error> {
                let mut weights = BTreeMap::new();
                while let Some(Key(key)) = map.next_key()? {
                    let count = key.parse().map_err(|_| {
                        de::Error::custom(format!("tags_per_msg: {key:?} is not a number of tags"))
                    })?;
                    weights.insert(count, map.next_value()?);
                }
                Ok(TagCount::Histogram(weights))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
