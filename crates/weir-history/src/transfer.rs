//! Hands a history to the next process in parts: its series, then its buckets, oldest first.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::dictionary::{AdoptError, KnownSeries};
use crate::segment::Segment;
use crate::store::History;

/// The parts, sent and added in this order.
#[derive(Debug, Serialize, Deserialize)]
pub enum Part<'a> {
    Series(KnownSeries<'a>),
    Buckets(Cow<'a, Segment>),
}

impl History {
    /// All parts.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let open = (!self.open.is_empty()).then(|| Cow::Owned(self.segment(&self.open)));
        let segments = self.segments.iter().map(Cow::Borrowed).chain(open);
        std::iter::once(Part::Series(self.dictionary.known())).chain(segments.map(Part::Buckets))
    }

    /// Adds a part from another process, before this process adds a bucket. Removes the oldest data if it does not fit. An error says why
    /// the part was refused.
    pub fn adopt(&mut self, part: Part<'_>) -> Result<(), AdoptError> {
        match part {
            Part::Series(_) if self.newest().is_some() => Err(AdoptError("series come before buckets")),
            Part::Series(known) => self.dictionary.adopt(&known),
            Part::Buckets(_) if !self.open.is_empty() => Err(AdoptError("this process has buckets already")),
            Part::Buckets(segment) => self.adopt_segment(segment.into_owned()),
        }
    }

    fn adopt_segment(&mut self, segment: Segment) -> Result<(), AdoptError> {
        if !segment.is_sound() {
            return Err(AdoptError("a segment is damaged"));
        }
        if self.dictionary.series_len() == 0 {
            // The series alone filled the memory.
            self.evict(&segment);
            return Ok(());
        }
        if segment.ids().any(|id| self.dictionary.series(id).is_none()) {
            return Err(AdoptError("a segment has points of unknown series"));
        }
        self.push_segment(segment);
        self.fit();
        Ok(())
    }

    /// Called after the last part. Removes series without points.
    pub fn adopted(&mut self) {
        self.dictionary.adopted();
    }
}
