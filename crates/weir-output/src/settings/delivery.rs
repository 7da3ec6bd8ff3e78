//! Settings that every output which delivers over the network has, as its `delivery:` section: [`DELIVERY`] for HTTP, [`QUEUE`] for
//! other protocols.

use std::time::Duration;

use serde::Deserialize;

use super::{DURATION_MAX, Kind, PathUse, Setting, SettingProblem, setting};

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeliverySettings {
    pub timeout: Duration,
    pub backoff_base: Duration,
    pub backoff_factor: f64,
    pub backoff_max: Duration,
    pub recovery_interval: u32,
    pub recovery_reset: bool,
    pub disk_path: String,
    pub disk_bytes_max: u64,
    pub disk_age_max: Duration,
    /// This and what follows is of HTTP alone.
    #[serde(default = "one")]
    pub concurrency: usize,
    #[serde(default)]
    pub ca_file: String,
    #[serde(default)]
    pub proxy: String,
    #[serde(default)]
    pub no_proxy: Vec<String>,
}

fn one() -> usize {
    1
}

impl DeliverySettings {
    /// For outputs of this machine: nothing to time out, no second copy on disk, and soon tried again.
    pub fn local() -> Self {
        Self {
            timeout: DURATION_MAX,
            concurrency: 1,
            backoff_base: Duration::from_millis(500),
            backoff_factor: 2.0,
            backoff_max: Duration::from_secs(5),
            recovery_interval: 1,
            recovery_reset: true,
            disk_path: String::new(),
            disk_bytes_max: 0,
            disk_age_max: Duration::ZERO,
            ca_file: String::new(),
            proxy: String::new(),
            no_proxy: Vec::new(),
        }
    }

    /// What the table cannot say of single settings.
    pub fn check(&self) -> Result<(), SettingProblem> {
        if self.backoff_base > self.backoff_max {
            let message = "must not be below delivery.backoff_base";
            return Err(SettingProblem::new("delivery.backoff_max", message));
        }
        Ok(())
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);

/// What does not depend on the protocol.
pub const QUEUE: &[Setting] = DELIVERY.split_at(9).0;

/// The table of the `delivery:` section over HTTP.
pub const DELIVERY: &[Setting] = &[
    setting("timeout", Kind::Duration { min: MILLISECOND, max: Duration::from_secs(3600) }, "20s")
        .effect("An attempt that has not been answered by then failed and is retried.")
        .who("Operators behind slow proxies."),
    setting("backoff_base", Kind::Duration { min: MILLISECOND, max: Duration::from_secs(3600) }, "2s")
        .effect("After failures in a row, a wait is at most this times 2 to the power of their number: twice this after the first, four times after the second.")
        .who("Hardly anybody."),
    setting("backoff_factor", Kind::Number { min: 1.0, max: 100.0 }, "2")
        .effect("Each wait is drawn uniformly between its full length and its full length divided by this, so that agents do not return in step.")
        .who("Hardly anybody."),
    setting("backoff_max", Kind::Duration { min: MILLISECOND, max: DURATION_MAX }, "64s")
        .effect("The longest wait between two attempts.")
        .who("Hardly anybody."),
    setting("recovery_interval", Kind::Integer { min: 1, max: 1000 }, "2")
        .effect("How many failures one success makes up for.")
        .who("Hardly anybody."),
    setting("recovery_reset", Kind::Bool, "false")
        .effect("One success makes up for every failure.")
        .who("Hardly anybody."),
    setting("disk_path", Kind::Text, "''")
        .path(PathUse::WriteBeneath)
        .effect("A directory of this output's own in which undelivered payloads wait through outages and restarts.")
        .zero("Empty: payloads wait in memory only.")
        .who("Operators who must not lose data during an outage."),
    setting("disk_bytes_max", Kind::Bytes { min: 0, max: u64::MAX >> 1 }, "1GiB")
        .effect("The most the disk queue may take; beyond it the oldest payloads are dropped and counted.")
        .zero("0: no disk queue, even with a path.")
        .who("Operators with little disk, or long outages."),
    setting("disk_age_max", Kind::Duration { min: Duration::ZERO, max: DURATION_MAX }, "10d")
        .effect("Payloads older than this are dropped from disk and counted.")
        .zero("0: no limit.")
        .who("Operators whose backend refuses old data."),
    setting("concurrency", Kind::Integer { min: 1, max: 1000 }, "10")
        .effect("Requests under way at once, per endpoint.")
        .who("Operators of very large agents far from the backend."),
    setting("ca_file", Kind::Text, "''")
        .path(PathUse::Read)
        .effect("A PEM file with the certificate authorities to trust, instead of the system's.")
        .zero("Empty: the system's.")
        .who("Operators with a private certificate authority."),
    setting("proxy", Kind::Text, "''")
        .effect("The proxy to use, such as `http://proxy:3128`; `none` for none whatever the environment says.")
        .zero("Empty: the variables `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` decide.")
        .who("Operators whose proxy differs from the environment's."),
    setting("no_proxy", Kind::List(&Kind::Text), "[]")
        .effect("Receivers that are reached without `proxy`: names (and all below them), addresses, networks such as `10.0.0.0/8`.")
        .zero("Empty: none. For a proxy of the environment's, `NO_PROXY` is the list.")
        .who("Operators with some receivers on this side of the proxy."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_protocol_has_comes_first() {
        assert_eq!(QUEUE.last().unwrap().key, "disk_age_max");
        assert_eq!(DELIVERY[QUEUE.len()].key, "concurrency");
    }
}
