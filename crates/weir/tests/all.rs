//! The program as a process: what only a running `weir` shows. One test program, because each links the whole agent.

// A text may be sent by reference or by value.
#![allow(clippy::needless_borrows_for_generic_args)]

mod support;

mod access;
mod agent;
mod agent_keys;
mod alerts;
mod any_configuration;
mod api_page;
#[cfg(feature = "kafka")]
mod brokers;
mod capture;
mod carbon;
mod client_telemetry;
mod columns;
mod columns_once;
mod columns_shown;
mod command_line;
mod dashboards;
mod dead_outputs;
mod delivery;
mod doctor;
mod dogstatsd;
mod executed_pages;
mod fleet;
mod flood;
mod flush_memory;
mod hand_over;
mod hand_over_corners;
mod hand_over_ends;
mod healthy;
mod influx;
mod kept_sockets;
mod losses;
mod memory_ledger;
mod merge;
mod migrate_pages;
mod migrate_peers;
mod network;
mod notify;
/// Origin detection with the real binary: processes in real control groups, the API of a real Podman and a real containerd, a
/// kubelet on TLS, and everything that can go wrong with them.
mod origin {
    mod agent;
    mod allowed;
    mod cgroup;
    mod faults;
    mod kubelet;
    mod messages;
    mod runtimes;
}
mod otlp;
mod output_pages;
mod per_listener;
mod prometheus;
mod remote_write;
mod restart;
mod sandbox;
mod scrape;
mod short_lives;
mod statsd_exporter;
mod tail;
mod terminal;
