//! The simple way: a line is parsed, its context looked up by its parts, its values added.

use weir_context::{ContextId, LimitReason, Lookup, RawMatch};
use weir_protocol::{ErrorClass, Kind, Message, Metric, SampleList, Values, parse_line, unknown_sections};

use super::{BadInput, Ingest, Received};
use crate::counts::IngestCounter;
use crate::counts::{SampleDrop, SlowLine};

/// A line, as the simple way has read it.
enum SimpleLine {
    /// A metric, and the way to its context.
    Metric(RawMatch),
    /// No alias can lead to what it is.
    Other(SlowLine),
    /// It waits for its origin, and is counted when it proceeds.
    Waits,
}

impl Ingest {
    /// The simple way for one line. Returns the way to its context, where that may be remembered. `reason`: why it takes this way, unless that
    /// turns out on the way.
    pub(super) fn line(
        &mut self,
        packet: &Received<'_>,
        (line, terminated): (&[u8], bool),
        reason: impl FnOnce() -> SlowLine,
    ) -> Option<RawMatch> {
        let (reason, raw_match) = match self.simple_line(packet, line, terminated) {
            SimpleLine::Metric(raw_match) if raw_match.is_new() => (SlowLine::NewContext, Some(raw_match)),
            SimpleLine::Metric(raw_match) if raw_match.is_known() => (reason(), Some(raw_match)),
            SimpleLine::Metric(_) => (SlowLine::Limit, None),
            SimpleLine::Other(reason) => (reason, None),
            SimpleLine::Waits => return None,
        };
        self.counts[packet.listener].lines_slow[reason] += 1;
        raw_match
    }

    #[inline(never)]
    fn simple_line(&mut self, packet: &Received<'_>, line: &[u8], terminated: bool) -> SimpleLine {
        let options = self.settings.listeners[packet.listener].parse;
        self.counts[packet.listener][IngestCounter::Messages] += 1;
        if !terminated && packet.truncated {
            self.counts[packet.listener][IngestCounter::RejectedTruncated] += 1;
            self.keep_example(packet.listener, "truncated", line);
            return SimpleLine::Other(SlowLine::Rejected);
        }
        let parsed = if !terminated && options.eol_required {
            Err(ErrorClass::Unterminated)
        } else {
            parse_line(line, &options)
        };
        if self.gate.may_wait
            && let Ok(message) = &parsed
            && self.gate.waits_for_tags(
                &mut self.contexts,
                packet,
                (line, message),
                self.sender,
                self.aggregator.now(),
            )
        {
            // It is counted when it proceeds.
            self.counts[packet.listener][IngestCounter::Messages] -= 1;
            return SimpleLine::Waits;
        }
        match parsed {
            Ok(Message::Metric(metric)) => {
                if unknown_sections(line).next().is_some() {
                    self.counts[packet.listener][IngestCounter::UnknownSections] += 1;
                }
                return self.metric(&metric, packet);
            }
            Ok(Message::Event(event)) => self.event(&event, packet.listener),
            Ok(Message::Check(check)) => self.check(&check, packet.listener),
            Err(class) => {
                if self.settings.listeners[packet.listener].sample_lists
                    && let Some(list) = SampleList::of(line)
                {
                    self.sample_list(packet, list);
                    return SimpleLine::Other(SlowLine::SampleList);
                }
                self.counts[packet.listener].rejected[class] += 1;
                self.keep_example(packet.listener, class.as_str(), line);
                return SimpleLine::Other(SlowLine::Rejected);
            }
        }
        SimpleLine::Other(SlowLine::NoMetric)
    }

    /// Each sample of a list is a message.
    #[cold]
    fn sample_list(&mut self, packet: &Received<'_>, list: SampleList<'_>) {
        self.counts[packet.listener][IngestCounter::Messages] -= 1;
        for line in list.lines() {
            self.simple_line(packet, &line, true);
        }
    }

    #[cold]
    pub(super) fn keep_example(&mut self, listener: usize, class: &'static str, line: &[u8]) {
        if !std::mem::take(&mut self.examples.wanted) {
            return;
        }
        let shown = &line[..line.len().min(120)];
        let mut example = shown.escape_ascii().to_string();
        if shown.len() < line.len() {
            example.push_str("...");
        }
        self.examples.kept = Some(BadInput {
            listener,
            class,
            example,
        });
    }

    fn metric(&mut self, metric: &Metric<'_>, packet: &Received<'_>) -> SimpleLine {
        let counts = &mut self.counts[packet.listener];
        counts[IngestCounter::Metrics] += 1;
        counts[IngestCounter::RateErrors] += u64::from(metric.rate_error.is_some());
        if let Values::Numbers(numbers) = metric.values {
            let non_finite = u64::from(numbers.non_finite);
            counts[IngestCounter::Samples] += non_finite;
            counts.samples_dropped[SampleDrop::NonFinite] += non_finite;
        }
        if metric.timestamp.is_some() {
            self.timestamped(metric, packet.listener);
            return SimpleLine::Other(SlowLine::Timestamp);
        }
        self.contexts.set_state_bytes(self.aggregator.expected_bytes());
        match self.contexts.resolve(metric, self.sender, self.aggregator.now()) {
            Lookup::Context(id, raw_match) => {
                let samples = self.aggregate(metric, id, packet);
                self.counts[packet.listener][IngestCounter::Samples] += samples;
                self.counts[packet.listener][IngestCounter::SamplesAggregated] += samples;
                return SimpleLine::Metric(raw_match);
            }
            Lookup::Unremembered(id) => {
                let samples = self.aggregate(metric, id, packet);
                self.counts[packet.listener][IngestCounter::Samples] += samples;
                self.counts[packet.listener][IngestCounter::SamplesAggregated] += samples;
            }
            Lookup::Overflow(id) => {
                let samples = self.aggregate(metric, id, packet);
                self.counts[packet.listener][IngestCounter::Samples] += samples;
                self.counts[packet.listener][IngestCounter::SamplesOverflowed] += samples;
            }
            Lookup::DryRun(id, raw_match) => {
                let samples = self.aggregate(metric, id, packet);
                self.counts[packet.listener][IngestCounter::Samples] += samples;
                self.counts[packet.listener][IngestCounter::SamplesAggregated] += samples;
                self.contexts.count_trial(raw_match, samples);
                return SimpleLine::Metric(raw_match);
            }
            Lookup::Filtered(raw_match, rule) => {
                let samples = self.drop_samples(metric, packet.listener, SampleDrop::Filtered);
                self.contexts.count_dropped(rule, samples);
                return SimpleLine::Metric(raw_match);
            }
            Lookup::Refused(reason) => {
                let reason = match reason {
                    LimitReason::Memory => SampleDrop::NoMemory,
                    _ => SampleDrop::ContextLimit,
                };
                self.drop_samples(metric, packet.listener, reason);
            }
        }
        SimpleLine::Other(SlowLine::Limit)
    }

    pub(super) fn drop_samples(&mut self, metric: &Metric<'_>, listener: usize, reason: SampleDrop) -> u64 {
        let samples = match metric.values {
            Values::Numbers(numbers) => numbers.iter().count() as u64,
            Values::Member(_) => 1,
        };
        self.counts[listener][IngestCounter::Samples] += samples;
        self.counts[listener].samples_dropped[reason] += samples;
        samples
    }

    /// Adds the values of one metric to the state of its context. Returns how many there were.
    fn aggregate(&mut self, metric: &Metric<'_>, id: ContextId, packet: &Received<'_>) -> u64 {
        let numbers = match metric.values {
            Values::Member(member) => {
                self.aggregator.set(id, member.as_bytes());
                return 1;
            }
            Values::Numbers(numbers) => numbers,
        };
        let weight = 1.0 / metric.rate;
        let mut samples = 0;
        match metric.kind {
            Kind::Counter => {
                for value in numbers.iter() {
                    self.aggregator.counter(id, value * weight);
                    samples += 1;
                }
            }
            Kind::Gauge if self.scratch.gauge_deltas => {
                for (value, signed) in numbers.iter_signed() {
                    let base = match signed {
                        true => self.delta_base(id, packet.listener),
                        false => 0.0,
                    };
                    self.aggregator.gauge(id, base + value, packet.received);
                    samples += 1;
                }
            }
            Kind::Gauge => {
                for value in numbers.iter() {
                    self.aggregator.gauge(id, value, packet.received);
                    samples += 1;
                }
            }
            Kind::Histogram | Kind::Timing => {
                let copy_to = self.contexts.get(metric.kind, id).copy_to();
                for value in numbers.iter() {
                    self.aggregator.histogram(metric.kind, id, value, weight);
                    if let Some(copy) = copy_to {
                        self.aggregator.copied_distribution(copy, value, weight);
                    }
                    samples += 1;
                }
            }
            Kind::Distribution => {
                for value in numbers.iter() {
                    self.aggregator.distribution(id, value, weight);
                    samples += 1;
                }
            }
            Kind::Set => unreachable!("a set has a member, not numbers"),
        }
        samples
    }

    /// The value that a change to a gauge is added to. Where none is known, or it is too old, it is zero, and counted.
    fn delta_base(&mut self, id: ContextId, listener: usize) -> f64 {
        let expiry = self.contexts.get(Kind::Gauge, id).delta_expiry();
        self.aggregator.last_gauge(id, expiry).unwrap_or_else(|| {
            self.counts[listener][IngestCounter::GaugeDeltasWithoutBase] += 1;
            0.0
        })
    }
}
