//! Delivery: encoders, payload limits, retry, queues, one module per output.
//!
//! No output can delay or fail another.

pub mod assemble;
pub mod compress;
pub mod datadog;
pub mod delivery;
pub mod http;
pub mod json_lines;
pub mod prometheus;
pub mod protobuf;
pub mod settings;

use std::sync::Arc;

use weir_aggregate::Expansion;

use delivery::{Delivery, Surroundings};
use settings::{OutputConfig, OutputSettings};

/// Starts an output that delivers over the network, on the current tokio runtime; `None` for the others. Fails with a
/// sentence that names the setting or the path.
///
/// Another output is a module with an [`delivery::Encode`] and a [`delivery::Transport`], its settings, a page in `docs/outputs` and
/// a line here.
pub fn start(
    config: &OutputConfig,
    expansion: &Arc<Expansion>,
    surroundings: &Surroundings,
) -> Option<Result<Delivery, String>> {
    match &config.settings {
        OutputSettings::Datadog(settings) => Some(datadog::start(
            &config.name,
            settings,
            expansion.clone(),
            surroundings,
        )),
        OutputSettings::Stdout(_) | OutputSettings::Prometheus(_) => None,
    }
}
