//! Compression whose output can be measured while it is written.

use std::io::Read;

use flate2::{Compress, Compression as Level, FlushCompress};
use zstd::stream::raw::{Encoder as Zstd, InBuffer, Operation, OutBuffer};

use crate::settings::Compression;

/// A body as it was before compression; `None` if it is none of this kind.
pub fn decompressed(compression: Compression, body: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    match compression {
        Compression::Zstd => return zstd::decode_all(body).ok(),
        Compression::Zlib => flate2::read::ZlibDecoder::new(body)
            .read_to_end(&mut plain)
            .ok()?,
        // Its parts may have been compressed one by one.
        Compression::Gzip => flate2::read::MultiGzDecoder::new(body)
            .read_to_end(&mut plain)
            .ok()?,
        Compression::None => return Some(body.to_vec()),
    };
    Some(plain)
}

/// One body alone, at the default level.
pub fn compressed(compression: Compression, body: Vec<u8>) -> Vec<u8> {
    if compression == Compression::None {
        return body;
    }
    let mut compressor = Compressor::new(compression, 0);
    compressor.write(&body);
    compressor.finish()
}

/// Compresses one body after the other, keeping the compressor's memory between them.
pub struct Compressor {
    kind: Codec,
    out: Vec<u8>,
    /// Given since the last flush; what of it is in `out` is unknown.
    unflushed: usize,
}

enum Codec {
    Zstd(Zstd<'static>),
    Zlib(Compress),
    Gzip {
        raw: Compress,
        checksum: crc32fast::Hasher,
        length: u32,
    },
    None,
}

impl Compressor {
    /// `level` 0 is the default: 1 for zstd, 6 for the others.
    pub fn new(compression: Compression, level: i32) -> Self {
        let deflate =
            |zlib| Compress::new(Level::new(if level <= 0 { 6 } else { level.min(9) as u32 }), zlib);
        let kind = match compression {
            Compression::Zstd => {
                let level = if level <= 0 { 1 } else { level };
                Codec::Zstd(Zstd::new(level).expect("only allocation can fail, and that aborts"))
            }
            Compression::Zlib => Codec::Zlib(deflate(true)),
            Compression::Gzip => Codec::Gzip {
                raw: deflate(false),
                checksum: crc32fast::Hasher::new(),
                length: 0,
            },
            Compression::None => Codec::None,
        };
        let mut this = Self {
            kind,
            out: Vec::new(),
            unflushed: 0,
        };
        this.start();
        this
    }

    /// The name in a `Content-Encoding` header; none for none.
    pub fn content_encoding(compression: Compression) -> Option<&'static str> {
        match compression {
            Compression::Zstd => Some("zstd"),
            // HTTP's "deflate" is the zlib format.
            Compression::Zlib => Some("deflate"),
            Compression::Gzip => Some("gzip"),
            Compression::None => None,
        }
    }

    /// The most that the finished body can be if `more` bytes are written.
    pub fn bound(&self, more: usize) -> usize {
        let n = self.unflushed + more;
        self.out.len()
            + match self.kind {
                Codec::Zstd(_) => n + n / 200 + 128,
                Codec::Zlib(_) | Codec::Gzip { .. } => n + n / 64 + 256,
                Codec::None => n,
            }
    }

    /// Given since the last flush: [`Compressor::bound`] becomes sharper by flushing.
    pub fn unflushed(&self) -> usize {
        if matches!(self.kind, Codec::None) {
            0
        } else {
            self.unflushed
        }
    }

    pub fn write(&mut self, data: &[u8]) {
        self.unflushed += data.len();
        match &mut self.kind {
            Codec::Zstd(zstd) => {
                let mut input = InBuffer::around(data);
                while input.pos < data.len() {
                    run_zstd(&mut self.out, |out| zstd.run(&mut input, out));
                }
            }
            Codec::Zlib(raw) => deflate(raw, data, &mut self.out, FlushCompress::None),
            Codec::Gzip {
                raw,
                checksum,
                length,
            } => {
                checksum.update(data);
                *length = length.wrapping_add(data.len() as u32);
                deflate(raw, data, &mut self.out, FlushCompress::None);
            }
            Codec::None => {
                self.out.extend_from_slice(data);
                self.unflushed = 0;
            }
        }
    }

    /// Brings everything written so far into the output, at the cost of a block boundary.
    pub fn flush(&mut self) {
        match &mut self.kind {
            Codec::Zstd(zstd) => while run_zstd(&mut self.out, |out| zstd.flush(out)) > 0 {},
            Codec::Zlib(raw) | Codec::Gzip { raw, .. } => {
                deflate(raw, &[], &mut self.out, FlushCompress::Sync)
            }
            Codec::None => {}
        }
        self.unflushed = 0;
    }

    /// Ends the body and starts the next.
    pub fn finish(&mut self) -> Vec<u8> {
        match &mut self.kind {
            Codec::Zstd(zstd) => while run_zstd(&mut self.out, |out| zstd.finish(out, true)) > 0 {},
            Codec::Zlib(raw) => deflate(raw, &[], &mut self.out, FlushCompress::Finish),
            Codec::Gzip {
                raw,
                checksum,
                length,
            } => {
                deflate(raw, &[], &mut self.out, FlushCompress::Finish);
                self.out
                    .extend_from_slice(&std::mem::take(checksum).finalize().to_le_bytes());
                self.out.extend_from_slice(&length.to_le_bytes());
                *length = 0;
            }
            Codec::None => {}
        }
        let mut body = std::mem::take(&mut self.out);
        // Bodies may wait for hours; the slack of the growing buffer should not.
        body.shrink_to_fit();
        self.start();
        body
    }

    fn start(&mut self) {
        self.unflushed = 0;
        match &mut self.kind {
            Codec::Zstd(zstd) => zstd.reinit().expect("a reset of the session alone cannot fail"),
            Codec::Zlib(raw) => raw.reset(),
            Codec::Gzip { raw, .. } => {
                raw.reset();
                // Magic, deflate, no flags, no time, no extra flags, unknown system.
                self.out
                    .extend_from_slice(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
            }
            Codec::None => {}
        }
    }
}

/// One step with room to write; returns the number of bytes still in the compressor.
fn run_zstd(
    out: &mut Vec<u8>,
    mut step: impl FnMut(&mut OutBuffer<'_, Vec<u8>>) -> std::io::Result<usize>,
) -> usize {
    if out.capacity() - out.len() < 16 << 10 {
        out.reserve(64 << 10);
    }
    let at = out.len();
    let mut buffer = OutBuffer::around_pos(out, at);
    step(&mut buffer).expect("the parameters are valid and the output has room")
}

fn deflate(raw: &mut Compress, mut data: &[u8], out: &mut Vec<u8>, flush: FlushCompress) {
    loop {
        if out.capacity() - out.len() < 16 << 10 {
            out.reserve(64 << 10);
        }
        let (read, wrote) = (raw.total_in(), raw.total_out());
        let status = raw.compress_vec(data, out, flush).expect("a valid stream state");
        data = &data[(raw.total_in() - read) as usize..];
        let ended = match flush {
            FlushCompress::Finish => status == flate2::Status::StreamEnd,
            // Output that did not fill the buffer is all there was.
            _ => data.is_empty() && (out.len() < out.capacity() || raw.total_out() == wrote),
        };
        if ended {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn expand(compression: Compression, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match compression {
            Compression::Zstd => out = zstd::decode_all(body).unwrap(),
            Compression::Zlib => drop(
                flate2::read::ZlibDecoder::new(body)
                    .read_to_end(&mut out)
                    .unwrap(),
            ),
            Compression::Gzip => drop(flate2::read::GzDecoder::new(body).read_to_end(&mut out).unwrap()),
            Compression::None => out = body.to_vec(),
        }
        out
    }

    #[test]
    fn bodies_expand_to_what_was_written_and_stay_below_their_bound() {
        let mut random = 1u64;
        let noise: Vec<u8> = (0..300_000)
            .map(|_| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                (random >> 56) as u8
            })
            .collect();
        let text = b"metric.name{tag:value} ".repeat(20_000);
        for compression in [
            Compression::Zstd,
            Compression::Zlib,
            Compression::Gzip,
            Compression::None,
        ] {
            for level in [0, 9] {
                let mut compressor = Compressor::new(compression, level);
                for data in [&noise, &text, &Vec::new()] {
                    let mut bound = compressor.bound(0);
                    for (i, chunk) in data.chunks(777).enumerate() {
                        bound = compressor.bound(chunk.len());
                        compressor.write(chunk);
                        if i % 100 == 99 {
                            compressor.flush();
                            bound = compressor.bound(0);
                        }
                    }
                    let body = compressor.finish();
                    assert!(body.len() <= bound, "{compression:?}: {} of {bound}", body.len());
                    assert_eq!(
                        expand(compression, &body),
                        **data,
                        "{compression:?} level {level}"
                    );
                }
            }
        }
    }

    #[test]
    fn zlib_is_really_zlib() {
        let mut compressor = Compressor::new(Compression::Zlib, 0);
        compressor.write(b"x");
        let body = compressor.finish();
        assert_eq!(
            (
                body[0] & 0x0f,
                (u16::from(body[0]) << 8 | u16::from(body[1])) % 31
            ),
            (8, 0)
        );
        let mut plain = flate2::read::DeflateDecoder::new(&body[..]);
        assert!(
            plain.read_to_end(&mut Vec::new()).is_err(),
            "raw deflate would be something else"
        );
    }
}
