//! State directories of the first version, whose files have no epochs: this version continues what they hold, or reports it by number.
//!
//! Commit a010c09b left the directories in `tests/state/before-epochs.tar.gz`, with two workers, buckets of ten seconds, the scrape and a
//! file. It had delivered a bucket with 12 samples, and then received 12 more, of every kind. `stopped`: then it was stopped. `killed`: its
//! checkpoint had those, and it received five more before the kill. Started on a copy, a010c09b itself continued 12 samples of both, and
//! reported five as lost after the kill, and flushed these values.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use weir_aggregate::Weights;
use weir_output::delivery::SavedStates;
use weir_output::prometheus::Scrape;
use weir_output::settings::PrometheusSettings;
use weir_state::{AgentId, Identity, State, Table};

use super::{StateDir, StoredAgent};
use crate::life::{LifeSettings, Resumed};
use weir_status::status::{StateStatus, Status};
use weir_system::disk::{Disk, SystemDisk};

/// Unix milliseconds at which the two ended, and of a start right after each.
const STOPPED: i64 = 1_795_717_000_625;
const KILLED: i64 = 1_795_717_010_600;

struct Started {
    status: StateStatus,
    books: Box<Status>,
    series: Vec<String>,
    samples: u64,
    timestamps: Vec<i64>,
}

fn copy(of: &str) -> tempfile::TempDir {
    let archive = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/state/before-epochs.tar.gz"
    );
    let to = tempfile::tempdir().unwrap();
    let unpacked = std::process::Command::new("tar")
        .args(["-xzf", archive, "--strip-components=1", "-C"])
        .arg(to.path())
        // It unpacks what follows.
        .arg(of)
        .status();
    assert!(unpacked.expect("tar is needed").success());
    to
}

/// A start of this version in the directory, up to the instant at which it would receive.
fn start(directory: &Path, now: i64, bucket_width: u32) -> Started {
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk::of(directory));
    let nobody = || -> std::io::Result<AgentId> { panic!("the agent of the directory is known") };
    let agent = StoredAgent::of(&disk, (now / 1000) as u64, None, nobody).unwrap();
    let settings = LifeSettings {
        workers: 1,
        bucket_width,
        expiry: Duration::from_secs(3600),
        memory: 1 << 20,
        histogram_points: ".max .count".into(),
        suffixes: 3,
        takes_columns: true,
    };
    let mut resumed = Resumed::look(StateDir::new(directory, disk, agent, None), &settings, now);
    let outputs = resumed.outputs();
    restore(&outputs);
    let buckets = resumed.buckets(&settings);
    let mut table = Table::default();
    for series in buckets.iter().flat_map(|bucket| bucket.series.iter().cloned()) {
        let (identity, facts, state) = series;
        table.add(identity, facts, state);
    }
    let (_, status, books) = resumed.started(&settings, &outputs);
    Started {
        status,
        books: books.unwrap_or_default(),
        series: table
            .iter()
            .map(|(identity, _, state)| text(identity, state))
            .collect(),
        samples: buckets.iter().map(|bucket| bucket.samples).sum(),
        timestamps: buckets
            .iter()
            .filter_map(|bucket| bucket.bucket)
            .map(|bucket| bucket.timestamp)
            .collect(),
    }
}

/// The scrape with its default settings.
fn restore(outputs: &SavedStates) {
    let scrape = Scrape::new(PrometheusSettings::default(), Weights::Exact, 1 << 20);
    outputs.restore_with("prometheus", &scrape.lineage(), |saved, of| {
        scrape.restore(saved, of, 0)
    });
}

fn text(identity: &Identity, state: &State) -> String {
    let value = match state {
        State::Counter(sum) => sum.to_f64(),
        State::Gauge(gauge) => gauge.value,
        State::Set(members) => members.cardinality() as f64,
        State::Samples(samples) => samples.count() as f64,
        State::Distribution(distribution) => distribution.sketch().cnt() as f64,
    };
    let Identity { name, host, tags, .. } = identity;
    let host = host.as_deref().unwrap_or("own host");
    format!("{name} {{{}}} {host}: {value}", tags.join(","))
}

const SERIES: [&str; 6] = [
    "duration {} own host: 1",
    "latency {env:prod} own host: 2",
    "requests {env:prod} own host: 7",
    "size {} other: 1",
    "size {} own host: 1",
    "users {} own host: 2",
];

fn assert_continued(found: &mut Started, timestamp: i64, temperature: f64) {
    // Which of the two came last. Each of two workers had one.
    let is_gauge = |series: &mut String| series.starts_with("temperature ");
    let gauges: Vec<String> = found.series.extract_if(.., is_gauge).collect();
    assert_eq!(gauges, [format!("temperature {{}} own host: {temperature}")]);
    found.series.sort();
    assert_eq!(found.series, SERIES);
    assert_eq!((found.samples, found.status.samples_restored), (12, 12));
    assert_eq!(found.timestamps, [timestamp]);
    // The form of the sums is another one since, so they start from zero, and that is counted.
    assert_eq!(found.status.outputs_reset, 1);
    assert_eq!(
        (found.status.killed.files_damaged, found.status.set_aside),
        (0, 0)
    );
}

fn numbers(status: &StateStatus) -> (u64, u64) {
    (status.killed.kills, status.killed.samples_lost)
}

#[test]
fn what_a_stop_of_the_first_version_left_continues() {
    let directory = copy("stopped");
    let mut found = start(directory.path(), STOPPED + 100, 10);
    assert_continued(&mut found, 1_795_717_000, -3.0);
    assert_eq!(numbers(&found.status), (0, 0));
    assert_eq!(found.books.process.hostname, "fixture");
    assert_eq!(found.books.total("samples").received, 24);
}

#[test]
fn what_a_kill_of_the_first_version_left_continues_and_the_rest_is_reported() {
    let directory = copy("killed");
    let mut found = start(directory.path(), KILLED, 10);
    assert_continued(&mut found, 1_795_717_010, 21.5);
    assert_eq!(numbers(&found.status), (1, 5));
    assert!(
        found.status.killed.samples_undelivered.is_empty()
            && found.status.killed.samples_uncertain.is_empty()
    );
    assert_eq!(
        found.books.total("samples").received,
        24,
        "of the last books, as that program counted"
    );
    let mut names: Vec<_> = SystemDisk::of(directory.path()).names().unwrap();
    names.sort();
    assert_eq!(names, ["agent", "state"], "the old files count no more");

    // The report is in the books of the next start, and nothing is lost twice.
    let mut next = start(directory.path(), KILLED + 2000, 10);
    assert_continued(&mut next, 1_795_717_010, 21.5);
    assert_eq!(numbers(&next.status), (0, 0));
    assert_eq!(numbers(&next.books.state), (1, 5));
}

/// With the number of what is lost.
#[test]
fn what_the_first_version_left_is_refused_with_its_number() {
    let expired = 3_600_000 + 1000;
    let found = start(copy("killed").path(), KILLED + expired, 10);
    assert_eq!((found.samples, found.status.set_aside), (0, 1));
    assert_eq!(numbers(&found.status), (1, 17));
    let found = start(copy("killed").path(), KILLED, 60);
    assert_eq!(
        (found.samples, numbers(&found.status)),
        (0, (1, 17)),
        "another width"
    );
    let found = start(copy("stopped").path(), STOPPED, 60);
    assert_eq!((found.samples, numbers(&found.status)), (0, (0, 12)));
}

/// A start with a state that cannot be used begins with an agent of its own directory, and counts that on.
#[test]
fn unusable_state_is_set_aside_with_its_reason() {
    let set_aside = |directory: &Path, reason: &str| {
        let found = start(directory, STOPPED, 10);
        assert_eq!((found.samples, found.status.set_aside), (0, 1), "{reason}");
        let because = found.status.set_aside_because.unwrap();
        assert!(because.contains(reason), "{reason}: {because}");
        assert!(directory.join("state.set-aside").exists());
        let next = start(directory, STOPPED, 10);
        assert_eq!(
            (next.status.set_aside, next.books.state.set_aside),
            (0, 1),
            "{reason}"
        );
    };
    type Damage = fn(&mut Vec<u8>);
    let damages: [(Damage, &str); 6] = [
        (|bytes| bytes.clear(), "truncated"),
        (
            |bytes| *bytes = b"something else".to_vec(),
            "not a state file of weir",
        ),
        (|bytes| bytes.truncate(bytes.len() / 2), "truncated"),
        (|bytes| bytes.truncate(bytes.len() - 1), "truncated"),
        (|bytes| *bytes.last_mut().unwrap() ^= 1, "checksum"),
        (|bytes| bytes[11] = 200, "version 200"),
    ];
    for (damage, reason) in damages {
        let directory = copy("stopped");
        let path = directory.path().join("state");
        let mut bytes = std::fs::read(&path).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        set_aside(directory.path(), reason);
    }
    let directory = copy("stopped");
    let agent = AgentId([9; 16]);
    std::fs::remove_file(directory.path().join("agent")).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk::of(directory.path()));
    StoredAgent::of(&disk, 1, None, || Ok(agent)).unwrap();
    set_aside(directory.path(), "another agent");
}

/// Files after a kill may have any content.
#[test]
fn a_damaged_checkpoint_is_used_as_far_as_it_is_whole() {
    let directory = copy("killed");
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("open-") {
            let whole = std::fs::read(&path).unwrap();
            std::fs::write(&path, &whole[..20]).unwrap();
        }
    }
    let found = start(directory.path(), KILLED, 10);
    assert_eq!((found.samples, numbers(&found.status)), (0, (1, 17)));
}
