//! Readers of results: each run of a process becomes one number per benchmark and unit.
//!
//! Samples of one process share its luck (layout, processor, neighbours), so they are averaged. Pooled, they would give intervals that
//! exclude zero half of the time when nothing changed.

use super::Source;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use weir_regress::describe::mean;

/// One benchmark in one of its units.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    pub benchmark: String,
    pub unit: String,
}

/// The values of every run, in order.
pub type Runs = BTreeMap<Series, Vec<f64>>;

/// Why results cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{path}: {error}")]
    File { path: PathBuf, error: io::Error },
    #[error("{path}: {error}")]
    Json { path: PathBuf, error: serde_json::Error },
    #[error("{path}: {what}")]
    Content { path: PathBuf, what: &'static str },
}

type Result<T> = std::result::Result<T, ReadError>;

pub fn all(source: Source, paths: &[PathBuf], lines_as_runs: bool) -> Result<Runs> {
    let mut runs = Runs::new();
    for path in paths {
        let found = match source {
            Source::Go => go(&text(path)?, lines_as_runs),
            Source::Criterion => criterion(path)?,
            Source::Hyperfine => hyperfine(path)?,
        };
        if found.is_empty() {
            let what = match source {
                Source::Go => "no result of a benchmark in it; wanted: the output of go test -bench",
                Source::Criterion => "no */new/sample.json below it; wanted: a folder target/criterion",
                Source::Hyperfine => {
                    "no \"results\" with \"times\" in it; wanted: a file of hyperfine --export-json"
                }
            };
            return Err(ReadError::Content {
                path: path.clone(),
                what,
            });
        }
        for (series, mut values) in found {
            runs.entry(series).or_default().append(&mut values);
        }
    }
    Ok(runs)
}

fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| ReadError::File {
        path: path.to_owned(),
        error,
    })
}

fn json(path: &Path) -> Result<Value> {
    serde_json::from_str(&text(path)?).map_err(|error| ReadError::Json {
        path: path.to_owned(),
        error,
    })
}

/// A process prints a line `pkg: NAME`, and then lines `BenchmarkName-8  N  VALUE UNIT  VALUE UNIT ...`, several of one name with `-count`.
fn go(text: &str, lines_as_runs: bool) -> Runs {
    let mut runs = Runs::new();
    // The values of the process that is being read.
    let mut process = Runs::new();
    let mut package = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("pkg:") {
            finish(&mut process, &mut runs);
            name.trim().clone_into(&mut package);
        }
        let Some((name, values)) = go_line(line) else {
            continue;
        };
        for (value, unit) in values {
            let series = Series {
                benchmark: format!("{package}.{name}").trim_start_matches('.').to_owned(),
                unit,
            };
            process.entry(series).or_default().push(value);
        }
        if lines_as_runs {
            finish(&mut process, &mut runs);
        }
    }
    finish(&mut process, &mut runs);
    runs
}

fn finish(process: &mut Runs, runs: &mut Runs) {
    for (series, values) in std::mem::take(process) {
        runs.entry(series).or_default().push(mean(&values));
    }
}

/// The name and its values with their units, if the line is a result.
fn go_line(line: &str) -> Option<(&str, Vec<(f64, String)>)> {
    let mut words = line.split_whitespace();
    let name = words.next().filter(|word| word.starts_with("Benchmark"))?;
    words.next()?.parse::<u64>().ok()?;
    let words: Vec<&str> = words.collect();
    let pairs = words
        .chunks_exact(2)
        .map(|pair| Some((pair[0].parse().ok()?, pair[1].to_owned())));
    let values: Option<Vec<(f64, String)>> = pairs.collect();
    Some((name, values.filter(|values| !values.is_empty())?))
}

/// One folder is one run: the mean time of an iteration over all samples of `NAME/new/sample.json`.
fn criterion(folder: &Path) -> Result<Runs> {
    let mut runs = Runs::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let sample = next.join("new/sample.json");
        if sample.is_file() {
            let name = next.strip_prefix(folder).unwrap_or(&next).display().to_string();
            let series = Series {
                benchmark: name,
                unit: "ns".to_owned(),
            };
            runs.insert(series, vec![per_iteration(&sample)?]);
            continue;
        }
        let entries = fs::read_dir(&next).map_err(|error| ReadError::File {
            path: next.clone(),
            error,
        })?;
        folders.extend(
            entries
                .filter_map(|e| Some(e.ok()?.path()))
                .filter(|path| path.is_dir()),
        );
    }
    Ok(runs)
}

fn per_iteration(path: &Path) -> Result<f64> {
    let sample = json(path)?;
    let sum = |key: &str| {
        sample[key]
            .as_array()
            .map(|list| list.iter().filter_map(Value::as_f64).sum::<f64>())
    };
    match (sum("times"), sum("iters")) {
        (Some(times), Some(iterations)) if iterations > 0.0 => Ok(times / iterations),
        _ => Err(ReadError::Content {
            path: path.to_owned(),
            what: "no lists \"times\" and \"iters\" in it",
        }),
    }
}

/// Each of its times is a process of its own.
fn hyperfine(path: &Path) -> Result<Runs> {
    let mut runs = Runs::new();
    let file = json(path)?;
    for result in file["results"].as_array().into_iter().flatten() {
        let (Some(command), Some(times)) = (result["command"].as_str(), result["times"].as_array()) else {
            continue;
        };
        // Two builds have two commands; what one file measures in the same place is compared.
        let command = match file["results"].as_array().map_or(0, Vec::len) {
            1 => "the command",
            _ => command,
        };
        let series = Series {
            benchmark: command.to_owned(),
            unit: "s".to_owned(),
        };
        runs.insert(series, times.iter().filter_map(Value::as_f64).collect());
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(benchmark: &str, unit: &str) -> Series {
        Series {
            benchmark: benchmark.to_owned(),
            unit: unit.to_owned(),
        }
    }

    #[test]
    fn a_process_of_go_is_one_run_whatever_its_count() {
        let text = "goos: linux\npkg: example.org/a\nBenchmarkSum-2   \t 100\t 10.0 ns/op\t 2 B/op\t 0 allocs/op\nBenchmarkSum-2 100 20.0 ns/op 2 B/op 0 allocs/op\n\
            --- BENCH: BenchmarkSum-2\nBenchmarkBroken\nPASS\npkg: example.org/a\nBenchmarkSum-2 100 30.0 ns/op 2 B/op 1 allocs/op\n";
        let runs = go(text, false);
        let name = "example.org/a.BenchmarkSum-2";
        assert_eq!(runs[&series(name, "ns/op")], [15.0, 30.0]);
        assert_eq!(runs[&series(name, "allocs/op")], [0.0, 1.0]);
        assert_eq!(runs.len(), 3);
        assert_eq!(go(text, true)[&series(name, "ns/op")], [10.0, 20.0, 30.0]);
        assert_eq!(
            go("BenchmarkSum 5 7 ns/op\n", false)[&series("BenchmarkSum", "ns/op")],
            [7.0]
        );
    }

    #[test]
    fn a_folder_of_criterion_is_one_run_of_every_benchmark_below_it() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "parse/short/new/sample.json",
            r#"{"sampling_mode":"Linear","iters":[1.0,2.0,3.0],"times":[12.0,20.0,28.0]}"#,
        );
        write(
            "parse/short/base/sample.json",
            r#"{"iters":[1.0],"times":[99.0]}"#,
        );
        write("sum/new/sample.json", r#"{"iters":[4],"times":[8]}"#);
        write("report/index.html", "");
        let runs = criterion(dir.path()).unwrap();
        assert_eq!(runs[&series("parse/short", "ns")], [10.0]);
        assert_eq!(runs[&series("sum", "ns")], [2.0]);
        write("sum/new/sample.json", "{}");
        assert!(
            criterion(dir.path())
                .unwrap_err()
                .to_string()
                .contains("sum/new/sample.json: no lists")
        );
    }

    #[test]
    fn every_time_of_hyperfine_is_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        fs::write(
            &path,
            r#"{"results":[{"command":"./old","mean":2.0,"times":[1.0,2.0,3.0]}]}"#,
        )
        .unwrap();
        assert_eq!(
            hyperfine(&path).unwrap()[&series("the command", "s")],
            [1.0, 2.0, 3.0]
        );
        fs::write(
            &path,
            r#"{"results":[{"command":"a","times":[1.0]},{"command":"b","times":[2.0]}]}"#,
        )
        .unwrap();
        assert_eq!(hyperfine(&path).unwrap().len(), 2);
        fs::write(&path, "{}").unwrap();
        let error = all(Source::Hyperfine, std::slice::from_ref(&path), false).unwrap_err();
        assert!(error.to_string().contains("--export-json"), "{error}");
    }
}
