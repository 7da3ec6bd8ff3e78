use crate::sections::split_sections;
use crate::{ErrorClass, OriginFields, ParseOptions, Tags, parse_integer, text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CheckStatus {
    Ok = 0,
    Warning = 1,
    Critical = 2,
    Unknown = 3,
}

/// One service check. Optional text fields are empty when absent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceCheck<'a> {
    pub name: &'a str,
    pub status: CheckStatus,
    /// Unix seconds as the sender gave them, negative ones included.
    pub timestamp: Option<i64>,
    pub host: &'a str,
    /// As on the wire: `\n` stays two characters.
    pub message: &'a str,
    pub tags: Tags<'a>,
    pub origin: OriginFields<'a>,
}

/// Parses `_sc|name|status|fields`.
pub(crate) fn parse<'a>(line: &'a [u8], options: &ParseOptions) -> Result<ServiceCheck<'a>, ErrorClass> {
    let rest = line.strip_prefix(b"_sc|").ok_or(ErrorClass::BadCheckFormat)?;
    let name_end = memchr::memchr(b'|', rest).ok_or(ErrorClass::BadCheckFormat)?;
    let (name, rest) = (&rest[..name_end], &rest[name_end + 1..]);
    if name.is_empty() {
        return Err(ErrorClass::EmptyCheckName);
    }
    let name = text(name)?;
    let (status, fields) = match memchr::memchr(b'|', rest) {
        Some(pipe) => (&rest[..pipe], &rest[pipe + 1..]),
        None => (rest, &rest[rest.len()..]),
    };
    let status = match status {
        b"0" => CheckStatus::Ok,
        b"1" => CheckStatus::Warning,
        b"2" => CheckStatus::Critical,
        b"3" => CheckStatus::Unknown,
        _ => return Err(ErrorClass::BadCheckStatus),
    };
    let mut check = ServiceCheck {
        name,
        status,
        timestamp: None,
        host: "",
        message: "",
        tags: Tags::default(),
        origin: OriginFields::default(),
    };
    for field in split_sections(fields) {
        match field {
            [b'd', b':', value @ ..] => {
                if let Some(seconds) = parse_integer(value) {
                    check.timestamp = Some(seconds);
                }
            }
            [b'h', b':', value @ ..] => check.host = text(value)?,
            [b'm', b':', value @ ..] => check.message = text(value)?,
            [b'#', tags @ ..] => check.tags = Tags::parse(tags)?,
            _ if options.origin_client => {
                check.origin.take(field)?;
            }
            _ => {}
        }
    }
    Ok(check)
}
