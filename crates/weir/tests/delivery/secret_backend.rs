//! Keys from a program: the sandbox, reloads, and that no secret is shown.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::delivery::receiver::Receiver;
use crate::delivery::reload::{NEW, OLD, datadog};
use crate::support::{Agent, Starter, post, until};

/// Answers with the content of `answer` beside it, and keeps the question.
const PROGRAM: &str = "#!/bin/sh\nhere=${0%/*}\ncat > \"$here/question\"\necho \"$@\" > \"$here/arguments\"\ncat \"$here/answer\"\n";

struct Backend {
    directory: tempfile::TempDir,
}

impl Backend {
    fn new(answer: &str) -> Backend {
        let backend = Backend {
            directory: tempfile::tempdir().unwrap(),
        };
        backend.answers(answer);
        backend.program(PROGRAM, 0o700);
        backend
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn answers(&self, answer: &str) {
        std::fs::write(self.path("answer"), answer).unwrap();
    }

    fn program(&self, script: &str, mode: u32) {
        let new = self.path("new");
        std::fs::write(&new, script).unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode)).unwrap();
        std::fs::rename(&new, self.path("program")).unwrap();
    }

    fn settings(&self) -> String {
        format!("secret_backend_command: {}\n", self.path("program").display())
    }
}

fn one(handle: &str, value: &str) -> String {
    format!(r#"{{"{handle}":{{"value":"{value}","error":null}}}}"#)
}

fn agent(backend: &Backend, config: &str) -> (Agent, PathBuf) {
    let path = backend.path("weir.yaml");
    std::fs::write(&path, backend.settings() + config).unwrap();
    let agent = Starter::new()
        .arguments([Path::new("--config"), &path])
        .socket()
        .start();
    (agent, path)
}

fn until_key(receiver: &Receiver, metric: &str, key: &str) {
    until(metric, || {
        let found = receiver.points(metric);
        let arrived = found.iter().any(|(with, _)| with == key);
        arrived.then_some(()).ok_or(format!("{found:?}"))
    });
}

fn config(url: &str, handle: &str, more: &str) -> String {
    let output = datadog("intake", &format!("api_key: 'ENC[{handle}]'"), url, "");
    format!("bucket_width: 1s\n{more}outputs:\n{output}")
}

/// The sandbox forbids to run programs: a reload keeps known secrets and refuses new handles.
#[test]
fn secrets_are_there_before_the_sandbox_closes_and_stay_at_a_reload() {
    let intake = Receiver::start(202);
    let backend = Backend::new(&one("key", OLD));
    let (mut agent, path) = agent(&backend, &config(&intake.url, "key", ""));
    agent.send("first:1|c");
    until_key(&intake, "first", OLD);
    backend.answers(&one("key", NEW));
    std::fs::write(
        &path,
        backend.settings() + &config(&intake.url, "key", "flush_summary: false\nlog_level: debug\n"),
    )
    .unwrap();
    let (code, body) = post(&agent.admin, "/api/v1/reload");
    assert_eq!(code, 200, "{body}");
    agent.wait_for("reload: secrets stay as they were at the start");
    agent.send("second:1|c");
    until_key(&intake, "second", OLD);
    std::fs::write(&path, backend.settings() + &config(&intake.url, "new", "")).unwrap();
    let (_, body) = post(&agent.admin, "/api/v1/reload");
    assert!(
        body.contains("ENC[new]: was not there at the start, and the sandbox forbids"),
        "{body}"
    );
    let page = agent.status().to_string();
    agent.signal("-TERM");
    let log = agent.finished();
    for shown in [log, page] {
        assert!(!shown.contains(OLD) && !shown.contains(NEW), "{shown}");
    }
}

#[test]
fn a_reload_without_the_sandbox_asks_again() {
    let intake = Receiver::start(202);
    let backend = Backend::new(&one("key", OLD));
    let (mut agent, _) = agent(&backend, &config(&intake.url, "key", "sandbox: off\n"));
    agent.send("first:1|c");
    until_key(&intake, "first", OLD);
    backend.answers(&one("key", NEW));
    let (code, body) = post(&agent.admin, "/api/v1/reload");
    assert_eq!(code, 200, "{body}");
    agent.wait_for("reload: outputs.intake.api_key is now ");
    agent.send("second:1|c");
    until_key(&intake, "second", NEW);
    agent.signal("-TERM");
    let log = agent.finished();
    assert!(!log.contains(OLD) && !log.contains(NEW), "{log}");
}
