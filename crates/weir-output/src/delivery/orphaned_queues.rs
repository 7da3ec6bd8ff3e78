//! Queues on disk that belong to no configured endpoint.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use super::Endpoint;

/// If one key of a URL was removed and one added, the new one takes over the queue: keys get replaced, and an outage must not lose earlier
/// payloads. Any other queue without an endpoint stays, and the log names it.
pub fn settle(output: &str, path: &Path, endpoints: &[Endpoint]) {
    let orphaned = orphaned(path, endpoints);
    let of_family = |directory: &PathBuf, family: &str| {
        let name = directory.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.strip_prefix(family))
            .is_some_and(|rest| rest.starts_with('-'))
    };
    for directory in &orphaned {
        let is_new = |endpoint: &&Endpoint| {
            let family = endpoint.family.as_deref();
            family.is_some_and(|family| of_family(directory, family))
                && !path.join(&endpoint.directory).exists()
        };
        let mut new = endpoints.iter().filter(is_new);
        let (first, second) = (new.next(), new.next());
        let hint = match (first, second) {
            (Some(endpoint), None) => {
                let family = endpoint.family.as_deref().unwrap_or_default();
                let rivals = orphaned.iter().filter(|other| of_family(other, family)).count();
                if rivals == 1 && take_over(output, directory, &path.join(&endpoint.directory), endpoint) {
                    continue;
                }
                "delete it, configure its endpoint again, or give it the name of another endpoint's queue"
            }
            _ => "delete it, or configure the endpoint again",
        };
        if has_segments(directory) {
            tracing::warn!(output, directory = %directory.display(), "holds the queue of an endpoint or key that is no longer configured; {hint}");
        }
    }
}

fn take_over(output: &str, from: &Path, to: &Path, endpoint: &Endpoint) -> bool {
    let lock = OpenOptions::new().write(true).open(from.join("lock"));
    // Another process may well have it: one that still runs with the old key.
    let is_free = lock.is_ok_and(|lock| lock.try_lock().is_ok());
    if !is_free {
        return false;
    }
    match std::fs::rename(from, to) {
        Ok(()) => {
            tracing::info!(output, endpoint = endpoint.label, from = %from.display(), "the key is new; it takes over the queue of the old key");
            true
        }
        Err(error) => {
            tracing::warn!(output, directory = %from.display(), %error, "cannot be taken over");
            false
        }
    }
}

/// Directories with a queue without an owner.
fn orphaned(path: &Path, endpoints: &[Endpoint]) -> Vec<PathBuf> {
    let known = |directory: &PathBuf| {
        endpoints
            .iter()
            .any(|endpoint| path.join(&endpoint.directory) == *directory)
    };
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|entry| entry.join("lock").is_file() && !known(entry))
        .collect();
    found.sort();
    found
}

fn has_segments(directory: &Path) -> bool {
    let mut entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.any(|entry| entry.path().extension().is_some_and(|extension| extension == "q"))
}
