//! The rights that the process drops after its sockets are bound, so that an attacker who finds a bug gets little.
//!
//! * No new privileges: no program that it runs gains any.
//! * [`capabilities`]: all go but those that something configured needs.
//! * [`calls`]: a filter (seccomp) refuses system calls that it never makes and that reach far.
//! * [`files`]: rules (Landlock) let it open what [`plan`] names and nothing else.
//!
//! All of this is a matter of the thread, and threads inherit it: [`enter`] runs before there is a second one.

use std::path::Path;

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
    /// Capabilities that are left, each with what needs it.
    pub capabilities: Vec<Kept>,
    /// Whether files are restricted to those listed here.
    pub files_restricted: bool,
    /// Directories in which files may be read, and files that may.
    pub readable: Vec<String>,
    /// Directories in which files may be read, written, made and removed.
    pub writable: Vec<String>,
    /// System calls that are refused.
    pub system_calls_refused: usize,
    /// What could not be done, and why.
    pub missing: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub capability: String,
    pub because: String,
}

/// Gives up what the configuration does not need. What the kernel does not offer is said in the log and in the status.
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
    /// One line for people.
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
        parts.join("; ")
    }
}

/// What a reload adds to its errors when the sandbox may be the reason for them.
pub fn hint(status: &SandboxStatus, errors: &[String]) -> Option<String> {
    let denied = errors.iter().any(|error| error.contains("Permission denied"));
    (status.files_restricted && denied).then(|| {
        "the sandbox denies files and directories that the configuration did not name at the start: restart weir, or set sandbox: off"
            .to_owned()
    })
}
