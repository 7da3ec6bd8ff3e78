//! Packets, bytes, messages and samples per second, for the status: differences between two reports of a worker over the time between them.
//! Workers report about once a second, so between two flushes there may be one report more or less than seconds.

use weir_ingest::{IngestCounter, WorkerSnapshot};
use weir_listener::ListenerCounter;

use crate::pipeline::PipelineState;
use weir_status::status::Rates;

/// The rates of all workers.
pub struct Speed {
    /// When counting began, on the monotonic clock.
    begun_ns: u64,
    workers: Vec<OfWorker>,
}

/// The numbers of a worker at a report.
#[derive(Clone, Copy, Default)]
struct Received {
    at_ns: u64,
    packets: u64,
    bytes: u64,
    messages: u64,
    samples: u64,
}

#[derive(Clone)]
struct OfWorker {
    last: Received,
    rates: Rates,
}

impl Speed {
    pub fn new(begun_ns: u64) -> Speed {
        Speed {
            begun_ns,
            workers: Vec::new(),
        }
    }

    /// The rates up to the workers' last reports. A worker that has not reported keeps its rates.
    pub fn at(&mut self, state: &PipelineState) -> Rates {
        let first = OfWorker {
            last: Received {
                at_ns: self.begun_ns,
                ..Received::default()
            },
            rates: Rates::default(),
        };
        self.workers
            .resize(state.workers.len().max(self.workers.len()), first);
        for (of, snapshot) in self.workers.iter_mut().zip(&state.workers) {
            if let Some(snapshot) = snapshot {
                of.update(Received::of(snapshot));
            }
        }
        let mut sum = Rates::default();
        for OfWorker { rates, .. } in &self.workers {
            sum.packets += rates.packets;
            sum.bytes += rates.bytes;
            sum.messages += rates.messages;
            sum.samples += rates.samples;
        }
        sum
    }
}

impl OfWorker {
    fn update(&mut self, now: Received) {
        let last = self.last;
        if now.at_ns <= last.at_ns {
            return;
        }
        let seconds = (now.at_ns - last.at_ns) as f64 / 1e9;
        let rate = |now: u64, last: u64| now.saturating_sub(last) as f64 / seconds;
        self.rates = Rates {
            packets: rate(now.packets, last.packets),
            bytes: rate(now.bytes, last.bytes),
            messages: rate(now.messages, last.messages),
            samples: rate(now.samples, last.samples),
        };
        self.last = now;
    }
}

impl Received {
    fn of(worker: &WorkerSnapshot) -> Received {
        let mut all = Received {
            at_ns: worker.at_ns,
            ..Received::default()
        };
        for listener in &worker.listeners {
            all.packets +=
                listener.socket[ListenerCounter::Packets] + listener.socket[ListenerCounter::KernelDropped];
            all.bytes += listener.socket[ListenerCounter::Bytes];
            all.messages += listener.ingest[IngestCounter::Messages];
            all.samples += listener.ingest[IngestCounter::Samples];
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Reports that drift through the second, and flushes with none or two of them in between.
    #[test]
    fn a_flat_load_has_flat_rates_whatever_the_width_of_buckets() {
        for width in [1, 2, 10] {
            let begun = 77 * SECOND;
            let mut of = OfWorker {
                last: Received {
                    at_ns: begun,
                    ..Received::default()
                },
                rates: Rates::default(),
            };
            let reported =
                |number: u64| begun + number * (SECOND + 3_000_000) + number * 7919 % 900 * 1_000_000;
            let mut without = 0;
            for flush in 1..400 / width {
                let now = begun + flush * width * SECOND + flush * 104_729 % 900 * 1_000_000;
                let Some(at_ns) = (1..500).map(reported).take_while(|at| *at <= now).last() else {
                    continue;
                };
                without += u64::from(at_ns == of.last.at_ns);
                of.update(Received {
                    at_ns,
                    messages: (at_ns - begun) / 1000 * 3391 / 1_000_000,
                    ..Received::default()
                });
                let of_rate = of.rates.messages / 3391.0;
                assert!(
                    (of_rate - 1.0).abs() <= 0.02,
                    "{width} s, flush {flush}: {:?}",
                    of.rates
                );
            }
            assert!(width > 1 || without > 0, "each flush had its report");
        }
    }
}
