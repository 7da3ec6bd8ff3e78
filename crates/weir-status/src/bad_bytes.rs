//! The part of a message that is invalid, as text.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Maximum displayed bytes of a message.
pub const SHOWN_BYTES: usize = 4096;

/// Bytes shown on either side of the error in a longer message.
const AROUND_BYTES: usize = 1024;

/// The invalid bytes: their position in the message, and as text with context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadBytes {
    pub offset: usize,
    pub length: usize,
    pub before: String,
    pub bytes: String,
    pub after: String,
}

impl BadBytes {
    pub fn of(line: &[u8], range: std::ops::Range<usize>) -> BadBytes {
        let from = range.start.saturating_sub(AROUND_BYTES);
        let to = (range.end + AROUND_BYTES).min(line.len());
        let cut = |part: &[u8]| text(&part[..part.len().min(SHOWN_BYTES)]);
        BadBytes {
            offset: range.start,
            length: range.len(),
            before: text(&line[from..range.start]),
            bytes: cut(&line[range.clone()]),
            after: text(&line[range.end..to]),
        }
    }

    /// The position in words.
    pub fn place(&self) -> String {
        match self.length {
            1 => format!("byte {}", self.offset),
            length => format!("bytes {} to {}", self.offset, self.offset + length - 1),
        }
    }
}

/// As visible characters on one line.
pub fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if weir_config::is_invisible(c) {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}
