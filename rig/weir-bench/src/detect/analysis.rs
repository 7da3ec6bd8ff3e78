//! From stored runs to a report: pairs, estimates, verdicts. Nothing is printed here.

use super::capture::Capture;
use super::goal::{Goal, Unit};
use super::values::{self, Measured, Rules};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use weir_regress::adjust::benjamini_hochberg;
use weir_regress::calibration::{CalibrationState, calibrate};
use weir_regress::describe::{self, Variation};
use weir_regress::estimate::{self, Estimate};
use weir_regress::verdict::{self, Spread};
use weir_regress::{Direction, Rule, Verdict};

pub const SCHEMA: &str = "weir-bench-report/1";
pub const RUN_VERSION: u32 = 1;

/// `run.json`: what was to be done, and with what. Enough to analyse the folder on another machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    pub version: u32,
    pub id: String,
    /// `compare` or `aa`.
    pub kind: String,
    /// Wall clock, seconds since 1970.
    pub created_unix: u64,
    pub argv: Vec<String>,
    /// Hexadecimal.
    pub seed: String,
    pub preset: String,
    pub host: BTreeMap<String, String>,
    pub target_cpus: String,
    pub pinning: String,
    pub baseline: ArmInfo,
    pub comparison: ArmInfo,
    pub experiments: Vec<ExperimentInfo>,
    /// The guard against other programs was relaxed by the user.
    #[serde(default)]
    pub busy_accepted: bool,
    pub effect: f64,
    pub confidence: f64,
    /// A/A: how many consecutive pairs make one row.
    #[serde(default)]
    pub row_pairs: Option<usize>,
    /// State of the calibration of this kind of machine when the run began.
    #[serde(default)]
    pub calibration: Option<CalibrationNote>,
    pub folder_of_experiments: String,
    /// Where relative paths in `argv` begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_folder: Option<PathBuf>,
}

/// One of the two programs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ArmInfo {
    /// As given: `bin:./old`, `git:main`, `target:gostatsd`.
    pub spec: String,
    pub target: String,
    pub bin: String,
    pub sha256: String,
    #[serde(default)]
    pub build_id: String,
    pub size: u64,
    pub version: String,
    #[serde(default)]
    pub commit: String,
    #[serde(default)]
    pub dirty: bool,
    /// `release`, `debug` or empty when unknown.
    #[serde(default)]
    pub build_profile: String,
}

impl ArmInfo {
    /// What a reader recognises it by.
    pub fn title(&self) -> String {
        let mut words = vec![self.target.clone()];
        if !self.version.is_empty() {
            words.push(self.version.clone());
        }
        if !self.commit.is_empty() {
            let dirty = if self.dirty { "-dirty" } else { "" };
            words.push(format!("{}{dirty}", &self.commit[..self.commit.len().min(12)]));
        }
        words.push(format!("sha256 {}", &self.sha256[..self.sha256.len().min(12)]));
        words.retain(|w| !w.is_empty());
        words.join(", ")
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExperimentInfo {
    pub name: String,
    pub description: String,
    pub goal: Goal,
    /// `up`, `down` or `undeclared`.
    pub better: String,
    pub erratic: bool,
    pub pairs_min: usize,
    pub pairs_max: usize,
    pub warmup_s: f64,
    pub duration_s: f64,
    /// Why it cannot run with these two targets; it is then a row of its own without numbers.
    #[serde(default)]
    pub unsupported: Option<String>,
    /// What was left out because one of the arms lacks it.
    #[serde(default)]
    pub left_out: Vec<String>,
    pub rules: ArmRules,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmRules {
    pub baseline: Rules,
    pub comparison: Rules,
}

/// One line of `pairs.jsonl`: a pair that was run to its end, valid or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairRecord {
    pub experiment: String,
    pub pair: usize,
    pub attempt: usize,
    /// `BC` or `CB`.
    pub order: String,
    pub seed: String,
    /// Numbers of the replicate folders.
    pub baseline: usize,
    pub comparison: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CalibrationNote {
    pub rows: u64,
    pub excluded: u64,
    pub flagged: u64,
    pub low: u64,
    pub high: u64,
    /// `accepted`, `too-wide` or `failed`.
    pub state: String,
    pub created_unix: u64,
}

impl CalibrationNote {
    pub fn sentence(&self) -> String {
        format!(
            "A/A: {} of {} intervals exclude zero, expected {:.0} (accepted {} to {}), {} flagged: {}",
            self.excluded,
            self.rows,
            self.rows as f64 * 0.1,
            self.low,
            self.high,
            self.flagged,
            self.state
        )
    }
}

/// Everything a report prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    pub run: RunInfo,
    pub pairs_done: usize,
    pub pairs_discarded: usize,
    /// Reasons for discarded pairs with their number.
    pub discarded: BTreeMap<String, usize>,
    /// The run ended before its plan did.
    pub incomplete: bool,
    /// One row per experiment: its headline goal.
    pub rows: Vec<Row>,
    /// All other goals of all experiments.
    pub dimensions: Vec<Row>,
    pub checks: Vec<CheckRow>,
    /// Only for A/A runs.
    pub calibration: Option<CalibrationNote>,
    pub notes: Vec<String>,
    /// Digest of the payload by experiment and pair, equal in both arms unless noted.
    pub payloads: BTreeMap<String, Vec<String>>,
}

/// One comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub experiment: String,
    pub goal: Goal,
    pub verdict: String,
    /// `better`, `worse`, `none` or `unknown`.
    pub perf: String,
    pub declared_erratic: bool,
    pub newly_erratic: bool,
    pub surely_newly_erratic: bool,
    /// The experiment's own goal says nothing at this rate; this row shows another one.
    pub saturated: Option<Goal>,
    pub pairs: usize,
    pub change: Option<Change>,
    pub baseline: Arm,
    pub comparison: Arm,
    /// Why there are no numbers.
    pub reason: Option<String>,
    /// In the order in which they ran.
    pub values: Vec<PairValues>,
}

/// Percent for ratios, the goal's own unit for differences. Positive means that the value went up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// `percent` or `absolute`.
    pub scale: String,
    pub delta: f64,
    pub low: f64,
    pub high: f64,
    pub confidence: f64,
    pub p: f64,
    /// Benjamini and Hochberg over the rows of the same goal.
    pub q: f64,
    pub mde: f64,
    pub threshold: f64,
    /// Cross-checks; never used for the verdict.
    pub welch: Option<[f64; 3]>,
    pub sign_flip_p: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    pub mean: Option<f64>,
    /// Standard deviation over mean, with its 90 % interval.
    pub cv: Option<[f64; 3]>,
    /// Share of the variance of run means that noise inside the runs explains (CPU goals only).
    pub within: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairValues {
    pub pair: usize,
    pub order: String,
    pub baseline: f64,
    pub comparison: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckRow {
    pub experiment: String,
    pub check: String,
    pub arm: String,
    pub passed: usize,
    pub of: usize,
    pub worst: Option<f64>,
    pub series: String,
    pub upper: Option<f64>,
    pub lower: Option<f64>,
}

impl CheckRow {
    pub fn ok(&self) -> bool {
        self.passed == self.of
    }
}

/// Both runs of a pair that counts.
struct Pair {
    record: PairRecord,
    baseline: Measured,
    comparison: Measured,
}

pub fn read_run(folder: &Path) -> io::Result<RunInfo> {
    let path = folder.join("run.json");
    let text = fs::read_to_string(&path)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
    let info: RunInfo = serde_json::from_str(&text)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {e}", path.display())))?;
    if info.version != RUN_VERSION {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{}: format version {}, this program reads {RUN_VERSION}",
                path.display(),
                info.version
            ),
        ));
    }
    Ok(info)
}

pub fn read_pairs(folder: &Path) -> io::Result<Vec<PairRecord>> {
    match fs::read_to_string(folder.join("pairs.jsonl")) {
        // The last line may be half of one when the machine stopped.
        Ok(text) => Ok(text
            .lines()
            .filter_map(|l| serde_json::from_str(l).ok())
            .collect()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

pub fn arm_folder(run: &Path, experiment: &str, arm: &str) -> std::path::PathBuf {
    run.join(experiment).join(arm)
}

/// What both arms of a pair measured, baseline first.
pub fn measure_pair(run: &Path, e: &ExperimentInfo, pair: &PairRecord) -> [Measured; 2] {
    [
        ("baseline", pair.baseline, &e.rules.baseline),
        ("comparison", pair.comparison, &e.rules.comparison),
    ]
    .map(|(arm, number, rules)| {
        values::measure(&arm_folder(run, &e.name, arm).join(format!("{number:02}")), rules)
    })
}

/// Recomputes everything from the stored captures.
pub fn analyze(folder: &Path) -> io::Result<Report> {
    let run = read_run(folder)?;
    let records = read_pairs(folder)?;
    let rule = Rule {
        effect: run.effect,
        confidence: run.confidence,
        ..Rule::default()
    };
    let mut report = Report {
        schema: SCHEMA.to_owned(),
        pairs_done: 0,
        pairs_discarded: 0,
        discarded: BTreeMap::new(),
        incomplete: false,
        rows: Vec::new(),
        dimensions: Vec::new(),
        checks: Vec::new(),
        calibration: None,
        notes: Vec::new(),
        payloads: BTreeMap::new(),
        run,
    };
    let run = report.run.clone();
    for e in &run.experiments {
        if let Some(reason) = &e.unsupported {
            report.rows.push(empty_row(e, e.goal, "unsupported", reason));
            continue;
        }
        let mut pairs: Vec<Pair> = Vec::new();
        let mut last_reason = None;
        for record in records.iter().filter(|r| r.experiment == e.name) {
            let [baseline, comparison] = measure_pair(folder, e, record);
            if baseline.is_valid() && comparison.is_valid() {
                pairs.push(Pair {
                    record: record.clone(),
                    baseline,
                    comparison,
                });
                continue;
            }
            report.pairs_discarded += 1;
            for (arm, m) in [("baseline", &baseline), ("comparison", &comparison)] {
                for reason in m.invalid.iter().chain(&m.disturbed) {
                    last_reason = Some(format!("{arm}: {reason}"));
                    *report.discarded.entry(general(reason)).or_default() += 1;
                }
            }
        }
        pairs.sort_by_key(|p| p.record.pair);
        report.pairs_done += pairs.len();
        if pairs.len() < e.pairs_min {
            report.incomplete = true;
        }
        notes_of(&mut report, e, &pairs);
        let size = run.row_pairs.unwrap_or(usize::MAX).min(pairs.len().max(1));
        let groups: Vec<&[Pair]> = match run.row_pairs {
            // A group that was not finished would be a row with less evidence than the others.
            Some(_) => pairs.chunks_exact(size).collect(),
            None => vec![&pairs],
        };
        if pairs.is_empty() || groups.is_empty() {
            let reason = last_reason.unwrap_or_else(|| "no pair was run".to_owned());
            report
                .rows
                .push(empty_row(e, e.goal, Verdict::Invalid.name(), &reason));
            continue;
        }
        for (i, group) in groups.iter().enumerate() {
            let name = if run.row_pairs.is_some() {
                format!("{}#{}", e.name, i + 1)
            } else {
                e.name.clone()
            };
            add_group(&mut report, folder, e, &name, group, &rule);
        }
        add_checks(&mut report, e, &pairs);
        report.payloads.insert(
            e.name.clone(),
            pairs
                .iter()
                .map(|p| p.baseline.payload_digest.clone())
                .filter(|d| !d.is_empty())
                .collect(),
        );
    }
    add_q(&mut report.rows);
    add_q(&mut report.dimensions);
    let delta = |r: &Row| r.change.as_ref().map_or(f64::NEG_INFINITY, |c| c.delta);
    report.rows.sort_by(|a, b| {
        delta(b)
            .total_cmp(&delta(a))
            .then_with(|| a.experiment.cmp(&b.experiment))
    });
    if run.kind == "aa" {
        let judged: Vec<&Row> = report.rows.iter().filter(|r| r.change.is_some()).collect();
        let excluded = judged
            .iter()
            .filter(|r| r.change.as_ref().is_some_and(|c| c.low > 0.0 || c.high < 0.0))
            .count();
        let flagged = judged
            .iter()
            .filter(|r| ["regression", "improvement", "changed"].contains(&r.verdict.as_str()))
            .count();
        let c = calibrate(
            judged.len() as u64,
            excluded as u64,
            flagged as u64,
            run.confidence,
        );
        report.calibration = Some(CalibrationNote {
            rows: c.rows,
            excluded: c.excluded,
            flagged: c.flagged,
            low: c.low,
            high: c.high,
            state: match c.state {
                CalibrationState::Accepted => "accepted",
                CalibrationState::TooWide => "too-wide",
                CalibrationState::Failed => "failed",
            }
            .to_owned(),
            created_unix: run.created_unix,
        });
    }
    Ok(report)
}

/// A reason without its figures, so that equal reasons can be counted.
fn general(reason: &str) -> String {
    let mut out = String::new();
    let mut number = false;
    for c in reason.chars() {
        if c.is_ascii_digit() || (number && c == '.') {
            if !number {
                out.push('N');
            }
            number = true;
        } else {
            number = false;
            out.push(c);
        }
    }
    out
}

/// From this relative difference on, between what the arms of a pair got, a report mentions it.
const NOTABLE_DIFFERENCE: f64 = 0.01;

fn notes_of(report: &mut Report, e: &ExperimentInfo, pairs: &[Pair]) {
    for left in &e.left_out {
        report.notes.push(format!("{}: {left}", e.name));
    }
    // All-out loads send as much as each arm takes, so their digests differ by length; a schedule gives both the same, but for
    // what a target that pushes back at the end of the time does not take any more.
    let scheduled = !e.rules.baseline.all_out;
    let apart = |p: &Pair| {
        let (b, c) = (p.baseline.books.sent, p.comparison.books.sent);
        (b - c).abs() / b.max(c).max(1.0)
    };
    let differing = pairs
        .iter()
        .filter(|p| {
            !p.baseline.payload_digest.is_empty()
                && p.baseline.payload_digest != p.comparison.payload_digest
                && apart(p) == 0.0
        })
        .count();
    if differing > 0 && scheduled {
        report.notes.push(format!(
            "{}: the arms did not get the same bytes in {differing} of {} pairs",
            e.name,
            pairs.len()
        ));
    }
    let most = pairs.iter().map(apart).fold(0.0, f64::max);
    if most > NOTABLE_DIFFERENCE && scheduled {
        report.notes.push(format!(
            "{}: one arm of a pair got up to {:.1} % fewer messages than the other, because targets pushed back",
            e.name,
            100.0 * most
        ));
    }
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for p in pairs {
        for (arm, m) in [("baseline", &p.baseline), ("comparison", &p.comparison)] {
            for note in &m.notes {
                *seen
                    .entry(format!("{}, {arm}: {}", e.name, general(note)))
                    .or_default() += 1;
            }
        }
    }
    report
        .notes
        .extend(seen.into_iter().map(|(note, n)| format!("{note} ({n} runs)")));
}

fn empty_row(e: &ExperimentInfo, goal: Goal, verdict: &str, reason: &str) -> Row {
    Row {
        experiment: e.name.clone(),
        goal,
        verdict: verdict.to_owned(),
        perf: "unknown".to_owned(),
        declared_erratic: e.erratic,
        newly_erratic: false,
        surely_newly_erratic: false,
        saturated: None,
        pairs: 0,
        change: None,
        baseline: Arm::default(),
        comparison: Arm::default(),
        reason: Some(reason.to_owned()),
        values: Vec::new(),
    }
}

fn add_group(
    report: &mut Report,
    folder: &Path,
    e: &ExperimentInfo,
    name: &str,
    pairs: &[Pair],
    rule: &Rule,
) {
    let mut headline = e.goal;
    let mut saturated = None;
    if is_saturated(e, pairs) {
        saturated = Some(e.goal);
        headline = Goal::CpuPerMessage;
    }
    for goal in Goal::ALL {
        let direction = if goal == e.goal {
            direction(&e.better)
        } else {
            goal.direction()
        };
        let Some(mut row) = compare(e, name, goal, direction, pairs, rule) else {
            if goal == headline {
                let reason = format!("{} was not measured in every run", goal.title());
                let mut row = empty_row(e, goal, Verdict::Invalid.name(), &reason);
                row.experiment = name.to_owned();
                report.rows.push(row);
            }
            continue;
        };
        if goal == headline {
            row.saturated = saturated;
            if matches!(goal, Goal::Cpu | Goal::CpuPerMessage) {
                row.baseline.within = within(
                    folder,
                    &e.name,
                    "baseline",
                    pairs.iter().map(|p| p.record.baseline),
                );
                row.comparison.within = within(
                    folder,
                    &e.name,
                    "comparison",
                    pairs.iter().map(|p| p.record.comparison),
                );
            }
            report.rows.push(row);
        } else {
            report.dimensions.push(row);
        }
    }
}

/// At a fixed rate that the target can follow, ingress is a constant of the generator and no measurement.
fn is_saturated(e: &ExperimentInfo, pairs: &[Pair]) -> bool {
    if !matches!(e.goal, Goal::IngressThroughput | Goal::IngressMessages) || e.rules.baseline.all_out {
        return false;
    }
    let flat = |pick: fn(&Pair) -> &Measured| {
        let v: Vec<f64> = pairs
            .iter()
            .filter_map(|p| pick(p).values.get(&e.goal).copied())
            .collect();
        describe::variation(&v).is_none_or(|v| v.cv < 0.005)
    };
    let followed = pairs.iter().flat_map(|p| [&p.baseline, &p.comparison]).all(|m| {
        m.values.get(&Goal::Loss).is_none_or(|l| *l < 0.001) && m.generator_verdict != "target-limited"
    });
    followed && flat(|p| &p.baseline) && flat(|p| &p.comparison)
}

fn direction(word: &str) -> Direction {
    match word {
        "up" => Direction::HigherIsBetter,
        "down" => Direction::LowerIsBetter,
        _ => Direction::Undeclared,
    }
}

fn compare(
    e: &ExperimentInfo,
    name: &str,
    goal: Goal,
    direction: Direction,
    pairs: &[Pair],
    rule: &Rule,
) -> Option<Row> {
    let values: Vec<PairValues> = pairs
        .iter()
        .filter_map(|p| {
            Some(PairValues {
                pair: p.record.pair,
                order: p.record.order.clone(),
                baseline: sig(*p.baseline.values.get(&goal)?),
                comparison: sig(*p.comparison.values.get(&goal)?),
            })
        })
        .collect();
    // A goal that some runs could not measure is not compared on the rest: that would be a choice after the fact.
    if values.len() != pairs.len() || values.is_empty() {
        return None;
    }
    let b: Vec<f64> = values.iter().map(|v| v.baseline).collect();
    let c: Vec<f64> = values.iter().map(|v| v.comparison).collect();
    let difference = goal.is_difference();
    let estimated = if difference {
        estimate::paired_difference(&b, &c, rule.confidence)
    } else {
        estimate::paired_log_ratio(&b, &c, rule.confidence)
    };
    let spread = if difference {
        Spread::default()
    } else {
        verdict::spread(&b, &c, rule)
    };
    let arm = |values: &[f64], v: Option<Variation>| Arm {
        mean: Some(sig(describe::mean(values))),
        cv: v.map(|v| [sig(v.cv), sig(v.low), sig(v.high)]),
        within: None,
    };
    let mut row = Row {
        experiment: name.to_owned(),
        goal,
        verdict: Verdict::Inconclusive.name().to_owned(),
        perf: "unknown".to_owned(),
        declared_erratic: e.erratic,
        newly_erratic: spread.newly_erratic,
        surely_newly_erratic: spread.surely_newly_erratic,
        saturated: None,
        pairs: pairs.len(),
        change: None,
        baseline: arm(&b, spread.baseline),
        comparison: arm(&c, spread.comparison),
        reason: None,
        values,
    };
    let estimate = match estimated {
        Ok(estimate) => estimate,
        Err(why) => {
            // All zero on both sides is a perfectly good answer for a headline that counts something.
            row.reason = Some(why.to_string());
            return Some(row);
        }
    };
    let threshold = verdict::threshold(&estimate, &b, rule);
    let word = verdict::judge(&estimate, threshold, &spread, direction);
    row.verdict = word.name().to_owned();
    row.perf = match word {
        Verdict::Improvement => "better",
        Verdict::Regression => "worse",
        Verdict::Equivalent => "none",
        _ => "unknown",
    }
    .to_owned();
    let flips: Vec<f64> = if difference {
        c.iter().zip(&b).map(|(c, b)| c - b).collect()
    } else {
        c.iter().zip(&b).map(|(c, b)| (c / b).ln()).collect()
    };
    row.change = Some(change(&estimate, threshold, &b, &c, &flips, rule));
    Some(row)
}

fn change(e: &Estimate, threshold: f64, b: &[f64], c: &[f64], flips: &[f64], rule: &Rule) -> Change {
    Change {
        scale: match e.scale {
            weir_regress::Scale::Percent => "percent",
            weir_regress::Scale::Absolute => "absolute",
        }
        .to_owned(),
        delta: sig(e.delta),
        low: sig(e.low),
        high: sig(e.high),
        confidence: sig(e.confidence),
        p: sig(e.p),
        q: 1.0,
        mde: sig(e.mde),
        threshold: sig(threshold),
        welch: estimate::welch_ratio(b, c, rule.confidence)
            .ok()
            .map(|w| [sig(w.delta), sig(w.low), sig(w.high)]),
        sign_flip_p: if flips.len() <= 12 {
            estimate::sign_flip_p(flips).map(sig)
        } else {
            None
        },
    }
}

fn add_q(rows: &mut [Row]) {
    for goal in Goal::ALL {
        let family: Vec<usize> = (0..rows.len())
            .filter(|i| rows[*i].goal == goal && rows[*i].change.is_some())
            .collect();
        let p: Vec<f64> = family
            .iter()
            .map(|i| rows[*i].change.as_ref().map_or(1.0, |c| c.p))
            .collect();
        for (i, q) in family.iter().zip(benjamini_hochberg(&p)) {
            if let Some(c) = &mut rows[*i].change {
                c.q = sig(q);
            }
        }
    }
}

fn within(folder: &Path, experiment: &str, arm: &str, numbers: impl Iterator<Item = usize>) -> Option<f64> {
    let series: Vec<Vec<f64>> = numbers
        .filter_map(|n| {
            let c = Capture::read(&arm_folder(folder, experiment, arm).join(format!("{n:02}"))).ok()?;
            let points = c.window("target", "cpu_ns");
            Some(
                points
                    .windows(2)
                    .filter(|w| w[1].t > w[0].t)
                    .map(|w| (w[1].v - w[0].v) / (w[1].t - w[0].t) as f64)
                    .collect(),
            )
        })
        .collect();
    describe::variance_split(&series).map(|s| sig(s.within))
}

fn add_checks(report: &mut Report, e: &ExperimentInfo, pairs: &[Pair]) {
    for (arm, rules) in [
        ("baseline", &e.rules.baseline),
        ("comparison", &e.rules.comparison),
    ] {
        for (i, rule) in rules.checks.iter().enumerate() {
            let outcomes: Vec<_> = pairs
                .iter()
                .filter_map(|p| {
                    if arm == "baseline" {
                        p.baseline.checks.get(i)
                    } else {
                        p.comparison.checks.get(i)
                    }
                })
                .collect();
            let values = outcomes.iter().filter_map(|o| o.value);
            let worst = if rule.upper.is_some() {
                values.reduce(f64::max)
            } else {
                values.reduce(f64::min)
            };
            report.checks.push(CheckRow {
                experiment: e.name.clone(),
                check: rule.name.clone(),
                arm: arm.to_owned(),
                passed: outcomes.iter().filter(|o| o.passed).count(),
                of: outcomes.len(),
                worst: worst.map(sig),
                series: rule.series.clone(),
                upper: rule.upper,
                lower: rule.lower,
            });
        }
    }
}

/// Nine significant digits: more than any measurement has, few enough that the last bits of a math library do not change
/// a stored report.
pub fn sig(v: f64) -> f64 {
    if v == 0.0 || !v.is_finite() {
        v
    } else {
        format!("{v:.8e}").parse().unwrap_or(v)
    }
}

/// The exit code of a report, by precedence: invalid data, failed calibration, bounds, regressions.
pub fn exit_code(report: &Report, strict: bool, fail_inconclusive: bool) -> u8 {
    let judged = |r: &&Row| !r.declared_erratic;
    if report.rows.iter().any(|r| r.verdict == "invalid") || report.rows.is_empty() {
        return 3;
    }
    if report.calibration.as_ref().is_some_and(|c| c.state == "failed") {
        return 5;
    }
    if report.checks.iter().any(|c| c.arm == "comparison" && !c.ok()) {
        return 4;
    }
    let regressed = report.rows.iter().filter(judged).any(|r| {
        let sure = !strict || r.change.as_ref().is_some_and(|c| c.q < 0.1);
        (r.verdict == "regression" && sure) || r.surely_newly_erratic
    });
    if regressed && report.run.kind != "aa" {
        return 1;
    }
    let undecided = report
        .rows
        .iter()
        .filter(judged)
        .any(|r| r.verdict == "inconclusive" || r.verdict == "erratic");
    if fail_inconclusive && undecided { 6 } else { 0 }
}

/// How a value of a change is printed.
pub fn show_change(unit: Unit, scale: &str, v: f64) -> String {
    if scale == "percent" {
        format!("{v:+.2}")
    } else if unit == Unit::Share {
        format!("{:+.3} pp", 100.0 * v)
    } else {
        format!("{v:+.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_without_their_figures() {
        assert_eq!(
            general("other programs used 12.5 % of a core, 3 % are allowed"),
            "other programs used N % of a core, N % are allowed"
        );
    }

    #[test]
    fn nine_digits() {
        assert_eq!(sig(1.0 / 3.0), 0.333333333);
        assert_eq!(sig(123_456_789_123.0), 123_456_789_000.0);
        assert_eq!(sig(0.0), 0.0);
    }
}
