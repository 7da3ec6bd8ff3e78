use crate::Error;
use crate::wire::{Reader, Writer};

/// The newest version. Each record is written in the oldest one that can hold it.
pub const VERSION: u8 = 2;

/// The first version with the name of a host.
const NAMED: u8 = 2;

/// The oldest version that is read: the two before the current one, as far as there are any.
pub const OLDEST_VERSION: u8 = if VERSION > 2 { VERSION - 2 } else { 1 };

/// Longest name of a tenant or host, bytes.
const NAME_BYTES_MAX: usize = 255;

/// Id of the agent that wrote a record. Drawn at random once, and kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub [u8; 16]);

impl std::fmt::Display for AgentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The fields of a record for a fleet, besides its series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Publication {
    /// Series states in all earlier records of the same agent, epoch and partition. Shows how many are missing.
    pub states_before: u64,
    /// The number of partitions that its series were divided among.
    pub partitions: u32,
    /// The agent ends with it.
    pub is_last: bool,
}

/// The subject of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// At most 255 bytes.
    pub tenant: String,
    /// The agent's host, for people; empty: unknown. At most 255 bytes.
    pub host: String,
    pub agent: AgentId,
    /// Grows with every start of the agent.
    pub epoch: u64,
    /// Unix seconds.
    pub bucket_start: i64,
    /// Seconds, at least one.
    pub bucket_width: u32,
    /// Number of the record among those of its agent and epoch, without gaps.
    pub sequence: u64,
    /// Number of the part, of `parts`.
    pub part: u32,
    pub parts: u32,
    /// The bucket had not ended.
    pub is_open: bool,
    /// `None`: one process wrote it for the next.
    pub publication: Option<Publication>,
}

impl Header {
    /// The version of a record with this header.
    pub(crate) fn version(&self) -> u8 {
        if self.host.is_empty() { NAMED - 1 } else { NAMED }
    }

    /// The header of a later part of the same bucket, `states` after this one.
    pub(crate) fn of_part(&self, part: u32, parts: u32, states: u64) -> Self {
        Header {
            sequence: self.sequence.wrapping_add(u64::from(part)),
            part,
            parts,
            publication: self.publication.map(|publication| Publication {
                states_before: publication.states_before.wrapping_add(states),
                is_last: publication.is_last && part + 1 == parts,
                ..publication
            }),
            ..self.clone()
        }
    }

    /// Writes the part after version, flags and checksum.
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.block(limited(&self.tenant));
        if self.version() >= NAMED {
            writer.block(limited(&self.host));
        }
        writer.raw(&self.agent.0);
        writer.number(self.epoch);
        writer.signed(self.bucket_start);
        writer.number(u64::from(self.bucket_width));
        writer.number(self.sequence);
        writer.number(u64::from(self.part));
        writer.number(u64::from(self.parts));
        if let Some(publication) = self.publication {
            writer.number(publication.states_before);
            writer.number(u64::from(publication.partitions));
            writer.byte(u8::from(publication.is_last));
        }
    }

    pub(crate) fn read(
        version: u8,
        reader: &mut Reader<'_>,
        is_open: bool,
        is_published: bool,
    ) -> Result<Self, Error> {
        const WHAT: &str = "the header";
        let narrow = |number: u64| u32::try_from(number).map_err(|_| Error::OutOfRange(WHAT));
        let header = Header {
            tenant: name(reader)?,
            host: match version {
                NAMED.. => name(reader)?,
                _ => String::new(),
            },
            agent: AgentId(reader.array()?),
            epoch: reader.number()?,
            bucket_start: reader.signed()?,
            bucket_width: narrow(reader.number()?)?,
            sequence: reader.number()?,
            part: narrow(reader.number()?)?,
            parts: narrow(reader.number()?)?,
            is_open,
            publication: is_published.then(|| Publication::read(reader)).transpose()?,
        };
        let fits = header.bucket_width > 0 && header.part < header.parts;
        match fits {
            true if header.version() == version => Ok(header),
            true => Err(Error::NotCanonical(WHAT)),
            false => Err(Error::OutOfRange(WHAT)),
        }
    }
}

fn limited(name: &str) -> &[u8] {
    &name.as_bytes()[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

fn name(reader: &mut Reader<'_>) -> Result<String, Error> {
    let name = reader.block()?;
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::OutOfRange("the header"));
    }
    let name = std::str::from_utf8(name).map_err(|_| Error::NotText)?;
    Ok(name.to_owned())
}

impl Publication {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        const WHAT: &str = "the publication";
        Ok(Publication {
            states_before: reader.number()?,
            partitions: u32::try_from(reader.number()?).map_err(|_| Error::OutOfRange(WHAT))?,
            is_last: match reader.byte()? {
                0 => false,
                1 => true,
                _ => return Err(Error::NotCanonical(WHAT)),
            },
        })
    }
}
