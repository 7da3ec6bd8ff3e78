use weir_sketch::{Bin, Sketch};

use crate::extremes::{self, Extremes};
use crate::wire::{Reader, Writer};
use crate::{Bins, Error, ExactSum};

/// The sketch of a distribution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    pub bins: Bins,
    pub extremes: Option<Extremes>,
    pub sum: ExactSum,
    /// Weight of sampled samples that is in no bin yet: bins count whole samples.
    pub rest: ExactSum,
}

impl Distribution {
    pub fn new(sketch: &Sketch, rest: f64) -> Self {
        Distribution {
            bins: Bins::of(&sketch.bins(), 0),
            extremes: (!sketch.is_empty()).then(|| Extremes {
                min: sketch.min(),
                max: sketch.max(),
            }),
            sum: ExactSum::from(sketch.sum()),
            rest: ExactSum::from(rest),
        }
    }

    /// As a sketch of this process. A sum that is no number cannot be in one, and counts as none.
    pub fn sketch(&self) -> Sketch {
        let Some(Extremes { min, max }) = self.extremes else {
            return Sketch::new();
        };
        let bins = split(&self.bins);
        let count = bins.iter().map(|bin| u64::from(bin.n)).sum();
        let sum = self.sum.to_f64();
        let sum = if sum.is_nan() { 0.0 } else { sum };
        Sketch::from_parts(count, sum, min, max, bins).unwrap_or_default()
    }

    pub fn merge(&mut self, other: &Distribution) {
        self.bins.merge(&other.bins);
        extremes::merge(&mut self.extremes, other.extremes);
        self.sum.merge(&other.sum);
        self.rest.merge(&other.rest);
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.bins.heap_bytes() + self.sum.heap_bytes() + self.rest.heap_bytes()
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        self.bins.write(writer);
        if let Some(extremes) = self.extremes {
            extremes.write(writer);
        }
        self.sum.write(writer);
        self.rest.write(writer);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let bins = Bins::read(reader)?;
        let extremes = match bins.is_empty() {
            true => None,
            false => Some(Extremes::read(reader)?),
        };
        Ok(Distribution {
            bins,
            extremes,
            sum: ExactSum::read(reader)?,
            rest: ExactSum::read(reader)?,
        })
    }
}

/// Entries that one key may take in a sketch of this process, whose counts have 32 bits.
const ENTRIES_OF_KEY: u128 = 64;

/// As a sketch holds them: counts beyond 32 bits as several bins, the rest first.
pub(crate) fn split(bins: &Bins) -> Vec<Bin> {
    const FULL: u128 = u32::MAX as u128;
    let mut split = Vec::with_capacity(bins.iter().len());
    for (k, count) in bins.iter() {
        let count = count.min(FULL * ENTRIES_OF_KEY);
        let rest = (count % FULL) as u32;
        if rest > 0 {
            split.push(Bin { k, n: rest });
        }
        split.extend(std::iter::repeat_n(
            Bin { k, n: u32::MAX },
            (count / FULL) as usize,
        ));
    }
    split
}
