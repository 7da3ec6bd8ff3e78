//! Builds request bodies of remote write 1.0 (`prometheus.WriteRequest`) and 2.0 (`io.prometheus.write.v2.Request`) series by series.

use hashbrown::HashTable;
use weir_context::HashSecret;

use super::encode::Type;
use super::settings::RemoteWriteVersion;
use crate::delivery::{Class, Draft, Encoded, Items};
use crate::prometheus::Native;
use crate::protobuf::{self, Content, for_each_field};

/// Bytes before compression at which a request ends. Receivers take tens of megabytes; smaller ones are quicker to repeat.
const BYTES_MAX: usize = 4 << 20;

/// Prometheus's marker for the end of a series: a special NaN, which no computation yields.
pub const STALE: f64 = f64::from_bits(0x7ff0_0000_0000_0002);

/// Any other NaN is written as this one.
const NAN: f64 = f64::from_bits(0x7ff8_0000_0000_0001);

/// The value of one sample.
#[derive(Clone, Copy, Debug)]
pub enum Sample<'a> {
    Number(f64),
    Histogram(&'a Native),
    /// The end of a native histogram's series.
    StaleHistogram,
}

/// Milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub at: i64,
    /// When a cumulative value began; zero for others.
    pub start: i64,
}

/// A metric's description.
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    pub kind: Type,
    /// As receivers look it up: with the suffix of a counter, without that of a summary's parts.
    pub name: &'a str,
    pub help: &'a str,
}

/// A request under construction.
pub struct Request {
    version: RemoteWriteVersion,
    samples_max: u32,
    series: Vec<u8>,
    samples: u32,
    points: u32,
    symbols: Symbols,
    refs: Vec<u8>,
    compressor: snap::raw::Encoder,
}

impl Request {
    pub fn new(version: RemoteWriteVersion, samples_max: u32) -> Self {
        Request {
            version,
            samples_max,
            series: Vec::new(),
            samples: 0,
            points: 0,
            symbols: Symbols::default(),
            refs: Vec::new(),
            compressor: snap::raw::Encoder::new(),
        }
    }

    pub fn open(&self) -> Items {
        Items::of(Class::Points, u64::from(self.points))
    }

    /// Counts the points of the samples written since the last call, and ends the request when it is full. The samples of one point are
    /// never separated.
    pub fn counts_as(&mut self, points: u32, out: &mut Encoded) {
        self.points += points;
        if self.samples >= self.samples_max || self.series.len() + self.symbols.bytes.len() >= BYTES_MAX {
            self.finish(out);
        }
    }

    /// Version 1.0 has a metric's description beside the series.
    pub fn metadata(&mut self, metadata: &Metadata<'_>) {
        if self.version == RemoteWriteVersion::V1 {
            protobuf::message(&mut self.series, 3, |out| {
                protobuf::integer(out, 1, metadata.kind as i64);
                protobuf::string(out, 2, metadata.name);
                protobuf::string(out, 4, metadata.help);
            });
        }
    }

    /// Adds one sample of one series. `labels` calls its argument with each name and value, in the order of the names.
    pub fn add(
        &mut self,
        labels: impl FnOnce(&mut dyn FnMut(&str, &str)),
        sample: Sample<'_>,
        times: Times,
        metadata: &Metadata<'_>,
    ) {
        self.samples += 1;
        match self.version {
            RemoteWriteVersion::V1 => protobuf::message(&mut self.series, 1, |out| {
                labels(&mut |name, value| {
                    protobuf::message(out, 1, |out| {
                        protobuf::string(out, 1, name);
                        protobuf::string(out, 2, value);
                    });
                });
                match sample {
                    Sample::Number(value) => protobuf::message(out, 2, |out| number(out, value, times.at)),
                    _ => protobuf::message(out, 4, |out| histogram(out, sample, times.at)),
                }
            }),
            RemoteWriteVersion::V2 => {
                let (symbols, refs) = (&mut self.symbols, &mut self.refs);
                refs.clear();
                labels(&mut |name, value| {
                    protobuf::varint(refs, u64::from(symbols.of(name)));
                    protobuf::varint(refs, u64::from(symbols.of(value)));
                });
                let help = symbols.of(metadata.help);
                protobuf::message(&mut self.series, 5, |out| {
                    protobuf::bytes(out, 1, refs);
                    match sample {
                        Sample::Number(value) => protobuf::message(out, 2, |out| {
                            number(out, value, times.at);
                            protobuf::integer(out, 3, times.start);
                        }),
                        _ => protobuf::message(out, 3, |out| {
                            histogram(out, sample, times.at);
                            protobuf::integer(out, 17, times.start);
                        }),
                    }
                    protobuf::message(out, 5, |out| {
                        protobuf::integer(out, 1, metadata.kind as i64);
                        protobuf::integer(out, 3, i64::from(help));
                    });
                    // The field of the start time in drafts of the specification; newer receivers ignore it.
                    protobuf::integer(out, 6, times.start);
                });
            }
        }
    }

    /// Ends the request, if anything is in it.
    pub fn finish(&mut self, out: &mut Encoded) {
        if self.samples == 0 {
            return;
        }
        // Symbols first: some receivers read a request in one pass.
        let raw = match self.version {
            RemoteWriteVersion::V1 => &self.series,
            RemoteWriteVersion::V2 => {
                self.symbols.bytes.append(&mut self.series);
                &self.symbols.bytes
            }
        };
        let mut body = vec![0; snap::raw::max_compress_len(raw.len())];
        let length = self
            .compressor
            .compress(raw, &mut body)
            .expect("the buffer has the size that the encoder asks for");
        body.truncate(length);
        // Bodies may wait for hours; the slack should not.
        body.shrink_to_fit();
        out.payloads.push(Draft {
            route: self.version as u16,
            class: Class::Points,
            count: self.points,
            body,
        });
        self.series.clear();
        self.symbols.clear();
        (self.samples, self.points) = (0, 0);
    }

    /// Gives memory back until the next flush.
    pub fn rest(&mut self) {
        if self.samples == 0 {
            self.series = Vec::new();
            self.symbols = Symbols::default();
        }
    }
}

fn number(out: &mut Vec<u8>, value: f64, at: i64) {
    let value = if value.is_nan() && value.to_bits() != STALE.to_bits() {
        NAN
    } else {
        value
    };
    protobuf::double(out, 1, value);
    protobuf::integer(out, 2, at);
}

fn histogram(out: &mut Vec<u8>, sample: Sample<'_>, at: i64) {
    match sample {
        Sample::Histogram(native) => native.write_remote(out),
        _ => {
            protobuf::present(out, 1, 0);
            protobuf::double(out, 3, STALE);
        }
    }
    protobuf::integer(out, 15, at);
}

/// The texts of a 2.0 request, each once, as the protobuf fields they become.
struct Symbols {
    secret: HashSecret,
    bytes: Vec<u8>,
    /// Position of each text in `bytes`.
    spans: Vec<(u32, u32)>,
    index: HashTable<u32>,
}

impl Default for Symbols {
    fn default() -> Self {
        let mut symbols = Symbols {
            secret: HashSecret::random(),
            bytes: Vec::new(),
            spans: Vec::new(),
            index: HashTable::new(),
        };
        symbols.clear();
        symbols
    }
}

impl Symbols {
    /// Leaves what every table begins with: the empty text, number zero.
    fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
        self.index.clear();
        protobuf::bytes(&mut self.bytes, 4, b"");
        self.spans.push((2, 0));
    }

    fn of(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let hash = self.secret.bytes(text.as_bytes());
        let at = |number: u32| {
            let (start, length) = self.spans[number as usize];
            &self.bytes[start as usize..(start + length) as usize]
        };
        if let Some(&number) = self.index.find(hash, |&number| at(number) == text.as_bytes()) {
            return number;
        }
        let number = self.spans.len() as u32;
        protobuf::bytes(&mut self.bytes, 4, text.as_bytes());
        self.spans
            .push(((self.bytes.len() - text.len()) as u32, text.len() as u32));
        let (spans, bytes, secret) = (&self.spans, &self.bytes, &self.secret);
        self.index.insert_unique(hash, number, |&number| {
            let (start, length) = spans[number as usize];
            secret.bytes(&bytes[start as usize..(start + length) as usize])
        });
        number
    }
}

/// Samples and histograms in a compressed request of version 2.0; `None` if it is none.
pub fn written(body: &[u8]) -> Option<(u64, u64)> {
    let raw = snap::raw::Decoder::new().decompress_vec(body).ok()?;
    let (mut samples, mut histograms) = (0, 0);
    for_each_field(&raw, |field, content| {
        if let (5, Content::Bytes(series)) = (field, content) {
            for_each_field(series, |field, _| {
                samples += u64::from(field == 2);
                histograms += u64::from(field == 3);
                Some(())
            })?;
        }
        Some(())
    })?;
    Some((samples, histograms))
}
