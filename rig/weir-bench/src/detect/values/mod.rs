//! Computes one number per goal from the record of one run, and checks that the numbers are valid.
//!
//! Everything is recomputed from stored files, so `analyze` can be repeated with other rules.

mod goals;
mod proofs;
mod reported;
mod span;

pub use reported::latencies;

use super::capture::{self, Capture, Phase, read_events};
use super::goal::Goal;
use reported::{GeneratorReport, Received};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weir_regress::describe;

/// The facts about an experiment for the analysis; stored in `run.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    pub min_target_share: Option<f64>,
    pub generator_headroom: f64,
    pub overload: bool,
    pub idle: bool,
    pub max_steal: f64,
    pub max_foreign_cpu: f64,
    /// More than that is recorded and accepted.
    #[serde(default)]
    pub busy_accepted: bool,
    /// The load arrives over UDP, which never pushes back.
    pub udp: bool,
    pub all_out: bool,
    /// Both arms of a pair were concurrent.
    pub together: bool,
    pub checks: Vec<CheckRule>,
}

/// A bound that a series of the target must keep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckRule {
    pub name: String,
    pub series: String,
    pub stat: Stat,
    pub upper: Option<f64>,
    pub lower: Option<f64>,
}

/// The statistic of a series that a bound limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stat {
    Max,
    Min,
    Mean,
    Last,
}

impl Stat {
    fn of(self, values: &[f64]) -> Option<f64> {
        match self {
            Stat::Max => values.iter().copied().reduce(f64::max),
            Stat::Min => values.iter().copied().reduce(f64::min),
            Stat::Last => values.last().copied(),
            Stat::Mean => (!values.is_empty()).then(|| describe::mean(values)),
        }
    }
}

/// Messages sent, refused, dropped and delivered. `None` if not counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Books {
    pub sent: f64,
    pub refused: f64,
    pub delivered: Option<f64>,
    pub lost: Option<f64>,
    /// Datagrams; the kernel does not know messages.
    pub kernel_dropped_packets: Option<f64>,
    pub target_dropped: Option<f64>,
    pub target_parsed: Option<f64>,
    /// Lost messages for which neither the kernel nor the target accounts.
    pub unexplained: Option<f64>,
}

/// One run, judged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub values: BTreeMap<Goal, f64>,
    /// Why the numbers of this run must not be used; empty for a valid run.
    pub invalid: Vec<String>,
    /// Disturbances by the machine: another attempt may succeed.
    pub disturbed: Vec<String>,
    /// The same, accepted by the user.
    #[serde(default)]
    pub accepted: Vec<String>,
    /// Remarks that do not invalidate the run.
    pub notes: Vec<String>,
    /// Why nothing shows that the target accepted the load; `None` if something does.
    #[serde(default)]
    pub unproven: Option<String>,
    /// Work waited in the target's sockets when the window began or ended.
    #[serde(default)]
    pub is_behind: bool,
    pub books: Books,
    pub checks: Vec<CheckOutcome>,
    /// Share of the sending time in which the target pushed back.
    pub blocked_share: Option<f64>,
    pub generator_verdict: String,
    pub payload_digest: String,
    /// Foreign CPU, steal and pressure during the window, as shares of one core.
    pub foreign_cpu: Option<f64>,
    pub steal: Option<f64>,
    pub pressure: Option<f64>,
    /// Diagnostics of the readings inside the run, never inputs of a test.
    pub cpu_cv_within: Option<f64>,
    pub cpu_lag1: Option<f64>,
}

impl Measured {
    pub fn is_valid(&self) -> bool {
        self.invalid.is_empty() && self.disturbed.is_empty()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckOutcome {
    pub name: String,
    /// `None` when the series was not recorded.
    pub value: Option<f64>,
    pub passed: bool,
}

/// Series recorded of the target, under the observer's names.
pub const TARGET_SERIES: [&str; 20] = [
    "cpu_ns",
    "instructions",
    "run_delay_ns",
    "user_ticks",
    "system_ticks",
    "minflt",
    "majflt",
    "threads",
    "ctx_voluntary",
    "ctx_involuntary",
    "rss_bytes",
    "rss_anon_bytes",
    "rss_file_bytes",
    "hwm_bytes",
    "pss_bytes",
    "private_dirty_bytes",
    "fds",
    "udp_rx_queue_bytes",
    "tcp_rx_queue_bytes",
    "udp_drops",
];

/// The count of a target inside valgrind, read before and after the load.
pub const VALGRIND_INSTRUCTIONS: &str = "valgrind_instructions";

/// Series that a bounds check may use.
pub fn check_series() -> Vec<&'static str> {
    let mut names = TARGET_SERIES.to_vec();
    names.extend(["cpu_millicores", "lost_messages", "delivered_share"]);
    names
}

/// The time over which CPU is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    Window,
    /// From the first packet until nothing waits in the target's sockets.
    Load,
}

/// Measures both arms of a pair over the same span: the window, unless work waited at an end of it in either arm. Then that work would be
/// missing on one side or be counted for other messages.
pub fn measure_arms(folders: &[PathBuf; 2], rules: [&Rules; 2]) -> [Measured; 2] {
    let over = |span| [0, 1].map(|arm| measure_over(&folders[arm], rules[arm], span));
    let arms = over(Span::Window);
    match arms.iter().any(|m| m.is_behind) {
        true => over(Span::Load),
        false => arms,
    }
}

/// Reads the files of one run and judges it.
pub fn measure(folder: &Path, rules: &Rules) -> Measured {
    measure_over(folder, rules, Span::Window)
}

fn measure_over(folder: &Path, rules: &Rules, span: Span) -> Measured {
    let mut out = Measured::default();
    let events = read_events(folder);
    let details = |name: &str| {
        let such = events.iter().filter(|e| e.event == name);
        such.map(|e| e.detail.clone()).collect::<Vec<_>>()
    };
    out.invalid = details("invalid");
    out.notes = details("note");
    let capture = match Capture::read(folder) {
        Ok(c) => c,
        Err(e) => {
            if out.invalid.is_empty() {
                out.invalid.push(format!("no capture: {e}"));
            }
            return out;
        }
    };
    out.invalid.extend(record_errors(folder, &capture));
    let manifests = reported::numbered(folder, "manifest");
    let run = Run {
        sent: GeneratorReport::of(&manifests),
        received: Received::of(&reported::numbered(folder, "sink"), &manifests),
        capture,
        rules,
        span,
    };
    out.is_behind = run.is_behind();
    out.notes.extend(run.notes());
    out.books = run.books();
    goals::add(&mut out, &run);
    if let Some(ready) = events.iter().find(|e| e.event == "ready") {
        let started = events.iter().find(|e| e.event == "exec").map_or(0, |e| e.t);
        out.values.insert(Goal::Startup, (ready.t - started) as f64 / 1e9);
    }
    proofs::check(&mut out, &run);
    guard(&mut out, &run);
    out.checks = rules.checks.iter().map(|c| run.check(c, &out)).collect();
    if run.counted_by_valgrind().is_some() {
        out.values
            .retain(|goal, _| matches!(goal, Goal::InstructionsPerMessage | Goal::Loss));
    }
    out.generator_verdict = run.sent.verdict;
    out.payload_digest = run.sent.digest;
    out
}

/// Errors of the record itself.
fn record_errors(folder: &Path, capture: &Capture) -> Vec<String> {
    let mut errors = Vec::new();
    // A directory that was copied or renamed by hand must not become evidence for something else.
    let arm = folder.parent().and_then(|p| p.file_name());
    if arm.is_some_and(|arm| arm != capture.header.arm.as_str()) {
        let of = &capture.header.arm;
        errors.push(format!("the capture says that it is of the arm {of:?}"));
    }
    if capture.truncated {
        errors.push("the capture ends early".to_owned());
    }
    errors
}

/// The record of a run, and its rules.
struct Run<'a> {
    capture: Capture,
    sent: GeneratorReport,
    received: Received,
    rules: &'a Rules,
    span: Span,
}

impl Run<'_> {
    fn books(&self) -> Books {
        let (sent, capture) = (&self.sent, &self.capture);
        let risen = |src: &str, name: &str| {
            let s = capture.series(src, name);
            Some(s.last()?.v - s.first()?.v)
        };
        let mut books = Books {
            sent: sent.messages,
            refused: sent.refused,
            delivered: self.received.messages.or(sent.acknowledged),
            kernel_dropped_packets: risen("target", "udp_drops").filter(|_| self.rules.udp),
            target_dropped: risen("telemetry", "dropped"),
            target_parsed: risen("telemetry", "parsed_messages"),
            ..Books::default()
        };
        if let Some(delivered) = books.delivered {
            // Refused messages never left the generator and are not counted as sent.
            let lost = sent.messages - delivered;
            let per_packet = if sent.packets > 0.0 {
                sent.messages / sent.packets
            } else {
                0.0
            };
            let by_kernel = books.kernel_dropped_packets.unwrap_or(0.0) * per_packet;
            books.lost = Some(lost);
            books.unexplained = Some(lost - (by_kernel + books.target_dropped.unwrap_or(0.0)));
        }
        books
    }

    fn check(&self, rule: &CheckRule, out: &Measured) -> CheckOutcome {
        let value = match rule.series.as_str() {
            "cpu_millicores" => {
                let rates: Vec<f64> = self.cpu_shares().iter().map(|share| 1000.0 * share).collect();
                rule.stat.of(&rates)
            }
            "lost_messages" => out.books.lost,
            "delivered_share" => self.delivered_share(out),
            // Bounds hold from the first moment: a memory limit does not wait for a warm-up.
            name => rule.stat.of(&self.capture.values("target", name, &Phase::ALL)),
        };
        let keeps = |v: f64| rule.upper.is_none_or(|u| v <= u) && rule.lower.is_none_or(|l| v >= l);
        CheckOutcome {
            name: rule.name.clone(),
            value,
            passed: value.is_some_and(keeps),
        }
    }

    /// Share of a core between neighbouring readings of the window.
    fn cpu_shares(&self) -> Vec<f64> {
        capture::shares(&self.capture.window("target", "cpu_ns"))
    }

    fn delivered_share(&self, out: &Measured) -> Option<f64> {
        let delivered = out.books.delivered.filter(|_| self.sent.messages > 0.0);
        delivered.map(|d| d / self.sent.messages)
    }
}

/// Checks that the machine was quiet enough. Both arms are judged by the same rule, independently of the goal.
fn guard(out: &mut Measured, run: &Run) {
    let share = |name: &str| run.capture.rate("host", name).map(|v| v / 1e9);
    out.foreign_cpu = share("foreign_cpu_ns").map(|v| v.max(0.0));
    out.steal = share("steal_ns");
    out.pressure = share("psi_some_ns");
    let mut found = Vec::new();
    let allowed = run.rules.max_foreign_cpu;
    if let Some(foreign) = out.foreign_cpu.filter(|f| *f > allowed) {
        let (used, allowed) = (100.0 * foreign, 100.0 * allowed);
        let what = format!("other programs used {used:.1} % of a core, {allowed:.1} % are allowed");
        found.push(what);
    }
    if let Some(steal) = out.steal.filter(|s| *s > run.rules.max_steal) {
        found.push(format!("steal time was {:.1} % of a core", 100.0 * steal));
    }
    match run.rules.busy_accepted {
        true => out.accepted = found,
        false => out.disturbed.extend(found),
    }
}

#[cfg(test)]
mod tests;
