//! A healthy agent under each profile of the load generator: no surface reports a problem.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::thread::scope;

use weir_load::profile::Transport;
use weir_load::profiles;
use weir_load::source::Load;

use crate::alerts;
use crate::support::{Agent, json, run, status, until};

/// Profiles about faults of the senders.
const UNHEALTHY: [(&str, &str); 1] = [("malformed-1pct", "one message of a hundred is invalid")];

/// Agents beside each other. Each has a part of the profiles, and whatever one of them costs it is in its counters until the end.
const AGENTS: usize = 4;
/// Of each profile.
const BYTES: usize = 64 << 10;
/// Of each profile. With more a flush outlasts a bucket on a busy machine, which is a degradation; and a million take long to make.
const CONTEXTS_MAX: u64 = 200;

/// Sends the beginning of a profile's load, and returns the number of its messages.
fn send(profile: &str, socket: &UnixDatagram) -> u64 {
    let mut named = profiles::named(profile).unwrap();
    for end in [&mut named.contexts.min, &mut named.contexts.max] {
        *end = (*end).min(CONTEXTS_MAX);
    }
    let load = Load::prepare(profile, &named, Transport::Unixgram, named.seed).unwrap();
    let (mut source, _) = load.source(0);
    let mut buffer = vec![0; source.room()];
    let (mut bytes, mut messages) = (0, 0);
    while bytes < BYTES {
        let packet = source.packet(&mut buffer);
        // A Unix socket pushes back: nothing is lost on the way.
        bytes += socket.send(&buffer[..packet.len]).unwrap();
        messages += u64::from(packet.messages);
    }
    messages
}

/// Runs an agent under these profiles, and returns what its surfaces report.
fn reported(profiles: &[String]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    // An output that takes every value: some profiles have negative counters, which a scrape cannot express.
    let config = format!(
        "bucket_width: 2s\nstate_path: {}\nuds: [{}]\noutputs:\n  prometheus: {{enabled: false}}\n  file: {{path: {}}}\n",
        path("state").display(),
        path("socket").display(),
        path("points").display(),
    );
    let agent = Agent::start(&config, &[]);
    let socket = UnixDatagram::unbound().unwrap();
    socket.connect(path("socket")).unwrap();
    let messages = profiles.iter().map(|profile| send(profile, &socket)).sum();
    let flushes = || status(&agent.admin)["flush"]["count"].as_u64();
    until("everything was received", || {
        status(&agent.admin)["total"]["messages"]["received"].as_u64() >= Some(messages)
    });
    let until_now = flushes();
    until("the bucket with it and the next one have ended", || {
        flushes() >= until_now.map(|count| count + 2)
    });
    surfaces(&agent)
}

/// The problems that an agent's surfaces report.
fn surfaces(agent: &Agent) -> Vec<String> {
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
    let parts: Vec<Vec<String>> = (0..AGENTS)
        .map(|agent| all.iter().skip(agent).step_by(AGENTS).cloned().collect())
        .collect();
    let bad: Vec<String> = scope(|scope| {
        let running: Vec<_> = parts
            .iter()
            .map(|profiles| (profiles, scope.spawn(|| reported(profiles))))
            .collect();
        let reports = running
            .into_iter()
            .map(|(profiles, reports)| (profiles, reports.join().unwrap()));
        reports
            .filter(|(_, reports)| !reports.is_empty())
            .map(|(profiles, reports)| format!("{profiles:?}: {}", reports.join("\n")))
            .collect()
    });
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// Other profiles have counters that fall or names with several types, which a scrape cannot express.
const SCRAPED: &str = "real-web";

#[test]
fn no_alert_is_set_off_by_a_healthy_agent_with_load() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let config = format!(
        "bucket_width: 2s\nstate_path: {}\nuds: [{}]\n",
        path("state").display(),
        path("socket").display()
    );
    let agent = Agent::start(&config, &[]);
    let mut prometheus = alerts::prometheus(directory.path(), &[("healthy", &agent.admin)]);
    let mut received_in_all = |least: u64, scrapes: u64| {
        let query = format!(
            "sum(weir_messages_received_total) >= {least} and sum(count_over_time(weir_flushes_total[5m])) >= {scrapes}"
        );
        prometheus.query(&query).is_ok_and(|found| !found.is_empty())
    };
    until("it is scraped before the load", || received_in_all(0, 3));
    let socket = UnixDatagram::unbound().unwrap();
    socket.connect(path("socket")).unwrap();
    let messages = send(SCRAPED, &socket);
    until("it is scraped with the load and after it", || {
        received_in_all(messages, 8)
    });
    let mut firing = alerts::firing(&mut prometheus, "healthy");
    // The rules do not wait here, and on a busy machine one scrape may be late.
    firing.remove("WeirDown");
    assert_eq!(firing, BTreeSet::new());
    assert_eq!(surfaces(&agent), Vec::<String>::new());
}
