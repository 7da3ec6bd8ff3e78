//! The state directory and the clocks of this process, for [`weir_agent::life`].

use std::fs::File;
use std::io::Seek as _;
use std::sync::Arc;

use weir_ingest::CheckpointLink;
use weir_listener::Monotonic;
use weir_output::delivery::AgentIdentity;

use crate::state_dir;
use weir_agent::budget::{Budget, Share};
use weir_agent::life::{LifeSettings, Resumed};
use weir_agent::rules::Fixed;
use weir_agent::state::checkpoints::CheckpointWriter;
use weir_agent::state::{StateDir, StateError, Tally};
use weir_system::config::Config;
use weir_system::failure::Failure;

fn settings(config: &Config, fixed: &Fixed) -> LifeSettings {
    let aggregation = &config.aggregation;
    LifeSettings {
        workers: config.resources.workers,
        bucket_width: aggregation.bucket_seconds() as u32,
        expiry: aggregation.context_expiry + aggregation.counter_expiry,
        memory: config.resources.memory,
        histogram_points: fixed.histogram_points(),
        suffixes: fixed.default_mask(config),
        takes_columns: Budget::takes_columns(config),
    }
}

/// Reads the state in the directory, which this opens unless it is open.
pub fn look(config: &Config, open: Option<StateDir>) -> Result<Resumed, Failure> {
    let Some(path) = &config.running.state_path else {
        return Ok(Resumed::default());
    };
    let directory = match open {
        Some(directory) => directory,
        None => state_dir::open(path)?.ok_or_else(|| state_dir::in_use(path))?,
    };
    let settings = settings(config, &Fixed::new(config));
    Ok(Resumed::look(directory, &settings, now_ms()))
}

/// Continues the state that another process has sent. `Err`: why this is impossible.
pub fn passed(config: &Config, directory: StateDir, mut state: File) -> Result<Resumed, StateError> {
    // The other process wrote up to its end.
    state
        .rewind()
        .map_err(|error| StateError::Unreadable(error.to_string()))?;
    let settings = settings(config, &Fixed::new(config));
    Resumed::passed(directory, Arc::new(state), &settings, now_ms())
}

/// The tally of this process.
pub fn tally(resumed: &mut Resumed, config: &Config, fixed: &Fixed) -> (LifeSettings, Option<Arc<Tally>>) {
    let life = settings(config, fixed);
    let tally = resumed.tally(life.workers, now_ms());
    (life, tally)
}

/// The way of each worker to the thread that writes checkpoints.
pub fn checkpoints(resumed: &mut Resumed, life: &LifeSettings, budget: &Budget) -> Vec<CheckpointLink> {
    resumed.checkpoints(life, budget.of_worker(Share::OpenBucket), write_checkpoints)
}

fn write_checkpoints(mut writer: CheckpointWriter) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("checkpoints".into());
    let thread = thread.spawn(move || {
        weir_system::sys::let_workers_go_first();
        writer.run();
    });
    thread.map(drop)
}

/// The process's identity as a publisher. Without a state directory each start has a new one.
pub fn publisher(resumed: &Resumed) -> Result<AgentIdentity, Failure> {
    let monotonic_zero = || {
        let now = now_ms() as i128 * 1_000_000;
        (now - i128::from(Monotonic::now().0)) as i64
    };
    let (id, epoch) = match resumed.identity() {
        Some(known) => known,
        None => {
            let id = state_dir::random().map_err(|error| Failure::runtime(error.to_string()))?;
            (id, now_ms().max(0) as u64 / 1000)
        }
    };
    Ok(AgentIdentity {
        id,
        epoch,
        is_kept: resumed.identity().is_some(),
        monotonic_zero,
    })
}

/// Unix milliseconds.
pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}
