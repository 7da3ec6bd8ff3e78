//! The stored data of a run besides its captures: the plan, the pairs, and the calibration.

use super::goal::Goal;
use super::values::{self, Measured, Rules};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use weir_regress::Direction;
use weir_regress::calibration::{CalibrationState, ROWS_MIN};

pub const RUN_VERSION: u32 = 1;

/// The arms of a pair, in the order in which everything holds them.
pub const ARMS: [&str; 2] = ["baseline", "comparison"];

/// `run.json`: the plan and the programs. Enough to analyse the directory on another machine.
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
    /// Number of consecutive pairs per row, where an experiment has several.
    #[serde(default)]
    pub row_pairs: Option<usize>,
    /// State of the calibration of this kind of machine when the run began.
    #[serde(default)]
    pub calibration: Option<CalibrationNote>,
    pub folder_of_experiments: String,
    /// Base directory of relative paths in `argv`.
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
    /// Exit status of its command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
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
    /// The displayed name.
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
        if !self.args.is_empty() {
            words.push(format!("with {}", self.args.join(" ")));
        }
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
    /// Why it cannot run with these two targets; its row then has no numbers.
    #[serde(default)]
    pub unsupported: Option<String>,
    /// Settings that were omitted because one of the arms lacks them.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// Maximum cost of the comparison as a multiple of the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    pub rules: ArmRules,
}

impl ExperimentInfo {
    /// Pairs of a confirmation: as many as the row had that it confirms.
    pub fn confirming_pairs(&self, rows: Option<usize>) -> usize {
        self.pairs_min / rows.unwrap_or(1)
    }

    /// Better direction of a goal: an experiment may set it for its own goals.
    pub fn direction_of(&self, goal: Goal) -> Direction {
        match self.better.as_str() {
            _ if goal != self.goal => goal.direction(),
            "up" => Direction::HigherIsBetter,
            "down" => Direction::LowerIsBetter,
            _ => Direction::Undeclared,
        }
    }
}

impl RunInfo {
    /// The same for a row, whose name may end with its number among several.
    pub fn direction_of(&self, row: &str, goal: Goal) -> Direction {
        let name = row.split('#').next();
        let experiment = self.experiments.iter().find(|e| Some(e.name.as_str()) == name);
        experiment.map_or(goal.direction(), |e| e.direction_of(goal))
    }
}

/// The comparison costs at most `must` times the baseline, better `should`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    pub must: f64,
    pub should: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmRules {
    pub baseline: Rules,
    pub comparison: Rules,
}

impl ArmRules {
    pub fn of(&self, arm: usize) -> &Rules {
        [&self.baseline, &self.comparison][arm]
    }
}

/// One line of `pairs.jsonl`: a completed pair, valid or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairRecord {
    pub experiment: String,
    pub pair: usize,
    /// It belongs to the second, independent measurement of a regression.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirms: bool,
    pub attempt: usize,
    /// `BC` or `CB`.
    pub order: String,
    pub seed: String,
    /// Numbers of the replicate folders.
    pub baseline: usize,
    pub comparison: usize,
}

impl PairRecord {
    /// The number of an arm's replicate folder.
    pub fn replicate(&self, arm: usize) -> usize {
        [self.baseline, self.comparison][arm]
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CalibrationNote {
    pub rows: u64,
    pub excluded: u64,
    pub flagged: u64,
    pub low: u64,
    pub high: u64,
    /// The name of a `CalibrationState`.
    pub state: String,
    pub created_unix: u64,
}

impl CalibrationNote {
    /// Whether reports may rely on it. Earlier versions accepted any number of rows, so the stored word alone does not decide.
    pub fn is_usable(&self) -> bool {
        let sound = [CalibrationState::Accepted, CalibrationState::TooWide].map(CalibrationState::name);
        self.rows >= ROWS_MIN && sound.contains(&self.state.as_str())
    }

    pub fn sentence(&self) -> String {
        let least = match self.rows < ROWS_MIN {
            true => format!(" ({ROWS_MIN} are needed)"),
            false => String::new(),
        };
        format!(
            "A/A: {} of {} intervals exclude zero, expected {:.0} (accepted {} to {}), {} flagged: {}{least}",
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

/// The text is no seed.
#[derive(Debug, thiserror::Error)]
#[error("a whole number, decimal or 0x...")]
pub struct SeedError;

/// A seed as it is given and stored: decimal or 0x...
pub fn parse_seed(text: &str) -> Result<u64, SeedError> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| SeedError)
}

pub fn read_run(folder: &Path) -> io::Result<RunInfo> {
    let path = folder.join("run.json");
    let bad = |kind, what: String| io::Error::new(kind, format!("{}: {what}", path.display()));
    let text = fs::read_to_string(&path).map_err(|e| bad(e.kind(), e.to_string()))?;
    let info: RunInfo =
        serde_json::from_str(&text).map_err(|e| bad(io::ErrorKind::InvalidData, e.to_string()))?;
    if info.version != RUN_VERSION {
        let what = format!(
            "format version {}, this program reads {RUN_VERSION}",
            info.version
        );
        return Err(bad(io::ErrorKind::InvalidData, what));
    }
    Ok(info)
}

pub fn read_pairs(folder: &Path) -> io::Result<Vec<PairRecord>> {
    match fs::read_to_string(folder.join("pairs.jsonl")) {
        // The last line may be incomplete if the machine stopped.
        Ok(text) => Ok(text
            .lines()
            .filter_map(|l| serde_json::from_str(l).ok())
            .collect()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

pub fn arm_folder(run: &Path, experiment: &str, arm: &str) -> PathBuf {
    run.join(experiment).join(arm)
}

pub fn replicate_folder(run: &Path, experiment: &str, arm: &str, number: usize) -> PathBuf {
    arm_folder(run, experiment, arm).join(format!("{number:02}"))
}

/// The measurements of both arms of a pair, baseline first.
pub fn measure_pair(run: &Path, e: &ExperimentInfo, pair: &PairRecord) -> [Measured; 2] {
    let folders = [0, 1].map(|arm| replicate_folder(run, &e.name, ARMS[arm], pair.replicate(arm)));
    values::measure_arms(&folders, [e.rules.of(0), e.rules.of(1)])
}
