//! Settings of the standard output.

use serde::Deserialize;

use super::{OutputSettings, OutputType, from_values};

/// One JSON object per point and line. There is nothing to set.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StdoutSettings {}

pub(super) const TYPE: OutputType = OutputType {
    name: "stdout",
    summary: "Prints one JSON object per point and line on standard output, for people and for pipes.",
    on_by_default: false,
    settings: &[],
    environment: &[],
    load: |values| Ok(OutputSettings::Stdout(from_values(values)?)),
};
