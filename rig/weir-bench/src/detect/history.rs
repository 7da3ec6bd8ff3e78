//! Results over time: one line per experiment and run, change points over the lines, and the calibration of machines.

use super::analysis::Report;
use super::goal::Goal;
use super::record::CalibrationNote;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use weir_regress::change_point::{Options, change_points};

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
}

/// Appends the comparison arm of every headline row.
pub fn append(file: &Path, report: &Report, host: &str) -> io::Result<usize> {
    let mut out = String::new();
    let mut n = 0;
    for row in &report.rows {
        let Some(value) = row.comparison.mean else {
            continue;
        };
        let entry = Entry {
            created_unix: report.run.created_unix,
            run: report.run.id.clone(),
            experiment: row.experiment.clone(),
            goal: row.goal,
            target: report.run.comparison.target.clone(),
            commit: report.run.comparison.commit.clone(),
            sha256: report.run.comparison.sha256.clone(),
            value,
            pairs: row.pairs,
            host: host.to_owned(),
            preset: report.run.preset.clone(),
        };
        out.push_str(&serde_json::to_string(&entry).map_err(io::Error::other)?);
        out.push('\n');
        n += 1;
    }
    if let Some(parent) = file.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)?
        .write_all(out.as_bytes())?;
    Ok(n)
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

pub fn read(file: &Path) -> Result<Vec<Entry>, HistoryError> {
    let file = || file.to_owned();
    let text = fs::read_to_string(file()).map_err(|error| HistoryError::Read { file: file(), error })?;
    text.lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty())
        .map(|(i, l)| {
            serde_json::from_str(l).map_err(|error| HistoryError::Line {
                file: file(),
                line: i + 1,
                error,
            })
        })
        .collect()
}

type Key = (String, String, Goal, String, String);

/// Series of comparable results, oldest first.
pub fn series(entries: &[Entry]) -> BTreeMap<Key, Vec<&Entry>> {
    let mut all: BTreeMap<Key, Vec<&Entry>> = BTreeMap::new();
    for e in entries {
        let key = (
            e.experiment.clone(),
            e.target.clone(),
            e.goal,
            e.host.clone(),
            e.preset.clone(),
        );
        all.entry(key).or_default().push(e);
    }
    all.values_mut().for_each(|s| s.sort_by_key(|e| e.created_unix));
    all
}

/// A table of level changes, or a sentence if there are none.
pub fn describe(entries: &[Entry], options: &Options) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    let mut found = 0;
    let all = series(entries);
    for ((experiment, target, goal, _, preset), points) in &all {
        let values: Vec<f64> = points.iter().map(|e| e.value).collect();
        for c in change_points(&values, options) {
            found += 1;
            let (last, first) = (points[c.index - 1], points[c.index]);
            let commit = |e: &Entry| {
                if e.commit.is_empty() {
                    e.run.clone()
                } else {
                    e.commit.chars().take(12).collect()
                }
            };
            let _ = writeln!(
                out,
                "{experiment} ({target}, {preset}): {} {} -> {} ({:+.1} %, p {:.1e}) between {} and {}",
                goal.title(),
                goal.unit().show(c.before),
                goal.unit().show(c.after),
                c.percent(),
                c.p,
                commit(last),
                commit(first)
            );
        }
    }
    if found == 0 {
        let longest = all.values().map(Vec::len).max().unwrap_or(0);
        let _ = writeln!(
            out,
            "No level change in {} series of at most {longest} results (at least {} results on either side are needed).",
            all.len(),
            options.side_min
        );
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
        }
    }

    #[test]
    fn a_step_is_found_whatever_the_order_of_lines_and_machines_do_not_mix() {
        let mut entries: Vec<Entry> = (0..10)
            .map(|i| entry(i, 110.0 + (i % 3) as f64 * 0.2, "a"))
            .collect();
        entries.extend((10..20).map(|i| entry(i, 100.0 + (i % 3) as f64 * 0.2, "a")));
        let text = describe(&entries, &Options::default());
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
        assert!(describe(&mixed, &Options::default()).contains("No level change in 2 series of at most 10"));
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
    fn csv_quotes_commas_in_names() {
        assert_eq!(
            csv(&[entry(1, 2.5, "h")]).lines().nth(1),
            Some("999,r999,,\"e,1\",weir,cpu_per_message,quick,2.5")
        );
    }
}
