//! Writes protobuf messages field by field into a buffer. The messages of metrics are flat and hot: generated types would copy every name
//! and tag again.

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

#[inline]
fn tag(buffer: &mut Vec<u8>, field: u32, wire: u32) {
    varint(buffer, u64::from(field << 3 | wire));
}

/// A length-delimited field: string, bytes, or a message that is already encoded. Written also when empty.
#[inline]
pub fn bytes(buffer: &mut Vec<u8>, field: u32, value: &[u8]) {
    tag(buffer, field, 2);
    varint(buffer, value.len() as u64);
    buffer.extend_from_slice(value);
}

/// A string field; left out when empty, which means the same.
#[inline]
pub fn string(buffer: &mut Vec<u8>, field: u32, value: &str) {
    if !value.is_empty() {
        bytes(buffer, field, value.as_bytes());
    }
}

/// An int32, int64, uint32, uint64, bool or enum field; left out when zero.
#[inline]
pub fn integer(buffer: &mut Vec<u8>, field: u32, value: i64) {
    if value != 0 {
        tag(buffer, field, 0);
        varint(buffer, value as u64);
    }
}

/// An unsigned integer field that is written even when zero, for a member of a oneof.
#[inline]
pub fn present(buffer: &mut Vec<u8>, field: u32, value: u64) {
    tag(buffer, field, 0);
    varint(buffer, value);
}

/// A double field; left out when it is positive zero.
#[inline]
pub fn double(buffer: &mut Vec<u8>, field: u32, value: f64) {
    if value.to_bits() != 0 {
        tag(buffer, field, 1);
        buffer.extend_from_slice(&value.to_le_bytes());
    }
}

/// A double field that is written even when zero, for a member of a oneof or an optional field.
#[inline]
pub fn present_double(buffer: &mut Vec<u8>, field: u32, value: f64) {
    tag(buffer, field, 1);
    buffer.extend_from_slice(&value.to_le_bytes());
}

/// A fixed64 field; left out when zero.
#[inline]
pub fn fixed64(buffer: &mut Vec<u8>, field: u32, value: u64) {
    if value != 0 {
        tag(buffer, field, 1);
        buffer.extend_from_slice(&value.to_le_bytes());
    }
}

/// Zigzag encoding of sint32 and sint64: the sign moves into the lowest bit.
#[inline]
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// A packed repeated field of varints; left out when empty.
pub fn packed(buffer: &mut Vec<u8>, field: u32, values: impl Iterator<Item = u64> + Clone) {
    let length: usize = values.clone().map(varint_len).sum();
    if length > 0 {
        tag(buffer, field, 2);
        varint(buffer, length as u64);
        values.for_each(|value| varint(buffer, value));
    }
}

/// A message field whose body `write` appends. The length is put before it afterwards.
#[inline]
pub fn message(buffer: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    tag(buffer, field, 2);
    let start = buffer.len();
    // Most messages are shorter than 128 bytes; the others move by the bytes that their length takes more.
    buffer.push(0);
    write(buffer);
    let length = buffer.len() - start - 1;
    let extra = varint_len(length as u64) - 1;
    if extra > 0 {
        buffer.resize(buffer.len() + extra, 0);
        buffer.copy_within(start + 1..start + 1 + length, start + 1 + extra);
    }
    let mut value = length as u64;
    for at in 0..=extra {
        buffer[start + at] = value as u8 & 0x7f | if at < extra { 0x80 } else { 0 };
        value >>= 7;
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// A varint, or the bits of a fixed number.
    Integer(u64),
    /// A text, bytes, a message, or packed numbers.
    Bytes(&'a [u8]),
}

/// Shows each field of a message; `None` if it is none, or as soon as `each` returns that.
pub fn for_each_field<'a>(
    mut bytes: &'a [u8],
    mut each: impl FnMut(u32, Content<'a>) -> Option<()>,
) -> Option<()> {
    while !bytes.is_empty() {
        let key = read_varint(&mut bytes)?;
        let length = match key & 7 {
            0 => {
                each((key >> 3) as u32, Content::Integer(read_varint(&mut bytes)?))?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(read_varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (content, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        let content = if key & 7 == 2 {
            Content::Bytes(content)
        } else {
            let mut number = [0; 8];
            number[..length].copy_from_slice(content);
            Content::Integer(u64::from_le_bytes(number))
        };
        each((key >> 3) as u32, content)?;
    }
    Some(())
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Packed varints; the last is `None` if it is truncated.
pub fn unpacked(mut bytes: &[u8]) -> impl Iterator<Item = Option<u64>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let value = read_varint(&mut bytes);
        if value.is_none() {
            bytes = &[];
        }
        Some(value)
    })
}

/// Appends a field as it was read: a varint, or bytes.
pub fn copy(buffer: &mut Vec<u8>, field: u32, content: Content<'_>) {
    match content {
        Content::Integer(value) => present(buffer, field, value),
        Content::Bytes(value) => bytes(buffer, field, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut buffer = Vec::new();
        write(&mut buffer);
        buffer
    }

    #[test]
    fn documented_encodings() {
        assert_eq!(of(|b| integer(b, 1, 150)), [0x08, 0x96, 0x01]);
        assert_eq!(of(|b| string(b, 2, "testing")), b"\x12\x07testing");
        assert_eq!(
            of(|b| packed(b, 6, [3, 270, 86942].into_iter())),
            [0x32, 6, 3, 0x8e, 2, 0x9e, 0xa7, 5]
        );
        assert_eq!(of(|b| double(b, 1, 1.0)), [9, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        let left_out = of(|b| {
            string(b, 1, "");
            integer(b, 1, 0);
            double(b, 1, 0.0);
            packed(b, 1, [].into_iter());
        });
        assert!(left_out.is_empty());
        assert_eq!(of(|b| double(b, 1, -0.0)).len(), 9);
        assert_eq!(of(|b| integer(b, 1, -1)).len(), 11);
        assert_eq!([0, -1, 1, -2, -1338].map(zigzag), [0, 1, 2, 3, 2675]);
    }

    #[test]
    fn fields_are_read_as_they_were_written() {
        let message = of(|b| {
            integer(b, 1, 300);
            string(b, 2, "text");
            fixed64(b, 3, 7);
            b.extend_from_slice(&[5 << 3 | 5, 1, 0, 0, 0]);
        });
        let mut read = Vec::new();
        let whole = for_each_field(&message, |field, content| {
            read.push((field, content));
            Some(())
        });
        assert_eq!(whole, Some(()));
        let expected = [
            (1, Content::Integer(300)),
            (2, Content::Bytes(b"text")),
            (3, Content::Integer(7)),
            (5, Content::Integer(1)),
        ];
        assert_eq!(read, expected);
        // Truncated anywhere, it is invalid or lacks complete fields.
        for end in 0..message.len() {
            let mut n = 0;
            let _ = for_each_field(&message[..end], |_, _| {
                n += 1;
                Some(())
            });
            assert!(n < 4, "{end}");
        }
        assert_eq!(for_each_field(&[0x0f], |_, _| Some(())), None);
        assert_eq!(for_each_field(&[0xff; 20], |_, _| Some(())), None);
    }

    #[test]
    fn lengths_of_any_size() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(of(|b| varint(b, value)).len(), varint_len(value));
        }
        for length in [0, 1, 127, 128, 300, 16_383, 16_384, 3_000_000] {
            let body = vec![7; length];
            let nested = of(|b| message(b, 5, |b| b.extend_from_slice(&body)));
            assert_eq!(nested, of(|b| bytes(b, 5, &body)), "{length}");
        }
    }
}
