//! From a header and a body to the bytes of a record.

use crate::Header;
use crate::record::{COMPRESSED, OPEN, PUBLISHED, checksum_of};
use crate::wire::Writer;

/// Version, flags and checksum.
const PREFIX_BYTES: usize = 6;

/// The most that a header takes beside its texts.
const HEADER_BYTES: usize = 120;

/// A body that is not longer has no shorter form: magic number, header of the frame and header of a block.
const FRAME_BYTES: usize = 9;

/// Packs records in sequence, with one compressor for all.
#[derive(Default)]
pub struct Packer {
    compressor: Option<zstd::bulk::Compressor<'static>>,
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Packer")
    }
}

impl Packer {
    /// A record of a header and a body, which is compressed where that makes it smaller. The body may be that of another record.
    pub fn pack(&mut self, header: &Header, body: &[u8]) -> Vec<u8> {
        let compressed = self
            .compressed(body)
            .filter(|compressed| compressed.len() < body.len());
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        let flags = flag(compressed.is_some(), COMPRESSED)
            | flag(header.is_open, OPEN)
            | flag(header.publication.is_some(), PUBLISHED);
        let len = compressed.as_ref().map_or(body.len(), Vec::len);
        let texts = header.tenant.len() + header.host.len();
        let mut writer = Writer::default();
        writer
            .bytes
            .reserve_exact(PREFIX_BYTES + HEADER_BYTES + texts + len);
        let version = header.version();
        writer.raw(&[version, flags, 0, 0, 0, 0]);
        header.write(&mut writer);
        writer.number(body.len() as u64);
        writer.raw(compressed.as_deref().unwrap_or(body));
        let mut bytes = writer.bytes;
        let checksum = checksum_of(version, flags, &bytes[PREFIX_BYTES..]);
        bytes[2..PREFIX_BYTES].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn compressed(&mut self, body: &[u8]) -> Option<Vec<u8>> {
        if body.len() <= FRAME_BYTES {
            return None;
        }
        if self.compressor.is_none() {
            self.compressor = zstd::bulk::Compressor::new(zstd::DEFAULT_COMPRESSION_LEVEL).ok();
        }
        self.compressor.as_mut()?.compress(body).ok()
    }
}
