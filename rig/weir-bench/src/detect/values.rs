//! From the record of one run to one number per goal, and to the proof that the numbers mean anything.
//!
//! Everything here is recomputed from stored files, so that `analyze` can be repeated with other rules.

use super::capture::{Capture, Phase, read_events};
use super::goal::Goal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use weir_regress::describe;

/// How old what a target says of itself may be, in nanoseconds: a publication every second, and some delay.
const TELEMETRY_AGE: u64 = 1_200_000_000;

/// What the analysis must know about an experiment; stored in `run.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    pub min_target_share: Option<f64>,
    pub generator_headroom: f64,
    pub overload: bool,
    pub idle: bool,
    pub max_steal: f64,
    pub max_foreign_cpu: f64,
    /// The load arrives over UDP, which never pushes back.
    pub udp: bool,
    pub all_out: bool,
    /// Both arms of a pair ran at the same time.
    pub together: bool,
    pub checks: Vec<CheckRule>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckRule {
    pub name: String,
    pub series: String,
    /// `max`, `min`, `mean` or `last`.
    pub stat: String,
    pub upper: Option<f64>,
    pub lower: Option<f64>,
}

/// Messages sent, refused, dropped and delivered. `None` where nobody counted.
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
    /// Messages whose loss neither the kernel nor the target accounts for.
    pub unexplained: Option<f64>,
}

/// One run, judged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub values: BTreeMap<Goal, f64>,
    /// Why the numbers of this run must not be used; empty for a valid run.
    pub invalid: Vec<String>,
    /// The machine was not quiet: another attempt may succeed.
    pub disturbed: Vec<String>,
    /// Worth knowing, no reason to throw the run away.
    pub notes: Vec<String>,
    pub books: Books,
    pub checks: Vec<CheckOutcome>,
    /// Share of sending time the target pushed back.
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

/// Series recorded of the target, as the observer names them.
pub const TARGET_SERIES: [&str; 18] = [
    "cpu_ns",
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
    "udp_drops",
];

/// Names that a bounds check may use.
pub fn check_series() -> Vec<&'static str> {
    let mut names = TARGET_SERIES.to_vec();
    names.extend(["cpu_millicores", "lost_messages", "delivered_share"]);
    names
}

/// What the generator reported, from its manifest; fields it did not write are absent.
#[derive(Debug, Default)]
struct Sent {
    messages: f64,
    packets: f64,
    bytes: f64,
    refused: f64,
    elapsed: f64,
    blocked: Option<f64>,
    scheduled: f64,
    achieved: f64,
    verdict: String,
    digest: String,
}

/// What the sink reported.
#[derive(Debug, Default)]
struct Received {
    messages: Option<f64>,
    bytes: f64,
    server_errors: f64,
    mismatches: Option<f64>,
    latencies: Vec<f64>,
    busy: bool,
}

fn json(path: &Path) -> Option<serde_json::Value> {
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

/// `name.json`, `name-1.json`, ...: one file per load or sink.
fn numbered(folder: &Path, name: &str) -> Vec<serde_json::Value> {
    (0..)
        .map(|i| {
            if i == 0 {
                format!("{name}.json")
            } else {
                format!("{name}-{i}.json")
            }
        })
        .map_while(|f| json(&folder.join(f)))
        .collect()
}

fn at(value: &serde_json::Value, pointer: &str) -> Option<f64> {
    let v = value.pointer(pointer)?;
    v.as_f64().or_else(|| v.as_str()?.parse().ok())
}

fn sent(manifests: &[serde_json::Value]) -> Sent {
    let mut all = Sent::default();
    for m in manifests {
        all.messages += at(m, "/totals/messages").unwrap_or(0.0);
        all.packets += at(m, "/totals/packets").unwrap_or(0.0);
        all.bytes += at(m, "/totals/bytes").unwrap_or(0.0);
        all.refused += at(m, "/sending/refused_messages").unwrap_or(0.0);
        all.elapsed = all.elapsed.max(at(m, "/sending/elapsed_s").unwrap_or(0.0));
        if let Some(blocked) = at(m, "/sending/blocked_s") {
            *all.blocked.get_or_insert(0.0) += blocked;
        }
        all.scheduled += at(m, "/sending/scheduled").unwrap_or(0.0);
        all.achieved += at(m, "/sending/achieved").unwrap_or(0.0);
        let text = |p: &str| {
            m.pointer(p)
                .and_then(|v| v.as_str())
                .unwrap_or_default()
                .to_owned()
        };
        let verdict = text("/sending/verdict");
        // With several loads the least trustworthy one speaks for all.
        if all.verdict.is_empty() || verdict == "generator-limited" {
            all.verdict = verdict;
        }
        if !all.digest.is_empty() {
            all.digest.push('+');
        }
        all.digest.push_str(&text("/digest"));
    }
    all
}

fn received(reports: &[serde_json::Value], manifests: &[serde_json::Value]) -> Received {
    let mut all = Received::default();
    let sent_at: BTreeMap<u64, u64> = manifests
        .iter()
        .filter_map(|m| m.pointer("/sending/markers")?.as_array())
        .flatten()
        .filter_map(|m| Some((m.get("seq")?.as_u64()?, m.get("sent_unix_ns")?.as_u64()?)))
        .collect();
    for r in reports {
        if let Some(messages) = at(r, "/delivered_messages") {
            *all.messages.get_or_insert(0.0) += messages;
        }
        all.bytes += at(r, "/received_bytes").unwrap_or(0.0);
        all.server_errors += at(r, "/errors_answered").unwrap_or(0.0);
        if let Some(wrong) = at(r, "/mismatches") {
            *all.mismatches.get_or_insert(0.0) += wrong;
        }
        all.busy |= r
            .pointer("/accept_queue_overflowed")
            .and_then(|v| v.as_bool())
            .unwrap_or(false);
        for marker in r
            .pointer("/markers")
            .and_then(|v| v.as_array())
            .into_iter()
            .flatten()
        {
            let (Some(seq), Some(arrived)) = (
                marker.get("seq").and_then(|v| v.as_u64()),
                marker.get("received_unix_ns").and_then(|v| v.as_u64()),
            ) else {
                continue;
            };
            if let Some(left) = sent_at.get(&seq) {
                all.latencies.push(arrived.saturating_sub(*left) as f64 / 1e9);
            }
        }
    }
    all
}

/// Seconds from sending to arrival of every marker that arrived.
pub fn latencies(folder: &Path) -> Vec<f64> {
    received(&numbered(folder, "sink"), &numbered(folder, "manifest")).latencies
}

/// Reads the files of one run and judges it.
pub fn measure(folder: &Path, rules: &Rules) -> Measured {
    let mut out = Measured::default();
    let events = read_events(folder);
    for event in events.iter().filter(|e| e.event == "invalid") {
        out.invalid.push(event.detail.clone());
    }
    for event in events.iter().filter(|e| e.event == "note") {
        out.notes.push(event.detail.clone());
    }
    let capture = match Capture::read(folder) {
        Ok(c) => c,
        Err(e) => {
            if out.invalid.is_empty() {
                out.invalid.push(format!("no capture: {e}"));
            }
            return out;
        }
    };
    // A folder that was copied or renamed by hand must not become evidence for something else.
    if folder
        .parent()
        .and_then(|p| p.file_name())
        .is_some_and(|arm| arm != capture.header.arm.as_str())
    {
        out.invalid.push(format!(
            "the capture says that it is of the arm {:?}",
            capture.header.arm
        ));
    }
    if capture.truncated {
        out.invalid.push("the capture ends early".to_owned());
    }
    let manifests = numbered(folder, "manifest");
    let sent = sent(&manifests);
    let sink_reports = numbered(folder, "sink");
    let received = received(&sink_reports, &manifests);

    books(&mut out, &capture, &sent, &received, rules);
    goals(&mut out, &capture, &sent, &received, rules);
    if let Some(ready) = events.iter().find(|e| e.event == "ready") {
        let started = events.iter().find(|e| e.event == "exec").map_or(0, |e| e.t);
        out.values.insert(Goal::Startup, (ready.t - started) as f64 / 1e9);
    }
    proofs(&mut out, &capture, &sent, &received, rules);
    guard(&mut out, &capture, rules);
    out.checks = rules.checks.iter().map(|c| check(c, &capture, &out)).collect();
    out.generator_verdict = sent.verdict;
    out.payload_digest = sent.digest;
    out
}

fn books(out: &mut Measured, capture: &Capture, sent: &Sent, received: &Received, rules: &Rules) {
    let last = |src: &str, name: &str| {
        let s = capture.series(src, name);
        Some(s.last()?.v - s.first()?.v)
    };
    let books = &mut out.books;
    books.sent = sent.messages;
    books.refused = sent.refused;
    books.delivered = received.messages;
    books.kernel_dropped_packets = last("target", "udp_drops").filter(|_| rules.udp);
    books.target_dropped = last("telemetry", "dropped");
    books.target_parsed = last("telemetry", "parsed_messages");
    if let Some(delivered) = books.delivered {
        // What was refused never left the generator and is not part of what it counts as sent.
        let lost = sent.messages - delivered;
        books.lost = Some(lost);
        let per_packet = if sent.packets > 0.0 {
            sent.messages / sent.packets
        } else {
            0.0
        };
        let explained =
            books.kernel_dropped_packets.unwrap_or(0.0) * per_packet + books.target_dropped.unwrap_or(0.0);
        books.unexplained = Some(lost - explained);
    }
}

fn goals(out: &mut Measured, capture: &Capture, sent: &Sent, received: &Received, rules: &Rules) {
    let mut put = |goal: Goal, v: Option<f64>| {
        if let Some(v) = v.filter(|v| v.is_finite()) {
            out.values.insert(goal, v);
        }
    };
    let share = out
        .books
        .delivered
        .filter(|_| sent.messages > 0.0)
        .map(|d| (d / sent.messages).min(1.0));
    // Readings of the generator over the window; a generator without readings is taken at its average.
    let average = |total: f64| (sent.elapsed > 0.0).then(|| total / sent.elapsed);
    let messages = capture
        .rate("generator", "sent_messages")
        .or_else(|| average(sent.messages));
    let bytes = capture
        .rate("generator", "sent_bytes")
        .or_else(|| average(sent.bytes));
    // Only what pushes back proves by being written that it was taken.
    let taken = if rules.udp { share } else { Some(1.0) };
    if !rules.idle {
        put(Goal::IngressThroughput, bytes.zip(taken).map(|(b, s)| b * s));
        put(
            Goal::IngressMessages,
            messages.zip(share.or(taken)).map(|(m, s)| m * s),
        );
        put(Goal::Loss, share.map(|s| 1.0 - s));
    }
    if received.bytes > 0.0 {
        put(
            Goal::EgressThroughput,
            average(received.bytes).or_else(|| {
                let life = capture.series("target", "cpu_ns").last().map(|p| p.seconds())?;
                Some(received.bytes / life)
            }),
        );
    }
    let cpu = capture.rate("target", "cpu_ns");
    put(Goal::Cpu, cpu.map(|c| c / 1e6));
    let delivered_rate = messages
        .map(|m| m * share.unwrap_or(1.0))
        .filter(|m| *m > 0.0 && !rules.idle);
    put(Goal::CpuPerMessage, cpu.zip(delivered_rate).map(|(c, m)| c / m));
    let switches = ["ctx_voluntary", "ctx_involuntary"]
        .iter()
        .filter_map(|n| capture.rate("target", n))
        .sum::<f64>();
    put(
        Goal::ContextSwitches,
        delivered_rate.map(|m| 1000.0 * switches / m),
    );
    let average_of = |name: &str| {
        let values = capture.values("target", name, &[Phase::Measure]);
        (!values.is_empty()).then(|| describe::mean(&values))
    };
    put(
        Goal::Memory,
        average_of("pss_bytes").or_else(|| average_of("rss_bytes")),
    );
    put(Goal::Rss, average_of("rss_bytes"));
    put(Goal::PageFaults, capture.rate("target", "minflt"));
    let all = [Phase::Start, Phase::Warmup, Phase::Measure, Phase::Drain];
    let most = |name: &str| capture.values("target", name, &all).into_iter().reduce(f64::max);
    put(Goal::MemoryPeak, most("hwm_bytes").or_else(|| most("rss_bytes")));
    if received.latencies.len() >= 2 {
        put(
            Goal::LatencyP99,
            Some(describe::quantile(&received.latencies, 0.99)),
        );
    }
    let readings: Vec<f64> = capture
        .window("target", "cpu_ns")
        .windows(2)
        .filter(|w| w[1].t > w[0].t)
        .map(|w| (w[1].v - w[0].v) / (w[1].t - w[0].t) as f64)
        .collect();
    out.cpu_cv_within = describe::variation(&readings).map(|v| v.cv);
    out.cpu_lag1 = (readings.len() >= 3).then(|| describe::lag1(&readings));
}

/// Section by section: did the load cross the target, could the generator have sent more, did the sink keep up, and is
/// what arrived what was sent?
fn proofs(out: &mut Measured, capture: &Capture, sent: &Sent, received: &Received, rules: &Rules) {
    if capture.window("target", "cpu_ns").len() < 2 {
        out.invalid
            .push("fewer than two observations in the window".to_owned());
        return;
    }
    if rules.idle {
        return;
    }
    if sent.messages == 0.0 {
        out.invalid.push("the generator sent nothing".to_owned());
        return;
    }
    let cpu = out.values.get(&Goal::Cpu).copied().unwrap_or(0.0);
    let share = out.books.delivered.map(|d| d / sent.messages);
    match (rules.overload, rules.min_target_share, share) {
        (true, _, share) if cpu <= 0.0 || share.is_some_and(|s| s <= 0.0) => {
            out.invalid.push("overload, but the target did no work: it used no CPU or delivered nothing".to_owned());
        }
        (false, Some(least), Some(share)) if share < least => out.invalid.push(format!(
            "only {:.2} % of what was sent was delivered, {:.2} % are required: the load does not cross the target, or the \
             target loses it{}",
            100.0 * share,
            100.0 * least,
            if rules.together {
                " (with the other arm on the same core; measure.together: false gives each the core for itself)"
            } else {
                ""
            }
        )),
        (false, Some(_), None) => {
            out.invalid.push("no sink counted what was delivered, so nothing shows that the load crosses the target".to_owned());
        }
        _ => {}
    }
    // What may be missing may also be too much: agents round sampled counts, each in its own way.
    let most = 1.0 + (1.0 - rules.min_target_share.unwrap_or(1.0)).max(0.001);
    if share.is_some_and(|s| s > most) {
        out.invalid.push(format!(
            "{:.2} % of what was sent was delivered: something else writes to the sink",
            100.0 * share.unwrap_or(0.0)
        ));
    }
    // The target's own counters are never evidence that all is well, but they can show that nothing arrived. They may be a
    // second old, and nothing is read after the target was stopped: what was sent later than that is not expected; nor is
    // what was sent before the first reading, which is late where the target was not ready for it at once.
    let sending: Vec<u64> = capture
        .series("target", "cpu_ns")
        .iter()
        .filter(|p| matches!(p.phase, Phase::Warmup | Phase::Measure))
        .map(|p| p.t)
        .collect();
    let (begin, end) = (
        sending.first().copied().unwrap_or(0),
        sending.last().copied().unwrap_or(0),
    );
    let known = |first: u64, last: u64| match end.saturating_sub(begin) {
        0 => 0.0,
        whole => {
            let (from, to) = (
                first.clamp(begin, end),
                last.saturating_sub(TELEMETRY_AGE).clamp(begin, end),
            );
            to.saturating_sub(from) as f64 / whole as f64
        }
    };
    for (name, expected) in [
        ("parsed_messages", sent.messages),
        ("received_packets", sent.packets),
    ] {
        let series = capture.series("telemetry", name);
        if let (Some(first), Some(last)) = (series.first(), series.last())
            && series.len() > 1
            && !rules.overload
            && last.v - first.v < 0.5 * expected * known(first.t, last.t)
        {
            out.invalid.push(format!(
                "the target's own {name} rose by {:.0} while {expected:.0} were sent: the load does not cross the target",
                last.v - first.v
            ));
            break;
        }
    }
    // A target that sleeps through the load never saw it, whatever arrived at the sink.
    if cpu <= 0.0 {
        out.invalid
            .push("the target used no CPU while the load was sent".to_owned());
    }
    out.blocked_share = sent
        .blocked
        .filter(|_| sent.elapsed > 0.0)
        .map(|b| b / sent.elapsed);
    if sent.verdict == "generator-limited" {
        out.invalid
            .push("generator-limited: the generator and not the target set the rate".to_owned());
    } else if sent.verdict == "host-limited" {
        out.disturbed
            .push("host-limited: the generator was not given its core".to_owned());
    } else if !rules.all_out && sent.scheduled > 0.0 && sent.achieved < 0.99 * sent.scheduled {
        let pushed_back = sent.verdict == "target-limited" || out.blocked_share.is_some_and(|b| b > 0.01);
        if !pushed_back {
            out.invalid.push(format!(
                "the generator achieved {:.1} % of its schedule although nothing pushed back",
                100.0 * sent.achieved / sent.scheduled
            ));
        }
    }
    if received.server_errors > 0.0 {
        out.invalid.push(format!(
            "the sink answered {} requests with an error",
            received.server_errors
        ));
    }
    if received.busy {
        out.invalid.push("the sink's accept queue was full".to_owned());
    }
    if let Some(share) = capture.rate("sink", "cpu_ns").map(|c| c / 1e9)
        && share > 0.7
    {
        out.invalid.push(format!(
            "the sink used {:.0} % of its core, 70 % are allowed",
            100.0 * share
        ));
    }
    if let Some(wrong) = received.mismatches.filter(|w| *w > 0.0)
        && !rules.overload
    {
        out.invalid.push(format!(
            "{wrong} contexts or totals at the sink differ from what was sent"
        ));
    }
}

/// Was the machine quiet enough? Both arms are judged by the same rule, before anybody looks at the goal.
fn guard(out: &mut Measured, capture: &Capture, rules: &Rules) {
    out.foreign_cpu = capture.rate("host", "foreign_cpu_ns").map(|v| (v / 1e9).max(0.0));
    out.steal = capture.rate("host", "steal_ns").map(|v| v / 1e9);
    out.pressure = capture.rate("host", "psi_some_ns").map(|v| v / 1e9);
    if let Some(foreign) = out.foreign_cpu.filter(|f| *f > rules.max_foreign_cpu) {
        out.disturbed.push(format!(
            "other programs used {:.1} % of a core, {:.1} % are allowed",
            100.0 * foreign,
            100.0 * rules.max_foreign_cpu
        ));
    }
    if let Some(steal) = out.steal.filter(|s| *s > rules.max_steal) {
        out.disturbed
            .push(format!("the host took {:.1} % of a core away", 100.0 * steal));
    }
}

fn check(rule: &CheckRule, capture: &Capture, out: &Measured) -> CheckOutcome {
    let value = match rule.series.as_str() {
        "cpu_millicores" => {
            let rates: Vec<f64> = capture
                .window("target", "cpu_ns")
                .windows(2)
                .filter(|w| w[1].t > w[0].t)
                .map(|w| 1000.0 * (w[1].v - w[0].v) / (w[1].t - w[0].t) as f64)
                .collect();
            stat(&rule.stat, &rates)
        }
        "lost_messages" => out.books.lost,
        "delivered_share" => out
            .books
            .delivered
            .filter(|_| out.books.sent > 0.0)
            .map(|d| d / out.books.sent),
        name => {
            // Bounds hold from the first moment: a customer's memory limit does not wait for a warm-up.
            let all = [Phase::Start, Phase::Warmup, Phase::Measure, Phase::Drain];
            stat(&rule.stat, &capture.values("target", name, &all))
        }
    };
    let passed =
        value.is_some_and(|v| rule.upper.is_none_or(|u| v <= u) && rule.lower.is_none_or(|l| v >= l));
    CheckOutcome {
        name: rule.name.clone(),
        value,
        passed,
    }
}

fn stat(name: &str, values: &[f64]) -> Option<f64> {
    match name {
        "max" => values.iter().copied().reduce(f64::max),
        "min" => values.iter().copied().reduce(f64::min),
        "last" => values.last().copied(),
        _ => (!values.is_empty()).then(|| describe::mean(values)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::capture::{Header, VERSION, Writer};

    pub fn rules() -> Rules {
        Rules {
            min_target_share: Some(0.99),
            generator_headroom: 1.5,
            overload: false,
            idle: false,
            max_steal: 0.02,
            max_foreign_cpu: 0.03,
            udp: false,
            all_out: false,
            together: false,
            checks: Vec::new(),
        }
    }

    struct Fake {
        cpu_per_second: f64,
        delivered: f64,
        foreign: f64,
        scheduled: f64,
        verdict: &'static str,
        udp_drops: f64,
        /// Seconds at which the target was asked what it had parsed, and what it said.
        parsed: &'static [(u64, f64)],
    }

    const GOOD: Fake = Fake {
        cpu_per_second: 2e8,
        delivered: 40_000.0,
        foreign: 0.0,
        scheduled: 40_000.0,
        verdict: "on-schedule",
        udp_drops: 0.0,
        parsed: &[],
    };

    fn run(fake: &Fake, rules: &Rules) -> Measured {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("baseline").join("00");
        std::fs::create_dir_all(&dir).unwrap();
        let header = Header {
            v: VERSION,
            run: "r".into(),
            exp: "e".into(),
            arm: "baseline".into(),
            rep: 0,
            pair: 0,
            order: "BC".into(),
            seed: "1".into(),
            bin_sha256: String::new(),
            started_unix_ns: 0,
            host: BTreeMap::new(),
        };
        let mut w = Writer::create(&dir.join("capture.jsonl.zst"), &header).unwrap();
        for i in 0..=40_u64 {
            let (t, s) = (i * 1_000_000_000, i as f64);
            let phase = if i < 10 { Phase::Warmup } else { Phase::Measure };
            w.add(t, phase, "target", "cpu_ns", true, s * fake.cpu_per_second)
                .unwrap();
            w.add(t, phase, "target", "rss_bytes", false, 1e6 + 1e4 * s)
                .unwrap();
            w.add(t, phase, "target", "udp_drops", true, fake.udp_drops * s / 40.0)
                .unwrap();
            w.add(t, phase, "generator", "sent_messages", true, s * 1000.0)
                .unwrap();
            w.add(t, phase, "generator", "sent_bytes", true, s * 150_000.0)
                .unwrap();
            w.add(t, phase, "host", "foreign_cpu_ns", true, s * fake.foreign * 1e9)
                .unwrap();
        }
        for (second, said) in fake.parsed {
            let t = second * 1_000_000_000;
            w.add(t, Phase::Measure, "telemetry", "parsed_messages", true, *said)
                .unwrap();
        }
        w.finish().unwrap();
        let manifest = serde_json::json!({
            "totals": {"messages": 40_000, "packets": 4_000, "bytes": 6_000_000},
            "digest": "d", "sending": {"elapsed_s": 40.0, "scheduled": fake.scheduled, "achieved": 40_000, "blocked_s": 0.0,
            "verdict": fake.verdict, "markers": [{"seq": 1, "sent_unix_ns": 1_000}, {"seq": 2, "sent_unix_ns": 2_000}]}});
        std::fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
        let sink = serde_json::json!({"delivered_messages": fake.delivered, "received_bytes": 80_000, "markers": [
            {"seq": 1, "received_unix_ns": 1_000_001_000_u64}, {"seq": 2, "received_unix_ns": 1_000_002_000_u64}]});
        std::fs::write(dir.join("sink.json"), sink.to_string()).unwrap();
        measure(&dir, rules)
    }

    #[test]
    fn numbers_of_a_good_run() {
        let m = run(&GOOD, &rules());
        assert!(m.is_valid(), "{m:?}");
        let v = |g: Goal| m.values[&g];
        assert!((v(Goal::Cpu) - 200.0).abs() < 1e-9);
        assert!((v(Goal::CpuPerMessage) - 2e5).abs() < 1e-6);
        assert!((v(Goal::IngressThroughput) - 150_000.0).abs() < 1e-6);
        assert!((v(Goal::IngressMessages) - 1000.0).abs() < 1e-9);
        assert!((v(Goal::EgressThroughput) - 2000.0).abs() < 1e-9);
        assert!((v(Goal::LatencyP99) - 1.0).abs() < 1e-9);
        assert_eq!(v(Goal::Loss), 0.0);
        // Memory without PSS falls back to RSS, averaged over the window only.
        assert!((v(Goal::Memory) - (1e6 + 1e4 * 25.0)).abs() < 1e-6);
    }

    fn invalid(fake: Fake, rules: &Rules, why: &str) {
        let m = run(&fake, rules);
        assert!(
            m.invalid.iter().any(|r| r.contains(why)),
            "expected {why:?} in {:?}",
            m.invalid
        );
    }

    #[test]
    fn a_load_that_bypasses_the_target_is_invalid() {
        // The generator aims at the sink: everything arrives, but the target slept. Or nothing arrives at the sink.
        invalid(
            Fake {
                cpu_per_second: 0.0,
                ..GOOD
            },
            &rules(),
            "used no CPU",
        );
        invalid(
            Fake {
                delivered: 0.0,
                ..GOOD
            },
            &rules(),
            "does not cross the target",
        );
        invalid(
            Fake {
                delivered: 80_000.0,
                ..GOOD
            },
            &rules(),
            "something else writes to the sink",
        );
    }

    #[test]
    fn a_target_that_says_it_saw_little_is_believed() {
        let saw_little = "the target's own parsed_messages rose by 1000 while 40000 were sent";
        let parsed = |parsed| Fake { parsed, ..GOOD };
        invalid(parsed(&[(0, 0.0), (40, 1_000.0)]), &rules(), saw_little);
        // Not where the first reading came late or the last early: it saw the rest before and after.
        for readings in [
            &[(38, 38_000.0), (40, 39_000.0)],
            &[(0, 0.0), (2, 1_000.0)],
            &[(0, 0.0), (40, 39_000.0)],
        ] {
            let m = run(&parsed(readings), &rules());
            assert!(m.is_valid(), "{readings:?}: {:?}", m.invalid);
        }
    }

    #[test]
    fn a_generator_that_cannot_follow_its_schedule_is_invalid() {
        invalid(
            Fake {
                verdict: "generator-limited",
                ..GOOD
            },
            &rules(),
            "generator-limited",
        );
        invalid(
            Fake {
                scheduled: 50_000.0,
                ..GOOD
            },
            &rules(),
            "80.0 % of its schedule",
        );
        let m = run(
            &Fake {
                scheduled: 50_000.0,
                verdict: "target-limited",
                ..GOOD
            },
            &rules(),
        );
        assert!(
            m.is_valid(),
            "a target that pushes back explains the shortfall: {m:?}"
        );
    }

    #[test]
    fn a_busy_machine_asks_for_another_attempt() {
        let m = run(&Fake { foreign: 0.2, ..GOOD }, &rules());
        assert!(
            m.invalid.is_empty() && m.disturbed[0].contains("20.0 % of a core"),
            "{m:?}"
        );
    }

    #[test]
    fn udp_throughput_is_what_arrived_and_drops_explain_the_loss() {
        let overload = Rules {
            udp: true,
            overload: true,
            min_target_share: None,
            ..rules()
        };
        let m = run(
            &Fake {
                delivered: 30_000.0,
                udp_drops: 1000.0,
                ..GOOD
            },
            &overload,
        );
        assert!(m.is_valid(), "{m:?}");
        assert!((m.values[&Goal::IngressThroughput] - 112_500.0).abs() < 1e-6);
        assert!((m.values[&Goal::Loss] - 0.25).abs() < 1e-12);
        assert_eq!(m.books.unexplained, Some(0.0));
    }

    #[test]
    fn checks_look_at_the_whole_life() {
        let limit = |series: &str, stat: &str, upper: f64| CheckRule {
            name: "c".into(),
            series: series.into(),
            stat: stat.into(),
            upper: Some(upper),
            lower: None,
        };
        let rules = Rules {
            checks: vec![
                limit("rss_bytes", "max", 1.4e6),
                limit("rss_bytes", "max", 1.39e6),
                limit("cpu_millicores", "mean", 200.5),
                limit("lost_messages", "last", 0.0),
                limit("pss_bytes", "max", 1e9),
            ],
            ..rules()
        };
        let passed: Vec<bool> = run(&GOOD, &rules).checks.iter().map(|c| c.passed).collect();
        assert_eq!(
            passed,
            [true, false, true, true, false],
            "a series nobody recorded does not pass"
        );
    }
}
