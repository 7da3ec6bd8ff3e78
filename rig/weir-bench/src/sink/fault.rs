//! Faults on request: misbehaviour of real receivers, to test an agent's reaction.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;
use weir_units::{UnitError, parse_duration};

/// One rule, as `status=503,times=3,path=/api/v2/series`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Applies to requests whose path has this prefix; to all without it.
    pub path: Option<String>,
    /// Number of requests it applies to; all without it.
    pub times: Option<u64>,
    /// The HTTP status of the answer. Any status except 2xx means that the payload was not accepted.
    pub status: Option<u16>,
    /// The gRPC status answered, in the trailers.
    pub grpc_status: Option<u32>,
    pub retry_after: Option<String>,
    /// Wait before answering.
    pub delay: Duration,
    pub close: Close,
    /// Never answer.
    pub hang: bool,
    /// Read the request's body at this many bytes per second.
    pub slow_read: Option<u64>,
    /// Write the response's body at this many bytes per second.
    pub slow_write: Option<u64>,
}

/// When the connection is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Close {
    #[default]
    Never,
    /// After the request was read and accepted, without an answer.
    Before,
    /// After the answer.
    After,
}

const ALLOWED: &str = "path=PREFIX, times=N, status=100..599, grpc-status=0..16, retry-after=TEXT, delay=TIME, \
                       close=before|after, hang, slow-read=BYTES_PER_SECOND, slow-write=BYTES_PER_SECOND";

/// Why a text is not a [`Fault`].
#[derive(Debug, thiserror::Error)]
#[error("fault {rule:?}: {key}: {error}; allowed: {ALLOWED}")]
pub struct FaultError {
    rule: String,
    key: String,
    error: KeyError,
}

/// The error in one key of a rule.
#[derive(Debug, thiserror::Error)]
enum KeyError {
    #[error("unknown key")]
    Unknown,
    #[error("{0:?} is not a whole number")]
    Number(String),
    #[error("{number} is not in {}..{}", range.start(), range.end())]
    Range { number: u64, range: RangeInclusive<u64> },
    #[error(transparent)]
    Duration(#[from] UnitError),
    #[error("{0:?} is neither before nor after")]
    Close(String),
}

fn number(value: &str, range: RangeInclusive<u64>) -> Result<u64, KeyError> {
    let number = value.parse().map_err(|_| KeyError::Number(value.to_owned()))?;
    match range.contains(&number) {
        true => Ok(number),
        false => Err(KeyError::Range { number, range }),
    }
}

impl Fault {
    fn set(&mut self, key: &str, value: &str) -> Result<(), KeyError> {
        match key.trim() {
            "path" => self.path = Some(value.to_owned()),
            "times" => self.times = Some(number(value, 1..=u64::MAX)?),
            "status" => self.status = Some(number(value, 100..=599)? as u16),
            "grpc-status" => self.grpc_status = Some(number(value, 0..=16)? as u32),
            "retry-after" => self.retry_after = Some(value.to_owned()),
            "delay" => self.delay = parse_duration(value)?,
            "close" => {
                self.close = match value {
                    "before" => Close::Before,
                    "after" => Close::After,
                    _ => return Err(KeyError::Close(value.to_owned())),
                }
            }
            "hang" => self.hang = true,
            "slow-read" => self.slow_read = Some(number(value, 1..=u64::MAX)?),
            "slow-write" => self.slow_write = Some(number(value, 1..=u64::MAX)?),
            _ => return Err(KeyError::Unknown),
        }
        Ok(())
    }
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Fault, FaultError> {
        let mut fault = Fault::default();
        for part in text.trim().split(',') {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            fault.set(key, value).map_err(|error| FaultError {
                rule: text.to_owned(),
                key: key.to_owned(),
                error,
            })?;
        }
        Ok(fault)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut part = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                parts.push(format!("{key}={value}"));
            }
        };
        part("path", self.path.clone());
        part("times", self.times.map(|n| n.to_string()));
        part("status", self.status.map(|n| n.to_string()));
        part("grpc-status", self.grpc_status.map(|n| n.to_string()));
        part("retry-after", self.retry_after.clone());
        part(
            "delay",
            (!self.delay.is_zero()).then(|| format!("{}ms", self.delay.as_millis())),
        );
        part("slow-read", self.slow_read.map(|n| n.to_string()));
        part("slow-write", self.slow_write.map(|n| n.to_string()));
        match self.close {
            Close::Never => {}
            Close::Before => parts.push("close=before".into()),
            Close::After => parts.push("close=after".into()),
        }
        if self.hang {
            parts.push("hang".into());
        }
        f.write_str(&parts.join(","))
    }
}

/// The active rules, in order.
#[derive(Debug, Default)]
pub struct Faults(Vec<Fault>);

impl Faults {
    pub fn new(faults: Vec<Fault>) -> Faults {
        Faults(faults)
    }

    pub fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The first matching rule for this path, of which it uses up one; without a rule, no fault.
    pub fn take(&mut self, path: &str) -> Fault {
        let matches = |fault: &Fault| {
            fault
                .path
                .as_ref()
                .is_none_or(|prefix| path.starts_with(prefix.as_str()))
        };
        let Some(at) = self.0.iter().position(matches) else {
            return Fault::default();
        };
        let fault = self.0[at].clone();
        match &mut self.0[at].times {
            Some(1) => drop(self.0.remove(at)),
            Some(times) => *times -= 1,
            None => {}
        }
        fault
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.0 {
            writeln!(f, "{fault}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_survive_text_and_are_used_up_in_order() {
        let text = "path=/api,times=2,status=503,retry-after=1,delay=50ms,slow-write=1,close=after";
        let fault: Fault = text.parse().unwrap();
        assert_eq!(fault.to_string(), text);
        let mut faults = Faults::new(vec![fault, "status=500".parse().unwrap()]);
        let statuses: Vec<_> = ["/api/a", "/other", "/api/b", "/api/c"]
            .iter()
            .map(|path| faults.take(path).status)
            .collect();
        assert_eq!(statuses, [Some(503), Some(500), Some(503), Some(500)]);
        faults.clear();
        assert_eq!(faults.take("/"), Fault::default());
    }

    #[test]
    fn bad_rules_are_errors_with_the_allowed_form() {
        for text in [
            "",
            "status=99",
            "status=x",
            "delay=5",
            "close=never",
            "times=0",
            "what=1",
        ] {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains("allowed: path=PREFIX"), "{error}");
        }
    }
}
