//! `weir doctor` beside a real agent, with the rights of the user that the agent and its clients run as.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;

use crate::support::{Agent, run, said, status, until};

struct Examined {
    code: i32,
    findings: Vec<Value>,
}

impl Examined {
    fn find(&self, check: &str, subject: &str) -> &Value {
        let is_it = |finding: &&Value| {
            finding["check"] == check && finding["subject"].as_str().unwrap().contains(subject)
        };
        let found = self.findings.iter().find(is_it);
        found.unwrap_or_else(|| panic!("no {check} of {subject} in {:#?}", self.findings))
    }

    fn verdict(&self, check: &str, subject: &str) -> &str {
        self.find(check, subject)["verdict"].as_str().unwrap()
    }

    /// An error with this remedy.
    #[track_caller]
    fn has_error(&self, check: &str, subject: &str, remedy: &str) {
        let found = self.find(check, subject);
        let said = found["remedy"].as_str().unwrap();
        assert!(found["verdict"] == "error" && said.contains(remedy), "{found}");
        assert_eq!(self.code, 1);
    }
}

fn doctor(directory: &Path, config: &str, admin: &str, environment: &[(&str, &str)]) -> Examined {
    let file = directory.join("doctor.yaml");
    std::fs::write(&file, config).unwrap();
    let arguments = [
        "doctor",
        "--json",
        "--admin",
        admin,
        "--config",
        file.to_str().unwrap(),
    ];
    let ran = run(&arguments, environment);
    let findings = serde_json::from_str(&ran.stdout);
    Examined {
        code: ran.code,
        findings: findings.unwrap_or_else(|error| panic!("{error}: {}{}", ran.stdout, ran.stderr)),
    }
}

fn may(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_working_agent_is_fine_and_each_fault_of_a_running_one_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    may(at, 0o755);
    let carbon = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "uds: ['{0}/d.socket']\nuds_stream: ['{0}/s.socket']\nstate_path: '{0}/state'\nreceive_buffer: 4KiB\n\
         outputs:\n  graphite:\n    address: tcp://{1}\n    confirm: false\n",
        at.display(),
        carbon.local_addr().unwrap()
    );
    let agent = Agent::start(&config, &[]);
    let admin = agent.admin.clone();
    let udp = format!("udp: ['{}']\n", agent.address());
    until("it is ready", || status(&admin)["not_ready"].is_null());
    let found = doctor(at, &(udp.clone() + &config), &admin, &[]);
    let errors = found
        .findings
        .iter()
        .filter(|finding| finding["verdict"] == "error");
    assert_eq!((found.code, errors.count()), (0, 0), "{:#?}", found.findings);
    for (check, subject) in [
        ("agent", admin.as_str()),
        ("socket", "udp://"),
        ("socket", "d.socket"),
        ("socket", "s.socket"),
        ("receive_buffer", "udp://"),
        ("state_directory", "state"),
        ("endpoint", "graphite"),
    ] {
        assert_eq!(found.verdict(check, subject), "fine", "{check} {subject}");
    }
    let accepted = || status(&admin)["total"]["messages"]["accepted"].clone();
    until("both metrics arrived", || accepted() == 2);
    let (address, socket) = (agent.address().to_owned(), at.join("d.socket"));
    let to = [
        "--admin",
        &admin,
        "--udp",
        &address,
        "--uds",
        socket.to_str().unwrap(),
    ];
    let text = said(&[&["doctor", "--no-send"][..], &to].concat());
    assert!(
        text.contains("nothing was sent") && text.contains("0 errors"),
        "{text}"
    );
    assert_eq!(accepted(), 2);

    // Another agent's configuration, with an output that reads the environment of this machine.
    let other = "udp: ['127.0.0.1:9']\noutputs:\n  prometheus: {enabled: false}\n  remote_write: {url: 'http://backend.invalid/'}\n";
    let found = doctor(at, other, &admin, &[("HTTP_PROXY", "http://127.0.0.1:1")]);
    found.has_error("socket", "udp://127.0.0.1:9", "--config");
    found.has_error("proxy", "127.0.0.1:1", "start the proxy");
    agent.send("no metric");
    agent.rewrite("nonsense: 1\n");
    agent.signal("-HUP");
    until("both faults are known", || {
        let status = status(&admin);
        let rejected = &status["total"]["messages"]["rejected"];
        !status["reload"]["last_error"].is_null() && rejected["no_separator"] == 1
    });
    let found = doctor(at, &(udp.clone() + &config), &admin, &[]);
    assert_eq!(found.verdict("losses", "udp://"), "warning");
    found.has_error("reload", "configuration", "weir check");
    if rustix::process::geteuid().is_root() {
        may(&socket, 0o700);
        let found = doctor(at, &(udp.clone() + &config), &admin, &[]);
        found.has_error("socket", "d.socket", "socket_mode");
        may(at, 0o700);
        let found = doctor(at, &(udp + &config), &admin, &[]);
        found.has_error("socket", "s.socket", "chmod o+x");
        may(at, 0o755);
    }
    agent.stop();
}
