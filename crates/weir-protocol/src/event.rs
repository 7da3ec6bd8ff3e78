use crate::sections::split_sections;
use crate::{ErrorClass, OriginFields, ParseOptions, Tags, parse_integer, text};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    #[default]
    Normal,
    Low,
}

impl Priority {
    pub const fn as_str(self) -> &'static str {
        match self {
            Priority::Normal => "normal",
            Priority::Low => "low",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlertType {
    #[default]
    Info,
    Success,
    Warning,
    Error,
}

impl AlertType {
    pub const fn as_str(self) -> &'static str {
        match self {
            AlertType::Info => "info",
            AlertType::Success => "success",
            AlertType::Warning => "warning",
            AlertType::Error => "error",
        }
    }
}

/// One event. Title and text are still escaped: pass them through [`unescape_newlines`] before showing them.
/// Optional text fields are empty when absent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event<'a> {
    pub title: &'a str,
    pub text: &'a str,
    /// Unix seconds as the sender gave them, negative ones included.
    pub timestamp: Option<i64>,
    pub host: &'a str,
    pub aggregation_key: &'a str,
    pub source_type: &'a str,
    pub priority: Priority,
    pub alert_type: AlertType,
    pub tags: Tags<'a>,
    pub origin: OriginFields<'a>,
}

/// The two characters `\n` become a newline. The declared lengths count the escaped bytes.
pub fn unescape_newlines(escaped: &str) -> std::borrow::Cow<'_, str> {
    if escaped.contains("\\n") {
        escaped.replace("\\n", "\n").into()
    } else {
        escaped.into()
    }
}

/// Parses `_e{title bytes,text bytes}:title|text|fields`.
pub(crate) fn parse<'a>(line: &'a [u8], options: &ParseOptions) -> Result<Event<'a>, ErrorClass> {
    let (title_bytes, text_bytes, body) = header(line).ok_or(ErrorClass::BadEventHeader)?;
    if title_bytes == 0 {
        return Err(ErrorClass::EmptyTitle);
    }
    let (title, rest) = body
        .split_at_checked(title_bytes)
        .ok_or(ErrorClass::EventTooShort)?;
    let rest = rest.strip_prefix(b"|").ok_or(ErrorClass::EventTooShort)?;
    let (event_text, rest) = rest
        .split_at_checked(text_bytes)
        .ok_or(ErrorClass::EventTooShort)?;
    let fields = match rest {
        [] => rest,
        [b'|', fields @ ..] => fields,
        _ => return Err(ErrorClass::EventTooShort),
    };
    let mut event = Event {
        title: text(title)?,
        text: text(event_text)?,
        timestamp: None,
        host: "",
        aggregation_key: "",
        source_type: "",
        priority: Priority::default(),
        alert_type: AlertType::default(),
        tags: Tags::default(),
        origin: OriginFields::default(),
    };
    for field in split_sections(fields) {
        take_field(&mut event, field, options)?;
    }
    Ok(event)
}

fn take_field<'a>(event: &mut Event<'a>, field: &'a [u8], options: &ParseOptions) -> Result<(), ErrorClass> {
    match field {
        // A malformed optional field keeps its default: the event is worth more than its decoration.
        [b'd', b':', value @ ..] => {
            if let Some(seconds) = parse_integer(value) {
                event.timestamp = Some(seconds);
            }
        }
        [b'h', b':', value @ ..] => event.host = text(value)?,
        [b'k', b':', value @ ..] => event.aggregation_key = text(value)?,
        [b's', b':', value @ ..] => event.source_type = text(value)?,
        [b'p', b':', value @ ..] => match value {
            b"normal" => event.priority = Priority::Normal,
            b"low" => event.priority = Priority::Low,
            _ => {}
        },
        [b't', b':', value @ ..] => match value {
            b"info" => event.alert_type = AlertType::Info,
            b"success" => event.alert_type = AlertType::Success,
            b"warning" => event.alert_type = AlertType::Warning,
            b"error" => event.alert_type = AlertType::Error,
            _ => {}
        },
        [b'#', tags @ ..] => event.tags = Tags::parse(tags)?,
        _ if options.origin_client => {
            event.origin.take(field)?;
        }
        _ => {}
    }
    Ok(())
}

/// Reads `_e{T,X}:` and returns both lengths and the rest.
fn header(line: &[u8]) -> Option<(usize, usize, &[u8])> {
    let rest = line.strip_prefix(b"_e{")?;
    let close = memchr::memchr(b'}', rest)?;
    let (lengths, rest) = (&rest[..close], &rest[close + 1..]);
    let body = rest.strip_prefix(b":")?;
    let comma = memchr::memchr(b',', lengths)?;
    Some((length(&lengths[..comma])?, length(&lengths[comma + 1..])?, body))
}

fn length(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}
