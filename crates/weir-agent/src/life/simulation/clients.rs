//! Clients that number their requests, and repeat each until it is answered.

use std::collections::BTreeMap;

use weir_columns::decode::{Decoded, Endpoint, Limits};
use weir_columns::{Encoder, MetricType, Row, TagSet};
use weir_ingest::{ColumnFate, RequestNumber, worker_of};

use super::Random;

/// Requests of one client that are not answered yet.
const UNDER_WAY: u64 = 3;

/// Each so many requests of a client has a point that is older than any bucket.
const OLD_EVERY: u64 = 3;
const OLD: i64 = 1_600_000_000;

/// The beginning of the names of their series.
pub const CLIENT: &str = "client";

/// A request that is not answered yet.
#[derive(Debug, Default)]
struct UnderWay {
    /// The agent has said that it has added it, which counts once a checkpoint has this payload.
    added: Option<u64>,
    /// Times that it was added, as far as a kill did not take that back.
    times: u32,
}

/// The truth about one client.
#[derive(Debug)]
struct Client {
    name: u128,
    next: u64,
    under_way: BTreeMap<u64, UnderWay>,
}

/// The clients of a schedule, which outlive processes.
#[derive(Debug)]
pub struct Clients {
    clients: Vec<Client>,
    pub duplicates: u64,
    pub again: u64,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub struct Request {
    at: usize,
    pub worker: usize,
    pub number: RequestNumber,
    /// Of its only series, with one sample.
    pub series: String,
    /// The timestamp of that, if it is too old for the open bucket.
    pub own_timestamp: Option<i64>,
}

impl Clients {
    pub fn new(random: &mut Random) -> Clients {
        let client = |name: u64| Client {
            name: u128::from(name) << 64 | u128::from(random.next()),
            next: 1,
            under_way: BTreeMap::new(),
        };
        Clients {
            clients: (0..3).map(client).collect(),
            duplicates: 0,
            again: 0,
        }
    }

    /// A request that some client sends now, perhaps again. `ends`: nothing new.
    pub fn request(&mut self, workers: usize, random: &mut Random, ends: bool) -> Option<Request> {
        let at = random.below(self.clients.len() as u64) as usize;
        let client = &mut self.clients[at];
        if !ends && (client.under_way.len() as u64) < UNDER_WAY && random.one_in(2) {
            client.under_way.insert(client.next, UnderWay::default());
            client.next += 1;
        }
        let waiting: Vec<u64> = client.under_way.keys().copied().collect();
        let oldest = *waiting.first()?;
        let number = random.one_of(&waiting);
        Some(Request {
            at,
            worker: worker_of(client.name, workers),
            number: RequestNumber {
                client: client.name,
                number,
                oldest,
            },
            series: format!("{CLIENT}{at}.{number}"),
            own_timestamp: number.is_multiple_of(OLD_EVERY).then_some(OLD),
        })
    }

    /// The agent is about to add it.
    pub fn adds(&mut self, request: &Request) {
        let under_way = self.under_way(request);
        under_way.times += 1;
        self.again += u64::from(self.under_way(request).times > 1);
    }

    /// The process was killed before that had an effect.
    pub fn added_nothing(&mut self, request: &Request) {
        self.under_way(request).times -= 1;
    }

    /// Returns whether the agent has a number as added that it has not added: then its sample is lost, and nobody says so.
    pub fn fate(&mut self, request: &Request, fate: ColumnFate) -> bool {
        match fate {
            ColumnFate::Added { payload, .. } => {
                self.under_way(request).added = Some(payload);
                false
            }
            ColumnFate::Duplicate { payload, .. } => {
                self.duplicates += 1;
                let under_way = self.under_way(request);
                under_way.added = Some(payload);
                under_way.times == 0
            }
            // It is sent again.
            _ => false,
        }
    }

    /// Some answers arrive, and some are lost: then the client sends again.
    pub fn answers(&mut self, workers: usize, random: &mut Random, is_saved: impl Fn(usize, u64) -> bool) {
        for client in &mut self.clients {
            let worker = worker_of(client.name, workers);
            client.under_way.retain(|_, under_way| {
                let is_answered = under_way.added.is_some_and(|payload| is_saved(worker, payload));
                !is_answered || random.one_in(3)
            });
        }
    }

    /// Nobody answers any more.
    pub fn process_ended(&mut self) {
        for under_way in self
            .clients
            .iter_mut()
            .flat_map(|client| client.under_way.values_mut())
        {
            under_way.added = None;
        }
    }

    pub fn are_answered(&self) -> bool {
        self.clients.iter().all(|client| client.under_way.is_empty())
    }

    fn under_way(&mut self, request: &Request) -> &mut UnderWay {
        let of = &mut self.clients[request.at].under_way;
        of.get_mut(&request.number.number).expect("it is under way")
    }
}

/// A payload with one count of 1.
pub fn payload(series: &str, timestamp: i64) -> Decoded {
    let mut encoder = Encoder::new(1);
    let row = Row {
        name: encoder.name(&[series]),
        tags: encoder.tag_set(TagSet::default(), std::iter::empty()),
        interval: 1,
        ..Row::new(MetricType::Count)
    };
    encoder.row(&row, &[(timestamp, 1.0)]);
    encoder.sort();
    let decoded = Decoded::read(encoder.to_payload(), Endpoint::Series, &Limits::default());
    decoded.expect("it was just encoded")
}
