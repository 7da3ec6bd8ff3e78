//! Parts of several commands: the check of processors, the cache folder, and standard output.

use crate::failure::Failure;
use std::io::{self, Write};
use std::path::PathBuf;
use weir_rig_base::process;

/// Refuses processors this process may not run on.
pub fn check_cpus(cpus: &[usize]) -> Result<(), Failure> {
    let allowed = process::allowed_cpus();
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

/// Prints to standard output. A closed pipe is not an error, and does not lose the manifest.
pub fn print(text: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Runtime(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints one JSON line and flushes it: a script may wait for it.
pub fn print_line(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(value).map_err(Failure::runtime)?;
    line.push(b'\n');
    print(&line)
}
