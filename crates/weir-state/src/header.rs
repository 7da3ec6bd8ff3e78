use crate::Error;
use crate::wire::{Reader, Writer};

/// The version that is written.
pub const VERSION: u8 = 1;

/// The oldest version that is read: the two before the current one, as far as there are any.
pub const OLDEST_VERSION: u8 = if VERSION > 2 { VERSION - 2 } else { 1 };

/// Longest name of a tenant, bytes.
const TENANT_BYTES_MAX: usize = 255;

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
        let tenant = self.tenant.floor_char_boundary(TENANT_BYTES_MAX);
        writer.block(&self.tenant.as_bytes()[..tenant]);
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

    pub(crate) fn read(reader: &mut Reader<'_>, is_open: bool, is_published: bool) -> Result<Self, Error> {
        const WHAT: &str = "the header";
        let narrow = |number: u64| u32::try_from(number).map_err(|_| Error::OutOfRange(WHAT));
        let tenant = std::str::from_utf8(reader.block()?).map_err(|_| Error::NotText)?;
        let header = Header {
            tenant: tenant.to_owned(),
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
        let fits = tenant.len() <= TENANT_BYTES_MAX && header.bucket_width > 0 && header.part < header.parts;
        match fits {
            true => Ok(header),
            false => Err(Error::OutOfRange(WHAT)),
        }
    }
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
