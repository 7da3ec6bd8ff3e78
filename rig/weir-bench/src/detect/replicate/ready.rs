//! Readiness of programs: conditions in experiments, and listening sinks.

use super::{Problem, ReplicateRun, interrupted, invalid, tail};
use crate::detect::experiment::Ready;
use crate::detect::layer::ConfigError;
use crate::detect::process::{self, POLL, Process};
use crate::detect::report;
use crate::detect::running::Subject;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use weir_rig_base::http;
use weir_rig_base::udp::UdpPort;

/// Timeout for a sink to listen.
const SINK_WAIT: Duration = Duration::from_secs(20);

impl ReplicateRun<'_> {
    pub fn wait_ready(&mut self, target: &mut Subject) -> Result<(), Problem> {
        let (e, folder) = (&self.r.experiment.target, self.r.folder);
        let mut left = Vec::new();
        for condition in &e.ready {
            left.push(self.names.fill_ready(condition)?);
        }
        let deadline = Instant::now() + e.ready_timeout;
        let log = || tail(&folder.join("target.stderr"));
        loop {
            interrupted()?;
            if let Some(how) = target.ended() {
                let what = format!("the target ended before it was ready, with {how}{}", log());
                return Err(invalid(what));
            }
            let mut unmet = Vec::new();
            for condition in left {
                if !is_ready(&condition, folder)? {
                    unmet.push(condition);
                }
            }
            let Some(first) = unmet.first() else { break };
            if Instant::now() > deadline {
                let time = report::show_duration(e.ready_timeout);
                let what = format!("the target was not ready after {time}: {first:?}{}", log());
                return Err(invalid(what));
            }
            left = unmet;
            thread::sleep(POLL);
        }
        Ok(self.events.add("ready", "")?)
    }
}

pub fn wait_for_sink(process: &mut Process, listen: &str) -> Result<(), Problem> {
    let deadline = Instant::now() + SINK_WAIT;
    while !listen.is_empty() && !is_listening(listen) {
        interrupted()?;
        let name = process.name().to_owned();
        if let Some(status) = process.ended() {
            let how = process::describe(status);
            return Err(invalid(format!("{name} ended at once with {how}")));
        }
        if Instant::now() > deadline {
            return Err(invalid(format!("{name} does not listen on {listen}")));
        }
        thread::sleep(POLL);
    }
    Ok(())
}

fn is_listening(address: &str) -> bool {
    match address.split_once("://") {
        Some(("unixgram" | "unix", path)) => Path::new(path).exists(),
        Some(("udp", address)) => udp_port_taken(address),
        Some(("tcp", address)) => TcpStream::connect(address).is_ok(),
        _ => TcpStream::connect(address).is_ok(),
    }
}

fn udp_port_taken(address: &str) -> bool {
    let port = address.rsplit_once(':').map_or(address, |(_, port)| port);
    port.parse().is_ok_and(|port| UdpPort::new(port).is_open())
}

fn is_ready(condition: &Ready, folder: &Path) -> Result<bool, Problem> {
    Ok(match condition {
        Ready::UnixSocket(path) | Ready::File(path) => Path::new(path).exists(),
        Ready::UdpPort(port) => udp_port_taken(port),
        Ready::TcpPort(port) if port.contains(':') => TcpStream::connect(port).is_ok(),
        Ready::TcpPort(port) => TcpStream::connect(format!("127.0.0.1:{port}")).is_ok(),
        Ready::Http(url) => http::get(url, Duration::from_secs(1)).is_ok_and(|r| r.status < 400),
        Ready::LogLine(pattern) => has_line(pattern, folder)?,
    })
}

/// Whether the target has printed a matching line.
fn has_line(pattern: &str, folder: &Path) -> Result<bool, ConfigError> {
    let regex = regex_lite::Regex::new(pattern).map_err(|e| ConfigError(format!("log_line: {e}")))?;
    let logs = ["target.stdout", "target.stderr"].map(|file| fs::read(folder.join(file)).unwrap_or_default());
    let mut texts = logs.iter().map(|log| String::from_utf8_lossy(log));
    Ok(texts.any(|text| text.lines().any(|line| regex.is_match(line))))
}
