//! Receivers of what agents send: a real Prometheus, and programs built from their sources.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

// Their tests need these beside them.
#[allow(unused_imports)]
pub use super::ports::free_address;
#[allow(unused_imports)]
pub use super::{Agent, Killed, PATIENCE, PointBooks, until};

/// Head and body of an answer, if there is one.
pub fn get(address: &str, path: &str, accept: &str) -> Option<(String, Vec<u8>)> {
    let head = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: {accept}");
    let mut answer = super::exchange(address, &head).ok()?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let body = answer.split_off(end + 4);
    Some((String::from_utf8(answer).ok()?, body))
}

pub struct Prometheus {
    child: Killed,
    pub address: String,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    pub fn start(targets: &[(&str, &str)], arguments: &[&str]) -> Prometheus {
        Self::start_program(Path::new("prometheus"), targets, arguments)
    }

    pub fn start_program(program: &Path, targets: &[(&str, &str)], arguments: &[&str]) -> Prometheus {
        let mut config =
            String::from("global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\nscrape_configs:\n");
        for (job, target) in targets {
            config += &format!("  - job_name: {job}\n    static_configs:\n      - targets: ['{target}']\n");
        }
        Self::start_configured(program, &free_address(), &config, arguments)
    }

    pub fn start_configured(program: &Path, address: &str, config: &str, arguments: &[&str]) -> Prometheus {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("prometheus.yml");
        std::fs::write(&file, config).unwrap();
        let child = Command::new(program)
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus is installed (scripts/install-test-deps.sh)");
        Prometheus {
            child: Killed(child),
            address: address.to_owned(),
            _directory: directory,
        }
    }

    /// Values of an instant query, by their labels without job and instance.
    pub fn query(&mut self, query: &str) -> Result<BTreeMap<String, f64>, String> {
        self.query_all(query, &["job", "instance"])
    }

    /// The results of an instant query, or with a start and a step in seconds of a range until now, as Prometheus answers.
    pub fn results(&mut self, query: &str, range: Option<(u64, u64)>) -> Result<Vec<Value>, String> {
        if let Some(status) = self.child.0.try_wait().unwrap() {
            panic!("prometheus has ended: {status}");
        }
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = match range {
            None => format!("/api/v1/query?query={encoded}"),
            Some((seconds, step)) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
                let start = now - seconds;
                format!("/api/v1/query_range?query={encoded}&start={start}&end={now}&step={step}")
            }
        };
        let (_, body) = get(&self.address, &path, "*/*").ok_or("no answer")?;
        let answer: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        if answer["status"] != "success" {
            return Err(answer.to_string());
        }
        let results = answer["data"]["result"].as_array().ok_or("no results")?;
        Ok(results.clone())
    }

    fn query_all(&mut self, query: &str, without: &[&str]) -> Result<BTreeMap<String, f64>, String> {
        let results = self.results(query, None)?;
        Ok(results
            .iter()
            .map(|result| {
                let labels = result["metric"].as_object().unwrap();
                let labels: Vec<String> = labels
                    .iter()
                    .filter(|(name, _)| !without.contains(&name.as_str()))
                    .map(|(name, value)| format!("{name}={}", value.as_str().unwrap()))
                    .collect();
                let value = result["value"][1].as_str().unwrap().parse().unwrap();
                (labels.join(","), value)
            })
            .collect())
    }

    /// As [`Prometheus::expect`], with the labels `job` and `instance` among the others.
    #[track_caller]
    pub fn expect_all(&mut self, query: &str, expected: &[(&str, f64)]) {
        let expected: BTreeMap<String, f64> = expected
            .iter()
            .map(|(labels, value)| ((*labels).to_owned(), *value))
            .collect();
        until(query, || match self.query_all(query, &[])? {
            found if found == expected => Ok(()),
            found => Err(format!("{found:?} instead of {expected:?}")),
        });
    }

    #[track_caller]
    pub fn expect(&mut self, query: &str, expected: &[(&str, f64)]) {
        let expected: BTreeMap<String, f64> = expected
            .iter()
            .map(|(labels, value)| ((*labels).to_owned(), *value))
            .collect();
        until(query, || match self.query(query)? {
            found if found == expected => Ok(()),
            found => Err(format!("{found:?} instead of {expected:?}")),
        });
    }

    #[track_caller]
    pub fn expect_near(&mut self, query: &str, expected: f64, relative: f64) {
        until(query, || {
            let found = self.query(query)?;
            let value = found.values().next().ok_or("nothing")?;
            if found.len() == 1 && (value / expected - 1.0).abs() <= relative {
                Ok(())
            } else {
                Err(format!("{found:?} instead of {expected}"))
            }
        });
    }

    /// All samples of a range vector's series, by their labels: Unix milliseconds and the value as it is written.
    pub fn samples(&self, query: &str) -> Result<BTreeMap<String, Vec<(i64, String)>>, String> {
        samples(&self.address, query)
    }

    /// Its own metrics, as they stand on the page.
    pub fn own_metrics(&self) -> String {
        let (_, metrics) = get(&self.address, "/metrics", "text/plain").unwrap();
        String::from_utf8(metrics).unwrap()
    }
}

/// A VictoriaMetrics that takes remote write and lines of InfluxDB.
pub struct VictoriaMetrics {
    _killed: Killed,
    _directory: tempfile::TempDir,
    pub address: String,
}

impl VictoriaMetrics {
    pub fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = free_address();
        let child = Command::new("victoria-metrics")
            .arg(format!("-storageDataPath={}", directory.path().display()))
            .arg(format!("-httpListenAddr={address}"))
            .args(["-search.latencyOffset=0s", "-dedup.minScrapeInterval=0s"])
            .arg("-influxSkipSingleField")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("victoria-metrics is installed (scripts/install-test-deps.sh)");
        let receiver = VictoriaMetrics {
            _killed: Killed(child),
            _directory: directory,
            address,
        };
        until("it answers", || receiver.get("/health").is_some());
        receiver
    }

    /// The body of an answer with 200.
    pub fn get(&self, path: &str) -> Option<String> {
        let (head, body) = get(&self.address, path, "*/*")?;
        head.contains(" 200 ").then(|| String::from_utf8(body).unwrap())
    }
}

/// Builds a program of the module in tests/receivers from its sources through the module proxy: several minutes the first time, and
/// gigabytes.
pub fn built(module: &str, package: &str, arguments: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(module);
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(module.replace('/', "-"));
    let status = Command::new("go")
        .arg("build")
        .args(arguments)
        .arg("-o")
        .arg(&program)
        .arg(package)
        .current_dir(source)
        .status()
        .expect("the Go toolchain is needed");
    assert!(status.success(), "{module} does not build");
    program
}

/// Installs a program (`package@version`) through the module proxy, once. `None` only where there is no Go toolchain.
pub fn go_installed(package: &str, arguments: &[&str]) -> Option<PathBuf> {
    let bin = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-bin");
    let installed = Command::new("go")
        .arg("install")
        .args(arguments)
        .arg(package)
        .env("GOBIN", &bin)
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output();
    let Ok(installed) = installed else {
        eprintln!("skipped: there is no Go toolchain to build {package} with");
        return None;
    };
    let error = String::from_utf8_lossy(&installed.stderr);
    assert!(installed.status.success(), "{error}");
    let (path, _version) = package.split_once('@').unwrap();
    path.rsplit('/').next().map(|name| bin.join(name))
}

pub fn built_prometheus_3() -> PathBuf {
    let package = "github.com/prometheus/prometheus/cmd/prometheus";
    built("receivers", package, &["-tags", "remove_all_sd"])
}

/// See [`Prometheus::samples`]; for anything with Prometheus's query interface.
pub fn samples(address: &str, query: &str) -> Result<BTreeMap<String, Vec<(i64, String)>>, String> {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let (_, body) = get(address, &format!("/api/v1/query?query={encoded}"), "*/*").ok_or("no answer")?;
    let answer: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    if answer["status"] != "success" {
        return Err(answer.to_string());
    }
    let results = answer["data"]["result"].as_array().ok_or("no matrix")?;
    Ok(results
        .iter()
        .map(|result| {
            let labels = result["metric"].as_object().unwrap();
            let labels: Vec<String> = labels
                .iter()
                .map(|(name, value)| format!("{name}={}", value.as_str().unwrap()))
                .collect();
            let samples = result["values"].as_array().into_iter().flatten().map(|pair| {
                let at = (pair[0].as_f64().unwrap() * 1000.0).round() as i64;
                (at, pair[1].as_str().unwrap().to_owned())
            });
            (labels.join(","), samples.collect())
        })
        .collect())
}
