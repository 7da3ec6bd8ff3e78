//! Keys from a program: its rights, its answers, the sandbox, and that no secret is shown.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::delivery::receiver::Receiver;
use crate::delivery::reload::{NEW, OLD, datadog};
use crate::support::{Agent, Starter, post, run, until};

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

    /// Output of `weir check`: whether it is a good configuration, and the text.
    fn checked(&self, config: &str, environment: &[(&str, &str)]) -> (bool, String) {
        let path = self.path("weir.yaml");
        std::fs::write(&path, self.settings() + config).unwrap();
        let ran = run(&["check", "--config", path.to_str().unwrap()], environment);
        (ran.code == 0, ran.stdout + &ran.stderr)
    }
}

fn one(handle: &str, value: &str) -> String {
    format!(r#"{{"{handle}":{{"value":"{value}","error":null}}}}"#)
}

#[test]
fn a_program_answers_to_handles_in_every_source() {
    let key = "0123456789abcdef0123456789abcdef";
    let answer = format!(
        r#"{{"vault/key":{{"value":"{key}\n"}},"other":{{"value":"{OLD}","error":""}},"name":{{"value":"hush-hush"}},"port":{{"value":"9125"}}}}"#
    );
    let backend = Backend::new(&answer);
    let config = "secret_backend_arguments: [--from, a vault]\nhostname: ENC[name]\nudp: ['ENC[port]']\noutputs:\n  datadog:\n    \
                  additional_endpoints: {'https://b.example': ['ENC[other]']}\n";
    let environment = [
        ("DD_API_KEY", " ENC[vault/key] "),
        ("DD_APM_KEY", "ENC[not ours]"),
    ];
    let (good, text) = backend.checked(config, &environment);
    assert!(good, "{text}");
    let line = |key: &str| {
        let found = text.lines().find(|line| line.trim_start().starts_with(key));
        found.unwrap_or_else(|| panic!("{key}: {text}")).to_owned()
    };
    assert!(line("udp:").contains("[127.0.0.1:<secret>]"), "{text}");
    assert!(line("api_key:").contains("****cdef"), "{text}");
    assert!(line("hostname:").contains("hostname: <secret> "), "{text}");
    for hidden in [key, OLD, "hush-hush", "9125"] {
        assert!(!text.contains(hidden), "{hidden}: {text}");
    }
    let question = std::fs::read_to_string(backend.path("question")).unwrap();
    assert_eq!(
        question,
        r#"{"version":"1.0","secrets":["name","other","port","vault/key"]}"#
    );
    let arguments = std::fs::read_to_string(backend.path("arguments")).unwrap();
    assert_eq!(arguments, "--from a vault\n");
}

#[test]
fn errors_name_the_place_and_no_secret() {
    let backend = Backend::new("");
    let config = "outputs:\n  datadog:\n    api_key: ENC[key]\n";
    let secret = "hush-hush-hush-hush";
    for (answer, expected) in [
        (
            r#"{"key":{"value":null,"error":"no such key"}}"#.to_owned(),
            "weir.yaml:4: outputs.datadog.api_key: ENC[key]: secret_backend_command says \"no such key\"",
        ),
        (
            r#"{"other":{"value":"x"}}"#.to_owned(),
            "ENC[key]: secret_backend_command did not answer to it",
        ),
        (
            one("key", ""),
            "ENC[key]: secret_backend_command answered with an empty value",
        ),
        (format!("{secret} {{"), "weir.yaml:1: secret_backend_command: "),
        (
            format!(r#"{{"key":"{secret}"}}"#),
            "the answer is not JSON of the form",
        ),
    ] {
        backend.answers(&answer);
        let (good, text) = backend.checked(config, &[]);
        assert!(!good && text.contains(expected), "{answer}: {text}");
        assert!(!text.contains(secret), "{text}");
    }
    // A refused value is not shown either, whether its own setting refuses it or the whole does.
    backend.answers(&one("key", secret));
    for config in [
        "udp: ['ENC[key]']\n",
        "bucket_width: ENC[key]\n",
        "hostname: x\noutputs:\n  prometheus: {expiry: 'ENC[key]'}\n",
    ] {
        let (good, text) = backend.checked(config, &[]);
        assert!(
            !good && text.contains("<secret>") && !text.contains(secret),
            "{text}"
        );
    }
    let (good, text) = backend.checked("state_path: ENC[key]\n", &[]);
    assert!(!good && text.contains("must be written as it is"), "{text}");
    let ran = run(
        &[
            "check",
            "--set",
            "outputs.datadog.api_key=ENC[key]",
            "--output",
            "datadog",
        ],
        &[],
    );
    assert!(
        ran.code != 0
            && ran.stderr.contains(
                "secret_backend_command: is not set, and the configuration has handles of secrets: ENC[key]"
            ),
        "{}",
        ran.stderr
    );
}

#[test]
fn the_rights_of_the_program_are_those_that_the_datadog_agent_wants() {
    let backend = Backend::new(&one("key", OLD));
    let config = "outputs:\n  datadog:\n    api_key: ENC[key]\n";
    let group = format!("secret_backend_command_allow_group_exec_perm: true\n{config}");
    for (mode, config, refused) in [
        (0o700, config, None),
        (0o500, config, None),
        (0o750, config, Some("chmod 700")),
        (0o701, config, Some("chmod 700")),
        (0o600, config, Some("chmod u+x")),
        (0o750, &*group, None),
        (0o770, &*group, Some("chmod 750")),
        (0o751, &*group, Some("chmod 750")),
    ] {
        backend.program(PROGRAM, mode);
        let (good, text) = backend.checked(config, &[]);
        assert_eq!(good, refused.is_none(), "{mode:o}: {text}");
        assert!(text.contains(refused.unwrap_or_default()), "{mode:o}: {text}");
    }
    for (script, expected) in [
        ("#!/bin/sh\nexit 3\n", "ended with exit status: 3"),
        (
            "#!/bin/sh\nsleep 600 & sleep 600\n",
            "did not end within 1 s, and was killed",
        ),
        // The program ends by itself, and by a closed pipe.
        ("#!/bin/sh\nhead -c 1048577 /dev/zero\n", "is longer than 1 MiB"),
        ("#!/bin/sh\nhead -c 3000000 /dev/zero\n", "is longer than 1 MiB"),
        ("#!/nowhere/sh\n", "cannot be run"),
    ] {
        backend.program(script, 0o700);
        // Only the one that never ends meets its limit.
        let seconds = if script.contains("sleep") { 1 } else { 60 };
        let (good, text) = backend.checked(&format!("secret_backend_timeout: {seconds}\n{config}"), &[]);
        assert!(!good && text.contains(expected), "{script}: {text}");
    }
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
