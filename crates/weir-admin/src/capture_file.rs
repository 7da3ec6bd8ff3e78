//! The Datadog Agent's format of captures: each side reads the other's files.
//!
//! ```text
//! D4 74 D0 60 F3 FF 00 00            header; the low half of the fifth byte is the version
//! length (32 bits, little-endian), UnixDogstatsdMsg        for each packet
//! 00 00 00 00                        end of the packets
//! TaggerState, length (32 bits, little-endian)             who the senders were; since version 2
//! ```
//!
//! Times are nanoseconds since version 3, and seconds before. All of it may be compressed with zstd. Fields from 1001 on are weir's
//! own; others skip them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;

use prost::Message as _;

const HEADER: [u8; 8] = [0xd4, 0x74, 0xd0, 0x60, 0xf0, 0xff, 0x00, 0x00];
const VERSION_AT: usize = 4;
const VERSION: u8 = 3;
const FIRST_WITH_STATE: u8 = 2;
const FIRST_WITH_NANOSECONDS: u8 = 3;
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Maximum size of a packet or of the state.
const RECORD_BYTES_MAX: usize = 64 << 20;

/// One packet.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Captured {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(int32, tag = "2")]
    pub payload_size: i32,
    /// May be longer than `size`: the Agent writes complete buffers.
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
    #[prost(int32, tag = "4")]
    pub pid: i32,
    #[prost(int32, tag = "5")]
    pub ancillary_size: i32,
    /// The control message with the sender's credentials.
    #[prost(bytes = "vec", tag = "6")]
    pub ancillary: Vec<u8>,
    #[prost(string, tag = "1001")]
    pub listener: String,
    /// The sender's internet address.
    #[prost(string, tag = "1002")]
    pub source: String,
}

impl Captured {
    /// The bytes of the packet.
    pub fn bytes(&self) -> &[u8] {
        let size = usize::try_from(self.payload_size).unwrap_or(0);
        self.payload.get(..size).unwrap_or(&self.payload)
    }
}

/// The senders of a capture, at its end.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CaptureState {
    /// By entity.
    #[prost(btree_map = "string, message", tag = "1")]
    pub entities: BTreeMap<String, Entity>,
    /// Entities by process id.
    #[prost(btree_map = "int32, string", tag = "2")]
    pub processes: BTreeMap<i32, String>,
    #[prost(uint64, tag = "1001")]
    pub packets: u64,
    /// Packets lost because the capture's queue was full.
    #[prost(uint64, tag = "1002")]
    pub lost: u64,
    /// Why the capture ended early; empty if it did not.
    #[prost(string, tag = "1003")]
    pub ended_early: String,
    /// Requests with columns that arrived meanwhile. A capture holds datagrams and streams alone.
    #[prost(uint64, tag = "1004")]
    pub requests: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Entity {
    #[prost(message, optional, tag = "1")]
    pub id: Option<EntityId>,
    #[prost(string, tag = "2")]
    pub hash: String,
    #[prost(string, repeated, tag = "3")]
    pub high_cardinality_tags: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub orchestrator_cardinality_tags: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub low_cardinality_tags: Vec<String>,
    #[prost(string, repeated, tag = "6")]
    pub standard_tags: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct EntityId {
    #[prost(string, tag = "1")]
    pub prefix: String,
    #[prost(string, tag = "2")]
    pub uid: String,
}

/// Linux's control message with credentials.
pub fn credentials(pid: i32, uid: u32, gid: u32) -> Vec<u8> {
    const LENGTH: u64 = 28;
    const SOL_SOCKET: i32 = 1;
    const SCM_CREDENTIALS: i32 = 2;
    let mut bytes = LENGTH.to_ne_bytes().to_vec();
    bytes.extend(SOL_SOCKET.to_ne_bytes());
    bytes.extend(SCM_CREDENTIALS.to_ne_bytes());
    bytes.extend(pid.to_ne_bytes());
    bytes.extend(uid.to_ne_bytes());
    bytes.extend(gid.to_ne_bytes());
    bytes.resize(32, 0);
    bytes
}

/// The beginning of a capture.
pub fn header() -> [u8; 8] {
    let mut header = HEADER;
    header[VERSION_AT] |= VERSION;
    header
}

/// Appends a packet to a capture.
pub fn write_packet(packet: &Captured, out: &mut Vec<u8>) {
    out.extend_from_slice(&(packet.encoded_len() as u32).to_le_bytes());
    // Encoding to a vector cannot fail.
    let _ = packet.encode(out);
}

/// Appends the end of a capture.
pub fn write_state(state: &CaptureState, out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 4]);
    let length = state.encoded_len() as u32;
    let _ = state.encode(out);
    out.extend_from_slice(&length.to_le_bytes());
}

/// Why a file cannot be read, or not completely.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error(
        "it is not a DogStatsD capture: it begins with {0} instead of d4 74 d0 60 f3 ff 00 00, or 28 b5 2f fd (zstd)"
    )]
    Foreign(String),
    #[error("it is a capture of version {0}; known are the versions up to 3")]
    Version(u8),
    #[error("it is truncated: it ends within packet {packet}, at byte {at}; {} packets are whole", packet - 1)]
    Cut { packet: u64, at: u64 },
    #[error("it is truncated: it ends after packet {0}, without the state that ends a capture")]
    NoState(u64),
    #[error("it is damaged: packet {packet}, at byte {at}, claims to have {length} bytes")]
    Length { packet: u64, at: u64, length: usize },
    #[error("it is damaged: packet {packet}, at byte {at}, is invalid: {source}")]
    Packet {
        packet: u64,
        at: u64,
        source: prost::DecodeError,
    },
    #[error("it is damaged: the state at its end is invalid")]
    State,
}

impl CaptureError {
    /// Whether everything before the error is valid.
    pub fn is_cut(&self) -> bool {
        matches!(self, CaptureError::Cut { .. } | CaptureError::NoState(_))
    }
}

/// Reads a capture packet by packet.
pub struct CaptureReader<R: Read> {
    source: R,
    version: u8,
    packets: u64,
    /// Bytes read of the uncompressed capture.
    at: u64,
    state: Option<CaptureState>,
}

/// A file, possibly decompressed.
pub type CaptureSource = Box<dyn Read>;

impl CaptureReader<CaptureSource> {
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let mut file = BufReader::new(File::open(path)?);
        let source: CaptureSource = if file.fill_buf()?.starts_with(&ZSTD) {
            Box::new(BufReader::new(zstd::stream::read::Decoder::new(file)?))
        } else {
            Box::new(file)
        };
        CaptureReader::new(source)
    }
}

impl<R: Read> CaptureReader<R> {
    pub fn new(mut source: R) -> Result<Self, CaptureError> {
        let mut head = Vec::new();
        match source.by_ref().take(HEADER.len() as u64).read_to_end(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                // Compressed, but too short to decompress anything.
                return Err(CaptureError::Cut { packet: 1, at: 0 });
            }
            read => drop(read?),
        }
        let known = |at: usize| head.get(at) == Some(&HEADER[at]);
        let same = (0..HEADER.len()).all(|at| known(at) || at == VERSION_AT);
        let version = head.get(VERSION_AT).copied().unwrap_or(0);
        if !same || version & 0xf0 != 0xf0 {
            let shown: Vec<String> = head.iter().map(|byte| format!("{byte:02x}")).collect();
            return Err(CaptureError::Foreign(match shown.as_slice() {
                [] => "nothing at all".to_owned(),
                shown => shown.join(" "),
            }));
        }
        let version = version & 0x0f;
        if version > VERSION {
            return Err(CaptureError::Version(version));
        }
        Ok(CaptureReader {
            source,
            version,
            packets: 0,
            at: HEADER.len() as u64,
            state: None,
        })
    }

    /// The time of a packet.
    pub fn time(&self, packet: &Captured) -> Duration {
        let stamp = packet.timestamp.max(0) as u64;
        if self.version >= FIRST_WITH_NANOSECONDS {
            Duration::from_nanos(stamp)
        } else {
            Duration::from_secs(stamp)
        }
    }

    /// The state, once all packets are read.
    pub fn state(&self) -> Option<&CaptureState> {
        self.state.as_ref()
    }

    pub fn next_packet(&mut self) -> Result<Option<Captured>, CaptureError> {
        let (packet, at) = (self.packets + 1, self.at);
        let mut head = Vec::new();
        match self.fill(&mut head, 4)? {
            0 if self.version < FIRST_WITH_STATE => return Ok(None),
            0 => return Err(CaptureError::NoState(self.packets)),
            4 => {}
            _ => return Err(CaptureError::Cut { packet, at: self.at }),
        }
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if length == 0 {
            self.read_state()?;
            return Ok(None);
        }
        if length > RECORD_BYTES_MAX {
            return Err(CaptureError::Length { packet, at, length });
        }
        let mut record = Vec::new();
        if self.fill(&mut record, length)? < length {
            return Err(CaptureError::Cut { packet, at: self.at });
        }
        let found =
            Captured::decode(&record[..]).map_err(|source| CaptureError::Packet { packet, at, source })?;
        self.packets += 1;
        Ok(Some(found))
    }

    fn read_state(&mut self) -> Result<(), CaptureError> {
        let mut rest = Vec::new();
        self.fill(&mut rest, RECORD_BYTES_MAX)?;
        if self.version < FIRST_WITH_STATE {
            return Ok(());
        }
        let Some((state, length)) = rest.split_last_chunk::<4>() else {
            return Err(CaptureError::NoState(self.packets));
        };
        if state.len() != u32::from_le_bytes(*length) as usize {
            return Err(CaptureError::NoState(self.packets));
        }
        self.state = Some(CaptureState::decode(state).map_err(|_| CaptureError::State)?);
        Ok(())
    }

    fn fill(&mut self, into: &mut Vec<u8>, length: usize) -> Result<usize, CaptureError> {
        let read = fill(&mut self.source, into, length)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Reads this many bytes, or as many as exist. From a truncated compressed file, as many as can be decompressed.
fn fill(source: &mut impl Read, into: &mut Vec<u8>, length: usize) -> Result<usize, CaptureError> {
    match source.take(length as u64).read_to_end(into) {
        Ok(read) => Ok(read),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(into.len()),
        Err(error) => Err(error.into()),
    }
}

/// Writes a capture to a file, compressed by default.
pub enum CaptureWriter {
    Plain(io::BufWriter<File>),
    Compressed(zstd::stream::write::Encoder<'static, io::BufWriter<File>>),
}

impl CaptureWriter {
    pub fn create(path: &Path, compressed: bool) -> io::Result<Self> {
        let file = io::BufWriter::new(File::create(path)?);
        if !compressed {
            return Ok(CaptureWriter::Plain(file));
        }
        let level = zstd::DEFAULT_COMPRESSION_LEVEL;
        Ok(CaptureWriter::Compressed(zstd::stream::write::Encoder::new(
            file, level,
        )?))
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            CaptureWriter::Plain(file) => file.write_all(bytes),
            CaptureWriter::Compressed(encoder) => encoder.write_all(bytes),
        }
    }

    /// Completes the file.
    pub fn finish(self) -> io::Result<()> {
        match self {
            CaptureWriter::Plain(mut file) => file.flush(),
            CaptureWriter::Compressed(encoder) => encoder.finish()?.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(timestamp: i64, payload: &[u8]) -> Captured {
        Captured {
            timestamp,
            payload_size: payload.len() as i32,
            payload: payload.to_vec(),
            pid: 7,
            ..Captured::default()
        }
    }

    fn capture(packets: &[Captured]) -> Vec<u8> {
        let mut file = header().to_vec();
        packets.iter().for_each(|packet| write_packet(packet, &mut file));
        let state = CaptureState {
            processes: [(7, "container_id://abc".to_owned())].into(),
            packets: packets.len() as u64,
            lost: 2,
            ..CaptureState::default()
        };
        write_state(&state, &mut file);
        file
    }

    fn read(file: &[u8]) -> (Vec<Captured>, Result<Option<CaptureState>, CaptureError>) {
        let mut packets = Vec::new();
        let mut reader = match CaptureReader::new(file) {
            Ok(reader) => reader,
            Err(error) => return (packets, Err(error)),
        };
        loop {
            match reader.next_packet() {
                Ok(Some(packet)) => packets.push(packet),
                Ok(None) => return (packets, Ok(reader.state().cloned())),
                Err(error) => return (packets, Err(error)),
            }
        }
    }

    #[test]
    fn field_numbers_are_those_of_the_agent() {
        let mut bytes = Vec::new();
        write_packet(&packet(300, b"a:1|c"), &mut bytes);
        assert_eq!(bytes, b"\x0e\0\0\0\x08\xac\x02\x10\x05\x1a\x05a:1|c\x20\x07");
        assert_eq!(header(), [0xd4, 0x74, 0xd0, 0x60, 0xf3, 0xff, 0, 0]);
    }

    #[test]
    fn a_payload_has_the_length_of_its_size_field() {
        let padded = Captured {
            payload: b"a:1|cxxxx".to_vec(),
            payload_size: 5,
            ..Captured::default()
        };
        assert_eq!(padded.bytes(), b"a:1|c");
    }

    #[test]
    fn older_versions_count_seconds_and_have_no_state() {
        let mut file = header().to_vec();
        file[VERSION_AT] = 0xf1;
        write_packet(&packet(3, b"a:1|c"), &mut file);
        let mut reader = CaptureReader::new(&file[..]).unwrap();
        let found = reader.next_packet().unwrap().unwrap();
        assert_eq!(reader.time(&found), Duration::from_secs(3));
        assert!(reader.next_packet().unwrap().is_none());
        file[VERSION_AT] = 0xf4;
        assert!(matches!(
            CaptureReader::new(&file[..]).err(),
            Some(CaptureError::Version(4))
        ));
    }

    #[test]
    fn foreign_files_are_recognised_by_their_header() {
        for (file, part) in [
            (&b"hello, world"[..], "begins with 68 65 6c 6c 6f"),
            (b"", "begins with nothing at all"),
            (&HEADER[..6], "begins with d4 74 d0 60 f0 ff instead"),
        ] {
            let error = CaptureReader::new(file).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
        let mut damaged = capture(&[packet(1, b"a:1|c")]);
        damaged[11] = 0x7f;
        let error = read(&damaged).1.unwrap_err().to_string();
        assert!(error.contains("packet 1, at byte 8, claims"), "{error}");
    }

    proptest! {
        #[test]
        fn written_captures_are_read_and_truncated_ones_are_errors(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5),
            keep in 0.0..1.0f64,
        ) {
            let packets: Vec<Captured> = payloads.iter().map(|payload| packet(5, payload)).collect();
            let file = capture(&packets);
            let (found, state) = read(&file);
            prop_assert_eq!(&found, &packets);
            prop_assert_eq!(state.unwrap().unwrap().lost, 2);
            let cut = &file[..HEADER.len() + ((file.len() - HEADER.len()) as f64 * keep) as usize];
            let (found, state) = read(cut);
            prop_assert!(packets.starts_with(&found));
            prop_assert!(state.unwrap_err().is_cut());
        }

        #[test]
        fn anything_behind_the_header_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let file = [&header()[..], &bytes].concat();
            let _ = read(&file);
        }
    }
}
