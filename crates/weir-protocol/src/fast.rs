//! The shape nearly all metrics have, recognised in one pass over the few bytes that change from message to message.
//!
//! The simple version is [`crate::parse_line`]. This one leaves out work that a message seen before does not need: it does not
//! look at tags and origin fields at all (they are one opaque tail), and it does not validate UTF-8 (bytes equal to ones that
//! were validated are valid). It either understands a line exactly as the simple version does, or says nothing and leaves
//! it to that.

use crate::metric::usable_rate;
use crate::{Kind, Marks, MessageType, Scan, message_type, number};

/// A metric whose numbers are read and whose identity is still bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FastMetric {
    pub kind: Kind,
    /// `line[..name_end]` is the name.
    pub name_end: u32,
    /// `line[name_end + 1..value_end]` is the value field.
    pub value_end: u32,
    /// `line[tail..]` is everything after value, type and rate: empty, or from a `|` on. It may contain a second rate or a timestamp, which
    /// only the simple version detects: a tail may be cached only if that version found none.
    pub tail: u32,
    /// Numbers appended to the caller's buffer; zero for a set.
    pub count: u32,
    /// `1 / rate`.
    pub weight: f64,
    pub rate_error: bool,
}

/// Parses `line`, whose first colon is at `name_end`, and appends its numbers to `values`. `None`: the simple version must parse it.
/// The line begins at `from` of the packet that was scanned.
///
/// The result is meaningless for a line whose name or tail the simple version refuses (for example, a `|` before the colon); such a line is
/// never among those seen before.
#[inline(always)]
pub fn parse_fast(
    line: &[u8],
    name_end: usize,
    (scan, from): (&Scan, usize),
    values: &mut Vec<f64>,
) -> Option<FastMetric> {
    // Events and service checks begin with `_`; so do few metrics.
    if line.first() == Some(&b'_') && message_type(line) != MessageType::Metric {
        return None;
    }
    if name_end == 0 || name_end >= line.len() {
        return None;
    }
    let start = values.len();
    let marks = scan.marks(from + name_end + 1);
    let (value_end, count) = match parse_near_values(line, name_end, marks, values) {
        Some(found) => found,
        None => parse_far_values(line, name_end, (scan, from), values)?,
    };
    if value_end == name_end + 1 {
        return None;
    }
    let (kind, type_end) = parse_type(line, value_end + 1)?;
    let is_set = kind == Kind::Set;
    if is_set {
        values.truncate(start);
    } else if count == 0 {
        return None;
    }
    let (weight, rate_error, tail) = match line.get(type_end + 1) {
        Some(b'@') => {
            let (rate, end) = parse_rate(line, type_end + 2, (name_end, marks))?;
            if end < line.len() && line[end] != b'|' {
                return None;
            }
            let (rate, error) = usable_rate(rate);
            (1.0 / rate, error.is_some(), end)
        }
        _ => (1.0, false, type_end),
    };
    Some(FastMetric {
        kind,
        name_end: name_end as u32,
        value_end: value_end as u32,
        tail: tail as u32,
        count: if is_set { 0 } else { count },
        weight,
        rate_error,
    })
}

/// Reads the numbers of a value field that ends within `marks`, those of the 64 bytes behind the colon at `colon`. Returns the place of its `|`, and how
/// many numbers there are: none where one of them is no number, because a set's member may be anything. `None` if it ends further on.
///
/// The marks say where each number begins and ends before any of them is read. So the processor reads several at once, and it knows early
/// how many there are, which differs from message to message.
#[inline(always)]
fn parse_near_values(line: &[u8], colon: usize, marks: Marks, values: &mut Vec<f64>) -> Option<(usize, u32)> {
    let start = colon + 1;
    let length = marks.pipes.trailing_zeros();
    let pipe = start + length as usize;
    if pipe >= line.len() || marks.pipes == 0 {
        return None;
    }
    let mut ends = marks.colons & ((1 << length) - 1) | 1 << length;
    let count = ends.count_ones();
    let mut at = start;
    for _ in 0..count {
        let end = start + ends.trailing_zeros() as usize;
        ends &= ends - 1;
        let number = match number::parse_short(line, at, end) {
            Some(number) => number,
            // A set's member: whether it is a number does not matter.
            None if line.get(pipe + 1) == Some(&b's') => return Some((pipe, 0)),
            None => match number::parse_long(line, at, end) {
                Some(number) => number,
                None => return Some((pipe, 0)),
            },
        };
        values.push(number);
        at = end + 1;
    }
    Some((pipe, count))
}

#[inline(always)]
fn parse_value(line: &[u8], at: usize, end: usize) -> Option<f64> {
    match number::parse_short(line, at, end) {
        Some(number) => Some(number),
        None => number::parse_long(line, at, end),
    }
}

/// The rate at `at` and the place behind it; `marks` are those behind the colon. Nearly all rates are short, and end at a pipe or with the line.
#[inline(always)]
fn parse_rate(line: &[u8], at: usize, (colon, marks): (usize, Marks)) -> Option<(f64, usize)> {
    let pipes = marks.pipes.checked_shr((at - colon - 1) as u32).unwrap_or(0);
    let end = line.len().min(at + pipes.trailing_zeros() as usize);
    match number::parse_short(line, at, end) {
        Some(rate) => Some((rate, end)),
        None => number::read_number(line, at),
    }
}

/// [`parse_near_values`] for a field of any length. `None` if the line has no `|`.
#[inline(never)]
fn parse_far_values(
    line: &[u8],
    colon: usize,
    (scan, from): (&Scan, usize),
    values: &mut Vec<f64>,
) -> Option<(usize, u32)> {
    let mut at = colon + 1;
    let mut count = 0;
    loop {
        let marks = scan.marks(from + at);
        let length = (marks.colons | marks.pipes).trailing_zeros() as usize;
        let found = match length {
            0..64 if at + length < line.len() => {
                let number = parse_value(line, at, at + length);
                number.map(|number| (number, at + length))
            }
            _ => number::read_number(line, at),
        };
        let Some((number, end)) = found else { break };
        values.push(number);
        count += 1;
        match line.get(end) {
            Some(b'|') => return Some((end, count)),
            Some(b':') => at = end + 1,
            _ => break,
        }
    }
    let pipe = colon + 1 + memchr::memchr(b'|', &line[colon + 1..])?;
    Some((pipe, 0))
}

/// The type that each byte stands for, as an index into [`Kind::ALL`]; `m` must be followed by `s`. A table, because types differ
/// from message to message and a branch on them cannot be predicted.
const TYPES: [u8; 256] = {
    let mut types = [NO_TYPE; 256];
    types[b'c' as usize] = Kind::Counter as u8;
    types[b'g' as usize] = Kind::Gauge as u8;
    types[b's' as usize] = Kind::Set as u8;
    types[b'h' as usize] = Kind::Histogram as u8;
    types[b'm' as usize] = Kind::Timing as u8;
    types[b'd' as usize] = Kind::Distribution as u8;
    types
};

const NO_TYPE: u8 = Kind::COUNT as u8;

/// Reads the type at `at`. Returns it and the place behind it, which is the end of the line or a `|`.
#[inline(always)]
fn parse_type(line: &[u8], at: usize) -> Option<(Kind, usize)> {
    let kind = *Kind::ALL.get(usize::from(TYPES[usize::from(*line.get(at)?)]))?;
    let mut end = at + 1;
    if kind == Kind::Timing {
        if line.get(end) != Some(&b's') {
            return None;
        }
        end += 1;
    }
    matches!(line.get(end), None | Some(b'|')).then_some((kind, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Message, ParseOptions, Values, parse_line};
    use proptest::prelude::*;

    /// The fast version understands a line as the simple one does, or leaves it alone.
    fn check(line: &[u8]) {
        let mut values = Vec::new();
        let name_end = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        let mut scan = crate::Scan::new();
        scan.scan(line);
        let Some(fast) = parse_fast(line, name_end, (&scan, 0), &mut values) else {
            return;
        };
        let parsed = parse_line(
            line,
            &ParseOptions {
                origin_client: true,
                timestamps: true,
                eol_required: false,
            },
        );
        let tail = &line[fast.tail as usize..];
        assert!(tail.is_empty() || tail[0] == b'|');
        // Only the simple version can check the text itself and the tail.
        let Ok(Message::Metric(metric)) = parsed else {
            let utf8 = std::str::from_utf8(line).is_err() || line[..name_end].contains(&b'|');
            let tail_has_errors = tail
                .split(|&byte| byte == b'|')
                .any(|s| s.starts_with(b"@") || s.starts_with(b"T"));
            assert!(utf8 || tail_has_errors, "{:?}", line.escape_ascii().to_string());
            return;
        };
        assert_eq!(metric.name.as_bytes(), &line[..fast.name_end as usize]);
        assert_eq!(metric.kind, fast.kind);
        let field = &line[fast.name_end as usize + 1..fast.value_end as usize];
        match metric.values {
            Values::Member(member) => assert_eq!((member.as_bytes(), fast.count), (field, 0)),
            Values::Numbers(numbers) => {
                assert_eq!(
                    numbers.iter().map(f64::to_bits).collect::<Vec<_>>(),
                    values.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
                );
                assert_eq!(numbers.non_finite, 0);
                assert_eq!(values.len(), fast.count as usize);
            }
        }
        if !tail
            .split(|&byte| byte == b'|')
            .any(|section| section.starts_with(b"@"))
        {
            assert_eq!(1.0 / metric.rate, fast.weight);
            assert_eq!(metric.rate_error.is_some(), fast.rate_error);
        }
    }

    #[test]
    fn common_shapes_are_fast() {
        let mut nothing = Scan::new();
        nothing.scan(b"");
        for line in [
            "a:1|c",
            "page.views:1|c|#env:prod,role:web",
            "a:1.5:2:-3|d|@0.5|#t",
            "u:x:y|s|#t",
            "t:12.25|ms",
            "a:1|g|#t|c:ci-1",
            "u:12|s",
            "_private:1|c",
            "a:0.30000000000000004|g|#t",
            "a:-12.345678901234567:9223372036854775807:18446744073709551615|d|#t",
            "a:1e5|c",
            "a:+5:1E-7:6.02e+23:5e-324:0.0000000000000000000000001234567|h|@1e-1|#t",
            "page.views:0.30000000000000004:0.1:1e-7:9223372036854775807:0.3333333333333333:1.7976931348623157e308|d|#t",
        ] {
            let name_end = line.find(':').unwrap();
            let mut scanned = Scan::new();
            scanned.scan(line.as_bytes());
            for scan in [&nothing, &scanned] {
                let fast = parse_fast(line.as_bytes(), name_end, (scan, 0), &mut Vec::new());
                assert!(fast.is_some(), "{line}");
            }
            check(line.as_bytes());
        }
    }

    #[test]
    fn packed_values_of_any_length_up_to_an_empty_one_are_left_alone() {
        check(b"a0:00000:00000000:00000000:000000:0:000000000:0:00000000:00:0000000:");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the test reads the vectors")]
    fn vectors() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/protocol.jsonl");
        let few = if cfg!(miri) { 20 } else { usize::MAX };
        for line in std::fs::read_to_string(path).unwrap().lines().take(few) {
            let vector: serde_json::Value = serde_json::from_str(line).unwrap();
            for line in vector["input"]
                .as_str()
                .unwrap_or_default()
                .split('\n')
                .filter(|line| !line.is_empty())
            {
                check(line.as_bytes());
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 2000 }))]
        #[test]
        fn equals_the_simple_version(
            line in "(_e|a|a\\.b||é)[:|]?(-?[0-9.:e]{0,6}|([0-9]{1,9}:){0,12}[0-9]?|x:y|nan)\\|?(c|g|s|ms|m|h|d|cc)?(\\|@[0-9.]{0,3})?(\\|#?[a-c:,@T1]{0,5}){0,2}",
        ) {
            check(line.as_bytes());
        }

        #[test]
        fn long_numbers_equal_the_simple_version_s(
            line in "(a|page\\.views\\.of\\.the\\.shop):([+-]?[0-9]{0,20}(\\.[0-9]{0,20})?([eE]-?[0-9]{0,3})?:){0,6}[0-9.e-]{1,25}(\\|(d|s)(\\|@[0-9.e-]{0,6})?(\\|#a)?)?",
        ) {
            check(line.as_bytes());
        }
    }
}
