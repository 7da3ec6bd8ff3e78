//! Losses inside of the agent: threads that are stopped or panic, system calls that fail, a clock that is set back; and those of merges.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use weir_log::FileLog;
use weir_merge::Log as _;

use crate::alerts::{damage, faulty_fleet, unreadable_snapshot, without_first_results};
use crate::columns::now;
use crate::merge::fleet::{Agent as Publishing, Fleet, counter, gauge};
use crate::merge::process::{Merge, config};
use crate::support::preload::{OTHER_CLOCK, preloaded};
use crate::support::{Agent, Starter, until};

use super::{Provoked, count, listed, of_kind};

/// Stops one thread of a process as a debugger does, until its standard input ends. Only where it waits for an event: elsewhere it may hold
/// a lock, of the allocator for example, and other threads would wait for it too. The numbers of the calls that wait are arguments.
const STOP_THREAD: &str = "
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
process, thread, *waits = sys.argv[1:]
while True:
    if libc.ptrace(16, int(thread), None, None) != 0:
        print('refused', os.strerror(ctypes.get_errno()), flush=True)
        sys.exit(0)
    os.waitpid(int(thread), 0x40000000)
    call = open(f'/proc/{process}/task/{thread}/syscall').read().split()[0]
    if call in waits:
        break
    libc.ptrace(17, int(thread), None, None)
    time.sleep(0.001)
print('stopped', flush=True)
sys.stdin.read()
libc.ptrace(17, int(thread), None, None)
";

/// The calls in which threads of the agent wait.
const WAITS: &[libc::c_long] = &[
    libc::SYS_futex,
    libc::SYS_epoll_pwait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];

/// A thread that is stopped until this is dropped.
pub struct StoppedThread(Child);

impl StoppedThread {
    /// `None`, with a line that says why, where that is not allowed.
    pub fn of(agent: &Agent, name: &str) -> Option<StoppedThread> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", agent.id())).unwrap();
        let is_it = |task: &std::path::PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        let thread = tasks.map(|task| task.unwrap().path()).find(is_it).unwrap();
        let mut debugger = Command::new("python3")
            .args(["-c", STOP_THREAD, &agent.id().to_string()])
            .arg(thread.file_name().unwrap())
            .args(WAITS.iter().map(ToString::to_string))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is needed");
        let mut line = String::new();
        let said = BufReader::new(debugger.stdout.take().unwrap()).read_line(&mut line);
        said.unwrap();
        let stopped = StoppedThread(debugger);
        if line.trim() != "stopped" {
            println!("skipped: a thread cannot be stopped here: {line}");
            return None;
        }
        Some(stopped)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Beside [`OTHER_CLOCK`]: the wall clock cannot be read in one thread while a file is there, and the standard library panics then. Another
/// file has the error of the next call that receives.
const FAULTS: &str = "
#undef clock_gettime
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    char thread[16];
    int is_wall = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
    if (is_wall && prctl(PR_GET_NAME, thread) == 0 && strcmp(thread, \"ingest-1\") == 0 && number_in(\"NO_CLOCK\")) {
        errno = EINVAL;
        return -1;
    }
    return other_clock(id, now);
}
int recvmmsg(int file, struct mmsghdr *messages, unsigned int length, int flags, struct timespec *timeout) {
    long fault = number_in(\"RECEIVE_FAULT\");
    if (fault) {
        unlink(getenv(\"RECEIVE_FAULT\"));
        errno = fault;
        return -1;
    }
    return syscall(SYS_recvmmsg, file, messages, length, flags, timeout);
}
";

const FAULT_FILES: [&str; 3] = ["NO_CLOCK", "CLOCK_OFFSET", "RECEIVE_FAULT"];

/// Writes the number that a fault has from now on.
fn set(directory: &Path, name: &str, number: i64) {
    let new = directory.join("new");
    std::fs::write(&new, number.to_string()).unwrap();
    std::fs::rename(new, directory.join(name)).unwrap();
}

fn counted(agent: &Agent, path: &str) -> u64 {
    let status = agent.status();
    let at = path.split('.').fold(&status, |value, name| &value[name]);
    at.as_u64().unwrap_or(0)
}

/// Events, checks and samples with a time of their own, more of each than may wait for the pipeline.
fn pass_on(agent: &Agent) {
    let text = "x".repeat(7000);
    let tag = "x".repeat(4000);
    for number in 0..400 {
        agent.send(format!("_e{{5,7000}}:event|{text}"));
        agent.send(format!("_sc|check|1|m:{text}"));
        for part in 0..3 {
            agent.send(format!("timed{number}:1|c|#{tag}|T{}", now() - part));
        }
    }
}

pub(super) fn threads() -> Option<Provoked> {
    let directory = tempfile::tempdir().unwrap();
    let faults = format!("#define clock_gettime other_clock\n{OTHER_CLOCK}{FAULTS}");
    let library = preloaded(directory.path(), &faults);
    let files = FAULT_FILES.map(|name| directory.path().join(name).display().to_string());
    let mut environment = vec![("LD_PRELOAD", &*library)];
    environment.extend(FAULT_FILES.into_iter().zip(files.iter().map(String::as_str)));
    let config = "bucket_width: 1s\nmemory: 16MiB\nworkers: 2\nsandbox: off\n";
    let agent = Starter::from(config).environment(&environment).socket().start();
    agent.send("first:1|c");
    until("it is counted", || {
        counted(&agent, "total.messages.accepted") == 1
    });

    let stopped = StoppedThread::of(&agent, "history")?;
    until("the history is behind", || {
        let lines = (0..200).map(|number| format!("series{number}:1|g|#long:{}\n", "x".repeat(300)));
        lines
            .collect::<Vec<_>>()
            .chunks(20)
            .for_each(|lines| agent.send(lines.concat()));
        counted(&agent, "history.behind") > 0
    });
    drop(stopped);
    until("a bucket has become a part of the next one", || {
        let stopped = StoppedThread::of(&agent, "pipeline").unwrap();
        let begun = now();
        pass_on(&agent);
        until("two buckets should have ended", || now() > begun + 3);
        drop(stopped);
        let before = counted(&agent, "flush.count");
        until("a bucket ends", || counted(&agent, "flush.count") > before);
        counted(&agent, "flush.buckets_joined") > 0
    });

    for (error, reason) in [(libc::ENOMEM, "no_memory"), (libc::EIO, "other")] {
        set(directory.path(), "RECEIVE_FAULT", i64::from(error));
        until("a call has failed", || {
            agent.send("received:1|c");
            agent.status()["listeners"]
                .to_string()
                .contains(&format!("\"{reason}\":1"))
        });
    }
    set(directory.path(), "CLOCK_OFFSET", -100_000);
    until("the clock is set back", || {
        agent.send("earlier:1|c");
        counted(&agent, "clock.set_back") > 0
    });
    set(directory.path(), "NO_CLOCK", 1);
    Some(Provoked::new(agent, directory))
}

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
    log.append(0, weir_log::unix_milliseconds(), bytes).unwrap();
}

/// Agents that end, share an id, lose records, are late, have a wrong clock, or divide their series in another way; a log with a damaged
/// record and one that is none.
pub(super) fn faulty() -> Provoked {
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
pub(super) fn small() -> Provoked {
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
pub(super) fn old() -> Provoked {
    let directory = tempfile::tempdir().unwrap();
    unreadable_snapshot(&directory.path().join("log"));
    running(directory, "")
}

/// Results were deleted before the output had them, and the log cannot be read any more.
pub(super) fn behind() -> Provoked {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    without_first_results(&log);
    let provoked = running(directory, "");
    // An output that has not read yet would not learn of it any more.
    let deleted = ("weir_fleet_sent_deleted_results_total", "");
    until("an output misses the deleted results", || {
        count(&of_kind(&listed(&provoked.admin), deleted)) > 0
    });
    std::fs::write(log.join("plan"), "nonsense").unwrap();
    provoked
}
