//! The record of one run: JSON Lines, one object per observation, compressed while it is written.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

pub const VERSION: u32 = 1;

/// The part of a run that an observation belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// From exec to the first packet.
    Start,
    Warmup,
    Measure,
    /// From the last packet until everything is delivered.
    Drain,
}

impl Phase {
    pub const ALL: [Phase; 4] = [Phase::Start, Phase::Warmup, Phase::Measure, Phase::Drain];
}

/// First line of a capture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub v: u32,
    pub run: String,
    pub exp: String,
    pub arm: String,
    /// Number of the attempt, counted per experiment and arm; a repeated pair gets new numbers.
    pub rep: usize,
    pub pair: usize,
    pub order: String,
    /// Hexadecimal; JSON numbers lose bits above 2^53.
    pub seed: String,
    pub bin_sha256: String,
    /// Wall clock of `t = 0`, nanoseconds since 1970.
    pub started_unix_ns: u64,
    #[serde(default)]
    pub host: BTreeMap<String, String>,
}

/// One observation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaptureLine {
    /// Nanoseconds since the run began, monotonic.
    pub t: u64,
    pub ph: Phase,
    /// Name of the series.
    pub m: String,
    /// `counter` or `gauge`.
    pub k: String,
    pub v: f64,
    pub l: Labels,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Labels {
    /// `target`, `telemetry`, `generator`, `sink`, `observer` or `host`.
    pub src: String,
}

/// Writes a capture.
pub struct Writer {
    out: zstd::stream::write::Encoder<'static, BufWriter<File>>,
}

impl Writer {
    pub fn create(path: &Path, header: &Header) -> io::Result<Self> {
        let file = BufWriter::new(File::create(path)?);
        let mut writer = Self {
            out: zstd::stream::write::Encoder::new(file, 3)?,
        };
        writer.json(header)?;
        Ok(writer)
    }

    pub fn add(&mut self, t: u64, ph: Phase, src: &str, m: &str, counter: bool, v: f64) -> io::Result<()> {
        if !v.is_finite() {
            return Ok(());
        }
        self.json(&CaptureLine {
            t,
            ph,
            m: m.to_owned(),
            k: if counter { "counter" } else { "gauge" }.to_owned(),
            v,
            l: Labels { src: src.to_owned() },
        })
    }

    fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, value)?;
        self.out.write_all(b"\n")
    }

    /// Writes the rest; an error here (a full disk) means the capture is incomplete.
    pub fn finish(self) -> io::Result<()> {
        let mut file = self.out.finish()?;
        file.flush()?;
        Ok(())
    }
}

/// One value of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub t: u64,
    pub phase: Phase,
    pub v: f64,
}

impl Point {
    pub fn seconds(&self) -> f64 {
        self.t as f64 / 1e9
    }
}

/// A capture in memory.
#[derive(Debug, Clone)]
pub struct Capture {
    pub header: Header,
    series: BTreeMap<(String, String), Vec<Point>>,
    /// The file ended in the middle of a line or of a compressed block: the writer died.
    pub truncated: bool,
}

impl Capture {
    /// Reads `capture.jsonl.zst`, or `capture.jsonl` if it was unpacked.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let packed = folder.join("capture.jsonl.zst");
        let path = if packed.is_file() {
            packed
        } else {
            folder.join("capture.jsonl")
        };
        let file = File::open(&path).map_err(|e| named(&path, e))?;
        let input: Box<dyn Read> = if path.extension().is_some_and(|e| e == "zst") {
            Box::new(zstd::stream::read::Decoder::new(file)?)
        } else {
            Box::new(file)
        };
        Self::parse(BufReader::new(input), &path)
    }

    fn parse(input: impl BufRead, path: &Path) -> io::Result<Self> {
        let mut lines = input.lines();
        let first = lines
            .next()
            .ok_or_else(|| bad(path, 1, "empty"))?
            .map_err(|e| named(path, e))?;
        let header: Header = serde_json::from_str(&first).map_err(|e| bad(path, 1, &e.to_string()))?;
        if header.v != VERSION {
            return Err(bad(
                path,
                1,
                &format!("format version {}, this program reads {VERSION}", header.v),
            ));
        }
        let mut series: BTreeMap<(String, String), Vec<Point>> = BTreeMap::new();
        let mut truncated = false;
        let mut broken: Option<(usize, String)> = None;
        for (i, line) in lines.enumerate() {
            let Ok(text) = line else {
                truncated = true;
                break;
            };
            if let Some((line, error)) = broken {
                return Err(bad(path, line, &error));
            }
            match serde_json::from_str::<CaptureLine>(&text) {
                Ok(l) => series.entry((l.l.src, l.m)).or_default().push(Point {
                    t: l.t,
                    phase: l.ph,
                    v: l.v,
                }),
                // Only the last line may be broken: then the writer died.
                Err(e) => broken = Some((i + 2, e.to_string())),
            }
        }
        // Lines of several writers are appended in any order; time decides.
        series.values_mut().for_each(|s| s.sort_by_key(|p| p.t));
        Ok(Self {
            header,
            series,
            truncated: truncated || broken.is_some(),
        })
    }

    pub fn series(&self, src: &str, name: &str) -> &[Point] {
        self.series
            .get(&(src.to_owned(), name.to_owned()))
            .map_or(&[], Vec::as_slice)
    }

    /// Points of the measured window.
    pub fn window(&self, src: &str, name: &str) -> Vec<Point> {
        self.series(src, name)
            .iter()
            .filter(|p| p.phase == Phase::Measure)
            .copied()
            .collect()
    }

    /// Increase of a counter over the window, and the seconds between the two readings. Counters instead of averages of rates: a late
    /// reading then changes both numbers and not the quotient.
    ///
    /// It begins with the last reading of the warm-up, so that n readings are n periods: a window of complete flush intervals then has the
    /// same number of flushes in every replicate.
    pub fn increase(&self, src: &str, name: &str) -> Option<(f64, f64)> {
        let (first, last) = self.ends(src, name)?;
        Some((last.v - first.v, last.seconds() - first.seconds()))
    }

    /// The readings with which the window of a counter begins and ends.
    pub fn ends(&self, src: &str, name: &str) -> Option<(Point, Point)> {
        let points = self.series(src, name);
        let begin = points.iter().position(|p| p.phase == Phase::Measure)?;
        let before = points[..begin].last().filter(|p| p.phase == Phase::Warmup);
        let first = before.unwrap_or(&points[begin]);
        let last = points.iter().rfind(|p| p.phase == Phase::Measure)?;
        (last.t > first.t).then_some((*first, *last))
    }

    /// A counter at a moment between two of its readings, as if it rose evenly from one to the next.
    pub fn at(&self, src: &str, name: &str, t: u64) -> Option<f64> {
        let points = self.series(src, name);
        let after = points.iter().position(|p| p.t >= t)?;
        if points[after].t == t {
            return Some(points[after].v);
        }
        let (a, b) = (points.get(after.checked_sub(1)?)?, &points[after]);
        Some(a.v + (b.v - a.v) * (t - a.t) as f64 / (b.t - a.t) as f64)
    }

    pub fn rate(&self, src: &str, name: &str) -> Option<f64> {
        self.increase(src, name).map(|(v, s)| v / s)
    }

    pub fn values(&self, src: &str, name: &str, phases: &[Phase]) -> Vec<f64> {
        self.series(src, name)
            .iter()
            .filter(|p| phases.contains(&p.phase))
            .map(|p| p.v)
            .collect()
    }
}

/// Increase per nanosecond between neighbouring readings; for CPU time, shares of a core.
pub fn shares(points: &[Point]) -> Vec<f64> {
    points
        .windows(2)
        .filter(|w| w[1].t > w[0].t)
        .map(|w| (w[1].v - w[0].v) / (w[1].t - w[0].t) as f64)
        .collect()
}

fn named(path: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

fn bad(path: &Path, line: usize, what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{}:{line}: {what}", path.display()),
    )
}

/// One event of a run (`events.jsonl`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub t: u64,
    pub event: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

pub fn read_events(folder: &Path) -> Vec<Event> {
    let Ok(text) = std::fs::read_to_string(folder.join("events.jsonl")) else {
        return Vec::new();
    };
    text.lines()
        .filter_map(|l| serde_json::from_str(l).ok())
        .collect()
}

/// The number of a replicate, from its directory name.
pub fn replicate_number(folder: &Path) -> Option<usize> {
    folder.file_name()?.to_str()?.parse().ok()
}

/// Replicate directories of one arm in the order of their numbers.
pub fn replicate_folders(arm: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(arm) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(named(arm, e)),
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut folders: Vec<PathBuf> = paths
        .filter(|path| path.is_dir() && replicate_number(path).is_some())
        .collect();
    folders.sort_by_key(|path| replicate_number(path));
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            v: VERSION,
            run: "r".into(),
            exp: "e".into(),
            arm: "baseline".into(),
            rep: 0,
            pair: 0,
            order: "BC".into(),
            seed: "7".into(),
            bin_sha256: "00".into(),
            started_unix_ns: 5,
            host: BTreeMap::new(),
        }
    }

    #[test]
    fn a_written_capture_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut w = Writer::create(&dir.path().join("capture.jsonl.zst"), &header()).unwrap();
        for (i, phase) in [
            Phase::Start,
            Phase::Measure,
            Phase::Measure,
            Phase::Measure,
            Phase::Drain,
        ]
        .into_iter()
        .enumerate()
        {
            let t = i as u64 * 1_000_000_000 + u64::from(i == 3) * 500_000_000;
            w.add(t, phase, "target", "cpu_ns", true, t as f64 * 0.25)
                .unwrap();
            w.add(t, phase, "target", "nothing", false, f64::NAN).unwrap();
        }
        w.finish().unwrap();
        let c = Capture::read(dir.path()).unwrap();
        assert_eq!(c.header, header());
        // The late reading is used with its true time, so the rate is exact.
        assert_eq!(c.rate("target", "cpu_ns"), Some(0.25e9));
        assert_eq!(c.increase("target", "cpu_ns").unwrap().1, 2.5);
        assert!(c.series("target", "nothing").is_empty() && !c.truncated);
    }

    #[test]
    fn a_truncated_capture_is_read_to_its_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("capture.jsonl.zst");
        let mut w = Writer::create(&path, &header()).unwrap();
        for t in 0..20_000 {
            w.add(
                t,
                Phase::Measure,
                "target",
                "a",
                false,
                (t * 7919 % 104_729) as f64,
            )
            .unwrap();
        }
        w.finish().unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() * 2 / 3]).unwrap();
        let c = Capture::read(dir.path()).unwrap();
        assert!(c.truncated);
        let n = c.series("target", "a").len();
        assert!((1..20_000).contains(&n), "{n}");
    }

    #[test]
    fn broken_lines_in_the_middle_are_errors_with_their_number() {
        let dir = tempfile::tempdir().unwrap();
        let head = serde_json::to_string(&header()).unwrap();
        std::fs::write(
            dir.path().join("capture.jsonl"),
            format!("{head}\n{{\"t\":\n{{}}\n"),
        )
        .unwrap();
        let e = Capture::read(dir.path()).unwrap_err().to_string();
        assert!(e.contains("capture.jsonl:2:"), "{e}");
        std::fs::write(
            dir.path().join("capture.jsonl"),
            head.replace("\"v\":1", "\"v\":9"),
        )
        .unwrap();
        assert!(
            Capture::read(dir.path())
                .unwrap_err()
                .to_string()
                .contains("version 9")
        );
    }
}
