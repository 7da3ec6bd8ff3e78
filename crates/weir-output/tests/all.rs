//! Every output against receivers that misbehave.

mod columns;
mod datadog;
mod disk_full;
mod faults;
mod faults_of_all;
mod file;
mod graphite;
mod handover;
mod inbox;
mod influx;
mod keys;
mod killed;
mod otlp;
mod poison;
mod publishing;
mod relay;
mod remote_write;
mod saved;
mod scrape;
mod simulation;
mod support;
