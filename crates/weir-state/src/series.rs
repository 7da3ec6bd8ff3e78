use weir_protocol::Kind;

use crate::State;

/// The identity of a series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub name: Box<str>,
    pub kind: Kind,
    /// `None`: the agent's own host. Empty: explicitly no host.
    pub host: Option<Box<str>>,
    /// The integration that the metric came through.
    pub integration: Option<Box<str>>,
    /// Sorted by bytes, without duplicates.
    pub tags: Box<[Box<str>]>,
}

impl Identity {
    /// Sorts the tags and removes duplicates.
    pub fn new<'a>(
        kind: Kind,
        name: &str,
        host: Option<&str>,
        integration: Option<&str>,
        tags: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut tags: Vec<Box<str>> = tags.into_iter().map(Box::from).collect();
        tags.sort_unstable();
        tags.dedup();
        Identity {
            name: name.into(),
            kind,
            host: host.map(Box::from),
            integration: integration.map(Box::from),
            tags: tags.into(),
        }
    }

    /// Bytes that it holds beside itself, about: each text has an allocation of its own.
    pub(crate) fn heap_bytes(&self) -> usize {
        const TEXT_BYTES: usize = 16;
        let texts: usize = self.texts().map(|text| text.len() + TEXT_BYTES).sum();
        texts + self.tags.len() * size_of::<Box<str>>()
    }

    /// All its texts.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        let one = std::iter::once(&self.name);
        let optional = self.host.iter().chain(&self.integration);
        one.chain(optional).chain(&self.tags).map(AsRef::as_ref)
    }
}

/// Facts about a series besides its state. Merging is commutative and associative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Unix seconds of its last sample. Before the start of the bucket: the bucket has none.
    pub seen: i64,
    /// The wanted points of a histogram, one bit each; all bits: all of them.
    pub suffixes: u32,
}

impl Facts {
    pub fn merge(&mut self, other: Facts) {
        self.seen = self.seen.max(other.seen);
        self.suffixes |= other.suffixes;
    }
}

/// One series of a record.
#[derive(Clone, Debug)]
pub struct SeriesRef<'a, T> {
    pub kind: Kind,
    pub name: &'a str,
    /// `None`: the agent's own host. Empty: explicitly no host.
    pub host: Option<&'a str>,
    pub integration: Option<&'a str>,
    /// Sorted by bytes, without duplicates.
    pub tags: T,
    pub facts: Facts,
    pub state: &'a State,
}

impl<'a, T: Iterator<Item = &'a str>> SeriesRef<'a, T> {
    pub fn identity(self) -> Identity {
        Identity::new(self.kind, self.name, self.host, self.integration, self.tags)
    }
}
