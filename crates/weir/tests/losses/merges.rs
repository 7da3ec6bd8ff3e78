//! Losses of a fleet, in running merges.

use std::path::Path;

use weir_log::FileLog;
use weir_merge::Log as _;

use crate::alerts::{damage, faulty_fleet, unreadable_snapshot, without_first_results};
use crate::merge::fleet::{Agent as Publishing, Fleet, counter, gauge};
use crate::merge::process::{Merge, config};

use super::Provoked;

fn running(directory: tempfile::TempDir, rest: &str) -> Provoked {
    let outputs = format!(
        "outputs: {{prometheus: {{}}, file: {{path: {}}}}}\n{rest}",
        directory.path().join("points").display()
    );
    let merge = Merge::start(directory.path(), &config(&directory.path().join("log"), &outputs));
    Provoked {
        admin: merge.admin.clone(),
        _kept: vec![Box::new((directory, merge))],
    }
}

fn append(log: &Path, bytes: &[u8]) {
    let mut log = FileLog::open(log, 1, weir_log::unix_milliseconds).unwrap();
    log.append(0, 1, bytes).unwrap();
}

/// Agents that end, share an id, lose records, are late, have a wrong clock, or divide their series in another way; a log with a damaged
/// record and one that is none.
pub fn faulty() -> Provoked {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let mut fleet = faulty_fleet(&log);
    damage(&log);
    let one = || vec![counter("requests", &[], 1.0)];
    let (mut late, mut ahead, mut future, mut old) = (
        Publishing::new(9, 1),
        Publishing::new(10, 1),
        Publishing::new(11, 1),
        Publishing::new(12, 1),
    );
    let of_late = gauge("load", 1.0, &late);
    let records = fleet.records(&mut late, 100, vec![of_late]);
    fleet.append(149, &records);
    let records = fleet.records(&mut ahead, 149, one());
    fleet.append_ahead(149, 3_600_000, &records);
    let records = fleet.records(&mut future, 600, one());
    fleet.append(149, &records);
    // Of the day before.
    let records = fleet.records(&mut old, -9000, one());
    fleet.append(149, &records);
    let mut other = Fleet::new(&directory.path().join("other"), 2, 200);
    other.start = fleet.start;
    let mut divided = Publishing::new(13, 1);
    let records = other.records(&mut divided, 149, one());
    for record in &records {
        append(&log, &record.bytes);
    }
    append(&log, b"no record");
    running(directory, "")
}

/// A merge with little memory.
pub fn small() -> Provoked {
    let directory = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(&directory.path().join("log"), 1, 100);
    let mut agent = Publishing::new(1, 1);
    for bucket in 0..2 {
        let mut all: Vec<_> = (0..20_000)
            .map(|number| counter("requests", &[&format!("user:{number}")], 1.0))
            .collect();
        all.extend((0..2000).map(|number| gauge(&format!("level{number}"), 1.0, &agent)));
        fleet.publish(&mut agent, bucket, all);
    }
    running(directory, "memory: 8MiB\n")
}

/// A merge that cannot read where it was.
pub fn old() -> Provoked {
    let directory = tempfile::tempdir().unwrap();
    unreadable_snapshot(&directory.path().join("log"));
    running(directory, "")
}

/// Results were deleted before the output had them, and the log cannot be read any more.
pub fn behind() -> Provoked {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    without_first_results(&log);
    let provoked = running(directory, "");
    std::fs::write(log.join("plan"), "nonsense").unwrap();
    provoked
}
