//! From stored runs to a report: pairs, estimates, verdicts. Nothing is printed here.

mod compare;

use super::goal::{Goal, Unit};
use super::record::{self, ARMS, CalibrationNote, ExperimentInfo, PairRecord, RunInfo};
use super::values::Measured;
use compare::Comparison;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use weir_regress::calibration::calibrate;
use weir_regress::verdict::benjamini_hochberg;
use weir_regress::{Rule, Verdict};

pub const SCHEMA: &str = "weir-bench-report/1";

/// Everything a report prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    pub run: RunInfo,
    pub pairs_done: usize,
    pub pairs_discarded: usize,
    /// Reasons for discarded pairs with their number.
    pub discarded: BTreeMap<String, usize>,
    /// The run ended before its plan was complete.
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
    /// The experiment's own goal is meaningless at this rate; this row shows another one.
    pub saturated: Option<Goal>,
    pub pairs: usize,
    pub change: Option<Change>,
    pub baseline: Arm,
    pub comparison: Arm,
    /// Pairs in which the machine was busier than the experiment allows, which the user accepted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub disturbed: usize,
    /// The second, independent measurement of a regression beside such disturbances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<Confirmation>,
    /// Nothing shows that both programs accepted the load in every run.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unproven: bool,
    /// Why there are no numbers, or why they show less than they seem to.
    pub reason: Option<String>,
    /// In the order in which they ran.
    pub values: Vec<PairValues>,
}

/// Only a regression that it finds too counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Confirmation {
    pub verdict: String,
    pub pairs: usize,
    pub change: Option<Change>,
}

/// Percent for ratios, the goal's own unit for differences. Positive means an increase.
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

/// Both runs of a valid pair.
struct Pair {
    record: PairRecord,
    arms: [Measured; 2],
}

/// Recomputes everything from the stored captures.
pub fn analyze(folder: &Path) -> io::Result<Report> {
    let run = record::read_run(folder)?;
    let records = record::read_pairs(folder)?;
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
        run: run.clone(),
    };
    for e in &run.experiments {
        match &e.unsupported {
            Some(reason) => report.rows.push(Row::empty(e, e.goal, "unsupported", reason)),
            None => report.add_experiment(folder, e, &records),
        }
    }
    add_q(&mut report.rows);
    add_q(&mut report.dimensions);
    report.rows.sort_by(by_change);
    if run.kind == "aa" {
        report.calibration = Some(report.calibrate());
    }
    Ok(report)
}

/// The order of rows: the largest change first.
pub fn by_change(a: &Row, b: &Row) -> Ordering {
    let delta = |r: &Row| r.change.as_ref().map_or(f64::NEG_INFINITY, |c| c.delta);
    let by_name = || a.experiment.cmp(&b.experiment);
    delta(b).total_cmp(&delta(a)).then_with(by_name)
}

impl Report {
    fn add_experiment(&mut self, folder: &Path, e: &ExperimentInfo, records: &[PairRecord]) {
        let (all, last_reason) = self.valid_pairs(folder, e, records);
        self.pairs_done += all.len();
        let (second, pairs): (Vec<Pair>, Vec<Pair>) = all.into_iter().partition(|p| p.record.confirms);
        self.incomplete |= pairs.len() < e.pairs_min;
        self.note(e, &pairs);
        let groups: Vec<&[Pair]> = match self.run.row_pairs {
            // An unfinished group would be a row with less evidence than the others.
            Some(size) => pairs.chunks_exact(size.min(pairs.len().max(1))).collect(),
            None => vec![&pairs],
        };
        if pairs.is_empty() || groups.is_empty() {
            let reason = last_reason.unwrap_or_else(|| "no pair was run".to_owned());
            let row = Row::empty(e, e.goal, Verdict::Invalid.name(), &reason);
            self.rows.push(row);
            return;
        }
        for (i, group) in groups.iter().enumerate() {
            let name = match self.run.row_pairs {
                Some(_) => format!("{}#{}", e.name, i + 1),
                None => e.name.clone(),
            };
            self.add_group(folder, e, &name, (group, &second));
        }
        self.add_checks(e, &pairs);
        let digests = pairs.iter().map(|p| p.arms[0].payload_digest.clone());
        let digests = digests.filter(|d| !d.is_empty()).collect();
        self.payloads.insert(e.name.clone(), digests);
    }

    /// The valid pairs, and why the last invalid one is not.
    fn valid_pairs(
        &mut self,
        folder: &Path,
        e: &ExperimentInfo,
        records: &[PairRecord],
    ) -> (Vec<Pair>, Option<String>) {
        let mut pairs: Vec<Pair> = Vec::new();
        let mut last_reason = None;
        for record in records.iter().filter(|r| r.experiment == e.name) {
            let arms = record::measure_pair(folder, e, record);
            if arms.iter().all(Measured::is_valid) {
                let record = record.clone();
                pairs.push(Pair { record, arms });
                continue;
            }
            self.pairs_discarded += 1;
            for (arm, m) in ARMS.iter().zip(&arms) {
                for reason in m.invalid.iter().chain(&m.disturbed) {
                    last_reason = Some(format!("{arm}: {reason}"));
                    *self.discarded.entry(general(reason)).or_default() += 1;
                }
            }
        }
        pairs.sort_by_key(|p| p.record.pair);
        (pairs, last_reason)
    }

    fn note(&mut self, e: &ExperimentInfo, pairs: &[Pair]) {
        let name = &e.name;
        self.notes
            .extend(e.left_out.iter().map(|left| format!("{name}: {left}")));
        // All-out loads send as much as each arm accepts, so their digests differ by length. A schedule gives both the same, except for
        // packets that a target no longer accepts at the end.
        if !e.rules.baseline.all_out {
            let differing = pairs.iter().filter(|p| p.got_other_bytes()).count();
            if differing > 0 {
                let of = pairs.len();
                let what =
                    format!("{name}: the arms did not get the same bytes in {differing} of {of} pairs");
                self.notes.push(what);
            }
            let most = pairs.iter().map(Pair::apart).fold(0.0, f64::max);
            if most > NOTABLE_DIFFERENCE {
                self.notes.push(format!(
                    "{name}: one arm of a pair got up to {:.1} % fewer messages than the other, because targets pushed back",
                    100.0 * most
                ));
            }
        }
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for (arm, m) in pairs.iter().flat_map(|p| ARMS.iter().zip(&p.arms)) {
            for note in &m.notes {
                let what = format!("{name}, {arm}: {}", general(note));
                *seen.entry(what).or_default() += 1;
            }
        }
        let counted = seen.into_iter().map(|(note, n)| format!("{note} ({n} runs)"));
        self.notes.extend(counted);
    }

    /// `second`: pairs that confirm.
    fn add_group(
        &mut self,
        folder: &Path,
        e: &ExperimentInfo,
        name: &str,
        (pairs, second): (&[Pair], &[Pair]),
    ) {
        let saturated = is_saturated(e, pairs).then_some(e.goal);
        let headline = if saturated.is_some() {
            Goal::CpuPerMessage
        } else {
            e.goal
        };
        let rule = Rule {
            effect: self.run.effect,
            confidence: self.run.confidence,
            ..Rule::default()
        };
        let unproven = unproven(pairs);
        // A program against itself shows how often chance alone is reported, so nothing is taken back.
        let judged = self.run.kind != "aa";
        let disturbed = pairs.iter().filter(|p| p.is_disturbed()).count();
        for goal in Goal::all() {
            let compared = Comparison::of(e, goal, pairs, &rule).map(|c| {
                let mut row = c.row(e, name);
                row.disturbed = disturbed;
                if judged {
                    row.doubt(unproven.as_deref());
                    row.confirm(Comparison::of(e, goal, second, &rule).map(|c| c.row(e, name)));
                }
                row
            });
            match compared {
                Some(row) if goal != headline => self.dimensions.push(row),
                Some(mut row) => {
                    row.saturated = saturated;
                    if matches!(goal, Goal::Cpu | Goal::CpuPerMessage) {
                        let within = |arm| compare::within(folder, &e.name, arm, pairs);
                        (row.baseline.within, row.comparison.within) = (within(0), within(1));
                    }
                    self.rows.push(row);
                }
                None if goal == headline => {
                    let reason = format!("{} was not measured in every run", goal.title());
                    let mut row = Row::empty(e, goal, Verdict::Invalid.name(), &reason);
                    row.experiment = name.to_owned();
                    self.rows.push(row);
                }
                None => {}
            }
        }
    }

    fn add_checks(&mut self, e: &ExperimentInfo, pairs: &[Pair]) {
        for (arm, arm_name) in ARMS.iter().enumerate() {
            for (i, rule) in e.rules.of(arm).checks.iter().enumerate() {
                let outcomes = pairs.iter().filter_map(|p| p.arms[arm].checks.get(i));
                let values = outcomes.clone().filter_map(|o| o.value);
                let worst = values.reduce(if rule.upper.is_some() { f64::max } else { f64::min });
                self.checks.push(CheckRow {
                    experiment: e.name.clone(),
                    check: rule.name.clone(),
                    arm: (*arm_name).to_owned(),
                    passed: outcomes.clone().filter(|o| o.passed).count(),
                    of: outcomes.count(),
                    worst: worst.map(sig),
                    series: rule.series.clone(),
                    upper: rule.upper,
                    lower: rule.lower,
                });
            }
        }
    }

    /// Checks whether intervals of a program against itself exclude zero as often as expected.
    fn calibrate(&self) -> CalibrationNote {
        let changes: Vec<&Change> = self.rows.iter().filter_map(|r| r.change.as_ref()).collect();
        let excluded = changes.iter().filter(|c| c.excludes_zero()).count();
        let flagged = changes.iter().filter(|c| c.is_large()).count();
        let counts = (changes.len() as u64, excluded as u64, flagged as u64);
        let c = calibrate(counts.0, counts.1, counts.2, self.run.confidence);
        CalibrationNote {
            rows: c.rows,
            excluded: c.excluded,
            flagged: c.flagged,
            low: c.low,
            high: c.high,
            state: c.state.name().to_owned(),
            created_unix: self.run.created_unix,
        }
    }
}

impl Change {
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }

    /// Both criteria of a change, whatever else is known about the row.
    pub fn is_large(&self) -> bool {
        self.delta.abs() >= self.threshold && self.excludes_zero()
    }
}

fn is_false(word: &bool) -> bool {
    !word
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Row {
    /// Large enough, and significantly different from zero.
    pub fn is_change(&self) -> bool {
        ["regression", "improvement", "changed"].contains(&self.verdict.as_str())
    }

    /// Takes back what these runs cannot show: without proof that the load was accepted, less work is no improvement.
    fn doubt(&mut self, why: Option<&str>) {
        let Some(why) = why else { return };
        self.unproven = true;
        self.reason.get_or_insert(why.to_owned());
        if ["improvement", "changed"].contains(&self.verdict.as_str()) {
            UNPROVEN.clone_into(&mut self.verdict);
            "unknown".clone_into(&mut self.perf);
        }
    }

    /// A regression beside accepted disturbances counts if a second measurement finds it too.
    fn confirm(&mut self, second: Option<Row>) {
        if self.disturbed == 0 || self.verdict != Verdict::Regression.name() {
            return;
        }
        self.confirmation = second.map(|row| Confirmation {
            verdict: row.verdict,
            pairs: row.pairs,
            change: row.change,
        });
        let is_confirmed = |c: &Confirmation| c.verdict == Verdict::Regression.name();
        if !self.confirmation.as_ref().is_some_and(is_confirmed) {
            UNCONFIRMED.clone_into(&mut self.verdict);
            "unknown".clone_into(&mut self.perf);
        }
    }

    /// The experiment, without the number of one of several rows.
    pub fn name(&self) -> &str {
        self.experiment.split('#').next().unwrap_or_default()
    }

    fn empty(e: &ExperimentInfo, goal: Goal, verdict: &str, reason: &str) -> Row {
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
            disturbed: 0,
            confirmation: None,
            unproven: false,
            reason: Some(reason.to_owned()),
            values: Vec::new(),
        }
    }
}

impl Pair {
    /// The relative difference of the messages that the arms received.
    fn apart(&self) -> f64 {
        let [b, c] = [&self.arms[0], &self.arms[1]].map(|m| m.books.sent);
        (b - c).abs() / b.max(c).max(1.0)
    }

    fn is_disturbed(&self) -> bool {
        self.arms.iter().any(|m| !m.accepted.is_empty())
    }

    fn got_other_bytes(&self) -> bool {
        let [b, c] = [&self.arms[0], &self.arms[1]].map(|m| &m.payload_digest);
        !b.is_empty() && b != c && self.apart() == 0.0
    }
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

/// The verdict of a change that is no evidence, because a program may not have accepted the load.
pub const UNPROVEN: &str = "unproven";

/// The verdict of a regression beside accepted disturbances that was not found a second time.
pub const UNCONFIRMED: &str = "unconfirmed";

/// Why nothing shows that both programs accepted the load: the first reason.
fn unproven(pairs: &[Pair]) -> Option<String> {
    let runs = pairs.iter().flat_map(|p| ARMS.iter().zip(&p.arms));
    let mut reasons = runs.filter_map(|(arm, m)| m.unproven.as_ref().map(|why| format!("{arm}: {why}")));
    reasons.next()
}

/// From this relative difference of received messages on, a report mentions it.
const NOTABLE_DIFFERENCE: f64 = 0.01;

/// At a fixed rate that the target can follow, ingress is a constant of the generator, not a measurement.
fn is_saturated(e: &ExperimentInfo, pairs: &[Pair]) -> bool {
    if !matches!(e.goal, Goal::IngressThroughput | Goal::IngressMessages) || e.rules.baseline.all_out {
        return false;
    }
    let flat = |arm: usize| {
        let values = pairs
            .iter()
            .filter_map(|p| p.arms[arm].values.get(&e.goal).copied());
        let values: Vec<f64> = values.collect();
        weir_regress::describe::variation(&values).is_none_or(|v| v.cv < 0.005)
    };
    let followed = pairs.iter().flat_map(|p| &p.arms).all(|m| {
        m.values.get(&Goal::Loss).is_none_or(|l| *l < 0.001) && m.generator_verdict != "target-limited"
    });
    followed && flat(0) && flat(1)
}

fn add_q(rows: &mut [Row]) {
    for goal in Goal::all() {
        let family = rows.iter_mut().filter(|row| row.goal == goal);
        let mut changes: Vec<&mut Change> = family.filter_map(|row| row.change.as_mut()).collect();
        let p: Vec<f64> = changes.iter().map(|c| c.p).collect();
        for (change, q) in changes.iter_mut().zip(benjamini_hochberg(&p)) {
            change.q = sig(q);
        }
    }
}

/// Nine significant digits: more than any measurement has, and few enough that a stored report does not depend on the last bits of a math
/// library.
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
        // A busy machine makes runs vary, whatever the program.
        (r.verdict == "regression" && sure) || (r.surely_newly_erratic && r.disturbed == 0)
    });
    if regressed && report.run.kind != "aa" {
        return 1;
    }
    let undecided = report
        .rows
        .iter()
        .filter(judged)
        .any(|r| ["inconclusive", "erratic", UNPROVEN, UNCONFIRMED].contains(&r.verdict.as_str()));
    if fail_inconclusive && undecided { 6 } else { 0 }
}

/// The displayed form of a change.
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
