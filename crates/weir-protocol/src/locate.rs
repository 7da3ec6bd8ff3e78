//! Locates the error in a rejected line, for users. Not on the path of messages: the line is parsed again.

use std::ops::Range;

use crate::sections::split_sections;
use crate::{ErrorClass, MessageType, ParseOptions, message_type, parse_integer, parse_line, parse_number};

/// Byte sequences that are not UTF-8 which are looked at one by one.
const INVALID_MAX: usize = 64;

/// The bytes of a line that [`parse_line`] rejects with `class`, or would reject if it checked further. Never empty: for a missing part,
/// the bytes in its place.
pub fn locate(line: &[u8], class: ErrorClass, options: &ParseOptions) -> Range<usize> {
    let found = match class {
        ErrorClass::InvalidUtf8 => invalid_text(line, options),
        ErrorClass::Unterminated => line.len().saturating_sub(1)..line.len(),
        _ => match message_type(line) {
            MessageType::Event => event(line, class),
            MessageType::Check => check(line, class),
            MessageType::Metric => metric(line, class),
        },
    };
    widen(found, line.len())
}

/// Extends an empty range to the previous byte, or to the next one at the start.
fn widen(range: Range<usize>, length: usize) -> Range<usize> {
    let end = range.end.min(length);
    let start = range.start.min(end);
    match (start < end, start) {
        (true, _) => start..end,
        (false, 0) => 0..length.min(1),
        (false, _) => start - 1..start,
    }
}

fn metric(line: &[u8], class: ErrorClass) -> Range<usize> {
    let pipe = memchr::memchr(b'|', line).unwrap_or(line.len());
    let Some(colon) = memchr::memchr(b':', &line[..pipe]) else {
        let end = if class == ErrorClass::NoValue {
            pipe
        } else {
            line.len()
        };
        return 0..end;
    };
    let value = colon + 1..pipe;
    let kind_start = (pipe + 1).min(line.len());
    let kind_end = memchr::memchr(b'|', &line[kind_start..]).map_or(line.len(), |end| kind_start + end);
    match class {
        ErrorClass::EmptyName => 0..colon + 1,
        ErrorClass::NoValue | ErrorClass::NoFiniteValue => value,
        ErrorClass::BadType => kind_start..kind_end,
        ErrorClass::BadValue => bad_item(line, value),
        ErrorClass::BadSampleRate => section(line, kind_end, |section| {
            section[0] == b'@' && parse_number(&section[1..]).is_none()
        }),
        ErrorClass::BadTimestamp => section(line, kind_end, |section| {
            section[0] == b'T' && parse_integer(&section[1..]).is_none_or(|seconds| seconds <= 0)
        }),
        _ => 0..line.len(),
    }
}

/// The first of packed values that is not a number; all of them if the part is empty.
fn bad_item(line: &[u8], values: Range<usize>) -> Range<usize> {
    let field = &line[values.clone()];
    let mut items = field
        .split(|&byte| byte == b':')
        .filter(|item| !item.is_empty() && parse_number(item).is_none());
    items.next().map_or(values, |item| place(line, item))
}

/// The first section behind `start` of which `bad` holds.
fn section(line: &[u8], start: usize, bad: impl Fn(&[u8]) -> bool) -> Range<usize> {
    let sections = line.get(start + 1..).unwrap_or_default();
    let mut found = split_sections(sections).filter(|section| bad(section));
    found.next().map_or(0..line.len(), |section| place(line, section))
}

/// Position of a part of the line.
fn place(line: &[u8], part: &[u8]) -> Range<usize> {
    let start = part.as_ptr() as usize - line.as_ptr() as usize;
    start..start + part.len()
}

fn check(line: &[u8], class: ErrorClass) -> Range<usize> {
    let name = b"_sc|".len();
    let name_end = memchr::memchr(b'|', &line[name..]).map_or(line.len(), |end| name + end);
    let status = (name_end + 1).min(line.len());
    let status_end = memchr::memchr(b'|', &line[status..]).map_or(line.len(), |end| status + end);
    match class {
        ErrorClass::EmptyCheckName => name..name_end,
        ErrorClass::BadCheckStatus => status..status_end,
        _ => 0..line.len(),
    }
}

fn event(line: &[u8], class: ErrorClass) -> Range<usize> {
    let close = memchr::memchr(b'}', line);
    match (class, close) {
        (ErrorClass::EmptyTitle, Some(close)) => {
            let comma = memchr::memchr(b',', &line[..close]).unwrap_or(close);
            b"_e{".len()..comma
        }
        (ErrorClass::EventTooShort, Some(close)) => too_short(line, close),
        (_, Some(close)) => 0..(close + 2).min(line.len()),
        (_, None) => 0..memchr::memchr(b'|', line).unwrap_or(line.len()),
    }
}

/// The bytes in the place that the declared lengths exceed.
fn too_short(line: &[u8], close: usize) -> Range<usize> {
    let length = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<usize>().ok();
    let mut lengths = line[b"_e{".len()..close]
        .splitn(2, |&byte| byte == b',')
        .map(length);
    let (Some(Some(title)), Some(Some(text))) = (lengths.next(), lengths.next()) else {
        return 0..line.len();
    };
    let begin = close + 2;
    let title_end = begin.saturating_add(title);
    if title_end >= line.len() {
        return begin..line.len();
    }
    if line[title_end] != b'|' {
        return title_end..title_end + 1;
    }
    let text_begin = title_end + 1;
    let text_end = text_begin.saturating_add(text);
    if text_end > line.len() {
        return text_begin..line.len();
    }
    text_end..text_end + 1
}

/// The first invalid sequence that causes the error; text that the parser ignores may contain others.
fn invalid_text(line: &[u8], options: &ParseOptions) -> Range<usize> {
    let sequences: Vec<Range<usize>> = invalid_sequences(line).take(INVALID_MAX).collect();
    let mut rest = line.to_vec();
    sequences
        .iter()
        .for_each(|sequence| rest[sequence.clone()].fill(b'?'));
    let matters = |sequence: &&Range<usize>| {
        let mut alone = rest.clone();
        alone[(*sequence).clone()].copy_from_slice(&line[(*sequence).clone()]);
        parse_line(&alone, options) == Err(ErrorClass::InvalidUtf8)
    };
    sequences
        .iter()
        .find(matters)
        .or(sequences.first())
        .cloned()
        .unwrap_or(0..line.len())
}

fn invalid_sequences(line: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let error = std::str::from_utf8(&line[from..]).err()?;
        let start = from + error.valid_up_to();
        from = error.error_len().map_or(line.len(), |length| start + length);
        Some(start..from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OPTIONS: ParseOptions = ParseOptions {
        origin_client: true,
        timestamps: true,
        eol_required: false,
    };

    fn marked(line: &[u8]) -> (ErrorClass, String) {
        let class = parse_line(line, &OPTIONS).unwrap_err();
        let range = locate(line, class, &OPTIONS);
        (class, line[range].escape_ascii().to_string())
    }

    #[test]
    fn the_wrong_bytes_are_marked() {
        use ErrorClass::*;
        for (line, class, bytes) in [
            (&b"no metric"[..], NoSeparator, "no metric"),
            (b"name|c", NoValue, "name"),
            (b"name:|c", NoValue, ":"),
            (b":1|c", EmptyName, ":"),
            (b"a:1|x|#t", BadType, "x"),
            (b"a:1|", BadType, "|"),
            (b"a:1:zwei:3|c", BadValue, "zwei"),
            (b"a:::|c", BadValue, "::"),
            (b"a:nan|g", NoFiniteValue, "nan"),
            (b"a:1|c|#t:1|@half", BadSampleRate, "@half"),
            (b"a:1|c|@0.5|@|#x", BadSampleRate, "@"),
            (b"a:1|c|T-4", BadTimestamp, "T-4"),
            (b"_e{2}:ab|c", BadEventHeader, "_e{2}:"),
            (b"_e{2,1:ab|c", BadEventHeader, "_e{2,1:ab"),
            (b"_e{0,1}:|c", EmptyTitle, "0"),
            (b"_e{5,1}:ab", EventTooShort, "ab"),
            (b"_e{2,1}:abc|d", EventTooShort, "c"),
            (b"_e{2,9}:ab|text", EventTooShort, "text"),
            (b"_e{2,2}:ab|text", EventTooShort, "x"),
            (b"_sc|name", BadCheckFormat, "_sc|name"),
            (b"_sc||0", EmptyCheckName, "|"),
            (b"_sc|name|7|m:x", BadCheckStatus, "7"),
            (b"a\xff\xfe:1|c", InvalidUtf8, "\\xff"),
            // The parser ignores the first one.
            (b"a:1|c|x\xff|#k:\xc3\x28", InvalidUtf8, "\\xc3"),
        ] {
            assert_eq!(marked(line), (class, bytes.to_owned()), "{}", line.escape_ascii());
        }
        assert_eq!(locate(b"a:1|c", Unterminated, &OPTIONS), 4..5);
    }

    proptest! {
        #[test]
        fn what_is_marked_is_in_the_line(
            line in prop::collection::vec(prop::sample::select(b"_e{},0129:|@T#sca\xff\xc3-".to_vec()), 1..40),
            class in 0..ErrorClass::COUNT,
        ) {
            let classes = [parse_line(&line, &OPTIONS).err(), Some(ErrorClass::ALL[class])];
            for class in classes.into_iter().flatten() {
                let range = locate(&line, class, &OPTIONS);
                prop_assert!(range.start < range.end && range.end <= line.len(), "{range:?}");
            }
        }
    }
}
