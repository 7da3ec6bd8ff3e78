//! Writing the state in each of the formats, in pieces.

use weir_protocol::Kind;

use super::accept::Format;
use super::forms::{Form, Forms};
use super::names::{escape, for_each_label, unescape};
use super::state::{CumulativeState, Family, SeriesState, Summary, Value};
use super::{OwnSeries, help};
use crate::protobuf;
use crate::settings::HistogramStyle;

/// Progress of a rendering.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    family: usize,
    series: usize,
}

/// Prometheus's names of the kinds, with their numbers in the protobuf format.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Counter = 0,
    Gauge = 1,
    Summary = 2,
    Unknown = 3,
    Histogram = 4,
}

impl Type {
    fn as_str(self) -> &'static str {
        match self {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Summary => "summary",
            Type::Unknown => "unknown",
            Type::Histogram => "histogram",
        }
    }
}

/// Appends at least `bytes`, or all there is; false when that was the end.
pub fn piece(
    state: &CumulativeState,
    format: Format,
    cursor: &mut Cursor,
    bytes: usize,
    out: &mut Vec<u8>,
) -> bool {
    let created = state.settings.openmetrics_created && format == Format::OpenMetrics;
    let mut writer = Writer {
        format,
        created,
        forms: state.forms(),
    };
    let named = |at: usize| state.families.get(at).filter(|_| at < state.named);
    while let Some(family) = named(cursor.family) {
        let room = bytes.saturating_sub(out.len());
        let series = family.series.get(cursor.series..).unwrap_or_default();
        let written = writer.family(family, series, cursor.series == 0, room, out);
        cursor.series += written;
        if cursor.series < family.series.len() {
            return true;
        }
        *cursor = Cursor {
            family: cursor.family + 1,
            series: 0,
        };
        if out.len() >= bytes {
            return cursor.family < state.named;
        }
    }
    false
}

/// The text after the last family.
pub fn end(format: Format, out: &mut Vec<u8>) {
    if format == Format::OpenMetrics {
        out.extend_from_slice(b"# EOF\n");
    }
}

/// Appends weir's own series; those of one name stand together.
pub fn own(series: &[OwnSeries], format: Format, out: &mut Vec<u8>) {
    let mut text = String::new();
    let mut labels = String::new();
    for group in series.chunk_by(|a, b| a.name == b.name) {
        let first = &group[0];
        let (kind, base) = match first.name.strip_suffix("_total") {
            Some(base) if first.is_counter => (Type::Counter, base),
            _ => (Type::Gauge, first.name),
        };
        let mut family = Vec::new();
        match format {
            Format::Protobuf => head_protobuf(first.name, first.help, kind, &mut family),
            Format::OpenMetrics => head(base, first.help, kind, format, &mut text),
            Format::Text => head(first.name, first.help, kind, format, &mut text),
        }
        for series in group {
            labels.clear();
            for (at, (name, value)) in series.labels.iter().enumerate() {
                labels.push_str(if at == 0 { "" } else { "," });
                labels.push_str(name);
                labels.push_str("=\"");
                escape(value, &mut labels);
                labels.push('"');
            }
            if format == Format::Protobuf {
                metric(&mut family, &labels, |out| {
                    number_protobuf(kind, series.value, out)
                });
            } else {
                line(first.name, "", &labels, None, series.value, &mut text);
            }
        }
        if format == Format::Protobuf {
            protobuf::varint(out, family.len() as u64);
            out.extend_from_slice(&family);
        }
    }
    out.extend_from_slice(text.as_bytes());
}

struct Writer<'s> {
    format: Format,
    /// The start of each sum is a series.
    created: bool,
    forms: &'s Forms,
}

/// A family in one format.
struct Shape<'f> {
    base: std::borrow::Cow<'f, str>,
    kind: Type,
    /// Suffix of a counter's series.
    suffix: &'static str,
    forms: &'f Forms,
}

impl Shape<'_> {
    fn form(&self, series: &SeriesState) -> &Form {
        self.forms.get(series.form)
    }
}

impl<'s> Writer<'s> {
    fn shape<'f>(&self, family: &'f Family) -> Shape<'f>
    where
        's: 'f,
    {
        let form = &*family.form;
        let kind = match (family.kind, form.style) {
            (Kind::Counter, _) => Type::Counter,
            (Kind::Gauge | Kind::Set, _) => Type::Gauge,
            (_, HistogramStyle::Classic) => Type::Histogram,
            (_, HistogramStyle::Native) if self.format == Format::Protobuf => Type::Histogram,
            _ => Type::Summary,
        };
        let mut shape = Shape {
            base: family.base(),
            kind,
            suffix: if kind == Type::Counter && form.total {
                "_total"
            } else {
                ""
            },
            forms: self.forms,
        };
        if kind == Type::Counter && !form.total && self.format == Format::OpenMetrics {
            // A counter without `_total` is none there.
            match shape.base.strip_suffix("_total") {
                Some(stem) if !stem.is_empty() => {
                    shape.base = stem.to_owned().into();
                    shape.suffix = "_total";
                }
                _ => shape.kind = Type::Unknown,
            }
        }
        shape
    }

    /// Appends a family's series, as many as fit, but at least one; returns how many that were.
    fn family(
        &mut self,
        family: &Family,
        series: &[SeriesState],
        is_start: bool,
        room: usize,
        out: &mut Vec<u8>,
    ) -> usize {
        let shape = self.shape(family);
        if self.format == Format::Protobuf {
            return family_protobuf(family, &shape, series, room, out);
        }
        // Lengths are taken from the text alone, so a piece may be longer by what `out` has already.
        let mut text = String::new();
        if is_start {
            let suffix = match self.format {
                Format::Text => shape.suffix,
                _ => "",
            };
            let help = help_of(family);
            head(
                &format!("{}{suffix}", shape.base),
                &help,
                shape.kind,
                self.format,
                &mut text,
            );
        }
        let mut written = 0;
        for series in series {
            self.series(&shape, series, &mut text);
            written += 1;
            if text.len() >= room {
                break;
            }
        }
        out.extend_from_slice(text.as_bytes());
        written
    }

    fn series(&self, shape: &Shape<'_>, series: &SeriesState, out: &mut String) {
        let (base, labels) = (&*shape.base, &series.labels);
        match &series.value {
            Value::Number(value) => line(base, shape.suffix, labels, None, *value, out),
            Value::Summary(summary) => {
                if shape.kind == Type::Histogram {
                    buckets(base, labels, summary, shape.form(series), self.format, out);
                } else {
                    for (quantile, value) in shape.form(series).quantile_texts.iter().zip(&summary.quantiles)
                    {
                        line(base, "", labels, Some(("quantile", quantile)), *value, out);
                    }
                }
                line(base, "_sum", labels, None, summary.sum, out);
                line(base, "_count", labels, None, summary.weight.round(), out);
            }
        }
        if self.created && !matches!(shape.kind, Type::Gauge | Type::Unknown) {
            line(base, "_created", labels, None, f64::from(series.created), out);
        }
    }
}

fn help_of(family: &Family) -> String {
    match &family.form.help {
        Some(text) => text.to_string(),
        None => help(&family.name, family.kind),
    }
}

/// Classic buckets: each includes the ones below it.
fn buckets(base: &str, labels: &str, summary: &Summary, form: &Form, format: Format, out: &mut String) {
    let mut below = 0.0;
    for (text, weight) in form.bucket_texts.iter().zip(&summary.classic) {
        below += weight;
        // OpenMetrics writes bounds as floats.
        let has_point = text.contains('.') || format != Format::OpenMetrics;
        let text = if has_point {
            text.clone()
        } else {
            format!("{text}.0")
        };
        line(base, "_bucket", labels, Some(("le", &text)), below.round(), out);
    }
    line(
        base,
        "_bucket",
        labels,
        Some(("le", "+Inf")),
        summary.weight.round(),
        out,
    );
}

/// A family may come in several messages of the same name, each with a part of its series: the length stands before a
/// message, so that a large one would have to be complete in memory.
fn family_protobuf(
    family: &Family,
    shape: &Shape<'_>,
    series: &[SeriesState],
    room: usize,
    out: &mut Vec<u8>,
) -> usize {
    let mut message = Vec::new();
    let name = format!("{}{}", shape.base, shape.suffix);
    head_protobuf(&name, &help_of(family), shape.kind, &mut message);
    let empty = message.len();
    let mut written = 0;
    for series in series {
        written += 1;
        series_protobuf(shape, series, &mut message);
        if message.len() >= room {
            break;
        }
    }
    if message.len() > empty {
        protobuf::varint(out, message.len() as u64);
        out.extend_from_slice(&message);
    }
    written
}

fn series_protobuf(shape: &Shape<'_>, series: &SeriesState, message: &mut Vec<u8>) {
    match &series.value {
        Value::Number(value) if shape.kind == Type::Counter => metric(message, &series.labels, |out| {
            protobuf::message(out, 3, |out| {
                protobuf::double(out, 1, *value);
                created_protobuf(3, series, out);
            });
        }),
        Value::Number(value) => metric(message, &series.labels, |out| {
            number_protobuf(shape.kind, *value, out);
        }),
        Value::Summary(summary) if shape.kind == Type::Summary => {
            metric(message, &series.labels, |out| {
                protobuf::message(out, 4, |out| {
                    summary_protobuf(summary, shape.form(series), out);
                    created_protobuf(4, series, out);
                });
            });
        }
        Value::Summary(summary) => {
            if let Some(native) = &summary.native {
                metric(message, &series.labels, |out| {
                    protobuf::message(out, 7, |out| {
                        protobuf::integer(out, 1, native.count() as i64);
                        protobuf::double(out, 2, native.sum());
                        classic_protobuf(summary, shape.form(series), out);
                        native.write(out);
                        created_protobuf(15, series, out);
                    });
                });
            }
        }
    }
}

fn summary_protobuf(summary: &Summary, form: &Form, out: &mut Vec<u8>) {
    protobuf::integer(out, 1, summary.weight.round() as i64);
    protobuf::double(out, 2, summary.sum);
    for (&quantile, &value) in form.quantiles.iter().zip(&summary.quantiles) {
        protobuf::message(out, 3, |out| {
            protobuf::double(out, 1, quantile);
            protobuf::double(out, 2, value);
        });
    }
}

fn classic_protobuf(summary: &Summary, form: &Form, out: &mut Vec<u8>) {
    let mut below = 0.0;
    for (&bound, weight) in form.buckets.iter().zip(&summary.classic) {
        below += weight;
        protobuf::message(out, 3, |out| {
            protobuf::integer(out, 1, below.round() as i64);
            protobuf::double(out, 2, bound);
        });
    }
}

/// When a sum began, as a `google.protobuf.Timestamp`.
fn created_protobuf(field: u32, series: &SeriesState, out: &mut Vec<u8>) {
    if series.created > 0 {
        protobuf::message(out, field, |out| {
            protobuf::integer(out, 1, i64::from(series.created));
        });
    }
}

fn head(name: &str, help: &str, kind: Type, format: Format, out: &mut String) {
    out.push_str("# HELP ");
    out.push_str(name);
    out.push(' ');
    for character in help.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if format == Format::OpenMetrics => out.push_str("\\\""),
            other => out.push(other),
        }
    }
    out.push_str("\n# TYPE ");
    out.push_str(name);
    out.push(' ');
    out.push_str(kind.as_str());
    out.push('\n');
}

/// `own`: the label that identifies a series within its summary or histogram.
fn line(name: &str, suffix: &str, labels: &str, own: Option<(&str, &str)>, value: f64, out: &mut String) {
    out.push_str(name);
    out.push_str(suffix);
    if !labels.is_empty() || own.is_some() {
        out.push('{');
        out.push_str(labels);
        if let Some((label, text)) = own {
            out.push_str(if labels.is_empty() { "" } else { "," });
            out.push_str(label);
            out.push_str("=\"");
            out.push_str(text);
            out.push('"');
        }
        out.push('}');
    }
    out.push(' ');
    number(value, out);
    out.push('\n');
}

/// The shortest text that reads back as the same number.
fn number(value: f64, out: &mut String) {
    if value.is_nan() {
        out.push_str("NaN");
    } else if value.is_infinite() {
        out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else if value.fract() == 0.0 && value.abs() < 1e15 {
        out.push_str(itoa::Buffer::new().format(value as i64));
    } else {
        out.push_str(ryu::Buffer::new().format_finite(value));
    }
}

fn head_protobuf(name: &str, help: &str, kind: Type, out: &mut Vec<u8>) {
    protobuf::string(out, 1, name);
    protobuf::string(out, 2, help);
    protobuf::integer(out, 3, kind as i64);
}

fn metric(out: &mut Vec<u8>, labels: &str, write: impl FnOnce(&mut Vec<u8>)) {
    protobuf::message(out, 4, |out| {
        let mut scratch = String::new();
        for_each_label(labels, |name, value| {
            protobuf::message(out, 1, |out| {
                protobuf::string(out, 1, name);
                protobuf::string(out, 2, unescape(value, &mut scratch));
            });
        });
        write(out);
    });
}

fn number_protobuf(kind: Type, value: f64, out: &mut Vec<u8>) {
    let field = if kind == Type::Counter { 3 } else { 2 };
    protobuf::message(out, field, |out| protobuf::double(out, 1, value));
}
