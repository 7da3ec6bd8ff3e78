//! A healthy agent under each profile of the load generator: no surface reports a problem.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::scope;

use weir_load::profile::Transport;
use weir_load::profiles;
use weir_load::source::Load;

use crate::support::{Agent, json, run, status, until};

/// Profiles about faults of the senders.
const UNHEALTHY: [(&str, &str); 1] = [("malformed-1pct", "one message of a hundred is invalid")];

/// Agents at the same time.
const BESIDE: usize = 8;
const BYTES: usize = 256 << 10;

/// Runs an agent under a profile, and returns what its surfaces report.
fn reported(profile: &str) -> Vec<String> {
    let named = profiles::named(profile).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    // An output that takes every value: some profiles have negative counters, which a scrape cannot express.
    let config = format!(
        "bucket_width: 1s\nstate_path: {}\nuds: [{}]\noutputs:\n  prometheus: {{enabled: false}}\n  file: {{path: {}}}\n",
        path("state").display(),
        path("socket").display(),
        path("points").display(),
    );
    let agent = Agent::start(&config, &[]);
    let load = Load::prepare(profile, &named, Transport::Unixgram, named.seed).unwrap();
    let (mut source, _) = load.source(0);
    let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
    socket.connect(path("socket")).unwrap();
    let mut buffer = vec![0; source.room()];
    let (mut bytes, mut messages) = (0, 0);
    while bytes < BYTES {
        let packet = source.packet(&mut buffer);
        // A Unix socket pushes back: nothing is lost on the way.
        bytes += socket.send(&buffer[..packet.len]).unwrap();
        messages += u64::from(packet.messages);
    }
    until("everything was received and a bucket with it has ended", || {
        let status = status(&agent.admin);
        let received = status["total"]["messages"]["received"].as_u64();
        status["flush"]["count"].as_u64() > Some(1) && received >= Some(messages)
    });
    let asked = |arguments: &[&str]| {
        let ran = run(&[arguments, &["--admin", &agent.admin]].concat(), &[]);
        (ran.code, ran.stdout + &ran.stderr)
    };
    let mut reports = Vec::new();
    let losses = json(&agent.admin, "/api/v1/losses");
    if losses.as_array().is_none_or(|list| !list.is_empty()) {
        reports.push(format!("losses: {losses:#}"));
    }
    let (code, page) = asked(&["status"]);
    if code != 0 || !page.contains("The books balance") || page.contains('✗') {
        reports.push(format!("status, {code}: {page}"));
    }
    let (code, table) = asked(&["top", "--once"]);
    if code != 0 || table.contains('✗') {
        reports.push(format!("top, {code}: {table}"));
    }
    let (code, findings) = asked(&["doctor"]);
    let lines = findings.lines().filter(|line| line.starts_with("WARNING"));
    // The clock is the machine's.
    let warnings = lines.filter(|line| !line.contains(" clock ")).count();
    if code != 0 || warnings > 0 {
        reports.push(format!("doctor, {code}: {findings}"));
    }
    reports
}

#[test]
fn no_surface_reports_a_problem_of_a_healthy_agent_under_any_profile() {
    let all: Vec<String> = profiles::all()
        .into_iter()
        .map(|profile| profile.name)
        .filter(|name| profiles::named(name).unwrap().payload.is_statsd())
        .filter(|name| UNHEALTHY.iter().all(|(unhealthy, _)| unhealthy != name))
        .collect();
    assert!(all.len() > 20, "{all:?}");
    let next = AtomicUsize::new(0);
    let bad = Mutex::new(Vec::new());
    scope(|scope| {
        let run = || {
            while let Some(profile) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                let reports = reported(profile);
                if !reports.is_empty() {
                    bad.lock()
                        .unwrap()
                        .push(format!("{profile}: {}", reports.join("\n")));
                }
            }
        };
        for _ in 0..BESIDE {
            scope.spawn(run);
        }
    });
    let bad = bad.into_inner().unwrap();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
