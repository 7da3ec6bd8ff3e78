//! Numbers and bytes of a record. Each value has one encoding, and reading accepts no other.

use crate::Error;

/// Appends to a record.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub bytes: Vec<u8>,
}

impl Writer {
    pub fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Seven bits a byte, lowest first.
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    pub fn wide(&mut self, mut number: u128) {
        if let Ok(number) = u64::try_from(number) {
            return self.number(number);
        }
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// Small numbers of either sign are short.
    pub fn signed(&mut self, number: i64) {
        self.number(((number << 1) ^ (number >> 63)) as u64);
    }

    pub fn float(&mut self, value: f64) {
        self.raw(&value.to_le_bytes());
    }

    /// Bytes with their length before them.
    pub fn block(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }
}

/// Takes a record apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    pub fn left(&self) -> usize {
        self.rest.len()
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn byte(&mut self) -> Result<u8, Error> {
        let (&byte, rest) = self.rest.split_first().ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(byte)
    }

    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// Most of them are small, and there are many.
    pub fn number(&mut self) -> Result<u64, Error> {
        match *self.rest {
            [first, ref rest @ ..] if first < 0x80 => {
                self.rest = rest;
                Ok(u64::from(first))
            }
            [first, second, ref rest @ ..] if second < 0x80 && second > 0 => {
                self.rest = rest;
                Ok(u64::from(first & 0x7f) | u64::from(second) << 7)
            }
            _ => {
                let number = self.wide()?;
                u64::try_from(number).map_err(|_| Error::OutOfRange("a number"))
            }
        }
    }

    pub fn wide(&mut self) -> Result<u128, Error> {
        let mut number = 0u128;
        for shift in (0..128).step_by(7) {
            let byte = self.byte()?;
            let bits = u128::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                return Err(Error::OutOfRange("a number"));
            }
            number |= bits << shift;
            if byte < 0x80 {
                return match byte == 0 && shift > 0 {
                    true => Err(Error::NotCanonical("a number")),
                    false => Ok(number),
                };
            }
        }
        Err(Error::OutOfRange("a number"))
    }

    pub fn signed(&mut self) -> Result<i64, Error> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// A number that is finite.
    pub fn float(&mut self, what: &'static str) -> Result<f64, Error> {
        let value = f64::from_le_bytes(self.array()?);
        match value.is_finite() {
            true => Ok(value),
            false => Err(Error::OutOfRange(what)),
        }
    }

    pub fn block(&mut self) -> Result<&'a [u8], Error> {
        let len = self.number()?;
        self.raw(usize::try_from(len).map_err(|_| Error::Truncated)?)
    }

    /// Number of items that follow, each of which takes at least `least` bytes: memory for them may be set aside.
    pub fn count(&mut self, least: usize) -> Result<usize, Error> {
        let count = self.number()?;
        match usize::try_from(count) {
            Ok(count) if count <= self.left() / least => Ok(count),
            _ => Err(Error::Truncated),
        }
    }

    pub fn end(&self) -> Result<(), Error> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(Error::Trailing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(write: impl Fn(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::default();
        write(&mut writer);
        writer.bytes
    }

    proptest! {
        #[test]
        fn numbers_survive(number in any::<u64>(), wide in any::<u128>(), signed in any::<i64>(), shift in 0u32..128) {
            let (number, wide) = (number >> (shift % 64), wide >> shift);
            let bytes = written(|writer| {
                writer.number(number);
                writer.wide(wide);
                writer.signed(signed);
            });
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.number(), Ok(number));
            prop_assert_eq!(reader.wide(), Ok(wide));
            prop_assert_eq!(reader.signed(), Ok(signed));
            prop_assert_eq!(reader.end(), Ok(()));
        }
    }

    #[test]
    fn a_number_has_one_encoding() {
        let check = |bytes: &[u8], expected| assert_eq!(Reader::new(bytes).wide(), expected, "{bytes:?}");
        check(&[0], Ok(0));
        check(&[0x80, 0], Err(Error::NotCanonical("a number")));
        check(&[0x80], Err(Error::Truncated));
        check(&[], Err(Error::Truncated));
        let most = [vec![0xff; 18], vec![3]].concat();
        check(&most, Ok(u128::MAX));
        check(
            &[vec![0xff; 18], vec![4]].concat(),
            Err(Error::OutOfRange("a number")),
        );
        check(&[0xff; 19], Err(Error::OutOfRange("a number")));
    }

    #[test]
    fn a_count_beyond_the_bytes_sets_no_memory_aside() {
        let bytes = written(|writer| writer.number(1 << 40));
        assert_eq!(Reader::new(&bytes).count(1), Err(Error::Truncated));
        assert_eq!(Reader::new(&[2, 0, 0, 0]).count(2), Err(Error::Truncated));
        assert_eq!(Reader::new(&[1, 0, 0, 0]).count(2), Ok(1));
    }
}
