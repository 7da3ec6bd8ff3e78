//! The bytes of a request: its compression, and its columns.

use std::io::Read;

use hyper::header::HeaderValue;
use weir_columns::decode::{Decoded, Endpoint, Refusal};

use super::limits;

/// The compression of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Identity,
    Zstd,
    Gzip,
    Deflate,
}

impl Coding {
    /// By the first bytes of a body: no payload begins like a compressed one.
    pub fn found_in(body: &[u8]) -> Coding {
        match body {
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Coding::Zstd,
            [0x1f, 0x8b, ..] => Coding::Gzip,
            [0x78, ..] => Coding::Deflate,
            _ => Coding::Identity,
        }
    }

    /// `None`: it is not understood.
    pub fn of(header: Option<&HeaderValue>) -> Option<Coding> {
        let Some(header) = header else {
            return Some(Coding::Identity);
        };
        Some(match header.to_str().ok()?.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Coding::Identity,
            "zstd" => Coding::Zstd,
            "gzip" | "x-gzip" => Coding::Gzip,
            "deflate" => Coding::Deflate,
            _ => return None,
        })
    }
}

/// Why a body has no columns.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("it cannot be decompressed: {0}")]
    Compression(std::io::Error),
    #[error("{0}")]
    Columns(#[from] Refusal),
}

impl BodyError {
    /// Whether more memory would help.
    pub fn is_too_large(&self) -> bool {
        matches!(self, BodyError::Columns(Refusal::TooLarge(_)))
    }
}

/// Reads the columns of a body, with so much memory beside the body.
pub fn read(sent: &[u8], coding: Coding, endpoint: Endpoint, bytes: usize) -> Result<Decoded, BodyError> {
    let plain = match coding {
        Coding::Identity if sent.len() > bytes => return Err(Refusal::TooLarge(bytes).into()),
        Coding::Identity => sent.to_vec(),
        Coding::Zstd => {
            let decoder = zstd::stream::read::Decoder::with_buffer(sent).map_err(BodyError::Compression)?;
            decompress(decoder, bytes)?
        }
        Coding::Gzip => decompress(flate2::bufread::MultiGzDecoder::new(sent), bytes)?,
        Coding::Deflate => decompress(flate2::bufread::ZlibDecoder::new(sent), bytes)?,
    };
    Ok(Decoded::read(plain, endpoint, &limits(bytes))?)
}

/// Decompresses at most this much.
fn decompress(decoder: impl Read, bytes: usize) -> Result<Vec<u8>, BodyError> {
    let mut plain = Vec::new();
    let read = decoder.take(bytes as u64 + 1).read_to_end(&mut plain);
    read.map_err(BodyError::Compression)?;
    if plain.len() > bytes {
        return Err(Refusal::TooLarge(bytes).into());
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const LIMIT: usize = 1 << 20;

    fn plain(decoder: impl Read) -> Vec<u8> {
        decompress(decoder, LIMIT).unwrap()
    }

    #[test]
    fn frames_that_follow_each_other_are_one_body() {
        let (one, two) = (vec![1u8; 1000], vec![2u8; 1000]);
        let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 3).unwrap();
        let gzip = |bytes: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let both = [one.clone(), two.clone()].concat();
        let sent = [zstd(&one), zstd(&two)].concat();
        assert_eq!(
            plain(zstd::stream::read::Decoder::with_buffer(&sent[..]).unwrap()),
            both
        );
        let sent = [gzip(&one), gzip(&two)].concat();
        assert_eq!(plain(flate2::bufread::MultiGzDecoder::new(&sent[..])), both);
    }

    #[test]
    fn a_small_body_that_becomes_a_large_one_is_refused() {
        let bomb = zstd::encode_all(&vec![0u8; 64 << 20][..], 3).unwrap();
        assert!(bomb.len() < LIMIT);
        let refused = read(&bomb, Coding::Zstd, Endpoint::Series, LIMIT).unwrap_err();
        assert!(refused.is_too_large(), "{refused}");
        let broken = read(&bomb[..100], Coding::Gzip, Endpoint::Series, LIMIT).unwrap_err();
        assert!(
            broken.to_string().starts_with("it cannot be decompressed"),
            "{broken}"
        );
    }

    #[test]
    fn codings_are_known_by_their_names() {
        let of = |text: &'static str| Coding::of(Some(&HeaderValue::from_static(text)));
        assert_eq!(Coding::of(None), Some(Coding::Identity));
        assert_eq!(of("ZSTD"), Some(Coding::Zstd));
        assert_eq!(of("gzip"), Some(Coding::Gzip));
        assert_eq!(of("deflate"), Some(Coding::Deflate));
        assert_eq!(of("br"), None);
        assert_eq!(of("gzip, zstd"), None);
    }
}
