//! Writing the state in each of the formats, in pieces.

use weir_protocol::Kind;

use super::accept::Format;
use super::names::{escape, for_each_label, unescape};
use super::state::{Family, Series, State, Summary, Value, style};
use super::{OwnSeries, help};
use crate::protobuf;
use crate::settings::HistogramStyle;

/// Where a rendering stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    family: usize,
    series: usize,
}

/// What Prometheus calls the kinds, with their numbers in the protobuf format.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Counter = 0,
    Gauge = 1,
    Summary = 2,
    Histogram = 4,
}

impl Type {
    fn as_str(self) -> &'static str {
        match self {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Summary => "summary",
            Type::Histogram => "histogram",
        }
    }
}

/// Appends at least `bytes`, or all there is; false when that was the end.
pub fn piece(state: &State, format: Format, cursor: &mut Cursor, bytes: usize, out: &mut Vec<u8>) -> bool {
    let mut writer = Writer::new(&state.settings.quantiles);
    while let Some(family) = state.families[..state.named].get(cursor.family) {
        let style = style(&state.settings, family.kind);
        let room = bytes.saturating_sub(out.len());
        let series = family.series.get(cursor.series..).unwrap_or_default();
        let written = writer.family(family, series, cursor.series == 0, style, format, room, out);
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

/// What follows the last family.
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

struct Writer<'a> {
    quantiles: &'a [f64],
    /// As the value of the label.
    quantile_texts: Vec<String>,
}

impl<'a> Writer<'a> {
    fn new(quantiles: &'a [f64]) -> Self {
        Writer {
            quantiles,
            // Always with a fraction: that is how Prometheus itself writes those of the protobuf format.
            quantile_texts: quantiles.iter().map(|quantile| format!("{quantile:?}")).collect(),
        }
    }

    /// Appends a family's series, as many as fit, but at least one; returns how many that were.
    fn family(
        &mut self,
        family: &Family,
        series: &[Series],
        is_start: bool,
        style: HistogramStyle,
        format: Format,
        room: usize,
        out: &mut Vec<u8>,
    ) -> usize {
        let base = family.base();
        let kind = match family.kind {
            Kind::Counter => Type::Counter,
            Kind::Gauge | Kind::Set => Type::Gauge,
            _ if style == HistogramStyle::Native && format == Format::Protobuf => Type::Histogram,
            _ => Type::Summary,
        };
        if format == Format::Protobuf {
            return self.family_protobuf(family, &base, kind, series, room, out);
        }
        // Lengths are taken from the text alone, so a piece may be longer by what `out` has already.
        let mut text = String::new();
        if is_start {
            let total = if kind == Type::Counter && format == Format::Text {
                "_total"
            } else {
                ""
            };
            head(
                &format!("{base}{total}"),
                &help(&family.name, family.kind),
                kind,
                format,
                &mut text,
            );
        }
        let mut written = 0;
        for series in series {
            let labels = &series.labels;
            match &series.value {
                Value::Number(value) => {
                    let suffix = if kind == Type::Counter { "_total" } else { "" };
                    line(&base, suffix, labels, None, *value, &mut text);
                }
                Value::Summary(summary) => {
                    for (quantile, value) in self.quantile_texts.iter().zip(&summary.quantiles) {
                        line(&base, "", labels, Some(quantile), *value, &mut text);
                    }
                    line(&base, "_sum", labels, None, summary.sum, &mut text);
                    line(&base, "_count", labels, None, summary.weight.round(), &mut text);
                }
            }
            written += 1;
            if text.len() >= room {
                break;
            }
        }
        out.extend_from_slice(text.as_bytes());
        written
    }

    /// A family may come in several messages of the same name, each with a part of its series: the length stands before a
    /// message, so that a large one would have to be complete in memory.
    fn family_protobuf(
        &self,
        family: &Family,
        base: &str,
        kind: Type,
        series: &[Series],
        room: usize,
        out: &mut Vec<u8>,
    ) -> usize {
        let mut message = Vec::new();
        let total = if kind == Type::Counter { "_total" } else { "" };
        head_protobuf(
            &format!("{base}{total}"),
            &help(&family.name, family.kind),
            kind,
            &mut message,
        );
        let empty = message.len();
        let mut written = 0;
        for series in series {
            written += 1;
            match &series.value {
                Value::Number(value) => {
                    metric(&mut message, &series.labels, |out| {
                        number_protobuf(kind, *value, out)
                    });
                }
                Value::Summary(summary) if kind == Type::Summary => {
                    metric(&mut message, &series.labels, |out| {
                        protobuf::message(out, 4, |out| self.summary_protobuf(summary, out));
                    });
                }
                Value::Summary(summary) => {
                    if let Some(native) = &summary.native {
                        metric(&mut message, &series.labels, |out| {
                            protobuf::message(out, 7, |out| native.write(out));
                        });
                    }
                }
            }
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

    fn summary_protobuf(&self, summary: &Summary, out: &mut Vec<u8>) {
        protobuf::integer(out, 1, summary.weight.round() as i64);
        protobuf::double(out, 2, summary.sum);
        for (&quantile, &value) in self.quantiles.iter().zip(&summary.quantiles) {
            protobuf::message(out, 3, |out| {
                protobuf::double(out, 1, quantile);
                protobuf::double(out, 2, value);
            });
        }
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

fn line(name: &str, suffix: &str, labels: &str, quantile: Option<&String>, value: f64, out: &mut String) {
    out.push_str(name);
    out.push_str(suffix);
    if !labels.is_empty() || quantile.is_some() {
        out.push('{');
        out.push_str(labels);
        if let Some(quantile) = quantile {
            out.push_str(if labels.is_empty() {
                "quantile=\""
            } else {
                ",quantile=\""
            });
            out.push_str(quantile);
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
