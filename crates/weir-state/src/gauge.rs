use crate::wire::{Reader, Writer};
use crate::{AgentId, Error, Extremes};

/// The last value of a gauge, and the range of the values that were last at an agent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gauge {
    pub value: f64,
    /// Unix nanoseconds of its receipt.
    pub received: i64,
    /// The receiving agent: decides between equal times.
    pub agent: AgentId,
    pub extremes: Extremes,
}

/// Whose a gauge is: that of the record's agent, whose id is not repeated, or that of another one.
const OWN: u8 = 0;
const FOREIGN: u8 = 1;

impl Gauge {
    pub fn new(value: f64, received: i64, agent: AgentId) -> Self {
        Gauge {
            value,
            received,
            agent,
            extremes: Extremes::of(value),
        }
    }

    pub fn merge(&mut self, other: &Gauge) {
        let extremes = self.extremes.with(other.extremes);
        let order = (other.received, other.agent).cmp(&(self.received, self.agent));
        if order.then_with(|| other.value.total_cmp(&self.value)).is_gt() {
            *self = *other;
        }
        self.extremes = extremes;
    }

    pub(crate) fn write(&self, own: AgentId, writer: &mut Writer) {
        writer.float(self.value);
        writer.signed(self.received);
        match self.agent == own {
            true => writer.byte(OWN),
            false => {
                writer.byte(FOREIGN);
                writer.raw(&self.agent.0);
            }
        }
        self.extremes.write(writer);
    }

    pub(crate) fn read(own: AgentId, reader: &mut Reader<'_>) -> Result<Self, Error> {
        const WHAT: &str = "a gauge";
        let value = reader.float(WHAT)?;
        let received = reader.signed()?;
        let agent = match reader.byte()? {
            OWN => own,
            FOREIGN => AgentId(reader.array()?),
            _ => return Err(Error::NotCanonical(WHAT)),
        };
        let gauge = Gauge {
            value,
            received,
            agent,
            extremes: Extremes::read(reader)?,
        };
        match gauge.extremes.with(Extremes::of(value)) == gauge.extremes {
            true => Ok(gauge),
            false => Err(Error::NotCanonical(WHAT)),
        }
    }
}
