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
/// Delivery by the real agent to a double of an intake.
mod delivery {
    pub mod intake;
    mod key_files;
    mod killed;
    mod names;
    pub mod receiver;
    mod reload;
    mod secret_backend;
    mod standard_output;
    mod stop;
}
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
/// The real `weir merge` over a log of files: what `docs/fleet.md` promises, by the numbers of its cases.
mod merge {
    mod backends;
    mod cases;
    mod faults;
    pub mod fleet;
    mod owners;
    pub mod process;
    mod tools;
}
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
