//! The operating system's and the allocator's view of this process.

use serde_json::{Value, json};

use weir_output::prometheus::OwnSeries;

use crate::sys;

/// In bytes: the allocator's view, and the kernel's as `rss`. Also under the names of Go's `runtime.MemStats`, for readers of expvar, as
/// far as the meaning is the same.
pub fn memory() -> Value {
    let heap = sys::heap::statistics().unwrap_or_default();
    json!({
        "Alloc": heap.allocated,
        "HeapAlloc": heap.allocated,
        "HeapInuse": heap.active,
        "HeapIdle": heap.mapped.saturating_sub(heap.active),
        "HeapReleased": heap.retained,
        "HeapSys": heap.mapped,
        "HeapObjects": heap.allocations.saturating_sub(heap.deallocations),
        "Mallocs": heap.allocations,
        "Frees": heap.deallocations,
        "Sys": heap.mapped + heap.metadata,
        // There is no garbage collection.
        "NumGC": 0,
        "PauseTotalNs": 0,
        "allocated": heap.allocated,
        "active": heap.active,
        "metadata": heap.metadata,
        "resident": heap.resident,
        "mapped": heap.mapped,
        "retained": heap.retained,
        "rss": resident_bytes().unwrap_or(0),
    })
}

/// Bytes that the program has allocated; 0 if unknown.
pub fn allocated_bytes() -> u64 {
    sys::heap::statistics().unwrap_or_default().allocated
}

/// Resident memory as the kernel counts it.
pub fn resident_bytes() -> Option<u64> {
    status_field("VmRSS:").map(|kibibytes| kibibytes * 1024)
}

pub fn facts() -> Value {
    let open_files =
        std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1));
    let (user, system) = cpu_seconds().unwrap_or_default();
    json!({
        "pid": std::process::id(),
        "threads": status_field("Threads:"),
        "open_files": open_files,
        "user_cpu_seconds": user,
        "system_cpu_seconds": system,
        "voluntary_switches": status_field("voluntary_ctxt_switches:"),
        "involuntary_switches": status_field("nonvoluntary_ctxt_switches:"),
    })
}

/// CPU time and memory of the process, as series with the usual names.
pub fn series() -> [OwnSeries; 2] {
    let (user, system) = cpu_seconds().unwrap_or_default();
    [
        OwnSeries {
            name: "process_cpu_seconds_total",
            help: "User and system time.",
            is_counter: true,
            labels: Vec::new(),
            value: user + system,
        },
        OwnSeries {
            name: "process_resident_memory_bytes",
            help: "Resident memory.",
            is_counter: false,
            labels: Vec::new(),
            value: resident_bytes().unwrap_or(0) as f64,
        },
    ]
}

fn status_field(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// User and system time of all threads. Linux counts in hundredths of a second.
fn cpu_seconds() -> Option<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may contain anything; the fields after it do not.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok();
    Some((next()? / 100.0, next()? / 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_there() {
        let memory = memory();
        for key in ["allocated", "active", "resident", "mapped", "rss"] {
            assert!(memory[key].as_u64().unwrap() > 0, "{key}: {memory}");
        }
        let facts = facts();
        assert!(facts["threads"].as_u64().unwrap() >= 1, "{facts}");
        assert!(facts["open_files"].as_u64().unwrap() >= 3, "{facts}");
        assert!(facts["user_cpu_seconds"].as_f64().is_some(), "{facts}");
    }
}
