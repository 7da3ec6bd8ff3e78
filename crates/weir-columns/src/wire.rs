//! Field numbers, types and number encodings of the payload, for writers and readers.
//!
//! All columns are packed. Indexes into dictionaries start at 1; 0 means empty. "Delta" means that an entry is the difference to the one
//! before it in the whole column.

/// Field of [`Column`]s in a payload.
pub const METRIC_DATA: u32 = 3;
/// Field of tags and resources that belong to every series of a payload.
pub const METADATA: u32 = 2;
/// In metadata: a tag.
pub const METADATA_TAGS: u32 = 1;
/// In metadata: type, name, type, name ...
pub const METADATA_RESOURCES: u32 = 2;

/// The columns, by field number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Column {
    /// Texts: for each a varint length and the bytes.
    Names = 1,
    /// Texts.
    Tags = 2,
    /// sint64: for each set a count, then as many indexes into tags, ascending, each the difference to the one before it in the set. An
    /// index -n stands for all of tag set n, which comes earlier.
    TagSets = 3,
    /// Texts: types and names of resources.
    ResourceTexts = 4,
    /// int64: resources of a list.
    ResourceLengths = 5,
    /// sint64: indexes into resource texts, delta within the list.
    ResourceTypes = 6,
    /// sint64: as the types.
    ResourceNames = 7,
    /// Texts.
    SourceTypes = 8,
    /// int32: product, category, service, repeated.
    Origins = 9,
    /// uint64: [`MetricType`], [`ValueType`] and flags of a series. This column has the number of series.
    Types = 10,
    /// sint64, delta.
    NameRefs = 11,
    /// sint64, delta.
    TagSetRefs = 12,
    /// sint64, delta.
    ResourceRefs = 13,
    /// uint64: seconds.
    Intervals = 14,
    /// uint64: points of a series.
    PointCounts = 15,
    /// sint64, delta over all points of all series: Unix seconds.
    Timestamps = 16,
    /// sint64.
    Integers = 17,
    /// Little-endian.
    Floats = 18,
    /// Little-endian.
    Doubles = 19,
    /// uint64: bins of a sketch's point.
    BinCounts = 20,
    /// sint32, delta within the point.
    BinKeys = 21,
    /// uint64 in the intake's definition, uint32 in the Agent's: samples of a bin.
    BinSamples = 22,
    /// sint64, delta.
    SourceTypeRefs = 23,
    /// sint64, delta.
    OriginRefs = 24,
    /// Texts.
    Units = 25,
    /// sint64, delta, for the series with [`HAS_UNIT`] alone.
    UnitRefs = 26,
}

/// Larger than each field number.
pub const COLUMNS: usize = 27;

impl Column {
    /// By field number.
    pub const ALL: [Column; COLUMNS - 1] = [
        Column::Names,
        Column::Tags,
        Column::TagSets,
        Column::ResourceTexts,
        Column::ResourceLengths,
        Column::ResourceTypes,
        Column::ResourceNames,
        Column::SourceTypes,
        Column::Origins,
        Column::Types,
        Column::NameRefs,
        Column::TagSetRefs,
        Column::ResourceRefs,
        Column::Intervals,
        Column::PointCounts,
        Column::Timestamps,
        Column::Integers,
        Column::Floats,
        Column::Doubles,
        Column::BinCounts,
        Column::BinKeys,
        Column::BinSamples,
        Column::SourceTypeRefs,
        Column::OriginRefs,
        Column::Units,
        Column::UnitRefs,
    ];

    /// The column of a field number.
    pub fn of(field: u32) -> Option<Column> {
        Self::ALL.get((field as usize).checked_sub(1)?).copied()
    }
}

/// Bits of an entry of [`Column::Types`] that have the [`MetricType`].
pub const METRIC_TYPE: u64 = 0x0f;
/// Bits of an entry of [`Column::Types`] that have the [`ValueType`].
pub const VALUE_TYPE: u64 = 0xf0;
/// Flag: the series is not indexed.
pub const NOT_INDEXED: u64 = 0x100;
/// Flag: the series has an entry in [`Column::UnitRefs`].
pub const HAS_UNIT: u64 = 0x200;

/// The meaning of a series' points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MetricType {
    Count = 1,
    Rate = 2,
    Gauge = 3,
    Sketch = 4,
}

impl MetricType {
    /// Of an entry of [`Column::Types`]. `None`: a type that this crate does not know.
    pub fn of(entry: u64) -> Option<MetricType> {
        match entry & METRIC_TYPE {
            1 => Some(MetricType::Count),
            2 => Some(MetricType::Rate),
            3 => Some(MetricType::Gauge),
            4 => Some(MetricType::Sketch),
            _ => None,
        }
    }
}

/// The column with the values of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ValueType {
    /// All are zero, and in no column.
    Zero = 0x00,
    Integer = 0x10,
    Float = 0x20,
    Double = 0x30,
}

/// Integers within this distance of zero are shorter as a varint than as a double: at most seven bytes.
const INTEGER_MAX: f64 = (1u64 << 48) as f64;

impl ValueType {
    /// Of an entry of [`Column::Types`]. `None`: a type that this crate does not know.
    pub fn of(entry: u64) -> Option<ValueType> {
        match entry & VALUE_TYPE {
            0x00 => Some(ValueType::Zero),
            0x10 => Some(ValueType::Integer),
            0x20 => Some(ValueType::Float),
            0x30 => Some(ValueType::Double),
            _ => None,
        }
    }

    /// The smallest type that has all these values, bit for bit.
    pub fn smallest(values: impl Iterator<Item = f64>) -> ValueType {
        let (mut zero, mut integer, mut float) = (true, true, true);
        for value in values {
            zero &= value.to_bits() == 0;
            // A negative zero is no integer, and NaN is equal to nothing.
            let is_whole = value as i64 as f64 == value && (value != 0.0 || value.is_sign_positive());
            integer &= is_whole && (-INTEGER_MAX..INTEGER_MAX).contains(&value);
            float &= f64::from(value as f32).to_bits() == value.to_bits() && !value.is_nan();
        }
        match (zero, integer, float) {
            (true, ..) => ValueType::Zero,
            (_, true, _) => ValueType::Integer,
            (_, _, true) => ValueType::Float,
            _ => ValueType::Double,
        }
    }
}

/// Appends `value` in base 128.
#[inline]
pub fn varint(buffer: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        buffer.push(value as u8 | 0x80);
        value >>= 7;
    }
    buffer.push(value as u8);
}

/// Bytes that [`varint`] takes for `value`.
#[inline]
pub fn varint_len(value: u64) -> usize {
    (63 - (value | 1).leading_zeros() as usize) / 7 + 1
}

/// Takes a number in base 128 off the front. `None`: it is truncated, or longer than 64 bits.
#[inline]
pub fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    if let Some((&byte, rest)) = bytes.split_first()
        && byte < 0x80
    {
        *bytes = rest;
        return Some(u64::from(byte));
    }
    let mut value = 0u64;
    for (at, &byte) in bytes.iter().take(10).enumerate() {
        if at == 9 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            *bytes = &bytes[at + 1..];
            return Some(value);
        }
    }
    None
}

/// The sign moves into the lowest bit, so that small negative numbers are short.
#[inline]
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// See [`zigzag`].
#[inline]
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        let edges = [
            0,
            1,
            127,
            128,
            16_383,
            16_384,
            u64::from(u32::MAX),
            1 << 63,
            u64::MAX,
        ];
        for value in edges {
            let mut bytes = Vec::new();
            varint(&mut bytes, value);
            assert_eq!(bytes.len(), varint_len(value));
            for end in 0..bytes.len() {
                assert_eq!(read_varint(&mut &bytes[..end]), None, "{value} cut at {end}");
            }
            bytes.push(7);
            let mut rest = &bytes[..];
            assert_eq!(read_varint(&mut rest), Some(value));
            assert_eq!(rest, [7]);
            assert_eq!(zigzag(unzigzag(value)), value);
        }
        assert_eq!(read_varint(&mut &[0xff; 10][..]), None, "more than 64 bits");
        assert_eq!(read_varint(&mut &[0x80; 11][..]), None);
        assert_eq!([0, -1, 1, -2, i64::MIN].map(zigzag), [0, 1, 2, 3, u64::MAX]);
    }

    #[test]
    fn columns_have_the_numbers_of_their_fields() {
        for (at, column) in Column::ALL.into_iter().enumerate() {
            assert_eq!(column as usize, at + 1);
            assert_eq!(Column::of(column as u32), Some(column));
        }
        assert_eq!((Column::of(0), Column::of(27)), (None, None));
    }

    #[test]
    fn the_smallest_type_is_exact() {
        let smallest = |values: &[f64]| ValueType::smallest(values.iter().copied());
        let limit = INTEGER_MAX;
        for (values, expected) in [
            (&[][..], ValueType::Zero),
            (&[0.0, 0.0], ValueType::Zero),
            (&[-0.0], ValueType::Float),
            (&[0.0, -1.0], ValueType::Integer),
            (&[16_777_217.0], ValueType::Integer),
            (&[limit - 1.0, -limit], ValueType::Integer),
            // A power of two is a float, whatever its size.
            (&[limit], ValueType::Float),
            (&[limit + 1.0], ValueType::Double),
            (&[-limit - 1.0], ValueType::Double),
            (&[9_007_199_254_740_992.0], ValueType::Float),
            (&[9_007_199_254_740_991.0], ValueType::Double),
            (&[0.5], ValueType::Float),
            (&[0.1], ValueType::Double),
            (&[0.5, 3.0, 0.0], ValueType::Float),
            (&[0.5, 16_777_217.0], ValueType::Double),
            (&[f64::INFINITY], ValueType::Float),
            (&[f64::NAN], ValueType::Double),
            (&[f64::MIN_POSITIVE], ValueType::Double),
        ] {
            assert_eq!(smallest(values), expected, "{values:?}");
        }
    }
}
