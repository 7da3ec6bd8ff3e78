//! Rights that the running binary has dropped, and proof that everything else still works.

use crate::support;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;

use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;
use support::{Agent, Starter, get, json, post, receivers, status, until, weir};

/// The user without rights of most systems.
const NOBODY: u32 = 65534;

/// Tests that give files to others, and need rights to give up.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
}

/// A field of the kernel's status, of every thread.
fn of_threads(agent: &Agent, field: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", agent.id())).unwrap();
    let statuses = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap());
    let mut found: Vec<String> = statuses
        .map(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
            line.trim().to_owned()
        })
        .collect();
    assert!(found.len() > 3, "{field} of {} threads", found.len());
    found.sort();
    found.dedup();
    found
}

fn post_reload(admin: &str) -> (u16, Value) {
    let (code, body) = post(admin, "/api/v1/reload");
    (code, serde_json::from_str(&body).unwrap())
}

fn lines_of(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// A core dump would have keys.
#[test]
fn every_thread_has_dropped_its_rights_and_a_crash_leaves_no_core_dump_unless_the_sandbox_is_off() {
    use std::os::unix::process::ExitStatusExt as _;
    let directory = tempfile::tempdir().unwrap();
    // As large as this user may have them.
    let before = format!("cd '{}' && ulimit -c $(ulimit -H -c)", directory.path().display());
    let limit = |agent: &Agent| {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", agent.id())).unwrap();
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max core file size"));
        line.unwrap().split_whitespace().next().unwrap().to_owned()
    };
    let config = "bucket_width: 1s\nworkers: 2\noutputs:\n  stdout: {}\n";
    let agent = Agent::start_after(&before, config);
    agent.send("a:1|c");
    until("a flush", || agent.status()["flush"]["count"].as_u64() > Some(0));
    let sandbox = agent.status()["sandbox"].clone();
    println!("{sandbox:#}");
    assert_eq!(
        sandbox["missing"],
        serde_json::json!([]),
        "this test needs a kernel with Landlock and seccomp"
    );
    assert_eq!(of_threads(&agent, "NoNewPrivs:"), ["1"]);
    assert_eq!(of_threads(&agent, "Seccomp:"), ["2"]);
    for set in ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:"] {
        assert_eq!(of_threads(&agent, set), ["0000000000000000"], "{set}");
    }
    if is_root() {
        assert_eq!(of_threads(&agent, "CapBnd:"), ["0000000000000000"]);
    }
    for shown in [
        "enabled",
        "no_new_privileges",
        "no_core_dumps",
        "files_restricted",
    ] {
        assert_eq!(sandbox[shown], true, "{shown}");
    }
    assert_eq!(sandbox["capabilities"], serde_json::json!([]));
    assert!(sandbox["system_calls_refused"].as_u64() > Some(40));
    let (_, page) = weir(&["status", "--admin", &agent.admin]);
    for part in [
        "sandbox: no new privileges; no capabilities; files read in ",
        "system calls refused",
    ] {
        assert!(page.contains(part), "{page}");
    }
    assert_eq!(limit(&agent), "1");
    agent.signal("-ABRT");
    let (ended, _, log) = agent.end();
    assert_eq!(ended.signal(), Some(6), "{log}");
    assert!(!ended.core_dumped(), "{log}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);

    let mut agent = Agent::start_after(&before, "sandbox: 'off'\noutputs:\n  stdout: {}\n");
    agent.wait_for("sandbox: off: this process keeps all its rights");
    assert_eq!(of_threads(&agent, "NoNewPrivs:"), ["0"]);
    assert_eq!(of_threads(&agent, "Seccomp:"), ["0"]);
    if is_root() {
        assert_ne!(of_threads(&agent, "CapEff:"), ["0000000000000000"]);
    }
    assert_eq!(agent.status()["sandbox"]["enabled"], false);
    let (_, page) = weir(&["status", "--admin", &agent.admin]);
    assert!(page.contains("\nsandbox: off\n"), "{page}");
    assert_ne!(limit(&agent), "1");
    agent.stop();
}

/// A path of the admin address, whatever its bytes.
fn fetch(admin: &str, path: &str) -> String {
    let (head, body) = receivers::get(admin, path, "*/*").unwrap();
    assert!(head.starts_with("HTTP/1.0 200"), "{path}: {head}");
    String::from_utf8_lossy(&body).into_owned()
}

/// Takes profiles, which name functions.
fn take_profiles(agent: &Agent) {
    // Something to be seen: new contexts as long as profiles are taken.
    let done = std::sync::atomic::AtomicBool::new(false);
    let address = agent.address().to_owned();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                number += 1;
                let lines: Vec<String> = (0..40)
                    .map(|n| format!("context:1|c|#a:{number},b:{n}"))
                    .collect();
                socket.send_to(lines.join("\n").as_bytes(), &address).unwrap();
            }
        });
        for path in ["/debug/pprof/profile?seconds=1", "/debug/pprof/heap"] {
            // Names come from the binary itself, which is read for it.
            until(path, || fetch(&agent.admin, path).contains("weir_ingest::"));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// A certificate for TLS, written to this directory.
fn write_certificate(directory: &Path, subject: &str) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![subject.to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    // As secrets are replaced: a new file takes the name of the old one.
    for (name, text) in [
        ("server.pem", certificate.pem()),
        ("server.key", key.serialize_pem()),
    ] {
        std::fs::write(directory.join("new"), text).unwrap();
        std::fs::rename(directory.join("new"), directory.join(name)).unwrap();
    }
}

#[test]
fn profiles_and_a_reload_read_the_files_named_at_the_start_and_others_are_refused_with_the_reason() {
    let (known, unknown) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_certificate(known.path(), "first");
    write_certificate(unknown.path(), "elsewhere");
    let config = |directory: &Path| {
        let at = directory.display();
        format!(
            "workers: 1\ntcp: ['127.0.0.1:0']\ntcp_tls_certificate: {at}/server.pem\ntcp_tls_key: {at}/server.key\n"
        )
    };
    // No output to standard output: beside other work it has too many series to deliver before the end.
    let mut agent = Agent::start(&config(known.path()), &[]);
    take_profiles(&agent);
    let admin = agent.admin.clone();
    write_certificate(known.path(), "second");
    let (code, answer) = post_reload(&admin);
    assert_eq!(code, 200, "{answer}");
    assert_eq!(answer["changes"][0]["applied"], true, "{answer}");

    agent.rewrite(&config(unknown.path()));
    let (code, answer) = post_reload(&admin);
    let errors = answer["errors"].to_string();
    assert_eq!(code, 422, "{answer}");
    assert!(errors.contains("Permission denied"), "{errors}");
    assert!(
        errors.contains("the sandbox denies files and directories") && errors.contains("restart"),
        "{errors}"
    );
    agent.wait_for("the sandbox denies files and directories");

    agent.rewrite(&config(known.path()));
    let (code, answer) = post_reload(&admin);
    assert_eq!(code, 200, "{answer}");
    agent.stop();
}

#[test]
fn files_queues_sockets_names_and_container_runtimes_still_work() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    std::fs::create_dir(at.join("logs")).unwrap();
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = receiver.local_addr().unwrap().port();
    let docker = UnixListener::bind(at.join("docker.sock")).unwrap();
    let config = format!(
        "bucket_width: 1s\nworkers: 1\nuds: [{at}/dsd.sock]\norigin_detection: true\n\
         origin_docker: [{at}/docker.sock]\norigin_containerd: []\n\
         outputs:\n  file: {{path: {at}/logs/metrics.jsonl, rotate_bytes: 4KiB}}\n  \
         graphite: {{address: 'tcp://localhost:{port}', delivery: {{disk_path: {at}/queue}}}}\n",
        at = at.display()
    );
    let mut agent = Agent::start(&config, &[]);
    let admin = agent.wait_for("admin on http://");
    // The runtime's socket is connected to, and asked.
    let (runtime, _) = docker.accept().unwrap();
    let mut request = String::new();
    BufReader::new(runtime).read_line(&mut request).unwrap();
    assert!(request.starts_with("GET /events"), "{request}");
    // A process is looked at: this one.
    let socket = UnixDatagram::unbound().unwrap();
    socket.send_to(b"by.socket:1|c", at.join("dsd.sock")).unwrap();
    until("the sender is known", || {
        status(&admin)["origin"]["processes"] == 1
    });
    until("the look-up is counted", || {
        status(&admin)["origin"]["resolver"]["processes"]
            .as_object()
            .is_some_and(|counts| !counts.is_empty())
    });
    let looked_up = &status(&admin)["origin"]["resolver"]["processes"];
    for error in ["process_denied", "process_unreadable"] {
        assert_eq!(looked_up[error].as_u64().unwrap_or(0), 0, "{looked_up}");
    }
    // `localhost` is looked up, and what comes is a line.
    let (mut carbon, _) = receiver.accept().unwrap();
    let mut first = [0; 9];
    carbon.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"by.socket");
    // Files are written, renamed, compressed and removed.
    let log = at.join("logs/metrics.jsonl");
    until("the file is written", || {
        !lines_of(&log).is_empty() || files_in(&at.join("logs")) > 1
    });
    for round in 0..3 {
        let before = status(&admin)["flush"]["count"].as_u64().unwrap();
        let lines: Vec<String> = (0..60).map(|n| format!("again.{n}:1|c")).collect();
        socket
            .send_to(lines.join("\n").as_bytes(), at.join("dsd.sock"))
            .unwrap();
        until("another flush", || {
            status(&admin)["flush"]["count"].as_u64() > Some(before + 1)
        });
        println!("round {round}: {} files", files_in(&at.join("logs")));
    }
    until("it is rotated", || files_in(&at.join("logs")) > 1);
    // Moved away by another program, and recreated when asked.
    std::fs::rename(&log, at.join("logs/moved")).ok();
    agent.signal("-HUP");
    agent.wait_for("reload: ");
    socket.send_to(b"anew:1|c", at.join("dsd.sock")).unwrap();
    until("it is recreated", || log.exists());
    assert!(at.join("queue").is_dir() && files_in(&at.join("queue")) > 0);
    let writable = status(&admin)["sandbox"]["writable"].to_string();
    for name in ["/logs", "/queue"] {
        assert!(writable.contains(name), "{writable}");
    }
    drop(carbon);
    drop(agent.stop());
    assert!(
        !at.join("dsd.sock").exists(),
        "the socket file is removed at the end"
    );
}

fn files_in(directory: &Path) -> usize {
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

#[test]
fn root_keeps_and_names_the_capabilities_that_something_needs_and_another_user_has_none() {
    if !is_root() {
        println!("not root: there is nothing to keep, and every test here is run by an unprivileged user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let theirs = at.join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::set_permissions(&theirs, std::fs::Permissions::from_mode(0o700)).unwrap();
    chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    let config = format!(
        "bucket_width: 1s\nworkers: 1\nuds: [{0}/dsd.sock]\nsocket_owner: '{NOBODY}'\noutputs:\n  file: {{path: {0}/theirs/m.jsonl}}\n",
        at.display()
    );
    let mut agent = Agent::start(&config, &[]);
    let admin = agent.wait_for("admin on http://");
    let kept = status(&admin)["sandbox"]["capabilities"].clone();
    let named = |name: &str| {
        let kept = kept.as_array().unwrap();
        let found = kept.iter().find(|kept| kept["capability"] == name);
        found.map(|kept| kept["because"].as_str().unwrap().to_owned())
    };
    assert!(
        named("CAP_CHOWN").is_some_and(|why| why.contains("socket_owner")),
        "{kept}"
    );
    assert!(named("CAP_FOWNER").is_some(), "{kept}");
    assert!(
        named("CAP_DAC_OVERRIDE").is_some_and(|why| why.contains("/theirs")),
        "{kept}"
    );
    assert_eq!(kept.as_array().unwrap().len(), 3, "{kept}");
    agent.send("a:1|c");
    until("it writes there", || {
        !lines_of(&theirs.join("m.jsonl")).is_empty()
    });
    agent.stop();

    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    chown(at, Some(NOBODY), Some(NOBODY)).unwrap();
    let config = format!(
        "bucket_width: 1s\nworkers: 1\noutputs:\n  file: {{path: {}/m.jsonl}}\n",
        at.display()
    );
    let mut agent = Starter::by_user(NOBODY).config(&config).start();
    let admin = agent.wait_for("admin on http://");
    assert_eq!(
        of_threads(&agent, "Uid:")[0].split_whitespace().next(),
        Some("65534")
    );
    assert_eq!(of_threads(&agent, "NoNewPrivs:"), ["1"]);
    assert_eq!(of_threads(&agent, "Seccomp:"), ["2"]);
    assert_eq!(of_threads(&agent, "CapPrm:"), ["0000000000000000"]);
    let sandbox = json(&admin, "/api/v1/status")["sandbox"].clone();
    assert_eq!(sandbox["missing"], serde_json::json!([]));
    agent.send("a:1|c");
    until("it writes", || !lines_of(&at.join("m.jsonl")).is_empty());
    assert_eq!(get(&admin, "/debug/vars").0, 200);
    agent.stop();
}
