//! Outputs, and the truth about what their receivers have accepted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_aggregate::{Batch, Value, Weights};
use weir_output::delivery::{OutputState, SavedStates};
use weir_output::prometheus::{Format, Scrape, Seconds};
use weir_output::settings::PrometheusSettings;

use super::Random;
use crate::run::pipeline::Consumers;
use crate::state::Tally;
use crate::state::tally::OutputKind;

/// The name of the scrape output.
pub const SCRAPE: &str = "prometheus";

/// The behaviour of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Accepts,
    /// Each payload, for good.
    Refuses,
    /// No answer.
    Hangs,
    /// Each attempt fails at once, and is repeated.
    Away,
}

/// A receiver, which outlives the processes that send to it.
#[derive(Debug)]
pub struct Receiver {
    pub name: String,
    pub mood: Mood,
    /// Samples by name.
    pub accepted: BTreeMap<String, u64>,
    /// By timestamp and name: how often a part of this bucket came.
    pub parts: BTreeMap<(i64, String), u32>,
    /// Samples that the output dropped and counted.
    pub dropped: u64,
    /// Samples in payloads that a process has from the one before. A kill drops them, and the books have them among those that waited.
    pub carried: u64,
    /// Accepted samples of which the output had not said so yet when its process was killed: the next start reports them.
    pub accepted_unsaid: u64,
}

impl Receiver {
    pub fn new(name: &str) -> Receiver {
        Receiver {
            name: name.to_owned(),
            mood: Mood::Accepts,
            accepted: BTreeMap::new(),
            parts: BTreeMap::new(),
            dropped: 0,
            carried: 0,
            accepted_unsaid: 0,
        }
    }

    pub fn samples(&self) -> u64 {
        self.accepted.values().sum()
    }
}

pub type Receivers = Arc<Mutex<Vec<Receiver>>>;

pub fn lock(receivers: &Receivers) -> MutexGuard<'_, Vec<Receiver>> {
    receivers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A part of a bucket on its way.
#[derive(Clone)]
struct Payload {
    timestamp: i64,
    rows: Vec<(String, u64)>,
    /// With the last one of a bucket: the samples until its end.
    ends: Option<u64>,
    /// It comes from the previous process.
    is_carried: bool,
}

impl Payload {
    fn samples(&self) -> u64 {
        self.rows.iter().map(|(_, samples)| samples).sum()
    }
}

/// The payloads of one output that wait when another process takes over.
pub struct Waiting(VecDeque<Payload>);

impl Waiting {
    pub fn samples(&self) -> u64 {
        self.0.iter().map(Payload::samples).sum()
    }
}

/// One output of a process.
struct Sending {
    name: String,
    waiting: VecDeque<Payload>,
    /// Accepted, of the bucket whose last payload is not delivered yet.
    unsaid: u64,
}

/// All that a process gives its merged buckets to.
pub struct Outputs {
    receivers: Receivers,
    sending: Vec<Sending>,
    pub scrape: Arc<Scrape>,
    tally: Option<Arc<Tally>>,
    /// Monotonic seconds of the process.
    pub now: Seconds,
    /// A bucket has ended since this was last asked.
    pub has_flushed: bool,
    /// Rows of a payload.
    rows_max: usize,
}

impl Outputs {
    pub fn start(
        receivers: &Receivers,
        saved: &SavedStates,
        tally: Option<Arc<Tally>>,
        rows_max: usize,
    ) -> Outputs {
        let settings = PrometheusSettings::default();
        let scrape = Arc::new(Scrape::new(settings, Weights::Exact, usize::MAX));
        saved.restore_with(SCRAPE, &scrape.lineage(), |saved, of| {
            scrape.restore(saved, of, 0)
        });
        let names: Vec<String> = lock(receivers).iter().map(|of| of.name.clone()).collect();
        if let Some(tally) = &tally {
            let mut named: Vec<_> = names.iter().map(|name| (&**name, OutputKind::Delivers)).collect();
            named.push((SCRAPE, OutputKind::AddsUp));
            tally.register(&named);
        }
        Outputs {
            receivers: receivers.clone(),
            sending: names
                .into_iter()
                .map(|name| Sending {
                    name,
                    waiting: VecDeque::new(),
                    unsaid: 0,
                })
                .collect(),
            scrape,
            tally,
            now: 0,
            has_flushed: false,
            rows_max,
        }
    }

    /// One output does one thing.
    pub fn step(&mut self, random: &mut Random) {
        let at = random.below(self.sending.len() as u64) as usize;
        self.step_of(at);
    }

    fn step_of(&mut self, at: usize) -> bool {
        let sending = &mut self.sending[at];
        if sending.waiting.is_empty() {
            return false;
        }
        let mood = lock(&self.receivers)[at].mood;
        if mood == Mood::Hangs {
            return false;
        }
        // Something leaves now.
        if let Some(tally) = &self.tally {
            let ends = sending.waiting.iter().find_map(|payload| payload.ends);
            tally.leaves(&sending.name, ends.unwrap_or(u64::MAX));
            tally.begins();
        }
        if mood == Mood::Away {
            return false;
        }
        let Some(payload) = sending.waiting.pop_front() else {
            return false;
        };
        {
            let mut receivers = lock(&self.receivers);
            let receiver = &mut receivers[at];
            let samples = payload.samples();
            if payload.is_carried {
                receiver.carried -= samples;
            } else {
                sending.unsaid += samples;
                receiver.accepted_unsaid += samples;
            }
            match mood {
                Mood::Refuses => receiver.dropped += samples,
                _ => {
                    for (name, samples) in payload.rows {
                        *receiver
                            .parts
                            .entry((payload.timestamp, name.clone()))
                            .or_default() += 1;
                        *receiver.accepted.entry(name).or_default() += samples;
                    }
                }
            }
        }
        if let Some(samples) = payload.ends {
            // A kill before this is complete reports as lost what was accepted.
            if let Some(tally) = &self.tally {
                tally.safe(&sending.name, OutputKind::Delivers, samples);
            }
            let said = std::mem::take(&mut sending.unsaid);
            lock(&self.receivers)[at].accepted_unsaid -= said;
        }
        true
    }

    /// The outputs deliver what they can. True: nothing waits.
    pub fn deliver(&mut self) -> bool {
        for at in 0..self.sending.len() {
            while self.step_of(at) {}
        }
        self.sending.iter().all(|sending| sending.waiting.is_empty())
    }

    /// The payloads that another process continues with.
    pub fn waiting(&self) -> Vec<Waiting> {
        let carried = |payload: &Payload| Payload {
            ends: None,
            is_carried: true,
            ..payload.clone()
        };
        let waiting = |sending: &Sending| Waiting(sending.waiting.iter().map(carried).collect());
        self.sending.iter().map(waiting).collect()
    }

    /// Continues with that.
    pub fn carry(&mut self, waiting: &[Waiting]) {
        for (sending, Waiting(waiting)) in self.sending.iter_mut().zip(waiting) {
            sending.waiting = waiting.clone();
        }
    }

    /// No start reports what was accepted: no kill ended the process.
    pub fn said(&mut self) {
        let mut receivers = lock(&self.receivers);
        for (sending, receiver) in self.sending.iter_mut().zip(&mut *receivers) {
            receiver.accepted_unsaid -= std::mem::take(&mut sending.unsaid);
        }
    }

    /// At a stop, what waits is dropped and counted.
    pub fn drop_waiting(&mut self) {
        let mut receivers = lock(&self.receivers);
        for (sending, receiver) in self.sending.iter_mut().zip(&mut *receivers) {
            let ends = sending
                .waiting
                .iter()
                .filter_map(|payload| payload.ends)
                .next_back();
            if let (Some(tally), Some(samples)) = (&self.tally, ends) {
                tally.safe(&sending.name, OutputKind::Delivers, samples);
            }
            let samples: u64 = sending.waiting.drain(..).map(|payload| payload.samples()).sum();
            receiver.dropped += samples;
            receiver.carried = 0;
            receiver.accepted_unsaid -= std::mem::take(&mut sending.unsaid);
        }
    }

    pub fn save_counted(&self) -> (OutputState, u64) {
        let (saved, samples) = self.scrape.save_counted(self.now);
        (OutputState::new(&self.scrape.lineage(), saved), samples)
    }

    /// The counters that a scraper sees.
    pub fn scraped(&self) -> BTreeMap<String, u64> {
        let mut rendering = self.scrape.render(Format::Text, false, &[], self.now);
        let mut text = Vec::new();
        while let Some(piece) = rendering.next_piece() {
            text.extend_from_slice(&piece);
        }
        let text = String::from_utf8(text).unwrap();
        let counter = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            let name = name.strip_suffix("_total")?;
            Some((name.to_owned(), value.parse::<f64>().ok()? as u64))
        };
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(counter)
            .collect()
    }
}

impl Consumers for Outputs {
    fn renew(&mut self) {}

    fn take(&mut self, batch: &Arc<Batch>) {
        self.scrape.take(batch, self.now);
        let rows: Vec<_> = batch
            .series()
            .filter(|series| !series.is_idle())
            .map(|series| match series.value() {
                Value::Counter(sum) => (series.name().to_owned(), sum as u64),
                other => panic!("only counters are sent: {other:?}"),
            })
            .collect();
        for sending in &mut self.sending {
            for part in rows.chunks(self.rows_max) {
                sending.waiting.push_back(Payload {
                    timestamp: batch.bucket.timestamp,
                    rows: part.to_vec(),
                    ends: None,
                    is_carried: false,
                });
            }
            if batch.last {
                let ends = Some(batch.samples_until);
                match sending.waiting.back_mut() {
                    Some(last)
                        if last.timestamp == batch.bucket.timestamp
                            && last.ends.is_none()
                            && !last.is_carried =>
                    {
                        last.ends = ends
                    }
                    // Nothing is left to deliver.
                    _ => {
                        let own = sending.waiting.iter().any(|payload| !payload.is_carried);
                        if let Some(tally) = self.tally.as_ref().filter(|_| !own) {
                            tally.safe(&sending.name, OutputKind::Delivers, batch.samples_until);
                        }
                    }
                }
            }
        }
        self.has_flushed |= batch.last;
    }
}
