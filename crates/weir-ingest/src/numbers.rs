//! The numbers of clients' requests, of which each is added once: a client repeats a request with the same number until it is answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weir_counters::Counts;

use crate::counts::NumberCounter;

/// Numbers of one client that may be under way at the same time.
pub const NUMBERS_UNDER_WAY: u64 = 64;

/// Seconds after which a client that sends nothing is forgotten.
pub const CLIENT_EXPIRY: u64 = 60 * 60;

/// Memory of a known client, with the free places of a table that grows.
pub const CLIENT_BYTES: usize = 160;

/// Clients that a worker knows unless it is told otherwise.
const CLIENTS_MAX: usize = 1024;

/// Of the clients, the part that makes room when there is none.
const EVICTED_PARTS: usize = 16;

/// The bytes of a client where it is saved.
const SAVED_BYTES: usize = 32;

/// The number of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestNumber {
    pub client: u128,
    pub number: u64,
    /// The oldest that the client may send again. Not greater than `number`.
    pub oldest: u64,
}

/// The numbers of one client that were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownClient {
    pub client: u128,
    /// All numbers below it were added, or given up by the client.
    pub settled: u64,
    /// The bits of those that were added from there on. The first one is never set.
    pub added: u64,
}

/// The worker that adds the numbers of a client: always the same one, so that it can decide alone.
pub fn worker_of(client: u128, workers: usize) -> usize {
    let mixed = (client as u64) ^ ((client >> 64) as u64);
    (mixed % workers.max(1) as u64) as usize
}

impl KnownClient {
    pub fn new(client: u128, settled: u64) -> KnownClient {
        KnownClient {
            client,
            settled,
            added: 0,
        }
    }

    /// Whether a number was added, or given up.
    pub fn has(&self, number: u64) -> bool {
        match number.checked_sub(self.settled) {
            None => true,
            Some(at) => at < NUMBERS_UNDER_WAY && self.added >> at & 1 == 1,
        }
    }

    /// Adds a number, which is less than [`NUMBERS_UNDER_WAY`] above the settled ones. Numbers below `oldest` are settled. Returns how many
    /// of them the client gave up.
    pub fn add(&mut self, number: u64, oldest: u64) -> u64 {
        let given_up = self.settle(oldest);
        if let Some(at) = number.checked_sub(self.settled) {
            debug_assert!(at < NUMBERS_UNDER_WAY);
            self.added |= 1_u64.checked_shl(at as u32).unwrap_or(0);
            self.count_up();
        }
        given_up
    }

    fn settle(&mut self, oldest: u64) -> u64 {
        let Some(more) = oldest.checked_sub(self.settled) else {
            return 0;
        };
        let passed = match more {
            0..NUMBERS_UNDER_WAY => self.added & !(u64::MAX << more),
            _ => self.added,
        };
        self.added = self.added.checked_shr(more.min(64) as u32).unwrap_or(0);
        self.settled = oldest;
        self.count_up();
        more - u64::from(passed.count_ones())
    }

    fn count_up(&mut self) {
        let more = self.added.trailing_ones();
        self.settled += u64::from(more);
        self.added = self.added.checked_shr(more).unwrap_or(0);
    }

    /// Takes what another saved state has about the same client.
    pub fn merge(&mut self, other: &KnownClient) {
        self.settle(other.settled);
        let behind = (self.settled - other.settled).min(64) as u32;
        self.added |= other.added.checked_shr(behind).unwrap_or(0);
        self.count_up();
    }

    fn bytes(&self) -> [u8; SAVED_BYTES] {
        let mut bytes = [0; SAVED_BYTES];
        bytes[..16].copy_from_slice(&self.client.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.settled.to_le_bytes());
        bytes[24..].copy_from_slice(&self.added.to_le_bytes());
        bytes
    }

    /// As they are saved.
    pub fn encode<'a>(clients: impl IntoIterator<Item = &'a KnownClient>) -> Vec<u8> {
        clients.into_iter().flat_map(KnownClient::bytes).collect()
    }

    /// Reads what [`KnownClient::encode`] wrote. `None`: it did not.
    pub fn decode(bytes: &[u8]) -> Option<Vec<KnownClient>> {
        let (clients, []) = bytes.as_chunks::<SAVED_BYTES>() else {
            return None;
        };
        let client = |bytes: &[u8; SAVED_BYTES]| {
            let (client, rest) = bytes.split_first_chunk()?;
            let (settled, rest) = rest.split_first_chunk()?;
            Some(KnownClient {
                client: u128::from_le_bytes(*client),
                settled: u64::from_le_bytes(*settled),
                added: u64::from_le_bytes(*rest.first_chunk()?),
            })
        };
        clients.iter().map(client).collect()
    }
}

/// A number that was added, as it is noted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddedNumber {
    /// Counts the numbers that this worker has added since its start, from 1.
    pub payload: u64,
    pub number: RequestNumber,
    pub bucket: NotedBucket,
}

/// A bucket of one worker. A clock that is set back brings the same start again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedBucket {
    pub start: i64,
    /// Samples in buckets that had ended before it since the worker's start; `None` in notes of versions without it.
    pub ended: Option<u64>,
}

/// Keeps the numbers of a worker in case the process is killed.
pub struct NumberLink {
    /// Stores a number that was added. It must be cheap, and wait for nothing.
    pub note: Box<dyn Fn(&AddedNumber) + Send>,
    /// Numbers that have room there: the first is overwritten by this many later ones.
    pub notes_max: u64,
    /// A saved checkpoint has all payloads up to this one.
    pub saved: Arc<AtomicU64>,
    /// Checkpoints cannot be written.
    pub is_failing: Arc<AtomicBool>,
}

/// Whether a request is to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Yes,
    /// It was, with this payload at the latest.
    Added(u64),
    /// Too many numbers before it are missing.
    TooFar,
    /// The place where it is noted has others that no checkpoint has yet.
    NoRoom,
}

struct Client {
    known: KnownClient,
    /// The payload that changed it last.
    changed: u64,
    /// Seconds of the monotonic clock.
    seen: u64,
}

/// The clients of one worker.
pub(crate) struct ClientNumbers {
    clients: HashMap<u128, Client>,
    clients_max: usize,
    /// Numbers added since the start.
    payloads: u64,
    link: Option<NumberLink>,
    expired: u64,
    evicted: u64,
    given_up: u64,
    unknown: u64,
}

impl Default for ClientNumbers {
    fn default() -> Self {
        ClientNumbers {
            clients: HashMap::new(),
            clients_max: CLIENTS_MAX,
            payloads: 0,
            link: None,
            expired: 0,
            evicted: 0,
            given_up: 0,
            unknown: 0,
        }
    }
}

impl ClientNumbers {
    pub fn limit(&mut self, clients_max: usize) {
        self.clients_max = clients_max.max(1);
    }

    pub fn set_link(&mut self, link: Option<NumberLink>) {
        self.link = link;
    }

    /// Takes the numbers that earlier processes have added. `now`: seconds of the monotonic clock.
    pub fn restore(&mut self, clients: Vec<KnownClient>, now: u64) {
        for known in clients {
            self.make_room();
            let client = Client {
                known,
                changed: 0,
                seen: now,
            };
            self.clients.insert(known.client, client);
        }
    }

    pub fn verdict(&self, request: &RequestNumber) -> Verdict {
        let known = self.clients.get(&request.client);
        if let Some(client) = known
            && client.known.has(request.number)
        {
            return Verdict::Added(client.changed);
        }
        let settled = known.map_or(0, |client| client.known.settled);
        if request.number - request.oldest.max(settled) >= NUMBERS_UNDER_WAY {
            return Verdict::TooFar;
        }
        let has_room = |link: &NumberLink| {
            self.payloads - link.saved.load(Ordering::Acquire) < link.notes_max
                || link.is_failing.load(Ordering::Acquire)
        };
        match self.link.as_ref().is_none_or(has_room) {
            true => Verdict::Yes,
            false => Verdict::NoRoom,
        }
    }

    /// The points of a request are in this bucket. Returns which payload it is.
    pub fn add(&mut self, request: &RequestNumber, bucket: NotedBucket, now: u64) -> u64 {
        let RequestNumber {
            client,
            number,
            oldest,
        } = *request;
        if !self.clients.contains_key(&client) {
            self.unknown += u64::from(number > 1);
            self.make_room();
        }
        self.payloads += 1;
        let entry = self.clients.entry(client).or_insert_with(|| Client {
            known: KnownClient::new(client, oldest),
            changed: 0,
            seen: now,
        });
        self.given_up += entry.known.add(number, oldest);
        (entry.changed, entry.seen) = (self.payloads, now);
        if let Some(link) = &self.link {
            (link.note)(&AddedNumber {
                payload: self.payloads,
                number: *request,
                bucket,
            });
        }
        self.payloads
    }

    /// The client has sent something.
    pub fn seen(&mut self, client: u128, now: u64) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.seen = now;
        }
    }

    /// Forgets the clients that were seen longest ago, if there is no room for another one.
    fn make_room(&mut self) {
        if self.clients.len() < self.clients_max {
            return;
        }
        let mut seen: Vec<u64> = self.clients.values().map(|client| client.seen).collect();
        let most = seen.len().div_ceil(EVICTED_PARTS);
        let (_, until, _) = seen.select_nth_unstable(most - 1);
        let (until, mut left) = (*until, most);
        self.clients.retain(|_, client| {
            let stays = client.seen > until || left == 0;
            left -= usize::from(!stays);
            stays
        });
        self.evicted += most as u64;
    }

    /// Forgets clients that have not been seen for long.
    pub fn expire(&mut self, now: u64) {
        let before = self.clients.len();
        self.clients.retain(|_, client| client.seen + CLIENT_EXPIRY > now);
        self.expired += (before - self.clients.len()) as u64;
    }

    /// The last payload that was added.
    pub fn payloads(&self) -> u64 {
        self.payloads
    }

    /// The clients that have changed since a payload, as they are saved; `None`: all.
    pub fn changes(&self, since: Option<u64>) -> Vec<u8> {
        let changed = self
            .clients
            .values()
            .filter(|client| since.is_none_or(|since| client.changed > since));
        KnownClient::encode(changed.map(|client| &client.known))
    }

    pub fn all(&self) -> Vec<KnownClient> {
        self.clients.values().map(|client| client.known).collect()
    }

    pub fn counts(&self) -> Counts<NumberCounter> {
        let mut counts = Counts::default();
        counts[NumberCounter::Clients] = self.clients.len() as u64;
        counts[NumberCounter::ClientsExpired] = self.expired;
        counts[NumberCounter::ClientsEvicted] = self.evicted;
        counts[NumberCounter::ClientsUnknown] = self.unknown;
        counts[NumberCounter::GivenUp] = self.given_up;
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: NotedBucket = NotedBucket {
        start: 0,
        ended: None,
    };

    fn request(client: u128, number: u64, oldest: u64) -> RequestNumber {
        RequestNumber {
            client,
            number,
            oldest,
        }
    }

    /// Adds it if it is new.
    fn send(numbers: &mut ClientNumbers, client: u128, number: u64, oldest: u64, now: u64) -> Verdict {
        let request = request(client, number, oldest);
        let verdict = numbers.verdict(&request);
        if verdict == Verdict::Yes {
            numbers.add(&request, BUCKET, now);
        }
        verdict
    }

    #[test]
    fn each_number_is_new_once_in_any_order() {
        let mut numbers = ClientNumbers::default();
        let order = [3, 1, 64, 2, 5, 4, 63];
        for (at, number) in order.into_iter().enumerate() {
            assert_eq!(send(&mut numbers, 7, number, 1, 0), Verdict::Yes, "{number}");
            for again in &order[..=at] {
                let verdict = send(&mut numbers, 7, *again, 1, 0);
                assert!(matches!(verdict, Verdict::Added(_)), "{again}: {verdict:?}");
            }
        }
        assert_eq!(
            numbers.all(),
            [KnownClient {
                client: 7,
                settled: 6,
                added: 1 << 57 | 1 << 58
            }]
        );
        assert_eq!(send(&mut numbers, 7, 70, 1, 0), Verdict::TooFar);
        // A number that the client gave up is not added when it comes late.
        assert_eq!(send(&mut numbers, 7, 70, 65, 0), Verdict::Yes);
        assert_eq!(numbers.counts()[NumberCounter::GivenUp], 57, "6 to 62");
        assert!(matches!(send(&mut numbers, 7, 8, 8, 0), Verdict::Added(_)));
    }

    #[test]
    fn clients_do_not_share_numbers() {
        let mut numbers = ClientNumbers::default();
        for number in 1..=100 {
            for client in [1, 2, 1 << 64] {
                assert_eq!(send(&mut numbers, client, number, number, 0), Verdict::Yes);
                let again = send(&mut numbers, client, number, number, 0);
                assert!(matches!(again, Verdict::Added(_)));
            }
        }
        assert_eq!(numbers.counts()[NumberCounter::GivenUp], 0);
    }

    #[test]
    fn the_last_numbers_there_are_can_be_added() {
        let mut numbers = ClientNumbers::default();
        let last = u64::MAX >> 1;
        assert_eq!(send(&mut numbers, 1, last, last, 0), Verdict::Yes);
        assert!(matches!(send(&mut numbers, 1, last, last, 0), Verdict::Added(_)));
        assert!(matches!(send(&mut numbers, 1, 1, 1, 0), Verdict::Added(_)));
    }

    #[test]
    fn those_seen_longest_ago_make_room_and_silent_ones_expire() {
        let mut numbers = ClientNumbers::default();
        numbers.limit(32);
        for client in 0..33 {
            send(&mut numbers, client, 1, 1, client as u64);
        }
        let counts = numbers.counts();
        assert_eq!(counts[NumberCounter::ClientsEvicted], 2);
        assert_eq!(counts[NumberCounter::Clients], 31);
        // An old number of a client that was forgotten is new, and counted.
        assert_eq!(send(&mut numbers, 1, 2, 2, 40), Verdict::Yes);
        assert_eq!(numbers.counts()[NumberCounter::ClientsUnknown], 1);
        numbers.expire(CLIENT_EXPIRY + 32);
        assert_eq!(numbers.counts()[NumberCounter::Clients], 1);
        assert_eq!(numbers.counts()[NumberCounter::ClientsExpired], 31);
    }

    #[test]
    fn merged_states_have_the_numbers_of_both() {
        let of = |settled, numbers: &[u64]| {
            let mut client = KnownClient::new(1, settled);
            numbers.iter().for_each(|number| {
                client.add(*number, settled);
            });
            client
        };
        for (one, other) in [
            (of(1, &[1, 2, 5]), of(4, &[4, 7])),
            (of(1, &[]), of(200, &[203])),
            (of(3, &[]), of(3, &[4])),
        ] {
            for (mut merged, other) in [(one, other), (other, one)] {
                let before = merged;
                merged.merge(&other);
                for number in 1..300 {
                    let is_known = before.has(number) || other.has(number);
                    assert_eq!(
                        merged.has(number),
                        is_known,
                        "{number} in {before:?} and {other:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn saved_clients_are_read_again() {
        let clients = [
            KnownClient::new(3, 9),
            KnownClient {
                client: u128::MAX,
                settled: 1,
                added: 6,
            },
        ];
        let bytes = KnownClient::encode(&clients);
        assert_eq!(KnownClient::decode(&bytes).as_deref(), Some(&clients[..]));
        assert_eq!(KnownClient::decode(&bytes[1..]), None);
    }
}
