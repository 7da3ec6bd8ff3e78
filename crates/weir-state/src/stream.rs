//! A stream of series: for two processes of one agent, of which the second continues at once. There is no order,
//! no text is shared, and a series may come again, whose last state counts.

use weir_protocol::Kind;

use crate::wire::{Reader, Writer};
use crate::{AgentId, Error, Facts, Identity, State};

/// Approximate bytes of a series with a name and some tags.
pub const SERIES_BYTES: usize = 96;

const HAS_NAME: u8 = 1;
const HAS_HOST: u8 = 2;
const HAS_INTEGRATION: u8 = 4;

/// The name of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesName<'a> {
    pub name: &'a str,
    pub host: Option<&'a str>,
    pub integration: Option<&'a str>,
    /// In any order when written; sorted by bytes, without duplicates, when read.
    pub tags: Vec<&'a str>,
}

impl SeriesName<'_> {
    pub fn identity(&self, kind: Kind) -> Identity {
        Identity::new(
            kind,
            self.name,
            self.host,
            self.integration,
            self.tags.iter().copied(),
        )
    }
}

impl<'a> From<&'a Identity> for SeriesName<'a> {
    fn from(identity: &'a Identity) -> Self {
        SeriesName {
            name: &identity.name,
            host: identity.host.as_deref(),
            integration: identity.integration.as_deref(),
            tags: identity.tags.iter().map(AsRef::as_ref).collect(),
        }
    }
}

/// One series, or its next state.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry<'a> {
    /// The number of the series among those of the same kind.
    pub number: u32,
    pub kind: Kind,
    /// `None`: it came before.
    pub named: Option<SeriesName<'a>>,
    pub facts: Facts,
    pub state: State,
}

/// Writes series.
#[derive(Debug)]
pub struct StreamWriter {
    agent: AgentId,
    writer: Writer,
}

impl StreamWriter {
    pub fn new(agent: AgentId) -> Self {
        StreamWriter {
            agent,
            writer: Writer::default(),
        }
    }

    pub fn add(&mut self, entry: &Entry<'_>) {
        let writer = &mut self.writer;
        writer.byte(entry.kind as u8);
        writer.number(u64::from(entry.number));
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        match &entry.named {
            None => writer.byte(0),
            Some(named) => {
                writer.byte(
                    HAS_NAME
                        | flag(named.host.is_some(), HAS_HOST)
                        | flag(named.integration.is_some(), HAS_INTEGRATION),
                );
                writer.block(named.name.as_bytes());
                for text in named.host.iter().chain(&named.integration) {
                    writer.block(text.as_bytes());
                }
                writer.number(named.tags.len() as u64);
                named.tags.iter().for_each(|tag| writer.block(tag.as_bytes()));
            }
        }
        writer.signed(entry.facts.seen);
        writer.number(u64::from(entry.facts.suffixes));
        entry.state.write(self.agent, writer);
    }

    pub fn written(&self) -> &[u8] {
        &self.writer.bytes
    }

    /// The next write starts over.
    pub fn clear(&mut self) {
        self.writer.bytes.clear();
    }

    pub fn finish(self) -> Vec<u8> {
        self.writer.bytes
    }
}

/// Reads a written stream. Any bytes give entries or an error, in memory bounded by their number.
#[derive(Clone, Copy, Debug)]
pub struct StreamReader<'a> {
    agent: AgentId,
    reader: Reader<'a>,
}

impl<'a> StreamReader<'a> {
    pub fn new(agent: AgentId, bytes: &'a [u8]) -> Self {
        StreamReader {
            agent,
            reader: Reader::new(bytes),
        }
    }

    /// The next one; `None` at the end.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'a>>, Error> {
        if self.reader.left() == 0 {
            return Ok(None);
        }
        let reader = &mut self.reader;
        let found = reader.byte()?;
        let kind = *Kind::ALL.get(usize::from(found)).ok_or(Error::Kind { found })?;
        let number = u32::try_from(reader.number()?).map_err(|_| Error::OutOfRange("a series"))?;
        let named = read_named(reader)?;
        let facts = Facts {
            seen: reader.signed()?,
            suffixes: u32::try_from(reader.number()?).map_err(|_| Error::OutOfRange("a series"))?,
        };
        let state = State::read(kind, self.agent, reader)?;
        Ok(Some(Entry {
            number,
            kind,
            named,
            facts,
            state,
        }))
    }
}

fn read_named<'a>(reader: &mut Reader<'a>) -> Result<Option<SeriesName<'a>>, Error> {
    let form = reader.byte()?;
    if form == 0 {
        return Ok(None);
    }
    if form & HAS_NAME == 0 || form & !(HAS_NAME | HAS_HOST | HAS_INTEGRATION) != 0 {
        return Err(Error::NotCanonical("a series"));
    }
    let name = text(reader)?;
    let mut optional = |flag: u8| (form & flag != 0).then(|| text(reader)).transpose();
    let (host, integration) = (optional(HAS_HOST)?, optional(HAS_INTEGRATION)?);
    let count = reader.count(1)?;
    let mut tags = (0..count).map(|_| text(reader)).collect::<Result<Vec<_>, _>>()?;
    tags.sort_unstable();
    tags.dedup();
    Ok(Some(SeriesName {
        name,
        host,
        integration,
        tags,
    }))
}

fn text<'a>(reader: &mut Reader<'a>) -> Result<&'a str, Error> {
    std::str::from_utf8(reader.block()?).map_err(|_| Error::NotText)
}
