//! Graphite: carbon's plain-text protocol over TCP or UDP.

mod encode;
mod names;
mod timers;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_aggregate::{Batch, Expansion};
use weir_config::{SettingProblem, SettingType, choices, settings};
use weir_protocol::Kind as MetricKind;
use weir_units::Address;

use crate::StartError;
use crate::claims::{self, Notes, shown};
use crate::datagrams::Udp;
use crate::delivery::{BoxFuture, Delivery, Endpoint, Order, Outcome, OutputEnvironment, Payload, Transport};
use crate::names::connect_tcp;
use crate::preview;
use crate::probe::Destination;
use crate::settings::{BatchOutput, DeliverySettings, OutputType, QueueSettings, Start};
use crate::tcp::reset_on_close;

pub use crate::text_lines::{Aggregate, Host};
pub use encode::GraphiteEncoder;
pub use timers::TimerSeries;

settings! {
    /// Carbon's address, and the names of series.
    pub struct GraphiteSettings {
        address: String = "''"
            .takes(SettingType::Checked { allowed: "tcp://host:port or udp://host:port, such as tcp://127.0.0.1:2003, or nothing", check: is_address })
            .effect("The address of carbon, or of another receiver of its plain-text protocol.")
            .change("to deliver to Graphite.")
            .required();
        tags: Tags = "tagged"
            .effect("Tags as `name;key=value` (Graphite 1.1 and later), folded into the path as `name.key.value`, or left out.")
            .change("if you run a Graphite without tags.");
        prefix: String = "''"
            .takes(SettingType::Checked { allowed: "letters, digits, _, - and dots between them, or nothing", check: is_prefix })
            .effect("A prefix for every name, with a dot in between.")
            .zero("Empty: names as they are.")
            .change("if you share a Graphite with others.");
        kind_prefixes: BTreeMap<String, String> = "{}"
            .takes(SettingType::Map(&SettingType::Checked { allowed: "letters, digits, _, - and dots between them, or nothing", check: is_prefix }))
            .effect("A prefix for the names of one type of metric, after `prefix`: `counter`, `gauge`, `set`, `histogram`, `timing` or `distribution`, as in `{counter: counters, timing: timers}`.")
            .zero("Empty: no type has one.")
            .change("if your dashboards have the names of another StatsD server, such as `stats.counters.`.");
        characters: Characters = "replace"
            .effect("What stands for the characters of a metric's name that Graphite does not take: with `replace` each is `_`; with `statsd`, as in StatsD and gostatsd, white space is `_`, `/` is `-`, and all others, `:` too, are left out.")
            .change("if your dashboards have the names of another StatsD server.");
        host: Host = "all"
            .effect("The series that get the tag `host`: all of them, series whose messages name one (`host:web1`), or none.")
            .change("if you run a single agent. With several, series without their host overwrite each other.");
        counters: Vec<CounterForm> = "[count]"
            .effect("The series of a counter: `count` is `name.count` (the count of a bucket), `rate` is `name.rate` (the count per second). `legacy_count` and `legacy_rate` are the same values under StatsD's old names, without the prefix of counters: with the prefix `stats` they are `stats_counts.name` and `stats.name`.")
            .zero("With an empty list counters have no series.")
            .change("if your dashboards use rates, or StatsD's old names (`legacyNamespace`).");
        aggregates: Vec<Aggregate> = "[count, min, max, avg, sum]"
            .effect("The series of histograms, timings and distributions, besides percentiles: `name.count` and so on.")
            .zero("With an empty list only percentiles.")
            .change("if you want fewer series.");
        percentiles: Vec<f64> = "[0.5, 0.95, 0.99]"
            .takes(SettingType::List(&SettingType::Number { min: 0.0, max: 1.0 }))
            .effect("Percentiles of histograms, timings and distributions: 0.5 is written as `name.p50`, 0.999 as `name.p99_9`.")
            .zero("With an empty list none.")
            .change("if your dashboards need another one.");
        timers: Vec<TimerSeries> = "[]"
            .effect("The series of histograms, timings and distributions under the names of StatsD and gostatsd, in place of `aggregates`: `[count, count_ps, lower, upper, mean, median, std, sum, sum_squares, count_pct, mean_pct, sum_pct, sum_squares_pct, upper_pct]` or some of them. Those with `pct` are once for each of `percentiles`, such as `name.upper_90` for 0.9.")
            .zero("An empty list: those of `aggregates` and `percentiles`.")
            .change("if your dashboards have the names of another StatsD server.");
        confirm: bool = "true"
            .effect("Over TCP: a payload counts as delivered when the receiver has read it to its end and closed the connection.")
            .change("if your receiver does not close a connection whose sender has closed it.");
        datagram_bytes_max: usize = "1432"
            .takes(SettingType::Integer { min: 128, max: 65_507 })
            .effect("Over UDP: the maximum bytes in one datagram.")
            .change("if your network has larger packets.");
        delivery: QueueSettings = "{}";
    }
}

choices! {
    /// Place of a series' tags.
    pub enum Tags {
        /// `name;key=value`, as Graphite 1.1 and later store them.
        Tagged: "tagged",
        /// `name.key.value`.
        Path: "path",
        /// Nowhere: series that differ in tags alone are distinguished by a suffix.
        None: "none",
    }
}

choices! {
    /// The fate of characters in names that Graphite does not take.
    pub enum Characters {
        /// Each is `_`.
        Replace: "replace",
        /// As in StatsD.
        StatsD: "statsd",
    }
}

choices! {
    pub enum CounterForm {
        Count: "count",
        Rate: "rate",
        /// The count where StatsD once had it.
        LegacyCount: "legacy_count",
        /// The rate where StatsD once had it.
        LegacyRate: "legacy_rate",
    }
}

pub(crate) const TYPE: OutputType = OutputType {
    name: "graphite",
    summary: "Delivers points to Graphite's carbon in the plain-text protocol, with tags or with tags folded into the path.",
    on_by_default: false,
    settings: GraphiteSettings::SETTINGS,
    removed: &[],
    read: |output| BatchOutput::read::<GraphiteSettings>(output, |_, _| {}, check),
};

fn check(settings: &GraphiteSettings) -> Result<(), SettingProblem> {
    let known = MetricKind::ALL.map(MetricKind::as_str);
    let mut named = settings.kind_prefixes.keys();
    match named.find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let message = format!("{name} is no type; must be one of {}", known.join(", "));
            Err(SettingProblem::new("kind_prefixes", message))
        }
    }
}

fn is_address(text: &str) -> bool {
    let parsed = text.parse();
    text.is_empty() || matches!(parsed, Ok(Address::Udp { port, .. } | Address::Tcp { port, .. }) if port > 0)
}

fn is_prefix(text: &str) -> bool {
    text.is_empty()
        || text.split('.').all(|node| {
            !node.is_empty()
                && node
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
        })
}

impl Start for GraphiteSettings {
    fn preview(&self, batch: &Batch, _: &Arc<Expansion>) -> Vec<String> {
        let encoder = GraphiteEncoder::new(self, u64::MAX, Arc::default());
        let path = |line: &str| Some(line.split(' ').next()?.to_owned());
        preview::of_lines(&preview::payloads(encoder, batch), path)
    }

    fn destinations(&self) -> Result<Vec<Destination>, StartError> {
        Ok(vec![Destination::at(self.address.parse()?)])
    }

    fn start(
        &self,
        name: &str,
        _: &Arc<Expansion>,
        environment: &OutputEnvironment,
    ) -> Result<Delivery, StartError> {
        let address: Address = self.address.parse()?;
        let notes = Arc::new(Mutex::default());
        let transport: Arc<dyn Transport> = match &address {
            Address::Tcp { host, port } => Arc::new(Tcp {
                host: (host.clone(), *port),
                confirm: self.confirm,
                notes: notes.clone(),
            }),
            Address::Udp { host, port } => Arc::new(Udp {
                host: (host.clone(), *port),
                bytes_max: self.datagram_bytes_max,
                notes: notes.clone(),
            }),
            _ => return Err(StartError::NoInternetAddress(address)),
        };
        let endpoint = Endpoint {
            label: address.to_string(),
            directory: address
                .to_string()
                .replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "_"),
            family: None,
            transport,
        };
        let encoder = GraphiteEncoder::new(self, claims::bytes_max(environment), notes);
        // Whisper accepts points in any order, others do not; an answer says nothing about single points.
        let order = Order::TimeOrder;
        let started = Delivery::start(
            name,
            &DeliverySettings::from(self.delivery.clone()),
            order,
            Box::new(encoder),
            vec![endpoint],
            environment,
        );
        Ok(started?)
    }
}

/// Time that a reset may take beyond two round trips.
const RESET_MARGIN: Duration = Duration::from_millis(20);

/// Why a connection did not take a payload.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("cannot connect: {0}")]
    Connect(#[source] std::io::Error),
    #[error("broke off: {0}")]
    BrokeOff(#[from] std::io::Error),
}

struct Tcp {
    host: (String, u16),
    confirm: bool,
    notes: Notes,
}

impl Tcp {
    /// One connection per payload. The protocol has no answers, but a receiver sees the end of the stream only behind all
    /// that came before it: when it closes in turn, it has read everything.
    async fn attempt(&self, body: &[u8]) -> Result<(), SendError> {
        let (host, port) = &self.host;
        let began = Instant::now();
        let mut stream = connect_tcp(host, *port).await.map_err(SendError::Connect)?;
        let round_trip = began.elapsed();
        // A process that dies here must not end a line early that the receiver then takes for a whole one.
        reset_on_close(&stream, true)?;
        stream.write_all(body).await?;
        stream.shutdown().await?;
        reset_on_close(&stream, false)?;
        if !self.confirm {
            return Ok(());
        }
        let sent = Instant::now();
        let mut answer = [0; 512];
        while stream.read(&mut answer).await? > 0 {}
        // A receiver that closed before it got everything, as a balancer without a backend does, closes twice: the second time,
        // by a reset, when the rest arrives, which is a round trip after it was sent.
        tokio::time::sleep_until((sent + 2 * round_trip + RESET_MARGIN).into()).await;
        match stream.take_error() {
            Ok(None) => Ok(()),
            Ok(Some(error)) | Err(error) => Err(error.into()),
        }
    }
}

impl Transport for Tcp {
    fn send(&self, payload: Payload) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            match self.attempt(&payload.body).await {
                Ok(()) => Outcome::Delivered,
                Err(error) => Outcome::Retry {
                    error: error.to_string(),
                    after: None,
                },
            }
        })
    }

    fn details(&self) -> BTreeMap<&'static str, String> {
        shown(&self.notes)
    }
}
