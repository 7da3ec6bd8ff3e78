//! Results over time: one line per experiment, goal and run, change points over the lines, notes at them, and the calibration of machines.

mod page;

pub use page::page;

use super::analysis::{Report, Row};
use super::goal::Goal;
use super::record::CalibrationNote;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use weir_regress::Direction;
use weir_regress::change_point::{ChangePoint, Options, change_points};

/// One line of `history.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub created_unix: u64,
    pub run: String,
    pub experiment: String,
    pub goal: Goal,
    pub target: String,
    pub commit: String,
    pub sha256: String,
    pub value: f64,
    pub pairs: usize,
    /// Only results of one kind of machine form a series.
    pub host: String,
    pub preset: String,
    /// The goal of its experiment; earlier versions kept no others.
    #[serde(default = "yes")]
    pub headline: bool,
}

fn yes() -> bool {
    true
}

/// A line of the same file with a person's note at the results of a run or commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    pub created_unix: u64,
    /// A run, or the first digits of a commit.
    pub at: String,
    pub note: String,
    /// Level changes that begin at such a result are known.
    pub acknowledges: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment: Option<String>,
}

impl Mark {
    pub fn is_at(&self, e: &Entry) -> bool {
        let here = e.run == self.at || (!self.at.is_empty() && e.commit.starts_with(&self.at));
        here && self.experiment.as_ref().is_none_or(|name| *name == e.experiment)
    }
}

/// A whole file.
#[derive(Debug, Default, PartialEq)]
pub struct History {
    pub entries: Vec<Entry>,
    pub marks: Vec<Mark>,
}

impl History {
    fn oldest(&self) -> Option<u64> {
        self.entries.iter().map(|e| e.created_unix).min()
    }

    fn newest(&self) -> Option<u64> {
        self.entries.iter().map(|e| e.created_unix).max()
    }

    /// The newest note at a result.
    fn note_at(&self, e: &Entry) -> Option<&Mark> {
        self.marks.iter().rfind(|mark| mark.is_at(e))
    }
}

/// Appends the comparison arm of every row: each goal of each experiment.
pub fn append(file: &Path, report: &Report, host: &str) -> io::Result<usize> {
    let entry = |row: &Row, headline: bool| {
        Some(Entry {
            created_unix: report.run.created_unix,
            run: report.run.id.clone(),
            experiment: row.experiment.clone(),
            goal: row.goal,
            target: report.run.comparison.target.clone(),
            commit: report.run.comparison.commit.clone(),
            sha256: report.run.comparison.sha256.clone(),
            value: row.comparison.mean?,
            pairs: row.pairs,
            host: host.to_owned(),
            preset: report.run.preset.clone(),
            headline,
        })
    };
    let headlines = report.rows.iter().filter_map(|row| entry(row, true));
    let entries: Vec<Entry> = headlines
        .chain(report.dimensions.iter().filter_map(|row| entry(row, false)))
        .collect();
    for entry in &entries {
        append_line(file, entry)?;
    }
    Ok(entries.len())
}

pub fn append_line(file: &Path, line: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string(line).map_err(io::Error::other)?;
    text.push('\n');
    if let Some(parent) = file.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    let mut file = fs::OpenOptions::new().create(true).append(true).open(file)?;
    file.write_all(text.as_bytes())
}

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error("{file}: {error}")]
    Read { file: PathBuf, error: io::Error },
    #[error("{file}:{line}: {error}")]
    Line {
        file: PathBuf,
        line: usize,
        error: serde_json::Error,
    },
}

pub fn read(path: &Path) -> Result<History, HistoryError> {
    let file = || path.to_owned();
    let text = fs::read_to_string(path).map_err(|error| HistoryError::Read { file: file(), error })?;
    let mut history = History::default();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let wrong = |error| HistoryError::Line {
            file: file(),
            line: i + 1,
            error,
        };
        let value: serde_json::Value = serde_json::from_str(line).map_err(wrong)?;
        match value.get("note") {
            Some(_) => history.marks.push(serde_json::from_value(value).map_err(wrong)?),
            None => history
                .entries
                .push(serde_json::from_value(value).map_err(wrong)?),
        }
    }
    Ok(history)
}

/// Only results with the same key form a series.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub experiment: String,
    pub target: String,
    pub goal: Goal,
    pub host: String,
    pub preset: String,
}

/// Series of comparable results, oldest first.
pub fn series(entries: &[Entry]) -> BTreeMap<Key, Vec<&Entry>> {
    let mut all: BTreeMap<Key, Vec<&Entry>> = BTreeMap::new();
    for e in entries {
        let key = Key {
            experiment: e.experiment.clone(),
            target: e.target.clone(),
            goal: e.goal,
            host: e.host.clone(),
            preset: e.preset.clone(),
        };
        all.entry(key).or_default().push(e);
    }
    all.values_mut().for_each(|s| s.sort_by_key(|e| e.created_unix));
    all
}

/// A level change of a series.
#[derive(Debug)]
pub struct LevelChange<'a> {
    pub key: Key,
    pub point: ChangePoint,
    /// The last result before, and the first after it.
    pub last: &'a Entry,
    pub first: &'a Entry,
    pub acknowledged: Option<&'a Mark>,
}

impl LevelChange<'_> {
    /// `None` if the goal has no direction.
    pub fn is_worse(&self) -> Option<bool> {
        let rose = self.point.after > self.point.before;
        match self.key.goal.direction() {
            Direction::HigherIsBetter => Some(!rose),
            Direction::LowerIsBetter => Some(rose),
            Direction::Undeclared => None,
        }
    }
}

/// All level changes, headlines first.
pub fn changes<'a>(history: &'a History, options: &Options) -> Vec<LevelChange<'a>> {
    let mut found = Vec::new();
    for (key, points) in series(&history.entries) {
        let values: Vec<f64> = points.iter().map(|e| e.value).collect();
        for point in change_points(&values, options) {
            let first = points[point.index];
            let acknowledges = |mark: &&Mark| mark.acknowledges && mark.is_at(first);
            found.push(LevelChange {
                key: key.clone(),
                point,
                last: points[point.index - 1],
                first,
                acknowledged: history.marks.iter().rfind(acknowledges),
            });
        }
    }
    found.sort_by_key(|c| !c.first.headline);
    found
}

/// The commit's first digits, or the run.
fn short_commit(e: &Entry) -> String {
    match e.commit.is_empty() {
        true => e.run.clone(),
        false => e.commit.chars().take(12).collect(),
    }
}

/// A table of level changes, or a sentence if there are none. `all`: also of goals that are no headline.
pub fn describe(history: &History, options: &Options, all: bool) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    let found = changes(history, options);
    let shown = || found.iter().filter(|c| all || c.first.headline);
    for c in shown() {
        let unit = c.key.goal.unit();
        let note = c
            .acknowledged
            .map_or(String::new(), |mark| format!("; acknowledged: {}", mark.note));
        let _ = writeln!(
            out,
            "{} ({}, {}): {} {} -> {} ({:+.1} %, p {:.1e}) between {} and {}{note}",
            c.key.experiment,
            c.key.target,
            c.key.preset,
            c.key.goal.title(),
            unit.show(c.point.before),
            unit.show(c.point.after),
            c.point.percent(),
            c.point.p,
            short_commit(c.last),
            short_commit(c.first)
        );
    }
    if shown().count() == 0 {
        let every = series(&history.entries);
        let series: Vec<_> = every
            .values()
            .filter(|s| all || s.iter().any(|e| e.headline))
            .collect();
        let longest = series.iter().map(|s| s.len()).max().unwrap_or(0);
        let _ = writeln!(
            out,
            "No level change in {} series of at most {longest} results (at least {} results on either side are needed).",
            series.len(),
            options.side_min
        );
    }
    let others = found.len() - shown().count();
    if others > 0 {
        let _ = writeln!(out, "{others} of goals that are no headline; --all shows them.");
    }
    out
}

/// CSV for other tools: one column per series.
pub fn csv(entries: &[Entry]) -> String {
    let mut out = String::from("time,run,commit,experiment,target,goal,preset,value\n");
    for e in entries {
        // Names come from file names and git; quotes keep a comma in one of them harmless.
        let q = |s: &str| {
            if s.contains([',', '"', '\n']) {
                format!("\"{}\"", s.replace('"', "\"\""))
            } else {
                s.to_owned()
            }
        };
        out.push_str(&format!(
            "{},{},{},{},{},{},{},{}\n",
            e.created_unix,
            q(&e.run),
            q(&e.commit),
            q(&e.experiment),
            q(&e.target),
            e.goal.key(),
            q(&e.preset),
            e.value
        ));
    }
    out
}

/// The last calibration of this kind of machine.
pub fn stored_calibration(cache: &Path, host: &str) -> Option<CalibrationNote> {
    let all: BTreeMap<String, CalibrationNote> =
        serde_json::from_str(&fs::read_to_string(cache.join("calibration.json")).ok()?).ok()?;
    all.get(host).cloned()
}

/// Stores a calibration, unless a stored one has more rows: that one is returned.
pub fn store_calibration(
    cache: &Path,
    host: &str,
    note: &CalibrationNote,
) -> io::Result<Option<CalibrationNote>> {
    let path = cache.join("calibration.json");
    let mut all: BTreeMap<String, CalibrationNote> = fs::read_to_string(&path)
        .ok()
        .and_then(|t| serde_json::from_str(&t).ok())
        .unwrap_or_default();
    if let Some(larger) = all.get(host).filter(|stored| stored.rows > note.rows) {
        return Ok(Some(larger.clone()));
    }
    all.insert(host.to_owned(), note.clone());
    fs::create_dir_all(cache)?;
    let text = serde_json::to_string_pretty(&all).map_err(io::Error::other)?;
    fs::write(path, text).map(|()| None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(i: u64, value: f64, host: &str) -> Entry {
        Entry {
            created_unix: 1000 - i,
            run: format!("r{}", 1000 - i),
            experiment: "e,1".into(),
            goal: Goal::CpuPerMessage,
            target: "weir".into(),
            commit: String::new(),
            sha256: String::new(),
            value,
            pairs: 7,
            host: host.into(),
            preset: "quick".into(),
            headline: true,
        }
    }

    fn described(entries: Vec<Entry>) -> String {
        let history = History {
            entries,
            marks: Vec::new(),
        };
        describe(&history, &Options::default(), false)
    }

    #[test]
    fn a_step_is_found_whatever_the_order_of_lines_and_machines_do_not_mix() {
        let mut entries: Vec<Entry> = (0..10)
            .map(|i| entry(i, 110.0 + (i % 3) as f64 * 0.2, "a"))
            .collect();
        entries.extend((10..20).map(|i| entry(i, 100.0 + (i % 3) as f64 * 0.2, "a")));
        let text = described(entries);
        assert!(text.contains("100 ns -> 110 ns (+10.0 %"), "{text}");
        assert!(text.contains("between r990 and r991"), "{text}");
        let mixed: Vec<Entry> = (0..20)
            .map(|i| {
                entry(
                    i,
                    if i % 2 == 0 { 100.0 } else { 200.0 },
                    if i % 2 == 0 { "a" } else { "b" },
                )
            })
            .collect();
        assert!(described(mixed).contains("No level change in 2 series of at most 10"));
    }

    #[test]
    fn a_calibration_is_replaced_by_one_with_as_many_rows_and_not_by_a_smaller_one() {
        let cache = tempfile::tempdir().unwrap();
        let note = |rows, created_unix| CalibrationNote {
            rows,
            excluded: 6,
            flagged: 0,
            low: 2,
            high: 11,
            state: "accepted".into(),
            created_unix,
        };
        let store = |note: &CalibrationNote| store_calibration(cache.path(), "here", note).unwrap();
        assert_eq!(store(&note(60, 1)), None);
        assert_eq!(store(&note(59, 2)), Some(note(60, 1)));
        assert_eq!(stored_calibration(cache.path(), "here"), Some(note(60, 1)));
        assert_eq!(store(&note(60, 3)), None);
        assert_eq!(stored_calibration(cache.path(), "here"), Some(note(60, 3)));
        assert_eq!(stored_calibration(cache.path(), "elsewhere"), None);
    }

    #[test]
    fn every_goal_of_a_run_is_kept() {
        let report = include_str!("../../../tests/detector/golden/report.json");
        let report: Report = serde_json::from_str(report).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("new/history.jsonl");
        let n = append(&file, &report, "here").unwrap();
        let history = read(&file).unwrap();
        assert_eq!(history.entries.len(), n);
        let of = |name: &str| {
            history
                .entries
                .iter()
                .filter(|e| e.experiment == name)
                .collect::<Vec<_>>()
        };
        let goals = of("slower");
        assert!(goals.len() > 8, "{goals:?}");
        assert_eq!(goals.iter().filter(|e| e.headline).count(), 1);
        assert!(
            goals
                .iter()
                .any(|e| e.goal == Goal::LatencyP99 && !e.headline && e.host == "here")
        );
        assert!(of("bypassed").is_empty(), "an invalid row has no value");
    }

    /// Twenty results with a step in the middle, by commit.
    fn step(headline: bool) -> Vec<Entry> {
        let results = (0..20).map(|i| Entry {
            commit: format!("{i:02}abcdef"),
            created_unix: i,
            headline,
            ..entry(i, if i < 10 { 100.0 } else { 110.0 } + (i % 3) as f64 * 0.2, "a")
        });
        results.collect()
    }

    #[test]
    fn a_level_change_is_acknowledged_where_it_begins() {
        let mark = |at: &str, experiment: Option<&str>| History {
            entries: step(true),
            marks: vec![Mark {
                created_unix: 1,
                at: at.into(),
                note: "a new allocator".into(),
                acknowledges: true,
                experiment: experiment.map(str::to_owned),
            }],
        };
        let known = |history: &History| changes(history, &Options::default())[0].acknowledged.is_some();
        assert!(known(&mark("10abc", None)) && known(&mark("10abc", Some("e,1"))));
        assert!(
            !known(&mark("09abc", None)) && !known(&mark("10abc", Some("other"))) && !known(&mark("", None))
        );
        let history = mark("10abc", None);
        assert!(changes(&history, &Options::default())[0].is_worse().unwrap());
        let text = describe(&history, &Options::default(), false);
        assert!(
            text.contains("between 09abcdef and 10abcdef; acknowledged: a new allocator"),
            "{text}"
        );
    }

    #[test]
    fn goals_beside_the_headline_are_counted_and_shown_on_request() {
        let history = History {
            entries: step(false),
            marks: Vec::new(),
        };
        let text = |all| describe(&history, &Options::default(), all);
        assert!(
            text(false).contains("No level change in 0 series") && text(false).contains("1 of goals"),
            "{}",
            text(false)
        );
        assert!(
            text(true).contains("between 09abcdef and 10abcdef"),
            "{}",
            text(true)
        );
    }

    #[test]
    fn the_page_stands_alone() {
        let history = History {
            entries: step(true)
                .into_iter()
                .chain(step(false).into_iter().map(|e| Entry { goal: Goal::Rss, ..e }))
                .collect(),
            marks: vec![Mark {
                created_unix: 1,
                at: "10abc".into(),
                note: "<b>known</b>".into(),
                acknowledges: true,
                experiment: None,
            }],
        };
        let page = page(&history, &Options::default());
        for expected in [
            "<svg",
            "&lt;b&gt;known",
            "other goals",
            "+10.0 %",
            "09abcdef",
            "40 results",
            "stroke-dasharray",
        ] {
            assert!(page.contains(expected), "{expected} is missing: {page}");
        }
        for foreign in ["<script", "http://", "https://", "<b>known"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert_eq!(
            page.matches("<circle").count() + page.matches("<path class=\"note\"").count(),
            40
        );
    }

    #[test]
    fn csv_quotes_commas_in_names() {
        assert_eq!(
            csv(&[entry(1, 2.5, "h")]).lines().nth(1),
            Some("999,r999,,\"e,1\",weir,cpu_per_message,quick,2.5")
        );
    }
}
