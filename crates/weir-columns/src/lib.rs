//! Metrics as columns: the payload of Datadog's third metrics intake, `datadoghq.api.metrics.v3.Payload`.
//!
//! A payload has dictionaries (names, tags, tag sets, resources, origins), one entry per series in some columns, and one entry per point
//! or bin in others. [`encode`] writes it, [`payload`] reads one of our own. This crate never compresses, never does I/O and never reads a clock.

mod dictionary;
pub mod encode;
pub mod payload;
pub mod wire;

pub use encode::{Encoder, Name, Origin, OriginRef, Resources, Row, SketchPoint, SourceType, TagSet, Unit};
pub use wire::{Column, MetricType, ValueType};
