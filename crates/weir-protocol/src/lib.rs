//! The DogStatsD wire protocol: bytes of one packet to borrowed messages, and messages back to bytes.
//!
//! This crate never does I/O, reads a clock, allocates per message or keeps global state.
//! Every function is total: any byte string gives messages or an [`ErrorClass`], never a panic.
//!
//! ```
//! use weir_protocol::{parse_packet, Message, ParseOptions};
//!
//! let mut names = Vec::new();
//! for parsed in parse_packet(b"page.views:1|c|#env:prod\nbroken", &ParseOptions::default()) {
//!     if let Ok(Message::Metric(metric)) = parsed {
//!         names.push(metric.name);
//!     }
//! }
//! assert_eq!(names, ["page.views"]);
//! ```

mod check;
mod encode;
mod error;
mod event;
mod fast;
#[cfg(feature = "json")]
pub mod json;
mod lines;
mod locate;
mod metric;
mod number;
mod origin;
pub mod route;
mod scale;
mod scan;
mod sections;
mod shared_routes;
mod sixteen;

pub use check::{CheckStatus, ServiceCheck};
pub use encode::{encode_check, encode_event, encode_metric};
pub use error::ErrorClass;
pub use event::{AlertType, Event, Priority, unescape_newlines};
pub use fast::{FastMetric, parse_fast};
pub use lines::{Line, Lines, SampleList};
pub use locate::locate;
pub use metric::{Kind, Metric, Numbers, RateError, SAMPLE_RATE_MIN, Values};
pub use number::{parse_integer, parse_number};
pub use origin::{ExternalData, LocalData, OriginFields};
pub use route::{Routes, route_slot};
pub use scan::{Marks, Scan, separators};
pub use sections::{SpecialTag, Tags, may_be_special, special_tag, unknown_sections};
pub use shared_routes::SharedRoutes;

/// The extensions that the listener's configuration enables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseOptions {
    /// Recognise the sections `c:`, `e:` and `card:`. Off: they are unknown sections and ignored.
    pub origin_client: bool,
    /// Recognise the section `T`. Off: it is an unknown section and ignored.
    pub timestamps: bool,
    /// Refuse a last line that lacks its newline, with [`ErrorClass::Unterminated`].
    pub eol_required: bool,
}

impl Default for ParseOptions {
    /// The product's defaults: timestamps are understood, client origin fields are not, a missing last newline is fine.
    fn default() -> Self {
        ParseOptions {
            origin_client: false,
            timestamps: true,
            eol_required: false,
        }
    }
}

/// One line of a packet, understood.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Message<'a> {
    Metric(Metric<'a>),
    Event(Event<'a>),
    Check(ServiceCheck<'a>),
}

/// Parses every line of a packet, in order. A bad line never affects the others.
pub fn parse_packet<'a>(
    packet: &'a [u8],
    options: &ParseOptions,
) -> impl Iterator<Item = Result<Message<'a>, ErrorClass>> {
    let options = *options;
    Lines::new(packet).map(move |line| {
        if options.eol_required && !line.terminated {
            return Err(ErrorClass::Unterminated);
        }
        parse_line(line.bytes, &options)
    })
}

/// Parses one non-empty line that carries neither its newline nor the carriage return before it.
pub fn parse_line<'a>(line: &'a [u8], options: &ParseOptions) -> Result<Message<'a>, ErrorClass> {
    match message_type(line) {
        MessageType::Event => event::parse(line, options).map(Message::Event),
        MessageType::Check => check::parse(line, options).map(Message::Check),
        MessageType::Metric => metric::parse(line, options).map(Message::Metric),
    }
}

/// The type of a line, by its first bytes alone. Garbage counts as a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    Metric,
    Event,
    Check,
}

/// Dispatches on the prefix: `_e{` is an event, `_sc|` a service check, anything else a metric.
#[inline]
pub fn message_type(line: &[u8]) -> MessageType {
    if line.first() != Some(&b'_') {
        MessageType::Metric
    } else if line.starts_with(b"_e{") {
        MessageType::Event
    } else if line.starts_with(b"_sc|") {
        MessageType::Check
    } else {
        MessageType::Metric
    }
}

/// A field that must be text.
fn text(bytes: &[u8]) -> Result<&str, ErrorClass> {
    std::str::from_utf8(bytes).map_err(|_| ErrorClass::InvalidUtf8)
}
