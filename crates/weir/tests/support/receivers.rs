//! The real agent and a real Prometheus.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::log::Log;
pub use super::ports::free_address;

/// However slow the machine: what takes longer is broken.
pub const PATIENCE: Duration = Duration::from_secs(90);

pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Agent {
    pub child: Killed,
    log: Log,
    pub admin: String,
    socket: UnixDatagram,
    directory: tempfile::TempDir,
}

impl Agent {
    pub fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Agent {
        Self::start_with(Stdio::inherit(), arguments, environment)
    }

    pub fn start_with(stdout: Stdio, arguments: &[&str], environment: &[(&str, &str)]) -> Agent {
        let command = Command::new(env!("CARGO_BIN_EXE_weir"));
        Self::start_as(command, stdout, arguments, environment)
    }

    /// `command` is the agent, or whatever becomes the agent with these arguments.
    pub fn start_as(
        mut command: Command,
        stdout: Stdio,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Agent {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dsd.socket");
        let mut child = Killed(
            command
                .args(["run", "--udp", "127.0.0.1:0", "--uds"])
                .arg(&path)
                .args(["--admin", "127.0.0.1:0", "--hostname", "agent"])
                .args(arguments)
                .env_clear()
                .envs(environment.iter().copied())
                .stdout(stdout)
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let mut log = Log::of(child.0.stderr.take().unwrap());
        let admin = log.wait_for("admin on http://");
        let socket = UnixDatagram::unbound().unwrap();
        socket.connect(&path).unwrap();
        Agent {
            child,
            log,
            admin,
            socket,
            directory,
        }
    }

    /// Waits for a line with this text in the log and returns what follows it.
    pub fn wait_for(&mut self, text: &str) -> String {
        self.log.wait_for(text)
    }

    /// The JSON of `/api/v1/status`.
    pub fn status(&self) -> Value {
        let (_, body) = until("status", || {
            get(&self.admin, "/api/v1/status", "*/*").ok_or("no answer".into())
        });
        serde_json::from_slice(&body).unwrap()
    }

    /// An output's part of the status, by its name there.
    pub fn output(&self, name: &str) -> Value {
        let status = self.status();
        let outputs = status["outputs"].as_array().unwrap();
        let found = outputs.iter().find(|output| output["name"] == name);
        found
            .unwrap_or_else(|| panic!("{name} is not in {status}"))
            .clone()
    }

    /// An output's books.
    pub fn points(&self, output: &str) -> PointBooks {
        PointBooks::read(&self.output(output)["points"])
    }

    /// A Unix datagram socket holds the sender back when it is full, so nothing gets lost.
    pub fn send(&self, message: impl AsRef<[u8]>) {
        self.socket.send(message.as_ref()).unwrap();
    }

    /// As [`Agent::send`], for when nobody may be listening.
    pub fn try_send(&self, message: &str) -> std::io::Result<usize> {
        self.socket.send(message.as_bytes())
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.0.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Ends it by SIGTERM, which delivers what was sent.
    pub fn finish(self) {
        self.signal("-TERM");
        self.finished();
    }

    /// Ends it by SIGTERM while an output cannot deliver what it has: in order, but with the exit code of a failure that names the
    /// loss.
    pub fn finish_with_a_loss(self) -> String {
        self.signal("-TERM");
        self.ended_with_a_loss()
    }

    /// Waits for such an end.
    pub fn ended_with_a_loss(mut self) -> String {
        let status = self.child.0.wait().unwrap();
        let log = self.log.until_it_ends();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains("weir: lost at the end"), "{log}");
        assert!(!log.contains("do not balance"), "{log}");
        log
    }

    /// Waits for its end, which has to be a good one.
    pub fn finished(self) {
        self.end();
    }

    /// Waits for its end, which has to be a good one, and returns its log.
    pub fn end(mut self) -> String {
        let status = self.child.0.wait().unwrap();
        let log = self.log.until_it_ends();
        assert!(status.success(), "{status}:\n{log}");
        assert!(!log.contains("do not balance"), "{log}");
        drop(self.directory);
        log
    }
}

/// An output's books of points, or a relay's of messages.
#[derive(Debug)]
pub struct PointBooks {
    pub produced: u64,
    pub delivered: u64,
    pub pending: u64,
    /// Of these, in batches that are not encoded yet and in payloads that are open.
    pub to_write: u64,
    pub dropped: u64,
}

impl PointBooks {
    pub fn read(books: &Value) -> PointBooks {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let lies = &books["pending_where"];
        PointBooks {
            produced: number(&books["produced"]),
            delivered: number(&books["delivered"]),
            pending: number(&books["pending"]),
            to_write: number(&lies["to_encode"]) + number(&lies["open_payloads"]),
            dropped: books["dropped"].as_object().unwrap().values().map(number).sum(),
        }
    }
}

/// Head and body of an answer. HTTP/1.0, so that the body is what follows.
pub fn get(address: &str, path: &str, accept: &str) -> Option<(String, Vec<u8>)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: {accept}\r\n\r\n"
    )
    .ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let body = answer.split_off(end + 4);
    Some((String::from_utf8(answer).ok()?, body))
}

pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(found) => return found,
            Err(last) if start.elapsed() > PATIENCE => panic!("{what}: {last}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
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

    fn query_all(&mut self, query: &str, without: &[&str]) -> Result<BTreeMap<String, f64>, String> {
        if let Some(status) = self.child.0.try_wait().unwrap() {
            panic!("prometheus has ended: {status}");
        }
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let (_, body) =
            get(&self.address, &format!("/api/v1/query?query={encoded}"), "*/*").ok_or("no answer")?;
        let answer: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        if answer["status"] != "success" {
            return Err(answer.to_string());
        }
        let results = answer["data"]["result"].as_array().ok_or("no vector")?;
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
