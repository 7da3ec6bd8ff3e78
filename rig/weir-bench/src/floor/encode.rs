//! W0: the minimum work of writing a flush, as uncompressed Datadog series (protobuf), one point per context.
//!
//! Strings are adjacent in one array and lengths are known in advance, so that every byte is written once.

/// A flush to encode: names and tags concatenated, as an agent would store them.
pub struct Flush {
    text: Vec<u8>,
    /// Per context: the end of the name, and of each tag, in `text`.
    contexts: Vec<Context>,
    tag_ends: Vec<u32>,
}

struct Context {
    start: u32,
    name_end: u32,
    tags: std::ops::Range<u32>,
}

const HOST: &[u8] = b"floor";

impl Flush {
    /// The distinct contexts in newline-separated messages, in the order of their first appearance.
    pub fn of_messages(bytes: &[u8]) -> Flush {
        let mut flush = Flush {
            text: Vec::new(),
            contexts: Vec::new(),
            tag_ends: Vec::new(),
        };
        let mut seen = std::collections::HashSet::new();
        for line in bytes.split(|&byte| byte == b'\n') {
            let mut sections = line.split(|&byte| byte == b'|');
            let name = sections.next().unwrap_or_default();
            let name = name.split(|&byte| byte == b':').next().unwrap_or_default();
            let tags = sections
                .find_map(|section| section.strip_prefix(b"#"))
                .unwrap_or_default();
            if name.is_empty() || !seen.insert((name, tags)) {
                continue;
            }
            let start = flush.text.len() as u32;
            flush.text.extend_from_slice(name);
            let name_end = flush.text.len() as u32;
            let first = flush.tag_ends.len() as u32;
            for tag in tags.split(|&byte| byte == b',').filter(|tag| !tag.is_empty()) {
                flush.text.extend_from_slice(tag);
                flush.tag_ends.push(flush.text.len() as u32);
            }
            flush.contexts.push(Context {
                start,
                name_end,
                tags: first..flush.tag_ends.len() as u32,
            });
        }
        flush
    }

    pub fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// Appends the payload to `out`: no allocation once `out` is large enough.
    pub fn encode(&self, timestamp: u64, out: &mut Vec<u8>) {
        // resources {type "host", name HOST}: field 1 of the series.
        let resource = 2 + 4 + 2 + HOST.len();
        // points {value double, timestamp}: field 4.
        let point = 9 + 1 + varint_bytes(timestamp);
        for (index, context) in self.contexts.iter().enumerate() {
            let name = &self.text[context.start as usize..context.name_end as usize];
            let tag_ends = &self.tag_ends[context.tags.start as usize..context.tags.end as usize];
            let mut tags = 0;
            let mut from = context.name_end;
            for &end in tag_ends {
                tags += field_bytes((end - from) as usize);
                from = end;
            }
            // type RATE and interval 10 are two bytes each.
            let series = field_bytes(resource) + field_bytes(name.len()) + tags + field_bytes(point) + 2 + 2;
            put_header(out, 1, series);
            put_header(out, 1, resource);
            put_field(out, 1, b"host");
            put_field(out, 2, HOST);
            put_field(out, 2, name);
            let mut from = context.name_end as usize;
            for &end in tag_ends {
                put_field(out, 3, &self.text[from..end as usize]);
                from = end as usize;
            }
            put_header(out, 4, point);
            out.push(1 << 3 | 1);
            out.extend_from_slice(&(index as f64).to_le_bytes());
            out.push(2 << 3);
            put_varint(out, timestamp);
            out.extend_from_slice(&[5 << 3, 2, 8 << 3, 10]);
        }
    }
}

fn varint_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Bytes of a length-delimited field with a one-byte key.
fn field_bytes(length: usize) -> usize {
    1 + varint_bytes(length as u64) + length
}

#[inline]
fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
fn put_header(out: &mut Vec<u8>, field: u8, length: usize) {
    out.push(field << 3 | 2);
    put_varint(out, length as u64);
}

#[inline]
fn put_field(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    put_header(out, field, bytes.len());
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes, field by field, from the description of the encoding.
    #[test]
    fn encodes_one_series_per_distinct_context() {
        let flush = Flush::of_messages(b"a.b:1|c|#x:y,z\na.b:2|c|#x:y,z\nq:1|g\n");
        assert_eq!(flush.contexts(), 2);
        let mut out = Vec::new();
        flush.encode(300, &mut out);
        let mut expected = Vec::new();
        let resource = b"\x0a\x0d\x0a\x04host\x12\x05floor";
        let first = [
            &resource[..],
            b"\x12\x03a.b\x1a\x03x:y\x1a\x01z",
            b"\x22\x0c\x09\0\0\0\0\0\0\0\0\x10\xac\x02",
            b"\x28\x02\x40\x0a",
        ]
        .concat();
        let second = [
            &resource[..],
            b"\x12\x01q",
            b"\x22\x0c\x09\0\0\0\0\0\0\xf0\x3f\x10\xac\x02",
            b"\x28\x02\x40\x0a",
        ]
        .concat();
        for series in [first, second] {
            expected.extend_from_slice(&[0x0a, series.len() as u8]);
            expected.extend_from_slice(&series);
        }
        assert_eq!(out, expected);
    }
}
