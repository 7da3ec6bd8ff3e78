//! Finds the highest rate that a target accepts without loss: a ramp, a bisection, and a long confirmation.

use crate::profile::Throttle;
use crate::run::{self, LoadVerdict, Options, Report, RunError};
use crate::source::Load;
use crate::units::Rate;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Settings of a search.
#[derive(Clone, Debug)]
pub struct Plan {
    /// First rate; also defines the unit.
    pub from: Rate,
    /// Maximum rate.
    pub to: f64,
    pub settle: Duration,
    pub probe: Duration,
    pub confirm: Duration,
    /// Maximum share of packets lost or refused.
    pub loss: f64,
    /// Maximum 99th percentile of lateness.
    pub lateness: Duration,
    /// Relative precision of the bisection.
    pub precision: f64,
    /// No probe begins that would end later.
    pub time: Duration,
}

impl Plan {
    /// Whether a probe of this length, and then the confirmation if `confirms`, ends in time.
    fn has_time(&self, elapsed: Duration, probe: Duration, confirms: bool) -> bool {
        let confirmation = if confirms {
            self.settle + self.confirm
        } else {
            Duration::ZERO
        };
        elapsed + self.settle + probe + confirmation <= self.time
    }
}

/// One tested rate.
#[derive(Clone, Debug, Serialize)]
pub struct Probe {
    pub rate: f64,
    pub good: bool,
    pub loss: f64,
    pub lateness_p99_s: f64,
    pub achieved_share: f64,
    pub verdict: String,
    pub confirming: bool,
}

/// The result and the tested rates.
#[derive(Clone, Debug, Serialize)]
pub struct SearchResult {
    pub unit: String,
    /// The highest confirmed rate. `None` if even the first rate failed.
    pub rate: Option<f64>,
    /// The highest rate that held for a probe but was not confirmed, because the time was over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconfirmed: Option<f64>,
    /// Why the next higher rate failed: the verdict of a run, or `late` if everything was sent but not in time. A limit of the generator
    /// says nothing about the target.
    pub limited_by: String,
    pub probes: Vec<Probe>,
}

/// Searches. Calls `observe` with every probe.
pub fn search(
    load: &Load,
    options: &Options,
    plan: &Plan,
    mut observe: impl FnMut(&Probe),
) -> Result<SearchResult, RunError> {
    if load.is_columns() {
        return Err(RunError::Usage(
            "columns: nothing is lost in requests that are repeated; search with another transport".into(),
        ));
    }
    let began = Instant::now();
    search_by(
        plan,
        || began.elapsed(),
        |rate, time, confirming| {
            let mut load = load.clone();
            load.profile.throttle = Throttle::Smooth;
            load.profile.rate = Some(Rate {
                per_second: rate,
                unit: plan.from.unit,
            });
            let mut options = options.clone();
            options.count = None;
            if !plan.settle.is_zero() {
                options.duration = Some(plan.settle);
                fail(run::run(&load, &options)?)?;
            }
            options.duration = Some(time);
            let report = fail(run::run(&load, &options)?)?;
            let attempted = report.packets + report.refused_packets;
            let lost = report.refused_packets + report.kernel_drops.unwrap_or(0);
            let loss = lost as f64 / attempted.max(1) as f64;
            let achieved = report.achieved / report.scheduled.max(1e-9);
            let late = report.lateness_p99_s > plan.lateness.as_secs_f64();
            let probe = Probe {
                rate,
                good: loss <= plan.loss && !late && achieved >= 0.99,
                loss,
                lateness_p99_s: report.lateness_p99_s,
                achieved_share: achieved,
                verdict: match report.verdict() {
                    _ if lost > 0 => LoadVerdict::TargetLimited.name().into(),
                    LoadVerdict::OnSchedule if late => "late".into(),
                    verdict => verdict.name().into(),
                },
                confirming,
            };
            observe(&probe);
            Ok(probe)
        },
    )
}

/// The limit in the result of a search that was ended by its time.
const TIME: &str = "time";

/// The search itself; `elapsed` is the time since its start, `probe` tries a rate for a time, at the end to confirm it.
fn search_by(
    plan: &Plan,
    elapsed: impl Fn() -> Duration,
    mut probe: impl FnMut(f64, Duration, bool) -> Result<Probe, RunError>,
) -> Result<SearchResult, RunError> {
    let mut probes: Vec<Probe> = Vec::new();
    let mut try_rate = |rate: f64, time: Duration, confirming: bool| -> Result<Probe, RunError> {
        let probe = probe(rate, time, confirming)?;
        probes.push(probe.clone());
        Ok(probe)
    };
    let mut low = None;
    let mut high = None;
    let mut limited_by = "nothing: the highest rate allowed was reached".to_string();
    let mut rate = plan.from.per_second.min(plan.to);
    loop {
        // The first probe is always made: a result without any says nothing.
        if low.is_some() && !plan.has_time(elapsed(), plan.probe, true) {
            limited_by = TIME.into();
            break;
        }
        let probe = try_rate(rate, plan.probe, false)?;
        if !probe.good {
            limited_by = probe.verdict;
            high = Some(rate);
            break;
        }
        low = Some(rate);
        if rate >= plan.to {
            break;
        }
        rate = (rate * 1.5).min(plan.to);
    }
    if let (Some(mut good), Some(mut bad)) = (low, high) {
        while bad / good - 1.0 > plan.precision && plan.has_time(elapsed(), plan.probe, true) {
            let middle = (good + bad) / 2.0;
            let probe = try_rate(middle, plan.probe, false)?;
            if probe.good {
                good = middle;
            } else {
                limited_by = probe.verdict;
                bad = middle;
            }
        }
        low = Some(good);
    }
    let mut confirmed = None;
    let mut unconfirmed = None;
    let mut candidate = low;
    while let Some(rate) = candidate {
        if !plan.has_time(elapsed(), plan.confirm, false) {
            limited_by = TIME.into();
            unconfirmed = low;
            break;
        }
        let probe = try_rate(rate, plan.confirm, true)?;
        if probe.good {
            confirmed = Some(rate);
            break;
        }
        limited_by = probe.verdict;
        let lower = rate * 0.95;
        candidate = (lower >= plan.from.per_second * 0.5).then_some(lower);
    }
    Ok(SearchResult {
        unit: plan.from.unit.name().into(),
        rate: confirmed,
        unconfirmed,
        limited_by,
        probes,
    })
}

fn fail((report, error): (Report, Option<RunError>)) -> Result<Report, RunError> {
    match error {
        Some(error) => Err(error),
        None => Ok(report),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::RateUnit;

    const SETTLED: Duration = Duration::ZERO;

    fn plan() -> Plan {
        let rate = |per_second| Rate {
            per_second,
            unit: RateUnit::Messages,
        };
        Plan {
            from: rate(1000.0),
            to: 100_000.0,
            settle: SETTLED,
            probe: SETTLED,
            confirm: SETTLED,
            loss: 0.0,
            lateness: SETTLED,
            precision: 0.02,
            time: Duration::MAX,
        }
    }

    /// A receiver that takes this rate, and less while a rate is confirmed.
    fn found(most: f64, confirmed: f64) -> SearchResult {
        let found = search_by(
            &plan(),
            || SETTLED,
            |rate, _, confirming| {
                Ok(Probe {
                    rate,
                    good: rate <= if confirming { confirmed } else { most },
                    loss: 0.0,
                    lateness_p99_s: 0.0,
                    achieved_share: 1.0,
                    verdict: "target-limited".into(),
                    confirming,
                })
            },
        );
        found.unwrap()
    }

    #[test]
    fn a_search_ends_within_its_precision_of_the_highest_rate() {
        let result = found(17_300.0, 17_300.0);
        let rate = result.rate.unwrap();
        assert!((17_300.0 / 1.02..=17_300.0).contains(&rate), "{rate}");
        assert_eq!(result.limited_by, "target-limited");
        assert!(result.probes.len() < 20, "{:?}", result.probes);
    }

    #[test]
    fn a_rate_that_does_not_hold_for_long_is_lowered_until_one_does() {
        let rate = found(17_300.0, 12_000.0).rate.unwrap();
        assert!((12_000.0 * 0.95..=12_000.0).contains(&rate), "{rate}");
    }

    /// A receiver that takes 17,300 messages per second for a moment, and never for as long as a confirmation lasts.
    fn found_in(seconds: u64) -> (SearchResult, u64) {
        let passed = std::cell::Cell::new(0);
        let plan = Plan {
            settle: Duration::from_secs(2),
            probe: Duration::from_secs(5),
            confirm: Duration::from_secs(20),
            time: Duration::from_secs(seconds),
            ..plan()
        };
        let now = || Duration::from_secs(passed.get());
        let found = search_by(&plan, now, |rate, time, confirming| {
            passed.set(passed.get() + 2 + time.as_secs());
            Ok(Probe {
                rate,
                good: !confirming && rate <= 17_300.0,
                loss: 0.0,
                lateness_p99_s: 0.0,
                achieved_share: 1.0,
                verdict: "target-limited".into(),
                confirming,
            })
        });
        (found.unwrap(), passed.get())
    }

    #[test]
    fn a_search_ends_in_its_time_with_the_best_that_it_knows() {
        for seconds in [60, 120, 150, 300] {
            let (result, took) = found_in(seconds);
            assert!(took <= seconds, "{took} s of {seconds}");
            assert_eq!((result.rate, result.limited_by.as_str()), (None, "time"));
            let held = result.unconfirmed.unwrap();
            assert!((1000.0..=17_300.0).contains(&held), "{held}");
            assert!(
                result.probes.iter().any(|p| p.confirming),
                "{seconds} s: {:?}",
                result.probes
            );
        }
        // Less than one probe: it is made, and that is all.
        let (result, _) = found_in(1);
        assert_eq!((result.probes.len(), result.unconfirmed), (1, Some(1000.0)));
    }

    #[test]
    fn the_ends_of_the_range_are_found() {
        assert_eq!(found(1e9, 1e9).rate, Some(100_000.0));
        assert_eq!(found(10.0, 10.0).rate, None);
    }
}
