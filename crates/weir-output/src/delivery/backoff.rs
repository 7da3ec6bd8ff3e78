//! How long to leave a failing endpoint alone.

use std::time::Duration;

use crate::settings::DeliverySettings;

/// The longest wait that a `Retry-After` can impose; a backend that names more is asked again by then.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// Counts failures against successes and draws the wait.
#[derive(Debug)]
pub struct Backoff {
    base: Duration,
    factor: f64,
    max: Duration,
    recovery: Option<u32>,
    errors: u32,
    errors_max: u32,
    random: u64,
}

impl Backoff {
    /// `seed` decides the jitter; give every endpoint of every agent another one.
    pub fn new(settings: &DeliverySettings, seed: u64) -> Self {
        let base = settings.backoff_base.max(Duration::from_millis(1));
        let max = settings.backoff_max.max(base);
        // More errors than it takes to reach the longest wait would only delay recovery.
        let errors_max = (max.as_secs_f64() / base.as_secs_f64()).log2().floor() as u32 + 1;
        Self {
            base,
            factor: settings.backoff_factor.max(1.0),
            max,
            recovery: (!settings.recovery_reset).then_some(settings.recovery_interval.max(1)),
            errors: 0,
            errors_max,
            random: seed,
        }
    }

    /// After a failure: how long to wait, at least what the backend asked for.
    pub fn failed(&mut self, retry_after: Option<Duration>) -> Duration {
        self.errors = (self.errors + 1).min(self.errors_max);
        let full = (self.base.as_secs_f64() * 2f64.powi(self.errors as i32)).min(self.max.as_secs_f64());
        let least = full / self.factor;
        let drawn = Duration::from_secs_f64(least + (full - least) * self.fraction());
        let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        drawn.clamp(self.base, self.max).max(asked)
    }

    /// The next failures wait the longest there is: trying soon would not help.
    pub fn at_its_longest(&mut self) {
        self.errors = self.errors_max;
    }

    pub fn succeeded(&mut self) {
        self.errors = self.recovery.map_or(0, |steps| self.errors.saturating_sub(steps));
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
fn http_date(value: &str) -> Option<i64> {
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

    fn settings() -> DeliverySettings {
        DeliverySettings {
            timeout: Duration::from_secs(20),
            concurrency: 10,
            backoff_base: Duration::from_secs(2),
            backoff_factor: 2.0,
            backoff_max: Duration::from_secs(64),
            recovery_interval: 2,
            recovery_reset: false,
            disk_path: String::new(),
            disk_bytes_max: 0,
            disk_age_max: Duration::ZERO,
            ca_file: String::new(),
            proxy: String::new(),
            no_proxy: Vec::new(),
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
    fn the_backend_may_ask_for_more_but_not_for_ever() {
        let mut backoff = Backoff::new(&settings(), 1);
        assert_eq!(
            backoff.failed(Some(Duration::from_secs(100))),
            Duration::from_secs(100)
        );
        assert_eq!(
            backoff.failed(Some(Duration::from_secs(1 << 40))),
            RETRY_AFTER_MAX
        );
        let mut reset = Backoff::new(
            &DeliverySettings {
                recovery_reset: true,
                ..settings()
            },
            1,
        );
        for _ in 0..5 {
            reset.failed(None);
        }
        reset.succeeded();
        assert!(reset.failed(None) <= Duration::from_secs(4));
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
