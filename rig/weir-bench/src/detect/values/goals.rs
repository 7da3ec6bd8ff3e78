//! One number per goal.

use super::Span;
use super::{Measured, Run, VALGRIND_INSTRUCTIONS};
use crate::detect::capture::{Phase, Point};
use crate::detect::goal::Goal;
use weir_regress::describe;

pub fn add(out: &mut Measured, run: &Run) {
    let share = run.delivered_share(out).map(|share| share.min(1.0));
    let mut goals = run.traffic(share);
    goals.extend(run.cost(share, out.books.delivered));
    goals.extend(run.memory());
    goals.push((Goal::ContextsPerSecond, run.contexts_per_second()));
    let latencies = &run.received.latencies;
    let p99 = (latencies.len() >= 2).then(|| describe::quantile(latencies, 0.99));
    goals.push((Goal::LatencyP99, p99));
    let measured = goals.into_iter().filter_map(|(goal, v)| Some((goal, v?)));
    out.values = measured.filter(|(_, v)| v.is_finite()).collect();
    let shares = run.cpu_shares();
    out.cpu_cv_within = describe::variation(&shares).map(|v| v.cv);
    out.cpu_lag1 = (shares.len() >= 3).then(|| describe::lag1(&shares));
}

type Goals = Vec<(Goal, Option<f64>)>;

impl Run<'_> {
    /// Readings of the generator over the window; without readings, its average.
    fn sent_rate(&self, series: &str, total: f64) -> Option<f64> {
        self.capture
            .rate("generator", series)
            .or_else(|| self.average(total))
    }

    fn average(&self, total: f64) -> Option<f64> {
        (self.sent.elapsed > 0.0).then(|| total / self.sent.elapsed)
    }

    fn messages_per_second(&self) -> Option<f64> {
        self.sent_rate("sent_messages", self.sent.messages)
    }

    /// The same over the time between the target's own readings. Where a host holds a target up, the rates of two intervals that
    /// overlap by three quarters differ by percents; CPU time and messages must be of one interval.
    fn messages_per_second_of_target(&self) -> Option<f64> {
        let (first, last) = self.capture.ends("target", "cpu_ns")?;
        let sent = |t| match self.capture.at("generator", "sent_messages", t) {
            // Its last read happens after everything was sent.
            None => Some(self.sent.messages).filter(|_| self.is_sent_by(t)),
            sent => sent,
        };
        let sent = sent(last.t)? - sent(first.t)?;
        Some(sent / (last.seconds() - first.seconds()))
    }

    fn is_sent_by(&self, t: u64) -> bool {
        let last = self.capture.series("generator", "sent_messages").last();
        last.is_some_and(|p| p.t < t && p.v == self.sent.messages)
    }

    fn traffic(&self, share: Option<f64>) -> Goals {
        let mut goals = Goals::new();
        if !self.rules.idle {
            // Only on a transport that pushes back does a completed write prove acceptance.
            let taken = if self.rules.udp { share } else { Some(1.0) };
            let bytes = self.sent_rate("sent_bytes", self.sent.bytes).zip(taken);
            let messages = self.messages_per_second().zip(share.or(taken));
            goals.push((Goal::IngressThroughput, bytes.map(|(b, s)| b * s)));
            goals.push((Goal::IngressMessages, messages.map(|(m, s)| m * s)));
            goals.push((Goal::Loss, share.map(|s| 1.0 - s)));
        }
        let received = self.received.bytes;
        if received > 0.0 {
            let life = || {
                self.capture
                    .series("target", "cpu_ns")
                    .last()
                    .map(|p| p.seconds())
            };
            let rate = self.average(received).or_else(|| Some(received / life()?));
            goals.push((Goal::EgressThroughput, rate));
        }
        goals
    }

    fn cost(&self, share: Option<f64>, delivered: Option<f64>) -> Goals {
        // The work for the load took longer than the load, so it counts per second of the load.
        let seconds = |first: &Point, last: &Point| match self.span {
            Span::Window => last.seconds() - first.seconds(),
            Span::Load => self.sent.elapsed,
        };
        let rate = |name: &str| {
            let (first, last) = self.span_ends(name)?;
            Some((last.v - first.v) / seconds(&first, &last)).filter(|rate| rate.is_finite())
        };
        let messages = match self.span {
            Span::Window => self.messages_per_second_of_target(),
            Span::Load => self.average(self.sent.messages),
        };
        let messages = messages.or_else(|| self.messages_per_second());
        let rate_delivered = messages.map(|m| m * share.unwrap_or(1.0));
        let rate_delivered = rate_delivered.filter(|m| *m > 0.0 && !self.rules.idle);
        let switches = ["ctx_voluntary", "ctx_involuntary"].into_iter().filter_map(rate);
        let switches: f64 = switches.sum();
        let cpu = rate("cpu_ns");
        vec![
            (Goal::Cpu, cpu.map(|c| c / 1e6)),
            (Goal::CpuPerMessage, cpu.zip(rate_delivered).map(|(c, m)| c / m)),
            (
                Goal::InstructionsPerMessage,
                match self.counted_by_valgrind() {
                    Some(counted) => Some(counted / (self.sent.messages * share.unwrap_or(1.0))),
                    None => rate("instructions").zip(rate_delivered).map(|(i, m)| i / m),
                },
            ),
            (Goal::LifeCpuPerMessage, self.life_cpu_per_message(delivered)),
            (
                Goal::ContextSwitches,
                rate_delivered.map(|m| 1000.0 * switches / m),
            ),
        ]
    }

    /// Instructions from before the load until the target was idle after it, if valgrind counted them.
    pub fn counted_by_valgrind(&self) -> Option<f64> {
        match self.capture.series("target", VALGRIND_INSTRUCTIONS) {
            [before, after] => Some(after.v - before.v),
            _ => None,
        }
    }

    /// By the target's own counter, which is read before and after the load.
    fn contexts_per_second(&self) -> Option<f64> {
        let created = self.capture.series("telemetry", "created_contexts");
        self.average(created.last()?.v - created.first()?.v)
    }

    /// From the target's readiness to its end, including the last flush.
    fn life_cpu_per_message(&self, delivered: Option<f64>) -> Option<f64> {
        let life = self.capture.series("target", "life_cpu_ns");
        let used = life.last()?.v - life.first()?.v;
        let messages = delivered.filter(|m| *m > 0.0)?;
        (life.len() == 2).then_some(used / messages)
    }

    fn memory(&self) -> Goals {
        let values = |name: &str, phases: &[Phase]| self.capture.values("target", name, phases);
        let average = |name: &str| {
            let values = values(name, &[Phase::Measure]);
            (!values.is_empty()).then(|| describe::mean(&values))
        };
        let most = |name: &str| values(name, &Phase::ALL).into_iter().reduce(f64::max);
        vec![
            (
                Goal::Memory,
                average("pss_bytes").or_else(|| average("rss_bytes")),
            ),
            (Goal::Rss, average("rss_bytes")),
            (Goal::PageFaults, self.capture.rate("target", "minflt")),
            (Goal::MemoryPeak, most("hwm_bytes").or_else(|| most("rss_bytes"))),
        ]
    }
}
