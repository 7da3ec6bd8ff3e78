//! Disturbances of a running agent by network, clients and machine, with the real binary on real sockets: stops,
//! connections, descriptors, socket files, panics.

use crate::losses::threads::StoppedThread;
use crate::support;
use crate::support::preload;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;

use preload::preloaded;
use serde_json::Value;
use support::{Agent, get, status, until, weir};

/// The number in front of `unit` in a line of the log.
fn number_before(line: &str, unit: &str) -> u64 {
    let (before, _) = line
        .split_once(unit)
        .unwrap_or_else(|| panic!("no {unit:?} in {line:?}"));
    before.trim_end().rsplit(' ').next().unwrap().parse().unwrap()
}

/// The sum of a counter over all buckets.
fn sum_of(stdout: &str, metric: &str) -> f64 {
    stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|row| row["metric"] == metric)
        .map(|row| row["value"].as_f64().unwrap() * row["interval"].as_f64().unwrap())
        .sum()
}

/// Writes lines over TCP until the connection ends, so that a drain takes its whole second.
fn busy_client(address: &str, line: &'static [u8]) -> JoinHandle<()> {
    let mut stream = TcpStream::connect(address).unwrap();
    std::thread::spawn(move || while stream.write_all(line).is_ok() {})
}

/// GNU `timeout` sends SIGTERM twice at once, to the process and to its group. The second once meant "stop at once", which
/// lost the open bucket. And what came after the last tick, the drain included, was once in no line of the log.
#[test]
fn a_second_signal_right_after_the_first_loses_nothing_and_the_log_has_the_final_books() {
    let config =
        "bucket_width: 1s\nworkers: 1\ntcp: ['127.0.0.1:0']\ntcp_framing: newline\noutputs:\n  stdout: {}\n";
    let mut agent = Agent::start(config, &[]);
    let tcp = agent.wait_for("listening on tcp://");
    let busy = busy_client(&tcp, b"busy:1|c\n");
    agent.wait_for("flushed 1 series");
    // Two of one kind would be one to a process that is stopped. It finds both when it runs again.
    for signal in ["-STOP", "-TERM", "-INT", "-CONT"] {
        agent.signal(signal);
    }
    let (_, stdout, log) = agent.end();
    busy.join().unwrap();
    assert!(log.contains(" again within a second"), "{log}");
    let delivered = sum_of(&stdout, "busy").round() as u64;
    let flushes = log.lines().filter(|line| line.contains("since the last: "));
    let flushed: u64 = flushes.map(|line| number_before(line, " messages in ")).sum();
    let end = log
        .lines()
        .find(|line| line.contains("since the start: "))
        .unwrap();
    let points = log
        .lines()
        .find(|line| line.contains("since the start, stdout: "))
        .unwrap();
    assert_eq!(
        (
            flushed,
            number_before(end, " messages received"),
            number_before(end, " samples received")
        ),
        (delivered, delivered, delivered),
        "{log}"
    );
    assert_eq!(
        number_before(points, " points produced"),
        number_before(points, " delivered"),
        "{log}"
    );
}

/// A second request after a second counts.
#[test]
fn a_signal_a_second_later_stops_at_once() {
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "bucket_width: 1s\ngrace_period: 1h\noutputs:\n  otlp: {{url: 'http://{}', delivery: {{timeout: 1h}}}}\n",
        receiver.local_addr().unwrap()
    );
    let mut agent = Agent::start(&config, &[]);
    agent.send("waits:1|c");
    let begun = std::time::Instant::now();
    agent.signal("-TERM");
    agent.wait_for("SIGTERM: outputs deliver");
    let mut code = None;
    until("it stops", || {
        agent.signal("-TERM");
        code = agent.ended();
        code.is_some()
    });
    assert!(begun.elapsed().as_secs() >= 1);
    assert_eq!(code.unwrap().code(), Some(1));
    agent.wait_for("again: stopped at once");
}

/// Idle connections once took every descriptor there was, and nobody could ask what was going on.
#[test]
fn the_limit_of_descriptors_is_raised_and_connections_leave_some_for_everything_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stream.sock");
    let config = format!("bucket_width: 1s\nworkers: 1\nuds_stream: [{}]\n", path.display());
    let limit = "ulimit -Sn 100 && ulimit -Hn 160";
    let mut agent = Agent::start_after(limit, &config);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", agent.id())).unwrap();
    let mut lines = limits.lines();
    let line = lines.find(|line| line.starts_with("Max open files")).unwrap();
    let fields: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(fields[3..5], ["160", "160"], "{line}");
    let admin = agent.admin.clone();
    let clients: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let listener = || status(&admin)["listeners"][1].clone();
    until("all have come", || {
        let listener = listener();
        let count = |name: &str| listener[name].as_u64().unwrap();
        count("connections") + count("connections_refused_limit") == 300
    });
    // Half of 160.
    assert_eq!(listener()["connections"], 80);
    agent.wait_for("connections refused (all in use)");
    let (_, page) = weir(&["status", "--admin", &admin]);
    assert!(
        page.contains("for lack of memory or descriptors: 220 connections\n"),
        "{page}"
    );
    let (_, metrics) = get(&admin, "/metrics");
    assert!(
        metrics.contains("weir_connections_refused_limit_total{"),
        "{metrics}"
    );
    drop(clients);
    agent.stop();
}

/// A socket file that somebody removed or replaced was once never made again, and nothing said that nobody could send. In a directory such
/// as an `emptyDir` of Kubernetes is, anybody may do that.
#[test]
fn a_removed_socket_file_is_created_again_or_the_agent_is_not_ready() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (path, other) = (at("dsd.sock"), at("other.sock"));
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let config = format!(
        "bucket_width: 1s\nworkers: 1\nsocket_directory_sticky: true\nuds: [{}]\n",
        path.display()
    );
    let mut agent = Agent::start(&config, &[]);
    let admin = agent.admin.clone();
    let found = directory.path().metadata().unwrap();
    // Only for root is it a danger.
    if found.uid() == 0 {
        agent.wait_for("other users may write in");
        assert_eq!(found.mode() & 0o7777, 0o1777, "{:o}", found.mode());
    }
    let remade = || {
        status(&admin)["listeners"][1]["socket_files_remade"]
            .as_u64()
            .unwrap()
    };
    let mut sent = 0;
    let mut take = || {
        sent += 1;
        // The file is there before its socket has its place in the worker; what comes in between waits.
        until("it can be sent to", || {
            UnixDatagram::unbound()
                .unwrap()
                .send_to(b"taken:1|c", &path)
                .is_ok()
        });
        until("it is taken", || {
            status(&admin)["total"]["messages"]["accepted"] == sent
        });
    };
    take();
    std::fs::remove_file(&path).unwrap();
    agent.wait_for("is missing: weir created it again");
    take();
    // A socket that nobody has open, put there at once.
    drop(UnixDatagram::bind(&other).unwrap());
    std::fs::rename(&other, &path).unwrap();
    agent.wait_for("was replaced: weir created it again");
    take();
    assert_eq!((remade(), get(&admin, "/ready").0), (2, 200));
    // One that somebody has: it is left alone.
    let live = UnixDatagram::bind(&other).unwrap();
    std::fs::rename(&other, &path).unwrap();
    agent.wait_for("not ready: ");
    let (code, body) = get(&admin, "/ready");
    assert!(
        code == 503 && body.contains("was replaced and cannot be created again"),
        "{code} {body}"
    );
    assert!(
        status(&admin)["not_ready"]
            .as_str()
            .unwrap()
            .contains("another process is listening")
    );
    drop(live);
    agent.wait_for("ready again");
    take();
    assert_eq!((remade(), get(&admin, "/ready").0), (3, 200));
    let (_, page) = weir(&["status", "--admin", &admin]);
    assert!(
        page.contains(
            "Number of times the socket file was missing or replaced, and was created again: 3 times\n"
        ) && page.contains("The books balance"),
        "{page}"
    );
    agent.stop();
    assert!(!path.exists());
}

/// The longest gap in receiving once read 0.0 ms after a stop, and a stuck worker left the agent ready: nothing said so.
#[test]
fn a_process_that_was_stopped_and_a_worker_that_is_stuck_are_reported() {
    let mut agent = Agent::start(&["--bucket-width", "1s", "--workers", "1"], &[]);
    let admin = agent.admin.clone();
    until("it is ready", || get(&admin, "/ready").0 == 200);
    let gap = || status(&admin)["flush"]["longest_gap_seconds"].as_f64().unwrap();
    agent.signal("-STOP");
    std::thread::sleep(std::time::Duration::from_secs(2));
    agent.signal("-CONT");
    agent.wait_for("the process did not run for ");
    assert!((1.5..60.0).contains(&gap()), "{}", gap());
    // The cut part of a datagram above 64 KiB once counted as one line.
    let lines = 10_000;
    agent.send("cut.off:1|c\n".repeat(lines));
    let books = || status(&admin)["total"]["messages"].clone();
    until("it has come", || books()["received"].as_u64() > Some(0));
    let books = books();
    let count = |value: &Value| value.as_u64().unwrap() as usize;
    let (accepted, truncated) = (count(&books["accepted"]), count(&books["rejected"]["truncated"]));
    assert_eq!(accepted, 65_536 / 12, "{books}");
    // At least what was lost, and not more than if all lines were as short as lines can be.
    assert!(
        (lines - accepted..=2 * (lines - accepted) + 1).contains(&truncated),
        "{books}"
    );
    assert_eq!(count(&books["received"]), accepted + truncated);

    let Some(stopped) = StoppedThread::of(&agent, "ingest-0") else {
        return;
    };
    agent.wait_for("not ready: ingest worker 0 is stuck: it has not received for 5 s");
    let (code, body) = get(&admin, "/ready");
    assert!(code == 503 && body.contains("ingest worker 0"), "{code} {body}");
    let reason = status(&admin)["not_ready"].to_string();
    assert!(reason.contains("ingest worker 0"), "{reason}");
    drop(stopped);
    agent.wait_for("ready again");
    assert_eq!(get(&admin, "/ready").0, 200);
    until("the gap is known", || gap() >= 4.0);
    agent.stop();
}

/// A wall clock that cannot be read in a thread while there is a file of its name. The standard library panics then.
const NO_CLOCK: &str = "
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    char thread[16], path[4096];
    if (id == CLOCK_REALTIME && prctl(PR_GET_NAME, thread) == 0) {
        snprintf(path, sizeof path, \"%s/%s\", getenv(\"NO_CLOCK\"), thread);
        if (access(path, F_OK) == 0) {
            errno = EINVAL;
            return -1;
        }
    }
    return syscall(SYS_clock_gettime, id, now);
}
";

/// A worker that panicked was noticed, but the buckets of the others waited for it, and its socket file was made again every
/// second for nobody. Nothing said so when no output got anything any more.
#[test]
fn a_worker_or_a_pipeline_that_panics_makes_the_agent_not_ready_and_the_rest_continues() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (first, second) = (at("first.sock"), at("second.sock"));
    let library = preloaded(directory.path(), NO_CLOCK);
    // UDP is read by both; of the others, the second by the first worker.
    let config = format!(
        "bucket_width: 1s\nworkers: 2\nsandbox: off\nuds: [{}, {}]\noutputs:\n  stdout: {{}}\n",
        second.display(),
        first.display()
    );
    let environment = [
        ("LD_PRELOAD", &*library),
        ("NO_CLOCK", directory.path().to_str().unwrap()),
    ];
    let mut agent = Agent::start(&config, &environment);
    let admin = agent.admin.clone();
    until("it is ready", || get(&admin, "/ready").0 == 200);
    let send = |path: &Path, line: &str| UnixDatagram::unbound()?.send_to(line.as_bytes(), path).map(drop);
    let delivered = || {
        let points = &status(&admin)["outputs"][0]["points"];
        points["delivered"].as_u64().unwrap()
    };
    send(&first, "of.the.first:1|g").unwrap();
    until("the first worker delivers", || delivered() == 1);
    std::fs::write(at("ingest-0"), "").unwrap();
    agent.wait_for("thread \"ingest-0\"");
    agent.wait_for("not ready: ingest worker 0 has ended: its sockets are not read");
    let (code, body) = get(&admin, "/ready");
    assert!(
        code == 503 && body.contains("ingest worker 0 has ended"),
        "{code} {body}"
    );
    let (_, page) = weir(&["status", "--admin", &admin]);
    assert!(
        page.contains("ingest worker 0 has ended") && page.contains("The books balance"),
        "{page}"
    );
    // Buckets of the remaining worker go out in sequence.
    for round in 0..3 {
        let before = delivered();
        send(&second, &format!("of.the.second.{round}:1|g")).unwrap();
        until("the second worker delivers", || delivered() > before);
    }
    assert!(send(&first, "lost:1|c").is_err(), "nobody would read it");
    std::fs::write(at("pipeline"), "").unwrap();
    agent.wait_for("thread \"pipeline\"");
    agent.wait_for("not ready: the thread that merges buckets has ended");
    agent.signal("-TERM");
    let (status, stdout, log) = agent.end();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(
        log.contains("lost at the end")
            && log.contains("1 ingest workers that panicked")
            && log.contains("merges buckets panicked"),
        "{log}"
    );
    assert!(!log.contains("created it again"), "{log}");
    for metric in ["of.the.first", "of.the.second.0", "of.the.second.2"] {
        assert_eq!(sum_of(&stdout, metric), 1.0, "{stdout}\n{log}");
    }
}

/// Asks an agent on `localhost` at each address: which of its listeners answer, before and after a hand-over.
const ASK_LOCALHOST: &str = r#"
ip link set lo up
[ "$IPV6" = yes ] || sysctl -qw net.ipv6.conf.lo.disable_ipv6=1
mkdir state
cat > weir.yaml <<EOF
udp: ['localhost:8125']
tcp: ['localhost:8126']
http: ['localhost:8124']
admin: localhost:8127
state_path: $PWD/state
outputs: {}
EOF
weir run --config weir.yaml 2>log &
agent=$!
until weir status --admin 127.0.0.1:8127 >answer 2>&1; do
  kill -0 $agent || { cat log; exit; }
done
look() {
  for host in 127.0.0.1 '[::1]' LocalHost; do
    bare=${host#[}
    for place in udp://$host:8125 tcp://$host:8126; do
      weir send 'seen:1|c' --to $place 2>answer && echo $place
    done
    weir status --admin $host:8127 >answer 2>&1 && echo admin $host
    (exec 3<>/dev/tcp/${bare%]}/8124) 2>answer && echo http $host
  done
}
look
weir upgrade --config weir.yaml >answer 2>&1 && echo upgraded || cat answer log
look
"#;

/// On a machine of its own, with IPv6 and without.
#[test]
fn localhost_is_both_families_for_every_listener_and_for_the_admin_address() {
    let isolated = [
        "--user",
        "--map-root-user",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ];
    let can = Command::new("unshare").args(isolated).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        return println!("skipped: this system gives no network namespace");
    }
    let program = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
    for ipv6 in ["yes", "no"] {
        let directory = tempfile::tempdir().unwrap();
        let ran = Command::new("timeout")
            .args(["60", "unshare"])
            .args(isolated)
            .args(["bash", "-c", ASK_LOCALHOST])
            .current_dir(directory.path())
            .env_clear()
            .env("IPV6", ipv6)
            .env(
                "PATH",
                format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", program.display()),
            )
            .output()
            .unwrap();
        let hosts = ["127.0.0.1", "[::1]", "LocalHost"];
        let answers = hosts.into_iter().filter(|host| ipv6 == "yes" || *host != "[::1]");
        let look: String = answers
            .map(|host| format!("udp://{host}:8125\ntcp://{host}:8126\nadmin {host}\nhttp {host}\n"))
            .collect();
        assert_eq!(
            String::from_utf8_lossy(&ran.stdout),
            format!("{look}upgraded\n{look}"),
            "IPv6: {ipv6}\n{}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }
}
