//! The body of a request: one protobuf message whose fields are columns over all series. Texts are in dictionaries; references to them,
//! times and keys of bins are differences to the one before.

use super::sketch::Sketch;
use crate::manifest::Decimal;
use std::collections::HashMap;

/// Most series of a request, and about the most bytes, as our clients have them.
pub const SERIES_MAX: usize = 10_000;
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// The fields of the message `MetricData`, by what they hold.
mod field {
    pub const NAMES: usize = 1;
    pub const TAGS: usize = 2;
    pub const TAG_SETS: usize = 3;
    pub const TYPES: usize = 10;
    pub const NAME_OF: usize = 11;
    pub const TAG_SET_OF: usize = 12;
    pub const RESOURCES_OF: usize = 13;
    pub const INTERVALS: usize = 14;
    pub const POINTS: usize = 15;
    pub const TIMES: usize = 16;
    pub const INTEGERS: usize = 17;
    pub const DOUBLES: usize = 19;
    pub const BINS: usize = 20;
    pub const BIN_KEYS: usize = 21;
    pub const BIN_COUNTS: usize = 22;
    pub const SOURCE_OF: usize = 23;
    pub const ORIGIN_OF: usize = 24;
    pub const ALL: usize = 25;
}

/// The field of the whole message that has the columns.
const METRIC_DATA: u64 = 3;
const BYTES: u64 = 2;

/// The type of a series, in the lower half of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesType {
    Count = 1,
    Gauge = 3,
    Sketch = 4,
}

/// The form in which the values of a series are stored, in the upper half.
const STORED_NOT: u64 = 0;
const STORED_AS_INTEGERS: u64 = 0x10;
const STORED_AS_DOUBLES: u64 = 0x30;
/// Above it a reader may take a whole number for a double.
const INTEGER_MAX: i128 = 1 << 48;

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Small numbers of both signs are short.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The body of one request, while series are added.
pub struct PayloadBuilder {
    columns: [Vec<u8>; field::ALL],
    names: HashMap<String, i64>,
    tags: HashMap<String, i64>,
    tag_sets: HashMap<Vec<i64>, i64>,
    before: [i64; field::ALL],
    pub series: usize,
    /// Seconds since 1970, and how many of them the window has.
    start: i64,
    width: u64,
}

impl PayloadBuilder {
    pub fn new(start: i64, width: u64) -> PayloadBuilder {
        PayloadBuilder {
            columns: std::array::from_fn(|_| Vec::new()),
            names: HashMap::new(),
            tags: HashMap::new(),
            tag_sets: HashMap::new(),
            before: [0; field::ALL],
            series: 0,
            start,
            width,
        }
    }

    /// Whether it has as much as a request should have.
    pub fn is_full(&self) -> bool {
        self.series >= SERIES_MAX || self.columns.iter().map(Vec::len).sum::<usize>() >= BODY_BYTES_MAX
    }

    fn unsigned(&mut self, field: usize, value: u64) {
        varint(&mut self.columns[field], value);
    }

    fn signed(&mut self, field: usize, value: i64) {
        varint(&mut self.columns[field], zigzag(value));
    }

    fn difference(&mut self, field: usize, value: i64) {
        self.signed(field, value.wrapping_sub(self.before[field]));
        self.before[field] = value;
    }

    fn text(&mut self, field: usize, text: &str) -> i64 {
        let dictionary = match field {
            field::NAMES => &mut self.names,
            _ => &mut self.tags,
        };
        if let Some(known) = dictionary.get(text) {
            return *known;
        }
        let number = dictionary.len() as i64 + 1;
        dictionary.insert(text.to_owned(), number);
        varint(&mut self.columns[field], text.len() as u64);
        self.columns[field].extend_from_slice(text.as_bytes());
        number
    }

    fn tag_set(&mut self, tags: &[String]) -> i64 {
        let mut indexes: Vec<i64> = tags.iter().map(|tag| self.text(field::TAGS, tag)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        if indexes.is_empty() {
            return 0;
        }
        if let Some(known) = self.tag_sets.get(&indexes) {
            return *known;
        }
        self.signed(field::TAG_SETS, indexes.len() as i64);
        let mut before = 0;
        for index in &indexes {
            self.signed(field::TAG_SETS, index - before);
            before = *index;
        }
        let number = self.tag_sets.len() as i64 + 1;
        self.tag_sets.insert(indexes, number);
        number
    }

    /// A series of one point, without its value.
    fn begin(&mut self, name: &str, tags: &[String], series_type: SeriesType, stored: u64) {
        self.series += 1;
        self.unsigned(field::TYPES, series_type as u64 | stored);
        let name = self.text(field::NAMES, name);
        self.difference(field::NAME_OF, name);
        let tags = self.tag_set(tags);
        self.difference(field::TAG_SET_OF, tags);
        for field in [field::RESOURCES_OF, field::SOURCE_OF, field::ORIGIN_OF] {
            self.signed(field, 0);
        }
        self.unsigned(field::INTERVALS, self.width);
        self.unsigned(field::POINTS, 1);
        self.difference(field::TIMES, self.start);
    }

    fn value(&mut self, stored: u64, value: Decimal) {
        match stored {
            STORED_AS_INTEGERS => self.signed(field::INTEGERS, (value.micros / 1_000_000) as i64),
            STORED_AS_DOUBLES => {
                self.columns[field::DOUBLES].extend_from_slice(&value.to_f64().to_le_bytes());
            }
            _ => {}
        }
    }

    /// A count or a gauge.
    pub fn number(&mut self, name: &str, tags: &[String], series_type: SeriesType, value: Decimal) {
        let stored = stored(&[value]);
        self.begin(name, tags, series_type, stored);
        self.value(stored, value);
    }

    /// A distribution.
    pub fn sketch(&mut self, name: &str, tags: &[String], sketch: &Sketch) {
        let values = [sketch.sum, sketch.min, sketch.max];
        let stored = stored(&values);
        self.begin(name, tags, SeriesType::Sketch, stored);
        for value in values {
            self.value(stored, value);
        }
        self.signed(field::INTEGERS, sketch.count as i64);
        let (mut before, mut bins) = (0, 0);
        for (&key, &count) in &sketch.bins {
            // A count that its type cannot hold is that of several bins of one key.
            let mut rest = count;
            while rest > 0 {
                let part = rest.min(u64::from(u32::MAX));
                self.signed(field::BIN_KEYS, i64::from(key - before));
                self.unsigned(field::BIN_COUNTS, part);
                (before, rest, bins) = (key, rest - part, bins + 1);
            }
        }
        self.unsigned(field::BINS, bins);
    }

    /// The message.
    pub fn finish(self) -> Vec<u8> {
        let mut data = Vec::with_capacity(self.columns.iter().map(|column| column.len() + 8).sum());
        for (field, column) in self.columns.iter().enumerate() {
            if !column.is_empty() {
                varint(&mut data, (field as u64) << 3 | BYTES);
                varint(&mut data, column.len() as u64);
                data.extend_from_slice(column);
            }
        }
        let mut body = Vec::with_capacity(data.len() + 8);
        varint(&mut body, METRIC_DATA << 3 | BYTES);
        varint(&mut body, data.len() as u64);
        body.extend_from_slice(&data);
        body
    }
}

/// The smallest form that holds all of the values.
fn stored(values: &[Decimal]) -> u64 {
    let is_whole =
        |value: &Decimal| value.micros % 1_000_000 == 0 && (value.micros / 1_000_000).abs() <= INTEGER_MAX;
    if values.iter().all(|value| *value == Decimal::ZERO) {
        STORED_NOT
    } else if values.iter().all(is_whole) {
        STORED_AS_INTEGERS
    } else {
        STORED_AS_DOUBLES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        text.parse().unwrap()
    }

    /// Bytes written by hand from the numbers of the fields.
    #[test]
    fn a_body_by_hand() {
        let mut body = PayloadBuilder::new(1_700_000_000, 10);
        let tags = ["x:y".to_owned()];
        body.number("a.b", &tags, SeriesType::Count, decimal("3"));
        body.number("a.b", &[], SeriesType::Gauge, decimal("0.5"));
        let columns: &[(u8, &[u8])] = &[
            (1, b"\x03a.b"),
            (2, b"\x03x:y"),
            (3, b"\x02\x02"),
            (10, b"\x11\x33"),
            (11, b"\x02\x00"),
            (12, b"\x02\x01"),
            (13, b"\x00\x00"),
            (14, b"\x0a\x0a"),
            (15, b"\x01\x01"),
            (16, b"\x80\xc4\x9f\xd5\x0c\x00"),
            (17, b"\x06"),
            (19, b"\x00\x00\x00\x00\x00\x00\xe0\x3f"),
            (23, b"\x00\x00"),
            (24, b"\x00\x00"),
        ];
        let mut wanted = Vec::new();
        for (field, bytes) in columns {
            varint(&mut wanted, u64::from(*field) << 3 | 2);
            varint(&mut wanted, bytes.len() as u64);
            wanted.extend_from_slice(bytes);
        }
        let wanted = [&[0x1a, wanted.len() as u8][..], &wanted].concat();
        assert_eq!(body.finish(), wanted);
    }

    #[test]
    fn a_large_bin_is_several_of_one_key() {
        let mut sketch = Sketch::default();
        sketch.add(decimal("2"), u64::from(u32::MAX) + 2);
        let mut body = PayloadBuilder::new(1, 1);
        body.sketch("d", &[], &sketch);
        assert_eq!(body.columns[field::BINS], [2]);
        assert_eq!(body.columns[field::BIN_COUNTS], [0xff, 0xff, 0xff, 0xff, 0x0f, 2]);
        assert_eq!(
            body.columns[field::BIN_KEYS].len(),
            3,
            "the second is no difference"
        );
        assert_eq!(body.columns[field::TYPES], [0x14]);
    }

    #[test]
    fn a_body_is_full_at_its_limit_of_series() {
        let mut body = PayloadBuilder::new(1, 1);
        for number in 0..SERIES_MAX {
            assert!(!body.is_full(), "{number}");
            body.number("n", &[], SeriesType::Count, Decimal::ZERO);
        }
        assert!(body.is_full());
        assert!(body.columns[field::INTEGERS].is_empty(), "zeros are not stored");
    }
}
