//! Compares profiles: where two programs spend CPU time, allocate, hold memory and wait for locks.
//!
//! Reads the pprof format that Go programs and weir serve. Every column degrades to n/a: a program without an endpoint is still compared by
//! the CPU time that the kernel charges.

use super::capture::Capture;
use super::record::{ARMS, replicate_folder};
use super::replicate::{self, Profiled, Replicate};
use super::report::{escape, signed};
use super::run::{self, DetectError, Options, Prepared, Rig};
use super::waits;
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use weir_regress::describe::{mean, sd};
use weir_regress::plan::plan;
use weir_rig_base::{clock, http, process, signal};

/// The pprof message; only the fields that are used here.
#[derive(Clone, PartialEq, Message)]
struct Pprof {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
}

/// A decoded profile: totals by kind of value, and stacks (outermost function first) of the last requested kind.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Profile {
    /// `cpu` in nanoseconds, `alloc_objects`, `inuse_space`, `delay`, ...
    pub totals: BTreeMap<String, f64>,
    kinds: Vec<String>,
    stacks: Vec<(Vec<String>, Vec<i64>)>,
}

/// Why bytes are not a profile.
#[derive(Debug, thiserror::Error)]
pub enum PprofError {
    #[error("gzip: {0}")]
    Gzip(#[source] io::Error),
    #[error("not a pprof profile: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error("a profile without sample types")]
    NoSampleTypes,
}

impl Profile {
    /// Decodes a profile, compressed or not.
    pub fn decode(bytes: &[u8]) -> Result<Self, PprofError> {
        let mut plain = Vec::new();
        let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
            flate2::read::GzDecoder::new(bytes)
                .read_to_end(&mut plain)
                .map_err(PprofError::Gzip)?;
            &plain
        } else {
            bytes
        };
        let p = Pprof::decode(bytes).map_err(PprofError::Decode)?;
        let text = |i: i64| p.string_table.get(i as usize).cloned().unwrap_or_default();
        let kinds: Vec<String> = p.sample_type.iter().map(|t| text(t.kind)).collect();
        if kinds.is_empty() {
            return Err(PprofError::NoSampleTypes);
        }
        let functions: HashMap<u64, String> = p.function.iter().map(|f| (f.id, text(f.name))).collect();
        let locations: HashMap<u64, Vec<String>> = p
            .location
            .iter()
            .map(|l| {
                // Inlined functions share a location; the innermost comes first.
                let names: Vec<String> = l
                    .line
                    .iter()
                    .map(|x| functions.get(&x.function_id).cloned().unwrap_or_default())
                    .collect();
                (
                    l.id,
                    if names.is_empty() {
                        vec![format!("{:#x}", l.address)]
                    } else {
                        names
                    },
                )
            })
            .collect();
        let mut totals: BTreeMap<String, f64> = BTreeMap::new();
        let mut stacks = Vec::new();
        for s in &p.sample {
            for (kind, v) in kinds.iter().zip(&s.value) {
                *totals.entry(kind.clone()).or_default() += *v as f64;
            }
            let mut stack: Vec<String> = s
                .location_id
                .iter()
                .filter_map(|id| locations.get(id))
                .flatten()
                .cloned()
                .collect();
            stack.reverse();
            stacks.push((stack, s.value.clone()));
        }
        for kind in &kinds {
            totals.entry(kind.clone()).or_default();
        }
        Ok(Self {
            totals,
            kinds,
            stacks,
        })
    }

    fn read(path: &Path) -> Option<Self> {
        Self::decode(&fs::read(path).ok()?).ok()
    }

    /// Stacks with the value of one kind.
    fn folded(&self, kind: &str) -> Vec<(&[String], f64)> {
        let Some(i) = self.kinds.iter().position(|k| k == kind) else {
            return Vec::new();
        };
        self.stacks
            .iter()
            .filter_map(|(s, v)| Some((s.as_slice(), *v.get(i)? as f64)))
            .collect()
    }

    /// The value of each function without its callees.
    pub fn own(&self, kind: &str) -> HashMap<String, f64> {
        let mut own = HashMap::new();
        for (stack, v) in self.folded(kind) {
            if let Some(last) = stack.last() {
                *own.entry(last.clone()).or_default() += v;
            }
        }
        own
    }
}

/// File with the time that threads waited for mutexes, in nanoseconds.
const MUTEX_WAIT: &str = "mutex-wait-ns";

/// Takes a target's own profiles, and those seen from outside. Returns notes about missing ones.
fn take(target: &Profiled) -> Vec<String> {
    thread::scope(|scope| {
        let waited = scope.spawn(|| waits::mutexes(target.pid, target.window));
        let mut notes = match target.pprof {
            Some(base) => fetch(base, target.folder, target.window),
            None => Vec::new(),
        };
        let Some(waited) = waited.join().ok().flatten() else {
            notes.push("profile: the kernel does not show what threads wait for".to_owned());
            return notes;
        };
        let file = target.folder.join(MUTEX_WAIT);
        if let Err(e) = fs::write(file, waited.as_nanos().to_string()) {
            notes.push(format!("profile {MUTEX_WAIT}: {e}"));
        }
        notes
    })
}

/// Fetches a target's profiles while the load runs: the CPU profile covers the window, the others are taken at its end.
fn fetch(base: &str, folder: &Path, window: Duration) -> Vec<String> {
    let base = base.trim_end_matches('/');
    let mut notes = Vec::new();
    let mut get = |path: &str, file: &str, limit: Duration| {
        let result = http::get(&format!("{base}/{path}"), limit)
            .map_err(|e| e.to_string())
            .and_then(|r| {
                if r.status != 200 {
                    return Err(format!("status {}", r.status));
                }
                Profile::decode(&r.body).map_err(|e| e.to_string())?;
                fs::write(folder.join(file), &r.body).map_err(|e| e.to_string())
            });
        if let Err(e) = result {
            notes.push(format!("profile {file}: {e}"));
        }
    };
    // A second less than the window, so that it excludes the end of the load.
    let seconds = window.as_secs().saturating_sub(1).max(1);
    get(
        &format!("profile?seconds={seconds}"),
        "cpu.pb.gz",
        Duration::from_secs(seconds + 20),
    );
    get("allocs", "allocs.pb.gz", Duration::from_secs(20));
    get("heap?gc=1", "heap.pb.gz", Duration::from_secs(20));
    get("mutex", "mutex.pb.gz", Duration::from_secs(20));
    notes
}

/// The numbers of one extra replicate.
#[derive(Debug, Default, Clone)]
struct ExtraRun {
    cpu_s: Option<f64>,
    allocations: Option<f64>,
    heap_bytes: Option<f64>,
    mutex_s: Option<f64>,
    cpu: Option<Profile>,
}

fn taken(folder: &Path) -> ExtraRun {
    let capture = Capture::read(folder).ok();
    let total =
        |file: &str, kind: &str| Profile::read(&folder.join(file)).and_then(|p| p.totals.get(kind).copied());
    ExtraRun {
        cpu_s: capture
            .as_ref()
            .and_then(|c| c.increase("target", "cpu_ns"))
            .map(|(v, _)| v / 1e9),
        // Go serves lifetime allocations as a separate profile, others as part of the heap profile.
        allocations: total("allocs.pb.gz", "alloc_objects").or_else(|| total("heap.pb.gz", "alloc_objects")),
        heap_bytes: total("heap.pb.gz", "inuse_space").or_else(|| {
            // Private dirty memory is the fallback for a program without a heap profile.
            let dirty = capture.as_ref()?.window("target", "private_dirty_bytes");
            Some(dirty.last()?.v)
        }),
        // Go keeps books of it; of others it is seen from outside.
        mutex_s: total("mutex.pb.gz", "delay")
            .or_else(|| fs::read_to_string(folder.join(MUTEX_WAIT)).ok()?.parse().ok())
            .map(|ns| ns / 1e9),
        cpu: Profile::read(&folder.join("cpu.pb.gz")),
    }
}

/// Runs the extra replicates and writes `profile.md` and one flame graph per experiment.
pub fn run(o: &Options, replicates: usize) -> Result<(PathBuf, String), DetectError> {
    let (prepared, arms) = run::prepare(o)?;
    let now = super::report::stamp(clock::unix_ns() / 1_000_000_000);
    let folder = o.wanted.results.join(format!("profile-{now}"));
    let failed = |e| DetectError::failed_at(&folder, e);
    fs::create_dir_all(&folder).map_err(failed)?;
    let folder = fs::canonicalize(&folder).map_err(failed)?;
    signal::catch_interrupts();
    process::become_subreaper();
    let rig = Rig::new(&prepared, &arms, "profile".to_owned())?;
    let schedule = plan(o.seed, prepared.len(), replicates);
    for planned in schedule.iter().flatten() {
        let e = &prepared[planned.experiment];
        if e.info.unsupported.is_some() {
            continue;
        }
        for (arm, name) in ARMS.iter().enumerate() {
            eprintln!("profiling {} {name} {}/{replicates}", e.name, planned.pair + 1);
            let target = replicate_folder(&folder, &e.name, name, planned.pair);
            let result = replicate::run(&Replicate {
                profile: Some(&take),
                ..rig.replicate(e, planned, arm, (planned.pair, &target))
            });
            let measured = result.map_err(DetectError::failed)?;
            if !measured.invalid.is_empty() {
                let why = measured.invalid.join("; ");
                return Err(DetectError::Failed(format!("{} {}: {why}", e.name, ARMS[arm])));
            }
        }
    }
    let text = compare(&folder, &prepared, replicates).map_err(|e| DetectError::failed_at(&folder, e))?;
    Ok((folder, text))
}

fn compare(folder: &Path, prepared: &[Prepared], replicates: usize) -> std::io::Result<String> {
    let mut table = String::from(
        "| experiment | CPU time | lifetime allocations | heap live size | mutex time |\n| --- | --- | --- | --- | --- |\n",
    );
    let mut details = String::new();
    for e in run::runnable(prepared) {
        let [b, c] = ARMS.map(|arm| {
            let folders = (0..replicates).map(|n| replicate_folder(folder, &e.name, arm, n));
            folders.map(|folder| taken(&folder)).collect::<Vec<ExtraRun>>()
        });
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} |",
            e.name,
            column(&b, &c, |t| t.cpu_s, 1.0, "s"),
            column(&b, &c, |t| t.allocations, 1e6, "M"),
            column(&b, &c, |t| t.heap_bytes, 1_048_576.0, "MiB"),
            column(&b, &c, |t| t.mutex_s, 1.0, "s")
        );
        let [b, c] = [b, c].map(|all| all.into_iter().filter_map(|t| t.cpu).collect::<Vec<Profile>>());
        if b.is_empty() || c.is_empty() {
            let _ = writeln!(details, "\n{}: no CPU profile of both programs.", e.name);
            continue;
        }
        details.push_str(&top(&e.name, &b, &c));
        let file = format!("flame-{}.svg", super::report::file_name(&e.name));
        fs::write(folder.join(file), flame(&e.name, &b, &c))?;
    }
    let text = format!(
        "Change from baseline to comparison over the measured window, mean of {replicates} extra replicates per program, ± the \
         standard deviation of both; n/a where a program does not report it. Mutex time is the program's own profile, or what `/proc` shows in a \
         thousand samples per second.\n\n{table}{details}"
    );
    fs::write(folder.join("profile.md"), &text)?;
    Ok(text)
}

fn column(
    b: &[ExtraRun],
    c: &[ExtraRun],
    pick: fn(&ExtraRun) -> Option<f64>,
    scale: f64,
    unit: &str,
) -> String {
    let values = |all: &[ExtraRun]| {
        all.iter()
            .filter_map(pick)
            .map(|v| v / scale)
            .collect::<Vec<f64>>()
    };
    let (b, c) = (values(b), values(c));
    if b.is_empty() || c.is_empty() {
        return "n/a".to_owned();
    }
    let spread = (sd(&b).powi(2) + sd(&c).powi(2)).sqrt();
    format!(
        "{} {unit} ± {spread:.2} ({:.2} → {:.2})",
        signed(mean(&c) - mean(&b)),
        mean(&b),
        mean(&c)
    )
}

/// The time value of CPU profiles; Go calls it `cpu`, others count samples.
fn time_kind(p: &Profile) -> &str {
    ["cpu", "wall", "samples"]
        .into_iter()
        .find(|k| p.totals.contains_key(*k))
        .unwrap_or_else(|| p.kinds.last().map_or("", String::as_str))
}

fn average(profiles: &[Profile]) -> HashMap<String, f64> {
    let mut sum: HashMap<String, f64> = HashMap::new();
    for p in profiles {
        for (name, v) in p.own(time_kind(p)) {
            *sum.entry(name).or_default() += v / profiles.len() as f64;
        }
    }
    sum
}

fn top(name: &str, baseline: &[Profile], comparison: &[Profile]) -> String {
    let (b, c) = (average(baseline), average(comparison));
    let mut names: Vec<&String> = b.keys().chain(c.keys()).collect();
    names.sort();
    names.dedup();
    let value = |m: &HashMap<String, f64>, n: &str| m.get(n).copied().unwrap_or(0.0) / 1e6;
    names.sort_by(|x, y| {
        let change = |n: &str| (value(&c, n) - value(&b, n)).abs();
        change(y).total_cmp(&change(x))
    });
    let mut out = format!(
        "\n### {name}: functions whose own CPU time changed most\n\n| Δ ms | baseline ms | comparison ms | function |\n| --- | --- | --- | --- |\n"
    );
    for n in names.iter().take(20) {
        let (x, y) = (value(&b, n), value(&c, n));
        let _ = writeln!(
            out,
            "| {} | {x:.0} | {y:.0} | `{}` |",
            signed(y - x),
            n.replace('|', "\\|")
        );
    }
    out
}

#[derive(Default)]
struct Node {
    baseline: f64,
    comparison: f64,
    children: BTreeMap<String, Node>,
}

fn tree(baseline: &[Profile], comparison: &[Profile]) -> Node {
    let mut root = Node::default();
    for (profiles, is_baseline) in [(baseline, true), (comparison, false)] {
        for p in profiles {
            for (stack, v) in p.folded(time_kind(p)) {
                let v = v / profiles.len() as f64;
                let mut node = &mut root;
                let add = |n: &mut Node| {
                    if is_baseline {
                        n.baseline += v
                    } else {
                        n.comparison += v
                    }
                };
                add(node);
                for frame in stack {
                    node = node.children.entry(frame.clone()).or_default();
                    add(node);
                }
            }
        }
    }
    root
}

/// A flame graph of both programs: width is the larger of the two shares, red is more in the comparison, blue is less.
fn flame(name: &str, baseline: &[Profile], comparison: &[Profile]) -> String {
    let root = tree(baseline, comparison);
    let mut boxes = String::new();
    let depth = draw(
        &mut boxes,
        &root,
        "all",
        0.0,
        1200.0,
        0,
        &(root.baseline.max(1.0), root.comparison.max(1.0)),
    );
    let height = 40.0 + 17.0 * (depth + 1) as f64;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1200 {height}\" width=\"1200\" height=\"{height}\" style=\"background:#fff\">\
         <style>text{{font:11px ui-monospace,monospace;fill:#111}}</style><text x=\"6\" y=\"16\">{}: CPU time by call, red is more in the comparison, blue is less</text>\
         <g transform=\"translate(0,28)\">{boxes}</g></svg>\n",
        escape(name)
    )
}

fn draw(
    out: &mut String,
    node: &Node,
    name: &str,
    x: f64,
    width: f64,
    level: usize,
    totals: &(f64, f64),
) -> usize {
    if width < 0.8 {
        return level;
    }
    let (b, c) = (node.baseline / totals.0, node.comparison / totals.1);
    let change = if b.max(c) > 0.0 { (c - b) / b.max(c) } else { 0.0 };
    let fade = (255.0 - 150.0 * change.abs()) as u8;
    let colour = if change >= 0.0 {
        format!("rgb(255,{fade},{fade})")
    } else {
        format!("rgb({fade},{fade},255)")
    };
    let fits = (width / 6.8) as usize;
    let label: String = if fits >= 4 {
        name.chars().take(fits).collect()
    } else {
        String::new()
    };
    let y = 17 * level;
    let _ = write!(
        out,
        "<g><title>{}: {:.1} % of baseline, {:.1} % of comparison</title><rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"16\" fill=\"{colour}\" stroke=\"#fff\"/><text x=\"{:.1}\" y=\"{}\">{}</text></g>",
        escape(name),
        100.0 * b,
        100.0 * c,
        x + 3.0,
        y + 12,
        escape(&label)
    );
    let weight = |n: &Node| (n.baseline / totals.0).max(n.comparison / totals.1);
    let sum: f64 = node.children.values().map(weight).sum();
    // Children of both programs together may need more room than their parent has.
    let scale = width / weight(node).max(sum).max(f64::MIN_POSITIVE);
    let mut deepest = level;
    let mut at = x;
    for (child, n) in &node.children {
        let w = weight(n) * scale;
        deepest = deepest.max(draw(out, n, child, at, w, level + 1, totals));
        at += w;
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// `main -> parse` and `main -> flush` with the given values, as a Go program would encode it.
    fn encoded(parse: i64, flush: i64) -> Vec<u8> {
        let strings = [
            "",
            "samples",
            "count",
            "cpu",
            "nanoseconds",
            "main",
            "parse",
            "flush",
        ];
        let p = Pprof {
            sample_type: vec![ValueType { kind: 1, unit: 2 }, ValueType { kind: 3, unit: 4 }],
            sample: vec![
                Sample {
                    location_id: vec![2, 1],
                    value: vec![parse / 10_000_000, parse],
                },
                Sample {
                    location_id: vec![3, 1],
                    value: vec![flush / 10_000_000, flush],
                },
            ],
            location: (1..=3)
                .map(|i| Location {
                    id: i,
                    address: i,
                    line: vec![Line { function_id: i }],
                })
                .collect(),
            function: (1..=3)
                .map(|i| Function {
                    id: i,
                    name: i as i64 + 4,
                })
                .collect(),
            string_table: strings.map(str::to_owned).to_vec(),
        };
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&p.encode_to_vec()).unwrap();
        gz.finish().unwrap()
    }

    #[test]
    fn totals_stacks_and_own_time() {
        let p = Profile::decode(&encoded(300_000_000, 100_000_000)).unwrap();
        assert_eq!(p.totals["cpu"], 4e8);
        assert_eq!(p.own("cpu")["parse"], 3e8);
        assert!(!p.own("cpu").contains_key("main"));
        assert_eq!(p.folded("cpu")[0].0, ["main", "parse"]);
        assert!(Profile::decode(b"<html>").is_err());
    }

    #[test]
    fn differences_are_listed_and_drawn() {
        let b = [Profile::decode(&encoded(300_000_000, 100_000_000)).unwrap()];
        let c = [Profile::decode(&encoded(100_000_000, 120_000_000)).unwrap()];
        let text = top("case", &b, &c);
        let rows: Vec<&str> = text.lines().filter(|l| l.contains('`')).collect();
        assert!(rows[0].contains("-200") && rows[0].contains("`parse`"), "{text}");
        assert!(rows[1].contains("+20") && rows[1].contains("`flush`"), "{text}");
        let svg = flame("case", &b, &c);
        assert!(
            svg.contains("parse: 75.0 % of baseline, 45.5 % of comparison"),
            "{svg}"
        );
    }

    #[test]
    fn missing_profiles_are_not_available_and_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let t = taken(dir.path());
        assert_eq!(
            column(
                std::slice::from_ref(&t),
                std::slice::from_ref(&t),
                |t| t.allocations,
                1e6,
                "M"
            ),
            "n/a"
        );
    }
}
