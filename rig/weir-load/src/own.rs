//! Payloads from a file of the user's: lines, requests, or recorded packets, sent in their order and then again from the start.

use crate::profile::{Profile, ProfileError, Transport};
use crate::recorded;
use crate::requests::{HeaderError, check_header};
use crate::units::{Rate, RateUnit};
use std::path::Path;

/// A larger file is refused: the generator holds it in memory once per connection.
const FILE_MAX: u64 = 1 << 30;

/// Between two requests of a file.
const SEPARATOR: &str = "###";

/// The packets of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnPayload {
    /// Bytes, and the messages in them.
    pub packets: Vec<(Vec<u8>, u32)>,
    /// Of recorded traffic.
    pub rate: Option<Rate>,
}

/// Why a file cannot be sent.
#[derive(Debug, PartialEq, thiserror::Error)]
enum OwnError {
    #[error("{0} bytes; at most {FILE_MAX} are read")]
    Large(u64),
    #[error("holds nothing to send")]
    Empty,
    #[error("requests are text")]
    Binary,
    #[error("line {number}: {length} bytes, and packets have {most}; packet_size of a profile sets that")]
    Long {
        number: usize,
        length: usize,
        most: usize,
    },
    #[error("line {number}: {line:?} is not METHOD /path; a line of {SEPARATOR} separates requests")]
    Request { number: usize, line: String },
    #[error("line {number}: {error}")]
    Header { number: usize, error: HeaderError },
}

impl OwnPayload {
    /// Reads a file for a transport. Over HTTP, it has requests. Otherwise it is recorded traffic, or text: one message per line.
    pub fn read(path: &Path, profile: &Profile, transport: Transport) -> Result<OwnPayload, ProfileError> {
        let bad = |what: &dyn std::fmt::Display| ProfileError(format!("{}: {what}", path.display()));
        let size = std::fs::metadata(path).map_err(|e| bad(&e))?.len();
        if size > FILE_MAX {
            return Err(bad(&OwnError::Large(size)));
        }
        let bytes = std::fs::read(path).map_err(|e| bad(&e))?;
        // Length-prefixed packets of text are UTF-8 too.
        let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
        let most = profile.packet_size_on(transport).max() as usize;
        let payload = match (text, transport == Transport::Http) {
            (Some(text), true) => requests(&text).map_err(|e| bad(&e))?,
            (None, true) => return Err(bad(&OwnError::Binary)),
            (Some(text), false) => lines(&text, most).map_err(|e| bad(&e))?,
            (None, false) => recorded_packets(path)?,
        };
        match payload.packets.is_empty() {
            true => Err(bad(&OwnError::Empty)),
            false => Ok(payload),
        }
    }
}

/// Packets of whole lines, as many as fit.
fn lines(text: &str, most: usize) -> Result<OwnPayload, OwnError> {
    let mut packets: Vec<(Vec<u8>, u32)> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let length = line.len();
        if length > most {
            let number = number + 1;
            return Err(OwnError::Long { number, length, most });
        }
        match packets.last_mut() {
            Some((packet, messages)) if packet.len() + 1 + length <= most => {
                packet.push(b'\n');
                packet.extend_from_slice(line.as_bytes());
                *messages += 1;
            }
            _ => packets.push((line.as_bytes().to_vec(), 1)),
        }
    }
    Ok(OwnPayload { packets, rate: None })
}

fn recorded_packets(path: &Path) -> Result<OwnPayload, ProfileError> {
    let recorded = recorded::read(path, None).map_err(|e| ProfileError(e.to_string()))?;
    let seconds = recorded.last().map_or(0.0, |packet| packet.at.as_secs_f64());
    let rate = (seconds > 0.0).then(|| Rate {
        per_second: recorded.len() as f64 / seconds,
        unit: RateUnit::Packets,
    });
    let packets = recorded.into_iter().map(|packet| {
        // Of a binary protocol, a packet is a message.
        let text = std::str::from_utf8(&packet.bytes);
        let lines = text.map_or(1, |text| text.lines().filter(|line| !line.is_empty()).count());
        (packet.bytes, lines.max(1) as u32)
    });
    Ok(OwnPayload {
        packets: packets.collect(),
        rate,
    })
}

/// Requests as editors' files of them have: a line with method and path, headers, an empty line, a body. The generator adds the host and
/// the length.
fn requests(text: &str) -> Result<OwnPayload, OwnError> {
    let mut packets = Vec::new();
    let mut block: Vec<&str> = Vec::new();
    for (number, line) in text.lines().chain([SEPARATOR]).enumerate() {
        if !line.starts_with(SEPARATOR) {
            block.push(line);
            continue;
        }
        let request = request(&block, number - block.len() + 1)?;
        packets.extend(request.map(|bytes| (bytes, 1)));
        block.clear();
    }
    Ok(OwnPayload { packets, rate: None })
}

/// A request with everything but its host, or `None` for a block of comments. `first`: the number of its first line.
fn request(block: &[&str], first: usize) -> Result<Option<Vec<u8>>, OwnError> {
    let is_comment = |line: &&&str| line.trim().is_empty() || line.starts_with('#') || line.starts_with("//");
    let skipped = block.iter().take_while(is_comment).count();
    let Some((start, rest)) = block[skipped..].split_first() else {
        return Ok(None);
    };
    let words: Vec<&str> = start.split_whitespace().collect();
    let (method, path) = match words[..] {
        [method, path] | [method, path, "HTTP/1.1"] => (method, path),
        _ => ("", ""),
    };
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    if !is_method || !path.starts_with('/') {
        return Err(OwnError::Request {
            number: first + skipped,
            line: (*start).to_owned(),
        });
    }
    let split = rest.iter().position(|line| line.is_empty()).unwrap_or(rest.len());
    let body = rest.get(split + 1..).unwrap_or_default().join("\n");
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    for (i, header) in rest[..split].iter().enumerate() {
        let number = first + skipped + 1 + i;
        check_header(header).map_err(|error| OwnError::Header { number, error })?;
        let name = header.split(':').next().unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") || name.eq_ignore_ascii_case("host") {
            continue;
        }
        head.push_str(header);
        head.push_str("\r\n");
    }
    let body = body.trim_end_matches('\n');
    if !body.is_empty() || method != "GET" {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    head.push_str(body);
    Ok(Some(head.into_bytes()))
}
