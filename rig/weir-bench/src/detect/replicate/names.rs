//! The meaning of the words in braces in an experiment's files, for one run.

use super::{Problem, Replicate};
use crate::detect::experiment::Ready;
use crate::detect::layer::ConfigError;
use crate::detect::ports;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The values of `{...}` in this run.
pub struct Names {
    fixed: BTreeMap<String, String>,
    ports: BTreeMap<String, u16>,
}

impl Names {
    pub fn new(r: &Replicate, work: &Path) -> Result<Self, Problem> {
        let mut names = Self {
            fixed: BTreeMap::new(),
            ports: BTreeMap::new(),
        };
        names.set("bin", r.bin.display().to_string());
        names.set("work", work.display().to_string());
        names.set("seed", r.seed.to_string());
        names.set("bench", r.program.display().to_string());
        let flush = r.experiment.target.flush;
        names.set("flush", format!("{}ms", flush.as_millis()));
        names.set("flush_s", flush.as_secs().max(1).to_string());
        // The target's configuration can contain the addresses of sinks.
        for (i, sink) in r.experiment.sinks.iter().enumerate() {
            let address = names.fill(&sink.listen)?;
            let plain = address
                .split_once("://")
                .map_or(address.as_str(), |(_, a)| a)
                .to_owned();
            names.set(&format!("sink.{i}"), plain);
        }
        Ok(names)
    }

    pub fn set(&mut self, key: &str, value: String) {
        self.fixed.insert(key.to_owned(), value);
    }

    pub fn fill_all(&mut self, texts: &[String]) -> Result<Vec<String>, ConfigError> {
        texts.iter().map(|t| self.fill(t)).collect()
    }

    pub fn fill_ready(&mut self, ready: &Ready) -> Result<Ready, ConfigError> {
        Ok(match ready {
            Ready::UnixSocket(t) => Ready::UnixSocket(self.fill(t)?),
            Ready::UdpPort(t) => Ready::UdpPort(self.fill(t)?),
            Ready::TcpPort(t) => Ready::TcpPort(self.fill(t)?),
            Ready::Http(t) => Ready::Http(self.fill(t)?),
            Ready::LogLine(t) => Ready::LogLine(t.clone()),
            Ready::File(t) => Ready::File(self.fill(t)?),
        })
    }

    /// Replaces `{work}`, `{bin}`, `{port:name}` (a free port, the same for the same name) and so on. Other text in braces stays, because
    /// configuration files contain many of them.
    pub fn fill(&mut self, text: &str) -> Result<String, ConfigError> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            out.push_str(&rest[..open]);
            rest = &rest[open..];
            let Some(close) = rest.find('}') else { break };
            let key = &rest[1..close];
            if let Some(value) = self.fixed.get(key) {
                out.push_str(value);
            } else if let Some(name) = key.strip_prefix("port:") {
                out.push_str(&self.port(name)?.to_string());
            } else if key.starts_with("sink.") {
                return Err(ConfigError(format!("{{{key}}}: the experiment has no such sink")));
            } else {
                out.push('{');
                rest = &rest[1..];
                continue;
            }
            rest = &rest[close + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn port(&mut self, name: &str) -> Result<u16, ConfigError> {
        if let Some(port) = self.ports.get(name) {
            return Ok(*port);
        }
        let port = ports::free()
            .ok_or_else(|| ConfigError(format!("{{port:{name}}}: no free port on 127.0.0.1")))?;
        self.ports.insert(name.to_owned(), port);
        Ok(port)
    }
}

pub fn prepare_folder(r: &Replicate, work: &Path, names: &mut Names) -> Result<(), Problem> {
    if let Some(from) = r.files {
        copy_filled(from, work, names)?;
    }
    for (path, content) in &r.experiment.target.files {
        let path = work.join(names.fill(path)?);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, names.fill(content)?)?;
    }
    Ok(())
}

fn copy_filled(from: &Path, to: &Path, names: &mut Names) -> Result<(), Problem> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_filled(&entry.path(), &target, names)?;
            continue;
        }
        let bytes = fs::read(entry.path())?;
        match String::from_utf8(bytes) {
            Ok(text) => fs::write(target, names.fill(&text)?)?,
            Err(binary) => fs::write(target, binary.as_bytes())?,
        }
    }
    Ok(())
}
