//! Settings of outputs.
//!
//! An output is one module: its settings, declared with [`weir_config::settings!`], which know how to start it ([`Start`]), and its
//! [`OutputType`], which is listed in [`OUTPUT_TYPES`].

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use weir_aggregate::{Batch, Expansion};
use weir_config::{Files, Output, Typed};
pub use weir_config::{Secret, SettingProblem};

use crate::StartError;
use crate::delivery::{Delivery, OutputEnvironment};
use crate::probe::Destination;
use crate::relay::RelaySettings;

mod authorization;
mod datadog;
mod delivery;
mod prometheus;

pub use authorization::Authorization;
pub(crate) use datadog::URL;
pub use datadog::{Compression, DatadogSettings, EndpointFormat, PayloadForm, SeriesFormat, SketchesFormat};
pub use delivery::{DeliverySettings, QueueSettings};
pub use prometheus::{FormStyle, HistogramStyle, MetricForm, PrometheusSettings};

/// A kind of output.
pub type OutputType = weir_config::OutputType<OutputSettings>;

/// One output that is switched on.
pub type OutputConfig = weir_config::OutputConfig<OutputSettings>;

/// The settings of one output, resolved.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputSettings {
    /// Answers scrapes at the admin address.
    Prometheus(PrometheusSettings),
    /// Delivers batches.
    Delivered(BatchOutput),
    /// Passes lines on as they come, from the workers.
    Relay(RelaySettings),
}

/// Settings that start the output they are for.
pub trait Start: Any + fmt::Debug + Send + Sync {
    /// Starts it on the current tokio runtime.
    fn start(
        &self,
        name: &str,
        expansion: &Arc<Expansion>,
        environment: &OutputEnvironment,
    ) -> Result<Delivery, StartError>;

    /// The series that it makes of a batch which is a whole bucket, as the users of the receiver see them. Nothing is sent.
    fn preview(&self, batch: &Batch, expansion: &Arc<Expansion>) -> Vec<String>;

    /// Whether points contain everything since the start of their series.
    fn adds_up(&self) -> bool {
        false
    }

    /// Its destination, for [`crate::probe`]; `None` on this machine.
    fn destinations(&self) -> Result<Vec<Destination>, StartError> {
        Ok(Vec::new())
    }
}

impl OutputSettings {
    /// See [`Start::preview`]. `None`: it makes no series, but passes lines on as they are.
    pub fn preview(&self, batch: &Batch, expansion: &Arc<Expansion>) -> Option<Vec<String>> {
        match self {
            OutputSettings::Prometheus(settings) => {
                Some(crate::prometheus::preview(settings, expansion.weights(), batch))
            }
            OutputSettings::Delivered(output) => Some(output.preview(batch, expansion)),
            OutputSettings::Relay(_) => None,
        }
    }
}

/// The configuration of an output that delivers batches.
#[derive(Clone)]
pub struct BatchOutput {
    start: Arc<dyn Start>,
    same: fn(&dyn Any, &dyn Any) -> bool,
}

impl BatchOutput {
    /// Reads the settings and the files they name; `check` looks at those that depend on each other.
    pub fn read<'r, 'i, T: Start + Typed + PartialEq>(
        output: &mut Output<'r, 'i>,
        files: fn(&mut T, &mut Files<'_, 'r, 'i>),
        check: fn(&T) -> Result<(), SettingProblem>,
    ) -> Option<OutputSettings> {
        let start = Arc::new(output.read(files, check)?);
        let same = same::<T>;
        Some(OutputSettings::Delivered(Self { start, same }))
    }
}

fn same<T: PartialEq + 'static>(one: &dyn Any, other: &dyn Any) -> bool {
    let (one, other) = (one.downcast_ref::<T>(), other.downcast_ref::<T>());
    one.is_some() && one == other
}

impl PartialEq for BatchOutput {
    fn eq(&self, other: &Self) -> bool {
        (self.same)(&*self.start, &*other.start)
    }
}

impl fmt::Debug for BatchOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.start.fmt(f)
    }
}

impl std::ops::Deref for BatchOutput {
    type Target = dyn Start;

    fn deref(&self) -> &Self::Target {
        &*self.start
    }
}

/// Every kind of output there is.
pub const OUTPUT_TYPES: &[OutputType] = &[
    crate::stdout::TYPE,
    prometheus::TYPE,
    datadog::TYPE,
    crate::remote_write::TYPE,
    crate::otlp::TYPE,
    crate::file::TYPE,
    crate::graphite::TYPE,
    crate::influx::TYPE,
    crate::kafka::TYPE,
    crate::relay::TYPE,
];
