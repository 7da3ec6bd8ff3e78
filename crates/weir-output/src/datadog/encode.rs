//! Batches into the intake's payloads.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use weir_aggregate::{Batch, CheckRecord, EventRecord, Expansion, PointType, Series, Value};

use super::columns::ColumnAssembler;
use super::form::Forms;
use super::presence::Presence;
use super::series::{self, Head, Origin, Point, PointKind};
use crate::assemble::{Assembler, Frame, PayloadLimits};
use crate::delivery::{Class, Counter, Encode, Encoded, Items, Reason};
use crate::settings::{Compression, DatadogSettings, SeriesFormat, SketchesFormat};

/// The kinds of request, numbered for good: the numbers are in disk queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    SeriesV2 = 0,
    SeriesV2Json = 1,
    SeriesV1 = 2,
    Sketches = 3,
    Checks = 4,
    Events = 5,
    Metadata = 6,
    SeriesV3 = 7,
    SketchesV3 = 8,
}

impl RequestKind {
    const ALL: [RequestKind; 9] = [
        RequestKind::SeriesV2,
        RequestKind::SeriesV2Json,
        RequestKind::SeriesV1,
        RequestKind::Sketches,
        RequestKind::Checks,
        RequestKind::Events,
        RequestKind::Metadata,
        RequestKind::SeriesV3,
        RequestKind::SketchesV3,
    ];

    pub fn path(self) -> &'static str {
        match self {
            RequestKind::SeriesV2 | RequestKind::SeriesV2Json => "/api/v2/series",
            RequestKind::SeriesV1 => "/api/v1/series",
            RequestKind::SeriesV3 => "/api/intake/metrics/v3/series",
            RequestKind::SketchesV3 => "/api/intake/metrics/v3/sketches",
            RequestKind::Sketches => "/api/beta/sketches",
            RequestKind::Checks => "/api/v1/check_run",
            RequestKind::Events | RequestKind::Metadata => "/intake/",
        }
    }

    pub fn is_protobuf(self) -> bool {
        matches!(self, RequestKind::SeriesV2 | RequestKind::Sketches) || self.has_columns()
    }

    pub fn has_columns(self) -> bool {
        matches!(self, RequestKind::SeriesV3 | RequestKind::SketchesV3)
    }

    /// The limits of the intake.
    pub(super) fn limits(self, points_max: usize) -> PayloadLimits {
        let (compressed, uncompressed) = match self {
            RequestKind::SeriesV3 | RequestKind::SeriesV2 | RequestKind::SeriesV2Json => (512_000, 5_242_880),
            RequestKind::SeriesV1 => (2_000_000, 4_000_000),
            RequestKind::Sketches
            | RequestKind::SketchesV3
            | RequestKind::Checks
            | RequestKind::Events
            | RequestKind::Metadata => (2_621_440, 4_194_304),
        };
        let count = match self {
            RequestKind::Checks | RequestKind::Events | RequestKind::Metadata => 100,
            RequestKind::Sketches | RequestKind::SketchesV3 => u32::MAX,
            _ => u32::try_from(points_max).unwrap_or(u32::MAX),
        };
        PayloadLimits {
            compressed,
            uncompressed,
            count,
        }
    }
}

const COMPRESSIONS: [Compression; 4] = [
    Compression::None,
    Compression::Zstd,
    Compression::Zlib,
    Compression::Gzip,
];

/// Kind and compression as one number.
pub fn route(kind: RequestKind, compression: Compression) -> u16 {
    let compression = COMPRESSIONS
        .iter()
        .position(|other| *other == compression)
        .expect("all are listed");
    kind as u16 | (compression as u16) << 8
}

/// `None` for a number that this version does not know.
pub fn parse_route(route: u16) -> Option<(RequestKind, Compression)> {
    let kind = *RequestKind::ALL.get(usize::from(route & 0xff))?;
    Some((kind, *COMPRESSIONS.get(usize::from(route >> 8))?))
}

/// Encodes for the Datadog intake.
pub struct DatadogEncoder {
    expansion: Arc<Expansion>,
    /// Bits of the suffixes that are configured.
    suffixes: u32,
    format: SeriesFormat,
    device_resource: bool,
    series: Assembler,
    /// Series as columns, and whether some endpoint takes them.
    columns: Option<(ColumnAssembler, Forms)>,
    uses_columns: bool,
    sketches: Assembler,
    sketch_columns: Option<ColumnAssembler>,
    checks: Assembler,
    events_route: (PayloadLimits, (Compression, i32)),
    presence: Option<Presence>,
    item: Vec<u8>,
}

impl DatadogEncoder {
    pub fn new(settings: &DatadogSettings, expansion: Arc<Expansion>) -> Self {
        let compression = (settings.form.compression, settings.form.compression_level);
        let assembler = |kind: RequestKind, class, head: &[u8], separator: &[u8], tail: &[u8]| {
            let frame = Frame {
                head: head.to_vec(),
                separator: separator.to_vec(),
                tail: tail.to_vec(),
            };
            Assembler::new(
                route(kind, compression.0),
                class,
                kind.limits(settings.form.points_per_payload_max),
                frame,
                compression,
            )
        };
        let series = match settings.form.series_format {
            SeriesFormat::Auto | SeriesFormat::V3 | SeriesFormat::V2 => {
                assembler(RequestKind::SeriesV2, Class::Points, b"", b"", b"")
            }
            SeriesFormat::V2Json => assembler(
                RequestKind::SeriesV2Json,
                Class::Points,
                b"{\"series\":[",
                b",",
                b"]}",
            ),
            SeriesFormat::V1 => assembler(
                RequestKind::SeriesV1,
                Class::Points,
                b"{\"series\":[",
                b",",
                b"]}",
            ),
        };
        Self {
            suffixes: expansion.suffixes_mask(),
            expansion,
            format: settings.form.series_format,
            device_resource: settings.device_resource,
            series,
            columns: (settings.form.series_format == SeriesFormat::V3)
                .then(|| (columns(RequestKind::SeriesV3, settings), Forms::of_one())),
            uses_columns: false,
            sketch_columns: (settings.form.sketches_format == SketchesFormat::V3)
                .then(|| columns(RequestKind::SketchesV3, settings)),
            sketches: assembler(
                RequestKind::Sketches,
                Class::Points,
                b"",
                b"",
                &series::SKETCH_TAIL,
            ),
            checks: assembler(RequestKind::Checks, Class::Checks, b"[", b",", b"]"),
            events_route: (RequestKind::Events.limits(0), compression),
            presence: None,
            item: Vec::new(),
        }
    }

    /// Makes columns of series for as long as one of these endpoints takes them.
    pub(super) fn with_forms(mut self, forms: Forms, settings: &DatadogSettings) -> Self {
        self.columns = forms
            .has_columns()
            .then(|| (columns(RequestKind::SeriesV3, settings), forms));
        self
    }

    /// Says at the ends of flushes that the agent runs, and where.
    pub fn with_presence(mut self, presence: Presence) -> Self {
        self.presence = Some(presence);
        self
    }

    /// Whether series are columns now. A payload that is open is finished in its form.
    fn choose_form(&mut self, out: &mut Encoded) {
        if let Some((columns, forms)) = &mut self.columns {
            let wanted = forms.has_columns();
            self.uses_columns = wanted;
            if wanted {
                self.series.finish(out);
            } else {
                columns.finish(out);
            }
        }
    }

    fn encode_series(&mut self, series: &Series<'_>, out: &mut Encoded) {
        let tags = series.tags();
        let origin = match series.jmx_check() {
            _ if series.is_timestamped() => Origin::Timestamped,
            Some(check) => Origin::jmx(check),
            None => Origin::Dogstatsd,
        };
        let head = Head {
            host: series.host(),
            tags: &tags,
            timestamp: series.timestamp(),
            origin,
        };
        // Series of one batch that share a tag list, and the batch's host.
        let list = series.explicit_host().is_none().then(|| series.tag_list());
        let interval = series.interval().max(1);
        let gauge = Point {
            head,
            name: series.name(),
            suffix: "",
            kind: PointKind::Gauge,
            value: 0.0,
            interval,
        };
        match series.value() {
            Value::Counter(sum) => self.add_point(
                &Point {
                    kind: PointKind::Rate,
                    value: sum / f64::from(interval),
                    ..gauge
                },
                list,
                out,
            ),
            Value::Gauge(value) => self.add_point(&Point { value, ..gauge }, list, out),
            Value::Set(set) => self.add_point(
                &Point {
                    value: set.cardinality() as f64,
                    ..gauge
                },
                list,
                out,
            ),
            Value::Histogram(histogram) => {
                let expansion = self.expansion.clone();
                expansion.points(
                    histogram,
                    interval,
                    series.suffix_mask(),
                    |suffix, kind, value| {
                        let kind = match kind {
                            PointType::Rate => PointKind::Rate,
                            PointType::Gauge => PointKind::Gauge,
                        };
                        self.add_point(
                            &Point {
                                suffix,
                                kind,
                                value,
                                ..gauge
                            },
                            list,
                            out,
                        );
                    },
                );
            }
            Value::Distribution(sketch) if sketch.is_empty() => {}
            Value::Distribution(sketch) if !sketch.sum().is_finite() => {
                out.dropped(Reason::NotFinite, Class::Points, 1)
            }
            Value::Distribution(sketch) => match &mut self.sketch_columns {
                Some(columns) => columns.add_sketch(&head, series.name(), sketch, list, out),
                None => {
                    self.item.clear();
                    series::sketch(&mut self.item, &head, series.name(), sketch);
                    self.sketches.add(&self.item, 1, out);
                }
            },
        }
    }

    fn add_point<'t, T: Iterator<Item = &'t str> + Clone>(
        &mut self,
        point: &Point<'_, T>,
        list: Option<usize>,
        out: &mut Encoded,
    ) {
        if !point.value.is_finite() {
            return out.dropped(Reason::NotFinite, Class::Points, 1);
        }
        if let Some((columns, _)) = self.columns.as_mut().filter(|_| self.uses_columns) {
            return columns.add(point, list, self.device_resource, out);
        }
        self.item.clear();
        match self.format {
            SeriesFormat::Auto | SeriesFormat::V3 | SeriesFormat::V2 => {
                series::protobuf(&mut self.item, point, self.device_resource)
            }
            SeriesFormat::V2Json => series::json_v2(&mut self.item, point, self.device_resource),
            SeriesFormat::V1 => series::json_v1(&mut self.item, point, self.device_resource),
        }
        self.series.add(&self.item, 1, out);
    }

    fn all_columns(&mut self) -> impl Iterator<Item = &mut ColumnAssembler> {
        let columns = self.columns.as_mut().map(|(columns, _)| columns);
        columns.into_iter().chain(&mut self.sketch_columns)
    }

    fn encode_check(&mut self, check: &CheckRecord, hostname: &str, out: &mut Encoded) {
        let item = &mut self.item;
        item.clear();
        item.extend_from_slice(b"{\"check\":");
        series::text(item, &check.name);
        item.extend_from_slice(b",\"host_name\":");
        series::text(item, check.host.as_deref().unwrap_or(hostname));
        series::write(
            item,
            format_args!(
                ",\"timestamp\":{},\"status\":{},\"message\":",
                check.timestamp, check.status as u8
            ),
        );
        series::text(item, &check.message);
        item.extend_from_slice(b",\"tags\":");
        series::texts(item, check.tags.iter().map(String::as_str));
        item.push(b'}');
        self.checks.add(item, 1, out);
    }

    fn encode_presence(&mut self, batch: &Batch, out: &mut Encoded) {
        let Some(presence) = &mut self.presence else {
            return;
        };
        let (due, now) = (presence.due(), presence.unix());
        if due.heartbeat {
            self.own_point("datadog.dogstatsd.running", PointKind::Gauge, batch, now, out);
            let up = CheckRecord {
                name: "datadog.dogstatsd.up".into(),
                status: weir_protocol::CheckStatus::Ok,
                timestamp: now,
                host: None,
                tags: Vec::new(),
                message: String::new(),
            };
            self.encode_check(&up, &batch.hostname, out);
            out.made += Items::of(Class::Checks, 1);
        }
        if due.started {
            self.own_point("datadog.dogstatsd.started", PointKind::Count, batch, now, out);
        }
        if due.metadata && !batch.hostname.is_empty() {
            self.encode_metadata(&batch.hostname, out);
        }
    }

    /// A 1 under a name of the agent's own, which no setting changes.
    fn own_point(&mut self, name: &str, kind: PointKind, batch: &Batch, now: i64, out: &mut Encoded) {
        let tags = std::iter::once(concat!("version:", env!("CARGO_PKG_VERSION")));
        let point = Point {
            head: Head {
                host: &batch.hostname,
                tags: &tags,
                timestamp: now,
                origin: Origin::Agent,
            },
            name,
            suffix: "",
            kind,
            value: 1.0,
            interval: 0,
        };
        out.made += Items::of(Class::Points, 1);
        self.add_point(&point, None, out);
    }

    /// A separate payload, which counts as an event in the books.
    fn encode_metadata(&mut self, hostname: &str, out: &mut Encoded) {
        let Some(presence) = &self.presence else { return };
        let body = presence.metadata(hostname).to_string();
        let (limits, compression) = self.events_route;
        let route = route(RequestKind::Metadata, compression.0);
        let mut payload = Assembler::new(route, Class::Events, limits, Frame::default(), compression);
        out.made += Items::of(Class::Events, 1);
        payload.add(body.as_bytes(), 1, out);
        payload.finish(out);
    }

    /// Events are grouped by source type. Each group has separate payloads, so that no object key repeats.
    fn encode_events(&mut self, batch: &Batch, out: &mut Encoded) {
        let mut events: Vec<&EventRecord> = batch.events.iter().collect();
        events.sort_by_key(|event| source_type(event));
        for group in events.chunk_by(|a, b| source_type(a) == source_type(b)) {
            let mut head = b"{\"apiKey\":\"\",\"events\":{".to_vec();
            series::text(&mut head, source_type(group[0]));
            head.extend_from_slice(b":[");
            let mut tail = b"]},\"internalHostname\":".to_vec();
            series::text(&mut tail, &batch.hostname);
            tail.push(b'}');
            let frame = Frame {
                head,
                separator: b",".to_vec(),
                tail,
            };
            let (limits, compression) = self.events_route;
            let mut assembler = Assembler::new(
                route(RequestKind::Events, compression.0),
                Class::Events,
                limits,
                frame,
                compression,
            );
            for event in group {
                self.item.clear();
                write_event(&mut self.item, event, &batch.hostname);
                assembler.add(&self.item, 1, out);
            }
            assembler.finish(out);
        }
    }
}

fn columns(kind: RequestKind, settings: &DatadogSettings) -> ColumnAssembler {
    let compression = (settings.form.compression, settings.form.compression_level);
    let limits = kind.limits(settings.form.points_per_payload_max);
    // Unknown to senders of names and tags.
    let seed = RandomState::new().hash_one(kind as u16);
    ColumnAssembler::new(route(kind, compression.0), limits, compression, seed)
}

fn source_type(event: &EventRecord) -> &str {
    if event.source_type.is_empty() {
        "api"
    } else {
        &event.source_type
    }
}

fn write_event(item: &mut Vec<u8>, event: &EventRecord, hostname: &str) {
    item.extend_from_slice(b"{\"msg_title\":");
    series::text(item, &event.title);
    item.extend_from_slice(b",\"msg_text\":");
    series::text(item, &event.text);
    series::write(item, format_args!(",\"timestamp\":{}", event.timestamp));
    let host = event.host.as_deref().unwrap_or(hostname);
    let optional = [
        ("priority", event.priority.as_str()),
        ("host", host),
        ("alert_type", event.alert_type.as_str()),
        ("aggregation_key", &event.aggregation_key),
        ("source_type_name", &event.source_type),
    ];
    for (key, value) in optional.into_iter().filter(|(_, value)| !value.is_empty()) {
        series::write(item, format_args!(",\"{key}\":"));
        series::text(item, value);
    }
    if !event.tags.is_empty() {
        item.extend_from_slice(b",\"tags\":");
        series::texts(item, event.tags.iter().map(String::as_str));
    }
    item.push(b'}');
}

impl Encode for DatadogEncoder {
    fn counter(&self) -> Counter {
        let suffixes = self.suffixes;
        let points = move |series: Series<'_>| match series.value() {
            Value::Counter(_) | Value::Gauge(_) | Value::Set(_) => 1,
            Value::Histogram(_) => u64::from((series.suffix_mask() & suffixes).count_ones()),
            Value::Distribution(sketch) => u64::from(!sketch.is_empty()),
        };
        Box::new(move |batch| Items::of_batch(batch, batch.series().map(points).sum()))
    }

    fn encode(&mut self, batch: &Batch, out: &mut Encoded) {
        self.choose_form(out);
        self.all_columns().for_each(ColumnAssembler::begin_batch);
        for series in batch.yielding_series() {
            self.encode_series(&series, out);
        }
        for check in &batch.checks {
            self.encode_check(check, &batch.hostname, out);
        }
        self.encode_events(batch, out);
        if batch.last {
            self.encode_presence(batch, out);
        }
    }

    fn finish(&mut self, out: &mut Encoded) {
        self.series.finish(out);
        self.sketches.finish(out);
        self.all_columns().for_each(|columns| columns.finish(out));
        self.checks.finish(out);
        self.checks.rest();
    }

    fn open(&self) -> Items {
        let columns = self.columns.as_ref().map(|(columns, _)| columns);
        let columns = columns.into_iter().chain(&self.sketch_columns);
        let of_columns = columns.fold(Items::default(), |all, columns| all + columns.open());
        self.series.open() + self.sketches.open() + self.checks.open() + of_columns
    }
}
