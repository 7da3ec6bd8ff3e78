//! The reports of generator and sinks; missing fields are absent.

use crate::detect::rig;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The generator's report, from its manifest.
#[derive(Debug, Default)]
pub struct GeneratorReport {
    pub messages: f64,
    pub packets: f64,
    pub bytes: f64,
    pub refused: f64,
    /// Messages that the target confirmed to the generator.
    pub acknowledged: Option<f64>,
    pub elapsed: f64,
    pub blocked: Option<f64>,
    pub scheduled: f64,
    pub achieved: f64,
    pub verdict: String,
    pub digest: String,
}

/// The sinks' reports.
#[derive(Debug, Default)]
pub struct Received {
    pub messages: Option<f64>,
    pub bytes: f64,
    pub server_errors: f64,
    pub mismatches: Option<f64>,
    pub latencies: Vec<f64>,
    pub busy: bool,
}

/// `name.json`, `name-1.json`, ...: one file per load or sink.
pub fn numbered(folder: &Path, name: &str) -> Vec<Value> {
    let json = |path: &Path| serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok();
    (0..)
        .map_while(|i| json(&rig::numbered(folder, name, i, "json")))
        .collect()
}

/// Seconds from sending to arrival of every marker that arrived.
pub fn latencies(folder: &Path) -> Vec<f64> {
    Received::of(&numbered(folder, "sink"), &numbered(folder, "manifest")).latencies
}

fn at(value: &Value, pointer: &str) -> Option<f64> {
    let v = value.pointer(pointer)?;
    v.as_f64().or_else(|| v.as_str()?.parse().ok())
}

fn text(value: &Value, pointer: &str) -> String {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

/// Sequence number and time of each marker.
fn markers<'a>(value: &'a Value, list: &str, time: &'a str) -> impl Iterator<Item = (u64, u64)> + 'a {
    let markers = value.pointer(list).and_then(Value::as_array);
    markers
        .into_iter()
        .flatten()
        .filter_map(move |m| Some((m.get("seq")?.as_u64()?, m.get(time)?.as_u64()?)))
}

impl GeneratorReport {
    pub fn of(manifests: &[Value]) -> GeneratorReport {
        let mut all = GeneratorReport::default();
        for m in manifests {
            let number = |pointer| at(m, pointer).unwrap_or(0.0);
            all.messages += number("/totals/messages");
            all.packets += number("/totals/packets");
            all.bytes += number("/totals/bytes");
            all.refused += number("/sending/refused_messages");
            all.elapsed = all.elapsed.max(number("/sending/elapsed_s"));
            if let Some(acknowledged) = at(m, "/totals/acknowledged") {
                *all.acknowledged.get_or_insert(0.0) += acknowledged;
            }
            if let Some(blocked) = at(m, "/sending/blocked_s") {
                *all.blocked.get_or_insert(0.0) += blocked;
            }
            all.scheduled += number("/sending/scheduled");
            all.achieved += number("/sending/achieved");
            let verdict = text(m, "/sending/verdict");
            // With several loads the least trustworthy verdict counts.
            if all.verdict.is_empty() || verdict == "generator-limited" {
                all.verdict = verdict;
            }
        }
        let digests: Vec<String> = manifests.iter().map(|m| text(m, "/digest")).collect();
        all.digest = digests.join("+");
        all
    }
}

impl Received {
    pub fn of(reports: &[Value], manifests: &[Value]) -> Received {
        let mut all = Received::default();
        let sent = manifests
            .iter()
            .flat_map(|m| markers(m, "/sending/markers", "sent_unix_ns"));
        let sent_at: BTreeMap<u64, u64> = sent.collect();
        for r in reports {
            if let Some(messages) = at(r, "/delivered_messages") {
                *all.messages.get_or_insert(0.0) += messages;
            }
            if let Some(wrong) = at(r, "/mismatches") {
                *all.mismatches.get_or_insert(0.0) += wrong;
            }
            all.bytes += at(r, "/received_bytes").unwrap_or(0.0);
            all.server_errors += at(r, "/errors_answered").unwrap_or(0.0);
            let busy = r.pointer("/accept_queue_overflowed").and_then(Value::as_bool);
            all.busy |= busy.unwrap_or(false);
            let arrived = markers(r, "/markers", "received_unix_ns");
            all.latencies.extend(arrived.filter_map(|(seq, arrived)| {
                let left = sent_at.get(&seq)?;
                Some(arrived.saturating_sub(*left) as f64 / 1e9)
            }));
        }
        all
    }
}
