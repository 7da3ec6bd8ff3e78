//! What the process may use, and how it runs.

use std::path::PathBuf;
use std::time::Duration;

use crate::setting::{Kind, PathUse, Reload};
use crate::settings;
use crate::types::{AdminAddress, HostName, LogLevel, Sandbox};

settings! {
    /// Memory, cores, and limits on what they hold.
    pub struct Resources {
        memory: u64 = "0"
            .takes(Kind::Bytes { min: 0, max: 1 << 40 })
            .effect("The one budget for everything that grows: contexts, caches, samples, history, batches, frames, sessions, queues, sums. docs/limits.md has the shares, and `weir check` prints them.")
            .zero("0: a quarter of the cgroup's limit or of the machine, at least 64MiB and at most 2GiB.")
            .who("Operators with a million contexts, or very little memory. The least that is taken is 8MiB.")
            .common();
        history: u64 = "64MiB"
            .takes(Kind::Bytes { min: 0, max: 1 << 40 })
            .effect("The most that the last minutes of every series may take, which the live page, `weir top` and `/api/v1` show. They never take more than an eighth of `memory`; when that is full, the oldest minutes go.")
            .zero("0: nothing is kept, and nothing is shown of the past.")
            .who("Operators who want to look back further, or not at all.");
        contexts_max: Option<usize> = "0"
            .takes(Kind::Integer { min: 0, max: 1 << 32 })
            .effect("A limit on the number of contexts, besides the memory budget.")
            .zero("0: memory alone decides.")
            .who("Operators whose backend charges per series.");
        contexts_per_metric_max: Option<usize> = "0"
            .takes(Kind::Integer { min: 0, max: 1 << 32 })
            .effect("A limit on the number of contexts of one metric name, besides its fair share of the memory budget and of `contexts_max`.")
            .zero("0: a metric may have four times as many contexts as there is still room for.")
            .who("Operators whose backend charges per series.");
        contexts_per_origin_max: Option<usize> = "0"
            .takes(Kind::Integer { min: 0, max: 1 << 32 })
            .effect("The same for one container, or whatever else origin detection tells apart. Different orders of the same tags count once.")
            .zero("0: an origin may have four times as many contexts as there is still room for.")
            .who("Operators of machines that many teams share.");
        tag_values_alert: Option<u64> = "10000"
            .takes(Kind::Integer { min: 0, max: 1 << 32 })
            .effect("When a tag key has more different values in live contexts than this, the log says so once and the series `weir_tag_key_values_alert` shows it, until it has fewer than half as many.")
            .zero("0: no alert.")
            .who("Operators whose keys have many values for a reason.");
        cpu: f64 = "0"
            .takes(Kind::Number { min: 0.0, max: 1024.0 })
            .effect("How many cores weir may plan with.")
            .zero("0: those of the cgroup's quota, or of the machine.")
            .who("Operators who share a machine without cgroups.");
        workers: usize = "0"
            .takes(Kind::Integer { min: 0, max: 64 })
            .effect("Threads that receive and aggregate.")
            .zero("0: one below 8 cores, then one per 8 cores, at most 4.")
            .who("Operators who measured that one is too few.");
    }
}

settings! {
    /// The process and what can be asked of it.
    pub struct Running {
        admin: AdminAddress = "127.0.0.1:8127"
            .effect("Address of the admin HTTP server: metrics, status, profiles. Everybody who reaches it can read metric names and take profiles.")
            .zero("`off` or empty: no admin server.")
            .who("Operators whose Prometheus scrapes from another machine.")
            .common();
        admin_hosts: Vec<HostName> = "[]"
            .effect("Host names under which the admin server may be asked, besides addresses and `localhost`. A request whose `Host` is another one is refused, so that no web page can read answers by pointing its own name at this machine.")
            .zero("An empty list: addresses and `localhost` alone.")
            .who("Operators whose Prometheus or reverse proxy asks by name.");
        admin_payloads: bool = "true"
            .effect("Whether the admin server shows what messages hold: the tail (`weir tail`, the page) and captures (`weir capture`).")
            .zero("false: both are off, and say so.")
            .who("Operators whose messages hold what not everybody who reaches the admin address may read.");
        sandbox: Sandbox = "auto"
            .effect("What the process gives up once its sockets are bound, as far as the kernel offers it: new privileges, capabilities, files that the configuration does not name, and system calls that it never makes (docs/sandbox.md). A file or directory that a reload names for the first time may be out of reach until a restart.")
            .zero("`off`: nothing.")
            .who("Operators whose weir has to reach what its configuration does not name.");
        grace_period: Duration = "10s"
            .takes(Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(3600) })
            .effect("How long a shutdown may take to deliver what is left. What is still left then is lost and counted. What a disk queue holds is not waited for.")
            .zero("0: one attempt, without waiting.")
            .who("Operators with a slow backend; stay below the service manager's own limit.");
        state_path: Option<PathBuf> = "''"
            .path(PathUse::WriteBeneath)
            .effect("A directory for what the next process goes on with: the open bucket, the sums of cumulative outputs, the books. At a stop the open bucket is kept there and not flushed. One weir uses it at a time; it is made where there is none (docs/restart.md).")
            .zero("Empty: nothing is kept, and the open bucket is flushed.")
            .who("Operators who restart weir and want nobody to see it.")
            .common();
        log_level: LogLevel = "info"
            .effect("The least severe log lines that are written to standard error.")
            .who("Developers who look for an error.")
            .also(&["DD_LOG_LEVEL"])
            .common()
            .on_reload(Reload::Applied);
        flush_summary: bool = "true"
            .effect("Log one line per flush at level `info` that says what came in, what went out and what was lost.")
            .who("Operators who store logs of many agents.");
    }
}
