//! Instructions of a target counted by valgrind: for machines that do not show the counters of their processor, which most virtual
//! machines do not.
//!
//! The target runs inside callgrind, 20 to 50 times slower, and is asked before and after the load to write what it has counted. Only
//! that count means something: times and memory of such a run are valgrind's.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::process::POLL;

/// Callgrind and the program that talks to it.
const PROGRAMS: [&str; 2] = ["valgrind", "vgdb"];
/// Time in which a process answers: between two instructions, or woken out of a system call.
const ANSWER: Duration = Duration::from_secs(60);
/// Files of the counts, one for each process.
const FILES: &str = "callgrind.out.";

/// A program of these is missing.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not installed (package valgrind)")]
pub struct Missing(&'static str);

/// Whether valgrind can count here.
pub fn check() -> Result<(), Missing> {
    let runs = |program: &&str| {
        let mut command = Command::new(program);
        command.arg("--help").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok()
    };
    match PROGRAMS.into_iter().find(|program| !runs(program)) {
        Some(missing) => Err(Missing(missing)),
        None => Ok(()),
    }
}

/// The command that runs `target` inside callgrind, with its files in `folder`.
pub fn command(target: Vec<String>, folder: &Path) -> Vec<String> {
    let flags = [
        "valgrind".to_owned(),
        "--quiet".to_owned(),
        "--tool=callgrind".to_owned(),
        "--trace-children=yes".to_owned(),
        // Each count is added to the file of its process.
        "--combine-dumps=yes".to_owned(),
        format!(
            "--callgrind-out-file={}",
            folder.join(format!("{FILES}%p")).display()
        ),
        prefix(folder),
    ];
    flags.into_iter().chain(target).collect()
}

fn prefix(folder: &Path) -> String {
    format!("--vgdb-prefix={}", folder.join("vgdb").display())
}

/// Instructions in user space so far, those of processes that have ended included. `pids`: the living processes of the target.
pub fn count(pids: &[i32], folder: &Path) -> io::Result<f64> {
    pids.iter().try_for_each(|pid| dump(*pid, folder))?;
    let mut sum = 0.0;
    for file in fs::read_dir(folder)? {
        let file = file?;
        if file.file_name().to_string_lossy().starts_with(FILES) {
            // A name of a function may be any bytes.
            sum += total(&String::from_utf8_lossy(&fs::read(file.path())?));
        }
    }
    Ok(sum)
}

/// Lets a process add its count to its file.
fn dump(pid: i32, folder: &Path) -> io::Result<()> {
    let said = tempfile::tempfile_in(folder)?;
    let mut asking = Command::new("vgdb")
        .args([prefix(folder), format!("--pid={pid}"), "dump".to_owned()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(said.try_clone()?)
        .spawn()?;
    let begun = Instant::now();
    let why = loop {
        match asking.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(_) => break "",
            // It asks without end where it may not stop the process.
            None if begun.elapsed() > ANSWER => break "no answer; ",
            None => thread::sleep(POLL),
        }
    };
    drop(asking.kill());
    asking.wait()?;
    let mut text = [0; 400];
    let length = said.read_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(&text[..length]);
    let text = text.lines().next().unwrap_or_default();
    Err(io::Error::other(format!(
        "process {pid} of the target does not count its instructions: {why}{text}"
    )))
}

/// The sum of all counts in a file.
fn total(text: &str) -> f64 {
    let counts = text.lines().filter_map(|line| line.strip_prefix("totals: "));
    counts.filter_map(|count| count.trim().parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_a_file_are_added() {
        let text = "version: 1\nevents: Ir\nfn=(1) main\n0 7\ntotals: 300\n\nevents: Ir\ntotals: 41\n";
        assert_eq!(total(text), 341.0);
        assert_eq!(total("events: Ir\n"), 0.0);
    }

    #[test]
    fn a_process_outside_valgrind_is_an_error() {
        if check().is_err() {
            println!("skipped: valgrind is not installed");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let error = count(&[std::process::id() as i32], folder.path()).unwrap_err();
        assert!(error.to_string().contains("does not count"), "{error}");
    }
}
