//! Batches into payloads of lines.

use weir_aggregate::{Batch, Series};

use super::line::{LineWriter, Precision, has_line};
use super::{InfluxCompression, InfluxSettings};
use crate::assemble::{Assembler, Frame, PayloadLimits};
use crate::claims::{ClaimResult, Claims, Notes, Renamed, rank};
use crate::delivery::{Class, Counter, Encode, Encoded, Items, Reason};
use crate::settings::Compression;

/// Bytes in one request before compression; InfluxDB takes 25 MB.
const PAYLOAD_BYTES: usize = 4 << 20;
/// The same for many datagrams.
const PAYLOAD_BYTES_UDP: usize = 1 << 20;

pub struct InfluxEncoder {
    writer: LineWriter,
    payload: Assembler,
    line_bytes_max: usize,
    claims: Claims,
    renamed: Renamed,
    notes: Notes,
    line: Vec<u8>,
}

/// The meaning of a payload's route: the disk queue may hold payloads that were made with other settings.
pub fn route(precision: Precision, compression: InfluxCompression) -> u16 {
    precision as u16 * 2 + compression as u16
}

/// `None`: a newer version made it.
pub fn parse_route(route: u16) -> Option<(Precision, InfluxCompression)> {
    let precision = match route / 2 {
        0 => Precision::Nanoseconds,
        1 => Precision::Milliseconds,
        2 => Precision::Seconds,
        _ => return None,
    };
    let compression = match route % 2 {
        0 => InfluxCompression::None,
        _ => InfluxCompression::Gzip,
    };
    Some((precision, compression))
}

impl InfluxEncoder {
    /// `claims_bytes_max` bounds the memory for telling series apart.
    pub fn new(settings: &InfluxSettings, claims_bytes_max: u64, notes: Notes) -> Self {
        let is_udp = settings.is_udp();
        let compression = match settings.compression {
            InfluxCompression::Gzip if !is_udp => InfluxCompression::Gzip,
            _ => InfluxCompression::None,
        };
        let bytes = if is_udp { PAYLOAD_BYTES_UDP } else { PAYLOAD_BYTES };
        let limits = PayloadLimits {
            compressed: bytes,
            uncompressed: bytes,
            count: settings.points_per_payload_max,
        };
        let number = route(settings.form.precision, compression);
        let compression = (compression.codec(), 0);
        Self {
            writer: LineWriter::new(settings.form.clone()),
            payload: Assembler::new(number, Class::Points, limits, Frame::default(), compression),
            line_bytes_max: if is_udp {
                settings.datagram_bytes_max
            } else {
                usize::MAX
            },
            claims: Claims::new(claims_bytes_max),
            renamed: Renamed::default(),
            notes,
            line: Vec::new(),
        }
    }

    fn series(&mut self, series: &Series<'_>, bucket: i64, out: &mut Encoded) {
        if !has_line(series, self.writer.has_parts()) {
            return;
        }
        let rank = rank(series, self.writer.set_series(series));
        match self.claims.claim(self.writer.key().as_bytes(), rank, bucket) {
            ClaimResult::Granted => {}
            ClaimResult::Unchecked => self.renamed.unchecked += 1,
            ClaimResult::Refused => {
                self.writer.distinguish(rank as u32);
                self.renamed.count(series, self.writer.key());
            }
        }
        self.line.clear();
        let written = self.writer.push_line(series, &mut self.line);
        match written {
            Ok(()) if self.line.len() > self.line_bytes_max => {
                out.dropped(Reason::TooLarge, Class::Points, 1)
            }
            Ok(()) => self.payload.add(&self.line, 1, out),
            Err(reason) => out.dropped(reason, Class::Points, 1),
        }
    }
}

impl InfluxCompression {
    pub fn codec(self) -> Compression {
        match self {
            InfluxCompression::Gzip => Compression::Gzip,
            InfluxCompression::None => Compression::None,
        }
    }
}

impl Encode for InfluxEncoder {
    fn counter(&self) -> Counter {
        let has_parts = self.writer.has_parts();
        Box::new(move |batch| {
            let lines = batch.series().filter(|series| has_line(series, has_parts));
            Items::of_batch(batch, lines.count() as u64)
        })
    }

    fn reserved_bytes(&self) -> u64 {
        self.claims.bytes_max()
    }

    fn encode(&mut self, batch: &Batch, out: &mut Encoded) {
        let bucket = batch.bucket.timestamp;
        for series in batch.yielding_series() {
            self.series(&series, bucket, out);
        }
        out.points_only(batch);
        if batch.last {
            self.claims.sweep(bucket);
            self.renamed.note(&self.notes);
        }
    }

    fn finish(&mut self, out: &mut Encoded) {
        self.payload.finish(out);
        self.payload.rest();
    }

    fn open(&self) -> Items {
        self.payload.open()
    }
}
