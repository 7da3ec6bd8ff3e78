//! The wait before the next attempt at a failing endpoint.

use std::time::Duration;

use crate::settings::DeliverySettings;

/// The longest wait that a `Retry-After` can impose; a backend that names more is asked again by then.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// The longest wait is this much longer than the base, which doubles with every failure: it takes five to get there, the first of
/// which waits for twice the base. 64 s makes that the 4 s of the Datadog Agent's forwarder.
const DOUBLINGS: u32 = 5;

/// Each wait is drawn between its full length and this part of it, so that agents that failed together do not return in step.
const SPREAD: f64 = 2.0;

/// Failures that one success makes up for. One alone may be luck; an endpoint that recovers is back at full speed after three.
const RECOVERY: u32 = 2;

/// More errors than it takes to reach the longest wait would only delay recovery.
const ERRORS_MAX: u32 = DOUBLINGS + 1;

/// Counts failures against successes and draws the wait.
#[derive(Debug)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    errors: u32,
    random: u64,
}

impl Backoff {
    /// `seed` decides the jitter; give every endpoint of every agent another one.
    pub fn new(settings: &DeliverySettings, seed: u64) -> Self {
        Self {
            base: settings.backoff_max / (1 << DOUBLINGS),
            max: settings.backoff_max,
            errors: 0,
            random: seed,
        }
    }

    /// After a failure: the time to wait, at least as long as the backend asked for.
    pub fn failed(&mut self, retry_after: Option<Duration>) -> Duration {
        self.errors = (self.errors + 1).min(ERRORS_MAX);
        let full = (self.base.as_secs_f64() * 2f64.powi(self.errors as i32)).min(self.max.as_secs_f64());
        let least = full / SPREAD;
        let drawn = Duration::from_secs_f64(least + (full - least) * self.fraction());
        let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        drawn.clamp(self.base, self.max).max(asked)
    }

    /// The next failures wait the longest there is: trying soon would not help.
    pub fn at_its_longest(&mut self) {
        self.errors = ERRORS_MAX;
    }

    pub fn succeeded(&mut self) {
        self.errors = self.errors.saturating_sub(RECOVERY);
    }

    /// Uniform in [0, 1): splitmix64.
    fn fraction(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A seed that differs between processes and calls.
pub fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// Reads a `Retry-After` value: seconds, or an HTTP date, `now` being Unix seconds.
pub fn retry_after(value: &str, now: i64) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let at = http_date(value)?;
    Some(Duration::from_secs(at.saturating_sub(now).max(0) as u64))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, the only form servers may send today, as Unix seconds.
pub fn http_date(value: &str) -> Option<i64> {
    let mut parts = value.split_once(", ")?.1.split(' ');
    let day: i64 = parts.next()?.parse().ok()?;
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let month = MONTHS.find(parts.next().filter(|name| name.len() == 3)?)? as i64 / 3 + 1;
    let year: i64 = parts.next()?.parse().ok()?;
    let mut clock = parts.next()?.split(':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let in_range = (1..=31).contains(&day) && (1970..=9999).contains(&year);
    if parts.next() != Some("GMT") || !in_range || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days since 1970 by the civil calendar: years begin in March, so that the leap day is the last.
    let (y, m) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::QueueSettings;

    fn settings() -> DeliverySettings {
        DeliverySettings {
            queue: QueueSettings {
                backoff_max: Duration::from_secs(64),
                ..DeliverySettings::local().queue
            },
            ..DeliverySettings::local()
        }
    }

    #[test]
    fn waits_double_with_jitter_up_to_the_longest() {
        for seed in 0..200 {
            let mut backoff = Backoff::new(&settings(), seed);
            for full in [4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0] {
                let wait = backoff.failed(None).as_secs_f64();
                assert!(
                    (full / 2.0..=full).contains(&wait),
                    "seed {seed}: {wait} of {full}"
                );
            }
            // Each success makes up for two of the six failures that count.
            backoff.succeeded();
            backoff.succeeded();
            assert!((8.0..=16.0).contains(&backoff.failed(None).as_secs_f64()));
        }
    }

    #[test]
    fn waits_of_many_agents_spread() {
        let waits: Vec<f64> = (0..1000)
            .map(|seed| Backoff::new(&settings(), seed).failed(None).as_secs_f64())
            .collect();
        for quarter in 0..4 {
            let low = 2.0 + f64::from(quarter) * 0.5;
            let n = waits
                .iter()
                .filter(|wait| (low..low + 0.5).contains(*wait))
                .count();
            assert!((150..350).contains(&n), "{n} waits from {low} s");
        }
    }

    #[test]
    fn the_backend_may_extend_the_wait_within_a_limit() {
        let mut backoff = Backoff::new(&settings(), 1);
        assert_eq!(
            backoff.failed(Some(Duration::from_secs(100))),
            Duration::from_secs(100)
        );
        assert_eq!(
            backoff.failed(Some(Duration::from_secs(1 << 40))),
            RETRY_AFTER_MAX
        );
    }

    #[test]
    fn retry_after_forms() {
        let cases = [
            ("120", Some(120)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(37)),
            ("Sun, 06 Nov 1994 08:48:37 GMT", Some(0)),
            ("Tue, 29 Feb 2000 00:00:00 GMT", Some(951_782_400 - 784_111_740)),
            ("-5", None),
            ("soon", None),
            ("Sun, 99 Nov 1994 08:49:37 GMT", None),
            ("", None),
        ];
        for (value, seconds) in cases {
            assert_eq!(
                retry_after(value, 784_111_740),
                seconds.map(Duration::from_secs),
                "{value:?}"
            );
        }
    }
}
