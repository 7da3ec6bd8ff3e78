//! Size limit of the next packet.

use crate::profile::PacketSize;
use crate::rng::{Alias, Rng};
use crate::units::Range;

/// Draws before a size below the floor is accepted.
const DRAWS_MAX: usize = 64;

pub(super) struct Sizes {
    size: PacketSize,
    /// Sizes with weights, drawn by index.
    weighted: Option<(Alias, Vec<u64>)>,
    rng: Rng,
    /// No message fits in a smaller packet.
    floor: u64,
}

impl Sizes {
    pub fn new(size: PacketSize, rng: Rng) -> Sizes {
        let weighted = match &size {
            PacketSize::Histogram(weights) => {
                let shares: Vec<f64> = weights.values().copied().collect();
                Some((Alias::new(&shares), weights.keys().copied().collect()))
            }
            _ => None,
        };
        Sizes {
            size,
            weighted,
            rng,
            floor: 0,
        }
    }

    pub fn max(&self) -> u64 {
        self.size.max()
    }

    pub fn exact(&self) -> Option<u64> {
        self.size.exact()
    }

    pub fn between(&mut self, range: Range) -> u64 {
        self.rng.between(range.min, range.max)
    }

    pub fn raise_floor(&mut self, bytes: u64) {
        self.floor += bytes;
    }

    pub fn reset_floor(&mut self) {
        self.floor = 0;
    }

    #[inline]
    pub fn draw(&mut self) -> usize {
        match &self.size {
            PacketSize::Fill(size) | PacketSize::Exactly { exactly: size } => size.0 as usize,
            PacketSize::Between { min, max } => {
                let floor = min.0.max(self.floor).min(max.0);
                self.rng.between(floor, max.0) as usize
            }
            PacketSize::Histogram(_) | PacketSize::OneOf(_) => self.draw_above_floor() as usize,
        }
    }

    fn draw_above_floor(&mut self) -> u64 {
        let mut drawn = 0;
        for _ in 0..DRAWS_MAX {
            drawn = match (&self.weighted, &self.size) {
                (Some((alias, sizes)), _) => sizes[alias.draw(&mut self.rng) as usize],
                (None, PacketSize::OneOf(sizes)) => sizes[self.rng.below(sizes.len() as u64) as usize].0,
                _ => break,
            };
            if drawn >= self.floor {
                break;
            }
        }
        drawn
    }
}
