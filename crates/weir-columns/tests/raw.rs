//! Columns written by hand, so that tests can break them.

use weir_columns::wire::{COLUMNS, Column, METRIC_DATA, varint, zigzag};

/// Columns of a payload.
#[derive(Clone, Default)]
pub struct Raw {
    pub columns: [Vec<u8>; COLUMNS],
    /// Last entry of columns of differences.
    last: [i64; COLUMNS],
    pub metadata: Vec<u8>,
}

impl Raw {
    pub fn text(&mut self, column: Column, text: &[u8]) -> &mut Self {
        let bytes = &mut self.columns[column as usize];
        varint(bytes, text.len() as u64);
        bytes.extend_from_slice(text);
        self
    }

    pub fn unsigned(&mut self, column: Column, value: u64) -> &mut Self {
        varint(&mut self.columns[column as usize], value);
        self
    }

    pub fn signed(&mut self, column: Column, value: i64) -> &mut Self {
        self.unsigned(column, zigzag(value))
    }

    /// As the difference to the last one.
    pub fn delta(&mut self, column: Column, value: i64) -> &mut Self {
        let before = std::mem::replace(&mut self.last[column as usize], value);
        self.signed(column, value.wrapping_sub(before))
    }

    /// A group of differences.
    pub fn group(&mut self, column: Column, values: &[i64]) -> &mut Self {
        let mut before = 0;
        for &value in values {
            self.signed(column, value.wrapping_sub(before));
            before = value;
        }
        self
    }

    pub fn tag_set(&mut self, entries: &[i64]) -> &mut Self {
        self.signed(Column::TagSets, entries.len() as i64);
        self.group(Column::TagSets, entries)
    }

    /// A series with its references, without points.
    pub fn series(&mut self, kind: u64, name: i64, tags: i64, interval: u64, points: u64) -> &mut Self {
        self.unsigned(Column::Types, kind)
            .delta(Column::NameRefs, name)
            .delta(Column::TagSetRefs, tags)
            .unsigned(Column::Intervals, interval)
            .unsigned(Column::PointCounts, points)
    }

    pub fn at(&mut self, timestamp: i64) -> &mut Self {
        self.delta(Column::Timestamps, timestamp)
    }

    pub fn double(&mut self, value: f64) -> &mut Self {
        self.columns[Column::Doubles as usize].extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn float(&mut self, value: f32) -> &mut Self {
        self.columns[Column::Floats as usize].extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Bins of a point.
    pub fn bins(&mut self, bins: &[(i64, u64)]) -> &mut Self {
        self.unsigned(Column::BinCounts, bins.len() as u64);
        let keys: Vec<i64> = bins.iter().map(|bin| bin.0).collect();
        self.group(Column::BinKeys, &keys);
        for &(_, samples) in bins {
            self.unsigned(Column::BinSamples, samples);
        }
        self
    }

    pub fn resource_list(&mut self, pairs: &[(i64, i64)]) -> &mut Self {
        self.unsigned(Column::ResourceLengths, pairs.len() as u64);
        let (types, names): (Vec<i64>, Vec<i64>) = pairs.iter().copied().unzip();
        self.group(Column::ResourceTypes, &types)
            .group(Column::ResourceNames, &names)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut data = Vec::new();
        for column in Column::ALL {
            let bytes = &self.columns[column as usize];
            if !bytes.is_empty() {
                field(&mut data, column as u32, bytes);
            }
        }
        let mut payload = Vec::new();
        if !self.metadata.is_empty() {
            field(&mut payload, 2, &self.metadata);
        }
        field(&mut payload, METRIC_DATA, &data);
        payload
    }
}

/// A field of bytes.
pub fn field(to: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    varint(to, u64::from(number << 3 | 2));
    varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}
