//! Checks that the numbers of a run are valid: the load went through the target, the generator could have sent more, the sink kept up, and
//! the received data matches the sent data.

use super::{Measured, Run};
use crate::detect::capture::Phase;
use crate::detect::goal::Goal;

/// Maximum age of the target's own counters, in nanoseconds: a publication every second, and some delay.
const TELEMETRY_AGE: u64 = 1_200_000_000;

/// Maximum share of its core that a sink may use.
const SINK_MAX: f64 = 0.7;

/// From this delivered share on, a run without `valid.min_target_share` has shown that the target accepts the load. Cases of programs that
/// round or sample ask for as much.
const PROVEN: f64 = 0.97;

pub fn check(out: &mut Measured, run: &Run) {
    // The observer was not given a core in time, which is not the target's fault.
    if run.capture.window("target", "cpu_ns").len() < 2 {
        let what = "fewer than two observations in the window: this program was held up, or measure.sample_period is too long";
        out.disturbed.push(what.to_owned());
        return;
    }
    let nothing = if run.rules.idle {
        return;
    } else if run.sent.messages == 0.0 {
        "the generator sent nothing"
    } else {
        out.blocked_share = run.blocked_share();
        out.invalid.extend(run.delivery(out));
        out.unproven = run.unproven(out);
        out.invalid.extend(run.own_counters());
        // A target that used no CPU never received the load, even if data arrived at the sink.
        if cpu(out) <= 0.0 {
            let what = "the target used no CPU while the load was sent";
            out.invalid.push(what.to_owned());
        }
        run.generator(out);
        out.invalid.extend(run.sink());
        return;
    };
    out.invalid.push(nothing.to_owned());
}

fn cpu(out: &Measured) -> f64 {
    out.values.get(&Goal::Cpu).copied().unwrap_or(0.0)
}

impl Run<'_> {
    /// Errors of the delivered amount.
    fn delivery(&self, out: &Measured) -> Vec<String> {
        let rules = self.rules;
        let share = self.delivered_share(out);
        let mut wrong = Vec::new();
        match (rules.overload, rules.min_target_share, share) {
            (true, _, share) if cpu(out) <= 0.0 || share.is_some_and(|s| s <= 0.0) => {
                let what = "overload, but the target did no work: it used no CPU or delivered nothing";
                wrong.push(what.to_owned());
            }
            (false, Some(least), Some(share)) if share < least => {
                let company = match rules.together {
                    true => {
                        " (with the other arm on the same core; measure.together: false gives each the core for itself)"
                    }
                    false => "",
                };
                wrong.push(format!(
                    "only {:.2} % of what was sent was delivered, {:.2} % are required: the load does not cross the target, \
                     or the target loses it{company}",
                    100.0 * share,
                    100.0 * least
                ));
            }
            (false, Some(_), None) => {
                let what = "nothing counted what was delivered (a sink, or totals.acknowledged in the generator's manifest), so \
                    nothing shows that the load crosses the target";
                wrong.push(what.to_owned());
            }
            _ => {}
        }
        // The tolerated deficit is also the tolerated surplus: agents round sampled counts differently.
        let most = 1.0 + (1.0 - rules.min_target_share.unwrap_or(1.0)).max(0.001);
        if let Some(share) = share.filter(|s| *s > most) {
            let percent = 100.0 * share;
            let what =
                format!("{percent:.2} % of what was sent was delivered: something else writes to the sink");
            wrong.push(what);
        }
        wrong
    }

    /// A program that refuses or loses the load costs next to nothing, which is no improvement.
    fn unproven(&self, out: &Measured) -> Option<String> {
        let rules = self.rules;
        // An overload is meant to lose; what arrived was accepted.
        let least = if rules.overload {
            0.0
        } else {
            rules.min_target_share.unwrap_or(PROVEN)
        };
        match self.delivered_share(out) {
            None => Some(
                "no sink, no counter of the target and no acknowledgement shows that the load was accepted"
                    .to_owned(),
            ),
            Some(share) if share < least => Some(format!(
                "{:.1} % of what was sent was delivered; valid.min_target_share says how much must be",
                100.0 * share
            )),
            Some(_) => None,
        }
    }

    /// The target's own counters never prove that all is well, but they can show that nothing arrived.
    fn own_counters(&self) -> Option<String> {
        let counters = [
            ("parsed_messages", self.sent.messages),
            ("received_packets", self.sent.packets),
        ];
        counters.into_iter().filter(|_| !self.rules.overload).find_map(|(name, expected)| {
            let series = self.capture.series("telemetry", name);
            let (first, last) = (series.first()?, series.last().filter(|_| series.len() > 1)?);
            let risen = last.v - first.v;
            let too_little = risen < 0.5 * expected * self.known_share(first.t, last.t);
            too_little.then(|| {
                format!(
                    "the target's own {name} rose by {risen:.0} while {expected:.0} were sent: the load does not cross the \
                     target"
                )
            })
        })
    }

    /// The share of the sending time that lies between two readings of the target's counters. Only messages of that time are expected: the
    /// first reading may come late, after the target is ready, and the last one may be a second old when the target is stopped.
    fn known_share(&self, first: u64, last: u64) -> f64 {
        let readings = self.capture.series("target", "cpu_ns").iter();
        let mut sending = readings.filter(|p| matches!(p.phase, Phase::Warmup | Phase::Measure));
        let Some(begin) = sending.next().map(|p| p.t) else {
            return 0.0;
        };
        let end = sending.next_back().map_or(begin, |p| p.t);
        let to = last.saturating_sub(TELEMETRY_AGE).clamp(begin, end);
        let known = to.saturating_sub(first.clamp(begin, end));
        known as f64 / (end - begin).max(1) as f64
    }

    fn blocked_share(&self) -> Option<f64> {
        let blocked = self.sent.blocked.filter(|_| self.sent.elapsed > 0.0);
        blocked.map(|b| b / self.sent.elapsed)
    }

    /// Decides whether the target or the generator limited the rate.
    fn generator(&self, out: &mut Measured) {
        let sent = &self.sent;
        if self.rules.generator_headroom == 0.0 {
            return;
        }
        match sent.verdict.as_str() {
            "generator-limited" => {
                let what = "generator-limited: the generator and not the target set the rate";
                out.invalid.push(what.to_owned());
            }
            "host-limited" => {
                let what = "host-limited: the generator was not given its core";
                out.disturbed.push(what.to_owned());
            }
            verdict => {
                let short = !self.rules.all_out && sent.achieved < 0.99 * sent.scheduled;
                let pushed_back = verdict == "target-limited" || out.blocked_share.is_some_and(|b| b > 0.01);
                if short && !pushed_back {
                    let percent = 100.0 * sent.achieved / sent.scheduled;
                    out.invalid.push(format!(
                        "the generator achieved {percent:.1} % of its schedule although nothing pushed back"
                    ));
                }
            }
        }
    }

    fn sink(&self) -> Vec<String> {
        let received = &self.received;
        let mut wrong = Vec::new();
        if received.server_errors > 0.0 {
            let errors = received.server_errors;
            wrong.push(format!("the sink answered {errors} requests with an error"));
        }
        if received.busy {
            wrong.push("the sink's accept queue was full".to_owned());
        }
        let used = self.capture.rate("sink", "cpu_ns").map(|c| c / 1e9);
        if let Some(used) = used.filter(|used| *used > SINK_MAX) {
            let (used, allowed) = (100.0 * used, 100.0 * SINK_MAX);
            wrong.push(format!(
                "the sink used {used:.0} % of its core, {allowed:.0} % are allowed"
            ));
        }
        let mismatches = received.mismatches.filter(|n| *n > 0.0 && !self.rules.overload);
        if let Some(n) = mismatches {
            wrong.push(format!(
                "{n} contexts or totals at the sink differ from what was sent"
            ));
        }
        wrong
    }
}
