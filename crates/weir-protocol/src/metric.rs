use crate::sections::split_sections;
use crate::{ErrorClass, OriginFields, ParseOptions, Tags, parse_integer, parse_number, text};

/// The kind of a metric; part of a context's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    Counter = 0,
    Gauge = 1,
    Set = 2,
    Histogram = 3,
    Timing = 4,
    Distribution = 5,
}

impl Kind {
    pub const COUNT: usize = 6;
    pub const ALL: [Kind; Kind::COUNT] = [
        Kind::Counter,
        Kind::Gauge,
        Kind::Set,
        Kind::Histogram,
        Kind::Timing,
        Kind::Distribution,
    ];

    /// The type field of the wire.
    #[inline]
    pub fn from_wire(field: &[u8]) -> Option<Kind> {
        match field {
            b"c" => Some(Kind::Counter),
            b"g" => Some(Kind::Gauge),
            b"s" => Some(Kind::Set),
            b"h" => Some(Kind::Histogram),
            b"ms" => Some(Kind::Timing),
            b"d" => Some(Kind::Distribution),
            _ => None,
        }
    }

    pub const fn wire(self) -> &'static str {
        match self {
            Kind::Counter => "c",
            Kind::Gauge => "g",
            Kind::Set => "s",
            Kind::Histogram => "h",
            Kind::Timing => "ms",
            Kind::Distribution => "d",
        }
    }

    /// The name used in counters and status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Set => "set",
            Kind::Histogram => "histogram",
            Kind::Timing => "timing",
            Kind::Distribution => "distribution",
        }
    }
}

/// The smallest sample rate in use; smaller ones are raised to it, which bounds one message's weight at about 2.6e8.
pub const SAMPLE_RATE_MIN: f64 = 3.845e-9;

/// A sample rate that parses but cannot be used: the sample counts once, and the error is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateError {
    /// Zero, negative, above one, or not finite.
    OutOfRange,
}

/// One metric message. Values are unscaled: the sample rate is not applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric<'a> {
    pub name: &'a str,
    pub kind: Kind,
    pub values: Values<'a>,
    /// In (0, 1]; 1 where the message gave none or an unusable one.
    pub rate: f64,
    pub rate_error: Option<RateError>,
    pub tags: Tags<'a>,
    /// Unix seconds, positive.
    pub timestamp: Option<i64>,
    pub origin: OriginFields<'a>,
}

/// The value field of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values<'a> {
    Numbers(Numbers<'a>),
    /// The single member of a set message; it may contain `:`.
    Member(&'a str),
}

/// One or several packed numbers, all well formed, at least one of them finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers<'a> {
    field: &'a [u8],
    /// Values left out because they are NaN or infinite.
    pub non_finite: u32,
}

impl<'a> Numbers<'a> {
    fn parse(field: &'a [u8]) -> Result<Self, ErrorClass> {
        let mut finite = 0u32;
        let mut non_finite = 0u32;
        for item in items(field) {
            let number = parse_number(item).ok_or(ErrorClass::BadValue)?;
            if number.is_finite() {
                finite += 1;
            } else {
                non_finite += 1;
            }
        }
        match (finite, non_finite) {
            (0, 0) => Err(ErrorClass::BadValue),
            (0, _) => Err(ErrorClass::NoFiniteValue),
            _ => Ok(Numbers { field, non_finite }),
        }
    }

    /// The finite values in wire order.
    pub fn iter(&self) -> impl Iterator<Item = f64> + use<'a> {
        items(self.field)
            .filter_map(parse_number)
            .filter(|number| number.is_finite())
    }

    /// The finite values, each with whether it was written with a sign: plain StatsD reads a signed gauge as a change.
    pub fn iter_signed(&self) -> impl Iterator<Item = (f64, bool)> + use<'a> {
        items(self.field)
            .filter_map(|item| Some((parse_number(item)?, matches!(item[0], b'+' | b'-'))))
            .filter(|(number, _)| number.is_finite())
    }
}

/// Packed items; empty ones are skipped wherever they stand.
fn items(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    field.split(|&byte| byte == b':').filter(|item| !item.is_empty())
}

/// Parses a metric. With several errors in one line the class is that of the first, in the order separators, name,
/// value present, type, value, sections.
pub(crate) fn parse<'a>(line: &'a [u8], options: &ParseOptions) -> Result<Metric<'a>, ErrorClass> {
    let first_pipe = memchr::memchr(b'|', line).ok_or(ErrorClass::NoSeparator)?;
    let (head, rest) = (&line[..first_pipe], &line[first_pipe + 1..]);
    let colon = memchr::memchr(b':', head).ok_or(ErrorClass::NoValue)?;
    let (name, value_field) = (&head[..colon], &head[colon + 1..]);
    if name.is_empty() {
        return Err(ErrorClass::EmptyName);
    }
    let name = text(name)?;
    if value_field.is_empty() {
        return Err(ErrorClass::NoValue);
    }
    let (type_field, sections) = match memchr::memchr(b'|', rest) {
        Some(pipe) => (&rest[..pipe], &rest[pipe + 1..]),
        None => (rest, &rest[rest.len()..]),
    };
    let kind = Kind::from_wire(type_field).ok_or(ErrorClass::BadType)?;
    let values = match kind {
        Kind::Set => Values::Member(text(value_field)?),
        _ => Values::Numbers(Numbers::parse(value_field)?),
    };
    let mut metric = Metric {
        name,
        kind,
        values,
        rate: 1.0,
        rate_error: None,
        tags: Tags::default(),
        timestamp: None,
        origin: OriginFields::default(),
    };
    for section in split_sections(sections) {
        match section[0] {
            b'#' => metric.tags = Tags::parse(&section[1..])?,
            b'@' => {
                let rate = parse_number(&section[1..]).ok_or(ErrorClass::BadSampleRate)?;
                (metric.rate, metric.rate_error) = usable_rate(rate);
            }
            b'T' if options.timestamps => {
                let seconds = parse_integer(&section[1..]).filter(|&seconds| seconds > 0);
                metric.timestamp = Some(seconds.ok_or(ErrorClass::BadTimestamp)?);
            }
            _ if options.origin_client => {
                metric.origin.take(section)?;
            }
            _ => {}
        }
    }
    Ok(metric)
}

/// The rate to apply, and whether the sender's was unusable.
#[inline]
pub(crate) fn usable_rate(rate: f64) -> (f64, Option<RateError>) {
    if rate > 0.0 && rate <= 1.0 {
        (rate.max(SAMPLE_RATE_MIN), None)
    } else {
        (1.0, Some(RateError::OutOfRange))
    }
}
