//! Durations, sizes, counts, addresses and networks, read and printed one way everywhere: in configuration files, on command lines and in
//! the measuring rig. Text in, value out; never any I/O.

mod address;
mod count;
mod duration;
mod network;
mod size;

pub use address::{
    Address, AddressError, AddressErrorKind, UNIX_PATH_BYTES_MAX, is_abstract, is_localhost, loopbacks,
};
pub use count::{counted, grouped, unit_of};
pub use duration::{DURATION_MAX, parse_duration, parse_duration_or_seconds, show_duration};
pub use network::{Network, NetworkError};
pub use size::{parse_size, parse_size_any_case, show_size, size_unit};

use std::fmt;

/// The text is no duration or no size. The message has the text, the error and the allowed forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError(String);

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnitError {}

/// Splits `1.5 GiB` into number and unit; underscores may group digits. `None` when it does not start with a number.
pub fn split_number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let number = digits.replace('_', "").parse().ok()?;
    Some((number, unit.trim()))
}
