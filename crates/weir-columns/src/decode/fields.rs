//! The outermost layer: which bytes belong to which column, and numbers out of them.

use super::Refusal;
use crate::wire::{COLUMNS, Column, METADATA, METRIC_DATA, read_varint, unzigzag};

/// The columns of a payload, as bytes.
pub(super) struct Fields<'a> {
    whole: &'a [u8],
    columns: [&'a [u8]; COLUMNS],
    pub metadata: &'a [u8],
}

const VARINT: u32 = 0;
const FIXED_64: u32 = 1;
const BYTES: u32 = 2;
const FIXED_32: u32 = 5;

/// Number, wire type and bytes of a field.
type Field<'a> = (u32, u32, &'a [u8]);

/// Fields of one message: each with its number, its wire type and, of texts and messages, its bytes.
pub(super) struct Message<'a> {
    rest: &'a [u8],
    length: usize,
}

impl<'a> Message<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Message {
            rest: bytes,
            length: bytes.len(),
        }
    }

    pub fn next(&mut self) -> Result<Option<Field<'a>>, Refusal> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let at = self.length - self.rest.len();
        let field = self.read().ok_or(Refusal::NoField(at))?;
        Ok(Some(field))
    }

    fn read(&mut self) -> Option<Field<'a>> {
        let key = u32::try_from(read_varint(&mut self.rest)?).ok()?;
        let (field, wire_type) = (key >> 3, key & 7);
        let length = match wire_type {
            VARINT => {
                read_varint(&mut self.rest)?;
                0
            }
            FIXED_64 => 8,
            BYTES => usize::try_from(read_varint(&mut self.rest)?).ok()?,
            FIXED_32 => 4,
            _ => return None,
        };
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        (field > 0).then_some((field, wire_type, bytes))
    }
}

impl<'a> Fields<'a> {
    pub fn of(whole: &'a [u8]) -> Result<Self, Refusal> {
        let mut fields = Fields {
            whole,
            columns: [&[]; COLUMNS],
            metadata: &[],
        };
        let mut seen = 0u32;
        let mut message = Message::new(whole);
        let mut data: &[u8] = &[];
        while let Some((field, wire_type, bytes)) = message.next()? {
            let slot = match field {
                METADATA => &mut fields.metadata,
                METRIC_DATA => &mut data,
                _ => continue,
            };
            if wire_type != BYTES {
                return Err(Refusal::NotPacked(field, wire_type));
            }
            once(&mut seen, field)?;
            *slot = bytes;
        }
        seen = 0;
        let mut message = Message::new(data);
        while let Some((field, wire_type, bytes)) = message.next()? {
            let Some(column) = Column::of(field) else { continue };
            if wire_type != BYTES {
                return Err(Refusal::NotPacked(field, wire_type));
            }
            once(&mut seen, field)?;
            fields.columns[column as usize] = bytes;
        }
        Ok(fields)
    }

    pub fn column(&self, column: Column) -> &'a [u8] {
        self.columns[column as usize]
    }

    /// Where a column begins in the payload.
    pub fn offset(&self, column: Column) -> usize {
        let bytes = self.column(column);
        match bytes {
            [] => 0,
            _ => bytes.as_ptr().addr() - self.whole.as_ptr().addr(),
        }
    }
}

fn once(seen: &mut u32, field: u32) -> Result<(), Refusal> {
    if *seen & 1 << field != 0 {
        return Err(Refusal::Twice(field));
    }
    *seen |= 1 << field;
    Ok(())
}

/// Numbers of a packed column, in order.
pub(super) struct Numbers<'a> {
    rest: &'a [u8],
    name: &'static str,
    /// The last entry, of columns of differences.
    last: i64,
}

impl<'a> Numbers<'a> {
    pub fn new(name: &'static str, bytes: &'a [u8]) -> Self {
        Numbers {
            rest: bytes,
            name,
            last: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Bytes that are left: at least as many as entries.
    pub fn bytes_left(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    pub fn unsigned(&mut self) -> Result<u64, Refusal> {
        read_varint(&mut self.rest).ok_or(Refusal::Short(self.name))
    }

    #[inline]
    pub fn signed(&mut self) -> Result<i64, Refusal> {
        Ok(unzigzag(self.unsigned()?))
    }

    /// The sum of all differences so far. An overflow wraps, and ends up outside of any range.
    #[inline]
    pub fn delta(&mut self) -> Result<i64, Refusal> {
        self.last = self.last.wrapping_add(self.signed()?);
        Ok(self.last)
    }

    /// The next differences count from zero.
    pub fn restart(&mut self) {
        self.last = 0;
    }

    pub fn float(&mut self) -> Result<f64, Refusal> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Refusal::Short(self.name))?;
        self.rest = rest;
        Ok(f64::from(f32::from_le_bytes(*bytes)))
    }

    pub fn double(&mut self) -> Result<f64, Refusal> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Refusal::Short(self.name))?;
        self.rest = rest;
        Ok(f64::from_le_bytes(*bytes))
    }

    /// The error of a column that was not read to its end.
    pub fn ends(&self) -> Result<(), Refusal> {
        match self.rest {
            [] => Ok(()),
            _ => Err(Refusal::Long(self.name)),
        }
    }
}

/// References of all series to a dictionary. A column that is missing altogether refers to nothing.
pub(super) struct References<'a> {
    numbers: Numbers<'a>,
    is_there: bool,
    entry: usize,
    largest: usize,
}

impl<'a> References<'a> {
    pub fn new(name: &'static str, bytes: &'a [u8], largest: usize) -> Self {
        References {
            numbers: Numbers::new(name, bytes),
            is_there: !bytes.is_empty(),
            entry: 0,
            largest,
        }
    }

    #[inline]
    pub fn next(&mut self) -> Result<u32, Refusal> {
        if !self.is_there {
            return Ok(0);
        }
        self.entry += 1;
        let index = self.numbers.delta()?;
        match usize::try_from(index) {
            Ok(at) if at <= self.largest => Ok(at as u32),
            _ => Err(Refusal::OutOfRange {
                column: self.numbers.name,
                entry: self.entry,
                index,
                largest: self.largest,
            }),
        }
    }

    pub fn ends(&self) -> Result<(), Refusal> {
        self.numbers.ends()
    }
}
