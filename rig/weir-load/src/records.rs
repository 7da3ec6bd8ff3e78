//! Payloads other than DogStatsD: log lines, Datadog logs and traces, OTLP. Each record is a function of (seed, connection, index). Times
//! start at a fixed second, so the bytes do not depend on the clock.

use crate::compose::Packet;
use crate::profile::{PacketSize, Payload, Profile, Transport};
use crate::rng::Rng;
use crate::source::PacketSource;
use crate::words;
use std::io::Write as _;
use weir_rig_base::clock::civil;

/// The start time of all records.
pub const EPOCH: u64 = 1_700_000_000;

/// The stream of one connection.
pub struct Records {
    payload: Payload,
    rng: Rng,
    sizes: Rng,
    size: PacketSize,
    most: u64,
    index: u64,
    record: Vec<u8>,
    body: Vec<u8>,
}

/// Maximum length of a record.
const RECORD_MAX: usize = 4096;

/// The intake path of a payload, and its content type.
pub fn request(payload: Payload) -> (&'static str, &'static str) {
    match payload {
        Payload::DdLogs => ("/api/v2/logs", "application/json"),
        Payload::DdTracesJson => ("/v0.3/traces", "application/json"),
        Payload::DdTracesMsgpack => ("/v0.4/traces", "application/msgpack"),
        Payload::OtlpLogs => ("/v1/logs", "application/x-protobuf"),
        Payload::OtlpMetrics => ("/v1/metrics", "application/x-protobuf"),
        Payload::OtlpTraces => ("/v1/traces", "application/x-protobuf"),
        _ => ("/", "text/plain"),
    }
}

fn pick(rng: &mut Rng, words: &[&'static str]) -> &'static str {
    words[rng.below(words.len() as u64) as usize]
}

fn sentence(rng: &mut Rng, out: &mut Vec<u8>) {
    for position in 0..rng.between(5, 25) {
        if position > 0 {
            out.push(b' ');
        }
        let words = if rng.chance(0.5) {
            words::METRICS
        } else {
            words::COMPONENTS
        };
        out.extend_from_slice(pick(rng, words).as_bytes());
        if rng.chance(0.15) {
            let _ = write!(out, "={}", rng.below(100_000));
        }
    }
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

/// The parts of Protobuf that OTLP needs.
mod proto {
    pub fn varint(out: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }
    pub fn number(out: &mut Vec<u8>, field: u64, value: u64) {
        varint(out, field << 3);
        varint(out, value);
    }
    pub fn fixed64(out: &mut Vec<u8>, field: u64, value: u64) {
        varint(out, field << 3 | 1);
        out.extend_from_slice(&value.to_le_bytes());
    }
    pub fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
        varint(out, field << 3 | 2);
        varint(out, value.len() as u64);
        out.extend_from_slice(value);
    }
    pub fn message(out: &mut Vec<u8>, field: u64, build: impl FnOnce(&mut Vec<u8>)) {
        let mut inner = Vec::new();
        build(&mut inner);
        bytes(out, field, &inner);
    }
    /// A KeyValue with a string.
    pub fn attribute(out: &mut Vec<u8>, field: u64, key: &str, value: &str) {
        message(out, field, |kv| {
            bytes(kv, 1, key.as_bytes());
            message(kv, 2, |any| bytes(any, 1, value.as_bytes()));
        });
    }
}

/// The parts of MessagePack that traces need.
mod msgpack {
    pub fn map(out: &mut Vec<u8>, len: usize) {
        if len < 16 {
            out.push(0x80 | len as u8);
        } else {
            out.push(0xde);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
    }
    pub fn array(out: &mut Vec<u8>, len: usize) {
        if len < 16 {
            out.push(0x90 | len as u8);
        } else {
            out.push(0xdd);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
    pub fn text(out: &mut Vec<u8>, text: &str) {
        if text.len() < 32 {
            out.push(0xa0 | text.len() as u8);
        } else {
            out.push(0xda);
            out.extend_from_slice(&(text.len() as u16).to_be_bytes());
        }
        out.extend_from_slice(text.as_bytes());
    }
    pub fn uint(out: &mut Vec<u8>, value: u64) {
        if value < 128 {
            out.push(value as u8);
        } else {
            out.push(0xcf);
            out.extend_from_slice(&value.to_be_bytes());
        }
    }
    pub fn float(out: &mut Vec<u8>, value: f64) {
        out.push(0xcb);
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// One span, before it is encoded.
struct SpanRecord {
    trace: u64,
    id: u64,
    parent: u64,
    service: &'static str,
    name: &'static str,
    resource: String,
    start: u64,
    duration: u64,
    error: u64,
    meta: Vec<(&'static str, String)>,
    priority: Option<f64>,
}

impl Records {
    pub fn new(profile: &Profile, transport: Transport, seed: u64, connection: u32) -> Records {
        let index = u64::from(connection);
        let syslog = matches!(profile.payload, Payload::Syslog3164 | Payload::Syslog5424);
        let most = match profile.messages_per_packet {
            Some(range) => range.max,
            // A syslog datagram is one message.
            None if syslog && transport.is_datagram() => 1,
            // Maximum per request of the logs intake.
            None if profile.payload == Payload::DdLogs => 1000,
            None => u64::MAX,
        };
        Records {
            payload: profile.payload,
            rng: Rng::new(seed, "records", index),
            sizes: Rng::new(seed, "sizes", index),
            size: profile.packet_size_on(transport),
            most,
            index: index << 40,
            record: Vec::with_capacity(RECORD_MAX),
            body: Vec::new(),
        }
    }

    fn limit(&mut self) -> usize {
        match &self.size {
            PacketSize::Fill(size) | PacketSize::Exactly { exactly: size } => size.0 as usize,
            PacketSize::Histogram(weights) => {
                let mut left = self.sizes.unit() * weights.values().sum::<f64>();
                let mut drawn = 0;
                for (size, weight) in weights {
                    drawn = *size;
                    left -= weight;
                    if left < 0.0 {
                        break;
                    }
                }
                drawn as usize
            }
            PacketSize::OneOf(sizes) => sizes[self.sizes.below(sizes.len() as u64) as usize].0 as usize,
            PacketSize::Between { min, max } => self.sizes.between(min.0, max.0) as usize,
        }
    }

    /// Milliseconds since the start of the records.
    fn clock_ms(&self) -> u64 {
        EPOCH * 1000 + (self.index & ((1 << 40) - 1))
    }

    /// Writes the next record to `self.record`, without a separator.
    fn next_record(&mut self) {
        self.record.clear();
        let mut out = std::mem::take(&mut self.record);
        match self.payload {
            Payload::Syslog3164 => self.syslog3164(&mut out),
            Payload::Syslog5424 => self.syslog5424(&mut out),
            Payload::Json => self.json(&mut out),
            Payload::ApacheCommon => self.apache(&mut out),
            Payload::DdLogs => self.dd_log(&mut out),
            Payload::DdTracesJson => self.trace(&mut out, json_trace),
            Payload::DdTracesMsgpack => self.trace(&mut out, msgpack_trace),
            Payload::OtlpLogs => self.otlp_log(&mut out),
            Payload::OtlpMetrics => self.otlp_metric(&mut out),
            Payload::OtlpTraces => self.trace(&mut out, otlp_spans),
            Payload::Dogstatsd | Payload::Statsd | Payload::File => unreachable!("made elsewhere"),
        }
        self.index += 1;
        self.record = out;
    }

    fn syslog3164(&mut self, out: &mut Vec<u8>) {
        let (_, month, day, hour, minute, second) = civil(self.clock_ms() / 1000);
        let rng = &mut self.rng;
        let _ = write!(
            out,
            "<{}>{} {day:>2} {hour:02}:{minute:02}:{second:02} host-{} {}[{}]: ",
            rng.below(192),
            MONTHS[month as usize - 1],
            rng.below(64),
            pick(rng, words::SERVICES),
            rng.between(100, 32_000),
        );
        sentence(rng, out);
    }

    fn syslog5424(&mut self, out: &mut Vec<u8>) {
        let ms = self.clock_ms();
        let (year, month, day, hour, minute, second) = civil(ms / 1000);
        let rng = &mut self.rng;
        let _ = write!(
            out,
            "<{}>1 {year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z host-{} {} {} ID{} ",
            rng.below(192),
            ms % 1000,
            rng.below(64),
            pick(rng, words::SERVICES),
            rng.between(100, 32_000),
            rng.below(100),
        );
        if rng.chance(0.5) {
            let _ = write!(out, "[meta@32473 env=\"prod\" shard=\"{}\"] ", rng.below(32));
        } else {
            out.extend_from_slice(b"- ");
        }
        sentence(rng, out);
    }

    fn json(&mut self, out: &mut Vec<u8>) {
        let ms = self.clock_ms();
        let rng = &mut self.rng;
        let _ = write!(
            out,
            "{{\"timestamp\":{ms},\"level\":\"{}\",\"service\":\"{}\",\"host\":\"host-{}\",\"duration_ms\":{}.{:03},\
             \"request\":{{\"method\":\"{}\",\"status\":{},\"id\":\"{:016x}\"}},\"message\":\"",
            LEVELS[rng.below(4) as usize],
            pick(rng, words::SERVICES),
            rng.below(64),
            rng.below(2000),
            rng.below(1000),
            pick(rng, &["GET", "POST", "PUT", "DELETE"]),
            [200, 200, 200, 204, 301, 404, 500][rng.below(7) as usize],
            rng.next_u64(),
        );
        sentence(rng, out);
        out.extend_from_slice(b"\"}");
    }

    fn apache(&mut self, out: &mut Vec<u8>) {
        let (year, month, day, hour, minute, second) = civil(self.clock_ms() / 1000);
        let rng = &mut self.rng;
        let _ = write!(
            out,
            "{}.{}.{}.{} - {} [{day:02}/{}/{year}:{hour:02}:{minute:02}:{second:02} +0000] \"{} /{}/{}/{} HTTP/1.1\" {} {}",
            rng.between(1, 223),
            rng.below(256),
            rng.below(256),
            rng.between(1, 254),
            if rng.chance(0.3) { "user" } else { "-" },
            MONTHS[month as usize - 1],
            pick(rng, &["GET", "POST", "PUT", "DELETE"]),
            pick(rng, words::SERVICES),
            pick(rng, words::COMPONENTS),
            rng.below(100_000),
            [200, 200, 200, 204, 301, 404, 500][rng.below(7) as usize],
            rng.below(200_000),
        );
    }

    fn dd_log(&mut self, out: &mut Vec<u8>) {
        let ms = self.clock_ms();
        let rng = &mut self.rng;
        let service = pick(rng, words::SERVICES);
        let _ = write!(
            out,
            "{{\"ddsource\":\"{}\",\"ddtags\":\"env:prod,version:{}.{}\",\"hostname\":\"host-{}\",\"service\":\"{service}\",\
             \"status\":\"{}\",\"timestamp\":{ms},\"message\":\"",
            pick(rng, words::COMPONENTS),
            rng.below(4),
            rng.below(40),
            rng.below(64),
            LEVELS[rng.below(4) as usize],
        );
        sentence(rng, out);
        out.extend_from_slice(b"\"}");
    }

    /// A trace of 1 to 8 spans: a root and its descendants.
    fn trace(&mut self, out: &mut Vec<u8>, encode: fn(&mut Vec<u8>, &[SpanRecord])) {
        let start = self.clock_ms() * 1_000_000;
        let rng = &mut self.rng;
        // 63-bit identifiers: JSON parsers in other languages use signed integers.
        let trace = rng.next_u64() >> 1 | 1;
        let count = rng.between(1, 8);
        let mut spans: Vec<SpanRecord> = Vec::with_capacity(count as usize);
        for index in 0..count {
            let parent = if index == 0 {
                0
            } else {
                spans[rng.below(index) as usize].id
            };
            let service = pick(rng, words::SERVICES);
            let component = pick(rng, words::COMPONENTS);
            let status = [200, 200, 200, 404, 500][rng.below(5) as usize];
            let mut meta = vec![
                ("env", "prod".to_string()),
                ("http.method", pick(rng, &["GET", "POST"]).to_string()),
                ("http.status_code", status.to_string()),
            ];
            for _ in 0..rng.below(6) {
                meta.push((pick(rng, words::TAG_KEYS), format!("{:x}", rng.below(1 << 32))));
            }
            meta.sort_unstable();
            meta.dedup_by_key(|(key, _)| *key);
            spans.push(SpanRecord {
                trace,
                id: rng.next_u64() >> 1 | 1,
                parent,
                service,
                name: component,
                resource: format!("/{service}/{component}/{}", rng.below(50)),
                start: start + index * 100_000,
                duration: rng.between(10_000, 500_000_000),
                error: u64::from(status == 500),
                meta,
                priority: (index == 0).then_some(1.0),
            });
        }
        encode(out, &spans);
    }

    fn otlp_log(&mut self, out: &mut Vec<u8>) {
        let nanos = self.clock_ms() * 1_000_000;
        let rng = &mut self.rng;
        let level = rng.below(4);
        let mut body = Vec::new();
        sentence(rng, &mut body);
        let trace: Vec<u8> = (0..2).flat_map(|_| rng.next_u64().to_be_bytes()).collect();
        let span = rng.next_u64().to_be_bytes();
        let service = pick(rng, words::SERVICES);
        let route = format!("/{}/{}", pick(rng, words::COMPONENTS), rng.below(50));
        proto::message(out, 2, |record| {
            proto::fixed64(record, 1, nanos);
            proto::number(record, 2, 5 + 4 * level);
            proto::bytes(record, 3, LEVELS[level as usize].as_bytes());
            proto::message(record, 5, |any| proto::bytes(any, 1, &body));
            proto::attribute(record, 6, "service", service);
            proto::attribute(record, 6, "http.route", &route);
            proto::bytes(record, 9, &trace);
            proto::bytes(record, 10, &span);
            proto::fixed64(record, 11, nanos);
        });
    }

    fn otlp_metric(&mut self, out: &mut Vec<u8>) {
        let nanos = self.clock_ms() * 1_000_000;
        let rng = &mut self.rng;
        let name = format!(
            "{}.{}.{}",
            pick(rng, words::SERVICES),
            pick(rng, words::COMPONENTS),
            pick(rng, words::METRICS)
        );
        let attributes: Vec<(&str, String)> = (0..rng.between(1, 8))
            .map(|index| {
                (
                    words::TAG_KEYS[(index as usize * 7) % words::TAG_KEYS.len()],
                    format!("v{}", rng.below(100)),
                )
            })
            .collect();
        let kind = rng.below(3);
        let values: Vec<u64> = (0..6).map(|_| rng.below(1000)).collect();
        let attributes = |field: u64, point: &mut Vec<u8>| {
            for (key, value) in &attributes {
                proto::attribute(point, field, key, value);
            }
        };
        proto::message(out, 2, |metric| {
            proto::bytes(metric, 1, name.as_bytes());
            proto::bytes(metric, 3, b"1");
            let field = [5, 7, 9][kind as usize];
            proto::message(metric, field, |data| {
                proto::message(data, 1, |point| {
                    proto::fixed64(point, 2, EPOCH * 1_000_000_000);
                    proto::fixed64(point, 3, nanos);
                    if kind == 2 {
                        let bounds = [1.0f64, 5.0, 10.0, 50.0, 100.0];
                        proto::fixed64(point, 4, values.iter().sum());
                        proto::fixed64(point, 5, (values.iter().sum::<u64>() as f64).to_bits());
                        let counts: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                        proto::bytes(point, 6, &counts);
                        let bounds: Vec<u8> = bounds.iter().flat_map(|b| b.to_le_bytes()).collect();
                        proto::bytes(point, 7, &bounds);
                        attributes(9, point);
                    } else {
                        proto::fixed64(point, 4, (values[0] as f64).to_bits());
                        attributes(7, point);
                    }
                });
                if kind > 0 {
                    // Cumulative, as most exporters send.
                    proto::number(data, 2, 2);
                }
                if kind == 1 {
                    proto::number(data, 3, 1);
                }
            });
        });
    }

    /// Wraps the records collected in `self.body` in a request.
    fn frame(&self, out: &mut Vec<u8>, records: u32) {
        match self.payload {
            Payload::DdLogs | Payload::DdTracesJson => {
                out.push(b'[');
                out.extend_from_slice(&self.body);
                out.push(b']');
            }
            Payload::DdTracesMsgpack => {
                msgpack::array(out, records as usize);
                out.extend_from_slice(&self.body);
            }
            Payload::OtlpLogs | Payload::OtlpMetrics | Payload::OtlpTraces => {
                // resource_*: resource, then scope_* with its scope and the records.
                proto::message(out, 1, |resource_part| {
                    proto::message(resource_part, 1, |resource| {
                        proto::attribute(resource, 1, "service.name", "weir-load");
                        proto::attribute(resource, 1, "host.name", "host-1");
                    });
                    proto::message(resource_part, 2, |scope_part| {
                        proto::message(scope_part, 1, |scope| {
                            proto::bytes(scope, 1, b"weir.load");
                        });
                        scope_part.extend_from_slice(&self.body);
                    });
                });
            }
            _ => out.extend_from_slice(&self.body),
        }
    }

    fn between(&self) -> &'static [u8] {
        match self.payload {
            Payload::DdLogs | Payload::DdTracesJson => b",",
            Payload::DdTracesMsgpack | Payload::OtlpLogs | Payload::OtlpMetrics | Payload::OtlpTraces => b"",
            _ => b"\n",
        }
    }
}

fn json_trace(out: &mut Vec<u8>, spans: &[SpanRecord]) {
    out.push(b'[');
    for (index, span) in spans.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let _ = write!(
            out,
            "{{\"trace_id\":{},\"span_id\":{},\"parent_id\":{},\"service\":\"{}\",\"name\":\"{}\",\"resource\":\"{}\",\
             \"type\":\"web\",\"start\":{},\"duration\":{},\"error\":{},\"meta\":{{",
            span.trace,
            span.id,
            span.parent,
            span.service,
            span.name,
            span.resource,
            span.start,
            span.duration,
            span.error
        );
        for (position, (key, value)) in span.meta.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            let _ = write!(out, "{comma}\"{key}\":\"{value}\"");
        }
        out.extend_from_slice(b"},\"metrics\":{");
        if let Some(priority) = span.priority {
            let _ = write!(out, "\"_sampling_priority_v1\":{priority}");
        }
        out.extend_from_slice(b"}}");
    }
    out.push(b']');
}

fn msgpack_trace(out: &mut Vec<u8>, spans: &[SpanRecord]) {
    msgpack::array(out, spans.len());
    for span in spans {
        msgpack::map(out, 12);
        for (key, value) in [
            ("trace_id", span.trace),
            ("span_id", span.id),
            ("parent_id", span.parent),
            ("start", span.start),
            ("duration", span.duration),
            ("error", span.error),
        ] {
            msgpack::text(out, key);
            msgpack::uint(out, value);
        }
        for (key, value) in [
            ("service", span.service),
            ("name", span.name),
            ("resource", &span.resource),
            ("type", "web"),
        ] {
            msgpack::text(out, key);
            msgpack::text(out, value);
        }
        msgpack::text(out, "meta");
        msgpack::map(out, span.meta.len());
        for (key, value) in &span.meta {
            msgpack::text(out, key);
            msgpack::text(out, value);
        }
        msgpack::text(out, "metrics");
        msgpack::map(out, usize::from(span.priority.is_some()));
        if let Some(priority) = span.priority {
            msgpack::text(out, "_sampling_priority_v1");
            msgpack::float(out, priority);
        }
    }
}

fn otlp_spans(out: &mut Vec<u8>, spans: &[SpanRecord]) {
    for span in spans {
        proto::message(out, 2, |record| {
            let mut trace = [0u8; 16];
            trace[8..].copy_from_slice(&span.trace.to_be_bytes());
            proto::bytes(record, 1, &trace);
            proto::bytes(record, 2, &span.id.to_be_bytes());
            if span.parent != 0 {
                proto::bytes(record, 4, &span.parent.to_be_bytes());
            }
            proto::bytes(record, 5, span.resource.as_bytes());
            proto::number(record, 6, if span.parent == 0 { 2 } else { 3 });
            proto::fixed64(record, 7, span.start);
            proto::fixed64(record, 8, span.start + span.duration);
            for (key, value) in &span.meta {
                proto::attribute(record, 9, key, value);
            }
            if span.error > 0 {
                proto::message(record, 15, |status| proto::number(status, 3, 2));
            }
        });
    }
}

impl PacketSource for Records {
    fn room(&self) -> usize {
        self.size.max() as usize + RECORD_MAX + 512
    }

    fn packet(&mut self, out: &mut [u8]) -> Packet {
        // The frame of a request is below 256 bytes.
        let limit = self.limit().saturating_sub(256).max(1);
        let mut records = 0u32;
        self.body.clear();
        while u64::from(records) < self.most {
            if self.record.is_empty() {
                self.next_record();
            }
            let between = if records > 0 {
                self.between()
            } else {
                b"".as_slice()
            };
            if records > 0 && self.body.len() + between.len() + self.record.len() > limit {
                break;
            }
            self.body.extend_from_slice(between);
            self.body.extend_from_slice(&self.record);
            self.record.clear();
            records += 1;
        }
        let mut framed = Vec::with_capacity(self.body.len() + 256);
        self.frame(&mut framed, records);
        out[..framed.len()].copy_from_slice(&framed);
        Packet {
            len: framed.len(),
            messages: records,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn civil_dates_are_right() {
        assert_eq!(civil(0), (1970, 1, 1, 0, 0, 0));
        assert_eq!(civil(EPOCH), (2023, 11, 14, 22, 13, 20));
        assert_eq!(civil(951_782_400), (2000, 2, 29, 0, 0, 0));
    }

    #[test]
    fn every_record_payload_fills_its_packets_and_repeats_exactly() {
        for name in [
            "syslog3164",
            "syslog5424",
            "json-logs",
            "apache-logs",
            "dd-logs",
            "dd-traces-json",
            "dd-traces-msgpack",
            "otlp-logs",
            "otlp-metrics",
            "otlp-traces",
        ] {
            let profile = crate::profiles::named(name).unwrap();
            let make = || Records::new(&profile, profile.transport, 5, 0);
            let (mut one, mut two) = (make(), make());
            let mut buffer = vec![0; one.room()];
            let mut again = vec![0; one.room()];
            let limit = profile.packet_size_on(profile.transport).max() as usize;
            for _ in 0..50 {
                let packet = one.packet(&mut buffer);
                assert_eq!(packet, two.packet(&mut again), "{name}");
                assert_eq!(buffer[..packet.len], again[..packet.len], "{name}");
                assert!(packet.messages > 0 && packet.len <= limit.max(2048), "{name}");
                if profile.payload == Payload::DdLogs || profile.payload == Payload::DdTracesJson {
                    let value: serde_json::Value = serde_json::from_slice(&buffer[..packet.len]).unwrap();
                    assert_eq!(value.as_array().unwrap().len(), packet.messages as usize);
                }
                if profile.payload == Payload::Json {
                    for line in buffer[..packet.len].split(|b| *b == b'\n') {
                        serde_json::from_slice::<serde_json::Value>(line).unwrap();
                    }
                }
            }
        }
    }
}
