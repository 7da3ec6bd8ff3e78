//! Metrics as columns: each connection is a client that aggregates its messages in windows of the wall clock and sends what a window has
//! as requests, as soon as it ends. The messages are those that the same profile sends as datagrams, so the truth is the same.

mod client;
mod payload;
pub mod sketch;
mod window;

pub use payload::{BODY_BYTES_MAX, SERIES_MAX};

use crate::manifest::ColumnsSent;
use crate::profile::{Mode, PacketSize, Profile, ProfileError};
use crate::run::{Lateness, Options, Progress, Report, RunError, Running, Tally};
use crate::source::Load;
use client::Client;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use weir_rig_base::{clock, process};

/// A client needs little of it, and there may be hundreds.
const STACK_BYTES: usize = 256 << 10;

/// Refuses a profile with messages that columns cannot express.
pub fn check(profile: &Profile) -> Result<(), ProfileError> {
    let types = &profile.types;
    let absent: Vec<&str> = [
        ("types.timer", types.timer > 0.0),
        ("types.set", types.set > 0.0),
        ("types.histogram", types.histogram > 0.0),
        ("kinds.event", profile.kinds.event > 0.0),
        ("kinds.service_check", profile.kinds.service_check > 0.0),
        ("malformed_p", profile.malformed_p > 0.0),
        ("container_id", profile.container_id.is_some()),
        ("external_data", profile.external_data.is_some()),
        ("cardinality_p", profile.cardinality_p > 0.0),
        ("timestamp", profile.timestamp.is_some()),
    ]
    .into_iter()
    .filter_map(|(key, is_set)| is_set.then_some(key))
    .collect();
    if !absent.is_empty() {
        return Err(ProfileError(format!(
            "payload dogstatsd over http: columns have counts, gauges and distributions alone, with name and tags; set {} to nothing",
            absent.join(", ")
        )));
    }
    if matches!(profile.packet_size, Some(PacketSize::Exactly { .. })) {
        return Err(ProfileError(
            "packet_size: an exact size needs fillers, which columns do not have".into(),
        ));
    }
    if profile.mode == Mode::Prebuilt {
        return Err(ProfileError(
            "mode: a window has messages of its own; columns need mode composed".into(),
        ));
    }
    Ok(())
}

/// Starts a load of columns. A missing target is an error at once.
pub(crate) fn start(load: &Load, options: &Options) -> Result<Running, RunError> {
    let target = &options.target;
    target
        .connect()
        .map_err(|error| RunError::Target(format!("{target}: cannot connect: {error}")))?;
    let progress: Vec<Arc<Progress>> = (0..load.profile.connections).map(|_| Arc::default()).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let (load, options) = (load.clone(), options.clone());
    let (of_clients, stopped) = (progress.clone(), stop.clone());
    let handle = std::thread::spawn(move || run(&load, &options, &of_clients, &stopped));
    Ok(Running::new(progress, stop, handle))
}

fn run(
    load: &Load,
    options: &Options,
    progress: &[Arc<Progress>],
    stop: &AtomicBool,
) -> (Report, Option<RunError>) {
    let started_unix_ns = clock::unix_ns();
    let end = options.duration.unwrap_or(Duration::MAX);
    let barrier = Barrier::new(progress.len());
    let work = |number: usize| -> Result<(Client<'_>, Result<(), RunError>), RunError> {
        let client = Client::new(load, options, stop, number as u32, progress[number].clone());
        let pinned = match options.cpus.as_slice() {
            [] => Ok(()),
            cpus => process::pin(&[cpus[number % cpus.len()]])
                .map_err(|error| RunError::Usage(format!("--cpu: {error}"))),
        };
        barrier.wait();
        let mut client = client?;
        let result = pinned.and_then(|()| client.run(Instant::now(), end));
        if result.is_err() {
            stop.store(true, Relaxed);
        }
        Ok((client, result))
    };
    let (work, mut error) = (&work, None);
    let mut report = Report {
        started_unix_ns,
        unit: load.profile.rate_unit(),
        threads: load.profile.connections,
        ..Report::default()
    };
    let (mut tally, mut lateness) = (Tally::default(), Lateness::new());
    let mut columns = ColumnsSent {
        window_s: load.profile.window.0.as_secs(),
        ..ColumnsSent::default()
    };
    std::thread::scope(|scope| {
        let spawn = |number| {
            let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
            builder
                .spawn_scoped(scope, move || work(number))
                .expect("a thread for each client")
        };
        let threads: Vec<_> = (0..progress.len()).map(spawn).collect();
        for thread in threads {
            match thread.join().expect("a client does not panic") {
                Ok((client, result)) => {
                    error = error.take().or(result.err());
                    let scheduled = client.schedule.scheduled(client.tally.elapsed.min(end));
                    report.scheduled += match options.count {
                        Some(_) => scheduled.min(client.tally.units_due),
                        None => scheduled,
                    };
                    tally.add(&client.tally);
                    lateness.merge(&client.lateness);
                    report.sent.push(client.sent);
                    columns.add(client.books);
                }
                Err(failed) => error = error.take().or(Some(failed)),
            }
        }
    });
    report.columns = Some(columns);
    report.add(&tally, &lateness);
    (report, error)
}
