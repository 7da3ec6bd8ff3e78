//! Settings that every output which delivers over the network has, as its `delivery:` section: [`DeliverySettings`] for HTTP,
//! [`QueueSettings`] for other protocols.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use weir_config::{DURATION_MAX, PathUse, RemovedSetting, SettingType, settings};

const MILLISECOND: Duration = Duration::from_millis(1);

/// The waits after failures follow from `backoff_max`.
const REMOVED: &[RemovedSetting] = &[
    RemovedSetting {
        key: "backoff_base",
        why: "the first wait is at most a sixteenth of backoff_max",
        also: &["DD_FORWARDER_BACKOFF_BASE"],
    },
    RemovedSetting {
        key: "backoff_factor",
        why: "each wait is drawn between half of its full length and all of it, so that agents do not return in step",
        also: &["DD_FORWARDER_BACKOFF_FACTOR"],
    },
    RemovedSetting {
        key: "recovery_interval",
        why: "one success makes up for two failures",
        also: &["DD_FORWARDER_RECOVERY_INTERVAL"],
    },
    RemovedSetting {
        key: "recovery_reset",
        why: "one success makes up for two failures",
        also: &["DD_FORWARDER_RECOVERY_RESET"],
    },
];

settings! {
    /// The `delivery:` section of every protocol. The variables are those of the Datadog Agent's forwarder: they are meant for the output
    /// that takes its place.
    pub struct QueueSettings {
        timeout: Duration = "20s"
            .takes(SettingType::Duration { min: MILLISECOND, max: Duration::from_secs(3600) })
            .effect("An attempt without an answer within this time failed and is retried.")
            .change("if you are behind a slow proxy.")
            .also(&["DD_FORWARDER_TIMEOUT"]);
        backoff_max: Duration = "64s"
            .takes(SettingType::Duration { min: Duration::from_millis(32), max: DURATION_MAX })
            .effect("The longest wait between two attempts. After failures in a row the first wait is at most a sixteenth of this, and each further one twice as long.")
            .change("if you want data sooner after an outage, or fewer attempts during one.")
            .also(&["DD_FORWARDER_BACKOFF_MAX"]);
        disk_path: String = "''"
            .path(PathUse::WriteBeneath)
            .effect("A directory for this output alone, where undelivered payloads wait through outages and restarts.")
            .zero("Empty: payloads wait in memory only.")
            .change("if you must not lose data during an outage.")
            .also(&["DD_FORWARDER_STORAGE_PATH"]);
        disk_bytes_max: u64 = "1GiB"
            .takes(SettingType::Bytes { min: 0, max: u64::MAX >> 1 })
            .effect("The maximum size of the disk queue; beyond it the oldest payloads are dropped and counted.")
            .zero("0: no disk queue, even with a path.")
            .change("if you have little disk, or long outages.")
            .also(&["DD_FORWARDER_STORAGE_MAX_SIZE_IN_BYTES"]);
        disk_age_max: Duration = "10d"
            .takes(SettingType::Duration { min: Duration::ZERO, max: DURATION_MAX })
            .effect("Payloads older than this are dropped from disk and counted.")
            .zero("0: no limit.")
            .change("if your backend refuses old data.")
            .also(&["DD_FORWARDER_OUTDATED_FILE_IN_DAYS"]);
    }
    removed REMOVED
}

settings! {
    /// The `delivery:` section over HTTP.
    pub struct DeliverySettings {
        queue: QueueSettings = "{}".flat();
        concurrency: usize = "10"
            .takes(SettingType::Integer { min: 1, max: 1000 })
            .effect("Concurrent requests per endpoint.")
            .change("if a very large agent is far from its backend.")
            .also(&["DD_FORWARDER_MAX_CONCURRENT_REQUESTS"]);
        ca_file: String = "''"
            .path(PathUse::Read)
            .effect("A PEM file with the certificate authorities to trust, instead of the system's.")
            .zero("Empty: the system's.")
            .change("if you have a private certificate authority.");
        proxy: String = "''"
            .effect("The proxy to use, such as `http://proxy:3128`; `none` ignores the environment.")
            .zero("Empty: the variables `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` decide.")
            .change("if your proxy differs from the environment's.")
            .also(&["DD_PROXY_HTTPS", "DD_PROXY_HTTP"]);
        no_proxy: Vec<String> = "[]"
            .effect("Receivers to reach without `proxy`: names (with their subdomains), addresses, networks such as `10.0.0.0/8`.")
            .zero("Empty: none. For a proxy from the environment, `NO_PROXY` is the list.")
            .change("if some receivers need no proxy.")
            .also(&["DD_PROXY_NO_PROXY"]);
    }
    removed REMOVED
}

impl Deref for DeliverySettings {
    type Target = QueueSettings;

    fn deref(&self) -> &QueueSettings {
        &self.queue
    }
}

impl DerefMut for DeliverySettings {
    fn deref_mut(&mut self) -> &mut QueueSettings {
        &mut self.queue
    }
}

impl From<QueueSettings> for DeliverySettings {
    /// One connection, and nothing of HTTP.
    fn from(queue: QueueSettings) -> Self {
        Self {
            queue,
            concurrency: 1,
            ca_file: String::new(),
            proxy: String::new(),
            no_proxy: Vec::new(),
        }
    }
}

impl DeliverySettings {
    /// For outputs of this machine: nothing to time out, no second copy on disk, and soon tried again.
    pub fn local() -> Self {
        Self::from(QueueSettings {
            timeout: DURATION_MAX,
            backoff_max: Duration::from_secs(5),
            disk_path: String::new(),
            disk_bytes_max: 0,
            disk_age_max: Duration::ZERO,
        })
    }
}
