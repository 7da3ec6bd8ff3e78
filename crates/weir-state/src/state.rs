use weir_protocol::Kind;

use crate::wire::{Reader, Writer};
use crate::{AgentId, Distribution, Error, ExactSum, Gauge, Members, Samples};

/// Sizes at which exact state becomes a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Members of a set.
    pub members: usize,
    /// Bytes of the members of a set.
    pub member_bytes: usize,
    /// Samples of a histogram or timing.
    pub samples: u64,
}

impl Bounds {
    /// Nothing becomes a summary that is none.
    pub const NONE: Bounds = Bounds {
        members: usize::MAX,
        member_bytes: usize::MAX,
        samples: u64::MAX,
    };
}

impl Default for Bounds {
    /// The limits of an agent, and a megabyte of members.
    fn default() -> Self {
        Bounds {
            members: 4096,
            member_bytes: 1 << 20,
            samples: 4096,
        }
    }
}

/// The aggregated samples of a series. Merging is commutative and associative.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// The sum, with sample rates applied.
    Counter(ExactSum),
    Gauge(Gauge),
    Set(Members),
    /// Histograms and timings.
    Samples(Samples),
    /// In a box: most series are counters, and all take the room of the largest.
    Distribution(Box<Distribution>),
}

impl From<Distribution> for State {
    fn from(distribution: Distribution) -> Self {
        State::Distribution(Box::new(distribution))
    }
}

impl State {
    /// Whether this is the state of such a metric.
    pub fn is_of(&self, kind: Kind) -> bool {
        match self {
            State::Counter(_) => kind == Kind::Counter,
            State::Gauge(_) => kind == Kind::Gauge,
            State::Set(_) => kind == Kind::Set,
            State::Samples(_) => matches!(kind, Kind::Histogram | Kind::Timing),
            State::Distribution(_) => kind == Kind::Distribution,
        }
    }

    /// Adds another state of the same kind; one of another kind is refused.
    #[must_use]
    pub fn merge(&mut self, other: &State, bounds: &Bounds) -> bool {
        match (self, other) {
            (State::Counter(mine), State::Counter(theirs)) => mine.merge(theirs),
            (State::Gauge(mine), State::Gauge(theirs)) => mine.merge(theirs),
            (State::Set(mine), State::Set(theirs)) => mine.merge(theirs, bounds),
            (State::Samples(mine), State::Samples(theirs)) => mine.merge(theirs, bounds),
            (State::Distribution(mine), State::Distribution(theirs)) => mine.merge(theirs),
            _ => return false,
        }
        true
    }

    /// Bytes that it holds beside itself, about.
    pub fn heap_bytes(&self) -> usize {
        match self {
            State::Counter(sum) => sum.heap_bytes(),
            State::Gauge(_) => 0,
            State::Set(members) => members.heap_bytes(),
            State::Samples(samples) => samples.heap_bytes(),
            State::Distribution(distribution) => size_of::<Distribution>() + distribution.heap_bytes(),
        }
    }

    /// A set or samples above the bounds become a summary.
    pub fn keep_within(&mut self, bounds: &Bounds) {
        match self {
            State::Set(members) => members.keep_within(bounds),
            State::Samples(samples) => samples.keep_within(bounds),
            State::Counter(_) | State::Gauge(_) | State::Distribution(_) => {}
        }
    }

    pub(crate) fn write(&self, own: AgentId, writer: &mut Writer) {
        match self {
            State::Counter(sum) => sum.write(writer),
            State::Gauge(gauge) => gauge.write(own, writer),
            State::Set(members) => members.write(writer),
            State::Samples(samples) => samples.write(writer),
            State::Distribution(distribution) => distribution.write(writer),
        }
    }

    pub(crate) fn read(kind: Kind, own: AgentId, reader: &mut Reader<'_>) -> Result<Self, Error> {
        match kind {
            Kind::Counter => ExactSum::read(reader).map(State::Counter),
            Kind::Gauge => Gauge::read(own, reader).map(State::Gauge),
            Kind::Set => Members::read(reader).map(State::Set),
            Kind::Histogram | Kind::Timing => Samples::read(reader).map(State::Samples),
            Kind::Distribution => Distribution::read(reader).map(State::from),
        }
    }
}
