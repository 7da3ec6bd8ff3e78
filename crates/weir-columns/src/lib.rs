//! Metrics as columns: the payload of Datadog's third metrics intake, `datadoghq.api.metrics.v3.Payload`.
//!
//! A payload has dictionaries (names, tags, tag sets, resources, origins), one entry per series in some columns, and one entry per point
//! or bin in others. [`encode`] writes it, [`decode`] reads one of anybody, [`payload`] one of our own with all its fields. This crate never compresses, never does I/O and never reads a clock.

pub mod decode;
mod dictionary;
pub mod encode;
pub mod payload;
pub mod wire;

pub use encode::{Encoder, Name, Origin, OriginRef, Resources, Row, SketchPoint, SourceType, TagSet, Unit};
pub use wire::{Column, MetricType, ValueType};
