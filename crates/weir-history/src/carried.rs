//! A history goes from one process to the next in parts: its series, then its buckets, the oldest first.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::dictionary::{Foreign, KnownSeries};
use crate::segment::Segment;
use crate::store::History;

/// What one process sends and the next adds, in this order.
#[derive(Debug, Serialize, Deserialize)]
pub enum Part<'a> {
    Series(KnownSeries<'a>),
    Buckets(Cow<'a, Segment>),
}

impl History {
    /// All that is held.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let open = (!self.open.is_empty()).then(|| Cow::Owned(self.segment(&self.open)));
        let segments = self.segments.iter().map(Cow::Borrowed).chain(open);
        std::iter::once(Part::Series(self.dictionary.known())).chain(segments.map(Part::Buckets))
    }

    /// Adds what another process held, before any bucket of this one. What does not fit goes, the oldest first. An error says why
    /// the part is not added.
    pub fn adopt(&mut self, part: Part<'_>) -> Result<(), Foreign> {
        match part {
            Part::Series(_) if self.newest().is_some() => Err(Foreign("series come before buckets")),
            Part::Series(known) => self.dictionary.adopt(&known),
            Part::Buckets(_) if !self.open.is_empty() => Err(Foreign("this process has buckets already")),
            Part::Buckets(segment) => self.adopt_segment(segment.into_owned()),
        }
    }

    fn adopt_segment(&mut self, segment: Segment) -> Result<(), Foreign> {
        if !segment.is_sound() {
            return Err(Foreign("a segment is damaged"));
        }
        if self.dictionary.series_len() == 0 {
            // There was no room for the series alone.
            self.evict(&segment);
            return Ok(());
        }
        if segment.ids().any(|id| self.dictionary.series(id).is_none()) {
            return Err(Foreign("a segment has points of unknown series"));
        }
        self.push_segment(segment);
        self.fit();
        Ok(())
    }

    /// There are no more parts. Series that have no points are forgotten.
    pub fn adopted(&mut self) {
        self.dictionary.adopted();
    }
}
