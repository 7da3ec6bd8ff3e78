//! A real carbon-cache stores what weir delivers, and whisper's own tool reads it back.

use crate::support;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::ports::free_address;
use support::{Agent, configurations, until};

const PAGE: &str = include_str!("../../../docs/outputs/graphite.md");

struct Carbon {
    process: Option<Child>,
    /// Of its receivers of lines, TCP and UDP.
    address: String,
    last_port: String,
    directory: tempfile::TempDir,
}

impl Carbon {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().display();
        let (address, last_address) = (free_address(), free_address());
        let (host, port) = address.split_once(':').unwrap();
        let (last_host, last_port) = last_address.split_once(':').unwrap();
        let config = format!(
            "[cache]\nSTORAGE_DIR = {at}\nLOCAL_DATA_DIR = {at}/whisper\nCONF_DIR = {at}\nLOG_DIR = {at}\nPID_DIR = {at}\nUSER =\n\
             MAX_CREATES_PER_MINUTE = inf\nMAX_UPDATES_PER_SECOND = inf\nENABLE_TAGS = False\n\
             LINE_RECEIVER_INTERFACE = {host}\nLINE_RECEIVER_PORT = {port}\nENABLE_UDP_LISTENER = True\nUDP_RECEIVER_INTERFACE = {host}\n\
             UDP_RECEIVER_PORT = {port}\nPICKLE_RECEIVER_PORT = 0\nCACHE_QUERY_INTERFACE = {last_host}\nCACHE_QUERY_PORT = {last_port}\n"
        );
        std::fs::write(directory.path().join("carbon.conf"), config).unwrap();
        let schemas = "[all]\npattern = .*\nretentions = 1s:1h,1m:1d\n";
        std::fs::write(directory.path().join("storage-schemas.conf"), schemas).unwrap();
        std::fs::write(directory.path().join("storage-aggregation.conf"), "").unwrap();
        let mut carbon = Self {
            process: None,
            last_port: last_port.to_owned(),
            address,
            directory,
        };
        carbon.launch();
        carbon
    }

    /// With the files and the addresses it had.
    fn launch(&mut self) {
        let mut process = Command::new("carbon-cache")
            .args(["--nodaemon", "--debug", "--config"])
            .arg(self.directory.path().join("carbon.conf"))
            .arg("start")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("carbon-cache: scripts/install-test-deps.sh installs it");
        let mut log = String::new();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        self.process = Some(process);
        loop {
            let Some(Ok(line)) = lines.next() else {
                panic!("carbon ended:\n{log}")
            };
            log += &format!("{line}\n");
            // The listener that is opened last.
            if line.contains(&format!("starting on {}", self.last_port)) {
                break;
            }
        }
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    }

    /// Ends it; what it holds in memory alone is lost.
    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let root = self.directory.path().join("whisper");
        let mut files = Vec::new();
        walk(&root, &mut files);
        files.retain(|file| !file.starts_with(root.join("carbon")));
        files
    }

    /// Every whisper file with the points in it, as soon as there are so many and none is empty.
    fn points(&self, count: usize) -> BTreeMap<String, Vec<(i64, f64)>> {
        until(&format!("{count} files"), || self.files().len() >= count);
        let root = self.directory.path().join("whisper");
        let name = |file: &Path| file.strip_prefix(&root).unwrap().display().to_string();
        let mut found = BTreeMap::new();
        until("every file has its point", || {
            found = self
                .files()
                .iter()
                .map(|file| (name(file), fetch(file)))
                .collect();
            found.values().all(|points: &Vec<_>| !points.is_empty())
        });
        assert_eq!(found.len(), count, "{:?}", found.keys());
        found
    }
}

impl Drop for Carbon {
    fn drop(&mut self) {
        self.kill();
    }
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Points in the finest archive.
fn fetch(file: &Path) -> Vec<(i64, f64)> {
    let from = (std::time::SystemTime::now() - std::time::Duration::from_secs(1800))
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let output = Command::new("whisper-fetch")
        .args(["--json", &format!("--from={from}")])
        .arg(file)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["step"], 1);
    let start = found["start"].as_i64().unwrap();
    let values = found["values"].as_array().unwrap().iter().enumerate();
    values
        .filter_map(|(at, value)| Some((start + at as i64, value.as_f64()?)))
        .collect()
}

/// Where carbon keeps a series with tags: by the digest of its name.
fn tagged(name: &str) -> String {
    let mut digest = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    digest.stdin.take().unwrap().write_all(name.as_bytes()).unwrap();
    let output = digest.wait_with_output().unwrap();
    let digest = &String::from_utf8(output.stdout).unwrap()[..64];
    format!("_tagged/{}/{}/{digest}.wsp", &digest[..3], &digest[3..6])
}

const MESSAGES: &str = "page.views:1|c|@0.5|#env:prod\npage.views:3|c|#env:prod\npage.views:5|c|#env:test\nqueue:7|g|#host:db1\nqueue:2.5|g|#host:db1\n\
    users:ada|s\nusers:bob|s\nusers:ada|s\nload.time:4:1:3:2|ms|#k:/a b\nbytes:100:200:300|d\nodd name:1|g\nodd_name:2|g\n";

/// Base name, suffix, tags, value and relative tolerance.
type Expected = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
    f64,
    f64,
);

/// Expected values of MESSAGES, calculated by hand.
fn oracle() -> Vec<Expected> {
    let (timing, bytes): (&[_], &[_]) = (&[("host", "here"), ("k", "/a_b")], &[("host", "here")]);
    vec![
        (
            "page.views",
            ".count",
            &[("env", "prod"), ("host", "here")],
            5.0,
            0.0,
        ),
        (
            "page.views",
            ".count",
            &[("env", "test"), ("host", "here")],
            5.0,
            0.0,
        ),
        ("queue", "", &[("host", "db1")], 2.5, 0.0),
        ("users", "", &[("host", "here")], 2.0, 0.0),
        ("load.time", ".count", timing, 4.0, 0.0),
        ("load.time", ".min", timing, 1.0, 0.0),
        ("load.time", ".max", timing, 4.0, 0.0),
        ("load.time", ".avg", timing, 2.5, 0.0),
        ("load.time", ".sum", timing, 10.0, 0.0),
        ("load.time", ".p50", timing, 2.0, 0.0),
        ("load.time", ".p99", timing, 4.0, 0.0),
        ("bytes", ".count", bytes, 3.0, 0.0),
        ("bytes", ".min", bytes, 100.0, 0.0),
        ("bytes", ".max", bytes, 300.0, 0.0),
        ("bytes", ".avg", bytes, 200.0, 0.0),
        ("bytes", ".sum", bytes, 600.0, 0.0),
        ("bytes", ".p50", bytes, 200.0, 0.01),
    ]
}

/// Prefixes of the page's configuration, by kind.
fn kind_prefix(name: &str) -> &'static str {
    match name {
        "page.views" => "counters",
        "queue" => "gauges",
        "users" => "sets",
        _ => "timers",
    }
}

fn run(config: &str, carbon: &Carbon) {
    let directory = tempfile::tempdir().unwrap();
    let text = config
        .replace("127.0.0.1:2003", &carbon.address)
        .replace("/var/lib/weir", &directory.path().display().to_string());
    assert_ne!(text, config);
    let agent = Agent::start(&text, &[]);
    agent.send(MESSAGES);
    agent.send("_sc|page|0\n_e{1,1}:a|b\n");
    agent.stop();
}

fn check(found: &BTreeMap<String, Vec<(i64, f64)>>, file: &str, value: f64, tolerance: f64) {
    let points = found
        .get(file)
        .unwrap_or_else(|| panic!("{file} is not among {:?}", found.keys()));
    // A counter may have been idle in a bucket that the end of the agent opened.
    let points: Vec<&(i64, f64)> = points.iter().filter(|(_, stored)| *stored != 0.0).collect();
    let [(_, stored)] = points[..] else {
        panic!("{file}: one point, not {points:?}")
    };
    assert!(
        (stored - value).abs() <= tolerance * value,
        "{file}: {stored}, not {value}"
    );
}

#[test]
fn a_real_carbon_stores_series_with_tags_and_with_tags_in_the_path() {
    let carbon = Carbon::start();
    let [minimal, full] = configurations(PAGE)[..] else {
        panic!("two configurations")
    };
    support::names_every_setting(full, "graphite");
    run(minimal, &carbon);
    // The last two messages, which became one name, have a file each; 95th percentiles complete the histograms.
    let of_minimal = oracle().len() + 2 + 3;
    let found = carbon.points(of_minimal);
    for (name, suffix, tags, value, tolerance) in oracle() {
        let tags: String = tags
            .iter()
            .map(|(key, value)| format!(";{key}={value}"))
            .collect();
        let file = tagged(&format!("{name}{suffix}{tags}"));
        check(&found, &file, value, tolerance);
    }

    run(full, &carbon);
    // The last two messages, which became one name; two counters as rates; 99th and 99.9th percentiles.
    let found = carbon.points(of_minimal + oracle().len() + 2 + 2 + 3);
    let odd = found
        .iter()
        .filter(|(file, _)| file.starts_with("stats/gauges/odd_name"));
    let odd: Vec<(&String, f64)> = odd.map(|(file, points)| (file, points[0].1)).collect();
    assert_eq!(odd.len(), 2, "{odd:?}");
    assert_eq!(odd[0].1 + odd[1].1, 3.0, "each has its own value: {odd:?}");
    assert_eq!(odd[0].0, "stats/gauges/odd_name/host/here.wsp");
    let node = |text: &str| text.replace(['/', ' '], "_");
    for (name, suffix, tags, value, tolerance) in oracle() {
        let tags: String = tags
            .iter()
            .map(|(key, value)| format!("/{key}/{}", node(value)))
            .collect();
        let path = format!(
            "stats/{}/{}{tags}{}.wsp",
            kind_prefix(name),
            name.replace('.', "/"),
            suffix.replace('.', "/")
        );
        check(&found, &path, value, tolerance);
    }
}
