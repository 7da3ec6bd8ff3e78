//! Parts of several commands: the check of processors, the cache folder, and lines for scripts.

use crate::failure::Failure;
use serde_json::Value;
use std::io::{self, Write};
use std::path::PathBuf;
use weir_rig_base::cpu;

/// Refuses processors this process may not run on.
pub fn check_cpus(cpus: &[usize]) -> Result<(), Failure> {
    let allowed = cpu::allowed();
    match cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        Some(cpu) => Err(Failure::Usage(format!(
            "--cpu {cpu}: this process may use {allowed:?}"
        ))),
        None => Ok(()),
    }
}

/// This user's folder for results that later runs read.
pub fn cache() -> Option<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".cache"),
    };
    Some(base.join("weir-bench"))
}

/// Prints one JSON line and flushes it: a script waits for it.
pub fn print_json(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")?;
    out.flush()
}
