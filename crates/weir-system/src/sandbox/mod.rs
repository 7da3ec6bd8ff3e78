//! The process drops rights after its sockets are bound, so that a bug gives an attacker little.
//!
//! * No new privileges: programs that it runs cannot gain any.
//! * No core dumps: they would hold its keys.
//! * [`capabilities`]: all are dropped except those that the configuration needs.
//! * [`calls`]: a seccomp filter refuses powerful system calls that it never makes.
//! * [`files`]: Landlock rules let it open only the files in [`plan`].
//!
//! All of this applies per thread, and threads inherit it: [`enter`] runs before the second thread starts.

use std::path::Path;

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

use crate::config::Loaded;

mod calls;
mod capabilities;
mod files;
pub mod plan;

use plan::Plan;

/// The dropped rights, for the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxStatus {
    /// The setting.
    pub enabled: bool,
    pub no_new_privileges: bool,
    #[serde(default)]
    pub no_core_dumps: bool,
    /// Remaining capabilities, each with the reason.
    pub capabilities: Vec<KeptCapability>,
    /// Whether files are restricted to those listed here.
    pub files_restricted: bool,
    /// Directories and files that may be read.
    pub readable: Vec<String>,
    /// Directories in which files may be read, written, created and removed.
    pub writable: Vec<String>,
    /// System calls that are refused.
    pub system_calls_refused: usize,
    /// Restrictions that failed, with the reason.
    pub missing: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptCapability {
    pub capability: String,
    pub because: String,
}

/// Drops the rights that the configuration does not need. The log and the status report everything that the kernel does not support.
pub fn enter(loaded: &Loaded, file: Option<&Path>) -> SandboxStatus {
    let mut status = SandboxStatus::default();
    if loaded.config.running.sandbox == weir_config::Sandbox::Off {
        tracing::warn!("sandbox: off: this process keeps all its rights");
        return status;
    }
    status.enabled = true;
    let plan = Plan::of(loaded, file);
    let paused = crate::sys::heap::pause_background_thread();
    match crate::sys::refuse_new_privileges() {
        Ok(()) => status.no_new_privileges = true,
        Err(error) => status.missing.push(format!("no new privileges: {error}")),
    }
    match refuse_core_dumps() {
        Ok(()) => status.no_core_dumps = true,
        Err(error) => status.missing.push(format!("no core dumps: {error}")),
    }
    match capabilities::drop_unneeded(&plan) {
        Ok(kept) => status.capabilities = kept,
        Err(error) => status.missing.push(format!("dropping capabilities: {error}")),
    }
    match files::restrict(&plan) {
        Ok(()) => {
            status.files_restricted = true;
            status.readable = shown(plan.readable.iter().map(AsRef::as_ref));
            status.writable = shown(plan.writable.iter().map(AsRef::as_ref));
        }
        Err(reason) => status
            .missing
            .push(format!("restricting files (Landlock): {reason}")),
    }
    match calls::refuse() {
        Ok(number) => status.system_calls_refused = number,
        Err(reason) => status
            .missing
            .push(format!("refusing system calls (seccomp): {reason}")),
    }
    drop(paused);
    report(&status);
    status
}

/// A limit of one byte stops both kinds: it is less than the smallest file, and the only limit at which the kernel does not run a program that
/// takes the dump (a pipe in `core_pattern` ignores zero).
fn refuse_core_dumps() -> rustix::io::Result<()> {
    let limit = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    rustix::process::setrlimit(Resource::Core, limit)
}

fn shown<'a>(paths: impl Iterator<Item = &'a Path>) -> Vec<String> {
    paths.map(|path| path.display().to_string()).collect()
}

fn report(status: &SandboxStatus) {
    tracing::info!("sandbox: {}", status.summary());
    for missing in &status.missing {
        tracing::warn!("sandbox: not applied: {missing}; sandbox: off ends this warning");
    }
}

impl SandboxStatus {
    /// One line for users.
    pub fn summary(&self) -> String {
        if !self.enabled {
            return "off".to_owned();
        }
        let mut parts = Vec::new();
        if self.no_new_privileges {
            parts.push("no new privileges".to_owned());
        }
        let kept: Vec<String> = self
            .capabilities
            .iter()
            .map(|kept| format!("{} ({})", kept.capability, kept.because))
            .collect();
        parts.push(match kept.as_slice() {
            [] => "no capabilities".to_owned(),
            kept => format!("capabilities left: {}", kept.join(", ")),
        });
        if self.files_restricted {
            let writable = match self.writable.as_slice() {
                [] => "written nowhere".to_owned(),
                writable => format!("written in {}", writable.join(", ")),
            };
            parts.push(format!("files read in {}, {writable}", self.readable.join(", ")));
        }
        if self.system_calls_refused > 0 {
            parts.push(format!("{} system calls refused", self.system_calls_refused));
        }
        if self.no_core_dumps {
            parts.push("no core dumps".to_owned());
        }
        parts.join("; ")
    }
}

/// Appended to the errors of a reload if the sandbox may be their cause.
pub fn hint(status: &SandboxStatus, errors: &[String]) -> Option<String> {
    let denied = errors.iter().any(|error| error.contains("Permission denied"));
    (status.files_restricted && denied).then(|| {
        "the sandbox denies files and directories that the configuration did not name at the start: restart weir, or set sandbox: off"
            .to_owned()
    })
}
