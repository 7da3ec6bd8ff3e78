//! `weir doctor` beside the real agent: each error is provoked, found and given a remedy, and a healthy agent has no findings.

use crate::merge::process::{self, Merge};
use crate::support;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{Agent, said, status, until};

const NOBODY: u32 = 65_534;

struct Ran {
    code: i32,
    findings: Vec<Value>,
}

impl Ran {
    fn of(command: &mut Command) -> Ran {
        let output = command.output().unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let findings = serde_json::from_str(&stdout);
        let findings = findings.unwrap_or_else(|error| {
            panic!("{error}: {stdout:?} {}", String::from_utf8_lossy(&output.stderr))
        });
        Ran {
            code: output.status.code().unwrap(),
            findings,
        }
    }

    /// The verdict on something, which has a remedy if it is a bad one.
    fn verdict(&self, check: &str, subject: &str) -> &str {
        let named = |finding: &&Value| {
            finding["check"] == check && finding["subject"].as_str().unwrap().contains(subject)
        };
        let found = self.findings.iter().find(named);
        let found = found.unwrap_or_else(|| panic!("no {check} of {subject} in {:#?}", self.findings));
        let verdict = found["verdict"].as_str().unwrap();
        if matches!(verdict, "error" | "warning") {
            assert!(
                found["remedy"].as_str().is_some_and(|text| !text.is_empty()),
                "{found}"
            );
        }
        verdict
    }

    fn remedy(&self, check: &str, subject: &str) -> String {
        let named = |finding: &&Value| {
            finding["check"] == check && finding["subject"].as_str().unwrap().contains(subject)
        };
        self.findings.iter().find(named).unwrap()["remedy"].to_string()
    }

    fn errors(&self) -> Vec<&Value> {
        let bad = |finding: &&Value| finding["verdict"] == "error";
        self.findings.iter().filter(bad).collect()
    }
}

/// With this configuration, and an admin address at which nobody answers unless it is given.
fn doctor(directory: &Path, config: &str, admin: &str, environment: &[(&str, &str)]) -> Ran {
    let file = directory.join("weir.yaml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .args(["doctor", "--json", "--admin", admin, "--config"])
        .arg(&file);
    Ran::of(command.env_clear().envs(environment.iter().copied()))
}

const NOBODY_ANSWERS: &str = "127.0.0.1:1";

/// Answers every request with this status line and headers.
fn server(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = stream;
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = write!(
                stream,
                "HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
    });
    address
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout == b"0\n"
}

#[test]
fn nothing_is_wrong_with_an_agent_that_works_and_the_metric_arrives() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let carbon = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "uds: ['{0}/d.socket']\nuds_stream: ['{0}/s.socket']\nstate_path: '{0}/state'\nreceive_buffer: 4KiB\n\
         outputs:\n  graphite:\n    address: tcp://{1}\n    confirm: false\n",
        directory.path().display(),
        carbon.local_addr().unwrap()
    );
    let mut agent = Agent::start(&config, &[]);
    let admin = agent.wait_for("admin on http://");
    let udp = format!("udp: ['{}']\n", agent.address());
    until("it is ready", || status(&admin)["not_ready"].is_null());
    let ran = doctor(directory.path(), &(udp.clone() + &config), &admin, &[]);
    assert_eq!((ran.code, ran.errors()), (0, vec![]));
    for (check, subject) in [
        ("agent", admin.as_str()),
        ("socket", "udp://"),
        ("socket", "d.socket"),
        ("socket", "s.socket"),
        ("receive_buffer", "udp://"),
        ("state_directory", "state"),
        ("endpoint", "graphite"),
    ] {
        assert_eq!(ran.verdict(check, subject), "fine", "{check} {subject}");
    }
    until("both metrics arrived", || {
        status(&admin)["total"]["messages"]["accepted"] == 2
    });
    let (address, socket) = (agent.address().to_string(), directory.path().join("d.socket"));
    let arguments = [
        "doctor",
        "--no-send",
        "--admin",
        &admin,
        "--udp",
        &address,
        "--uds",
        socket.to_str().unwrap(),
    ];
    let text = said(&arguments);
    assert!(
        text.contains("nothing was sent") && text.contains("0 errors"),
        "{text}"
    );
    assert_eq!(status(&admin)["total"]["messages"]["accepted"], 2);
}

#[test]
fn sockets_that_clients_cannot_reach_are_found() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let inner = directory.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let config = format!(
        "uds: ['{0}/d.socket']\nuds_stream: ['{0}/s.socket']\nsocket_mode: '0700'\n",
        inner.display()
    );
    let mut agent = Agent::start(&config, &[]);
    let admin = agent.wait_for("admin on http://");
    if is_root() {
        let ran = doctor(directory.path(), &config, &admin, &[]);
        assert_eq!((ran.code, ran.verdict("socket", "d.socket")), (1, "error"));
        assert!(ran.remedy("socket", "d.socket").contains("socket_mode"));
        std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o700)).unwrap();
        let ran = doctor(directory.path(), &config, &admin, &[]);
        assert!(ran.remedy("socket", "s.socket").contains("chmod o+x"));
    }
    // Another agent's configuration.
    let ran = doctor(directory.path(), "udp: ['127.0.0.1:9']\n", &admin, &[]);
    assert_eq!(ran.verdict("socket", "udp://127.0.0.1:9"), "error");
    drop(agent);
    std::fs::remove_file(inner.join("d.socket")).unwrap();
    std::fs::write(inner.join("d.socket"), "").unwrap();
    let ran = doctor(directory.path(), &config, NOBODY_ANSWERS, &[]);
    assert_eq!(ran.verdict("agent", "http://"), "warning");
    assert_eq!(ran.verdict("socket", "d.socket"), "error");
}

#[test]
fn addresses_in_use_and_directories_that_cannot_be_written_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let config = format!(
        "udp: ['{}']\nstate_path: '{}'\ntcp_tls_certificate: ''\norigin_file: '{}/none'\n",
        taken.local_addr().unwrap(),
        file.join("state").display(),
        directory.path().display()
    );
    let ran = doctor(directory.path(), &config, NOBODY_ANSWERS, &[]);
    assert_eq!(ran.verdict("socket", "udp://"), "error");
    assert!(ran.remedy("socket", "udp://").contains("ss -lpn"));
    assert_eq!(ran.verdict("state_directory", "state"), "error");
    assert_eq!(ran.verdict("file", "none"), "error");
    assert_eq!(ran.code, 1);
    let ran = doctor(directory.path(), "udp: ['127.0.0.1:0']\n", NOBODY_ANSWERS, &[]);
    assert_eq!(
        (ran.code, ran.verdict("state_directory", "state_path")),
        (0, "warning")
    );
}

#[test]
fn short_queues_and_small_buffers_of_the_kernel_are_found() {
    if !is_root() {
        return eprintln!("skipped: only root makes another network namespace");
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = support::copied_into(directory.path());
    let with_length = |length: u32| {
        let script = format!("echo {length} >/proc/sys/net/unix/max_dgram_qlen && exec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", &script]).arg(&program);
        command.args([
            "doctor",
            "--json",
            "--no-send",
            "--uds",
            "/nowhere.socket",
            "--udp",
            "127.0.0.1:0",
        ]);
        Ran::of(command.env("WEIR_ADMIN", "off"))
    };
    assert_eq!(with_length(10).verdict("kernel", "max_dgram_qlen"), "warning");
    assert_eq!(with_length(512).verdict("kernel", "max_dgram_qlen"), "fine");
    // Root gets any buffer.
    let mut command = Command::new(&program);
    command.args([
        "doctor",
        "--json",
        "--udp",
        "127.0.0.1:0",
        "--receive-buffer",
        "1GiB",
    ]);
    let ran = Ran::of(
        command
            .env("WEIR_ADMIN", "off")
            .uid(NOBODY)
            .gid(NOBODY)
            .current_dir("/"),
    );
    assert_eq!(ran.verdict("receive_buffer", "udp"), "warning");
    assert!(
        ran.remedy("receive_buffer", "udp")
            .contains("net.core.rmem_max=1073741824")
    );
}

#[test]
fn names_proxies_endpoints_and_clocks_that_are_wrong_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let write_to = |url: &str, proxy: &str| {
        format!(
            "udp: ['127.0.0.1:0']\noutputs:\n  prometheus: {{ enabled: false }}\n  remote_write:\n    url: {url}\n    delivery:\n      proxy: {proxy}\n"
        )
    };
    let run = |config: &str, environment: &[(&str, &str)]| {
        doctor(directory.path(), config, NOBODY_ANSWERS, environment)
    };
    let ran = run(&write_to("http://no-such-host.invalid/", "none"), &[]);
    assert_eq!(ran.verdict("dns", "no-such-host.invalid"), "error");
    assert_eq!(ran.verdict("endpoint", "remote_write"), "error");
    assert_eq!(ran.code, 1);

    let ran = run(&write_to("http://127.0.0.1:1/", "none"), &[]);
    assert_eq!(ran.verdict("endpoint", "remote_write"), "error");

    let proxied = write_to("http://backend.invalid/", "''");
    let ran = run(&proxied, &[("HTTP_PROXY", "http://127.0.0.1:1")]);
    assert_eq!(ran.verdict("proxy", "127.0.0.1:1"), "error");
    let ran = run(&write_to("http://backend.invalid/", "http://127.0.0.1:1"), &[]);
    assert_eq!(ran.verdict("proxy", "127.0.0.1:1"), "error");
    let proxy = format!("http://{}", server("407 Proxy Authentication Required"));
    let ran = run(&proxied, &[("HTTP_PROXY", &proxy)]);
    assert_eq!(ran.verdict("proxy", "127.0.0.1"), "fine");
    assert!(ran.remedy("endpoint", "remote_write").contains("user:password@"));

    if cfg!(feature = "kafka") {
        let broker = server("a broker");
        let ran = run(
            &format!(
                "outputs:\n  kafka:\n    brokers: ['{broker}', '127.0.0.1:1', 'no-broker.invalid:9092']\n"
            ),
            &[],
        );
        assert_eq!(ran.verdict("endpoint", &format!("kafka: tcp://{broker}")), "fine");
        assert_eq!(ran.verdict("endpoint", "kafka: tcp://127.0.0.1:1"), "error");
        assert_eq!(ran.verdict("dns", "no-broker.invalid"), "error");
    }

    for (answer, verdict, clock) in [
        ("405 Method Not Allowed", "fine", None),
        ("403 Forbidden", "error", None),
        ("404 Not Found", "warning", None),
        ("502 Bad Gateway", "warning", None),
        (
            "405 No\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT",
            "fine",
            Some("error"),
        ),
    ] {
        let address = server(answer);
        let ran = run(&write_to(&format!("http://{address}/api/v1/write"), "none"), &[]);
        assert_eq!(ran.verdict("endpoint", "remote_write"), verdict, "{answer}");
        if let Some(clock) = clock {
            assert_eq!(ran.verdict("clock", &address), clock);
        }
    }
}

#[test]
fn losses_and_failed_reloads_of_the_running_agent_are_found() {
    let config = "bucket_width: 1s\noutputs:\n  graphite: {address: 'tcp://127.0.0.1:1'}\n";
    let mut agent = Agent::start(config, &[]);
    let admin = agent.wait_for("admin on http://");
    agent.send("no metric\npage.views:1|c");
    until("both faults are counted", || {
        let status = status(&admin);
        let outputs = status["outputs"].as_array().unwrap();
        let has_failed = outputs.iter().any(|output| !output["last_error"].is_null());
        status["total"]["messages"]["received"] == 2 && has_failed
    });
    agent.rewrite("nonsense: 1\n");
    agent.signal("-HUP");
    until("it is refused", || {
        !status(&admin)["reload"]["last_error"].is_null()
    });
    let directory = tempfile::tempdir().unwrap();
    let config = format!("udp: ['{}']\n", agent.address());
    let ran = doctor(directory.path(), &config, &admin, &[]);
    assert_eq!(ran.verdict("losses", "udp://"), "warning");
    let remedy = ran.remedy("losses", "graphite");
    let error = "Last error: tcp://127.0.0.1:1: cannot connect: Connection refused";
    assert!(
        remedy.contains(error) && remedy.contains("`weir doctor --config FILE`"),
        "{remedy}"
    );
    assert_eq!(ran.verdict("reload", "configuration"), "error");
    assert_eq!(ran.code, 1);
}

/// The remedy of an output that fails names this command on the page of a merge too.
#[test]
fn a_merge_is_examined_by_its_own_file() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let outputs = "outputs: {prometheus: {}, graphite: {address: 'tcp://127.0.0.1:1'}}\n";
    let config = process::config(&log, outputs);
    let merge = Merge::start(directory.path(), &config);
    let ran = doctor(directory.path(), &config, &merge.admin, &[]);
    assert_eq!(ran.verdict("agent", &merge.admin), "fine");
    assert_eq!(ran.verdict("endpoint", "graphite"), "error");
    assert_eq!(ran.errors().len(), 1, "{:?}", ran.errors());
    assert_eq!(ran.code, 1);
    let is_socket = |finding: &Value| finding["check"] == "socket";
    assert!(!ran.findings.iter().any(is_socket), "{:?}", ran.findings);
}
