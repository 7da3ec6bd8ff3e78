//! Words that are common in metric names and tags, and lists with number ranges.

pub const SERVICES: &[&str] = &[
    "checkout",
    "payments",
    "search",
    "catalog",
    "identity",
    "gateway",
    "mailer",
    "billing",
    "ledger",
    "orders",
    "shipping",
    "inventory",
    "profile",
    "recommend",
    "session",
    "pricing",
    "webhook",
    "ingest",
    "render",
    "scheduler",
];
pub const COMPONENTS: &[&str] = &[
    "http", "grpc", "redis", "postgres", "kafka", "cache", "queue", "worker", "router", "storage", "runtime",
    "client", "server", "pool", "batch", "stream", "index", "auth", "limiter", "breaker",
];
pub const METRICS: &[&str] = &[
    "requests",
    "errors",
    "latency",
    "duration",
    "bytes_in",
    "bytes_out",
    "connections",
    "retries",
    "timeouts",
    "depth",
    "hits",
    "misses",
    "evictions",
    "in_flight",
    "processed",
    "rejected",
    "size",
    "age",
    "lag",
    "throughput",
    "allocations",
    "gc_pause",
    "open_files",
    "restarts",
    "commits",
];
pub const TAG_KEYS: &[&str] = &[
    "env",
    "service",
    "version",
    "region",
    "zone",
    "cluster",
    "namespace",
    "pod",
    "node",
    "host_group",
    "team",
    "tier",
    "shard",
    "partition",
    "topic",
    "queue",
    "method",
    "status",
    "status_class",
    "route",
    "handler",
    "endpoint",
    "protocol",
    "customer",
    "plan",
    "tenant",
    "currency",
    "country",
    "language",
    "platform",
    "device_type",
    "browser",
    "os",
    "arch",
    "runtime",
    "image",
    "container_name",
    "deployment",
    "stage",
    "channel",
    "feature",
    "experiment",
    "variant",
    "cache",
    "db",
    "table",
    "operation",
    "result",
    "reason",
    "error_type",
    "retry",
    "priority",
    "source",
    "destination",
    "worker",
    "job",
    "task",
    "role",
    "az",
    "rack",
];

/// Expands `{{a-b}}` in each text to every number of the range. Several ranges multiply.
///
/// The result has at most a million entries. An invalid range stays as it is.
pub fn expand(texts: &[String]) -> Vec<String> {
    const MOST: usize = 1_000_000;
    let mut done = Vec::new();
    let mut open: Vec<String> = texts.iter().rev().cloned().collect();
    while let Some(text) = open.pop() {
        let range = text.find("{{").and_then(|start| {
            let length = text[start..].find("}}")?;
            let (min, max) = text[start + 2..start + length].split_once('-')?;
            let (min, max): (u64, u64) = (min.parse().ok()?, max.parse().ok()?);
            (min <= max).then_some((start, start + length + 2, min, max))
        });
        match range {
            Some((start, end, min, max)) => {
                for number in (min..=max).rev().take(MOST) {
                    open.push(format!("{}{number}{}", &text[..start], &text[end..]));
                }
            }
            None => done.push(text),
        }
        if done.len() >= MOST {
            break;
        }
    }
    done
}

#[cfg(test)]
mod tests {
    #[test]
    fn ranges_in_lists_expand_in_order() {
        let expanded = super::expand(&["a{{1-3}}".into(), "b".into(), "{{0-1}}-{{8-9}}".into()]);
        assert_eq!(expanded, ["a1", "a2", "a3", "b", "0-8", "0-9", "1-8", "1-9"]);
    }
}
