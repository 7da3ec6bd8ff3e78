//! The clients' own telemetry, read from the batches that the pipeline hands to outputs. The metrics themselves pass unchanged.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_aggregate::{Batch, Bucket, Series, Value};
use weir_counters::Counts;

use weir_status::clients::{ClientCounter, ClientRow, OTHER};
use weir_status::status::Status;

/// The prefix of the counters of Datadog's clients and weir's own.
const FAMILY: &str = "datadog.dogstatsd.client.";

/// The statistics of statsd-instrument, after the application's prefix; the transport is between these parts.
const STATSD_INSTRUMENT: (&str, &str) = ("statsd_instrument.batched_", "_sink.synchronous_sends");

/// Maximum clients with a row.
const CLIENTS_MAX: usize = 256;

/// Seconds of silence after which a client is forgotten.
const SILENCE_MAX: i64 = 3600;

/// The same if others need the room. Clients report every ten seconds.
const SILENCE_MAX_CROWDED: i64 = 60;

/// Maximum length of a client's name, version, transport or origin.
const PART_BYTES_MAX: usize = 100;

/// Sums saturate here, so that they are exact integers for readers of JSON too.
const COUNT_MAX: u64 = 1 << 53;

/// Tags that identify a client's place, the most specific first.
const ORIGIN_TAGS: [&str; 9] = [
    "pod_name",
    "container_name",
    "container_id",
    "kube_deployment",
    "kube_stateful_set",
    "kube_daemon_set",
    "kube_container_name",
    "service",
    "kube_namespace",
];

/// The reports. The pipeline writes them; the status reads them.
#[derive(Default)]
pub struct Clients {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    total: Counts<ClientCounter>,
    seen: HashMap<String, KnownClient>,
    /// Clients that found no room.
    others: Option<KnownClient>,
    /// Reused for the keys of look-ups.
    key: String,
}

#[derive(Default)]
struct KnownClient {
    row: ClientRow,
    counts: Counts<ClientCounter>,
}

impl Clients {
    /// Searches one part of a flush. A name without telemetry costs two comparisons.
    pub fn take(&self, batch: &Batch) {
        let mut reported = batch
            .series()
            .filter_map(|series| Reported::of(&series))
            .peekable();
        if reported.peek().is_none() && !batch.last {
            return;
        }
        let mut state = self.lock();
        for reported in reported {
            state.add(&reported, batch.bucket.timestamp);
        }
        if batch.last {
            state.forget(&batch.bucket);
        }
    }

    /// Adds the totals, and each client.
    pub fn report(&self, status: &mut Status) {
        let state = self.lock();
        let mut total = state.total;
        total[ClientCounter::Known] = state.seen.len() as u64;
        status.add(None, &total);
        let rows = state.seen.values().chain(&state.others);
        let mut rows: Vec<ClientRow> = rows.map(|seen| seen.row.clone().with(&seen.counts)).collect();
        drop(state);
        rows.sort_by(|one, other| order(other).cmp(&order(one)));
        status.clients.seen = rows;
    }

    pub fn heap_bytes(&self) -> u64 {
        let state = self.lock();
        let texts = |seen: &KnownClient| {
            let ClientRow {
                client,
                version,
                transport,
                origin,
                ..
            } = &seen.row;
            [client, version, transport, origin]
                .map(String::capacity)
                .iter()
                .sum::<usize>()
        };
        let rows: usize = state
            .seen
            .iter()
            .map(|(key, seen)| key.capacity() + texts(seen))
            .sum();
        (rows + state.seen.capacity() * size_of::<(String, KnownClient)>()) as u64
    }

    /// A poisoned lock is harmless: the numbers are consistent after every statement.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Most lost packets first, then most sent packets; names break ties.
fn order(row: &ClientRow) -> impl Ord + '_ {
    let names = [&row.client, &row.version, &row.transport, &row.origin];
    (
        row.packets_lost(),
        row.metrics_dropped_on_receive,
        row.packets_sent,
        std::cmp::Reverse(names),
    )
}

impl State {
    fn add(&mut self, reported: &Reported<'_>, now: i64) {
        add(&mut self.total, reported);
        self.key.clear();
        for part in reported.parts() {
            self.key.push_str(part);
            // No tag can contain it.
            self.key.push('|');
        }
        let has_room = self.seen.len() < CLIENTS_MAX;
        let seen = match self.seen.get_mut(&self.key) {
            Some(seen) => seen,
            None if has_room => self
                .seen
                .entry(self.key.clone())
                .or_insert_with(|| reported.first()),
            None => {
                self.total[ClientCounter::Crowded] += 1;
                self.others.get_or_insert_with(KnownClient::others)
            }
        };
        add(&mut seen.counts, reported);
        seen.row.last_seen = now.max(0) as u64;
    }

    /// Between two buckets: removes silent clients. The totals keep their numbers.
    fn forget(&mut self, bucket: &Bucket) {
        let silence_max = match self.seen.len() < CLIENTS_MAX {
            true => SILENCE_MAX,
            false => SILENCE_MAX_CROWDED.max(3 * i64::from(bucket.width)),
        };
        let since = (bucket.timestamp - silence_max).max(0) as u64;
        self.seen.retain(|_, seen| seen.row.last_seen >= since);
    }
}

impl KnownClient {
    fn others() -> KnownClient {
        let row = ClientRow {
            client: OTHER.to_owned(),
            ..ClientRow::default()
        };
        KnownClient {
            row,
            ..KnownClient::default()
        }
    }
}

fn add(counts: &mut Counts<ClientCounter>, reported: &Reported<'_>) {
    let count = &mut counts[reported.counter];
    *count = (*count + reported.number).min(COUNT_MAX);
}

/// One number in a client's report.
#[derive(Clone, Copy)]
struct Reported<'a> {
    counter: ClientCounter,
    number: u64,
    client: &'a str,
    version: &'a str,
    transport: &'a str,
    /// A tag, or else a host.
    origin: &'a str,
}

impl<'a> Reported<'a> {
    fn of(series: &Series<'a>) -> Option<Reported<'a>> {
        let name = series.name();
        let (counter, client, transport) = match name.strip_prefix(FAMILY) {
            Some(name) => (of_family(name)?, "", ""),
            None => (
                ClientCounter::SynchronousSends,
                "statsd-instrument",
                of_statsd_instrument(name)?,
            ),
        };
        let Value::Counter(sum) = series.value() else {
            return None;
        };
        // A zero of an idle counter is not a report; a negative number is invalid.
        if series.is_idle() || sum.is_nan() || sum < 0.0 {
            return None;
        }
        let number = (sum.round() as u64).min(COUNT_MAX);
        let mut reported = Reported {
            counter,
            number,
            client,
            version: "",
            transport,
            origin: "",
        };
        reported.read_tags(series);
        Some(reported)
    }

    fn read_tags(&mut self, series: &Series<'a>) {
        let mut rank = ORIGIN_TAGS.len();
        for tag in series.tags() {
            let Some((key, value)) = tag.split_once(':') else {
                continue;
            };
            match key {
                "client" if self.client.is_empty() => self.client = value,
                "client_version" => self.version = value,
                "client_transport" => self.transport = value,
                _ => {
                    let place = ORIGIN_TAGS.iter().position(|known| *known == key);
                    if let Some(place) = place.filter(|place| *place < rank) {
                        (rank, self.origin) = (place, tag);
                    }
                }
            }
        }
        if self.origin.is_empty() {
            self.origin = series.explicit_host().unwrap_or_default();
        }
    }

    fn parts(&self) -> [&'a str; 4] {
        [self.client, self.version, self.transport, self.origin].map(shortened)
    }

    fn first(&self) -> KnownClient {
        let [client, version, transport, origin] = self.parts().map(str::to_owned);
        let row = ClientRow {
            client,
            version,
            transport,
            origin,
            ..ClientRow::default()
        };
        KnownClient {
            row,
            ..KnownClient::default()
        }
    }
}

/// Numbers by type are skipped, because they are parts of the counted ones.
fn of_family(name: &str) -> Option<ClientCounter> {
    Some(match name {
        "metrics" => ClientCounter::Metrics,
        "events" => ClientCounter::Events,
        "service_checks" => ClientCounter::ServiceChecks,
        "aggregated_context" => ClientCounter::AggregatedContexts,
        "packets_sent" => ClientCounter::PacketsSent,
        "bytes_sent" => ClientCounter::BytesSent,
        "packets_dropped" => ClientCounter::PacketsDropped,
        "packets_dropped_queue" => ClientCounter::PacketsDroppedQueue,
        "packets_dropped_writer" => ClientCounter::PacketsDroppedWriter,
        "bytes_dropped" => ClientCounter::BytesDropped,
        "bytes_dropped_queue" => ClientCounter::BytesDroppedQueue,
        "bytes_dropped_writer" => ClientCounter::BytesDroppedWriter,
        "metric_dropped_on_receive" => ClientCounter::MetricsDroppedOnReceive,
        _ => return None,
    })
}

/// The transport in the name of the statistic.
fn of_statsd_instrument(name: &str) -> Option<&str> {
    let (before, behind) = STATSD_INSTRUMENT;
    let (_, transport) = name.strip_suffix(behind)?.rsplit_once(before)?;
    Some(transport)
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(PART_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use weir_aggregate::AggregatorSettings;
    use weir_context::{ContextLimits, HashSecret, RuleSettings, Rules};
    use weir_ingest::{Ingest, IngestSettings, ListenerSettings, Received};

    use super::*;

    /// The batches of a bucket with these messages.
    fn batches(lines: impl Iterator<Item = String>) -> Vec<Batch> {
        let settings = IngestSettings {
            worker: 0,
            aggregator: AggregatorSettings::default(),
            rules: Rules::new(RuleSettings::default()),
            limits: ContextLimits::default(),
            secret: HashSecret::from_random(1, 2),
            listeners: vec![ListenerSettings::default()],
        };
        let mut ingest = Ingest::new(settings, 1_700_000_000);
        for line in lines {
            ingest.packet(Received {
                bytes: line.as_bytes(),
                listener: 0,
                truncated: false,
                received: 0,
            });
        }
        assert!(ingest.advance(1_700_000_010));
        let mut batches = Vec::new();
        while ingest.is_draining() {
            batches.extend(ingest.drain(usize::MAX));
        }
        batches
    }

    #[test]
    fn a_flood_of_versions_stays_bounded_and_sums_stay_exact() {
        let versions = 10_000;
        let lost = |number: u64| number % 7;
        let lines = (0..versions).map(|number| {
            let lost = lost(number);
            format!("{FAMILY}packets_dropped:{lost}|c|#client:go,client_version:v{number}")
        });
        let clients = Clients::default();
        batches(lines).iter().for_each(|batch| clients.take(batch));
        let mut status = Status::default();
        clients.report(&mut status);
        let sent: u64 = (0..versions).map(lost).sum();
        let numbers = &status.clients.numbers;
        assert_eq!(numbers.of(ClientCounter::PacketsDropped), sent);
        assert_eq!(numbers.of(ClientCounter::Known), CLIENTS_MAX as u64);
        assert_eq!(numbers.of(ClientCounter::Crowded), versions - CLIENTS_MAX as u64);
        let rows = &status.clients.seen;
        assert_eq!(rows.len(), CLIENTS_MAX + 1);
        assert_eq!(rows.iter().map(ClientRow::packets_lost).sum::<u64>(), sent);
        assert!(rows.iter().any(|row| row.client == OTHER));
        let own = weir_status::series::own_series(&status);
        let of_clients = own
            .iter()
            .filter(|own| own.name == "weir_client_packets_dropped_total");
        assert!((1..=64).contains(&of_clients.count()));
    }
}
