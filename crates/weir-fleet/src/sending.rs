//! The outputs of a merge, each in a thread of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use weir_merge::{CorrectionPolicy, Follower};

use super::follower::Sending;
use super::open_for_output;
use super::place::{self, PositionFile};
use super::shared::{OutputProgress, Shared};
use weir_agent::budget::Budget;
use weir_system::config::Config;
use weir_system::failure::Failure;

/// Widths of a default bucket that an output of sums waits for a partition, beyond the grace period.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts the outputs. Each delivers the partitions that the log assigns to it.
pub fn start(
    config: &Config,
    budget: &Budget,
    directory: PathBuf,
    handle: &Handle,
    shared: &Arc<Shared>,
) -> Result<Vec<JoinHandle<()>>, Failure> {
    let merge = config.merge.as_ref();
    let merge = merge.ok_or_else(|| Failure::runtime("no merge is configured"))?;
    let at = directory.display().to_string();
    place::directory(&directory).map_err(|error| Failure::runtime(format!("{at}: {error}")))?;
    let patience = (merge.grace + PATIENCE).as_millis() as i64;
    let room = budget.results_of_output(config.outputs.len());
    let mut threads = Vec::new();
    for output in &config.outputs {
        let name = output.name.clone();
        let progress = Arc::new(OutputProgress::new(&name));
        shared.add_output(progress.clone());
        let log = open_for_output(config, &name)?;
        let sending = Sending {
            config: Config {
                outputs: vec![output.clone()],
                ..config.clone()
            },
            budget: budget.of_output(&config.outputs),
            handle: handle.clone(),
            follower: Follower::new(log, CorrectionPolicy::default(), patience, room),
            place: PositionFile::new(&directory, &name),
            progress,
            shared: shared.clone(),
            started: Instant::now(),
            name,
        };
        let thread = std::thread::Builder::new().name(format!("to {}", output.name));
        let started = thread.spawn(move || sending.run());
        threads.push(started.map_err(|error| Failure::thread(&error))?);
    }
    Ok(threads)
}

/// Waits until every output has finished what it was giving; the next process gives the rest.
pub fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a thread that sends results to an output panicked");
        }
    }
}
