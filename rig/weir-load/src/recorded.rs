//! Recorded traffic: packet captures, raw packet files, and captures of the Datadog Agent.

use prost::Message;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A packet and its time since the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub at: Duration,
    pub bytes: Vec<u8>,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {error}")]
pub struct RecordedError {
    file: PathBuf,
    error: FormatError,
}

/// The error in the content of a file.
#[derive(Debug, thiserror::Error)]
enum FormatError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("is not whole zstd: {0}")]
    Zstd(#[source] io::Error),
    #[error("is shorter than any capture")]
    Short,
    #[error("is pcapng; convert it first: tcpdump -r FILE -w FILE.pcap")]
    Pcapng,
    #[error("its header is cut off")]
    Header,
    #[error("link type {0} is not known")]
    Link(u32),
    #[error("is an agent capture of version {0}; known are 0 to 3")]
    Version(u8),
    #[error("message {0} is not what an agent writes")]
    Message(usize),
    #[error("packet {0}: its length is cut off")]
    Length(usize),
    #[error(
        "packet {number} claims {length} bytes and {left} are left; known formats are pcap, agent captures, and records of a \
         32-bit little-endian length and the bytes"
    )]
    Packet {
        number: usize,
        length: usize,
        left: usize,
    },
}

/// The first bytes of an agent's capture; the low half of the fifth is the version.
const AGENT: [u8; 8] = [0xd4, 0x74, 0xd0, 0x60, 0xf0, 0xff, 0x00, 0x00];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Maximum size of an unpacked capture.
const UNPACKED_MAX: u64 = 4 << 30;

/// Reads a file in any of the formats, detected by its first bytes. With `port`, keeps only UDP packets to it.
pub fn read(path: &Path, port: Option<u16>) -> Result<Vec<Recorded>, RecordedError> {
    parse_file(path, port).map_err(|error| RecordedError {
        file: path.to_owned(),
        error,
    })
}

fn parse_file(path: &Path, port: Option<u16>) -> Result<Vec<Recorded>, FormatError> {
    let mut bytes = std::fs::read(path)?;
    if bytes.starts_with(&ZSTD) {
        let mut unpacked = Vec::new();
        zstd::stream::read::Decoder::new(&bytes[..])
            .and_then(|decoder| decoder.take(UNPACKED_MAX).read_to_end(&mut unpacked))
            .map_err(FormatError::Zstd)?;
        bytes = unpacked;
    }
    parse(&bytes, port)
}

fn parse(bytes: &[u8], port: Option<u16>) -> Result<Vec<Recorded>, FormatError> {
    let magic = bytes.get(..4).ok_or(FormatError::Short)?;
    match magic {
        [0xd4, 0xc3, 0xb2, 0xa1] => pcap(bytes, port, u32::from_le_bytes, 1000),
        [0xa1, 0xb2, 0xc3, 0xd4] => pcap(bytes, port, u32::from_be_bytes, 1000),
        [0x4d, 0x3c, 0xb2, 0xa1] => pcap(bytes, port, u32::from_le_bytes, 1),
        [0xa1, 0xb2, 0x3c, 0x4d] => pcap(bytes, port, u32::from_be_bytes, 1),
        [0x0a, 0x0d, 0x0d, 0x0a] => Err(FormatError::Pcapng),
        _ if bytes.len() >= 8
            && bytes[..4] == AGENT[..4]
            && bytes[4] & 0xf0 == 0xf0
            && bytes[5..8] == AGENT[5..8] =>
        {
            agent(bytes)
        }
        _ => raw(bytes),
    }
}

/// Records with a 32-bit little-endian length, as written by `load dump --raw`. They have no time.
fn raw(mut bytes: &[u8]) -> Result<Vec<Recorded>, FormatError> {
    let mut packets = Vec::new();
    while !bytes.is_empty() {
        let number = packets.len() + 1;
        let (head, rest) = bytes
            .split_first_chunk::<4>()
            .ok_or(FormatError::Length(number))?;
        let length = u32::from_le_bytes(*head) as usize;
        if length == 0 || length > 1 << 20 || length > rest.len() {
            return Err(FormatError::Packet {
                number,
                length,
                left: rest.len(),
            });
        }
        packets.push(Recorded {
            at: Duration::ZERO,
            bytes: rest[..length].to_vec(),
        });
        bytes = &rest[length..];
    }
    Ok(packets)
}

fn pcap(
    bytes: &[u8],
    port: Option<u16>,
    number: fn([u8; 4]) -> u32,
    nanos_per_unit: u64,
) -> Result<Vec<Recorded>, FormatError> {
    let word = |at: usize| -> Option<u32> {
        let field = bytes.get(at..at + 4)?;
        Some(number(field.try_into().expect("4 bytes")))
    };
    let link = word(20).ok_or(FormatError::Header)? & 0x0fff_ffff;
    let mut packets = Vec::new();
    let mut at = 24;
    let mut first = None;
    while at < bytes.len() {
        // An interrupted capture may end within a record.
        let (Some(seconds), Some(part), Some(length)) = (word(at), word(at + 4), word(at + 8)) else {
            break;
        };
        let Some(frame) = bytes.get(at + 16..at + 16 + length as usize) else {
            break;
        };
        at += 16 + length as usize;
        let time =
            Duration::from_secs(u64::from(seconds)) + Duration::from_nanos(u64::from(part) * nanos_per_unit);
        let ip = match link {
            // Loopback of BSD, Ethernet (with one VLAN tag or none), raw IP, Linux cooked 1 and 2.
            0 | 108 => frame.get(4..),
            1 => match frame.get(12..14) {
                Some([0x81, 0x00]) => frame.get(18..),
                _ => frame.get(14..),
            },
            12 | 14 | 101 | 228 | 229 => Some(frame),
            113 => frame.get(16..),
            276 => frame.get(20..),
            other => return Err(FormatError::Link(other)),
        };
        let Some((destination, payload)) = ip.and_then(udp) else {
            continue;
        };
        if port.is_some_and(|port| port != destination) || payload.is_empty() {
            continue;
        }
        let first = *first.get_or_insert(time);
        packets.push(Recorded {
            at: time.saturating_sub(first),
            bytes: payload.to_vec(),
        });
    }
    Ok(packets)
}

/// Destination port and payload of an unfragmented UDP packet.
fn udp(ip: &[u8]) -> Option<(u16, &[u8])> {
    let segment = match ip.first()? >> 4 {
        4 => {
            let fragment = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]) & 0x3fff;
            if *ip.get(9)? != 17 || fragment != 0 {
                return None;
            }
            ip.get(usize::from(ip[0] & 15) * 4..)?
        }
        6 => {
            if *ip.get(6)? != 17 {
                return None;
            }
            ip.get(40..)?
        }
        _ => return None,
    };
    let port = u16::from_be_bytes([*segment.get(2)?, *segment.get(3)?]);
    let length = usize::from(u16::from_be_bytes([*segment.get(4)?, *segment.get(5)?]));
    // Segmentation offload leaves a length of zero: the payload is the rest of the frame.
    let end = if length >= 8 {
        length.min(segment.len())
    } else {
        segment.len()
    };
    Some((port, segment.get(8..end)?))
}

/// A packet in an agent's capture.
#[derive(Clone, PartialEq, Message)]
struct AgentMessage {
    #[prost(uint64, tag = "1")]
    timestamp: u64,
    /// The agent writes complete buffers, of which only this many bytes were received.
    #[prost(uint64, optional, tag = "2")]
    payload_size: Option<u64>,
    #[prost(bytes = "vec", tag = "3")]
    payload: Vec<u8>,
}

/// Protobuf messages with a 32-bit little-endian length. A length of zero ends them; the tagger's state that follows is not traffic.
fn agent(bytes: &[u8]) -> Result<Vec<Recorded>, FormatError> {
    let version = bytes[4] & 15;
    if version > 3 {
        return Err(FormatError::Version(version));
    }
    let mut rest = &bytes[8..];
    let mut packets = Vec::new();
    let mut first = None;
    while let Some((head, after)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*head) as usize;
        if length == 0 {
            break;
        }
        let Some(message) = after.get(..length) else {
            break;
        };
        rest = &after[length..];
        let mut message =
            AgentMessage::decode(message).map_err(|_| FormatError::Message(packets.len() + 1))?;
        if let Some(size) = message.payload_size {
            message.payload.truncate(size as usize);
        }
        // Versions before 3 use seconds, later ones nanoseconds.
        let time = if version < 3 {
            Duration::from_secs(message.timestamp)
        } else {
            Duration::from_nanos(message.timestamp)
        };
        let first = *first.get_or_insert(time);
        packets.push(Recorded {
            at: time.saturating_sub(first),
            bytes: message.payload,
        });
    }
    Ok(packets)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pcap file with one Ethernet frame per (microseconds, port, payload).
    fn pcap_file(packets: &[(u32, u16, &[u8])]) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        for (micros, port, payload) in packets {
            let mut frame = vec![0u8; 12];
            frame.extend_from_slice(&[0x08, 0x00, 0x45, 0]);
            frame.extend_from_slice(&(28 + payload.len() as u16).to_be_bytes());
            frame.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
            frame.extend_from_slice(&4000u16.to_be_bytes());
            frame.extend_from_slice(&port.to_be_bytes());
            frame.extend_from_slice(&(8 + payload.len() as u16).to_be_bytes());
            frame.extend_from_slice(&[0, 0]);
            frame.extend_from_slice(payload);
            for word in [1000, *micros, frame.len() as u32, frame.len() as u32] {
                file.extend_from_slice(&word.to_le_bytes());
            }
            file.extend_from_slice(&frame);
        }
        file
    }

    #[test]
    fn packet_captures_yield_payloads_and_times() {
        let file = pcap_file(&[(10, 8125, b"a:1|c"), (510, 53, b"dns"), (1010, 8125, b"b:2|g")]);
        let packets = parse(&file, Some(8125)).unwrap();
        assert_eq!(packets.len(), 2);
        assert_eq!(packets[1].bytes, b"b:2|g");
        assert_eq!(packets[1].at, Duration::from_millis(1));
        assert_eq!(parse(&file, None).unwrap().len(), 3);
        // Truncated anywhere, it does not panic and returns only complete packets.
        for end in 0..file.len() {
            if let Ok(packets) = parse(&file[..end], None) {
                assert!(packets.iter().all(|p| !p.bytes.is_empty()));
            }
        }
    }

    #[test]
    fn agent_captures_yield_payloads_and_times_up_to_the_state() {
        let mut file = AGENT.to_vec();
        file[4] |= 3;
        for (stamp, payload) in [(5_000_000_000u64, b"a:1|c".as_slice()), (5_000_000_500, b"b:1|c")] {
            let mut message = vec![0x08];
            let mut rest = stamp;
            while rest >= 0x80 {
                message.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            message.push(rest as u8);
            message.extend_from_slice(&[0x10, payload.len() as u8, 0x1a, payload.len() as u8 + 2]);
            message.extend_from_slice(payload);
            message.extend_from_slice(b"xx"); // Room the agent leaves behind the payload.
            message.extend_from_slice(&[0x20, 7]);
            file.extend_from_slice(&(message.len() as u32).to_le_bytes());
            file.extend_from_slice(&message);
        }
        file.extend_from_slice(&[0, 0, 0, 0, 1, 2, 3]);
        let packets = parse(&file, None).unwrap();
        assert_eq!(packets.len(), 2);
        assert_eq!(packets[0].bytes, b"a:1|c");
        assert_eq!(packets[1].at, Duration::from_nanos(500));
        file[4] = 0xf9;
        assert!(parse(&file, None).unwrap_err().to_string().contains("version 9"));
    }

    #[test]
    fn raw_records_are_read_and_invalid_files_are_named() {
        let mut file = Vec::new();
        for text in ["a:1|c", "b:1|c\nc:2|g"] {
            file.extend_from_slice(&(text.len() as u32).to_le_bytes());
            file.extend_from_slice(text.as_bytes());
        }
        assert_eq!(parse(&file, None).unwrap().len(), 2);
        assert!(
            parse(b"hello world, this is text", None)
                .unwrap_err()
                .to_string()
                .contains("packet 1")
        );
        assert!(
            parse(b"\x0a\x0d\x0d\x0a....", None)
                .unwrap_err()
                .to_string()
                .contains("pcapng")
        );
        assert!(parse(b"", None).is_err());
    }
}
