//! A worker from packets to flushes.

mod columns;
mod instructions;
mod listeners;
mod memory;
mod oracle;
mod origins;
mod own_timestamps;
mod resumed;
mod rules;
mod rules_cost;
mod sizes;
mod slow_lines;
mod usage;
mod worker;
mod workers;
