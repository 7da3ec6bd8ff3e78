//! Points as lines of InfluxDB's protocol, for programs that read the topic.

use weir_aggregate::Batch;
use weir_config::{Typed, node};

use super::LINES_BYTES;
use super::producer::ANY_PARTITION;
use crate::delivery::{Class, Counter, Draft, Encode, Encoded, Items, Reason};
use crate::influx::{LineSettings, LineWriter};

/// Batches into lines, cut into payloads of whole lines.
pub(super) struct InfluxLines {
    writer: LineWriter,
    lines: Vec<u8>,
    count: u32,
}

impl InfluxLines {
    /// With the lines of the output `influx` with its default settings. `None`: its defaults cannot be parsed.
    pub fn new() -> Option<Self> {
        let nothing = node::parse("{}").ok().flatten()?;
        let (settings, _) = LineSettings::read(&LineSettings::KIND, &nothing).ok()?;
        Some(InfluxLines {
            writer: LineWriter::new(settings),
            lines: Vec::new(),
            count: 0,
        })
    }

    fn end_payload(&mut self, out: &mut Encoded) {
        if self.count > 0 {
            out.payloads.push(Draft {
                route: ANY_PARTITION,
                class: Class::Points,
                count: std::mem::take(&mut self.count),
                body: std::mem::take(&mut self.lines),
            });
        }
    }
}

impl Encode for InfluxLines {
    fn counter(&self) -> Counter {
        Box::new(|batch| Items::of_batch(batch, batch.len() as u64))
    }

    fn encode(&mut self, batch: &Batch, out: &mut Encoded) {
        for series in batch.yielding_series() {
            let before = self.lines.len();
            match self.writer.push(&series, &mut self.lines) {
                Err(reason) => out.dropped(reason, Class::Points, 1),
                Ok(()) if self.lines.len() == before => out.dropped(Reason::Unsupported, Class::Points, 1),
                Ok(()) => self.count += 1,
            }
            if self.lines.len() >= LINES_BYTES {
                self.end_payload(out);
            }
        }
        out.points_only(batch);
    }

    fn finish(&mut self, out: &mut Encoded) {
        self.end_payload(out);
    }

    fn open(&self) -> Items {
        Items::of(Class::Points, u64::from(self.count))
    }
}
