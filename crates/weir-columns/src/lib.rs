//! Metrics as columns: the payload of Datadog's third metrics intake, `datadoghq.api.metrics.v3.Payload`.
//!
//! A payload has dictionaries (names, tags, tag sets, resources, origins), one entry per series in some columns, and one entry per point
//! or bin in others. This crate never compresses, never does I/O and never reads a clock.

pub mod decode;
pub mod wire;
