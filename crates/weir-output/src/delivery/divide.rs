//! Delivering one payload: in one request, or, if the receiver refuses its content, in parts, until the series is found
//! for which it does. The rest is delivered, and the series is remembered so that it is left out when it comes again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Landed, Outcome, Parts, Payload, Shared, Transport, lock};
use crate::http::one_line;

/// Refused series that are remembered, with their names.
const KNOWN_MAX: usize = 1000;
/// The receiver may take a series again after this; it is then tried with the others.
const KNOWN_FOR: Duration = Duration::from_secs(3600);
/// A payload is searched for this many series or a few more; undecided ones are then dropped.
const SEARCHED_FOR: u32 = 4;

/// The series that an endpoint's receiver has refused.
#[derive(Default)]
pub struct RefusedSeries {
    known: HashMap<u128, (Duration, String)>,
    /// Not one series of a refused payload was accepted: the refusal is not about series, and dividing payloads is useless
    /// until something is delivered.
    all: bool,
}

impl RefusedSeries {
    pub fn count(&self) -> u64 {
        self.known.len() as u64
    }

    fn mark_refused(&mut self, series: u128, name: String, now: Duration) {
        if self.known.len() >= KNOWN_MAX {
            // They are found again, one by one.
            self.known.clear();
        }
        self.known.insert(series, (now, name));
    }
}

/// Sends a payload and returns the result; never [`Outcome::Invalid`].
pub async fn deliver(
    shared: Arc<Shared>,
    transport: Arc<dyn Transport>,
    refused: Arc<Mutex<RefusedSeries>>,
    payload: Payload,
    landed: Landed,
) -> (Payload, Outcome) {
    let outcome = match attempt(&shared, &*transport, payload.clone(), landed).await {
        Outcome::Invalid { error } => {
            let division = Division::new(&shared, &transport, &refused, &payload);
            match division.await {
                Some(division) => division.run(error).await,
                None => Outcome::Rejected { error },
            }
        }
        outcome => outcome,
    };
    if matches!(outcome, Outcome::Delivered | Outcome::Partly { .. }) {
        lock(&refused).all = false;
    }
    (payload, outcome)
}

async fn attempt(shared: &Shared, transport: &dyn Transport, payload: Payload, landed: Landed) -> Outcome {
    let timeout = shared.settings.timeout;
    tokio::select! {
        // An answer that arrived counts, also when the time is over: what was accepted is not sent again.
        biased;
        outcome = transport.send_and_mark(payload, landed) => outcome,
        () = shared.clock.sleep_until(shared.clock.now() + timeout) => {
            Outcome::Retry { error: format!("no answer within {} s", timeout.as_secs_f64()), after: None }
        }
    }
}

/// A payload that was refused, on its way in parts.
struct Division<'a> {
    shared: &'a Shared,
    transport: &'a dyn Transport,
    refused: &'a Mutex<RefusedSeries>,
    payload: &'a Payload,
    parts: Arc<dyn Parts>,
    /// Series in the payload.
    total: usize,
    /// The series, by their numbers in it, that have not been refused before.
    rest: Vec<usize>,
    /// Refused, whether found now or known.
    names: Vec<String>,
    /// Series that were dropped, whether found to be the cause or not.
    dropped: usize,
    /// Points of accepted parts except these.
    dropped_points: u64,
    taken: usize,
    requests: u32,
    pairs: u32,
}

/// A run of [`Division::rest`].
struct Part {
    range: Range<usize>,
    /// It was refused, or must be: it is the other half of something refused whose first half was taken.
    is_refused: bool,
    /// Both halves of one part have the same.
    pair: u32,
}

impl<'a> Division<'a> {
    async fn new(
        shared: &'a Shared,
        transport: &'a Arc<dyn Transport>,
        refused: &'a Mutex<RefusedSeries>,
        payload: &'a Payload,
    ) -> Option<Division<'a>> {
        if lock(refused).all {
            return None;
        }
        let (opener, of_payload) = (transport.clone(), payload.clone());
        let opened = shared.clock.blocking(move || {
            let parts: Arc<dyn Parts> = opener.parts(&of_payload)?.into();
            let mut series = Vec::new();
            parts.pick(&mut |id, _| {
                series.push(id);
                false
            })?;
            Some((parts, series))
        });
        let (parts, series) = opened.await.ok()??;
        let mut division = Division {
            shared,
            transport: &**transport,
            refused,
            payload,
            parts,
            total: series.len(),
            rest: Vec::new(),
            names: Vec::new(),
            dropped: 0,
            dropped_points: 0,
            taken: 0,
            requests: 0,
            pairs: 0,
        };
        division.skip_known(&series);
        Some(division)
    }

    fn skip_known(&mut self, series: &[u128]) {
        let (now, mut refused) = (self.shared.clock.now(), lock(self.refused));
        refused.known.retain(|_, (since, _)| now < *since + KNOWN_FOR);
        for (at, id) in series.iter().enumerate() {
            match refused.known.get(id) {
                Some((_, name)) => self.names.push(name.clone()),
                None => self.rest.push(at),
            }
        }
        self.dropped = self.total - self.rest.len();
    }

    async fn run(mut self, mut error: String) -> Outcome {
        // If nothing is known and left out, it is the whole that has just been refused.
        let is_refused = self.rest.len() == self.total;
        let range = 0..self.rest.len();
        let mut waiting = vec![Part {
            range,
            is_refused,
            pair: 0,
        }];
        while let Some(part) = waiting.pop().filter(|part| !part.range.is_empty()) {
            let length = part.range.len();
            if self.is_enough() {
                self.dropped += length;
                continue;
            }
            let outcome = match part.is_refused && (length > 1 || self.total == 1) {
                true => Outcome::Invalid { error: error.clone() },
                false => self.send(part.range.clone()).await,
            };
            match outcome {
                Outcome::Delivered => {
                    self.taken += length;
                    if let Some(other) = waiting.last_mut().filter(|other| other.pair == part.pair) {
                        other.is_refused = true;
                    }
                    continue;
                }
                Outcome::Partly { rejected, error: why } => {
                    self.taken += length;
                    self.dropped_points += u64::from(rejected);
                    error = why;
                }
                Outcome::Invalid { error: why } => {
                    error = why;
                    if length == 1 {
                        self.mark_refused(part.range.start).await;
                    } else {
                        waiting.extend(self.halves(part.range));
                    }
                }
                Outcome::Rejected { error: why } => {
                    self.dropped += length;
                    error = why;
                }
                outcome @ (Outcome::Retry { .. } | Outcome::Denied { .. }) => return outcome,
            }
        }
        self.outcome(error)
    }

    /// The later half first, as the last is tried next.
    fn halves(&mut self, range: Range<usize>) -> [Part; 2] {
        self.pairs += 1;
        let pair = self.pairs;
        let middle = range.start + range.len() / 2;
        let part = |range| Part {
            range,
            is_refused: false,
            pair,
        };
        [part(middle..range.end), part(range.start..middle)]
    }

    /// Stop: too many series are refused for this to be about single ones, or none is accepted.
    fn is_enough(&self) -> bool {
        let depth = self.total.max(1).ilog2() + 1;
        self.requests >= 2 * SEARCHED_FOR * depth || self.is_all_refused()
    }

    fn is_all_refused(&self) -> bool {
        self.taken == 0 && self.requests > self.total.max(1).ilog2() + 3
    }

    async fn send(&mut self, range: Range<usize>) -> Outcome {
        self.requests += 1;
        let share = u64::from(self.payload.count) * range.len() as u64 / self.total as u64;
        let Some(body) = self.pick(range).await else {
            let error = "a payload that cannot be divided".to_owned();
            return Outcome::Rejected { error };
        };
        let part = Payload {
            count: share.max(1) as u32,
            body: body.into(),
            ..self.payload.clone()
        };
        attempt(self.shared, self.transport, part, Landed::default()).await
    }

    async fn pick(&self, range: Range<usize>) -> Option<Vec<u8>> {
        let mut wanted = vec![false; self.total];
        self.rest[range].iter().for_each(|at| wanted[*at] = true);
        let parts = self.parts.clone();
        let picked = self.shared.clock.blocking(move || {
            let mut wanted = wanted.into_iter();
            parts.pick(&mut |_, _| wanted.next().unwrap_or(false))
        });
        picked.await.ok()?
    }

    /// Alone, the series is refused: it is the one.
    async fn mark_refused(&mut self, at: usize) {
        self.dropped += 1;
        let (parts, wanted) = (self.parts.clone(), self.rest[at]);
        let found = self.shared.clock.blocking(move || {
            let (mut at, mut found) = (0, None);
            parts.pick(&mut |id, name| {
                if at == wanted {
                    found = Some((id, one_line(&name())));
                }
                at += 1;
                false
            });
            found
        });
        if let Ok(Some((id, name))) = found.await {
            lock(self.refused).mark_refused(id, name.clone(), self.shared.clock.now());
            self.names.push(name);
        }
    }

    fn outcome(self, error: String) -> Outcome {
        lock(self.refused).all |= self.is_all_refused();
        let share = (u64::from(self.payload.count) * self.dropped as u64).div_ceil(self.total.max(1) as u64);
        let rejected = (share + self.dropped_points).min(u64::from(self.payload.count)) as u32;
        let error = match (self.names.first(), self.dropped) {
            (None, _) => error,
            (Some(name), 1) => format!("the series {name} is refused: {error}"),
            (Some(name), n) => format!("{n} series are refused, {name} among them: {error}"),
        };
        match (self.dropped + self.dropped_points as usize, self.taken) {
            (0, _) => Outcome::Delivered,
            (_, 0) => Outcome::Rejected { error },
            _ => Outcome::Partly { rejected, error },
        }
    }
}
