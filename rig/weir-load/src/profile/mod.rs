//! A profile: the shape of a payload, and its schedule. Unknown keys are errors, and so are impossible values.

mod read;
mod validate;

use crate::units::{Bytes, Range, Rate, RateUnit, Span};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The largest UDP payload IPv4 carries.
pub const UDP_PACKET_MAX: u64 = 65_507;

/// Format of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Payload {
    #[default]
    Dogstatsd,
    /// No tags, no packing, only counters, gauges, timers and sets: for plain StatsD peers.
    Statsd,
    Syslog3164,
    Syslog5424,
    Json,
    ApacheCommon,
    DdLogs,
    DdTracesJson,
    DdTracesMsgpack,
    OtlpLogs,
    OtlpMetrics,
    OtlpTraces,
    /// The content of a file of the user's.
    File,
}

impl Payload {
    /// The name in profiles and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Payload::Dogstatsd => "dogstatsd",
            Payload::Statsd => "statsd",
            Payload::Syslog3164 => "syslog3164",
            Payload::Syslog5424 => "syslog5424",
            Payload::Json => "json",
            Payload::ApacheCommon => "apache-common",
            Payload::DdLogs => "dd-logs",
            Payload::DdTracesJson => "dd-traces-json",
            Payload::DdTracesMsgpack => "dd-traces-msgpack",
            Payload::OtlpLogs => "otlp-logs",
            Payload::OtlpMetrics => "otlp-metrics",
            Payload::OtlpTraces => "otlp-traces",
            Payload::File => "file",
        }
    }

    /// Whether it is in the StatsD family, with metrics from the context model.
    pub fn is_statsd(self) -> bool {
        matches!(self, Payload::Dogstatsd | Payload::Statsd)
    }
}

/// Transport of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    #[default]
    Udp,
    /// Unix datagram socket.
    Unixgram,
    /// Unix stream socket, length-prefixed frames.
    Unix,
    Tcp,
    Http,
}

impl Transport {
    pub fn name(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::Unixgram => "unixgram",
            Transport::Unix => "unix",
            Transport::Tcp => "tcp",
            Transport::Http => "http",
        }
    }

    pub fn is_datagram(self) -> bool {
        matches!(self, Transport::Udp | Transport::Unixgram)
    }
}

/// Distribution of draws over contexts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Popularity {
    Uniform,
    /// Weight of the k-th context is `k^-s`.
    Zipf(f64),
    /// In a loop: the worst case for most caches.
    Cyclic,
    /// One weight per context, repeated if there are fewer.
    Weights(Vec<f64>),
    /// The same, from a file with one weight per line.
    WeightsFile(String),
}

/// Replacement of contexts during the load, in schedule time, so a rate is required.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Churn {
    #[default]
    None,
    /// A steady share per second.
    Trickle {
        /// Share of all contexts replaced per second, 0 to 1.
        per_second: f64,
        /// Contexts that share one instance tag and are replaced together, as when a pod restarts.
        #[serde(default = "one")]
        group: u64,
    },
    /// A share at once, periodically, as in deployments.
    Deploy {
        share: f64,
        within: Span,
        every: Span,
        #[serde(default = "one")]
        group: u64,
    },
}

fn one() -> u64 {
    1
}

/// Source of metric names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Names {
    /// `service.component.metric` from word lists.
    Grammar,
    /// Random letters and digits, `name_len` long.
    Random,
    /// These names. `{{0-99}}` stands for each number of the range.
    List(Vec<String>),
}

/// Number of tags per message.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TagCount {
    Range(Range),
    /// Number of tags and its weight.
    Histogram(BTreeMap<u64, f64>),
}

/// Source of tag keys and values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TagKeys {
    /// Sixty words that are common in services.
    Words,
    /// Random letters and digits, `tag_key_len` long.
    Random,
    List(Vec<String>),
}

/// Source of tag values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TagValues {
    /// Random letters and digits, `tag_value_len` long.
    Random,
    /// Lower-case hexadecimal digits.
    Hex,
    /// Decimal digits.
    Digits,
    List(Vec<String>),
}

/// The order of a message's tags.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TagOrder {
    /// The same in every message of a context.
    Fixed,
    /// With this chance, a new random order.
    Shuffled(f64),
    /// Each tag is repeated with this chance.
    Dup(f64),
}

/// Distribution of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ValueKind {
    Lognormal {
        median: f64,
        sigma: f64,
    },
    Uniform {
        min: i64,
        max: i64,
    },
    Constant(i64),
    /// 0 to 1000: all sums of these are exact in `f64`.
    SmallInts,
    /// The n-th message of a context on the k-th of c connections has the value (n - 1) c + k, so no message repeats.
    Sequence,
}

/// The numbers in messages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    #[serde(default = "default_value_kind")]
    pub kind: ValueKind,
    /// Share of values with a fraction.
    #[serde(default)]
    pub float_p: f64,
    /// Fractional digits of those, 1 to 6.
    #[serde(default = "three")]
    pub decimals: u32,
    /// Number of texts prepared per type; messages draw from them.
    #[serde(default = "default_pool")]
    pub pool: u32,
}

fn default_value_kind() -> ValueKind {
    ValueKind::Lognormal {
        median: 150.0,
        sigma: 2.0,
    }
}
fn three() -> u32 {
    3
}
fn default_pool() -> u32 {
    8192
}

/// Shares of message kinds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MessageShares {
    pub metric: f64,
    pub event: f64,
    pub service_check: f64,
}

impl Default for MessageShares {
    fn default() -> MessageShares {
        MessageShares {
            metric: 100.0,
            event: 0.0,
            service_check: 0.0,
        }
    }
}

/// Shares of the metric types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Types {
    pub count: f64,
    pub gauge: f64,
    pub timer: f64,
    pub distribution: f64,
    pub set: f64,
    pub histogram: f64,
}

impl Types {
    /// In the order of `contexts::KINDS`.
    pub fn weights(&self) -> [f64; 6] {
        [
            self.count,
            self.gauge,
            self.timer,
            self.distribution,
            self.set,
            self.histogram,
        ]
    }
}

/// The size of a packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum PacketSize {
    /// Complete messages up to this size.
    Fill(Bytes),
    /// One of these sizes per packet, drawn.
    OneOf(Vec<Bytes>),
    /// A size in this range per packet, drawn.
    Between { min: Bytes, max: Bytes },
    /// Exactly this size, filled up with a counter whose name has the necessary length. Segmentation offload needs this.
    Exactly { exactly: Bytes },
    /// Sizes and their weights; one per packet, drawn.
    Histogram(BTreeMap<u64, f64>),
}

impl PacketSize {
    pub fn max(&self) -> u64 {
        match self {
            PacketSize::Fill(size) => size.0,
            PacketSize::OneOf(sizes) => sizes.iter().map(|s| s.0).max().unwrap_or(0),
            PacketSize::Between { max, .. } => max.0,
            PacketSize::Exactly { exactly } => exactly.0,
            PacketSize::Histogram(weights) => weights.keys().next_back().copied().unwrap_or(0),
        }
    }

    /// The size of every packet, if it is fixed.
    pub fn exact(&self) -> Option<u64> {
        match self {
            PacketSize::Exactly { exactly } => Some(exactly.0),
            _ => None,
        }
    }
}

/// The shortest filler message. Its name grows by the missing bytes.
pub const FILLER: &str = "weir.load.pad:1|c";

/// Framing of a stream. The default depends on transport and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamFraming {
    /// A 32-bit little-endian length before each packet.
    Length,
    /// A newline after each packet.
    Newline,
}

/// Handling of a message that does not fit into the rest of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// It starts the next packet.
    Carry,
    /// It is discarded, as in lading; long messages become rarer.
    Discard,
}

/// A field of a protocol extension: number of distinct values, and the chance that a context has one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extension {
    pub pool: u32,
    #[serde(default = "certain")]
    pub p: f64,
}

fn certain() -> f64 {
    1.0
}

/// Timestamps on counters and gauges.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timestamp {
    pub p: f64,
    /// Unix seconds at the start of the load, to which the schedule's time is added.
    pub base: i64,
}

/// Times of the packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Throttle {
    /// Evenly.
    Smooth,
    /// Independent exponential gaps.
    Poisson,
    /// From one rate to another over a time, then the second rate. Ignores `rate`.
    Linear { from: Rate, to: Rate, over: Span },
    /// Each rate for its time, repeated.
    Step(Vec<Step>),
    /// The budget of a period in the first part of it.
    Burst { period: Span, duty: f64 },
    /// The budget of a second at once, every second.
    LadingBurst,
    /// As fast as the target accepts.
    AllOut,
    /// A file with lines `seconds rate`: from this time on, this rate.
    Trace(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub rate: Rate,
    pub hold: Span,
}

/// Contexts of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// All of them.
    Shared,
    /// A separate part per connection.
    Split,
}

/// Whether packets are composed while sending, or prebuilt and repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Composed,
    Prebuilt,
}

/// A profile. The defaults are those of `real-web`; `rig/docs/load.md` has the sources of the figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// A one-line description.
    pub about: String,
    pub payload: Payload,
    /// Of the payload `file`: lines, requests, a packet capture, or a capture of an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    pub transport: Transport,
    #[serde(deserialize_with = "crate::units::seed")]
    pub seed: u64,

    /// Live contexts. The seed selects from a range.
    pub contexts: Range,
    pub popularity: Popularity,
    pub churn: Churn,
    /// Send every context once before drawing.
    pub first_pass: bool,
    /// Send them as fast as the target takes them. Rate and duration begin after that.
    pub first_pass_at_once: bool,
    /// Chance that a message has a context that occurs only once.
    pub flood_p: f64,
    /// Adds contexts that collide in weak identities: see `collide` in the documentation.
    pub collide: bool,
    pub names: Names,
    pub name_len: Range,
    /// Number of distinct names. Without it every context has its own.
    pub distinct_names: Option<u64>,
    pub tags_per_msg: TagCount,
    pub tag_keys: TagKeys,
    pub tag_key_len: Range,
    pub tag_values: TagValues,
    pub tag_value_len: Range,
    /// Length of a complete tag; replaces the two lengths.
    pub tag_len: Option<Range>,
    pub unique_tag_ratio: f64,
    pub shared_tagsets: f64,
    /// Number of distinct tag lists; replaces `shared_tagsets`.
    pub distinct_tag_lists: Option<u64>,
    pub tag_order: TagOrder,

    pub multivalue_p: f64,
    pub multivalue_n: Range,
    pub sample_p: f64,
    /// `n` of the rates `1/n`.
    pub sample_rates: Vec<u32>,
    pub value: Value,
    /// Distinct members per set.
    pub set_members: u64,

    pub kinds: MessageShares,
    pub types: Types,
    /// Chance that a context has the name and tags of another one with a different type.
    pub type_conflict: f64,
    pub container_id: Option<Extension>,
    pub external_data: Option<Extension>,
    /// Chance of a `card:` section.
    pub cardinality_p: f64,
    pub timestamp: Option<Timestamp>,
    pub malformed_p: f64,

    /// Default: 1432 bytes on UDP, 8192 on others.
    pub packet_size: Option<PacketSize>,
    pub messages_per_packet: Option<Range>,
    pub fit: Fit,
    /// On streams. Default: length on unix:// and for DogStatsD on tcp://, otherwise newline.
    pub framing: Option<StreamFraming>,

    pub connections: u32,
    pub connection_contexts: Sharing,
    /// Over HTTP: the time whose messages a client aggregates, as long as the agent's bucket.
    pub window: Span,
    pub rate: Option<Rate>,
    pub throttle: Throttle,
    pub mode: Mode,
    /// Memory for prebuilt packets.
    pub prebuilt: Bytes,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile {
            about: String::new(),
            payload: Payload::Dogstatsd,
            file: None,
            transport: Transport::Udp,
            seed: 1,
            contexts: Range::just(3000),
            popularity: Popularity::Zipf(1.1),
            churn: Churn::None,
            first_pass: true,
            first_pass_at_once: false,
            flood_p: 0.0,
            collide: false,
            names: Names::Grammar,
            name_len: Range::new(12, 60),
            distinct_names: None,
            tags_per_msg: TagCount::Histogram(real_web_tags()),
            tag_keys: TagKeys::Words,
            tag_key_len: Range::new(3, 12),
            tag_values: TagValues::Random,
            tag_value_len: Range::new(3, 40),
            tag_len: None,
            unique_tag_ratio: 0.05,
            shared_tagsets: 0.7,
            distinct_tag_lists: None,
            tag_order: TagOrder::Fixed,
            multivalue_p: 0.02,
            multivalue_n: Range::new(2, 8),
            sample_p: 0.1,
            sample_rates: vec![2, 10, 100],
            value: Value {
                kind: default_value_kind(),
                float_p: 0.2,
                decimals: 3,
                pool: default_pool(),
            },
            set_members: 1000,
            kinds: MessageShares::default(),
            types: Types {
                count: 208.0,
                gauge: 66.0,
                timer: 0.0,
                distribution: 72.0,
                set: 9.0,
                histogram: 1.0,
            },
            type_conflict: 0.0,
            container_id: None,
            external_data: None,
            cardinality_p: 0.0,
            timestamp: None,
            malformed_p: 0.0,
            packet_size: None,
            messages_per_packet: None,
            fit: Fit::Carry,
            framing: None,
            connections: 1,
            connection_contexts: Sharing::Shared,
            window: Span(Duration::from_secs(10)),
            rate: None,
            throttle: Throttle::Smooth,
            mode: Mode::Composed,
            prebuilt: Bytes(64 << 20),
        }
    }
}

/// Tag counts 0 to 20 with mean 8: an assumption, see `rig/docs/load.md`.
fn real_web_tags() -> BTreeMap<u64, f64> {
    [
        (0, 3.0),
        (2, 5.0),
        (4, 12.0),
        (6, 20.0),
        (8, 24.0),
        (10, 18.0),
        (12, 10.0),
        (14, 4.0),
        (16, 2.0),
        (20, 2.0),
    ]
    .into()
}

/// Why a profile is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProfileError(pub String);

impl Profile {
    /// Reads YAML. The error has line, column and the allowed values.
    pub fn from_yaml(text: &str) -> Result<Profile, ProfileError> {
        let profile: Profile =
            serde_saphyr::from_str(text).map_err(|error| ProfileError(error.to_string()))?;
        profile.validate()?;
        Ok(profile)
    }

    /// Parses YAML in which a key may be repeated; the last one counts.
    pub(crate) fn from_layers(text: &str) -> Result<Profile, ProfileError> {
        let last_wins =
            serde_saphyr::options! { duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins };
        serde_saphyr::from_str_with_options(text, last_wins).map_err(|error| ProfileError(error.to_string()))
    }

    /// Reads a profile file. Paths in it are relative to it.
    pub fn from_file(path: &Path) -> Result<Profile, ProfileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ProfileError(format!("{}: {error}", path.display())))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut profile = Profile::from_yaml(&text)
            .map_err(|error| ProfileError(format!("{}: {error}", path.display())))?;
        if let Popularity::WeightsFile(name) = &profile.popularity {
            let file = folder.join(name);
            profile.popularity = Popularity::Weights(read_weights(&file)?);
        }
        if let Some(name) = &profile.file {
            profile.file = Some(folder.join(name).to_string_lossy().into_owned());
        }
        if let Throttle::Trace(name) = &profile.throttle {
            profile.throttle = Throttle::Trace(folder.join(name).to_string_lossy().into_owned());
        }
        Ok(profile)
    }

    /// The profile as YAML that `from_yaml` can read.
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).expect("a profile is plain data")
    }

    /// The effective packet size on a transport.
    pub fn packet_size_on(&self, transport: Transport) -> PacketSize {
        self.packet_size.clone().unwrap_or(match transport {
            Transport::Udp => PacketSize::Fill(Bytes(1432)),
            Transport::Unixgram | Transport::Unix | Transport::Tcp => PacketSize::Fill(Bytes(8192)),
            // Of columns, the parts in which messages are composed.
            Transport::Http if self.payload.is_statsd() => PacketSize::Fill(Bytes(1432)),
            Transport::Http => PacketSize::Fill(Bytes(64 << 10)),
        })
    }

    /// The unit of the schedule.
    pub fn rate_unit(&self) -> Option<RateUnit> {
        match &self.throttle {
            Throttle::AllOut => None,
            Throttle::Linear { from, .. } => Some(from.unit),
            Throttle::Step(steps) => steps.first().map(|s| s.rate.unit),
            _ => self.rate.map(|r| r.unit),
        }
    }
}

fn read_weights(path: &Path) -> Result<Vec<f64>, ProfileError> {
    let bad = |text: String| ProfileError(format!("{}: {text}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let mut weights = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let weight: f64 = line
            .trim()
            .parse()
            .map_err(|_| bad(format!("line {}: {line:?} is not a weight", number + 1)))?;
        weights.push(weight);
    }
    Ok(weights)
}
