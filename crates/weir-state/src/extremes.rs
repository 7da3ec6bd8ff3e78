use crate::Error;
use crate::wire::{Reader, Writer};

/// The smallest and the largest value. Negative zero is smaller than zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extremes {
    pub min: f64,
    pub max: f64,
}

impl Extremes {
    pub fn of(value: f64) -> Self {
        Extremes {
            min: value,
            max: value,
        }
    }

    #[must_use]
    pub fn with(self, other: Extremes) -> Extremes {
        let lesser = other.min.total_cmp(&self.min).is_lt();
        let greater = other.max.total_cmp(&self.max).is_gt();
        Extremes {
            min: if lesser { other.min } else { self.min },
            max: if greater { other.max } else { self.max },
        }
    }

    pub(crate) fn write(self, writer: &mut Writer) {
        writer.float(self.min);
        writer.float(self.max);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        const WHAT: &str = "a minimum or maximum";
        let (min, max) = (reader.float(WHAT)?, reader.float(WHAT)?);
        match min.total_cmp(&max).is_le() {
            true => Ok(Extremes { min, max }),
            false => Err(Error::NotCanonical(WHAT)),
        }
    }
}

/// Extremes of possibly no values.
pub(crate) fn merge(mine: &mut Option<Extremes>, theirs: Option<Extremes>) {
    *mine = match (*mine, theirs) {
        (Some(mine), Some(theirs)) => Some(mine.with(theirs)),
        (one, other) => one.or(other),
    };
}
