//! Resources of the process and its execution.

use std::path::PathBuf;
use std::time::Duration;

use crate::setting::{PathUse, Reload, SettingType};
use crate::settings;
use crate::types::{AdminAddress, AdminRemote, HostName, LogLevel, Sandbox};

settings! {
    /// Memory, cores and limits.
    pub struct Resources {
        memory: u64 = "0"
            .takes(SettingType::Bytes { min: 0, max: 1 << 40 })
            .effect("The budget for everything that grows: contexts, caches, samples, history, batches, frames, sessions, queues, sums. docs/limits.md has the shares, and `weir check` prints them.")
            .zero("0: a quarter of the cgroup's limit or of the machine, at least 64MiB and at most 2GiB.")
            .change("if you have a million contexts, or very little memory. The minimum is 8MiB.")
            .common();
        history: u64 = "64MiB"
            .takes(SettingType::Bytes { min: 0, max: 1 << 40 })
            .effect("The maximum memory for the last minutes of every series, which the live page, `weir top` and `/api/v1` show. It never exceeds an eighth of `memory`; when it is full, the oldest minutes are dropped.")
            .zero("0: no history is stored or shown.")
            .change("to look back further, or not at all.");
        contexts_max: Option<usize> = "0"
            .takes(SettingType::Integer { min: 0, max: 1 << 32 })
            .effect("A limit on the number of contexts, besides the memory budget.")
            .zero("0: only memory limits it.")
            .change("if your backend charges per series.");
        contexts_per_metric_max: Option<usize> = "0"
            .takes(SettingType::Integer { min: 0, max: 1 << 32 })
            .effect("A limit on the number of contexts of one metric name, besides its fair share of the memory budget and of `contexts_max`.")
            .zero("0: one metric may use up to four fifths of the free space.")
            .change("if your backend charges per series.");
        contexts_per_origin_max: Option<usize> = "0"
            .takes(SettingType::Integer { min: 0, max: 1 << 32 })
            .effect("The same for one container, or another origin that origin detection distinguishes. Different orders of the same tags count once.")
            .zero("0: one origin may use up to four fifths of the free space.")
            .change("if many teams share your machines.");
        tag_values_alert: Option<u64> = "10000"
            .takes(SettingType::Integer { min: 0, max: 1 << 32 })
            .effect("If a tag key has more distinct values in live contexts than this, weir logs it once and the series `weir_tag_key_values_alert` shows it, until it has fewer than half as many.")
            .zero("0: no alert.")
            .change("if your keys need many values.");
        cpu: f64 = "0"
            .takes(SettingType::Number { min: 0.0, max: 1024.0 })
            .effect("The number of cores that weir may use.")
            .zero("0: the cgroup's quota, or the machine's number.")
            .change("if you share a machine without cgroups.");
        workers: usize = "0"
            .takes(SettingType::Integer { min: 0, max: 64 })
            .effect("Threads that receive and aggregate.")
            .zero("0: one below 8 cores, then one per 8 cores, at most 4.")
            .change("if you measured that one is not enough.");
    }
}

settings! {
    /// The process and its admin interface.
    pub struct Running {
        admin: AdminAddress = "127.0.0.1:8127"
            .effect("Address of the admin HTTP server: metrics, status, the live page, profiles. The host `*` is every interface, and `localhost` is 127.0.0.1 and ::1. Programs on the same machine may ask for everything; `admin_remote` says what others may.")
            .zero("`off` or empty: no admin server.")
            .change("if your Prometheus scrapes from another machine.")
            .common();
        admin_hosts: Vec<HostName> = "[]"
            .effect("Host names in requests that the admin server accepts, besides addresses and `localhost`. It refuses a request with another `Host`, so that a web page cannot read answers by pointing its own name at this machine.")
            .zero("An empty list: only addresses and `localhost`.")
            .change("if your Prometheus or reverse proxy asks by name.");
        admin_remote: AdminRemote = "status"
            .effect("What other machines may ask the admin server for. `status`: health, metrics, status and losses. `read`: also the page, and names, tags and values of metrics. `full`: everything, messages, profiles and reloads too, if the request has the token of `admin_token_file`; health, metrics and status need none.")
            .change("to open the page from another machine.");
        admin_token_file: PathBuf = "''"
            .path(PathUse::Read)
            .effect("File with the token for `admin_remote: full`, read for each request. A program sends `Authorization: Bearer TOKEN`; a browser asks for a user, any, and a password, the token.")
            .zero("Empty: there is no token, and `admin_remote: full` is an error.")
            .change("to use `admin_remote: full`.");
        admin_payloads: bool = "true"
            .effect("Whether the admin server shows messages: the tail (`weir tail`, the page) and captures (`weir capture`).")
            .zero("false: both answer that they are off.")
            .change("if your messages are confidential to some users of the admin address.");
        sandbox: Sandbox = "auto"
            .effect("The rights that the process drops after it has bound its sockets, as far as the kernel supports it: new privileges, capabilities, files that the configuration does not name, and system calls that it never makes (docs/sandbox.md). A file or directory that a reload names for the first time may be out of reach until a restart.")
            .zero("`off`: nothing.")
            .change("if weir needs files that its configuration does not name.");
        grace_period: Duration = "10s"
            .takes(SettingType::Duration { min: Duration::ZERO, max: Duration::from_secs(3600) })
            .effect("The time limit of a shutdown for delivering waiting data. Data that still waits then is lost and counted. A shutdown does not wait for data in a disk queue.")
            .zero("0: one attempt, without waiting.")
            .change("if your backend is slow; stay below the service manager's own limit.");
        state_path: Option<PathBuf> = "''"
            .path(PathUse::WriteBeneath)
            .effect("A directory for the state that the next process continues: the open bucket, the sums of cumulative outputs, the books. At a stop the open bucket is saved there and not flushed. One weir uses it at a time; weir creates it if it does not exist (docs/restart.md).")
            .zero("Empty: nothing is kept, and the open bucket is flushed.")
            .change("if you want restarts without gaps.")
            .common();
        log_level: LogLevel = "info"
            .effect("The lowest severity of log lines on standard error.")
            .change("to search for an error.")
            .also(&["DD_LOG_LEVEL"])
            .common()
            .on_reload(Reload::Applied);
        flush_summary: bool = "true"
            .effect("Log one line per flush at level `info` with the data received, delivered and lost.")
            .change("if you store logs of many agents.");
    }
}
