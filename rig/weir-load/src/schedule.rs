//! The due time of each packet: fixed in advance. A late sender sends the due packets and records the delay; it never
//! moves the schedule.

use crate::profile::{Profile, ProfileError, Throttle};
use crate::rng::{Rng, ln};
use crate::units::{Rate, RateUnit};
use std::time::Duration;

/// The schedule of one sending thread.
#[derive(Clone, Debug)]
pub struct Schedule {
    shape: Shape,
    pub unit: RateUnit,
    /// Units of the whole load per unit of this thread.
    scale: f64,
    rng: Rng,
    poisson_s: f64,
}

#[derive(Clone, Debug)]
enum Shape {
    AllOut,
    Smooth(f64),
    Poisson(f64),
    /// First rate, change per second, until when, units until then, rate after.
    Linear {
        from: f64,
        slope: f64,
        over: f64,
        units: f64,
        to: f64,
    },
    /// Seconds and rate of each piece; `cycle` when the pieces start again.
    Pieces {
        pieces: Vec<(f64, f64)>,
        cycle: bool,
    },
    Burst {
        rate: f64,
        period: f64,
        duty: f64,
    },
}

impl Schedule {
    /// The schedule of a thread with `mine` of `all` connections.
    pub fn new(
        profile: &Profile,
        seed: u64,
        thread: u64,
        mine: u32,
        all: u32,
    ) -> Result<Schedule, ProfileError> {
        let needed = || {
            profile
                .rate
                .map(|r| r.per_second)
                .ok_or_else(|| ProfileError("rate: this throttle needs one; give --rate or --all-out".into()))
        };
        let shape = match &profile.throttle {
            Throttle::AllOut => Shape::AllOut,
            Throttle::Smooth => Shape::Smooth(needed()?),
            Throttle::Poisson => Shape::Poisson(needed()?),
            Throttle::LadingBurst => Shape::Burst {
                rate: needed()?,
                period: 1.0,
                duty: 0.0,
            },
            Throttle::Burst { period, duty } => Shape::Burst {
                rate: needed()?,
                period: period.0.as_secs_f64(),
                duty: *duty,
            },
            Throttle::Linear { from, to, over } => {
                let (from, to, over) = (from.per_second, to.per_second, over.0.as_secs_f64());
                Shape::Linear {
                    from,
                    slope: (to - from) / over,
                    over,
                    units: (from + to) / 2.0 * over,
                    to,
                }
            }
            Throttle::Step(steps) => Shape::Pieces {
                pieces: steps
                    .iter()
                    .map(|s| (s.hold.0.as_secs_f64(), s.rate.per_second))
                    .collect(),
                cycle: true,
            },
            Throttle::Trace(path) => {
                return Ok(Schedule {
                    scale: f64::from(all) / f64::from(mine),
                    rng: Rng::new(seed, "gaps", thread),
                    poisson_s: 0.0,
                    ..read_trace(path)?
                });
            }
        };
        Ok(Schedule {
            shape,
            unit: profile.rate_unit().unwrap_or(RateUnit::Messages),
            scale: f64::from(all) / f64::from(mine),
            rng: Rng::new(seed, "gaps", thread),
            poisson_s: 0.0,
        })
    }

    /// Everything is due at once. Returns the schedule as it was.
    pub fn replace_all_out(&mut self) -> Schedule {
        let all_out = Schedule {
            shape: Shape::AllOut,
            ..self.clone()
        };
        std::mem::replace(self, all_out)
    }

    pub fn is_all_out(&self) -> bool {
        matches!(self.shape, Shape::AllOut)
    }

    /// The due time of the next packet after `units`, from the start of the run. `Duration::MAX` if the schedule never reaches it. `packet`
    /// is the size of the previous packet, in units.
    pub fn due(&mut self, units: f64, packet: f64) -> Duration {
        let units = units * self.scale;
        let seconds = match &self.shape {
            Shape::AllOut => 0.0,
            Shape::Smooth(rate) => units / rate,
            Shape::Poisson(rate) => {
                let u = self.rng.unit();
                self.poisson_s += -ln(1.0 - u) * packet * self.scale / rate;
                self.poisson_s
            }
            Shape::Linear {
                from,
                slope,
                over,
                units: ramp,
                to,
            } => {
                if units >= *ramp {
                    over + (units - ramp) / to
                } else if *slope == 0.0 {
                    units / from
                } else {
                    // units = from t + slope t^2 / 2, solved without cancellation.
                    2.0 * units / (from + (from * from + 2.0 * slope * units).max(0.0).sqrt())
                }
            }
            Shape::Burst { rate, period, duty } => {
                let per_period = rate * period;
                let whole = (units / per_period).floor();
                let rest = units / per_period - whole;
                (whole + rest * duty) * period
            }
            Shape::Pieces { pieces, cycle } => pieces_time(pieces, *cycle, units),
        };
        if seconds.is_finite() && seconds < 1e9 {
            Duration::from_secs_f64(seconds)
        } else {
            Duration::MAX
        }
    }

    /// Units of this thread's schedule within a time.
    pub fn scheduled(&self, time: Duration) -> f64 {
        let t = time.as_secs_f64();
        let units = match &self.shape {
            Shape::AllOut => 0.0,
            Shape::Smooth(rate) | Shape::Poisson(rate) => rate * t,
            Shape::Linear {
                from,
                slope,
                over,
                units,
                to,
            } => {
                if t <= *over {
                    from * t + slope * t * t / 2.0
                } else {
                    units + (t - over) * to
                }
            }
            Shape::Burst { rate, period, duty } => {
                let whole = (t / period).floor();
                let into = t / period - whole;
                let done = if *duty > 0.0 { (into / duty).min(1.0) } else { 1.0 };
                (whole + done) * rate * period
            }
            Shape::Pieces { pieces, cycle } => {
                let length: f64 = pieces.iter().map(|p| p.0).sum();
                let per_cycle: f64 = pieces.iter().map(|p| p.0 * p.1).sum();
                let (mut units, mut left) = if *cycle {
                    let cycles = (t / length).floor();
                    (cycles * per_cycle, t - cycles * length)
                } else {
                    (0.0, t)
                };
                for (hold, rate) in pieces {
                    let part = left.min(*hold);
                    // The last part of a trace never ends; infinity times zero is not a number.
                    units += if *rate == 0.0 { 0.0 } else { part * rate };
                    left -= part;
                    if left <= 0.0 {
                        break;
                    }
                }
                units
            }
        };
        units / self.scale
    }
}

fn pieces_time(pieces: &[(f64, f64)], cycle: bool, units: f64) -> f64 {
    let mut time = 0.0;
    let mut left = units;
    if cycle {
        let length: f64 = pieces.iter().map(|p| p.0).sum();
        let per_cycle: f64 = pieces.iter().map(|p| p.0 * p.1).sum();
        let cycles = (units / per_cycle).floor();
        time = cycles * length;
        left = units - cycles * per_cycle;
    }
    for (hold, rate) in pieces {
        if *rate > 0.0 && left < hold * rate {
            return time + left / rate;
        }
        time += hold;
        left -= if *rate == 0.0 { 0.0 } else { hold * rate };
    }
    if cycle { time } else { f64::INFINITY }
}

fn read_trace(path: &str) -> Result<Schedule, ProfileError> {
    let bad = |text: String| ProfileError(format!("throttle.trace: {path}: {text}"));
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let mut points: Vec<(f64, Rate)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let at = |what: String| bad(format!("line {}: {what}", number + 1));
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (time, rate) = line
            .split_once(char::is_whitespace)
            .ok_or_else(|| at(format!("{line:?} is not `seconds rate`")))?;
        let time: f64 = time
            .parse()
            .map_err(|_| at(format!("{time:?} is not a number of seconds")))?;
        let rate: Rate = rate.trim().parse().map_err(|error| at(format!("{error}")))?;
        let first = points.first();
        if first.is_none() && time != 0.0 {
            return Err(at("the first line must be at 0 seconds".into()));
        }
        if points.last().is_some_and(|(before, _)| time <= *before) {
            return Err(at("times must rise".into()));
        }
        if first.is_some_and(|(_, first)| first.unit != rate.unit) {
            return Err(at("all rates need the same unit".into()));
        }
        points.push((time, rate));
    }
    let unit = points.first().ok_or_else(|| bad("is empty".into()))?.1.unit;
    let pieces = points
        .iter()
        .enumerate()
        .map(|(index, (time, rate))| {
            let end = points.get(index + 1).map_or(f64::INFINITY, |p| p.0);
            (end - time, rate.per_second)
        })
        .collect();
    Ok(Schedule {
        shape: Shape::Pieces { pieces, cycle: false },
        unit,
        scale: 1.0,
        rng: Rng::new(0, "", 0),
        poisson_s: 0.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(yaml: &str) -> Schedule {
        let profile = Profile::from_yaml(yaml).unwrap();
        Schedule::new(&profile, 1, 0, 1, 1).unwrap()
    }

    /// Due time and scheduled units are inverse, for every shape.
    #[test]
    fn due_and_scheduled_agree() {
        for yaml in [
            "rate: 1000 msg/s",
            "throttle: {linear: {from: 100 msg/s, to: 2000 msg/s, over: 10s}}",
            "throttle: {linear: {from: 2000 msg/s, to: 100 msg/s, over: 10s}}",
            "throttle: {step: [{rate: 10 msg/s, hold: 2s}, {rate: 1000 msg/s, hold: 500ms}]}",
            "{rate: 500 msg/s, throttle: {burst: {period: 2s, duty: 0.25}}}",
        ] {
            let mut schedule = schedule(yaml);
            for step in 0..2000 {
                let units = f64::from(step) * 7.3;
                let due = schedule.due(units, 1.0);
                let back = schedule.scheduled(due);
                assert!(
                    (back - units).abs() < 1e-3 * units.max(1.0),
                    "{yaml}: {units} at {due:?} is {back}"
                );
            }
        }
    }

    #[test]
    fn a_lading_burst_is_due_at_once() {
        let mut schedule = schedule("{rate: 100 msg/s, throttle: lading_burst}");
        assert_eq!(schedule.due(99.0, 1.0), Duration::ZERO);
        assert_eq!(schedule.due(100.0, 1.0), Duration::from_secs(1));
        assert_eq!(schedule.scheduled(Duration::from_millis(1)), 100.0);
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_spread_of_an_exponential() {
        let mut schedule = schedule("{rate: 1000 msg/s, throttle: poisson}");
        let mut before = 0.0;
        let mut gaps = Vec::new();
        for _ in 0..20_000 {
            let now = schedule.due(0.0, 1.0).as_secs_f64();
            gaps.push(now - before);
            before = now;
        }
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean - 1e-3).abs() < 3e-5, "{mean}");
        assert!((deviation / mean - 1.0).abs() < 0.05, "{deviation}");
    }

    #[test]
    fn traces_are_followed_and_their_faults_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0 100 msg/s\n# then faster\n2 1000 msg/s\n").unwrap();
        let path = file.path().to_str().unwrap();
        let mut schedule = read_trace(path).unwrap();
        assert_eq!(schedule.due(100.0, 1.0), Duration::from_secs(1));
        assert_eq!(schedule.due(1200.0, 1.0), Duration::from_secs(3));
        assert_eq!(schedule.scheduled(Duration::from_secs(3)), 1200.0);
        for (text, part) in [
            ("", "empty"),
            ("1 5 msg/s", "first line"),
            ("0 5 msg/s\n0 6 msg/s", "line 2: times must rise"),
            ("0 5 Kb/s", "ambiguous"),
            ("0 5 msg/s\n1 5 B/s", "same unit"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let error = read_trace(path).unwrap_err();
            assert!(error.0.contains(part), "{text}: {error}");
        }
    }
}
