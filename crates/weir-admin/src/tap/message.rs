//! One displayed message: its sender, its verdict, and its invalid bytes.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use weir_ingest::{ListenerSettings, PacketOutcome};
use weir_protocol::{ErrorClass, Lines, Message, ParseOptions, SampleList, Tags, locate, parse_line};
use weir_status::bad_bytes::{BadBytes, SHOWN_BYTES, text};

/// A message, for users.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TailMessage {
    /// Unix seconds of its receipt.
    pub time: f64,
    pub listener: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// As text, truncated. Invalid UTF-8 and invisible characters are escaped.
    pub line: String,
    /// Its length.
    pub bytes: usize,
    pub verdict: MessageOutcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The invalid bytes of a rejected message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad: Option<BadBytes>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageOutcome {
    #[default]
    Accepted,
    /// Not a valid message.
    Rejected,
    /// A rule drops it, or no output takes it, such as for its timestamp.
    Dropped,
    /// Its sender is not allowed, or above its rate.
    Refused,
    /// Its context met a limit.
    Limited,
}

impl MessageOutcome {
    pub fn as_str(self) -> &'static str {
        match self {
            MessageOutcome::Accepted => "accepted",
            MessageOutcome::Rejected => "rejected",
            MessageOutcome::Dropped => "dropped",
            MessageOutcome::Refused => "refused",
            MessageOutcome::Limited => "limited",
        }
    }
}

/// The beginning of a message as text.
pub fn shown(line: &[u8]) -> String {
    if line.len() <= SHOWN_BYTES {
        return text(line);
    }
    text(&line[..SHOWN_BYTES]) + "..."
}

/// A line of a packet, parsed as by its worker.
pub struct ParsedLine<'a> {
    pub bytes: &'a [u8],
    pub parsed: Result<Message<'a>, Rejection>,
}

/// Why a line is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    Class(ErrorClass),
    /// The socket truncated it.
    Truncated,
}

/// The lines of a packet.
pub fn lines<'a>(
    packet: &'a [u8],
    truncated: bool,
    options: &'a ParseOptions,
) -> impl Iterator<Item = ParsedLine<'a>> {
    Lines::new(packet).map(move |line| {
        let parsed = if !line.terminated && truncated {
            Err(Rejection::Truncated)
        } else if !line.terminated && options.eol_required {
            Err(Rejection::Class(ErrorClass::Unterminated))
        } else {
            parse_line(line.bytes, options).map_err(Rejection::Class)
        };
        ParsedLine {
            bytes: line.bytes,
            parsed,
        }
    })
}

/// A packet with each sample of a line with several samples on a line of its own, at a listener that reads them so.
pub fn samples_apart<'a>(packet: &'a [u8], reading: &ListenerSettings) -> Cow<'a, [u8]> {
    let list_of = |line: &'a [u8]| match parse_line(line, &reading.parse) {
        Ok(_) => None,
        Err(_) => SampleList::of(line),
    };
    let has_list = || Lines::new(packet).any(|line| list_of(line.bytes).is_some());
    if !reading.sample_lists || !has_list() {
        return Cow::Borrowed(packet);
    }
    let mut apart = Vec::new();
    for line in Lines::new(packet) {
        match list_of(line.bytes) {
            Some(list) => list.lines().for_each(|sample| {
                apart.extend_from_slice(&sample);
                apart.push(b'\n');
            }),
            None => {
                apart.extend_from_slice(line.bytes);
                if line.terminated {
                    apart.push(b'\n');
                }
            }
        }
    }
    Cow::Owned(apart)
}

impl ParsedLine<'_> {
    /// The reason for the rejection, and the invalid bytes.
    pub fn bad(&self, options: &ParseOptions) -> Option<(&'static str, BadBytes)> {
        let (reason, range) = match self.parsed.as_ref().err()? {
            Rejection::Truncated => {
                let end = self.bytes.len();
                ("truncated", end.saturating_sub(1)..end)
            }
            Rejection::Class(class) => (class.as_str(), locate(self.bytes, *class, options)),
        };
        Some((reason, BadBytes::of(self.bytes, range)))
    }
}

/// A filter for messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// Matches the name; everything if empty.
    pub pattern: String,
    /// Required tags, with any value if only a key is given.
    pub tags: Vec<(String, Option<String>)>,
    pub rejected_only: bool,
}

impl MessageFilter {
    pub fn everything(&self) -> bool {
        *self == MessageFilter::default()
    }

    pub fn wants(&self, line: &ParsedLine<'_>) -> bool {
        (!self.rejected_only || line.parsed.is_err()) && self.fits_name(line) && self.fits_tags(line)
    }

    fn fits_name(&self, line: &ParsedLine<'_>) -> bool {
        let fits = |name: &str| weir_history::matches(&self.pattern, name);
        if self.pattern.is_empty() {
            return true;
        }
        match &line.parsed {
            Ok(Message::Metric(metric)) => fits(metric.name),
            Ok(Message::Event(event)) => fits(event.title),
            Ok(Message::Check(check)) => fits(check.name),
            // Without a valid name, the complete line may match too.
            Err(_) => {
                let whole = String::from_utf8_lossy(line.bytes);
                let name = whole.split([':', '|']).next().unwrap_or_default();
                fits(name) || fits(&whole)
            }
        }
    }

    fn fits_tags(&self, line: &ParsedLine<'_>) -> bool {
        if self.tags.is_empty() {
            return true;
        }
        match &line.parsed {
            Ok(Message::Metric(metric)) => self.are_in(metric.tags),
            Ok(Message::Event(event)) => self.are_in(event.tags),
            Ok(Message::Check(check)) => self.are_in(check.tags),
            Err(_) => self.are_in(Tags::from_text(&tag_section(line.bytes))),
        }
    }

    fn are_in(&self, tags: Tags<'_>) -> bool {
        let has = |(key, value): &(String, Option<String>)| {
            tags.iter().any(|tag| match (tag.split_once(':'), value) {
                (Some((own, found)), Some(value)) => own == key && found == value,
                (Some((own, _)), None) => own == key,
                (None, None) => tag == key,
                (None, Some(_)) => false,
            })
        };
        self.tags.iter().all(has)
    }

    /// The same for a series of columns with this name and these tags, joined by commas.
    pub fn wants_named(&self, name: &str, tags: &str, is_rejected: bool) -> bool {
        (!self.rejected_only || is_rejected)
            && (self.pattern.is_empty() || weir_history::matches(&self.pattern, name))
            && (self.tags.is_empty() || self.are_in(Tags::from_text(tags)))
    }
}

/// The text after the last `|#` of an invalid line.
fn tag_section(line: &[u8]) -> String {
    let sections = line.split(|&byte| byte == b'|');
    let mut tags = sections.filter_map(|section| section.strip_prefix(b"#"));
    tags.next_back()
        .map(|tags| String::from_utf8_lossy(tags).into_owned())
        .unwrap_or_default()
}

/// The verdict about a packet, if it applies to all of its messages.
pub fn refusal(outcome: &PacketOutcome) -> Option<&'static str> {
    match outcome.refused {
        Some(refusal) => Some(refusal.as_str()),
        None => outcome.rate_limited.then_some("origin_rate_limited"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: ParseOptions = ParseOptions {
        origin_client: false,
        timestamps: true,
        eol_required: false,
    };

    fn wanted(pattern: &str, tags: &[(&str, Option<&str>)]) -> MessageFilter {
        let tags = tags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)));
        MessageFilter {
            pattern: pattern.to_owned(),
            tags: tags.collect(),
            rejected_only: false,
        }
    }

    fn fits(wanted: &MessageFilter, line: &str) -> bool {
        lines(line.as_bytes(), false, &OPTIONS).all(|line| wanted.wants(&line))
    }

    #[test]
    fn names_and_tags_are_matched_in_any_message() {
        assert!(fits(&wanted("", &[]), "a:1|c"));
        assert!(fits(&wanted("PAGE.*", &[]), "page.views:1|c"));
        assert!(!fits(&wanted("page.*", &[]), "a.page.views:1|c"));
        assert!(fits(&wanted("views", &[]), "page.views:x|c"), "rejected");
        assert!(fits(&wanted("*.views", &[]), "page.views:x|c"), "rejected");
        assert!(fits(&wanted("disk", &[]), "_sc|disk.full|1"));
        assert!(fits(&wanted("dep*", &[]), "_e{6,1}:deploy|x"));
        let user = wanted("", &[("user", Some("ann")), ("env", None)]);
        assert!(fits(&user, "a:1|c|#env:prod,user:ann"));
        assert!(fits(&user, "a:x|c|#env:prod,user:ann"), "rejected");
        assert!(fits(&user, "a:1|c|#env,user:ann"));
        assert!(!fits(&user, "a:1|c|#user:ann"));
        assert!(!fits(&user, "a:1|c|#env:prod,user:anna"));
    }

    #[test]
    fn samples_of_a_list_are_lines_of_their_own() {
        let reading = |sample_lists| ListenerSettings {
            sample_lists,
            ..OPTIONS.into()
        };
        let packet = b"a:1|c:2|c\nb:1|c\nc:1|g:x|g";
        let apart = samples_apart(packet, &reading(true));
        assert_eq!(&*apart, b"a:1|c\na:2|c\nb:1|c\nc:1|g\nc:x|g\n");
        assert_eq!(&*samples_apart(packet, &reading(false)), packet);
    }

    #[test]
    fn errors_have_position_and_reason() {
        let of = |packet: &[u8], truncated, options: &ParseOptions| {
            let line = lines(packet, truncated, options).last().unwrap();
            let (reason, bad) = line.bad(options).unwrap();
            (reason, bad.offset, bad.before, bad.bytes, bad.after)
        };
        let text = str::to_owned;
        assert_eq!(
            of(b"a:1|c\nb:\x01zwei|c|#x\xff", false, &OPTIONS),
            ("bad_value", 2, text("b:"), text("\\u{1}zwei"), text("|c|#x\\xff"))
        );
        assert_eq!(of(b"a:1|c", true, &OPTIONS).0, "truncated");
        let strict = ParseOptions {
            eol_required: true,
            ..OPTIONS
        };
        assert_eq!(of(b"a:1|c", false, &strict).0, "unterminated");
        let long = [b"a:".as_slice(), &[b'x'; 60_000], b"|c"].concat();
        let (_, offset, _, bytes, _) = of(&long, false, &OPTIONS);
        assert!(offset == 2 && bytes.len() == SHOWN_BYTES);
    }
}
